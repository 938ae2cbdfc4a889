/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completions over io_uring.
 *
 * What moves bulk, SEND and RECV on TCP, is the kernel's to finish: a round's submissions leave
 * with the call that waits for completions, so that a round costs one system call however many
 * streams took part. The head of each queue is the kernel's, the others wait here, since the kernel
 * keeps no order among operations that had to wait. All else (Unix sockets, which pass descriptors;
 * ACCEPT, CONNECT, READABLE) is rare or small: it is tried at once, as over epoll, and the ring
 * only polls.
 *
 * A ring of one issuer whose completions run when it asks for them (Linux 6.1) never interrupts the
 * thread while it encrypts. Its issuer is the thread that enables it: the first round does, because
 * engines are opened on another thread than the one that runs them. Older kernels get a plain ring.
 *
 * Refused, because they cost more than they bring where streams take 128 KiB at a time: multishot
 * receive with provided buffers (0.112 against 0.098 CPU-seconds a GB), SEND_ZC (half the rate on
 * loopback and veth, which copy all the same); registered buffers, which plain SEND and RECV cannot
 * name; registered files, which save one reference count in 128 KiB.
 */
#include "config.h"

#include "src/net/engine_impl.h"
#include "src/base/buf.h"

#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    ENTRIES = 1024,     /* more submissions in a round cost another system call, no more */
    BULK_LEN = 32 << 10 /* sends from this length on leave at once */
};

struct uring_engine {
    struct hdt_engine base;
    struct io_uring ring;
    bool is_enabled;
    struct hdt_engine_fd *fds;
};

static struct uring_engine *uring_engine_of(struct hdt_engine *engine)
{
    return (struct uring_engine *)engine;
}

/* Who refused, and what to do. */
static enum hdt_status uring_refused(int errnum, struct hdt_error *err)
{
    FILE *file = fopen("/proc/sys/kernel/io_uring_disabled", "re");
    int disabled = 0;
    const char *why = strerror(errnum), *remedy = "epoll serves instead";

    if (file) {
        if (fscanf(file, "%d", &disabled) != 1) {
            disabled = 0;
        }
        fclose(file);
    }
    if (errnum == EPERM && disabled != 0) {
        why = "the sysctl kernel.io_uring_disabled forbids it";
        remedy = "sysctl kernel.io_uring_disabled=0; epoll serves meanwhile";
    } else if (errnum == EPERM || errnum == EACCES) {
        why = "a seccomp filter or the container forbids it";
        remedy = "allow io_uring_setup in the container's seccomp profile; epoll serves meanwhile";
    } else if (errnum == ENOSYS || errnum == EINVAL) {
        why = "this kernel, or a seccomp filter, has no io_uring, or an old one";
        remedy = "a kernel from 5.13 on; epoll serves meanwhile";
    } else if (errnum == ENOMEM) {
        why = "too little memory may be locked";
        remedy = "LimitMEMLOCK=infinity in the service; epoll serves meanwhile";
    }
    hdt_error_set(err, HDT_ENOTSUP, "cannot open I/O engine 'io_uring': %s", why);
    hdt_error_hint(err, "%s", remedy);
    return HDT_ENOTSUP;
}

/* A filter may let a ring be made and forbid its use, which would show on the I/O thread, too late.
 * What is asked here fails, but not so. 0 or -errno. */
static int ring_check_calls(const struct uring_engine *ur)
{
    const unsigned fd = (unsigned)ur->ring.ring_fd;
    const int rcs[] = {io_uring_register(fd, IORING_REGISTER_PROBE, NULL, 0),
                       io_uring_enter(fd, 0, 0, 0, NULL)};

    for (size_t i = 0; i < sizeof(rcs) / sizeof(rcs[0]); i++) {
        if (rcs[i] == -EPERM || rcs[i] == -EACCES || rcs[i] == -ENOSYS) {
            return rcs[i];
        }
    }
    return 0;
}

/* The best ring that this kernel has. 0 or -errno. */
static int ring_open(struct uring_engine *ur)
{
    struct io_uring_params params = {.flags = IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER |
                                              IORING_SETUP_DEFER_TASKRUN};
    int rc = io_uring_queue_init_params(ENTRIES, &ur->ring, &params);

    ur->is_enabled = false;
    if (rc == -EINVAL) {
        params = (struct io_uring_params){0};
        rc = io_uring_queue_init_params(ENTRIES, &ur->ring, &params);
        ur->is_enabled = true;
    }
    if (rc != 0) {
        return rc;
    }
    /* The wake-up is a multishot poll, which came with this one. */
    rc = params.features & IORING_FEAT_RSRC_TAGS ? ring_check_calls(ur) : -EINVAL;
    if (rc != 0) {
        io_uring_queue_exit(&ur->ring);
    }
    return rc;
}

