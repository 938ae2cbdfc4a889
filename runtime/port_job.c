/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* A job at its port: memory of its flows, and the waits of the job's own threads. What the port's
 * thread does with the flows is in port_flow.c. */
#include "runtime/port_impl.h"

#include "compress/codec.h"
#include "src/base/clock.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CLOSE_WAIT_US (2 * HDT_US_PER_S)

/* ---- layout ---- */

static uint32_t slot_bytes(const struct hdt_plan_flow *flow)
{
    return (flow->frame_cap + HDT_FRAME_GRANULE - 1) / HDT_FRAME_GRANULE * HDT_FRAME_GRANULE;
}

static bool flow_is_of(const struct hdt_plan_flow *flow, int rank)
{
    return flow->src_rank != flow->dst_rank && (flow->src_rank == rank || flow->dst_rank == rank);
}

uint64_t hdt_port_job_bytes(const struct hdt_plan *plan, int rank)
{
    uint64_t bytes = 0;
    size_t i;

    for (i = 0; i < plan->n_flows; i++) {
        if (flow_is_of(&plan->flows[i], rank)) {
            bytes += (uint64_t)slot_bytes(&plan->flows[i]) * plan->flows[i].depth;
        }
    }
    return bytes;
}

static void record_init(struct port_record *rec, enum port_record_kind kind, void *owner)
{
    rec->record.passed_fd = -1;
    rec->record.user = rec;
    rec->record.frame.version = HDT_FRAME_VERSION;
    rec->kind = kind;
    rec->owner = owner;
}

/* What the codec pair of an edge means for the gateway: its own codec, and the type of the bytes.
 */
static void flow_init_codec(struct port_flow *flow)
{
    const struct hdt_codec_spec *spec = &flow->plan->codec;

    flow->gateway_codec = spec->gateway;
    flow->plain_dtype =
        (uint8_t)hdt_codec_coded_dtype(hdt_codec_spec_worker(spec), flow->plan->dtype);
}

static void flow_init(struct hdt_port_job *job, struct port_flow *flow, uint32_t idx,
                      uint64_t pool_offset)
{
    const struct hdt_plan *plan = job->conf.plan;
    uint32_t i;

    flow->plan = &plan->flows[idx];
    flow->idx = idx;
    hdt_window_init(&flow->window, flow->plan->src_rank == job->conf.rank, flow->plan->depth);
    flow->peer_site =
        plan->ranks[flow->window.is_src ? flow->plan->dst_rank : flow->plan->src_rank].site;
    flow->frame_cap = flow->plan->frame_cap;
    flow->slot_bytes = slot_bytes(flow->plan);
    flow->pool_offset = pool_offset;
    flow->moved_us = hdt_clock_now_us();
    flow_init_codec(flow);
    record_init(&flow->ack, PORT_RECORD_ACK, flow);
    flow->slots = hdt_calloc(flow->window.depth, sizeof(*flow->slots));
    for (i = 0; i < flow->window.depth; i++) {
        record_init(&flow->slots[i].rec, PORT_RECORD_DATA, &flow->slots[i]);
        flow->slots[i].data = job->pool.base + pool_offset + (uint64_t)i * flow->slot_bytes;
    }
}

static struct port_flow *job_flow(struct hdt_port_job *job, int plan_idx)
{
    HDT_ASSERT(plan_idx >= 0 && (size_t)plan_idx < job->conf.plan->n_flows);
    HDT_ASSERT(job->by_plan[plan_idx] >= 0);
    return &job->flows[job->by_plan[plan_idx]];
}

void hdt_port_job_moved(struct hdt_port_job *job, struct port_flow *flow)
{
    job->progress_us = hdt_clock_now_us();
    if (flow) {
        flow->moved_us = job->progress_us;
    }
    pthread_cond_broadcast(&job->port->moved);
}

/* ---- life ---- */

static void job_free(struct hdt_port_job *job)
{
    size_t i;

    for (i = 0; i < job->n_flows; i++) {
        free(job->flows[i].slots);
    }
    if (job->pool.base) {
        job->port->link->pool_free(&job->pool);
    }
    free(job->flows);
    free(job->by_plan);
    free(job);
}

