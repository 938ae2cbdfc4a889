/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * The tuner on a simulated path. A stream of the loss-based kind carries what Mathis' formula says,
 * one of the model-based kind its fair part; together never more than the link. What is asserted is
 * what the traffic gets in the end, and what the search costs it meanwhile.
 */
#include "gateway/shortage.h"
#include "gateway/tuner.h"
#include "tests/support/values.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { LOSS_BASED, MODEL_BASED };

struct path {
    struct hdt_tuner tuner;
    double link_mbits, rtt_s, loss, noise;
    enum kind kinds[HDT_TUNER_CC_MAX];
    double stream_mbits; /* what one stream of the model-based kind carries at most */
    bool keeps_window;
    unsigned keeps_n;           /* windows in which it keeps all of it */
    bool is_mixed, queue_grows; /* the loss-based kind makes the shortest round trip longer */
    bool waits;                 /* the sender, for answers, when the queue is drained */
    bool drains;                /* the model-based kind empties the queue every ten seconds, */
    unsigned drain_at;          /* first in this window */
    unsigned keeps_for; /* windows that the loss-based kind lives on what it found, undiminished */
    unsigned allowed;   /* streams that the peer takes */
    double
        kept_window; /* Mbit/s: what a loss-based stream lives on after it was a model-based one */
    double ramp;     /* what part is reached: a choice needs windows to come to its rate */
    double sum_mbits;
    unsigned n_windows, n_changes;
    double on, off;    /* mean length of bursts of load and of pauses, in windows; 0: no pauses */
    double phase_left; /* of this burst, or pause */
    bool is_off;
    double n_off;                       /* windows without work so far */
    double default_mbits, default_ramp; /* sum of what the first choice would have carried */
    struct values_rng rng;
    struct values_rng load_rng; /* of its own: the load is the same, whatever else is drawn */
};

static void path_init(struct path *path, const struct hdt_tuner_conf *conf)
{
    *path = (struct path){.link_mbits = 1000,
                          .rtt_s = 0.08,
                          .noise = 0.02,
                          .stream_mbits = 1e9,
                          .allowed = HDT_TUNER_STREAMS_MAX,
                          .ramp = 1,
                          .default_ramp = 1,
                          .rng = {hdt_values_fixed_seed()},
                          .load_rng = {hdt_values_fixed_seed()}};
    for (unsigned i = 0; i < conf->n_congestion; i++) {
        path->kinds[i] = strcmp(conf->congestion[i], "bbr") == 0 ? MODEL_BASED : LOSS_BASED;
    }
    hdt_tuner_init(&path->tuner, conf);
}

/* What a choice brings once it has found its rate. */
static double path_mbits(const struct path *path, unsigned n_streams, enum kind kind)
{
    const double mathis =
        path->loss > 0 ? 1.22 * 1448 * 8 / (path->rtt_s * sqrt(path->loss)) / 1e6 : 1e9;
    const double all = n_streams * (kind == LOSS_BASED ? mathis : path->stream_mbits);

    return fmin(all, 0.95 * path->link_mbits);
}

static double path_now(const struct path *path)
{
    return path_mbits(path, path->tuner.n_streams, path->kinds[path->tuner.congestion]);
}

/* The part of the next window in which there is work. After a pause TCP begins anew. */
static double path_work(struct path *path)
{
    double left = 1, with_work = 0;

    while (path->on > 0 && left > 0) {
        double step;

        if (path->phase_left <= 0) {
            path->is_off = !path->is_off;
            path->phase_left =
                (path->is_off ? path->off : path->on) * (0.5 + hdt_values_uniform(&path->load_rng));
        }
        step = fmin(left, path->phase_left);
        path->n_off = path->is_off ? path->n_off + step : 0;
        with_work += path->is_off ? 0 : step;
        path->phase_left -= step;
        left -= step;
        if (path->n_off > 1) {
            path->ramp = path->default_ramp = 0.3;
        }
    }
    return path->on > 0 ? with_work : 1;
}

