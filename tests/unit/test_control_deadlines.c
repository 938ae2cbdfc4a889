/* SPDX-License-Identifier: Apache-2.0 */
/* What a job waits for: settled between its sites, moved by who works. */
#include "config.h"

#include "src/core/msg.h"
#include "tests/support/control_rig.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(control_deadlines, .init = hdt_ctl_setup, .fini = hdt_ctl_teardown);

static void expect_refused(json_int_t timeout_ms, const char *site, const char *ours,
                           const char *theirs)
{
    json_t *msg = hdt_ctl_submit_msg();
    json_t *job = json_object_get(json_object_get(msg, "b"), "job"), *refusal;
    const char *text;

    json_object_set_new(job, "progress_timeout", json_integer(timeout_ms));
    hdt_ctl_from_client(HDT_CTL_OPERATOR, msg);
    cr_assert_not_null(refusal = hdt_fake_dataplane_take("2", "error"));
    text = json_string_value(json_object_get(hdt_msg_body(refusal), "msg"));
    cr_expect_not_null(strstr(text, site), "%s", text);
    cr_expect_not_null(strstr(text, ours), "%s", text);
    cr_expect_not_null(strstr(text, theirs), "%s", text);
    json_decref(refusal);
}

/* What is refused names both values; what is taken reaches the workers as one settled number. */
Test(control_deadlines, a_job_and_its_gateways_agree_on_how_long_to_wait)
{
    json_t *hello =
        json_pack("{s:s, s:I}", "version", "1", "progress_timeout_ms", (json_int_t)120000);
    json_t *assign;

    expect_refused(20000, "site a", "20 s", "60 s");
    hdt_federation_peer_up(&hdt_ctl_gw, "b", hello); /* a patient peer: the larger knob counts */
    json_decref(hello);
    expect_refused(60000, "site b", "60 s", "120 s");

    hdt_ctl_submit();
    cr_assert_not_null(assign = hdt_fake_dataplane_take("b", "assign"));
    cr_expect_eq(json_integer_value(json_object_get(json_object_get(hdt_msg_body(assign), "conf"),
                                                    "progress_timeout")),
                 120000);
    json_decref(assign);
}

static json_t *alive_msg(uint32_t job, int rank)
{
    return hdt_msg_new("task.alive", "a",
                       json_pack("{s:I, s:i, s:i, s:s, s:i, s:i}", "job", (json_int_t)job, "epoch",
                                 1, "rank", rank, "phase", "saving", "done", 3, "total", 9));
}

/* Is an "alive" among the events that the operator was told? */
static bool operator_heard_alive(void)
{
    json_t *event;
    bool found = false;

    while ((event = hdt_fake_dataplane_take("2", "job.event"))) {
        const char *name = json_string_value(json_object_get(hdt_msg_body(event), "event"));

        found = found || strcmp(name, "alive") == 0;
        json_decref(event);
    }
    return found;
}

Test(control_deadlines, a_rank_at_work_is_told_to_all_and_waited_for)
{
    struct hdt_gwjob *job = hdt_ctl_run();
    json_t *relayed;

    hdt_ctl_rank_done(job->job, 1);
    hdt_ctl_from_peer("b", "b/w0", alive_msg(job->job, 0)); /* not its rank */
    cr_expect_eq(job->alive[0].at_us, 0);
    hdt_ctl_from_client(HDT_CTL_WORKER, hdt_ctl_job_msg("done", job->job));
    cr_assert_eq(job->state, HDT_GWJOB_FINISHING);
    job->state_since_us -= 2 * job->deadlines.rank_us;
    hdt_ctl_from_client(HDT_CTL_WORKER, alive_msg(job->job, 0));
    cr_expect(operator_heard_alive());
    cr_assert_not_null(relayed = hdt_fake_dataplane_take("b", "task.alive"));
    json_decref(relayed);
    hdt_coordinator_tick(&hdt_ctl_gw);
    cr_expect_eq(job->state, HDT_GWJOB_FINISHING);
    /* And when it says nothing more, the message names it and what it was at. */
    job->last_report_us -= 2 * job->deadlines.rank_us;
    hdt_coordinator_tick(&hdt_ctl_gw);
    cr_expect_neq(job->state, HDT_GWJOB_FINISHING);
    cr_expect_not_null(strstr(job->error.msg, "rank 0 (a/w0, saving 3 of 9"), "%s", job->error.msg);
}
