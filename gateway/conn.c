/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/dp.h"
#include "src/base/buf.h"
#include "src/base/clock.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * One connection, to a peer or to a client: opening, messages, heartbeat, closing. What else it
 * carries is in wan.c and lan.c.
 *
 * Life: hdt_conn_new (any thread) -> its thread connects if need be and opens the stream -> events
 * of the stream -> closed. One reference stands for the open stream; sessions, clients and jobs in
 * the codec pool hold others. The struct stays in the list of all connections until the last
 * reference is gone, so that a walk over the list may let go of the lock while it holds one.
 */

/* Who does not read the reason is closed without it. */
#define CONN_LAST_WORDS_US (2 * HDT_US_PER_S)
#define CONN_HOLD_MORE     1.25 /* of what a stream knows of the path */

/* ---- life ---- */

struct hdt_conn *hdt_conn_new(struct hdt_dataplane *dp, enum hdt_conn_kind kind, int fd)
{
    struct hdt_conn *conn = hdt_calloc(1, sizeof(*conn));
    unsigned i;

    conn->dp = dp;
    conn->kind = kind;
    conn->fd = fd;
    conn->refs = 1;
    conn->id = ++dp->next_conn_id;
    conn->state = HDT_CONN_CONNECTING;
    conn->state_us = hdt_clock_now_us();
    conn->deadline_us = conn->state_us + dp->conf.deadlines.handshake_us;
    for (i = 0; i < HDT_DP_SMALL_RECORDS; i++) {
        conn->small[i].next = conn->small_free;
        conn->small_free = &conn->small[i];
    }
    if (fd >= 0 && kind != HDT_CONN_LAN_UNIX) {
        hdt_addr_of_socket(fd, true, conn->address, sizeof(conn->address));
    }
    conn->io = hdt_iothread_next(dp);
    conn->io->n_open++;
    DL_APPEND(dp->conns, conn);
    return conn;
}

struct hdt_conn *hdt_conn_ref(struct hdt_conn *conn)
{
    HDT_ASSERT(conn->refs > 0);
    conn->refs++;
    return conn;
}

void hdt_conn_unref(struct hdt_conn *conn)
{
    HDT_ASSERT(conn->refs > 0);
    if (--conn->refs > 0) {
        return;
    }
    HDT_ASSERT(conn->is_gone);
    DL_DELETE(conn->dp->conns, conn);
    if (conn->rx_memory != NULL) {
        const size_t len = (size_t)HDT_DP_RX_JOBS * conn->session->peer_chunk_bytes;

        conn->dp->memory_used -= len;
        conn->session->peer->rx_bytes -= len;
        free(conn->rx_memory);
    }
    if (conn->session != NULL) {
        hdt_session_unref(conn->session);
    }
    free(conn->msg_buf);
    free(conn);
}

void hdt_conn_close(struct hdt_conn *conn, const struct hdt_error *why)
{
    if (conn->close_requested || conn->is_gone) {
        return;
    }
    conn->close_requested = true;
    if (why != NULL) {
        conn->close_why = *why;
    }
    hdt_conn_kick(conn);
}

/* ---- records out ---- */

struct hdt_out *hdt_conn_small(struct hdt_conn *conn, enum hdt_frame_kind kind,
                               struct hdt_flow_end *flow)
{
    struct hdt_out *out = conn->small_free;

    if (out == NULL) {
        conn->small_starved = true;
        return NULL;
    }
    conn->small_free = out->next;
    memset(out, 0, sizeof(*out));
    out->kind = HDT_OUT_SMALL;
    out->rec.frame.version = HDT_FRAME_VERSION;
    out->rec.frame.kind = (uint8_t)kind;
    out->rec.passed_fd = -1;
    out->rec.user = out;
    if (flow != NULL) {
        out->flow = hdt_flow_end_ref(flow);
        out->rec.frame.job = flow->key.job;
        out->rec.frame.flow = flow->key.flow;
        out->rec.frame.epoch = flow->conf.epoch;
    }
    return out;
}

