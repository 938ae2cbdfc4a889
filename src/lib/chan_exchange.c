/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps of a collective: what one frame more, on one flow, brings. chan_coll.c says what they
 * are steps of. Each does at most one piece of work and says whether it did.
 */
#include "config.h"

#include "src/lib/chan.h"
#include "compress/kernels.h"

#include <string.h>
#include <xxhash.h>

/* What random bits of a piece follow from: it is coded once on the way to its sum, and the sum
 * once. */
enum way { TO_SUM, TO_ALL };

/* Frames that a piece takes when it is not coded. */
static size_t raw_frames(const struct hdt_request *op, size_t n)
{
    return (n * hdt_dtype_size(op->coll.type) + CHAN_FRAME_CAP - 1) / CHAN_FRAME_CAP;
}

static size_t frames_wanted(const struct hdt_request *op, size_t n)
{
    return hdt_piece_is_plain(&op->coll.codec) ? 1 : raw_frames(op, n);
}

/* ---- scatter: our part of everybody's shard ---- */

static void coll_guard_add(struct hdt_channel *ch, const struct hdt_codec_guard *guard)
{
    pthread_mutex_lock(&ch->lock);
    hdt_codec_guard_add(&ch->guard, guard);
    pthread_mutex_unlock(&ch->lock);
}

static uint64_t piece_seed(const struct hdt_channel *ch, const struct hdt_request *op, size_t at,
                           enum way way)
{
    const uint64_t what[] = {op->coll.seq, at, ch->rank, way};

    return XXH3_64bits(what, sizeof(what));
}

/* n elements at src, not coded: the frames' bytes go to `mem` of as many slots. */
static void commit_raw(struct hdt_flow *flow, const struct hdt_request *op, const uint8_t *src,
                       size_t n)
{
    const size_t bytes = n * hdt_dtype_size(op->coll.type);

    for (size_t at = 0; at < bytes; at += CHAN_FRAME_CAP) {
        struct chan_slot *slot = hdt_chan_flow_slot(flow, flow->window.end);
        struct chan_frame frame = {.dtype = op->coll.type, .flags = HDT_CHANNEL_FRAME_RAW};

        frame.len = bytes - at < CHAN_FRAME_CAP ? bytes - at : CHAN_FRAME_CAP;
        frame.raw_len = frame.len;
        slot->bytes = slot->mem;
        memcpy(slot->mem, src + at, frame.len);
        hdt_chan_flow_commit(flow, &frame);
    }
}

static void scatter_piece(struct hdt_channel *ch, struct hdt_flow *flow, struct hdt_request *op,
                          size_t at, size_t n)
{
    const size_t size = hdt_dtype_size(op->coll.type);
    struct chan_slot *slot = hdt_chan_flow_slot(flow, flow->window.end);
    struct hdt_codec_guard guard = {0};
    const struct chan_numeric num = {.ctx = ch->codec_ctx,
                                     .scratch = ch->scratch,
                                     .guard = &guard,
                                     .seed = piece_seed(ch, op, at, TO_SUM)};
    struct chan_frame frame = {.raw_len = n * size,
                               .dtype = hdt_piece_dtype(&op->coll.codec, op->coll.type)};
    const uint8_t *src = op->src + at * size;

    slot->bytes = slot->mem;
    if (op->coll.is_zero_copy) {
        slot->bytes = src;
        frame.len = n * size;
    } else if (!hdt_piece_encode(&num, &op->coll.codec, op->coll.type, src, n, slot->mem,
                                 &frame.len)) {
        commit_raw(flow, op, src, n);
        coll_guard_add(ch, &guard);
        return;
    }
    hdt_chan_flow_commit(flow, &frame);
    coll_guard_add(ch, &guard);
}

