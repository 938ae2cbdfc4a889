/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Which kinds make teams. Few kinds: every partition of every subset. Many: sites are taken in the
 * order of the quickest chain of links through them, the sets of sites by what devices and chain
 * let hope for; in each set all kinds one team, each its own, teams by site and by type.
 */
#include "src/base/buf.h"
#include "src/plan/layout_search_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Every partition of every subset where kinds are few: places[i] is the team of kind i, 0: none. */
static void partitions_try(struct search *s)
{
    int places[SEARCH_MAX_KINDS] = {0};

    for (;;) {
        struct search_cut cut = {.n_teams = 0};
        int i = s->n_kinds - 1, most = 0;
        bool is_normal = true;

        for (int k = 0; k < s->n_kinds; k++) {
            is_normal = is_normal && places[k] <= most + 1;
            most = places[k] > most ? places[k] : most;
            if (places[k] > 0 && is_normal) {
                struct search_team *team = &cut.teams[places[k] - 1];

                team->kinds[team->n++] = k;
            }
        }
        cut.n_teams = most;
        if (is_normal && most > 0 && most <= SEARCH_MAX_CLASSES) {
            hdt_seek_teams_try(s, &cut);
        }
        while (i >= 0 && places[i] == s->n_kinds) {
            places[i--] = 0;
        }
        if (i < 0 || !hdt_seek_goes_on(s)) {
            return;
        }
        places[i]++;
    }
}

/* Teams by a number that kinds have; false: there are too many. */
static bool teams_by(const struct search *s, const int *number, const bool *is_in,
                     struct search_cut *cut)
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
    struct search_cut cut;

    hdt_seek_types(s, type);
    for (int i = 0; i < s->n_kinds; i++) {
        own[i] = i;
        site[i] = (int)s->kinds[i].site_idx;
    }
    for (int i = 0; i < 4 && hdt_seek_goes_on(s); i++) {
        if (teams_by(s, numbers[i], is_in, &cut)) {
            hdt_seek_teams_try(s, &cut);
        }
    }
}

/* ---- chains of sites ---- */

/* More sites are not chained in every way. */
#define CHAIN_MAX_SITES 12
/* Sets of sites that are looked into. */
#define CHAIN_SETS 8

/* By set of sites and the last one of its chain. */
struct chain {
    double bytes_per_s; /* of its slowest link */
    int before;
};

struct site_set {
    unsigned mask;
    int last;
    double least_s; /* a step takes no less: by devices, by the chain's slowest link */
};

static double path_rate(const struct search *s, size_t from, size_t to)
{
    const struct hdt_cluster_file_path *path = search_path(s, from, to);
    double rate = INFINITY;

    for (size_t i = 0; i < path->n_legs; i++) {
        rate = search_min(rate, hdt_cluster_file_leg_bytes_per_s(path->legs[i], 1 << 24));
    }
    /* Of two as quick ones that with the shorter way. */
    return rate * (1 - 1e-3 * search_min(path->rtt_s, 1));
}

static void chains_fill(const struct search *s, size_t n, struct chain *chains)
{
    for (unsigned mask = 1; mask < 1U << n; mask++) {
        for (size_t last = 0; last < n; last++) {
            struct chain *c = &chains[mask * n + last];
            unsigned rest = mask & ~(1U << last);

            *c = (struct chain){.bytes_per_s = rest ? 0 : INFINITY, .before = -1};
            if (!(mask & 1U << last)) {
                c->bytes_per_s = -1;
                continue;
            }
            for (size_t b = 0; b < n; b++) {
                double rate = rest & 1U << b ? search_min(chains[rest * n + b].bytes_per_s,
                                                          path_rate(s, b, last))
                                             : -1;

                if (rate > c->bytes_per_s) {
                    c->bytes_per_s = rate;
                    c->before = (int)b;
                }
            }
        }
    }
}

/* Micro-batches of all the batch through a link; layers on all devices of the sites. */
static double set_least_s(struct search *s, unsigned mask, double bytes_per_s)
{
    double rate = 0, batch = (double)s->base->layout.global_batch;
    double bytes = batch * s->model.T * s->model.C * s->model.value_bytes;

    for (int k = 0; k < s->n_kinds; k++) {
        const struct search_unit *u = hdt_seek_unit_get(s, k, 0, 0);

        if (u && mask & 1U << s->kinds[k].site_idx) {
            rate += s->batches[0] / ((u->fwd_s + u->bwd_s) * s->kinds[k].tps[0]) *
                    (double)(s->kinds[k].nodes->count * s->kinds[k].nodes->devices);
        }
    }
    return rate > 0 ? search_max(batch * (double)s->base->model.L / rate,
                                 s->least_ratio * bytes / bytes_per_s)
                    : INFINITY;
}

