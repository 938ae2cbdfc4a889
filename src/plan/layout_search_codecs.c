/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * What links between sites may have: the same codec all, or each its own. Of each path those are
 * taken that are best for a frame by itself: the one that is there first, and the one after which
 * the next can follow first, alone on its way and when several replicas share the wire (each has a
 * codec of its own). Which of these a plan should have its estimate says, and the simulator has the
 * last word on each link of the best one.
 */
#include "src/base/buf.h"
#include "src/plan/layout_search_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Replicas that share a wire, where it is taken to be shared. */
#define SHARED 4

static const struct hdt_layout_wire raw = {
    .codec_ratio = 1, .codec_gb_per_s = NAN, .sync_ratio = 1};

/* ---- wires ---- */

static bool wire_is_same(const struct hdt_layout_wire *a, const struct hdt_layout_wire *b)
{
    return a->codec_ratio == b->codec_ratio && a->sync_ratio == b->sync_ratio &&
           (a->codec_gb_per_s == b->codec_gb_per_s ||
            (isnan(a->codec_gb_per_s) && isnan(b->codec_gb_per_s)));
}

/* Its position; a new one if need be. */
static int wire_add(struct search *s, const struct hdt_layout_wire *wire)
{
    for (size_t i = 0; i < s->n_wires; i++) {
        if (wire_is_same(&s->wires[i], wire)) {
            return (int)i;
        }
    }
    if (s->n_wires == s->wires_cap) {
        s->wires_cap = s->wires_cap ? 2 * s->wires_cap : 16;
        s->wires = hdt_realloc(s->wires, s->wires_cap * sizeof(s->wires[0]));
    }
    s->wires[s->n_wires] = *wire;
    return (int)s->n_wires++;
}

/* For every link; one that is there already stays what it is called. */
static void codec_add(struct search *s, const struct hdt_layout_wire *wire, const char *name)
{
    int at = wire_add(s, wire);

    if (at == s->n_codecs) {
        snprintf(s->codec_names[at], sizeof(s->codec_names[0]), "%s", name);
        s->n_codecs++;
    }
}

/* ---- choices ---- */

static struct search_choice *choice_add(struct search *s, const char *name)
{
    struct search_choice *c = &s->choices[s->n_made++];

    HDT_ASSERT(s->n_made <= SEARCH_MAX_CHOICES);
    *c = (struct search_choice){.by_pair = NULL};
    snprintf(c->name, sizeof(c->name), "%s", name);
    return c;
}

static uint16_t *table_new(const struct search *s)
{
    size_t n = s->base->cluster.sites.n;

    return hdt_calloc(n * n, sizeof(uint16_t));
}

static void table_set(const struct search *s, uint16_t *table, size_t a, size_t b, int wire)
{
    size_t n = s->base->cluster.sites.n;

    table[a * n + b] = table[b * n + a] = (uint16_t)wire;
}

/* The layout's links, and what it says of all others; false: it says the same of all. */
static bool given_add(struct search *s, const struct hdt_layout_wire *own)
{
    size_t n = s->base->cluster.sites.n;
    struct search_choice *c;
    int all;

    if (s->base->n_wan_pairs == 0) {
        return false;
    }
    c = choice_add(s, "the layout's");
    c->is_given = true;
    c->by_pair = table_new(s);
    all = wire_add(s, own);
    for (size_t i = 0; i < n * n; i++) {
        c->by_pair[i] = (uint16_t)all;
    }
    for (size_t i = 0; i < s->base->n_wan_pairs; i++) {
        const struct hdt_layout_wan_pair *p = &s->base->wan_pairs[i];

        table_set(s, c->by_pair, p->low, p->high, wire_add(s, &p->wire));
    }
    return true;
}

/* How the codec of a path is chosen. */
enum best_for {
    BEST_FOR_FRAME,  /* the way of a frame by itself */
    BEST_FOR_PACE,   /* frames one after another */
    BEST_FOR_SHARED, /* those of several replicas */
    BEST_FOR_BYTES,  /* the least bytes, if a frame is no slower than without a codec */
    BEST_FOR_COUNT
};

struct frame_times {
    double way_s;  /* but for the round trip, which is the same for all */
    double pace_s; /* until the next one can follow */
    double ratio;
};

