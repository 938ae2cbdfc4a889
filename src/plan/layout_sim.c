/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Each replica is a pipeline of its own, whose op lists schedule.c writes; ranks of all replicas
 * meet on shared links and at the end of the step. Devices of a tensor-parallel group do the same
 * at the same time: one rank stands for them, and its frames are those of all.
 */
#include "src/base/buf.h"
#include "src/core/schedule.h"
#include "src/plan/layout_sim_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Tasks of a rank beside those of its schedule: about as many. */
#define LIST_ENDS 64
/* More than any device has; 64 chunks of it can be added. */
#define BYTES_MAX 1e16

/* One replica while its lists are written. */
struct replica {
    struct hdt_layout_sim *sim;
    size_t idx;
    struct hdt_layout_part *parts;
    struct hdt_stage_cost_message *messages; /* of a part's group, to either side */
    int first_flow;                          /* of the replica: 2 to each edge, there and back; */
    double *frame_bytes;                     /* what a frame of each weighs on its way */
    struct layout_away *away;                /* by part */
    struct hdt_plan plan;
};

int hdt_layout_sim_add_flow(struct hdt_layout_sim *sim, const struct hdt_sim_flow *flow,
                            const int *links, const double *shares, size_t n_links)
{
    if (sim->n_flows == sim->flows_cap) {
        sim->flows_cap = sim->flows_cap ? 2 * sim->flows_cap : 64;
        sim->flows = hdt_realloc(sim->flows, sim->flows_cap * sizeof(sim->flows[0]));
    }
    if (sim->n_routes + n_links > sim->routes_cap) {
        sim->routes_cap = 2 * (sim->n_routes + n_links);
        sim->routes = hdt_realloc(sim->routes, sim->routes_cap * sizeof(sim->routes[0]));
        sim->route_shares =
            hdt_realloc(sim->route_shares, sim->routes_cap * sizeof(sim->route_shares[0]));
    }
    sim->flows[sim->n_flows] = *flow;
    sim->flows[sim->n_flows].route = sim->n_routes;
    sim->flows[sim->n_flows].n_route = n_links;
    for (size_t i = 0; i < n_links; i++) {
        sim->route_shares[sim->n_routes] = shares ? shares[i] : 1;
        sim->routes[sim->n_routes++] = links[i];
    }
    return (int)sim->n_flows++;
}

/* ---- flows ---- */

static size_t rank_of(const struct replica *r, size_t part)
{
    return r->idx * r->sim->n_stages + part % r->sim->n_stages;
}

/* From part to part; a gateway's codec works beside the ranks, one frame after another. */
static void edge_add(struct replica *r, size_t src, size_t dst)
{
    const struct hdt_layout_files *f = r->sim->files;
    struct hdt_layout_wire wire = {.codec_ratio = 1, .codec_gb_per_s = NAN};
    double bytes = r->messages[src].bytes * (double)r->parts[src].cost.tp;
    struct hdt_sim_flow flow = {.src = (int)rank_of(r, src),
                                .dst = (int)rank_of(r, dst),
                                .queue = -1,
                                .src_host = -1,
                                .dst_host = -1};
    struct layout_route route;
    double codec_s;
    int idx;

    hdt_layout_net_route(&r->sim->net, rank_of(r, src), rank_of(r, dst), &route);
    flow.latency_s = route.latency_s;
    if (route.is_wan) {
        wire =
            hdt_layout_wan_between(f, f->groups[flow.src].site_idx, f->groups[flow.dst].site_idx);
    }
    if (!isnan(wire.codec_gb_per_s)) {
        codec_s = bytes / (wire.codec_gb_per_s * 1e9);
        flow.extra_s = 2 * codec_s;
        flow.pace_s = codec_s;
    }
    idx = hdt_layout_sim_add_flow(r->sim, &flow, route.links, NULL, route.n) - r->first_flow;
    r->frame_bytes[idx] = route.is_wan ? bytes * wire.codec_ratio / (1 - route.loss) : bytes;
}

