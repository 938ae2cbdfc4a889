/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop: sleep until a packet comes from a port or a piece is due, read a batch, write what is
 * due. The sleep has nanosecond resolution (epoll_pwait2). A wake-up costs more than the packets it
 * moves, so wake-ups are spaced as a network card spaces its interrupts: the first packet after a
 * lull is seen at once, under load the loop rests for a twentieth of the shortest delay, and a
 * millisecond at most, which is the price in exactness: pieces are early or late by up to half of
 * that. With a quarter of a millisecond it took half as much again of the processors that it shares
 * with what is measured. An idle emulator sleeps.
 */
#include "config.h"

#include "tests/wanem/wanem.h"

#include "src/base/clock.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define READ_BATCH  64 /* packets from one port before others get their turn */
#define REST_MAX_NS 1000000ll
#define REST_SHARE  20 /* rest at most 1/20 of the shortest delay */
#define PACKET_CAP  (65535u + 64u)
#define EVENTS_MAX  32
#define NS_PER_S    1000000000ll

/* What an epoll event is about: the kind in the upper half, port or descriptor in the lower. */
enum event_kind { EVENT_PORT, EVENT_LISTEN, EVENT_CLIENT, EVENT_SIGNAL };

static uint64_t event_tag(enum event_kind kind, int value)
{
    return (uint64_t)kind << 32 | (uint32_t)value;
}

static bool watch(int epoll_fd, enum event_kind kind, int value, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = event_tag(kind, value)};

    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

static void packet_forward(struct hdt_wanem *em, int from, struct hdt_wanem_packet *packet,
                           int64_t now_ns)
{
    int to = hdt_wanem_packet_inspect(packet) ? hdt_wanem_route(em, packet) : -1;

    if (to < 0 || !em->links[from][to]) {
        em->ports[from].n_stray++;
        hdt_wanem_packet_put(&em->pool, packet);
        return;
    }
    hdt_wanem_link_send(em->links[from][to], hdt_wanem_packet_fit(&em->pool, packet), now_ns,
                        &em->pool);
}

static void port_read(struct hdt_wanem *em, int idx)
{
    int64_t now_ns = hdt_clock_now_ns();

    for (int i = 0; i < READ_BATCH; i++) {
        struct hdt_wanem_packet *packet = hdt_wanem_packet_get(&em->pool, PACKET_CAP);
        ssize_t n = read(em->ports[idx].fd, &packet->virtio, sizeof(packet->virtio) + packet->cap);

        if (n <= (ssize_t)sizeof(packet->virtio)) {
            hdt_wanem_packet_put(&em->pool, packet);
            return;
        }
        packet->len = (uint32_t)n - (uint32_t)sizeof(packet->virtio);
        packet_forward(em, idx, packet, now_ns);
    }
}

static struct hdt_wanem_link *link_at(const struct hdt_wanem *em, int i)
{
    return em->links[i / HDT_WANEM_PORTS_MAX][i % HDT_WANEM_PORTS_MAX];
}

/* How long to rest between two wake-ups. */
static int64_t rest_ns(const struct hdt_wanem *em)
{
    int64_t rest = REST_MAX_NS;

    for (int i = 0; i < HDT_WANEM_PORTS_MAX * em->n_ports; i++) {
        const struct hdt_wanem_link *link = link_at(em, i);

        if (link && link->shape.up && link->shape.delay_ns / REST_SHARE < rest) {
            rest = link->shape.delay_ns / REST_SHARE;
        }
    }
    return rest;
}

/* Write all pieces that are due within `early_ns`; returns when the next one is. What a kernel
 * answers at once (an echo, an acknowledgement) waits at its port when the write returns, so it is
 * read before the rest. */
static int64_t deliver_due(struct hdt_wanem *em, int64_t early_ns)
{
    int64_t now_ns = hdt_clock_now_ns() + early_ns;
    int64_t next_ns = INT64_MAX;
    uint32_t answering = 0; /* a bit a port */

    for (int from = 0; from < em->n_ports; from++) {
        for (int to = 0; to < em->n_ports; to++) {
            struct hdt_wanem_link *link = em->links[from][to];
            struct hdt_wanem_piece *piece;

            if (!link) {
                continue;
            }
            while ((piece = hdt_wanem_link_take(link, now_ns)) != NULL) {
                if (!hdt_wanem_piece_write(piece, em->ports[to].fd)) {
                    em->ports[to].n_write_errors++;
                }
                hdt_wanem_piece_put(&em->pool, piece);
                answering |= 1u << to;
            }
        }
    }
    for (int i = 0; i < em->n_ports; i++) {
        if (answering >> i & 1) {
            port_read(em, i);
        }
    }
    for (int i = 0; i < HDT_WANEM_PORTS_MAX * em->n_ports; i++) {
        const struct hdt_wanem_link *link = link_at(em, i);

        if (link && hdt_wanem_link_next_ns(link) < next_ns) {
            next_ns = hdt_wanem_link_next_ns(link);
        }
    }
    return next_ns;
}

