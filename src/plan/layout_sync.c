/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * The end of a step: first and last stage add the gradients of the table that they share, replicas
 * add theirs, all agree on the norm, everyone steps on what is its own, replicas gather what others
 * have stepped on.
 *
 * An all-reduce is one frame over all links of its ring at once: that is what a ring does, whose
 * hops all carry the same at the same time, and so it shares links with whoever else uses them. Its
 * halves, reduce-scatter and all-gather, are one half of it each.
 *
 * Gradients that are added in buckets go through a chain of groups (levels, then down to the host)
 * which no rank has to push on: the buckets of a part follow one another through it, as the streams
 * of a collective library and of a copy engine take them.
 */
#include "src/base/buf.h"
#include "src/plan/layout_sim_impl.h"

#include <math.h>
#include <stdlib.h>

/* What replicas of a stage do together. */
struct collective {
    const size_t *ranks; /* in their order */
    size_t n;
    double bytes;      /* on each device */
    double share;      /* of an all-reduce: all, or half for one of its halves */
    bool is_gather;    /* that half which goes from sites to devices and is of weights */
    double down_bytes; /* of each device, to its host afterwards */
};

int hdt_layout_sim_add_group(struct hdt_layout_sim *sim, const size_t *ranks, size_t n,
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
        sim->members[sim->n_members++] = (int)ranks[i];
    }
    return (int)sim->n_groups++;
}

int hdt_layout_sim_add_transfer(struct hdt_layout_sim *sim, const size_t *ranks, size_t n,
                                const struct layout_ring *way, int queue)
{
    struct hdt_sim_flow flow = {.src = -1,
                                .dst = -1,
                                .queue = queue,
                                .latency_s = way->latency_s,
                                .weight = way->weight,
                                .src_host = -1,
                                .dst_host = -1};
    struct hdt_sim_group group = {.bytes = way->bytes};

    group.flow = hdt_layout_sim_add_flow(sim, &flow, way->links, way->shares, way->n);
    return hdt_layout_sim_add_group(sim, ranks, n, &group);
}

static void ring_group_add(struct hdt_layout_sim *sim, const struct collective *c,
                           const struct layout_ring *ring)
{
    struct layout_ring part = *ring;

    part.bytes *= c->share;
    part.latency_s *= c->share;
    hdt_layout_sim_add_transfer(sim, c->ranks, c->n, &part, -1);
}

/* ---- by levels ---- */

/* Of one node, or of one site. */
static bool is_beside(const struct hdt_layout_sim *sim, size_t a, size_t b, bool of_sites)
{
    const struct hdt_layout_group *all = sim->files->groups;

    return of_sites ? all[a].site_idx == all[b].site_idx
                    : sim->net.node_of[a] == sim->net.node_of[b];
}

/* Of those who add: on the node of one of them. */
static int64_t devices_beside(const struct hdt_layout_sim *sim, const struct collective *c,
                              size_t group)
{
    int64_t n = 0;

    for (size_t i = 0; i < c->n; i++) {
        n += is_beside(sim, c->ranks[i], group, false) ? sim->files->groups[c->ranks[i]].tp : 0;
    }
    return n;
}

/* Those of some groups that are the first of their node, or of their site. */
static size_t firsts_of(const struct hdt_layout_sim *sim, const size_t *groups, size_t n,
                        bool of_sites, size_t *firsts)
{
    size_t n_firsts = 0;

    for (size_t i = 0; i < n; i++) {
        bool is_new = true;

        for (size_t k = 0; k < n_firsts && is_new; k++) {
            is_new = !is_beside(sim, firsts[k], groups[i], of_sites);
        }
        if (is_new) {
            firsts[n_firsts++] = groups[i];
        }
    }
    return n_firsts;
}

