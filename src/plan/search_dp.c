/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Dynamic programming over (set of workers, first worker of the suffix, first unit of the suffix),
 * built from the last stage to the first, so that the number of stages behind a new one is known
 * when its memory is checked. A state keeps its Pareto set of (slowest, sum): a suffix that is
 * worse in both can never be part of the best pipeline, since both the objective's terms only grow
 * (where codecs cost the later stage time, the time of the first stage is a third measure). Sets
 * are taken by size, so that a state is final when it is extended.
 *
 * What the units in front of a suffix cost at least (search_bound.h) is held against a limit: the
 * objective of the worst cut that is asked for. It is not known before, so that passes have one
 * limit after the other. The first ones keep one suffix of each state, with a limit that is raised
 * until one of them comes through; what they find is hardly worse than the best, and its worst cut
 * is the limit of the exact pass. Where that finds fewer cuts than are asked for, it is run again
 * with a wider limit. A suffix above the limit would keep none below it out, so that the cuts are
 * those that a pass without any limit has, as far as the last limit reaches, in a hundredth of its
 * time.
 *
 * How much work a problem is shows when it is done: an exact pass is given up after so many
 * suffixes, whatever the numbers of workers and units, and tried once more with a narrower limit.
 * That is for models of some hundred layers. What earlier passes found
 * stays then; else exact passes alone count. First passes, of
 * which each has no more suffixes than sets of workers times pairs of units, are never given up:
 * they tell whether anything fits.
 *
 * Refused: bisection on the slowest stage with a greedy check, which is not exact where the sum
 * matters (few micro-batches, long round trips), and one table an order, which repeats the
 * common suffixes of 8! orders.
 */
#include "src/base/buf.h"
#include "src/plan/search_bound.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Candidates this much above the best one are looked for, since the judge knows more; so far at
 * first, and twice as far each time. */
#define SLACK       1.25
#define FIRST_SLACK 0.01

/* Suffixes that exact passes may try: half a second's work. 64 units on eight workers take less
 * than a tenth of it mostly. And those that may be kept, beaten ones included: 160 MB. */
#define N_TRIED_MAX  16000000
#define N_LABELS_MAX 4000000

/* The first limit, over what all units in front of an empty suffix cost; then twice as far above
 * it, until it is this much, and then there is none. */
#define FIRST_GAP 0.02
#define LAST_GAP  4.0

/* Sums are rounded otherwise than bounds. */
#define ROUNDING 1e-9

struct label {
    double slowest_s, sum_s;
    double first_s; /* of its first stage, while the edge before it may still add to it; else 0 */
    int64_t begin;
    int32_t parent; /* the suffix behind; -1: this is the last stage */
    int8_t worker;
};

/* Labels of one state, as indices. */
struct state {
    int32_t *labels;
    int n, cap;
};

struct dp {
    const struct hdt_search_problem *problem;
    struct hdt_search_tables tables;
    struct hdt_search_bound bound;
    struct label *labels;
    size_t n_labels, cap;
    struct state *states; /* ((mask * n_workers) + worker) * n_units + begin */
    size_t n_states;
    double best_s;       /* of whole pipelines */
    double limit_s;      /* of the pass */
    bool is_first;       /* pass: one suffix of each state */
    bool edges_add;      /* some edge costs its later stage time */
    int64_t n_tried;     /* suffixes, in all passes */
    int64_t n_tried_max; /* when an exact pass is given up */
    struct hdt_search_cut *cuts;
    size_t n_cuts, max_cuts;
};

static double objective(const struct hdt_search_problem *p, double slowest_s, double sum_s)
{
    return (double)(p->n_mb - 1) * slowest_s + sum_s;
}

static struct state *state_at(const struct dp *dp, unsigned mask, int worker, int64_t begin)
{
    size_t row = (size_t)mask * (size_t)dp->problem->n_workers + (size_t)worker;

    return &dp->states[row * (size_t)dp->problem->n_units + (size_t)begin];
}

static void state_push(struct state *state, int32_t label)
{
    if (state->n == state->cap) {
        state->cap = state->cap ? 2 * state->cap : 4;
        state->labels = hdt_realloc(state->labels, (size_t)state->cap * sizeof(state->labels[0]));
    }
    state->labels[state->n++] = label;
}

static double max2(double a, double b)
{
    return a > b ? a : b;
}

/* The objective of the best pipeline that ends so is this or more. */
static double label_bound(const struct dp *dp, unsigned mask, const struct label *label)
{
    return label->sum_s + hdt_search_bound_s(&dp->bound, mask, label->begin, label->slowest_s);
}

