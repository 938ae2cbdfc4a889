/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/dp.h"
#include "gateway/dpstep.h"
#include "src/base/buf.h"
#include "src/base/clock.h"

#include <stdlib.h>
#include <string.h>

/*
 * The I/O threads. Others never touch a connection's stream: they change state under the lock and
 * kick the connection, and its thread serves all kicked connections of a wake-up together.
 */

enum { SERVED_MAX = 32 };

struct hdt_iothread *hdt_iothread_next(struct hdt_dataplane *dp)
{
    return &dp->io[dp->next_io++ % dp->n_io];
}

void hdt_conn_kick(struct hdt_conn *conn)
{
    struct hdt_iothread *io = conn->io;

    if (conn->dirty || conn->is_gone) {
        return;
    }
    conn->dirty = true;
    conn->next_dirty = io->dirty;
    io->dirty = hdt_conn_ref(conn);
    if (!io->wake_posted) {
        io->wake_posted = true;
        hdt_engine_post(io->engine, &io->wake);
    }
}

void hdt_iothread_leave(struct hdt_iothread *io)
{
    HDT_ASSERT(io->n_open > 0);
    io->n_open--;
    if (io->n_open == 0 && io->dp->stopping && !io->wake_posted) {
        io->wake_posted = true;
        hdt_engine_post(io->engine, &io->wake);
    }
}

/* Everything that lives here is told to go; the engine stops when the last is gone. */
static void iothread_wind_up(struct hdt_iothread *io)
{
    struct hdt_conn *conn;
    bool is_empty;

    hdt_dp_lock(io->dp);
    DL_FOREACH(io->dp->conns, conn)
    {
        if (conn->io == io) {
            hdt_conn_close(conn, NULL);
        }
    }
    is_empty = io->n_open == 0;
    hdt_dp_unlock(io->dp);
    if (is_empty) {
        hdt_engine_timer_disarm(io->engine, &io->tick);
        hdt_engine_timer_disarm(io->engine, &io->rate);
        hdt_engine_stop(io->engine);
    }
}

/* Serve a list of kicked connections, each with the reference of its kick, and give those back a
 * few at a time: the lock is every thread's. */
static void iothread_serve(struct hdt_iothread *io, struct hdt_conn *first)
{
    struct hdt_conn *served[SERVED_MAX];
    struct hdt_conn *conn = first;

    while (conn != NULL) {
        unsigned i, n = 0;

        while (conn != NULL && n < SERVED_MAX) {
            struct hdt_conn *next = conn->next_dirty; /* before it may be kicked again */

            hdt_conn_serve(conn);
            served[n++] = conn;
            conn = next;
        }
        hdt_dp_lock(io->dp);
        for (i = 0; i < n; i++) {
            hdt_conn_unref(served[i]);
        }
        hdt_dp_unlock(io->dp);
    }
}

static void iothread_wake(struct hdt_engine *engine, struct hdt_task *task)
{
    struct hdt_iothread *io =
        (struct hdt_iothread *)((char *)task - offsetof(struct hdt_iothread, wake));
    struct hdt_dataplane *dp = io->dp;
    struct hdt_conn *dirty;
    bool stopping;

    (void)engine;
    hdt_dp_lock(dp);
    io->wake_posted = false;
    stopping = dp->stopping;
    dirty = io->dirty;
    io->dirty = NULL;
    hdt_dp_unlock(dp);
    if (stopping) {
        iothread_wind_up(io);
    }
    iothread_serve(io, dirty);
}

/* The next connection of this thread after `conn` (NULL: the first), referenced. */
static struct hdt_conn *iothread_next_conn(struct hdt_iothread *io, struct hdt_conn *conn)
{
    struct hdt_conn *next;

    hdt_dp_lock(io->dp);
    next = conn == NULL ? io->dp->conns : conn->next;
    while (next != NULL && (next->io != io || next->is_gone)) {
        next = next->next;
    }
    if (next != NULL) {
        hdt_conn_ref(next);
    }
    if (conn != NULL) {
        hdt_conn_unref(conn);
    }
    hdt_dp_unlock(io->dp);
    return next;
}

