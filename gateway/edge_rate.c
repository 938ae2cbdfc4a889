/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/edge_rate.h"
#include "compress/adapt.h"
#include "src/base/clock.h"

#include <stdlib.h>
#include <string.h>

/* A window is over after so long and so many bytes: a second of a slow link, or, where steps take
 * longer, as soon as a frame came; or when there is room for no more bursts. */
#define WINDOW_US    HDT_US_PER_S
#define WINDOW_BYTES 65536.0

/* Smaller frames are records and labels, whose time is that of the round trip. One that overtakes
 * a large frame on another stream does not end the time that this one takes. */
#define FRAME_BYTES 16384.0

/* A round trip is known to some tenths of a millisecond: no frame is counted as faster. */
#define BUSY_MIN_US 100

static double window_bytes(const struct hdt_edge_rate *rate)
{
    double bytes = 0;

    for (unsigned i = 0; i < rate->n_bursts; i++) {
        bytes += rate->bursts[i].bytes;
    }
    return bytes;
}

/* Slower ones first. */
static int by_rate(const void *a, const void *b)
{
    const struct hdt_edge_burst *x = a, *y = b;
    const double d = x->bytes * y->busy_us - y->bytes * x->busy_us;

    return d < 0 ? -1 : d > 0;
}

/* That half of the bytes were at least as fast as. Sorts the bursts. */
static double window_rate(struct hdt_edge_rate *rate, double bytes)
{
    double slower = 0;
    unsigned i = 0;

    qsort(rate->bursts, rate->n_bursts, sizeof(rate->bursts[0]), by_rate);
    while (slower + rate->bursts[i].bytes < bytes / 2) {
        slower += rate->bursts[i++].bytes;
    }
    return rate->bursts[i].bytes * 1e6 / rate->bursts[i].busy_us;
}

int64_t hdt_edge_rate_have(struct hdt_edge_rate *rate, int64_t cut_us, double bytes, int64_t rtt_us,
                           int64_t now_us)
{
    const int64_t from_us = cut_us + rtt_us;
    const bool follows = from_us < rate->last_have_us;
    double all;
    int64_t busy_us;

    if (bytes < FRAME_BYTES || cut_us <= 0) {
        return 0;
    }
    busy_us = now_us - (follows ? rate->last_have_us : from_us);
    busy_us = busy_us > BUSY_MIN_US ? busy_us : BUSY_MIN_US;
    rate->last_have_us = now_us;
    if (rate->window_us == 0) {
        rate->window_us = cut_us;
        rate->n_bursts = 0;
    }
    if (!follows || rate->n_bursts == 0) {
        rate->bursts[rate->n_bursts++] = (struct hdt_edge_burst){0};
    }
    rate->bursts[rate->n_bursts - 1].bytes += bytes;
    rate->bursts[rate->n_bursts - 1].busy_us += (double)busy_us;
    all = window_bytes(rate);
    if (rate->n_bursts == HDT_EDGE_RATE_BURSTS ||
        (now_us - rate->window_us >= WINDOW_US && all >= WINDOW_BYTES)) {
        rate->bytes_per_s = window_rate(rate, all);
        rate->at_us = now_us;
        rate->window_us = 0;
    }
    return busy_us;
}

/* ---- with and without the codec ---- */

#define TRY_EVERY 16
#define TRIAL_MIN 2 /* frames of each way before they are compared */

bool hdt_codec_trial_next(struct hdt_codec_trial *trial)
{
    const bool is_try = ++trial->n % TRY_EVERY == 0;

    return is_try ? trial->is_off : !trial->is_off;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* The median of one way's last frames; of two in the middle the faster one. */
static double trial_median(const struct hdt_codec_trial *trial, bool coded)
{
    const unsigned n = trial->n_seen[coded] < HDT_CODEC_TRIAL_FRAMES ? trial->n_seen[coded]
                                                                     : HDT_CODEC_TRIAL_FRAMES;
    double sorted[HDT_CODEC_TRIAL_FRAMES];

    memcpy(sorted, trial->us_per_byte[coded], n * sizeof(sorted[0]));
    qsort(sorted, n, sizeof(sorted[0]), by_size);
    return sorted[(n - 1) / 2];
}

void hdt_codec_trial_saw(struct hdt_codec_trial *trial, bool coded, double bytes, int64_t busy_us)
{
    if (busy_us <= 0 || bytes <= 0) {
        return;
    }
    trial->us_per_byte[coded][trial->n_seen[coded]++ % HDT_CODEC_TRIAL_FRAMES] =
        (double)busy_us / bytes;
    if (trial->n_seen[0] >= TRIAL_MIN && trial->n_seen[1] >= TRIAL_MIN &&
        trial_median(trial, !trial->is_off) >
            HDT_ADAPT_LEAVES_OUT * trial_median(trial, trial->is_off)) {
        trial->is_off = !trial->is_off;
    }
}
