/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a job at the gateway it was submitted to: tell the sites the plan, let the workers
 * build their stages, start, follow, end. Workers report to us by address through their gateways;
 * what they need of each other goes over flows and never through here, so a coordinator that is
 * away for a while costs the job nothing.
 */
#include "config.h"

#include "gateway/coordinator.h"
#include "gateway/member.h"
#include "gateway/rank_state.h"
#include "gateway/store.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/recorder.h"
#include "src/core/msg.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <utlist.h>

#define ASSIGN_TIMEOUT_MS                                                                          \
 600000 /* loading a large checkpoint over the WAN; a lost worker ends it */
#define COLLECT_TIMEOUT_MS 5000
#define MAX_FOLLOWERS      64
#define MAX_JOBS_OVER      32 /* that are kept for 'hdt status' */

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

static json_t *job_record(const struct hdt_gateway *gw, const struct hdt_gwjob *job)
{
    return json_pack("{s:I, s:I, s:I, s:s, s:s, s:s, s:O, s:O, s:O, s:s, s:s, s:I, s:s}", "job",
                     (json_int_t)job->job, "epoch", (json_int_t)job->epoch, "number",
                     (json_int_t)job->number, "name", job->name, "coordinator", gw->conf.site,
                     "state", hdt_gwjob_state_name(job->state), "conf", job->conf_json, "model",
                     job->model_json, "plan", job->plan_json, "resume", job->resume, "run_dir",
                     job->run_dir, "step", (json_int_t)job->step, "checkpoint",
                     job->checkpoint ? job->checkpoint : "");
}

/* How far it is: only the coordinator itself reads this. */
static void record_add_progress(json_t *record, const struct hdt_gwjob *job)
{
    json_t *ranks_done = json_array();

    for (size_t rank = 0; rank < job->plan.n_ranks; rank++) {
        if (job->rank_is_done[rank]) {
            json_array_append_new(ranks_done, json_integer((json_int_t)rank));
        }
    }
    json_object_update_new(
        record, json_pack("{s:I, s:I, s:b, s:b, s:s, s:o, s:O}", "tokens", (json_int_t)job->tokens,
                          "checkpoint_step", (json_int_t)job->checkpoint_step, "user_stopped",
                          job->user_stopped, "root_done", job->root_done, "weights_digest",
                          job->weights_digest, "ranks_done", ranks_done, "traces", job->traces));
}

void hdt_gwjob_save(struct hdt_gateway *gw, struct hdt_gwjob *job)
{
    json_t *record = job_record(gw, job);
    struct hdt_error err = {0};

    record_add_progress(record, job);
    if (hdt_store_put_job(gw->store, job->job, hdt_gwjob_state_name(job->state), record, &err) !=
        HDT_OK) {
        hdt_log_failure(HDT_LOG_ERROR, &err);
    }
    json_decref(record);
}

void hdt_gwjob_set_state(struct hdt_gateway *gw, struct hdt_gwjob *job, enum hdt_gwjob_state state)
{
    json_t *body = json_pack("{s:s}", "state", hdt_gwjob_state_name(state));

    HDT_RECORD(HDT_REC_STATE, .n = {job->job}, .text = {hdt_gwjob_state_name(state)});
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
static void job_tell_ranks(struct hdt_gateway *gw, struct hdt_gwjob *job, const char *type,
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
            hdt_route_post(gw, job->plan.ranks[rank].site, type, job_record(gw, job));
        }
    }
}

static void job_release(struct hdt_gateway *gw, struct hdt_gwjob *job)
{
    job_tell_ranks(gw, job, "release", NULL);
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
    hdt_recorder_dump("job-failed");
    hdt_log_failure(HDT_LOG_ERROR, why);
    job_tell_ranks(gw, job, "stop", "abort");
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
        job_tell_ranks(gw, job, "start", NULL);
    }
}

static void job_assign(struct hdt_gateway *gw, struct hdt_gwjob *job)
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

static enum hdt_status job_open_run_dir(struct hdt_gateway *gw, struct hdt_gwjob *job,
                                        struct hdt_error *err)
{
    char *jobs_dir = hdt_asprintf("%s/jobs", gw->conf.state_dir);
    char *path;

