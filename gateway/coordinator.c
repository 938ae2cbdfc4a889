/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a job at the gateway it was submitted to: tell the sites the plan, let the workers
 * build their stages, start, follow, end. Workers report to us by address through their gateways;
 * what they need of each other goes over flows and never through here, so a coordinator that is
 * away for a while costs the job nothing.
 */
#include "config.h"

#include "gateway/coordinator.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/core/msg.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#define ASSIGN_TIMEOUT_MS                                                                          \
 600000 /* loading a large checkpoint over the WAN; a lost worker ends it */
#define COLLECT_TIMEOUT_MS 5000

static const char *const state_names[] = {"preparing", "running", "stopping", "finishing",
                                          "done",      "stopped", "failed"};

const char *hdt_gwjob_state_name(enum hdt_gwjob_state state)
{
    return state_names[state];
}

bool hdt_gwjob_is_over(const struct hdt_gwjob *job)
{
    return job->state >= HDT_GWJOB_DONE;
}

struct hdt_gwjob *hdt_gwjob_find(struct hdt_gateway *gw, int64_t number)
{
    struct hdt_gwjob *job;

    LL_SEARCH_SCALAR(gw->jobs, job, job, number);
    return job;
}

static void rank_address(const struct hdt_gwjob *job, size_t rank, char address[HDT_ADDRESS_CAP])
{
    snprintf(address, HDT_ADDRESS_CAP, "%s/%s", job->plan.ranks[rank].site,
             job->plan.ranks[rank].worker);
}

bool hdt_gwjob_rank_is_of(const struct hdt_gwjob *job, int64_t rank, const char *address)
{
    char own[HDT_ADDRESS_CAP];

    if (rank < 0 || (uint64_t)rank >= job->plan.n_ranks) {
        return false;
    }
    rank_address(job, (size_t)rank, own);
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

void hdt_gwjob_event(struct hdt_gateway *gw, struct hdt_gwjob *job, const char *event, json_t *body)
{
    struct hdt_error err = {0};

    json_object_set_new(body, "job", json_integer(job->job));
    json_object_set_new(body, "event", json_string(event));
    for (size_t i = 0; i < job->n_followers;) {
        json_t *msg = hdt_msg_new("job.event", job->followers[i], json_incref(body));

        if (hdt_route_send(gw, msg, &err) == HDT_OK) {
            i++;
            continue;
        }
        hdt_log_debug("job %ld: follower %s left", (long)job->number, job->followers[i]);
        memmove(job->followers[i], job->followers[i + 1],
                (job->n_followers - i - 1) * sizeof(job->followers[0]));
        job->n_followers--;
    }
    json_decref(body);
}

void hdt_gwjob_set_state(struct hdt_gateway *gw, struct hdt_gwjob *job, enum hdt_gwjob_state state)
{
    json_t *body = json_pack("{s:s}", "state", hdt_gwjob_state_name(state));

    job->state = state;
    job->state_since_us = hdt_clock_now_us();
    hdt_log_info("job %ld (%s): %s", (long)job->number, job->name, hdt_gwjob_state_name(state));
    if (state == HDT_GWJOB_FAILED) {
        json_object_set_new(body, "error", hdt_msg_error_body(&job->error));
    }
    hdt_gwjob_save(gw, job);
    hdt_gwjob_event(gw, job, "state", body);
}

/* One message to every rank's worker; "rank" is filled in. */
void hdt_gwjob_tell_ranks(struct hdt_gateway *gw, struct hdt_gwjob *job, const char *type,
                          const char *mode)
{
    char address[HDT_ADDRESS_CAP];

    for (size_t rank = 0; rank < job->plan.n_ranks; rank++) {
        json_t *body = json_pack("{s:I, s:I, s:I}", "job", (json_int_t)job->job, "epoch",
                                 (json_int_t)job->epoch, "rank", (json_int_t)rank);

        if (mode) {
            json_object_set_new(body, "mode", json_string(mode));
        }
        rank_address(job, rank, address);
        hdt_route_post(gw, address, type, body);
    }
}

static bool site_is_first(const struct hdt_gwjob *job, size_t rank)
{
    for (size_t i = 0; i < rank; i++) {
        if (strcmp(job->plan.ranks[i].site, job->plan.ranks[rank].site) == 0) {
            return false;
        }
    }
    return true;
}

static void job_tell_sites(struct hdt_gateway *gw, struct hdt_gwjob *job, const char *type)
{
    for (size_t rank = 0; rank < job->plan.n_ranks; rank++) {
        if (site_is_first(job, rank)) {
            hdt_route_post(gw, job->plan.ranks[rank].site, type, hdt_gwjob_record(gw, job));
        }
    }
}

static void job_release(struct hdt_gateway *gw, struct hdt_gwjob *job)
{
    hdt_gwjob_tell_ranks(gw, job, "release", NULL);
    job_tell_sites(gw, job, "job.close");
    if (job->metrics) {
        fclose(job->metrics);
        job->metrics = NULL;
    }
}

void hdt_gwjob_fail(struct hdt_gateway *gw, struct hdt_gwjob *job, const struct hdt_error *why)
{
    if (hdt_gwjob_is_over(job)) {
        return;
    }
    job->error = *why;
    hdt_log_failure(HDT_LOG_ERROR, why);
    hdt_gwjob_tell_ranks(gw, job, "stop", "abort");
    job_release(gw, job);
    hdt_gwjob_set_state(gw, job, job->user_stopped ? HDT_GWJOB_STOPPED : HDT_GWJOB_FAILED);
}

/* ---- the end ---- */

void hdt_gwjob_wan_totals(const struct hdt_gwjob *job, int64_t *raw, int64_t *sent)
{
    *raw = 0;
    *sent = 0;
    for (size_t i = 0; i < job->n_wan; i++) {
        *raw += job->wan[i].raw;
        *sent += job->wan[i].sent;
    }
}

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
        hdt_gwjob_take_wan(job, hdt_msg_from(reply), hdt_msg_body(reply));
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
    job->n_waiting = 1; /* held until all requests are out: answers may come at once */
    for (size_t rank = 0; rank < job->plan.n_ranks; rank++) {
        if (site_is_first(job, rank)) {
            job->n_waiting++;
            job->n_requests++;
            hdt_route_request(gw, job->plan.ranks[rank].site, "job.wan.get",
                              json_pack("{s:I}", "job", (json_int_t)job->job), COLLECT_TIMEOUT_MS,
                              collect_done, job);
        }
    }
    if (--job->n_waiting == 0 && !hdt_gwjob_is_over(job)) {
        job_end(gw, job);
    }
}

