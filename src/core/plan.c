/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * From stages to flows.
 *
 * Depths. A flow's depth is the number of frames that its ends keep slots for: from SEND until the
 * receiver has taken the frame. They are chosen so that no SEND of a training step ever waits for a
 * slot (w: warm-up of a stage, s the sending, 0 the first stage; forward m of a stage follows its
 * backward m - w - 1, or the first half of it; where stages take turns, w is one less than the most
 * micro-batches between their forward and their backward):
 *
 *   activations s -> s + 1   w(s) + 2: at forward m, stage s has seen the gradient of m - w(s) - 1,
 *                            so stage s + 1 has taken that activation
 *   gradients s + 1 -> s     w(s) + 2: before backward m of stage s + 1, stage s has sent its last
 *                            forward, hence taken all gradients but w(s) + 1
 *   tokens, labels           w(0) + 3: as activations of stage 0; a data rank that does not hold
 *                            stage 0 loads up to w(0) + 1 micro-batches ahead of it
 *
 * and never more than a step has micro-batches. This needs warm-ups that do not grow along the
 * pipeline, but where stages take turns. schedule.c builds its lists on it;
 * tests/unit/test_schedule.c plays them.
 */
#include "compress/codec.h"
#include "compress/ladder.h"
#include "src/base/buf.h"
#include "src/core/plan.h"
#include "src/core/plan_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Room of a SYNC_UP record: a header and 16 bytes a tensor (doc/protocol.md). */
#define SYNC_HEADER_LEN 64u
#define SYNC_ITEM_LEN   16u
#define SYNC_DEPTH      2u

/* Checkpoint state travels in slabs: large enough for the link, small beside the model. */
#define STATE_SLAB_BYTES (4u << 20)
#define STATE_DEPTH      4u

/* Slabs of an outer step in flight, and most micro-batches of tokens for another replica. */
#define OUTER_DEPTH  4u
#define TOKENS_DEPTH 128

const char *hdt_flow_kind_name(enum hdt_flow_kind kind)
{
    return (unsigned)kind < HDT_FLOW_KIND_COUNT ? hdt_flow_kind_names[kind] : "?";
}

const char *const hdt_flow_kind_names[HDT_FLOW_KIND_COUNT + 1] = {
    "activation", "activation_grad", "tokens",   "labels", "tied_grad", "sync_up",
    "sync_down",  "state_out",       "state_in", "outer",  NULL};

bool hdt_plan_has_worker(const struct hdt_plan *plan, const char *site, const char *worker)
{
    for (size_t i = 0; i < plan->n_ranks; i++) {
        if (strcmp(plan->ranks[i].site, site) == 0 && strcmp(plan->ranks[i].worker, worker) == 0) {
            return true;
        }
    }
    return false;
}

void hdt_plan_release(struct hdt_plan *plan)
{
    free(plan->ranks);
    free(plan->stages);
    free(plan->flows);
    memset(plan, 0, sizeof(*plan));
}

uint32_t hdt_plan_frame_bytes(const struct hdt_codec_spec *codec, uint64_t n_values)
{
    enum hdt_status status;
    size_t bytes;

    HDT_ASSERT(n_values <= HDT_FRAME_MAX_LEN / 4);
    status = hdt_codec_bound(hdt_codec_spec_worker(codec), codec, HDT_DTYPE_F32,
                             4 * (size_t)n_values, &bytes, NULL);
    HDT_ASSERT(status == HDT_OK && bytes <= UINT32_MAX); /* worker codecs take fp32 */
    return (uint32_t)bytes;
}

int hdt_plan_find_flow(const struct hdt_plan *plan, enum hdt_flow_kind kind, int src_rank,
                       int dst_rank, int src_stage, int dst_stage)
{
    for (size_t i = 0; i < plan->n_flows; i++) {
        const struct hdt_plan_flow *f = &plan->flows[i];

        if (f->kind == kind && f->src_rank == src_rank && f->dst_rank == dst_rank &&
            f->src_stage == src_stage && f->dst_stage == dst_stage) {
            return (int)i;
        }
    }
    return -1;
}

