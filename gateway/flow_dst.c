/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "compress/codec.h"
#include "gateway/dp.h"
#include "src/base/clock.h"
#include "src/base/recorder.h"

#include <string.h>

/*
 * Destination ends: from chunks in any order, on any stream, some of them twice, to whole frames in
 * order of their numbers.
 *
 * Frame `seq` is put together in slot seq % depth; the window is what the client has slots for. A
 * bit a granule says that somebody brings it or has brought it. A chunk claims its granules before
 * its bytes are read off the stream, so that two copies of it never write at the same time; bytes
 * of granules that are claimed already are dropped. When a claim fails (the stream broke, the
 * checksum is wrong) the granules are free again, and as a second copy may have been dropped in
 * between, the source is asked to send them again.
 */

bool hdt_dst_in_window(const struct hdt_flow_end *flow, uint64_t seq)
{
    return seq >= flow->acked && seq - flow->acked < flow->conf.depth;
}

struct hdt_dst_slot *hdt_dst_slot_at(struct hdt_flow_end *flow, uint64_t seq)
{
    return &flow->slots[seq % flow->conf.depth];
}

uint8_t *hdt_dst_slot_bytes(const struct hdt_flow_end *flow, uint64_t seq)
{
    return flow->mem->base + flow->base_offset + (seq % flow->conf.depth) * (size_t)flow->stride;
}

static uint32_t dst_granules(uint64_t bytes)
{
    return (uint32_t)((bytes + HDT_FRAME_GRANULE - 1) / HDT_FRAME_GRANULE);
}

static bool dst_bit(const uint64_t *bits, uint32_t i)
{
    return (bits[i / 64] >> (i % 64) & 1) != 0;
}

/* ---- a chunk begins ---- */

static enum hdt_status dst_refuse(struct hdt_peer *peer, const struct hdt_frame *chunk,
                                  enum hdt_bad_chunk cause, const char *what)
{
    hdt_peer_bad_chunk(peer, chunk, cause, what);
    return HDT_AGAIN;
}

/* It does not fit the frame that it says it is of. */
static enum hdt_status dst_bad(struct hdt_peer *peer, const struct hdt_frame *chunk,
                               const char *what)
{
    return dst_refuse(peer, chunk, HDT_BAD_FRAME, what);
}

/* HDT_OK: the chunk belongs to *flow; HDT_AGAIN: it is dropped and counted. */
static enum hdt_status dst_check(struct hdt_peer *peer, const struct hdt_frame *chunk,
                                 struct hdt_flow_end **flow)
{
    struct hdt_flow_end *end = hdt_flow_end_find(peer->dp, chunk->job, chunk->flow, false);
    const struct hdt_codec_ops *codec = hdt_codec_by_id(chunk->codec);

    if (end == NULL || (end->peer != peer && chunk->epoch >= end->conf.epoch)) {
        return dst_refuse(peer, chunk, HDT_BAD_FLOW, "it has no such flow here");
    }
    if (!end->attached || end->waiting || chunk->epoch != end->conf.epoch ||
        chunk->seq < end->acked) {
        peer->total.dup_chunks++; /* late: of an old epoch, taken already, or sent anew soon */
        return HDT_AGAIN;
    }
    if (!hdt_dst_in_window(end, chunk->seq)) {
        return dst_refuse(peer, chunk, HDT_BAD_CREDIT, "its frame is beyond the credit given");
    }
    if (chunk->frame_len > end->conf.frame_cap || chunk->len > HDT_DP_CHUNK_MAX) {
        return dst_bad(peer, chunk, "its frame is longer than a slot");
    }
    if (codec == NULL ||
        (codec->id != HDT_CODEC_NONE && (codec->caps & (HDT_CODEC_AT_GATEWAY | HDT_CODEC_EXACT)) !=
                                            (HDT_CODEC_AT_GATEWAY | HDT_CODEC_EXACT)) ||
        (codec->id == HDT_CODEC_NONE && chunk->coded_len != chunk->len)) {
        return dst_refuse(peer, chunk, HDT_BAD_CODEC, "its codec or coded length is not allowed");
    }
    *flow = end;
    return HDT_OK;
}

static void dst_begin_slot(struct hdt_dst_slot *slot, const struct hdt_frame *chunk)
{
    const uint32_t n_words = (dst_granules(chunk->frame_len) + 63) / 64;

    slot->begun = true;
    slot->complete = false;
    slot->seq = chunk->seq;
    slot->frame = *chunk;
    slot->done_bytes = 0;
    memset(slot->claims, 0, n_words * sizeof(*slot->claims));
}

