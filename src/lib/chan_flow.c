/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ends of a channel's flows, by the rules of src/core/window.h. What differs from a worker's: a
 * frame may lie anywhere in the pool, not only in its slot, so that a tensor which the program made
 * in memory of the channel leaves from there.
 */
#include "config.h"

#include "src/lib/chan.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/core/msg.h"
#include "compress/codec_state.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* A TLS link takes no more frames while so many bytes wait, so that an urgent one is never behind a
 * long queue. */
#define SUBMIT_WATER ((size_t)1 << 20)

/* ---- making ---- */

static void record_init(struct hdt_record *record, void *user)
{
    record->passed_fd = -1;
    record->user = user;
    record->frame.version = HDT_FRAME_VERSION;
}

enum hdt_status hdt_chan_flow_new(struct hdt_channel *ch, const struct chan_flow_spec *spec,
                                  struct hdt_flow **out, struct hdt_error *err)
{
    struct hdt_flow *flow = hdt_calloc(1, sizeof(*flow));

    flow->channel = ch;
    flow->number = spec->is_src ? hdt_channel_flow(ch->rank, spec->peer, spec->tag)
                                : hdt_channel_flow(spec->peer, ch->rank, spec->tag);
    flow->peer = spec->peer;
    hdt_window_init(&flow->window, spec->is_src, spec->depth);
    flow->is_collective = spec->tag > HDT_CHANNEL_TAG_MAX;
    flow->prio = spec->prio;
    flow->type = spec->type;
    flow->codec = spec->codec;
    flow->piece = hdt_piece_max(&spec->codec, spec->type, spec->frame_cap);
    flow->frame_cap = spec->frame_cap;
    flow->moved_us = hdt_clock_now_us();
    if (spec->pool_offset) {
        flow->pool_offset = *spec->pool_offset;
    } else if (hdt_chan_mem_get(ch, (size_t)spec->depth * spec->frame_cap, &flow->pool_offset,
                                err) != HDT_OK) {
        free(flow);
        return HDT_ENOMEM;
    }
    record_init(&flow->ack, flow);
    flow->slots = hdt_calloc(flow->window.depth, sizeof(*flow->slots));
    for (uint32_t i = 0; i < flow->window.depth; i++) {
        flow->slots[i].mem = ch->pool.base + flow->pool_offset + (size_t)i * flow->frame_cap;
        record_init(&flow->slots[i].record, &flow->slots[i]);
    }
    *out = flow;
    return HDT_OK;
}

void hdt_chan_flow_free(struct hdt_flow *flow)
{
    for (size_t i = 0; i < flow->n_feedback; i++) {
        hdt_codec_state_free(flow->feedback[i]);
    }
    free(flow->feedback);
    free(flow->slots);
    free(flow);
}

void hdt_chan_flow_add(struct hdt_channel *ch, struct hdt_flow *flow)
{
    LL_PREPEND2(ch->all_flows, flow, all_next);
    if (ch->new_flows_last) {
        ch->new_flows_last->new_next = flow;
    } else {
        ch->new_flows = flow;
    }
    ch->new_flows_last = flow;
    hdt_chan_post(ch);
}

void hdt_chan_flows_collect(struct hdt_channel *ch)
{
    struct hdt_flow *flow;

    while ((flow = ch->new_flows)) {
        ch->new_flows = flow->new_next;
        if (ch->flows_last) {
            ch->flows_last->next = flow;
        } else {
            ch->flows = flow;
        }
        ch->flows_last = flow;
    }
    ch->new_flows_last = NULL;
}

/* For hdt_flow_stats. */
static void flow_note(struct hdt_flow *flow)
{
    pthread_mutex_lock(&flow->channel->lock);
    flow->stats.waiting = flow->window.end - flow->window.acked;
    flow->stats.is_open = flow->is_opened;
    flow->stats_us = flow->moved_us;
    pthread_mutex_unlock(&flow->channel->lock);
}

static void flow_moved(struct hdt_flow *flow)
{
    flow->moved_us = hdt_clock_now_us();
    flow_note(flow);
}

