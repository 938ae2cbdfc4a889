/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/dp.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/recorder.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/*
 * Ends of flows: opening, replacing, closing, and their records on stream 0.
 *
 * An end is never changed into another one. Opening it again makes a new one; what still travels
 * for the old one keeps it alive and cannot touch the new one. One thing needs care: the worker's
 * memory is the same, so that a chunk which is being written into a slot of an old destination end
 * could scribble over a frame of a new one. Therefore a new end waits until the last writer of the
 * old ones of its job is gone, and streams that are in the middle of such a chunk are broken off.
 * The peer is told the state only then, and sends what is missing.
 */

/* ---- table and references ---- */

struct hdt_flow_end *hdt_flow_end_find(struct hdt_dataplane *dp, uint32_t job, uint32_t flow,
                                       bool is_src)
{
    const struct hdt_flow_key key = {.job = job, .flow = flow, .is_src = is_src};
    struct hdt_flow_end *end;

    HASH_FIND(hh, dp->flows, &key, sizeof(key), end);
    return end;
}

struct hdt_flow_end *hdt_flow_end_ref(struct hdt_flow_end *flow)
{
    HDT_ASSERT(flow->refs > 0);
    flow->refs++;
    return flow;
}

static void flow_end_free(struct hdt_flow_end *flow)
{
    if (flow->mem != NULL) {
        hdt_mem_unref(flow->dp, flow->mem);
    }
    if (flow->frames != NULL) {
        free(flow->frames[0].marks);
    }
    if (flow->slots != NULL) {
        free(flow->slots[0].claims);
    }
    free(flow->frames);
    free(flow->slots);
    free(flow);
}

void hdt_flow_end_unref(struct hdt_flow_end *flow)
{
    HDT_ASSERT(flow->refs > 0);
    if (--flow->refs == 0) {
        HDT_ASSERT(!flow->listed && !flow->attached);
        flow_end_free(flow);
    }
}

void hdt_flow_end_detach(struct hdt_flow_end *flow)
{
    if (!flow->attached) {
        return;
    }
    flow->attached = false;
    if (flow->on_peer_list) {
        DL_DELETE2(flow->peer->dirty, flow, peer_prev, peer_next);
        flow->on_peer_list = false;
    }
    if (flow->on_client_list) {
        DL_DELETE2(flow->client->dirty, flow, client_prev, client_next);
        flow->on_client_list = false;
    }
    if (flow->key.is_src) {
        hdt_local_unmark(flow);
        hdt_src_detach(flow);
    } else if (flow->n_writers > 0) {
        DL_APPEND2(flow->dp->draining, flow, drain_prev, drain_next);
        flow->draining = true;
    }
    flow->client = NULL;
}

static void flow_end_unlist(struct hdt_flow_end *flow)
{
    hdt_flow_end_detach(flow);
    HASH_DEL(flow->dp->flows, flow);
    flow->listed = false;
}

/* Break off streams that are in the middle of a chunk for this end. */
static void flow_end_break_writers(struct hdt_flow_end *flow)
{
    const struct hdt_error why = {.status = HDT_ELINK,
                                  .msg = "the flow of the chunk was opened anew"};
    struct hdt_conn *conn;

    DL_FOREACH(flow->dp->conns, conn)
    {
        if (conn->kind == HDT_CONN_WAN && conn->rx_now != NULL && conn->rx_now->flow == flow) {
            hdt_conn_close(conn, &why);
        }
    }
}

/* Is memory of this job still written to for ends that are gone? */
static bool flow_end_must_wait(const struct hdt_dataplane *dp, uint32_t job)
{
    const struct hdt_flow_end *old;

    DL_FOREACH2(dp->draining, old, drain_next)
    {
        if (old->key.job == job) {
            return true;
        }
    }
    return false;
}

void hdt_flow_end_drained(struct hdt_flow_end *flow)
{
    struct hdt_dataplane *dp = flow->dp;
    struct hdt_flow_end *end;

    DL_DELETE2(dp->draining, flow, drain_prev, drain_next);
    flow->draining = false;
    for (end = dp->flows; end != NULL; end = end->hh.next) {
        if (end->waiting && !flow_end_must_wait(dp, end->key.job)) {
            hdt_dst_activate(end);
        }
    }
}

/* ---- opening ---- */

