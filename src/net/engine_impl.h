/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_NET_ENGINE_IMPL_H
#define HDT_NET_ENGINE_IMPL_H

/* What every engine has in common; a back-end puts it first in its own struct. Private to src/net.
 */
#include "src/net/engine.h"

#include <stdatomic.h>

#define HDT_ENGINE_TIMERS_MAX 4096

enum hdt_io_state {
    HDT_IO_IDLE = 0,
    HDT_IO_WAITING, /* in a queue of the back-end */
    HDT_IO_FINISHED /* in the list below; `done` follows */
};

struct hdt_engine {
    const struct hdt_engine_ops *ops;
    struct hdt_io *finished_first, *finished_last;

    struct hdt_timer *timers[HDT_ENGINE_TIMERS_MAX + 1]; /* binary heap by due_us; [0] unused */
    size_t n_timers;

    /* Written by any thread. `posted` is a stack, newest first; who pushes on an empty one wakes
     * the engine, unless it is the runner itself, which looks before it sleeps. */
    _Atomic(struct hdt_task *) posted;
    atomic_bool stop;
    atomic_uintptr_t runner; /* pthread_self() of the thread inside run_once, else 0 */
    int wake_fd;             /* eventfd: the back-end waits for it and calls hdt_engine_woken */
};

extern const struct hdt_engine_ops hdt_engine_epoll;

/* Set up and tear down the common part. */
enum hdt_status hdt_engine_base_init(struct hdt_engine *engine, const struct hdt_engine_ops *ops,
                                     struct hdt_error *err);
void hdt_engine_base_release(struct hdt_engine *engine);

/* The operation is over: `done` is called with `result` later in this round or in the next. */
void hdt_engine_finish(struct hdt_engine *engine, struct hdt_io *io, int64_t result);

/* Timers that may still be armed. */
size_t hdt_engine_timers_left(const struct hdt_engine *engine);

/* Take the wake-up back. */
void hdt_engine_woken(struct hdt_engine *engine);

#endif /* HDT_NET_ENGINE_IMPL_H */
