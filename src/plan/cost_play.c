/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Plays the op lists of all ranks with predicted times.
 *
 * Each list is unrolled into steps that either occupy the rank, send a frame or take one
 * (TIED_SYNC and NORM_SYNC are several). The step that can start first, of all ranks, is played
 * next, so that frames queue for a link in the order in which they are sent. Two training steps are
 * played, and the second counts: the first one starts with an idle pipeline and all ranks in line.
 *
 * Left out: the sharing of a link by chunks (a frame holds it whole), the gateways' CPU beyond the
 * codec, checkpoints. What a link really carries is in its measured goodput.
 */
#include "src/base/buf.h"
#include "src/plan/cost.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_STEPS 2

enum move_kind { MOVE_WORK, MOVE_SEND, MOVE_RECV };

struct move {
    enum move_kind kind;
    int flow;      /* SEND, RECV */
    double busy_s; /* of the rank: the op itself, the worker's codec, the fixed cost of an op */
    struct hdt_op op;
};

struct flow_state {
    struct hdt_cost_transfer transfer;
    int link;         /* index in cost->links; -1: inside a site */
    double *arrive_s; /* a frame of the two steps */
    double *taken_s;
    int64_t n_sent, n_taken, cap;
};

struct rank_state {
    struct move *moves;
    size_t n_moves, cap, next;
    double free_s, busy_s;
    double step_end_s[N_STEPS];
    size_t step_end[N_STEPS]; /* moves before the end of each step */
};

struct play {
    const struct hdt_cost_inputs *in;
    const struct hdt_plan *plan;
    struct hdt_cost *cost;
    struct rank_state *ranks;
    struct flow_state *flows;
    double *link_free_s;
    bool timeline;
    const struct hdt_cost_given *given; /* NULL: nothing */
};

/* ---- set-up ---- */

static const struct hdt_profile *rank_profile(const struct play *p, int rank)
{
    const struct hdt_plan_rank *r = &p->plan->ranks[rank];

    return &hdt_cost_find_worker(p->in->cluster, r->site, r->worker)->profile;
}

static enum hdt_status ranks_check(const struct play *p, struct hdt_error *err)
{
    for (size_t i = 0; i < p->plan->n_ranks; i++) {
        const struct hdt_plan_rank *r = &p->plan->ranks[i];
        const struct hdt_cluster_worker *w =
            hdt_cost_find_worker(p->in->cluster, r->site, r->worker);

        if (!w) {
            return hdt_error_set(err, HDT_EINVAL, "worker %s/%s is not there", r->site, r->worker);
        }
        if (!w->profile.valid) {
            hdt_error_set(err, HDT_EINVAL, "worker %s/%s has no profile for this job", r->site,
                          r->worker);
            hdt_error_hint(err, "see hdt logs %s/%s; it measures its device when a plan asks",
                           r->site, r->worker);
            return HDT_EINVAL;
        }
    }
    return HDT_OK;
}

static int link_index(struct play *p, const char *from, const char *to)
{
    struct hdt_cost *cost = p->cost;
    struct hdt_cost_link *link;

    for (size_t i = 0; i < cost->n_links; i++) {
        if (strcmp(cost->links[i].from, from) == 0 && strcmp(cost->links[i].to, to) == 0) {
            return (int)i;
        }
    }
    cost->links = hdt_realloc(cost->links, (cost->n_links + 1) * sizeof(cost->links[0]));
    link = &cost->links[cost->n_links];
    memset(link, 0, sizeof(*link));
    snprintf(link->from, sizeof(link->from), "%s", from);
    snprintf(link->to, sizeof(link->to), "%s", to);
    return (int)cost->n_links++;
}

static enum hdt_status flow_setup(struct play *p, size_t i, struct hdt_error *err)
{
    const struct hdt_plan_flow *f = &p->plan->flows[i];
    const char *from = p->plan->ranks[f->src_rank].site, *to = p->plan->ranks[f->dst_rank].site;
    struct flow_state *s = &p->flows[i];
    double n_values = (double)f->frame_cap / 4;

