/* SPDX-License-Identifier: Apache-2.0 */
/* Both ends of an edge: marks, the guard at work on real frames, the choice by figures. */
#include "config.h"

#include "runtime/edge.h"
#include "runtime/runner_impl.h"
#include "src/base/clock.h"
#include "tests/support/values.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N      ((size_t)8192)
#define TENSOR (4 * N)

static struct hdt_codec_ctx *ctx;
static float values[N], back[N];
static uint8_t frame[TENSOR + 64];
static struct values_rng rng;

static void setup(void)
{
    cr_assert_eq(hdt_codec_ctx_new(0, &ctx, NULL), HDT_OK);
    hdt_values_rng_init(&rng, "edge");
    hdt_values_fill(&rng, VALUES_NORMAL, values, N);
}

static void teardown(void)
{
    hdt_codec_ctx_free(ctx);
}

TestSuite(edge, .init = setup, .fini = teardown);

static void edge_make(struct hdt_edge *edge, const char *planned, bool is_live)
{
    struct hdt_edge_conf conf = {.is_src = true,
                                 .is_live = is_live,
                                 .error_budget = 0.02,
                                 .tensor_bytes = TENSOR,
                                 .frame_cap = TENSOR,
                                 .n_frames = 64,
                                 .dst_busy_s = 0.02,
                                 .name = "job 1, flow 0"};

    cr_assert_eq(hdt_codec_spec_parse(planned, &conf.planned, NULL), HDT_OK);
    hdt_edge_init(edge, &conf);
}

static enum hdt_status frame_make(struct hdt_edge *edge, int64_t step, size_t *len, uint8_t *mark)
{
    struct hdt_codec_guard guard;
    struct hdt_codec_io io = {.src = values,
                              .src_len = TENSOR,
                              .dst = frame,
                              .dst_len = TENSOR,
                              .dtype = HDT_DTYPE_F32,
                              .guard = &guard};

    return hdt_edge_encode(edge, ctx, &io, step, len, mark, NULL);
}

static enum hdt_status frame_read(const struct hdt_edge *edge, size_t len, uint8_t mark,
                                  struct hdt_error *err)
{
    struct hdt_codec_io io = {
        .src = frame, .src_len = len, .dst = back, .dst_len = TENSOR, .dtype = HDT_DTYPE_F32};

    return hdt_edge_decode(edge, ctx, &io, mark, err);
}

static double error_of(void)
{
    double err = 0, ref = 0;

    for (size_t i = 0; i < N; i++) {
        err += ((double)back[i] - (double)values[i]) * ((double)back[i] - (double)values[i]);
        ref += (double)values[i] * (double)values[i];
    }
    return sqrt(err / ref);
}

/* A mark is 0 for the planned codec, else one more than the rung. */
Test(edge, the_other_end_follows_the_mark)
{
    struct hdt_edge src, dst;
    struct hdt_error err = {0};
    uint8_t mark;
    size_t len;

    edge_make(&src, "int8", false);
    edge_make(&dst, "int8", false);
    cr_assert_eq(frame_make(&src, 1, &len, &mark), HDT_OK);
    cr_expect_eq(mark, 0);
    cr_expect_eq(len, N + 4 * N / 256);
    cr_assert_eq(frame_read(&dst, len, mark, &err), HDT_OK, "%s", err.msg);
    cr_expect(error_of() < 0.01);
    src.rung = 1;
    cr_assert_eq(frame_make(&src, 1, &len, &mark), HDT_OK);
    cr_expect_eq(mark, 2);
    cr_expect_eq(len, 2 * N);
    cr_assert_eq(frame_read(&dst, len, mark, &err), HDT_OK, "%s", err.msg);
    cr_expect(error_of() < 0.0025);
    cr_expect_eq(frame_read(&dst, len, 0, &err), HDT_EPROTO);
    cr_expect_eq(frame_read(&dst, len, 4, &err), HDT_EPROTO);
    cr_expect(strstr(err.msg, "codec 4") && strstr(err.msg, "none, bf16, int8"), "%s", err.msg);
}

