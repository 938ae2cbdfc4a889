/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "compress/codec.h"
#include "gateway/dp.h"
#include "src/base/clock.h"

#include <string.h>

/*
 * What streams between gateways carry. Stream 0: MSG, ACK, HAVE, QUERY, PING, PONG; never payload
 * of tensors, so that an acknowledgement never waits behind one. The others: CHUNK, PROBE, PING,
 * PONG. Anything else is a breach and closes the stream; a chunk for an unknown flow or outside
 * of its window is not (plans change while chunks travel): it is read, counted and dropped.
 */

static enum hdt_status wan_breach(const struct hdt_conn *conn, const struct hdt_frame *frame,
                                  struct hdt_error *err)
{
    return hdt_error_set(err, HDT_EPROTO, "cannot accept a %s record on stream %u",
                         hdt_frame_kind_name((enum hdt_frame_kind)frame->kind), conn->index);
}

/* We refused it, and our last words are on their way, or it is about to be closed: what the other
 * end, which does not know yet, says meanwhile is no breach. */
static bool wan_is_leaving(struct hdt_conn *conn)
{
    bool is_leaving;

    hdt_dp_lock(conn->dp);
    is_leaving = conn->close_after != NULL || conn->close_requested;
    hdt_dp_unlock(conn->dp);
    return is_leaving;
}

static void wan_up(struct hdt_stream *stream, void *user)
{
    struct hdt_conn *conn = user;
    struct hdt_error err = {0};

    (void)stream;
    if (hdt_handshake_up(conn, &err) != HDT_OK) {
        hdt_dp_lock(conn->dp);
        hdt_handshake_report(conn, &err);
        hdt_conn_refuse(conn, &err);
        hdt_dp_unlock(conn->dp);
    }
    hdt_conn_pump(conn);
}

/* L: a job for a chunk or filler; HDT_AGAIN when all are busy. */
static enum hdt_status wan_place_bulk(struct hdt_conn *conn, const struct hdt_frame *frame,
                                      void **buf, struct hdt_error *err)
{
    const uint32_t payload_len = frame->kind == HDT_FRAME_CHUNK ? frame->coded_len : frame->len;
    struct hdt_rx_job *job = NULL;
    unsigned i;

    if (payload_len > conn->session->peer_chunk_bytes) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot accept %u bytes in a record: the peer announced chunks of %u",
                             payload_len, conn->session->peer_chunk_bytes);
    }
    for (i = 0; i < HDT_DP_RX_JOBS && job == NULL; i++) {
        job = conn->rx[i].mode == HDT_RX_IDLE ? &conn->rx[i] : NULL;
    }
    if (job == NULL) {
        conn->rx_stopped = true;
        return HDT_AGAIN;
    }
    job->frame = *frame;
    job->flow = NULL;
    job->mode = HDT_RX_DROP;
    *buf = job->buf;
    if (frame->kind == HDT_FRAME_CHUNK) {
        const uint64_t n_bad = conn->peer->total.bad_chunks;

        conn->peer->total.recv_chunks++;
        HDT_TRY(hdt_dst_place(conn->peer, job, buf, err));
        job->is_bad = conn->peer->total.bad_chunks != n_bad;
    }
    job->conn = hdt_conn_ref(conn);
    conn->rx_now = job;
    return HDT_OK;
}

static enum hdt_status wan_place(struct hdt_stream *stream, void *user,
                                 const struct hdt_frame *frame, size_t payload_len, void **buf,
                                 struct hdt_error *err)
{
    struct hdt_conn *conn = user;
    enum hdt_status status;

    (void)stream;
    if (conn->close_begun) {
        return hdt_error_set(err, HDT_ECANCELED, "cannot read on: the stream is closing");
    }
    if (frame->kind == HDT_FRAME_MSG) {
        return conn->state == HDT_CONN_UP && conn->index > 0
                   ? wan_breach(conn, frame, err)
                   : hdt_conn_place_msg(conn, payload_len, buf, err);
    }
    if (conn->state != HDT_CONN_UP || conn->index == 0 ||
        (frame->kind != HDT_FRAME_CHUNK && frame->kind != HDT_FRAME_PROBE)) {
        return conn->state != HDT_CONN_UP && wan_is_leaving(conn)
                   ? hdt_error_set(err, HDT_ECANCELED, "cannot read on: the stream is closing")
                   : wan_breach(conn, frame, err);
    }
    hdt_dp_lock(conn->dp);
    status = wan_place_bulk(conn, frame, buf, err);
    hdt_dp_unlock(conn->dp);
    return status;
}

