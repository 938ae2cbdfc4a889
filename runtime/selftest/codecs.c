/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "runtime/selftest/codecs.h"

#include "compress/codec_state.h"
#include "compress/planes.h"
#include "src/base/buf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUM_ERROR   1e-5
#define WHOLE_ERROR 1e-12
#define BEYOND      0xa5 /* what stands behind what is written */
#define MISSES_MAX  40

static void must(enum hdt_status status, const struct hdt_error *err)
{
    if (status != HDT_OK) {
        hdt_error_print(err, "selftest");
        exit(1);
    }
}

static uint64_t trial_random(struct hdt_codec_trial *w)
{
    return w->contents->random(w->contents->arg);
}

void hdt_codec_trial_check(struct hdt_codec_trial *w, bool is_right, const char *what)
{
    w->n_checks++;
    if (!is_right && w->n_misses++ < MISSES_MAX) {
        printf("MISS: %s %s, n %zu, %s: %s\n", w->text, hdt_dtype_name(w->dtype), w->n, w->content,
               what);
    }
}

static void to_device(const struct hdt_codec_side *s, void *dst, const void *src, size_t len)
{
    s->backend->copy(s->stream, dst, src, len, HDT_COPY_TO_DEVICE);
}

static void from_device(const struct hdt_codec_side *s, void *dst, const void *src, size_t len)
{
    struct hdt_error err = {0};

    s->backend->copy(s->stream, dst, src, len, HDT_COPY_FROM_DEVICE);
    must(s->backend->stream_wait(s->stream, &err), &err);
}

static struct hdt_device_report report_of(const struct hdt_codec_side *s)
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

static void check_guard(struct hdt_codec_trial *w, const struct hdt_codec_guard *want,
                        const struct hdt_codec_guard *got)
{
    char text[160];

    hdt_codec_trial_check(w, want->n == got->n && want->n_nonfinite == got->n_nonfinite,
                          "guard's counts");
    hdt_codec_trial_check(w, memcmp(&want->max_abs, &got->max_abs, 4) == 0, "guard's maximum");
    snprintf(text, sizeof(text), "guard's sums: err %.9g, not %.9g; ref %.9g, not %.9g",
             got->err_sq, want->err_sq, got->ref_sq, want->ref_sq);
    hdt_codec_trial_check(w,
                          sums_agree(want->err_sq, got->err_sq, want->ref_sq) &&
                              sums_agree(want->ref_sq, got->ref_sq, 0),
                          text);
}

static struct hdt_codec_io encode_io(const struct hdt_codec_trial *w, struct hdt_codec_guard *guard,
                                     uint64_t seed)
{
    return (struct hdt_codec_io){.spec = &w->spec,
                                 .src_len = w->n * hdt_dtype_size(w->dtype),
                                 .dst_len = HDT_CODEC_TRIAL_CODED,
                                 .dtype = w->dtype,
                                 .guard = guard,
                                 .seed = seed};
}

size_t hdt_codec_trial_encode(struct hdt_codec_trial *w, struct hdt_codec_state *state)
{
    const struct hdt_codec_side *s = w->side;
    const uint64_t seed = trial_random(w);
    struct hdt_codec_guard want_guard, got_guard;
    struct hdt_codec_io io = encode_io(w, &want_guard, seed);
    struct hdt_error want_err = {0}, got_err = {0}, err = {0};
    struct hdt_device_report report;
    enum hdt_status want, got;
    size_t want_len = 0, got_len = 0;

    memset(w->want_coded, BEYOND, HDT_CODEC_TRIAL_CODED);
    to_device(s, s->coded, w->want_coded, HDT_CODEC_TRIAL_CODED);
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
    from_device(s, w->got_coded, s->coded, HDT_CODEC_TRIAL_CODED);
    hdt_codec_trial_check(w, want == got && strcmp(want_err.msg, got_err.msg) == 0, "status");
    if (w->spec.worker != HDT_CODEC_NONE || w->dtype == HDT_DTYPE_F32) {
        check_guard(w, &want_guard, &got_guard);
    }
    if (want != HDT_OK) {
        return 0;
    }
    hdt_codec_trial_check(w, want_len == got_len, "length");
    hdt_codec_trial_check(w, memcmp(w->want_coded, w->got_coded, HDT_CODEC_TRIAL_CODED) == 0,
                          "coded bytes");
    return want_len;
}

/* ---- decoders ---- */

void hdt_codec_trial_decode(struct hdt_codec_trial *w, size_t coded_len, bool add)
{
    const struct hdt_codec_side *s = w->side;
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

    for (size_t i = 0; i < HDT_CODEC_TRIAL_PLAIN; i += 4) {
        memcpy(w->want_plain + i, &some, 4);
    }
    to_device(s, s->plain, w->want_plain, HDT_CODEC_TRIAL_PLAIN);
    to_device(s, s->coded, w->want_coded, coded_len);
    want = hdt_codec_decode(hdt_codec_spec_worker(&w->spec), s->ctx, &io, &want_err);
    io.src = s->coded;
    io.dst = s->plain;
    must(hdt_codec_device_decode(&s->call, &io, &err), &err);
    if (w->spec.worker != HDT_CODEC_NONE) {
        const struct hdt_device_report report = report_of(s);

        got = hdt_codec_device_decoded(&io, &report, &got_err);
        hdt_codec_trial_check(w, want == got, "status of decoding");
    }
    from_device(s, w->got_plain, s->plain, HDT_CODEC_TRIAL_PLAIN);
    if (want == HDT_OK) {
        hdt_codec_trial_check(w, memcmp(w->want_plain, w->got_plain, HDT_CODEC_TRIAL_PLAIN) == 0,
                              add ? "decoded sums" : "decoded values");
    }
}

