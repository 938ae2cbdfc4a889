/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * The connection: dial, hello, messages, dial again.
 *
 * One thread does all I/O. Other threads change positions and queues under one lock and post the
 * "pump", which runs on the port's thread and hands to the stream whatever may go. A lock and one
 * condition variable serve all waiters: a worker moves some hundred frames a second, and a wait is
 * followed by milliseconds of arithmetic, so that finer locks would buy nothing.
 */
#include "runtime/port_impl.h"

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/recorder.h"
#include "src/core/msg.h"
#include "src/net/tls.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BACKOFF_MIN_US (100 * HDT_US_PER_MS)

static void port_dial(struct hdt_port *port);

/* ---- messages ---- */

/* `bytes` is taken over and emptied. */
static struct port_msg *port_msg_new(struct hdt_buf *bytes, bool once)
{
    struct port_msg *msg = hdt_calloc(1, sizeof(*msg));
    struct hdt_frame *frame = &msg->rec.record.frame;

    msg->bytes = *bytes;
    hdt_buf_init(bytes);
    frame->version = HDT_FRAME_VERSION;
    frame->kind = HDT_FRAME_MSG;
    frame->prio = HDT_PRIO_CONTROL;
    frame->coded_len = (uint32_t)msg->bytes.len;
    msg->rec.record.payload = msg->bytes.data;
    msg->rec.record.payload_len = msg->bytes.len;
    msg->rec.record.passed_fd = -1;
    msg->rec.record.user = &msg->rec;
    msg->rec.kind = PORT_RECORD_MSG;
    msg->rec.owner = msg;
    msg->once = once;
    return msg;
}

static void port_msg_free(struct port_msg *msg)
{
    hdt_buf_release(&msg->bytes);
    free(msg);
}

void hdt_port_post_pump(struct hdt_port *port)
{
    if (!port->pump_posted) {
        port->pump_posted = true;
        hdt_engine_post(port->engine, &port->pump_task);
    }
}

/* Drop the oldest messages until the queue is within its limit. The lock is held. */
static void out_trim(struct hdt_port *port)
{
    struct port_msg *msg;

    while (port->out_bytes > HDT_PORT_MSG_BYTES_MAX && port->out_head != port->out_tail) {
        msg = port->out_head;
        port->out_head = msg->next;
        port->out_bytes -= msg->bytes.len;
        port_msg_free(msg);
        hdt_log_warn_limited(10, "gateway is away: dropped the oldest message");
    }
}

void hdt_port_enqueue(struct hdt_port *port, const void *bytes, size_t len)
{
    struct hdt_buf copy = {0};
    struct port_msg *msg;

    hdt_buf_append(&copy, bytes, len);
    msg = port_msg_new(&copy, false);
    if (port->out_tail) {
        port->out_tail->next = msg;
    } else {
        port->out_head = msg;
    }
    port->out_tail = msg;
    port->out_bytes += msg->bytes.len;
    out_trim(port);
    hdt_port_post_pump(port);
}

void hdt_port_send(struct hdt_port *port, json_t *json)
{
    struct hdt_buf bytes = {0};

    HDT_RECORD(HDT_REC_MESSAGE, .text = {hdt_msg_type(json), "self", hdt_msg_to(json)});
    hdt_msg_encode(json, &bytes);
    json_decref(json);
    pthread_mutex_lock(&port->lock);
    hdt_port_enqueue(port, bytes.data, bytes.len);
    pthread_mutex_unlock(&port->lock);
    hdt_buf_release(&bytes);
}

void hdt_port_send_once(struct hdt_port *port, json_t *json)
{
    struct hdt_buf bytes = {0};
    struct port_msg *msg;

    hdt_msg_encode(json, &bytes);
    json_decref(json);
    msg = port_msg_new(&bytes, true);
    port->n_msgs_queued++;
    hdt_stream_send(port->stream, &msg->rec.record, false);
}

/* Hand queued messages to the stream. */
static void out_pump(struct hdt_port *port)
{
    struct port_msg *msg;

    for (;;) {
        pthread_mutex_lock(&port->lock);
        msg = port->out_head;
        if (msg) {
            port->out_head = msg->next;
            port->out_tail = port->out_head ? port->out_tail : NULL;
            port->out_bytes -= msg->bytes.len;
        }
        pthread_mutex_unlock(&port->lock);
        if (!msg) {
            return;
        }
        msg->next = NULL;
        port->n_msgs_queued++;
        hdt_stream_send(port->stream, &msg->rec.record, false);
    }
}

