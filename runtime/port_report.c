/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Reports to the coordinator of a job, each of which it writes down once and in order.
 *
 * What a connection took is not what the other end has: a gateway between may be killed, a session
 * between two sites reset with the bytes still on their way. So the worker, who must be there
 * anyway for the job to go on, keeps a report until the coordinator says that it is written
 * ("report.ack" with the number of the last one). All that is not acknowledged is said again when
 * the connection to our gateway was made anew, when the coordinator asks for it (the session
 * between the sites was), and after a silence, which doubles. Numbers make it harmless that a
 * report comes twice.
 *
 * Few are under way at a time: after an outage the rest follows as acknowledgements come, so that a
 * backlog of a weekend does not flood the control streams that it shares.
 */
#include "runtime/port_impl.h"

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/recorder.h"
#include "src/core/msg.h"

#include <string.h>

#define SILENCE_MIN_US (1 * HDT_US_PER_S)
#define SILENCE_MAX_US (30 * HDT_US_PER_S)
#define REFUSED_MIN_US (500 * HDT_US_PER_MS)
#define WINDOW_MAX     32                /* reports under way */
#define WINDOW_BYTES   ((size_t)1 << 18) /* and their bytes, of more than one */

#define MEMORY_BYTES ((size_t)8 << 20)
#define SPOOL_BYTES  ((uint64_t)4 << 30) /* 60 h of 60 reports a second, of 300 bytes */

/* ---- adding ---- */

static void reports_forget(struct port_reports *reports)
{
    if (reports->queue) {
        reports->id_base += hdt_report_queue_last(reports->queue);
    }
    hdt_report_queue_free(reports->queue);
    reports->queue = NULL;
}

/* The reports of an epoch end with it. */
static void reports_begin(struct hdt_port *port, json_int_t job, json_int_t epoch)
{
    const struct hdt_report_queue_conf conf = {
        .spool_dir = port->spool_dir, .memory_bytes = MEMORY_BYTES, .spool_bytes = SPOOL_BYTES};
    struct port_reports *reports = &port->reports;

    if (reports->queue && reports->job == job && reports->epoch == epoch) {
        return;
    }
    reports_forget(reports);
    reports->queue = hdt_report_queue_new(&conf);
    if (reports->job != job) {
        hdt_buf_clear(&reports->checkpoint);
    }
    reports->job = job;
    reports->epoch = epoch;
    reports->sent = 0;
    reports->window = WINDOW_MAX;
    reports->silence_us = SILENCE_MIN_US;
}

/* Without these a job does not end, or nobody learns where its checkpoint is. */
static bool is_vital(const char *type)
{
    return strcmp(type, "step") != 0 && strcmp(type, "eval") != 0 && strcmp(type, "saving") != 0;
}

void hdt_port_report(struct hdt_port *port, json_t *msg)
{
    const json_t *body = hdt_msg_body(msg);
    struct hdt_buf bytes = {0};
    uint64_t n;

    HDT_RECORD(HDT_REC_MESSAGE, .text = {hdt_msg_type(msg), "self", hdt_msg_to(msg)});
    hdt_msg_encode(msg, &bytes);
    pthread_mutex_lock(&port->reports.lock);
    reports_begin(port, json_integer_value(json_object_get(body, "job")),
                  json_integer_value(json_object_get(body, "epoch")));
    n = hdt_report_queue_add(port->reports.queue, bytes.data, bytes.len,
                             is_vital(hdt_msg_type(msg)));
    if (strcmp(hdt_msg_type(msg), "ckpt") == 0) {
        hdt_buf_clear(&port->reports.checkpoint);
        hdt_buf_append(&port->reports.checkpoint, bytes.data, bytes.len);
    }
    pthread_mutex_unlock(&port->reports.lock);
    if (n == 0) {
        hdt_log_warn_limited(
            60,
            "a report '%s' is lost: the coordinator %s is away for long, and there "
            "is no room to keep more",
            hdt_msg_type(msg), hdt_msg_to(msg));
    }
    pthread_mutex_lock(&port->lock);
    hdt_port_post_pump(port);
    pthread_mutex_unlock(&port->lock);
    hdt_buf_release(&bytes);
    json_decref(msg);
}

void hdt_port_reports_end(struct hdt_port *port, json_int_t job, json_int_t epoch)
{
    struct port_reports *reports = &port->reports;

    pthread_mutex_lock(&reports->lock);
    if (reports->queue && reports->job == job && reports->epoch <= epoch) {
        reports_forget(reports);
    }
    pthread_mutex_unlock(&reports->lock);
}

