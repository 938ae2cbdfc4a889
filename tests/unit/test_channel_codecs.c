/* SPDX-License-Identifier: Apache-2.0 */
/* Codecs with options over channels, between two programs at sites of their own: what arrives is
 * within the bounds that follow from each codec's definition (doc/codecs.md), reckoned here in
 * float64; and ends that name different ones are told both. */
#define _GNU_SOURCE

#include "tests/support/chan_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* More than a piece of any codec, and no whole number of blocks. */
#define N_LONG ((size_t)524288 + 70003)

static unsigned seed;

/* ---- values ---- */

/* Unlike sizes in unlike blocks, none of them centred. */
static void fill(float *x, size_t n, int rank, unsigned salt)
{
    unsigned state = seed + 7919u * (unsigned)rank + 104729u * salt;

    for (size_t i = 0; i < n; i++) {
        double sum = 0.1;

        for (int k = 0; k < 4; k++) {
            sum += (double)hdt_chan_rig_random(&state) / (1 << 24) - 0.5;
        }
        x[i] = (float)ldexp(sum, (int)(i / 1000 % 7) - 3);
    }
}

static double norm(const float *x, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++) {
        sum += (double)x[i] * x[i];
    }
    return sqrt(sum);
}

/* ---- what codecs may lose ---- */

/* A block of values shares a scale: codes are the multiples of max |x| / levels, or, min-max,
 * min + multiples of (max - min) / levels; a value goes to the nearest, or to one of two
 * neighbours. Parameters of 16 bits are off by 2^-8 at most. fp8 keeps `digits` behind the point
 * down to exp_min below the scaled magnitudes, the largest of which is above 2^exp_max. */
struct form {
    const char *codec;
    size_t block;
    int levels, minmax, half, stochastic;
    int digits, exp_min, exp_max;
};

static const struct form forms[] = {
    {.codec = "int8", .block = 256, .levels = 127},
    {.codec = "int8:block=64", .block = 64, .levels = 127},
    {.codec = "int8:block=1024,minmax", .block = 1024, .levels = 255, .minmax = 1},
    {.codec = "int8:stochastic+lossless", .block = 256, .levels = 127, .stochastic = 1},
    {.codec = "int4", .block = 64, .levels = 7, .half = 1},
    {.codec = "int4:block=32,minmax", .block = 32, .levels = 15, .minmax = 1, .half = 1},
    {.codec = "fp8", .block = 128, .digits = 3, .exp_min = -6, .exp_max = 8},
    {.codec = "fp8:block=32,e5m2", .block = 32, .digits = 2, .exp_min = -14, .exp_max = 15},
    {.codec = "bf16:stochastic", .block = 1024, .digits = 7, .stochastic = 1, .exp_min = -126},
    {.codec = "fp16", .block = 1024, .digits = 10, .exp_min = -14},
};
#define N_FORMS (sizeof(forms) / sizeof(forms[0]))

/* Largest error of value x in a block with these extremes. */
static double bound_of(const struct form *f, double x, double min, double max)
{
    const double most = fmax(fabs(min), fabs(max));
    double half_step;

    if (f->levels > 0) {
        half_step = (f->minmax ? max - min : most) / f->levels / 2;
    } else if (f->exp_max == 0) { /* a cast: no scale */
        half_step = fmax(ldexp(fabs(x), -f->digits - 1), ldexp(1, f->exp_min - f->digits - 1));
    } else { /* the scale is a power of two with most / scale in (2^(exp_max - 1), 2^(exp_max + 1))
              */
        half_step = fmax(ldexp(fabs(x), -f->digits - 1),
                         ldexp(most, f->exp_min - f->digits - 1 - (f->exp_max - 1)));
    }
    return half_step * (f->stochastic ? 2 : 1) + (f->half ? ldexp(most, -8) : 0) + ldexp(most, -22);
}

static size_t n_beyond(const struct form *f, const float *x, const float *y, size_t n,
                       const double *also)
{
    size_t n_wrong = 0;

    for (size_t b = 0; b < n; b += f->block) {
        const size_t end = n - b < f->block ? n : b + f->block;
        double min = x[b], max = x[b];

        for (size_t i = b; i < end; i++) {
            min = fmin(min, x[i]);
            max = fmax(max, x[i]);
        }
        for (size_t i = b; i < end; i++) {
            n_wrong +=
                !(fabs((double)y[i] - x[i]) <= bound_of(f, x[i], min, max) + (also ? also[i] : 0));
        }
    }
    return n_wrong;
}

