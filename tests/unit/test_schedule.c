/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Plays the op lists of all ranks against bounded flows, in random order, over random plans: no
 * rank may wait for ever, frames must come in the order in which they are asked for, and every
 * stage must see each micro-batch once forward and once backward, backward in order.
 */
#include "src/base/buf.h"
#include "src/core/schedule.h"
#include "tests/support/rng.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define MAX_STAGES 6
#define MAX_MB     64

struct flow_state {
    int64_t queue[4096]; /* micro-batches sent and not yet taken; ring by counter */
    int64_t n_sent, n_taken;
};

struct stage_state {
    int64_t n_fwd, n_bwd, n_weight;
    bool has_input[MAX_MB], has_labels[MAX_MB], has_grad[MAX_MB];
};

struct player {
    struct hdt_plan *plan;
    struct hdt_schedule lists[3][8]; /* train, eval, train; a rank */
    size_t pc[8];
    int part[8];  /* which of the three lists the rank is in */
    bool sent[8]; /* TIED_SYNC, NORM_SYNC: own half is out */
    int64_t loaded[8];
    struct flow_state flows[64];
    struct stage_state stages[3][MAX_STAGES];
};

static bool flow_can_send(const struct player *p, int flow)
{
    const struct flow_state *f = &p->flows[flow];

    return f->n_sent - f->n_taken < (int64_t)p->plan->flows[flow].depth;
}

static void flow_send(struct player *p, int flow, int64_t mb)
{
    struct flow_state *f = &p->flows[flow];

    f->queue[f->n_sent++ % 4096] = mb;
}

static bool flow_take(struct player *p, int flow, int64_t mb)
{
    struct flow_state *f = &p->flows[flow];

    if (f->n_sent == f->n_taken) {
        return false;
    }
    cr_assert_eq(f->queue[f->n_taken++ % 4096], mb, "flow %d gives another micro-batch", flow);
    return true;
}

/* Flows of a kind that start (out) or end at the rank: send to or take from all of them. */
static bool flows_all(struct player *p, int rank, enum hdt_flow_kind kind, bool out)
{
    for (size_t i = 0; i < p->plan->n_flows; i++) {
        const struct hdt_plan_flow *f = &p->plan->flows[i];

        if (f->kind == kind && (out ? f->src_rank : f->dst_rank) == rank &&
            !(out ? flow_can_send(p, (int)i) : p->flows[i].n_sent > p->flows[i].n_taken)) {
            return false;
        }
    }
    for (size_t i = 0; i < p->plan->n_flows; i++) {
        const struct hdt_plan_flow *f = &p->plan->flows[i];

        if (f->kind == kind && (out ? f->src_rank : f->dst_rank) == rank) {
            if (out) {
                flow_send(p, (int)i, -1);
            } else {
                flow_take(p, (int)i, -1);
            }
        }
    }
    return true;
}

/* Send the own half, then wait for the other's; true when both are done. */
static bool play_exchange(struct player *p, int rank, enum hdt_flow_kind up,
                          enum hdt_flow_kind down, bool root)
{
    if (root) { /* takes all, then answers */
        if (!p->sent[rank]) {
            p->sent[rank] = flows_all(p, rank, up, false);
        }
        if (!p->sent[rank] || !flows_all(p, rank, down, true)) {
            return false;
        }
    } else {
        if (!p->sent[rank]) {
            p->sent[rank] = flows_all(p, rank, up, true);
        }
        if (!p->sent[rank] || !flows_all(p, rank, down, false)) {
            return false;
        }
    }
    p->sent[rank] = false;
    return true;
}

