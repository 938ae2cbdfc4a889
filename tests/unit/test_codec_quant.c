/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Casts and block quantizers with all their options: what comes back against arithmetic in double,
 * at any size and of any content, and the same bits from every table of kernels.
 */
#include "config.h"

#include "compress/codec.h"
#include "compress/codec_ctx.h"
#include "compress/kernels_quant.h"
#include "src/base/buf.h"
#include "tests/support/values.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_MAX ((size_t)66000)

static struct hdt_codec_ctx *ctx;

static void setup(void)
{
    cr_assert_eq(hdt_codec_ctx_new(0, &ctx, NULL), HDT_OK);
}

static void teardown(void)
{
    hdt_codec_ctx_free(ctx);
}

TestSuite(codec_quant, .init = setup, .fini = teardown);

static const char *const texts[] = {
    "bf16",
    "bf16:stochastic",
    "fp16",
    "fp16:stochastic",
    "fp8",
    "fp8:e5m2",
    "fp8:block=32",
    "fp8:stochastic",
    "fp8:e5m2,stochastic,block=1024",
    "int8",
    "int8:block=32",
    "int8:block=1024,minmax",
    "int8:minmax",
    "int8:stochastic",
    "int8:minmax,stochastic",
    "int8:rotate",
    "int8:minmax,rotate,block=64",
    "int4",
    "int4:block=32",
    "int4:block=1024",
    "int4:minmax",
    "int4:stochastic",
    "int4:minmax,stochastic",
    "int4:rotate",
    "int4:block=512,minmax,rotate,stochastic",
};
#define N_TEXTS (sizeof(texts) / sizeof(texts[0]))

/* A codec as a job writes it. */
struct subject {
    const char *text;
    struct hdt_codec_spec spec;
    const struct hdt_codec_ops *ops;
    size_t block;
};

static struct subject subject_of(const char *text)
{
    struct subject s = {.text = text};
    struct hdt_error err = {0};

    cr_assert_eq(hdt_codec_spec_parse(text, &s.spec, &err), HDT_OK, "%s: %s", text, err.msg);
    s.ops = hdt_codec_spec_worker(&s.spec);
    s.block = s.spec.block ? s.spec.block : hdt_codec_word(s.spec.worker)->defaults.block;
    return s;
}

static bool has_flag(const struct subject *s, unsigned flag)
{
    return (s->spec.flags & flag) != 0;
}

/* Encode n values into `coded` (room enough); the frame's length or 0 when it was refused. */
static size_t encode(const struct subject *s, enum hdt_dtype dtype, const void *src, size_t n,
                     uint64_t seed, uint8_t *coded, struct hdt_codec_guard *guard)
{
    size_t len = 0, bound;
    struct hdt_codec_io io = {.spec = &s->spec,
                              .src = src,
                              .src_len = n * hdt_dtype_size(dtype),
                              .dst = coded,
                              .dtype = dtype,
                              .guard = guard,
                              .seed = seed};

    cr_assert_eq(hdt_codec_bound(s->ops, &s->spec, dtype, io.src_len, &bound, NULL), HDT_OK);
    io.dst_len = bound;
    memset(coded, 0xa5, bound + 8);
    if (hdt_codec_encode(s->ops, ctx, &io, &len, NULL) != HDT_OK) {
        return 0;
    }
    cr_assert_eq(len, bound);
    for (int i = 0; i < 8; i++) {
        cr_assert_eq(coded[bound + (size_t)i], 0xa5, "%s wrote beyond its bound", s->text);
    }
    return len;
}

static void decode(const struct subject *s, enum hdt_dtype dtype, const uint8_t *coded, size_t len,
                   size_t n, bool add, void *dst)
{
    struct hdt_error err = {0};
    uint8_t *exact = hdt_malloc(len); /* so that a sanitizer sees a read beyond it */
    const struct hdt_codec_io io = {.spec = &s->spec,
                                    .src = exact,
                                    .src_len = len,
                                    .dst = dst,
                                    .dst_len = n * hdt_dtype_size(dtype),
                                    .dtype = dtype,
                                    .add = add};

    memcpy(exact, coded, len);
    cr_assert_eq(hdt_codec_decode(s->ops, ctx, &io, &err), HDT_OK, "%s: %s", s->text, err.msg);
    free(exact);
}

