/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * A plan is made with one cluster and "run" under another, the true one, by playing it there: what
 * the drift code sees is that run's busy times and step time, and it must find the true cluster
 * and the plan that the search finds when it is told the truth.
 */
#include "src/plan/drift.h"
#include "tests/support/plan_cluster.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct rig {
    struct hdt_job job;
    struct hdt_cluster planned, truth;
    struct hdt_cost_inputs in; /* as planned */
    struct hdt_search_result present;
    struct hdt_drift_rank ranks[8];
    struct hdt_drift_link links[2];
    struct hdt_drift_measured measured;
    struct hdt_drift_limits limits;
    struct hdt_drift_verdict v;
};

/* Plan for workers of `speeds` and links as given; the truth is the same until a test changes it.
 */
static void rig_plan(struct rig *rig, int n, const double *speeds, double rate, double rtt)
{
    struct hdt_error err = {0};

    rig->in = (struct hdt_cost_inputs){&rig->job, &hdt_test_model, &rig->planned};
    rig->limits = (struct hdt_drift_limits){
        .drift = 0.15, .gain = 0.05, .min_steps = 10, .steps_left = 10000, .restart_s = 20};
    hdt_test_cluster(&rig->planned, n, speeds, rate, rtt);
    hdt_test_cluster(&rig->truth, n, speeds, rate, rtt);
    cr_assert_eq(hdt_search_plan(&rig->in, &rig->present, &err), HDT_OK, "%s", err.msg);
}

static void rig_init(struct rig *rig)
{
    memset(rig, 0, sizeof(*rig));
    rig->job = hdt_test_job();
    rig->job.plan.min_stages = 2;
}

/* What a run of the present plan under the truth reports. */
static void rig_measure(struct rig *rig)
{
    struct hdt_cost_inputs truth = {&rig->job, &hdt_test_model, &rig->truth};
    struct hdt_cost cost;

    cr_assert_eq(hdt_cost_play(&truth, &rig->present.plan, false, &cost, NULL), HDT_OK);
    cr_assert_leq(cost.n_ranks, 8);
    for (size_t i = 0; i < cost.n_ranks; i++) {
        rig->ranks[i] = (struct hdt_drift_rank){cost.rank_busy_s[i], 12};
    }
    rig->measured = (struct hdt_drift_measured){.step_s = cost.step_s,
                                                .n_steps = 12,
                                                .ranks = rig->ranks,
                                                .n_ranks = cost.n_ranks,
                                                .links = rig->links,
                                                .n_links = rig->measured.n_links};
    hdt_cost_release(&cost);
}

static void rig_judge(struct rig *rig)
{
    struct hdt_error err = {0};

    rig_measure(rig);
    cr_assert_eq(
        hdt_drift_judge(&rig->in, &rig->present.plan, &rig->measured, &rig->limits, &rig->v, &err),
        HDT_OK, "%s", err.msg);
    printf("%s\n", rig->v.reason);
}

static void rig_release(struct rig *rig)
{
    hdt_drift_verdict_release(&rig->v);
    hdt_search_result_release(&rig->present);
    hdt_cluster_release(&rig->planned);
    hdt_cluster_release(&rig->truth);
}

static void speed_set(struct hdt_cluster *cluster, int worker, double speed)
{
    struct hdt_cluster one = {0};

    hdt_test_cluster_add_worker(&one, "a", "w0", speed);
    cluster->workers[worker].profile = one.workers[0].profile;
    /* The fixed cost of an op and the casts are the machine's, too. */
    cluster->workers[worker].profile.op_overhead_s /= speed;
    cluster->workers[worker].profile.cast_bytes_per_s *= speed;
    hdt_cluster_release(&one);
}

/* The best plan of somebody who knows the truth. */
static double truth_best(const struct rig *rig)
{
    struct hdt_cost_inputs truth = {&rig->job, &hdt_test_model, &rig->truth};
    struct hdt_search_result best;
    double step_s;

    cr_assert_eq(hdt_search_plan(&truth, &best, NULL), HDT_OK);
    step_s = best.plan.step_s;
    hdt_search_result_release(&best);
    return step_s;
}

