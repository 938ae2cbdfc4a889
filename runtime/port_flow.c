/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * The ends of a job's flows, by the rules of src/core/window.h. The one thing that must not happen
 * is that the gateway writes into a slot while a thread reads it: a receiving flow is opened again
 * only when no frame of it is borrowed, which lasts for a copy or a decode, never for a wait.
 */
#include "runtime/port_impl.h"

#include "src/base/clock.h"
#include "src/base/recorder.h"
#include "src/core/msg.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* A TCP link hands over no more frames while so many bytes wait, so that an urgent frame is never
 * behind a long queue. */
#define SUBMIT_WATER ((size_t)1 << 20)

/* ---- the port's thread: announcing ---- */

static json_t *flow_open_body(const struct hdt_port_job *job, const struct port_flow *flow)
{
    return json_pack(
        "{s:I,s:I,s:I,s:s,s:s,s:i,s:i,s:i,s:I,s:I,s:I,s:I,s:I}", "job", (json_int_t)job->conf.job,
        "epoch", (json_int_t)job->conf.epoch, "flow", (json_int_t)flow->idx, "end",
        flow->window.is_src ? "src" : "dst", "peer_site", flow->peer_site, "prio",
        (int)flow->plan->prio, "codec", (int)flow->gateway_codec, "dtype", (int)flow->plain_dtype,
        "depth", (json_int_t)flow->window.depth, "frame_cap", (json_int_t)flow->frame_cap, "pool",
        (json_int_t)job->pool.number, "pool_offset", (json_int_t)flow->pool_offset, "next_seq",
        (json_int_t)hdt_window_next_seq(&flow->window));
}

/* The flow as it stands on a fresh connection. The lock is held. */
static void flow_reset(struct port_flow *flow)
{
    flow->is_open = false;
    hdt_window_reset(&flow->window, flow->borrowed);
}

/* Open message of the first flow that is due, marked open; NULL: none. The lock is held. */
static json_t *flow_open_next(struct hdt_port_job *job)
{
    struct port_flow *flow;
    size_t i;

    for (i = 0; i < job->n_flows; i++) {
        flow = &job->flows[i];
        if (!flow->is_open && (flow->window.is_src || !flow->borrowed)) {
            flow_reset(flow);
            flow->is_open = true;
            HDT_RECORD(HDT_REC_FLOW,
                       .n = {job->conf.job, flow->idx, job->conf.epoch, (int64_t)flow->window.end},
                       .text = {flow->window.end > 0 ? "resume" : "open",
                                flow->window.is_src ? "src" : "dst", flow->peer_site});
            return hdt_msg_new("flow.open", NULL, flow_open_body(job, flow));
        }
    }
    return NULL;
}

/* The job that may be worked for, or NULL. The lock is held. */
static struct hdt_port_job *port_job(struct hdt_port *port)
{
    return port->job && !port->job->closing && port->job->n_flows > 0 ? port->job : NULL;
}

/* Pool record, once a connection; NULL: not due. The lock is held. */
static struct hdt_record *pool_announce(struct hdt_port_job *job)
{
    struct hdt_record *record = &job->pool_rec.record;

    if (job->announced) {
        return NULL;
    }
    job->announced = true;
    if (!(job->port->link->caps & HDT_LINK_SHARED)) {
        return NULL;
    }
    record->frame.kind = HDT_FRAME_POOL;
    record->frame.job = job->conf.job;
    record->frame.epoch = job->conf.epoch;
    record->frame.seq = job->pool.number;
    record->frame.offset = job->pool.len;
    record->passed_fd = job->pool.fd;
    job->n_queued++;
    return record;
}

static void flows_announce(struct hdt_port *port)
{
    struct hdt_port_job *job;
    struct hdt_record *record;
    json_t *msg;

    do {
        pthread_mutex_lock(&port->lock);
        job = port_job(port);
        record = job ? pool_announce(job) : NULL;
        msg = job && !record ? flow_open_next(job) : NULL;
        pthread_mutex_unlock(&port->lock);
        if (record) {
            hdt_gwlink_send(port->gw, record, false);
        }
        if (msg) {
            hdt_gwlink_say(port->gw, msg, true);
        }
    } while (record || msg);
}

