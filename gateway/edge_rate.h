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

struct hdt_edge_busy {
    int64_t us;   /* 0: it says nothing */
    bool follows; /* the frame before came after this one could have begun */
};

/* A frame of `bytes` on the wire, cut at `cut_us`, is whole at the peer. Its busy time is for a
 * hdt_codec_trial. */
struct hdt_edge_busy hdt_edge_rate_have(struct hdt_edge_rate *rate, int64_t cut_us, double bytes,
                                        int64_t rtt_us, int64_t now_us);

/*
 * Does the gateway's codec pay on a flow? Tried, not derived: whether codec threads, the link or
 * the other gateway are the slowest shows in how much of a tensor gets there in its busy time, with
 * the codec and without. One frame of 16 goes the other way, and the way that is faster by a
 * twentieth is taken, by the median of the last tries: each is compared with the median of what
 * went the usual way just before, since links change, and some of all frames wait for a processor.
 *
 * On a link that is full for long, frames that share its streams come in any order, two at once and
 * then none, so that the time from one to the next says little of either. There eight in a row of
 * 128 go the other way (of 64 at first), and eight together are compared.
 */
#define HDT_CODEC_TRIAL_FRAMES 7

struct hdt_codec_trial {
    double usual[HDT_CODEC_TRIAL_FRAMES];  /* us a plain byte, of the way that most take */
    double ratios[HDT_CODEC_TRIAL_FRAMES]; /* of tries: that time coded by that plain */
    double usual_then;                     /* the median of `usual` at the last try; 0: none yet */
    double sum_us[2], sum_bytes[2];        /* on a full link, of less than eight; [1]: coded */
    unsigned n_sum[2];
    unsigned n, n_usual, n_ratios;
    unsigned n_follow; /* frames that followed one another, less those that did not */
    unsigned era;      /* that frames are cut in: others are no samples of it */
    unsigned n_unpaid; /* chunks in a row that the codec did not make smaller: its user counts */
    bool is_off, is_full;
};

/* Shall the next frame be coded? */
bool hdt_codec_trial_next(struct hdt_codec_trial *trial);

/* A frame of so many plain bytes got there; `coded` as next said of it, `era` as it was then. */
void hdt_codec_trial_saw(struct hdt_codec_trial *trial, bool coded, unsigned era, double bytes,
                         struct hdt_edge_busy busy);

#ifdef __cplusplus
}
#endif
#endif /* HDT_GATEWAY_EDGE_RATE_H */
