/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * The clock of a played step. What happens first, of all ranks' next moves and of all that is on
 * its way, is played next, so that frames queue for a link in the order in which they are sent.
 *
 * Gateways work when a frame leaves a rank and when it has come. A worker whose processors are all
 * computing is held up for as long: the gateway, which slept, goes first. A rank that waits loses
 * nothing but cannot begin before.
 *
 * Left out: the sharing of a link by chunks (a frame holds it whole), and checkpoints. What a link
 * really carries is in its measured goodput.
 */
#include "src/base/buf.h"
#include "src/plan/play.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

static void event_push(struct play *p, struct play_event event)
{
    if (p->n_events == p->events_cap) {
        p->events_cap = p->events_cap ? 2 * p->events_cap : 64;
        p->events = hdt_realloc(p->events, p->events_cap * sizeof(p->events[0]));
    }
    p->events[p->n_events++] = event;
}

/* Earliest event; -1: none. Of two at once the older flow's. */
static int event_next(const struct play *p)
{
    int best = -1;

    for (size_t i = 0; i < p->n_events; i++) {
        if (best < 0 || p->events[i].at_s < p->events[best].at_s) {
            best = (int)i;
        }
    }
    return best;
}

/* ---- ranks ---- */

/* When the rank's next move can start; false: what it waits for has not been played yet. */
static bool move_ready(const struct play *p, const struct play_rank *r, double *start_s)
{
    const struct play_move *m = &r->moves[r->next];
    const struct play_flow *f = m->kind == PLAY_WORK ? NULL : &p->flows[m->flow];
    int64_t depth = f ? (int64_t)p->plan->flows[m->flow].depth : 0;
    double ready_s = 0;

    if (m->kind == PLAY_SEND && f->n_sent >= depth) {
        if (f->n_taken <= f->n_sent - depth) {
            return false;
        }
        /* The acknowledgement travels back. */
        ready_s = f->taken_s[f->n_sent - depth] + f->transfer.latency_s;
    } else if (m->kind == PLAY_RECV) {
        if (f->n_arrived <= f->n_taken) {
            return false;
        }
        ready_s = f->arrive_s[f->n_taken];
    }
    *start_s = ready_s > r->free_s ? ready_s : r->free_s;
    return true;
}

static void timeline_push(struct play *p, int rank, const struct play_move *m, double start_s,
                          double arrived_s)
{
    struct hdt_cost *cost = p->cost;

    if ((cost->n_ops & (cost->n_ops - 1)) == 0) {
        cost->ops =
            hdt_realloc(cost->ops, (cost->n_ops ? 2 * cost->n_ops : 1) * sizeof(cost->ops[0]));
    }
    cost->ops[cost->n_ops++] =
        (struct hdt_cost_op){rank, m->op, start_s, start_s + m->busy_s, arrived_s};
    p->ranks[rank].last_op = cost->n_ops;
}

static void step_ends_set(struct play_rank *r)
{
    for (int step = 0; step < HDT_PLAY_STEPS; step++) {
        if (r->next == r->step_end[step]) {
            r->step_end_s[step] = r->free_s;
        }
    }
}

static void move_play(struct play *p, int rank, double start_s)
{
    struct play_rank *r = &p->ranks[rank];
    const struct play_move *m = &r->moves[r->next];
    struct play_flow *f = m->kind == PLAY_WORK ? NULL : &p->flows[m->flow];
    bool counts = r->next >= r->step_end[HDT_PLAY_STEPS - 2];
    double end_s = start_s + m->busy_s, arrived_s = 0;

    if (m->kind == PLAY_SEND) {
        f->n_sent++;
        event_push(p, (struct play_event){end_s, m->flow, false, counts});
    } else if (m->kind == PLAY_RECV) {
        arrived_s = f->arrive_s[f->n_taken];
        f->taken_s[f->n_taken++] = end_s;
    }
    r->free_s = end_s;
    r->busy_s += counts ? m->busy_s : 0.0;
    r->last_counts = counts;
    if (counts && p->timeline) {
        timeline_push(p, rank, m, start_s, arrived_s);
    }
    r->next++;
    step_ends_set(r);
}

