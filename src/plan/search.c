/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/buf.h"
#include "src/plan/drift.h"
#include "src/plan/search_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Cuts that are played op by op. */
#define N_JUDGED 12
/* Most stages of a worker that take turns. */
#define CHUNKS_MAX 4
/* Moves of a border after that. */
#define N_REFINE 16
/* Sequences of workers whose borders are moved. */
#define N_REFINED 3

/* ---- who may take part ---- */

static bool site_is_named(const struct hdt_job *job, const char *site)
{
    for (size_t i = 0; i < job->plan.sites.n; i++) {
        if (strcmp(job->plan.sites.items[i], site) == 0) {
            return true;
        }
    }
    return job->plan.sites.n == 0;
}

static enum hdt_status sites_check(const struct hdt_cost_inputs *in, struct hdt_error *err)
{
    for (size_t i = 0; i < in->job->plan.sites.n; i++) {
        bool found = false;

        for (size_t j = 0; j < in->cluster->n_sites; j++) {
            found = found || strcmp(in->cluster->sites[j].name, in->job->plan.sites.items[i]) == 0;
        }
        if (!found) {
            hdt_error_set(err, HDT_EINVAL, "plan.sites names site '%s', which is not there",
                          in->job->plan.sites.items[i]);
            hdt_error_hint(err, "hdt status lists the sites");
            return HDT_EINVAL;
        }
    }
    return HDT_OK;
}

/* A profile of another shape says nothing about this job. */
static enum hdt_status profile_check(const struct hdt_cost_inputs *in,
                                     const struct hdt_cluster_worker *w, struct hdt_error *err)
{
    const struct hdt_profile *p = &w->profile;

    HDT_TRY(hdt_cost_check_precision(in, w, err));
    if (p->valid && p->micro_batch == in->job->batch.micro_batch &&
        p->seq_len == in->job->batch.seq_len) {
        return HDT_OK;
    }
    if (p->valid) {
        hdt_error_set(
            err, HDT_EINVAL,
            "worker %s/%s was profiled for micro-batches of %lld x %lld tokens, the job has "
            "%lld x %lld",
            w->site, w->name, (long long)p->micro_batch, (long long)p->seq_len,
            (long long)in->job->batch.micro_batch, (long long)in->job->batch.seq_len);
    } else {
        hdt_error_set(err, HDT_EINVAL, "worker %s/%s has no profile for this job", w->site,
                      w->name);
    }
    hdt_error_hint(err,
                   "it measures its device when a plan asks: see hdt logs %s/%s, or leave its "
                   "site out by plan.sites",
                   w->site, w->name);
    return HDT_EINVAL;
}

static double worker_speed(const struct hdt_cluster_worker *w)
{
    return w->profile.block_fwd_s + w->profile.block_bwd_s;
}

/* Insert by speed, fastest first; the slowest falls out when the table is full. */
static void search_add_worker(struct search *s, const struct hdt_cluster_worker *w, size_t *n_out)
{
    int at = s->n_workers;

    while (at > 0 && worker_speed(w) < worker_speed(s->workers[at - 1])) {
        at--;
    }
    if (s->n_workers == HDT_SEARCH_MAX_WORKERS) {
        (*n_out)++;
        if (at == HDT_SEARCH_MAX_WORKERS) {
            return;
        }
        s->n_workers--;
    }
    memmove(&s->workers[at + 1], &s->workers[at],
            (size_t)(s->n_workers - at) * sizeof(s->workers[0]));
    s->workers[at] = w;
    s->n_workers++;
}

static enum hdt_status search_workers(struct search *s, size_t *n_left_out, struct hdt_error *err)
{
    const struct hdt_cluster_worker *busy = NULL;
    size_t n_busy = 0;

