/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * The end of a step: what the ranks tell one another (SYNC_UP, SYNC_DOWN, the halves of a tied
 * gradient), the root's decisions, and reports to the coordinator.
 */
#include "runtime/runner_impl.h"

#include "runtime/wire.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/core/msg.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define SAVING_US HDT_US_PER_S

/* ---- tied embeddings ---- */

/* Own half to the other end, its half into the stage's buffer. */
static enum hdt_status tied_exchange(struct hdt_runner *r, struct hdt_stage *stage, int send_flow,
                                     int recv_flow, struct hdt_error *err)
{
    enum hdt_status status;
    size_t n, bytes, cap, len;
    const void *frame;
    float *half = hdt_stage_tied_grad(stage, &n);
    void *slot;

    HDT_ASSERT(half);
    bytes = n * sizeof(float);
    HDT_TRY(hdt_runner_send(r, send_flow, &slot, &cap, err));
    HDT_ASSERT(bytes <= cap);
    HDT_TRY(hdt_stage_read(stage, slot, half, bytes, err));
    hdt_runner_commit(r, send_flow, bytes, bytes);
    HDT_TRY(hdt_runner_recv(r, recv_flow, &frame, &len, err));
    if (len == bytes) {
        status = hdt_stage_write(stage, hdt_stage_tied_buffer(stage), frame, bytes, err);
    } else {
        status = hdt_error_set(err, HDT_EPROTO,
                               "cannot add a tied gradient: %zu bytes came, not %zu", len, bytes);
    }
    hdt_port_recv_done(r->port, recv_flow);
    return status;
}

/* Both ends on this rank, in two stages: copy the halves before either is changed. */
static enum hdt_status tied_copy(struct hdt_runner *r, struct hdt_stage *a, struct hdt_stage *b,
                                 struct hdt_error *err)
{
    size_t n;
    float *half_a = hdt_stage_tied_grad(a, &n), *half_b = hdt_stage_tied_grad(b, &n);

    HDT_TRY(hdt_stage_wait(a, err));
    HDT_TRY(hdt_stage_wait(b, err));
    r->conf.backend->copy(hdt_stage_stream(a), hdt_stage_tied_buffer(a), half_b, n * sizeof(float),
                          HDT_COPY_ON_DEVICE);
    r->conf.backend->copy(hdt_stage_stream(b), hdt_stage_tied_buffer(b), half_a, n * sizeof(float),
                          HDT_COPY_ON_DEVICE);
    HDT_TRY(hdt_stage_wait(a, err));
    return hdt_stage_wait(b, err);
}

/* A stage of this rank that holds one half only; NULL: none. */
static struct hdt_stage *tied_stage(const struct hdt_runner *r, bool head)
{
    size_t begin, end, n;
    struct hdt_stage *stage;

    hdt_plan_replica_stages(&r->plan, r->replica, &begin, &end);
    stage = begin < end ? r->stages[head ? end - 1 : begin] : NULL;
    return stage && end - begin > 1 && hdt_stage_tied_grad(stage, &n) ? stage : NULL;
}

enum hdt_status hdt_runner_tied_sync(struct hdt_runner *r, struct hdt_error *err)
{
    struct hdt_stage *first = tied_stage(r, false), *last = tied_stage(r, true);
    struct hdt_stage *one = first ? first : last;
    int send_flow = -1, recv_flow = -1;
    size_t i;

    for (i = 0; i < r->plan.n_flows; i++) {
        if (r->plan.flows[i].kind == HDT_FLOW_TIED_GRAD) {
            send_flow = r->plan.flows[i].src_rank == r->rank ? (int)i : send_flow;
            recv_flow = r->plan.flows[i].dst_rank == r->rank ? (int)i : recv_flow;
        }
    }
    if (first && last) {
        HDT_TRY(tied_copy(r, first, last, err));
    } else if (one && send_flow >= 0 && recv_flow >= 0) {
        HDT_TRY(tied_exchange(r, one, send_flow, recv_flow, err));
    }
    for (i = 0; i < r->plan.n_stages; i++) {
        if (r->stages[i]) {
            hdt_stage_finish_grads(r->stages[i], r->stages[i] == first || r->stages[i] == last
                                                     ? hdt_stage_tied_buffer(r->stages[i])
                                                     : NULL);
        }
    }
    r->grads_finished = true;
    return HDT_OK;
}

/* ---- what a rank tells ---- */