void hdt_port_flows_up(struct hdt_port *port)
{
    flows_announce(port);
}

void hdt_port_flows_down(struct hdt_port *port)
{
    size_t i;

    pthread_mutex_lock(&port->lock);
    if (port->job) {
        port->job->announced = false;
        port->job->placing = false;
        for (i = 0; i < port->job->n_flows; i++) {
            flow_reset(&port->job->flows[i]);
        }
    }
    pthread_cond_broadcast(&port->moved);
    pthread_mutex_unlock(&port->lock);
}

/* ---- the port's thread: submitting ---- */

static void record_frame(const struct hdt_port_job *job, const struct port_flow *flow,
                         struct hdt_frame *frame, enum hdt_frame_kind kind)
{
    frame->kind = (uint8_t)kind;
    frame->job = job->conf.job;
    frame->epoch = job->conf.epoch;
    frame->flow = flow->idx;
    frame->prio = (uint8_t)flow->plan->prio;
}

static struct hdt_record *flow_take_ack(struct hdt_port_job *job, struct port_flow *flow)
{
    struct hdt_frame *frame = &flow->ack.record.frame;

    if (!flow->is_open || !flow->window.ack_due || flow->ack_queued) {
        return NULL;
    }
    flow->window.ack_due = false;
    flow->ack_queued = true;
    record_frame(job, flow, frame, HDT_FRAME_ACK);
    frame->seq = flow->window.acked;
    frame->offset = flow->window.acked + flow->window.depth;
    return &flow->ack.record;
}

static struct hdt_record *flow_take_data(struct hdt_port_job *job, struct port_flow *flow)
{
    struct port_slot *slot = port_flow_slot(flow, flow->window.submit);
    struct hdt_record *record = &slot->rec.record;
    bool shared = job->port->link->caps & HDT_LINK_SHARED;

    if (!flow->is_open || !hdt_window_may_submit(&flow->window) || slot->queued) {
        return NULL;
    }
    record_frame(job, flow, &record->frame, HDT_FRAME_DATA);
    record->frame.dtype = slot->dtype;
    record->frame.flags = slot->mark;
    record->frame.seq = flow->window.submit;
    record->frame.offset = shared ? (uint64_t)(slot->data - job->pool.base) : 0;
    record->frame.len = slot->len;
    record->frame.frame_len = slot->len;
    record->frame.coded_len = shared ? 0 : slot->len;
    record->frame.raw_len = slot->raw_len;
    record->payload = shared ? NULL : slot->data;
    record->payload_len = shared ? 0 : slot->len;
    slot->queued = true;
    hdt_window_submitted(&flow->window);
    return record;
}

/* The most urgent record that may go now; NULL: none. */
static struct hdt_record *flows_take(struct hdt_port *port, bool *urgent)
{
    struct hdt_port_job *job;
    struct hdt_record *record = NULL;
    size_t i;
    int prio;

    pthread_mutex_lock(&port->lock);
    job = port_job(port);
    *urgent = true;
    for (i = 0; job && !record && i < job->n_flows; i++) {
        record = flow_take_ack(job, &job->flows[i]);
    }
    for (prio = 0; job && !record && prio < HDT_PRIO_COUNT; prio++) {
        for (i = 0; !record && i < job->n_flows; i++) {
            if ((int)job->flows[i].plan->prio == prio) {
                record = flow_take_data(job, &job->flows[i]);
                *urgent = false;
            }
        }
    }
    if (record) {
        job->n_queued++;
    }
    pthread_mutex_unlock(&port->lock);
    return record;
}

/* Here and without the lock, so that who computes does not wait for it: of a frame that a device
 * has just written every byte comes from memory, 8 MiB in a millisecond. A record that was taken
 * keeps its slot. */
static void record_hash(struct hdt_record *record)
{
    const struct port_record *rec = record->user;
    const struct port_slot *slot = rec->owner;

    record->frame.xxh3 = XXH3_64bits(slot->data, record->frame.len);
}

