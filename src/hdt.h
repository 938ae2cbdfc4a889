/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_H
#define HDT_H

/*
 * libhdt: talk to a gateway of an HDT federation from a program, and move tensors between sites.
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
 * deadline. A context is used by one thread at a time; different contexts by any threads at once;
 * a channel and what belongs to it by any threads at once (see there). A child of fork() must not
 * use what its parent opened.
 *
 * Binary interface: structs that the caller fills begin with their size (HDT_OPTIONS_INIT), so that
 * programs go on working with a newer library of the same soname.
 */
#include <stddef.h>
#include <stdint.h>

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
    HDT_ERR_WORKER = -60,       /* a worker, or the program of another member, is lost */
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
    const char *cert; /* tls: PEM file, the certificate of an operator ('hdt ca issue operator
                         NAME'), or of a worker of the gateway's site */
    const char *key;  /* tls: PEM file, its private key */
    int timeout_ms;   /* of each wait for the gateway; 0: 10000 */
};
#define HDT_OPTIONS_INIT                                                                           \
 {                                                                                                 \
  sizeof(struct hdt_options), NULL, NULL, NULL, 0                                                  \
 }

/* Connect to a gateway. `gateway` is "unix:PATH" or "tls:HOST:PORT"; NULL: the
 * environment variable HDT_GATEWAY, else the socket of the gateway on this machine. On its Unix
 * socket a gateway serves root and its own user; over TLS, operators of its federation and workers
 * of its site. `options` may be NULL. Arguments are not kept. Blocks for at most the time-out, once
 * for the connection and once for the gateway's welcome; resolving a host name may take longer.
 * `error` may be NULL. On failure *ctx is NULL. HDT_ERR_PEER (nobody there, or refused), _INVALID,
 * _NOT_FOUND (host, file), _ACCESS, _VERSION, _TIMEOUT, _PROTOCOL. */
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

/* ---- tensors ---- */

/* Types of a tensor's elements; numbers of the wire, never others. */
enum hdt_type {
    HDT_TYPE_BYTES = 0, /* elements of one byte without a meaning */
    HDT_TYPE_F32 = 1,
    HDT_TYPE_BF16 = 2,
    HDT_TYPE_F16 = 3,
    HDT_TYPE_F64 = 4,
    HDT_TYPE_I32 = 5,
    HDT_TYPE_I64 = 6,
    HDT_TYPE_U8 = 7,
    HDT_TYPE_U16 = 8,
    HDT_TYPE_U32 = 9,
    HDT_TYPE_I8 = 10,
    HDT_TYPE_F8E4M3 = 11,
    HDT_TYPE_F8E5M2 = 12
};

/* Bytes of one element; 0 for a number that is no type. */
size_t hdt_type_size(int type);
/* "f32", "bf16", "bytes", ...; "?" for a number that is no type. Never NULL. */
const char *hdt_type_name(int type);

/*
 * Codecs, where a codec is asked for, are written as in a job file; NULL is "none". 'hdt codec
 * list' says which there are, with their options; among them
 *
 *   "none"      every bit arrives
 *   "lossless"  the same; the gateways compress what pays
 *   "bf16"      values are rounded to bf16 for the way: half the bytes of f32; "fp16" likewise
 *   "int8", "int8:block=64", "int8:minmax", "int8:stochastic"
 *               values become 8-bit integers with a scale for each 256 (64): about a quarter
 *   "fp8", "fp8:e5m2"
 *               values become 8-bit floats with a power of two for each 128
 *   "int4", "int4:rotate", "int4:block=32,minmax"
 *               values become 4-bit integers with a scale for each 64 (32): about an eighth
 *   "topk:64,bits=2", "randk:64", "lowrank:4"
 *               a part of a tensor; what is left out is added to the next tensor of the flow. For
 *               flows only, whose tensors then all have as many elements as the first
 *   "bf16+lossless", "int4:rotate+lossless", ...
 *               gateways compress what has been made of the values. For flows; collectives have
 *               `lossless` of their channel
 *
 * All but the first two are for tensors of f32, bf16 and f16: values are f32 when they are coded,
 * and rounded to the type afterwards. A tensor is coded in pieces of at most 524288 elements; a
 * piece that holds NaN or infinity travels as it is, so that these arrive, too. "delta:" is for
 * jobs only. What a codec loses is in the statistics.
 */