    HDT_TRY(sites_check(s->in, err));
    for (size_t i = 0; i < s->in->cluster->n_workers; i++) {
        const struct hdt_cluster_worker *w = &s->in->cluster->workers[i];

        if (!site_is_named(s->in->job, w->site)) {
            continue;
        }
        if (w->busy) {
            busy = busy ? busy : w;
            n_busy++;
            continue;
        }
        HDT_TRY(profile_check(s->in, w, err));
        search_add_worker(s, w, n_left_out);
    }
    if (s->n_workers > 0) {
        return HDT_OK;
    }
    if (n_busy > 0) {
        hdt_error_set(err, HDT_EEXIST, "no worker is free: %s/%s %s another job", busy->site,
                      busy->name, n_busy > 1 ? "and others run" : "runs");
        hdt_error_hint(err, "'hdt status' shows what runs; 'hdt stop' ends it");
        return HDT_EEXIST;
    }
    hdt_error_set(err, HDT_ENOENT, "no worker is connected%s",
                  s->in->job->plan.sites.n > 0 ? " at the sites of plan.sites" : "");
    hdt_error_hint(err, "start hdt-worker at a site; 'hdt status' shows who is there");
    return HDT_ENOENT;
}

/* ---- the problem in numbers ---- */

static double stage_s(const void *user, int worker, int64_t begin, int64_t end)
{
    const struct search *s = user;
    const struct hdt_profile *p = &s->workers[worker]->profile;
    double fwd_s, bwd_s, step_s;

    hdt_cost_stage_times(s->in, p, begin, end, &fwd_s, &bwd_s, &step_s);
    /* A stage has some six ops a micro-batch. */
    return fwd_s + bwd_s + 6 * p->op_overhead_s +
           step_s / (double)s->in->job->batch.n_micro_batches;
}

static bool stage_fits(const void *user, int worker, int64_t begin, int64_t end, int n_after)
{
    const struct search *s = user;
    const struct hdt_cluster_worker *w = s->workers[worker];
    /* What the judge counts is this or more: the whole pipeline is not known yet. */
    int64_t warmup =
        s->schedule == HDT_SCHEDULE_GPIPE ? s->in->job->batch.n_micro_batches : n_after;

    return s->ignore_memory ||
           hdt_search_stage_bytes(s, w, begin, end, warmup, warmup + 1) <= w->memory_bytes;
}

static void edge_set(struct search *s, int i, int j)
{
    const struct hdt_cluster_worker *a = s->workers[i], *b = s->workers[j];
    struct hdt_search_edge *e = &s->problem.edges[i][j];
    struct hdt_codec_spec fwd_codec = hdt_search_codec(s, a, b, false);
    struct hdt_codec_spec bwd_codec = hdt_search_codec(s, b, a, true);
    double n = hdt_search_values(s->in);
    struct hdt_cost_transfer fwd, bwd;

    if (i == j || hdt_cost_transfer(s->in, a->site, b->site, &fwd_codec, n, &fwd, &s->last_err) ||
        hdt_cost_transfer(s->in, b->site, a->site, &bwd_codec, n, &bwd, &s->last_err)) {
        return;
    }
    e->ok = true;
    e->service_s = fwd.pace_s > bwd.pace_s ? fwd.pace_s : bwd.pace_s;
    e->sum_s = fwd.service_s + bwd.service_s + fwd.latency_s + bwd.latency_s;
    e->src_s = hdt_cost_cast(&a->profile, &fwd_codec, n) +
               hdt_cost_cast(&a->profile, &bwd_codec, n) +
               hdt_cost_gateway_share(s->in, NULL, a) * (fwd.src_cpu_s + bwd.dst_cpu_s);
    e->dst_s = hdt_cost_cast(&b->profile, &fwd_codec, n) +
               hdt_cost_cast(&b->profile, &bwd_codec, n) +
               hdt_cost_gateway_share(s->in, NULL, b) * (fwd.dst_cpu_s + bwd.src_cpu_s);
}

