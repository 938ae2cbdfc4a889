/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* From chosen stages to a complete plan: codecs, warm-ups, ranks for data and checkpoints; judged
 * by playing it. */
#include "src/base/buf.h"
#include "src/plan/search_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AHEAD_GAIN 0.003 /* of a step, for one micro-batch more that is kept */

double hdt_search_values(const struct hdt_cost_inputs *in)
{
    return (double)in->job->batch.micro_batch * (double)in->job->batch.seq_len *
           (double)in->model->C;
}

/* Room of the edges' frames at one worker: both directions, some frames deep. */
static uint64_t frames_bytes(const struct search *s, int64_t warmup)
{
    double frame = 4 * hdt_search_values(s->in);

    return (uint64_t)(2 * frame * (double)(warmup + 2));
}

uint64_t hdt_search_stage_bytes(const struct search *s, const struct hdt_cluster_worker *worker,
                                int64_t begin, int64_t end, int64_t warmup, int64_t in_flight)
{
    int64_t n_mb = s->in->job->batch.n_micro_batches;
    bool whole = begin == 0 && end == hdt_model_n_units(s->in->model);
    const struct hdt_cost_memory memory = {.begin = begin,
                                           .end = end,
                                           .n_slots = in_flight < n_mb ? in_flight : n_mb,
                                           .precision = hdt_cost_precision(s->in, worker),
                                           .halves = hdt_schedule_is_split(s->schedule)};

    warmup = warmup < n_mb ? warmup : n_mb;
    return hdt_cost_stage_memory(s->in, &memory) + (whole ? 0 : frames_bytes(s, warmup));
}

/* Rank of a worker in the plan, added when new. */
static int plan_rank(struct hdt_plan *plan, const char *site, const char *worker)
{
    for (size_t i = 0; i < plan->n_ranks; i++) {
        if (strcmp(plan->ranks[i].site, site) == 0 && strcmp(plan->ranks[i].worker, worker) == 0) {
            return (int)i;
        }
    }
    plan->ranks = hdt_realloc(plan->ranks, (plan->n_ranks + 1) * sizeof(plan->ranks[0]));
    memset(&plan->ranks[plan->n_ranks], 0, sizeof(plan->ranks[0]));
    snprintf(plan->ranks[plan->n_ranks].site, HDT_NAME_CAP, "%s", site);
    snprintf(plan->ranks[plan->n_ranks].worker, HDT_NAME_CAP, "%s", worker);
    return (int)plan->n_ranks++;
}

void hdt_search_add_stage(struct search *s, struct hdt_plan *plan,
                          const struct hdt_cluster_worker *w, int64_t begin, int64_t end)
{
    struct hdt_plan_stage *stage;
    double step_s;

    plan->stages = hdt_realloc(plan->stages, (plan->n_stages + 1) * sizeof(plan->stages[0]));
    stage = &plan->stages[plan->n_stages];
    *stage = (struct hdt_plan_stage){.pos = (int)plan->n_stages,
                                     .rank = plan_rank(plan, w->site, w->name),
                                     .n_slices = 1,
                                     .unit_begin = begin,
                                     .unit_end = end,
                                     .recompute = s->in->job->recompute};
    hdt_cost_stage_times(s->in, &w->profile, begin, end, &stage->fwd_s, &stage->bwd_s, &step_s);
    plan->n_stages++;
}

static const struct hdt_cluster_worker *stage_worker(const struct search *s,
                                                     const struct hdt_plan *plan, size_t stage)
{
    const struct hdt_plan_rank *r = &plan->ranks[plan->stages[stage].rank];

    return hdt_cost_find_worker(s->in->cluster, r->site, r->worker);
}

static void plan_add_codec(struct hdt_plan *plan, enum hdt_flow_kind kind, int src, int dst,
                           struct hdt_codec_spec codec)
{
    plan->flows = hdt_realloc(plan->flows, (plan->n_flows + 1) * sizeof(plan->flows[0]));
    plan->flows[plan->n_flows++] =
        (struct hdt_plan_flow){.kind = kind, .src_stage = src, .dst_stage = dst, .codec = codec};
}