static double square(double x)
{
    return x * x;
}

/* How far a value may be off: of a block with these extremes, by the rules of doc/codecs.md. */
static double allowed(const struct subject *s, double x, double min, double max)
{
    const double m = fmax(fabs(min), fabs(max)), places = has_flag(s, HDT_CODEC_STOCHASTIC) ? 2 : 1;
    const double range = has_flag(s, HDT_CODEC_MINMAX) ? max - min : 2 * m;
    double digits, least;

    switch (s->spec.worker) {
    case HDT_CODEC_BF16:
        return fmax(ldexp(fabs(x), -8), ldexp(1, -134)) * places;
    case HDT_CODEC_FP16:
        return fmax(ldexp(fabs(x), -11), ldexp(1, -25)) * places;
    case HDT_CODEC_FP8:
        digits = has_flag(s, HDT_CODEC_E5M2) ? 2 : 3;
        least = ldexp(m, has_flag(s, HDT_CODEC_E5M2) ? -31 : -17); /* half a subnormal, if coarse */
        return fmax(ldexp(fabs(x), -(int)digits - 1), least) * places * 1.0001 + 0x1p-109;
    case HDT_CODEC_INT8:
        return range / (has_flag(s, HDT_CODEC_MINMAX) ? 255 : 254) / 2 * places * 1.0001 +
               ldexp(m, -22) + 0x1p-109;
    default: /* bf16 scale, and a zero point that bf16 rounded down */
        return (range + (has_flag(s, HDT_CODEC_MINMAX) ? m / 64 : 0)) /
                   (has_flag(s, HDT_CODEC_MINMAX) ? 15 : 14) / 2 * places * 1.01 +
               0x1p-109;
    }
}

static void check_values(const struct subject *s, const float *x, const float *y, size_t n)
{
    const size_t block = s->block ? s->block : 1;

    for (size_t b = 0; b < n; b += block) {
        const size_t end = b + block < n ? b + block : n;
        double min = (double)x[b], max = (double)x[b];

        for (size_t i = b; i < end; i++) {
            min = fmin(min, (double)x[i]);
            max = fmax(max, (double)x[i]);
        }
        for (size_t i = b; i < end; i++) {
            const double e = fabs((double)x[i] - (double)y[i]);

            if (isnan(x[i]) || isinf(x[i]) || isinf(y[i])) { /* casts alone come here */
                cr_assert(isnan(x[i])
                              ? isnan(y[i])
                              : fabsf(x[i]) > 65504.0f && (x[i] > 0) == (y[i] > 0) && isinf(y[i]));
                continue;
            }
            cr_assert_leq(e, allowed(s, (double)x[i], min, max), "%s: %a became %a, block %a .. %a",
                          s->text, (double)x[i], (double)y[i], min, max);
        }
    }
}

static void check_guard(const struct subject *s, const struct hdt_codec_guard *g, const float *x,
                        const float *y, size_t n)
{
    double err = 0, ref = 0;
    float max = 0;
    uint64_t bad = 0;

    for (size_t i = 0; i < n; i++) {
        max = isfinite(x[i]) && fabsf(x[i]) > max ? fabsf(x[i]) : max;
        if (!isfinite(y[i])) {
            bad++;
            continue;
        }
        err += square((double)x[i] - (double)y[i]);
        ref += square((double)x[i]);
    }
    cr_assert_eq(g->n, n);
    cr_assert_eq(g->n_nonfinite, bad);
    cr_assert_eq(g->max_abs, max, "%s: %a %a", s->text, (double)g->max_abs, (double)max);
    /* x less its decoded value is taken in float, of two that agree in up to ten bits; what is off
     * by less than 2^-110, as where the range of a block is below that, may count as exact */
    cr_assert_leq(fabs(g->ref_sq - ref), 1e-4 * ref, "%s: %g %g", s->text, g->ref_sq, ref);
    cr_assert_leq(fabs(g->err_sq - err), 2e-3 * err + 1e-9 * ref + (double)n * 0x1p-220,
                  "%s: %g %g of %g, n %zu", s->text, g->err_sq, err, ref, n);
}

