/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * How much the stages in front of a suffix cost at least.
 *
 * Two simple bounds say little together: that the slowest of the workers left takes as long as all
 * of them dealing out the units evenly, and that each unit costs what the fastest one needs for it.
 * The second lets one worker have all units, at a pace that is far from the first. Here both are of
 * one pace: at it a worker holds so many units and no more (whole ones, and no more than fit into
 * its memory), and the least sum of units dealt out so is that of the cheapest first. A slower pace
 * makes the sum smaller and the pipeline slower; of all paces from the suffix's own on the best
 * counts. Paces are cut into pieces; of a piece its first pace and its last one's sum are taken.
 *
 * A stage costs something beside its units (ops, the way to the next stage). A unit has its share
 * of that when its worker holds as many as it can, so that fewer units have no less.
 *
 * Refused: what the edges cost exactly (a tour over the workers that are left), which is small
 * beside the units where a plan is worth making.
 */
#include "src/base/buf.h"
#include "src/plan/search_bound.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Rounding to float may raise a value by 2^-24 of it: bounds are lowered by more first. */
#define FLOAT_DOWN (1 - 0x1p-23)

/* ---- tables ---- */

static void times_fill(struct hdt_search_tables *t)
{
    const struct hdt_search_problem *p = t->problem;
    double *at = t->stage_s;

    for (int w = 0; w < p->n_workers; w++) {
        for (int64_t begin = 0; begin <= p->n_units; begin++) {
            for (int64_t end = 0; end <= p->n_units; end++) {
                *at++ = begin < end ? p->stage_s(p->user, w, begin, end) : 0;
            }
        }
    }
}

/* How far to the front stages may reach, from the last end to the first: more units do not fit
 * where fewer do not (but for all of them on one worker), so that an earlier end reaches as far at
 * least. */
static void reach_fill(const struct hdt_search_problem *p, int worker, int n_after, int64_t *begins)
{
    int64_t begin = p->n_units;

    begins[0] = 0;
    for (int64_t end = p->n_units; end > 0; end--) {
        begin = begin < end ? begin : end;
        while (begin < end && !p->stage_fits(p->user, worker, begin, end, n_after)) {
            begin++;
        }
        while (begin > 0 && p->stage_fits(p->user, worker, begin - 1, end, n_after)) {
            begin--;
        }
        begins[end] = begin;
    }
}

void hdt_search_tables_init(struct hdt_search_tables *t, const struct hdt_search_problem *p)
{
    const size_t n = (size_t)p->n_units + 1, n_workers = (size_t)p->n_workers;

    t->problem = p;
    t->alone = 0;
    t->stage_s = hdt_malloc(n_workers * n * n * sizeof(t->stage_s[0]));
    t->fit_begin = hdt_malloc(n_workers * n_workers * n * sizeof(t->fit_begin[0]));
    times_fill(t);
    for (int w = 0; w < p->n_workers; w++) {
        t->alone |= p->stage_fits(p->user, w, 0, p->n_units, 0) ? 1u << w : 0;
    }
    for (int n_after = 0; n_after < p->n_workers; n_after++) {
        for (int w = 0; w < p->n_workers; w++) {
            reach_fill(p, w, n_after, &t->fit_begin[((size_t)n_after * n_workers + (size_t)w) * n]);
        }
    }
}

void hdt_search_tables_release(struct hdt_search_tables *t)
{
    free(t->stage_s);
    free(t->fit_begin);
}

/* Field by field: the gaps of a struct are of no meaning. */
static void edge_hash(XXH3_state_t *hash, const struct hdt_search_edge *e)
{
    const double all[] = {e->ok, e->service_s, e->sum_s, e->src_s, e->dst_s};

    XXH3_128bits_update(hash, all, sizeof(all));
}

struct hdt_search_key hdt_search_tables_key(const struct hdt_search_tables *t)
{
    const struct hdt_search_problem *p = t->problem;
    const int64_t all[] = {p->n_workers,  p->n_units,     p->n_mb, p->min_stages,
                           p->max_stages, p->n_tried_max, t->alone};
    const size_t n = (size_t)p->n_units + 1, n_workers = (size_t)p->n_workers;
    XXH3_state_t *hash = XXH3_createState();
    XXH128_hash_t sum;

