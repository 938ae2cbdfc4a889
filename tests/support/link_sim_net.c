/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP as its users see it, over links with rate, delay and loss.
 *
 * Bytes of a connection arrive whole, once and in order, or not at all. A segment that is lost, by
 * chance or because the link is down, is repeated after a timer that doubles, and what was sent
 * behind it waits for it; so a stream of a link that was cut for long may be silent for as long
 * again. Acknowledgements take the way back and are lost on it as well: a sender that hears none
 * fills its window, and gives up at its user timeout. Who closes with bytes unread, or is written
 * to when it is gone, answers with a reset; a machine that lost its memory does so, too.
 *
 * Refused: segments of a real size and congestion control. What the data plane can tell apart is
 * when bytes come, how many at once, and on which streams first.
 */
#include "config.h"

#include "src/base/buf.h"
#include "tests/support/link_sim_impl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TIMER_MIN_US   (200 * SIM_MS)
#define TIMER_MAX_US   (60 * SIM_S)
#define LOCAL_DELAY_US 15
#define LOCAL_RATE     2000.0 /* bytes a microsecond */
#define SYN_TIMER_US   SIM_S
#define PACKET         1448
#define SKEW_MAX_US    (250 * SIM_MS) /* or nobody could connect in time */
#define GREETING_US    (5 * SIM_S)
#define SWALLOWED_MAX  (256u << 10) /* that a middlebox takes and does not pass on */

static void pipe_pump(struct sim_pipe *pipe);

struct sim_pipe *hdt_sim_pipe_out(struct sim_sock *sock)
{
    return &sock->conn->pipes[sock->side];
}

struct sim_pipe *hdt_sim_pipe_in(struct sim_sock *sock)
{
    return &sock->conn->pipes[1 - sock->side];
}

static struct sim_sock *pipe_sender(struct sim_pipe *pipe)
{
    return &pipe->conn->socks[pipe->dir];
}

static struct sim_sock *pipe_receiver(struct sim_pipe *pipe)
{
    return &pipe->conn->socks[1 - pipe->dir];
}

/* ---- links ---- */

static bool conn_is_local(const struct sim_conn *conn)
{
    return conn->door != HDT_LISTENER_WAN;
}

/* Does a packet from that end come through now? */
static bool conn_passes(const struct sim_conn *conn, unsigned side)
{
    const struct sim *sim = conn->sim;
    const unsigned from = conn->site[side], to = conn->site[1 - side];

    if (conn->is_forgotten || sim->sites[from].is_off || sim->sites[to].is_off) {
        return false;
    }
    return conn_is_local(conn) || !sim->down[from][to];
}

/* There is no such connection at that end, or no more. */
static bool sock_is_strange(const struct sim_sock *sock)
{
    return sock->is_closed || sock->error != 0;
}

static int64_t conn_delay_us(struct sim_conn *conn, unsigned side)
{
    struct sim *sim = conn->sim;
    const struct sim_link_plan *link = &sim->plan.links[conn->site[side]][conn->site[1 - side]];

    if (conn_is_local(conn)) {
        return LOCAL_DELAY_US;
    }
    return link->delay_us + conn->extra_us[side] +
           (int64_t)hdt_sim_below(sim, (uint64_t)link->jitter_us + 1);
}

/* Longest that the way there and back takes. */
static int64_t conn_round_trip_us(const struct sim_conn *conn)
{
    const struct sim *sim = conn->sim;
    int64_t us = 2 * LOCAL_DELAY_US;
    unsigned side;

    for (side = 0; side < 2 && !conn_is_local(conn); side++) {
        const struct sim_link_plan *link = &sim->plan.links[conn->site[side]][conn->site[1 - side]];

        us += link->delay_us + link->jitter_us + conn->extra_us[side];
    }
    return us;
}

/* ---- resets ---- */

static void sock_fail(struct sim_sock *sock, int error)
{
    if (sock->is_closed || sock->error != 0) {
        return;
    }
    sock->error = error;
    hdt_sim_note(sock->conn->sim, "broken", sock->conn->id, sock->side, (uint64_t)error, 0);
    hdt_sim_sock_ready(sock);
}