static void job_init_flows(struct hdt_port_job *job)
{
    const struct hdt_plan *plan = job->conf.plan;
    uint64_t offset = 0;
    size_t i;

    job->flows = hdt_calloc(plan->n_flows + 1, sizeof(*job->flows));
    job->by_plan = hdt_calloc(plan->n_flows + 1, sizeof(*job->by_plan));
    for (i = 0; i < plan->n_flows; i++) {
        job->by_plan[i] = -1;
        if (flow_is_of(&plan->flows[i], job->conf.rank)) {
            job->by_plan[i] = (int)job->n_flows;
            flow_init(job, &job->flows[job->n_flows++], (uint32_t)i, offset);
            offset += (uint64_t)slot_bytes(&plan->flows[i]) * plan->flows[i].depth;
        }
    }
}

enum hdt_status hdt_port_job_open(struct hdt_port *port, const struct hdt_port_job_conf *conf,
                                  struct hdt_port_job **out, struct hdt_error *err)
{
    struct hdt_port_job *job = hdt_calloc(1, sizeof(*job));
    uint64_t bytes = hdt_port_job_bytes(conf->plan, conf->rank);
    enum hdt_status status = HDT_OK;

    job->port = port;
    job->conf = *conf;
    pthread_mutex_lock(&port->lock);
    if (port->job) {
        status =
            hdt_error_set(err, HDT_EEXIST, "cannot open the flows of job %lld: job %lld holds them",
                          conf->number, port->job->conf.number);
    }
    pthread_mutex_unlock(&port->lock);
    if (status == HDT_OK && bytes > 0) {
        status = port->link->pool_alloc(bytes, port->next_pool++, &job->pool, err);
    }
    if (status != HDT_OK) {
        job->pool.base = NULL;
        job_free(job);
        return status;
    }
    job_init_flows(job);
    record_init(&job->pool_rec, PORT_RECORD_POOL, job);
    job->progress_us = hdt_clock_now_us();
    pthread_mutex_lock(&port->lock);
    port->job = job;
    hdt_port_post_pump(port);
    pthread_mutex_unlock(&port->lock);
    *out = job;
    return HDT_OK;
}

/* Wait for the condition variable until `until_us`. The lock is held. */
static void port_wait(struct hdt_port *port, int64_t until_us)
{
    struct timespec ts = {.tv_sec = until_us / HDT_US_PER_S,
                          .tv_nsec = until_us % HDT_US_PER_S * 1000};

    pthread_cond_timedwait(&port->moved, &port->lock, &ts);
}

void hdt_port_job_close(struct hdt_port_job *job)
{
    struct hdt_port *port;
    int64_t until;

    if (!job) {
        return;
    }
    port = job->port;
    pthread_mutex_lock(&port->lock);
    job->closing = true;
    until = hdt_clock_now_us() + CLOSE_WAIT_US;
    while (job->n_queued > 0 || job->placing) {
        if (hdt_clock_now_us() >= until) {
            /* The gateway reads nothing: without the connection the records come back. */
            port->break_due = true;
            hdt_port_post_pump(port);
            until = hdt_clock_now_us() + CLOSE_WAIT_US;
        }
        port_wait(port, until);
    }
    port->job = NULL;
    pthread_mutex_unlock(&port->lock);
    job_free(job);
}

const struct hdt_pool *hdt_port_job_pool(const struct hdt_port_job *job)
{
    return &job->pool;
}

void hdt_port_job_cancel(struct hdt_port_job *job, const struct hdt_error *why)
{
    pthread_mutex_lock(&job->port->lock);
    if (!job->cancelled) {
        job->cancelled = true;
        job->why = *why;
    }
    pthread_cond_broadcast(&job->port->moved);
    pthread_mutex_unlock(&job->port->lock);
}

void hdt_port_job_progress(struct hdt_port_job *job)
{
    pthread_mutex_lock(&job->port->lock);
    hdt_port_job_moved(job, NULL);
    pthread_mutex_unlock(&job->port->lock);
}

/* ---- waits of the job's threads ---- */

static enum hdt_status wait_canceled(const struct hdt_port_job *job, struct hdt_error *err)
{
    if (err) {
        *err = job->why;
        err->status = HDT_ECANCELED;
    }
    return HDT_ECANCELED;
}

