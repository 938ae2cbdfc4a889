/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Candidates for clusters of any size. *Teams* of kinds make pipelines: all kinds one team (unlike
 * stages), each kind its own (unlike replicas), sites, device types, and what lies between. A team
 * is cut into as many stages and replicas as it has room for; its kinds stand in the pipeline one
 * after another in every order, or one of them around the others. Degrees are tried by type.
 */
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/plan/layout_search_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Bounds above the best estimate times this are not looked into. */
#define SLACK 1.15

/* Calls between two looks at the clock, before candidates are simulated. */
#define CLOCK_EACH 32
/* Of a time limit, for writing down candidates. */
#define SEARCH_SHARE 0.7

/* ---- the pool ---- */

bool hdt_seek_goes_on(struct search *s)
{
    const struct hdt_layout_search_options *o = s->options;
    double elapsed_s;

    /* A first candidate is looked for however long it takes. */
    if (s->is_cut || (s->n_pool == 0 && s->n_simulated == 0) ||
        (s->n_asked++ % CLOCK_EACH != 0 && s->n_simulated == s->n_before)) {
        return !s->is_cut;
    }
    elapsed_s = (double)(hdt_clock_now_us() - s->start_us) / 1e6;
    /* What is left of the limit before anything has been simulated is for that. */
    if (o->time_limit_s > 0 &&
        elapsed_s > o->time_limit_s * (s->n_simulated == s->n_before ? SEARCH_SHARE : 1)) {
        s->is_cut = true;
    } else if (o->on_progress) {
        struct hdt_layout_progress p = {.n_estimated = s->n_estimated,
                                        .n_simulated = s->n_simulated,
                                        .best_step_s =
                                            s->best.step_s > 0 ? s->best.step_s : INFINITY,
                                        .elapsed_s = elapsed_s};

        s->is_cut = !o->on_progress(o->ctx, &p);
    }
    return !s->is_cut;
}

bool hdt_seek_is_same(const struct search_cand *a, const struct search_cand *b)
{
    size_t n = (size_t)a->n_stages;
    bool same =
        a->n_stages == b->n_stages && a->n_classes == b->n_classes && a->schedule == b->schedule &&
        a->chunks == b->chunks && a->sharded == b->sharded && a->sync == b->sync &&
        a->all_reduce == b->all_reduce && a->codec == b->codec && a->more_last == b->more_last &&
        memcmp(a->layers, b->layers, n * sizeof(a->layers[0])) == 0 &&
        memcmp(a->recompute, b->recompute, n) == 0 && memcmp(a->offload, b->offload, n) == 0;

    for (int i = 0; same && i < a->n_classes; i++) {
        const struct search_class *x = &a->classes[i], *y = &b->classes[i];

        same = x->n == y->n && x->batch == y->batch && x->n_mb == y->n_mb &&
               x->n_more == y->n_more &&
               memcmp(a->cells[i], b->cells[i], n * sizeof(a->cells[0][0])) == 0;
    }
    return same;
}

/* The worst of the pool stands at its head: a heap. */
static void pool_sink(struct search *s)
{
    size_t at = 0;

    for (;;) {
        size_t worst = at, l = 2 * at + 1, r = l + 1;
        struct search_cand swap;

        worst = l < s->n_pool && s->pool[l].score > s->pool[worst].score ? l : worst;
        worst = r < s->n_pool && s->pool[r].score > s->pool[worst].score ? r : worst;
        if (worst == at) {
            return;
        }
        swap = s->pool[at];
        s->pool[at] = s->pool[worst];
        s->pool[worst] = swap;
        at = worst;
    }
}

static void pool_rise(struct search *s, size_t at)
{
    while (at > 0 && s->pool[(at - 1) / 2].score < s->pool[at].score) {
        struct search_cand swap = s->pool[at];

        s->pool[at] = s->pool[(at - 1) / 2];
        s->pool[(at - 1) / 2] = swap;
        at = (at - 1) / 2;
    }
}

