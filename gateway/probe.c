/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/dp.h"
#include "src/base/clock.h"

#include <string.h>

/*
 * Probes: fill all bulk streams for a while and let the receiver count (arrival.h). Over a slow
 * link it does not wait for all: what came in its share of the sender's deadline is an answer, too.
 * Filler travels when no chunk is ready; then a probe says how much is left over. A chunk waits for
 * the filler that its stream holds already: a moment's worth, or a record and what is left of one.
 * The round trip is taken first: in front of the filler a ping waits for nothing.
 *
 * A part has rounds (rounds.h), of twelve round trips each from the second one on. Having BBR begin
 * anew for a path that may be another one (TCP_CONGESTION set twice) was refused: it keeps its
 * window, sends all of it at three times the rate, and mends the losses for a second. So of a path
 * that has become faster a measurement finds what BBR knows by then.
 *
 * Where bursts could use one stream alone (burst.h), the first stream is filled first and then the
 * others, and the larger rate is the link's. In this order, and not all after one: the first
 * stream then knows the whole rate, and keeps it.
 */
#define PROBE_BYTES_MAX (1ull << 40)
#define PROBE_PINGS     2    /* the first may wait behind filler of the measurement before */
#define PROBE_AHEAD_S   0.05 /* of filler in all streams at the rate that is known */

static const uint8_t probe_filler[HDT_FRAME_MAX_PROBE];

/* Does this part of the probe use that stream? */
static bool probe_is_over(const struct hdt_conn *conn)
{
    const enum hdt_probe_part part = conn->peer->probe_out.part;

    return part == HDT_PROBE_ALL ||
           (conn == hdt_session_first_stream(conn->session)) == (part == HDT_PROBE_FIRST);
}

/* Does the stream hold its share of PROBE_AHEAD_S? More is asked for as it sends. */
static bool probe_is_ahead(const struct hdt_conn *conn, size_t queued_bytes)
{
    const struct hdt_probe_out *probe = &conn->peer->probe_out;
    const double found = hdt_rounds_rate(&probe->rounds), first = probe->first_bytes_per_s;
    const double ahead = PROBE_AHEAD_S * (found > first ? found : first);
    const unsigned n_used = hdt_session_n_used(conn->session);
    const unsigned n = probe->part == HDT_PROBE_FIRST ? 1 : n_used > 1 ? n_used : 1;

    return queued_bytes >= HDT_FRAME_MAX_PROBE && (double)queued_bytes * n >= ahead;
}

struct hdt_out *hdt_probe_next_out(struct hdt_conn *conn, size_t queued_bytes, int64_t now_us)
{
    struct hdt_peer *peer = conn->peer;
    struct hdt_probe_out *probe = &peer->probe_out;
    struct hdt_out *out;
    uint32_t len;

    if (!probe->has_begun || probe->left == 0 || peer->session != conn->session ||
        !probe_is_over(conn)) {
        return NULL;
    }
    if (probe_is_ahead(conn, queued_bytes)) {
        hdt_shortage_end(&conn->link.shortage, now_us); /* it is not the work that is short */
        return NULL;
    }
    conn->rate_wait_us = hdt_txq_rate_wait(peer->dp, now_us);
    out = conn->rate_wait_us == 0 ? hdt_conn_small(conn, HDT_FRAME_PROBE, NULL) : NULL;
    if (out == NULL) {
        return NULL;
    }
    len = probe->left < HDT_FRAME_MAX_PROBE ? (uint32_t)probe->left : HDT_FRAME_MAX_PROBE;
    probe->left -= len;
    out->rec.frame.flags = probe->rounds.n > 0 ? HDT_PROBE_WARM : 0;
    out->rec.frame.seq = probe->id;
    out->rec.frame.offset = probe->total;
    out->rec.frame.len = len;
    out->rec.frame.coded_len = len;
    out->rec.payload = probe_filler;
    out->rec.payload_len = len;
    hdt_txq_rate_take(peer->dp, HDT_FRAME_HEADER_LEN + len);
    return out;
}

/* Is what came to be answered with, although more is on its way? The sender waits for probe_us. */
static bool probe_is_late(const struct hdt_probe_in *probe, int64_t now_us,
                          const struct hdt_peer *peer)
{
    return now_us - probe->first_us >= peer->dp->conf.deadlines.probe_us / 5 * 3 &&
           probe->arrival.n > 1;
}

