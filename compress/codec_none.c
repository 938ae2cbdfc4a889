/* SPDX-License-Identifier: Apache-2.0 */
/* The codec that changes nothing, at workers and at gateways. */
#include "config.h"

#include "compress/codec.h"
#include "compress/codec_ctx.h"

#include <string.h>

static size_t none_bound(const struct hdt_codec_spec *spec, enum hdt_dtype dtype, size_t plain_len)
{
    (void)spec;
    (void)dtype;
    return plain_len;
}

static size_t none_plain_len(const struct hdt_codec_spec *spec, enum hdt_dtype dtype,
                             size_t coded_len)
{
    (void)spec;
    (void)dtype;
    return coded_len;
}

/* Nothing is lost, so that only the values themselves are looked at. */
static void none_guard(const struct hdt_kernels *k, const struct hdt_codec_io *io)
{
    size_t n = io->src_len / 4;
    uint32_t max_bits = k->abs_max(io->src, n, &io->guard->n_nonfinite);

    io->guard->n = n;
    memcpy(&io->guard->max_abs, &max_bits, 4);
}

static enum hdt_status none_encode(struct hdt_codec_ctx *ctx, const struct hdt_codec_io *io,
                                   size_t *coded_len, struct hdt_error *err)
{
    (void)err;
    if (io->guard && io->dtype == HDT_DTYPE_F32) {
        none_guard(ctx->kernels, io);
    }
    if (io->src_len > 0) {
        memcpy(io->dst, io->src, io->src_len);
    }
    *coded_len = io->src_len;
    return HDT_OK;
}

static enum hdt_status none_decode(struct hdt_codec_ctx *ctx, const struct hdt_codec_io *io,
                                   struct hdt_error *err)
{
    (void)err;
    if (io->add) {
        ctx->kernels->add(io->dst, io->src, io->dst_len / 4, io->dst);
    } else if (io->dst_len > 0) {
        memcpy(io->dst, io->src, io->dst_len);
    }
    return HDT_OK;
}

const struct hdt_codec_ops hdt_codec_none = {
    .id = HDT_CODEC_NONE,
    .name = "none",
    .help = "Bytes as they are.",
    .caps = HDT_CODEC_AT_WORKER | HDT_CODEC_AT_GATEWAY | HDT_CODEC_EXACT | HDT_CODEC_ADDS,
    .dtypes = (1u << HDT_DTYPE_COUNT) - 1,
    .coded_dtype = HDT_DTYPE_NONE,
    .bound = none_bound,
    .plain_len = none_plain_len,
    .encode = none_encode,
    .decode = none_decode,
};
