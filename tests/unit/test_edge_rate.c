/* SPDX-License-Identifier: Apache-2.0 */
/* What frames say of a link: played by hand with a link whose rate is known. */
#include "config.h"

#include "gateway/edge_rate.h"
#include "tests/support/values.h"

#include <criterion/criterion.h>
#include <math.h>

#define MS  1000
#define RTT (40 * MS)

/* A link of `bytes_per_s`: a frame begins to arrive half a round trip after it was cut or when the
 * one before has come, and its HAVE needs another half. */
struct link {
    double bytes_per_s;
    double free_us;
    struct hdt_edge_rate rate;
};

static void frame_send(struct link *link, double cut_us, double bytes)
{
    double first = cut_us + RTT / 2.0;

    first = first > link->free_us ? first : link->free_us;
    link->free_us = first + bytes * 1e6 / link->bytes_per_s;
    hdt_edge_rate_have(&link->rate, (int64_t)cut_us, bytes, RTT,
                       (int64_t)(link->free_us + RTT / 2.0));
}

/* Steps of a second from `at_us` on, with eight frames each, `apart_us` from one to the next. */
static double steps_play(struct link *link, double at_us, int n, double bytes, double apart_us)
{
    for (int step = 0; step < n; step++) {
        for (int i = 0; i < 8; i++) {
            frame_send(link, at_us + 1e6 * step + apart_us * i, bytes);
        }
    }
    return link->rate.bytes_per_s;
}

Test(edge_rate, a_full_link)
{
    struct link link = {.bytes_per_s = 2.5e6};
    double got = steps_play(&link, 1e6, 4, 1e6, 0);

    cr_expect(fabs(got / 2.5e6 - 1) < 0.01, "%g bytes a second", got);
}

/* 250 kB take 2 ms of 125 MB/s, so that the link is idle most of the time. */
Test(edge_rate, a_link_that_is_hardly_used)
{
    struct link link = {.bytes_per_s = 125e6};
    double got = steps_play(&link, 1e6, 4, 250e3, 100 * MS);

    cr_expect(fabs(got / 125e6 - 1) < 0.01, "%g bytes a second", got);
}

/* 100 kB a tenth of a second apart, 40 ms of 2.5 MB/s; while one is on its way, labels of 2 kB go
 * on another stream and are there 15 ms before it: it is no faster for that. */
Test(edge_rate, a_small_frame_that_overtakes_says_nothing)
{
    struct hdt_edge_rate rate = {0};

    for (int i = 0; i < 40; i++) {
        const int64_t cut_us = 1000 * MS + i * 100 * MS;

        hdt_edge_rate_have(&rate, cut_us + 20 * MS, 2e3, RTT, cut_us + 25 * MS + RTT);
        hdt_edge_rate_have(&rate, cut_us, 100e3, RTT, cut_us + 40 * MS + RTT);
    }
    cr_expect(fabs(rate.bytes_per_s / 2.5e6 - 1) < 0.01, "%g bytes a second", rate.bytes_per_s);
}

/* 220 kB every 30 ms, 1.76 ms of 125 MB/s. Each sixth has to wait 4 ms for a processor, and one in
 * each second 190 ms, which the frames cut meanwhile wait for, too. */
Test(edge_rate, waits_for_processors_are_not_the_link)
{
    struct hdt_edge_rate rate = {0};
    int64_t free_us = 0;

    for (int i = 0; i < 200; i++) {
        const int64_t cut_us = 1000 * MS + i * 30 * MS;
        const int64_t wait_us = i % 33 == 20 ? 190 * MS : i % 6 == 0 ? 4 * MS : 0;
        const int64_t have_us = cut_us + RTT + 1760 + wait_us;

        free_us = have_us > free_us ? have_us : free_us + 200;
        hdt_edge_rate_have(&rate, cut_us, 220e3, RTT, free_us);
        if (i > 40) {
            cr_expect(fabs(rate.bytes_per_s / 125e6 - 1) < 0.01, "frame %d: %g bytes a second", i,
                      rate.bytes_per_s);
        }
    }
}

/* Short steps of many bursts: the window ends before its room does. */
Test(edge_rate, many_bursts_in_a_second)
{
    struct link link = {.bytes_per_s = 2.5e9};

    for (int i = 0; i < 1000; i++) {
        frame_send(&link, 1e6 + 1e3 * i, 1e6);
    }
    cr_expect(fabs(link.rate.bytes_per_s / 2.5e9 - 1) < 0.01, "%g", link.rate.bytes_per_s);
}

/* Two seconds of steps after a change, the figure is that of the new rate. */
Test(edge_rate, follows_down_and_up)
{
    struct link link = {.bytes_per_s = 125e6};

    steps_play(&link, 1e6, 3, 250e3, 20 * MS);
    link.bytes_per_s = 2.5e6;
    cr_expect(fabs(steps_play(&link, 4e6, 3, 250e3, 20 * MS) / 2.5e6 - 1) < 0.01);
    link.bytes_per_s = 125e6;
    cr_expect(fabs(steps_play(&link, 8e6, 3, 250e3, 20 * MS) / 125e6 - 1) < 0.01);
}

/* Frames that come faster than the round trip is known do not make the rate infinite, and records
 * of some bytes say nothing. */
