/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Orders of a coordinator to the workers of a job, and their answers.
 *
 * A message may be lost with the connection that carried it, and a worker may come back as another
 * process. So every order says job and epoch, may be given again at any time (a worker that has
 * obeyed already answers again) and is given again to whoever comes back. Who answers "start"
 * without holding the job has lost it: nothing else need be remembered to find that out, not even
 * by a coordinator that was restarted itself.
 */
#include "config.h"

#include "gateway/recovery.h"
#include "gateway/replan.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/core/msg.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#define START_STEP_MAX ((int64_t)1 << 50)

struct hdt_gwjob_wait {
    struct hdt_gwjob *job;
    uint32_t epoch; /* the job's when it was asked */
    size_t rank;
    uint32_t serial;
    struct hdt_gwjob_wait *prev, *next;
};

void hdt_gwjob_rank_address(const struct hdt_gwjob *job, size_t rank, char address[HDT_ADDRESS_CAP])
{
    snprintf(address, HDT_ADDRESS_CAP, "%s/%s", job->plan.ranks[rank].site,
             job->plan.ranks[rank].worker);
}

/* ---- without an answer ---- */

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
        hdt_gwjob_rank_address(job, rank, address);
        hdt_route_post(gw, address, type, body);
    }
}

bool hdt_gwjob_site_is_first(const struct hdt_gwjob *job, size_t rank)
{
    for (size_t i = 0; i < rank; i++) {
        if (strcmp(job->plan.ranks[i].site, job->plan.ranks[rank].site) == 0) {
            return false;
        }
    }
    return true;
}

void hdt_gwjob_tell_sites(struct hdt_gateway *gw, struct hdt_gwjob *job, const char *type)
{
    for (size_t rank = 0; rank < job->plan.n_ranks; rank++) {
        if (hdt_gwjob_site_is_first(job, rank)) {
            hdt_route_post(gw, job->plan.ranks[rank].site, type, hdt_gwjob_record(gw, job));
        }
    }
}

/* ---- with one ---- */

void hdt_gwjob_waits_free(struct hdt_gwjob *job)
{
    struct hdt_gwjob_wait *wait, *next;

    DL_FOREACH_SAFE(job->waits, wait, next)
    {
        DL_DELETE(job->waits, wait);
        free(wait);
    }
}

void hdt_gwjob_orders_forget(struct hdt_gwjob *job)
{
    struct hdt_gwjob_wait *wait;

    DL_FOREACH(job->waits, wait)
    {
        wait->epoch = 0; /* of no epoch */
    }
}

/* Whom it asked; false: that epoch or the job is over. *is_last: nothing was asked there since. */
static bool wait_end(struct hdt_gwjob_wait *wait, struct hdt_gwjob **job, size_t *rank,
                     bool *is_last)
{
    bool counts = wait->epoch == wait->job->epoch && !hdt_gwjob_is_over(wait->job);

    *job = wait->job;
    *rank = wait->rank;
    *is_last = counts && wait->serial == wait->job->by_rank[wait->rank].serial;
    if (*is_last) {
        wait->job->by_rank[wait->rank].is_asked = false;
    }
    wait->job->n_requests--;
    DL_DELETE(wait->job->waits, wait);
    free(wait);
    return counts;
}

static json_t *order_body(const struct hdt_gwjob *job, size_t rank, uint32_t epoch)
{
    return json_pack("{s:I, s:I, s:I}", "job", (json_int_t)job->job, "epoch", (json_int_t)epoch,
                     "rank", (json_int_t)rank);
}

struct order {
    const char *type;
    int timeout_ms;
    hdt_request_done *done;
};

/* Not while one is under way, unless somebody came back since. */
static void order_give(struct hdt_gateway *gw, struct hdt_gwjob *job, size_t rank,
                       const struct order *order, json_t *body)
{
    struct hdt_gwjob_wait *wait = hdt_calloc(1, sizeof(*wait));
    char address[HDT_ADDRESS_CAP];

    wait->job = job;
    wait->epoch = job->epoch;
    wait->rank = rank;
    wait->serial = ++job->by_rank[rank].serial;
    job->by_rank[rank].is_asked = true;
    DL_APPEND(job->waits, wait);
    job->n_requests++;
    hdt_gwjob_rank_address(job, rank, address);
    hdt_route_request(gw, address, order->type, body, order->timeout_ms, order->done, wait);
}

