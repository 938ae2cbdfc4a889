/* SPDX-License-Identifier: Apache-2.0 */
/* What workers and member gateways report of a job: kept, written to metrics.jsonl, passed on to
 * those who follow. A report of a worker is acknowledged when that is done, and is taken once; see
 * intake.c. */
#include "config.h"

#include "gateway/journal.h"
#include "gateway/recovery.h"
#include "gateway/replan.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/recorder.h"
#include "src/core/msg.h"
#include "src/core/schedule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT_MAX           ((int64_t)1 << 50)
#define METRICS_PATIENCE_US (600 * HDT_US_PER_S) /* for a full disk */
#define METRICS_NOTES_MAX   256

static double body_real(const json_t *body, const char *key)
{
    return json_number_value(json_object_get(body, key));
}

static int64_t body_int(const json_t *body, const char *key)
{
    return json_integer_value(json_object_get(body, key));
}

/* A count of another program: bounded, so that sums of them are. */
static int64_t body_count(const json_t *body, const char *key)
{
    int64_t n = body_int(body, key);

    return n < 0 ? 0 : n > COUNT_MAX ? COUNT_MAX : n;
}

/* NaN and infinity have no JSON form. */
static json_t *real_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

/* ---- metrics.jsonl ---- */

static enum hdt_status metrics_write(struct hdt_gwjob *job, const json_t *line,
                                     struct hdt_error *err)
{
    char *path;

    if (!job->metrics) { /* it could not be opened; whatever was in the way may be gone */
        path = hdt_asprintf("%s/metrics.jsonl", job->run_dir);
        hdt_journal_open(path, &job->metrics, err);
        free(path);
    }
    return job->metrics ? hdt_journal_write(job->metrics, line, err) : HDT_EIO;
}

/* Our own lines first, in order. */
static enum hdt_status metrics_write_notes(struct hdt_gwjob *job, struct hdt_error *err)
{
    while (json_array_size(job->metrics_notes) > 0) {
        HDT_TRY(metrics_write(job, json_array_get(job->metrics_notes, 0), err));
        json_array_remove(job->metrics_notes, 0);
    }
    return HDT_OK;
}

/* A line that cannot be written is still with the worker whose report it is of, and comes again;
 * one of our own waits here. But a job is worth more than its metrics: after a while it goes on
 * without them. NULL: nothing but our own. */
static enum hdt_status metrics_try(struct hdt_gwjob *job, const json_t *line)
{
    const int64_t now_us = hdt_clock_now_us();
    struct hdt_error err = {0};

    if (metrics_write_notes(job, &err) == HDT_OK &&
        (!line || metrics_write(job, line, &err) == HDT_OK)) {
        job->metrics_failed_us = 0;
        return HDT_OK;
    }
    job->metrics_failed_us = job->metrics_failed_us ? job->metrics_failed_us : now_us;
    if (now_us - job->metrics_failed_us < METRICS_PATIENCE_US) {
        hdt_log_warn_limited(60, "job %ld: its metrics wait: %s", (long)job->number, err.msg);
        return HDT_EIO;
    }
    hdt_log_error("job %ld: a line of its metrics is lost: %s", (long)job->number, err.msg);
    return HDT_OK;
}

static void metrics_stamp(const struct hdt_gwjob *job, json_t *line)
{
    json_object_set_new(line, "epoch", json_integer(job->epoch));
    json_object_set_new(line, "time", json_real((double)hdt_clock_wall_us() / 1e6));
}

static enum hdt_status metrics_add(struct hdt_gwjob *job, const json_t *body, json_t *line)
{
    json_t *n = json_object_get(body, "n");

    if (n) {
        json_object_set_new(line, "rank", json_integer(job->plan.root_rank));
        json_object_set(line, "n", n);
    }
    metrics_stamp(job, line);
    return metrics_try(job, line);
}

void hdt_gwjob_metrics_note(struct hdt_gwjob *job, json_t *line)
{
    metrics_stamp(job, line);
    if (!job->metrics_notes) {
        job->metrics_notes = json_array();
    }
    if (json_array_size(job->metrics_notes) >= METRICS_NOTES_MAX) {
        hdt_log_error("job %ld: a line of its metrics is lost: %d wait for room on the disk",
                      (long)job->number, METRICS_NOTES_MAX);
        json_array_remove(job->metrics_notes, 0);
    }
    json_array_append_new(job->metrics_notes, line);
    (void)metrics_try(job, NULL);
}

