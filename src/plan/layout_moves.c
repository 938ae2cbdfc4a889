/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/plan/layout_moves.h"
#include "src/base/buf.h"
#include "src/plan/layout_cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of rates that depend on the size of messages. */
#define MESSAGE_BYTES 1e9
/* So many nodes of a site are looked at for the one that has least to send. */
#define WINDOW 16
#define NONE   SIZE_MAX

struct kind {
    size_t site, nodes_idx;
    const struct hdt_cluster_file_nodes *nodes;
    double s_per_byte; /* of its link between nodes; 0: there is none */
};

/* Nodes of a site that have what is looked at. */
struct chain {
    size_t head, tail, at;
    uint32_t stamp; /* else it is empty */
};
/* Those that had it, and also those that have got it. */
enum chain_of { HAD, HAS, N_CHAINS };

/* Layers that go the same way. */
struct piece {
    int64_t begin, end;
    size_t from, to; /* nodes; from NONE: the checkpoint */
    double bytes;
};

struct hdt_layout_mover {
    const struct hdt_layout_files *base;
    struct kind *kinds;
    size_t *first_kind; /* by site */
    size_t *first_node; /* by kind */
    size_t *kind_of;    /* by node */
    size_t n_sites, n_kinds, n_nodes;
    struct hdt_cluster_file_path *paths; /* (sites, sites) */
    double *leg_s;                       /* of a byte, by leg */
    size_t n_pairs;                      /* of the site that has most */
    struct hdt_layout_placed old;
    int64_t *old_begin;             /* where parts begin, and the end */
    double value, state;            /* bytes of a parameter: weights; what the optimizer keeps */
    double *params;                 /* sums up to each unit; of the head without a tied table */
    double *load_s, *row_s;         /* by link; row_s is 0 between its uses */
    uint32_t *has, *met;            /* by node: in the segment with this stamp */
    size_t *next[N_CHAINS];         /* by node */
    struct chain *chains[N_CHAINS]; /* by site */
    uint32_t stamp;
    size_t most; /* the link with most load; NONE */
    struct piece *pieces;
    size_t n_pieces, cap;
    bool is_listing;
};

/* ---- parts ---- */

static size_t n_parts(const struct hdt_layout_placed *p)
{
    return p->n_stages * (size_t)p->chunks;
}

/* Where each part of the pipeline begins: the embedding is of the first, the head of the last. */
static int64_t *begins_new(const struct hdt_layout_placed *p)
{
    size_t n = n_parts(p);
    int64_t *begin = hdt_calloc(n + 1, sizeof(begin[0])), at = 1;

    for (size_t i = 0; i < n; i++) {
        int64_t layers = p->layers[i % p->n_stages], chunk = (int64_t)(i / p->n_stages);

        begin[i] = i == 0 ? 0 : at;
        /* What is left over goes to the last chunks, as layout_cost.c has it. */
        at += layers / p->chunks + (chunk >= p->chunks - layers % p->chunks ? 1 : 0);
    }
    begin[n] = at + 1;
    return begin;
}

static void placed_release(struct hdt_layout_placed *p)
{
    free(p->layers);
    free(p->node);
}

static void placed_init(struct hdt_layout_placed *p, const struct hdt_layout_files *f)
{
    *p = (struct hdt_layout_placed){.n_stages = f->n_stages,
                                    .n_replicas = f->n_replicas,
                                    .chunks = f->layout.chunks,
                                    .is_sharded = f->layout.optimizer.sharded};
    p->layers = hdt_calloc(f->n_stages, sizeof(p->layers[0]));
    p->node = hdt_calloc(f->n_stages * f->n_replicas, sizeof(p->node[0]));
    for (size_t t = 0; t < f->n_stages; t++) {
        p->layers[t] = hdt_layout_stage(&f->layout, t)->layers;
    }
}

/* ---- the cluster ---- */

size_t hdt_layout_mover_node(const struct hdt_layout_mover *m, size_t site, size_t nodes,
                             int64_t node)
{
    return m->first_node[m->first_kind[site] + nodes] + (size_t)node;
}

size_t hdt_layout_mover_n_nodes(const struct hdt_layout_mover *m)
{
    return m->n_nodes;
}

