/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Going on without a worker that is lost for good. The workers that are there are measured for the
 * job as for a person who plans (it stands still, so that this costs it nothing), the search runs
 * beside the main loop, and its plan takes the place of the old one before the next epoch begins.
 * Where the pipeline is cut does not touch the bits of a run, so a job that went through this ends
 * with the weights of one that did not.
 *
 * Whoever comes back while a plan is looked for wins: the epoch begins with the plan that is there.
 * A plan that cannot be made (plan.cut names the worker, the model does not fit, nobody has the
 * data) is said once and looked for again from time to time: another worker may have joined.
 */
#include "config.h"

#include "gateway/planner.h"
#include "gateway/recovery.h"
#include "gateway/shrink.h"
#include "src/base/clock.h"
#include "src/base/log.h"

#include <stdio.h>
#include <string.h>

#define AGAIN_MIN_US  (30 * HDT_US_PER_S)
#define AGAIN_SOON_US (2 * HDT_US_PER_S)
#define RELEASE_WAITS 5 /* times recovery.wait */

int64_t hdt_shrink_due_us(const struct hdt_gwjob *job)
{
    if (job->conf.recovery.on_loss != HDT_ON_LOSS_SHRINK || job->shrink.why_not[0]) {
        return 0;
    }
    return job->lost_us + job->conf.recovery.wait * HDT_US_PER_MS;
}

static bool cut_names(const struct hdt_gwjob *job, const char *address)
{
    const size_t len = strlen(address);

    for (size_t i = 0; i < job->conf.plan.cut.n; i++) {
        const char *item = job->conf.plan.cut.items[i];

        if (strncmp(item, address, len) == 0 && item[len] == '=') {
            return true;
        }
    }
    return false;
}

void hdt_shrink_judge(struct hdt_gateway *gw, struct hdt_gwjob *job)
{
    char address[HDT_ADDRESS_CAP];

    memset(job->shrink.why_not, 0, sizeof(job->shrink.why_not));
    job->shrink.again_us = 0;
    for (size_t rank = 0; rank < job->plan.n_ranks && !job->shrink.why_not[0]; rank++) {
        hdt_gwjob_rank_address(job, rank, address);
        if (hdt_recovery_rank_is_connected(gw, job, rank)) {
            continue;
        }
        if (job->conf.recovery.on_loss == HDT_ON_LOSS_WAIT) {
            snprintf(job->shrink.why_not, sizeof(job->shrink.why_not), "recovery.on_loss is wait");
        } else if (cut_names(job, address)) {
            snprintf(job->shrink.why_not, sizeof(job->shrink.why_not), "plan.cut names %s",
                     address);
        }
    }
}

/* ---- who is there ---- */

static bool is_of_site(const struct hdt_cluster *cluster, const char *site)
{
    for (size_t i = 0; i < cluster->n_sites; i++) {
        if (strcmp(cluster->sites[i].name, site) == 0) {
            return true;
        }
    }
    return false;
}

/* A rank whose worker has not dropped the epoch before may still compute for it. */
static bool is_held(struct hdt_gateway *gw, const struct hdt_gwjob *job,
                    const struct hdt_cluster_worker *w)
{
    for (size_t rank = 0; rank < job->plan.n_ranks; rank++) {
        const struct hdt_plan_rank *r = &job->plan.ranks[rank];

        if (strcmp(r->site, w->site) == 0 && strcmp(r->worker, w->name) == 0) {
            return !hdt_recovery_rank_is_there(gw, job, rank);
        }
    }
    return false;
}

/* Who cannot be counted on is taken out by being busy. A site of plan.sites that is away is no
 * mistake of the job's: it is a site without workers. */
static void cluster_prepare(struct hdt_gateway *gw, const struct hdt_gwjob *job,
                            struct hdt_cluster *cluster)
{
    for (size_t i = 0; i < cluster->n_workers; i++) {
        struct hdt_cluster_worker *w = &cluster->workers[i];

        w->busy = w->busy || !w->profile.valid || is_held(gw, job, w);
    }
    for (size_t i = 0; i < job->conf.plan.sites.n; i++) {
        if (!is_of_site(cluster, job->conf.plan.sites.items[i])) {
            hdt_cluster_add_site(cluster, job->conf.plan.sites.items[i]);
        }
    }
}

/* ---- the plan ---- */

/* Does the job still wait as it did when this was asked for? */
static bool shrink_counts(const struct hdt_gwjob *job)
{
    return job->state == HDT_GWJOB_RECOVERING && job->epoch == job->shrink.epoch;
}

static void shrink_end(struct hdt_gwjob *job)
{
    job->shrink.is_asked = false;
    job->n_requests--;
}

/* Those who are away: "b/w0, b/w1". */
static void away_names(struct hdt_gateway *gw, const struct hdt_gwjob *job, char *out, size_t cap)
{
    char address[HDT_ADDRESS_CAP];
    size_t len = 0;

    out[0] = '\0';
    for (size_t rank = 0; rank < job->plan.n_ranks && len + HDT_ADDRESS_CAP + 2 < cap; rank++) {
        if (!hdt_recovery_rank_is_there(gw, job, rank)) {
            hdt_gwjob_rank_address(job, rank, address);
            len += (size_t)snprintf(out + len, cap - len, "%s%s", len ? ", " : "", address);
        }
    }
}