#define WINDOW_US    200000
#define DRAIN_EVERY  52 /* windows: ten seconds, and two of draining */
#define DRAIN_BRINGS 0.1

/* Of what the present choice would bring. */
static double path_drained(const struct path *path, enum kind kind)
{
    const bool is_draining =
        path->drains && (path->n_windows + DRAIN_EVERY - path->drain_at) % DRAIN_EVERY < 2;

    return kind == MODEL_BASED && is_draining ? DRAIN_BRINGS : 1;
}

static void path_run(struct path *path, unsigned n_windows)
{
    for (unsigned i = 0; i < n_windows; i++) {
        const enum kind kind = path->kinds[path->tuner.congestion];
        const double work = path_work(path);
        const double now =
            kind == LOSS_BASED ? fmax(path_now(path), path->kept_window) : path_now(path);
        const double mbits = now * path->ramp * path_drained(path, kind) * work *
                             (1 + path->noise * (2 * hdt_values_uniform(&path->rng) - 1));
        const struct hdt_tuner_window window = {
            .bytes_per_s = 125e3 * mbits,
            .rtt_us =
                (int64_t)(1e6 * path->rtt_s * (path->queue_grows && kind == LOSS_BASED ? 1.6 : 1)),
            .us = WINDOW_US,
            .is_mixed = path->is_mixed,
            .n_up = path->tuner.n_streams < path->allowed ? path->tuner.n_streams : path->allowed,
            .is_loaded = hdt_shortage_is_small((int64_t)(1e6 * (1 - work)), 1, 1000000) &&
                         !(path->waits && path_drained(path, kind) < 1),
        };

        path->sum_mbits += mbits;
        path->default_mbits +=
            path_mbits(path, HDT_TUNER_FIRST_STREAMS, path->kinds[0]) * path->default_ramp * work;
        path->n_windows++;
        path->ramp = fmin(1, 2 * path->ramp);
        path->default_ramp = fmin(1, 2 * path->default_ramp);
        path->kept_window *= path->keeps_for > 0 ? 1 : 0.96;
        path->keeps_for -= path->keeps_for > 0;
        if (hdt_tuner_window(&path->tuner, &window)) {
            path->n_changes++;
            path->ramp = 0.3;
            path->kept_window =
                kind == MODEL_BASED && path->keeps_window ? 0.95 * path->link_mbits : 0;
            path->keeps_for = path->keeps_n;
        }
    }
}

static void expect_reason(const struct path *path, const char *part)
{
    char streams[HDT_TUNER_REASON_CAP], congestion[HDT_TUNER_REASON_CAP];

    hdt_tuner_why_streams(&path->tuner, streams);
    hdt_tuner_why_congestion(&path->tuner, congestion);
    cr_expect(strstr(streams, part) != NULL || strstr(congestion, part) != NULL,
              "'%s' is neither in '%s' nor in '%s'", part, streams, congestion);
}

static const struct hdt_tuner_conf both = {.congestion = {"cubic", "bbr"}, .n_congestion = 2};
static const struct hdt_tuner_conf cubic = {.congestion = {"cubic"}, .n_congestion = 1};
static const struct hdt_tuner_conf bbr_first = {.congestion = {"bbr", "cubic"}, .n_congestion = 2};

Test(tuner, on_a_lossy_link_the_congestion_control_that_carries_more_is_found)
{
    struct path path;

    path_init(&path, &both);
    path.loss = 0.001;
    cr_expect(hdt_tuner_is_new(&path.tuner));
    path_run(&path, 100); /* twenty seconds */
    cr_expect_not(hdt_tuner_is_new(&path.tuner));
    cr_expect_gt(path_now(&path), 0.94 * path.link_mbits);
    expect_reason(&path, "bbr: cubic gave ");
    expect_reason(&path, ", bbr gave 9");
}

