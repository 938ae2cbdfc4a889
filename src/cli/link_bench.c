/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hdt link bench: what a link carries, by message size, direction and codec.
 *
 * Each case has two parts. Tensors alone: one is sent when the one before is known to be there, and
 * its time is that until the other end's word came, less the half round trip that the word took;
 * the median counts. Tensors one after another: a train, of whose middle half the goodput is taken,
 * by what arrives and the clock of the gateway there (src/cli/train.h); it takes about a second,
 * and longer where that is not enough for the streams that there are. So neither the round trip
 * counts in it, nor that TCP begins slowly after a pause, nor what lies in buffers. Of a tensor
 * that takes long alone there is no second, and its own time is what the goodput is made of.
 *
 * Both ends' programs are src/cli/link_flows.h; why, stands there. What the lossless codec saves is
 * known to the gateway that sends, which is asked after each case.
 */
#include "config.h"

#include "src/cli/cmd.h"
#include "src/cli/gwoptions.h"
#include "src/cli/human.h"
#include "src/cli/link_bench.h"
#include "src/cli/link_flows.h"
#include "src/cli/link_sampler.h"
#include "src/cli/train.h"
#include "src/base/clock.h"
#include "src/base/median.h"

#include <argp.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SIZE_MIN      4096
#define SIZE_DEFAULT  (64ll << 20)
#define SIZE_MAX_     (1ll << 30)
#define SIZE_STEP     4
#define ALONE_MAX     9
#define ALONE_S       0.15 /* time of a case for tensors alone, and ... */
#define STREAM_S      0.35 /* ... that are measured one after another */
#define STREAM_MAX_S  1.0  /* one that takes longer alone is not repeated */
#define TRAIN_MAX_S   5.0  /* of a train that would take longer only so much is sent */
#define N_MAX         4096 /* tensors in a row */
#define GROWTH        16   /* of their number, from one try to the next */
#define PINGS         5
#define OPEN_MS       15000
#define WINDOW_MIN    (8ll << 20)
#define WINDOW_MAX    (64ll << 20)
#define WINDOW_RATE   250e6 /* bytes a second times the round trip: 1 Gbit/s, twice */
#define DRAIN_BYTES   (1 << 20)
#define DRAIN_LOOK_US 200
#define WATCH_MS      100
#define CHUNK_DEFAULT (256ll << 10)

enum bench_option { OPT_JSON = 256, OPT_FORCE, OPT_MAX_SIZE, OPT_CODEC };