/* ---- tasks ---- */

static struct hdt_sim_list *list_of(const struct replica *r, size_t rank)
{
    return &r->sim->lists.ranks[rank];
}

static bool is_paired(const struct replica *r)
{
    return r->sim->files->layout.exchange == HDT_LAYOUT_PAIRED;
}

/* A message that its sender waits for is two frames: it may go on when the first has left, for the
 * second is what buffers take. */
static void message_push(const struct replica *r, size_t rank, const struct hdt_op *op,
                         bool is_send)
{
    size_t part = (size_t)op->stage, other;
    bool is_up = op->kind == HDT_OP_SEND_FORWARD || op->kind == HDT_OP_RECV_FORWARD;
    size_t src, dst;
    const struct hdt_stage_cost_message *m;
    struct hdt_sim_task task = {.kind = is_send ? HDT_SIM_SEND : HDT_SIM_RECV, .op = *op};
    double bytes = 0, eager;

    other = is_send == is_up ? part + 1 : part - 1;
    src = is_send ? part : other;
    dst = is_send ? other : part;
    m = &r->messages[src];
    eager = is_paired(r) ? m->eager_share : 1;
    task.peer = r->first_flow + (int)(2 * (src < dst ? src : dst) + (src > dst));
    if (is_send) {
        bytes = r->frame_bytes[task.peer - r->first_flow];
        task.dur_s = m->end_s;
    }
    if (eager < 1) {
        task.flags = is_send ? HDT_SIM_SYNC : 0;
        task.bytes = (1 - eager) * bytes;
        hdt_sim_list_push(list_of(r, rank), &task);
        task.flags = 0;
        task.dur_s = 0;
    }
    task.bytes = eager * bytes;
    task.dur_s = is_send ? task.dur_s : m->end_s;
    hdt_sim_list_push(list_of(r, rank), &task);
}

static int64_t slot_bytes(const struct hdt_layout_part *part)
{
    struct hdt_stage_cost_memory one, none;

    hdt_stage_cost_memory(&part->cost, 1, &one);
    hdt_stage_cost_memory(&part->cost, 0, &none);
    return (int64_t)(one.total - none.total);
}

/* Gradients are complete with the backward of the last micro-batch, one after another: it is cut
 * into as many pieces as they have buckets, and each goes while the next piece is computed. */
static void buckets_push(const struct replica *r, size_t rank, const struct hdt_sim_task *task)
{
    const struct layout_buckets *b = &r->sim->buckets[task->op.stage];
    struct hdt_sim_task piece = *task;
    struct hdt_sim_task go = {
        .kind = HDT_SIM_GROUP, .flags = HDT_SIM_ASYNC, .peer = b->chain.first, .op = task->op};

    go.op.kind = HDT_OP_GRAD_SYNC;
    piece.dur_s /= b->n;
    for (int i = 0; i < b->n; i++) {
        piece.mem_end = i + 1 < b->n ? 0 : task->mem_end;
        hdt_sim_list_push(list_of(r, rank), &piece);
        hdt_sim_list_push(list_of(r, rank), &go);
    }
}

static void gather_push(const struct replica *r, size_t rank, int part, int64_t mb)
{
    struct hdt_sim_task go = {
        .kind = HDT_SIM_GROUP, .flags = HDT_SIM_ASYNC, .peer = r->sim->gathers[part].chain.first};

    go.op = (struct hdt_op){.kind = HDT_OP_GRAD_SYNC, .stage = part, .mb = mb, .flow = -1};
    hdt_sim_list_push(list_of(r, rank), &go);
}

static void gather_join(const struct replica *r, size_t rank, const struct hdt_op *op)
{
    const struct layout_chain *chain = &r->sim->gathers[op->stage].chain;

    for (int i = 0; i < chain->n; i++) {
        struct hdt_sim_task join = {.kind = HDT_SIM_JOIN, .peer = chain->first + i, .op = *op};

        join.op.kind = HDT_OP_GRAD_SYNC;
        hdt_sim_list_push(list_of(r, rank), &join);
    }
}