/* Claim what is free. Returns how many granules that is. */
static uint32_t dst_claim(struct hdt_rx_job *job, struct hdt_dst_slot *slot)
{
    const uint32_t first = (uint32_t)(job->frame.offset / HDT_FRAME_GRANULE);
    const uint32_t n = dst_granules(job->frame.len);
    uint32_t i, n_claimed = 0;

    memset(job->claimed, 0, sizeof(job->claimed));
    for (i = 0; i < n; i++) {
        if (!dst_bit(slot->claims, first + i)) {
            slot->claims[(first + i) / 64] |= 1ull << ((first + i) % 64);
            job->claimed[i / 64] |= 1ull << (i % 64);
            n_claimed++;
        }
    }
    job->whole = n_claimed == n;
    return n_claimed;
}

enum hdt_status hdt_dst_place(struct hdt_peer *peer, struct hdt_rx_job *job, void **buf,
                              struct hdt_error *err)
{
    const struct hdt_frame *chunk = &job->frame;
    struct hdt_flow_end *flow = NULL;
    struct hdt_dst_slot *slot;

    (void)err;
    if (dst_check(peer, chunk, &flow) != HDT_OK) {
        return HDT_OK;
    }
    slot = hdt_dst_slot_at(flow, chunk->seq);
    if (!slot->begun) {
        dst_begin_slot(slot, chunk);
    }
    HDT_ASSERT(slot->seq == chunk->seq);
    if (slot->frame.frame_len != chunk->frame_len || slot->frame.whole != chunk->whole ||
        slot->frame.dtype != chunk->dtype) {
        (void)dst_bad(peer, chunk, "other chunks of its frame tell another length, type or hash");
        return HDT_OK;
    }
    if (slot->complete || dst_claim(job, slot) == 0) {
        peer->total.dup_chunks++;
        return HDT_OK;
    }
    job->flow = hdt_flow_end_ref(flow);
    flow->n_writers++;
    job->slot = hdt_dst_slot_bytes(flow, chunk->seq);
    job->mode = HDT_RX_BUFFER;
    if (job->whole && chunk->codec == HDT_CODEC_NONE) {
        job->mode = HDT_RX_DIRECT;
        *buf = job->slot + chunk->offset;
    }
    return HDT_OK;
}

/* ---- a chunk is there, or lost ---- */

static uint32_t dst_claimed_bytes(const struct hdt_rx_job *job)
{
    const uint32_t n = dst_granules(job->frame.len);
    uint32_t i, bytes = 0;

    for (i = 0; i < n; i++) {
        if (dst_bit(job->claimed, i)) {
            const uint32_t at = i * HDT_FRAME_GRANULE;
            const uint32_t left = job->frame.len - at;

            bytes += left < HDT_FRAME_GRANULE ? left : HDT_FRAME_GRANULE;
        }
    }
    return bytes;
}

static void dst_complete(struct hdt_flow_end *flow, struct hdt_dst_slot *slot)
{
    slot->complete = true;
    if (slot->nack_lo < slot->nack_hi) {
        slot->nack_lo = slot->nack_hi = 0;
        flow->n_nack_pending--;
    }
    flow->n_frames++;
    flow->plain_bytes += slot->frame.frame_len;
    flow->raw_bytes += slot->frame.raw_len;
    flow->moved_us = hdt_clock_now_us();
    HDT_RECORD(HDT_REC_FRAME,
               .n = {flow->key.job, flow->key.flow, (int64_t)slot->seq, slot->frame.frame_len});
    if (flow->peer != NULL) {
        slot->have_pending = true;
        flow->n_have_pending++;
        hdt_peer_mark(flow);
    }
    if (slot->seq == flow->next_seq) {
        hdt_client_mark(flow);
    }
}

/* Give the claims back and ask for the bytes again. */
static void dst_unclaim(struct hdt_flow_end *flow, struct hdt_dst_slot *slot,
                        const struct hdt_rx_job *job)
{
    const uint32_t first = (uint32_t)(job->frame.offset / HDT_FRAME_GRANULE);
    const uint32_t n = dst_granules(job->frame.len);
    const uint32_t lo = (uint32_t)job->frame.offset, hi = lo + job->frame.len;
    uint32_t i;

    for (i = 0; i < n; i++) {
        if (dst_bit(job->claimed, i)) {
            slot->claims[(first + i) / 64] &= ~(1ull << ((first + i) % 64));
        }
    }
    if (slot->nack_lo == slot->nack_hi) {
        slot->nack_lo = lo;
        slot->nack_hi = hi;
        flow->n_nack_pending++;
    } else {
        slot->nack_lo = lo < slot->nack_lo ? lo : slot->nack_lo;
        slot->nack_hi = hi > slot->nack_hi ? hi : slot->nack_hi;
    }
    hdt_peer_mark(flow);
}

