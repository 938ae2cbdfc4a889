/* SPDX-License-Identifier: Apache-2.0 */
/* The control plane of a gateway over a data plane without sockets: who may say what, and the life
 * of a job from submit to its end. */
#include "config.h"

#include "gateway/coordinator.h"
#include "gateway/member.h"
#include "gateway/store.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/core/msg.h"
#include "src/net/addr.h"
#include "tests/support/control_rig.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

TestSuite(control, .init = hdt_ctl_setup, .fini = hdt_ctl_teardown);

Test(control, each_role_says_only_what_it_may)
{
    hdt_ctl_from_client(HDT_CTL_OPERATOR, hdt_ctl_with_id(hdt_msg_new("flow.open", "", NULL), 1));
    cr_expect_str_eq(hdt_ctl_error_to("2"), "EACCES");
    hdt_ctl_from_client(HDT_CTL_WORKER, hdt_ctl_with_id(hdt_msg_new("submit", "", NULL), 2));
    cr_expect_str_eq(hdt_ctl_error_to("1"), "EACCES");
    hdt_ctl_from_client(HDT_CTL_OPERATOR,
                        hdt_ctl_with_id(hdt_msg_new("no.such.type", "", NULL), 3));
    cr_expect_str_eq(hdt_ctl_error_to("2"), "ENOTSUP");
    hdt_ctl_from_client(HDT_CTL_OPERATOR,
                        hdt_ctl_with_id(hdt_msg_new("logs", "a/nobody", NULL), 4));
    cr_expect_str_eq(hdt_ctl_error_to("2"), "ENOENT");
}

Test(control, a_peer_speaks_for_its_own_site_only)
{
    hdt_ctl_from_peer("b", "c", hdt_ctl_with_id(hdt_msg_new("links.measure", "a", NULL), 1));
    hdt_ctl_from_peer("b", "a/w0", hdt_ctl_with_id(hdt_msg_new("step", "a", NULL), 2));
    cr_expect_eq(hdt_ctl_gw.n_refused_messages, 2);
    cr_expect_null(hdt_fake_dataplane_take("b", "error"));
    cr_expect_null(hdt_fake_dataplane_take("c", "error"));
    hdt_ctl_from_peer("b", "b/@9", hdt_ctl_with_id(hdt_msg_new("status", "a", NULL), 3));
    cr_expect_not_null(hdt_fake_dataplane_take("b", "status.is"));
}

Test(control, messages_pass_between_clients_and_peers_with_their_true_sender)
{
    json_t *msg = hdt_msg_new("logs", "b/w0", NULL);

    json_object_set_new(msg, "from", json_string("b/liar"));
    hdt_ctl_from_client(HDT_CTL_OPERATOR, hdt_ctl_with_id(msg, 5));
    msg = hdt_fake_dataplane_take("b", "logs");
    cr_assert_not_null(msg);
    cr_expect_str_eq(hdt_msg_from(msg), "a/@2");
    json_decref(msg);
}

Test(control, answers_that_nobody_waits_for_are_not_refused)
{
    static const char *const types[] = {"ready", "started", "released"};
    json_t *late;

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        hdt_ctl_from_client(HDT_CTL_WORKER, hdt_ctl_job_msg(types[i], 1));
        hdt_ctl_from_peer("b", "b/w0", hdt_ctl_job_msg(types[i], 1));
    }
    late = hdt_msg_new("logs.are", "a/@12", NULL); /* whose client has left */
    json_object_set_new(late, "re", json_integer(7));
    hdt_ctl_from_peer("b", "b/w0", late);
    cr_expect_eq(hdt_ctl_gw.n_refused_messages, 0);
    cr_expect_null(hdt_fake_dataplane_take("1", "error"));
    cr_expect_null(hdt_fake_dataplane_take("b", "error"));
    hdt_ctl_from_client(HDT_CTL_OPERATOR, hdt_ctl_job_msg("released", 1));
    hdt_ctl_from_peer("b", "b/w0", hdt_msg_new("logs.are", "a/nobody", NULL));
    hdt_ctl_from_client(HDT_CTL_WORKER, hdt_msg_new("no.such.type", "a", NULL));
    cr_expect_eq(hdt_ctl_gw.n_refused_messages, 3);
}

