/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saving. A digest of every tensor is taken in its owner's memory before a byte of it travels; the
 * checkpoint rank compares it with what came, and again with what it reads back from the disk.
 *
 * A checkpoint that cannot be written is no reason for training to end: the checkpoint rank keeps
 * the cause and goes on taking (and dropping) what the others send, so that none of them waits for
 * room that does not come.
 */
#include "config.h"

#include "runtime/state_impl.h"

#include "src/base/clock.h"
#include "src/base/recorder.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static enum hdt_status snapshot_take(struct hdt_state *state, struct hdt_error *err)
{
    uint8_t *to = state->snapshot;
    uint64_t *digest = state->digests;
    struct state_walk walk;
    uint64_t bytes;

    hdt_state_walk_init(&walk, state, state->conf.rank, false);
    while (hdt_state_walk_next(&walk)) {
        bytes = hdt_state_walk_bytes(&walk);
        HDT_TRY(hdt_stage_read(state->conf.stages[walk.stage], to,
                               hdt_state_walk_memory(state, &walk), bytes, err));
        *digest++ = XXH3_64bits(to, bytes);
        to += bytes;
    }
    return HDT_OK;
}

/* ---- a rank's own tensors, slab by slab ---- */

/* Where the reading of a rank's tensors stands. */
struct source {
    struct state_walk walk;
    size_t idx;   /* of the pair */
    uint64_t at;  /* of the pair in the snapshot */
    uint64_t pos; /* next byte of the pair */
};

static bool source_begin(struct hdt_state *state, struct source *source)
{
    memset(source, 0, sizeof(*source));
    hdt_state_walk_init(&source->walk, state, state->conf.rank, false);
    XXH3_64bits_reset(state->xxh3);
    return hdt_state_walk_next(&source->walk);
}

/* The next `len` bytes. */
static enum hdt_status source_read(struct hdt_state *state, struct source *source, void *dst,
                                   size_t len, struct hdt_error *err)
{
    const struct state_walk *walk = &source->walk;

    if (state->snapshot) {
        memcpy(dst, state->snapshot + source->at + source->pos, len);
    } else {
        HDT_TRY(hdt_stage_read(state->conf.stages[walk->stage], dst,
                               (const uint8_t *)hdt_state_walk_memory(state, walk) + source->pos,
                               len, err));
        XXH3_64bits_update(state->xxh3, dst, len);
    }
    source->pos += len;
    return HDT_OK;
}

static bool source_at_end(const struct source *source)
{
    return source->pos == hdt_state_walk_bytes(&source->walk);
}

/* Of the pair that is read to its end. */
static uint64_t source_digest(const struct hdt_state *state, const struct source *source)
{
    return state->snapshot ? state->digests[source->idx] : XXH3_64bits_digest(state->xxh3);
}

/* On to the next pair. */
static bool source_next(struct hdt_state *state, struct source *source)
{
    source->at += source->pos;
    source->pos = 0;
    source->idx++;
    XXH3_64bits_reset(state->xxh3);
    return hdt_state_walk_next(&source->walk);
}

/* ---- sending ---- */

static enum hdt_status send_slab(struct hdt_state *state, int flow, struct source *source,
                                 struct hdt_error *err)
{
    struct hdt_state_header header;
    uint8_t *slot;
    size_t cap, len;
    void *mem;

    hdt_state_header_fill(state, &header);
    header.tensor = (uint32_t)source->walk.tensor;
    header.part = (uint8_t)source->walk.part;
    header.offset = source->pos;
    HDT_TRY(hdt_port_send_get(state->conf.port, flow, &mem, &cap, err));
    slot = mem;
    len = hdt_state_slab_len(cap, hdt_state_walk_bytes(&source->walk) - source->pos);
    HDT_TRY(source_read(state, source, slot + HDT_STATE_HEADER_LEN, len, err));
    if (source_at_end(source)) {
        header.flags = HDT_STATE_SEALED;
        header.xxh3 = source_digest(state, source);
    }
    hdt_state_header_pack(&header, slot);
    hdt_port_send_commit(state->conf.port, flow, HDT_STATE_HEADER_LEN + len, len, HDT_DTYPE_F32);
    hdt_state_moved(state);
    return HDT_OK;
}

static enum hdt_status save_send(struct hdt_state *state, int flow, struct hdt_error *err)
{
    struct source source;
    bool more = source_begin(state, &source);

    while (more) {
        HDT_TRY(send_slab(state, flow, &source, err));
        if (source_at_end(&source)) {
            more = source_next(state, &source);
        }
    }
    HDT_TRY(hdt_state_feedback_send(state, flow, err));
    HDT_TRY(hdt_state_send_mark(state, flow, HDT_STATE_LAST, err));
    return hdt_port_send_flush(state->conf.port, flow, err);
}

/* ---- gathering ---- */

/* What the checkpoint rank writes to; `writer` is NULL once that has failed. */
struct sink {
    struct hdt_ckpt_writer *writer;
    struct hdt_error err;
};

