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
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum {
    FDS_MAX = 1 << 16, /* descriptors with a higher number are refused with EMFILE */
    EVENTS_MAX = 256
};

#define WOULD_BLOCK INT64_MIN /* no result of any operation */

enum fd_family { FAMILY_UNKNOWN = 0, FAMILY_UNIX, FAMILY_OTHER };

struct io_queue {
    struct hdt_io *first, *last;
};

struct fd_state {
    struct io_queue in, out;
    uint32_t registered; /* EPOLLIN, EPOLLOUT */
    enum fd_family family;
};

struct epoll_engine {
    struct hdt_engine base;
    int epoll_fd;
    bool no_pwait2; /* the kernel or a container's filter refuses epoll_pwait2 */
    struct fd_state *fds;
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
    ep->fds = hdt_calloc(FDS_MAX, sizeof(*ep->fds));
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

/* Operations. Each returns its result, -errno, or WOULD_BLOCK. */

static int64_t result_of(ssize_t n)
{
    if (n >= 0) {
        return n;
    }
    return errno == EAGAIN || errno == EWOULDBLOCK ? WOULD_BLOCK : -errno;
}

static bool fd_is_unix(struct fd_state *state, int fd)
{
    if (state->family == FAMILY_UNKNOWN) {
        int domain = 0;
        socklen_t len = sizeof(domain);

        getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len);
        state->family = domain == AF_UNIX ? FAMILY_UNIX : FAMILY_OTHER;
    }
    return state->family == FAMILY_UNIX;
}

/* Keep the first descriptor that came along, close any other: nobody asked for them. */
static void take_passed_fds(struct msghdr *msg, struct hdt_io *io)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        size_t n;

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            if (io->passed_fd < 0) {
                io->passed_fd = fd;
            } else {
                close(fd);
            }
        }
    }
}

static int64_t recv_unix_try(struct hdt_io *io)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = io->buf, .iov_len = io->len};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof(control.bytes)};
    ssize_t n = TEMP_FAILURE_RETRY(recvmsg(io->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC));

    if (n >= 0) {
        take_passed_fds(&msg, io);
    }
    return result_of(n);
}

static int64_t recv_try(struct fd_state *state, struct hdt_io *io)
{
    io->passed_fd = -1;
    if (fd_is_unix(state, io->fd)) {
        return recv_unix_try(io);
    }
    return result_of(TEMP_FAILURE_RETRY(recv(io->fd, io->buf, io->len, MSG_DONTWAIT)));
}

static int64_t send_try(struct hdt_io *io)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = io->buf, .iov_len = io->len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    int flags = MSG_DONTWAIT | MSG_NOSIGNAL;

    if (io->passed_fd < 0) {
        return result_of(TEMP_FAILURE_RETRY(send(io->fd, io->buf, io->len, flags)));
    }
    memset(&control, 0, sizeof(control));
    control.align.cmsg_level = SOL_SOCKET;
    control.align.cmsg_type = SCM_RIGHTS;
    control.align.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&control.align), &io->passed_fd, sizeof(int));
    msg.msg_control = control.bytes;
    msg.msg_controllen = sizeof(control.bytes);
    return result_of(TEMP_FAILURE_RETRY(sendmsg(io->fd, &msg, flags)));
}

