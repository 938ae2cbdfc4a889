/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_OUTER_H
#define HDT_RUNTIME_OUTER_H

/*
 * The arithmetic of an outer step (DiLoCo: Douillard et al., arXiv 2311.08105, algorithm 1). With
 * anchor a (what all replicas began from), weights w_k of replica k, which has the share c_k of the
 * batch, outer learning rate lr and momentum mu:
 *
 *     d_k = a - w_k;  d = sum over k of c_k d_k;  m = mu m + d;  a = a - lr (d + mu m)
 *
 * the last two as torch.optim.SGD(nesterov=True) has them. Each replica computes it from the same
 * d_k and must come to the same bits, whatever its processor: each product is of two float32 in
 * float64, where it is exact, so that it is the same with and without fused multiply-add; sums are
 * in float64 in the order of replicas, and m, d + mu m and a are rounded to float32 once.
 *
 * Plain loops: memory is what limits them. Any thread.
 */
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* delta[i] = anchor[i] - w[i]. */
void hdt_outer_delta(const float *anchor, const float *w, float *delta, size_t n);

/* sum[i] += share * delta[i]; `first` sets it. */
void hdt_outer_add(double *sum, const float *delta, float share, bool first, size_t n);

/* Move anchor and momentum by the sum of all. false: a value is no longer finite. */
bool hdt_outer_move(float *anchor, float *momentum, const double *sum, float lr, float mu,
                    size_t n);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_OUTER_H */
