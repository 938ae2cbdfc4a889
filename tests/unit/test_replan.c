/* SPDX-License-Identifier: Apache-2.0 */
/* A job that runs slower than its plan said moves to another one: over a data plane without
 * sockets, with the real planner. */
#include "config.h"

#include "gateway/planner.h"
#include "gateway/replan.h"
#include "src/base/buf.h"
#include "src/core/msg.h"
#include "tests/support/loss_rig.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

TestSuite(replan, .init = hdt_ctl_setup, .fini = hdt_ctl_teardown);

#define N_STEPS 1000

static void add_worker(struct hdt_cluster *cluster, const char *site)
{
    struct hdt_cluster_worker w = {
        .device = "test", .backend = "cpu", .memory_bytes = UINT64_C(8) << 30, .n_threads = 1};

    snprintf(w.site, sizeof(w.site), "%s", site);
    snprintf(w.name, sizeof(w.name), "w0");
    w.profile = hdt_ctl_profile(0.01);
    hdt_cluster_add_site(cluster, site);
    hdt_cluster_add_worker(cluster, &w);
}

/* Two workers, equally fast, and a link that is no hindrance. */
static void two_workers(struct hdt_cluster *cluster)
{
    struct hdt_cluster_link link = {
        .from = "a", .to = "b", .up = true, .rate_bytes_per_s = 1e8, .rtt_s = 1e-3};

    memset(cluster, 0, sizeof(*cluster));
    add_worker(cluster, "a");
    add_worker(cluster, "b");
    hdt_cluster_add_link(cluster, &link);
    snprintf(link.from, sizeof(link.from), "b");
    snprintf(link.to, sizeof(link.to), "a");
    hdt_cluster_add_link(cluster, &link);
}

