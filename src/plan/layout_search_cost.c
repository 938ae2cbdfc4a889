/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * What a candidate takes, in microseconds of work: stages by stage_cost.h, each class's pipeline
 * played by itself for as many micro-batches as it needs to come to its pace, collectives by the
 * same formulas as the simulator's, each alone on its links.
 */
#include "src/base/buf.h"
#include "src/plan/layout_search_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GIB (1024.0 * 1024 * 1024)

/* Of a backward, what a pipeline of split ones waits less for each stage. Two halves that are of
 * weights would be all of it; the simulator finds so much. */
#define SPLIT_GAIN 0.6

/* ---- units ---- */

static void unit_times(const struct hdt_stage_cost *like, struct search_unit *u)
{
    struct hdt_stage_cost cost = *like;
    double fwd_s, bwd_s;

    cost.recompute = HDT_STAGE_COST_KEEP_ALL;
    for (int first = 0; first < 2; first++) {
        for (int last = 0; last < 2; last++) {
            cost.is_first = first;
            cost.is_last = last;
            cost.n_layers = 0;
            hdt_stage_cost_time(&cost, &u->base_fwd_s[first][last], &u->base_bwd_s[first][last]);
        }
    }
    cost.is_first = cost.is_last = false;
    for (int r = 0; r < 3; r++) {
        cost.recompute = (enum hdt_stage_cost_recompute)r;
        cost.n_layers = 1;
        hdt_stage_cost_time(&cost, &fwd_s, &bwd_s);
        if (r == 0) {
            u->fwd_s = fwd_s - u->base_fwd_s[0][0];
            u->bwd_s = bwd_s - u->base_bwd_s[0][0];
        }
        u->again_s[r] = bwd_s - u->base_bwd_s[0][0] - u->bwd_s;
    }
}

static void unit_make(struct search *s, int kind, int tp, int batch, struct search_unit *u,
                      struct hdt_error *err)
{
    const struct search_kind *k = &s->kinds[kind];
    struct hdt_layout_group group = {
        .site_idx = k->site_idx, .nodes_idx = k->nodes_idx, .nodes = k->nodes, .tp = k->tps[tp]};
    struct hdt_layout_stage stage = {.layers = 1};
    struct hdt_layout_files files = *s->base;
    struct hdt_stage_cost_message message;

    files.layout.stages = (struct hdt_conf_list){.items = &stage, .n = 1};
    files.layout.replicas = (struct hdt_conf_list){.n = 0};
    files.layout.micro_batch = s->batches[batch];
    files.layout.chunks = 1;
    files.n_stages = files.n_replicas = 1;
    files.groups = &group;
    u->is_made = true;
    if (hdt_layout_part_init(&files, s->constants, &s->model, 0, 0, &u->part, err) != HDT_OK) {
        return;
    }
    /* The part stays where it is: what points into it may. */
    u->is_known = true;
    unit_times(&u->part.cost, u);
    hdt_stage_cost_message(&u->part.cost, &message);
    u->message_bytes = message.bytes * k->tps[tp];
}

const struct search_unit *hdt_seek_unit_get(struct search *s, int kind, int tp, int batch)
{
    struct search_unit *u = &s->units[(kind * SEARCH_MAX_TPS + tp) * SEARCH_MAX_BATCHES + batch];

    if (!u->is_made) {
        unit_make(s, kind, tp, batch, u, NULL);
    }
    return u->is_known ? u : NULL;
}

enum hdt_status hdt_seek_unit_check(struct search *s, int kind, struct hdt_error *err)
{
    struct search_unit *u = &s->units[kind * SEARCH_MAX_TPS * SEARCH_MAX_BATCHES];

    unit_make(s, kind, 0, 0, u, err);
    return u->is_known ? HDT_OK : HDT_EINVAL;
}

const struct search_unit *hdt_seek_unit_of(struct search *s, const struct search_cand *c,
                                           int class_idx, int stage)
{
    struct search_cell cell = c->cells[class_idx][stage];

    return hdt_seek_unit_get(s, cell.kind, cell.tp, c->classes[class_idx].batch);
}