static enum hdt_status items_sumsq(struct hdt_runner *r, uint32_t *n_items, struct hdt_error *err)
{
    int64_t first;
    size_t s;
    int i, n;

    for (s = 0; s < r->plan.n_stages; s++) {
        if (!r->stages[s]) {
            continue;
        }
        HDT_TRY(hdt_stage_grad_sumsq(r->stages[s], r->sumsq, err));
        first = hdt_stage_first_tensor(r->stages[s]);
        n = hdt_stage_n_tensors(r->stages[s]);
        for (i = 0; i < n; i++) {
            r->items[*n_items].tensor = (uint32_t)(first + i);
            r->items[(*n_items)++].value = hdt_wire_f64_bits(r->sumsq[i]);
        }
    }
    return HDT_OK;
}

static enum hdt_status tensor_digest(struct hdt_stage *stage, const struct hdt_stage_tensor *view,
                                     bool host, uint64_t *digest, struct hdt_error *err)
{
    size_t bytes = view->len * sizeof(float);
    enum hdt_status status;
    void *copy;

    if (host) {
        *digest = XXH3_64bits(view->w, bytes);
        return HDT_OK;
    }
    copy = malloc(bytes);
    if (!copy) {
        return hdt_error_set(err, HDT_ENOMEM, "cannot digest '%s': no memory", view->info.name);
    }
    status = hdt_stage_read(stage, copy, view->w, bytes, err);
    *digest = status == HDT_OK ? XXH3_64bits(copy, bytes) : 0;
    free(copy);
    return status;
}

static enum hdt_status items_digest(struct hdt_runner *r, uint32_t *n_items, struct hdt_error *err)
{
    bool host = r->conf.backend->caps & HDT_BACKEND_HOST_MEMORY;
    struct hdt_stage_tensor view;
    size_t s;
    int i;

    for (s = 0; s < r->plan.n_stages; s++) {
        if (r->stages[s]) {
            HDT_TRY(hdt_stage_wait(r->stages[s], err));
        }
        for (i = 0; r->stages[s] && i < hdt_stage_n_tensors(r->stages[s]); i++) {
            hdt_stage_tensor(r->stages[s], i, &view);
            if (view.model_idx >= hdt_ckpt_n_tensors(&r->model)) {
                continue; /* a tied head is the embedding */
            }
            r->items[*n_items].tensor = (uint32_t)view.model_idx;
            HDT_TRY(tensor_digest(r->stages[s], &view, host, &r->items[*n_items].value, err));
            (*n_items)++;
        }
    }
    return HDT_OK;
}

static uint64_t phase_tokens(const struct hdt_runner *r, enum hdt_sync_phase phase)
{
    uint64_t T = (uint64_t)r->plan.seq_len;
    /* Only the first replica has the rank that reads. */
    int counts = r->replica == 0 ? r->plan.data_rank : r->leader;

    if (r->rank != counts || phase == HDT_SYNC_DIGEST) {
        return 0;
    }
    if (phase == HDT_SYNC_TRAIN) {
        return hdt_runner_replica_samples(r) * T;
    }
    return hdt_sampler_eval_tokens(r->valid_shard, r->plan.seq_len,
                                   (uint64_t)(r->job.eval.n_micro_batches * r->plan.micro_batch));
}

static enum hdt_status up_fill(struct hdt_runner *r, enum hdt_sync_phase phase,
                               struct hdt_sync_up *up, struct hdt_error *err)
{
    memset(up, 0, sizeof(*up));
    up->phase = (uint8_t)phase;
    up->flags = phase == HDT_SYNC_DIGEST      ? (r->save_again ? HDT_SYNC_AGAIN : 0)
                : hdt_state_is_busy(r->state) ? HDT_SYNC_BUSY
                                              : 0;
    up->rank = (uint32_t)r->rank;
    up->step = r->step;
    up->loss_sum = phase == HDT_SYNC_DIGEST ? 0 : r->loss_sum;
    up->n_tokens = phase_tokens(r, phase);
    if (phase != HDT_SYNC_DIGEST) {
        /* The op that this sync is part of is not over: it counts in the next record. */
        up->busy_s = (double)(r->busy_ns - r->busy_told_ns) / 1e9;
        up->wait_s = (double)(r->wait_ns - r->wait_told_ns) / 1e9;
        r->busy_told_ns = r->busy_ns;
        r->wait_told_ns = r->wait_ns;
    }
    if (phase == HDT_SYNC_TRAIN) {
        return items_sumsq(r, &up->n_items, err);
    }
    return phase == HDT_SYNC_DIGEST ? items_digest(r, &up->n_items, err) : HDT_OK;
}

