/* SPDX-License-Identifier: Apache-2.0 */
/* Reports of workers at their coordinator: each line of metrics.jsonl is there once and in order,
 * whatever comes twice, early or not at all, and whenever the gateway is killed. Who follows a job
 * is told all of it. */
#include "config.h"

#include "gateway/journal.h"
#include "gateway/member.h"
#include "gateway/recovery.h"
#include "src/base/buf.h"
#include "src/base/file.h"
#include "src/core/msg.h"
#include "tests/support/control_rig.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define gw hdt_ctl_gw

TestSuite(reports, .init = hdt_ctl_setup, .fini = hdt_ctl_teardown, .timeout = 60);

/* A report of the root, a/w0: its number, the oldest that it still has, and the step it is of. */
static void say_step(uint32_t job, int n, int first, int step)
{
    hdt_ctl_from_client(
        HDT_CTL_WORKER,
        hdt_msg_new("step", "a",
                    json_pack("{s:I, s:i, s:i, s:i, s:i, s:f, s:f, s:i}", "job", (json_int_t)job,
                              "epoch", 1, "n", n, "first", first, "step", step, "loss", 1.0 / step,
                              "step_s", 0.5, "tokens", 100)));
}

/* The last acknowledgement to a client or peer since; -1: none. */
static json_int_t acknowledged(const char *to)
{
    json_int_t n = -1;
    json_t *msg;

    while ((msg = hdt_fake_dataplane_take(to, "report.ack"))) {
        n = json_integer_value(json_object_get(hdt_msg_body(msg), "n"));
        json_decref(msg);
    }
    return n;
}

static char *metrics_path(const struct hdt_gwjob *job)
{
    return hdt_asprintf("%s/metrics.jsonl", job->run_dir);
}

/* The file has exactly the steps 1 to n, once each, in order, and nothing else. */
static void expect_lines(const char *path, int n)
{
    FILE *file = fopen(path, "r");
    char text[4096];
    int i = 0;

    cr_assert_not_null(file);
    while (fgets(text, sizeof(text), file)) {
        json_t *line = json_loads(text, 0, NULL);

        cr_assert(json_is_object(line), "line %d is '%s'", i + 1, text);
        cr_assert_eq(json_integer_value(json_object_get(line, "step")), ++i);
        cr_assert_eq(json_integer_value(json_object_get(line, "epoch")), 1);
        cr_assert_eq(json_integer_value(json_object_get(line, "tokens")), 100 * i);
        cr_assert_float_eq(json_number_value(json_object_get(line, "loss")), 1.0 / i, 0);
        json_decref(line);
    }
    fclose(file);
    cr_expect_eq(i, n, "%d lines, not %d", i, n);
}

Test(reports, each_is_taken_once_and_in_order)
{
    struct hdt_gwjob *job = hdt_ctl_run();
    char *path = metrics_path(job);

    say_step(job->job, 1, 1, 1);
    cr_expect_eq(acknowledged("1"), 1);
    say_step(job->job, 1, 1, 1); /* the acknowledgement was lost */
    cr_expect_eq(acknowledged("1"), 1);
    say_step(job->job, 4, 2, 4); /* 2 and 3 are lost or behind it */
    say_step(job->job, 3, 2, 3);
    cr_expect_eq(acknowledged("1"), -1);
    cr_expect_eq(job->step, 1);
    for (int n = 2; n <= 4; n++) {
        say_step(job->job, n, 2, n);
        cr_expect_eq(acknowledged("1"), n);
    }
    say_step(job->job, 2, 2, 2);
    cr_expect_eq(acknowledged("1"), 4);
    expect_lines(path, 4);
    free(path);
}

Test(reports, only_the_root_speaks_of_steps)
{
    struct hdt_gwjob *job = hdt_ctl_run();
    json_t *msg = hdt_ctl_job_msg("step", job->job);

    json_object_set_new(json_object_get(msg, "b"), "n", json_integer(1));
    hdt_ctl_from_peer("b", "b/w0", hdt_ctl_with_id(msg, 1));
    cr_expect_str_eq(hdt_ctl_error_to("b"), "EACCES");
    cr_expect_eq(job->step, 0);
}

/* A gateway that acknowledged and then lost what it had written (a power cut) does not wait for
 * what nobody has any more. */