    HDT_ASSERT(hash != NULL);
    XXH3_128bits_reset(hash);
    XXH3_128bits_update(hash, all, sizeof(all));
    XXH3_128bits_update(hash, t->stage_s, n_workers * n * n * sizeof(t->stage_s[0]));
    XXH3_128bits_update(hash, t->fit_begin, n_workers * n_workers * n * sizeof(t->fit_begin[0]));
    for (int i = 0; i < p->n_workers * p->n_workers; i++) {
        edge_hash(hash, &p->edges[i / p->n_workers][i % p->n_workers]);
    }
    sum = XXH3_128bits_digest(hash);
    XXH3_freeState(hash);
    return (struct hdt_search_key){{sum.low64, sum.high64}};
}

/* ---- what a worker's stage in front takes ---- */

/* At least one edge goes on from a stage in front. */
static void front_edges(const struct hdt_search_problem *p, int worker,
                        struct hdt_search_front *out)
{
    double src_s = INFINITY, sum_s = INFINITY;

    out->edge_s = INFINITY;
    for (int i = 0; i < p->n_workers; i++) {
        const struct hdt_search_edge *e = &p->edges[worker][i];

        if (e->ok) {
            src_s = fmin(src_s, e->src_s);
            sum_s = fmin(sum_s, e->sum_s + e->src_s + e->dst_s);
            out->edge_s = fmin(out->edge_s, e->service_s);
        }
    }
    out->stage_s += src_s;
    out->once_s += sum_s;
}

/* Each unit adds as much wherever a range begins, so that two ranges in place of one take longer by
 * what a stage takes beside its units. The last unit is never in front. */
static void front_fill(const struct hdt_search_tables *t, int worker, struct hdt_search_front *out)
{
    const struct hdt_search_problem *p = t->problem;
    const int64_t n = p->n_units;

    *out = (struct hdt_search_front){0};
    if (n > 2) {
        double both_s = hdt_search_stage_s(t, worker, 0, 2);
        double one_s = hdt_search_stage_s(t, worker, 0, 1);

        out->stage_s = fmax(one_s + hdt_search_stage_s(t, worker, 1, 2) - both_s, 0);
        out->first_s = fmax(one_s - out->stage_s, 0);
        out->unit_s = INFINITY;
    }
    for (int64_t unit = 1; unit < n - 1; unit++) {
        double unit_s =
            hdt_search_stage_s(t, worker, 0, unit + 1) - hdt_search_stage_s(t, worker, 0, unit);

        out->unit_s = fmax(fmin(out->unit_s, unit_s), 0);
    }
    out->once_s = out->stage_s;
    front_edges(p, worker, out);
    for (int n_after = 1; n_after < p->n_workers; n_after++) {
        for (int64_t end = 1; end < n; end++) {
            out->most = fmax(out->most, (double)(end - hdt_search_reach(t, worker, end, n_after)));
        }
    }
}

/* ---- the bound ---- */

/* A worker at one pace. */
struct front_room {
    double n;      /* units that it holds */
    double unit_s; /* of the sum, with its share of what the stage costs beside */
};

/* Those that are left and hold something, the cheapest first; how many. */
static int rooms_fill(const struct hdt_search_bound *b, unsigned taken, double pace_s,
                      struct front_room *rooms)
{
    int n = 0;

    for (int w = 0; w < b->n_workers; w++) {
        const struct hdt_search_front *f = &b->fronts[w];
        struct front_room room = {f->most, 0};
        int at = n++;

        if (f->unit_s > 0) { /* rounding must take no unit away */
            room.n = floor((pace_s - f->stage_s) / f->unit_s * (1 + 1e-9) + 1e-9);
            room.n = room.n < f->most ? room.n : f->most;
        }
        if (taken & 1u << w || !isfinite(f->once_s) || f->edge_s > pace_s || !(room.n >= 1)) {
            n--;
            continue;
        }
        room.unit_s = f->unit_s + f->once_s / room.n;
        for (; at > 0 && rooms[at - 1].unit_s > room.unit_s; at--) {
            rooms[at] = rooms[at - 1];
        }
        rooms[at] = room;
    }
    return n;
}

/* What any stages in front take: the first unit, and one way on. */
static double least_front(const struct hdt_search_bound *b, unsigned taken, double *first_s)
{
    double once_s = INFINITY;

    *first_s = INFINITY;
    for (int w = 0; w < b->n_workers; w++) {
        if (!(taken & 1u << w)) {
            once_s = fmin(once_s, b->fronts[w].once_s);
            *first_s = fmin(*first_s, b->fronts[w].first_s);
        }
    }
    return once_s;
}

