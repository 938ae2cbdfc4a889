/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* Ranks, pipelines, collectives and scenarios of the simulator against sums done by hand. */
#include "src/sim/sim_path.h"
#include "tests/support/sim_case.h"
#include "tests/support/sim_pipe.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#define EPS 1e-9

static double use_sum(const struct hdt_sim_rank_result *r)
{
    double sum = 0;

    for (int u = 0; u < HDT_SIM_USE_COUNT; u++) {
        sum += r->use_s[u];
    }
    return sum;
}

/* ---- pipelines ---- */

static void pipe_run(struct sim_pipe *pipe, struct hdt_sim_result *result)
{
    struct sim_pipe_tables tables;
    struct hdt_sim_setup setup;
    struct hdt_error err = {0};

    hdt_sim_pipe_setup(pipe, &tables, &setup);
    setup.record = true;
    cr_assert_eq(hdt_sim_run(&setup, result, &err), HDT_OK, "%s %s", err.msg, err.hint);
    hdt_sim_pipe_release(&tables);
}

/* The bubble of equal stages is p - 1 of m + p - 1 parts of the step (Narayanan et al., SC 2021,
 * section 2.2), for GPipe and for 1F1B; what differs is how many micro-batches a stage holds. */
static void bubble_check(bool gpipe, int p, int m)
{
    struct sim_pipe pipe = {.n_stages = p,
                            .n_replicas = 1,
                            .n_mb = m,
                            .gpipe = gpipe,
                            .fwd_s = 1,
                            .bwd_s = 2,
                            .nic_bytes_per_s = 1,
                            .slot_bytes = 10,
                            .n_steps = 1};
    struct hdt_sim_result result;

    pipe_run(&pipe, &result);
    cr_expect_float_eq(result.makespan_s, 3.0 * (m + p - 1), EPS, "p %d, m %d", p, m);
    for (int s = 0; s < p; s++) {
        const struct hdt_sim_rank_result *r = &result.ranks[s];
        int held = gpipe || p - s > m ? m : p - s;

        cr_expect_float_eq(r->use_s[HDT_SIM_BUSY], 3.0 * m, EPS);
        cr_expect_float_eq(r->use_s[HDT_SIM_BUBBLE] / r->window_s, (p - 1.0) / (m + p - 1.0), EPS);
        cr_expect_float_eq(use_sum(r), r->window_s, EPS);
        cr_expect_eq(r->mem_peak, 10 * held, "stage %d of %d, %d micro-batches", s, p, m);
        cr_expect_eq(r->mem_last, 0);
    }
    hdt_sim_result_release(&result);
}

Test(sim, bubbles_of_equal_stages)
{
    for (int p = 1; p <= 6; p++) {
        for (int m = 1; m <= 12; m++) {
            bubble_check(false, p, m);
            bubble_check(true, p, m);
        }
    }
}

/* A latency L before each forward and backward: with one micro-batch the step is a chain of 2 p
 * computations and 2 (p - 1) frames of L + bytes / rate each. */
Test(sim, a_chain_is_the_sum_of_its_parts)
{
    struct sim_pipe pipe = {.n_stages = 3,
                            .n_replicas = 1,
                            .n_mb = 1,
                            .fwd_s = 1,
                            .bwd_s = 2,
                            .frame_bytes = 50,
                            .nic_bytes_per_s = 100,
                            .latency_s = 0.25,
                            .n_steps = 1};
    struct hdt_sim_result result;
    struct hdt_sim_path path;

    pipe_run(&pipe, &result);
    cr_expect_float_eq(result.makespan_s, 3 * (1 + 2) + 4 * (0.25 + 0.5), EPS);
    hdt_sim_path_find(&result, &path);
    cr_expect_float_eq(path.use_s[HDT_SIM_PATH_COMPUTE], 9, EPS);
    cr_expect_float_eq(path.use_s[HDT_SIM_PATH_QUEUE], 4 * 0.5, EPS);
    cr_expect_float_eq(path.use_s[HDT_SIM_PATH_FLIGHT], 4 * 0.25, EPS);
    cr_expect_float_eq(path.use_s[HDT_SIM_PATH_COMM], 0, EPS);
    cr_expect_float_eq(path.use_s[HDT_SIM_PATH_WAIT], 0, EPS);
    /* Six computations, four SENDs, four RECVs: all of them. */
    cr_expect_eq(path.n_spans, 14);
    cr_expect_eq(path.n_spans, result.n_spans);
    /* Stage 2 waits 2 F and two SENDs' way; its bubble ends when the frame to it is sent. */
    cr_expect_float_eq(result.ranks[2].use_s[HDT_SIM_WAIT], 0.75, EPS);
    cr_expect_float_eq(result.ranks[2].use_s[HDT_SIM_BUSY], 3, EPS);
    cr_expect_float_eq(result.links[0].bytes, 50, EPS);
    cr_expect_float_eq(result.links[0].busy_s, 0.5, EPS);
    cr_expect_float_eq(result.links[0].peak, 1, EPS);
    hdt_sim_path_release(&path);
    hdt_sim_result_release(&result);
}