/* Has it nothing to do at this time, after its last move? */
static bool rank_waits(const struct play *p, const struct play_rank *r, double at_s)
{
    double start_s;

    return r->free_s <= at_s && r->next < r->n_moves &&
           (!move_ready(p, r, &start_s) || start_s > at_s);
}

/* The gateway of this rank's site works for cpu_s from at_s on. */
static void rank_hold(struct play *p, int rank, double at_s, double cpu_s)
{
    struct play_rank *r = &p->ranks[rank];
    double held_s = cpu_s * r->gateway_share;

    if (held_s <= 0) {
        return;
    }
    if (r->free_s < at_s || rank_waits(p, r, at_s)) {
        r->free_s = at_s + held_s;
        return;
    }
    /* It is at work: its move, and all that ends with it, ends later. */
    for (size_t i = 0; i < p->n_events; i++) {
        struct play_event *e = &p->events[i];

        if (!e->arrives && p->plan->flows[e->flow].src_rank == rank && e->at_s == r->free_s) {
            e->at_s += held_s;
        }
    }
    r->free_s += held_s;
    step_ends_set(r);
    if (r->last_counts) {
        r->busy_s += held_s;
        r->held_s += held_s;
        if (p->timeline && r->last_op > 0) {
            p->cost->ops[r->last_op - 1].end_s += held_s;
        }
    }
}

static void gateway_works(struct play *p, const char *site, double at_s, double cpu_s)
{
    for (size_t i = 0; i < p->plan->n_ranks; i++) {
        if (strcmp(p->plan->ranks[i].site, site) == 0) {
            rank_hold(p, (int)i, at_s, cpu_s);
        }
    }
}

/* ---- frames ---- */

/* A frame has left its rank: it queues for its link. */
static void frame_leaves(struct play *p, const struct play_event *e)
{
    struct play_flow *f = &p->flows[e->flow];
    const char *site = p->plan->ranks[p->plan->flows[e->flow].src_rank].site;
    double start_s = e->at_s;

    if (f->link >= 0) {
        double *free_s = &p->link_free_s[f->link];

        start_s = *free_s > start_s ? *free_s : start_s;
        *free_s = start_s + f->transfer.pace_s;
        if (e->counts) {
            p->cost->links[f->link].bytes += f->transfer.wire_bytes;
            p->cost->links[f->link].busy_s += f->transfer.busy_s;
            p->cost->wan_bytes += f->transfer.wire_bytes;
        }
        gateway_works(p, site, e->at_s, f->transfer.src_cpu_s);
    }
    event_push(
        p, (struct play_event){start_s + f->transfer.service_s + f->transfer.latency_s + f->late_s,
                               e->flow, true, e->counts});
}

static void frame_arrives(struct play *p, const struct play_event *e)
{
    struct play_flow *f = &p->flows[e->flow];

    HDT_ASSERT(f->n_arrived < f->cap);
    if (f->link >= 0) {
        gateway_works(p, p->plan->ranks[p->plan->flows[e->flow].dst_rank].site,
                      e->at_s - f->transfer.dst_cpu_s, f->transfer.dst_cpu_s);
    }
    f->arrive_s[f->n_arrived++] = e->at_s;
}

static void event_play(struct play *p, int idx)
{
    struct play_event e = p->events[idx];

    p->events[idx] = p->events[--p->n_events];
    if (e.arrives) {
        frame_arrives(p, &e);
    } else {
        frame_leaves(p, &e);
    }
}

void hdt_play_run(struct play *p)
{
    for (;;) {
        int best = -1, event = event_next(p);
        double best_s = event >= 0 ? p->events[event].at_s : DBL_MAX, start_s;

        for (int i = 0; i < (int)p->plan->n_ranks; i++) {
            struct play_rank *r = &p->ranks[i];

            if (r->next < r->n_moves && move_ready(p, r, &start_s) && start_s < best_s) {
                best = i;
                best_s = start_s;
            }
        }
        if (best >= 0) {
            move_play(p, best, best_s);
        } else if (event >= 0) {
            event_play(p, event);
        } else {
            break;
        }
    }
    for (size_t i = 0; i < p->plan->n_ranks; i++) {
        HDT_ASSERT(p->ranks[i].next == p->ranks[i].n_moves);
    }
}
