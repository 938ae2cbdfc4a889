/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * The planner against brute force over all orders and all cuts of small random clusters, and its
 * answers where nothing fits.
 */
#include "src/plan/search.h"
#include "tests/support/plan_cluster.h"
#include "tests/support/rng.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double rng_real(double max)
{
    return max * (double)(1 + rng(1000)) / 1000.0;
}

/* Step time of a fixed cut, played; infinite when it does not fit. */
static double played(struct hdt_cost_inputs in, struct hdt_job job, char **cut, size_t n)
{
    struct hdt_search_result result;
    double step_s = INFINITY;

    job.plan.cut = (struct hdt_conf_strings){cut, n};
    in.job = &job;
    if (hdt_search_plan(&in, &result, NULL) == HDT_OK) {
        step_s = result.plan.step_s;
        hdt_search_result_release(&result);
    }
    return step_s;
}

/* The best played time over all orders and cuts of two or one workers. */
static double brute_played(const struct hdt_cost_inputs *in, int n_sites)
{
    double best = INFINITY;
    char texts[2][80];
    char *cut[2] = {texts[0], texts[1]};

    for (int i = 0; i < n_sites; i++) {
        snprintf(texts[0], sizeof(texts[0]), "%s/w0=8", in->cluster->sites[i].name);
        best = fmin(best, played(*in, *in->job, cut, 1));
        for (int j = 0; j < n_sites; j++) {
            for (int u = 1; u < 8 && i != j; u++) {
                snprintf(texts[0], sizeof(texts[0]), "%s/w0=%d", in->cluster->sites[i].name, u);
                snprintf(texts[1], sizeof(texts[1]), "%s/w0=%d", in->cluster->sites[j].name, 8 - u);
                best = fmin(best, played(*in, *in->job, cut, 2));
            }
        }
    }
    return best;
}

Test(search, planned_step_is_within_3_percent_of_all_played_cuts)
{
    const unsigned long long seed = 77;
    double worst = 1;

    rng_state = seed;
    for (int round = 0; round < 25; round++) {
        double speeds[3] = {0.2 + rng_real(2), 0.2 + rng_real(2), 0.2 + rng_real(2)};
        struct hdt_cluster cluster;
        struct hdt_job job = hdt_test_job();
        struct hdt_cost_inputs in = {&job, &hdt_test_model, &cluster};
        struct hdt_search_result result;
        struct hdt_error err = {0};
        double best;

        hdt_test_cluster(&cluster, 3, speeds, 1e6 * (double)(1 + rng(200)), rng_real(0.2));
        job.plan.max_stages = 2;
        cr_assert_eq(hdt_search_plan(&in, &result, &err), HDT_OK, "%s", err.msg);
        best = brute_played(&in, 3);
        worst = fmax(worst, result.plan.step_s / best);
        cr_expect_leq(result.plan.step_s, 1.03 * best, "seed %llu round %d: %g, brute force %g",
                      seed, round, result.plan.step_s, best);
        hdt_search_result_release(&result);
        hdt_cluster_release(&cluster);
    }
    printf("worst planned / best of all cuts: %.4f\n", worst);
}

/* Eight unlike workers of three sites, a codec and an order to choose: the most that the planner
 * takes. How long that takes is told by how many ends of pipelines it tried and how many plans it
 * played, on any machine: all that are within a quarter of the best would be a thousand millions.
 */
static void expect_little_work(int64_t n_layers, double rate, double rtt_s, int64_t n_tried_max)
{
    struct hdt_model_config model = hdt_test_model;
    struct hdt_cluster cluster;
    struct hdt_job job = hdt_test_job();
    struct hdt_cost_inputs in = {&job, &model, &cluster};
    struct hdt_search_result result;
    struct hdt_error err = {0};

    model.L = n_layers;
    job.plan.schedule = HDT_SCHEDULE_AUTO;
    hdt_test_cluster_unlike(&cluster, 8, rate, rtt_s);
    cr_assert_eq(hdt_search_plan(&in, &result, &err), HDT_OK, "%s", err.msg);
    printf("%ld layers, %g B/s: %ld tried, %zu judged\n", (long)n_layers, rate,
           (long)result.n_tried, result.n_judged);
    cr_expect_gt(result.n_tried, 0);
    cr_expect_leq(result.n_tried, n_tried_max, "%ld", (long)result.n_tried);
    cr_expect_leq(result.n_judged, 500u, "%zu", result.n_judged);
    hdt_search_result_release(&result);
    hdt_cluster_release(&cluster);
}

