/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_FRAME_COST_H
#define HDT_GATEWAY_FRAME_COST_H

/*
 * CPU time of a frame beside that of its bytes and its codec: waking up, looking up, telling worker
 * and peer. What the process took while frames of jobs passed, less what bytes and codec are known
 * to take, shared out over the frames, large and small; the median of the last windows, so that
 * what else the gateway does now and then (plans, pages, a measurement) is not charged to them.
 * Arithmetic over what the caller counted; no clock, no lock.
 */
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_FRAME_COST_WINDOWS 15

/* Sums so far. Those of connections and flows that ended are no longer in them: a window in which
 * one falls says nothing. */
struct hdt_frame_work {
    int64_t cpu_ns;                  /* of the whole process */
    uint64_t codec_ns;               /* of that, by the lossless codec */
    uint64_t sent_bytes, recv_bytes; /* on the sockets to other gateways */
    uint64_t n_frames;               /* sent and received by workers of this site */
    uint64_t n_strangers;            /* turned away: nor does one with more of them */
};

struct hdt_frame_cost {
    struct hdt_frame_work last;
    double frame_s[HDT_FRAME_COST_WINDOWS]; /* a ring */
    unsigned n;                             /* windows so far */
};

/* Once a second or so; rates as the probes of links have them, 0: not known, and nothing is learnt.
 */
void hdt_frame_cost_saw(struct hdt_frame_cost *cost, const struct hdt_frame_work *now,
                        double send_s_per_byte, double recv_s_per_byte);

/* Seconds of a frame; 0: too few windows. */
double hdt_frame_cost_s(const struct hdt_frame_cost *cost);

#ifdef __cplusplus
}
#endif
#endif /* HDT_GATEWAY_FRAME_COST_H */