static void play_forward(struct player *p, int rank, const struct hdt_op *op)
{
    struct stage_state *s = &p->stages[p->part[rank]][op->stage];
    int last = (int)p->plan->n_stages - 1;

    cr_assert_eq(op->mb, s->n_fwd, "forwards run in order");
    s->n_fwd++;
    if (op->stage == 0 && rank == p->plan->data_rank) {
        cr_assert_eq(p->loaded[rank], op->mb, "tokens of another micro-batch are loaded");
    } else {
        cr_assert(s->has_input[op->mb], "stage %d has no input %ld", op->stage, (long)op->mb);
    }
    if (op->stage == last && rank == p->plan->data_rank) {
        cr_assert_eq(p->loaded[rank], op->mb, "labels of another micro-batch are loaded");
    } else if (op->stage == last) {
        cr_assert(s->has_labels[op->mb]);
    }
    if (p->part[rank] != 1) {
        cr_assert_leq(s->n_fwd - s->n_weight, p->lists[p->part[rank]][rank].n_slots[op->stage]);
    }
}

static void play_backward(struct player *p, int rank, const struct hdt_op *op)
{
    struct stage_state *s = &p->stages[p->part[rank]][op->stage];

    cr_assert_eq(op->mb, s->n_bwd, "backwards run in order");
    cr_assert_lt(op->mb, s->n_fwd, "backward follows forward");
    s->n_bwd++;
    cr_assert(op->stage == (int)p->plan->n_stages - 1 || s->has_grad[op->mb]);
    s->n_weight += op->kind == HDT_OP_BACKWARD;
}

static void play_backward_weight(struct player *p, int rank, const struct hdt_op *op)
{
    struct stage_state *s = &p->stages[p->part[rank]][op->stage];

    cr_assert_eq(op->mb, s->n_weight, "weights' halves run in order");
    cr_assert_lt(op->mb, s->n_bwd, "the weights' half follows the other");
    s->n_weight++;
}

/* One op of the rank; false: it has to wait. */
static bool play_op(struct player *p, int rank, const struct hdt_op *op)
{
    struct stage_state *s = op->stage >= 0 ? &p->stages[p->part[rank]][op->stage] : NULL;

    switch (op->kind) {
    case HDT_OP_LOAD:
        p->loaded[rank] = op->mb;
        return true;
    case HDT_OP_SEND_TOKENS:
    case HDT_OP_SEND_LABELS:
        cr_assert_eq(p->loaded[rank], op->mb);
        /* fall through */
    case HDT_OP_SEND_FORWARD:
    case HDT_OP_SEND_BACKWARD:
        cr_assert_eq(p->plan->flows[op->flow].src_rank, rank);
        if (!flow_can_send(p, op->flow)) {
            return false;
        }
        flow_send(p, op->flow, op->mb);
        return true;
    case HDT_OP_RECV_TOKENS:
    case HDT_OP_RECV_FORWARD:
        return flow_take(p, op->flow, op->mb) && (s->has_input[op->mb] = true);
    case HDT_OP_RECV_LABELS:
        return flow_take(p, op->flow, op->mb) && (s->has_labels[op->mb] = true);
    case HDT_OP_RECV_BACKWARD:
        return flow_take(p, op->flow, op->mb) && (s->has_grad[op->mb] = true);
    case HDT_OP_FORWARD:
        play_forward(p, rank, op);
        return true;
    case HDT_OP_BACKWARD:
    case HDT_OP_BACKWARD_INPUT:
        play_backward(p, rank, op);
        return true;
    case HDT_OP_BACKWARD_WEIGHT:
        play_backward_weight(p, rank, op);
        return true;
    case HDT_OP_TIED_SYNC:
        return play_exchange(p, rank, HDT_FLOW_TIED_GRAD, HDT_FLOW_TIED_GRAD, false);
    case HDT_OP_NORM_SYNC:
        return play_exchange(p, rank, HDT_FLOW_SYNC_UP, HDT_FLOW_SYNC_DOWN,
                             rank == p->plan->root_rank);
    case HDT_OP_STEP:
        return true;
    default:
        cr_assert_fail("unexpected op %s", hdt_op_name(op->kind));
    }
    return false;
}

