/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_SELFTEST_REF_GRADS_H
#define HDT_RUNTIME_SELFTEST_REF_GRADS_H

/* Gradients of the ops of ref_ops.h in float64, by their formulas, for shapes at which differences
 * would take too long. Sets and adds as the ops of runtime/backend.h do. */
#include "runtime/selftest/ref_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Adds to dx (n, c) and dw (c). */
void hdt_ref_rmsnorm_grad(const double *dy, const double *x, const double *w, int n, int c,
                          double eps, double *dx, double *dw);

/* Sets dqkv, which stands as qkv; kv_len == q_len. */
void hdt_ref_attention_grad(const struct hdt_ref_attention *a, const double *qkv,
                            const double *dout, double *dqkv);

/* Sets dgate_up (n, 2f). */
void hdt_ref_swiglu_grad(const double *dh, const double *gate_up, int n, int f, double *dgate_up);

/* Logits (n, v) become scale * (softmax - onehot), and 0 in rows whose label is negative. */
void hdt_ref_cross_entropy_grad(const int32_t *labels, int n, int v, double scale, double *logits);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_SELFTEST_REF_GRADS_H */
