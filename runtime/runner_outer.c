/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Outer steps: replicas have trained alone; what each has changed goes to all others, and each
 * moves the common anchor by the mean.
 *
 * Units go in model order, in slabs. A rank sends a slab of its change to the rank of every other
 * replica that holds the unit, coded once, so that all decode the same bytes, its sender too. Some
 * slabs are on their way while the first comes in: coding, wire and arithmetic overlap. For R
 * replicas each sends its change R - 1 times. A reduction by shards would send it 2 (R - 1) / R
 * times, the same for two, but would code sums again, and wait for a second latency.
 *
 * Nobody waits in a circle: the lowest slab that is not done everywhere was sent by all whose lower
 * ones are done, and its receivers wait for no other.
 *
 * Anchor and momentum lie in the host's memory: they are touched once in many steps.
 */
#include "runtime/outer.h"
#include "runtime/runner_impl.h"

#include "src/base/buf.h"
#include "src/base/clock.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define SLABS_AHEAD 4 /* as deep as the flows */

/* A unit of this rank. */
struct outer_unit {
    int64_t unit;
    struct hdt_stage *stage;
    int tensor, n_tensors; /* in the stage */
    float *anchor, *momentum;
};

struct outer_slab {
    size_t unit; /* of the units above */
    size_t begin, n;
};

struct runner_outer {
    struct outer_unit *units; /* in model order */
    size_t n_units;
    struct outer_slab *slabs;
    size_t n_slabs;
    int *send, *recv; /* (unit, replica): flows; -1: this rank's own replica */
    float *share;     /* of each replica */
    float *memory, *ring, *work;
    double *sum;
    size_t slab_cap;
    float **momentum_of; /* by unit of the model; NULL where another rank's */
    size_t n_params;
};

/* The tied head of a rank that has the embedding is no tensor of its own. */
static bool is_shared(const struct hdt_stage_tensor *view)
{
    return view->shared;
}

/* ---- to be built ---- */

static size_t unit_len(const struct outer_unit *u)
{
    struct hdt_stage_tensor view;
    size_t len = 0;

    for (int i = 0; i < u->n_tensors; i++) {
        hdt_stage_tensor(u->stage, u->tensor + i, &view);
        len += is_shared(&view) ? 0 : view.len;
    }
    return len;
}

static int unit_order(const void *a, const void *b)
{
    const struct outer_unit *x = a, *y = b;

    return x->unit < y->unit ? -1 : x->unit > y->unit;
}

static void units_fill(const struct hdt_runner *r, struct runner_outer *o)
{
    int64_t first, n;

    o->units = hdt_calloc((size_t)hdt_model_n_units(&r->model), sizeof(*o->units));
    for (size_t s = 0; s < r->plan.n_stages; s++) {
        const struct hdt_plan_stage *stage = &r->plan.stages[s];

        for (int64_t u = stage->unit_begin; r->stages[s] && u < stage->unit_end; u++) {
            hdt_model_unit_tensors(&r->model, u, &first, &n);
            o->units[o->n_units++] =
                (struct outer_unit){.unit = u,
                                    .stage = r->stages[s],
                                    .tensor = (int)(first - hdt_stage_first_tensor(r->stages[s])),
                                    .n_tensors = (int)n};
        }
    }
    qsort(o->units, o->n_units, sizeof(*o->units), unit_order);
    for (size_t i = 0; i < o->n_units; i++) {
        o->n_params += unit_len(&o->units[i]);
    }
}

/* The rank of a replica that holds a unit. */
static int unit_rank(const struct hdt_plan *plan, int replica, int64_t unit)
{
    for (size_t s = 0; s < plan->n_stages; s++) {
        const struct hdt_plan_stage *stage = &plan->stages[s];

        if (stage->replica == replica && unit >= stage->unit_begin && unit < stage->unit_end) {
            return stage->rank;
        }
    }
    return -1;
}

