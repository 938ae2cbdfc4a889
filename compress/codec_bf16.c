/* SPDX-License-Identifier: Apache-2.0 */
/* fp32 -> bf16: half the bytes, a relative error of at most 2^-9 a value. */
#include "config.h"

#include "compress/codec.h"
#include "compress/codec_ctx.h"

static size_t bf16_bound(const struct hdt_codec_spec *spec, enum hdt_dtype dtype, size_t plain_len)
{
    (void)spec;
    (void)dtype;
    return plain_len / 2;
}

static size_t bf16_plain_len(const struct hdt_codec_spec *spec, enum hdt_dtype dtype,
                             size_t coded_len)
{
    (void)spec;
    (void)dtype;
    return coded_len % 2 == 0 && coded_len <= HDT_CODEC_PLAIN_MAX / 2 ? coded_len * 2 : SIZE_MAX;
}

static enum hdt_status bf16_encode(struct hdt_codec_ctx *ctx, const struct hdt_codec_io *io,
                                   size_t *coded_len, struct hdt_error *err)
{
    const struct hdt_kernels *k = ctx->kernels;
    size_t n = io->src_len / 4;

    (void)err;
    if (io->guard) {
        k->bf16_encode_guard(io->src, n, io->dst, io->guard);
    } else {
        k->bf16_encode(io->src, n, io->dst);
    }
    *coded_len = 2 * n;
    return HDT_OK;
}

static enum hdt_status bf16_decode(struct hdt_codec_ctx *ctx, const struct hdt_codec_io *io,
                                   struct hdt_error *err)
{
    (void)err;
    ctx->kernels->bf16_decode(io->src, io->dst_len / 4, io->dst);
    return HDT_OK;
}

const struct hdt_codec_ops hdt_codec_bf16 = {
    .id = HDT_CODEC_BF16,
    .name = "bf16",
    .help = "fp32 values rounded to bf16: half the bytes.",
    .caps = HDT_CODEC_AT_WORKER,
    .dtypes = 1u << HDT_DTYPE_F32,
    .coded_dtype = HDT_DTYPE_BF16,
    .bound = bf16_bound,
    .plain_len = bf16_plain_len,
    .encode = bf16_encode,
    .decode = bf16_decode,
};
