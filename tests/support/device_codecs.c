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

#include "compress/codec_ctx.h"
#include "compress/codec_state.h"
#include "compress/device.h"
#include "compress/planes.h"
#include "runtime/backend_load.h"
#include "src/base/buf.h"
#include "tests/support/codec_goldens.h"
#include "tests/support/values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define N_MAX       ((size_t)40000)
#define PLAIN_MAX   (4 * N_MAX)
#define CODED_MAX   (5 * N_MAX + 65536)
#define SUM_ERROR   1e-5
#define WHOLE_ERROR 1e-12
#define BEYOND      0xa5 /* what stands behind what is written */
#define MISSES_MAX  40

struct side {
    const struct hdt_backend *backend;
    struct hdt_device *device;
    struct hdt_stream *stream;
    struct hdt_device_call call;
    uint8_t *plain, *coded; /* device */
    struct hdt_codec_ctx *ctx;
};

/* One tensor, as the definition and as the device code it. */
struct world {
    struct values_rng rng;
    struct side *side;
    struct hdt_codec_spec spec;
    const char *text;
    enum hdt_dtype dtype;
    size_t n;
    const char *content;
    uint8_t plain[PLAIN_MAX], want_plain[PLAIN_MAX], got_plain[PLAIN_MAX];
    uint8_t want_coded[CODED_MAX], got_coded[CODED_MAX];
};

static int n_misses, n_checks;

static void must(enum hdt_status status, const struct hdt_error *err)
{
    if (status != HDT_OK) {
        hdt_error_print(err, "device_codecs");
        exit(status == HDT_ENOENT || status == HDT_ENOTSUP ? 77 : 1);
    }
}

static void check(const struct world *w, bool is_right, const char *what)
{
    n_checks++;
    if (!is_right && n_misses++ < MISSES_MAX) {
        printf("MISS: %s %s, n %zu, %s: %s\n", w->text, hdt_dtype_name(w->dtype), w->n, w->content,
               what);
    }
}

static void to_device(const struct side *s, void *dst, const void *src, size_t len)
{
    s->backend->copy(s->stream, dst, src, len, HDT_COPY_TO_DEVICE);
}

static void from_device(const struct side *s, void *dst, const void *src, size_t len)
{
    struct hdt_error err = {0};

    s->backend->copy(s->stream, dst, src, len, HDT_COPY_FROM_DEVICE);
    must(s->backend->stream_wait(s->stream, &err), &err);
}

static struct hdt_device_report report_of(const struct side *s)
{
    struct hdt_device_report report;

    from_device(s, &report, s->call.report, sizeof(report));
    return report;
}

/* ---- encoders ---- */

/* `of`: what the sum was made of. Top-k's error is what is left of the whole. */
static bool sums_agree(double want, double got, double of)
{
    return want == got || fabs(want - got) <= SUM_ERROR * fabs(want) + WHOLE_ERROR * of;
}

static void check_guard(struct world *w, const struct hdt_codec_guard *want,
                        const struct hdt_codec_guard *got)
{
    char text[160];

    check(w, want->n == got->n && want->n_nonfinite == got->n_nonfinite, "guard's counts");
    check(w, memcmp(&want->max_abs, &got->max_abs, 4) == 0, "guard's maximum");
    snprintf(text, sizeof(text), "guard's sums: err %.9g, not %.9g; ref %.9g, not %.9g",
             got->err_sq, want->err_sq, got->ref_sq, want->ref_sq);
    check(w,
          sums_agree(want->err_sq, got->err_sq, want->ref_sq) &&
              sums_agree(want->ref_sq, got->ref_sq, 0),
          text);
}

static struct hdt_codec_io encode_io(const struct world *w, struct hdt_codec_guard *guard,
                                     uint64_t seed)
{
    return (struct hdt_codec_io){.spec = &w->spec,
                                 .src_len = w->n * hdt_dtype_size(w->dtype),
                                 .dst_len = CODED_MAX,
                                 .dtype = w->dtype,
                                 .guard = guard,
                                 .seed = seed};
}