/* Add to the Pareto set unless some label is as good in both; drop those that it beats. */
static void label_add(struct dp *dp, unsigned mask, struct label label)
{
    const double bound_s = label_bound(dp, mask, &label);
    struct state *state;
    int n = 0;

    dp->n_tried++;
    if (bound_s > dp->limit_s) {
        return;
    }
    state = state_at(dp, mask, label.worker, label.begin);
    if (dp->is_first && state->n > 0) {
        if (bound_s < label_bound(dp, mask, &dp->labels[state->labels[0]])) {
            dp->labels[state->labels[0]] = label;
        }
        return;
    }
    for (int i = 0; i < state->n; i++) {
        const struct label *other = &dp->labels[state->labels[i]];

        if (other->slowest_s <= label.slowest_s && other->sum_s <= label.sum_s &&
            other->first_s <= label.first_s) {
            return;
        }
    }
    for (int i = 0; i < state->n; i++) {
        const struct label *other = &dp->labels[state->labels[i]];

        if (other->slowest_s < label.slowest_s || other->sum_s < label.sum_s ||
            other->first_s < label.first_s) {
            state->labels[n++] = state->labels[i];
        }
    }
    state->n = n;
    if (dp->n_labels == dp->cap) {
        dp->cap = dp->cap ? 2 * dp->cap : 1024;
        dp->labels = hdt_realloc(dp->labels, dp->cap * sizeof(dp->labels[0]));
    }
    dp->labels[dp->n_labels] = label;
    state_push(state, (int32_t)dp->n_labels++);
}

static void cut_fill(const struct dp *dp, int32_t idx, struct hdt_search_cut *cut)
{
    cut->n_stages = 0;
    cut->objective_s = objective(dp->problem, dp->labels[idx].slowest_s, dp->labels[idx].sum_s);
    for (; idx >= 0; idx = dp->labels[idx].parent) {
        cut->worker[cut->n_stages] = dp->labels[idx].worker;
        cut->begin[cut->n_stages++] = dp->labels[idx].begin;
    }
}

static bool cut_same_workers(const struct hdt_search_cut *a, const struct hdt_search_cut *b)
{
    return a->n_stages == b->n_stages &&
           memcmp(a->worker, b->worker, (size_t)a->n_stages * sizeof(a->worker[0])) == 0;
}

/* Keep the cuts sorted, one of each sequence of workers. */
static void cut_keep(struct dp *dp, const struct hdt_search_cut *cut)
{
    size_t at = 0;

    for (size_t i = 0; i < dp->n_cuts; i++) {
        if (cut_same_workers(&dp->cuts[i], cut)) {
            if (dp->cuts[i].objective_s <= cut->objective_s) {
                return;
            }
            memmove(&dp->cuts[i], &dp->cuts[i + 1], (--dp->n_cuts - i) * sizeof(*cut));
            break;
        }
    }
    while (at < dp->n_cuts && dp->cuts[at].objective_s <= cut->objective_s) {
        at++;
    }
    if (at == dp->max_cuts) {
        return;
    }
    if (dp->n_cuts == dp->max_cuts) {
        dp->n_cuts--;
    }
    memmove(&dp->cuts[at + 1], &dp->cuts[at], (dp->n_cuts - at) * sizeof(*cut));
    dp->cuts[at] = *cut;
    dp->n_cuts++;
}

/* Whole pipelines of a set of workers. */
static void finish_mask(struct dp *dp, unsigned mask, int n_stages)
{
    const struct hdt_search_problem *p = dp->problem;

    if (n_stages < p->min_stages || n_stages > p->max_stages) {
        return;
    }
    for (int w = 0; w < p->n_workers; w++) {
        struct state *state = state_at(dp, mask, w, 0);

        for (int i = 0; i < state->n; i++) {
            struct hdt_search_cut cut;

            cut_fill(dp, state->labels[i], &cut);
            if (cut.objective_s < dp->best_s) {
                dp->best_s = cut.objective_s;
            }
            cut_keep(dp, &cut);
        }
    }
}

/* The last unit from which a stage may begin in front of a suffix of which `floor` is known, given
 * what the units before it cost at least; none: reach - 1. */
static int64_t last_begin(const struct dp *dp, unsigned mask, const struct label *floor,
                          int64_t reach, int64_t end)
{
    int64_t least = reach - 1, most = end - 1;

    while (least < most) {
        int64_t begin = most - (most - least) / 2;
        struct label label = {.slowest_s = floor->slowest_s, .sum_s = floor->sum_s, .begin = begin};

        if (label_bound(dp, mask, &label) <= dp->limit_s) {
            least = begin;
        } else {
            most = begin - 1;
        }
    }
    return least;
}

