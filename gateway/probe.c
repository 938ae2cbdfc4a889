/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/dp.h"
#include "src/base/clock.h"

#include <string.h>

/*
 * Probes: fill all bulk streams for a while and let the receiver count. The first quarter is TCP
 * finding its rate and is not timed. Over a slow link the receiver does not wait for the rest: what
 * came in its share of the sender's deadline is an answer, too. Filler travels when no chunk is
 * ready, so that a probe never delays a job; then it says how much is left over.
 */
#define PROBE_BYTES_MAX (1ull << 40)

static const uint8_t probe_filler[HDT_FRAME_MAX_PROBE];

struct hdt_out *hdt_probe_next_out(struct hdt_conn *conn, int64_t now_us)
{
    struct hdt_peer *peer = conn->peer;
    struct hdt_probe_out *probe = &peer->probe_out;
    struct hdt_out *out;
    uint32_t len;

    if (!probe->active || probe->left == 0 || peer->session != conn->session) {
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
           probe->n_bytes > probe->mark_bytes;
}

void hdt_probe_received(struct hdt_conn *conn, const struct hdt_frame *frame, int64_t now_us)
{
    struct hdt_peer *peer = conn->peer;
    struct hdt_probe_in *probe = &peer->probe_in;
    json_t *msg;

    if (probe->id != frame->seq) {
        memset(probe, 0, sizeof(*probe));
        probe->id = frame->seq;
        probe->total = frame->offset;
        probe->first_us = now_us;
        probe->cpu_ns = hdt_clock_process_cpu_ns();
    }
    probe->n_bytes += frame->coded_len;
    if (probe->mark_us == 0 &&
        (probe->n_bytes >= probe->total / 4 ||
         now_us - probe->first_us >= peer->dp->conf.deadlines.probe_us / 5)) {
        probe->mark_us = now_us;
        probe->mark_bytes = probe->n_bytes;
    }
    if (probe->is_answered ||
        (probe->n_bytes < probe->total && !probe_is_late(probe, now_us, peer))) {
        return;
    }
    probe->is_answered = true;
    peer->dp->probe_recv_s_per_byte =
        1e-9 * (double)(hdt_clock_process_cpu_ns() - probe->cpu_ns) / (double)probe->n_bytes;
    if (peer->session != NULL && peer->session->conns[0] != NULL) {
        json_t *body = json_object();

        json_object_set_new(body, "id", hdt_msg_u64_hex(probe->id));
        json_object_set_new(body, "bytes",
                            json_integer((json_int_t)(probe->n_bytes - probe->mark_bytes)));
        json_object_set_new(body, "us", json_integer(now_us - probe->mark_us));
        msg = hdt_msg_new("probe.is", NULL, body);
        (void)hdt_conn_send_msg(peer->session->conns[0], msg, NULL); /* then the probe times out */
        json_decref(msg);
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
    peer->probe_out.active = false;
    hdt_dpevent_probed(peer->dp, peer->site, bytes_per_s, (double)probe_rtt_us(peer) * 1e-6);
}

bool hdt_probe_msg(struct hdt_peer *peer, const json_t *msg)
{
    const json_t *body = hdt_msg_body(msg);
    double bytes, us;

    if (strcmp(hdt_msg_type(msg), "probe.is") != 0) {
        return false;
    }
    if (peer->probe_out.active &&
        hdt_msg_hex_u64(json_object_get(body, "id")) == peer->probe_out.id) {
        bytes = (double)json_integer_value(json_object_get(body, "bytes"));
        us = (double)json_integer_value(json_object_get(body, "us"));
        if (bytes > 0 && us > 0) {
            peer->goodput_bytes_per_s = bytes * 1e6 / us;
            peer->dp->probe_send_s_per_byte =
                1e-9 * (double)(hdt_clock_process_cpu_ns() - peer->probe_out.cpu_ns) /
                (double)(peer->probe_out.total - peer->probe_out.left);
            probe_end(peer, peer->goodput_bytes_per_s);
        } else {
            probe_end(peer, 0);
        }
    }
    return true;
}

void hdt_probe_tick(struct hdt_peer *peer, int64_t now_us)
{
    if (peer->probe_out.active && now_us >= peer->probe_out.deadline_us) {
        probe_end(peer, 0); /* nothing came there: of a slow link, what came is an answer */
    }
}

void hdt_probe_session_lost(struct hdt_peer *peer)
{
    if (peer->probe_out.active) {
        probe_end(peer, 0); /* filler is not sent again: the sum would never be there */
    }
}

/* The round trip of now: what was seen before may be of another route, and a ping that leaves in
 * front of the filler waits for nothing. */
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
    unsigned i;

    hdt_dp_lock(dp);
    peer = hdt_peer_get(dp, site);
    if (peer->probe_out.active) {
        probe_end(peer, 0); /* the newer one counts */
    }
    peer->probe_out.active = true;
    peer->probe_out.id = hdt_dp_random(dp);
    peer->probe_out.total = bytes < PROBE_BYTES_MAX ? bytes : PROBE_BYTES_MAX;
    peer->probe_out.left = peer->probe_out.total;
    peer->probe_out.cpu_ns = hdt_clock_process_cpu_ns();
    peer->probe_out.deadline_us = hdt_clock_now_us() + timeout_ms * HDT_US_PER_MS;
    if (peer->session == NULL || bytes == 0) {
        probe_end(peer, 0);
    } else {
        probe_ping(peer);
        for (i = 1; i <= peer->session->n_streams; i++) {
            if (peer->session->conns[i] != NULL) {
                hdt_conn_kick(peer->session->conns[i]);
            }
        }
    }
    hdt_dp_unlock(dp);
}
