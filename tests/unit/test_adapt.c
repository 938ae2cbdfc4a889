/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of codecs, against cases worked out by hand. */
#include "config.h"

#include "compress/adapt.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#define MB 1e6

static void expect_near(double got, double want, const char *what)
{
    cr_expect(fabs(got - want) <= 1e-9 * fabs(want), "%s: %.12g, by hand %.12g", what, got, want);
}

/* 4 MB of fp32 a frame; a link of 100 MB/s with 40 ms there and back. */
static const struct hdt_adapt_candidate plain = {.spec = {.worker = HDT_CODEC_NONE},
                                                 .encode_bytes_per_s = 8000 * MB,
                                                 .decode_bytes_per_s = 8000 * MB,
                                                 .frame_bytes = 4 * MB,
                                                 .gw_ratio = 1};
static const struct hdt_adapt_candidate bf16 = {.spec = {.worker = HDT_CODEC_BF16},
                                                .encode_bytes_per_s = 4000 * MB,
                                                .decode_bytes_per_s = 8000 * MB,
                                                .frame_bytes = 2 * MB,
                                                .gw_ratio = 1,
                                                .error = 0.0015};
static const struct hdt_adapt_candidate int8 = {.spec = {.worker = HDT_CODEC_INT8},
                                                .encode_bytes_per_s = 2000 * MB,
                                                .decode_bytes_per_s = 4000 * MB,
                                                .frame_bytes = 1 * MB,
                                                .gw_ratio = 1,
                                                .error = 0.007};

static struct hdt_adapt_input input_of(const struct hdt_adapt_candidate *candidates, size_t n)
{
    return (struct hdt_adapt_input){.goodput_bytes_per_s = 100 * MB,
                                    .rtt_s = 0.04,
                                    .tensor_bytes = 4 * MB,
                                    .n_frames = 8,
                                    .error_budget = 0.02,
                                    .least_gain = 0.05,
                                    .exact_cost = 0.02,
                                    .measured_us = 90,
                                    .changed_us = 10,
                                    .now_us = 100,
                                    .fresh_us = 20,
                                    .current = -1,
                                    .candidates = candidates,
                                    .n = n};
}

/*
 * none: link 4 / 100 = 40 ms; int8: 1 / 100 = 10 ms. alone: none 0.5 + 40 + 20 + 0.5 = 61 ms, int8
 * 2 + 10 + 20 + 1 = 33 ms. Eight frames: none 7 x 40 + 61 = 341 ms, bf16 7 x 20 + (1 + 20 + 20 +
 * 0.5) = 181.5 ms, int8 7 x 10 + 33 = 103 ms.
 */
Test(adapt, least_step_time_by_hand)
{
    const struct hdt_adapt_candidate c[] = {plain, bf16, int8};
    struct hdt_adapt_input in = input_of(c, 3);
    struct hdt_adapt_table t;

    hdt_adapt_choose(&in, &t);
    expect_near(t.rows[0].pace_s, 0.040, "pace of none");
    expect_near(t.rows[0].alone_s, 0.061, "none alone");
    expect_near(t.rows[0].step_s, 0.341, "step with none");
    expect_near(t.rows[1].step_s, 0.1815, "step with bf16");
    expect_near(t.rows[2].alone_s, 0.033, "int8 alone");
    expect_near(t.rows[2].step_s, 0.103, "step with int8");
    cr_expect_eq(t.chosen, 2);
    cr_expect_eq(t.rows[2].why, HDT_ADAPT_CHOSEN);
    cr_expect_eq(t.rows[1].why, HDT_ADAPT_SLOWER);
    cr_expect_eq(t.rows[1].slowest, HDT_ADAPT_AT_LINK);
}

/* Arithmetic of 50 ms beside each frame hides the link: the pace is 50 ms and the cost of coding,
 * 50.5, 51 and 52 ms. Over 64 frames none takes 63 x 50.5 + 61 = 3242.5 ms, bf16 63 x 51 + 41.5 =
 * 3254.5, int8 63 x 52 + 33 = 3309: exact is fastest. */
