/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests: tensors that go over one flow, and waiting for whatever was begun.
 *
 * A tensor is cut into frames, the last of which says so; the receiving end learns its length from
 * them. The codec of a flow works on each frame by itself, so that coding overlaps with the
 * transfer.
 */
#include "config.h"

#include "src/lib/chan.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "compress/codec_state.h"

#include <stdlib.h>
#include <string.h>

/* ---- life ---- */

struct hdt_request *hdt_chan_request_new(struct hdt_channel *ch, enum chan_request_kind kind)
{
    struct hdt_request *request = hdt_calloc(1, sizeof(*request));

    request->channel = ch;
    request->kind = kind;
    request->moved_us = hdt_clock_now_us();
    return request;
}

enum hdt_status hdt_chan_request_post(struct hdt_request *request, struct hdt_error *err)
{
    struct hdt_channel *ch = request->channel;
    enum hdt_status status = HDT_OK;

    pthread_mutex_lock(&ch->lock);
    if (ch->phase == CHAN_OVER) {
        *err = ch->why;
        status = err->status;
    } else if (request->flow && request->flow->is_closed && request->kind != REQUEST_FLUSH) {
        status = hdt_error_set(err, HDT_EINVAL, "the flow is closed");
    } else {
        request->coll.seq = request->kind == REQUEST_COLLECTIVE ? ch->next_coll++ : 0;
        DL_APPEND2(ch->all, request, all_prev, all_next);
        if (ch->arrived_last) {
            ch->arrived_last->new_next = request;
        } else {
            ch->arrived = request;
        }
        ch->arrived_last = request;
        hdt_chan_post(ch);
    }
    pthread_mutex_unlock(&ch->lock);
    if (status != HDT_OK) {
        free(request);
    }
    return status;
}

void hdt_chan_request_done(struct hdt_request *request, size_t result, const struct hdt_error *err)
{
    struct hdt_channel *ch = request->channel;

    pthread_mutex_lock(&ch->lock);
    request->is_done = true;
    request->result = result;
    if (err) {
        request->err = *err;
    }
    pthread_cond_broadcast(&ch->changed);
    pthread_mutex_unlock(&ch->lock);
}

static void queue_done(struct hdt_flow *flow, size_t result, const struct hdt_error *err)
{
    struct hdt_request *request = flow->queue;

    DL_DELETE(flow->queue, request);
    hdt_chan_request_done(request, result, err);
}

/* ---- sending ---- */

static void flow_guard_add(struct hdt_flow *flow, const struct hdt_codec_guard *guard)
{
    pthread_mutex_lock(&flow->channel->lock);
    hdt_codec_guard_add(&flow->guard, guard);
    pthread_mutex_unlock(&flow->channel->lock);
}

/* `n` elements that the codec does not carry, as they are, in as many frames as it takes. */
static void send_raw(struct hdt_flow *flow, const uint8_t *src, size_t n, uint8_t last)
{
    const size_t size = hdt_dtype_size(flow->type), bytes = n * size;

    for (size_t at = 0; at < bytes; at += flow->frame_cap) {
        struct chan_slot *slot = hdt_chan_flow_slot(flow, flow->window.end);
        struct chan_frame frame = {.dtype = flow->type, .flags = HDT_CHANNEL_FRAME_RAW};

        frame.len = bytes - at < flow->frame_cap ? bytes - at : flow->frame_cap;
        frame.raw_len = frame.len;
        frame.flags |= at + frame.len == bytes ? last : 0;
        slot->bytes = slot->mem;
        memcpy(slot->mem, src + at, frame.len);
        hdt_chan_flow_commit(flow, &frame);
    }
}

