/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * A search where a plan runs. What has to move counts: a step has its share of it, so that all that
 * compares steps compares sums. In three parts: what can be made of the plan that runs, the search
 * as if nothing ran, and on from the best of both.
 */
#include "src/base/buf.h"
#include "src/plan/layout_search_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The kind of a cell whose devices are gone; its tp is that of the others. */
#define GONE UINT8_MAX
/* Simulated candidates that are kept from part to part. */
#define KEEP 64
/* Shares of the layers that go to one side. */
#define SHARES 32
/* Of the work of a search that the first and the last part may do. */
#define FIRST_SHARE 6
#define LAST_SHARE  4
/* The first part goes the first time as if of the steps left there were only one in so many: what
 * it then climbs to stays near what runs. */
#define NEAR 100
/* Of those that move least, so many are tried for one that fits. */
#define N_LEAST 8

/* ---- what moves ---- */

/* Where in its pipeline the plan that runs has a kind, else the kind's site. */
static void places_fill(struct search *s)
{
    const struct hdt_layout_files *f = s->options->current;

    for (int k = 0; k < s->n_kinds; k++) {
        const struct search_kind *kind = &s->kinds[k];
        const char *site = hdt_cluster_file_site(&s->base->cluster, kind->site_idx)->name;
        double own_sum = 0, sum = 0, n_own = 0, n = 0;

        for (size_t g = 0; g < f->n_replicas * f->n_stages; g++) {
            const struct hdt_layout_group *is = &f->groups[g];
            bool here = strcmp(hdt_cluster_file_site(&f->cluster, is->site_idx)->name, site) == 0;
            bool own = here && strcmp(is->nodes->name, kind->nodes->name) == 0;

            sum += here ? (double)(g % f->n_stages) : 0;
            own_sum += own ? (double)(g % f->n_stages) : 0;
            n += here;
            n_own += own;
        }
        s->again.place[k] = n_own > 0 ? own_sum / n_own : n > 0 ? sum / n : INFINITY;
    }
}

void hdt_seek_again_init(struct search *s)
{
    const struct hdt_layout_search_options *o = s->options;

    s->again.steps_left = o->steps_left > 0 ? o->steps_left : HDT_LAYOUT_SEARCH_STEPS;
    s->again.steps = s->again.steps_left;
    s->again.mover = hdt_layout_mover_new(o->current, s->base, o->without, o->n_without);
    s->again.placed.layers = hdt_calloc(SEARCH_MAX_STAGES, sizeof(s->again.placed.layers[0]));
    s->again.kept = hdt_calloc(KEEP, sizeof(s->again.kept[0]));
    places_fill(s);
}

void hdt_seek_again_release(struct search *s)
{
    hdt_layout_mover_free(s->again.mover);
    free(s->again.placed.layers);
    free(s->again.placed.node);
    free(s->again.kept);
}

/* Nodes of all groups, as hdt_layout_derive places them. False: there is no room. */
static bool placed_fill(struct search *s, const struct search_cand *c)
{
    struct hdt_layout_placed *p = &s->again.placed;
    int64_t node[SEARCH_MAX_KINDS] = {0}, used[SEARCH_MAX_KINDS] = {0};
    size_t replica;

    p->n_replicas = 0;
    for (int i = 0; i < c->n_classes; i++) {
        p->n_replicas += (size_t)c->classes[i].n;
    }
    p->n_stages = (size_t)c->n_stages;
    p->chunks = c->chunks;
    p->is_sharded = c->sharded;
    if (p->n_replicas * p->n_stages > s->again.node_cap) {
        s->again.node_cap = p->n_replicas * p->n_stages;
        p->node = hdt_realloc(p->node, s->again.node_cap * sizeof(p->node[0]));
    }
    for (int t = 0; t < c->n_stages; t++) {
        p->layers[t] = c->layers[t];
        replica = 0;
        for (int i = 0; i < c->n_classes; i++) {
            int k = c->cells[i][t].kind;
            const struct search_kind *kind = &s->kinds[k];
            int64_t tp = kind->tps[c->cells[i][t].tp];

            for (int n = 0; n < c->classes[i].n; n++) {
                if (used[k] + tp > kind->nodes->devices) {
                    node[k]++;
                    used[k] = 0;
                }
                if (node[k] >= kind->nodes->count) {
                    return false;
                }
                used[k] += tp;
                p->node[replica++ * p->n_stages + (size_t)t] =
                    hdt_layout_mover_node(s->again.mover, kind->site_idx, kind->nodes_idx, node[k]);
            }
        }
    }
    return true;
}

