/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/plan/layout_net.h"
#include "src/base/buf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- nodes ---- */

/* Number nodes as they are met: by site and kind, where their numbers begin, and node within. */
static void nodes_number(struct layout_net *net)
{
    const struct hdt_layout_files *f = net->files;
    size_t n_kinds = 0, *first = hdt_calloc(f->cluster.sites.n + 1, sizeof(first[0])), *begin;
    int64_t *n_used;

    for (size_t i = 0; i < f->cluster.sites.n; i++) {
        first[i] = n_kinds;
        n_kinds += hdt_cluster_file_site(&f->cluster, i)->nodes.n;
    }
    n_used = hdt_calloc(n_kinds + 1, sizeof(n_used[0]));
    begin = hdt_calloc(n_kinds + 1, sizeof(begin[0]));
    for (size_t g = 0; g < net->n_groups; g++) {
        int64_t *used = &n_used[first[f->groups[g].site_idx] + f->groups[g].nodes_idx];

        *used = f->groups[g].node >= *used ? f->groups[g].node + 1 : *used;
    }
    for (size_t k = 0; k < n_kinds; k++) {
        begin[k + 1] = begin[k] + (size_t)n_used[k];
    }
    net->n_nodes = begin[n_kinds];
    net->n_devices = hdt_calloc(net->n_nodes + 1, sizeof(net->n_devices[0]));
    for (size_t g = 0; g < net->n_groups; g++) {
        const struct hdt_layout_group *is = &f->groups[g];

        net->node_of[g] = begin[first[is->site_idx] + is->nodes_idx] + (size_t)is->node;
        net->n_devices[net->node_of[g]] += is->tp;
    }
    free(n_used);
    free(begin);
    free(first);
}

static int *table_new(size_t n)
{
    int *table = hdt_malloc((2 * n + 1) * sizeof(table[0]));

    for (size_t i = 0; i < 2 * n; i++) {
        table[i] = -1;
    }
    return table;
}

void hdt_layout_net_init(struct layout_net *net, const struct hdt_layout_files *files,
                         double message_bytes)
{
    memset(net, 0, sizeof(*net));
    net->files = files;
    net->message_bytes = message_bytes;
    net->n_groups = files->n_replicas * files->n_stages;
    net->node_of = hdt_calloc(net->n_groups, sizeof(net->node_of[0]));
    nodes_number(net);
    net->inside = table_new(net->n_groups);
    net->port = table_new(net->n_groups);
    net->node = table_new(net->n_nodes);
    for (size_t i = 0; i < files->cluster.sites.n; i++) {
        size_t n = hdt_cluster_file_site(&files->cluster, i)->pairs.n;

        net->n_pairs = n > net->n_pairs ? n : net->n_pairs;
    }
    net->pair = table_new(net->n_nodes * net->n_pairs);
    net->host = table_new(net->n_groups);
    net->leg = table_new(files->cluster.wan.n);
}

void hdt_layout_net_release(struct layout_net *net)
{
    free(net->node_of);
    free(net->n_devices);
    free(net->inside);
    free(net->port);
    free(net->node);
    free(net->pair);
    free(net->host);
    free(net->leg);
    free(net->links);
    free(net->rates);
    free(net->names);
    free(net->uses);
}

/* ---- links ---- */

/* Two names and a number. */
#define NODE_TEXT_CAP (2 * HDT_NAME_CAP + 24)

/* The link at a place of a table; made with this rate and name when it is not there. */
static int link_get(struct layout_net *net, int *table, size_t idx, bool is_in, double rate,
                    const struct hdt_layout_link *name)
{
    int *at = &table[2 * idx + is_in];

    if (*at >= 0) {
        return *at;
    }
    if (net->n_links == net->cap) {
        net->cap = net->cap ? 2 * net->cap : 16;
        net->links = hdt_realloc(net->links, net->cap * sizeof(net->links[0]));
        net->rates = hdt_realloc(net->rates, net->cap * sizeof(net->rates[0]));
        net->names = hdt_realloc(net->names, net->cap * sizeof(net->names[0]));
        net->uses = hdt_realloc(net->uses, net->cap * sizeof(net->uses[0]));
    }
    net->links[net->n_links] = (struct hdt_sim_link){.rate_bytes_per_s = rate};
    net->rates[net->n_links] = (struct layout_link_rate){.curve = NULL};
    net->names[net->n_links] = *name;
    net->uses[net->n_links] = 0;
    *at = (int)net->n_links++;
    return *at;
}

