/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* What gateways, codecs and known times make of a played step, against sums done by hand. */
#include "src/base/host.h"
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

/* Two equal sites on a link that no step waits for. */
static void setup(void)
{
    static const double speeds[] = {1, 1};

    job = hdt_test_job();
    job.plan.min_stages = 2;
    hdt_test_cluster(&cluster, 2, speeds, 1e9, 0.0001);
}

static void teardown(void)
{
    hdt_cluster_release(&cluster);
}

TestSuite(play, .init = setup, .fini = teardown);

/* Gateway and worker of a site on these processors of a machine of their own. */
static void machine_set(int site, const char *gateway_cpus, const char *worker_cpus)
{
    struct hdt_cluster_gateway *g = &cluster.sites[site].gateway;
    struct hdt_profile *p = &cluster.workers[site].profile;

    snprintf(g->host, sizeof(g->host), "host-%d", site);
    snprintf(p->host, sizeof(p->host), "host-%d", site);
    snprintf(g->cpus, sizeof(g->cpus), "%s", gateway_cpus);
    snprintf(p->cpus, sizeof(p->cpus), "%s", worker_cpus);
    snprintf(cluster.workers[site].backend, sizeof(cluster.workers[site].backend), "cpu");
}

static double share(int site)
{
    return hdt_cost_gateway_share(&in, NULL, &cluster.workers[site]);
}

Test(play, processors_are_counted)
{
    char cpus[HDT_CPUS_CAP], host[HDT_HOST_CAP];

    cr_expect_eq(hdt_cpus_count("0-3,8,10-11"), 7);
    cr_expect_eq(hdt_cpus_overlap("0-3", "2-5"), 2);
    cr_expect_eq(hdt_cpus_overlap("0", "1"), 0);
    cr_expect_eq(hdt_cpus_count(""), 0);
    cr_expect_eq(hdt_cpus_count("3-1"), 0);
    cr_expect_eq(hdt_cpus_count("0-99999"), 0);
    cr_expect_eq(hdt_cpus_count("0;1"), 0);
    cr_expect_gt(hdt_cpus_count(hdt_host_cpus(cpus)), 0, "'%s'", cpus);
    cr_expect_lt(strlen(hdt_host_id(host)), HDT_HOST_CAP);
}

Test(play, a_gateway_holds_up_whom_it_shares_processors_with)
{
    cr_expect_eq(share(0), 0, "nothing is known");
    machine_set(0, "0", "0");
    cr_expect_float_eq(share(0), 1, 1e-12);
    machine_set(0, "1", "0");
    cr_expect_eq(share(0), 0, "processors of its own");
    machine_set(0, "0-1", "0-1");
    cr_expect_eq(share(0), 0, "one thread computes: the other processor is idle");
    cluster.workers[0].n_threads = 2;
    cr_expect_float_eq(share(0), 0.5, 1e-12);
    snprintf(cluster.sites[0].gateway.host, HDT_HOST_CAP, "elsewhere");
    cr_expect_eq(share(0), 0);
    machine_set(0, "0", "0");
    snprintf(cluster.workers[0].backend, sizeof(cluster.workers[0].backend), "cuda");
    cr_expect_eq(share(0), 0);
}

/* Played time of a fixed cut, and busy time of rank 1, which has the head and never waits long. */
static double played(double *busy_s, double *held_s)
{
    char *cut[] = {"a/w0=4", "b/w0=4"};
    struct hdt_search_result result;
    struct hdt_error err = {0};
    double step_s;

    job.plan.cut = (struct hdt_conf_strings){cut, 2};
    cr_assert_eq(hdt_search_plan(&in, &result, &err), HDT_OK, "%s", err.msg);
    step_s = result.cost.step_s;
    *busy_s = result.cost.rank_busy_s[1];
    *held_s = result.cost.rank_held_s[1];
    hdt_search_result_release(&result);
    return step_s;
}