/* By the objective: seconds; money of traffic, and of devices that wait; joules of these. */
static double move_worth(const struct search *s, const struct search_cand *c,
                         const struct hdt_layout_moves *moves)
{
    switch (s->options->objective) {
    case HDT_LAYOUT_COST:
        return moves->price + (double)hdt_seek_devices(s, c) * moves->seconds / 3600 *
                                  s->options->device_hour_price;
    case HDT_LAYOUT_ENERGY:
        return moves->seconds * hdt_seek_watts(s, c);
    default:
        return moves->seconds;
    }
}

void hdt_seek_move_weigh(struct search *s, struct search_cand *c)
{
    struct hdt_layout_moves moves;

    c->move_s = c->move = INFINITY;
    if (placed_fill(s, c)) {
        hdt_layout_mover_count(s->again.mover, &s->again.placed, &moves);
        c->move_s = moves.seconds;
        c->move = move_worth(s, c, &moves) / s->again.steps;
    }
}

void hdt_seek_move(struct search *s, struct search_cand *c)
{
    c->move_s = c->move = 0;
    if (s->again.counts) {
        hdt_seek_move_weigh(s, c);
    }
}

/* ---- the plan that runs ---- */

/* The cell of a group; GONE: its devices are. False: it is none that the search has. */
static bool cell_of(const struct search *s, const struct hdt_layout_group *g,
                    struct search_cell *cell)
{
    const struct hdt_cluster_file *cluster = &s->options->current->cluster;
    const char *site = hdt_cluster_file_site(cluster, g->site_idx)->name;
    int tp = 0;

    while (tp < SEARCH_MAX_TPS && INT64_C(1) << tp < g->tp) {
        tp++;
    }
    *cell = (struct search_cell){GONE, (uint8_t)tp};
    for (int k = 0; k < s->n_kinds; k++) {
        const struct search_kind *kind = &s->kinds[k];

        if (strcmp(hdt_cluster_file_site(&s->base->cluster, kind->site_idx)->name, site) == 0 &&
            strcmp(kind->nodes->name, g->nodes->name) == 0 && g->node < kind->nodes->count) {
            cell->kind = (uint8_t)k;
            return tp < kind->n_tps && kind->tps[tp] == g->tp;
        }
    }
    return true;
}

/* The largest size that is not larger than that of a replica. */
static int batch_of(const struct search *s, int64_t size)
{
    int at = 0;

    for (int b = 0; b < s->n_batches; b++) {
        at = s->batches[b] <= size ? b : at;
    }
    return at;
}

/* A replica behind the others. False: there are too many unlike ones. */
static bool replica_add(struct search_cand *c, const struct search_class *like,
                        const struct search_cell *cells)
{
    struct search_class *last = c->n_classes > 0 ? &c->classes[c->n_classes - 1] : NULL;
    bool same =
        last && last->batch == like->batch &&
        memcmp(c->cells[c->n_classes - 1], cells, (size_t)c->n_stages * sizeof(cells[0])) == 0;

    if (same && last->n_mb == like->n_mb) {
        last->n++;
    } else if (same && last->n_more == 0 && last->n_mb == like->n_mb + 1) {
        last->n_more = last->n++;
        last->n_mb = like->n_mb;
    } else if (c->n_classes == SEARCH_MAX_CLASSES) {
        return false;
    } else {
        memcpy(c->cells[c->n_classes], cells, (size_t)c->n_stages * sizeof(cells[0]));
        c->classes[c->n_classes++] = *like;
    }
    return true;
}