static void kinds_init(struct hdt_layout_mover *m)
{
    const struct hdt_cluster_file *cluster = &m->base->cluster;

    m->n_sites = cluster->sites.n;
    m->first_kind = hdt_calloc(m->n_sites + 1, sizeof(m->first_kind[0]));
    for (size_t i = 0; i < m->n_sites; i++) {
        const struct hdt_cluster_file_site *site = hdt_cluster_file_site(cluster, i);

        m->first_kind[i + 1] = m->first_kind[i] + site->nodes.n;
        m->n_pairs = site->pairs.n > m->n_pairs ? site->pairs.n : m->n_pairs;
    }
    m->n_kinds = m->first_kind[m->n_sites];
    m->kinds = hdt_calloc(m->n_kinds, sizeof(m->kinds[0]));
    m->first_node = hdt_calloc(m->n_kinds + 1, sizeof(m->first_node[0]));
    for (size_t i = 0; i < m->n_sites; i++) {
        const struct hdt_cluster_file_site *site = hdt_cluster_file_site(cluster, i);

        for (size_t n = 0; n < site->nodes.n; n++) {
            struct kind *k = &m->kinds[m->first_kind[i] + n];
            const struct hdt_link_curve *link;

            *k = (struct kind){.site = i, .nodes_idx = n, .nodes = hdt_cluster_file_nodes(site, n)};
            link = k->nodes->between;
            k->s_per_byte =
                link ? 1 / hdt_link_curve_bytes_per_s(link, MESSAGE_BYTES, k->nodes->devices) : 0;
            m->first_node[m->first_kind[i] + n + 1] =
                m->first_node[m->first_kind[i] + n] + (size_t)k->nodes->count;
        }
    }
    m->n_nodes = m->first_node[m->n_kinds];
    m->kind_of = hdt_calloc(m->n_nodes + 1, sizeof(m->kind_of[0]));
    for (size_t k = 0; k < m->n_kinds; k++) {
        for (size_t n = m->first_node[k]; n < m->first_node[k + 1]; n++) {
            m->kind_of[n] = k;
        }
    }
}

static void links_init(struct hdt_layout_mover *m)
{
    const struct hdt_cluster_file *cluster = &m->base->cluster;
    const struct hdt_cluster_file_wan *wan = cluster->wan.items;
    size_t n_links;

    m->paths = hdt_calloc(m->n_sites * m->n_sites, sizeof(m->paths[0]));
    for (size_t a = 0; a < m->n_sites; a++) {
        for (size_t b = 0; b < m->n_sites; b++) {
            if (a != b) {
                hdt_cluster_file_path(cluster, a, b, &m->paths[a * m->n_sites + b]);
            }
        }
    }
    m->leg_s = hdt_calloc(cluster->wan.n + 1, sizeof(m->leg_s[0]));
    for (size_t i = 0; i < cluster->wan.n; i++) {
        m->leg_s[i] =
            wan[i].via[0] ? 0 : 1 / hdt_cluster_file_leg_bytes_per_s(&wan[i], MESSAGE_BYTES);
    }
    n_links = 2 * (m->n_nodes * (1 + m->n_pairs) + cluster->wan.n);
    m->load_s = hdt_calloc(n_links + 1, sizeof(m->load_s[0]));
    m->row_s = hdt_calloc(n_links + 1, sizeof(m->row_s[0]));
}

static size_t n_links(const struct hdt_layout_mover *m)
{
    return 2 * (m->n_nodes * (1 + m->n_pairs) + m->base->cluster.wan.n);
}

/* ---- what runs ---- */

static bool is_among(size_t site, const size_t *sites, size_t n)
{
    bool is = false;

    for (size_t i = 0; i < n; i++) {
        is = is || sites[i] == site;
    }
    return is;
}

