/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps are measured in batches of ten. The first one of a plan says how far off the profiles were
 * that it was made with (gateway/run_factor.h). A batch whose median is off the prediction, or that
 * ends after a worker joined, is judged on the planner's thread (src/plan/drift.h). A verdict that
 * does not pay corrects the prediction, so that the same drift is not judged again; one that pays
 * stops the ranks at a checkpoint, and the next epoch begins with its plan where they stopped: no
 * step is lost, and no attempt.
 *
 * A judgement costs the run nothing: links are not probed (a probe would take what the run needs),
 * they say what their sessions show; only workers that are idle are measured. After each, the next
 * one waits, twice as long when it brought nothing: a run must not spend itself on moving.
 */
#include "config.h"

#include "gateway/planner.h"
#include "gateway/recovery.h"
#include "gateway/replan.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/median.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#define WARM_STEPS    2 /* of an epoch: caches and windows fill */
#define PAUSE_MIN     10
#define PAUSE_MAX     100000
#define PAUSE_US      (10 * HDT_US_PER_S)
#define RESTART_MIN_S 1.0
#define MAX_PEERS     256

/* ---- measuring ---- */

static double batch_median(const struct hdt_gwjob_replan *replan)
{
    double sorted[HDT_REPLAN_BATCH];

    memcpy(sorted, replan->step_s, sizeof(sorted));
    return hdt_median(sorted, HDT_REPLAN_BATCH);
}

static void batch_clear(struct hdt_gwjob *job)
{
    free(job->replan.busy_s);
    job->replan.busy_s = hdt_calloc(job->plan.n_ranks, sizeof(*job->replan.busy_s));
    job->replan.n_steps = 0;
}

static void batch_add(struct hdt_gwjob *job, double step_s, const json_t *ranks)
{
    const json_t *item;
    double *step = hdt_calloc(job->plan.n_ranks, sizeof(*step));
    size_t i;

    job->replan.step_s[job->replan.n_steps++] = step_s;
    json_array_foreach(ranks, i, item)
    {
        json_int_t rank = json_integer_value(json_object_get(item, "rank"));
        double busy_s = json_number_value(json_object_get(item, "busy_s"));

        if (json_is_integer(json_object_get(item, "rank")) && rank >= 0 &&
            (uint64_t)rank < job->plan.n_ranks && busy_s > 0 && isfinite(busy_s)) {
            step[rank] = busy_s;
        }
    }
    for (i = 0; i < job->plan.n_ranks; i++) {
        job->replan.busy_s[i] += step[i] > 0 ? step[i] : (double)NAN;
    }
    free(step);
}

void hdt_replan_reset(struct hdt_gwjob *job)
{
    struct hdt_gwjob_replan *replan = &job->replan;

    free(replan->busy_s);
    replan->busy_s = NULL;
    replan->n_steps = 0;
    replan->n_warm = 0;
    hdt_plan_release(&replan->plan);
    json_decref(replan->plan_cluster);
    replan->plan_cluster = NULL;
    json_decref(replan->cluster);
    replan->cluster = NULL;
    replan->predicted_s = 0;
    replan->is_wanted = false;
}

void hdt_replan_free(struct hdt_gwjob *job)
{
    hdt_replan_reset(job);
    free(job->replan.rank_busy_s);
    job->replan.rank_busy_s = NULL;
}

/* ---- the cluster ---- */

/* Who is away or computes for another job does not take part. */
static void cluster_refresh(struct hdt_gateway *gw, const struct hdt_gwjob *job,
                            struct hdt_cluster *cluster)
{
    for (size_t i = 0; i < cluster->n_workers; i++) {
        struct hdt_cluster_worker *w = &cluster->workers[i];
        const struct hdt_gwworker *worker = hdt_federation_worker(gw, w->site, w->name);

        w->busy = !worker || !worker->up || !hdt_federation_site_is_up(gw, w->site) ||
                  hdt_coordinator_worker_serves(gw, w->site, w->name, job);
    }
}

