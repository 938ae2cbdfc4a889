/* SPDX-License-Identifier: Apache-2.0 */
/* How a job goes on after a loss, at its coordinator: over a data plane without sockets. */
#include "config.h"

#include "gateway/member.h"
#include "gateway/recovery.h"
#include "src/core/msg.h"
#include "tests/support/loss_rig.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

TestSuite(recovery, .init = hdt_ctl_setup, .fini = hdt_ctl_teardown);

/* ---- a loss, and the way back ---- */

Test(recovery, a_lost_worker_that_comes_back_costs_what_followed_the_last_checkpoint)
{
    struct hdt_gwjob *job = hdt_loss_running();
    uint32_t number = job->job;
    json_t *msg;

    hdt_loss_report_step(job, 1);
    hdt_loss_report_checkpoint(job, 1, "/ckpt/step-00000001");
    hdt_loss_report_step(job, 2);
    hdt_loss_own_worker_goes();
    hdt_loss_tick();
    cr_expect_eq(job->state, HDT_GWJOB_RUNNING, "it may come back");
    hdt_loss_pass(4000000);
    cr_assert_eq(job->state, HDT_GWJOB_RECOVERING);
    cr_expect_eq(job->epoch, 2);
    cr_expect_str_eq(job->error.msg, "worker a/w0 is lost: its connection was closed");
    msg = hdt_fake_dataplane_take("b", "stop");
    cr_expect_str_eq(json_string_value(json_object_get(hdt_msg_body(msg), "mode")), "abort");
    msg = hdt_fake_dataplane_take("b", "job.close");
    cr_expect_eq(json_integer_value(json_object_get(hdt_msg_body(msg), "epoch")), 1);

    msg = hdt_fake_dataplane_take("b", "release");
    cr_assert_not_null(msg);
    cr_expect_eq(json_integer_value(json_object_get(hdt_msg_body(msg), "epoch")), 1);
    hdt_ctl_from_peer("b", "b/w0", hdt_msg_reply(msg, "released", json_object()));
    cr_expect_null(hdt_fake_dataplane_take("b", "assign"), "a/w0 is not there");
    hdt_loss_own_worker_comes("0000000000000002", 0, 0);
    cr_expect_null(hdt_fake_dataplane_take("b", "assign"), "a/w0 has not said that it is free");
    cr_expect(hdt_loss_answer_released("1"));
    cr_expect_eq(job->state, HDT_GWJOB_PREPARING);
    msg = hdt_fake_dataplane_take("b", "job.plan");
    cr_expect_eq(json_integer_value(json_object_get(hdt_msg_body(msg), "epoch")), 2);
    msg = hdt_fake_dataplane_take("1", "assign");
    cr_assert_not_null(msg);
    cr_expect_eq(json_integer_value(json_object_get(hdt_msg_body(msg), "epoch")), 2);
    cr_expect_str_eq(json_string_value(json_object_get(hdt_msg_body(msg), "resume")),
                     "/ckpt/step-00000001");
    hdt_ctl_from_client(HDT_CTL_WORKER,
                        hdt_msg_reply(msg, "ready", json_pack("{s:i}", "start_step", 1)));
    cr_expect(hdt_loss_answer_ready_at("b", 1));
    cr_expect_eq(job->state, HDT_GWJOB_RUNNING);
    cr_expect_eq(job->step, 1);
    cr_expect_eq(job->tokens, 8 * 8 * 16, "a step that is done again counts once");
    cr_expect_eq(job->job, number);
    hdt_ctl_expect_state("recovering");
}