/* A step begins where others have stepped on parts of the weights: the first forward is cut into
 * pieces that each wait for theirs, while those of the next one come. */
static void gathers_push(const struct replica *r, size_t rank, const struct hdt_sim_task *task)
{
    int n = r->sim->gathers[task->op.stage].n;
    struct hdt_sim_task piece = *task;

    piece.dur_s /= n;
    for (int i = 0; i < n; i++) {
        gather_join(r, rank, &task->op);
        if (i + 1 < n) {
            gather_push(r, rank, (int)task->op.stage, task->op.mb);
        }
        piece.mem_begin = i == 0 ? task->mem_begin : 0;
        hdt_sim_list_push(list_of(r, rank), &piece);
    }
}

static bool completes_gradients(const struct replica *r, const struct hdt_op *op)
{
    return (op->kind == HDT_OP_BACKWARD || op->kind == HDT_OP_BACKWARD_WEIGHT) &&
           op->mb + 1 == r->plan.n_micro_batches && r->sim->buckets[op->stage].n > 0;
}

static void compute_push(const struct replica *r, size_t rank, const struct hdt_op *op)
{
    const struct hdt_plan_stage *stage = &r->plan.stages[op->stage];
    struct hdt_sim_task task = {.kind = HDT_SIM_COMPUTE, .peer = -1, .op = *op};
    int64_t slot = slot_bytes(&r->parts[op->stage]);

    switch (op->kind) {
    case HDT_OP_FORWARD:
        task.dur_s = stage->fwd_s;
        task.mem_begin = slot;
        break;
    case HDT_OP_BACKWARD:
        task.dur_s = stage->bwd_s;
        task.mem_end = -slot;
        break;
    case HDT_OP_BACKWARD_INPUT:
        task.dur_s = stage->bwd_input_s;
        break;
    default:
        task.dur_s = stage->bwd_weight_s;
        task.mem_end = -slot;
        break;
    }
    if (completes_gradients(r, op)) {
        buckets_push(r, rank, &task);
        return;
    }
    if (op->kind == HDT_OP_FORWARD && op->mb == 0 && r->sim->gathers[op->stage].n > 0) {
        gathers_push(r, rank, &task);
        return;
    }
    hdt_sim_list_push(list_of(r, rank), &task);
}

static void op_push(const struct replica *r, size_t rank, const struct hdt_op *op)
{
    switch (op->kind) {
    case HDT_OP_FORWARD:
    case HDT_OP_BACKWARD:
    case HDT_OP_BACKWARD_INPUT:
    case HDT_OP_BACKWARD_WEIGHT:
        compute_push(r, rank, op);
        break;
    case HDT_OP_SEND_FORWARD:
    case HDT_OP_SEND_BACKWARD:
        message_push(r, rank, op, true);
        break;
    case HDT_OP_RECV_FORWARD:
    case HDT_OP_RECV_BACKWARD:
        message_push(r, rank, op, false);
        break;
    default: /* tokens and labels are a part of input_s_per_token; tail_push adds the end */
        break;
    }
}

/* DeepSpeed's pairs: an activation goes when the gradient that the next backward needs has come.
 * Its steps have a fixed grid, so that this holds for a backward that stands in the step after the
 * forward; where the step is empty (fewer micro-batches than stages) the activation goes at once.
 */
static void ops_pair(struct hdt_schedule *schedule, size_t n_stages)
{
    for (size_t i = 0; i + 1 < schedule->n_ops; i++) {
        struct hdt_op *a = &schedule->ops[i], *b = &schedule->ops[i + 1];

        if (a->kind == HDT_OP_SEND_FORWARD && b->kind == HDT_OP_RECV_BACKWARD &&
            b->mb == a->mb - ((int64_t)n_stages - 1 - a->stage)) {
            struct hdt_op op = *a;

            *a = *b;
            *b = op;
            i++;
        }
    }
}

