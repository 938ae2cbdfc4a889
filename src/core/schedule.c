/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Op lists.
 *
 * Each stage has a fixed row of *items* (forward m, backward m or its halves, load ahead m;
 * schedule_rows.c). A rank with one row runs it as it is. A rank with several rows needs one order
 * for all of them, and an order that each rank chose by itself could wait for one that another rank
 * chose otherwise: schedule_order.c merges them for all ranks alike.
 */
#include "src/base/buf.h"
#include "src/core/schedule_impl.h"

#include <stdlib.h>
#include <string.h>

static const char *const op_names[HDT_OP_KIND_COUNT] = {
    [HDT_OP_LOAD] = "LOAD",
    [HDT_OP_SEND_TOKENS] = "SEND_TOKENS",
    [HDT_OP_RECV_TOKENS] = "RECV_TOKENS",
    [HDT_OP_SEND_LABELS] = "SEND_LABELS",
    [HDT_OP_RECV_LABELS] = "RECV_LABELS",
    [HDT_OP_RECV_FORWARD] = "RECV_FORWARD",
    [HDT_OP_FORWARD] = "FORWARD",
    [HDT_OP_SEND_FORWARD] = "SEND_FORWARD",
    [HDT_OP_RECV_BACKWARD] = "RECV_BACKWARD",
    [HDT_OP_BACKWARD] = "BACKWARD",
    [HDT_OP_BACKWARD_INPUT] = "BACKWARD_INPUT",
    [HDT_OP_BACKWARD_WEIGHT] = "BACKWARD_WEIGHT",
    [HDT_OP_SEND_BACKWARD] = "SEND_BACKWARD",
    [HDT_OP_TIED_SYNC] = "TIED_SYNC",
    [HDT_OP_GRAD_SYNC] = "GRAD_SYNC",
    [HDT_OP_OUTER_SYNC] = "OUTER_SYNC",
    [HDT_OP_NORM_SYNC] = "NORM_SYNC",
    [HDT_OP_STEP] = "STEP",
    [HDT_OP_OFFLOAD] = "OFFLOAD",
    [HDT_OP_FETCH] = "FETCH",
};

const char *hdt_op_name(enum hdt_op_kind kind)
{
    return (unsigned)kind < HDT_OP_KIND_COUNT ? op_names[kind] : "?";
}

/* ---- ops ---- */

static void op_push(struct schedule_builder *b, enum hdt_op_kind kind, int stage, int64_t mb,
                    int flow)
{
    struct hdt_schedule *out = b->out;

    if (out->n_ops == b->out_cap) {
        b->out_cap = b->out_cap ? 2 * b->out_cap : 64;
        out->ops = hdt_realloc(out->ops, b->out_cap * sizeof(out->ops[0]));
    }
    out->ops[out->n_ops++] = (struct hdt_op){kind, stage, mb, flow};
}

int hdt_schedule_first_stage(const struct hdt_plan *plan, int rank)
{
    for (size_t s = 0; s < plan->n_stages; s++) {
        if (plan->stages[s].rank == rank) {
            return (int)s;
        }
    }
    return -1;
}

int hdt_schedule_edge_flow(const struct hdt_plan *plan, enum hdt_flow_kind kind, int src, int dst)
{
    int flow =
        hdt_plan_find_flow(plan, kind, plan->stages[src].rank, plan->stages[dst].rank, src, dst);

    HDT_ASSERT(flow >= 0);
    return flow;
}

/* Load a micro-batch and send what others need of it. */
static void ops_load(struct schedule_builder *b, int stage, int64_t mb)
{
    op_push(b, HDT_OP_LOAD, stage, mb, -1);
    if (b->tokens_flow >= 0) {
        op_push(b, HDT_OP_SEND_TOKENS, stage, mb, b->tokens_flow);
    }
    if (b->labels_flow >= 0) {
        op_push(b, HDT_OP_SEND_LABELS, stage, mb, b->labels_flow);
    }
}

