/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Casts to floats of two bytes: bf16, with the range of fp32 and a relative error of at most 2^-8 a
 * value, and fp16, with an eighth of that error between 2^-14 and 65504. Neither looks at other
 * values, so that NaN and infinity come through; what fp16 cannot hold becomes infinite, and the
 * guard counts it.
 */
#include "config.h"

#include "compress/codec.h"
#include "compress/codec_ctx.h"

/* Values that are widened at a time when the tensor is not fp32. */
#define PIECE ((size_t)1024)

static size_t cast_bound(const struct hdt_codec_spec *spec, enum hdt_dtype dtype, size_t plain_len)
{
    (void)spec;
    return plain_len / hdt_dtype_size(dtype) * 2;
}

static size_t cast_plain_len(const struct hdt_codec_spec *spec, enum hdt_dtype dtype,
                             size_t coded_len)
{
    (void)spec;
    return coded_len % 2 == 0 && coded_len <= HDT_CODEC_PLAIN_MAX / 2
               ? coded_len / 2 * hdt_dtype_size(dtype)
               : SIZE_MAX;
}

/* n floats that are the values from `first` on. */
static void encode_floats(const struct hdt_kernels *k, enum hdt_cast_kind kind,
                          const struct hdt_codec_io *io, const struct hdt_random *random,
                          const void *src, size_t first, size_t n)
{
    const struct hdt_cast_in in = {.src = src, .n = n, .random = random, .first = (uint32_t)first};
    uint8_t *dst = (uint8_t *)io->dst + 2 * first;
    struct hdt_codec_guard unused = {0};

    if (io->guard || random) {
        k->cast_encode(kind, &in, dst, io->guard ? io->guard : &unused);
    } else if (kind == HDT_CAST_BF16) {
        k->bf16_encode(src, n, dst);
    } else {
        k->f16_encode(src, n, dst);
    }
}

static enum hdt_status cast_encode(struct hdt_codec_ctx *ctx, enum hdt_cast_kind kind,
                                   const struct hdt_codec_io *io, size_t *coded_len)
{
    const struct hdt_kernels *k = ctx->kernels;
    const uint8_t *src = io->src;
    const size_t n = io->src_len / hdt_dtype_size(io->dtype);
    struct hdt_random seeded;
    const struct hdt_random *random = NULL;

    if (io->spec->flags & HDT_CODEC_STOCHASTIC) {
        hdt_random_seed(&seeded, io->seed);
        random = &seeded;
    }
    if (io->dtype == HDT_DTYPE_F32) {
        encode_floats(k, kind, io, random, src, 0, n);
    }
    for (size_t i = 0; io->dtype != HDT_DTYPE_F32 && i < n; i += PIECE) {
        const size_t len = n - i < PIECE ? n - i : PIECE;
        float wide[PIECE];

        k->bf16_decode(src + 2 * i, len, (uint8_t *)wide);
        encode_floats(k, kind, io, random, wide, i, len);
    }
    *coded_len = 2 * n;
    return HDT_OK;
}

static enum hdt_status cast_decode(struct hdt_codec_ctx *ctx, enum hdt_cast_kind kind,
                                   const struct hdt_codec_io *io)
{
    const enum hdt_emit emit = io->dtype == HDT_DTYPE_BF16 ? HDT_EMIT_BF16
                               : io->add                   ? HDT_EMIT_ADD
                                                           : HDT_EMIT_F32;

    ctx->kernels->cast_decode(kind, emit, io->src, io->dst_len / hdt_dtype_size(io->dtype),
                              io->dst);
    return HDT_OK;
}

static enum hdt_status bf16_encode(struct hdt_codec_ctx *ctx, const struct hdt_codec_io *io,
                                   size_t *coded_len, struct hdt_error *err)
{
    (void)err;
    return cast_encode(ctx, HDT_CAST_BF16, io, coded_len);
}

static enum hdt_status bf16_decode(struct hdt_codec_ctx *ctx, const struct hdt_codec_io *io,
                                   struct hdt_error *err)
{
    (void)err;
    return cast_decode(ctx, HDT_CAST_BF16, io);
}

static enum hdt_status fp16_encode(struct hdt_codec_ctx *ctx, const struct hdt_codec_io *io,
                                   size_t *coded_len, struct hdt_error *err)
{
    (void)err;
    return cast_encode(ctx, HDT_CAST_F16, io, coded_len);
}

static enum hdt_status fp16_decode(struct hdt_codec_ctx *ctx, const struct hdt_codec_io *io,
                                   struct hdt_error *err)
{
    (void)err;
    return cast_decode(ctx, HDT_CAST_F16, io);
}

const struct hdt_codec_ops hdt_codec_bf16 = {
    .id = HDT_CODEC_BF16,
    .name = "bf16",
    .help = "fp32 values rounded to bf16: half the bytes.",
    .caps = HDT_CODEC_AT_WORKER | HDT_CODEC_ADDS,
    .dtypes = 1u << HDT_DTYPE_F32 | 1u << HDT_DTYPE_BF16,
    .coded_dtype = HDT_DTYPE_BF16,
    .bound = cast_bound,
    .plain_len = cast_plain_len,
    .encode = bf16_encode,
    .decode = bf16_decode,
};

const struct hdt_codec_ops hdt_codec_fp16 = {
    .id = HDT_CODEC_FP16,
    .name = "fp16",
    .help = "fp32 values rounded to fp16: half the bytes, finer than bf16, up to 65504.",
    .caps = HDT_CODEC_AT_WORKER | HDT_CODEC_ADDS,
    .dtypes = 1u << HDT_DTYPE_F32 | 1u << HDT_DTYPE_BF16,
    .coded_dtype = HDT_DTYPE_F16,
    .bound = cast_bound,
    .plain_len = cast_plain_len,
    .encode = fp16_encode,
    .decode = fp16_decode,
};
