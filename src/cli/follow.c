/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/follow.h"
#include "src/cli/gwoptions.h"
#include "src/cli/human.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/core/msg.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define RECONNECT_MS     60000
#define BAR_WIDTH        20
#define WAITING_APART_US (30 * HDT_US_PER_S)
#define BAR_WIDTH_MIN    6

/* ---- the live line ---- */

static int terminal_columns(void)
{
    struct winsize size;

    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

/* Clear the live line, so that a lasting one can be printed. */
static void line_clear(struct hdt_follow *f)
{
    if (f->line_len > 0) {
        printf("\r\033[K");
        f->line_len = 0;
    }
}

static void line_show(struct hdt_follow *f, const char *text)
{
    if (f->on_tty) {
        f->line_len = printf("\r%.*s\033[K", terminal_columns() - 1, text);
        fflush(stdout);
        return;
    }
    puts(text);
    fflush(stdout);
}

static double real_of(const json_t *body, const char *key)
{
    const json_t *value = json_object_get(body, key);

    return json_is_number(value) ? json_number_value(value) : NAN;
}

/* What is left of the line shows how far the job is. */
static void bar_append(struct hdt_buf *out, size_t text_len, double share)
{
    int room = terminal_columns() - 1 - (int)text_len - 4;
    int width = room < BAR_WIDTH ? room : BAR_WIDTH;
    int n_full = (int)(share * width + 0.5);

    if (width < BAR_WIDTH_MIN) {
        return;
    }
    hdt_buf_append_str(out, "  [");
    for (int i = 0; i < width; i++) {
        hdt_buf_append_str(out, i < n_full ? "#" : ".");
    }
    hdt_buf_append_str(out, "]");
}

/* At most 100 columns, so that a usual terminal need not cut it. */
static void step_show(struct hdt_follow *f, const json_t *body)
{
    long long step = json_integer_value(json_object_get(body, "step"));
    double ratio = real_of(body, "wan_ratio"), bits = real_of(body, "wan_bits_per_s");
    double tokens = real_of(body, "tokens_per_s");
    struct hdt_buf text = {0};
    char rate[HDT_HUMAN_CAP] = "-", speed[HDT_HUMAN_CAP];

    hdt_buf_appendf(&text, "step %lld", step);
    if (f->steps > 0) {
        hdt_buf_appendf(&text, "/%lld", (long long)f->steps);
    }
    snprintf(speed, sizeof(speed), "%.0f", tokens);
    if (tokens >= 1e5) {
        hdt_human_count(tokens, speed);
    }
    hdt_buf_appendf(&text, "  loss %.4f  %s tokens/s  %.3f s", real_of(body, "loss"), speed,
                    real_of(body, "step_s"));
    if (f->predicted_step_s > 0) {
        hdt_buf_appendf(&text, " (predicted %.3f)", f->predicted_step_s);
    }
    if (bits > 0) {
        hdt_human_rate(bits / 8, rate);
    }
    if (isfinite(ratio)) {
        hdt_buf_appendf(&text, "  WAN %s  ratio %.2f", rate, ratio);
    }
    if (f->on_tty && f->steps > 0) {
        bar_append(&text, text.len, fmin(1, (double)step / (double)f->steps));
    }
    line_show(f, hdt_buf_str(&text));
    hdt_buf_release(&text);
}

/* ---- events ---- */

static void step_record(struct hdt_follow *f, const json_t *body)
{
    if (f->n_losses == f->losses_cap) {
        f->losses_cap = f->losses_cap ? 2 * f->losses_cap : 256;
        f->losses = hdt_realloc(f->losses, f->losses_cap * sizeof(f->losses[0]));
        f->step_s = hdt_realloc(f->step_s, f->losses_cap * sizeof(f->step_s[0]));
    }
    f->losses[f->n_losses] = real_of(body, "loss");
    f->step_s[f->n_losses++] = real_of(body, "step_s");
}

static void state_take(struct hdt_follow *f, const json_t *body)
{
    const char *state = json_string_value(json_object_get(body, "state"));
    const json_t *error = json_object_get(body, "error");

    if (!state) {
        return;
    }
    if (strcmp(state, f->state) != 0) {
        line_clear(f);
        printf("job %lld: %s\n", (long long)f->number, state);
        fflush(stdout);
    }
    snprintf(f->state, sizeof(f->state), "%s", state);
    if (json_is_object(error)) {
        hdt_msg_error_from_body(error, &f->error);
    }
}

/* No step for some seconds: who waits for whom. On a terminal it is the live line; elsewhere a line
 * in half a minute. */
static void waiting_show(struct hdt_follow *f, const json_t *body)
{
    const char *text = json_string_value(json_object_get(body, "text"));
    const int64_t now_us = hdt_clock_now_us();
    char line[640];

    if (!text || (!f->on_tty && f->waiting_us != 0 && now_us - f->waiting_us < WAITING_APART_US)) {
        return;
    }
    f->waiting_us = now_us;
    snprintf(line, sizeof(line), "no step for %.0f s: %s", real_of(body, "silent_s"), text);
    line_show(f, line);
}

/* After a reconnect, or when two of our requests made us a follower, an event may come twice. */
static bool event_is_new(struct hdt_follow *f, const char *event, const json_t *body)
{
    json_int_t step = json_integer_value(json_object_get(body, "step"));
    json_int_t *last = strcmp(event, "step") == 0         ? &f->last_step
                       : strcmp(event, "eval") == 0       ? &f->last_eval
                       : strcmp(event, "checkpoint") == 0 ? &f->last_checkpoint
                                                          : NULL;

    if (last && step > 0 && step <= *last) {
        return false;
    }
    if (last) {
        *last = step;
    }
    return true;
}

static void event_take(struct hdt_follow *f, const json_t *body)
{
    const char *event = json_string_value(json_object_get(body, "event"));
    const char *path = json_string_value(json_object_get(body, "path"));

    if (!event || !event_is_new(f, event, body)) {
        return;
    }
    if (strcmp(event, "state") == 0) {
        state_take(f, body);
    } else if (strcmp(event, "step") == 0) {
        step_record(f, body);
        step_show(f, body);
    } else if (strcmp(event, "eval") == 0) {
        f->val_loss = real_of(body, "val_loss");
        line_clear(f);
        printf("step %lld: held-out loss %.4f\n",
               (long long)json_integer_value(json_object_get(body, "step")), f->val_loss);
    } else if (strcmp(event, "checkpoint") == 0 && path) {
        snprintf(f->checkpoint, sizeof(f->checkpoint), "%s", path);
        line_clear(f);
        printf("step %lld: checkpoint %s (%.1f s)\n",
               (long long)json_integer_value(json_object_get(body, "step")), path,
               real_of(body, "seconds"));
    } else if (strcmp(event, "waiting") == 0) {
        waiting_show(f, body);
    } else if (strcmp(event, "done") == 0) {
        json_decref(f->done);
        f->done = json_incref((json_t *)(uintptr_t)body);
    }
    fflush(stdout);
}

static bool follow_is_over(const struct hdt_follow *f)
{
    return f->left || strcmp(f->state, "done") == 0 || strcmp(f->state, "failed") == 0 ||
           strcmp(f->state, "stopped") == 0;
}

/* ---- Ctrl-C and lost gateways ---- */

static enum hdt_status interrupt_take(struct hdt_follow *f, struct hdt_error *err)
{
    line_clear(f);
    if (!f->stops_on_interrupt || f->stop_asked) {
        printf("leaving; the job goes on. To end it: hdt stop %lld\n", (long long)f->number);
        f->left = true;
        return HDT_OK;
    }
    f->stop_asked = true;
    printf("stopping after the step in work, with a checkpoint; Ctrl-C again leaves the job "
           "running\n");
    fflush(stdout);
    return hdt_gwclient_send(f->client, "stop", json_pack("{s:I}", "job", f->job), err);
}

/* The gateway keeps the job; when it restarts or the connection broke, follow it again. */
static enum hdt_status follow_again(struct hdt_follow *f, struct hdt_error *err)
{
    struct hdt_gwclient_request request = {
        .type = "follow", .expect = "following", .timeout_ms = 10000};
    int64_t deadline_us = hdt_clock_now_us() + RECONNECT_MS * HDT_US_PER_MS;
    int n_interrupts = hdt_interrupts_count();
    struct hdt_gwclient *client;
    enum hdt_status status;
    json_t *body;

    line_clear(f);
    printf("gateway lost, connecting again\n");
    fflush(stdout);
    do {
        status = hdt_gwclient_open(f->conf, &client, err);
        if (status == HDT_OK) {
            hdt_gwclient_close(f->client);
            f->client = client;
            /* What we missed comes as events, the state last. */
            request.body = json_pack("{s:I, s:I}", "job", f->job, "since", f->last_step);
            HDT_TRY(hdt_gwclient_ask(f->client, &request, &body, err));
            json_decref(body);
            return HDT_OK;
        }
        if (status != HDT_ENOENT && status != HDT_EPEER && status != HDT_ETIMEDOUT) {
            return status;
        }
        usleep(500000);
    } while (hdt_clock_now_us() < deadline_us && hdt_interrupts_count() == n_interrupts);
    hdt_error_hint(err, "the job may go on without it: hdt status, once it is back");
    return status;
}

static enum hdt_status follow_silence(const struct hdt_follow *f, struct hdt_error *err)
{
    hdt_error_set(err, HDT_ETIMEDOUT, "nothing was heard of job %lld for %lld s",
                  (long long)f->number, (long long)f->silence_ms / 1000);
    hdt_error_hint(err, "hdt status shows whether it runs, hdt stop %lld ends it",
                   (long long)f->number);
    return HDT_ETIMEDOUT;
}

enum hdt_status hdt_follow_run(struct hdt_follow *f, struct hdt_error *err)
{
    enum hdt_status status = HDT_OK;
    json_t *msg;

    f->on_tty = isatty(STDOUT_FILENO);
    f->val_loss = NAN;
    while (!follow_is_over(f)) {
        status = hdt_gwclient_next(f->client, (int)f->silence_ms, &msg, err);
        if (status == HDT_OK) {
            if (strcmp(hdt_msg_type(msg), "job.event") == 0 &&
                json_integer_value(json_object_get(hdt_msg_body(msg), "job")) == f->job) {
                event_take(f, hdt_msg_body(msg));
            }
            json_decref(msg);
            continue;
        }
        if (status == HDT_ECANCELED) {
            status = interrupt_take(f, err);
        } else if (status == HDT_EPEER) {
            status = follow_again(f, err);
        } else if (status == HDT_AGAIN) {
            status = follow_silence(f, err);
        }
        if (status != HDT_OK) {
            break;
        }
    }
    line_clear(f);
    return status;
}

void hdt_follow_release(struct hdt_follow *f)
{
    free(f->losses);
    free(f->step_s);
    json_decref(f->done);
    f->losses = NULL;
    f->step_s = NULL;
    f->done = NULL;
}

static int double_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double hdt_follow_median_step(const struct hdt_follow *f)
{
    double *sorted, median;

    if (f->n_losses == 0) {
        return 0;
    }
    sorted = hdt_malloc(f->n_losses * sizeof(*sorted));
    memcpy(sorted, f->step_s, f->n_losses * sizeof(*sorted));
    qsort(sorted, f->n_losses, sizeof(*sorted), double_compare);
    median = (sorted[(f->n_losses - 1) / 2] + sorted[f->n_losses / 2]) / 2;
    free(sorted);
    return median;
}