static void problem_set(struct search *s)
{
    const struct hdt_job *job = s->in->job;

    s->problem.n_workers = s->n_workers;
    s->problem.n_units = hdt_model_n_units(s->in->model);
    s->problem.n_mb = job->batch.n_micro_batches;
    s->problem.min_stages = job->plan.min_stages;
    s->problem.max_stages = job->plan.max_stages > 0 ? job->plan.max_stages : s->n_workers;
    s->problem.stage_s = stage_s;
    s->problem.stage_fits = stage_fits;
    s->problem.user = s;
    for (int i = 0; i < s->n_workers; i++) {
        for (int j = 0; j < s->n_workers; j++) {
            edge_set(s, i, j);
        }
    }
}

/* ---- a fixed cut ---- */

/* "SITE/WORKER=UNITS", its form checked by hdt_job_check. */
static enum hdt_status cut_read(struct search *s, const char *text,
                                const struct hdt_cluster_worker **worker, int64_t *units,
                                struct hdt_error *err)
{
    char site[HDT_NAME_CAP], name[HDT_NAME_CAP];
    const char *slash = strchr(text, '/'), *equals = slash ? strchr(slash, '=') : NULL;

    if (!equals || slash - text >= HDT_NAME_CAP || equals - slash - 1 >= HDT_NAME_CAP) {
        return hdt_error_set(err, HDT_EINVAL, "plan.cut: '%s' is not SITE/WORKER=UNITS", text);
    }
    snprintf(site, sizeof(site), "%.*s", (int)(slash - text), text);
    snprintf(name, sizeof(name), "%.*s", (int)(equals - slash - 1), slash + 1);
    *units = strtoll(equals + 1, NULL, 10);
    *worker = hdt_cost_find_worker(s->in->cluster, site, name);
    if (!*worker || (*worker)->busy) {
        hdt_error_set(err, HDT_EINVAL, "plan.cut: worker %s/%s %s", site, name,
                      *worker ? "is part of a running job" : "is not there");
        hdt_error_hint(err, "hdt status lists the workers");
        return HDT_EINVAL;
    }
    return profile_check(s->in, *worker, err);
}

static enum hdt_status search_fixed(struct search *s, struct hdt_search_result *result,
                                    struct hdt_error *err)
{
    int64_t begin = 0;
    enum hdt_status status;

    for (size_t i = 0; i < s->in->job->plan.cut.n; i++) {
        const struct hdt_cluster_worker *w = NULL;
        int64_t units = 0;

        HDT_TRY(cut_read(s, s->in->job->plan.cut.items[i], &w, &units, err));
        hdt_search_add_stage(s, &result->plan, w, begin, begin + units);
        begin += units;
    }
    status = hdt_search_judge(s, &result->plan, &result->cost);
    result->n_judged = 1;
    if (status == HDT_OK) {
        hdt_search_try_codecs(s, result, true);
    } else if (err) {
        *err = s->last_err;
    }
    return status;
}

/* ---- the search ---- */

static int64_t cut_end(const struct search *s, const struct hdt_search_cut *cut, int i)
{
    return i + 1 < cut->n_stages ? cut->begin[i + 1] : s->problem.n_units;
}

/* With several chunks a worker's units are dealt out, the first chunks first, and each turn goes
 * through all workers. */
static void cut_to_plan(struct search *s, const struct hdt_search_cut *cut, struct hdt_plan *plan)
{
    int n_chunks = s->n_chunks > 0 ? s->n_chunks : 1;
    int64_t unit = 0;

    memset(plan, 0, sizeof(*plan));
    for (int chunk = 0; chunk < n_chunks; chunk++) {
        for (int i = 0; i < cut->n_stages; i++) {
            int64_t n = cut_end(s, cut, i) - cut->begin[i];

            n = n / n_chunks + (chunk < n % n_chunks);
            hdt_search_add_stage(s, plan, s->workers[cut->worker[i]], unit, unit + n);
            unit += n;
        }
    }
}