struct hdt_codec_spec hdt_search_codec(const struct search *s,
                                       const struct hdt_cluster_worker *from,
                                       const struct hdt_cluster_worker *to, bool is_grad)
{
    struct hdt_codec_spec named;

    if (!s->codec || hdt_job_codec(s->in->job, is_grad, &named) ||
        strcmp(from->site, to->site) == 0) {
        return hdt_cost_edge_codec(s->in, from, to, is_grad);
    }
    return *s->codec;
}

static struct hdt_codec_spec stage_codec(const struct search *s, const struct hdt_plan *plan,
                                         size_t i, bool is_grad)
{
    return s->by_stage ? s->by_stage[i].codecs[is_grad]
                       : hdt_search_codec(s, stage_worker(s, plan, i + is_grad),
                                          stage_worker(s, plan, i + !is_grad), is_grad);
}

/* Round trip of the edge behind stage i, transfer included, for choosing warm-ups. */
static enum hdt_status plan_edge(struct search *s, struct hdt_plan *plan, size_t i,
                                 double *round_trip_s, double *service_s)
{
    const char *a = stage_worker(s, plan, i)->site, *b = stage_worker(s, plan, i + 1)->site;
    struct hdt_codec_spec fwd_codec = stage_codec(s, plan, i, false);
    struct hdt_codec_spec bwd_codec = stage_codec(s, plan, i, true);
    double n = hdt_search_values(s->in);
    struct hdt_cost_transfer fwd, bwd;

    HDT_TRY(hdt_cost_transfer(s->in, a, b, &fwd_codec, n, &fwd, &s->last_err));
    HDT_TRY(hdt_cost_transfer(s->in, b, a, &bwd_codec, n, &bwd, &s->last_err));
    plan_add_codec(plan, HDT_FLOW_ACTIVATION, (int)i, (int)i + 1, fwd_codec);
    plan_add_codec(plan, HDT_FLOW_ACTIVATION_GRAD, (int)i + 1, (int)i, bwd_codec);
    *round_trip_s = fwd.latency_s + fwd.service_s + bwd.latency_s + bwd.service_s;
    *service_s = fwd.pace_s > bwd.pace_s ? fwd.pace_s : bwd.pace_s;
    return HDT_OK;
}

/* The pace of the pipeline: the busiest rank (it may hold several stages) or the busiest edge. */
static double plan_pace(const struct hdt_plan *plan, double slowest_edge_s)
{
    double pace_s = slowest_edge_s;

    for (int rank = 0; rank < (int)plan->n_ranks; rank++) {
        double sum_s = 0;

        for (size_t i = 0; i < plan->n_stages; i++) {
            const struct hdt_plan_stage *st = &plan->stages[i];

            sum_s += st->rank == rank ? st->fwd_s + st->bwd_s : 0.0;
        }
        pace_s = sum_s > pace_s ? sum_s : pace_s;
    }
    return pace_s > 0 ? pace_s : 1e-9;
}

/* All that a stage takes; the plan has the codecs of its edges. */
static uint64_t stage_bytes(const struct search *s, const struct hdt_plan *plan, size_t stage,
                            int64_t warmup, int64_t in_flight)
{
    const struct hdt_plan_stage *st = &plan->stages[stage];

    return hdt_search_stage_bytes(s, stage_worker(s, plan, stage), st->unit_begin, st->unit_end,
                                  warmup, in_flight) +
           hdt_cost_feedback_memory(s->in, plan, (int)stage);
}

/* Memory for a stage: its rank's, shared evenly with the rank's other stages. */
static uint64_t stage_share(const struct search *s, const struct hdt_plan *plan, size_t stage)
{
    uint64_t n = 0;

    for (size_t i = 0; i < plan->n_stages; i++) {
        n += plan->stages[i].rank == plan->stages[stage].rank;
    }
    return stage_worker(s, plan, stage)->memory_bytes / n;
}

