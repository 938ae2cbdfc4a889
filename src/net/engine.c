/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is the same for every engine: timers, work posted by other threads, the order of a round.
 *
 * A round is: wait (in the back-end) until I/O, a timer or a post is due; call `done` of what has
 * finished; run what was posted; fire the timers. What these calls submit is tried at once by the
 * back-end but reported in the next round only, so that a callback never runs inside another one
 * and a busy descriptor cannot starve the rest.
 *
 * Posts go through a lock-free stack that is turned round when it is taken: order is kept, a burst
 * of posts costs one wake-up. A mutex was refused because the threads that post (codecs, the main
 * loop) must never wait for an I/O thread that was descheduled while it held it.
 */
#include "config.h"

#include "src/net/engine_impl.h"
#include "src/base/clock.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* First the one that works everywhere. */
static const struct hdt_engine_ops *const engines[] = {
    &hdt_engine_epoll,
#ifdef HAVE_LIBURING
    &hdt_engine_uring,
#endif
};

enum { N_ENGINES = sizeof(engines) / sizeof(engines[0]) };

const char *hdt_engine_built_in(unsigned i)
{
    return i < N_ENGINES ? engines[i]->name : NULL;
}

enum hdt_status hdt_engine_open(const char *name, struct hdt_engine **engine, struct hdt_error *err)
{
    for (int i = 0; i < N_ENGINES; i++) {
        if (!name || strcmp(name, engines[i]->name) == 0) {
            return engines[i]->open(engine, err);
        }
    }
    hdt_error_set(err, HDT_ENOTSUP, "cannot open I/O engine '%s': this build has no such engine",
                  name);
    hdt_error_hint(err, "use '%s'%s", engines[0]->name,
                   strcmp(name, "io_uring") == 0 ? ", or build --with-liburing" : "");
    return HDT_ENOTSUP;
}

void hdt_engine_close(struct hdt_engine *engine)
{
    if (engine) {
        engine->ops->close(engine);
    }
}

const char *hdt_engine_name(const struct hdt_engine *engine)
{
    return engine->ops->name;
}

enum hdt_status hdt_engine_base_init(struct hdt_engine *engine, const struct hdt_engine_ops *ops,
                                     struct hdt_error *err)
{
    engine->ops = ops;
    engine->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (engine->wake_fd < 0) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot open the I/O engine");
    }
    atomic_init(&engine->posted, NULL);
    atomic_init(&engine->stop, false);
    atomic_init(&engine->runner, 0);
    return HDT_OK;
}

void hdt_engine_base_release(struct hdt_engine *engine)
{
    HDT_ASSERT(!engine->finished_first);
    close(engine->wake_fd);
}

void hdt_engine_submit(struct hdt_engine *engine, struct hdt_io *io)
{
    HDT_ASSERT(io->state_ == HDT_IO_IDLE);
    engine->ops->submit(engine, io);
}

void hdt_engine_cancel(struct hdt_engine *engine, struct hdt_io *io)
{
    if (io->state_ == HDT_IO_WAITING || io->state_ == HDT_IO_FLYING) {
        engine->ops->cancel(engine, io);
    }
}

void hdt_engine_forget(struct hdt_engine *engine, int fd)
{
    engine->ops->forget(engine, fd);
}

void hdt_engine_finish(struct hdt_engine *engine, struct hdt_io *io, int64_t result)
{
    io->state_ = HDT_IO_FINISHED;
    io->result_ = result;
    io->next_ = NULL;
    if (engine->finished_last) {
        engine->finished_last->next_ = io;
    } else {
        engine->finished_first = io;
    }
    engine->finished_last = io;
}

static void finished_dispatch(struct hdt_engine *engine)
{
    struct hdt_io *io = engine->finished_first;

    engine->finished_first = NULL;
    engine->finished_last = NULL;
    while (io) {
        struct hdt_io *next = io->next_;

        io->state_ = HDT_IO_IDLE;
        io->done(engine, io, io->result_);
        io = next;
    }
}

/* Timers: a binary heap; `heap_idx_` lets a timer be moved and removed in log n. */

static void heap_put(struct hdt_engine *engine, size_t idx, struct hdt_timer *timer)
{
    engine->timers[idx] = timer;
    timer->heap_idx_ = idx;
}

static void heap_sift(struct hdt_engine *engine, size_t idx, struct hdt_timer *timer)
{
    while (idx > 1 && engine->timers[idx / 2]->due_us > timer->due_us) {
        heap_put(engine, idx, engine->timers[idx / 2]);
        idx /= 2;
    }
    for (size_t child = 2 * idx; child <= engine->n_timers; child = 2 * idx) {
        if (child < engine->n_timers &&
            engine->timers[child + 1]->due_us < engine->timers[child]->due_us) {
            child++;
        }
        if (engine->timers[child]->due_us >= timer->due_us) {
            break;
        }
        heap_put(engine, idx, engine->timers[child]);
        idx = child;
    }
    heap_put(engine, idx, timer);
}