/* Steps follow one another without a barrier: while the last stages end one, the first begin the
 * next, so that a steady step of 1F1B takes m (f + b) and the bubble is gone. With a collective of
 * all ranks it is there in each step. */
Test(sim, steps_of_a_pipeline)
{
    struct sim_pipe pipe = {.n_stages = 4,
                            .n_replicas = 2,
                            .n_mb = 8,
                            .fwd_s = 1,
                            .bwd_s = 2,
                            .nic_bytes_per_s = 1,
                            .sync_s = 0.5,
                            .n_steps = 3};
    struct sim_pipe_tables tables;
    struct hdt_sim_setup setup;
    struct hdt_sim_result result;
    struct hdt_error err = {0};

    hdt_sim_pipe_setup(&pipe, &tables, &setup);
    setup.first_step = 1;
    cr_assert_eq(hdt_sim_run(&setup, &result, &err), HDT_OK, "%s", err.msg);
    /* Stage 0 ends its step with backward m - 1 at 33 and the collective; stage 1 one backward
     * earlier. Step 1 begins at stage 0 at 33.5: the first step of the others has ended by then. */
    cr_expect_float_eq(result.step_end_s[0], 33.5, EPS);
    cr_expect_float_eq(result.step_end_s[1], 31.5, EPS);
    cr_expect_float_eq(result.step_s, 33.5, EPS);
    cr_expect_float_eq(result.makespan_s, 3 * 33.5, EPS);
    for (size_t i = 0; i < setup.n_ranks; i++) {
        const struct hdt_sim_rank_result *r = &result.ranks[i];

        cr_expect_float_eq(r->window_s, 2 * 33.5, EPS);
        cr_expect_float_eq(r->use_s[HDT_SIM_BUSY], 2 * 24, EPS);
        cr_expect_float_eq(r->use_s[HDT_SIM_COMM], 2 * 0.5, EPS);
        cr_expect_float_eq(use_sum(r), r->window_s, EPS);
    }
    hdt_sim_result_release(&result);
    hdt_sim_pipe_release(&tables);
}

/* ---- credit, collectives ---- */

/* Depth 1: the second frame is sent when the first is taken (its RECV ends at 4) and the credit has
 * come back (latency 0.5): 4.5. Without a limit at 1. */
Test(sim, a_send_waits_for_credit)
{
    struct sim_case *c = hdt_sim_case_new(2);
    struct hdt_sim_flow *f = hdt_sim_case_flow(c, 0, 1, 0.5, 0, NULL);

    hdt_sim_case_send(c, 0, 0, 1)->dur_s = 1;
    hdt_sim_case_send(c, 0, 0, 1)->dur_s = 1;
    hdt_sim_case_compute(c, 1, 3);
    hdt_sim_case_recv(c, 1, 0)->dur_s = 1;
    hdt_sim_case_recv(c, 1, 0);
    hdt_sim_case_run(c);
    cr_expect_float_eq(hdt_sim_case_end(c, 0, 1), 2, EPS);
    f->depth = 1;
    hdt_sim_case_run(c);
    cr_expect_float_eq(hdt_sim_case_end(c, 0, 1), 5.5, EPS);
    cr_expect_float_eq(hdt_sim_case_end(c, 1, 2), 6, EPS);
    cr_expect_float_eq(c->result.ranks[0].use_s[HDT_SIM_WAIT], 3.5, EPS);
    cr_expect_float_eq(c->result.ranks[0].use_s[HDT_SIM_COMM], 2, EPS);
    hdt_sim_case_free(c);
}

/* What is BESIDE takes no time of the rank: it goes on at once, the frame comes later. A SYNC send
 * ends when the last byte has left. */
