/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Schedules against the figures and formulas of the papers that they are from: op order, idle time
 * of ranks in units of a forward, micro-batches kept. GPipe: arXiv 1811.06965. 1F1B and
 * interleaved: arXiv 2104.04473, figures 3 and 4, section 2.2. ZB-H1 and ZB-H2: arXiv 2401.10241,
 * figures 2 and 3, table 1.
 */
#include "src/base/buf.h"
#include "src/core/schedule.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RANKS  8
#define MAX_STAGES 32
#define MAX_MB     64

static const struct hdt_model_config model = {
    .V = 256, .C = 64, .F = 128, .L = 38, .NH = 4, .NKV = 4, .HS = 16, .T = 256};

/* Durations of a stage's ops. */
struct times {
    int fwd, bwd_input, bwd_weight;
};

static void plan_make(struct hdt_plan *plan, int schedule, int n_ranks, int n_chunks, int n_mb)
{
    struct hdt_job job = {.batch = {2, n_mb, 16}, .plan = {.schedule = schedule}};
    int n = n_ranks * n_chunks;
    struct hdt_error err = {0};

    memset(plan, 0, sizeof(*plan));
    plan->n_ranks = (size_t)n_ranks;
    plan->n_stages = (size_t)n;
    plan->ranks = calloc((size_t)n_ranks, sizeof(plan->ranks[0]));
    plan->stages = calloc((size_t)n, sizeof(plan->stages[0]));
    for (int i = 0; i < n_ranks; i++) {
        snprintf(plan->ranks[i].site, HDT_NAME_CAP, "s%d", i);
        snprintf(plan->ranks[i].worker, HDT_NAME_CAP, "w0");
    }
    for (int i = 0; i < n; i++) {
        plan->stages[i] =
            (struct hdt_plan_stage){.pos = i,
                                    .rank = i % n_ranks,
                                    .n_slices = 1,
                                    .unit_begin = i,
                                    .unit_end = i == n - 1 ? model.L + 2 : i + 1,
                                    .warmup = schedule == HDT_SCHEDULE_ZB_MEM ? 2 * (n - 1 - i) : 0,
                                    .in_flight = 2 * n - 1};
    }
    cr_assert_eq(hdt_plan_complete(plan, &job, &model, &err), HDT_OK, "%s %s", err.msg, err.hint);
}

static void lists_build(const struct hdt_plan *plan, struct hdt_schedule *lists)
{
    struct hdt_error err = {0};

    for (int r = 0; r < (int)plan->n_ranks; r++) {
        cr_assert_eq(
            hdt_schedule_build(plan, r, HDT_PHASE_TRAIN, plan->n_micro_batches, &lists[r], &err),
            HDT_OK, "%s", err.msg);
    }
}

static void lists_release(struct hdt_plan *plan, struct hdt_schedule *lists)
{
    for (size_t r = 0; r < plan->n_ranks; r++) {
        hdt_schedule_release(&lists[r]);
    }
    hdt_plan_release(plan);
}

/* "F1a B1a": forward, backward, B and W its halves; micro-batches from 1, chunks from a. */
static char *order_text(const struct hdt_schedule *list, int n_ranks, bool chunks)
{
    struct hdt_buf text = {0};

    for (size_t i = 0; i < list->n_ops; i++) {
        const struct hdt_op *op = &list->ops[i];
        const char *name = op->kind == HDT_OP_FORWARD                                         ? "F"
                           : op->kind == HDT_OP_BACKWARD || op->kind == HDT_OP_BACKWARD_INPUT ? "B"
                           : op->kind == HDT_OP_BACKWARD_WEIGHT                               ? "W"
                                                                : NULL;

        if (name) {
            hdt_buf_appendf(&text, "%s%s%d", text.len ? " " : "", name, (int)op->mb + 1);
            if (chunks) {
                hdt_buf_appendf(&text, "%c", 'a' + op->stage / n_ranks);
            }
        }
    }
    return hdt_buf_detach(&text);
}