    if (f->kind == HDT_FLOW_ACTIVATION || f->kind == HDT_FLOW_ACTIVATION_GRAD) {
        n_values =
            (double)p->plan->micro_batch * (double)p->plan->seq_len * (double)p->in->model->C;
    }
    HDT_TRY(hdt_cost_transfer(p->in, from, to, f->codec, n_values, &s->transfer, err));
    s->link = strcmp(from, to) == 0 ? -1 : link_index(p, from, to);
    s->cap = N_STEPS * (p->plan->n_micro_batches + 1);
    s->arrive_s = hdt_calloc((size_t)s->cap, sizeof(double));
    s->taken_s = hdt_calloc((size_t)s->cap, sizeof(double));
    return HDT_OK;
}

static void move_push(struct rank_state *r, struct move move)
{
    if (r->n_moves == r->cap) {
        r->cap = r->cap ? 2 * r->cap : 128;
        r->moves = hdt_realloc(r->moves, r->cap * sizeof(r->moves[0]));
    }
    r->moves[r->n_moves++] = move;
}

/* A send or receive of one frame on each flow of `kind` at the rank. */
static void moves_push_flows(struct play *p, int rank, const struct hdt_op *op,
                             enum hdt_flow_kind kind, bool send)
{
    for (size_t i = 0; i < p->plan->n_flows; i++) {
        const struct hdt_plan_flow *f = &p->plan->flows[i];

        if (f->kind == kind && (send ? f->src_rank : f->dst_rank) == rank) {
            move_push(&p->ranks[rank], (struct move){send ? MOVE_SEND : MOVE_RECV, (int)i,
                                                     rank_profile(p, rank)->op_overhead_s, *op});
        }
    }
}

static void moves_push_norm_sync(struct play *p, int rank, const struct hdt_op *op)
{
    if (rank == p->plan->root_rank) {
        moves_push_flows(p, rank, op, HDT_FLOW_SYNC_UP, false);
        moves_push_flows(p, rank, op, HDT_FLOW_SYNC_DOWN, true);
    } else {
        moves_push_flows(p, rank, op, HDT_FLOW_SYNC_UP, true);
        moves_push_flows(p, rank, op, HDT_FLOW_SYNC_DOWN, false);
    }
}

static double rank_step_s(const struct play *p, int rank)
{
    double sum = 0, fwd_s, bwd_s, step_s;

    for (size_t i = 0; i < p->plan->n_stages; i++) {
        const struct hdt_plan_stage *s = &p->plan->stages[i];

        if (s->rank == rank) {
            hdt_cost_stage_times(p->in, rank_profile(p, rank), s->unit_begin, s->unit_end, &fwd_s,
                                 &bwd_s, &step_s);
            sum += step_s;
        }
    }
    return sum;
}

static double stage_op_s(const struct play *p, int rank, const struct hdt_op *op)
{
    const struct hdt_plan_stage *s = &p->plan->stages[op->stage];
    double fwd_s, bwd_s, step_s;

    hdt_cost_stage_times(p->in, rank_profile(p, rank), s->unit_begin, s->unit_end, &fwd_s, &bwd_s,
                         &step_s);
    return op->kind == HDT_OP_FORWARD ? fwd_s : bwd_s;
}