static void scatter_head(struct hdt_flow *flow, const struct hdt_request *op)
{
    const struct chan_frame frame = {
        .len = CHAN_HEAD_LEN, .dtype = HDT_DTYPE_NONE, .flags = HDT_CHANNEL_FRAME_HEAD};
    struct chan_slot *slot = hdt_chan_flow_slot(flow, flow->window.end);

    memcpy(slot->mem, op->coll.head, CHAN_HEAD_LEN);
    slot->bytes = slot->mem;
    hdt_chan_flow_commit(flow, &frame);
}

static bool scatter_step(struct hdt_channel *ch, unsigned p)
{
    struct chan_lane *lane = &ch->lanes[p];
    struct hdt_request *op = hdt_coll_at(ch, lane->out.seq);
    const uint32_t room = op ? hdt_chan_flow_room(lane->scatter_out) : 0;
    size_t at, n, pieces;

    if (room == 0) {
        return false;
    }
    pieces = op->coll.kind == COLL_ALLREDUCE ? hdt_coll_pieces(ch, op, p) : 0;
    if (lane->out.idx == 0) {
        scatter_head(lane->scatter_out, op);
    } else {
        hdt_coll_piece(ch, op, p, lane->out.idx - 1, &at, &n);
        if (room < frames_wanted(op, n)) {
            return false;
        }
        scatter_piece(ch, lane->scatter_out, op, at, n);
    }
    op->coll.out_end[p] = lane->scatter_out->window.end;
    hdt_coll_cursor_next(ch, &lane->out, op, 1 + pieces);
    return true;
}

/* ---- the heads of the others ---- */

static bool head_step(struct hdt_channel *ch, unsigned p)
{
    struct chan_lane *lane = &ch->lanes[p];
    struct hdt_request *op = hdt_coll_at(ch, lane->in.seq);
    const struct chan_slot *slot;
    size_t pieces;

    if (!op || lane->in.idx != 0 || !(slot = hdt_chan_flow_peek(lane->scatter_in, 0))) {
        return false;
    }
    if (!(slot->flags & HDT_CHANNEL_FRAME_HEAD) || slot->len != CHAN_HEAD_LEN ||
        memcmp(slot->mem, op->coll.head, CHAN_HEAD_LEN) != 0) {
        hdt_coll_head_refuse(ch, op, p, slot);
        return false;
    }
    pieces = op->coll.kind == COLL_ALLREDUCE ? hdt_coll_pieces(ch, op, ch->rank) : 0;
    hdt_chan_flow_take(lane->scatter_in);
    hdt_coll_cursor_next(ch, &lane->in, op, 1 + pieces);
    return true;
}

/* ---- reducing our shard ---- */

/* Frames of the next piece of a lane when all are there; 0: not yet. */
static size_t piece_arrived(struct chan_lane *lane, const struct hdt_request *op, size_t n)
{
    const struct chan_slot *slot = hdt_chan_flow_peek(lane->scatter_in, 0);
    size_t frames;

    if (!slot) {
        return 0;
    }
    frames = slot->flags & HDT_CHANNEL_FRAME_RAW ? raw_frames(op, n) : 1;
    for (size_t i = 1; i < frames; i++) {
        if (!hdt_chan_flow_peek(lane->scatter_in, i)) {
            return 0;
        }
    }
    return frames;
}

static void piece_refuse(struct hdt_channel *ch, unsigned p, const struct hdt_error *why)
{
    struct hdt_error err = *why;

    if (err.status == HDT_OK) {
        hdt_error_set(&err, HDT_EPROTO, "a frame has not the length of its piece");
    }
    hdt_error_prefix(&err, "cannot add up what rank %u (%s) sent", p, ch->members[p].text);
    hdt_chan_fail(ch, &err, true);
}

