/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Low rank as a codec of a flow: compress/lowrank.h has what it does. The block of the spec is the
 * width of the matrix, as the hidden size of a model; without one the matrix is nearly square.
 */
#include "config.h"

#include "compress/codec.h"
#include "compress/codec_ctx.h"
#include "compress/lowrank.h"
#include "compress/codec_state.h"

static struct hdt_lowrank shape_of(const struct hdt_codec_spec *spec, size_t plain_len)
{
    return hdt_lowrank_shape(plain_len / 4, spec->block, spec->rank);
}

static size_t lowrank_bound(const struct hdt_codec_spec *spec, enum hdt_dtype dtype,
                            size_t plain_len)
{
    struct hdt_lowrank shape = shape_of(spec, plain_len);

    (void)dtype;
    return hdt_lowrank_len(&shape);
}

static enum hdt_status lowrank_encode(struct hdt_codec_ctx *ctx, const struct hdt_codec_io *io,
                                      size_t *coded_len, struct hdt_error *err)
{
    struct hdt_lowrank shape = shape_of(io->spec, io->src_len);
    struct hdt_codec_guard guard;
    enum hdt_status status;

    HDT_TRY(hdt_codec_state_fits(io->state, io->spec, io->src_len / 4, err));
    status = hdt_lowrank_encode(&shape, ctx->kernels, hdt_sparse_kernels_best(), io->src,
                                io->state->residual, io->state->factor, io->state->scratch, io->dst,
                                &guard, err);
    if (io->guard) {
        *io->guard = guard;
    }
    if (status == HDT_OK) {
        *coded_len = hdt_lowrank_len(&shape);
    }
    return status;
}

static enum hdt_status lowrank_decode(struct hdt_codec_ctx *ctx, const struct hdt_codec_io *io,
                                      struct hdt_error *err)
{
    struct hdt_lowrank shape = shape_of(io->spec, io->dst_len);

    (void)ctx;
    return hdt_lowrank_decode(&shape, io->src, io->src_len, io->dst, io->add, err);
}

const struct hdt_codec_ops hdt_codec_lowrank = {
    .id = HDT_CODEC_LOWRANK,
    .name = "lowrank",
    .help = "A matrix of fp32 values as two thin factors, what is left is sent later (PowerSGD).",
    .caps = HDT_CODEC_AT_WORKER | HDT_CODEC_ADDS,
    .dtypes = 1u << HDT_DTYPE_F32,
    .coded_dtype = HDT_DTYPE_BF16,
    .has_state = true,
    .bound = lowrank_bound,
    .encode = lowrank_encode,
    .decode = lowrank_decode,
};
