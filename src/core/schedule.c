/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Op lists.
 *
 * Each stage has a fixed row of *items* (forward m, backward m, load ahead m): its warm-up
 * forwards, pairs of forward and backward, the rest of the backwards. A rank with one stage runs
 * the row as it is. A rank with several stages needs one order for all of them, and an order that
 * each rank chose by itself could wait for one that another rank chose otherwise. So such a rank
 * plays the rows of *all* stages in a small model of the pipeline, with the flows' depths as
 * limits: the order in which its own items come up there is its list. Every rank plays the same
 * model, so that all lists are parts of one total order in which no SEND or RECV waits: a cycle of
 * waits cannot exist, however the real run is timed (flows are first in, first out, and each list
 * is fixed, so one order that ends means that all do). Refused: interleaved schedules with a fixed
 * formula, which exist only for equal stages in equal turns.
 *
 * The model's times are the plan's predicted ones; they are the same bits on every rank.
 */
#include "src/base/buf.h"
#include "src/core/schedule.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

enum item_kind { ITEM_LOAD, ITEM_FORWARD, ITEM_BACKWARD };

struct item {
    enum item_kind kind;
    int64_t mb;
};

/* The items of a stage, or of a data rank without stages. */
struct row {
    int stage; /* -1: only loads */
    int rank;
    struct item *items;
    size_t n_items, next;
};

struct builder {
    const struct hdt_plan *plan;
    enum hdt_phase phase;
    int64_t n_mb;
    int rank;
    int tokens_flow, labels_flow; /* -1: none */
    struct row *rows;             /* one a stage; one more for a data rank without stages */
    size_t n_rows;
    struct hdt_schedule *out;
    size_t out_cap;
};

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
};

const char *hdt_op_name(enum hdt_op_kind kind)
{
    return (unsigned)kind < HDT_OP_KIND_COUNT ? op_names[kind] : "?";
}

/* ---- rows ---- */

static void row_push(struct row *row, enum item_kind kind, int64_t mb)
{
    row->items[row->n_items++] = (struct item){kind, mb};
}

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The lowest stage of a rank; -1: none. */
static int rank_first_stage(const struct hdt_plan *plan, int rank)
{
    for (size_t s = 0; s < plan->n_stages; s++) {
        if (plan->stages[s].rank == rank) {
            return (int)s;
        }
    }
    return -1;
}

/* How far a data rank that does not hold stage 0 loads ahead of its own forwards: stage 0 runs
 * that much ahead of it. Less than the depth of the tokens' flow. */
static int64_t load_lead(const struct builder *b, int stage)
{
    const struct hdt_plan *plan = b->plan;
    int64_t lead = plan->stages[0].warmup - plan->stages[stage].warmup + 1;

    return min64(lead, (int64_t)plan->flows[b->tokens_flow].depth - 1);
}

/* Forward m of a stage; where the stage's rank loads for others, what is due is loaded before. */
static void row_push_forward(struct row *row, int64_t mb, int64_t lead, int64_t n_mb)
{
    if (lead >= 0) {
        for (int64_t m = mb == 0 ? 0 : mb + lead; m <= min64(mb + lead, n_mb - 1); m++) {
            row_push(row, ITEM_LOAD, m);
        }
    }
    row_push(row, ITEM_FORWARD, mb);
}

static void row_fill(const struct builder *b, struct row *row)
{
    const struct hdt_plan *plan = b->plan;
    bool loads = row->rank == plan->data_rank && b->tokens_flow >= 0 &&
                 rank_first_stage(plan, row->rank) == row->stage;
    int64_t n = b->n_mb;
    int64_t warmup, lead;

    row->items = hdt_malloc((size_t)(3 * n) * sizeof(row->items[0]));
    if (row->stage < 0) {
        for (int64_t m = 0; m < n; m++) {
            row_push(row, ITEM_LOAD, m);
        }
        return;
    }
    lead = loads ? load_lead(b, row->stage) : -1;
    warmup = b->phase == HDT_PHASE_EVAL ? n : min64(plan->stages[row->stage].warmup, n);
    for (int64_t m = 0; m < warmup; m++) {
        row_push_forward(row, m, lead, n);
    }
    if (b->phase == HDT_PHASE_EVAL) {
        return;
    }
    for (int64_t m = 0; m < n; m++) {
        if (m + warmup < n) {
            row_push_forward(row, m + warmup, lead, n);
        }
        row_push(row, ITEM_BACKWARD, m);
    }
}