    job->run_dir = hdt_asprintf("%s/%ld-%s", jobs_dir, (long)job->number, job->name);
    path = hdt_asprintf("%s/metrics.jsonl", job->run_dir);
    if ((mkdir(jobs_dir, 0755) == 0 || errno == EEXIST) &&
        (mkdir(job->run_dir, 0755) == 0 || errno == EEXIST)) {
        job->metrics = fopen(path, "ae");
    }
    if (!job->metrics) {
        hdt_error_set_errno(err, HDT_EIO, errno, "cannot write '%s'", path);
        hdt_error_hint(err, "check free space and the owner of state_dir");
    }
    free(path);
    free(jobs_dir);
    return job->metrics ? HDT_OK : HDT_EIO;
}

static void job_free(struct hdt_gwjob *job)
{
    hdt_conf_release(&hdt_job_schema, &job->conf);
    hdt_plan_release(&job->plan);
    json_decref(job->conf_json);
    json_decref(job->model_json);
    json_decref(job->plan_json);
    json_decref(job->ranks);
    json_decref(job->traces);
    if (job->metrics) {
        fclose(job->metrics);
    }
    free(job->resume);
    free(job->run_dir);
    free(job->followers);
    free(job->checkpoint);
    free(job->wan);
    free(job->rank_is_done);
    hdt_rank_waits_free(job);
    free(job);
}

/* Parse what an operator or the store says; on success *out is a job in no list. */
static enum hdt_status job_parse(json_t *body, const char *conf_key, struct hdt_gwjob **out,
                                 struct hdt_error *err)
{
    struct hdt_gwjob *job = hdt_calloc(1, sizeof(*job));
    struct hdt_model_config model;
    const char *resume = "";
    json_t *conf, *model_json, *plan;
    enum hdt_status status;

    job->traces = json_array();
    job->ranks = json_array();
    if (json_unpack(body, "{s:o, s:o, s:o, s?:s}", conf_key, &conf, "model", &model_json, "plan",
                    &plan, "resume", &resume) != 0) {
        status = hdt_error_set(err, HDT_EPROTO, "submit needs job, model and plan");
        goto err_job;
    }
    job->conf_json = json_incref(conf);
    job->model_json = json_incref(model_json);
    job->plan_json = json_incref(plan);
    job->resume = hdt_strdup(resume);
    if ((status = hdt_conf_from_json(&hdt_job_schema, conf, "job", &job->conf, err)) != HDT_OK ||
        (status = hdt_model_from_json(model_json, "model", &model, err)) != HDT_OK ||
        (status = hdt_job_check(&job->conf, &model, NULL, err)) != HDT_OK ||
        (status = hdt_plan_from_json(plan, &model, &job->plan, err)) != HDT_OK) {
        goto err_job;
    }
    snprintf(job->name, sizeof(job->name), "%s", job->conf.name);
    job->rank_is_done = hdt_calloc(job->plan.n_ranks, sizeof(*job->rank_is_done));
    *out = job;
    return HDT_OK;

err_job:
    job_free(job);
    return status;
}

/* Every rank's worker must be there and free. */
static enum hdt_status job_check_workers(struct hdt_gateway *gw, const struct hdt_gwjob *job,
                                         struct hdt_error *err)
{
    for (size_t rank = 0; rank < job->plan.n_ranks; rank++) {
        const struct hdt_plan_rank *r = &job->plan.ranks[rank];
        struct hdt_gwworker *worker = hdt_federation_worker(gw, r->site, r->worker);

        if (!hdt_federation_site_is_up(gw, r->site)) {
            hdt_error_set(err, HDT_EPEER, "cannot start job '%s': site %s is not connected",
                          job->name, r->site);
            hdt_error_hint(err, "'hdt doctor' says what is wrong with the link");
            return HDT_EPEER;
        }
        if (!worker || !worker->up) {
            hdt_error_set(err, HDT_ENOENT, "cannot start job '%s': worker %s/%s is not connected",
                          job->name, r->site, r->worker);
            hdt_error_hint(err, "start it, or plan without it; 'hdt status' lists the workers");
            return HDT_ENOENT;
        }
        if (hdt_coordinator_worker_is_busy(gw, r->site, r->worker)) {
            hdt_error_set(err, HDT_EEXIST, "cannot start job '%s': worker %s/%s runs another job",
                          job->name, r->site, r->worker);
            hdt_error_hint(err, "'hdt status' shows it, 'hdt stop' ends it");
            return HDT_EEXIST;
        }
    }
    return HDT_OK;
}

