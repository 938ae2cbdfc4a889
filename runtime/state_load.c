/* SPDX-License-Identifier: Apache-2.0 */
/* Loading. The manifest's digest of a tensor travels with it; whoever has loaded it compares. */
#include "config.h"

#include "runtime/state_impl.h"

#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"

#include <stdlib.h>
#include <string.h>

#define KEEPALIVE_US HDT_US_PER_S

/* A piece is there, or who reads says that it is at work. */
static void load_moved(struct hdt_state *state)
{
    if (state->conf.port) {
        hdt_port_job_progress(state->conf.port);
    }
    hdt_alive_moved(state->conf.alive, "loading", 0, 0);
}

/* Tell the ranks that wait that this one is at work. */
static void keepalive(void *arg)
{
    struct hdt_state *state = arg;
    const struct hdt_plan *plan = state->conf.plan;
    int64_t now = hdt_clock_now_us();
    size_t i;

    if (!state->conf.port || now - state->keepalive_us < KEEPALIVE_US) {
        return;
    }
    state->keepalive_us = now;
    load_moved(state);
    for (i = 0; i < plan->n_flows; i++) {
        if (plan->flows[i].kind == HDT_FLOW_STATE_IN) {
            hdt_state_send_mark(state, (int)i, HDT_STATE_KEEPALIVE,
                                NULL); /* a failure shows again later */
        }
    }
}

static enum hdt_status load_damaged(const struct hdt_state *state, const struct state_walk *walk,
                                    uint64_t want, uint64_t got, struct hdt_error *err)
{
    char name[128];

    hdt_ckpt_tensor_name(state->conf.model, walk->tensor, (enum hdt_ckpt_part)walk->part, name,
                         sizeof(name));
    hdt_error_set(err, HDT_ECRC,
                  "cannot load tensor '%s': it was damaged on its way: its digest is %016llx, that "
                  "of what came %016llx",
                  name, (unsigned long long)want, (unsigned long long)got);
    hdt_error_hint(err, "submit the job again; when it happens again, memory or a network card is "
                        "at fault, here or on the machine that reads checkpoints");
    return HDT_ECRC;
}

/* Take a slab of a pair; its digest so far is in state->xxh3. */
static enum hdt_status load_take(struct hdt_state *state, const struct state_walk *walk,
                                 uint64_t pos, const void *data, size_t len, struct hdt_error *err)
{
    if (pos == 0) {
        XXH3_64bits_reset(state->xxh3);
    }
    XXH3_64bits_update(state->xxh3, data, len);
    return hdt_stage_write(state->conf.stages[walk->stage],
                           (uint8_t *)hdt_state_walk_memory(state, walk) + pos, data, len, err);
}

static enum hdt_status load_check(const struct hdt_state *state, const struct state_walk *walk,
                                  uint64_t want, struct hdt_error *err)
{
    uint64_t got = XXH3_64bits_digest(state->xxh3);

    return got == want ? HDT_OK : load_damaged(state, walk, want, got, err);
}

static enum hdt_status load_own(struct hdt_state *state, const struct hdt_ckpt_reader *reader,
                                struct hdt_error *err)
{
    uint64_t pos, left;
    struct state_walk walk;
    size_t len;

    hdt_state_walk_init(&walk, state, state->conf.rank, true);
    while (hdt_state_walk_next(&walk)) {
        for (pos = 0; pos < hdt_state_walk_bytes(&walk); pos += len) {
            left = hdt_state_walk_bytes(&walk) - pos;
            len = left < STATE_SLAB_BYTES ? (size_t)left : STATE_SLAB_BYTES;
            HDT_TRY(hdt_state_check(state, err));
            HDT_TRY(
                hdt_ckpt_reader_read(reader, walk.tensor, walk.part, pos, len, state->slab, err));
            HDT_TRY(load_take(state, &walk, pos, state->slab, len, err));
        }
        HDT_TRY(
            load_check(state, &walk, hdt_ckpt_reader_digest(reader, walk.tensor, walk.part), err));
        keepalive(state);
    }
    return hdt_state_feedback_load_own(state, reader, err);
}

/* The tensors went: the next of the rank's feedback, or the mark of the end. */
static enum hdt_status load_serve_feedback(struct hdt_state *state,
                                           const struct hdt_ckpt_reader *reader,
                                           struct state_peer *peer, struct hdt_error *err)
{
    const struct hdt_plan *plan = state->conf.plan;

    if (peer->end < 0 || peer->end_done) {
        peer->pos = 0;
        if (!hdt_state_next_end(plan, plan->flows[peer->flow].dst_rank, &peer->end)) {
            peer->done = true;
            return hdt_state_send_mark(state, peer->flow, HDT_STATE_LAST, err);
        }
    }
    HDT_TRY(hdt_state_feedback_serve(state, reader, peer, err));
    load_moved(state);
    return HDT_OK;
}

/* The next slab to one rank, or the mark of the end. */
static enum hdt_status load_serve(struct hdt_state *state, const struct hdt_ckpt_reader *reader,
                                  struct state_peer *peer, struct hdt_error *err)
{
    struct state_walk *walk = &peer->walk;
    struct hdt_state_header header;
    size_t cap, len;
    uint8_t *slot;
    void *mem;

