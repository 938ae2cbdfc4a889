/* SPDX-License-Identifier: Apache-2.0 */
/* What `hdt link explain` says, of links whose limit is known, and its arithmetic against values
 * worked out by hand. */
#include "config.h"

#include "src/cli/link_explain.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

static void near(double got, double want, const char *what)
{
    cr_expect(fabs(got - want) <= 1e-9 * fabs(want), "%s: %.12g, not %.12g", what, got, want);
}

/* 4 times smaller, encoded at 1 GB/s, decoded at 2 GB/s: a stream of tensors gains until the link
 * is as fast as the slower of both; a lone one until (1 - 1/4) / (1 ns + 0.5 ns) = 0.5 GB/s. */
Test(link_explain, break_even_by_hand)
{
    struct hdt_break_even even = hdt_break_even(4, 1e9, 2e9);

    near(even.stream_bytes_per_s, 1e9, "stream");
    near(even.alone_bytes_per_s, 5e8, "alone");
    even = hdt_break_even(1.25, 4e8, 4e8); /* (1 - 0.8) / (2.5 ns + 2.5 ns) */
    near(even.stream_bytes_per_s, 4e8, "stream");
    near(even.alone_bytes_per_s, 4e7, "alone");
    even = hdt_break_even(2, 3e9, 1e9); /* 0.5 / (1/3 ns + 1 ns) = 0.375 GB/s */
    near(even.stream_bytes_per_s, 1e9, "stream");
    near(even.alone_bytes_per_s, 3.75e8, "alone");
}

Test(link_explain, what_saves_nothing_pays_nowhere)
{
    const struct hdt_break_even evens[] = {hdt_break_even(1, 1e9, 1e9),
                                           hdt_break_even(0.9, 1e9, 1e9), hdt_break_even(2, 0, 1e9),
                                           hdt_break_even(2, 1e9, 0)};

    for (size_t i = 0; i < sizeof(evens) / sizeof(evens[0]); i++) {
        cr_expect_eq(evens[i].stream_bytes_per_s, 0);
        cr_expect_eq(evens[i].alone_bytes_per_s, 0);
    }
}

/* At the break-even a tensor takes as long with the codec as without, above it longer. */
Test(link_explain, times_are_equal_at_the_break_even)
{
    static const double cases[][3] = {{1.3, 6e8, 9e8}, {1.9, 2e9, 3e9}, {3.8, 5e8, 1.1e9}};

    for (size_t i = 0; i < 3; i++) {
        const double r = cases[i][0], e = cases[i][1], d = cases[i][2], s = 64e6;
        const double b = hdt_break_even(r, e, d).alone_bytes_per_s;

        near(s / e + s / (r * b) + s / d, s / b, "seconds");
        cr_expect_gt(s / e + s / (r * 2 * b) + s / d, s / (2 * b));
        cr_expect_lt(s / e + s / (r * b / 2) + s / d, s / (b / 2));
    }
}

/* Facts of a link of 200 Mbit/s and 40 ms: rate x round trip is 1 MB. */
static json_t *facts_of(const char *site, const char *peer, const char *limit, double queue_ms,
                        double resent)
{
    json_t *shares = json_pack("{s:f, s:f}", limit, 0.9, "other", 0.1);
    json_t *load = json_pack("{s:f, s:f, s:f, s:f, s:s, s:o}", "ago_s", 3.0, "rate_bits_per_s",
                             200e6, "resent_share", resent, "queue_ms", queue_ms, "limit", limit,
                             "limit_shares", shares);
    json_t *stream =
        json_pack("{s:i, s:f, s:I, s:I}", "stream", 1, "share", 1.0, "peer_window_bytes",
                  (json_int_t)130000, "send_buffer_bytes", (json_int_t)262144);
    json_t *tcp =
        json_pack("{s:s, s:o, s:[o]}", "congestion", "cubic", "load", load, "streams", stream);

    return json_pack(
        "{s:s, s:s, s:f, s:i, s:o, s:{s:i, s:i, s:s, s:I, s:I, s:I}, s:{s:f, s:f, s:s}, "
        "s:[{s:s, s:s, s:f, s:f, s:f, s:i}]}",
        "site", site, "peer", peer, "min_rtt_ms", 40.0, "streams", 1, "tcp", tcp, "settings",
        "streams", 1, "chunk_bytes", 262144, "congestion", "", "codec_threads", (json_int_t)1,
        "io_threads", (json_int_t)1, "rate_bits_per_s", (json_int_t)0, "kernel",
        "tcp_wmem_max_bytes", 262144.0, "tcp_rmem_max_bytes", 262144.0, "congestion_available",
        "reno cubic bbr", "codecs", "codec", "int8", "dtype", "f32", "ratio", 4.0,
        "encode_bytes_per_s", 1e9, "decode_bytes_per_s", 2e9, "threads", 1);
}

