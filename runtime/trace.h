/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_TRACE_H
#define HDT_RUNTIME_TRACE_H

/* What a rank did when: one event an op of the list, the last ones kept, written as Chrome trace
 * JSON (chrome://tracing, ui.perfetto.dev). Belongs to one thread. */
#include "src/core/schedule.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_trace_event {
    int64_t start_ns, duration_ns; /* monotonic clock; waiting is not part of it */
    int64_t cpu_ns;                /* that the runner's thread had of it; 0: not known */
    int64_t arrived_ns;            /* of an op that takes a frame: when the frame had come */
    int32_t kind, stage;           /* enum hdt_op_kind */
    bool eval;                     /* of an evaluation after the step */
    int64_t mb, step;
};

struct hdt_trace {
    struct hdt_trace_event *events; /* a ring */
    size_t cap;
    uint64_t n; /* ever added */
};

/* Room for `cap` events; older ones are overwritten. */
void hdt_trace_init(struct hdt_trace *trace, size_t cap);
void hdt_trace_release(struct hdt_trace *trace);
void hdt_trace_add(struct hdt_trace *trace, const struct hdt_trace_event *event);

/* Write the events of `rank` to `path` (core/timeline.h); times are wall-clock, so that the traces
 * of several ranks can be laid on one another. HDT_EIO. */
enum hdt_status hdt_trace_write(const struct hdt_trace *trace, const char *path,
                                const struct hdt_plan *plan, int rank, struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_TRACE_H */