/* The node of base's cluster that a group runs on; NONE: it is gone. */
static size_t node_in(const struct hdt_layout_mover *m, const struct hdt_layout_files *from,
                      const struct hdt_layout_group *g, const size_t *gone, size_t n_gone)
{
    const struct hdt_cluster_file *cluster = &m->base->cluster;
    const char *name = hdt_cluster_file_site(&from->cluster, g->site_idx)->name;
    size_t site = hdt_cluster_file_find_site(cluster, name);

    if (site == m->n_sites || is_among(site, gone, n_gone)) {
        return NONE;
    }
    for (size_t k = m->first_kind[site]; k < m->first_kind[site + 1]; k++) {
        if (strcmp(m->kinds[k].nodes->name, g->nodes->name) == 0 &&
            g->node < m->kinds[k].nodes->count) {
            return m->first_node[k] + (size_t)g->node;
        }
    }
    return NONE;
}

static void bytes_init(struct hdt_layout_mover *m)
{
    const struct hdt_layout *l = &m->base->layout;
    const struct hdt_model_shape *shape = &m->base->model;
    size_t L = (size_t)shape->L;
    double at = 0;

    m->value = l->precision <= HDT_PRECISION_TF32 ? 4 : 2;
    m->state = (m->value < 4 ? 4 : 0) + (l->optimizer.moments == HDT_LAYOUT_MOMENTS_FP32 ? 8
                                         : l->optimizer.moments == HDT_LAYOUT_MOMENTS_BF16
                                             ? 4
                                             : HDT_STAGE_COST_MOMENTS_INT8);
    m->params = hdt_calloc(L + 3, sizeof(m->params[0]));
    for (size_t u = 0; u < L + 2; u++) {
        at += u == 0       ? (double)hdt_model_shape_embedding_params(shape)
              : u == L + 1 ? (double)hdt_model_shape_head_params(shape)
                           : (double)hdt_model_shape_layer_params(shape);
        m->params[u + 1] = at;
    }
}

struct hdt_layout_mover *hdt_layout_mover_new(const struct hdt_layout_files *from,
                                              const struct hdt_layout_files *base,
                                              const size_t *gone, size_t n_gone)
{
    struct hdt_layout_mover *m = hdt_calloc(1, sizeof(*m));

    m->base = base;
    kinds_init(m);
    links_init(m);
    bytes_init(m);
    placed_init(&m->old, from);
    for (size_t g = 0; g < from->n_replicas * from->n_stages; g++) {
        m->old.node[g] = node_in(m, from, &from->groups[g], gone, n_gone);
    }
    m->old_begin = begins_new(&m->old);
    m->has = hdt_calloc(m->n_nodes + 1, sizeof(m->has[0]));
    m->met = hdt_calloc(m->n_nodes + 1, sizeof(m->met[0]));
    for (int i = 0; i < N_CHAINS; i++) {
        m->next[i] = hdt_calloc(m->n_nodes + 1, sizeof(m->next[i][0]));
        m->chains[i] = hdt_calloc(m->n_sites, sizeof(m->chains[i][0]));
    }
    return m;
}

void hdt_layout_mover_free(struct hdt_layout_mover *m)
{
    if (!m) {
        return;
    }
    free(m->kinds);
    free(m->first_kind);
    free(m->first_node);
    free(m->kind_of);
    free(m->paths);
    free(m->leg_s);
    placed_release(&m->old);
    free(m->old_begin);
    free(m->params);
    free(m->load_s);
    free(m->row_s);
    free(m->has);
    free(m->met);
    for (int i = 0; i < N_CHAINS; i++) {
        free(m->next[i]);
        free(m->chains[i]);
    }
    free(m->pieces);
    free(m);
}

/* ---- routes ---- */

#define ROUTE_MAX (HDT_CLUSTER_FILE_MAX_LEGS + 2)

struct route {
    size_t links[ROUTE_MAX];
    double s_per_byte[ROUTE_MAX];
    size_t n;
};

static void route_add(struct route *r, size_t link, double s_per_byte)
{
    HDT_ASSERT(r->n < ROUTE_MAX);
    r->links[r->n] = link;
    r->s_per_byte[r->n++] = s_per_byte;
}

static bool is_half(const struct hdt_link_curve *curve)
{
    return curve && curve->duplex != HDT_LINK_FULL_DUPLEX;
}