/* Numbers of jobs of different coordinators must differ on the wire: the upper bits are a hash
 * (FNV-1a) of the coordinating site's name, the lower ones its count. */
#define JOB_COUNT_MASK 0xfffffu

unsigned hdt_gwjob_number_of(uint32_t job)
{
    return job & JOB_COUNT_MASK;
}

static uint32_t job_wire_number(const char *site, int64_t number)
{
    uint32_t hash = 2166136261u;

    for (const char *c = site; *c; c++) {
        hash = (hash ^ (uint8_t)*c) * 16777619u;
    }
    return ((hash >> 20) << 20 | ((uint32_t)number & JOB_COUNT_MASK)) & 0x7fffffffu;
}

/* false: too many follow it. */
static bool job_follow(struct hdt_gwjob *job, const char *address)
{
    for (size_t i = 0; i < job->n_followers; i++) {
        if (strcmp(job->followers[i], address) == 0) {
            return true;
        }
    }
    if (job->n_followers == MAX_FOLLOWERS) {
        return false;
    }
    job->followers =
        hdt_realloc(job->followers, (job->n_followers + 1) * sizeof(job->followers[0]));
    snprintf(job->followers[job->n_followers++], HDT_ADDRESS_CAP, "%s", address);
    return true;
}

static enum hdt_status job_submit(struct hdt_gateway *gw, const json_t *msg, struct hdt_gwjob **out,
                                  struct hdt_error *err)
{
    struct hdt_gwjob *job;
    enum hdt_status status;

    HDT_TRY(job_parse((json_t *)hdt_msg_body(msg), "job", &job, err));
    if ((status = job_check_workers(gw, job, err)) != HDT_OK ||
        (status = hdt_store_next(gw->store, "job", &job->number, err)) != HDT_OK ||
        (status = job_open_run_dir(gw, job, err)) != HDT_OK) {
        job_free(job);
        return status;
    }
    job->job = job_wire_number(gw->conf.site, job->number);
    job->epoch = 1;
    LL_APPEND(gw->jobs, job);
    *out = job;
    return HDT_OK;
}

void hdt_coordinator_submit(struct hdt_gateway *gw, const json_t *msg)
{
    struct hdt_gwjob *job;
    struct hdt_error err = {0}, ignored = {0};

    if (job_submit(gw, msg, &job, &err) != HDT_OK) {
        hdt_route_send(gw, hdt_msg_reply_error(msg, &err), &ignored);
        return;
    }
    hdt_log_info("job %ld (%s) submitted by %s: %zu stages on %zu workers", (long)job->number,
                 job->name, hdt_msg_from(msg), job->plan.n_stages, job->plan.n_ranks);
    hdt_route_send(gw,
                   hdt_msg_reply(msg, "submitted",
                                 json_pack("{s:I, s:I, s:s, s:s}", "job", (json_int_t)job->job,
                                           "number", (json_int_t)job->number, "name", job->name,
                                           "run_dir", job->run_dir)),
                   &ignored);
    job_follow(job, hdt_msg_from(msg));
    hdt_gwjob_set_state(gw, job, HDT_GWJOB_PREPARING);
    job_assign(gw, job);
}

/* ---- requests about a job ---- */

/* By number as people see it or as it is on the wire; 0: the only one that is not over. */
static enum hdt_status job_by_number(struct hdt_gateway *gw, json_int_t number,
                                     struct hdt_gwjob **out, struct hdt_error *err)
{
    struct hdt_gwjob *job, *found = NULL;
    int n_active = 0;

    LL_FOREACH(gw->jobs, job)
    {
        n_active += number == 0 && !hdt_gwjob_is_over(job);
        if (number == 0 ? !hdt_gwjob_is_over(job) : job->job == number || job->number == number) {
            found = job;
        }
    }
    if (!found) {
        hdt_error_set(err, HDT_ENOENT,
                      number ? "site %s coordinates no job %ld"
                             : "site %s coordinates no job that "
                               "runs",
                      gw->conf.site, (long)number);
        hdt_error_hint(err,
                       "'hdt status' lists jobs; ask the gateway that the job was submitted to");
        return HDT_ENOENT;
    }
    if (n_active > 1) {
        hdt_error_set(err, HDT_EINVAL, "%d jobs run here", n_active);
        hdt_error_hint(err, "name one: hdt stop NUMBER ('hdt status' lists them)");
        return HDT_EINVAL;
    }
    *out = found;
    return HDT_OK;
}