/* One frame of the tensor, or a few that are not coded. */
static void send_piece(struct hdt_flow *flow, struct hdt_request *request, size_t n)
{
    const size_t size = hdt_dtype_size(flow->type);
    const uint8_t *src = request->src + request->done * size;
    const uint8_t last = request->done + n == request->n ? HDT_CHANNEL_FRAME_LAST : 0;
    struct chan_slot *slot = hdt_chan_flow_slot(flow, flow->window.end);
    struct hdt_codec_guard guard = {0};
    const struct chan_numeric num = {
        .ctx = flow->channel->codec_ctx,
        .scratch = flow->channel->scratch,
        .guard = &guard,
        .state = flow->feedback ? flow->feedback[request->done / flow->piece] : NULL,
        .seed = (uint64_t)flow->number << 32 ^ flow->window.end};
    struct chan_frame frame = {
        .raw_len = n * size, .dtype = hdt_piece_dtype(&flow->codec, flow->type), .flags = last};
    bool is_coded = true;

    slot->bytes = slot->mem;
    if (request->is_zero_copy) {
        slot->bytes = src;
        frame.len = n * size;
    } else {
        is_coded = hdt_piece_encode(&num, &flow->codec, flow->type, src, n, slot->mem, &frame.len);
    }
    if (is_coded) {
        hdt_chan_flow_commit(flow, &frame);
    } else {
        send_raw(flow, src, n, last);
    }
    flow_guard_add(flow, &guard);
    request->done += n;
}

static void send_empty(struct hdt_flow *flow)
{
    const struct chan_frame frame = {.len = 1,
                                     .dtype = HDT_DTYPE_NONE,
                                     .flags = HDT_CHANNEL_FRAME_EMPTY | HDT_CHANNEL_FRAME_LAST};
    struct chan_slot *slot = hdt_chan_flow_slot(flow, flow->window.end);

    slot->mem[0] = 0;
    slot->bytes = slot->mem;
    hdt_chan_flow_commit(flow, &frame);
}

static void send_handed_over(struct hdt_flow *flow, struct hdt_request *request)
{
    pthread_mutex_lock(&flow->channel->lock);
    flow->stats.n_tensors++;
    pthread_mutex_unlock(&flow->channel->lock);
    if (!request->is_zero_copy) {
        queue_done(flow, request->n, NULL);
        return;
    }
    request->last_seq = flow->window.end - 1;
    DL_DELETE(flow->queue, request);
    DL_APPEND(flow->unacked, request);
    hdt_chan_requests_acked(flow);
}

static bool send_step(struct hdt_flow *flow)
{
    struct hdt_request *request = flow->queue;
    size_t n, frames = 1;

    if (request->kind == REQUEST_FLUSH) {
        if (flow->window.acked == flow->window.end && !flow->unacked) {
            queue_done(flow, 0, NULL);
        }
        return false;
    }
    n = request->n - request->done;
    n = n < flow->piece ? n : flow->piece;
    if (!hdt_piece_is_plain(&flow->codec)) {
        frames = (n * hdt_dtype_size(flow->type) + flow->frame_cap - 1) / flow->frame_cap;
    }
    if (hdt_chan_flow_room(flow) < (frames > 0 ? frames : 1)) {
        return false;
    }
    request->moved_us = hdt_clock_now_us();
    if (request->n == 0) {
        send_empty(flow);
    } else {
        send_piece(flow, request, n);
    }
    if (request->done == request->n) {
        send_handed_over(flow, request);
    }
    return true;
}

void hdt_chan_requests_acked(struct hdt_flow *flow)
{
    struct hdt_request *request;

    while ((request = flow->unacked) && flow->window.acked > request->last_seq) {
        DL_DELETE(flow->unacked, request);
        hdt_chan_request_done(request, request->n, NULL);
    }
}

/* ---- receiving ---- */

/* Elements in a frame; SIZE_MAX: it is none of this flow. */
static size_t frame_elements(const struct hdt_flow *flow, const struct chan_slot *slot)
{
    const size_t size = hdt_dtype_size(flow->type);
    const size_t n = slot->raw_len / size;

    if (slot->flags & HDT_CHANNEL_FRAME_EMPTY) {
        return 0;
    }
    if (hdt_piece_is_plain(&flow->codec) || (slot->flags & HDT_CHANNEL_FRAME_RAW)) {
        return slot->len % size == 0 ? slot->len / size : SIZE_MAX;
    }
    /* The length of a coded frame alone does not tell: a byte may hold two values, or none. */
    return slot->raw_len % size == 0 && n > 0 && n <= flow->piece &&
                   hdt_piece_bytes(&flow->codec, flow->type, n) == slot->len
               ? n
               : SIZE_MAX;
}

