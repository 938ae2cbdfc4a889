/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_EDGE_RATE_H
#define HDT_GATEWAY_EDGE_RATE_H

/*
 * How fast frames get to a peer, also when the link is not full.
 *
 * A frame of a job is cut when there is room for it, and the peer says when it holds it whole. In
 * between lie one round trip and the time for which the frame had the way to itself: that begins
 * when its first byte could have arrived, or when the frame before it was whole, whichever is
 * later.
 *
 *     busy = have - max(cut + rtt, have of the frame before)
 *
 * Frames of less than 16 KiB say nothing and are left out, also as those before. Frames that follow
 * one another without a pause are one burst, and frames that travel beside each other on several
 * streams share it: its bytes by its busy time is a rate.
 *
 * Of the bursts in a window the rate is the one that half of the bytes were at least as fast as.
 * A processor that does not come at once can only make a burst longer, by four milliseconds or by
 * two hundred: where 220 kB take 2.5 ms, one of those was in every second second, and bytes by busy
 * time over the window said 60 or 170 Mbit/s instead of 700. On a link that is full the window is
 * one burst, and this is the average.
 *
 * What jobs need is this rate and not the kernel's: a burst shorter than the window in flight shows
 * TCP no more than burst by round trip.
 *
 * Plain arithmetic; the data plane's lock guards it.
 */
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_EDGE_RATE_BURSTS 64

struct hdt_edge_burst {
    double bytes, busy_us;
};

struct hdt_edge_rate {
    int64_t last_have_us;                               /* of a large frame to this peer */
    struct hdt_edge_burst bursts[HDT_EDGE_RATE_BURSTS]; /* of the window that runs */
    unsigned n_bursts;
    int64_t window_us;  /* began; 0: none runs */
    double bytes_per_s; /* of the last whole window; 0: there was none */
    int64_t at_us;      /* when that ended */
};

/* A frame of `bytes` on the wire, cut at `cut_us`, is whole at the peer. Its busy time, for a
 * hdt_codec_trial; 0: it says nothing. */
int64_t hdt_edge_rate_have(struct hdt_edge_rate *rate, int64_t cut_us, double bytes, int64_t rtt_us,
                           int64_t now_us);

/*
 * Does the gateway's codec pay on a flow? Tried, not derived: whether codec threads, the link or
 * the other gateway are the slowest shows in how much of a tensor gets there in its busy time, with
 * the codec and without. Each 16th frame goes the other way, and the way that is faster by a
 * twentieth is taken: by the median of its last frames, of which some waited for a processor.
 */
#define HDT_CODEC_TRIAL_FRAMES 7

struct hdt_codec_trial {
    double us_per_byte[2][HDT_CODEC_TRIAL_FRAMES]; /* of plain bytes, as they came; [1]: coded */
    unsigned n, n_seen[2];
    unsigned n_unpaid; /* chunks in a row that the codec did not make smaller: its user counts */
    bool is_off;
};

/* Shall the next frame be coded? */
bool hdt_codec_trial_next(struct hdt_codec_trial *trial);

/* A frame of so many plain bytes got there; `coded` as next said of it. */
void hdt_codec_trial_saw(struct hdt_codec_trial *trial, bool coded, double bytes, int64_t busy_us);

#ifdef __cplusplus
}
#endif
#endif /* HDT_GATEWAY_EDGE_RATE_H */