static json_t *wan_ratio(const struct hdt_gwjob *job)
{
    int64_t raw, sent;

    hdt_gwjob_wan_totals(job, &raw, &sent);
    return sent > 0 ? json_real((double)raw / (double)sent) : json_null();
}

/* Write the line of a report, then tell those who follow; the line is stolen. Which report it is of
 * stands in it: so a restarted gateway knows that it was taken. */
static enum hdt_status report_line(struct hdt_gateway *gw, struct hdt_gwjob *job, const char *event,
                                   const json_t *body, json_t *line)
{
    if (metrics_add(job, body, line) != HDT_OK) {
        json_decref(line);
        return HDT_EIO;
    }
    hdt_gwjob_event(gw, job, event, line);
    return HDT_OK;
}

/* ---- reports of workers ---- */

/* Tokens that this job trained up to a step: a step that is trained again counts once. */
static int64_t tokens_at(const struct hdt_gwjob *job, int64_t step, int64_t step_tokens)
{
    const int64_t n_steps = step - job->tokens_step;
    const double tokens = (double)job->tokens + (double)n_steps * (double)step_tokens;

    return tokens < 0                   ? 0
           : tokens > (double)COUNT_MAX ? COUNT_MAX
                                        : job->tokens + n_steps * step_tokens;
}

/* What a worker says of the ranks, as far as it is what we expect: it is kept, written and sent on.
 * New reference. */
static json_t *ranks_of(const struct hdt_gwjob *job, const json_t *said)
{
    json_t *ranks = json_array();
    const json_t *item;
    size_t i;

    json_array_foreach(said, i, item)
    {
        const json_int_t rank = json_integer_value(json_object_get(item, "rank"));

        if (json_array_size(ranks) < job->plan.n_ranks && rank >= 0 &&
            (uint64_t)rank < job->plan.n_ranks) {
            json_array_append_new(ranks,
                                  json_pack("{s:I, s:o, s:o}", "rank", rank, "busy_s",
                                            real_or_null(body_real(item, "busy_s")), "wait_s",
                                            real_or_null(body_real(item, "wait_s"))));
        }
    }
    return ranks;
}

static enum hdt_status report_step(struct hdt_gateway *gw, struct hdt_gwjob *job,
                                   const json_t *body)
{
    const int64_t step_tokens = body_count(body, "tokens"), step = body_count(body, "step");
    const int64_t tokens = tokens_at(job, step, step_tokens);
    const double loss = body_real(body, "loss"), lr = body_real(body, "lr");
    const double grad_norm = body_real(body, "grad_norm"), step_s = body_real(body, "step_s");
    const double tokens_per_s = step_s > 0 ? (double)step_tokens / step_s : 0;
    json_t *ranks = ranks_of(job, json_object_get(body, "ranks")), *line;

    line = json_pack("{s:I, s:o, s:o, s:o, s:I, s:o, s:o, s:f, s:f, s:o, s:O}", "step",
                     (json_int_t)step, "loss", real_or_null(loss), "lr", real_or_null(lr),
                     "grad_norm", real_or_null(grad_norm), "tokens", (json_int_t)tokens,
                     "tokens_per_s", real_or_null(tokens_per_s), "step_s", real_or_null(step_s),
                     "predicted_step_s", job->plan.step_s, "wan_bits_per_s", job->wan_bits_per_s,
                     "wan_ratio", wan_ratio(job), "ranks", ranks);
    if (json_object_get(body, "outer_loss")) { /* of all replicas since the last outer step */
        json_object_set_new(line, "outer_loss", real_or_null(body_real(body, "outer_loss")));
        json_object_set_new(line, "outer_steps", json_integer(body_count(body, "outer_steps")));
    }
    if (report_line(gw, job, "step", body, line) != HDT_OK) {
        json_decref(ranks);
        return HDT_EIO;
    }
    if (step > job->best_step) {
        job->best_step = step;
        job->n_attempts = 0;
    }
    job->step = step;
    job->tokens = tokens;
    job->tokens_step = step;
    job->loss = loss;
    job->lr = lr;
    job->grad_norm = grad_norm;
    job->step_s = step_s;
    job->tokens_per_s = tokens_per_s;
    json_decref(job->ranks);
    job->ranks = ranks;
    hdt_replan_step(gw, job, step_s, ranks);
    return HDT_OK;
}

