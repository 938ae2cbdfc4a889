/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The system as the data plane sees it: an engine over simulated sockets, and the calls that would
 * reach the real one.
 *
 * The engine is the product's own (timers, tasks, order of a round) with another back-end. An
 * operation waits until it can be done and is done at the next round, a few of many in any order;
 * or, as the plan says, at once when it is submitted, as epoll's engine does.
 *
 * A socket is a real descriptor that nothing is connected to, so that options, credentials and the
 * bound on open files are the kernel's. Calls that tell about time, randomness, the end of a socket
 * and TLS are taken by the linker (--wrap, in tests/Makemodule.am): the product has no switch for
 * them, least of all one that leaves out TLS, and pays nothing. The clock, too: a hook in
 * src/base/clock.c would be one indirect call in some twenty nanoseconds, but all callers of all
 * programs would have it.
 */
#include "config.h"

#include "src/base/buf.h"
#include "src/net/tls.h"
#include "tests/support/link_sim_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

static struct sim_engine *engine_of(struct hdt_engine *engine)
{
    return (struct sim_engine *)engine;
}

/* ---- what is ready ---- */

void hdt_sim_sock_ready(struct sim_sock *sock)
{
    struct sim_engine *engine = sock->engine;

    if (sock->is_closed) {
        return;
    }
    if (sock->worker != NULL) {
        hdt_sim_worker_ready(sock->worker);
        return;
    }
    if (engine == NULL || sock->is_ready ||
        !((sock->recv != NULL && hdt_sim_can_read(sock)) ||
          (sock->send != NULL && hdt_sim_can_write(sock)))) {
        return;
    }
    if (engine->n_ready == engine->cap_ready) {
        engine->cap_ready = 2 * engine->cap_ready + 16;
        engine->ready = hdt_realloc(engine->ready, engine->cap_ready * sizeof(struct sim_sock *));
    }
    engine->ready[engine->n_ready++] = sock;
    sock->is_ready = true;
}

static void unready(struct sim_engine *engine, unsigned i)
{
    engine->ready[i]->is_ready = false;
    engine->ready[i] = engine->ready[--engine->n_ready];
}

static void io_finish(struct sim_sock *sock, struct hdt_io **slot, int64_t result)
{
    struct hdt_io *io = *slot;

    *slot = NULL;
    hdt_sim_note(sock->conn->sim, io->kind == HDT_IO_SEND ? "sends" : "receives", sock->conn->id,
                 sock->side, (uint64_t)result, io->len);
    hdt_engine_finish(&sock->engine->base, io, result);
}

static bool try_recv(struct sim_sock *sock)
{
    struct hdt_io *io = sock->recv;
    int64_t result;

    if (io == NULL || !hdt_sim_can_read(sock)) {
        return false;
    }
    result = hdt_sim_read(sock, io->buf, io->len, &io->passed_fd);
    io_finish(sock, &sock->recv, result);
    return true;
}

static bool try_send(struct sim_sock *sock)
{
    struct hdt_io *io = sock->send;
    int64_t result;

    if (io == NULL || !hdt_sim_can_write(sock)) {
        return false;
    }
    result = hdt_sim_write(sock, io->buf, io->len, io->passed_fd);
    io_finish(sock, &sock->send, result);
    return true;
}

/* ---- the back-end ---- */

static enum hdt_status sim_engine_open(struct hdt_engine **engine, struct hdt_error *err)
{
    struct sim_site *site = hdt_sim_now->running;
    struct sim_engine *made = hdt_calloc(1, sizeof(*made));
    enum hdt_status status = hdt_engine_base_init(&made->base, &hdt_sim_engine_ops, err);

    if (status != HDT_OK) {
        free(made);
        return status;
    }
    made->site = site;
    made->idx = site->n_engines;
    made->round_us = INT64_MAX;
    site->engines[site->n_engines++] = made;
    *engine = &made->base;
    return HDT_OK;
}

static void sim_engine_close(struct hdt_engine *engine)
{
    struct sim_engine *self = engine_of(engine);

    hdt_engine_base_release(engine);
    free(self->ready);
    free(self);
}