static void builder_rows(struct builder *b)
{
    const struct hdt_plan *plan = b->plan;

    b->rows = hdt_calloc(plan->n_stages + 1, sizeof(b->rows[0]));
    for (size_t s = 0; s < plan->n_stages; s++) {
        b->rows[b->n_rows++] = (struct row){.stage = (int)s, .rank = plan->stages[s].rank};
    }
    if (rank_first_stage(plan, plan->data_rank) < 0) {
        b->rows[b->n_rows++] = (struct row){.stage = -1, .rank = plan->data_rank};
    }
}

/* ---- ops ---- */

static void op_push(struct builder *b, enum hdt_op_kind kind, int stage, int64_t mb, int flow)
{
    struct hdt_schedule *out = b->out;

    if (out->n_ops == b->out_cap) {
        b->out_cap = b->out_cap ? 2 * b->out_cap : 64;
        out->ops = hdt_realloc(out->ops, b->out_cap * sizeof(out->ops[0]));
    }
    out->ops[out->n_ops++] = (struct hdt_op){kind, stage, mb, flow};
}

static int edge_flow(const struct hdt_plan *plan, enum hdt_flow_kind kind, int src, int dst)
{
    int flow =
        hdt_plan_find_flow(plan, kind, plan->stages[src].rank, plan->stages[dst].rank, src, dst);

    HDT_ASSERT(flow >= 0);
    return flow;
}

/* Load a micro-batch and send what others need of it. */
static void ops_load(struct builder *b, int stage, int64_t mb)
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
static void ops_inputs(struct builder *b, int stage, int64_t mb)
{
    bool first = stage == 0, last = stage == (int)b->plan->n_stages - 1;
    bool holds_data = b->rank == b->plan->data_rank;

    if (first && holds_data) {
        ops_load(b, stage, mb);
    } else if (first) {
        op_push(b, HDT_OP_RECV_TOKENS, stage, mb, b->tokens_flow);
    } else {
        op_push(b, HDT_OP_RECV_FORWARD, stage, mb,
                edge_flow(b->plan, HDT_FLOW_ACTIVATION, stage - 1, stage));
    }
    if (last && !holds_data) {
        op_push(b, HDT_OP_RECV_LABELS, stage, mb, b->labels_flow);
    } else if (last && !first) {
        op_push(b, HDT_OP_LOAD, stage, mb, -1);
    }
}

static void ops_item(struct builder *b, int stage, const struct item *item)
{
    bool last = stage == (int)b->plan->n_stages - 1;

    switch (item->kind) {
    case ITEM_LOAD:
        ops_load(b, -1, item->mb);
        break;
    case ITEM_FORWARD:
        ops_inputs(b, stage, item->mb);
        op_push(b, HDT_OP_FORWARD, stage, item->mb, -1);
        if (!last) {
            op_push(b, HDT_OP_SEND_FORWARD, stage, item->mb,
                    edge_flow(b->plan, HDT_FLOW_ACTIVATION, stage, stage + 1));
        }
        break;
    case ITEM_BACKWARD:
        if (!last) {
            op_push(b, HDT_OP_RECV_BACKWARD, stage, item->mb,
                    edge_flow(b->plan, HDT_FLOW_ACTIVATION_GRAD, stage + 1, stage));
        }
        op_push(b, HDT_OP_BACKWARD, stage, item->mb, -1);
        if (stage > 0) {
            op_push(b, HDT_OP_SEND_BACKWARD, stage, item->mb,
                    edge_flow(b->plan, HDT_FLOW_ACTIVATION_GRAD, stage, stage - 1));
        }
        break;
    }
}

/* ---- the model that orders the items of ranks with several stages ---- */

struct order_model {
    struct builder *b;
    double *rank_free_s;    /* a rank */
    double *fwd_done_s;     /* (stage, mb) */
    double *bwd_done_s;     /* (stage, mb) */
    int64_t *n_fwd, *n_bwd; /* a stage: items done */
    int64_t n_loads;        /* loads ahead done */
};

/* Frames sent on a flow and not yet taken stay below its depth. */
static bool flow_has_room(const struct hdt_plan *plan, int flow, int64_t n_sent, int64_t n_taken)
{
    return flow < 0 || n_sent - n_taken < (int64_t)plan->flows[flow].depth;
}