static bool edge_is_between_sites(const struct hdt_plan *plan, size_t stage)
{
    const struct hdt_plan_rank *a = &plan->ranks[plan->stages[stage].rank];
    const struct hdt_plan_rank *b = &plan->ranks[plan->stages[stage + 1].rank];

    return strcmp(a->site, b->site) != 0;
}

/*
 * Warm-ups from the last stage to the first: one for each stage behind, and for each link behind
 * as many as its round trip holds at the pipeline's pace, and n_ahead more; as many of these as
 * memory allows.
 */
static void plan_set_warmups(struct search *s, struct hdt_plan *plan, const double *round_trip_s,
                             double pace_s, int64_t n_ahead)
{
    int64_t n_mb = s->in->job->batch.n_micro_batches, warmup = 0;

    for (size_t i = plan->n_stages; i-- > 0;) {
        struct hdt_plan_stage *st = &plan->stages[i];
        int64_t least = warmup + 1;

        if (i + 1 < plan->n_stages) {
            warmup = least + (int64_t)ceil(fmin(round_trip_s[i] / pace_s, 1e6)) +
                     (edge_is_between_sites(plan, i) ? n_ahead : 0);
            warmup = warmup > n_mb ? n_mb : warmup;
            least = least > n_mb ? n_mb : least;
            while (warmup > least &&
                   stage_bytes(s, plan, i, warmup, warmup + 1) > stage_share(s, plan, i)) {
                warmup--;
            }
        }
        st->warmup = warmup;
    }
}

/* The slowest forward of a rank: what a pipeline that fills goes at. */
static double plan_fill_pace(const struct hdt_plan *plan)
{
    double pace_s = 0;

    for (int rank = 0; rank < (int)plan->n_ranks; rank++) {
        double sum_s = 0;

        for (size_t i = 0; i < plan->n_stages; i++) {
            sum_s += plan->stages[i].rank == rank ? plan->stages[i].fwd_s : 0.0;
        }
        pace_s = sum_s > pace_s ? sum_s : pace_s;
    }
    return pace_s > 0 ? pace_s : 1e-9;
}

/*
 * zb-mem, from the last stage to the first: as many forwards as go on until the first gradient can
 * be there, all forwards and first halves behind the stage and the round trips of all links behind
 * it; at least one for each stage behind. Then all stages keep as many micro-batches as the first
 * one does (with equal stages and no latency that is ZB-H2 of arXiv 2401.10241). As many of both as
 * memory allows.
 */
static void plan_set_room(struct search *s, struct hdt_plan *plan, const double *round_trip_s)
{
    double pace_s = plan_fill_pace(plan), back_s = 0;
    int64_t n_mb = s->in->job->batch.n_micro_batches, warmup = 0, least = 0;

    for (size_t i = plan->n_stages; i-- > 0;) {
        struct hdt_plan_stage *st = &plan->stages[i];

        if (i + 1 < plan->n_stages) {
            const struct hdt_plan_stage *next = st + 1;

            back_s += next->fwd_s + next->bwd_input_s + round_trip_s[i];
            least = warmup + 1 < n_mb ? warmup + 1 : n_mb;
            /* Rounding must not add a forward where the times are equal. */
            warmup = (int64_t)fmin(ceil(back_s / pace_s - 1e-6), (double)n_mb);
            warmup = warmup > least ? warmup : least;
        }
        while (warmup > least &&
               stage_bytes(s, plan, i, warmup, warmup + 1) > stage_share(s, plan, i)) {
            warmup--;
        }
        st->warmup = warmup;
    }
    for (size_t i = 0; i < plan->n_stages; i++) {
        struct hdt_plan_stage *st = &plan->stages[i];

        st->in_flight = plan->stages[0].warmup + 1;
        while (st->in_flight > st->warmup + 1 &&
               stage_bytes(s, plan, i, st->warmup, st->in_flight) > stage_share(s, plan, i)) {
            st->in_flight--;
        }
    }
}

