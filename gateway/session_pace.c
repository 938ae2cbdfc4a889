/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/dp.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

/*
 * From what the kernel knows of the bulk streams to the rate that it is to hold them to.
 *
 * Each stream's thread reads TCP_INFO at its tick, and sets SO_MAX_PACING_RATE when it is told to:
 * the kernel then spaces single packets, where timers of ours would let go of whole chunks, each of
 * them a queue of ten milliseconds at 200 Mbit/s. The pacer (pacer.h) decides once a window, for
 * all bulk streams of a peer together. The stream that is kept for urgent frames is held back
 * by measurements alone (probe.c).
 *
 * A window says what the path carries only when all of these streams had work through all of it
 * (shortage.h), and when they were the same streams from its begin to its end.
 */

void hdt_session_set_pace(struct hdt_conn *conn, double bytes_per_s)
{
    const unsigned long rate = bytes_per_s > 0 ? (unsigned long)bytes_per_s : ~0ul;

    conn->pace_set = bytes_per_s;
    if (conn->dp->conf.stepped == NULL &&
        setsockopt(hdt_stream_fd(conn->stream), SOL_SOCKET, SO_MAX_PACING_RATE, &rate,
                   sizeof(rate)) != 0) {
        hdt_log_warn_limited(60, "cannot set SO_MAX_PACING_RATE: %s", strerror(errno));
    }
}

/* The bulk streams that are up and carry what there is, but for the one that is kept for something
 * urgent. */
static unsigned pace_streams(const struct hdt_session *session, const struct hdt_conn *kept,
                             struct hdt_conn **conns)
{
    const struct hdt_conn *one = hdt_session_burst_stream(session);
    unsigned n = 0, i;

    for (i = 1; i <= hdt_session_n_used(session); i++) {
        struct hdt_conn *conn = session->conns[i];

        if (conn != NULL && conn->state == HDT_CONN_UP && conn != kept &&
            (one == NULL || conn == one) && conn->link.tcp.rtt_us > 0) {
            conns[n++] = conn;
        }
    }
    return n;
}

static void pace_begin_window(struct hdt_session *session, const struct hdt_conn *kept, unsigned n,
                              int64_t now_us)
{
    struct hdt_peer *peer = session->peer;
    unsigned i;

    peer->pace_window_us = now_us;
    peer->n_paced = n;
    peer->kept = kept;
    for (i = 1; i <= session->n_streams; i++) {
        struct hdt_conn *conn = session->conns[i];

        if (conn != NULL) {
            conn->link.paced_from_bytes = conn->link.tcp.delivered_bytes;
            conn->link.paced_from_short_us = hdt_shortage_sum_us(&conn->link.shortage, now_us);
        }
    }
}

static bool pace_is_loaded(struct hdt_conn **conns, unsigned n, const struct hdt_conn *kept,
                           const struct hdt_pacer_window *window, int64_t now_us)
{
    const struct hdt_peer *peer = conns[0]->peer;
    int64_t short_us = 0;
    unsigned i;

    for (i = 0; i < n; i++) {
        short_us += hdt_shortage_sum_us(&conns[i]->link.shortage, now_us) -
                    conns[i]->link.paced_from_short_us;
    }
    return window->bytes_per_s > 0 && n == peer->n_paced && kept == peer->kept &&
           hdt_shortage_is_small(short_us, n, window->us);
}

/* Fills the window's figures, and each stream's rate. Streams share the bottleneck, so that the
 * shortest round trip of any of them is the path's. */
static void pace_measure(struct hdt_conn **conns, unsigned n, struct hdt_pacer_window *window,
                         double *delivered)
{
    double sum = 0;
    unsigned i;

    for (i = 0; i < n; i++) {
        const struct hdt_tcp_stats *tcp = &conns[i]->link.tcp;

        delivered[i] = (double)(tcp->delivered_bytes - conns[i]->link.paced_from_bytes) * 1e6 /
                       (double)window->us;
        window->bytes_per_s += delivered[i];
        sum += delivered[i] * (double)tcp->rtt_us;
        if (window->rtt_us == 0 || tcp->min_rtt_us < window->rtt_us) {
            window->rtt_us = tcp->min_rtt_us;
        }
    }
    if (window->bytes_per_s > 0) {
        window->queue_us = (int64_t)(sum / window->bytes_per_s) - window->rtt_us;
    }
}

static void pace_hold(struct hdt_conn *conn, double rate)
{
    if (conn->pace != rate) {
        conn->pace = rate;
        hdt_conn_kick(conn);
    }
}

/* What a stream delivers while it is short of work says nothing of what it could. Then each may use
 * all of the rate: of a tensor's last chunks the others have none, and would keep their shares. */
static void pace_apply(struct hdt_conn **conns, unsigned n, double rate, const double *delivered,
                       bool is_loaded)
{
    double caps[HDT_DP_STREAMS_MAX];
    unsigned i;

    for (i = 0; i < n; i++) {
        caps[i] = is_loaded ? conns[i]->pace : rate;
    }
    if (rate > 0 && is_loaded) {
        hdt_pacer_split(rate, delivered, caps, n);
    }
    for (i = 0; i < n; i++) {
        pace_hold(conns[i], rate > 0 ? caps[i] : 0);
    }
}

void hdt_session_pace(struct hdt_session *session, int64_t now_us)
{
    struct hdt_peer *peer = session->peer;
    struct hdt_conn *kept = hdt_txq_urgent_conn(peer, now_us), *conns[HDT_DP_STREAMS_MAX];
    const unsigned n = pace_streams(session, kept, conns);
    struct hdt_pacer_window window = {.us = now_us - peer->pace_window_us};
    double delivered[HDT_DP_STREAMS_MAX];

    if (kept != NULL) {
        pace_hold(kept, 0);
    }
    if (n == 0 || peer->pace_window_us == 0) {
        pace_begin_window(session, kept, n, now_us);
        return;
    }
    if (window.us < hdt_pacer_window_us(peer->min_rtt_us)) {
        return;
    }
    pace_measure(conns, n, &window, delivered);
    window.is_loaded = pace_is_loaded(conns, n, kept, &window, now_us);
    /* What is not known yet cannot be searched for at a rate that is held back. */
    window.is_urgent = kept != NULL && peer->has_tuner && !hdt_tuner_is_new(&peer->tuner);
    pace_apply(conns, n, hdt_pacer_window(&peer->pacer, &window), delivered, window.is_loaded);
    hdt_session_tune(session, &window, now_us);
    pace_begin_window(session, kept, n, now_us);
}