static void reset_arrives(struct sim *sim, void *arg, uint64_t side)
{
    struct sim_conn *conn = arg;

    (void)sim;
    if (conn_passes(conn, 1 - (unsigned)side)) {
        sock_fail(&conn->socks[side], ECONNRESET);
    }
}

/* That end says that it knows nothing of this connection. */
static void conn_refuse(struct sim_conn *conn, unsigned side)
{
    hdt_sim_at(conn->sim, conn->sim->now_us + conn_delay_us(conn, side), reset_arrives, conn,
               1 - side);
}

void hdt_sim_reset(struct sim_conn *conn)
{
    hdt_sim_note(conn->sim, "reset", conn->id, 0, 0, 0);
    hdt_sim_disturbed(conn->sim, conn->sim->now_us);
    sock_fail(&conn->socks[0], ECONNRESET);
    sock_fail(&conn->socks[1], ECONNRESET);
}

void hdt_sim_forget(struct sim_conn *conn, bool is_swallowed)
{
    hdt_sim_note(conn->sim, "forgotten", conn->id, is_swallowed, 0, 0);
    conn->is_forgotten = true;
    conn->is_swallowed = is_swallowed;
}

void hdt_sim_stall(struct sim_conn *conn, unsigned dir, int64_t until_us)
{
    if (until_us > conn->pipes[dir].stalled_until_us) {
        conn->pipes[dir].stalled_until_us = until_us;
    }
}

/* ---- bytes of a pipe ---- */

static void pipe_reserve(struct sim_pipe *pipe, size_t more)
{
    const size_t used = pipe->start + (size_t)(pipe->written - pipe->read);

    if (used + more <= pipe->cap) {
        return;
    }
    if (pipe->start > 0) {
        memmove(pipe->buf, pipe->buf + pipe->start, used - pipe->start);
    }
    if (used - pipe->start + more > pipe->cap) {
        pipe->cap = 2 * (used - pipe->start + more);
        pipe->buf = hdt_realloc(pipe->buf, pipe->cap);
    }
    pipe->start = 0;
}

static void pipe_append(struct sim_pipe *pipe, const void *bytes, size_t len)
{
    uint8_t *at;

    pipe_reserve(pipe, len);
    at = pipe->buf + pipe->start + (size_t)(pipe->written - pipe->read);
    memcpy(at, bytes, len);
    if (!conn_is_local(pipe->conn)) {
        hdt_sim_meddle(pipe, at, len);
    }
    pipe->written += len;
}

void hdt_sim_inject(struct sim_pipe *pipe, const void *bytes, size_t len)
{
    pipe_reserve(pipe, len);
    memcpy(pipe->buf + pipe->start + (size_t)(pipe->written - pipe->read), bytes, len);
    pipe->written += len;
    pipe_pump(pipe);
}

/* ---- segments ---- */

static void segment_add(struct sim_pipe *pipe, uint64_t end, int64_t due_us, bool is_fin)
{
    struct sim_segment *segment;

    if (pipe->first_segment + pipe->n_segments == pipe->cap_segments) {
        if (pipe->first_segment > 0) {
            memmove(pipe->segments, pipe->segments + pipe->first_segment,
                    pipe->n_segments * sizeof(*pipe->segments));
        }
        pipe->first_segment = 0;
    }
    if (pipe->n_segments == pipe->cap_segments) {
        pipe->cap_segments = 2 * pipe->cap_segments + 16;
        pipe->segments = hdt_realloc(pipe->segments, pipe->cap_segments * sizeof(*pipe->segments));
    }
    segment = &pipe->segments[pipe->first_segment + pipe->n_segments++];
    segment->end = end;
    segment->due_us = due_us;
    segment->is_fin = is_fin;
}

static int64_t pipe_timer_us(const struct sim_pipe *pipe)
{
    return TIMER_MIN_US + conn_round_trip_us(pipe->conn);
}

/* What loss adds: the first repetition mostly comes soon, asked for by those behind it; then the
 * timer. */