static enum hdt_status report_eval(struct hdt_gateway *gw, struct hdt_gwjob *job,
                                   const json_t *body)
{
    const double val_loss = body_real(body, "val_loss");

    HDT_TRY(report_line(gw, job, "eval", body,
                        json_pack("{s:I, s:o}", "step", (json_int_t)body_int(body, "step"),
                                  "val_loss", real_or_null(val_loss))));
    job->val_loss = val_loss;
    job->has_val_loss = true;
    return HDT_OK;
}

void hdt_gwjob_take_checkpoint(struct hdt_gateway *gw, struct hdt_gwjob *job, const json_t *body)
{
    const char *path = json_string_value(json_object_get(body, "path"));
    int64_t step = body_count(body, "step");
    char from[HDT_ADDRESS_CAP];

    if (!path ||
        (job->checkpoint && (step < job->checkpoint_step || strcmp(path, job->checkpoint) == 0))) {
        return; /* said before; or of an epoch that is over, and older than what we have */
    }
    if (job->bad_checkpoint && strcmp(path, job->bad_checkpoint) == 0) {
        return; /* it was refused: to take it up again would end nowhere */
    }
    if (step > job->best_checkpoint_step) {
        job->best_checkpoint_step = step;
        job->n_attempts = 0;
    }
    free(job->checkpoint);
    job->checkpoint = hdt_strdup(path);
    job->checkpoint_step = step;
    job->replan.checkpoint_s = fmax(0, body_real(body, "seconds"));
    HDT_RECORD(HDT_REC_CHECKPOINT, .n = {job->job, step}, .text = {"reported complete"});
    hdt_gwjob_save(gw, job);
    hdt_log_info("job %ld: checkpoint of step %ld complete: %s", (long)job->number,
                 (long)body_int(body, "step"), job->checkpoint);
    hdt_gwjob_rank_address(job, (size_t)job->plan.checkpoint_rank, from);
    hdt_gwjob_event(gw, job, "checkpoint",
                    json_pack("{s:I, s:I, s:s, s:s, s:f}", "epoch", (json_int_t)job->epoch, "step",
                              (json_int_t)body_int(body, "step"), "path", job->checkpoint, "from",
                              from, "seconds", body_real(body, "seconds")));
}

/* It was written anew. */
static void bad_checkpoint_forget(struct hdt_gwjob *job, const json_t *body)
{
    const char *path = json_string_value(json_object_get(body, "path"));

    if (path && job->bad_checkpoint && strcmp(path, job->bad_checkpoint) == 0) {
        free(job->bad_checkpoint);
        job->bad_checkpoint = NULL;
    }
}

/* The job goes on: its last checkpoint is older than it should be, and somebody must know. */
static void report_checkpoint_failed(struct hdt_gateway *gw, struct hdt_gwjob *job,
                                     const json_t *body)
{
    const json_t *error = json_object_get(body, "error");
    struct hdt_error err = {0};

    hdt_msg_error_from_body(error, &err);
    hdt_log_warn("job %ld: no checkpoint of step %ld: %s", (long)job->number,
                 (long)body_int(body, "step"), err.msg);
    /* A disk that is full here as well must not keep the news back. */
    hdt_gwjob_metrics_note(job, json_pack("{s:s, s:I, s:o}", "event", "ckpt.failed", "step",
                                          (json_int_t)body_int(body, "step"), "error",
                                          hdt_msg_error_body(&err)));
    hdt_gwjob_event(gw, job, "ckpt.failed",
                    json_pack("{s:I, s:I, s:o}", "epoch", (json_int_t)job->epoch, "step",
                              (json_int_t)body_int(body, "step"), "error",
                              hdt_msg_error_body(&err)));
}

static void report_root_done(struct hdt_gateway *gw, struct hdt_gwjob *job, const json_t *body)
{
    const char *digest = json_string_value(json_object_get(body, "weights_digest"));

    if (job->state != HDT_GWJOB_RUNNING && job->state != HDT_GWJOB_STOPPING) {
        return; /* said before */
    }
    job->root_done = true;
    job->step = body_count(body, "steps");
    snprintf(job->weights_digest, sizeof(job->weights_digest), "%s", digest ? digest : "");
    hdt_gwjob_set_state(gw, job, HDT_GWJOB_FINISHING);
}

static void report_failed(struct hdt_gateway *gw, struct hdt_gwjob *job, const json_t *msg)
{
    struct hdt_error err = {0};

    hdt_msg_error_from_body(json_object_get(hdt_msg_body(msg), "error"), &err);
    if (!err.where[0]) {
        hdt_error_where(&err, "%s", hdt_msg_from(msg));
    }
    hdt_recovery_rank_failed(gw, job, hdt_msg_from(msg), &err);
}