Test(adapt, a_codec_does_not_pay_behind_arithmetic)
{
    const struct hdt_adapt_candidate c[] = {plain, bf16, int8};
    struct hdt_adapt_input in = input_of(c, 3);
    struct hdt_adapt_table t;

    in.src_busy_s = in.dst_busy_s = 0.05;
    in.n_frames = 64;
    hdt_adapt_choose(&in, &t);
    expect_near(t.rows[0].step_s, 3.2425, "step with none");
    expect_near(t.rows[1].step_s, 3.2545, "step with bf16");
    expect_near(t.rows[2].step_s, 3.309, "step with int8");
    cr_expect_eq(t.chosen, 0);
    cr_expect_eq(t.rows[2].slowest, HDT_ADAPT_AT_SRC);
}

/* One core of plain zstd, 0.785 GB/s at 1.27 times: whole gain below 0.618 GB/s (4.9 Gbit/s), none
 * above 0.785 GB/s (6.3 Gbit/s). On 0.3 GB/s the tensor moves at 0.381, on 0.7 GB/s at 0.785. */
Test(adapt, break_even_of_a_gateway_codec)
{
    struct hdt_adapt_candidate zstd = {.spec = {.gateway = HDT_CODEC_LOSSLESS},
                                       .gw_encode_bytes_per_s = 785 * MB,
                                       .gw_decode_bytes_per_s = 950 * MB,
                                       .frame_bytes = 4 * MB,
                                       .gw_ratio = 1.27};
    struct hdt_adapt_input in = input_of(&zstd, 1);
    struct hdt_adapt_table t;

    in.goodput_bytes_per_s = 300 * MB;
    hdt_adapt_choose(&in, &t);
    expect_near(t.rows[0].full_below_bytes_per_s, 785 * MB / 1.27, "whole gain below");
    expect_near(t.rows[0].none_above_bytes_per_s, 785 * MB, "no gain above");
    expect_near(t.rows[0].goodput_bytes_per_s, 381 * MB, "goodput where the link limits");
    in.goodput_bytes_per_s = 700 * MB;
    hdt_adapt_choose(&in, &t);
    expect_near(t.rows[0].goodput_bytes_per_s, 785 * MB, "goodput where the codec limits");
    cr_expect_eq(t.rows[0].slowest, HDT_ADAPT_AT_SRC_GATEWAY);
}

/* bf16 frames are half as long, so a gateway's rate counts twice in bytes of the tensor; the wire
 * has 2 / 1.5 MB, three times less than the tensor. */
Test(adapt, rates_of_both_codecs_are_of_the_tensor)
{
    struct hdt_adapt_candidate both = bf16;
    struct hdt_adapt_input in = input_of(&both, 1);
    struct hdt_adapt_table t;

    both.gw_encode_bytes_per_s = 1000 * MB;
    both.gw_decode_bytes_per_s = 1500 * MB;
    both.gw_ratio = 1.5;
    hdt_adapt_choose(&in, &t);
    expect_near(t.rows[0].ratio, 3, "ratio");
    expect_near(t.rows[0].codec_bytes_per_s, 2000 * MB, "slowest coding");
    expect_near(t.rows[0].full_below_bytes_per_s, 2000 * MB / 3, "whole gain below");
}

/* A ratio below 1 costs nothing on the wire: the gateway sends plain what grows. */
Test(adapt, what_grows_is_sent_plain)
{
    struct hdt_adapt_candidate grows = plain;
    struct hdt_adapt_input in = input_of(&grows, 1);
    struct hdt_adapt_table t;

    grows.gw_ratio = 0.9;
    hdt_adapt_choose(&in, &t);
    expect_near(t.rows[0].wire_bytes, 4 * MB, "bytes on the wire");
    expect_near(t.rows[0].none_above_bytes_per_s, 0, "break-even of what saves nothing");
}