static void probe_answer(struct hdt_peer *peer, struct hdt_probe_in *probe)
{
    json_t *body, *msg;
    uint64_t bytes;
    int64_t us;

    probe->is_answered = true;
    peer->dp->probe_recv_s_per_byte = 1e-9 * (double)(hdt_clock_process_cpu_ns() - probe->cpu_ns) /
                                      (double)probe->arrival.n_bytes;
    if (peer->session == NULL || peer->session->conns[0] == NULL) {
        return;
    }
    hdt_arrival_rate(&probe->arrival, probe->is_warm, &bytes, &us);
    body = json_object();
    json_object_set_new(body, "id", hdt_msg_u64_hex(probe->id));
    json_object_set_new(body, "bytes", json_integer((json_int_t)bytes));
    json_object_set_new(body, "us", json_integer(us));
    msg = hdt_msg_new("probe.is", NULL, body);
    (void)hdt_conn_send_msg(peer->session->conns[0], msg, NULL); /* else the probe times out */
    json_decref(msg);
}

/* Are both numbers of rounds of one probe? */
static bool probe_is_of(uint64_t id, uint64_t of)
{
    return (id & ~HDT_PROBE_ROUND_MASK) == (of & ~HDT_PROBE_ROUND_MASK);
}

void hdt_probe_received(struct hdt_conn *conn, const struct hdt_frame *frame, int64_t now_us)
{
    struct hdt_peer *peer = conn->peer;
    struct hdt_probe_in *probe = &peer->probe_in;

    if (probe_is_of(frame->seq, probe->id_before) ||
        (probe_is_of(frame->seq, probe->id) && frame->seq < probe->id)) {
        return;
    }
    if (probe->id != frame->seq) {
        *probe = (struct hdt_probe_in){
            .id = frame->seq,
            .id_before = probe_is_of(frame->seq, probe->id) ? probe->id_before : probe->id,
            .total = frame->offset,
            .is_warm = frame->flags & HDT_PROBE_WARM,
            .first_us = now_us,
            .cpu_ns = hdt_clock_process_cpu_ns()};
    }
    hdt_arrival_add(&probe->arrival, frame->coded_len, now_us);
    if (!probe->is_answered &&
        (probe->arrival.n_bytes >= probe->total || probe_is_late(probe, now_us, peer))) {
        probe_answer(peer, probe);
    }
}

/* Of the round that begins; all of them take no more than two. */
static int64_t probe_deadline_us(const struct hdt_probe_out *probe)
{
    const int64_t until_us = hdt_clock_now_us() + probe->timeout_us;
    const int64_t end_us = probe->begin_us + 2 * probe->timeout_us;

    return until_us < end_us ? until_us : end_us;
}

/* Of a round that may count, the streams that it is over are held; others are not, or no longer. */
static void probe_hold(struct hdt_peer *peer)
{
    const struct hdt_session *session = peer->session;

    for (unsigned i = 1; session != NULL && i <= session->n_streams; i++) {
        struct hdt_conn *conn = session->conns[i];

        if (conn != NULL && conn->state == HDT_CONN_UP) {
            conn->hold = peer->probe_out.rounds.is_held && probe_is_over(conn) ? HDT_HOLD_SEARCH
                                                                               : HDT_HOLD_NOT;
            hdt_conn_kick(conn);
        }
    }
}

static void probe_end(struct hdt_peer *peer, double bytes_per_s)
{
    const int64_t rtt_us = peer->probe_out.rtt_us;

    peer->probe_out.active = peer->probe_out.has_begun = false;
    peer->probe_out.rounds = (struct hdt_rounds){0};
    probe_hold(peer);
    hdt_dpevent_probed(peer->dp, peer->site, bytes_per_s,
                       1e-6 * (double)(rtt_us > 0 ? rtt_us : peer->min_rtt_us));
}

/* Rounds of a probe are numbered, so that the peer knows the late filler of one from the next. */
static void probe_begin_round(struct hdt_peer *peer, uint64_t bytes)
{
    struct hdt_probe_out *probe = &peer->probe_out;

    probe->id = probe->has_begun ? probe->id + 1 : hdt_dp_random(peer->dp) & ~HDT_PROBE_ROUND_MASK;
    probe->has_begun = true;
    probe->total = bytes;
    probe->left = bytes;
    probe->cpu_ns = hdt_clock_process_cpu_ns();
    probe->deadline_us = probe_deadline_us(probe);
    probe_hold(peer);
}

static void probe_begin(struct hdt_peer *peer, enum hdt_probe_part part, uint64_t bytes)
{
    peer->probe_out.part = part;
    peer->probe_out.rounds = (struct hdt_rounds){.is_known = part == HDT_PROBE_OTHERS};
    probe_begin_round(peer, bytes);
}

static void probe_ping(const struct hdt_peer *peer)
{
    struct hdt_conn *conn = peer->session->conns[0];

    if (conn != NULL) {
        conn->ping_pending = true;
        hdt_conn_kick(conn);
    }
}