static int64_t pipe_loss_us(struct sim_pipe *pipe, size_t len)
{
    struct sim *sim = pipe->conn->sim;
    unsigned loss = sim->plan.links[pipe->conn->site[pipe->dir]][pipe->conn->site[1 - pipe->dir]]
                        .loss_per_10000;
    int64_t us = 0, timer_us = pipe_timer_us(pipe);

    if (loss > 0 && len < PACKET) {
        loss = 1 + loss * (unsigned)len / PACKET; /* a few bytes travel with others */
    }
    if (conn_is_local(pipe->conn) || hdt_sim_below(sim, 10000) >= loss) {
        return 0;
    }
    us = hdt_sim_chance(sim, 700) ? conn_round_trip_us(pipe->conn) : timer_us;
    while (hdt_sim_below(sim, 10000) < loss && timer_us < TIMER_MAX_US) {
        timer_us *= 2;
        us += timer_us;
    }
    return us;
}

/* After so long without an acknowledgement the sender gives up; 0: never. */
static int64_t pipe_user_timeout_us(struct sim_pipe *pipe)
{
    const struct sim_sock *sock = pipe_sender(pipe);
    unsigned timeout_ms = 0;
    socklen_t len = sizeof(timeout_ms);

    if (sock->fd < 0 || conn_is_local(pipe->conn) ||
        getsockopt(sock->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, &len) != 0) {
        return 0;
    }
    return timeout_ms * SIM_MS;
}

static bool pipe_gives_up(struct sim_pipe *pipe)
{
    const int64_t timeout_us = pipe_user_timeout_us(pipe);
    const struct sim *sim = pipe->conn->sim;

    if (timeout_us == 0 || pipe->acked == pipe->sent ||
        sim->now_us - pipe->unacked_us < timeout_us) {
        return false;
    }
    sock_fail(pipe_sender(pipe), ETIMEDOUT);
    return true;
}

/* When it is tried again: the timer doubles, but does not go beyond the user timeout. */
static int64_t pipe_next_try_us(struct sim_pipe *pipe)
{
    const int64_t timeout_us = pipe_user_timeout_us(pipe);
    const int64_t now_us = pipe->conn->sim->now_us;

    pipe->rto_us = pipe->rto_us == 0 ? pipe_timer_us(pipe) : 2 * pipe->rto_us;
    if (pipe->rto_us > TIMER_MAX_US) {
        pipe->rto_us = TIMER_MAX_US;
    }
    if (timeout_us > 0 && pipe->acked < pipe->sent && pipe->unacked_us + timeout_us > now_us &&
        pipe->unacked_us + timeout_us < now_us + pipe->rto_us) {
        return pipe->unacked_us + timeout_us;
    }
    return now_us + pipe->rto_us;
}

static void ack_arrives(struct sim *sim, void *arg, uint64_t n)
{
    struct sim_pipe *pipe = arg;
    struct sim_sock *sock = pipe_sender(pipe);
    const uint64_t acked = pipe->swallowed > pipe->arrived ? pipe->swallowed : pipe->arrived;

    (void)n;
    pipe->is_ack_due = false;
    if (pipe->conn->is_forgotten && !pipe->conn->is_swallowed) {
        return;
    }
    if (!pipe->conn->is_forgotten && !conn_passes(pipe->conn, 1 - pipe->dir)) {
        if (!pipe_gives_up(pipe)) {
            pipe->is_ack_due = true;
            hdt_sim_at(sim, pipe_next_try_us(pipe), ack_arrives, pipe, 0);
        }
        return;
    }
    if (acked > pipe->acked) {
        pipe->acked = acked;
        pipe->unacked_us = sim->now_us;
    }
    sock->segment_us = sim->now_us;
    pipe->rto_us = 0;
    pipe_pump(pipe);
    hdt_sim_sock_ready(sock);
}

static void pipe_acknowledge(struct sim_pipe *pipe)
{
    if (!pipe->is_ack_due) {
        pipe->is_ack_due = true;
        hdt_sim_at(pipe->conn->sim,
                   pipe->conn->sim->now_us + conn_delay_us(pipe->conn, 1 - pipe->dir), ack_arrives,
                   pipe, 0);
    }
}