static bool rank_is_done(const struct player *p, int rank)
{
    return p->part[rank] == 3;
}

/* Let a rank run until it waits or a random number of ops is done; true when it moved. */
static bool play_rank(struct player *p, int rank)
{
    uint64_t budget = 1 + rng(20);
    bool moved = false;

    while (budget-- > 0 && !rank_is_done(p, rank)) {
        const struct hdt_schedule *list = &p->lists[p->part[rank]][rank];

        if (p->pc[rank] == list->n_ops) {
            p->part[rank]++;
            p->pc[rank] = 0;
            moved = true;
            continue;
        }
        bool sent = p->sent[rank];

        if (!play_op(p, rank, &list->ops[p->pc[rank]])) {
            moved = moved || p->sent[rank] != sent;
            break;
        }
        p->pc[rank]++;
        moved = true;
    }
    return moved;
}

static void play_all(struct player *p, unsigned long long seed, int round)
{
    bool moved = true;

    while (moved) {
        size_t start = rng(p->plan->n_ranks);

        moved = false;
        for (size_t i = 0; i < p->plan->n_ranks; i++) {
            moved = play_rank(p, (int)((start + i) % p->plan->n_ranks)) || moved;
        }
    }
    for (int rank = 0; rank < (int)p->plan->n_ranks; rank++) {
        const struct hdt_schedule *list;

        if (!rank_is_done(p, rank)) {
            list = &p->lists[p->part[rank]][rank];
            cr_assert_fail(
                "seed %llu round %d: rank %d waits for ever at op %zu, %s stage %d mb %ld", seed,
                round, rank, p->pc[rank], hdt_op_name(list->ops[p->pc[rank]].kind),
                list->ops[p->pc[rank]].stage, (long)list->ops[p->pc[rank]].mb);
        }
    }
}

static const struct hdt_model_config base_model = {
    .V = 256, .C = 64, .F = 128, .L = 8, .NH = 4, .NKV = 4, .HS = 16, .T = 256};

/* Another rank than the last stage's; where stages take turns, the next one. */
static int rank_random(const struct hdt_plan *plan, size_t stage, int n_turns)
{
    int rank;

    if (n_turns > 0) {
        return (int)(stage % (size_t)n_turns);
    }
    do {
        rank = (int)rng(plan->n_ranks);
    } while (stage > 0 && rank == plan->stages[stage - 1].rank);
    return rank;
}

/* Stages on random ranks, no two neighbours on one; some ranks may have none. */
static void plan_random(struct hdt_plan *plan, struct hdt_job *job, struct hdt_model_config *model)
{
    size_t n_ranks = 1 + rng(5), n_stages = n_ranks == 1 ? 1 : 1 + rng(MAX_STAGES);
    int64_t unit = 0, n_units = hdt_model_n_units(model);
    int n_turns = 0;

    job->plan.schedule = (int)rng(HDT_SCHEDULE_KIND_COUNT);
    if (job->plan.schedule == HDT_SCHEDULE_INTERLEAVED && n_stages > 1) {
        n_turns = n_ranks > 2 && rng(2) ? 3 : 2;
        n_stages = (size_t)n_turns * (n_turns == 3 ? 2 : 2 + rng(2));
    }

    memset(plan, 0, sizeof(*plan));
    plan->n_ranks = n_ranks;
    plan->ranks = calloc(n_ranks, sizeof(plan->ranks[0]));
    for (size_t i = 0; i < n_ranks; i++) {
        snprintf(plan->ranks[i].site, HDT_NAME_CAP, "s%zu", i);
        snprintf(plan->ranks[i].worker, HDT_NAME_CAP, "w0");
    }
    plan->n_stages = n_stages;
    plan->stages = calloc(n_stages, sizeof(plan->stages[0]));
    for (size_t s = 0; s < n_stages; s++) {
        struct hdt_plan_stage *stage = &plan->stages[s];
        int64_t left = (int64_t)(n_stages - s);

        stage->pos = (int)s;
        stage->n_slices = 1;
        stage->rank = rank_random(plan, s, n_turns);
        stage->unit_begin = unit;
        stage->unit_end =
            left == 1 ? n_units : unit + 1 + (int64_t)rng((uint64_t)(n_units - unit - left + 1));
        unit = stage->unit_end;
        stage->warmup = (int64_t)rng(8);
        stage->fwd_s = rng(2) ? 0.0 : 0.001 * (double)(1 + rng(100));
        stage->bwd_s = 2 * stage->fwd_s;
        stage->in_flight = (int64_t)rng(16);
    }
    model->tie_word_embeddings = rng(2);
    job->batch.n_micro_batches = 1 + (int64_t)rng(20);
    job->batch.micro_batch = 2;
    job->batch.seq_len = 16;
    job->data.site = plan->ranks[rng(n_ranks)].site;
    job->checkpoint.site = plan->ranks[rng(n_ranks)].site;
}