/* Bytes a second of a link for what is sent in pieces of so many. */
static double rate_at(const struct layout_net *net, int link, double bytes)
{
    const struct layout_link_rate *r = &net->rates[link];

    return r->curve ? r->times * hdt_link_curve_bytes_per_s(r->curve, bytes, r->devices)
                    : net->links[link].rate_bytes_per_s;
}

/* The same, where a curve has the rate. */
static int curve_link_get(struct layout_net *net, int *table, size_t idx, bool is_in,
                          const struct layout_link_rate *rate, const struct hdt_layout_link *name)
{
    double at =
        rate->times * hdt_link_curve_bytes_per_s(rate->curve, net->message_bytes, rate->devices);
    int link = link_get(net, table, idx, is_in, at, name);

    net->rates[link] = *rate;
    return link;
}

static bool curve_has_in(const struct hdt_link_curve *curve, bool is_in)
{
    return is_in && curve->duplex == HDT_LINK_FULL_DUPLEX;
}

static const char *way_text(const struct hdt_link_curve *curve, bool is_in)
{
    return curve->duplex != HDT_LINK_FULL_DUPLEX ? "" : is_in ? " in" : " out";
}

/* "gh.3", after its site where there are several. */
static const char *node_text(const struct layout_net *net, size_t g, char *text, size_t cap)
{
    const struct hdt_layout_group *is = &net->files->groups[g];
    const struct hdt_cluster_file *cluster = &net->files->cluster;
    bool several = cluster->sites.n > 1;

    snprintf(text, cap, "%.63s%s%.63s.%lld",
             several ? hdt_cluster_file_site(cluster, is->site_idx)->name : "", several ? "." : "",
             is->nodes->name, (long long)is->node);
    return text;
}

static int inside_get(struct layout_net *net, size_t g, bool is_in)
{
    const struct hdt_layout_group *is = &net->files->groups[g];
    const struct hdt_link_curve *curve = is->nodes->inside;
    struct layout_link_rate rate = {curve, net->n_devices[net->node_of[g]], (double)is->tp};
    struct hdt_layout_link name = {.to = ""};
    char node[NODE_TEXT_CAP];

    snprintf(name.from, sizeof(name.from), "%s#%zu inside%s", node_text(net, g, node, sizeof(node)),
             g, way_text(curve, is_in));
    return curve_link_get(net, net->inside, g, curve_has_in(curve, is_in), &rate, &name);
}

/* The pair that a group's nodes are with those of another group of the site; NULL: none. */
static const struct hdt_cluster_file_pair *pair_of(const struct layout_net *net, size_t g,
                                                   size_t other, size_t *idx)
{
    const struct hdt_layout_group *a = &net->files->groups[g], *b = &net->files->groups[other];
    const struct hdt_cluster_file_site *site =
        hdt_cluster_file_site(&net->files->cluster, a->site_idx);
    const struct hdt_cluster_file_pair *pairs = site->pairs.items;

    for (size_t i = 0; a->site_idx == b->site_idx && i < site->pairs.n; i++) {
        if ((pairs[i].from_idx == a->nodes_idx && pairs[i].to_idx == b->nodes_idx) ||
            (pairs[i].from_idx == b->nodes_idx && pairs[i].to_idx == a->nodes_idx)) {
            *idx = i;
            return &pairs[i];
        }
    }
    return NULL;
}

static int pair_get(struct layout_net *net, size_t g, bool is_in,
                    const struct hdt_cluster_file_pair *pair, size_t idx)
{
    size_t node = net->node_of[g];
    struct layout_link_rate rate = {pair->link, net->n_devices[node], 1};
    struct hdt_layout_link name = {.to = ""};
    char text[NODE_TEXT_CAP];

    snprintf(name.from, sizeof(name.from), "%s pair %zu%s", node_text(net, g, text, sizeof(text)),
             idx, way_text(pair->link, is_in));
    return curve_link_get(net, net->pair, node * net->n_pairs + idx,
                          curve_has_in(pair->link, is_in), &rate, &name);
}

static int node_get(struct layout_net *net, size_t g, bool is_in)
{
    const struct hdt_layout_group *is = &net->files->groups[g];
    const struct hdt_link_curve *curve = is->nodes->between;
    size_t node = net->node_of[g];
    struct layout_link_rate rate = {curve, net->n_devices[node], 1};
    struct hdt_layout_link name = {.to = ""};
    char text[NODE_TEXT_CAP];

    snprintf(name.from, sizeof(name.from), "%s%s", node_text(net, g, text, sizeof(text)),
             way_text(curve, is_in));
    return curve_link_get(net, net->node, node, curve_has_in(curve, is_in), &rate, &name);
}