static void segment_arrives(struct sim *sim, void *arg, uint64_t n);

static void pipe_expect(struct sim_pipe *pipe)
{
    if (pipe->n_segments > 0 && !pipe->is_arrival_due) {
        pipe->is_arrival_due = true;
        hdt_sim_at(pipe->conn->sim, pipe->segments[pipe->first_segment].due_us, segment_arrives,
                   pipe, 0);
    }
}

/* A middlebox that acknowledges and keeps what it got. */
static void segment_swallow(struct sim_pipe *pipe)
{
    const struct sim_segment *segment = &pipe->segments[pipe->first_segment];

    if (segment->end - pipe->arrived <= SWALLOWED_MAX) {
        pipe->first_segment++;
        pipe->n_segments--;
        pipe->swallowed = segment->end;
        pipe_acknowledge(pipe);
        pipe_expect(pipe);
    }
}

static void segment_deliver(struct sim_pipe *pipe)
{
    const struct sim_segment segment = pipe->segments[pipe->first_segment];
    struct sim_sock *sock = pipe_receiver(pipe);
    struct sim *sim = pipe->conn->sim;

    pipe->first_segment++;
    pipe->n_segments--;
    pipe->rto_us = 0;
    pipe->arrived = segment.end;
    pipe->has_ended = segment.is_fin;
    hdt_sim_note(sim, "arrives", pipe->conn->id, pipe->dir, segment.end, segment.is_fin);
    if (sock_is_strange(sock)) {
        pipe->read = pipe->arrived;
        pipe->start = 0;
        if (!segment.is_fin) {
            conn_refuse(pipe->conn, 1 - pipe->dir);
        }
        return;
    }
    sock->segment_us = sim->now_us;
    hdt_sim_sock_ready(sock);
    pipe_acknowledge(pipe);
}

static void segment_arrives(struct sim *sim, void *arg, uint64_t n)
{
    struct sim_pipe *pipe = arg;

    (void)n;
    pipe->is_arrival_due = false;
    if (pipe->n_segments == 0 || pipe_sender(pipe)->error != 0) {
        return;
    }
    if (pipe->conn->is_forgotten && pipe->conn->is_swallowed) {
        segment_swallow(pipe);
        return;
    }
    if (!conn_passes(pipe->conn, pipe->dir)) {
        if (pipe_gives_up(pipe)) {
            return;
        }
        pipe->segments[pipe->first_segment].due_us = pipe_next_try_us(pipe);
    } else if (sim->now_us < pipe->stalled_until_us) {
        pipe->segments[pipe->first_segment].due_us = pipe->stalled_until_us;
    } else {
        segment_deliver(pipe);
    }
    pipe_expect(pipe);
}

/* When bytes that leave now are there. */
static int64_t pipe_due_us(struct sim_pipe *pipe, size_t len)
{
    struct sim_conn *conn = pipe->conn;
    struct sim *sim = conn->sim;
    const unsigned from = conn->site[pipe->dir], to = conn->site[1 - pipe->dir];
    int64_t due_us;

    if (conn_is_local(conn)) {
        due_us = sim->now_us + (int64_t)((double)len / LOCAL_RATE);
    } else {
        int64_t *free_us = &sim->free_us[from][to];

        *free_us = (*free_us > sim->now_us ? *free_us : sim->now_us) +
                   (int64_t)((double)(len + 60) / sim->plan.links[from][to].bytes_per_us);
        due_us = *free_us;
    }
    due_us += conn_delay_us(conn, pipe->dir) + pipe_loss_us(pipe, len);
    if (due_us < pipe->last_due_us) {
        due_us = pipe->last_due_us;
    }
    pipe->last_due_us = due_us;
    return due_us;
}