static void lists_build(struct player *p, int64_t n_eval)
{
    struct hdt_error err = {0};

    for (int part = 0; part < 3; part++) {
        for (int rank = 0; rank < (int)p->plan->n_ranks; rank++) {
            bool eval = part == 1;

            cr_assert_eq(hdt_schedule_build(p->plan, rank, eval ? HDT_PHASE_EVAL : HDT_PHASE_TRAIN,
                                            eval ? n_eval : p->plan->n_micro_batches,
                                            &p->lists[part][rank], &err),
                         HDT_OK, "%s", err.msg);
        }
    }
}

static void totals_check(const struct player *p, int64_t n_eval)
{
    for (size_t s = 0; s < p->plan->n_stages; s++) {
        cr_expect_eq(p->stages[0][s].n_fwd, p->plan->n_micro_batches);
        cr_expect_eq(p->stages[0][s].n_bwd, p->plan->n_micro_batches);
        cr_expect_eq(p->stages[0][s].n_weight, p->plan->n_micro_batches);
        cr_expect_eq(p->stages[1][s].n_fwd, n_eval);
        cr_expect_eq(p->stages[1][s].n_bwd, 0);
        cr_expect_eq(p->stages[2][s].n_bwd, p->plan->n_micro_batches);
    }
    for (size_t i = 0; i < p->plan->n_flows; i++) {
        cr_expect_eq(p->flows[i].n_sent, p->flows[i].n_taken, "flow %zu keeps frames", i);
    }
}

Test(schedule, no_plan_waits_for_ever)
{
    const unsigned long long seed = 0x1f1b2024;
    struct player *p = malloc(sizeof(*p));
    struct hdt_error err = {0};

    rng_state = seed;
    for (int round = 0; round < 2000; round++) {
        struct hdt_model_config model = base_model;
        struct hdt_plan plan;
        struct hdt_job job = {0};
        int64_t n_eval = 1 + (int64_t)rng(30);

        plan_random(&plan, &job, &model);
        cr_assert_eq(hdt_plan_complete(&plan, &job, &model, &err), HDT_OK, "seed %llu round %d: %s",
                     seed, round, err.msg);
        memset(p, 0, sizeof(*p));
        p->plan = &plan;
        lists_build(p, n_eval);
        play_all(p, seed, round);
        totals_check(p, n_eval);
        for (int i = 0; i < 3 * 8; i++) {
            hdt_schedule_release(&p->lists[i / 8][i % 8]);
        }
        hdt_plan_release(&plan);
    }
    free(p);
}