/* Has each worker of the cut a unit for each of so many chunks, and may there be so many stages? */
static bool cut_has_chunks(const struct search *s, const struct hdt_search_cut *cut, int n_chunks)
{
    int64_t most = s->in->job->plan.max_stages;

    for (int i = 0; i < cut->n_stages; i++) {
        if (cut_end(s, cut, i) - cut->begin[i] < n_chunks) {
            return false;
        }
    }
    return most == 0 || (int64_t)n_chunks * cut->n_stages <= most;
}

static void refuse_turns(struct search *s, const struct hdt_search_cut *cut)
{
    hdt_error_set(&s->last_err, HDT_EINVAL,
                  "schedule interleaved needs two stages of each worker, which the model of %lld "
                  "layers has not for %d workers, or plan.max_stages forbids",
                  (long long)s->in->model->L, cut->n_stages);
    hdt_error_hint(&s->last_err, "choose another plan.schedule, or fewer workers by plan.sites");
}

void hdt_search_words(const struct hdt_plan *plan, const struct hdt_plan *best, char *out,
                      size_t out_cap)
{
    size_t used = (size_t)snprintf(out, out_cap, "%.3f s a step:", plan->step_s);
    char moves[128];

    for (size_t i = 0; i < plan->n_stages && used < out_cap; i++) {
        const struct hdt_plan_stage *st = &plan->stages[i];
        const struct hdt_plan_rank *r = &plan->ranks[st->rank];

        used += (size_t)snprintf(out + used, out_cap - used, "%s %s/%s %lld", i ? "," : "", r->site,
                                 r->worker, (long long)(st->unit_end - st->unit_begin));
    }
    if (used < out_cap && hdt_plan_same_stages(plan, best)) {
        snprintf(out + used, out_cap - used, "; %s",
                 hdt_drift_moves(best, plan, moves, sizeof(moves)));
    }
}

/* The same plan again is no runner-up. */
static bool plan_is_known(const struct hdt_search_result *result, const struct hdt_plan *plan)
{
    char moves[8];

    return result->plan.n_stages > 0 && hdt_plan_same_stages(&result->plan, plan) &&
           !hdt_drift_moves(&result->plan, plan, moves, sizeof(moves))[0];
}

bool hdt_search_offer(struct hdt_search_result *result, double margin, struct hdt_plan *plan,
                      struct hdt_cost *cost)
{
    bool better = result->plan.n_stages == 0 || cost->step_s < (1 - margin) * result->cost.step_s;

    if (plan_is_known(result, plan)) {
        hdt_plan_release(plan);
        hdt_cost_release(cost);
        return false;
    }
    if (better) {
        struct hdt_plan old_plan = result->plan;
        struct hdt_cost old_cost = result->cost;

        result->plan = *plan;
        result->cost = *cost;
        *plan = old_plan;
        *cost = old_cost;
    }
    if (plan->n_stages > 0 &&
        (result->second_plan.n_stages == 0 || cost->step_s < result->second_cost.step_s)) {
        struct hdt_plan old_plan = result->second_plan;
        struct hdt_cost old_cost = result->second_cost;

        result->second_plan = *plan;
        result->second_cost = *cost;
        *plan = old_plan;
        *cost = old_cost;
    }
    hdt_plan_release(plan);
    hdt_cost_release(cost);
    return better;
}

static double search_try_chunks(struct search *s, const struct hdt_search_cut *cut,
                                struct hdt_search_result *result)
{
    struct hdt_plan plan;
    struct hdt_cost cost = {0};
    double step_s = INFINITY;

    cut_to_plan(s, cut, &plan);
    if (hdt_search_judge(s, &plan, &cost) == HDT_OK) {
        step_s = cost.step_s;
        if (!plan_is_known(result, &plan)) {
            result->n_judged++;
            hdt_search_offer(result, 0, &plan, &cost);
            return step_s;
        }
    }
    hdt_plan_release(&plan);
    hdt_cost_release(&cost);
    return step_s;
}

/* Judge a cut and offer it. Seconds of its step; infinite: it does not do. */
static double search_try(struct search *s, const struct hdt_search_cut *cut,
                         struct hdt_search_result *result)
{
    double step_s = INFINITY;