/* The gateways of both ranks' processors work for work_s of a step, by what `set` says of them. */
static void expect_held(void (*set)(struct hdt_cluster_gateway *gateway), double work_s)
{
    double alone_s, with_s, busy_alone_s, busy_s, held_s;

    job.codec.activations = job.codec.activation_grads = (char *)"none";
    alone_s = played(&busy_alone_s, &held_s);
    cr_expect_eq(held_s, 0);
    for (int i = 0; i < 2; i++) {
        set(&cluster.sites[i].gateway);
        machine_set(i, "0", "0");
    }
    with_s = played(&busy_s, &held_s);
    printf("step %.4f -> %.4f s, rank 1 held for %.4f of %.4f s\n", alone_s, with_s, held_s,
           work_s);
    /* What falls into a wait costs nothing; the rank is busy for most of the step. */
    cr_expect_leq(held_s, 1.02 * work_s);
    cr_expect_geq(held_s, 0.7 * work_s);
    cr_expect_float_eq(busy_s - held_s, busy_alone_s, 1e-9);
    cr_expect_geq(with_s - alone_s, 0.7 * work_s);
    cr_expect_leq(with_s - alone_s, 1.5 * work_s);
}

static void set_bytes(struct hdt_cluster_gateway *gateway)
{
    gateway->send_s_per_byte = 2e-9;
    gateway->recv_s_per_byte = 4e-9;
}

static void set_frames(struct hdt_cluster_gateway *gateway)
{
    gateway->frame_s = 2e-3;
}

/* 16 frames of 8 x 128 x 256 fp32 in, 16 out, at 4 and 2 ns a byte. */
Test(play, the_gateways_work_is_added_to_the_step)
{
    expect_held(set_bytes, 16 * 8 * 128 * 256 * 4 * (2e-9 + 4e-9));
}

/* 16 activations and as many labels in, 16 gradients out, a norm and its answer: what each costs a
 * gateway beside its bytes. */
Test(play, the_gateways_frames_are_added_to_the_step)
{
    expect_held(set_frames, 50 * 2e-3);
}

Test(play, a_codec_that_costs_more_than_it_brings_is_left_out)
{
    struct hdt_search_result result;
    struct hdt_error err = {0};

    for (int i = 0; i < 2; i++) {
        cluster.links[i].rate_bytes_per_s = 12.5e6; /* 84 ms a frame, below the pace of 99 */
        cluster.sites[i].gateway.encode_bytes_per_s = 300e6;
        cluster.sites[i].gateway.decode_bytes_per_s = 600e6;
    }
    cr_assert_eq(hdt_search_plan(&in, &result, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(result.plan.flows[0].codec.gateway, HDT_CODEC_LOSSLESS,
                 "processors of its own: the shorter transfer");
    hdt_search_result_release(&result);
    machine_set(0, "0", "0");
    machine_set(1, "0", "0");
    cr_assert_eq(hdt_search_plan(&in, &result, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(result.plan.flows[0].codec.gateway, HDT_CODEC_NONE, "%s", result.second);
    printf("%s\n", result.second);
    hdt_search_result_release(&result);
}

Test(play, known_times_take_the_place_of_predicted_ones)
{
    char *cut[] = {"a/w0=4", "b/w0=4"};
    double op_s[2 * HDT_OP_KIND_COUNT], *late_s;
    struct hdt_cost_given given = {op_s, NULL};
    struct hdt_search_result result;
    struct hdt_cost cost;
    double longest_s;

    job.plan.cut = (struct hdt_conf_strings){cut, 2};
    cr_assert_eq(hdt_search_plan(&in, &result, NULL), HDT_OK);
    late_s = calloc(result.plan.n_flows, sizeof(double));
    given.late_s = late_s;
    for (int i = 0; i < 2 * HDT_OP_KIND_COUNT; i++) {
        op_s[i] = -1;
    }
    cr_assert_eq(hdt_cost_play_given(&in, &result.plan, &given, &cost, NULL), HDT_OK);
    cr_expect_float_eq(cost.step_s, result.cost.step_s, 1e-12, "nothing is known");
    hdt_cost_release(&cost);
    /* Rank 1 takes a second a forward: 16 of them follow one another. */
    op_s[HDT_OP_KIND_COUNT + HDT_OP_FORWARD] = 1;
    cr_assert_eq(hdt_cost_play_given(&in, &result.plan, &given, &cost, NULL), HDT_OK);
    longest_s = 16 + 16 * result.plan.stages[1].bwd_s;
    cr_expect_geq(cost.step_s, longest_s);
    cr_expect_leq(cost.step_s, 1.05 * longest_s);
    hdt_cost_release(&cost);
    free(late_s);
    hdt_search_result_release(&result);
}