void hdt_engine_timer_arm(struct hdt_engine *engine, struct hdt_timer *timer, int64_t due_us)
{
    timer->due_us = due_us;
    if (timer->heap_idx_ == 0) {
        HDT_ASSERT(engine->n_timers < HDT_ENGINE_TIMERS_MAX);
        engine->n_timers++;
        timer->heap_idx_ = engine->n_timers;
    }
    heap_sift(engine, timer->heap_idx_, timer);
}

void hdt_engine_timer_disarm(struct hdt_engine *engine, struct hdt_timer *timer)
{
    size_t idx = timer->heap_idx_;
    struct hdt_timer *last;

    if (idx == 0) {
        return;
    }
    HDT_ASSERT(engine->timers[idx] == timer);
    timer->heap_idx_ = 0;
    last = engine->timers[engine->n_timers];
    engine->n_timers--;
    if (last != timer) {
        heap_sift(engine, idx, last);
    }
}

size_t hdt_engine_timers_left(const struct hdt_engine *engine)
{
    return HDT_ENGINE_TIMERS_MAX - engine->n_timers;
}

/* As many as are armed now at most, so that timers that arm themselves for the past do not keep
 * the round from ending. */
static void timers_fire(struct hdt_engine *engine)
{
    size_t n_left = engine->n_timers;
    int64_t now_us = n_left > 0 ? hdt_clock_now_us() : 0;

    while (n_left-- > 0 && engine->n_timers > 0 && engine->timers[1]->due_us <= now_us) {
        struct hdt_timer *timer = engine->timers[1];

        hdt_engine_timer_disarm(engine, timer);
        timer->fire(engine, timer);
    }
}

static void engine_wake(struct hdt_engine *engine)
{
    uint64_t one = 1;
    ssize_t n = write(engine->wake_fd, &one, sizeof(one));

    /* EAGAIN: the counter is full, which wakes it too. */
    HDT_ASSERT(n == (ssize_t)sizeof(one) || errno == EAGAIN || errno == EINTR);
}

void hdt_engine_woken(struct hdt_engine *engine)
{
    uint64_t count;
    ssize_t n = read(engine->wake_fd, &count, sizeof(count));

    (void)n;
}

void hdt_engine_post(struct hdt_engine *engine, struct hdt_task *task)
{
    struct hdt_task *top = atomic_load_explicit(&engine->posted, memory_order_relaxed);

    do {
        task->next_ = top;
    } while (!atomic_compare_exchange_weak_explicit(&engine->posted, &top, task,
                                                    memory_order_release, memory_order_relaxed));
    /* `top`, not task->next_: the task may have run and be gone already. */
    if (!top &&
        atomic_load_explicit(&engine->runner, memory_order_relaxed) != (uintptr_t)pthread_self()) {
        engine_wake(engine);
    }
}

static void tasks_run(struct hdt_engine *engine)
{
    struct hdt_task *newest = atomic_exchange_explicit(&engine->posted, NULL, memory_order_acquire);
    struct hdt_task *oldest = NULL;

    while (newest) {
        struct hdt_task *next = newest->next_;

        newest->next_ = oldest;
        oldest = newest;
        newest = next;
    }
    while (oldest) {
        struct hdt_task *next = oldest->next_;

        oldest->run(engine, oldest);
        oldest = next;
    }
}

/* How long the back-end may sleep. */
static int64_t engine_wait_us(struct hdt_engine *engine, int64_t timeout_us)
{
    if (engine->finished_first ||
        atomic_load_explicit(&engine->posted, memory_order_relaxed) != NULL) {
        return 0;
    }
    if (engine->n_timers > 0) {
        int64_t timer_us = engine->timers[1]->due_us - hdt_clock_now_us();

        timer_us = timer_us < 0 ? 0 : timer_us;
        if (timeout_us < 0 || timer_us < timeout_us) {
            return timer_us;
        }
    }
    return timeout_us;
}

void hdt_engine_run_once(struct hdt_engine *engine, int64_t timeout_us)
{
    atomic_store_explicit(&engine->runner, (uintptr_t)pthread_self(), memory_order_relaxed);
    engine->ops->run_once(engine, engine_wait_us(engine, timeout_us));
    finished_dispatch(engine);
    tasks_run(engine);
    timers_fire(engine);
    atomic_store_explicit(&engine->runner, 0, memory_order_relaxed);
}

void hdt_engine_run(struct hdt_engine *engine)
{
    while (!atomic_exchange_explicit(&engine->stop, false, memory_order_acquire)) {
        hdt_engine_run_once(engine, -1);
    }
}

void hdt_engine_stop(struct hdt_engine *engine)
{
    atomic_store_explicit(&engine->stop, true, memory_order_release);
    engine_wake(engine);
}