    if (s->schedule != HDT_SCHEDULE_INTERLEAVED || cut->n_stages == 1) {
        s->n_chunks = 0;
        return search_try_chunks(s, cut, result);
    }
    for (int n = 2; n <= CHUNKS_MAX && cut_has_chunks(s, cut, n); n++) {
        s->n_chunks = n;
        step_s = fmin(step_s, search_try_chunks(s, cut, result));
    }
    if (!cut_has_chunks(s, cut, 2)) {
        refuse_turns(s, cut);
    }
    return step_s;
}

/* The objective counts filling and draining roughly, the judge op by op: move the borders of a cut
 * by one unit as long as that helps. */
static void search_refine(struct search *s, struct hdt_search_cut *cut, double step_s,
                          struct hdt_search_result *result)
{
    bool moved = true;

    for (int round = 0; moved && round < N_REFINE; round++) {
        moved = false;
        for (int i = 2; i < 2 * cut->n_stages && !moved; i++) {
            struct hdt_search_cut next = *cut;
            int border = i / 2;
            int64_t end = border + 1 < cut->n_stages ? cut->begin[border + 1] : s->problem.n_units;
            double next_s;

            next.begin[border] += i % 2 ? 1 : -1;
            if (next.begin[border] > next.begin[border - 1] && next.begin[border] < end) {
                next_s = search_try(s, &next, result);
                moved = next_s < step_s;
                *cut = moved ? next : *cut;
                step_s = moved ? next_s : step_s;
            }
        }
    }
}

/* What kept every cut from fitting: search again without memory limits and look at the best. */
static enum hdt_status search_explain(struct search *s, struct hdt_error *err)
{
    struct hdt_search_cut cut;
    struct hdt_plan plan;
    struct hdt_cost cost = {0};
    enum hdt_status status;

    if (s->problem.min_stages > s->n_workers) {
        hdt_error_set(err, HDT_EINVAL, "plan.min_stages is %lld, but only %d worker%s free",
                      (long long)s->problem.min_stages, s->n_workers,
                      s->n_workers == 1 ? " is" : "s are");
        hdt_error_hint(err, "start more workers or lower plan.min_stages");
        return HDT_EINVAL;
    }
    s->ignore_memory = true;
    if (hdt_search_dp(&s->problem, NULL, &cut, 1) == 0) {
        if (err) {
            *err = s->last_err; /* the link that is missing */
        }
        return s->last_err.status != HDT_OK ? s->last_err.status : HDT_ENOENT;
    }
    s->ignore_memory = false;
    if (s->schedule == HDT_SCHEDULE_INTERLEAVED && cut.n_stages > 1) {
        if (!cut_has_chunks(s, &cut, 2)) {
            refuse_turns(s, &cut);
            if (err) {
                *err = s->last_err;
            }
            return HDT_EINVAL;
        }
        s->n_chunks = 2;
    }
    cut_to_plan(s, &cut, &plan);
    status = hdt_search_judge(s, &plan, &cost);
    hdt_plan_release(&plan);
    hdt_cost_release(&cost);
    if (err) {
        *err = s->last_err;
    }
    /* The cut did not fit in the first search, so that the judge refuses it too. */
    HDT_ASSERT(status != HDT_OK);
    return status;
}

/* The best cuts with the codecs of now, one of each sequence of workers, judged, and the best few
 * of them moved about: the sequence that is best in the end may not begin so. How many cuts there
 * were. */
static size_t search_cuts(struct search *s, struct hdt_search_result *result)
{
    struct hdt_search_cut cuts[N_JUDGED];
    double step_s[N_JUDGED];
    size_t n;

    problem_set(s);
    n = hdt_search_dp(&s->problem, s->memo, cuts, N_JUDGED);
    for (size_t i = 0; i < n; i++) {
        step_s[i] = search_try(s, &cuts[i], result);
    }
    for (int k = 0; k < N_REFINED && n > 0; k++) {
        size_t best = 0;

        for (size_t i = 1; i < n; i++) {
            best = step_s[i] < step_s[best] ? i : best;
        }
        if (isfinite(step_s[best])) {
            search_refine(s, &cuts[best], step_s[best], result);
        }
        step_s[best] = INFINITY;
    }
    return n;
}