static bool plan_same_site(const struct hdt_plan *plan, int a, int b)
{
    return strcmp(plan->ranks[a].site, plan->ranks[b].site) == 0;
}

/* ---- checks of ranks and stages ---- */

static enum hdt_status plan_check_ranks(const struct hdt_plan *plan, struct hdt_error *err)
{
    for (size_t i = 0; i < plan->n_ranks; i++) {
        const struct hdt_plan_rank *a = &plan->ranks[i];

        if (!hdt_name_is_valid(a->site) || !hdt_name_is_valid(a->worker) || a->device < 0) {
            return hdt_error_set(err, HDT_EINVAL, "rank %zu has no valid site, worker or device",
                                 i);
        }
        for (size_t j = 0; j < i; j++) {
            const struct hdt_plan_rank *b = &plan->ranks[j];

            if (strcmp(a->site, b->site) == 0 && strcmp(a->worker, b->worker) == 0 &&
                a->device == b->device) {
                hdt_error_set(err, HDT_EINVAL, "ranks %zu and %zu are the same device %s/%s", j, i,
                              a->site, a->worker);
                hdt_error_hint(err, "name a worker for the stages of one replica only");
                return HDT_EINVAL;
            }
        }
    }
    return HDT_OK;
}

/* Of a replica, which `plan` shows alone. */
static enum hdt_status plan_check_stage(const struct hdt_plan *plan, size_t idx, int replica,
                                        struct hdt_error *err)
{
    const struct hdt_plan_stage *s = &plan->stages[idx];
    const struct hdt_plan_stage *prev = idx > 0 ? s - 1 : NULL;

    if (s->replica != replica || s->pos != (int)idx || s->n_slices != 1) {
        return hdt_error_set(
            err, HDT_EINVAL,
            "stage %zu has replica %d, position %d and %d slices; stages follow by "
            "replica and position, and are not sliced",
            idx, s->replica, s->pos, s->n_slices);
    }
    if (s->rank < 0 || (size_t)s->rank >= plan->n_ranks) {
        return hdt_error_set(err, HDT_EINVAL, "stage %zu runs on rank %d of %zu", idx, s->rank,
                             plan->n_ranks);
    }
    if (prev && prev->rank == s->rank) {
        return hdt_error_set(err, HDT_EINVAL,
                             "stages %zu and %zu are neighbours on rank %d: they are one stage",
                             idx - 1, idx, s->rank);
    }
    if (s->unit_begin != (prev ? prev->unit_end : 0) || s->unit_end <= s->unit_begin) {
        return hdt_error_set(err, HDT_EINVAL,
                             "stage %zu has units [%lld, %lld): stages must follow one another "
                             "without gap or overlap",
                             idx, (long long)s->unit_begin, (long long)s->unit_end);
    }
    if (s->warmup < 0 || s->warmup > plan->n_micro_batches ||
        (prev && prev->warmup < s->warmup && plan->schedule != HDT_SCHEDULE_INTERLEAVED)) {
        return hdt_error_set(err, HDT_EINVAL,
                             "stage %zu has a warm-up of %lld: it must lie in 0..%lld and not grow "
                             "along the pipeline",
                             idx, (long long)s->warmup, (long long)plan->n_micro_batches);
    }
    return HDT_OK;
}

static enum hdt_status plan_check_batch(const struct hdt_plan *plan,
                                        const struct hdt_model_config *model, struct hdt_error *err)
{
    if (plan->micro_batch < 1 || plan->micro_batch > 65536 || plan->n_micro_batches < 1 ||
        plan->n_micro_batches > 65536 || plan->seq_len < 1 || plan->seq_len > model->T) {
        return hdt_error_set(
            err, HDT_EINVAL,
            "a batch of %lld micro-batches of %lld sequences of %lld tokens is out "
            "of bounds",
            (long long)plan->n_micro_batches, (long long)plan->micro_batch,
            (long long)plan->seq_len);
    }
    if (plan->micro_batch * plan->seq_len > (int64_t)(HDT_FRAME_MAX_LEN / 4) / model->C) {
        return hdt_error_set(
            err, HDT_EINVAL,
            "an activation of one micro-batch is above the limit of a frame, 1 GiB");
    }
    return HDT_OK;
}