enum hdt_status hdt_conn_send_encoded(struct hdt_conn *conn, struct hdt_buf *bytes,
                                      struct hdt_error *err)
{
    const size_t len = bytes->len;
    struct hdt_out *out;

    if (conn->is_gone || conn->close_requested) {
        return hdt_error_set(err, HDT_ELINK, "cannot send a message: the connection is closing");
    }
    if (len > HDT_FRAME_MAX_MSG || conn->msg_bytes + len > HDT_DP_MSG_BACKLOG) {
        return hdt_error_set(err, HDT_ENOMEM,
                             "cannot send a message of %zu bytes: %zu bytes of messages wait", len,
                             conn->msg_bytes);
    }
    out = hdt_calloc(1, sizeof(*out));
    out->kind = HDT_OUT_MSG;
    out->heap = hdt_buf_detach(bytes);
    out->rec.frame.version = HDT_FRAME_VERSION;
    out->rec.frame.kind = HDT_FRAME_MSG;
    out->rec.frame.coded_len = (uint32_t)len;
    out->rec.payload = out->heap;
    out->rec.payload_len = len;
    out->rec.passed_fd = -1;
    out->rec.user = out;
    if (conn->msg_head == NULL) {
        conn->msg_head = out;
    } else {
        conn->msg_tail->next = out;
    }
    conn->msg_tail = out;
    conn->msg_bytes += len;
    hdt_conn_kick(conn);
    return HDT_OK;
}

enum hdt_status hdt_conn_send_msg(struct hdt_conn *conn, const json_t *msg, struct hdt_error *err)
{
    struct hdt_buf bytes = {0};
    enum hdt_status status;

    hdt_msg_encode(msg, &bytes);
    status = hdt_conn_send_encoded(conn, &bytes, err);
    hdt_buf_release(&bytes);
    return status;
}

void hdt_conn_refuse(struct hdt_conn *conn, const struct hdt_error *why)
{
    json_t *msg =
        hdt_msg_new(conn->kind == HDT_CONN_WAN ? "refuse" : "error", NULL, hdt_msg_error_body(why));

    conn->close_why = *why;
    conn->deadline_us = hdt_clock_now_us() + CONN_LAST_WORDS_US;
    if (hdt_conn_send_msg(conn, msg, NULL) == HDT_OK) {
        conn->close_after = conn->msg_tail;
    } else {
        hdt_conn_close(conn, why);
    }
    json_decref(msg);
}

/* L */
static struct hdt_out *conn_next_heartbeat(struct hdt_conn *conn)
{
    struct hdt_out *out;

    if (!conn->pong_pending && !conn->ping_pending) {
        return NULL;
    }
    out = hdt_conn_small(conn, conn->pong_pending ? HDT_FRAME_PONG : HDT_FRAME_PING, NULL);
    if (out == NULL) {
        return NULL;
    }
    if (conn->pong_pending) {
        conn->pong_pending = false;
        out->rec.frame.seq = conn->pong_seq;
        out->rec.frame.offset = conn->pong_offset;
        out->rec.frame.xxh3 = (uint64_t)hdt_clock_wall_us();
    } else {
        const int64_t now_us = hdt_clock_now_us();

        conn->ping_pending = false;
        if (conn->ping_sent_us == 0) {
            conn->ping_sent_us = now_us;
        }
        out->rec.frame.seq = ++conn->ping_seq;
        out->rec.frame.offset = (uint64_t)now_us;
    }
    return out;
}

/* L */
static struct hdt_out *conn_next_out(struct hdt_conn *conn, size_t queued_bytes, int64_t now_us)
{
    struct hdt_out *out = conn->msg_head;

    if (out != NULL) {
        conn->msg_head = out->next;
        return out;
    }
    if (conn->close_after != NULL || conn->state != HDT_CONN_UP) {
        return NULL;
    }
    out = conn_next_heartbeat(conn);
    if (out != NULL) {
        return out;
    }
    return conn->kind == HDT_CONN_WAN ? hdt_wan_next_out(conn, queued_bytes, now_us)
                                      : hdt_client_next_out(conn);
}