/* That a group's devices get of a link between nodes when no others of their node use it. */
static int port_get(struct layout_net *net, size_t g, bool is_in)
{
    const struct hdt_layout_group *is = &net->files->groups[g];
    const struct hdt_link_curve *curve = is->nodes->between;
    struct layout_link_rate rate = {curve, is->tp, 1};
    struct hdt_layout_link name = {.to = ""};
    char node[NODE_TEXT_CAP];

    snprintf(name.from, sizeof(name.from), "%s#%zu%s", node_text(net, g, node, sizeof(node)), g,
             way_text(curve, is_in));
    return curve_link_get(net, net->port, g, curve_has_in(curve, is_in), &rate, &name);
}

int hdt_layout_net_host(struct layout_net *net, size_t group, bool is_in)
{
    const struct hdt_layout_group *is = &net->files->groups[group];
    struct hdt_layout_link name = {.to = ""};
    char node[NODE_TEXT_CAP];

    snprintf(name.from, sizeof(name.from), "%s#%zu host %s",
             node_text(net, group, node, sizeof(node)), group, is_in ? "in" : "out");
    return link_get(net, net->host, group, is_in, (double)is->tp * is->nodes->host.gb_per_s * 1e9,
                    &name);
}

static int leg_get(struct layout_net *net, const struct hdt_cluster_file_wan *leg, bool is_reversed)
{
    const struct hdt_cluster_file_wan *all = net->files->cluster.wan.items;
    bool is_in = is_reversed && !(leg->link && leg->link->duplex != HDT_LINK_FULL_DUPLEX);
    struct layout_link_rate rate = {leg->link, 1, 1};
    struct hdt_layout_link name = {.to = ""};

    snprintf(name.from, sizeof(name.from), "%.63s", is_reversed ? leg->to : leg->from);
    snprintf(name.to, sizeof(name.to), "%.63s", is_reversed ? leg->from : leg->to);
    return leg->link ? curve_link_get(net, net->leg, (size_t)(leg - all), is_in, &rate, &name)
                     : link_get(net, net->leg, (size_t)(leg - all), is_in,
                                hdt_cluster_file_leg_bytes_per_s(leg, net->message_bytes), &name);
}

/* ---- ways ---- */

static void route_add(struct layout_route *route, int link)
{
    HDT_ASSERT(route->n < LAYOUT_ROUTE_MAX);
    for (size_t i = 0; i < route->n; i++) {
        if (route->links[i] == link) {
            return;
        }
    }
    route->links[route->n++] = link;
}

/* Out of a group's node to that of another group, or into it. */
static void route_add_node(struct layout_net *net, struct layout_route *route, size_t g,
                           size_t other, bool is_in, enum layout_ring_use use)
{
    const struct hdt_layout_group *is = &net->files->groups[g];
    const struct hdt_link_curve *curve = is->nodes->between;
    size_t idx;
    const struct hdt_cluster_file_pair *pair = pair_of(net, g, other, &idx);

    if (pair) {
        route_add(route, pair_get(net, g, is_in, pair, idx));
        route->latency_s = fmax(route->latency_s, pair->link->latency_us / 1e6);
    } else if (curve) { /* a site with one node has none: what leaves it is between sites */
        if (use == LAYOUT_RING_ALL && is->tp < net->n_devices[net->node_of[g]]) {
            route_add(route, port_get(net, g, is_in));
        }
        route_add(route, node_get(net, g, is_in));
        route->latency_s = fmax(route->latency_s, curve->latency_us / 1e6);
    }
}

static void route_add_legs(struct layout_net *net, struct layout_route *route, size_t from,
                           size_t to)
{
    struct hdt_cluster_file_path path;

    hdt_cluster_file_path(&net->files->cluster, from, to, &path);
    for (size_t i = 0; i < path.n_legs; i++) {
        route_add(route, leg_get(net, path.legs[i], path.reversed[i]));
    }
    route->latency_s += path.rtt_s / 2;
    route->loss = path.loss;
    route->is_wan = true;
}

static void route_find(struct layout_net *net, size_t src, size_t dst, enum layout_ring_use use,
                       struct layout_route *route)
{
    const struct hdt_layout_group *a = &net->files->groups[src], *b = &net->files->groups[dst];

