/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/edge_rate.h"
#include "src/base/clock.h"

/* A window is over after so long and so many bytes: a second of a slow link, or, where steps take
 * longer, as soon as a frame came. */
#define WINDOW_US    HDT_US_PER_S
#define WINDOW_BYTES 65536.0

/* Smaller frames are records and labels, whose time is that of the round trip. One that overtakes
 * a large frame on another stream does not end the time that this one takes. */
#define FRAME_BYTES 16384.0

/* A round trip is known to some tenths of a millisecond: no frame is counted as faster. */
#define BUSY_MIN_US 100

int64_t hdt_edge_rate_have(struct hdt_edge_rate *rate, int64_t cut_us, double bytes, int64_t rtt_us,
                           int64_t now_us)
{
    int64_t from_us = cut_us + rtt_us, busy_us;

    if (bytes < FRAME_BYTES || cut_us <= 0) {
        return 0;
    }
    from_us = from_us > rate->last_have_us ? from_us : rate->last_have_us;
    rate->last_have_us = now_us;
    busy_us = now_us - from_us;
    busy_us = busy_us > BUSY_MIN_US ? busy_us : BUSY_MIN_US;
    rate->busy_us += (double)busy_us;
    rate->bytes += bytes;
    if (rate->window_us == 0) {
        rate->window_us = cut_us;
    }
    if (now_us - rate->window_us >= WINDOW_US && rate->bytes >= WINDOW_BYTES) {
        rate->bytes_per_s = rate->bytes * 1e6 / rate->busy_us;
        rate->at_us = now_us;
        rate->window_us = 0;
        rate->bytes = rate->busy_us = 0;
    }
    return busy_us;
}

/* ---- with and without the codec ---- */

#define TRY_EVERY  16
#define TRIAL_MIN  2 /* frames of each way before they are compared */
#define TRIAL_GAIN 1.05
#define TRIAL_KEEP 0.9 /* of the sums, from a frame to the next of its kind */

bool hdt_codec_trial_next(struct hdt_codec_trial *trial)
{
    const bool is_try = ++trial->n % TRY_EVERY == 0;

    return is_try ? trial->is_off : !trial->is_off;
}

void hdt_codec_trial_saw(struct hdt_codec_trial *trial, bool coded, double bytes, int64_t busy_us)
{
    double rate[2];
    int i;

    if (busy_us <= 0) {
        return;
    }
    trial->bytes[coded] = TRIAL_KEEP * trial->bytes[coded] + bytes;
    trial->busy_us[coded] = TRIAL_KEEP * trial->busy_us[coded] + (double)busy_us;
    trial->n_seen[coded]++;
    if (trial->n_seen[0] < TRIAL_MIN || trial->n_seen[1] < TRIAL_MIN) {
        return;
    }
    for (i = 0; i < 2; i++) {
        rate[i] = trial->bytes[i] / trial->busy_us[i];
    }
    if (rate[trial->is_off] > TRIAL_GAIN * rate[!trial->is_off]) {
        trial->is_off = !trial->is_off;
    }
}
