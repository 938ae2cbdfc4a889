/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "runtime/state.h"

#include "runtime/wire.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define STATE_MAGIC  0x54534448u /* "HDST" */
#define KEEPALIVE_US HDT_US_PER_S
/* Slabs between the files and this rank's own stages: large enough for a disk, small beside all
 * else. */
#define LOCAL_SLAB_BYTES ((size_t)4 << 20)

struct hdt_state {
    struct hdt_state_conf conf;
    uint8_t *snapshot; /* NULL: read from the stages */
    uint8_t *slab;     /* LOCAL_SLAB_BYTES */
    struct hdt_ckpt_meta meta;
    int64_t keepalive_us;

    pthread_t thread;
    bool has_thread;      /* to be joined; the caller's thread only */
    pthread_mutex_t lock; /* guards busy */
    bool busy;
    enum hdt_status status; /* of the last save; read after join */
    struct hdt_error err;
};

/* ---- frames ---- */

void hdt_state_header_pack(const struct hdt_state_header *header, void *out)
{
    uint8_t *p = out;

    memset(p, 0, HDT_STATE_HEADER_LEN);
    hdt_wire_put_u32(p, STATE_MAGIC);
    hdt_wire_put_u16(p + 4, HDT_STATE_VERSION);
    p[6] = header->part;
    p[7] = header->flags;
    hdt_wire_put_u32(p + 8, header->tensor);
    hdt_wire_put_u64(p + 16, (uint64_t)header->step);
    hdt_wire_put_u64(p + 24, header->samples);
    hdt_wire_put_u64(p + 32, header->tokens);
    hdt_wire_put_u64(p + 40, header->offset);
}

enum hdt_status hdt_state_header_unpack(const void *in, size_t len, struct hdt_state_header *header,
                                        struct hdt_error *err)
{
    const uint8_t *p = in;

    if (len < HDT_STATE_HEADER_LEN || hdt_wire_get_u32(p) != STATE_MAGIC) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot read a frame of %zu bytes: it is no STATE "
                             "frame",
                             len);
    }
    if (hdt_wire_get_u16(p + 4) != HDT_STATE_VERSION) {
        return hdt_error_set(err, HDT_EVERSION,
                             "cannot read a STATE frame: its version is %u, this worker's %d",
                             hdt_wire_get_u16(p + 4), HDT_STATE_VERSION);
    }
    header->part = p[6];
    header->flags = p[7];
    header->tensor = hdt_wire_get_u32(p + 8);
    header->step = (int64_t)hdt_wire_get_u64(p + 16);
    header->samples = hdt_wire_get_u64(p + 24);
    header->tokens = hdt_wire_get_u64(p + 32);
    header->offset = hdt_wire_get_u64(p + 40);
    if (header->part >= HDT_CKPT_PART_COUNT || header->step < 0) {
        return hdt_error_set(err, HDT_EPROTO, "cannot read a STATE frame: part %u, step %lld",
                             header->part, (long long)header->step);
    }
    return HDT_OK;
}

/* ---- what a rank holds ---- */

/* Walk over the (tensor, part) pairs of a rank: its stages in the plan's order, tensors in model
 * order. A tied head is no tensor of its own in files; one that does not share memory with the
 * embedding must be loaded all the same. */
struct walk {
    const struct hdt_plan *plan;
    const struct hdt_model_config *model;
    int rank;
    bool with_copies; /* loading: tied heads that are copies, too */
    size_t stage;     /* current, once `tensor` < `end` */
    int64_t tensor, end;
    int part;
};

static void walk_init(struct walk *walk, const struct hdt_plan *plan,
                      const struct hdt_model_config *model, int rank, bool with_copies)
{
    memset(walk, 0, sizeof(*walk));
    walk->plan = plan;
    walk->model = model;
    walk->rank = rank;
    walk->with_copies = with_copies;
    walk->stage = (size_t)-1;
    walk->part = HDT_CKPT_PART_COUNT; /* "before the first" */
}