static int64_t units_of(const struct hdt_plan *plan, const char *site)
{
    int64_t n = 0;

    for (size_t i = 0; i < plan->n_stages; i++) {
        const struct hdt_plan_stage *s = &plan->stages[i];

        n += strcmp(plan->ranks[s->rank].site, site) == 0 ? s->unit_end - s->unit_begin : 0;
    }
    return n;
}

/* Each gateway computes on the one processor of its worker, 2 ms for a frame. */
static void gateways_share(struct hdt_cluster *cluster)
{
    for (size_t i = 0; i < cluster->n_sites; i++) {
        struct hdt_cluster_gateway *gateway = &cluster->sites[i].gateway;
        struct hdt_profile *profile = &cluster->workers[i].profile;

        gateway->frame_s = 0.002;
        snprintf(gateway->host, sizeof(gateway->host), "host-%zu", i);
        snprintf(gateway->cpus, sizeof(gateway->cpus), "0");
        snprintf(profile->host, sizeof(profile->host), "host-%zu", i);
        snprintf(profile->cpus, sizeof(profile->cpus), "0");
    }
}

/* All is as planned, and is judged since a worker joined, say. */
Test(drift, what_gateways_take_is_no_slowness_of_workers)
{
    static const double speeds[] = {1, 1};
    struct rig rig;

    rig_init(&rig);
    rig_plan(&rig, 2, speeds, 1e9, 0.001);
    gateways_share(&rig.planned);
    hdt_search_result_release(&rig.present);
    cr_assert_eq(hdt_search_plan(&rig.in, &rig.present, NULL), HDT_OK);
    cr_assert_gt(rig.present.plan.ranks[0].held_s, 0.01);
    cr_expect_eq(rig.present.plan.ranks[0].gateway_share, 1, "one processor for both");
    gateways_share(&rig.truth);
    rig.limits.drift = -1;
    rig_judge(&rig);
    cr_assert(rig.v.drifted);
    for (size_t i = 0; i < rig.v.cluster.n_workers; i++) {
        const struct hdt_cluster_site *site = &rig.v.cluster.sites[i];

        cr_expect_float_eq(rig.v.cluster.workers[i].profile.block_fwd_s, 0.010, 1e-9, "%s: %g",
                           site->name, rig.v.cluster.workers[i].profile.block_fwd_s);
        cr_expect_eq(site->gateway.frame_s, 0.002, "what it costs is known as before");
    }
    cr_expect_float_eq(rig.v.present_step_s, rig.present.plan.step_s, 1e-9);
    rig_release(&rig);
}

/* Quotas fill while workers wait, so that ops take a fifth less than without waits: it is no speed
 * that a plan could count on. What takes longer does so for other reasons. */
Test(drift, a_quota_that_filled_makes_no_faster_device)
{
    static const double speeds[] = {1, 1};
    struct rig rig;

    rig_init(&rig);
    rig_plan(&rig, 2, speeds, 1e9, 0.001);
    rig.planned.workers[0].profile.quota_cpus = 0.4;
    rig.planned.workers[1].profile.quota_cpus = 0.4;
    speed_set(&rig.truth, 0, 1 / 0.8);
    speed_set(&rig.truth, 1, 1 / 1.5);
    rig.limits.drift = -1;
    rig_judge(&rig);
    cr_assert(rig.v.drifted);
    cr_expect_float_eq(rig.v.cluster.workers[0].profile.block_fwd_s, 0.010, 1e-9);
    cr_expect_float_eq(rig.v.cluster.workers[1].profile.block_fwd_s, 0.015, 1e-6);
    rig_release(&rig);
}

/* Both workers of the plan take a tenth longer: so do profiles of others, but for one that its own
 * runs have corrected. */
