/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_PLAN_SEARCH_DP_H
#define HDT_PLAN_SEARCH_DP_H

/*
 * The exact search over cuts and orders, on numbers alone: no names, no plan. Workers 0..n-1 may
 * each hold one range of the units; every order of every subset is allowed that links allow.
 *
 * Objective of a pipeline of k stages over n_mb micro-batches, from the time t of each stage a
 * micro-batch (forward, backward, codecs, its share of the optimizer step), the service times of
 * each edge in both directions, and the round trip of each edge:
 *
 *     (n_mb - 1) max(t, services) + sum(t) + sum(services) + sum(round trips)
 *
 * that is: fill, then run at the pace of the slowest, then drain.
 */
#include "src/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_SEARCH_MAX_WORKERS 8
#define HDT_SEARCH_MAX_UNITS   514 /* memory grows with the square of it */

/* An edge from worker i to worker j. */
struct hdt_search_edge {
    bool ok;
    double service_s;    /* the slower of activations forth and gradients back */
    double sum_s;        /* both services and the round trip */
    double src_s, dst_s; /* codec time a micro-batch at the two workers */
};

struct hdt_search_problem {
    int n_workers;
    int64_t n_units;
    int64_t n_mb;
    int64_t min_stages, max_stages;
    struct hdt_search_edge edges[HDT_SEARCH_MAX_WORKERS][HDT_SEARCH_MAX_WORKERS];
    /* Time of units [begin, end) on a worker, to which each unit adds as much wherever the range
     * begins; and whether they fit there with n_after stages behind them: where some do not, more
     * units, a later end or more stages behind do not either. But all units may fit on a worker by
     * itself where fewer do not, since it has no edge. `user` is passed on. */
    double (*stage_s)(const void *user, int worker, int64_t begin, int64_t end);
    bool (*stage_fits)(const void *user, int worker, int64_t begin, int64_t end, int n_after);
    const void *user;
    int64_t n_tried_max; /* suffixes until an exact pass is given up; 0: 16 million */
};

struct hdt_search_cut {
    int n_stages;
    int worker[HDT_SEARCH_MAX_WORKERS];
    int64_t begin[HDT_SEARCH_MAX_WORKERS]; /* first unit of each stage; the first one's is 0 */
    double objective_s;
};

/* The objective of one cut; infinite when an edge or a stage does not fit. */
double hdt_search_objective(const struct hdt_search_problem *problem,
                            const struct hdt_search_cut *cut);

/* Cuts of problems that were searched before. Belongs to one search. */
struct hdt_search_memo;
struct hdt_search_memo *hdt_search_memo_new(void);
void hdt_search_memo_free(struct hdt_search_memo *memo); /* NULL: nothing */
/* Suffixes of pipelines that were tried for all of them: how much work they were, on any machine.
 */
int64_t hdt_search_memo_n_tried(const struct hdt_search_memo *memo);

/* Good cuts, best first, at most max_cuts; one of each sequence of workers at most, and the first
 * is optimal, unless the problem is too much work for that (n_tried_max: models of some hundred
 * layers on eight workers). Others may miss a sequence, or its best cut, by what it shares with a
 * better one. Returns how many were found; 0: none fits. A problem of
 * the same numbers as one that `memo` has is not searched again; NULL: none is kept. Allocates for
 * the call. */
size_t hdt_search_dp(const struct hdt_search_problem *problem, struct hdt_search_memo *memo,
                     struct hdt_search_cut *cuts, size_t max_cuts);

#ifdef __cplusplus
}
#endif
#endif /* HDT_PLAN_SEARCH_DP_H */
