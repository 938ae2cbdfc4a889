/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fp32 -> int8 by blocks of 256 values, each with an fp32 scale: about a quarter of the bytes.
 *
 * The frame holds all scales first, filled up to a multiple of 16 bytes, then all codes:
 *
 *     | scale 0 | scale 1 | ... | zeros | code 0 | code 1 | ...
 *
 * Scales first rather than beside their block, so that the codes are one run: the lossless codec
 * behind this one then sees one statistic, and wide loads of an accelerator stay aligned.
 * Symmetric, without a zero point: activations and gradients are centred, and a zero must stay a
 * zero.
 *
 * The scale is the largest magnitude / 127, and a code is round(x * (127 / largest)). A block whose
 * largest magnitude is below 2^-110 is coded as zeros: then no factor is subnormal and the result
 * does not depend on the processor's flush-to-zero mode. A tensor that holds NaN or infinity is
 * refused, as a whole and with its count: it has no scale, and training needs to know.
 */
#include "config.h"

#include "compress/codec.h"
#include "compress/codec_ctx.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define BLOCK HDT_CODEC_INT8_BLOCK

/* Four blocks' scales are 16 bytes, so that values in groups of 1024 keep the lengths whole. */
#define GROUP_VALUES ((size_t)4 * BLOCK)
#define GROUP_SCALES ((size_t)16)

/* 2^-110: see above. */
#define MAX_ABS_MIN 0x1p-110f

static size_t scales_len(size_t n)
{
    return (n + GROUP_VALUES - 1) / GROUP_VALUES * GROUP_SCALES;
}

static size_t int8_bound(const struct hdt_codec_spec *spec, enum hdt_dtype dtype, size_t plain_len)
{
    size_t n = plain_len / 4;

    (void)spec;
    (void)dtype;
    return scales_len(n) + n;
}

static size_t int8_plain_len(const struct hdt_codec_spec *spec, enum hdt_dtype dtype,
                             size_t coded_len)
{
    size_t groups = coded_len / (GROUP_VALUES + GROUP_SCALES);
    size_t rest = coded_len % (GROUP_VALUES + GROUP_SCALES);

    (void)spec;
    (void)dtype;
    if (coded_len > HDT_CODEC_PLAIN_MAX / 2 || (rest > 0 && rest <= GROUP_SCALES)) {
        return SIZE_MAX;
    }
    return 4 * (groups * GROUP_VALUES + (rest > 0 ? rest - GROUP_SCALES : 0));
}

/* Sum of squares of a block that is coded as zeros. */
static double tiny_block_sq(const uint8_t *src, size_t n)
{
    double sum = 0;
    float x;

    for (size_t i = 0; i < n; i++) {
        memcpy(&x, src + 4 * i, 4);
        sum += (double)x * (double)x;
    }
    return sum;
}

/* One block of finite values, with the bits of its largest magnitude: codes, scale, guard sums. */
static float int8_block_encode(const struct hdt_kernels *k, const uint8_t *src, size_t n,
                               float max_abs, uint8_t *codes, struct hdt_codec_guard *guard)
{
    float scale = max_abs / 127.0f, sums[2];
    double scale_sq = (double)scale * (double)scale;

    if (max_abs < MAX_ABS_MIN) {
        double sq = tiny_block_sq(src, n);

        memset(codes, 0, n);
        guard->err_sq += sq;
        guard->ref_sq += sq;
        return 0.0f;
    }
    k->int8_encode(src, n, 127.0f / max_abs, codes, sums);
    guard->err_sq += scale_sq * (double)sums[0];
    guard->ref_sq += scale_sq * (double)sums[1];
    return scale;
}

static enum hdt_status int8_encode(struct hdt_codec_ctx *ctx, const struct hdt_codec_io *io,
                                   size_t *coded_len, struct hdt_error *err)
{
    const struct hdt_kernels *k = ctx->kernels;
    const uint8_t *src = io->src;
    uint8_t *scales = io->dst, *codes;
    size_t n = io->src_len / 4, head = scales_len(n);
    struct hdt_codec_guard guard = {.n = n};

    if (head >= GROUP_SCALES) { /* the last group's scales may be fewer than four */
        memset(scales + head - GROUP_SCALES, 0, GROUP_SCALES);
    }
    codes = head > 0 ? scales + head : scales;
    for (size_t i = 0, b = 0; i < n; i += BLOCK, b++) {
        size_t len = n - i < BLOCK ? n - i : BLOCK;
        uint32_t max_bits = k->abs_max(src + 4 * i, len, &guard.n_nonfinite);
        float max_abs, scale;

        memcpy(&max_abs, &max_bits, 4);
        guard.max_abs = guard.max_abs < max_abs ? max_abs : guard.max_abs;
        if (guard.n_nonfinite > 0) {
            continue; /* refused below; go on counting */
        }
        scale = int8_block_encode(k, src + 4 * i, len, max_abs, codes + i, &guard);
        memcpy(scales + 4 * b, &scale, 4);
    }
    if (io->guard) {
        *io->guard = guard;
    }
    if (guard.n_nonfinite > 0) {
        hdt_error_set(err, HDT_EINVAL,
                      "cannot quantize tensor to int8: %" PRIu64
                      " of %zu values are NaN or infinite",
                      guard.n_nonfinite, n);
        hdt_error_hint(err, "codecs none, lossless and bf16 carry such values");
        return HDT_EINVAL;
    }
    *coded_len = head + n;
    return HDT_OK;
}

static enum hdt_status int8_decode(struct hdt_codec_ctx *ctx, const struct hdt_codec_io *io,
                                   struct hdt_error *err)
{
    const uint8_t *scales = io->src, *codes;
    uint8_t *dst = io->dst;
    size_t n = io->dst_len / 4;

    if (n == 0) {
        return HDT_OK;
    }
    codes = scales + scales_len(n);
    for (size_t i = 0, b = 0; i < n; i += BLOCK, b++) {
        size_t len = n - i < BLOCK ? n - i : BLOCK;
        float scale;

        memcpy(&scale, scales + 4 * b, 4);
        if (!(scale >= 0.0f && scale < INFINITY)) {
            return hdt_error_set(err, HDT_EPROTO,
                                 "codec int8: the scale of block %zu is negative or not finite", b);
        }
        ctx->kernels->int8_decode(codes + i, len, scale, dst + 4 * i);
    }
    return HDT_OK;
}

const struct hdt_codec_ops hdt_codec_int8 = {
    .id = HDT_CODEC_INT8,
    .name = "int8",
    .help = "fp32 values as 8-bit integers, a scale for each 256: a quarter of the bytes.",
    .caps = HDT_CODEC_AT_WORKER,
    .dtypes = 1u << HDT_DTYPE_F32,
    .coded_dtype = HDT_DTYPE_I8,
    .bound = int8_bound,
    .plain_len = int8_plain_len,
    .encode = int8_encode,
    .decode = int8_decode,
};