/* What goes first over a link between sites. */
enum hdt_priority {
    HDT_PRIORITY_BULK = 0,  /* with outer gradients: after activations and gradients of jobs */
    HDT_PRIORITY_URGENT = 1 /* with activations of jobs: before all other tensors */
};

/* ---- channels ---- */

/*
 * A channel joins one program at each of several sites under a name. Each program names the same
 * members in the same order, a member's place is its rank, and each joins at the gateway of its own
 * site; the gateways agree that all are there. Tensors then move between any two members over
 * *flows*, and between all of them by collectives.
 *
 * A program that ends without hdt_channel_close, or cannot go on, ends the channel at all others:
 * their requests, those under way and all later ones, end with the reason. A channel that has ended
 * so stays so: close it, and open it again when all programs are there. A gateway that is restarted
 * ends nothing: its programs come back to it by themselves and every request goes on where it was.
 *
 * Threads. A channel has a thread of its own, which blocks all signals, and moves, checks, codes
 * and adds up tensors there. All functions below may be called by any threads at once, but: a
 * request is tested or waited for by one thread at a time; hdt_channel_close is the last call for a
 * channel and all that belongs to it; and members call collectives in the same order, as one would
 * expect.
 *
 * Memory. Tensors handed to a request stay where they are and must not be changed (sent) or looked
 * at (received) until the request has completed. Memory of any kind will do; it is copied once, to
 * or from memory that the program shares with its gateway. A tensor that is sent from memory of
 * hdt_alloc is not copied at all: the gateway reads it there.
 */
struct hdt_channel;
struct hdt_flow;
struct hdt_request;

#define HDT_CHANNEL_MEMBERS 32 /* at most */

/* All that is zero is the default, but what is marked as needed. */
struct hdt_channel_conf {
    size_t size;                /* of this struct, as the program was compiled */
    const char *name;           /* needed: 1 to 63 letters, digits, '.', '_', '-' */
    const char *const *members; /* needed: by rank, "SITE", or "SITE/NAME" where several programs
                                   of a site take part */
    int n_members;              /* needed: 1 to HDT_CHANNEL_MEMBERS */
    int rank;            /* of this program; below 0: the only member at its gateway's site */
    int open_timeout_ms; /* for the others to join; 0: a minute */
    int timeout_ms;      /* longest time for which a request may wait while nothing of it moves; 0:
                            ten minutes; below 0: for ever, or until a member is lost. While a site
                            or gateway is not connected, the gateway's progress_timeout stands in
                            its place where that is shorter */
    int priority;        /* of collectives */
    int lossless;        /* not 0: gateways compress what collectives carry, where it pays */
    size_t window_bytes; /* that collectives may have under way to all others together, and from
                            them; 0: 32 MiB. Rate times round trip is what fills a link. All
                            members say the same. Some four times as much memory is taken */
    size_t memory_bytes; /* that is shared with the gateway besides, for hdt_flow_open and
                            hdt_alloc; 0: 64 MiB */
};
#define HDT_CHANNEL_CONF_INIT                                                                      \
 {                                                                                                 \
  sizeof(struct hdt_channel_conf), NULL, NULL, 0, -1, 0, 0, 0, 0, 0, 0                             \
 }

/* Join a channel and wait for the others. Uses address and credentials of `ctx`, which may be
 * closed afterwards. `conf` and what it points to are not kept. On failure *channel is NULL.
 * HDT_ERR_INVALID: names, members, rank, or others that name other members; _EXISTS: another
 * program is that rank, or the name is in use at this site for others; _ACCESS: the rank is a
 * member of another site; _TIMEOUT: the message names who is missing, and why; _MEMORY; those of
 * hdt_open. */
enum hdt_err hdt_channel_open(struct hdt_ctx *ctx, const struct hdt_channel_conf *conf,
                              struct hdt_channel **channel, struct hdt_error_info *error);