/* ---- jobs ---- */

Test(control, a_run_keeps_what_it_was_planned_with)
{
    json_t *msg, *plan_json, *bad, *cluster;
    struct hdt_gwjob *job;
    char *path;

    msg = hdt_ctl_submit_msg();
    cluster =
        json_loads("{\"sites\": [{\"name\": \"a\"}], \"workers\": [], \"links\": []}", 0, NULL);
    json_object_set_new(json_object_get(msg, "b"), "cluster", cluster);
    bad = json_deep_copy(msg);
    json_object_set_new(json_object_get(bad, "b"), "cluster", json_string("no cluster"));
    hdt_ctl_from_client(HDT_CTL_OPERATOR, bad);
    bad = hdt_fake_dataplane_take("2", "error");
    cr_expect_not_null(bad);
    json_decref(bad);
    json_incref(cluster);
    hdt_ctl_from_client(HDT_CTL_OPERATOR, msg);
    json_decref(hdt_fake_dataplane_take("2", "submitted"));
    job = hdt_ctl_gw.jobs;
    cr_assert(job && !job->next);
    path = hdt_asprintf("%s/plan.json", job->run_dir);
    plan_json = json_load_file(path, 0, NULL);
    cr_assert_not_null(plan_json, "%s", path);
    cr_expect(json_equal(json_object_get(plan_json, "cluster"), cluster));
    cr_expect(json_equal(json_object_get(plan_json, "plan"), job->plan_json));
    cr_expect_eq(json_integer_value(json_object_get(plan_json, "epoch")), 1);
    json_decref(cluster);
    json_decref(plan_json);
    free(path);
}

static void report_step(uint32_t job)
{
    hdt_ctl_from_client(
        HDT_CTL_WORKER,
        hdt_msg_new("step", "a",
                    json_pack("{s:I, s:i, s:i, s:f, s:f, s:i}", "job", (json_int_t)job, "epoch", 1,
                              "step", 1, "loss", 2.5, "step_s", 0.5, "tokens", 1000)));
}

static void report_end(uint32_t job)
{
    hdt_ctl_from_client(HDT_CTL_WORKER,
                        hdt_msg_new("done", "a",
                                    json_pack("{s:I, s:i, s:i, s:s}", "job", (json_int_t)job,
                                              "epoch", 1, "steps", 3, "weights_digest", "00ff")));
    hdt_ctl_rank_done(job, 0);
    hdt_ctl_rank_done(job, 0); /* said twice is not done twice */
    cr_expect_null(hdt_fake_dataplane_take("b", "job.wan.get"));
    hdt_ctl_rank_done(job, 1);
}

static void answer_wan(uint32_t job)
{
    json_t *wan = hdt_fake_dataplane_take("b", "job.wan.get");

    cr_assert_not_null(wan);
    hdt_ctl_from_peer("b", "b",
                      hdt_msg_reply(wan, "job.wan",
                                    json_pack("{s:I, s:i, s:i}", "job", (json_int_t)job, "raw", 200,
                                              "sent", 100)));
    json_decref(wan);
}

Test(control, a_job_is_prepared_started_followed_and_ended)
{
    uint32_t job = hdt_ctl_submit();

    cr_expect_not_null(hdt_fake_dataplane_take("b", "job.plan"));
    hdt_ctl_answer_ready("1", "a/w0");
    cr_expect_null(hdt_fake_dataplane_take("1", "start"));
    hdt_ctl_answer_ready("b", "b/w0");
    cr_expect_not_null(hdt_fake_dataplane_take("1", "start"));
    cr_expect_not_null(hdt_fake_dataplane_take("b", "start"));
    hdt_ctl_expect_state("running");
    report_step(job);
    report_end(job);
    answer_wan(job);
    hdt_ctl_expect_state("done");
    cr_expect_not_null(hdt_fake_dataplane_take("1", "release"));
    cr_expect_not_null(hdt_fake_dataplane_take("b", "job.close"));
}