/* All stages of `worker` in front of the suffix `parent`, which is of the workers in `mask`. The
 * codec time of the edge's later end is added to that stage here, when the edge is known. */
static void label_extend(struct dp *dp, unsigned mask, int worker, int32_t parent, int64_t reach)
{
    const struct hdt_search_problem *p = dp->problem;
    const struct label next = dp->labels[parent];
    const struct hdt_search_edge *e = &p->edges[worker][next.worker];
    struct label label = {.parent = parent, .worker = (int8_t)worker};
    const double floor_s = max2(max2(next.first_s + e->dst_s, next.slowest_s), e->service_s);
    const struct label floor = {.slowest_s = floor_s,
                                .sum_s = e->src_s + e->dst_s + next.sum_s + e->sum_s};

    mask |= 1u << worker;
    label.begin = last_begin(dp, mask, &floor, reach, next.begin);
    for (; label.begin >= reach; label.begin--) {
        const double t =
            hdt_search_stage_s(&dp->tables, worker, label.begin, next.begin) + e->src_s;

        label.slowest_s = max2(t, floor_s);
        label.sum_s = t + e->dst_s + next.sum_s + e->sum_s;
        label.first_s = dp->edges_add ? t : 0;
        if (objective(p, label.slowest_s, label.sum_s) > dp->limit_s) {
            break; /* longer ones take longer */
        }
        label_add(dp, mask, label);
    }
}

/* Is it more work than a pass may be? */
static bool is_too_much(const struct dp *dp)
{
    return !dp->is_first && (dp->n_tried > dp->n_tried_max || dp->n_labels > N_LABELS_MAX);
}

static void extend_state(struct dp *dp, unsigned mask, int next, int64_t end, int n_after)
{
    const struct hdt_search_problem *p = dp->problem;
    const struct state *state = state_at(dp, mask, next, end); /* no suffix is added to it */

    for (int w = 0; w < p->n_workers; w++) {
        if (mask & 1u << w || !p->edges[w][next].ok) {
            continue;
        }
        hdt_search_bound_take(&dp->bound, mask | 1u << w);
        for (int i = 0; i < state->n; i++) {
            label_extend(dp, mask, w, state->labels[i],
                         hdt_search_reach(&dp->tables, w, end, n_after));
        }
    }
}

static void extend_mask(struct dp *dp, unsigned mask, int n_stages)
{
    const struct hdt_search_problem *p = dp->problem;

    if (n_stages >= p->max_stages) {
        return;
    }
    for (int w = 0; w < p->n_workers; w++) {
        for (int64_t begin = 1; begin < p->n_units; begin++) {
            if (state_at(dp, mask, w, begin)->n > 0 && !is_too_much(dp)) {
                extend_state(dp, mask, w, begin, n_stages);
            }
        }
    }
}

static void seed_last_stage(struct dp *dp, int worker, int64_t begin)
{
    const double t = hdt_search_stage_s(&dp->tables, worker, begin, dp->problem->n_units);

    label_add(dp, 1u << worker,
              (struct label){t, t, dp->edges_add ? t : 0, begin, -1, (int8_t)worker});
}

static void seed_last_stages(struct dp *dp)
{
    const struct hdt_search_problem *p = dp->problem;

    for (int w = 0; w < p->n_workers; w++) {
        const int64_t reach = hdt_search_reach(&dp->tables, w, p->n_units, 0);

        hdt_search_bound_take(&dp->bound, 1u << w);
        for (int64_t begin = p->n_units; begin-- > reach;) {
            seed_last_stage(dp, w, begin);
        }
        if (reach > 0 && dp->tables.alone & 1u << w) {
            seed_last_stage(dp, w, 0);
        }
    }
}

/* False: it was given up. */
static bool pass_run(struct dp *dp, double limit_s, bool is_first)
{
    const struct hdt_search_problem *p = dp->problem;

    hdt_search_bound_limit(&dp->bound, limit_s);
    dp->limit_s = limit_s * (1 + ROUNDING);
    dp->is_first = is_first;
    dp->n_cuts = 0;
    dp->n_labels = 0;
    for (size_t i = 0; i < dp->n_states; i++) {
        dp->states[i].n = 0;
    }
    seed_last_stages(dp);
    for (int size = 1; size <= p->n_workers; size++) {
        for (unsigned mask = 1; mask < 1u << p->n_workers; mask++) {
            if (__builtin_popcount(mask) == size) {
                finish_mask(dp, mask, size);
                extend_mask(dp, mask, size);
            }
        }
    }
    return !is_too_much(dp);
}