/* In each block of 256 one value of 127 and 255 of 0.49, which int8 takes for 0: err^2 is 255 x
 * 0.2401, ref^2 127^2 + 61.2, so the relative error 0.0615. That is more than four times a budget
 * of 0.01: the frame goes out as bf16, and those after it. */
Test(edge, a_frame_that_loses_too_much_is_coded_again)
{
    struct hdt_edge src, dst;
    struct hdt_error err = {0};
    uint8_t mark;
    size_t len;

    edge_make(&src, "int8", false);
    edge_make(&dst, "int8", false);
    src.ladder.error_budget = 0.01;
    cr_assert_eq(frame_make(&src, 7, &len, &mark), HDT_OK);
    cr_expect_eq(mark, 0, "normal values pass");
    for (size_t i = 0; i < N; i++) {
        values[i] = i % 256 == 0 ? 127.0f : 0.49f;
    }
    cr_assert_eq(frame_make(&src, 8, &len, &mark), HDT_OK);
    cr_expect_eq(mark, 2);
    cr_expect_eq(len, 2 * N);
    cr_assert_eq(frame_read(&dst, len, mark, &err), HDT_OK, "%s", err.msg);
    cr_expect(error_of() < 0.0025);
    cr_expect_eq(src.guard.n_up, 1);
    cr_expect(src.worst_error < 0.01, "what was refused was not sent");
    cr_assert_eq(frame_make(&src, 9, &len, &mark), HDT_OK);
    cr_expect_eq(mark, 2, "it stays there");
    cr_expect_eq(src.guard.n_up, 1);
}

/* What an evaluation's frames did to guard and rung is taken back. */
Test(edge, an_evaluation_leaves_no_trace)
{
    struct hdt_edge src, kept;
    uint8_t mark;
    size_t len;

    edge_make(&src, "int8", false);
    src.ladder.error_budget = 0.01;
    cr_assert_eq(frame_make(&src, 7, &len, &mark), HDT_OK);
    kept = src;
    for (size_t i = 0; i < N; i++) {
        values[i] = i % 256 == 0 ? 127.0f : 0.49f;
    }
    cr_assert_eq(frame_make(&src, 7, &len, &mark), HDT_OK);
    cr_expect_eq(mark, 2);
    hdt_edge_put_back(&src, &kept);
    for (size_t i = 0; i < N; i++) {
        values[i] = i % 2 == 0 ? 1.0f : -1.0f;
    }
    cr_assert_eq(frame_make(&src, 8, &len, &mark), HDT_OK);
    cr_expect_eq(mark, 0);
    cr_expect_eq(src.guard.n_calm, kept.guard.n_calm);
}

/* 3.4e38 becomes infinite in bf16 and not in int8's sums, so bf16 goes to none. NaN goes up to none
 * and is told by the guard, for the caller to end the job. */
Test(edge, what_a_codec_cannot_carry)
{
    struct hdt_edge src;
    struct hdt_codec_guard guard;
    struct hdt_codec_io io = {.src = values,
                              .src_len = TENSOR,
                              .dst = frame,
                              .dst_len = TENSOR,
                              .dtype = HDT_DTYPE_F32,
                              .guard = &guard};
    uint8_t mark;
    size_t len;

    edge_make(&src, "bf16", false);
    values[5] = 3.4e38f;
    cr_assert_eq(hdt_edge_encode(&src, ctx, &io, 1, &len, &mark, NULL), HDT_OK);
    cr_expect_eq(mark, 1);
    cr_expect_eq(len, TENSOR);
    cr_expect_eq(guard.n_nonfinite, 0);
    edge_make(&src, "int8", false);
    values[5] = NAN;
    cr_assert_eq(hdt_edge_encode(&src, ctx, &io, 1, &len, &mark, NULL), HDT_OK);
    cr_expect_eq(mark, 1);
    cr_expect_eq(guard.n_nonfinite, 1);
}