/* The line of that name, text and remedy in one. */
static bool line_has(const json_t *way, const char *what, const char *text)
{
    const json_t *line;
    size_t i;

    json_array_foreach(json_object_get(way, "lines"), i, line)
    {
        if (strcmp(json_string_value(json_object_get(line, "what")), what) == 0 &&
            (strstr(json_string_value(json_object_get(line, "text")), text) ||
             strstr(json_string_value(json_object_get(line, "remedy")), text))) {
            return true;
        }
    }
    return false;
}

static void expect_limit(const char *limit, double queue_ms, double resent, const char *text,
                         const char *remedy)
{
    json_t *facts = facts_of("a", "b", limit, queue_ms, resent);
    json_t *other = facts_of("b", "a", limit, queue_ms, resent);
    json_t *way = hdt_link_explain(facts, other);

    cr_expect_str_eq(json_string_value(json_object_get(way, "limit")), limit);
    near(json_number_value(json_object_get(way, "bdp_bytes")), 1e6, "rate x round trip");
    cr_expect(line_has(way, "limit", text), "%s: no '%s' in %s", limit, text, json_dumps(way, 0));
    cr_expect(line_has(way, "limit", remedy), "%s: no '%s' in %s", limit, remedy,
              json_dumps(way, 0));
    json_decref(way);
    json_decref(other);
    json_decref(facts);
}

Test(link_explain, names_budgets_where_there_are_any)
{
    json_t *facts = facts_of("a", "b", "rate", 0, 0), *other = facts_of("b", "a", "rate", 0, 0);
    json_t *way;

    json_object_set_new(json_object_get(facts, "settings"), "budgets", json_integer(2));
    way = hdt_link_explain(facts, other);
    cr_expect(line_has(way, "limit", "one of 2 budgets"));
    cr_expect(line_has(way, "limit", "'hdt status' there"));
    json_decref(way);
    json_decref(other);
    json_decref(facts);
}

Test(link_explain, says_what_the_gateway_found_by_trying)
{
    json_t *facts = facts_of("a", "b", "path", 0, 0);
    json_t *other = facts_of("b", "a", "path", 0, 0);
    json_t *way;

    json_object_set_new(facts, "why_streams",
                        json_string("8 streams: 4 gave 412 Mbit/s, 8 gave 598"));
    json_object_set_new(facts, "why_congestion",
                        json_string("bbr: cubic gave 35 Mbit/s, bbr gave 920"));
    way = hdt_link_explain(facts, other);
    cr_expect(line_has(way, "streams", "4 gave 412 Mbit/s, 8 gave 598; any takes"));
    cr_expect(line_has(way, "congestion", "bbr gave 920; this kernel has"));
    json_decref(way);
    json_decref(other);
    json_decref(facts);
}