/* ---- the root ---- */

static void saving_pass_on(struct hdt_runner *r);

static int sync_flow(const struct hdt_runner *r, enum hdt_flow_kind kind, int src, int dst)
{
    int flow = hdt_plan_find_flow(&r->plan, kind, src, dst, -1, -1);

    HDT_ASSERT(flow >= 0); /* the plan was checked */
    return flow;
}

/* Does this rank, a leader, end steps with another one: of its replica? */
static bool is_led(const struct hdt_runner *r, int rank)
{
    return rank != r->rank && hdt_plan_rank_replica(&r->plan, rank) == r->replica;
}

/* `*alive`: it was a sign of life only, and the record itself is still to come. */
static enum hdt_status root_take(struct hdt_runner *r, int from, const struct hdt_sync_up *own,
                                 bool *alive, struct hdt_error *err)
{
    int flow = sync_flow(r, HDT_FLOW_SYNC_UP, from, r->rank);
    struct hdt_sync_item item;
    struct hdt_sync_up up;
    enum hdt_status status;
    const void *frame;
    uint32_t i;
    size_t len;

    HDT_TRY(hdt_runner_recv(r, flow, &frame, &len, err));
    status = hdt_sync_up_unpack(frame, len, &up, err);
    if (status == HDT_OK &&
        ((int)up.rank != from || up.step != own->step || up.phase != own->phase)) {
        status = hdt_error_set(err, HDT_EPROTO,
                               "cannot end step %lld (phase %u): rank %u is at step %lld (phase "
                               "%u)",
                               (long long)own->step + 1, own->phase, up.rank,
                               (long long)up.step + 1, up.phase);
    }
    *alive = status == HDT_OK && up.phase == HDT_SYNC_DIGEST && (up.flags & HDT_SYNC_BUSY);
    if (*alive) {
        hdt_port_recv_done(r->port, flow);
        return HDT_OK;
    }
    for (i = 0; status == HDT_OK && i < up.n_items; i++) {
        item = hdt_sync_item_get(frame, i);
        status = hdt_sync_total_item(&r->total, &item, err);
    }
    if (status == HDT_OK) {
        hdt_sync_total_add(&r->total, &up);
        r->ups[from] = up;
    }
    hdt_port_recv_done(r->port, flow);
    return status;
}

static enum hdt_status root_gather(struct hdt_runner *r, const struct hdt_sync_up *own,
                                   struct hdt_error *err)
{
    bool alive;
    uint32_t i;
    int rank;

    hdt_sync_total_clear(&r->total);
    hdt_sync_total_add(&r->total, own);
    r->ups[r->rank] = *own;
    for (i = 0; i < own->n_items; i++) {
        HDT_TRY(hdt_sync_total_item(&r->total, &r->items[i], err));
    }
    for (rank = 0; rank < (int)r->plan.n_ranks; rank++) {
        alive = is_led(r, rank);
        while (alive) {
            HDT_TRY(root_take(r, rank, own, &alive, err));
            if (alive) {
                hdt_runner_saving(r);
            }
        }
    }
    return HDT_OK;
}

/* Stop and checkpoint are decided here for all ranks. A periodic checkpoint that is due while the
 * last one is still being written waits until it is done. */
static uint8_t root_decide(struct hdt_runner *r)
{
    int64_t every = r->job.checkpoint.every;
    bool last = r->step + 1 >= r->job.steps;
    uint8_t flags = 0;

    pthread_mutex_lock(&r->lock);
    if (r->stop == HDT_RUNNER_CHECKPOINT ||
        (r->stop == HDT_RUNNER_BOUNDARY && every > 0 && (r->step + 1) % every == 0)) {
        flags |= HDT_SYNC_STOP;
    }
    pthread_mutex_unlock(&r->lock);
    if (every > 0 && (r->step + 1) % every == 0) {
        r->ckpt_due = true;
    }
    if (r->ckpt_due && !last && !(flags & HDT_SYNC_STOP) && !(r->total.flags & HDT_SYNC_BUSY)) {
        flags |= HDT_SYNC_CHECKPOINT;
        r->ckpt_due = false;
    }
    return flags;
}

