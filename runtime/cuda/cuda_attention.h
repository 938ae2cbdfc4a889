/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_CUDA_CUDA_ATTENTION_H
#define HDT_RUNTIME_CUDA_CUDA_ATTENTION_H

/*
 * Launchers of attention: each queues one op on a stream of the current device and returns what
 * the launch returned. The meaning is that of struct hdt_attention (runtime/backend.h): causal,
 * grouped-query, query t sees keys 0 .. kv_len - q_len + t, scores scaled by 1 / sqrt(head size).
 *
 * Scores never stand in memory: the algorithm is that of FlashAttention-2 (Dao, 2023), softmax over
 * tiles with a running maximum, and a backward pass that computes the scores again from lse. Two
 * kernels make the backward pass, one for dq and one for dk and dv, each with one block of threads
 * per tile of its result, so that no sum depends on timing: same arguments, same bits.
 *
 * bf16: products of bf16 with float32 accumulation; probabilities and their gradients are rounded
 * to bf16 before the second product; softmax, lse and delta are float32. Every pointer to bf16 is
 * aligned to 16 bytes and strides are multiples of 8 elements.
 * f32: all float32, sums by fused multiply-add; pointers aligned to 16 bytes, strides multiples of
 * 4 elements.
 *
 * Head sizes: multiples of 8 up to 128. 64 and 128 are the fast ones (sm_90a: wgmma and bulk tensor
 * copies; other devices: mma.sync); others compute as the next of the two padded with zeros.
 * Anything else, and lengths of 0 or kv_len < q_len, is cudaErrorInvalidValue.
 */
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* struct hdt_attention with the element type left open: bf16 or float. Strides in elements. */
struct hdt_cuda_attention {
    int n_seqs;
    int q_len;
    int kv_len;
    int n_heads;
    int n_kv_heads; /* divides n_heads */
    int head_size;
    const void *q; /* (B, q_len, NH, HS), rows q_stride apart */
    int q_stride;
    const void *k; /* (B, kv_len, NKV, HS), rows kv_stride apart */
    const void *v; /* (B, kv_len, NKV, HS), rows kv_stride apart */
    int kv_stride;
    void *out;  /* (B, q_len, NH, HS), tight; forward sets, backward reads */
    float *lse; /* (B, NH, q_len); forward sets, backward reads */
    bool plain; /* compute as devices without wgmma do, for tests; bf16 */
};

/* Gradients of the backward pass. dout as out; dq, dk, dv stand as q, k, v do (same strides). */
struct hdt_cuda_attention_grads {
    const void *dout;
    void *dq;      /* sets */
    void *dk;      /* sets */
    void *dv;      /* sets */
    void *scratch; /* hdt_cuda_attention_scratch() bytes of the call's own, aligned to 256 bytes */
};

/* Bytes of scratch that a backward pass needs: lse and sums of out * dout, 8 bytes for each query
 * of each head, lengths rounded up to 128. */
size_t hdt_cuda_attention_scratch(int n_seqs, int q_len, int n_heads);

cudaError_t hdt_cuda_attention_fwd_bf16(cudaStream_t stream, const struct hdt_cuda_attention *a);
cudaError_t hdt_cuda_attention_bwd_bf16(cudaStream_t stream, const struct hdt_cuda_attention *a,
                                        const struct hdt_cuda_attention_grads *g);

cudaError_t hdt_cuda_attention_fwd_f32(cudaStream_t stream, const struct hdt_cuda_attention *a);
cudaError_t hdt_cuda_attention_bwd_f32(cudaStream_t stream, const struct hdt_cuda_attention *a,
                                       const struct hdt_cuda_attention_grads *g);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_CUDA_CUDA_ATTENTION_H */
