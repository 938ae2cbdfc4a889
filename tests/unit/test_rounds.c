/* SPDX-License-Identifier: Apache-2.0 */
/* The rounds of a link's measurement. Rates in Mbit/s, over 150 ms unless a test says otherwise. */
#include "config.h"

#include "gateway/rounds.h"

#include <criterion/criterion.h>

#define RTT_S 0.15

/* A round of 12 round trips at 200 Mbit/s, timed over ten. */
static bool found(struct hdt_rounds *rounds, double rate)
{
    return hdt_rounds_answered(rounds, rate, 10 * RTT_S, (uint64_t)(200 * 12 * RTT_S), RTT_S);
}

Test(rounds, go_on_while_more_comes_and_one_held_round_counts)
{
    struct hdt_rounds rounds = {0};

    for (double rate = 25; rate < 201; rate *= 2) {
        cr_expect(!found(&rounds, rate));
        cr_expect(!rounds.is_held, "%g", rate);
    }
    cr_expect(!found(&rounds, 198));
    cr_expect(rounds.is_held);
    cr_expect(found(&rounds, 199));
    cr_expect_float_eq(hdt_rounds_rate(&rounds), 199, 1e-9);
}

/* Rounds that find these rates, 0 behind them: the last of them, and none before it, is the end. */
static void expect_rate(const double *rates, double rate)
{
    struct hdt_rounds rounds = {0};

    for (; *rates > 0; rates++) {
        cr_expect_eq(found(&rounds, *rates), rates[1] == 0, "%g", *rates);
    }
    cr_expect_float_eq(hdt_rounds_rate(&rounds), rate, 1e-9);
}

/* In the search two thirds of the link come in order: that is no rate of it. */
Test(rounds, the_held_round_is_the_rate_whatever_the_search_brought)
{
    expect_rate((const double[]){133, 132, 198, 0}, 198);
}

Test(rounds, one_that_a_processor_held_up_is_made_again)
{
    expect_rate((const double[]){190, 190, 100, 195, 0}, 195);
}

/* There are six at most, the last one held. Where all that were held were held up, the best of the
 * others counts, but for the first. */
Test(rounds, come_to_an_end)
{
    struct hdt_rounds grows = {0};

    for (int i = 0; i < HDT_ROUNDS_MAX; i++) {
        cr_expect_eq(grows.is_held, i == HDT_ROUNDS_MAX - 1);
        cr_expect_eq(found(&grows, 100 << i), i == HDT_ROUNDS_MAX - 1);
    }
    cr_expect_float_eq(hdt_rounds_rate(&grows), 3200, 1e-9);
    expect_rate((const double[]){200, 190, 50, 120, 90, 60, 0}, 190);
}

/* A deadline may come after any of them. */
Test(rounds, what_was_found_so_far)
{
    struct hdt_rounds rounds = {0};

    cr_expect_eq(hdt_rounds_rate(&rounds), 0);
    found(&rounds, 200);
    cr_expect_float_eq(hdt_rounds_rate(&rounds), 200, 1e-9);
    found(&rounds, 190);
    cr_expect_float_eq(hdt_rounds_rate(&rounds), 190, 1e-9);
    found(&rounds, 104);
    cr_expect_float_eq(hdt_rounds_rate(&rounds), 190, 1e-9);
}

/* Of what came within its time alone, say. */
Test(rounds, one_that_was_timed_for_a_few_round_trips_does_not_count)
{
    struct hdt_rounds rounds = {0};

    cr_expect(!found(&rounds, 200));
    cr_expect(!found(&rounds, 200));
    cr_expect(!hdt_rounds_answered(&rounds, 200, 3 * RTT_S, 360, RTT_S));
    cr_expect(found(&rounds, 200));
}

/* A search is a small part of four megabytes over a millisecond, and of a slow link's seconds. */
Test(rounds, one_of_many_round_trips_is_enough)
{
    struct hdt_rounds rounds = {0}, none = {0};

    cr_expect(hdt_rounds_answered(&rounds, 1e6, 4, 4 << 20, 1e-3));
    cr_expect_float_eq(hdt_rounds_rate(&rounds), 1e6, 1e-9);
    cr_expect(hdt_rounds_answered(&none, 1e9, 1e-3, 4 << 20, 0));
}

Test(rounds, where_the_rate_is_known_the_second_may_count)
{
    struct hdt_rounds rounds = {.is_known = true};

    cr_expect(!found(&rounds, 100));
    cr_expect(rounds.is_held);
    cr_expect(found(&rounds, 190));
    cr_expect_float_eq(hdt_rounds_rate(&rounds), 190, 1e-9);
}

Test(rounds, filler_is_twelve_round_trips_or_a_third_of_a_second)
{
    cr_expect_float_eq((double)hdt_rounds_filler(25e6, RTT_S), 45e6, 2);
    cr_expect_float_eq((double)hdt_rounds_filler(25e6, 1e-3), 7.5e6, 2);
    cr_expect_leq(hdt_rounds_filler(1e300, 10), 1000000000001);
}