/*
 * 4 MB, 15.2588 chunks, coded in 4 ms and decoded in 2 to 3.2 MB: the first chunk in and the last
 * one out take 6 / 15.2588 = 0.393216 ms. On 1000 MB/s the rest of the coding takes longer than the
 * wire, 4 - 4 / 15.2588 = 3.737856 ms against 3.2: 4.131072 ms, not a twentieth more than the 4 ms
 * without. On 500 MB/s it is 6.4 + 0.393216 ms. On 2000 MB/s 4.13 ms against 2: it is left out.
 */
Test(adapt, a_gateway_leaves_out_what_does_not_pay)
{
    const struct hdt_adapt_candidate c = {.frame_bytes = 4 * MB,
                                          .gw_encode_bytes_per_s = 1000 * MB,
                                          .gw_decode_bytes_per_s = 2000 * MB,
                                          .gw_ratio = 1.25};
    struct hdt_adapt_crossing way;

    hdt_adapt_cross(&c, 1000 * MB, &way);
    expect_near(way.alone_s, 0.004131072, "alone on 1000 MB/s");
    expect_near(way.wire_bytes, 3.2 * MB, "coded bytes");
    hdt_adapt_cross(&c, 500 * MB, &way);
    expect_near(way.alone_s, 0.006793216, "alone on 500 MB/s");
    hdt_adapt_cross(&c, 2000 * MB, &way);
    expect_near(way.alone_s, 0.002, "alone on 2000 MB/s");
    expect_near(way.wire_bytes, 4 * MB, "plain bytes");
    cr_expect_eq(way.encode_s, 0);
    cr_expect_eq(way.decode_s, 0);
    hdt_adapt_cross(&c, 0, &way);
    cr_expect_eq(way.link_s, 0, "nothing is known of the link");
    expect_near(way.encode_s, 0.004, "coded");
}

/*
 * Gateways of two codec threads on the workers' processors: 1 GB/s in, 2 GB/s out, 2 ns of CPU time
 * for a byte sent, 5 ns for one received. lossless, 3.2 of 4 MB on the wire: held_src 2 x 4 + 6.4 =
 * 14.4 ms, of the other worker (of which it takes a thread of two) (2 x 2 + 16) / 2 =
 * 10 ms. bf16+lossless, 1.6 of 2 MB: 2 x 2 + 3.2 = 7.2 ms and (2 x 1 + 8) / 2 = 5 ms. Beside 50 ms
 * of arithmetic src is 50 + 0.5 + 14.4 = 64.9 ms against 50 + 1 + 7.2 = 58.2; without the
 * gateways 50.5 against 51.
 */
Test(adapt, a_gateway_holds_up_the_worker_beside_it)
{
    struct hdt_adapt_candidate c[] = {plain, bf16};
    struct hdt_adapt_input in = input_of(c, 2);
    struct hdt_adapt_table t;

    for (int i = 0; i < 2; i++) {
        c[i].gw_encode_bytes_per_s = 1000 * MB;
        c[i].gw_decode_bytes_per_s = 2000 * MB;
        c[i].gw_ratio = 1.25;
    }
    in.goodput_bytes_per_s = 500 * MB;
    in.src_busy_s = in.dst_busy_s = 0.05;
    in.n_frames = 64;
    in.gw_threads = 2;
    in.send_s_per_byte = 2e-9;
    in.recv_s_per_byte = 5e-9;
    hdt_adapt_choose(&in, &t);
    expect_near(t.rows[0].pace_s, 0.0505, "pace with lossless, gateways elsewhere");
    cr_expect_eq(t.chosen, 0);
    in.src_share = 1;
    in.dst_share = 0.5;
    hdt_adapt_choose(&in, &t);
    expect_near(t.rows[0].src_held_s, 0.0144, "held by lossless at src");
    expect_near(t.rows[0].dst_held_s, 0.010, "held by lossless at dst");
    expect_near(t.rows[1].src_held_s, 0.0072, "held by bf16 at src");
    expect_near(t.rows[1].dst_held_s, 0.005, "held by bf16 at dst");
    expect_near(t.rows[0].pace_s, 0.0649, "pace with lossless");
    expect_near(t.rows[1].pace_s, 0.0582, "pace with bf16");
    cr_expect_eq(t.chosen, 1);
    cr_expect_eq(t.rows[1].slowest, HDT_ADAPT_AT_SRC);
    in.src_share = 0;
    hdt_adapt_choose(&in, &t);
    expect_near(t.rows[0].pace_s, 0.0605, "pace with lossless, of the receiving worker");
    cr_expect_eq(t.rows[0].slowest, HDT_ADAPT_AT_DST);
}

