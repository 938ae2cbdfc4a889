/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_ARRIVAL_H
#define HDT_GATEWAY_ARRIVAL_H

/*
 * At what rate did the filler of a probe come?
 *
 * The beginning is TCP finding its rate, so that the time is taken from a mark to the end. Where
 * the mark lies decides: behind a lost packet the kernel keeps what came after it, and hands it
 * over at once when the packet has been sent again. A mark before that takes for new what had
 * arrived, and finds more than the link carries (on 40 Mbit/s and 40 ms, 44 to 53). What has been
 * handed over is never more than what has arrived, so of all marks the one that gives the least
 * rate is nearest to the truth; it is sought in the second quarter, so that half of the filler at
 * least is timed, and in the first one, too, where streams had their rate before: then a reader
 * that waited for a processor changes little.
 *
 * Plain arithmetic on a fixed number of samples. One thread, or a lock of the caller's.
 */
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_ARRIVAL_SAMPLES 128

struct hdt_arrival {
    uint64_t n_bytes; /* so far */
    int64_t last_us;
    uint64_t step; /* bytes between samples, at least */
    unsigned n;
    struct {
        uint64_t n_bytes;
        int64_t us;
    } at[HDT_ARRIVAL_SAMPLES];
};

/* `bytes` more are there. Times do not go back. */
void hdt_arrival_add(struct hdt_arrival *arrival, uint64_t bytes, int64_t now_us);

/* Bytes from the mark to the last of them, and how long they took; both 0: too little came.
 * `is_warm`: streams had their rate. */
void hdt_arrival_rate(const struct hdt_arrival *arrival, bool is_warm, uint64_t *bytes,
                      int64_t *us);

#ifdef __cplusplus
}
#endif
#endif /* HDT_GATEWAY_ARRIVAL_H */
