/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_FRAME_COST_H
#define HDT_GATEWAY_FRAME_COST_H

/*
 * CPU time of a frame beside that of its bytes and its codec: waking up, looking up, telling worker
 * and peer. What the process took while frames of jobs passed, less what bytes and codec are known
 * to take, shared out over the frames. Arithmetic over what the caller counted; no clock, no lock.
 */
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Totals since the process began; those that fall belong to connections and flows that ended. */
struct hdt_frame_work {
    int64_t cpu_ns;                  /* of the whole process */
    uint64_t codec_ns;               /* of that, by the lossless codec */
    uint64_t sent_bytes, recv_bytes; /* on the sockets to other gateways */
    uint64_t n_frames;               /* sent and received by workers of this site */
};

struct hdt_frame_cost {
    struct hdt_frame_work last;
    double over_s, n_frames; /* decaying sums */
};

/* Once a second or so; rates as the probes of links have them, 0: not known, and nothing is learnt.
 */
void hdt_frame_cost_saw(struct hdt_frame_cost *cost, const struct hdt_frame_work *now,
                        double send_s_per_byte, double recv_s_per_byte);

/* Seconds of a frame; 0: too few have passed. */
double hdt_frame_cost_s(const struct hdt_frame_cost *cost);

#ifdef __cplusplus
}
#endif
#endif /* HDT_GATEWAY_FRAME_COST_H */