static void expect_order(int schedule, int n_ranks, int n_chunks, int n_mb, const char *const *want)
{
    struct hdt_schedule lists[MAX_RANKS];
    struct hdt_plan plan;

    plan_make(&plan, schedule, n_ranks, n_chunks, n_mb);
    lists_build(&plan, lists);
    for (int r = 0; r < n_ranks; r++) {
        char *text = order_text(&lists[r], n_ranks, n_chunks > 1);

        cr_expect_str_eq(text, want[r], "%s, rank %d", hdt_schedule_names[schedule], r);
        free(text);
    }
    lists_release(&plan, lists);
}

/* ---- a clock without latency ---- */

enum { DONE_FWD, DONE_BWD, DONE_KINDS };

struct clock {
    const struct hdt_plan *plan;
    const struct hdt_schedule *lists;
    const struct times *times;
    int done[DONE_KINDS][MAX_STAGES][MAX_MB]; /* 0: not yet */
    size_t at[MAX_RANKS];
    int now[MAX_RANKS], begin[MAX_RANKS], busy[MAX_RANKS];
};

static int op_time(const struct times *t, enum hdt_op_kind kind)
{
    switch (kind) {
    case HDT_OP_FORWARD:
        return t->fwd;
    case HDT_OP_BACKWARD:
        return t->bwd_input + t->bwd_weight;
    case HDT_OP_BACKWARD_INPUT:
        return t->bwd_input;
    case HDT_OP_BACKWARD_WEIGHT:
        return t->bwd_weight;
    default:
        return 0;
    }
}

/* When the op may start; -1: what it needs is not done. */
static int op_ready(const struct clock *c, const struct hdt_op *op)
{
    int at = 0;

    if (op->kind == HDT_OP_RECV_FORWARD) {
        at = c->done[DONE_FWD][op->stage - 1][op->mb];
    } else if (op->kind == HDT_OP_RECV_BACKWARD) {
        at = c->done[DONE_BWD][op->stage + 1][op->mb];
    } else {
        return 0;
    }
    return at > 0 ? at : -1;
}

static bool rank_runs(struct clock *c, int r)
{
    const struct hdt_op *op;
    int ready, time;

    if (c->at[r] == c->lists[r].n_ops) {
        return false;
    }
    op = &c->lists[r].ops[c->at[r]];
    ready = op_ready(c, op);
    if (ready < 0) {
        return false;
    }
    time = op_time(c->times, op->kind);
    c->now[r] = ready > c->now[r] ? ready : c->now[r];
    if (time > 0) {
        c->begin[r] = c->busy[r] == 0 ? c->now[r] : c->begin[r];
        c->busy[r] += time;
        c->now[r] += time;
    }
    if (op->kind == HDT_OP_FORWARD) {
        c->done[DONE_FWD][op->stage][op->mb] = c->now[r];
    } else if (op->kind == HDT_OP_BACKWARD || op->kind == HDT_OP_BACKWARD_INPUT) {
        c->done[DONE_BWD][op->stage][op->mb] = c->now[r];
    }
    c->at[r]++;
    return true;
}

/* Longest time of a rank from 0 to its last op, and idle time of rank 0 in it. */
static int clock_run(struct clock *c)
{
    int end = 0;
    bool moved = true;

    while (moved) {
        moved = false;
        for (int r = 0; r < (int)c->plan->n_ranks; r++) {
            while (rank_runs(c, r)) {
                moved = true;
            }
        }
    }
    for (int r = 0; r < (int)c->plan->n_ranks; r++) {
        cr_assert_eq(c->at[r], c->lists[r].n_ops, "rank %d waits for ever", r);
        end = c->now[r] > end ? c->now[r] : end;
    }
    return end;
}

struct bubble {
    int total; /* of the step beside what a rank computes */
    int first; /* idle time of rank 0 */
    int most;  /* idle time of a rank between its first op and its last */
};

static struct bubble bubble_of(int schedule, int n_ranks, int n_chunks, int n_mb, struct times t)
{
    struct hdt_schedule lists[MAX_RANKS];
    struct clock *c = calloc(1, sizeof(*c));
    struct bubble bubble = {0};
    struct hdt_plan plan;