/* It begins to run under the best plan for two equal workers. */
static void begin_as_planned(struct hdt_gwjob *job, int every)
{
    const struct hdt_gwreplan said = {.cause = "test"};
    struct hdt_model_config model;
    struct hdt_search_result result;
    struct hdt_error err = {0};
    struct hdt_cluster cluster;
    const struct hdt_cost_inputs in = {&job->conf, &model, &cluster};
    json_t *json;

    two_workers(&cluster);
    cr_assert_eq(hdt_model_from_json(job->model_json, "model", &model, &err), HDT_OK);
    free(job->conf.data.site);
    job->conf.data.site = hdt_strdup("a");
    job->conf.steps = N_STEPS;
    job->conf.checkpoint.every = every;
    cr_assert_eq(hdt_search_plan(&in, &result, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(result.plan.n_ranks, 2, "both are used");
    json = hdt_cluster_to_json(&cluster);
    hdt_gwjob_take_plan(&hdt_ctl_gw, job, &result.plan, json, &said);
    json_decref(json);
    hdt_search_result_release(&result);
    hdt_cluster_release(&cluster);
    hdt_fake_dataplane_reset();
}

static struct hdt_gwjob *running_as_planned(int every)
{
    struct hdt_gwjob *job = hdt_loss_running();

    begin_as_planned(job, every);
    return job;
}

/* Steps that take so long, of which each rank is busy for so long. */
static void run_steps(struct hdt_gwjob *job, int n, double step_s, double a_s, double b_s)
{
    for (int i = 0; i < n; i++) {
        const char *first = job->plan.ranks[0].site;
        double busy0_s = strcmp(first, "a") == 0 ? a_s : b_s;
        double busy1_s = strcmp(first, "a") == 0 ? b_s : a_s;
        json_t *body =
            json_pack("{s:I, s:f, s:f, s:i, s:[{s:i, s:f}, {s:i, s:f}]}", "step",
                      (json_int_t)job->step + 1, "loss", 2.5, "step_s", step_s, "tokens", 1024,
                      "ranks", "rank", 0, "busy_s", busy0_s, "rank", 1, "busy_s", busy1_s);
        json_t *msg = hdt_loss_report("step", job, body);

        if (job->plan.root_rank == 0 && strcmp(first, "a") == 0) {
            hdt_ctl_from_client(HDT_CTL_WORKER, msg);
        } else {
            hdt_ctl_from_peer("b", "b/w0", msg);
        }
    }
}

static void planner_answers(void)
{
    struct pollfd fd = {.fd = hdt_planner_fd(&hdt_ctl_gw), .events = POLLIN};

    cr_assert_geq(fd.fd, 0, "the plan is judged");
    cr_assert_eq(poll(&fd, 1, 60000), 1);
    hdt_planner_dispatch(&hdt_ctl_gw);
}

static const char *stop_mode_told(const char *to)
{
    json_t *msg = hdt_fake_dataplane_take(to, "stop");

    return json_string_value(json_object_get(hdt_msg_body(msg), "mode"));
}

/* b/w0 computes six times slower than planned. */
static struct hdt_gwjob *drifted(int every)
{
    struct hdt_gwjob *job = running_as_planned(every);

    run_steps(job, 12, 6 * job->plan.step_s, 0.26, 6 * 0.26);
    planner_answers();
    return job;
}

static void all_end(struct hdt_gwjob *job, int64_t step)
{
    const uint32_t epoch = job->epoch;

    hdt_loss_report_checkpoint(job, (int)step, "/ckpt/step-x");
    hdt_ctl_from_client(HDT_CTL_WORKER,
                        hdt_loss_report("done", job,
                                        json_pack("{s:I, s:s}", "steps", (json_int_t)step,
                                                  "weights_digest", "00ff")));
    for (int rank = 0; rank < 2 && job->epoch == epoch; rank++) {
        json_t *msg = hdt_loss_report("rank.done", job, json_pack("{s:i}", "rank", rank));

        if (strcmp(job->plan.ranks[rank].site, "a") == 0) {
            hdt_ctl_from_client(HDT_CTL_WORKER, msg);
        } else {
            hdt_ctl_from_peer("b", "b/w0", msg);
        }
    }
}

static double known_factor(const char *site)
{
    const struct hdt_profile p = hdt_ctl_profile(0.01);

    return hdt_run_factor_of(&hdt_federation_worker(&hdt_ctl_gw, site, "w0")->run_factor, &p);
}

/* Whether the job may be planned anew or not: b's worker takes 5 % longer than planned, a's as long
 * as that; in the third run a neighbour computes beside it once its first steps are done. */
Test(replan, the_first_steps_of_runs_say_how_far_off_profiles_are)
{
    struct hdt_gwjob *job = running_as_planned(0);

    for (int run = 0; run < 3; run++) {
        const struct hdt_plan_rank *ranks = job->plan.ranks;
        const bool b_first = strcmp(ranks[0].site, "b") == 0;
        const double a_s = ranks[b_first].busy_s, b_s = ranks[!b_first].busy_s;

        cr_assert(a_s > 0 && b_s > 0 && ranks[0].held_s == 0, "the plan says what it expects");
        cr_expect_float_eq(known_factor("b"), 1, 1e-9, "run %d", run);
        job->conf.replan.automatic = run == 1;
        run_steps(job, 12, job->plan.step_s, a_s, 1.05 * b_s);
        if (run == 2) {
            run_steps(job, 30, job->plan.step_s, a_s, 3 * b_s);
        }
        hdt_replan_reset(job);
        begin_as_planned(job, 0);
    }
    cr_expect_float_eq(known_factor("a"), 1, 1e-9);
    cr_expect_float_eq(known_factor("b"), 1.05, 1e-9);
}

Test(replan, a_run_as_planned_is_left_alone)
{
    struct hdt_gwjob *job = running_as_planned(10);

    run_steps(job, 50, job->plan.step_s, 0.26, 0.26);
    cr_expect_eq(hdt_planner_fd(&hdt_ctl_gw), -1, "no plan was looked for");
}

Test(replan, a_slow_worker_gets_less_at_the_next_checkpoint)
{
    struct hdt_gwjob *job = drifted(50);
    const char *mode = stop_mode_told("b");

    cr_assert_not_null(mode);
    cr_expect_str_eq(mode, "boundary");
    cr_expect_eq(job->state, HDT_GWJOB_RUNNING, "it trains until then");
    all_end(job, 50);
    cr_expect_eq(job->epoch, 2);
    cr_expect_eq(job->state, HDT_GWJOB_RECOVERING);
    cr_expect_eq(job->n_attempts, 0, "that is no attempt");
    cr_expect_eq(hdt_gwjob_resume_step(job), 50, "and loses no step");
    for (size_t i = 0; i < job->plan.n_stages; i++) {
        const struct hdt_plan_stage *s = &job->plan.stages[i];

        if (strcmp(job->plan.ranks[s->rank].site, "b") == 0) {
            cr_expect_lt(s->unit_end - s->unit_begin, 2, "b/w0 has less than before");
        }
    }
}

Test(replan, without_periodic_checkpoints_the_run_makes_one)
{
    const char *mode;

    drifted(0);
    mode = stop_mode_told("b");
    cr_assert_not_null(mode);
    cr_expect_str_eq(mode, "checkpoint");
}

Test(replan, a_user_who_stops_the_job_is_obeyed)
{
    struct hdt_gwjob *job = drifted(50);

    hdt_loss_stop_job();
    all_end(job, 14);
    cr_expect_eq(job->epoch, 1);
    cr_expect_neq(job->state, HDT_GWJOB_RECOVERING);
}

Test(replan, a_gateway_that_was_restarted_meanwhile_goes_on_with_the_job)
{
    struct hdt_gwjob *job = running_as_planned(50);

    /* The root was told to stop by the gateway before this one, which took the plan with it. */
    all_end(job, 50);
    cr_expect_eq(job->epoch, 2);
    cr_expect_eq(job->state, HDT_GWJOB_RECOVERING);
    cr_expect_eq(job->plan.n_ranks, 2);
}

/* The link from a to b as it was corrected, whatever was decided. */
static const json_t *link_corrected(const struct hdt_gwjob *job)
{
    const json_t *cluster =
        job->replan.plan_cluster ? job->replan.plan_cluster : job->replan.cluster;
    const json_t *link;
    size_t i;

    json_array_foreach(json_object_get(cluster, "links"), i, link)
    {
        if (strcmp(json_string_value(json_object_get(link, "from")), "a") == 0) {
            return link;
        }
    }
    return NULL;
}

/* Workers are as busy as planned, steps take four times as long, and the session to b shows this.
 */
static const json_t *link_after(struct hdt_peer_stats *peer)
{
    struct hdt_gwjob *job = running_as_planned(50);

    snprintf(peer->site, sizeof(peer->site), "b");
    peer->up = true;
    hdt_fake_dataplane_set_peer(peer);
    run_steps(job, 12, 4 * job->plan.step_s, 0.26, 0.26);
    planner_answers();
    return link_corrected(job);
}

Test(replan, the_round_trip_of_a_link_is_known)
{
    const json_t *link = link_after(
        &(struct hdt_peer_stats){.rtt_us = 70000, .goodput_bytes_per_s = 5e6, .loaded_us = -1});

    cr_assert_not_null(link);
    cr_expect_float_eq(json_number_value(json_object_get(link, "rtt_s")), 0.07, 1e-6);
    cr_expect_float_neq(json_number_value(json_object_get(link, "rate_bytes_per_s")), 5e6, 1,
                        "a probe of long ago says nothing of now");
}

Test(replan, the_rate_of_a_link_is_known_that_had_more_to_send_than_it_took)
{
    const json_t *link = link_after(
        &(struct hdt_peer_stats){.rtt_us = 70000, .goodput_bytes_per_s = 5e6, .loaded_us = 200000});

    cr_assert_not_null(link);
    cr_expect_float_eq(json_number_value(json_object_get(link, "rate_bytes_per_s")), 5e6, 1);
    cr_expect_float_eq(json_number_value(json_object_get(link, "rtt_s")), 1e-3, 1e-6,
                       "its round trip is that of its queue");
}

/* Workers that site b says it has. */
static void site_b_has(int n_workers)
{
    json_t *workers = json_array();
    char name[8];

    for (int i = 0; i < n_workers; i++) {
        snprintf(name, sizeof(name), "w%d", i);
        json_array_append_new(workers, json_pack("{s:s, s:s, s:b, s:s}", "name", name, "device",
                                                 "test", "up", 1, "instance", "7"));
    }
    hdt_ctl_from_peer(
        "b", "b",
        hdt_msg_new("site.info", "a", json_pack("{s:o, s:[]}", "workers", workers, "sites")));
}

Test(replan, a_worker_is_measured_that_joined_after_the_plan_was_made)
{
    struct hdt_gwjob *job = running_as_planned(50);

    run_steps(job, 3, job->plan.step_s, 0.26, 0.26);
    site_b_has(2); /* before the first ten steps are full */
    hdt_fake_dataplane_reset();
    run_steps(job, 9, job->plan.step_s, 0.26, 0.26);
    cr_assert(job->replan.is_asked, "the plan is judged");
    cr_expect_not_null(hdt_fake_dataplane_take("b", "profile"),
                       "the new worker is measured for it");
}

Test(replan, a_loss_meanwhile_comes_first)
{
    struct hdt_gwjob *job = drifted(50);

    hdt_loss_other_worker_is(false, "7");
    hdt_loss_pass(4000000);
    cr_expect_eq(job->state, HDT_GWJOB_RECOVERING);
    cr_expect_null(hdt_replan_stop_mode(job));
    cr_expect_eq(job->plan.n_ranks, 2, "it goes on as it was");
}
