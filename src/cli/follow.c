/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/follow.h"
#include "src/cli/follow_show.h"
#include "src/cli/gwoptions.h"
#include "src/cli/human.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/median.h"
#include "src/core/msg.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_MS       1000 /* how often the live line is written anew while nothing comes */
#define RETRY_US      500000
#define AWAY_EVERY_US (30 * HDT_US_PER_S)

static double real_of(const json_t *body, const char *key)
{
    const json_t *value = json_object_get(body, key);

    return json_is_number(value) ? json_number_value(value) : NAN;
}

static json_int_t int_of(const json_t *body, const char *key)
{
    return json_integer_value(json_object_get(body, key));
}

/* ---- events ---- */

/* Of an event: as it says, else the one that the job is known to be in. */
static json_int_t epoch_of(const struct hdt_follow *f, const json_t *body)
{
    const json_int_t epoch = int_of(body, "epoch");

    return epoch > 0 ? epoch : f->epoch > 0 ? f->epoch : 1;
}

/* An outer step has ended a round of n steps. Those that were missed are not in the mean. */
static void round_take(struct hdt_follow *f, json_int_t n)
{
    const struct hdt_follow_step *last = &f->trained[f->n_trained - 1];
    size_t first = f->n_trained;
    double sum_s = 0;

    while (first > 0 && f->trained[first - 1].epoch == last->epoch &&
           f->trained[first - 1].step > last->step - n) {
        sum_s += f->trained[--first].step_s;
    }
    for (size_t i = first; i < f->n_trained && isfinite(sum_s); i++) {
        f->trained[i].pace_s = sum_s / (double)(f->n_trained - first);
    }
}

/* Steps come again after a restart: the record has them as they were trained last. */
static void step_take(struct hdt_follow *f, const json_t *body)
{
    const json_int_t step = int_of(body, "step");
    const double predicted_s = real_of(body, "predicted_step_s");

    while (f->n_trained > 0 && f->trained[f->n_trained - 1].step >= step) {
        f->n_trained--;
        f->n_again++;
    }
    if (f->n_trained == f->trained_cap) {
        f->trained_cap = f->trained_cap ? 2 * f->trained_cap : 256;
        f->trained = hdt_realloc(f->trained, f->trained_cap * sizeof(f->trained[0]));
    }
    f->trained[f->n_trained++] = (struct hdt_follow_step){.step = step,
                                                          .epoch = epoch_of(f, body),
                                                          .loss = real_of(body, "loss"),
                                                          .step_s = real_of(body, "step_s"),
                                                          .pace_s = real_of(body, "step_s")};
    if (int_of(body, "outer_steps") > 1) {
        round_take(f, int_of(body, "outer_steps"));
    }
    if (predicted_s > 0) {
        f->predicted_step_s = predicted_s; /* of the plan as it is now */
    }
    hdt_follow_show_step(f, body);
}

static bool state_is_over(const char *state)
{
    return strcmp(state, "done") == 0 || strcmp(state, "failed") == 0 ||
           strcmp(state, "stopped") == 0;
}

static void state_take(struct hdt_follow *f, const json_t *body)
{
    const char *state = json_string_value(json_object_get(body, "state"));
    const char *by = json_string_value(json_object_get(body, "stopped_by"));
    const json_t *error = json_object_get(body, "error");

    if (!state) {
        return;
    }
    if (by) {
        snprintf(f->stopped_by, sizeof(f->stopped_by), "%s", by);
    }
    hdt_follow_show_state(f, body);
    snprintf(f->state, sizeof(f->state), "%s", state);
    if (int_of(body, "epoch") > 0) {
        f->epoch = int_of(body, "epoch");
    }
    if (json_is_object(error) && state_is_over(state)) {
        hdt_msg_error_from_body(error, &f->error);
    }
}

static void eval_take(struct hdt_follow *f, const json_t *body)
{
    f->val_loss = real_of(body, "val_loss");
    hdt_follow_show(f, "step %lld: held-out loss %.4f", (long long)int_of(body, "step"),
                    f->val_loss);
}