    if (peer->at_end) {
        return load_serve_feedback(state, reader, peer, err);
    }
    HDT_TRY(hdt_port_send_get(state->conf.port, peer->flow, &mem, &cap, err));
    slot = mem;
    len = hdt_state_slab_len(cap, hdt_state_walk_bytes(walk) - peer->pos);
    hdt_state_header_fill(state, &header);
    header.tensor = (uint32_t)walk->tensor;
    header.part = (uint8_t)walk->part;
    header.offset = peer->pos;
    if (peer->pos + len == hdt_state_walk_bytes(walk)) {
        header.flags = HDT_STATE_SEALED;
        header.xxh3 = hdt_ckpt_reader_digest(reader, walk->tensor, walk->part);
    }
    hdt_state_header_pack(&header, slot);
    HDT_TRY(hdt_ckpt_reader_read(reader, walk->tensor, walk->part, peer->pos, len,
                                 slot + HDT_STATE_HEADER_LEN, err));
    hdt_port_send_commit(state->conf.port, peer->flow, HDT_STATE_HEADER_LEN + len, len,
                         HDT_DTYPE_F32);
    load_moved(state);
    peer->pos += len;
    if (peer->pos == hdt_state_walk_bytes(walk)) {
        peer->pos = 0;
        peer->at_end = !hdt_state_walk_next(walk);
    }
    return HDT_OK;
}

/* All other ranks in turns, a slab to each: see save_take_all. */
static enum hdt_status load_serve_all(struct hdt_state *state, const struct hdt_ckpt_reader *reader,
                                      struct state_peer *peers, size_t n_peers,
                                      struct hdt_error *err)
{
    size_t i, n_left = n_peers;

    for (i = 0; i < n_peers; i++) {
        hdt_state_walk_init(&peers[i].walk, state, state->conf.plan->flows[peers[i].flow].dst_rank,
                            true);
        peers[i].at_end = !hdt_state_walk_next(&peers[i].walk);
        peers[i].end = -1;
    }
    while (n_left > 0) {
        for (i = 0; i < n_peers; i++) {
            if (!peers[i].done) {
                HDT_TRY(load_serve(state, reader, &peers[i], err));
                n_left -= peers[i].done;
            }
        }
    }
    return HDT_OK;
}

static enum hdt_status load_flush(struct hdt_state *state, struct hdt_error *err)
{
    const struct hdt_plan *plan = state->conf.plan;
    size_t i;

    for (i = 0; i < plan->n_flows; i++) {
        if (plan->flows[i].kind == HDT_FLOW_STATE_IN) {
            HDT_TRY(hdt_port_send_flush(state->conf.port, (int)i, err));
        }
    }
    return HDT_OK;
}

/* The checkpoint at `path`, or an older one of the job when that one was damaged or removed.
 * Opening checks every byte, and nothing has gone to another rank before. */
static enum hdt_status load_open(struct hdt_state *state, const char *path,
                                 struct hdt_ckpt_reader **reader, struct hdt_error *err)
{
    const struct hdt_ckpt_open how = {
        .model = state->conf.model, .progress = keepalive, .arg = state};
    const struct hdt_ckpt_query query = {.max_step = state->conf.newest_step,
                                         .owner = &state->conf.owner,
                                         .every_byte = true,
                                         .progress = keepalive,
                                         .arg = state};
    enum hdt_status status = hdt_ckpt_reader_open(path, &how, reader, err);
    struct hdt_ckpt_found found;
    struct hdt_error none = {0};

    if (status == HDT_OK || status == HDT_ECANCELED || state->conf.newest_step < 0) {
        return status;
    }
    if (hdt_ckpt_newest(state->conf.dir, &query, &found, &none) != HDT_OK) {
        err->status = HDT_ENOENT; /* a repetition brings none */
        hdt_error_prefix(err, "no checkpoint of this job can be used");
        return HDT_ENOENT;
    }
    hdt_log_failure(HDT_LOG_WARN, err);
    hdt_log_warn("'%s' cannot be used: going on from '%s'", path, found.path);
    snprintf(state->older, sizeof(state->older), "%s", found.path);
    return hdt_ckpt_reader_open(found.path, &how, reader, err);
}

static enum hdt_status load_read(struct hdt_state *state, const char *path, struct hdt_error *err)
{
    struct hdt_ckpt_reader *reader;
    enum hdt_status status;
    struct state_peer *peers;
    size_t n_peers;

    state->keepalive_us = hdt_clock_now_us();
    HDT_TRY(load_open(state, path, &reader, err));
    state->meta = *hdt_ckpt_reader_meta(reader);
    state->meta.job = NULL;
    n_peers = hdt_state_peers(state, HDT_FLOW_STATE_IN, &peers);
    status = load_own(state, reader, err);
    if (status == HDT_OK) {
        status = load_serve_all(state, reader, peers, n_peers, err);
    }
    if (status == HDT_OK) {
        status = load_flush(state, err);
    }
    free(peers);
    hdt_ckpt_reader_close(reader);
    return status;
}