/* The rate cap held a chunk back: the thread's timer pumps again. */
static void conn_await_rate(struct hdt_conn *conn, int64_t now_us)
{
    struct hdt_iothread *io = conn->io;
    int64_t wait_us;

    if (conn->kind != HDT_CONN_WAN) {
        return;
    }
    hdt_dp_lock(conn->dp);
    wait_us = conn->rate_wait_us;
    conn->rate_wait_us = 0;
    hdt_dp_unlock(conn->dp);
    if (wait_us > 0 && io->rate.heap_idx_ == 0) {
        hdt_engine_timer_arm(io->engine, &io->rate, now_us + wait_us);
    }
}

/* Before what is queued, but not before the hello or welcome, which is the first record. */
static bool conn_is_urgent(const struct hdt_conn *conn, const struct hdt_out *out)
{
    struct hdt_stream_stats stats;

    if (out->rec.frame.kind != HDT_FRAME_PING && out->rec.frame.kind != HDT_FRAME_PONG) {
        return false;
    }
    hdt_stream_stats(conn->stream, &stats);
    return stats.sent_records > 0;
}

void hdt_conn_pump(struct hdt_conn *conn)
{
    const int64_t now_us = hdt_clock_now_us();

    if (conn->stream == NULL || conn->close_begun || conn->state < HDT_CONN_HELLO) {
        return;
    }
    for (;;) {
        const size_t queued_bytes = hdt_stream_queued_bytes(conn->stream);
        struct hdt_out *out;

        hdt_dp_lock(conn->dp);
        out = conn_next_out(conn, queued_bytes, now_us);
        hdt_dp_unlock(conn->dp);
        if (out == NULL) {
            conn_await_rate(conn, now_us);
            return;
        }
        hdt_stream_send(conn->stream, &out->rec, conn_is_urgent(conn, out));
    }
}

void hdt_conn_on_want(struct hdt_stream *stream, void *user)
{
    (void)stream;
    hdt_conn_pump(user);
}

/* L: a record is back. */
static void conn_out_done(struct hdt_conn *conn, struct hdt_out *out, bool ok)
{
    switch (out->kind) {
    case HDT_OUT_SMALL:
        if (out->flow != NULL) {
            hdt_flow_end_unref(out->flow);
            out->flow = NULL;
        }
        out->next = conn->small_free;
        conn->small_free = out;
        break;
    case HDT_OUT_MSG:
        conn->msg_bytes -= out->rec.payload_len;
        free(out->heap);
        free(out);
        break;
    case HDT_OUT_CHUNK:
        hdt_txq_sent((struct hdt_tx_chunk *)out, ok);
        break;
    }
}

void hdt_conn_on_sent(struct hdt_stream *stream, void *user, struct hdt_record *record, bool ok)
{
    struct hdt_conn *conn = user;
    struct hdt_out *out = record->user;
    bool is_last, was_starved;

    (void)stream;
    hdt_dp_lock(conn->dp);
    is_last = out == conn->close_after;
    conn_out_done(conn, out, ok);
    if (is_last) {
        hdt_conn_close(conn, &conn->close_why);
    }
    was_starved = conn->small_starved;
    conn->small_starved = false;
    hdt_dp_unlock(conn->dp);
    if (was_starved) {
        hdt_conn_pump(conn);
    }
}

/* ---- messages in ---- */

enum hdt_status hdt_conn_place_msg(struct hdt_conn *conn, size_t len, void **buf,
                                   struct hdt_error *err)
{
    const size_t max = conn->state == HDT_CONN_UP ? HDT_FRAME_MAX_MSG : HDT_DP_HELLO_MAX;
    bool is_stopped;

