/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* The operator's client and the follower of jobs against a scripted gateway on a Unix socket. */
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/cli/follow_show.h"
#include "src/cli/gwoptions.h"
#include "src/cli/human.h"
#include "src/core/frame.h"
#include "src/core/msg.h"

#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct fake {
    char dir[64], address[128];
    int listener, fd;
    void (*script)(struct fake *fake);
    pthread_t thread;
};

static bool read_all(int fd, void *bytes, size_t len)
{
    return recv(fd, bytes, len, MSG_WAITALL) == (ssize_t)len;
}

/* One message; NULL when the client has gone. */
static json_t *fake_receive(struct fake *fake)
{
    uint8_t header[HDT_FRAME_HEADER_LEN];
    struct hdt_frame frame;
    json_t *msg = NULL;
    char *bytes;

    if (!read_all(fake->fd, header, sizeof(header)) ||
        hdt_frame_unpack(header, &frame, NULL) != HDT_OK) {
        return NULL;
    }
    bytes = malloc(frame.coded_len + 1u);
    if (read_all(fake->fd, bytes, frame.coded_len)) {
        hdt_msg_decode(bytes, frame.coded_len, &msg, NULL);
    }
    free(bytes);
    return msg;
}

static void fake_send(struct fake *fake, json_t *msg)
{
    struct hdt_frame frame = {.version = HDT_FRAME_VERSION, .kind = HDT_FRAME_MSG};
    uint8_t header[HDT_FRAME_HEADER_LEN] = {0};
    struct hdt_buf out = {0};

    hdt_buf_append(&out, header, sizeof(header));
    hdt_msg_encode(msg, &out);
    frame.coded_len = (uint32_t)(out.len - sizeof(header));
    hdt_frame_pack(&frame, (uint8_t *)out.data);
    /* In two pieces, so that the client meets half a record. */
    send(fake->fd, out.data, 70, MSG_NOSIGNAL);
    send(fake->fd, out.data + 70, out.len - 70, MSG_NOSIGNAL);
    hdt_buf_release(&out);
    json_decref(msg);
}

/* Take a request of `type` and answer it. */
static void fake_answer(struct fake *fake, const char *type, const char *answer, json_t *body)
{
    json_t *msg = fake_receive(fake);

    cr_expect_str_eq(hdt_msg_type(msg), type);
    fake_send(fake, hdt_msg_reply(msg, answer, body));
    json_decref(msg);
}

static void fake_event(struct fake *fake, json_t *body)
{
    json_object_set_new(body, "job", json_integer(7));
    fake_send(fake, hdt_msg_new("job.event", NULL, body));
}

static void *fake_main(void *data)
{
    struct fake *fake = data;

    while ((fake->fd = accept(fake->listener, NULL, NULL)) >= 0) {
        fake_answer(fake, "hello", "welcome",
                    json_pack("{s:s, s:i}", "site", "site-a", "proto", HDT_PROTOCOL_VERSION));
        fake->script(fake);
        close(fake->fd);
    }
    return NULL;
}

static void fake_open(struct fake *fake, void (*script)(struct fake *fake))
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};

    snprintf(fake->dir, sizeof(fake->dir), "/tmp/hdt-test-XXXXXX");
    cr_assert(mkdtemp(fake->dir));
    snprintf(sa.sun_path, sizeof(sa.sun_path), "%s/g.sock", fake->dir);
    snprintf(fake->address, sizeof(fake->address), "unix:%.100s", sa.sun_path);
    fake->listener = socket(AF_UNIX, SOCK_STREAM, 0);
    cr_assert_eq(bind(fake->listener, (struct sockaddr *)&sa, sizeof(sa)), 0);
    cr_assert_eq(listen(fake->listener, 4), 0);
    fake->script = script;
    pthread_create(&fake->thread, NULL, fake_main, fake);
}

static void fake_close(struct fake *fake)
{
    shutdown(fake->listener, SHUT_RDWR);
    pthread_join(fake->thread, NULL);
    close(fake->listener);
    unlink(fake->address + 5);
    rmdir(fake->dir);
}