/* Do workers hold as many units as there are, all together or one alone? */
static bool units_fit(const struct dp *dp)
{
    const struct hdt_search_problem *p = dp->problem;
    int64_t sum = 0;

    for (int w = 0; w < p->n_workers; w++) {
        int64_t most = 0;

        for (int n_after = 0; n_after < p->n_workers; n_after++) {
            for (int64_t end = 1; end <= p->n_units; end++) {
                int64_t n = end - hdt_search_reach(&dp->tables, w, end, n_after);

                most = n > most ? n : most;
            }
        }
        sum += most;
    }
    return sum >= p->n_units || dp->tables.alone != 0;
}

/* Passes that keep one suffix of each state, until one finds a pipeline. What fits does not depend
 * on which suffix that is: where they find none, there is none. */
static void passes_first(struct dp *dp)
{
    double least_s, gap = FIRST_GAP;

    hdt_search_bound_limit(&dp->bound, INFINITY);
    hdt_search_bound_take(&dp->bound, 0);
    least_s = hdt_search_bound_s(&dp->bound, 0, dp->problem->n_units - 1, 0);
    for (double limit_s = 0; dp->n_cuts == 0 && !isinf(limit_s); gap *= 2) {
        limit_s = least_s > 0 && gap < LAST_GAP ? (1 + gap) * least_s : INFINITY;
        pass_run(dp, limit_s, true);
    }
}

static void cuts_keep(struct dp *dp, const struct hdt_search_cut *cuts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        cut_keep(dp, &cuts[i]);
    }
}

/* The cuts that there are, of which the caller frees the copy. */
static struct hdt_search_cut *cuts_copy(const struct dp *dp)
{
    struct hdt_search_cut *copy = hdt_calloc(dp->max_cuts, sizeof(copy[0]));

    memcpy(copy, dp->cuts, dp->n_cuts * sizeof(copy[0]));
    return copy;
}

/* One that keeps all suffixes below the limit, 1 + slack times the best. What was found before
 * stays beside what it finds where it is given up, or `keep`. False: it was given up. */
static bool pass_exact(struct dp *dp, double slack, bool keep)
{
    const size_t n_before = dp->n_cuts;
    struct hdt_search_cut *before = cuts_copy(dp);
    const bool is_whole = pass_run(dp, (1 + slack) * dp->best_s, false);

    if (keep || !is_whole) {
        cuts_keep(dp, before, n_before);
    }
    free(before);
    return is_whole;
}

/* From now on. */
static void tries_allow(struct dp *dp)
{
    const int64_t n = dp->problem->n_tried_max;

    dp->n_tried_max = dp->n_tried + (n > 0 ? n : N_TRIED_MAX);
}

/* For a problem that is too much work: those close to the best one; or that alone. */
static void passes_narrow(struct dp *dp, double slack)
{
    tries_allow(dp);
    if (slack > FIRST_SLACK && pass_exact(dp, FIRST_SLACK, true)) {
        return;
    }
    tries_allow(dp);
    pass_exact(dp, 0, true);
}

/* Until there are as many cuts as are asked for, or none that may be worth it is left. */
static void passes_exact(struct dp *dp)
{
    const size_t n_first = dp->n_cuts;
    struct hdt_search_cut *first = cuts_copy(dp);
    double slack = n_first == dp->max_cuts
                       ? fmin(first[n_first - 1].objective_s / dp->best_s, SLACK) - 1
                       : FIRST_SLACK;
    bool is_whole;

    tries_allow(dp);
    is_whole = pass_exact(dp, slack, false);
    if (!is_whole) {
        passes_narrow(dp, slack);
    }
    while (is_whole && dp->n_cuts < dp->max_cuts && slack < SLACK - 1) {
        slack = fmin(2 * max2(slack, FIRST_SLACK), SLACK - 1);
        is_whole = pass_exact(dp, slack, false);
    }
    if (!is_whole) {
        cuts_keep(dp, first, n_first);
    }
    free(first);
}

static void dp_run(struct dp *dp)
{
    const struct hdt_search_problem *p = dp->problem;

    dp->n_states = ((size_t)1 << p->n_workers) * (size_t)p->n_workers * (size_t)p->n_units;
    dp->states = hdt_calloc(dp->n_states, sizeof(dp->states[0]));
    for (int i = 0; i < p->n_workers * p->n_workers; i++) {
        const struct hdt_search_edge *e = &p->edges[i / p->n_workers][i % p->n_workers];

        dp->edges_add = dp->edges_add || (e->ok && e->dst_s > 0);
    }
    hdt_search_bound_init(&dp->bound, &dp->tables);
    if (units_fit(dp)) {
        passes_first(dp);
    }
    if (dp->n_cuts > 0) {
        passes_exact(dp);
    }
    hdt_search_bound_release(&dp->bound);
    for (size_t i = 0; i < dp->n_states; i++) {
        free(dp->states[i].labels);
    }
    free(dp->states);
    free(dp->labels);
}

