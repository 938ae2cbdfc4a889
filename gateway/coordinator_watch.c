/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a coordinator watches in its jobs: workers that leave, and deadlines. Who is away for a
 * moment costs nothing; who stays away, or says nothing for too long, ends the epoch with a reason.
 */
#include "config.h"

#include "gateway/member.h"
#include "gateway/planner.h"
#include "gateway/recovery.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"

#include <stdio.h>
#include <string.h>
#include <utlist.h>

/* ---- workers that leave ---- */

/* As its own gateway says, in a job of a third site. Of jobs that we coordinate we know more, and
 * what a coordinator that is away had may be over. */
static bool worker_is_busy_elsewhere(struct hdt_gateway *gw, const char *site, const char *name)
{
    const struct hdt_gwworker *worker = hdt_federation_worker(gw, site, name);
    const struct hdt_gwsite *coordinator =
        worker && worker->busy_by[0] ? hdt_federation_site(gw, worker->busy_by) : NULL;

    return coordinator && coordinator->up;
}

bool hdt_coordinator_worker_serves(struct hdt_gateway *gw, const char *site, const char *name,
                                   const struct hdt_gwjob *but)
{
    struct hdt_gwjob *job;

    LL_FOREACH(gw->jobs, job)
    {
        if (job != but && !hdt_gwjob_is_over(job) && hdt_plan_has_worker(&job->plan, site, name)) {
            return true;
        }
    }
    return hdt_member_has_worker(gw, site, name) || worker_is_busy_elsewhere(gw, site, name);
}

bool hdt_coordinator_worker_is_busy(struct hdt_gateway *gw, const char *site, const char *name)
{
    return hdt_coordinator_worker_serves(gw, site, name, NULL);
}

/* Has it something to lose? Who has reported the end of its rank may go; a job that recovers waits
 * for its workers anyway. */
static bool job_needs_rank(const struct hdt_gwjob *job, size_t rank)
{
    return !hdt_gwjob_is_over(job) && job->state != HDT_GWJOB_RECOVERING &&
           !job->rank_is_done[rank];
}

void hdt_coordinator_worker_restarted(struct hdt_gateway *gw, const char *site, const char *name)
{
    struct hdt_error why = {0};
    struct hdt_gwjob *job;

    hdt_error_set(&why, HDT_ERANK, "it was restarted");
    LL_FOREACH(gw->jobs, job)
    {
        for (size_t rank = 0; rank < job->plan.n_ranks; rank++) {
            const struct hdt_plan_rank *r = &job->plan.ranks[rank];

            if (strcmp(r->site, site) == 0 && strcmp(r->worker, name) == 0 &&
                job_needs_rank(job, rank)) {
                hdt_recovery_rank_lost(gw, job, rank, &why);
                break;
            }
        }
    }
}

/* Since when the rank's worker is away, and for how long it may be; false: it is there, or its
 * whole site is away, which is another matter. */
static bool rank_is_away(struct hdt_gateway *gw, const struct hdt_gwjob *job, size_t rank,
                         int64_t *since_us, int64_t *grace_us)
{
    const struct hdt_plan_rank *r = &job->plan.ranks[rank];
    const struct hdt_gwworker *worker = hdt_federation_worker(gw, r->site, r->worker);
    const struct hdt_gwsite *site = hdt_federation_site(gw, r->site);

    if ((worker && worker->up) || !hdt_federation_site_is_up(gw, r->site)) {
        return false;
    }
    *grace_us = worker && worker->has_left ? gw->deadlines.gone_us : gw->deadlines.missing_us;
    *since_us = worker ? worker->since_us : job->taken_us;
    /* A site that has just come back has not named its workers yet. */
    if (!(worker && worker->has_left) && site && site->since_us > *since_us) {
        *since_us = site->since_us;
    }
    return true;
}

