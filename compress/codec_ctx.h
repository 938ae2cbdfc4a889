/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_COMPRESS_CODEC_CTX_H
#define HDT_COMPRESS_CODEC_CTX_H

/* The inside of a codec context, for the codecs of this folder and their tests. */
#include "compress/codec.h"
#include "compress/kernels.h"
#include "compress/planes.h"

struct ZSTD_CCtx_s;
struct ZSTD_DCtx_s;

/* Most elements that the lossless codec looks at before it decides. */
#define HDT_LOSSLESS_SAMPLE_MAX 4096

struct hdt_codec_ctx {
    const struct hdt_kernels *kernels;
    const struct hdt_planes_kernels *planes_kernels;
    size_t chunk_cap;
    float *log2_of;  /* (HDT_LOSSLESS_SAMPLE_MAX + 1): of small whole numbers */
    uint8_t *planes; /* chunk_cap bytes: planes on their way to and from the entropy coder */

    /* Both live in memory of their own that never grows, so that zstd cannot allocate, whatever a
     * foreign frame asks for. NULL when chunk_cap is 0. */
    struct ZSTD_CCtx_s *encoder;
    struct ZSTD_DCtx_s *decoder;
    void *encoder_mem, *decoder_mem;
};

/* Make and release the zstd contexts of ctx (codec_lossless.c). HDT_ENOMEM. */
enum hdt_status hdt_lossless_ctx_init(struct hdt_codec_ctx *ctx, struct hdt_error *err);
void hdt_lossless_ctx_release(struct hdt_codec_ctx *ctx);

#endif /* HDT_COMPRESS_CODEC_CTX_H */