/* The only job in the answer to "status". */
static const json_t *status_job(json_t **status)
{
    hdt_ctl_from_client(HDT_CTL_OPERATOR, hdt_ctl_with_id(hdt_msg_new("status", "", NULL), 11));
    *status = hdt_fake_dataplane_take("2", "status.is");
    cr_assert_eq(json_array_size(json_object_get(hdt_msg_body(*status), "jobs")), 1);
    return json_array_get(json_object_get(hdt_msg_body(*status), "jobs"), 0);
}

static const char *text_in(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text ? text : "";
}

Test(control, a_restarted_gateway_still_shows_a_job_that_is_done)
{
    const uint32_t number = hdt_ctl_run()->job;
    const json_t *job;
    json_t *status, *event;
    char *run_dir;

    report_step(number);
    report_end(number);
    answer_wan(number);
    run_dir = hdt_strdup(hdt_ctl_gw.jobs->run_dir);
    hdt_ctl_gateway_restart();
    cr_expect_null(hdt_fake_dataplane_take("1", "release"), "it is over");
    cr_expect_null(hdt_fake_dataplane_take("b", "job.plan"));
    job = status_job(&status);
    cr_expect_str_eq(text_in(job, "state"), "done");
    cr_expect_str_eq(text_in(job, "run_dir"), run_dir, "where plan --validate looks");
    cr_expect_eq(json_integer_value(json_object_get(job, "number")), 1);
    cr_expect_float_eq(json_number_value(json_object_get(job, "loss")), 2.5, 1e-9);
    cr_expect_leq(json_number_value(json_object_get(job, "since_s")), 60);
    json_decref(status);
    cr_expect_not(hdt_coordinator_worker_is_busy(&hdt_ctl_gw, "a", "w0"));
    hdt_ctl_from_client(
        HDT_CTL_OPERATOR,
        hdt_ctl_with_id(hdt_msg_new("follow", "", json_pack("{s:i, s:i}", "job", 1, "since", 0)),
                        12));
    event = hdt_fake_dataplane_take("2", "job.event");
    cr_expect_str_eq(text_in(hdt_msg_body(event), "event"), "step");
    json_decref(event);
    event = hdt_fake_dataplane_take("2", "job.event");
    cr_expect_str_eq(text_in(hdt_msg_body(event), "event"), "done");
    cr_expect_str_eq(text_in(hdt_msg_body(event), "weights_digest"), "00ff");
    cr_expect_eq(json_integer_value(json_object_get(hdt_msg_body(event), "wan_bytes_sent")), 100);
    json_decref(event);
    free(run_dir);
}

Test(control, a_restarted_gateway_still_says_why_a_job_failed)
{
    struct hdt_gwjob *job = hdt_ctl_run();
    struct hdt_error why = {0};
    json_t *status;

    hdt_error_set(&why, HDT_ENOMEM, "the model does not fit");
    hdt_gwjob_fail(&hdt_ctl_gw, job, &why);
    hdt_ctl_gateway_restart();
    cr_expect_str_eq(text_in(json_object_get(status_job(&status), "error"), "msg"),
                     "the model does not fit");
    json_decref(status);
}

Test(control, a_worker_that_refuses_ends_the_job_with_its_reason)
{
    json_t *assign;
    struct hdt_error err = {0};
    struct hdt_gwjob *job;

    job = hdt_gwjob_find(&hdt_ctl_gw, hdt_ctl_submit());
    hdt_ctl_answer_ready("1", "a/w0");
    assign = hdt_fake_dataplane_take("b", "assign");
    hdt_error_set(&err, HDT_ENOMEM, "the model does not fit");
    hdt_ctl_from_peer("b", "b/w0", hdt_msg_reply_error(assign, &err));
    json_decref(assign);
    hdt_ctl_expect_state("failed");
    cr_expect_not_null(strstr(job->error.msg, "the model does not fit"));
    cr_expect_str_eq(job->error.where, "b/w0");
    cr_expect_not_null(hdt_fake_dataplane_take("1", "stop"));
}

