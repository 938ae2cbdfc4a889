/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * What hosts have instead of devices.
 *
 * Activations (as PipeOffload does it): those of a micro-batch go down once its forward is done,
 * one after another, and come back while the computation before its backward goes on. A part so has
 * three places on the device: one at work, one that leaves, one that comes. It waits where the link
 * is slower than the work. Keeping more on the device as long as there is room would move less; how
 * much room there is would then be another setting.
 *
 * The optimizer (as ZeRO-Offload does it): summed gradients go down, Adam runs on the processors,
 * and new weights come up in tiles while it goes on.
 */
#include "src/base/buf.h"
#include "src/plan/layout_sim_impl.h"

#include <math.h>
#include <stdlib.h>

#define GIB (1024.0 * 1024 * 1024)

/* A group of one rank for what goes between its devices and their host. */
static int transfer_add(struct hdt_layout_sim *sim, size_t rank, bool is_up, double bytes,
                        int queue)
{
    int link = hdt_layout_net_host(&sim->net, rank, is_up);
    struct layout_ring way = {
        .links = &link, .n = 1, .bytes = bytes * (double)sim->files->groups[rank].tp};

    return hdt_layout_sim_add_transfer(sim, &rank, 1, &way, queue);
}

/* ---- activations ---- */

void hdt_layout_away_init(struct hdt_layout_sim *sim, size_t rank,
                          const struct hdt_stage_cost *cost, int64_t n_in_flight,
                          struct layout_away *away)
{
    struct hdt_stage_cost_memory memory;
    double bytes;

    hdt_stage_cost_memory(cost, n_in_flight, &memory);
    *away = (struct layout_away){.is_on = memory.host_activations > 0};
    if (!away->is_on) {
        return;
    }
    bytes = memory.host_activations / (double)n_in_flight;
    away->bytes = (int64_t)bytes;
    for (int i = 0; i < HDT_STAGE_COST_HOST_SLOTS; i++) {
        away->down[i] = transfer_add(sim, rank, false, bytes, sim->n_queues);
    }
    sim->n_queues++;
    away->up = transfer_add(sim, rank, true, bytes, -1);
}

/* A task of such a group; `like`: the computation that it is for. */
static void away_push(struct hdt_layout_sim *sim, size_t rank, const struct hdt_sim_task *task,
                      enum hdt_op_kind kind, const struct hdt_op *like)
{
    struct hdt_sim_task own = *task;

    own.op = *like;
    own.op.kind = kind;
    hdt_sim_list_push(&sim->lists.ranks[rank], &own);
}

/* Wait for the next one that goes down; its place is free then. */
static void oldest_join(struct hdt_layout_sim *sim, size_t rank, struct layout_away *away,
                        const struct hdt_op *op)
{
    struct hdt_sim_task task = {.kind = HDT_SIM_JOIN,
                                .peer = away->down[away->n_waited % HDT_STAGE_COST_HOST_SLOTS],
                                .mem_end = -away->bytes};
    struct hdt_op gone = *op;

    HDT_ASSERT(away->n_waited < away->n_gone);
    gone.mb = away->gone_mb[away->n_waited++ % HDT_STAGE_COST_HOST_SLOTS];
    away_push(sim, rank, &task, HDT_OP_OFFLOAD, &gone);
    away->n_held--;
}

static void place_take(struct hdt_layout_sim *sim, size_t rank, struct layout_away *away,
                       const struct hdt_op *op)
{
    if (away->n_held == HDT_STAGE_COST_HOST_SLOTS) {
        oldest_join(sim, rank, away, op);
    }
    away->n_held++;
}

/* What a backward needs comes back; it must have arrived down there. */
static void up_push(struct hdt_layout_sim *sim, size_t rank, struct layout_away *away,
                    const struct hdt_op *op)
{
    struct hdt_sim_task task = {
        .kind = HDT_SIM_GROUP, .flags = HDT_SIM_ASYNC, .peer = away->up, .mem_begin = away->bytes};

    while (away->n_waited < away->n_gone &&
           away->gone_mb[away->n_waited % HDT_STAGE_COST_HOST_SLOTS] <= op->mb) {
        oldest_join(sim, rank, away, op);
    }
    place_take(sim, rank, away, op);
    away_push(sim, rank, &task, HDT_OP_FETCH, op);
    away->comes = true;
}

static bool is_compute(enum hdt_op_kind kind)
{
    return kind == HDT_OP_FORWARD || kind == HDT_OP_BACKWARD;
}

/* The next computation behind this op; NULL: there is none. */
static const struct hdt_op *next_of(const struct hdt_schedule *schedule, size_t op_idx)
{
    for (size_t i = op_idx + 1; i < schedule->n_ops; i++) {
        if (is_compute(schedule->ops[i].kind)) {
            return &schedule->ops[i];
        }
    }
    return NULL;
}

/* A forward whose backward comes at once: nothing need go down. */
static bool is_own(const struct hdt_op *op, const struct hdt_op *next)
{
    return op->kind == HDT_OP_FORWARD && op->stage == next->stage && op->mb == next->mb;
}