/* May the forward run now, and when are its inputs there? */
static bool forward_ready(const struct order_model *m, int stage, int64_t mb, double *ready_s)
{
    const struct builder *b = m->b;
    const struct hdt_plan *plan = b->plan;
    int last = (int)plan->n_stages - 1;
    bool loads = stage == 0 && plan->stages[0].rank == plan->data_rank;

    *ready_s = 0;
    if (stage > 0) {
        if (m->n_fwd[stage - 1] <= mb) {
            return false;
        }
        *ready_s = m->fwd_done_s[(stage - 1) * b->n_mb + mb];
    } else if (b->tokens_flow >= 0 && m->n_loads <= mb) {
        return false;
    }
    if (loads && !flow_has_room(plan, b->labels_flow, mb, m->n_fwd[last])) {
        return false;
    }
    return stage == last ||
           flow_has_room(plan, edge_flow(plan, HDT_FLOW_ACTIVATION, stage, stage + 1), mb,
                         m->n_fwd[stage + 1]);
}

static bool backward_ready(const struct order_model *m, int stage, int64_t mb, double *ready_s)
{
    const struct builder *b = m->b;
    const struct hdt_plan *plan = b->plan;
    int last = (int)plan->n_stages - 1;

    *ready_s = 0;
    if (stage < last) {
        if (m->n_bwd[stage + 1] <= mb) {
            return false;
        }
        *ready_s = m->bwd_done_s[(stage + 1) * b->n_mb + mb];
    }
    return stage == 0 ||
           flow_has_room(plan, edge_flow(plan, HDT_FLOW_ACTIVATION_GRAD, stage, stage - 1), mb,
                         m->n_bwd[stage - 1]);
}

static bool item_ready(const struct order_model *m, const struct row *row, double *start_s)
{
    const struct item *item = &row->items[row->next];
    const struct hdt_plan *plan = m->b->plan;
    double ready_s = 0;
    bool ready;

    if (item->kind == ITEM_LOAD) {
        ready = flow_has_room(plan, m->b->tokens_flow, item->mb, m->n_fwd[0]) &&
                flow_has_room(plan, m->b->labels_flow, item->mb, m->n_fwd[plan->n_stages - 1]);
    } else if (item->kind == ITEM_FORWARD) {
        ready = forward_ready(m, row->stage, item->mb, &ready_s);
    } else {
        ready = backward_ready(m, row->stage, item->mb, &ready_s);
    }
    *start_s = m->rank_free_s[row->rank] > ready_s ? m->rank_free_s[row->rank] : ready_s;
    return ready;
}

/* Earliest first; at the same time a backward (it frees memory), then the later stage. */
static struct row *order_pick(struct order_model *m, double *start_s)
{
    struct builder *b = m->b;
    struct row *best = NULL;
    double best_s = DBL_MAX;

    for (size_t i = b->n_rows; i-- > 0;) {
        struct row *row = &b->rows[i];
        double s;

        if (row->next == row->n_items || !item_ready(m, row, &s)) {
            continue;
        }
        if (!best || s < best_s ||
            (s == best_s && row->items[row->next].kind == ITEM_BACKWARD &&
             best->items[best->next].kind != ITEM_BACKWARD)) {
            best = row;
            best_s = s;
        }
    }
    *start_s = best_s;
    return best;
}

static void order_commit(struct order_model *m, struct row *row, double start_s)
{
    struct builder *b = m->b;
    const struct item *item = &row->items[row->next++];
    const struct hdt_plan_stage *stage;
    double *done_s;

    if (item->kind == ITEM_LOAD) {
        m->n_loads++;
    } else {
        stage = &b->plan->stages[row->stage];
        done_s = item->kind == ITEM_FORWARD ? m->fwd_done_s : m->bwd_done_s;
        start_s += item->kind == ITEM_FORWARD ? (stage->fwd_s > 0 ? stage->fwd_s : 1.0)
                                              : (stage->bwd_s > 0 ? stage->bwd_s : 2.0);
        done_s[row->stage * b->n_mb + item->mb] = start_s;
        m->rank_free_s[row->rank] = start_s;
        (item->kind == ITEM_FORWARD ? m->n_fwd : m->n_bwd)[row->stage]++;
    }
    if (row->rank == b->rank) {
        ops_item(b, row->stage, item);
    }
}

