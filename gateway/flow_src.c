/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/dp.h"
#include "src/base/clock.h"

#include <string.h>

/*
 * Source ends. A frame lies in the client's slot until the other worker has taken it; here is only
 * what became of its chunks. Each chunk is waiting, TAKEN (being encoded, ready, or given to a
 * stream) or SENT on a stream; when that stream is lost before the other end says that it holds the
 * frame, the chunk is waiting again. A chunk that arrives twice is dropped there, so that in doubt
 * it is sent.
 *
 * Nothing is sent before the other end's state of this session is known: what it holds already
 * need not go, and what it took must not.
 */

/* How often the other end may ask for parts of one frame again: it does so when a stream broke, and
 * when bytes do not fit their checksum, which a worker that writes to its slot too late does, or a
 * peer that lies; neither may have it sent for ever. */
#define AGAIN_MAX 1000u

struct hdt_src_frame *hdt_src_frame_find(struct hdt_flow_end *flow, uint64_t seq)
{
    struct hdt_src_frame *frame = &flow->frames[seq % flow->conf.depth];

    return frame->held && frame->frame.seq == seq ? frame : NULL;
}

/* ---- from the client ---- */

static uint32_t src_slot_idx(const struct hdt_flow_end *flow, const struct hdt_frame *frame)
{
    const struct hdt_src_frame *slot = &flow->frames[frame->seq % flow->conf.depth];

    /* What is there or was taken already goes to the spare slot, to be forgotten. */
    return frame->seq < flow->acked || slot->held ? flow->conf.depth
                                                  : (uint32_t)(frame->seq % flow->conf.depth);
}

static enum hdt_status src_check(struct hdt_flow_end *flow, const struct hdt_frame *frame,
                                 struct hdt_error *err)
{
    const struct hdt_src_frame *slot = &flow->frames[frame->seq % flow->conf.depth];

    if (frame->frame_len == 0 || frame->frame_len > flow->conf.frame_cap) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot send frame %llu of flow %u of job %u: it has %u bytes, a slot "
                             "has 1 to %u",
                             (unsigned long long)frame->seq, flow->key.flow, flow->key.job,
                             frame->frame_len, flow->conf.frame_cap);
    }
    if (frame->seq >= flow->acked && (frame->seq - flow->acked >= 2ull * flow->conf.depth ||
                                      (slot->held && slot->frame.seq != frame->seq))) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot send frame %llu of flow %u of job %u: its slot holds frame "
                             "%llu, which the other end has not taken",
                             (unsigned long long)frame->seq, flow->key.flow, flow->key.job,
                             (unsigned long long)slot->frame.seq);
    }
    return HDT_OK;
}

enum hdt_status hdt_src_place(struct hdt_flow_end *flow, const struct hdt_frame *frame, void **buf,
                              struct hdt_error *err)
{
    HDT_TRY(src_check(flow, frame, err));
    *buf = flow->mem->base + (size_t)src_slot_idx(flow, frame) * flow->stride;
    return HDT_OK;
}

static void src_queue(struct hdt_src_frame *frame, bool front)
{
    struct hdt_flow_end *flow = frame->flow;

    if (!frame->held || frame->have || flow->awaiting_state || frame->frame.seq >= flow->credit) {
        return;
    }
    if (flow->peer == NULL) {
        hdt_local_mark(flow);
    } else if (frame->n_todo > 0) {
        hdt_txq_push(frame, front);
    }
}

/* Frames that are held, oldest first, back into the queue. */
static void src_queue_all(struct hdt_flow_end *flow)
{
    uint64_t seq;

    for (seq = flow->acked; seq < flow->acked + flow->conf.depth; seq++) {
        struct hdt_src_frame *frame = hdt_src_frame_find(flow, seq);

        if (frame != NULL) {
            src_queue(frame, false);
        }
    }
}

static void src_hold(struct hdt_flow_end *flow, const struct hdt_frame *record,
                     const uint8_t *bytes)
{
    struct hdt_src_frame *frame = &flow->frames[record->seq % flow->conf.depth];
    const uint64_t chunk_bytes = flow->dp->conf.chunk_bytes;

    frame->held = true;
    frame->have = false;
    frame->frame = *record;
    frame->frame.whole = (uint32_t)record->xxh3;
    frame->bytes = bytes;
    frame->n_chunks = (uint32_t)((record->frame_len - 1) / chunk_bytes + 1);
    frame->n_todo = frame->n_chunks;
    frame->scan_idx = 0;
    frame->copying = false;
    frame->n_again = 0;
    frame->cut_us = 0;
    frame->wire_bytes = 0;
    memset(frame->marks, 0, frame->n_chunks * sizeof(*frame->marks));
    if (record->seq >= flow->next_seq) {
        flow->next_seq = record->seq + 1;
    }
    flow->n_frames++;
    flow->plain_bytes += record->frame_len;
    flow->raw_bytes += record->raw_len;
    flow->moved_us = hdt_clock_now_us();
    src_queue(frame, false);
}