static void pool_put(struct search *s, const struct search_cand *c)
{
    if (s->n_pool == s->pool_cap) {
        s->has_left_out = s->has_left_out || s->is_small;
        if (c->score >= s->pool[0].score) {
            return;
        }
        s->pool[0] = *c;
        pool_sink(s);
        return;
    }
    s->pool[s->n_pool++] = *c;
    pool_rise(s, s->n_pool - 1);
}

bool hdt_seek_is_in_space(const struct search *s, const struct search_cand *c)
{
    unsigned space = s->space;
    int tp = s->kinds[c->cells[0][0].kind].tps[c->cells[0][0].tp];
    int64_t n = 0;

    for (int i = 0; i < c->n_classes; i++) {
        n += c->classes[i].n;
        for (int t = 0; t < c->n_stages; t++) {
            const struct search_kind *k = &s->kinds[c->cells[i][t].kind];

            if (space & HDT_LAYOUT_SPACE_PURE &&
                k->nodes->device != s->kinds[c->cells[0][t].kind].nodes->device) {
                return false;
            }
            if (space & HDT_LAYOUT_SPACE_ONE_SITE &&
                k->site_idx != s->kinds[c->cells[0][0].kind].site_idx) {
                return false;
            }
            if (space & HDT_LAYOUT_SPACE_ONE_TP && k->tps[c->cells[i][t].tp] != tp) {
                return false;
            }
        }
    }
    return !(space & HDT_LAYOUT_SPACE_POWERS) || (n & (n - 1)) == 0;
}

static bool crosses_wan(const struct search *s, const struct search_cand *c)
{
    size_t site = s->kinds[c->cells[0][0].kind].site_idx;

    for (int i = 0; i < c->n_classes; i++) {
        for (int t = 0; t < c->n_stages; t++) {
            if (s->kinds[c->cells[i][t].kind].site_idx != site) {
                return true;
            }
        }
    }
    return false;
}

/* Does a choice say of a candidate's links what one before it says? */
static bool is_tried(const struct search *s, int choice, const struct search_pair *pairs,
                     int n_pairs)
{
    for (int k = 0; k < choice; k++) {
        if (hdt_seek_choice_is_same(s, k, choice, pairs, n_pairs)) {
            return true;
        }
    }
    return false;
}

/* Sums by levels may be quicker than a ring through all devices; of small clusters they are tried
 * where the best plans are improved. Takes the better one. */
static void levels_try(struct search *s, struct search_cand *c)
{
    struct search_cand ring = *c;

    if (s->is_small || s->options->keep & HDT_LAYOUT_KEEP_ALL_REDUCE ||
        c->all_reduce != HDT_LAYOUT_AUTO ||
        (search_is_large(s) ? c->score : hdt_seek_score(s, c, c->bound_s)) >
            SLACK * s->best_score) {
        return;
    }
    c->all_reduce = HDT_LAYOUT_HIERARCHICAL;
    hdt_seek_estimate_step(s, c);
    if (c->score >= ring.score) {
        *c = ring;
    }
}