void hdt_layout_away_before(struct hdt_layout_sim *sim, size_t rank, struct layout_away *away,
                            const struct hdt_schedule *schedule, size_t op_idx)
{
    const struct hdt_op *op = &schedule->ops[op_idx], *next = next_of(schedule, op_idx);

    if (!is_compute(op->kind)) {
        return;
    }
    if (op->kind == HDT_OP_FORWARD && away[op->stage].is_on) {
        place_take(sim, rank, &away[op->stage], op);
    } else if (op->kind == HDT_OP_BACKWARD && away[op->stage].comes) {
        struct hdt_sim_task task = {.kind = HDT_SIM_JOIN, .peer = away[op->stage].up};

        away_push(sim, rank, &task, HDT_OP_FETCH, op);
        away[op->stage].comes = false;
    }
    if (next && next->kind == HDT_OP_BACKWARD && away[next->stage].is_on && !is_own(op, next)) {
        up_push(sim, rank, &away[next->stage], next);
    }
}

void hdt_layout_away_after(struct hdt_layout_sim *sim, size_t rank, struct layout_away *away,
                           const struct hdt_schedule *schedule, size_t op_idx)
{
    const struct hdt_op *op = &schedule->ops[op_idx], *next = next_of(schedule, op_idx);
    struct hdt_sim_task task = {.kind = HDT_SIM_GROUP, .flags = HDT_SIM_ASYNC};
    struct layout_away *own;

    if (!is_compute(op->kind) || !away[op->stage].is_on) {
        return;
    }
    own = &away[op->stage];
    if (op->kind == HDT_OP_BACKWARD) {
        own->n_held--;
    } else if (!next || !is_own(op, next)) {
        task.peer = own->down[own->n_gone % HDT_STAGE_COST_HOST_SLOTS];
        own->gone_mb[own->n_gone++ % HDT_STAGE_COST_HOST_SLOTS] = op->mb;
        away_push(sim, rank, &task, HDT_OP_OFFLOAD, op);
    }
}

/* ---- the optimizer ---- */

void hdt_layout_sim_push_host_step(struct hdt_layout_sim *sim, size_t rank)
{
    struct hdt_sim_group step = {.flow = -1, .dur_s = sim->ranks[rank].is.host_step_s};
    int up = transfer_add(sim, rank, true, sim->ranks[rank].up_bytes, -1);
    struct hdt_sim_task task = {.kind = HDT_SIM_GROUP, .flags = HDT_SIM_ASYNC, .peer = up};

    hdt_layout_sim_push(sim, rank, HDT_OP_STEP, &task);
    task.flags = 0;
    task.peer = hdt_layout_sim_add_group(sim, &rank, 1, &step);
    hdt_layout_sim_push(sim, rank, HDT_OP_STEP, &task);
    task.kind = HDT_SIM_JOIN;
    task.peer = up;
    hdt_layout_sim_push(sim, rank, HDT_OP_STEP, &task);
}

/* ---- hosts ---- */

static enum hdt_status host_refuse(const struct hdt_layout_sim *sim, size_t rank, double bytes,
                                   struct hdt_error *err)
{
    const struct hdt_cluster_file_nodes *nodes = sim->files->groups[rank].nodes;
    size_t stage = rank % sim->n_stages;
    char key[48];

    hdt_layout_offload_key(&sim->files->layout, stage, key, sizeof(key));
    hdt_conf_error(sim->files->doc, key, err, HDT_EINVAL,
                   "stage %zu offloads too much: a host of nodes '%.64s' has %.4g GiB for it and "
                   "would need %.4g",
                   stage, nodes->name, nodes->host.gb, bytes / GIB);
    hdt_error_hint(err, "offload less, use more nodes, or give these nodes more host.gb");
    return HDT_EINVAL;
}

enum hdt_status hdt_layout_sim_fill_hosts(struct hdt_layout_sim *sim, struct hdt_error *err)
{
    double *held = hdt_calloc(sim->net.n_nodes + 1, sizeof(held[0]));
    double *moved = hdt_calloc(sim->net.n_nodes + 1, sizeof(moved[0]));
    enum hdt_status status = HDT_OK;

    for (size_t i = 0; i < sim->n_ranks; i++) {
        const struct layout_rank *r = &sim->ranks[i];
        double tp = (double)sim->files->groups[i].tp;

        held[sim->net.node_of[i]] +=
            tp * (r->is.memory.host_optimizer + r->is.memory.host_activations);
        moved[sim->net.node_of[i]] += tp * r->host_step_bytes;
    }
    for (size_t i = 0; i < sim->n_ranks && status == HDT_OK; i++) {
        const struct hdt_cluster_file_host *host = &sim->files->groups[i].nodes->host;
        struct layout_rank *r = &sim->ranks[i];
        size_t node = sim->net.node_of[i];

        if (r->is.memory.host_optimizer + r->is.memory.host_activations > 0 &&
            held[node] > host->gb * GIB) {
            status = host_refuse(sim, i, held[node], err);
        }
        if (r->host_step_bytes > 0) {
            r->is.host_step_s = moved[node] / (host->memory_gb_per_s * 1e9);
        }
    }
    free(held);
    free(moved);
    return status;
}