    if (len > max) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot accept a message of %zu bytes: the limit is %zu", len, max);
    }
    hdt_dp_lock(conn->dp);
    conn->rx_stopped = hdt_dpevent_is_full(conn->dp);
    is_stopped = conn->rx_stopped;
    hdt_dp_unlock(conn->dp);
    if (is_stopped) {
        return HDT_AGAIN;
    }
    free(conn->msg_buf);
    conn->msg_buf = malloc(len);
    if (conn->msg_buf == NULL) {
        return hdt_error_set(err, HDT_ENOMEM, "cannot accept a message of %zu bytes: no memory",
                             len);
    }
    *buf = conn->msg_buf;
    return HDT_OK;
}

enum hdt_status hdt_conn_take_msg(struct hdt_conn *conn, size_t len, json_t **msg,
                                  struct hdt_error *err)
{
    enum hdt_status status = hdt_msg_decode(conn->msg_buf, len, msg, err);

    free(conn->msg_buf);
    conn->msg_buf = NULL;
    if (status == HDT_OK && !json_is_object(*msg)) {
        json_decref(*msg);
        status = hdt_error_set(err, HDT_EPROTO, "cannot accept a message: it is not a map");
    }
    return status;
}

void hdt_conn_on_ping(struct hdt_conn *conn, const struct hdt_frame *frame)
{
    conn->pong_pending = true;
    conn->pong_seq = frame->seq;
    conn->pong_offset = frame->offset;
    hdt_conn_kick(conn);
}

/* ---- opening and closing, on the connection's thread ---- */

static void conn_finish(struct hdt_conn *conn, const struct hdt_error *why)
{
    struct hdt_dataplane *dp = conn->dp;
    struct hdt_out *out, *next;

    hdt_dp_lock(dp);
    conn->is_gone = true;
    conn->stream = NULL;
    for (out = conn->msg_head; out != NULL; out = next) {
        next = out->next;
        conn_out_done(conn, out, false);
    }
    conn->msg_head = NULL;
    if (conn->kind == HDT_CONN_WAN) {
        hdt_wan_on_closed(conn, why);
    } else {
        hdt_client_on_closed(conn, why);
    }
    hdt_iothread_leave(conn->io);
    hdt_conn_unref(conn);
    hdt_dp_unlock(dp);
}

void hdt_conn_on_closed(struct hdt_stream *stream, void *user, const struct hdt_error *err)
{
    (void)stream;
    conn_finish(user, err);
}

static void conn_open_stream(struct hdt_conn *conn)
{
    struct hdt_stream_conf conf = {
        .is_client = conn->dialled,
        .name = conn->kind == HDT_CONN_LAN_UNIX ? "local client" : conn->address,
        .low_water = HDT_DP_LOW_WATER,
        .foreign_lengths_are_frames = conn->kind == HDT_CONN_LAN_TLS,
        .handshake_timeout_us = conn->dp->conf.deadlines.handshake_us,
    };
    const struct hdt_stream_events *events =
        conn->kind == HDT_CONN_WAN ? &hdt_wan_events : &hdt_lan_events;
    struct hdt_error err = {0};
    const int fd = conn->fd;

    conn->fd = -1;
    if (conn->kind == HDT_CONN_LAN_TLS) {
        hdt_addr_keep_alive(fd, conn->dp->conf.deadlines.session_dead_us);
    }
    if (conn->kind != HDT_CONN_LAN_UNIX) {
        conf.ssl_ctx = hdt_tls_ctx_ssl_ctx(conn->dp->conf.tls);
    }
    hdt_dp_lock(conn->dp);
    conn->state = HDT_CONN_OPENING;
    conn->state_us = hdt_clock_now_us();
    conn->deadline_us = conn->state_us + conn->dp->conf.deadlines.handshake_us;
    hdt_dp_unlock(conn->dp);
    if (hdt_stream_open(conn->io->engine, fd, &conf, events, conn, &conn->stream, &err) != HDT_OK) {
        conn->stream = NULL;
        conn_finish(conn, &err);
    }
}

static void conn_drop_fd(struct hdt_conn *conn)
{
    if (conn->fd >= 0) {
        hdt_engine_forget(conn->io->engine, conn->fd);
        close(conn->fd);
        conn->fd = -1;
    }
}

