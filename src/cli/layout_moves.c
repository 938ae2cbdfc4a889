/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/layout_moves.h"
#include "src/base/buf.h"
#include "src/cli/human.h"
#include "src/plan/layout_cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Embedding, layers, head. */
#define UNITS(files) ((size_t)(files)->model.L + 2)

/* What the nodes of a plan hold: a row of units for each node that has a part. */
struct holder {
    const struct hdt_cluster_file_nodes *nodes;
    size_t site_idx; /* in `to`; its number of sites: it is not there any more */
    int64_t node;
    bool *units;
};
struct holders {
    struct holder *items;
    size_t n;
};

static bool is_same_node(const struct hdt_layout_group *a, const struct holder *b)
{
    return a->nodes == b->nodes && a->node == b->node;
}

static struct holder *holder_of(struct holders *h, const struct hdt_layout_group *group,
                                size_t n_units)
{
    for (size_t i = h->n; i-- > 0;) {
        if (is_same_node(group, &h->items[i])) {
            return &h->items[i];
        }
    }
    h->items[h->n] = (struct holder){.nodes = group->nodes,
                                     .site_idx = group->site_idx,
                                     .node = group->node,
                                     .units = hdt_calloc(n_units, sizeof(bool))};
    return &h->items[h->n++];
}

/* Units of a part of the pipeline: where they begin, where they end. */
static void part_units(const struct hdt_layout_files *f, size_t part, int64_t *begin, int64_t *end)
{
    int64_t at = 1;

    for (size_t p = 0;; p++) {
        int64_t n = hdt_layout_stage(&f->layout, p % f->n_stages)->layers;
        int64_t chunks = f->layout.chunks, chunk = (int64_t)(p / f->n_stages);

        /* What is left over goes to the last chunks, as layout_cost.c has it. */
        n = n / chunks + (chunk >= chunks - n % chunks ? 1 : 0);
        if (p == part) {
            *begin = part == 0 ? 0 : at;
            *end = part + 1 == hdt_layout_n_parts(f) ? f->model.L + 2 : at + n;
            return;
        }
        at += n;
    }
}

static void holders_init(struct holders *h, const struct hdt_layout_files *f)
{
    size_t n_parts = hdt_layout_n_parts(f);

    h->n = 0;
    h->items = hdt_calloc(f->n_replicas * f->n_stages, sizeof(h->items[0]));
    for (size_t p = 0; p < n_parts; p++) {
        int64_t begin, end;

        part_units(f, p, &begin, &end);
        for (size_t r = 0; r < f->n_replicas; r++) {
            struct holder *holder = holder_of(h, hdt_layout_group(f, r, p % f->n_stages), UNITS(f));

            for (int64_t u = begin; u < end; u++) {
                holder->units[u] = true;
            }
        }
    }
}

static void holders_release(struct holders *h)
{
    for (size_t i = 0; i < h->n; i++) {
        free(h->items[i].units);
    }
    free(h->items);
}

/* ---- where things are in the new cluster ---- */

static size_t site_in(const struct hdt_cluster_file *in, const struct hdt_layout_files *from,
                      const struct holder *h)
{
    return hdt_cluster_file_find_site(in, hdt_cluster_file_site(&from->cluster, h->site_idx)->name);
}

/* Nodes of the new cluster by the old one's; NULL: gone, or fewer than that. */
static const struct hdt_cluster_file_nodes *nodes_in(const struct hdt_cluster_file *in, size_t site,
                                                     const struct holder *h)
{
    const struct hdt_cluster_file_site *s =
        site < in->sites.n ? hdt_cluster_file_site(in, site) : NULL;

    for (size_t i = 0; s && i < s->nodes.n; i++) {
        const struct hdt_cluster_file_nodes *nodes = hdt_cluster_file_nodes(s, i);

        if (strcmp(nodes->name, h->nodes->name) == 0 && h->node < nodes->count) {
            return nodes;
        }
    }
    return NULL;
}

