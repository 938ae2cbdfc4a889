/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/dp.h"
#include "src/base/clock.h"

#include <string.h>

/*
 * Probes: fill all bulk streams for a while and let the receiver count (arrival.h). Over a slow
 * link it does not wait for all: what came in its share of the sender's deadline is an answer, too.
 * Filler travels when no chunk is ready, so that a probe never delays a job; then it says how much
 * is left over. The round trip is taken first: in front of the filler a ping waits for nothing.
 *
 * A path that has become another one is measured as it is. BBR would take half a minute to find ten
 * times the rate (a quarter more every eight round trips), so that streams forget theirs first. To
 * find 200 Mbit/s over 150 ms takes all of 8 MiB; so a part has rounds, until one finds no more.
 *
 * Where bursts could use one stream alone (burst.h), the first stream is filled first and then the
 * others, and the larger rate is the link's. In this order, and not all after one: the first
 * stream then knows the whole rate, and keeps it.
 */
#define PROBE_BYTES_MAX (1ull << 40)
#define PROBE_OTHERS_S  1 /* of filler at the first one's rate, for those that come second */
#define PROBE_LONG_RTTS                                                                            \
 20                       /* a round that takes as long has left TCP's search for the rate behind */
#define PROBE_NEXT_RTTS 4 /* of filler in the next one, at least */
#define PROBE_GROWN     1.15 /* more than in the round before: it is still being found */

static const uint8_t probe_filler[HDT_FRAME_MAX_PROBE];

/* Does this part of the probe use that stream? */
static bool probe_is_over(const struct hdt_conn *conn)
{
    const enum hdt_probe_part part = conn->peer->probe_out.part;

    return part == HDT_PROBE_ALL ||
           (conn == hdt_session_first_stream(conn->session)) == (part == HDT_PROBE_FIRST);
}

struct hdt_out *hdt_probe_next_out(struct hdt_conn *conn, int64_t now_us)
{
    struct hdt_peer *peer = conn->peer;
    struct hdt_probe_out *probe = &peer->probe_out;
    struct hdt_out *out;
    uint32_t len;

    if (!probe->has_begun || probe->left == 0 || peer->session != conn->session ||
        !probe_is_over(conn)) {
        return NULL;
    }
    conn->rate_wait_us = hdt_txq_rate_wait(peer->dp, now_us);
    out = conn->rate_wait_us == 0 ? hdt_conn_small(conn, HDT_FRAME_PROBE, NULL) : NULL;
    if (out == NULL) {
        return NULL;
    }
    len = probe->left < HDT_FRAME_MAX_PROBE ? (uint32_t)probe->left : HDT_FRAME_MAX_PROBE;
    probe->left -= len;
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
    hdt_arrival_rate(&probe->arrival, &bytes, &us);
    body = json_object();
    json_object_set_new(body, "id", hdt_msg_u64_hex(probe->id));
    json_object_set_new(body, "bytes", json_integer((json_int_t)bytes));
    json_object_set_new(body, "us", json_integer(us));
    msg = hdt_msg_new("probe.is", NULL, body);
    (void)hdt_conn_send_msg(peer->session->conns[0], msg, NULL); /* else the probe times out */
    json_decref(msg);
}

void hdt_probe_received(struct hdt_conn *conn, const struct hdt_frame *frame, int64_t now_us)
{
    struct hdt_peer *peer = conn->peer;
    struct hdt_probe_in *probe = &peer->probe_in;

    if (frame->seq == probe->id_before) {
        return;
    }
    if (probe->id != frame->seq) {
        *probe = (struct hdt_probe_in){.id = frame->seq,
                                       .id_before = probe->id,
                                       .total = frame->offset,
                                       .first_us = now_us,
                                       .cpu_ns = hdt_clock_process_cpu_ns()};
    }
    hdt_arrival_add(&probe->arrival, frame->coded_len, now_us);
    if (!probe->is_answered &&
        (probe->arrival.n_bytes >= probe->total || probe_is_late(probe, now_us, peer))) {
        probe_answer(peer, probe);
    }
}

/* The shortest of the last round trips; of a session, the shortest may be of another route. */
static int64_t probe_rtt_us(const struct hdt_peer *peer)
{
    int64_t best_us = 0;

    for (size_t i = 0; i < HDT_DP_RTTS; i++) {
        const int64_t rtt_us = peer->last_rtts_us[i];

        if (rtt_us > 0 && (best_us == 0 || rtt_us < best_us)) {
            best_us = rtt_us;
        }
    }
    return best_us > 0 ? best_us : peer->min_rtt_us;
}

static void probe_end(struct hdt_peer *peer, double bytes_per_s)
{
    peer->probe_out.active = peer->probe_out.has_begun = false;
    hdt_dpevent_probed(peer->dp, peer->site, bytes_per_s, (double)probe_rtt_us(peer) * 1e-6);
}

static void probe_begin_round(struct hdt_peer *peer, uint64_t bytes)
{
    struct hdt_probe_out *probe = &peer->probe_out;
    const struct hdt_session *session = peer->session;
    unsigned i;

    probe->has_begun = true;
    probe->id = hdt_dp_random(peer->dp);
    probe->total = bytes;
    probe->left = bytes;
    probe->cpu_ns = hdt_clock_process_cpu_ns();
    for (i = 1; i <= session->n_streams; i++) {
        struct hdt_conn *conn = session->conns[i];

        if (conn != NULL && conn->state == HDT_CONN_UP && probe_is_over(conn)) {
            conn->forget_requested = probe->round_bytes_per_s == 0;
            hdt_conn_kick(conn);
        }
    }
}

