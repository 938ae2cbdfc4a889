/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "runtime/port.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/core/msg.h"
#include "tests/support/fake_gateway.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FRAME_CAP 6000

/* Two ranks; flow 0 from the first to the second, flow 1 back. */
static struct hdt_plan_rank ranks[2] = {{.site = "s0", .worker = "w0"},
                                        {.site = "s1", .worker = "w1"}};
static struct hdt_plan_flow flows[2] = {{.kind = HDT_FLOW_ACTIVATION,
                                         .prio = HDT_PRIO_ACTIVATION,
                                         .src_rank = 0,
                                         .dst_rank = 1,
                                         .src_stage = 0,
                                         .dst_stage = 1,
                                         .dtype = HDT_DTYPE_F32,
                                         .frame_cap = FRAME_CAP,
                                         .depth = 3},
                                        {.kind = HDT_FLOW_ACTIVATION_GRAD,
                                         .prio = HDT_PRIO_ACTIVATION,
                                         .src_rank = 1,
                                         .dst_rank = 0,
                                         .src_stage = 1,
                                         .dst_stage = 0,
                                         .dtype = HDT_DTYPE_F32,
                                         .frame_cap = FRAME_CAP,
                                         .depth = 1}};
static const struct hdt_plan plan = {.ranks = ranks, .n_ranks = 2, .flows = flows, .n_flows = 2};

static char path[64];
static struct fake_gateway *gateway;
static json_t *hellos[2];
static struct hdt_port *ports[2];
static struct hdt_port_job *jobs[2];

static void on_up(void *user, const json_t *welcome)
{
    (void)user;
    (void)welcome;
}

static void on_down(void *user, const struct hdt_error *why)
{
    (void)user;
    (void)why;
}

static void on_message(void *user, json_t *msg)
{
    (void)user;
    json_decref(msg);
}

static void port_start(int rank, int64_t timeout_ms)
{
    static const struct hdt_port_events events = {on_up, on_down, on_message};
    struct hdt_port_job_conf conf = {.job = 1234567,
                                     .number = 5,
                                     .epoch = 1,
                                     .rank = rank,
                                     .plan = &plan,
                                     .progress_timeout_ms = timeout_ms,
                                     .inspect_hash = true};
    char address[80], name[16];
    struct hdt_port_conf port_conf = {.address = address};
    struct hdt_error err = {0};

    snprintf(address, sizeof(address), "unix:%s", path);
    snprintf(name, sizeof(name), "w%d", rank);
    hellos[rank] = json_pack("{s:s}", "name", name);
    port_conf.hello = hellos[rank];
    cr_assert_eq(hdt_port_open(&port_conf, &events, NULL, &ports[rank], &err), HDT_OK, "%s",
                 err.msg);
    cr_assert_eq(hdt_port_job_open(ports[rank], &conf, &jobs[rank], &err), HDT_OK, "%s", err.msg);
}

static void setup(void)
{
    hdt_log_init("test", HDT_LOG_ERROR);
    snprintf(path, sizeof(path), "/tmp/hdt-port-%d.sock", (int)getpid());
    gateway = hdt_fake_gateway_new(path);
}

static void teardown(void)
{
    for (int i = 0; i < 2; i++) {
        hdt_port_job_close(jobs[i]);
        hdt_port_close(ports[i]);
        json_decref(hellos[i]);
    }
    hdt_fake_gateway_free(gateway);
    unlink(path);
}

TestSuite(port, .init = setup, .fini = teardown, .timeout = 60);

/* Frame n: its length and every byte follow from its number. */
static size_t frame_len(unsigned n)
{
    return 4 + n * 977 % (FRAME_CAP - 4);
}

