/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_CUDA_CUDA_GEMM_H
#define HDT_RUNTIME_CUDA_CUDA_GEMM_H

/*
 * Matrix products of the cuda backend, by cuBLASLt. How a product is computed is looked up once for
 * each shape, layout, type and alignment, and kept for the device. The library offers some ways in
 * the order that it believes in. Large products are timed with each of them when they are met
 * first; the fastest is taken among those that give, on matrices of the trial's own, the bits of
 * the library's first choice that runs. So the choice follows from a clock, the bits do not: they
 * depend on shape and device alone. Sums over k are in float32, also between parts of a k that was
 * cut.
 */
#include "runtime/backend.h"

/* Of a stream, for products. */
#define HDT_CUDA_WORKSPACE ((size_t)32 << 20)

struct hdt_cuda_gemms; /* the products of a device that were looked up */

/* D = alpha op(A) op(B) + beta C, as struct hdt_gemm; C may be D. A and B have one type, unless it
 * is FP8, where they stand as (m, k) and (n, k). float32 products are products of float32, not of
 * TF32. */
struct hdt_cuda_gemm {
    int m;
    int n;
    int k;
    bool trans_a; /* A stands as (k, m) */
    bool trans_b; /* B stands as (n, k) */
    float alpha;
    float beta;
    enum hdt_dtype a_dtype; /* HDT_DTYPE_F32, HDT_DTYPE_BF16, or as struct hdt_fp8_gemm */
    enum hdt_dtype b_dtype;
    enum hdt_dtype d_dtype; /* of the first two; float32 when A and B are */
    bool is_fast;           /* FP8: as there */
    const void *a;
    const float *a_scale; /* FP8: device memory; NULL: 1 */
    int lda;
    const void *b;
    const float *b_scale;
    int ldb;
    const void *c; /* read when beta is not 0; of d_dtype, rows ldd apart */
    void *d;
    int ldd;
};

/* HDT_EIO: the library does not start. The device is current. */
enum hdt_status hdt_cuda_gemms_new(int sm_target, struct hdt_cuda_gemms **gemms,
                                   struct hdt_error *err);
void hdt_cuda_gemms_free(struct hdt_cuda_gemms *gemms);

/* Queue a product; a failure sticks to the stream. Any thread, one a stream. */
void hdt_cuda_gemm(struct hdt_stream *s, const struct hdt_cuda_gemm *g);

#endif /* HDT_RUNTIME_CUDA_CUDA_GEMM_H */