static bool is_among(size_t site, const size_t *sites, size_t n)
{
    bool is = false;

    for (size_t i = 0; i < n; i++) {
        is = is || sites[i] == site;
    }
    return is;
}

/* Rename what the old plan's nodes hold to the new cluster's, and drop what is gone. */
static void holders_carry(struct holders *h, const struct hdt_layout_files *from,
                          const struct hdt_layout_files *to, const size_t *gone, size_t n_gone)
{
    size_t n = 0;

    for (size_t i = 0; i < h->n; i++) {
        struct holder *holder = &h->items[i];
        size_t site = site_in(&to->cluster, from, holder);
        const struct hdt_cluster_file_nodes *nodes = nodes_in(&to->cluster, site, holder);

        if (!nodes || is_among(site, gone, n_gone)) {
            free(holder->units);
            continue;
        }
        holder->site_idx = site;
        holder->nodes = nodes;
        h->items[n++] = *holder;
    }
    h->n = n;
}

/* ---- bytes ---- */

static double unit_bytes(const struct hdt_layout_files *f, size_t unit)
{
    const struct hdt_layout *l = &f->layout;
    double value = l->precision <= HDT_PRECISION_TF32 ? 4 : 2;
    double moments = l->optimizer.moments == HDT_LAYOUT_MOMENTS_FP32 ? 8
                     : l->optimizer.moments == HDT_LAYOUT_MOMENTS_BF16
                         ? 4
                         : HDT_STAGE_COST_MOMENTS_INT8;
    double shards = l->optimizer.sharded ? (double)f->n_replicas : 1;
    double params = unit == 0              ? (double)hdt_model_shape_embedding_params(&f->model)
                    : unit + 1 == UNITS(f) ? (double)hdt_model_shape_head_params(&f->model)
                                           : (double)hdt_model_shape_layer_params(&f->model);

    return params * (value + ((value < 4 ? 4 : 0) + moments) / shards);
}

struct mover {
    const struct hdt_layout_files *to;
    const struct holders *old;
    struct hdt_layout_moves *moves;
    double *leg_s;  /* by from * n_sites + to */
    bool *has_site; /* by unit and site: it was, or has come over */
    size_t n_sites;
};

/* The site that has a unit and the quickest way here; n_sites: none. */
static size_t nearest(const struct mover *m, size_t unit, size_t here, double *bytes_per_s)
{
    size_t best = m->n_sites;

    *bytes_per_s = 0;
    for (size_t s = 0; s < m->n_sites; s++) {
        struct hdt_cluster_file_path path;
        double rate = INFINITY;

        if (s == here || !m->has_site[unit * m->n_sites + s]) {
            continue;
        }
        hdt_cluster_file_path(&m->to->cluster, s, here, &path);
        for (size_t i = 0; i < path.n_legs; i++) {
            rate = fmin(rate, hdt_cluster_file_leg_bytes_per_s(path.legs[i], 1e9));
        }
        if (rate > *bytes_per_s) {
            *bytes_per_s = rate;
            best = s;
        }
    }
    return best;
}

/* A unit comes to a node that did not have it; returns its seconds on the node's link. */
static double unit_move(struct mover *m, const struct holder *h, size_t unit)
{
    double bytes = unit_bytes(m->to, unit), rate;
    bool *here = &m->has_site[unit * m->n_sites + h->site_idx];
    size_t from = m->n_sites;

    m->moves->n_layers++;
    if (!*here) {
        from = nearest(m, unit, h->site_idx, &rate);
        *here = true;
        if (from == m->n_sites) {
            m->moves->stored_bytes += bytes;
            return 0;
        }
        m->moves->wan_bytes += bytes;
        m->leg_s[from * m->n_sites + h->site_idx] += bytes / rate;
    } else {
        m->moves->site_bytes += bytes;
    }
    return h->nodes->between
               ? bytes / hdt_link_curve_bytes_per_s(h->nodes->between, 1e9, h->nodes->devices)
               : 0;
}

