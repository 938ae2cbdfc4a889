/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Degrees of tensor parallelism of a cut. Few kinds: all of them by type. Many: one degree for all,
 * then type by type.
 */
#include "src/plan/layout_search_impl.h"

#include <math.h>
#include <string.h>

/* Scores above the best one times this have nothing to gain from other degrees. */
#define FAR 1.5
/* Ways to give types degrees that are tried all. */
#define FEW_WAYS  64
#define MANY_WAYS 1024

/* Kinds of one device and as many of them in a node have one degree. */
int hdt_seek_types(const struct search *s, int *type)
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

/* Degrees of so many types are tried in every way: of clusters on which a simulation takes much
 * longer there is less time for it. */
static int64_t most_ways(const struct search *s)
{
    return search_is_large(s) ? FEW_WAYS : MANY_WAYS;
}

/* Are there more degrees than can be tried in every way? */
static bool has_many_degrees(const struct search *s)
{
    int type[SEARCH_MAX_KINDS], n_types = hdt_seek_types(s, type);
    int64_t n_all = 1, most = most_ways(s);

    for (int t = 0; t < n_types; t++) {
        for (int k = 0; k < s->n_kinds; k++) {
            if (type[k] == t) {
                n_all *= s->kinds[k].n_tps;
                break;
            }
        }
        n_all = n_all <= most ? n_all : most + 1;
    }
    return n_all > most;
}

static void degrees_try(struct search *s, struct search_cut *cut)
{
    int type[SEARCH_MAX_KINDS], n_types = hdt_seek_types(s, type), n_tps[SEARCH_MAX_KINDS] = {0};
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
        n_all *= n_all > most_ways(s) ? 1 : n_tps[i];
    }
    if (n_all > most_ways(s) || s->space & HDT_LAYOUT_SPACE_ONE_TP) {
        n_all = most;
    }
    for (int64_t at = 0; at < n_all && hdt_seek_goes_on(s); at++) {
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
        if (is_one || !(s->space & HDT_LAYOUT_SPACE_ONE_TP)) {
            hdt_seek_cut_try(s, cut, 0);
        }
    }
}

/* A number of stages while degrees are searched. */
struct descent {
    int n_stages; /* 0: every number */
    int level;    /* of all kinds, the best one */
    double least; /* by score */
};

static void level_set(const struct search *s, int level, struct search_cut *cut)
{
    for (int k = 0; k < s->n_kinds; k++) {
        cut->tp[k] = (uint8_t)(level < s->kinds[k].n_tps ? level : s->kinds[k].n_tps - 1);
    }
}

/* One degree for all kinds: of each number of stages the best, best first. How many. */
static int levels_try(struct search *s, struct search_cut *cut, struct descent *all)
{
    int n = 0, most = 0,
        top = cut->n_teams == 1 || search_is_large(s) ? 0 : hdt_seek_most_stages(s);

    for (int k = 0; k < s->n_kinds; k++) {
        most = s->kinds[k].n_tps > most ? s->kinds[k].n_tps : most;
    }
    for (int at = top > 0; at <= top; at = hdt_seek_stages_next(at)) {
        all[n++] = (struct descent){.n_stages = at, .least = INFINITY};
    }
    for (int level = 0; level < most && hdt_seek_goes_on(s); level++) {
        level_set(s, level, cut);
        for (int i = 0; i < n && hdt_seek_goes_on(s); i++) {
            s->cut_score = INFINITY;
            hdt_seek_cut_try(s, cut, all[i].n_stages);
            if (s->cut_score < all[i].least) {
                all[i].least = s->cut_score;
                all[i].level = level;
            }
        }
    }
    for (int i = 1; i < n; i++) {
        struct descent own = all[i];
        int at = i;

        for (; at > 0 && all[at - 1].least > own.least; at--) {
            all[at] = all[at - 1];
        }
        all[at] = own;
    }
    return n;
}

/* From one degree for all, type by type. */
static void types_descend(struct search *s, struct search_cut *cut, struct descent *d)
{
    int type[SEARCH_MAX_KINDS], n_types = hdt_seek_types(s, type);

    level_set(s, d->level, cut);
    for (int t = 0; t < n_types; t++) {
        struct search_cut own = *cut;
        int n_tps = 0;

        for (int k = 0; k < s->n_kinds; k++) {
            n_tps = type[k] == t ? s->kinds[k].n_tps : n_tps;
        }
        for (int level = 0; level < n_tps && hdt_seek_goes_on(s); level++) {
            for (int k = 0; k < s->n_kinds; k++) {
                own.tp[k] = type[k] == t ? (uint8_t)level : cut->tp[k];
            }
            s->cut_score = INFINITY;
            if (memcmp(own.tp, cut->tp, (size_t)s->n_kinds) != 0) {
                hdt_seek_cut_try(s, &own, d->n_stages);
            }
            if (s->cut_score < d->least) {
                d->least = s->cut_score;
                *cut = own;
            }
        }
    }
}

/* Of many kinds and degrees: from the best degree for all. With few stages other degrees are best
 * than with many, so each number of stages goes its own way (of large clusters all one, for time);
 * what is far from the best has nothing to gain. */
static double degrees_descend(struct search *s, struct search_cut *cut)
{
    struct descent all[SEARCH_MAX_STAGES];
    double least = INFINITY;
    int n;

    s->slack = search_is_large(s) ? 0 : FAR;
    n = levels_try(s, cut, all);
    for (int i = 0; i < n && hdt_seek_goes_on(s); i++) {
        if (all[i].least < FAR * s->best_score) {
            types_descend(s, cut, &all[i]);
        }
        least = search_min(least, all[i].least);
    }
    s->slack = 0;
    return least;
}

void hdt_seek_teams_try(struct search *s, struct search_cut *cut)
{
    bool many = has_many_degrees(s) && !(s->space & HDT_LAYOUT_SPACE_ONE_TP);
    double last = INFINITY;

    for (int b = 0; b < s->n_batches && hdt_seek_goes_on(s); b++) {
        double least;

        cut->batch = b;
        if (!many) {
            degrees_try(s, cut);
            continue;
        }
        least = degrees_descend(s, cut);
        /* Larger ones get no better once they have got worse. */
        if (least > 1.02 * last && last < INFINITY) {
            return;
        }
        last = least;
    }
}