Test(reports, what_nobody_has_is_not_waited_for)
{
    struct hdt_gwjob *job = hdt_ctl_run();

    say_step(job->job, 1, 1, 1);
    say_step(job->job, 9, 8, 9);
    cr_expect_eq(acknowledged("1"), 1);
    say_step(job->job, 8, 8, 8);
    say_step(job->job, 9, 8, 9);
    cr_expect_eq(acknowledged("1"), 9);
    cr_expect_eq(job->step, 9);
}

Test(reports, a_killed_gateway_knows_what_it_took)
{
    struct hdt_gwjob *job = hdt_ctl_run();
    char *path = metrics_path(job);
    const uint32_t number = job->job;
    FILE *file;

    say_step(number, 1, 1, 1);
    say_step(number, 2, 1, 2);
    file = fopen(path, "a"); /* killed in the middle of a line */
    fputs("{\"step\":3,\"loss\":0.33", file);
    fclose(file);
    hdt_ctl_gateway_restart();
    job = hdt_gwjob_find(&gw, number);
    cr_assert_not_null(job);
    cr_expect_eq(job->step, 2);
    cr_expect_eq(job->tokens, 200);
    cr_expect_eq(job->loss, 0.5);
    say_step(number, 2, 2, 2); /* written, but not acknowledged before the end */
    cr_expect_eq(acknowledged("1"), 2);
    say_step(number, 3, 2, 3);
    cr_expect_eq(acknowledged("1"), 3);
    expect_lines(path, 3);
    free(path);
}

/* Reports that leave no line are known by the record. */
Test(reports, a_killed_gateway_knows_of_checkpoints_it_took)
{
    struct hdt_gwjob *job = hdt_ctl_run();
    const uint32_t number = job->job;
    json_t *msg = hdt_ctl_job_msg("ckpt", number);

    say_step(number, 1, 1, 1);
    json_object_update_new(
        json_object_get(msg, "b"),
        json_pack("{s:i, s:i, s:i, s:s}", "n", 2, "first", 1, "step", 1, "path", "/c/step-1"));
    hdt_ctl_from_client(HDT_CTL_WORKER, msg);
    cr_expect_eq(acknowledged("1"), 2);
    hdt_ctl_gateway_restart();
    say_step(number, 3, 3, 2);
    cr_expect_eq(acknowledged("1"), 3);
    cr_expect_str_eq(hdt_gwjob_find(&gw, number)->checkpoint, "/c/step-1");
}

Test(reports, what_cannot_be_written_is_not_acknowledged)
{
    struct hdt_gwjob *job = hdt_ctl_run();
    struct hdt_journal *whole = job->metrics;
    char *path = metrics_path(job);
    struct hdt_error err = {0};

    say_step(job->job, 1, 1, 1);
    cr_expect_eq(acknowledged("1"), 1);
    cr_assert_eq(hdt_journal_open("/dev/full", &job->metrics, &err), HDT_OK, "%s", err.msg);
    say_step(job->job, 2, 2, 2);
    cr_expect_eq(acknowledged("1"), -1);
    cr_expect_eq(job->step, 1);
    hdt_journal_close(job->metrics);
    job->metrics = whole; /* there is room again */
    say_step(job->job, 2, 2, 2);
    cr_expect_eq(acknowledged("1"), 2);
    expect_lines(path, 2);
    free(path);
}

/* Nobody would say it again. */
Test(reports, a_line_of_the_coordinator_waits_for_room)
{
    struct hdt_gwjob *job = hdt_ctl_run();
    struct hdt_journal *whole = job->metrics;
    char *path = metrics_path(job);
    struct hdt_buf text = {0};
    struct hdt_error err = {0};
    const char *at;

    cr_assert_eq(hdt_journal_open("/dev/full", &job->metrics, &err), HDT_OK, "%s", err.msg);
    hdt_gwjob_metrics_note(job, json_pack("{s:s}", "event", "replan"));
    hdt_gwjob_metrics_note(job, json_pack("{s:s}", "event", "restart"));
    hdt_journal_close(job->metrics);
    job->metrics = whole; /* there is room again */
    say_step(job->job, 1, 1, 1);
    cr_expect_eq(acknowledged("1"), 1);
    cr_assert_eq(hdt_file_read(path, 4096, &text, &err), HDT_OK, "%s", err.msg);
    at = strstr((char *)text.data, "replan");
    cr_assert(at && (at = strstr(at, "restart")) && strstr(at, "loss"), "%s", (char *)text.data);
    hdt_buf_release(&text);
    free(path);
}