/* Codecs and sharding that are free: the best of them by estimate; of small clusters all. */
static void ways_try(struct search *s, struct search_cand *c)
{
    bool free_shards = !(s->options->keep & HDT_LAYOUT_KEEP_SHARDED);
    int kept = c->sharded, n_choices = crosses_wan(s, c) ? s->n_choices : 1;
    int n_pairs, all_reduce = c->all_reduce;
    struct search_pair pairs[SEARCH_MAX_PAIRS];
    bool by_time = s->options->objective == HDT_LAYOUT_THROUGHPUT;
    struct search_cand best = *c;

    best.score = INFINITY;
    n_pairs = n_choices > s->n_codecs ? hdt_seek_pairs(s, c, pairs) : 0; /* else all are unlike */
    for (int k = 0; k < n_choices; k++) {
        c->codec = (uint8_t)k;
        if (n_pairs > 0 && is_tried(s, k, pairs, n_pairs)) {
            continue;
        }
        if (!hdt_seek_estimate_pipes(
                s, c, s->is_small || !by_time ? INFINITY : SLACK * s->best_estimate_s)) {
            continue;
        }
        for (int shards = 0; shards < 2; shards++) {
            c->sharded = (uint8_t)shards;
            c->all_reduce = (uint8_t)all_reduce;
            /* Trees add whole gradients: nothing is sharded. */
            if ((!free_shards && shards != kept) || (shards && c->all_reduce == HDT_LAYOUT_TREE) ||
                !hdt_seek_fits(s, c)) {
                continue;
            }
            hdt_seek_estimate_step(s, c);
            levels_try(s, c);
            if (s->is_small) {
                pool_put(s, c);
            }
            if (c->score < best.score) {
                best = *c;
            }
        }
    }
    *c = best;
}

/* Chunks take turns on groups: of more than one stage, each with a layer for each chunk. */
static bool has_chunks(const struct search_cand *c)
{
    bool has = c->chunks < 2 || c->n_stages > 1;

    for (int t = 0; t < c->n_stages; t++) {
        has = has && c->layers[t] >= c->chunks;
    }
    return has;
}

void hdt_seek_offer(struct search *s, struct search_cand *c)
{
    bool by_time = s->options->objective == HDT_LAYOUT_THROUGHPUT;

    s->n_candidates++;
    if (!hdt_seek_pins_hold(s, c)) {
        s->n_unpinned++;
        c->score = INFINITY;
        return;
    }
    if (!hdt_seek_is_in_space(s, c) || !has_chunks(c)) {
        c->score = INFINITY;
        return;
    }
    ways_try(s, c);
    if (c->score < INFINITY) {
        double estimate_s = c->estimate_s + (by_time ? c->move : 0);

        s->best_estimate_s = estimate_s < s->best_estimate_s ? estimate_s : s->best_estimate_s;
        s->best_score = c->score < s->best_score ? c->score : s->best_score;
        if (!s->is_small) {
            pool_put(s, c);
        }
    }
}

/* ---- teams ---- */

static int64_t groups_of(const struct search *s, const struct search_cut *cut, int kind)
{
    const struct search_kind *k = &s->kinds[kind];

    return k->nodes->count * (k->nodes->devices / k->tps[cut->tp[kind]]);
}

static int64_t stages_of(const struct search *s, const struct search_cut *cut,
                         const struct search_team *team, int64_t n)
{
    int64_t sum = 0;

    for (int i = 0; i < team->n; i++) {
        sum += groups_of(s, cut, team->kinds[i]) / n;
    }
    return sum;
}

/* Most replicas of so many stages. */
static int64_t replicas_of(const struct search *s, const struct search_cut *cut,
                           const struct search_team *team, int n_stages)
{
    int64_t low = 0, high = 0;

    for (int i = 0; i < team->n; i++) {
        high += groups_of(s, cut, team->kinds[i]);
    }
    while (low < high) {
        int64_t mid = (low + high + 1) / 2;

        if (stages_of(s, cut, team, mid) >= n_stages) {
            low = mid;
        } else {
            high = mid - 1;
        }
    }
    return low;
}

