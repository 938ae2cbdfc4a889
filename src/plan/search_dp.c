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
 * What is left for the units in front bounds a suffix: each takes what its fastest worker needs for
 * it, and the slowest stage at least as long as the workers that are left need together. It is held
 * against the best whole pipeline. Large sets come last, so that a first pass, which keeps one
 * suffix of each state, finds one that is good; the second one is exact.
 *
 * Refused: bisection on the slowest stage with a greedy check, which is not exact where the sum
 * matters (few micro-batches, long round trips), and one table an order, which repeats the
 * common suffixes of 8! orders.
 */
#include "src/base/buf.h"
#include "src/plan/search_dp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Candidates this much above the best one are kept for the judge, which knows more. */
#define SLACK 1.25

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
    struct label *labels;
    size_t n_labels, cap;
    struct state *states; /* ((mask * n_workers) + worker) * n_units + begin */
    double best_s;        /* of whole pipelines */
    bool is_first;        /* pass */
    double *stage_s;      /* [worker][begin][end] */
    int64_t *fit_begin; /* [stages behind][worker][end]: least begin of a stage; end: none; -1: not
                           asked yet */
    double *front_s;    /* [begin]: sum of what units before it take at least */
    double *pace_s;     /* [set of workers taken]: least time a unit, by all others together */
    bool edges_add;     /* some edge costs its later stage time */
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
    double slowest_s = label->begin > 1 ? (double)(label->begin - 1) * dp->pace_s[mask] : 0;

    return objective(dp->problem, max2(label->slowest_s, slowest_s),
                     label->sum_s + dp->front_s[label->begin]);
}

