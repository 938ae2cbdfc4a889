/* SPDX-License-Identifier: Apache-2.0 */
/* A job that goes on without a worker: over a data plane without sockets, with the real planner. */
#include "config.h"

#include "gateway/planner.h"
#include "gateway/recovery.h"
#include "src/core/msg.h"
#include "tests/support/loss_rig.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <string.h>

TestSuite(shrink, .init = hdt_ctl_setup, .fini = hdt_ctl_teardown);

/* ---- without a worker that does not come back ---- */

/* Let the gateway measure: our link to b, b's to us, and a/w0. */
static void answer_survey(void)
{
    const struct hdt_profile profile = hdt_ctl_profile(0.01);
    json_t *measure, *links;

    hdt_survey_probed(&hdt_ctl_gw, "b", 1e7, 0.01);
    measure = hdt_fake_dataplane_take("b", "links.measure");
    cr_assert_not_null(measure);
    links = json_pack("{s:[{s:s, s:s, s:b, s:f, s:f, s:f, s:f}]}", "links", "from", "b", "to", "a",
                      "up", 1, "rate_bytes_per_s", 1e7, "rtt_s", 0.01, "lossless_bytes_per_s", 1e8,
                      "lossless_ratio", 1.1);
    hdt_ctl_from_peer("b", "b", hdt_msg_reply(measure, "links.are", links));
    json_decref(measure);
    cr_assert(hdt_loss_answer("1", "profile", "profile.is",
                              json_pack("{s:o}", "profile", hdt_profile_to_json(&profile))),
              "a/w0 is free: it is measured");
}

/* The search has its own thread. */
static void planner_answers(void)
{
    struct pollfd fd = {.fd = hdt_planner_fd(&hdt_ctl_gw), .events = POLLIN};

    cr_assert_geq(fd.fd, 0, "a plan is looked for");
    cr_assert_eq(poll(&fd, 1, 60000), 1);
    hdt_planner_dispatch(&hdt_ctl_gw);
}

/* A tick at which the search is still going on, however fast its thread is. */
static void tick_before_the_plan(void)
{
    struct hdt_planner *planner = hdt_ctl_gw.planner;

    hdt_ctl_gw.planner = NULL;
    hdt_loss_tick();
    cr_assert_null(hdt_ctl_gw.planner, "nothing else is asked for");
    hdt_ctl_gw.planner = planner;
}

/* b/w0 is lost and stays away for longer than the job waits; a/w0 is free. */
static struct hdt_gwjob *waited_in_vain(void)
{
    struct hdt_gwjob *job = hdt_loss_running();

    hdt_loss_report_checkpoint(job, 1, "/ckpt/step-00000001");
    hdt_loss_other_worker_is(false, "7");
    hdt_loss_pass(4000000);
    cr_assert_eq(job->state, HDT_GWJOB_RECOVERING);
    cr_assert(hdt_loss_answer_released("1"));
    hdt_loss_pass(100000000);
    cr_expect_null(hdt_fake_dataplane_take("1", "profile"), "it may still come back");
    hdt_loss_pass(20000000);
    return job;
}

static json_t *event_named(const char *name)
{
    json_t *event;

    while ((event = hdt_fake_dataplane_take("2", "job.event"))) {
        const char *text = json_string_value(json_object_get(hdt_msg_body(event), "event"));

        if (text && strcmp(text, name) == 0) {
            return event;
        }
        json_decref(event);
    }
    return NULL;
}