static bool walk_next_stage(struct walk *walk)
{
    const struct hdt_plan_stage *stage;
    int64_t first, n;

    for (walk->stage++; walk->stage < walk->plan->n_stages; walk->stage++) {
        stage = &walk->plan->stages[walk->stage];
        if (stage->rank != walk->rank) {
            continue;
        }
        hdt_model_unit_tensors(walk->model, stage->unit_begin, &walk->tensor, &n);
        hdt_model_unit_tensors(walk->model, stage->unit_end - 1, &first, &n);
        walk->end = first + n;
        if (walk->model->tie_word_embeddings && walk->end == hdt_model_n_tensors(walk->model) &&
            !(walk->with_copies && stage->unit_begin > 0)) {
            walk->end--;
        }
        if (walk->tensor < walk->end) {
            return true;
        }
    }
    return false;
}

/* Next pair in walk->tensor and walk->part; false at the end. */
static bool walk_next(struct walk *walk)
{
    if (++walk->part < HDT_CKPT_PART_COUNT) {
        return true;
    }
    walk->part = 0;
    if (++walk->tensor < walk->end) {
        return true;
    }
    return walk_next_stage(walk);
}

static uint64_t walk_bytes(const struct walk *walk)
{
    return hdt_ckpt_tensor_bytes(walk->model, walk->tensor);
}

uint64_t hdt_state_snapshot_bytes(const struct hdt_plan *plan, const struct hdt_model_config *model,
                                  int rank)
{
    struct walk walk;
    uint64_t bytes = 0;

    walk_init(&walk, plan, model, rank, false);
    while (walk_next(&walk)) {
        bytes += walk_bytes(&walk);
    }
    return bytes;
}

/* Device memory of the walk's current pair, on this rank. */
static float *walk_memory(const struct hdt_state *state, const struct walk *walk)
{
    struct hdt_stage *stage = state->conf.stages[walk->stage];
    struct hdt_stage_tensor view;

    hdt_stage_tensor(stage, (int)(walk->tensor - hdt_stage_first_tensor(stage)), &view);
    HDT_ASSERT(view.len * sizeof(float) == walk_bytes(walk));
    return walk->part == HDT_CKPT_WEIGHT    ? view.w
           : walk->part == HDT_CKPT_EXP_AVG ? view.m
                                            : view.v;
}

/* A rank that the checkpoint rank gathers from or serves. */
struct peer {
    int flow;
    bool done;        /* the last frame went, or came */
    struct walk walk; /* serving: the pair that goes out, */
    uint64_t pos;     /* how much of it went, */
    bool at_end;      /* and whether there is no pair left */
};

/* Flows of `kind` between the checkpoint rank and the others; *peers is the caller's. */
static size_t peers_list(const struct hdt_state *state, enum hdt_flow_kind kind,
                         struct peer **peers)
{
    const struct hdt_plan *plan = state->conf.plan;
    size_t i, n = 0;

    *peers = hdt_calloc(plan->n_flows + 1, sizeof(**peers));
    for (i = 0; i < plan->n_flows; i++) {
        if (plan->flows[i].kind == kind) {
            (*peers)[n++].flow = (int)i;
        }
    }
    return n;
}

/* ---- life ---- */

enum hdt_status hdt_state_new(const struct hdt_state_conf *conf, struct hdt_state **out,
                              struct hdt_error *err)
{
    struct hdt_state *state = hdt_calloc(1, sizeof(*state));
    uint64_t bytes = hdt_state_snapshot_bytes(conf->plan, conf->model, conf->rank);

    state->conf = *conf;
    pthread_mutex_init(&state->lock, NULL);
    state->slab = malloc(LOCAL_SLAB_BYTES);
    if (conf->background) {
        state->snapshot = malloc(bytes + 1);
    }
    if (!state->slab || (conf->background && !state->snapshot)) {
        hdt_state_free(state);
        hdt_error_set(err, HDT_ENOMEM, "cannot make room for checkpoints: %llu MiB wanted",
                      (unsigned long long)(bytes >> 20));
        hdt_error_hint(err, "set checkpoint.every to 0, which saves only at the end");
        return HDT_ENOMEM;
    }
    *out = state;
    return HDT_OK;
}