/*
 * Frames of 100 and 50 kB, 20 and 10 ms of a link of 5 MB/s with 20 ms there and back, beside 30 ms
 * of arithmetic at both ends, and two micro-batches in flight: the first codec, in use, takes 30 ms
 * alone, a turn 30 + 30 + 30 + 30 = 120 ms, a frame 60; the second 20 ms alone, while the way back
 * is as it was: 110 ms, 55. Eight frames: 7 x 60 + 30 = 450 ms, 7 x 55 + 20 = 405. With enough in
 * flight arithmetic would hide both, 7 x 30 + 30 = 240 and 230 ms: a gain of 4.2 %, less than it
 * takes.
 */
Test(adapt, what_is_in_flight_limits_the_pace)
{
    const struct hdt_adapt_candidate c[] = {{.frame_bytes = 0.1 * MB, .gw_ratio = 1},
                                            {.frame_bytes = 0.05 * MB, .gw_ratio = 1}};
    struct hdt_adapt_input in = input_of(c, 2);
    struct hdt_adapt_table t;
    char text[HDT_ADAPT_TEXT];

    in.goodput_bytes_per_s = 5 * MB;
    in.rtt_s = 0.02;
    in.src_busy_s = in.dst_busy_s = 0.03;
    in.current = 0;
    in.in_flight = 8;
    hdt_adapt_choose(&in, &t);
    expect_near(t.rows[0].step_s, 0.240, "step of the first, eight in flight");
    expect_near(t.rows[1].step_s, 0.230, "step of the second, eight in flight");
    cr_expect_eq(t.chosen, 0);
    in.in_flight = 2;
    hdt_adapt_choose(&in, &t);
    expect_near(t.rows[0].turn_s, 0.120, "turn of the first");
    expect_near(t.rows[1].turn_s, 0.110, "turn of the second");
    expect_near(t.rows[0].step_s, 0.450, "step of the first, two in flight");
    expect_near(t.rows[1].step_s, 0.405, "step of the second, two in flight");
    cr_expect_eq(t.chosen, 1);
    hdt_adapt_why_text(&in, &t, 1, text);
    cr_expect_str_eq(text, "chosen: the way there and back sets the pace");
    in.current = -1; /* the way back is as this one */
    in.beyond_s = 0.04;
    hdt_adapt_choose(&in, &t);
    expect_near(t.rows[1].turn_s, 0.140, "turn of the second, both ways, past stages of 40 ms");
}

Test(adapt, nothing_above_the_budget)
{
    const struct hdt_adapt_candidate c[] = {plain, bf16, int8};
    struct hdt_adapt_input in = input_of(c, 3);
    struct hdt_adapt_table t;

    in.error_budget = 0.005;
    hdt_adapt_choose(&in, &t);
    cr_expect_eq(t.chosen, 1);
    cr_expect_eq(t.rows[2].why, HDT_ADAPT_OVER_BUDGET);
    in.error_budget = 0;
    in.current = 1; /* it may not stay */
    hdt_adapt_choose(&in, &t);
    cr_expect_eq(t.chosen, 0);
}