/* Tokens and labels of a forward: received, or loaded by the data rank itself. Tokens that were
 * sent ahead are loaded again for the labels, so that no list of loaded micro-batches is kept:
 * a load is a read of mapped memory. */
static void ops_inputs(struct schedule_builder *b, int stage, int64_t mb)
{
    bool first = stage == 0, last = stage == (int)b->plan->n_stages - 1;
    bool holds_data = b->rank == b->plan->data_rank;

    if (first && holds_data) {
        ops_load(b, stage, mb);
    } else if (first) {
        op_push(b, HDT_OP_RECV_TOKENS, stage, mb, b->tokens_flow);
    } else {
        op_push(b, HDT_OP_RECV_FORWARD, stage, mb,
                hdt_schedule_edge_flow(b->plan, HDT_FLOW_ACTIVATION, stage - 1, stage));
    }
    if (last && !holds_data) {
        op_push(b, HDT_OP_RECV_LABELS, stage, mb, b->labels_flow);
    } else if (last && !first) {
        op_push(b, HDT_OP_LOAD, stage, mb, -1);
    }
}

static void ops_backward(struct schedule_builder *b, enum hdt_op_kind kind, int stage, int64_t mb)
{
    if (stage < (int)b->plan->n_stages - 1) {
        op_push(b, HDT_OP_RECV_BACKWARD, stage, mb,
                hdt_schedule_edge_flow(b->plan, HDT_FLOW_ACTIVATION_GRAD, stage + 1, stage));
    }
    op_push(b, kind, stage, mb, -1);
    if (stage > 0) {
        op_push(b, HDT_OP_SEND_BACKWARD, stage, mb,
                hdt_schedule_edge_flow(b->plan, HDT_FLOW_ACTIVATION_GRAD, stage, stage - 1));
    }
}

void hdt_schedule_add_item(struct schedule_builder *b, const struct schedule_item *item)
{
    int stage = item->stage;

    switch (item->kind) {
    case ITEM_LOAD:
        ops_load(b, -1, item->mb);
        break;
    case ITEM_FORWARD:
        ops_inputs(b, stage, item->mb);
        op_push(b, HDT_OP_FORWARD, stage, item->mb, -1);
        if (stage < (int)b->plan->n_stages - 1) {
            op_push(b, HDT_OP_SEND_FORWARD, stage, item->mb,
                    hdt_schedule_edge_flow(b->plan, HDT_FLOW_ACTIVATION, stage, stage + 1));
        }
        break;
    case ITEM_BACKWARD:
        ops_backward(b, HDT_OP_BACKWARD, stage, item->mb);
        break;
    case ITEM_BACKWARD_INPUT:
        ops_backward(b, HDT_OP_BACKWARD_INPUT, stage, item->mb);
        break;
    case ITEM_BACKWARD_WEIGHT:
        op_push(b, HDT_OP_BACKWARD_WEIGHT, stage, item->mb, -1);
        break;
    }
}

/* ---- build ---- */

static void build_body(struct schedule_builder *b)
{
    struct schedule_row *own = NULL;
    size_t n_own = 0;

    for (size_t i = 0; i < b->n_rows; i++) {
        if (b->rows[i].rank == b->rank) {
            own = &b->rows[i];
            n_own++;
        }
    }
    if (n_own > 1) {
        for (size_t i = 0; i < b->n_rows; i++) {
            hdt_schedule_row_fill(b, &b->rows[i]);
        }
        hdt_schedule_order(b);
        return;
    }
    if (own) {
        hdt_schedule_row_fill(b, own);
    }
    for (size_t i = 0; own && i < own->n_items; i++) {
        hdt_schedule_add_item(b, &own->items[i]);
    }
}