Test(tuner, where_one_stream_carries_little_their_number_grows_as_long_as_that_pays)
{
    struct path path;

    path_init(&path, &cubic);
    path.loss = 0.00005; /* 25 Mbit/s a stream: 38 of them fill the link */
    path_run(&path, 150);
    cr_expect_eq(path.tuner.n_streams, 64);
    cr_expect_gt(path_now(&path), 0.94 * path.link_mbits);
    expect_reason(&path, "64 streams: 4 gave ");
    expect_reason(&path, ", 64 gave 9");
}

Test(tuner, streams_that_bring_nothing_are_given_up)
{
    struct path path;

    path_init(&path, &cubic);
    path.loss = 0.00005;
    path_run(&path, 150);
    cr_assert_eq(path.tuner.n_streams, 64);
    path.loss = 0;
    path.rtt_s = 0.02;
    path_run(&path, 300);
    cr_expect_eq(path.tuner.n_streams, 4);
    cr_expect_gt(path_now(&path), 0.94 * path.link_mbits);
    expect_reason(&path, "4 streams: 4 gave 9");
}

Test(tuner, a_peer_without_room_for_more_streams_keeps_what_it_has)
{
    struct path path;

    path_init(&path, &cubic);
    path.loss = 0.00005;
    path.allowed = 11;
    path_run(&path, 150);
    cr_expect_eq(path.tuner.n_streams, 8);
}

Test(tuner, the_search_costs_little_and_ends)
{
    struct path path;
    unsigned n_changes;

    path_init(&path, &bbr_first);
    path.loss = 0.001; /* cubic brings a twentieth */
    path_run(&path, 300);
    cr_expect_gt(path.sum_mbits / path.n_windows, 0.9 * 0.95 * path.link_mbits, "%.1f",
                 path.sum_mbits / path.n_windows);
    cr_expect_str_eq(hdt_tuner_congestion(&path.tuner), "bbr");
    n_changes = path.n_changes;
    path_run(&path, 2000);
    cr_expect_eq(path.n_changes, n_changes);
}

Test(tuner, what_does_not_last_is_given_up)
{
    struct path path;
    double before;

    path_init(&path, &bbr_first);
    path.loss = 0.0001;
    path.stream_mbits = 165; /* the processor is slow: four carry two thirds of the link */
    path.keeps_window = true;
    path_run(&path, 150);
    cr_expect_str_eq(hdt_tuner_congestion(&path.tuner), "bbr");
    before = path.sum_mbits;
    path_run(&path, 5000); /* a quarter of an hour: and not tried again */
    cr_expect_gt((path.sum_mbits - before) / 5000, 0.9 * 0.95 * path.link_mbits);
    cr_expect_str_eq(hdt_tuner_congestion(&path.tuner), "bbr");
}

/* A path on which the model-based kind, which is there first, brings three in a hundred less. */
static void drained_init(struct path *path, unsigned drain_at)
{
    path_init(path, &bbr_first);
    path->drains = true;
    path->drain_at = drain_at;
}

#define MATCHED 340 /* windows: a search, a match, and some */

static void expect_congestion(const struct path *path, const char *name, unsigned k)
{
    cr_expect_str_eq(hdt_tuner_congestion(&path->tuner), name, "case %u: not %s", k, name);
}

/* No figure of a second shows that, ten seconds do, wherever the draining falls; and again when it
 * is searched for after ten minutes. */
Test(tuner, what_brings_a_little_more_all_the_time_is_found)
{
    for (unsigned k = 0; k < 2 * DRAIN_EVERY; k++) {
        const unsigned at = k / 2;
        struct path path;
        double before;

        drained_init(&path, at);
        path.waits = k % 2;
        path_run(&path, MATCHED);
        expect_congestion(&path, "cubic", at);
        if (at == 20) {
            expect_reason(&path, "cubic: bbr gave 9");
        }
        before = path.sum_mbits;
        path_run(&path, 7000);
        cr_expect_gt((path.sum_mbits - before) / 7000, 0.985 * 0.95 * path.link_mbits, "%u: %g", at,
                     (path.sum_mbits - before) / 7000);
    }
}