enum hdt_status hdt_src_data(struct hdt_flow_end *flow, const struct hdt_frame *frame,
                             struct hdt_error *err)
{
    const uint8_t *bytes;

    if (src_check(flow, frame, err) != HDT_OK) {
        hdt_dpevent_flow_failed(flow->dp, flow, err);
        return HDT_EPROTO;
    }
    if (frame->seq < flow->acked || flow->frames[frame->seq % flow->conf.depth].held) {
        return HDT_OK; /* handed over again after a reconnect: known */
    }
    if (flow->client->shares_memory) {
        if (!hdt_pool_contains(&flow->mem->pool, frame->offset, frame->frame_len)) {
            hdt_error_set(
                err, HDT_EPROTO,
                "cannot send frame %llu of flow %u: bytes %llu to %llu are outside of the "
                "pool of %zu",
                (unsigned long long)frame->seq, flow->key.flow, (unsigned long long)frame->offset,
                (unsigned long long)frame->offset + frame->frame_len, flow->mem->len);
            hdt_dpevent_flow_failed(flow->dp, flow, err);
            return HDT_EPROTO;
        }
        bytes = flow->mem->base + frame->offset;
    } else {
        bytes = flow->mem->base + (frame->seq % flow->conf.depth) * (size_t)flow->stride;
    }
    src_hold(flow, frame, bytes);
    return HDT_OK;
}

/* ---- from the other end ---- */

/* It is whole at the other end: how long did that take? A frame of which parts were sent again says
 * nothing of the way. */
static void src_arrived(struct hdt_src_frame *frame)
{
    struct hdt_peer *peer = frame->flow->peer;
    struct hdt_edge_busy busy;

    if (!frame->have && peer != NULL && frame->cut_us != 0 && frame->n_todo == 0) {
        busy = hdt_edge_rate_have(&peer->edge_rate, frame->cut_us, (double)frame->wire_bytes,
                                  peer->min_rtt_us, hdt_clock_now_us());
        hdt_codec_trial_saw(&frame->flow->trial, frame->use_codec, frame->trial_era,
                            frame->frame.frame_len, busy);
    }
}

static void src_drop(struct hdt_src_frame *frame)
{
    hdt_txq_remove(frame);
    frame->held = false;
}

static void src_release(struct hdt_src_frame *frame)
{
    src_arrived(frame);
    src_drop(frame);
}

/* Told once an end; the flow stands still, its peer's other flows go on. */
static void src_fail(struct hdt_flow_end *flow, const struct hdt_error *why)
{
    if (!flow->failed) {
        flow->failed = true;
        hdt_dpevent_flow_failed(flow->dp, flow, why);
    }
}

void hdt_src_ack(struct hdt_flow_end *flow, uint64_t seq, uint64_t credit)
{
    const uint64_t old_credit = flow->credit;
    struct hdt_error why = {0};
    uint32_t i;

    if (seq > flow->next_seq || credit < seq || credit - seq > flow->conf.depth) {
        hdt_error_set(&why, HDT_EPROTO,
                      "cannot go on with flow %u of job %u: the other end has taken frames before "
                      "%llu (credit %llu), only %llu were handed over and it has %u slots",
                      flow->key.flow, flow->key.job, (unsigned long long)seq,
                      (unsigned long long)credit, (unsigned long long)flow->next_seq,
                      flow->conf.depth);
        src_fail(flow, &why);
        return;
    }
    if (seq > flow->acked) {
        flow->acked = seq;
        flow->moved_us = hdt_clock_now_us();
        for (i = 0; i < flow->conf.depth; i++) {
            if (flow->frames[i].held && flow->frames[i].frame.seq < seq) {
                src_release(&flow->frames[i]);
            }
        }
    }
    if (credit > flow->credit) {
        flow->credit = credit;
    }
    if (flow->credit > old_credit) {
        src_queue_all(flow);
    }
    flow->client_ack_pending = true;
    hdt_client_mark(flow);
}

void hdt_src_have(struct hdt_flow_end *flow, uint64_t seq)
{
    struct hdt_src_frame *frame = hdt_src_frame_find(flow, seq);

    if (frame != NULL) {
        src_arrived(frame);
        frame->have = true;
        hdt_txq_remove(frame);
    }
}

/* Chunks in [first, last] that were sent go out again, those of `conn_id` only if not 0. One that a
 * stream has begun to send may have been refused by its header already: again after this time. */