static void sim_engine_submit(struct hdt_engine *engine, struct hdt_io *io)
{
    struct sim_engine *self = engine_of(engine);
    const struct sim_site_plan *plan = &hdt_sim_now->plan.sites[self->site->idx];
    struct sim_sock *sock = hdt_sim_sock_of(io->fd);

    io->state_ = HDT_IO_WAITING;
    switch (io->kind) {
    case HDT_IO_CONNECT:
        hdt_sim_connect(hdt_sim_now, self, io);
        return;
    case HDT_IO_RECV:
        HDT_ASSERT(sock != NULL && sock->recv == NULL);
        sock->engine = self;
        sock->recv = io;
        if (!plan->eager_recv || !try_recv(sock)) {
            hdt_sim_sock_ready(sock);
        }
        return;
    case HDT_IO_SEND:
        HDT_ASSERT(sock != NULL && sock->send == NULL);
        sock->engine = self;
        sock->send = io;
        if (!plan->eager_send || !try_send(sock)) {
            hdt_sim_sock_ready(sock);
        }
        return;
    default:
        hdt_sim_fail(hdt_sim_now, __FILE__, __LINE__, "the engine is asked for io %d", io->kind);
    }
}

static void sim_engine_cancel(struct hdt_engine *engine, struct hdt_io *io)
{
    struct sim_sock *sock = hdt_sim_sock_of(io->fd);

    if (io->kind == HDT_IO_CONNECT) {
        hdt_sim_connect_cancel(io);
    } else if (sock->recv == io) {
        sock->recv = NULL;
    } else {
        HDT_ASSERT(sock->send == io);
        sock->send = NULL;
    }
    hdt_engine_finish(engine, io, -ECANCELED);
}

static void sim_engine_forget(struct hdt_engine *engine, int fd)
{
    const struct sim_sock *sock = hdt_sim_sock_of(fd);

    (void)engine;
    HDT_ASSERT(sock == NULL || (sock->recv == NULL && sock->send == NULL));
}

/* Some of those that are ready, in any order. */
static void sim_engine_run_once(struct hdt_engine *engine, int64_t timeout_us)
{
    struct sim_engine *self = engine_of(engine);
    struct sim *sim = hdt_sim_now;
    unsigned n_left = sim->plan.sites[self->site->idx].burst;

    (void)timeout_us; /* the simulation waits */
    while (n_left-- > 0 && self->n_ready > 0) {
        const unsigned i = (unsigned)hdt_sim_below(sim, self->n_ready);
        struct sim_sock *sock = self->ready[i];
        const bool send_first = hdt_sim_chance(sim, 500);

        unready(self, i);
        if (sock->is_closed) {
            continue;
        }
        if (!(send_first ? try_send(sock) : try_recv(sock))) {
            (void)(send_first ? try_recv(sock) : try_send(sock));
        }
        hdt_sim_sock_ready(sock); /* the other of the two */
    }
}

const struct hdt_engine_ops hdt_sim_engine_ops = {.name = "simulated",
                                                  .open = sim_engine_open,
                                                  .close = sim_engine_close,
                                                  .submit = sim_engine_submit,
                                                  .cancel = sim_engine_cancel,
                                                  .forget = sim_engine_forget,
                                                  .run_once = sim_engine_run_once};

void hdt_sim_connected(struct sim_conn *conn, int64_t result)
{
    struct hdt_io *io = conn->connecting;

    conn->connecting = NULL;
    if (io != NULL) {
        hdt_sim_note(conn->sim, "connected", conn->id, (uint64_t)-result, 0, 0);
        hdt_engine_finish(&conn->socks[0].engine->base, io, result);
    }
}

int hdt_sim_token(enum hdt_listener door)
{
    int fds[2] = {-1, -1};

    if (door == HDT_LISTENER_LAN_UNIX) {
        /* A pair: it has credentials, as one that was accepted has. */
        HDT_ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
        close(fds[1]);
    } else {
        fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        HDT_ASSERT(fds[0] >= 0);
    }
    return fds[0];
}

/* ---- calls to the system ---- */

int __real_clock_gettime(clockid_t id, struct timespec *ts);
int __wrap_clock_gettime(clockid_t id, struct timespec *ts);
ssize_t __real_getrandom(void *buf, size_t len, unsigned flags);
ssize_t __wrap_getrandom(void *buf, size_t len, unsigned flags);
int __real_close(int fd);
int __wrap_close(int fd);
int __wrap_pthread_cond_signal(pthread_cond_t *cond);
int64_t __wrap_hdt_addr_last_segment_us(int fd);
SSL_CTX *__wrap_hdt_tls_ctx_ssl_ctx(struct hdt_tls_ctx *ctx);
SSL *__wrap_hdt_stream_ssl(const struct hdt_stream *stream);
enum hdt_status __wrap_hdt_tls_peer_identity(const SSL *ssl, struct hdt_identity *identity,
                                             struct hdt_error *err);