/* The rank's worker itself said this: then it says where. What could not be asked, or was not
 * answered, does not. */
static bool is_answer(const struct hdt_error *why)
{
    return why->where[0] != '\0';
}

/* ---- assign ---- */

/* The checkpoint that the job was to go on from was damaged or removed: its worker took this one.
 */
static void checkpoint_fell_back(struct hdt_gateway *gw, struct hdt_gwjob *job, const char *path)
{
    const int64_t step = hdt_gwjob_resume_step(job);
    struct hdt_error why = {0};

    hdt_error_set(&why, HDT_ECRC, "'%.400s' cannot be used any more: the job goes on from '%.400s'",
                  hdt_gwjob_resume(job), path);
    hdt_error_hint(&why, "the log of the worker that wrote it says what is wrong with it");
    hdt_log_failure(HDT_LOG_WARN, &why);
    free(job->bad_checkpoint); /* its worker will name it again */
    job->bad_checkpoint = hdt_strdup(hdt_gwjob_resume(job));
    free(job->checkpoint);
    job->checkpoint = hdt_strdup(path);
    job->checkpoint_step = job->start_step;
    hdt_gwjob_event(gw, job, "ckpt.failed",
                    json_pack("{s:I, s:I, s:o}", "epoch", (json_int_t)job->epoch, "step",
                              (json_int_t)step, "error", hdt_msg_error_body(&why)));
}

/* A number of another program: bounded, so that sums with it are. */
static int64_t start_step_of(const json_t *reply)
{
    const json_int_t step = json_integer_value(json_object_get(hdt_msg_body(reply), "start_step"));

    return step < 0 ? 0 : step > START_STEP_MAX ? START_STEP_MAX : step;
}

static void assign_answered(struct hdt_gateway *gw, void *user, const json_t *reply,
                            const struct hdt_error *why)
{
    struct hdt_gwjob *job;
    const char *older;
    bool is_last;
    size_t rank;

    if (!wait_end(user, &job, &rank, &is_last) || job->state != HDT_GWJOB_PREPARING ||
        job->by_rank[rank].is_ready) {
        return;
    }
    if (!reply) {
        if (is_answer(why) || (is_last && why->status == HDT_ETIMEDOUT)) {
            hdt_recovery_rank_refused(gw, job, why);
        }
        return;
    }
    job->by_rank[rank].is_ready = true;
    job->start_step = start_step_of(reply);
    older = json_string_value(json_object_get(hdt_msg_body(reply), "resume"));
    if (older && (int64_t)rank == job->plan.checkpoint_rank &&
        strcmp(older, hdt_gwjob_resume(job)) != 0) {
        checkpoint_fell_back(gw, job, older);
    }
    for (rank = 0; rank < job->plan.n_ranks; rank++) {
        if (!job->by_rank[rank].is_ready) {
            return;
        }
    }
    hdt_gwjob_run(gw, job);
}

static void order_assign(struct hdt_gateway *gw, struct hdt_gwjob *job, size_t rank)
{
    /* As long as the rank says that it builds ("task.alive"), the deadline begins anew. */
    const struct order order = {"assign", (int)(job->deadlines.rank_us / HDT_US_PER_MS),
                                assign_answered};
    json_t *body = order_body(job, rank, job->epoch);

    json_t *conf = json_copy(job->conf_json);

    json_object_set_new(conf, "progress_timeout",
                        json_integer(job->deadlines.rank_us / HDT_US_PER_MS));
    json_object_update_new(body, json_pack("{s:I, s:O, s:o, s:O, s:s, s:s}", "number",
                                           (json_int_t)job->number, "plan", job->plan_json, "conf",
                                           conf, "model", job->model_json, "resume",
                                           hdt_gwjob_resume(job), "coordinator", gw->conf.site));
    json_object_set_new(body, "resume_step", json_integer(hdt_gwjob_resume_step(job)));
    json_object_set_new(body, "submitted", json_string(job->submitted));
    json_object_set_new(body, "knob_ms", json_integer(job->deadlines.progress_us / HDT_US_PER_MS));
    order_give(gw, job, rank, &order, body);
}

/* ---- start ---- */

