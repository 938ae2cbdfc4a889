/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rate and ratio of every codec on one core, over values like those of a training run: normally
 * distributed with a scale that differs from channel to channel. Prints a table and a JSON line
 * for each figure. Rates are in bytes of the plain side.
 *
 *     bench_codec [MILLISECONDS A CASE]
 */
#include "config.h"

#include "compress/codec.h"
#include "compress/codec_ctx.h"
#include "src/base/buf.h"
#include "src/base/clock.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_VALUES  ((size_t)1 << 22)
#define CHUNK     ((size_t)1 << 20)
#define N_CHANNEL 512

struct bench {
    struct hdt_codec_ctx *ctx;
    double seconds;
    uint8_t *coded;
    uint8_t *back;
};

/* One case: a codec over data of a dtype, in chunks. */
struct bench_case {
    const char *name;
    const struct hdt_codec_ops *codec;
    enum hdt_dtype dtype;
    const uint8_t *data;
    size_t len;
    size_t chunk;
    bool guard;
};

struct bench_result {
    double encode, decode, ratio;
};

static float random_normal(uint64_t *state)
{
    float sum = 0;

    for (int i = 0; i < 12; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(*state >> 40) * 0x1p-24f;
    }
    return sum - 6.0f;
}

static void fill(float *x)
{
    uint64_t state = 1;
    float gain[N_CHANNEL];

    for (size_t c = 0; c < N_CHANNEL; c++) {
        gain[c] = expf(0.5f * random_normal(&state));
    }
    for (size_t i = 0; i < N_VALUES; i++) {
        x[i] = gain[i % N_CHANNEL] * random_normal(&state);
    }
}

static double seconds_now(void)
{
    return (double)hdt_clock_now_ns() * 1e-9;
}

/* One pass over all chunks; returns the coded bytes. lens[] are kept for the decoder. */
static size_t pass(struct bench *b, const struct bench_case *c, size_t *lens, bool decode)
{
    struct hdt_codec_guard guard;
    struct hdt_error err = {0};
    size_t total = 0, i = 0;

    for (size_t at = 0; at < c->len; at += c->chunk, i++) {
        size_t len = c->len - at < c->chunk ? c->len - at : c->chunk;
        size_t room = len + len / 8 + 64;
        uint8_t *coded = b->coded + total;
        enum hdt_status status;

        if (decode) {
            struct hdt_codec_io io = {.src = coded,
                                      .src_len = lens[i],
                                      .dst = b->back + at,
                                      .dst_len = len,
                                      .dtype = c->dtype,
                                      .offset = at};

            status = hdt_codec_decode(c->codec, b->ctx, &io, &err);
        } else {
            struct hdt_codec_io io = {.src = c->data + at,
                                      .src_len = len,
                                      .dst = coded,
                                      .dst_len = room,
                                      .dtype = c->dtype,
                                      .offset = at,
                                      .guard = c->guard ? &guard : NULL};

            status = hdt_codec_encode(c->codec, b->ctx, &io, &lens[i], &err);
        }
        if (status != HDT_OK) {
            hdt_error_print(&err, "bench_codec");
            exit(1);
        }
        total += lens[i];
    }
    return total;
}

static struct bench_result measure(struct bench *b, const struct bench_case *c)
{
    size_t *lens = hdt_calloc(c->len / c->chunk + 1, sizeof(*lens));
    struct bench_result r;
    double *rates[2] = {&r.encode, &r.decode};

    r.ratio = (double)c->len / (double)pass(b, c, lens, false);
    for (int side = 0; side < 2; side++) {
        double best = 1e9, end = seconds_now() + b->seconds;

        do {
            double begin = seconds_now(), took;

            pass(b, c, lens, side == 1);
            took = seconds_now() - begin;
            best = took < best ? took : best;
        } while (seconds_now() < end);
        *rates[side] = (double)c->len / best / 1e9;
    }
    free(lens);
    return r;
}