    *route = (struct layout_route){.n = 0};
    if (net->node_of[src] == net->node_of[dst]) {
        if (src != dst) {
            route_add(route, inside_get(net, src, false));
            route_add(route, inside_get(net, dst, true));
            route->latency_s = a->nodes->inside->latency_us / 1e6;
        }
        return;
    }
    if (use != LAYOUT_RING_SITES) {
        route_add_node(net, route, src, dst, false, use);
        route_add_node(net, route, dst, src, true, use);
    }
    if (a->site_idx != b->site_idx) {
        route_add_legs(net, route, a->site_idx, b->site_idx);
    }
}

void hdt_layout_net_route(struct layout_net *net, size_t src, size_t dst,
                          struct layout_route *route)
{
    route_find(net, src, dst, LAYOUT_RING_ALL, route);
}

/* ---- rings ---- */

static void link_push(struct layout_ring *ring, int link)
{
    if (ring->n == ring->cap) {
        ring->cap = ring->cap ? 2 * ring->cap : 16;
        ring->links = hdt_realloc(ring->links, ring->cap * sizeof(ring->links[0]));
    }
    ring->links[ring->n++] = link;
}

/* Links of a ring that is being built, with how often it crosses them. */
static void hop_add(struct layout_net *net, struct layout_ring *ring,
                    const struct layout_route *hop, double times)
{
    for (size_t i = 0; i < hop->n; i++) {
        if (net->uses[hop->links[i]] == 0) {
            link_push(ring, hop->links[i]);
        }
        net->uses[hop->links[i]] += times;
    }
}

/* Of the slowest link, as messages have it. */
static double slowest_link(const struct layout_net *net, const struct layout_ring *ring)
{
    double slowest = INFINITY;

    for (size_t i = 0; i < ring->n; i++) {
        slowest = fmin(slowest, net->links[ring->links[i]].rate_bytes_per_s);
    }
    return slowest;
}

/* What a link carries of pieces of a sum. */
static double sum_rate(const struct layout_net *net, const struct layout_sum *sum, int link,
                       double piece)
{
    const struct hdt_link_curve *curve = net->rates[link].curve;

    return (curve && curve->nominal ? sum->nominal_share : 1) * rate_at(net, link, piece);
}

/* All hops are there, each of them carries `bytes` in so many parts: what links carry for each of
 * these bytes is such that the slowest one, whose rate is that of messages, takes as long as the
 * one that has most to do at the rate of pieces. */
static void ring_end(struct layout_net *net, const struct layout_sum *sum, double bytes,
                     int64_t n_parts, struct layout_ring *ring)
{
    double piece = fmax(sum->bytes / (double)sum->devices / (double)n_parts, 1);
    double most = 0, longest_s = 0; /* of a byte of each hop */

    for (size_t i = 0; i < ring->n; i++) {
        int link = ring->links[i];
        double uses = net->uses[link];

        most = fmax(most, uses);
        longest_s = fmax(longest_s, uses / sum_rate(net, sum, link, piece));
    }
    ring->shares = sum->hops ? hdt_malloc((ring->n + 1) * sizeof(ring->shares[0])) : NULL;
    for (size_t i = 0; i < ring->n; i++) {
        if (ring->shares) {
            ring->shares[i] = net->uses[ring->links[i]] / most;
        }
        net->uses[ring->links[i]] = 0;
    }
    ring->bytes = most * bytes;
    ring->weight = ring->n > 0 ? longest_s * slowest_link(net, ring) / most : 1;
}

void hdt_layout_net_ring(struct layout_net *net, const struct layout_sum *sum,
                         enum layout_ring_use use, struct layout_ring *ring)
{
    double latency_s = 0, loss = 0, n = (double)sum->n;

    memset(ring, 0, sizeof(*ring));
    for (size_t i = 0; i < sum->n; i++) {
        struct layout_route hop;

        route_find(net, sum->groups[i], sum->groups[(i + 1) % sum->n], use, &hop);
        hop_add(net, ring, &hop, sum->hops ? sum->hops[i] : 1);
        latency_s = fmax(latency_s, hop.latency_s);
        loss = fmax(loss, hop.loss);
    }
    ring->latency_s = 2 * (n - 1) * latency_s;
    ring_end(net, sum, 2 * (n - 1) / n * sum->bytes / (1 - loss), (int64_t)sum->n, ring);
}

void hdt_layout_net_ring_join(const struct layout_net *net, struct layout_ring *all,
                              const struct layout_ring *ring)
{
    double all_s = all->bytes * all->weight / slowest_link(net, all);
    double ring_s = ring->bytes * ring->weight / slowest_link(net, ring);

    for (size_t i = 0; i < ring->n; i++) {
        link_push(all, ring->links[i]);
    }
    all->latency_s = fmax(all->latency_s, ring->latency_s);
    all->bytes = fmax(all->bytes, ring->bytes);
    all->weight = all->bytes > 0 ? fmax(all_s, ring_s) * slowest_link(net, all) / all->bytes : 1;
}