/* ---- stages ---- */

void hdt_seek_stage_time(struct search *s, const struct search_cand *c, int class_idx, int stage,
                         double *fwd_s, double *bwd_s)
{
    const struct search_unit *u = hdt_seek_unit_of(s, c, class_idx, stage);
    int first = stage == 0, last = stage + 1 == c->n_stages;
    double n = c->layers[stage];

    *fwd_s = u->base_fwd_s[first][last] + n * u->fwd_s;
    *bwd_s = u->base_bwd_s[first][last] + n * (u->bwd_s + u->again_s[c->recompute[stage]]);
}

void hdt_seek_stage_cost(struct search *s, const struct search_cand *c, int class_idx, int stage,
                         struct hdt_stage_cost *cost)
{
    int n_replicas = 0;

    for (int i = 0; i < c->n_classes; i++) {
        n_replicas += c->classes[i].n;
    }
    *cost = hdt_seek_unit_of(s, c, class_idx, stage)->part.cost;
    cost->n_layers = c->layers[stage];
    cost->is_first = stage == 0;
    cost->is_last = stage + 1 == c->n_stages;
    cost->recompute = (enum hdt_stage_cost_recompute)c->recompute[stage];
    cost->optimizer.n_shards = c->sharded ? n_replicas : 1;
    cost->optimizer.on_host = c->offload[stage] & HDT_LAYOUT_OFFLOAD_OPTIMIZER;
    cost->activations_on_host = c->offload[stage] & HDT_LAYOUT_OFFLOAD_ACTIVATIONS;
}

/* Micro-batches more that cover the round trips of the edges behind a stage: no fewer than the
 * simulator takes. */
static int64_t wan_warmup(struct search *s, const struct search_cand *c, int class_idx, int stage)
{
    double slowest_s = 0;
    int64_t n = 0;

    for (int t = 0; t < c->n_stages; t++) {
        double fwd_s, bwd_s;

        hdt_seek_stage_time(s, c, class_idx, t, &fwd_s, &bwd_s);
        slowest_s = search_max(slowest_s, fwd_s + bwd_s);
    }
    for (int t = stage; t + 1 < c->n_stages; t++) {
        struct search_way way;

        hdt_seek_way_find(s, c, class_idx, t, t + 1,
                          hdt_seek_unit_of(s, c, class_idx, t)->message_bytes, &way);
        n += (int64_t)ceil(2 * way.latency_s / slowest_s);
    }
    return n;
}

/* Chunks in flight, as micro-batches of a whole stage: those of the warm-up, and another round, as
 * chunks do not all have most at one time. A little more than the schedule keeps. */
static int64_t interleaved_slots(const struct search_cand *c, int stage)
{
    int64_t n = c->n_stages, chunks = 2 * (n - stage - 1) + n * c->chunks;

    return (chunks + c->chunks - 1) / c->chunks;
}

int hdt_seek_in_flight(struct search *s, const struct search_cand *c, int class_idx, int stage,
                       int64_t n_mb)
{
    int64_t n = c->n_stages - stage;

    if (c->schedule == HDT_SCHEDULE_GPIPE) {
        n = n_mb;
    } else if (c->schedule == HDT_SCHEDULE_ZB_H1) {
        n = c->n_stages;
    } else if (c->schedule == HDT_SCHEDULE_ZB_MEM) {
        n = 2 * c->n_stages - 1;
    } else if (c->schedule == HDT_SCHEDULE_WAN) {
        n += wan_warmup(s, c, class_idx, stage);
    } else if (c->schedule == HDT_SCHEDULE_INTERLEAVED) {
        n = interleaved_slots(c, stage);
    }
    return (int)(n < n_mb ? n : n_mb);
}

static int64_t most_mb(const struct search_class *cl)
{
    return cl->n_mb + (cl->n_more > 0);
}

