/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cases of struct hdt_fp8_ops. What quantize gives is held to its definition bit for bit, with
 * the rounding to FP8 done in float64 by its definition; a product to float64 sums of the same FP8
 * values, from which it is off by what matrix units drop when they add up, and by the rounding of
 * D.
 */
#include "config.h"

#include "runtime/selftest/cases.h"
#include "src/base/buf.h"

#include <math.h>

#define ROUNDING16 4e-3
#define SUMS       2e-3 /* of float32, between which matrix units add up by themselves */
#define SUMS_FAST  1e-2

enum {
    FIRST_E5M2 = 1, /* A, or what quantize gives */
    PATTERNS = 2,   /* quantize: numbers of all mantissas over the format's range; scale 1 */
    APART = 4,      /* quantize: rows and columns in two calls */
    WITH_C = 4,
    FLOAT32 = 8,
    FAST = 16,
};

static enum hdt_dtype first_dtype(const struct backend_shape *s)
{
    return s->flags & FIRST_E5M2 ? HDT_DTYPE_F8E5M2 : HDT_DTYPE_F8E4M3;
}

static double format_max(const struct backend_shape *s)
{
    return (double)(s->flags & FIRST_E5M2 ? HDT_FP8_E5M2_MAX : HDT_FP8_E4M3_MAX);
}

static struct backend_array array_of(const char *name, enum backend_role role, enum hdt_dtype dtype,
                                     enum backend_fill fill, size_t len)
{
    return (struct backend_array){
        .name = name, .role = role, .dtype = dtype, .fill = fill, .len = len};
}

/* ---- quantize -------------------------------------------------------------------------------- */

static void quantize_describe(const struct backend_shape *s, struct backend_array *a)
{
    const size_t len = (size_t)s->n * (size_t)s->c;

    a[0] = array_of("x", BACKEND_IN, HDT_DTYPE_BF16, BACKEND_FILL_WIDE, len);
    a[1] = array_of("y", BACKEND_OUT, first_dtype(s), BACKEND_FILL_NORMAL, len);
    a[2] = array_of("yt", BACKEND_OUT, first_dtype(s), BACKEND_FILL_NORMAL, len);
    a[3] = array_of("scale", BACKEND_OUT, HDT_DTYPE_F32, BACKEND_FILL_NORMAL, 1);
    a[4] = array_of("amax", BACKEND_IN, HDT_DTYPE_F32, BACKEND_FILL_NORMAL, 1);
    if (s->n * s->c >= 65536) { /* a wide fill would put NaN there, and all would be that */
        a[0].fill = BACKEND_FILL_NORMAL;
    }
}

/* Whole bfloat16 values of 2^-k (1 + i / 128) up to the format's largest, which makes the scale 1:
 * so numbers half way between two of the format are among them, and its subnormals. */
static void quantize_prepare(const struct backend_shape *s, double *const *x)
{
    const int len = s->n * s->c;

    for (int i = 0; i < len && s->flags & PATTERNS; i++) {
        const int exponent = (s->flags & FIRST_E5M2 ? 8 : 1) - i / 256 % 40;
        const double value = fmin(ldexp(128 + i / 2 % 128, exponent), format_max(s));

        x[0][i] = i % 2 ? -value : value;
    }
    x[4][0] = 0;
    for (int i = 0; i < len; i++) {
        x[4][0] = fmax(x[4][0], fabs(x[0][i]));
    }
}

static void quantize_launch(const struct hdt_backend *b, struct hdt_stream *st,
                            const struct backend_shape *s, void *const *mem)
{
    struct hdt_quantize q = {.n = s->n,
                             .c = s->c,
                             .x = mem[0],
                             .dtype = first_dtype(s),
                             .y = mem[1],
                             .yt = mem[2],
                             .scale = mem[3]};

    if (s->flags & APART) { /* the second with what a producer would say */
        q.yt = NULL;
        b->fp8->quantize(st, &q);
        q.y = NULL;
        q.yt = mem[2];
        q.amax = mem[4];
    }
    b->fp8->quantize(st, &q);
}

static double fp8_round(const struct backend_shape *s, double x)
{
    const int digits = s->flags & FIRST_E5M2 ? 2 : 3, least = s->flags & FIRST_E5M2 ? -14 : -6;
    const double max = format_max(s);
    int exponent;

    frexp(x, &exponent);
    exponent = exponent - 1 < least ? least : exponent - 1; /* of the last one before the point */
    x = ldexp(nearbyint(ldexp(x, digits - exponent)), exponent - digits);
    return fmax(-max, fmin(max, x));
}