/* What rank p sent for this piece, added to the sum. */
static enum hdt_status piece_add(struct hdt_channel *ch, unsigned p, const struct hdt_request *op,
                                 size_t n, bool first, float *sum, struct hdt_error *err)
{
    const struct chan_numeric num = {.ctx = ch->codec_ctx, .scratch = ch->scratch};
    struct chan_lane *lane = &ch->lanes[p];
    const struct chan_slot *slot = hdt_chan_flow_peek(lane->scatter_in, 0);
    const size_t size = hdt_dtype_size(op->coll.type);
    const size_t frames = piece_arrived(lane, op, n);

    if (!hdt_piece_is_plain(&op->coll.codec) && !(slot->flags & HDT_CHANNEL_FRAME_RAW)) {
        float *into = first ? sum : ch->scratch;

        HDT_TRY(hdt_piece_decode(&num, &op->coll.codec, HDT_DTYPE_F32, slot->mem, slot->len, n,
                                 into, err));
        if (!first) {
            hdt_piece_add(HDT_DTYPE_F32, into, n, false, sum, NULL);
        }
        return HDT_OK;
    }
    for (size_t i = 0, at = 0; i < frames; i++, at += CHAN_FRAME_CAP / size) {
        const size_t len = n - at < CHAN_FRAME_CAP / size ? n - at : CHAN_FRAME_CAP / size;

        slot = hdt_chan_flow_peek(lane->scatter_in, i);
        if (slot->len != len * size) {
            return hdt_error_set(err, HDT_EPROTO, "%u bytes came for %zu elements of %s", slot->len,
                                 len, hdt_dtype_name(op->coll.type));
        }
        hdt_piece_add(op->coll.type, slot->mem, len, first, sum + at, ch->scratch);
    }
    return HDT_OK;
}

/* All members' parts of a piece in the order of ranks. HDT_AGAIN: the channel is over. */
static enum hdt_status piece_sum(struct hdt_channel *ch, const struct hdt_request *op, size_t at,
                                 size_t n, float *sum)
{
    struct hdt_error err = {0};

    for (unsigned p = 0; p < ch->n; p++) {
        if (p == ch->rank) {
            hdt_piece_add(op->coll.type, op->src + at * hdt_dtype_size(op->coll.type), n, p == 0,
                          sum, ch->scratch);
        } else if (piece_add(ch, p, op, n, p == 0, sum, &err) != HDT_OK) {
            piece_refuse(ch, p, &err);
            return HDT_AGAIN;
        }
    }
    if (op->coll.reduce == HDT_AVERAGE) {
        hdt_kernels_best()->divide((uint8_t *)sum, n, (float)ch->n);
    }
    return HDT_OK;
}

/* Slots that all gather flows have free. They share them: the same frames go to everybody. */
static uint32_t gather_room(const struct hdt_channel *ch)
{
    uint32_t least = UINT32_MAX;

    for (unsigned p = 0; p < ch->n; p++) {
        if (p != ch->rank) {
            const uint32_t room = hdt_chan_flow_room(ch->lanes[p].gather_out);

            least = room < least ? room : least;
        }
    }
    return least;
}

static uint8_t *gather_mem(struct hdt_channel *ch)
{
    for (unsigned p = 0; p < ch->n; p++) {
        if (p != ch->rank) {
            struct hdt_flow *flow = ch->lanes[p].gather_out;

            return hdt_chan_flow_slot(flow, flow->window.end)->mem;
        }
    }
    return NULL;
}

/* The frame at gather_mem, to everybody. */
static void gather_commit(struct hdt_channel *ch, struct chan_frame *frame)
{
    frame->xxh3 = XXH3_64bits(gather_mem(ch), frame->len);
    for (unsigned p = 0; p < ch->n; p++) {
        if (p != ch->rank) {
            struct hdt_flow *flow = ch->lanes[p].gather_out;
            struct chan_slot *slot = hdt_chan_flow_slot(flow, flow->window.end);

            slot->bytes = slot->mem;
            hdt_chan_flow_commit(flow, frame);
        }
    }
}

