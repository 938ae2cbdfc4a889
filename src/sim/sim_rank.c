/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* What a rank does: its tasks in order, each as soon as the one before has ended and what it takes
 * is there. Tasks that take no time end at once, without an event. */
#include "src/base/buf.h"
#include "src/sim/sim_impl.h"

#include <math.h>

/* ---- where its time goes ---- */

void hdt_sim_rank_account(struct sim *sim, int rank, enum hdt_sim_use use, double until_s)
{
    struct sim_rank *r = &sim->ranks[rank];
    bool counts = r->step >= sim->setup->first_step && r->step < sim->setup->n_steps;
    double held_s;

    if (until_s <= r->mark_s) {
        return;
    }
    held_s = fmin(r->held_s, until_s - r->mark_s);
    if (counts) {
        r->result.use_s[HDT_SIM_HELD] += held_s;
        r->result.use_s[use] += until_s - r->mark_s - held_s;
    }
    r->held_s -= held_s;
    r->mark_s = until_s;
}

static void memory_add(struct sim_rank *r, int64_t delta)
{
    r->mem += delta;
    r->result.mem_peak = r->mem > r->result.mem_peak ? r->mem : r->result.mem_peak;
}

/* ---- spans ---- */

static struct hdt_sim_span *span_of(struct sim *sim, int64_t span)
{
    return &sim->result->spans[span];
}

static void span_begin(struct sim *sim, int rank, double t)
{
    struct hdt_sim_result *result = sim->result;
    struct sim_rank *r = &sim->ranks[rank];

    if (!sim->setup->record) {
        return;
    }
    HDT_ASSERT(result->n_spans < INT32_MAX); /* 240 GB of them */
    if (result->n_spans == sim->spans_cap) {
        sim->spans_cap = sim->spans_cap ? 2 * sim->spans_cap : 1024;
        result->spans = hdt_realloc(result->spans, sim->spans_cap * sizeof(result->spans[0]));
    }
    result->spans[result->n_spans] =
        (struct hdt_sim_span){.rank = rank,
                              .kind = r->task.kind,
                              .peer = r->task.peer,
                              .step = r->step,
                              .op = r->task.op,
                              .start_s = t,
                              .end_s = t,
                              .cause = r->cause >= 0 ? r->cause : r->span,
                              .prev = r->span,
                              .mem_begin = r->mem};
    r->span = (int64_t)result->n_spans++;
    r->cause = -1;
}

/* The rank's last task is over, but its host takes more: a part of it, in what is shown. */
static void span_stretch(struct sim *sim, int rank, double held_s)
{
    const struct sim_rank *r = &sim->ranks[rank];

    if (r->span >= 0) {
        span_of(sim, r->span)->end_s += held_s;
    }
}

/* ---- a task ends ---- */

static void step_end(struct sim *sim, int rank, double t)
{
    struct sim_rank *r = &sim->ranks[rank];

    if (r->step < sim->setup->n_steps) {
        sim->result->step_end_s[(size_t)r->step * sim->setup->n_ranks + (size_t)rank] = t;
    }
    if (++r->step == sim->setup->first_step) {
        r->begin_s = t;
    }
    r->at_edge = true;
}

/* Held up between two steps: the one before ends so much later. */
static void step_stretch(struct sim *sim, int rank, double held_s)
{
    struct sim_rank *r = &sim->ranks[rank];
    double idle_s = r->free_s - held_s - r->mark_s;
    int step = r->step - 1;

    sim->result->step_end_s[(size_t)step * sim->setup->n_ranks + (size_t)rank] = r->free_s;
    r->mark_s = r->result.end_s = r->free_s;
    if (r->step == sim->setup->first_step) {
        r->begin_s = r->free_s;
    }
    if (step >= sim->setup->first_step) {
        r->result.use_s[HDT_SIM_HELD] += held_s;
        r->result.use_s[HDT_SIM_BUBBLE] += fmax(0, idle_s);
    }
}