static void checkpoint_take(struct hdt_follow *f, const json_t *body)
{
    const char *path = json_string_value(json_object_get(body, "path"));
    const char *from = json_string_value(json_object_get(body, "from"));
    const json_int_t step = int_of(body, "step");

    if (!path || (step == f->checkpoint_step && strcmp(path, f->checkpoint) == 0)) {
        return;
    }
    f->checkpoint_step = step;
    snprintf(f->checkpoint, sizeof(f->checkpoint), "%s", path);
    snprintf(f->checkpoint_from, sizeof(f->checkpoint_from), "%s", from ? from : "");
    hdt_follow_show(f, "step %lld: checkpoint %s (%.1f s)", (long long)step, path,
                    real_of(body, "seconds"));
}

static void checkpoint_failed_take(struct hdt_follow *f, const json_t *body)
{
    struct hdt_error err = {0};

    hdt_msg_error_from_body(json_object_get(body, "error"), &err);
    hdt_follow_show(f, "step %lld: NO CHECKPOINT: %s", (long long)int_of(body, "step"), err.msg);
    if (err.hint[0]) {
        hdt_follow_show(f, "  hint: %s", err.hint);
    }
}

/* Told by states while it happens; this is for who was away then, and has what it cost. */
static void restart_take(struct hdt_follow *f, const json_t *body)
{
    const json_int_t epoch = int_of(body, "epoch");

    if (epoch <= f->restart_epoch) {
        return;
    }
    f->restart_epoch = epoch;
    f->lost_s += fmax(0, json_number_value(json_object_get(body, "seconds_lost")));
    if (epoch > f->epoch) {
        hdt_follow_show_restart(f, body);
        f->epoch = epoch;
    }
}

static void done_take(struct hdt_follow *f, const json_t *body)
{
    json_decref(f->done);
    f->done = json_incref((json_t *)(uintptr_t)body);
}

/* After a reconnect, or when two of our requests made us a follower, an event may come twice. */
static bool event_is_new(struct hdt_follow *f, const json_t *body, struct hdt_follow_mark *last)
{
    const json_int_t step = int_of(body, "step");
    const json_int_t epoch = epoch_of(f, body);

    if (epoch < last->epoch || (epoch == last->epoch && step <= last->step)) {
        return false;
    }
    *last = (struct hdt_follow_mark){.epoch = epoch, .step = step};
    return true;
}

static void event_take(struct hdt_follow *f, const json_t *body)
{
    const struct {
        const char *event;
        void (*take)(struct hdt_follow *f, const json_t *body);
        struct hdt_follow_mark *last; /* NULL: the event knows itself what is new */
    } events[] = {
        {"state", state_take, NULL},
        {"step", step_take, &f->last_step},
        {"eval", eval_take, &f->last_eval},
        {"checkpoint", checkpoint_take, NULL},
        {"ckpt.failed", checkpoint_failed_take, &f->last_failed_checkpoint},
        {"replan", hdt_follow_show_replan, NULL},
        {"waiting", hdt_follow_show_rank_wait, NULL},
        {"restart", restart_take, NULL},
        {"done", done_take, NULL},
    };
    const char *event = json_string_value(json_object_get(body, "event"));

    for (size_t i = 0; event && i < sizeof(events) / sizeof(events[0]); i++) {
        if (strcmp(event, events[i].event) == 0 &&
            (!events[i].last || event_is_new(f, body, events[i].last))) {
            events[i].take(f, body);
        }
    }
}

static bool follow_is_over(const struct hdt_follow *f)
{
    return f->left || state_is_over(f->state);
}

/* ---- Ctrl-C and lost gateways ---- */

static void follow_leave(struct hdt_follow *f)
{
    if (f->stop_asked) {
        hdt_follow_show(f, "leaving; job %lld stops by itself: hdt status", (long long)f->number);
    } else {
        hdt_follow_show(
            f,
            "leaving; job %lld goes on. To watch it: hdt status --watch; to end it: hdt "
            "stop %lld",
            (long long)f->number, (long long)f->number);
    }
    f->left = true;
}

static enum hdt_status interrupt_take(struct hdt_follow *f, struct hdt_error *err)
{
    if (!f->stops_on_interrupt || f->stop_asked) {
        follow_leave(f);
        return HDT_OK;
    }
    f->stop_asked = true;
    hdt_follow_show(f, "stopping after the step in work, with a checkpoint; Ctrl-C again: do not "
                       "wait for it");
    return hdt_gwclient_send(f->client, "stop", json_pack("{s:I}", "job", f->job), err);
}