/* Bytes leave as far as the other end and the window have room. */
static void pipe_pump(struct sim_pipe *pipe)
{
    struct sim *sim = pipe->conn->sim;

    while (pipe->sent < pipe->written && pipe->sent - pipe->acked < pipe->window &&
           pipe->sent - pipe->read < 2 * pipe->window) {
        uint64_t len = pipe->written - pipe->sent;

        len = len < sim->plan.segment_max ? len : sim->plan.segment_max;
        if (pipe->sent == pipe->acked) {
            pipe->unacked_us = sim->now_us;
        }
        pipe->sent += len;
        segment_add(pipe, pipe->sent, pipe_due_us(pipe, len), false);
    }
    if (pipe->fin && pipe->sent == pipe->written) {
        pipe->fin = false;
        segment_add(pipe, pipe->sent, pipe_due_us(pipe, 0), true);
    }
    pipe_expect(pipe);
}

/* ---- what the owner of a socket does ---- */

bool hdt_sim_can_read(const struct sim_sock *sock)
{
    const struct sim_pipe *pipe = &sock->conn->pipes[1 - sock->side];

    return pipe->arrived > pipe->read || pipe->has_ended || sock->error != 0;
}

bool hdt_sim_can_write(const struct sim_sock *sock)
{
    const struct sim_pipe *pipe = &sock->conn->pipes[sock->side];

    return sock->error != 0 ||
           (sock->conn->is_connected && pipe->written - pipe->acked < 2 * pipe->window);
}

static size_t sock_at_once(const struct sim_sock *sock, size_t len)
{
    struct sim *sim = sock->conn->sim;

    if (sim->plan.io_max == 0 || conn_is_local(sock->conn)) {
        return len;
    }
    return 1 + (size_t)hdt_sim_below(sim, len < sim->plan.io_max ? len : sim->plan.io_max);
}

int64_t hdt_sim_write(struct sim_sock *sock, const void *bytes, size_t len, int passed_fd)
{
    struct sim_pipe *pipe = hdt_sim_pipe_out(sock);
    size_t room;

    if (sock->error != 0) {
        return -sock->error;
    }
    if (!hdt_sim_can_write(sock) || (passed_fd >= 0 && pipe->passed_fd >= 0)) {
        return -EAGAIN;
    }
    room = 2 * pipe->window - (size_t)(pipe->written - pipe->acked);
    len = sock_at_once(sock, len < room ? len : room);
    if (passed_fd >= 0) {
        pipe->passed_fd = dup(passed_fd);
        pipe->passed_at = pipe->written;
    }
    pipe_append(pipe, bytes, len);
    pipe_pump(pipe);
    return (int64_t)len;
}

int64_t hdt_sim_read(struct sim_sock *sock, void *bytes, size_t len, int *passed_fd)
{
    struct sim_pipe *pipe = hdt_sim_pipe_in(sock);
    const bool was_full = pipe->sent - pipe->read >= 2 * pipe->window;
    const uint64_t there = pipe->arrived - pipe->read;

    *passed_fd = -1;
    if (there == 0) {
        return sock->error != 0 ? -sock->error : pipe->has_ended ? 0 : -EAGAIN;
    }
    len = sock_at_once(sock, len < there ? len : (size_t)there);
    if (pipe->passed_fd >= 0 && pipe->passed_at < pipe->read + len) {
        /* The record that it belongs to, and no more. */
        const uint64_t end = pipe->passed_at + HDT_FRAME_HEADER_LEN;

        len = pipe->read + len > end ? (size_t)(end - pipe->read) : len;
        *passed_fd = pipe->passed_fd;
        pipe->passed_fd = -1;
        hdt_sim_sock_ready(pipe_sender(pipe));
    }
    memcpy(bytes, pipe->buf + pipe->start, len);
    pipe->start += len;
    pipe->read += len;
    if (was_full) {
        pipe_acknowledge(pipe);
    }
    return (int64_t)len;
}

void hdt_sim_sock_close(struct sim_sock *sock)
{
    struct sim_pipe *in = hdt_sim_pipe_in(sock), *out = hdt_sim_pipe_out(sock);
    struct sim_conn *conn = sock->conn;
    struct sim *sim = conn->sim;

    if (sock->is_closed) {
        return;
    }
    hdt_sim_note(sim, "closes", conn->id, sock->side, in->arrived - in->read, 0);
    sock->is_closed = true;
    sock->worker = NULL;
    sock->fd = -1;
    if (sock->error != 0 || !conn->is_connected || sim->sites[conn->site[sock->side]].is_off) {
        return;
    }
    if (in->arrived > in->read) {
        out->n_segments = 0;
        out->written = out->sent;
        conn_refuse(conn, sock->side);
        return;
    }
    out->fin = true;
    pipe_pump(out);
}

