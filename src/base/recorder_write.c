/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A dump: the events of both rings, oldest first, as JSON lines.
 *
 * It is written by the recorder's thread and by the handler of a fatal signal alike, so that it
 * keeps to what a signal handler may do: no memory from the heap, no stdio, no locks, not even
 * gmtime_r. One writer for both was preferred to a raw form for crashes, which would need a
 * program to read it.
 */
#include "config.h"

#include "src/base/recorder_internal.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define OUT_CAP   8192
#define FREE_MIN  (128ull << 20) /* a dump is at most a third of it */
#define STAMP_LEN 20             /* "20260101T000000.000Z" */
#define TIME_TEXT 32

/* What each kind is called, and its numbers and texts; NULL: none. */
static const struct {
    const char *area;
    const char *numbers[HDT_REC_NUMBERS];
    const char *texts[HDT_REC_TEXTS];
} kinds[HDT_REC_KIND_COUNT] = {
    [HDT_REC_LOG] = {"log", {NULL}, {"level", "text"}},
    [HDT_REC_ASSERT] = {"assert", {"line"}, {"condition", "file"}},
    [HDT_REC_CONNECTION] = {"connection", {NULL}, {"event", "who", "why"}},
    [HDT_REC_STREAM] = {"stream", {"stream"}, {"event", "peer", "why"}},
    [HDT_REC_FLOW] = {"flow", {"job", "flow", "epoch", "seq"}, {"event", "end", "peer"}},
    [HDT_REC_STATE] = {"job", {"job"}, {"state"}},
    [HDT_REC_MESSAGE] = {"message", {NULL}, {"type", "from", "to"}},
    [HDT_REC_CHECKPOINT] = {"checkpoint", {"job", "step", "bytes"}, {"phase"}},
    [HDT_REC_WAIT] = {"wait", {"job", "rank", "flow", "waited_us"}, {"for", "op"}},
    [HDT_REC_RESENT] = {"resent", {"job", "flow", "seq", "offset"}, {NULL}},
    [HDT_REC_FRAME] = {"frame", {"job", "flow", "seq", "bytes"}, {NULL}},
    [HDT_REC_STEP_BEGIN] = {"step", {"job", "rank", "step"}, {NULL}},
    [HDT_REC_STEP_END] = {"step.end", {"job", "rank", "step", "duration_us"}, {NULL}},
};

/* ---- bytes to a file ---- */

struct out {
    int fd, errnum; /* errnum: the first error; nothing is written after it */
    size_t len;
    char bytes[OUT_CAP];
};

static void out_flush(struct out *out)
{
    size_t at = 0;

    while (at < out->len && out->errnum == 0) {
        ssize_t n = write(out->fd, out->bytes + at, out->len - at);

        if (n > 0) {
            at += (size_t)n;
        } else if (n == 0 || errno != EINTR) {
            out->errnum = n == 0 ? EIO : errno;
        }
    }
    out->len = 0;
}

static void out_char(struct out *out, char c)
{
    if (out->len == sizeof(out->bytes)) {
        out_flush(out);
    }
    out->bytes[out->len++] = c;
}

static void out_text(struct out *out, const char *text)
{
    while (*text) {
        out_char(out, *text++);
    }
}

/* At least `width` digits. Returns the end of the text, which is not terminated. */
static char *digits(char *text, uint64_t value, int width)
{
    char reversed[24];
    int n = 0;

    do {
        reversed[n++] = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0 || n < width);
    while (n > 0) {
        *text++ = reversed[--n];
    }
    return text;
}

static void out_number(struct out *out, int64_t value)
{
    char text[24];

    if (value < 0) {
        out_char(out, '-');
    }
    *digits(text, value < 0 ? 0 - (uint64_t)value : (uint64_t)value, 1) = '\0';
    out_text(out, text);
}

/* In quotes; foreign bytes that are no UTF-8 become '?'. */
static void out_string(struct out *out, const char *text)
{
    out_char(out, '"');
    while (*text) {
        int len = hdt_utf8_len(text);

        if (len <= 1) {
            char c = len == 0 ? '?' : (unsigned char)*text < ' ' ? ' ' : *text;

            if (c == '"' || c == '\\') {
                out_char(out, '\\');
            }
            out_char(out, c);
            text++;
            continue;
        }
        while (len-- > 0) {
            out_char(out, *text++);
        }
    }
    out_char(out, '"');
}

/* ---- time ---- */

