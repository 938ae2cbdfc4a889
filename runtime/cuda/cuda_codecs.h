/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_CUDA_CUDA_CODECS_H
#define HDT_RUNTIME_CUDA_CUDA_CODECS_H

/*
 * Launchers of the codec kernels: each queues one function of struct hdt_device_codecs
 * (compress/device.h) on a stream of the current device and returns what the launch returned.
 */
#include "compress/device.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

extern const struct hdt_device_codecs hdt_cuda_codecs;

/* Zeroed device memory that the encoders of a stream share, bytes. */
#define HDT_CUDA_CODEC_SCRATCH ((size_t)(8 + 2048 * 32))

cudaError_t hdt_cuda_codec_look(cudaStream_t stream, const struct hdt_device_in *in);
cudaError_t hdt_cuda_codec_cast_encode(cudaStream_t stream, enum hdt_cast_kind kind,
                                       const struct hdt_device_in *in, void *dst);
cudaError_t hdt_cuda_codec_cast_decode(cudaStream_t stream, enum hdt_cast_kind kind,
                                       const void *src, const struct hdt_device_out *out);
cudaError_t hdt_cuda_codec_quant_encode(cudaStream_t stream, const struct hdt_device_quant *q,
                                        const struct hdt_device_in *in, void *dst);
cudaError_t hdt_cuda_codec_quant_decode(cudaStream_t stream, const struct hdt_device_quant *q,
                                        const void *src, const struct hdt_device_out *out);
cudaError_t hdt_cuda_codec_topk_encode(cudaStream_t stream, const struct hdt_device_topk *t,
                                       const struct hdt_device_in *in, float *residual, void *dst);
cudaError_t hdt_cuda_codec_topk_decode(cudaStream_t stream, const struct hdt_device_topk *t,
                                       const void *src, const struct hdt_device_out *out);
cudaError_t hdt_cuda_codec_add(cudaStream_t stream, const void *src, size_t n, void *dst);
cudaError_t hdt_cuda_codec_split(cudaStream_t stream, size_t size, bool rotate, const void *src,
                                 size_t n, uint8_t *const to[]);
cudaError_t hdt_cuda_codec_join(cudaStream_t stream, size_t size, bool rotate,
                                const uint8_t *const from[], size_t n, void *dst);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_CUDA_CUDA_CODECS_H */