/* Keep the least shortage: what is nearest to fitting says what would help. */
static void shortage_note(struct search *s, const struct search_cand *c, int class_idx, int stage,
                          double bytes, double has, bool on_host)
{
    if (s->shortage.bytes == 0 || bytes - has < s->shortage.bytes - s->shortage.has_bytes) {
        s->shortage = (struct search_short){.bytes = bytes,
                                            .has_bytes = has,
                                            .kind = c->cells[class_idx][stage].kind,
                                            .stage = stage,
                                            .layers = c->layers[stage],
                                            .on_host = on_host,
                                            .is_first = stage == 0,
                                            .is_last = stage + 1 == c->n_stages};
    }
}

static bool host_is_known(const struct hdt_cluster_file_host *h, unsigned offload)
{
    return !isnan(h->gb) && !isnan(h->gb_per_s) &&
           !(offload & HDT_LAYOUT_OFFLOAD_OPTIMIZER && isnan(h->memory_gb_per_s));
}

static bool host_fits(struct search *s, const struct search_cand *c, int class_idx, int stage,
                      double bytes)
{
    const struct search_kind *k = &s->kinds[c->cells[class_idx][stage].kind];
    const struct hdt_cluster_file_host *h = &k->nodes->host;
    int64_t tp = k->tps[c->cells[class_idx][stage].tp], per = k->nodes->devices / tp;
    int64_t n = c->classes[class_idx].n < per ? c->classes[class_idx].n : per;

    if (!host_is_known(h, c->offload[stage])) {
        return false;
    }
    if ((double)(n * tp) * bytes > h->gb * GIB) {
        shortage_note(s, c, class_idx, stage, (double)(n * tp) * bytes, h->gb * GIB, true);
        return false;
    }
    return true;
}

bool hdt_seek_stage_fits(struct search *s, const struct search_cand *c, int class_idx, int stage)
{
    const struct search_kind *k = &s->kinds[c->cells[class_idx][stage].kind];
    struct hdt_stage_cost cost;
    struct hdt_stage_cost_memory m;

    hdt_seek_stage_cost(s, c, class_idx, stage, &cost);
    hdt_stage_cost_memory(
        &cost, hdt_seek_in_flight(s, c, class_idx, stage, most_mb(&c->classes[class_idx])), &m);
    if (m.total > k->memory_bytes) {
        shortage_note(s, c, class_idx, stage, m.total, k->memory_bytes, false);
        return false;
    }
    return c->offload[stage] == 0 ||
           host_fits(s, c, class_idx, stage, m.host_optimizer + m.host_activations);
}

/* The most that the device has room for; then the host. */
int hdt_seek_stage_most(struct search *s, const struct search_cand *c, int class_idx, int stage)
{
    struct search_cell cell = c->cells[class_idx][stage];
    const struct search_kind *k = &s->kinds[cell.kind];
    int n_in_flight = hdt_seek_in_flight(s, c, class_idx, stage, most_mb(&c->classes[class_idx]));
    int64_t tp = k->tps[cell.tp], per = k->nodes->devices / tp;
    double groups = (double)(c->classes[class_idx].n < per ? c->classes[class_idx].n : per);
    struct hdt_stage_cost cost;
    struct hdt_stage_cost_memory one, two;
    double most;

    hdt_seek_stage_cost(s, c, class_idx, stage, &cost);
    cost.n_layers = 1;
    hdt_stage_cost_memory(&cost, n_in_flight, &one);
    cost.n_layers = 2;
    hdt_stage_cost_memory(&cost, n_in_flight, &two);
    most = floor((k->memory_bytes - one.total) / (two.total - one.total) + 1e-9) + 1;
    if (one.total > k->memory_bytes) {
        struct search_cand single = *c;

        single.layers[stage] = 1;
        hdt_seek_stage_fits(s, &single, class_idx, stage); /* notes what is short */
        return 0;
    }
    if (c->offload[stage] != HDT_LAYOUT_OFFLOAD_NONE) {
        double first = one.host_optimizer + one.host_activations;
        double more = two.host_optimizer + two.host_activations - first;
        double has = k->nodes->host.gb * GIB / (groups * (double)tp);

        if (!host_is_known(&k->nodes->host, c->offload[stage]) || first > has) {
            return 0;
        }
        most = more > 0 ? search_min(most, floor((has - first) / more + 1e-9) + 1) : most;
    }
    return most < 1e6 ? (int)most : 1000000;
}

