/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_CUDA_CUDA_ROWS_H
#define HDT_RUNTIME_CUDA_CUDA_ROWS_H

/*
 * Launchers of the kernels that work on rows: norms (cuda_norm.cu), rotations, SwiGLU, embedding
 * and cross-entropy (cuda_rows.cu, cuda_embedding.cu), attention in float32 (cuda_plain.cu). Each
 * queues one op of backend.h on a stream of the current device and returns what the launch
 * returned; no rows, no launch. `dtype` is that of the activations given as void: HDT_DTYPE_F32 or
 * HDT_DTYPE_BF16; all arithmetic is in float32. Arrays need no alignment but an element's; on
 * 16-byte words, with columns in eights, they are faster.
 */
#include "runtime/backend.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t hdt_cuda_rmsnorm_fwd(cudaStream_t stream, const float *x, const float *w, int n, int c,
                                 float eps, enum hdt_dtype dtype, void *y, float *rstd);

struct hdt_cuda_norm_bwd {
    const void *dy; /* (n, c) of `dtype` */
    enum hdt_dtype dtype;
    const float *x;    /* (n, c) */
    const float *w;    /* (c) */
    const float *rstd; /* (n) */
    int n;
    int c;
    float *dx;    /* (n, c), added to */
    void *dx_act; /* (n, c) of `dtype`, set to dx; may be NULL; not with float32 */
    float *dw;    /* (c), added to */
};

/* scratch: hdt_cuda_rmsnorm_bwd_scratch(c) bytes. */
size_t hdt_cuda_rmsnorm_bwd_scratch(int c);
cudaError_t hdt_cuda_rmsnorm_bwd(cudaStream_t stream, const struct hdt_cuda_norm_bwd *p,
                                 void *scratch);

/* Rotation by the angles, or (direction -1) back. */
struct hdt_cuda_rope_args {
    const float *cos_sin;
    int n;
    int t;
    int pos;
    int n_heads;
    int head_size;
    int stride;
    float direction; /* 1 or -1 */
};

cudaError_t hdt_cuda_rope(cudaStream_t stream, const struct hdt_cuda_rope_args *p,
                          enum hdt_dtype dtype, void *x);

cudaError_t hdt_cuda_swiglu_fwd(cudaStream_t stream, const void *gate_up, int n, int f,
                                enum hdt_dtype dtype, void *h, float *amax);
/* h, amax: see struct hdt_mixed_ops; may be NULL. */
cudaError_t hdt_cuda_swiglu_bwd(cudaStream_t stream, const void *dh, const void *gate_up, int n,
                                int f, enum hdt_dtype dtype, void *dgate_up, void *h, float *amax);

cudaError_t hdt_cuda_embedding_fwd(cudaStream_t stream, const int32_t *tokens, const float *w,
                                   int n, int c, float *out);

/* Bytes of scratch, aligned to 256, that the backward pass of n rows needs. */
size_t hdt_cuda_embedding_scratch(int n);
cudaError_t hdt_cuda_embedding_bwd(cudaStream_t stream, const int32_t *tokens, const float *dout,
                                   int n, int c, void *scratch, float *dw);

/* row_loss: scratch of n values. */
cudaError_t hdt_cuda_cross_entropy(cudaStream_t stream, const int32_t *labels, int n, int v,
                                   float scale, enum hdt_dtype dtype, void *logits,
                                   double *row_loss, double *loss_sum);

/* Head sizes up to HDT_CUDA_PLAIN_HEAD_MAX; others: cudaErrorInvalidValue. scratch: for each query
 * row and head one float. */
#define HDT_CUDA_PLAIN_HEAD_MAX 256

cudaError_t hdt_cuda_plain_fwd(cudaStream_t stream, const struct hdt_attention *a);
cudaError_t hdt_cuda_plain_bwd(cudaStream_t stream, const struct hdt_attention *a,
                               const float *dout, float *scratch, float *dq, float *dk, float *dv);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_CUDA_CUDA_ROWS_H */