/* The rank has done its task; it may begin the next one at t. */
static void task_end(struct sim *sim, int rank, double t)
{
    struct sim_rank *r = &sim->ranks[rank];

    r->at_edge = false;
    memory_add(r, r->task.mem_end);
    if (r->span >= 0) {
        span_of(sim, r->span)->end_s = t;
        span_of(sim, r->span)->mem_end = r->mem;
    }
    r->has_task = false;
    r->state = SIM_RANK_NEW;
    r->result.end_s = t;
    sim->result->n_tasks++;
    if (r->task.flags & HDT_SIM_STEP_END) {
        step_end(sim, rank, t);
    }
}

/* true: the rank goes on at once. */
static bool task_send(struct sim *sim, int rank, double t)
{
    struct sim_rank *r = &sim->ranks[rank];
    const struct sim_flow *f = &sim->flows[r->task.peer];
    struct sim_frame frame = {.bytes = r->task.bytes,
                              .arrive_s = r->task.flags & HDT_SIM_BESIDE ? r->task.dur_s : 0,
                              .sent_s = t,
                              .span = (int32_t)r->span,
                              .counts = r->step >= sim->setup->first_step};

    if (r->span >= 0) {
        span_of(sim, r->span)->sent_s = t;
    }
    r->state = r->task.flags & HDT_SIM_SYNC ? SIM_RANK_WAITS_LEFT : SIM_RANK_NEW;
    hdt_sim_frame_send(sim, r->task.peer, &frame);
    if (r->state == SIM_RANK_WAITS_LEFT && f->n_left < f->n_sent) {
        return false;
    }
    if (r->state == SIM_RANK_WAITS_LEFT) {
        hdt_sim_heap_remove(&sim->heap, sim->first_rank + (size_t)rank); /* it has left at once */
    }
    return true;
}

static enum hdt_sim_use task_use(const struct hdt_sim_task *task)
{
    return task->kind == HDT_SIM_COMPUTE ? HDT_SIM_BUSY : HDT_SIM_COMM;
}

/* What the task takes of the rank is over. true: the rank goes on at once. */
static bool task_worked(struct sim *sim, int rank, double t)
{
    struct sim_rank *r = &sim->ranks[rank];

    hdt_sim_rank_account(sim, rank, task_use(&r->task), t);
    r->held_s = 0;
    r->free_s = t;
    if (r->task.kind == HDT_SIM_SEND && !task_send(sim, rank, t)) {
        return false;
    }
    task_end(sim, rank, t);
    return true;
}

/* ---- a task begins ---- */

static void task_take(struct sim *sim, int rank, double t)
{
    struct sim_rank *r = &sim->ranks[rank];

    r->at_edge = false;
    span_begin(sim, rank, t);
    memory_add(r, r->task.mem_begin);
    if (r->span >= 0) {
        span_of(sim, r->span)->mem_begin = r->mem;
    }
}

/* It begins at t, or later when the rank is held up. true: it has ended. */
static bool task_work(struct sim *sim, int rank, double t, double dur_s)
{
    struct sim_rank *r = &sim->ranks[rank];

    task_take(sim, rank, t);
    r->state = SIM_RANK_AT_WORK;
    r->end_s = dur_s > 0 ? hdt_sim_slow_end(sim, rank, t, dur_s) : t;
    if (r->end_s > t) {
        hdt_sim_heap_set(&sim->heap, sim->first_rank + (size_t)rank, r->end_s);
        return false;
    }
    return task_worked(sim, rank, t);
}

static void rank_pause(struct sim *sim, int rank, double until_s, enum hdt_sim_use use)
{
    struct sim_rank *r = &sim->ranks[rank];

    r->state = SIM_RANK_PAUSED;
    r->pause_use = use;
    hdt_sim_heap_set(&sim->heap, sim->first_rank + (size_t)rank, until_s);
}