Test(edge_rate, what_says_nothing)
{
    struct hdt_edge_rate rate = {0};
    int i;

    for (i = 0; i < 10; i++) {
        hdt_edge_rate_have(&rate, 1000000 * (i + 1), 64, RTT, 1000000 * (i + 1) + RTT + 5 * MS);
    }
    cr_expect_eq(rate.bytes_per_s, 0);
    for (i = 10; i < 20; i++) {
        hdt_edge_rate_have(&rate, 1000000 * (i + 1), 1e6, RTT, 1000000 * (i + 1) + RTT / 2);
    }
    cr_expect(rate.bytes_per_s > 0 && rate.bytes_per_s <= 1e6 / 100e-6, "%g", rate.bytes_per_s);
}

/* ---- does the codec pay? ---- */

/* 1000 frames of 1 MB; with the codec they take `on_us`, without `off_us`. Returns how many of the
 * last 160 were coded. */
static int trial_play(struct hdt_codec_trial *trial, int64_t on_us, int64_t off_us)
{
    int n = 0;

    for (int i = 0; i < 1000; i++) {
        const bool coded = hdt_codec_trial_next(trial);

        hdt_codec_trial_saw(trial, coded, trial->era, 1e6,
                            (struct hdt_edge_busy){.us = coded ? on_us : off_us});
        n += i >= 840 && coded;
    }
    return n;
}

/* The faster way takes 15 of 16 frames; a difference of 3 % changes nothing. */
Test(edge_rate, the_faster_way_is_taken)
{
    struct hdt_codec_trial trial = {0};

    cr_expect_eq(trial_play(&trial, 10000, 12000), 150);
    cr_expect_eq(trial_play(&trial, 10000, 9700), 150);
    cr_expect_eq(trial_play(&trial, 10000, 9000), 10);
    cr_expect_eq(trial_play(&trial, 10000, 10300), 10);
    cr_expect_eq(trial_play(&trial, 10000, 12000), 150);
}

/* As measured on a core that gateway and worker share: a quarter of the frames wait 4 ms more, and
 * now and then one 200 ms. */
Test(edge_rate, the_faster_way_is_taken_on_a_busy_machine)
{
    struct hdt_codec_trial trial = {0};
    struct values_rng rng = {hdt_values_fixed_seed()};
    int n = 0;

    for (int i = 0; i < 2000; i++) {
        const bool coded = hdt_codec_trial_next(&trial);
        const double luck = hdt_values_uniform(&rng);
        const int64_t wait_us = luck < 0.03 ? 200 * MS : luck < 0.25 ? 4 * MS : 0;

        hdt_codec_trial_saw(&trial, coded, trial.era, 260e3,
                            (struct hdt_edge_busy){.us = (coded ? 2500 : 2900) + wait_us});
        n += i >= 400 && coded;
    }
    cr_expect_geq(n, 1450, "%d of 1600 frames coded (seed %llu)", n,
                  (unsigned long long)hdt_values_fixed_seed());
}

/* A link that is full for long: frames of `coded` times their bytes (or one, without the codec)
 * share it, 16 at a time, and come in another order than they were cut in, some at once. After each
 * `pause` frames (0: never) all arrive before the next is cut. How many of the last 1500 of 2000
 * were coded. */
struct full_frame {
    int64_t cut_us, have_us;
    unsigned era;
    bool coded;
};

struct full {
    struct full_frame on_way[16];
    unsigned n;
    int64_t now_us;
    double free_us; /* when the link has carried what was cut */
    double factor;
    struct hdt_edge_rate rate;
    struct hdt_codec_trial trial;
};

static void full_arrive(struct full *full)
{
    struct full_frame *first = &full->on_way[0], done;

    for (unsigned k = 1; k < full->n; k++) {
        first = full->on_way[k].have_us < first->have_us ? &full->on_way[k] : first;
    }
    done = *first;
    *first = full->on_way[--full->n];
    full->now_us = done.have_us > full->now_us ? done.have_us : full->now_us;
    hdt_codec_trial_saw(&full->trial, done.coded, done.era, 1e6,
                        hdt_edge_rate_have(&full->rate, done.cut_us,
                                           1e6 * (done.coded ? full->factor : 1), RTT,
                                           full->now_us));
}

static int full_play(double factor, int pause, struct values_rng *rng)
{
    struct full full = {.now_us = 1000000, .free_us = 1e6, .factor = factor};
    int n_coded = 0;

    for (int i = 0; i < 2000; i++) {
        struct full_frame *frame = &full.on_way[full.n++];

        frame->coded = hdt_codec_trial_next(&full.trial);
        frame->era = full.trial.era;
        frame->cut_us = full.now_us;
        n_coded += i >= 500 && frame->coded;
        full.free_us += 30000 * (frame->coded ? factor : 1);
        frame->have_us = (int64_t)(full.free_us + 60000 * hdt_values_uniform(rng)) + RTT;
        while (full.n == 16 || (pause > 0 && i % pause == pause - 1 && full.n > 0)) {
            full_arrive(&full);
        }
        if (full.n == 0) {
            full.now_us += 200 * MS;
            full.free_us = (double)full.now_us;
        }
    }
    return n_coded;
}

/* Where it halves or saves a third it is used, where it costs a third it is not. */
Test(edge_rate, the_faster_way_is_taken_on_a_full_link)
{
    const double factors[] = {0.5, 0.67, 1.33};
    const int pauses[] = {0, 80};

    for (size_t i = 0; i < 6; i++) {
        const double factor = factors[i / 2];

        for (uint64_t seed = hdt_values_fixed_seed(); seed < hdt_values_fixed_seed() + 20; seed++) {
            struct values_rng rng = {seed};
            const int n = full_play(factor, pauses[i % 2], &rng);

            cr_expect(factor < 1 ? n > 1350 : n < 250, "%g, %d: %d of 1500 coded (seed %llu)",
                      factor, pauses[i % 2], n, (unsigned long long)seed);
        }
    }
}