Test(reports, a_job_is_worth_more_than_its_metrics)
{
    struct hdt_gwjob *job = hdt_ctl_run();
    struct hdt_error err = {0};

    hdt_journal_close(job->metrics);
    cr_assert_eq(hdt_journal_open("/dev/full", &job->metrics, &err), HDT_OK, "%s", err.msg);
    say_step(job->job, 1, 1, 1);
    cr_expect_eq(acknowledged("1"), -1);
    job->metrics_failed_us -= (int64_t)3600 * 1000000;
    say_step(job->job, 1, 1, 1);
    cr_expect_eq(acknowledged("1"), 1);
}

Test(reports, a_site_that_comes_back_is_asked_for_what_did_not_come)
{
    struct hdt_gwjob *job = hdt_ctl_run();
    json_t *ack;

    hdt_ctl_peer_up("b");
    ack = hdt_fake_dataplane_take("b", "report.ack");
    cr_assert_not_null(ack);
    cr_expect_str_eq(hdt_msg_to(ack), "b/w0");
    cr_expect_eq(json_integer_value(json_object_get(hdt_msg_body(ack), "n")), 0);
    cr_expect(json_is_true(json_object_get(hdt_msg_body(ack), "again")));
    cr_expect_eq(json_integer_value(json_object_get(hdt_msg_body(ack), "job")), job->job);
    json_decref(ack);
}

Test(reports, who_speaks_of_what_is_over_is_released)
{
    struct hdt_gwjob *job = hdt_ctl_run();
    struct hdt_error why = {0};
    json_t *release;

    hdt_error_set(&why, HDT_ECANCELED, "enough");
    hdt_gwjob_fail(&gw, job, &why);
    hdt_fake_dataplane_reset();
    say_step(job->job, 1, 1, 1);
    release = hdt_fake_dataplane_take("1", "release");
    cr_assert_not_null(release);
    cr_expect_eq(json_integer_value(json_object_get(hdt_msg_body(release), "epoch")), 1);
    json_decref(release);
}

/* The report of a checkpoint may still be with its worker when the job is restarted: that is where
 * it goes on. */
Test(reports, the_last_checkpoint_comes_with_the_release)
{
    struct hdt_gwjob *job = hdt_ctl_run();
    struct hdt_error why = {0};
    json_t *release, *released;

    say_step(job->job, 1, 1, 1);
    hdt_error_set(&why, HDT_ERANK, "worker b/w0 is lost");
    hdt_fake_dataplane_reset();
    hdt_recovery_begin(&gw, job, &why);
    cr_assert_eq(job->state, HDT_GWJOB_RECOVERING);
    say_step(job->job, 2, 2, 2); /* of the epoch that is over */
    cr_expect_eq(job->step, 1);
    while ((release = hdt_fake_dataplane_take("1", "release")) && !json_object_get(release, "id")) {
        json_decref(release);
    }
    cr_assert_not_null(release);
    released = hdt_msg_reply(release, "released",
                             json_pack("{s:{s:i, s:s, s:f}}", "checkpoint", "step", 2, "path",
                                       "/c/step-2", "seconds", 0.5));
    hdt_ctl_from_client(HDT_CTL_WORKER, released);
    cr_assert_not_null(job->checkpoint);
    cr_expect_str_eq(job->checkpoint, "/c/step-2");
    cr_expect_eq(hdt_gwjob_resume_step(job), 2);
    json_decref(release);
}

/* Reports come early, late, twice and not at all, the gateway is killed now and then; the worker
 * says again what is not acknowledged. */
Test(reports, lines_are_whole_whatever_happens)
{
    unsigned seed = (unsigned)time(NULL), dice = seed;
    struct hdt_gwjob *job = hdt_ctl_run();
    const uint32_t number = job->job;
    char *path = metrics_path(job);
    int first = 1;

    printf("seed %u\n", seed);
    while (first <= 500) {
        int n = first + rand_r(&dice) % 8;

        if (n <= 500) {
            say_step(number, n, first, n);
        }
        if (rand_r(&dice) % 100 == 0) {
            hdt_ctl_gateway_restart();
        } else if (rand_r(&dice) % 3) { /* else the answer is lost */
            n = (int)acknowledged("1");
            first = n >= first ? n + 1 : first;
        }
    }
    expect_lines(path, 500);
    free(path);
}