bool hdt_seek_fits(struct search *s, const struct search_cand *c)
{
    for (int i = 0; i < c->n_classes; i++) {
        for (int t = 0; t < c->n_stages; t++) {
            if (!hdt_seek_stage_fits(s, c, i, t)) {
                return false;
            }
        }
    }
    return true;
}

/* As layout.c places groups: in order, each node filled before the next one. */
bool hdt_seek_places(const struct search *s, const struct search_cand *c)
{
    int64_t node[SEARCH_MAX_KINDS] = {0}, used[SEARCH_MAX_KINDS] = {0};

    for (int t = 0; t < c->n_stages; t++) {
        for (int i = 0; i < c->n_classes; i++) {
            int k = c->cells[i][t].kind;
            const struct search_kind *kind = &s->kinds[k];
            int64_t tp = kind->tps[c->cells[i][t].tp], n = c->classes[i].n;
            int64_t here = (kind->nodes->devices - used[k]) / tp, per = kind->nodes->devices / tp;

            if (n <= here) {
                used[k] += n * tp;
            } else {
                n -= here;
                node[k] += 1 + (n - 1) / per;
                used[k] = ((n - 1) % per + 1) * tp;
            }
            if (node[k] >= kind->nodes->count) {
                return false;
            }
        }
    }
    return true;
}

static bool pin_holds(const struct search *s, const struct search_cand *c,
                      const struct hdt_layout_pin *pin)
{
    int64_t first = 0;

    for (int t = 0; t < c->n_stages; t++) {
        bool is_bound = (pin->parts & HDT_LAYOUT_PIN_EMBED && t == 0) ||
                        (pin->parts & HDT_LAYOUT_PIN_HEAD && t + 1 == c->n_stages) ||
                        (pin->parts & HDT_LAYOUT_PIN_LAYERS && first <= pin->last_layer &&
                         first + c->layers[t] - 1 >= pin->first_layer);

        for (int i = 0; i < c->n_classes && is_bound; i++) {
            if (s->kinds[c->cells[i][t].kind].site_idx != pin->site_idx) {
                return false;
            }
        }
        first += c->layers[t];
    }
    return true;
}

bool hdt_seek_pins_hold(const struct search *s, const struct search_cand *c)
{
    for (size_t i = 0; i < s->options->n_pins; i++) {
        if (!pin_holds(s, c, &s->options->pins[i])) {
            return false;
        }
    }
    return true;
}

/* ---- a pipeline ---- */

/* Micro-batches after which a pipeline is taken to have come to its pace. */
static int64_t played_mb(int n_stages, int64_t n_mb)
{
    int64_t n = 3 * (int64_t)n_stages + 8;

    return n < n_mb ? n : n_mb;
}

static int64_t warmup_of(const struct search_cand *c, const struct search_pipe *p, int stage,
                         double slowest_s)
{
    int64_t n = p->n_stages - 1 - stage;

    if (c->schedule == HDT_SCHEDULE_GPIPE) {
        return p->n_mb;
    }
    if (c->schedule == HDT_SCHEDULE_ZB_MEM) {
        n *= 2;
    }
    for (int t = stage; c->schedule == HDT_SCHEDULE_WAN && t + 1 < p->n_stages; t++) {
        n += (int64_t)ceil(2 * p->up_lat[t] / slowest_s);
    }
    return n < p->n_mb ? n : p->n_mb;
}

/* One stage goes on as far as what it waits for is there. */
struct walker {
    int64_t f, b; /* forwards and backwards done */
    double free_s, up_free_s, down_free_s;
};