Test(drift, a_profile_that_runs_corrected_is_not_corrected_again)
{
    static const double speeds[] = {1, 1, 0.5, 0.5};
    struct rig rig;

    rig_init(&rig);
    rig.job.plan.max_stages = 2;
    rig_plan(&rig, 4, speeds, 1e9, 0.001);
    cr_assert_eq(rig.present.plan.n_ranks, 2);
    hdt_profile_scale(&rig.planned.workers[3].profile, 1.1);
    speed_set(&rig.truth, 0, 1 / 1.1);
    speed_set(&rig.truth, 1, 1 / 1.1);
    rig.limits.drift = -1;
    rig_judge(&rig);
    cr_assert(rig.v.drifted);
    cr_expect_float_eq(rig.v.cluster.workers[0].profile.block_fwd_s, 0.011, 1e-6);
    cr_expect_float_eq(rig.v.cluster.workers[2].profile.block_fwd_s, 0.022, 1e-4);
    cr_expect_float_eq(rig.v.cluster.workers[3].profile.block_fwd_s, 0.022, 1e-9);
    rig_release(&rig);
}

/* A judgement that found nothing to share (a worker joined, say) is no correction by a run: what
 * all ranks share later is believed of the others too. */
Test(drift, a_judgement_is_no_run_of_the_idle)
{
    static const double speeds[] = {1, 1, 0.5, 0.5};
    struct rig rig;
    struct hdt_drift_verdict first;

    rig_init(&rig);
    rig.job.plan.max_stages = 2;
    rig_plan(&rig, 4, speeds, 1e9, 0.001);
    rig.limits.drift = -1;
    rig_judge(&rig);
    cr_assert(rig.v.drifted);
    first = rig.v;
    memset(&rig.v, 0, sizeof(rig.v));
    rig.in.cluster = &first.cluster;
    rig.present.plan.step_s = first.present_step_s;
    speed_set(&rig.truth, 0, 1 / 1.5);
    speed_set(&rig.truth, 1, 1 / 1.5);
    rig_judge(&rig);
    cr_assert(rig.v.drifted);
    cr_expect_float_eq(rig.v.cluster.workers[0].profile.block_fwd_s, 0.015, 1e-6);
    cr_expect_float_eq(rig.v.cluster.workers[2].profile.block_fwd_s, 0.030, 1e-3);
    rig.in.cluster = &rig.planned;
    hdt_drift_verdict_release(&first);
    rig_release(&rig);
}

Test(drift, a_worker_twice_as_slow_gives_units_away)
{
    static const double speeds[] = {1, 1};
    struct rig rig;
    const struct hdt_profile *got;

    rig_init(&rig);
    rig_plan(&rig, 2, speeds, 1e9, 0.001);
    speed_set(&rig.truth, 1, 0.5);
    rig_judge(&rig);
    cr_assert(rig.v.drifted);
    got = &rig.v.cluster.workers[1].profile;
    cr_expect_float_eq(got->block_fwd_s, 0.020, 1e-6, "block of b: %g", got->block_fwd_s);
    cr_expect_float_eq(rig.v.cluster.workers[0].profile.block_fwd_s, 0.010, 1e-6);
    cr_expect_float_eq(rig.v.present_step_s, rig.measured.step_s, 1e-6);
    cr_expect_float_eq(rig.v.best.plan.step_s, truth_best(&rig), 1e-6);
    cr_expect_lt(units_of(&rig.v.best.plan, "b"), units_of(&rig.present.plan, "b"));
    cr_expect_float_eq(rig.v.gain, 1 - truth_best(&rig) / rig.measured.step_s, 1e-6);
    cr_expect(rig.v.pays);
    cr_expect(strstr(rig.v.reason, "b/w0 computes 2.00x slower than planned"), "%s", rig.v.reason);
    cr_expect(strstr(rig.v.moves, "from b/w0 to a/w0"), "%s", rig.v.moves);
    rig_release(&rig);
}

