/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/log.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/recorder.h"
#include "src/base/repeat.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LOG_LINE_CAP   1280
#define LOG_TEXT_CAP   1100
#define LOG_KEPT_LINES 4096

const char *const hdt_log_level_names[] = {"error", "warn", "info", "debug", "trace", NULL};

/* A place in the code that logs: how many lines it may still say. */
struct log_place {
    const void *key; /* its format; NULL: free */
    int64_t since_us;
    double tokens;
    uint64_t n_left_out;
};

#define LOG_PLACES                                                                                 \
 128 /* more than there are that log often; without an entry there is no limit                     \
      */

static struct {
    char ident[64];
    _Atomic int level;
    pthread_mutex_t lock; /* guards the rest */
    char part[32];
    char *kept[LOG_KEPT_LINES];
    uint64_t n_lines;
    struct hdt_repeat repeat;
    struct log_place places[LOG_PLACES];
} log_state = {.ident = "hdt", .level = HDT_LOG_INFO, .lock = PTHREAD_MUTEX_INITIALIZER};

void hdt_log_init(const char *ident, enum hdt_log_level level)
{
    snprintf(log_state.ident, sizeof(log_state.ident), "%s", ident);
    hdt_log_set_level(level);
}

enum hdt_log_level hdt_log_level(void)
{
    return (enum hdt_log_level)atomic_load_explicit(&log_state.level, memory_order_relaxed);
}

void hdt_log_set_level(enum hdt_log_level level)
{
    atomic_store_explicit(&log_state.level, (int)level, memory_order_relaxed);
}

void hdt_log_set_part(const char *part)
{
    pthread_mutex_lock(&log_state.lock);
    snprintf(log_state.part, sizeof(log_state.part), "%s%s", part[0] ? " " : "", part);
    pthread_mutex_unlock(&log_state.lock);
}

/* The lock is held. */
static void log_keep(const char *line)
{
    free(log_state.kept[log_state.n_lines % LOG_KEPT_LINES]);
    log_state.kept[log_state.n_lines % LOG_KEPT_LINES] = strdup(line);
    log_state.n_lines++;
}

/* Time stamp, identity and level in front of the text; the line ends in '\n'. The lock is held. */
static size_t log_prefix(char *line, size_t cap, enum hdt_log_level level)
{
    int64_t wall_us = hdt_clock_wall_us();
    time_t seconds = (time_t)(wall_us / HDT_US_PER_S);
    struct tm utc;
    size_t len;

    gmtime_r(&seconds, &utc);
    len = strftime(line, cap, "%Y-%m-%dT%H:%M:%S", &utc);
    len += (size_t)snprintf(line + len, cap - len,
                            ".%03dZ %s%s %s: ", (int)(wall_us % HDT_US_PER_S / HDT_US_PER_MS),
                            log_state.ident, log_state.part, hdt_log_level_names[level]);
    return len;
}

/* Keep and print. The lock is held: lines are printed in the order in which they are kept. */
static void log_say(enum hdt_log_level level, const char *text)
{
    char line[LOG_LINE_CAP];
    size_t len = log_prefix(line, sizeof(line), level);

    snprintf(line + len, sizeof(line) - len - 1, "%s", text);
    len = strlen(line);
    line[len++] = '\n';
    line[len] = '\0';
    log_keep(line);
    if (write(STDERR_FILENO, line, len) < 0) {
        return; /* nobody reads our standard error; the line is kept in memory */
    }
}

/* ---- storms ---- */

static void place_say(struct log_place *place)
{
    char text[96];

    snprintf(text, sizeof(text), "%llu more lines like the last of that kind were left out",
             (unsigned long long)place->n_left_out);
    place->n_left_out = 0;
    log_say(HDT_LOG_WARN, text);
}

static struct log_place *place_of(const void *key)
{
    const size_t start = (size_t)((uintptr_t)key >> 3) % LOG_PLACES;

    for (size_t i = 0; i < LOG_PLACES; i++) {
        struct log_place *place = &log_state.places[(start + i) % LOG_PLACES];

        if (place->key == key) {
            return place;
        }
        if (!place->key) {
            place->key = key;
            place->tokens = HDT_LOG_BURST;
            return place;
        }
    }
    return NULL;
}

/* May this place say one more line now? The lock is held. */
static bool place_pass(const void *key, int64_t now_us)
{
    struct log_place *place = place_of(key);

    if (!place) {
        return true;
    }
    place->tokens += (double)(now_us - place->since_us) / 1e6;
    place->tokens = place->tokens > HDT_LOG_BURST ? HDT_LOG_BURST : place->tokens;
    place->since_us = now_us;
    if (place->tokens < 1) {
        place->n_left_out++;
        return false;
    }
    place->tokens -= 1;
    if (place->n_left_out > 0) {
        place_say(place);
    }
    return true;
}

