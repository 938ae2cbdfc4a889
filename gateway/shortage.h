/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_SHORTAGE_H
#define HDT_GATEWAY_SHORTAGE_H

/*
 * For how long a stream was short of work: it asked for something to send, and there was nothing.
 * What it carried in a time with a shortage says what there was to send, and of the path only that
 * it carries so much at least: such a sample is application-limited, in the words of
 * draft-cheng-iccrg-delivery-rate-estimation and draft-ietf-ccwg-bbr, and it may raise an estimate
 * of the path, but never lower it.
 *
 * Kept where the work is handed out, because nobody else knows. TCP_INFO does not: the kernel's
 * flag (tcpi_delivery_rate_app_limited) belongs to the sample that it keeps, and a sample that is
 * application-limited takes the place of that one only when its rate is higher. So after one burst
 * that filled the link the flag says "not limited" through all pauses and trickles that follow. Its
 * busy time ends only when the last byte is acknowledged, so that a pause shorter than a round trip
 * is none.
 *
 * A stream asks before its socket is empty, so a shortage is counted from a little too early. That
 * errs on the side on which nothing is believed.
 *
 * Plain figures: no clock of its own. One thread, or a lock of the caller's.
 */
#include <stdbool.h>
#include <stdint.h>

struct hdt_shortage {
    int64_t since_us; /* 0: there is work */
    int64_t sum_us;   /* of shortages that are over */
};

/* It asked in vain; again and again is the same shortage. now_us > 0. */
void hdt_shortage_begin(struct hdt_shortage *shortage, int64_t now_us);
/* There is work: no effect when there was. */
void hdt_shortage_end(struct hdt_shortage *shortage, int64_t now_us);
/* All shortages so far. */
int64_t hdt_shortage_sum_us(const struct hdt_shortage *shortage, int64_t now_us);

/* Were streams with shortages of sum_us together, in a window, kept loaded through all of it? */
bool hdt_shortage_is_small(int64_t sum_us, unsigned n_streams, int64_t window_us);

#endif /* HDT_GATEWAY_SHORTAGE_H */