static int64_t accept_try(struct epoll_engine *ep, struct hdt_io *io)
{
    int fd;

    do {
        fd = accept4(io->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    } while (fd < 0 && (errno == ECONNABORTED || errno == EINTR));
    if (fd >= 0 && fd < FDS_MAX) {
        memset(&ep->fds[fd], 0, sizeof(ep->fds[fd]));
    }
    return result_of(fd);
}

static int64_t connect_begin(struct hdt_io *io)
{
    if (connect(io->fd, (struct sockaddr *)&io->addr, io->addr_len) == 0) {
        return 0;
    }
    /* EAGAIN of a Unix socket (its listener's queue is full) is final: no event would follow. */
    return errno == EINPROGRESS || errno == EINTR ? WOULD_BLOCK : -errno;
}

static int64_t connect_check(struct hdt_io *io)
{
    struct sockaddr_storage peer;
    socklen_t len = sizeof(peer);
    int error = 0;
    socklen_t error_len = sizeof(error);

    if (getsockopt(io->fd, SOL_SOCKET, SO_ERROR, &error, &error_len) != 0) {
        return -errno;
    }
    if (error != 0) {
        return -error;
    }
    if (getpeername(io->fd, (struct sockaddr *)&peer, &len) == 0) {
        return 0;
    }
    return errno == ENOTCONN ? WOULD_BLOCK : -errno;
}

static int64_t readable_try(struct hdt_io *io)
{
    struct pollfd p = {.fd = io->fd, .events = POLLIN};
    int n = poll(&p, 1, 0);

    if (n > 0) {
        return p.revents & POLLNVAL ? -EBADF : 0;
    }
    return n == 0 || errno == EINTR ? WOULD_BLOCK : -errno;
}

static int64_t io_try(struct epoll_engine *ep, struct hdt_io *io, bool is_first)
{
    switch (io->kind) {
    case HDT_IO_RECV:
        return recv_try(&ep->fds[io->fd], io);
    case HDT_IO_SEND:
        return send_try(io);
    case HDT_IO_ACCEPT:
        return accept_try(ep, io);
    case HDT_IO_CONNECT:
        return is_first ? connect_begin(io) : connect_check(io);
    case HDT_IO_READABLE:
        return readable_try(io);
    }
    return -EINVAL;
}

/* Queues. */

static bool io_is_output(const struct hdt_io *io)
{
    return io->kind == HDT_IO_SEND || io->kind == HDT_IO_CONNECT;
}

static struct io_queue *io_queue_of(struct epoll_engine *ep, const struct hdt_io *io)
{
    struct fd_state *state = &ep->fds[io->fd];

    return io_is_output(io) ? &state->out : &state->in;
}

static void queue_append(struct io_queue *queue, struct hdt_io *io)
{
    io->state_ = HDT_IO_WAITING;
    io->next_ = NULL;
    io->prev_ = queue->last;
    if (queue->last) {
        queue->last->next_ = io;
    } else {
        queue->first = io;
    }
    queue->last = io;
}

static void queue_remove(struct io_queue *queue, struct hdt_io *io)
{
    if (io->prev_) {
        io->prev_->next_ = io->next_;
    } else {
        queue->first = io->next_;
    }
    if (io->next_) {
        io->next_->prev_ = io->prev_;
    } else {
        queue->last = io->prev_;
    }
}

/* Make sure that an edge in this direction is reported. Returns 0 or -errno. */
static int fd_register(struct epoll_engine *ep, const struct hdt_io *io)
{
    struct fd_state *state = &ep->fds[io->fd];
    uint32_t wanted = io_is_output(io) ? EPOLLOUT : EPOLLIN;
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
    struct io_queue *queue;
    int error;

    if (io->fd < 0 || io->fd >= FDS_MAX) {
        hdt_engine_finish(engine, io, io->fd < 0 ? -EBADF : -EMFILE);
        return;
    }
    queue = io_queue_of(ep, io);
    if (!queue->first) {
        int64_t result = io_try(ep, io, true);

        if (result != WOULD_BLOCK) {
            hdt_engine_finish(engine, io, result);
            return;
        }
    }
    error = fd_register(ep, io);
    if (error != 0) {
        hdt_engine_finish(engine, io, error);
        return;
    }
    queue_append(queue, io);
}

static void epoll_cancel(struct hdt_engine *engine, struct hdt_io *io)
{
    queue_remove(io_queue_of(epoll_engine_of(engine), io), io);
    hdt_engine_finish(engine, io, -ECANCELED);
}

static void epoll_forget(struct hdt_engine *engine, int fd)
{
    struct epoll_engine *ep = epoll_engine_of(engine);

    if (fd < 0 || fd >= FDS_MAX) {
        return;
    }
    HDT_ASSERT(!ep->fds[fd].in.first && !ep->fds[fd].out.first);
    if (ep->fds[fd].registered) {
        epoll_ctl(ep->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    }
    memset(&ep->fds[fd], 0, sizeof(ep->fds[fd]));
}

static void queue_retry(struct epoll_engine *ep, struct io_queue *queue)
{
    while (queue->first) {
        struct hdt_io *io = queue->first;
        int64_t result = io_try(ep, io, false);

        if (result == WOULD_BLOCK) {
            return;
        }
        queue_remove(queue, io);
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