/* ---- a replica ---- */

static void times_fill(struct replica *r)
{
    for (size_t p = 0; p < r->sim->n_parts; p++) {
        struct hdt_plan_stage *s = &r->plan.stages[p];
        struct layout_rank *rank = &r->sim->ranks[rank_of(r, p)];

        hdt_stage_cost_time(&r->parts[p].cost, &s->fwd_s, &s->bwd_s);
        s->bwd_input_s = r->parts[p].input_share * s->bwd_s;
        s->bwd_weight_s = s->bwd_s - s->bwd_input_s;
        rank->is.fwd_s += s->fwd_s;
        rank->is.bwd_s += s->bwd_s;
        rank->is.step_s += hdt_stage_cost_step_s(&r->parts[p].cost);
        rank->is.is_profiled = r->parts[p].profile.n_points > 0;
        rank->grad_bytes += hdt_stage_cost_grad_bytes(&r->parts[p].cost);
        rank->tied_bytes = hdt_stage_cost_tied_bytes(&r->parts[p].cost);
        rank->gather_bytes += hdt_stage_cost_gather_bytes(&r->parts[p].cost);
        rank->down_bytes += hdt_stage_cost_down_bytes(&r->parts[p].cost);
        rank->tied_down_bytes += hdt_stage_cost_tied_down_bytes(&r->parts[p].cost);
        rank->up_bytes += hdt_stage_cost_up_bytes(&r->parts[p].cost);
        rank->host_step_bytes += hdt_stage_cost_host_step_bytes(&r->parts[p].cost);
    }
}

/* Warm-ups where the schedule takes those of the plan. wan: as 1f1b, and as many more as fit into
 * the round trip of each edge behind; zb-mem: twice that of 1f1b, and the room for it (the memory
 * of the paper's ZB-2p). */
static void warmups_fill(struct replica *r)
{
    size_t n = r->sim->n_parts;
    double slowest = 0;
    int64_t more = 0;

    for (size_t p = 0; p < n; p++) {
        slowest = fmax(slowest, r->plan.stages[p].fwd_s + r->plan.stages[p].bwd_s);
    }
    for (size_t p = n; p-- > 0;) {
        struct hdt_plan_stage *s = &r->plan.stages[p];
        struct layout_route route;

        if (p + 1 < n) {
            hdt_layout_net_route(&r->sim->net, rank_of(r, p), rank_of(r, p + 1), &route);
            more += (int64_t)ceil(2 * route.latency_s / slowest);
        }
        s->warmup = (int64_t)(n - 1 - p);
        if (r->plan.schedule == HDT_SCHEDULE_WAN) {
            s->warmup += more;
        } else if (r->plan.schedule == HDT_SCHEDULE_ZB_MEM) {
            s->warmup *= 2;
            s->in_flight = 2 * (int64_t)n - 1;
        }
    }
}

