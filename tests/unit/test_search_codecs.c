/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * The planner's choice of codecs over random clusters: against plans whose codec the job names, by
 * the simulator; and the choice in the run (compress/adapt.h) with the same figures.
 */
#include "compress/adapt.h"
#include "compress/ladder.h"
#include "src/plan/search.h"
#include "tests/support/plan_cluster.h"
#include "tests/support/rng.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Between the two, as likely in each decade. */
static double rng_between(double least, double most)
{
    return least * pow(most / least, (double)rng(1001) / 1000.0);
}

/* ---- clusters ---- */

/* Gateways as measured ones are: 0.1 to 3 ns a byte. Some share their worker's processors. */
static void site_random(struct hdt_cluster *cluster, size_t i)
{
    struct hdt_cluster_gateway *g = &cluster->sites[i].gateway;
    struct hdt_cluster_worker *w = &cluster->workers[i];

    g->send_s_per_byte = rng_between(1e-10, 3e-9);
    g->recv_s_per_byte = rng_between(1e-10, 3e-9);
    g->frame_s = rng_between(2e-5, 5e-4);
    g->encode_bytes_per_s = rng_between(100e6, 1e9);
    g->decode_bytes_per_s = 2 * g->encode_bytes_per_s;
    w->profile.cast_bytes_per_s = rng_between(5e8, 1e10);
    w->profile.block_bwd_input_s = 0.55 * w->profile.block_bwd_s;
    w->profile.block_bwd_weight_s = 0.45 * w->profile.block_bwd_s;
    if (rng(3) > 0) {
        snprintf(g->host, HDT_HOST_CAP, "host%zu", i);
        snprintf(w->profile.host, HDT_HOST_CAP, "host%zu", i);
        snprintf(g->cpus, HDT_CPUS_CAP, "0");
        snprintf(w->profile.cpus, HDT_CPUS_CAP, rng(3) > 0 ? "0" : "0-1");
    }
}

static void cluster_random(struct hdt_cluster *cluster, int n)
{
    double speeds[4];

    for (int i = 0; i < n; i++) {
        speeds[i] = rng_between(0.3, 30);
    }
    hdt_test_cluster(cluster, n, speeds, 1e8, rng_between(1e-4, 0.1));
    for (int i = 0; i < n; i++) {
        site_random(cluster, (size_t)i);
    }
    for (size_t i = 0; i < cluster->n_links; i++) {
        cluster->links[i].rate_bytes_per_s = rng_between(1e6, 1.25e9);
        cluster->links[i].lossless_ratio = rng(2) ? rng_between(1.05, 1.5) : 0;
    }
}

static struct hdt_job job_random(int n_sites)
{
    static const int schedules[] = {HDT_SCHEDULE_WAN, HDT_SCHEDULE_1F1B, HDT_SCHEDULE_ZB_H1,
                                    HDT_SCHEDULE_GPIPE};
    static const double budgets[] = {0, 0.0005, 0.004, 0.02};
    struct hdt_job job = hdt_test_job();

    job.plan.schedule = schedules[rng(4)];
    job.plan.min_stages = 2 + (int64_t)rng((uint64_t)n_sites - 1);
    job.batch.n_micro_batches = 4 << rng(3);
    job.codec.lossy = rng(4) > 0;
    job.codec.error_budget = budgets[rng(4)];
    return job;
}

static double plan_step_s(const struct hdt_cost_inputs *in)
{
    struct hdt_search_result result;
    struct hdt_error err = {0};
    double step_s;

    cr_assert_eq(hdt_search_plan(in, &result, &err), HDT_OK, "%s", err.msg);
    step_s = result.plan.step_s;
    hdt_search_result_release(&result);
    return step_s;
}

/* ---- the search ---- */

/* Of each codec that the job allows, for all edges, the planner's best plan: none is better than
 * that of "auto" by more than the search gives away, nor one by two codecs, there and back. */