Test(search, eight_workers_and_many_layers_take_little_work)
{
    expect_little_work(62, 1.25e8, 0.01, 2000000);
    expect_little_work(62, 5e6, 0.04, 16000000);
    expect_little_work(126, 1.25e8, 0.01, 12000000);
}

Test(search, a_fast_link_balances_unlike_workers)
{
    static const double speeds[] = {1, 3};
    struct hdt_cluster cluster;
    struct hdt_job job = hdt_test_job();
    struct hdt_cost_inputs in = {&job, &hdt_test_model, &cluster};
    struct hdt_search_result result;
    struct hdt_error err = {0};
    const struct hdt_plan_stage *st;

    hdt_test_cluster(&cluster, 2, speeds, 1e9, 0.001);
    job.plan.min_stages = 2;
    cr_assert_eq(hdt_search_plan(&in, &result, &err), HDT_OK, "%s", err.msg);
    st = result.plan.stages;
    cr_assert_eq(result.plan.n_stages, 2);
    for (size_t i = 0; i < 2; i++) {
        int64_t n = st[i].unit_end - st[i].unit_begin;

        if (strcmp(result.plan.ranks[st[i].rank].site, "a") == 0) {
            cr_expect_leq(n, 3, "the slow worker has %ld of 8 units", (long)n);
        }
    }
    cr_expect(result.plan.limit[0] != '\0');
    cr_expect_gt(result.plan.wan_bytes, 0);
    hdt_search_result_release(&result);
    hdt_cluster_release(&cluster);
}

Test(search, latency_raises_the_warm_up)
{
    static const double speeds[] = {1, 1};
    struct hdt_cluster cluster;
    struct hdt_job job = hdt_test_job();
    struct hdt_cost_inputs in = {&job, &hdt_test_model, &cluster};
    struct hdt_search_result near, far;

    job.plan.min_stages = 2;
    job.batch.n_micro_batches = 32;
    hdt_test_cluster(&cluster, 2, speeds, 1e9, 0.0001);
    cr_assert_eq(hdt_search_plan(&in, &near, NULL), HDT_OK);
    hdt_cluster_release(&cluster);
    hdt_test_cluster(&cluster, 2, speeds, 1e9, 0.3);
    cr_assert_eq(hdt_search_plan(&in, &far, NULL), HDT_OK);
    cr_expect_eq(near.plan.stages[1].warmup, 0);
    cr_expect_leq(near.plan.stages[0].warmup, 2);
    /* 300 ms at a pace of some 100 ms a micro-batch. */
    cr_expect_geq(far.plan.stages[0].warmup, 4);
    /* Latency is paid once a step, not once a micro-batch. */
    cr_expect_leq(far.plan.step_s, near.plan.step_s + 3 * 0.3 + 0.05);
    hdt_search_result_release(&near);
    hdt_search_result_release(&far);
    hdt_cluster_release(&cluster);
}

Test(search, a_slow_link_is_avoided_or_named)
{
    static const double speeds[] = {1, 1};
    struct hdt_cluster cluster;
    struct hdt_job job = hdt_test_job();
    struct hdt_cost_inputs in = {&job, &hdt_test_model, &cluster};
    struct hdt_search_result result;

    hdt_test_cluster(&cluster, 2, speeds, 1e5, 0.05);
    cr_assert_eq(hdt_search_plan(&in, &result, NULL), HDT_OK);
    cr_expect_eq(result.plan.n_stages, 1);
    hdt_search_result_release(&result);
    job.plan.min_stages = 2;
    cr_assert_eq(hdt_search_plan(&in, &result, NULL), HDT_OK);
    cr_expect(strstr(result.plan.limit, "link"), "%s", result.plan.limit);
    hdt_search_result_release(&result);
    hdt_cluster_release(&cluster);
}

