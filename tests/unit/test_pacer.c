/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * The pacer against a simulated path: a bottleneck with a queue, filled by a sender that, left
 * alone, keeps nine tenths of the queue full, as loss-based TCP does. What is asserted is what bulk
 * and urgent frames get out of it, not what the pacer thinks.
 */
#include "gateway/pacer.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define STEP_S 0.001
#define FLOOR  (125e3)

struct path {
    struct hdt_pacer pacer;
    double capacity, rtt_s, queue_max_s; /* bytes a second; of the drop-tail queue, at capacity */
    double others_s;                     /* queue of others, that nobody here can make shorter */
    double noise;                        /* of what is measured, part of it */
    bool is_urgent, is_starved;
    double queue_bytes;
    double window_s, window_bytes; /* in this window */
    double time_s, bytes;          /* since path_reset */
    double queue_sum_s;            /* time integral of the queue's delay */
    double rate;                   /* that the pacer said */
    uint64_t rng;
};

static uint64_t path_seed(void)
{
    const char *text = getenv("HDT_TEST_SEED");

    return text != NULL ? strtoull(text, NULL, 10) : 20261128;
}

static double path_random(struct path *path)
{
    path->rng = path->rng * 6364136223846793005u + 1442695040888963407u;
    return (double)(path->rng >> 11) * 0x1p-53;
}

static void path_init(struct path *path, double mbits, double rtt_s)
{
    *path = (struct path){.capacity = mbits * 125e3,
                          .rtt_s = rtt_s,
                          .queue_max_s = 0.1,
                          .noise = 0.03,
                          .is_urgent = true,
                          .rng = path_seed()};
    hdt_pacer_init(&path->pacer, FLOOR);
}

static void path_reset(struct path *path)
{
    path->time_s = 0;
    path->bytes = 0;
    path->queue_sum_s = 0;
}

static void path_end_window(struct path *path)
{
    const double measured = path->window_bytes / path->window_s;
    const struct hdt_pacer_window window = {
        .us = (int64_t)(1e6 * path->window_s),
        .bytes_per_s = measured * (1 + path->noise * (2 * path_random(path) - 1)),
        .queue_us = (int64_t)(1e6 * (path->queue_bytes / path->capacity + path->others_s) +
                              1e3 * path_random(path)),
        .rtt_us = (int64_t)(1e6 * path->rtt_s),
        .is_loaded = !path->is_starved,
        .is_urgent = path->is_urgent,
    };

    path->rate = hdt_pacer_window(&path->pacer, &window);
    cr_assert(path->rate == 0 || path->rate >= FLOOR);
    path->window_s = 0;
    path->window_bytes = 0;
}

static void path_run(struct path *path, double seconds)
{
    const double end_s = path->time_s + seconds;

    while (path->time_s < end_s) {
        const double room = 0.9 * path->queue_max_s * path->capacity - path->queue_bytes;
        double sent = (path->capacity + room / (path->rtt_s + 0.01)) * STEP_S, carried;

        if (path->is_starved) {
            sent = 0.1 * path->capacity * STEP_S;
        }
        if (path->rate > 0 && sent > path->rate * STEP_S) {
            sent = path->rate * STEP_S;
        }
        carried = path->queue_bytes + sent;
        carried = carried < path->capacity * STEP_S ? carried : path->capacity * STEP_S;
        path->queue_bytes += sent - carried;
        if (path->queue_bytes > path->queue_max_s * path->capacity) {
            path->queue_bytes = path->queue_max_s * path->capacity;
        }
        path->queue_sum_s += path->queue_bytes / path->capacity * STEP_S;
        path->bytes += carried;
        path->window_bytes += carried;
        path->time_s += STEP_S;
        path->window_s += STEP_S;
        if (1e6 * path->window_s >= (double)hdt_pacer_window_us((int64_t)(1e6 * path->rtt_s))) {
            path_end_window(path);
        }
    }
}

/* Windows, in seconds. */
static double path_windows(const struct path *path, int n)
{
    return 1e-6 * n * (double)hdt_pacer_window_us((int64_t)(1e6 * path->rtt_s));
}

static double path_use(const struct path *path)
{
    return path->bytes / (path->capacity * path->time_s);
}

Test(pacer, bulk_keeps_the_link_and_the_queue_is_short)
{
    const double mbits[] = {10, 200, 1000, 10000}, rtts_s[] = {0.001, 0.04, 0.15, 0.3};

    for (size_t i = 0; i < 4; i++) {
        for (size_t k = 0; k < 4; k++) {
            struct path path;
            double queue_s, limit_s;

            path_init(&path, mbits[i], rtts_s[k]);
            path_run(&path, path_windows(&path, 10)); /* twenty round trips, where that is more */
            path_reset(&path);
            path_run(&path, path_windows(&path, 50));
            queue_s = path.queue_sum_s / path.time_s;
            limit_s = rtts_s[k] / 16 > 0.010 ? rtts_s[k] / 16 : 0.010;
            cr_expect_gt(path_use(&path), 0.93, "%g Mbit/s, %g s: %.3f (seed %llu)", mbits[i],
                         rtts_s[k], path_use(&path), (unsigned long long)path_seed());
            cr_expect_lt(queue_s, limit_s, "%g Mbit/s, %g s: %.1f ms (seed %llu)", mbits[i],
                         rtts_s[k], 1e3 * queue_s, (unsigned long long)path_seed());
        }
    }
}

