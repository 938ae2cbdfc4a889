/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_BURST_H
#define HDT_GATEWAY_BURST_H

/*
 * Are bursts to a peer better off on one stream than on all?
 *
 * BBR paces a stream at what the stream itself has delivered (draft-ietf-ccwg-bbr, "BBR.max_bw"),
 * so that each of N streams that share a link knows its share of the rate. Under load that lasts
 * the shares add up to the link. A burst of a few chunks, as a training step sends, ends before
 * they do: a stream that got one chunk more than the others sends it at its share, while the rest
 * of the link lies idle, and as bursts are application-limited no share ever grows. A single
 * stream knows the whole rate, and keeps it over the pauses.
 *
 * So where a probe has shown that the first stream alone carries what the others carry together,
 * bursts use the first, and load that lasts uses all. Where it does not (a limit for each
 * connection, a core that cannot encrypt more), all are used always; as they are without BBR: a
 * window that was idle begins anew, and N of them are then N times as large.
 *
 * A plain controller: figures in, a choice out; no sockets, no clock. One thread, or a lock of the
 * caller's.
 */
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_burst {
    double first_bytes_per_s, others_bytes_per_s; /* of the last probe; 0: there was none */
    bool one_will_do;
    bool is_bulk;      /* the load lasts */
    unsigned n_row;    /* windows with load through all of them, in a row */
    unsigned n_pauses; /* windows without, since there were as many in a row as make it bulk */
};

/* What the first stream carried alone, and then the others together, bytes a second. */
void hdt_burst_probed(struct hdt_burst *burst, double first_bytes_per_s, double others_bytes_per_s);

/* One window of two round trips or more is over. `is_loaded`: there was something to send through
 * all of it. `is_stuck`: there was, and nothing got there. true: hdt_burst_uses_one changed. */
bool hdt_burst_window(struct hdt_burst *burst, bool is_loaded, bool is_stuck);

/* Is what there is to send to go over the first stream alone? */
bool hdt_burst_uses_one(const struct hdt_burst *burst);

#ifdef __cplusplus
}
#endif
#endif /* HDT_GATEWAY_BURST_H */