static void port_msg_sent(struct hdt_port *port, struct port_msg *msg, bool ok)
{
    HDT_ASSERT(port->n_msgs_queued > 0);
    port->n_msgs_queued--;
    if (ok || msg->once) {
        port_msg_free(msg);
        return;
    }
    if (port->returned_tail) {
        port->returned_tail->next = msg;
    } else {
        port->returned_head = msg;
    }
    port->returned_tail = msg;
}

/* What the broken connection gave back goes out before what was queued since. */
static void out_restore(struct hdt_port *port)
{
    struct port_msg *msg;

    if (!port->returned_head) {
        return;
    }
    pthread_mutex_lock(&port->lock);
    for (msg = port->returned_head; msg; msg = msg->next) {
        port->out_bytes += msg->bytes.len;
    }
    port->returned_tail->next = port->out_head;
    port->out_head = port->returned_head;
    port->out_tail = port->out_tail ? port->out_tail : port->returned_tail;
    port->returned_head = NULL;
    port->returned_tail = NULL;
    pthread_mutex_unlock(&port->lock);
}

/* ---- connection ---- */

static void port_say_down(struct hdt_port *port, const struct hdt_error *why)
{
    if (!port->said_down) {
        port->said_down = true;
        port->events.down(port->user, why);
    }
}

static void port_dial_later(struct hdt_port *port)
{
    if (port->ending) {
        port->done = true;
        hdt_engine_stop(port->engine);
        return;
    }
    hdt_engine_timer_arm(port->engine, &port->timer, hdt_clock_now_us() + port->backoff_us);
    port->backoff_us *= 2;
    if (port->backoff_us > port->deadlines.backoff_us) {
        port->backoff_us = port->deadlines.backoff_us;
    }
}

static void port_close_stream(struct hdt_port *port, const struct hdt_error *why)
{
    if (port->stream && !port->closing_stream) {
        port->closing_stream = true;
        hdt_stream_close(port->stream, why);
    }
}

static void port_hello(struct hdt_stream *stream, void *user)
{
    struct hdt_port *port = user;
    json_t *body = json_copy((json_t *)(uintptr_t)port->hello);
    json_t *jobs = json_array();

    (void)stream;
    pthread_mutex_lock(&port->lock);
    if (port->held_job) {
        json_array_append_new(jobs, json_pack("{s:I,s:I}", "job", (json_int_t)port->held_job,
                                              "epoch", (json_int_t)port->held_epoch));
    }
    pthread_mutex_unlock(&port->lock);
    json_object_set_new(body, "jobs", jobs);
    hdt_port_send_once(port, hdt_msg_new("hello", NULL, body));
}

static void port_welcome(struct hdt_port *port, const json_t *msg)
{
    const json_int_t knob_ms =
        json_integer_value(json_object_get(hdt_msg_body(msg), "progress_timeout_ms"));

    hdt_engine_timer_disarm(port->engine, &port->timer);
    if (knob_ms >= HDT_DEADLINES_KNOB_MIN_MS && knob_ms <= HDT_DEADLINES_KNOB_MAX_MS) {
        hdt_deadlines_derive(&port->deadlines, knob_ms, 0);
    }
    if (port->tls) {
        hdt_addr_keep_alive(hdt_stream_fd(port->stream), port->deadlines.session_dead_us);
    }
    pthread_mutex_lock(&port->lock);
    port->up = true;
    port->n_sessions++;
    pthread_mutex_unlock(&port->lock);
    port->backoff_us = BACKOFF_MIN_US;
    port->said_down = false;
    port->events.up(port->user, hdt_msg_body(msg));
    hdt_port_flows_up(port);
    out_pump(port);
    hdt_port_reports_up(port);
    hdt_port_flows_pump(port);
}

/* The first message decides: welcome, or the reason why not. */
static enum hdt_status port_first_msg(struct hdt_port *port, const json_t *msg,
                                      struct hdt_error *err)
{
    const char *type = hdt_msg_type(msg);
    enum hdt_status status;

    if (strcmp(type, "welcome") == 0) {
        port_welcome(port, msg);
        return HDT_OK;
    }
    if (strcmp(type, "error") == 0 || strcmp(type, "refuse") == 0) {
        port->backoff_us = port->deadlines.backoff_us;
        status = hdt_msg_error_from_body(hdt_msg_body(msg), err);
        hdt_error_prefix(err, "cannot join the gateway");
        return status == HDT_OK ? HDT_EPEER : status;
    }
    return hdt_error_set(err, HDT_EPROTO, "cannot join the gateway: it answered hello with '%s'",
                         type);
}

