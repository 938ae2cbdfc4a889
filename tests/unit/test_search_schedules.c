/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* What the planner makes of plan.schedule: warm-ups, memory and times against sums done by hand. */
#include "src/plan/search.h"
#include "tests/support/plan_cluster.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct hdt_cluster cluster;
static struct hdt_job job;
static struct hdt_cost_inputs in = {&job, &hdt_test_model, &cluster};
static char *even_cut[] = {"a/w0=4", "b/w0=4"}; /* embedding and 3 blocks; 3 blocks and head */

static void cluster_set(double rtt_s)
{
    static const double speeds[] = {1, 1};

    hdt_cluster_release(&cluster);
    hdt_test_cluster(&cluster, 2, speeds, 1e10, rtt_s);
    for (size_t i = 0; i < cluster.n_workers; i++) {
        cluster.workers[i].profile.block_bwd_input_s = 0.011;
        cluster.workers[i].profile.block_bwd_weight_s = 0.009;
        cluster.workers[i].profile.op_overhead_s = 1e-7;
    }
}

static void setup(void)
{
    job = hdt_test_job();
    job.codec.activations = job.codec.activation_grads = (char *)"none";
    job.plan.cut = (struct hdt_conf_strings){even_cut, 2};
    cluster_set(1e-5);
}

static void teardown(void)
{
    hdt_cluster_release(&cluster);
}

TestSuite(search_schedules, .init = setup, .fini = teardown);

static void plan_make(int schedule, struct hdt_search_result *result)
{
    struct hdt_error err = {0};

    job.plan.schedule = schedule;
    cr_assert_eq(hdt_search_plan(&in, result, &err), HDT_OK, "%s: %s", hdt_schedule_names[schedule],
                 err.msg);
    cr_expect_eq(result->plan.schedule,
                 schedule == HDT_SCHEDULE_AUTO ? HDT_SCHEDULE_WAN : (unsigned)schedule);
}

static double step_s(int schedule)
{
    struct hdt_search_result result;
    double s;

    plan_make(schedule, &result);
    s = result.plan.step_s;
    hdt_search_result_release(&result);
    return s;
}

static void refused(int schedule, const char *word)
{
    struct hdt_search_result result;
    struct hdt_error err = {0};

    job.plan.schedule = schedule;
    cr_assert_neq(hdt_search_plan(&in, &result, &err), HDT_OK);
    cr_expect(strstr(err.msg, word), "%s", err.msg);
    cr_expect(err.hint[0]);
}

Test(search_schedules, auto_is_the_order_for_wans)
{
    cr_expect_eq(step_s(HDT_SCHEDULE_AUTO), step_s(HDT_SCHEDULE_WAN));
}

/* Two stages: a forward of one (0.030 s of blocks, the head beside 0.009) and the backwards are
 * waited for once a step in all of them; ZB-H1 waits for twice a weights' half less than 1F1B. */
Test(search_schedules, a_split_backward_saves_its_half_twice)
{
    double gpipe = step_s(HDT_SCHEDULE_GPIPE), pairs = step_s(HDT_SCHEDULE_1F1B);
    double split = step_s(HDT_SCHEDULE_ZB_H1);
    const double weight_s = 3 * 0.009;

    printf("gpipe %.4f, 1f1b %.4f, zb-h1 %.4f s\n", gpipe, pairs, split);
    cr_expect_float_eq(gpipe, pairs, 0.15 * pairs);
    cr_expect_lt(split, pairs);
    cr_expect_float_eq(pairs - split, 2 * weight_s, 0.2 * 2 * weight_s);
}

Test(search_schedules, halves_are_not_guessed)
{
    cluster.workers[1].profile.block_bwd_weight_s = 0;
    refused(HDT_SCHEDULE_ZB_H1, "b/w0 has not measured");
    refused(HDT_SCHEDULE_ZB_MEM, "b/w0 has not measured");
    cr_expect_gt(step_s(HDT_SCHEDULE_1F1B), 0, "which needs none");
}

/* Of 16 micro-batches all are kept, of two stages two and one; ZB-H1's keep two. */
Test(search_schedules, memory_is_by_schedule)
{
    struct hdt_search_result all, pairs, split;
    uint64_t slot;

    plan_make(HDT_SCHEDULE_GPIPE, &all);
    plan_make(HDT_SCHEDULE_1F1B, &pairs);
    plan_make(HDT_SCHEDULE_ZB_H1, &split);
    slot = hdt_cost_stage_memory(&in, 4, 8, 2) - hdt_cost_stage_memory(&in, 4, 8, 1);
    cr_expect_eq(split.plan.stages[1].memory_bytes - pairs.plan.stages[1].memory_bytes, slot);
    cr_expect_eq(split.plan.stages[0].memory_bytes, pairs.plan.stages[0].memory_bytes);
    cr_expect_geq(all.plan.stages[1].memory_bytes, pairs.plan.stages[1].memory_bytes + 15 * slot);
    cluster.workers[0].memory_bytes = all.plan.stages[0].memory_bytes - 1;
    refused(HDT_SCHEDULE_GPIPE, "does not fit");
    hdt_search_result_release(&all);
    hdt_search_result_release(&pairs);
    hdt_search_result_release(&split);
}

