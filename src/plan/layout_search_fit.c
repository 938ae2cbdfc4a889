/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Layers, relief and micro-batches for a candidate whose stages have their places. The pace of a
 * pipeline is that of its slowest stage: for a pace that is asked for, each stage can be said to
 * hold so many layers, with the relief that lets it hold most; the quickest pace at which all
 * stages hold the model is found by halving. Replicas get micro-batches by their pace.
 */
#include "src/base/buf.h"
#include "src/plan/layout_search_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a stage may do to save memory, quickest first. */
struct relief {
    uint8_t recompute, offload;
};
static const struct relief reliefs[] = {
    {HDT_LAYOUT_KEEP, HDT_LAYOUT_OFFLOAD_NONE},
    {HDT_LAYOUT_KEEP, HDT_LAYOUT_OFFLOAD_ACTIVATIONS},
    {HDT_LAYOUT_SELECTIVE, HDT_LAYOUT_OFFLOAD_NONE},
    {HDT_LAYOUT_KEEP, HDT_LAYOUT_OFFLOAD_OPTIMIZER},
    {HDT_LAYOUT_SELECTIVE, HDT_LAYOUT_OFFLOAD_ACTIVATIONS},
    {HDT_LAYOUT_FULL, HDT_LAYOUT_OFFLOAD_NONE},
    {HDT_LAYOUT_KEEP, HDT_LAYOUT_OFFLOAD_BOTH},
    {HDT_LAYOUT_SELECTIVE, HDT_LAYOUT_OFFLOAD_OPTIMIZER},
    {HDT_LAYOUT_FULL, HDT_LAYOUT_OFFLOAD_ACTIVATIONS},
    {HDT_LAYOUT_FULL, HDT_LAYOUT_OFFLOAD_OPTIMIZER},
    {HDT_LAYOUT_SELECTIVE, HDT_LAYOUT_OFFLOAD_BOTH},
    {HDT_LAYOUT_FULL, HDT_LAYOUT_OFFLOAD_BOTH},
};
#define N_RELIEFS (int)(sizeof(reliefs) / sizeof(reliefs[0]))

static bool is_allowed(const struct search *s, const struct search_cand *c, const struct relief *r)
{
    const struct hdt_layout *l = &s->base->layout;
    unsigned keep = s->options->keep;
    bool is_split = hdt_schedule_is_split((enum hdt_schedule_kind)c->schedule);

    if (s->space & HDT_LAYOUT_SPACE_NO_RELIEF) {
        return r->recompute == HDT_LAYOUT_KEEP && r->offload == HDT_LAYOUT_OFFLOAD_NONE;
    }
    return !(keep & HDT_LAYOUT_KEEP_RECOMPUTE && r->recompute != l->recompute) &&
           !(keep & HDT_LAYOUT_KEEP_OFFLOAD && r->offload != l->offload) &&
           !(is_split &&
             (r->recompute != HDT_LAYOUT_KEEP || r->offload & HDT_LAYOUT_OFFLOAD_ACTIVATIONS)) &&
           !(r->recompute == HDT_LAYOUT_SELECTIVE && s->model.scores_kept <= 0 &&
             !(keep & HDT_LAYOUT_KEEP_RECOMPUTE));
}

static bool all_fit(struct search *s, const struct search_cand *c, int stage)
{
    for (int i = 0; i < c->n_classes; i++) {
        if (!hdt_seek_stage_fits(s, c, i, stage)) {
            return false;
        }
    }
    return true;
}

/* Does moving activations take longer than computing? Then recomputing may be quicker. */
static double stage_seconds(struct search *s, const struct search_cand *c, int stage)
{
    double most = 0;

    for (int i = 0; i < c->n_classes; i++) {
        const struct search_kind *k = &s->kinds[c->cells[i][stage].kind];
        double fwd_s, bwd_s, move_s = 0;

        hdt_seek_stage_time(s, c, i, stage, &fwd_s, &bwd_s);
        if (c->offload[stage] & HDT_LAYOUT_OFFLOAD_ACTIVATIONS && k->nodes->host.gb_per_s > 0) {
            struct hdt_stage_cost cost =
                hdt_seek_unit_get(s, c->cells[i][stage].kind, c->cells[i][stage].tp,
                                  c->classes[i].batch)
                    ->part.cost;
            struct hdt_stage_cost_memory one, none;

            cost.n_layers = c->layers[stage];
            cost.recompute = (enum hdt_stage_cost_recompute)c->recompute[stage];
            cost.is_first = stage == 0;
            cost.is_last = stage + 1 == c->n_stages;
            hdt_stage_cost_memory(&cost, 1, &one);
            hdt_stage_cost_memory(&cost, 0, &none);
            move_s = (one.activations - none.activations) / (k->nodes->host.gb_per_s * 1e9);
        }
        most = search_max(most, search_max(fwd_s + bwd_s, move_s) +
                                    (c->offload[stage] & HDT_LAYOUT_OFFLOAD_OPTIMIZER ? 1e-4 : 0));
    }
    return most;
}