static void flows_fill(const struct hdt_runner *r, struct runner_outer *o)
{
    const struct hdt_plan *plan = &r->plan;
    size_t R = (size_t)plan->n_replicas;
    int64_t first;

    o->send = hdt_calloc(o->n_units * R + 1, sizeof(*o->send));
    o->recv = hdt_calloc(o->n_units * R + 1, sizeof(*o->recv));
    o->share = hdt_calloc(R, sizeof(*o->share));
    for (size_t k = 0; k < R; k++) {
        o->share[k] = (float)((double)hdt_plan_replica_micro_batches(plan, (int)k, &first) /
                              (double)plan->n_micro_batches);
        for (size_t i = 0; i < o->n_units; i++) {
            int rank = unit_rank(plan, (int)k, o->units[i].unit);

            o->send[i * R + k] = hdt_plan_find_flow(plan, HDT_FLOW_OUTER, r->rank, rank, -1, -1);
            o->recv[i * R + k] = hdt_plan_find_flow(plan, HDT_FLOW_OUTER, rank, r->rank, -1, -1);
            HDT_ASSERT((o->send[i * R + k] < 0) == ((int)k == r->replica));
        }
    }
}

static void slabs_fill(struct runner_outer *o)
{
    size_t cap = 0;

    for (size_t i = 0; i < o->n_units; i++) {
        size_t len = unit_len(&o->units[i]);

        for (size_t at = 0; at < len; at += o->slab_cap) {
            if (o->n_slabs == cap) {
                cap = cap ? 2 * cap : 64;
                o->slabs = hdt_realloc(o->slabs, cap * sizeof(*o->slabs));
            }
            o->slabs[o->n_slabs++] = (struct outer_slab){
                .unit = i, .begin = at, .n = len - at < o->slab_cap ? len - at : o->slab_cap};
        }
    }
}

/* Float32 values beside anchor and momentum. */
static size_t work_len(size_t slab_cap)
{
    return (SLABS_AHEAD + 1) * slab_cap;
}

static uint64_t rank_values(const struct hdt_runner *r)
{
    uint64_t n = 0;

    for (size_t s = 0; s < r->plan.n_stages; s++) {
        const struct hdt_plan_stage *stage = &r->plan.stages[s];

        for (int64_t u = stage->unit_begin; stage->rank == r->rank && u < stage->unit_end; u++) {
            n += (uint64_t)hdt_model_unit_params(&r->model, u);
        }
    }
    return n;
}

uint64_t hdt_runner_outer_bytes(const struct hdt_runner *r)
{
    size_t slab = (size_t)hdt_plan_outer_slab(&r->model);

    return r->plan.n_replicas < 2 || rank_values(r) == 0
               ? 0
               : sizeof(float) * (2 * rank_values(r) + work_len(slab)) + sizeof(double) * slab;
}

enum hdt_status hdt_runner_build_outer(struct hdt_runner *r, struct hdt_error *err)
{
    struct runner_outer *o;
    float *at;

    if (r->plan.n_replicas < 2 || rank_values(r) == 0) {
        return HDT_OK;
    }
    o = r->outer = hdt_calloc(1, sizeof(*o));
    o->slab_cap = (size_t)hdt_plan_outer_slab(&r->model);
    units_fill(r, o);
    flows_fill(r, o);
    slabs_fill(o);
    o->memory = calloc(2 * o->n_params + 1, sizeof(float));
    o->ring = malloc(work_len(o->slab_cap) * sizeof(float));
    o->sum = malloc(o->slab_cap * sizeof(double));
    if (!o->memory || !o->ring || !o->sum) {
        hdt_error_set(err, HDT_ENOMEM, "cannot make room for outer steps: %llu MiB wanted",
                      (unsigned long long)(hdt_runner_outer_bytes(r) >> 20));
        hdt_error_hint(err, "use more workers for this replica, or set outer.steps: 0");
        return HDT_ENOMEM;
    }
    o->work = o->ring + SLABS_AHEAD * o->slab_cap;
    o->momentum_of = hdt_calloc((size_t)hdt_model_n_units(&r->model), sizeof(*o->momentum_of));
    at = o->memory;
    for (size_t i = 0; i < o->n_units; i++) {
        o->units[i].anchor = at;
        at += unit_len(&o->units[i]);
        o->units[i].momentum = at;
        o->momentum_of[o->units[i].unit] = at;
        at += unit_len(&o->units[i]);
    }
    return HDT_OK;
}