static bool is_power(int64_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

/* How many stages each kind of a team gets: all that it has room for; where that is more than are
 * wanted, those at the end of the order have fewer. */
static bool stages_share(const struct search *s, const struct search_cut *cut,
                         const struct search_team *team, int64_t n, int n_stages, int *shares)
{
    int left = n_stages;

    for (int i = 0; i < team->n; i++) {
        int64_t has = groups_of(s, cut, team->kinds[i]) / n;

        shares[i] = (int)(has < left ? has : left);
        left -= shares[i];
    }
    return left == 0;
}

/* Stages of a class in the order of its team's kinds; those of kind `around` (a position, -1: none)
 * half at the front and half at the end. */
static void cells_write(const struct search_cut *cut, const struct search_team *team,
                        const int *shares, int around, int front, struct search_cell *cells)
{
    int at = 0;

    for (int i = 0; around >= 0 && i < front; i++) {
        cells[at++] =
            (struct search_cell){(uint8_t)team->kinds[around], cut->tp[team->kinds[around]]};
    }
    for (int i = 0; i < team->n; i++) {
        for (int k = 0; i != around && k < shares[i]; k++) {
            cells[at++] = (struct search_cell){(uint8_t)team->kinds[i], cut->tp[team->kinds[i]]};
        }
    }
    for (int i = front; around >= 0 && i < shares[around]; i++) {
        cells[at++] =
            (struct search_cell){(uint8_t)team->kinds[around], cut->tp[team->kinds[around]]};
    }
}

void hdt_seek_cand_begin(const struct search *s, struct search_cand *c)
{
    const struct hdt_layout *l = &s->base->layout;

    memset(c, 0, sizeof(*c));
    c->schedule = (uint8_t)(search_keeps_schedule(s) ? l->schedule : HDT_SCHEDULE_1F1B);
    c->chunks = (uint8_t)(c->schedule == HDT_SCHEDULE_INTERLEAVED ? l->chunks : 1);
    c->sync = (uint8_t)(s->options->keep & HDT_LAYOUT_KEEP_SYNC ? l->sync : HDT_LAYOUT_SYNC_BOTH);
    c->all_reduce =
        (uint8_t)(s->options->keep & HDT_LAYOUT_KEEP_ALL_REDUCE ? l->all_reduce : HDT_LAYOUT_AUTO);
    c->sharded = s->options->keep & HDT_LAYOUT_KEEP_SHARDED ? l->optimizer.sharded
                                                            : c->all_reduce != HDT_LAYOUT_TREE;
}

/* Hardly a plan of these cells takes less: all compute all the time but while their pipelines fill
 * and drain. */
static double least_s(struct search *s, const struct search_cand *c)
{
    double rate = 0, n_mb, sequences = 0, batch = (double)s->base->layout.global_batch;

    for (int i = 0; i < c->n_classes; i++) {
        double own = 0;

        for (int t = 0; t < c->n_stages; t++) {
            const struct search_unit *u =
                hdt_seek_unit_get(s, c->cells[i][t].kind, c->cells[i][t].tp, c->classes[i].batch);

            own += u ? 1 / (u->fwd_s + u->bwd_s) : 0;
        }
        rate += own * (double)c->classes[i].n * s->batches[c->classes[i].batch];
        sequences += (double)c->classes[i].n * s->batches[c->classes[i].batch];
    }
    n_mb = batch / sequences;
    return batch * (double)s->base->model.L / rate * (1 + (c->n_stages - 1) / n_mb);
}

static bool is_hopeless(struct search *s, struct search_cand *c)
{
    int64_t n = 0;
    double wan_s;

    if (least_s(s, c) > search_max(s->n_kinds > 4 ? 1.05 : 1.15, s->slack) * s->best_estimate_s) {
        return true;
    }
    if (!crosses_wan(s, c)) {
        return false;
    }
    for (int i = 0; i < c->n_classes; i++) {
        n += (int64_t)c->classes[i].n * s->batches[c->classes[i].batch];
    }
    for (int i = 0; i < c->n_classes; i++) {
        c->classes[i].n_mb = s->base->layout.global_batch / n;
        c->classes[i].n_more = 0;
        for (int t = 0; t < c->n_stages; t++) {
            if (!hdt_seek_unit_of(s, c, i, t)) {
                return true;
            }
        }
    }
    c->codec = (uint8_t)s->least;
    wan_s = hdt_seek_wan_least(s, c);
    c->codec = 0;
    return wan_s > SLACK * s->best_estimate_s;
}

/* Fill and offer; its estimate, INFINITY when it is none. */
static double cand_try(struct search *s, struct search_cand *c)
{
    if (s->options->objective == HDT_LAYOUT_THROUGHPUT && is_hopeless(s, c)) {
        return INFINITY;
    }
    if (!hdt_seek_places(s, c) || !hdt_seek_fill(s, c)) {
        return INFINITY;
    }
    hdt_seek_offer(s, c);
    s->cut_score = c->score < s->cut_score ? c->score : s->cut_score;
    return c->score;
}

static bool next_order(int *order, int n)
{
    int i = n - 2, k = n - 1;

    while (i >= 0 && order[i] >= order[i + 1]) {
        i--;
    }
    if (i < 0) {
        return false;
    }
    while (order[k] <= order[i]) {
        k--;
    }
    for (int swap = order[i]; order[i] != order[k];) {
        order[i] = order[k];
        order[k] = swap;
    }
    for (int a = i + 1, b = n - 1; a < b; a++, b--) {
        int swap = order[a];

        order[a] = order[b];
        order[b] = swap;
    }
    return true;
}

/* Of many kinds: the other way round, and one kind around the others. */
static void ends_try(struct search *s, const struct search_cut *cut, const struct search_cand *like,
                     int class_idx)
{
    struct search_team team = cut->teams[class_idx];
    int shares[SEARCH_MAX_KINDS];

    for (int around = -1; around < (s->options->n_pins > 0 ? team.n : 0) && hdt_seek_goes_on(s);
         around++) {
        struct search_cand c = *like;

        if (!stages_share(s, cut, &team, c.classes[class_idx].n, c.n_stages, shares) ||
            (around >= 0 && shares[around] < 2)) {
            continue;
        }
        cells_write(cut, &team, shares, around, around >= 0 ? shares[around] / 2 : 0,
                    c.cells[class_idx]);
        cand_try(s, &c);
        for (int a = 0, b = c.n_stages - 1; a < b; a++, b--) {
            struct search_cell swap = c.cells[class_idx][a];

            c.cells[class_idx][a] = c.cells[class_idx][b];
            c.cells[class_idx][b] = swap;
        }
        cand_try(s, &c);
    }
}

/* Other orders of a class's team, while the rest of the candidate stays. */
static void orders_try(struct search *s, const struct search_cut *cut,
                       const struct search_cand *like, int class_idx)
{
    struct search_team team = cut->teams[class_idx];
    int shares[SEARCH_MAX_KINDS];
    int n_orders = 0;

    if (team.n < 2) {
        return;
    }
    if (team.n > 4) {
        ends_try(s, cut, like, class_idx);
        return;
    }
    /* Ascending first. */
    for (int i = 0; i < team.n; i++) {
        for (int k = i + 1; k < team.n; k++) {
            if (team.kinds[k] < team.kinds[i]) {
                int swap = team.kinds[i];

                team.kinds[i] = team.kinds[k];
                team.kinds[k] = swap;
            }
        }
    }
    do {
        for (int around = -1; around < team.n; around++) {
            struct search_cand c = *like;
            int front = 0;

            if (!stages_share(s, cut, &team, c.classes[class_idx].n, c.n_stages, shares)) {
                return;
            }
            if (around >= 0 && shares[around] < 2) {
                continue;
            }
            front = around >= 0 ? shares[around] / 2 : 0;
            cells_write(cut, &team, shares, around, front, c.cells[class_idx]);
            cand_try(s, &c);
            if (around >= 0 && shares[around] > 2) {
                c = *like;
                cells_write(cut, &team, shares, around, 1, c.cells[class_idx]);
                cand_try(s, &c);
            }
        }
    } while (hdt_seek_goes_on(s) && ++n_orders < 24 && next_order(team.kinds, team.n));
}

/* A candidate of a cut: so many stages, each team as many replicas as it can. */
static void stages_try(struct search *s, const struct search_cut *cut, int n_stages,
                       int64_t n_replicas)
{
    struct search_cand c;
    int64_t sum = 0, one = s->batches[cut->batch];
    double score;

    hdt_seek_cand_begin(s, &c);
    c.n_stages = n_stages;
    c.n_classes = cut->n_teams;
    for (int i = 0; i < cut->n_teams; i++) {
        int shares[SEARCH_MAX_KINDS];
        int64_t n = n_replicas > 0 ? n_replicas : replicas_of(s, cut, &cut->teams[i], n_stages);

        if (s->space & HDT_LAYOUT_SPACE_POWERS) {
            while (!is_power(n) && n > 0) {
                n--;
            }
        }
        if (n < 1 || n > s->base->layout.global_batch ||
            !stages_share(s, cut, &cut->teams[i], n, n_stages, shares)) {
            return;
        }
        c.classes[i].n = (int)n;
        c.classes[i].batch = cut->batch;
        cells_write(cut, &cut->teams[i], shares, -1, 0, c.cells[i]);
        sum += n;
    }
    if (sum * one > s->base->layout.global_batch || sum * n_stages > HDT_LAYOUT_MAX_GROUPS) {
        return;
    }
    score = cand_try(s, &c);
    if (s->options->n_pins == 0 && score > (s->n_kinds > 4 ? 1.02 : 1.25) * s->best_score) {
        return;
    }
    for (int i = 0; i < cut->n_teams; i++) {
        orders_try(s, cut, &c, i);
    }
}

int hdt_seek_most_stages(const struct search *s)
{
    int64_t L = s->base->model.L;

    return (int)(L < SEARCH_MAX_STAGES ? L : SEARCH_MAX_STAGES);
}

static void one_team_try(struct search *s, const struct search_cut *cut)
{
    int64_t most = 0, last_stages = 0;
    uint64_t last = UINT64_MAX;
    int n_alike = 0;

    for (int i = 0; i < cut->teams[0].n; i++) {
        most += groups_of(s, cut, cut->teams[0].kinds[i]);
    }
    most = most < s->base->layout.global_batch ? most : s->base->layout.global_batch;
    /* From many replicas of few stages to the other end; of as many stages only the most. */
    for (int64_t n = most; n >= 1 && hdt_seek_goes_on(s); n--) {
        int64_t n_stages = stages_of(s, cut, &cut->teams[0], n);
        uint64_t sum = 0;

        for (int i = 0; i < cut->teams[0].n; i++) {
            sum = 131 * sum + (uint64_t)(groups_of(s, cut, cut->teams[0].kinds[i]) / n);
        }
        if (sum == last && !(s->space & HDT_LAYOUT_SPACE_ALIKE)) {
            continue;
        }
        last = sum;
        n_alike = n_stages - last_stages <= last_stages / 8 ? n_alike + 1 : 0;
        if (n_alike > 2) {
            continue;
        }
        last_stages = n_alike == 0 ? n_stages : last_stages;
        if (n_stages >= 1 && n_stages <= hdt_seek_most_stages(s)) {
            stages_try(s, cut, (int)n_stages, n);
        } else if (n_stages > hdt_seek_most_stages(s)) {
            stages_try(s, cut, hdt_seek_most_stages(s), n);
            return;
        }
    }
}

/* Of several teams; n_stages: so many, 0: every number. One team's follows from its replicas. */
void hdt_seek_cut_try(struct search *s, const struct search_cut *cut, int n_stages)
{
    if (cut->n_teams == 1) {
        one_team_try(s, cut);
        return;
    }
    if (n_stages > 0) {
        stages_try(s, cut, n_stages, 0);
        return;
    }
    for (int n = 1; n <= hdt_seek_most_stages(s) && hdt_seek_goes_on(s);
         n = hdt_seek_stages_next(n)) {
        stages_try(s, cut, n, 0);
    }
}
