/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A loss and what follows. A rank's state (weights, moments, position in its flows) is gone with
 * its process, and nobody else has it; what all have in common is the last complete checkpoint. So
 * one loss ends the epoch for all: workers drop it, member gateways forget its flows, and the next
 * epoch begins from the checkpoint. The bits of a run are a function of the job, so a job that went
 * through this ends with the weights of one that did not. Going on with the survivors' state in
 * place was refused: it would need a copy of every rank's state elsewhere, of the same step.
 *
 * A failure that comes back every time must end, too: restarts in a row without one new step or
 * checkpoint are counted, and each waits longer than the one before.
 */
#include "config.h"

#include "gateway/recovery.h"
#include "gateway/replan.h"
#include "gateway/shrink.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/recorder.h"
#include "src/core/msg.h"

#include <stdlib.h>
#include <string.h>

#define BACKOFF_MIN_US (1 * HDT_US_PER_S) /* before the second restart in a row; doubles */
#define BACKOFF_MAX_US (30 * HDT_US_PER_S)
#define SAY_EVERY_US   (10 * HDT_US_PER_S)
#define FREE_SOON_US   (5 * HDT_US_PER_S) /* who drops an epoch in this time is not named */

/* ---- which failures a new epoch can mend ---- */

static bool failure_passes(enum hdt_status status)
{
    switch (status) {
    case HDT_ERANK:
    case HDT_EPEER:
    case HDT_ELINK:
    case HDT_ECRC:
    case HDT_ETIMEDOUT:
    case HDT_EIO:
    case HDT_ECANCELED: /* a worker that was told to end */
        return true;
    default:
        return false;
    }
}

void hdt_recovery_rank_failed(struct hdt_gateway *gw, struct hdt_gwjob *job, const char *from,
                              const struct hdt_error *why)
{
    hdt_log_warn("job %ld: %s cannot go on with epoch %u: %s", (long)job->number, from, job->epoch,
                 why->msg);
    if (failure_passes(why->status)) {
        hdt_recovery_begin(gw, job, why);
    } else {
        hdt_gwjob_fail(gw, job, why);
    }
}

void hdt_recovery_rank_refused(struct hdt_gateway *gw, struct hdt_gwjob *job,
                               const struct hdt_error *why)
{
    /* What a first preparation meets is a mistake of its user more often than a passing state. */
    bool passes = job->epoch > 1 ? failure_passes(why->status) || why->status == HDT_EEXIST
                                 : failure_passes(why->status) && why->status != HDT_EIO;

    if (passes) {
        hdt_recovery_begin(gw, job, why);
    } else {
        hdt_gwjob_fail(gw, job, why);
    }
}

/* All steps are done and the last checkpoint is complete: what is missing of this rank is its
 * trace. */
static bool job_ends_without(const struct hdt_gwjob *job)
{
    return job->state == HDT_GWJOB_FINISHING && job->root_done && job->checkpoint &&
           job->checkpoint_step == job->step;
}

void hdt_recovery_rank_lost(struct hdt_gateway *gw, struct hdt_gwjob *job, size_t rank,
                            const struct hdt_error *why)
{
    char address[HDT_ADDRESS_CAP];
    struct hdt_error err = {0};

    hdt_gwjob_rank_address(job, rank, address);
    if (job_ends_without(job)) {
        hdt_log_warn("job %ld: worker %s was lost after the last step: its trace is missing",
                     (long)job->number, address);
        hdt_gwjob_rank_done(gw, job, rank);
        return;
    }
    hdt_error_set(&err, HDT_ERANK, "worker %s is lost: %s", address, why->msg);
    hdt_error_hint(&err, "start hdt-worker there; the job goes on by itself");
    hdt_recovery_begin(gw, job, &err);
}

/* ---- the end of an epoch ---- */

/* Said to those who wait for a job that will not go on. */
static void fail_for_good(struct hdt_gateway *gw, struct hdt_gwjob *job,
                          const struct hdt_error *why, const char *reason)
{
    struct hdt_error err = *why;

    if (job->checkpoint && job->checkpoint[0]) {
        hdt_error_hint(&err, "%s; 'hdt submit --resume %s' goes on after step %ld", reason,
                       job->checkpoint, (long)job->checkpoint_step);
    } else {
        hdt_error_hint(&err, "%s; it has no checkpoint (checkpoint.every in the job makes them)",
                       reason);
    }
    hdt_gwjob_fail(gw, job, &err);
}

/* May the job go on? If not, it has ended. */
static bool may_restart(struct hdt_gateway *gw, struct hdt_gwjob *job, const struct hdt_error *why)
{
    char reason[96];

    if (job->user_stopped) {
        fail_for_good(gw, job, why, "the job was asked to stop and ends here");
        return false;
    }
    if (job->conf.recovery.on_loss == HDT_ON_LOSS_FAIL) {
        fail_for_good(gw, job, why, "recovery.on_loss is fail");
        return false;
    }
    if (job->n_attempts >= job->conf.recovery.attempts) {
        snprintf(reason, sizeof(reason), "%d restarts in a row brought no new step",
                 job->n_attempts);
        fail_for_good(gw, job, why, reason);
        return false;
    }
    return true;
}