/* With --timeout, 0: none. */
static struct hdt_gwclient *client_with(struct fake *fake, int timeout_ms,
                                        struct hdt_gwclient_conf *conf)
{
    struct hdt_gwclient *client = NULL;
    struct hdt_error err = {0};

    *conf = (struct hdt_gwclient_conf){
        .gateway = fake->address, .wake_fd = hdt_interrupts_fd(), .timeout_ms = timeout_ms};
    cr_assert_eq(hdt_gwclient_open(conf, &client, &err), HDT_OK, "%s", err.msg);
    return client;
}

static struct hdt_gwclient *client_of(struct fake *fake, struct hdt_gwclient_conf *conf)
{
    return client_with(fake, 0, conf);
}

static void script_status(struct fake *fake)
{
    json_t *msg = fake_receive(fake);

    /* Something else first: it is kept for later. */
    fake_event(fake, json_pack("{s:s}", "event", "state"));
    fake_send(fake, hdt_msg_reply(msg, "status.is", json_pack("{s:i}", "x", 5)));
    json_decref(msg);
    json_decref(fake_receive(fake));
}

Test(gwclient, an_answer_is_found_among_other_messages, .timeout = 20)
{
    struct hdt_gwclient_request request = {
        .type = "status", .expect = "status.is", .timeout_ms = 5000};
    struct hdt_gwclient_conf conf;
    struct hdt_gwclient *client;
    struct hdt_error err = {0};
    struct fake fake;
    json_t *body, *msg;

    fake_open(&fake, script_status);
    client = client_of(&fake, &conf);
    cr_expect_str_eq(hdt_gwclient_site(client), "site-a");
    cr_assert_eq(hdt_gwclient_ask(client, &request, &body, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(json_integer_value(json_object_get(body, "x")), 5);
    json_decref(body);
    cr_assert_eq(hdt_gwclient_next(client, 1000, &msg, &err), HDT_OK);
    cr_expect_str_eq(hdt_msg_type(msg), "job.event");
    json_decref(msg);
    cr_expect_eq(hdt_gwclient_next(client, 1, &msg, &err), HDT_AGAIN);
    hdt_gwclient_close(client);
    fake_close(&fake);
}

static void script_refuse(struct fake *fake)
{
    struct hdt_error why = {.status = HDT_EACCES, .msg = "not for you", .hint = "ask an operator"};
    json_t *msg = fake_receive(fake);

    fake_send(fake, hdt_msg_reply_error(msg, &why));
    json_decref(msg);
    /* The second request is never answered, then the connection ends. */
    json_decref(fake_receive(fake));
    json_decref(fake_receive(fake));
}

Test(gwclient, refusals_deadlines_and_losses_are_told_apart, .timeout = 20)
{
    struct hdt_gwclient_request request = {
        .type = "status", .expect = "status.is", .timeout_ms = 10000};
    struct hdt_gwclient_conf conf;
    struct hdt_gwclient *client;
    struct hdt_error err = {0};
    struct fake fake;
    json_t *body;

    fake_open(&fake, script_refuse);
    client = client_of(&fake, &conf);
    cr_expect_eq(hdt_gwclient_ask(client, &request, &body, &err), HDT_EACCES);
    cr_expect_str_eq(err.msg, "not for you");
    cr_expect_str_eq(err.hint, "ask an operator");
    request.timeout_ms = 50;
    cr_expect_eq(hdt_gwclient_ask(client, &request, &body, &err), HDT_ETIMEDOUT, "%s", err.msg);
    request.timeout_ms = 10000;
    cr_expect_eq(hdt_gwclient_ask(client, &request, &body, &err), HDT_EPEER, "%s", err.msg);
    hdt_gwclient_close(client);
    fake_close(&fake);
}

static void script_last_words(struct fake *fake)
{
    struct hdt_error why = {0};

    hdt_error_set(&why, HDT_EACCES, "users like you are not let in");
    fake_send(fake, hdt_msg_new("error", NULL, hdt_msg_error_body(&why)));
}

/* A gateway that refuses a client closes before the client has spoken. */
Test(gwclient, last_words_are_heard_when_sending_fails, .timeout = 20)
{
    struct hdt_gwclient_request request = {
        .type = "status", .expect = "status.is", .timeout_ms = 10000};
    struct hdt_gwclient_conf conf;
    struct hdt_gwclient *client;
    struct hdt_error err = {0};
    struct fake fake;
    json_t *body;

    fake_open(&fake, script_last_words);
    client = client_of(&fake, &conf);
    fake_close(&fake);
    cr_expect_eq(hdt_gwclient_ask(client, &request, &body, &err), HDT_EACCES);
    cr_expect_str_eq(err.msg, "users like you are not let in");
    hdt_gwclient_close(client);
}

Test(gwclient, nobody_there_is_said_with_a_remedy)
{
    struct hdt_gwclient_conf conf = {.gateway = "unix:/nonexistent/g.sock"};
    struct hdt_gwclient *client;
    struct hdt_error err = {0};

    cr_expect_eq(hdt_gwclient_open(&conf, &client, &err), HDT_EPEER, "%s", err.msg);
    cr_expect(err.hint[0] != '\0');
    conf.gateway = "carrier pigeon";
    cr_expect_eq(hdt_gwclient_open(&conf, &client, &err), HDT_EINVAL, "%s", err.msg);
}

static json_t *step_body(int step, double loss)
{
    return json_pack("{s:s, s:i, s:f, s:f}", "event", "step", "step", step, "loss", loss, "step_s",
                     0.5 * step);
}

static json_t *state_body(const char *state)
{
    return json_pack("{s:s, s:s}", "event", "state", "state", state);
}

/* The first connection breaks after two steps, the second goes on to the end. */
static void script_run(struct fake *fake)
{
    static int n_connections;
    json_t *msg;

    if (n_connections++ == 0) {
        fake_event(fake, state_body("running"));
        fake_event(fake, step_body(1, 3.0));
        fake_event(fake, step_body(2, 2.0));
        return;
    }
    fake_answer(fake, "follow", "following", json_pack("{s:i, s:s}", "job", 7, "state", "running"));
    fake_event(fake, step_body(2, 2.0)); /* again */
    fake_event(fake, step_body(3, 1.0));
    /* Ctrl-C on the other side becomes one "stop". */
    kill(getpid(), SIGINT);
    msg = fake_receive(fake);
    cr_expect_str_eq(hdt_msg_type(msg), "stop");
    json_decref(msg);
    fake_event(fake, json_pack("{s:s, s:i, s:s, s:f}", "event", "checkpoint", "step", 3, "path",
                               "/c/step-3", "seconds", 0.1));
    fake_event(fake, json_pack("{s:s, s:s}", "event", "done", "weights_digest", "00"));
    fake_event(fake, state_body("stopped"));
    json_decref(fake_receive(fake));
}

Test(gwclient, a_job_is_followed_over_a_lost_connection, .timeout = 30)
{
    struct hdt_gwclient_conf conf;
    struct hdt_error err = {0};
    struct fake fake;
    struct hdt_follow f = {.job = 7, .number = 1, .stops_on_interrupt = true};

    fake_open(&fake, script_run);
    hdt_interrupts_catch();
    f.conf = &conf;
    f.client = client_of(&fake, &conf);
    cr_assert_eq(hdt_follow_run(&f, &err), HDT_OK, "%s", err.msg);
    cr_expect_str_eq(f.state, "stopped");
    cr_expect(f.stop_asked);
    cr_expect_not(f.left);
    cr_assert_eq(f.n_trained, 3);
    cr_expect_eq(f.trained[2].loss, 1.0);
    cr_expect_eq(hdt_follow_median_step(&f, NULL), 1.0);
    cr_expect(isnan(f.val_loss));
    cr_expect_str_eq(f.checkpoint, "/c/step-3");
    cr_expect_str_eq(json_string_value(json_object_get(f.done, "weights_digest")), "00");
    hdt_gwclient_close(f.client);
    hdt_follow_release(&f);
    fake_close(&fake);
}

/* ---- outer steps ---- */

/* Rounds of 4: three steps of 1 s, and one of 5 s with the outer step in it. The first round was
 * cut short by a resume. */
static void script_rounds(struct fake *fake)
{
    static const double step_s[] = {6, 1, 1, 1, 5, 1, 1, 1, 5};

    fake_event(fake, state_body("running"));
    for (int i = 0; i < 9; i++) {
        json_t *body = step_body(i + 8, 1.0);

        json_object_set_new(body, "step_s", json_real(step_s[i]));
        if (i % 4 == 0) {
            json_object_set_new(body, "outer_loss", json_real(1));
            json_object_set_new(body, "outer_steps", json_integer(i == 0 ? 1 : 4));
        }
        fake_event(fake, body);
    }
    fake_event(fake, json_pack("{s:s, s:s}", "event", "done", "weights_digest", "00"));
    fake_event(fake, state_body("done"));
    json_decref(fake_receive(fake));
}

/* Predictions give each step its share of an outer step: so does what was measured. */
Test(gwclient, a_step_has_its_share_of_the_outer_step, .timeout = 30)
{
    struct hdt_gwclient_conf conf;
    struct hdt_error err = {0};
    struct fake fake;
    struct hdt_follow f = {.job = 7, .number = 1};
    size_t n;

    fake_open(&fake, script_rounds);
    f.conf = &conf;
    f.client = client_of(&fake, &conf);
    cr_assert_eq(hdt_follow_run(&f, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(hdt_follow_median_step(&f, &n), 2.0);
    cr_expect_eq(n, 9);
    cr_expect_eq(f.trained[3].step_s, 1.0);
    hdt_gwclient_close(f.client);
    hdt_follow_release(&f);
    fake_close(&fake);
}

/* ---- restarts ---- */

static json_t *epoch_body(json_t *body, int epoch)
{
    json_object_set_new(body, "epoch", json_integer(epoch));
    return body;
}

static json_t *recovering_body(int epoch, int resume_step)
{
    return json_pack("{s:s, s:s, s:i, s:{s:s, s:s}, s:[s], s:i, s:s, s:i}", "event", "state",
                     "state", "recovering", "epoch", epoch, "error", "status", "ERANK", "msg",
                     "worker b/w0 is lost", "waits_for", "b/w0", "resume_step", resume_step,
                     "resume", "/c/step-2", "until_s", 100);
}

/* Steps 1 to 4; a restart after step 2 in which steps are said again; its gateway is lost in the
 * middle and says what it has of that epoch once more; a restart that is only heard of later. */
static void script_restarts(struct fake *fake)
{
    static int n_connections;
    json_t *msg;

    if (n_connections++ == 0) {
        fake_event(fake, epoch_body(state_body("running"), 1));
        for (int step = 1; step <= 4; step++) {
            fake_event(fake, epoch_body(step_body(step, 10.0 + step), 1));
        }
        fake_event(fake, recovering_body(2, 2));
        fake_event(fake, epoch_body(state_body("preparing"), 2));
        fake_event(fake, epoch_body(state_body("running"), 2));
        fake_event(fake, epoch_body(step_body(3, 23.0), 2));
        return;
    }
    msg = fake_receive(fake);
    cr_expect_str_eq(hdt_msg_type(msg), "follow");
    cr_expect_eq(json_integer_value(json_object_get(hdt_msg_body(msg), "epoch")), 2);
    cr_expect_eq(json_integer_value(json_object_get(hdt_msg_body(msg), "since")), 3);
    fake_send(fake, hdt_msg_reply(msg, "following", json_pack("{s:i}", "job", 7)));
    json_decref(msg);
    fake_event(fake, epoch_body(step_body(4, 14.0), 1)); /* of an epoch that is over */
    fake_event(fake, epoch_body(step_body(3, 23.0), 2)); /* again */
    fake_event(fake, epoch_body(step_body(4, 24.0), 2));
    for (int i = 0; i < 2; i++) {
        fake_event(fake,
                   json_pack("{s:s, s:i, s:i, s:s, s:f}", "event", "restart", "epoch", 3,
                             "from_step", 3, "reason", "worker b/w0 is lost", "seconds_lost", 7.5));
    }
    fake_event(fake, epoch_body(step_body(4, 34.0), 3));
    fake_event(fake, epoch_body(step_body(5, 35.0), 3));
    fake_event(fake, epoch_body(state_body("done"), 3));
    json_decref(fake_receive(fake));
}

Test(gwclient, a_restarted_job_has_each_step_as_it_was_trained_last, .timeout = 30)
{
    static const double losses[] = {11, 12, 23, 34, 35};
    struct hdt_gwclient_conf conf;
    struct hdt_error err = {0};
    struct fake fake;
    struct hdt_follow f = {.job = 7, .number = 1, .silence_ms = 10000};

    fake_open(&fake, script_restarts);
    f.conf = &conf;
    f.client = client_of(&fake, &conf);
    cr_assert_eq(hdt_follow_run(&f, &err), HDT_OK, "%s", err.msg);
    cr_expect_str_eq(f.state, "done");
    cr_expect_eq(f.epoch, 3);
    cr_expect_eq(f.n_again, 3); /* steps 3 and 4, then 4 */
    cr_expect_eq(f.lost_s, 7.5);
    cr_expect_str_eq(f.error.msg, "", "a loss that it came over");
    cr_assert_eq(f.n_trained, 5);
    for (int i = 0; i < 5; i++) {
        cr_expect_eq(f.trained[i].step, i + 1);
        cr_expect_eq(f.trained[i].loss, losses[i]);
    }
    hdt_gwclient_close(f.client);
    hdt_follow_release(&f);
    fake_close(&fake);
}

static void script_recovers(struct fake *fake)
{
    fake_event(fake, recovering_body(2, 2));
    json_decref(fake_receive(fake)); /* says nothing for longer than silence_ms */
}

static void *interrupt_later(void *arg)
{
    (void)arg;
    usleep(300000);
    kill(getpid(), SIGINT);
    return NULL;
}

Test(gwclient, a_job_that_recovers_is_waited_for_as_long_as_it_says, .timeout = 30)
{
    struct hdt_gwclient_conf conf;
    struct hdt_error err = {0};
    struct fake fake;
    struct hdt_follow f = {.job = 7, .number = 1, .silence_ms = 50};
    pthread_t thread;

    fake_open(&fake, script_recovers);
    hdt_interrupts_catch();
    f.conf = &conf;
    f.client = client_of(&fake, &conf);
    pthread_create(&thread, NULL, interrupt_later, NULL);
    cr_assert_eq(hdt_follow_run(&f, &err), HDT_OK, "%s", err.msg);
    cr_expect(f.left, "it was not waited for");
    cr_expect_str_eq(f.state, "recovering");
    pthread_join(thread, NULL);
    hdt_gwclient_close(f.client);
    hdt_follow_release(&f);
    fake_close(&fake);
}

static void script_gone(struct fake *fake)
{
    fake_event(fake, state_body("running"));
    shutdown(fake->listener, SHUT_RDWR);
    unlink(fake->address + 5);
}

Test(gwclient, a_gateway_that_stays_away_has_an_end, .timeout = 30)
{
    struct hdt_gwclient_conf conf;
    struct hdt_error err = {0};
    struct fake fake;
    struct hdt_follow f = {.job = 7, .number = 1, .silence_ms = 700};

    fake_open(&fake, script_gone);
    f.conf = &conf;
    f.client = client_of(&fake, &conf);
    cr_expect_eq(hdt_follow_run(&f, &err), HDT_EPEER, "%s", err.msg);
    cr_expect(strstr(err.hint, "hdt status"), "%s", err.hint);
    cr_expect_not(f.left);
    hdt_gwclient_close(f.client);
    hdt_follow_release(&f);
    fake_close(&fake);
}

static size_t count_lines(FILE *file, char *last, size_t cap)
{
    size_t n = 0;

    rewind(file);
    while (fgets(last, (int)cap, file)) {
        n++;
    }
    return n;
}

/* What a program writes into a file of three thousand steps, and one more line. */
static size_t steps_shown(bool every_step, char last[2][256])
{
    struct hdt_follow f = {.number = 1, .steps = 3000, .every_step = every_step};
    FILE *file = tmpfile();
    const int own = dup(STDOUT_FILENO);
    json_t *body = json_pack("{s:i, s:f}", "step", 0, "loss", 1.5);
    size_t n;

    fflush(stdout);
    cr_assert(file && own >= 0 && dup2(fileno(file), STDOUT_FILENO) >= 0);
    for (int step = 1; step <= 3000; step++) {
        json_object_set_new(body, "step", json_integer(step));
        hdt_follow_show_step(&f, body);
    }
    fflush(stdout);
    n = count_lines(file, last[0], 256);
    fseek(file, 0, SEEK_END);
    hdt_follow_show(&f, "step 3000: held-out loss 1.4");
    cr_expect_eq(count_lines(file, last[1], 256), n + (every_step ? 1 : 2));
    dup2(own, STDOUT_FILENO);
    close(own);
    fclose(file);
    json_decref(body);
    return n;
}

Test(gwclient, a_million_steps_do_not_fill_a_log, .timeout = 60)
{
    const int64_t begin_us = hdt_clock_now_us();
    char last[2][256];
    size_t n = steps_shown(false, last), n_max;

    n_max = HDT_FOLLOW_STEPS + 1 + (size_t)((hdt_clock_now_us() - begin_us) / HDT_FOLLOW_STEP_US);
    cr_expect(n >= HDT_FOLLOW_STEPS && n <= n_max, "%zu lines", n);
    cr_expect(strncmp(last[1], "step 3000: held-out", 19) == 0, "%s", last[1]);
    cr_expect_eq(steps_shown(true, last), 3000);
    cr_expect(strncmp(last[0], "step 3000/3000 ", 15) == 0, "%s", last[0]);
}

static void script_silent(struct fake *fake)
{
    json_t *msg;

    while ((msg = fake_receive(fake))) {
        json_decref(msg);
    }
}

static void script_answers_only(struct fake *fake)
{
    json_t *msg;

    while ((msg = fake_receive(fake))) {
        fake_send(fake, hdt_msg_reply(msg, "status.is", json_object()));
        json_decref(msg);
    }
}

/* A gateway that answers, for a job that does nothing. */
Test(gwclient, a_job_that_says_nothing_is_given_up, .timeout = 20)
{
    struct hdt_gwclient_conf conf;
    struct hdt_error err = {0};
    struct fake fake;
    struct hdt_follow f = {.job = 7, .number = 1, .silence_ms = 2500};

    fake_open(&fake, script_answers_only);
    f.conf = &conf;
    f.client = client_of(&fake, &conf);
    conf.timeout_ms = 500;
    cr_expect_eq(hdt_follow_run(&f, &err), HDT_ETIMEDOUT, "%s", err.msg);
    cr_expect(strstr(err.msg, "nothing was heard"), "%s", err.msg);
    cr_expect_gt(f.asked_us, 0);
    hdt_gwclient_close(f.client);
    hdt_follow_release(&f);
    fake_close(&fake);
}

Test(gwclient, silence_has_an_end, .timeout = 20)
{
    struct hdt_gwclient_conf conf;
    struct hdt_error err = {0};
    struct fake fake;
    struct hdt_follow f = {.job = 7, .number = 1, .silence_ms = 60000};

    fake_open(&fake, script_silent);
    f.conf = &conf;
    f.client = client_with(&fake, 2000, &conf);
    cr_expect_eq(hdt_follow_run(&f, &err), HDT_ETIMEDOUT, "%s", err.msg);
    cr_expect(strstr(err.msg, "did not answer"), "%s", err.msg);
    cr_expect(err.hint[0] != '\0');
    hdt_gwclient_close(f.client);
    hdt_follow_release(&f);
    fake_close(&fake);
}

Test(gwclient, durations_are_read_at_a_glance)
{
    static const struct {
        double s;
        const char *text;
    } cases[] = {{0, "0 s"},          {59.4, "59 s"},
                 {60, "1 min"},       {125, "2 min 5 s"},
                 {3600, "1 h"},       {11520, "3 h 12 min"},
                 {86400, "1 d"},      {187200, "2 d 4 h"},
                 {86400 + 59, "1 d"}, {3600 + 59.6, "1 h 1 min"},
                 {-5, "0 s"},         {NAN, "0 s"}};
    char text[HDT_HUMAN_CAP];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        cr_expect_str_eq(hdt_human_duration(cases[i].s, text), cases[i].text);
    }
}