Test(sim, sends_beside_the_compute_and_blocking_ones)
{
    struct sim_case *c = hdt_sim_case_new(2);
    int link = hdt_sim_case_link(c, 10);
    struct hdt_sim_task *task;

    hdt_sim_case_flow(c, 0, 1, 0.5, 1, &link);
    task = hdt_sim_case_send(c, 0, 0, 20);
    task->dur_s = 1;
    task->flags = HDT_SIM_BESIDE;
    hdt_sim_case_compute(c, 0, 1);
    hdt_sim_case_send(c, 0, 0, 20)->flags = HDT_SIM_SYNC;
    task = hdt_sim_case_recv(c, 1, 0);
    task->dur_s = 0.25;
    task->flags = HDT_SIM_BESIDE;
    hdt_sim_case_recv(c, 1, 0)->dur_s = 0.25;
    hdt_sim_case_run(c);
    cr_expect_float_eq(hdt_sim_case_end(c, 0, 0), 0, EPS);
    cr_expect_float_eq(hdt_sim_case_end(c, 0, 1), 1, EPS);
    cr_expect_float_eq(hdt_sim_case_end(c, 0, 2), 4, EPS);        /* 2 s, behind 2 s of the first */
    cr_expect_float_eq(hdt_sim_case_end(c, 1, 0), 2 + 1.75, EPS); /* 1 + 0.5 + 0.25 after leaving */
    cr_expect_float_eq(hdt_sim_case_end(c, 1, 1), 4.5 + 0.25, EPS);
    hdt_sim_case_free(c);
}

Test(sim, collectives_begin_when_all_are_there)
{
    struct sim_case *c = hdt_sim_case_new(3);
    const int all[] = {0, 1, 2}, two[] = {0, 2};
    int g = hdt_sim_case_group(c, 3, all, 2), h = hdt_sim_case_group(c, 2, two, 1);

    for (int r = 0; r < 3; r++) {
        hdt_sim_case_compute(c, r, 1 + r); /* the last comes at 3 */
        hdt_sim_case_task(c, r, HDT_SIM_GROUP, g);
        hdt_sim_case_compute(c, r, 1);
    }
    /* One beside the compute: begun at 6, done at 7; rank 0 computes until 8 and need not wait. */
    for (int r = 0; r < 3; r += 2) {
        hdt_sim_case_task(c, r, HDT_SIM_GROUP, h)->flags = HDT_SIM_ASYNC;
        hdt_sim_case_compute(c, r, r == 0 ? 2 : 0.25);
        hdt_sim_case_task(c, r, HDT_SIM_JOIN, h);
    }
    hdt_sim_case_run(c);
    for (int r = 0; r < 3; r++) {
        cr_expect_float_eq(hdt_sim_case_end(c, r, 1), 5, EPS);
        cr_expect_float_eq(hdt_sim_case_end(c, r, 2), 6, EPS);
    }
    cr_expect_float_eq(hdt_sim_case_end(c, 0, 5), 8, EPS);
    cr_expect_float_eq(hdt_sim_case_end(c, 2, 5), 7, EPS);
    cr_expect_float_eq(c->result.ranks[0].use_s[HDT_SIM_BUBBLE], 2, EPS);
    cr_expect_float_eq(c->result.ranks[0].use_s[HDT_SIM_COMM], 2, EPS);
    cr_expect_float_eq(c->result.ranks[2].use_s[HDT_SIM_COMM], 2 + 0.75, EPS);
    hdt_sim_case_free(c);
}

/* Two all-reduces one after another over a link of 10 bytes a second that rank 1 sends on, too. */
Test(sim, a_collective_takes_its_links)
{
    struct sim_case *c = hdt_sim_case_new(2);
    const int all[] = {0, 1};
    int link = hdt_sim_case_link(c, 10), g = hdt_sim_case_group(c, 2, all, 0.5);

    hdt_sim_case_flow(c, -1, -1, 0.25, 1, &link);
    hdt_sim_case_flow(c, 1, 0, 0, 1, &link);
    c->groups[g].flow = 0;
    c->groups[g].bytes = 20;
    hdt_sim_case_task(c, 0, HDT_SIM_GROUP, g);
    hdt_sim_case_task(c, 0, HDT_SIM_GROUP, g);
    hdt_sim_case_recv(c, 0, 1);
    hdt_sim_case_send(c, 1, 1, 10);
    hdt_sim_case_task(c, 1, HDT_SIM_GROUP, g);
    hdt_sim_case_task(c, 1, HDT_SIM_GROUP, g);
    hdt_sim_case_run(c);
    /* Half the link until the 10 bytes are over at 2, the other 10 bytes by 3; then 2 s alone. */
    cr_expect_float_eq(hdt_sim_case_end(c, 0, 0), 3.75, EPS);
    cr_expect_float_eq(hdt_sim_case_end(c, 1, 1), 3.75, EPS);
    cr_expect_float_eq(hdt_sim_case_end(c, 0, 1), 6.5, EPS);
    cr_expect_float_eq(c->result.links[0].bytes, 50, EPS);
    hdt_sim_case_free(c);
}