static enum hdt_status plan_check_pipeline(const struct hdt_plan *plan, int replica,
                                           const struct hdt_model_config *model,
                                           struct hdt_error *err)
{
    const struct hdt_plan_stage *last;

    if (plan->n_stages < 1 || plan->n_stages > (size_t)hdt_model_n_units(model) ||
        plan->n_micro_batches < 1) {
        return hdt_error_set(err, HDT_EINVAL,
                             "replica %d has %zu stages and %lld micro-batches: out of bounds",
                             replica, plan->n_stages, (long long)plan->n_micro_batches);
    }
    for (size_t i = 0; i < plan->n_stages; i++) {
        HDT_TRY(plan_check_stage(plan, i, replica, err));
        if (plan->stages[i].n_micro_batches != plan->n_micro_batches) {
            return hdt_error_set(err, HDT_EINVAL,
                                 "stage %zu of replica %d has %lld micro-batches, its first %lld",
                                 i, replica, (long long)plan->stages[i].n_micro_batches,
                                 (long long)plan->n_micro_batches);
        }
    }
    last = &plan->stages[plan->n_stages - 1];
    if (last->unit_end != hdt_model_n_units(model)) {
        return hdt_error_set(err, HDT_EINVAL, "the stages cover %lld units, the model has %lld",
                             (long long)last->unit_end, (long long)hdt_model_n_units(model));
    }
    return hdt_plan_check_order(plan, err);
}

/* What replicas must have in common, and must not. */
static enum hdt_status plan_check_replicas(const struct hdt_plan *plan,
                                           const struct hdt_model_config *model,
                                           struct hdt_error *err)
{
    int64_t first, n = hdt_plan_replica_micro_batches(plan, plan->n_replicas - 1, &first);
    size_t begin, end;

    if (first + n != plan->n_micro_batches) {
        return hdt_error_set(err, HDT_EINVAL,
                             "the replicas have %lld micro-batches in a step, the plan %lld",
                             (long long)(first + n), (long long)plan->n_micro_batches);
    }
    for (size_t i = 0; i < plan->n_stages; i++) {
        if (hdt_plan_rank_replica(plan, plan->stages[i].rank) != plan->stages[i].replica) {
            return hdt_error_set(err, HDT_EINVAL, "rank %d has stages of two replicas",
                                 plan->stages[i].rank);
        }
        hdt_plan_replica_stages(plan, plan->stages[i].replica, &begin, &end);
        if (model->tie_word_embeddings && end - begin > 1) {
            hdt_error_set(err, HDT_EINVAL,
                          "replica %d of a model with tied embeddings has %zu stages: with outer "
                          "steps its replicas have one each",
                          plan->stages[i].replica, end - begin);
            hdt_error_hint(err, "set outer.steps: 0, or tie_word_embeddings: false");
            return HDT_EINVAL;
        }
    }
    return HDT_OK;
}

