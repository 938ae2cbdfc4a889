/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *hdt_status_name(enum hdt_status status)
{
    switch (status) {
    case HDT_OK:
        return "OK";
    case HDT_AGAIN:
        return "AGAIN";
    case HDT_EINVAL:
        return "EINVAL";
    case HDT_ENOMEM:
        return "ENOMEM";
    case HDT_EIO:
        return "EIO";
    case HDT_ENOENT:
        return "ENOENT";
    case HDT_EEXIST:
        return "EEXIST";
    case HDT_EACCES:
        return "EACCES";
    case HDT_ENOTSUP:
        return "ENOTSUP";
    case HDT_ECANCELED:
        return "ECANCELED";
    case HDT_ETIMEDOUT:
        return "ETIMEDOUT";
    case HDT_ELINK:
        return "ELINK";
    case HDT_ECRC:
        return "ECRC";
    case HDT_EPROTO:
        return "EPROTO";
    case HDT_EPEER:
        return "EPEER";
    case HDT_EVERSION:
        return "EVERSION";
    case HDT_ERANK:
        return "ERANK";
    case HDT_EJOB:
        return "EJOB";
    }
    return "unknown status";
}

/* vsnprintf that marks a cut with "..." instead of ending in mid-word without a sign. */
static void text_fill(char *dst, size_t dst_cap, const char *fmt, va_list ap)
{
    int n = vsnprintf(dst, dst_cap, fmt, ap);

    if (n >= 0 && (size_t)n >= dst_cap) {
        memcpy(dst + dst_cap - 4, "...", 4);
    }
}

enum hdt_status hdt_error_set(struct hdt_error *err, enum hdt_status status, const char *fmt, ...)
{
    va_list ap;

    if (err) {
        err->status = status;
        err->where[0] = '\0';
        err->hint[0] = '\0';
        va_start(ap, fmt);
        text_fill(err->msg, sizeof(err->msg), fmt, ap);
        va_end(ap);
    }
    return status;
}

enum hdt_status hdt_error_set_errno(struct hdt_error *err, enum hdt_status status, int errno_value,
                                    const char *fmt, ...)
{
    char text[HDT_ERROR_MSG_CAP];
    char reason[128];
    va_list ap;

    if (err) {
        va_start(ap, fmt);
        text_fill(text, sizeof(text), fmt, ap);
        va_end(ap);
        hdt_error_set(err, status, "%s: %s", text, strerror_r(errno_value, reason, sizeof(reason)));
    }
    return status;
}

void hdt_error_where(struct hdt_error *err, const char *fmt, ...)
{
    va_list ap;

    if (err) {
        va_start(ap, fmt);
        text_fill(err->where, sizeof(err->where), fmt, ap);
        va_end(ap);
    }
}

void hdt_error_hint(struct hdt_error *err, const char *fmt, ...)
{
    va_list ap;

    if (err) {
        va_start(ap, fmt);
        text_fill(err->hint, sizeof(err->hint), fmt, ap);
        va_end(ap);
    }
}

void hdt_error_prefix(struct hdt_error *err, const char *fmt, ...)
{
    char rest[HDT_ERROR_MSG_CAP];
    size_t used;
    va_list ap;

    if (!err) {
        return;
    }
    memcpy(rest, err->msg, sizeof(rest));
    va_start(ap, fmt);
    text_fill(err->msg, sizeof(err->msg), fmt, ap);
    va_end(ap);
    used = strlen(err->msg);
    snprintf(err->msg + used, sizeof(err->msg) - used, ": %s", rest);
}

char *hdt_error_format(const struct hdt_error *err, char *buf, unsigned buf_cap)
{
    snprintf(buf, buf_cap, "%s%s%s%s%s", err->where, err->where[0] ? ": " : "", err->msg,
             err->hint[0] ? "\nhint: " : "", err->hint);
    return buf;
}

void hdt_error_print(const struct hdt_error *err, const char *program)
{
    char text[HDT_ERROR_MSG_CAP + HDT_ERROR_WHERE_CAP + HDT_ERROR_HINT_CAP + 16];

    fprintf(stderr, "%s: %s\n", program, hdt_error_format(err, text, sizeof(text)));
}

static void (*assert_seen)(const char *cond, const char *file, int line);

void hdt_assert_watch(void (*seen)(const char *cond, const char *file, int line))
{
    assert_seen = seen;
}

void hdt_assert_fail(const char *cond, const char *file, int line, const char *func)
{
    fprintf(stderr, "%s:%d: %s: assertion '%s' failed: this is a bug in HDT\n", file, line, func,
            cond);
    fflush(NULL);
    if (assert_seen) {
        assert_seen(cond, file, line);
    }
    abort(); /* the flight recorder, where there is one, is written on SIGABRT */
}
