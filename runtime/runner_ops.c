/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * The op list, executed. One thread: a RECV waits for what the port's thread has received in the
 * background, a SEND leaves when its codec has written the slot, so that transfers run beside the
 * arithmetic without a thread for each. Every op is timed; waits are told apart from work.
 */
#include "runtime/runner_impl.h"

#include "src/base/clock.h"
#include "src/base/log.h"

#include <math.h>
#include <string.h>

#define SLOW_STEP_NS 5000000000 /* from then on a step tells that it moves */

/* ---- waits ---- */

enum hdt_status hdt_runner_recv(struct hdt_runner *r, int flow, const void **frame, size_t *len,
                                struct hdt_error *err)
{
    int64_t begin = hdt_clock_now_ns();
    enum hdt_status status = hdt_port_recv_wait(r->port, flow, frame, len, err);

    r->wait_ns += hdt_clock_now_ns() - begin;
    if (status == HDT_OK) {
        r->arrived_ns = hdt_port_recv_arrived_ns(r->port, flow);
    }
    return status;
}

enum hdt_status hdt_runner_send(struct hdt_runner *r, int flow, void **slot, size_t *cap,
                                struct hdt_error *err)
{
    int64_t begin = hdt_clock_now_ns();
    enum hdt_status status = hdt_port_send_get(r->port, flow, slot, cap, err);

    r->wait_ns += hdt_clock_now_ns() - begin;
    return status;
}

void hdt_runner_commit(struct hdt_runner *r, int flow, size_t len, size_t raw_len)
{
    hdt_port_send_commit(r->port, flow, len, raw_len,
                         hdt_codec_coded_dtype(r->flows[flow].codec, r->plan.flows[flow].dtype));
}

/* ---- tokens and labels ---- */

static int op_slot(const struct hdt_runner *r, const struct hdt_op *op)
{
    return (int)(op->mb % r->train.n_slots[op->stage]);
}

static enum hdt_status op_load(struct hdt_runner *r, const struct hdt_op *op, struct hdt_error *err)
{
    struct hdt_stage *stage = op->stage >= 0 ? r->stages[op->stage] : NULL;
    int64_t B = r->plan.micro_batch;
    uint64_t sample = (uint64_t)(op->mb * B);

    if (r->phase == HDT_PHASE_TRAIN) {
        sample +=
            r->start_samples + (uint64_t)(r->step - r->start_step) * hdt_runner_step_samples(r);
        HDT_TRY(hdt_sampler_read(&r->sampler, sample, B, r->tokens, r->labels, err));
    } else {
        HDT_TRY(hdt_sampler_read_eval(r->valid_shard, r->plan.seq_len, sample, B, r->tokens,
                                      r->labels, err));
    }
    if (stage && hdt_stage_has_embedding(stage)) {
        HDT_TRY(hdt_stage_set_tokens(stage, op_slot(r, op), r->tokens, err));
    }
    if (stage && hdt_stage_has_head(stage)) {
        HDT_TRY(hdt_stage_set_labels(stage, op_slot(r, op), r->labels, err));
    }
    return HDT_OK;
}

static size_t tokens_bytes(const struct hdt_runner *r)
{
    return (size_t)(r->plan.micro_batch * r->plan.seq_len) * sizeof(int32_t);
}

static enum hdt_status op_send_tokens(struct hdt_runner *r, const struct hdt_op *op,
                                      struct hdt_error *err)
{
    size_t cap, len = tokens_bytes(r);
    void *slot;

    HDT_TRY(hdt_runner_send(r, op->flow, &slot, &cap, err));
    HDT_ASSERT(len <= cap);
    memcpy(slot, op->kind == HDT_OP_SEND_TOKENS ? r->tokens : r->labels, len);
    hdt_runner_commit(r, op->flow, len, len);
    return HDT_OK;
}

static enum hdt_status frame_refuse(const struct hdt_runner *r, const struct hdt_op *op, size_t got,
                                    size_t want, struct hdt_error *err)
{
    return hdt_error_set(
        err, HDT_EPROTO,
        "cannot run %s of micro-batch %lld of step %lld: a frame of %zu bytes came "
        "on flow %d, not %zu",
        hdt_op_name(op->kind), (long long)op->mb, (long long)r->step + 1, got, op->flow, want);
}