/* What is searched as it runs, what is kept as the job says. */
static void settings_take(const struct search *s, struct search_cand *c)
{
    const struct hdt_layout *l = &s->options->current->layout, *job = &s->base->layout;
    unsigned keep = s->options->keep;

    if (!search_keeps_schedule(s) && l->schedule != HDT_SCHEDULE_AUTO &&
        !(s->space & HDT_LAYOUT_SPACE_1F1B)) {
        c->schedule = (uint8_t)l->schedule;
        c->chunks = (uint8_t)(l->schedule == HDT_SCHEDULE_INTERLEAVED ? l->chunks : 1);
    }
    c->sync = keep & HDT_LAYOUT_KEEP_SYNC ? c->sync : (uint8_t)l->sync;
    c->all_reduce = keep & HDT_LAYOUT_KEEP_ALL_REDUCE ? c->all_reduce : (uint8_t)l->all_reduce;
    c->sharded = keep & HDT_LAYOUT_KEEP_SHARDED ? c->sharded : (uint8_t)l->optimizer.sharded;
    for (int t = 0; t < c->n_stages; t++) {
        c->recompute[t] =
            (uint8_t)(keep & HDT_LAYOUT_KEEP_RECOMPUTE ? job->recompute
                                                       : (int)hdt_layout_recompute(l, (size_t)t));
        c->offload[t] =
            (uint8_t)(keep & HDT_LAYOUT_KEEP_OFFLOAD ? job->offload
                                                     : (int)hdt_layout_offload(l, (size_t)t));
    }
}

/* The plan that runs as a candidate, with cells that are GONE. False: it is none that could be
 * written down here. */
static bool running_take(const struct search *s, struct search_cand *c)
{
    const struct hdt_layout_files *f = s->options->current;

    if (f->n_stages > SEARCH_MAX_STAGES || f->layout.chunks > UINT8_MAX) {
        return false;
    }
    hdt_seek_cand_begin(s, c);
    c->n_stages = (int)f->n_stages;
    settings_take(s, c);
    for (size_t t = 0; t < f->n_stages; t++) {
        c->layers[t] = (int16_t)hdt_layout_stage(&f->layout, t)->layers;
    }
    for (size_t r = 0; r < f->n_replicas; r++) {
        struct search_class like = {.n = 1,
                                    .batch = batch_of(s, hdt_layout_micro_batch(&f->layout, r)),
                                    .n_mb = hdt_layout_n_micro_batches(f, r)};
        struct search_cell cells[SEARCH_MAX_STAGES];

        for (size_t t = 0; t < f->n_stages; t++) {
            if (!cell_of(s, hdt_layout_group(f, r, t), &cells[t])) {
                return false;
            }
        }
        if (!replica_add(c, &like, cells)) {
            return false;
        }
    }
    return true;
}

/* ---- what can be made of it ---- */

struct seeds {
    struct search *s;
    struct search_cand run;
    struct search_cand least[N_LEAST]; /* that move least, first the one that does */
    int n_least;
};

static void least_note(struct seeds *e, const struct search_cand *c)
{
    int i = e->n_least < N_LEAST ? e->n_least++ : N_LEAST;

    while (i > 0 && (e->least[i - 1].move_s > c->move_s ||
                     (e->least[i - 1].move_s == c->move_s && e->least[i - 1].score > c->score))) {
        if (i < N_LEAST) {
            e->least[i] = e->least[i - 1];
        }
        i--;
    }
    if (i < N_LEAST) {
        e->least[i] = *c;
    }
}

static bool shares_all(const struct search *s, const struct search_cand *c)
{
    int64_t sum = 0;

    for (int i = 0; i < c->n_classes; i++) {
        sum += (c->classes[i].n * c->classes[i].n_mb + c->classes[i].n_more) *
               s->batches[c->classes[i].batch];
    }
    return sum == s->base->layout.global_batch;
}

static bool has_units(struct search *s, const struct search_cand *c)
{
    for (int i = 0; i < c->n_classes; i++) {
        for (int t = 0; t < c->n_stages; t++) {
            if (!hdt_seek_unit_get(s, c->cells[i][t].kind, c->cells[i][t].tp,
                                   c->classes[i].batch)) {
                return false;
            }
        }
    }
    return true;
}

