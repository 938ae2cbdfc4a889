/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * All candidates of a small cluster: every way of each replica through the cluster, alike replicas
 * together, every cut of the layers, every share of the batch. What is more than a little slower by
 * its bound than the best by estimate is left out.
 */
#include "src/plan/layout_search_impl.h"

#include <math.h>
#include <string.h>

#define EXACT_MAX_DEVICES SEARCH_SMALL_DEVICES
#define EXACT_MAX_LAYERS  12
#define EXACT_MAX_CELLS   12
/* Candidates that are offered before it is given up: the cluster was not small. */
#define EXACT_MAX_OFFERS 400000
/* Bounds further above the best estimate than this are not looked at: estimates err by less. */
#define EXACT_SLACK 1.25

struct exact {
    struct search *s;
    struct search_cell cells[EXACT_MAX_CELLS];
    int n_cells;
    int n_replicas, n_stages;
    int paths[EXACT_MAX_DEVICES][EXACT_MAX_DEVICES];
    int batch[EXACT_MAX_DEVICES];   /* by replica */
    int64_t left[SEARCH_MAX_KINDS]; /* devices */
    int64_t n_offers;
};

static bool goes_on(const struct exact *e)
{
    return e->n_offers < EXACT_MAX_OFFERS && hdt_seek_goes_on(e->s);
}

/* Does a replica take the way of the one before it? */
static bool is_same_way(const struct exact *e, int replica)
{
    return memcmp(e->paths[replica], e->paths[replica - 1],
                  (size_t)e->n_stages * sizeof(e->paths[0][0])) == 0;
}

static void shared_offer(struct exact *e, struct search_cand *c)
{
    struct search_cand own = *c;

    e->n_offers++;
    if (hdt_seek_relieve(e->s, &own) && hdt_seek_fits(e->s, &own)) {
        hdt_seek_offer(e->s, &own);
    }
}

/* Every share of the batch: class by class, the last one takes the rest. */
static void shares_try(struct exact *e, struct search_cand *c, int class_idx, int64_t left)
{
    struct search_class *cl = &c->classes[class_idx];
    int64_t one = e->s->batches[cl->batch];

    if (!goes_on(e)) {
        return;
    }
    if (class_idx + 1 == c->n_classes) {
        if (left % one == 0 && left / one >= cl->n) {
            cl->n_mb = left / one / cl->n;
            cl->n_more = (int)(left / one % cl->n);
            shared_offer(e, c);
        }
        return;
    }
    for (int64_t n = cl->n; n * one < left; n++) {
        cl->n_mb = n / cl->n;
        cl->n_more = (int)(n % cl->n);
        shares_try(e, c, class_idx + 1, left - n * one);
    }
}

/* The least that a stage takes of all micro-batches, shared as well as can be. */
static bool is_hopeless(struct exact *e, const struct search_cand *c, int n_stages)
{
    double rate = 0;

    for (int i = 0; i < c->n_classes; i++) {
        double slowest = 0;

        for (int t = 0; t < n_stages; t++) {
            double fwd_s, bwd_s;

            hdt_seek_stage_time(e->s, c, i, t, &fwd_s, &bwd_s);
            slowest = fmax(slowest, fwd_s + bwd_s);
        }
        rate += (double)c->classes[i].n * e->s->batches[c->classes[i].batch] / slowest;
    }
    return e->s->options->objective == HDT_LAYOUT_THROUGHPUT &&
           (double)e->s->base->layout.global_batch / rate > EXACT_SLACK * e->s->best_estimate_s;
}

static void layers_try(struct exact *e, struct search_cand *c, int stage, int left)
{
    int behind = c->n_stages - 1 - stage;

    if (!goes_on(e)) {
        return;
    }
    if (behind == 0) {
        c->layers[stage] = (int16_t)left;
        if (is_hopeless(e, c, c->n_stages)) {
            return;
        }
        if (e->s->space & HDT_LAYOUT_SPACE_ALIKE) {
            if (hdt_seek_share(e->s, c)) {
                shared_offer(e, c);
            }
        } else {
            shares_try(e, c, 0, e->s->base->layout.global_batch);
        }
        return;
    }
    for (int n = 1; n <= left - behind; n++) {
        int even = (int)e->s->base->model.L / c->n_stages;

        if (e->s->space & HDT_LAYOUT_SPACE_EVEN && (n < even || n > even + 1)) {
            continue;
        }
        c->layers[stage] = (int16_t)n;
        c->recompute[stage] = 0;
        if (!is_hopeless(e, c, stage + 1)) {
            layers_try(e, c, stage + 1, left - n);
        }
    }
}

