/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors from one site to another through libhdt, one process a site:
 *   bench_wan GATEWAY RANK [NAME=VALUE...] SITE SITE
 *
 *     size=BYTES[,BYTES...]  of a tensor; several: each in turn, until 64 MB or 512 of it have come
 *
 *     seconds=S warmup=S     how long is measured, and what comes before that
 *
 *     window=MIB             under way
 *
 *     both=1                 both ways at once
 *
 *     burst=MIB pause=S      so much at a time; then all of it is waited for, and so long none sent
 *
 *     urgent=MS              a tensor of 4 KiB every MS, before all others, beside the rest
 *
 *     codec=NAME type=bf16   values of a normal distribution
 *
 *     every=S                also the rate of each S seconds, as they pass
 *
 * The receiver prints "NAME NUMBER" lines: goodput (Mbit/s of tensor bytes), with several sizes
 * "size-BYTES", and of the urgent ones urgent_p50, urgent_p99 and urgent_max (ms, one way: both
 * programs read the same clock). What comes is checked.
 */
#define _GNU_SOURCE

#include "src/hdt.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { N_SIZES_MAX = 16, N_UNDER_WAY = 64, N_URGENT_MAX = 1 << 16, URGENT_BYTES = 4096 };
enum { TAG_BULK = 1, TAG_URGENT = 2 };
enum { WARMUP_BYTES = 1 << 20 }; /* of a tensor before several sizes */

#define SIZE_RUN_BYTES (64.0e6) /* of each of several sizes at least */
#define SIZE_RUN_MAX   512      /* tensors of it at most */

struct options {
    size_t sizes[N_SIZES_MAX];
    int n_sizes;
    double seconds, warmup, every, urgent_ms, pause;
    size_t window, burst; /* burst 0: without end */
    int both, type;
    const char *codec;
};

struct bench {
    struct hdt_channel *channel;
    struct options options;
    int rank;
    double began;
};

/* One direction: what its thread needs. */
struct way {
    struct bench *bench;
    struct hdt_flow *flow;
    uint8_t *memory;
    size_t cap;
    int is_urgent;
};

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void sleep_until(double due)
{
    const struct timespec at = {.tv_sec = (time_t)due, .tv_nsec = (long)(1e9 * (due - floor(due)))};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) {
    }
}

static void check(enum hdt_err code, const struct hdt_error_info *error)
{
    if (code != HDT_ERR_NONE) {
        fprintf(stderr, "bench_wan: %s\n", error->message);
        exit(1);
    }
}

/* ---- values ---- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint16_t bf16_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return (uint16_t)(bits >> 16);
}

/* Bytes without pattern, or bf16 values as weights and activations have them. */
static void values_fill(uint8_t *memory, size_t bytes, int type)
{
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t word = mix(i + 1);

        if (type == HDT_TYPE_BF16) {
            uint16_t values[4];

            for (int k = 0; k < 4; k++) {
                const double u = (double)(mix(4 * i + k + 7) >> 11) * 0x1p-53 + 0x1p-54;
                const double v = (double)(mix(~(4 * i + k)) >> 11) * 0x1p-53;

                values[k] = bf16_of((float)(0.02 * sqrt(-2 * log(u)) * cos(6.283185307 * v)));
            }
            memcpy(&word, values, sizeof(word));
        }
        memcpy(memory + i, &word, sizeof(word));
    }
}

/* Both sites fill the same memory in the same way; a few words of each page are compared. */
static void values_check(const uint8_t *got, const uint8_t *want, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 4096) {
        const size_t n = bytes - i < 64 ? bytes - i : 64;

        if (memcmp(got + i, want + i, n) != 0) {
            fprintf(stderr, "bench_wan: byte %zu or one close to it arrived changed\n", i);
            exit(1);
        }
    }
}

/* ---- sending ---- */

struct sender {
    struct way *way;
    struct hdt_request *requests[N_UNDER_WAY];
    unsigned head, tail;
};

static void sender_wait(struct sender *sender, unsigned n_left)
{
    struct hdt_error_info error;

    while (sender->tail - sender->head > n_left) {
        check(hdt_wait(&sender->requests[sender->head++ % N_UNDER_WAY], NULL, &error), &error);
    }
}

/* The same memory again and again: it is not changed meanwhile. */
static void sender_send(struct sender *sender, size_t bytes)
{
    struct way *way = sender->way;
    const size_t n = bytes / hdt_type_size(way->bench->options.type);
    struct hdt_error_info error;

    sender_wait(sender, N_UNDER_WAY - 1);
    check(hdt_isend(way->flow, way->memory, n, &sender->requests[sender->tail++ % N_UNDER_WAY],
                    &error),
          &error);
}