/* The link of a node to nodes of another kind, out or in; `other` NONE: from the checkpoint. */
static void route_add_node(const struct hdt_layout_mover *m, struct route *r, size_t node,
                           size_t other, bool is_in)
{
    const struct kind *a = &m->kinds[m->kind_of[node]];
    const struct kind *b = other == NONE ? NULL : &m->kinds[m->kind_of[other]];
    const struct hdt_cluster_file_site *site = hdt_cluster_file_site(&m->base->cluster, a->site);
    const struct hdt_cluster_file_pair *pairs = site->pairs.items;

    for (size_t i = 0; b && a->site == b->site && i < site->pairs.n; i++) {
        if ((pairs[i].from_idx == a->nodes_idx && pairs[i].to_idx == b->nodes_idx) ||
            (pairs[i].from_idx == b->nodes_idx && pairs[i].to_idx == a->nodes_idx)) {
            size_t at = m->n_nodes + m->base->cluster.wan.n + node * m->n_pairs + i;

            route_add(
                r, 2 * at + (is_in && !is_half(pairs[i].link)),
                1 / hdt_link_curve_bytes_per_s(pairs[i].link, MESSAGE_BYTES, a->nodes->devices));
            return;
        }
    }
    if (a->s_per_byte > 0) {
        route_add(r, 2 * node + (is_in && !is_half(a->nodes->between)), a->s_per_byte);
    }
}

static void route_find(const struct hdt_layout_mover *m, size_t from, size_t to, struct route *r)
{
    size_t b = m->kinds[m->kind_of[to]].site, a = b;
    const struct hdt_cluster_file_wan *all = m->base->cluster.wan.items;

    r->n = 0;
    if (from != NONE) {
        a = m->kinds[m->kind_of[from]].site;
        route_add_node(m, r, from, to, false);
    }
    if (a != b) {
        const struct hdt_cluster_file_path *path = &m->paths[a * m->n_sites + b];

        for (size_t i = 0; i < path->n_legs; i++) {
            size_t leg = (size_t)(path->legs[i] - all);

            route_add(r,
                      2 * (m->n_nodes + leg) + (path->reversed[i] && !is_half(path->legs[i]->link)),
                      m->leg_s[leg] / (1 - path->loss));
        }
    }
    route_add_node(m, r, to, from, true);
}

static double route_ends(const struct route *r, const double *load_s, double bytes)
{
    double end_s = 0;

    for (size_t i = 0; i < r->n; i++) {
        end_s = fmax(end_s, load_s[r->links[i]] + bytes * r->s_per_byte[i]);
    }
    return end_s;
}

/* ---- moving ---- */

static void chain_add(struct hdt_layout_mover *m, enum chain_of of, size_t node)
{
    struct chain *c = &m->chains[of][m->kinds[m->kind_of[node]].site];

    m->next[of][node] = NONE;
    if (c->stamp != m->stamp) {
        *c = (struct chain){.head = node, .tail = node, .at = node, .stamp = m->stamp};
        return;
    }
    m->next[of][c->tail] = node;
    c->tail = node;
}

/* The node of a site from which it is there first; some are looked at, others the next time. */
static size_t chain_pick(struct hdt_layout_mover *m, enum chain_of of, size_t site, size_t to,
                         double bytes, double *end_s)
{
    struct chain *c = &m->chains[of][site];
    size_t best = NONE, at;

    *end_s = INFINITY;
    if (c->stamp != m->stamp) {
        return NONE;
    }
    at = c->at;
    for (int i = 0; i < WINDOW; i++) {
        struct route r;
        double own_s;

        route_find(m, at, to, &r);
        own_s = route_ends(&r, m->load_s, bytes);
        if (own_s < *end_s) {
            *end_s = own_s;
            best = at;
        }
        at = m->next[of][at] == NONE ? c->head : m->next[of][at];
        if (at == c->at) {
            break;
        }
    }
    c->at = at;
    return best;
}

static size_t source_pick(struct hdt_layout_mover *m, enum chain_of of, size_t to, double bytes)
{
    double end_s, best_s = INFINITY;
    size_t best = chain_pick(m, of, m->kinds[m->kind_of[to]].site, to, bytes, &end_s);

    if (best != NONE) {
        return best;
    }
    for (size_t s = 0; s < m->n_sites; s++) {
        size_t node = chain_pick(m, of, s, to, bytes, &end_s);

        if (node != NONE && end_s < best_s) {
            best_s = end_s;
            best = node;
        }
    }
    return best;
}

