/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a job at the gateway it was submitted to: tell the sites the plan, let the workers
 * build their stages, start, follow, end. Workers report to us by address through their gateways;
 * what they need of each other goes over flows and never through here, so a coordinator that is
 * away for a while costs the job nothing.
 */
#include "config.h"

#include "gateway/journal.h"
#include "gateway/recovery.h"
#include "gateway/replan.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/recorder.h"
#include "src/core/msg.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

static const char *const state_names[] = {"preparing",  "running", "stopping", "finishing",
                                          "recovering", "done",    "stopped",  "failed"};

const char *hdt_gwjob_state_name(enum hdt_gwjob_state state)
{
    return state_names[state];
}

bool hdt_gwjob_is_over(const struct hdt_gwjob *job)
{
    return job->state >= HDT_GWJOB_DONE;
}

bool hdt_gwjob_is_under_way(const struct hdt_gwjob *job)
{
    return job->state == HDT_GWJOB_RUNNING || job->state == HDT_GWJOB_STOPPING ||
           job->state == HDT_GWJOB_FINISHING;
}

const char *hdt_gwjob_resume(const struct hdt_gwjob *job)
{
    return job->checkpoint && job->checkpoint[0] ? job->checkpoint : job->resume;
}

int64_t hdt_gwjob_resume_step(const struct hdt_gwjob *job)
{
    if (job->checkpoint && job->checkpoint[0]) {
        return job->checkpoint_step;
    }
    return job->first_step > 0 ? job->first_step : 0;
}

struct hdt_gwjob *hdt_gwjob_find(struct hdt_gateway *gw, int64_t number)
{
    struct hdt_gwjob *job;

    LL_SEARCH_SCALAR(gw->jobs, job, job, number);
    return job;
}

bool hdt_gwjob_rank_is_of(const struct hdt_gwjob *job, int64_t rank, const char *address)
{
    char own[HDT_ADDRESS_CAP];

    if (rank < 0 || (uint64_t)rank >= job->plan.n_ranks) {
        return false;
    }
    hdt_gwjob_rank_address(job, (size_t)rank, own);
    return strcmp(own, address) == 0;
}

bool hdt_gwjob_has_member(const struct hdt_gwjob *job, const char *address)
{
    const bool is_site = strchr(address, '/') == NULL;

    for (size_t rank = 0; rank < job->plan.n_ranks; rank++) {
        if (is_site ? strcmp(job->plan.ranks[rank].site, address) == 0
                    : hdt_gwjob_rank_is_of(job, (int64_t)rank, address)) {
            return true;
        }
    }
    return false;
}

/* ---- telling others ---- */

json_t *hdt_gwjob_state_body(struct hdt_gateway *gw, const struct hdt_gwjob *job)
{
    json_t *body = json_pack("{s:s, s:I}", "state", hdt_gwjob_state_name(job->state), "epoch",
                             (json_int_t)job->epoch);

    if (job->state == HDT_GWJOB_RECOVERING) {
        hdt_recovery_describe(gw, job, body);
    } else if (job->state == HDT_GWJOB_PREPARING) {
        json_object_set_new(body, "start_step", json_integer(hdt_gwjob_resume_step(job)));
    } else if (job->state == HDT_GWJOB_RUNNING) {
        json_object_set_new(body, "start_step", json_integer(job->start_step));
    } else if (job->error.status != HDT_OK &&
               (job->state == HDT_GWJOB_FAILED || job->state == HDT_GWJOB_STOPPED)) {
        json_object_set_new(body, "error", hdt_msg_error_body(&job->error));
    }
    if (job->user_stopped && job->stopped_by[0]) {
        json_object_set_new(body, "stopped_by", json_string(job->stopped_by));
    }
    return body;
}

void hdt_gwjob_say_state(struct hdt_gateway *gw, struct hdt_gwjob *job)
{
    job->said_us = hdt_clock_now_us();
    hdt_gwjob_event(gw, job, "state", hdt_gwjob_state_body(gw, job));
}

void hdt_gwjob_set_state(struct hdt_gateway *gw, struct hdt_gwjob *job, enum hdt_gwjob_state state)
{
    HDT_RECORD(HDT_REC_STATE, .n = {job->job}, .text = {hdt_gwjob_state_name(state)});
    job->state = state;
    job->state_since_us = hdt_clock_now_us();
    hdt_log_info("job %ld (%s): %s", (long)job->number, job->name, hdt_gwjob_state_name(state));
    hdt_gwjob_save(gw, job);
    hdt_gwjob_say_state(gw, job);
}

static void job_release(struct hdt_gateway *gw, struct hdt_gwjob *job)
{
    hdt_gwjob_tell_ranks(gw, job, "release", NULL);
    hdt_gwjob_tell_sites(gw, job, "job.close");
    hdt_journal_close(job->metrics);
    job->metrics = NULL;
}

void hdt_gwjob_fail(struct hdt_gateway *gw, struct hdt_gwjob *job, const struct hdt_error *why)
{
    if (hdt_gwjob_is_over(job)) {
        return;
    }
    job->error = *why;
    hdt_recorder_dump("job-failed");
    hdt_log_failure(HDT_LOG_ERROR, why);
    hdt_gwjob_tell_ranks(gw, job, "stop", "abort");
    job_release(gw, job);
    hdt_gwjob_set_state(gw, job, job->user_stopped ? HDT_GWJOB_STOPPED : HDT_GWJOB_FAILED);
}

/* ---- the end ---- */