/* ---- trees ---- */

/* Above a place in a binary tree over 0..n - 1 whose leaves are the odd ones; -1: the root, 0. */
static int64_t place_above(int64_t place, int64_t n)
{
    int64_t bit = place & -place, above = (place ^ bit) | (bit << 1);

    return place == 0 ? -1 : above < n ? above : place ^ bit;
}

/* Who has a place in one of two trees: whoever is a leaf in the first is none in the second. */
static int64_t place_owner(int64_t place, int64_t n, int tree)
{
    return tree == 0 ? place : n % 2 == 0 ? n - 1 - place : (place + 1) % n;
}

struct tree_walk {
    struct layout_net *net;
    struct layout_ring *tree; /* each use of a link is for half of the bytes */
    /* By node that has groups, as they come: */
    size_t *heads;   /* the first group there, which is in the trees */
    size_t *tails;   /* the last one of its chain */
    double *chain_s; /* from there to the head, and back */
    int64_t n;
    enum layout_ring_use use;
    double loss;
};

static void tree_route(struct tree_walk *w, size_t from, size_t to, double *latency_s)
{
    struct layout_route route;

    route_find(w->net, from, to, w->use, &route);
    hop_add(w->net, w->tree, &route, 1);
    *latency_s += route.latency_s;
    w->loss = fmax(w->loss, route.loss);
}

/* An edge, up and down. */
static void tree_edge(struct tree_walk *w, size_t child, size_t parent, double *latency_s)
{
    tree_route(w, child, parent, latency_s);
    tree_route(w, parent, child, latency_s);
}

/* Nodes, and a chain of the groups on each, which carries what both trees do. */
static void chains_walk(struct tree_walk *w, const struct layout_sum *sum)
{
    int64_t *met = hdt_calloc(w->net->n_nodes + 1, sizeof(met[0])); /* 1 more than its place */

    for (size_t i = 0; i < sum->n; i++) {
        size_t group = sum->groups[i];
        int64_t *at = &met[w->net->node_of[group]], k;

        if (*at == 0) {
            w->heads[w->n] = w->tails[w->n] = group;
            *at = ++w->n;
            continue;
        }
        k = *at - 1;
        for (int tree = 0; tree < 2; tree++) {
            double latency_s = 0;

            tree_edge(w, group, w->tails[k], &latency_s);
            w->chain_s[k] += tree == 0 ? latency_s : 0;
        }
        w->tails[k] = group;
    }
    free(met);
}

/* All edges of one tree, and the longest way to its root and back. */
static void tree_walk(struct tree_walk *w, int tree)
{
    double *edge_s = hdt_calloc((size_t)w->n, sizeof(edge_s[0]));

    for (int64_t place = 1; place < w->n; place++) {
        tree_edge(w, w->heads[place_owner(place, w->n, tree)],
                  w->heads[place_owner(place_above(place, w->n), w->n, tree)], &edge_s[place]);
    }
    for (int64_t place = 0; place < w->n; place++) {
        double way_s = w->chain_s[place_owner(place, w->n, tree)];

        for (int64_t p = place; p > 0; p = place_above(p, w->n)) {
            way_s += edge_s[p];
        }
        w->tree->latency_s = fmax(w->tree->latency_s, way_s);
    }
    free(edge_s);
}

void hdt_layout_net_tree(struct layout_net *net, const struct layout_sum *sum,
                         struct layout_ring *tree)
{
    struct tree_walk walk = {.net = net,
                             .tree = tree,
                             .heads = hdt_calloc(sum->n, sizeof(walk.heads[0])),
                             .tails = hdt_calloc(sum->n, sizeof(walk.tails[0])),
                             .chain_s = hdt_calloc(sum->n, sizeof(walk.chain_s[0]))};

    memset(tree, 0, sizeof(*tree));
    chains_walk(&walk, sum);
    walk.use = (size_t)walk.n == sum->n ? LAYOUT_RING_ALL : LAYOUT_RING_NODES;
    tree_walk(&walk, 0);
    tree_walk(&walk, 1);
    ring_end(net, sum, sum->bytes / 2 / (1 - walk.loss), 2, tree);
    free(walk.heads);
    free(walk.tails);
    free(walk.chain_s);
}