void hdt_coordinator_stop(struct hdt_gateway *gw, const json_t *msg)
{
    json_int_t number = json_integer_value(json_object_get(hdt_msg_body(msg), "job"));
    struct hdt_error err = {0}, ignored = {0};
    struct hdt_gwjob *job;

    if (job_by_number(gw, number, &job, &err) != HDT_OK) {
        hdt_route_send(gw, hdt_msg_reply_error(msg, &err), &ignored);
        return;
    }
    hdt_route_send(gw,
                   hdt_msg_reply(msg, "stopping",
                                 json_pack("{s:I, s:I, s:s}", "job", (json_int_t)job->job, "number",
                                           (json_int_t)job->number, "state",
                                           hdt_gwjob_state_name(job->state))),
                   &ignored);
    job_follow(job, hdt_msg_from(msg));
    if (hdt_gwjob_is_over(job)) {
        hdt_gwjob_event(gw, job, "state",
                        json_pack("{s:s}", "state", hdt_gwjob_state_name(job->state)));
    } else if (job->state == HDT_GWJOB_PREPARING) {
        job->user_stopped = true;
        hdt_error_set(&err, HDT_ECANCELED, "job stopped by %s before it ran", hdt_msg_from(msg));
        hdt_gwjob_fail(gw, job, &err);
    } else if (job->state == HDT_GWJOB_RUNNING) {
        hdt_log_info("job %ld: stop asked by %s", (long)job->number, hdt_msg_from(msg));
        job->user_stopped = true;
        job_tell_ranks(gw, job, "stop", "checkpoint");
        hdt_gwjob_set_state(gw, job, HDT_GWJOB_STOPPING);
    }
}

void hdt_coordinator_site_up(struct hdt_gateway *gw, const char *site)
{
    struct hdt_gwjob *job;

    LL_FOREACH(gw->jobs, job)
    {
        if (job->state == HDT_GWJOB_STOPPING && hdt_gwjob_has_member(job, site)) {
            job_tell_ranks(gw, job, "stop", "checkpoint");
        }
    }
}

void hdt_coordinator_follow(struct hdt_gateway *gw, const json_t *msg)
{
    json_int_t number = json_integer_value(json_object_get(hdt_msg_body(msg), "job"));
    struct hdt_error err = {0}, ignored = {0};
    enum hdt_status status;
    struct hdt_gwjob *job;

    status = job_by_number(gw, number, &job, &err);
    if (status == HDT_OK && !job_follow(job, hdt_msg_from(msg))) {
        status = hdt_error_set(&err, HDT_ENOMEM, "job %ld has %d followers already",
                               (long)job->number, MAX_FOLLOWERS);
    }
    if (status != HDT_OK) {
        hdt_route_send(gw, hdt_msg_reply_error(msg, &err), &ignored);
        return;
    }
    hdt_route_send(
        gw,
        hdt_msg_reply(msg, "following",
                      json_pack("{s:I, s:I, s:s, s:O}", "job", (json_int_t)job->job, "number",
                                (json_int_t)job->number, "state", hdt_gwjob_state_name(job->state),
                                "plan", job->plan_json)),
        &ignored);
    if (json_is_integer(json_object_get(hdt_msg_body(msg), "since"))) {
        hdt_gwjob_replay(gw, job, hdt_msg_from(msg),
                         json_integer_value(json_object_get(hdt_msg_body(msg), "since")));
    }
}

/* ---- start and end of the gateway ---- */

/* The state of that name; false: of no job of ours, or it is over. */
static bool state_parse(const char *name, enum hdt_gwjob_state *state)
{
    for (int i = HDT_GWJOB_PREPARING; i < HDT_GWJOB_DONE; i++) {
        if (strcmp(name, state_names[i]) == 0) {
            *state = (enum hdt_gwjob_state)i;
            return true;
        }
    }
    return false;
}