/* The ends of a tied model exchange before the norms are taken; then all ranks agree and step. */
static void build_tail(struct schedule_builder *b)
{
    bool tied = false;

    if (b->phase == HDT_PHASE_TRAIN) {
        for (size_t i = 0; i < b->plan->n_flows; i++) {
            tied = tied || (b->plan->flows[i].kind == HDT_FLOW_TIED_GRAD &&
                            b->plan->flows[i].src_rank == b->rank);
        }
        if (tied) {
            op_push(b, HDT_OP_TIED_SYNC, -1, -1, -1);
        }
    }
    op_push(b, HDT_OP_NORM_SYNC, -1, -1, -1);
    if (b->phase == HDT_PHASE_TRAIN && hdt_schedule_first_stage(b->plan, b->rank) >= 0) {
        op_push(b, HDT_OP_STEP, -1, -1, -1);
    }
}

/* Slots are counted in the list itself. */
static void count_slots(const struct schedule_builder *b)
{
    struct hdt_schedule *out = b->out;
    int64_t *now = hdt_calloc(b->plan->n_stages, sizeof(*now));

    out->n_slots = hdt_calloc(b->plan->n_stages, sizeof(*out->n_slots));
    for (size_t i = 0; i < out->n_ops; i++) {
        const struct hdt_op *op = &out->ops[i];

        if (op->kind == HDT_OP_FORWARD) {
            now[op->stage] += b->phase == HDT_PHASE_EVAL && now[op->stage] > 0 ? 0 : 1;
        } else if (op->kind == HDT_OP_BACKWARD || op->kind == HDT_OP_BACKWARD_WEIGHT) {
            now[op->stage]--;
        } else {
            continue;
        }
        if (now[op->stage] > out->n_slots[op->stage]) {
            out->n_slots[op->stage] = now[op->stage];
        }
    }
    free(now);
}

static int data_flow(const struct hdt_plan *plan, enum hdt_flow_kind kind, int stage)
{
    return hdt_plan_find_flow(plan, kind, plan->data_rank, plan->stages[stage].rank, -1, stage);
}

/* Of a plan that has one replica. */
static enum hdt_status schedule_pipeline(const struct hdt_plan *plan, int rank,
                                         enum hdt_phase phase, int64_t n_mb,
                                         struct hdt_schedule *schedule, struct hdt_error *err)
{
    struct schedule_builder b = {
        .plan = plan, .phase = phase, .n_mb = n_mb, .rank = rank, .out = schedule};
    int n_ranks, n_chunks;

    if (rank < 0 || (size_t)rank >= plan->n_ranks) {
        return hdt_error_set(err, HDT_EINVAL,
                             "cannot build the schedule of rank %d: the plan has %zu", rank,
                             plan->n_ranks);
    }
    if (n_mb < 1 || n_mb > 65536) {
        return hdt_error_set(err, HDT_EINVAL, "cannot build a schedule of %lld micro-batches",
                             (long long)n_mb);
    }
    if (plan->schedule == HDT_SCHEDULE_INTERLEAVED) {
        HDT_TRY(hdt_schedule_turns(plan, &n_ranks, &n_chunks, err));
    }
    memset(schedule, 0, sizeof(*schedule));
    b.tokens_flow = data_flow(plan, HDT_FLOW_TOKENS, 0);
    b.labels_flow = data_flow(plan, HDT_FLOW_LABELS, (int)plan->n_stages - 1);
    hdt_schedule_rows(&b);
    build_body(&b);
    build_tail(&b);
    count_slots(&b);
    for (size_t i = 0; i < b.n_rows; i++) {
        free(b.rows[i].items);
    }
    free(b.rows);
    return HDT_OK;
}

/* ---- replicas ---- */

/* Tokens and labels of the other replicas, which the data rank sends beside its own loads: before
 * load i of n those of the same part of their micro-batches, rounded up: they begin at once. */