/* Where a rank's training time went, by its own words; what is no number is null. */
static json_t *rank_end_json(const struct hdt_gwjob *job, size_t rank, const json_t *body)
{
    static const char *const numbers[] = {"memory_bytes", "train_s", "train_wait_s"};
    json_t *end = json_object(), *ops = json_object(), *value;
    char from[HDT_ADDRESS_CAP];
    const char *name;

    hdt_gwjob_rank_address(job, rank, from);
    json_object_set_new(end, "rank", json_integer((json_int_t)rank));
    json_object_set_new(end, "worker", json_string(from));
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        value = json_object_get(body, numbers[i]);
        json_object_set_new(end, numbers[i],
                            json_is_number(value) ? json_incref(value) : json_null());
    }
    for (int kind = 0; kind < HDT_OP_KIND_COUNT; kind++) {
        name = hdt_op_name(kind);
        value = json_object_get(json_object_get(body, "ops"), name);
        if (json_is_number(value)) {
            json_object_set(ops, name, value);
        }
    }
    json_object_set_new(end, "ops", ops);
    return end;
}

static void report_rank_done(struct hdt_gateway *gw, struct hdt_gwjob *job, const json_t *body)
{
    json_t *trace = json_object_get(body, "trace");
    int64_t rank = body_int(body, "rank");
    char from[HDT_ADDRESS_CAP];

    if (!job->rank_is_done[rank] && json_is_string(trace)) {
        json_array_append(job->traces, trace);
        hdt_gwjob_rank_address(job, (size_t)rank, from);
        json_array_append_new(job->traces_from, json_string(from));
    }
    if (!job->rank_is_done[rank]) {
        json_array_append_new(job->rank_ends, rank_end_json(job, (size_t)rank, body));
    }
    hdt_gwjob_rank_done(gw, job, (size_t)rank);
}

/* Only who has a part in the job speaks of it, of ranks only who runs them, and of steps the root.
 */
static bool report_is_allowed(const struct hdt_gwjob *job, const json_t *msg)
{
    const char *from = hdt_msg_from(msg), *type = hdt_msg_type(msg);
    const json_t *rank = json_object_get(hdt_msg_body(msg), "rank");

    if (strcmp(type, "rank.done") == 0) {
        return hdt_gwjob_rank_is_of(job, rank ? json_integer_value(rank) : -1, from);
    }
    if (strcmp(type, "step") == 0 || strcmp(type, "eval") == 0 || strcmp(type, "done") == 0) {
        return hdt_gwjob_rank_is_of(job, job->plan.root_rank, from);
    }
    return hdt_gwjob_has_member(job, from);
}

static void report_refuse(struct hdt_gateway *gw, const json_t *msg)
{
    struct hdt_error err = {0}, ignored = {0};

    gw->n_refused_messages++;
    hdt_error_set(&err, HDT_EACCES, "'%s' has no part in job %ld of which its '%s' speaks",
                  hdt_msg_from(msg), (long)body_int(hdt_msg_body(msg), "job"), hdt_msg_type(msg));
    hdt_log_warn_limited(10, "%s", err.msg);
    hdt_route_send(gw, hdt_msg_reply_error(msg, &err), &ignored);
}

/* A site that still has a job, or an epoch, which is over was away when it ended: it is told again.
 * So is a worker that still speaks of it. */
static void report_of_none(struct hdt_gateway *gw, const json_t *msg)
{
    const json_t *body = hdt_msg_body(msg);

    if (strcmp(hdt_msg_type(msg), "job.wan") == 0) {
        hdt_route_post(gw, hdt_msg_from(msg), "job.close",
                       json_pack("{s:I, s:I}", "job", body_int(body, "job"), "epoch",
                                 body_int(body, "epoch")));
    } else if (strchr(hdt_msg_from(msg), '/')) {
        hdt_route_post(gw, hdt_msg_from(msg), "release",
                       json_pack("{s:I, s:I}", "job", body_int(body, "job"), "epoch",
                                 body_int(body, "epoch")));
    }
}

/* HDT_EIO: it could not be written down, and was not taken. */
static enum hdt_status report_take(struct hdt_gateway *gw, struct hdt_gwjob *job, const json_t *msg)
{
    const json_t *body = hdt_msg_body(msg);
    const char *type = hdt_msg_type(msg);

