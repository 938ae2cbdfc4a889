/* SPDX-License-Identifier: Apache-2.0 */
/* A coordinator over a weekend: foreign words, restarts at bad moments, checkpoints that are bad.
 */
#include "config.h"

#include "gateway/member.h"
#include "gateway/recovery.h"
#include "src/base/buf.h"
#include "src/core/msg.h"
#include "tests/support/loss_rig.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

TestSuite(job_faults, .init = hdt_ctl_setup, .fini = hdt_ctl_teardown);

/* A job on sites b and c, coordinated at a. */
static struct hdt_gwjob *job_elsewhere(void)
{
    json_t *msg = hdt_ctl_submit_msg(), *reply, *plan;
    struct hdt_gwjob *job;

    plan = json_object_get(hdt_msg_body(msg), "plan");
    json_object_set_new(json_array_get(json_object_get(plan, "ranks"), 0), "site",
                        json_string("c"));
    hdt_ctl_peer_up("c");
    hdt_ctl_from_client(HDT_CTL_OPERATOR, msg);
    reply = hdt_fake_dataplane_take("2", "submitted");
    cr_assert_not_null(reply);
    job = hdt_gwjob_find(&hdt_ctl_gw,
                         json_integer_value(json_object_get(hdt_msg_body(reply), "job")));
    json_decref(reply);
    hdt_ctl_answer_ready("c", "c/w0");
    hdt_ctl_answer_ready("b", "b/w0");
    cr_assert_eq(job->state, HDT_GWJOB_RUNNING);
    return job;
}

Test(job_faults, a_coordinator_without_a_part_in_the_job_is_no_member_after_a_restart)
{
    const uint32_t number = job_elsewhere()->job;
    struct hdt_error why = {0};

    hdt_ctl_gateway_restart();
    hdt_ctl_peer_up("c");
    cr_expect_null(hdt_ctl_gw.members);
    hdt_member_tick(&hdt_ctl_gw);
    cr_expect_eq(hdt_ctl_gw.n_refused_messages, 0);
    hdt_error_set(&why, HDT_EJOB, "diverged");
    hdt_gwjob_fail(&hdt_ctl_gw, hdt_gwjob_find(&hdt_ctl_gw, number), &why);
    hdt_member_tick(&hdt_ctl_gw);
}

/* Both workers let go; a/w0 names the newest checkpoint that it wrote. */
static void answer_released(void)
{
    for (int k = 0; k < 2; k++) {
        json_t *msg, *body;

        while ((msg = hdt_fake_dataplane_take(k ? "b" : "1", "release"))) {
            body = k ? json_object()
                     : json_pack("{s:{s:i, s:s, s:f}}", "checkpoint", "step", 2, "path",
                                 "/ckpt/step-00000002", "seconds", 1.0);
            body = hdt_msg_reply(msg, "released", body);
            if (k) {
                hdt_ctl_from_peer("b", "b/w0", body);
            } else {
                hdt_ctl_from_client(HDT_CTL_WORKER, body);
            }
            json_decref(msg);
        }
    }
}

Test(job_faults, a_checkpoint_that_could_not_be_used_is_not_taken_up_again)
{
    struct hdt_gwjob *job = hdt_loss_running();
    int n_restarts = 0;

    hdt_loss_report_step(job, 1);
    hdt_loss_report_checkpoint(job, 1, "/ckpt/step-00000001");
    hdt_loss_report_step(job, 2);
    hdt_loss_report_checkpoint(job, 2, "/ckpt/step-00000002");
    while (n_restarts < 20) {
        struct hdt_error why = {0};
        json_t *msg;

        hdt_error_set(&why, HDT_ETIMEDOUT, "again");
        hdt_recovery_begin(&hdt_ctl_gw, job, &why);
        if (job->state != HDT_GWJOB_RECOVERING) {
            break;
        }
        answer_released();
        hdt_loss_pass(40000000);
        hdt_loss_tick();
        msg = hdt_fake_dataplane_take("1", "assign");
        cr_assert_not_null(msg);
        if (n_restarts++ > 0) {
            cr_expect_str_eq(json_string_value(json_object_get(hdt_msg_body(msg), "resume")),
                             "/ckpt/step-00000001");
        }
        hdt_ctl_from_client(HDT_CTL_WORKER,
                            hdt_msg_reply(msg, "ready",
                                          json_pack("{s:i, s:s}", "start_step", 1, "resume",
                                                    "/ckpt/step-00000001")));
        json_decref(msg);
        hdt_loss_answer_ready_at("b", 1);
    }
    cr_expect_eq(job->state, HDT_GWJOB_FAILED, "it restarts for ever");
    cr_expect_eq(n_restarts, job->conf.recovery.attempts);
}