/* ---- the beginning ---- */

static void assign_done(struct hdt_gateway *gw, void *user, const json_t *reply,
                        const struct hdt_error *why)
{
    struct hdt_gwjob *job = user;

    job->n_requests--;
    if (job->state != HDT_GWJOB_PREPARING) {
        return;
    }
    if (!reply) {
        hdt_gwjob_fail(gw, job, why);
        return;
    }
    job->start_step = json_integer_value(json_object_get(hdt_msg_body(reply), "start_step"));
    if (--job->n_waiting == 0) {
        job->step = job->start_step;
        job->last_report_us = hdt_clock_now_us();
        hdt_gwjob_set_state(gw, job, HDT_GWJOB_RUNNING);
        hdt_gwjob_tell_ranks(gw, job, "start", NULL);
    }
}

void hdt_gwjob_assign(struct hdt_gateway *gw, struct hdt_gwjob *job)
{
    char address[HDT_ADDRESS_CAP];

    job_tell_sites(gw, job, "job.plan");
    job->n_waiting = job->plan.n_ranks;
    for (size_t rank = 0; rank < job->plan.n_ranks && !hdt_gwjob_is_over(job); rank++) {
        json_t *body = json_pack("{s:I, s:I, s:I, s:I, s:O, s:O, s:O, s:s, s:s}", "job",
                                 (json_int_t)job->job, "epoch", (json_int_t)job->epoch, "rank",
                                 (json_int_t)rank, "number", (json_int_t)job->number, "plan",
                                 job->plan_json, "conf", job->conf_json, "model", job->model_json,
                                 "resume", job->resume, "coordinator", gw->conf.site);

        hdt_federation_worker(gw, job->plan.ranks[rank].site, job->plan.ranks[rank].worker)
            ->restarted = false;
        rank_address(job, rank, address);
        job->n_requests++;
        hdt_route_request(gw, address, "assign", body, ASSIGN_TIMEOUT_MS, assign_done, job);
    }
}

void hdt_coordinator_site_up(struct hdt_gateway *gw, const char *site)
{
    struct hdt_gwjob *job;

    LL_FOREACH(gw->jobs, job)
    {
        if (job->state == HDT_GWJOB_STOPPING && hdt_gwjob_has_member(job, site)) {
            hdt_gwjob_tell_ranks(gw, job, "stop", "checkpoint");
        }
    }
}