void hdt_chan_flow_opened(struct hdt_channel *ch, uint32_t number, bool is_opened)
{
    struct hdt_flow *flow;

    for (flow = ch->flows; flow; flow = flow->next) {
        if (flow->number == number) {
            flow->is_opened = is_opened;
            flow_note(flow);
        }
    }
}

json_t *hdt_chan_offers(const struct hdt_channel *ch)
{
    const struct hdt_flow *flow;
    json_t *offers = json_array(), *offer;
    char content[HDT_CHANNEL_CONTENT_CAP];

    for (flow = ch->flows; flow; flow = flow->next) {
        hdt_piece_content(&flow->codec, flow->type, content);
        offer =
            json_pack("[I, I, I, i, i, i]", (json_int_t)flow->number,
                      (json_int_t)flow->window.depth, (json_int_t)flow->frame_cap, (int)flow->prio,
                      (int)flow->codec.gateway, (int)hdt_piece_dtype(&flow->codec, flow->type));
        if (content[0]) {
            json_array_append_new(offer, json_string(content));
        }
        json_array_append_new(offers, offer);
    }
    return offers;
}

/* ---- announcing ---- */

static void flow_reset(struct hdt_flow *flow)
{
    flow->is_said = false;
    flow->is_opened = false;
    hdt_window_reset(&flow->window, false);
}

void hdt_chan_flows_lost(struct hdt_channel *ch)
{
    struct hdt_flow *flow;

    ch->is_announced = false;
    for (flow = ch->flows; flow; flow = flow->next) {
        flow_reset(flow);
        flow_note(flow);
    }
}

static json_t *flow_open_body(const struct hdt_channel *ch, const struct hdt_flow *flow)
{
    char content[HDT_CHANNEL_CONTENT_CAP];

    hdt_piece_content(&flow->codec, flow->type, content);
    return json_pack(
        "{s:I, s:I, s:I, s:s, s:s, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:s}", "job",
        (json_int_t)ch->job, "epoch", (json_int_t)ch->epoch, "flow", (json_int_t)flow->number,
        "end", flow->window.is_src ? "src" : "dst", "peer_site", ch->members[flow->peer].who.site,
        "prio", (int)flow->prio, "codec", (int)flow->codec.gateway, "dtype",
        (int)hdt_piece_dtype(&flow->codec, flow->type), "depth", (json_int_t)flow->window.depth,
        "frame_cap", (json_int_t)flow->frame_cap, "pool", (json_int_t)ch->pool.number,
        "pool_offset", (json_int_t)flow->pool_offset, "next_seq",
        (json_int_t)hdt_window_next_seq(&flow->window), "content", content);
}

static void pool_announce(struct hdt_channel *ch)
{
    struct hdt_record *record = &ch->pool_record;

    if (ch->is_announced || ch->pool_queued) {
        return;
    }
    ch->is_announced = true;
    if (!(hdt_gwlink_ops(ch->link)->caps & HDT_LINK_SHARED)) {
        return;
    }
    record_init(record, ch);
    record->frame.kind = HDT_FRAME_POOL;
    record->frame.job = ch->job;
    record->frame.epoch = ch->epoch;
    record->frame.seq = ch->pool.number;
    record->frame.offset = ch->pool.len;
    record->passed_fd = ch->pool.fd;
    ch->pool_queued = true;
    hdt_gwlink_send(ch->link, record, false);
}

void hdt_chan_flows_announce(struct hdt_channel *ch)
{
    struct hdt_flow *flow;

    if (!ch->is_joined || !hdt_gwlink_is_up(ch->link)) {
        return;
    }
    pool_announce(ch);
    if (!ch->is_announced) {
        return;
    }
    for (flow = ch->flows; flow; flow = flow->next) {
        if (!flow->is_said) {
            flow_reset(flow);
            flow->is_said = true;
            hdt_gwlink_say(ch->link, hdt_msg_new("flow.open", NULL, flow_open_body(ch, flow)),
                           true);
        }
    }
}

/* ---- records out ---- */