void hdt_state_free(struct hdt_state *state)
{
    if (!state) {
        return;
    }
    if (state->has_thread) {
        pthread_join(state->thread, NULL);
    }
    pthread_mutex_destroy(&state->lock);
    free(state->snapshot);
    free(state->slab);
    free(state);
}

/* A job that was told to end does not write or read gigabytes first. */
static enum hdt_status state_check(const struct hdt_state *state, struct hdt_error *err)
{
    return state->conf.port ? hdt_port_job_check(state->conf.port, err) : HDT_OK;
}

/* ---- saving ---- */

static enum hdt_status snapshot_take(struct hdt_state *state, struct hdt_error *err)
{
    uint8_t *to = state->snapshot;
    struct walk walk;

    walk_init(&walk, state->conf.plan, state->conf.model, state->conf.rank, false);
    while (walk_next(&walk)) {
        HDT_TRY(hdt_stage_read(state->conf.stages[walk.stage], to, walk_memory(state, &walk),
                               walk_bytes(&walk), err));
        to += walk_bytes(&walk);
    }
    return HDT_OK;
}

/* Bytes [pos, pos + len) of the walk's pair, which begins at `at` of the snapshot. */
static enum hdt_status source_read(struct hdt_state *state, const struct walk *walk, uint64_t at,
                                   uint64_t pos, size_t len, void *dst, struct hdt_error *err)
{
    if (state->snapshot) {
        memcpy(dst, state->snapshot + at + pos, len);
        return HDT_OK;
    }
    return hdt_stage_read(state->conf.stages[walk->stage], dst,
                          (const uint8_t *)walk_memory(state, walk) + pos, len, err);
}

static void header_fill(const struct hdt_state *state, struct hdt_state_header *header)
{
    memset(header, 0, sizeof(*header));
    header->step = state->meta.step;
    header->samples = state->meta.samples;
    header->tokens = state->meta.tokens;
}

/* A frame without data. */
static enum hdt_status send_mark(struct hdt_state *state, int flow, uint8_t flags,
                                 struct hdt_error *err)
{
    struct hdt_state_header header;
    size_t cap;
    void *slot;

    HDT_TRY(hdt_port_send_get(state->conf.port, flow, &slot, &cap, err));
    header_fill(state, &header);
    header.flags = flags;
    hdt_state_header_pack(&header, slot);
    hdt_port_send_commit(state->conf.port, flow, HDT_STATE_HEADER_LEN, HDT_STATE_HEADER_LEN,
                         HDT_DTYPE_F32);
    return HDT_OK;
}

/* Data bytes of a slab that fit a slot: whole floats. */
static size_t slab_len(size_t cap, uint64_t left)
{
    size_t room = (cap - HDT_STATE_HEADER_LEN) / sizeof(float) * sizeof(float);

    return left < room ? (size_t)left : room;
}

static enum hdt_status save_send(struct hdt_state *state, int flow, struct hdt_error *err)
{
    struct hdt_state_header header;
    uint64_t at = 0, pos;
    struct walk walk;
    size_t cap, len;
    uint8_t *slot;
    void *mem;

    header_fill(state, &header);
    walk_init(&walk, state->conf.plan, state->conf.model, state->conf.rank, false);
    for (; walk_next(&walk); at += walk_bytes(&walk)) {
        for (pos = 0; pos < walk_bytes(&walk); pos += len) {
            HDT_TRY(hdt_port_send_get(state->conf.port, flow, &mem, &cap, err));
            slot = mem;
            len = slab_len(cap, walk_bytes(&walk) - pos);
            header.tensor = (uint32_t)walk.tensor;
            header.part = (uint8_t)walk.part;
            header.offset = pos;
            hdt_state_header_pack(&header, slot);
            HDT_TRY(source_read(state, &walk, at, pos, len, slot + HDT_STATE_HEADER_LEN, err));
            hdt_port_send_commit(state->conf.port, flow, HDT_STATE_HEADER_LEN + len, len,
                                 HDT_DTYPE_F32);
        }
    }
    HDT_TRY(send_mark(state, flow, HDT_STATE_LAST, err));
    return hdt_port_send_flush(state->conf.port, flow, err);
}

