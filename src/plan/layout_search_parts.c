/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Where the search begins to improve candidates, and smaller spaces that it searches as well. A
 * climb ends where no single step is better: from a plan of fewer choices (even layers, alike
 * replicas) it may come to where it does not come from the best that was written down. So the best
 * of each smaller space is one of the beginnings; and on clusters on which that is quick each
 * smaller space is searched as if there were nothing else, so that the whole is never worse than
 * one of them.
 */
#include "src/base/buf.h"
#include "src/plan/layout_search_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Candidates that are improved by estimate, beside those of smaller spaces. */
#define N_CLIMBS (SEARCH_STARTS - N_PARTS)
/* Clusters of more devices are only searched as a whole. */
#define PARTS_DEVICES 96

/* What other planners search: one cut for all, one type a stage, one order and one relief. And a
 * site alone, of which no faster link between sites makes less. */
static const unsigned parts[] = {
    HDT_LAYOUT_SPACE_ONE_SITE | HDT_LAYOUT_SPACE_ALIKE | HDT_LAYOUT_SPACE_EVEN,
    HDT_LAYOUT_SPACE_EVEN,
    HDT_LAYOUT_SPACE_EVEN | HDT_LAYOUT_SPACE_ALIKE,
    HDT_LAYOUT_SPACE_PURE | HDT_LAYOUT_SPACE_ALIKE | HDT_LAYOUT_SPACE_NO_RELIEF,
    HDT_LAYOUT_SPACE_1F1B | HDT_LAYOUT_SPACE_ONE_RELIEF,
};
#define N_PARTS (sizeof(parts) / sizeof(parts[0]))

bool hdt_seek_is_of_form(const struct search_cand *a, const struct search_cand *b)
{
    return a->n_stages == b->n_stages && a->n_classes == b->n_classes;
}

bool hdt_seek_is_of_shape(const struct search_cand *a, const struct search_cand *b)
{
    bool is = hdt_seek_is_of_form(a, b);

    for (int i = 0; is && i < a->n_classes; i++) {
        for (int t = 0; is && t < a->n_stages; t++) {
            is = a->cells[i][t].kind == b->cells[i][t].kind &&
                 a->cells[i][t].tp == b->cells[i][t].tp;
        }
    }
    return is;
}

/* Does a candidate lie in a smaller space, too? */
static bool is_in_part(const struct search *s, const struct search_cand *c, unsigned space)
{
    int least = c->layers[0], most = c->layers[0];
    bool is = true;

    for (int t = 0; t < c->n_stages; t++) {
        least = c->layers[t] < least ? c->layers[t] : least;
        most = c->layers[t] > most ? c->layers[t] : most;
        for (int i = 0; i < c->n_classes && space & HDT_LAYOUT_SPACE_ONE_SITE; i++) {
            is = is &&
                 s->kinds[c->cells[i][t].kind].site_idx == s->kinds[c->cells[0][0].kind].site_idx;
        }
        is = is && !(space & HDT_LAYOUT_SPACE_NO_RELIEF && (c->recompute[t] || c->offload[t]));
        for (int i = 1; i < c->n_classes && space & HDT_LAYOUT_SPACE_PURE; i++) {
            is = is && s->kinds[c->cells[i][t].kind].nodes->device ==
                           s->kinds[c->cells[0][t].kind].nodes->device;
        }
    }
    for (int i = 0; i < c->n_classes && space & HDT_LAYOUT_SPACE_ALIKE; i++) {
        is = is && c->classes[i].batch == c->classes[0].batch && c->classes[i].n_more == 0 &&
             c->classes[i].n_mb == c->classes[0].n_mb;
    }
    return is && !(space & HDT_LAYOUT_SPACE_EVEN && most > least + 1) &&
           !(space & HDT_LAYOUT_SPACE_1F1B && c->schedule != HDT_SCHEDULE_1F1B);
}