/* Is it what each edge has when it is chosen for the shortest transfer? */
static bool codec_is_known(const struct search *s, const struct hdt_codec_spec *codec)
{
    for (int i = 0; i < s->n_workers * s->n_workers; i++) {
        const struct hdt_cluster_worker *a = s->workers[i / s->n_workers];
        const struct hdt_cluster_worker *b = s->workers[i % s->n_workers];

        for (int is_grad = 0; is_grad < 2; is_grad++) {
            const struct hdt_codec_spec is = hdt_search_codec(s, a, b, is_grad);

            if (strcmp(a->site, b->site) != 0 && !hdt_search_is_named(s, is_grad) &&
                !hdt_codec_spec_equal(&is, codec)) {
                return false;
            }
        }
    }
    return true;
}

/* Cuts were those for the shortest transfers. Where transfers hide behind the arithmetic, a codec
 * that costs the processors less may be the better one, with a cut of its own. */
static void search_codecs(struct search *s, struct hdt_search_result *result)
{
    size_t n;
    const struct hdt_codec_spec *choices = hdt_cost_codecs(s->in->job, &n);

    for (size_t i = 0; i < n; i++) {
        struct hdt_search_result other = {0};

        if (codec_is_known(s, &choices[i]) ||
            (s->is_hinted && (!s->hint || !hdt_codec_spec_equal(s->hint, &choices[i])))) {
            continue;
        }
        s->codec = &choices[i];
        if (search_cuts(s, &other) > 0 && other.n_judged > 0) {
            result->n_judged += other.n_judged;
            hdt_search_offer(result, HDT_SEARCH_CODEC_GAIN, &other.plan, &other.cost);
        }
        hdt_plan_release(&other.second_plan);
        hdt_cost_release(&other.second_cost);
        s->codec = NULL;
    }
    hdt_search_try_codecs(s, result, false);
}

static enum hdt_status search_free(struct search *s, struct hdt_search_result *result,
                                   struct hdt_error *err)
{
    if (hdt_model_n_units(s->in->model) > HDT_SEARCH_MAX_UNITS) {
        hdt_error_set(err, HDT_ENOTSUP, "the planner cuts models of up to %d layers",
                      HDT_SEARCH_MAX_UNITS - 2);
        hdt_error_hint(err, "give the cut by plan.cut");
        return HDT_ENOTSUP;
    }
    HDT_TRY(search_workers(s, &result->n_left_out, err));
    if (search_cuts(s, result) == 0) {
        /* Of one schedule among others nobody asks why. */
        return s->is_hinted ? HDT_ENOMEM : search_explain(s, err);
    }
    if (result->n_judged == 0) {
        if (err) {
            *err = s->last_err;
        }
        return s->last_err.status;
    }
    if (hdt_search_has_codecs(s)) {
        search_codecs(s, result);
    }
    return HDT_OK;
}

/* What the searches under all schedules share. */
struct search_run {
    const struct hdt_cost_inputs *in;
    struct hdt_search_memo *memo;
};

/* The best plan under one schedule. After one under another, cuts are searched for no codecs but
 * that plan's and those of the shortest transfers: the slow part of the search. */
static enum hdt_status search_one(const struct search_run *run, enum hdt_schedule_kind schedule,
                                  const struct hdt_plan *like, struct hdt_search_result *result,
                                  struct hdt_error *err)
{
    const struct hdt_cost_inputs *in = run->in;
    struct search *s = hdt_calloc(1, sizeof(*s));
    enum hdt_status status;