/* ---- flows ---- */

static struct hdt_flow *open_flow(struct hdt_channel *channel, int rank, unsigned tag, int type,
                                  const char *codec)
{
    struct hdt_flow_conf conf = HDT_FLOW_CONF_INIT;
    struct hdt_error_info error;
    struct hdt_flow *flow;

    conf.peer = !rank;
    conf.direction = rank == 0 ? HDT_SEND : HDT_RECEIVE;
    conf.tag = tag;
    conf.type = type;
    conf.codec = codec;
    if (hdt_flow_open(channel, &conf, &flow, &error) != HDT_ERR_NONE) {
        printf("%s: %s\n", codec, error.message);
        CHAN_CHECK(!"no flow");
        exit(1);
    }
    return flow;
}

/* One tensor from rank 0 to rank 1. */
static void move(struct hdt_flow *flow, int rank, void *x, size_t n)
{
    struct hdt_error_info error = {0};
    struct hdt_request *request;
    enum hdt_err code = rank == 0 ? hdt_isend(flow, x, n, &request, &error)
                                  : hdt_irecv(flow, x, n, &request, &error);
    size_t got = 0;

    if (code == HDT_ERR_NONE) {
        code = hdt_wait(&request, &got, &error);
    }
    if (code != HDT_ERR_NONE || got != n) {
        printf("%zu of %zu came: %s\n", got, n, error.message);
        CHAN_CHECK(!"not moved");
    }
}

static void check_stats(struct hdt_flow *flow, int rank, const char *codec)
{
    struct hdt_flow_stats stats = {.size = sizeof(stats)};

    CHAN_CHECK(hdt_flow_stats(flow, &stats, NULL) == HDT_ERR_NONE);
    if (stats.frame_bytes >= stats.raw_bytes || (rank == 0 && !(stats.relative_error > 0))) {
        printf("%s: %llu bytes for %llu, error %g\n", codec, (unsigned long long)stats.frame_bytes,
               (unsigned long long)stats.raw_bytes, stats.relative_error);
        CHAN_CHECK(!"a codec makes bytes fewer and tells what it costs");
    }
}

/* Lengths at which the last byte of int4 codes holds one value or two, blocks are short, and pieces
 * several. */
static void forms_rank(struct hdt_channel *channel, int rank, int n_ranks)
{
    static const size_t lengths[] = {1, 2, 31, 33, 4095, 4097, N_LONG};
    float *x = malloc(4 * N_LONG), *y = malloc(4 * N_LONG);

    (void)n_ranks;
    for (unsigned c = 0; c < N_FORMS; c++) {
        struct hdt_flow *flow = open_flow(channel, rank, c, HDT_TYPE_F32, forms[c].codec);

        for (unsigned k = 0; k < sizeof(lengths) / sizeof(lengths[0]); k++) {
            const size_t n = lengths[k];
            size_t n_wrong;

            fill(x, n, 0, c * 16 + k);
            memcpy(y, x, 4 * n);
            if (rank == 1) {
                memset(y, 0xee, 4 * n);
            }
            move(flow, rank, y, n);
            n_wrong = n_beyond(&forms[c], x, y, n, NULL);
            if (n_wrong > 0) {
                printf("%s: %zu of %zu values are beyond their bound\n", forms[c].codec, n_wrong,
                       n);
                CHAN_CHECK(n_wrong == 0);
            }
        }
        check_stats(flow, rank, forms[c].codec);
        CHAN_CHECK(hdt_flow_close(flow, NULL) == HDT_ERR_NONE);
    }
    free(x);
    free(y);
}

/* A rotation keeps lengths. In the rotated block, whose largest magnitude is at most the length of
 * the block, each error is half a step or less: sqrt(64) / 14 of the length in all. */
static void rotated_rank(struct hdt_channel *channel, int rank, int n_ranks)
{
    struct hdt_flow *flow = open_flow(channel, rank, 0, HDT_TYPE_F32, "int4:rotate");
    float *x = malloc(4 * N_LONG), *y = malloc(4 * N_LONG);
    size_t n_wrong = 0;

    (void)n_ranks;
    fill(x, N_LONG, 0, 1);
    memcpy(y, x, 4 * N_LONG);
    move(flow, rank, y, N_LONG);
    for (size_t b = 0; b < N_LONG; b += 64) {
        const size_t n = N_LONG - b < 64 ? N_LONG - b : 64;
        float e[64];

        for (size_t i = 0; i < n; i++) {
            e[i] = y[b + i] - x[b + i];
        }
        n_wrong += norm(e, n) > norm(x + b, n) * (8.0 / 14 + 0x1p-7);
    }
    CHAN_CHECK(n_wrong == 0);
    check_stats(flow, rank, "int4:rotate");
    free(x);
    free(y);
}

