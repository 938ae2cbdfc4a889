/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * The pacer against a simulated path: a bottleneck with a queue, filled by a sender that, left
 * alone, keeps nine tenths of the queue full, as loss-based TCP does. What is asserted is what bulk
 * and urgent frames get out of it, not what the pacer thinks.
 */
#include "gateway/pacer.h"
#include "gateway/shortage.h"
#include "tests/support/values.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define STEP_S 0.001
#define FLOOR  (125e3)

#define N_STREAMS   4
#define TCP_FIRST   (N_STREAMS * 14480.0) /* bytes that go out in the first round trip ... */
#define TCP_FORGETS 0.25                  /* ... and again after so many seconds without work */

struct path {
    struct hdt_pacer pacer;
    double capacity, rtt_s, queue_max_s; /* bytes a second; of the drop-tail queue, at capacity */
    double others_s;                     /* queue of others, that nobody here can make shorter */
    double noise;                        /* of what is measured, part of it */
    bool is_urgent, is_starved;
    double on_s, off_s; /* mean length of bursts at burst_rate, and of pauses; 0: no pauses */
    double burst_rate, burst_bytes, pause_s; /* the latter two are left */
    struct values_rng load_rng; /* of its own: the load is the same whatever else is drawn */
    double off_for_s, ramp;     /* no work since; bytes a second that TCP has found; 0: all */
    double losses_per_window;   /* in which what is carried is halved for a round trip */
    double recovers_s;
    bool has_pacer; /* what it says holds */
    struct hdt_shortage shortage;
    int64_t shortage_from_us;
    double queue_bytes;
    double window_s, window_bytes; /* in this window */
    double clock_s;
    double time_s, bytes; /* since path_reset */
    double queue_sum_s;   /* time integral of the queue's delay */
    double rate;          /* that the pacer said */
    struct values_rng rng;
};

static void path_init(struct path *path, double mbits, double rtt_s)
{
    *path = (struct path){.capacity = mbits * 125e3,
                          .rtt_s = rtt_s,
                          .queue_max_s = 0.1,
                          .noise = 0.03,
                          .is_urgent = true,
                          .has_pacer = true,
                          .rng = {hdt_values_fixed_seed()}};
    hdt_pacer_init(&path->pacer, FLOOR);
}

static void path_reset(struct path *path)
{
    path->time_s = 0;
    path->bytes = 0;
    path->queue_sum_s = 0;
}

static int64_t path_now_us(const struct path *path)
{
    return 1 + (int64_t)(1e6 * path->clock_s);
}

/* A program hands over a burst, waits until all of it is there, and computes for a while. */
static void path_work(struct path *path)
{
    if (path->on_s == 0) {
        return;
    }
    if (path->burst_bytes <= 0 && path->queue_bytes < 1) {
        path->pause_s -= STEP_S;
        if (path->pause_s <= 0) {
            path->burst_bytes =
                path->burst_rate * path->on_s * (0.5 + hdt_values_uniform(&path->load_rng));
            path->pause_s = path->off_s * (0.5 + hdt_values_uniform(&path->load_rng));
        }
    }
    if (path->burst_bytes <= 0) {
        hdt_shortage_begin(&path->shortage, path_now_us(path));
        path->off_for_s += STEP_S;
        return;
    }
    hdt_shortage_end(&path->shortage, path_now_us(path));
    if (path->off_for_s > TCP_FORGETS) {
        path->ramp = TCP_FIRST / path->rtt_s;
    }
    path->off_for_s = 0;
    path->ramp *= pow(2, STEP_S / path->rtt_s);
    if (path->ramp > 4 * path->capacity) {
        path->ramp = 0;
    }
}