static void record_frame(const struct hdt_flow *flow, struct hdt_frame *frame,
                         enum hdt_frame_kind kind)
{
    frame->kind = (uint8_t)kind;
    frame->job = flow->channel->job;
    frame->epoch = flow->channel->epoch;
    frame->flow = flow->number;
    frame->prio = flow->prio;
}

static bool flow_send_ack(struct hdt_channel *ch, struct hdt_flow *flow)
{
    struct hdt_frame *frame = &flow->ack.frame;

    if (!flow->is_said || !flow->window.ack_due || flow->ack_queued) {
        return false;
    }
    flow->window.ack_due = false;
    flow->ack_queued = true;
    record_frame(flow, frame, HDT_FRAME_ACK);
    frame->seq = flow->window.acked;
    frame->offset = flow->window.acked + flow->window.depth;
    hdt_gwlink_send(ch->link, &flow->ack, true);
    return true;
}

static bool flow_send_data(struct hdt_channel *ch, struct hdt_flow *flow)
{
    struct chan_slot *slot = hdt_chan_flow_slot(flow, flow->window.submit);
    const bool shared = hdt_gwlink_ops(ch->link)->caps & HDT_LINK_SHARED;
    struct hdt_record *record = &slot->record;

    if (!flow->is_said || !hdt_window_may_submit(&flow->window) || slot->is_queued) {
        return false;
    }
    record_frame(flow, &record->frame, HDT_FRAME_DATA);
    record->frame.dtype = slot->dtype;
    record->frame.flags = slot->flags;
    record->frame.seq = flow->window.submit;
    record->frame.offset = shared ? (uint64_t)(slot->bytes - ch->pool.base) : 0;
    record->frame.len = slot->len;
    record->frame.frame_len = slot->len;
    record->frame.coded_len = shared ? 0 : slot->len;
    record->frame.raw_len = slot->raw_len;
    record->frame.xxh3 = slot->xxh3;
    record->payload = shared ? NULL : slot->bytes;
    record->payload_len = shared ? 0 : slot->len;
    slot->is_queued = true;
    hdt_window_submitted(&flow->window);
    hdt_gwlink_send(ch->link, record, false);
    return true;
}

/* Sends what may go, urgent classes first and flows of one class in turn. */
void hdt_chan_flows_pump(struct hdt_channel *ch)
{
    struct hdt_flow *flow;
    bool sent;

    if (!hdt_gwlink_is_up(ch->link) || !ch->is_announced) {
        return;
    }
    for (flow = ch->flows; flow; flow = flow->next) {
        flow_send_ack(ch, flow);
    }
    for (int prio = 0; prio < HDT_PRIO_COUNT; prio++) {
        for (sent = true; sent;) {
            sent = false;
            for (flow = ch->flows; flow; flow = flow->next) {
                if (flow->window.is_src && flow->prio == prio &&
                    hdt_gwlink_queued_bytes(ch->link) < SUBMIT_WATER) {
                    sent = flow_send_data(ch, flow) || sent;
                }
            }
        }
    }
}

void hdt_chan_record_sent(struct hdt_channel *ch, struct hdt_record *record)
{
    switch ((enum hdt_frame_kind)record->frame.kind) {
    case HDT_FRAME_POOL:
        ch->pool_queued = false;
        break;
    case HDT_FRAME_ACK:
        ((struct hdt_flow *)record->user)->ack_queued = false;
        break;
    default:
        ((struct chan_slot *)record->user)->is_queued = false;
    }
}

/* ---- records in ---- */

static struct hdt_flow *flow_of_frame(struct hdt_channel *ch, const struct hdt_frame *frame,
                                      bool is_src)
{
    struct hdt_flow *flow;

    if (!ch->is_joined || frame->job != ch->job || frame->epoch != ch->epoch) {
        return NULL;
    }
    for (flow = ch->flows; flow; flow = flow->next) {
        if (flow->number == frame->flow && flow->window.is_src == is_src && flow->is_said) {
            break;
        }
    }
    return flow;
}

