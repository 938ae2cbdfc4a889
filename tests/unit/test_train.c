/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * A train over a simulated link that is always full while there is something to send: streams of
 * unequal luck share it, and whichever is free takes the next chunk. What is asserted is the link's
 * rate, which the simulation knows. HDT_TEST_SEED plays one other seed.
 */
#include "src/cli/train.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define N_SEEDS       200
#define N_STREAMS     64
#define RATE          6.25e6 /* bytes a second */
#define SLOW_BYTES    1e6    /* at first the link carries half: TCP begins */
#define TENSORS_MAX   4096
#define MEAN_WITHIN   0.02
#define SPREAD        0.06 /* root mean square of what single trains are off */
#define LUCK          0.3  /* streams have so much more or less than an equal share */
#define STRAGGLES     0.01 /* of the chunks ride on one that has lost a packet ... */
#define STRAGGLE_PART 0.5  /* ... and has so much of its share meanwhile */
#define MIDDLE_S      0.35 /* is measured at least */

struct link {
    unsigned n_streams;
    int64_t chunk, bytes, n; /* n tensors of `bytes` */
    double left[N_STREAMS];  /* of the chunk that a stream carries; 0: none */
    double weight[N_STREAMS];
    int64_t tensor[N_STREAMS];    /* that its chunk is of */
    int64_t missing[TENSORS_MAX]; /* bytes of each tensor that are not there */
    int64_t next_tensor, next_offset;
    double now_s, moved_bytes;
    double there_s[TENSORS_MAX]; /* when a tensor and all before it were there */
    uint64_t rng;
};

static uint64_t first_seed(void)
{
    const char *text = getenv("HDT_TEST_SEED");

    return text != NULL ? strtoull(text, NULL, 10) : 20261128;
}

static double link_random(struct link *link)
{
    link->rng = link->rng * 6364136223846793005u + 1442695040888963407u;
    return (double)(link->rng >> 11) * 0x1p-53;
}

static void link_take(struct link *link, unsigned stream)
{
    const int64_t rest = link->bytes - link->next_offset;

    if (link->next_tensor == link->n) {
        return;
    }
    link->tensor[stream] = link->next_tensor;
    link->left[stream] = (double)(rest < link->chunk ? rest : link->chunk);
    link->weight[stream] = (1 + LUCK * (2 * link_random(link) - 1)) *
                           (link_random(link) < STRAGGLES ? STRAGGLE_PART : 1);
    link->next_offset += (int64_t)link->left[stream];
    if (link->next_offset == link->bytes) {
        link->next_tensor++;
        link->next_offset = 0;
    }
}

/* Until the next chunk is there; false: all are. */
static bool link_step(struct link *link)
{
    double weights = 0, soonest = INFINITY, rate;
    unsigned i, first = 0;

    for (i = 0; i < link->n_streams; i++) {
        if (link->left[i] == 0) {
            link_take(link, i);
        }
        weights += link->left[i] > 0 ? link->weight[i] : 0;
    }
    rate = link->moved_bytes < SLOW_BYTES ? RATE / 2 : RATE;
    for (i = 0; i < link->n_streams; i++) {
        const double takes = link->left[i] / (rate * link->weight[i] / weights);

        if (link->left[i] > 0 && takes < soonest) {
            soonest = takes;
            first = i;
        }
    }
    if (weights == 0) {
        return false;
    }
    for (i = 0; i < link->n_streams; i++) {
        if (link->left[i] > 0) {
            link->left[i] -=
                i == first ? link->left[i] : soonest * rate * link->weight[i] / weights;
            link->left[i] = fmax(link->left[i], i == first ? 0 : 1e-6);
        }
    }
    link->now_s += soonest;
    link->moved_bytes += soonest * rate;
    return true;
}

static void link_run(struct link *link)
{
    int64_t whole = 0;
    unsigned i;

    for (int64_t k = 0; k < link->n; k++) {
        link->missing[k] = (link->bytes + link->chunk - 1) / link->chunk; /* chunks */
    }
    while (link_step(link)) {
        for (i = 0; i < link->n_streams; i++) {
            if (link->left[i] == 0 && link->weight[i] > 0) {
                link->missing[link->tensor[i]]--;
                link->weight[i] = 0;
            }
        }
        while (whole < link->n && link->missing[whole] == 0) {
            link->there_s[whole++] = link->now_s;
        }
    }
    cr_assert_eq(whole, link->n);
}

static double rate_between(const struct link *link, int64_t first, int64_t last)
{
    return (double)((last - first) * link->bytes) / (link->there_s[last] - link->there_s[first]);
}

static void expect_rate(unsigned n_streams, int64_t chunk, int64_t bytes)
{
    const int64_t least = (int64_t)(2 * MIDDLE_S * RATE / (double)bytes) + 1;
    const int64_t needed = hdt_train_length(bytes, n_streams, chunk);
    const int64_t n = needed > least ? needed : least;
    const struct hdt_train_marks marks = hdt_train_marks(n);
    static struct link link;
    double sum = 0, squares = 0;

    cr_assert_leq(n, TENSORS_MAX);
    cr_assert_gt(marks.last, marks.first);
    cr_assert_lt(marks.last, n - 1, "something follows");
    for (uint64_t seed = first_seed(); seed < first_seed() + N_SEEDS; seed++) {
        double off;

        link = (struct link){
            .n_streams = n_streams, .chunk = chunk, .bytes = bytes, .n = n, .rng = seed};
        link_run(&link);
        off = rate_between(&link, marks.first, marks.last) / RATE - 1;
        sum += off;
        squares += off * off;
    }
    cr_expect(fabs(sum / N_SEEDS) < MEAN_WITHIN && sqrt(squares / N_SEEDS) < SPREAD,
              "%u streams, chunks of %lld, tensors of %lld: %+.3f, spread %.3f (seeds from %llu)",
              n_streams, (long long)chunk, (long long)bytes, sum / N_SEEDS, sqrt(squares / N_SEEDS),
              (unsigned long long)first_seed());
}

Test(train, reads_the_rate_of_the_link_whatever_tensors_and_streams_there_are)
{
    const unsigned streams[] = {1, 4, 16, 64};
    const int64_t chunks[] = {64 << 10, 256 << 10, 2 << 20};
    const int64_t sizes[] = {64 << 10, 1 << 20, 4 << 20, 16 << 20};

    for (size_t s = 0; s < 4; s++) {
        for (size_t c = 0; c < 3; c++) {
            for (size_t b = 0; b < 4; b++) {
                expect_rate(streams[s], chunks[c], sizes[b]);
            }
        }
    }
}

Test(train, marks_lie_within_any_train)
{
    for (int64_t n = 1; n < 5000; n++) {
        const struct hdt_train_marks marks = hdt_train_marks(n);

        cr_assert(marks.first >= 0 && marks.first <= marks.last && marks.last < n);
        cr_assert_eq(marks.last > marks.first, n >= HDT_TRAIN_LEAST, "%lld", (long long)n);
    }
}
