/* SPDX-License-Identifier: Apache-2.0 */
/* The ops of the cuda backend: arguments checked and prepared, then queued. */
#include "config.h"

#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_kernels.h"

#include <math.h>

static void cuda_add(struct hdt_stream *s, const float *x, size_t len, float *y)
{
    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(s, hdt_cuda_add(s->handle, x, len, y), "queue add");
    }
}

static void cuda_scale(struct hdt_stream *s, float factor, size_t len, float *x)
{
    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(s, hdt_cuda_scale(s->handle, factor, len, x), "queue scale");
    }
}

static void cuda_zero(struct hdt_stream *s, void *x, size_t bytes)
{
    if (bytes > 0 && hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(s, cudaMemsetAsync(x, 0, bytes, s->handle), "queue zero");
    }
}

static bool dtype_is_castable(enum hdt_dtype dtype)
{
    return dtype == HDT_DTYPE_F32 || dtype == HDT_DTYPE_BF16 || dtype == HDT_DTYPE_F16;
}

static void cuda_cast(struct hdt_stream *s, const void *src, enum hdt_dtype src_dtype, size_t len,
                      enum hdt_dtype dst_dtype, void *dst)
{
    HDT_ASSERT(dtype_is_castable(src_dtype) && dtype_is_castable(dst_dtype));
    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(s, hdt_cuda_cast(s->handle, src, src_dtype, len, dst_dtype, dst),
                               "queue cast");
    }
}

static void cuda_sumsq(struct hdt_stream *s, const float *x, size_t len, double *sum)
{
    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(s, hdt_cuda_sumsq(s->handle, x, len, s->partials, sum),
                               "queue sumsq");
    }
}

static void cuda_adamw(struct hdt_stream *s, const struct hdt_adamw *p, const float *g, size_t len,
                       float *w, float *m, float *v)
{
    const struct hdt_cuda_adamw_args numbers = {
        .beta1 = p->beta1,
        .beta2 = p->beta2,
        .m_new = 1.0f - p->beta1,
        .v_new = 1.0f - p->beta2,
        .eps = p->eps,
        .grad_scale = p->grad_scale,
        .keep = 1.0f - p->lr * p->weight_decay,
        .m_rate = (float)((double)p->lr / (1.0 - pow((double)p->beta1, (double)p->step))),
        .v_unbias = (float)(1.0 / sqrt(1.0 - pow((double)p->beta2, (double)p->step))),
    };

    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(s, hdt_cuda_adamw(s->handle, &numbers, g, len, w, m, v),
                               "queue adamw");
    }
}

const struct hdt_ops hdt_cuda_ops = {
    .add = cuda_add,
    .scale = cuda_scale,
    .zero = cuda_zero,
    .cast = cuda_cast,
    .sumsq = cuda_sumsq,
    .adamw = cuda_adamw,
};
