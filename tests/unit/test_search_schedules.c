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
    if (schedule != HDT_SCHEDULE_AUTO) {
        cr_expect_eq(result->plan.schedule, (unsigned)schedule);
    }
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

/* ---- auto ---- */

static enum hdt_schedule_kind chosen(void)
{
    struct hdt_search_result result;
    enum hdt_schedule_kind schedule;

    plan_make(HDT_SCHEDULE_AUTO, &result);
    schedule = result.plan.schedule;
    hdt_search_result_release(&result);
    return schedule;
}

static void halves_forget(void)
{
    for (size_t i = 0; i < cluster.n_workers; i++) {
        cluster.workers[i].profile.block_bwd_input_s = 0;
        cluster.workers[i].profile.block_bwd_weight_s = 0;
    }
}

/* Next to each other, backwards whole: wan is 1f1b, gpipe waits for as much (a forward and a
 * backward of one stage) and the stages take no turns. */
Test(search_schedules, a_tie_goes_to_1f1b)
{
    halves_forget();
    cr_expect_float_eq(step_s(HDT_SCHEDULE_WAN), step_s(HDT_SCHEDULE_1F1B), 1e-9);
    cr_expect_eq(chosen(), HDT_SCHEDULE_1F1B);
}

/* One stage has nobody to wait for. */
Test(search_schedules, a_single_stage_is_1f1b)
{
    static char *whole[] = {"a/w0=8"};

    job.plan.cut = (struct hdt_conf_strings){whole, 1};
    cr_expect_eq(chosen(), HDT_SCHEDULE_1F1B);
}

/* 1f1b takes (16 - 1) x 0.099 s of the slower stage, the first micro-batch (0.0305 + 0.099 + 0.061)
 * and a step of the optimizer: 1.68 s. A weights' half of 9 ms a block, moved where a stage waits
 * twice, is 0.054 s of it: 3.2 %. Of 1 ms a block, whose other half is 19, it is 0.4 %, which does
 * not pay. */
Test(search_schedules, a_split_backward_is_taken_where_it_pays)
{
    enum hdt_schedule_kind taken = chosen();

    printf("1f1b %.4f, zb-h1 %.4f, zb-mem %.4f s\n", step_s(HDT_SCHEDULE_1F1B),
           step_s(HDT_SCHEDULE_ZB_H1), step_s(HDT_SCHEDULE_ZB_MEM));
    cr_expect(taken == HDT_SCHEDULE_ZB_H1, "%s", hdt_schedule_names[taken]);
    for (size_t i = 0; i < cluster.n_workers; i++) {
        cluster.workers[i].profile.block_bwd_input_s = 0.019;
        cluster.workers[i].profile.block_bwd_weight_s = 0.001;
    }
    taken = chosen();
    printf("zb-h1 %.4f, zb-mem %.4f s\n", step_s(HDT_SCHEDULE_ZB_H1), step_s(HDT_SCHEDULE_ZB_MEM));
    cr_expect(taken == HDT_SCHEDULE_1F1B, "%s", hdt_schedule_names[taken]);
}

/* Both halves do all that the whole does: measured shorter together, by six parts in a hundred,
 * they are no gain. */
Test(search_schedules, noise_of_halves_is_no_gain)
{
    static char *whole[] = {"a/w0=8"};

    for (size_t i = 0; i < cluster.n_workers; i++) {
        cluster.workers[i].profile.block_bwd_input_s *= 0.94;
        cluster.workers[i].profile.block_bwd_weight_s *= 0.94;
    }
    cr_expect_geq(step_s(HDT_SCHEDULE_ZB_H1), step_s(HDT_SCHEDULE_1F1B) - 2 * 3 * 0.009 * 1.05);
    job.plan.cut = (struct hdt_conf_strings){whole, 1};
    cr_expect_eq(chosen(), HDT_SCHEDULE_1F1B);
}

/* Recompute keeps nothing for a second half. */
Test(search_schedules, recompute_rules_split_backwards_out)
{
    job.recompute = true;
    cr_expect_eq(chosen(), HDT_SCHEDULE_1F1B);
}

/* A round trip of 150 ms a micro-batch is a tenth of the step and more, as
 * the_order_for_wans_hides_latency has it. With memory for what 1f1b keeps and no more, nothing
 * runs further ahead. */
Test(search_schedules, latency_is_hidden_where_memory_allows)
{
    struct hdt_search_result pairs;

    cluster_set(0.15);
    halves_forget();
    cr_expect_eq(chosen(), HDT_SCHEDULE_WAN);
    plan_make(HDT_SCHEDULE_1F1B, &pairs);
    for (size_t i = 0; i < 2; i++) {
        cluster.workers[i].memory_bytes = pairs.plan.stages[i].memory_bytes;
    }
    hdt_search_result_release(&pairs);
    cr_expect_eq(chosen(), HDT_SCHEDULE_1F1B);
}

