/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Plays the op lists of all ranks with predicted times.
 *
 * Each list is unrolled into moves that either occupy the rank, send a frame or take one
 * (TIED_SYNC and NORM_SYNC are several). Two training steps are simulated (play.c), and the second
 * counts: the first one starts with an idle pipeline and all ranks in line.
 */
#include "src/base/buf.h"
#include "src/plan/play.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- set-up ---- */

static const struct hdt_cluster_worker *rank_worker(const struct play *p, int rank)
{
    const struct hdt_plan_rank *r = &p->plan->ranks[rank];

    return hdt_cost_find_worker(p->in->cluster, r->site, r->worker);
}

static const struct hdt_profile *rank_profile(const struct play *p, int rank)
{
    return &rank_worker(p, rank)->profile;
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
        HDT_TRY(hdt_cost_check_precision(p->in, w, err));
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

static enum hdt_status halves_check(const struct play *p, struct hdt_error *err)
{
    double input_s, weight_s;

    for (size_t i = 0; i < p->plan->n_stages && hdt_schedule_is_split(p->plan->schedule); i++) {
        const struct hdt_plan_stage *s = &p->plan->stages[i];

        HDT_TRY(hdt_cost_stage_halves(p->in, rank_worker(p, s->rank), s->unit_begin, s->unit_end,
                                      &input_s, &weight_s, err));
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

/* Outer steps are no frames of every step: their share of the time is a move of all ranks, and that
 * of the bytes is added to the links'. */
static enum hdt_status outer_setup(struct play *p, struct hdt_error *err)
{
    struct hdt_cost_outer outer;

    HDT_TRY(hdt_cost_outer(p->in, p->plan, &outer, err));
    p->cost->outer_s = outer.steps > 0 ? outer.step_s / (double)outer.steps : 0;
    hdt_cost_outer_release(&outer);
    return HDT_OK;
}

static enum hdt_status outer_links(struct play *p, struct hdt_error *err)
{
    struct hdt_cost_outer outer;

    HDT_TRY(hdt_cost_outer(p->in, p->plan, &outer, err));
    for (size_t i = 0; i < outer.n_links; i++) {
        const struct hdt_cost_link *o = &outer.links[i];
        struct hdt_cost_link *link = &p->cost->links[link_index(p, o->from, o->to)];

        link->bytes += o->bytes / (double)outer.steps;
        link->busy_s += o->busy_s / (double)outer.steps;
    }
    p->cost->wan_bytes += outer.steps > 0 ? outer.bytes / (double)outer.steps : 0;
    hdt_cost_outer_release(&outer);
    return HDT_OK;
}

static enum hdt_status flow_setup(struct play *p, size_t i, struct hdt_error *err)
{
    const struct hdt_plan_flow *f = &p->plan->flows[i];
    const char *from = p->plan->ranks[f->src_rank].site, *to = p->plan->ranks[f->dst_rank].site;
    struct play_flow *s = &p->flows[i];
    double n_values = (double)f->frame_cap / 4;

    if (f->kind == HDT_FLOW_ACTIVATION || f->kind == HDT_FLOW_ACTIVATION_GRAD) {
        n_values =
            (double)p->plan->micro_batch * (double)p->plan->seq_len * (double)p->in->model->C;
    }
    HDT_TRY(hdt_cost_transfer(p->in, from, to, &f->codec, n_values, &s->transfer, err));
    s->late_s = p->given ? p->given->late_s[i] : 0;
    s->link = strcmp(from, to) == 0 ? -1 : link_index(p, from, to);
    return HDT_OK;
}

static void move_push(struct play_rank *r, struct play_move move)
{
    if (r->n_moves == r->cap) {
        r->cap = r->cap ? 2 * r->cap : 128;
        r->moves = hdt_realloc(r->moves, r->cap * sizeof(r->moves[0]));
    }
    r->moves[r->n_moves++] = move;
}

/* A send or receive of one frame on each flow of `kind` at the rank, within its replica. */
static void moves_push_flows(struct play *p, int rank, const struct hdt_op *op,
                             enum hdt_flow_kind kind, bool send)
{
    for (size_t i = 0; i < p->plan->n_flows; i++) {
        const struct hdt_plan_flow *f = &p->plan->flows[i];

        if (f->kind == kind && (send ? f->src_rank : f->dst_rank) == rank &&
            hdt_plan_rank_replica(p->plan, f->src_rank) ==
                hdt_plan_rank_replica(p->plan, f->dst_rank)) {
            move_push(&p->ranks[rank],
                      (struct play_move){send ? PLAY_SEND : PLAY_RECV, (int)i,
                                         rank_profile(p, rank)->op_overhead_s, *op});
        }
    }
}

static void moves_push_norm_sync(struct play *p, int rank, const struct hdt_op *op)
{
    if (rank == hdt_plan_replica_root(p->plan, hdt_plan_rank_replica(p->plan, rank))) {
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
    double fwd_s, bwd_s, step_s, input_s, weight_s;
    enum hdt_status status;

    if (op->kind == HDT_OP_BACKWARD_INPUT || op->kind == HDT_OP_BACKWARD_WEIGHT) {
        status = hdt_cost_stage_halves(p->in, rank_worker(p, rank), s->unit_begin, s->unit_end,
                                       &input_s, &weight_s, NULL);
        HDT_ASSERT(status == HDT_OK); /* halves_check */
        return op->kind == HDT_OP_BACKWARD_INPUT ? input_s : weight_s;
    }
    hdt_cost_stage_times(p->in, rank_profile(p, rank), s->unit_begin, s->unit_end, &fwd_s, &bwd_s,
                         &step_s);
    return op->kind == HDT_OP_FORWARD ? fwd_s : bwd_s;
}

static void moves_push_op(struct play *p, int rank, const struct hdt_op *op)
{
    const struct hdt_profile *profile = rank_profile(p, rank);
    struct play_rank *r = &p->ranks[rank];
    double busy_s = profile->op_overhead_s;
    double n_values =
        (double)p->plan->micro_batch * (double)p->plan->seq_len * (double)p->in->model->C;

    switch (op->kind) {
    case HDT_OP_FORWARD:
    case HDT_OP_BACKWARD:
    case HDT_OP_BACKWARD_INPUT:
    case HDT_OP_BACKWARD_WEIGHT:
        busy_s += stage_op_s(p, rank, op);
        move_push(r, (struct play_move){PLAY_WORK, -1, busy_s, *op});
        break;
    case HDT_OP_TIED_SYNC:
        moves_push_flows(p, rank, op, HDT_FLOW_TIED_GRAD, true);
        moves_push_flows(p, rank, op, HDT_FLOW_TIED_GRAD, false);
        break;
    case HDT_OP_NORM_SYNC:
        moves_push_norm_sync(p, rank, op);
        break;
    case HDT_OP_STEP:
        move_push(r, (struct play_move){PLAY_WORK, -1, busy_s + rank_step_s(p, rank), *op});
        break;
    case HDT_OP_OUTER_SYNC:
        move_push(r, (struct play_move){PLAY_WORK, -1, p->cost->outer_s, *op});
        break;
    case HDT_OP_SEND_FORWARD:
    case HDT_OP_SEND_BACKWARD:
    case HDT_OP_SEND_TOKENS:
    case HDT_OP_SEND_LABELS:
        busy_s += hdt_cost_cast(profile, &p->plan->flows[op->flow].codec, n_values);
        move_push(r, (struct play_move){PLAY_SEND, op->flow, busy_s, *op});
        break;
    case HDT_OP_RECV_FORWARD:
    case HDT_OP_RECV_BACKWARD:
    case HDT_OP_RECV_TOKENS:
    case HDT_OP_RECV_LABELS:
        busy_s += hdt_cost_cast(profile, &p->plan->flows[op->flow].codec, n_values);
        move_push(r, (struct play_move){PLAY_RECV, op->flow, busy_s, *op});
        break;
    default:
        move_push(r, (struct play_move){PLAY_WORK, -1, busy_s, *op});
        break;
    }
}

/* The moves of an op share its given time. */
static void moves_give(struct play *p, int rank, size_t first)
{
    struct play_rank *r = &p->ranks[rank];
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
    for (size_t i = 0; i < schedule.n_ops; i++) {
        size_t first = p->ranks[rank].n_moves;

        moves_push_op(p, rank, &schedule.ops[i]);
        moves_give(p, rank, first);
    }
    p->ranks[rank].gateway_share = hdt_cost_gateway_share(p->in, p->plan, rank_worker(p, rank));
    hdt_schedule_release(&schedule);
    return HDT_OK;
}

static enum hdt_status play_setup(struct play *p, struct hdt_error *err)
{
    HDT_TRY(ranks_check(p, err));
    HDT_TRY(halves_check(p, err));
    HDT_TRY(outer_setup(p, err));
    for (size_t i = 0; i < p->plan->n_flows; i++) {
        HDT_TRY(flow_setup(p, i, err));
    }
    for (int i = 0; i < (int)p->plan->n_ranks; i++) {
        HDT_TRY(rank_setup(p, i, err));
    }
    return HDT_OK;
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

/* What is busy most of the step limits it; when nothing is, outer steps do, or filling and draining
 * the pipeline that the busiest rank is of. */
static void limit_set(const struct play *p)
{
    struct hdt_cost *cost = p->cost;
    int rank = rank_busiest(p);
    const struct hdt_plan_rank *r = &p->plan->ranks[rank];
    const struct hdt_cost_link *link = link_busiest(cost);
    double rank_share = p->ranks[rank].busy_s / cost->step_s;
    double link_share = link ? link->busy_s / cost->step_s : 0;
    double outer_share = cost->outer_s / cost->step_s;
    struct hdt_plan own;

    cost->bubble_share = rank_share < 1 ? 1 - rank_share : 0;
    hdt_plan_replica_view(p->plan, hdt_plan_rank_replica(p->plan, rank), &own);
    if (outer_share > 0.5 || (rank_share < 0.7 && outer_share > 1 - rank_share - outer_share)) {
        snprintf(cost->limit, sizeof(cost->limit), "outer steps, %.0f %% of the time",
                 100 * outer_share);
    } else if (link_share > rank_share) {
        snprintf(cost->limit, sizeof(cost->limit), "link %.60s -> %.60s, busy %.0f %%", link->from,
                 link->to, 100 * link_share);
    } else if (rank_share < 0.7 && own.n_stages > 1) {
        snprintf(cost->limit, sizeof(cost->limit),
                 "filling and draining the pipeline: %lld micro-batches over %zu stages",
                 (long long)own.n_micro_batches, own.n_stages);
    } else {
        snprintf(cost->limit, sizeof(cost->limit), "compute of %.60s/%.60s, busy %.0f %%", r->site,
                 r->worker, 100 * rank_share);
    }
    free(own.flows);
}

/* Replicas go their own ways between outer steps, where the slowest is waited for. */
static double slowest_step_s(const struct play *p, double *begin_s)
{
    double slowest_s = 0;

    *begin_s = p->ranks[p->plan->root_rank].step_end_s[HDT_PLAY_STEPS - 2];
    for (int k = 0; k < p->plan->n_replicas; k++) {
        const struct play_rank *root = &p->ranks[hdt_plan_replica_root(p->plan, k)];
        double step_s = root->step_end_s[HDT_PLAY_STEPS - 1] - root->step_end_s[HDT_PLAY_STEPS - 2];

        slowest_s = step_s > slowest_s ? step_s : slowest_s;
    }
    return slowest_s;
}

static void results_fill(struct play *p)
{
    struct hdt_cost *cost = p->cost;
    double begin_s;

    cost->step_s = slowest_step_s(p, &begin_s);
    cost->tokens_per_s = (double)p->plan->micro_batch * (double)p->plan->n_micro_batches *
                         (double)p->plan->seq_len / cost->step_s;
    cost->n_ranks = p->plan->n_ranks;
    cost->rank_busy_s = hdt_calloc(cost->n_ranks, sizeof(double));
    cost->rank_held_s = hdt_calloc(cost->n_ranks, sizeof(double));
    for (size_t i = 0; i < cost->n_ranks; i++) {
        p->ranks[i].busy_s -= rank_step_s(p, (int)i) > 0 ? cost->outer_s : 0; /* mostly waits */
        cost->rank_busy_s[i] = p->ranks[i].busy_s;
        cost->rank_held_s[i] = p->ranks[i].held_s;
    }
    /* A rank may begin the step before the root does: its ops keep their place. */
    for (size_t i = 0; i < cost->n_ops; i++) {
        cost->ops[i].start_s -= begin_s;
        cost->ops[i].end_s -= begin_s;
        cost->ops[i].arrived_s -= begin_s;
    }
    limit_set(p);
}

void hdt_play_close(struct play *p)
{
    for (size_t i = 0; i < p->plan->n_ranks; i++) {
        free(p->ranks[i].moves);
    }
    free(p->ranks);
    free(p->flows);
}

enum hdt_status hdt_play_open(struct play *p, struct hdt_error *err)
{
    enum hdt_status status;

    memset(p->cost, 0, sizeof(*p->cost));
    p->ranks = hdt_calloc(p->plan->n_ranks, sizeof(p->ranks[0]));
    p->flows = hdt_calloc(p->plan->n_flows + 1, sizeof(p->flows[0]));
    status = play_setup(p, err);
    if (status != HDT_OK) {
        hdt_play_close(p);
        hdt_cost_release(p->cost);
    }
    return status;
}

static enum hdt_status play(struct play *p, struct hdt_error *err)
{
    enum hdt_status status;

    HDT_TRY(hdt_play_open(p, err));
    status = hdt_play_run(p, err);
    if (status == HDT_OK) {
        status = outer_links(p, err);
    }
    if (status == HDT_OK) {
        results_fill(p);
    } else {
        hdt_cost_release(p->cost);
    }
    hdt_play_close(p);
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
    free(cost->rank_held_s);
    free(cost->links);
    free(cost->ops);
    memset(cost, 0, sizeof(*cost));
}