Test(control, a_busy_worker_is_not_given_a_second_job)
{
    hdt_ctl_submit();
    hdt_ctl_from_client(HDT_CTL_OPERATOR, hdt_ctl_submit_msg());
    cr_expect_str_eq(hdt_ctl_error_to("2"), "EEXIST");
}

/* A session that ended a moment ago is no reason to refuse a job: its site is told when it is back.
 */
Test(control, a_job_is_taken_while_a_session_is_opened_anew)
{
    const struct hdt_error why = {.status = HDT_ELINK, .msg = "connection lost"};
    struct hdt_gwjob *job;

    hdt_federation_peer_down(&hdt_ctl_gw, "b", &why);
    job = hdt_gwjob_find(&hdt_ctl_gw, hdt_ctl_submit());
    hdt_ctl_answer_ready("1", "a/w0");
    cr_expect_null(hdt_fake_dataplane_take("b", "assign"));
    hdt_ctl_peer_up("b");
    hdt_ctl_answer_ready("b", "b/w0");
    cr_expect_eq(job->state, HDT_GWJOB_RUNNING);
}

Test(control, a_job_is_refused_while_a_site_stays_away)
{
    const struct hdt_error why = {.status = HDT_ELINK, .msg = "connection lost"};

    hdt_federation_peer_down(&hdt_ctl_gw, "b", &why);
    hdt_federation_site(&hdt_ctl_gw, "b")->since_us -= hdt_ctl_gw.deadlines.reopen_us;
    hdt_ctl_from_client(HDT_CTL_OPERATOR, hdt_ctl_submit_msg());
    cr_expect_str_eq(hdt_ctl_error_to("2"), "EPEER");
}

static json_t *bench_msg(const char *site, bool force, bool echo)
{
    return hdt_ctl_with_id(
        hdt_msg_new("link.bench", echo ? "a" : "",
                    json_pack("{s:s, s:s, s:b, s:b, s:i}", "site", site, "channel", "link-bench-1",
                              "force", force, "echo", echo, "window", 1 << 20)),
        9);
}

/* No load is put on a link that a job needs, unless somebody insists; nor on one that is not there.
 */
Test(control, a_link_is_measured_when_no_job_needs_it)
{
    const struct hdt_error why = {.status = HDT_ELINK, .msg = "connection lost"};

    hdt_ctl_from_client(HDT_CTL_OPERATOR, bench_msg("b", false, false));
    cr_expect_not_null(hdt_fake_dataplane_take("2", "link.benched"));
    hdt_ctl_from_client(HDT_CTL_OPERATOR, bench_msg("c", false, false));
    cr_expect_str_eq(hdt_ctl_error_to("2"), "ENOENT");
    hdt_ctl_from_client(HDT_CTL_OPERATOR, bench_msg("a", false, false));
    cr_expect_str_eq(hdt_ctl_error_to("2"), "EINVAL");
    hdt_ctl_submit();
    hdt_ctl_from_client(HDT_CTL_OPERATOR, bench_msg("b", false, false));
    cr_expect_str_eq(hdt_ctl_error_to("2"), "EEXIST");
    hdt_ctl_from_client(HDT_CTL_OPERATOR, bench_msg("b", true, false));
    cr_expect_not_null(hdt_fake_dataplane_take("2", "link.benched"));
    hdt_federation_peer_down(&hdt_ctl_gw, "b", &why);
    hdt_ctl_from_client(HDT_CTL_OPERATOR, bench_msg("b", true, false));
    cr_expect_str_eq(hdt_ctl_error_to("2"), "EPEER");
}

/* Only an operator of the site at the other end has a program started, for his own end. */
Test(control, a_measurement_has_its_echo_for_the_other_end_only)
{
    hdt_ctl_from_client(HDT_CTL_OPERATOR, bench_msg("b", true, true));
    cr_expect_str_eq(hdt_ctl_error_to("2"), "EACCES");
    hdt_ctl_from_client(HDT_CTL_WORKER, bench_msg("b", true, true));
    cr_expect_str_eq(hdt_ctl_error_to("1"), "EACCES");
    hdt_ctl_from_peer("b", "b", bench_msg("b", true, true));
    cr_expect_str_eq(hdt_ctl_error_to("b"), "EACCES");
    cr_expect_eq(hdt_ctl_gw.echo_pid, 0);
}

