/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Frames and the queues that they stand in. A frame that has left is under way for a time that its
 * flow fixes, so that a flow's frames come in order and one slot a flow is enough: that of the next
 * to come.
 */
#include "src/base/buf.h"
#include "src/sim/sim_impl.h"

#include <math.h>
#include <stdlib.h>

#define RING_MIN 2

struct sim_frame *hdt_sim_flow_frame(const struct sim_flow *f, int64_t n)
{
    return &f->frames[(uint64_t)n & (f->cap - 1)];
}

static void frames_grow(struct sim_flow *f)
{
    size_t cap = f->cap ? 2 * f->cap : RING_MIN;
    struct sim_frame *frames = hdt_malloc(cap * sizeof(frames[0]));

    for (int64_t n = f->n_taken; n < f->n_sent; n++) {
        frames[(uint64_t)n & (cap - 1)] = *hdt_sim_flow_frame(f, n);
    }
    free(f->frames);
    f->frames = frames;
    f->cap = cap;
}

static void host_works(struct sim *sim, int host, double at_s, double cpu_s)
{
    const struct hdt_sim_host *h;

    if (host < 0) {
        return;
    }
    h = &sim->setup->hosts[host];
    for (size_t i = h->first; i < h->first + h->n; i++) {
        hdt_sim_rank_hold(sim, sim->setup->host_ranks[i], at_s, cpu_s * sim->setup->host_shares[i]);
    }
}

/* ---- arrival ---- */

static void frame_arrives(struct sim *sim, int flow, double t)
{
    struct sim_flow *f = &sim->flows[flow];
    const struct sim_frame *frame = hdt_sim_flow_frame(f, f->n_arrived);
    struct sim_rank *dst;

    f->n_arrived++;
    if (f->n_arrived < f->n_left) {
        hdt_sim_heap_set(&sim->heap, sim->first_flow + (size_t)flow,
                         hdt_sim_flow_frame(f, f->n_arrived)->arrive_s);
    }
    if (f->is->dst < 0) {
        f->n_taken++;
        hdt_sim_group_end(sim, f->group, t);
        return;
    }
    host_works(sim, f->is->dst_host, t - f->is->dst_cpu_s, f->is->dst_cpu_s);
    dst = &sim->ranks[f->is->dst];
    if (dst->state == SIM_RANK_WAITS_FRAME && dst->task.peer == flow) {
        hdt_sim_rank_account(sim, f->is->dst, HDT_SIM_BUBBLE, frame->sent_s);
        hdt_sim_rank_account(sim, f->is->dst, HDT_SIM_WAIT, t);
        dst->cause = frame->span;
        hdt_sim_rank_go(sim, f->is->dst, t);
    }
}

void hdt_sim_flow_event(struct sim *sim, int flow, double t)
{
    frame_arrives(sim, flow, t);
}

/* ---- queues ---- */

static bool queue_next(struct sim *sim, int queue, int *flow)
{
    struct sim_queue *q = &sim->queues[queue];

    if (queue >= (int)sim->setup->n_queues) {
        *flow = queue - (int)sim->setup->n_queues;
        return sim->flows[*flow].n_left < sim->flows[*flow].n_sent;
    }
    if (q->first == q->last) {
        return false;
    }
    *flow = q->waiting[q->first++ & (q->cap - 1)];
    return true;
}

static void queue_push(struct sim_queue *q, int flow)
{
    if (q->last - q->first == q->cap) {
        size_t cap = q->cap ? 2 * q->cap : RING_MIN;
        int *waiting = hdt_malloc(cap * sizeof(waiting[0]));

        for (uint64_t i = q->first; i < q->last; i++) {
            waiting[i & (cap - 1)] = q->waiting[i & (q->cap - 1)];
        }
        free(q->waiting);
        q->waiting = waiting;
        q->cap = cap;
    }
    q->waiting[q->last++ & (q->cap - 1)] = flow;
}

static double flow_weight(const struct hdt_sim_flow *f)
{
    return f->weight > 0 ? f->weight : 1;
}