static enum hdt_status wan_record_bulk(struct hdt_conn *conn, const struct hdt_frame *frame,
                                       struct hdt_error *err)
{
    struct hdt_rx_job *job = conn->rx_now;

    if (job == NULL) {
        return wan_breach(conn, frame, err); /* without payload */
    }
    if (job->mode == HDT_RX_DROP && frame->kind == HDT_FRAME_CHUNK) {
        hdt_conn_charge(conn, hdt_dropped_cost(frame, job->is_bad));
    }
    if (job->mode != HDT_RX_DROP && frame->codec == HDT_CODEC_NONE) {
        conn->rx_now = NULL;
        hdt_rx_job_check(job);
        return HDT_OK;
    }
    hdt_dp_lock(conn->dp);
    conn->rx_now = NULL;
    if (frame->kind == HDT_FRAME_PROBE) {
        hdt_probe_received(conn, frame, hdt_clock_now_us());
    }
    if (job->mode == HDT_RX_DROP) {
        hdt_rx_job_release(job);
    } else {
        hdt_codecpool_push(job);
    }
    hdt_dp_unlock(conn->dp);
    return HDT_OK;
}

/* L: what comes late on a session that was replaced says nothing about the new one. */
static bool wan_is_current(const struct hdt_conn *conn)
{
    return conn->peer->session == conn->session;
}

static enum hdt_status wan_record_msg(struct hdt_conn *conn, const struct hdt_frame *frame,
                                      struct hdt_error *err)
{
    json_t *msg;

    HDT_TRY(hdt_conn_take_msg(conn, frame->coded_len, &msg, err));
    hdt_dp_lock(conn->dp);
    if (conn->state != HDT_CONN_UP) {
        hdt_handshake_msg(conn, msg);
    } else if (conn->index == 0 && wan_is_current(conn) && !hdt_probe_msg(conn->peer, msg) &&
               !hdt_session_tune_msg(conn->session, msg) &&
               !hdt_handshake_is_taken_back(conn, msg)) {
        hdt_dpevent_peer_msg(conn->dp, conn->peer->site, msg, frame->coded_len);
        msg = NULL;
    }
    hdt_dp_unlock(conn->dp);
    json_decref(msg);
    hdt_conn_pump(conn);
    return HDT_OK;
}

/* L: *cost is what it takes from the peer's account. */
static enum hdt_status wan_record_small(struct hdt_conn *conn, const struct hdt_frame *frame,
                                        int *cost, struct hdt_error *err)
{
    switch (frame->kind) {
    case HDT_FRAME_PING:
        hdt_conn_on_ping(conn, frame);
        return HDT_OK;
    case HDT_FRAME_PONG:
        hdt_session_pong(conn, frame, hdt_clock_now_us());
        return HDT_OK;
    case HDT_FRAME_ACK:
    case HDT_FRAME_HAVE:
    case HDT_FRAME_QUERY:
        if (conn->index == 0) {
            if (wan_is_current(conn)) {
                *cost += hdt_flow_end_on_record(conn->peer, frame);
            }
            return HDT_OK;
        }
        return wan_breach(conn, frame, err);
    default:
        return wan_breach(conn, frame, err);
    }
}

static enum hdt_status wan_record(struct hdt_stream *stream, void *user,
                                  const struct hdt_frame *frame, void *buf, int passed_fd,
                                  struct hdt_error *err)
{
    struct hdt_conn *conn = user;
    int cost = hdt_record_cost(frame);
    enum hdt_status status;