/* Is there credit for one more frame of the flow at t? Otherwise the rank waits. */
static bool send_may(struct sim *sim, int rank, double t)
{
    struct sim_rank *r = &sim->ranks[rank];
    const struct sim_flow *f = &sim->flows[r->task.peer];
    const struct sim_credit *credit;
    int64_t depth = f->is->depth;

    if (depth == 0 || f->n_sent < depth) {
        return true;
    }
    if (f->n_taken <= f->n_sent - depth) {
        r->state = SIM_RANK_WAITS_CREDIT;
        return false;
    }
    credit = &f->credits[(f->n_sent - depth) % depth];
    if (credit->at_s + f->is->latency_s > t) {
        r->cause = credit->span;
        rank_pause(sim, rank, credit->at_s + f->is->latency_s, HDT_SIM_WAIT);
        return false;
    }
    return true;
}

static bool recv_may(struct sim *sim, int rank, double t)
{
    struct sim_rank *r = &sim->ranks[rank];
    struct sim_flow *f = &sim->flows[r->task.peer];
    double ready_s;

    if (f->n_arrived <= f->n_taken) {
        r->state = SIM_RANK_WAITS_FRAME;
        return false;
    }
    ready_s = hdt_sim_flow_frame(f, f->n_taken)->arrive_s + r->task.dur_s;
    if (r->task.flags & HDT_SIM_BESIDE && ready_s > t) {
        r->cause = hdt_sim_flow_frame(f, f->n_taken)->span;
        rank_pause(sim, rank, ready_s, HDT_SIM_WAIT);
        return false;
    }
    return true;
}

/* The frame is the rank's; its slot is free again when the task ends. */
static void recv_take(struct sim *sim, int rank)
{
    struct sim_rank *r = &sim->ranks[rank];
    struct sim_flow *f = &sim->flows[r->task.peer];
    const struct sim_frame *frame = hdt_sim_flow_frame(f, f->n_taken);
    struct sim_rank *src = &sim->ranks[f->is->src];
    struct hdt_sim_span *span = r->span >= 0 ? span_of(sim, r->span) : NULL;
    double taken_s = r->state == SIM_RANK_AT_WORK ? r->end_s : r->result.end_s;

    if (span) {
        span->sent_s = frame->sent_s;
        span->left_s = span_of(sim, frame->span)->left_s;
        span->arrive_s = frame->arrive_s;
    }
    if (f->is->depth > 0) {
        f->credits[f->n_taken % f->is->depth] = (struct sim_credit){taken_s, r->span};
    }
    f->n_taken++;
    if (src->state == SIM_RANK_WAITS_CREDIT && src->task.peer == r->task.peer) {
        src->cause = r->span;
        src->state = SIM_RANK_PAUSED;
        src->pause_use = HDT_SIM_WAIT;
        hdt_sim_heap_set(&sim->heap, sim->first_rank + (size_t)f->is->src,
                         taken_s + f->is->latency_s);
    }
}

static bool task_begin_recv(struct sim *sim, int rank, double t)
{
    struct sim_rank *r = &sim->ranks[rank];
    double dur_s = r->task.flags & HDT_SIM_BESIDE ? 0 : r->task.dur_s;
    bool ended = task_work(sim, rank, t, dur_s);

    recv_take(sim, rank);
    return ended;
}

/* A collective, or waiting for one. */
static bool task_begin_group(struct sim *sim, int rank, double t)
{
    struct sim_rank *r = &sim->ranks[rank];
    bool goes_on;

    task_take(sim, rank, t);
    goes_on = r->task.kind == HDT_SIM_GROUP ? hdt_sim_group_come(sim, rank, t)
                                            : hdt_sim_group_join(sim, rank);
    if (!goes_on) {
        r->state = SIM_RANK_WAITS_GROUP;
        return false;
    }
    task_end(sim, rank, t);
    return true;
}

