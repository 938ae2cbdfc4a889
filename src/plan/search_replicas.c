/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Plans of several replicas, for jobs with outer steps: a pipeline within each site, whose weights
 * meet every outer.steps steps, against one pipeline over all of them.
 *
 * Replicas wait for the slowest at an outer step, so that each has micro-batches as it is fast:
 * begun with equal parts, each replica is planned for itself and the parts are dealt out anew by
 * what each takes for one. A site that cannot hold the model has no replica. With plan.cut the
 * replicas are as they stand there.
 *
 * Not looked at: several replicas within a site (plan.cut may say so), where adding gradients each
 * step over a LAN would be better.
 */
#include "src/base/buf.h"
#include "src/plan/search_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_DEALS 3 /* the parts settle after two */

/* One replica: its job and the plan for it alone. */
struct replica {
    struct hdt_job job; /* shares the texts of the whole job's */
    char *site;
    struct hdt_search_result result;
    bool is_planned;
};

struct replicas {
    const struct hdt_cost_inputs *in;
    struct replica *items;
    size_t n;
};

static void replicas_release(struct replicas *all)
{
    for (size_t i = 0; i < all->n; i++) {
        if (all->items[i].is_planned) {
            hdt_search_result_release(&all->items[i].result);
        }
    }
    free(all->items);
}

static struct replica *replica_add(struct replicas *all)
{
    struct replica *r;

    all->items = hdt_realloc(all->items, (all->n + 1) * sizeof(all->items[0]));
    r = &all->items[all->n++];
    memset(r, 0, sizeof(*r));
    r->job = *all->in->job;
    r->job.outer.steps = 0;
    r->job.plan.min_stages = 1; /* is of all together */
    return r;
}

/* ---- which ---- */

static bool site_is_free(const struct hdt_cost_inputs *in, const char *site)
{
    const struct hdt_job_plan *plan = &in->job->plan;
    bool named = plan->sites.n == 0, free_worker = false;

    for (size_t i = 0; i < plan->sites.n; i++) {
        named = named || strcmp(plan->sites.items[i], site) == 0;
    }
    for (size_t i = 0; i < in->cluster->n_workers; i++) {
        const struct hdt_cluster_worker *w = &in->cluster->workers[i];

        free_worker = free_worker || (strcmp(w->site, site) == 0 && !w->busy);
    }
    return named && free_worker;
}

/* A replica for each site, that of the data first. */
static void replicas_of_sites(struct replicas *all)
{
    const struct hdt_cost_inputs *in = all->in;
    const char *data = in->job->data.site ? in->job->data.site : "";

    for (int others = 0; others < 2; others++) {
        for (size_t i = 0; i < in->cluster->n_sites; i++) {
            char *site = in->cluster->sites[i].name;

            if ((strcmp(site, data) != 0) == (others == 1) && site_is_free(in, site)) {
                replica_add(all)->site = site;
            }
        }
    }
    for (size_t i = 0; i < all->n; i++) { /* the items stay where they are now */
        struct replica *r = &all->items[i];

        r->job.plan.sites.items = &r->site;
        r->job.plan.sites.n = 1;
    }
}

static int64_t cut_units(const char *text)
{
    const char *equals = strrchr(text, '=');

    return equals ? strtoll(equals + 1, NULL, 10) : 0;
}

/* plan.cut covers the model once for each; hdt_job_check has seen to it. */
static void replicas_of_cut(struct replicas *all)
{
    const struct hdt_conf_strings *cut = &all->in->job->plan.cut;
    int64_t n_units = hdt_model_n_units(all->in->model), at = 0;
    struct replica *r = NULL;

    for (size_t i = 0; i < cut->n; i++) {
        if (at == 0) {
            r = replica_add(all);
            r->job.plan.cut.items = cut->items + i;
            r->job.plan.cut.n = 0;
        }
        r->job.plan.cut.n++;
        at = (at + cut_units(cut->items[i])) % n_units;
    }
}

/* ---- how much each ---- */

/* Its data and checkpoints are not of this plan. */
static enum hdt_status replica_plan(struct replicas *all, struct replica *r, struct hdt_error *err)
{
    static char none[1] = "";
    struct hdt_cost_inputs in = {&r->job, all->in->model, all->in->cluster};

    r->job.data.site = none;
    r->job.checkpoint.site = none;
    if (r->is_planned) {
        hdt_search_result_release(&r->result);
        r->is_planned = false;
    }
    HDT_TRY(hdt_search_pipeline(&in, &r->result, err));
    r->is_planned = true;
    return HDT_OK;
}

/* Who cannot hold the model has no replica. */
static enum hdt_status replicas_plan(struct replicas *all, struct hdt_error *err)
{
    bool is_fixed = all->in->job->plan.cut.n > 0;