/* The quickest relief with which a stage fits. */
static bool stage_relieve(struct search *s, struct search_cand *c, int stage)
{
    double least = INFINITY;
    int found = -1;

    for (int r = 0; r < N_RELIEFS; r++) {
        double seconds;

        if (!is_allowed(s, c, &reliefs[r])) {
            continue;
        }
        c->recompute[stage] = reliefs[r].recompute;
        c->offload[stage] = reliefs[r].offload;
        if (!all_fit(s, c, stage)) {
            continue;
        }
        seconds = stage_seconds(s, c, stage);
        if (seconds < least) {
            least = seconds;
            found = r;
        }
        if (reliefs[r].recompute == HDT_LAYOUT_KEEP &&
            reliefs[r].offload == HDT_LAYOUT_OFFLOAD_NONE) {
            return true;
        }
    }
    if (found >= 0) {
        c->recompute[stage] = reliefs[found].recompute;
        c->offload[stage] = reliefs[found].offload;
    }
    return found >= 0;
}

/* One relief for all stages: the quickest with which all fit. */
static bool alike_relieve(struct search *s, struct search_cand *c)
{
    double least = INFINITY;
    int found = -1;

    for (int r = 0; r < N_RELIEFS; r++) {
        double slowest = 0;

        if (!is_allowed(s, c, &reliefs[r])) {
            continue;
        }
        memset(c->recompute, reliefs[r].recompute, sizeof(c->recompute));
        memset(c->offload, reliefs[r].offload, sizeof(c->offload));
        if (!hdt_seek_fits(s, c)) {
            continue;
        }
        for (int t = 0; t < c->n_stages; t++) {
            slowest = search_max(slowest, stage_seconds(s, c, t));
        }
        if (slowest < least) {
            least = slowest;
            found = r;
        }
    }
    if (found >= 0) {
        memset(c->recompute, reliefs[found].recompute, sizeof(c->recompute));
        memset(c->offload, reliefs[found].offload, sizeof(c->offload));
    }
    return found >= 0;
}

bool hdt_seek_relieve(struct search *s, struct search_cand *c)
{
    if (s->space & HDT_LAYOUT_SPACE_ONE_RELIEF) {
        return alike_relieve(s, c);
    }
    for (int t = 0; t < c->n_stages; t++) {
        if (!stage_relieve(s, c, t)) {
            return false;
        }
    }
    return true;
}

/* ---- micro-batches ---- */

/* Seconds that a class takes for a micro-batch at its pace, and to fill and drain. */
static void class_pace(struct search *s, const struct search_cand *c, int class_idx, double *pace_s,
                       double *fill_s)
{
    double end_s = s->constants->message_s;

    *pace_s = *fill_s = 0;
    for (int t = 0; t < c->n_stages; t++) {
        double fwd_s, bwd_s, own;

        hdt_seek_stage_time(s, c, class_idx, t, &fwd_s, &bwd_s);
        own = fwd_s + bwd_s + end_s * ((t > 0 ? 2 : 0) + (t + 1 < c->n_stages ? 2 : 0));
        *pace_s = search_max(*pace_s, own);
        *fill_s += own;
    }
    *fill_s -= *pace_s;
}

static bool share_alike(struct search *s, struct search_cand *c)
{
    int64_t n = 0, one = s->batches[c->classes[0].batch], all = s->base->layout.global_batch;

    for (int i = 0; i < c->n_classes; i++) {
        if (c->classes[i].batch != c->classes[0].batch) {
            return false;
        }
        n += c->classes[i].n;
    }
    if (all % (n * one) != 0 || all / (n * one) > 65536) {
        return false;
    }
    for (int i = 0; i < c->n_classes; i++) {
        c->classes[i].n_mb = all / (n * one);
        c->classes[i].n_more = 0;
    }
    return true;
}