void hdt_port_flows_pump(struct hdt_port *port)
{
    struct hdt_record *record;
    bool urgent;

    if (!hdt_gwlink_is_up(port->gw)) {
        return;
    }
    flows_announce(port);
    while (hdt_gwlink_queued_bytes(port->gw) < SUBMIT_WATER &&
           (record = flows_take(port, &urgent))) {
        if (record->frame.kind == HDT_FRAME_DATA) {
            record_hash(record);
        }
        hdt_gwlink_send(port->gw, record, urgent);
    }
}

void hdt_port_flows_sent(struct hdt_port *port, struct port_record *rec)
{
    bool again = false;

    pthread_mutex_lock(&port->lock);
    HDT_ASSERT(port->job && port->job->n_queued > 0);
    port->job->n_queued--;
    if (rec->kind == PORT_RECORD_DATA) {
        ((struct port_slot *)rec->owner)->queued = false;
    } else if (rec->kind == PORT_RECORD_ACK) {
        ((struct port_flow *)rec->owner)->ack_queued = false;
        again = ((struct port_flow *)rec->owner)->window.ack_due;
    }
    if (again) {
        hdt_port_post_pump(port);
    }
    pthread_cond_broadcast(&port->moved);
    pthread_mutex_unlock(&port->lock);
}

/* ---- the port's thread: receiving ---- */

/* The flow that a record of the gateway names; NULL when it is of a job that ended. */
static struct port_flow *flow_of_frame(struct hdt_port_job *job, const struct hdt_frame *frame)
{
    if (!job || frame->job != job->conf.job || frame->epoch != job->conf.epoch ||
        frame->flow >= job->conf.plan->n_flows || job->by_plan[frame->flow] < 0) {
        return NULL;
    }
    return &job->flows[job->by_plan[frame->flow]];
}

static enum hdt_status data_refuse(const struct port_flow *flow, const struct hdt_frame *frame,
                                   const char *why, struct hdt_error *err)
{
    return hdt_error_set(err, HDT_EPROTO, "cannot take frame %llu of flow %u from the gateway: %s",
                         (unsigned long long)frame->seq, flow->idx, why);
}

/* The next frame in order, and room for it? HDT_AGAIN: it came before. The lock is held. */
static enum hdt_status data_check(const struct port_flow *flow, const struct hdt_frame *frame,
                                  struct hdt_error *err)
{
    const char *why = NULL;
    const enum hdt_status status = hdt_window_check(&flow->window, frame->seq, &why);

    if (status == HDT_AGAIN || (!flow->is_open && !flow->window.is_src)) {
        return HDT_AGAIN;
    }
    if (status != HDT_OK) {
        return data_refuse(flow, frame, why, err);
    }
    if (frame->frame_len > flow->frame_cap) {
        return data_refuse(flow, frame, "it is longer than the plan says", err);
    }
    return HDT_OK;
}

/* Room for bytes that nobody wants. */
static enum hdt_status discard_place(struct hdt_port *port, size_t len, void **buf,
                                     struct hdt_error *err)
{
    if (len > port->discard_cap) {
        free(port->discard);
        port->discard = malloc(len); /* len was checked: HDT_FRAME_MAX_LEN */
        port->discard_cap = port->discard ? len : 0;
    }
    if (!port->discard) {
        return hdt_error_set(err, HDT_ENOMEM, "cannot take a frame of %zu bytes: no memory", len);
    }
    *buf = port->discard;
    return HDT_OK;
}

enum hdt_status hdt_port_flows_place(struct hdt_port *port, const struct hdt_frame *frame,
                                     size_t len, void **buf, struct hdt_error *err)
{
    struct port_flow *flow;
    enum hdt_status status = HDT_AGAIN;

    if ((port->link->caps & HDT_LINK_SHARED) || len != frame->frame_len) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot take a DATA record: %zu bytes follow it, not "
                             "as many as this link carries",
                             len);
    }
    pthread_mutex_lock(&port->lock);
    flow = flow_of_frame(port_job(port), frame);
    status = flow ? data_check(flow, frame, err) : HDT_AGAIN;
    if (status == HDT_OK) {
        *buf = port_flow_slot(flow, frame->seq)->data;
        port->job->placing = true;
    }
    pthread_mutex_unlock(&port->lock);
    return status == HDT_AGAIN ? discard_place(port, len, buf, err) : status;
}