static bool stage_advance(struct search_pipe *p, int t, int64_t n, struct walker *w, double *fwd_at,
                          double *bwd_at)
{
    struct walker *own = &w[t];
    double recv_s = t > 0 ? p->end_s : 0, take_s = t + 1 < p->n_stages ? p->end_s : 0;
    bool moved = false;

    for (;;) {
        bool is_fwd = own->f < n && own->f - own->b <= p->warmup[t];

        if (is_fwd) {
            double ready = t > 0 ? fwd_at[(t - 1) * n + own->f] : 0;

            if (t > 0 && w[t - 1].f <= own->f) {
                return moved;
            }
            own->free_s = search_max(own->free_s, ready) + recv_s + p->fwd_s[t] + take_s;
            own->up_free_s = search_max(own->up_free_s, own->free_s) + p->up_s[t];
            fwd_at[t * n + own->f++] = own->up_free_s + p->up_lat[t];
        } else if (own->b < n) {
            double ready = t + 1 < p->n_stages ? bwd_at[(t + 1) * n + own->b] : 0;

            if (t + 1 < p->n_stages && w[t + 1].b <= own->b) {
                return moved;
            }
            own->free_s = search_max(own->free_s, ready) + take_s + p->bwd_s[t] + recv_s;
            own->down_free_s =
                search_max(own->down_free_s, own->free_s) + (t > 0 ? p->down_s[t - 1] : 0);
            bwd_at[t * n + own->b++] = own->down_free_s + (t > 0 ? p->down_lat[t - 1] : 0);
        } else {
            return moved;
        }
        moved = true;
    }
}

/* Zero bubble: weights' halves fill what a pipeline waits for at its end. */
static double split_gain(const struct search_pipe *p)
{
    double gain = 0;

    for (int t = 1; t < p->n_stages; t++) {
        gain += SPLIT_GAIN * p->bwd_s[t];
    }
    return gain;
}

/* Fills done_s: of the micro-batches that are played and as many more at the pace of the last. */
static void pipe_play(struct search *s, const struct search_cand *c, struct search_pipe *p)
{
    int64_t n = played_mb(p->n_stages, p->n_mb), half = n - n / 3 - 1;
    size_t need = 2 * (size_t)n * (size_t)p->n_stages;
    struct walker w[SEARCH_MAX_STAGES];
    double *bwd_at, pace_s;
    double gain = hdt_schedule_is_split((enum hdt_schedule_kind)c->schedule) ? split_gain(p) : 0;
    bool moved = true;

    if (need > s->scratch_n) {
        s->scratch = hdt_realloc(s->scratch, need * sizeof(s->scratch[0]));
        s->scratch_n = need;
    }
    memset(w, 0, sizeof(w[0]) * (size_t)p->n_stages);
    bwd_at = s->scratch + need / 2;
    /* Forwards run down in one round, backwards up in the next. */
    while (moved) {
        moved = false;
        for (int t = 0; t < p->n_stages; t++) {
            moved = stage_advance(p, t, n, w, s->scratch, bwd_at) || moved;
        }
        for (int t = p->n_stages - 1; t-- > 0;) {
            moved = stage_advance(p, t, n, w, s->scratch, bwd_at) || moved;
        }
    }
    pace_s = n < p->n_mb ? (bwd_at[n - 1 - p->n_stages / 2] - bwd_at[half - p->n_stages / 2]) /
                               (double)(n - 1 - half)
                         : 0;
    for (int t = 0; t < p->n_stages; t++) {
        p->done_s[t] = w[t].free_s + pace_s * (double)(p->n_mb - n) - gain;
    }
}

/* ---- all of it ---- */

static double furthest_rtt(const struct search *s, const struct search_cand *c)
{
    double most = 0;
    size_t first = s->kinds[c->cells[0][0].kind].site_idx;

    for (int i = 0; i < c->n_classes; i++) {
        for (int t = 0; t < c->n_stages; t++) {
            size_t site = s->kinds[c->cells[i][t].kind].site_idx;
            struct hdt_cluster_file_path path;

            if (site != first) {
                path = *search_path(s, first, site);
                most = search_max(most, path.rtt_s);
            }
        }
    }
    return most;
}

static void pipe_fill(struct search *s, const struct search_cand *c, int class_idx,
                      struct search_pipe *p)
{
    double slowest_s = 0;

