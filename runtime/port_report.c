/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Reports to the coordinator's site, which may be out of reach for a while.
 *
 * A gateway keeps no messages for sites that it has no session with; it answers at once that it has
 * none. The worker, who must wait anyway, keeps its last reports and says them again. They may then
 * arrive in another order: each says of which step it is.
 */
#include "runtime/port_impl.h"

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/recorder.h"
#include "src/core/msg.h"

#include <string.h>

#define RETRY_US (500 * HDT_US_PER_MS)

void hdt_port_report(struct hdt_port *port, json_t *msg)
{
    struct port_report *report;
    uint64_t id;

    pthread_mutex_lock(&port->lock);
    id = ++port->last_report;
    report = &port->reports[id % HDT_PORT_REPORTS];
    json_object_set_new(msg, "id", json_integer((json_int_t)id));
    HDT_RECORD(HDT_REC_MESSAGE, .text = {hdt_msg_type(msg), "self", hdt_msg_to(msg)});
    report->id = id;
    report->due = false;
    hdt_buf_clear(&report->bytes);
    hdt_msg_encode(msg, &report->bytes);
    hdt_port_enqueue(port, report->bytes.data, report->bytes.len);
    pthread_mutex_unlock(&port->lock);
    json_decref(msg);
}

bool hdt_port_report_refused(struct hdt_port *port, const json_t *msg)
{
    json_int_t re = json_integer_value(json_object_get(msg, "re"));
    struct hdt_error theirs = {0};
    struct port_report *report;
    bool known;

    if (strcmp(hdt_msg_type(msg), "error") != 0 || re <= 0) {
        return false;
    }
    hdt_msg_error_from_body(hdt_msg_body(msg), &theirs);
    if (theirs.status != HDT_EPEER) {
        return false;
    }
    pthread_mutex_lock(&port->lock);
    report = &port->reports[re % HDT_PORT_REPORTS];
    known = report->id == (uint64_t)re;
    report->due = report->due || known;
    pthread_mutex_unlock(&port->lock);
    if (known) {
        hdt_log_warn_limited(10, "a report did not get through, trying again: %s", theirs.msg);
        hdt_engine_timer_arm(port->engine, &port->report_timer, hdt_clock_now_us() + RETRY_US);
    }
    return known;
}

void hdt_port_report_timer(struct hdt_engine *engine, struct hdt_timer *timer)
{
    struct hdt_port *port = timer->user;
    struct port_report *report;
    uint64_t i;

    (void)engine;
    pthread_mutex_lock(&port->lock);
    for (i = 1; i <= HDT_PORT_REPORTS; i++) { /* oldest first */
        report = &port->reports[(port->last_report + i) % HDT_PORT_REPORTS];
        if (report->due) {
            report->due = false;
            hdt_port_enqueue(port, report->bytes.data, report->bytes.len);
        }
    }
    pthread_mutex_unlock(&port->lock);
}