static json_t *flow_open_msg(uint32_t job, int flow, const char *end, const struct hdt_plan *plan)
{
    const struct hdt_plan_flow *f = &plan->flows[flow];
    int other = strcmp(end, "src") == 0 ? f->dst_rank : f->src_rank;

    return hdt_ctl_with_id(
        hdt_msg_new("flow.open", "",
                    json_pack("{s:I, s:i, s:i, s:s, s:s, s:i, s:i, s:i, s:I, s:I, s:i, s:i, s:i}",
                              "job", (json_int_t)job, "epoch", 1, "flow", flow, "end", end,
                              "peer_site", plan->ranks[other].site, "prio", (int)f->prio, "codec",
                              0, "dtype", (int)f->dtype, "depth", (json_int_t)f->depth, "frame_cap",
                              (json_int_t)f->frame_cap, "pool", 1, "pool_offset", 0, "next_seq",
                              0)),
        77);
}

Test(control, flows_are_confirmed_by_the_plan)
{
    uint32_t job = hdt_ctl_submit();
    const struct hdt_plan *plan = &hdt_gwjob_find(&hdt_ctl_gw, job)->plan;
    int forward = hdt_plan_find_flow(plan, HDT_FLOW_ACTIVATION, 0, 1, 0, 1);
    json_t *msg;

    cr_assert_geq(forward, 0);
    hdt_ctl_from_client(HDT_CTL_WORKER, flow_open_msg(job, forward, "src", plan));
    cr_expect_eq(hdt_fake_dataplane_n_flows(), 1);
    hdt_ctl_from_client(HDT_CTL_WORKER, flow_open_msg(job + 1, forward, "src", plan));
    cr_expect_str_eq(hdt_ctl_error_to("1"), "ENOENT");
    hdt_ctl_from_client(HDT_CTL_WORKER,
                        flow_open_msg(job, forward, "dst", plan)); /* that end is b/w0's */
    cr_expect_str_eq(hdt_ctl_error_to("1"), "EACCES");
    hdt_ctl_expect_state("failed"); /* told at once, not after a deadline */

    job = hdt_ctl_submit();
    plan = &hdt_gwjob_find(&hdt_ctl_gw, job)->plan;
    msg = flow_open_msg(job, forward, "src", plan);
    json_object_set_new((json_t *)hdt_msg_body(msg), "depth", json_integer(1 << 20));
    hdt_ctl_from_client(HDT_CTL_WORKER, msg);
    cr_expect_str_eq(hdt_ctl_error_to("1"), "EPROTO");
    cr_expect_eq(hdt_fake_dataplane_n_flows(), 1);
}

Test(control, a_restarted_gateway_finds_its_running_job)
{
    uint32_t job = hdt_ctl_submit();
    struct hdt_gwjob *found;

    hdt_ctl_answer_ready("1", "a/w0");
    hdt_ctl_answer_ready("b", "b/w0");
    hdt_ctl_gateway_close();
    hdt_fake_dataplane_reset();
    hdt_ctl_gateway_open();
    hdt_ctl_peer_up("b");
    found = hdt_gwjob_find(&hdt_ctl_gw, job);
    cr_assert_not_null(found);
    cr_expect_eq(found->state, HDT_GWJOB_RUNNING);
    hdt_ctl_from_client(
        HDT_CTL_WORKER,
        flow_open_msg(job, 0, found->plan.flows[0].src_rank == 0 ? "src" : "dst", &found->plan));
    cr_expect_eq(hdt_fake_dataplane_n_flows(), 1);
}

