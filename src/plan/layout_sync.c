/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * The end of a step: first and last stage add the gradients of the table that they share, replicas
 * add theirs, all agree on the norm.
 *
 * An all-reduce is one frame over all links of its ring at once: that is what a ring does, whose
 * hops all carry the same at the same time, and so it shares links with whoever else uses them.
 */
#include "src/base/buf.h"
#include "src/plan/layout_sim_impl.h"

#include <math.h>
#include <stdlib.h>

static int group_add(struct hdt_layout_sim *sim, const size_t *ranks, size_t n,
                     const struct hdt_sim_group *group)
{
    struct hdt_sim_group *out;

    if (sim->n_groups == sim->groups_cap) {
        sim->groups_cap = sim->groups_cap ? 2 * sim->groups_cap : 16;
        sim->groups = hdt_realloc(sim->groups, sim->groups_cap * sizeof(sim->groups[0]));
    }
    if (sim->n_members + n > sim->members_cap) {
        sim->members_cap = 2 * (sim->n_members + n);
        sim->members = hdt_realloc(sim->members, sim->members_cap * sizeof(sim->members[0]));
    }
    out = &sim->groups[sim->n_groups];
    *out = *group;
    out->first = sim->n_members;
    out->n = n;
    for (size_t i = 0; i < n; i++) {
        struct layout_rank *r = &sim->ranks[ranks[i]];

        HDT_ASSERT(r->n_syncs < LAYOUT_SYNCS_MAX);
        sim->members[sim->n_members++] = (int)ranks[i];
        r->syncs[r->n_syncs++] = (int)sim->n_groups;
    }
    return (int)sim->n_groups++;
}

/* A collective of these ranks along a ring. */
static void ring_group_add(struct hdt_layout_sim *sim, const size_t *ranks, size_t n,
                           const struct layout_ring *ring)
{
    struct hdt_sim_flow flow = {.src = -1,
                                .dst = -1,
                                .queue = -1,
                                .latency_s = ring->latency_s,
                                .weight = ring->weight,
                                .src_host = -1,
                                .dst_host = -1};
    struct hdt_sim_group group = {.bytes = ring->bytes};

    group.flow = hdt_layout_sim_add_flow(sim, &flow, ring->links, ring->n);
    group_add(sim, ranks, n, &group);
}

/* ---- by levels ---- */

/* Those of some groups that are the first of their node, or of their site. */
static size_t firsts_of(const struct hdt_layout_sim *sim, const size_t *groups, size_t n,
                        bool of_sites, size_t *firsts)
{
    const struct hdt_layout_group *all = sim->files->groups;
    size_t n_firsts = 0;

    for (size_t i = 0; i < n; i++) {
        bool is_new = true;

        for (size_t k = 0; k < n_firsts && is_new; k++) {
            is_new = of_sites ? all[firsts[k]].site_idx != all[groups[i]].site_idx
                              : sim->net.node_of[firsts[k]] != sim->net.node_of[groups[i]];
        }
        if (is_new) {
            firsts[n_firsts++] = groups[i];
        }
    }
    return n_firsts;
}

/* Reduce-scatter and all-gather of `bytes` of each device inside the nodes that have several: the
 * longest. */
static double inside_s(const struct hdt_layout_sim *sim, const size_t *groups, size_t n,
                       double bytes)
{
    double longest = 0;

    for (size_t i = 0; i < n; i++) {
        const struct hdt_layout_group *is = &sim->files->groups[groups[i]];
        int64_t k = 0;

        for (size_t j = 0; j < n; j++) {
            k += sim->net.node_of[groups[j]] == sim->net.node_of[groups[i]];
        }
        if (k > 1 && bytes > 0) {
            const struct hdt_link_curve *curve = is->nodes->inside;
            double rate = hdt_link_curve_bytes_per_s(curve, bytes / (double)k, k * is->tp);

            rate *= curve->nominal ? sim->net.ring_share : 1;
            longest = fmax(longest, hdt_stage_cost_ring_s((int)k, bytes, rate));
        }
    }
    return longest;
}

/* Between the nodes of each site, all sites at one time: links of all, bytes of the largest. */
static void nodes_level_add(struct hdt_layout_sim *sim, const size_t *groups, size_t n,
                            double bytes)
{
    size_t *nodes = hdt_malloc((n + 1) * sizeof(nodes[0]));
    size_t *own = hdt_malloc((n + 1) * sizeof(own[0]));
    size_t n_nodes = firsts_of(sim, groups, n, false, nodes);
    struct layout_ring all = {.links = hdt_malloc((n + 1) * LAYOUT_ROUTE_MAX * sizeof(int))};
    size_t begin = 0, end;

    for (; begin < n_nodes; begin = end) {
        struct layout_ring ring;
        size_t site = sim->files->groups[nodes[begin]].site_idx, n_own = 0;

        for (end = begin; end < n_nodes && sim->files->groups[nodes[end]].site_idx == site; end++) {
            own[n_own++] = nodes[end];
        }
        if (n_own < 2) {
            continue;
        }
        hdt_layout_net_ring(&sim->net, own, n_own, bytes, LAYOUT_RING_NODES, &ring);
        hdt_layout_net_ring_join(&sim->net, &all, &ring);
        free(ring.links);
    }
    if (all.n > 0) {
        ring_group_add(sim, groups, n, &all);
    }
    free(all.links);
    free(nodes);
    free(own);
}