/* Sequences that classes do in so many seconds. */
static int64_t done_in(const struct search *s, const struct search_cand *c, const double *pace_s,
                       const double *fill_s, double seconds)
{
    int64_t sum = 0;

    for (int i = 0; i < c->n_classes; i++) {
        double n = floor((seconds - fill_s[i]) / pace_s[i] + 1e-9);

        n = search_min(search_max(n, 0), 65535);
        sum += (int64_t)n * c->classes[i].n * s->batches[c->classes[i].batch];
    }
    return sum;
}

/* What is left of the global batch at a pace goes to single replicas, quickest classes first. Sizes
 * are divisors of one another or the batch: the smallest takes the rest. */
static bool rest_share(struct search *s, struct search_cand *c, const double *pace_s,
                       const double *fill_s, int64_t left)
{
    bool is_used[SEARCH_MAX_CLASSES] = {false};

    for (int round = 0; round < c->n_classes && left > 0; round++) {
        double least = INFINITY;
        int at = -1;
        int64_t n, one;

        for (int i = 0; i < c->n_classes; i++) {
            double end = fill_s[i] + pace_s[i] * (double)(c->classes[i].n_mb + 1);

            if (!is_used[i] && s->batches[c->classes[i].batch] <= left && end < least) {
                least = end;
                at = i;
            }
        }
        if (at < 0) {
            return false;
        }
        is_used[at] = true;
        one = s->batches[c->classes[at].batch];
        n = left / one < c->classes[at].n ? left / one : c->classes[at].n;
        left -= n * one;
        if (n == c->classes[at].n) {
            c->classes[at].n_mb++;
        } else {
            c->classes[at].n_more = (int)n;
        }
    }
    return left == 0;
}

static bool share_by_pace(struct search *s, struct search_cand *c)
{
    double pace_s[SEARCH_MAX_CLASSES], fill_s[SEARCH_MAX_CLASSES], low = 0, high = 0;
    int64_t all = s->base->layout.global_batch, left = all;

    for (int i = 0; i < c->n_classes; i++) {
        class_pace(s, c, i, &pace_s[i], &fill_s[i]);
        high = search_max(high, fill_s[i] + pace_s[i] * (double)(all + 1));
    }
    for (int i = 0; i < 60; i++) {
        double mid = (low + high) / 2;

        if (done_in(s, c, pace_s, fill_s, mid) <= all) {
            low = mid;
        } else {
            high = mid;
        }
    }
    for (int i = 0; i < c->n_classes; i++) {
        double n = floor((low - fill_s[i]) / pace_s[i] + 1e-9);

        c->classes[i].n_mb = (int64_t)search_min(search_max(n, 0), 65535);
        c->classes[i].n_more = 0;
        left -= c->classes[i].n_mb * c->classes[i].n * s->batches[c->classes[i].batch];
    }
    if (left < 0 || !rest_share(s, c, pace_s, fill_s, left)) {
        return false;
    }
    for (int i = 0; i < c->n_classes; i++) {
        if (c->classes[i].n_mb < 1) {
            return false;
        }
    }
    return true;
}

bool hdt_seek_share(struct search *s, struct search_cand *c)
{
    for (int i = 0; i < c->n_classes; i++) {
        for (int t = 0; t < c->n_stages; t++) {
            if (!hdt_seek_unit_get(s, c->cells[i][t].kind, c->cells[i][t].tp,
                                   c->classes[i].batch)) {
                return false;
            }
        }
    }
    return s->space & HDT_LAYOUT_SPACE_ALIKE ? share_alike(s, c) : share_by_pace(s, c);
}

/* ---- layers ---- */

/* How much slower a class is than the others, so that paces can be compared. */
static void scales_fill(struct search *s, const struct search_cand *c, double *scale)
{
    double first = 0;

    for (int i = 0; i < c->n_classes; i++) {
        double rate = 0;

        for (int t = 0; t < c->n_stages; t++) {
            const struct search_unit *u =
                hdt_seek_unit_get(s, c->cells[i][t].kind, c->cells[i][t].tp, c->classes[i].batch);
            rate += 1 / (u->fwd_s + u->bwd_s);
        }
        scale[i] = 1 / rate;
        first = i == 0 ? scale[0] : first;
        scale[i] /= first;
    }
}

static double scaled_time(struct search *s, const struct search_cand *c, const double *scale,
                          int stage)
{
    double most = 0, end_s = s->constants->message_s *
                             ((stage > 0 ? 2 : 0) + (stage + 1 < c->n_stages ? 2 : 0));

    for (int i = 0; i < c->n_classes; i++) {
        double fwd_s, bwd_s;

        hdt_seek_stage_time(s, c, i, stage, &fwd_s, &bwd_s);
        most = search_max(most, (fwd_s + bwd_s + end_s) / scale[i]);
    }
    return most;
}

