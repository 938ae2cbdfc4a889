/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_CUDA_CUDA_QUANTIZE_H
#define HDT_RUNTIME_CUDA_CUDA_QUANTIZE_H

/* The launcher of struct hdt_fp8_ops' quantize; each queues on a stream of the current device and
 * returns what the launches returned. */
#include "runtime/backend.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* reductions: as of hdt_cuda_sumsq (cuda_kernels.h). */
cudaError_t hdt_cuda_quantize(cudaStream_t stream, const struct hdt_quantize *q,
                              double *reductions);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_CUDA_CUDA_QUANTIZE_H */
