/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * A train over a simulated link that is always full while there is something to send: streams of
 * unequal luck share it, and whichever is free takes the next chunk. What is asserted is the link's
 * rate, which the simulation knows. HDT_TEST_SEED plays one other seed.
 */
#include "src/cli/train.h"
#include "tests/support/values.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define N_SEEDS       100
#define N_STREAMS     64
#define RATE          6.25e6 /* bytes a second */
#define SLOW_BYTES    1e6    /* at first the link carries half: TCP begins */
#define TENSORS_MAX   4096
#define MEAN_WITHIN   0.03 /* 64 streams, and chunks of half a tensor: it reads 2 % high */
#define LUCK          0.3  /* streams have so much more or less than an equal share */
#define STRAGGLE_PART 0.5  /* of its share is what a stream has that has lost a packet */
#define EVERY_S       0.02 /* a sample, and up to as much later */
#define SAMPLES_MAX   8192
#define MIDDLE_S      0.35 /* is measured at least */

struct link {
    unsigned n_streams;
    int64_t chunk, bytes, n; /* n tensors of `bytes` */
    double left[N_STREAMS];  /* of the chunk that a stream carries; 0: none */
    double weight[N_STREAMS];
    int64_t tensor[N_STREAMS];    /* that its chunk is of */
    int64_t missing[TENSORS_MAX]; /* bytes of each tensor that are not there */
    int64_t next_tensor, next_offset;
    double size[N_STREAMS]; /* of its chunk */
    double now_s, moved_bytes, arrived_bytes;
    struct hdt_train_sample samples[SAMPLES_MAX];
    size_t n_samples;
    double straggles;
    double there_s[TENSORS_MAX]; /* when a tensor and all before it were there */
    struct values_rng rng;
};

static void link_take(struct link *link, unsigned stream)
{
    const int64_t rest = link->bytes - link->next_offset;

    if (link->next_tensor == link->n) {
        return;
    }
    link->tensor[stream] = link->next_tensor;
    link->left[stream] = (double)(rest < link->chunk ? rest : link->chunk);
    link->weight[stream] = (1 + LUCK * (2 * hdt_values_uniform(&link->rng) - 1)) *
                           (hdt_values_uniform(&link->rng) < link->straggles ? STRAGGLE_PART : 1);
    link->size[stream] = link->left[stream];
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
    link->arrived_bytes += link->size[first];
    return true;
}

/* As a gateway counts: a chunk is there when all of it is. */
static void link_sample(struct link *link, double *due_s, double before)
{
    while (*due_s < link->now_s && link->n_samples < SAMPLES_MAX - 1) {
        link->samples[link->n_samples++] =
            (struct hdt_train_sample){.at_s = *due_s, .bytes = before};
        *due_s += EVERY_S * (1 + hdt_values_uniform(&link->rng));
    }
}

static void link_run(struct link *link)
{
    double due_s = 0, before = 0;
    int64_t whole = 0;
    unsigned i;

    for (int64_t k = 0; k < link->n; k++) {
        link->missing[k] = (link->bytes + link->chunk - 1) / link->chunk; /* chunks */
    }
    while (link_step(link)) {
        link_sample(link, &due_s, before);
        before = link->arrived_bytes;
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
    link->samples[link->n_samples++] =
        (struct hdt_train_sample){.at_s = link->now_s + EVERY_S, .bytes = link->arrived_bytes};
}

/* By the arrivals of tensors. */
static double rate_of_marks(const struct link *link)
{
    const struct hdt_train_marks marks = hdt_train_marks(link->n);

    return (double)((marks.last - marks.first) * link->bytes) /
           (link->there_s[marks.last] - link->there_s[marks.first]);
}

/* By samples of what has arrived. */
static double rate_of_samples(const struct link *link)
{
    const double middle_s = hdt_train_middle_s(link->samples, link->n_samples);

    return middle_s > 0 ? (double)(link->n * link->bytes) / 2 / middle_s : 0;
}

struct way {
    const char *name;
    double (*rate)(const struct link *link);
    double straggles, spread; /* the latter: root mean square of what single trains are off */
};

static void expect_rate(const struct way *way, unsigned n_streams, int64_t chunk, int64_t bytes)
{
    const int64_t least = (int64_t)(2 * MIDDLE_S * RATE / (double)bytes) + 1;
    const int64_t needed = hdt_train_length(bytes, n_streams, chunk);
    const int64_t n = needed > least ? needed : least;
    static struct link link;
    double sum = 0, squares = 0;

    cr_assert_leq(n, TENSORS_MAX);
    for (uint64_t seed = hdt_values_fixed_seed(); seed < hdt_values_fixed_seed() + N_SEEDS;
         seed++) {
        double off;

        link = (struct link){.n_streams = n_streams,
                             .chunk = chunk,
                             .bytes = bytes,
                             .n = n,
                             .straggles = way->straggles,
                             .rng = {seed}};
        link_run(&link);
        off = way->rate(&link) / RATE - 1;
        sum += off;
        squares += off * off;
    }
    cr_expect(fabs(sum / N_SEEDS) < MEAN_WITHIN && sqrt(squares / N_SEEDS) < way->spread,
              "by %s: %u streams, chunks of %lld, tensors of %lld: %+.3f, spread %.3f (seeds from "
              "%llu)",
              way->name, n_streams, (long long)chunk, (long long)bytes, sum / N_SEEDS,
              sqrt(squares / N_SEEDS), (unsigned long long)hdt_values_fixed_seed());
}

static void expect_rates(const struct way *way)
{
    const unsigned streams[] = {1, 4, 16, 64};
    const int64_t chunks[] = {64 << 10, 256 << 10, 2 << 20};
    const int64_t sizes[] = {64 << 10, 1 << 20, 4 << 20, 16 << 20};

    for (size_t s = 0; s < 4; s++) {
        for (size_t c = 0; c < 3; c++) {
            for (size_t b = 0; b < 4; b++) {
                expect_rate(way, streams[s], chunks[c], sizes[b]);
            }
        }
    }
}

/* Every tenth chunk's stream waits for a lost packet: the tensors behind it are there before it. */
Test(train, samples_read_the_rate_of_the_link_whatever_streams_straggle)
{
    expect_rates(&(struct way){
        .name = "samples", .rate = rate_of_samples, .straggles = 0.1, .spread = 0.04});
}

Test(train, arrivals_of_tensors_read_it_where_few_do)
{
    expect_rates(&(struct way){
        .name = "arrivals", .rate = rate_of_marks, .straggles = 0.01, .spread = 0.08});
}

/* Then the arrivals of tensors have to do. */
Test(train, too_few_samples_say_nothing)
{
    const struct hdt_train_sample samples[] = {{0, 0}, {1, 20}, {2, 40}, {3, 60}, {4, 100}};

    cr_expect_eq(hdt_train_middle_s(samples, 0), 0);
    cr_expect_eq(hdt_train_middle_s(samples, 1), 0);
    cr_expect_eq(hdt_train_middle_s(samples, 5), 0);
}

Test(train, marks_lie_within_any_train)
{
    for (int64_t n = 1; n < 5000; n++) {
        const struct hdt_train_marks marks = hdt_train_marks(n);

        cr_assert(marks.first >= 0 && marks.first <= marks.last && marks.last < n);
        cr_assert_eq(marks.last > marks.first, n >= HDT_TRAIN_LEAST, "%lld", (long long)n);
    }
}