Test(adapt, a_guard_bars)
{
    struct hdt_adapt_candidate c[] = {plain, bf16, int8};
    struct hdt_adapt_input in = input_of(c, 3);
    struct hdt_adapt_table t;

    c[2].is_barred = true;
    in.current = 2;
    in.measured_us = 0; /* stale figures do not keep what is barred */
    hdt_adapt_choose(&in, &t);
    cr_expect_eq(t.chosen, 1);
    cr_expect_eq(t.rows[2].why, HDT_ADAPT_BARRED);
    c[0].is_barred = c[1].is_barred = true; /* none is left: the most exact */
    hdt_adapt_choose(&in, &t);
    cr_expect_eq(t.chosen, 0);
}

/* A change must gain more than 5 %: bf16 against a codec that is 4 % and 6 % slower. */
Test(adapt, a_small_gain_changes_nothing)
{
    struct hdt_adapt_candidate c[] = {bf16, bf16};
    struct hdt_adapt_input in = input_of(c, 2);
    struct hdt_adapt_table t;

    in.n_frames = 1e6; /* pace alone: the share of link bytes */
    in.current = 0;
    c[1].frame_bytes = 0.96 * c[0].frame_bytes;
    hdt_adapt_choose(&in, &t);
    cr_expect_eq(t.chosen, 0);
    cr_expect_eq(t.rows[1].why, HDT_ADAPT_HELD);
    c[1].frame_bytes = 0.94 * c[0].frame_bytes;
    hdt_adapt_choose(&in, &t);
    cr_expect_eq(t.chosen, 1);
    in.current = -1; /* the first choice needs no such gain, but more than 2 % */
    c[1].frame_bytes = 0.96 * c[0].frame_bytes;
    hdt_adapt_choose(&in, &t);
    cr_expect_eq(t.chosen, 1);
    c[1].frame_bytes = 0.99 * c[0].frame_bytes;
    hdt_adapt_choose(&in, &t);
    cr_expect_eq(t.chosen, 0);
}

/* Back to the more exact one when that costs 1 %, not when it costs 3 %. */
Test(adapt, precision_comes_back_when_it_costs_nothing)
{
    struct hdt_adapt_candidate c[] = {bf16, bf16};
    struct hdt_adapt_input in = input_of(c, 2);
    struct hdt_adapt_table t;

    in.n_frames = 1e6;
    in.current = 1;
    c[0].frame_bytes = 1.03 * c[1].frame_bytes;
    hdt_adapt_choose(&in, &t);
    cr_expect_eq(t.chosen, 1);
    cr_expect_eq(t.rows[0].why, HDT_ADAPT_SLOWER);
    c[0].frame_bytes = 1.01 * c[1].frame_bytes;
    hdt_adapt_choose(&in, &t);
    cr_expect_eq(t.chosen, 0);
    cr_expect_eq(t.rows[1].why, HDT_ADAPT_HELD);
}

Test(adapt, old_figures_change_nothing)
{
    const struct hdt_adapt_candidate c[] = {plain, bf16, int8};
    struct hdt_adapt_input in = input_of(c, 3);
    struct hdt_adapt_table t;

    in.current = 0;
    in.measured_us = 79; /* 21 us ago, 20 are fresh */
    hdt_adapt_choose(&in, &t);
    cr_expect_eq(t.chosen, 0);
    cr_expect_eq(t.rows[2].why, HDT_ADAPT_STALE);
    in.measured_us = 80;
    hdt_adapt_choose(&in, &t);
    cr_expect_eq(t.chosen, 2);
    in.changed_us = 80; /* measured before the last change had its effect */
    hdt_adapt_choose(&in, &t);
    cr_expect_eq(t.chosen, 0);
    in.changed_us = 10;
    in.goodput_bytes_per_s = 0;
    hdt_adapt_choose(&in, &t);
    cr_expect_eq(t.chosen, 0);
}