static enum hdt_status flow_end_check(const struct hdt_dataplane_flow *conf, struct hdt_error *err)
{
    if (conf->depth < 1 || conf->depth > 4096 || conf->frame_cap < 1 ||
        conf->frame_cap > HDT_FRAME_MAX_LEN) {
        return hdt_error_set(
            err, HDT_EINVAL,
            "cannot open flow %u of job %u: %u slots of %u bytes are out of bounds", conf->flow,
            conf->job, conf->depth, conf->frame_cap);
    }
    if (conf->prio >= HDT_PRIO_COUNT || conf->dtype >= HDT_DTYPE_COUNT) {
        return hdt_error_set(err, HDT_EINVAL,
                             "cannot open flow %u of job %u: priority %d, dtype %d", conf->flow,
                             conf->job, (int)conf->prio, (int)conf->dtype);
    }
    return HDT_OK;
}

static uint32_t flow_end_stride(uint32_t frame_cap)
{
    return (frame_cap + HDT_FRAME_GRANULE - 1) / HDT_FRAME_GRANULE * HDT_FRAME_GRANULE;
}

/* Marks or claims of all slots in one piece each. */
static void flow_end_alloc_tables(struct hdt_flow_end *flow)
{
    const struct hdt_dataplane_flow *conf = &flow->conf;
    uint32_t i;

    if (conf->is_src) {
        const size_t n = (conf->frame_cap - 1) / flow->dp->conf.chunk_bytes + 1;
        struct hdt_tx_mark *marks = hdt_calloc(n * conf->depth, sizeof(*marks));

        flow->frames = hdt_calloc(conf->depth, sizeof(*flow->frames));
        for (i = 0; i < conf->depth; i++) {
            flow->frames[i].flow = flow;
            flow->frames[i].marks = marks + i * n;
        }
    } else {
        const size_t n = (flow->stride / HDT_FRAME_GRANULE + 63) / 64;
        uint64_t *claims = hdt_calloc(n * conf->depth, sizeof(*claims));

        flow->slots = hdt_calloc(conf->depth, sizeof(*flow->slots));
        for (i = 0; i < conf->depth; i++) {
            flow->slots[i].claims = claims + i * n;
        }
    }
}

static struct hdt_flow_end *flow_end_new(struct hdt_dataplane *dp,
                                         const struct hdt_dataplane_flow *conf)
{
    struct hdt_flow_end *flow = hdt_calloc(1, sizeof(*flow));

    flow->dp = dp;
    flow->refs = 1;
    flow->conf = *conf;
    flow->conf.peer_site[sizeof(flow->conf.peer_site) - 1] = '\0';
    flow->key = (struct hdt_flow_key){.job = conf->job, .flow = conf->flow, .is_src = conf->is_src};
    flow->stride = flow_end_stride(conf->frame_cap);
    flow->moved_us = hdt_clock_now_us();
    flow_end_alloc_tables(flow);
    if (conf->is_src) {
        flow->acked = conf->next_seq > conf->depth ? conf->next_seq - conf->depth : 0;
        flow->credit = flow->acked;
        flow->next_seq = conf->next_seq;
        flow->awaiting_state = true;
        flow->query_pending = true;
    } else {
        flow->acked = conf->next_seq;
        flow->credit = conf->next_seq + conf->depth;
        flow->next_seq = conf->next_seq;
    }
    return flow;
}

/* Slots of a client that shares no memory: depth of them, and for a source end one more, for bytes
 * that are to be dropped. */
static enum hdt_status flow_end_alloc_mem(struct hdt_flow_end *flow, struct hdt_error *err)
{
    const size_t n_slots = (size_t)flow->conf.depth + (flow->conf.is_src ? 1 : 0);
    const size_t len = n_slots * flow->stride;
    struct hdt_mem *mem;
    void *base;

    HDT_TRY(hdt_dp_charge(flow->dp, len, "frames of a client without shared memory", err));
    base = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        flow->dp->memory_used -= len;
        return hdt_error_set(err, HDT_ENOMEM, "cannot open flow %u: no memory for %zu bytes",
                             flow->conf.flow, len);
    }
    mem = hdt_calloc(1, sizeof(*mem));
    mem->refs = 1;
    mem->base = base;
    mem->len = len;
    mem->charged = len;
    flow->mem = mem;
    return HDT_OK;
}

static enum hdt_status flow_end_find_mem(struct hdt_flow_end *flow, struct hdt_client *client,
                                         struct hdt_error *err)
{
    const struct hdt_dataplane_flow *conf = &flow->conf;
    struct hdt_mem *mem;

