/* SPDX-License-Identifier: Apache-2.0 */
/* A job's record: from what an operator sends or the store has to a job in memory, and back. The
 * record holds all that a coordinator needs to go on with the job after a restart. */
#include "config.h"

#include "gateway/journal.h"
#include "gateway/member.h"
#include "gateway/recovery.h"
#include "gateway/rank_state.h"
#include "gateway/replan.h"
#include "gateway/store.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/file.h"
#include "src/base/log.h"
#include "src/core/msg.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utlist.h>

#define MAX_JOBS_OVER 32 /* that are kept for 'hdt status', also over a restart */
#define STATES_OVER   "done stopped failed"

json_t *hdt_gwjob_record(const struct hdt_gateway *gw, const struct hdt_gwjob *job)
{
    return json_pack("{s:I, s:I, s:I, s:s, s:s, s:s, s:O, s:O, s:O, s:s, s:s, s:I, s:s}", "job",
                     (json_int_t)job->job, "epoch", (json_int_t)job->epoch, "number",
                     (json_int_t)job->number, "name", job->name, "coordinator", gw->conf.site,
                     "state", hdt_gwjob_state_name(job->state), "conf", job->conf_json, "model",
                     job->model_json, "plan", job->plan_json, "resume", job->resume, "run_dir",
                     job->run_dir, "step", (json_int_t)job->step, "checkpoint",
                     job->checkpoint ? job->checkpoint : "");
}

/* A moment of this machine's clock since its start, as seconds that outlive it; 0 stays 0. */
static double wall_of(int64_t us)
{
    return us ? (double)(hdt_clock_wall_us() - (hdt_clock_now_us() - us)) / 1e6 : 0;
}

/* And back: a clock that was set meanwhile must not make the past the future. */
static int64_t moment_of(double wall_s)
{
    double ago_us = (double)hdt_clock_wall_us() - 1e6 * wall_s;

    if (!(wall_s > 0)) {
        return 0;
    }
    return hdt_clock_now_us() - (ago_us > 0 && ago_us < 1e15 ? (int64_t)ago_us : 0);
}

/* How far it is: only the coordinator itself reads this. */
static void record_add_progress(json_t *record, struct hdt_gwjob *job)
{
    json_t *ranks_done = json_array();

    for (size_t rank = 0; rank < job->plan.n_ranks; rank++) {
        if (job->rank_is_done[rank]) {
            json_array_append_new(ranks_done, json_integer((json_int_t)rank));
        }
    }
    json_object_update_new(
        record, json_pack("{s:I, s:I, s:I, s:b, s:b, s:s, s:o, s:O, s:o, s:o}", "tokens",
                          (json_int_t)job->tokens, "tokens_step", (json_int_t)job->tokens_step,
                          "checkpoint_step", (json_int_t)job->checkpoint_step, "user_stopped",
                          job->user_stopped, "root_done", job->root_done, "weights_digest",
                          job->weights_digest, "ranks_done", ranks_done, "traces", job->traces,
                          "reports", hdt_gwjob_intake_json(job), "wan", hdt_gwjob_wan_json(job)));
    json_object_update_new(
        record, json_pack("{s:i, s:I, s:I, s:I, s:f, s:f, s:o}", "attempts", job->n_attempts,
                          "best_step", (json_int_t)job->best_step, "first_step",
                          (json_int_t)job->first_step, "lost_step", (json_int_t)job->lost_step,
                          "lost_time", wall_of(job->lost_us), "state_time",
                          wall_of(job->state_since_us), "error", hdt_msg_error_body(&job->error)));
    json_object_update_new(record,
                           json_pack("{s:s, s:I, s:I}", "bad_checkpoint",
                                     job->bad_checkpoint ? job->bad_checkpoint : "",
                                     "best_checkpoint_step", (json_int_t)job->best_checkpoint_step,
                                     "start_step", (json_int_t)job->start_step));
    json_object_set_new(record, "stopped_by", json_string(job->stopped_by));
    json_object_set(record, "traces_from", job->traces_from);
    json_object_set(record, "rank_ends", job->rank_ends);
    if (job->cluster_json) {
        json_object_set(record, "cluster", job->cluster_json);
    }
}

void hdt_gwjob_save(struct hdt_gateway *gw, struct hdt_gwjob *job)
{
    json_t *record = hdt_gwjob_record(gw, job);
    struct hdt_error err = {0};

    record_add_progress(record, job);
    json_object_set_new(record, "submitted", json_string(job->submitted));
    if (hdt_store_put_job(gw->store, job->job, hdt_gwjob_state_name(job->state), record, &err) !=
        HDT_OK) {
        hdt_log_failure(HDT_LOG_ERROR, &err);
    }
    json_decref(record);
}