/* Foreign bytes: codes of any bits behind parameters that are mostly fit, so that some frames are
 * decoded and some refused. */
static void check_foreign(struct hdt_codec_trial *w, size_t coded_len)
{
    const size_t n_changed = trial_random(w) % 8;

    for (size_t i = 0; i < n_changed && coded_len > 0; i++) {
        w->want_coded[trial_random(w) % coded_len] = (uint8_t)trial_random(w);
    }
    if (!(w->spec.flags & HDT_CODEC_ROTATE)) { /* sums of two infinities are left open */
        hdt_codec_trial_decode(w, coded_len, false);
    }
}

/* ---- one codec ---- */

static void fill(struct hdt_codec_trial *w, int kind)
{
    static float x[HDT_CODEC_TRIAL_N];

    w->content = w->contents->fill(w->contents->arg, kind, x, w->n);
    if (w->dtype == HDT_DTYPE_F32) {
        memcpy(w->plain, x, 4 * w->n);
    } else {
        hdt_kernels_scalar.bf16_encode((const uint8_t *)x, w->n, w->plain);
    }
}

static void codec_run(struct hdt_codec_trial *w, const size_t *lens, size_t n_lens)
{
    for (int kind = 0; kind < w->contents->n_kinds; kind++) {
        for (size_t i = 0; i < n_lens; i++) {
            size_t len;

            w->n = lens[i];
            fill(w, kind);
            len = hdt_codec_trial_encode(w, NULL);
            if (len > 0) {
                hdt_codec_trial_decode(w, len, false);
                if (w->dtype == HDT_DTYPE_F32) {
                    hdt_codec_trial_decode(w, len, true);
                }
                check_foreign(w, len);
            }
        }
    }
}

/* Frames of one flow: what is left over is the definition's, frame after frame. */
static void topk_run(struct hdt_codec_trial *w, const size_t *lens, size_t n_lens)
{
    const struct hdt_codec_side *s = w->side;

    for (size_t i = 0; i < n_lens; i++) {
        struct hdt_codec_state *state = NULL;
        struct hdt_error err = {0};

        w->n = lens[i];
        if (w->n == 0) {
            continue;
        }
        must(hdt_codec_state_new(&w->spec, w->n, 1, &state, &err), &err);
        memset(w->got_plain, 0, HDT_CODEC_TRIAL_PLAIN);
        to_device(s, s->call.residual, w->got_plain, 4 * w->n);
        for (int kind = 0; kind < 2 * w->contents->n_kinds; kind++) {
            size_t len;

            fill(w, kind % w->contents->n_kinds);
            len = hdt_codec_trial_encode(w, state);
            from_device(s, w->got_plain, s->call.residual, 4 * w->n);
            hdt_codec_trial_check(w, memcmp(w->got_plain, state->residual, 4 * w->n) == 0,
                                  "residual");
            if (len > 0) {
                hdt_codec_trial_decode(w, len, false);
                hdt_codec_trial_decode(w, len, true);
                check_foreign(w, len);
            }
        }
        hdt_codec_state_free(state);
    }
}

/* ---- planes ---- */

static void planes_run_one(struct hdt_codec_trial *w, size_t size, bool rotate, size_t gap)
{
    const struct hdt_codec_side *s = w->side;
    uint8_t *want[8], *got[8];
    const uint8_t *from[8];

    memset(w->want_coded, BEYOND, HDT_CODEC_TRIAL_CODED);
    to_device(s, s->coded, w->want_coded, HDT_CODEC_TRIAL_CODED);
    for (size_t p = 0; p < size; p++) {
        want[p] = w->want_coded + p * (w->n + gap);
        from[p] = got[p] = s->coded + p * (w->n + gap);
    }
    to_device(s, s->plain, w->plain, size * w->n);
    hdt_planes_split(&hdt_planes_scalar, size, rotate, w->plain, w->n, want);
    s->call.codecs->split(s->stream, size, rotate, s->plain, w->n, got);
    from_device(s, w->got_coded, s->coded, HDT_CODEC_TRIAL_CODED);
    hdt_codec_trial_check(w, memcmp(w->want_coded, w->got_coded, HDT_CODEC_TRIAL_CODED) == 0,
                          "split");
    memset(w->want_plain, BEYOND, HDT_CODEC_TRIAL_PLAIN);
    to_device(s, s->plain, w->want_plain, HDT_CODEC_TRIAL_PLAIN);
    s->call.codecs->join(s->stream, size, rotate, from, w->n, s->plain);
    from_device(s, w->got_plain, s->plain, HDT_CODEC_TRIAL_PLAIN);
    memcpy(w->want_plain, w->plain, size * w->n);
    hdt_codec_trial_check(w, memcmp(w->want_plain, w->got_plain, HDT_CODEC_TRIAL_PLAIN) == 0,
                          "join");
}

