/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a coordinator watches in its jobs: workers that leave, and deadlines. Who is away for a
 * moment costs nothing; who stays away, or says nothing for too long, ends the job with a reason.
 */
#include "config.h"

#include "gateway/coordinator.h"
#include "gateway/member.h"
#include "src/base/clock.h"
#include "src/base/log.h"

#include <stdio.h>
#include <string.h>
#include <utlist.h>

#define FINISH_TIMEOUT_S  600      /* the last checkpoint may still be on its way */
#define WORKER_GRACE_US   3000000  /* a worker whose connection was lost may come back */
#define WORKER_MISSING_US 15000000 /* one that its restarted gateway has not seen yet */
#define TICKS_PER_LOOK    16

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

bool hdt_coordinator_worker_is_busy(struct hdt_gateway *gw, const char *site, const char *name)
{
    struct hdt_gwjob *job;

    LL_FOREACH(gw->jobs, job)
    {
        if (!hdt_gwjob_is_over(job) && hdt_plan_has_worker(&job->plan, site, name)) {
            return true;
        }
    }
    return hdt_member_has_worker(gw, site, name) || worker_is_busy_elsewhere(gw, site, name);
}

/* Has it work left? Who has reported the end of all its ranks may go. */
static bool job_needs_worker(const struct hdt_gwjob *job, const char *address)
{
    for (size_t rank = 0; rank < job->plan.n_ranks; rank++) {
        if (!job->rank_is_done[rank] && hdt_gwjob_rank_is_of(job, (int64_t)rank, address)) {
            return true;
        }
    }
    return false;
}

void hdt_coordinator_worker_down(struct hdt_gateway *gw, const char *site, const char *name,
                                 const struct hdt_error *why)
{
    char address[HDT_ADDRESS_CAP];
    struct hdt_gwjob *job;

    snprintf(address, sizeof(address), "%s/%s", site, name);
    LL_FOREACH(gw->jobs, job)
    {
        if (hdt_gwjob_is_over(job) || job->lost_since_us || !job_needs_worker(job, address)) {
            continue;
        }
        job->lost_since_us = hdt_clock_now_us();
        snprintf(job->lost_worker, sizeof(job->lost_worker), "%s", address);
        hdt_error_set(&job->error, HDT_ERANK, "worker %s is lost: %s", address, why->msg);
        hdt_error_hint(&job->error, "see its log and start it again; 'hdt submit --resume' goes "
                                    "on from the last checkpoint");
    }
}

/* Workers that are away for this long and that nobody has told of: they left while another one was
 * waited for, or while their gateway was away. */
static void job_look_for_lost(struct hdt_gateway *gw, struct hdt_gwjob *job, int64_t away_us)
{
    const struct hdt_error why = {.status = HDT_ERANK, .msg = "it has left"};
    const int64_t now_us = hdt_clock_now_us();

    for (size_t rank = 0; rank < job->plan.n_ranks && !job->lost_since_us; rank++) {
        const struct hdt_plan_rank *r = &job->plan.ranks[rank];
        const struct hdt_gwworker *worker = hdt_federation_worker(gw, r->site, r->worker);

        if (worker && !worker->up && now_us - worker->since_us >= away_us) {
            hdt_coordinator_worker_down(gw, r->site, r->worker, &why);
        }
    }
}

static void job_check_lost(struct hdt_gateway *gw, struct hdt_gwjob *job, int64_t now_us)
{
    char site[HDT_NAME_CAP], name[HDT_NAME_CAP];
    struct hdt_gwworker *worker = NULL;
    struct hdt_error why = job->error;

    if (hdt_address_split(job->lost_worker, site, name)) {
        worker = hdt_federation_worker(gw, site, name);
    }
    if (worker && worker->up && !worker->restarted) {
        hdt_log_info("job %ld: worker %s is back", (long)job->number, job->lost_worker);
        job->lost_since_us = 0;
        job_look_for_lost(gw, job, 0);
    } else if (now_us - job->lost_since_us > WORKER_GRACE_US || (worker && worker->restarted)) {
        hdt_gwjob_fail(gw, job, &why);
    }
}

/* ---- deadlines ---- */

/* While stages are built only the answers tell of progress, and those of a site that is away for
 * longer than the job bears do not come. */
static void job_check_sites(struct hdt_gateway *gw, struct hdt_gwjob *job, int64_t now_us)
{
    struct hdt_error err;

    for (size_t rank = 0; rank < job->plan.n_ranks && !hdt_gwjob_is_over(job); rank++) {
        const struct hdt_gwsite *site = hdt_federation_site(gw, job->plan.ranks[rank].site);

        if (site && !site->up &&
            now_us - site->since_us > job->conf.progress_timeout * HDT_US_PER_MS) {
            hdt_error_set(&err, HDT_EPEER, "job %ld: site %s is not connected for %.0f s: %s",
                          (long)job->number, site->name, (double)(now_us - site->since_us) / 1e6,
                          site->why_down);
            hdt_gwjob_fail(gw, job, &err);
        }
    }
}

static void job_check_deadline(struct hdt_gateway *gw, struct hdt_gwjob *job, int64_t now_us)
{
    int64_t silent_us = now_us - job->last_report_us;
    struct hdt_error err;

    if (job->state == HDT_GWJOB_PREPARING) {
        job_check_sites(gw, job, now_us);
        return;
    }
    if (job->state == HDT_GWJOB_FINISHING) {
        if (now_us - job->state_since_us > FINISH_TIMEOUT_S * HDT_US_PER_S) {
            hdt_error_set(&err, HDT_ETIMEDOUT,
                          "job %ld: %zu of %zu workers did not finish within %d s",
                          (long)job->number, job->plan.n_ranks - job->n_ranks_done,
                          job->plan.n_ranks, FINISH_TIMEOUT_S);
            hdt_gwjob_fail(gw, job, &err);
        }
        return;
    }
    /* The workers watch progress themselves and say what they wait for; this is the back stop. */
    if ((job->state == HDT_GWJOB_RUNNING || job->state == HDT_GWJOB_STOPPING) &&
        silent_us > 3 * job->conf.progress_timeout * HDT_US_PER_MS) {
        hdt_error_set(&err, HDT_ETIMEDOUT, "job %ld: no report from its workers for %.0f s",
                      (long)job->number, (double)silent_us / 1e6);
        hdt_error_hint(&err, "'hdt logs SITE/WORKER' shows what each waits for");
        hdt_gwjob_fail(gw, job, &err);
    }
}

void hdt_coordinator_tick(struct hdt_gateway *gw)
{
    int64_t now_us = hdt_clock_now_us();
    struct hdt_gwjob *job;

    LL_FOREACH(gw->jobs, job)
    {
        if (!hdt_gwjob_is_over(job) && job->lost_since_us) {
            job_check_lost(gw, job, now_us);
        }
        if (!hdt_gwjob_is_over(job)) {
            job_check_deadline(gw, job, now_us);
        }
        if (!hdt_gwjob_is_over(job) && gw->n_ticks % TICKS_PER_LOOK == 0) {
            job_look_for_lost(gw, job, WORKER_MISSING_US);
        }
    }
    hdt_gwjobs_prune(gw);
}