    memset(result, 0, sizeof(*result));
    s->in = in;
    s->memo = run->memo;
    s->schedule = schedule;
    s->is_hinted = like != NULL;
    s->hint = like ? hdt_search_codec_of(in->job, like) : NULL;
    status = in->job->plan.cut.n > 0 ? search_fixed(s, result, err) : search_free(s, result, err);
    if (status != HDT_OK) {
        hdt_error_prefix(err, "cannot plan the job");
        hdt_search_result_release(result);
    } else if (result->second_plan.n_stages > 0) {
        hdt_search_words(&result->second_plan, &result->plan, result->second,
                         sizeof(result->second));
    }
    free(s);
    return status;
}

/* From the plainest order to the one that keeps most: each must be worth it. An order that cannot
 * be (no memory, no halves measured, no turns) is passed over. Stages of a fixed cut that take
 * turns may fit under interleaved alone. */
static enum hdt_status search_auto(const struct search_run *run, struct hdt_search_result *result,
                                   struct hdt_error *err)
{
    static const enum hdt_schedule_kind others[] = {HDT_SCHEDULE_WAN, HDT_SCHEDULE_ZB_H1,
                                                    HDT_SCHEDULE_ZB_MEM, HDT_SCHEDULE_INTERLEAVED,
                                                    HDT_SCHEDULE_GPIPE};
    const struct hdt_job *job = run->in->job;
    struct hdt_search_result other;
    enum hdt_status status;

    status = search_one(run, HDT_SCHEDULE_1F1B, NULL, result, err);
    if (status != HDT_OK && (status != HDT_ENOMEM || job->plan.cut.n == 0)) {
        return status;
    }
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if ((job->recompute && hdt_schedule_is_split(others[i])) ||
            search_one(run, others[i], status == HDT_OK ? &result->plan : NULL, &other, NULL) !=
                HDT_OK) {
            continue;
        }
        if (status != HDT_OK ||
            other.cost.step_s < (1 - HDT_SEARCH_SCHEDULE_GAIN) * result->cost.step_s) {
            hdt_search_result_release(result);
            *result = other;
            status = HDT_OK;
        } else {
            hdt_search_result_release(&other);
        }
    }
    return status;
}

enum hdt_status hdt_search_pipeline(const struct hdt_cost_inputs *in,
                                    struct hdt_search_result *result, struct hdt_error *err)
{
    const enum hdt_schedule_kind schedule = (enum hdt_schedule_kind)in->job->plan.schedule;
    const struct search_run run = {in, hdt_search_memo_new()};
    enum hdt_status status;

    status = schedule == HDT_SCHEDULE_AUTO ? search_auto(&run, result, err)
                                           : search_one(&run, schedule, NULL, result, err);
    if (status == HDT_OK) {
        result->n_tried = hdt_search_memo_n_tried(run.memo);
    }
    hdt_search_memo_free(run.memo);
    return status;
}

/* The timeline of what was found, which candidates are played without. */
static enum hdt_status result_replay(const struct hdt_cost_inputs *in,
                                     struct hdt_search_result *result, struct hdt_error *err)
{
    struct hdt_cost cost;
    enum hdt_status status = hdt_cost_play(in, &result->plan, true, &cost, err);

    if (status == HDT_OK) {
        hdt_cost_release(&result->cost);
        result->cost = cost;
    } else {
        hdt_search_result_release(result);
    }
    return status;
}

enum hdt_status hdt_search_plan(const struct hdt_cost_inputs *in, struct hdt_search_result *result,
                                struct hdt_error *err)
{
    HDT_TRY(in->job->outer.steps > 0 ? hdt_search_outer(in, result, err)
                                     : hdt_search_pipeline(in, result, err));
    return result_replay(in, result, err);
}

void hdt_search_result_release(struct hdt_search_result *result)
{
    hdt_plan_release(&result->plan);
    hdt_cost_release(&result->cost);
    hdt_plan_release(&result->second_plan);
    hdt_cost_release(&result->second_cost);
    memset(result, 0, sizeof(*result));
}