enum hdt_status hdt_plan_check_stages(const struct hdt_plan *plan,
                                      const struct hdt_model_config *model, struct hdt_error *err)
{
    enum hdt_status status = HDT_OK;
    struct hdt_plan view, bare = *plan;

    if (plan->n_ranks < 1 || plan->n_ranks > HDT_PLAN_MAX_RANKS || plan->n_stages < 1 ||
        plan->n_replicas < 1 || (size_t)plan->n_replicas > plan->n_stages ||
        plan->stages[plan->n_stages - 1].replica != plan->n_replicas - 1) {
        return hdt_error_set(err, HDT_EINVAL,
                             "%zu ranks, %zu stages and %d replicas are out of bounds",
                             plan->n_ranks, plan->n_stages, plan->n_replicas);
    }
    HDT_TRY(plan_check_batch(plan, model, err));
    HDT_TRY(plan_check_ranks(plan, err));
    for (size_t i = 1; i < plan->n_stages; i++) {
        if (plan->stages[i].replica < plan->stages[i - 1].replica) {
            return hdt_error_set(err, HDT_EINVAL, "stage %zu stands after a later replica's", i);
        }
    }
    for (size_t i = 0; i < plan->n_stages; i++) {
        if (plan->stages[i].rank < 0 || (size_t)plan->stages[i].rank >= plan->n_ranks) {
            return hdt_error_set(err, HDT_EINVAL, "stage %zu runs on rank %d of %zu", i,
                                 plan->stages[i].rank, plan->n_ranks);
        }
    }
    bare.n_flows = 0; /* none is looked at, and there may be many */
    for (int k = 0; k < plan->n_replicas && status == HDT_OK; k++) {
        hdt_plan_replica_view(&bare, k, &view);
        status = plan_check_pipeline(&view, k, model, err);
        free(view.flows);
    }
    HDT_TRY(status);
    return plan->n_replicas > 1 ? plan_check_replicas(plan, model, err) : HDT_OK;
}

/* ---- flows ---- */

#define FLOWS_CAP_FIRST 32u

struct completer {
    struct hdt_plan *plan;
    size_t flows_cap; /* flows that there is room for */
    const struct hdt_job *job;
    const struct hdt_model_config *model;
    struct hdt_plan_flow *old; /* flows whose codecs the planner chose */
    size_t n_old;
    size_t begin, end; /* stages of the replica in work, */
    int64_t n_mb;      /* and its micro-batches */
};

static struct hdt_plan_flow *flow_add(struct completer *c, enum hdt_flow_kind kind,
                                      enum hdt_prio prio, int src_rank, int dst_rank)
{
    struct hdt_plan *plan = c->plan;
    struct hdt_plan_flow *flow;

    if (plan->n_flows == c->flows_cap) {
        c->flows_cap = c->flows_cap > 0 ? 2 * c->flows_cap : FLOWS_CAP_FIRST;
        plan->flows = hdt_realloc(plan->flows, c->flows_cap * sizeof(plan->flows[0]));
    }
    flow = &plan->flows[plan->n_flows++];
    *flow = (struct hdt_plan_flow){
        .kind = kind,
        .prio = prio,
        .src_rank = src_rank,
        .dst_rank = dst_rank,
        .src_stage = -1,
        .dst_stage = -1,
        .dtype = HDT_DTYPE_F32,
    };
    return flow;
}

static const struct hdt_codec_spec codec_none;
static const struct hdt_codec_spec codec_lossless = {.gateway = HDT_CODEC_LOSSLESS};

/* Codec of an edge: chosen by the planner, else the job's, else lossless. Inside a site bytes are
 * cheap and every codec only costs time. */
static struct hdt_codec_spec edge_codec(const struct completer *c, const struct hdt_plan_flow *flow)
{
    struct hdt_codec_spec named;

    for (size_t i = 0; i < c->n_old; i++) {
        const struct hdt_plan_flow *old = &c->old[i];

        if (old->kind == flow->kind && old->src_stage == flow->src_stage &&
            old->dst_stage == flow->dst_stage) {
            return old->codec;
        }
    }
    if (plan_same_site(c->plan, flow->src_rank, flow->dst_rank)) {
        return codec_none;
    }
    return hdt_job_codec(c->job, flow->kind == HDT_FLOW_ACTIVATION_GRAD, &named) ? named
                                                                                 : codec_lossless;
}

/* Slots take what any codec makes that the edge may come to use. Where the choice is made in the
 * run, the gateways may leave lossless out as well as use it. */
