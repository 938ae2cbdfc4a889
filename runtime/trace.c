/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "runtime/trace.h"

#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/core/timeline.h"

#include <stdlib.h>
#include <string.h>

#define TRACE_PAGE_EVENTS (4096 / sizeof(struct hdt_trace_event))

void hdt_trace_init(struct hdt_trace *trace, size_t cap)
{
    HDT_ASSERT(cap > 0);
    trace->events = hdt_calloc(cap, sizeof(*trace->events));
    /* Its pages are taken now: a run's memory does not grow with its length. */
    for (size_t i = 0; i < cap; i += TRACE_PAGE_EVENTS) {
        *(volatile int64_t *)&trace->events[i].step = 0;
    }
    trace->cap = cap;
    trace->n = 0;
}

void hdt_trace_release(struct hdt_trace *trace)
{
    free(trace->events);
    memset(trace, 0, sizeof(*trace));
}

void hdt_trace_add(struct hdt_trace *trace, const struct hdt_trace_event *event)
{
    trace->events[trace->n % trace->cap] = *event;
    trace->n++;
}

static struct hdt_timeline_op event_op(const struct hdt_trace_event *event, int rank,
                                       int64_t wall_off_ns)
{
    return (struct hdt_timeline_op){
        .kind = (enum hdt_op_kind)event->kind,
        .rank = rank,
        .stage = event->stage,
        .mb = event->mb,
        .step = event->step,
        .eval = event->eval,
        .arrived_us = event->arrived_ns ? (double)(event->arrived_ns + wall_off_ns) / 1e3 : 0,
        .cpu_us = (double)event->cpu_ns / 1e3,
        .start_us = (double)(event->start_ns + wall_off_ns) / 1e3,
        .dur_us = (double)event->duration_ns / 1e3};
}

enum hdt_status hdt_trace_write(const struct hdt_trace *trace, const char *path,
                                const struct hdt_plan *plan, int rank, struct hdt_error *err)
{
    int64_t wall_off_ns = hdt_clock_wall_us() * 1000 - hdt_clock_now_ns();
    uint64_t i = trace->n > trace->cap ? trace->n - trace->cap : 0;
    struct hdt_timeline timeline;

    HDT_TRY(hdt_timeline_open(&timeline, path, err));
    hdt_timeline_add_rank(&timeline, plan, rank);
    for (; i < trace->n; i++) {
        struct hdt_timeline_op op = event_op(&trace->events[i % trace->cap], rank, wall_off_ns);

        hdt_timeline_add_op(&timeline, &op);
    }
    return hdt_timeline_close(&timeline, err);
}
