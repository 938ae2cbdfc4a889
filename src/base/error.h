/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_BASE_ERROR_H
#define HDT_BASE_ERROR_H

/*
 * Status codes and error messages.
 *
 * A fallible function returns enum hdt_status and takes `struct hdt_error *err` last (may be
 * NULL). The place that knows the cause writes the message, once; library code never prints; the
 * caller that decides what to do (retry, drop the peer, end the program) logs it.
 *
 * A message has three parts: what failed and why ("cannot open '/x': no such file"), where
 * (file:line of a config file, a site, a flow), and a hint: what the reader can do about it.
 */
#include <stdarg.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Negative codes are grouped by the largest thing that is lost. */
enum hdt_status {
    HDT_OK = 0,
    HDT_AGAIN = 1, /* not an error: no progress possible now, call again later */

    HDT_EINVAL = -1,    /* input or settings are wrong; nothing was changed */
    HDT_ENOMEM = -2,    /* memory or another resource of this machine is exhausted */
    HDT_EIO = -3,       /* a file or the operating system refused */
    HDT_ENOENT = -4,    /* the named thing does not exist */
    HDT_EEXIST = -5,    /* the named thing exists already or is in use */
    HDT_EACCES = -6,    /* permission, certificate or role refused */
    HDT_ENOTSUP = -7,   /* this build or machine cannot do it */
    HDT_ECANCELED = -8, /* ended on request */
    HDT_ETIMEDOUT = -9, /* no progress before the deadline */

    HDT_ELINK = -20,  /* one stream or link is lost: the chunk goes out on another */
    HDT_ECRC = -21,   /* a chunk arrived damaged: it is sent again */
    HDT_EPROTO = -22, /* the other end broke the protocol: its stream is closed */

    HDT_EPEER = -40,    /* the other gateway is lost or refuses: connect again */
    HDT_EVERSION = -41, /* protocol or build versions do not fit */

    HDT_ERANK = -60, /* a worker is lost: new plan from the last checkpoint */
    HDT_EJOB = -61,  /* the job has failed */
};

/* Room for a one-line message; longer text is cut and ends in "...". */
#define HDT_ERROR_MSG_CAP   512
#define HDT_ERROR_WHERE_CAP 192
#define HDT_ERROR_HINT_CAP  320

/* Plain data, owned by the caller (usually on its stack); starts as all zeros. */
struct hdt_error {
    enum hdt_status status;
    char msg[HDT_ERROR_MSG_CAP];     /* "cannot <do> <object>: <cause>" */
    char where[HDT_ERROR_WHERE_CAP]; /* "gateway.yaml:12", "site b", "flow 3"; may be empty */
    char hint[HDT_ERROR_HINT_CAP];   /* one remedy; may be empty */
};

/* Name of a status, as "EINVAL". Never NULL. */
const char *hdt_status_name(enum hdt_status status);

/* Fill *err (if not NULL) with status and message; clears where and hint. Returns status. */
enum hdt_status hdt_error_set(struct hdt_error *err, enum hdt_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* As hdt_error_set and appends ": <strerror(errno_value)>". */
enum hdt_status hdt_error_set_errno(struct hdt_error *err, enum hdt_status status, int errno_value,
                                    const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* Add place or remedy to an error that was set. No effect when err is NULL. */
void hdt_error_where(struct hdt_error *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void hdt_error_hint(struct hdt_error *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Put "<text>: " in front of the message: context that only the caller knows. */
void hdt_error_prefix(struct hdt_error *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Write "where: msg\nhint: hint" into buf, which is always terminated; returns buf. */
char *hdt_error_format(const struct hdt_error *err, char *buf, unsigned buf_cap);

/* Print the error to standard error as "<program>: where: msg" and a "hint:" line. */
void hdt_error_print(const struct hdt_error *err, const char *program);

/* Forward a failure when nothing is held. HDT_AGAIN is forwarded too. */
#define HDT_TRY(call)                                                                              \
 do {                                                                                              \
  enum hdt_status hdt_try_status_ = (call);                                                        \
  if (hdt_try_status_ != HDT_OK) {                                                                 \
   return hdt_try_status_;                                                                         \
  }                                                                                                \
 } while (0)

/* Ends the process with a message and a core; see HDT_ASSERT. */
void hdt_assert_fail(const char *cond, const char *file, int line, const char *func)
    __attribute__((noreturn));

/* Have a failed assertion told to `seen` before the process ends. Modules, which have this file
 * without the recorder, keep their own. */
void hdt_assert_watch(void (*seen)(const char *cond, const char *file, int line));

/* Invariants and preconditions, on in release builds. Never for input, I/O or memory. */
#define HDT_ASSERT(cond) ((cond) ? (void)0 : hdt_assert_fail(#cond, __FILE__, __LINE__, __func__))

/* As HDT_ASSERT for inner loops: only in debug builds. */
#ifdef HDT_DEBUG
# define HDT_DASSERT(cond) HDT_ASSERT(cond)
#else
# define HDT_DASSERT(cond) ((void)sizeof(cond))
#endif

#ifdef __cplusplus
# define HDT_STATIC_ASSERT(cond, text) static_assert(cond, text)
#else
# define HDT_STATIC_ASSERT(cond, text) _Static_assert(cond, text)
#endif

#ifdef __cplusplus
}
#endif
#endif /* HDT_BASE_ERROR_H */