static void print_json(const char *name, const char *kernels, const char *metric, double value,
                       const char *unit)
{
    printf("{\"bench\":\"codec\",\"case\":\"%s %s\",\"metric\":\"%s\",\"value\":%.3f,"
           "\"unit\":\"%s\",\"better\":\"higher\"}\n",
           name, kernels, metric, value, unit);
}

int main(int argc, char **argv)
{
    float *f32 = hdt_malloc(4 * N_VALUES);
    uint8_t *bf16 = hdt_malloc(2 * N_VALUES), *int8 = hdt_malloc(2 * N_VALUES);
    struct bench b = {.seconds = (argc > 1 ? strtod(argv[1], NULL) : 150.0) / 1000.0};
    struct hdt_error err = {0};
    size_t n_tables, bf16_len, int8_len;
    const struct hdt_kernels *const *tables = hdt_kernels_all(&n_tables);

    b.coded = hdt_malloc(5 * N_VALUES);
    b.back = hdt_malloc(4 * N_VALUES);
    memset(b.coded, 1, 5 * N_VALUES);
    memset(b.back, 1, 4 * N_VALUES);
    if (hdt_codec_ctx_new(CHUNK, &b.ctx, &err) != HDT_OK) {
        hdt_error_print(&err, "bench_codec");
        return 1;
    }
    fill(f32);
    struct hdt_codec_io to_bf16 = {.src = f32,
                                   .src_len = 4 * N_VALUES,
                                   .dst = bf16,
                                   .dst_len = 2 * N_VALUES,
                                   .dtype = HDT_DTYPE_F32};
    struct hdt_codec_io to_int8 = to_bf16;
    to_int8.dst = int8;
    if (hdt_codec_encode(&hdt_codec_bf16, b.ctx, &to_bf16, &bf16_len, &err) != HDT_OK ||
        hdt_codec_encode(&hdt_codec_int8, b.ctx, &to_int8, &int8_len, &err) != HDT_OK) {
        hdt_error_print(&err, "bench_codec");
        return 1;
    }

    const uint8_t *raw = (const uint8_t *)f32;
    const struct bench_case cases[] = {
        {"none", &hdt_codec_none, HDT_DTYPE_F32, raw, 4 * N_VALUES, CHUNK, false},
        {"bf16", &hdt_codec_bf16, HDT_DTYPE_F32, raw, 4 * N_VALUES, CHUNK, false},
        {"bf16 guarded", &hdt_codec_bf16, HDT_DTYPE_F32, raw, 4 * N_VALUES, CHUNK, true},
        {"int8 guarded", &hdt_codec_int8, HDT_DTYPE_F32, raw, 4 * N_VALUES, CHUNK, true},
        {"lossless of f32", &hdt_codec_lossless, HDT_DTYPE_F32, raw, 4 * N_VALUES, CHUNK, false},
        {"lossless of bf16", &hdt_codec_lossless, HDT_DTYPE_BF16, bf16, bf16_len, CHUNK, false},
        {"lossless of int8", &hdt_codec_lossless, HDT_DTYPE_I8, int8, int8_len, CHUNK, false},
    };
    printf("%-18s %-7s %12s %12s %8s\n", "codec", "kernels", "encode GB/s", "decode GB/s", "ratio");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (size_t t = 0; t < n_tables; t++) {
            b.ctx->kernels = tables[t];
            struct bench_result r = measure(&b, &cases[i]);

            printf("%-18s %-7s %12.2f %12.2f %8.3f\n", cases[i].name, tables[t]->name, r.encode,
                   r.decode, r.ratio);
            print_json(cases[i].name, tables[t]->name, "encode", r.encode, "GB/s");
            print_json(cases[i].name, tables[t]->name, "decode", r.decode, "GB/s");
            print_json(cases[i].name, tables[t]->name, "ratio", r.ratio, "x");
        }
    }
    hdt_codec_ctx_free(b.ctx);
    free(b.coded);
    free(b.back);
    free(f32);
    free(bf16);
    free(int8);
    return 0;
}