int64_t hdt_sim_real_ns(void)
{
    struct timespec ts;

    __real_clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000ll + ts.tv_nsec;
}

/* Every clock is the same. The processor takes no time of its own, or the time that it takes would
 * be part of what happens. */
int __wrap_clock_gettime(clockid_t id, struct timespec *ts)
{
    if (hdt_sim_now == NULL) {
        return __real_clock_gettime(id, ts);
    }
    ts->tv_sec = hdt_sim_now->now_us / SIM_S;
    ts->tv_nsec = hdt_sim_now->now_us % SIM_S * 1000;
    return 0;
}

ssize_t __wrap_getrandom(void *buf, size_t len, unsigned flags)
{
    size_t i;

    if (hdt_sim_now == NULL) {
        return __real_getrandom(buf, len, flags);
    }
    for (i = 0; i < len; i++) {
        ((uint8_t *)buf)[i] = (uint8_t)hdt_sim_below(hdt_sim_now, 256);
    }
    return (ssize_t)len;
}

int __wrap_close(int fd)
{
    struct sim_sock *sock = hdt_sim_sock_of(fd);

    if (sock != NULL) {
        hdt_sim_now->by_fd[fd] = NULL;
        hdt_sim_sock_close(sock);
    }
    return __real_close(fd);
}

/* Nobody waits in this call: the simulation knows who would. */
int __wrap_pthread_cond_signal(pthread_cond_t *cond)
{
    if (hdt_sim_now != NULL) {
        hdt_sim_signalled(hdt_sim_now, cond);
    }
    return 0;
}

int64_t __wrap_hdt_addr_last_segment_us(int fd)
{
    const struct sim_sock *sock = hdt_sim_sock_of(fd);

    return sock != NULL ? sock->segment_us : 0;
}

SSL_CTX *__wrap_hdt_tls_ctx_ssl_ctx(struct hdt_tls_ctx *ctx)
{
    (void)ctx;
    return NULL; /* plain */
}

/* An SSL that is connected to nothing stands for the identity at the other end. */
SSL *__wrap_hdt_stream_ssl(const struct hdt_stream *stream)
{
    struct sim_sock *sock = hdt_sim_sock_of(hdt_stream_fd(stream));
    static SSL *ssls[SIM_SITES_MAX + SIM_SITES_MAX * SIM_WORKERS_MAX];
    unsigned i;

    if (sock == NULL || sock->conn->door == HDT_LISTENER_LAN_UNIX) {
        return NULL;
    }
    i = sock->conn->site[1 - sock->side];
    if (sock->conn->door == HDT_LISTENER_LAN_TLS) {
        i = SIM_SITES_MAX + i * SIM_WORKERS_MAX + sock->conn->worker_idx;
    }
    if (ssls[i] == NULL) {
        static SSL_CTX *ctx;

        ctx = ctx != NULL ? ctx : SSL_CTX_new(TLS_method());
        ssls[i] = SSL_new(ctx);
        HDT_ASSERT(ssls[i] != NULL);
        SSL_set_app_data(ssls[i], (void *)(uintptr_t)(i + 1));
    }
    return ssls[i];
}

enum hdt_status __wrap_hdt_tls_peer_identity(const SSL *ssl, struct hdt_identity *identity,
                                             struct hdt_error *err)
{
    const unsigned i = (unsigned)(uintptr_t)SSL_get_app_data(ssl) - 1;
    char name[32];

    if (i < SIM_SITES_MAX) {
        return hdt_identity_make("fed", "site", hdt_sim_now->sites[i].name, identity, err);
    }
    snprintf(name, sizeof(name), "site-%c/w%u",
             (char)('a' + (int)((i - SIM_SITES_MAX) / SIM_WORKERS_MAX)),
             (i - SIM_SITES_MAX) % SIM_WORKERS_MAX);
    return hdt_identity_make("fed", "worker", name, identity, err);
}
