/* SPDX-License-Identifier: Apache-2.0 */
/* A run beside its plan, from op times made of numbers. */
#include "config.h"

#include "src/base/buf.h"
#include "src/cli/validated.h"
#include "src/core/profile_file.h"
#include "src/plan/search.h"
#include "tests/support/plan_cluster.h"
#include "tests/support/scratch.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STEP_US 10000.0
#define WAIT_US 8000.0
#define LONG_US 500000.0
#define N_STEPS 20

/* A plan of two ranks, played. */
static void planned_make(struct hdt_planned *p)
{
    static const double speeds[] = {1, 1};
    struct hdt_cost_inputs in = {&p->job, &p->model, &p->cluster};
    struct hdt_error err = {0};

    memset(p, 0, sizeof(*p));
    p->job = hdt_test_job();
    p->job.plan.min_stages = 2;
    p->model = hdt_test_model;
    hdt_test_cluster(&p->cluster, 2, speeds, 1e9, 0.0001);
    cr_assert_eq(hdt_search_plan(&in, &p->result, &err), HDT_OK, "%s", err.msg);
}

static void op_add(struct hdt_validated_rank *rank, enum hdt_op_kind kind, int64_t step,
                   double start_us, double dur_us)
{
    rank->ops = hdt_realloc(rank->ops, (rank->n_ops + 1) * sizeof(*rank->ops));
    rank->ops[rank->n_ops++] = (struct hdt_timeline_op){
        .kind = kind, .stage = 0, .mb = 0, .step = step, .start_us = start_us, .dur_us = dur_us};
}

/* Steps of one length that compute for 2 ms and wait for 8: by turns for a frame, for a slot, or
 * for the sum. One of them is held up for half a second. */
static void rank_make(struct hdt_validated_rank *rank)
{
    static const enum hdt_op_kind after[] = {HDT_OP_RECV_FORWARD, HDT_OP_SEND_FORWARD,
                                             HDT_OP_NORM_SYNC};
    double at_us = 0;

    memset(rank, 0, sizeof(*rank));
    rank->has_trace = true;
    for (int64_t step = 0; step < N_STEPS; step++) {
        op_add(rank, HDT_OP_FORWARD, step, at_us, STEP_US - WAIT_US);
        at_us += STEP_US - WAIT_US;
        for (int i = 0; i < 3; i++) {
            at_us += step % 3 == i ? WAIT_US : 0;
            at_us += step == N_STEPS / 2 && i == 0 ? LONG_US : 0;
            op_add(rank, after[i], step, at_us, 0);
        }
    }
}

/* Whoever reads where the time of a step goes is not to miss most of it. */
Test(validated, the_classes_of_a_rank_add_up_to_its_step)
{
    struct hdt_validated v = {.measured_step_s = STEP_US * 1e-6, .n_steps = N_STEPS};
    struct hdt_validated_rank *rank;
    double sum_s = 0;

    planned_make(&v.planned);
    v.predicted_step_s = v.planned.result.cost.step_s;
    v.ranks = hdt_calloc(v.planned.result.plan.n_ranks, sizeof(*v.ranks));
    rank = &v.ranks[0];
    rank_make(rank);
    hdt_validated_compare(&v);
    for (int c = 0; c < HDT_VALIDATED_CLASS_COUNT; c++) {
        sum_s += rank->rows[c].measured_s;
    }
    cr_expect_float_eq(sum_s, STEP_US * 1e-6, 1e-9, "%g s", sum_s);
    cr_expect_float_eq(rank->rows[HDT_VALIDATED_FORWARD].measured_s, (STEP_US - WAIT_US) * 1e-6,
                       1e-9);
    cr_expect_gt(rank->rows[HDT_VALIDATED_WAIT_FRAME].measured_s, 0.2 * WAIT_US * 1e-6);
    cr_expect_gt(rank->rows[HDT_VALIDATED_WAIT_SYNC].measured_s, 0.2 * WAIT_US * 1e-6);
    free(v.ranks[0].ops);
    free(v.ranks);
    free(v.stages);
    free(v.edges);
    hdt_search_result_release(&v.planned.result);
    hdt_cluster_release(&v.planned.cluster);
}

/* Two replicas with an outer step every 4 steps: 2 ms of arithmetic a step, and 8 ms in each fourth
 * one, which is 2 a step; and the wait for the other replica in front of it, 4 ms, so 1. */