/* A gateway whose lossless coder is slow: int8 would be faster there; but nobody knows the link. */
Test(adapt, nothing_is_given_away_for_a_link_that_nobody_measured)
{
    struct hdt_adapt_candidate c[] = {bf16, int8};
    struct hdt_adapt_input in = input_of(c, 2);
    struct hdt_adapt_table t;

    for (int i = 0; i < 2; i++) {
        c[i].gw_encode_bytes_per_s = 1e6;
    }
    in.current = -1;
    in.goodput_bytes_per_s = 0;
    hdt_adapt_choose(&in, &t);
    cr_expect_eq(t.chosen, 0);
    c[0].is_barred = true;
    hdt_adapt_choose(&in, &t);
    cr_expect_eq(t.chosen, 1);
}

/* Of equal ones the first, which is the more exact. */
Test(adapt, ties_go_to_the_exact)
{
    struct hdt_adapt_candidate c[] = {bf16, bf16, bf16};
    struct hdt_adapt_input in = input_of(c, 3);
    struct hdt_adapt_table t;

    hdt_adapt_choose(&in, &t);
    cr_expect_eq(t.chosen, 0);
}

/*
 * 1 Gbit/s, 20 Mbit/s and back, with 20 ms of arithmetic beside each of 64 frames of 1 MB. At 125
 * MB/s none takes 8 ms on the link, hidden behind arithmetic: 63 x 20.125 + 28.25 = 1296.125 ms,
 * bf16 1300.125, int8 1314.25. At 2.5 MB/s int8 takes a quarter of none's 400 ms a frame. What was
 * measured before the change is not believed after it.
 */
Test(adapt, follows_a_link_down_and_up)
{
    struct hdt_adapt_candidate c[] = {plain, bf16, int8};
    struct hdt_adapt_input in = input_of(c, 3);
    struct hdt_adapt_table t;
    size_t i;

    for (i = 0; i < 3; i++) {
        c[i].frame_bytes /= 4;
    }
    in.tensor_bytes = 1 * MB;
    in.n_frames = 64;
    in.src_busy_s = in.dst_busy_s = 0.02;
    in.goodput_bytes_per_s = 125 * MB;
    hdt_adapt_choose(&in, &t);
    cr_expect_eq(t.chosen, 0);
    expect_near(t.rows[0].step_s, 1.296125, "none at 125 MB/s");
    expect_near(t.rows[2].step_s, 1.31425, "int8 at 125 MB/s");
    in.current = t.chosen;
    in.goodput_bytes_per_s = 2.5 * MB;
    hdt_adapt_choose(&in, &t);
    cr_expect_eq(t.chosen, 2);
    in.current = t.chosen;
    in.changed_us = 100;
    in.goodput_bytes_per_s = 125 * MB;
    in.measured_us = in.now_us = 100;
    hdt_adapt_choose(&in, &t);
    cr_expect_eq(t.chosen, 2);
    in.measured_us = in.now_us = 101;
    hdt_adapt_choose(&in, &t);
    cr_expect_eq(t.chosen, 0);
}

Test(adapt, says_why)
{
    const struct hdt_adapt_candidate c[] = {plain, bf16, int8};
    struct hdt_adapt_input in = input_of(c, 3);
    struct hdt_adapt_table t;
    char text[HDT_ADAPT_TEXT];

    in.error_budget = 0.005;
    hdt_adapt_choose(&in, &t);
    hdt_adapt_why_text(&in, &t, 0, text);
    cr_expect_str_eq(text, "1.88 times the time: the link sets the pace"); /* 341 / 181.5 */
    hdt_adapt_why_text(&in, &t, 1, text);
    cr_expect_str_eq(text, "chosen: the link sets the pace");
    hdt_adapt_why_text(&in, &t, 2, text);
    cr_expect_str_eq(text, "relative error 0.007 is above the budget of 0.005");
}
