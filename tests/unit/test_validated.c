/* SPDX-License-Identifier: Apache-2.0 */
/* A run beside its plan, from op times made of numbers. */
#include "config.h"

#include "src/base/buf.h"
#include "src/cli/validated.h"
#include "src/plan/search.h"
#include "tests/support/plan_cluster.h"

#include <criterion/criterion.h>
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
    free(v.edges);
    hdt_search_result_release(&v.planned.result);
    hdt_cluster_release(&v.planned.cluster);
}