static void moves_push_op(struct play *p, int rank, const struct hdt_op *op)
{
    const struct hdt_profile *profile = rank_profile(p, rank);
    struct rank_state *r = &p->ranks[rank];
    double busy_s = profile->op_overhead_s;
    double n_values =
        (double)p->plan->micro_batch * (double)p->plan->seq_len * (double)p->in->model->C;

    switch (op->kind) {
    case HDT_OP_FORWARD:
    case HDT_OP_BACKWARD:
        busy_s += stage_op_s(p, rank, op);
        move_push(r, (struct move){MOVE_WORK, -1, busy_s, *op});
        break;
    case HDT_OP_TIED_SYNC:
        moves_push_flows(p, rank, op, HDT_FLOW_TIED_GRAD, true);
        moves_push_flows(p, rank, op, HDT_FLOW_TIED_GRAD, false);
        break;
    case HDT_OP_NORM_SYNC:
        moves_push_norm_sync(p, rank, op);
        break;
    case HDT_OP_STEP:
        move_push(r, (struct move){MOVE_WORK, -1, busy_s + rank_step_s(p, rank), *op});
        break;
    case HDT_OP_SEND_FORWARD:
    case HDT_OP_SEND_BACKWARD:
    case HDT_OP_SEND_TOKENS:
    case HDT_OP_SEND_LABELS:
        busy_s += hdt_cost_cast(profile, p->plan->flows[op->flow].codec, n_values);
        move_push(r, (struct move){MOVE_SEND, op->flow, busy_s, *op});
        break;
    case HDT_OP_RECV_FORWARD:
    case HDT_OP_RECV_BACKWARD:
    case HDT_OP_RECV_TOKENS:
    case HDT_OP_RECV_LABELS:
        busy_s += hdt_cost_cast(profile, p->plan->flows[op->flow].codec, n_values);
        move_push(r, (struct move){MOVE_RECV, op->flow, busy_s, *op});
        break;
    default:
        move_push(r, (struct move){MOVE_WORK, -1, busy_s, *op});
        break;
    }
}

/* The moves of an op share its given time. */
static void moves_give(struct play *p, int rank, size_t first)
{
    struct rank_state *r = &p->ranks[rank];
    double op_s;

    for (size_t i = first; p->given && i < r->n_moves; i++) {
        op_s = p->given->op_s[rank * HDT_OP_KIND_COUNT + (int)r->moves[i].op.kind];
        if (op_s >= 0) {
            r->moves[i].busy_s = op_s / (double)(r->n_moves - first);
        }
    }
}

static enum hdt_status rank_setup(struct play *p, int rank, struct hdt_error *err)
{
    struct hdt_schedule schedule;

    HDT_TRY(hdt_schedule_build(p->plan, rank, HDT_PHASE_TRAIN, p->plan->n_micro_batches, &schedule,
                               err));
    for (int step = 0; step < N_STEPS; step++) {
        for (size_t i = 0; i < schedule.n_ops; i++) {
            size_t first = p->ranks[rank].n_moves;

            moves_push_op(p, rank, &schedule.ops[i]);
            moves_give(p, rank, first);
        }
        p->ranks[rank].step_end[step] = p->ranks[rank].n_moves;
    }
    hdt_schedule_release(&schedule);
    return HDT_OK;
}

static enum hdt_status play_setup(struct play *p, struct hdt_error *err)
{
    HDT_TRY(ranks_check(p, err));
    for (size_t i = 0; i < p->plan->n_flows; i++) {
        HDT_TRY(flow_setup(p, i, err));
    }
    for (int i = 0; i < (int)p->plan->n_ranks; i++) {
        HDT_TRY(rank_setup(p, i, err));
    }
    p->link_free_s = hdt_calloc(p->cost->n_links + 1, sizeof(double));
    return HDT_OK;
}

/* ---- playing ---- */

/* When the rank's next move can start; false: what it waits for has not been played yet. */
static bool move_ready(const struct play *p, const struct rank_state *r, double *start_s)
{
    const struct move *m = &r->moves[r->next];
    const struct flow_state *f = m->kind == MOVE_WORK ? NULL : &p->flows[m->flow];
    int64_t depth = f ? (int64_t)p->plan->flows[m->flow].depth : 0;
    double ready_s = 0;

    if (m->kind == MOVE_SEND && f->n_sent >= depth) {
        if (f->n_taken <= f->n_sent - depth) {
            return false;
        }
        /* The acknowledgement travels back. */
        ready_s = f->taken_s[f->n_sent - depth] + f->transfer.latency_s;
    } else if (m->kind == MOVE_RECV) {
        if (f->n_sent <= f->n_taken) {
            return false;
        }
        ready_s = f->arrive_s[f->n_taken];
    }
    *start_s = ready_s > r->free_s ? ready_s : r->free_s;
    return true;
}