/* Replicas with their ways and sizes of micro-batches: alike ones are a class. */
static void classes_offer(struct exact *e)
{
    struct search_cand c;

    hdt_seek_cand_begin(e->s, &c);
    c.n_stages = e->n_stages;
    for (int r = 0; r < e->n_replicas; r++) {
        struct search_class *cl = &c.classes[c.n_classes];
        bool is_new = r == 0 || e->batch[r] != e->batch[r - 1] || !is_same_way(e, r);

        if (!is_new) {
            cl[-1].n++;
            continue;
        }
        *cl = (struct search_class){.n = 1, .batch = e->batch[r]};
        for (int t = 0; t < e->n_stages; t++) {
            c.cells[c.n_classes][t] = e->cells[e->paths[r][t]];
            if (!hdt_seek_unit_get(e->s, c.cells[c.n_classes][t].kind, c.cells[c.n_classes][t].tp,
                                   e->batch[r])) {
                return;
            }
        }
        c.n_classes++;
    }
    if (hdt_seek_places(e->s, &c) && hdt_seek_is_in_space(e->s, &c)) {
        layers_try(e, &c, 0, (int)e->s->base->model.L);
    }
}

/* Every size for every replica; on one way they do not descend. */
static void batches_try(struct exact *e, int replica)
{
    int first = replica > 0 && is_same_way(e, replica) ? e->batch[replica - 1] : 0;

    if (replica == e->n_replicas) {
        classes_offer(e);
        return;
    }
    for (int b = first; b < e->s->n_batches && goes_on(e); b++) {
        e->batch[replica] = b;
        batches_try(e, replica + 1);
    }
}

/* The way of replica r from stage t on; ways do not descend from replica to replica. */
static void paths_try(struct exact *e, int r, int t, bool is_equal)
{
    if (!goes_on(e)) {
        return;
    }
    if (t == e->n_stages) {
        r++;
        t = 0;
        is_equal = true;
        if (r == e->n_replicas) {
            batches_try(e, 0);
            return;
        }
    }
    for (int i = r > 0 && is_equal ? e->paths[r - 1][t] : 0; i < e->n_cells; i++) {
        const struct search_kind *k = &e->s->kinds[e->cells[i].kind];
        int64_t tp = k->tps[e->cells[i].tp], *left = &e->left[e->cells[i].kind];

        if (*left < tp) {
            continue;
        }
        *left -= tp;
        e->paths[r][t] = i;
        paths_try(e, r, t + 1, is_equal && r > 0 && i == e->paths[r - 1][t]);
        *left += tp;
    }
}

/* Is the cluster so small that all can be tried? */
static bool is_small(const struct search *s)
{
    int64_t n = 0;
    int n_cells = 0;

    for (int i = 0; i < s->n_kinds; i++) {
        n += s->kinds[i].nodes->count * s->kinds[i].nodes->devices;
        n_cells += s->kinds[i].n_tps;
    }
    return n <= EXACT_MAX_DEVICES && n_cells <= EXACT_MAX_CELLS &&
           s->base->model.L <= EXACT_MAX_LAYERS;
}

void hdt_seek_enumerate(struct search *s)
{
    struct exact e = {.s = s};
    int n_devices = 0;

    if (!is_small(s)) {
        return;
    }
    for (int i = 0; i < s->n_kinds; i++) {
        e.left[i] = s->kinds[i].nodes->count * s->kinds[i].nodes->devices;
        n_devices += (int)e.left[i];
        for (int k = 0; k < s->kinds[i].n_tps; k++) {
            e.cells[e.n_cells++] = (struct search_cell){(uint8_t)i, (uint8_t)k};
        }
    }
    s->is_small = true;
    for (e.n_replicas = 1; e.n_replicas <= n_devices; e.n_replicas++) {
        for (e.n_stages = 1;
             e.n_stages * e.n_replicas <= n_devices && e.n_stages <= (int)s->base->model.L;
             e.n_stages++) {
            if (e.n_replicas <= s->base->layout.global_batch) {
                paths_try(&e, 0, 0, true);
            }
        }
    }
    s->is_small = e.n_offers < EXACT_MAX_OFFERS;
}