/* A write went so; after the first failure nothing is left on the disk. */
static void sink_note(struct sink *sink, enum hdt_status status, const struct hdt_error *err)
{
    if (status != HDT_OK) {
        sink->err = *err;
        hdt_ckpt_writer_abort(sink->writer);
        sink->writer = NULL;
    }
}

static void sink_append(const struct hdt_state *state, struct sink *sink,
                        const struct hdt_state_header *header, const void *data, size_t len)
{
    struct hdt_error err = {0};
    enum hdt_status status = HDT_OK;

    if (sink->writer && (header->flags & HDT_STATE_FEEDBACK)) {
        sink_note(sink, hdt_state_feedback_write(state, sink->writer, header, data, len, &err),
                  &err);
        return;
    }
    if (sink->writer && len > 0) {
        status = hdt_ckpt_writer_append(sink->writer, header->tensor,
                                        (enum hdt_ckpt_part)header->part, data, len, &err);
    }
    if (sink->writer && status == HDT_OK && (header->flags & HDT_STATE_SEALED)) {
        status = hdt_ckpt_writer_seal(sink->writer, header->tensor,
                                      (enum hdt_ckpt_part)header->part, header->xxh3, &err);
    }
    sink_note(sink, status, &err);
}

static enum hdt_status save_own(struct hdt_state *state, struct sink *sink, struct hdt_error *err)
{
    struct hdt_state_header header = {0};
    struct hdt_error why = {0};
    struct source source;
    bool more = source_begin(state, &source);
    uint64_t left;
    size_t len;

    while (more && sink->writer) {
        left = hdt_state_walk_bytes(&source.walk) - source.pos;
        len = left < STATE_SLAB_BYTES ? (size_t)left : STATE_SLAB_BYTES;
        header.tensor = (uint32_t)source.walk.tensor;
        header.part = (uint8_t)source.walk.part;
        HDT_TRY(hdt_state_check(state, err));
        HDT_TRY(source_read(state, &source, state->slab, len, err));
        header.flags = source_at_end(&source) ? HDT_STATE_SEALED : 0;
        header.xxh3 = header.flags ? source_digest(state, &source) : 0;
        sink_append(state, sink, &header, state->slab, len);
        if (source_at_end(&source)) {
            more = source_next(state, &source);
        }
        hdt_state_moved(state);
    }
    if (sink->writer) {
        sink_note(sink, hdt_state_feedback_write_own(state, sink->writer, &why), &why);
    }
    return HDT_OK;
}

/* Take one frame of another rank; *last at its end. */
static enum hdt_status save_take(struct hdt_state *state, int flow, struct sink *sink, bool *last,
                                 struct hdt_error *err)
{
    struct hdt_state_header header;
    enum hdt_status status;
    const void *frame;
    size_t len;

    HDT_TRY(hdt_port_recv_wait(state->conf.port, flow, &frame, &len, err));
    status = hdt_state_header_unpack(frame, len, &header, err);
    if (status == HDT_OK && (header.step != state->meta.step ||
                             (!(header.flags & HDT_STATE_FEEDBACK) &&
                              header.tensor >= hdt_ckpt_n_tensors(state->conf.model)))) {
        status = hdt_error_set(err, HDT_EPROTO,
                               "cannot save step %lld: a frame of tensor %u of step %lld came",
                               (long long)state->meta.step, header.tensor, (long long)header.step);
    }
    if (status == HDT_OK && !(header.flags & HDT_STATE_LAST)) {
        sink_append(state, sink, &header, (const uint8_t *)frame + HDT_STATE_HEADER_LEN,
                    len - HDT_STATE_HEADER_LEN);
    }
    *last = status == HDT_OK && (header.flags & HDT_STATE_LAST);
    hdt_port_recv_done(state->conf.port, flow);
    hdt_state_moved(state);
    return status;
}

/* The other ranks in turns, a frame of each: one that had to wait until all before it were done
 * would run into its progress deadline. */
static enum hdt_status save_take_all(struct hdt_state *state, struct sink *sink,
                                     struct state_peer *peers, size_t n_peers,
                                     struct hdt_error *err)
{
    size_t i, n_left = n_peers;

    while (n_left > 0) {
        for (i = 0; i < n_peers; i++) {
            if (!peers[i].done) {
                HDT_TRY(save_take(state, peers[i].flow, sink, &peers[i].done, err));
                n_left -= peers[i].done;
            }
        }
    }
    return HDT_OK;
}

static enum hdt_status save_gather(struct hdt_state *state, struct sink *sink,
                                   struct hdt_error *err)
{
    struct state_peer *peers;
    size_t n_peers = hdt_state_peers(state, HDT_FLOW_STATE_OUT, &peers);
    enum hdt_status status = save_own(state, sink, err);

    if (status == HDT_OK) {
        status = save_take_all(state, sink, peers, n_peers, err);
    }
    free(peers);
    return status;
}

