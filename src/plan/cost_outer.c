/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * What an outer step costs. All replicas begin it together, once each has done its steps, and each
 * goes on when the last slab has come: the busiest of links and ranks sets the pace, since slabs
 * overlap coding, wire and arithmetic. Before it, the roots of replicas ask the plan's root what to
 * do, a round trip.
 */
#include "compress/codec.h"
#include "src/base/buf.h"
#include "src/plan/cost.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Passes over the values of a rank in the host's memory: anchor and momentum read and written, the
 * weights read and written, its own change and the sum written and read. */
#define OWN_PASSES 10
/* Those for each other replica: decoded, added. */
#define OTHER_PASSES 4

/* fp32 values that two ranks have both. */
static double common_values(const struct hdt_cost_inputs *in, const struct hdt_plan *plan, int a,
                            int b)
{
    double n = 0;

    for (size_t i = 0; i < plan->n_stages; i++) {
        for (size_t j = 0; j < plan->n_stages && plan->stages[i].rank == a; j++) {
            const struct hdt_plan_stage *s = &plan->stages[i], *t = &plan->stages[j];

            for (int64_t u = s->unit_begin; t->rank == b && u < s->unit_end; u++) {
                n += u >= t->unit_begin && u < t->unit_end
                         ? (double)hdt_model_unit_params(in->model, u)
                         : 0;
            }
        }
    }
    return n;
}

static double stage_values(const struct hdt_cost_inputs *in, const struct hdt_plan_stage *s)
{
    double n = 0;

    for (int64_t u = s->unit_begin; u < s->unit_end; u++) {
        n += (double)hdt_model_unit_params(in->model, u);
    }
    return n;
}

uint64_t hdt_cost_outer_memory(const struct hdt_cost_inputs *in, const struct hdt_plan *plan,
                               int stage)
{
    double others = 2.0 * (plan->n_replicas - 1) * 4; /* slots of flows, both ways */
    /* Anchor and momentum; a checkpoint's copy of it, and of moments, which other replicas than the
     * first save beside the tensors. */
    double copies = plan->stages[stage].replica > 0 ? 5 : 3;

    if (plan->n_replicas < 2) {
        return 0;
    }
    /* Slabs in work, as the worker has them. */
    return (uint64_t)(4 * (copies * stage_values(in, &plan->stages[stage]) +
                           (7 + others) * (double)hdt_plan_outer_slab(in->model)));
}

/* Seconds that a rank works on an outer step. */
static double rank_s(const struct hdt_cost_inputs *in, const struct hdt_plan *plan, int rank)
{
    const struct hdt_plan_rank *r = &plan->ranks[rank];
    const struct hdt_cluster_worker *w = hdt_cost_find_worker(in->cluster, r->site, r->worker);
    struct hdt_codec_spec codec = hdt_job_outer_codec(in->job);
    double n = 0, others = plan->n_replicas - 1, rate;

    for (size_t i = 0; i < plan->n_stages; i++) {
        n += plan->stages[i].rank == rank ? stage_values(in, &plan->stages[i]) : 0;
    }
    rate = w ? w->profile.copy_bytes_per_s : 0;
    codec.gateway = HDT_CODEC_NONE;
    return (rate > 0 ? 4 * n * (OWN_PASSES + OTHER_PASSES * others) / rate : 0) +
           (w && codec.worker != HDT_CODEC_NONE
                ? (2 + others) * hdt_cost_cast(&w->profile, &codec, n)
                : 0);
}

static struct hdt_cost_link *outer_link(struct hdt_cost_outer *outer, const char *from,
                                        const char *to)
{
    struct hdt_cost_link *link;

    for (size_t i = 0; i < outer->n_links; i++) {
        link = &outer->links[i];
        if (strcmp(link->from, from) == 0 && strcmp(link->to, to) == 0) {
            return link;
        }
    }
    outer->links = hdt_realloc(outer->links, (outer->n_links + 1) * sizeof(outer->links[0]));
    link = &outer->links[outer->n_links++];
    memset(link, 0, sizeof(*link));
    snprintf(link->from, sizeof(link->from), "%s", from);
    snprintf(link->to, sizeof(link->to), "%s", to);
    return link;
}

enum hdt_status hdt_cost_outer(const struct hdt_cost_inputs *in, const struct hdt_plan *plan,
                               struct hdt_cost_outer *outer, struct hdt_error *err)
{
    double latency_s = 0, busy_s = 0, s;

    memset(outer, 0, sizeof(*outer));
    for (size_t i = 0; i < plan->n_flows; i++) {
        const struct hdt_plan_flow *f = &plan->flows[i];
        const char *from = plan->ranks[f->src_rank].site, *to = plan->ranks[f->dst_rank].site;
        struct hdt_cost_transfer t;
        struct hdt_cost_link *link;
        enum hdt_status status;
        double n, slabs;

        if (f->kind != HDT_FLOW_OUTER) {
            continue;
        }
        n = (double)hdt_plan_outer_slab(in->model);
        status = hdt_cost_transfer(in, from, to, &f->codec, n, &t, err);
        if (status != HDT_OK) {
            hdt_cost_outer_release(outer);
            return status;
        }
        slabs = common_values(in, plan, f->src_rank, f->dst_rank) / n;
        latency_s = t.latency_s > latency_s ? t.latency_s : latency_s;
        if (strcmp(from, to) == 0) {
            busy_s = slabs * t.pace_s > busy_s ? slabs * t.pace_s : busy_s;
            continue;
        }
        link = outer_link(outer, from, to);
        link->bytes += slabs * t.wire_bytes;
        link->busy_s += slabs * t.pace_s;
        outer->bytes += slabs * t.wire_bytes;
    }
    for (size_t i = 0; i < outer->n_links; i++) {
        busy_s = outer->links[i].busy_s > busy_s ? outer->links[i].busy_s : busy_s;
    }
    for (int rank = 0; rank < (int)plan->n_ranks && plan->n_replicas > 1; rank++) {
        s = rank_s(in, plan, rank);
        busy_s = s > busy_s ? s : busy_s;
    }
    outer->step_s = busy_s + 3 * latency_s; /* one way of the last slab, a round trip before it */
    outer->steps = plan->n_replicas > 1 && in->job->outer.steps > 0 ? in->job->outer.steps : 1;
    return HDT_OK;
}

void hdt_cost_outer_release(struct hdt_cost_outer *outer)
{
    free(outer->links);
    memset(outer, 0, sizeof(*outer));
}