static void plan_fill(struct replica *r)
{
    size_t n = r->sim->n_parts;
    const struct hdt_layout *layout = &r->sim->files->layout;

    r->plan = (struct hdt_plan){
        .ranks = hdt_calloc(r->sim->n_stages, sizeof(r->plan.ranks[0])),
        .n_ranks = r->sim->n_stages,
        .stages = hdt_calloc(n, sizeof(r->plan.stages[0])),
        .n_stages = n,
        .flows = hdt_calloc(2 * n, sizeof(r->plan.flows[0])),
        .n_flows = 2 * (n - 1),
        .n_replicas = 1,
        .schedule = (enum hdt_schedule_kind)layout->schedule,
        .micro_batch = hdt_layout_micro_batch(layout, r->idx),
        .n_micro_batches = hdt_layout_n_micro_batches(r->sim->files, r->idx),
        .seq_len = layout->seq_len,
    };
    for (size_t p = 0; p < n; p++) {
        r->plan.stages[p] = (struct hdt_plan_stage){
            .pos = (int)p, .rank = (int)(p % r->sim->n_stages), .n_slices = 1};
    }
    for (size_t p = 0; p + 1 < n; p++) {
        int a = (int)p, b = (int)p + 1, on_a = r->plan.stages[a].rank,
            on_b = r->plan.stages[b].rank;

        r->plan.flows[2 * p] = (struct hdt_plan_flow){.kind = HDT_FLOW_ACTIVATION,
                                                      .src_rank = on_a,
                                                      .dst_rank = on_b,
                                                      .src_stage = a,
                                                      .dst_stage = b,
                                                      .depth = UINT16_MAX};
        r->plan.flows[2 * p + 1] = (struct hdt_plan_flow){.kind = HDT_FLOW_ACTIVATION_GRAD,
                                                          .src_rank = on_b,
                                                          .dst_rank = on_a,
                                                          .src_stage = b,
                                                          .dst_stage = a,
                                                          .depth = UINT16_MAX};
    }
}

/* Memory of the rank's parts with what its list keeps of each. */
static void memory_fill(struct replica *r, size_t stage, const struct hdt_schedule *schedule)
{
    size_t rank = r->idx * r->sim->n_stages + stage;
    struct layout_rank *out = &r->sim->ranks[rank];
    double at_work = 0;

    for (size_t p = stage; p < r->sim->n_parts; p += r->sim->n_stages) {
        struct hdt_stage_cost_memory m, none;
        double work = hdt_stage_cost_work_bytes(&r->parts[p].cost), twice = fmin(work, at_work);

        hdt_stage_cost_memory(&r->parts[p].cost, schedule->n_slots[p], &m);
        hdt_stage_cost_memory(&r->parts[p].cost, 0, &none);
        at_work = fmax(at_work, work);
        m.activations -= twice;
        m.total -= twice;
        none.total -= twice;
        if (p > stage) { /* a process has one framework */
            m.total -= m.framework;
            none.total -= none.framework;
            m.framework = 0;
        }
        out->is.memory.weights += m.weights;
        out->is.memory.grads += m.grads;
        out->is.memory.master += m.master;
        out->is.memory.moments += m.moments;
        out->is.memory.buffers += m.buffers;
        out->is.memory.activations += m.activations;
        out->is.memory.head += m.head;
        out->is.memory.framework += m.framework;
        out->is.memory.total += m.total;
        out->is.memory.host_optimizer += m.host_optimizer;
        out->is.memory.host_activations += m.host_activations;
        r->sim->mem_base[rank] += (int64_t)none.total;
        out->is.n_in_flight =
            schedule->n_slots[p] > out->is.n_in_flight ? schedule->n_slots[p] : out->is.n_in_flight;
    }
}

static enum hdt_status lists_fill(struct replica *r, struct hdt_error *err)
{
    for (size_t s = 0; s < r->sim->n_stages; s++) {
        size_t rank = r->idx * r->sim->n_stages + s;
        struct hdt_schedule schedule;

        HDT_TRY(hdt_schedule_build(&r->plan, (int)s, HDT_PHASE_TRAIN, r->plan.n_micro_batches,
                                   &schedule, err));
        hdt_sim_list_reserve(list_of(r, rank), schedule.n_ops + LIST_ENDS);
        if (is_paired(r)) {
            ops_pair(&schedule, r->sim->n_parts);
        }
        for (size_t p = s; p < r->sim->n_parts; p += r->sim->n_stages) {
            hdt_layout_away_init(r->sim, rank, &r->parts[p].cost, schedule.n_slots[p], &r->away[p]);
            if (r->sim->gathers[p].n > 0) {
                gather_push(r, rank, (int)p, 0);
            }
        }
        for (size_t i = 0; i < schedule.n_ops; i++) {
            hdt_layout_away_before(r->sim, rank, r->away, &schedule, i);
            op_push(r, rank, &schedule.ops[i]);
            hdt_layout_away_after(r->sim, rank, r->away, &schedule, i);
        }
        memory_fill(r, s, &schedule);
        hdt_schedule_release(&schedule);
    }
    return HDT_OK;
}