/* Both encode w->plain; returns the frame's length, 0 when it is refused. */
static size_t check_encode(struct world *w, struct hdt_codec_state *state)
{
    const struct side *s = w->side;
    const uint64_t seed = hdt_values_u64(&w->rng);
    struct hdt_codec_guard want_guard, got_guard;
    struct hdt_codec_io io = encode_io(w, &want_guard, seed);
    struct hdt_error want_err = {0}, got_err = {0}, err = {0};
    struct hdt_device_report report;
    enum hdt_status want, got;
    size_t want_len = 0, got_len = 0;

    memset(w->want_coded, BEYOND, CODED_MAX);
    to_device(s, s->coded, w->want_coded, CODED_MAX);
    to_device(s, s->plain, w->plain, io.src_len);
    io.src = w->plain;
    io.dst = w->want_coded;
    io.state = state;
    want = hdt_codec_encode(hdt_codec_spec_worker(&w->spec), s->ctx, &io, &want_len, &want_err);
    io = encode_io(w, &got_guard, seed);
    io.src = s->plain;
    io.dst = s->coded;
    must(hdt_codec_device_encode(&s->call, &io, &got_len, &err), &err);
    report = report_of(s);
    got = hdt_codec_device_encoded(&io, &report, &got_err);
    from_device(s, w->got_coded, s->coded, CODED_MAX);
    check(w, want == got && strcmp(want_err.msg, got_err.msg) == 0, "status");
    if (w->spec.worker != HDT_CODEC_NONE || w->dtype == HDT_DTYPE_F32) {
        check_guard(w, &want_guard, &got_guard);
    }
    if (want != HDT_OK) {
        return 0;
    }
    check(w, want_len == got_len, "length");
    check(w, memcmp(w->want_coded, w->got_coded, CODED_MAX) == 0, "coded bytes");
    return want_len;
}

/* ---- decoders ---- */

static void check_decode(struct world *w, size_t coded_len, bool add)
{
    const struct side *s = w->side;
    struct hdt_codec_io io = {.spec = &w->spec,
                              .src = w->want_coded,
                              .src_len = coded_len,
                              .dst = w->want_plain,
                              .dst_len = w->n * hdt_dtype_size(w->dtype),
                              .dtype = w->dtype,
                              .add = add};
    struct hdt_error want_err = {0}, got_err = {0}, err = {0};
    const float some = 0.125f;
    enum hdt_status want, got;

    for (size_t i = 0; i < PLAIN_MAX; i += 4) {
        memcpy(w->want_plain + i, &some, 4);
    }
    to_device(s, s->plain, w->want_plain, PLAIN_MAX);
    to_device(s, s->coded, w->want_coded, coded_len);
    want = hdt_codec_decode(hdt_codec_spec_worker(&w->spec), s->ctx, &io, &want_err);
    io.src = s->coded;
    io.dst = s->plain;
    must(hdt_codec_device_decode(&s->call, &io, &err), &err);
    if (w->spec.worker != HDT_CODEC_NONE) {
        const struct hdt_device_report report = report_of(s);

        got = hdt_codec_device_decoded(&io, &report, &got_err);
        check(w, want == got, "status of decoding");
    }
    from_device(s, w->got_plain, s->plain, PLAIN_MAX);
    if (want == HDT_OK) {
        check(w, memcmp(w->want_plain, w->got_plain, PLAIN_MAX) == 0,
              add ? "decoded sums" : "decoded values");
    }
}

/* Foreign bytes: codes of any bits behind parameters that are mostly fit, so that some frames are
 * decoded and some refused. */
static void check_foreign(struct world *w, size_t coded_len)
{
    const size_t n_changed = hdt_values_below(&w->rng, 8);

    for (size_t i = 0; i < n_changed && coded_len > 0; i++) {
        w->want_coded[hdt_values_below(&w->rng, coded_len)] = (uint8_t)hdt_values_u64(&w->rng);
    }
    if (!(w->spec.flags & HDT_CODEC_ROTATE)) { /* sums of two infinities are left open */
        check_decode(w, coded_len, false);
    }
}

/* ---- one codec ---- */

static void fill(struct world *w, enum values_kind kind)
{
    static float x[N_MAX];

    w->content = hdt_values_kind_name(kind);
    hdt_values_fill(&w->rng, kind, x, w->n);
    if (w->dtype == HDT_DTYPE_F32) {
        memcpy(w->plain, x, 4 * w->n);
    } else {
        hdt_kernels_scalar.bf16_encode((const uint8_t *)x, w->n, w->plain);
    }
}

static void codec_run(struct world *w, const size_t *lens, size_t n_lens)
{
    for (int kind = 0; kind < VALUES_KIND_COUNT; kind++) {
        for (size_t i = 0; i < n_lens; i++) {
            size_t len;

            w->n = lens[i];
            fill(w, (enum values_kind)kind);
            len = check_encode(w, NULL);
            if (len > 0) {
                check_decode(w, len, false);
                if (w->dtype == HDT_DTYPE_F32) {
                    check_decode(w, len, true);
                }
                check_foreign(w, len);
            }
        }
    }
}