/* A ring in each node, or in each site, all at one time: links of all, bytes of the largest. */
static void rings_add(struct hdt_layout_sim *sim, const struct collective *c, const size_t *groups,
                      size_t n, double bytes, enum layout_ring_use use)
{
    bool of_sites = use == LAYOUT_RING_NODES;
    size_t *firsts = hdt_malloc((n + 1) * sizeof(firsts[0]));
    size_t *own = hdt_malloc((n + 1) * sizeof(own[0]));
    size_t n_firsts = firsts_of(sim, groups, n, of_sites, firsts);
    struct layout_ring all = {.n = 0};

    for (size_t k = 0; k < n_firsts; k++) {
        struct layout_sum sum = {own, 0, bytes, 0, sim->ring_share, NULL};
        struct layout_ring ring;

        for (size_t i = 0; i < n; i++) {
            if (is_beside(sim, firsts[k], groups[i], of_sites)) {
                own[sum.n++] = groups[i];
            }
        }
        if (sum.n < 2) {
            continue;
        }
        sum.devices = of_sites ? devices_beside(sim, c, own[0]) : sim->files->groups[own[0]].tp;
        hdt_layout_net_ring(&sim->net, &sum, use, &ring);
        hdt_layout_net_ring_join(&sim->net, &all, &ring);
        free(ring.links);
    }
    if (all.n > 0) {
        ring_group_add(sim, c, &all);
    }
    free(all.links);
    free(firsts);
    free(own);
}

static void inside_level_add(struct hdt_layout_sim *sim, const struct collective *c, double bytes)
{
    rings_add(sim, c, c->ranks, c->n, bytes, LAYOUT_RING_ALL);
}

static void nodes_level_add(struct hdt_layout_sim *sim, const struct collective *c, double bytes)
{
    size_t *nodes = hdt_malloc((c->n + 1) * sizeof(nodes[0]));
    size_t n_nodes = firsts_of(sim, c->ranks, c->n, false, nodes);

    rings_add(sim, c, nodes, n_nodes, bytes, LAYOUT_RING_NODES);
    free(nodes);
}

/* What each hop of a ring of sites leaves of the bytes, as a share of the one that leaves most;
 * what that one leaves. */
static double hops_fill(const struct hdt_layout_sim *sim, const size_t *sites, size_t n,
                        double *hops)
{
    const struct hdt_layout_group *all = sim->files->groups;
    double most = 0;

    for (size_t i = 0; i < n; i++) {
        hops[i] = hdt_layout_wan_between(sim->files, all[sites[i]].site_idx,
                                         all[sites[(i + 1) % n]].site_idx)
                      .sync_ratio;
        most = fmax(most, hops[i]);
    }
    for (size_t i = 0; i < n; i++) {
        hops[i] /= most;
    }
    return most;
}

static void sites_level_add(struct hdt_layout_sim *sim, const struct collective *c, double bytes)
{
    size_t *sites = hdt_malloc((c->n + 1) * sizeof(sites[0]));
    size_t n_sites = firsts_of(sim, c->ranks, c->n, true, sites);
    double *hops = c->is_gather || n_sites < 2 ? NULL : hdt_malloc(n_sites * sizeof(hops[0]));
    double most = hops ? hops_fill(sim, sites, n_sites, hops) : 1;
    /* A gateway takes the sum of its site as one. */
    struct layout_sum sum = {sites, n_sites, bytes * most, 1, sim->ring_share, hops};
    struct layout_ring ring;

    if (n_sites > 1) {
        hdt_layout_net_ring(&sim->net, &sum, LAYOUT_RING_SITES, &ring);
        ring_group_add(sim, c, &ring);
        free(ring.links);
        free(ring.shares);
    }
    free(hops);
    free(sites);
}

/* Every device of a node takes a share of what the node has summed up between nodes, and every node
 * a share between sites: so a level carries `bytes` once for all groups below it. */
static void levels_add(struct hdt_layout_sim *sim, const struct collective *c)
{
    double bytes = c->bytes * (double)sim->files->groups[c->ranks[0]].tp;

    if (c->is_gather) {
        sites_level_add(sim, c, bytes);
        nodes_level_add(sim, c, bytes);
        inside_level_add(sim, c, bytes);
        return;
    }
    inside_level_add(sim, c, bytes);
    nodes_level_add(sim, c, bytes);
    sites_level_add(sim, c, bytes);
}

/* ---- who adds what ---- */

static bool is_hierarchical(const struct hdt_layout_sim *sim, const struct collective *c)
{
    const struct hdt_layout_group *all = sim->files->groups;
    bool several_sites = false;

    for (size_t i = 1; i < c->n; i++) {
        several_sites = several_sites || all[c->ranks[i]].site_idx != all[c->ranks[0]].site_idx;
    }
    return sim->files->layout.all_reduce == HDT_LAYOUT_HIERARCHICAL ||
           (sim->files->layout.all_reduce == HDT_LAYOUT_AUTO && several_sites);
}