static struct hdt_cluster_worker *cluster_worker(struct hdt_cluster *cluster, const char *site,
                                                 const char *name)
{
    for (size_t i = 0; i < cluster->n_workers; i++) {
        struct hdt_cluster_worker *w = &cluster->workers[i];

        if (strcmp(w->site, site) == 0 && strcmp(w->name, name) == 0) {
            return w;
        }
    }
    return NULL;
}

/* What a survey found besides: workers that were measured, and their sites' links. */
static void cluster_join(struct hdt_cluster *cluster, const struct hdt_cluster *found)
{
    for (size_t i = 0; i < found->n_sites; i++) {
        if (!hdt_cluster_find_site(cluster, found->sites[i].name)) {
            hdt_cluster_add_site(cluster, found->sites[i].name);
            hdt_cluster_find_site(cluster, found->sites[i].name)->gateway = found->sites[i].gateway;
        }
    }
    for (size_t i = 0; i < found->n_workers; i++) {
        const struct hdt_cluster_worker *w = &found->workers[i];
        struct hdt_cluster_worker *known = cluster_worker(cluster, w->site, w->name);

        if (w->profile.valid && !known) {
            hdt_cluster_add_worker(cluster, w);
        } else if (w->profile.valid && !known->profile.valid) {
            *known = *w; /* it was busy when the plan was made */
        }
    }
    for (size_t i = 0; i < found->n_links; i++) {
        const struct hdt_cluster_link *link = &found->links[i];

        if (!hdt_cluster_find_link(cluster, link->from, link->to)) {
            hdt_cluster_add_link(cluster, link);
        }
    }
}

/* The cluster that the present prediction stands on. */
static bool cluster_parse(const struct hdt_gwjob *job, struct hdt_cluster *cluster)
{
    const json_t *json = job->replan.cluster ? job->replan.cluster : job->cluster_json;
    struct hdt_error err = {0};

    return json && hdt_cluster_from_json(json, "cluster", cluster, &err) == HDT_OK;
}

/* The same, with who takes part now. */
static bool cluster_known(struct hdt_gateway *gw, const struct hdt_gwjob *job,
                          struct hdt_cluster *cluster)
{
    if (!cluster_parse(job, cluster)) {
        return false;
    }
    cluster_refresh(gw, job, cluster);
    return true;
}

/* Was it weighed when the present prediction was made? */
static bool worker_was_free(struct hdt_cluster *cluster, const struct hdt_gwworker *worker)
{
    const struct hdt_cluster_worker *w =
        cluster_worker(cluster, worker->info.site, worker->info.name);

    return w && w->profile.valid && !w->busy;
}

/* Is a worker idle that the present plan could not be made with? One that it could and does without
 * is not news. */
static bool worker_has_joined(struct hdt_gateway *gw, const struct hdt_gwjob *job)
{
    struct hdt_gwworker *worker;
    struct hdt_cluster cluster;
    bool has = false;

    if (!cluster_parse(job, &cluster)) {
        return false;
    }
    LL_FOREACH(gw->workers, worker)
    {
        has = has || (worker->up && hdt_federation_site_is_up(gw, worker->info.site) &&
                      !hdt_plan_has_worker(&job->plan, worker->info.site, worker->info.name) &&
                      !hdt_coordinator_worker_is_busy(gw, worker->info.site, worker->info.name) &&
                      !worker_was_free(&cluster, worker));
    }
    hdt_cluster_release(&cluster);
    return has;
}

/* ---- the links ---- */

/* What sessions of ours show by themselves. A link that had more to send than it took says its
 * rate, and its round trip has the queue in it; any other one says its round trip. Links between
 * other sites are not seen from here. */