/* Rest, whatever comes. */
static void sleep_until(int64_t until_ns)
{
    struct timespec until = {.tv_sec = until_ns / NS_PER_S, .tv_nsec = until_ns % NS_PER_S};

    if (until_ns > hdt_clock_now_ns()) {
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    }
}

static int wait_until(int epoll_fd, int64_t next_ns, struct epoll_event *events)
{
    struct timespec timeout;
    int64_t left_ns;

    if (next_ns == INT64_MAX) {
        return epoll_pwait2(epoll_fd, events, EVENTS_MAX, NULL, NULL);
    }
    left_ns = next_ns - hdt_clock_now_ns();
    if (left_ns < 0) {
        left_ns = 0;
    }
    timeout = (struct timespec){.tv_sec = left_ns / NS_PER_S, .tv_nsec = left_ns % NS_PER_S};
    return epoll_pwait2(epoll_fd, events, EVENTS_MAX, &timeout, NULL);
}

static void client_accept(int epoll_fd, int listen_fd)
{
    int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd >= 0 && !watch(epoll_fd, EVENT_CLIENT, fd, fd)) {
        close(fd);
    }
}

static void event_handle(struct hdt_wanem *em, int epoll_fd, uint64_t tag)
{
    int value = (int)(uint32_t)tag;

    switch ((enum event_kind)(tag >> 32)) {
    case EVENT_PORT:
        port_read(em, value);
        break;
    case EVENT_LISTEN:
        client_accept(epoll_fd, value);
        break;
    case EVENT_CLIENT:
        if (!hdt_wanem_ctl_serve(em, value)) {
            close(value);
        }
        break;
    case EVENT_SIGNAL:
        em->quit = true;
        break;
    }
}

/* Everything that wakes the loop; signals are blocked and read as a descriptor. */
static bool watch_all(struct hdt_wanem *em, int epoll_fd, int listen_fd, int signal_fd)
{
    bool ok = watch(epoll_fd, EVENT_SIGNAL, 0, signal_fd);

    if (listen_fd >= 0) {
        ok = ok && watch(epoll_fd, EVENT_LISTEN, listen_fd, listen_fd);
    }
    for (int i = 0; i < em->n_ports; i++) {
        ok = ok && watch(epoll_fd, EVENT_PORT, i, em->ports[i].fd);
    }
    return ok;
}

enum hdt_status hdt_wanem_loop(struct hdt_wanem *em, int listen_fd, struct hdt_error *err)
{
    struct epoll_event events[EVENTS_MAX];
    enum hdt_status status = HDT_OK;
    int64_t woken_ns = 0;
    int epoll_fd, signal_fd;
    sigset_t stop;

    sigemptyset(&stop);
    sigaddset(&stop, SIGTERM);
    sigaddset(&stop, SIGINT);
    sigprocmask(SIG_BLOCK, &stop, NULL);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    signal_fd = signalfd(-1, &stop, SFD_CLOEXEC | SFD_NONBLOCK);
    if (epoll_fd < 0 || signal_fd < 0 || !watch_all(em, epoll_fd, listen_fd, signal_fd)) {
        status = hdt_error_set_errno(err, HDT_EIO, errno, "cannot watch the ports");
        em->quit = true;
    }
    while (!em->quit) {
        int64_t rest = rest_ns(em);
        int64_t next_ns = deliver_due(em, rest / 2);
        int n;

        sleep_until(woken_ns + rest);
        n = wait_until(epoll_fd, next_ns, events);
        woken_ns = hdt_clock_now_ns();
        if (n < 0 && errno != EINTR) {
            status = hdt_error_set_errno(err, HDT_EIO, errno, "cannot wait for packets");
            break;
        }
        for (int i = 0; i < n; i++) {
            event_handle(em, epoll_fd, events[i].data.u64);
        }
    }
    close(epoll_fd);
    close(signal_fd);
    return status;
}