Test(recovery, followers_hear_what_is_waited_for)
{
    struct hdt_gwjob *job = hdt_loss_running();
    json_t *event, *body = NULL;

    hdt_loss_report_checkpoint(job, 2, "/ckpt/step-00000002");
    hdt_loss_other_worker_is(false, "7");
    hdt_loss_pass(4000000);
    while ((event = hdt_fake_dataplane_take("2", "job.event"))) {
        const char *state = json_string_value(json_object_get(hdt_msg_body(event), "state"));

        body = state && strcmp(state, "recovering") == 0 ? (json_t *)hdt_msg_body(event) : body;
    }
    cr_assert_not_null(body);
    cr_expect_eq(json_integer_value(json_object_get(body, "epoch")), 2);
    cr_expect_eq(json_integer_value(json_object_get(body, "resume_step")), 2);
    cr_expect_str_eq(json_string_value(json_object_get(body, "resume")), "/ckpt/step-00000002");
    cr_assert_eq(json_array_size(json_object_get(body, "waits_for")), 1);
    cr_expect_str_eq(json_string_value(json_array_get(json_object_get(body, "waits_for"), 0)),
                     "b/w0", "a/w0 is there and has only to free its memory");
    cr_expect_eq(json_array_size(json_object_get(body, "waits_until_free")), 0);
    cr_expect_null(json_object_get(body, "why_not_without"));
    cr_expect_not_null(
        strstr(json_string_value(json_object_get(json_object_get(body, "error"), "msg")),
               "worker b/w0 is lost"));
    cr_expect_leq(json_integer_value(json_object_get(body, "until_s")), 120,
                  "then it is planned without it");
    cr_expect_geq(json_integer_value(json_object_get(body, "until_s")), 120 - 10);
}

Test(recovery, a_worker_that_does_not_free_its_memory_is_named_after_a_while)
{
    struct hdt_gwjob *job = hdt_loss_running();
    json_t *body, *names;

    hdt_loss_other_worker_is(false, "7");
    hdt_loss_pass(4000000);
    hdt_loss_pass(6000000);
    body = hdt_gwjob_state_body(&hdt_ctl_gw, job);
    names = json_object_get(body, "waits_until_free");
    cr_assert_eq(json_array_size(names), 1);
    cr_expect_str_eq(json_string_value(json_array_get(names, 0)), "a/w0");
    json_decref(body);
    cr_assert(hdt_loss_answer_released("1"));
    body = hdt_gwjob_state_body(&hdt_ctl_gw, job);
    cr_expect_eq(json_array_size(json_object_get(body, "waits_until_free")), 0);
    json_decref(body);
}

static const char *why_not_without(const json_t *body)
{
    const char *why = json_string_value(json_object_get(body, "why_not_without"));

    return why ? why : "";
}

Test(recovery, a_job_that_cannot_do_without_a_worker_says_so_at_once)
{
    struct hdt_gwjob *job = hdt_loss_running();
    json_t *body;

    job->conf.recovery.on_loss = HDT_ON_LOSS_WAIT;
    hdt_loss_other_worker_is(false, "7");
    hdt_loss_pass(4000000);
    body = hdt_gwjob_state_body(&hdt_ctl_gw, job);
    cr_expect_str_eq(why_not_without(body), "recovery.on_loss is wait");
    cr_expect_gt(json_integer_value(json_object_get(body, "until_s")), 120,
                 "it is waited for until recovery.give_up");
    cr_expect_null(strstr(job->error.hint, "submit"), "the job is not over");
    json_decref(body);
}

Test(recovery, a_worker_that_is_back_in_time_costs_nothing)
{
    struct hdt_gwjob *job = hdt_loss_running();

    hdt_loss_own_worker_goes();
    hdt_loss_tick();
    hdt_loss_own_worker_comes("0000000000000001", job->job, 1);
    cr_expect(hdt_loss_answer_started("1", true));
    hdt_loss_pass(60000000);
    cr_expect_eq(job->state, HDT_GWJOB_RUNNING);
    cr_expect_eq(job->epoch, 1);
}

Test(recovery, another_process_of_the_same_name_is_a_loss_at_once)
{
    struct hdt_gwjob *job = hdt_loss_running();

    hdt_loss_other_worker_is(false, "7");
    hdt_loss_tick();
    cr_expect_eq(job->state, HDT_GWJOB_RUNNING);
    hdt_loss_other_worker_is(true, "8");
    cr_expect_eq(job->state, HDT_GWJOB_RECOVERING);
    cr_expect_str_eq(job->error.msg, "worker b/w0 is lost: it was restarted");
}

