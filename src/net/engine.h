/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_NET_ENGINE_H
#define HDT_NET_ENGINE_H

/*
 * The I/O engine: completion-based (submit a buffer, be told when it is done), so that epoll and
 * io_uring both fit under it. One engine belongs to one thread, the one that calls
 * hdt_engine_run; all functions are called on that thread except hdt_engine_post and
 * hdt_engine_stop. The caller owns every struct hdt_io and keeps it and its buffer alive until
 * `done` was called; the engine allocates nothing after open.
 */
#include "src/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_engine;

enum hdt_io_kind {
    HDT_IO_RECV,    /* up to len bytes into buf; result: bytes, 0 = end of stream. On Unix sockets a
                       passed descriptor, if any, arrives in `passed_fd` (close-on-exec) */
    HDT_IO_SEND,    /* up to len bytes of buf; result: bytes. passed_fd >= 0 rides along (Unix) */
    HDT_IO_ACCEPT,  /* result: the new descriptor (non-blocking, close-on-exec) */
    HDT_IO_CONNECT, /* to addr; result 0 */
    HDT_IO_READABLE /* level: result 0 as soon as the descriptor can be read (eventfd, timerfd) */
};

struct hdt_io {
    enum hdt_io_kind kind;
    int fd;
    void *buf;
    size_t len;
    int passed_fd; /* SEND: descriptor to pass or -1; RECV: set by the engine, -1 = none */
    struct sockaddr_storage addr;
    socklen_t addr_len;

    /* Called by hdt_engine_run, never from inside submit. result: see kind, or -errno;
     * -ECANCELED after hdt_engine_cancel. */
    void (*done)(struct hdt_engine *engine, struct hdt_io *io, int64_t result);
    void *user;

    struct hdt_io *next_, *prev_; /* private to the engine; zero before the first submit */
    int64_t result_;
    unsigned state_;
};

/* A piece of work from another thread; owned by the caller until `run` is called. */
struct hdt_task {
    void (*run)(struct hdt_engine *engine, struct hdt_task *task);
    struct hdt_task *next_;
};

/* A timer, owned by the caller; fires once. */
struct hdt_timer {
    int64_t due_us; /* monotonic clock */
    void (*fire)(struct hdt_engine *engine, struct hdt_timer *timer);
    void *user;
    size_t heap_idx_; /* private; 0 = not armed */
};

/* An engine as a back-end: one file, one const table. */
struct hdt_engine_ops {
    const char *name; /* "epoll", "io_uring" */
    enum hdt_status (*open)(struct hdt_engine **engine, struct hdt_error *err);
    void (*close)(struct hdt_engine *engine);
    void (*submit)(struct hdt_engine *engine, struct hdt_io *io);
    void (*cancel)(struct hdt_engine *engine, struct hdt_io *io);
    void (*forget)(struct hdt_engine *engine, int fd);
    void (*run_once)(struct hdt_engine *engine, int64_t timeout_us);
};

/* Open the engine called `name`; NULL: epoll, which works everywhere. HDT_ENOTSUP: this build,
 * kernel or container has none of that name, with cause and remedy. HDT_EIO. */
enum hdt_status hdt_engine_open(const char *name, struct hdt_engine **engine,
                                struct hdt_error *err);
/* Names of the engines of this build; NULL after the last. */
const char *hdt_engine_built_in(unsigned i);

struct hdt_engine_choice {
    const char *name;         /* what hdt_engine_open takes */
    char why[160];            /* for a log: "io_uring needs 0.94 of the CPU time ..." */
    struct hdt_error refused; /* HDT_OK: nothing was; else why the engine wanted is not to be had */
};
/* Choose by `setting`: "epoll", "io_uring" or "auto". The latter lets each engine move some MiB
 * over loopback, which takes some ten ms, and takes the one that needs less CPU time. Always gives
 * an engine that opens here. Not for a thread that serves. */
void hdt_engine_choose(const char *setting, struct hdt_engine_choice *choice);
/* No io may be in flight. NULL is allowed. */
void hdt_engine_close(struct hdt_engine *engine);
const char *hdt_engine_name(const struct hdt_engine *engine);

void hdt_engine_submit(struct hdt_engine *engine, struct hdt_io *io);
/* `done` follows with -ECANCELED (or the result, if it was ready); never synchronously. */
void hdt_engine_cancel(struct hdt_engine *engine, struct hdt_io *io);
/* Call before closing a descriptor that was used with this engine (a stream does it itself): its
 * number may come back for another socket. No io may be in flight on it. */
void hdt_engine_forget(struct hdt_engine *engine, int fd);

/* At most 4096 timers armed at a time (asserted). Arming an armed timer moves it. */
void hdt_engine_timer_arm(struct hdt_engine *engine, struct hdt_timer *timer, int64_t due_us);
void hdt_engine_timer_disarm(struct hdt_engine *engine, struct hdt_timer *timer);

/* Run `task` on the engine's thread, in order of posting. Any thread; on the engine's own it costs
 * no system call and runs later in the same or the next round. */
void hdt_engine_post(struct hdt_engine *engine, struct hdt_task *task);

/* Serve until hdt_engine_stop; or for `timeout_us` at most when >= 0 (one round). */
void hdt_engine_run(struct hdt_engine *engine);
void hdt_engine_run_once(struct hdt_engine *engine, int64_t timeout_us);
/* Any thread. */
void hdt_engine_stop(struct hdt_engine *engine);

#ifdef __cplusplus
}
#endif
#endif /* HDT_NET_ENGINE_H */