static void iothread_tick(struct hdt_engine *engine, struct hdt_timer *timer)
{
    struct hdt_iothread *io = timer->user;
    const int64_t now_us = hdt_clock_now_us();
    struct hdt_conn *conn = NULL;

    while ((conn = iothread_next_conn(io, conn)) != NULL) {
        hdt_conn_tick(conn, now_us);
    }
    if (io == &io->dp->io[0]) {
        hdt_peers_tick(io->dp, now_us);
    }
    hdt_engine_timer_arm(engine, timer, now_us + HDT_DP_TICK_US);
}

static void iothread_rate(struct hdt_engine *engine, struct hdt_timer *timer)
{
    struct hdt_conn *conn = NULL;

    (void)engine;
    while ((conn = iothread_next_conn(timer->user, conn)) != NULL) {
        if (conn->kind == HDT_CONN_WAN) {
            hdt_conn_pump(conn);
        }
    }
}

static void *iothread_main(void *arg)
{
    struct hdt_iothread *io = arg;

    hdt_engine_timer_arm(io->engine, &io->tick, hdt_clock_now_us());
    hdt_engine_run(io->engine);
    return NULL;
}

static enum hdt_status iothread_start(struct hdt_iothread *io, struct hdt_error *err)
{
    int rc;

    io->started = true;
    if (io->dp->conf.stepped != NULL) {
        hdt_engine_timer_arm(io->engine, &io->tick, hdt_clock_now_us());
        return HDT_OK;
    }
    rc = pthread_create(&io->thread, NULL, iothread_main, io);
    if (rc != 0) {
        io->started = false;
        return hdt_error_set_errno(err, HDT_ENOMEM, rc, "cannot start an I/O thread");
    }
    return HDT_OK;
}

enum hdt_status hdt_iothreads_start(struct hdt_dataplane *dp, struct hdt_error *err)
{
    unsigned i;

    dp->io = hdt_calloc(dp->n_io, sizeof(*dp->io));
    for (i = 0; i < dp->n_io; i++) {
        dp->io[i].dp = dp;
        dp->io[i].wake.run = iothread_wake;
        dp->io[i].tick.fire = iothread_tick;
        dp->io[i].tick.user = &dp->io[i];
        dp->io[i].rate.fire = iothread_rate;
        dp->io[i].rate.user = &dp->io[i];
        HDT_TRY(dp->conf.stepped != NULL
                    ? dp->conf.stepped->open(&dp->io[i].engine, err)
                    : hdt_engine_open(dp->conf.engine, &dp->io[i].engine, err));
    }
    for (i = 0; i < dp->n_io; i++) {
        HDT_TRY(iothread_start(&dp->io[i], err));
    }
    return HDT_OK;
}

void hdt_iothreads_stop(struct hdt_dataplane *dp)
{
    unsigned i;

    hdt_dp_lock(dp);
    dp->stopping = true;
    for (i = 0; i < dp->n_io && dp->io != NULL; i++) {
        if (dp->io[i].started && !dp->io[i].wake_posted) {
            dp->io[i].wake_posted = true;
            hdt_engine_post(dp->io[i].engine, &dp->io[i].wake);
        }
    }
    hdt_dp_unlock(dp);
    for (i = 0; i < dp->n_io && dp->io != NULL; i++) {
        if (dp->io[i].started && dp->conf.stepped != NULL) {
            hdt_engine_run(dp->io[i].engine);
        } else if (dp->io[i].started) {
            pthread_join(dp->io[i].thread, NULL);
        }
    }
}

void hdt_dpstep_io(struct hdt_dataplane *dp, unsigned i)
{
    hdt_engine_run_once(dp->io[i].engine, 0);
}

void hdt_iothreads_free(struct hdt_dataplane *dp)
{
    unsigned i;

    for (i = 0; i < dp->n_io && dp->io != NULL; i++) {
        hdt_engine_close(dp->io[i].engine);
    }
    free(dp->io);
    dp->io = NULL;
}
