/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * What hosts have instead of devices.
 *
 * Activations (as PipeOffload does it): those of a micro-batch go down once its forward is done,
 * one after another, and come back while the two computations before its backward go on. A part so
 * has three places on the device: one at work, one that leaves, one that comes. In 1F1B each way
 * then has a forward and a backward to be done in; it waits where the link is slower than that.
 * What comes back takes the place of one that has left. Where the op lists turn from forwards to
 * backwards or end, that one may only have begun to leave; the place is then asked for one
 * computation later, since to wait for it would hold up the work before. Keeping more on the device
 * as long as there is room would move less; how much room there is would then be another setting.
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
    for (int i = 0; i < LAYOUT_AWAY_AHEAD; i++) {
        away->up[i] = transfer_add(sim, rank, true, bytes, sim->n_queues);
    }
    sim->n_queues++;
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

/* The forward whose activations were the n-th to go. */
static const struct hdt_op *gone_at(const struct layout_away *away, int64_t n)
{
    return away->gone[n % HDT_STAGE_COST_HOST_SLOTS];
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
    gone.mb = gone_at(away, away->n_waited++)->mb;
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
    struct hdt_sim_task task = {.kind = HDT_SIM_GROUP,
                                .flags = HDT_SIM_ASYNC,
                                .peer = away->up[away->n_asked % LAYOUT_AWAY_AHEAD],
                                .mem_begin = away->bytes};

    while (away->n_waited < away->n_gone && gone_at(away, away->n_waited)->mb <= op->mb) {
        oldest_join(sim, rank, away, op);
    }
    place_take(sim, rank, away, op);
    HDT_ASSERT(away->n_asked - away->n_come < LAYOUT_AWAY_AHEAD);
    away_push(sim, rank, &task, HDT_OP_FETCH, op);
    away->asked_mb[away->n_asked++ % LAYOUT_AWAY_AHEAD] = op->mb;
}

static bool is_compute(enum hdt_op_kind kind)
{
    return kind == HDT_OP_FORWARD || kind == HDT_OP_BACKWARD;
}

/* The next computation behind this op; NULL: there is none. */
static const struct hdt_op *next_of(const struct hdt_schedule *schedule, const struct hdt_op *op)
{
    for (size_t i = (size_t)(op - schedule->ops) + 1; i < schedule->n_ops; i++) {
        if (is_compute(schedule->ops[i].kind)) {
            return &schedule->ops[i];
        }
    }
    return NULL;
}

/* The one before it. */
static const struct hdt_op *last_of(const struct hdt_schedule *schedule, const struct hdt_op *op)
{
    for (size_t i = (size_t)(op - schedule->ops); i-- > 0;) {
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

/* Has this backward's been asked for, and not come yet? */
static bool is_asked(const struct layout_away *away, const struct hdt_op *op)
{
    for (int64_t i = away->n_come; i < away->n_asked; i++) {
        if (away->asked_mb[i % LAYOUT_AWAY_AHEAD] == op->mb) {
            return true;
        }
    }
    return false;
}

/* Does this backward need what has gone down? */
static bool is_fetched(const struct layout_away *away, const struct hdt_op *before,
                       const struct hdt_op *op)
{
    return op->kind == HDT_OP_BACKWARD && away[op->stage].is_on && !is_own(before, op);
}

/* Can what a backward needs be asked for before this op? It must have gone down; and a forward
 * waits for no place, a backward for none that the computation just before it is about to leave. */
static bool can_ask(const struct layout_away *away, const struct hdt_schedule *schedule,
                    const struct hdt_op *op, const struct hdt_op *backward)
{
    const struct hdt_op *waited = NULL;
    int64_t n = away->n_waited;

    if (away->n_gone == 0 || gone_at(away, away->n_gone - 1)->mb < backward->mb) {
        return false;
    }
    while (n < away->n_gone && gone_at(away, n)->mb <= backward->mb) {
        waited = gone_at(away, n++);
    }
    if (away->n_held - (n - away->n_waited) == HDT_STAGE_COST_HOST_SLOTS) {
        waited = gone_at(away, n);
    }
    return !waited || (op->kind == HDT_OP_BACKWARD && waited != last_of(schedule, op));
}

/* Ask for what the next two backwards need, as far as they come within two computations. */
static void ahead_push(struct hdt_layout_sim *sim, size_t rank, struct layout_away *away,
                       const struct hdt_schedule *schedule, const struct hdt_op *op)
{
    const struct hdt_op *next = next_of(schedule, op);
    const struct hdt_op *second = next ? next_of(schedule, next) : NULL;

    if (next && is_fetched(away, op, next) && !is_asked(&away[next->stage], next)) {
        up_push(sim, rank, &away[next->stage], next);
    }
    if (second && is_fetched(away, next, second) &&
        can_ask(&away[second->stage], schedule, op, second)) {
        up_push(sim, rank, &away[second->stage], second);
    }
}

void hdt_layout_away_before(struct hdt_layout_sim *sim, size_t rank, struct layout_away *away,
                            const struct hdt_schedule *schedule, size_t op_idx)
{
    const struct hdt_op *op = &schedule->ops[op_idx];
    struct layout_away *own;

    if (!is_compute(op->kind)) {
        return;
    }
    own = &away[op->stage];
    if (op->kind == HDT_OP_FORWARD && own->is_on) {
        place_take(sim, rank, own, op);
    } else if (op->kind == HDT_OP_BACKWARD && is_asked(own, op)) {
        struct hdt_sim_task task = {.kind = HDT_SIM_JOIN,
                                    .peer = own->up[own->n_come++ % LAYOUT_AWAY_AHEAD]};

        away_push(sim, rank, &task, HDT_OP_FETCH, op);
    }
    ahead_push(sim, rank, away, schedule, op);
}

void hdt_layout_away_after(struct hdt_layout_sim *sim, size_t rank, struct layout_away *away,
                           const struct hdt_schedule *schedule, size_t op_idx)
{
    const struct hdt_op *op = &schedule->ops[op_idx], *next;
    struct hdt_sim_task task = {.kind = HDT_SIM_GROUP, .flags = HDT_SIM_ASYNC};
    struct layout_away *own;

    if (!is_compute(op->kind) || !away[op->stage].is_on) {
        return;
    }
    own = &away[op->stage];
    next = next_of(schedule, op);
    if (op->kind == HDT_OP_BACKWARD) {
        own->n_held--;
    } else if (!next || !is_own(op, next)) {
        task.peer = own->down[own->n_gone % HDT_STAGE_COST_HOST_SLOTS];
        own->gone[own->n_gone++ % HDT_STAGE_COST_HOST_SLOTS] = op;
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