static void conn_connected(struct hdt_engine *engine, struct hdt_io *io, int64_t result)
{
    struct hdt_conn *conn = io->user;
    struct hdt_error err = {0};

    (void)engine;
    conn->connect_in_flight = false;
    if (result == 0 && !conn->close_begun) {
        conn_open_stream(conn);
        return;
    }
    conn_drop_fd(conn);
    if (result == -ECANCELED || result == 0) {
        hdt_dp_lock(conn->dp);
        err = conn->close_why;
        hdt_dp_unlock(conn->dp);
    } else {
        hdt_error_set_errno(&err, HDT_EPEER, (int)-result, "cannot connect to %s", conn->address);
        hdt_error_hint(&err, "is the gateway there running, and is the port open in the firewall?");
    }
    conn_finish(conn, &err);
}

static void conn_dial(struct hdt_conn *conn)
{
    struct hdt_error err = {0};

    if (hdt_addr_socket(&conn->addr, &conn->fd, &err) != HDT_OK) {
        conn->fd = -1;
        conn_finish(conn, &err);
        return;
    }
    hdt_session_socket_options(conn->dp, conn->fd, conn->index > 0);
    conn->connect_io.kind = HDT_IO_CONNECT;
    conn->connect_io.fd = conn->fd;
    conn->connect_io.passed_fd = -1;
    memcpy(&conn->connect_io.addr, &conn->addr.sa, sizeof(conn->addr.sa));
    conn->connect_io.addr_len = conn->addr.sa_len;
    conn->connect_io.done = conn_connected;
    conn->connect_io.user = conn;
    conn->connect_in_flight = true;
    hdt_engine_submit(conn->io->engine, &conn->connect_io);
}

static void conn_begin_close(struct hdt_conn *conn)
{
    struct hdt_error why;

    conn->close_begun = true;
    hdt_dp_lock(conn->dp);
    why = conn->close_why;
    hdt_dp_unlock(conn->dp);
    if (conn->stream != NULL) {
        hdt_stream_close(conn->stream, &why);
    } else if (conn->connect_in_flight) {
        hdt_engine_cancel(conn->io->engine, &conn->connect_io);
    } else {
        conn_drop_fd(conn);
        conn_finish(conn, &why);
    }
}

/* The files of certificates changed: may the other end still speak? */
static void conn_recheck(struct hdt_conn *conn)
{
    SSL *ssl = hdt_stream_ssl(conn->stream);
    struct hdt_error why = {0};

    if (ssl == NULL || conn->state != HDT_CONN_UP ||
        hdt_tls_recheck(conn->dp->conf.tls, ssl, &why) == HDT_OK) {
        return;
    }
    hdt_dp_lock(conn->dp);
    if (conn->kind == HDT_CONN_WAN) {
        hdt_handshake_report(conn, &why);
    }
    hdt_conn_close(conn, &why);
    hdt_dp_unlock(conn->dp);
}

void hdt_conn_serve(struct hdt_conn *conn)
{
    bool close_requested, resume, recheck, is_gone;
    enum hdt_hold hold;
    unsigned congestion;
    double pace;

    hdt_dp_lock(conn->dp);
    conn->dirty = false;
    pace = conn->pace;
    congestion = conn->congestion;
    is_gone = conn->is_gone;
    close_requested = conn->close_requested;
    resume = conn->resume_requested;
    recheck = conn->recheck_requested;
    hold = conn->hold;
    conn->hold = HDT_HOLD_AS_IS;
    conn->resume_requested = false;
    conn->recheck_requested = false;
    hdt_dp_unlock(conn->dp);
    if (is_gone || conn->close_begun) {
        return;
    }
    if (close_requested) {
        conn_begin_close(conn);
        return;
    }
    if (conn->stream == NULL) {
        if (conn->state == HDT_CONN_CONNECTING && !conn->connect_in_flight) {
            if (conn->fd < 0) {
                conn_dial(conn);
            } else {
                conn_open_stream(conn);
            }
        }
        return;
    }
    if (recheck) {
        conn_recheck(conn);
    }
    if (congestion != conn->congestion_set) {
        hdt_session_set_congestion(conn, congestion);
    }
    if (hold != HDT_HOLD_AS_IS) {
        conn->held = hold == HDT_HOLD_SEARCH ? CONN_HOLD_MORE * hdt_linkinfo_search_rate(conn) : 0;
    }
    if (conn->held > 0 && (pace == 0 || conn->held < pace)) {
        pace = conn->held;
    }
    if (pace != conn->pace_set) {
        hdt_session_set_pace(conn, pace);
    }
    if (resume) {
        hdt_stream_resume(conn->stream);
    }
    hdt_conn_pump(conn);
}

