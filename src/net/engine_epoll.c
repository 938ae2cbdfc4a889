/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completions over epoll.
 *
 * epoll says when an operation may work, the engine's users want to hear that it has worked. So a
 * submitted operation is tried at once; when it would block it waits in the queue of its descriptor
 * and direction and is tried again at the next edge. A descriptor is registered on first need and
 * edge-triggered: as an operation is always tried before it waits, no edge can be missed, and a
 * stream that moves gigabytes makes no epoll_ctl call at all. Output is registered apart from input
 * because a Unix socket signals "writable" whenever its reader takes something.
 *
 * Descriptors' states lie in an array by number, made when the engine opens (untouched pages cost
 * nothing). A closed descriptor leaves epoll silently while its number comes back for another
 * socket: hdt_engine_forget clears the slot, as do ACCEPT for the number it returns and CONNECT and
 * READABLE, which register anew each time.
 */
#include "config.h"

#include "src/net/engine_impl.h"
#include "src/base/buf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS_MAX = 256 };

struct epoll_engine {
    struct hdt_engine base;
    int epoll_fd;
    bool no_pwait2; /* the kernel or a container's filter refuses epoll_pwait2 */
    struct hdt_engine_fd *fds;
    struct epoll_event events[EVENTS_MAX];
};

static struct epoll_engine *epoll_engine_of(struct hdt_engine *engine)
{
    return (struct epoll_engine *)engine;
}

static enum hdt_status epoll_open(struct hdt_engine **engine, struct hdt_error *err)
{
    struct epoll_engine *ep = hdt_calloc(1, sizeof(*ep));
    struct epoll_event event = {.events = EPOLLIN, .data.fd = -1};
    enum hdt_status status = hdt_engine_base_init(&ep->base, &hdt_engine_epoll, err);

    if (status != HDT_OK) {
        goto err_free;
    }
    ep->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (ep->epoll_fd < 0) {
        status = hdt_error_set_errno(err, HDT_EIO, errno, "cannot open I/O engine 'epoll'");
        goto err_base;
    }
    if (epoll_ctl(ep->epoll_fd, EPOLL_CTL_ADD, ep->base.wake_fd, &event) != 0) {
        status = hdt_error_set_errno(err, HDT_EIO, errno, "cannot open I/O engine 'epoll'");
        goto err_epoll;
    }
    ep->fds = hdt_calloc(HDT_ENGINE_FDS_MAX, sizeof(*ep->fds));
    *engine = &ep->base;
    return HDT_OK;
err_epoll:
    close(ep->epoll_fd);
err_base:
    hdt_engine_base_release(&ep->base);
err_free:
    free(ep);
    return status;
}

static void epoll_close(struct hdt_engine *engine)
{
    struct epoll_engine *ep = epoll_engine_of(engine);

    close(ep->epoll_fd);
    hdt_engine_base_release(&ep->base);
    free(ep->fds);
    free(ep);
}

/* Make sure that an edge in this direction is reported. Returns 0 or -errno. */
static int fd_register(struct epoll_engine *ep, const struct hdt_io *io)
{
    struct hdt_engine_fd *state = &ep->fds[io->fd];
    uint32_t wanted = hdt_io_is_output(io) ? EPOLLOUT : EPOLLIN;
    struct epoll_event event = {.data.fd = io->fd};
    int op = state->registered ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    bool is_fresh = io->kind == HDT_IO_CONNECT || io->kind == HDT_IO_READABLE;

    if ((state->registered & wanted) && !is_fresh) {
        return 0;
    }
    event.events = state->registered | wanted | EPOLLET;
    if (epoll_ctl(ep->epoll_fd, op, io->fd, &event) != 0) {
        if (errno == ENOENT) {
            op = EPOLL_CTL_ADD;
        } else if (errno == EEXIST) {
            op = EPOLL_CTL_MOD;
        } else {
            return -errno;
        }
        if (epoll_ctl(ep->epoll_fd, op, io->fd, &event) != 0) {
            return -errno;
        }
    }
    state->registered |= wanted;
    return 0;
}