static void piece_move(struct hdt_layout_mover *m, const struct piece *p,
                       struct hdt_layout_moves *moves)
{
    struct route r;

    route_find(m, p->from, p->to, &r);
    for (size_t i = 0; i < r.n; i++) {
        double *load_s = &m->load_s[r.links[i]];

        *load_s += p->bytes * r.s_per_byte[i];
        if (*load_s > moves->seconds) {
            moves->seconds = *load_s;
            m->most = r.links[i];
        }
    }
    if (p->from == NONE) {
        moves->stored_bytes += p->bytes;
    } else {
        size_t a = m->kinds[m->kind_of[p->from]].site, b = m->kinds[m->kind_of[p->to]].site;

        *(a == b ? &moves->site_bytes : &moves->wan_bytes) += p->bytes;
        moves->price += a == b ? 0 : p->bytes / 1e9 * m->paths[a * m->n_sites + b].price_per_gb;
    }
    if (m->is_listing) {
        if (m->n_pieces == m->cap) {
            m->cap = m->cap ? 2 * m->cap : 64;
            m->pieces = hdt_realloc(m->pieces, m->cap * sizeof(m->pieces[0]));
        }
        m->pieces[m->n_pieces++] = *p;
    }
}

/* Layers that belong to one part in both plans. */
struct segment {
    int64_t begin, end;
    size_t old_stage, new_stage;
    double value_bytes, state_bytes;
};

/* From who has it; whole: all of the state comes along. */
static void fetch(struct hdt_layout_mover *m, const struct segment *seg, size_t to, double bytes,
                  enum chain_of of, struct hdt_layout_moves *moves)
{
    struct piece p = {seg->begin, seg->end, source_pick(m, of, to, bytes), to, bytes};

    piece_move(m, &p, moves);
    if (of == HAS && p.from != NONE) {
        chain_add(m, HAS, to);
    }
}

/* A replica's part of what the optimizer keeps, from those that had parts of it. In units of one of
 * (old replicas * new replicas). */
static void shards_fetch(struct hdt_layout_mover *m, const struct hdt_layout_placed *to,
                         const struct segment *seg, size_t replica, size_t node,
                         struct hdt_layout_moves *moves)
{
    size_t n_old = m->old.n_replicas, n_new = to->is_sharded ? to->n_replicas : 1;
    size_t low = to->is_sharded ? replica * n_old : 0, high = low + n_old;

    for (size_t r = low / n_new; r < n_old && r * n_new < high; r++) {
        size_t from = m->old.node[r * m->old.n_stages + seg->old_stage];
        size_t a = r * n_new > low ? r * n_new : low;
        size_t b = (r + 1) * n_new < high ? (r + 1) * n_new : high;
        struct piece p = {seg->begin, seg->end, from, node,
                          seg->state_bytes * (double)(b - a) / (double)(n_old * n_new)};

        if (from != node) {
            piece_move(m, &p, moves);
        }
    }
}

static void segment_move(struct hdt_layout_mover *m, const struct hdt_layout_placed *to,
                         const struct segment *seg, struct hdt_layout_moves *moves)
{
    bool whole = !m->old.is_sharded && !to->is_sharded;

    m->stamp++;
    for (size_t r = 0; r < m->old.n_replicas; r++) {
        size_t node = m->old.node[r * m->old.n_stages + seg->old_stage];

        if (node != NONE && m->has[node] != m->stamp) {
            m->has[node] = m->stamp;
            chain_add(m, HAD, node);
            chain_add(m, HAS, node);
        }
    }
    for (size_t r = 0; r < to->n_replicas; r++) {
        size_t node = to->node[r * to->n_stages + seg->new_stage];
        bool had = m->has[node] == m->stamp, is_first = m->met[node] != m->stamp;

        m->met[node] = m->stamp;
        moves->n_all += is_first ? seg->end - seg->begin : 0;
        if (is_first && !had) {
            moves->n_layers += seg->end - seg->begin;
            fetch(m, seg, node, seg->value_bytes + (whole ? seg->state_bytes : 0), HAS, moves);
        }
        if (m->old.is_sharded && (to->is_sharded || is_first)) {
            shards_fetch(m, to, seg, r, node, moves);
        } else if (!m->old.is_sharded && to->is_sharded && !had) {
            fetch(m, seg, node, seg->state_bytes / (double)to->n_replicas, HAD, moves);
        }
    }
}

