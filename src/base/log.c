/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/log.h"
#include "src/base/buf.h"
#include "src/base/clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LOG_LINE_CAP   1024
#define LOG_KEPT_LINES 4096

const char *const hdt_log_level_names[] = {"error", "warn", "info", "debug", "trace", NULL};

static struct {
    char ident[64];
    _Atomic int level;
    pthread_mutex_t lock; /* guards kept[] and n_lines */
    char *kept[LOG_KEPT_LINES];
    uint64_t n_lines;
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

static void log_keep(const char *line)
{
    char *copy = strdup(line);

    pthread_mutex_lock(&log_state.lock);
    free(log_state.kept[log_state.n_lines % LOG_KEPT_LINES]);
    log_state.kept[log_state.n_lines % LOG_KEPT_LINES] = copy;
    log_state.n_lines++;
    pthread_mutex_unlock(&log_state.lock);
}

/* Time stamp, identity and level in front of the text; the line ends in '\n'. */
static size_t log_prefix(char *line, size_t cap, enum hdt_log_level level)
{
    int64_t wall_us = hdt_clock_wall_us();
    time_t seconds = (time_t)(wall_us / HDT_US_PER_S);
    struct tm utc;
    size_t len;

    gmtime_r(&seconds, &utc);
    len = strftime(line, cap, "%Y-%m-%dT%H:%M:%S", &utc);
    len += (size_t)snprintf(line + len, cap - len,
                            ".%03dZ %s %s: ", (int)(wall_us % HDT_US_PER_S / HDT_US_PER_MS),
                            log_state.ident, hdt_log_level_names[level]);
    return len;
}

void hdt_log_write(enum hdt_log_level level, const char *fmt, ...)
{
    char line[LOG_LINE_CAP];
    size_t len = log_prefix(line, sizeof(line), level);
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(line + len, sizeof(line) - len - 1, fmt, ap);
    va_end(ap);
    len += n < 0 ? 0 : (size_t)n;
    if (len > sizeof(line) - 2) {
        len = sizeof(line) - 2;
    }
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)line[i] < ' ') {
            line[i] = ' '; /* one event is one line, and no terminal codes from foreign text */
        }
    }
    line[len++] = '\n';
    line[len] = '\0';
    log_keep(line);
    if (write(STDERR_FILENO, line, len) < 0) {
        return; /* nobody reads our standard error; the line is kept in memory */
    }
}

void hdt_log_failure(enum hdt_log_level level, const struct hdt_error *err)
{
    HDT_LOG_AT(level, "%s%s%s%s%s%s", err->where, err->where[0] ? ": " : "", err->msg,
               err->hint[0] ? " (hint: " : "", err->hint, err->hint[0] ? ")" : "");
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