static void gather_commit_raw(struct hdt_channel *ch, const struct hdt_request *op,
                              const uint8_t *bytes, size_t len, uint8_t flags)
{
    for (size_t at = 0; at < len; at += CHAN_FRAME_CAP) {
        struct chan_frame frame = {.dtype = op->coll.type, .flags = flags};

        frame.len = len - at < CHAN_FRAME_CAP ? len - at : CHAN_FRAME_CAP;
        frame.raw_len = frame.len;
        memcpy(gather_mem(ch), bytes + at, frame.len);
        gather_commit(ch, &frame);
    }
}

/* The sum of a piece, rounded once, to everybody and to its place here. */
static void piece_spread(struct hdt_channel *ch, struct hdt_request *op, size_t at, size_t n,
                         float *sum)
{
    const size_t size = hdt_dtype_size(op->coll.type);
    struct hdt_codec_guard guard = {0};
    const struct chan_numeric num = {.ctx = ch->codec_ctx,
                                     .scratch = ch->scratch,
                                     .guard = &guard,
                                     .seed = piece_seed(ch, op, at, TO_ALL)};
    struct chan_frame frame = {.raw_len = n * size,
                               .dtype = hdt_piece_dtype(&op->coll.codec, op->coll.type)};
    uint8_t *dst = op->dst + at * size;
    uint8_t *mem = gather_mem(ch);

    if (!mem) { /* alone */
        hdt_piece_narrow(op->coll.type, sum, n, dst);
        return;
    }
    if (hdt_piece_is_plain(&op->coll.codec)) {
        frame.len = n * size;
        if ((uint8_t *)sum != mem) {
            hdt_piece_narrow(op->coll.type, sum, n, mem);
        }
        memcpy(dst, mem, frame.len);
        gather_commit(ch, &frame);
        return;
    }
    if (hdt_piece_encode(&num, &op->coll.codec, HDT_DTYPE_F32, sum, n, mem, &frame.len)) {
        enum hdt_status status =
            hdt_piece_decode(&num, &op->coll.codec, op->coll.type, mem, frame.len, n, dst, NULL);

        HDT_ASSERT(status == HDT_OK); /* we encoded it */
        gather_commit(ch, &frame);
    } else {
        hdt_piece_narrow(op->coll.type, sum, n, dst);
        gather_commit_raw(ch, op, dst, n * size, HDT_CHANNEL_FRAME_RAW);
    }
    coll_guard_add(ch, &guard);
}

static bool reduce_step(struct hdt_channel *ch)
{
    struct hdt_request *op = hdt_coll_at(ch, ch->gather_out.seq);
    const size_t idx = ch->gather_out.idx, pieces = hdt_coll_pieces(ch, op, ch->rank);
    size_t at, n, frames[HDT_CHANNEL_MEMBERS_MAX];
    float *sum = ch->sum;

    hdt_coll_piece(ch, op, ch->rank, idx, &at, &n);
    if (ch->n > 1 && gather_room(ch) < frames_wanted(op, n)) {
        return false;
    }
    for (unsigned p = 0; p < ch->n; p++) {
        struct chan_lane *lane = &ch->lanes[p];

        if (p != ch->rank && (lane->in.seq != op->coll.seq || lane->in.idx != 1 + idx ||
                              (frames[p] = piece_arrived(lane, op, n)) == 0)) {
            return false;
        }
    }
    if (op->coll.type == HDT_DTYPE_F32 && hdt_piece_is_plain(&op->coll.codec) && ch->n > 1) {
        sum = (float *)(void *)gather_mem(ch);
    }
    if (piece_sum(ch, op, at, n, sum) != HDT_OK) {
        return false;
    }
    piece_spread(ch, op, at, n, sum);
    for (unsigned p = 0; p < ch->n; p++) {
        for (size_t i = 0; p != ch->rank && i < frames[p]; i++) {
            hdt_chan_flow_take(ch->lanes[p].scatter_in);
        }
    }
    for (unsigned p = 0; p < ch->n; p++) {
        if (p != ch->rank) {
            hdt_coll_cursor_next(ch, &ch->lanes[p].in, op, 1 + pieces);
        }
    }
    hdt_coll_cursor_next(ch, &ch->gather_out, op, pieces);
    return true;
}