static void plan_names(const struct hdt_plan *plan, char *out, size_t cap)
{
    size_t len = 0;

    out[0] = '\0';
    for (size_t rank = 0; rank < plan->n_ranks && len + HDT_ADDRESS_CAP + 2 < cap; rank++) {
        len += (size_t)snprintf(out + len, cap - len, "%s%s/%s", len ? ", " : "",
                                plan->ranks[rank].site, plan->ranks[rank].worker);
    }
}

static void shrink_refuse(struct hdt_gateway *gw, struct hdt_gwjob *job,
                          const struct hdt_error *why)
{
    char names[256];
    bool is_new = strcmp(job->shrink.why_not, why->msg) != 0;

    away_names(gw, job, names, sizeof(names));
    snprintf(job->shrink.why_not, sizeof(job->shrink.why_not), "%s", why->msg);
    if (is_new) {
        hdt_log_warn("job %ld cannot go on without %s and waits: %s", (long)job->number, names,
                     why->msg);
        hdt_gwjob_say_state(gw, job);
    }
}

static void shrink_take(struct hdt_gateway *gw, struct hdt_gwjob *job,
                        struct hdt_planner_answer *answer)
{
    struct hdt_gwreplan replan = {
        .cause = "loss", .from_step_s = job->plan.step_s, .to_step_s = answer->result.plan.step_s};
    struct hdt_plan *plan = &answer->result.plan;
    char away[256], on[256];

    away_names(gw, job, away, sizeof(away));
    plan_names(plan, on, sizeof(on));
    snprintf(replan.reason, sizeof(replan.reason),
             "%s did not come back in %.0f s: %lld blocks on %s; %.3g -> %.3g s a step predicted",
             away, (double)(hdt_clock_now_us() - job->lost_us) / 1e6,
             (long long)plan->stages[plan->n_stages - 1].unit_end - 2, on, replan.from_step_s,
             replan.to_step_s);
    hdt_gwjob_take_plan(gw, job, plan, answer->cluster, &replan);
    job->replan.learned = false;
    hdt_gwjob_say_state(gw, job);
    hdt_recovery_go(gw, job);
}

static void shrink_planned(struct hdt_gateway *gw, void *user, struct hdt_planner_answer *answer)
{
    struct hdt_gwjob *job = user;
    bool counts = shrink_counts(job);

    shrink_end(job);
    if (counts && answer->err.status != HDT_OK) {
        shrink_refuse(gw, job, &answer->err);
    } else if (counts) {
        shrink_take(gw, job, answer);
    }
}

static void shrink_surveyed(struct hdt_gateway *gw, void *user, struct hdt_cluster *cluster)
{
    struct hdt_gwjob *job = user;
    struct hdt_error err = {0};

    if (!shrink_counts(job)) {
        hdt_cluster_release(cluster);
        shrink_end(job);
        return;
    }
    cluster_prepare(gw, job, cluster);
    if (hdt_planner_ask(gw, job, cluster, NULL, shrink_planned, job, &err) != HDT_OK) {
        shrink_end(job);
        shrink_refuse(gw, job, &err);
    }
}

/* ---- when ---- */

static bool is_due(struct hdt_gateway *gw, const struct hdt_gwjob *job)
{
    const int64_t now_us = hdt_clock_now_us();
    const int64_t wait_us = job->conf.recovery.wait * HDT_US_PER_MS;
    /* Who is connected lets go of a large checkpoint first: it is waited for longer. */
    const bool is_patient = now_us < job->lost_us + RELEASE_WAITS * wait_us;

    if (job->conf.recovery.on_loss != HDT_ON_LOSS_SHRINK || job->shrink.is_asked ||
        now_us < job->shrink.again_us || now_us < job->lost_us + wait_us) {
        return false;
    }
    for (size_t rank = 0; rank < job->plan.n_ranks; rank++) {
        if (is_patient ? !hdt_recovery_rank_is_connected(gw, job, rank)
                       : !hdt_recovery_rank_is_there(gw, job, rank)) {
            return true;
        }
    }
    return false;
}

void hdt_shrink_tick(struct hdt_gateway *gw, struct hdt_gwjob *job)
{
    const int64_t wait_us = job->conf.recovery.wait * HDT_US_PER_MS;
    const struct hdt_survey_request request = {.job = job->conf_json,
                                               .model = job->model_json,
                                               .but = job,
                                               .done = shrink_surveyed,
                                               .user = job};
    struct hdt_error err = {0};

    if (!is_due(gw, job)) {
        return;
    }
    job->shrink.is_asked = true;
    job->shrink.epoch = job->epoch;
    job->shrink.again_us = hdt_clock_now_us() + (wait_us > AGAIN_MIN_US ? wait_us : AGAIN_MIN_US);
    job->n_requests++;
    if (hdt_survey_make(gw, &request, &err) != HDT_OK) {
        shrink_end(job); /* somebody else's is under way */
        job->shrink.again_us = hdt_clock_now_us() + AGAIN_SOON_US;
        return;
    }
    hdt_log_info("job %ld: looking for a plan without those who are away", (long)job->number);
}