/* For the flight recorder. */
static void phase_record(const struct hdt_state *state, const char *phase)
{
    HDT_RECORD(HDT_REC_CHECKPOINT, .n = {0, state->meta.step}, .text = {phase});
}

static enum hdt_status save_write(struct hdt_state *state, struct hdt_error *err)
{
    const struct hdt_ckpt_writer_conf conf = {
        .dir = state->conf.dir,
        .model = state->conf.model,
        .meta = state->meta,
        .beside_bytes = hdt_state_units_bytes(state->conf.plan, state->conf.model),
        .keep = state->conf.keep,
        .progress = hdt_state_moved,
        .arg = state};
    int64_t begin = hdt_clock_now_us();
    struct hdt_ckpt_result result;
    struct sink sink = {0};
    struct hdt_error why = {0};
    enum hdt_status status = hdt_ckpt_writer_open(&conf, &sink.writer, &why);

    phase_record(state, "begin");
    sink_note(&sink, status, &why);
    status = save_gather(state, &sink, err);
    if (status != HDT_OK) {
        hdt_ckpt_writer_abort(sink.writer);
        return status;
    }
    phase_record(state, "gathered");
    if (sink.writer) {
        status = hdt_ckpt_writer_finish(sink.writer, &result, &why);
        sink.writer = NULL;
        sink_note(&sink, status, &why);
    }
    hdt_state_moved(state);
    if (sink.err.status != HDT_OK) {
        state->save_err = sink.err;
        HDT_RECORD(HDT_REC_CHECKPOINT, .n = {0, state->meta.step},
                   .text = {"failed", sink.err.msg});
        state->conf.failed(state->conf.user, &state->meta, &sink.err);
        return HDT_OK;
    }
    phase_record(state, "complete");
    state->conf.saved(state->conf.user, &state->meta, &result,
                      (double)(hdt_clock_now_us() - begin) / 1e6);
    return HDT_OK;
}

/* ---- the thread ---- */

static enum hdt_status save_run(struct hdt_state *state, struct hdt_error *err)
{
    int flow;

    if (state->conf.rank == state->conf.plan->checkpoint_rank) {
        return save_write(state, err);
    }
    flow = hdt_state_own_flow(state, HDT_FLOW_STATE_OUT);
    return flow < 0 ? HDT_OK : save_send(state, flow, err);
}

static void *save_thread(void *arg)
{
    struct hdt_state *state = arg;

    state->status = save_run(state, &state->err);
    pthread_mutex_lock(&state->lock);
    state->busy = false;
    pthread_cond_broadcast(&state->changed);
    pthread_mutex_unlock(&state->lock);
    return NULL;
}

bool hdt_state_is_busy(struct hdt_state *state)
{
    bool busy;

    pthread_mutex_lock(&state->lock);
    busy = state->busy;
    pthread_mutex_unlock(&state->lock);
    return busy;
}

bool hdt_state_wait_until(struct hdt_state *state, int64_t until_us)
{
    struct timespec ts = {.tv_sec = until_us / HDT_US_PER_S,
                          .tv_nsec = until_us % HDT_US_PER_S * 1000};
    bool busy;

    pthread_mutex_lock(&state->lock);
    while (state->busy && hdt_clock_now_us() < until_us) {
        pthread_cond_timedwait(&state->changed, &state->lock, &ts);
    }
    busy = state->busy;
    pthread_mutex_unlock(&state->lock);
    return !busy;
}

uint64_t hdt_state_n_moved(struct hdt_state *state)
{
    return atomic_load_explicit(&state->n_moved, memory_order_relaxed);
}

enum hdt_status hdt_state_wait(struct hdt_state *state, struct hdt_error *err)
{
    if (state->has_thread) {
        pthread_join(state->thread, NULL);
        state->has_thread = false;
    }
    if (state->status != HDT_OK && err) {
        *err = state->err;
    }
    return state->status;
}

enum hdt_status hdt_state_save_error(struct hdt_state *state, struct hdt_error *err)
{
    HDT_ASSERT(!state->has_thread);
    if (state->save_err.status != HDT_OK && err) {
        *err = state->save_err;
    }
    return state->save_err.status;
}

enum hdt_status hdt_state_save(struct hdt_state *state, const struct hdt_ckpt_meta *meta,
                               struct hdt_error *err)
{
    HDT_TRY(hdt_state_wait(state, err));
    state->meta = *meta;
    state->meta.job = state->conf.job;
    state->meta.owner = state->conf.owner;
    memset(&state->save_err, 0, sizeof(state->save_err));
    if (state->snapshot) {
        HDT_TRY(snapshot_take(state, err));
    }
    HDT_TRY(hdt_state_feedback_take(state, err));
    state->busy = true;
    if (pthread_create(&state->thread, NULL, save_thread, state) != 0) {
        state->busy = false;
        return hdt_error_set(err, HDT_ENOMEM, "cannot start the checkpoint's thread");
    }
    state->has_thread = true;
    return HDT_OK;
}