static int set_compare(const void *a, const void *b)
{
    const struct site_set *x = a, *y = b;

    if (x->least_s != y->least_s) {
        return x->least_s < y->least_s ? -1 : 1;
    }
    return x->mask < y->mask ? -1 : x->mask > y->mask;
}

/* Position of a kind in the pipeline: its site's in the chain; what is pinned goes to the ends. */
static int kind_place(const struct search *s, int kind, const int *place)
{
    size_t site = s->kinds[kind].site_idx;

    for (size_t i = 0; i < s->options->n_pins; i++) {
        if (s->options->pins[i].site_idx == site) {
            return s->options->pins[i].parts & HDT_LAYOUT_PIN_HEAD &&
                           !(s->options->pins[i].parts & HDT_LAYOUT_PIN_EMBED)
                       ? SEARCH_MAX_KINDS
                       : -1;
        }
    }
    return place[site];
}

/* All kinds of a set in the order of its chain. */
static void chain_team(const struct search *s, const struct chain *chains, size_t n,
                       const struct site_set *set, struct search_cut *cut)
{
    int place[CHAIN_MAX_SITES], at = 0, last = set->last;
    struct search_team *team = &cut->teams[0];

    memset(cut, 0, sizeof(*cut));
    cut->n_teams = 1;
    for (unsigned mask = set->mask; last >= 0; at++) {
        int before = chains[mask * n + (size_t)last].before;

        place[last] = at;
        mask &= ~(1U << last);
        last = before;
    }
    for (int k = 0; k < s->n_kinds; k++) {
        int i = team->n;

        if (!(set->mask & 1U << s->kinds[k].site_idx)) {
            continue;
        }
        while (i > 0 && kind_place(s, team->kinds[i - 1], place) > kind_place(s, k, place)) {
            team->kinds[i] = team->kinds[i - 1];
            i--;
        }
        team->kinds[i] = k;
        team->n++;
    }
}

static void set_try(struct search *s, const struct chain *chains, size_t n,
                    const struct site_set *set)
{
    bool is_in[SEARCH_MAX_KINDS];
    struct search_cut cut;

    chain_team(s, chains, n, set, &cut);
    hdt_seek_teams_try(s, &cut);
    for (int k = 0; k < s->n_kinds; k++) {
        is_in[k] = set->mask & 1U << s->kinds[k].site_idx;
    }
    groupings_try(s, is_in);
}

static void sets_try(struct search *s)
{
    size_t n = s->base->cluster.sites.n, n_sets = 0;
    struct chain *chains = hdt_calloc((size_t)1 << n, n * sizeof(chains[0]));
    struct site_set *sets = hdt_calloc((size_t)1 << n, sizeof(sets[0]));

    chains_fill(s, n, chains);
    for (unsigned mask = 1; mask < 1U << n; mask++) {
        struct site_set *set = &sets[n_sets++];
        double best = -1;

        *set = (struct site_set){.mask = mask};
        for (size_t last = 0; last < n; last++) {
            if (chains[mask * n + last].bytes_per_s > best) {
                best = chains[mask * n + last].bytes_per_s;
                set->last = (int)last;
            }
        }
        set->least_s = set_least_s(s, mask, best);
    }
    qsort(sets, n_sets, sizeof(sets[0]), set_compare);
    for (size_t i = 0; i < n_sets && i < CHAIN_SETS && hdt_seek_goes_on(s); i++) {
        if (sets[i].least_s < s->best_estimate_s ||
            s->options->objective != HDT_LAYOUT_THROUGHPUT) {
            set_try(s, chains, n, &sets[i]);
        }
    }
    free(chains);
    free(sets);
}

static void types_try(struct search *s)
{
    bool is_in[SEARCH_MAX_KINDS];
    int type[SEARCH_MAX_KINDS], n_types = hdt_seek_types(s, type);

    for (int t = 0; t < n_types && hdt_seek_goes_on(s); t++) {
        for (int k = 0; k < s->n_kinds; k++) {
            is_in[k] = type[k] == t;
        }
        groupings_try(s, is_in);
        for (int k = 0; k < s->n_kinds; k++) {
            is_in[k] = type[k] != t;
        }
        groupings_try(s, is_in);
    }
}

void hdt_seek_generate(struct search *s)
{
    bool is_in[SEARCH_MAX_KINDS];

    if (s->n_kinds <= 4) {
        for (int k = 0; k < s->n_kinds; k++) {
            is_in[k] = true;
        }
        groupings_try(s, is_in);
        partitions_try(s);
        return;
    }
    if (s->base->cluster.sites.n <= CHAIN_MAX_SITES) {
        sets_try(s);
    } else {
        groupings_try(s, NULL);
    }
    types_try(s);
}