static enum hdt_status op_recv_tokens(struct hdt_runner *r, const struct hdt_op *op,
                                      struct hdt_error *err)
{
    struct hdt_stage *stage = r->stages[op->stage];
    enum hdt_status status;
    const void *frame;
    size_t len;

    HDT_TRY(hdt_runner_recv(r, op->flow, &frame, &len, err));
    if (len != tokens_bytes(r)) {
        status = frame_refuse(r, op, len, tokens_bytes(r), err);
    } else if (op->kind == HDT_OP_RECV_TOKENS) {
        status = hdt_stage_set_tokens(stage, op_slot(r, op), frame, err);
    } else {
        status = hdt_stage_set_labels(stage, op_slot(r, op), frame, err);
    }
    hdt_port_recv_done(r->port, op->flow);
    return status;
}

/* ---- activations and their gradients ---- */

static enum hdt_status guard_check(const struct hdt_runner *r, const struct hdt_op *op,
                                   const struct hdt_codec_guard *guard, struct hdt_error *err)
{
    if (guard->n_nonfinite == 0) {
        return HDT_OK;
    }
    hdt_error_set(
        err, HDT_EJOB,
        "cannot send %s of stage %d, micro-batch %lld, step %lld on flow %d: %llu of %llu "
        "values are not finite",
        op->kind == HDT_OP_SEND_FORWARD ? "activations" : "activation gradients", op->stage,
        (long long)op->mb, (long long)r->step + 1, op->flow, (unsigned long long)guard->n_nonfinite,
        (unsigned long long)guard->n);
    hdt_error_hint(err, "training has diverged: lower optimizer.lr or clip_norm, resume from the "
                        "last checkpoint");
    return HDT_EJOB;
}

/* Frames of an edge are counted from the begin of the job. */
static uint64_t frame_seed(const struct hdt_runner *r, const struct hdt_op *op)
{
    bool eval = r->phase == HDT_PHASE_EVAL;
    int64_t n = eval ? r->job.eval.n_micro_batches : r->plan.n_micro_batches;

    return hdt_plan_frame_seed(&r->plan, &r->plan.flows[op->flow], (uint64_t)r->job.seed, eval,
                               (uint64_t)(r->step * n + op->mb));
}

static enum hdt_status op_send_tensor(struct hdt_runner *r, const struct hdt_op *op,
                                      struct hdt_error *err)
{
    struct hdt_stage *stage = r->stages[op->stage];
    struct hdt_edge *edge = r->flows[op->flow].edge;
    struct hdt_codec_guard guard = {0};
    struct hdt_codec_io io = {.dtype = HDT_DTYPE_F32,
                              .guard = &guard,
                              .state = hdt_runner_codec_state(r, op->flow),
                              .seed = frame_seed(r, op)};
    const float *src = op->kind == HDT_OP_SEND_FORWARD
                           ? hdt_stage_output(stage, op_slot(r, op))
                           : hdt_stage_input_grad(stage, op_slot(r, op));
    enum hdt_status status;
    uint8_t mark;
    size_t len;

    HDT_TRY(hdt_runner_send(r, op->flow, &io.dst, &io.dst_len, err));
    io.src_len = hdt_stage_activation_bytes(stage);
    io.src = src;
    HDT_TRY(hdt_stage_wait(stage, err));
    hdt_runner_edge_look(r, (size_t)op->flow);
    status = hdt_edge_encode(edge, r->codec_ctx, &io, r->step + 1, &len, &mark, err);
    HDT_TRY(guard_check(r, op, &guard, err));
    HDT_TRY(status);
    hdt_port_send_mark(r->port, op->flow, mark);
    hdt_port_send_commit(r->port, op->flow, len, io.src_len, hdt_edge_dtype(edge, mark));
    return HDT_OK;
}

static enum hdt_status op_recv_tensor(struct hdt_runner *r, const struct hdt_op *op,
                                      struct hdt_error *err)
{
    struct hdt_stage *stage = r->stages[op->stage];
    float *dst = op->kind == HDT_OP_RECV_FORWARD ? hdt_stage_input(stage, op_slot(r, op))
                                                 : hdt_stage_output_grad(stage, op_slot(r, op));
    struct hdt_codec_io io = {.dtype = HDT_DTYPE_F32, .state = hdt_runner_codec_state(r, op->flow)};
    enum hdt_status status;