/* The simulation counts bytes in whole numbers: with all micro-batches in flight, no device takes
 * as many as could not be added up. */
static enum hdt_status bytes_check(const struct replica *r, struct hdt_error *err)
{
    for (size_t p = 0; p < r->sim->n_parts; p++) {
        struct hdt_stage_cost_memory m;

        hdt_stage_cost_memory(&r->parts[p].cost, hdt_layout_n_micro_batches(r->sim->files, r->idx),
                              &m);
        if (!(m.total < BYTES_MAX)) {
            hdt_error_set(err, HDT_EINVAL, "cannot simulate '%.64s': stage %zu needs %.3g bytes",
                          r->sim->files->layout.name, p % r->sim->n_stages, m.total);
            hdt_error_hint(err, "are seq_len and micro_batch what they are meant to be?");
            return HDT_EINVAL;
        }
    }
    return HDT_OK;
}

static enum hdt_status parts_init(struct replica *r,
                                  const struct hdt_stage_cost_constants *constants, size_t *n,
                                  struct hdt_error *err)
{
    for (*n = 0; *n < r->sim->n_parts; ++*n) {
        HDT_TRY(hdt_layout_part_init(r->sim->files, constants, &r->sim->model, r->idx, *n,
                                     &r->parts[*n], err));
        hdt_stage_cost_message(&r->parts[*n].cost, &r->messages[*n]);
    }
    return bytes_check(r, err);
}

/* Gradients that are overlapped: the first replica speaks for all. */
static enum hdt_status buckets_fill(struct replica *r, struct hdt_error *err)
{
    if (r->idx > 0 || r->sim->files->layout.sync == HDT_LAYOUT_SYNC_AFTER) {
        return HDT_OK;
    }
    for (size_t p = 0; p < r->sim->n_parts; p++) {
        HDT_TRY(hdt_layout_sim_add_buckets(r->sim, p, &r->parts[p].cost, err));
    }
    return HDT_OK;
}

/* All of a replica but the end of its step. */
static enum hdt_status replica_fill(struct hdt_layout_sim *sim, size_t idx,
                                    const struct hdt_stage_cost_constants *constants,
                                    struct hdt_error *err)
{
    struct replica r = {.sim = sim,
                        .idx = idx,
                        .parts = hdt_calloc(sim->n_parts, sizeof(r.parts[0])),
                        .messages = hdt_calloc(sim->n_parts, sizeof(r.messages[0])),
                        .away = hdt_calloc(sim->n_parts, sizeof(r.away[0])),
                        .frame_bytes = hdt_calloc(2 * sim->n_parts, sizeof(r.frame_bytes[0])),
                        .first_flow = (int)sim->n_flows};
    size_t n_parts;
    enum hdt_status status = parts_init(&r, constants, &n_parts, err);

    plan_fill(&r);
    if (status == HDT_OK) {
        times_fill(&r);
        for (size_t p = 0; p + 1 < sim->n_parts; p++) {
            edge_add(&r, p, p + 1);
            edge_add(&r, p + 1, p);
        }
        warmups_fill(&r);
        status = hdt_plan_fit_order(&r.plan, err);
        status = status == HDT_OK ? buckets_fill(&r, err) : status;
        status = status == HDT_OK ? lists_fill(&r, err) : status;
    }
    for (size_t p = 0; p < n_parts; p++) {
        hdt_layout_part_release(&r.parts[p]);
    }
    free(r.parts);
    free(r.messages);
    free(r.frame_bytes);
    free(r.away);
    hdt_plan_release(&r.plan);
    return status;
}

/* ---- all ---- */