/* dst += value rounds once; bf16 is the nearest to the fp32 value. */
static void check_emits(const struct subject *s, const uint8_t *coded, size_t len, const float *y,
                        size_t n)
{
    float *sum = hdt_malloc(4 * n);
    uint16_t *half = hdt_malloc(2 * n);

    for (size_t i = 0; i < n; i++) {
        sum[i] = (float)(i % 7) - 3.0f;
    }
    decode(s, HDT_DTYPE_F32, coded, len, n, true, sum);
    decode(s, HDT_DTYPE_BF16, coded, len, n, false, half);
    for (size_t i = 0; i < n; i++) {
        const float want = (float)(i % 7) - 3.0f + y[i];

        cr_assert(sum[i] == want || (isnan(sum[i]) && isnan(want)), "%s", s->text);
        cr_assert_eq(half[i], hdt_bf16_round(hdt_bits_of(y[i])), "%s", s->text);
    }
    free(sum);
    free(half);
}

/* Is there anything that a block quantizer refuses? Rotation needs room above and on the way back.
 */
static bool may_be_refused(const struct subject *s, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(x[i]) || fabsf(x[i]) >= 0x1p127f ||
            (has_flag(s, HDT_CODEC_MINMAX) && fabsf(x[i]) >= 0x1p126f) ||
            (has_flag(s, HDT_CODEC_ROTATE) && fabsf(x[i]) >= 0x1p117f)) {
            return true;
        }
    }
    return false;
}

static void check_content(const struct subject *s, const float *x, size_t n, uint8_t *coded,
                          uint8_t *other)
{
    const bool is_cast = s->spec.worker == HDT_CODEC_BF16 || s->spec.worker == HDT_CODEC_FP16;
    struct hdt_codec_guard guard, guard_other;
    float *y = hdt_malloc(4 * n);
    size_t len, n_tables;
    const struct hdt_kernels *const *tables = hdt_kernels_all(&n_tables), *best = ctx->kernels;

    len = encode(s, HDT_DTYPE_F32, x, n, 42, coded, &guard);
    for (size_t t = 0; t + 1 < n_tables; t++) {
        ctx->kernels = tables[t];
        cr_assert_eq(encode(s, HDT_DTYPE_F32, x, n, 42, other, &guard_other), len);
        cr_assert_eq(memcmp(coded, other, len), 0, "%s: %s", s->text, tables[t]->name);
        cr_assert_eq(memcmp(&guard, &guard_other, sizeof(guard)), 0, "%s", s->text);
        ctx->kernels = best;
    }
    if (len == 0 && n > 0) {
        cr_assert(!is_cast && may_be_refused(s, x, n), "%s", s->text);
        cr_assert_gt(guard.n_nonfinite, 0);
    } else {
        decode(s, HDT_DTYPE_F32, coded, len, n, false, y);
        if (!has_flag(s, HDT_CODEC_ROTATE)) {
            check_values(s, x, y, n);
            check_guard(s, &guard, x, y, n);
        }
        check_emits(s, coded, len, y, n);
    }
    free(y);
}

Test(codec_quant, every_codec_size_and_content)
{
    static const size_t sizes[] = {0,   1,   2,   3,   31,  32,  33,   63,   64,   65,   127,
                                   129, 255, 256, 257, 511, 513, 1023, 1024, 1025, 4097, 65537};
    static float x[N_MAX];
    static uint8_t coded[8 * N_MAX], other[8 * N_MAX];
    struct values_rng rng;

    hdt_values_rng_init(&rng, "every_codec_size_and_content");
    for (int kind = 0; kind < VALUES_KIND_COUNT; kind++) {
        hdt_values_fill(&rng, (enum values_kind)kind, x, N_MAX);
        for (size_t t = 0; t < N_TEXTS; t++) {
            const struct subject s = subject_of(texts[t]);

            for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
                if (sizes[i] < 60000 || (kind < 2 && t % 4 == 0)) {
                    check_content(&s, x, sizes[i], coded, other);
                }
            }
        }
    }
}

