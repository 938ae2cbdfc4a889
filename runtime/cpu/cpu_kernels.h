/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_CPU_CPU_KERNELS_H
#define HDT_RUNTIME_CPU_CPU_KERNELS_H

/*
 * The arithmetic of one tile on one thread. cpu_kernels.c is compiled once for each instruction
 * set; the device takes the best table that the processor can run. Shapes and meaning are those of
 * the ops of backend.h, on a range of rows or columns; what a kernel sets or adds is said there.
 */
#include "runtime/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Scratch of one thread for gemm: packed panels of both operands. */
#define HDT_CPU_GEMM_SCRATCH ((size_t)1280 << 10)

struct hdt_cpu_kernels {
    const char *isa;

    /* A plain blocked product, for builds without OpenBLAS. scratch: HDT_CPU_GEMM_SCRATCH bytes. */
    void (*gemm)(const struct hdt_gemm *g, float *scratch);

    /* g->m == 1, trans_b, beta 0: products of one row with rows [0, n) of B. */
    void (*gemv)(const struct hdt_gemm *g);

    void (*rmsnorm_fwd)(const float *x, const float *w, int n, int c, float eps, float *y,
                        float *rstd);
    void (*rmsnorm_dx)(const float *dy, const float *x, const float *w, const float *rstd, int n,
                       int c, float *dx);
    /* Columns [0, n_cols) of dw, over all n rows; pointers at the first column. */
    void (*rmsnorm_dw)(const float *dy, const float *x, const float *rstd, int n, int c, int n_cols,
                       float *dw);

    /* n rows, of which the first has position pos0 + row0 % t. direction 1 rotates, -1 back. */
    void (*rope)(const float *cos_sin, int row0, int n, int t, int pos, int n_heads, int head_size,
                 int stride, float direction, float *x);

    /* Row i of s (n rows, ld apart): exp(scale * (s - max)) of its first len0 + i values, zeros up
     * to len_max; inv_sum[i] = 1 / their sum, lse[i]. */
    void (*softmax_causal)(float *s, int n, int ld, int len0, int len_max, float scale,
                           float *inv_sum, float *lse);
    /* s -> p = exp(scale s - lse), dp -> ds = p (dp - delta) scale; zeros beyond len0 + i. */
    void (*softmax_causal_bwd)(float *s, float *dp, int n, int ld, int len0, int len_max,
                               float scale, const float *lse, const float *delta);
    /* delta[i] = dot(out_i, dout_i) of n rows of HS values, ld apart. */
    void (*rows_dot)(const float *a, const float *b, int n, int len, int ld, float *dot);
    /* Rows of x times factor[i]. */
    void (*rows_scale)(const float *factor, int n, int len, int ld, float *x);

    void (*swiglu_fwd)(const float *gate_up, int n, int f, float *h);
    void (*swiglu_bwd)(const float *dh, const float *gate_up, int n, int f, float *dgate_up);

    /* row_loss[i] in float64; logits become gradients when scale is not 0. */
    void (*cross_entropy)(const int32_t *labels, int n, int v, float scale, float *logits,
                          double *row_loss);

    /* Columns [0, n_cols) of dw; pointers at the first column. */
    void (*embedding_bwd)(const int32_t *tokens, const float *dout, int n, int c, int n_cols,
                          float *dw);

    void (*add)(const float *x, size_t len, float *y);
    void (*scale)(float factor, size_t len, float *x);
    double (*sumsq)(const float *x, size_t len);
    void (*cast)(const void *src, enum hdt_dtype src_dtype, size_t len, enum hdt_dtype dst_dtype,
                 void *dst);
};

extern const struct hdt_cpu_kernels hdt_cpu_kernels_base;
extern const struct hdt_cpu_kernels hdt_cpu_kernels_v3; /* x86-64-v3: AVX2 and FMA */

/* The same with every instruction set: see adamw.h. w, m and v do not overlap. (len) */
void hdt_cpu_adamw(const struct hdt_adamw *p, const float *g, size_t len, float *w, float *m,
                   float *v);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_CPU_CPU_KERNELS_H */