static void planes_run(struct hdt_codec_trial *w, const size_t *lens, size_t n_lens)
{
    w->text = "planes";
    w->content = "bits";
    for (size_t size = 1; size <= 8; size *= 2) {
        w->dtype = size == 2 ? HDT_DTYPE_BF16 : HDT_DTYPE_F32;
        for (size_t i = 0; i < n_lens; i++) {
            w->n = lens[i] * size > HDT_CODEC_TRIAL_PLAIN ? HDT_CODEC_TRIAL_PLAIN / size : lens[i];
            for (size_t j = 0; j < size * w->n; j++) {
                w->plain[j] = (uint8_t)trial_random(w);
            }
            for (size_t gap = 0; gap < 4; gap++) {
                planes_run_one(w, size, size > 1 && (i + gap) % 2 == 0, gap);
            }
        }
    }
}

/* ---- all of it ---- */

void hdt_codec_side_open(struct hdt_codec_side *s, const struct hdt_backend *backend,
                         struct hdt_device *device, struct hdt_stream *stream)
{
    const size_t scratch = backend->codecs->scratch_bytes;
    struct hdt_error err = {0};

    *s = (struct hdt_codec_side){.backend = backend,
                                 .device = device,
                                 .stream = stream,
                                 .call = {.codecs = backend->codecs, .stream = stream}};
    must(backend->alloc(device, scratch, &s->call.scratch, &err), &err);
    must(backend->alloc(device, sizeof(struct hdt_device_report), (void **)&s->call.report, &err),
         &err);
    must(backend->alloc(device, HDT_CODEC_TRIAL_PLAIN, (void **)&s->plain, &err), &err);
    must(backend->alloc(device, HDT_CODEC_TRIAL_CODED, (void **)&s->coded, &err), &err);
    must(backend->alloc(device, HDT_CODEC_TRIAL_PLAIN, (void **)&s->call.residual, &err), &err);
    backend->ops->zero(stream, s->call.scratch, scratch);
    must(hdt_codec_ctx_new(0, &s->ctx, &err), &err);
    s->ctx->kernels = &hdt_kernels_scalar;
}

void hdt_codec_side_close(struct hdt_codec_side *s)
{
    hdt_codec_ctx_free(s->ctx);
    s->backend->free(s->device, s->call.residual);
    s->backend->free(s->device, s->coded);
    s->backend->free(s->device, s->plain);
    s->backend->free(s->device, s->call.report);
    s->backend->free(s->device, s->call.scratch);
}

void hdt_codec_trials_run(struct hdt_codec_trial *w, bool is_quick)
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
    struct hdt_error err = {0};

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
}

/* ---- contents of its own ---- */

static uint64_t own_random(void *arg)
{
    uint64_t *state = arg, x;

    *state += 0x9e3779b97f4a7c15u; /* splitmix64: Steele, Lea and Flood, 2014 */
    x = *state;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static float own_normal(void *arg)
{
    float sum = -2;

    for (int i = 0; i < 4; i++) {
        sum += (float)(own_random(arg) >> 40) * 0x1p-24f;
    }
    return sum * 1.7f;
}

static float own_value(void *arg, int kind)
{
    const uint32_t bits = (uint32_t)own_random(arg);
    float x;

    switch (kind) {
    case 0:
        return own_normal(arg);
    case 1: /* a few are far out */
        return own_normal(arg) / ((float)(bits >> 8) * 0x1p-24f + 0x1p-24f);
    case 2:
        return bits % 50 ? 0 : own_normal(arg);
    case 3:
        return bits % 97 ? own_normal(arg) : bits & 128 ? NAN : INFINITY;
    default:
        memcpy(&x, &bits, sizeof(x));
        return x;
    }
}

static const char *own_fill(void *arg, int kind, float *x, size_t n)
{
    static const char *const names[] = {"normal", "heavy tails", "sparse", "special", "bits"};

    for (size_t i = 0; i < n; i++) {
        x[i] = own_value(arg, kind);
    }
    return names[kind];
}

int hdt_selftest_codecs(const struct hdt_backend *backend, struct hdt_device *device,
                        struct hdt_stream *stream)
{
    uint64_t state = 1;
    const struct hdt_codec_contents contents = {
        .n_kinds = 5, .fill = own_fill, .random = own_random, .arg = &state};
    struct hdt_codec_trial *w = hdt_calloc(1, sizeof(*w));
    struct hdt_codec_side side;
    int n_misses;

    hdt_codec_side_open(&side, backend, device, stream);
    w->side = &side;
    w->contents = &contents;
    hdt_codec_trials_run(w, true);
    n_misses = w->n_misses;
    printf("codecs: %d checks against the scalar definition, %d misses\n", w->n_checks, n_misses);
    hdt_codec_side_close(&side);
    free(w);
    return n_misses;
}