    for (size_t i = 0; i < all->n;) {
        enum hdt_status status = replica_plan(all, &all->items[i], err);

        if (status == HDT_OK) {
            i++;
        } else if (is_fixed) {
            return status;
        } else {
            memmove(&all->items[i], &all->items[i + 1], (all->n - i - 1) * sizeof(all->items[0]));
            all->n--;
            for (size_t k = i; k < all->n; k++) {
                all->items[k].job.plan.sites.items = &all->items[k].site;
            }
        }
    }
    return HDT_OK;
}

/* Deal the step's micro-batches out by `speed`: what is left over to who is furthest behind; one at
 * least for each. */
static void replicas_deal(struct replicas *all, const double *speed)
{
    int64_t n = all->in->job->batch.n_micro_batches, left = n;
    double sum = 0;

    for (size_t i = 0; i < all->n; i++) {
        sum += speed[i];
    }
    for (size_t i = 0; i < all->n; i++) {
        int64_t part = (int64_t)floor((double)n * speed[i] / sum);

        all->items[i].job.batch.n_micro_batches = part > 1 ? part : 1;
        left -= all->items[i].job.batch.n_micro_batches;
    }
    for (; left != 0; left += left > 0 ? -1 : 1) {
        size_t pick = 0;
        double best = -INFINITY;

        for (size_t i = 0; i < all->n; i++) {
            double has = (double)all->items[i].job.batch.n_micro_batches;
            double lacks = (double)n * speed[i] / sum - has;

            lacks = left > 0 ? lacks : has > 1 ? -lacks : -INFINITY;
            if (lacks > best) {
                best = lacks;
                pick = i;
            }
        }
        all->items[pick].job.batch.n_micro_batches += left > 0 ? 1 : -1;
    }
}

/* All have one schedule: that of a replica that has several stages. */
static void replicas_agree(struct replicas *all)
{
    int schedule = HDT_SCHEDULE_1F1B;

    for (size_t i = all->n; i-- > 0;) {
        const struct hdt_plan *plan = &all->items[i].result.plan;

        schedule = plan->n_stages > 1 ? (int)plan->schedule : schedule;
    }
    for (size_t i = 0; i < all->n && all->in->job->plan.schedule == HDT_SCHEDULE_AUTO; i++) {
        all->items[i].job.plan.schedule = schedule;
    }
}

static enum hdt_status replicas_balance(struct replicas *all, struct hdt_error *err)
{
    double *speed = hdt_calloc(all->n + 1, sizeof(speed[0]));
    enum hdt_status status = HDT_OK;
    int n_deals = N_DEALS;

    for (size_t i = 0; i < all->n; i++) {
        speed[i] = 1;
    }
    if (all->in->job->outer.parts.n == all->n) { /* as the job says, and so every time */
        for (size_t i = 0; i < all->n; i++) {
            speed[i] = strtod(all->in->job->outer.parts.items[i], NULL);
        }
        n_deals = 2; /* of the second all have one schedule */
    }
    for (int deal = 0; deal < n_deals && status == HDT_OK && all->n > 1; deal++) {
        replicas_deal(all, speed);
        status = replicas_plan(all, err);
        for (size_t i = 0; i < all->n && status == HDT_OK; i++) {
            const struct replica *r = &all->items[i];

            if (n_deals == N_DEALS) {
                speed[i] = (double)r->job.batch.n_micro_batches / r->result.cost.step_s;
            }
        }
        if (status == HDT_OK) {
            replicas_agree(all);
        }
    }
    free(speed);
    return status;
}

/* ---- one plan of all ---- */

static void plan_append(struct hdt_plan *plan, const struct hdt_plan *part, int replica,
                        int64_t n_micro_batches)
{
    size_t n_ranks = plan->n_ranks, n_stages = plan->n_stages;

    plan->ranks = hdt_realloc(plan->ranks, (n_ranks + part->n_ranks) * sizeof(plan->ranks[0]));
    memcpy(plan->ranks + n_ranks, part->ranks, part->n_ranks * sizeof(plan->ranks[0]));
    plan->n_ranks += part->n_ranks;
    plan->stages = hdt_realloc(plan->stages, (n_stages + part->n_stages) * sizeof(plan->stages[0]));
    for (size_t i = 0; i < part->n_stages; i++) {
        struct hdt_plan_stage *s = &plan->stages[plan->n_stages++];

        *s = part->stages[i];
        s->replica = replica;
        s->rank += (int)n_ranks;
        s->n_micro_batches = n_micro_batches;
    }
    /* Only the codecs of edges are asked of these. */
    plan->flows =
        hdt_realloc(plan->flows, (plan->n_flows + part->n_flows + 1) * sizeof(plan->flows[0]));
    for (size_t i = 0; i < part->n_flows; i++) {
        struct hdt_plan_flow f = part->flows[i];

        if (f.kind == HDT_FLOW_ACTIVATION || f.kind == HDT_FLOW_ACTIVATION_GRAD) {
            f.src_stage += (int)n_stages;
            f.dst_stage += (int)n_stages;
            plan->flows[plan->n_flows++] = f;
        }
    }
    plan->schedule = part->schedule;
}