/* The codec of activations from site a. */
static void expect_codec(const struct hdt_cost_inputs *in, const char *to, const char *want)
{
    struct hdt_codec_spec codec =
        hdt_cost_edge_codec(in, hdt_cost_find_worker(in->cluster, "a", "w0"),
                            hdt_cost_find_worker(in->cluster, to, "w0"), false);
    char text[HDT_CODEC_SPEC_TEXT];

    cr_expect_str_eq(hdt_codec_spec_format(&codec, text), want);
}

Test(search, auto_loses_only_what_is_allowed)
{
    static const double speeds[] = {1, 1};
    struct hdt_cluster cluster;
    struct hdt_job job = hdt_test_job();
    struct hdt_cost_inputs in = {&job, &hdt_test_model, &cluster};

    hdt_test_cluster(&cluster, 2, speeds, 10e6, 0.05);
    expect_codec(&in, "b", "lossless");
    job.codec.lossy = true;
    expect_codec(&in, "b", "bf16+lossless");
    job.codec.error_budget = 0.02; /* of which int8 takes 0.007 */
    expect_codec(&in, "b", "int8+lossless");
    job.codec.error_budget = 0.004;
    expect_codec(&in, "b", "bf16+lossless");
    job.codec.error_budget = 0.0005; /* bf16 loses 0.0017 */
    expect_codec(&in, "b", "lossless");
    job.codec.activations = (char *)"int8";
    expect_codec(&in, "b", "int8");
    expect_codec(&in, "a", "none");
    hdt_cluster_release(&cluster);
    job = hdt_test_job();
    hdt_test_cluster(&cluster, 2, speeds, 5e9, 0.05);
    expect_codec(&in, "b", "none");
    hdt_cluster_release(&cluster);
}

static void refused(const struct hdt_cost_inputs *in, enum hdt_status status, const char *word)
{
    struct hdt_search_result result;
    struct hdt_error err = {0};

    cr_expect_eq(hdt_search_plan(in, &result, &err), status, "%s: %s", word, err.msg);
    cr_expect(strstr(err.msg, word), "'%s' is not in: %s", word, err.msg);
    cr_expect(err.hint[0] != '\0', "%s", err.msg);
}

/* What the codecs of stage 1 of three keep, given those of the edges before and after it. */
static uint64_t kept(const struct hdt_job *job, const char *const specs[4])
{
    const struct hdt_cost_inputs in = {job, &hdt_test_model, NULL};
    struct hdt_plan_flow flows[] = {
        {.kind = HDT_FLOW_ACTIVATION, .src_stage = 0, .dst_stage = 1},
        {.kind = HDT_FLOW_ACTIVATION_GRAD, .src_stage = 1, .dst_stage = 0},
        {.kind = HDT_FLOW_ACTIVATION, .src_stage = 1, .dst_stage = 2},
        {.kind = HDT_FLOW_ACTIVATION_GRAD, .src_stage = 2, .dst_stage = 1},
        {.kind = HDT_FLOW_LABELS, .src_stage = -1, .dst_stage = 1},
    };
    const struct hdt_plan plan = {.flows = flows, .n_flows = 5};

    for (size_t i = 0; i < 4; i++) {
        cr_assert_eq(hdt_codec_spec_parse(specs[i], &flows[i].codec, NULL), HDT_OK);
    }
    return hdt_cost_feedback_memory(&in, &plan, 1);
}

/* 8 x 128 x C values, fp32. topk keeps as many; a delta codec what both ends hold of the one
 * sample, its key and count, and as much to work in. Each is there twice (its copy for a
 * checkpoint), for activations three times where the model is evaluated on the way. An edge inside
 * a site has no codec. */
Test(search, what_codecs_keep_is_memory)
{
    struct hdt_job job = hdt_test_job();
    const uint64_t values = 4 * UINT64_C(8) * 128 * (uint64_t)hdt_test_model.C;
    char valid[] = "valid.bin";

    job.data.valid = NULL;
    cr_expect_eq(kept(&job, (const char *[]){"none", "none", "none", "none"}), 0u);
    cr_expect_eq(kept(&job, (const char *[]){"none", "none", "none", "topk:8"}), 0u, "it takes");
    cr_expect_eq(kept(&job, (const char *[]){"none", "topk:8", "none", "topk:8"}), 2 * values);
    cr_expect_eq(kept(&job, (const char *[]){"none", "none", "delta:int8", "topk:8"}),
                 2 * (2 * values + 16), "the one end that is at another site");
    cr_expect_eq(kept(&job, (const char *[]){"delta:int8", "topk:8", "delta:int8", "topk:8"}),
                 4 * (2 * values + 16) + 2 * values);
    job.data.valid = valid;
    cr_expect_eq(kept(&job, (const char *[]){"delta:int8", "topk:8", "delta:int8", "topk:8"}),
                 6 * (2 * values + 16) + 2 * values);
}

