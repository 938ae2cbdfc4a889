/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/support/sim_pipe.h"
#include "src/base/buf.h"

#include <stdlib.h>

/* Flows of a replica: forward edge s has number 2 s, its backward 2 s + 1. */
static int edge_flow(const struct sim_pipe *p, int replica, int edge, bool back)
{
    return replica * 2 * (p->n_stages - 1) + 2 * edge + back;
}

/* The k-th item of a stage: a forward or a backward, and of which micro-batch. */
static bool item_is_forward(const struct sim_pipe *p, int stage, int64_t k, int64_t *mb)
{
    int64_t warmup = p->gpipe ? p->n_mb : p->n_stages - 1 - stage;

    warmup = warmup < p->n_mb ? warmup : p->n_mb;
    if (k < warmup) {
        *mb = k;
        return true;
    }
    k -= warmup;
    if (k < 2 * (p->n_mb - warmup)) {
        *mb = k / 2 + (k % 2 ? 0 : warmup);
        return k % 2 == 0;
    }
    *mb = k - (p->n_mb - warmup);
    return false;
}

static void compute_fill(const struct sim_pipe *p, bool forward, struct hdt_sim_task *task)
{
    task->kind = HDT_SIM_COMPUTE;
    task->peer = -1;
    task->dur_s = forward ? p->fwd_s : p->bwd_s;
    task->op.kind = forward ? HDT_OP_FORWARD : HDT_OP_BACKWARD;
    task->mem_begin = forward ? p->slot_bytes : 0;
    task->mem_end = forward ? 0 : -p->slot_bytes;
}

/* Part of an item: take what comes, compute, send what goes. */
static void part_fill(const struct sim_pipe *p, int replica, int stage, bool forward, int part,
                      struct hdt_sim_task *task)
{
    bool takes = forward ? stage > 0 : stage < p->n_stages - 1;

    part += takes ? 0 : 1;
    if (part == 0) {
        task->kind = HDT_SIM_RECV;
        task->peer = edge_flow(p, replica, forward ? stage - 1 : stage, !forward);
        task->op.kind = forward ? HDT_OP_RECV_FORWARD : HDT_OP_RECV_BACKWARD;
    } else if (part == 1) {
        compute_fill(p, forward, task);
    } else {
        task->kind = HDT_SIM_SEND;
        task->peer = edge_flow(p, replica, forward ? stage : stage - 1, !forward);
        task->bytes = p->frame_bytes;
        task->op.kind = forward ? HDT_OP_SEND_FORWARD : HDT_OP_SEND_BACKWARD;
    }
}

static bool pipe_task(void *ctx, int rank, int64_t idx, struct hdt_sim_task *task)
{
    const struct sim_pipe *p = ctx;
    int stage = rank % p->n_stages, replica = rank / p->n_stages;
    bool ends = stage == 0 || stage == p->n_stages - 1, sync = p->sync_s > 0, forward;
    int64_t n_parts = p->n_stages == 1 ? 1 : ends ? 2 : 3;
    int64_t n_step = 2 * p->n_mb * n_parts + sync, mb = -1;

    if (idx >= n_step * p->n_steps) {
        return false;
    }
    idx %= n_step;
    *task = (struct hdt_sim_task){.op = {.stage = stage, .mb = -1, .flow = -1}};
    if (idx < 2 * p->n_mb * n_parts) {
        forward = item_is_forward(p, stage, idx / n_parts, &mb);
        part_fill(p, replica, stage, forward, (int)(idx % n_parts), task);
        task->op.mb = mb;
    } else {
        task->kind = HDT_SIM_GROUP;
        task->peer = stage;
        task->op.kind = HDT_OP_GRAD_SYNC;
    }
    task->flags = idx == n_step - 1 ? HDT_SIM_STEP_END : 0;
    return true;
}

static void flow_fill(const struct sim_pipe *p, struct sim_pipe_tables *t, int flow, int src,
                      int dst)
{
    size_t route = 2 * (size_t)flow;

    t->routes[route] = 2 * src;
    t->routes[route + 1] = 2 * dst + 1;
    t->flows[flow] = (struct hdt_sim_flow){.src = src,
                                           .dst = dst,
                                           .route = route,
                                           .n_route = 2,
                                           .queue = -1,
                                           .latency_s = p->latency_s,
                                           .src_host = -1,
                                           .dst_host = -1};
}

static void groups_fill(const struct sim_pipe *p, struct sim_pipe_tables *t,
                        struct hdt_sim_setup *setup)
{
    size_t n = (size_t)p->n_replicas;

    setup->n_groups = (size_t)p->n_stages;
    for (int s = 0; s < p->n_stages; s++) {
        t->groups[s] =
            (struct hdt_sim_group){.first = (size_t)s * n, .n = n, .dur_s = p->sync_s, .flow = -1};
        for (int r = 0; r < p->n_replicas; r++) {
            t->members[(size_t)s * n + (size_t)r] = r * p->n_stages + s;
        }
    }
}

void hdt_sim_pipe_setup(struct sim_pipe *p, struct sim_pipe_tables *t, struct hdt_sim_setup *setup)
{
    size_t n_ranks = (size_t)p->n_stages * (size_t)p->n_replicas;
    size_t n_flows = (size_t)p->n_replicas * 2 * (size_t)(p->n_stages - 1);

    t->links = hdt_calloc(2 * n_ranks, sizeof(t->links[0]));
    t->flows = hdt_calloc(n_flows + 1, sizeof(t->flows[0]));
    t->routes = hdt_calloc(2 * n_flows + 1, sizeof(t->routes[0]));
    t->groups = hdt_calloc((size_t)p->n_stages, sizeof(t->groups[0]));
    t->members = hdt_calloc(n_ranks, sizeof(t->members[0]));
    *setup = (struct hdt_sim_setup){.n_ranks = n_ranks,
                                    .n_links = 2 * n_ranks,
                                    .n_flows = n_flows,
                                    .links = t->links,
                                    .flows = t->flows,
                                    .routes = t->routes,
                                    .groups = t->groups,
                                    .members = t->members,
                                    .task = pipe_task,
                                    .ctx = p,
                                    .n_steps = p->n_steps};
    for (size_t i = 0; i < 2 * n_ranks; i++) {
        t->links[i].rate_bytes_per_s = p->nic_bytes_per_s;
    }
    for (int r = 0; r < p->n_replicas; r++) {
        for (int s = 0; s + 1 < p->n_stages; s++) {
            int rank = r * p->n_stages + s;

            flow_fill(p, t, edge_flow(p, r, s, false), rank, rank + 1);
            flow_fill(p, t, edge_flow(p, r, s, true), rank + 1, rank);
        }
    }
    if (p->sync_s > 0) {
        groups_fill(p, t, setup);
    }
}

void hdt_sim_pipe_release(struct sim_pipe_tables *t)
{
    free(t->links);
    free(t->flows);
    free(t->routes);
    free(t->groups);
    free(t->members);
}