    p->n_stages = c->n_stages;
    p->n_mb = most_mb(&c->classes[class_idx]);
    p->end_s = s->constants->message_s;
    for (int t = 0; t < c->n_stages; t++) {
        hdt_seek_stage_time(s, c, class_idx, t, &p->fwd_s[t], &p->bwd_s[t]);
        slowest_s = search_max(slowest_s, p->fwd_s[t] + p->bwd_s[t]);
        p->up_s[t] = p->down_s[t] = p->up_lat[t] = p->down_lat[t] = 0;
        if (t + 1 < c->n_stages) {
            double up = hdt_seek_unit_of(s, c, class_idx, t)->message_bytes;
            double down = hdt_seek_unit_of(s, c, class_idx, t + 1)->message_bytes;
            struct search_way way;

            hdt_seek_way_find(s, c, class_idx, t, t + 1, up, &way);
            p->up_s[t] = up / way.bytes_per_s;
            p->up_lat[t] = way.latency_s;
            hdt_seek_way_find(s, c, class_idx, t + 1, t, down, &way);
            p->down_s[t] = down / way.bytes_per_s;
            p->down_lat[t] = way.latency_s;
        }
    }
    for (int t = 0; t < c->n_stages; t++) {
        p->warmup[t] = warmup_of(c, p, t, slowest_s);
    }
}

/* What leaves the device and comes back for each micro-batch, where activations do; a computation
 * goes on beside it. */
static void pipe_offload(struct search *s, const struct search_cand *c, int class_idx,
                         struct search_pipe *p)
{
    for (int t = 0; t < c->n_stages; t++) {
        const struct search_kind *k = &s->kinds[c->cells[class_idx][t].kind];
        int64_t n = hdt_seek_in_flight(s, c, class_idx, t, p->n_mb);
        struct hdt_stage_cost cost;
        struct hdt_stage_cost_memory m;
        double move_s;

        if (!(c->offload[t] & HDT_LAYOUT_OFFLOAD_ACTIVATIONS) || n <= HDT_STAGE_COST_HOST_SLOTS) {
            continue;
        }
        hdt_seek_stage_cost(s, c, class_idx, t, &cost);
        hdt_stage_cost_memory(&cost, n, &m);
        move_s = m.host_activations / (double)n / (k->nodes->host.gb_per_s * 1e9);
        if (move_s > p->fwd_s[t] + p->bwd_s[t]) {
            double more = move_s - p->fwd_s[t] - p->bwd_s[t];

            p->fwd_s[t] += more / 3;
            p->bwd_s[t] += more * 2 / 3;
        }
    }
}

/* The least that the class takes: each rank its work, what must come before it and after it. */
static double pipe_bound(const struct search_cand *c, const struct search_class *cl,
                         const struct search_pipe *p)
{
    double most = 0, before = 0, after = 0;
    bool is_split = hdt_schedule_is_split((enum hdt_schedule_kind)c->schedule);

    for (int t = 0; t < p->n_stages; t++) {
        double ends = (t > 0 ? 2 : 0) + (t + 1 < p->n_stages ? 2 : 0);
        double own = (double)most_mb(cl) * (p->fwd_s[t] + p->bwd_s[t] + ends * p->end_s);

        most = search_max(most, before + own + after);
        before += (p->fwd_s[t] + p->end_s + p->up_lat[t]) / (double)c->chunks;
        after +=
            ((is_split ? 0.3 : 1) * p->bwd_s[t] + p->end_s + p->down_lat[t]) / (double)c->chunks;
    }
    return most;
}

/* The optimizer's step of a stage, with what goes to its host and back. */
static double step_s_of(struct search *s, const struct search_cand *c, int class_idx, int stage)
{
    const struct search_kind *k = &s->kinds[c->cells[class_idx][stage].kind];
    struct hdt_stage_cost cost;
    int64_t per = k->nodes->devices / k->tps[c->cells[class_idx][stage].tp];
    double n, own_s;

    hdt_seek_stage_cost(s, c, class_idx, stage, &cost);
    own_s = hdt_stage_cost_step_s(&cost);
    if (!cost.optimizer.on_host) {
        return own_s;
    }
    n = (double)(c->classes[class_idx].n < per ? c->classes[class_idx].n : per) * cost.tp;
    return own_s + hdt_stage_cost_down_bytes(&cost) / (k->nodes->host.gb_per_s * 1e9) +
           search_max(hdt_stage_cost_up_bytes(&cost) / (k->nodes->host.gb_per_s * 1e9),
                      n * hdt_stage_cost_host_step_bytes(&cost) /
                          (k->nodes->host.memory_gb_per_s * 1e9));
}