/* ---- what was found before ---- */

struct memo_entry {
    struct hdt_search_key key;
    struct hdt_search_cut *cuts;
    size_t n_cuts, max_cuts;
};

struct hdt_search_memo {
    struct memo_entry *entries;
    size_t n;
    int64_t n_tried;
};

struct hdt_search_memo *hdt_search_memo_new(void)
{
    return hdt_calloc(1, sizeof(struct hdt_search_memo));
}

void hdt_search_memo_free(struct hdt_search_memo *memo)
{
    for (size_t i = 0; memo && i < memo->n; i++) {
        free(memo->entries[i].cuts);
    }
    if (memo) {
        free(memo->entries);
    }
    free(memo);
}

int64_t hdt_search_memo_n_tried(const struct hdt_search_memo *memo)
{
    return memo->n_tried;
}

static const struct memo_entry *memo_find(const struct hdt_search_memo *memo,
                                          const struct hdt_search_key *key, size_t max_cuts)
{
    for (size_t i = 0; i < memo->n; i++) {
        const struct memo_entry *e = &memo->entries[i];

        if (memcmp(&e->key, key, sizeof(*key)) == 0 && e->max_cuts == max_cuts) {
            return e;
        }
    }
    return NULL;
}

static void memo_add(struct hdt_search_memo *memo, const struct hdt_search_key *key,
                     const struct dp *dp)
{
    struct memo_entry *e;

    memo->entries = hdt_realloc(memo->entries, (memo->n + 1) * sizeof(memo->entries[0]));
    e = &memo->entries[memo->n++];
    *e = (struct memo_entry){*key, NULL, dp->n_cuts, dp->max_cuts};
    e->cuts = hdt_calloc(dp->max_cuts, sizeof(e->cuts[0]));
    memcpy(e->cuts, dp->cuts, dp->n_cuts * sizeof(e->cuts[0]));
    memo->n_tried += dp->n_tried;
}

size_t hdt_search_dp(const struct hdt_search_problem *p, struct hdt_search_memo *memo,
                     struct hdt_search_cut *cuts, size_t max_cuts)
{
    struct dp dp = {.problem = p, .best_s = INFINITY, .cuts = cuts, .max_cuts = max_cuts};
    const struct memo_entry *known = NULL;
    struct hdt_search_key key = {{0}};

    HDT_ASSERT(p->n_workers >= 1 && p->n_workers <= HDT_SEARCH_MAX_WORKERS);
    HDT_ASSERT(p->n_units >= 1 && p->n_units <= HDT_SEARCH_MAX_UNITS && max_cuts >= 1);
    hdt_search_tables_init(&dp.tables, p);
    if (memo) {
        key = hdt_search_tables_key(&dp.tables);
        known = memo_find(memo, &key, max_cuts);
    }
    if (known) {
        memcpy(cuts, known->cuts, known->n_cuts * sizeof(cuts[0]));
        dp.n_cuts = known->n_cuts;
    } else {
        dp_run(&dp);
    }
    if (memo && !known) {
        memo_add(memo, &key, &dp);
    }
    hdt_search_tables_release(&dp.tables);
    return dp.n_cuts;
}

/* ---- one cut ---- */

double hdt_search_objective(const struct hdt_search_problem *p, const struct hdt_search_cut *cut)
{
    double slowest_s = 0, sum_s = 0;

    for (int i = 0; i < cut->n_stages; i++) {
        bool last = i == cut->n_stages - 1;
        int64_t end = last ? p->n_units : cut->begin[i + 1];
        double t = p->stage_s(p->user, cut->worker[i], cut->begin[i], end);

        if (!p->stage_fits(p->user, cut->worker[i], cut->begin[i], end, cut->n_stages - 1 - i)) {
            return INFINITY;
        }
        if (i > 0) {
            t += p->edges[cut->worker[i - 1]][cut->worker[i]].dst_s;
        }
        if (!last) {
            const struct hdt_search_edge *e = &p->edges[cut->worker[i]][cut->worker[i + 1]];

            if (!e->ok) {
                return INFINITY;
            }
            t += e->src_s;
            slowest_s = max2(slowest_s, e->service_s);
            sum_s += e->sum_s;
        }
        slowest_s = max2(slowest_s, t);
        sum_s += t;
    }
    return objective(p, slowest_s, sum_s);
}