static enum hdt_status save_own(struct hdt_state *state, struct hdt_ckpt_writer *writer,
                                struct hdt_error *err)
{
    uint64_t at = 0, pos, left;
    struct walk walk;
    size_t len;

    walk_init(&walk, state->conf.plan, state->conf.model, state->conf.rank, false);
    for (; walk_next(&walk); at += walk_bytes(&walk)) {
        for (pos = 0; pos < walk_bytes(&walk); pos += len) {
            left = walk_bytes(&walk) - pos;
            len = left < LOCAL_SLAB_BYTES ? (size_t)left : LOCAL_SLAB_BYTES;
            HDT_TRY(state_check(state, err));
            HDT_TRY(source_read(state, &walk, at, pos, len, state->slab, err));
            HDT_TRY(hdt_ckpt_writer_append(writer, walk.tensor, walk.part, state->slab, len, err));
        }
        if (state->conf.port) {
            hdt_port_job_progress(state->conf.port);
        }
    }
    return HDT_OK;
}

/* Take one frame of another rank; *last at its end. */
static enum hdt_status save_take(struct hdt_state *state, int flow, struct hdt_ckpt_writer *writer,
                                 bool *last, struct hdt_error *err)
{
    struct hdt_state_header header;
    enum hdt_status status;
    const void *frame;
    size_t len;

    HDT_TRY(hdt_port_recv_wait(state->conf.port, flow, &frame, &len, err));
    status = hdt_state_header_unpack(frame, len, &header, err);
    if (status == HDT_OK && (header.step != state->meta.step ||
                             header.tensor >= hdt_ckpt_n_tensors(state->conf.model))) {
        status = hdt_error_set(err, HDT_EPROTO,
                               "cannot save step %lld: a frame of tensor %u of step %lld came",
                               (long long)state->meta.step, header.tensor, (long long)header.step);
    }
    if (status == HDT_OK && len > HDT_STATE_HEADER_LEN) {
        status = hdt_ckpt_writer_append(writer, header.tensor, header.part,
                                        (const uint8_t *)frame + HDT_STATE_HEADER_LEN,
                                        len - HDT_STATE_HEADER_LEN, err);
    }
    *last = status == HDT_OK && (header.flags & HDT_STATE_LAST);
    hdt_port_recv_done(state->conf.port, flow);
    return status;
}

/* The other ranks in turns, a frame of each: one that had to wait until all before it were done
 * would run into its progress deadline. */
static enum hdt_status save_take_all(struct hdt_state *state, struct hdt_ckpt_writer *writer,
                                     struct peer *peers, size_t n_peers, struct hdt_error *err)
{
    size_t i, n_left = n_peers;

    while (n_left > 0) {
        for (i = 0; i < n_peers; i++) {
            if (!peers[i].done) {
                HDT_TRY(save_take(state, peers[i].flow, writer, &peers[i].done, err));
                n_left -= peers[i].done;
            }
        }
    }
    return HDT_OK;
}

static enum hdt_status save_gather(struct hdt_state *state, struct hdt_ckpt_writer *writer,
                                   struct hdt_error *err)
{
    struct peer *peers;
    size_t n_peers = peers_list(state, HDT_FLOW_STATE_OUT, &peers);
    enum hdt_status status = save_own(state, writer, err);

    if (status == HDT_OK) {
        status = save_take_all(state, writer, peers, n_peers, err);
    }
    free(peers);
    return status;
}

static enum hdt_status save_write(struct hdt_state *state, struct hdt_error *err)
{
    int64_t begin = hdt_clock_now_us();
    struct hdt_ckpt_result result;
    struct hdt_ckpt_writer *writer;
    enum hdt_status status;

    HDT_TRY(hdt_ckpt_writer_open(state->conf.dir, state->conf.model, &state->meta, &writer, err));
    status = save_gather(state, writer, err);
    if (status != HDT_OK) {
        hdt_ckpt_writer_abort(writer);
        return status;
    }
    HDT_TRY(hdt_ckpt_writer_finish(writer, state->conf.keep, &result, err));
    if (state->conf.port) {
        hdt_port_job_progress(state->conf.port);
    }
    state->conf.saved(state->conf.user, &state->meta, &result,
                      (double)(hdt_clock_now_us() - begin) / 1e6);
    return HDT_OK;
}