/* Do messages of several replicas cross one link? */
static bool replicas_meet(const struct hdt_layout_sim *sim)
{
    int *first = hdt_malloc((sim->net.n_links + 1) * sizeof(first[0]));
    bool meet = false;

    memset(first, -1, sim->net.n_links * sizeof(first[0]));
    for (size_t i = 0; i < sim->n_flows && !meet; i++) {
        const struct hdt_sim_flow *f = &sim->flows[i];

        for (size_t k = 0; f->src >= 0 && k < f->n_route; k++) {
            int *of = &first[sim->routes[f->route + k]], replica = f->src / (int)sim->n_stages;

            meet = meet || (*of >= 0 && *of != replica);
            *of = replica;
        }
    }
    free(first);
    return meet;
}

/* Alike replicas that begin together would meet on a shared link with each of their messages, and
 * each would wait for all of them all the time. None are that alike: a few micro-batches later they
 * come one after another, and so they do here, by computations that differ a little. */
static void setup_fill(struct hdt_layout_sim *sim, const struct hdt_stage_cost_constants *constants)
{
    sim->setup = (struct hdt_sim_setup){.n_ranks = sim->n_ranks,
                                        .n_links = sim->net.n_links,
                                        .n_flows = sim->n_flows,
                                        .n_queues = (size_t)sim->n_queues,
                                        .n_groups = sim->n_groups,
                                        .links = sim->net.links,
                                        .flows = sim->flows,
                                        .routes = sim->routes,
                                        .route_shares = sim->route_shares,
                                        .groups = sim->groups,
                                        .members = sim->members,
                                        .mem_base = sim->mem_base,
                                        .task = hdt_sim_list_task,
                                        .ctx = &sim->lists,
                                        .n_steps = 1,
                                        .jitter = replicas_meet(sim) ? constants->drift : 0,
                                        .seed = 1};
}

/* Before any list is written: compute tasks of all parts and both ends of all messages, which are
 * two when their sender waits for the first half; activations that go to a host and come back are
 * begun and waited for. */
static int64_t tasks_count(const struct hdt_layout_files *files)
{
    const struct hdt_layout *l = &files->layout;
    int64_t n_parts = (int64_t)hdt_layout_n_parts(files);
    int64_t computes = hdt_schedule_is_split((enum hdt_schedule_kind)l->schedule) ? 3 : 2;
    int64_t ends = l->exchange == HDT_LAYOUT_PAIRED ? 8 : 4;
    int64_t n = computes * n_parts + ends * (n_parts - 1);

    for (size_t s = 0; s < files->n_stages; s++) {
        n += hdt_layout_offload(l, s) & HDT_LAYOUT_OFFLOAD_ACTIVATIONS ? 4 * l->chunks : 0;
    }
    return n * files->n_micro_batches * (int64_t)files->n_replicas;
}

static enum hdt_status tasks_check(const struct hdt_layout_files *files, int64_t n,
                                   struct hdt_error *err)
{
    if (n > HDT_LAYOUT_MAX_TASKS) {
        hdt_conf_error(files->doc, "global_batch", err, HDT_EINVAL,
                       "cannot simulate '%.64s': %lld tasks are more than %lld", files->layout.name,
                       (long long)n, (long long)HDT_LAYOUT_MAX_TASKS);
        hdt_error_hint(err, "take a smaller global_batch: steady parts of a step are all alike");
        return HDT_EINVAL;
    }
    return HDT_OK;
}

enum hdt_status hdt_layout_sim_open(const struct hdt_layout_files *files,
                                    const struct hdt_stage_cost_constants *constants,
                                    struct hdt_layout_sim **out, struct hdt_error *err)
{
    int64_t n_tasks = tasks_count(files);
    struct hdt_layout_sim *sim;
    enum hdt_status status = HDT_OK;

