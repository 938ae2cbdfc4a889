/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_LINKINFO_H
#define HDT_GATEWAY_LINKINFO_H

/*
 * What the kernel knows of the bulk streams to a peer, and what their time goes for. Inside of the
 * data plane, like dp.h: "L:" is called with its lock held. Pacer and tuner go by the figures of
 * the streams; sums and shares are for people.
 */
#include "gateway/dataplane.h"
#include "gateway/shortage.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hdt_conn;
struct hdt_peer;

/* Begin of the names of congestion controls that keep a rate, and keep it over a pause. */
#define HDT_BBR "bbr"

/* What a socket is held to beside the pacer's rate. */
enum hdt_hold {
    HDT_HOLD_AS_IS,  /* as before */
    HDT_HOLD_NOT,    /* nothing */
    HDT_HOLD_SEARCH, /* a little more than is known, while TCP searches for the path's rate */
};

/* Of one connection. */
struct hdt_stream_link {
    struct hdt_tcp_stats tcp; /* as of the last tick; stream 0: none was taken */
    int64_t taken_us;
    uint64_t window_acked;        /* at the begin of the peer's window */
    struct hdt_shortage shortage; /* it asked for chunks, and there were none for it */
    uint64_t paced_from_bytes;    /* tcp.delivered_bytes when the pacer's window began */
    int64_t paced_from_short_us;  /* sum of its shortages then */
};

/* Of one peer: sums over its streams, those that are gone included, and windows of a second. */
struct hdt_peer_link {
    struct hdt_link_stats stats;
    struct hdt_link_stats before; /* at the begin of the window */
    uint64_t acked_bytes, before_acked_bytes;
    uint64_t arrived_bytes, before_arrived_bytes; /* by delivered_bytes of the streams */
    int64_t used_us, before_used_us;              /* time in which any stream was in use */
    int64_t used_to_us;                           /* counted up to here */
    int64_t window_us;
    double buffer_max; /* what the kernel gives a socket to send from at most; 0: unknown */
};

/* On its thread, without the lock, every tick. false: there is no TCP below, or not yet. */
bool hdt_linkinfo_read(const struct hdt_conn *conn, struct hdt_tcp_stats *tcp);
/* On its thread, without the lock: bytes a second that BBR has found while it still searches for
 * more, at nearly three times that rate; 0: it does not, or this is another congestion control. */
double hdt_linkinfo_search_rate(const struct hdt_conn *conn);
/* L: what was read; `queued_bytes` wait in the stream above it. */
void hdt_linkinfo_note(struct hdt_conn *conn, const struct hdt_tcp_stats *tcp, size_t queued_bytes,
                       int64_t now_us);
/* L: every tick. */
void hdt_linkinfo_tick(struct hdt_peer *peer, int64_t now_us);
/* L: for a snapshot. */
void hdt_linkinfo_fill(const struct hdt_peer *peer, int64_t now_us, struct hdt_link_stats *stats);

#endif /* HDT_GATEWAY_LINKINFO_H */