static void step_run(struct hdt_edge *edge, int64_t step, double link, uint8_t *mark)
{
    struct hdt_edge_figures figures = {.goodput_bytes_per_s = link, .rtt_s = 0.04};
    size_t len;

    for (int i = 0; i < edge->ladder.n; i++) { /* whatever this machine is busy with */
        edge->rungs[i].encode_bytes_per_s = edge->rungs[i].decode_bytes_per_s = 5e9;
    }
    figures.measured_us = hdt_clock_now_us() + 1; /* after all that was before */
    hdt_edge_set_figures(edge, &figures, step);
    cr_assert_eq(frame_make(edge, step, &len, mark), HDT_OK);
    hdt_edge_set_busy(edge, 0.02);
}

/* 64 frames of 32 kB a step beside 20 ms of arithmetic each: a link of 125 MB/s hides all of them,
 * one of 0.1 MB/s none, and the smallest frames win. A step or two follow a change. */
Test(edge, the_choice_follows_the_link)
{
    struct hdt_edge edge;
    uint8_t mark;
    int64_t step = 1;

    edge_make(&edge, "none", true);
    while (step < 4) {
        step_run(&edge, step++, 125e6, &mark);
    }
    cr_expect_eq(mark, 0, "none on a fast link, not mark %u", mark);
    step_run(&edge, step++, 0.1e6, &mark);
    step_run(&edge, step++, 0.1e6, &mark);
    cr_expect_eq(mark, 3, "int8 on a slow link, not mark %u", mark);
    step_run(&edge, step++, 125e6, &mark);
    step_run(&edge, step++, 125e6, &mark);
    cr_expect_eq(mark, 0, "none on a fast link, not mark %u", mark);
    cr_expect_eq(edge.n_changes, 2);
}

/* Of 30 ms beside a frame the gateway took 32768 bytes x 100 ns = 3.2768 ms for the codec in use,
 * so that the next choice counts with 26.7232 ms. Two edges of a job share what may be given away.
 */
Test(edge, what_the_gateway_took_is_no_arithmetic)
{
    struct hdt_edge_figures figures = {
        .goodput_bytes_per_s = 1e9, .rtt_s = 0.04, .send_s_per_byte = 100e-9};
    struct hdt_edge edge;

    edge_make(&edge, "none", true);
    edge.conf.src_share = 1;
    edge.conf.n_live = 2;
    hdt_edge_set_busy(&edge, 0.02);
    cr_expect_float_eq(edge.src_busy_s, 0.02, 1e-12, "nothing was chosen yet: the plan's");
    edge.src_busy_s = 0;
    figures.measured_us = hdt_clock_now_us();
    edge.ladder.error_budget = 0; /* stays */
    hdt_edge_set_figures(&edge, &figures, 1);
    cr_expect_float_eq(edge.input.least_gain, 0.03, 1e-12);
    cr_expect_float_eq(edge.input.exact_cost, 0.005, 1e-12);
    hdt_edge_set_busy(&edge, 0.03);
    cr_expect_float_eq(edge.src_busy_s, 0.0267232, 1e-9, "%.9f", edge.src_busy_s);
    hdt_edge_set_busy(&edge, 0);
    cr_expect_float_eq(edge.src_busy_s, 0.0267232, 1e-9, "a step that says nothing");
}

Test(edge, only_what_may_change_is_told)
{
    struct hdt_edge edge;
    json_t *json;

    edge_make(&edge, "lossless", false);
    cr_expect(!hdt_edge_is_of_note(&edge));
    edge_make(&edge, "bf16", false);
    cr_expect(hdt_edge_is_of_note(&edge));
    json = hdt_edge_json(&edge);
    cr_assert(json);
    cr_expect_str_eq(json_string_value(json_object_get(json, "codec")), "bf16");
    cr_expect_null(json_object_get(json, "table"));
    json_decref(json);
}

/* As above, one frame of the kind that int8 cannot carry; the next ones it could, but the flow
 * stays where it is, in a run that is resumed from there, too. */