    if (!client->shares_memory) {
        return flow_end_alloc_mem(flow, err);
    }
    mem = hdt_client_pool_find(client, conf->pool);
    if (mem == NULL) {
        hdt_error_set(err, HDT_EINVAL, "cannot open flow %u of job %u: '%s' has no pool %u",
                      conf->flow, conf->job, client->name, conf->pool);
        hdt_error_hint(err, "send the POOL record before the message that opens flows in it");
        return HDT_EINVAL;
    }
    if (conf->pool_offset % HDT_FRAME_GRANULE != 0 ||
        !hdt_pool_contains(&mem->pool, conf->pool_offset, (uint64_t)conf->depth * flow->stride)) {
        return hdt_error_set(
            err, HDT_EINVAL,
            "cannot open flow %u of job %u: %u slots of %u bytes at offset %llu do "
            "not lie in pool %u of %zu bytes",
            conf->flow, conf->job, conf->depth, flow->stride, (unsigned long long)conf->pool_offset,
            conf->pool, mem->len);
    }
    flow->mem = hdt_mem_ref(mem);
    flow->base_offset = conf->pool_offset;
    return HDT_OK;
}

/* L */
static enum hdt_status flow_end_attach(struct hdt_flow_end *flow, struct hdt_error *err)
{
    struct hdt_dataplane *dp = flow->dp;
    struct hdt_client *client = hdt_client_find(dp, flow->conf.client);
    struct hdt_flow_end *old;

    if (client == NULL) {
        return hdt_error_set(err, HDT_ENOENT, "cannot open flow %u of job %u: its client is gone",
                             flow->conf.flow, flow->conf.job);
    }
    HDT_TRY(flow_end_find_mem(flow, client, err));
    flow->client = client;
    flow->attached = true;
    flow->listed = true;
    flow->incarnation = ++dp->next_incarnation;
    if (strcmp(flow->conf.peer_site, dp->conf.site) != 0) {
        flow->peer = hdt_peer_get(dp, flow->conf.peer_site);
        flow->budgets = hdt_budgets_of(&dp->budgets, flow->conf.peer_site, flow->conf.job_name,
                                       flow->conf.prio);
    }
    old = hdt_flow_end_find(dp, flow->key.job, flow->key.flow, flow->key.is_src);
    if (old != NULL) {
        flow_end_unlist(old);
        hdt_flow_end_unref(old);
    }
    if (!flow->key.is_src && flow_end_must_wait(dp, flow->key.job)) {
        flow->waiting = true;
        DL_FOREACH2(dp->draining, old, drain_next)
        {
            flow_end_break_writers(old);
        }
    }
    HASH_ADD(hh, dp->flows, key, sizeof(flow->key), flow);
    if (flow->key.is_src) {
        if (flow->peer != NULL) {
            hdt_peer_mark(flow);
        } else {
            hdt_local_ask(flow);
        }
    } else if (!flow->waiting) {
        hdt_dst_activate(flow);
    }
    return HDT_OK;
}

static void flow_end_record(const struct hdt_flow_end *flow, const char *event)
{
    HDT_RECORD(HDT_REC_FLOW,
               .n = {flow->key.job, flow->key.flow, flow->conf.epoch, (int64_t)flow->next_seq},
               .text = {event, flow->key.is_src ? "src" : "dst", flow->conf.peer_site});
}

enum hdt_status hdt_dataplane_flow_open(struct hdt_dataplane *dp,
                                        const struct hdt_dataplane_flow *conf,
                                        struct hdt_error *err)
{
    struct hdt_flow_end *flow;
    enum hdt_status status;

    HDT_TRY(flow_end_check(conf, err));
    flow = flow_end_new(dp, conf);
    hdt_dp_lock(dp);
    status = flow_end_attach(flow, err);
    flow_end_record(flow, status != HDT_OK ? "refused" : flow->next_seq > 0 ? "resume" : "open");
    if (status != HDT_OK) {
        hdt_flow_end_unref(flow);
    }
    hdt_dp_unlock(dp);
    return status;
}

void hdt_dataplane_job_close(struct hdt_dataplane *dp, uint32_t job, uint32_t epoch)
{
    struct hdt_flow_end *flow, *next;

    hdt_dp_lock(dp);
    HASH_ITER(hh, dp->flows, flow, next)
    {
        if (flow->key.job == job && (epoch == UINT32_MAX || flow->conf.epoch == epoch)) {
            flow_end_record(flow, "close");
            flow_end_unlist(flow);
            hdt_flow_end_unref(flow);
        }
    }
    hdt_clients_drop_pools(dp, job, epoch);
    hdt_dp_unlock(dp);
}

void hdt_flow_ends_free(struct hdt_dataplane *dp)
{
    struct hdt_flow_end *flow, *next;

    HASH_ITER(hh, dp->flows, flow, next)
    {
        flow_end_unlist(flow);
        hdt_flow_end_unref(flow);
    }
}

/* ---- records on stream 0 ---- */