/* What fills the queue to bring a little more is not for whoever wants it short; what brings much
 * more is. */
Test(tuner, a_little_more_is_not_for_a_queue_that_is_to_be_short)
{
    struct hdt_tuner_conf conf = bbr_first, other = both;
    struct path path;

    conf.keeps_queue_short = other.keeps_queue_short = true;
    for (unsigned k = 0; k < 2 * DRAIN_EVERY; k++) {
        path_init(&path, &conf);
        path.drains = true;
        path.drain_at = k / 2;
        path.waits = k % 2;
        path_run(&path, MATCHED);
        expect_congestion(&path, "bbr", k);
    }
    path_init(&path, &other);
    path.loss = 1e-4;
    path_run(&path, MATCHED);
    expect_congestion(&path, "bbr", 1);
}

/* Where nobody brings more, who was there first stays. */
Test(tuner, a_match_without_a_winner_changes_nothing)
{
    for (uint64_t seed = hdt_values_fixed_seed(); seed < hdt_values_fixed_seed() + 20; seed++) {
        struct path path;

        path_init(&path, &bbr_first);
        path.rng.state = seed;
        path.noise = 0.05;
        path_run(&path, 7000);
        expect_congestion(&path, "bbr", (unsigned)seed);
    }
}

/* What little it brings it brings to steady load: bursts have the first choice again, and so has
 * what something urgent travels beside. */
Test(tuner, a_little_more_is_for_steady_load_alone)
{
    const double loads[][2] = {{0.5, 3}, {2, 5}, {5, 10}};
    struct path path;

    for (unsigned k = 0; k < 3; k++) {
        for (unsigned at = 0; at < DRAIN_EVERY; at++) {
            drained_init(&path, at);
            path_run(&path, MATCHED);
            path.on = loads[k][0];
            path.off = loads[k][1];
            path_run(&path, 400);
            expect_congestion(&path, "bbr", 100 * k + at);
        }
    }
    drained_init(&path, 20);
    path_run(&path, MATCHED);
    expect_congestion(&path, "cubic", 1000);
    path.is_mixed = true;
    path_run(&path, 310);
    expect_congestion(&path, "bbr", 1001);
    path_run(&path, 3000);
    expect_congestion(&path, "bbr", 1002);
}

/* Its queue makes the round trip longer, and no other path of it. */
Test(tuner, a_queue_of_its_own_is_no_other_path)
{
    struct path path;
    unsigned n_changes;

    drained_init(&path, 20);
    path_run(&path, MATCHED);
    expect_congestion(&path, "cubic", 0);
    n_changes = path.n_changes;
    path.queue_grows = true;
    path_run(&path, 2000);
    expect_congestion(&path, "cubic", 1);
    cr_expect_eq(path.n_changes, n_changes);
}

/* Wherever the search is when the link becomes faster or slower: what takes seconds to find that
 * out gives way to the first choice. */
Test(tuner, a_match_ends_where_the_path_is_another_one)
{
    const double times[] = {0.5, 2};

    for (unsigned k = 0; k < 2; k++) {
        for (unsigned at = 40; at < MATCHED + 20; at += 4) {
            struct path path;

            drained_init(&path, 20);
            path_run(&path, at);
            path.link_mbits *= times[k];
            path_run(&path, 16); /* three seconds; a new search may try it later */
            expect_congestion(&path, "bbr", 1000 * k + at);
        }
    }
}

/* CUBIC lives for a while on the window that it found: what a match takes for better is measured
 * against once more, and watched. */