/* Frames of one flow: what is left over is the definition's, frame after frame. */
static void topk_run(struct world *w, const size_t *lens, size_t n_lens)
{
    const struct side *s = w->side;

    for (size_t i = 0; i < n_lens; i++) {
        struct hdt_codec_state *state = NULL;
        struct hdt_error err = {0};

        w->n = lens[i];
        if (w->n == 0) {
            continue;
        }
        must(hdt_codec_state_new(&w->spec, w->n, 1, &state, &err), &err);
        memset(w->got_plain, 0, PLAIN_MAX);
        to_device(s, s->call.residual, w->got_plain, 4 * w->n);
        for (int kind = 0; kind < 2 * VALUES_KIND_COUNT; kind++) {
            size_t len;

            fill(w, (enum values_kind)(kind % VALUES_KIND_COUNT));
            len = check_encode(w, state);
            from_device(s, w->got_plain, s->call.residual, 4 * w->n);
            check(w, memcmp(w->got_plain, state->residual, 4 * w->n) == 0, "residual");
            if (len > 0) {
                check_decode(w, len, false);
                check_decode(w, len, true);
                check_foreign(w, len);
            }
        }
        hdt_codec_state_free(state);
    }
}

static void golden_run(struct world *w)
{
    for (size_t i = 0; i < hdt_n_codec_goldens; i++) {
        const struct codec_golden *g = &hdt_codec_goldens[i];

        must(hdt_codec_spec_parse(g->text, &w->spec, NULL), NULL);
        w->text = g->text;
        w->content = "golden";
        w->dtype = HDT_DTYPE_F32;
        w->n = g->n;
        memcpy(w->plain, g->plain, 4 * g->n);
        check(w, check_encode(w, NULL) == g->coded_len, "golden length");
        check(w, memcmp(w->got_coded, g->coded, g->coded_len) == 0, "golden bytes");
        if (g->back) {
            memcpy(w->want_coded, g->coded, g->coded_len);
            check_decode(w, g->coded_len, false);
            check(w, memcmp(w->got_plain, g->back, 4 * g->n) == 0, "golden values");
        }
    }
}

/* ---- planes ---- */

static void planes_run_one(struct world *w, size_t size, bool rotate, size_t gap)
{
    const struct side *s = w->side;
    uint8_t *want[8], *got[8];
    const uint8_t *from[8];

    memset(w->want_coded, BEYOND, CODED_MAX);
    to_device(s, s->coded, w->want_coded, CODED_MAX);
    for (size_t p = 0; p < size; p++) {
        want[p] = w->want_coded + p * (w->n + gap);
        from[p] = got[p] = s->coded + p * (w->n + gap);
    }
    to_device(s, s->plain, w->plain, size * w->n);
    hdt_planes_split(&hdt_planes_scalar, size, rotate, w->plain, w->n, want);
    s->call.codecs->split(s->stream, size, rotate, s->plain, w->n, got);
    from_device(s, w->got_coded, s->coded, CODED_MAX);
    check(w, memcmp(w->want_coded, w->got_coded, CODED_MAX) == 0, "split");
    memset(w->want_plain, BEYOND, PLAIN_MAX);
    to_device(s, s->plain, w->want_plain, PLAIN_MAX);
    s->call.codecs->join(s->stream, size, rotate, from, w->n, s->plain);
    from_device(s, w->got_plain, s->plain, PLAIN_MAX);
    memcpy(w->want_plain, w->plain, size * w->n);
    check(w, memcmp(w->want_plain, w->got_plain, PLAIN_MAX) == 0, "join");
}

static void planes_run(struct world *w, const size_t *lens, size_t n_lens)
{
    w->text = "planes";
    w->content = "bits";
    for (size_t size = 1; size <= 8; size *= 2) {
        w->dtype = size == 2 ? HDT_DTYPE_BF16 : HDT_DTYPE_F32;
        for (size_t i = 0; i < n_lens; i++) {
            w->n = lens[i] * size > PLAIN_MAX ? PLAIN_MAX / size : lens[i];
            for (size_t j = 0; j < size * w->n; j++) {
                w->plain[j] = (uint8_t)hdt_values_u64(&w->rng);
            }
            for (size_t gap = 0; gap < 4; gap++) {
                planes_run_one(w, size, size > 1 && (i + gap) % 2 == 0, gap);
            }
        }
    }
}

/* ---- rates ---- */

#define BENCH_N    ((size_t)256 << 20) /* values: far beyond any cache of the device */
#define BENCH_RUNS 20

struct bench {
    const struct side *side;
    uint8_t *plain, *coded, *other;
    double copy_rate;
};

static double seconds_now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static void bench_wait(const struct side *s)
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
    const struct side *s = b->side;
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
    const struct side *s = b->side;
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
    const struct side *s = b->side;
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

static void bench_run(struct side *s)
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
    to_device(s, b.plain, x, 4 * BENCH_N);
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