/* Leave in order: wait until the others have taken what this program sent (receives and collectives
 * that have not completed are called off), tell them, free the channel and all flows, requests and
 * memory of it. Always frees, also on failure: what was not taken is lost then. NULL is allowed.
 * Where a member closes, what it sent before can still be received. */
enum hdt_err hdt_channel_close(struct hdt_channel *channel, struct hdt_error_info *error);

/* End the channel at all members, with these words as the reason (one line). Does not wait. It is
 * still to be closed. */
void hdt_channel_abort(struct hdt_channel *channel, const char *why);

int hdt_channel_rank(const struct hdt_channel *channel);
int hdt_channel_n_members(const struct hdt_channel *channel);
/* As in the conf; valid until the channel is closed. NULL: there is no such rank. */
const char *hdt_channel_member(const struct hdt_channel *channel, int rank);

/* Memory that the gateway can read, for tensors that are sent without a copy; at a multiple of
 * 4096, not cleared. It is the caller's until hdt_dealloc or hdt_channel_close. HDT_ERR_MEMORY. */
enum hdt_err hdt_alloc(struct hdt_channel *channel, size_t bytes, void **memory,
                       struct hdt_error_info *error);
/* No request uses it. NULL is allowed. */
void hdt_dealloc(struct hdt_channel *channel, void *memory);

/* ---- flows: from one member to another ---- */

enum hdt_direction { HDT_SEND = 0, HDT_RECEIVE = 1 };

struct hdt_flow_conf {
    size_t size;
    int peer;            /* rank of the other member */
    int direction;       /* enum hdt_direction, as this program sees it */
    unsigned tag;        /* 0 to 65535: which of several flows between the same two, that way */
    int type;            /* enum hdt_type of what it carries */
    const char *codec;   /* NULL: "none" */
    int priority;        /* enum hdt_priority */
    size_t window_bytes; /* that may be under way; 0: 4 MiB. Taken from the channel's memory. Rate
                            times round trip is the least that fills a link; twice or three times
                            as much where it loses packets, or BBR is used */
};
#define HDT_FLOW_CONF_INIT                                                                         \
 {                                                                                                 \
  sizeof(struct hdt_flow_conf), -1, 0, 0, 0, NULL, 0, 0                                            \
 }

/* One end of a flow; the other member opens the other one, with all else the same (what differs
 * ends the channel, with both values). Does not wait for it: requests do. Tensors arrive in the
 * order in which they were sent. Two members may have several flows, by tag; a tag is used once in
 * the life of a channel. A codec that leaves values out ("topk", "randk", "lowrank") keeps them at
 * the sending end, 4 bytes for each element of a tensor (lowrank up to 8), as long as the channel
 * is open. On failure *flow is NULL. HDT_ERR_INVALID, _EXISTS (tag), _MEMORY (window). */
enum hdt_err hdt_flow_open(struct hdt_channel *channel, const struct hdt_flow_conf *conf,
                           struct hdt_flow **flow, struct hdt_error_info *error);

/* Wait until what was sent is taken; receives that have not completed are called off. The handle is
 * gone then. The memory of a sending end is free, that of a receiving one when the channel is
 * closed. NULL is allowed. */
enum hdt_err hdt_flow_close(struct hdt_flow *flow, struct hdt_error_info *error);

/* Send n elements (0 is allowed), or receive up to n_max. Neither waits. A send has completed when
 * its memory may be used again: when all was copied, or, from memory of hdt_alloc, when the other
 * program has taken it. A receive has completed when the tensor is there; one that is longer than
 * n_max is an error of its request (HDT_ERR_INVALID), and the next tensor follows as if it was not.
 * On failure *request is NULL. HDT_ERR_INVALID; by a codec that leaves values out, also another n
 * than that of the first tensor (0 is allowed), and, of the first, _MEMORY. */
enum hdt_err hdt_isend(struct hdt_flow *flow, const void *data, size_t n,
                       struct hdt_request **request, struct hdt_error_info *error);
enum hdt_err hdt_irecv(struct hdt_flow *flow, void *data, size_t n_max,
                       struct hdt_request **request, struct hdt_error_info *error);

/* Has it completed? *done says so, and then *n (may be NULL) the number of elements, the request is
 * freed and *request NULL; the result is that of the request. A request that is NULL has. */
