/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/dp.h"
#include "src/base/clock.h"

#include <string.h>

/*
 * What those do who were let in and do not keep to the protocol, or keep to it far too fast.
 *
 * A wrong record is dropped or closes its stream, as doc/protocol.md says; here it is counted by
 * cause and said once a minute for each peer and cause. A flood of records, be they right or wrong,
 * is not dropped but read more slowly: each connection has an account of units that fills with
 * time, each record costs some, and who has spent all is read on when there is something on it
 * again. TCP then slows the sender. So a peer or a client that floods costs an I/O thread and the
 * main thread a bounded share, whatever it sends, and loses nothing if it meant well. Chunks that
 * are taken cost nothing: their credit bounds them. What is of no use costs much more than its
 * work, so that a thousand of it a second is all that is looked at.
 */
#define MISDEED_LOG_S 60

/* A connection's account, in units of about a microsecond of work for a small record. */
#define UNITS_PER_S ((int64_t)50000)
#define UNITS_MAX   (4 * UNITS_PER_S / 10)

void hdt_peer_bad_chunk(struct hdt_peer *peer, const struct hdt_frame *chunk,
                        enum hdt_bad_chunk cause, const char *what)
{
    char more[HDT_LOG_LEFT_OUT_CAP];
    uint64_t n_more;

    peer->total.bad_chunks++;
    peer->total.bad_by_cause[cause]++;
    if (hdt_log_limit_pass(&peer->bad_log[cause], MISDEED_LOG_S, &n_more)) {
        hdt_log_warn("dropped a chunk of site %s: %s (job %u, epoch %u, flow %u, frame %llu)%s",
                     peer->site, what, chunk->job, chunk->epoch, chunk->flow,
                     (unsigned long long)chunk->seq, hdt_log_left_out(n_more, more));
    }
}

void hdt_peer_misdeed(struct hdt_peer *peer, enum hdt_misdeed misdeed, const char *what)
{
    char more[HDT_LOG_LEFT_OUT_CAP];
    uint64_t n_more;

    peer->total.misdeeds[misdeed]++;
    if (hdt_log_limit_pass(&peer->misdeed_log[misdeed], MISDEED_LOG_S, &n_more)) {
        hdt_log_warn("site %s does not keep to the protocol: %s%s", peer->site, what,
                     hdt_log_left_out(n_more, more));
    }
}

/* ---- floods ---- */

int hdt_record_cost(const struct hdt_frame *frame)
{
    switch ((enum hdt_frame_kind)frame->kind) {
    case HDT_FRAME_MSG:
        return 100 + (int)(frame->coded_len / 256); /* decoded, and handled by the main thread */
    case HDT_FRAME_PING:
    case HDT_FRAME_PONG:
        return 100; /* two a second are said */
    case HDT_FRAME_QUERY:
        return 25; /* each has an answer */
    case HDT_FRAME_POOL:
        return 500; /* memory is mapped */
    case HDT_FRAME_PROBE:
        return 0; /* by the bytes: the link's own measure */
    default:
        return 1;
    }
}

int hdt_dropped_cost(const struct hdt_frame *frame, bool is_bad)
{
    const int by_len = frame->kind == HDT_FRAME_CHUNK ? (int)(frame->coded_len / 1024) : 0;

    return is_bad ? 100 + by_len : 10 + by_len / 8;
}

static void misdeed_note_flood(struct hdt_conn *conn)
{
    if (conn->kind != HDT_CONN_WAN) {
        hdt_log_warn_limited(MISDEED_LOG_S, "client '%s' floods this gateway: it is read slower",
                             conn->client != NULL ? conn->client->name : conn->address);
        return;
    }
    hdt_peer_misdeed(conn->peer, HDT_MISDEED_FLOOD,
                     "it floods a stream with small records, which is read slower now");
}

void hdt_conn_charge(struct hdt_conn *conn, int units)
{
    conn->spent += units;
    if (conn->spent < UNITS_MAX || conn->state != HDT_CONN_UP || conn->is_paused) {
        return;
    }
    conn->is_paused = true;
    hdt_stream_pause(conn->stream);
    hdt_dp_lock(conn->dp);
    misdeed_note_flood(conn);
    hdt_dp_unlock(conn->dp);
}

void hdt_conn_earn(struct hdt_conn *conn, int64_t now_us)
{
    conn->spent -= (now_us - conn->earned_us) * UNITS_PER_S / HDT_US_PER_S;
    conn->earned_us = now_us;
    if (conn->spent < 0) {
        conn->spent = 0;
    }
    if (conn->is_paused && conn->spent < UNITS_MAX) {
        conn->is_paused = false;
        hdt_stream_resume(conn->stream);
    }
}
