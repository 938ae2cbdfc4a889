/* SPDX-License-Identifier: Apache-2.0 */
/* The codecs of the cuda backend: struct hdt_device_codecs on its streams. */
#include "config.h"

#include "runtime/cuda/cuda_codecs.h"
#include "runtime/cuda/cuda_device.h"

static void codec_look(struct hdt_stream *s, const struct hdt_device_in *in)
{
    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(s, hdt_cuda_codec_look(s->handle, in), "queue a look at a tensor");
    }
}

static void codec_cast_encode(struct hdt_stream *s, enum hdt_cast_kind kind,
                              const struct hdt_device_in *in, void *dst)
{
    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(s, hdt_cuda_codec_cast_encode(s->handle, kind, in, dst),
                               "queue the cast of a tensor");
    }
}

static void codec_cast_decode(struct hdt_stream *s, enum hdt_cast_kind kind, const void *src,
                              const struct hdt_device_out *out)
{
    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(s, hdt_cuda_codec_cast_decode(s->handle, kind, src, out),
                               "queue the cast of a frame");
    }
}

static void codec_quant_encode(struct hdt_stream *s, const struct hdt_device_quant *q,
                               const struct hdt_device_in *in, void *dst)
{
    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(s, hdt_cuda_codec_quant_encode(s->handle, q, in, dst),
                               "queue the quantization of a tensor");
    }
}

static void codec_quant_decode(struct hdt_stream *s, const struct hdt_device_quant *q,
                               const void *src, const struct hdt_device_out *out)
{
    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(s, hdt_cuda_codec_quant_decode(s->handle, q, src, out),
                               "queue the decoding of a quantized frame");
    }
}

static void codec_topk_encode(struct hdt_stream *s, const struct hdt_device_topk *t,
                              const struct hdt_device_in *in, float *residual, void *dst)
{
    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(s, hdt_cuda_codec_topk_encode(s->handle, t, in, residual, dst),
                               "queue top-k");
    }
}

static void codec_topk_decode(struct hdt_stream *s, const struct hdt_device_topk *t,
                              const void *src, const struct hdt_device_out *out)
{
    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(s, hdt_cuda_codec_topk_decode(s->handle, t, src, out),
                               "queue the decoding of a top-k frame");
    }
}

static void codec_split(struct hdt_stream *s, size_t size, bool rotate, const void *src, size_t n,
                        uint8_t *const planes[])
{
    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(s, hdt_cuda_codec_split(s->handle, size, rotate, src, n, planes),
                               "queue a split into planes");
    }
}

static void codec_join(struct hdt_stream *s, size_t size, bool rotate,
                       const uint8_t *const planes[], size_t n, void *dst)
{
    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(s, hdt_cuda_codec_join(s->handle, size, rotate, planes, n, dst),
                               "queue a join of planes");
    }
}

static void codec_add(struct hdt_stream *s, const void *src, size_t n, void *dst)
{
    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(s, hdt_cuda_codec_add(s->handle, src, n, dst), "queue a sum");
    }
}

static void codec_copy(struct hdt_stream *s, const void *src, size_t len, void *dst)
{
    hdt_cuda_copy(s, dst, src, len, HDT_COPY_ON_DEVICE);
}

const struct hdt_device_codecs hdt_cuda_codecs = {
    .scratch_bytes = HDT_CUDA_CODEC_SCRATCH,
    .look = codec_look,
    .cast_encode = codec_cast_encode,
    .cast_decode = codec_cast_decode,
    .quant_encode = codec_quant_encode,
    .quant_decode = codec_quant_decode,
    .topk_encode = codec_topk_encode,
    .topk_decode = codec_topk_decode,
    .split = codec_split,
    .join = codec_join,
    .add = codec_add,
    .copy = codec_copy,
};