static unsigned size_count(size_t bytes)
{
    const double n = ceil(SIZE_RUN_BYTES / (double)bytes);

    return n > SIZE_RUN_MAX ? SIZE_RUN_MAX : (unsigned)n;
}

/* What comes before the sizes ends with a tensor without elements. */
static void send_sizes(struct sender *sender)
{
    const struct bench *bench = sender->way->bench;
    const struct options *options = &bench->options;
    struct hdt_error_info error;

    while (now_s() < bench->began + options->warmup) {
        sender_send(sender, WARMUP_BYTES);
    }
    sender_send(sender, 0);
    for (int k = 0; k < options->n_sizes; k++) {
        sender_wait(sender, 0);
        check(hdt_barrier(bench->channel, &error), &error);
        for (unsigned i = size_count(options->sizes[k]); i > 0; i--) {
            sender_send(sender, options->sizes[k]);
        }
    }
    sender_wait(sender, 0);
}

static void *bulk_send(void *arg)
{
    struct way *way = arg;
    const struct options *options = &way->bench->options;
    struct sender sender = {.way = way};
    size_t sent = 0;

    if (options->n_sizes > 1) {
        send_sizes(&sender);
        return NULL;
    }
    while (now_s() < way->bench->began + options->warmup + options->seconds) {
        sender_send(&sender, options->sizes[0]);
        sent += options->sizes[0];
        if (options->burst > 0 && sent >= options->burst) {
            sender_wait(&sender, 0);
            sleep_until(now_s() + options->pause);
            sent = 0;
        }
    }
    sender_send(&sender, 0);
    sender_wait(&sender, 0);
    return NULL;
}

static void *urgent_send(void *arg)
{
    struct way *way = arg;
    const struct options *options = &way->bench->options;
    double due = way->bench->began + options->warmup;
    const double end = due + options->seconds;
    struct hdt_error_info error;
    struct hdt_request *request;

    for (; due < end; due += 1e-3 * options->urgent_ms) {
        double stamp;

        sleep_until(due);
        stamp = now_s();
        memcpy(way->memory, &stamp, sizeof(stamp));
        check(hdt_isend(way->flow, way->memory, URGENT_BYTES, &request, &error), &error);
        check(hdt_wait(&request, NULL, &error), &error);
    }
    check(hdt_isend(way->flow, way->memory, 0, &request, &error), &error);
    check(hdt_wait(&request, NULL, &error), &error);
    return NULL;
}

/* ---- receiving ---- */

/* Two receives under way, so that a tensor that is there is taken at once; the number of bytes. */
struct receiver {
    struct way *way;
    uint8_t *memory[2];
    struct hdt_request *requests[2];
    unsigned next;
};

static void receiver_post(struct receiver *receiver, unsigned which)
{
    struct way *way = receiver->way;
    struct hdt_error_info error;

    check(hdt_irecv(way->flow, receiver->memory[which],
                    way->cap / (way->is_urgent ? 1 : hdt_type_size(way->bench->options.type)),
                    &receiver->requests[which], &error),
          &error);
}

static void receiver_init(struct receiver *receiver, struct way *way)
{
    *receiver = (struct receiver){.way = way};
    for (unsigned i = 0; i < 2; i++) {
        receiver->memory[i] = malloc(way->cap);
        if (receiver->memory[i] == NULL) {
            fprintf(stderr, "bench_wan: no memory for tensors of %zu bytes\n", way->cap);
            exit(1);
        }
    }
}

/* *memory is valid until the next call. */
static size_t receiver_take(struct receiver *receiver, const uint8_t **memory)
{
    const unsigned now = receiver->next, other = 1 - now;
    struct way *way = receiver->way;
    struct hdt_error_info error;
    size_t n;

    if (receiver->requests[now] == NULL) {
        receiver_post(receiver, now);
    }
    if (receiver->requests[other] == NULL) {
        receiver_post(receiver, other);
    }
    check(hdt_wait(&receiver->requests[now], &n, &error), &error);
    receiver->next = other;
    *memory = receiver->memory[now];
    return n * (way->is_urgent ? 1 : hdt_type_size(way->bench->options.type));
}