static void job_check_workers(struct hdt_gateway *gw, struct hdt_gwjob *job, int64_t now_us)
{
    const uint32_t epoch = job->epoch;
    int64_t since_us, grace_us;

    for (size_t rank = 0; rank < job->plan.n_ranks && job->epoch == epoch; rank++) {
        const struct hdt_plan_rank *r = &job->plan.ranks[rank];
        const struct hdt_gwworker *worker = hdt_federation_worker(gw, r->site, r->worker);
        struct hdt_error why = {0};

        if (job_needs_rank(job, rank) && rank_is_away(gw, job, rank, &since_us, &grace_us) &&
            now_us - since_us >= grace_us) {
            hdt_error_set(&why, HDT_ERANK, "%s",
                          worker && worker->why_down[0] ? worker->why_down : "it is not connected");
            hdt_recovery_rank_lost(gw, job, rank, &why);
        }
    }
}

/* ---- deadlines ---- */

/* A site that is away for longer than the job bears has lost its ranks, or they have lost patience.
 */
static void job_check_sites(struct hdt_gateway *gw, struct hdt_gwjob *job, int64_t now_us)
{
    const uint32_t epoch = job->epoch;
    struct hdt_error err;

    for (size_t rank = 0; rank < job->plan.n_ranks && job->epoch == epoch; rank++) {
        const struct hdt_gwsite *site = hdt_federation_site(gw, job->plan.ranks[rank].site);

        if (site && !site->up && job_needs_rank(job, rank) &&
            now_us - site->since_us > job->deadlines.rank_us) {
            hdt_error_set(&err, HDT_EPEER, "job %ld: site %s is not connected for %.0f s: %s",
                          (long)job->number, site->name, (double)(now_us - site->since_us) / 1e6,
                          site->why_down);
            hdt_recovery_begin(gw, job, &err);
        }
    }
}

static void job_check_deadline(struct hdt_gateway *gw, struct hdt_gwjob *job, int64_t now_us)
{
    int64_t silent_us = now_us - job->last_report_us;
    struct hdt_buf waiting = {0};
    struct hdt_error err;

    if (job->state == HDT_GWJOB_FINISHING) {
        if (silent_us > job->deadlines.rank_us &&
            now_us - job->state_since_us > job->deadlines.rank_us && !hdt_gwjob_all_done(job)) {
            hdt_gwjob_append_waiting(job, &waiting);
            hdt_error_set(&err, HDT_ETIMEDOUT,
                          "job %ld: its last step is done, but nothing was heard for %.0f s of %s",
                          (long)job->number, (double)silent_us / 1e6, hdt_buf_str(&waiting));
            hdt_error_hint(&err, "'hdt logs SITE/WORKER' shows what it waits for");
            hdt_buf_release(&waiting);
            hdt_recovery_begin(gw, job, &err);
        }
        return;
    }
    /* The workers watch progress themselves and say what they wait for; this is the back stop. */
    if ((job->state == HDT_GWJOB_RUNNING || job->state == HDT_GWJOB_STOPPING) &&
        silent_us > job->deadlines.back_stop_us) {
        hdt_gwjob_append_waiting(job, &waiting);
        hdt_error_set(&err, HDT_ETIMEDOUT, "job %ld: no report from its workers for %.0f s: %s",
                      (long)job->number, (double)silent_us / 1e6, hdt_buf_str(&waiting));
        hdt_buf_release(&waiting);
        hdt_error_hint(&err, "'hdt logs SITE/WORKER' shows what each waits for");
        hdt_recovery_begin(gw, job, &err);
    }
}

static void job_tick(struct hdt_gateway *gw, struct hdt_gwjob *job)
{
    int64_t now_us = hdt_clock_now_us();

    if (job->state == HDT_GWJOB_RECOVERING) {
        hdt_recovery_tick(gw, job);
        return;
    }
    job_check_workers(gw, job, now_us);
    job_check_sites(gw, job, now_us);
    job_check_deadline(gw, job, now_us);
    hdt_gwjob_orders_give(gw, job);
}

void hdt_coordinator_tick(struct hdt_gateway *gw)
{
    struct hdt_gwjob *job;

    hdt_planner_tick(gw);
    LL_FOREACH(gw->jobs, job)
    {
        if (!hdt_gwjob_is_over(job)) {
            job_tick(gw, job);
        }
        hdt_gwjob_followers_tick(gw, job);
    }
    hdt_gwjobs_prune(gw);
}
