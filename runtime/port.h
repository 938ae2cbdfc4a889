/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_PORT_H
#define HDT_RUNTIME_PORT_H

/*
 * The port: a worker's connection to its site's gateway.
 *
 * It has a thread of its own with an engine and one stream. When the connection is lost it dials
 * again (0.1 s, doubling to 2 s), says hello, hands over the pool and opens all flows again where
 * they stand. Nothing is lost, because the two workers own a flow, not the gateways between them:
 *
 *  - The sending end keeps each frame in its slot until the receiving *worker* has taken it. Frames
 *    that were handed over and not acknowledged go out again on a new connection.
 *  - The receiving end takes frames in order of their numbers; one that comes twice is acknowledged
 *    again and dropped. Frames that came but were not taken when the connection broke are
 * forgotten: they come again.
 *
 * All tensor memory is one pool a job, allocated through the link's table when the job is opened;
 * frame `seq` of a flow lies in slot `seq % depth`. Nothing allocates after that.
 *
 * A wait that lasts longer than a second is told to the gateway ("rank.state"), once a second, and
 * once when it ends: who asks why the job stands still shall get an answer.
 *
 * Every wait ends with HDT_ECANCELED once the job was cancelled, and with HDT_ETIMEDOUT when
 * nothing of the job moved for its progress timeout; the message says what was waited for, and
 * since when.
 */
#include "src/core/plan.h"
#include "src/net/link.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_port;
struct hdt_tls_ctx;
struct hdt_port_job;

/* Called on the port's thread; they must not block. */
struct hdt_port_events {
    /* The gateway said welcome; `welcome` is the message's body (borrowed). */
    void (*up)(void *user, const json_t *welcome);
    /* A connection was lost, or could not be made, or was refused. Said once per run of failures.
     */
    void (*down)(void *user, const struct hdt_error *why);
    /* A control message; it is the callee's, who releases it. */
    void (*message)(void *user, json_t *msg);
};

struct hdt_port_conf {
    const char *address;     /* "unix:PATH" or "tls:host:port" */
    struct hdt_tls_ctx *tls; /* for "tls:"; outlives the port; a reload counts from the next dial */
    const json_t *hello;     /* body of hello without "jobs"; outlives the port, is not changed */
    const char *spool_dir;   /* folder for reports that memory does not hold; NULL: none */
};

/* Start the port's thread; the connection is made in the background. HDT_EINVAL: the address.
 * HDT_ENOMEM, HDT_EIO: no engine. */
enum hdt_status hdt_port_open(const struct hdt_port_conf *conf,
                              const struct hdt_port_events *events, void *user,
                              struct hdt_port **port, struct hdt_error *err);

/* Send what is queued (for two seconds at most), close, end the thread. Jobs must be closed before.
 * NULL is allowed. */
void hdt_port_close(struct hdt_port *port);

/* Queue a control message (stolen); kept until the connection is up. Any thread, does not block.
 * When more than HDT_PORT_MSG_BYTES_MAX wait, the oldest are dropped, with a warning. */
#define HDT_PORT_MSG_BYTES_MAX ((size_t)16 << 20)
void hdt_port_send(struct hdt_port *port, json_t *msg);

/* A report to the coordinator of a job (stolen; its body names "job" and "epoch"): numbered, kept
 * and said again until the coordinator has written it down, however long it is away: in memory,
 * then in a file in spool_dir. Reports of another job or epoch end those before them. Any thread;
 * may wait for the disk while the coordinator is away. */
void hdt_port_report(struct hdt_port *port, json_t *msg);

/* The epoch is over, and those before it: what was not acknowledged need not be said. Any thread.
 */
void hdt_port_reports_end(struct hdt_port *port, json_int_t job, json_int_t epoch);

/* Body of the last report "ckpt" of the job, acknowledged or not, until another job reports; NULL:
 * none. New reference. Any thread. */
json_t *hdt_port_last_checkpoint(struct hdt_port *port, json_int_t job);
/* A job begins: what is remembered of one that had its number before (a coordinator counts anew
 * when its state was removed) is not its. Any thread. */
void hdt_port_checkpoint_forget(struct hdt_port *port);

/* The job that hello names from now on, as this worker holds it; 0: none. Any thread. */
void hdt_port_hold(struct hdt_port *port, uint32_t job, uint32_t epoch);

