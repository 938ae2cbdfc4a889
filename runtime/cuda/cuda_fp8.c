/* SPDX-License-Identifier: Apache-2.0 */
/* The ops of FP8 of the cuda backend. */
#include "config.h"

#include "runtime/cuda/cuda_gemm.h"
#include "runtime/cuda/cuda_ops.h"
#include "runtime/cuda/cuda_quantize.h"

static void fp8_quantize(struct hdt_stream *s, const struct hdt_quantize *q)
{
    HDT_ASSERT(q->n % HDT_FP8_DIM == 0 && q->c % HDT_FP8_DIM == 0);
    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(s, hdt_cuda_quantize(s->handle, q, s->reductions), "queue quantize");
    }
}

static void fp8_gemm(struct hdt_stream *s, const struct hdt_fp8_gemm *g)
{
    const struct hdt_cuda_gemm product = {.m = g->m,
                                          .n = g->n,
                                          .k = g->k,
                                          .trans_b = true,
                                          .alpha = 1,
                                          .beta = g->beta,
                                          .a_dtype = g->a_dtype,
                                          .b_dtype = g->b_dtype,
                                          .d_dtype = g->d_dtype,
                                          .is_fast = g->is_fast,
                                          .a = g->a,
                                          .a_scale = g->a_scale,
                                          .lda = g->k,
                                          .b = g->b,
                                          .b_scale = g->b_scale,
                                          .ldb = g->k,
                                          .c = g->c,
                                          .d = g->d,
                                          .ldd = g->n};

    HDT_ASSERT(g->m % HDT_FP8_DIM == 0 && g->n % HDT_FP8_DIM == 0 && g->k % HDT_FP8_DIM == 0);
    HDT_ASSERT((uintptr_t)g->a_scale % 16 == 0 && (uintptr_t)g->b_scale % 16 == 0);
    hdt_cuda_gemm(s, &product);
}

const struct hdt_fp8_ops hdt_cuda_fp8_ops = {
    .quantize = fp8_quantize,
    .gemm = fp8_gemm,
};