static void order_play(struct builder *b)
{
    size_t n_stages = b->plan->n_stages, n_cells = n_stages * (size_t)b->n_mb;
    struct order_model m = {
        .b = b,
        .rank_free_s = hdt_calloc(b->plan->n_ranks, sizeof(double)),
        .fwd_done_s = hdt_calloc(n_cells, sizeof(double)),
        .bwd_done_s = hdt_calloc(n_cells, sizeof(double)),
        .n_fwd = hdt_calloc(n_stages, sizeof(int64_t)),
        .n_bwd = hdt_calloc(n_stages, sizeof(int64_t)),
    };
    struct row *row;
    double start_s;

    while ((row = order_pick(&m, &start_s))) {
        order_commit(&m, row, start_s);
    }
    /* hdt_plan_complete's depths and warm-ups let the model run to its end. */
    for (size_t i = 0; i < b->n_rows; i++) {
        HDT_ASSERT(b->rows[i].next == b->rows[i].n_items);
    }
    free(m.rank_free_s);
    free(m.fwd_done_s);
    free(m.bwd_done_s);
    free(m.n_fwd);
    free(m.n_bwd);
}

/* ---- build ---- */

static void build_body(struct builder *b)
{
    struct row *own = NULL;
    size_t n_own = 0;

    for (size_t i = 0; i < b->n_rows; i++) {
        if (b->rows[i].rank == b->rank) {
            own = &b->rows[i];
            n_own++;
        }
    }
    if (n_own > 1) {
        for (size_t i = 0; i < b->n_rows; i++) {
            row_fill(b, &b->rows[i]);
        }
        order_play(b);
        return;
    }
    if (own) {
        row_fill(b, own);
    }
    for (size_t i = 0; own && i < own->n_items; i++) {
        ops_item(b, own->stage, &own->items[i]);
    }
}

/* The ends of a tied model exchange before the norms are taken; then all ranks agree and step. */
static void build_tail(struct builder *b)
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
    if (b->phase == HDT_PHASE_TRAIN && rank_first_stage(b->plan, b->rank) >= 0) {
        op_push(b, HDT_OP_STEP, -1, -1, -1);
    }
}

static int64_t most_in_flight(const struct builder *b)
{
    int64_t most = 0;

    for (size_t s = 0; s < b->plan->n_stages; s++) {
        const struct hdt_plan_stage *stage = &b->plan->stages[s];
        int64_t n = b->phase == HDT_PHASE_EVAL ? 1 : min64(stage->warmup + 1, b->n_mb);

        if (stage->rank == b->rank && n > most) {
            most = n;
        }
    }
    return most;
}

static int data_flow(const struct hdt_plan *plan, enum hdt_flow_kind kind, int stage)
{
    return hdt_plan_find_flow(plan, kind, plan->data_rank, plan->stages[stage].rank, -1, stage);
}

enum hdt_status hdt_schedule_build(const struct hdt_plan *plan, int rank, enum hdt_phase phase,
                                   int64_t n_mb, struct hdt_schedule *schedule,
                                   struct hdt_error *err)
{
    struct builder b = {.plan = plan, .phase = phase, .n_mb = n_mb, .rank = rank, .out = schedule};

    if (rank < 0 || (size_t)rank >= plan->n_ranks) {
        return hdt_error_set(err, HDT_EINVAL,
                             "cannot build the schedule of rank %d: the plan has %zu", rank,
                             plan->n_ranks);
    }
    if (n_mb < 1 || n_mb > 65536) {
        return hdt_error_set(err, HDT_EINVAL, "cannot build a schedule of %lld micro-batches",
                             (long long)n_mb);
    }
    memset(schedule, 0, sizeof(*schedule));
    b.tokens_flow = data_flow(plan, HDT_FLOW_TOKENS, 0);
    b.labels_flow = data_flow(plan, HDT_FLOW_LABELS, (int)plan->n_stages - 1);
    builder_rows(&b);
    build_body(&b);
    build_tail(&b);
    schedule->n_in_flight = most_in_flight(&b);
    for (size_t i = 0; i < b.n_rows; i++) {
        free(b.rows[i].items);
    }
    free(b.rows);
    return HDT_OK;
}

void hdt_schedule_release(struct hdt_schedule *schedule)
{
    free(schedule->ops);
    memset(schedule, 0, sizeof(*schedule));
}