static void edge_make_room(const struct completer *c, struct hdt_plan_flow *flow, uint64_t n_values)
{
    const bool is_live = !plan_same_site(c->plan, flow->src_rank, flow->dst_rank) &&
                         hdt_job_codec_is_live(c->job, flow->kind == HDT_FLOW_ACTIVATION_GRAD);

    if (is_live) {
        flow->codec.gateway = HDT_CODEC_LOSSLESS;
    }
    flow->frame_cap = (uint32_t)hdt_ladder_frame_bytes(
        &flow->codec, is_live, c->job->codec.error_budget, 4 * (size_t)n_values);
}

/* Codec of large exact tensors that are no activations. */
static struct hdt_codec_spec exact_codec(const struct completer *c, int src_rank, int dst_rank)
{
    struct hdt_codec_spec named;

    if (plan_same_site(c->plan, src_rank, dst_rank) ||
        (hdt_job_codec(c->job, false, &named) && hdt_codec_spec_equal(&named, &codec_none))) {
        return codec_none;
    }
    return codec_lossless;
}

static uint32_t depth_of(const struct completer *c, int64_t frames)
{
    return (uint32_t)(frames < c->n_mb ? frames : c->n_mb);
}

static void flows_add_edge(struct completer *c, int stage, enum hdt_flow_kind kind)
{
    const struct hdt_plan *plan = c->plan;
    bool forward = kind == HDT_FLOW_ACTIVATION;
    int src = forward ? stage : stage + 1, dst = forward ? stage + 1 : stage;
    uint64_t n_values =
        (uint64_t)plan->micro_batch * (uint64_t)plan->seq_len * (uint64_t)c->model->C;
    struct hdt_plan_flow *flow =
        flow_add(c, kind, HDT_PRIO_ACTIVATION, plan->stages[src].rank, plan->stages[dst].rank);

    flow->src_stage = src;
    flow->dst_stage = dst;
    flow->codec = edge_codec(c, flow);
    edge_make_room(c, flow, n_values);
    flow->depth = depth_of(c, plan->stages[stage].warmup + 2);
}

static void flows_add_data(struct completer *c, enum hdt_flow_kind kind, int stage)
{
    const struct hdt_plan *plan = c->plan;
    struct hdt_plan_flow *flow;

    if (plan->stages[stage].rank == plan->data_rank) {
        return;
    }
    flow = flow_add(c, kind, HDT_PRIO_ACTIVATION, plan->data_rank, plan->stages[stage].rank);
    flow->dst_stage = stage;
    flow->dtype = HDT_DTYPE_I32;
    flow->frame_cap = (uint32_t)(4 * plan->micro_batch * plan->seq_len);
    flow->depth = depth_of(c, plan->stages[c->begin].warmup + 3);
    /* Another replica may be steps behind; tokens are small. */
    if (hdt_plan_rank_replica(plan, plan->data_rank) != plan->stages[stage].replica) {
        flow->depth = (uint32_t)(2 * c->n_mb < TOKENS_DEPTH ? 2 * c->n_mb : TOKENS_DEPTH);
    }
}

static enum hdt_status flows_add_tied(struct completer *c, struct hdt_error *err)
{
    const struct hdt_plan *plan = c->plan;
    int last_stage = (int)c->end - 1, first_stage = (int)c->begin;
    int first = plan->stages[first_stage].rank, last = plan->stages[last_stage].rank;
    uint64_t bytes = 4 * (uint64_t)c->model->V * (uint64_t)c->model->C;
    struct hdt_plan_flow *flow;

    if (!c->model->tie_word_embeddings || first == last) {
        return HDT_OK;
    }
    if (bytes > HDT_FRAME_MAX_LEN) {
        hdt_error_set(err, HDT_EINVAL,
                      "the tied embedding takes %.1f GiB, more than a frame of 1 GiB, and its two "
                      "ends are on unlike workers",
                      (double)bytes / (double)(1u << 30));
        hdt_error_hint(err, "set plan.max_stages: 1 or tie_word_embeddings: false");
        return HDT_EINVAL;
    }
    for (int i = 0; i < 2; i++) {
        flow =
            flow_add(c, HDT_FLOW_TIED_GRAD, HDT_PRIO_GRADIENT, i ? last : first, i ? first : last);
        flow->src_stage = i ? last_stage : first_stage;
        flow->dst_stage = i ? first_stage : last_stage;
        flow->codec = exact_codec(c, first, last);
        flow->frame_cap = (uint32_t)bytes;
        flow->depth = 1;
    }
    return HDT_OK;
}

