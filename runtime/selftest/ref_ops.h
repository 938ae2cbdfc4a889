/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_SELFTEST_REF_OPS_H
#define HDT_RUNTIME_SELFTEST_REF_OPS_H

/* The ops once more, in float64, by the formula and nothing else: what every backend is held to.
 * Gradients are not written out: tests take them from these by central differences. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* c (m, n) = alpha op(a) op(b) + beta c; leading dimensions as in struct hdt_gemm. */
struct hdt_ref_gemm {
    int m, n, k;
    bool trans_a, trans_b;
    double alpha, beta;
    int lda, ldb, ldc;
};
void hdt_ref_gemm(const struct hdt_ref_gemm *g, const double *a, const double *b, double *c);

void hdt_ref_rmsnorm(const double *x, const double *w, int n, int c, double eps, double *y);

/* x (n, n_heads * head_size), rotated in place; angle of pair i: position * freq(i). */
void hdt_ref_rope(int n, int t, int pos, int n_heads, int head_size, int stride, double theta,
                  double *x);

/* Rows hold (NH + 2 NKV) heads: queries, keys, values. out (b * q_len, NH * HS). Queries are the
 * last q_len of each sequence's kv_len rows. */
struct hdt_ref_attention {
    int n_seqs, q_len, kv_len, n_heads, n_kv_heads, head_size;
};
void hdt_ref_attention(const struct hdt_ref_attention *a, const double *qkv, double *out,
                       double *lse);

void hdt_ref_swiglu(const double *gate_up, int n, int f, double *h);

/* Sum of the losses of rows with a label >= 0. */
double hdt_ref_cross_entropy(const double *logits, const int32_t *labels, int n, int v);

/* Numeric gradient of f(arg) by x[0 .. len), which f reads: central differences with step 1e-5,
 * good to about 1e-9 for values around 1. */
void hdt_ref_gradient(double (*f)(void *arg), void *arg, double *x, size_t len, double *grad);

/* Sum of squared differences over the sum of squares. */
double hdt_ref_nmse(const float *got, const double *want, size_t len);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_SELFTEST_REF_OPS_H */