static void flat_add(struct hdt_layout_sim *sim, const struct collective *c)
{
    int64_t tp = sim->files->groups[c->ranks[0]].tp;
    struct layout_sum sum = {c->ranks, c->n, c->bytes * (double)tp, tp, sim->ring_share, NULL};
    struct layout_ring ring;

    if (sim->files->layout.all_reduce == HDT_LAYOUT_TREE) {
        sum.devices = devices_beside(sim, c, c->ranks[0]);
        hdt_layout_net_tree(&sim->net, &sum, &ring);
    } else {
        hdt_layout_net_ring(&sim->net, &sum, LAYOUT_RING_ALL, &ring);
    }
    ring_group_add(sim, c, &ring);
    free(ring.links);
}

/* All go down at one time, each on its own way; all wait for the slowest, since the norm does. */
static void down_add(struct hdt_layout_sim *sim, const struct collective *c)
{
    struct layout_ring way = {.links = hdt_malloc(c->n * sizeof(way.links[0])),
                              .n = c->n,
                              .bytes = c->down_bytes * (double)sim->files->groups[c->ranks[0]].tp};

    for (size_t i = 0; i < c->n; i++) {
        way.links[i] = hdt_layout_net_host(&sim->net, c->ranks[i], false);
    }
    hdt_layout_sim_add_transfer(sim, c->ranks, c->n, &way, -1);
    free(way.links);
}

static struct layout_chain collective_add(struct hdt_layout_sim *sim, const struct collective *c)
{
    struct layout_chain chain = {.first = (int)sim->n_groups};

    if (c->n > 1 && is_hierarchical(sim, c)) {
        levels_add(sim, c);
    } else if (c->n > 1) {
        flat_add(sim, c);
    }
    if (c->down_bytes > 0) {
        down_add(sim, c);
    }
    chain.n = (int)sim->n_groups - chain.first;
    return chain;
}

/* The ranks of a stage, one a replica. free(). */
static size_t *stage_ranks(const struct hdt_layout_sim *sim, size_t stage)
{
    size_t *ranks = hdt_malloc(sim->n_replicas * sizeof(ranks[0]));

    for (size_t i = 0; i < sim->n_replicas; i++) {
        ranks[i] = i * sim->n_stages + stage;
    }
    return ranks;
}

static struct collective gradients_of(const struct hdt_layout_sim *sim, const size_t *ranks,
                                      double bytes, double down_bytes)
{
    return (struct collective){.ranks = ranks,
                               .n = sim->n_replicas,
                               .bytes = bytes,
                               .share = sim->files->layout.optimizer.sharded ? 0.5 : 1,
                               .down_bytes = down_bytes};
}

/* Each bucket is a piece of a backward and what begins it, on each replica. */
static enum hdt_status buckets_check(struct hdt_layout_sim *sim, size_t part, double n,
                                     struct hdt_error *err)
{
    if (n > LAYOUT_BUCKETS_MAX) {
        return hdt_conf_error(sim->files->doc, "sync_bucket", err, HDT_EINVAL,
                              "stage %zu has gradients of %.0f buckets, allowed are %d",
                              part % sim->n_stages, n, LAYOUT_BUCKETS_MAX);
    }
    sim->n_tasks += 2 * (int64_t)n * (int64_t)sim->n_replicas;
    if (sim->n_tasks > HDT_LAYOUT_MAX_TASKS) {
        hdt_conf_error(sim->files->doc, "sync_bucket", err, HDT_EINVAL,
                       "cannot simulate '%.64s': with its buckets up to stage %zu, %lld tasks are "
                       "more than %lld",
                       sim->files->layout.name, part % sim->n_stages, (long long)sim->n_tasks,
                       (long long)HDT_LAYOUT_MAX_TASKS);
        hdt_error_hint(err, "take larger buckets, a smaller global_batch or fewer replicas");
        return HDT_EINVAL;
    }
    return HDT_OK;
}