static uint32_t sync_up_bytes(const struct completer *c, int rank)
{
    uint32_t n_tensors = 0;

    for (size_t s = 0; s < c->plan->n_stages; s++) {
        const struct hdt_plan_stage *stage = &c->plan->stages[s];
        int64_t first, n;

        for (int64_t u = stage->unit_begin; stage->rank == rank && u < stage->unit_end; u++) {
            hdt_model_unit_tensors(c->model, u, &first, &n);
            n_tensors += (uint32_t)n;
        }
    }
    return SYNC_HEADER_LEN + SYNC_ITEM_LEN * n_tensors;
}

/* A rank to its root and back. */
static void flows_add_sync_pair(struct completer *c, int rank, int root, uint32_t up_bytes)
{
    struct hdt_plan_flow *flow = flow_add(c, HDT_FLOW_SYNC_UP, HDT_PRIO_ACTIVATION, rank, root);

    flow->dtype = HDT_DTYPE_NONE;
    flow->frame_cap = up_bytes;
    flow->depth = SYNC_DEPTH;
    flow = flow_add(c, HDT_FLOW_SYNC_DOWN, HDT_PRIO_ACTIVATION, root, rank);
    flow->dtype = HDT_DTYPE_NONE;
    flow->frame_cap = SYNC_HEADER_LEN;
    flow->depth = SYNC_DEPTH;
}

/* In each step within a replica; the roots of the others and the plan's root at outer steps. */
static void flows_add_sync(struct completer *c)
{
    struct hdt_plan *plan = c->plan;
    int root;

    for (int rank = 0; rank < (int)plan->n_ranks; rank++) {
        root = hdt_plan_replica_root(plan, hdt_plan_rank_replica(plan, rank));
        if (rank != root) {
            flows_add_sync_pair(c, rank, root, sync_up_bytes(c, rank));
        }
    }
    for (int k = 1; k < plan->n_replicas; k++) {
        flows_add_sync_pair(c, hdt_plan_replica_root(plan, k), plan->root_rank,
                            SYNC_HEADER_LEN + SYNC_ITEM_LEN);
    }
}

static bool rank_has_stage(const struct hdt_plan *plan, int rank)
{
    for (size_t s = 0; s < plan->n_stages; s++) {
        if (plan->stages[s].rank == rank) {
            return true;
        }
    }
    return false;
}

static void flows_add_state(struct completer *c)
{
    struct hdt_plan *plan = c->plan;

    for (int rank = 0; rank < (int)plan->n_ranks; rank++) {
        if (rank == plan->checkpoint_rank || !rank_has_stage(plan, rank)) {
            continue;
        }
        for (int in = 0; in < 2; in++) {
            struct hdt_plan_flow *flow =
                flow_add(c, in ? HDT_FLOW_STATE_IN : HDT_FLOW_STATE_OUT, HDT_PRIO_CHECKPOINT,
                         in ? plan->checkpoint_rank : rank, in ? rank : plan->checkpoint_rank);

            flow->codec = exact_codec(c, rank, plan->checkpoint_rank);
            flow->frame_cap = STATE_SLAB_BYTES;
            flow->depth = STATE_DEPTH;
        }
    }
}

/* The ranks that hold a unit of rank `a` in another replica. */
static void ranks_meet(const struct hdt_plan *plan, int a, bool *meets)
{
    memset(meets, 0, plan->n_ranks * sizeof(*meets));
    for (size_t i = 0; i < plan->n_stages; i++) {
        const struct hdt_plan_stage *s = &plan->stages[i];

        for (size_t j = 0; s->rank == a && j < plan->n_stages; j++) {
            const struct hdt_plan_stage *t = &plan->stages[j];

            if (t->replica != s->replica && s->unit_begin < t->unit_end &&
                t->unit_begin < s->unit_end) {
                meets[t->rank] = true;
            }
        }
    }
}

