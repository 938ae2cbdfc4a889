/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_CUDA_CUDA_KERNELS_H
#define HDT_RUNTIME_CUDA_CUDA_KERNELS_H

/*
 * Launchers of the kernels: each queues one op of backend.h on a stream of the current device and
 * returns what the launch returned. Shapes and meaning as there; lengths of 0 queue nothing,
 * but for sums, which are then 0.
 */
#include "runtime/adamw.h"
#include "runtime/backend.h"
#include "src/base/tensor.h"

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Partial sums of a reduction: its first pass has at most so many blocks. Enough to fill the
 * largest devices, and a constant, so that the order of a sum depends on its length alone. */
#define HDT_CUDA_PARTIALS 1024

/* Arrays that one launch of hdt_cuda_sumsq adds up. */
#define HDT_CUDA_SUMS 16

/* What reductions need of a stream, in doubles: counters, which are zero bytes before and after
 * each, and behind them the partial sums of as many arrays. */
#define HDT_CUDA_REDUCTIONS (HDT_CUDA_SUMS + HDT_CUDA_SUMS * HDT_CUDA_PARTIALS)

/* Multiprocessors that the stream which this thread entered last runs on: for grids that fill them.
 */
int hdt_cuda_current_sms(void);

/* Whether the current device can run the kernels of this build; cudaErrorNoKernelImageForDevice
 * when it was compiled for others. */
cudaError_t hdt_cuda_kernels_probe(void);

cudaError_t hdt_cuda_add(cudaStream_t stream, const float *x, size_t len, float *y);
cudaError_t hdt_cuda_scale(cudaStream_t stream, float factor, size_t len, float *x);
cudaError_t hdt_cuda_cast(cudaStream_t stream, const void *src, enum hdt_dtype src_dtype,
                          size_t len, enum hdt_dtype dst_dtype, void *dst);
cudaError_t hdt_cuda_adamw(cudaStream_t stream, const struct hdt_adamw_numbers *p, const float *g,
                           size_t len, float *w, float *m, float *v);

/* And w in bfloat16 to w16. amax: see struct hdt_mixed_ops; may be NULL. */
cudaError_t hdt_cuda_adamw16(cudaStream_t stream, const struct hdt_adamw_numbers *p, const float *g,
                             size_t len, float *w, float *m, float *v, void *w16, float *amax);

/* Sets *differs (device memory) when two arrays of words do; else leaves it. */
cudaError_t hdt_cuda_compare(cudaStream_t stream, const uint16_t *a, const uint16_t *b, size_t len,
                             int *differs);

/* Sets x (len), float or bfloat16, to numbers of 0.5 to 2 of both signs, the same ones each time;
 * of FP8 (an even len) to numbers below 2. */
cudaError_t hdt_cuda_random(cudaStream_t stream, enum hdt_dtype dtype, size_t len, void *x);

/* n: 1 to HDT_CUDA_SUMS. reductions: HDT_CUDA_REDUCTIONS that no other stream uses. */
cudaError_t hdt_cuda_sumsq(cudaStream_t stream, const struct hdt_span *spans, int n,
                           double *reductions, double *sums);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_CUDA_CUDA_KERNELS_H */