Test(tuner, a_match_won_by_what_does_not_last_is_given_up)
{
    struct path path;
    unsigned n_windows = 0;
    double before;

    drained_init(&path, 20);
    path.loss = 0.0001;
    path.keeps_window = true;
    path.keeps_n = 80;
    while (path.tuner.phase != HDT_TUNER_REST && n_windows++ < 1000) {
        path_run(&path, 1);
    }
    cr_expect_gt(path.tuner.rival_rate, 1.02 * path.tuner.by_congestion[0]);
    path_run(&path, 200);
    expect_congestion(&path, "bbr", 0);
    before = path.sum_mbits;
    path_run(&path, 3000);
    expect_congestion(&path, "bbr", 1);
    cr_expect_gt((path.sum_mbits - before) / 3000, 0.9 * 0.95 * path.link_mbits);
}

/* A rival that is close in a second and falls to two thirds behind that is tried once, not again
 * and again. */
Test(tuner, a_match_that_is_lost_is_over)
{
    struct path path;
    unsigned n_changes;

    drained_init(&path, 20);
    path.drains = false;
    path.loss = 0.000025; /* 150 Mbit/s of four */
    path.link_mbits = 230;
    path.keeps_window = true;
    path.keeps_n = 15;
    path_run(&path, 600);
    expect_congestion(&path, "bbr", 0);
    n_changes = path.n_changes;
    path_run(&path, 2000);
    cr_expect_eq(path.n_changes, n_changes);
}

/* What the search had found before the match stays found. */
Test(tuner, a_match_that_is_cut_short_ends_the_search)
{
    for (unsigned at = 40; at < 180; at += 4) {
        for (unsigned how = 0; how < 2; how++) {
            struct path path;
            char why[HDT_TUNER_REASON_CAP];

            drained_init(&path, 20);
            path_run(&path, at);
            if (how == 0) {
                hdt_tuner_restart(&path.tuner);
            } else {
                path.on = 1.5;
                path.off = 1.5;
                path_run(&path, 60);
            }
            cr_expect_eq(path.tuner.phase, HDT_TUNER_REST, "case %u after %u", how, at);
            hdt_tuner_why_congestion(&path.tuner, why);
            cr_expect(strstr(why, "bbr: bbr gave ") != NULL, "case %u after %u: %s", how, at, why);
        }
    }
}

/* The kernel may refuse the other one when its turn comes. */
Test(tuner, a_rival_that_is_refused_loses_the_match)
{
    struct path path;

    drained_init(&path, 20);
    while (path.tuner.match != HDT_TUNER_MATCH_RIVAL) {
        path_run(&path, 1);
        cr_assert_lt(path.n_windows, 1000u);
    }
    hdt_tuner_refused(&path.tuner);
    path_run(&path, 3000);
    expect_congestion(&path, "bbr", 0);
}

Test(tuner, another_path_is_searched_anew)
{
    struct path path;

    path_init(&path, &both);
    path_run(&path, 150);
    cr_expect_eq(path.tuner.n_streams, 4);
    path.loss = 0.001;
    path.rtt_s = 0.15;
    path_run(&path, 200);
    cr_expect_str_eq(hdt_tuner_congestion(&path.tuner), "bbr");
    cr_expect_gt(path_now(&path), 0.94 * path.link_mbits);
}

Test(tuner, what_is_configured_stays)
{
    struct hdt_tuner_conf conf = {
        .n_streams = 6, .congestion = {"cubic"}, .n_congestion = 1, .is_told = true};
    struct path path;

    path_init(&path, &conf);
    path.loss = 0.001;
    cr_expect_not(hdt_tuner_is_new(&path.tuner));
    path_run(&path, 500);
    cr_expect_eq(path.n_changes, 0);
    cr_expect_eq(path.tuner.n_streams, 6);
    expect_reason(&path, "6 streams: so configured");
    expect_reason(&path, "cubic: so configured");
}