/* true: it has ended, at t. */
static bool task_begin(struct sim *sim, int rank, double t)
{
    struct sim_rank *r = &sim->ranks[rank];
    const struct hdt_sim_task *task = &r->task;
    double dur_s = task->dur_s;

    if ((task->kind == HDT_SIM_SEND && !send_may(sim, rank, t)) ||
        (task->kind == HDT_SIM_RECV && !recv_may(sim, rank, t))) {
        return false;
    }
    if (r->free_s > t) {
        /* What falls into a wait costs nothing, but it cannot begin before. */
        rank_pause(sim, rank, r->free_s,
                   r->state == SIM_RANK_NEW      ? HDT_SIM_HELD
                   : r->state == SIM_RANK_PAUSED ? r->pause_use
                                                 : HDT_SIM_WAIT);
        return false;
    }
    switch (task->kind) {
    case HDT_SIM_RECV:
        return task_begin_recv(sim, rank, t);
    case HDT_SIM_GROUP:
    case HDT_SIM_JOIN:
        return task_begin_group(sim, rank, t);
    case HDT_SIM_SEND:
        return task_work(sim, rank, t, task->flags & HDT_SIM_BESIDE ? 0 : dur_s);
    case HDT_SIM_COMPUTE:
    default:
        return task_work(sim, rank, t, dur_s * hdt_sim_slow_jitter(sim, rank, r->next - 1));
    }
}

void hdt_sim_rank_go(struct sim *sim, int rank, double t)
{
    struct sim_rank *r = &sim->ranks[rank];

    do {
        if (!r->has_task) {
            if (!sim->setup->task(sim->setup->ctx, rank, r->next, &r->task)) {
                r->state = SIM_RANK_DONE;
                return;
            }
            r->has_task = true;
            r->next++;
        }
    } while (task_begin(sim, rank, t));
}

void hdt_sim_rank_release(struct sim *sim, int rank, double begin_s, double t, int64_t cause)
{
    struct sim_rank *r = &sim->ranks[rank];

    hdt_sim_rank_account(sim, rank, HDT_SIM_BUBBLE, begin_s);
    hdt_sim_rank_account(sim, rank, HDT_SIM_COMM, t);
    if (r->span >= 0) {
        struct hdt_sim_span *span = span_of(sim, r->span);

        span->start_s = begin_s > span->start_s ? begin_s : span->start_s;
        span->cause = cause >= 0 ? cause : span->prev;
    }
    task_end(sim, rank, t);
    hdt_sim_rank_go(sim, rank, t);
}

void hdt_sim_rank_event(struct sim *sim, int rank, double t)
{
    struct sim_rank *r = &sim->ranks[rank];

    switch (r->state) {
    case SIM_RANK_AT_WORK:
        if (r->end_s > t) { /* it was held up */
            hdt_sim_heap_set(&sim->heap, sim->first_rank + (size_t)rank, r->end_s);
            return;
        }
        if (!task_worked(sim, rank, t)) {
            return;
        }
        break;
    case SIM_RANK_WAITS_LEFT:
        hdt_sim_rank_account(sim, rank, HDT_SIM_WAIT, t);
        task_end(sim, rank, t);
        break;
    case SIM_RANK_PAUSED:
        if (r->pause_use == HDT_SIM_HELD) {
            span_stretch(sim, rank, t - r->mark_s);
        }
        hdt_sim_rank_account(sim, rank, r->pause_use, t);
        break;
    default:
        break;
    }
    hdt_sim_rank_go(sim, rank, t);
}

void hdt_sim_rank_hold(struct sim *sim, int rank, double at_s, double held_s)
{
    struct sim_rank *r = &sim->ranks[rank];

    if (held_s <= 0) {
        return;
    }
    if (r->state == SIM_RANK_AT_WORK) {
        r->end_s += held_s;
        r->held_s += held_s;
    } else if (r->free_s > at_s) { /* at work then; that has ended since */
        r->free_s += held_s;
        /* What falls into a wait that the task itself ended with costs nothing. */
        held_s = fmin(held_s, r->free_s - r->result.end_s);
        if (held_s <= 0) {
            return;
        }
        if (r->state == SIM_RANK_WAITS_FRAME || r->state == SIM_RANK_WAITS_CREDIT ||
            r->state == SIM_RANK_DONE) {
            span_stretch(sim, rank, held_s);
        }
        if (r->at_edge && r->state != SIM_RANK_NEW && r->step <= sim->setup->n_steps) {
            step_stretch(sim, rank, held_s);
        } else {
            r->held_s += r->state == SIM_RANK_NEW ? 0 : held_s;
        }
    } else {
        r->free_s = at_s + held_s;
    }
}