static void frame_times(const struct search *s, size_t a, size_t b, int codec, double n_shared,
                        struct frame_times *t)
{
    const struct hdt_layout_wire *wire = &s->wires[codec];
    const struct hdt_cluster_file_path *path = search_path(s, a, b);
    double bytes = (double)s->batches[0] * s->model.T * s->model.C * s->model.value_bytes;
    double wire_s = 0,
           codec_s = isnan(wire->codec_gb_per_s) ? 0 : bytes / wire->codec_gb_per_s / 1e9;

    for (size_t i = 0; i < path->n_legs; i++) {
        double rate = hdt_cluster_file_leg_bytes_per_s(path->legs[i], bytes);

        wire_s = search_max(wire_s, n_shared * bytes * wire->codec_ratio / (1 - path->loss) / rate);
    }
    *t = (struct frame_times){.way_s = 2 * codec_s + wire_s,
                              .pace_s = search_max(codec_s, wire_s),
                              .ratio = wire->codec_ratio};
}

static bool is_before(double a, double b, double then_a, double then_b)
{
    return a < b || (a == b && then_a < then_b);
}

/* Of a path; of equal ones the first. */
static int codec_for(const struct search *s, size_t a, size_t b, enum best_for how)
{
    double n_shared = how == BEST_FOR_SHARED ? SHARED : 1;
    struct frame_times best = {0}, plain = {.way_s = INFINITY, .pace_s = INFINITY};
    int at = -1;

    for (int k = 0; k < s->n_codecs && how == BEST_FOR_BYTES; k++) {
        if (wire_is_same(&s->wires[k], &raw)) {
            frame_times(s, a, b, k, n_shared, &plain);
        }
    }
    for (int k = 0; k < s->n_codecs; k++) {
        struct frame_times t;
        bool is_better;

        frame_times(s, a, b, k, n_shared, &t);
        if (t.way_s > plain.way_s || t.pace_s > plain.pace_s) {
            continue;
        }
        is_better =
            at < 0 ||
            (how == BEST_FOR_FRAME   ? is_before(t.way_s, best.way_s, t.pace_s, best.pace_s)
             : how == BEST_FOR_BYTES ? is_before(t.ratio, best.ratio, t.way_s, best.way_s)
                                     : is_before(t.pace_s, best.pace_s, t.way_s, best.way_s));
        if (is_better) {
            at = k;
            best = t;
        }
    }
    return at < 0 ? 0 : at;
}

/* Is there a choice that says the same of all pairs? */
static bool table_is_new(const struct search *s, const uint16_t *table)
{
    size_t n = s->base->cluster.sites.n;
    bool is_new = true;

    for (int k = 0; k < s->n_made && is_new; k++) {
        const struct search_choice *c = &s->choices[k];
        bool same = true;

        for (size_t a = 0; a < n && same; a++) {
            for (size_t b = a + 1; b < n && same; b++) {
                same = table[a * n + b] == (c->by_pair ? c->by_pair[a * n + b] : c->wire);
            }
        }
        is_new = !same;
    }
    return is_new;
}

static void by_link_add(struct search *s, enum best_for how)
{
    size_t n = s->base->cluster.sites.n;
    uint16_t *table = table_new(s);

    for (size_t a = 0; a < n; a++) {
        for (size_t b = a + 1; b < n; b++) {
            table_set(s, table, a, b, codec_for(s, a, b, how));
        }
    }
    if (table_is_new(s, table)) {
        choice_add(s, "of each link")->by_pair = table;
    } else {
        free(table);
    }
}

/* What bounds are reckoned with: the least of all, which takes no time. */
static void least_add(struct search *s)
{
    struct hdt_layout_wire least = raw;

    for (size_t i = 0; i < s->n_wires; i++) {
        least.codec_ratio = search_min(least.codec_ratio, s->wires[i].codec_ratio);
        least.sync_ratio = search_min(least.sync_ratio, s->wires[i].sync_ratio);
    }
    s->least_ratio = least.codec_ratio;
    s->least = s->n_made;
    choice_add(s, "least")->wire = wire_add(s, &least);
}