static void send_frame(int rank, int flow, unsigned n)
{
    struct hdt_error err = {0};
    size_t cap;
    void *slot;

    cr_assert_eq(hdt_port_send_get(jobs[rank], flow, &slot, &cap, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(cap, FRAME_CAP);
    memset(slot, (int)(n % 251), frame_len(n));
    memcpy(slot, &n, 4);
    hdt_port_send_commit(jobs[rank], flow, frame_len(n), frame_len(n), HDT_DTYPE_F32);
}

static void expect_frame(int rank, int flow, unsigned n)
{
    struct hdt_error err = {0};
    const uint8_t *bytes;
    const void *frame;
    size_t len;

    cr_assert_eq(hdt_port_recv_wait(jobs[rank], flow, &frame, &len, &err), HDT_OK, "%s", err.msg);
    bytes = frame;
    cr_assert_eq(len, frame_len(n));
    cr_assert_eq(memcmp(bytes, &n, 4), 0, "not frame %u", n);
    for (size_t i = 4; i < len; i++) {
        cr_assert_eq(bytes[i], n % 251);
    }
    hdt_port_recv_done(jobs[rank], flow);
}

#define N_FRAMES 400

static void *echo(void *arg)
{
    (void)arg;
    for (unsigned n = 0; n < N_FRAMES; n++) {
        expect_frame(1, 0, n);
        send_frame(1, 1, n);
    }
    return NULL;
}

/* Frames there and back while connections break at both ends, from below and from above. */
static void ping_pong(int break_every)
{
    pthread_t thread;

    port_start(0, 20000);
    port_start(1, 20000);
    cr_assert_eq(pthread_create(&thread, NULL, echo, NULL), 0);
    for (unsigned n = 0; n < 3; n++) {
        send_frame(0, 0, n);
    }
    for (unsigned n = 0; n < N_FRAMES; n++) {
        expect_frame(0, 1, n);
        if (n + 3 < N_FRAMES) {
            send_frame(0, 0, n + 3);
        }
        if (break_every && n % (unsigned)break_every == 0) {
            unsigned which = n / (unsigned)break_every % 4;

            if (which < 2) {
                hdt_port_break(ports[which]);
            } else {
                hdt_fake_gateway_cut(gateway, which == 2 ? "w0" : "w1", false);
            }
        }
    }
    pthread_join(thread, NULL);
}

Test(port, frames_come_whole_and_in_order)
{
    ping_pong(0);
    cr_expect_eq(hdt_fake_gateway_n_frames(gateway), 2 * N_FRAMES, "nothing was sent twice");
    cr_expect_eq(hdt_port_n_sessions(ports[0]), 1);
}

Test(port, broken_connections_lose_and_double_nothing)
{
    ping_pong(40);
    cr_expect_gt(hdt_port_n_sessions(ports[0]) + hdt_port_n_sessions(ports[1]), 6);
}

Test(port, the_sender_stops_at_its_depth)
{
    struct hdt_error err = {0};
    enum hdt_status status;
    size_t cap;
    void *slot;

    port_start(0, 300);
    port_start(1, 20000);
    for (unsigned n = 0; n < 3; n++) {
        send_frame(0, 0, n); /* as many as there are slots; nobody takes them */
    }
    cr_expect_eq(hdt_port_send_get(jobs[0], 0, &slot, &cap, &err), HDT_ETIMEDOUT);
    cr_expect(strstr(err.msg, "a free slot of frame 3 of flow 0"), "%s", err.msg);
    expect_frame(1, 0, 0);
    do { /* for as long as word of it is on its way */
        status = hdt_port_send_get(jobs[0], 0, &slot, &cap, &err);
    } while (status == HDT_ETIMEDOUT);
    cr_expect_eq(status, HDT_OK, "%s", err.msg);
}

Test(port, a_wait_without_progress_says_for_what)
{
    struct hdt_error err = {0};
    const void *frame;
    size_t len;

    port_start(0, 200);
    cr_expect_eq(hdt_port_recv_wait(jobs[0], 1, &frame, &len, &err), HDT_ETIMEDOUT);
    cr_expect(strstr(err.msg, "job 5"), "%s", err.msg);
    cr_expect(strstr(err.msg, "flow 1"), "%s", err.msg);
    cr_expect(strstr(err.msg, "site s1"), "%s", err.msg);
    cr_expect(strstr(err.hint, "s1"), "%s", err.hint);
}

static void *cancel(void *arg)
{
    struct hdt_error why = {0};

    (void)arg;
    hdt_error_set(&why, HDT_ECANCELED, "enough");
    hdt_port_job_cancel(jobs[0], &why);
    return NULL;
}

Test(port, a_cancelled_job_waits_no_more)
{
    struct hdt_error err = {0};
    const void *frame;
    pthread_t thread;
    size_t len;

    port_start(0, 20000);
    cr_assert_eq(pthread_create(&thread, NULL, cancel, NULL), 0);
    cr_expect_eq(hdt_port_recv_wait(jobs[0], 1, &frame, &len, &err), HDT_ECANCELED);
    cr_expect_str_eq(err.msg, "enough");
    pthread_join(thread, NULL);
    cr_expect_eq(hdt_port_recv_wait(jobs[0], 1, &frame, &len, &err), HDT_ECANCELED);
}

Test(port, messages_wait_for_the_gateway)
{
    json_t *msg;

    hdt_fake_gateway_free(gateway);
    port_start(0, 20000);
    for (int i = 0; i < 100; i++) {
        hdt_port_send(ports[0], hdt_msg_new("number", "here", json_pack("{s:i}", "n", i)));
    }
    gateway = hdt_fake_gateway_new(path);
    for (int i = 0; i < 100; i++) {
        msg = hdt_fake_gateway_take(gateway, "number", 20000);
        cr_assert(msg);
        cr_expect_eq(json_integer_value(json_object_get(hdt_msg_body(msg), "n")), i);
        json_decref(msg);
    }
}

/* ---- reports ---- */

static void report(int number, json_int_t epoch)
{
    hdt_port_report(ports[0], hdt_msg_new("step", "far",
                                          json_pack("{s:i, s:I, s:i}", "job", 1234567, "epoch",
                                                    epoch, "step", number)));
}

/* Steps [from, to] come next, in order, none twice. */
static void expect_steps(int from, int to)
{
    for (int i = from; i <= to; i++) {
        json_t *msg = hdt_fake_gateway_take(gateway, "step", 20000);

        cr_assert(msg, "step %d did not come", i);
        cr_assert_eq(json_integer_value(json_object_get(hdt_msg_body(msg), "step")), i);
        json_decref(msg);
    }
}

static void expect_no_more(void)
{
    cr_expect_null(hdt_fake_gateway_take(gateway, "step", 0), "one came twice");
}

Test(port, reports_are_said_again_until_they_get_through)
{
    port_start(0, 20000);
    hdt_fake_gateway_refuse(gateway, 3); /* one by one, if they come so: after longer silences */
    for (int i = 1; i <= 100; i++) {
        report(i, 1);
    }
    expect_steps(1, 100);
    expect_no_more();
}

Test(port, a_report_that_a_connection_took_is_not_said_to_be_there)
{
    port_start(0, 20000);
    hdt_fake_gateway_lose(gateway, 3);
    for (int i = 1; i <= 3; i++) {
        report(i, 1);
    }
    while (hdt_fake_gateway_n_reports(gateway) < 3) {
        usleep(1000);
    }
    hdt_port_break(ports[0]); /* said again at once, not after a silence */
    expect_steps(1, 3);
    hdt_fake_gateway_lose(gateway, 2);
    report(4, 1);
    report(5, 1);
    expect_steps(4, 5); /* after a silence */
    expect_no_more();
}

Test(port, the_coordinator_may_ask_for_reports_again)
{
    json_t *body =
        json_pack("{s:i, s:i, s:i, s:b}", "job", 1234567, "epoch", 1, "n", 0, "again", 1);
    unsigned long n;

    port_start(0, 20000);
    hdt_fake_gateway_refuse(gateway, 1); /* from now on it waits */
    report(1, 1);
    while ((n = hdt_fake_gateway_n_reports(gateway)) < 1) {
        usleep(1000);
    }
    hdt_fake_gateway_send(gateway, "w0", hdt_msg_new("report.ack", NULL, body));
    expect_steps(1, 1);
}

/* The step comes next of its epoch; what was on its way of older ones may come before. */
static void expect_step_of(json_int_t epoch, int step)
{
    json_int_t got = 0;

    while (got < epoch) {
        json_t *msg = hdt_fake_gateway_take(gateway, "step", 20000);

        cr_assert(msg, "step %d did not come", step);
        got = json_integer_value(json_object_get(hdt_msg_body(msg), "epoch"));
        cr_assert_leq(got, epoch);
        if (got == epoch) {
            cr_assert_eq(json_integer_value(json_object_get(hdt_msg_body(msg), "step")), step);
        }
        json_decref(msg);
    }
}

Test(port, a_new_epoch_ends_the_reports_of_the_old_one)
{
    port_start(0, 20000);
    hdt_fake_gateway_lose(gateway, 1 << 20);
    for (int i = 1; i <= 50; i++) {
        report(i, 1);
    }
    report(40, 2);
    hdt_fake_gateway_lose(gateway, 0);
    expect_step_of(2, 40);
    hdt_fake_gateway_lose(gateway, 1 << 20);
    report(41, 2);
    hdt_port_reports_end(ports[0], 1234567, 2);
    hdt_fake_gateway_lose(gateway, 0);
    hdt_port_break(ports[0]);
    report(7, 3);
    expect_step_of(3, 7);
    expect_no_more();
}

Test(port, the_last_checkpoint_is_known_when_its_report_is_given_up)
{
    json_t *body;

    port_start(0, 20000);
    hdt_fake_gateway_lose(gateway, 1 << 20);
    cr_expect_null(hdt_port_last_checkpoint(ports[0], 1234567));
    for (int step = 10; step <= 20; step += 10) {
        hdt_port_report(ports[0], hdt_msg_new("ckpt", "far",
                                              json_pack("{s:i, s:i, s:i}", "job", 1234567, "epoch",
                                                        1, "step", step)));
    }
    hdt_port_reports_end(ports[0], 1234567, 1);
    body = hdt_port_last_checkpoint(ports[0], 1234567);
    cr_expect_eq(json_integer_value(json_object_get(body, "step")), 20);
    json_decref(body);
    cr_expect_null(hdt_port_last_checkpoint(ports[0], 1));
    hdt_port_checkpoint_forget(ports[0]); /* another job of that number begins */
    cr_expect_null(hdt_port_last_checkpoint(ports[0], 1234567));
}

/* Connections are reset, reports refused and lost, at random; each comes once and in order. */
Test(port, reports_come_once_whatever_breaks)
{
    unsigned seed = (unsigned)time(NULL), dice = seed;
    unsigned long n;

    printf("seed %u\n", seed);
    port_start(0, 20000);
    hdt_fake_gateway_lose_some(gateway, 50, seed);
    for (int i = 1; i <= 3000; i++) {
        report(i, 1);
        switch (rand_r(&dice) % 60) {
        case 0:
            hdt_port_break(ports[0]);
            break;
        case 1:
            hdt_fake_gateway_cut(gateway, "w0", true);
            break;
        case 2:
            hdt_fake_gateway_refuse(gateway, 3);
            break;
        case 3:
            usleep(20000); /* what is under way arrives */
            break;
        default:
            break;
        }
    }
    hdt_fake_gateway_lose_some(gateway, 0, seed);
    expect_steps(1, 3000);
    expect_no_more();
    n = hdt_fake_gateway_n_reports(gateway);
    cr_expect_lt(n, 4 * 3000, "%lu reports were said for 3000", n);
}

static void *recv_one(void *arg)
{
    struct hdt_error err = {0};
    const void *frame;
    size_t len;

    (void)arg;
    hdt_port_job_at(jobs[1], &(struct hdt_port_at){.op = "RECV_FORWARD", .step = 41, .mb = 7});
    cr_expect_eq(hdt_port_recv_wait(jobs[1], 0, &frame, &len, &err), HDT_OK, "%s", err.msg);
    hdt_port_recv_done(jobs[1], 0);
    return NULL;
}

static json_int_t said_int(const json_t *msg, const char *key)
{
    return json_integer_value(json_object_get(hdt_msg_body(msg), key));
}

Test(port, a_wait_that_lasts_is_told_once_a_second_and_at_its_end)
{
    json_t *msg, *next;
    pthread_t thread;
    double since_s, next_s;

    port_start(0, 20000);
    port_start(1, 20000);
    cr_assert_eq(pthread_create(&thread, NULL, recv_one, NULL), 0);
    msg = hdt_fake_gateway_take(gateway, "rank.state", 20000);
    cr_assert(msg);
    since_s = json_number_value(json_object_get(hdt_msg_body(msg), "since_s"));
    cr_expect(since_s >= 1, "a wait of %.3f s was told", since_s);
    cr_expect_eq(said_int(msg, "rank"), 1);
    cr_expect_eq(said_int(msg, "flow"), 0);
    cr_expect_eq(said_int(msg, "step"), 41);
    cr_expect_eq(said_int(msg, "mb"), 7);
    cr_expect_str_eq(json_string_value(json_object_get(hdt_msg_body(msg), "op")), "RECV_FORWARD");
    cr_expect_str_eq(json_string_value(json_object_get(hdt_msg_body(msg), "what")), "arrival");
    next = hdt_fake_gateway_take(gateway, "rank.state", 20000);
    cr_assert(next);
    next_s = json_number_value(json_object_get(hdt_msg_body(next), "since_s"));
    cr_expect(next_s - since_s >= 0.99, "%.3f s after the first", next_s - since_s);
    json_decref(next);
    json_decref(msg);
    send_frame(0, 0, 0);
    pthread_join(thread, NULL);
    do {
        msg = hdt_fake_gateway_take(gateway, "rank.state", 20000);
        cr_assert(msg, "its end was not told");
        since_s = json_number_value(json_object_get(hdt_msg_body(msg), "since_s"));
        json_decref(msg);
    } while (since_s > 0);
    cr_expect_null(hdt_fake_gateway_take(gateway, "rank.state", 0));
}

Test(port, a_bad_address_is_refused)
{
    static const struct hdt_port_events events = {on_up, on_down, on_message};
    struct hdt_port_conf conf = {.address = "ftp://x"};
    struct hdt_error err = {0};
    struct hdt_port *port;

    cr_expect_eq(hdt_port_open(&conf, &events, NULL, &port, &err), HDT_EINVAL);
    cr_expect(strstr(err.hint, "unix:PATH"));
}