/* What a stage's last backward is cut into pieces of: where it is split, of its second half. */
static double last_s_of(struct search *s, const struct search_cand *c, int class_idx, int stage)
{
    double bwd_s = s->pipes[class_idx].bwd_s[stage];

    return hdt_schedule_is_split((enum hdt_schedule_kind)c->schedule)
               ? bwd_s * (1 - hdt_seek_unit_of(s, c, class_idx, stage)->part.input_share)
               : bwd_s;
}

/* When the gradients of a stage are added. A bucket goes when the last class has come to its piece
 * of the last backward: a class whose last backward is short begins with its pieces late. */
static double synced_s(struct search *s, const struct search_cand *c, int stage)
{
    struct hdt_stage_cost cost;
    double sync_s, n, first_s = 0, end_s = 0;

    hdt_seek_stage_cost(s, c, 0, stage, &cost);
    sync_s = hdt_seek_all_reduce_s(s, c, stage, hdt_stage_cost_grad_bytes(&cost), false) *
             (c->sharded ? 0.5 : 1);
    n = c->sync == HDT_LAYOUT_SYNC_AFTER
            ? 1
            : search_max(1, ceil(hdt_stage_cost_grad_bytes(&cost) / (double)s->bucket));
    for (int i = 0; i < c->n_classes; i++) {
        double own_s = s->pipes[i].done_s[stage];

        end_s = search_max(end_s, own_s);
        first_s = search_max(first_s, own_s - last_s_of(s, c, i, stage) * (n - 1) / n);
    }
    return search_max(end_s + sync_s / n, first_s + sync_s);
}

/* What the step is longer by where replicas gather weights; before_s: of a step that passes before
 * the stage has something to do, fwd_s: its first forward. */
static double gather_s_of(struct search *s, const struct search_cand *c, int stage, double before_s,
                          double fwd_s)
{
    struct hdt_stage_cost cost;
    double gather_s, buckets;

    if (!c->sharded) {
        return 0;
    }
    hdt_seek_stage_cost(s, c, 0, stage, &cost);
    gather_s = 0.5 * hdt_seek_all_reduce_s(s, c, stage, hdt_stage_cost_gather_bytes(&cost), true);
    if (c->sync != HDT_LAYOUT_SYNC_BOTH) {
        return gather_s;
    }
    if (stage > 0) {
        return search_max(0, gather_s - before_s);
    }
    buckets = search_max(1, ceil(hdt_stage_cost_gather_bytes(&cost) / (double)s->bucket));
    return search_max(gather_s / buckets, gather_s - fwd_s * (buckets - 1) / buckets);
}

struct legs_busy {
    const struct hdt_cluster_file_wan *first;
    double *busy_s; /* of legs, there and back */
    double most_s;
};

static void legs_busy_add(void *user, const struct hdt_cluster_file_path *path, double n,
                          double bytes, double wire_bytes)
{
    struct legs_busy *legs = user;

    for (size_t l = 0; l < path->n_legs; l++) {
        double *busy_s = &legs->busy_s[2 * (path->legs[l] - legs->first) + path->reversed[l]];

        *busy_s += n * wire_bytes / hdt_cluster_file_leg_bytes_per_s(path->legs[l], bytes);
        legs->most_s = search_max(legs->most_s, *busy_s);
    }
}

/* Legs carry what all replicas send over them; how long the busiest one takes. */
static double wan_busy_s(struct search *s, const struct search_cand *c)
{
    struct legs_busy legs = {.first = s->base->cluster.wan.items, .busy_s = s->leg_busy_s};

    memset(s->leg_busy_s, 0, 2 * s->base->cluster.wan.n * sizeof(s->leg_busy_s[0]));
    hdt_seek_crossings(s, c, legs_busy_add, &legs);
    return legs.most_s;
}