static size_t links_seen(struct hdt_gateway *gw, double batch_s, struct hdt_drift_link **links)
{
    struct hdt_peer_stats *peers = hdt_calloc(MAX_PEERS, sizeof(*peers));
    size_t n = hdt_dataplane_peer_stats(gw->dp, peers, MAX_PEERS), n_links = 0;

    n = n < MAX_PEERS ? n : MAX_PEERS;
    *links = hdt_calloc(2 * n + 1, sizeof(**links));
    for (size_t i = 0; i < n; i++) {
        const struct hdt_peer_stats *peer = &peers[i];
        const bool loaded = peer->loaded_us >= 0 && (double)peer->loaded_us / 1e6 <= batch_s;
        struct hdt_drift_link *out = &(*links)[n_links], *in = out + 1;

        if (!peer->up) {
            continue;
        }
        snprintf(out->from, sizeof(out->from), "%s", gw->conf.site);
        snprintf(out->to, sizeof(out->to), "%s", peer->site);
        out->rate_bytes_per_s = loaded ? peer->goodput_bytes_per_s : 0;
        out->rtt_s = loaded ? 0 : (double)peer->rtt_us / 1e6;
        snprintf(in->from, sizeof(in->from), "%s", peer->site);
        snprintf(in->to, sizeof(in->to), "%s", gw->conf.site);
        in->rtt_s = out->rtt_s;
        n_links += 2;
    }
    free(peers);
    return n_links;
}

/* ---- judging ---- */

/* Steps after the one at which the plan would change. */
static int64_t steps_left(const struct hdt_gwjob *job)
{
    const int64_t every = job->conf.checkpoint.every;
    const int64_t at = every > 0 ? (job->step / every + 1) * every : job->step + 1;

    return job->conf.steps - at;
}

static double restart_s(const struct hdt_gwjob *job)
{
    const double guess_s = 2 * (job->replan.checkpoint_s + job->replan.start_s);
    const double s = job->replan.restart_s > 0 ? job->replan.restart_s : guess_s;

    return s > RESTART_MIN_S ? s : RESTART_MIN_S;
}

/* The next judgement waits: twice as long after one in vain. */
static void judge_later(struct hdt_gwjob *job, bool in_vain)
{
    struct hdt_gwjob_replan *replan = &job->replan;

    replan->pause = !in_vain || replan->pause < PAUSE_MIN ? PAUSE_MIN
                    : replan->pause > PAUSE_MAX / 2       ? PAUSE_MAX
                                                          : 2 * replan->pause;
    replan->next_step = job->step + replan->pause;
    replan->next_us = hdt_clock_now_us() + PAUSE_US;
}

static bool replan_counts(const struct hdt_gwjob *job)
{
    return job->state == HDT_GWJOB_RUNNING && job->epoch == job->replan.epoch &&
           !job->user_stopped && !job->root_done;
}

static void replan_end(struct hdt_gwjob *job)
{
    job->replan.is_asked = false;
    job->n_requests--;
}

/* The ranks stop at the next checkpoint, or make one: the root decides after which step. */
static void replan_want(struct hdt_gateway *gw, struct hdt_gwjob *job,
                        struct hdt_planner_answer *answer)
{
    struct hdt_drift_verdict *verdict = &answer->verdict;
    struct hdt_gwjob_replan *replan = &job->replan;

    replan->said = (struct hdt_gwreplan){.cause = "speed",
                                         .from_step_s = verdict->present_step_s,
                                         .to_step_s = verdict->best.plan.step_s,
                                         .gain = verdict->gain};
    snprintf(replan->said.reason, sizeof(replan->said.reason), "%s", verdict->reason);
    snprintf(replan->said.moves, sizeof(replan->said.moves), "%s", verdict->moves);
    replan->plan = verdict->best.plan;
    memset(&verdict->best.plan, 0, sizeof(verdict->best.plan));
    replan->plan_cluster = json_incref(answer->cluster);
    replan->is_wanted = true;
    hdt_log_info("job %ld: stops at a checkpoint for a faster plan: %s", (long)job->number,
                 replan->said.reason);
    hdt_gwjob_tell_ranks(gw, job, "stop", hdt_replan_stop_mode(job));
}