/* Two rounds of a chain of 2 s and 1 s that nobody waits for: the second round's first half runs
 * beside the first round's second. They are joined in their order. */
Test(sim, a_chain_goes_on_by_itself)
{
    struct sim_case *c = hdt_sim_case_new(2);
    const int all[] = {0, 1};
    int g = hdt_sim_case_group(c, 2, all, 2), h = hdt_sim_case_group(c, 2, all, 1);

    c->groups[h].chained = true;
    for (int r = 0; r < 2; r++) {
        hdt_sim_case_compute(c, r, 1 + r); /* all are there at 2 */
        hdt_sim_case_task(c, r, HDT_SIM_GROUP, g)->flags = HDT_SIM_ASYNC;
        hdt_sim_case_task(c, r, HDT_SIM_GROUP, g)->flags = HDT_SIM_ASYNC;
        hdt_sim_case_task(c, r, HDT_SIM_JOIN, g);
        hdt_sim_case_task(c, r, HDT_SIM_JOIN, h);
    }
    hdt_sim_case_run(c);
    for (int r = 0; r < 2; r++) {
        cr_expect_float_eq(hdt_sim_case_end(c, r, 2), 1 + r, EPS);
        cr_expect_float_eq(hdt_sim_case_end(c, r, 3), 6, EPS);
        cr_expect_float_eq(hdt_sim_case_end(c, r, 4), 7, EPS);
    }
    hdt_sim_case_free(c);
}

/* ---- scenarios, hosts ---- */

Test(sim, a_straggler_is_slow_for_a_while)
{
    const struct hdt_sim_slow slow[] = {{0, 2, 6, 0.5}, {0, 8, 9, 0}, {1, 0, 100, 0.25}};
    struct sim_case *c = hdt_sim_case_new(2);

    c->setup.slow_ranks = slow;
    c->setup.n_slow_ranks = 3;
    hdt_sim_case_compute(c, 0, 5); /* 2 of it by 2, 4 by 6, done at 7 */
    hdt_sim_case_compute(c, 0, 3); /* 1 by 8, nothing by 9, done at 11 */
    hdt_sim_case_compute(c, 1, 2);
    hdt_sim_case_run(c);
    cr_expect_float_eq(hdt_sim_case_end(c, 0, 0), 7, EPS);
    cr_expect_float_eq(hdt_sim_case_end(c, 0, 1), 11, EPS);
    cr_expect_float_eq(hdt_sim_case_end(c, 1, 0), 8, EPS);
    hdt_sim_case_free(c);
}

/* Log-normal of mean 1: over 4000 tasks the mean is within 4 sigma / sqrt(4000) of 1, and the
 * standard deviation of the logarithms is sigma. */
Test(sim, jitter_has_its_mean_and_spread)
{
    const double sigma = 0.2;
    struct sim_case *c = hdt_sim_case_new(1);
    double first_s, logs = 0, squares = 0;

    for (int i = 0; i < 4000; i++) {
        hdt_sim_case_compute(c, 0, 1);
    }
    c->setup.jitter = sigma;
    c->setup.seed = 7;
    hdt_sim_case_run(c);
    first_s = c->result.makespan_s;
    cr_expect_float_eq(first_s / 4000, 1, 4 * sigma / sqrt(4000));
    for (size_t i = 0; i < c->result.n_spans; i++) {
        double l = log(c->result.spans[i].end_s - c->result.spans[i].start_s);

        logs += l / 4000;
        squares += l * l / 4000;
    }
    cr_expect_float_eq(sqrt(squares - logs * logs), sigma, 0.01);
    hdt_sim_case_run(c);
    cr_expect_eq(c->result.makespan_s, first_s, "the same seed");
    c->setup.seed = 8;
    hdt_sim_case_run(c);
    cr_expect_neq(c->result.makespan_s, first_s, "another seed");
    hdt_sim_case_free(c);
}