/* The gradient runs from the head down, so the last tensor in model order is nearest to the cause.
 */
static enum hdt_status norm_refuse(const struct hdt_runner *r, uint32_t n, struct hdt_error *err)
{
    struct hdt_model_tensor info;
    uint32_t i = n;

    while (i > 1 && isfinite(hdt_wire_bits_f64(r->total.values[i - 1]))) {
        i--;
    }
    hdt_model_tensor(&r->model, i - 1, &info);
    hdt_error_set(err, HDT_EJOB,
                  "cannot go on: the gradient norm of step %lld is %s, in '%s' and perhaps others",
                  (long long)r->step + 1, isnan(r->down.norm) ? "not a number" : "infinite",
                  info.name);
    hdt_error_hint(err, "training has diverged: lower optimizer.lr, resume from the last "
                        "checkpoint");
    return HDT_EJOB;
}

/* What all do next, by the flags of all that were heard. */
static uint8_t root_flags(struct hdt_runner *r, enum hdt_sync_phase phase)
{
    if (phase == HDT_SYNC_TRAIN) {
        return root_decide(r);
    }
    return phase == HDT_SYNC_DIGEST && (r->total.flags & HDT_SYNC_AGAIN) ? HDT_SYNC_CHECKPOINT : 0;
}

static enum hdt_status root_sum(struct hdt_runner *r, enum hdt_sync_phase phase,
                                struct hdt_error *err)
{
    uint32_t n = (uint32_t)hdt_ckpt_n_tensors(&r->model);

    memset(&r->down, 0, sizeof(r->down));
    r->down.phase = (uint8_t)phase;
    r->down.step = r->step;
    r->down.clip_scale = 1;
    if (phase == HDT_SYNC_DIGEST) {
        HDT_TRY(hdt_sync_total_check(&r->total, n, err));
        r->down.digest = hdt_sync_total_digest(&r->total, n);
        r->down.flags = root_flags(r, phase);
        return HDT_OK;
    }
    r->down.loss = r->total.n_tokens ? r->total.loss_sum / (double)r->total.n_tokens : 0;
    if (phase == HDT_SYNC_EVAL) {
        return HDT_OK;
    }
    HDT_TRY(hdt_sync_total_check(&r->total, n, err));
    r->down.norm = hdt_sync_total_norm(&r->total, n);
    if (!isfinite(r->down.norm)) {
        return norm_refuse(r, n, err);
    }
    r->down.clip_scale = hdt_sync_clip_scale(r->down.norm, r->job.optimizer.clip_norm);
    /* Several replicas: once all of them are heard, and nothing between outer steps. */
    r->down.flags = r->plan.n_replicas < 2 ? root_flags(r, phase) : 0;
    return HDT_OK;
}

static enum hdt_status down_send(struct hdt_runner *r, int rank, struct hdt_error *err)
{
    int flow = sync_flow(r, HDT_FLOW_SYNC_DOWN, r->rank, rank);
    size_t cap;
    void *slot;

    HDT_TRY(hdt_runner_send(r, flow, &slot, &cap, err));
    hdt_sync_down_pack(&r->down, slot);
    hdt_runner_commit(r, flow, HDT_SYNC_DOWN_LEN, HDT_SYNC_DOWN_LEN);
    return HDT_OK;
}

static enum hdt_status up_send(struct hdt_runner *r, int to, const struct hdt_sync_up *up,
                               const struct hdt_sync_item *items, struct hdt_error *err)
{
    int flow = sync_flow(r, HDT_FLOW_SYNC_UP, r->rank, to);
    size_t cap, len = hdt_sync_up_len(up->n_items);
    void *slot;

    HDT_TRY(hdt_runner_send(r, flow, &slot, &cap, err));
    HDT_ASSERT(len <= cap);
    hdt_sync_up_pack(up, items, slot);
    hdt_runner_commit(r, flow, len, len);
    return HDT_OK;
}

static enum hdt_status down_take(struct hdt_runner *r, int from, const struct hdt_sync_up *up,
                                 struct hdt_sync_down *down, struct hdt_error *err)
{
    int flow = sync_flow(r, HDT_FLOW_SYNC_DOWN, from, r->rank);
    enum hdt_status status;
    const void *frame;
    size_t len;