/* Values that the codec does not carry, in each piece, and a tensor of bf16. */
static void odd_values_rank(struct hdt_channel *channel, int rank, int n_ranks)
{
    struct hdt_flow *ints = open_flow(channel, rank, 0, HDT_TYPE_F32, "int4:minmax");
    struct hdt_flow *halves = open_flow(channel, rank, 1, HDT_TYPE_BF16, "int8:block=32");
    float *x = calloc(N_LONG, 4);
    uint16_t *h = malloc(2 * N_LONG);
    size_t n_wrong = 0;

    (void)n_ranks;
    if (rank == 0) {
        x[3] = NAN;
        x[N_LONG - 1] = -INFINITY;
    }
    move(ints, rank, x, N_LONG);
    CHAN_CHECK(isnan(x[3]) && isinf(x[N_LONG - 1]) && x[N_LONG / 2] == 0);
    for (size_t i = 0; i < N_LONG; i++) {
        h[i] = (uint16_t)(rank == 0 ? (i % 2 ? 0xbf80 : 0x3f80) : 0); /* -1 and 1 */
    }
    move(halves, rank, h, N_LONG);
    for (size_t i = 0; i < N_LONG; i++) {
        n_wrong += h[i] != (i % 2 ? 0xbf80 : 0x3f80); /* 127 steps of 1 / 127, rounded */
    }
    CHAN_CHECK(n_wrong == 0);
    free(x);
    free(h);
}

/* ---- codecs that leave values out ---- */

/* The same tensor x, sent T times: the sum of what came is T x but for what is still owed, e. Top-k
 * sends of each value set at least the largest 1 / keep, so that it leaves at most q = sqrt(1 - 1 /
 * keep) of the length of what it is given, e + x: |e| <= q / (1 - q) |x| at any time. Random-k
 * sends each value with a chance of 1 / keep: the mean of e^2 is (1 - p) (2 - p) / p^2 x^2, 3 x^2
 * at 1 / 2, for a value of which the last g sends were without it. Without feedback e would grow by
 * q |x| each time. */
static void owed_rank(struct hdt_channel *channel, int rank, const char *codec, unsigned tag,
                      double most, int n_times)
{
    struct hdt_flow *flow = open_flow(channel, rank, tag, HDT_TYPE_F32, codec);
    float *x = malloc(4 * N_LONG), *y = malloc(4 * N_LONG), *owed = malloc(4 * N_LONG);
    double *sum = calloc(N_LONG, sizeof(*sum));

    fill(x, N_LONG, 0, tag);
    for (int t = 1; t <= n_times; t++) {
        memcpy(y, x, 4 * N_LONG);
        move(flow, rank, y, N_LONG);
        for (size_t i = 0; i < N_LONG; i++) {
            sum[i] += y[i];
            owed[i] = (float)(t * (double)x[i] - sum[i]);
        }
        if (rank == 1 && !(norm(owed, N_LONG) <= most * norm(x, N_LONG))) {
            printf("%s: after %d tensors %g of their length is owed\n", codec, t,
                   norm(owed, N_LONG) / norm(x, N_LONG));
            CHAN_CHECK(!"too much is owed");
            break;
        }
    }
    check_stats(flow, rank, codec);
    free(x);
    free(y);
    free(owed);
    free(sum);
}

/* A matrix of rank 1, with rows as wide as the codec is told, in each piece: nothing is left out
 * but by the bf16 of the factors, 2^-8 each. */
static void low_rank(struct hdt_channel *channel, int rank)
{
    struct hdt_flow *flow = open_flow(channel, rank, 3, HDT_TYPE_F32, "lowrank:2,block=64");
    const size_t n = (size_t)524288 + 6400;
    float *x = malloc(4 * n), *y = malloc(4 * n);

    for (size_t i = 0; i < n; i++) {
        x[i] = (float)(sin((double)(i / 64) * 0.37 + 1) * cos((double)(i % 64) * 0.11));
    }
    for (int t = 0; t < 3; t++) {
        memcpy(y, x, 4 * n);
        move(flow, rank, y, n);
    }
    for (size_t i = 0; i < n; i++) {
        y[i] -= x[i];
    }
    CHAN_CHECK(norm(y, n) <= norm(x, n) * 0x1p-6);
    free(x);
    free(y);
}

