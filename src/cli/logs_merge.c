/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/logs_merge.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/repeat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STAMP_LEN 24 /* "2026-01-31T23:59:59.123Z" */
#define WHO_CAP   160
#define OTHERS    6 /* of the others, this many are named */

struct hdt_logs_line {
    int64_t time_us;
    size_t order; /* of two lines of one millisecond the first stays first */
    char who[WHO_CAP];
    char *head, *text; /* "hdt-worker w0 rank 2 warn", and what it says */
    uint64_t key;
    size_t group; /* position of the line that says it for all; its own: itself */
    size_t n_others;
};

static int64_t stamp_parse(const char *line)
{
    struct tm utc = {0};
    int ms = 0;

    if (strlen(line) < STAMP_LEN ||
        sscanf(line, "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ", &utc.tm_year, &utc.tm_mon, &utc.tm_mday,
               &utc.tm_hour, &utc.tm_min, &utc.tm_sec, &ms) != 7) {
        return -1;
    }
    utc.tm_year -= 1900;
    utc.tm_mon -= 1;
    return (int64_t)timegm(&utc) * HDT_US_PER_S + ms * HDT_US_PER_MS;
}

static void line_add(struct hdt_logs_merge *merge, const char *who, const char *line, size_t len)
{
    struct hdt_logs_line *to;
    struct hdt_repeat_key key;
    char *copy = hdt_asprintf("%.*s", (int)len, line), *colon;
    int64_t time_us = stamp_parse(copy);

    colon = time_us >= 0 ? strstr(copy + STAMP_LEN, ": ") : NULL;
    if (!colon) {
        free(copy);
        return;
    }
    if (merge->n == merge->cap) {
        merge->cap = merge->cap ? 2 * merge->cap : 1024;
        merge->lines = hdt_realloc(merge->lines, merge->cap * sizeof(*to));
    }
    to = &merge->lines[merge->n];
    memset(to, 0, sizeof(*to));
    to->time_us = time_us;
    to->order = merge->n++;
    snprintf(to->who, sizeof(to->who), "%s", who);
    *colon = '\0';
    to->head = hdt_strdup(copy + STAMP_LEN + 1);
    to->text = hdt_strdup(colon + 2);
    hdt_repeat_key(to->text, &key);
    to->key = key.hash;
    free(copy);
}

void hdt_logs_merge_add(struct hdt_logs_merge *merge, const char *who, const char *text)
{
    while (*text) {
        size_t len = strcspn(text, "\n");

        line_add(merge, who, text, len);
        text += len + (text[len] == '\n');
    }
}

static int line_compare(const void *a, const void *b)
{
    const struct hdt_logs_line *x = a, *y = b;

    return x->time_us != y->time_us ? (x->time_us > y->time_us) - (x->time_us < y->time_us)
                                    : (x->order > y->order) - (x->order < y->order);
}

/* The newest line that stands for those of this key, within a minute before line i; i: none. */
static size_t group_find(const struct hdt_logs_merge *merge, size_t i)
{
    const struct hdt_logs_line *line = &merge->lines[i];

    for (size_t j = i; j-- > 0;) {
        const struct hdt_logs_line *old = &merge->lines[j];

        if (line->time_us - old->time_us > HDT_REPEAT_WINDOW_S * HDT_US_PER_S) {
            break;
        }
        if (old->group == j && old->key == line->key) {
            return j;
        }
    }
    return i;
}

static void others_append(const struct hdt_logs_merge *merge, size_t first, struct hdt_buf *out)
{
    const struct hdt_logs_line *line = &merge->lines[first];
    const char *named[OTHERS];
    size_t n_named = 0, n_more = 0;

    for (size_t i = first + 1; i < merge->n; i++) {
        const struct hdt_logs_line *other = &merge->lines[i];
        bool seen = strcmp(other->who, line->who) == 0;

        if (other->group != first) {
            continue;
        }
        for (size_t j = 0; j < n_named; j++) {
            seen = seen || strcmp(named[j], other->who) == 0;
        }
        if (!seen && n_named < OTHERS) {
            named[n_named++] = other->who;
        } else if (!seen) {
            n_more++;
        }
    }
    hdt_buf_append_str(out, " (also ");
    for (size_t j = 0; j < n_named; j++) {
        hdt_buf_appendf(out, "%s, ", named[j]);
    }
    if (n_more > 0) {
        hdt_buf_append_str(out, "and others, ");
    }
    hdt_buf_appendf(out, "%zu time%s within %d s)", line->n_others, line->n_others == 1 ? "" : "s",
                    HDT_REPEAT_WINDOW_S);
}

void hdt_logs_merge_print(struct hdt_logs_merge *merge, struct hdt_buf *out)
{
    if (merge->n > 0) {
        qsort(merge->lines, merge->n, sizeof(merge->lines[0]), line_compare);
    }
    for (size_t i = 0; i < merge->n; i++) {
        merge->lines[i].group = i;
        merge->lines[i].group = group_find(merge, i);
        if (merge->lines[i].group != i) {
            merge->lines[merge->lines[i].group].n_others++;
        }
    }
    for (size_t i = 0; i < merge->n; i++) {
        const struct hdt_logs_line *line = &merge->lines[i];
        const time_t seconds = (time_t)(line->time_us / HDT_US_PER_S);
        struct tm utc;
        char stamp[32];

        if (line->group != i) {
            continue;
        }
        strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%S", gmtime_r(&seconds, &utc));
        hdt_buf_appendf(out, "%s.%03dZ %-14s %s: %s", stamp,
                        (int)(line->time_us % HDT_US_PER_S / HDT_US_PER_MS), line->who, line->head,
                        line->text);
        if (line->n_others > 0) {
            others_append(merge, i, out);
        }
        hdt_buf_append_str(out, "\n");
    }
}

void hdt_logs_merge_release(struct hdt_logs_merge *merge)
{
    for (size_t i = 0; i < merge->n; i++) {
        free(merge->lines[i].head);
        free(merge->lines[i].text);
    }
    free(merge->lines);
    memset(merge, 0, sizeof(*merge));
}