Test(tuner, what_the_kernel_refuses_is_not_tried_again)
{
    struct path path;

    path_init(&path, &both);
    path.loss = 0.001;
    for (int i = 0; i < 3000; i++) {
        path_run(&path, 1);
        if (strcmp(hdt_tuner_congestion(&path.tuner), "bbr") == 0) {
            hdt_tuner_refused(&path.tuner);
        }
        cr_assert_str_eq(hdt_tuner_congestion(&path.tuner), "cubic");
    }
    cr_expect_eq(path.tuner.n_streams, 64); /* the next best */
}

/* A program that sends now and then, at whatever rate, is no measure of the path. */
Test(tuner, without_load_nothing_is_tried)
{
    struct hdt_tuner_window window = {.rtt_us = 80000, .n_up = 4};
    struct path path;

    path_init(&path, &both);
    for (int i = 0; i < 10000; i++) {
        window.bytes_per_s = 1e8 * hdt_values_uniform(&path.rng);
        cr_assert_not(hdt_tuner_window(&path.tuner, &window));
    }
    expect_reason(&path, "not measured under load yet");
}

/* ---- load in bursts ---- */

#define N_SEEDS 20

static const struct {
    double on, off;
} bursts[] = {{0.5, 0.5}, {0.75, 3}, {2, 1}, {2, 5}, {5, 1.5}, {5, 10}, {15, 1}, {15, 5}};
#define N_BURSTS (sizeof(bursts) / sizeof(bursts[0]))

static void burst_init(struct path *path, size_t burst, uint64_t seed,
                       const struct hdt_tuner_conf *conf)
{
    path_init(path, conf);
    path->on = bursts[burst].on;
    path->off = bursts[burst].off;
    path->rng.state = seed;
    path->load_rng.state = seed;
}

/* On a link that the first choice fills nothing else can be better, however bursts fall. */
Test(tuner, load_in_bursts_leaves_the_first_choice_in_force)
{
    for (size_t k = 0; k < N_BURSTS; k++) {
        for (uint64_t seed = hdt_values_fixed_seed(); seed < hdt_values_fixed_seed() + N_SEEDS;
             seed++) {
            struct path path;

            burst_init(&path, k, seed, &both);
            path.link_mbits = 50;
            path_run(&path, 1500);
            cr_expect(path.tuner.n_streams == HDT_TUNER_FIRST_STREAMS &&
                          strcmp(hdt_tuner_congestion(&path.tuner), "cubic") == 0,
                      "bursts of %g windows, pauses of %g: %u streams, %s (seed %llu)",
                      bursts[k].on, bursts[k].off, path.tuner.n_streams,
                      hdt_tuner_congestion(&path.tuner), (unsigned long long)seed);
            cr_expect_gt(path.sum_mbits, 0.95 * path.default_mbits,
                         "bursts of %g windows, pauses of %g: %.3f of the first choice (seed %llu)",
                         bursts[k].on, bursts[k].off, path.sum_mbits / path.default_mbits,
                         (unsigned long long)seed);
        }
    }
}

/* Where another choice is twenty times worse, or better, bursts may not show it, and cost little.
 */
Test(tuner, load_in_bursts_costs_little_where_choices_differ)
{
    for (size_t k = 0; k < N_BURSTS; k++) {
        for (uint64_t seed = hdt_values_fixed_seed(); seed < hdt_values_fixed_seed() + N_SEEDS;
             seed++) {
            struct path path;

            burst_init(&path, k, seed, &bbr_first);
            path.loss = 0.001;
            path_run(&path, 1500);
            cr_expect_str_eq(hdt_tuner_congestion(&path.tuner), "bbr");
            cr_expect_gt(path.sum_mbits, 0.95 * path.default_mbits,
                         "bursts of %g windows, pauses of %g: %.3f of the first choice (seed %llu)",
                         bursts[k].on, bursts[k].off, path.sum_mbits / path.default_mbits,
                         (unsigned long long)seed);
        }
    }
}