    HDT_TRY(hdt_runner_recv(r, op->flow, &io.src, &io.src_len, err));
    io.dst_len = hdt_stage_activation_bytes(stage);
    io.dst = dst;
    status = hdt_edge_decode(r->flows[op->flow].edge, r->codec_ctx, &io,
                             hdt_port_recv_mark(r->port, op->flow), err);
    hdt_port_recv_done(r->port, op->flow);
    return status;
}

/* ---- arithmetic ---- */

/* An op ends when its work is done, also on a device that works while we go on: what an op is seen
 * to take is what the trace, the planner and the choice of codecs go by. What that costs is the
 * time to start the next op, some 30 us. */
static enum hdt_status op_settle(const struct hdt_runner *r, const struct hdt_op *op,
                                 struct hdt_error *err)
{
    return r->conf.backend->caps & HDT_BACKEND_ASYNC ? hdt_stage_wait(r->stages[op->stage], err)
                                                     : HDT_OK;
}

static enum hdt_status op_forward(struct hdt_runner *r, const struct hdt_op *op,
                                  struct hdt_error *err)
{
    struct hdt_stage *stage = r->stages[op->stage];
    double loss;

    hdt_stage_forward(stage, op_slot(r, op),
                      r->phase == HDT_PHASE_TRAIN ? HDT_STAGE_TRAIN : HDT_STAGE_EVAL);
    if (!hdt_stage_has_head(stage)) {
        return op_settle(r, op, err);
    }
    HDT_TRY(hdt_stage_loss(stage, op_slot(r, op), &loss, err));
    if (!isfinite(loss)) {
        hdt_error_set(err, HDT_EJOB, "cannot go on: the loss of micro-batch %lld, step %lld is %s",
                      (long long)op->mb, (long long)r->step + 1,
                      isnan(loss) ? "not a number" : "infinite");
        hdt_error_hint(err, "training has diverged: lower optimizer.lr, resume from the last "
                            "checkpoint");
        return HDT_EJOB;
    }
    r->loss_sum += loss;
    return HDT_OK;
}

static enum hdt_status op_step(struct hdt_runner *r, struct hdt_error *err)
{
    const struct hdt_job_optimizer *o = &r->job.optimizer;
    struct hdt_adamw adamw = {.lr = (float)hdt_job_lr(&r->job, r->step),
                              .beta1 = (float)o->beta1,
                              .beta2 = (float)o->beta2,
                              .eps = (float)o->eps,
                              .weight_decay = (float)o->weight_decay,
                              .grad_scale = (float)r->down.clip_scale,
                              .step = r->step + 1};
    size_t i;

    for (i = 0; i < r->plan.n_stages; i++) {
        if (r->stages[i]) {
            hdt_stage_step(r->stages[i], &adamw);
        }
    }
    for (i = 0; i < r->plan.n_stages; i++) {
        if (r->stages[i]) {
            HDT_TRY(hdt_stage_wait(r->stages[i], err));
        }
    }
    return HDT_OK;
}

static enum hdt_status op_run(struct hdt_runner *r, const struct hdt_op *op, struct hdt_error *err)
{
    switch (op->kind) {
    case HDT_OP_LOAD:
        return op_load(r, op, err);
    case HDT_OP_SEND_TOKENS:
    case HDT_OP_SEND_LABELS:
        return op_send_tokens(r, op, err);
    case HDT_OP_RECV_TOKENS:
    case HDT_OP_RECV_LABELS:
        return op_recv_tokens(r, op, err);
    case HDT_OP_RECV_FORWARD:
    case HDT_OP_RECV_BACKWARD:
        return op_recv_tensor(r, op, err);
    case HDT_OP_SEND_FORWARD:
    case HDT_OP_SEND_BACKWARD:
        return op_send_tensor(r, op, err);
    case HDT_OP_FORWARD:
        return op_forward(r, op, err);
    case HDT_OP_BACKWARD:
        hdt_stage_backward(r->stages[op->stage], op_slot(r, op));
        return op_settle(r, op, err);
    case HDT_OP_BACKWARD_INPUT:
        hdt_stage_backward_input(r->stages[op->stage], op_slot(r, op));
        return op_settle(r, op, err);
    case HDT_OP_BACKWARD_WEIGHT:
        hdt_stage_backward_weight(r->stages[op->stage], op_slot(r, op));
        return op_settle(r, op, err);
    case HDT_OP_TIED_SYNC:
        return hdt_runner_tied_sync(r, err);
    case HDT_OP_NORM_SYNC:
        return hdt_runner_sync(r, r->phase == HDT_PHASE_TRAIN ? HDT_SYNC_TRAIN : HDT_SYNC_EVAL,
                               err);
    case HDT_OP_STEP:
        return op_step(r, err);
    case HDT_OP_OUTER_SYNC:
        return hdt_runner_outer_step(r, err);
    default:
        return hdt_error_set(err, HDT_ENOTSUP, "cannot run op %s: this worker does not know it",
                             hdt_op_name(op->kind));
    }
}