/* Connect and follow on: what we missed comes as events, the state last. HDT_AGAIN: not yet. */
static enum hdt_status follow_connect(struct hdt_follow *f, struct hdt_error *err)
{
    struct hdt_gwclient_request request = {.type = "follow", .expect = "following"};
    struct hdt_gwclient *client;
    enum hdt_status status;
    json_t *body;

    status = hdt_gwclient_open(f->conf, &client, err);
    if (status != HDT_OK) {
        return status == HDT_ENOENT || status == HDT_EPEER || status == HDT_ETIMEDOUT ? HDT_AGAIN
                                                                                      : status;
    }
    hdt_gwclient_close(f->client);
    f->client = client;
    request.body = json_pack("{s:I, s:I, s:I}", "job", f->job, "epoch", f->last_step.epoch, "since",
                             f->last_step.step);
    status = hdt_gwclient_ask(f->client, &request, &body, err);
    if (status == HDT_OK) {
        json_decref(body);
    } else if (status == HDT_EPEER || status == HDT_ETIMEDOUT) {
        status = HDT_AGAIN;
    } else if (status == HDT_ENOENT) {
        hdt_error_hint(err, "it ended while the gateway was away, or the gateway lost its "
                            "state_dir; the job's metrics.jsonl and 'hdt logs' say how it went");
    }
    return status;
}

static void away_show(struct hdt_follow *f, int64_t begin_us, int64_t now_us, const char *why)
{
    char away[HDT_HUMAN_CAP], left[HDT_HUMAN_CAP];
    int64_t left_us = begin_us + f->silence_ms * HDT_US_PER_MS - now_us;

    if (!f->on_tty && now_us - f->said_us < AWAY_EVERY_US) {
        return;
    }
    f->said_us = now_us;
    hdt_human_duration((double)left_us / 1e6, left);
    hdt_follow_show_live(f, "gateway away for %s, trying for another %s: %s",
                         hdt_human_duration((double)(now_us - begin_us) / 1e6, away), left, why);
}

/* The gateway keeps the job; when it restarts or the connection broke, follow it again. */
static enum hdt_status follow_again(struct hdt_follow *f, struct hdt_error *err)
{
    const int64_t begin_us = hdt_clock_now_us();
    const int n_interrupts = hdt_interrupts_count();
    enum hdt_status status;
    int64_t now_us;

    hdt_follow_show(f, "gateway lost, connecting again (the job goes on without it; Ctrl-C leaves; "
                       "to watch it: hdt status --watch)");
    f->said_us = begin_us;
    for (;;) {
        status = follow_connect(f, err);
        now_us = hdt_clock_now_us();
        if (status != HDT_OK && hdt_interrupts_count() != n_interrupts) {
            follow_leave(f); /* no gateway to stop it by */
            return HDT_OK;
        }
        if (status == HDT_OK) {
            hdt_follow_show(f, "connected again");
        }
        if (status != HDT_AGAIN) {
            break;
        }
        if (now_us - begin_us >= f->silence_ms * HDT_US_PER_MS) {
            status = err->status;
            hdt_error_hint(err, "the job may go on without it: 'hdt status --watch' shows it once "
                                "the gateway is back");
            break;
        }
        away_show(f, begin_us, now_us, err->msg);
        usleep(RETRY_US);
    }
    f->heard_us = now_us;
    return status;
}

/* ---- silence ---- */

/* A job that recovers says how long that may take. */
static int64_t silence_ends_us(const struct hdt_follow *f)
{
    const int64_t from_us = strcmp(f->state, "recovering") == 0 && f->until_us > f->heard_us
                                ? f->until_us
                                : f->heard_us;

    return from_us + f->silence_ms * HDT_US_PER_MS;
}

/* No event for a while: does the gateway live? It bears what a session between sites bears, so that
 * one that was stopped for half a minute is not given up. */
static enum hdt_status gateway_ask(struct hdt_follow *f, int64_t now_us, struct hdt_error *err)
{
    const struct hdt_deadlines *d = hdt_gwclient_deadlines(f->client);
    struct hdt_gwclient_request request = {.type = "status", .expect = "status.is"};
    const int64_t from_us = f->asked_us > f->heard_us ? f->asked_us : f->heard_us;
    const int64_t own_us = f->conf->timeout_ms * HDT_US_PER_MS;
    enum hdt_status status;
    json_t *body;