/* "2026-01-31T23:59:59.123456Z", or without separators and to the millisecond, for file names. */
static void time_text(char text[TIME_TEXT], int64_t wall_us, bool plain)
{
    const int64_t seconds = wall_us / HDT_US_PER_S, day_s = seconds % 86400;
    /* Days since 0000-03-01, so that the leap day is the last of a year; 400 years are 146097. */
    const int64_t days = seconds / 86400 + 719468, era = days / 146097, of_era = days % 146097;
    const int64_t year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    const int64_t of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    const int64_t month_from_march = (5 * of_year + 2) / 153;
    const int64_t month = month_from_march < 10 ? month_from_march + 3 : month_from_march - 9;
    char *p = digits(text, (uint64_t)(year_of_era + era * 400 + (month <= 2)), 4);

    *p = '-';
    p = digits(plain ? p : p + 1, (uint64_t)month, 2);
    *p = '-';
    p = digits(plain ? p : p + 1, (uint64_t)(of_year - (153 * month_from_march + 2) / 5 + 1), 2);
    *p++ = 'T';
    p = digits(p, (uint64_t)(day_s / 3600), 2);
    *p = ':';
    p = digits(plain ? p : p + 1, (uint64_t)(day_s / 60 % 60), 2);
    *p = ':';
    p = digits(plain ? p : p + 1, (uint64_t)(day_s % 60), 2);
    *p++ = '.';
    p = plain ? digits(p, (uint64_t)(wall_us % HDT_US_PER_S / HDT_US_PER_MS), 3)
              : digits(p, (uint64_t)(wall_us % HDT_US_PER_S), 6);
    *p++ = 'Z';
    *p = '\0';
}

/* ---- events ---- */

static void out_time(struct out *out, int64_t mono_us, int64_t wall_offset_us)
{
    char text[TIME_TEXT];

    time_text(text, mono_us + wall_offset_us, false);
    out_text(out, "{\"time\":\"");
    out_text(out, text);
    out_text(out, "\",\"mono_us\":");
    out_number(out, mono_us);
}

static void out_event(struct out *out, const struct rec_event *event, int64_t wall_offset_us)
{
    const char *text = event->text, *end = event->text + event->text_len;

    out_time(out, event->time_ns / 1000, wall_offset_us);
    out_text(out, ",\"thread\":");
    out_number(out, event->thread);
    out_text(out, ",\"area\":");
    out_string(out, kinds[event->kind].area);
    for (int i = 0; i < HDT_REC_NUMBERS && kinds[event->kind].numbers[i]; i++) {
        out_char(out, ',');
        out_string(out, kinds[event->kind].numbers[i]);
        out_char(out, ':');
        out_number(out, event->n[i]);
    }
    for (int i = 0; i < HDT_REC_TEXTS && text < end; i++, text += strlen(text) + 1) {
        if (kinds[event->kind].texts[i] && *text) {
            out_char(out, ',');
            out_string(out, kinds[event->kind].texts[i]);
            out_char(out, ':');
            out_string(out, text);
        }
    }
    out_text(out, "}\n");
}

/* A place in a ring, from the oldest event on. */
struct cursor {
    const struct rec_ring *ring;
    uint64_t at, end;
    struct rec_event event;
};

/* To the next whole event that is young enough; false: none. */
static bool cursor_next(struct cursor *cursor, int64_t since_ns)
{
    while (cursor->at < cursor->end) {
        if (hdt_rec_read(cursor->ring, cursor->at, &cursor->event)) {
            cursor->at += cursor->event.n_cells;
            if (cursor->event.time_ns >= since_ns) {
                return true;
            }
        } else {
            cursor->at++;
        }
    }
    return false;
}

static bool cursor_begin(struct cursor *cursor, const struct rec_ring *ring, int64_t since_ns)
{
    cursor->ring = ring;
    cursor->end = atomic_load_explicit(&ring->next, memory_order_acquire);
    cursor->at = cursor->end > ring->n_cells ? cursor->end - ring->n_cells : 0;
    return cursor_next(cursor, since_ns);
}

static void out_head(struct out *out, const struct rec_dump *dump, int64_t now_us,
                     int64_t offset_us)
{
    out_time(out, now_us, offset_us);
    out_text(out, ",\"area\":\"flight\",\"name\":");
    out_string(out, dump->name);
    out_text(out, ",\"version\":\"" PACKAGE_VERSION "\",\"pid\":");
    out_number(out, (int64_t)getpid());
    out_text(out, ",\"reason\":");
    out_string(out, dump->reason);
    out_text(out, ",\"seldom_events_lost\":");
    for (int i = 0; i < 2; i++) {
        const uint64_t next = atomic_load_explicit(&dump->rings[i].next, memory_order_acquire);

        /* Cells, of which most events take one. */
        out_number(out,
                   next > dump->rings[i].n_cells ? (int64_t)(next - dump->rings[i].n_cells) : 0);
        out_text(out, i == 0 ? ",\"frequent_events_lost\":" : "}\n");
    }
}