static int64_t backoff_us(int n_attempts)
{
    int64_t us = n_attempts > 1 ? BACKOFF_MIN_US : 0;

    for (int i = 2; i < n_attempts && us < BACKOFF_MAX_US; i++) {
        us *= 2;
    }
    return us < BACKOFF_MAX_US ? us : BACKOFF_MAX_US;
}

static void epoch_next(struct hdt_gwjob *job)
{
    job->epoch++;
    job->root_done = false;
    job->n_ranks_done = 0;
    job->weights_digest[0] = '\0';
    json_array_clear(job->traces);
    json_array_clear(job->traces_from);
    json_array_clear(job->rank_ends);
    memset(job->rank_is_done, 0, job->plan.n_ranks * sizeof(*job->rank_is_done));
    memset(job->by_rank, 0, job->plan.n_ranks * sizeof(*job->by_rank));
}

void hdt_recovery_begin(struct hdt_gateway *gw, struct hdt_gwjob *job, const struct hdt_error *why)
{
    if (hdt_gwjob_is_over(job) || job->state == HDT_GWJOB_RECOVERING ||
        !may_restart(gw, job, why)) {
        return;
    }
    hdt_log_failure(HDT_LOG_WARN, why);
    hdt_recorder_dump("job-recovers");
    hdt_gwjob_tell_ranks(gw, job, "stop", "abort");
    hdt_gwjob_tell_sites(gw, job, "job.close");
    job->error = *why;
    job->lost_step = job->step;
    job->lost_us = hdt_clock_now_us();
    hdt_replan_reset(job);
    epoch_next(job);
    job->n_attempts++;
    hdt_shrink_judge(gw, job);
    job->not_before_us = job->lost_us + backoff_us(job->n_attempts);
    hdt_gwjob_set_state(gw, job, HDT_GWJOB_RECOVERING);
    hdt_recovery_go(gw, job);
}

void hdt_recovery_move(struct hdt_gateway *gw, struct hdt_gwjob *job)
{
    struct hdt_gwjob_replan *replan = &job->replan;

    hdt_gwjob_tell_ranks(gw, job, "release", NULL);
    hdt_gwjob_tell_sites(gw, job, "job.close");
    memset(&job->error, 0, sizeof(job->error));
    job->lost_step = job->step;
    job->lost_us = hdt_clock_now_us();
    job->not_before_us = job->lost_us;
    memset(job->shrink.why_not, 0, sizeof(job->shrink.why_not));
    epoch_next(job);
    if (replan->is_wanted) {
        hdt_gwjob_take_plan(gw, job, &replan->plan, replan->plan_cluster, &replan->said);
        replan->learned = true; /* it is made of what the run showed, not of profiles */
    }
    hdt_replan_reset(job);
    hdt_gwjob_set_state(gw, job, HDT_GWJOB_RECOVERING);
    hdt_recovery_go(gw, job);
}

/* ---- the way back ---- */

bool hdt_recovery_rank_is_connected(struct hdt_gateway *gw, const struct hdt_gwjob *job,
                                    size_t rank)
{
    const struct hdt_plan_rank *r = &job->plan.ranks[rank];
    const struct hdt_gwworker *worker = hdt_federation_worker(gw, r->site, r->worker);

    return worker && worker->up && hdt_federation_site_is_up(gw, r->site);
}

/* It is connected, and no other job has it. */
static bool rank_is_ours(struct hdt_gateway *gw, const struct hdt_gwjob *job, size_t rank)
{
    const struct hdt_plan_rank *r = &job->plan.ranks[rank];

    return hdt_recovery_rank_is_connected(gw, job, rank) &&
           !hdt_coordinator_worker_serves(gw, r->site, r->worker, job);
}

bool hdt_recovery_rank_is_there(struct hdt_gateway *gw, const struct hdt_gwjob *job, size_t rank)
{
    return rank_is_ours(gw, job, rank) && job->by_rank[rank].is_free;
}

void hdt_recovery_go(struct hdt_gateway *gw, struct hdt_gwjob *job)
{
    hdt_gwjob_orders_give(gw, job);
    if (job->state != HDT_GWJOB_RECOVERING || hdt_clock_now_us() < job->not_before_us) {
        return;
    }
    for (size_t rank = 0; rank < job->plan.n_ranks; rank++) {
        if (!hdt_recovery_rank_is_there(gw, job, rank)) {
            return;
        }
    }
    hdt_gwjob_set_state(gw, job, HDT_GWJOB_PREPARING);
    hdt_gwjob_assign(gw, job);
}

static int64_t give_up_us(const struct hdt_gwjob *job)
{
    return job->lost_us + job->conf.recovery.give_up * HDT_US_PER_MS;
}