static void feedback_rank(struct hdt_channel *channel, int rank, int n_ranks)
{
    const double q = sqrt(1 - 1.0 / 8);
    struct hdt_request *request;
    struct hdt_error_info error;
    struct hdt_flow *flow;
    float x[100] = {1};

    (void)n_ranks;
    owed_rank(channel, rank, "topk:8,bits=16", 1, 1.01 * q / (1 - q), 50);
    owed_rank(channel, rank, "randk:2,bits=16+lossless", 2, 2, 20);
    low_rank(channel, rank);
    flow = open_flow(channel, rank, 4, HDT_TYPE_F32, "topk:8");
    move(flow, rank, x, 100);
    move(flow, rank, x, 0); /* nothing owes nothing */
    if (rank == 0) {
        CHAN_CHECK(hdt_isend(flow, x, 99, &request, &error) == HDT_ERR_INVALID && !request);
        CHAN_CHECK(strstr(error.message, "99 elements by codec topk:8") &&
                   strstr(error.message, "had 100"));
    }
    move(flow, rank, x, 100);
}

/* ---- all-reduce ---- */

/* Each part is coded once and their sum once more, all by these bounds: those of the parts add up,
 * and widen what the sum may be. */
static void reduce_rank(struct hdt_channel *channel, int rank, int n_ranks)
{
    static const size_t lengths[] = {1, 1023, 40001, N_LONG};
    float *x = malloc(4 * N_LONG), *y = malloc(4 * N_LONG), *part = malloc(4 * N_LONG);
    double *also = malloc(N_LONG * sizeof(*also));

    for (unsigned c = 0; c < N_FORMS; c++) {
        struct hdt_allreduce_conf conf = HDT_ALLREDUCE_CONF_INIT;
        struct form f = forms[c];
        char codec[64];

        snprintf(codec, sizeof(codec), "%s", f.codec);
        codec[strcspn(codec, "+")] = '\0'; /* a channel's collectives are all lossless, or none */
        conf.codec = codec;
        for (unsigned k = 0; k < sizeof(lengths) / sizeof(lengths[0]); k++) {
            const size_t n = lengths[k];
            struct hdt_error_info error = {0};
            size_t n_wrong = 0;

            memset(x, 0, 4 * n);
            memset(also, 0, n * sizeof(*also));
            for (int r = 0; r < n_ranks; r++) {
                fill(part, n, r, k);
                for (size_t b = 0; b < n; b += f.block) {
                    const size_t end = n - b < f.block ? n : b + f.block;
                    double min = part[b], max = part[b];

                    for (size_t i = b; i < end; i++) {
                        min = fmin(min, part[i]);
                        max = fmax(max, part[i]);
                    }
                    for (size_t i = b; i < end; i++) {
                        x[i] += part[i];
                        /* A part that was off by this lets the sum's block reach further, too. */
                        also[i] += bound_of(&f, part[i], min, max) * 1.5;
                    }
                }
            }
            fill(y, n, rank, k);
            if (hdt_allreduce(channel, y, y, n, &conf, &error) != HDT_ERR_NONE) {
                printf("%s: %s\n", codec, error.message);
                CHAN_CHECK(!"all-reduce failed");
            }
            n_wrong = n_beyond(&f, x, y, n, also);
            if (n_wrong > 0) {
                printf("%s: %zu of %zu sums are beyond their bound\n", codec, n_wrong, n);
                CHAN_CHECK(n_wrong == 0);
            }
            memcpy(part, y, 4 * n);
            CHAN_CHECK(hdt_broadcast(channel, part, 4 * n, 0, NULL) == HDT_ERR_NONE);
            CHAN_CHECK(memcmp(part, y, 4 * n) == 0);
        }
    }
    free(x);
    free(y);
    free(part);
    free(also);
}

/* ---- what is refused, and what differs ---- */

static void refuse(struct hdt_channel *channel, int rank, const char *codec, int flow_too,
                   const char *words)
{
    struct hdt_flow_conf flow_conf = HDT_FLOW_CONF_INIT;
    struct hdt_allreduce_conf conf = HDT_ALLREDUCE_CONF_INIT;
    struct hdt_error_info error = {0};
    struct hdt_flow *flow;
    float x = 1;

    conf.codec = codec;
    CHAN_CHECK(hdt_allreduce(channel, &x, &x, 1, &conf, &error) == HDT_ERR_INVALID);
    CHAN_CHECK(strstr(error.message, words) && strstr(error.message, codec) && error.hint[0]);
    if (flow_too) {
        flow_conf.peer = !rank;
        flow_conf.type = HDT_TYPE_F32;
        flow_conf.codec = codec;
        CHAN_CHECK(hdt_flow_open(channel, &flow_conf, &flow, &error) == HDT_ERR_INVALID && !flow);
        CHAN_CHECK(strstr(error.message, words) && strstr(error.message, codec));
    }
}