Test(edge, a_guard_that_was_saved_makes_the_same_frames)
{
    static uint8_t want[TENSOR];
    uint8_t saved[HDT_LADDER_GUARD_BYTES], mark, mark_then;
    struct hdt_edge edge, resumed;
    size_t len, len_then;

    edge_make(&edge, "int8", false);
    memset(values, 0, sizeof(values));
    for (size_t i = 0; i < N; i++) {
        values[i] = i % 256 == 0 ? 127.0f : 0.49f;
    }
    edge.ladder.error_budget = 0.01;
    cr_assert_eq(frame_make(&edge, 1, &len, &mark), HDT_OK);
    cr_assert_eq(mark, 2);
    hdt_edge_guard_save(&edge, saved);
    hdt_values_fill(&rng, VALUES_NORMAL, values, N);
    cr_assert_eq(frame_make(&edge, 2, &len_then, &mark_then), HDT_OK);
    memcpy(want, frame, len_then);
    edge_make(&resumed, "int8", false);
    cr_assert_eq(hdt_edge_guard_load(&resumed, saved, sizeof(saved), NULL), HDT_OK);
    cr_assert_eq(frame_make(&resumed, 2, &len, &mark), HDT_OK);
    cr_expect_eq(mark, mark_then);
    cr_assert_eq(len, len_then);
    cr_expect_arr_eq(frame, want, len);
    edge_make(&resumed, "int8", false);
    cr_assert_eq(frame_make(&resumed, 2, &len, &mark), HDT_OK);
    cr_expect_eq(mark, 0); /* without it */
}

/* ---- of a runner ---- */

/* Two replicas of two stages each, on a site each; the second has 6 of 8 micro-batches. Frames of
 * its edge are its own: 6 a step, and a step's arithmetic is shared by 6. */
Test(edge, frames_of_a_replica_are_its_own)
{
    struct hdt_plan_rank ranks[] = {{.site = "a", .worker = "w0"},
                                    {.site = "b", .worker = "w0"},
                                    {.site = "a", .worker = "w1"},
                                    {.site = "b", .worker = "w1"}};
    struct hdt_plan_stage stages[] = {{.rank = 0, .n_micro_batches = 2},
                                      {.rank = 1, .n_micro_batches = 2},
                                      {.replica = 1, .rank = 2, .n_micro_batches = 6},
                                      {.replica = 1, .rank = 3, .n_micro_batches = 6}};
    struct hdt_plan_flow flow = {.kind = HDT_FLOW_ACTIVATION,
                                 .src_rank = 2,
                                 .dst_rank = 3,
                                 .src_stage = 2,
                                 .dst_stage = 3,
                                 .frame_cap = 4 * 8 * 16};
    struct runner_flow own = {.spec = {.worker = HDT_CODEC_NONE}};
    struct hdt_runner r = {
        .plan = {.ranks = ranks,
                 .n_ranks = 4,
                 .stages = stages,
                 .n_stages = 4,
                 .flows = &flow,
                 .n_flows = 1,
                 .n_replicas = 2,
                 .micro_batch = 1,
                 .n_micro_batches = 8,
                 .seq_len = 8},
        .model = {.C = 16},
        .job = {.steps = 100, .outer = {.steps = 4}, .codec = {.error_budget = 0.02}},
        .rank = 2,
        .replica = 1,
        .flows = &own};

    r.job.codec.activations = r.job.codec.activation_grads = (char *)"auto";
    hdt_runner_build_edges(&r);
    cr_assert_not_null(own.edge);
    cr_expect_eq(own.edge->conf.n_frames, 6);
    r.step = 1;
    hdt_runner_edges_stepped(&r, HDT_PHASE_TRAIN, 600000000);
    cr_expect_float_eq(own.edge->src_busy_s, 0.1, 1e-12, "%g", own.edge->src_busy_s);
    /* With an outer step in it a step says nothing of frames. */
    r.step = 3;
    hdt_runner_edges_stepped(&r, HDT_PHASE_TRAIN, 60000000000);
    cr_expect_float_eq(own.edge->src_busy_s, 0.1, 1e-12, "%g", own.edge->src_busy_s);
    hdt_runner_unbuild_edges(&r);
    free(r.edges);
}