static void replan_judged(struct hdt_gateway *gw, void *user, struct hdt_planner_answer *answer)
{
    struct hdt_gwjob *job = user;
    struct hdt_gwjob_replan *replan = &job->replan;

    replan_end(job);
    if (!replan_counts(job)) {
        return;
    }
    judge_later(job, true);
    if (answer->err.status != HDT_OK) {
        hdt_log_warn("job %ld: no other plan: %s", (long)job->number, answer->err.msg);
    } else if (answer->verdict.pays && steps_left(job) > 0) {
        replan_want(gw, job, answer);
    } else if (answer->verdict.drifted) {
        hdt_log_info("job %ld: stays with its plan: %s", (long)job->number, answer->verdict.reason);
        replan->predicted_s = answer->verdict.present_step_s;
        json_decref(replan->cluster);
        replan->cluster = json_incref(answer->cluster);
    }
}

static void replan_ask(struct hdt_gateway *gw, struct hdt_gwjob *job, struct hdt_cluster *cluster)
{
    struct hdt_gwjob_replan *replan = &job->replan;
    struct hdt_planner_run run = {
        .step_s = replan->measured_s,
        .n_steps = HDT_REPLAN_BATCH,
        .predicted_s = replan->predicted_s,
        .ranks = hdt_calloc(job->plan.n_ranks, sizeof(*run.ranks)),
        /* With a new worker the present plan may be as planned, and another one faster. */
        .limits = {.drift = replan->joined ? -1 : job->conf.replan.drift,
                   .gain = job->conf.replan.gain,
                   .min_steps = HDT_REPLAN_BATCH,
                   .steps_left = steps_left(job),
                   .restart_s = restart_s(job)}};
    struct hdt_error err = {0};

    for (size_t rank = 0; rank < job->plan.n_ranks; rank++) {
        run.ranks[rank].busy_s = replan->rank_busy_s[rank];
        run.ranks[rank].n_steps = replan->rank_busy_s[rank] > 0 ? HDT_REPLAN_BATCH : 0;
    }
    run.n_links = links_seen(gw, HDT_REPLAN_BATCH * replan->measured_s, &run.links);
    if (hdt_planner_ask(gw, job, cluster, &run, replan_judged, job, &err) != HDT_OK) {
        hdt_log_warn("job %ld: its plan is not judged: %s", (long)job->number, err.msg);
        replan_end(job);
        judge_later(job, true);
    }
}

static void replan_surveyed(struct hdt_gateway *gw, void *user, struct hdt_cluster *found)
{
    struct hdt_gwjob *job = user;
    struct hdt_cluster cluster;

    if (!replan_counts(job) || !cluster_known(gw, job, &cluster)) {
        replan_end(job);
    } else {
        cluster_join(&cluster, found);
        replan_ask(gw, job, &cluster);
    }
    hdt_cluster_release(found);
}

static void replan_judge(struct hdt_gateway *gw, struct hdt_gwjob *job)
{
    const struct hdt_survey_request request = {.job = job->conf_json,
                                               .model = job->model_json,
                                               .but = NULL, /* the job's own are busy with it */
                                               .quiet = true,
                                               .done = replan_surveyed,
                                               .user = job};
    struct hdt_cluster cluster;
    struct hdt_error err = {0};

    job->replan.is_asked = true;
    job->replan.epoch = job->epoch;
    job->n_requests++;
    if (job->replan.joined) {
        if (hdt_survey_make(gw, &request, &err) != HDT_OK) {
            replan_end(job); /* somebody else's is under way: after the next batch */
        }
    } else if (cluster_known(gw, job, &cluster)) {
        replan_ask(gw, job, &cluster);
    } else {
        replan_end(job);
    }
}

/* ---- profiles ---- */

/* Once a plan, of its first batch, which is nearest to when its profiles were measured: what
 * changes later, or stands in a plan that followed it, is no error of theirs. */
