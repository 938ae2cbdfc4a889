/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/train.h"

/*
 * What is there beyond a whole tensor is the sum of a part, evenly distributed, of a chunk on each
 * other of s streams; so the difference of two such sums has a standard deviation of
 * sqrt((s - 1) / 6) chunks: 0.7 of them for 4 streams, 3.2 for 64. Measured over 8 s chunks that is
 * 2 % for 4 streams, and less for more.
 */
#define TRAIN_CHUNKS  16 /* for each stream in the whole train: half of them are measured */
#define TRAIN_QUARTER 4
/* In the middle half at least: it then begins and ends within an eighth. */
#define TRAIN_SAMPLES 4

struct hdt_train_marks hdt_train_marks(int64_t n)
{
    const int64_t edge = n / TRAIN_QUARTER;

    if (edge == 0) {
        return (struct hdt_train_marks){0, 0};
    }
    return (struct hdt_train_marks){edge - 1, n - 1 - edge};
}

int64_t hdt_train_length(int64_t bytes, unsigned n_streams, int64_t chunk_bytes)
{
    const int64_t chunk = chunk_bytes < bytes ? chunk_bytes : bytes;
    const int64_t all = TRAIN_CHUNKS * (n_streams > 0 ? n_streams : 1) * chunk;
    const int64_t n = (all + bytes - 1) / bytes;

    return n > HDT_TRAIN_LEAST ? n : HDT_TRAIN_LEAST;
}

/* When so many bytes were there, had they come evenly between two samples. */
static double train_when(const struct hdt_train_sample *samples, size_t n, double bytes)
{
    size_t i = 1;

    while (i + 1 < n && samples[i].bytes < bytes) {
        i++;
    }
    return samples[i - 1].at_s + (samples[i].at_s - samples[i - 1].at_s) *
                                     (bytes - samples[i - 1].bytes) /
                                     (samples[i].bytes - samples[i - 1].bytes);
}

double hdt_train_middle_s(const struct hdt_train_sample *samples, size_t n)
{
    const double first = n > 0 ? samples[0].bytes : 0;
    const double quarter = n > 0 ? (samples[n - 1].bytes - first) / TRAIN_QUARTER : 0;
    size_t n_within = 0;

    for (size_t i = 0; i < n; i++) {
        n_within += samples[i].bytes > first + quarter && samples[i].bytes < first + 3 * quarter;
    }
    if (n_within < TRAIN_SAMPLES) {
        return 0;
    }
    return train_when(samples, n, first + 3 * quarter) - train_when(samples, n, first + quarter);
}