static void frame_send(struct play *p, struct flow_state *f, double at_s, bool counts)
{
    double start_s = at_s;

    HDT_ASSERT(f->n_sent < f->cap);
    if (f->link >= 0) {
        double *free_s = &p->link_free_s[f->link];

        start_s = *free_s > at_s ? *free_s : at_s;
        *free_s = start_s + f->transfer.busy_s;
        if (counts) {
            p->cost->links[f->link].bytes += f->transfer.wire_bytes;
            p->cost->links[f->link].busy_s += f->transfer.busy_s;
            p->cost->wan_bytes += f->transfer.wire_bytes;
        }
    }
    f->arrive_s[f->n_sent] = start_s + f->transfer.service_s + f->transfer.latency_s;
    if (p->given) {
        f->arrive_s[f->n_sent] += p->given->late_s[f - p->flows];
    }
    f->n_sent++;
}

static void timeline_push(struct play *p, int rank, const struct move *m, double start_s,
                          double arrived_s)
{
    struct hdt_cost *cost = p->cost;

    if ((cost->n_ops & (cost->n_ops - 1)) == 0) {
        cost->ops =
            hdt_realloc(cost->ops, (cost->n_ops ? 2 * cost->n_ops : 1) * sizeof(cost->ops[0]));
    }
    cost->ops[cost->n_ops++] = (struct hdt_cost_op){rank, m->op, start_s, start_s + m->busy_s, arrived_s};
}

static void move_play(struct play *p, int rank, double start_s)
{
    struct rank_state *r = &p->ranks[rank];
    const struct move *m = &r->moves[r->next];
    struct flow_state *f = m->kind == MOVE_WORK ? NULL : &p->flows[m->flow];
    bool counts = r->next >= r->step_end[N_STEPS - 2];
    double end_s = start_s + m->busy_s, arrived_s = 0;

    if (m->kind == MOVE_SEND) {
        frame_send(p, f, end_s, counts);
    } else if (m->kind == MOVE_RECV) {
        arrived_s = f->arrive_s[f->n_taken];
        f->taken_s[f->n_taken++] = end_s;
    }
    r->free_s = end_s;
    r->busy_s += counts ? m->busy_s : 0.0;
    if (counts && p->timeline) {
        timeline_push(p, rank, m, start_s, arrived_s);
    }
    r->next++;
    for (int step = 0; step < N_STEPS; step++) {
        if (r->next == r->step_end[step]) {
            r->step_end_s[step] = end_s;
        }
    }
}

static void play_run(struct play *p)
{
    for (;;) {
        int best = -1;
        double best_s = DBL_MAX, start_s;

        for (int i = 0; i < (int)p->plan->n_ranks; i++) {
            struct rank_state *r = &p->ranks[i];

            if (r->next < r->n_moves && move_ready(p, r, &start_s) && start_s < best_s) {
                best = i;
                best_s = start_s;
            }
        }
        if (best < 0) {
            break;
        }
        move_play(p, best, best_s);
    }
    for (size_t i = 0; i < p->plan->n_ranks; i++) {
        HDT_ASSERT(p->ranks[i].next == p->ranks[i].n_moves);
    }
}

/* ---- results ---- */

static int rank_busiest(const struct play *p)
{
    int best = 0;

    for (int i = 1; i < (int)p->plan->n_ranks; i++) {
        if (p->ranks[i].busy_s > p->ranks[best].busy_s) {
            best = i;
        }
    }
    return best;
}

static const struct hdt_cost_link *link_busiest(const struct hdt_cost *cost)
{
    const struct hdt_cost_link *best = NULL;

    for (size_t i = 0; i < cost->n_links; i++) {
        if (!best || cost->links[i].busy_s > best->busy_s) {
            best = &cost->links[i];
        }
    }
    return best;
}