Test(drift, a_narrowed_link_changes_codec_or_cut)
{
    static const double speeds[] = {1, 1};
    struct rig rig;

    rig_init(&rig);
    rig.job.codec.lossy = true;
    rig_plan(&rig, 2, speeds, 5e9, 0.01);
    for (size_t i = 0; i < rig.truth.n_links; i++) {
        rig.truth.links[i].rate_bytes_per_s = 8e6;
    }
    /* Nobody measured the link: its rate follows from the step's time. */
    rig_judge(&rig);
    cr_assert(rig.v.drifted);
    for (size_t i = 0; i < rig.v.cluster.n_links; i++) {
        cr_expect_float_eq(rig.v.cluster.links[i].rate_bytes_per_s, 8e6, 0.02 * 8e6, "rate %g",
                           rig.v.cluster.links[i].rate_bytes_per_s);
    }
    cr_expect(rig.v.pays, "%s", rig.v.reason);
    cr_expect(strstr(rig.v.cause, "behaves like one of 64"), "%s", rig.v.cause);
    cr_expect(strstr(rig.v.moves, "bf16"), "%s", rig.v.moves);
    cr_expect_float_eq(rig.v.best.plan.step_s, truth_best(&rig), 0.02 * truth_best(&rig));
    rig_release(&rig);
}

Test(drift, a_measured_link_is_believed)
{
    static const double speeds[] = {1, 1};
    struct rig rig;

    rig_init(&rig);
    rig.job.plan.min_stages = 1;
    rig_plan(&rig, 2, speeds, 1e9, 0.01);
    for (size_t i = 0; i < rig.truth.n_links; i++) {
        rig.truth.links[i].rate_bytes_per_s = 1e6;
        rig.links[i] = (struct hdt_drift_link){.rate_bytes_per_s = 1e6};
        memcpy(rig.links[i].from, rig.truth.links[i].from, HDT_NAME_CAP);
        memcpy(rig.links[i].to, rig.truth.links[i].to, HDT_NAME_CAP);
    }
    rig.measured.n_links = 2;
    rig_judge(&rig);
    cr_assert(rig.v.drifted);
    cr_expect_float_eq(rig.v.cluster.links[0].rate_bytes_per_s, 1e6, 1);
    cr_expect(strstr(rig.v.cause, " carries 8 Mbit/s, not"), "%s", rig.v.cause);
    cr_expect_eq(rig.v.best.plan.n_stages, 1, "a link of 8 Mbit/s is left out");
    cr_expect(rig.v.pays, "%s", rig.v.reason);
    rig_release(&rig);
}

Test(drift, noise_is_not_judged)
{
    static const double speeds[] = {1, 1};
    struct rig rig;

    rig_init(&rig);
    rig_plan(&rig, 2, speeds, 1e9, 0.001);
    speed_set(&rig.truth, 1, 1 / 1.1);
    rig_judge(&rig);
    cr_expect_not(rig.v.drifted, "%s", rig.v.reason);
    cr_expect_not(rig.v.pays);
    cr_expect(rig.v.drift > 0.05 && rig.v.drift < 0.15, "%g", rig.v.drift);
    speed_set(&rig.truth, 1, 0.5);
    rig.limits.min_steps = 13; /* one more than there are */
    rig_judge(&rig);
    cr_expect_not(rig.v.drifted, "%s", rig.v.reason);
    rig_release(&rig);
}

Test(drift, what_all_share_gains_nothing)
{
    static const double speeds[] = {1, 1, 0.9};
    struct rig rig;

    /* The third worker is left out: more stages are not allowed. All are 1.4x as slow as their
     * profiles: the one that nobody measured must not look better for that. */
    rig_init(&rig);
    rig.job.plan.max_stages = 2;
    rig_plan(&rig, 3, speeds, 1e9, 0.001);
    for (int i = 0; i < 3; i++) {
        speed_set(&rig.truth, i, speeds[i] / 1.4);
    }
    rig_judge(&rig);
    cr_assert(rig.v.drifted);
    cr_expect_not(rig.v.pays, "%s", rig.v.reason);
    cr_expect_float_eq(rig.v.gain, 0, 0.01);
    rig_release(&rig);
}