static void out_events(struct out *out, const struct rec_dump *dump)
{
    const int64_t now_ns = hdt_clock_now_ns(), since_ns = now_ns - HDT_REC_SPAN_S * 1000000000ll;
    const int64_t offset_us = hdt_clock_wall_us() - now_ns / 1000;
    struct cursor seldom, often;
    bool has_seldom = cursor_begin(&seldom, &dump->rings[0], since_ns);
    bool has_often = cursor_begin(&often, &dump->rings[1], since_ns);

    out_head(out, dump, now_ns / 1000, offset_us);
    while ((has_seldom || has_often) && out->errnum == 0) {
        if (has_seldom && (!has_often || seldom.event.time_ns <= often.event.time_ns)) {
            out_event(out, &seldom.event, offset_us);
            has_seldom = cursor_next(&seldom, since_ns);
        } else {
            out_event(out, &often.event, offset_us);
            has_often = cursor_next(&often, since_ns);
        }
    }
    out_flush(out);
}

/* ---- the file ---- */

static size_t path_add(char path[REC_PATH_CAP], size_t len, const char *text)
{
    while (*text && len < REC_PATH_CAP - 1) {
        path[len++] = *text++;
    }
    path[len] = '\0';
    return len;
}

int hdt_rec_write(const struct rec_dump *dump, char path[REC_PATH_CAP])
{
    struct out out = {0};
    char stamp[TIME_TEXT], part[REC_PATH_CAP];
    struct statvfs fs;
    size_t len;

    time_text(stamp, hdt_clock_wall_us(), true);
    len = path_add(path, 0, dump->dir);
    len = path_add(path, len, "/flight-");
    len = path_add(path, len, dump->name);
    len = path_add(path, len, "-");
    len = path_add(path, len, stamp);
    len = path_add(path, len, "-");
    len = path_add(path, len, dump->reason);
    path_add(path, len, ".jsonl");
    path_add(part, path_add(part, 0, path), ".part");
    if (statvfs(dump->dir, &fs) == 0 && (uint64_t)fs.f_bavail * fs.f_frsize < FREE_MIN) {
        return ENOSPC; /* what the job still has to write there is worth more */
    }
    out.fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (out.fd < 0) {
        return errno;
    }
    out_events(&out, dump);
    if (close(out.fd) != 0 && out.errnum == 0) {
        out.errnum = errno;
    }
    if (out.errnum == 0 && rename(part, path) != 0) {
        out.errnum = errno;
    }
    if (out.errnum != 0) {
        unlink(part);
    }
    return out.errnum;
}

/* ---- old ones ---- */

bool hdt_rec_is_dump_of(const char *file, const char *name)
{
    static const char pattern[STAMP_LEN + 1] = "ddddddddTdddddd.dddZ", suffix[] = ".jsonl";
    const size_t name_len = strlen(name), len = strlen(file);
    const char *stamp;

    if (len < strlen("flight-") + name_len + 1 + STAMP_LEN + 1 + sizeof(suffix)) {
        return false;
    }
    stamp = file + strlen("flight-") + name_len + 1;
    if (strncmp(file, "flight-", strlen("flight-")) != 0 ||
        strncmp(file + strlen("flight-"), name, name_len) != 0 || stamp[-1] != '-' ||
        strcmp(file + len - strlen(suffix), suffix) != 0 || strchr(file, '/')) {
        return false;
    }
    for (int i = 0; i < STAMP_LEN; i++) {
        if (pattern[i] == 'd' ? stamp[i] < '0' || stamp[i] > '9' : stamp[i] != pattern[i]) {
            return false;
        }
    }
    return stamp[STAMP_LEN] == '-';
}

static int names_compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b); /* the time is in the name */
}

/* What a process that died while it wrote has left. */
static void part_remove(const char *dir, const char *file, const char *name)
{
    const size_t len = strlen(file), suffix_len = strlen(".part");
    char *whole, *path;

    if (len <= suffix_len || strcmp(file + len - suffix_len, ".part") != 0) {
        return;
    }
    whole = hdt_asprintf("%.*s", (int)(len - suffix_len), file);
    if (hdt_rec_is_dump_of(whole, name)) {
        path = hdt_asprintf("%s/%s", dir, file);
        unlink(path);
        free(path);
    }
    free(whole);
}

void hdt_rec_prune(const char *dir, const char *name, unsigned keep)
{
    DIR *folder = opendir(dir);
    char **names = NULL;
    size_t n = 0;
    const struct dirent *entry;

    while (folder && (entry = readdir(folder))) {
        if (hdt_rec_is_dump_of(entry->d_name, name)) {
            names = hdt_realloc(names, (n + 1) * sizeof(*names));
            names[n++] = hdt_strdup(entry->d_name);
        }
        part_remove(dir, entry->d_name, name);
    }
    if (folder) {
        closedir(folder);
    }
    if (n > 0) {
        qsort(names, n, sizeof(*names), names_compare);
    }
    for (size_t i = 0; i < n; i++) {
        char *path = hdt_asprintf("%s/%s", dir, names[i]);

        if (n - i > keep && unlink(path) != 0) {
            hdt_log_warn_limited(60, "cannot remove '%s': %s", path, strerror(errno));
        }
        free(path);
        free(names[i]);
    }
    free(names);
}