static enum hdt_status port_msg_arrived(struct hdt_port *port, const void *bytes, size_t len,
                                        struct hdt_error *err)
{
    enum hdt_status status;
    json_t *msg;

    HDT_TRY(hdt_msg_decode(bytes, len, &msg, err));
    if (port->up && hdt_port_report_answered(port, msg)) {
        json_decref(msg);
        return HDT_OK;
    }
    if (port->up) {
        port->events.message(port->user, msg);
        return HDT_OK;
    }
    status = port_first_msg(port, msg, err);
    json_decref(msg);
    return status;
}

static enum hdt_status port_place(struct hdt_stream *stream, void *user,
                                  const struct hdt_frame *frame, size_t payload_len, void **buf,
                                  struct hdt_error *err)
{
    struct hdt_port *port = user;

    (void)stream;
    switch ((enum hdt_frame_kind)frame->kind) {
    case HDT_FRAME_MSG:
        hdt_buf_clear(&port->recv);
        hdt_buf_reserve(&port->recv, payload_len);
        *buf = port->recv.data;
        return HDT_OK;
    case HDT_FRAME_DATA:
        return hdt_port_flows_place(port, frame, payload_len, buf, err);
    default:
        return hdt_error_set(err, HDT_EPROTO, "cannot take a %s record with %zu bytes behind it",
                             hdt_frame_kind_name(frame->kind), payload_len);
    }
}

static enum hdt_status port_record(struct hdt_stream *stream, void *user,
                                   const struct hdt_frame *frame, void *buf, int passed_fd,
                                   struct hdt_error *err)
{
    struct hdt_port *port = user;

    (void)stream;
    if (passed_fd >= 0) {
        close(passed_fd); /* a gateway has none to pass */
    }
    switch ((enum hdt_frame_kind)frame->kind) {
    case HDT_FRAME_MSG:
        return port_msg_arrived(port, buf, frame->coded_len, err);
    case HDT_FRAME_DATA:
    case HDT_FRAME_ACK:
    case HDT_FRAME_QUERY:
        return hdt_port_flows_record(port, frame, err);
    case HDT_FRAME_PING:
    case HDT_FRAME_PONG:
    case HDT_FRAME_HAVE:
        return HDT_OK;
    default:
        return hdt_error_set(err, HDT_EPROTO, "cannot take a %s record from a gateway",
                             hdt_frame_kind_name(frame->kind));
    }
}

static void port_want(struct hdt_stream *stream, void *user)
{
    struct hdt_port *port = user;

    (void)stream;
    if (port->up) {
        hdt_port_flows_pump(port);
    }
}

static void port_stop_if_idle(struct hdt_port *port)
{
    bool idle;

    pthread_mutex_lock(&port->lock);
    idle = port->stopping && port->n_msgs_queued == 0 && (!port->out_head || !port->up);
    pthread_mutex_unlock(&port->lock);
    if (idle) {
        port_close_stream(port, NULL);
    }
}

static void port_sent(struct hdt_stream *stream, void *user, struct hdt_record *record, bool ok)
{
    struct hdt_port *port = user;
    struct port_record *rec = record->user;

    (void)stream;
    if (rec->kind == PORT_RECORD_MSG) {
        port_msg_sent(port, rec->owner, ok);
        port_stop_if_idle(port);
    } else {
        hdt_port_flows_sent(port, rec);
    }
}

static void port_closed(struct hdt_stream *stream, void *user, const struct hdt_error *err)
{
    struct hdt_port *port = user;

    (void)stream;
    port->stream = NULL;
    port->closing_stream = false;
    pthread_mutex_lock(&port->lock);
    port->up = false;
    pthread_mutex_unlock(&port->lock);
    hdt_port_flows_down(port);
    out_restore(port);
    if (err && err->status != HDT_OK) {
        port_say_down(port, err);
    }
    port_dial_later(port);
}

static const struct hdt_stream_events port_stream_events = {
    .up = port_hello,
    .place = port_place,
    .record = port_record,
    .want = port_want,
    .sent = port_sent,
    .closed = port_closed,
};