static const struct argp_option options[] = {
    {"max-size", OPT_MAX_SIZE, "SIZE", 0, "Largest tensor: 4KiB to 1GiB (64MiB)", 0},
    {"codec", OPT_CODEC, "NAME", 0, "Only none, lossless or int8", 0},
    {"force", OPT_FORCE, NULL, 0, "Also beside a job that runs, which it slows down", 0},
    {"json", OPT_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

struct bench_args {
    struct hdt_gwclient_conf client;
    const char *site;
    int64_t max_size;
    int codec; /* -1: all */
    bool json, force;
};

static bool size_parse(const char *arg, int64_t *size)
{
    static const struct {
        const char *unit;
        int64_t bytes;
    } units[] = {{"", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}};
    char *end;
    long long n = strtoll(arg, &end, 10);

    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (end != arg && strcmp(end, units[i].unit) == 0 && n > 0 &&
            n <= SIZE_MAX_ / units[i].bytes) {
            *size = n * units[i].bytes;
            return *size >= SIZE_MIN;
        }
    }
    return false;
}

static error_t word_parse(struct bench_args *args, int key, char *arg, struct argp_state *state)
{
    if (key == OPT_MAX_SIZE && !size_parse(arg, &args->max_size)) {
        argp_error(state, "--max-size '%s' is not 4KiB to 1GiB", arg);
        return EINVAL;
    }
    if (key == OPT_CODEC) {
        for (args->codec = HDT_BENCH_CODECS - 1;
             args->codec >= 0 && strcmp(arg, hdt_bench_codec_names[args->codec]) != 0;
             args->codec--) {
        }
        if (args->codec < 0) {
            argp_error(state, "--codec '%s' is not none, lossless or int8", arg);
            return EINVAL;
        }
    }
    if (key == ARGP_KEY_ARG && args->site) {
        argp_error(state, "unexpected '%s'", arg);
        return EINVAL;
    }
    args->site = key == ARGP_KEY_ARG ? arg : args->site;
    return 0;
}

static error_t option_parse(int key, char *arg, struct argp_state *state)
{
    struct bench_args *args = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &args->client;
        return 0;
    case OPT_JSON:
        args->json = true;
        return 0;
    case OPT_FORCE:
        args->force = true;
        return 0;
    case OPT_MAX_SIZE:
    case OPT_CODEC:
    case ARGP_KEY_ARG:
        return word_parse(args, key, arg, state);
    case ARGP_KEY_END:
        if (!args->site) {
            argp_error(state, "a SITE is missing");
            return EINVAL;
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&hdt_gwoptions_argp, 0, NULL, 0}, {0}};
static const struct argp argp = {
    .options = options,
    .parser = option_parse,
    .args_doc = "SITE",
    .doc = "Measure the link to a site in both directions: tensors of 4 KiB and more, with and "
           "without codec. This fills the link for up to a minute.",
    .children = children,
};

/* ---- one case ---- */

struct bench {
    const struct bench_args *args;
    struct hdt_gwclient *client;
    struct hdt_bench_flows flows;
    char channel[64];
    double rtt_s;
    double moved_bytes;         /* of tensors, in this case */
    struct hdt_bench_span span; /* of the last move */
    unsigned n_streams;
    int64_t chunk_bytes; /* the larger one of both gateways */
    struct hdt_link_sampler sampler;
    json_t *rows;
    struct hdt_error_info error;
    /* The thread that hears Ctrl-C: it may abort the channel at any time. */
    pthread_t watcher;
    int stop_fds[2];
};

static double now_s(void)
{
    return (double)hdt_clock_now_us() / 1e6;
}

/* An answer may be a long way behind what is still to be sent: as long as that moves, it is waited
 * for; then it has the deadline of any request. */
static enum hdt_err bench_drain(struct bench *bench, const struct hdt_bench_order *order,
                                struct hdt_request **answer)
{
    struct hdt_flow_stats stats = {.size = sizeof(stats)};
    enum hdt_err rc = HDT_ERR_NONE;
    int done = 0;

    if (order->what != HDT_BENCH_TAKE || order->n * order->bytes < DRAIN_BYTES) {
        return HDT_ERR_NONE;
    }
    do {
        usleep(DRAIN_LOOK_US);
        rc = hdt_test(answer, &done, NULL, &bench->error);
        hdt_flow_stats(bench->flows.out[order->codec], &stats, NULL);
    } while (rc == HDT_ERR_NONE && !done && stats.waiting > 0);
    return rc;
}

/* Seconds from the order until all is there and said to be. */
static enum hdt_err bench_move(struct bench *bench, const struct hdt_bench_order *order,
                               double *seconds)
{
    struct hdt_bench_flows *flows = &bench->flows;
    struct hdt_bench_order heard = {0};
    struct hdt_request *answer;
    double begun_s;
    enum hdt_err rc;

    hdt_bench_fill(flows, order);
    begun_s = now_s();
    rc = hdt_irecv(flows->answer, &heard, sizeof(heard) / sizeof(int64_t), &answer, &bench->error);
    if (rc == HDT_ERR_NONE) {
        rc = hdt_bench_say(flows->order, order, &bench->error);
    }
    if (rc == HDT_ERR_NONE && order->what == HDT_BENCH_TAKE) {
        rc = hdt_bench_give(flows, order, &bench->error);
    } else if (rc == HDT_ERR_NONE && order->what == HDT_BENCH_GIVE) {
        rc = hdt_bench_take(flows, order, &bench->span, &bench->error);
        *seconds = now_s() - begun_s;
    }
    if (rc == HDT_ERR_NONE) {
        rc = bench_drain(bench, order, &answer);
    }
    if (rc == HDT_ERR_NONE) {
        rc = hdt_wait(&answer, NULL, &bench->error);
    }
    if (order->what != HDT_BENCH_GIVE) {
        *seconds = now_s() - begun_s;
        bench->span = (struct hdt_bench_span){.n = heard.n, .us = heard.span_us};
    }
    bench->moved_bytes += (double)(order->n * order->bytes);
    return rc;
}

struct bench_case {
    int64_t n_alone, n_stream;
    double alone_s, goodput; /* bytes a second */
};

static enum hdt_err case_alone(struct bench *bench, struct hdt_bench_order *order,
                               struct bench_case *result)
{
    double times[ALONE_MAX], spent_s = 0;
    enum hdt_err rc = HDT_ERR_NONE;
    int n = 0;

    order->n = 1;
    while (rc == HDT_ERR_NONE && n < ALONE_MAX && (n == 0 || spent_s < ALONE_S)) {
        rc = bench_move(bench, order, &times[n]);
        spent_s += times[n++];
    }
    result->n_alone = n;
    result->alone_s = hdt_median(times, (size_t)n) - bench->rtt_s / 2;
    if (result->alone_s < bench->rtt_s / 4) {
        result->alone_s = bench->rtt_s / 4; /* the shortest round trip was no longer that */
    }
    result->goodput = (double)order->bytes / result->alone_s;
    return rc;
}

/* A train that is as long as the streams need, or as one may take. */
static int64_t stream_first(const struct bench *bench, int64_t bytes, double alone_s)
{
    const int64_t wanted = hdt_train_length(bytes, bench->n_streams, bench->chunk_bytes);
    const int64_t most = (int64_t)(TRAIN_MAX_S / alone_s);
    const int64_t n = wanted < most ? wanted : most;

    return n < HDT_TRAIN_LEAST ? HDT_TRAIN_LEAST : n < N_MAX ? n : N_MAX;
}

/* So many that those which are measured take some more than STREAM_S, by the train before. */
static int64_t stream_more(int64_t n, double more_s)
{
    const double grown = 1.25 * STREAM_S / (more_s > 0 ? more_s : STREAM_S) * (double)n;

    n = more_s <= 0 || grown > GROWTH * (double)n ? GROWTH * n : (int64_t)grown + 1;
    return n < N_MAX ? n : N_MAX;
}

/* A train, and how long its middle half, or what of it could be measured, took. */
static enum hdt_err bench_train(struct bench *bench, struct hdt_bench_order *order,
                                double *middle_s, double *bytes)
{
    struct hdt_link_sampler *sampler = &bench->sampler;
    double seconds;
    enum hdt_err rc;

    hdt_link_sampler_begin(sampler, order->what == HDT_BENCH_TAKE ? bench->args->site : NULL);
    rc = bench_move(bench, order, &seconds);
    hdt_link_sampler_end(sampler);
    *middle_s = hdt_train_middle_s(sampler->samples, sampler->n);
    *bytes = (double)(order->n * order->bytes) / 2;
    if (*middle_s <= 0) {
        *middle_s = (double)bench->span.us / 1e6;
        *bytes = (double)(bench->span.n * order->bytes);
    }
    return rc;
}

static enum hdt_err case_stream(struct bench *bench, struct hdt_bench_order *order,
                                struct bench_case *result)
{
    enum hdt_err rc;
    double more_s, bytes;

    if (result->alone_s > STREAM_MAX_S) {
        return HDT_ERR_NONE;
    }
    for (order->n = stream_first(bench, order->bytes, result->alone_s);;
         order->n = stream_more(order->n, more_s)) {
        rc = bench_train(bench, order, &more_s, &bytes);
        if (rc != HDT_ERR_NONE) {
            return rc;
        }
        if (more_s >= STREAM_S || order->n == N_MAX) {
            more_s = more_s > 1e-6 ? more_s : 1e-6;
            result->n_stream = order->n;
            result->goodput = bytes / more_s;
            return HDT_ERR_NONE;
        }
    }
}

/* ---- ratio: what the sending gateway counted ---- */

/* Bytes that left a site for this channel so far; false: its gateway does not say. */
static bool coded_so_far(struct bench *bench, bool is_out, double *coded)
{
    struct hdt_gwclient_request request = {.type = "status",
                                           .expect = "status.is",
                                           .to = is_out ? NULL : bench->args->site,
                                           .patience = HDT_GWCLIENT_RELAY};
    struct hdt_error err = {0};
    const json_t *flow;
    json_t *body;
    size_t i;

    *coded = 0;
    if (hdt_gwclient_ask(bench->client, &request, &body, &err) != HDT_OK) {
        return false;
    }
    json_array_foreach(json_object_get(body, "flows"), i, flow)
    {
        const char *channel = json_string_value(json_object_get(flow, "channel"));
        const char *end = json_string_value(json_object_get(flow, "end"));

        if (channel && end && strcmp(channel, bench->channel) == 0 && strcmp(end, "src") == 0) {
            *coded += json_number_value(json_object_get(flow, "coded_bytes"));
        }
    }
    json_decref(body);
    return true;
}

/* ---- all cases ---- */

static void row_print(const json_t *row)
{
    const json_t *counted = json_object_get(row, "ratio");
    char direction[160], ratio[16] = "?";
    char size[HDT_HUMAN_CAP], rate[HDT_HUMAN_CAP], time[HDT_HUMAN_CAP];

    snprintf(direction, sizeof(direction), "%s to %s",
             json_string_value(json_object_get(row, "from")),
             json_string_value(json_object_get(row, "to")));
    if (json_is_number(counted)) {
        snprintf(ratio, sizeof(ratio), "%.2f", json_number_value(counted));
    }
    printf("%-8s %-14s %9s  %12s  %6s  %10s  %4.0f %5.0f\n",
           json_string_value(json_object_get(row, "codec")), direction,
           hdt_human_memory(json_number_value(json_object_get(row, "bytes")), size),
           hdt_human_rate(json_number_value(json_object_get(row, "goodput_bits_per_s")) / 8, rate),
           ratio, hdt_human_time(json_number_value(json_object_get(row, "median_s")), time),
           json_number_value(json_object_get(row, "alone")),
           json_number_value(json_object_get(row, "in_a_row")));
    fflush(stdout);
}

static json_t *row_make(const struct bench *bench, const struct hdt_bench_order *order,
                        const struct bench_case *result, double coded)
{
    const char *here = hdt_gwclient_site(bench->client), *there = bench->args->site;
    const bool is_out = order->what == HDT_BENCH_TAKE;

    return json_pack("{s:s, s:s, s:s, s:I, s:f, s:o, s:f, s:I, s:I}", "codec",
                     hdt_bench_codec_names[order->codec], "from", is_out ? here : there, "to",
                     is_out ? there : here, "bytes", (json_int_t)order->bytes, "goodput_bits_per_s",
                     8 * result->goodput, "ratio",
                     coded > 0 ? json_real(bench->moved_bytes / coded) : json_null(), "median_s",
                     result->alone_s, "alone", (json_int_t)result->n_alone, "in_a_row",
                     (json_int_t)result->n_stream);
}

static enum hdt_err case_run(struct bench *bench, int codec, int64_t bytes, bool is_out)
{
    struct hdt_bench_order order = {
        .what = is_out ? HDT_BENCH_TAKE : HDT_BENCH_GIVE, .codec = codec, .bytes = bytes, .n = 1};
    struct bench_case result = {0};
    double before = 0, after = 0;
    bool is_counted = coded_so_far(bench, is_out, &before);
    enum hdt_err rc;
    json_t *row;

    bench->moved_bytes = 0;
    rc = case_alone(bench, &order, &result);
    if (rc == HDT_ERR_NONE) {
        rc = case_stream(bench, &order, &result);
    }
    if (rc != HDT_ERR_NONE) {
        return rc;
    }
    is_counted = is_counted && coded_so_far(bench, is_out, &after);
    row = row_make(bench, &order, &result, is_counted ? after - before : 0);
    json_array_append_new(bench->rows, row);
    if (!bench->args->json) {
        row_print(row);
    }
    return HDT_ERR_NONE;
}

static enum hdt_err bench_ping(struct bench *bench)
{
    const struct hdt_bench_order order = {.what = HDT_BENCH_PING};
    enum hdt_err rc = HDT_ERR_NONE;
    double seconds = 0;

    for (int i = 0; i < PINGS && rc == HDT_ERR_NONE; i++) {
        rc = bench_move(bench, &order, &seconds);
        if (rc == HDT_ERR_NONE && (bench->rtt_s <= 0 || seconds < bench->rtt_s)) {
            bench->rtt_s = seconds;
        }
    }
    return rc;
}

static enum hdt_err bench_cases(struct bench *bench)
{
    enum hdt_err rc = bench_ping(bench);
    int codec;

    for (codec = 0; codec < HDT_BENCH_CODECS && rc == HDT_ERR_NONE; codec++) {
        if (bench->args->codec >= 0 && codec != bench->args->codec) {
            continue;
        }
        for (int64_t bytes = SIZE_MIN; bytes <= bench->args->max_size && rc == HDT_ERR_NONE;
             bytes *= SIZE_STEP) {
            rc = case_run(bench, codec, bytes, true);
            if (rc == HDT_ERR_NONE) {
                rc = case_run(bench, codec, bytes, false);
            }
        }
    }
    return rc;
}

/* ---- Ctrl-C ---- */

/* It ends the channel, so that whatever the measurement waits for ends at both sites. */
static void *watcher_main(void *arg)
{
    struct bench *bench = arg;
    struct pollfd fd = {.fd = bench->stop_fds[0], .events = POLLIN};

    while (poll(&fd, 1, WATCH_MS) == 0) {
        if (hdt_interrupts_count() > 0) {
            hdt_channel_abort(bench->flows.channel, "the measurement was interrupted");
            return NULL;
        }
    }
    return NULL;
}

static enum hdt_err bench_run(struct bench *bench)
{
    const struct hdt_bench_order end = {.what = HDT_BENCH_END};
    enum hdt_err rc;

    hdt_interrupts_catch();
    if (pipe(bench->stop_fds) != 0) {
        bench->error.code = HDT_ERR_IO;
        snprintf(bench->error.message, sizeof(bench->error.message), "cannot make a pipe");
        return HDT_ERR_IO;
    }
    if (pthread_create(&bench->watcher, NULL, watcher_main, bench) != 0) {
        close(bench->stop_fds[0]);
        close(bench->stop_fds[1]);
        bench->error.code = HDT_ERR_MEMORY;
        snprintf(bench->error.message, sizeof(bench->error.message), "cannot start a thread");
        return HDT_ERR_MEMORY;
    }
    rc = bench_cases(bench);
    if (rc == HDT_ERR_NONE) {
        hdt_bench_say(bench->flows.order, &end, NULL);
    }
    close(bench->stop_fds[1]); /* what the watcher waits for */
    pthread_join(bench->watcher, NULL);
    close(bench->stop_fds[0]);
    return rc;
}

/* ---- the command ---- */

static int relay_ms(const struct bench *bench)
{
    return bench->args->client.timeout_ms > 0
               ? bench->args->client.timeout_ms
               : (int)(hdt_gwclient_deadlines(bench->client)->relay_us / HDT_US_PER_MS);
}

/* Of our gateway; `to`: of that site's. */
static enum hdt_status bench_ask(struct bench *bench, const char *to, size_t window_bytes,
                                 json_t **body, struct hdt_error *err)
{
    const char *here = hdt_gwclient_site(bench->client);
    struct hdt_gwclient_request request = {
        .type = "link.bench",
        .to = to,
        .expect = "link.benched",
        /* Of ours it is asked meanwhile whether it lives: who hangs is then known. */
        .patience = to ? HDT_GWCLIENT_SURVEY : HDT_GWCLIENT_ANSWER,
        .timeout_ms = to ? relay_ms(bench) : 0,
        .body = json_pack("{s:s, s:s, s:b, s:b, s:I}", "site", to ? here : bench->args->site,
                          "channel", bench->channel, "force", bench->args->force, "echo",
                          to != NULL, "window", (json_int_t)window_bytes)};

    return hdt_gwclient_ask(bench->client, &request, body, err);
}

/* A gateway that does not say has the setting's default. */
static void bench_note_chunk(struct bench *bench, const json_t *body)
{
    const json_t *said = json_object_get(body, "chunk");
    const int64_t bytes = json_is_integer(said) ? json_integer_value(said) : CHUNK_DEFAULT;

    bench->chunk_bytes = bytes > bench->chunk_bytes ? bytes : bench->chunk_bytes;
}

static size_t window_of(double rtt_s)
{
    const double wanted = rtt_s * WINDOW_RATE;

    return wanted > WINDOW_MAX ? WINDOW_MAX : wanted < WINDOW_MIN ? WINDOW_MIN : (size_t)wanted;
}

/* Both gateways agree, and the other one starts its echo. */
static enum hdt_status bench_prepare(struct bench *bench, size_t *window_bytes,
                                     struct hdt_error *err)
{
    json_t *body;

    snprintf(bench->channel, sizeof(bench->channel), "link-bench-%08x",
             (unsigned)(hdt_clock_wall_us() * 2654435761u ^ (unsigned)getpid()));
    HDT_TRY(bench_ask(bench, NULL, 0, &body, err));
    *window_bytes = window_of(json_number_value(json_object_get(body, "rtt_s")));
    bench->n_streams = (unsigned)json_integer_value(json_object_get(body, "streams"));
    bench_note_chunk(bench, body);
    json_decref(body);
    if (!bench->args->json) {
        fprintf(stderr,
                "this fills the link to %s, both ways, for about a minute; Ctrl-C ends it\n",
                bench->args->site);
    }
    HDT_TRY(bench_ask(bench, bench->args->site, *window_bytes, &body, err));
    bench_note_chunk(bench, body);
    json_decref(body);
    return hdt_link_sampler_open(&bench->sampler, &bench->args->client, bench->channel, err);
}

static enum hdt_err bench_open(struct bench *bench, size_t window_bytes)
{
    const struct hdt_gwclient_conf *client = &bench->args->client;
    struct hdt_options opened = HDT_OPTIONS_INIT;
    struct hdt_bench_conf conf = {.channel = bench->channel,
                                  .sites = {hdt_gwclient_site(bench->client), bench->args->site},
                                  .window_bytes = window_bytes,
                                  .cap = (size_t)bench->args->max_size,
                                  .open_timeout_ms = OPEN_MS};
    enum hdt_err rc;

    opened.ca = client->ca;
    opened.cert = client->cert;
    opened.key = client->key;
    opened.timeout_ms = client->timeout_ms;
    conf.timeout_ms =
        client->timeout_ms > 0
            ? client->timeout_ms
            : (int)(hdt_gwclient_deadlines(bench->client)->progress_us / HDT_US_PER_MS);
    rc = hdt_open(client->gateway, &opened, &conf.ctx, &bench->error);
    if (rc == HDT_ERR_NONE) {
        rc = hdt_bench_flows_open(&bench->flows, &conf, &bench->error);
        hdt_close(conf.ctx);
    }
    return rc;
}

static int bench_fail(const struct bench *bench)
{
    struct hdt_error err = {0};

    if (hdt_interrupts_count() > 0) {
        hdt_error_set(&err, HDT_ECANCELED, "interrupted: the channel to %s is closed",
                      bench->args->site);
        return hdt_cmd_fail(&err);
    }
    hdt_error_set(&err, (enum hdt_status)bench->error.code, "cannot measure the link to %s: %s",
                  bench->args->site, bench->error.message);
    hdt_error_hint(&err, "%s",
                   bench->error.hint[0] ? bench->error.hint
                                        : "'hdt doctor' looks at both gateways and "
                                          "the link");
    return hdt_cmd_fail(&err);
}

static void result_print(const struct bench *bench)
{
    json_t *json = json_pack("{s:s, s:s, s:f, s:i, s:O}", "site", hdt_gwclient_site(bench->client),
                             "peer", bench->args->site, "rtt_s", bench->rtt_s, "streams",
                             (int)bench->n_streams, "rows", bench->rows);

    json_dumpf(json, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(json);
}

static int bench_all(struct bench *bench)
{
    size_t window_bytes = 0;
    struct hdt_error err = {0};
    enum hdt_err rc;

    if (bench_prepare(bench, &window_bytes, &err) != HDT_OK) {
        return hdt_cmd_fail(&err);
    }
    if (bench_open(bench, window_bytes) != HDT_ERR_NONE) {
        return bench_fail(bench);
    }
    if (!bench->args->json) {
        printf("%u streams\n%-8s %-14s %9s  %12s  %6s  %10s  %4s %5s\n", bench->n_streams, "codec",
               "direction", "tensor", "goodput", "ratio", "one takes", "of", "row");
    }
    rc = bench_run(bench);
    hdt_bench_flows_close(&bench->flows);
    if (bench->args->json && rc == HDT_ERR_NONE) {
        result_print(bench);
    }
    return rc == HDT_ERR_NONE ? HDT_EXIT_OK : bench_fail(bench);
}

static int link_bench_run(int argc, char **argv)
{
    struct bench_args args = {.max_size = SIZE_DEFAULT, .codec = -1};
    struct bench bench = {.args = &args};
    struct hdt_error err = {0};
    int rc;

    hdt_cmd_parse(&argp, argc, argv, &args);
    if (hdt_gwclient_open(&args.client, &bench.client, &err) != HDT_OK) {
        return hdt_cmd_fail(&err);
    }
    bench.rows = json_array();
    rc = bench_all(&bench);
    json_decref(bench.rows);
    hdt_link_sampler_close(&bench.sampler);
    hdt_gwclient_close(bench.client);
    return rc;
}

const struct hdt_cmd hdt_cmd_link_bench = {"bench", "what a link carries", link_bench_run, &argp,
                                           NULL};
