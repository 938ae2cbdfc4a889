/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_NET_ENGINE_IMPL_H
#define HDT_NET_ENGINE_IMPL_H

/* What every engine has in common; a back-end puts it first in its own struct. Private to src/net.
 */
#include "src/net/engine.h"

#include <stdatomic.h>

#define HDT_ENGINE_TIMERS_MAX  4096
#define HDT_ENGINE_FDS_MAX     (1 << 16) /* descriptors with a higher number: EMFILE */
#define HDT_ENGINE_WOULD_BLOCK INT64_MIN /* no result of any operation */

enum hdt_io_state {
    HDT_IO_IDLE = 0,
    HDT_IO_WAITING,    /* in a queue of the back-end */
    HDT_IO_FLYING,     /* in a queue, and the kernel has it (io_uring) */
    HDT_IO_CANCELLING, /* the same, and the kernel was told to give it back */
    HDT_IO_FINISHED    /* in the list below; `done` follows */
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
extern const struct hdt_engine_ops hdt_engine_uring; /* in builds with liburing */

/* Operations of one descriptor and direction, in order of submission. */
struct hdt_io_queue {
    struct hdt_io *first, *last;
};

enum hdt_fd_family { HDT_FD_UNKNOWN = 0, HDT_FD_UNIX, HDT_FD_OTHER };

/* What a back-end knows of a descriptor; it has an array of them by number, zero at first. */
struct hdt_engine_fd {
    struct hdt_io_queue in, out;
    uint32_t registered; /* epoll: EPOLLIN, EPOLLOUT */
    enum hdt_fd_family family;
};

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

/* ---- engine_try.c ---- */

/* Try `io` now, without blocking: its result, -errno, or HDT_ENGINE_WOULD_BLOCK. A descriptor that
 * is accepted gets a fresh state. is_first: CONNECT begins, later ones look whether it is done. */
int64_t hdt_engine_try(struct hdt_engine_fd *fds, struct hdt_io *io, bool is_first);

bool hdt_engine_fd_is_unix(struct hdt_engine_fd *state, int fd);
bool hdt_io_is_output(const struct hdt_io *io);
struct hdt_io_queue *hdt_io_queue_of(struct hdt_engine_fd *fds, const struct hdt_io *io);
/* The operation is HDT_IO_WAITING from here. */
void hdt_io_queue_append(struct hdt_io_queue *queue, struct hdt_io *io);
void hdt_io_queue_remove(struct hdt_io_queue *queue, struct hdt_io *io);

#endif /* HDT_NET_ENGINE_IMPL_H */