/* A bf16 tensor has the frame of the fp32 tensor of the same values. */
Test(codec_quant, bf16_tensors_have_the_frames_of_their_values)
{
    static float x[3001];
    static uint16_t half[3001];
    static uint8_t want[8 * 3100], got[8 * 3100];
    struct hdt_codec_guard a, b;
    struct values_rng rng;

    hdt_values_rng_init(&rng, "bf16_tensors");
    hdt_values_fill(&rng, VALUES_HEAVY_TAILED, x, 3001);
    for (size_t i = 0; i < 3001; i++) {
        half[i] = hdt_bf16_round(hdt_bits_of(x[i]));
        x[i] = hdt_float_of((uint32_t)half[i] << 16);
    }
    for (size_t t = 0; t < N_TEXTS; t++) {
        const struct subject s = subject_of(texts[t]);
        const size_t len = encode(&s, HDT_DTYPE_F32, x, 3001, 9, want, &a);

        cr_assert_gt(len, 0);
        cr_assert_eq(encode(&s, HDT_DTYPE_BF16, half, 3001, 9, got, &b), len);
        cr_assert_eq(memcmp(want, got, len), 0, "%s", s.text);
        cr_assert_leq(fabs(a.err_sq - b.err_sq), 1e-6 * a.err_sq);
    }
}

Test(codec_quant, lengths_lead_back_to_the_number_of_values)
{
    for (size_t t = 0; t < N_TEXTS; t++) {
        const struct subject s = subject_of(texts[t]);

        for (size_t n = 0; n < 4200; n += n < 80 ? 1 : 37) {
            const size_t len = s.ops->bound(&s.spec, HDT_DTYPE_F32, 4 * n);
            const size_t back = s.ops->plain_len(&s.spec, HDT_DTYPE_F32, len);
            const size_t want = s.spec.worker == HDT_CODEC_INT4 ? (n + 1) / 2 * 2 : n;

            cr_assert_eq(back, 4 * want, "%s, n %zu", s.text, n);
            cr_assert_eq(len, s.ops->bound(&s.spec, HDT_DTYPE_BF16, 2 * n));
        }
    }
}

/* Relative error of a quantizer with a step of (largest magnitude) / 127 over normal values: the
 * error is d^2 / 12 for a step d, and the expected square of the largest of B magnitudes is the
 * integral of 2 m (1 - erf(m / sqrt 2)^B). */
static double int8_optimum(size_t block)
{
    const double step = 1e-3;
    double square_of_max = 0;

    for (double m = step / 2; m < 12; m += step) {
        square_of_max += 2 * m * (1 - pow(erf(m / sqrt(2)), (double)block)) * step;
    }
    return sqrt(square_of_max / 12) / 127;
}

Test(codec_quant, int8_is_within_a_tenth_of_the_optimum)
{
    static const char *const blocks[] = {"int8:block=32", "int8:block=64", "int8",
                                         "int8:block=1024"};
    static float x[65536];
    static uint8_t coded[2 * 65536];
    struct values_rng rng;

    hdt_values_rng_init(&rng, "int8_optimum");
    hdt_values_fill(&rng, VALUES_NORMAL, x, 65536);
    for (size_t t = 0; t < 4; t++) {
        const struct subject s = subject_of(blocks[t]);
        const double optimum = int8_optimum(s.block);
        struct hdt_codec_guard guard;

        cr_assert_gt(encode(&s, HDT_DTYPE_F32, x, 65536, 0, coded, &guard), 0);
        cr_expect_lt(hdt_codec_guard_error(&guard), 1.1 * optimum, "%s: %g of %g", s.text,
                     hdt_codec_guard_error(&guard), optimum);
        cr_expect_gt(hdt_codec_guard_error(&guard), 0.96 * optimum, "%s", s.text);
    }
}

