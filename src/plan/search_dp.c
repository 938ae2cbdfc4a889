/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Dynamic programming over (set of workers, first worker of the suffix, first unit of the suffix),
 * built from the last stage to the first, so that the number of stages behind a new one is known
 * when its memory is checked. A state keeps its Pareto set of (slowest, sum): a suffix that is
 * worse in both can never be part of the best pipeline, since both the objective's terms only grow
 * (where codecs cost the later stage time, the time of the first stage is a third measure). Sets
 * are taken by size, so that a state is final when it is extended; whole pipelines give the bound
 * that prunes the rest.
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
    bool edges_add;       /* some edge costs its later stage time */
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

/* Add to the Pareto set unless some label is as good in both; drop those that it beats. */
static void label_add(struct dp *dp, unsigned mask, struct label label)
{
    struct state *state;
    int n = 0;

    if (objective(dp->problem, label.slowest_s, label.sum_s) > SLACK * dp->best_s) {
        return;
    }
    state = state_at(dp, mask, label.worker, label.begin);
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

static double max2(double a, double b)
{
    return a > b ? a : b;
}

/* Put stage [begin, end) on `worker` in front of the suffix `parent` (-1: it is the last stage).
 * The codec time of the edge's later end is added to that stage here, when the edge is known. */
static void stage_prepend(struct dp *dp, unsigned mask, int worker, int64_t begin, int32_t parent)
{
    const struct hdt_search_problem *p = dp->problem;
    int64_t end = parent < 0 ? p->n_units : dp->labels[parent].begin;
    double t = p->stage_s(p->user, worker, begin, end);
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

static void extend_state(struct dp *dp, unsigned mask, int next, int64_t end, int n_after)
{
    const struct hdt_search_problem *p = dp->problem;

    for (int w = 0; w < p->n_workers; w++) {
        if (mask & 1u << w || !p->edges[w][next].ok) {
            continue;
        }
        for (int64_t begin = end; begin-- > 0;) {
            struct state *state;

            if (!p->stage_fits(p->user, w, begin, end, n_after)) {
                break; /* more units will not fit either */
            }
            state = state_at(dp, mask, next, end);
            for (int i = 0; i < state->n; i++) {
                stage_prepend(dp, mask, w, begin, state->labels[i]);
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
        for (int64_t begin = p->n_units; begin-- > 0;) {
            if (!p->stage_fits(p->user, w, begin, p->n_units, 0)) {
                break;
            }
            stage_prepend(dp, 0, w, begin, -1);
        }
    }
}

size_t hdt_search_dp(const struct hdt_search_problem *p, struct hdt_search_cut *cuts,
                     size_t max_cuts)
{
    unsigned n_masks = 1u << p->n_workers;
    size_t n_states = (size_t)n_masks * (size_t)p->n_workers * (size_t)p->n_units;
    struct dp dp = {.problem = p, .best_s = INFINITY, .cuts = cuts, .max_cuts = max_cuts};

    HDT_ASSERT(p->n_workers >= 1 && p->n_workers <= HDT_SEARCH_MAX_WORKERS);
    HDT_ASSERT(p->n_units >= 1 && p->n_units <= HDT_SEARCH_MAX_UNITS && max_cuts >= 1);
    dp.states = hdt_calloc(n_states, sizeof(dp.states[0]));
    for (int i = 0; i < p->n_workers * p->n_workers; i++) {
        const struct hdt_search_edge *e = &p->edges[i / p->n_workers][i % p->n_workers];

        dp.edges_add = dp.edges_add || (e->ok && e->dst_s > 0);
    }
    seed_last_stages(&dp);
    for (int size = 1; size <= p->n_workers; size++) {
        for (unsigned mask = 1; mask < n_masks; mask++) {
            if (__builtin_popcount(mask) == size) {
                finish_mask(&dp, mask, size);
                extend_mask(&dp, mask, size);
            }
        }
    }
    for (size_t i = 0; i < n_states; i++) {
        free(dp.states[i].labels);
    }
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