/* Rank 1 shares half of its processor with what codes frames: 2 s for one that comes. */
Test(sim, a_host_holds_up_its_ranks)
{
    static const struct hdt_sim_host host = {0, 1};
    static const int ranks[] = {1};
    static const double shares[] = {0.5};
    struct sim_case *c = hdt_sim_case_new(2);
    struct hdt_sim_flow *f = hdt_sim_case_flow(c, 0, 1, 3, 0, NULL);

    c->setup.hosts = &host;
    c->setup.n_hosts = 1;
    c->setup.host_ranks = ranks;
    c->setup.host_shares = shares;
    f->dst_host = 0;
    f->dst_cpu_s = 2;
    hdt_sim_case_send(c, 0, 0, 1);
    hdt_sim_case_compute(c, 1, 4); /* at work when the frame comes at 3: ends at 5 */
    hdt_sim_case_recv(c, 1, 0);
    hdt_sim_case_run(c);
    cr_expect_float_eq(hdt_sim_case_end(c, 1, 0), 5, EPS);
    cr_expect_float_eq(c->result.ranks[1].use_s[HDT_SIM_HELD], 1, EPS);
    cr_expect_float_eq(c->result.ranks[1].use_s[HDT_SIM_BUSY], 4, EPS);
    /* One that waits since 0.5 could go on at 3; the work of 2 s began at 1 and took it until 2. */
    c->lists.ranks[1].tasks[0].dur_s = 0.5;
    hdt_sim_case_run(c);
    cr_expect_float_eq(hdt_sim_case_end(c, 1, 1), 3, EPS);
    cr_expect_float_eq(c->result.ranks[1].use_s[HDT_SIM_HELD], 0, EPS);
    hdt_sim_case_free(c);
}

/* ---- what cannot be run ---- */

static void refused(struct sim_case *c, const char *words)
{
    struct hdt_sim_result result;
    struct hdt_error err = {0};

    cr_assert_eq(hdt_sim_run(&c->setup, &result, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, words) || strstr(err.hint, words), "'%s' is not in '%s' '%s'", words,
              err.msg, err.hint);
}

Test(sim, lists_that_wait_for_each_other_are_told)
{
    struct sim_case *c = hdt_sim_case_new(2);

    hdt_sim_case_flow(c, 0, 1, 0, 0, NULL);
    hdt_sim_case_flow(c, 1, 0, 0, 0, NULL);
    hdt_sim_case_recv(c, 0, 1);
    hdt_sim_case_send(c, 0, 0, 1);
    hdt_sim_case_recv(c, 1, 0);
    hdt_sim_case_send(c, 1, 1, 1);
    refused(c, "rank 0 waits in task 0 (FORWARD, micro-batch -1) for a frame of flow 1");
    refused(c, "wait for each other");
    hdt_sim_case_free(c);
}

Test(sim, a_link_that_stays_down_is_told)
{
    struct hdt_sim_slow slow = {0, 1, INFINITY, 0};
    struct sim_case *c = hdt_sim_case_new(2);
    int link = hdt_sim_case_link(c, 1);

    hdt_sim_case_flow(c, 0, 1, 0, 1, &link);
    hdt_sim_case_send(c, 0, 0, 5);
    hdt_sim_case_recv(c, 1, 0);
    c->setup.slow_links = &slow;
    c->setup.n_slow_links = 1;
    refused(c, "link 0 is down for good");
    slow.to_s = 3;
    hdt_sim_case_run(c);
    cr_expect_float_eq(c->result.makespan_s, 7, EPS);
    slow.to_s = 1;
    refused(c, "ends before it begins");
    slow = (struct hdt_sim_slow){1, 0, 1, 1};
    refused(c, "is of nothing");
    c->setup.n_slow_links = 0;
    c->flows[0].latency_s = NAN;
    refused(c, "no number of seconds");
    c->flows[0].latency_s = 0;
    c->links[0].rate_bytes_per_s = 0;
    refused(c, "link 0 has no rate");
    c->setup.first_step = 1;
    refused(c, "steps 1 to 0 of 1");
    hdt_sim_case_free(c);
}
