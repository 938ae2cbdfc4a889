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

/* ---- the pool ---- */

bool search_goes_on(struct search *s)
{
    const struct hdt_layout_search_options *o = s->options;
    double elapsed_s;

    if (s->is_cut || (s->n_estimated % 64 != 0 && s->n_simulated == 0)) {
        return !s->is_cut;
    }
    elapsed_s = (double)(hdt_clock_now_us() - s->start_us) / 1e6;
    if (o->time_limit_s > 0 && elapsed_s > o->time_limit_s) {
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

bool search_is_same(const struct search_cand *a, const struct search_cand *b)
{
    size_t n = (size_t)a->n_stages;
    bool same = a->n_stages == b->n_stages && a->n_classes == b->n_classes &&
                a->schedule == b->schedule && a->chunks == b->chunks && a->sharded == b->sharded &&
                a->sync == b->sync && a->all_reduce == b->all_reduce && a->codec == b->codec &&
                memcmp(a->layers, b->layers, n * sizeof(a->layers[0])) == 0 &&
                memcmp(a->recompute, b->recompute, n) == 0 &&
                memcmp(a->offload, b->offload, n) == 0;

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

bool search_is_in_space(const struct search *s, const struct search_cand *c)
{
    unsigned space = s->options->space;
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

/* Codecs and sharding that are free: the best of them by estimate; of small clusters all. */
static void ways_try(struct search *s, struct search_cand *c)
{
    bool free_shards = !(s->options->keep & HDT_LAYOUT_KEEP_SHARDED);
    int kept = c->sharded, n_codecs = crosses_wan(s, c) ? s->n_codecs : 1;
    struct search_cand best = *c;

    best.score = INFINITY;
    for (int k = 0; k < n_codecs; k++) {
        c->codec = (uint8_t)k;
        search_estimate_pipes(s, c);
        for (int shards = 0; shards < 2; shards++) {
            c->sharded = (uint8_t)shards;
            if ((!free_shards && shards != kept) || !search_fits(s, c)) {
                continue;
            }
            search_estimate_step(s, c);
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

void search_offer(struct search *s, struct search_cand *c)
{
    s->n_candidates++;
    if (!search_pins_hold(s, c) || !search_is_in_space(s, c)) {
        c->score = INFINITY;
        return;
    }
    ways_try(s, c);
    if (c->score < INFINITY) {
        if (c->estimate_s < s->best_estimate_s) {
            s->best_estimate_s = c->estimate_s;
        }
        if (!s->is_small) {
            pool_put(s, c);
        }
    }
}

/* ---- teams ---- */

struct team {
    int kinds[SEARCH_MAX_KINDS];
    int n;
};

/* One way to cut the cluster: teams, a degree for each kind, a size of micro-batches. */
struct cut {
    struct team teams[SEARCH_MAX_CLASSES];
    int n_teams;
    uint8_t tp[SEARCH_MAX_KINDS];
    int batch;
};

static int64_t groups_of(const struct search *s, const struct cut *cut, int kind)
{
    const struct search_kind *k = &s->kinds[kind];

    return k->nodes->count * (k->nodes->devices / k->tps[cut->tp[kind]]);
}

static int64_t stages_of(const struct search *s, const struct cut *cut, const struct team *team,
                         int64_t n)
{
    int64_t sum = 0;

    for (int i = 0; i < team->n; i++) {
        sum += groups_of(s, cut, team->kinds[i]) / n;
    }
    return sum;
}

/* Most replicas of so many stages. */
static int64_t replicas_of(const struct search *s, const struct cut *cut, const struct team *team,
                           int n_stages)
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
static bool stages_share(const struct search *s, const struct cut *cut, const struct team *team,
                         int64_t n, int n_stages, int *shares)
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
static void cells_write(const struct cut *cut, const struct team *team, const int *shares,
                        int around, int front, struct search_cell *cells)
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

void search_cand_begin(const struct search *s, struct search_cand *c)
{
    const struct hdt_layout *l = &s->base->layout;

    memset(c, 0, sizeof(*c));
    c->schedule =
        (uint8_t)(s->options->keep & HDT_LAYOUT_KEEP_SCHEDULE && l->schedule != HDT_SCHEDULE_AUTO &&
                          l->schedule != HDT_SCHEDULE_INTERLEAVED
                      ? l->schedule
                      : HDT_SCHEDULE_1F1B);
    c->chunks = 1;
    c->sync =
        (uint8_t)(s->options->keep & HDT_LAYOUT_KEEP_SYNC ? l->sync : HDT_LAYOUT_SYNC_OVERLAPPED);
    c->all_reduce =
        (uint8_t)(s->options->keep & HDT_LAYOUT_KEEP_ALL_REDUCE ? l->all_reduce : HDT_LAYOUT_AUTO);
    c->sharded = s->options->keep & HDT_LAYOUT_KEEP_SHARDED ? l->optimizer.sharded : 1;
}

/* Less than this no plan of these cells takes: all compute all the time. */
static double least_s(struct search *s, const struct search_cand *c)
{
    double rate = 0;

    for (int i = 0; i < c->n_classes; i++) {
        double own = 0;

        for (int t = 0; t < c->n_stages; t++) {
            const struct search_unit *u =
                search_unit_get(s, c->cells[i][t].kind, c->cells[i][t].tp, c->classes[i].batch);

            own += u ? 1 / (u->fwd_s + u->bwd_s) : 0;
        }
        rate += own * (double)c->classes[i].n * s->batches[c->classes[i].batch];
    }
    return (double)s->base->layout.global_batch * (double)s->base->model.L / rate;
}

/* Fill and offer; its estimate, INFINITY when it is none. */
static double cand_try(struct search *s, struct search_cand *c)
{
    if (s->options->objective == HDT_LAYOUT_THROUGHPUT &&
        least_s(s, c) > 1.02 * s->best_estimate_s) {
        return INFINITY;
    }
    if (!search_places(s, c) || !search_fill(s, c)) {
        return INFINITY;
    }
    search_offer(s, c);
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

/* Other orders of a class's team, while the rest of the candidate stays. */
static void orders_try(struct search *s, const struct cut *cut, const struct search_cand *like,
                       int class_idx)
{
    struct team team = cut->teams[class_idx];
    int shares[SEARCH_MAX_KINDS];
    int n_orders = 0;

    if (team.n < 2) {
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
    } while (search_goes_on(s) && ++n_orders < 24 && next_order(team.kinds, team.n));
}

/* A candidate of a cut: so many stages, each team as many replicas as it can. */
static void stages_try(struct search *s, const struct cut *cut, int n_stages, int64_t n_replicas)
{
    struct search_cand c;
    int64_t sum = 0, one = s->batches[cut->batch];
    double score;

    search_cand_begin(s, &c);
    c.n_stages = n_stages;
    c.n_classes = cut->n_teams;
    for (int i = 0; i < cut->n_teams; i++) {
        int shares[SEARCH_MAX_KINDS];
        int64_t n = n_replicas > 0 ? n_replicas : replicas_of(s, cut, &cut->teams[i], n_stages);

        if (s->options->space & HDT_LAYOUT_SPACE_POWERS) {
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
    if (s->options->n_pins == 0 && score > 1.25 * s->best_estimate_s) {
        return;
    }
    for (int i = 0; i < cut->n_teams; i++) {
        orders_try(s, cut, &c, i);
    }
}

static int most_stages(const struct search *s)
{
    int64_t L = s->base->model.L;

    return (int)(L < SEARCH_MAX_STAGES ? L : SEARCH_MAX_STAGES);
}

static void one_team_try(struct search *s, const struct cut *cut)
{
    int64_t most = 0, last = -1;

    for (int i = 0; i < cut->teams[0].n; i++) {
        most += groups_of(s, cut, cut->teams[0].kinds[i]);
    }
    most = most < s->base->layout.global_batch ? most : s->base->layout.global_batch;
    /* From many replicas of few stages to the other end; of as many stages only the most. */
    for (int64_t n = most; n >= 1 && search_goes_on(s); n--) {
        int64_t n_stages = stages_of(s, cut, &cut->teams[0], n), sum = 0;

        for (int i = 0; i < cut->teams[0].n; i++) {
            sum = 131 * sum + groups_of(s, cut, cut->teams[0].kinds[i]) / n;
        }
        if (sum == last && !(s->options->space & HDT_LAYOUT_SPACE_ALIKE)) {
            continue;
        }
        last = sum;
        if (n_stages >= 1 && n_stages <= most_stages(s)) {
            stages_try(s, cut, (int)n_stages, n);
        } else if (n_stages > most_stages(s)) {
            stages_try(s, cut, most_stages(s), n);
            return;
        }
    }
}

static void cut_try(struct search *s, const struct cut *cut)
{
    if (cut->n_teams == 1) {
        one_team_try(s, cut);
        return;
    }
    for (int n = 1; n <= most_stages(s) && search_goes_on(s); n++) {
        stages_try(s, cut, n, 0);
    }
}

/* ---- degrees ---- */

/* Kinds of one device and as many of them in a node have one degree. */
static int types_of(const struct search *s, int *type)
{
    int n = 0;

    for (int i = 0; i < s->n_kinds; i++) {
        type[i] = -1;
        for (int k = 0; k < i; k++) {
            if (s->kinds[k].nodes->device == s->kinds[i].nodes->device &&
                s->kinds[k].n_tps == s->kinds[i].n_tps) {
                type[i] = type[k];
            }
        }
        if (type[i] < 0) {
            type[i] = n++;
        }
    }
    return n;
}

static void degrees_try(struct search *s, struct cut *cut)
{
    int type[SEARCH_MAX_KINDS], n_types = types_of(s, type), n_tps[SEARCH_MAX_KINDS] = {0};
    bool is_in[SEARCH_MAX_KINDS] = {false};
    int64_t n_all = 1, most = 1;

    for (int i = 0; i < cut->n_teams; i++) {
        for (int k = 0; k < cut->teams[i].n; k++) {
            is_in[type[cut->teams[i].kinds[k]]] = true;
        }
    }
    for (int i = 0; i < s->n_kinds; i++) {
        n_tps[type[i]] = is_in[type[i]] ? s->kinds[i].n_tps : 1;
        most = n_tps[type[i]] > most ? n_tps[type[i]] : most;
    }
    for (int i = 0; i < n_types; i++) {
        n_all *= n_all > 64 ? 1 : n_tps[i];
    }
    if (n_all > 64 || s->options->space & HDT_LAYOUT_SPACE_ONE_TP) {
        n_all = most;
    }
    for (int64_t at = 0; at < n_all && search_goes_on(s); at++) {
        bool is_one = true;
        int first = 0;

        for (int i = 0; i < s->n_kinds; i++) {
            int64_t rest = at;

            for (int k = 0; k < type[i] && n_all != most; k++) {
                rest /= n_tps[k];
            }
            rest = n_all != most || n_types == 1 ? rest % n_tps[type[i]] : rest;
            cut->tp[i] = (uint8_t)(rest < s->kinds[i].n_tps ? rest : s->kinds[i].n_tps - 1);
            first = i == 0 ? s->kinds[0].tps[cut->tp[0]] : first;
            is_one = is_one && (!is_in[type[i]] || s->kinds[i].tps[cut->tp[i]] == first);
        }
        if (is_one || !(s->options->space & HDT_LAYOUT_SPACE_ONE_TP)) {
            cut_try(s, cut);
        }
    }
}

static void teams_try(struct search *s, struct cut *cut)
{
    for (int b = 0; b < s->n_batches && search_goes_on(s); b++) {
        cut->batch = b;
        degrees_try(s, cut);
    }
}

/* ---- which teams ---- */

/* Every partition of every subset where kinds are few: places[i] is the team of kind i, 0: none. */
static void partitions_try(struct search *s)
{
    int places[SEARCH_MAX_KINDS] = {0};

    for (;;) {
        struct cut cut = {.n_teams = 0};
        int i = s->n_kinds - 1, most = 0;
        bool is_normal = true;

        for (int k = 0; k < s->n_kinds; k++) {
            is_normal = is_normal && places[k] <= most + 1;
            most = places[k] > most ? places[k] : most;
            if (places[k] > 0 && is_normal) {
                struct team *team = &cut.teams[places[k] - 1];

                team->kinds[team->n++] = k;
            }
        }
        cut.n_teams = most;
        if (is_normal && most > 0 && most <= SEARCH_MAX_CLASSES) {
            teams_try(s, &cut);
        }
        while (i >= 0 && places[i] == s->n_kinds) {
            places[i--] = 0;
        }
        if (i < 0 || !search_goes_on(s)) {
            return;
        }
        places[i]++;
    }
}

/* Teams by a number that kinds have; false: there are too many. */
static bool teams_by(const struct search *s, const int *number, const bool *is_in, struct cut *cut)
{
    int numbers[SEARCH_MAX_CLASSES];

    memset(cut, 0, sizeof(*cut));
    for (int i = 0; i < s->n_kinds; i++) {
        int at = 0;

        if (is_in && !is_in[i]) {
            continue;
        }
        while (at < cut->n_teams && numbers[at] != number[i]) {
            at++;
        }
        if (at == SEARCH_MAX_CLASSES) {
            return false;
        }
        if (at == cut->n_teams) {
            numbers[cut->n_teams++] = number[i];
        }
        cut->teams[at].kinds[cut->teams[at].n++] = i;
    }
    return cut->n_teams > 0;
}

static void groupings_try(struct search *s, const bool *is_in)
{
    int one[SEARCH_MAX_KINDS] = {0}, own[SEARCH_MAX_KINDS], site[SEARCH_MAX_KINDS];
    int type[SEARCH_MAX_KINDS];
    const int *numbers[] = {one, own, site, type};
    struct cut cut;

    types_of(s, type);
    for (int i = 0; i < s->n_kinds; i++) {
        own[i] = i;
        site[i] = (int)s->kinds[i].site_idx;
    }
    for (int i = 0; i < 4 && search_goes_on(s); i++) {
        if (teams_by(s, numbers[i], is_in, &cut)) {
            teams_try(s, &cut);
        }
    }
}

/* Of many kinds: all, all without one, one site, one type. */
static void subsets_try(struct search *s)
{
    bool is_in[SEARCH_MAX_KINDS];
    int type[SEARCH_MAX_KINDS], n_types = types_of(s, type);

    groupings_try(s, NULL);
    for (int i = 0; i < s->n_kinds && search_goes_on(s); i++) {
        for (int k = 0; k < s->n_kinds; k++) {
            is_in[k] = k != i;
        }
        groupings_try(s, is_in);
    }
    for (size_t site = 0; site < s->base->cluster.sites.n && search_goes_on(s); site++) {
        for (int k = 0; k < s->n_kinds; k++) {
            is_in[k] = s->kinds[k].site_idx == site;
        }
        groupings_try(s, is_in);
    }
    for (int t = 0; t < n_types && search_goes_on(s); t++) {
        for (int k = 0; k < s->n_kinds; k++) {
            is_in[k] = type[k] == t;
        }
        groupings_try(s, is_in);
    }
}

void search_generate(struct search *s)
{
    if (s->n_kinds <= 4) {
        partitions_try(s);
    } else {
        subsets_try(s);
    }
}