static enum hdt_status data_refuse(const struct hdt_frame *frame, const char *why,
                                   struct hdt_error *err)
{
    return hdt_error_set(err, HDT_EPROTO,
                         "cannot take frame %llu of flow %08x from the gateway: %s",
                         (unsigned long long)frame->seq, frame->flow, why);
}

/* HDT_AGAIN: it came before. */
static enum hdt_status data_check(const struct hdt_flow *flow, const struct hdt_frame *frame,
                                  struct hdt_error *err)
{
    const char *why = NULL;
    const enum hdt_status status = hdt_window_check(&flow->window, frame->seq, &why);

    if (status != HDT_OK) {
        return status == HDT_AGAIN ? status : data_refuse(frame, why, err);
    }
    if (frame->frame_len > flow->frame_cap || frame->frame_len == 0) {
        return data_refuse(frame, "its length is not within a slot", err);
    }
    return HDT_OK;
}

enum hdt_status hdt_chan_place(struct hdt_channel *ch, const struct hdt_frame *frame, size_t len,
                               void **buf, struct hdt_error *err)
{
    struct hdt_flow *flow = flow_of_frame(ch, frame, false);
    enum hdt_status status = HDT_AGAIN;

    if ((hdt_gwlink_ops(ch->link)->caps & HDT_LINK_SHARED) || len != frame->frame_len) {
        return data_refuse(frame, "not as many bytes follow it as this link carries", err);
    }
    if (flow) {
        status = data_check(flow, frame, err);
    }
    if (status == HDT_AGAIN && len <= CHAN_FRAME_CAP) {
        *buf = ch->discard; /* nobody wants it */
        return HDT_OK;
    }
    if (status != HDT_OK) {
        return status == HDT_AGAIN ? data_refuse(frame, "it is too long", err) : status;
    }
    *buf = hdt_chan_flow_slot(flow, frame->seq)->mem;
    return HDT_OK;
}

static enum hdt_status data_arrived(struct hdt_channel *ch, const struct hdt_frame *frame,
                                    struct hdt_error *err)
{
    struct hdt_flow *flow = flow_of_frame(ch, frame, false);
    struct chan_slot *slot;
    enum hdt_status status;

    if (!flow) {
        return HDT_OK;
    }
    status = data_check(flow, frame, err);
    if (status == HDT_AGAIN) {
        hdt_window_came_again(&flow->window, frame->seq);
        return HDT_OK;
    }
    HDT_TRY(status);
    slot = hdt_chan_flow_slot(flow, frame->seq);
    if ((hdt_gwlink_ops(ch->link)->caps & HDT_LINK_SHARED) &&
        frame->offset != (uint64_t)(slot->mem - ch->pool.base)) {
        return data_refuse(frame, "it does not lie in its slot", err);
    }
    slot->len = frame->frame_len;
    slot->raw_len = frame->raw_len;
    slot->dtype = frame->dtype;
    slot->flags = frame->flags;
    slot->xxh3 = frame->xxh3;
    slot->is_checked = false;
    flow->window.end++;
    flow_moved(flow);
    return HDT_OK;
}

enum hdt_status hdt_chan_flow_acked(struct hdt_flow *flow, uint64_t seq, uint64_t credit)
{
    const uint64_t acked = flow->window.acked;

    HDT_TRY(hdt_window_ack(&flow->window, seq, credit));
    if (flow->window.acked == acked) {
        return HDT_OK;
    }
    flow_moved(flow);
    if (flow->is_collective) {
        hdt_chan_coll_acked(flow->channel);
    } else {
        hdt_chan_requests_acked(flow);
    }
    return HDT_OK;
}

static enum hdt_status ack_arrived(struct hdt_channel *ch, const struct hdt_frame *frame,
                                   struct hdt_error *err)
{
    struct hdt_flow *flow = flow_of_frame(ch, frame, true);

    if (!flow) {
        return HDT_OK;
    }
    if (hdt_chan_flow_acked(flow, frame->seq, frame->offset) != HDT_OK) {
        return hdt_error_set(
            err, HDT_EPROTO, "cannot take an ACK of flow %08x: it says %llu, %llu were sent",
            flow->number, (unsigned long long)frame->seq, (unsigned long long)flow->window.handed);
    }
    return HDT_OK;
}