static enum hdt_status frame_read(struct hdt_flow *flow, const struct chan_slot *slot, size_t n,
                                  uint8_t *dst, struct hdt_error *err)
{
    const struct chan_numeric num = {.ctx = flow->channel->codec_ctx,
                                     .scratch = flow->channel->scratch};
    const struct hdt_codec_spec *codec =
        slot->flags & HDT_CHANNEL_FRAME_RAW ? &hdt_piece_plain : &flow->codec;

    return n > 0 ? hdt_piece_decode(&num, codec, flow->type, slot->mem, slot->len, n, dst, err)
                 : HDT_OK;
}

static void recv_complete(struct hdt_flow *flow, struct hdt_request *request)
{
    struct hdt_error err;

    pthread_mutex_lock(&flow->channel->lock);
    flow->stats.n_tensors++;
    pthread_mutex_unlock(&flow->channel->lock);
    if (request->done <= request->n) {
        queue_done(flow, request->done, NULL);
        return;
    }
    hdt_error_set(&err, HDT_EINVAL,
                  "a tensor of %zu elements came from rank %u, where there is room for %zu",
                  request->done, flow->peer, request->n);
    hdt_error_hint(&err, "receive as many elements as are sent; the next tensor is not affected");
    queue_done(flow, request->done, &err);
}

static bool recv_step(struct hdt_flow *flow)
{
    struct hdt_request *request = flow->queue;
    struct hdt_error err = {0};
    struct chan_slot *slot;
    bool is_last;
    size_t n;

    if (request->kind == REQUEST_FLUSH) {
        queue_done(flow, 0, NULL);
        return true;
    }
    slot = hdt_chan_flow_peek(flow, 0);
    if (!slot) {
        return false;
    }
    n = frame_elements(flow, slot);
    is_last = slot->flags & HDT_CHANNEL_FRAME_LAST;
    if (n == SIZE_MAX ||
        (request->done + n <= request->n &&
         frame_read(flow, slot, n, request->dst + request->done * hdt_dtype_size(flow->type),
                    &err) != HDT_OK)) {
        hdt_error_set(&err, HDT_EPROTO, "rank %u sent a frame of %u bytes that is no tensor of %s",
                      flow->peer, slot->len, hdt_dtype_name(flow->type));
        hdt_chan_fail(flow->channel, &err, true);
        return false;
    }
    request->moved_us = hdt_clock_now_us();
    request->done += n;
    hdt_chan_flow_take(flow);
    if (is_last) {
        recv_complete(flow, request);
    }
    return true;
}

/* ---- the thread ---- */

/* Its other end is gone: what has come can still be received. */
static void flow_fail_closed(struct hdt_flow *flow)
{
    struct hdt_channel *ch = flow->channel;
    struct hdt_error err;

    if (!flow->window.is_src && hdt_chan_flow_ready(flow) > 0) {
        return;
    }
    hdt_error_set(&err, HDT_ERANK, "rank %u (%s) has closed channel '%s'", flow->peer,
                  ch->members[flow->peer].text, ch->name);
    while (flow->unacked) {
        struct hdt_request *request = flow->unacked;

        DL_DELETE(flow->unacked, request);
        hdt_chan_request_done(request, 0, &err);
    }
    while (flow->queue) {
        const bool is_taken =
            flow->queue->kind == REQUEST_FLUSH && flow->window.acked == flow->window.end;

        queue_done(flow, 0, is_taken ? NULL : &err);
    }
}

bool hdt_chan_requests_step(struct hdt_channel *ch)
{
    struct hdt_flow *flow;
    bool more = false;

    for (flow = ch->flows; flow; flow = flow->next) {
        if (ch->closed[flow->peer] && !flow->is_collective) {
            flow_fail_closed(flow);
        }
        if (flow->queue && ch->phase != CHAN_OVER) {
            more = (flow->window.is_src ? send_step(flow) : recv_step(flow)) || more;
        }
    }
    return more;
}

/* ---- public ---- */

static enum hdt_err request_begin(struct hdt_request *made, struct hdt_request **request,
                                  struct hdt_error_info *error)
{
    struct hdt_error err = {0};
    enum hdt_status status = hdt_chan_request_post(made, &err);