    plan_make(&plan, schedule, n_ranks, n_chunks, n_mb);
    lists_build(&plan, lists);
    c->plan = &plan;
    c->lists = lists;
    c->times = &t;
    bubble.total = clock_run(c) - c->busy[0];
    bubble.first = c->now[0] - c->busy[0];
    for (int r = 0; r < n_ranks; r++) {
        int idle = c->now[r] - c->begin[r] - c->busy[r];

        bubble.most = idle > bubble.most ? idle : bubble.most;
    }
    free(c);
    lists_release(&plan, lists);
    return bubble;
}

/* ---- orders ---- */

Test(schedule_kinds, gpipe_runs_all_forwards_first)
{
    static const char *const want[] = {"F1 F2 F3 B1 B2 B3", "F1 F2 F3 B1 B2 B3"};

    expect_order(HDT_SCHEDULE_GPIPE, 2, 1, 3, want);
}

/* Figure 3. */
Test(schedule_kinds, one_forward_one_backward_as_in_the_figure)
{
    static const char *const want[] = {"F1 F2 F3 F4 B1 F5 B2 F6 B3 F7 B4 F8 B5 B6 B7 B8",
                                       "F1 F2 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 F8 B6 B7 B8",
                                       "F1 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 F8 B7 B8",
                                       "F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 F8 B8"};

    expect_order(HDT_SCHEDULE_1F1B, 4, 1, 8, want);
}

/* Figure 4, lower half. */
Test(schedule_kinds, interleaved_as_in_the_figure)
{
    static const char *const want[] = {
        "F1a F2a F3a F4a F1b F2b F3b F4b F5a F6a F7a B1b F8a B2b F5b B3b F6b B4b F7b B1a F8b B2a "
        "B3a B4a B5b B6b B7b B8b B5a B6a B7a B8a",
        "F1a F2a F3a F4a F1b F2b F3b F4b F5a B1b F6a B2b F7a B3b F8a B4b F5b B1a F6b B2a F7b B3a "
        "F8b B4a B5b B6b B7b B8b B5a B6a B7a B8a",
        "F1a F2a F3a F4a F1b F2b F3b B1b F4b B2b F5a B3b F6a B4b F7a B1a F8a B2a F5b B3a F6b B4a "
        "F7b B5b F8b B6b B7b B8b B5a B6a B7a B8a",
        "F1a F2a F3a F4a F1b B1b F2b B2b F3b B3b F4b B4b F5a B1a F6a B2a F7a B3a F8a B4a F5b B5b "
        "F6b B6b F7b B7b F8b B8b B5a B6a B7a B8a"};

    expect_order(HDT_SCHEDULE_INTERLEAVED, 4, 2, 8, want);
}

/* Figure 3, upper half: weights' halves begin where the fifth micro-batch would need room. */
Test(schedule_kinds, zb_h1_as_in_the_figure)
{
    static const char *const want[] = {
        "F1 F2 F3 F4 B1 W1 F5 B2 W2 F6 B3 W3 F7 B4 W4 F8 B5 W5 B6 W6 B7 W7 B8 W8",
        "F1 F2 F3 B1 F4 B2 W1 F5 B3 W2 F6 B4 W3 F7 B5 W4 F8 B6 W5 B7 W6 B8 W7 W8",
        "F1 F2 B1 F3 B2 F4 B3 W1 F5 B4 W2 F6 B5 W3 F7 B6 W4 F8 B7 W5 B8 W6 W7 W8",
        "F1 B1 F2 B2 F3 B3 F4 B4 W1 F5 B5 W2 F6 B6 W3 F7 B7 W4 F8 B8 W5 W6 W7 W8"};

    expect_order(HDT_SCHEDULE_ZB_H1, 4, 1, 8, want);
}

/* ---- bubbles ---- */