/* Parameters of some units; a tied head that is not where the embedding is has a table, too. */
static double params_of(const struct hdt_layout_mover *m, const struct hdt_layout_placed *to,
                        int64_t begin, int64_t end)
{
    const struct hdt_model_shape *shape = &m->base->model;
    double table = shape->has_tied_head && n_parts(to) > 1 && end == shape->L + 2
                       ? (double)(shape->V * shape->E)
                       : 0;

    return m->params[end] - m->params[begin] + table;
}

/* Embedding and head have their own bytes, and a line in the list: they are segments. */
static int64_t segment_end(int64_t begin, int64_t end, int64_t L)
{
    return begin == 0 ? 1 : begin <= L && end > L + 1 ? L + 1 : end;
}

void hdt_layout_mover_count(struct hdt_layout_mover *m, const struct hdt_layout_placed *to,
                            struct hdt_layout_moves *moves)
{
    int64_t *begin = begins_new(to), L = m->base->model.L, at = 0;
    size_t old_part = 0, new_part = 0;

    *moves = (struct hdt_layout_moves){.n = 0};
    memset(m->load_s, 0, n_links(m) * sizeof(m->load_s[0]));
    m->most = NONE;
    m->n_pieces = 0;
    while (at < L + 2) {
        struct segment seg = {.begin = at};
        double params;

        while (m->old_begin[old_part + 1] <= at) {
            old_part++;
        }
        while (begin[new_part + 1] <= at) {
            new_part++;
        }
        at = m->old_begin[old_part + 1] < begin[new_part + 1] ? m->old_begin[old_part + 1]
                                                              : begin[new_part + 1];
        at = segment_end(seg.begin, at, L);
        seg.end = at;
        seg.old_stage = old_part % m->old.n_stages;
        seg.new_stage = new_part % to->n_stages;
        params = params_of(m, to, seg.begin, seg.end);
        seg.value_bytes = params * m->value;
        seg.state_bytes = params * m->state;
        segment_move(m, to, &seg, moves);
    }
    free(begin);
}

/* ---- a list ---- */

static void node_text(const struct hdt_layout_mover *m, size_t node, char *text, size_t cap)
{
    const struct kind *k = &m->kinds[m->kind_of[node]];

    snprintf(text, cap, "%.60s.%.60s.%zu", hdt_cluster_file_site(&m->base->cluster, k->site)->name,
             k->nodes->name, node - m->first_node[m->kind_of[node]]);
}

static void link_text(const struct hdt_layout_mover *m, size_t link, char *text, size_t cap)
{
    const struct hdt_cluster_file_wan *wan = m->base->cluster.wan.items;
    size_t at = link / 2, n_wan = m->base->cluster.wan.n;
    char node[160];

    text[0] = '\0';
    if (link == NONE) {
        return;
    }
    if (at >= m->n_nodes && at < m->n_nodes + n_wan) {
        wan += at - m->n_nodes;
        snprintf(text, cap, "%.60s -> %.60s", link % 2 ? wan->to : wan->from,
                 link % 2 ? wan->from : wan->to);
        return;
    }
    at = at < m->n_nodes ? at : (at - m->n_nodes - n_wan) / m->n_pairs;
    node_text(m, at, node, sizeof(node));
    snprintf(text, cap, "the link of %s, %s", node, link % 2 ? "in" : "out");
}

static size_t from_kind(const struct hdt_layout_mover *m, const struct piece *p)
{
    return p->from == NONE ? NONE : m->kind_of[p->from];
}

/* By kinds, then layers: qsort has no room for the mover, so kinds stand in a copy. */
struct route_piece {
    size_t from_kind, to_kind;
    const struct piece *piece;
};

static int route_piece_compare(const void *a, const void *b)
{
    const struct route_piece *x = a, *y = b;

    return x->from_kind != y->from_kind         ? (x->from_kind < y->from_kind ? -1 : 1)
           : x->to_kind != y->to_kind           ? (x->to_kind < y->to_kind ? -1 : 1)
           : x->piece->begin != y->piece->begin ? (x->piece->begin < y->piece->begin ? -1 : 1)
                                                : (x->piece > y->piece) - (x->piece < y->piece);
}