    if (status != HDT_OK) {
        return hdt_lib_failure(status, &err, error);
    }
    *request = made;
    return HDT_ERR_NONE;
}

static enum hdt_status transfer_check(const struct hdt_flow *flow, bool is_src, const void *data,
                                      size_t n, struct hdt_error *err)
{
    if (flow->window.is_src != is_src) {
        return hdt_error_set(err, HDT_EINVAL, "cannot %s over a flow that was opened to %s",
                             is_src ? "send" : "receive", flow->window.is_src ? "send" : "receive");
    }
    if (n > TENSOR_BYTES_MAX / hdt_dtype_size(flow->type)) {
        return hdt_error_set(err, HDT_EINVAL, "a tensor of %zu elements is too long", n);
    }
    if (!data && n > 0) {
        return hdt_error_set(err, HDT_EINVAL, "there is no memory for %zu elements", n);
    }
    return HDT_OK;
}

static enum hdt_status feedback_new(struct hdt_flow *flow, size_t n, struct hdt_error *err)
{
    const size_t n_pieces = (n + flow->piece - 1) / flow->piece;
    struct hdt_codec_state **states = hdt_calloc(n_pieces, sizeof(struct hdt_codec_state *));
    size_t i = 0;
    enum hdt_status status = HDT_OK;

    for (; i < n_pieces && status == HDT_OK; i++) {
        const size_t left = n - i * flow->piece;

        status = hdt_codec_state_new(&flow->codec, left < flow->piece ? left : flow->piece, 0,
                                     &states[i], err);
    }
    if (status != HDT_OK) {
        while (i > 0) {
            hdt_codec_state_free(states[--i]);
        }
        free(states);
        return status;
    }
    flow->feedback = states;
    flow->n_feedback = n_pieces;
    flow->feedback_n = n;
    return HDT_OK;
}

/* What a tensor left out goes with the next one, value by value. The lock is held. */
static enum hdt_status feedback_check(struct hdt_flow *flow, size_t n, struct hdt_error *err)
{
    char name[HDT_CODEC_SPEC_TEXT];

    if (n == 0 || !hdt_codec_spec_has_state(&flow->codec)) {
        return HDT_OK;
    }
    if (!flow->feedback) {
        return feedback_new(flow, n, err);
    }
    if (n != flow->feedback_n) {
        hdt_error_set(err, HDT_EINVAL,
                      "cannot send %zu elements by codec %s: the first tensor of the flow had %zu",
                      n, hdt_codec_spec_format(&flow->codec, name), flow->feedback_n);
        hdt_error_hint(err,
                       "what this codec leaves out of a tensor goes with the next one, so that "
                       "all are of one size; open a flow for each");
        return HDT_EINVAL;
    }
    return HDT_OK;
}

#pragma GCC visibility push(default)

enum hdt_err hdt_isend(struct hdt_flow *flow, const void *data, size_t n,
                       struct hdt_request **request, struct hdt_error_info *error)
{
    struct hdt_channel *ch = flow->channel;
    struct hdt_request *made;
    struct hdt_error err = {0};
    enum hdt_status status;

    *request = NULL;
    status = transfer_check(flow, true, data, n, &err);
    if (status == HDT_OK) {
        pthread_mutex_lock(&ch->lock);
        status = feedback_check(flow, n, &err);
        pthread_mutex_unlock(&ch->lock);
    }
    if (status != HDT_OK) {
        return hdt_lib_failure(status, &err, error);
    }
    made = hdt_chan_request_new(ch, REQUEST_SEND);
    made->flow = flow;
    made->src = data;
    made->n = n;
    pthread_mutex_lock(&ch->lock);
    made->is_zero_copy = n > 0 && hdt_piece_is_plain(&flow->codec) &&
                         hdt_chan_mem_has(ch, data, n * hdt_dtype_size(flow->type));
    pthread_mutex_unlock(&ch->lock);
    return request_begin(made, request, error);
}

enum hdt_err hdt_irecv(struct hdt_flow *flow, void *data, size_t n_max,
                       struct hdt_request **request, struct hdt_error_info *error)
{
    struct hdt_request *made;
    struct hdt_error err = {0};