enum hdt_status hdt_chan_record(struct hdt_channel *ch, const struct hdt_frame *frame,
                                struct hdt_error *err)
{
    struct hdt_flow *flow;

    switch ((enum hdt_frame_kind)frame->kind) {
    case HDT_FRAME_DATA:
        return data_arrived(ch, frame, err);
    case HDT_FRAME_ACK:
        return ack_arrived(ch, frame, err);
    default: /* QUERY: a gateway that came back asks */
        if ((flow = flow_of_frame(ch, frame, true))) {
            hdt_window_query(&flow->window);
        }
        if ((flow = flow_of_frame(ch, frame, false))) {
            hdt_window_query(&flow->window);
        }
        return HDT_OK;
    }
}

/* ---- frames ---- */

struct chan_slot *hdt_chan_flow_slot(struct hdt_flow *flow, uint64_t seq)
{
    return &flow->slots[seq % flow->window.depth];
}

uint32_t hdt_chan_flow_room(const struct hdt_flow *flow)
{
    uint32_t room = 0;

    while (hdt_chan_flow_ready(flow) + room < flow->window.depth &&
           !flow->slots[(flow->window.end + room) % flow->window.depth].is_queued) {
        room++;
    }
    return room;
}

void hdt_chan_flow_commit(struct hdt_flow *flow, const struct chan_frame *frame)
{
    struct chan_slot *slot = hdt_chan_flow_slot(flow, flow->window.end);

    HDT_ASSERT(flow->window.is_src && frame->len > 0 && frame->len <= flow->frame_cap);
    slot->len = (uint32_t)frame->len;
    slot->raw_len = (uint32_t)frame->raw_len;
    slot->dtype = (uint8_t)frame->dtype;
    slot->flags = frame->flags;
    slot->xxh3 = frame->xxh3 ? frame->xxh3 : XXH3_64bits(slot->bytes, frame->len);
    flow->window.end++;
    pthread_mutex_lock(&flow->channel->lock);
    flow->stats.n_frames++;
    flow->stats.raw_bytes += frame->raw_len;
    flow->stats.frame_bytes += frame->len;
    pthread_mutex_unlock(&flow->channel->lock);
    flow_moved(flow);
}

uint64_t hdt_chan_flow_ready(const struct hdt_flow *flow)
{
    return flow->window.end - flow->window.acked;
}

struct chan_slot *hdt_chan_flow_peek(struct hdt_flow *flow, uint64_t i)
{
    struct chan_slot *slot = hdt_chan_flow_slot(flow, flow->window.acked + i);
    struct hdt_error why;

    if (i >= hdt_chan_flow_ready(flow)) {
        return NULL;
    }
    /* Who sent it took the hash in its own memory: what is between need not be trusted. */
    if (!slot->is_checked && slot->xxh3 != 0 &&
        (uint32_t)slot->xxh3 != (uint32_t)XXH3_64bits(slot->mem, slot->len)) {
        hdt_error_set(&why, HDT_ECRC, "frame %llu of flow %08x was damaged on its way",
                      (unsigned long long)flow->window.acked + i, flow->number);
        hdt_gwlink_break(flow->channel->link, &why);
        return NULL;
    }
    slot->is_checked = true;
    return slot;
}

void hdt_chan_flow_take(struct hdt_flow *flow)
{
    const struct chan_slot *slot = hdt_chan_flow_slot(flow, flow->window.acked);

    HDT_ASSERT(!flow->window.is_src && flow->window.acked < flow->window.end);
    pthread_mutex_lock(&flow->channel->lock);
    flow->stats.n_frames++;
    flow->stats.raw_bytes += slot->raw_len;
    flow->stats.frame_bytes += slot->len;
    pthread_mutex_unlock(&flow->channel->lock);
    hdt_window_take(&flow->window);
    flow_moved(flow);
}
