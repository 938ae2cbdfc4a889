/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives.
 *
 * An all-reduce is a direct exchange of shards. The elements are split in as many shards as there
 * are members; each member sends the shard p of its tensor to rank p (scatter), rank p adds up what
 * came for its shard, and sends the sum to all (gather). Both ways are cut in pieces, and a piece
 * is reduced and sent on as soon as it has come from everybody, so that sums, codecs and both ways
 * overlap.
 *
 * Why not a ring: over a link with latency L and rate B, n members, S bytes,
 *
 *     direct  2 (n-1)/n S/B + 2 L          ring  2 (n-1)/n S/B + 2 (n-1) L
 *
 * Each member's link carries the same bytes, which is the least possible, and between sites L is
 * tens of milliseconds. For two members both are the same, for three the ring already waits four
 * latencies instead of two. A ring is better only where the link between some two members is much
 * worse than all others, and can be left out of it.
 *
 * Bits: rank p alone reduces its shard, adding in the order of ranks in f32, and all, itself too,
 * use what it sent, decoded. So neither time nor the cut into pieces decides any bit. Pieces begin
 * at multiples of 1024 elements, so that blocks of a codec are the same for every cut.
 *
 * A collective is a row of frames on each flow, in an order that all members know; where a flow is
 * (struct chan_cursor) says what its next frame is, and several collectives follow each other
 * without a pause. The first frame on the way there says what the sender takes it for: the size of
 * a tensor that differs between members is an error before the first value is used.
 */
#include "config.h"

#include "src/lib/chan.h"
#include "src/base/buf.h"
#include "src/base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GRAIN         ((size_t)1024)  /* shards and pieces begin at multiples of it */
#define PIECE_MIN     ((size_t)16384) /* elements: below, frames cost more than they bring */
#define PIECES_WANTED 8               /* of a shard: filling and draining takes a piece each */
#define HEAD_VERSION  2
#define HEAD_TEXT     (HDT_CODEC_SPEC_TEXT + 112) /* room of a head's text */
#define AT_CODEC      40                          /* of a head: struct hdt_codec_spec */

HDT_STATIC_ASSERT(AT_CODEC + sizeof(struct hdt_codec_spec) <= CHAN_HEAD_LEN, "it is in a head");

/* ---- shapes ---- */

static size_t pieces_of(size_t n, size_t piece)
{
    return (n + piece - 1) / piece;
}

/* Elements [*begin, *begin + *n) of the tensor are rank r's to reduce. */
static void shard_of(const struct hdt_channel *ch, size_t total, unsigned r, size_t *begin,
                     size_t *n)
{
    const size_t grains = pieces_of(total, GRAIN);
    const size_t lo = grains / ch->n * r + grains % ch->n * r / ch->n;
    const size_t hi = grains / ch->n * (r + 1) + grains % ch->n * (r + 1) / ch->n;
    const size_t end = hi * GRAIN < total ? hi * GRAIN : total;

    *begin = lo * GRAIN < total ? lo * GRAIN : total;
    *n = end - *begin;
}

size_t hdt_coll_pieces(const struct hdt_channel *ch, const struct hdt_request *op, unsigned r)
{
    size_t begin, n;

    if (op->coll.kind == COLL_BROADCAST) {
        return r == op->coll.root ? pieces_of(op->n, op->coll.piece) : 0;
    }
    if (op->coll.kind == COLL_BARRIER) {
        return 0;
    }
    shard_of(ch, op->n, r, &begin, &n);
    return pieces_of(n, op->coll.piece);
}

/* Piece idx of what rank r sends to all. */
void hdt_coll_piece(const struct hdt_channel *ch, const struct hdt_request *op, unsigned r,
                    size_t idx, size_t *at, size_t *n)
{
    size_t begin = 0, len = op->n;

    if (op->coll.kind == COLL_ALLREDUCE) {
        shard_of(ch, op->n, r, &begin, &len);
    }
    *at = begin + idx * op->coll.piece;
    *n = len - idx * op->coll.piece < op->coll.piece ? len - idx * op->coll.piece : op->coll.piece;
}