/* Its coordinator was away, too, and does not know the worker from before. */
Test(recovery, a_worker_that_says_it_has_no_such_job_has_lost_it)
{
    struct hdt_gwjob *job = hdt_loss_running();
    uint32_t number = job->job;

    hdt_ctl_gateway_restart();
    job = hdt_gwjob_find(&hdt_ctl_gw, number);
    cr_assert_eq(job->state, HDT_GWJOB_RUNNING);
    cr_expect(hdt_loss_answer_started("1", true) ||
              (hdt_loss_tick(), hdt_loss_answer_started("1", true)));
    cr_expect_eq(job->state, HDT_GWJOB_RUNNING);
    cr_expect(hdt_loss_answer_started("b", false));
    cr_expect_eq(job->state, HDT_GWJOB_RECOVERING);
}

Test(recovery, a_site_that_stays_away_is_waited_for)
{
    struct hdt_gwjob *job = hdt_gwjob_find(&hdt_ctl_gw, hdt_ctl_submit());
    const struct hdt_error why = {.status = HDT_EPEER, .msg = "cut"};

    hdt_ctl_answer_ready("1", "a/w0");
    hdt_federation_peer_down(&hdt_ctl_gw, "b", &why);
    hdt_loss_tick();
    cr_expect_eq(job->state, HDT_GWJOB_PREPARING);
    hdt_loss_pass(job->deadlines.rank_us + 1000000);
    cr_expect_eq(job->state, HDT_GWJOB_RECOVERING);
    cr_expect_not_null(strstr(job->error.msg, "site b"));
    cr_expect(hdt_loss_answer_released("1"));
    hdt_fake_dataplane_reset();
    hdt_ctl_peer_up("b");
    cr_expect(hdt_loss_answer_released("b"));
    cr_expect_eq(job->state, HDT_GWJOB_PREPARING);
}

Test(recovery, an_answer_that_was_lost_with_its_connection_is_asked_for_again)
{
    struct hdt_gwjob *job = hdt_gwjob_find(&hdt_ctl_gw, hdt_ctl_submit());
    const struct hdt_error why = {.status = HDT_EPEER, .msg = "cut"};

    hdt_ctl_answer_ready("1", "a/w0");
    hdt_fake_dataplane_reset(); /* "assign" went out with the session that broke */
    hdt_federation_peer_down(&hdt_ctl_gw, "b", &why);
    hdt_ctl_peer_up("b");
    cr_expect(hdt_loss_answer_ready_at("b", 0));
    cr_expect_eq(job->state, HDT_GWJOB_RUNNING);
    cr_expect_eq(job->epoch, 1);
}

/* ---- failures that workers and gateways report ---- */

Test(recovery, failures_that_pass_and_failures_that_stay)
{
    static const struct {
        enum hdt_status status;
        enum hdt_gwjob_state state;
    } cases[] = {{HDT_ETIMEDOUT, HDT_GWJOB_RECOVERING}, {HDT_ERANK, HDT_GWJOB_RECOVERING},
                 {HDT_ECANCELED, HDT_GWJOB_RECOVERING}, {HDT_EIO, HDT_GWJOB_RECOVERING},
                 {HDT_EJOB, HDT_GWJOB_FAILED},          {HDT_EPROTO, HDT_GWJOB_FAILED},
                 {HDT_ENOMEM, HDT_GWJOB_FAILED}};
    const struct hdt_error enough = {.status = HDT_ECANCELED, .msg = "enough"};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hdt_gwjob *job = hdt_loss_running();

        hdt_loss_report_failed(job, cases[i].status);
        cr_expect_eq(job->state, cases[i].state, "%s", hdt_status_name(cases[i].status));
        hdt_gwjob_fail(&hdt_ctl_gw, job, &enough);
    }
}

Test(recovery, a_flow_that_cannot_go_on_has_a_successor_in_the_next_epoch)
{
    struct hdt_gwjob *job = hdt_loss_running();
    struct hdt_error why = {0};

    hdt_error_set(&why, HDT_EPROTO, "cannot resume flow 0");
    hdt_member_flow_failed(&hdt_ctl_gw, job->job, 0, &why);
    cr_expect_eq(job->state, HDT_GWJOB_RUNNING, "that epoch is over");
    hdt_member_flow_failed(&hdt_ctl_gw, job->job, 1, &why);
    cr_expect_eq(job->state, HDT_GWJOB_RECOVERING);
    cr_expect_str_eq(job->error.msg, "cannot resume flow 0");
}