/* ---- connecting ---- */

/* Twice what is on its way when the link is full. */
static size_t conn_window(const struct sim *sim, enum hdt_listener door, unsigned from, unsigned to)
{
    const struct sim_link_plan *link = &sim->plan.links[from][to];
    const double full = 4.0 * link->bytes_per_us * (double)(link->delay_us + link->jitter_us);

    return door != HDT_LISTENER_WAN || full < (64u << 10) ? 64u << 10
           : full > (4u << 20)                            ? 4u << 20
                                                          : (size_t)full;
}

static struct sim_conn *conn_new(struct sim *sim, enum hdt_listener door, unsigned from,
                                 unsigned to)
{
    struct sim_conn *conn = hdt_calloc(1, sizeof(*conn));
    unsigned side;

    conn->sim = sim;
    conn->id = sim->n_conns;
    conn->door = door;
    conn->site[0] = from;
    conn->site[1] = to;
    for (side = 0; side < 2; side++) {
        conn->socks[side] =
            (struct sim_sock){.conn = conn, .side = side, .fd = -1, .segment_us = sim->now_us};
        conn->pipes[side] = (struct sim_pipe){
            .conn = conn, .dir = side, .passed_fd = -1, .window = conn_window(sim, door, from, to)};
        conn->pipes[side].parser.flip_at = SIZE_MAX;
        if (door == HDT_LISTENER_WAN && sim->plan.skew > 0) {
            const int64_t most_us = sim->plan.skew * sim->plan.links[from][to].delay_us;

            conn->extra_us[side] = (int64_t)hdt_sim_below(
                sim, (uint64_t)(most_us < SKEW_MAX_US ? most_us : SKEW_MAX_US) + 1);
        }
    }
    if (sim->n_conns == sim->cap_conns) {
        sim->cap_conns = 2 * sim->cap_conns + 64;
        sim->conns = hdt_realloc(sim->conns, sim->cap_conns * sizeof(struct sim_conn *));
    }
    sim->conns[sim->n_conns++] = conn;
    return conn;
}

static void sock_take_fd(struct sim *sim, struct sim_sock *sock, int fd)
{
    sock->fd = fd;
    if (fd >= sim->cap_fd) {
        const int cap = 2 * fd + 64;

        sim->by_fd = hdt_realloc(sim->by_fd, (size_t)cap * sizeof(struct sim_sock *));
        memset(sim->by_fd + sim->cap_fd, 0,
               (size_t)(cap - sim->cap_fd) * sizeof(struct sim_sock *));
        sim->cap_fd = cap;
    }
    sim->by_fd[fd] = sock;
}

struct sim_sock *hdt_sim_sock_of(int fd)
{
    struct sim *sim = hdt_sim_now;

    return sim != NULL && fd >= 0 && fd < sim->cap_fd ? sim->by_fd[fd] : NULL;
}

/* The first bytes are there: as the doorman waits for a greeting. */
static void conn_admit(struct sim *sim, void *arg, uint64_t tries)
{
    struct sim_conn *conn = arg;
    struct sim_sock *sock = &conn->socks[1];
    struct sim_site *site = &sim->sites[conn->site[1]];

    if (sock->is_closed || conn->is_admitted) {
        return;
    }
    if (site->dp == NULL || site->life != conn->life[1] || sock->error != 0) {
        close(sock->fd);
        return;
    }
    if (conn->pipes[0].arrived == 0 || site->paused_until_us > sim->now_us) {
        if (tries * SIM_MS > GREETING_US) {
            close(sock->fd);
            return;
        }
        hdt_sim_at(sim, sim->now_us + SIM_MS, conn_admit, conn, tries + 1);
        return;
    }
    conn->is_admitted = true;
    hdt_sim_note(sim, "admitted", conn->id, conn->site[1], 0, 0);
    sim->running = site;
    hdt_dpstep_admit(site->dp, conn->door, sock->fd);
    sim->running = NULL;
}