static void refused_rank(struct hdt_channel *channel, int rank, int n_ranks)
{
    (void)n_ranks;
    refuse(channel, rank, "topk:64,bits=2", 0, "not for collectives");
    refuse(channel, rank, "randk:8", 0, "not for collectives");
    refuse(channel, rank, "lowrank:4", 0, "not for collectives");
    refuse(channel, rank, "delta:int8", 1, "for jobs only");
    refuse(channel, rank, "int4:rotate+lossless", 0, "not for one collective");
    refuse(channel, rank, "int9", 1, "no codec");
    CHAN_CHECK(hdt_barrier(channel, NULL) == HDT_ERR_NONE); /* it goes on */
}

static void flow_differs_rank(int rank)
{
    struct hdt_error_info error;
    struct hdt_channel *channel = hdt_chan_rig_channel("codecs", 2, rank, &error);
    struct hdt_request *request;
    struct hdt_flow *flow;
    float x = 1;

    CHAN_CHECK(channel != NULL);
    if (!channel) {
        return;
    }
    flow = open_flow(channel, rank, 0, HDT_TYPE_F32, rank == 0 ? "int8:block=64" : "int8:minmax");
    if (rank == 0) {
        CHAN_CHECK(hdt_isend(flow, &x, 1, &request, NULL) == HDT_ERR_NONE);
        hdt_wait(&request, NULL, NULL); /* it may be copied before the other end is known */
        CHAN_CHECK(hdt_flow_close(flow, &error) == HDT_ERR_INVALID);
    } else {
        CHAN_CHECK(hdt_irecv(flow, &x, 1, &request, NULL) == HDT_ERR_NONE);
        CHAN_CHECK(hdt_wait(&request, NULL, &error) == HDT_ERR_INVALID);
    }
    CHAN_CHECK(strstr(error.message, "f32 by int8:block=64") &&
               strstr(error.message, "f32 by int8:minmax"));
    CHAN_CHECK(hdt_channel_close(channel, NULL) == HDT_ERR_INVALID);
}

static void reduce_differs_rank(int rank)
{
    struct hdt_allreduce_conf conf = HDT_ALLREDUCE_CONF_INIT;
    struct hdt_error_info error;
    struct hdt_channel *channel = hdt_chan_rig_channel("sums", 2, rank, &error);
    float x = 1;

    CHAN_CHECK(channel != NULL);
    if (!channel) {
        return;
    }
    conf.codec = rank == 0 ? "int8:block=64" : "int4:block=128,rotate";
    CHAN_CHECK(hdt_allreduce(channel, &x, &x, 1, &conf, &error) == HDT_ERR_INVALID);
    CHAN_CHECK(strstr(error.message, "codec int8:block=64") &&
               strstr(error.message, "codec int4:block=128,rotate"));
    CHAN_CHECK(hdt_channel_close(channel, NULL) == HDT_ERR_INVALID);
}

static void run_pair(void (*run)(int site))
{
    pid_t pids[2];

    for (int i = 0; i < 2; i++) {
        pids[i] = hdt_chan_rig_fork(run, i);
    }
    for (int i = 0; i < 2; i++) {
        CHAN_CHECK(hdt_chan_rig_join(pids[i], 60));
    }
}

int main(void)
{
    seed = hdt_chan_rig_seed();
    hdt_chan_rig_open();
    hdt_chan_rig_start(2, "20s");
    hdt_chan_rig_run("forms", 2, 60, forms_rank);
    hdt_chan_rig_run("rotated", 2, 60, rotated_rank);
    hdt_chan_rig_run("odd", 2, 60, odd_values_rank);
    hdt_chan_rig_run("feedback", 2, 120, feedback_rank);
    hdt_chan_rig_run("sums", 2, 60, reduce_rank);
    hdt_chan_rig_run("refused", 2, 60, refused_rank);
    run_pair(flow_differs_rank);
    run_pair(reduce_differs_rank);
    hdt_chan_rig_close();
    return hdt_chan_rig_n_failed > 0;
}