    if (strcmp(type, "task.alive") == 0) {
        hdt_gwjob_take_alive(gw, job, msg);
        return HDT_OK;
    }
    if (strcmp(type, "step") == 0) {
        return report_step(gw, job, body);
    }
    if (strcmp(type, "eval") == 0) {
        return report_eval(gw, job, body);
    }
    if (strcmp(type, "ckpt") == 0) {
        bad_checkpoint_forget(job, body);
        hdt_gwjob_take_checkpoint(gw, job, body);
    } else if (strcmp(type, "ckpt.failed") == 0) {
        report_checkpoint_failed(gw, job, body);
    } else if (strcmp(type, "failed") == 0) {
        report_failed(gw, job, msg);
    } else if (strcmp(type, "done") == 0) {
        report_root_done(gw, job, body);
    } else if (strcmp(type, "rank.done") == 0) {
        report_rank_done(gw, job, body);
    }
    if (hdt_gwjob_all_done(job) && job->n_waiting == 0) {
        hdt_gwjob_finish(gw, job);
    }
    return HDT_OK;
}

/* Rank of the worker with that address; -1: none. */
static int64_t rank_of(const struct hdt_gwjob *job, const char *address)
{
    for (size_t rank = 0; rank < job->plan.n_ranks; rank++) {
        if (hdt_gwjob_rank_is_of(job, (int64_t)rank, address)) {
            return (int64_t)rank;
        }
    }
    return -1;
}

/* A worker's report: once, in order, and acknowledged when it is written down. Its number is noted
 * first: what the report changes is saved together with it. */
static void report_take_numbered(struct hdt_gateway *gw, struct hdt_gwjob *job, size_t rank,
                                 const json_t *msg)
{
    const json_t *body = hdt_msg_body(msg);
    const int64_t n = body_count(body, "n"), before = hdt_gwjob_taken(job, rank);
    const uint32_t epoch = job->epoch;

    switch (hdt_gwjob_judge(job, rank, n, body_count(body, "first"))) {
    case HDT_GWINTAKE_EARLY:
        return;
    case HDT_GWINTAKE_TAKEN:
        break;
    case HDT_GWINTAKE_NEXT:
        hdt_gwjob_set_taken(job, rank, n);
        if (report_take(gw, job, msg) != HDT_OK) {
            hdt_gwjob_set_taken(job, rank, before);
            return;
        }
        break;
    }
    if (!hdt_gwjob_is_over(job) && job->epoch == epoch) { /* else it is released */
        hdt_gwjob_acknowledge(gw, job, rank, false);
    }
}

/* Of an epoch that is over only its checkpoints count: they hold what any epoch comes to. */
static bool epoch_counts(const struct hdt_gwjob *job, const json_t *msg)
{
    const json_t *epoch = json_object_get(hdt_msg_body(msg), "epoch");

    if (!epoch || json_integer_value(epoch) == (int64_t)job->epoch) {
        return job->state != HDT_GWJOB_RECOVERING;
    }
    return job->state == HDT_GWJOB_RECOVERING && strcmp(hdt_msg_type(msg), "ckpt") == 0 &&
           json_integer_value(epoch) < (int64_t)job->epoch;
}

static bool epoch_is_present(const struct hdt_gwjob *job, const json_t *body)
{
    const json_t *epoch = json_object_get(body, "epoch");

    return !epoch || json_integer_value(epoch) == (int64_t)job->epoch;
}

void hdt_coordinator_report(struct hdt_gateway *gw, const json_t *msg)
{
    const json_t *body = hdt_msg_body(msg);
    struct hdt_gwjob *job = hdt_gwjob_find(gw, body_int(body, "job"));
    int64_t rank;

    if (!job || hdt_gwjob_is_over(job) || !epoch_counts(job, msg)) {
        report_of_none(gw, msg); /* it may have ended while the message was under way */
        return;
    }
    if (!report_is_allowed(job, msg)) {
        report_refuse(gw, msg);
        return;
    }
    if (strcmp(hdt_msg_type(msg), "job.wan") == 0) {
        hdt_gwjob_take_wan(gw, job, hdt_msg_from(msg), body);
        return;
    }
    job->last_report_us = hdt_clock_now_us();
    rank = rank_of(job, hdt_msg_from(msg));
    if (rank >= 0 && body_int(body, "n") > 0 && epoch_is_present(job, body)) {
        report_take_numbered(gw, job, (size_t)rank, msg);
    } else {
        report_take(gw, job, msg); /* of a gateway; or a checkpoint of an epoch that is over */
    }
    if (!epoch_is_present(job, body)) {
        report_of_none(gw, msg);
    }
}