Test(search_codecs, no_codec_by_name_is_better)
{
    const uint64_t seed = 20150;

    rng_state = seed;
    for (int round = 0; round < 60; round++) {
        const int n_sites = 2 + (int)rng(2);
        struct hdt_cluster cluster;
        struct hdt_job job = job_random(n_sites);
        const struct hdt_cost_inputs in = {&job, &hdt_test_model, &cluster};
        const struct hdt_codec_spec *choices;
        char there[HDT_CODEC_SPEC_TEXT], back[HDT_CODEC_SPEC_TEXT];
        double chosen_s;
        size_t n;

        cluster_random(&cluster, n_sites);
        choices = hdt_cost_codecs(&job, &n);
        chosen_s = plan_step_s(&in);
        for (size_t i = 0; i <= n; i++) {
            const size_t a = i < n ? i : rng(n), b = i < n ? i : rng(n);
            double by_name_s;

            hdt_codec_spec_format(&choices[a], there);
            hdt_codec_spec_format(&choices[b], back);
            job.codec.activations = there;
            job.codec.activation_grads = back;
            by_name_s = plan_step_s(&in);
            cr_expect(chosen_s <= by_name_s / (1 - HDT_SEARCH_CODEC_GAIN) * (1 + 1e-9),
                      "seed %llu, round %d, %d sites: %s and %s %.6g s, chosen %.6g s",
                      (unsigned long long)seed, round, n_sites, there, back, by_name_s, chosen_s);
        }
        job.codec.activations = job.codec.activation_grads = NULL;
        hdt_cluster_release(&cluster);
    }
}

/* ---- the choice in the run ---- */

static const struct hdt_cluster_worker *rank_worker(const struct hdt_cost_inputs *in,
                                                    const struct hdt_plan *plan, int rank)
{
    return hdt_cost_find_worker(in->cluster, plan->ranks[rank].site, plan->ranks[rank].worker);
}

static bool is_edge(const struct hdt_plan_flow *f)
{
    return f->kind == HDT_FLOW_ACTIVATION || f->kind == HDT_FLOW_ACTIVATION_GRAD;
}

static double n_values(const struct hdt_cost_inputs *in)
{
    return (double)in->job->batch.micro_batch * (double)in->job->batch.seq_len *
           (double)in->model->C;
}

static void transfer_of(const struct hdt_cost_inputs *in, const struct hdt_plan *plan,
                        const struct hdt_plan_flow *f, const struct hdt_codec_spec *codec,
                        struct hdt_cost_transfer *t)
{
    cr_assert_eq(hdt_cost_transfer(in, plan->ranks[f->src_rank].site, plan->ranks[f->dst_rank].site,
                                   codec, n_values(in), t, NULL),
                 HDT_OK);
}

/* What a rank is busy with beside a frame of `but`: arithmetic, its ops, and the other flows. */
static double busy_s(const struct hdt_cost_inputs *in, const struct hdt_plan *plan, int rank,
                     const struct hdt_plan_flow *but)
{
    const struct hdt_cluster_worker *w = rank_worker(in, plan, rank);
    const double share = plan->ranks[rank].gateway_share;
    double sum = 6 * w->profile.op_overhead_s;

    for (size_t i = 0; i < plan->n_stages; i++) {
        sum += plan->stages[i].rank == rank ? plan->stages[i].fwd_s + plan->stages[i].bwd_s : 0;
    }
    for (size_t i = 0; i < plan->n_flows; i++) {
        const struct hdt_plan_flow *f = &plan->flows[i];
        struct hdt_cost_transfer t;

        if (f == but || !is_edge(f) || (f->src_rank != rank && f->dst_rank != rank)) {
            continue;
        }
        transfer_of(in, plan, f, &f->codec, &t);
        sum += hdt_cost_cast(&w->profile, &f->codec, n_values(in)) +
               share * (f->src_rank == rank ? t.src_cpu_s : t.dst_cpu_s);
    }
    return sum;
}