void hdt_probe_pong(struct hdt_peer *peer, int64_t rtt_us)
{
    struct hdt_probe_out *probe = &peer->probe_out;

    if (probe->active && (probe->rtt_us == 0 || rtt_us < probe->rtt_us)) {
        probe->rtt_us = rtt_us;
    }
    if (!probe->active || probe->has_begun) {
        return;
    }
    if (++probe->n_pongs < PROBE_PINGS) {
        probe_ping(peer);
        return;
    }
    probe_begin(peer, hdt_session_may_use_one(peer->session) ? HDT_PROBE_FIRST : HDT_PROBE_ALL,
                probe->bytes);
}

/* The part that ends the probe is over, or as much of it as there was time for. */
static void probe_judge(struct hdt_peer *peer)
{
    struct hdt_probe_out *probe = &peer->probe_out;
    const double rate = hdt_rounds_rate(&probe->rounds), first = probe->first_bytes_per_s;

    if (probe->part == HDT_PROBE_OTHERS) {
        hdt_burst_probed(&peer->burst, first, rate);
    }
    peer->goodput_bytes_per_s = rate > first ? rate : first;
    probe_end(peer, peer->goodput_bytes_per_s);
}

/* A round is answered. */
static void probe_answered(struct hdt_peer *peer, double bytes, double us)
{
    struct hdt_probe_out *probe = &peer->probe_out;
    const double rtt_s = 1e-6 * (double)probe->rtt_us, bytes_per_s = bytes * 1e6 / us;

    if (!hdt_rounds_answered(&probe->rounds, bytes_per_s, 1e-6 * us, probe->total, rtt_s)) {
        probe_begin_round(peer, hdt_rounds_filler(bytes_per_s, rtt_s));
    } else if (probe->part == HDT_PROBE_FIRST) {
        probe->first_bytes_per_s = hdt_rounds_rate(&probe->rounds);
        probe_begin(peer, HDT_PROBE_OTHERS, hdt_rounds_filler(probe->first_bytes_per_s, rtt_s));
    } else {
        probe_judge(peer);
    }
}

bool hdt_probe_msg(struct hdt_peer *peer, const json_t *msg)
{
    const struct hdt_probe_out *probe = &peer->probe_out;
    const double sent = (double)(probe->total - probe->left);
    const json_t *body = hdt_msg_body(msg);
    double bytes, us;

    if (strcmp(hdt_msg_type(msg), "probe.is") != 0) {
        return false;
    }
    if (probe->has_begun && hdt_msg_hex_u64(json_object_get(body, "id")) == probe->id) {
        bytes = (double)json_integer_value(json_object_get(body, "bytes"));
        us = (double)json_integer_value(json_object_get(body, "us"));
        if (bytes > 0 && bytes <= sent && us > 0 && peer->session != NULL) {
            peer->dp->probe_send_s_per_byte =
                1e-9 * (double)(hdt_clock_process_cpu_ns() - probe->cpu_ns) / sent;
            probe_answered(peer, bytes, us);
        } else {
            probe_end(peer, 0);
        }
    }
    return true;
}

/* What was answered until then counts; of the streams that come second a round that may count: what
 * was lost in their search comes in bursts. Where nothing was, nothing came there: of a slow link,
 * what came is an answer. */
void hdt_probe_tick(struct hdt_peer *peer, int64_t now_us)
{
    const struct hdt_probe_out *probe = &peer->probe_out;

    if (!probe->active || now_us < probe->deadline_us) {
        return;
    }
    if (probe->part == HDT_PROBE_OTHERS && probe->rounds.held_bytes_per_s == 0) {
        probe_end(peer, probe->first_bytes_per_s);
    } else {
        probe_judge(peer);
    }
}

void hdt_probe_session_lost(struct hdt_peer *peer)
{
    if (peer->probe_out.active) {
        probe_end(peer, 0); /* filler is not sent again: the sum would never be there */
    }
}

void hdt_dataplane_probe(struct hdt_dataplane *dp, const char *site, uint64_t bytes, int timeout_ms)
{
    struct hdt_peer *peer;

    hdt_dp_lock(dp);
    peer = hdt_peer_get(dp, site);
    if (peer->probe_out.active) {
        probe_end(peer, 0); /* the newer one counts */
    }
    peer->probe_out =
        (struct hdt_probe_out){.active = true,
                               .bytes = bytes < PROBE_BYTES_MAX ? bytes : PROBE_BYTES_MAX,
                               .begin_us = hdt_clock_now_us(),
                               .timeout_us = timeout_ms * HDT_US_PER_MS};
    peer->probe_out.deadline_us = probe_deadline_us(&peer->probe_out);
    if (peer->session == NULL || bytes == 0) {
        probe_end(peer, 0);
    } else {
        probe_ping(peer);
    }
    hdt_dp_unlock(dp);
}