/* As it is where that fits, else with other relief; with layers of its own, or shared out anew. */
static void seed_offer(struct seeds *e, struct search_cand c, bool refill)
{
    struct search *s = e->s;

    if (!has_units(s, &c) || !hdt_seek_places(s, &c)) {
        return;
    }
    if (refill ? !hdt_seek_fill(s, &c) : !shares_all(s, &c) && !hdt_seek_share(s, &c)) {
        return;
    }
    if (!hdt_seek_fits(s, &c) && (!hdt_seek_relieve(s, &c) || !hdt_seek_fits(s, &c))) {
        s->n_misfits++;
        return;
    }
    s->best_estimate_s = INFINITY; /* none is left out because another one is better */
    hdt_seek_offer(s, &c);
    if (c.score < INFINITY) {
        least_note(e, &c);
    }
}

/* Replicas that lost nothing. */
static void seed_classes(struct seeds *e)
{
    struct search_cand c = e->run;

    c.n_classes = 0;
    for (int i = 0; i < e->run.n_classes; i++) {
        bool whole = true;

        for (int t = 0; t < e->run.n_stages; t++) {
            whole = whole && e->run.cells[i][t].kind != GONE;
        }
        if (whole) {
            c.classes[c.n_classes] = e->run.classes[i];
            memcpy(c.cells[c.n_classes++], e->run.cells[i], sizeof(c.cells[0]));
        }
    }
    if (c.n_classes > 0) {
        seed_offer(e, c, false);
        seed_offer(e, c, true);
    }
}

static bool is_hit(const struct search_cand *c, int stage)
{
    for (int i = 0; i < c->n_classes; i++) {
        if (c->cells[i][stage].kind == GONE) {
            return true;
        }
    }
    return false;
}

/* A run of stages that are hit, in a candidate. */
static int hit_end(const struct search_cand *c, int begin)
{
    int end = begin;

    while (end < c->n_stages && is_hit(c, end)) {
        end++;
    }
    return end;
}

static void stage_copy(struct search_cand *to, const struct search_cand *from, int stage)
{
    int t = to->n_stages++;

    to->layers[t] = from->layers[stage];
    to->recompute[t] = from->recompute[stage];
    to->offload[t] = from->offload[stage];
    for (int i = 0; i < from->n_classes; i++) {
        to->cells[i][t] = from->cells[i][stage];
    }
}

/* n layers more for so many stages from `at` on, those next to the gap first when it does not come
 * out even; step: -1 for those before it. */
static void layers_give(struct search_cand *c, int at, int step, int n_stages, int n)
{
    for (int i = 0; i < n_stages; i++) {
        c->layers[at + i * step] =
            (int16_t)(c->layers[at + i * step] + n / n_stages + (i < n % n_stages ? 1 : 0));
    }
}

static int at_most(int a, int b)
{
    return a < b ? a : b;
}

/* Without the stages that are hit: of their layers a share of q in SHARES goes to the `window`
 * stages before them, the others to as many behind them. */
static void seed_gap(struct seeds *e, int window, int q)
{
    const struct search_cand *run = &e->run;
    struct search_cand c = *run;
    int gap_at[SEARCH_MAX_STAGES], gap_layers[SEARCH_MAX_STAGES], n_gaps = 0;

    c.n_stages = 0;
    for (int t = 0; t < run->n_stages;) {
        int end = hit_end(run, t);

        if (end == t) {
            stage_copy(&c, run, t++);
            continue;
        }
        gap_at[n_gaps] = c.n_stages;
        gap_layers[n_gaps] = 0;
        while (t < end) {
            gap_layers[n_gaps] += run->layers[t++];
        }
        n_gaps++;
    }
    if (c.n_stages == 0) {
        return;
    }
    for (int g = 0; g < n_gaps; g++) {
        int before = at_most(window, gap_at[g]), behind = at_most(window, c.n_stages - gap_at[g]);
        int n = gap_layers[g], left = before == 0   ? 0
                                      : behind == 0 ? n
                                                    : (n * q + SHARES / 2) / SHARES;

        layers_give(&c, gap_at[g] - 1, -1, before, left);
        layers_give(&c, gap_at[g], 1, behind, n - left);
    }
    seed_offer(e, c, false);
    if (window == 1 && q == 0) {
        seed_offer(e, c, true);
    }
}