/* Two equal stages: forwards until the first gradient is back, (0.030 + 0.009 + 0.033) / 0.039, so
 * two; with 200 ms of round trip more, (0.072 + 0.200) / 0.039, so seven. As memory allows. */
Test(search_schedules, zb_mem_takes_the_memory_that_there_is)
{
    struct hdt_search_result result;
    uint64_t most;

    plan_make(HDT_SCHEDULE_ZB_MEM, &result);
    cr_expect_eq(result.plan.stages[0].warmup, 2);
    cr_expect_eq(result.plan.stages[1].warmup, 0);
    cr_expect_eq(result.plan.stages[1].in_flight, 3);
    hdt_search_result_release(&result);
    cluster_set(0.2);
    plan_make(HDT_SCHEDULE_ZB_MEM, &result);
    cr_expect_eq(result.plan.stages[0].warmup, 7, "%ld", (long)result.plan.stages[0].warmup);
    cr_expect_eq(result.plan.stages[1].in_flight, 8);
    most = result.plan.stages[0].memory_bytes;
    hdt_search_result_release(&result);
    cluster.workers[0].memory_bytes = cluster.workers[1].memory_bytes = most - 1;
    plan_make(HDT_SCHEDULE_ZB_MEM, &result);
    cr_expect_eq(result.plan.stages[0].warmup, 6);
    cr_expect_leq(result.plan.stages[0].memory_bytes, most - 1);
    cr_expect_leq(result.plan.stages[1].memory_bytes, most - 1);
    hdt_search_result_release(&result);
}

/* 1F1B with one forward ahead waits for the round trip once a micro-batch or so. */
Test(search_schedules, the_order_for_wans_hides_latency)
{
    double pairs, wan;

    cluster_set(0.15);
    pairs = step_s(HDT_SCHEDULE_1F1B);
    wan = step_s(HDT_SCHEDULE_WAN);
    printf("1f1b %.4f, wan %.4f, zb-mem %.4f s\n", pairs, wan, step_s(HDT_SCHEDULE_ZB_MEM));
    cr_expect_geq(pairs / wan, 1.1);
}

/* Worker a, b, a, b, ...: every unit once, and no more than four stages each. */
Test(search_schedules, interleaved_deals_units_out)
{
    struct hdt_search_result result;
    const struct hdt_plan_stage *st;

    job.plan.cut.n = 0;
    job.plan.min_stages = 2;
    plan_make(HDT_SCHEDULE_INTERLEAVED, &result);
    st = result.plan.stages;
    cr_expect_geq(result.plan.n_stages, 4);
    cr_expect_leq(result.plan.n_stages, 8);
    cr_expect_eq(result.plan.n_stages % 2, 0);
    for (size_t i = 2; i < result.plan.n_stages; i++) {
        cr_expect_eq(st[i].rank, st[i - 2].rank);
    }
    cr_expect_eq(st[result.plan.n_stages - 1].unit_end, 8);
    hdt_search_result_release(&result);
    job.plan.max_stages = 3;
    refused(HDT_SCHEDULE_INTERLEAVED, "interleaved needs two stages");
}

/* Worker b is busy all the time but while the pipeline fills, 0.0305 s before (embedding, three
 * blocks) and 0.0105 s now (embedding, one), and while it drains, 0.061 and 0.021 s: 0.060 s less
 * at best. Stages are uneven (the head is a block's worth), so that it need not be all of that. */
Test(search_schedules, interleaved_fills_the_pipeline_faster)
{
    static char *turns[] = {"a/w0=2", "b/w0=2", "a/w0=2", "b/w0=2"};
    double pairs = step_s(HDT_SCHEDULE_1F1B), turned;

    job.plan.cut = (struct hdt_conf_strings){turns, 4};
    turned = step_s(HDT_SCHEDULE_INTERLEAVED);
    printf("1f1b %.4f, interleaved %.4f s\n", pairs, turned);
    cr_expect_gt(pairs - turned, 0.030);
    cr_expect_lt(pairs - turned, 0.061);
}

Test(search_schedules, a_cut_without_turns_is_refused)
{
    static char *uneven[] = {"a/w0=2", "b/w0=2", "a/w0=4"};

    refused(HDT_SCHEDULE_INTERLEAVED, "several stages");
    job.plan.cut = (struct hdt_conf_strings){uneven, 3};
    refused(HDT_SCHEDULE_INTERLEAVED, "in the same order");
}