/* (p - 1) times what the paper's table says, whatever the three times are. */
Test(schedule_kinds, bubbles_are_those_of_the_papers)
{
    static const struct times sets[] = {{1, 1, 1}, {10, 12, 9}, {3, 4, 3}};

    for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
        const struct times t = sets[i];

        for (int p = 2; p <= 6; p++) {
            int m = 4 * p, all = t.fwd + t.bwd_input + t.bwd_weight;

            cr_expect_eq(bubble_of(HDT_SCHEDULE_GPIPE, p, 1, m, t).total, (p - 1) * all);
            cr_expect_eq(bubble_of(HDT_SCHEDULE_1F1B, p, 1, m, t).total, (p - 1) * all);
            for (int v = 2; v <= 4; v++) {
                /* Of a whole rank's time: all / v in the paper, where `all` is of v stages. */
                cr_expect_eq(bubble_of(HDT_SCHEDULE_INTERLEAVED, p, v, m, t).total, (p - 1) * all);
            }
            cr_expect_eq(bubble_of(HDT_SCHEDULE_ZB_H1, p, 1, m, t).first,
                         (p - 1) * (t.fwd + t.bwd_input - t.bwd_weight), "p %d, times %zu", p, i);
        }
    }
}

/* Table 1 for equal times: no idle time once a rank has begun. */
Test(schedule_kinds, zb_with_the_room_of_h2_has_no_bubble)
{
    for (int p = 2; p <= 6; p++) {
        cr_expect_eq(bubble_of(HDT_SCHEDULE_ZB_MEM, p, 1, 4 * p, (struct times){1, 1, 1}).most, 0,
                     "p %d", p);
    }
}

/* ---- memory ---- */

static void expect_in_flight(int schedule, int p, int v, int m, int stage, int64_t want)
{
    struct hdt_schedule lists[MAX_RANKS];
    struct hdt_plan plan;

    plan_make(&plan, schedule, p, v, m);
    lists_build(&plan, lists);
    for (int s = 0; s < p * v; s++) {
        cr_expect_eq(lists[s % p].n_slots[s], plan.stages[s].in_flight, "%s: stage %d",
                     hdt_schedule_names[schedule], s);
    }
    cr_expect_eq(plan.stages[stage].in_flight, want, "%s p %d v %d m %d: stage %d keeps %d",
                 hdt_schedule_names[schedule], p, v, m, stage, (int)plan.stages[stage].in_flight);
    lists_release(&plan, lists);
}

Test(schedule_kinds, micro_batches_kept_are_those_of_the_papers)
{
    for (int p = 2; p <= 6; p++) {
        int m = 4 * p;

        for (int s = 0; s < p; s++) {
            expect_in_flight(HDT_SCHEDULE_GPIPE, p, 1, m, s, m);
            expect_in_flight(HDT_SCHEDULE_1F1B, p, 1, m, s, p - s);
            expect_in_flight(HDT_SCHEDULE_ZB_H1, p, 1, m, s, p);
            expect_in_flight(HDT_SCHEDULE_ZB_MEM, p, 1, m, s, 2 * p - 1);
        }
        /* The first stage of the first rank: two groups, and the last of the rank's chunks has
         * 2 (p - 1) + 1 forwards before its first backward. */
        expect_in_flight(HDT_SCHEDULE_INTERLEAVED, p, 2, m, 0, 2 * p);
        expect_in_flight(HDT_SCHEDULE_INTERLEAVED, p, 2, m, 2 * p - 1, 1);
    }
}

/* With fewer micro-batches than a pipeline holds nothing breaks. */
Test(schedule_kinds, few_micro_batches_are_enough)
{
    for (int schedule = HDT_SCHEDULE_GPIPE; schedule < HDT_SCHEDULE_KIND_COUNT; schedule++) {
        int v = schedule == HDT_SCHEDULE_INTERLEAVED ? 2 : 1;

        for (int m = 1; m <= 5; m++) {
            bubble_of(schedule, 4, v, m, (struct times){1, 1, 1});
        }
    }
}

/* Any number of micro-batches, not only multiples of the ranks. */
Test(schedule_kinds, interleaved_never_locks_up)
{
    for (int p = 2; p <= MAX_RANKS; p++) {
        for (int v = 2; v <= 4; v++) {
            for (int m = 1; m <= 3 * p + 1; m++) {
                bubble_of(HDT_SCHEDULE_INTERLEAVED, p, v, m, (struct times){1, 1, 1});
            }
        }
    }
}