static void repeats_say(int64_t now_us, bool all)
{
    char text[HDT_REPEAT_TEXT_CAP + 256];
    struct hdt_repeat_entry due;

    while (hdt_repeat_due(&log_state.repeat, now_us, all, &due)) {
        log_say((enum hdt_log_level)due.tag, hdt_repeat_line(&due, now_us, text, sizeof(text)));
    }
}

void hdt_log_tick(void)
{
    const int64_t now_us = hdt_clock_now_us();

    pthread_mutex_lock(&log_state.lock);
    repeats_say(now_us, false);
    for (size_t i = 0; i < LOG_PLACES; i++) {
        struct log_place *place = &log_state.places[i];

        /* A storm that is over: nobody comes to say it. */
        if (place->n_left_out > 0 &&
            now_us - place->since_us > HDT_REPEAT_WINDOW_S * HDT_US_PER_S) {
            place_say(place);
        }
    }
    pthread_mutex_unlock(&log_state.lock);
}

void hdt_log_flush(void)
{
    pthread_mutex_lock(&log_state.lock);
    repeats_say(hdt_clock_now_us(), true);
    for (size_t i = 0; i < LOG_PLACES; i++) {
        if (log_state.places[i].n_left_out > 0) {
            place_say(&log_state.places[i]);
        }
    }
    pthread_mutex_unlock(&log_state.lock);
}

/* ---- writing ---- */

/* `place`: what tells the place in the code. */
static void log_text(enum hdt_log_level level, const void *place, const char *text)
{
    const int64_t now_us = hdt_clock_now_us();

    pthread_mutex_lock(&log_state.lock);
    repeats_say(now_us, false);
    if ((level > HDT_LOG_WARN || hdt_repeat_pass(&log_state.repeat, text, (int)level, now_us)) &&
        (level > HDT_LOG_INFO || place_pass(place, now_us))) {
        log_say(level, text);
    }
    pthread_mutex_unlock(&log_state.lock);
}

/* The text is made printable. */
static void log_take(enum hdt_log_level level, const void *place, char *text)
{
    for (char *p = text; *p;) {
        int len = hdt_utf8_len(p);

        if (len <= 1) {
            /* One event is one line, no terminal codes from foreign text, and JSON takes it. */
            *p = len == 0 ? '?' : (unsigned char)*p < ' ' ? ' ' : *p;
        }
        p += len > 1 ? len : 1;
    }
    if (level <= HDT_LOG_DEBUG) {
        HDT_RECORD(HDT_REC_LOG, .text = {hdt_log_level_names[level], text});
    }
    if (level <= hdt_log_level()) {
        log_text(level, place, text);
    }
}

void hdt_log_write(enum hdt_log_level level, const char *fmt, ...)
{
    char text[LOG_TEXT_CAP];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    log_take(level, fmt, text);
}

/* Failures are logged by few places and made by many: what tells one from another is how the
 * message begins, before what it is of. */
static const void *failure_place(const struct hdt_error *err)
{
    uintptr_t hash = 0;

    for (const char *p = err->msg; *p && !strchr("'0123456789:/", *p); p++) {
        hash = hash * 31 + (unsigned char)*p;
    }
    return (const void *)(hash | 1);
}

void hdt_log_failure(enum hdt_log_level level, const struct hdt_error *err)
{
    char text[LOG_TEXT_CAP];

    snprintf(text, sizeof(text), "%s%s%s%s%s%s", err->where, err->where[0] ? ": " : "", err->msg,
             err->hint[0] ? " (hint: " : "", err->hint, err->hint[0] ? ")" : "");
    log_take(level, failure_place(err), text);
}

bool hdt_log_limit_pass(struct hdt_log_limit *limit, int interval_s, uint64_t *n_suppressed)
{
    int64_t now_us = hdt_clock_now_us();
    bool pass;

    pthread_mutex_lock(&log_state.lock);
    pass = now_us >= limit->next_us;
    if (pass) {
        *n_suppressed = limit->n_suppressed;
        limit->n_suppressed = 0;
        limit->next_us = now_us + interval_s * HDT_US_PER_S;
    } else {
        limit->n_suppressed++;
    }
    pthread_mutex_unlock(&log_state.lock);
    return pass;
}

const char *hdt_log_left_out(uint64_t n, char out[HDT_LOG_LEFT_OUT_CAP])
{
    out[0] = '\0';
    if (n > 0) {
        snprintf(out, HDT_LOG_LEFT_OUT_CAP, " (%llu more like this left out)",
                 (unsigned long long)n);
    }
    return out;
}

void hdt_log_tail(unsigned n_lines, struct hdt_buf *out)
{
    uint64_t first = 0;

    pthread_mutex_lock(&log_state.lock);
    if (n_lines > LOG_KEPT_LINES) {
        n_lines = LOG_KEPT_LINES;
    }
    if (log_state.n_lines > n_lines) {
        first = log_state.n_lines - n_lines;
    }
    for (uint64_t i = first; i < log_state.n_lines; i++) {
        const char *line = log_state.kept[i % LOG_KEPT_LINES];

        hdt_buf_append_str(out, line ? line : "\n");
    }
    pthread_mutex_unlock(&log_state.lock);
}