enum hdt_status hdt_port_job_check(struct hdt_port_job *job, struct hdt_error *err)
{
    enum hdt_status status = HDT_OK;

    pthread_mutex_lock(&job->port->lock);
    if (job->cancelled) {
        status = wait_canceled(job, err);
    }
    pthread_mutex_unlock(&job->port->lock);
    return status;
}

static enum hdt_status wait_timed_out(const struct hdt_port_job *job, const struct port_flow *flow,
                                      const char *what, uint64_t seq, struct hdt_error *err)
{
    int64_t now = hdt_clock_now_us();

    hdt_error_set(
        err, HDT_ETIMEDOUT,
        "cannot go on with job %lld: nothing moved for %.0f s while waiting for %s of frame "
        "%llu of flow %u (%s %s site %s, which last moved %.0f s ago)",
        job->conf.number, (double)(now - job->progress_us) / 1e6, what, (unsigned long long)seq,
        flow->idx, hdt_flow_kind_name(flow->plan->kind), flow->window.is_src ? "to" : "from",
        flow->peer_site, (double)(now - flow->moved_us) / 1e6);
    if (!job->port->up) {
        hdt_error_hint(err, "the gateway of this site is away: look at its log, start it again");
    } else {
        hdt_error_hint(err,
                       "look at the worker and the gateway of site %s ('hdt status', 'hdt "
                       "doctor'); a slow step needs a longer progress_timeout in the job",
                       flow->peer_site);
    }
    return HDT_ETIMEDOUT;
}

enum wait_kind { WAIT_SLOT, WAIT_FLUSH, WAIT_FRAME };

static bool wait_is_over(const struct port_flow *flow, enum wait_kind kind)
{
    switch (kind) {
    case WAIT_SLOT:
        return hdt_window_has_room(&flow->window) &&
               !port_flow_slot(flow, flow->window.end)->queued;
    case WAIT_FLUSH:
        return flow->window.acked == flow->window.end;
    case WAIT_FRAME:
        return flow->window.acked < flow->window.end;
    }
    return false;
}

/* Wait until the flow is as `kind` says. The lock is held, before and after. */
static enum hdt_status flow_wait(struct hdt_port_job *job, struct port_flow *flow,
                                 enum wait_kind kind, struct hdt_error *err)
{
    static const char *const what[] = {"a free slot", "the acknowledgement", "the arrival"};
    static const char *const names[] = {"slot", "acknowledgement", "arrival"};
    int64_t begin = hdt_clock_now_us(), deadline;
    struct port_waiting waiting = {.begin_us = begin, .what = names[kind]};

    for (;;) {
        if (job->cancelled) {
            hdt_port_waited(job, flow, &waiting);
            return wait_canceled(job, err);
        }
        if (wait_is_over(flow, kind)) {
            hdt_port_waited(job, flow, &waiting);
            return HDT_OK;
        }
        deadline = (job->progress_us > begin ? job->progress_us : begin) +
                   job->conf.progress_timeout_ms * HDT_US_PER_MS;
        if (hdt_clock_now_us() >= deadline) {
            hdt_port_waited(job, flow, &waiting);
            return wait_timed_out(job, flow, what[kind],
                                  kind == WAIT_SLOT ? flow->window.end : flow->window.acked, err);
        }
        waiting.seq = kind == WAIT_SLOT ? flow->window.end : flow->window.acked;
        hdt_port_waits(job, flow, &waiting);
        port_wait(job->port, waiting.next_us < deadline ? waiting.next_us : deadline);
    }
}

enum hdt_status hdt_port_send_get(struct hdt_port_job *job, int flow_idx, void **slot, size_t *cap,
                                  struct hdt_error *err)
{
    struct port_flow *flow = job_flow(job, flow_idx);
    enum hdt_status status;

    HDT_ASSERT(flow->window.is_src);
    pthread_mutex_lock(&job->port->lock);
    status = flow_wait(job, flow, WAIT_SLOT, err);
    if (status == HDT_OK) {
        port_flow_slot(flow, flow->window.end)->mark = 0;
        *slot = port_flow_slot(flow, flow->window.end)->data;
        *cap = flow->frame_cap;
    }
    pthread_mutex_unlock(&job->port->lock);
    return status;
}