/* Most layers of a stage that fit under each relief; -1: not asked yet. Memory is a line in layers
 * from the first one on. */
struct caps {
    int by_memory[SEARCH_MAX_STAGES][N_RELIEFS];
};

static int memory_layers(struct search *s, struct search_cand *c, int stage, int relief, int most)
{
    int16_t layers = c->layers[stage];
    int cap = most;

    c->recompute[stage] = reliefs[relief].recompute;
    c->offload[stage] = reliefs[relief].offload;
    for (int i = 0; i < c->n_classes && cap > 0; i++) {
        int own = hdt_seek_stage_most(s, c, i, stage);

        cap = own < cap ? own : cap;
    }
    c->layers[stage] = layers;
    return cap;
}

/* Most layers of a stage at a pace, by time alone. */
static int time_layers(struct search *s, const struct search_cand *c, const double *scale,
                       int stage, uint8_t recompute, double pace_s, int most)
{
    double end_s =
        s->constants->message_s * ((stage > 0 ? 2 : 0) + (stage + 1 < c->n_stages ? 2 : 0));
    int first = stage == 0, last = stage + 1 == c->n_stages;
    double least = most;

    for (int i = 0; i < c->n_classes; i++) {
        const struct search_unit *u = hdt_seek_unit_of(s, c, i, stage);
        double room =
            pace_s * scale[i] - end_s - u->base_fwd_s[first][last] - u->base_bwd_s[first][last];

        least =
            search_min(least, floor(room / (u->fwd_s + u->bwd_s + u->again_s[recompute]) + 1e-9));
    }
    return least > 0 ? (int)least : 0;
}

/* Most layers that a stage holds at a pace, with the relief that lets it. */
static int stage_holds(struct search *s, struct search_cand *c, struct caps *caps,
                       const double *scale, int stage, double pace_s, int most)
{
    int best = 0, at = -1;

    for (int r = 0; r < N_RELIEFS && best < most; r++) {
        int n, *cap = &caps->by_memory[stage][r];

        if (!is_allowed(s, c, &reliefs[r])) {
            continue;
        }
        n = time_layers(s, c, scale, stage, reliefs[r].recompute, pace_s, most);
        if (n <= best && at >= 0) {
            continue;
        }
        if (*cap < 0) {
            *cap = memory_layers(s, c, stage, r, most);
        }
        n = n < *cap ? n : *cap;
        if (n > best || at < 0) {
            best = n;
            at = r;
        }
    }
    if (at >= 0) {
        c->recompute[stage] = reliefs[at].recompute;
        c->offload[stage] = reliefs[at].offload;
    }
    c->layers[stage] = (int16_t)best;
    return best;
}

/* Stages hold more than the model: take layers from the slowest. */
static void layers_trim(struct search *s, struct search_cand *c, const double *scale, int more)
{
    while (more-- > 0) {
        double slowest = -1;
        int at = 0;

        for (int t = 0; t < c->n_stages; t++) {
            double seconds = c->layers[t] > 1 ? scaled_time(s, c, scale, t) : -1;

            if (seconds > slowest) {
                slowest = seconds;
                at = t;
            }
        }
        c->layers[at]--;
    }
}

static bool layers_balance(struct search *s, struct search_cand *c)
{
    double scale[SEARCH_MAX_CLASSES], low = 0, high = 0;
    int n_layers = (int)s->base->model.L, most = n_layers - c->n_stages + 1, sum = 0;
    struct search_cand held;
    struct caps caps;

    memset(&caps, -1, sizeof(caps));
    scales_fill(s, c, scale);
    for (int t = 0; t < c->n_stages; t++) {
        c->layers[t] = (int16_t)most;
        c->recompute[t] = HDT_LAYOUT_FULL;
        high = search_max(high, scaled_time(s, c, scale, t));
    }
    for (int t = 0; t < c->n_stages; t++) {
        int n = stage_holds(s, c, &caps, scale, t, high, most);

        sum += n;
        if (n < 1) {
            return false;
        }
    }
    if (sum < n_layers) {
        return false;
    }
    held = *c;
    for (int i = 0; i < 14; i++) {
        double mid = (low + high) / 2;
        bool has = true;

        sum = 0;
        for (int t = 0; t < c->n_stages && has; t++) {
            int n = stage_holds(s, c, &caps, scale, t, mid, most);

            sum += n;
            has = n >= 1;
        }
        if (has && sum >= n_layers) {
            high = mid;
            held = *c;
        } else {
            low = mid;
        }
    }
    *c = held;
    sum = 0;
    for (int t = 0; t < c->n_stages; t++) {
        sum += c->layers[t];
    }
    layers_trim(s, c, scale, sum - n_layers);
    return hdt_seek_relieve(s, c);
}