/* A frame's slab to the place that the walk says is next. */
static enum hdt_status load_take_slab(struct hdt_state *state, const struct state_walk *walk,
                                      uint64_t pos, const void *frame, size_t len,
                                      struct hdt_error *err)
{
    struct hdt_state_header header;
    size_t data_len = len - HDT_STATE_HEADER_LEN;

    HDT_TRY(hdt_state_header_unpack(frame, len, &header, err));
    if ((int64_t)header.tensor != walk->tensor || header.part != walk->part ||
        header.offset != pos || data_len == 0 || data_len > hdt_state_walk_bytes(walk) - pos) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot load a checkpoint: %zu bytes of tensor %u at %llu came where "
                             "tensor %lld at %llu was expected",
                             data_len, header.tensor, (unsigned long long)header.offset,
                             (long long)walk->tensor, (unsigned long long)pos);
    }
    HDT_TRY(
        load_take(state, walk, pos, (const uint8_t *)frame + HDT_STATE_HEADER_LEN, data_len, err));
    if (pos + data_len < hdt_state_walk_bytes(walk)) {
        return HDT_OK;
    }
    if (!(header.flags & HDT_STATE_SEALED)) {
        return hdt_error_set(err, HDT_EPROTO, "cannot load tensor %u: no digest came with it",
                             header.tensor);
    }
    return load_check(state, walk, header.xxh3, err);
}

/* Wait for the next frame that is no keep-alive. */
static enum hdt_status load_next(struct hdt_state *state, int flow, const void **frame, size_t *len,
                                 struct hdt_state_header *header, struct hdt_error *err)
{
    enum hdt_status status;

    for (;;) {
        HDT_TRY(hdt_port_recv_wait(state->conf.port, flow, frame, len, err));
        status = hdt_state_header_unpack(*frame, *len, header, err);
        if (status == HDT_OK && !(header->flags & HDT_STATE_KEEPALIVE)) {
            return HDT_OK;
        }
        hdt_port_recv_done(state->conf.port, flow);
        HDT_TRY(status);
        load_moved(state);
    }
}

static enum hdt_status load_receive_feedback(struct hdt_state *state, int flow,
                                             struct state_feedback *item, struct hdt_error *err)
{
    struct hdt_state_header header;
    enum hdt_status status;
    const void *frame;
    uint64_t pos = 0;
    size_t len;

    do {
        HDT_TRY(load_next(state, flow, &frame, &len, &header, err));
        status = hdt_state_feedback_receive(state, item, &pos, &header,
                                            (const uint8_t *)frame + HDT_STATE_HEADER_LEN,
                                            len - HDT_STATE_HEADER_LEN, err);
        hdt_port_recv_done(state->conf.port, flow);
        HDT_TRY(status);
        load_moved(state);
    } while (!(header.flags & HDT_STATE_SEALED));
    return HDT_OK;
}

static enum hdt_status load_receive(struct hdt_state *state, int flow, struct hdt_error *err)
{
    struct hdt_state_header header;
    enum hdt_status status;
    const void *frame;
    struct state_walk walk;
    uint64_t pos;
    size_t len;

    hdt_state_walk_init(&walk, state, state->conf.rank, true);
    while (hdt_state_walk_next(&walk)) {
        for (pos = 0; pos < hdt_state_walk_bytes(&walk); pos += len - HDT_STATE_HEADER_LEN) {
            HDT_TRY(load_next(state, flow, &frame, &len, &header, err));
            status = load_take_slab(state, &walk, pos, frame, len, err);
            hdt_port_recv_done(state->conf.port, flow);
            HDT_TRY(status);
            load_moved(state);
        }
    }
    for (size_t i = 0; i < state->n_feedback; i++) {
        HDT_TRY(load_receive_feedback(state, flow, &state->feedback[i], err));
    }
    HDT_TRY(load_next(state, flow, &frame, &len, &header, err));
    hdt_port_recv_done(state->conf.port, flow);
    state->meta.step = header.step;
    state->meta.samples = header.samples;
    state->meta.tokens = header.tokens;
    if (!(header.flags & HDT_STATE_LAST)) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot load a checkpoint: more came than the plan "
                             "says");
    }
    return HDT_OK;
}

const char *hdt_state_older(const struct hdt_state *state)
{
    return state->older;
}

enum hdt_status hdt_state_load(struct hdt_state *state, const char *path,
                               struct hdt_ckpt_meta *meta, struct hdt_error *err)
{
    int flow;

    memset(&state->meta, 0, sizeof(state->meta));
    if (state->conf.rank == state->conf.plan->checkpoint_rank) {
        HDT_TRY(load_read(state, path, err));
    } else {
        flow = hdt_state_own_flow(state, HDT_FLOW_STATE_IN);
        if (flow < 0) {
            return hdt_error_set(err, HDT_EINVAL,
                                 "cannot load a checkpoint: the plan has no flow for it to rank %d",
                                 state->conf.rank);
        }
        HDT_TRY(load_receive(state, flow, err));
    }
    *meta = state->meta;
    return HDT_OK;
}