/* What is busy most of the step limits it; when nothing is, filling and draining does. */
static void limit_set(const struct play *p)
{
    struct hdt_cost *cost = p->cost;
    int rank = rank_busiest(p);
    const struct hdt_plan_rank *r = &p->plan->ranks[rank];
    const struct hdt_cost_link *link = link_busiest(cost);
    double rank_share = p->ranks[rank].busy_s / cost->step_s;
    double link_share = link ? link->busy_s / cost->step_s : 0;

    cost->bubble_share = rank_share < 1 ? 1 - rank_share : 0;
    if (link_share > rank_share) {
        snprintf(cost->limit, sizeof(cost->limit), "link %.60s -> %.60s, busy %.0f %%", link->from,
                 link->to, 100 * link_share);
    } else if (rank_share < 0.7 && p->plan->n_stages > 1) {
        snprintf(cost->limit, sizeof(cost->limit),
                 "filling and draining the pipeline: %lld micro-batches over %zu stages",
                 (long long)p->plan->n_micro_batches, p->plan->n_stages);
    } else {
        snprintf(cost->limit, sizeof(cost->limit), "compute of %.60s/%.60s, busy %.0f %%", r->site,
                 r->worker, 100 * rank_share);
    }
}

static void results_fill(struct play *p)
{
    struct hdt_cost *cost = p->cost;
    const struct rank_state *root = &p->ranks[p->plan->root_rank];
    double begin_s = root->step_end_s[N_STEPS - 2];

    cost->step_s = root->step_end_s[N_STEPS - 1] - begin_s;
    cost->tokens_per_s = (double)p->plan->micro_batch * (double)p->plan->n_micro_batches *
                         (double)p->plan->seq_len / cost->step_s;
    cost->n_ranks = p->plan->n_ranks;
    cost->rank_busy_s = hdt_calloc(cost->n_ranks, sizeof(double));
    for (size_t i = 0; i < cost->n_ranks; i++) {
        cost->rank_busy_s[i] = p->ranks[i].busy_s;
    }
    /* A rank may begin the step before the root does: its ops keep their place. */
    for (size_t i = 0; i < cost->n_ops; i++) {
        cost->ops[i].start_s -= begin_s;
        cost->ops[i].end_s -= begin_s;
        cost->ops[i].arrived_s -= begin_s;
    }
    limit_set(p);
}

static void play_release(struct play *p)
{
    for (size_t i = 0; i < p->plan->n_ranks; i++) {
        free(p->ranks[i].moves);
    }
    for (size_t i = 0; i < p->plan->n_flows; i++) {
        free(p->flows[i].arrive_s);
        free(p->flows[i].taken_s);
    }
    free(p->ranks);
    free(p->flows);
    free(p->link_free_s);
}

static enum hdt_status play(struct play *p, struct hdt_error *err)
{
    enum hdt_status status;

    memset(p->cost, 0, sizeof(*p->cost));
    p->ranks = hdt_calloc(p->plan->n_ranks, sizeof(p->ranks[0]));
    p->flows = hdt_calloc(p->plan->n_flows + 1, sizeof(p->flows[0]));
    status = play_setup(p, err);
    if (status == HDT_OK) {
        play_run(p);
        results_fill(p);
    } else {
        hdt_cost_release(p->cost);
    }
    play_release(p);
    return status;
}

enum hdt_status hdt_cost_play(const struct hdt_cost_inputs *in, const struct hdt_plan *plan,
                              bool timeline, struct hdt_cost *cost, struct hdt_error *err)
{
    struct play p = {.in = in, .plan = plan, .cost = cost, .timeline = timeline};

    return play(&p, err);
}

enum hdt_status hdt_cost_play_given(const struct hdt_cost_inputs *in, const struct hdt_plan *plan,
                                    const struct hdt_cost_given *given, struct hdt_cost *cost,
                                    struct hdt_error *err)
{
    struct play p = {.in = in, .plan = plan, .cost = cost, .given = given};

    return play(&p, err);
}

void hdt_cost_release(struct hdt_cost *cost)
{
    free(cost->rank_busy_s);
    free(cost->links);
    free(cost->ops);
    memset(cost, 0, sizeof(*cost));
}