/* Does a flow stand before the outer one between these ranks? */
static bool is_before(const struct hdt_plan_flow *flow, int src, int dst)
{
    return flow->kind != HDT_FLOW_OUTER || flow->src_rank < src ||
           (flow->src_rank == src && flow->dst_rank < dst);
}

/* All replicas must see the same numbers, so that the worker's codec is the same on all ways. Flows
 * that the plan has are in this order, too, if it is a sound one: they are passed once. */
static struct hdt_codec_spec outer_codec(const struct completer *c, int src, int dst, size_t *pos)
{
    struct hdt_codec_spec spec = hdt_job_outer_codec(c->job);

    while (*pos < c->n_old && is_before(&c->old[*pos], src, dst)) {
        ++*pos;
    }
    if (*pos < c->n_old && c->old[*pos].src_rank == src && c->old[*pos].dst_rank == dst) {
        return c->old[*pos].codec;
    }
    if (plan_same_site(c->plan, src, dst)) {
        spec.gateway = HDT_CODEC_NONE;
    }
    return spec;
}

static void flows_add_outer(struct completer *c)
{
    int n = c->plan->n_replicas > 1 ? (int)c->plan->n_ranks : 0;
    uint64_t slab = hdt_plan_outer_slab(c->model);
    bool *meets = hdt_calloc((size_t)n + 1, sizeof(*meets));
    size_t pos = 0;

    for (int a = 0; a < n; a++) {
        ranks_meet(c->plan, a, meets);
        for (int b = 0; b < n && c->plan->n_flows <= HDT_PLAN_MAX_FLOWS; b++) {
            if (meets[b]) {
                struct hdt_plan_flow *flow = flow_add(c, HDT_FLOW_OUTER, HDT_PRIO_OUTER, a, b);

                flow->codec = outer_codec(c, a, b, &pos);
                flow->frame_cap = hdt_plan_frame_bytes(&flow->codec, slab);
                flow->depth = OUTER_DEPTH;
            }
        }
    }
    free(meets);
}

/* ---- roles ---- */

/* The rank of `site` that serves: the first stage's where it can, so that fewest bytes travel. */
static int rank_at_site(const struct hdt_plan *plan, const char *site)
{
    size_t begin, end;
    int first, last;

    hdt_plan_replica_stages(plan, 0, &begin, &end);
    first = plan->stages[begin].rank;
    last = plan->stages[end - 1].rank;
    if (!site || !site[0] || strcmp(plan->ranks[first].site, site) == 0) {
        return first;
    }
    if (strcmp(plan->ranks[last].site, site) == 0) {
        return last;
    }
    for (size_t i = 0; i < plan->n_ranks; i++) {
        if (strcmp(plan->ranks[i].site, site) == 0) {
            return (int)i;
        }
    }
    return -1;
}

/* Evaluations read held-out text at the data rank and run in the first replica. */
static enum hdt_status plan_check_data_rank(const struct hdt_plan *plan, struct hdt_error *err)
{
    int replica = hdt_plan_rank_replica(plan, plan->data_rank);

    if (replica == 0) {
        return HDT_OK;
    }
    hdt_error_set(err, HDT_EINVAL,
                  "site %s, which has the data, has stages of replica %d: it must be the first",
                  plan->ranks[plan->data_rank].site, replica + 1);
    hdt_error_hint(err, "write the replica of data.site first in plan.cut");
    return HDT_EINVAL;
}

static enum hdt_status plan_set_roles(struct hdt_plan *plan, const struct hdt_job *job,
                                      struct hdt_error *err)
{
    const char *data_site = job->data.site;
    const char *checkpoint_site = job->checkpoint.site;

