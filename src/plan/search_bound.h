/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_PLAN_SEARCH_BOUND_H
#define HDT_PLAN_SEARCH_BOUND_H

/*
 * What the search over cuts (search_dp.h) knows before it begins: its problem as tables, and a
 * lower bound on what the stages in front of a suffix add to the objective. One thread; no I/O.
 */
#include "src/plan/search_dp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All that a problem's functions say, asked once. */
struct hdt_search_tables {
    const struct hdt_search_problem *problem;
    unsigned alone;  /* workers that all units fit on, whether or not fewer do: there is no edge */
    double *stage_s; /* [worker][begin][end] */
    int64_t *fit_begin; /* [stages behind][worker][end]: least begin of a stage; end: none fits */
};

/* Asks the problem, which must outlive the tables. */
void hdt_search_tables_init(struct hdt_search_tables *tables,
                            const struct hdt_search_problem *problem);
void hdt_search_tables_release(struct hdt_search_tables *tables);

/* Seconds of units [begin, end), begin < end, on the worker. */
static inline double hdt_search_stage_s(const struct hdt_search_tables *t, int worker,
                                        int64_t begin, int64_t end)
{
    const int64_t n = t->problem->n_units + 1;

    return t->stage_s[((int64_t)worker * n + begin) * n + end];
}

/* The first unit that a stage of the worker may begin with which ends before unit `end` and has
 * n_after stages behind it; `end`: none fits. */
static inline int64_t hdt_search_reach(const struct hdt_search_tables *t, int worker, int64_t end,
                                       int n_after)
{
    const struct hdt_search_problem *p = t->problem;

    return t->fit_begin[(n_after * p->n_workers + worker) * (p->n_units + 1) + end];
}

/* Bytes that are the same for the same numbers and limits, and hardly for others. */
struct hdt_search_key {
    uint64_t halves[2];
};
struct hdt_search_key hdt_search_tables_key(const struct hdt_search_tables *tables);

/* Pieces of the pace: more make it no better by much. */
#define HDT_SEARCH_PACES  32
#define HDT_SEARCH_PIECES (HDT_SEARCH_PACES + 1)

/* What a worker's stage in front takes at least. */
struct hdt_search_front {
    double stage_s; /* of the pace, beside its units */
    double once_s;  /* of the sum, beside its units */
    double edge_s;  /* the pace is no faster */
    double first_s; /* the first unit */
    double unit_s;  /* any other */
    double most;    /* units that fit, at most */
};

/*
 * The slowest stage's time is the pace. For a set of workers that are taken, a number of units in
 * front, and each piece of the pace, the least that these units add to the sum: the workers that
 * are left hold so many units each as they can at that pace, the cheapest first, a unit's share of
 * what a stage costs beside its units included.
 */
struct hdt_search_bound {
    int n_workers;
    struct hdt_search_front fronts[HDT_SEARCH_MAX_WORKERS];
    double n_more; /* micro-batches but the first */
    size_t n_units;
    double first_s, piece_s; /* paces of piece i: first_s + i piece_s to the next; the last one has
                                no end */
    bool *is_there;          /* [workers taken]: the tables have it */
    float *sum_s;            /* [workers taken][piece][begin] */
    float *rest_s;           /* the same: of this piece and all slower ones the least objective */
};

/* From the tables, which it does not need after. Of no use before its limit is set. */
void hdt_search_bound_init(struct hdt_search_bound *bound, const struct hdt_search_tables *tables);
/* Pipelines whose objective is above the limit are of no interest. Forgets what was taken. */
void hdt_search_bound_limit(struct hdt_search_bound *bound, double limit_s);
/* Be ready for suffixes of the workers `taken`. */
void hdt_search_bound_take(struct hdt_search_bound *bound, unsigned taken);
void hdt_search_bound_release(struct hdt_search_bound *bound);

/* Of a set of workers and a piece, by number of units in front. */
static inline float *hdt_search_units(const struct hdt_search_bound *b, float *table,
                                      unsigned taken, int piece)
{
    return &table[((size_t)taken * HDT_SEARCH_PIECES + (size_t)piece) * b->n_units];
}

/* A suffix of the workers `taken` that begins at unit `begin`, whose slowest stage or edge takes
 * slowest_s: the whole pipeline's objective is this or more, beside the suffix's own sum. The set
 * was taken since the limit was set. In line, since the search does little else. */
static inline double hdt_search_bound_s(const struct hdt_search_bound *b, unsigned taken,
                                        int64_t begin, double slowest_s)
{
    const double pieces = (slowest_s - b->first_s) / b->piece_s;
    double now_s, rest_s;
    int piece;

    if (begin == 0) {
        return b->n_more * slowest_s;
    }
    if (pieces < 0) {
        return (double)hdt_search_units(b, b->rest_s, taken, 0)[begin];
    }
    piece = pieces < HDT_SEARCH_PACES ? (int)pieces : HDT_SEARCH_PACES;
    now_s = b->n_more * slowest_s + (double)hdt_search_units(b, b->sum_s, taken, piece)[begin];
    if (piece == HDT_SEARCH_PACES) {
        return now_s;
    }
    rest_s = (double)hdt_search_units(b, b->rest_s, taken, piece + 1)[begin];
    return now_s < rest_s ? now_s : rest_s;
}

#ifdef __cplusplus
}
#endif
#endif /* HDT_PLAN_SEARCH_BOUND_H */
