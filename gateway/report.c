/* SPDX-License-Identifier: Apache-2.0 */
/* What workers and member gateways report of a job: kept, written to metrics.jsonl, passed on to
 * those who follow. */
#include "config.h"

#include "gateway/coordinator.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/recorder.h"
#include "src/core/msg.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WAN_RATE_WINDOW_US 900000 /* gateways report every second */
#define COUNT_MAX          ((int64_t)1 << 50)

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

static void metrics_write(struct hdt_gwjob *job, const json_t *line)
{
    char *text;

    if (!job->metrics) {
        return;
    }
    text = json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (fprintf(job->metrics, "%s\n", text) < 0 || fflush(job->metrics) != 0) {
        hdt_log_warn_limited(60, "job %ld: cannot write %s/metrics.jsonl: disk full?",
                             (long)job->number, job->run_dir);
    }
    free(text);
}

/* ---- WAN bytes ---- */

void hdt_gwjob_take_wan(struct hdt_gwjob *job, const char *site, const json_t *body)
{
    struct hdt_gwjob_wan *wan = NULL;
    int64_t now_us = hdt_clock_now_us();
    int64_t raw, sent;

    for (size_t i = 0; i < job->n_wan; i++) {
        if (strcmp(job->wan[i].site, site) == 0) {
            wan = &job->wan[i];
        }
    }
    if (!wan) {
        job->wan = hdt_realloc(job->wan, (job->n_wan + 1) * sizeof(*wan));
        wan = &job->wan[job->n_wan++];
        memset(wan, 0, sizeof(*wan));
        snprintf(wan->site, sizeof(wan->site), "%s", site);
    }
    wan->raw = body_count(body, "raw");
    wan->plain = body_count(body, "plain");
    wan->sent = body_count(body, "sent");
    hdt_gwjob_wan_totals(job, &raw, &sent);
    if (now_us - job->wan_rate_us >= WAN_RATE_WINDOW_US) {
        if (job->wan_rate_us && sent >= job->wan_rate_sent) { /* less: a gateway began anew */
            job->wan_bits_per_s =
                8e6 * (double)(sent - job->wan_rate_sent) / (double)(now_us - job->wan_rate_us);
        }
        job->wan_rate_us = now_us;
        job->wan_rate_sent = sent;
    }
}

static json_t *wan_ratio(const struct hdt_gwjob *job)
{
    int64_t raw, sent;

    hdt_gwjob_wan_totals(job, &raw, &sent);
    return sent > 0 ? json_real((double)raw / (double)sent) : json_null();
}

/* ---- reports of workers ---- */

static void report_step(struct hdt_gateway *gw, struct hdt_gwjob *job, const json_t *body)
{
    int64_t tokens = body_count(body, "tokens");
    json_t *line;

    job->step = body_count(body, "step");
    job->loss = body_real(body, "loss");
    job->lr = body_real(body, "lr");
    job->grad_norm = body_real(body, "grad_norm");
    job->step_s = body_real(body, "step_s");
    job->tokens = job->tokens > COUNT_MAX ? job->tokens : job->tokens + tokens;
    job->tokens_per_s = job->step_s > 0 ? (double)tokens / job->step_s : 0;
    if (json_is_array(json_object_get(body, "ranks"))) {
        json_decref(job->ranks);
        job->ranks = json_incref(json_object_get(body, "ranks"));
    }
    line = json_pack("{s:I, s:o, s:o, s:o, s:I, s:o, s:o, s:f, s:f, s:o, s:O}", "step",
                     (json_int_t)job->step, "loss", real_or_null(job->loss), "lr",
                     real_or_null(job->lr), "grad_norm", real_or_null(job->grad_norm), "tokens",
                     (json_int_t)job->tokens, "tokens_per_s", real_or_null(job->tokens_per_s),
                     "step_s", real_or_null(job->step_s), "predicted_step_s", job->plan.step_s,
                     "wan_bits_per_s", job->wan_bits_per_s, "wan_ratio", wan_ratio(job), "ranks",
                     job->ranks);
    json_object_set_new(line, "time", json_real((double)hdt_clock_wall_us() / 1e6));
    metrics_write(job, line);
    hdt_gwjob_event(gw, job, "step", line);
}