/* ---- numbers of one format, by arithmetic ---- */

/* What the bits of a small float say; NaN for none, E4M3 has no infinity. */
static double f8_value(unsigned code, bool e5m2)
{
    const int digits = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7;
    const int exponent = (int)(code & 0x7f) >> digits, m = (int)(code & ((1u << digits) - 1));
    const double sign = code & 0x80 ? -1 : 1;

    if (e5m2 ? exponent == 31 : (code & 0x7f) == 0x7f) {
        return e5m2 && m == 0 ? sign * INFINITY : NAN;
    }
    return sign * (exponent ? ldexp((1 << digits) + m, exponent - bias - digits)
                            : ldexp(m, 1 - bias - digits));
}

Test(codec_quant, all_fp8_patterns_decode_to_what_they_say)
{
    static const struct {
        uint8_t param;
        double scale;
    } scales[] = {{127, 1}, {130, 8}, {100, 0x1p-27}, {0, 0}, {254, 0x1p127}};

    for (int e5m2 = 0; e5m2 < 2; e5m2++) {
        const struct subject s = subject_of(e5m2 ? "fp8:e5m2,block=256" : "fp8:block=256");

        for (size_t k = 0; k < sizeof(scales) / sizeof(scales[0]); k++) {
            uint8_t frame[16 + 256] = {scales[k].param};
            float y[256];

            for (int c = 0; c < 256; c++) {
                frame[16 + c] = (uint8_t)c;
            }
            decode(&s, HDT_DTYPE_F32, frame, sizeof(frame), 256, false, y);
            for (unsigned c = 0; c < 256; c++) {
                const float want = (float)(f8_value(c, e5m2) * scales[k].scale);

                cr_assert(y[c] == want || (isnan(y[c]) && isnan(want)), "%s: %02x is %a, not %a",
                          s.text, c, (double)y[c], (double)want);
            }
        }
    }
}

/* Each number of the format, the middle to its neighbour and what is just beside the middle, in a
 * block whose scale the largest number makes 1. */
Test(codec_quant, fp8_rounds_to_nearest_even)
{
    for (int e5m2 = 0; e5m2 < 2; e5m2++) {
        const struct subject s = subject_of(e5m2 ? "fp8:e5m2,block=32" : "fp8:block=32");
        const unsigned largest = e5m2 ? 0x7b : 0x7e;

        for (unsigned c = 0; c < largest; c++) {
            const float low = (float)f8_value(c, e5m2), high = (float)f8_value(c + 1, e5m2);
            const float middle = (low + high) / 2;
            const float x[5] = {(float)f8_value(largest, e5m2), low, middle, nextafterf(middle, 0),
                                -nextafterf(middle, high)};
            const unsigned want[5] = {largest, c, c & 1 ? c + 1 : c, c, (c + 1) | 0x80};
            uint8_t coded[64];

            cr_assert_eq(encode(&s, HDT_DTYPE_F32, x, 5, 0, coded, NULL), 16 + 5);
            cr_assert_eq(coded[0], 127);
            for (int i = 0; i < 5; i++) {
                cr_assert_eq(coded[16 + i], want[i], "%s: %a is %02x, not %02x", s.text,
                             (double)x[i], coded[16 + i], want[i]);
            }
        }
    }
}

