/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/follow_show.h"
#include "src/cli/human.h"
#include "src/base/buf.h"
#include "src/core/msg.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define BAR_WIDTH          20
#define BAR_WIDTH_MIN      6
#define RANK_WAIT_EVERY_US (30 * HDT_US_PER_S)
#define MOVE_QUIET_US      (5 * HDT_US_PER_S)
#define SAY_EVERY_US       (60 * HDT_US_PER_S) /* where there is no live line */

/* ---- lines ---- */

static int terminal_columns(void)
{
    struct winsize size;

    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

/* The step that is shown late, so that what follows stands after the right one. */
static void step_show_left_out(struct hdt_follow *f)
{
    if (f->step_left_out[0]) {
        puts(f->step_left_out);
        f->step_left_out[0] = '\0';
    }
}

void hdt_follow_show_clear(struct hdt_follow *f)
{
    step_show_left_out(f);
    if (f->line_len > 0) {
        printf("\r\033[K");
        f->line_len = 0;
    }
}

static void line_show(struct hdt_follow *f, const char *text)
{
    if (f->on_tty) {
        f->line_len = printf("\r%.*s\033[K", terminal_columns() - 1, text);
    } else {
        puts(text);
    }
    fflush(stdout);
}

void hdt_follow_show_live(struct hdt_follow *f, const char *fmt, ...)
{
    char text[512];
    va_list args;

    step_show_left_out(f);
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    line_show(f, text);
}

void hdt_follow_show(struct hdt_follow *f, const char *fmt, ...)
{
    va_list args;

    hdt_follow_show_clear(f);
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);
}

static double real_of(const json_t *body, const char *key)
{
    const json_t *value = json_object_get(body, key);

    return json_is_number(value) ? json_number_value(value) : NAN;
}

static long long int_of(const json_t *body, const char *key)
{
    return json_integer_value(json_object_get(body, key));
}

static const char *text_of(const json_t *body, const char *key)
{
    const char *text = json_string_value(json_object_get(body, key));

    return text ? text : "";
}

/* ---- steps ---- */

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

static bool step_is_shown(const struct hdt_follow *f, int64_t now_us)
{
    return f->on_tty || f->every_step || f->n_steps_shown < HDT_FOLLOW_STEPS ||
           now_us - f->step_shown_us >= HDT_FOLLOW_STEP_US;
}

static void step_show(struct hdt_follow *f, const char *text)
{
    const int64_t now_us = hdt_clock_now_us();

    if (!step_is_shown(f, now_us)) {
        snprintf(f->step_left_out, sizeof(f->step_left_out), "%s", text);
        return;
    }
    f->step_left_out[0] = '\0';
    f->n_steps_shown++;
    f->step_shown_us = now_us;
    line_show(f, text);
}

/* At most 100 columns, so that a usual terminal need not cut it. */
void hdt_follow_show_step(struct hdt_follow *f, const json_t *body)
{
    double ratio = real_of(body, "wan_ratio"), bits = real_of(body, "wan_bits_per_s");
    double tokens = real_of(body, "tokens_per_s");
    long long step = int_of(body, "step");
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
    step_show(f, hdt_buf_str(&text));
    hdt_buf_release(&text);
}

/* ---- restarts ---- */

/* "b/w0, b/w1"; of many the first ones and how many more. */
static void names_join(const json_t *names, char *out, size_t cap)
{
    size_t len = 0, i, n = json_array_size(names);

    out[0] = '\0';
    for (i = 0; i < n && len + 2 * 64 < cap; i++) {
        const char *name = json_string_value(json_array_get(names, i));

        len += (size_t)snprintf(out + len, cap - len, "%s%.60s", i ? ", " : "", name ? name : "?");
    }
    if (i < n) {
        snprintf(out + len, cap - len, " and %zu more", n - i);
    }
}

/* "waits for b/w0 (1 min 23 s at most)". */
static void wait_describe(const struct hdt_follow *f, int64_t now_us, char *out, size_t cap)
{
    const bool away = f->waits_for[0] != '\0', held = f->until_free[0] != '\0';
    char left[HDT_HUMAN_CAP];
    int len = snprintf(out, cap, "%s%s%s%s%s",
                       away   ? "waits for "
                       : held ? "waits"
                              : "its workers are there",
                       f->waits_for, held ? (away ? ", and until " : " until ") : "", f->until_free,
                       held ? " has freed its memory" : "");

    if (f->until_us > now_us && len > 0 && (size_t)len < cap) {
        snprintf(out + len, cap - (size_t)len, " (%s at most)",
                 hdt_human_duration((double)(f->until_us - now_us) / 1e6, left));
    }
}

/* From where, and what is done again. */
static void restart_describe(const struct hdt_follow *f, const json_t *body)
{
    long long from = int_of(body, "resume_step"), again = f->last_step.step - from;

    if (text_of(body, "resume")[0]) {
        printf("  goes on from the checkpoint of step %lld", from);
    } else {
        printf("  begins anew: there is no checkpoint yet");
    }
    if (again > 0) {
        printf(", %lld step%s again", again, again == 1 ? "" : "s");
    }
    putchar('\n');
}