static void epoll_submit(struct hdt_engine *engine, struct hdt_io *io)
{
    struct epoll_engine *ep = epoll_engine_of(engine);
    struct hdt_io_queue *queue;
    int error;

    if (io->fd < 0 || io->fd >= HDT_ENGINE_FDS_MAX) {
        hdt_engine_finish(engine, io, io->fd < 0 ? -EBADF : -EMFILE);
        return;
    }
    queue = hdt_io_queue_of(ep->fds, io);
    if (!queue->first) {
        int64_t result = hdt_engine_try(ep->fds, io, true);

        if (result != HDT_ENGINE_WOULD_BLOCK) {
            hdt_engine_finish(engine, io, result);
            return;
        }
    }
    error = fd_register(ep, io);
    if (error != 0) {
        hdt_engine_finish(engine, io, error);
        return;
    }
    hdt_io_queue_append(queue, io);
}

static void epoll_cancel(struct hdt_engine *engine, struct hdt_io *io)
{
    hdt_io_queue_remove(hdt_io_queue_of(epoll_engine_of(engine)->fds, io), io);
    hdt_engine_finish(engine, io, -ECANCELED);
}

static void epoll_forget(struct hdt_engine *engine, int fd)
{
    struct epoll_engine *ep = epoll_engine_of(engine);

    if (fd < 0 || fd >= HDT_ENGINE_FDS_MAX) {
        return;
    }
    HDT_ASSERT(!ep->fds[fd].in.first && !ep->fds[fd].out.first);
    if (ep->fds[fd].registered) {
        epoll_ctl(ep->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    }
    memset(&ep->fds[fd], 0, sizeof(ep->fds[fd]));
}

static void queue_retry(struct epoll_engine *ep, struct hdt_io_queue *queue)
{
    while (queue->first) {
        struct hdt_io *io = queue->first;
        int64_t result = hdt_engine_try(ep->fds, io, false);

        if (result == HDT_ENGINE_WOULD_BLOCK) {
            return;
        }
        hdt_io_queue_remove(queue, io);
        hdt_engine_finish(&ep->base, io, result);
    }
}

static int wait_ms(struct epoll_engine *ep, int64_t timeout_us)
{
    int64_t ms = timeout_us < 0 ? -1 : (timeout_us + 999) / 1000;

    return epoll_wait(ep->epoll_fd, ep->events, EVENTS_MAX, ms > INT32_MAX ? INT32_MAX : (int)ms);
}

static int wait_events(struct epoll_engine *ep, int64_t timeout_us)
{
    struct timespec ts = {.tv_sec = timeout_us / 1000000, .tv_nsec = timeout_us % 1000000 * 1000};
    int n;

    /* Whole milliseconds need no finer clock; pacing does. */
    if (timeout_us <= 0 || ep->no_pwait2) {
        return wait_ms(ep, timeout_us);
    }
    n = epoll_pwait2(ep->epoll_fd, ep->events, EVENTS_MAX, &ts, NULL);
    if (n < 0 && (errno == ENOSYS || errno == EPERM)) {
        ep->no_pwait2 = true;
        return wait_ms(ep, timeout_us);
    }
    return n;
}

static void epoll_run_once(struct hdt_engine *engine, int64_t timeout_us)
{
    struct epoll_engine *ep = epoll_engine_of(engine);
    int n = wait_events(ep, timeout_us);

    HDT_ASSERT(n >= 0 || errno == EINTR);
    for (int i = 0; i < n; i++) {
        int fd = ep->events[i].data.fd;
        uint32_t events = ep->events[i].events;

        if (fd < 0) {
            hdt_engine_woken(engine);
            continue;
        }
        if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
            queue_retry(ep, &ep->fds[fd].in);
        }
        if (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) {
            queue_retry(ep, &ep->fds[fd].out);
        }
    }
}

const struct hdt_engine_ops hdt_engine_epoll = {.name = "epoll",
                                                .open = epoll_open,
                                                .close = epoll_close,
                                                .submit = epoll_submit,
                                                .cancel = epoll_cancel,
                                                .forget = epoll_forget,
                                                .run_once = epoll_run_once};