/* A multiple of GRAIN that fits a frame: all members come to the same. */
static size_t piece_choose(const struct hdt_channel *ch, const struct hdt_request *op)
{
    const size_t most = hdt_piece_max(&op->coll.codec, op->coll.type, CHAN_FRAME_CAP);
    const size_t shard = op->coll.kind == COLL_BROADCAST ? op->n : pieces_of(op->n, ch->n);
    size_t piece = pieces_of(shard, PIECES_WANTED);

    piece = (piece + GRAIN - 1) / GRAIN * GRAIN;
    piece = piece < PIECE_MIN ? PIECE_MIN : piece;
    return piece < most ? piece : most;
}

/* ---- heads ---- */

static void head_put(uint8_t *head, size_t at, uint64_t value, size_t len)
{
    memcpy(head + at, &value, len); /* little-endian machines only, as everywhere */
}

static uint64_t head_get(const uint8_t *head, size_t at, size_t len)
{
    uint64_t value = 0;

    memcpy(&value, head + at, len);
    return value;
}

static void head_write(struct hdt_request *op)
{
    struct chan_coll *coll = &op->coll;

    memcpy(coll->head, "HDTC", 4);
    head_put(coll->head, 4, HEAD_VERSION, 2);
    head_put(coll->head, 6, coll->kind, 1);
    head_put(coll->head, 7, coll->reduce, 1);
    head_put(coll->head, 8, coll->type, 1);
    head_put(coll->head, 10, coll->root, 1);
    head_put(coll->head, 16, coll->seq, 8);
    head_put(coll->head, 24, op->n, 8);
    head_put(coll->head, 32, coll->piece, 8);
    memcpy(coll->head + AT_CODEC, &coll->codec, sizeof(coll->codec));
}

/* "collective 7, all-reduce (sum) of 1024 f32, codec int8" */
static void head_text(const uint8_t *head, char *text, size_t cap)
{
    static const char *const kinds[] = {"all-reduce", "broadcast", "barrier"};
    const unsigned kind = (unsigned)head_get(head, 6, 1);
    const unsigned long long seq = head_get(head, 16, 8), n = head_get(head, 24, 8);
    char codec[HDT_CODEC_SPEC_TEXT];
    struct hdt_codec_spec spec;

    memcpy(&spec, head + AT_CODEC, sizeof(spec));
    if (kind == COLL_ALLREDUCE) {
        snprintf(text, cap, "collective %llu, all-reduce (%s) of %llu %s, codec %s", seq,
                 head_get(head, 7, 1) == HDT_AVERAGE ? "average" : "sum", n,
                 hdt_dtype_name((enum hdt_dtype)head_get(head, 8, 1)),
                 hdt_codec_spec_format(&spec, codec));
    } else if (kind == COLL_BROADCAST) {
        snprintf(text, cap, "collective %llu, broadcast of %llu bytes of rank %llu", seq, n,
                 (unsigned long long)head_get(head, 10, 1));
    } else {
        snprintf(text, cap, "collective %llu, %s", seq, kind < 3 ? kinds[kind] : "?");
    }
}

void hdt_coll_head_refuse(struct hdt_channel *ch, const struct hdt_request *op, unsigned rank,
                          const struct chan_slot *slot)
{
    char ours[HEAD_TEXT], theirs[HEAD_TEXT] = "something else";
    struct hdt_error err;

    head_text(op->coll.head, ours, sizeof(ours));
    if (slot->len == CHAN_HEAD_LEN && memcmp(slot->mem, "HDTC", 4) == 0) {
        const unsigned version = (unsigned)head_get(slot->mem, 4, 2);

        if (version == HEAD_VERSION) {
            head_text(slot->mem, theirs, sizeof(theirs));
        } else {
            snprintf(theirs, sizeof(theirs), "collectives of version %u, not %u", version,
                     HEAD_VERSION);
        }
    }
    hdt_error_set(&err, HDT_EINVAL,
                  "members of channel '%s' do not call the same: rank %u %s; rank %u (%s) %s",
                  ch->name, ch->rank, ours, rank, ch->members[rank].text, theirs);
    hdt_error_hint(&err, "all members call the same collectives in the same order, with the same "
                         "number of elements, type, reduction and codec");
    hdt_chan_fail(ch, &err, true);
}

/* ---- which collective, which frame ---- */

struct hdt_request *hdt_coll_at(const struct hdt_channel *ch, uint64_t seq)
{
    struct hdt_request *op;