Test(job_faults, what_a_worker_says_of_ranks_is_kept_as_far_as_it_is_expected)
{
    struct hdt_gwjob *job = hdt_ctl_run();
    json_t *ranks = json_array(), *msg, *status;
    struct hdt_buf bytes = {0};

    for (int i = 0; i < 20; i++) { /* as deep as a message may be, but not two levels deeper */
        json_t *outer = json_array();

        json_array_append_new(outer, ranks);
        ranks = outer;
    }
    json_array_append_new(ranks,
                          json_pack("{s:i, s:f, s:s}", "rank", 1, "busy_s", 0.5, "more", "x"));
    json_array_append_new(ranks, json_pack("{s:i}", "rank", 7));
    msg = hdt_ctl_job_msg("step", job->job);
    json_object_update_new(json_object_get(msg, "b"),
                           json_pack("{s:i, s:f, s:i, s:f, s:o}", "step", 1, "loss", 1.0, "tokens",
                                     4, "step_s", 1.0, "ranks", ranks));
    hdt_ctl_from_client(HDT_CTL_WORKER, msg);
    cr_assert_eq(job->step, 1);
    cr_expect_eq(json_array_size(job->ranks), 2, "%zu", json_array_size(job->ranks));
    cr_expect_null(json_object_get(json_array_get(job->ranks, 1), "more"));
    status = json_pack("{s:s, s:{s:o}}", "t", "status.is", "b", "jobs",
                       hdt_coordinator_status(&hdt_ctl_gw));
    hdt_msg_encode(status, &bytes);
    json_decref(status);
    hdt_buf_release(&bytes);
}

static const char *state_reason(struct hdt_gwjob *job)
{
    static char reason[256];
    json_t *body = hdt_gwjob_state_body(&hdt_ctl_gw, job);
    const char *msg = json_string_value(json_object_get(json_object_get(body, "error"), "msg"));

    snprintf(reason, sizeof(reason), "%s", msg ? msg : "");
    json_decref(body);
    return reason;
}

Test(job_faults, the_reason_of_a_recovery_outlives_its_coordinator)
{
    struct hdt_gwjob *job = hdt_loss_running();
    const uint32_t number = job->job;
    char reason[256];

    hdt_loss_report_step(job, 1);
    hdt_loss_own_worker_goes();
    hdt_loss_pass(4000000);
    hdt_loss_tick();
    cr_assert_eq(job->state, HDT_GWJOB_RECOVERING);
    snprintf(reason, sizeof(reason), "%s", state_reason(job));
    cr_expect(strstr(reason, "a/w0") != NULL, "%s", reason);
    hdt_ctl_gateway_restart();
    job = hdt_gwjob_find(&hdt_ctl_gw, number);
    cr_expect_str_eq(state_reason(job), reason);
}

Test(job_faults, a_move_to_workers_that_never_come_ends_with_a_reason)
{
    struct hdt_gwjob *job = hdt_loss_running();

    hdt_loss_report_step(job, 1);
    hdt_recovery_move(&hdt_ctl_gw, job);
    job->lost_us -= job->conf.recovery.give_up * 1000 + 10000000;
    hdt_loss_tick();
    cr_assert_eq(job->state, HDT_GWJOB_FAILED);
    cr_expect(strstr(state_reason(job), "next plan") != NULL, "'%s'", state_reason(job));
}

Test(job_faults, deadlines_follow_the_knobs_of_the_sites_not_what_was_settled_before)
{
    struct hdt_gwjob *job = hdt_loss_running();
    struct hdt_error err = {0};

    cr_assert_eq(job->conf.progress_timeout, 0, "the user has set one");
    hdt_federation_site(&hdt_ctl_gw, "b")->progress_timeout_ms = 120000;
    cr_expect_eq(hdt_gwjob_settle_deadlines(&hdt_ctl_gw, job, &err), HDT_OK, "%s", err.msg);
    cr_expect_geq(job->deadlines.rank_us, 120000000);
}

Test(job_faults, an_order_lost_with_a_connection_that_was_replaced_is_given_again)
{
    json_t *hello =
        json_pack("{s:s, s:{s:s, s:s, s:I, s:i}}", "instance", "0000000000000001", "device", "name",
                  "test", "backend", "cpu", "memory_bytes", (json_int_t)1 << 30, "threads", 1);
    json_t *msg;

    hdt_ctl_submit();
    msg = hdt_fake_dataplane_take("1", "assign");
    cr_assert_not_null(msg);
    json_decref(msg);
    hdt_federation_worker_up(&hdt_ctl_gw, hdt_federation_client(&hdt_ctl_gw, HDT_CTL_WORKER),
                             hello);
    hdt_loss_tick();
    msg = hdt_fake_dataplane_take("1", "assign");
    cr_expect_not_null(msg);
    json_decref(msg);
    json_decref(hello);
}

Test(job_faults, a_plan_with_sites_that_cannot_be_is_refused)
{
    json_t *msg = hdt_ctl_submit_msg();
    json_t *conf = json_object_get(hdt_msg_body(msg), "job");
    struct hdt_error err = {0};
    struct hdt_gwjob *job;

    json_object_set_new(json_object_get(conf, "plan"), "sites", json_pack("[s]", "site b"));
    cr_expect_eq(hdt_gwjob_parse((json_t *)hdt_msg_body(msg), "job", &job, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "site b") != NULL, "%s", err.msg);
    json_decref(msg);
}