void hdt_runner_unbuild_outer(struct hdt_runner *r)
{
    struct runner_outer *o = r->outer;

    if (!o) {
        return;
    }
    free(o->units);
    free(o->slabs);
    free(o->send);
    free(o->recv);
    free(o->share);
    free(o->memory);
    free(o->ring);
    free(o->sum);
    free(o->momentum_of);
    free(o);
    r->outer = NULL;
}

float *const *hdt_runner_outer_momentum(const struct hdt_runner *r)
{
    return r->outer ? r->outer->momentum_of : NULL;
}

/* ---- weights ---- */

/* Copy values [begin, begin + n) of a unit's weights from the stage, or to it. */
static enum hdt_status unit_copy(const struct outer_unit *u, size_t begin, size_t n, float *host,
                                 bool to_stage, struct hdt_error *err)
{
    struct hdt_stage_tensor view;
    size_t at = 0, from, len;

    for (int i = 0; i < u->n_tensors && n > 0; i++) {
        hdt_stage_tensor(u->stage, u->tensor + i, &view);
        if (is_shared(&view) || begin >= at + view.len) {
            at += is_shared(&view) ? 0 : view.len;
            continue;
        }
        from = begin - at;
        len = view.len - from < n ? view.len - from : n;
        HDT_TRY(to_stage ? hdt_stage_write(u->stage, view.w + from, host, len * sizeof(float), err)
                         : hdt_stage_read(u->stage, host, view.w + from, len * sizeof(float), err));
        host += len;
        begin += len;
        n -= len;
        at += view.len;
    }
    return HDT_OK;
}

enum hdt_status hdt_runner_outer_begin(struct hdt_runner *r, struct hdt_error *err)
{
    struct runner_outer *o = r->outer;

    for (size_t i = 0; o && i < o->n_units; i++) {
        HDT_TRY(unit_copy(&o->units[i], 0, unit_len(&o->units[i]), o->units[i].anchor, false, err));
    }
    return HDT_OK;
}

/* ---- a step ---- */

static enum hdt_status refuse_values(const struct hdt_runner *r, const struct outer_unit *u,
                                     struct hdt_error *err)
{
    hdt_error_set(err, HDT_EJOB,
                  "cannot go on: weights of unit %lld are not finite after the outer step at step "
                  "%lld",
                  (long long)u->unit, (long long)r->step + 1);
    hdt_error_hint(err, "training has diverged: lower optimizer.lr, outer.lr or outer.momentum, "
                        "resume from the last checkpoint");
    return HDT_EJOB;
}

/* Code a slab's change into `slot`; what all will decode of it is in the ring then. */
static enum hdt_status slab_encode(struct hdt_runner *r, size_t idx, int flow, void *slot,
                                   size_t cap, size_t *len, struct hdt_error *err)
{
    struct runner_outer *o = r->outer;
    const struct outer_slab *slab = &o->slabs[idx];
    const struct outer_unit *u = &o->units[slab->unit];
    float *own = o->ring + idx % SLABS_AHEAD * o->slab_cap;
    struct hdt_codec_guard guard = {0};
    struct hdt_codec_io io = {.spec = &r->flows[flow].spec,
                              .src = own,
                              .src_len = slab->n * sizeof(float),
                              .dst = slot,
                              .dst_len = cap,
                              .dtype = HDT_DTYPE_F32,
                              .guard = &guard};
    enum hdt_status status;

    io.seed = XXH3_64bits_withSeed(&(uint64_t[]){(uint64_t)r->step, idx, (uint64_t)r->replica},
                                   3 * sizeof(uint64_t), (uint64_t)r->job.seed);
    HDT_TRY(unit_copy(u, slab->begin, slab->n, o->work, false, err));
    hdt_outer_delta(u->anchor + slab->begin, o->work, own, slab->n);
    status = hdt_codec_encode(r->flows[flow].codec, r->codec_ctx, &io, len, err);
    if (guard.n_nonfinite > 0) {
        return refuse_values(r, u, err);
    }
    HDT_TRY(status);
    if (r->flows[flow].codec->caps & HDT_CODEC_EXACT) {
        return HDT_OK;
    }
    io = (struct hdt_codec_io){.spec = &r->flows[flow].spec,
                               .src = slot,
                               .src_len = *len,
                               .dst = own,
                               .dst_len = slab->n * sizeof(float),
                               .dtype = HDT_DTYPE_F32};
    return hdt_codec_decode(r->flows[flow].codec, r->codec_ctx, &io, err);
}