    do {
        HDT_TRY(hdt_runner_recv(r, flow, &frame, &len, err));
        status = hdt_sync_down_unpack(frame, len, down, err);
        hdt_port_recv_done(r->port, flow);
        HDT_TRY(status);
        if (down->phase == HDT_SYNC_DIGEST && (down->flags & HDT_SYNC_BUSY)) {
            saving_pass_on(r);
        }
    } while (down->phase == HDT_SYNC_DIGEST && (down->flags & HDT_SYNC_BUSY));
    if (down->step != up->step || down->phase != up->phase) {
        return hdt_error_set(
            err, HDT_EPROTO, "cannot end step %lld (phase %u): the root is at step %lld (phase %u)",
            (long long)up->step + 1, up->phase, (long long)down->step + 1, down->phase);
    }
    return HDT_OK;
}

/* ---- replicas: their roots and the plan's, at outer steps, checkpoints and the end ---- */

static enum hdt_status digests_differ(const struct hdt_runner *r, int replica, uint64_t digest,
                                      struct hdt_error *err)
{
    /* Not what a new epoch mends: it would begin with the weights of one of them. */
    hdt_error_set(err, HDT_EJOB,
                  "cannot go on with job %lld: after the outer step of step %lld the weights of "
                  "replica %d have digest %016llx, those of the first %016llx",
                  r->number, (long long)r->step, replica + 1, (unsigned long long)digest,
                  (unsigned long long)r->down.digest);
    hdt_error_hint(err, "memory or a processor is at fault at one of the sites: look for it with "
                        "'hdt-worker --selftest' there, and resume from the last checkpoint");
    return HDT_EJOB;
}

/* The plan's root: what another replica tells. Its losses are of all steps since the last outer
 * one. */
static enum hdt_status replica_take(struct hdt_runner *r, int replica,
                                    const struct hdt_sync_up *own, struct hdt_error *err)
{
    int from = hdt_plan_replica_root(&r->plan, replica);
    uint64_t n_tokens = r->total.n_tokens;
    double loss_sum = r->total.loss_sum;
    uint64_t digest;
    bool alive;

    /* Its digest takes the place of the first tensor's, which is added up already. */
    r->total.seen[0] = 0;
    do {
        HDT_TRY(root_take(r, from, own, &alive, err));
        if (alive) {
            hdt_runner_saving(r);
        }
    } while (alive);
    digest = r->total.values[0];
    r->outer_loss_sum += r->total.loss_sum - loss_sum;
    r->outer_tokens += r->total.n_tokens - n_tokens;
    r->total.loss_sum = loss_sum;
    r->total.n_tokens = n_tokens;
    return own->phase == HDT_SYNC_DIGEST && digest != r->down.digest
               ? digests_differ(r, replica, digest, err)
               : HDT_OK;
}

/* The root of another replica: its news to the plan's root, whose decisions are everybody's. */
static enum hdt_status replica_ask(struct hdt_runner *r, const struct hdt_sync_up *own,
                                   struct hdt_error *err)
{
    const struct hdt_sync_item item = {.tensor = 0, .value = r->down.digest};
    struct hdt_sync_up up = *own;
    struct hdt_sync_down down;

    up.flags = r->total.flags;
    up.n_items = own->phase == HDT_SYNC_DIGEST;
    up.loss_sum = own->phase == HDT_SYNC_TRAIN ? r->outer_loss_sum : 0;
    up.n_tokens = own->phase == HDT_SYNC_TRAIN ? r->outer_tokens : 0;
    r->outer_loss_sum = 0;
    r->outer_tokens = 0;
    HDT_TRY(up_send(r, r->plan.root_rank, &up, &item, err));
    HDT_TRY(down_take(r, r->plan.root_rank, own, &down, err));
    r->down.flags = down.flags;
    r->down.digest = down.digest;
    return HDT_OK;
}

/* After the replica's own sums. Between outer steps each decides nothing. */
static enum hdt_status replicas_sync(struct hdt_runner *r, const struct hdt_sync_up *own,
                                     struct hdt_error *err)
{
    if (own->phase == HDT_SYNC_EVAL || r->plan.n_replicas < 2) {
        return HDT_OK; /* an evaluation runs in the first replica only */
    }
    if (own->phase == HDT_SYNC_TRAIN) {
        r->outer_loss_sum += r->total.loss_sum;
        r->outer_tokens += r->total.n_tokens;
        if (!hdt_runner_outer_is_due(r)) {
            return HDT_OK;
        }
    }
    if (!hdt_runner_is_root(r)) {
        return replica_ask(r, own, err);
    }
    for (int k = 1; k < r->plan.n_replicas; k++) {
        HDT_TRY(replica_take(r, k, own, err));
    }
    r->down.flags = root_flags(r, own->phase);
    for (int k = 1; k < r->plan.n_replicas; k++) {
        HDT_TRY(down_send(r, hdt_plan_replica_root(&r->plan, k), err));
    }
    return HDT_OK;
}