Test(search, what_does_not_fit_is_explained)
{
    static const double speeds[] = {1, 1};
    struct hdt_cluster cluster;
    struct hdt_job job = hdt_test_job();
    struct hdt_cost_inputs in = {&job, &hdt_test_model, &cluster};
    char *nobody[] = {"z/w0=8"}, *sites[] = {"q"};

    hdt_test_cluster(&cluster, 2, speeds, 1e7, 0.05);
    job.plan.min_stages = 3;
    refused(&in, HDT_EINVAL, "min_stages is 3, but only 2");
    job = hdt_test_job();
    cluster.workers[0].memory_bytes = cluster.workers[1].memory_bytes = 16 << 20;
    refused(&in, HDT_ENOMEM, "MiB too much");
    cluster.workers[0].memory_bytes = cluster.workers[1].memory_bytes = UINT64_C(8) << 30;
    cluster.workers[1].profile.valid = false;
    refused(&in, HDT_EINVAL, "b/w0 has no profile");
    cluster.workers[1].profile.valid = true;
    cluster.workers[1].profile.seq_len = 64;
    refused(&in, HDT_EINVAL, "8 x 64");
    cluster.workers[1].profile.seq_len = 128;
    job.precision = HDT_JOB_FP8;
    cluster.workers[0].fp8 = true;
    refused(&in, HDT_ENOTSUP, "b/w0 has no products of fp8");
    job.precision = HDT_JOB_FP32;
    cluster.links[0].up = false;
    job.plan.min_stages = 2;
    refused(&in, HDT_ENOENT, "it is down");
    job = hdt_test_job();
    job.plan.cut = (struct hdt_conf_strings){nobody, 1};
    refused(&in, HDT_EINVAL, "z/w0 is not there");
    job = hdt_test_job();
    job.plan.sites = (struct hdt_conf_strings){sites, 1};
    refused(&in, HDT_EINVAL, "'q'");
    job = hdt_test_job();
    cluster.workers[0].busy = cluster.workers[1].busy = true;
    refused(&in, HDT_EEXIST, "no worker is free: a/w0 and others run another job");
    hdt_cluster_release(&cluster);
}

/* A worker alone has no frames in its memory: the whole model may fit where all but its first unit
 * would not. */