Test(recovery, what_a_worker_refuses_at_first_ends_the_job_later_it_is_tried_again)
{
    struct hdt_gwjob *job = hdt_gwjob_find(&hdt_ctl_gw, hdt_ctl_submit());

    cr_expect(hdt_loss_answer_refused("b", HDT_EIO));
    cr_expect_eq(job->state, HDT_GWJOB_FAILED);

    hdt_fake_dataplane_reset();
    job = hdt_loss_running();
    hdt_loss_report_failed(job, HDT_ERANK);
    cr_expect(hdt_loss_answer_released("1"));
    cr_expect(hdt_loss_answer_released("b"));
    cr_expect(hdt_loss_answer_refused("b", HDT_EIO));
    cr_expect_eq(job->state, HDT_GWJOB_RECOVERING);
    cr_expect_eq(job->epoch, 3);
}

Test(recovery, reports_of_an_epoch_that_is_over_do_not_count_but_its_checkpoint_does)
{
    struct hdt_gwjob *job = hdt_loss_running();
    struct hdt_gwjob old = *job;

    hdt_loss_report_step(job, 5);
    hdt_loss_report_failed(job, HDT_ERANK);
    hdt_loss_report_step(&old, 6);
    cr_expect_eq(job->step, 5);
    hdt_loss_report_failed(&old, HDT_EJOB);
    cr_expect_eq(job->state, HDT_GWJOB_RECOVERING);
    hdt_loss_report_checkpoint(&old, 4, "/ckpt/step-00000004");
    cr_expect_str_eq(hdt_gwjob_resume(job), "/ckpt/step-00000004");
}

/* ---- limits ---- */

static void restart_once(struct hdt_gwjob *job)
{
    hdt_loss_report_failed(job, HDT_ERANK);
    cr_assert_eq(job->state, HDT_GWJOB_RECOVERING);
    cr_assert(hdt_loss_answer_released("1"));
    cr_assert(hdt_loss_answer_released("b"));
    hdt_loss_pass(40000000);
    cr_assert_eq(job->state, HDT_GWJOB_PREPARING);
    cr_assert(hdt_loss_answer_ready_at("1", 0));
    cr_assert(hdt_loss_answer_ready_at("b", 0));
    cr_assert_eq(job->state, HDT_GWJOB_RUNNING);
    cr_assert(hdt_loss_answer_started("1", true));
    cr_assert(hdt_loss_answer_started("b", true));
    hdt_fake_dataplane_reset();
}

Test(recovery, restarts_in_a_row_that_bring_nothing_end_the_job)
{
    struct hdt_gwjob *job = hdt_loss_running();

    hdt_loss_report_step(job, 1);
    for (int i = 0; i < 4; i++) {
        restart_once(job);
        hdt_loss_report_step(job, 1); /* seen before */
    }
    hdt_loss_report_step(job, 2);
    for (int i = 0; i < 5; i++) {
        restart_once(job);
    }
    hdt_loss_report_failed(job, HDT_ERANK);
    cr_expect_eq(job->state, HDT_GWJOB_FAILED);
    cr_expect_not_null(strstr(job->error.hint, "5 restarts in a row"));
}

Test(recovery, a_second_restart_in_a_row_waits_longer)
{
    struct hdt_gwjob *job = hdt_loss_running();

    restart_once(job);
    hdt_loss_report_failed(job, HDT_ERANK);
    cr_assert(hdt_loss_answer_released("1"));
    cr_assert(hdt_loss_answer_released("b"));
    cr_expect_eq(job->state, HDT_GWJOB_RECOVERING);
    hdt_loss_pass(1000000);
    cr_expect_eq(job->state, HDT_GWJOB_PREPARING);
}

Test(recovery, a_job_is_given_up_when_its_workers_do_not_come)
{
    struct hdt_gwjob *job = hdt_loss_running();

    hdt_loss_report_checkpoint(job, 2, "/ckpt/step-00000002");
    hdt_loss_own_worker_goes();
    hdt_loss_pass(4000000);
    cr_assert_eq(job->state, HDT_GWJOB_RECOVERING);
    hdt_loss_pass(job->conf.recovery.give_up * 1000 - 10000000);
    cr_expect_eq(job->state, HDT_GWJOB_RECOVERING);
    hdt_loss_pass(10000000);
    cr_expect_eq(job->state, HDT_GWJOB_FAILED);
    cr_expect_not_null(strstr(job->error.hint, "/ckpt/step-00000002"));
}