Test(control, who_has_no_part_in_a_job_does_not_report_of_it)
{
    struct hdt_gwjob *job = hdt_ctl_run();

    hdt_ctl_peer_up("c");
    hdt_ctl_from_peer("c", "c/w0", hdt_ctl_with_id(hdt_ctl_job_msg("failed", job->job), 3));
    cr_expect_str_eq(hdt_ctl_error_to("c"), "EACCES");
    hdt_ctl_from_peer("c", "c", hdt_ctl_job_msg("failed", job->job));
    hdt_ctl_from_peer("b", "b/w1", hdt_ctl_job_msg("done", job->job));
    hdt_ctl_from_peer("b", "b/w0",
                      hdt_msg_new("rank.done", "a",
                                  json_pack("{s:I, s:i, s:i}", "job", (json_int_t)job->job, "epoch",
                                            1, "rank", 0))); /* a/w0's */
    cr_expect_eq(job->state, HDT_GWJOB_RUNNING);
    cr_expect_eq(job->n_ranks_done, 0);
    hdt_ctl_from_peer("b", "b", hdt_ctl_job_msg("failed", job->job));
    cr_expect_eq(job->state, HDT_GWJOB_FAILED);
}

Test(control, the_plan_of_a_job_is_not_replaced_by_another_coordinator)
{
    struct hdt_gwjob *job = hdt_ctl_run();
    json_t *plan = hdt_fake_dataplane_take("b", "job.plan"), *body;

    body = json_copy((json_t *)hdt_msg_body(plan));
    json_object_set_new(body, "coordinator", json_string("b"));
    hdt_ctl_from_peer("b", "b", hdt_msg_new("job.plan", "a", body));
    cr_expect_eq(hdt_fake_dataplane_n_jobs_closed(), 0);
    cr_expect_not_null(hdt_fake_dataplane_take("b", "failed")); /* that coordinator learns why */
    hdt_ctl_from_peer("b", "b", hdt_ctl_job_msg("job.close", job->job));
    cr_expect_eq(hdt_fake_dataplane_n_jobs_closed(), 0);
    cr_expect_eq(job->state, HDT_GWJOB_RUNNING);
    json_decref(plan);
}

/* Every plan is memory and a line in the store. */
Test(control, one_coordinator_has_a_bounded_number_of_jobs)
{
    json_t *plan, *body, *failed;
    unsigned n = 0;

    hdt_ctl_run();
    plan = hdt_fake_dataplane_take("b", "job.plan");
    do {
        body = json_copy((json_t *)hdt_msg_body(plan));
        json_object_set_new(body, "coordinator", json_string("b"));
        json_object_set_new(body, "job", json_integer(1000 + n));
        hdt_ctl_from_peer("b", "b", hdt_msg_new("job.plan", "a", body));
        failed = hdt_fake_dataplane_take("b", "failed");
        n++;
    } while (!failed && n < 1000);
    cr_expect_eq(n, 65u);
    json_decref(failed);
    json_decref(plan);
}

/* Two sites that contradict each other would have a third dialled here and there for ever. */
Test(control, a_learned_address_does_not_change_at_once)
{
    static const char *const addresses[] = {"10.0.0.3:7420", "10.0.0.4:7420", "no address",
                                            "10.0.0.3:x"};

    for (int i = 3; i >= 0; i--) {
        hdt_ctl_from_peer("b", "b",
                          hdt_msg_new("site.info", "a",
                                      json_pack("{s:[], s:[{s:s, s:s}]}", "workers", "sites",
                                                "site", "c", "address", addresses[i])));
        if (i > 1) {
            cr_expect_null(hdt_federation_site(&hdt_ctl_gw, "c"));
        }
    }
    cr_assert_not_null(hdt_federation_site(&hdt_ctl_gw, "c"));
    cr_expect_str_eq(hdt_federation_site(&hdt_ctl_gw, "c")->address, addresses[1]);
}