static void src_reset_marks(struct hdt_src_frame *frame, uint32_t first, uint32_t last,
                            uint32_t conn_id)
{
    uint32_t i;

    for (i = first; i <= last; i++) {
        struct hdt_tx_mark *mark = &frame->marks[i];

        if (conn_id != 0 && mark->conn_id != conn_id) {
            continue;
        }
        if (mark->state == HDT_TX_SENT) {
            mark->state = HDT_TX_WAITING;
            frame->n_todo++;
        } else if (mark->state == HDT_TX_TAKEN && mark->conn_id != 0) {
            mark->again = true;
        }
    }
    frame->scan_idx = 0;
    frame->cut_us = 0;
    src_queue(frame, true);
}

void hdt_src_chunk_back(struct hdt_src_frame *frame, uint32_t idx)
{
    struct hdt_tx_mark *mark = &frame->marks[idx];

    mark->state = HDT_TX_WAITING;
    mark->again = false;
    mark->conn_id = 0;
    frame->n_todo++;
    frame->scan_idx = 0;
    frame->cut_us = 0; /* how long it takes says nothing of the way any more */
    src_queue(frame, true);
}

/* The other end begins anew: what it does not have now, it does not have. */
static void src_restart(struct hdt_flow_end *flow)
{
    uint32_t i;

    for (i = 0; i < flow->conf.depth; i++) {
        struct hdt_src_frame *frame = &flow->frames[i];

        if (frame->held) {
            frame->have = false;
            hdt_txq_remove(frame);
            src_reset_marks(frame, 0, frame->n_chunks - 1, 0);
            hdt_txq_remove(frame);
        }
    }
}

void hdt_src_state(struct hdt_flow_end *flow, const struct hdt_frame *ack)
{
    const bool begins = flow->awaiting_state || ack->raw_len != flow->dst_incarnation;
    struct hdt_error why = {0};
    unsigned i;

    if (ack->seq < flow->acked) {
        hdt_error_set(&why, HDT_EPROTO,
                      "cannot resume flow %u of job %u: the other end begins at frame %llu, frames "
                      "before %llu are kept no more",
                      flow->key.flow, flow->key.job, (unsigned long long)ack->seq,
                      (unsigned long long)flow->acked);
        hdt_error_hint(&why, "the worker there lost its place: the job must go on in a new epoch");
        src_fail(flow, &why);
        return;
    }
    if (begins) {
        src_restart(flow);
        flow->dst_incarnation = ack->raw_len;
        flow->awaiting_state = false;
    }
    hdt_src_ack(flow, ack->seq, ack->offset);
    for (i = 0; i < 64; i++) {
        if ((ack->xxh3 >> i & 1) != 0) {
            hdt_src_have(flow, ack->seq + i);
        }
    }
    if (begins) {
        src_queue_all(flow);
    }
}

void hdt_src_again(struct hdt_flow_end *flow, const struct hdt_frame *query)
{
    struct hdt_src_frame *frame = hdt_src_frame_find(flow, query->seq);
    const uint64_t chunk_bytes = flow->dp->conf.chunk_bytes;
    struct hdt_error why = {0};
    uint64_t first, last;

    if (frame == NULL || query->frame_len == 0 || query->offset >= frame->frame.frame_len) {
        return;
    }
    first = query->offset / chunk_bytes;
    last = (query->offset + query->frame_len - 1) / chunk_bytes;
    if (last >= frame->n_chunks) {
        last = frame->n_chunks - 1;
    }
    if (++frame->n_again > AGAIN_MAX) {
        hdt_error_set(
            &why, HDT_ECRC,
            "cannot go on with flow %u of job %u: site '%s' asked %u times for frame %llu, "
            "which comes damaged each time",
            flow->key.flow, flow->key.job, flow->conf.peer_site, AGAIN_MAX,
            (unsigned long long)query->seq);
        hdt_error_hint(&why, "does something write to the worker's memory while it is sent?");
        src_fail(flow, &why);
        return;
    }
    frame->have = false;
    src_reset_marks(frame, (uint32_t)first, (uint32_t)last, 0);
}

/* ---- losses ---- */

void hdt_src_conn_lost(struct hdt_peer *peer, uint32_t conn_id)
{
    struct hdt_flow_end *flow;
    uint32_t i;

    for (flow = peer->dp->flows; flow != NULL; flow = flow->hh.next) {
        if (!flow->key.is_src || flow->peer != peer || !flow->attached) {
            continue;
        }
        for (i = flow->conf.depth; i-- > 0;) {
            struct hdt_src_frame *frame = &flow->frames[i];

            if (frame->held && !frame->have) {
                src_reset_marks(frame, 0, frame->n_chunks - 1, conn_id);
            }
        }
    }
}

void hdt_src_detach(struct hdt_flow_end *flow)
{
    uint32_t i;

    for (i = 0; i < flow->conf.depth; i++) {
        src_drop(&flow->frames[i]); /* they did not arrive */
    }
}
