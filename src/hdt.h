/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_H
#define HDT_H

/*
 * libhdt: talk to a gateway of an HDT federation from a program.
 *
 *     struct hdt_ctx *ctx;
 *     struct hdt_error_info error;
 *     char *json;
 *
 *     if (hdt_open(NULL, NULL, &ctx, &error) == HDT_ERR_NONE &&
 *         hdt_status(ctx, &json, &error) == HDT_ERR_NONE) {
 *         puts(json);
 *         hdt_free(json);
 *     }
 *
 * C99 and C++. What begins with hdt_ and HDT_ belongs to the library. It prints nothing, keeps no
 * global state, changes no signal handling, and raises no SIGPIPE. Every call that waits has a
 * deadline. A context is used by one thread at a time; different contexts by any threads at once.
 *
 * Binary interface: structs that the caller fills begin with their size (HDT_OPTIONS_INIT), so that
 * programs go on working with a newer library of the same soname.
 */
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- version ---- */

/* Of this header. */
#define HDT_VERSION_MAJOR 0
#define HDT_VERSION_MINOR 1
#define HDT_VERSION_PATCH 0
/* Versions as one number, to compare: 1.2.3 is 10203. */
#define HDT_VERSION_NUMBER (HDT_VERSION_MAJOR * 10000 + HDT_VERSION_MINOR * 100 + HDT_VERSION_PATCH)

/* Version of the library that runs, as "0.1.0" and as HDT_VERSION_NUMBER. */
const char *hdt_version(void);
int hdt_version_number(void);

/* ---- errors ---- */

/* What every fallible call returns: HDT_ERR_NONE, or a number below 0. */
enum hdt_err {
    HDT_ERR_NONE = 0,
    HDT_ERR_INVALID = -1,       /* an argument, address or file is wrong; nothing was changed */
    HDT_ERR_MEMORY = -2,        /* memory or another resource of this machine is exhausted */
    HDT_ERR_IO = -3,            /* a file or the operating system refused */
    HDT_ERR_NOT_FOUND = -4,     /* the named thing does not exist */
    HDT_ERR_EXISTS = -5,        /* the named thing exists already or is in use */
    HDT_ERR_ACCESS = -6,        /* permission, certificate or role refused */
    HDT_ERR_NOT_SUPPORTED = -7, /* this build or machine cannot do it */
    HDT_ERR_CANCELED = -8,      /* ended on request */
    HDT_ERR_TIMEOUT = -9,       /* no progress before the deadline */
    HDT_ERR_PROTOCOL = -22,     /* the other end broke the protocol */
    HDT_ERR_PEER = -40,         /* the gateway is not there, is lost or refuses: connect again */
    HDT_ERR_VERSION = -41,      /* versions of library and gateway do not fit */
    HDT_ERR_WORKER = -60,       /* a worker is lost */
    HDT_ERR_JOB = -61           /* the job has failed */
};

/* What happened, in words. Plain data of the caller; written when a call fails, else left alone.
 * Text that is too long is cut. */
struct hdt_error_info {
    enum hdt_err code;
    char message[512]; /* "cannot <do> <object>: <cause>" */
    char where[192];   /* "site b", "job.yaml:12"; may be "" */
    char hint[320];    /* one remedy; may be "" */
};

/* What a code means, in a few words. Never NULL; also for numbers that are no code. */
const char *hdt_strerror(int err);

/* ---- connection to a gateway ---- */

struct hdt_ctx;

/* All that is zero is the default. */
struct hdt_options {
    size_t size;      /* of this struct, as the program was compiled */
    const char *ca;   /* tls: PEM file, certificate of the federation's authority */
    const char *cert; /* tls: PEM file, an operator's certificate ('hdt ca issue operator NAME') */
    const char *key;  /* tls: PEM file, its private key */
    int timeout_ms;   /* of each wait for the gateway; 0: 10000 */
};
#define HDT_OPTIONS_INIT                                                                           \
 {                                                                                                 \
  sizeof(struct hdt_options), NULL, NULL, NULL, 0                                                  \
 }

/* Connect to a gateway as an operator. `gateway` is "unix:PATH" or "tls:HOST:PORT"; NULL: the
 * environment variable HDT_GATEWAY, else the socket of the gateway on this machine. On its Unix
 * socket a gateway serves root and its own user; over TLS, operators of its federation. `options`
 * may be NULL. Arguments are not kept. Blocks for at most the time-out, once for the connection and
 * once for the gateway's welcome; resolving a host name may take longer. `error` may be NULL. On
 * failure *ctx is NULL.
 * HDT_ERR_PEER (nobody there, or refused), _INVALID, _NOT_FOUND (host, file), _ACCESS, _VERSION,
 * _TIMEOUT, _PROTOCOL. */
enum hdt_err hdt_open(const char *gateway, const struct hdt_options *options, struct hdt_ctx **ctx,
                      struct hdt_error_info *error);

/* Close the connection and free the context. NULL is allowed. What runs in the federation goes on.
 */
void hdt_close(struct hdt_ctx *ctx);

/* Name of the gateway's site; valid until hdt_close. */
const char *hdt_site(const struct hdt_ctx *ctx);

/* The federation as the gateway sees it (sites, workers, jobs), as the JSON object of its /status
 * page: *json is UTF-8 text, to be freed by hdt_free. Blocks for at most the time-out. After
 * HDT_ERR_PEER, _TIMEOUT or _PROTOCOL close the context and open another. On failure *json is NULL.
 */
enum hdt_err hdt_status(struct hdt_ctx *ctx, char **json, struct hdt_error_info *error);

/* Free what the library gave. NULL is allowed. */
void hdt_free(void *memory);

#ifdef __cplusplus
}
#endif
#endif /* HDT_H */