json_t *hdt_port_last_checkpoint(struct hdt_port *port, json_int_t job)
{
    struct port_reports *reports = &port->reports;
    json_t *msg = NULL, *body = NULL;

    pthread_mutex_lock(&reports->lock);
    if (reports->job == job && reports->checkpoint.len > 0 &&
        hdt_msg_decode(reports->checkpoint.data, reports->checkpoint.len, &msg, NULL) == HDT_OK) {
        body = json_incref(json_object_get(msg, "b"));
    }
    pthread_mutex_unlock(&reports->lock);
    json_decref(msg);
    return body;
}

void hdt_port_checkpoint_forget(struct hdt_port *port)
{
    pthread_mutex_lock(&port->reports.lock);
    hdt_buf_clear(&port->reports.checkpoint);
    pthread_mutex_unlock(&port->reports.lock);
}

/* ---- sending: on the port's thread; `reports->lock` is held where it says so ---- */

/* All that is not acknowledged counts as not sent. The lock is held. */
static void reports_rewind(struct port_reports *reports)
{
    reports->sent = hdt_report_queue_first(reports->queue) - 1;
}

/* The lock is held. */
static bool reports_under_way(const struct port_reports *reports)
{
    return reports->queue && reports->sent >= hdt_report_queue_first(reports->queue);
}

static void reports_arm(struct hdt_port *port, int64_t delay_us)
{
    hdt_engine_timer_arm(port->engine, &port->report_timer, hdt_clock_now_us() + delay_us);
}

/* The next report that may go; NULL: none. The lock is held. */
static const struct hdt_report *reports_next(const struct port_reports *reports)
{
    const struct hdt_report *report = hdt_report_queue_oldest(reports->queue);
    size_t bytes = 0;
    unsigned n = 0;

    for (; report && report->n <= reports->sent; report = report->next) {
        bytes += report->len;
        n++;
    }
    return n < reports->window && (n == 0 || bytes < WINDOW_BYTES) ? report : NULL;
}

/* As it goes out: with its number, and the number of the oldest that we could still say. */
static json_t *report_msg(const struct port_reports *reports, const struct hdt_report *report)
{
    json_t *msg, *body;

    if (hdt_msg_decode(report->bytes, report->len, &msg, NULL) != HDT_OK) {
        return NULL; /* the file was changed under us */
    }
    body = json_object_get(msg, "b");
    json_object_set_new(body, "n", json_integer((json_int_t)report->n));
    json_object_set_new(body, "first",
                        json_integer((json_int_t)hdt_report_queue_first(reports->queue)));
    json_object_set_new(msg, "id", json_integer((json_int_t)(reports->id_base + report->n)));
    return msg;
}

static json_t *reports_take_next(struct hdt_port *port)
{
    struct port_reports *reports = &port->reports;
    const struct hdt_report *report;
    json_t *msg = NULL;

    pthread_mutex_lock(&reports->lock);
    while (!msg && reports->queue && (report = reports_next(reports))) {
        if (!reports_under_way(reports)) {
            reports_arm(port, reports->silence_us);
        }
        reports->sent = report->n;
        msg = report_msg(reports, report);
    }
    pthread_mutex_unlock(&reports->lock);
    return msg;
}

void hdt_port_reports_pump(struct hdt_port *port)
{
    json_t *msg;

    while (hdt_gwlink_is_up(port->gw) && (msg = reports_take_next(port))) {
        hdt_gwlink_say(port->gw, msg, true);
    }
}

void hdt_port_reports_up(struct hdt_port *port)
{
    struct port_reports *reports = &port->reports;

    pthread_mutex_lock(&reports->lock);
    if (reports->queue) {
        reports_rewind(reports);
        reports->window = reports->window > 0 ? reports->window : 1;
        reports->silence_us = SILENCE_MIN_US;
    }
    pthread_mutex_unlock(&reports->lock);
    hdt_port_reports_pump(port);
}

/* Nothing was heard: one is said again, the others when it is acknowledged. */
static void reports_timer(struct hdt_engine *engine, struct hdt_timer *timer)
{
    struct hdt_port *port = timer->user;
    struct port_reports *reports = &port->reports;

    (void)engine;
    pthread_mutex_lock(&reports->lock);
    if (reports->queue) {
        reports_rewind(reports);
        reports->window = 1;
        reports->silence_us *= 2;
        if (reports->silence_us > SILENCE_MAX_US) {
            reports->silence_us = SILENCE_MAX_US;
        }
    }
    pthread_mutex_unlock(&reports->lock);
    hdt_port_reports_pump(port);
}

