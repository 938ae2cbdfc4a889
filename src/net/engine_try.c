/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One attempt at an operation, with the system call that it is named after, and the queues in which
 * operations wait for the next: what back-ends share that learn from the kernel when an attempt may
 * succeed.
 */
#include "config.h"

#include "src/net/engine_impl.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

/* Operations. Each returns its result, -errno, or HDT_ENGINE_WOULD_BLOCK. */

static int64_t result_of(ssize_t n)
{
    if (n >= 0) {
        return n;
    }
    return errno == EAGAIN || errno == EWOULDBLOCK ? HDT_ENGINE_WOULD_BLOCK : -errno;
}

bool hdt_engine_fd_is_unix(struct hdt_engine_fd *state, int fd)
{
    if (state->family == HDT_FD_UNKNOWN) {
        int domain = 0;
        socklen_t len = sizeof(domain);

        getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len);
        state->family = domain == AF_UNIX ? HDT_FD_UNIX : HDT_FD_OTHER;
    }
    return state->family == HDT_FD_UNIX;
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

static int64_t recv_try(struct hdt_engine_fd *state, struct hdt_io *io)
{
    io->passed_fd = -1;
    if (hdt_engine_fd_is_unix(state, io->fd)) {
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

static int64_t accept_try(struct hdt_engine_fd *fds, struct hdt_io *io)
{
    int fd;

    do {
        fd = accept4(io->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    } while (fd < 0 && (errno == ECONNABORTED || errno == EINTR));
    if (fd >= 0 && fd < HDT_ENGINE_FDS_MAX) {
        memset(&fds[fd], 0, sizeof(fds[fd]));
    }
    return result_of(fd);
}

static int64_t connect_begin(struct hdt_io *io)
{
    if (connect(io->fd, (struct sockaddr *)&io->addr, io->addr_len) == 0) {
        return 0;
    }
    /* EAGAIN of a Unix socket (its listener's queue is full) is final: no event would follow. */
    return errno == EINPROGRESS || errno == EINTR ? HDT_ENGINE_WOULD_BLOCK : -errno;
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
    return errno == ENOTCONN ? HDT_ENGINE_WOULD_BLOCK : -errno;
}

static int64_t readable_try(struct hdt_io *io)
{
    struct pollfd p = {.fd = io->fd, .events = POLLIN};
    int n = poll(&p, 1, 0);

    if (n > 0) {
        return p.revents & POLLNVAL ? -EBADF : 0;
    }
    return n == 0 || errno == EINTR ? HDT_ENGINE_WOULD_BLOCK : -errno;
}

int64_t hdt_engine_try(struct hdt_engine_fd *fds, struct hdt_io *io, bool is_first)
{
    switch (io->kind) {
    case HDT_IO_RECV:
        return recv_try(&fds[io->fd], io);
    case HDT_IO_SEND:
        return send_try(io);
    case HDT_IO_ACCEPT:
        return accept_try(fds, io);
    case HDT_IO_CONNECT:
        return is_first ? connect_begin(io) : connect_check(io);
    case HDT_IO_READABLE:
        return readable_try(io);
    }
    return -EINVAL;
}

/* Queues. */

bool hdt_io_is_output(const struct hdt_io *io)
{
    return io->kind == HDT_IO_SEND || io->kind == HDT_IO_CONNECT;
}

struct hdt_io_queue *hdt_io_queue_of(struct hdt_engine_fd *fds, const struct hdt_io *io)
{
    struct hdt_engine_fd *state = &fds[io->fd];

    return hdt_io_is_output(io) ? &state->out : &state->in;
}

void hdt_io_queue_append(struct hdt_io_queue *queue, struct hdt_io *io)
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

void hdt_io_queue_remove(struct hdt_io_queue *queue, struct hdt_io *io)
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