    *request = NULL;
    if (transfer_check(flow, false, data, n_max, &err) != HDT_OK) {
        return hdt_lib_failure(err.status, &err, error);
    }
    made = hdt_chan_request_new(flow->channel, REQUEST_RECV);
    made->flow = flow;
    made->dst = data;
    made->n = n_max;
    return request_begin(made, request, error);
}

/* The lock is held; it is done. */
static enum hdt_err request_collect(struct hdt_request **request, size_t *n,
                                    struct hdt_error_info *error)
{
    struct hdt_request *r = *request;
    enum hdt_err code = HDT_ERR_NONE;

    DL_DELETE2(r->channel->all, r, all_prev, all_next);
    if (n) {
        *n = r->result;
    }
    if (r->err.status != HDT_OK) {
        code = hdt_lib_failure(r->err.status, &r->err, error);
    }
    free(r);
    *request = NULL;
    return code;
}

enum hdt_err hdt_test(struct hdt_request **request, int *done, size_t *n,
                      struct hdt_error_info *error)
{
    enum hdt_err code = HDT_ERR_NONE;
    struct hdt_channel *ch;

    *done = 1;
    if (!*request) {
        return HDT_ERR_NONE;
    }
    ch = (*request)->channel;
    pthread_mutex_lock(&ch->lock);
    *done = (*request)->is_done;
    if (*done) {
        code = request_collect(request, n, error);
    }
    pthread_mutex_unlock(&ch->lock);
    return code;
}

enum hdt_err hdt_wait(struct hdt_request **request, size_t *n, struct hdt_error_info *error)
{
    struct hdt_channel *ch;
    enum hdt_err code;

    if (!*request) {
        return HDT_ERR_NONE;
    }
    ch = (*request)->channel;
    pthread_mutex_lock(&ch->lock);
    while (!(*request)->is_done) {
        pthread_cond_wait(&ch->changed, &ch->lock); /* the channel's thread has the deadlines */
    }
    code = request_collect(request, n, error);
    pthread_mutex_unlock(&ch->lock);
    return code;
}

/* ---- flows ---- */

static enum hdt_status flow_conf_check(const struct hdt_channel *ch,
                                       const struct hdt_flow_conf *conf,
                                       struct chan_flow_spec *spec, struct hdt_error *err)
{
    size_t window = conf->window_bytes ? conf->window_bytes : (size_t)4 << 20;

    if (conf->peer < 0 || conf->peer >= (int)ch->n || conf->peer == (int)ch->rank) {
        return hdt_error_set(err, HDT_EINVAL, "there is no flow from rank %u to rank %d of %u",
                             ch->rank, conf->peer, ch->n);
    }
    if (conf->tag > HDT_CHANNEL_TAG_MAX || conf->direction < 0 || conf->direction > 1 ||
        conf->priority < 0 || conf->priority > 1 || conf->type < 0 ||
        conf->type >= HDT_DTYPE_COUNT) {
        return hdt_error_set(err, HDT_EINVAL,
                             "cannot open a flow with tag %u, direction %d, priority %d, type %d",
                             conf->tag, conf->direction, conf->priority, conf->type);
    }
    HDT_TRY(hdt_piece_codec(conf->codec, (enum hdt_dtype)conf->type, &spec->codec, err));
    window = window < CHAN_DEPTH_MIN * CHAN_FRAME_CAP ? CHAN_DEPTH_MIN * CHAN_FRAME_CAP : window;
    if (window / CHAN_FRAME_CAP > 4096) {
        return hdt_error_set(err, HDT_EINVAL, "a window of %zu bytes is above 2 GiB", window);
    }
    spec->peer = (unsigned)conf->peer;
    spec->tag = conf->tag;
    spec->is_src = conf->direction == HDT_SEND;
    spec->prio = conf->priority == HDT_PRIORITY_URGENT ? HDT_PRIO_ACTIVATION : HDT_PRIO_OUTER;
    spec->type = (enum hdt_dtype)conf->type;
    spec->depth = (uint32_t)(window / CHAN_FRAME_CAP);
    spec->frame_cap = CHAN_FRAME_CAP;
    return HDT_OK;
}

