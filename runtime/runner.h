/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_RUNNER_H
#define HDT_RUNTIME_RUNNER_H

/*
 * One rank of a job: builds its stages, runs the op list of every step, takes part in checkpoints,
 * reports. It lives in a thread of its own from "assign" to "release".
 *
 *     assign -> building (stages, pool, flows, state) -> "ready" -> waiting
 *     start  -> training ... -> last checkpoint, digest -> "rank.done" (root: "done") -> ended
 *     stop   -> checkpoint: the root puts it into the next SYNC_DOWN; abort: ends at once
 *     release -> freed
 */
#include "runtime/backend.h"
#include "runtime/port.h"

#include <jansson.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_runner;

struct hdt_runner_conf {
    const struct hdt_backend *backend;
    struct hdt_device *device;
    struct hdt_port *port;
    const char *data_dir;  /* relative paths of jobs start here */
    const char *state_dir; /* traces */
    uint64_t memory_bytes; /* that a job may use */
};

enum hdt_runner_stop {
    HDT_RUNNER_RUN,
    HDT_RUNNER_BOUNDARY,   /* at the next checkpoint that is due by checkpoint.every */
    HDT_RUNNER_CHECKPOINT, /* after the step in work, with a checkpoint */
    HDT_RUNNER_ABORT
};

/* Take an "assign" message (kept by reference): check it and begin to build in the background; the
 * answer, "ready" or "error", goes to its sender. What conf points to outlives the runner.
 * HDT_EPROTO, HDT_EINVAL: the message, job, model or plan is wrong; nothing was begun. */
enum hdt_status hdt_runner_new(const struct hdt_runner_conf *conf, json_t *assign,
                               struct hdt_runner **runner, struct hdt_error *err);

/* The same "assign" came again, because its answer may be lost: it is answered as the first. */
void hdt_runner_assigned_again(struct hdt_runner *runner, json_t *assign);

/* Abort it if it still runs and wait until its thread is done, for as long as a rank may stand
 * still; longer while a checkpoint is being written. HDT_ETIMEDOUT: an op of its device, or a disk
 * that it loads from, does not come back; it cannot be freed. */
enum hdt_status hdt_runner_end(struct hdt_runner *runner, struct hdt_error *err);

/* As hdt_runner_end, however long that takes, and frees all. NULL is allowed. */
void hdt_runner_free(struct hdt_runner *runner);

uint32_t hdt_runner_job(const struct hdt_runner *runner);
long long hdt_runner_number(const struct hdt_runner *runner); /* as people know the job */
uint32_t hdt_runner_epoch(const struct hdt_runner *runner);
/* Folder that its checkpoints go to; NULL: it is not known yet. */
const char *hdt_runner_checkpoint_dir(const struct hdt_runner *runner);
int hdt_runner_rank(const struct hdt_runner *runner);

/* Begin to train as soon as it is ready. */
void hdt_runner_start(struct hdt_runner *runner);

/* Another rank of the job works ("task.alive"): this one's waits begin anew. */
void hdt_runner_alive(struct hdt_runner *runner);

/* "edge.is": what the gateway says of the way that a flow takes. Any thread. */
void hdt_runner_edge_is(struct hdt_runner *runner, const json_t *body);

/* Ask for the end. `why` (may be NULL) is told when the mode is ABORT. */
void hdt_runner_stop(struct hdt_runner *runner, enum hdt_runner_stop mode,
                     const struct hdt_error *why);

/* True when its thread has nothing more to do. */
bool hdt_runner_has_ended(struct hdt_runner *runner);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_RUNNER_H */