Test(codec_quant, all_patterns_of_two_bytes_decode_to_what_they_say)
{
    static uint16_t all[65536], again[65536 + 8];
    static float y[65536];

    for (int fp16 = 0; fp16 < 2; fp16++) {
        const struct subject s = subject_of(fp16 ? "fp16" : "bf16");
        const int digits = fp16 ? 10 : 7, bias = fp16 ? 15 : 127, top = fp16 ? 31 : 255;

        for (unsigned c = 0; c < 65536; c++) {
            all[c] = (uint16_t)c;
        }
        decode(&s, HDT_DTYPE_F32, (uint8_t *)all, sizeof(all), 65536, false, y);
        encode(&s, HDT_DTYPE_F32, y, 65536, 0, (uint8_t *)again, NULL);
        for (unsigned c = 0; c < 65536; c++) {
            const int e = (int)(c & 0x7fff) >> digits, m = (int)c & ((1 << digits) - 1);
            const double sign = c & 0x8000 ? -1 : 1;
            const double want = sign * (e ? ldexp((1 << digits) + m, e - bias - digits)
                                          : ldexp(m, 1 - bias - digits));

            if (e == top && m) {
                cr_assert(isnan(y[c]) && (again[c] & 0x7fff) > (top << digits));
                continue;
            }
            cr_assert_eq((double)y[c], e == top ? sign * INFINITY : want, "%s %04x", s.text, c);
            cr_assert_eq(again[c], c, "%s %04x", s.text, c);
        }
    }
}

/* ---- stochastic rounding ---- */

/* The first number of splitmix64 for the seed 0 is well known. */
Test(codec_quant, seeds_are_mixed_by_splitmix64)
{
    struct hdt_random random;

    hdt_random_seed(&random, 0);
    cr_expect_eq(random.add, 0x7b1dcdaf);
    cr_expect_eq(random.mix, 0xe220a839);
}

/* n copies of a value between two neighbours, and in each block the largest and 0: only those two
 * come, and their mean is the value. */
static void check_unbiased(const char *text, float value, float low, float high, float largest)
{
    const struct subject s = subject_of(text);
    const size_t n = 65536;
    const double p = ((double)value - (double)low) / ((double)high - (double)low);
    float *x = hdt_malloc(4 * n), *y = hdt_malloc(4 * n);
    uint8_t *coded = hdt_malloc(4 * n);
    size_t up = 0, len;

    for (size_t i = 0; i < n; i++) {
        x[i] = s.block == 0 || i % s.block > 1 ? value : i % s.block == 0 ? largest : 0.0f;
    }
    len = encode(&s, HDT_DTYPE_F32, x, n, 1234567, coded, NULL);
    decode(&s, HDT_DTYPE_F32, coded, len, n, false, y);
    for (size_t i = 0; i < n; i++) {
        if (x[i] == value) {
            cr_assert(y[i] == low || y[i] == high, "%s: %a", text, (double)y[i]);
        }
        up += x[i] == value ? y[i] == high : 0;
    }
    len = s.block ? n - 2 * n / s.block : n;
    cr_expect_leq(fabs((double)up - p * (double)len), 5 * sqrt(p * (1 - p) * (double)len),
                  "%s: %zu of %zu, p %g", text, up, len, p);
    free(x);
    free(y);
    free(coded);
}

Test(codec_quant, stochastic_rounding_is_unbiased)
{
    check_unbiased("bf16:stochastic", 1.0f + 0x1p-10f, 1.0f, 1.0f + 0x1p-7f, 0);
    check_unbiased("fp16:stochastic", -(3.0f + 0x1p-10f), -3.0f, -(3.0f + 0x1p-9f), 0);
    check_unbiased("fp16:stochastic", 0x1p-26f, 0.0f, 0x1p-24f, 0);
    check_unbiased("fp8:stochastic", 17.5f, 16.0f, 18.0f, 448.0f);
    check_unbiased("fp8:stochastic", 0x1p-11f, 0.0f, 0x1p-9f, 448.0f);
    check_unbiased("fp8:e5m2,stochastic", 17.5f, 16.0f, 20.0f, 57344.0f);
    check_unbiased("int8:stochastic", -40.1f, -40.0f, -41.0f, 127.0f);
    check_unbiased("int8:minmax,stochastic", 10.75f, 10.0f, 11.0f, 255.0f);
    check_unbiased("int4:stochastic", 2.25f, 2.0f, 3.0f, 7.0f);
}