Test(drift, a_slow_machine_is_left)
{
    static const double speeds[] = {1, 0.9};
    struct rig rig;

    rig_init(&rig);
    rig.job.plan.min_stages = 1;
    rig.job.plan.max_stages = 1;
    rig_plan(&rig, 2, speeds, 1e9, 0.001);
    rig.planned.workers[0].busy = true; /* with this job */
    speed_set(&rig.truth, 0, 0.4);
    rig_judge(&rig);
    cr_expect(rig.v.pays, "%s", rig.v.reason);
    cr_expect_eq(units_of(&rig.v.best.plan, "b"), 8);
    rig_release(&rig);
}

Test(drift, a_restart_must_pay)
{
    static const double speeds[] = {1, 1};
    struct rig rig;

    rig_init(&rig);
    rig_plan(&rig, 2, speeds, 1e9, 0.001);
    speed_set(&rig.truth, 1, 0.5);
    rig.limits.steps_left = 20;
    rig.limits.restart_s = 60;
    rig_judge(&rig);
    cr_expect_gt(rig.v.gain, 0.05);
    cr_expect_not(rig.v.pays, "%s", rig.v.reason);
    cr_expect_float_eq(rig.v.saved_s, 20 * (rig.v.present_step_s - rig.v.best.plan.step_s), 1e-9);
    cr_expect(strstr(rig.v.reason, "a restart 60 s"), "%s", rig.v.reason);
    hdt_drift_verdict_release(&rig.v);
    rig.limits.steps_left = 1000;
    rig_judge(&rig);
    cr_expect(rig.v.pays, "%s", rig.v.reason);
    hdt_drift_verdict_release(&rig.v);
    rig.limits.gain = 0.9;
    rig_judge(&rig);
    cr_expect_not(rig.v.pays, "%s", rig.v.reason);
    rig_release(&rig);
}

Test(drift, a_verdict_settles_its_drift)
{
    static const double speeds[] = {1, 1};
    struct rig rig;
    struct hdt_drift_verdict again;

    rig_init(&rig);
    rig_plan(&rig, 2, speeds, 1e9, 0.001);
    speed_set(&rig.truth, 0, 0.7);
    speed_set(&rig.truth, 1, 0.7);
    rig_judge(&rig);
    cr_assert(rig.v.drifted);
    rig.in.cluster = &rig.v.cluster;
    rig.present.plan.step_s = rig.v.present_step_s;
    cr_assert_eq(
        hdt_drift_judge(&rig.in, &rig.present.plan, &rig.measured, &rig.limits, &again, NULL),
        HDT_OK);
    cr_expect_not(again.drifted, "%s", again.reason);
    hdt_drift_verdict_release(&again);
    rig_release(&rig);
}

Test(drift, what_does_not_belong_together_is_refused)
{
    static const double speeds[] = {1, 1};
    struct rig rig;
    struct hdt_cluster cluster;
    struct hdt_error err = {0};

    rig_init(&rig);
    rig_plan(&rig, 2, speeds, 1e9, 0.001);
    rig_measure(&rig);
    rig.measured.n_ranks--;
    cr_expect_eq(hdt_drift_correct(&rig.in, &rig.present.plan, &rig.measured, &cluster, &err),
                 HDT_EINVAL);
    rig.measured.n_ranks++;
    rig.planned.n_workers--;
    cr_expect_eq(hdt_drift_correct(&rig.in, &rig.present.plan, &rig.measured, &cluster, &err),
                 HDT_EINVAL);
    cr_expect(strstr(err.msg, "b/w0 is not there"), "%s", err.msg);
    rig.planned.n_workers++;
    rig_release(&rig);
}