Test(shrink, a_job_goes_on_without_a_worker_that_does_not_come_back)
{
    struct hdt_gwjob *job = waited_in_vain();
    json_t *msg;
    const char *reason;

    answer_survey();
    planner_answers();
    cr_assert_eq(job->plan.n_ranks, 1);
    cr_expect_str_eq(job->plan.ranks[0].site, "a");
    cr_expect_eq(job->plan.stages[job->plan.n_stages - 1].unit_end, 4, "all of the model");
    msg = event_named("replan");
    cr_assert_not_null(msg);
    reason = json_string_value(json_object_get(hdt_msg_body(msg), "reason"));
    cr_expect_not_null(strstr(reason, "b/w0 did not come back in 12"), "%s", reason);
    cr_expect_not_null(strstr(reason, "2 blocks on a/w0"), "%s", reason);
    json_decref(msg);
    cr_expect(hdt_loss_answer_released("1"),
              "those of the new plan are asked whether they are free");
    msg = hdt_fake_dataplane_take("1", "assign");
    cr_assert_not_null(msg);
    cr_expect_eq(json_integer_value(json_object_get(hdt_msg_body(msg), "epoch")), 2);
    cr_expect_eq(json_integer_value(json_object_get(hdt_msg_body(msg), "resume_step")), 1);
    cr_expect_str_eq(json_string_value(json_object_get(hdt_msg_body(msg), "resume")),
                     "/ckpt/step-00000001");
    hdt_ctl_from_client(HDT_CTL_WORKER,
                        hdt_msg_reply(msg, "ready", json_pack("{s:i}", "start_step", 1)));
    json_decref(msg);
    cr_expect_eq(job->state, HDT_GWJOB_RUNNING);
    /* What was lost is nothing to the job any more. */
    hdt_fake_dataplane_reset();
    hdt_loss_other_worker_is(true, "8");
    hdt_loss_tick();
    cr_expect_eq(job->epoch, 2);
    cr_expect_eq(job->state, HDT_GWJOB_RUNNING);
    cr_expect_not(hdt_coordinator_worker_is_busy(&hdt_ctl_gw, "b", "w0"));
}

Test(shrink, the_plan_without_a_worker_outlives_the_gateway)
{
    struct hdt_gwjob *job = waited_in_vain();

    answer_survey();
    planner_answers();
    cr_assert_eq(job->plan.n_ranks, 1);
    hdt_ctl_gateway_restart();
    cr_assert_not_null(hdt_ctl_gw.jobs);
    cr_expect_eq(hdt_ctl_gw.jobs->plan.n_ranks, 1);
    cr_expect_eq(hdt_ctl_gw.jobs->epoch, 2);
}

Test(shrink, a_worker_that_comes_back_while_a_plan_is_looked_for_is_taken)
{
    struct hdt_gwjob *job = waited_in_vain();

    answer_survey();
    hdt_loss_other_worker_is(true, "8");
    tick_before_the_plan();
    cr_assert(hdt_loss_answer_released("b"));
    cr_expect_eq(job->state, HDT_GWJOB_PREPARING);
    planner_answers();
    cr_expect_eq(job->plan.n_ranks, 2);
    cr_expect_eq(job->state, HDT_GWJOB_PREPARING);
}

Test(shrink, a_job_that_cannot_do_without_a_worker_says_so_once_and_waits)
{
    struct hdt_gwjob *job = hdt_loss_running();
    json_t *plan = json_object_get(job->conf_json, "plan"), *msg;

    json_object_set_new(plan, "cut", json_pack("[s, s]", "a/w0=2", "b/w0=2"));
    hdt_loss_other_worker_is(false, "7");
    hdt_loss_pass(4000000);
    cr_assert(hdt_loss_answer_released("1"));
    hdt_loss_pass(121000000);
    answer_survey();
    hdt_fake_dataplane_reset();
    planner_answers();
    cr_expect_eq(job->plan.n_ranks, 2);
    msg = event_named("state");
    cr_assert_not_null(msg);
    cr_expect_not_null(
        strstr(json_string_value(json_object_get(hdt_msg_body(msg), "why_not_without")), "b/w0"));
    cr_expect_gt(json_integer_value(json_object_get(hdt_msg_body(msg), "until_s")), 3600,
                 "it is waited for until recovery.give_up");
    json_decref(msg);
    hdt_loss_other_worker_is(true, "8");
    hdt_loss_tick();
    cr_assert(hdt_loss_answer_released("b"));
    cr_expect_eq(job->state, HDT_GWJOB_PREPARING);
}

/* A save of a large checkpoint is not cancelled in its last part. */
Test(shrink, who_is_connected_and_still_lets_go_is_not_planned_out)
{
    struct hdt_gwjob *job = hdt_loss_running();
    struct hdt_error why = {0};

    hdt_loss_report_checkpoint(job, 1, "/ckpt/step-00000001");
    hdt_error_set(&why, HDT_ETIMEDOUT, "nothing moved");
    hdt_recovery_begin(&hdt_ctl_gw, job, &why);
    cr_assert(hdt_loss_answer_released("1"));
    hdt_loss_pass(200000000); /* b/w0 is there and has not answered */
    cr_expect_eq(job->state, HDT_GWJOB_RECOVERING);
    cr_expect_not(job->shrink.is_asked);
    hdt_loss_pass(500000000);
    cr_expect(job->shrink.is_asked);
}
