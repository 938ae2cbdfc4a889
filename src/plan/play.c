/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Moves as tasks of the simulator, and what its run says of them.
 *
 * All frames between two sites stand in one queue for their link, as in the gateway's: whole, in
 * the order in which they were sent. Inside a site they take time and no link. Gateways are hosts:
 * they work when a frame leaves a rank and when it has come, and hold up those who compute on their
 * processors.
 *
 * Left out: the sharing of a link by chunks (a frame holds it whole), and checkpoints. What a link
 * really carries is in its measured goodput.
 */
#include "src/base/buf.h"
#include "src/plan/play.h"

#include <stdlib.h>
#include <string.h>

/* ---- tables ---- */

static double link_rate(const struct play *p, size_t link)
{
    const struct hdt_cost_link *l = &p->cost->links[link];

    return hdt_cluster_find_link(p->in->cluster, l->from, l->to)->rate_bytes_per_s;
}

/* Ranks beside a gateway, by the first rank of their site; a host for each site. */
static void hosts_fill(const struct play *p, struct play_tables *t, int *host_of)
{
    const struct hdt_plan_rank *ranks = p->plan->ranks;
    size_t n = p->plan->n_ranks, n_members = 0;

    for (size_t i = 0; i < n; i++) {
        struct hdt_sim_host *host = &t->hosts[t->setup.n_hosts];

        host_of[i] = -1;
        for (size_t k = 0; k < i && host_of[i] < 0; k++) {
            host_of[i] = strcmp(ranks[k].site, ranks[i].site) == 0 ? host_of[k] : -1;
        }
        if (host_of[i] >= 0) {
            continue;
        }
        host_of[i] = (int)t->setup.n_hosts++;
        host->first = n_members;
        for (size_t k = i; k < n; k++) {
            if (p->ranks[k].gateway_share > 0 && strcmp(ranks[k].site, ranks[i].site) == 0) {
                t->host_ranks[n_members] = (int)k;
                t->host_shares[n_members++] = p->ranks[k].gateway_share;
            }
        }
        host->n = n_members - host->first;
    }
}

static void flow_fill(const struct play *p, struct play_tables *t, size_t i, const int *host_of)
{
    const struct hdt_plan_flow *is = &p->plan->flows[i];
    const struct play_flow *f = &p->flows[i];
    struct hdt_sim_flow *out = &t->flows[i];
    double beside_s = f->transfer.service_s - f->transfer.busy_s; /* the wire is the link's */

    *out = (struct hdt_sim_flow){.src = is->src_rank,
                                 .dst = is->dst_rank,
                                 .route = i,
                                 .queue = -1,
                                 .latency_s = f->transfer.latency_s,
                                 .extra_s = f->transfer.service_s + f->late_s,
                                 .depth = is->depth,
                                 .src_host = -1,
                                 .dst_host = -1};
    if (f->link < 0) {
        return;
    }
    t->routes[i] = f->link;
    out->n_route = 1;
    out->queue = f->link;
    out->extra_s = (beside_s > 0 ? beside_s : 0) + f->late_s;
    out->pace_s = f->transfer.pace_s;
    out->src_host = host_of[is->src_rank];
    out->dst_host = host_of[is->dst_rank];
    out->src_cpu_s = f->transfer.src_cpu_s;
    out->dst_cpu_s = f->transfer.dst_cpu_s;
}

/* Bytes of a stage with so many micro-batches. */
static int64_t stage_bytes(const struct play *p, size_t stage, int64_t n_slots)
{
    const struct hdt_plan_stage *s = &p->plan->stages[stage];
    const struct hdt_plan_rank *r = &p->plan->ranks[s->rank];
    const struct hdt_cluster_worker *w = hdt_cost_find_worker(p->in->cluster, r->site, r->worker);
    const struct hdt_cost_memory memory = {.begin = s->unit_begin,
                                           .end = s->unit_end,
                                           .n_slots = n_slots,
                                           .precision = hdt_cost_precision(p->in, w),
                                           .halves = hdt_schedule_is_split(p->plan->schedule)};

    return (int64_t)hdt_cost_stage_memory(p->in, &memory);
}

/* `slots`: by stage, bytes that a micro-batch takes there between forward and backward. */
static struct hdt_sim_task move_task(const struct play *p, const struct play_move *m,
                                     const int64_t *slots)
{
    struct hdt_sim_task task = {
        .kind = HDT_SIM_COMPUTE, .peer = m->flow, .dur_s = m->busy_s, .op = m->op};

    if (m->kind == PLAY_SEND) {
        task.kind = HDT_SIM_SEND;
        task.bytes = p->flows[m->flow].transfer.wire_bytes;
    } else if (m->kind == PLAY_RECV) {
        task.kind = HDT_SIM_RECV;
    } else if (m->op.kind == HDT_OP_FORWARD) {
        task.mem_begin = slots[m->op.stage];
    } else if (m->op.kind == HDT_OP_BACKWARD || m->op.kind == HDT_OP_BACKWARD_WEIGHT) {
        task.mem_end = -slots[m->op.stage];
    }
    return task;
}