/* The flow of `kind` between this rank and the checkpoint rank; -1: none. */
static int own_flow(const struct hdt_state *state, enum hdt_flow_kind kind)
{
    const struct hdt_plan *plan = state->conf.plan;
    size_t i;

    for (i = 0; i < plan->n_flows; i++) {
        if (plan->flows[i].kind == kind && (plan->flows[i].src_rank == state->conf.rank ||
                                            plan->flows[i].dst_rank == state->conf.rank)) {
            return (int)i;
        }
    }
    return -1;
}

static enum hdt_status save_run(struct hdt_state *state, struct hdt_error *err)
{
    int flow;

    if (state->conf.rank == state->conf.plan->checkpoint_rank) {
        return save_write(state, err);
    }
    flow = own_flow(state, HDT_FLOW_STATE_OUT);
    return flow < 0 ? HDT_OK : save_send(state, flow, err);
}

static void *save_thread(void *arg)
{
    struct hdt_state *state = arg;

    state->status = save_run(state, &state->err);
    pthread_mutex_lock(&state->lock);
    state->busy = false;
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

enum hdt_status hdt_state_save(struct hdt_state *state, const struct hdt_ckpt_meta *meta,
                               struct hdt_error *err)
{
    HDT_TRY(hdt_state_wait(state, err));
    state->meta = *meta;
    state->meta.job = state->conf.job;
    if (!state->snapshot) {
        state->status = save_run(state, &state->err);
        return hdt_state_wait(state, err);
    }
    HDT_TRY(snapshot_take(state, err));
    state->busy = true;
    if (pthread_create(&state->thread, NULL, save_thread, state) != 0) {
        state->busy = false;
        return hdt_error_set(err, HDT_ENOMEM, "cannot start the checkpoint's thread");
    }
    state->has_thread = true;
    return HDT_OK;
}

/* ---- loading ---- */

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
    hdt_port_job_progress(state->conf.port);
    for (i = 0; i < plan->n_flows; i++) {
        if (plan->flows[i].kind == HDT_FLOW_STATE_IN) {
            send_mark(state, (int)i, HDT_STATE_KEEPALIVE, NULL); /* a failure shows again later */
        }
    }
}

static enum hdt_status load_own(struct hdt_state *state, const struct hdt_ckpt_reader *reader,
                                struct hdt_error *err)
{
    uint64_t pos, left;
    struct walk walk;
    size_t len;

    walk_init(&walk, state->conf.plan, state->conf.model, state->conf.rank, true);
    while (walk_next(&walk)) {
        for (pos = 0; pos < walk_bytes(&walk); pos += len) {
            left = walk_bytes(&walk) - pos;
            len = left < LOCAL_SLAB_BYTES ? (size_t)left : LOCAL_SLAB_BYTES;
            HDT_TRY(state_check(state, err));
            HDT_TRY(
                hdt_ckpt_reader_read(reader, walk.tensor, walk.part, pos, len, state->slab, err));
            HDT_TRY(hdt_stage_write(state->conf.stages[walk.stage],
                                    (uint8_t *)walk_memory(state, &walk) + pos, state->slab, len,
                                    err));
        }
        keepalive(state);
    }
    return HDT_OK;
}

/* The next slab to one rank, or the mark of the end. */
static enum hdt_status load_serve(struct hdt_state *state, const struct hdt_ckpt_reader *reader,
                                  struct peer *peer, struct hdt_error *err)
{
    struct walk *walk = &peer->walk;
    struct hdt_state_header header;
    size_t cap, len;
    uint8_t *slot;
    void *mem;

