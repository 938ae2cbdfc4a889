/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/dp.h"
#include "src/base/buf.h"
#include "src/base/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/*
 * Listening sockets. Who connects gets a connection on the next I/O thread and ten seconds to say
 * who it is; the number of those who have not is bounded, so that strangers cannot fill the table.
 */
#define LISTENER_GREETING_MAX 256
#define LISTENER_PAUSE_US     (200 * HDT_US_PER_MS)

struct hdt_dp_listener {
    struct hdt_dataplane *dp;
    struct hdt_iothread *io;
    enum hdt_conn_kind kind;
    int fd;
    struct hdt_task begin;
    struct hdt_io accept;
    struct hdt_timer pause; /* out of descriptors: try again later */
    bool in_flight, ended;
    struct hdt_dp_listener *next;
};

static void listener_end(struct hdt_dp_listener *listener)
{
    if (listener->ended) {
        return;
    }
    listener->ended = true;
    hdt_engine_forget(listener->io->engine, listener->fd);
    close(listener->fd);
    hdt_dp_lock(listener->dp);
    hdt_iothread_leave(listener->io);
    hdt_dp_unlock(listener->dp);
}

static void listener_submit(struct hdt_dp_listener *listener)
{
    listener->in_flight = true;
    hdt_engine_submit(listener->io->engine, &listener->accept);
}

/* L */
static unsigned listener_count_greeting(const struct hdt_dataplane *dp)
{
    const struct hdt_conn *conn;
    unsigned n = 0;

    DL_FOREACH(dp->conns, conn)
    {
        n += !conn->is_gone && !conn->dialled && conn->state != HDT_CONN_UP;
    }
    return n;
}

/* false: the data plane ends. */
static bool listener_take(struct hdt_dp_listener *listener, int fd)
{
    struct hdt_dataplane *dp = listener->dp;
    bool stopping, is_full;

    hdt_dp_lock(dp);
    stopping = dp->stopping;
    is_full = listener_count_greeting(dp) >= LISTENER_GREETING_MAX;
    if (!stopping && !is_full) {
        hdt_conn_kick(hdt_conn_new(dp, listener->kind, fd));
    } else {
        dp->strangers++;
    }
    hdt_dp_unlock(dp);
    if (stopping || is_full) {
        close(fd);
    }
    if (is_full) {
        hdt_log_warn_limited(10, "dropped a connection: %d others have not said who they are",
                             LISTENER_GREETING_MAX);
    }
    return !stopping;
}

static void listener_accepted(struct hdt_engine *engine, struct hdt_io *io, int64_t result)
{
    struct hdt_dp_listener *listener = io->user;

    listener->in_flight = false;
    if (result == -ECANCELED) {
        listener_end(listener);
        return;
    }
    if (result < 0) {
        hdt_log_warn_limited(10, "cannot accept a connection: %s", strerror((int)-result));
        hdt_engine_timer_arm(engine, &listener->pause, hdt_clock_now_us() + LISTENER_PAUSE_US);
        return;
    }
    if (listener_take(listener, (int)result)) {
        listener_submit(listener);
    } else {
        listener_end(listener);
    }
}

static void listener_resume(struct hdt_engine *engine, struct hdt_timer *timer)
{
    (void)engine;
    listener_submit(timer->user);
}

static void listener_begin(struct hdt_engine *engine, struct hdt_task *task)
{
    struct hdt_dp_listener *listener =
        (struct hdt_dp_listener *)((char *)task - offsetof(struct hdt_dp_listener, begin));

    (void)engine;
    if (!listener->ended) {
        listener_submit(listener);
    }
}

void hdt_listener_add(struct hdt_dataplane *dp, enum hdt_listener kind, int fd)
{
    static const enum hdt_conn_kind conn_kinds[] = {
        [HDT_LISTENER_WAN] = HDT_CONN_WAN,
        [HDT_LISTENER_LAN_UNIX] = HDT_CONN_LAN_UNIX,
        [HDT_LISTENER_LAN_TLS] = HDT_CONN_LAN_TLS,
    };
    struct hdt_dp_listener *listener = hdt_calloc(1, sizeof(*listener));

    listener->dp = dp;
    listener->kind = conn_kinds[kind];
    listener->fd = fd;
    listener->begin.run = listener_begin;
    listener->accept.kind = HDT_IO_ACCEPT;
    listener->accept.fd = fd;
    listener->accept.passed_fd = -1;
    listener->accept.done = listener_accepted;
    listener->accept.user = listener;
    listener->pause.fire = listener_resume;
    listener->pause.user = listener;
    hdt_dp_lock(dp);
    listener->io = hdt_iothread_next(dp);
    listener->io->n_open++;
    LL_PREPEND(dp->listeners, listener);
    hdt_engine_post(listener->io->engine, &listener->begin);
    hdt_dp_unlock(dp);
}

void hdt_listeners_cancel(struct hdt_iothread *io)
{
    struct hdt_dp_listener *listener;

    hdt_dp_lock(io->dp);
    listener = io->dp->listeners;
    hdt_dp_unlock(io->dp);
    /* The list only grows at its head, and only on the main thread. */
    for (; listener != NULL; listener = listener->next) {
        if (listener->io != io || listener->ended) {
            continue;
        }
        if (listener->in_flight) {
            hdt_engine_cancel(io->engine, &listener->accept);
        } else {
            hdt_engine_timer_disarm(io->engine, &listener->pause);
            listener_end(listener);
        }
    }
}

void hdt_listeners_free(struct hdt_dataplane *dp)
{
    struct hdt_dp_listener *listener, *next;

    LL_FOREACH_SAFE(dp->listeners, listener, next)
    {
        free(listener);
    }
    dp->listeners = NULL;
}