static void quantize_reference(const struct backend_shape *s, double *const *x)
{
    const int n = s->n, c = s->c;
    float amax = 0, scale, inv;

    for (int i = 0; i < n * c; i++) {
        amax = fmaxf(amax, fabsf((float)x[0][i]));
    }
    scale = amax / (float)format_max(s);
    scale = amax == 0 ? 1 : scale < 0x1p-126f ? 0x1p-126f : scale;
    inv = 1 / scale;
    for (int i = 0; i < n * c; i++) {
        const float scaled = (float)x[0][i] * inv;

        x[1][i] = x[2][(size_t)(i % c) * (size_t)n + (size_t)(i / c)] =
            fp8_round(s, (double)scaled);
    }
    x[3][0] = (double)scale;
}

/* ---- gemm ------------------------------------------------------------------------------------ */

static void gemm_describe(const struct backend_shape *s, struct backend_array *a)
{
    const size_t m = (size_t)s->n, n = (size_t)s->c, k = (size_t)s->k;
    const enum hdt_dtype d_dtype = s->flags & FLOAT32 ? HDT_DTYPE_F32 : HDT_DTYPE_BF16;
    const double sums = s->flags & FAST ? SUMS_FAST : SUMS;

    a[0] = array_of("a", BACKEND_IN, first_dtype(s), BACKEND_FILL_NORMAL, m * k);
    a[1] = array_of("b", BACKEND_IN, HDT_DTYPE_F8E4M3, BACKEND_FILL_NORMAL, n * k);
    a[2] = array_of("a_scale", BACKEND_IN, HDT_DTYPE_F32, BACKEND_FILL_SQUARE, 1);
    a[3] = array_of("b_scale", BACKEND_IN, HDT_DTYPE_F32, BACKEND_FILL_SQUARE, 1);
    a[4] = array_of("c", BACKEND_IN, d_dtype, BACKEND_FILL_NORMAL, m * n);
    a[5] = array_of("d", BACKEND_OUT, d_dtype, BACKEND_FILL_NORMAL, m * n);
    a[5].tolerance = s->flags & FLOAT32 ? sums : sums + ROUNDING16;
}

static void gemm_launch(const struct hdt_backend *b, struct hdt_stream *st,
                        const struct backend_shape *s, void *const *mem)
{
    const struct hdt_fp8_gemm g = {.m = s->n,
                                   .n = s->c,
                                   .k = s->k,
                                   .is_fast = s->flags & FAST,
                                   .beta = s->flags & WITH_C ? 0.5f : 0,
                                   .a_dtype = first_dtype(s),
                                   .b_dtype = HDT_DTYPE_F8E4M3,
                                   .a = mem[0],
                                   .a_scale = mem[2],
                                   .b = mem[1],
                                   .b_scale = mem[3],
                                   .d_dtype = s->flags & FLOAT32 ? HDT_DTYPE_F32 : HDT_DTYPE_BF16,
                                   .c = mem[4],
                                   .d = mem[5]};

    b->fp8->gemm(st, &g);
}

static void gemm_reference(const struct backend_shape *s, double *const *x)
{
    const size_t m = (size_t)s->n, n = (size_t)s->c, k = (size_t)s->k;

    for (size_t i = 0; i < m * n; i++) {
        const double *a = x[0] + i / n * k, *b = x[1] + i % n * k;
        double sum = 0;

        for (size_t j = 0; j < k; j++) {
            sum += a[j] * b[j];
        }
        x[5][i] = x[2][0] * x[3][0] * sum + (s->flags & WITH_C ? 0.5 * x[4][i] : 0);
    }
}

/* ---- The table ------------------------------------------------------------------------------- */

#define CALLS(name)                                                                                \
 .op = #name, .describe = name##_describe, .launch = name##_launch, .reference = name##_reference, \
 .is_mixed = true

/* clang-format off */
const struct backend_case hdt_fp8_cases[] = {
    {CALLS(quantize), .prepare = quantize_prepare,
     .shapes = {{.n = 64, .c = 320, .flags = PATTERNS},
                {.n = 320, .c = 64, .flags = PATTERNS | FIRST_E5M2},
                {.n = 16, .c = 4080, .flags = FIRST_E5M2}, {.n = 144, .c = 272, .flags = APART}},
     .large = {.n = 4096, .c = 11008}},
    {CALLS(gemm),
     .shapes = {{.n = 16, .c = 48, .k = 32, .flags = FIRST_E5M2},
                {.n = 64, .c = 128, .k = 144, .flags = WITH_C | FLOAT32 | FAST},
                {.n = 144, .c = 80, .k = 304, .flags = FIRST_E5M2 | WITH_C | FLOAT32},
                {.n = 32, .c = 48, .k = 512, .flags = FAST}},
     .large = {.n = 1024, .c = 1024, .k = 512, .flags = FIRST_E5M2 | WITH_C | FLOAT32}},
};
/* clang-format on */
const size_t hdt_n_fp8_cases = sizeof(hdt_fp8_cases) / sizeof(hdt_fp8_cases[0]);