static void node_move(struct mover *m, const struct holder *h)
{
    const struct holder *old = NULL;
    double seconds = 0;

    for (size_t i = 0; i < m->old->n && !old; i++) {
        const struct holder *o = &m->old->items[i];

        old = o->nodes == h->nodes && o->node == h->node ? o : NULL;
    }
    for (size_t u = 0; u < UNITS(m->to); u++) {
        if (h->units[u]) {
            m->moves->n_all++;
            seconds += old && old->units[u] ? 0 : unit_move(m, h, u);
        }
    }
    m->moves->seconds = fmax(m->moves->seconds, seconds);
}

void hdt_layout_moves(const struct hdt_layout_files *from, const struct hdt_layout_files *to,
                      const size_t *gone, size_t n_gone, struct hdt_layout_moves *moves)
{
    struct holders old, new;
    struct mover m = {.to = to, .old = &old, .moves = moves, .n_sites = to->cluster.sites.n};

    m.leg_s = hdt_calloc(m.n_sites * m.n_sites, sizeof(m.leg_s[0]));
    m.has_site = hdt_calloc(UNITS(to) * m.n_sites, sizeof(m.has_site[0]));
    holders_init(&old, from);
    holders_carry(&old, from, to, gone, n_gone);
    holders_init(&new, to);
    for (size_t i = 0; i < old.n; i++) {
        for (size_t u = 0; u < UNITS(to); u++) {
            bool *has = &m.has_site[u * m.n_sites + old.items[i].site_idx];

            *has = *has || old.items[i].units[u];
        }
    }
    for (size_t i = 0; i < new.n; i++) {
        node_move(&m, &new.items[i]);
    }
    for (size_t i = 0; i < m.n_sites * m.n_sites; i++) {
        moves->seconds = fmax(moves->seconds, m.leg_s[i]);
    }
    holders_release(&new);
    holders_release(&old);
    free(m.leg_s);
    free(m.has_site);
}

/* ---- showing ---- */

void hdt_layout_moves_print(const struct hdt_layout_moves *m, FILE *out)
{
    char site[HDT_HUMAN_CAP], wan[HDT_HUMAN_CAP], stored[HDT_HUMAN_CAP], t[HDT_HUMAN_CAP];

    if (!m->is_asked) {
        return;
    }
    if (isnan(m->was_step_s)) {
        fprintf(out, "current    cannot go on: %s\n", m->was_why);
    } else {
        fprintf(out, "current    %.4g s a step as it runs; the plan above %+.1f %%%s\n",
                m->was_step_s, 100 * (m->now_step_s / m->was_step_s - 1),
                m->goes_on ? ": it goes on, no other is 1 % better" : "");
    }
    fprintf(out, "moves      %lld of %lld layers of nodes; %s inside sites, %s between sites",
            (long long)m->n_layers, (long long)m->n_all, hdt_human_bytes(m->site_bytes, site),
            hdt_human_bytes(m->wan_bytes, wan));
    if (m->stored_bytes > 0) {
        fprintf(out, ", %s from a checkpoint", hdt_human_bytes(m->stored_bytes, stored));
    }
    fprintf(out, "; %s\n", m->n_layers > 0 ? hdt_human_duration(m->seconds, t) : "nothing waits");
    if (!isnan(m->was_step_s) && m->now_step_s < m->was_step_s && m->seconds > 0) {
        fprintf(out, "           won back after %.0f steps\n",
                ceil(m->seconds / (m->was_step_s - m->now_step_s)));
    }
}

json_t *hdt_layout_moves_json(const struct hdt_layout_moves *m)
{
    json_t *was = isnan(m->was_step_s) ? json_null() : json_real(m->was_step_s);

    return json_pack("{s:o, s:s, s:f, s:b, s:I, s:I, s:f, s:f, s:f, s:f}", "step_s", was,
                     "cannot_go_on", m->was_why, "new_step_s", m->now_step_s, "goes_on", m->goes_on,
                     "layers_moved", (json_int_t)m->n_layers, "layers", (json_int_t)m->n_all,
                     "site_bytes", m->site_bytes, "wan_bytes", m->wan_bytes, "stored_bytes",
                     m->stored_bytes, "seconds", m->seconds);
}