void hdt_flow_ends_resync(struct hdt_peer *peer)
{
    struct hdt_flow_end *flow;
    uint32_t i;

    for (flow = peer->dp->flows; flow != NULL; flow = flow->hh.next) {
        if (flow->peer != peer || !flow->attached) {
            continue;
        }
        if (flow->key.is_src) {
            flow->awaiting_state = true;
            flow->query_pending = true;
            for (i = 0; i < flow->conf.depth; i++) {
                hdt_txq_remove(&flow->frames[i]);
            }
        } else if (!flow->waiting) {
            flow->state_pending = true;
        }
        hdt_peer_mark(flow);
    }
}

/* HAVE or "again" of one slot. */
static struct hdt_out *flow_end_slot_out(struct hdt_flow_end *flow, struct hdt_conn *conn)
{
    struct hdt_out *out;
    uint32_t i;

    for (i = 0; i < flow->conf.depth; i++) {
        struct hdt_dst_slot *slot = &flow->slots[i];

        if (slot->have_pending) {
            out = hdt_conn_small(conn, HDT_FRAME_HAVE, flow);
            if (out != NULL) {
                out->rec.frame.seq = slot->seq;
                slot->have_pending = false;
                flow->n_have_pending--;
            }
            return out;
        }
        if (slot->nack_lo < slot->nack_hi) {
            out = hdt_conn_small(conn, HDT_FRAME_QUERY, flow);
            if (out != NULL) {
                out->rec.frame.flags = HDT_FRAME_FLAG_AGAIN;
                out->rec.frame.seq = slot->seq;
                out->rec.frame.offset = slot->nack_lo;
                out->rec.frame.frame_len = slot->nack_hi - slot->nack_lo;
                slot->nack_lo = slot->nack_hi = 0;
                flow->n_nack_pending--;
            }
            return out;
        }
    }
    return NULL;
}

struct hdt_out *hdt_flow_end_peer_out(struct hdt_flow_end *flow, struct hdt_conn *conn, bool *more)
{
    struct hdt_out *out = NULL;

    if (flow->key.is_src) {
        out = flow->query_pending ? hdt_conn_small(conn, HDT_FRAME_QUERY, flow) : NULL;
        flow->query_pending = flow->query_pending && out == NULL;
        *more = flow->query_pending;
        return out;
    }
    if (flow->state_pending || flow->ack_pending) {
        out = hdt_conn_small(conn, HDT_FRAME_ACK, flow);
        if (out != NULL && flow->state_pending) {
            hdt_dst_state(flow, &out->rec.frame);
        } else if (out != NULL) {
            out->rec.frame.seq = flow->acked;
            out->rec.frame.offset = flow->credit;
        }
        if (out != NULL) {
            flow->state_pending = false;
            flow->ack_pending = false;
        }
    } else if (flow->n_have_pending + flow->n_nack_pending > 0) {
        out = flow_end_slot_out(flow, conn);
    }
    *more = flow->state_pending || flow->ack_pending || flow->n_have_pending > 0 ||
            flow->n_nack_pending > 0;
    return out;
}

int hdt_flow_end_on_record(struct hdt_peer *peer, const struct hdt_frame *frame)
{
    const bool is_again =
        frame->kind == HDT_FRAME_QUERY && (frame->flags & HDT_FRAME_FLAG_AGAIN) != 0;
    const bool to_src = frame->kind != HDT_FRAME_QUERY || is_again;
    struct hdt_flow_end *flow = hdt_flow_end_find(peer->dp, frame->job, frame->flow, to_src);

    if (flow != NULL && flow->peer != peer && frame->epoch >= flow->conf.epoch) {
        hdt_peer_misdeed(peer, HDT_MISDEED_FOREIGN, "it speaks of a flow of others");
        return hdt_dropped_cost(frame, true);
    }
    if (flow == NULL || !flow->attached || flow->peer != peer || flow->conf.epoch != frame->epoch) {
        /* Opened later, or gone: both ends tell where they are when they open. */
        return hdt_dropped_cost(frame, false);
    }
    if (is_again) {
        hdt_src_again(flow, frame);
    } else if (frame->kind == HDT_FRAME_HAVE) {
        hdt_src_have(flow, frame->seq);
    } else if (frame->kind == HDT_FRAME_QUERY) {
        flow->state_pending = !flow->waiting; /* who waits tells it when it becomes active */
        hdt_peer_mark(flow);
    } else if ((frame->flags & HDT_FRAME_FLAG_STATE) != 0) {
        hdt_src_state(flow, frame);
    } else {
        hdt_src_ack(flow, frame->seq, frame->offset);
    }
    return 0;
}