static void job_load_progress(struct hdt_gwjob *job, const json_t *record)
{
    const char *digest = json_string_value(json_object_get(record, "weights_digest"));
    const char *checkpoint = json_string_value(json_object_get(record, "checkpoint"));
    json_t *traces = json_object_get(record, "traces");
    const json_t *item;
    size_t i;

    job->step = json_integer_value(json_object_get(record, "step"));
    job->tokens = json_integer_value(json_object_get(record, "tokens"));
    job->checkpoint_step = json_integer_value(json_object_get(record, "checkpoint_step"));
    job->user_stopped = json_is_true(json_object_get(record, "user_stopped"));
    job->root_done = json_is_true(json_object_get(record, "root_done"));
    snprintf(job->weights_digest, sizeof(job->weights_digest), "%s", digest ? digest : "");
    job->checkpoint = checkpoint && checkpoint[0] ? hdt_strdup(checkpoint) : NULL;
    if (json_is_array(traces)) {
        json_array_extend(job->traces, traces);
    }
    json_array_foreach(json_object_get(record, "ranks_done"), i, item)
    {
        json_int_t rank = json_integer_value(item);

        if (rank >= 0 && (uint64_t)rank < job->plan.n_ranks && !job->rank_is_done[rank]) {
            job->rank_is_done[rank] = true;
            job->n_ranks_done++;
        }
    }
}

static void job_take_up(struct hdt_gateway *gw, struct hdt_gwjob *job, enum hdt_gwjob_state state)
{
    struct hdt_error err;

    if (state == HDT_GWJOB_PREPARING) {
        hdt_error_set(&err, HDT_ECANCELED, "the gateway was restarted while job %ld was prepared",
                      (long)job->number);
        hdt_error_hint(&err, "submit it again");
        hdt_gwjob_fail(gw, job, &err);
        return;
    }
    hdt_gwjob_set_state(gw, job, state);
    if (hdt_gwjob_all_done(job)) {
        hdt_gwjob_finish(gw, job);
    }
}

static void job_load(void *user, uint32_t number, const char *state_name, const json_t *record)
{
    struct hdt_gateway *gw = user;
    enum hdt_gwjob_state state;
    struct hdt_error err = {0};
    struct hdt_gwjob *job;
    json_t *msg;

    if (!state_parse(state_name, &state)) {
        return;
    }
    if (job_parse((json_t *)record, "conf", &job, &err) != HDT_OK) {
        hdt_log_warn("job %u in the store is not usable: %s", number, err.msg);
        return;
    }
    job->job = number;
    job->epoch = (uint32_t)json_integer_value(json_object_get(record, "epoch"));
    job->number = json_integer_value(json_object_get(record, "number"));
    job->last_report_us = hdt_clock_now_us();
    job_load_progress(job, record);
    LL_APPEND(gw->jobs, job);
    if (job_open_run_dir(gw, job, &err) != HDT_OK) {
        hdt_log_failure(HDT_LOG_WARN, &err);
    }
    msg = hdt_msg_new("job.plan", gw->conf.site, json_incref((json_t *)record));
    json_object_set_new(msg, "from", json_string(gw->conf.site));
    hdt_member_job_plan(gw, msg);
    json_decref(msg);
    job_take_up(gw, job, state);
}

void hdt_coordinator_start(struct hdt_gateway *gw)
{
    struct hdt_error err = {0};

    if (hdt_store_each_job(gw->store, job_load, gw, &err) != HDT_OK) {
        hdt_log_failure(HDT_LOG_ERROR, &err);
    }
}

void hdt_gwjobs_prune(struct hdt_gateway *gw)
{
    struct hdt_gwjob *job, *next;
    size_t n_over = 0;

    LL_FOREACH(gw->jobs, job)
    {
        n_over += hdt_gwjob_is_over(job);
    }
    LL_FOREACH_SAFE(gw->jobs, job, next)
    {
        if (n_over > MAX_JOBS_OVER && hdt_gwjob_is_over(job) && job->n_requests == 0) {
            LL_DELETE(gw->jobs, job);
            job_free(job);
            n_over--;
        }
    }
}

void hdt_coordinator_free(struct hdt_gateway *gw)
{
    struct hdt_gwjob *job, *next;

    LL_FOREACH_SAFE(gw->jobs, job, next)
    {
        job_free(job);
    }
    gw->jobs = NULL;
}