/* Seconds of the halves of each stage's backward. */
static enum hdt_status plan_set_halves(struct search *s, struct hdt_plan *plan)
{
    for (size_t i = 0; i < plan->n_stages; i++) {
        struct hdt_plan_stage *st = &plan->stages[i];

        HDT_TRY(hdt_cost_stage_halves(s->in, stage_worker(s, plan, i), st->unit_begin, st->unit_end,
                                      &st->bwd_input_s, &st->bwd_weight_s, &s->last_err));
        st->bwd_s = st->bwd_input_s + st->bwd_weight_s;
    }
    return HDT_OK;
}

/* How far each stage runs ahead under the schedule, and what that takes. */
static enum hdt_status plan_set_order(struct search *s, struct hdt_plan *plan,
                                      const double *round_trip_s, double slowest_edge_s,
                                      int64_t n_ahead)
{
    plan->schedule = s->schedule;
    plan->n_micro_batches = s->in->job->batch.n_micro_batches;
    if (hdt_schedule_is_split(plan->schedule)) {
        HDT_TRY(plan_set_halves(s, plan));
    }
    if (plan->schedule == HDT_SCHEDULE_WAN) {
        plan_set_warmups(s, plan, round_trip_s, plan_pace(plan, slowest_edge_s), n_ahead);
    } else if (plan->schedule == HDT_SCHEDULE_ZB_MEM) {
        plan_set_room(s, plan, round_trip_s);
    }
    HDT_TRY(hdt_plan_fit_order(plan, &s->last_err));
    for (size_t i = 0; i < plan->n_stages; i++) {
        struct hdt_plan_stage *st = &plan->stages[i];

        st->memory_bytes = stage_bytes(s, plan, i, st->warmup, st->in_flight);
    }
    return HDT_OK;
}

/* Data and checkpoint sites need a rank, with or without a stage. */
static enum hdt_status plan_add_role(struct search *s, struct hdt_plan *plan, const char *key,
                                     const char *site)
{
    const struct hdt_cluster_worker *first = NULL;

    if (!site || !site[0]) {
        return HDT_OK;
    }
    for (size_t i = 0; i < plan->n_ranks; i++) {
        if (strcmp(plan->ranks[i].site, site) == 0) {
            return HDT_OK;
        }
    }
    for (size_t i = 0; i < s->in->cluster->n_workers; i++) {
        const struct hdt_cluster_worker *w = &s->in->cluster->workers[i];

        if (strcmp(w->site, site) == 0 && !w->busy &&
            (!first || strcmp(w->name, first->name) < 0)) {
            first = w;
        }
    }
    if (!first) {
        hdt_error_set(&s->last_err, HDT_ENOENT, "%s is '%s', which has no free worker", key, site);
        hdt_error_hint(&s->last_err, "start hdt-worker there, or name another site");
        return HDT_ENOENT;
    }
    plan_rank(plan, first->site, first->name);
    return HDT_OK;
}

/* A rank's stages together must fit. */
static enum hdt_status plan_check_memory(struct search *s, const struct hdt_plan *plan)
{
    for (int rank = 0; rank < (int)plan->n_ranks; rank++) {
        const struct hdt_plan_rank *r = &plan->ranks[rank];
        const struct hdt_cluster_worker *w =
            hdt_cost_find_worker(s->in->cluster, r->site, r->worker);
        uint64_t sum = 0;

        for (size_t i = 0; i < plan->n_stages; i++) {
            sum += plan->stages[i].rank == rank ? plan->stages[i].memory_bytes : 0;
        }
        if (sum > w->memory_bytes && !s->ignore_memory) {
            hdt_error_set(
                &s->last_err, HDT_ENOMEM,
                "the model does not fit: its part on %s/%s takes %.1f MiB, the worker may "
                "use %.1f MiB (%.1f MiB too much)",
                w->site, w->name, (double)sum / 0x1p20, (double)w->memory_bytes / 0x1p20,
                (double)(sum - w->memory_bytes) / 0x1p20);
            hdt_error_hint(&s->last_err, "lower batch.micro_batch, set recompute: true, or add a "
                                         "worker");
            return HDT_ENOMEM;
        }
    }
    return HDT_OK;
}