static void report_eval(struct hdt_gateway *gw, struct hdt_gwjob *job, const json_t *body)
{
    json_t *line;

    job->val_loss = body_real(body, "val_loss");
    job->has_val_loss = true;
    line = json_pack("{s:I, s:o}", "step", (json_int_t)body_int(body, "step"), "val_loss",
                     real_or_null(job->val_loss));
    metrics_write(job, line);
    hdt_gwjob_event(gw, job, "eval", line);
}

static void report_checkpoint(struct hdt_gateway *gw, struct hdt_gwjob *job, const json_t *body)
{
    const char *path = json_string_value(json_object_get(body, "path"));

    free(job->checkpoint);
    job->checkpoint = hdt_strdup(path ? path : "");
    job->checkpoint_step = body_count(body, "step");
    HDT_RECORD(HDT_REC_CHECKPOINT, .n = {job->job, job->checkpoint_step},
               .text = {"reported complete"});
    hdt_gwjob_save(gw, job);
    hdt_log_info("job %ld: checkpoint of step %ld complete: %s", (long)job->number,
                 (long)body_int(body, "step"), job->checkpoint);
    hdt_gwjob_event(gw, job, "checkpoint",
                    json_pack("{s:I, s:s, s:f}", "step", (json_int_t)body_int(body, "step"), "path",
                              job->checkpoint, "seconds", body_real(body, "seconds")));
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
    hdt_gwjob_fail(gw, job, &err);
}

static void report_rank_done(struct hdt_gateway *gw, struct hdt_gwjob *job, const json_t *body)
{
    json_t *trace = json_object_get(body, "trace");
    int64_t rank = body_int(body, "rank");

    if (job->rank_is_done[rank]) {
        return;
    }
    job->rank_is_done[rank] = true;
    job->n_ranks_done++;
    if (json_is_string(trace)) {
        json_array_append(job->traces, trace);
    }
    hdt_gwjob_save(gw, job);
}

/* Only who has a part in the job speaks of it, and of ranks only who runs them. */
static bool report_is_allowed(const struct hdt_gwjob *job, const json_t *msg)
{
    const char *from = hdt_msg_from(msg);

    if (strcmp(hdt_msg_type(msg), "rank.done") == 0) {
        return hdt_gwjob_rank_is_of(
            job,
            json_object_get(hdt_msg_body(msg), "rank") ? body_int(hdt_msg_body(msg), "rank") : -1,
            from);
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

/* A site that still has a job which is over was away when it ended: it is told again. */
static void report_of_none(struct hdt_gateway *gw, const json_t *msg)
{
    if (strcmp(hdt_msg_type(msg), "job.wan") == 0) {
        hdt_route_post(gw, hdt_msg_from(msg), "job.close",
                       json_pack("{s:I}", "job", body_int(hdt_msg_body(msg), "job")));
    }
}

static void report_take(struct hdt_gateway *gw, struct hdt_gwjob *job, const json_t *msg)
{
    const json_t *body = hdt_msg_body(msg);
    const char *type = hdt_msg_type(msg);

    job->last_report_us = hdt_clock_now_us();
    if (strcmp(type, "step") == 0) {
        report_step(gw, job, body);
    } else if (strcmp(type, "eval") == 0) {
        report_eval(gw, job, body);
    } else if (strcmp(type, "ckpt") == 0) {
        report_checkpoint(gw, job, body);
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
}

void hdt_coordinator_report(struct hdt_gateway *gw, const json_t *msg)
{
    const json_t *body = hdt_msg_body(msg);
    struct hdt_gwjob *job = hdt_gwjob_find(gw, body_int(body, "job"));

    if (!job || hdt_gwjob_is_over(job)) {
        report_of_none(gw, msg); /* it may have ended while the message was under way */
        return;
    }
    if (!report_is_allowed(job, msg)) {
        report_refuse(gw, msg);
        return;
    }
    if (strcmp(hdt_msg_type(msg), "job.wan") == 0) {
        hdt_gwjob_take_wan(job, hdt_msg_from(msg), body);
        return;
    }
    if (body_int(body, "epoch") != (int64_t)job->epoch && json_object_get(body, "epoch")) {
        return; /* of an older plan */
    }
    report_take(gw, job, msg);
}