Test(control, a_site_that_was_away_when_a_job_ended_is_told_again)
{
    struct hdt_gwjob *job = hdt_ctl_run();
    struct hdt_error why = {0};
    json_t *hello;

    hdt_error_set(&why, HDT_ECANCELED, "enough");
    hdt_gwjob_fail(&hdt_ctl_gw, job, &why);
    hdt_fake_dataplane_reset();
    hdt_ctl_from_peer("b", "b", hdt_ctl_job_msg("job.wan", job->job)); /* it still has the job */
    cr_expect_not_null(hdt_fake_dataplane_take("b", "job.close"));
    hello = json_pack("{s:s, s:{}, s:[{s:I, s:i}]}", "instance", "0000000000000001", "device",
                      "jobs", "job", (json_int_t)job->job, "epoch", 1);
    hdt_federation_worker_up(&hdt_ctl_gw, hdt_federation_client(&hdt_ctl_gw, HDT_CTL_WORKER),
                             hello);
    cr_expect_not_null(hdt_fake_dataplane_take("1", "release"));
    json_decref(hello);
}

Test(control, a_gateway_restarted_at_the_end_of_a_job_ends_it)
{
    struct hdt_gwjob *job = hdt_ctl_run();
    uint32_t number = job->job;

    hdt_ctl_from_client(HDT_CTL_OPERATOR, hdt_msg_new("stop", "", json_pack("{s:i}", "job", 0)));
    cr_assert_eq(job->state, HDT_GWJOB_STOPPING);
    hdt_ctl_gateway_restart();
    job = hdt_gwjob_find(&hdt_ctl_gw, number);
    cr_assert_eq(job->state, HDT_GWJOB_STOPPING);
    cr_expect_not_null(hdt_fake_dataplane_take("b", "stop")); /* it may have missed that */
    hdt_ctl_from_client(HDT_CTL_WORKER,
                        hdt_msg_new("done", "a",
                                    json_pack("{s:I, s:i, s:i, s:s}", "job", (json_int_t)number,
                                              "epoch", 1, "steps", 2, "weights_digest", "00ff")));
    hdt_ctl_rank_done(number, 1);
    hdt_ctl_gateway_restart();
    job = hdt_gwjob_find(&hdt_ctl_gw, number);
    cr_assert_eq(job->state, HDT_GWJOB_FINISHING);
    cr_expect_str_eq(job->weights_digest, "00ff");
    hdt_ctl_rank_done(number, 0);
    cr_assert_not_null(hdt_fake_dataplane_take("b", "job.wan.get"));
    job->n_waiting = 1;        /* the other site's figures; ours came at once */
    hdt_ctl_gateway_restart(); /* all is done: nothing is waited for but the figures */
    job = hdt_gwjob_find(&hdt_ctl_gw, number);
    cr_expect_not_null(hdt_fake_dataplane_take("b", "job.wan.get"));
}

Test(control, a_worker_that_its_site_names_no_more_is_gone)
{
    json_t *info = hdt_msg_new("site.info", "a", json_pack("{s:[], s:[]}", "workers", "sites"));

    cr_assert(hdt_federation_worker(&hdt_ctl_gw, "b", "w0")->up);
    hdt_ctl_from_peer("b", "b", info);
    cr_expect_not(hdt_federation_worker(&hdt_ctl_gw, "b", "w0")->up);
}

Test(control, jobs_that_are_over_are_forgotten_in_the_end)
{
    struct hdt_error why = {0};
    struct hdt_gwjob *job;
    int n_jobs;

    hdt_error_set(&why, HDT_ECANCELED, "enough");
    for (int i = 0; i < 40; i++) {
        job = hdt_gwjob_find(&hdt_ctl_gw, hdt_ctl_submit());
        hdt_gwjob_fail(&hdt_ctl_gw, job, &why);
        hdt_coordinator_tick(&hdt_ctl_gw);
    }
    LL_COUNT(hdt_ctl_gw.jobs, job, n_jobs);
    cr_expect_eq(n_jobs, 40, "their workers have not answered yet");
    why.status = HDT_EPEER;
    hdt_route_lost(&hdt_ctl_gw, "a", NULL, &why);
    hdt_route_lost(&hdt_ctl_gw, "b", NULL, &why);
    hdt_coordinator_tick(&hdt_ctl_gw);
    LL_COUNT(hdt_ctl_gw.jobs, job, n_jobs);
    cr_expect_eq(n_jobs, 32);
    hdt_ctl_gateway_restart();
    LL_COUNT(hdt_ctl_gw.jobs, job, n_jobs);
    cr_expect_eq(n_jobs, 32, "the newest are kept over a restart");
    cr_expect_eq(hdt_ctl_gw.jobs->number, 9);
}

