/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_BASE_RECORDER_H
#define HDT_BASE_RECORDER_H

/*
 * The flight recorder: what a process did in its last five minutes, for the moment when it is asked
 * why it stands still. Every event goes into a ring of fixed size; the rings are written as JSON
 * lines to `DIR/flight-NAME-TIME-REASON.jsonl` on a stall, on SIGUSR1, on request, and when the
 * process dies of HDT_ASSERT or a fatal signal.
 *
 * Two rings, 12 MiB together, allocated by open: one for what happens seldom (log lines,
 * connections, messages), one for what happens per frame and step, so that the many do not push
 * out the few. The second holds 131072 events: five minutes at 436 a second. Beyond that the oldest
 * go first, and the first line of a dump says how far back it reaches.
 *
 * Recording takes no lock, allocates nothing, makes no system call, and may be done by any thread;
 * before open and after close it does nothing.
 */
#include "src/base/error.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_REC_NUMBERS  4
#define HDT_REC_TEXTS    3
#define HDT_REC_TEXT_CAP 960 /* bytes of all texts of an event; more is cut */
#define HDT_REC_SPAN_S   300
#define HDT_REC_DUMPS    8 /* kept; the oldest go first */

/* What an event is of; recorder.c has the names of its numbers and texts. */
enum hdt_rec_kind {
    HDT_REC_LOG,        /* level; text */
    HDT_REC_ASSERT,     /* line; condition, file */
    HDT_REC_CONNECTION, /* what ("up", "down", "refused"), who, why */
    HDT_REC_STREAM,     /* stream, session; what, peer, why */
    HDT_REC_FLOW,       /* job, flow, epoch, seq; what, end, peer site */
    HDT_REC_STATE,      /* job; state */
    HDT_REC_MESSAGE,    /* type, from, to */
    HDT_REC_CHECKPOINT, /* job, step, bytes; phase */
    HDT_REC_WAIT,       /* job, rank, flow, waited_us; what, op */
    HDT_REC_RESENT,     /* job, flow, seq, offset */
    HDT_REC_FRAME,      /* job, flow, seq, bytes */
    HDT_REC_STEP_BEGIN, /* job, rank, step */
    HDT_REC_STEP_END,   /* job, rank, step, duration_us */
    HDT_REC_KIND_COUNT
};

struct hdt_rec {
    enum hdt_rec_kind kind;
    int64_t n[HDT_REC_NUMBERS];
    const char *text[HDT_REC_TEXTS]; /* NULL: none; copied */
};

/* Remember an event that happens now. */
void hdt_recorder_add(const struct hdt_rec *rec);

/* HDT_RECORD(HDT_REC_FRAME, .n = {job, flow, seq, bytes}); */
#define HDT_RECORD(kind_, ...)                                                                     \
 hdt_recorder_add(&(const struct hdt_rec){.kind = (kind_), __VA_ARGS__})

/* Begin to record, in the folder `dir` under the name "gateway-a"; both are copied. Starts a thread
 * that writes the dumps and says repeated log lines in time, takes SIGUSR1 for this process (which
 * is blocked in the caller and so in threads it starts), and SIGSEGV, SIGBUS, SIGABRT where nobody
 * else has them. To be called before other threads start. HDT_ENOMEM. */
enum hdt_status hdt_recorder_open(const char *dir, const char *name, struct hdt_error *err);

/* Writes what was asked for, ends the thread. The rings stay for a later open: a thread may be
 * writing to them. */
void hdt_recorder_close(void);

/* Have the rings written soon. `reason`: a word or two for the file's name ("stall", "bundle"). Any
 * thread, does not block. What is asked within 10 s after a dump is left out, unless the reason is
 * "bundle" or "sigusr1": then within 1 s. */
void hdt_recorder_dump(const char *reason);

/* Number of requests for a dump that were seen to: written, failed or left out. Any thread. */
uint64_t hdt_recorder_n_dumps(void);

/* Path of the newest dump of this process, into out; "" when there is none. Any thread. */
void hdt_recorder_last_dump(char *out, size_t cap);

/* Is this the name of a dump of this process, whole, as it lies in `dir`? */
int hdt_recorder_is_dump(const char *file_name);

#ifdef __cplusplus
}
#endif
#endif /* HDT_BASE_RECORDER_H */