static void path_end_window(struct path *path)
{
    const double measured = path->window_bytes / path->window_s;
    const int64_t short_us = hdt_shortage_sum_us(&path->shortage, path_now_us(path));
    const struct hdt_pacer_window window = {
        .us = (int64_t)(1e6 * path->window_s),
        .bytes_per_s = measured * (1 + path->noise * (2 * hdt_values_uniform(&path->rng) - 1)),
        .queue_us = (int64_t)(1e6 * (path->queue_bytes / path->capacity + path->others_s) +
                              1e3 * hdt_values_uniform(&path->rng)),
        .rtt_us = (int64_t)(1e6 * path->rtt_s),
        .is_loaded = !path->is_starved && hdt_shortage_is_small(short_us - path->shortage_from_us,
                                                                1, (int64_t)(1e6 * path->window_s)),
        .is_urgent = path->is_urgent,
    };

    path->shortage_from_us = short_us;
    path->rate = path->has_pacer ? hdt_pacer_window(&path->pacer, &window) : 0;
    if (path->losses_per_window > 0 && hdt_values_uniform(&path->rng) < path->losses_per_window) {
        path->recovers_s = path->rtt_s;
    }
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

        path_work(path);
        if (path->is_starved) {
            sent = 0.1 * path->capacity * STEP_S;
        } else if (path->on_s > 0 && path->burst_bytes <= 0) {
            sent = 0;
        } else if (path->ramp > 0 && sent > path->ramp * STEP_S) {
            sent = path->ramp * STEP_S;
        }
        if (path->recovers_s > 0) {
            path->recovers_s -= STEP_S;
            sent = sent < path->capacity * STEP_S / 2 ? sent : path->capacity * STEP_S / 2;
        }
        if (path->rate > 0 && sent > path->rate * STEP_S) {
            sent = path->rate * STEP_S;
        }
        path->burst_bytes -= sent;
        carried = path->queue_bytes + sent;
        carried = carried < path->capacity * STEP_S ? carried : path->capacity * STEP_S;
        path->queue_bytes += sent - carried;
        if (path->queue_bytes > path->queue_max_s * path->capacity) { /* lost, and sent again */
            path->burst_bytes += path->queue_bytes - path->queue_max_s * path->capacity;
            path->queue_bytes = path->queue_max_s * path->capacity;
        }
        path->queue_sum_s += path->queue_bytes / path->capacity * STEP_S;
        path->bytes += carried;
        path->window_bytes += carried;
        path->time_s += STEP_S;
        path->clock_s += STEP_S;
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
                         rtts_s[k], path_use(&path), (unsigned long long)hdt_values_fixed_seed());
            cr_expect_lt(queue_s, limit_s, "%g Mbit/s, %g s: %.1f ms (seed %llu)", mbits[i],
                         rtts_s[k], 1e3 * queue_s, (unsigned long long)hdt_values_fixed_seed());
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
    cr_assert_gt(rate, 0); /* it is held back, as far as at just this moment */
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

/* Acknowledgements that wait for the next packet, and for processors, make round trips some
 * milliseconds longer at any rate, and a window now and then by more. What that takes comes back.
 */
Test(pacer, a_path_that_is_never_quite_calm_is_used)
{
    for (unsigned ms = 0; ms <= 4; ms++) {
        struct path path;

        path_init(&path, 200, 0.04);
        path.others_s = 1e-3 * ms;
        path_run(&path, 10);
        path_reset(&path);
        for (unsigned i = 0; i < 20; i++) {
            path.others_s += 0.02;
            path_run(&path, path_windows(&path, 1));
            path.others_s -= 0.02;
            path_run(&path, path_windows(&path, 24));
        }
        cr_expect_gt(path_use(&path), 0.92, "%u ms: %.3f", ms, path_use(&path));
        cr_expect_lt(path.queue_sum_s / path.time_s, 0.005, "%u ms: %.1f ms", ms,
                     1e3 * path.queue_sum_s / path.time_s);
    }
}

/* ---- load in bursts ---- */

#define N_SEEDS 20

static const struct {
    double on_s, off_s;
} bursts[] = {{0.1, 0.1}, {0.15, 0.6}, {0.4, 0.2}, {0.4, 1}, {1, 0.3}, {1, 2}, {3, 1}};
#define N_BURSTS (sizeof(bursts) / sizeof(bursts[0]))

static void burst_init(struct path *path, size_t burst, uint64_t seed, bool has_pacer)
{
    path_init(path, 50, 0.02);
    path->queue_max_s = 0.05;
    path->on_s = bursts[burst].on_s;
    path->off_s = bursts[burst].off_s;
    path->has_pacer = has_pacer;
    path->burst_rate = path->capacity;
    path->load_rng.state = seed;
}

/* The same load over the same path with and without a pacer: at least so much of it is carried. */
static void expect_bursts_carried(double losses_per_window, double least)
{
    const uint64_t first = hdt_values_fixed_seed();

    for (size_t k = 0; k < N_BURSTS; k++) {
        for (uint64_t seed = first; seed < first + N_SEEDS; seed++) {
            struct path with, without;

            burst_init(&with, k, seed, true);
            burst_init(&without, k, seed, false);
            with.losses_per_window = without.losses_per_window = losses_per_window;
            path_run(&with, 60);
            path_run(&without, 60);
            cr_expect_gt(
                with.bytes, least * without.bytes,
                "bursts of %g s, pauses of %g: %.3f of what is carried without (seed %llu)",
                bursts[k].on_s, bursts[k].off_s, with.bytes / without.bytes,
                (unsigned long long)seed);
        }
    }
}

Test(pacer, bursts_of_load_are_carried_as_without_it)
{
    expect_bursts_carried(0, 0.93);
}