    plan->root_rank = plan->stages[0].rank;
    plan->data_rank = rank_at_site(plan, data_site);
    if (plan->data_rank < 0) {
        return hdt_error_set(err, HDT_EINVAL, "data.site '%s' has no worker in this plan",
                             data_site);
    }
    HDT_TRY(plan_check_data_rank(plan, err));
    if (!checkpoint_site || !checkpoint_site[0]) {
        plan->checkpoint_rank = plan->data_rank;
        return HDT_OK;
    }
    plan->checkpoint_rank = rank_at_site(plan, checkpoint_site);
    if (plan->checkpoint_rank < 0) {
        return hdt_error_set(err, HDT_EINVAL, "checkpoint.site '%s' has no worker in this plan",
                             checkpoint_site);
    }
    return HDT_OK;
}

enum hdt_status hdt_plan_derive_flows(struct hdt_plan *plan, const struct hdt_job *job,
                                      const struct hdt_model_config *model, struct hdt_error *err)
{
    struct completer c = {
        .plan = plan, .job = job, .model = model, .old = plan->flows, .n_old = plan->n_flows};
    enum hdt_status status = HDT_OK;

    plan->flows = NULL;
    plan->n_flows = 0;
    for (int k = 0; k < plan->n_replicas && status == HDT_OK; k++) {
        int64_t first;

        hdt_plan_replica_stages(plan, k, &c.begin, &c.end);
        c.n_mb = hdt_plan_replica_micro_batches(plan, k, &first);
        for (size_t s = c.begin; s + 1 < c.end; s++) {
            flows_add_edge(&c, (int)s, HDT_FLOW_ACTIVATION);
            flows_add_edge(&c, (int)s, HDT_FLOW_ACTIVATION_GRAD);
        }
        flows_add_data(&c, HDT_FLOW_TOKENS, (int)c.begin);
        flows_add_data(&c, HDT_FLOW_LABELS, (int)c.end - 1);
        status = flows_add_tied(&c, err);
    }
    flows_add_sync(&c);
    flows_add_state(&c);
    flows_add_outer(&c);
    free(c.old);
    if (status == HDT_OK && plan->n_flows > HDT_PLAN_MAX_FLOWS) {
        status = hdt_error_set(err, HDT_EINVAL,
                               "%d replicas on %zu ranks need more than %u flows: each rank sends "
                               "its changes to all that hold a unit of it",
                               plan->n_replicas, plan->n_ranks, HDT_PLAN_MAX_FLOWS);
        hdt_error_hint(err, "plan fewer sites (plan.sites), or replicas that are cut alike");
    }
    return status;
}

enum hdt_status hdt_plan_complete(struct hdt_plan *plan, const struct hdt_job *job,
                                  const struct hdt_model_config *model, struct hdt_error *err)
{
    plan->micro_batch = job->batch.micro_batch;
    plan->n_micro_batches = job->batch.n_micro_batches;
    plan->seq_len = job->batch.seq_len;
    plan->n_replicas = plan->n_stages > 0 ? plan->stages[plan->n_stages - 1].replica + 1 : 1;
    for (size_t i = 0; i < plan->n_stages && plan->n_replicas == 1; i++) {
        plan->stages[i].n_micro_batches = plan->n_micro_batches;
    }
    if (job->plan.schedule != HDT_SCHEDULE_AUTO) {
        plan->schedule = (enum hdt_schedule_kind)job->plan.schedule;
    } else if (plan->schedule == HDT_SCHEDULE_AUTO) {
        plan->schedule = HDT_SCHEDULE_WAN; /* with the warm-ups that the stages have */
    }
    HDT_TRY(hdt_plan_fit_order(plan, err));
    HDT_TRY(hdt_plan_check_stages(plan, model, err));
    HDT_TRY(plan_set_roles(plan, job, err));
    HDT_TRY(hdt_plan_derive_flows(plan, job, model, err));
    return hdt_plan_check_codecs(plan, job, err);
}
