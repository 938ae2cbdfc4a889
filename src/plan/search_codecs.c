/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Codecs of a plan's edges, by playing the plan with others.
 *
 * No formula says what a codec is worth: bytes that hide behind arithmetic cost nothing on the link
 * and all of their CPU time, where gateways have no processor to themselves; and how much hides
 * depends on what all other edges do. So each is tried, one at a time, until none is better.
 */
#include "src/base/buf.h"
#include "src/plan/search_impl.h"

#include <stdlib.h>
#include <string.h>

/* Passes over all edges: what one edge has changes little for the others. */
#define N_PASSES 3

static const struct hdt_cluster_worker *rank_worker(const struct search *s,
                                                    const struct hdt_plan *plan, int rank)
{
    return hdt_cost_find_worker(s->in->cluster, plan->ranks[rank].site, plan->ranks[rank].worker);
}

bool hdt_search_is_named(const struct search *s, bool is_grad)
{
    struct hdt_codec_spec named;

    return hdt_job_codec(s->in->job, is_grad, &named);
}

bool hdt_search_has_codecs(const struct search *s)
{
    bool sites = false;

    for (int i = 1; i < s->n_workers; i++) {
        sites = sites || strcmp(s->workers[i]->site, s->workers[0]->site) != 0;
    }
    return sites && (!hdt_search_is_named(s, false) || !hdt_search_is_named(s, true));
}

/* The same stages by `codec` or `by_stage`; true: it is the best now. */
static bool try_like(struct search *s, struct hdt_search_result *result, double margin)
{
    const struct hdt_plan *like = &result->plan;
    struct hdt_plan plan;
    struct hdt_cost cost = {0};

    memset(&plan, 0, sizeof(plan));
    for (size_t i = 0; i < like->n_stages; i++) {
        const struct hdt_plan_stage *st = &like->stages[i];

        hdt_search_add_stage(s, &plan, rank_worker(s, like, st->rank), st->unit_begin,
                             st->unit_end);
    }
    if (hdt_search_judge(s, &plan, &cost) != HDT_OK) {
        hdt_plan_release(&plan);
        hdt_cost_release(&cost);
        return false;
    }
    result->n_judged++;
    return hdt_search_offer(result, margin, &plan, &cost);
}

/* The codecs of the result's edges, by the stage before them. */
static struct search_edge *edges_of(const struct hdt_plan *plan)
{
    struct search_edge *edges = hdt_calloc(plan->n_stages, sizeof(edges[0]));

    for (size_t i = 0; i < plan->n_flows; i++) {
        const struct hdt_plan_flow *f = &plan->flows[i];

        if (f->kind == HDT_FLOW_ACTIVATION) {
            edges[f->src_stage].codecs[0] = f->codec;
        } else if (f->kind == HDT_FLOW_ACTIVATION_GRAD) {
            edges[f->dst_stage].codecs[1] = f->codec;
        }
    }
    return edges;
}

/* May one be chosen for the edge behind stage `i`? */
static bool edge_is_open(const struct search *s, const struct hdt_plan *plan, size_t i,
                         bool is_grad)
{
    const struct hdt_plan_rank *a = &plan->ranks[plan->stages[i].rank];
    const struct hdt_plan_rank *b = &plan->ranks[plan->stages[i + 1].rank];

    return strcmp(a->site, b->site) != 0 && !hdt_search_is_named(s, is_grad);
}

static int count_open(const struct search *s, const struct hdt_plan *plan)
{
    int n = 0;

    for (size_t i = 0; i + 1 < plan->n_stages; i++) {
        n += edge_is_open(s, plan, i, false) + edge_is_open(s, plan, i, true);
    }
    return n;
}

const struct hdt_codec_spec *hdt_search_codec_of(const struct hdt_job *job,
                                                 const struct hdt_plan *plan)
{
    size_t n;
    const struct hdt_codec_spec *choices = hdt_cost_codecs(job, &n), *all = NULL;
    struct hdt_codec_spec named;

    for (size_t i = 0; i < plan->n_flows; i++) {
        const struct hdt_plan_flow *f = &plan->flows[i];
        const bool is_grad = f->kind == HDT_FLOW_ACTIVATION_GRAD;

        if ((!is_grad && f->kind != HDT_FLOW_ACTIVATION) || hdt_job_codec(job, is_grad, &named) ||
            strcmp(plan->ranks[f->src_rank].site, plan->ranks[f->dst_rank].site) == 0) {
            continue;
        }
        for (size_t k = 0; k < n && !all; k++) {
            all = hdt_codec_spec_equal(&choices[k], &f->codec) ? &choices[k] : NULL;
        }
        if (!all || !hdt_codec_spec_equal(all, &f->codec)) {
            return NULL;
        }
    }
    return all;
}

/* Each codec for one edge. */
static bool try_edge(struct search *s, struct hdt_search_result *result,
                     struct hdt_codec_spec *codec, double margin)
{
    size_t n;
    const struct hdt_codec_spec *choices = hdt_cost_codecs(s->in->job, &n);
    bool moved = false;

    for (size_t k = 0; k < n; k++) {
        const struct hdt_codec_spec was = *codec;

        if (hdt_codec_spec_equal(&was, &choices[k])) {
            continue;
        }
        *codec = choices[k];
        if (try_like(s, result, margin)) {
            moved = true;
        } else {
            *codec = was;
        }
    }
    return moved;
}

void hdt_search_try_codecs(struct search *s, struct hdt_search_result *result, bool uniform)
{
    size_t n;
    const struct hdt_codec_spec *choices = hdt_cost_codecs(s->in->job, &n);
    const int n_open = count_open(s, &result->plan);
    struct search_edge *edges;
    bool moved = n_open > 0;

    for (size_t k = 0; k < n && n_open > 0 && uniform; k++) {
        s->codec = &choices[k];
        try_like(s, result, HDT_SEARCH_CODEC_GAIN);
    }
    s->codec = NULL;
    edges = edges_of(&result->plan);
    s->by_stage = edges;
    for (int pass = 0; pass < N_PASSES && moved; pass++) {
        moved = false;
        for (size_t i = 0; i + 1 < result->plan.n_stages; i++) {
            for (int is_grad = 0; is_grad < 2; is_grad++) {
                moved = (edge_is_open(s, &result->plan, i, is_grad) &&
                         try_edge(s, result, &edges[i].codecs[is_grad],
                                  HDT_SEARCH_CODEC_GAIN / n_open)) ||
                        moved;
            }
        }
    }
    s->by_stage = NULL;
    free(edges);
}