bool hdt_seek_estimate_pipes(struct search *s, const struct search_cand *c, double most_s)
{
    s->bucket = hdt_seek_bucket(s, c);
    s->wan_s = wan_busy_s(s, c);
    s->rtt_s = furthest_rtt(s, c);
    if (s->wan_s > most_s) {
        return false;
    }
    for (int i = 0; i < c->n_classes; i++) {
        struct search_pipe *p = &s->pipes[i];

        pipe_fill(s, c, i, p);
        s->pipe_bounds[i] = pipe_bound(c, &c->classes[i], p);
        if (s->pipe_bounds[i] > most_s) {
            return false;
        }
    }
    for (int i = 0; i < c->n_classes; i++) {
        pipe_offload(s, c, i, &s->pipes[i]);
        pipe_play(s, c, &s->pipes[i]);
    }
    return true;
}

double hdt_seek_wan_least(struct search *s, struct search_cand *c)
{
    double sync_s = 0, busy_s;
    int n_layers = (int)s->base->model.L;

    for (int t = 0; t < c->n_stages; t++) {
        struct hdt_stage_cost cost;

        c->layers[t] = (int16_t)(n_layers / c->n_stages + (t < n_layers % c->n_stages));
        hdt_seek_stage_cost(s, c, 0, t, &cost);
        sync_s += hdt_seek_wan_sync_s(s, c, t, hdt_stage_cost_grad_bytes(&cost));
    }
    busy_s = wan_busy_s(s, c);
    return search_max(busy_s, sync_s);
}

void hdt_seek_estimate_step(struct search *s, struct search_cand *c)
{
    double step_s = 0, gather_s = 0, done_s = 0, bound_s = 0, bwd_s = 0, played_s = 0, legs_s = 0;
    double before_s = 0;

    for (int t = 0; t < c->n_stages; t++) {
        struct hdt_stage_cost cost;
        double end_s = 0, slowest = 0, least_fwd = INFINITY, leg_s;

        for (int i = 0; i < c->n_classes; i++) {
            end_s = search_max(end_s, s->pipes[i].done_s[t]);
            slowest = search_max(slowest, s->pipes[i].bwd_s[t]);
            least_fwd = search_min(least_fwd, s->pipes[i].fwd_s[t]);
            step_s = search_max(step_s, step_s_of(s, c, i, t));
        }
        hdt_seek_stage_cost(s, c, 0, t, &cost);
        leg_s =
            hdt_seek_wan_sync_s(s, c, t, hdt_stage_cost_grad_bytes(&cost)) * (c->sharded ? 0.5 : 1);
        legs_s += leg_s;
        done_s = search_max(done_s, synced_s(s, c, t));
        gather_s = search_max(gather_s, gather_s_of(s, c, t, before_s, least_fwd));
        before_s += least_fwd;
        played_s = search_max(played_s, end_s);
        bwd_s = search_max(bwd_s, c->sync != HDT_LAYOUT_SYNC_AFTER ? slowest : 0);
        if (c->sharded) {
            legs_s += 0.5 * hdt_seek_wan_sync_s(s, c, t, hdt_stage_cost_gather_bytes(&cost));
        }
    }
    for (int i = 0; i < c->n_classes; i++) {
        bound_s = search_max(bound_s, s->pipe_bounds[i]);
    }
    done_s = search_max(done_s, played_s - bwd_s + legs_s);
    s->n_estimated++;
    c->bound_s = search_max(bound_s, s->wan_s) + s->rtt_s + (c->sharded ? 0 : step_s * 0.5);
    c->estimate_s =
        search_max(search_max(done_s, s->wan_s) + s->rtt_s + step_s + gather_s, c->bound_s);
    hdt_seek_move(s, c);
    c->score = hdt_seek_score(s, c, c->estimate_s);
}

void hdt_seek_estimate(struct search *s, struct search_cand *c)
{
    hdt_seek_estimate_pipes(s, c, INFINITY);
    hdt_seek_estimate_step(s, c);
}