/* Whatever is fastest: with the cut left open, the search finds turns, too. */
Test(search_schedules, auto_is_never_much_slower_than_any)
{
    job.plan.cut.n = 0;
    for (double rtt_s = 1e-5; rtt_s < 0.2; rtt_s *= 20) {
        double best = INFINITY, taken;

        cluster_set(rtt_s);
        taken = step_s(HDT_SCHEDULE_AUTO);
        for (int kind = HDT_SCHEDULE_GPIPE; kind < HDT_SCHEDULE_KIND_COUNT; kind++) {
            double s = step_s(kind);

            printf("rtt %g s, %s: %.4f s\n", rtt_s, hdt_schedule_names[kind], s);
            best = fmin(best, s);
        }
        cr_expect_leq(taken * (1 - HDT_SEARCH_SCHEDULE_GAIN), best, "%g of %g", taken, best);
        cr_expect_eq(taken, step_s(HDT_SCHEDULE_AUTO), "twice the same");
    }
}

/* ---- each of them ---- */

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

static uint64_t stage_bytes(int64_t begin, int64_t end, int64_t n_slots)
{
    return hdt_cost_stage_memory(&in, &(struct hdt_cost_memory){begin, end, n_slots, false, false});
}

/* Of 16 micro-batches all are kept, of two stages two and one; ZB-H1's keep two. */
Test(search_schedules, memory_is_by_schedule)
{
    struct hdt_search_result all, pairs, split;
    uint64_t slot;

    plan_make(HDT_SCHEDULE_GPIPE, &all);
    plan_make(HDT_SCHEDULE_1F1B, &pairs);
    plan_make(HDT_SCHEDULE_ZB_H1, &split);
    slot = stage_bytes(4, 8, 2) - stage_bytes(4, 8, 1);
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

static uint64_t rank_bytes(const struct hdt_plan *plan, int rank)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < plan->n_stages; i++) {
        sum += plan->stages[i].rank == rank ? plan->stages[i].memory_bytes : 0;
    }
    return sum;
}

/* Three turns: 1f1b takes them for six stages in a row, of which the first keeps six micro-batches,
 * the third four, the fifth two. With memory for less, taking turns is what fits. */
Test(search_schedules, turns_may_fit_where_1f1b_does_not)
{
    static char *turns[] = {"a/w0=2", "b/w0=1", "a/w0=1", "b/w0=1", "a/w0=1", "b/w0=2"};
    struct hdt_search_result pairs, turned;

    job.plan.cut = (struct hdt_conf_strings){turns, 6};
    plan_make(HDT_SCHEDULE_1F1B, &pairs);
    plan_make(HDT_SCHEDULE_INTERLEAVED, &turned);
    for (int rank = 0; rank < 2; rank++) {
        cr_assert_lt(rank_bytes(&turned.plan, rank), rank_bytes(&pairs.plan, rank));
        cluster.workers[rank].memory_bytes = rank_bytes(&pairs.plan, rank) - 1;
    }
    refused(HDT_SCHEDULE_1F1B, "does not fit");
    cr_expect_eq(chosen(), HDT_SCHEDULE_INTERLEAVED);
    cluster.workers[0].memory_bytes = 1 << 20;
    refused(HDT_SCHEDULE_AUTO, "does not fit");
    hdt_search_result_release(&pairs);
    hdt_search_result_release(&turned);
}

/* Over 300 ms wan runs ahead as far as memory goes, which the stages of a rank share. */
Test(search_schedules, stages_of_a_rank_share_its_memory)
{
    static char *turns[] = {"a/w0=2", "b/w0=2", "a/w0=2", "b/w0=2"};
    struct hdt_search_result pairs, ahead;

    cluster_set(0.3);
    job.plan.cut = (struct hdt_conf_strings){turns, 4};
    plan_make(HDT_SCHEDULE_1F1B, &pairs);
    for (int rank = 0; rank < 2; rank++) {
        cluster.workers[rank].memory_bytes =
            rank_bytes(&pairs.plan, rank) + rank_bytes(&pairs.plan, rank) / 2;
    }
    plan_make(HDT_SCHEDULE_WAN, &ahead);
    cr_expect_gt(rank_bytes(&ahead.plan, 0), rank_bytes(&pairs.plan, 0));
    cr_expect_leq(rank_bytes(&ahead.plan, 0), cluster.workers[0].memory_bytes);
    hdt_search_result_release(&pairs);
    hdt_search_result_release(&ahead);
}

Test(search_schedules, a_cut_without_turns_is_refused)
{
    static char *uneven[] = {"a/w0=2", "b/w0=2", "a/w0=4"};

    refused(HDT_SCHEDULE_INTERLEAVED, "several stages");
    job.plan.cut = (struct hdt_conf_strings){uneven, 3};
    refused(HDT_SCHEDULE_INTERLEAVED, "in the same order");
}
