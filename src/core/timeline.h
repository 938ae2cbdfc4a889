/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_TIMELINE_H
#define HDT_CORE_TIMELINE_H

/* Ops of ranks over time as Chrome trace JSON (chrome://tracing, ui.perfetto.dev). The plan's
 * prediction and the workers' measurements are both written here, so that they open side by side:
 * a process is a rank, a thread is a stage of it (and one more for the ops of the rank itself),
 * an event bears the name of its op. */
#include "src/core/schedule.h"

#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_timeline {
    FILE *out;
    char path[4096]; /* for messages */
    bool first;
    int pid_base;      /* of the process that rank 0 is; set after open to lay two runs in a file */
    const char *group; /* in front of the names of processes; NULL: nothing */
};

struct hdt_timeline_op {
    enum hdt_op_kind kind;
    int rank, stage;         /* stage -1: an op of the rank */
    int64_t mb, step;        /* -1: none */
    bool eval;               /* of an evaluation, not of the step itself */
    double start_us, dur_us; /* on any clock that all ranks of the file share */
    double arrived_us;       /* of an op that takes a frame: when it had come; 0: not known */
    double cpu_us;           /* of dur_us, on a core; 0: not known */
};

/* Begin the file. HDT_EIO. */
enum hdt_status hdt_timeline_open(struct hdt_timeline *t, const char *path, struct hdt_error *err);

/* Names of the rank's process and threads. */
void hdt_timeline_add_rank(struct hdt_timeline *t, const struct hdt_plan *plan, int rank);

void hdt_timeline_add_op(struct hdt_timeline *t, const struct hdt_timeline_op *op);

/* The ops of a file that hdt_timeline_close ended, in its order; free(*ops). Events that are no op
 * of the plan are left out. HDT_ENOENT, HDT_EIO; HDT_EINVAL: it is no timeline, or of another plan.
 */
enum hdt_status hdt_timeline_read(const char *path, const struct hdt_plan *plan,
                                  struct hdt_timeline_op **ops, size_t *n_ops,
                                  struct hdt_error *err);

/* End the file; whatever failed since it was opened comes out here. HDT_EIO. */
enum hdt_status hdt_timeline_close(struct hdt_timeline *t, struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_TIMELINE_H */
