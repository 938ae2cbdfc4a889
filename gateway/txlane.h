/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_TXLANE_H
#define HDT_GATEWAY_TXLANE_H

/*
 * Frames of one class that wait to be cut for a peer: a lane for each job, in it the order of
 * arrival. Jobs take turns by their weights. Whose chunk is next: the one with the earliest virtual
 * start, which advances by bytes over weight (start-time fair queueing: P. Goyal, H. Vin, H. Cheng,
 * SIGCOMM 1996). A job that had nothing to send, or was held back, begins at the time of the
 * others: it neither gets back nor loses a turn.
 *
 * Called with the data plane's lock held.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_budgets;
struct hdt_src_frame;
struct hdt_tx_lane;

struct hdt_tx_lanes {
    struct hdt_tx_lane *all; /* those without frames are used again */
    double start;            /* virtual: of the chunk that was cut last */
};

/* At the end of its job's lane, or in front. */
void hdt_tx_lanes_push(struct hdt_tx_lanes *lanes, struct hdt_src_frame *frame, bool front);
void hdt_tx_lanes_remove(struct hdt_tx_lanes *lanes, struct hdt_src_frame *frame);
/* The frame to cut from; NULL: there is none, or budgets hold all. `least_burst`: bytes, as of
 * hdt_budgets_allow. */
struct hdt_src_frame *hdt_tx_lanes_next(struct hdt_tx_lanes *lanes, struct hdt_budgets *budgets,
                                        double least_burst, int64_t now_us);
/* So many bytes of it were cut off, just now. */
void hdt_tx_lanes_took(struct hdt_tx_lanes *lanes, const struct hdt_budgets *budgets,
                       const struct hdt_src_frame *frame, size_t len);
bool hdt_tx_lanes_are_empty(const struct hdt_tx_lanes *lanes);
/* Sum of what waits, bytes. */
uint64_t hdt_tx_lanes_bytes(const struct hdt_tx_lanes *lanes, uint64_t chunk_bytes);
/* They are empty. */
void hdt_tx_lanes_free(struct hdt_tx_lanes *lanes);

#ifdef __cplusplus
}
#endif
#endif /* HDT_GATEWAY_TXLANE_H */