static void side_open(struct side *s, const char *name)
{
    const struct hdt_device_conf conf = {.n_threads = 1};
    struct hdt_error err = {0};
    size_t scratch;
    int n_devices = 0;

    must(hdt_backend_load(name, &s->backend, &err), &err);
    must(s->backend->device_count(&n_devices, &err), &err);
    if (n_devices == 0 || !s->backend->codecs) {
        must(hdt_error_set(&err, HDT_ENOENT, "no device of backend '%s' is here, or no codecs",
                           name),
             &err);
    }
    scratch = s->backend->codecs->scratch_bytes;
    must(s->backend->device_open(&conf, &s->device, &err), &err);
    must(s->backend->stream_new(s->device, &s->stream, &err), &err);
    s->call = (struct hdt_device_call){.codecs = s->backend->codecs, .stream = s->stream};
    must(s->backend->alloc(s->device, scratch, &s->call.scratch, &err), &err);
    must(s->backend->alloc(s->device, sizeof(struct hdt_device_report), (void **)&s->call.report,
                           &err),
         &err);
    must(s->backend->alloc(s->device, PLAIN_MAX, (void **)&s->plain, &err), &err);
    must(s->backend->alloc(s->device, CODED_MAX, (void **)&s->coded, &err), &err);
    must(s->backend->alloc(s->device, PLAIN_MAX, (void **)&s->call.residual, &err), &err);
    s->backend->ops->zero(s->stream, s->call.scratch, scratch);
    must(hdt_codec_ctx_new(0, &s->ctx, &err), &err);
    s->ctx->kernels = &hdt_kernels_scalar;
}

static void side_close(struct side *s)
{
    hdt_codec_ctx_free(s->ctx);
    s->backend->free(s->device, s->call.residual);
    s->backend->free(s->device, s->coded);
    s->backend->free(s->device, s->plain);
    s->backend->free(s->device, s->call.report);
    s->backend->free(s->device, s->call.scratch);
    s->backend->stream_free(s->stream);
    s->backend->device_close(s->device);
}

static void suite_run(struct side *s, bool is_quick)
{
    static const char *const texts[] = {"none",
                                        "bf16",
                                        "bf16:stochastic",
                                        "fp16",
                                        "fp16:stochastic",
                                        "int8",
                                        "int8:block=32",
                                        "int8:block=64",
                                        "int8:block=128",
                                        "int8:block=512",
                                        "int8:block=1024",
                                        "int8:minmax",
                                        "int8:minmax,stochastic",
                                        "int8:stochastic",
                                        "int8:rotate",
                                        "int8:block=32,rotate",
                                        "int8:block=1024,rotate",
                                        "int4",
                                        "int4:block=32",
                                        "int4:block=1024",
                                        "int4:minmax",
                                        "int4:stochastic",
                                        "int4:rotate",
                                        "int4:block=128,minmax,rotate",
                                        "fp8",
                                        "fp8:e5m2",
                                        "fp8:stochastic",
                                        "fp8:e5m2,stochastic"};
    static const char *const topks[] = {"topk:64",        "topk:2,bits=16", "topk:1024,bits=4",
                                        "topk:16,bits=8", "topk:4,bits=2",  "topk:64,bits=16"};
    static const size_t all_lens[] = {0,    1,    2,    3,    5,     31,    33,   64,   127,
                                      500,  1000, 1023, 1024, 1025,  1500,  2048, 4095, 4096,
                                      4097, 5001, 8192, 9999, 12289, 32768, 39999};
    static const size_t few_lens[] = {1, 63, 1023, 5001};
    const size_t *lens = is_quick ? few_lens : all_lens;
    const size_t n_lens =
        is_quick ? sizeof(few_lens) / sizeof(few_lens[0]) : sizeof(all_lens) / sizeof(all_lens[0]);
    struct world *w = hdt_calloc(1, sizeof(*w));
    struct hdt_error err = {0};

    hdt_values_rng_init(&w->rng, "device_codecs");
    w->side = s;
    golden_run(w);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        must(hdt_codec_spec_parse(texts[i], &w->spec, &err), &err);
        w->text = texts[i];
        w->dtype = HDT_DTYPE_F32;
        codec_run(w, lens, n_lens);
        w->dtype = HDT_DTYPE_BF16;
        if (hdt_codec_device_takes(&w->spec, w->dtype)) {
            codec_run(w, lens, n_lens);
        }
    }
    for (size_t i = 0; i < sizeof(topks) / sizeof(topks[0]); i++) {
        must(hdt_codec_spec_parse(topks[i], &w->spec, &err), &err);
        w->text = topks[i];
        w->dtype = HDT_DTYPE_F32;
        topk_run(w, lens, n_lens);
    }
    planes_run(w, lens, n_lens);
    free(w);
}

int main(int argc, char **argv)
{
    const char *name = "cuda";
    bool is_quick = false, with_bench = false;
    struct side side = {0};

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
    suite_run(&side, is_quick);
    printf("%d checks, %d misses\n", n_checks, n_misses);
    if (with_bench) {
        bench_run(&side);
    }
    side_close(&side);
    return n_misses > 0;
}