/* What a gateway says of a job that it has a part in is lost as easily, and is said again. */
Test(reports, a_flow_that_cannot_go_on_is_told_until_it_is_heard)
{
    struct hdt_gwjob *job = hdt_ctl_run();
    json_t *plan = hdt_fake_dataplane_take("b", "job.plan"), *msg, *body;
    const uint32_t number = job->job + 1;
    struct hdt_error why = {0};

    body = json_deep_copy(hdt_msg_body(plan));
    json_object_set_new(body, "coordinator", json_string("b"));
    json_object_set_new(body, "job", json_integer(number));
    hdt_ctl_from_peer("b", "b", hdt_msg_new("job.plan", "a", body));
    hdt_error_set(&why, HDT_EPROTO, "cannot resume flow 0");
    hdt_member_flow_failed(&gw, number, 1, &why);
    for (int i = 0; i < 3; i++) {
        msg = hdt_fake_dataplane_take("b", "failed");
        cr_assert_not_null(msg);
        cr_expect_eq(json_integer_value(json_object_get(hdt_msg_body(msg), "job")), number);
        json_decref(msg);
        hdt_member_tick(&gw);
    }
    hdt_ctl_from_peer("b", "b",
                      hdt_msg_new("job.close", "a",
                                  json_pack("{s:I, s:i}", "job", (json_int_t)number, "epoch", 1)));
    hdt_fake_dataplane_reset();
    hdt_member_tick(&gw);
    cr_expect_null(hdt_fake_dataplane_take("b", "failed"));
    json_decref(plan);
}

/* ---- bytes over the WAN ---- */

static void say_wan(uint32_t job, const char *instance, int raw, int sent)
{
    hdt_ctl_from_peer(
        "b", "b",
        hdt_msg_new("job.wan", "a",
                    json_pack("{s:I, s:i, s:s, s:i, s:i}", "job", (json_int_t)job, "epoch", 1,
                              "instance", instance, "raw", raw, "sent", sent)));
}

Test(reports, bytes_of_a_gateway_that_was_restarted_count_on)
{
    struct hdt_gwjob *job = hdt_ctl_run();
    const uint32_t number = job->job;
    int64_t raw, sent;

    say_wan(number, "1", 100, 50);
    say_wan(number, "1", 200, 100);
    say_wan(number, "2", 30, 15); /* killed, and counts from zero */
    say_wan(number, "2", 300, 150);
    hdt_gwjob_wan_totals(job, &raw, &sent);
    cr_expect_eq(raw, 500);
    cr_expect_eq(sent, 250);
    hdt_gwjob_save(&gw, job);
    hdt_ctl_gateway_restart();
    job = hdt_gwjob_find(&gw, number);
    say_wan(number, "2", 310, 155);
    hdt_gwjob_wan_totals(job, &raw, &sent);
    cr_expect_eq(raw, 510);
    cr_expect_eq(sent, 255);
}

/* ---- followers ---- */

/* The next event of this kind that the operator is told: of that step. */
static void expect_event(const char *to, const char *event, int step)
{
    json_t *msg;

    while ((msg = hdt_fake_dataplane_take(to, "job.event"))) {
        const json_t *body = hdt_msg_body(msg);

        if (strcmp(json_string_value(json_object_get(body, "event")), event) == 0) {
            cr_expect_eq(json_integer_value(json_object_get(body, "step")), step);
            json_decref(msg);
            return;
        }
        json_decref(msg);
    }
    cr_expect(false, "no event %s of step %d to %s", event, step, to);
}

static void follow_since(uint32_t job, int epoch, int since)
{
    hdt_ctl_from_client(
        HDT_CTL_OPERATOR,
        hdt_ctl_with_id(hdt_msg_new("follow", "",
                                    json_pack("{s:I, s:i, s:i}", "job", (json_int_t)job, "epoch",
                                              epoch, "since", since)),
                        5));
}

Test(reports, a_follower_that_was_away_is_told_what_it_missed)
{
    struct hdt_gwjob *job = hdt_ctl_run();
    const uint32_t number = job->job;

    for (int n = 1; n <= 5; n++) {
        say_step(number, n, n, n);
    }
    hdt_ctl_gateway_restart();
    follow_since(number, 1, 3);
    expect_event("2", "step", 4);
    expect_event("2", "step", 5);
    hdt_ctl_expect_state("running");
    say_step(number, 6, 6, 6);
    expect_event("2", "step", 6);
    follow_since(number, 0, 100); /* of an epoch before: all of this one is new */
    expect_event("2", "step", 1);
}

