/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holds a backend's codecs to their scalar definition:
 *
 *     device_codecs [--quick] [--bench] [NAME]        the module's name; default cuda
 *
 * Each codec encodes and decodes tensors of many lengths and contents on the device; frames,
 * tensors, refusals and what the guard counts must be the scalar kernels' bit for bit, the guard's
 * sums within 1e-5. The frames of codec_goldens.c and frames of foreign bytes are tried as well.
 * --quick takes few lengths (for a memory checker); --bench tells rates beside the device's copy.
 *
 * Exit status: 0 all right, 1 a miss, 2 wrong usage, 77 the backend, its device or codecs are not
 * here.
 */
#include "config.h"

#include "compress/device.h"
#include "runtime/backend_load.h"
#include "runtime/selftest/codecs.h"
#include "src/base/buf.h"
#include "tests/support/codec_goldens.h"
#include "tests/support/values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void must(enum hdt_status status, const struct hdt_error *err)
{
    if (status != HDT_OK) {
        hdt_error_print(err, "device_codecs");
        exit(status == HDT_ENOENT || status == HDT_ENOTSUP ? 77 : 1);
    }
}

/* ---- contents ---- */

static const char *contents_fill(void *arg, int kind, float *x, size_t n)
{
    hdt_values_fill(arg, (enum values_kind)kind, x, n);
    return hdt_values_kind_name((enum values_kind)kind);
}

static uint64_t contents_random(void *arg)
{
    return hdt_values_u64(arg);
}

static void golden_run(struct hdt_codec_trial *w)
{
    for (size_t i = 0; i < hdt_n_codec_goldens; i++) {
        const struct codec_golden *g = &hdt_codec_goldens[i];

        must(hdt_codec_spec_parse(g->text, &w->spec, NULL), NULL);
        w->text = g->text;
        w->content = "golden";
        w->dtype = HDT_DTYPE_F32;
        w->n = g->n;
        memcpy(w->plain, g->plain, 4 * g->n);
        hdt_codec_trial_check(w, hdt_codec_trial_encode(w, NULL) == g->coded_len, "golden length");
        hdt_codec_trial_check(w, memcmp(w->got_coded, g->coded, g->coded_len) == 0, "golden bytes");
        if (g->back) {
            memcpy(w->want_coded, g->coded, g->coded_len);
            hdt_codec_trial_decode(w, g->coded_len, false);
            hdt_codec_trial_check(w, memcmp(w->got_plain, g->back, 4 * g->n) == 0, "golden values");
        }
    }
}

/* ---- rates ---- */

#define BENCH_N    ((size_t)256 << 20) /* values: far beyond any cache of the device */
#define BENCH_RUNS 20

struct bench {
    const struct hdt_codec_side *side;
    uint8_t *plain, *coded, *other;
    double copy_rate;
};

static double seconds_now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static void bench_wait(const struct hdt_codec_side *s)
{
    struct hdt_error err = {0};

    must(s->backend->stream_wait(s->stream, &err), &err);
}

static void bench_tell(const struct bench *b, const char *what, double seconds, double bytes)
{
    const double rate = bytes * BENCH_RUNS / seconds;

    printf("%-32s %9.1f us  %7.0f GB/s  %5.1f %% of copy  %7.0f GB/s of fp32\n", what,
           seconds / BENCH_RUNS * 1e6, rate / 1e9, 100 * rate / b->copy_rate,
           4.0 * BENCH_N * BENCH_RUNS / seconds / 1e9);
}

static void bench_copy(struct bench *b)
{
    const struct hdt_codec_side *s = b->side;
    double begin = 0;

    for (int i = -2; i < BENCH_RUNS; i++) {
        if (i == 0) {
            bench_wait(s);
            begin = seconds_now();
        }
        s->backend->copy(s->stream, b->other, b->plain, 4 * BENCH_N, HDT_COPY_ON_DEVICE);
    }
    bench_wait(s);
    b->copy_rate = 8.0 * BENCH_N * BENCH_RUNS / (seconds_now() - begin);
    bench_tell(b, "copy", 8.0 * BENCH_N * BENCH_RUNS / b->copy_rate, 8.0 * BENCH_N);
}

/* Bytes that an encoder must move; top-k: values in, residual in and out. */
static void bench_codec(const struct bench *b, const char *text)
{
    const struct hdt_codec_side *s = b->side;
    const bool is_topk = strncmp(text, "topk", 4) == 0;
    struct hdt_codec_spec spec;
    struct hdt_codec_io io = {.spec = &spec, .dtype = HDT_DTYPE_F32};
    struct hdt_error err = {0};
    char what[64];
    size_t len = 0;

    must(hdt_codec_spec_parse(text, &spec, &err), &err);
    for (int mode = 0; mode < 3; mode++) { /* encode, decode, decode and add */
        double begin = 0;

        io.add = mode == 2;
        io.src = mode == 0 ? b->plain : b->coded;
        io.dst = mode == 0 ? b->coded : b->other;
        io.src_len = mode == 0 ? 4 * BENCH_N : len;
        io.dst_len = 4 * BENCH_N;
        for (int i = -2; i < BENCH_RUNS; i++) {
            if (i == 0) {
                bench_wait(s);
                begin = seconds_now();
            }
            if (mode == 0) {
                must(hdt_codec_device_encode(&s->call, &io, &len, &err), &err);
            } else {
                must(hdt_codec_device_decode(&s->call, &io, &err), &err);
            }
        }
        bench_wait(s);
        snprintf(what, sizeof(what), "%s %s", text,
                 mode == 0   ? "encode"
                 : mode == 1 ? "decode"
                             : "decode, add");
        bench_tell(b, what, seconds_now() - begin,
                   (double)len + (is_topk && mode == 0 ? 12.0
                                  : mode == 2          ? 8.0
                                                       : 4.0) *
                                     BENCH_N);
    }
}