static enum hdt_status slab_send(struct hdt_runner *r, size_t idx, struct hdt_error *err)
{
    struct runner_outer *o = r->outer;
    size_t R = (size_t)r->plan.n_replicas, cap, len = 0;
    const int *flows = &o->send[o->slabs[idx].unit * R];
    void *slot, *coded = NULL;
    int coded_flow = -1;

    for (size_t k = 0; k < R; k++) {
        if (flows[k] < 0) {
            continue;
        }
        HDT_TRY(hdt_runner_send(r, flows[k], &slot, &cap, err));
        if (!coded) {
            HDT_TRY(slab_encode(r, idx, flows[k], slot, cap, &len, err));
            coded = slot;
            coded_flow = flows[k];
            continue;
        }
        HDT_ASSERT(len <= cap);
        memcpy(slot, coded, len);
        hdt_runner_commit(r, flows[k], len, o->slabs[idx].n * sizeof(float));
    }
    hdt_runner_commit(r, coded_flow, len, o->slabs[idx].n * sizeof(float));
    return HDT_OK;
}

/* Another replica's change of a slab, decoded. */
static enum hdt_status slab_recv(struct hdt_runner *r, int flow, const struct outer_slab *slab,
                                 struct hdt_error *err)
{
    struct hdt_codec_io io = {.spec = &r->flows[flow].spec,
                              .dst = r->outer->work,
                              .dst_len = slab->n * sizeof(float),
                              .dtype = HDT_DTYPE_F32};
    enum hdt_status status;

    HDT_TRY(hdt_runner_recv(r, flow, &io.src, &io.src_len, err));
    status = hdt_codec_decode(r->flows[flow].codec, r->codec_ctx, &io, err);
    hdt_port_recv_done(r->port, flow);
    return status;
}

static enum hdt_status slab_move(struct hdt_runner *r, size_t idx, struct hdt_error *err)
{
    struct runner_outer *o = r->outer;
    const struct outer_slab *slab = &o->slabs[idx];
    const struct outer_unit *u = &o->units[slab->unit];
    float *anchor = u->anchor + slab->begin;
    size_t R = (size_t)r->plan.n_replicas;

    for (size_t k = 0; k < R; k++) {
        const float *delta = o->ring + idx % SLABS_AHEAD * o->slab_cap;
        int flow = o->recv[slab->unit * R + k];

        if (flow >= 0) {
            HDT_TRY(slab_recv(r, flow, slab, err));
            delta = o->work;
        }
        hdt_outer_add(o->sum, delta, o->share[k], k == 0, slab->n);
    }
    if (!hdt_outer_move(anchor, u->momentum + slab->begin, o->sum, (float)r->job.outer.lr,
                        (float)r->job.outer.momentum, slab->n)) {
        return refuse_values(r, u, err);
    }
    return unit_copy(u, slab->begin, slab->n, anchor, true, err);
}

enum hdt_status hdt_runner_outer_step(struct hdt_runner *r, struct hdt_error *err)
{
    struct runner_outer *o = r->outer;
    size_t sent = 0;

    for (size_t i = 0; o && i < o->n_slabs; i++) {
        HDT_TRY(hdt_runner_stop_check(r, err));
        while (sent < o->n_slabs && sent < i + SLABS_AHEAD) {
            HDT_TRY(slab_send(r, sent++, err));
        }
        HDT_TRY(slab_move(r, i, err));
        hdt_alive_moved(r->alive, "step", i + 1, o->n_slabs);
    }
    return HDT_OK;
}