static void port_connected(struct hdt_engine *engine, struct hdt_io *io, int64_t result)
{
    struct hdt_port *port = io->user;
    struct hdt_stream_conf conf = {.ssl_ctx = port->tls ? hdt_tls_ctx_ssl_ctx(port->tls) : NULL,
                                   .is_client = true,
                                   .name = "gateway",
                                   .handshake_timeout_us = port->deadlines.handshake_us};
    struct hdt_error err = {0};

    port->connecting = false;
    hdt_engine_timer_disarm(engine, &port->timer);
    if (result < 0 || port->ending) {
        close(port->fd);
        hdt_error_set_errno(&err, HDT_EPEER, result == -ECANCELED ? ETIMEDOUT : (int)-result,
                            "cannot reach the gateway at %s", port->address);
        hdt_error_hint(&err, "start hdt-gateway, or correct 'gateway' in worker.yaml; "
                             "the worker keeps trying");
        port_say_down(port, &err);
        port_dial_later(port);
        return;
    }
    conf.foreign_lengths_are_frames = !(port->link->caps & HDT_LINK_SHARED);
    if (hdt_stream_open(engine, port->fd, &conf, &port_stream_events, port, &port->stream, &err) !=
        HDT_OK) {
        port->stream = NULL;
        port_say_down(port, &err);
        port_dial_later(port);
        return;
    }
    port->opened_us = hdt_clock_now_us();
    hdt_engine_timer_arm(engine, &port->timer, port->opened_us + port->deadlines.handshake_us);
}

static void port_dial(struct hdt_port *port)
{
    struct hdt_error err = {0};

    if (hdt_addr_parse(port->address, &port->addr, &err) != HDT_OK ||
        hdt_addr_socket(&port->addr, &port->fd, &err) != HDT_OK) {
        port_say_down(port, &err);
        port_dial_later(port);
        return;
    }
    memset(&port->connect_io, 0, sizeof(port->connect_io));
    port->connect_io.kind = HDT_IO_CONNECT;
    port->connect_io.fd = port->fd;
    port->connect_io.passed_fd = -1;
    port->connect_io.addr = port->addr.sa;
    port->connect_io.addr_len = port->addr.sa_len;
    port->connect_io.done = port_connected;
    port->connect_io.user = port;
    port->connecting = true;
    hdt_engine_timer_arm(port->engine, &port->timer,
                         hdt_clock_now_us() + port->deadlines.connect_us);
    hdt_engine_submit(port->engine, &port->connect_io);
}

/* ---- the thread ---- */

static void port_close_mute(struct hdt_port *port)
{
    struct hdt_error why;

    hdt_error_set(&why, HDT_ETIMEDOUT,
                  "cannot join the gateway at %s: it accepts connections, but has not answered "
                  "hello for %.1f s",
                  port->address, (double)(hdt_clock_now_us() - port->opened_us) / 1e6);
    hdt_error_hint(&why, "is hdt-gateway stopped, or does another program listen there? The worker "
                         "keeps trying");
    port_close_stream(port, &why);
}

/* One timer: what it means follows from where the connection is. */
static void port_timer(struct hdt_engine *engine, struct hdt_timer *timer)
{
    struct hdt_port *port = timer->user;

    if (port->ending) {
        port_close_stream(port, NULL); /* the grace is over */
    } else if (port->connecting) {
        hdt_engine_cancel(engine, &port->connect_io);
    } else if (port->stream) {
        port_close_mute(port);
    } else {
        port_dial(port);
    }
}

/* Close: at once when nothing is left to say, else when it is said or the grace is over. */
static void port_begin_stop(struct hdt_port *port)
{
    port->ending = true;
    hdt_engine_timer_disarm(port->engine, &port->timer);
    hdt_engine_timer_disarm(port->engine, &port->report_timer);
    if (port->connecting) {
        hdt_engine_cancel(port->engine, &port->connect_io);
    } else if (port->stream) {
        hdt_engine_timer_arm(port->engine, &port->timer,
                             hdt_clock_now_us() + port->deadlines.stop_us);
        port_stop_if_idle(port);
    } else {
        port->done = true;
        hdt_engine_stop(port->engine);
    }
}