enum hdt_status hdt_runner_stop_check(struct hdt_runner *r, struct hdt_error *err)
{
    bool abort;

    pthread_mutex_lock(&r->lock);
    abort = r->stop == HDT_RUNNER_ABORT;
    if (abort && err) {
        *err = r->why;
    }
    pthread_mutex_unlock(&r->lock);
    return abort ? HDT_ECANCELED : HDT_OK;
}

enum hdt_status hdt_runner_run_ops(struct hdt_runner *r, enum hdt_phase phase,
                                   struct hdt_error *err)
{
    const struct hdt_schedule *schedule = phase == HDT_PHASE_TRAIN ? &r->train : &r->eval;
    struct hdt_trace_event event = {.step = r->step, .eval = phase == HDT_PHASE_EVAL};
    const int64_t begin_ns = hdt_clock_now_ns(), busy_ns = r->busy_ns;
    int64_t waited, cpu_ns;
    size_t i;

    r->phase = phase;
    r->loss_sum = 0;
    hdt_runner_edges_keep(r, phase);
    for (i = 0; i < r->plan.n_stages && phase == HDT_PHASE_TRAIN; i++) {
        if (r->stages[i]) {
            hdt_stage_zero_grads(r->stages[i]);
        }
    }
    for (i = 0; i < schedule->n_ops; i++) {
        if (schedule->ops[i].kind == HDT_OP_OUTER_SYNC && !hdt_runner_outer_is_due(r)) {
            continue;
        }
        HDT_TRY(hdt_runner_stop_check(r, err));
        waited = r->wait_ns;
        event.kind = schedule->ops[i].kind;
        event.stage = schedule->ops[i].stage;
        event.mb = schedule->ops[i].mb;
        hdt_port_job_at(r->port, &(struct hdt_port_at){.op = hdt_op_name(event.kind),
                                                       .step = r->step + 1,
                                                       .mb = event.mb});
        r->arrived_ns = 0;
        cpu_ns = hdt_clock_thread_cpu_ns();
        event.start_ns = hdt_clock_now_ns();
        HDT_TRY(op_run(r, &schedule->ops[i], err));
        /* An op waits before it works: in the trace, as in the planner's, that is a gap. */
        waited = r->wait_ns - waited;
        event.duration_ns = hdt_clock_now_ns() - event.start_ns - waited;
        event.start_ns += waited;
        event.arrived_ns = r->arrived_ns;
        /* Of a thread that sleeps while a device works it would say that others had its core. */
        event.cpu_ns =
            r->conf.backend->caps & HDT_BACKEND_ASYNC ? 0 : hdt_clock_thread_cpu_ns() - cpu_ns;
        r->busy_ns += event.duration_ns;
        if (phase == HDT_PHASE_TRAIN) {
            r->spent.op_ns[event.kind] += event.duration_ns;
            r->spent.wait_ns += waited;
        }
        hdt_trace_add(&r->trace, &event);
        /* Short steps are told by their own reports. */
        if (event.start_ns + event.duration_ns - begin_ns > SLOW_STEP_NS) {
            hdt_alive_moved(r->alive, "step", i + 1, schedule->n_ops);
        }
    }
    if (phase == HDT_PHASE_TRAIN) {
        r->spent.train_ns += hdt_clock_now_ns() - begin_ns;
    }
    hdt_runner_edges_stepped(r, phase, r->busy_ns - busy_ns);
    return HDT_OK;
}
