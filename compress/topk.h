/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_COMPRESS_TOPK_H
#define HDT_COMPRESS_TOPK_H

/*
 * Top-k and random-k: of each block of 4096 values, one of `keep` is sent.
 *
 * With a residual r, which the sender keeps for each flow, this is error feedback: r += x; the k
 * values of r that are largest are sent; r -= what the receiver decodes, so that what was not sent,
 * and what coding changed, is sent later. Sparse gradients: Aji & Heafield 2017 (arXiv 1704.05021);
 * why the memory is needed: Stich et al. 2018 (arXiv 1809.07599) and Karimireddy et al. 2019 (arXiv
 * 1901.09847); top-k by blocks of 4096 with values of 2 bits: SparseLoCo (arXiv 2508.15706).
 *
 * Which values are sent is defined without reference to how they are found: the k = ceil(n / keep)
 * largest magnitudes of a block of n, of equal ones those that come first. Random-k takes value
 * j keep + draw(seed, j) of each run of `keep`, for comparison: it needs no positions on the wire.
 *
 * Tensors are fp32 bytes of any alignment, in any shape: n is their number. The length of a frame
 * follows from n, keep and bits. All functions are pure: no allocation, about 60 KB of stack; two
 * threads may run them on different residuals.
 */
#include "compress/codec.h"
#include "compress/sparse_kernels.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_TOPK_KEEP_MIN 2
#define HDT_TOPK_KEEP_MAX 4096

struct hdt_topk {
    unsigned keep; /* send one of so many: HDT_TOPK_KEEP_MIN .. HDT_TOPK_KEEP_MAX */
    unsigned bits; /* of a value: 2, 4, 8 or 16 */
};

/* What a block of n values is in the frame: unary and low bits of its k positions, then its values,
 * each part to a byte. */
struct hdt_topk_layout {
    size_t n, k;
    unsigned low_bits;
    size_t unary_len, low_len, values_len;
};

/* Of a block of 1 .. 4096 values. */
struct hdt_topk_layout hdt_topk_layout_of(const struct hdt_topk *topk, size_t n);

/* What is refused, in the words of all who code top-k. HDT_EINVAL when the guard has seen values
 * that are not finite; HDT_EPROTO: a block of n values in all whose positions are none. */
enum hdt_status hdt_topk_check_guard(const char *name, const struct hdt_codec_guard *guard,
                                     struct hdt_error *err);
enum hdt_status hdt_topk_refuse_block(const struct hdt_topk *topk, size_t n, size_t block,
                                      struct hdt_error *err);

/* Length of the frame of n values, bytes; 0 for none. */
size_t hdt_topk_len(const struct hdt_topk *topk, size_t n);
size_t hdt_randk_len(const struct hdt_topk *topk, size_t n);

/* Write the frame of n values at src. `residual` (n finite floats, aligned) may be NULL: then what
 * is not sent is lost. Sets *guard; the error is that of the frame against residual + values, so
 * what the feedback still has to send. HDT_EINVAL when a value is NaN or infinite: the guard has
 * their number, the residual is as it was. */
enum hdt_status hdt_topk_encode(const struct hdt_topk *topk, const struct hdt_kernels *kernels,
                                const struct hdt_sparse_kernels *sparse, const uint8_t *src,
                                size_t n, float *residual, uint8_t *dst,
                                struct hdt_codec_guard *guard, struct hdt_error *err);
enum hdt_status hdt_randk_encode(const struct hdt_topk *topk, const struct hdt_kernels *kernels,
                                 const struct hdt_sparse_kernels *sparse, uint64_t seed,
                                 const uint8_t *src, size_t n, float *residual, uint8_t *dst,
                                 struct hdt_codec_guard *guard, struct hdt_error *err);

/* Read a frame of src_len foreign bytes into n values at dst; with `add`, dst += value. HDT_EPROTO
 * when it is no frame of n values; dst then holds anything. */
enum hdt_status hdt_topk_decode(const struct hdt_topk *topk, const uint8_t *src, size_t src_len,
                                uint8_t *dst, size_t n, bool add, struct hdt_error *err);
enum hdt_status hdt_randk_decode(const struct hdt_topk *topk, const uint8_t *src, size_t src_len,
                                 uint8_t *dst, size_t n, bool add, struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_COMPRESS_TOPK_H */