static void sites_level_add(struct hdt_layout_sim *sim, const size_t *groups, size_t n,
                            double bytes)
{
    size_t *sites = hdt_malloc((n + 1) * sizeof(sites[0]));
    size_t n_sites = firsts_of(sim, groups, n, true, sites);
    struct layout_ring ring;

    if (n_sites > 1) {
        hdt_layout_net_ring(&sim->net, sites, n_sites, bytes * sim->files->layout.wan.sync_ratio,
                            LAYOUT_RING_SITES, &ring);
        ring_group_add(sim, groups, n, &ring);
        free(ring.links);
    }
    free(sites);
}

/* Every device of a node takes a share of what the node has summed up between nodes, and every node
 * a share between sites: so a level carries `bytes` once for all groups below it. */
static void levels_add(struct hdt_layout_sim *sim, const size_t *groups, size_t n, double bytes)
{
    double tp = (double)sim->files->groups[groups[0]].tp;
    struct hdt_sim_group inside = {.flow = -1, .dur_s = inside_s(sim, groups, n, bytes)};

    if (inside.dur_s > 0) {
        group_add(sim, groups, n, &inside);
    }
    nodes_level_add(sim, groups, n, bytes * tp);
    sites_level_add(sim, groups, n, bytes * tp);
}

/* ---- who adds what ---- */

static bool is_hierarchical(const struct hdt_layout_sim *sim, const size_t *groups, size_t n)
{
    const struct hdt_layout_group *all = sim->files->groups;
    bool several_sites = false;

    for (size_t i = 1; i < n; i++) {
        several_sites = several_sites || all[groups[i]].site_idx != all[groups[0]].site_idx;
    }
    return sim->files->layout.all_reduce == HDT_LAYOUT_HIERARCHICAL ||
           (sim->files->layout.all_reduce == HDT_LAYOUT_AUTO && several_sites);
}

static void gradients_add(struct hdt_layout_sim *sim, size_t stage, size_t *groups)
{
    size_t n = sim->n_replicas;
    struct layout_ring ring;
    double bytes, tp;

    for (size_t i = 0; i < n; i++) {
        groups[i] = i * sim->n_stages + stage;
    }
    bytes = sim->ranks[groups[0]].grad_bytes;
    tp = (double)sim->files->groups[groups[0]].tp;
    if (is_hierarchical(sim, groups, n)) {
        levels_add(sim, groups, n, bytes);
        return;
    }
    hdt_layout_net_ring(&sim->net, groups, n, bytes * tp, LAYOUT_RING_ALL, &ring);
    ring_group_add(sim, groups, n, &ring);
    free(ring.links);
}

/* Two ranks are no ring: they get what a message gets. */
static void tied_add(struct hdt_layout_sim *sim, size_t replica)
{
    size_t ends[2] = {replica * sim->n_stages, (replica + 1) * sim->n_stages - 1};
    struct layout_ring ring;
    double share = sim->net.ring_share;

    sim->net.ring_share = 1;
    hdt_layout_net_ring(&sim->net, ends, 2,
                        sim->ranks[ends[0]].tied_bytes * (double)sim->files->groups[ends[0]].tp,
                        LAYOUT_RING_ALL, &ring);
    sim->net.ring_share = share;
    ring_group_add(sim, ends, 2, &ring);
    free(ring.links);
}

/* All agree on the norm: a round trip to the site that is furthest from the first rank's. */
static double norm_s(const struct hdt_layout_sim *sim)
{
    const struct hdt_layout_group *groups = sim->files->groups;
    double furthest = 0;

    for (size_t i = 1; i < sim->n_ranks; i++) {
        struct hdt_cluster_file_path path;

        if (groups[i].site_idx != groups[0].site_idx) {
            hdt_cluster_file_path(&sim->files->cluster, groups[0].site_idx, groups[i].site_idx,
                                  &path);
            furthest = fmax(furthest, path.rtt_s);
        }
    }
    return furthest;
}

void hdt_layout_sim_add_syncs(struct hdt_layout_sim *sim)
{
    size_t *groups = hdt_malloc((sim->n_ranks + 1) * sizeof(groups[0]));
    struct hdt_sim_group norm = {.flow = -1, .dur_s = norm_s(sim)};

    if (sim->model.is_tied && sim->n_stages > 1) {
        for (size_t r = 0; r < sim->n_replicas; r++) {
            tied_add(sim, r);
        }
    }
    if (sim->n_replicas > 1) {
        for (size_t s = 0; s < sim->n_stages; s++) {
            gradients_add(sim, s, groups);
        }
    }
    if (sim->n_ranks > 1) {
        for (size_t i = 0; i < sim->n_ranks; i++) {
            groups[i] = i;
        }
        group_add(sim, groups, sim->n_ranks, &norm);
    }
    free(groups);
}