    DL_FOREACH(ch->collectives, op)
    {
        if (op->coll.seq == seq) {
            return op;
        }
    }
    return NULL;
}

/* All is there; what was sent without a copy is taken, too. */
static bool op_complete(struct hdt_channel *ch, struct hdt_request *op)
{
    for (unsigned p = 0; op->coll.is_zero_copy && p < ch->n; p++) {
        if (p != ch->rank && ch->lanes[p].scatter_out->window.acked < op->coll.out_end[p]) {
            return false;
        }
    }
    DL_DELETE(ch->collectives, op);
    pthread_mutex_lock(&ch->lock);
    ch->stats.n_collectives++;
    pthread_mutex_unlock(&ch->lock);
    hdt_chan_request_done(op, op->n, NULL);
    return true;
}

void hdt_chan_coll_acked(struct hdt_channel *ch)
{
    struct hdt_request *op, *next;

    DL_FOREACH_SAFE(ch->collectives, op, next)
    {
        if (op->coll.n_pending == 0) {
            op_complete(ch, op);
        }
    }
}

void hdt_coll_moved(struct hdt_request *op)
{
    op->moved_us = hdt_clock_now_us();
}

/* The cursor is through with a collective. */
void hdt_coll_cursor_pass(struct hdt_channel *ch, struct chan_cursor *cursor,
                          struct hdt_request *op)
{
    *cursor = (struct chan_cursor){.seq = cursor->seq + 1};
    HDT_ASSERT(op->coll.n_pending > 0);
    if (--op->coll.n_pending == 0) {
        op_complete(ch, op);
    }
}

void hdt_coll_cursor_next(struct hdt_channel *ch, struct chan_cursor *cursor,
                          struct hdt_request *op, size_t end)
{
    hdt_coll_moved(op);
    cursor->at = 0;
    if (++cursor->idx >= end) {
        hdt_coll_cursor_pass(ch, cursor, op);
    }
}

/* ---- life ---- */

size_t hdt_chan_coll_bytes(struct hdt_channel *ch, size_t window_bytes)
{
    const size_t others = ch->n - 1;
    size_t depth = others > 0 ? window_bytes / others / CHAN_FRAME_CAP : 0;

    depth = depth < CHAN_DEPTH_MIN ? CHAN_DEPTH_MIN : depth;
    ch->depth = depth > 4096 ? 4096 : (uint32_t)depth;
    return others > 0 ? (3 * others + 1) * ch->depth * CHAN_FRAME_CAP : 0;
}

/* The flows that collectives have with rank p. */
static enum hdt_status lane_init(struct hdt_channel *ch, unsigned p, const size_t **shared,
                                 struct hdt_error *err)
{
    struct chan_lane *lane = &ch->lanes[p];
    struct chan_flow_spec spec = {.peer = p,
                                  .prio = ch->prio,
                                  .type = HDT_DTYPE_NONE,
                                  .codec = ch->codec,
                                  .depth = ch->depth,
                                  .frame_cap = CHAN_FRAME_CAP};

    spec.tag = HDT_CHANNEL_TAG_SCATTER;
    spec.is_src = true;
    HDT_TRY(hdt_chan_flow_new(ch, &spec, &lane->scatter_out, err));
    hdt_chan_flow_add(ch, lane->scatter_out);
    spec.is_src = false;
    HDT_TRY(hdt_chan_flow_new(ch, &spec, &lane->scatter_in, err));
    hdt_chan_flow_add(ch, lane->scatter_in);
    spec.tag = HDT_CHANNEL_TAG_GATHER;
    HDT_TRY(hdt_chan_flow_new(ch, &spec, &lane->gather_in, err));
    hdt_chan_flow_add(ch, lane->gather_in);
    spec.is_src = true;
    spec.pool_offset = *shared;
    HDT_TRY(hdt_chan_flow_new(ch, &spec, &lane->gather_out, err));
    hdt_chan_flow_add(ch, lane->gather_out);
    *shared = &lane->gather_out->pool_offset;
    return HDT_OK;
}

enum hdt_status hdt_chan_coll_init(struct hdt_channel *ch, struct hdt_error *err)
{
    const size_t *shared = NULL;