static void ring_submit(struct uring_engine *ur)
{
    int rc = io_uring_submit(&ur->ring);

    /* What was not taken leaves with the next call. */
    HDT_ASSERT(rc >= 0 || rc == -EINTR || rc == -EAGAIN || rc == -EBUSY);
}

static struct io_uring_sqe *sqe_get(struct uring_engine *ur)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ur->ring);

    while (!sqe) {
        ring_submit(ur);
        sqe = io_uring_get_sqe(&ur->ring);
    }
    return sqe;
}

/* Completions without an operation: of the wake-up, and of cancellations (NULL). */
static void wake_arm(struct uring_engine *ur)
{
    struct io_uring_sqe *sqe = sqe_get(ur);

    io_uring_prep_poll_multishot(sqe, ur->base.wake_fd, POLLIN);
    io_uring_sqe_set_data(sqe, &ur->base.wake_fd);
}

static enum hdt_status uring_open(struct hdt_engine **engine, struct hdt_error *err)
{
    struct uring_engine *ur = hdt_calloc(1, sizeof(*ur));
    enum hdt_status status = hdt_engine_base_init(&ur->base, &hdt_engine_uring, err);
    int rc;

    if (status != HDT_OK) {
        free(ur);
        return status;
    }
    rc = ring_open(ur);
    if (rc != 0) {
        hdt_engine_base_release(&ur->base);
        free(ur);
        return uring_refused(-rc, err);
    }
    ur->fds = hdt_calloc(HDT_ENGINE_FDS_MAX, sizeof(*ur->fds));
    wake_arm(ur);
    *engine = &ur->base;
    return HDT_OK;
}

static void uring_close(struct hdt_engine *engine)
{
    struct uring_engine *ur = uring_engine_of(engine);

    io_uring_queue_exit(&ur->ring);
    hdt_engine_base_release(&ur->base);
    free(ur->fds);
    free(ur);
}

/* ---- operations ---- */

/* The kernel does it from here, or polls for it. */
static void io_fly(struct uring_engine *ur, struct hdt_io *io, bool is_bulk)
{
    struct io_uring_sqe *sqe = sqe_get(ur);

    if (!is_bulk) {
        io_uring_prep_poll_add(sqe, io->fd, hdt_io_is_output(io) ? POLLOUT : POLLIN);
    } else if (io->kind == HDT_IO_SEND) {
        io_uring_prep_send(sqe, io->fd, io->buf, io->len, MSG_NOSIGNAL);
    } else {
        io->passed_fd = -1;
        io_uring_prep_recv(sqe, io->fd, io->buf, io->len, 0);
    }
    io_uring_sqe_set_data(sqe, io);
    io->state_ = HDT_IO_FLYING;
}

static bool io_is_bulk(struct uring_engine *ur, const struct hdt_io *io)
{
    return (io->kind == HDT_IO_SEND || io->kind == HDT_IO_RECV) &&
           !hdt_engine_fd_is_unix(&ur->fds[io->fd], io->fd);
}

/* Begin with the head of a queue, and go on with the next where that is over at once. */
static void queue_start(struct uring_engine *ur, struct hdt_io_queue *queue)
{
    while (queue->first && queue->first->state_ == HDT_IO_WAITING) {
        struct hdt_io *io = queue->first;
        bool is_bulk = io_is_bulk(ur, io);
        int64_t result = HDT_ENGINE_WOULD_BLOCK;

        if (!is_bulk) {
            result = hdt_engine_try(ur->fds, io, true);
        }
        if (result == HDT_ENGINE_WOULD_BLOCK) {
            io_fly(ur, io, is_bulk);
            return;
        }
        hdt_io_queue_remove(queue, io);
        hdt_engine_finish(&ur->base, io, result);
    }
}

static void uring_submit(struct hdt_engine *engine, struct hdt_io *io)
{
    struct uring_engine *ur = uring_engine_of(engine);
    struct hdt_io_queue *queue;

    if (io->fd < 0 || io->fd >= HDT_ENGINE_FDS_MAX) {
        hdt_engine_finish(engine, io, io->fd < 0 ? -EBADF : -EMFILE);
        return;
    }
    queue = hdt_io_queue_of(ur->fds, io);
    hdt_io_queue_append(queue, io);
    queue_start(ur, queue);
    if (io->kind == HDT_IO_SEND && io->state_ == HDT_IO_FLYING && io->len >= BULK_LEN &&
        ur->is_enabled) {
        ring_submit(ur);
    }
}