static void seed_gaps(struct seeds *e)
{
    int most = 0;

    for (int t = 0; t < e->run.n_stages; t++) {
        most += is_hit(&e->run, t) ? e->run.layers[t] : 0;
    }
    for (int window = 1; window <= e->run.n_stages && hdt_seek_goes_on(e->s); window *= 2) {
        int last = -1;

        for (int q = 0; q <= SHARES; q++) {
            int left = (most * q + SHARES / 2) / SHARES;

            if (left != last) {
                seed_gap(e, window, q);
            }
            last = left;
        }
    }
}

/* Other devices instead of those that are gone: runs of stages become `n` stages each, or stay as
 * many (0). */
static void seed_other(struct seeds *e, int kind, int n)
{
    const struct search_cand *run = &e->run;
    const struct search_kind *k = &e->s->kinds[kind];
    struct search_cand c = *run;

    c.n_stages = 0;
    for (int t = 0; t < run->n_stages;) {
        int end = hit_end(run, t), n_here = n > 0 ? at_most(n, end - t) : end - t, layers = 0;

        if (end == t) {
            stage_copy(&c, run, t++);
            continue;
        }
        for (int at = t; at < end; at++) {
            layers += run->layers[at];
        }
        for (int i = 0; i < n_here; i++) {
            stage_copy(&c, run, t + i);
            if (n_here < end - t) {
                c.layers[c.n_stages - 1] = 0;
            }
        }
        if (n_here < end - t) {
            layers_give(&c, c.n_stages - 1, -1, n_here, layers);
        }
        t = end;
    }
    for (int i = 0; i < c.n_classes; i++) {
        for (int t = 0; t < c.n_stages; t++) {
            struct search_cell *cell = &c.cells[i][t];

            if (cell->kind == GONE) {
                *cell =
                    (struct search_cell){(uint8_t)kind, (uint8_t)at_most(cell->tp, k->n_tps - 1)};
            }
        }
    }
    seed_offer(e, c, false);
    seed_offer(e, c, true);
}

static void seeds_offer(struct seeds *e)
{
    bool has_gone = false;
    int longest = 0;

    for (int t = 0; t < e->run.n_stages; t++) {
        int end = hit_end(&e->run, t);

        has_gone = has_gone || end > t;
        longest = end - t > longest ? end - t : longest;
    }
    if (!has_gone) {
        seed_offer(e, e->run, false);
        seed_offer(e, e->run, true);
        return;
    }
    seed_classes(e);
    seed_gaps(e);
    for (int k = 0; k < e->s->n_kinds && hdt_seek_goes_on(e->s); k++) {
        seed_other(e, k, 0);
        for (int n = longest / 2; n > 0; n /= 2) {
            seed_other(e, k, n);
        }
    }
}

/* ---- the parts of the search ---- */

static void part_begin(struct search *s, bool counts, int64_t tasks, int n_climbs)
{
    s->n_pool = 0;
    memset(&s->best, 0, sizeof(s->best));
    s->best_estimate_s = s->best_score = INFINITY;
    s->is_small = s->has_left_out = false;
    s->n_before = s->n_simulated;
    s->tasks_left = tasks;
    s->n_climbs = n_climbs;
    s->again.counts = counts;
    s->pool_cap = SEARCH_POOL;
}

static void kept_add(struct search *s, const struct search_cand *c)
{
    struct search_again *a = &s->again;
    size_t i = a->n_kept < KEEP ? a->n_kept++ : KEEP;

    for (; i > 0 && a->kept[i - 1].score > c->score; i--) {
        if (i < KEEP) {
            a->kept[i] = a->kept[i - 1];
        }
    }
    if (i < KEEP) {
        a->kept[i] = *c;
    }
}

/* All that was simulated, with what it has to move. */
static void part_end(struct search *s)
{
    s->again.steps = s->again.steps_left;
    for (size_t i = 0; i <= s->n_pool; i++) {
        struct search_cand *c = i < s->n_pool ? &s->pool[i] : &s->best;

        if (c->step_s > 0) {
            hdt_seek_move_weigh(s, c);
            c->score = s->founds[c->found].objective + c->move;
            kept_add(s, c);
        }
    }
}