    if (now_us - from_us < (own_us > 0 && own_us < d->answer_us ? own_us : d->answer_us)) {
        return HDT_OK;
    }
    if (f->conf->timeout_ms == 0) {
        request.timeout_ms = (int)(d->session_dead_us / HDT_US_PER_MS);
    }
    status = hdt_gwclient_ask(f->client, &request, &body, err);
    f->asked_us = hdt_clock_now_us();
    if (status == HDT_OK) {
        json_decref(body);
    } else if (status == HDT_ETIMEDOUT) {
        hdt_error_hint(
            err,
            "its process may be stopped; job %lld goes on if its workers do: hdt status, "
            "once it is back",
            (long long)f->number);
    }
    return status;
}

static enum hdt_status follow_silence(struct hdt_follow *f, struct hdt_error *err)
{
    const int64_t now_us = hdt_clock_now_us();

    if (now_us < silence_ends_us(f)) {
        hdt_follow_show_waiting(f, now_us);
        return gateway_ask(f, now_us, err);
    }
    hdt_error_set(err, HDT_ETIMEDOUT, "nothing was heard of job %lld for %lld s by gateway %s",
                  (long long)f->number, (long long)(now_us - f->heard_us) / HDT_US_PER_S,
                  hdt_gwclient_address(f->client));
    hdt_error_hint(err, "hdt status shows whether it runs, hdt stop %lld ends it",
                   (long long)f->number);
    return HDT_ETIMEDOUT;
}

static void msg_take(struct hdt_follow *f, json_t *msg)
{
    const json_t *body = hdt_msg_body(msg);

    if (strcmp(hdt_msg_type(msg), "job.event") == 0 && int_of(body, "job") == f->job) {
        f->heard_us = hdt_clock_now_us();
        event_take(f, body);
    }
    json_decref(msg);
}

static void silence_settle(struct hdt_follow *f)
{
    struct hdt_deadlines d = *hdt_gwclient_deadlines(f->client);

    if (f->silence_ms == 0) {
        hdt_deadlines_derive(&d, d.progress_us / HDT_US_PER_MS, f->job_timeout_ms);
        f->silence_ms = f->conf->timeout_ms > 0 ? f->conf->timeout_ms : d.follow_us / HDT_US_PER_MS;
    }
}

enum hdt_status hdt_follow_run(struct hdt_follow *f, struct hdt_error *err)
{
    enum hdt_status status = HDT_OK;
    int64_t left_ms;
    json_t *msg;

    f->on_tty = isatty(STDOUT_FILENO);
    f->val_loss = NAN;
    f->heard_us = f->said_us = hdt_clock_now_us();
    silence_settle(f);
    while (status == HDT_OK && !follow_is_over(f)) {
        left_ms = (silence_ends_us(f) - hdt_clock_now_us()) / HDT_US_PER_MS + 1;
        left_ms = left_ms < 0 ? 0 : left_ms > LOOK_MS ? LOOK_MS : left_ms;
        status = hdt_gwclient_next(f->client, (int)left_ms, &msg, err);
        if (status == HDT_OK) {
            msg_take(f, msg);
        } else if (status == HDT_AGAIN) {
            status = follow_silence(f, err);
        }
        if (status == HDT_ECANCELED) {
            status = interrupt_take(f, err);
        }
        if (status == HDT_EPEER) {
            status = follow_again(f, err);
        }
    }
    hdt_follow_show_clear(f);
    fflush(stdout);
    return status;
}

void hdt_follow_release(struct hdt_follow *f)
{
    free(f->trained);
    json_decref(f->done);
    f->trained = NULL;
    f->done = NULL;
}

double hdt_follow_median_step(const struct hdt_follow *f, size_t *n)
{
    size_t first = f->n_trained, n_last;
    double *sorted, median;

    while (first > 0 && f->trained[first - 1].epoch == f->trained[f->n_trained - 1].epoch) {
        first--;
    }
    n_last = f->n_trained - first;
    if (n) {
        *n = n_last;
    }
    if (n_last == 0) {
        return 0;
    }
    sorted = hdt_malloc(n_last * sizeof(*sorted));
    for (size_t i = 0; i < n_last; i++) {
        sorted[i] = f->trained[first + i].pace_s;
    }
    median = hdt_median(sorted, n_last);
    free(sorted);
    return median;
}