void hdt_gwjob_write_plan(const struct hdt_gwjob *job)
{
    json_t *json = json_pack("{s:O, s:O, s:O, s:O*, s:I, s:O}", "job", job->conf_json, "model",
                             job->model_json, "plan", job->plan_json, "cluster", job->cluster_json,
                             "epoch", (json_int_t)job->epoch, "traces", job->traces);
    char *path = hdt_asprintf("%s/plan.json", job->run_dir);
    char *text = json_dumps(json, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    struct hdt_buf bytes = {0};
    struct hdt_error err = {0};

    hdt_buf_append_str(&bytes, text);
    if (hdt_file_write(path, &bytes, 0644, HDT_FILE_REPLACE, &err) != HDT_OK) {
        hdt_log_failure(HDT_LOG_WARN, &err);
    }
    hdt_buf_release(&bytes);
    free(text);
    free(path);
    json_decref(json);
}

static char *run_dir_of(const struct hdt_gateway *gw, const struct hdt_gwjob *job)
{
    return hdt_asprintf("%s/jobs/%ld-%s", gw->conf.state_dir, (long)job->number, job->name);
}

enum hdt_status hdt_gwjob_open_run_dir(struct hdt_gateway *gw, struct hdt_gwjob *job,
                                       struct hdt_error *err)
{
    char *jobs_dir = hdt_asprintf("%s/jobs", gw->conf.state_dir);
    enum hdt_status status;
    char *path;

    job->run_dir = run_dir_of(gw, job);
    path = hdt_asprintf("%s/metrics.jsonl", job->run_dir);
    if ((mkdir(jobs_dir, 0755) == 0 || errno == EEXIST) &&
        (mkdir(job->run_dir, 0755) == 0 || errno == EEXIST)) {
        status = hdt_journal_open(path, &job->metrics, err);
    } else {
        status = hdt_error_set_errno(err, HDT_EIO, errno, "cannot make '%s'", job->run_dir);
        hdt_error_hint(err, "check free space and the owner of state_dir");
    }
    free(path);
    free(jobs_dir);
    return status;
}

void hdt_gwjob_free(struct hdt_gwjob *job)
{
    hdt_conf_release(&hdt_job_schema, &job->conf);
    hdt_plan_release(&job->plan);
    json_decref(job->conf_json);
    json_decref(job->model_json);
    json_decref(job->plan_json);
    json_decref(job->cluster_json);
    json_decref(job->ranks);
    json_decref(job->traces);
    json_decref(job->traces_from);
    json_decref(job->rank_ends);
    json_decref(job->metrics_notes);
    hdt_journal_close(job->metrics);
    free(job->intake.taken);
    free(job->resume);
    free(job->run_dir);
    free(job->followers);
    free(job->checkpoint);
    free(job->bad_checkpoint);
    free(job->wan);
    hdt_gwjob_waits_free(job);
    free(job->by_rank);
    free(job->rank_is_done);
    free(job->alive);
    hdt_rank_waits_free(job);
    hdt_replan_free(job);
    free(job);
}

static enum hdt_status job_check_cluster(const struct hdt_gwjob *job, struct hdt_error *err)
{
    struct hdt_cluster cluster;

    if (job->cluster_json) {
        HDT_TRY(hdt_cluster_from_json(job->cluster_json, "cluster", &cluster, err));
        hdt_cluster_release(&cluster);
    }
    return HDT_OK;
}

/* Parse what an operator or the store says; on success *out is a job in no list. */
enum hdt_status hdt_gwjob_parse(json_t *body, const char *conf_key, struct hdt_gwjob **out,
                                struct hdt_error *err)
{
    struct hdt_gwjob *job = hdt_calloc(1, sizeof(*job));
    struct hdt_model_config model;
    const char *resume = "";
    json_t *conf, *model_json, *plan, *cluster = NULL;
    enum hdt_status status;

    job->traces = json_array();
    job->traces_from = json_array();
    job->rank_ends = json_array();
    job->ranks = json_array();
    if (json_unpack(body, "{s:o, s:o, s:o, s?:o, s?:s}", conf_key, &conf, "model", &model_json,
                    "plan", &plan, "cluster", &cluster, "resume", &resume) != 0) {
        status = hdt_error_set(err, HDT_EPROTO, "submit needs job, model and plan");
        goto err_job;
    }
    job->conf_json = json_incref(conf);
    job->model_json = json_incref(model_json);
    job->plan_json = json_incref(plan);
    job->cluster_json = json_is_null(cluster) ? NULL : json_incref(cluster);
    job->resume = hdt_strdup(resume);
    if ((status = hdt_conf_from_json(&hdt_job_schema, conf, "job", &job->conf, err)) != HDT_OK ||
        (status = hdt_model_from_json(model_json, "model", &model, err)) != HDT_OK ||
        (status = hdt_job_check(&job->conf, &model, NULL, err)) != HDT_OK ||
        (status = hdt_plan_from_json(plan, &model, &job->plan, err)) != HDT_OK ||
        (status = job_check_cluster(job, err)) != HDT_OK) {
        goto err_job;
    }
    snprintf(job->name, sizeof(job->name), "%s", job->conf.name);
    job->rank_is_done = hdt_calloc(job->plan.n_ranks, sizeof(*job->rank_is_done));
    job->by_rank = hdt_calloc(job->plan.n_ranks, sizeof(*job->by_rank));
    job->first_step = -1;
    job->taken_us = hdt_clock_now_us();
    *out = job;
    return HDT_OK;

err_job:
    hdt_gwjob_free(job);
    return status;
}

/* The state of that name; false: of no job of ours. */
static bool state_parse(const char *name, enum hdt_gwjob_state *state)
{
    for (int i = HDT_GWJOB_PREPARING; i <= HDT_GWJOB_FAILED; i++) {
        if (strcmp(name, hdt_gwjob_state_name((enum hdt_gwjob_state)i)) == 0) {
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
    const char *bad = json_string_value(json_object_get(record, "bad_checkpoint"));
    const json_t *error = json_object_get(record, "error");
    const char *by = json_string_value(json_object_get(record, "stopped_by"));
    json_t *traces = json_object_get(record, "traces");
    const char *why = json_string_value(json_object_get(error, "msg"));
    const json_t *item;
    size_t i;

    if (why && why[0]) {
        hdt_msg_error_from_body(error, &job->error);
    }
    job->bad_checkpoint = bad && bad[0] ? hdt_strdup(bad) : NULL;
    job->best_checkpoint_step = json_integer_value(json_object_get(record, "best_checkpoint_step"));
    job->start_step = json_integer_value(json_object_get(record, "start_step"));
    job->step = json_integer_value(json_object_get(record, "step"));
    job->tokens = json_integer_value(json_object_get(record, "tokens"));
    job->tokens_step = json_integer_value(json_object_get(record, "tokens_step"));
    job->checkpoint_step = json_integer_value(json_object_get(record, "checkpoint_step"));
    job->user_stopped = json_is_true(json_object_get(record, "user_stopped"));
    snprintf(job->stopped_by, sizeof(job->stopped_by), "%s", by ? by : "");
    job->root_done = json_is_true(json_object_get(record, "root_done"));
    snprintf(job->weights_digest, sizeof(job->weights_digest), "%s", digest ? digest : "");
    job->checkpoint = checkpoint && checkpoint[0] ? hdt_strdup(checkpoint) : NULL;
    if (json_is_array(traces)) {
        json_array_extend(job->traces, traces);
    }
    if (json_is_array(json_object_get(record, "traces_from"))) {
        json_array_extend(job->traces_from, json_object_get(record, "traces_from"));
    }
    if (json_is_array(json_object_get(record, "rank_ends"))) {
        json_array_extend(job->rank_ends, json_object_get(record, "rank_ends"));
    }
    job->n_attempts = (int)json_integer_value(json_object_get(record, "attempts"));
    job->best_step = json_integer_value(json_object_get(record, "best_step"));
    job->first_step = json_integer_value(json_object_get(record, "first_step"));
    job->lost_step = json_integer_value(json_object_get(record, "lost_step"));
    job->lost_us = moment_of(json_number_value(json_object_get(record, "lost_time")));
    json_array_foreach(json_object_get(record, "ranks_done"), i, item)
    {
        json_int_t rank = json_integer_value(item);

        if (rank >= 0 && (uint64_t)rank < job->plan.n_ranks && !job->rank_is_done[rank]) {
            job->rank_is_done[rank] = true;
            job->n_ranks_done++;
        }
    }
}

/* Who of its workers still holds it, their answers to the next orders will tell. */
static void job_take_up(struct hdt_gateway *gw, struct hdt_gwjob *job, enum hdt_gwjob_state state)
{
    struct hdt_error err = {0};

    if (state == HDT_GWJOB_PREPARING) {
        hdt_error_set(&err, HDT_ERANK, "the gateway was restarted while job %ld was prepared",
                      (long)job->number);
        job->state = state;
        job->n_attempts -= job->n_attempts > 0; /* this is no fault of the job */
        hdt_recovery_begin(gw, job, &err);
        return;
    }
    hdt_gwjob_set_state(gw, job, state);
    if (hdt_gwjob_all_done(job)) {
        hdt_gwjob_finish(gw, job);
    }
}

/* It stays for those who ask; nothing is opened or made for it. What its last line of metrics says
 * is shown again, if that is still there. */
static void job_load_over(struct hdt_gateway *gw, struct hdt_gwjob *job, enum hdt_gwjob_state state,
                          const json_t *record)
{
    struct hdt_error ignored = {0};
    char *path;

    job->state = state;
    job->state_since_us = moment_of(json_number_value(json_object_get(record, "state_time")));
    job->run_dir = run_dir_of(gw, job);
    path = hdt_asprintf("%s/metrics.jsonl", job->run_dir);
    if (access(path, R_OK | W_OK) == 0) {
        (void)hdt_journal_open(path, &job->metrics, &ignored);
    }
    hdt_gwjob_intake_load(job, record);
    hdt_journal_close(job->metrics);
    job->metrics = NULL;
    if (job->step_s <= 0) {
        job->start_step = job->step; /* its loss is not known any more */
    }
    free(path);
}

static void job_load_active(struct hdt_gateway *gw, struct hdt_gwjob *job,
                            enum hdt_gwjob_state state, const json_t *record)
{
    struct hdt_error err = {0};
    json_t *msg;

    job->last_report_us = hdt_clock_now_us();
    if (hdt_gwjob_settle_deadlines(gw, job, &err) != HDT_OK) {
        hdt_log_failure(HDT_LOG_WARN, &err); /* the knob was changed meanwhile; it goes on */
    }
    if (hdt_gwjob_open_run_dir(gw, job, &err) != HDT_OK) {
        hdt_log_failure(HDT_LOG_WARN, &err);
    }
    hdt_gwjob_intake_load(job, record);
    job->replan.learned = true; /* whether its plan was made of profiles is not written down */
    /* When it recovers, its next epoch has not begun. */
    if (state != HDT_GWJOB_RECOVERING && hdt_gwjob_has_member(job, gw->conf.site)) {
        msg = hdt_msg_new("job.plan", gw->conf.site, json_incref((json_t *)record));
        json_object_set_new(msg, "from", json_string(gw->conf.site));
        hdt_member_job_plan(gw, msg);
        json_decref(msg);
    }
    job_take_up(gw, job, state);
}

static void job_load(void *user, uint32_t number, const char *state_name, const json_t *record)
{
    struct hdt_gateway *gw = user;
    enum hdt_gwjob_state state;
    const char *submitted = json_string_value(json_object_get(record, "submitted"));
    struct hdt_error err = {0};
    struct hdt_gwjob *job;

    if (!state_parse(state_name, &state)) {
        return;
    }
    if (hdt_gwjob_parse((json_t *)record, "conf", &job, &err) != HDT_OK) {
        hdt_log_warn("job %u in the store is not usable: %s", number, err.msg);
        return;
    }
    job->job = number;
    job->epoch = (uint32_t)json_integer_value(json_object_get(record, "epoch"));
    snprintf(job->submitted, sizeof(job->submitted), "%s",
             submitted ? submitted : ""); /* may be of a gateway before this one */
    job->number = json_integer_value(json_object_get(record, "number"));
    job_load_progress(job, record);
    hdt_gwjob_wan_load(job, record);
    LL_APPEND(gw->jobs, job);
    if (state >= HDT_GWJOB_DONE) {
        job_load_over(gw, job, state, record);
    } else {
        job_load_active(gw, job, state, record);
    }
}

static void store_prune(struct hdt_gateway *gw, const char *states, size_t n_keep)
{
    struct hdt_error err = {0};

    if (hdt_store_prune(gw->store, states, n_keep, &err) != HDT_OK) {
        hdt_log_warn_limited(60, "old records of jobs stay: %s", err.msg);
    }
}

void hdt_coordinator_start(struct hdt_gateway *gw)
{
    struct hdt_error err = {0};

    store_prune(gw, STATES_OVER, MAX_JOBS_OVER);
    store_prune(gw, "closed", 0); /* what other sites coordinated, to the end */
    if (hdt_store_each_job(gw->store, job_load, gw, &err) != HDT_OK) {
        hdt_log_failure(HDT_LOG_ERROR, &err);
    }
}

void hdt_gwjobs_prune(struct hdt_gateway *gw)
{
    struct hdt_gwjob *job, *next;
    bool has_forgotten = false;
    size_t n_over = 0;

    LL_FOREACH(gw->jobs, job)
    {
        n_over += hdt_gwjob_is_over(job);
    }
    LL_FOREACH_SAFE(gw->jobs, job, next)
    {
        if (n_over > MAX_JOBS_OVER && hdt_gwjob_is_over(job) && job->n_requests == 0) {
            LL_DELETE(gw->jobs, job);
            hdt_gwjob_free(job);
            n_over--;
            has_forgotten = true;
        }
    }
    if (has_forgotten) {
        store_prune(gw, STATES_OVER, MAX_JOBS_OVER);
    }
}

void hdt_coordinator_free(struct hdt_gateway *gw)
{
    struct hdt_gwjob *job, *next;

    LL_FOREACH_SAFE(gw->jobs, job, next)
    {
        hdt_gwjob_free(job);
    }
    gw->jobs = NULL;
}