Test(tuner, load_that_does_not_last_is_said_to_be_too_little)
{
    struct path path;

    path_init(&path, &both);
    path.loss = 0.001;
    path.on = 11;
    path.off = 8;
    path_run(&path, 1500);
    cr_expect_str_eq(hdt_tuner_congestion(&path.tuner), "cubic");
    expect_reason(&path, "4 streams: not enough load to tell");
    expect_reason(&path, "cubic: not enough load to tell");
    cr_expect_not(hdt_tuner_is_new(&path.tuner));
}

/* Steps of a training run that send for twelve seconds and compute for four. */
Test(tuner, long_bursts_are_enough)
{
    for (uint64_t seed = hdt_values_fixed_seed(); seed < hdt_values_fixed_seed() + N_SEEDS;
         seed++) {
        struct path path;

        path_init(&path, &both);
        path.loss = 0.001;
        path.on = 60;
        path.off = 20;
        path.rng.state = path.load_rng.state = seed;
        path_run(&path, 1500);
        cr_expect_str_eq(hdt_tuner_congestion(&path.tuner), "bbr", "seed %llu",
                         (unsigned long long)seed);
        cr_expect_gt(path.sum_mbits, 2 * path.default_mbits, "seed %llu", (unsigned long long)seed);
    }
}

/* A link that becomes slower in the middle of a search makes every later try look worse: what is
 * kept is measured again. */
Test(tuner, a_link_that_changes_in_a_search_is_searched_anew)
{
    const double times[] = {0.3, 0.6};

    for (size_t k = 0; k < 2; k++) {
        for (unsigned at = 5; at < 240; at += 5) {
            struct path path;

            path_init(&path, &both);
            path_run(&path, at);
            path.link_mbits *= times[k];
            path_run(&path, 400);
            cr_expect(path.tuner.n_streams == HDT_TUNER_FIRST_STREAMS &&
                          path.tuner.phase == HDT_TUNER_REST,
                      "%g times after %u windows: %u streams", times[k], at, path.tuner.n_streams);
            cr_expect_gt(path.tuner.kept_rate, 0.9 * 0.95 * 125e3 * path.link_mbits);
            cr_expect_lt(path.tuner.kept_rate, 1.1 * 0.95 * 125e3 * path.link_mbits);
        }
    }
}

/* What fitted a path that is no longer there is no better a guess than the first choice. */
Test(tuner, another_path_without_load_to_tell_gets_the_first_choice)
{
    struct path path;

    path_init(&path, &cubic);
    path.loss = 0.00005;
    path_run(&path, 200);
    cr_assert_eq(path.tuner.n_streams, 64);
    path.loss = 0;
    path.rtt_s = 0.02;
    path_run(&path, 15); /* enough to see that it is another one */
    path.on = 3;
    path.off = 3;
    path_run(&path, 1000);
    cr_expect_eq(path.tuner.n_streams, HDT_TUNER_FIRST_STREAMS);
}

/* A try that is cut off by the end of the load, or of the session, leaves the choice as it was. */
Test(tuner, a_try_without_an_end_is_taken_back)
{
    struct hdt_tuner_window idle = {.rtt_us = 80000, .n_up = 4};
    struct path path;

    path_init(&path, &both);
    path.loss = 0.001;
    path_run(&path, 12);
    cr_assert_str_eq(hdt_tuner_congestion(&path.tuner), "bbr");
    hdt_tuner_restart(&path.tuner);
    cr_expect_str_eq(hdt_tuner_congestion(&path.tuner), "cubic");
    path_run(&path, 12);
    for (int i = 0; i < 1000; i++) {
        hdt_tuner_window(&path.tuner, &idle);
    }
    cr_expect_str_eq(hdt_tuner_congestion(&path.tuner), "cubic");
    cr_expect_eq(path.tuner.n_streams, 4);
}