    HDT_TRY(tasks_check(files, n_tasks, err));
    sim = hdt_calloc(1, sizeof(*sim));
    sim->files = files;
    sim->n_tasks = n_tasks;
    hdt_layout_model(files, &sim->model);
    sim->n_stages = files->n_stages;
    sim->n_replicas = files->n_replicas;
    sim->n_parts = hdt_layout_n_parts(files);
    sim->n_ranks = sim->n_stages * sim->n_replicas;
    hdt_layout_net_init(&sim->net, files,
                        (double)files->layout.micro_batch * sim->model.T * sim->model.C *
                            sim->model.value_bytes / (double)files->groups[0].tp);
    sim->ring_share = constants->ring_share;
    sim->ranks = hdt_calloc(sim->n_ranks, sizeof(sim->ranks[0]));
    sim->buckets = hdt_calloc(sim->n_parts, sizeof(sim->buckets[0]));
    sim->gathers = hdt_calloc(sim->n_parts, sizeof(sim->gathers[0]));
    sim->mem_base = hdt_calloc(sim->n_ranks, sizeof(sim->mem_base[0]));
    sim->lists.ranks = hdt_calloc(sim->n_ranks, sizeof(sim->lists.ranks[0]));
    sim->lists.n_steps = 1;
    for (size_t i = 0; i < sim->n_replicas && status == HDT_OK; i++) {
        status = replica_fill(sim, i, constants, err);
    }
    status = status == HDT_OK ? hdt_layout_sim_fill_hosts(sim, err) : status;
    if (status != HDT_OK) {
        hdt_layout_sim_close(sim);
        return status;
    }
    hdt_layout_sim_end_step(sim);
    setup_fill(sim, constants);
    *out = sim;
    return HDT_OK;
}

void hdt_layout_sim_close(struct hdt_layout_sim *sim)
{
    if (!sim) {
        return;
    }
    for (size_t i = 0; i < sim->n_ranks; i++) {
        free(sim->lists.ranks[i].tasks);
    }
    hdt_layout_net_release(&sim->net);
    free(sim->lists.ranks);
    free(sim->ranks);
    free(sim->buckets);
    free(sim->gathers);
    free(sim->mem_base);
    free(sim->flows);
    free(sim->routes);
    free(sim->route_shares);
    free(sim->groups);
    free(sim->members);
    free(sim);
}

const struct hdt_sim_setup *hdt_layout_sim_setup(const struct hdt_layout_sim *sim)
{
    return &sim->setup;
}

const struct hdt_layout_rank *hdt_layout_sim_rank(const struct hdt_layout_sim *sim, size_t rank)
{
    return &sim->ranks[rank].is;
}

const struct hdt_layout_link *hdt_layout_sim_link(const struct hdt_layout_sim *sim, size_t link)
{
    return &sim->net.names[link];
}

double hdt_layout_sim_memory_bytes(const struct hdt_layout_sim *sim)
{
    double most = 0;

    for (size_t i = 0; i < sim->n_ranks; i++) {
        most = fmax(most, sim->ranks[i].is.memory.total);
    }
    return most;
}

enum hdt_status hdt_layout_predict(const struct hdt_layout_files *files,
                                   const struct hdt_stage_cost_constants *constants,
                                   struct hdt_layout_prediction *prediction, struct hdt_error *err)
{
    struct hdt_layout_sim *sim;
    struct hdt_sim_result result;
    enum hdt_status status;
    double busy_s = 0;

    HDT_TRY(hdt_layout_sim_open(files, constants, &sim, err));
    status = hdt_sim_run(&sim->setup, &result, err);
    if (status == HDT_OK) {
        for (size_t i = 0; i < result.n_ranks; i++) {
            busy_s += result.ranks[i].use_s[HDT_SIM_BUSY];
        }
        *prediction = (struct hdt_layout_prediction){
            .step_s = result.makespan_s,
            .memory_bytes = hdt_layout_sim_memory_bytes(sim),
            .bubble_share = 1 - busy_s / (double)result.n_ranks / result.makespan_s,
        };
        hdt_sim_result_release(&result);
    }
    hdt_layout_sim_close(sim);
    return status;
}
