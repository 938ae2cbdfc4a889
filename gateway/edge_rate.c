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

struct hdt_edge_busy hdt_edge_rate_have(struct hdt_edge_rate *rate, int64_t cut_us, double bytes,
                                        int64_t rtt_us, int64_t now_us)
{
    const int64_t from_us = cut_us + rtt_us;
    const bool follows = from_us < rate->last_have_us;
    double all;
    int64_t busy_us;

    if (bytes < FRAME_BYTES || cut_us <= 0) {
        return (struct hdt_edge_busy){0};
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
    return (struct hdt_edge_busy){.us = busy_us, .follows = follows};
}

/* ---- with and without the codec ---- */

#define TRY_EVERY  16
#define TRY_SOON   3  /* tries on a full link that come after half of that: the link may be new */
#define TRIES_MIN  3  /* before they count */
#define USUAL_MIN  2  /* samples of the usual way before a try is one */
#define FULL_AFTER 32 /* frames that follow one another; a pause takes as many away */
#define FULL_MOST  64
#define FULL_GROUP 8   /* frames that are one sample, then */
#define OTHER_LINK 1.5 /* times the usual way's time: what was tried before says nothing now */

static void trial_no_sum(struct hdt_codec_trial *trial, bool coded)
{
    trial->sum_us[coded] = 0;
    trial->sum_bytes[coded] = 0;
    trial->n_sum[coded] = 0;
}

/* Frames that are cut from now on are samples of something else than those on their way. */
static void trial_new_era(struct hdt_codec_trial *trial)
{
    trial->era++;
    trial->n_usual = 0;
    trial->usual_then = 0;
    trial_no_sum(trial, false);
    trial_no_sum(trial, true);
}

bool hdt_codec_trial_next(struct hdt_codec_trial *trial)
{
    const unsigned group = trial->is_full ? FULL_GROUP : 1;
    const bool is_soon = group > 1 && trial->n_ratios < TRY_SOON;
    const unsigned every = is_soon ? TRY_EVERY * group / 2 : TRY_EVERY * group;
    const unsigned at = ++trial->n % every;

    if (at == 0) { /* of the group before some may have been sent again */
        trial_no_sum(trial, trial->is_off);
    }
    return at < group ? trial->is_off : !trial->is_off;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* The median of the last of n; of two in the middle the smaller one. */
static double trial_median(const double last[HDT_CODEC_TRIAL_FRAMES], unsigned n)
{
    double sorted[HDT_CODEC_TRIAL_FRAMES];

    n = n < HDT_CODEC_TRIAL_FRAMES ? n : HDT_CODEC_TRIAL_FRAMES;
    memcpy(sorted, last, n * sizeof(sorted[0]));
    qsort(sorted, n, sizeof(sorted[0]), by_size);
    return sorted[(n - 1) / 2];
}

/* All of the last took so much longer than at the last try, or less long. */
static bool trial_is_other_link(const struct hdt_codec_trial *trial)
{
    unsigned n_slower = 0, n_faster = 0;

    for (unsigned i = 0; i < HDT_CODEC_TRIAL_FRAMES; i++) {
        n_slower += trial->usual[i] > OTHER_LINK * trial->usual_then;
        n_faster += OTHER_LINK * trial->usual[i] < trial->usual_then;
    }
    return trial->n_usual >= HDT_CODEC_TRIAL_FRAMES && trial->usual_then > 0 &&
           (n_slower == HDT_CODEC_TRIAL_FRAMES || n_faster == HDT_CODEC_TRIAL_FRAMES);
}

static void trial_usual(struct hdt_codec_trial *trial, double us_per_byte)
{
    trial->usual[trial->n_usual++ % HDT_CODEC_TRIAL_FRAMES] = us_per_byte;
    if (trial_is_other_link(trial)) {
        trial->n_ratios = 0;
        trial->usual_then = trial_median(trial->usual, trial->n_usual);
    }
}

/* One try, and what follows from the last of them. */
static void trial_other(struct hdt_codec_trial *trial, double us_per_byte)
{
    double ratio;

    if (trial->n_usual < USUAL_MIN) {
        return;
    }
    trial->usual_then = trial_median(trial->usual, trial->n_usual);
    ratio = us_per_byte / trial->usual_then;
    trial->ratios[trial->n_ratios++ % HDT_CODEC_TRIAL_FRAMES] = trial->is_off ? ratio : 1 / ratio;
    if (trial->n_ratios < TRIES_MIN) {
        return;
    }
    ratio = trial_median(trial->ratios, trial->n_ratios);
    if ((trial->is_off ? 1 / ratio : ratio) > HDT_ADAPT_LEAVES_OUT) {
        trial->is_off = !trial->is_off;
        trial_new_era(trial);
    }
}

static void trial_sample(struct hdt_codec_trial *trial, bool coded, double us_per_byte)
{
    if (coded == trial->is_off) {
        trial_other(trial, us_per_byte);
    } else {
        trial_usual(trial, us_per_byte);
    }
}

static void trial_follow(struct hdt_codec_trial *trial, bool follows)
{
    if (follows) {
        trial->n_follow += trial->n_follow < FULL_MOST;
    } else {
        trial->n_follow -= trial->n_follow < FULL_AFTER ? trial->n_follow : FULL_AFTER;
    }
}

void hdt_codec_trial_saw(struct hdt_codec_trial *trial, bool coded, unsigned era, double bytes,
                         struct hdt_edge_busy busy)
{
    if (busy.us <= 0 || bytes <= 0) {
        return;
    }
    trial_follow(trial, busy.follows);
    if (trial->is_full != (trial->n_follow >= FULL_AFTER)) {
        trial->is_full = !trial->is_full;
        trial_new_era(trial);
    }
    if (era != trial->era) {
        return;
    }
    trial->sum_us[coded] += (double)busy.us;
    trial->sum_bytes[coded] += bytes;
    trial->n_sum[coded]++;
    if (trial->n_sum[coded] >= (trial->is_full ? FULL_GROUP : 1u)) {
        const double us_per_byte = trial->sum_us[coded] / trial->sum_bytes[coded];

        trial_no_sum(trial, coded);
        trial_sample(trial, coded, us_per_byte);
    }
}
