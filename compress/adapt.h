/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_COMPRESS_ADAPT_H
#define HDT_COMPRESS_ADAPT_H

/*
 * Which codec an edge should use now: the one with the least time of a step whose error is within
 * the budget. Arithmetic over figures that the caller measured; it keeps nothing, asks no clock and
 * gives the same answer for the same figures, so that what a run decided can be worked out again.
 *
 * A frame of S bytes of tensor passes five stations. The sending worker encodes it (S / E), its
 * gateway codes it (F / e, of the frame's F bytes), the link carries it (w = F / ratio bytes), the
 * other gateway decodes it, the other worker, too. A worker's codec runs in the thread that
 * computes, so its time is added to that of its arithmetic; a gateway's runs beside the link, chunk
 * by chunk. Where a gateway has no processor that nobody computes on, a second of its CPU time
 * holds up the worker beside it by a share of one, as in the planner (hdt_cost_gateway_share); it
 * needs CPU time for its codec, t threads of it, and for each byte on the wire.
 *
 *     held_src = share_src (t F / e + w send_s_per_byte)
 *     held_dst = share_dst (t F / d + w recv_s_per_byte)
 *     src      = compute_src + S / E + held_src
 *     dst      = compute_dst + S / D + held_dst
 *     crossing = (F / e + F / d) / chunks + max(w / goodput, F / e (1 - 1 / chunks))
 *     alone    = S / E + crossing + rtt / 2 + S / D
 *
 * The first chunk is coded before its first byte leaves and the last is decoded after its last byte
 * came. Gateways leave their codec out where a frame crosses faster without it (edge_rate.h of the
 * gateway tries): then w is F, and e and d take no time. The planner counts with the same crossing.
 *
 * In a full pipeline the slowest station sets the pace. Or it is not full: a stage does no more
 * than n forwards (the plan's warm-up, and one) before the first of them has come back as a
 * gradient. That turn takes what both workers and the stages behind them compute, the frame's way,
 * and its gradient's way back (or the other way round), which has a codec of its own: it is taken
 * to be as long as this way is with the codec in use. With m frames in a step, the first of which
 * passes the stations in turn,
 *
 *     turn   = src + dst + beyond + (alone - S / E - S / D) + alone of the codec in use
 *     pace   = max(src, F / e, w / goodput, F / d, dst, turn / n)
 *     step_s = (m - 1) pace + alone
 *
 * For one station after another of a link without arithmetic beside it this is the usual
 * goodput = min(codec rate, link x ratio): a codec has its whole gain on links slower than
 * rate / ratio, and none on links faster than rate.
 */
#include "compress/codec.h"
#include "compress/spec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_ADAPT_MAX 16 /* candidates */

/* Shares of a step that all edges of a job whose codec may change give away together: each decides
 * by itself and takes its part of them as least_gain and exact_cost. What a
 * codec costs more on a fast link these formulas see in part: bf16 for int8, where gateways and
 * workers share processors, was 3 to 9 % of a step. So precision comes back only where it is
 * predicted to cost next to nothing. Noise takes some percent, and the two must not meet. */
#define HDT_ADAPT_LEAST_GAIN 0.06
#define HDT_ADAPT_EXACT_COST 0.01

/* Bytes of the chunks that a gateway cuts frames into, unless it is told otherwise (wan.chunk). */
#define HDT_ADAPT_CHUNK_BYTES (256.0 * 1024)

/* A gateway leaves its codec out where frames get there faster without by this factor. */
#define HDT_ADAPT_LEAVES_OUT 1.05

/* One codec that may be chosen. Rates are bytes a second of what goes in at encoding (and comes out
 * at decoding): of the tensor at a worker, of the frame at a gateway; 0: takes no time. */
struct hdt_adapt_candidate {
    struct hdt_codec_spec spec;
    double encode_bytes_per_s, decode_bytes_per_s;       /* worker's codec */
    double gw_encode_bytes_per_s, gw_decode_bytes_per_s; /* gateway's, all its threads */
    double frame_bytes; /* after the worker's codec, of one tensor */
    double gw_ratio;    /* frame / wire; below 1 counts as 1: gateways send plain what grows */
    double error;       /* relative, as seen, or as expected where it was not used yet */
    bool is_barred;     /* the guard does not let it be used now */
};