static void buckets_add(struct hdt_layout_sim *sim, const struct collective *c, double n,
                        struct layout_buckets *buckets)
{
    buckets->chain = collective_add(sim, c);
    buckets->n = buckets->chain.n > 0 ? (int)n : 0;
    for (int i = 1; i < buckets->chain.n; i++) {
        sim->groups[buckets->chain.first + i].chained = true;
    }
}

/* Weights that come while the first forward goes on: in buckets where that begins at once. The
 * forward of a later part begins when there is something from the one before it; until then all of
 * its weights can come. */
static enum hdt_status gathers_add(struct hdt_layout_sim *sim, size_t part,
                                   const struct hdt_stage_cost *cost, struct hdt_error *err)
{
    double bytes = hdt_stage_cost_gather_bytes(cost);
    double n = part == 0 ? fmax(1, ceil(bytes / (double)sim->files->layout.sync_bucket)) : 1;
    struct collective c;
    size_t *ranks;

    HDT_TRY(buckets_check(sim, part, n, err));
    ranks = stage_ranks(sim, part % sim->n_stages);
    c = gradients_of(sim, ranks, bytes / n, 0);
    c.is_gather = true;
    buckets_add(sim, &c, n, &sim->gathers[part]);
    free(ranks);
    return HDT_OK;
}

enum hdt_status hdt_layout_sim_add_buckets(struct hdt_layout_sim *sim, size_t part,
                                           const struct hdt_stage_cost *cost, struct hdt_error *err)
{
    double bytes = hdt_stage_cost_grad_bytes(cost), bucket = (double)sim->files->layout.sync_bucket;
    double n = fmax(1, ceil(bytes / bucket));
    double down = hdt_stage_cost_down_bytes(cost) - hdt_stage_cost_tied_down_bytes(cost);
    struct collective c;
    size_t *ranks;

    HDT_TRY(buckets_check(sim, part, n, err));
    ranks = stage_ranks(sim, part % sim->n_stages);
    c = gradients_of(sim, ranks, bytes / n, down / n);
    buckets_add(sim, &c, n, &sim->buckets[part]);
    free(ranks);
    return sim->files->layout.sync == HDT_LAYOUT_SYNC_BOTH && hdt_stage_cost_gather_bytes(cost) > 0
               ? gathers_add(sim, part, cost, err)
               : HDT_OK;
}

static void chain_note(struct layout_syncs *syncs, const struct layout_chain *chain)
{
    for (int i = 0; i < chain->n; i++) {
        HDT_ASSERT(syncs->n < LAYOUT_SYNCS_MAX);
        syncs->groups[syncs->n++] = chain->first + i;
    }
}

/* What buckets have left out: it goes to the host when the ends have added it. */
static void tied_down_add(struct hdt_layout_sim *sim, size_t rank)
{
    struct collective c = {.ranks = &rank, .n = 1, .down_bytes = sim->ranks[rank].tied_down_bytes};
    struct layout_chain chain = collective_add(sim, &c);

    chain_note(&sim->ranks[rank].before, &chain);
}