void hdt_seek_codecs_fill(struct search *s)
{
    const struct hdt_layout_search_options *o = s->options;
    const struct hdt_layout_wan *wan = &s->base->layout.wan;
    struct hdt_layout_wire own = {wan->codec_ratio, wan->codec_gb_per_s, wan->sync_ratio};
    bool plain = o->space & HDT_LAYOUT_SPACE_FULL_LINK, has_links = false;
    bool free_codecs = !plain && !(o->keep & HDT_LAYOUT_KEEP_CODEC) && s->base->cluster.sites.n > 1;

    /* Codecs come first among the wires. */
    if (plain) {
        codec_add(s, &raw, "raw");
    } else if (s->base->n_wan_pairs == 0 || free_codecs) {
        codec_add(s, &own, wire_is_same(&own, &raw) ? "raw" : "the layout's");
    }
    for (size_t i = 0; free_codecs && i <= o->n_codecs; i++) {
        const struct hdt_layout_codec *c = i > 0 ? &o->codecs[i - 1] : NULL;
        struct hdt_layout_wire wire =
            c ? (struct hdt_layout_wire){c->ratio, c->gb_per_s, c->sync_ratio} : raw;

        codec_add(s, &wire, c ? c->name : "raw");
    }
    has_links = !plain && given_add(s, &own);
    for (int k = 0; k < s->n_codecs; k++) {
        struct search_choice *choice = choice_add(s, s->codec_names[k]);

        choice->wire = k;
        choice->is_given = k == 0 && !plain && !has_links;
    }
    for (int how = 0; how < BEST_FOR_COUNT && free_codecs; how++) {
        if (how != BEST_FOR_BYTES || o->objective == HDT_LAYOUT_COST) {
            by_link_add(s, (enum best_for)how);
        }
    }
    s->n_choices = s->n_made;
    least_add(s);
}

void hdt_seek_codecs_release(struct search *s)
{
    for (int i = 0; i < s->n_made; i++) {
        free(s->choices[i].by_pair);
    }
    free(s->wires);
}

/* ---- of a candidate ---- */

static int pair_add(struct search_pair *pairs, int n, size_t a, size_t b)
{
    struct search_pair p = {a < b ? a : b, a < b ? b : a};

    for (int i = 0; i < n; i++) {
        if (pairs[i].low == p.low && pairs[i].high == p.high) {
            return n;
        }
    }
    if (a == b || n == SEARCH_MAX_PAIRS) {
        return n;
    }
    pairs[n] = p;
    return n + 1;
}

int hdt_seek_pairs(const struct search *s, const struct search_cand *c, struct search_pair *pairs)
{
    int n = 0;

    for (int t = 0; t < c->n_stages; t++) {
        size_t sites[SEARCH_MAX_CLASSES];
        int n_sites = 0;

        for (int i = 0; i < c->n_classes; i++) {
            size_t site = s->kinds[c->cells[i][t].kind].site_idx;
            bool is_new = true;

            if (t + 1 < c->n_stages) {
                n = pair_add(pairs, n, site, s->kinds[c->cells[i][t + 1].kind].site_idx);
            }
            for (int k = 0; k < n_sites; k++) {
                is_new = is_new && sites[k] != site;
            }
            if (is_new) {
                sites[n_sites++] = site;
            }
        }
        for (int k = 0; k < n_sites; k++) {
            n = pair_add(pairs, n, sites[k], sites[(k + 1) % n_sites]);
        }
    }
    return n;
}

static int wire_of(const struct search *s, int choice, size_t a, size_t b)
{
    return (int)(search_wire(s, choice, a, b) - s->wires);
}

bool hdt_seek_choice_is_same(const struct search *s, int a, int b, const struct search_pair *pairs,
                             int n)
{
    bool same = n < SEARCH_MAX_PAIRS; /* else there are others, of which nothing is known */

    for (int i = 0; i < n && same; i++) {
        same = wire_of(s, a, pairs[i].low, pairs[i].high) ==
               wire_of(s, b, pairs[i].low, pairs[i].high);
    }
    return same;
}

int hdt_seek_choice_make(struct search *s, int like)
{
    size_t n = s->base->cluster.sites.n;
    uint16_t *table;

    if (s->n_made == SEARCH_MAX_CHOICES) {
        return -1;
    }
    table = table_new(s);
    for (size_t i = 0; i < n * n; i++) {
        const struct search_choice *c = &s->choices[like];

        table[i] = c->by_pair ? c->by_pair[i] : (uint16_t)c->wire;
    }
    choice_add(s, "of each link")->by_pair = table;
    return s->n_made - 1;
}