    (void)stream;
    (void)buf;
    HDT_ASSERT(passed_fd < 0); /* no descriptors come over TCP */
    if (conn->close_begun) {
        return hdt_error_set(err, HDT_ECANCELED, "cannot read on: the stream is closing");
    }
    if (frame->kind == HDT_FRAME_MSG) {
        hdt_conn_charge(conn, cost);
        return frame->coded_len > 0 ? wan_record_msg(conn, frame, err)
                                    : wan_breach(conn, frame, err);
    }
    if (conn->state != HDT_CONN_UP) {
        return wan_is_leaving(conn) ? HDT_OK : wan_breach(conn, frame, err);
    }
    if (frame->kind == HDT_FRAME_CHUNK || frame->kind == HDT_FRAME_PROBE) {
        return wan_record_bulk(conn, frame, err);
    }
    hdt_dp_lock(conn->dp);
    status = wan_record_small(conn, frame, &cost, err);
    hdt_dp_unlock(conn->dp);
    hdt_conn_charge(conn, cost);
    return status;
}

const struct hdt_stream_events hdt_wan_events = {
    .up = wan_up,
    .place = wan_place,
    .record = wan_record,
    .want = hdt_conn_on_want,
    .sent = hdt_conn_on_sent,
    .closed = hdt_conn_on_closed,
};

/* ---- out ---- */

/* Stream 0: the flows that have something to say, in turn. */
static struct hdt_out *wan_next_control(struct hdt_conn *conn)
{
    struct hdt_peer *peer = conn->peer;
    struct hdt_flow_end *flow;
    struct hdt_out *out;
    bool more;

    while ((flow = peer->dirty) != NULL && peer->session == conn->session) {
        out = hdt_flow_end_peer_out(flow, conn, &more);
        if (out == NULL && more) {
            return NULL; /* no record is free: `sent` comes back here */
        }
        DL_DELETE2(peer->dirty, flow, peer_prev, peer_next);
        flow->on_peer_list = false;
        if (more) {
            hdt_peer_mark(flow);
        }
        if (out != NULL) {
            return out;
        }
    }
    return NULL;
}

struct hdt_out *hdt_wan_next_out(struct hdt_conn *conn, size_t queued_bytes, int64_t now_us)
{
    struct hdt_tx_chunk *chunk;
    struct hdt_out *out;

    if (conn->index == 0) {
        return wan_next_control(conn);
    }
    conn->is_full = queued_bytes >= HDT_DP_LOW_WATER;
    if (conn->is_full) {
        return NULL; /* `want` follows */
    }
    chunk = hdt_txq_pull(conn, now_us);
    out = chunk != NULL ? &chunk->out : hdt_probe_next_out(conn, queued_bytes, now_us);
    if (out != NULL) {
        hdt_shortage_end(&conn->link.shortage, now_us);
    }
    return out;
}

/* ---- closed ---- */

/* L: what its jobs had claimed and did not bring is free again. */
static void wan_abort_rx(struct hdt_conn *conn)
{
    struct hdt_rx_job *job = conn->rx_now;

    conn->rx_now = NULL;
    if (job == NULL) {
        return;
    }
    if (job->mode != HDT_RX_DROP) {
        hdt_dst_done(job, false);
    }
    hdt_rx_job_release(job);
}

void hdt_wan_on_closed(struct hdt_conn *conn, const struct hdt_error *why)
{
    wan_abort_rx(conn);
    if (conn->state != HDT_CONN_UP) {
        if (why->status != HDT_OK && conn->close_after == NULL && !conn->is_reported &&
            !conn->dp->stopping) {
            hdt_handshake_report(conn, why);
        }
        hdt_doorman_verdict(conn, conn->close_after != NULL ? &conn->close_why : why);
    }
    if (conn->state == HDT_CONN_UP && why->status == HDT_EPROTO) {
        hdt_peer_misdeed(conn->peer, HDT_MISDEED_BREACH, why->msg);
    }
    if (conn->peer != NULL) {
        conn->peer->total.sent_bytes += conn->stats.sent_bytes;
        conn->peer->total.recv_bytes += conn->stats.recv_bytes;
        if (conn->peer->dialling == conn) {
            hdt_peer_dial_failed(conn->peer, conn, why);
        }
    }
    if (conn->session != NULL) {
        hdt_session_detach(conn->session, conn, why);
    }
}