enum hdt_err hdt_test(struct hdt_request **request, int *done, size_t *n,
                      struct hdt_error_info *error);
/* The same, but wait until it has. A deadline that passes (timeout_ms of the channel) ends the
 * channel, and all its requests, with HDT_ERR_TIMEOUT and what was waited for. */
enum hdt_err hdt_wait(struct hdt_request **request, size_t *n, struct hdt_error_info *error);

/* What a flow has done. Set `size` before the call. */
struct hdt_flow_stats {
    size_t size;
    uint64_t n_tensors;    /* handed over whole, or received */
    uint64_t n_frames;     /* pieces of them */
    uint64_t raw_bytes;    /* of tensors */
    uint64_t frame_bytes;  /* after the codec; what a gateway compresses is in its statistics */
    uint64_t waiting;      /* frames: not taken by the other program yet; come, and not received */
    uint64_t n_nonfinite;  /* NaN and infinite values that were sent by a codec */
    double relative_error; /* of what was sent by a codec: root of the sum of squares of the
                              differences, over that of the values; 0: none was */
    int64_t idle_us;       /* since something of it moved */
    int is_open;           /* the other end has opened it, too */
};
enum hdt_err hdt_flow_stats(struct hdt_flow *flow, struct hdt_flow_stats *stats,
                            struct hdt_error_info *error);

/* ---- collectives: all members take part ---- */

enum hdt_reduce { HDT_SUM = 0, HDT_AVERAGE = 1 };

struct hdt_allreduce_conf {
    size_t size;
    int type;          /* HDT_TYPE_F32, _BF16 or _F16 */
    int reduce;        /* enum hdt_reduce */
    const char *codec; /* NULL: "none"; "bf16", "int8:block=64", "int4:rotate", ... */
};
#define HDT_ALLREDUCE_CONF_INIT                                                                    \
 {                                                                                                 \
  sizeof(struct hdt_allreduce_conf), 1, 0, NULL                                                    \
 }

/* Sum (or average) the n elements of all members; `dst` may be `src`, and does not overlap it
 * otherwise. Values are added up in f32 in the order of ranks, whatever arrives first, and rounded
 * once; with a codec, what a member adds of others and what all get has been through it. All
 * members end with the same bits. Each member reduces its share of the elements and sends it to the
 * others: one trip there, one back, and 2 (n - 1) / n of the bytes over each member's link, which
 * is the least that is possible. What differs between members (n, type, reduce, codec) ends the
 * channel, with both values. hdt_iallreduce does not wait; several may be under way, and follow
 * each other without a pause. */
enum hdt_err hdt_allreduce(struct hdt_channel *channel, const void *src, void *dst, size_t n,
                           const struct hdt_allreduce_conf *conf, struct hdt_error_info *error);
enum hdt_err hdt_iallreduce(struct hdt_channel *channel, const void *src, void *dst, size_t n,
                            const struct hdt_allreduce_conf *conf, struct hdt_request **request,
                            struct hdt_error_info *error);

/* The bytes of rank `root` to all others. */
enum hdt_err hdt_broadcast(struct hdt_channel *channel, void *data, size_t bytes, int root,
                           struct hdt_error_info *error);
enum hdt_err hdt_ibroadcast(struct hdt_channel *channel, void *data, size_t bytes, int root,
                            struct hdt_request **request, struct hdt_error_info *error);

/* Completes when all members have called it. */
enum hdt_err hdt_barrier(struct hdt_channel *channel, struct hdt_error_info *error);

/* What the collectives of a channel have done. Set `size` before the call. */
struct hdt_channel_stats {
    size_t size;
    uint64_t n_collectives; /* completed */
    uint64_t raw_bytes;     /* that were sent, before the codec */
    uint64_t frame_bytes;   /* after it */
    uint64_t n_nonfinite;
    double relative_error;  /* as of a flow */
    uint64_t n_connections; /* to the gateway: above 1, it was lost and made again */
    int n_here;             /* members that are connected now */
};
enum hdt_err hdt_channel_stats(struct hdt_channel *channel, struct hdt_channel_stats *stats,
                               struct hdt_error_info *error);

#ifdef __cplusplus
}
#endif
#endif /* HDT_H */