Test(validated, an_outer_step_is_shared_by_its_round)
{
    static char *replicas[] = {"a/w0=8", "b/w0=8"};
    static const double speeds[] = {1, 1};
    struct hdt_validated v = {.measured_step_s = 5e-3, .n_steps = 10};
    struct hdt_planned *p = &v.planned;
    struct hdt_cost_inputs in = {&p->job, &p->model, &p->cluster};
    struct hdt_validated_rank *rank;
    struct hdt_error err = {0};
    double at_us = 0;

    p->job = hdt_test_job();
    p->job.outer.steps = 4;
    p->job.plan.cut = (struct hdt_conf_strings){replicas, 2};
    p->model = hdt_test_model;
    hdt_test_cluster(&p->cluster, 2, speeds, 1e9, 0.0001);
    cr_assert_eq(hdt_search_plan(&in, &p->result, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(p->result.plan.n_replicas, 2);
    v.predicted_step_s = p->result.cost.step_s;
    v.ranks = hdt_calloc(p->result.plan.n_ranks, sizeof(*v.ranks));
    rank = &v.ranks[1];
    rank->measured_busy_s = -1;
    rank->has_trace = true;
    for (int64_t step = 0; step < 14; step++, at_us += 2000) {
        op_add(rank, HDT_OP_FORWARD, step, at_us, 2000);
        if (step % 4 == 3) {
            at_us += 4000;
            op_add(rank, HDT_OP_OUTER_SYNC, step, at_us + 2000, 8000);
            at_us += 8000;
        }
    }
    hdt_validated_compare(&v);
    cr_expect_float_eq(rank->rows[HDT_VALIDATED_FORWARD].measured_s, 2e-3, 1e-9);
    cr_expect_float_eq(rank->rows[HDT_VALIDATED_SYNC].measured_s, 2e-3, 1e-9, "%g",
                       rank->rows[HDT_VALIDATED_SYNC].measured_s);
    cr_expect_float_eq(rank->rows[HDT_VALIDATED_WAIT_SYNC].measured_s, 1e-3, 1e-9, "%g",
                       rank->rows[HDT_VALIDATED_WAIT_SYNC].measured_s);
    cr_expect_float_eq(rank->op_s[HDT_OP_OUTER_SYNC], 2e-3, 1e-9, "%g",
                       rank->op_s[HDT_OP_OUTER_SYNC]);
    cr_expect_float_eq(rank->measured_busy_s, 4e-3, 1e-9, "%g", rank->measured_busy_s);
    free(rank->ops);
    free(v.ranks);
    free(v.stages);
    free(v.edges);
    hdt_search_result_release(&p->result);
    hdt_cluster_release(&p->cluster);
}

/* ---- corrected profiles ---- */

/* As hdt_test_cluster: 0.5 and 1 ms the embedding, 10 and 20 a block, 9 the head, 0.02 an op. */
#define OP_MS 0.02
/* Blocks of hdt_test_model: two norms, q, k, v, o, and three matrices of the feed-forward part. */
#define BLOCK_PARAMS (2 * 256 + 4 * 256 * 256 + 3 * 256 * 768)

static struct hdt_validated run;
static char *cut[] = {"a/w0=4", "b/w0=4"}; /* embedding and 3 blocks; 3 blocks and head */

/* An op of a rank's only stage, and what it took. */
struct run_op {
    int rank;
    enum hdt_op_kind kind;
    double ms;
};

/* A plan of that cut. */
static void run_plan(int schedule, bool recompute)
{
    static const double speeds[] = {1, 1};
    struct hdt_planned *p = &run.planned;
    struct hdt_cost_inputs in = {&p->job, &p->model, &p->cluster};
    struct hdt_error err = {0};

    run = (struct hdt_validated){.run_dir = (char *)"/runs/7", .measured_step_s = 1};
    p->job = hdt_test_job();
    p->job.model = (char *)"model.json";
    p->job.plan.cut = (struct hdt_conf_strings){cut, 2};
    p->job.plan.schedule = schedule;
    p->job.codec.activations = p->job.codec.activation_grads = (char *)"none";
    p->job.recompute = recompute;
    p->model = hdt_test_model;
    hdt_test_cluster(&p->cluster, 2, speeds, 1e9, 0.0001);
    for (size_t i = 0; i < p->cluster.n_workers; i++) {
        p->cluster.workers[i].profile.block_bwd_input_s = 0.011;
        p->cluster.workers[i].profile.block_bwd_weight_s = 0.009;
    }
    cr_assert_eq(hdt_search_plan(&in, &p->result, &err), HDT_OK, "%s", err.msg);
    run.predicted_step_s = p->result.cost.step_s;
}

/* Steps in which each op took so long, but one step in which all took ten times as long. */
static void run_steps(const struct run_op *ops, size_t n_ops)
{
    double at_us = 0;

    run.ranks = hdt_calloc(run.planned.result.plan.n_ranks, sizeof(*run.ranks));
    for (int64_t step = 0; step < N_STEPS; step++) {
        for (size_t i = 0; i < n_ops; i++) {
            struct hdt_validated_rank *rank = &run.ranks[ops[i].rank];
            double dur_us = 1e3 * ops[i].ms * (step == N_STEPS / 2 ? 10 : 1);

            op_add(rank, ops[i].kind, step, at_us, dur_us);
            rank->ops[rank->n_ops - 1].stage = ops[i].kind == HDT_OP_STEP ? -1 : ops[i].rank;
            rank->has_trace = true;
            at_us += dur_us;
        }
    }
    hdt_validated_compare(&run);
}

static void run_release(void)
{
    for (size_t i = 0; i < run.planned.result.plan.n_ranks; i++) {
        free(run.ranks[i].ops);
    }
    free(run.ranks);
    free(run.stages);
    free(run.edges);
    hdt_search_result_release(&run.planned.result);
    hdt_cluster_release(&run.planned.cluster);
}

/* The profile that was written for a rank, read as a plan reads it. */
static struct hdt_profile profile_of(const char *name)
{
    const struct hdt_profile_file_want want = {&hdt_test_model, 8, 128, 0, HDT_JOB_FP32};
    struct hdt_profile profile = {0};
    struct hdt_error err = {0};

    cr_assert_eq(hdt_profile_file_read(hdt_scratch_path(name), &want, &profile, &err), HDT_OK,
                 "%s: %s", err.where, err.msg);
    return profile;
}

static void profiles_write(size_t n_ranks)
{
    struct hdt_error err = {0};
    size_t n;

    cr_assert_eq(hdt_validated_write_profiles(&run, hdt_scratch_path("."), &n, &err), HDT_OK, "%s",
                 err.msg);
    cr_expect_eq(n, n_ranks);
}

#define NEAR(a, b) cr_expect(fabs((a) - (b)) <= 1e-7 * (b), "%.10g is not %.10g", a, b)

TestSuite(profiles, .init = hdt_scratch_init, .fini = hdt_scratch_release);

/* What an op took without its fixed cost, over the layers: 61 of 30.5 ms forward is twice as long,
 * 30.5 of 61 ms backward half of it; of the last stage 78 of 39 ms, and its backward as predicted.
 */
Test(profiles, hold_what_ops_took_in_the_run)
{
    static const struct run_op ops[] = {
        {0, HDT_OP_FORWARD, 61 + OP_MS},
        {0, HDT_OP_SEND_FORWARD, 1.048576 + OP_MS}, /* 8 x 128 x 256 values of 4 bytes */
        {1, HDT_OP_FORWARD, 78 + OP_MS},
        {1, HDT_OP_BACKWARD, 60 + OP_MS},
        {0, HDT_OP_BACKWARD, 30.5 + OP_MS},
        {0, HDT_OP_STEP, 4e-6 * (256 * 256 + 3 * BLOCK_PARAMS) + OP_MS}, /* of 2e-6 */
    };
    struct hdt_profile p;

    run_plan(HDT_SCHEDULE_1F1B, false);
    run_steps(ops, sizeof(ops) / sizeof(ops[0]));
    NEAR(run.stages[0].predicted_s[HDT_OP_FORWARD], 0.03052);
    NEAR(run.stages[0].measured_s[HDT_OP_FORWARD], 0.06102);
    NEAR(run.stages[1].measured_s[HDT_OP_BACKWARD], 0.06002);
    cr_expect_lt(run.stages[1].measured_s[HDT_OP_BACKWARD_INPUT], 0);
    profiles_write(2);

    p = profile_of("rank0.json");
    NEAR(p.embed_fwd_s, 0.001);
    NEAR(p.block_fwd_s, 0.020);
    NEAR(p.embed_bwd_s, 0.0005);
    NEAR(p.block_bwd_s, 0.010);
    NEAR(p.block_bwd_input_s, 0.0055); /* not done apart: as the whole */
    NEAR(p.block_bwd_weight_s, 0.0045);
    NEAR(p.head_fwd_s, 0.009); /* it has none */
    NEAR(p.step_s_per_param, 4e-9);
    NEAR(p.op_overhead_s, 2e-5);
    NEAR(p.copy_bytes_per_s, 1e9);
    p = profile_of("rank1.json");
    NEAR(p.head_fwd_s, 0.018);
    NEAR(p.block_fwd_s, 0.020);
    NEAR(p.block_bwd_s, 0.020);
    NEAR(p.embed_fwd_s, 0.0005);
    NEAR(p.step_s_per_param, 2e-9); /* no such op in its trace */
    run_release();
}

/* A profile that nothing was measured for is not written under the name of a correction. */
Test(profiles, are_not_made_of_nothing)
{
    struct hdt_error err = {0};
    size_t n;

    run_plan(HDT_SCHEDULE_1F1B, false);
    run_steps(NULL, 0);
    cr_expect_eq(hdt_validated_write_profiles(&run, hdt_scratch_path("."), &n, &err), HDT_ENOENT);
    cr_expect(strstr(err.msg, "corrects no profile"), "%s", err.msg);
    cr_expect(err.hint[0]);
    run_release();
}

/* Backwards in two halves: 66 of 33 ms and 14 of 28, the latter with the embedding's. */
Test(profiles, have_the_halves_of_a_split_backward)
{
    static const struct run_op ops[] = {
        {0, HDT_OP_BACKWARD_INPUT, 66 + OP_MS},
        {0, HDT_OP_BACKWARD_WEIGHT, 14 + OP_MS},
    };
    struct hdt_profile p;

    run_plan(HDT_SCHEDULE_ZB_H1, false);
    run_steps(ops, sizeof(ops) / sizeof(ops[0]));
    profiles_write(1); /* the other rank left no trace */
    p = profile_of("rank0.json");
    NEAR(p.block_bwd_input_s, 0.022);
    NEAR(p.block_bwd_weight_s, 0.0045);
    NEAR(p.embed_bwd_s, 0.0005);
    NEAR(p.block_bwd_s, 0.02 * (0.022 + 0.0045) / 0.020);
    run_release();
}

/* With recompute a backward has a forward in it: 3 x (20 + 10) ms and the last stage's nothing more
 * are predicted. 120 ms were measured: 40 a block, of which 15 are its forward, as FORWARD says. */
Test(profiles, tell_recomputation_from_the_backward)
{
    static const struct run_op ops[] = {
        {1, HDT_OP_FORWARD, 58.5 + OP_MS}, /* of 39 */
        {1, HDT_OP_BACKWARD, 120 + OP_MS}, /* of 90 */
    };
    struct hdt_profile p;

    run_plan(HDT_SCHEDULE_1F1B, true);
    run_steps(ops, sizeof(ops) / sizeof(ops[0]));
    profiles_write(1);
    p = profile_of("rank1.json");
    NEAR(p.block_fwd_s, 0.015);
    NEAR(p.block_bwd_s, 0.025);
    run_release();
}

/* The next prediction counts with them: what the ops took is what is predicted. */
Test(profiles, make_the_next_prediction)
{
    static const struct run_op ops[] = {
        {0, HDT_OP_FORWARD, 61 + OP_MS},
        {1, HDT_OP_FORWARD, 78 + OP_MS},
        {1, HDT_OP_BACKWARD, 30 + OP_MS},
        {0, HDT_OP_BACKWARD, 122 + OP_MS},
    };
    struct hdt_planned *p = &run.planned;
    struct hdt_cost_inputs in = {&p->job, &p->model, &p->cluster};
    struct hdt_error err = {0};

    run_plan(HDT_SCHEDULE_1F1B, false);
    run_steps(ops, sizeof(ops) / sizeof(ops[0]));
    profiles_write(2);
    hdt_cluster_release(&p->cluster);
    cr_assert_eq(hdt_planned_cluster_file(p, hdt_scratch_path("cluster.json"), &err), HDT_OK,
                 "%s: %s", err.where, err.msg);
    hdt_cost_release(&p->result.cost);
    cr_assert_eq(hdt_cost_play(&in, &p->result.plan, true, &p->result.cost, &err), HDT_OK, "%s",
                 err.msg);
    free(run.stages);
    free(run.edges);
    run.edges = NULL;
    run.n_edges = 0;
    hdt_validated_compare(&run);
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        NEAR(run.stages[ops[i].rank].predicted_s[ops[i].kind], 1e-3 * ops[i].ms);
    }
    json_decref(p->cluster_json);
    run_release();
}