/* Add to the Pareto set unless some label is as good in both; drop those that it beats. */
static void label_add(struct dp *dp, unsigned mask, struct label label)
{
    const double bound_s = label_bound(dp, mask, &label);
    struct state *state;
    int n = 0;

    if (bound_s > SLACK * dp->best_s) {
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

/* Put stage [begin, end) on `worker`, which takes `t`, in front of the suffix `parent` (-1: it is
 * the last stage). The codec time of the edge's later end is added to that stage here, when the
 * edge is known. */
static void stage_prepend(struct dp *dp, unsigned mask, int worker, int64_t begin, double t,
                          int32_t parent)
{
    const struct hdt_search_problem *p = dp->problem;
    struct label label = {t, t, 0, begin, parent, (int8_t)worker};

    if (parent >= 0) {
        const struct label *next = &dp->labels[parent];
        const struct hdt_search_edge *e = &p->edges[worker][next->worker];

        t += e->src_s;
        label.slowest_s = max2(max2(t, next->first_s + e->dst_s), next->slowest_s);
        label.slowest_s = max2(label.slowest_s, e->service_s);
        label.sum_s = t + e->dst_s + next->sum_s + e->sum_s;
    }
    label.first_s = dp->edges_add ? t : 0;
    label_add(dp, mask | 1u << worker, label);
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

static double stage_time(const struct dp *dp, int worker, int64_t begin, int64_t end)
{
    int64_t n = dp->problem->n_units + 1;

    return dp->stage_s[((int64_t)worker * n + begin) * n + end];
}

/* How far to the front a stage may reach that ends there. More units do not fit where fewer do not.
 */
static int64_t stage_reach(struct dp *dp, int worker, int64_t end, int n_after)
{
    const struct hdt_search_problem *p = dp->problem;
    int64_t *begin = &dp->fit_begin[(n_after * p->n_workers + worker) * (p->n_units + 1) + end];

    if (*begin < 0) {
        *begin = end;
        while (*begin > 0 && p->stage_fits(p->user, worker, *begin - 1, end, n_after)) {
            (*begin)--;
        }
    }
    return *begin;
}

static void extend_state(struct dp *dp, unsigned mask, int next, int64_t end, int n_after)
{
    const struct hdt_search_problem *p = dp->problem;

    for (int w = 0; w < p->n_workers; w++) {
        if (mask & 1u << w || !p->edges[w][next].ok) {
            continue;
        }
        for (int64_t begin = end, reach = stage_reach(dp, w, end, n_after); begin-- > reach;) {
            const struct state *state = state_at(dp, mask, next, end);
            const double t = stage_time(dp, w, begin, end);

            for (int i = 0; i < state->n; i++) {
                stage_prepend(dp, mask, w, begin, t, state->labels[i]);
            }
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
            if (state_at(dp, mask, w, begin)->n > 0) {
                extend_state(dp, mask, w, begin, n_stages);
            }
        }
    }
}

static void seed_last_stages(struct dp *dp)
{
    const struct hdt_search_problem *p = dp->problem;

    for (int w = 0; w < p->n_workers; w++) {
        for (int64_t begin = p->n_units, reach = stage_reach(dp, w, begin, 0); begin-- > reach;) {
            stage_prepend(dp, 0, w, begin, stage_time(dp, w, begin, p->n_units), -1);
        }
    }
}

/* What units take at least: by how much longer a stage takes with one more, so that what it takes
 * beside its units is not in it. Of the first unit nothing is known so. */
static void bounds_fill(struct dp *dp)
{
    const struct hdt_search_problem *p = dp->problem;
    double least_s[HDT_SEARCH_MAX_WORKERS];

    for (int w = 0; w < p->n_workers; w++) {
        least_s[w] = INFINITY;
    }
    for (int64_t unit = 1; unit < p->n_units; unit++) {
        double best_s = INFINITY;

        for (int w = 0; w < p->n_workers; w++) {
            double unit_s = stage_time(dp, w, 0, unit + 1) - stage_time(dp, w, 0, unit);

            least_s[w] = unit_s < least_s[w] ? unit_s : least_s[w];
            best_s = unit_s < best_s ? unit_s : best_s;
        }
        dp->front_s[unit + 1] = dp->front_s[unit] + max2(best_s, 0);
    }
    for (unsigned mask = 0; mask < 1u << p->n_workers; mask++) {
        double per_s = 0;

        for (int w = 0; w < p->n_workers; w++) {
            per_s += mask & 1u << w ? 0 : 1 / max2(least_s[w], 0);
        }
        dp->pace_s[mask] = per_s > 0 ? 1 / per_s : 0;
    }
}

/* Asked once each: the passes need them some hundred times. */
static void times_fill(struct dp *dp)
{
    const struct hdt_search_problem *p = dp->problem;
    double *at = dp->stage_s;

    for (int w = 0; w < p->n_workers; w++) {
        for (int64_t begin = 0; begin <= p->n_units; begin++) {
            for (int64_t end = 0; end <= p->n_units; end++) {
                *at++ = begin < end ? p->stage_s(p->user, w, begin, end) : 0;
            }
        }
    }
}

static void pass_run(struct dp *dp, size_t n_states)
{
    const struct hdt_search_problem *p = dp->problem;

    dp->n_cuts = 0;
    dp->n_labels = 0;
    for (size_t i = 0; i < n_states; i++) {
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
}

size_t hdt_search_dp(const struct hdt_search_problem *p, struct hdt_search_cut *cuts,
                     size_t max_cuts)
{
    size_t n_masks = (size_t)1 << p->n_workers;
    size_t n_states = n_masks * (size_t)p->n_workers * (size_t)p->n_units;
    size_t n_fits = (size_t)(p->n_workers * p->n_workers) * (size_t)(p->n_units + 1);
    struct dp dp = {.problem = p, .best_s = INFINITY, .cuts = cuts, .max_cuts = max_cuts};

    HDT_ASSERT(p->n_workers >= 1 && p->n_workers <= HDT_SEARCH_MAX_WORKERS);
    HDT_ASSERT(p->n_units >= 1 && p->n_units <= HDT_SEARCH_MAX_UNITS && max_cuts >= 1);
    dp.states = hdt_calloc(n_states, sizeof(dp.states[0]));
    dp.stage_s = hdt_malloc((size_t)p->n_workers * (size_t)(p->n_units + 1) *
                            (size_t)(p->n_units + 1) * sizeof(dp.stage_s[0]));
    dp.fit_begin = hdt_malloc(n_fits * sizeof(dp.fit_begin[0]));
    memset(dp.fit_begin, 0xff, n_fits * sizeof(dp.fit_begin[0]));
    dp.front_s = hdt_calloc((size_t)p->n_units + 1, sizeof(dp.front_s[0]));
    dp.pace_s = hdt_calloc(n_masks, sizeof(dp.pace_s[0]));
    for (int i = 0; i < p->n_workers * p->n_workers; i++) {
        const struct hdt_search_edge *e = &p->edges[i / p->n_workers][i % p->n_workers];

        dp.edges_add = dp.edges_add || (e->ok && e->dst_s > 0);
    }
    times_fill(&dp);
    bounds_fill(&dp);
    for (int pass = 0; pass < 2; pass++) {
        dp.is_first = pass == 0;
        pass_run(&dp, n_states);
    }
    for (size_t i = 0; i < n_states; i++) {
        free(dp.states[i].labels);
    }
    free(dp.fit_begin);
    free(dp.stage_s);
    free(dp.pace_s);
    free(dp.front_s);
    free(dp.states);
    free(dp.labels);
    return dp.n_cuts;
}

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