/* ---- gather: what we send to all, and what comes ---- */

static bool gather_out_step(struct hdt_channel *ch)
{
    struct hdt_request *op = hdt_coll_at(ch, ch->gather_out.seq);
    size_t at, n, pieces;

    if (!op) {
        return false;
    }
    pieces = hdt_coll_pieces(ch, op, ch->rank);
    if (pieces == 0) {
        hdt_coll_cursor_pass(ch, &ch->gather_out, op);
        return true;
    }
    if (op->coll.kind == COLL_ALLREDUCE) {
        return reduce_step(ch);
    }
    hdt_coll_piece(ch, op, ch->rank, ch->gather_out.idx, &at, &n);
    if (ch->n > 1 && gather_room(ch) == 0) {
        return false;
    }
    if (ch->n > 1) {
        gather_commit_raw(ch, op, op->src + at, n, 0);
    }
    hdt_coll_cursor_next(ch, &ch->gather_out, op, pieces);
    return true;
}

/* A frame of piece idx of rank p; *got: its elements. */
static enum hdt_status gather_read(struct hdt_channel *ch, const struct hdt_request *op,
                                   const struct chan_slot *slot, size_t at, size_t n, size_t *got,
                                   struct hdt_error *err)
{
    const struct chan_numeric num = {.ctx = ch->codec_ctx, .scratch = ch->scratch};
    const size_t size = hdt_dtype_size(op->coll.type);
    const struct hdt_codec_spec *codec = &op->coll.codec;

    *got = n;
    if (slot->flags & HDT_CHANNEL_FRAME_RAW) {
        codec = &hdt_piece_plain;
        *got = slot->len / size;
        if (*got == 0 || *got > n) {
            return hdt_error_set(err, HDT_EPROTO, "%u bytes came for %zu elements", slot->len, n);
        }
    }
    return hdt_piece_decode(&num, codec, op->coll.type, slot->mem, slot->len, *got,
                            op->dst + at * size, err);
}

static bool gather_in_step(struct hdt_channel *ch, unsigned p)
{
    struct chan_lane *lane = &ch->lanes[p];
    struct hdt_request *op = hdt_coll_at(ch, lane->gather.seq);
    size_t at, n, got, pieces = op ? hdt_coll_pieces(ch, op, p) : 0;
    const struct chan_slot *slot;
    struct hdt_error err = {0};

    if (op && pieces == 0) {
        hdt_coll_cursor_pass(ch, &lane->gather, op);
        return true;
    }
    if (!op || !(slot = hdt_chan_flow_peek(lane->gather_in, 0))) {
        return false;
    }
    hdt_coll_piece(ch, op, p, lane->gather.idx, &at, &n);
    if (gather_read(ch, op, slot, at + lane->gather.at, n - lane->gather.at, &got, &err) !=
        HDT_OK) {
        piece_refuse(ch, p, &err);
        return false;
    }
    hdt_chan_flow_take(lane->gather_in);
    lane->gather.at += got;
    hdt_coll_moved(op);
    if (lane->gather.at == n) {
        hdt_coll_cursor_next(ch, &lane->gather, op, pieces);
    }
    return true;
}

bool hdt_chan_coll_step(struct hdt_channel *ch)
{
    bool more = gather_out_step(ch);

    for (unsigned p = 0; p < ch->n && ch->phase != CHAN_OVER; p++) {
        if (p != ch->rank) {
            more = head_step(ch, p) || more;
            more = ch->phase != CHAN_OVER && (scatter_step(ch, p) || more);
            more = gather_in_step(ch, p) || more;
        }
    }
    return more && ch->phase != CHAN_OVER;
}