static void plan_chain(struct hdt_plan *plan, int n_stages, const int64_t *warmups)
{
    memset(plan, 0, sizeof(*plan));
    plan->n_ranks = plan->n_stages = (size_t)n_stages;
    plan->ranks = calloc((size_t)n_stages, sizeof(plan->ranks[0]));
    plan->stages = calloc((size_t)n_stages, sizeof(plan->stages[0]));
    for (int i = 0; i < n_stages; i++) {
        snprintf(plan->ranks[i].site, HDT_NAME_CAP, "s%d", i);
        snprintf(plan->ranks[i].worker, HDT_NAME_CAP, "w0");
        plan->stages[i] = (struct hdt_plan_stage){.pos = i,
                                                  .rank = i,
                                                  .n_slices = 1,
                                                  .unit_begin = i,
                                                  .unit_end = i == n_stages - 1 ? 10 : i + 1,
                                                  .warmup = warmups[i]};
    }
}

static char *schedule_text(const struct hdt_schedule *list)
{
    struct hdt_buf text = {0};

    for (size_t i = 0; i < list->n_ops; i++) {
        hdt_buf_appendf(&text, "%s%s", i ? " " : "", hdt_op_name(list->ops[i].kind));
        if (list->ops[i].mb >= 0) {
            hdt_buf_appendf(&text, ":%ld", (long)list->ops[i].mb);
        }
    }
    return hdt_buf_detach(&text);
}

/* Figure 4 of arXiv 2104.04473 for two stages: F F B F B B on the first, F B F B F B on the last.
 */
Test(schedule, two_stages_run_one_forward_one_backward)
{
    static const int64_t warmups[] = {1, 0};
    struct hdt_job job = {.batch = {2, 3, 16}};
    struct hdt_schedule list;
    struct hdt_plan plan;
    char *text;

    plan_chain(&plan, 2, warmups);
    cr_assert_eq(hdt_plan_complete(&plan, &job, &base_model, NULL), HDT_OK);
    cr_assert_eq(hdt_schedule_build(&plan, 0, HDT_PHASE_TRAIN, 3, &list, NULL), HDT_OK);
    text = schedule_text(&list);
    cr_expect_str_eq(text, "LOAD:0 SEND_LABELS:0 FORWARD:0 SEND_FORWARD:0 "
                           "LOAD:1 SEND_LABELS:1 FORWARD:1 SEND_FORWARD:1 "
                           "RECV_BACKWARD:0 BACKWARD:0 "
                           "LOAD:2 SEND_LABELS:2 FORWARD:2 SEND_FORWARD:2 "
                           "RECV_BACKWARD:1 BACKWARD:1 RECV_BACKWARD:2 BACKWARD:2 "
                           "NORM_SYNC STEP");
    cr_expect_eq(list.n_slots[0], 2);
    cr_expect_eq(list.n_slots[1], 0);
    free(text);
    hdt_schedule_release(&list);
    cr_assert_eq(hdt_schedule_build(&plan, 1, HDT_PHASE_TRAIN, 3, &list, NULL), HDT_OK);
    text = schedule_text(&list);
    cr_expect_str_eq(text, "RECV_FORWARD:0 RECV_LABELS:0 FORWARD:0 BACKWARD:0 SEND_BACKWARD:0 "
                           "RECV_FORWARD:1 RECV_LABELS:1 FORWARD:1 BACKWARD:1 SEND_BACKWARD:1 "
                           "RECV_FORWARD:2 RECV_LABELS:2 FORWARD:2 BACKWARD:2 SEND_BACKWARD:2 "
                           "NORM_SYNC STEP");
    free(text);
    hdt_schedule_release(&list);
    hdt_plan_release(&plan);
}

Test(schedule, one_rank_needs_no_flow)
{
    static const int64_t warmups[] = {0};
    struct hdt_job job = {.batch = {2, 2, 16}};
    struct hdt_schedule list;
    struct hdt_plan plan;
    char *text;

    plan_chain(&plan, 1, warmups);
    cr_assert_eq(hdt_plan_complete(&plan, &job, &base_model, NULL), HDT_OK);
    cr_expect_eq(plan.n_flows, 0);
    cr_assert_eq(hdt_schedule_build(&plan, 0, HDT_PHASE_TRAIN, 2, &list, NULL), HDT_OK);
    text = schedule_text(&list);
    cr_expect_str_eq(text,
                     "LOAD:0 FORWARD:0 BACKWARD:0 LOAD:1 FORWARD:1 BACKWARD:1 NORM_SYNC STEP");
    free(text);
    hdt_schedule_release(&list);
    hdt_plan_release(&plan);
}