static int move_compare(const void *a, const void *b)
{
    const struct hdt_layout_move *x = a, *y = b;

    return x->first != y->first             ? (x->first < y->first ? -1 : 1)
           : x->last != y->last             ? (x->last < y->last ? -1 : 1)
           : x->is_stored != y->is_stored   ? x->is_stored - y->is_stored
           : x->from_site != y->from_site   ? (x->from_site < y->from_site ? -1 : 1)
           : x->from_nodes != y->from_nodes ? (x->from_nodes < y->from_nodes ? -1 : 1)
           : x->to_site != y->to_site       ? (x->to_site < y->to_site ? -1 : 1)
                                      : (x->to_nodes > y->to_nodes) - (x->to_nodes < y->to_nodes);
}

/* Layers one after another over one route: a line. */
static struct hdt_layout_move row_of(struct hdt_layout_mover *m, const struct route_piece *all,
                                     size_t n)
{
    const struct kind *to = &m->kinds[all[0].to_kind];
    struct hdt_layout_move row = {.first = all[0].piece->begin,
                                  .last = all[n - 1].piece->end - 1,
                                  .is_stored = all[0].from_kind == NONE,
                                  .to_site = to->site,
                                  .to_nodes = to->nodes_idx};
    struct route r;

    if (!row.is_stored) {
        row.from_site = m->kinds[all[0].from_kind].site;
        row.from_nodes = m->kinds[all[0].from_kind].nodes_idx;
    }
    for (size_t i = 0; i < n; i++) {
        route_find(m, all[i].piece->from, all[i].piece->to, &r);
        row.bytes += all[i].piece->bytes;
        row.seconds = fmax(row.seconds, route_ends(&r, m->row_s, all[i].piece->bytes));
        for (size_t k = 0; k < r.n; k++) {
            m->row_s[r.links[k]] += all[i].piece->bytes * r.s_per_byte[k];
        }
    }
    memset(m->row_s, 0, n_links(m) * sizeof(m->row_s[0]));
    return row;
}

static void rows_fill(struct hdt_layout_mover *m, struct hdt_layout_moves *moves)
{
    size_t n = m->n_pieces;
    struct route_piece *all = hdt_calloc(n + 1, sizeof(all[0]));

    moves->items = hdt_calloc(n + 1, sizeof(moves->items[0]));
    for (size_t i = 0; i < n; i++) {
        all[i] = (struct route_piece){from_kind(m, &m->pieces[i]), m->kind_of[m->pieces[i].to],
                                      &m->pieces[i]};
    }
    qsort(all, n, sizeof(all[0]), route_piece_compare);
    for (size_t i = 0, end; i < n; i = end) {
        end = i + 1;
        while (end < n && all[end].from_kind == all[i].from_kind &&
               all[end].to_kind == all[i].to_kind &&
               all[end].piece->begin <= all[end - 1].piece->end) {
            end++;
        }
        moves->items[moves->n++] = row_of(m, &all[i], end - i);
    }
    free(all);
    qsort(moves->items, moves->n, sizeof(moves->items[0]), move_compare);
}

void hdt_layout_mover_list(struct hdt_layout_mover *m, const struct hdt_layout_files *to,
                           struct hdt_layout_moves *moves)
{
    struct hdt_layout_placed placed;

    placed_init(&placed, to);
    for (size_t g = 0; g < to->n_replicas * to->n_stages; g++) {
        placed.node[g] = hdt_layout_mover_node(m, to->groups[g].site_idx, to->groups[g].nodes_idx,
                                               to->groups[g].node);
    }
    m->is_listing = true;
    hdt_layout_mover_count(m, &placed, moves);
    m->is_listing = false;
    rows_fill(m, moves);
    link_text(m, m->most, moves->link, sizeof(moves->link));
    placed_release(&placed);
}

void hdt_layout_moves_release(struct hdt_layout_moves *moves)
{
    free(moves->items);
    memset(moves, 0, sizeof(*moves));
}