Test(pacer, finds_the_link_within_twenty_round_trips)
{
    struct path path;

    path_init(&path, 200, 0.15);
    path_run(&path, 20 * 0.15);
    cr_expect_gt(path.rate, 0.90 * path.capacity);
    cr_expect_lt(path.rate, 1.05 * path.capacity);
}

Test(pacer, a_link_that_shrinks_and_grows_back_is_followed_within_ten_seconds)
{
    struct path path;
    double still;

    path_init(&path, 1000, 0.08);
    path_run(&path, 20);
    path_reset(&path);
    path_run(&path, 10);
    still = path_use(&path);

    path.capacity /= 10;
    path_run(&path, 10);
    path_reset(&path);
    path_run(&path, 10);
    cr_expect_gt(path_use(&path), 0.9 * still, "after it shrank: %.3f", path_use(&path));
    cr_expect_lt(path.queue_sum_s / path.time_s, 0.010);

    path.capacity *= 10;
    path_run(&path, 10);
    path_reset(&path);
    path_run(&path, 10);
    cr_expect_gt(path_use(&path), 0.9 * still, "after it grew: %.3f", path_use(&path));
    cr_expect_lt(path.queue_sum_s / path.time_s, 0.010);
}

Test(pacer, bulk_alone_is_never_capped)
{
    struct path path;

    path_init(&path, 200, 0.04);
    path.is_urgent = false;
    for (int i = 0; i < 100; i++) {
        path_run(&path, 0.2);
        cr_assert_eq(path.rate, 0);
    }
    path.is_urgent = true;
    path_run(&path, 1);
    cr_assert_gt(path.rate, 0);
    path.is_urgent = false;
    path_run(&path, 1);
    cr_assert_eq(path.rate, 0);
}

Test(pacer, a_program_that_sends_little_does_not_make_the_link_look_slow)
{
    struct path path;
    double rate;

    path_init(&path, 200, 0.04);
    path_run(&path, 10);
    rate = path.rate;
    cr_assert_gt(rate, 0.9 * path.capacity);
    path.is_starved = true;
    path_run(&path, 60);
    cr_expect_eq(path.rate, rate);
}

/* Jitter, or a neighbour that keeps the queue full: slowing down does not help, so it must not
 * cost. */
Test(pacer, a_queue_of_others_costs_bulk_little)
{
    struct path path;

    path_init(&path, 200, 0.04);
    path.others_s = 0.02;
    path_run(&path, 20);
    path_reset(&path);
    path_run(&path, 120);
    cr_expect_gt(path_use(&path), 0.95, "%.3f", path_use(&path));
}

Test(pacer, no_input_makes_it_fall_below_the_floor)
{
    struct path random = {.rng = path_seed()};
    struct hdt_pacer pacer;

    hdt_pacer_init(&pacer, FLOOR);
    for (int i = 0; i < 200000; i++) {
        const struct hdt_pacer_window window = {
            .us = 200000,
            .bytes_per_s = pow(10, 10 * path_random(&random)) * (path_random(&random) > 0.1),
            .queue_us = (int64_t)(1e6 * path_random(&random) * path_random(&random)),
            .rtt_us = (int64_t)(1e5 * path_random(&random)),
            .is_loaded = path_random(&random) > 0.2,
            .is_urgent = path_random(&random) > 0.01,
        };
        const double rate = hdt_pacer_window(&pacer, &window);

        cr_assert(rate == 0 || rate >= FLOOR, "%g in window %d (seed %llu)", rate, i,
                  (unsigned long long)path_seed());
        cr_assert(rate < 1e11, "%g in window %d (seed %llu)", rate, i,
                  (unsigned long long)path_seed());
    }
}

Test(pacer, what_a_stream_cannot_use_the_others_get)
{
    double caps[4] = {0}, sum = 0;
    const double even[4] = {24, 25, 25, 25}, weak[4] = {5, 25, 25, 25};

    hdt_pacer_split(100, even, caps, 4);
    for (int i = 0; i < 4; i++) {
        cr_expect_float_eq(caps[i], 25, 1e-9);
    }
    hdt_pacer_split(100, weak, caps, 4);
    for (int i = 0; i < 4; i++) {
        sum += caps[i];
    }
    cr_expect_float_eq(sum, 100, 1e-9);
    cr_expect_gt(caps[0], 5);
    cr_expect_lt(caps[0], 8);
    cr_expect_gt(caps[1], 30);
    hdt_pacer_split(100, even, caps, 4); /* it is well again */
    hdt_pacer_split(100, even, caps, 4);
    cr_expect_float_eq(caps[0], 25, 1e-9);
}