static void profiles_learn(struct hdt_gateway *gw, struct hdt_gwjob *job)
{
    struct hdt_cluster cluster;

    if (job->replan.learned || !cluster_parse(job, &cluster)) {
        return;
    }
    job->replan.learned = true;
    for (size_t i = 0; i < job->plan.n_ranks; i++) {
        const struct hdt_plan_rank *r = &job->plan.ranks[i];
        const struct hdt_cluster_worker *w = cluster_worker(&cluster, r->site, r->worker);
        struct hdt_gwworker *worker = hdt_federation_worker(gw, r->site, r->worker);
        double factor;

        if (!w || !worker) {
            continue;
        }
        factor = hdt_drift_factor(&w->profile, job->replan.rank_busy_s[i], r->busy_s, r->held_s,
                                  job->plan.step_s);
        if (factor > 0) {
            hdt_run_factor_saw(&worker->run_factor, &w->profile, factor);
        }
    }
    hdt_cluster_release(&cluster);
}

/* ---- when ---- */

/* Did the plan that was taken last bring what it was taken for? */
static void success_judge(struct hdt_gwjob *job)
{
    struct hdt_gwjob_replan *replan = &job->replan;

    if (replan->before_s > 0) {
        judge_later(job, replan->measured_s > replan->before_s * (1 - job->conf.replan.gain));
        replan->before_s = 0;
    }
}

/* May it be judged now? */
static bool replan_is_open(const struct hdt_gwjob *job)
{
    return job->step >= job->replan.next_step && hdt_clock_now_us() >= job->replan.next_us &&
           !job->user_stopped && !job->root_done && steps_left(job) > 0;
}

static void batch_end(struct hdt_gateway *gw, struct hdt_gwjob *job)
{
    struct hdt_gwjob_replan *replan = &job->replan;
    double predicted_s = replan->predicted_s > 0 ? replan->predicted_s : job->plan.step_s;

    replan->measured_s = batch_median(replan);
    free(replan->rank_busy_s);
    replan->rank_busy_s = replan->busy_s;
    replan->busy_s = NULL;
    for (size_t rank = 0; rank < job->plan.n_ranks; rank++) {
        replan->rank_busy_s[rank] /= HDT_REPLAN_BATCH;
    }
    batch_clear(job);
    profiles_learn(gw, job);
    /* With outer steps another plan might have replicas, and so other bits. */
    if (!job->conf.replan.automatic || job->conf.outer.steps > 0) {
        return;
    }
    success_judge(job);
    replan->joined = worker_has_joined(gw, job);
    if (replan->is_asked || replan->is_wanted || !replan_is_open(job) || predicted_s <= 0 ||
        (!replan->joined && fabs(replan->measured_s / predicted_s - 1) <= job->conf.replan.drift)) {
        return;
    }
    replan_judge(gw, job);
}

void hdt_replan_step(struct hdt_gateway *gw, struct hdt_gwjob *job, double step_s,
                     const json_t *ranks)
{
    /* Steps of replicas are not told one by one, and their plan stays. */
    if (job->plan.n_replicas > 1) {
        return;
    }
    if (job->state != HDT_GWJOB_RUNNING || !(step_s > 0) || !isfinite(step_s) ||
        job->replan.n_warm++ < WARM_STEPS) {
        return;
    }
    if (!job->replan.busy_s) {
        batch_clear(job);
    }
    batch_add(job, step_s, ranks);
    if (job->replan.n_steps == HDT_REPLAN_BATCH) {
        batch_end(gw, job);
    }
}

const char *hdt_replan_stop_mode(const struct hdt_gwjob *job)
{
    return !job->replan.is_wanted           ? NULL
           : job->conf.checkpoint.every > 0 ? "boundary"
                                            : "checkpoint";
}

bool hdt_replan_goes_on(struct hdt_gateway *gw, struct hdt_gwjob *job)
{
    struct hdt_gwjob_replan *replan = &job->replan;

    if (job->user_stopped || job->step >= job->conf.steps) {
        return false;
    }
    replan->before_s = replan->is_wanted ? replan->measured_s : 0;
    hdt_recovery_move(gw, job);
    return true;
}