/* The lock is held. */
static enum hdt_status flow_add(struct hdt_channel *ch, const struct chan_flow_spec *spec,
                                struct hdt_flow **out, struct hdt_error *err)
{
    struct hdt_flow *flow;
    unsigned n_flows = 0;

    if (ch->phase == CHAN_OVER) {
        *err = ch->why;
        return err->status;
    }
    LL_FOREACH2(ch->all_flows, flow, all_next)
    {
        n_flows++;
        if (flow->peer == spec->peer && flow->window.is_src == spec->is_src &&
            hdt_channel_flow_tag(flow->number) == spec->tag) {
            return hdt_error_set(err, HDT_EEXIST, "a flow %s rank %u with tag %u was opened before",
                                 spec->is_src ? "to" : "from", spec->peer, spec->tag);
        }
    }
    if (n_flows >= HDT_CHANNEL_FLOWS_MAX) {
        return hdt_error_set(err, HDT_ENOMEM, "channel '%s' has %u flows, which is the most",
                             ch->name, n_flows);
    }
    HDT_TRY(hdt_chan_flow_new(ch, spec, out, err));
    hdt_chan_flow_add(ch, *out);
    return HDT_OK;
}

enum hdt_err hdt_flow_open(struct hdt_channel *ch, const struct hdt_flow_conf *given,
                           struct hdt_flow **flow, struct hdt_error_info *error)
{
    struct chan_flow_spec spec = {0};
    struct hdt_flow_conf conf;
    struct hdt_error err = {0};
    enum hdt_status status;

    *flow = NULL;
    status = hdt_lib_conf_read(given, &conf, sizeof(conf),
                               "struct hdt_flow_conf conf = "
                               "HDT_FLOW_CONF_INIT;",
                               &err);
    if (status == HDT_OK) {
        status = flow_conf_check(ch, &conf, &spec, &err);
    }
    if (status == HDT_OK) {
        pthread_mutex_lock(&ch->lock);
        status = flow_add(ch, &spec, flow, &err);
        pthread_mutex_unlock(&ch->lock);
    }
    return status == HDT_OK ? HDT_ERR_NONE : hdt_lib_failure(status, &err, error);
}

enum hdt_err hdt_flow_close(struct hdt_flow *flow, struct hdt_error_info *error)
{
    struct hdt_request *flush, *request = NULL;
    struct hdt_channel *ch;
    enum hdt_err code;

    if (!flow) {
        return HDT_ERR_NONE;
    }
    ch = flow->channel;
    pthread_mutex_lock(&ch->lock);
    flow->is_closed = true;
    pthread_mutex_unlock(&ch->lock);
    flush = hdt_chan_request_new(ch, REQUEST_FLUSH);
    flush->flow = flow;
    code = request_begin(flush, &request, error);
    if (request) {
        code = hdt_wait(&request, NULL, error);
    }
    if (code == HDT_ERR_NONE && flow->window.is_src) { /* nobody reads there any more */
        pthread_mutex_lock(&ch->lock);
        hdt_chan_mem_put(ch, flow->pool_offset);
        pthread_mutex_unlock(&ch->lock);
    }
    return code;
}

enum hdt_err hdt_flow_stats(struct hdt_flow *flow, struct hdt_flow_stats *stats,
                            struct hdt_error_info *error)
{
    struct hdt_flow_stats all;
    struct hdt_error err = {0};
    const size_t size = stats->size;

    if (size < sizeof(stats->size)) {
        hdt_error_set(&err, HDT_EINVAL, "cannot fill the statistics: their size is not set");
        return hdt_lib_failure(HDT_EINVAL, &err, error);
    }
    pthread_mutex_lock(&flow->channel->lock);
    all = flow->stats;
    all.n_nonfinite = flow->guard.n_nonfinite;
    all.relative_error = hdt_codec_guard_error(&flow->guard);
    all.idle_us = hdt_clock_now_us() - flow->stats_us;
    pthread_mutex_unlock(&flow->channel->lock);
    memcpy(stats, &all, size < sizeof(all) ? size : sizeof(all));
    stats->size = size;
    return HDT_ERR_NONE;
}

#pragma GCC visibility pop