static struct hdt_adapt_candidate candidate_of(const struct hdt_cost_inputs *in,
                                               const struct hdt_plan *plan,
                                               const struct hdt_plan_flow *f,
                                               const struct hdt_codec_spec *codec)
{
    const struct hdt_cluster *c = in->cluster;
    const struct hdt_cluster_worker *src = rank_worker(in, plan, f->src_rank);
    const struct hdt_cluster_worker *dst = rank_worker(in, plan, f->dst_rank);
    struct hdt_adapt_candidate out = {
        .spec = *codec, .frame_bytes = 0, .gw_ratio = 1, .error = hdt_codec_expected_error(codec)};
    struct hdt_cost_transfer t;

    transfer_of(in, plan, f, codec, &t);
    out.frame_bytes = t.frame_bytes;
    if (codec->worker != HDT_CODEC_NONE) {
        out.encode_bytes_per_s = src->profile.cast_bytes_per_s;
        out.decode_bytes_per_s = dst->profile.cast_bytes_per_s;
    }
    if (codec->gateway != HDT_CODEC_NONE) {
        out.gw_ratio = t.frame_bytes / t.wire_bytes;
        out.gw_encode_bytes_per_s = hdt_cluster_find_site(c, src->site)->gateway.encode_bytes_per_s;
        out.gw_decode_bytes_per_s = hdt_cluster_find_site(c, dst->site)->gateway.decode_bytes_per_s;
    }
    return out;
}

/* The flow's codec as its sender would choose it, from what the planner knows. False: it stays. */
static bool flow_chooses(const struct hdt_cost_inputs *in, struct hdt_plan *plan,
                         struct hdt_plan_flow *f)
{
    const struct hdt_cluster *c = in->cluster;
    const struct hdt_plan_rank *src = &plan->ranks[f->src_rank], *dst = &plan->ranks[f->dst_rank];
    const struct hdt_cluster_link *link = hdt_cluster_find_link(c, src->site, dst->site);
    const size_t behind = (size_t)(f->src_stage > f->dst_stage ? f->src_stage : f->dst_stage);
    struct hdt_adapt_candidate candidates[HDT_ADAPT_MAX];
    struct hdt_adapt_table table;
    size_t n_codecs;
    const struct hdt_codec_spec *codecs = hdt_cost_codecs(in->job, &n_codecs);
    struct hdt_adapt_input a = {
        .goodput_bytes_per_s = link->rate_bytes_per_s,
        .rtt_s = link->rtt_s,
        .tensor_bytes = 4 * n_values(in),
        .n_frames = (double)plan->n_micro_batches,
        .src_busy_s = busy_s(in, plan, f->src_rank, f),
        .dst_busy_s = busy_s(in, plan, f->dst_rank, f),
        .src_share = src->gateway_share,
        .dst_share = dst->gateway_share,
        .send_s_per_byte = hdt_cluster_find_site(c, src->site)->gateway.send_s_per_byte,
        .recv_s_per_byte = hdt_cluster_find_site(c, dst->site)->gateway.recv_s_per_byte,
        .in_flight = (double)plan->stages[behind - 1].warmup + 1,
        .error_budget = 1,
        .least_gain = HDT_ADAPT_LEAST_GAIN / 2,
        .exact_cost = HDT_ADAPT_EXACT_COST / 2,
        .measured_us = 1,
        .fresh_us = 1,
        .now_us = 1,
        .current = -1,
        .candidates = candidates};

    for (size_t k = behind + 1; k < plan->n_stages; k++) {
        a.beyond_s += plan->stages[k].fwd_s + plan->stages[k].bwd_s;
    }
    for (size_t i = 0; i < n_codecs; i++) {
        if (codecs[i].gateway == f->codec.gateway) {
            a.current = codecs[i].worker == f->codec.worker ? (int)a.n : a.current;
            candidates[a.n++] = candidate_of(in, plan, f, &codecs[i]);
        }
    }
    hdt_adapt_choose(&a, &table);
    f->codec = candidates[table.chosen].spec;
    return table.chosen != a.current;
}

static double played_s(const struct hdt_cost_inputs *in, const struct hdt_plan *plan)
{
    struct hdt_cost cost;
    struct hdt_error err = {0};
    double step_s;

    cr_assert_eq(hdt_cost_play(in, plan, false, &cost, &err), HDT_OK, "%s", err.msg);
    step_s = cost.step_s;
    hdt_cost_release(&cost);
    return step_s;
}