void hdt_seek_choice_set(struct search *s, int choice, const struct search_pair *pair, int wire)
{
    table_set(s, s->choices[choice].by_pair, pair->low, pair->high, wire);
}

void hdt_seek_choice_take_back(struct search *s)
{
    free(s->choices[--s->n_made].by_pair);
}

/* ---- written down ---- */

/* What most of the pairs have; of as many the first. */
static int wire_of_most(const struct search *s, const struct search_cand *c,
                        const struct search_pair *pairs, int n)
{
    int best = 0, at = s->choices[c->codec].wire;

    for (int i = 0; i < n; i++) {
        int wire = wire_of(s, c->codec, pairs[i].low, pairs[i].high), count = 0;

        for (int k = 0; k < n; k++) {
            count += wire_of(s, c->codec, pairs[k].low, pairs[k].high) == wire;
        }
        if (count > best) {
            best = count;
            at = wire;
        }
    }
    return at;
}

static void link_write(const struct search *s, size_t a, size_t b,
                       const struct hdt_layout_wire *wire, struct hdt_conf_list *links)
{
    const struct hdt_cluster_file *cluster = &s->base->cluster;
    struct hdt_layout_wan_link *all = hdt_realloc(links->items, (links->n + 1) * sizeof(all[0]));

    all[links->n++] = (struct hdt_layout_wan_link){
        .from = hdt_strdup(hdt_cluster_file_site(cluster, a)->name),
        .to = hdt_strdup(hdt_cluster_file_site(cluster, b)->name),
        .codec_ratio = wire->codec_ratio,
        .codec_gb_per_s = isnan(wire->codec_gb_per_s) ? 0 : wire->codec_gb_per_s,
        .sync_ratio = wire->sync_ratio};
    links->items = all;
}

void hdt_seek_codecs_write(const struct search *s, const struct search_cand *c,
                           struct hdt_layout *layout)
{
    struct search_pair pairs[SEARCH_MAX_PAIRS];
    int n = hdt_seek_pairs(s, c, pairs), most = wire_of_most(s, c, pairs, n);
    size_t n_sites = n == SEARCH_MAX_PAIRS ? s->base->cluster.sites.n : 0;

    layout->wan.codec_ratio = s->wires[most].codec_ratio;
    layout->wan.codec_gb_per_s = s->wires[most].codec_gb_per_s;
    layout->wan.sync_ratio = s->wires[most].sync_ratio;
    for (int i = 0; i < n && n_sites == 0; i++) {
        int wire = wire_of(s, c->codec, pairs[i].low, pairs[i].high);

        if (wire != most) {
            link_write(s, pairs[i].low, pairs[i].high, &s->wires[wire], &layout->wan.links);
        }
    }
    for (size_t a = 0; a < n_sites; a++) {
        for (size_t b = a + 1; b < n_sites; b++) {
            int wire = wire_of(s, c->codec, a, b);

            if (wire != most) {
                link_write(s, a, b, &s->wires[wire], &layout->wan.links);
            }
        }
    }
}

void hdt_seek_codecs_text(const struct search *s, const struct search_cand *c, char *text,
                          size_t cap)
{
    struct search_pair pairs[SEARCH_MAX_PAIRS];
    int n = hdt_seek_pairs(s, c, pairs);
    struct hdt_buf buf;

    if (!s->choices[c->codec].by_pair || s->choices[c->codec].is_given || n == 0) {
        snprintf(text, cap, "%s", s->choices[c->codec].name);
        return;
    }
    hdt_buf_init(&buf);
    for (int i = 0; i < n; i++) {
        int wire = wire_of(s, c->codec, pairs[i].low, pairs[i].high);
        char ratio[32];

        snprintf(ratio, sizeof(ratio), "of %.3g", s->wires[wire].codec_ratio);
        hdt_buf_appendf(&buf, "%s%s %.32s/%.32s", i ? ", " : "",
                        wire < s->n_codecs ? s->codec_names[wire] : ratio,
                        hdt_cluster_file_site(&s->base->cluster, pairs[i].low)->name,
                        hdt_cluster_file_site(&s->base->cluster, pairs[i].high)->name);
    }
    snprintf(text, cap, "%s", hdt_buf_str(&buf));
    hdt_buf_release(&buf);
}