static void port_pump(struct hdt_engine *engine, struct hdt_task *task)
{
    struct hdt_port *port =
        (struct hdt_port *)(void *)((char *)task - offsetof(struct hdt_port, pump_task));
    bool stopping, break_due, up;
    struct hdt_error why = {0};

    (void)engine;
    pthread_mutex_lock(&port->lock);
    port->pump_posted = false;
    stopping = port->stopping;
    break_due = port->break_due;
    port->break_due = false;
    up = port->up;
    pthread_mutex_unlock(&port->lock);
    if (break_due) {
        hdt_error_set(&why, HDT_ELINK, "connection closed by a fault drill");
        port_close_stream(port, &why);
    }
    if (up && port->stream && !port->closing_stream) {
        out_pump(port);
        hdt_port_reports_pump(port);
        hdt_port_flows_pump(port);
    }
    if (stopping && !port->ending) {
        port_begin_stop(port);
    }
}

static void *port_thread(void *arg)
{
    struct hdt_port *port = arg;

    port_dial(port);
    while (!port->done) {
        hdt_engine_run(port->engine);
    }
    return NULL;
}

static void port_free(struct hdt_port *port)
{
    struct port_msg *msg;

    while ((msg = port->out_head)) {
        port->out_head = msg->next;
        port_msg_free(msg);
    }
    hdt_port_reports_release(port);
    hdt_engine_close(port->engine);
    hdt_buf_release(&port->recv);
    free(port->discard);
    free(port->address);
    free(port->spool_dir);
    pthread_cond_destroy(&port->moved);
    pthread_mutex_destroy(&port->lock);
    free(port);
}

static struct hdt_port *port_new(const struct hdt_port_conf *conf,
                                 const struct hdt_port_events *events, void *user)
{
    struct hdt_port *port = hdt_calloc(1, sizeof(*port));
    pthread_condattr_t attr;

    port->address = hdt_strdup(conf->address);
    port->tls = conf->tls;
    port->hello = conf->hello;
    port->events = *events;
    port->user = user;
    port->backoff_us = BACKOFF_MIN_US;
    hdt_deadlines_derive(&port->deadlines, HDT_DEADLINES_KNOB_DEFAULT_MS, 0);
    port->pump_task.run = port_pump;
    port->timer.fire = port_timer;
    port->timer.user = port;
    port->spool_dir = conf->spool_dir ? hdt_strdup(conf->spool_dir) : NULL;
    hdt_port_reports_init(port);
    port->next_pool = 1;
    pthread_mutex_init(&port->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&port->moved, &attr);
    pthread_condattr_destroy(&attr);
    return port;
}

enum hdt_status hdt_port_open(const struct hdt_port_conf *conf,
                              const struct hdt_port_events *events, void *user,
                              struct hdt_port **out, struct hdt_error *err)
{
    struct hdt_port *port;
    enum hdt_status status;

    if (!hdt_link_ops_for(conf->address)) {
        hdt_error_set(err, HDT_EINVAL, "cannot use the gateway address '%s'", conf->address);
        hdt_error_hint(err, "write unix:PATH or tls:host:port");
        return HDT_EINVAL;
    }
    port = port_new(conf, events, user);
    port->link = hdt_link_ops_for(conf->address);
    status = hdt_engine_open(NULL, &port->engine, err);
    if (status != HDT_OK) {
        goto err_free;
    }
    if (pthread_create(&port->thread, NULL, port_thread, port) != 0) {
        status = hdt_error_set(err, HDT_ENOMEM, "cannot start the port's thread");
        goto err_free;
    }
    *out = port;
    return HDT_OK;
err_free:
    port_free(port);
    return status;
}

void hdt_port_close(struct hdt_port *port)
{
    if (!port) {
        return;
    }
    pthread_mutex_lock(&port->lock);
    HDT_ASSERT(!port->job);
    port->stopping = true;
    hdt_port_post_pump(port);
    pthread_mutex_unlock(&port->lock);
    pthread_join(port->thread, NULL);
    port_free(port);
}

void hdt_port_hold(struct hdt_port *port, uint32_t job, uint32_t epoch)
{
    pthread_mutex_lock(&port->lock);
    port->held_job = job;
    port->held_epoch = epoch;
    pthread_mutex_unlock(&port->lock);
}

void hdt_port_break(struct hdt_port *port)
{
    pthread_mutex_lock(&port->lock);
    port->break_due = true;
    hdt_port_post_pump(port);
    pthread_mutex_unlock(&port->lock);
}

uint64_t hdt_port_n_sessions(struct hdt_port *port)
{
    uint64_t n;

    pthread_mutex_lock(&port->lock);
    n = port->n_sessions;
    pthread_mutex_unlock(&port->lock);
    return n;
}