enum hdt_status hdt_search_finish(struct search *s, struct hdt_plan *plan, struct hdt_cost *cost)
{
    HDT_TRY(plan_add_role(s, plan, "data.site", s->in->job->data.site));
    HDT_TRY(plan_add_role(s, plan, "checkpoint.site", s->in->job->checkpoint.site));
    HDT_TRY(hdt_plan_complete(plan, s->in->job, s->in->model, &s->last_err));
    for (size_t i = 0; i < plan->n_stages; i++) {
        plan->stages[i].memory_bytes += hdt_cost_outer_memory(s->in, plan, (int)i);
    }
    HDT_TRY(plan_check_memory(s, plan));
    HDT_TRY(hdt_cost_play(s->in, plan, false, cost, &s->last_err));
    for (size_t i = 0; i < plan->n_ranks; i++) {
        plan->ranks[i].busy_s = cost->rank_busy_s[i];
        plan->ranks[i].held_s = cost->rank_held_s[i];
        plan->ranks[i].gateway_share = hdt_cost_gateway_share(
            s->in, plan,
            hdt_cost_find_worker(s->in->cluster, plan->ranks[i].site, plan->ranks[i].worker));
    }
    plan->step_s = cost->step_s;
    plan->bubble_share = cost->bubble_share;
    plan->wan_bytes = cost->wan_bytes;
    snprintf(plan->limit, sizeof(plan->limit), "%s", cost->limit);
    return HDT_OK;
}

/* Fill in what follows from the stages and play it. */
static enum hdt_status judge_ahead(struct search *s, struct hdt_plan *plan, int64_t n_ahead,
                                   struct hdt_cost *cost)
{
    double *round_trip_s = hdt_calloc(plan->n_stages, sizeof(double));
    double slowest_edge_s = 0, service_s;
    enum hdt_status status = HDT_OK;

    for (size_t i = 0; i + 1 < plan->n_stages && status == HDT_OK; i++) {
        status = plan_edge(s, plan, i, &round_trip_s[i], &service_s);
        slowest_edge_s =
            status == HDT_OK && service_s > slowest_edge_s ? service_s : slowest_edge_s;
    }
    if (status == HDT_OK) {
        status = plan_set_order(s, plan, round_trip_s, slowest_edge_s, n_ahead);
    }
    free(round_trip_s);
    HDT_TRY(status);
    return hdt_search_finish(s, plan, cost);
}

/* The same stages with more forwards ahead: true, and in the place of the plan, when that is worth
 * the memory. */
static bool judge_more(struct search *s, struct hdt_plan *plan, int64_t n_ahead,
                       struct hdt_cost *cost)
{
    struct hdt_plan more = {0}, less = *plan;
    struct hdt_cost more_cost = {0}, less_cost = *cost;
    bool is_better;

    for (size_t i = 0; i < plan->n_stages; i++) {
        hdt_search_add_stage(s, &more, stage_worker(s, plan, i), plan->stages[i].unit_begin,
                             plan->stages[i].unit_end);
    }
    is_better = judge_ahead(s, &more, n_ahead, &more_cost) == HDT_OK &&
                more_cost.step_s < (1 - AHEAD_GAIN) * cost->step_s;
    if (is_better) {
        *plan = more;
        *cost = more_cost;
        more = less;
        more_cost = less_cost;
    }
    hdt_plan_release(&more);
    hdt_cost_release(&more_cost);
    return is_better;
}

/*
 * Under wan, a round trip at the pipeline's pace is what the steady part of a step holds. Its
 * beginning may want more: until the first gradient is back, a stage that has no forward left
 * computes nothing.
 */
enum hdt_status hdt_search_judge(struct search *s, struct hdt_plan *plan, struct hdt_cost *cost)
{
    HDT_TRY(judge_ahead(s, plan, 0, cost));
    if (plan->schedule == HDT_SCHEDULE_WAN && plan->n_stages > 1) {
        for (int64_t n = 1; judge_more(s, plan, n, cost); n++) { /* all micro-batches at most */
        }
    }
    return HDT_OK;
}