static void start_add(const struct search_cand *c, size_t most, struct search_cand *starts,
                      size_t *n)
{
    bool is_new = *n < most;

    for (size_t k = 0; k < *n && is_new; k++) {
        is_new = !hdt_seek_is_alike(&starts[k], c);
    }
    if (is_new) {
        starts[(*n)++] = *c;
    }
}

static bool has_like(const struct search_cand *starts, size_t n, const struct search_cand *c,
                     bool (*is_of)(const struct search_cand *a, const struct search_cand *b))
{
    for (size_t k = 0; k < n; k++) {
        if (is_of(&starts[k], c)) {
            return true;
        }
    }
    return false;
}

/* The best of each form has its turn, then of each shape, then the best of smaller spaces, then
 * what differs in more than layers. */
size_t hdt_seek_starts(struct search *s, struct search_cand *starts)
{
    size_t most = s->n_climbs > 0 ? (size_t)s->n_climbs : N_CLIMBS, n = 0;

    for (size_t i = 0; i < s->n_pool && n < most / 2 + 1; i++) {
        if (!has_like(starts, n, &s->pool[i], hdt_seek_is_of_form)) {
            starts[n++] = s->pool[i];
        }
    }
    for (size_t i = 0; i < s->n_pool && n < most; i++) {
        if (!has_like(starts, n, &s->pool[i], hdt_seek_is_of_shape)) {
            starts[n++] = s->pool[i];
        }
    }
    for (size_t p = 0; p < N_PARTS && s->n_climbs == 0; p++) {
        size_t i = 0;

        while (i < s->n_pool && !is_in_part(s, &s->pool[i], parts[p])) {
            i++;
        }
        if (i < s->n_pool) {
            start_add(&s->pool[i], SEARCH_STARTS, starts, &n);
        }
    }
    for (size_t i = 0; i < s->n_pool && n < most; i++) {
        start_add(&s->pool[i], most, starts, &n);
    }
    return n;
}

/* ---- smaller spaces by themselves ---- */

/* Those of the pool that were simulated, and the best. */
static void simulated_keep(const struct search *s, struct search_cand *kept, size_t *n)
{
    for (size_t i = 0; i <= s->n_pool && *n < s->pool_cap; i++) {
        const struct search_cand *c = i < s->n_pool ? &s->pool[i] : &s->best;

        if (c->step_s > 0) {
            kept[(*n)++] = *c;
        }
    }
}

static bool has_parts(const struct search *s)
{
    int64_t n = hdt_cluster_file_n_devices(&s->base->cluster);

    return n > SEARCH_SMALL_DEVICES && n <= PARTS_DEVICES && s->space == 0 &&
           s->options->n_simulations == 0 && s->best.step_s > 0;
}

void hdt_seek_parts(struct search *s)
{
    struct search_cand best = s->best, *kept;
    bool has_left_out = s->has_left_out;
    size_t n = 0;

    if (!has_parts(s)) {
        return;
    }
    kept = hdt_calloc(s->pool_cap, sizeof(kept[0]));
    simulated_keep(s, kept, &n);
    for (size_t p = 0; p < N_PARTS && hdt_seek_goes_on(s); p++) {
        if (parts[p] & HDT_LAYOUT_SPACE_ONE_SITE && s->base->cluster.sites.n < 2) {
            continue; /* it is the whole */
        }
        s->part++;
        s->space = parts[p];
        s->n_pool = 0;
        s->best.step_s = 0;
        s->best_estimate_s = s->best_score = INFINITY;
        s->n_before = s->n_simulated;
        hdt_seek_space(s);
        simulated_keep(s, kept, &n);
        best = s->best.step_s > 0 && s->best.score < best.score ? s->best : best;
    }
    s->space = s->options->space;
    s->best = best;
    s->best_score = best.score;
    s->n_pool = n;
    memcpy(s->pool, kept, n * sizeof(kept[0]));
    s->has_left_out = has_left_out;
    free(kept);
}
