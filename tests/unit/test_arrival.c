/* SPDX-License-Identifier: Apache-2.0 */
/* The rate of a probe's filler, over links that are played by hand and whose rate is known. */
#include "config.h"

#include "gateway/arrival.h"

#include <criterion/criterion.h>

#define RECORD 65536
#define N      128 /* records of a round: 8 MiB */

static double rate(const struct hdt_arrival *arrival, bool is_warm)
{
    uint64_t bytes;
    int64_t us;

    hdt_arrival_rate(arrival, is_warm, &bytes, &us);
    return us > 0 ? (double)bytes / (double)us : 0;
}

/* Records at `link` bytes a microsecond, the first eighth at `start` of it (1: streams had their
 * rate). What arrives from record `hole` on until `open` is handed over with record `open`. */
static double played_from(double start, int n, uint64_t len, double link, int hole, int open)
{
    struct hdt_arrival arrival = {0};
    double at_us = 1e6, open_us = 0;

    for (int i = 0; i < n; i++) {
        if (i == open) {
            open_us = at_us;
        }
        at_us += (double)len / (i < n / 8 ? link * start : link);
    }
    at_us = 1e6;
    for (int i = 0; i < n; i++) {
        at_us += (double)len / (i < n / 8 ? link * start : link);
        hdt_arrival_add(&arrival, len,
                        (int64_t)(i >= hole && i < open && at_us < open_us ? open_us : at_us));
    }
    return rate(&arrival, start == 1);
}

static double played(int n, uint64_t len, double link, int hole, int open)
{
    return played_from(0.25, n, len, link, hole, open);
}

Test(arrival, a_link_that_loses_nothing)
{
    cr_expect_float_eq(played(N, RECORD, 5, N, N), 5, 0.05);
    cr_expect_float_eq(played(N, RECORD, 125, N, N), 125, 1.3);
}

/* 40 Mbit/s: a packet of record 20, 30, 40 or 50 is lost and comes again 150 to 400 ms later. */
Test(arrival, what_waited_behind_a_lost_packet_is_not_taken_for_new)
{
    for (int hole = 20; hole <= 50; hole += 10) {
        for (int len = 12; len <= 30; len += 6) {
            cr_expect_float_eq(played(N, RECORD, 5, hole, hole + len), 5, 0.25,
                               "%d records from %d on: %g", len, hole,
                               played(N, RECORD, 5, hole, hole + len));
        }
    }
}

/* 200 Mbit/s and a reader that did not come to it for half of the time, from the fifth record
 * on: of cold streams that may be their search for the rate. */
Test(arrival, a_reader_that_waited_for_a_processor)
{
    cr_expect_float_eq(played_from(1, N, RECORD, 25, 5, 70), 25, 1.2);
    cr_expect_gt(played(N, RECORD, 25, 5, 70), 26);
}

Test(arrival, many_more_records_than_samples)
{
    cr_expect_float_eq(played(100000, 1400, 25, 100000, 100000), 25, 0.3);
    cr_expect_float_eq(played(100000, 1400, 25, 40000, 48000), 25, 1.0);
}

Test(arrival, little_came)
{
    struct hdt_arrival arrival = {0};
    uint64_t bytes = 1;
    int64_t us = 1;

    hdt_arrival_rate(&arrival, false, &bytes, &us);
    cr_expect(bytes == 0 && us == 0);
    hdt_arrival_add(&arrival, RECORD, 1000);
    cr_expect_eq(rate(&arrival, false), 0);
    hdt_arrival_add(&arrival, RECORD, 1000 + RECORD);
    cr_expect_float_eq(rate(&arrival, false), 1, 1e-9);
    arrival = (struct hdt_arrival){0};
    hdt_arrival_add(&arrival, RECORD, 1000);
    hdt_arrival_add(&arrival, RECORD, 1000);
    cr_expect_eq(rate(&arrival, false), 0); /* no time passed */
}
