/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks wait for, at the gateway of the job; and workers that other sites' jobs keep busy. */
#include "config.h"

#include "gateway/coordinator.h"
#include "gateway/rank_state.h"
#include "src/base/clock.h"
#include "src/core/msg.h"
#include "tests/support/control_rig.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

TestSuite(rank_state, .init = hdt_ctl_setup, .fini = hdt_ctl_teardown);

static json_t *rank_state(const struct hdt_gwjob *job, int rank, int flow, double since_s)
{
    return hdt_msg_new("rank.state", "a",
                       json_pack("{s:I, s:i, s:i, s:i, s:s, s:i, s:s, s:i, s:i, s:f}", "job",
                                 (json_int_t)job->job, "epoch", 1, "rank", rank, "step", 41, "op",
                                 "RECV_FORWARD", "mb", 7, "what", "arrival", "flow", flow, "seq",
                                 99, "since_s", since_s));
}

static int activation_flow(const struct hdt_gwjob *job)
{
    return hdt_plan_find_flow(&job->plan, HDT_FLOW_ACTIVATION, 0, 1, 0, 1);
}

static const char *wait_text(struct hdt_gwjob *job)
{
    static char text[512];
    json_t *waits = hdt_rank_waits_json(job);
    const char *s = json_string_value(json_object_get(json_array_get(waits, 0), "text"));

    snprintf(text, sizeof(text), "%s", s ? s : "");
    json_decref(waits);
    return text;
}

Test(rank_state, a_rank_that_waits_is_shown_with_whom_it_waits_for)
{
    struct hdt_gwjob *job = hdt_ctl_run();
    const int flow = activation_flow(job);
    char want[128];
    json_t *event, *msg;

    cr_assert_geq(flow, 0);
    msg = rank_state(job, 1, flow, 12);
    json_object_update_new(json_object_get(msg, "b"),
                           json_pack("{s:s, s:f}", "link", "suspect", "link_s", 10.0));
    hdt_ctl_from_peer("b", "b", msg);
    snprintf(want, sizeof(want),
             "rank 1 (b/w0) waits 12 s for activation 7 of step 41 from rank 0 (a/w0) over flow "
             "%d, a -> b: link suspect since 10 s",
             flow);
    cr_expect_str_eq(wait_text(job), want);
    cr_expect_null(hdt_fake_dataplane_take("2", "waiting"), "a step came a moment ago");
    job->last_report_us -= 60 * HDT_US_PER_S;
    hdt_ctl_from_peer("b", "b", rank_state(job, 1, flow, 13));
    while ((event = hdt_fake_dataplane_take("2", "job.event")) &&
           strcmp(json_string_value(json_object_get(hdt_msg_body(event), "event")), "waiting")) {
        json_decref(event);
    }
    cr_assert(event, "who follows the job is not told");
    json_decref(event);
    hdt_ctl_from_peer("b", "b", rank_state(job, 1, flow, 0));
    cr_expect_str_eq(wait_text(job), "");
}

Test(rank_state, only_who_runs_a_rank_says_what_it_waits_for)
{
    struct hdt_gwjob *job = hdt_ctl_run();
    const int flow = activation_flow(job);

    hdt_ctl_from_peer("b", "b", rank_state(job, 0, flow, 12)); /* a's rank */
    hdt_ctl_from_peer("b", "b", rank_state(job, 7, flow, 12));
    hdt_ctl_from_peer("b", "b", rank_state(job, -1, flow, 12));
    hdt_ctl_from_peer("b", "b", rank_state(job, 1, 1000, 12));         /* no such flow */
    hdt_ctl_from_client(HDT_CTL_WORKER, rank_state(job, 1, flow, 12)); /* b's rank */
    hdt_ctl_from_client(HDT_CTL_OPERATOR, hdt_ctl_with_id(rank_state(job, 0, flow, 12), 3));
    cr_expect_str_eq(hdt_ctl_error_to("2"), "EACCES");
    cr_expect_str_eq(wait_text(job), "");
}

Test(rank_state, a_worker_of_a_job_of_two_other_sites_is_busy)
{
    json_t *info = json_pack("{s:[{s:s, s:s, s:b, s:s, s:s}], s:[]}", "workers", "name", "w0",
                             "device", "test", "up", 1, "instance", "7", "busy_by", "c", "sites");

    hdt_ctl_peer_up("c");
    cr_expect_not(hdt_coordinator_worker_is_busy(&hdt_ctl_gw, "b", "w0"));
    hdt_ctl_from_peer("b", "b", hdt_msg_new("site.info", "a", info));
    cr_expect(hdt_coordinator_worker_is_busy(&hdt_ctl_gw, "b", "w0"));
    hdt_ctl_peer_up("b");
    cr_expect_not(hdt_coordinator_worker_is_busy(&hdt_ctl_gw, "b", "w0"));
}

/* A wait of an epoch that is over may name a flow that the new plan does not have. */
Test(rank_state, a_new_epoch_forgets_what_ranks_waited_for)
{
    struct hdt_gwjob *job = hdt_ctl_run();

    hdt_ctl_from_peer("b", "b", rank_state(job, 1, activation_flow(job), 12));
    cr_expect_str_neq(wait_text(job), "");
    job->epoch++;
    cr_expect_str_eq(wait_text(job), "");
    hdt_ctl_from_peer("b", "b", rank_state(job, 1, activation_flow(job), 13));
    cr_expect_str_eq(wait_text(job), "", "it says epoch 1");
}