/* Until then it is waited: without those who are away afterwards, or not at all. */
static int64_t until_us(const struct hdt_gwjob *job)
{
    const int64_t shrink_us = hdt_shrink_due_us(job), last_us = give_up_us(job);

    return shrink_us > 0 && shrink_us < last_us ? shrink_us : last_us;
}

static int64_t seconds_until(int64_t moment_us)
{
    int64_t left_us = moment_us - hdt_clock_now_us();

    return left_us > 0 ? (left_us + HDT_US_PER_S - 1) / HDT_US_PER_S : 0;
}

static void names_add(json_t *names, const struct hdt_gwjob *job, size_t rank)
{
    char address[HDT_ADDRESS_CAP];

    hdt_gwjob_rank_address(job, rank, address);
    json_array_append_new(names, json_string(address));
}

static json_t *waits_for(struct hdt_gateway *gw, const struct hdt_gwjob *job)
{
    json_t *names = json_array();

    for (size_t rank = 0; rank < job->plan.n_ranks; rank++) {
        if (!rank_is_ours(gw, job, rank)) {
            names_add(names, job, rank);
        }
    }
    return names;
}

/* Who is there and still holds the epoch before; that takes a moment, and is news only when it
 * takes longer. */
static json_t *waits_until_free(struct hdt_gateway *gw, const struct hdt_gwjob *job)
{
    const bool is_late = hdt_clock_now_us() - job->lost_us >= FREE_SOON_US;
    json_t *names = json_array();

    for (size_t rank = 0; rank < job->plan.n_ranks && is_late; rank++) {
        if (rank_is_ours(gw, job, rank) && !job->by_rank[rank].is_free) {
            names_add(names, job, rank);
        }
    }
    return names;
}

void hdt_recovery_describe(struct hdt_gateway *gw, const struct hdt_gwjob *job, json_t *body)
{
    json_object_update_new(
        body, json_pack("{s:o, s:o, s:I, s:s, s:I}", "waits_for", waits_for(gw, job),
                        "waits_until_free", waits_until_free(gw, job), "resume_step",
                        (json_int_t)hdt_gwjob_resume_step(job), "resume", hdt_gwjob_resume(job),
                        "until_s", (json_int_t)seconds_until(until_us(job))));
    if (job->error.status != HDT_OK) {
        json_object_set_new(body, "error", hdt_msg_error_body(&job->error));
    } else {
        json_object_set_new(body, "reason", json_string("replan"));
    }
    if (job->shrink.why_not[0]) {
        json_object_set_new(body, "why_not_without", json_string(job->shrink.why_not));
    }
}

static void recovery_give_up(struct hdt_gateway *gw, struct hdt_gwjob *job)
{
    struct hdt_error why = job->error;
    json_t *names;

    if (why.status == HDT_OK) { /* it moved to another plan */
        names = waits_for(gw, job);
        hdt_error_set(&why, HDT_ERANK, "job %ld: workers of its next plan are not there, as %s",
                      (long)job->number,
                      json_array_size(names) ? json_string_value(json_array_get(names, 0)) : "?");
        json_decref(names);
    }
    fail_for_good(gw, job, &why, "recovery.give_up is over");
}

void hdt_recovery_tick(struct hdt_gateway *gw, struct hdt_gwjob *job)
{
    const int64_t now_us = hdt_clock_now_us();

    hdt_recovery_go(gw, job);
    if (job->state != HDT_GWJOB_RECOVERING) {
        return;
    }
    if (seconds_until(give_up_us(job)) == 0) {
        recovery_give_up(gw, job);
        return;
    }
    hdt_shrink_tick(gw, job);
    if (job->state == HDT_GWJOB_RECOVERING && now_us - job->said_us >= SAY_EVERY_US) {
        hdt_gwjob_say_state(gw, job);
    }
}

void hdt_recovery_done(struct hdt_gateway *gw, struct hdt_gwjob *job)
{
    json_t *line;
    double lost_s = (double)(hdt_clock_now_us() - job->lost_us) / 1e6;

    if (job->error.status == HDT_OK) {
        job->replan.restart_s = lost_s;
    }
    if (job->lost_step > job->start_step) {
        lost_s += (double)(job->lost_step - job->start_step) * job->step_s;
    }
    hdt_log_info("job %ld: epoch %u goes on after step %ld, %.1f s are lost", (long)job->number,
                 job->epoch, (long)job->start_step, lost_s);
    line = json_pack("{s:s, s:I, s:I, s:s, s:f, s:f}", "event", "restart", "epoch",
                     (json_int_t)job->epoch, "from_step", (json_int_t)job->start_step, "reason",
                     job->error.status != HDT_OK ? job->error.msg : "replan", "seconds_lost",
                     lost_s, "time", (double)hdt_clock_wall_us() / 1e6);
    hdt_gwjob_metrics_note(job, json_incref(line));
    hdt_gwjob_event(gw, job, "restart", line);
}