Test(search, a_model_fits_where_less_of_it_does_not)
{
    static const double speeds[] = {1};
    const struct hdt_cost_memory whole = {
        .begin = 0, .end = hdt_model_n_units(&hdt_test_model), .n_slots = 1};
    struct hdt_cluster cluster;
    struct hdt_job job = hdt_test_job();
    struct hdt_cost_inputs in = {&job, &hdt_test_model, &cluster};
    struct hdt_search_result result;
    struct hdt_error err = {0};

    hdt_test_cluster(&cluster, 1, speeds, 1e7, 0.05);
    cluster.workers[0].memory_bytes = hdt_cost_stage_memory(&in, &whole);
    cr_assert_eq(hdt_search_plan(&in, &result, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(result.plan.n_stages, 1);
    hdt_search_result_release(&result);
    cluster.workers[0].memory_bytes -= 1 << 20;
    refused(&in, HDT_ENOMEM, "MiB too much");
    hdt_cluster_release(&cluster);
}

Test(search, data_stays_at_its_site)
{
    static const double speeds[] = {1, 50};
    struct hdt_cluster cluster;
    struct hdt_job job = hdt_test_job();
    struct hdt_cost_inputs in = {&job, &hdt_test_model, &cluster};
    struct hdt_search_result result;

    /* All units on the fast site: the data site still has a rank, which reads and sends. */
    hdt_test_cluster(&cluster, 2, speeds, 1e6, 0.02);
    cr_assert_eq(hdt_search_plan(&in, &result, NULL), HDT_OK);
    cr_assert_eq(result.plan.n_stages, 1);
    cr_assert_eq(result.plan.n_ranks, 2);
    cr_expect_str_eq(result.plan.ranks[result.plan.stages[0].rank].site, "b");
    cr_expect_str_eq(result.plan.ranks[result.plan.data_rank].site, "a");
    hdt_search_result_release(&result);
    hdt_cluster_release(&cluster);
}

/* ---- replicas ---- */

static void expect_outer(const struct hdt_cost_inputs *in, const struct hdt_plan *plan, double rate,
                         double rtt)
{
    struct hdt_cost_outer outer;
    struct hdt_error err = {0};
    double bytes = 4.0 * (double)hdt_model_n_params(in->model);

    cr_assert_eq(hdt_cost_outer(in, plan, &outer, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(outer.n_links, 2);
    cr_expect_eq(outer.steps, in->job->outer.steps);
    /* The whole model once each way, plain float32. */
    cr_expect_float_eq(outer.bytes, 2 * bytes, 1e-6 * bytes, "%g, not %g", outer.bytes, 2 * bytes);
    cr_expect_float_eq(outer.step_s, bytes / rate + 1.5 * rtt, 0.02 * bytes / rate, "%g, not %g",
                       outer.step_s, bytes / rate + 1.5 * rtt);
    hdt_cost_outer_release(&outer);
}

Test(search, slow_links_are_for_replicas)
{
    static const double speeds[] = {1, 2};
    char none[] = "none";
    struct hdt_job job = hdt_test_job();
    struct hdt_cluster cluster;
    struct hdt_cost_inputs in = {&job, &hdt_test_model, &cluster};
    struct hdt_search_result r;
    struct hdt_error err = {0};
    double alone_s;

    /* 10 Mbit/s: activations of 16 micro-batches take far longer than all arithmetic. */
    hdt_test_cluster(&cluster, 2, speeds, 1.25e6, 0.05);
    cr_assert_eq(hdt_search_plan(&in, &r, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(r.plan.n_replicas, 1);
    alone_s = r.plan.step_s;
    hdt_search_result_release(&r);
    job.outer.steps = 500;
    job.outer.codec = none;
    cr_assert_eq(hdt_search_plan(&in, &r, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(r.plan.n_replicas, 2);
    cr_assert_eq(r.plan.n_stages, 2);
    cr_expect_eq(r.plan.stages[0].n_micro_batches + r.plan.stages[1].n_micro_batches, 16);
    cr_expect_geq(r.plan.stages[1].n_micro_batches, 10, "twice as fast, twice as much: %lld",
                  (long long)r.plan.stages[1].n_micro_batches);
    cr_expect_lt(r.plan.step_s, alone_s);
    cr_expect_eq(r.second_plan.n_replicas, 1, "the pipeline is the runner-up");
    expect_outer(&in, &r.plan, 1.25e6, 0.05);
    /* The second replica keeps a copy of its moments, 8 bytes a weight, for checkpoints. */
    cr_expect_eq(hdt_cost_outer_memory(&in, &r.plan, 1) - hdt_cost_outer_memory(&in, &r.plan, 0),
                 8 * (uint64_t)hdt_model_n_params(in.model));
    /* A step costs its own time and its share of an outer step. */
    double own_s = 0;
    for (int i = 0; i < 2; i++) {
        const struct hdt_plan_stage *s = &r.plan.stages[i];
        own_s = fmax(own_s, (double)s->n_micro_batches * (s->fwd_s + s->bwd_s));
    }
    cr_expect_float_eq(r.plan.step_s - r.cost.outer_s, own_s, 0.05 * own_s, "%g + %g, not %g",
                       r.plan.step_s - r.cost.outer_s, r.cost.outer_s, own_s);
    hdt_search_result_release(&r);
    hdt_cluster_release(&cluster);
}

/* The stages of all replicas count, and what limits a step is named. */
Test(search, stages_of_replicas_count_together)
{
    static const double speeds[] = {1, 1};
    char none[] = "none";
    struct hdt_job job = hdt_test_job();
    struct hdt_cluster cluster;
    struct hdt_cost_inputs in = {&job, &hdt_test_model, &cluster};
    struct hdt_search_result r;
    struct hdt_error err = {0};
    double outer_s, own_s;

    hdt_test_cluster(&cluster, 2, speeds, 1.25e6, 0.05);
    job.outer.steps = 500;
    job.outer.codec = none;
    job.plan.min_stages = 2;
    cr_assert_eq(hdt_search_plan(&in, &r, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(r.plan.n_replicas, 2);
    cr_expect(strstr(r.plan.limit, "compute of "), "%s", r.plan.limit);
    outer_s = r.cost.outer_s * 500;
    own_s = r.plan.step_s - r.cost.outer_s;
    hdt_search_result_release(&r);
    /* Two fifths of the time. */
    job.outer.steps = (int64_t)ceil(outer_s / (own_s * 2 / 3));
    cr_assert_eq(hdt_search_plan(&in, &r, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(r.plan.n_replicas, 2);
    cr_expect(strstr(r.plan.limit, "outer steps, 39 % of the time") ||
                  strstr(r.plan.limit, "outer steps, 40 % of the time"),
              "%s", r.plan.limit);
    hdt_search_result_release(&r);
    job.plan.min_stages = 3;
    cr_expect_eq(hdt_search_plan(&in, &r, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "plan.min_stages is 3"), "%s", err.msg);
    hdt_cluster_release(&cluster);
}

/* The first stage has most to do, and nothing makes it wait but the first gradient: with enough
 * forwards ahead it always computes, also where the round trip is a part of a micro-batch, and
 * where two links want eleven more each. */
Test(search, forwards_ahead_cover_the_beginning_of_a_step)
{
    struct {
        size_t n_stages;
        double speeds[3];
        char *cut[3];
        double rate, rtt_s;
        int64_t n_mb;
    } cases[] = {
        {2, {1, 1, 1}, {"a/w0=5", "b/w0=3"}, 1.25e9, 0.02, 16},
        {2, {1, 1, 1}, {"a/w0=5", "b/w0=3"}, 1.25e9, 0.06, 16},
        {2, {1, 1, 1}, {"a/w0=5", "b/w0=3"}, 1.25e9, 0.2, 16},
        {3, {1.83, 1.81, 1.232}, {"a/w0=4", "b/w0=2", "c/w0=2"}, 62e6, 0.235, 38},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hdt_job job = hdt_test_job();
        struct hdt_cluster cluster;
        struct hdt_cost_inputs in = {&job, &hdt_test_model, &cluster};
        struct hdt_search_result r;
        struct hdt_error err = {0};
        double least_s;

        hdt_test_cluster(&cluster, 3, cases[i].speeds, cases[i].rate, cases[i].rtt_s);
        job.plan.schedule = HDT_SCHEDULE_WAN;
        job.plan.cut.items = cases[i].cut;
        job.plan.cut.n = cases[i].n_stages;
        job.batch.n_micro_batches = cases[i].n_mb;
        cr_assert_eq(hdt_search_plan(&in, &r, &err), HDT_OK, "%s", err.msg);
        least_s = (double)cases[i].n_mb * (r.plan.stages[0].fwd_s + r.plan.stages[0].bwd_s);
        cr_expect_leq(r.plan.step_s, 1.02 * least_s, "case %zu: %g s, not %g, %ld ahead", i,
                      r.plan.step_s, least_s, (long)r.plan.stages[0].warmup);
        hdt_search_result_release(&r);
        hdt_cluster_release(&cluster);
    }
}

/* Of replicas with parts as the job has them, too, the schedule is that of the one with stages. */
Test(search, a_schedule_is_that_of_a_replica_with_stages)
{
    static const double speeds[] = {1, 1, 1};
    char *cut[] = {"a/w0=4", "b/w0=4", "c/w0=8"};
    struct hdt_job job = hdt_test_job();
    struct hdt_cluster cluster;
    struct hdt_cost_inputs in = {&job, &hdt_test_model, &cluster};
    struct hdt_search_result r;
    struct hdt_error err = {0};
    enum hdt_schedule_kind alone;
    int64_t warmup;

    hdt_test_cluster(&cluster, 3, speeds, 1.25e9, 0.3);
    job.plan.schedule = HDT_SCHEDULE_AUTO;
    job.plan.cut.items = cut;
    job.plan.cut.n = 2;
    job.batch.n_micro_batches = 8;
    cr_assert_eq(hdt_search_plan(&in, &r, &err), HDT_OK, "%s", err.msg);
    alone = r.plan.schedule;
    warmup = r.plan.stages[0].warmup;
    cr_expect_neq(alone, HDT_SCHEDULE_1F1B);
    hdt_search_result_release(&r);
    job.plan.cut.n = 3;
    job.batch.n_micro_batches = 16;
    job.outer.steps = 10;
    job.outer.parts.items = (char *[]){"8", "8"};
    job.outer.parts.n = 2;
    cr_assert_eq(hdt_search_plan(&in, &r, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(r.plan.n_replicas, 2);
    cr_expect_eq(r.plan.stages[0].n_micro_batches, 8);
    cr_expect_eq(r.plan.schedule, alone, "%s, not %s", hdt_schedule_names[r.plan.schedule],
                 hdt_schedule_names[alone]);
    cr_expect_eq(r.plan.stages[0].warmup, warmup);
    hdt_search_result_release(&r);
    hdt_cluster_release(&cluster);
}

Test(search, fast_links_are_for_one_pipeline)
{
    static const double speeds[] = {1, 1};
    struct hdt_job job = hdt_test_job();
    struct hdt_cluster cluster;
    struct hdt_cost_inputs in = {&job, &hdt_test_model, &cluster};
    struct hdt_search_result r;
    struct hdt_error err = {0};

    /* Every step outer, and memory for half a model only. */
    hdt_test_cluster(&cluster, 2, speeds, 1.25e9, 0.0002);
    job.outer.steps = 1;
    for (size_t i = 0; i < cluster.n_workers; i++) {
        const struct hdt_cost_memory whole = {
            .begin = 0, .end = hdt_model_n_units(&hdt_test_model), .n_slots = 1};

        cluster.workers[i].memory_bytes = hdt_cost_stage_memory(&in, &whole) * 3 / 4;
    }
    cr_assert_eq(hdt_search_plan(&in, &r, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(r.plan.n_replicas, 1);
    cr_expect_eq(r.plan.n_stages, 2);
    hdt_search_result_release(&r);
    hdt_cluster_release(&cluster);
}

Test(search, a_cut_may_be_of_replicas)
{
    static const double speeds[] = {1, 1, 2};
    char *cut[] = {"a/w0=4", "b/w0=4", "c/w0=8"};
    struct hdt_job job = hdt_test_job();
    struct hdt_cluster cluster;
    struct hdt_cost_inputs in = {&job, &hdt_test_model, &cluster};
    struct hdt_search_result r;
    struct hdt_error err = {0};

    hdt_test_cluster(&cluster, 3, speeds, 12.5e6, 0.02);
    job.outer.steps = 10;
    job.plan.cut.items = cut;
    job.plan.cut.n = 3;
    cr_assert_eq(hdt_search_plan(&in, &r, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(r.plan.n_replicas, 2);
    cr_assert_eq(r.plan.n_stages, 3);
    cr_expect_eq(r.plan.stages[1].replica, 0);
    cr_expect_eq(r.plan.stages[1].pos, 1);
    cr_expect_eq(r.plan.stages[2].replica, 1);
    cr_expect_eq(r.plan.stages[2].pos, 0);
    cr_expect_eq(r.plan.stages[0].n_micro_batches, r.plan.stages[1].n_micro_batches);
    hdt_search_result_release(&r);
    job.outer.parts.items = (char *[]){"11", "5"};
    job.outer.parts.n = 2;
    cr_assert_eq(hdt_search_plan(&in, &r, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(r.plan.stages[0].n_micro_batches, 11);
    cr_expect_eq(r.plan.stages[2].n_micro_batches, 5);
    hdt_search_result_release(&r);
    job.data.site = (char[]){"c"};
    cr_expect_eq(hdt_search_plan(&in, &r, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "it must be the first"), "%s", err.msg);
    job.data.site = (char[]){"a"};
    cut[2] = (char[]){"a/w0=8"};
    cr_expect_eq(hdt_search_plan(&in, &r, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "the same device a/w0"), "%s", err.msg);
    cr_expect(strstr(err.hint, "one replica"), "%s", err.hint);
    hdt_cluster_release(&cluster);
}