static void receive_sizes(struct way *way, struct receiver *receiver)
{
    const struct options *options = &way->bench->options;
    struct hdt_error_info error;
    const uint8_t *got;

    while (receiver_take(receiver, &got) > 0) {
    }
    for (int k = 0; k < options->n_sizes; k++) {
        const unsigned n = size_count(options->sizes[k]);
        double began;

        check(hdt_barrier(way->bench->channel, &error), &error);
        began = now_s();
        for (unsigned i = 0; i < n; i++) {
            const size_t bytes = receiver_take(receiver, &got);

            values_check(got, way->memory, bytes);
        }
        printf("size-%zu %.2f\n", options->sizes[k],
               8e-6 * (double)n * (double)options->sizes[k] / (now_s() - began));
        fflush(stdout);
    }
}

/* The rate of the tensors between the first and the last that came in a span, the first without. */
struct meter {
    double first, last;
    uint64_t bytes;
};

static void meter_add(struct meter *meter, double now, size_t bytes)
{
    if (meter->first == 0) {
        meter->first = now;
    } else {
        meter->bytes += bytes;
    }
    meter->last = now;
}

static double meter_mbits(const struct meter *meter)
{
    return meter->last > meter->first ? 8e-6 * (double)meter->bytes / (meter->last - meter->first)
                                      : 0;
}