static enum hdt_status root_sync(struct hdt_runner *r, const struct hdt_sync_up *own,
                                 struct hdt_error *err)
{
    int rank;

    HDT_TRY(root_gather(r, own, err));
    HDT_TRY(root_sum(r, own->phase, err));
    HDT_TRY(replicas_sync(r, own, err));
    for (rank = 0; rank < (int)r->plan.n_ranks; rank++) {
        if (is_led(r, rank)) {
            HDT_TRY(down_send(r, rank, err));
        }
    }
    return HDT_OK;
}

/* ---- the others ---- */

static enum hdt_status leaf_sync(struct hdt_runner *r, const struct hdt_sync_up *up,
                                 struct hdt_error *err)
{
    HDT_TRY(up_send(r, r->leader, up, r->items, err));
    return down_take(r, r->leader, up, &r->down, err);
}

/* ---- signs of life, while the last checkpoint is written ---- */

/* The root to all others, who wait for it. Who is not there yet has no room for more, and needs
 * none. */
static void saving_down(struct hdt_runner *r)
{
    const struct hdt_sync_down down = {
        .phase = HDT_SYNC_DIGEST, .flags = HDT_SYNC_BUSY, .step = r->step};
    int rank, flow;
    size_t cap;
    void *slot;

    for (rank = 0; rank < (int)r->plan.n_ranks; rank++) {
        flow = hdt_plan_find_flow(&r->plan, HDT_FLOW_SYNC_DOWN, r->rank, rank, -1, -1);
        if (flow >= 0 && hdt_port_send_try(r->port, flow, &slot, &cap)) {
            hdt_sync_down_pack(&down, slot);
            hdt_runner_commit(r, flow, HDT_SYNC_DOWN_LEN, HDT_SYNC_DOWN_LEN);
        }
    }
}

static void saving_up(struct hdt_runner *r)
{
    const struct hdt_sync_up up = {.phase = HDT_SYNC_DIGEST,
                                   .flags = HDT_SYNC_BUSY,
                                   .rank = (uint32_t)r->rank,
                                   .step = r->step};
    int to = hdt_runner_leads(r) ? r->plan.root_rank : r->leader;
    int flow = sync_flow(r, HDT_FLOW_SYNC_UP, r->rank, to);
    size_t cap;
    void *slot;

    if (hdt_port_send_try(r->port, flow, &slot, &cap)) {
        hdt_sync_up_pack(&up, NULL, slot);
        hdt_runner_commit(r, flow, hdt_sync_up_len(0), hdt_sync_up_len(0));
    }
}

/* Once a second. */
static bool saving_is_due(struct hdt_runner *r)
{
    int64_t now = hdt_clock_now_us();

    if (now - r->saving_us < SAVING_US) {
        return false;
    }
    r->saving_us = now;
    return true;
}

/* A replica's root that waits for the plan's: what it hears goes on to its own ranks only. */
static void saving_pass_on(struct hdt_runner *r)
{
    if (hdt_runner_leads(r) && saving_is_due(r)) {
        saving_down(r);
    }
}

void hdt_runner_saving(struct hdt_runner *r)
{
    if (!saving_is_due(r)) {
        return;
    }
    if (hdt_runner_leads(r)) {
        saving_down(r);
    }
    if (!hdt_runner_is_root(r)) {
        saving_up(r);
        return;
    }
    hdt_runner_report(r, "saving", json_pack("{s:I}", "step", (json_int_t)r->step));
}

enum hdt_status hdt_runner_sync(struct hdt_runner *r, enum hdt_sync_phase phase,
                                struct hdt_error *err)
{
    struct hdt_sync_up up;

    if (phase == HDT_SYNC_TRAIN && !r->grads_finished) {
        HDT_TRY(hdt_runner_tied_sync(r, err));
    }
    r->grads_finished = false;
    HDT_TRY(up_fill(r, phase, &up, err));
    return hdt_runner_leads(r) ? root_sync(r, &up, err) : leaf_sync(r, &up, err);
}