/* Two ranks are no ring: they get what a message gets. */
static void tied_add(struct hdt_layout_sim *sim, size_t replica)
{
    size_t ends[2] = {replica * sim->n_stages, (replica + 1) * sim->n_stages - 1};
    int64_t tp = sim->files->groups[ends[0]].tp;
    struct layout_sum sum = {ends, 2, sim->ranks[ends[0]].tied_bytes * (double)tp, tp, 1, NULL};
    struct layout_chain chain = {.n = 1};
    struct layout_ring ring;

    hdt_layout_net_ring(&sim->net, &sum, LAYOUT_RING_ALL, &ring);
    chain.first = hdt_layout_sim_add_transfer(sim, ends, 2, &ring, -1);
    free(ring.links);
    chain_note(&sim->ranks[ends[0]].before, &chain);
    chain_note(&sim->ranks[ends[1]].before, &chain);
    if (sim->files->layout.sync != HDT_LAYOUT_SYNC_AFTER) {
        tied_down_add(sim, ends[0]);
        tied_down_add(sim, ends[1]);
    }
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

/* What is not overlapped of a stage's gradients, and the weights that replicas gather. */
static void stage_add(struct hdt_layout_sim *sim, size_t stage)
{
    size_t *ranks = stage_ranks(sim, stage);
    const struct layout_rank *first = &sim->ranks[stage];
    struct collective c = gradients_of(sim, ranks, first->grad_bytes, first->down_bytes);
    struct layout_chain chain;

    if (sim->files->layout.sync == HDT_LAYOUT_SYNC_AFTER) {
        chain = collective_add(sim, &c);
        for (size_t i = 0; i < sim->n_replicas; i++) {
            chain_note(&sim->ranks[ranks[i]].before, &chain);
        }
    }
    if (first->gather_bytes > 0 && sim->files->layout.sync != HDT_LAYOUT_SYNC_BOTH) {
        c.bytes = first->gather_bytes;
        c.down_bytes = 0;
        c.is_gather = true;
        chain = collective_add(sim, &c);
        for (size_t i = 0; i < sim->n_replicas; i++) {
            chain_note(&sim->ranks[ranks[i]].after, &chain);
        }
    }
    free(ranks);
}

static void norm_add(struct hdt_layout_sim *sim)
{
    size_t *all = hdt_malloc(sim->n_ranks * sizeof(all[0]));
    struct hdt_sim_group norm = {.flow = -1, .dur_s = norm_s(sim)};

    for (size_t i = 0; i < sim->n_ranks; i++) {
        all[i] = i;
    }
    sim->norm = hdt_layout_sim_add_group(sim, all, sim->n_ranks, &norm);
    free(all);
}

/* ---- tasks ---- */

void hdt_layout_sim_push(struct hdt_layout_sim *sim, size_t rank, enum hdt_op_kind op,
                         const struct hdt_sim_task *like)
{
    struct hdt_sim_task task = *like;

    task.op = (struct hdt_op){.kind = op, .stage = -1, .mb = -1, .flow = -1};
    hdt_sim_list_push(&sim->lists.ranks[rank], &task);
}

static void syncs_push(struct hdt_layout_sim *sim, size_t rank, const struct layout_syncs *syncs)
{
    for (int i = 0; i < syncs->n; i++) {
        struct hdt_sim_task task = {.kind = HDT_SIM_GROUP, .peer = syncs->groups[i]};

        hdt_layout_sim_push(sim, rank, HDT_OP_GRAD_SYNC, &task);
    }
}

static void buckets_join(struct hdt_layout_sim *sim, size_t rank)
{
    for (size_t p = rank % sim->n_stages; p < sim->n_parts; p += sim->n_stages) {
        for (int i = 0; i < sim->buckets[p].chain.n; i++) {
            struct hdt_sim_task task = {.kind = HDT_SIM_JOIN,
                                        .peer = sim->buckets[p].chain.first + i};

            hdt_layout_sim_push(sim, rank, HDT_OP_GRAD_SYNC, &task);
        }
    }
}

static void step_push(struct hdt_layout_sim *sim, size_t rank)
{
    const struct layout_rank *is = &sim->ranks[rank];
    struct hdt_sim_task task = {.kind = HDT_SIM_COMPUTE, .peer = -1, .dur_s = is->is.step_s};

    hdt_layout_sim_push(sim, rank, HDT_OP_STEP, &task);
    if (is->up_bytes > 0) {
        hdt_layout_sim_push_host_step(sim, rank);
    }
}

static void tail_push(struct hdt_layout_sim *sim, size_t rank)
{
    struct hdt_sim_task norm = {.kind = HDT_SIM_GROUP, .peer = sim->norm};

    buckets_join(sim, rank);
    syncs_push(sim, rank, &sim->ranks[rank].before);
    if (sim->n_ranks > 1) {
        hdt_layout_sim_push(sim, rank, HDT_OP_NORM_SYNC, &norm);
    }
    step_push(sim, rank);
    syncs_push(sim, rank, &sim->ranks[rank].after);
}

void hdt_layout_sim_end_step(struct hdt_layout_sim *sim)
{
    if (sim->model.is_tied && sim->n_stages > 1) {
        for (size_t r = 0; r < sim->n_replicas; r++) {
            tied_add(sim, r);
        }
    }
    for (size_t s = 0; s < sim->n_stages; s++) {
        stage_add(sim, s);
    }
    if (sim->n_ranks > 1) {
        norm_add(sim);
    }
    for (size_t i = 0; i < sim->n_ranks; i++) {
        tail_push(sim, i);
    }
}