struct hdt_adapt_input {
    double goodput_bytes_per_s; /* of the wire; 0: unknown */
    double rtt_s;
    double tensor_bytes;           /* of one frame before the worker's codec */
    double n_frames;               /* of a step, at least 1 */
    double src_busy_s, dst_busy_s; /* arithmetic of each worker beside one frame; 0: none */
    double src_share, dst_share;   /* by which a second of its gateway's CPU time holds it up */
    double gw_threads;             /* of the gateways' codecs; 0: one */
    double send_s_per_byte, recv_s_per_byte; /* CPU time of a gateway for a byte of the wire */
    double in_flight;    /* micro-batches there and back at a time; 0: no limit is known */
    double beyond_s;     /* arithmetic of stages behind both, in that time; 0: none */
    double error_budget; /* relative; what is above is not chosen */
    double least_gain;   /* share of the step time that a less exact codec must save */
    double exact_cost;   /* share that a more exact one may cost; below least_gain */
    int64_t measured_us, changed_us, now_us; /* monotonic: goodput, last change, now */
    int64_t fresh_us;                        /* older figures change nothing */
    int current;                             /* candidate in use; -1: none yet */
    const struct hdt_adapt_candidate *candidates;
    size_t n; /* 1 to HDT_ADAPT_MAX */
};

enum hdt_adapt_why {
    HDT_ADAPT_CHOSEN,
    HDT_ADAPT_SLOWER,      /* than the chosen one */
    HDT_ADAPT_HELD,        /* faster, but not by enough */
    HDT_ADAPT_STALE,       /* faster, but the figures are old: nothing changes */
    HDT_ADAPT_OVER_BUDGET, /* loses more than it may */
    HDT_ADAPT_BARRED,      /* the guard has stepped up from it */
};

enum hdt_adapt_station {
    HDT_ADAPT_AT_SRC,
    HDT_ADAPT_AT_SRC_GATEWAY,
    HDT_ADAPT_AT_LINK,
    HDT_ADAPT_AT_DST_GATEWAY,
    HDT_ADAPT_AT_DST,
    HDT_ADAPT_AT_TURN, /* none of them: the way there and back, of so many in flight */
    HDT_ADAPT_STATIONS
};

/* A frame's way from gateway to gateway. */
struct hdt_adapt_crossing {
    double encode_s, decode_s; /* gateways' codec; 0: there is none, or it is left out */
    double wire_bytes, link_s;
    double alone_s; /* of one frame, but for the round trip */
};

/* By the candidate's frame_bytes and what gateways do with them; 0 bytes a second: unknown, and the
 * link takes no time. */
void hdt_adapt_cross(const struct hdt_adapt_candidate *candidate, double goodput_bytes_per_s,
                     struct hdt_adapt_crossing *crossing);

struct hdt_adapt_row {
    double wire_bytes;             /* of a frame */
    double ratio;                  /* tensor / wire */
    double src_held_s, dst_held_s; /* a worker, by its gateway's work for one frame */
    double turn_s;
    double pace_s, alone_s, step_s;
    enum hdt_adapt_station slowest;
    double codec_bytes_per_s;   /* of the tensor, by the slowest of the four codings; 0: no limit */
    double goodput_bytes_per_s; /* of the tensor: min(codec rate, link x ratio); 0: no link known */
    double full_below_bytes_per_s; /* break-even: the whole gain on links slower than this, */
    double none_above_bytes_per_s; /* and none on faster ones; both 0: it saves nothing, or costs
                                      no time */
    enum hdt_adapt_why why;
};

struct hdt_adapt_table {
    struct hdt_adapt_row rows[HDT_ADAPT_MAX]; /* as the candidates */
    size_t n;
    int chosen;
};

/* Fill the table; the chosen candidate is `chosen`. Candidates stand from the most exact to the
 * least: the first that is within exact_cost of the fastest is chosen, so that precision is given
 * away for time only, and comes back when it costs none. Where goodput is unknown the current one
 * stays, or the first that is allowed is chosen; where the budget or the guard allows none, the
 * most exact. */
void hdt_adapt_choose(const struct hdt_adapt_input *in, struct hdt_adapt_table *table);

/* Why a candidate was chosen or not, for people: "chosen: least step time", "1.8 times slower: the
 * link is the slowest". Always terminated. */
#define HDT_ADAPT_TEXT 128
void hdt_adapt_why_text(const struct hdt_adapt_input *in, const struct hdt_adapt_table *table,
                        size_t i, char text[HDT_ADAPT_TEXT]);

#ifdef __cplusplus
}
#endif
#endif /* HDT_COMPRESS_ADAPT_H */