/* ---- reports ---- */

void hdt_runner_report(struct hdt_runner *r, const char *type, json_t *body)
{
    json_object_set_new(body, "job", json_integer(r->job_id));
    json_object_set_new(body, "epoch", json_integer(r->epoch));
    hdt_port_report(r->conf.port, hdt_msg_new(type, r->coordinator, body));
}

void hdt_runner_report_step(struct hdt_runner *r, double lr, double step_s)
{
    json_t *ranks = json_array(), *body;
    size_t i;

    for (i = 0; i < r->plan.n_ranks; i++) {
        if (r->ups[i].step != r->step || r->ups[i].phase != HDT_SYNC_TRAIN) {
            continue; /* of another replica, whose first rank is heard of at outer steps */
        }
        json_array_append_new(ranks, json_pack("{s:i,s:f,s:f}", "rank", (int)i, "busy_s",
                                               r->ups[i].busy_s, "wait_s", r->ups[i].wait_s));
    }
    body = json_pack("{s:I,s:f,s:f,s:f,s:I,s:f,s:o}", "step", (json_int_t)r->step + 1, "loss",
                     r->down.loss, "lr", lr, "grad_norm", r->down.norm, "tokens",
                     (json_int_t)(hdt_runner_step_samples(r) * (uint64_t)r->plan.seq_len), "step_s",
                     step_s, "ranks", ranks);
    if (hdt_runner_outer_is_due(r) && r->outer_tokens > 0) {
        json_object_set_new(body, "outer_loss",
                            json_real(r->outer_loss_sum / (double)r->outer_tokens));
        json_object_set_new(body, "outer_steps", json_integer(r->step + 1 - r->outer_begin_step));
        r->outer_begin_step = r->step + 1;
        r->outer_loss_sum = 0;
        r->outer_tokens = 0;
    }
    hdt_runner_report(r, "step", body);
}

void hdt_runner_report_eval(struct hdt_runner *r)
{
    hdt_runner_report(
        r, "eval",
        json_pack("{s:I,s:f}", "step", (json_int_t)r->step + 1, "val_loss", r->val_loss));
}

void hdt_runner_report_done(struct hdt_runner *r, bool stopped)
{
    json_t *body = json_pack("{s:I,s:b,s:o}", "steps", (json_int_t)r->step, "stopped", (int)stopped,
                             "weights_digest", hdt_msg_u64_hex(r->down.digest));

    if (r->has_val_loss) {
        json_object_set_new(body, "val_loss", json_real(r->val_loss));
    }
    hdt_runner_report(r, "done", body);
}

void hdt_runner_report_ckpt(void *user, const struct hdt_ckpt_meta *meta,
                            const struct hdt_ckpt_result *result, double seconds)
{
    struct hdt_runner *r = user;

    r->ckpt_cause[0] = '\0';
    hdt_log_info("job %lld: checkpoint of step %lld in %s, %.1f MB, %.1f s", r->number,
                 (long long)meta->step, result->path, (double)result->bytes / 1e6, seconds);
    hdt_runner_report(r, "ckpt",
                      json_pack("{s:I,s:s,s:f,s:I,s:o}", "step", (json_int_t)meta->step, "path",
                                result->path, "seconds", seconds, "bytes",
                                (json_int_t)result->bytes, "weights_digest",
                                hdt_msg_u64_hex(result->digest)));
}

void hdt_runner_report_ckpt_failed(void *user, const struct hdt_ckpt_meta *meta,
                                   const struct hdt_error *why)
{
    struct hdt_runner *r = user;
    const char *cause = strrchr(why->msg, ':');

    /* The same cause again (the same words after the last colon) is no news on this machine. */
    cause = cause ? cause : why->msg;
    if (strcmp(cause, r->ckpt_cause) != 0) {
        snprintf(r->ckpt_cause, sizeof(r->ckpt_cause), "%s", cause);
        hdt_log_failure(HDT_LOG_WARN, why);
        hdt_log_warn("job %lld: no checkpoint of step %lld; training goes on, and the next one is "
                     "tried when it is due",
                     r->number, (long long)meta->step);
    }
    hdt_runner_report(
        r, "ckpt.failed",
        json_pack("{s:I,s:o}", "step", (json_int_t)meta->step, "error", hdt_msg_error_body(why)));
}