    if (peer->at_end) {
        peer->done = true;
        return send_mark(state, peer->flow, HDT_STATE_LAST, err);
    }
    HDT_TRY(hdt_port_send_get(state->conf.port, peer->flow, &mem, &cap, err));
    slot = mem;
    len = slab_len(cap, walk_bytes(walk) - peer->pos);
    header_fill(state, &header);
    header.tensor = (uint32_t)walk->tensor;
    header.part = (uint8_t)walk->part;
    header.offset = peer->pos;
    hdt_state_header_pack(&header, slot);
    HDT_TRY(hdt_ckpt_reader_read(reader, walk->tensor, walk->part, peer->pos, len,
                                 slot + HDT_STATE_HEADER_LEN, err));
    hdt_port_send_commit(state->conf.port, peer->flow, HDT_STATE_HEADER_LEN + len, len,
                         HDT_DTYPE_F32);
    peer->pos += len;
    if (peer->pos == walk_bytes(walk)) {
        peer->pos = 0;
        peer->at_end = !walk_next(walk);
    }
    return HDT_OK;
}

/* All other ranks in turns, a slab to each: see save_take_all. */
static enum hdt_status load_serve_all(struct hdt_state *state, const struct hdt_ckpt_reader *reader,
                                      struct peer *peers, size_t n_peers, struct hdt_error *err)
{
    size_t i, n_left = n_peers;

    for (i = 0; i < n_peers; i++) {
        walk_init(&peers[i].walk, state->conf.plan, state->conf.model,
                  state->conf.plan->flows[peers[i].flow].dst_rank, true);
        peers[i].at_end = !walk_next(&peers[i].walk);
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

static enum hdt_status load_read(struct hdt_state *state, const char *path, struct hdt_error *err)
{
    struct hdt_ckpt_reader *reader;
    enum hdt_status status;
    struct peer *peers;
    size_t n_peers;

    state->keepalive_us = hdt_clock_now_us();
    HDT_TRY(hdt_ckpt_reader_open(path, state->conf.model, keepalive, state, &reader, err));
    state->meta = *hdt_ckpt_reader_meta(reader);
    state->meta.job = NULL;
    n_peers = peers_list(state, HDT_FLOW_STATE_IN, &peers);
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
static enum hdt_status load_take_slab(struct hdt_state *state, const struct walk *walk,
                                      uint64_t pos, const void *frame, size_t len,
                                      struct hdt_error *err)
{
    struct hdt_state_header header;
    size_t data_len = len - HDT_STATE_HEADER_LEN;

    HDT_TRY(hdt_state_header_unpack(frame, len, &header, err));
    if ((int64_t)header.tensor != walk->tensor || header.part != walk->part ||
        header.offset != pos || data_len == 0 || data_len > walk_bytes(walk) - pos) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot load a checkpoint: %zu bytes of tensor %u at %llu came where "
                             "tensor %lld at %llu was expected",
                             data_len, header.tensor, (unsigned long long)header.offset,
                             (long long)walk->tensor, (unsigned long long)pos);
    }
    return hdt_stage_write(state->conf.stages[walk->stage],
                           (uint8_t *)walk_memory(state, walk) + pos,
                           (const uint8_t *)frame + HDT_STATE_HEADER_LEN, data_len, err);
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
    }
}

static enum hdt_status load_receive(struct hdt_state *state, int flow, struct hdt_error *err)
{
    struct hdt_state_header header;
    enum hdt_status status;
    const void *frame;
    struct walk walk;
    uint64_t pos;
    size_t len;

    walk_init(&walk, state->conf.plan, state->conf.model, state->conf.rank, true);
    while (walk_next(&walk)) {
        for (pos = 0; pos < walk_bytes(&walk); pos += len - HDT_STATE_HEADER_LEN) {
            HDT_TRY(load_next(state, flow, &frame, &len, &header, err));
            status = load_take_slab(state, &walk, pos, frame, len, err);
            hdt_port_recv_done(state->conf.port, flow);
            HDT_TRY(status);
        }
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

enum hdt_status hdt_state_load(struct hdt_state *state, const char *path,
                               struct hdt_ckpt_meta *meta, struct hdt_error *err)
{
    int flow;

    memset(&state->meta, 0, sizeof(state->meta));
    if (state->conf.rank == state->conf.plan->checkpoint_rank) {
        HDT_TRY(load_read(state, path, err));
    } else {
        flow = own_flow(state, HDT_FLOW_STATE_IN);
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