/* The kernel is asked only of a stream that brings no bytes. */
static int64_t conn_last_segment_us(const struct hdt_conn *conn,
                                    const struct hdt_stream_stats *stats, int64_t now_us)
{
    if (conn->kind != HDT_CONN_WAN ||
        now_us - stats->last_recv_us < conn->dp->conf.deadlines.heartbeat_us) {
        return stats->last_recv_us;
    }
    return hdt_addr_last_segment_us(hdt_stream_fd(conn->stream));
}

/* L: what a connection was in that did not come to its end in time. */
static void conn_error_late(const struct hdt_conn *conn, int64_t now_us, struct hdt_error *why)
{
    const char *who = conn->address[0] != '\0' ? conn->address : "a local client";
    const double waited_s = (double)(now_us - conn->state_us) / 1e6;

    if (conn->state == HDT_CONN_CONNECTING) {
        hdt_error_set(why, HDT_ETIMEDOUT, "cannot connect to %s: no answer for %.1f s", who,
                      waited_s);
        hdt_error_hint(why, "is that machine up, and does a firewall drop packets to this port?");
        return;
    }
    hdt_error_set(why, HDT_ETIMEDOUT, "cannot greet %s: %s for %.1f s", who,
                  conn->state == HDT_CONN_OPENING ? "no end of the TLS handshake"
                                                  : "connected, but no hello",
                  waited_s);
    hdt_error_hint(why, "the process there accepts and does not answer: is it stopped?");
}

void hdt_conn_tick(struct hdt_conn *conn, int64_t now_us)
{
    struct hdt_stream_stats stats = {0};
    struct hdt_tcp_stats tcp;
    const bool has_tcp = hdt_linkinfo_read(conn, &tcp);
    int64_t segment_us = 0;
    struct hdt_error why;
    bool pump;

    if (conn->stream != NULL) {
        hdt_stream_stats(conn->stream, &stats);
        segment_us = conn_last_segment_us(conn, &stats, now_us);
        hdt_conn_earn(conn, now_us);
    }
    hdt_dp_lock(conn->dp);
    if (conn->stream != NULL) {
        conn->stats = stats;
        conn->last_segment_us = segment_us;
    }
    if (has_tcp) {
        hdt_linkinfo_note(conn, &tcp, hdt_stream_queued_bytes(conn->stream), now_us);
    }
    if (now_us > conn->deadline_us && conn->close_after != NULL) {
        hdt_conn_close(conn, &conn->close_why);
    } else if (now_us > conn->deadline_us && conn->state != HDT_CONN_UP) {
        conn_error_late(conn, now_us, &why);
        hdt_conn_close(conn, &why);
    }
    if (conn->kind == HDT_CONN_WAN && conn->state == HDT_CONN_UP && now_us >= conn->ping_next_us &&
        (conn->index == 0 || conn->ping_sent_us == 0)) {
        conn->ping_pending = true;
        conn->ping_next_us = now_us + conn->dp->conf.deadlines.heartbeat_us;
    }
    pump = conn->ping_pending || conn->hungry;
    hdt_dp_unlock(conn->dp);
    if (pump) {
        hdt_conn_pump(conn);
    }
}