json_t *hdt_gwjob_done_body(struct hdt_gateway *gw, const struct hdt_gwjob *job)
{
    char tls[64] = "";
    struct hdt_peer_stats peer;
    int64_t raw, sent;
    json_t *body;

    if (hdt_dataplane_peer_stats(gw->dp, &peer, 1) > 0) {
        snprintf(tls, sizeof(tls), "%s", peer.tls);
    }
    hdt_gwjob_wan_totals(job, &raw, &sent);
    body =
        json_pack("{s:s, s:s, s:I, s:I, s:I, s:s, s:s, s:O}", "weights_digest", job->weights_digest,
                  "checkpoint", job->checkpoint ? job->checkpoint : "", "steps",
                  (json_int_t)job->step, "wan_bytes_raw", (json_int_t)raw, "wan_bytes_sent",
                  (json_int_t)sent, "run_dir", job->run_dir, "tls", tls, "traces", job->traces);
    json_object_set(body, "traces_from", job->traces_from);
    if (json_array_size(job->rank_ends) ==
        job->plan.n_ranks) { /* else what they add up to is wrong */
        json_object_set(body, "ranks", job->rank_ends);
    }
    if (job->has_val_loss) {
        json_object_set_new(body, "val_loss", json_real(job->val_loss));
    }
    return body;
}

static void job_end(struct hdt_gateway *gw, struct hdt_gwjob *job)
{
    json_t *body = hdt_gwjob_done_body(gw, job);

    hdt_gwjob_write_plan(job);
    job_release(gw, job);
    hdt_gwjob_event(gw, job, "done", body);
    hdt_gwjob_set_state(gw, job, job->user_stopped ? HDT_GWJOB_STOPPED : HDT_GWJOB_DONE);
}

static void collect_done(struct hdt_gateway *gw, void *user, const json_t *reply,
                         const struct hdt_error *why)
{
    struct hdt_gwjob *job = user;

    job->n_requests--;
    if (reply) {
        hdt_gwjob_take_wan(gw, job, hdt_msg_from(reply), hdt_msg_body(reply));
    } else {
        hdt_log_warn("job %ld: WAN figures are incomplete: %s", (long)job->number, why->msg);
    }
    if (--job->n_waiting == 0 && !hdt_gwjob_is_over(job)) {
        job_end(gw, job);
    }
}

bool hdt_gwjob_all_done(const struct hdt_gwjob *job)
{
    return job->state == HDT_GWJOB_FINISHING && job->root_done &&
           job->n_ranks_done == job->plan.n_ranks;
}

void hdt_gwjob_finish(struct hdt_gateway *gw, struct hdt_gwjob *job)
{
    if (hdt_replan_goes_on(gw, job)) {
        return;
    }
    job->n_waiting = 1; /* held until all requests are out: answers may come at once */
    for (size_t rank = 0; rank < job->plan.n_ranks; rank++) {
        if (hdt_gwjob_site_is_first(job, rank)) {
            job->n_waiting++;
            job->n_requests++;
            hdt_route_request(gw, job->plan.ranks[rank].site, "job.wan.get",
                              json_pack("{s:I}", "job", (json_int_t)job->job),
                              (int)(gw->deadlines.probe_us / HDT_US_PER_MS), collect_done, job);
        }
    }
    if (--job->n_waiting == 0 && !hdt_gwjob_is_over(job)) {
        job_end(gw, job);
    }
}

/* ---- the beginning ---- */

void hdt_gwjob_assign(struct hdt_gateway *gw, struct hdt_gwjob *job)
{
    for (size_t rank = 0; rank < job->plan.n_ranks; rank++) {
        struct hdt_gwworker *worker =
            hdt_federation_worker(gw, job->plan.ranks[rank].site, job->plan.ranks[rank].worker);

        worker->restarted = false; /* what it ran before is nothing to this epoch */
    }
    hdt_gwjob_tell_sites(gw, job, "job.plan");
    hdt_gwjob_orders_give(gw, job);
}

/* Steps that were done after the checkpoint, before the loss, are done again: they count once. */
static void tokens_set(struct hdt_gwjob *job)
{
    const struct hdt_job_batch *batch = &job->conf.batch;

    job->tokens = (job->start_step - job->first_step) * batch->micro_batch *
                  batch->n_micro_batches * batch->seq_len;
    job->tokens_step = job->start_step;
}

void hdt_gwjob_run(struct hdt_gateway *gw, struct hdt_gwjob *job)
{
    job->first_step = job->first_step < 0 ? job->start_step : job->first_step;
    job->step = job->start_step;
    job->last_report_us = hdt_clock_now_us();
    tokens_set(job);
    if (job->epoch > 1) {
        hdt_recovery_done(gw, job);
        memset(&job->error, 0, sizeof(job->error));
    }
    job->replan.start_s = (double)(hdt_clock_now_us() - job->state_since_us) / 1e6;
    hdt_gwjob_set_state(gw, job, HDT_GWJOB_RUNNING);
    hdt_gwjob_orders_give(gw, job);
}

void hdt_gwjob_rank_done(struct hdt_gateway *gw, struct hdt_gwjob *job, size_t rank)
{
    if (job->rank_is_done[rank]) {
        return;
    }
    job->rank_is_done[rank] = true;
    job->n_ranks_done++;
    hdt_gwjob_save(gw, job);
    if (hdt_gwjob_all_done(job) && job->n_waiting == 0) {
        hdt_gwjob_finish(gw, job);
    }
}

void hdt_coordinator_site_up(struct hdt_gateway *gw, const char *site)
{
    struct hdt_gwjob *job;

    LL_FOREACH(gw->jobs, job)
    {
        if (!hdt_gwjob_is_over(job) && hdt_gwjob_has_member(job, site)) {
            hdt_gwjob_orders_again(gw, job, site);
        }
    }
}