static void feed_others(struct schedule_builder *b, int64_t i, int64_t n)
{
    const struct hdt_plan *plan = b->plan;

    for (int k = 1; k < plan->n_replicas; k++) {
        int64_t first, n_k = hdt_plan_replica_micro_batches(plan, k, &first);
        size_t begin, end;

        hdt_plan_replica_stages(plan, k, &begin, &end);
        b->tokens_flow = data_flow(plan, HDT_FLOW_TOKENS, (int)begin);
        b->labels_flow = data_flow(plan, HDT_FLOW_LABELS, (int)end - 1);
        for (int64_t m = (i * n_k + n - 1) / n; m < ((i + 1) * n_k + n - 1) / n; m++) {
            ops_load(b, -1, first + m);
        }
    }
}

/* A replica's list with the plan's numbers: stages, and micro-batches of the step. */
static void replica_list(struct schedule_builder *b, const struct hdt_schedule *own, int replica,
                         int64_t n_mb)
{
    bool feeds = b->rank == b->plan->data_rank && b->phase == HDT_PHASE_TRAIN;
    int64_t first, n_fed = 0;
    size_t begin, end;

    hdt_plan_replica_stages(b->plan, replica, &begin, &end);
    hdt_plan_replica_micro_batches(b->plan, replica, &first);
    for (size_t i = 0; i < own->n_ops; i++) {
        const struct hdt_op *op = &own->ops[i];
        bool loads = op->kind == HDT_OP_LOAD && op->mb == n_fed;

        while (feeds && n_fed < n_mb && (loads || op->kind == HDT_OP_NORM_SYNC)) {
            feed_others(b, n_fed++, n_mb);
            loads = false;
        }
        op_push(b, op->kind, op->stage >= 0 ? op->stage + (int)begin : -1,
                op->mb >= 0 && b->phase == HDT_PHASE_TRAIN ? op->mb + first : op->mb, op->flow);
    }
    for (size_t s = begin; s < end; s++) {
        b->out->n_slots[s] = own->n_slots[s - begin];
    }
    if (b->phase == HDT_PHASE_TRAIN && hdt_schedule_first_stage(b->plan, b->rank) >= 0) {
        op_push(b, HDT_OP_OUTER_SYNC, -1, -1, -1);
    }
}

/* The list of a rank in its replica, and what joins the replicas: tokens from the data rank, and
 * outer steps. Evaluations run in the first replica. */
static enum hdt_status schedule_replica(const struct hdt_plan *plan, int rank, enum hdt_phase phase,
                                        int64_t n_mb, struct hdt_schedule *schedule,
                                        struct hdt_error *err)
{
    struct schedule_builder b = {.plan = plan, .phase = phase, .rank = rank, .out = schedule};
    int replica = hdt_plan_rank_replica(plan, rank);
    struct hdt_schedule own;
    enum hdt_status status;
    struct hdt_plan view;

    memset(schedule, 0, sizeof(*schedule));
    schedule->n_slots = hdt_calloc(plan->n_stages, sizeof(*schedule->n_slots));
    if (phase == HDT_PHASE_EVAL && replica != 0) {
        return HDT_OK;
    }
    hdt_plan_replica_view(plan, replica, &view);
    n_mb = phase == HDT_PHASE_TRAIN ? view.n_micro_batches : n_mb;
    status = schedule_pipeline(&view, rank, phase, n_mb, &own, err);
    free(view.flows);
    if (status != HDT_OK) {
        hdt_schedule_release(schedule);
        return status;
    }
    replica_list(&b, &own, replica, n_mb);
    hdt_schedule_release(&own);
    return HDT_OK;
}

enum hdt_status hdt_schedule_build(const struct hdt_plan *plan, int rank, enum hdt_phase phase,
                                   int64_t n_mb, struct hdt_schedule *schedule,
                                   struct hdt_error *err)
{
    if (plan->n_replicas > 1 && rank >= 0 && (size_t)rank < plan->n_ranks) {
        return schedule_replica(plan, rank, phase, n_mb, schedule, err);
    }
    return schedule_pipeline(plan, rank, phase, n_mb, schedule, err);
}

void hdt_schedule_release(struct hdt_schedule *schedule)
{
    free(schedule->ops);
    free(schedule->n_slots);
    memset(schedule, 0, sizeof(*schedule));
}