Test(control, workers_take_orders_of_gateways_only)
{
    hdt_ctl_from_peer("b", "b/@9", hdt_ctl_with_id(hdt_msg_new("stop", "a/w0", NULL), 1));
    cr_expect_str_eq(hdt_ctl_error_to("b"), "EACCES");
    cr_expect_null(hdt_fake_dataplane_take("1", "stop"));
    hdt_ctl_from_peer("b", "b/@9", hdt_ctl_with_id(hdt_msg_new("logs", "a/w0", NULL), 2));
    cr_expect_not_null(hdt_fake_dataplane_take("1", "logs"));
    hdt_ctl_from_peer("b", "b", hdt_msg_new("release", "a/w0", NULL));
    cr_expect_not_null(hdt_fake_dataplane_take("1", "release"));
}

/* ---- dialling back ---- */

static void expect_dialled_back(const char *address, bool ok)
{
    json_t *reply;

    hdt_ctl_from_peer(
        "b", "b",
        hdt_ctl_with_id(hdt_msg_new("dial.back", "a", json_pack("{s:s}", "address", address)), 4));
    cr_expect_null(hdt_fake_dataplane_take("b", "dialled.back"), "the main thread waited for it");
    while (!(reply = hdt_fake_dataplane_take("b", "dialled.back"))) {
        event_base_loop(hdt_ctl_gw.base, EVLOOP_ONCE);
    }
    cr_expect_eq(json_is_true(json_object_get(hdt_msg_body(reply), "ok")), ok);
    json_decref(reply);
}

Test(control, a_site_is_dialled_back_without_waiting, .timeout = 20)
{
    struct hdt_addr addr;
    char address[160];
    int fd;

    hdt_ctl_gw.base = event_base_new();
    cr_assert_eq(hdt_addr_parse("127.0.0.1:0", &addr, NULL), HDT_OK);
    cr_assert_eq(hdt_addr_listen(&addr, 0, &fd, NULL), HDT_OK);
    hdt_addr_of_socket(fd, false, address, sizeof(address));
    expect_dialled_back(address, true);
    close(fd);
    expect_dialled_back(address, false);
    hdt_ctl_from_peer("b", "b",
                      hdt_msg_new("dial.back", "a", json_pack("{s:s}", "address", address)));
    hdt_dial_back_free(&hdt_ctl_gw); /* the gateway ends meanwhile */
    cr_expect_null(hdt_ctl_gw.survey.dials);
    event_base_free(hdt_ctl_gw.base);
}

Test(control, a_job_of_another_site_is_named_with_its_coordinator)
{
    json_t *submit = hdt_ctl_submit_msg(), *plan, *jobs, *error;
    const json_t *body = hdt_msg_body(submit);

    plan = json_pack("{s:i, s:i, s:s, s:s, s:O, s:O}", "job", (5 << 20) + 9, "epoch", 1,
                     "coordinator", "b", "name", "j", "plan", json_object_get(body, "plan"),
                     "model", json_object_get(body, "model"));
    hdt_ctl_from_peer("b", "b", hdt_msg_new("job.plan", "a", plan));
    jobs = hdt_member_status(&hdt_ctl_gw);
    cr_assert_eq(json_array_size(jobs), 1);
    cr_expect_eq(json_integer_value(json_object_get(json_array_get(jobs, 0), "number")), 9);
    json_decref(jobs);
    hdt_ctl_from_client(HDT_CTL_OPERATOR,
                        hdt_ctl_with_id(hdt_msg_new("stop", "a", json_pack("{s:i}", "job", 9)), 5));
    error = hdt_fake_dataplane_take("2", "error");
    cr_assert_not_null(error);
    cr_expect_not_null(
        strstr(json_string_value(json_object_get(hdt_msg_body(error), "hint")), "of site b"));
    json_decref(error);
    json_decref(submit);
}