/* Close the connection as a fault would (tests); it is made again. Any thread. */
void hdt_port_break(struct hdt_port *port);

/* Number of connections that reached "welcome". Any thread. */
uint64_t hdt_port_n_sessions(struct hdt_port *port);

/* ---- a job's flows ---- */

struct hdt_port_job_conf {
    uint32_t job, epoch;
    long long number; /* of the job, in messages */
    int rank;
    const struct hdt_plan *plan; /* outlives the port's job */
    int64_t progress_timeout_ms;
    bool inspect_hash; /* check the hash of every received frame that carries one */
};

/* Pool bytes that a rank's flows need. */
uint64_t hdt_port_job_bytes(const struct hdt_plan *plan, int rank);

/* Allocate the pool, announce it and open the rank's flows. One job a port. HDT_ENOMEM, HDT_EEXIST.
 */
enum hdt_status hdt_port_job_open(struct hdt_port *port, const struct hdt_port_job_conf *conf,
                                  struct hdt_port_job **job, struct hdt_error *err);

/* Forget the flows and free the pool; no thread may use them any more. Blocks shortly. NULL is
 * allowed. */
void hdt_port_job_close(struct hdt_port_job *job);

const struct hdt_pool *hdt_port_job_pool(const struct hdt_port_job *job);

/* End all waits, now and later, with HDT_ECANCELED and the text of `why`. Any thread. */
void hdt_port_job_cancel(struct hdt_port_job *job, const struct hdt_error *why);

/* HDT_ECANCELED once it was cancelled: for work that waits for nothing. Any thread. */
enum hdt_status hdt_port_job_check(struct hdt_port_job *job, struct hdt_error *err);

/* Something of the job moved (a step, a slab written): the progress deadline starts anew. */
void hdt_port_job_progress(struct hdt_port_job *job);

/* What the calling thread does now: said with its waits (rank.state). */
struct hdt_port_at {
    const char *op; /* constant text; NULL: nothing is known */
    int64_t step;   /* from 1 */
    int64_t mb;     /* micro-batch; -1: none */
};
void hdt_port_job_at(struct hdt_port_job *job, const struct hdt_port_at *at);
/* What the thread that said so last does. Any thread. */
void hdt_port_job_is_at(struct hdt_port_job *job, struct hdt_port_at *at);

/*
 * The calls below name a flow by its index in the plan. One thread at a time a flow.
 */

/* Wait for a free slot and set *slot and *cap; the frame is written there in place. */
enum hdt_status hdt_port_send_get(struct hdt_port_job *job, int flow, void **slot, size_t *cap,
                                  struct hdt_error *err);

/* As hdt_port_send_get without waiting; false: no slot is free. */
bool hdt_port_send_try(struct hdt_port_job *job, int flow, void **slot, size_t *cap);

/* Hand over the slot of the last get: `len` bytes of `dtype`, made from raw_len bytes of tensor. It
 * goes out when the receiver gives credit. Does not block. */
void hdt_port_send_commit(struct hdt_port_job *job, int flow, size_t len, size_t raw_len,
                          enum hdt_dtype dtype);

/* Give the slot of the last get a mark that the other end reads with the frame; 0 unless it is
 * given one. Before its commit. */
void hdt_port_send_mark(struct hdt_port_job *job, int flow, uint8_t mark);

/* Wait until all frames of the flow are taken by the other end. */
enum hdt_status hdt_port_send_flush(struct hdt_port_job *job, int flow, struct hdt_error *err);

/* Wait for the next frame; *frame is borrowed until hdt_port_recv_done. The memory may be shared
 * with the gateway: foreign bytes. */
enum hdt_status hdt_port_recv_wait(struct hdt_port_job *job, int flow, const void **frame,
                                   size_t *len, struct hdt_error *err);

/* When the frame of the last wait had come (monotonic clock); before its recv_done. */
int64_t hdt_port_recv_arrived_ns(struct hdt_port_job *job, int flow);

/* The mark of the frame of the last wait; before its recv_done. */
uint8_t hdt_port_recv_mark(struct hdt_port_job *job, int flow);

/* The frame of the last wait is taken: it is acknowledged and its slot may be filled again. */
void hdt_port_recv_done(struct hdt_port_job *job, int flow);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_PORT_H */