/* Steps 1 to 60,000 of epoch 1, and 30,001 to 70,000 of epoch 2, which began at a checkpoint; each
 * second step a checkpoint fails, of a step some time ago. */
static void long_job_write(FILE *file)
{
    for (int n = 2; n <= 100000; n++) {
        const int epoch = n <= 60000 ? 1 : 2, step = n <= 60000 ? n : n - 30000;

        fprintf(file, "{\"step\":%d,\"loss\":0.5,\"n\":%d,\"epoch\":%d,\"time\":1.5}\n", step, n,
                epoch);
        if (step % 2 == 1 && step > 500) {
            fprintf(file, "{\"event\":\"ckpt.failed\",\"step\":%d,\"epoch\":%d}\n", step - 500,
                    epoch);
        }
    }
}

/* A gateway that is killed again and again lives too short to read the file of a long job to its
 * end; who has nearly all of it is told the rest at once, and nobody is told too little. */
Test(reports, a_follower_of_a_long_job_does_not_wait_for_what_it_has)
{
    static const struct {
        int epoch, since, next;
    } cases[] = {{2, 69998, 69999}, {1, 60000, 30001}, {2, 30001, 30002}, {2, 52001, 52002},
                 {2, 52003, 52004}, {1, 1000, 1001},   {1, 41003, 41004}, {1, 59998, 59999}};
    struct hdt_gwjob *job = hdt_ctl_run();
    const uint32_t number = job->job;
    char *path = metrics_path(job);
    json_t *msg;
    FILE *file;

    say_step(number, 1, 1, 1);
    file = fopen(path, "a");
    cr_assert_not_null(file);
    long_job_write(file);
    fclose(file);
    free(path);
    hdt_ctl_gateway_restart();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        follow_since(number, cases[i].epoch, cases[i].since);
        expect_event("2", "step", cases[i].next);
        expect_event("2", "step", cases[i].next + 1);
        while ((msg = hdt_fake_dataplane_take("2", "job.event"))) {
            json_decref(msg);
        }
    }
}

Test(reports, a_slow_follower_catches_up_in_order)
{
    struct hdt_gwjob *job = hdt_ctl_run();

    say_step(job->job, 1, 1, 1);
    expect_event("2", "step", 1);
    hdt_fake_dataplane_fail("2", HDT_ENOMEM); /* its queue is full */
    for (int n = 2; n <= 4; n++) {
        say_step(job->job, n, n, n);
    }
    hdt_coordinator_tick(&gw);
    hdt_fake_dataplane_fail("2", HDT_OK);
    say_step(job->job, 5, 5, 5);
    cr_expect_null(hdt_fake_dataplane_take("2", "job.event"), "step 5 before step 2");
    hdt_coordinator_tick(&gw);
    for (int n = 2; n <= 5; n++) {
        expect_event("2", "step", n);
    }
    say_step(job->job, 6, 6, 6);
    expect_event("2", "step", 6);
}

Test(reports, a_follower_of_another_site_that_is_gone_is_forgotten)
{
    struct hdt_gwjob *job = hdt_ctl_run();
    json_t *unfollow;

    hdt_ctl_from_peer(
        "b", "b/@9",
        hdt_ctl_with_id(hdt_msg_new("follow", "a", json_pack("{s:I}", "job", (json_int_t)job->job)),
                        5));
    cr_assert_eq(job->n_followers, 2);
    hdt_ctl_from_peer(
        "b", "b",
        hdt_msg_new("unfollow", "a",
                    json_pack("{s:I, s:s}", "job", (json_int_t)job->job, "follower", "a/@2")));
    cr_expect_eq(job->n_followers, 2, "a site speaks for its own");
    hdt_ctl_from_peer(
        "b", "b",
        hdt_msg_new("unfollow", "a",
                    json_pack("{s:I, s:s}", "job", (json_int_t)job->job, "follower", "b/@9")));
    cr_expect_eq(job->n_followers, 1);
    /* And the other side of it: an event for a client that we do not have. */
    hdt_ctl_from_peer("b", "b", hdt_msg_new("job.event", "a/@77", json_pack("{s:i}", "job", 5)));
    unfollow = hdt_fake_dataplane_take("b", "unfollow");
    cr_assert_not_null(unfollow);
    cr_expect_str_eq(json_string_value(json_object_get(hdt_msg_body(unfollow), "follower")),
                     "a/@77");
    json_decref(unfollow);
}