/* The bits follow from the seed and the value's place, not from how the call was cut. */
Test(codec_quant, seeds_decide)
{
    static float x[2048];
    static uint8_t a[4200], b[4200];
    const struct subject s = subject_of("bf16:stochastic");
    struct values_rng rng;

    hdt_values_rng_init(&rng, "seeds_decide");
    hdt_values_fill(&rng, VALUES_NORMAL, x, 2048);
    encode(&s, HDT_DTYPE_F32, x, 2048, 7, a, NULL);
    encode(&s, HDT_DTYPE_F32, x, 2048, 7, b, NULL);
    cr_expect_eq(memcmp(a, b, 4096), 0);
    encode(&s, HDT_DTYPE_F32, x, 1000, 7, b, NULL);
    cr_expect_eq(memcmp(a, b, 2000), 0);
    encode(&s, HDT_DTYPE_F32, x, 2048, 8, b, NULL);
    cr_expect_neq(memcmp(a, b, 4096), 0);
}

/* ---- rotation ---- */

/* Against the matrix: entry i, j is (-1)^(number of common bits) / sqrt(n), after the signs. */
Test(codec_quant, rotation_is_the_matrix_it_should_be)
{
    static const size_t lens[] = {1, 2, 8, 16, 32, 128, 1024};
    struct hdt_random random;
    struct values_rng rng;
    float x[1024], y[1024];

    hdt_random_seed(&random, 0);
    hdt_values_rng_init(&rng, "rotation");
    for (size_t l = 0; l < sizeof(lens) / sizeof(lens[0]); l++) {
        const size_t n = lens[l];

        hdt_values_fill(&rng, VALUES_NORMAL, x, n);
        memcpy(y, x, 4 * n);
        ctx->kernels->hadamard((uint8_t *)y, n, 1024, false);
        for (size_t i = 0; i < n; i++) {
            double want = 0;

            for (size_t j = 0; j < n; j++) {
                const unsigned odd = (unsigned)__builtin_popcountll(i & j) +
                                     (hdt_random_bits(&random, (uint32_t)j) & 1);

                want += odd % 2 ? -(double)x[j] : (double)x[j];
            }
            want /= sqrt((double)n);
            cr_assert_leq(fabs((double)y[i] - want), 1e-5, "n %zu: %g %g", n, (double)y[i], want);
        }
        ctx->kernels->hadamard((uint8_t *)y, n, 1024, true);
        for (size_t i = 0; i < n; i++) {
            cr_assert_leq(fabs((double)y[i] - (double)x[i]), 1e-5);
        }
    }
}

/* One value in 64 that is 20 times the others costs int4 its neighbours, unless it is spread. */
Test(codec_quant, rotation_saves_what_outliers_cost)
{
    static float x[8192];
    static uint8_t coded[8192];
    const struct subject plain = subject_of("int4"), rotated = subject_of("int4:rotate");
    struct hdt_codec_guard a, b;
    struct values_rng rng;
    static float y[8192];
    double err = 0, ref = 0;
    size_t len;

    hdt_values_rng_init(&rng, "rotation_saves");
    hdt_values_fill(&rng, VALUES_NORMAL, x, 8192);
    for (size_t i = 13; i < 8192; i += 64) {
        x[i] = 20.0f;
    }
    encode(&plain, HDT_DTYPE_F32, x, 8192, 0, coded, &a);
    len = encode(&rotated, HDT_DTYPE_F32, x, 8192, 0, coded, &b);
    cr_expect_lt(hdt_codec_guard_error(&b), 0.6 * hdt_codec_guard_error(&a), "%g %g",
                 hdt_codec_guard_error(&b), hdt_codec_guard_error(&a));
    decode(&rotated, HDT_DTYPE_F32, coded, len, 8192, false, y);
    for (size_t i = 0; i < 8192; i++) {
        err += square((double)x[i] - (double)y[i]);
        ref += square((double)x[i]);
    }
    cr_expect_leq(fabs(sqrt(err / ref) - hdt_codec_guard_error(&b)), 1e-5);
    cr_expect_eq(b.max_abs, 20.0f); /* of the values, not of what they were turned into */
}

/* ---- min-max, refusals ---- */

