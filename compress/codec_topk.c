/* SPDX-License-Identifier: Apache-2.0 */
/* Top-k and random-k as codecs of a flow: compress/topk.h has what they do. */
#include "config.h"

#include "compress/codec.h"
#include "compress/codec_ctx.h"
#include "compress/codec_state.h"
#include "compress/topk.h"

static struct hdt_topk params(const struct hdt_codec_spec *spec)
{
    return (struct hdt_topk){.keep = spec->keep, .bits = spec->bits};
}

static size_t topk_bound(const struct hdt_codec_spec *spec, enum hdt_dtype dtype, size_t plain_len)
{
    struct hdt_topk topk = params(spec);

    (void)dtype;
    return hdt_topk_len(&topk, plain_len / 4);
}

static size_t randk_bound(const struct hdt_codec_spec *spec, enum hdt_dtype dtype, size_t plain_len)
{
    struct hdt_topk topk = params(spec);

    (void)dtype;
    return hdt_randk_len(&topk, plain_len / 4);
}

static enum hdt_status topk_encode(struct hdt_codec_ctx *ctx, const struct hdt_codec_io *io,
                                   size_t *coded_len, struct hdt_error *err)
{
    struct hdt_topk topk = params(io->spec);
    size_t n = io->src_len / 4;
    struct hdt_codec_guard guard;
    enum hdt_status status;

    HDT_TRY(hdt_codec_state_fits(io->state, io->spec, n, err));
    status = hdt_topk_encode(&topk, ctx->kernels, hdt_sparse_kernels_best(), io->src, n,
                             io->state->residual, io->dst, &guard, err);
    if (io->guard) {
        *io->guard = guard;
    }
    if (status == HDT_OK) {
        *coded_len = hdt_topk_len(&topk, n);
    }
    return status;
}

static enum hdt_status randk_encode(struct hdt_codec_ctx *ctx, const struct hdt_codec_io *io,
                                    size_t *coded_len, struct hdt_error *err)
{
    struct hdt_topk topk = params(io->spec);
    size_t n = io->src_len / 4;
    struct hdt_codec_guard guard;
    enum hdt_status status;

    HDT_TRY(hdt_codec_state_fits(io->state, io->spec, n, err));
    status = hdt_randk_encode(&topk, ctx->kernels, hdt_sparse_kernels_best(), io->seed, io->src, n,
                              io->state->residual, io->dst, &guard, err);
    if (io->guard) {
        *io->guard = guard;
    }
    if (status == HDT_OK) {
        *coded_len = hdt_randk_len(&topk, n);
    }
    return status;
}

static enum hdt_status topk_decode(struct hdt_codec_ctx *ctx, const struct hdt_codec_io *io,
                                   struct hdt_error *err)
{
    struct hdt_topk topk = params(io->spec);

    (void)ctx;
    return hdt_topk_decode(&topk, io->src, io->src_len, io->dst, io->dst_len / 4, io->add, err);
}

static enum hdt_status randk_decode(struct hdt_codec_ctx *ctx, const struct hdt_codec_io *io,
                                    struct hdt_error *err)
{
    struct hdt_topk topk = params(io->spec);

    (void)ctx;
    return hdt_randk_decode(&topk, io->src, io->src_len, io->dst, io->dst_len / 4, io->add, err);
}

const struct hdt_codec_ops hdt_codec_topk = {
    .id = HDT_CODEC_TOPK,
    .name = "topk",
    .help = "The largest fp32 values of each 4096, what is left is sent later: about 195 times "
            "fewer bytes.",
    .caps = HDT_CODEC_AT_WORKER | HDT_CODEC_ADDS,
    .dtypes = 1u << HDT_DTYPE_F32,
    .coded_dtype = HDT_DTYPE_U8,
    .has_state = true,
    .bound = topk_bound,
    .encode = topk_encode,
    .decode = topk_decode,
};

const struct hdt_codec_ops hdt_codec_randk = {
    .id = HDT_CODEC_RANDK,
    .name = "randk",
    .help = "fp32 values drawn by chance, what is left is sent later: to compare topk with.",
    .caps = HDT_CODEC_AT_WORKER | HDT_CODEC_ADDS,
    .dtypes = 1u << HDT_DTYPE_F32,
    .coded_dtype = HDT_DTYPE_U8,
    .has_state = true,
    .bound = randk_bound,
    .encode = randk_encode,
    .decode = randk_decode,
};