/* Each loss halves what is carried for a while. */
Test(pacer, losses_in_bursts_are_no_slower_path)
{
    expect_bursts_carried(0.1, 0.9);
}

/* Windows until the rate is that of a link that became so many times slower. */
static int windows_to_follow(struct path *path, double times)
{
    int n = 0;

    path->capacity /= times;
    do {
        path_run(path, path_windows(path, 1));
        n++;
    } while (n < 1000 && (path->rate == 0 || path->rate > 1.05 * path->capacity));
    return n;
}

Test(pacer, a_link_that_becomes_slower_is_followed_within_a_few_windows)
{
    const double rtts_s[] = {0.02, 0.08, 0.3}, times[] = {1.5, 3, 10};

    for (size_t i = 0; i < 3; i++) {
        for (size_t k = 0; k < 3; k++) {
            struct path path;
            int n;

            path_init(&path, 200, rtts_s[i]);
            path_run(&path, path_windows(&path, 50));
            cr_assert_gt(path.rate, 0.8 * path.capacity);
            n = windows_to_follow(&path, times[k]);
            cr_expect_leq(n, 6, "%g s, %g times slower: %d windows", rtts_s[i], times[k], n);
            path_reset(&path);
            path_run(&path, path_windows(&path, 20));
            cr_expect_gt(path_use(&path), 0.9, "%g s, %g times slower: %.3f", rtts_s[i], times[k],
                         path_use(&path));
        }
    }
}

/* Bursts are long enough to know it by. */
Test(pacer, a_link_that_becomes_slower_in_bursts_is_followed)
{
    for (uint64_t seed = hdt_values_fixed_seed(); seed < hdt_values_fixed_seed() + N_SEEDS;
         seed++) {
        struct path path;

        path_init(&path, 50, 0.02);
        path.queue_max_s = 0.05;
        path.on_s = 3;
        path.off_s = 0.5;
        path.burst_rate = path.capacity;
        path.load_rng.state = seed;
        path_run(&path, 20);
        cr_assert_gt(path.rate, 0.75 * path.capacity, "%.3f (seed %llu)", path.rate / path.capacity,
                     (unsigned long long)seed);
        path.capacity /= 3;
        path_run(&path, 10);
        cr_expect(path.rate > 0.75 * path.capacity && path.rate < 1.1 * path.capacity,
                  "%.3f of the link (seed %llu)", path.rate / path.capacity,
                  (unsigned long long)seed);
    }
}

Test(shortage, lasts_from_the_first_vain_request_to_the_next_work)
{
    struct hdt_shortage shortage = {0};

    cr_assert_eq(hdt_shortage_sum_us(&shortage, 500), 0);
    hdt_shortage_begin(&shortage, 1000);
    hdt_shortage_begin(&shortage, 1400); /* it asks again */
    cr_assert_eq(hdt_shortage_sum_us(&shortage, 1500), 500, "while it lasts");
    hdt_shortage_end(&shortage, 1600);
    hdt_shortage_end(&shortage, 1700);
    cr_assert_eq(hdt_shortage_sum_us(&shortage, 9000), 600, "when it is over");
    hdt_shortage_begin(&shortage, 9000);
    hdt_shortage_end(&shortage, 9100);
    cr_assert_eq(hdt_shortage_sum_us(&shortage, 9900), 700, "and another one");
    cr_assert(hdt_shortage_is_small(40000, 4, 200000), "a twentieth of the streams' time");
    cr_assert_not(hdt_shortage_is_small(40001, 4, 200000));
}

Test(pacer, no_input_makes_it_fall_below_the_floor)
{
    struct values_rng rng = {hdt_values_fixed_seed()};
    struct hdt_pacer pacer;

    hdt_pacer_init(&pacer, FLOOR);
    for (int i = 0; i < 200000; i++) {
        const struct hdt_pacer_window window = {
            .us = 200000,
            .bytes_per_s =
                pow(10, 10 * hdt_values_uniform(&rng)) * (hdt_values_uniform(&rng) > 0.1),
            .queue_us = (int64_t)(1e6 * hdt_values_uniform(&rng) * hdt_values_uniform(&rng)),
            .rtt_us = (int64_t)(1e5 * hdt_values_uniform(&rng)),
            .is_loaded = hdt_values_uniform(&rng) > 0.2,
            .is_urgent = hdt_values_uniform(&rng) > 0.01,
        };
        const double rate = hdt_pacer_window(&pacer, &window);

        cr_assert(rate == 0 || rate >= FLOOR, "%g in window %d (seed %llu)", rate, i,
                  (unsigned long long)hdt_values_fixed_seed());
        cr_assert(rate < 1e11, "%g in window %d (seed %llu)", rate, i,
                  (unsigned long long)hdt_values_fixed_seed());
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