/* The other end's kernel has the connection; its process is told soon. */
static void conn_establish(struct sim_conn *conn)
{
    struct sim *sim = conn->sim;

    conn->is_connected = true;
    conn->life[1] = sim->sites[conn->site[1]].life;
    sock_take_fd(sim, &conn->socks[1], hdt_sim_token(conn->door));
    hdt_sim_at(sim, sim->now_us + 5 + (int64_t)hdt_sim_below(sim, 200), conn_admit, conn, 0);
}

static void connect_result(struct sim *sim, void *arg, uint64_t error)
{
    (void)sim;
    hdt_sim_connected(arg, -(int64_t)error);
}

static void syn_arrives(struct sim *sim, void *arg, uint64_t n)
{
    struct sim_conn *conn = arg;
    const struct sim_site *site = &sim->sites[conn->site[1]];
    const int64_t back_us = sim->now_us + conn_delay_us(conn, 1);

    (void)n;
    if (conn->connecting == NULL) {
        return;
    }
    if (!conn_passes(conn, 0) || !conn_passes(conn, 1)) {
        const int64_t timer_us = SYN_TIMER_US << (conn->n_syns++ < 6 ? conn->n_syns - 1 : 6);

        hdt_sim_at(sim, sim->now_us + timer_us, syn_arrives, conn, 0);
        return;
    }
    if (site->dp == NULL) {
        hdt_sim_at(sim, back_us, connect_result, conn, ECONNREFUSED);
        return;
    }
    conn_establish(conn);
    hdt_sim_at(sim, back_us, connect_result, conn, 0);
}

void hdt_sim_connect(struct sim *sim, struct sim_engine *engine, struct hdt_io *io)
{
    const struct sockaddr_in *sa = (const struct sockaddr_in *)&io->addr;
    const unsigned to = (unsigned)ntohs(sa->sin_port) - SIM_PORT;
    struct sim_conn *conn;

    SIM_CHECK(sim, to < sim->plan.n_sites, "a dial to port %u", (unsigned)ntohs(sa->sin_port));
    conn = conn_new(sim, HDT_LISTENER_WAN, engine->site->idx, to);
    conn->life[0] = engine->site->life;
    conn->socks[0].engine = engine;
    conn->connecting = io;
    sock_take_fd(sim, &conn->socks[0], io->fd);
    hdt_sim_note(sim, "dials", conn->id, engine->site->idx, to, 0);
    hdt_sim_at(sim, sim->now_us + conn_delay_us(conn, 0), syn_arrives, conn, 0);
}

void hdt_sim_connect_cancel(struct hdt_io *io)
{
    struct sim_sock *sock = hdt_sim_sock_of(io->fd);

    sock->conn->connecting = NULL;
}

struct sim_sock *hdt_sim_connect_worker(struct sim_worker *worker)
{
    struct sim *sim = worker->sim;
    struct sim_conn *conn;

    if (worker->site->dp == NULL || worker->site->is_off) {
        return NULL;
    }
    conn = conn_new(sim, worker->plan->over_tls ? HDT_LISTENER_LAN_TLS : HDT_LISTENER_LAN_UNIX,
                    worker->site->idx, worker->site->idx);
    conn->socks[0].worker = worker;
    conn->worker_idx = worker->idx;
    conn_establish(conn);
    return &conn->socks[0];
}

void hdt_sim_net_free(struct sim *sim)
{
    unsigned i, side;

    for (i = 0; i < sim->n_conns; i++) {
        struct sim_conn *conn = sim->conns[i];

        for (side = 0; side < 2; side++) {
            struct sim_pipe *pipe = &conn->pipes[side];

            if (conn->socks[side].fd >= 0) {
                close(conn->socks[side].fd);
            }
            if (pipe->passed_fd >= 0) {
                close(pipe->passed_fd);
            }
            free(pipe->parser.copy);
            free(pipe->segments);
            free(pipe->buf);
        }
        free(conn);
    }
    hdt_sim_meddle_free(sim);
    free(sim->conns);
    free(sim->by_fd);
}