static void probe_begin(struct hdt_peer *peer, enum hdt_probe_part part, uint64_t bytes)
{
    peer->probe_out.part = part;
    peer->probe_out.round_bytes_per_s = 0;
    probe_begin_round(peer, bytes);
}

/* The probe's first filler: a ping that leaves in front of it waits for nothing. */
void hdt_probe_pong(struct hdt_peer *peer)
{
    const struct hdt_probe_out *probe = &peer->probe_out;

    if (probe->active && !probe->has_begun) {
        probe_begin(peer, hdt_session_may_use_one(peer->session) ? HDT_PROBE_FIRST : HDT_PROBE_ALL,
                    probe->total);
    }
}

/* A round that was short against the round trip measured how TCP finds the rate: another one, as
 * long as that finds more. */
static bool probe_go_on(struct hdt_peer *peer, double bytes_per_s)
{
    struct hdt_probe_out *probe = &peer->probe_out;
    const double rtt_s = 1e-6 * (double)probe_rtt_us(peer);
    const double next = PROBE_NEXT_RTTS * rtt_s * bytes_per_s;
    const bool has_grown = bytes_per_s > PROBE_GROWN * probe->round_bytes_per_s;

    if (bytes_per_s > probe->round_bytes_per_s) {
        probe->round_bytes_per_s = bytes_per_s;
    }
    if (!has_grown || (double)probe->total > PROBE_LONG_RTTS * rtt_s * bytes_per_s) {
        return false;
    }
    probe_begin_round(peer, next > (double)probe->total ? (uint64_t)next : probe->total);
    return true;
}

/* One round is answered: another, the next part, or the end. */
static void probe_answered(struct hdt_peer *peer, double bytes_per_s)
{
    struct hdt_probe_out *probe = &peer->probe_out;
    double best, most;

    if (probe_go_on(peer, bytes_per_s)) {
        return;
    }
    best = probe->round_bytes_per_s;
    most = PROBE_OTHERS_S * best;
    if (probe->part == HDT_PROBE_FIRST) {
        probe->first_bytes_per_s = best;
        probe_begin(peer, HDT_PROBE_OTHERS,
                    most < (double)probe->total ? (uint64_t)most + 1 : probe->total);
        return;
    }
    if (probe->part == HDT_PROBE_OTHERS) {
        hdt_burst_probed(&peer->burst, probe->first_bytes_per_s, best);
    }
    peer->goodput_bytes_per_s = best > probe->first_bytes_per_s ? best : probe->first_bytes_per_s;
    probe_end(peer, peer->goodput_bytes_per_s);
}

bool hdt_probe_msg(struct hdt_peer *peer, const json_t *msg)
{
    struct hdt_probe_out *probe = &peer->probe_out;
    const json_t *body = hdt_msg_body(msg);
    double bytes, us;

    if (strcmp(hdt_msg_type(msg), "probe.is") != 0) {
        return false;
    }
    if (probe->active && hdt_msg_hex_u64(json_object_get(body, "id")) == probe->id) {
        bytes = (double)json_integer_value(json_object_get(body, "bytes"));
        us = (double)json_integer_value(json_object_get(body, "us"));
        if (bytes > 0 && us > 0 && peer->session != NULL) {
            peer->dp->probe_send_s_per_byte = 1e-9 *
                                              (double)(hdt_clock_process_cpu_ns() - probe->cpu_ns) /
                                              (double)(probe->total - probe->left);
            probe_answered(peer, bytes * 1e6 / us);
        } else {
            probe_end(peer, 0);
        }
    }
    return true;
}

/* What was answered until then counts. Where nothing was, nothing came there: of a slow link, what
 * came is an answer. */
void hdt_probe_tick(struct hdt_peer *peer, int64_t now_us)
{
    const struct hdt_probe_out *probe = &peer->probe_out;

    if (probe->active && now_us >= probe->deadline_us) {
        probe_end(peer, probe->round_bytes_per_s > probe->first_bytes_per_s
                            ? probe->round_bytes_per_s
                            : probe->first_bytes_per_s);
    }
}

void hdt_probe_session_lost(struct hdt_peer *peer)
{
    if (peer->probe_out.active) {
        probe_end(peer, 0); /* filler is not sent again: the sum would never be there */
    }
}

/* The round trip of now: what was seen before may be of another route. */
static void probe_ping(struct hdt_peer *peer)
{
    struct hdt_conn *conn = peer->session->conns[0];

    memset(peer->last_rtts_us, 0, sizeof(peer->last_rtts_us));
    if (conn != NULL) {
        conn->ping_pending = true;
        hdt_conn_kick(conn);
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
                               .total = bytes < PROBE_BYTES_MAX ? bytes : PROBE_BYTES_MAX,
                               .deadline_us = hdt_clock_now_us() + timeout_ms * HDT_US_PER_MS};
    if (peer->session == NULL || bytes == 0) {
        probe_end(peer, 0);
    } else {
        probe_ping(peer);
    }
    hdt_dp_unlock(dp);
}