static enum hdt_status replicas_join(struct replicas *all, struct hdt_search_result *result,
                                     struct hdt_error *err)
{
    struct search *s = hdt_calloc(1, sizeof(*s));
    enum hdt_status status;

    s->in = all->in;
    for (size_t i = 0; i < all->n; i++) {
        plan_append(&result->plan, &all->items[i].result.plan, (int)i,
                    all->items[i].job.batch.n_micro_batches);
        result->n_judged += all->items[i].result.n_judged;
        result->n_tried += all->items[i].result.n_tried;
        result->n_left_out += all->items[i].result.n_left_out;
    }
    status = hdt_search_finish(s, &result->plan, &result->cost);
    if (status != HDT_OK && err) {
        *err = s->last_err;
    }
    free(s);
    return status;
}

/* Are they enough? Of a cut nothing else can be had. */
static enum hdt_status replicas_check(const struct replicas *all, struct hdt_error *err)
{
    long long least = (long long)all->in->job->plan.min_stages, n_stages = 0;

    for (size_t i = 0; i < all->n; i++) {
        n_stages += (long long)all->items[i].result.plan.n_stages;
    }
    if (all->n < 2) {
        return hdt_error_set(err, HDT_ENOENT,
                             "cannot plan the job: outer steps need two sites that can hold the "
                             "model, there %s %zu",
                             all->n == 1 ? "is" : "are", all->n);
    }
    if (n_stages < least && all->in->job->plan.cut.n == 0) {
        hdt_error_set(err, HDT_EINVAL,
                      "cannot plan the job: %zu replicas have %lld stages, plan.min_stages is %lld",
                      all->n, n_stages, least);
        hdt_error_hint(err, "start more workers or lower plan.min_stages");
        return HDT_EINVAL;
    }
    return HDT_OK;
}

enum hdt_status hdt_search_replicas(const struct hdt_cost_inputs *in,
                                    struct hdt_search_result *result, struct hdt_error *err)
{
    struct replicas all = {.in = in};
    enum hdt_status status;

    memset(result, 0, sizeof(*result));
    if (in->job->plan.cut.n > 0) {
        replicas_of_cut(&all);
    } else {
        replicas_of_sites(&all);
    }
    if ((int64_t)all.n > in->job->batch.n_micro_batches) {
        status = hdt_error_set(err, HDT_EINVAL,
                               "cannot plan the job: %zu replicas want a micro-batch each, and a "
                               "step has %lld",
                               all.n, (long long)in->job->batch.n_micro_batches);
        hdt_error_hint(err, "raise batch.n_micro_batches, or name fewer sites in plan.sites");
    } else {
        status = replicas_balance(&all, err);
    }
    if (status == HDT_OK) {
        status = replicas_check(&all, err);
    }
    if (status == HDT_OK) {
        status = replicas_join(&all, result, err);
        if (status != HDT_OK) {
            hdt_error_prefix(err, "cannot plan the job");
            hdt_search_result_release(result);
        }
    }
    replicas_release(&all);
    return status;
}

/* ---- replicas or one pipeline ---- */

static bool cut_has_replicas(const struct hdt_cost_inputs *in)
{
    int64_t units = 0;

    for (size_t i = 0; i < in->job->plan.cut.n; i++) {
        units += cut_units(in->job->plan.cut.items[i]);
    }
    return units > hdt_model_n_units(in->model);
}

/* The slower of two is the runner-up. */
static void result_settle(struct hdt_search_result *best, struct hdt_search_result *other)
{
    hdt_plan_release(&best->second_plan);
    hdt_cost_release(&best->second_cost);
    best->second_plan = other->plan;
    best->second_cost = other->cost;
    best->n_judged += other->n_judged;
    best->n_tried += other->n_tried;
    memset(&other->plan, 0, sizeof(other->plan));
    memset(&other->cost, 0, sizeof(other->cost));
    hdt_search_result_release(other);
    hdt_search_words(&best->second_plan, &best->plan, best->second, sizeof(best->second));
}

enum hdt_status hdt_search_outer(const struct hdt_cost_inputs *in, struct hdt_search_result *result,
                                 struct hdt_error *err)
{
    struct hdt_search_result pipeline, replicas;
    enum hdt_status status;

    if (in->job->plan.cut.n > 0) {
        return cut_has_replicas(in) ? hdt_search_replicas(in, result, err)
                                    : hdt_search_pipeline(in, result, err);
    }
    status = hdt_search_pipeline(in, &pipeline, err);
    if (hdt_search_replicas(in, &replicas, NULL) != HDT_OK) {
        *result = pipeline;
        return status;
    }
    if (status != HDT_OK) {
        *result = replicas;
        return HDT_OK;
    }
    if (replicas.cost.step_s < (1 - HDT_SEARCH_SCHEDULE_GAIN) * pipeline.cost.step_s) {
        result_settle(&replicas, &pipeline);
        *result = replicas;
    } else {
        result_settle(&pipeline, &replicas);
        *result = pipeline;
    }
    return HDT_OK;
}