void hdt_dst_done(struct hdt_rx_job *job, bool ok)
{
    struct hdt_flow_end *flow = job->flow;
    struct hdt_dst_slot *slot = hdt_dst_slot_at(flow, job->frame.seq);

    /* The window does not move over a frame that is not whole, so the slot is still the frame's. */
    HDT_ASSERT(slot->begun && slot->seq == job->frame.seq && !slot->complete);
    HDT_ASSERT(flow->n_writers > 0);
    flow->n_writers--;
    if (flow->attached) {
        if (ok) {
            slot->done_bytes += dst_claimed_bytes(job);
            flow->coded_bytes += job->frame.coded_len;
            if (slot->done_bytes == slot->frame.frame_len) {
                dst_complete(flow, slot);
            }
        } else {
            dst_unclaim(flow, slot, job);
        }
    } else if (flow->n_writers == 0 && flow->draining) {
        hdt_flow_end_drained(flow);
    }
}

void hdt_dst_copied(struct hdt_flow_end *flow, uint64_t seq)
{
    dst_complete(flow, hdt_dst_slot_at(flow, seq));
}

/* ---- the client's ACK, the state ---- */

enum hdt_status hdt_dst_ack(struct hdt_flow_end *flow, uint64_t seq, uint64_t credit,
                            struct hdt_error *err)
{
    if (seq > flow->next_seq || credit < seq || credit - seq > flow->conf.depth) {
        hdt_error_set(
            err, HDT_EPROTO,
            "cannot accept an ACK of frame %llu (credit %llu) of flow %u of job %u: frames "
            "before %llu were delivered, there are %u slots",
            (unsigned long long)seq, (unsigned long long)credit, flow->key.flow, flow->key.job,
            (unsigned long long)flow->next_seq, flow->conf.depth);
        hdt_dpevent_flow_failed(flow->dp, flow, err);
        return HDT_EPROTO;
    }
    for (; flow->acked < seq; flow->acked++) {
        struct hdt_dst_slot *slot = hdt_dst_slot_at(flow, flow->acked);

        HDT_ASSERT(slot->complete && slot->seq == flow->acked);
        slot->begun = false;
        slot->complete = false;
        if (slot->have_pending) {
            slot->have_pending = false; /* the ACK says more */
            flow->n_have_pending--;
        }
    }
    if (credit > flow->credit) {
        flow->credit = credit;
    }
    flow->moved_us = hdt_clock_now_us();
    if (flow->peer != NULL) {
        flow->ack_pending = true;
        hdt_peer_mark(flow);
    } else {
        struct hdt_flow_end *src = hdt_flow_end_find(flow->dp, flow->key.job, flow->key.flow, true);

        if (src != NULL && src->attached && src->conf.epoch == flow->conf.epoch) {
            hdt_src_ack(src, flow->acked, flow->credit);
        }
    }
    return HDT_OK;
}

void hdt_dst_state(const struct hdt_flow_end *flow, struct hdt_frame *ack)
{
    uint32_t i;

    ack->flags = HDT_FRAME_FLAG_STATE;
    ack->seq = flow->acked;
    ack->offset = flow->credit;
    ack->raw_len = flow->incarnation;
    ack->xxh3 = 0;
    for (i = 0; i < flow->conf.depth && i < 64; i++) {
        const struct hdt_dst_slot *slot = &flow->slots[(flow->acked + i) % flow->conf.depth];

        if (slot->complete && slot->seq == flow->acked + i) {
            ack->xxh3 |= 1ull << i;
        }
    }
}

void hdt_dst_activate(struct hdt_flow_end *flow)
{
    struct hdt_flow_end *src;

    flow->waiting = false;
    if (!flow->attached) {
        return;
    }
    if (flow->peer != NULL) {
        flow->state_pending = true;
        hdt_peer_mark(flow);
        return;
    }
    /* Both ends are here: the source learns it directly. */
    src = hdt_flow_end_find(flow->dp, flow->key.job, flow->key.flow, true);
    if (src != NULL && src->attached) {
        hdt_local_ask(src);
    }
}