static void start_answered(struct hdt_gateway *gw, void *user, const json_t *reply,
                           const struct hdt_error *why)
{
    struct hdt_error lost = {0};
    struct hdt_gwjob *job;
    bool is_last;
    size_t rank;

    (void)why; /* asked again while the worker is connected */
    if (!wait_end(user, &job, &rank, &is_last) || !reply || !hdt_gwjob_is_under_way(job)) {
        return;
    }
    if (json_is_true(json_object_get(hdt_msg_body(reply), "held"))) {
        job->by_rank[rank].is_started = true;
        return;
    }
    hdt_error_set(&lost, HDT_ERANK, "it came back without the job");
    hdt_recovery_rank_lost(gw, job, rank, &lost);
}

static void order_start(struct hdt_gateway *gw, struct hdt_gwjob *job, size_t rank)
{
    const char *mode = job->state == HDT_GWJOB_STOPPING ? "checkpoint" : hdt_replan_stop_mode(job);
    const struct order order = {"start", (int)(gw->deadlines.answer_us / HDT_US_PER_MS),
                                start_answered};
    char address[HDT_ADDRESS_CAP];
    json_t *body;

    order_give(gw, job, rank, &order, order_body(job, rank, job->epoch));
    if (mode) {
        body = order_body(job, rank, job->epoch);
        json_object_set_new(body, "mode", json_string(mode));
        hdt_gwjob_rank_address(job, rank, address);
        hdt_route_post(gw, address, "stop", body);
    }
}

/* ---- release ---- */

static void release_answered(struct hdt_gateway *gw, void *user, const json_t *reply,
                             const struct hdt_error *why)
{
    struct hdt_gwjob *job;
    bool is_last;
    size_t rank;

    (void)why; /* as above */
    if (wait_end(user, &job, &rank, &is_last) && reply && job->state == HDT_GWJOB_RECOVERING) {
        hdt_gwjob_take_checkpoint(gw, job, json_object_get(hdt_msg_body(reply), "checkpoint"));
        job->by_rank[rank].is_free = true;
        hdt_recovery_go(gw, job);
    }
}

/* The epoch before, and all that are older. */
static void order_release(struct hdt_gateway *gw, struct hdt_gwjob *job, size_t rank)
{
    const struct order order = {"release", (int)(gw->deadlines.answer_us / HDT_US_PER_MS),
                                release_answered};

    order_give(gw, job, rank, &order, order_body(job, rank, job->epoch - 1));
}

/* ---- what is due ---- */

static bool rank_can_be_asked(struct hdt_gateway *gw, const struct hdt_gwjob *job, size_t rank)
{
    const struct hdt_plan_rank *r = &job->plan.ranks[rank];
    const struct hdt_gwworker *worker = hdt_federation_worker(gw, r->site, r->worker);

    return !job->by_rank[rank].is_asked && worker && worker->up &&
           hdt_federation_site_is_up(gw, r->site);
}

void hdt_gwjob_orders_give(struct hdt_gateway *gw, struct hdt_gwjob *job)
{
    const uint32_t epoch = job->epoch;

    /* A request that cannot be sent is answered at once: the job may be another one after each. */
    for (size_t rank = 0; rank < job->plan.n_ranks && job->epoch == epoch; rank++) {
        struct hdt_gwjob_rank *state = &job->by_rank[rank];

        if (!rank_can_be_asked(gw, job, rank)) {
            continue;
        }
        if (job->state == HDT_GWJOB_PREPARING && !state->is_ready) {
            order_assign(gw, job, rank);
        } else if (hdt_gwjob_is_under_way(job) && !state->is_started && !job->rank_is_done[rank]) {
            order_start(gw, job, rank);
        } else if (job->state == HDT_GWJOB_RECOVERING && !state->is_free) {
            order_release(gw, job, rank);
        }
    }
}

/* What a site or worker may have missed while it was away. */
void hdt_gwjob_orders_again(struct hdt_gateway *gw, struct hdt_gwjob *job, const char *site)
{
    for (size_t rank = 0; rank < job->plan.n_ranks; rank++) {
        if (strcmp(job->plan.ranks[rank].site, site) == 0) {
            job->by_rank[rank].is_asked = false;
            job->by_rank[rank].is_started = false;
        }
    }
    if (job->state == HDT_GWJOB_PREPARING) {
        hdt_route_post(gw, site, "job.plan", hdt_gwjob_record(gw, job));
    }
    hdt_gwjob_orders_give(gw, job);
}