static void uring_cancel(struct hdt_engine *engine, struct hdt_io *io)
{
    struct uring_engine *ur = uring_engine_of(engine);

    if (io->state_ == HDT_IO_WAITING) {
        hdt_io_queue_remove(hdt_io_queue_of(ur->fds, io), io);
        hdt_engine_finish(engine, io, -ECANCELED);
    } else if (io->state_ == HDT_IO_FLYING) {
        struct io_uring_sqe *sqe = sqe_get(ur);

        io_uring_prep_cancel(sqe, io, 0);
        io_uring_sqe_set_data(sqe, NULL);
        io->state_ = HDT_IO_CANCELLING;
    }
}

static void uring_forget(struct hdt_engine *engine, int fd)
{
    struct uring_engine *ur = uring_engine_of(engine);

    if (fd < 0 || fd >= HDT_ENGINE_FDS_MAX) {
        return;
    }
    HDT_ASSERT(!ur->fds[fd].in.first && !ur->fds[fd].out.first);
    memset(&ur->fds[fd], 0, sizeof(ur->fds[fd]));
}

/* ---- completions ---- */

static void io_complete(struct uring_engine *ur, struct hdt_io *io, int res)
{
    struct hdt_io_queue *queue = hdt_io_queue_of(ur->fds, io);
    bool is_bulk = io_is_bulk(ur, io), is_cancelled = io->state_ == HDT_IO_CANCELLING;
    int64_t result = res;

    HDT_ASSERT(queue->first == io);
    if (!is_bulk && res > 0) {
        result = hdt_engine_try(ur->fds, io, false);
    } else if (res == -EINTR || res == -EAGAIN) {
        result = HDT_ENGINE_WOULD_BLOCK;
    }
    if (result == HDT_ENGINE_WOULD_BLOCK && !is_cancelled) {
        io_fly(ur, io, is_bulk);
        return;
    }
    hdt_io_queue_remove(queue, io);
    hdt_engine_finish(&ur->base, io, result == HDT_ENGINE_WOULD_BLOCK ? -ECANCELED : result);
    queue_start(ur, queue);
}

static void cqe_take(struct uring_engine *ur, const struct io_uring_cqe *cqe)
{
    void *data = io_uring_cqe_get_data(cqe);

    if (data == &ur->base.wake_fd) {
        hdt_engine_woken(&ur->base);
        if (!(cqe->flags & IORING_CQE_F_MORE)) {
            wake_arm(ur);
        }
    } else if (data) {
        io_complete(ur, data, cqe->res);
    }
}

/* Submit what this round gave, and wait. */
static int ring_enter(struct uring_engine *ur, int64_t timeout_us)
{
    struct __kernel_timespec ts = {.tv_sec = timeout_us / 1000000,
                                   .tv_nsec = timeout_us % 1000000 * 1000};
    struct io_uring_cqe *cqe;

    if (timeout_us < 0) {
        return io_uring_submit_and_wait(&ur->ring, 1);
    }
    if (timeout_us == 0) {
        return io_uring_submit_and_get_events(&ur->ring);
    }
    return io_uring_submit_and_wait_timeout(&ur->ring, &cqe, 1, &ts, NULL);
}

static void uring_run_once(struct hdt_engine *engine, int64_t timeout_us)
{
    struct uring_engine *ur = uring_engine_of(engine);
    struct io_uring_cqe *cqe;
    unsigned head, n = 0;
    int rc;

    if (!ur->is_enabled) {
        /* Not io_uring_enable_rings, which liburing 2.3 does not export. */
        rc = io_uring_register((unsigned)ur->ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0);
        HDT_ASSERT(rc == 0);
        ur->is_enabled = true;
    }
    rc = ring_enter(ur, timeout_us);
    HDT_ASSERT(rc >= 0 || rc == -ETIME || rc == -EINTR || rc == -EAGAIN || rc == -EBUSY);
    io_uring_for_each_cqe(&ur->ring, head, cqe)
    {
        cqe_take(ur, cqe);
        n++;
    }
    io_uring_cq_advance(&ur->ring, n);
}

const struct hdt_engine_ops hdt_engine_uring = {.name = "io_uring",
                                                .open = uring_open,
                                                .close = uring_close,
                                                .submit = uring_submit,
                                                .cancel = uring_cancel,
                                                .forget = uring_forget,
                                                .run_once = uring_run_once};
