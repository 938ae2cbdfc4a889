/* SPDX-License-Identifier: Apache-2.0 */
/* What operators ask of jobs: submit, stop, follow. */
#include "config.h"

#include "gateway/coordinator.h"
#include "gateway/member.h"
#include "gateway/store.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/core/msg.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

/* ---- submit ---- */

/* Every rank's worker must be there and free. A site whose session is just being opened anew is
 * told when it is back. */
static enum hdt_status job_check_workers(struct hdt_gateway *gw, const struct hdt_gwjob *job,
                                         struct hdt_error *err)
{
    for (size_t rank = 0; rank < job->plan.n_ranks; rank++) {
        const struct hdt_plan_rank *r = &job->plan.ranks[rank];
        struct hdt_gwworker *worker = hdt_federation_worker(gw, r->site, r->worker);

        if (!hdt_federation_site_is_up(gw, r->site) &&
            !hdt_federation_site_may_return(gw, r->site)) {
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

static enum hdt_status job_submit(struct hdt_gateway *gw, const json_t *msg, struct hdt_gwjob **out,
                                  struct hdt_error *err)
{
    struct hdt_gwjob *job;
    enum hdt_status status;

    HDT_TRY(hdt_gwjob_parse((json_t *)hdt_msg_body(msg), "job", &job, err));
    if ((status = hdt_gwjob_settle_deadlines(gw, job, err)) != HDT_OK ||
        (status = job_check_workers(gw, job, err)) != HDT_OK ||
        (status = hdt_store_next(gw->store, "job", &job->number, err)) != HDT_OK ||
        (status = hdt_gwjob_open_run_dir(gw, job, err)) != HDT_OK) {
        hdt_gwjob_free(job);
        return status;
    }
    job->job = job_wire_number(gw->conf.site, job->number);
    job->epoch = 1;
    snprintf(job->submitted, sizeof(job->submitted), "%016" PRIx64, gw->instance);
    hdt_gwjob_write_plan(job);
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
    hdt_gwjob_follow(job, hdt_msg_from(msg), NULL, &ignored);
    hdt_gwjob_set_state(gw, job, HDT_GWJOB_PREPARING);
    hdt_gwjob_assign(gw, job);
}

/* ---- requests about a job ---- */

static void elsewhere_hint(const struct hdt_gateway *gw, struct hdt_error *err)
{
    json_t *jobs = hdt_member_status(gw), *job = json_array_get(jobs, 0);

    if (job) {
        hdt_error_hint(err,
                       "job %ld of site %s runs here: ask the gateway of that site (--gateway)",
                       (long)json_integer_value(json_object_get(job, "number")),
                       json_string_value(json_object_get(job, "coordinator")));
    } else {
        hdt_error_hint(err,
                       "'hdt status' lists jobs; ask the gateway that the job was submitted to");
    }
    json_decref(jobs);
}

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
        elsewhere_hint(gw, err);
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

/* What is left of a job that is stopped where it cannot write a checkpoint. */
static void stopped_error(const struct hdt_gwjob *job, const char *by, struct hdt_error *err)
{
    const char *when = job->state == HDT_GWJOB_RECOVERING ? "while it waited for workers"
                       : job->epoch > 1                   ? "before it ran again"
                                                          : "before it ran";

    if (job->checkpoint && job->checkpoint[0]) {
        hdt_error_set(err, HDT_ECANCELED, "job %ld was stopped by %s %s; its last checkpoint is %s",
                      (long)job->number, by, when, job->checkpoint);
        hdt_error_hint(err, "'hdt submit --resume' goes on from there, after step %ld",
                       (long)job->checkpoint_step);
    } else {
        hdt_error_set(err, HDT_ECANCELED, "job %ld was stopped by %s %s, without a checkpoint",
                      (long)job->number, by, when);
    }
}

/* The first who asked is named. */
static void stop_note(struct hdt_gwjob *job, const json_t *msg)
{
    if (!job->user_stopped) {
        snprintf(job->stopped_by, sizeof(job->stopped_by), "%s", hdt_msg_from(msg));
    }
    job->user_stopped = true;
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
    hdt_route_send(
        gw,
        hdt_msg_reply(msg, "stopping",
                      json_pack("{s:I, s:I, s:s, s:I, s:I}", "job", (json_int_t)job->job, "number",
                                (json_int_t)job->number, "state", hdt_gwjob_state_name(job->state),
                                "epoch", (json_int_t)job->epoch, "step", (json_int_t)job->step)),
        &ignored);
    hdt_gwjob_follow(job, hdt_msg_from(msg), NULL, &ignored);
    if (hdt_gwjob_is_over(job)) {
        hdt_gwjob_say_state(gw, job);
    } else if (job->state == HDT_GWJOB_PREPARING || job->state == HDT_GWJOB_RECOVERING) {
        stop_note(job, msg);
        stopped_error(job, hdt_msg_from(msg), &err);
        hdt_gwjob_fail(gw, job, &err);
    } else if (job->state == HDT_GWJOB_FINISHING) {
        if (job->step < job->conf.steps) { /* it would go on with another plan */
            stop_note(job, msg);
            hdt_gwjob_save(gw, job);
        }
    } else if (job->state == HDT_GWJOB_RUNNING) {
        hdt_log_info("job %ld: stop asked by %s", (long)job->number, hdt_msg_from(msg));
        stop_note(job, msg);
        hdt_gwjob_tell_ranks(gw, job, "stop", "checkpoint");
        hdt_gwjob_set_state(gw, job, HDT_GWJOB_STOPPING);
    }
}

/* With "since": what happened after that step of that epoch comes before what happens now. */
static void follow_since(struct hdt_gateway *gw, struct hdt_gwjob *job,
                         struct hdt_gwfollower *follower, const json_t *body)
{
    const json_t *epoch = json_object_get(body, "epoch");

    hdt_gwjob_catch_up_since(gw, job, follower, epoch ? json_integer_value(epoch) : 1,
                             json_integer_value(json_object_get(body, "since")));
}

void hdt_coordinator_follow(struct hdt_gateway *gw, const json_t *msg)
{
    const json_t *body = hdt_msg_body(msg);
    struct hdt_error err = {0}, ignored = {0};
    struct hdt_gwfollower *follower = NULL;
    enum hdt_status status;
    struct hdt_gwjob *job;

    status = job_by_number(gw, json_integer_value(json_object_get(body, "job")), &job, &err);
    if (status == HDT_OK) {
        status = hdt_gwjob_follow(job, hdt_msg_from(msg), &follower, &err);
    }
    if (status != HDT_OK) {
        hdt_route_send(gw, hdt_msg_reply_error(msg, &err), &ignored);
        return;
    }
    hdt_route_send(
        gw,
        hdt_msg_reply(msg, "following",
                      json_pack("{s:I, s:I, s:s, s:I, s:I, s:O}", "job", (json_int_t)job->job,
                                "number", (json_int_t)job->number, "state",
                                hdt_gwjob_state_name(job->state), "epoch", (json_int_t)job->epoch,
                                "step", (json_int_t)job->step, "plan", job->plan_json)),
        &ignored);
    if (json_is_integer(json_object_get(body, "since"))) {
        follow_since(gw, job, follower, body);
    }
}