/* The least of all pairs of codecs there and back, with the planned gateway codecs. */
static double best_pair_s(const struct hdt_cost_inputs *in, struct hdt_plan *plan,
                          struct hdt_plan_flow *there, struct hdt_plan_flow *back,
                          struct hdt_codec_spec best[2])
{
    const struct hdt_codec_spec was[2] = {there->codec, back->codec};
    size_t n;
    const struct hdt_codec_spec *codecs = hdt_cost_codecs(in->job, &n);
    double best_s = INFINITY;

    for (size_t i = 0; i < n * n; i++) {
        const struct hdt_codec_spec *a = &codecs[i / n], *b = &codecs[i % n];
        double step_s;

        if (a->gateway != was[0].gateway || b->gateway != was[1].gateway) {
            continue;
        }
        there->codec = *a;
        back->codec = *b;
        step_s = played_s(in, plan);
        if (step_s < best_s) {
            best_s = step_s;
            best[0] = *a;
            best[1] = *b;
        }
    }
    there->codec = was[0];
    back->codec = was[1];
    return best_s;
}

static struct hdt_plan_flow *flow_of(struct hdt_plan *plan, enum hdt_flow_kind kind)
{
    for (size_t i = 0; i < plan->n_flows; i++) {
        if (plan->flows[i].kind == kind) {
            return &plan->flows[i];
        }
    }
    cr_assert_fail("no such flow");
    return NULL;
}

/* A job is planned; then its link has another rate, and both ends choose in turn. */
static double round_play(int round, uint64_t seed)
{
    struct hdt_cluster cluster;
    struct hdt_job job = job_random(2);
    const struct hdt_cost_inputs in = {&job, &hdt_test_model, &cluster};
    struct hdt_search_result result;
    struct hdt_plan_flow *flows[2];
    struct hdt_codec_spec best[2] = {{0}};
    char text[4][HDT_CODEC_SPEC_TEXT];
    double chosen_s, best_s;
    bool moved = true;

    job.plan.schedule = rng(2) ? HDT_SCHEDULE_WAN : HDT_SCHEDULE_1F1B;
    job.codec.lossy = true;
    job.codec.error_budget = 0.02;
    cluster_random(&cluster, 2);
    cr_assert_eq(hdt_search_plan(&in, &result, NULL), HDT_OK);
    cluster.links[0].rate_bytes_per_s = cluster.links[1].rate_bytes_per_s =
        rng_between(1e6, 1.25e9);
    flows[0] = flow_of(&result.plan, HDT_FLOW_ACTIVATION);
    flows[1] = flow_of(&result.plan, HDT_FLOW_ACTIVATION_GRAD);
    for (int i = 0; i < 8 && moved; i++) {
        moved = flow_chooses(&in, &result.plan, flows[0]);
        moved = flow_chooses(&in, &result.plan, flows[1]) || moved;
    }
    chosen_s = played_s(&in, &result.plan);
    best_s = best_pair_s(&in, &result.plan, flows[0], flows[1], best);
    if (chosen_s > 1.02 * best_s) {
        printf("seed %llu, round %d: %s and %s %.4g s, best %s and %s %.4g s: %.3f\n",
               (unsigned long long)seed, round, hdt_codec_spec_format(&flows[0]->codec, text[0]),
               hdt_codec_spec_format(&flows[1]->codec, text[1]), chosen_s,
               hdt_codec_spec_format(&best[0], text[2]), hdt_codec_spec_format(&best[1], text[3]),
               best_s, chosen_s / best_s);
    }
    hdt_search_result_release(&result);
    hdt_cluster_release(&cluster);
    return chosen_s / best_s;
}

#define N_ROUNDS 200

Test(search_codecs, the_choice_in_the_run_is_the_simulators)
{
    const uint64_t seed = 20151;
    double worst = 0, sum = 0;

    rng_state = seed;
    for (int round = 0; round < N_ROUNDS; round++) {
        const double ratio = round_play(round, seed);

        worst = ratio > worst ? ratio : worst;
        sum += ratio;
    }
    printf("seed %llu: %.4f times the best on average, %.3f at worst\n", (unsigned long long)seed,
           sum / N_ROUNDS, worst);
    cr_expect_leq(worst, 1 + HDT_ADAPT_LEAST_GAIN, "%g", worst);
    cr_expect_leq(sum / N_ROUNDS, 1.005, "%g on average", sum / N_ROUNDS);
}