/* The data rank sends the second replica's micro-batches, 3 and 4 of the step, beside its own
 * three; an evaluation is the first's. */
Test(schedule, replicas_have_their_part_of_a_step)
{
    static const int64_t warmups[] = {0, 0};
    struct hdt_job job = {.batch = {2, 5, 16}, .outer = {.steps = 4}};
    struct hdt_schedule list;
    struct hdt_plan plan;
    struct hdt_error err = {0};
    char *text;

    plan_chain(&plan, 2, warmups);
    for (int i = 0; i < 2; i++) {
        plan.stages[i].pos = 0;
        plan.stages[i].replica = i;
        plan.stages[i].unit_begin = 0;
        plan.stages[i].unit_end = 10;
        plan.stages[i].n_micro_batches = i ? 2 : 3;
    }
    cr_assert_eq(hdt_plan_complete(&plan, &job, &base_model, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(hdt_schedule_build(&plan, 0, HDT_PHASE_TRAIN, 5, &list, &err), HDT_OK);
    text = schedule_text(&list);
    cr_expect_str_eq(text,
                     "LOAD:3 SEND_TOKENS:3 SEND_LABELS:3 LOAD:0 FORWARD:0 BACKWARD:0 "
                     "LOAD:4 SEND_TOKENS:4 SEND_LABELS:4 LOAD:1 FORWARD:1 BACKWARD:1 "
                     "LOAD:2 FORWARD:2 BACKWARD:2 "
                     "NORM_SYNC STEP OUTER_SYNC",
                     "%s", text);
    free(text);
    hdt_schedule_release(&list);
    cr_assert_eq(hdt_schedule_build(&plan, 1, HDT_PHASE_TRAIN, 5, &list, &err), HDT_OK);
    text = schedule_text(&list);
    cr_expect_str_eq(text,
                     "RECV_TOKENS:3 RECV_LABELS:3 FORWARD:3 BACKWARD:3 "
                     "RECV_TOKENS:4 RECV_LABELS:4 FORWARD:4 BACKWARD:4 "
                     "NORM_SYNC STEP OUTER_SYNC",
                     "%s", text);
    cr_expect_eq(list.ops[2].stage, 1);
    cr_expect_eq(list.n_slots[1], 1);
    free(text);
    hdt_schedule_release(&list);
    cr_assert_eq(hdt_schedule_build(&plan, 1, HDT_PHASE_EVAL, 4, &list, &err), HDT_OK);
    cr_expect_eq(list.n_ops, 0);
    hdt_schedule_release(&list);
    cr_assert_eq(hdt_schedule_build(&plan, 0, HDT_PHASE_EVAL, 4, &list, &err), HDT_OK);
    cr_expect_eq(list.n_ops, 4 * 2 + 1);
    hdt_schedule_release(&list);
    hdt_plan_release(&plan);
}

Test(schedule, an_unknown_rank_is_refused)
{
    static const int64_t warmups[] = {0};
    struct hdt_job job = {.batch = {2, 2, 16}};
    struct hdt_schedule list;
    struct hdt_plan plan;
    struct hdt_error err = {0};

    plan_chain(&plan, 1, warmups);
    cr_assert_eq(hdt_plan_complete(&plan, &job, &base_model, NULL), HDT_OK);
    cr_expect_eq(hdt_schedule_build(&plan, 1, HDT_PHASE_TRAIN, 2, &list, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "rank 1"));
    hdt_plan_release(&plan);
}
