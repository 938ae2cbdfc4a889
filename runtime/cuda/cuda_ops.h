/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_CUDA_CUDA_OPS_H
#define HDT_RUNTIME_CUDA_CUDA_OPS_H

/* What the ops in float32 (cuda_ops.c) and those in mixed precision (cuda_mixed.c) share: kernels
 * of either type, queued with the stream's scratch. Failures stick to the stream. */
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_kernels.h"
#include "runtime/cuda/cuda_rows.h"

void hdt_cuda_norm_bwd(struct hdt_stream *s, const struct hdt_cuda_norm_bwd *p);
void hdt_cuda_rotate(struct hdt_stream *s, const struct hdt_cuda_rope_args *p, enum hdt_dtype dtype,
                     void *x);
void hdt_cuda_losses(struct hdt_stream *s, const int32_t *labels, int n, int v, float scale,
                     enum hdt_dtype dtype, void *logits, double *loss_sum);

#endif /* HDT_RUNTIME_CUDA_CUDA_OPS_H */
