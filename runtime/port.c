/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * What a worker says to its gateway: hello, messages, and when to send.
 *
 * One thread does all I/O, over a connection that is made again (src/net/gwlink.h). Other threads
 * change positions and queues under one lock and post the "pump", which runs on the port's thread
 * and hands to the connection whatever may go. A lock and one condition variable serve all waiters:
 * a worker moves some hundred frames a second, and a wait is followed by milliseconds of
 * arithmetic, so that finer locks would buy nothing.
 */
#include "runtime/port_impl.h"

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/recorder.h"
#include "src/core/msg.h"

#include <stdlib.h>
#include <string.h>

/* ---- messages ---- */

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
    struct port_msg *msg = hdt_calloc(1, sizeof(*msg));

    hdt_buf_append(&msg->bytes, bytes, len);
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

/* Hand queued messages to the connection. */
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
        hdt_gwlink_say_encoded(port->gw, &msg->bytes, false);
        port_msg_free(msg);
    }
}

/* ---- events of the connection ---- */

static json_t *port_hello(void *user)
{
    struct hdt_port *port = user;
    json_t *body = json_copy((json_t *)(uintptr_t)port->hello);
    json_t *jobs = json_array();

    pthread_mutex_lock(&port->lock);
    if (port->held_job) {
        json_array_append_new(jobs, json_pack("{s:I,s:I}", "job", (json_int_t)port->held_job,
                                              "epoch", (json_int_t)port->held_epoch));
    }
    pthread_mutex_unlock(&port->lock);
    json_object_set_new(body, "jobs", jobs);
    return body;
}

static void port_up(void *user, const json_t *welcome)
{
    struct hdt_port *port = user;

    pthread_mutex_lock(&port->lock);
    port->up = true;
    port->n_sessions++;
    pthread_mutex_unlock(&port->lock);
    port->events.up(port->user, welcome);
    hdt_port_flows_up(port);
    out_pump(port);
    hdt_port_reports_up(port);
    hdt_port_flows_pump(port);
}

static void port_down(void *user, const struct hdt_error *why)
{
    struct hdt_port *port = user;

    port->events.down(port->user, why);
}

static void port_message(void *user, json_t *msg)
{
    struct hdt_port *port = user;

    if (hdt_port_report_answered(port, msg)) {
        json_decref(msg);
    } else {
        port->events.message(port->user, msg);
    }
}

static enum hdt_status port_place(void *user, const struct hdt_frame *frame, size_t len, void **buf,
                                  struct hdt_error *err)
{
    return hdt_port_flows_place(user, frame, len, buf, err);
}

static enum hdt_status port_record(void *user, const struct hdt_frame *frame, struct hdt_error *err)
{
    return hdt_port_flows_record(user, frame, err);
}

static void port_want(void *user)
{
    hdt_port_flows_pump(user);
}

static void port_sent(void *user, struct hdt_record *record, bool ok)
{
    (void)ok; /* the flows go back to what was acknowledged when the connection is lost */
    hdt_port_flows_sent(user, record->user);
}

static void port_lost(void *user)
{
    struct hdt_port *port = user;

    pthread_mutex_lock(&port->lock);
    port->up = false;
    pthread_mutex_unlock(&port->lock);
    hdt_port_flows_down(port);
}

static void port_ended(void *user)
{
    struct hdt_port *port = user;

    port->done = true;
    hdt_engine_stop(port->engine);
}

static const struct hdt_gwlink_events port_events = {
    .hello = port_hello,
    .up = port_up,
    .down = port_down,
    .message = port_message,
    .place = port_place,
    .record = port_record,
    .want = port_want,
    .sent = port_sent,
    .lost = port_lost,
    .ended = port_ended,
};

/* ---- the thread ---- */

static void port_pump(struct hdt_engine *engine, struct hdt_task *task)
{
    struct hdt_port *port =
        (struct hdt_port *)(void *)((char *)task - offsetof(struct hdt_port, pump_task));
    bool stopping, break_due;
    struct hdt_error why = {0};

    (void)engine;
    pthread_mutex_lock(&port->lock);
    port->pump_posted = false;
    stopping = port->stopping;
    break_due = port->break_due;
    port->break_due = false;
    pthread_mutex_unlock(&port->lock);
    if (break_due) {
        hdt_error_set(&why, HDT_ELINK, "connection closed by a fault drill");
        hdt_gwlink_break(port->gw, &why);
    }
    if (hdt_gwlink_is_up(port->gw)) {
        out_pump(port);
        hdt_port_reports_pump(port);
        hdt_port_flows_pump(port);
    }
    if (stopping && !port->ending) {
        port->ending = true;
        hdt_engine_timer_disarm(port->engine, &port->report_timer);
        hdt_gwlink_end(port->gw);
    }
}

static void *port_thread(void *arg)
{
    struct hdt_port *port = arg;

    hdt_gwlink_start(port->gw);
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
    hdt_gwlink_free(port->gw);
    hdt_engine_close(port->engine);
    free(port->discard);
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

    port->hello = conf->hello;
    port->events = *events;
    port->user = user;
    port->pump_task.run = port_pump;
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
    const struct hdt_gwlink_conf link = {
        .address = conf->address,
        .tls = conf->tls,
        .remedy = "start hdt-gateway, or correct 'gateway' in worker.yaml; the worker keeps "
                  "trying"};
    struct hdt_port *port = port_new(conf, events, user);
    enum hdt_status status;

    status = hdt_engine_open(NULL, &port->engine, err);
    if (status == HDT_OK) {
        status = hdt_gwlink_new(port->engine, &link, &port_events, port, &port->gw, err);
    }
    if (status != HDT_OK) {
        goto err_free;
    }
    port->link = hdt_gwlink_ops(port->gw);
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
