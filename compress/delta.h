/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_COMPRESS_DELTA_H
#define HDT_COMPRESS_DELTA_H

/*
 * Delta: the change of a sample's activations since the sample was last sent, coded by an inner
 * codec (AQ-SGD, Wang et al. 2022, arXiv 2206.01299). Both ends keep what the receiver decoded,
 * m(sample), zero to begin with:
 *
 *     sent: q = Q(x - m);   both: m += q;   the receiver goes on with m
 *
 * As a model settles, x - m becomes small and with it the error of Q, which is relative. The first
 * frame of a sample codes x itself. The sample is a number that the caller gives in io->key; it
 * must mean the same input each time, so delta is of use only where a run sees the same batches
 * again in the same composition.
 *
 * Memory at each end: 4 bytes for each value of each sample that is kept (compress/codec_state.h).
 * When all slots are taken, further samples are coded against zero and not kept.
 *
 * Frame: u64 sample, u32 how often it was sent before, u32 1 when it is kept, 0 when not; then the
 * frame of the inner codec. The receiver refuses a frame that does not fit what it holds.
 */
#include "compress/codec.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes before the inner frame. */
#define HDT_DELTA_HEAD ((size_t)16)

/* As the functions of struct hdt_codec_ops, for a spec with HDT_CODEC_DELTA whose worker codec is
 * `inner`; io->state is that of this end, also for decode. The guard compares with the values
 * themselves, not with their change. */
enum hdt_status hdt_delta_encode(const struct hdt_codec_ops *inner, struct hdt_codec_ctx *ctx,
                                 const struct hdt_codec_io *io, size_t *coded_len,
                                 struct hdt_error *err);
enum hdt_status hdt_delta_decode(const struct hdt_codec_ops *inner, struct hdt_codec_ctx *ctx,
                                 const struct hdt_codec_io *io, struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_COMPRESS_DELTA_H */