    ch->sum = hdt_malloc(CHAN_PIECE_MAX * sizeof(float));
    ch->scratch = hdt_malloc(CHAN_PIECE_MAX * sizeof(float));
    for (unsigned p = 0; p < ch->n; p++) {
        if (p != ch->rank) {
            HDT_TRY(lane_init(ch, p, &shared, err));
        }
    }
    return hdt_codec_ctx_new(0, &ch->codec_ctx, err);
}

void hdt_chan_coll_release(struct hdt_channel *ch)
{
    hdt_codec_ctx_free(ch->codec_ctx);
    free(ch->sum);
    free(ch->scratch);
}

void hdt_chan_coll_begin(struct hdt_channel *ch, struct hdt_request *op)
{
    op->coll.n_pending = 3 * (ch->n - 1) + 1;
    head_write(op);
    DL_APPEND(ch->collectives, op);
}

void hdt_chan_coll_describe(const struct hdt_channel *ch, char *text, size_t cap, unsigned *peer)
{
    const struct hdt_request *op = ch->collectives;
    char what[HEAD_TEXT];

    head_text(op->coll.head, what, sizeof(what));
    *peer = ch->rank == 0 ? ch->n - 1 : 0;
    for (unsigned p = 0; p < ch->n; p++) {
        const struct chan_lane *lane = &ch->lanes[p];

        if (p != ch->rank && (lane->in.seq == op->coll.seq || lane->gather.seq == op->coll.seq ||
                              lane->out.seq == op->coll.seq)) {
            *peer = p;
            snprintf(text, cap, "%s, %s rank %u (%s)", what,
                     lane->in.seq == op->coll.seq && lane->in.idx == 0 ? "to be called by"
                     : lane->in.seq == op->coll.seq                    ? "for the values of"
                     : lane->gather.seq == op->coll.seq                ? "for the sums of"
                                                                       : "to be taken by",
                     p, ch->members[p].text);
            return;
        }
    }
    snprintf(text, cap, "%s, to be taken by the others", what);
}

/* ---- public ---- */

static enum hdt_err coll_post(struct hdt_request *op, struct hdt_request **request,
                              struct hdt_error_info *error)
{
    struct hdt_error err = {0};
    enum hdt_status status;

    op->coll.piece = piece_choose(op->channel, op);
    status = hdt_chan_request_post(op, &err);
    if (status != HDT_OK) {
        return hdt_lib_failure(status, &err, error);
    }
    *request = op;
    return HDT_ERR_NONE;
}

static enum hdt_status allreduce_check(const struct hdt_allreduce_conf *conf, const void *src,
                                       const void *dst, size_t n, struct hdt_error *err)
{
    if (conf->type != HDT_TYPE_F32 && conf->type != HDT_TYPE_BF16 && conf->type != HDT_TYPE_F16) {
        hdt_error_set(err, HDT_EINVAL, "cannot add up elements of %s",
                      hdt_dtype_name((enum hdt_dtype)conf->type));
        hdt_error_hint(err, "one of f32, bf16, f16");
        return HDT_EINVAL;
    }
    if (conf->reduce != HDT_SUM && conf->reduce != HDT_AVERAGE) {
        return hdt_error_set(err, HDT_EINVAL, "%d is no reduction", conf->reduce);
    }
    if (n > TENSOR_BYTES_MAX / hdt_dtype_size((enum hdt_dtype)conf->type) ||
        (n > 0 && (!src || !dst))) {
        return hdt_error_set(err, HDT_EINVAL, "cannot add up %zu elements at %p to %p", n, src,
                             dst);
    }
    return HDT_OK;
}

static enum hdt_status allreduce_codec(const struct hdt_allreduce_conf *conf,
                                       struct hdt_codec_spec *codec, struct hdt_error *err)
{
    HDT_TRY(hdt_piece_codec(conf->codec, (enum hdt_dtype)conf->type, codec, err));
    if (hdt_codec_spec_has_state(codec)) {
        hdt_error_set(err, HDT_EINVAL, "codec %s is not for collectives", conf->codec);
        hdt_error_hint(err, "what it leaves out of one tensor it sends with the next one of the "
                            "same flow (hdt_flow_open), which a collective is not part of");
        return HDT_EINVAL;
    }
    if (codec->gateway != HDT_CODEC_NONE) {
        hdt_error_set(err, HDT_EINVAL, "codec %s is not for one collective", conf->codec);
        hdt_error_hint(err, "set lossless in the conf of the channel: gateways then compress all "
                            "that its collectives carry");
        return HDT_EINVAL;
    }
    return HDT_OK;
}

