/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_ROUNDS_H
#define HDT_GATEWAY_ROUNDS_H

/*
 * The rounds of a link's measurement (probe.h): which of them counts.
 *
 * In the first ones TCP finds the rate. BBR doubles its window in each round trip, and sends at
 * nearly three times the rate until three more find nothing new, rounds with gaps not counted;
 * what a gateway sends has gaps. A stream that is still in that state loses a fifth of every burst,
 * and what comes in order is two thirds of the link. So rounds go on while they find more. Once one
 * does not, streams in that state are held to a little more than they know (linkinfo.h), and a
 * round counts; one that finds less than the best was held up by a processor, and is made again.
 *
 * Plain arithmetic. One thread, or a lock of the caller's.
 */
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_ROUNDS_MAX 6

/* All zeros: the first round has begun. */
struct hdt_rounds {
    unsigned n;    /* answered */
    bool is_known; /* what the rate will be about: the second round may count */
    bool is_held;  /* the present one may count */
    double last_bytes_per_s, best_bytes_per_s;
    double warm_bytes_per_s; /* the best from the second one on: what was lost in the first comes
                                in bursts; 0: there was none */
    double held_bytes_per_s; /* the best of those that may count; 0: there was none */
};

/* The present round, of `filler` bytes, found bytes_per_s, timed over timed_s. true: it was the
 * last one; false: another one has begun, of hdt_rounds_filler. */
bool hdt_rounds_answered(struct hdt_rounds *rounds, double bytes_per_s, double timed_s,
                         uint64_t filler, double rtt_s);

/* Bytes of a round at that rate. */
uint64_t hdt_rounds_filler(double bytes_per_s, double rtt_s);

/* Bytes a second that the rounds so far found; 0: nothing yet. */
double hdt_rounds_rate(const struct hdt_rounds *rounds);

#ifdef __cplusplus
}
#endif
#endif /* HDT_GATEWAY_ROUNDS_H */
