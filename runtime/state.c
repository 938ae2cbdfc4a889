/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "runtime/state_impl.h"

#include "runtime/wire.h"
#include "src/base/buf.h"
#include "src/base/clock.h"

#include <stdlib.h>
#include <string.h>

#define STATE_MAGIC 0x54534448u /* "HDST" */

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
    hdt_wire_put_u64(p + 48, header->xxh3);
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
    header->xxh3 = hdt_wire_get_u64(p + 48);
    if (header->part >= HDT_CKPT_PART_COUNT || header->step < 0) {
        return hdt_error_set(err, HDT_EPROTO, "cannot read a STATE frame: part %u, step %lld",
                             header->part, (long long)header->step);
    }
    return HDT_OK;
}

/* ---- what a rank holds ---- */

static void walk_begin(struct state_walk *walk, const struct hdt_plan *plan,
                       const struct hdt_model_config *model, int rank, bool with_copies)
{
    memset(walk, 0, sizeof(*walk));
    walk->plan = plan;
    walk->model = model;
    walk->rank = rank;
    walk->with_copies = with_copies;
    /* Other replicas have the first one's weights; their moments are saved by unit. */
    walk->stage =
        !with_copies && hdt_plan_rank_replica(plan, rank) > 0 ? plan->n_stages - 1 : (size_t)-1;
    walk->part = HDT_CKPT_PART_COUNT; /* "before the first" */
}

void hdt_state_walk_init(struct state_walk *walk, const struct hdt_state *state, int rank,
                         bool with_copies)
{
    walk_begin(walk, state->conf.plan, state->conf.model, rank, with_copies);
}

static bool walk_next_stage(struct state_walk *walk)
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

bool hdt_state_walk_next(struct state_walk *walk)
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

uint64_t hdt_state_snapshot_bytes(const struct hdt_plan *plan, const struct hdt_model_config *model,
                                  int rank)
{
    struct state_walk walk;
    uint64_t bytes = 0;

    walk_begin(&walk, plan, model, rank, false);
    while (hdt_state_walk_next(&walk)) {
        bytes += hdt_state_walk_bytes(&walk);
    }
    return bytes;
}

float *hdt_state_walk_memory(const struct hdt_state *state, const struct state_walk *walk)
{
    struct hdt_stage *stage = state->conf.stages[walk->stage];
    struct hdt_stage_tensor view;

    hdt_stage_tensor(stage, (int)(walk->tensor - hdt_stage_first_tensor(stage)), &view);
    HDT_ASSERT(view.len * sizeof(float) == hdt_state_walk_bytes(walk));
    return walk->part == HDT_CKPT_WEIGHT    ? view.w
           : walk->part == HDT_CKPT_EXP_AVG ? view.m
                                            : view.v;
}

size_t hdt_state_peers(const struct hdt_state *state, enum hdt_flow_kind kind,
                       struct state_peer **peers)
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

int hdt_state_own_flow(const struct hdt_state *state, enum hdt_flow_kind kind)
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

/* ---- sending ---- */

void hdt_state_header_fill(const struct hdt_state *state, struct hdt_state_header *header)
{
    memset(header, 0, sizeof(*header));
    header->step = state->meta.step;
    header->samples = state->meta.samples;
    header->tokens = state->meta.tokens;
}

enum hdt_status hdt_state_send_mark(struct hdt_state *state, int flow, uint8_t flags,
                                    struct hdt_error *err)
{
    struct hdt_state_header header;
    size_t cap;
    void *slot;

    HDT_TRY(hdt_port_send_get(state->conf.port, flow, &slot, &cap, err));
    hdt_state_header_fill(state, &header);
    header.flags = flags;
    hdt_state_header_pack(&header, slot);
    hdt_port_send_commit(state->conf.port, flow, HDT_STATE_HEADER_LEN, HDT_STATE_HEADER_LEN,
                         HDT_DTYPE_F32);
    return HDT_OK;
}

size_t hdt_state_slab_len(size_t cap, uint64_t left)
{
    size_t room = (cap - HDT_STATE_HEADER_LEN) / sizeof(float) * sizeof(float);

    return left < room ? (size_t)left : room;
}

/* ---- life ---- */

enum hdt_status hdt_state_new(const struct hdt_state_conf *conf, struct hdt_state **out,
                              struct hdt_error *err)
{
    struct hdt_state *state = hdt_calloc(1, sizeof(*state));
    uint64_t bytes = hdt_state_snapshot_bytes(conf->plan, conf->model, conf->rank);
    size_t n_pairs = (size_t)hdt_model_n_tensors(conf->model) * HDT_CKPT_PART_COUNT;
    pthread_condattr_t attr;

    state->conf = *conf;
    pthread_mutex_init(&state->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&state->changed, &attr);
    pthread_condattr_destroy(&attr);
    state->slab = malloc(STATE_SLAB_BYTES);
    state->xxh3 = XXH3_createState();
    state->digests = hdt_calloc(n_pairs, sizeof(*state->digests));
    if (conf->background) {
        state->snapshot = malloc(bytes + 1);
    }
    if (!state->slab || !state->xxh3 || (conf->background && !state->snapshot)) {
        hdt_state_free(state);
        hdt_error_set(err, HDT_ENOMEM, "cannot make room for checkpoints: %llu MiB wanted",
                      (unsigned long long)(bytes >> 20));
        hdt_error_hint(err, "set checkpoint.every to 0, which saves only at the end");
        return HDT_ENOMEM;
    }
    if (hdt_state_feedback_init(state, err) != HDT_OK) {
        hdt_state_free(state);
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
    pthread_cond_destroy(&state->changed);
    pthread_mutex_destroy(&state->lock);
    XXH3_freeState(state->xxh3);
    hdt_state_feedback_release(state);
    free(state->digests);
    free(state->snapshot);
    free(state->slab);
    free(state);
}

enum hdt_status hdt_state_check(const struct hdt_state *state, struct hdt_error *err)
{
    return state->conf.port ? hdt_port_job_check(state->conf.port, err) : HDT_OK;
}

void hdt_state_moved(void *arg)
{
    struct hdt_state *state = arg;

    atomic_fetch_add_explicit(&state->n_moved, 1, memory_order_relaxed);
    if (state->conf.port) {
        hdt_port_job_progress(state->conf.port);
    }
    hdt_alive_moved(state->conf.alive, "saving", 0, 0);
}