/* No plan does without those who are away: said once, since the wait is then a long one. */
static void why_not_show(struct hdt_follow *f, const json_t *body)
{
    const char *why = text_of(body, "why_not_without");

    if (why[0] && !f->knows_why_not) {
        f->knows_why_not = true;
        hdt_follow_show(f, "  it cannot go on without %s: %s", f->waits_for, why);
    }
}

/* Said when it begins; then when somebody else is waited for. */
static void recovering_show(struct hdt_follow *f, const json_t *body, bool is_new)
{
    const json_t *error = json_object_get(body, "error");
    const char *reason = text_of(body, "reason");
    int64_t now_us = hdt_clock_now_us();
    char wait[640], before[sizeof(f->waits_for)], held_before[sizeof(f->until_free)];

    memcpy(before, f->waits_for, sizeof(before));
    memcpy(held_before, f->until_free, sizeof(held_before));
    names_join(json_object_get(body, "waits_until_free"), f->until_free, sizeof(f->until_free));
    names_join(json_object_get(body, "waits_for"), f->waits_for, sizeof(f->waits_for));
    f->until_us =
        now_us + (int64_t)(1e6 * fmax(0, json_number_value(json_object_get(body, "until_s"))));
    wait_describe(f, now_us, wait, sizeof(wait));
    if (is_new) {
        f->recovering_us = now_us;
        f->moves = !json_is_object(error) && strcmp(reason, "replan") == 0;
        if (f->moves) {
            hdt_follow_show(f, "job %lld: moving to the new plan", (long long)f->number);
        } else {
            hdt_follow_show(f, "job %lld: recovering: %s", (long long)f->number,
                            json_is_object(error) ? text_of(error, "msg") : reason);
        }
        restart_describe(f, body);
        f->knows_why_not = false;
    } else if (strcmp(before, f->waits_for) == 0 && strcmp(held_before, f->until_free) == 0) {
        why_not_show(f, body);
        return;
    }
    f->said_us = now_us;
    if (!is_new || !f->moves) { /* a move waits for a moment: said when it lasts */
        hdt_follow_show(f, "  %s", wait);
    }
    why_not_show(f, body);
}

void hdt_follow_show_state(struct hdt_follow *f, const json_t *body)
{
    const char *state = text_of(body, "state");
    json_int_t epoch = int_of(body, "epoch");
    bool is_new = strcmp(state, f->state) != 0 || (epoch > 0 && epoch != f->epoch);

    if (strcmp(state, "recovering") == 0) {
        recovering_show(f, body, is_new);
    } else if (is_new && epoch > 1 && strcmp(state, "preparing") == 0) {
        hdt_follow_show(f, "job %lld: preparing epoch %lld", (long long)f->number,
                        (long long)epoch);
    } else if (is_new && epoch > 1 && strcmp(state, "running") == 0) {
        hdt_follow_show(f, "job %lld: running again after step %lld", (long long)f->number,
                        int_of(body, "start_step"));
    } else if (is_new) {
        hdt_follow_show(f, "job %lld: %s", (long long)f->number, state);
    }
}

void hdt_follow_show_restart(struct hdt_follow *f, const json_t *body)
{
    char lost[HDT_HUMAN_CAP];

    hdt_follow_show(f, "job %lld: epoch %lld began after step %lld, %s lost: %s",
                    (long long)f->number, int_of(body, "epoch"), int_of(body, "from_step"),
                    hdt_human_duration(fmax(0, real_of(body, "seconds_lost")), lost),
                    text_of(body, "reason"));
}

void hdt_follow_show_replan(struct hdt_follow *f, const json_t *body)
{
    if (strcmp(text_of(body, "cause"), "loss") == 0) {
        hdt_follow_show(f, "job %lld: %s", (long long)f->number, text_of(body, "reason"));
        return;
    }
    hdt_follow_show(f, "step %lld: a faster plan: %s", int_of(body, "step"),
                    text_of(body, "reason"));
}

/* ---- waiting ---- */

void hdt_follow_show_rank_wait(struct hdt_follow *f, const json_t *body)
{
    const int64_t now_us = hdt_clock_now_us();

    if (!f->on_tty && f->waiting_us != 0 && now_us - f->waiting_us < RANK_WAIT_EVERY_US) {
        return;
    }
    f->waiting_us = now_us;
    hdt_follow_show_live(f, "no step for %.0f s: %s", real_of(body, "silent_s"),
                         text_of(body, "text"));
}

void hdt_follow_show_waiting(struct hdt_follow *f, int64_t now_us)
{
    char wait[384], since[HDT_HUMAN_CAP];

    if (!f->on_tty && now_us - f->said_us < SAY_EVERY_US) {
        return;
    }
    if (strcmp(f->state, "recovering") == 0) {
        if (f->moves && now_us - f->recovering_us < MOVE_QUIET_US) {
            return;
        }
        wait_describe(f, now_us, wait, sizeof(wait));
        hdt_follow_show_live(f, "%s for %s: %s", f->moves ? "moving" : "recovering",
                             hdt_human_duration((double)(now_us - f->recovering_us) / 1e6, since),
                             wait);
    } else if (now_us - f->heard_us >= SAY_EVERY_US) {
        hdt_follow_show_live(f, "job %lld: %s, no news for %s", (long long)f->number,
                             f->state[0] ? f->state : "submitted",
                             hdt_human_duration((double)(now_us - f->heard_us) / 1e6, since));
    } else {
        return;
    }
    f->said_us = now_us;
}