static void link_use_add(struct sim *sim, const struct sim_flow *f, const struct sim_frame *frame)
{
    const int *route = sim->setup->routes + f->is->route;
    const double *shares = sim->setup->route_shares;

    for (size_t i = 0; frame->counts && i < f->is->n_route; i++) {
        double bytes = frame->bytes * (shares ? shares[f->is->route + i] : 1);

        sim->links[route[i]].bytes += bytes;
        sim->links[route[i]].weight += bytes * flow_weight(f->is);
    }
}

/* The last byte of the queue's frame is on its way. */
static void frame_leaves(struct sim *sim, int flow, double t)
{
    struct sim_flow *f = &sim->flows[flow];
    struct sim_frame *frame = hdt_sim_flow_frame(f, f->n_left);
    struct sim_rank *src;

    frame->arrive_s = fmax(t, t + f->is->extra_s + f->is->latency_s + frame->arrive_s);
    if (f->n_left > f->n_arrived) {
        frame->arrive_s = fmax(frame->arrive_s, hdt_sim_flow_frame(f, f->n_left - 1)->arrive_s);
    }
    if (frame->span >= 0) {
        sim->result->spans[frame->span].left_s = t;
        sim->result->spans[frame->span].arrive_s = frame->arrive_s;
    }
    link_use_add(sim, f, frame);
    f->n_left++;
    if (f->n_arrived == f->n_left - 1) {
        hdt_sim_heap_set(&sim->heap, sim->first_flow + (size_t)flow, frame->arrive_s);
    }
    if (f->is->src < 0) {
        return;
    }
    src = &sim->ranks[f->is->src];
    if (src->state == SIM_RANK_WAITS_LEFT && src->task.peer == flow && f->n_left == f->n_sent) {
        hdt_sim_heap_set(&sim->heap, sim->first_rank + (size_t)f->is->src, t);
    }
}

/* The queue is free: its next frames go, until one holds it. */
static void queue_serve(struct sim *sim, int queue, double t)
{
    struct sim_queue *q = &sim->queues[queue];
    size_t slot = sim->first_queue + (size_t)queue;
    int flow;

    while (q->flow < 0 && queue_next(sim, queue, &flow)) {
        const struct sim_flow *f = &sim->flows[flow];

        q->flow = flow;
        q->begin_s = t;
        q->rest = hdt_sim_flow_frame(f, f->n_left)->bytes * flow_weight(f->is);
        if (f->is->n_route > 0 && q->rest > 0) {
            hdt_sim_net_begin(sim, queue, t);
            return;
        }
        frame_leaves(sim, flow, t);
        if (f->is->pace_s > 0) {
            q->paces = true;
            hdt_sim_heap_set(&sim->heap, slot, t + f->is->pace_s);
            return;
        }
        q->flow = -1;
    }
}

void hdt_sim_queue_event(struct sim *sim, int queue, double t)
{
    struct sim_queue *q = &sim->queues[queue];
    double free_s = q->begin_s + sim->flows[q->flow].is->pace_s;

    if (!q->paces) {
        hdt_sim_net_end(sim, queue, t);
        frame_leaves(sim, q->flow, t);
        if (free_s > t) {
            q->paces = true;
            hdt_sim_heap_set(&sim->heap, sim->first_queue + (size_t)queue, free_s);
            return;
        }
    }
    q->paces = false;
    q->flow = -1;
    queue_serve(sim, queue, t);
}

void hdt_sim_frame_send(struct sim *sim, int flow, const struct sim_frame *frame)
{
    struct sim_flow *f = &sim->flows[flow];
    struct sim_queue *q = &sim->queues[f->queue];

    if ((size_t)(f->n_sent - f->n_taken) == f->cap) {
        frames_grow(f);
    }
    *hdt_sim_flow_frame(f, f->n_sent++) = *frame;
    if (f->queue < (int)sim->setup->n_queues) {
        queue_push(q, flow);
    }
    host_works(sim, f->is->src_host, frame->sent_s, f->is->src_cpu_s);
    queue_serve(sim, f->queue, frame->sent_s);
}