/* ---- what is refused ---- */

Test(schedule_kinds, interleaved_wants_turns)
{
    struct hdt_job job = {.batch = {2, 8, 16}, .plan = {.schedule = HDT_SCHEDULE_INTERLEAVED}};
    struct hdt_error err = {0};
    struct hdt_plan plan;

    plan_make(&plan, HDT_SCHEDULE_1F1B, 3, 2, 8);
    plan.stages[4].rank = 2;
    plan.stages[5].rank = 1;
    cr_expect_eq(hdt_plan_complete(&plan, &job, &model, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "stage 4"), "%s", err.msg);
    cr_expect(strstr(err.hint, "plan.cut"), "%s", err.hint);
    hdt_plan_release(&plan);
    plan_make(&plan, HDT_SCHEDULE_1F1B, 3, 1, 8);
    cr_expect_eq(hdt_plan_complete(&plan, &job, &model, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "several stages"), "%s", err.msg);
    hdt_plan_release(&plan);
    plan_make(&plan, HDT_SCHEDULE_1F1B, 1, 1, 8);
    cr_expect_eq(hdt_plan_complete(&plan, &job, &model, &err), HDT_OK, "%s", err.msg);
    hdt_plan_release(&plan);
}

static void refused(int schedule, const char *key, json_t *value)
{
    struct hdt_error err = {0};
    struct hdt_plan plan, back;
    json_t *json;

    plan_make(&plan, schedule, 4, 1, 8);
    json = hdt_plan_to_json(&plan);
    cr_assert_eq(hdt_plan_from_json(json, &model, &back, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(back.schedule, plan.schedule);
    hdt_plan_release(&back);
    json_object_set_new(
        strcmp(key, "schedule") == 0 ? json : json_array_get(json_object_get(json, "stages"), 1),
        key, value);
    cr_expect_eq(hdt_plan_from_json(json, &model, &back, &err), HDT_EINVAL, "%s", key);
    cr_expect(strstr(err.msg, "schedule") || strstr(err.msg, "warm-up"), "%s", err.msg);
    json_decref(json);
    hdt_plan_release(&plan);
}

Test(schedule_kinds, a_plan_that_does_not_fit_its_schedule_is_refused)
{
    refused(HDT_SCHEDULE_ZB_H1, "warmup", json_integer(3));
    refused(HDT_SCHEDULE_ZB_H1, "in_flight", json_integer(3));
    refused(HDT_SCHEDULE_ZB_H1, "recompute", json_true());
    refused(HDT_SCHEDULE_ZB_MEM, "in_flight", json_integer(4));
    refused(HDT_SCHEDULE_GPIPE, "warmup", json_integer(7));
    refused(HDT_SCHEDULE_1F1B, "in_flight", json_integer(4));
    refused(HDT_SCHEDULE_1F1B, "schedule", json_string("interleaved"));
    refused(HDT_SCHEDULE_1F1B, "schedule", json_string("auto"));
    refused(HDT_SCHEDULE_1F1B, "schedule", json_string("2f2b"));
}

/* As plans were written before they named a schedule. */
Test(schedule_kinds, an_old_plan_is_read)
{
    static const char *const keys[] = {"in_flight", "bwd_input_s", "bwd_weight_s"};
    struct hdt_plan plan, back;
    struct hdt_error err = {0};
    json_t *json, *stage;
    size_t i;

    plan_make(&plan, HDT_SCHEDULE_WAN, 4, 1, 8);
    json = hdt_plan_to_json(&plan);
    json_object_del(json, "schedule");
    json_array_foreach(json_object_get(json, "stages"), i, stage)
    {
        for (int k = 0; k < 3; k++) {
            cr_assert_eq(json_object_del(stage, keys[k]), 0);
        }
    }
    cr_assert_eq(hdt_plan_from_json(json, &model, &back, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(back.schedule, HDT_SCHEDULE_WAN);
    json_decref(json);
    hdt_plan_release(&plan);
    hdt_plan_release(&back);
}