static double bdp_of(const char *limit, double goodput_bits_per_s)
{
    json_t *facts = facts_of("a", "b", limit, 0, 0), *other = facts_of("b", "a", limit, 0, 0);
    json_t *way;
    double bytes;

    json_object_set_new(facts, "goodput_bits_per_s", json_real(goodput_bits_per_s));
    way = hdt_link_explain(facts, other);
    bytes = json_number_value(json_object_get(way, "bdp_bytes"));
    json_decref(way);
    json_decref(other);
    json_decref(facts);
    return bytes;
}

/* A second in which the link was full says what it carries; one in which there was not always
 * something to send may only raise the figure. */
Test(link_explain, takes_the_rate_from_the_better_witness)
{
    near(bdp_of("path", 240e6), 1e6, "a full second of 200 Mbit/s, whatever else was measured");
    near(bdp_of("path", 160e6), 1e6, "a full second of 200 Mbit/s, whatever else was measured");
    near(bdp_of("application", 240e6), 1.2e6, "more than what there was to send");
    near(bdp_of("codec", 160e6), 1e6, "less than what arrived");
}

Test(link_explain, names_the_limit_and_its_remedy)
{
    expect_limit("path", 20, 0.001, "the link itself, 90 % of the time: it is full", "");
    expect_limit("path", 0.1, 0.01, "loss, 90 %", "wan.congestion: auto, or bbr");
    expect_limit("path", 0.1, 0, "congestion window is used up", "");
    expect_limit("buffer", 0, 0, "the send buffer at a", "net.ipv4.tcp_wmem='4096 65536 4194304'");
    expect_limit("receiver", 0, 0, "the receive buffer at b", "net.ipv4.tcp_rmem");
    expect_limit("application", 0, 0, "nothing to send", "would not help");
    expect_limit("codec", 0, 0, "codec thread", "data.codec_threads");
    expect_limit("rate", 0, 0, "wan.rate", "raise wan.rate");
    expect_limit("cpu", 0, 0, "the processor", "data.io_threads");
}

/* Sockets of 256 KiB cannot hold the 1 MB that must be on its way, whatever limits now. */
Test(link_explain, small_buffers_are_said)
{
    json_t *facts = facts_of("a", "b", "path", 20, 0), *other = facts_of("b", "a", "path", 20, 0);
    json_t *way = hdt_link_explain(facts, other);

    cr_expect(line_has(way, "buffers", "rate x round trip is 977 KiB"), "%s", json_dumps(way, 0));
    cr_expect(line_has(way, "buffers", "sysctl -w net.ipv4.tcp_wmem"));
    json_decref(way);
    json_decref(other);
    json_decref(facts);
}

/* 25 MB/s is below both break-evens of hand: 4 times smaller pays; at 1.5 GB/s it does not. */
Test(link_explain, codecs_of_this_link)
{
    json_t *facts = facts_of("a", "b", "path", 20, 0);
    const struct {
        double rate;
        const char *pays;
    } cases[] = {{25e6, "always"}, {7e8, "in a stream of tensors"}, {1.5e9, "no"}, {0, "unknown"}};

    for (size_t i = 0; i < 4; i++) {
        json_t *codecs = hdt_link_explain_codecs(facts, NULL, cases[i].rate);
        const json_t *int8 = json_array_get(codecs, 0);

        cr_expect_str_eq(json_string_value(json_object_get(int8, "pays")), cases[i].pays);
        near(json_number_value(json_object_get(int8, "alone_bits_per_s")), 4e9, "alone");
        json_decref(codecs);
    }
    json_decref(facts);
}

/* A gateway whose kernel tells nothing, and one that was not heard: said, not guessed. */
Test(link_explain, what_is_not_known_is_not_said)
{
    json_t *facts = facts_of("a", "b", "path", 20, 0), *way;

    json_object_set_new(facts, "tcp", json_null());
    way = hdt_link_explain(facts, NULL);
    cr_expect_str_eq(json_string_value(json_object_get(way, "limit")), "unknown");
    cr_expect(line_has(way, "limit", "tells nothing"));
    cr_expect_not(line_has(way, "buffers", ""));
    json_decref(way);
    json_decref(facts);
}