/* ---- answers ---- */

/* "report.ack". The lock is held. */
static void reports_acked(struct hdt_port *port, uint64_t n, bool again)
{
    struct port_reports *reports = &port->reports;

    reports->window = reports->window > 0 ? reports->window : 1; /* the way is free */
    if (n >= hdt_report_queue_first(reports->queue)) {
        hdt_report_queue_drop(reports->queue, n);
        reports->window = reports->window < WINDOW_MAX ? 2 * reports->window + 1 : WINDOW_MAX;
        reports->silence_us = SILENCE_MIN_US;
        if (reports_under_way(reports)) {
            reports_arm(port, reports->silence_us);
        }
    }
    if (again || reports->sent < n) {
        reports_rewind(reports);
    }
    if (!reports_under_way(reports)) {
        hdt_engine_timer_disarm(port->engine, &port->report_timer);
    }
}

static bool report_ack_arrived(struct hdt_port *port, const json_t *msg)
{
    const json_t *body = hdt_msg_body(msg);
    struct port_reports *reports = &port->reports;
    json_int_t n = json_integer_value(json_object_get(body, "n"));

    pthread_mutex_lock(&reports->lock);
    if (reports->queue && n >= 0 && (uint64_t)n <= hdt_report_queue_last(reports->queue) &&
        json_integer_value(json_object_get(body, "job")) == reports->job &&
        json_integer_value(json_object_get(body, "epoch")) == reports->epoch) {
        reports_acked(port, (uint64_t)n, json_is_true(json_object_get(body, "again")));
    }
    pthread_mutex_unlock(&reports->lock);
    hdt_port_reports_pump(port);
    return true;
}

/* One that the coordinator does not want is not said again: it would hold up those behind it. */
static bool is_final(enum hdt_status status)
{
    return status == HDT_EACCES || status == HDT_ENOTSUP || status == HDT_EPROTO ||
           status == HDT_EINVAL;
}

/* Any other "error" says that it did not get there: a gateway has no session with that site now.
 * The first of several that come back counts. */
static bool report_error_arrived(struct hdt_port *port, const json_t *msg)
{
    json_int_t re = json_integer_value(json_object_get(msg, "re"));
    struct port_reports *reports = &port->reports;
    struct hdt_error theirs = {0};
    uint64_t n;
    bool ours;

    if (re <= 0) {
        return false;
    }
    hdt_msg_error_from_body(hdt_msg_body(msg), &theirs);
    pthread_mutex_lock(&reports->lock);
    n = (uint64_t)re - reports->id_base;
    ours = reports->queue && (uint64_t)re > reports->id_base &&
           n <= hdt_report_queue_last(reports->queue);
    if (ours && is_final(theirs.status)) {
        hdt_log_error("report %llu of job %lld is refused: %s", (unsigned long long)n,
                      (long long)reports->job, theirs.msg);
        hdt_report_queue_drop(reports->queue, n);
    } else if (ours && reports_under_way(reports)) {
        hdt_log_warn_limited(60, "a report did not get through, trying again: %s", theirs.msg);
        reports_rewind(reports);
        reports->window = 0; /* until the timer fires */
        reports_arm(port,
                    reports->silence_us > SILENCE_MIN_US ? reports->silence_us : REFUSED_MIN_US);
    }
    pthread_mutex_unlock(&reports->lock);
    return ours;
}

bool hdt_port_report_answered(struct hdt_port *port, const json_t *msg)
{
    const char *type = hdt_msg_type(msg);

    return strcmp(type, "report.ack") == 0 ? report_ack_arrived(port, msg)
           : strcmp(type, "error") == 0    ? report_error_arrived(port, msg)
                                           : false;
}

/* ---- life ---- */

void hdt_port_reports_init(struct hdt_port *port)
{
    pthread_mutex_init(&port->reports.lock, NULL);
    port->report_timer.fire = reports_timer;
    port->report_timer.user = port;
}

void hdt_port_reports_release(struct hdt_port *port)
{
    hdt_report_queue_free(port->reports.queue);
    hdt_buf_release(&port->reports.checkpoint);
    pthread_mutex_destroy(&port->reports.lock);
}