/* Of one set of workers and one piece, for all numbers of units. The first unit is no part of what
 * is dealt out. */
static void sums_fill(struct hdt_search_bound *b, unsigned taken, int piece)
{
    const double pace_s =
        piece < HDT_SEARCH_PACES ? b->first_s + (piece + 1) * b->piece_s : INFINITY;
    struct front_room rooms[HDT_SEARCH_MAX_WORKERS];
    double first_s, once_s = least_front(b, taken, &first_s), sum_s = 0;
    const int n_rooms = rooms_fill(b, taken, pace_s, rooms);
    float *out = hdt_search_units(b, b->sum_s, taken, piece);
    size_t n = 0;

    out[n++] = 0;
    if (n < b->n_units) {
        out[n++] = (float)((first_s + once_s) * FLOAT_DOWN);
    }
    for (int i = 0; i < n_rooms; i++) {
        for (double left = rooms[i].n; left >= 1 && n < b->n_units; left--) {
            sum_s += rooms[i].unit_s;
            out[n++] = (float)((first_s + (sum_s > once_s ? sum_s : once_s)) * FLOAT_DOWN);
        }
    }
    while (n < b->n_units) {
        out[n++] = INFINITY;
    }
}

/* Once its sums are there. */
static void rests_fill(struct hdt_search_bound *b, unsigned taken)
{
    const float *slower_s = NULL;

    for (int piece = HDT_SEARCH_PACES; piece >= 0; piece--) {
        const double pace_s = b->n_more * (b->first_s + piece * b->piece_s);
        const float *sum_s = hdt_search_units(b, b->sum_s, taken, piece);
        float *rest_s = hdt_search_units(b, b->rest_s, taken, piece);

        for (size_t i = 0; i < b->n_units; i++) {
            rest_s[i] = (float)((pace_s + (double)sum_s[i]) * FLOAT_DOWN);
        }
        for (size_t i = 0; i < b->n_units && slower_s; i++) {
            rest_s[i] = rest_s[i] < slower_s[i] ? rest_s[i] : slower_s[i];
        }
        slower_s = rest_s;
    }
}

void hdt_search_bound_init(struct hdt_search_bound *b, const struct hdt_search_tables *t)
{
    const struct hdt_search_problem *p = t->problem;
    const size_t n_sets = (size_t)1 << p->n_workers;
    const size_t n = n_sets * HDT_SEARCH_PIECES * (size_t)p->n_units;
    double per_s = 0;

    b->n_workers = p->n_workers;
    b->n_more = (double)(p->n_mb - 1);
    b->n_units = (size_t)p->n_units;
    b->is_there = hdt_calloc(n_sets, sizeof(b->is_there[0]));
    b->sum_s = hdt_malloc(n * sizeof(b->sum_s[0]));
    b->rest_s = hdt_malloc(n * sizeof(b->rest_s[0]));
    for (int w = 0; w < p->n_workers; w++) {
        front_fill(t, w, &b->fronts[w]);
        per_s += 1 / b->fronts[w].unit_s;
    }
    /* All workers together, neither first nor last unit. */
    b->first_s = p->n_units > 2 && isfinite(per_s) ? (double)(p->n_units - 2) / per_s : 0;
}

/* From the pace of all workers together to that whose steady part alone is the limit. */
void hdt_search_bound_limit(struct hdt_search_bound *b, double limit_s)
{
    const double last_s = b->n_more > 0 ? limit_s / b->n_more : INFINITY;

    b->piece_s = (last_s - b->first_s) / HDT_SEARCH_PACES;
    if (!(b->piece_s > 0) || isinf(b->piece_s)) {
        b->piece_s = b->first_s > 0 ? b->first_s / HDT_SEARCH_PACES : 1;
    }
    memset(b->is_there, 0, ((size_t)1 << b->n_workers) * sizeof(b->is_there[0]));
}

void hdt_search_bound_take(struct hdt_search_bound *b, unsigned taken)
{
    for (int piece = 0; piece < HDT_SEARCH_PIECES && !b->is_there[taken]; piece++) {
        sums_fill(b, taken, piece);
    }
    if (!b->is_there[taken]) {
        rests_fill(b, taken);
        b->is_there[taken] = true;
    }
}

void hdt_search_bound_release(struct hdt_search_bound *b)
{
    free(b->is_there);
    free(b->sum_s);
    free(b->rest_s);
}