/* Where all replicas of a stage are; -1: at several sites. */
static int stage_site(const struct search *s, const struct search_cand *c, int stage)
{
    size_t site = s->kinds[c->cells[0][stage].kind].site_idx;

    for (int i = 1; i < c->n_classes; i++) {
        if (s->kinds[c->cells[i][stage].kind].site_idx != site) {
            return -1;
        }
    }
    return (int)site;
}

/* The site that a layer is pinned to; -1: none. */
static int layer_site(const struct search *s, int layer)
{
    for (size_t i = 0; i < s->options->n_pins; i++) {
        const struct hdt_layout_pin *pin = &s->options->pins[i];

        if (pin->parts & HDT_LAYOUT_PIN_LAYERS && layer >= pin->first_layer &&
            layer <= pin->last_layer) {
            return (int)pin->site_idx;
        }
    }
    return -1;
}

/* Borders between stages go as near to where they were as the pins of layers let them. can[t][l]:
 * stages from t on may hold the layers from l on. False: there is no such cut. */
static bool layers_pin(struct search *s, struct search_cand *c)
{
    int L = (int)s->base->model.L, n = c->n_stages, begin = 0, wanted = 0;
    bool *can, has;
    int *pinned;

    if (hdt_seek_pins_hold(s, c)) {
        return true;
    }
    can = hdt_calloc((size_t)(n + 1) * (size_t)(L + 1), sizeof(*can));
    pinned = hdt_calloc((size_t)L, sizeof(*pinned));
    for (int l = 0; l < L; l++) {
        pinned[l] = layer_site(s, l);
    }
    can[n * (L + 1) + L] = true;
    for (int t = n - 1; t >= 0; t--) {
        int site = stage_site(s, c, t);

        for (int l = L - 1; l >= 0; l--) {
            can[t * (L + 1) + l] = (pinned[l] < 0 || pinned[l] == site) &&
                                   (can[(t + 1) * (L + 1) + l + 1] || can[t * (L + 1) + l + 1]);
        }
    }
    has = can[0];
    for (int t = 0; t < n && has; t++) {
        int site = stage_site(s, c, t), end = -1;

        wanted += c->layers[t];
        for (int l = begin; l < L && (pinned[l] < 0 || pinned[l] == site); l++) {
            if (can[(t + 1) * (L + 1) + l + 1] &&
                (end < 0 || abs(l + 1 - wanted) < abs(end - wanted))) {
                end = l + 1;
            }
        }
        c->layers[t] = (int16_t)(end - begin);
        begin = end;
    }
    free(can);
    free(pinned);
    return has && hdt_seek_relieve(s, c);
}

static bool layers_even(struct search *s, struct search_cand *c)
{
    int n = (int)s->base->model.L;

    for (int t = 0; t < c->n_stages; t++) {
        c->layers[t] = (int16_t)(n / c->n_stages + (t >= c->n_stages - n % c->n_stages));
    }
    return hdt_seek_relieve(s, c);
}

bool hdt_seek_fill(struct search *s, struct search_cand *c)
{
    int64_t n = 0;

    /* A first guess of micro-batches, for what is in flight. */
    for (int i = 0; i < c->n_classes; i++) {
        n += (int64_t)c->classes[i].n * s->batches[c->classes[i].batch];
    }
    for (int i = 0; i < c->n_classes; i++) {
        c->classes[i].n_mb = s->base->layout.global_batch / n;
        c->classes[i].n_more = c->classes[i].n_mb < 1 ? 1 : 0;
        for (int t = 0; t < c->n_stages; t++) {
            if (!hdt_seek_unit_get(s, c->cells[i][t].kind, c->cells[i][t].tp,
                                   c->classes[i].batch)) {
                return false;
            }
        }
    }
    if (s->space & HDT_LAYOUT_SPACE_EVEN ? !layers_even(s, c)
                                         : !layers_balance(s, c) || !layers_pin(s, c)) {
        s->n_misfits++;
        return false;
    }
    return hdt_seek_share(s, c) && hdt_seek_fits(s, c);
}
