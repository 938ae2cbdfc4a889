/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * The tuner on a simulated path. A stream of the loss-based kind carries what Mathis' formula says,
 * one of the model-based kind its fair part; together never more than the link. What is asserted is
 * what the traffic gets in the end, and what the search costs it meanwhile.
 */
#include "gateway/tuner.h"

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
    unsigned allowed; /* streams that the peer takes */
    double
        kept_window; /* Mbit/s: what a loss-based stream lives on after it was a model-based one */
    double ramp;     /* what part is reached: a choice needs windows to come to its rate */
    double sum_mbits;
    unsigned n_windows, n_changes;
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

static void path_init(struct path *path, const struct hdt_tuner_conf *conf)
{
    *path = (struct path){.link_mbits = 1000,
                          .rtt_s = 0.08,
                          .noise = 0.02,
                          .stream_mbits = 1e9,
                          .allowed = HDT_TUNER_STREAMS_MAX,
                          .ramp = 1,
                          .rng = path_seed()};
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

static void path_run(struct path *path, unsigned n_windows)
{
    for (unsigned i = 0; i < n_windows; i++) {
        const enum kind kind = path->kinds[path->tuner.congestion];
        const double now =
            kind == LOSS_BASED ? fmax(path_now(path), path->kept_window) : path_now(path);
        const double mbits = now * path->ramp * (1 + path->noise * (2 * path_random(path) - 1));
        const struct hdt_tuner_window window = {
            .bytes_per_s = 125e3 * mbits,
            .rtt_us = (int64_t)(1e6 * path->rtt_s),
            .n_up = path->tuner.n_streams < path->allowed ? path->tuner.n_streams : path->allowed,
            .is_loaded = true,
        };

        path->sum_mbits += mbits;
        path->n_windows++;
        path->ramp = fmin(1, 2 * path->ramp);
        path->kept_window *= 0.96;
        if (hdt_tuner_window(&path->tuner, &window)) {
            path->n_changes++;
            path->ramp = 0.3;
            path->kept_window =
                kind == MODEL_BASED && path->keeps_window ? 0.95 * path->link_mbits : 0;
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
        window.bytes_per_s = 1e8 * path_random(&path);
        cr_assert_not(hdt_tuner_window(&path.tuner, &window));
    }
    expect_reason(&path, "not measured under load yet");
}

/* A try that is cut off by the end of the load, or of the session, leaves the choice as it was. */
Test(tuner, a_try_without_an_end_is_taken_back)
{
    struct hdt_tuner_window idle = {.rtt_us = 80000, .n_up = 4};
    struct path path;

    path_init(&path, &both);
    path.loss = 0.001;
    path_run(&path, 8);
    cr_assert_str_eq(hdt_tuner_congestion(&path.tuner), "bbr");
    hdt_tuner_restart(&path.tuner);
    cr_expect_str_eq(hdt_tuner_congestion(&path.tuner), "cubic");
    path_run(&path, 8);
    for (int i = 0; i < 1000; i++) {
        hdt_tuner_window(&path.tuner, &idle);
    }
    cr_expect_str_eq(hdt_tuner_congestion(&path.tuner), "cubic");
    cr_expect_eq(path.tuner.n_streams, 4);
}