static bool is_over(const struct search *s)
{
    const struct hdt_layout_search_options *o = s->options;

    return s->again.n_kept > 0 &&
           (s->is_cut || (o->n_simulations > 0 && s->n_simulated >= o->n_simulations));
}

static void repair_judge(struct search *s, struct seeds *e)
{
    struct search_cand *repair = &s->again.repair;
    double steps = s->again.steps;

    for (int i = 0; i < e->n_least && repair->step_s <= 0; i++) {
        if (hdt_seek_judge(s, &e->least[i])) {
            *repair = e->least[i];
            s->again.steps = s->again.steps_left;
            hdt_seek_move_weigh(s, repair);
            repair->score = s->founds[repair->found].objective + repair->move;
            kept_add(s, repair);
            s->again.steps = steps;
        }
    }
}

static void first_part(struct search *s, double steps)
{
    struct seeds *e = hdt_calloc(1, sizeof(*e));

    e->s = s;
    s->again.steps = steps;
    part_begin(s, true, hdt_seek_tasks_of(s) / FIRST_SHARE, s->n_kinds > 4 ? 4 : 0);
    if (running_take(s, &e->run)) {
        seeds_offer(e);
    }
    repair_judge(s, e);
    free(e);
    if (s->n_pool > 0) {
        s->best_estimate_s =
            s->options->objective == HDT_LAYOUT_THROUGHPUT ? s->best_score : INFINITY;
        hdt_seek_improve(s);
    }
    part_end(s);
}

/* A quick plan in the order in which its nodes stand now. False: so it is, or so it cannot be. */
static bool order_take(struct search *s, struct search_cand *c)
{
    bool moved = false;

    for (int i = 0; i < c->n_classes; i++) {
        struct search_cell *cells = c->cells[i];

        for (int t = 1; t < c->n_stages; t++) {
            struct search_cell cell = cells[t];
            int at = t;

            for (; at > 0 && s->again.place[cells[at - 1].kind] > s->again.place[cell.kind]; at--) {
                cells[at] = cells[at - 1];
                moved = true;
            }
            cells[at] = cell;
        }
    }
    return moved && hdt_seek_places(s, c) && hdt_seek_fill(s, c);
}

/* On from the best of all; of a small cluster all are tried, now by their sums. */
static void last_part(struct search *s, bool is_small)
{
    struct search_again *a = &s->again;

    part_begin(s, true, hdt_seek_tasks_of(s) / LAST_SHARE, 4);
    s->best = a->kept[0];
    s->best_score = s->best.score;
    if (is_small) {
        s->best_estimate_s =
            s->options->objective == HDT_LAYOUT_THROUGHPUT ? s->best_score : INFINITY;
        hdt_seek_all(s);
    } else {
        for (size_t i = 0; i < a->n_kept && i < KEEP / 4; i++) {
            struct search_cand *c = &s->pool[s->n_pool++];

            *c = a->kept[i];
            c->step_s = 0;
            hdt_seek_estimate(s, c);
        }
        for (size_t i = 0; i < a->n_kept && i < KEEP / 4; i++) {
            struct search_cand c = a->kept[i];

            c.step_s = 0;
            if (order_take(s, &c)) {
                s->best_estimate_s = INFINITY;
                hdt_seek_offer(s, &c);
            }
        }
        hdt_seek_improve(s);
    }
    part_end(s);
}

void hdt_seek_again(struct search *s)
{
    bool is_small = false, is_complete = false;

    first_part(s, search_max(s->again.steps_left / NEAR, 1));
    if (!is_over(s) && s->again.steps_left > 1) {
        first_part(s, s->again.steps_left);
    }
    if (!is_over(s)) {
        part_begin(s, false, 0, 0);
        hdt_seek_all(s);
        is_small = s->is_small;
        part_end(s);
        s->again.fresh = s->best;
    }
    if (!is_over(s) && s->again.n_kept > 0) {
        last_part(s, is_small);
        is_complete = is_small && s->is_small && !s->has_left_out;
    }
    s->has_left_out = !is_complete;
    s->n_pool = s->again.n_kept;
    memcpy(s->pool, s->again.kept, s->n_pool * sizeof(s->pool[0]));
    s->best = s->n_pool > 0 ? s->pool[0] : s->best;
}