/* The lock is held, but not while the bytes are read. *is_there: job and flow still are. */
static enum hdt_status data_inspect(struct hdt_port_job *job, const struct port_flow *flow,
                                    const struct hdt_frame *frame, bool *is_there,
                                    struct hdt_error *err)
{
    struct hdt_port *port = job->port;
    const uint8_t *data = port_flow_slot(flow, frame->seq)->data;
    uint64_t xxh3;

    job->placing = true; /* it is not closed meanwhile */
    pthread_mutex_unlock(&port->lock);
    xxh3 = XXH3_64bits(data, frame->frame_len);
    pthread_mutex_lock(&port->lock);
    job->placing = false;
    pthread_cond_broadcast(&port->moved);
    *is_there = port_job(port) == job;
    if (*is_there && (uint32_t)frame->xxh3 != (uint32_t)xxh3) {
        return hdt_error_set(err, HDT_ECRC, "cannot take frame %llu of flow %u: it was damaged",
                             (unsigned long long)frame->seq, flow->idx);
    }
    return HDT_OK;
}

/* A frame stands in its slot. */
static enum hdt_status data_arrived(struct hdt_port_job *job, struct port_flow *flow,
                                    const struct hdt_frame *frame, struct hdt_error *err)
{
    struct port_slot *slot = port_flow_slot(flow, frame->seq);
    enum hdt_status status = data_check(flow, frame, err);
    bool is_there = true;

    if (status == HDT_AGAIN) {
        hdt_window_came_again(&flow->window, frame->seq);
        hdt_port_post_pump(job->port);
        return HDT_OK;
    }
    HDT_TRY(status);
    if ((job->port->link->caps & HDT_LINK_SHARED) &&
        frame->offset != (uint64_t)(slot->data - job->pool.base)) {
        return data_refuse(flow, frame, "it does not lie in its slot", err);
    }
    if (job->conf.inspect_hash && frame->xxh3) {
        HDT_TRY(data_inspect(job, flow, frame, &is_there, err));
    }
    if (!is_there) {
        return HDT_OK;
    }
    slot->len = frame->frame_len;
    slot->dtype = frame->dtype;
    slot->mark = frame->flags;
    slot->arrived_ns = hdt_clock_now_ns();
    flow->window.end++;
    HDT_RECORD(HDT_REC_FRAME,
               .n = {job->conf.job, flow->idx, (int64_t)frame->seq, frame->frame_len});
    hdt_port_job_moved(job, flow);
    return HDT_OK;
}

static enum hdt_status ack_arrived(struct hdt_port_job *job, struct port_flow *flow,
                                   const struct hdt_frame *frame, struct hdt_error *err)
{
    const uint64_t acked = flow->window.acked;

    if (hdt_window_ack(&flow->window, frame->seq, frame->offset) != HDT_OK) {
        return hdt_error_set(
            err, HDT_EPROTO, "cannot take an ACK of flow %u: it says %llu, %llu were sent",
            flow->idx, (unsigned long long)frame->seq, (unsigned long long)flow->window.handed);
    }
    if (flow->window.acked > acked) {
        hdt_port_job_moved(job, flow);
    }
    hdt_port_post_pump(job->port);
    return HDT_OK;
}

enum hdt_status hdt_port_flows_record(struct hdt_port *port, const struct hdt_frame *frame,
                                      struct hdt_error *err)
{
    struct hdt_port_job *job;
    struct port_flow *flow;
    enum hdt_status status = HDT_OK;

    pthread_mutex_lock(&port->lock);
    if (port->job && port->job->placing) {
        port->job->placing = false;
        pthread_cond_broadcast(&port->moved);
    }
    job = port_job(port);
    flow = flow_of_frame(job, frame);
    if (flow && frame->kind == HDT_FRAME_DATA) {
        status = data_arrived(job, flow, frame, err);
    } else if (flow && frame->kind == HDT_FRAME_ACK) {
        status = ack_arrived(job, flow, frame, err);
    } else if (flow) {
        hdt_window_query(&flow->window);
        hdt_port_post_pump(port);
    }
    pthread_mutex_unlock(&port->lock);
    return status;
}
