/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_PROBE_H
#define HDT_GATEWAY_PROBE_H

/* Inside of the data plane: a link's measurement, begun by hdt_dataplane_probe. All under its
 * lock. */
#include "gateway/arrival.h"
#include "gateway/rounds.h"
#include "src/core/msg.h"
#include "src/core/frame.h"

#include <stdbool.h>
#include <stdint.h>

struct hdt_conn;
struct hdt_out;
struct hdt_peer;

/* Flag of a PROBE record: streams have found a rate, so that its beginning is timed, too. */
#define HDT_PROBE_WARM 1
/* Of the number of a PROBE record: the round, of all those of one probe. */
#define HDT_PROBE_ROUND_MASK 63ull

enum hdt_probe_part {
    HDT_PROBE_ALL,    /* streams together: the whole probe */
    HDT_PROBE_FIRST,  /* the one that bursts would use (burst.h), alone */
    HDT_PROBE_OTHERS, /* without it */
};

struct hdt_probe_out {
    bool active, has_begun; /* before it has, the round trip is taken */
    enum hdt_probe_part part;
    uint64_t bytes;           /* of a part's first round */
    uint64_t id, total, left; /* of this round */
    int n_pongs;              /* before it has begun */
    int64_t rtt_us;           /* the shortest since then; what was before may be another route's */
    int64_t cpu_ns;           /* of the process, when this round began */
    int64_t begin_us, timeout_us;
    int64_t deadline_us;      /* of this round, or of the round trip */
    struct hdt_rounds rounds; /* of this part */
    double first_bytes_per_s; /* what HDT_PROBE_FIRST gave */
};

struct hdt_probe_in {
    uint64_t id, total;
    uint64_t id_before; /* of the last round of the probe before: some of it may come late */
    struct hdt_arrival arrival;
    int64_t first_us, cpu_ns;
    bool is_warm, is_answered;
};

struct hdt_out *hdt_probe_next_out(struct hdt_conn *conn, size_t queued_bytes, int64_t now_us);
/* A PROBE record came. */
void hdt_probe_received(struct hdt_conn *conn, const struct hdt_frame *frame, int64_t now_us);
/* true: the message was an answer to a probe and is dealt with. */
bool hdt_probe_msg(struct hdt_peer *peer, const json_t *msg);
/* A round trip to the peer was measured. */
void hdt_probe_pong(struct hdt_peer *peer, int64_t rtt_us);
void hdt_probe_tick(struct hdt_peer *peer, int64_t now_us);
/* The peer's session is over; after its event. */
void hdt_probe_session_lost(struct hdt_peer *peer);

#endif /* HDT_GATEWAY_PROBE_H */