static void lists_fill(const struct play *p, struct play_tables *t)
{
    int64_t *slots = hdt_calloc(p->plan->n_stages + 1, sizeof(slots[0]));

    for (size_t i = 0; i < p->plan->n_stages; i++) {
        const struct hdt_plan_stage *s = &p->plan->stages[i];
        int64_t bytes = stage_bytes(p, i, 0);

        slots[i] = stage_bytes(p, i, 1) - bytes;
        t->mem_base[s->rank] += bytes + (int64_t)hdt_cost_feedback_memory(p->in, p->plan, (int)i) +
                                (int64_t)hdt_cost_outer_memory(p->in, p->plan, (int)i);
    }
    for (size_t i = 0; i < p->plan->n_ranks; i++) {
        hdt_sim_list_reserve(&t->lists.ranks[i], p->ranks[i].n_moves);
        for (size_t k = 0; k < p->ranks[i].n_moves; k++) {
            struct hdt_sim_task task = move_task(p, &p->ranks[i].moves[k], slots);

            hdt_sim_list_push(&t->lists.ranks[i], &task);
        }
    }
    free(slots);
}

void hdt_play_tables_init(const struct play *p, int n_steps, struct play_tables *t)
{
    size_t n_ranks = p->plan->n_ranks, n_flows = p->plan->n_flows, n_links = p->cost->n_links;
    int *host_of = hdt_calloc(n_ranks, sizeof(host_of[0]));

    memset(t, 0, sizeof(*t));
    t->links = hdt_calloc(n_links + 1, sizeof(t->links[0]));
    t->flows = hdt_calloc(n_flows + 1, sizeof(t->flows[0]));
    t->routes = hdt_calloc(n_flows + 1, sizeof(t->routes[0]));
    t->hosts = hdt_calloc(n_ranks, sizeof(t->hosts[0]));
    t->host_ranks = hdt_calloc(n_ranks, sizeof(t->host_ranks[0]));
    t->host_shares = hdt_calloc(n_ranks, sizeof(t->host_shares[0]));
    t->mem_base = hdt_calloc(n_ranks, sizeof(t->mem_base[0]));
    t->lists.ranks = hdt_calloc(n_ranks, sizeof(t->lists.ranks[0]));
    t->lists.n_steps = n_steps;
    hosts_fill(p, t, host_of);
    for (size_t i = 0; i < n_links; i++) {
        t->links[i].rate_bytes_per_s = link_rate(p, i);
    }
    for (size_t i = 0; i < n_flows; i++) {
        flow_fill(p, t, i, host_of);
    }
    lists_fill(p, t);
    free(host_of);
    t->setup = (struct hdt_sim_setup){.n_ranks = n_ranks,
                                      .n_links = n_links,
                                      .n_flows = n_flows,
                                      .n_queues = n_links,
                                      .n_hosts = t->setup.n_hosts,
                                      .links = t->links,
                                      .flows = t->flows,
                                      .routes = t->routes,
                                      .hosts = t->hosts,
                                      .host_ranks = t->host_ranks,
                                      .host_shares = t->host_shares,
                                      .mem_base = t->mem_base,
                                      .task = hdt_sim_list_task,
                                      .ctx = &t->lists,
                                      .n_steps = n_steps,
                                      .first_step = 1};
}

void hdt_play_tables_release(const struct play *p, struct play_tables *t)
{
    for (size_t i = 0; i < p->plan->n_ranks; i++) {
        free(t->lists.ranks[i].tasks);
    }
    free(t->links);
    free(t->flows);
    free(t->routes);
    free(t->hosts);
    free(t->host_ranks);
    free(t->host_shares);
    free(t->mem_base);
    free(t->lists.ranks);
}

/* ---- results ---- */

static void timeline_fill(struct play *p, const struct hdt_sim_result *result)
{
    struct hdt_cost *cost = p->cost;

    cost->ops = hdt_calloc(result->n_spans + 1, sizeof(cost->ops[0]));
    for (size_t i = 0; i < result->n_spans; i++) {
        const struct hdt_sim_span *s = &result->spans[i];

        if (s->step >= HDT_PLAY_STEPS - 1) {
            cost->ops[cost->n_ops++] = (struct hdt_cost_op){
                s->rank, s->op, s->start_s, s->end_s, s->kind == HDT_SIM_RECV ? s->arrive_s : 0};
        }
    }
}

static void results_take(struct play *p, const struct hdt_sim_result *result)
{
    struct hdt_cost *cost = p->cost;

    for (size_t i = 0; i < result->n_ranks; i++) {
        const double *use_s = result->ranks[i].use_s;

        p->ranks[i].held_s = use_s[HDT_SIM_HELD];
        p->ranks[i].busy_s = use_s[HDT_SIM_BUSY] + use_s[HDT_SIM_COMM] + use_s[HDT_SIM_HELD];
        for (size_t step = 0; step < HDT_PLAY_STEPS; step++) {
            p->ranks[i].step_end_s[step] = result->step_end_s[step * result->n_ranks + i];
        }
    }
    for (size_t i = 0; i < result->n_links; i++) {
        cost->links[i].bytes = result->links[i].bytes;
        cost->links[i].busy_s = result->links[i].busy_s;
        cost->wan_bytes += result->links[i].bytes;
    }
    if (p->timeline) {
        timeline_fill(p, result);
    }
}

enum hdt_status hdt_play_run(struct play *p, struct hdt_error *err)
{
    struct play_tables tables;
    struct hdt_sim_result result;
    enum hdt_status status;

    hdt_play_tables_init(p, HDT_PLAY_STEPS, &tables);
    tables.setup.record = p->timeline;
    status = hdt_sim_run(&tables.setup, &result, err);
    if (status == HDT_OK) {
        results_take(p, &result);
        hdt_sim_result_release(&result);
    }
    hdt_play_tables_release(p, &tables);
    return status;
}