Test(codec_quant, minmax_follows_values_that_are_not_centred)
{
    static const char *const pairs[][2] = {{"int8", "int8:minmax"}, {"int4", "int4:minmax"}};
    float x[1024], y[1024];
    uint8_t coded[2048];
    struct hdt_codec_guard symmetric, minmax;
    size_t len;

    for (size_t p = 0; p < 2; p++) {
        const struct subject a = subject_of(pairs[p][0]), b = subject_of(pairs[p][1]);

        for (int i = 0; i < 1024; i++) {
            x[i] = 10.0f + (float)(i * 37 % 1024) / 1024.0f;
        }
        encode(&a, HDT_DTYPE_F32, x, 1024, 0, coded, &symmetric);
        encode(&b, HDT_DTYPE_F32, x, 1024, 0, coded, &minmax);
        cr_expect_lt(minmax.err_sq, 0.01 * symmetric.err_sq, "%g %g", minmax.err_sq,
                     symmetric.err_sq);
    }
    for (int i = 0; i < 1024; i++) {
        x[i] = -0.3f;
    }
    const struct subject constant = subject_of("int8:minmax");
    len = encode(&constant, HDT_DTYPE_F32, x, 1024, 0, coded, &minmax);
    decode(&constant, HDT_DTYPE_F32, coded, len, 1024, false, y);
    cr_expect_eq(memcmp(x, y, sizeof(x)), 0);
    cr_expect_eq(minmax.err_sq, 0);
}

Test(codec_quant, what_has_no_code_is_refused_and_counted)
{
    float x[3000];
    uint8_t coded[8 * 3000];
    struct hdt_codec_guard guard;

    for (size_t t = 0; t < N_TEXTS; t++) {
        const struct subject s = subject_of(texts[t]);

        if (s.block == 0) {
            continue;
        }
        for (int i = 0; i < 3000; i++) {
            x[i] = (float)(i % 100);
        }
        x[5] = NAN;
        x[1500] = INFINITY;
        x[2999] = -INFINITY;
        cr_expect_eq(encode(&s, HDT_DTYPE_F32, x, 3000, 0, coded, &guard), 0, "%s", s.text);
        cr_expect_eq(guard.n_nonfinite, 3, "%s", s.text);
        cr_expect_eq(guard.n, 3000);
        cr_expect_eq(guard.max_abs, 99.0f);
    }
}

Test(codec_quant, parameters_that_are_none_are_refused)
{
    static const struct {
        const char *text;
        uint8_t params[8];
    } cases[] = {
        {"fp8", {255}},
        {"fp8:e5m2", {255}},
        {"int8", {0, 0, 0x80, 0x7f}},              /* infinity */
        {"int8", {1, 0, 0, 0x80}},                 /* negative */
        {"int4", {0x80, 0x7f}},                    /* infinity */
        {"int4", {0xc0, 0x7f}},                    /* NaN */
        {"int4", {0x80, 0xbf}},                    /* -1 */
        {"int4:minmax", {0x80, 0x3f, 0x80, 0xff}}, /* zero point -infinity */
        {"int8:minmax", {0, 0, 0x80, 0x3f, 0, 0, 0xc0, 0x7f}},
        {"int8:minmax", {0, 0, 0xc0, 0xff, 0, 0, 0, 0}},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct subject s = subject_of(cases[i].text);
        uint8_t frame[16 + 8] = {0};
        float y[8];
        const size_t len = s.ops->bound(&s.spec, HDT_DTYPE_F32, sizeof(y));
        const struct hdt_codec_io io = {.spec = &s.spec,
                                        .src = frame,
                                        .src_len = len,
                                        .dst = y,
                                        .dst_len = sizeof(y),
                                        .dtype = HDT_DTYPE_F32};

        cr_assert_eq(hdt_codec_decode(s.ops, ctx, &io, NULL), HDT_OK, "%s", s.text);
        memcpy(frame, cases[i].params, 8);
        cr_expect_eq(hdt_codec_decode(s.ops, ctx, &io, NULL), HDT_EPROTO, "%s", s.text);
    }
}