Test(recovery, on_loss_fail_ends_the_job_with_the_reason)
{
    struct hdt_gwjob *job = hdt_loss_running();

    job->conf.recovery.on_loss = HDT_ON_LOSS_FAIL;
    hdt_loss_own_worker_goes();
    hdt_loss_pass(4000000);
    cr_expect_eq(job->state, HDT_GWJOB_FAILED);
    cr_expect_not_null(strstr(job->error.msg, "a/w0"));
}

/* ---- stop ---- */

Test(recovery, a_job_that_waits_can_be_stopped_and_names_its_checkpoint)
{
    struct hdt_gwjob *job = hdt_loss_running();

    hdt_loss_report_checkpoint(job, 2, "/ckpt/step-00000002");
    hdt_loss_own_worker_goes();
    hdt_loss_pass(4000000);
    hdt_loss_stop_job();
    cr_expect_eq(job->state, HDT_GWJOB_STOPPED);
    cr_expect_not_null(strstr(job->error.msg, "/ckpt/step-00000002"));
    hdt_loss_own_worker_comes("0000000000000002", 0, 0);
    hdt_loss_tick();
    cr_expect_eq(job->state, HDT_GWJOB_STOPPED);
}

Test(recovery, a_job_that_was_asked_to_stop_does_not_begin_again)
{
    struct hdt_gwjob *job = hdt_loss_running();

    hdt_loss_stop_job();
    cr_assert_eq(job->state, HDT_GWJOB_STOPPING);
    hdt_loss_own_worker_goes();
    hdt_loss_pass(4000000);
    cr_expect_eq(job->state, HDT_GWJOB_STOPPED);
    cr_expect_not_null(strstr(job->error.msg, "a/w0"));
}

/* ---- the end ---- */

static struct hdt_gwjob *finishing(void)
{
    struct hdt_gwjob *job = hdt_loss_running();

    hdt_ctl_from_client(HDT_CTL_WORKER, hdt_loss_report("done", job,
                                                        json_pack("{s:i, s:s}", "steps", 3,
                                                                  "weights_digest", "00ff")));
    cr_assert_eq(job->state, HDT_GWJOB_FINISHING);
    return job;
}

Test(recovery, a_worker_that_has_done_its_part_may_go)
{
    struct hdt_gwjob *job = hdt_loss_running();

    hdt_ctl_rank_done(job->job, 0);
    hdt_loss_own_worker_goes();
    hdt_loss_pass(60000000);
    cr_expect_eq(job->state, HDT_GWJOB_RUNNING);
}

Test(recovery, a_loss_after_the_last_checkpoint_costs_a_trace)
{
    struct hdt_gwjob *job = finishing();

    hdt_loss_report_checkpoint(job, 3, "/ckpt/step-00000003");
    hdt_ctl_rank_done(job->job, 1);
    hdt_loss_own_worker_goes();
    hdt_loss_pass(4000000);
    cr_expect_eq(job->state, HDT_GWJOB_FINISHING);
    cr_expect_eq(job->n_ranks_done, 2);
    cr_expect_not_null(hdt_fake_dataplane_take("b", "job.wan.get"));
}

Test(recovery, a_loss_before_the_last_checkpoint_costs_the_steps_since_the_one_before)
{
    struct hdt_gwjob *job = finishing();

    hdt_loss_own_worker_goes();
    hdt_loss_pass(4000000);
    cr_expect_eq(job->state, HDT_GWJOB_RECOVERING);
    cr_expect_not(job->root_done);
}

/* ---- restarts of the coordinator ---- */

Test(recovery, a_restarted_coordinator_goes_on_with_a_job_that_was_prepared)
{
    uint32_t number = hdt_ctl_submit();
    struct hdt_gwjob *job;

    hdt_ctl_answer_ready("1", "a/w0");
    hdt_ctl_gateway_restart();
    job = hdt_gwjob_find(&hdt_ctl_gw, number);
    cr_assert_eq(job->state, HDT_GWJOB_RECOVERING);
    cr_expect_eq(job->epoch, 2);
    hdt_loss_tick();
    cr_expect(hdt_loss_answer_released("1"));
    cr_expect(hdt_loss_answer_released("b"));
    cr_expect_eq(job->state, HDT_GWJOB_PREPARING);
}