static void bench_planes(const struct bench *b, size_t size)
{
    const struct hdt_codec_side *s = b->side;
    const size_t n = 4 * BENCH_N / size;
    uint8_t *planes[8];
    const uint8_t *from[8];
    char what[64];

    for (size_t p = 0; p < size; p++) {
        from[p] = planes[p] = b->other + p * n;
    }
    for (int is_join = 0; is_join < 2; is_join++) {
        double begin = 0;

        for (int i = -2; i < BENCH_RUNS; i++) {
            if (i == 0) {
                bench_wait(s);
                begin = seconds_now();
            }
            if (is_join) {
                s->call.codecs->join(s->stream, size, true, from, n, b->plain);
            } else {
                s->call.codecs->split(s->stream, size, true, b->plain, n, planes);
            }
        }
        bench_wait(s);
        snprintf(what, sizeof(what), "planes of %zu bytes, %s", size, is_join ? "join" : "split");
        bench_tell(b, what, seconds_now() - begin, 8.0 * BENCH_N);
    }
}

static void bench_run(struct hdt_codec_side *s)
{
    static const char *const texts[] = {
        "none",        "bf16",          "fp16",          "fp8",
        "fp8:e5m2",    "int8",          "int8:minmax",   "int8:stochastic",
        "int8:rotate", "int8:block=64", "int4",          "int4:minmax",
        "int4:rotate", "topk:64",       "topk:16,bits=8"};
    struct bench b = {.side = s};
    struct values_rng rng;
    float *x = hdt_calloc(BENCH_N, sizeof(*x)), *residual = s->call.residual;
    struct hdt_error err = {0};

    hdt_values_rng_init(&rng, "bench");
    for (size_t i = 0; i < BENCH_N; i++) { /* a million values, each time another sign and scale */
        x[i] = i < (1 << 20) ? hdt_values_normal(&rng)
                             : x[i & ((1 << 20) - 1)] * (float)(1.0 - (double)(i >> 20) * 0.007);
    }
    must(s->backend->alloc(s->device, 4 * BENCH_N, (void **)&b.plain, &err), &err);
    must(s->backend->alloc(s->device, 4 * BENCH_N, (void **)&b.coded, &err), &err);
    must(s->backend->alloc(s->device, 4 * BENCH_N, (void **)&b.other, &err), &err);
    must(s->backend->alloc(s->device, 4 * BENCH_N, (void **)&s->call.residual, &err), &err);
    s->backend->copy(s->stream, b.plain, x, 4 * BENCH_N, HDT_COPY_TO_DEVICE);
    s->backend->ops->zero(s->stream, s->call.residual, 4 * BENCH_N);
    bench_wait(s);
    printf("\n%zu values; best possible: the bytes that must move, at the rate of a copy\n",
           BENCH_N);
    bench_copy(&b);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        bench_codec(&b, texts[i]);
    }
    bench_planes(&b, 2);
    bench_planes(&b, 4);
    s->backend->free(s->device, s->call.residual);
    s->backend->free(s->device, b.other);
    s->backend->free(s->device, b.coded);
    s->backend->free(s->device, b.plain);
    s->call.residual = residual;
    free(x);
}

/* ---- all of it ---- */

static void side_open(struct hdt_codec_side *s, const char *name)
{
    const struct hdt_device_conf conf = {.n_threads = 1};
    const struct hdt_backend *backend;
    struct hdt_device *device;
    struct hdt_stream *stream;
    struct hdt_error err = {0};
    int n_devices = 0;

    must(hdt_backend_load(name, &backend, &err), &err);
    must(backend->device_count(&n_devices, &err), &err);
    if (n_devices == 0 || !backend->codecs) {
        must(hdt_error_set(&err, HDT_ENOENT, "no device of backend '%s' is here, or no codecs",
                           name),
             &err);
    }
    must(backend->device_open(&conf, &device, &err), &err);
    must(backend->stream_new(device, &stream, &err), &err);
    hdt_codec_side_open(s, backend, device, stream);
}

static void side_close(struct hdt_codec_side *s)
{
    hdt_codec_side_close(s);
    s->backend->stream_free(s->stream);
    s->backend->device_close(s->device);
}

/* The number of misses. */
static int suite_run(struct hdt_codec_side *side, bool is_quick)
{
    struct values_rng rng;
    const struct hdt_codec_contents contents = {.n_kinds = VALUES_KIND_COUNT,
                                                .fill = contents_fill,
                                                .random = contents_random,
                                                .arg = &rng};
    struct hdt_codec_trial *w = hdt_calloc(1, sizeof(*w));
    int n_misses;

    hdt_values_rng_init(&rng, "device_codecs");
    w->side = side;
    w->contents = &contents;
    golden_run(w);
    hdt_codec_trials_run(w, is_quick);
    n_misses = w->n_misses;
    printf("%d checks, %d misses\n", w->n_checks, n_misses);
    free(w);
    return n_misses;
}

int main(int argc, char **argv)
{
    const char *name = "cuda";
    bool is_quick = false, with_bench = false;
    struct hdt_codec_side side;
    int n_misses;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) {
            is_quick = true;
        } else if (strcmp(argv[i], "--bench") == 0) {
            with_bench = true;
        } else if (argv[i][0] != '-') {
            name = argv[i];
        } else {
            fprintf(stderr, "usage: device_codecs [--quick] [--bench] [NAME]\n");
            return 2;
        }
    }
    side_open(&side, name);
    n_misses = suite_run(&side, is_quick);
    if (with_bench) {
        bench_run(&side);
    }
    side_close(&side);
    return n_misses > 0;
}