#pragma GCC visibility push(default)

enum hdt_err hdt_iallreduce(struct hdt_channel *ch, const void *src, void *dst, size_t n,
                            const struct hdt_allreduce_conf *given, struct hdt_request **request,
                            struct hdt_error_info *error)
{
    const struct hdt_allreduce_conf usual = HDT_ALLREDUCE_CONF_INIT;
    struct hdt_codec_spec codec;
    struct hdt_allreduce_conf conf;
    struct hdt_error err = {0};
    struct hdt_request *op;

    *request = NULL;
    if (hdt_lib_conf_read(given ? given : &usual, &conf, sizeof(conf),
                          "struct hdt_allreduce_conf conf = HDT_ALLREDUCE_CONF_INIT;",
                          &err) != HDT_OK ||
        allreduce_check(&conf, src, dst, n, &err) != HDT_OK ||
        allreduce_codec(&conf, &codec, &err) != HDT_OK) {
        return hdt_lib_failure(err.status, &err, error);
    }
    op = hdt_chan_request_new(ch, REQUEST_COLLECTIVE);
    op->src = src;
    op->dst = dst;
    op->n = n;
    op->coll.kind = COLL_ALLREDUCE;
    op->coll.type = (enum hdt_dtype)conf.type;
    op->coll.reduce = (enum hdt_reduce)conf.reduce;
    op->coll.codec = codec;
    pthread_mutex_lock(&ch->lock);
    op->coll.is_zero_copy =
        n > 0 && ch->n > 1 && hdt_piece_is_plain(&codec) &&
        hdt_chan_mem_has(ch, src, n * hdt_dtype_size((enum hdt_dtype)conf.type));
    pthread_mutex_unlock(&ch->lock);
    return coll_post(op, request, error);
}

enum hdt_err hdt_allreduce(struct hdt_channel *ch, const void *src, void *dst, size_t n,
                           const struct hdt_allreduce_conf *conf, struct hdt_error_info *error)
{
    struct hdt_request *request;
    enum hdt_err code = hdt_iallreduce(ch, src, dst, n, conf, &request, error);

    return code == HDT_ERR_NONE ? hdt_wait(&request, NULL, error) : code;
}

enum hdt_err hdt_ibroadcast(struct hdt_channel *ch, void *data, size_t bytes, int root,
                            struct hdt_request **request, struct hdt_error_info *error)
{
    struct hdt_error err = {0};
    struct hdt_request *op;

    *request = NULL;
    if (root < 0 || root >= (int)ch->n || bytes > TENSOR_BYTES_MAX || (bytes > 0 && !data)) {
        hdt_error_set(&err, HDT_EINVAL, "cannot broadcast %zu bytes at %p of rank %d of %u", bytes,
                      data, root, ch->n);
        return hdt_lib_failure(HDT_EINVAL, &err, error);
    }
    op = hdt_chan_request_new(ch, REQUEST_COLLECTIVE);
    op->src = data;
    op->dst = data;
    op->n = bytes;
    op->coll.kind = COLL_BROADCAST;
    op->coll.type = HDT_DTYPE_NONE;
    op->coll.root = (unsigned)root;
    return coll_post(op, request, error);
}

enum hdt_err hdt_broadcast(struct hdt_channel *ch, void *data, size_t bytes, int root,
                           struct hdt_error_info *error)
{
    struct hdt_request *request;
    enum hdt_err code = hdt_ibroadcast(ch, data, bytes, root, &request, error);

    return code == HDT_ERR_NONE ? hdt_wait(&request, NULL, error) : code;
}

enum hdt_err hdt_barrier(struct hdt_channel *ch, struct hdt_error_info *error)
{
    struct hdt_request *op = hdt_chan_request_new(ch, REQUEST_COLLECTIVE), *request = NULL;
    enum hdt_err code;

    op->coll.kind = COLL_BARRIER;
    op->coll.type = HDT_DTYPE_NONE;
    code = coll_post(op, &request, error);
    return code == HDT_ERR_NONE ? hdt_wait(&request, NULL, error) : code;
}

#pragma GCC visibility pop