bool hdt_port_send_try(struct hdt_port_job *job, int flow_idx, void **slot, size_t *cap)
{
    struct port_flow *flow = job_flow(job, flow_idx);
    bool is_free;

    HDT_ASSERT(flow->window.is_src);
    pthread_mutex_lock(&job->port->lock);
    is_free = !job->cancelled && wait_is_over(flow, WAIT_SLOT);
    if (is_free) {
        port_flow_slot(flow, flow->window.end)->mark = 0;
        *slot = port_flow_slot(flow, flow->window.end)->data;
        *cap = flow->frame_cap;
    }
    pthread_mutex_unlock(&job->port->lock);
    return is_free;
}

void hdt_port_send_commit(struct hdt_port_job *job, int flow_idx, size_t len, size_t raw_len,
                          enum hdt_dtype dtype)
{
    struct port_flow *flow = job_flow(job, flow_idx);
    struct port_slot *slot = port_flow_slot(flow, flow->window.end);

    HDT_ASSERT(flow->window.is_src && len <= flow->frame_cap);
    slot->len = (uint32_t)len;
    slot->raw_len = raw_len > UINT32_MAX ? UINT32_MAX : (uint32_t)raw_len;
    slot->dtype = (uint8_t)dtype;
    pthread_mutex_lock(&job->port->lock);
    flow->window.end++;
    hdt_port_job_moved(job, flow);
    hdt_port_post_pump(job->port);
    pthread_mutex_unlock(&job->port->lock);
}

void hdt_port_send_mark(struct hdt_port_job *job, int flow_idx, uint8_t mark)
{
    struct port_flow *flow = job_flow(job, flow_idx);

    HDT_ASSERT(flow->window.is_src);
    port_flow_slot(flow, flow->window.end)->mark = mark; /* nobody else looks before the commit */
}

enum hdt_status hdt_port_send_flush(struct hdt_port_job *job, int flow_idx, struct hdt_error *err)
{
    struct port_flow *flow = job_flow(job, flow_idx);
    enum hdt_status status;

    pthread_mutex_lock(&job->port->lock);
    status = flow_wait(job, flow, WAIT_FLUSH, err);
    pthread_mutex_unlock(&job->port->lock);
    return status;
}

enum hdt_status hdt_port_recv_wait(struct hdt_port_job *job, int flow_idx, const void **frame,
                                   size_t *len, struct hdt_error *err)
{
    struct port_flow *flow = job_flow(job, flow_idx);
    enum hdt_status status;

    HDT_ASSERT(!flow->window.is_src);
    pthread_mutex_lock(&job->port->lock);
    status = flow_wait(job, flow, WAIT_FRAME, err);
    if (status == HDT_OK) {
        flow->borrowed = true;
        *frame = port_flow_slot(flow, flow->window.acked)->data;
        *len = port_flow_slot(flow, flow->window.acked)->len;
    }
    pthread_mutex_unlock(&job->port->lock);
    return status;
}

int64_t hdt_port_recv_arrived_ns(struct hdt_port_job *job, int flow_idx)
{
    struct port_flow *flow = job_flow(job, flow_idx);
    int64_t arrived_ns;

    pthread_mutex_lock(&job->port->lock);
    HDT_ASSERT(flow->borrowed);
    arrived_ns = port_flow_slot(flow, flow->window.acked)->arrived_ns;
    pthread_mutex_unlock(&job->port->lock);
    return arrived_ns;
}

uint8_t hdt_port_recv_mark(struct hdt_port_job *job, int flow_idx)
{
    struct port_flow *flow = job_flow(job, flow_idx);
    uint8_t mark;

    pthread_mutex_lock(&job->port->lock);
    HDT_ASSERT(flow->borrowed);
    mark = port_flow_slot(flow, flow->window.acked)->mark;
    pthread_mutex_unlock(&job->port->lock);
    return mark;
}

void hdt_port_recv_done(struct hdt_port_job *job, int flow_idx)
{
    struct port_flow *flow = job_flow(job, flow_idx);

    pthread_mutex_lock(&job->port->lock);
    HDT_ASSERT(flow->borrowed);
    flow->borrowed = false;
    hdt_window_take(&flow->window);
    hdt_port_job_moved(job, flow);
    hdt_port_post_pump(job->port);
    pthread_mutex_unlock(&job->port->lock);
}