static void *bulk_receive(void *arg)
{
    struct way *way = arg;
    const struct options *options = &way->bench->options;
    const double from = way->bench->began + options->warmup, to = from + options->seconds;
    struct meter all = {0}, span = {0};
    double span_end = way->bench->began + options->every;
    struct receiver receiver;
    const uint8_t *got;
    size_t bytes;

    receiver_init(&receiver, way);
    if (options->n_sizes > 1) {
        receive_sizes(way, &receiver);
        return NULL;
    }
    while ((bytes = receiver_take(&receiver, &got)) > 0) {
        const double now = now_s();

        values_check(got, way->memory, bytes);
        if (now >= from && now <= to) {
            meter_add(&all, now, bytes);
        }
        meter_add(&span, now, bytes);
        if (options->every > 0 && now >= span_end) {
            printf("at-%.1f %.2f\n", span_end - way->bench->began, meter_mbits(&span));
            fflush(stdout);
            span = (struct meter){.first = now, .last = now};
            while (span_end <= now) {
                span_end += options->every;
            }
        }
    }
    printf("goodput %.2f\n", meter_mbits(&all));
    return NULL;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void *urgent_receive(void *arg)
{
    static double ms[N_URGENT_MAX];
    struct receiver receiver;
    const uint8_t *got;
    size_t n = 0;

    receiver_init(&receiver, arg);
    while (receiver_take(&receiver, &got) > 0) {
        double stamp;

        memcpy(&stamp, got, sizeof(stamp));
        if (n < N_URGENT_MAX) {
            ms[n++] = 1e3 * (now_s() - stamp);
        }
    }
    if (n > 0) {
        qsort(ms, n, sizeof(ms[0]), compare_doubles);
        printf("urgent_p50 %.2f\nurgent_p99 %.2f\nurgent_max %.2f\nurgent_n %zu\n", ms[n / 2],
               ms[n * 99 / 100], ms[n - 1], n);
    }
    return NULL;
}

/* ---- the run ---- */

static void way_open(struct way *way, struct bench *bench, int direction, int is_urgent)
{
    struct hdt_flow_conf conf = HDT_FLOW_CONF_INIT;
    struct hdt_error_info error;

    *way = (struct way){.bench = bench, .cap = URGENT_BYTES, .is_urgent = is_urgent};
    conf.peer = 1 - bench->rank;
    conf.direction = direction;
    conf.tag = is_urgent ? TAG_URGENT : TAG_BULK;
    conf.priority = is_urgent ? HDT_PRIORITY_URGENT : HDT_PRIORITY_BULK;
    if (!is_urgent) {
        conf.type = bench->options.type;
        conf.codec = bench->options.codec;
        conf.window_bytes = bench->options.window;
        for (int i = 0; i < bench->options.n_sizes; i++) {
            way->cap = bench->options.sizes[i] > way->cap ? bench->options.sizes[i] : way->cap;
        }
        way->cap = way->cap > WARMUP_BYTES ? way->cap : WARMUP_BYTES;
    }
    check(hdt_flow_open(bench->channel, &conf, &way->flow, &error), &error);
    check(hdt_alloc(bench->channel, way->cap, (void **)&way->memory, &error), &error);
    values_fill(way->memory, way->cap, is_urgent ? HDT_TYPE_BYTES : bench->options.type);
}

static void bench_run(struct bench *bench)
{
    void *(*const functions[2][2])(void *) = {{bulk_receive, bulk_send},
                                              {urgent_receive, urgent_send}};
    const int is_sender = bench->rank == 0;
    struct way ways[3];
    pthread_t threads[3];
    int sends[3], n = 0;
    struct hdt_error_info error;

    sends[n] = is_sender;
    way_open(&ways[n++], bench, is_sender ? HDT_SEND : HDT_RECEIVE, 0);
    if (bench->options.both) {
        sends[n] = !is_sender;
        way_open(&ways[n++], bench, is_sender ? HDT_RECEIVE : HDT_SEND, 0);
    }
    if (bench->options.urgent_ms > 0) {
        sends[n] = is_sender;
        way_open(&ways[n++], bench, is_sender ? HDT_SEND : HDT_RECEIVE, 1);
    }
    check(hdt_barrier(bench->channel, &error), &error);
    bench->began = now_s();
    for (int i = 0; i < n; i++) {
        if (pthread_create(&threads[i], NULL, functions[ways[i].is_urgent][sends[i]], &ways[i])) {
            fprintf(stderr, "bench_wan: no thread\n");
            exit(1);
        }
    }
    for (int i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
    }
}

static int option_set(struct options *options, const char *text)
{
    const char *value = strchr(text, '=');

    if (value == NULL) {
        return 0;
    }
    value++;
    if (strncmp(text, "size=", 5) == 0) {
        char *end = (char *)value;

        for (options->n_sizes = 0; *end != '\0' && options->n_sizes < N_SIZES_MAX;) {
            options->sizes[options->n_sizes++] = strtoull(end, &end, 10);
            end += *end == ',';
        }
    } else if (strncmp(text, "seconds=", 8) == 0) {
        options->seconds = strtod(value, NULL);
    } else if (strncmp(text, "warmup=", 7) == 0) {
        options->warmup = strtod(value, NULL);
    } else if (strncmp(text, "window=", 7) == 0) {
        options->window = strtoull(value, NULL, 10) << 20;
    } else if (strncmp(text, "both=", 5) == 0) {
        options->both = *value == '1';
    } else if (strncmp(text, "urgent=", 7) == 0) {
        options->urgent_ms = strtod(value, NULL);
    } else if (strncmp(text, "burst=", 6) == 0) {
        options->burst = strtoull(value, NULL, 10) << 20;
    } else if (strncmp(text, "pause=", 6) == 0) {
        options->pause = strtod(value, NULL);
    } else if (strncmp(text, "every=", 6) == 0) {
        options->every = strtod(value, NULL);
    } else if (strncmp(text, "codec=", 6) == 0) {
        options->codec = value;
    } else if (strcmp(text, "type=bf16") == 0) {
        options->type = HDT_TYPE_BF16;
    } else {
        fprintf(stderr, "bench_wan: what is '%s'?\n", text);
        exit(2);
    }
    return 1;
}

int main(int argc, char **argv)
{
    struct hdt_channel_conf conf = HDT_CHANNEL_CONF_INIT;
    struct bench bench = {
        .options = {
            .sizes = {1 << 20}, .n_sizes = 1, .seconds = 5, .warmup = 2, .window = 96u << 20}};
    struct hdt_error_info error;
    struct hdt_ctx *ctx;
    size_t most = 0;
    int i = 3;

    while (i < argc && option_set(&bench.options, argv[i])) {
        i++;
    }
    if (argc - i != 2) {
        fprintf(stderr, "usage: bench_wan GATEWAY RANK [NAME=VALUE...] SITE SITE\n");
        return 2;
    }
    for (int k = 0; k < bench.options.n_sizes; k++) {
        most = bench.options.sizes[k] > most ? bench.options.sizes[k] : most;
    }
    bench.rank = (int)strtol(argv[2], NULL, 10);
    conf.name = "bench";
    conf.rank = bench.rank;
    conf.members = (const char *const *)(argv + i);
    conf.n_members = 2;
    conf.memory_bytes = 2 * (bench.options.window + most) + (64u << 20);
    check(hdt_open(argv[1], NULL, &ctx, &error), &error);
    check(hdt_channel_open(ctx, &conf, &bench.channel, &error), &error);
    hdt_close(ctx);
    bench_run(&bench);
    check(hdt_channel_close(bench.channel, &error), &error);
    return 0;
}
