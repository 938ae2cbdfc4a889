/* SPDX-License-Identifier: Apache-2.0 */
/* What `hdt codec bench` and the planner's user are told of a codec: figures worked out by hand. */
#include "config.h"

#include "compress/kernels.h"
#include "compress/trial.h"
#include "tests/support/values.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#define N 4096

static struct hdt_codec_trial trial_of(const char *text, enum hdt_dtype dtype, const void *data,
                                       size_t len, enum hdt_status want)
{
    struct hdt_codec_trial sums = {0};
    struct hdt_codec_spec spec;
    struct hdt_codec_ctx *ctx;
    struct hdt_error err = {0};

    cr_assert_eq(hdt_codec_spec_parse(text, &spec, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(hdt_codec_ctx_new(HDT_CODEC_TRIAL_CHUNK, &ctx, &err), HDT_OK);
    cr_assert_eq(hdt_codec_trial_run(ctx, &spec, dtype, data, len, 0, &sums, &err), want, "%s: %s",
                 text, err.msg);
    hdt_codec_ctx_free(ctx);
    return sums;
}

Test(codec_trial, floor_is_the_entropy_of_the_planes)
{
    static uint8_t bytes[N];
    static uint16_t halves[N];
    static float floats[N];

    for (size_t i = 0; i < N; i++) {
        bytes[i] = i % 4 == 0 ? 7 : (uint8_t)(i % 2);    /* 1/4, 1/4, 1/2: 1.5 bits */
        halves[i] = (uint16_t)(i % 256 | (i % 2) << 15); /* 8 bits below, 1 above: the sign joins */
        floats[i] = i % 2 ? 1.0f : 2.0f;                 /* exponents 127 and 128: a bit */
    }
    cr_assert_float_eq(hdt_codec_floor_bytes(HDT_DTYPE_U8, bytes, N), N * 1.5 / 8, 1e-6);
    cr_assert_float_eq(hdt_codec_floor_bytes(HDT_DTYPE_U16, halves, 2 * N), N * 9.0 / 8, 1e-6);
    cr_assert_float_eq(hdt_codec_floor_bytes(HDT_DTYPE_F32, floats, 4 * N), N * 1.0 / 8, 1e-6);
    cr_assert_float_eq(hdt_codec_floor_bytes(HDT_DTYPE_F32, floats, 4 * N + 3), N / 8.0 + 3, 1e-6,
                       "odd bytes count whole");
    cr_assert_eq(hdt_codec_floor_bytes(HDT_DTYPE_F32, NULL, 0), 0);
    /* bf16 2^0 and -2^0: rotated, the sign is the lowest bit and the exponent's byte is constant.
     */
    for (size_t i = 0; i < N; i++) {
        halves[i] = i % 2 ? 0x3f80 : 0xbf80;
    }
    cr_assert_float_eq(hdt_codec_floor_bytes(HDT_DTYPE_BF16, halves, 2 * N), N / 8.0, 1e-6);
}

Test(codec_trial, bytes_and_errors_are_those_of_the_whole_way)
{
    static float x[N];
    struct hdt_codec_trial t;
    double err_sq = 0, ref_sq = 0;

    for (size_t i = 0; i < N; i++) {
        /* 1 + 2^-9 lies between 1 and 1 + 2^-7, nearer to 1; -3 is a bf16. */
        x[i] = i % 2 ? 1.001953125f : -3.0f;
        err_sq += i % 2 ? 0x1p-18 : 0;
        ref_sq += (double)x[i] * (double)x[i];
    }
    t = trial_of("bf16", HDT_DTYPE_F32, x, sizeof(x), HDT_OK);
    cr_assert_eq(t.n_values, N);
    cr_assert_eq(t.plain_bytes, sizeof(x));
    cr_assert_eq(t.coded_bytes, sizeof(x) / 2);
    cr_assert_float_eq(hdt_codec_trial_error(&t), sqrt(err_sq / ref_sq), 1e-12);
    cr_assert_gt(t.encode_s, 0);

    t = trial_of("bf16+lossless", HDT_DTYPE_F32, x, sizeof(x), HDT_OK);
    cr_assert_float_eq(hdt_codec_trial_error(&t), sqrt(err_sq / ref_sq), 1e-12);
    cr_assert_lt(t.coded_bytes, sizeof(x) / 2);
    t = trial_of("lossless", HDT_DTYPE_F32, x, sizeof(x), HDT_OK);
    cr_assert_eq(hdt_codec_trial_error(&t), 0);
    t = trial_of("int8", HDT_DTYPE_F32, x, sizeof(x), HDT_OK);
    cr_assert_eq(t.coded_bytes, N + 16 * N / 1024);
    t = trial_of("none", HDT_DTYPE_I64, x, sizeof(x), HDT_OK);
    cr_assert_eq(t.coded_bytes, sizeof(x));
    t = trial_of("lossless", HDT_DTYPE_F32, x, 0, HDT_OK);
    cr_assert_eq(t.n_tensors, 1);
}

Test(codec_trial, what_a_codec_refuses_is_not_counted)
{
    static float x[N];
    struct hdt_codec_trial t;
    struct hdt_codec_spec spec;

    x[5] = NAN;
    t = trial_of("int8", HDT_DTYPE_F32, x, sizeof(x), HDT_EINVAL);
    cr_assert_eq(t.n_tensors + t.plain_bytes + t.coded_bytes, 0);
    cr_assert_eq(hdt_codec_spec_parse("int8", &spec, NULL), HDT_OK);
    cr_assert(hdt_codec_trial_takes(&spec, HDT_DTYPE_F32));
    cr_assert_not(hdt_codec_trial_takes(&spec, HDT_DTYPE_I32));
}

/* Each text of the table stands there once, and once more with lossless behind it. */
Test(codec_trial, comparison_has_every_codec_of_the_table)
{
    struct hdt_codec_spec specs[128];
    size_t n = hdt_codec_trial_specs(specs, 128), n_words;
    const struct hdt_codec_word *words = hdt_codec_words(&n_words);
    bool seen[HDT_CODEC_COUNT] = {0};

    cr_assert_leq(n, 128);
    for (size_t i = 0; i < n; i++) {
        cr_assert_eq(hdt_codec_spec_check(&specs[i], NULL), HDT_OK);
        seen[specs[i].worker] = seen[specs[i].gateway] = true;
        for (size_t j = 0; j < i; j++) {
            cr_assert_not(hdt_codec_spec_equal(&specs[i], &specs[j]));
        }
    }
    for (size_t i = 0; i < n_words; i++) {
        cr_assert(seen[words[i].id], "%s", words[i].name);
    }
    cr_assert_eq(hdt_codec_trial_specs(specs, 1), n);
}

/* Share of the floor that lossless reaches on f32 values or what a worker codec makes of them. */
static double share_of(const char *text, enum hdt_dtype dtype, const void *data, size_t len)
{
    struct hdt_codec_trial t = trial_of(text, dtype, data, len, HDT_OK);

    return t.floor_bytes / (double)t.coded_bytes;
}

/* Weights, activations and gradients of 64 Ki values and more lose at most 2 % to whole bits and
 * tables; so do codes of int8, whose entropy is not far from 8 bits. */
Test(codec_trial, lossless_comes_within_two_percent_of_the_floor)
{
    static float x[16 * N];
    static uint8_t half[2 * 16 * N];
    struct values_rng rng;

    hdt_values_rng_init(&rng, "lossless_comes_within_two_percent_of_the_floor");
    for (int kind = 0; kind < 2; kind++) {
        hdt_values_fill(&rng, kind ? VALUES_HEAVY_TAILED : VALUES_NORMAL, x, 16 * N);
        cr_expect_gt(share_of("lossless", HDT_DTYPE_F32, x, sizeof(x)), 0.98);
        cr_expect_gt(share_of("bf16+lossless", HDT_DTYPE_F32, x, sizeof(x)), 0.98);
        hdt_kernels_scalar.f16_encode((const uint8_t *)x, 16 * N, half);
        cr_expect_gt(share_of("lossless", HDT_DTYPE_F16, half, sizeof(half)), 0.98);
        if (kind == 0) {
            cr_expect_gt(share_of("int8+lossless", HDT_DTYPE_F32, x, sizeof(x)), 0.98);
        }
    }
    /* Three rows of four are zero, and rows are as long as a power of two: a sample that steps
     * evenly sees one kind of them only. A match search goes below the floor here. */
    hdt_values_fill(&rng, VALUES_NORMAL, x, 16 * N);
    for (size_t row = 0; row < 16 * N / 128; row++) {
        if (row % 4 != 0) {
            memset(x + 128 * row, 0, 128 * sizeof(float));
        }
    }
    cr_expect_gt(share_of("bf16+lossless", HDT_DTYPE_F32, x, sizeof(x)), 1.0);
}