Test(recovery, a_restarted_coordinator_goes_on_with_a_job_that_recovers)
{
    struct hdt_gwjob *job = hdt_loss_running();
    uint32_t number = job->job;

    hdt_loss_report_step(job, 2);
    hdt_loss_report_checkpoint(job, 1, "/ckpt/step-00000001");
    hdt_loss_own_worker_goes();
    hdt_loss_pass(4000000);
    hdt_loss_pass(3600 * 1000000LL);
    hdt_ctl_gateway_restart();
    job = hdt_gwjob_find(&hdt_ctl_gw, number);
    cr_assert_not_null(job);
    cr_assert_eq(job->state, HDT_GWJOB_RECOVERING);
    cr_expect_eq(job->epoch, 2);
    cr_expect_eq(job->n_attempts, 1);
    cr_expect_str_eq(hdt_gwjob_resume(job), "/ckpt/step-00000001");
    hdt_loss_tick();
    cr_expect(hdt_loss_answer_released("1"));
    cr_expect(hdt_loss_answer_released("b"));
    cr_expect_eq(job->state, HDT_GWJOB_PREPARING);
    cr_expect(hdt_loss_answer_ready_at("1", 1));
    cr_expect(hdt_loss_answer_ready_at("b", 1));
    cr_expect_eq(job->state, HDT_GWJOB_RUNNING);
}

Test(recovery, workers_that_do_not_come_back_to_a_restarted_gateway_are_lost)
{
    struct hdt_gwjob *job = hdt_loss_running();
    uint32_t number = job->job;

    hdt_ctl_gateway_restart();
    job = hdt_gwjob_find(&hdt_ctl_gw, number);
    cr_expect(hdt_loss_answer_started("1", true) ||
              (hdt_loss_tick(), hdt_loss_answer_started("1", true)));
    hdt_ctl_from_peer("b", "b",
                      hdt_msg_new("site.info", "a", json_pack("{s:[], s:[]}", "workers", "sites")));
    hdt_loss_pass(5000000);
    cr_expect_eq(job->state, HDT_GWJOB_RUNNING, "they have to dial first");
    hdt_loss_pass(15000000);
    cr_expect_eq(job->state, HDT_GWJOB_RECOVERING);
}

/* ---- at a member's gateway ---- */

Test(recovery, an_older_epoch_is_over_where_a_newer_one_is_known)
{
    struct hdt_gwjob *job = hdt_loss_running();
    json_t *older;

    hdt_loss_own_worker_goes();
    hdt_loss_pass(4000000);
    hdt_loss_own_worker_comes("0000000000000002", 0, 0);
    cr_assert(hdt_loss_answer_released("1"));
    cr_assert(hdt_loss_answer_released("b"));
    cr_assert_eq(job->state, HDT_GWJOB_PREPARING);
    hdt_fake_dataplane_reset();
    /* The worker was away when its epoch ended. */
    hdt_loss_own_worker_goes();
    hdt_loss_own_worker_comes("0000000000000002", job->job, 1);
    older = hdt_fake_dataplane_take("1", "release");
    cr_assert_not_null(older);
    cr_expect_eq(json_integer_value(json_object_get(hdt_msg_body(older), "epoch")), 1);
    /* So was a site: it still counts the bytes of that epoch. */
    hdt_ctl_from_peer(
        "b", "b",
        hdt_msg_new("job.wan", "a",
                    json_pack("{s:I, s:i}", "job", (json_int_t)job->job, "epoch", 1)));
    older = hdt_fake_dataplane_take("b", "job.close");
    cr_assert_not_null(older);
    cr_expect_eq(json_integer_value(json_object_get(hdt_msg_body(older), "epoch")), 1);
    /* And an end of an old epoch does not end the new one. */
    hdt_ctl_from_peer(
        "b", "b",
        hdt_msg_new("job.close", "a",
                    json_pack("{s:I, s:i}", "job", (json_int_t)job->job, "epoch", 1)));
    cr_expect_eq(hdt_fake_dataplane_n_jobs_closed(), 0);
}
