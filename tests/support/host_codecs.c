/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/support/host_codecs.h"

#include "compress/planes.h"
#include "src/base/buf.h"

#include <stdlib.h>
#include <string.h>

/* The values of a tensor as fp32; freed by the caller. */
static float *values_of(const struct hdt_device_in *in)
{
    float *x = hdt_calloc(in->n + 1, sizeof(*x));

    if (in->dtype == HDT_DTYPE_F32) {
        memcpy(x, in->src, 4 * in->n);
    } else {
        hdt_kernels_scalar.bf16_decode(in->src, in->n, (uint8_t *)x);
    }
    return x;
}

static struct hdt_codec_guard *guard_begin(const struct hdt_device_in *in)
{
    memset(in->report, 0, sizeof(*in->report));
    in->report->bad = HDT_DEVICE_GOOD;
    return &in->report->guard;
}

static void host_look(struct hdt_stream *s, const struct hdt_device_in *in)
{
    struct hdt_codec_guard *guard = guard_begin(in);
    const uint32_t max = hdt_kernels_scalar.abs_max(in->src, in->n, &guard->n_nonfinite);

    (void)s;
    guard->n = in->n;
    memcpy(&guard->max_abs, &max, 4);
}

static void host_cast_encode(struct hdt_stream *s, enum hdt_cast_kind kind,
                             const struct hdt_device_in *in, void *dst)
{
    float *x = values_of(in);
    const struct hdt_cast_in cast = {
        .src = (const uint8_t *)x, .n = in->n, .random = in->random, .first = 0};

    (void)s;
    hdt_kernels_scalar.cast_encode(kind, &cast, dst, guard_begin(in));
    free(x);
}

static void host_cast_decode(struct hdt_stream *s, enum hdt_cast_kind kind, const void *src,
                             const struct hdt_device_out *out)
{
    (void)s;
    out->report->bad = HDT_DEVICE_GOOD;
    hdt_kernels_scalar.cast_decode(kind, out->emit, src, out->n, out->dst);
}

static void host_quant_encode(struct hdt_stream *s, const struct hdt_device_quant *q,
                              const struct hdt_device_in *in, void *dst)
{
    float *x = values_of(in);
    const struct hdt_quant_in quant = {
        .src = (const uint8_t *)x, .n = in->n, .block = q->block, .random = in->random};

    struct hdt_codec_guard *guard = guard_begin(in);
    uint64_t unused = 0;
    uint32_t max;

    (void)s;
    memset(dst, 0, q->head_len);
    max = hdt_kernels_scalar.abs_max((const uint8_t *)x, in->n, &unused); /* before rotation */
    if (q->rotate) {
        hdt_kernels_scalar.hadamard((uint8_t *)x, in->n, q->block, false);
    }
    hdt_kernels_scalar.quant_encode(q->kind, &quant, dst, (uint8_t *)dst + q->head_len, guard);
    memcpy(&guard->max_abs, &max, 4);
    free(x);
}

static void host_quant_decode(struct hdt_stream *s, const struct hdt_device_quant *q,
                              const void *src, const struct hdt_device_out *out)
{
    const uint8_t *params = src;

    (void)s;
    out->report->bad = HDT_DEVICE_GOOD;
    HDT_ASSERT(!q->rotate || out->emit == HDT_EMIT_F32);
    for (size_t b = 0; q->kind == HDT_QUANT_I8 && b < (out->n + q->block - 1) / q->block; b++) {
        if (params[4 * b + 3] >= 0x80 && out->report->bad == HDT_DEVICE_GOOD) {
            out->report->bad = 2 * b; /* a negative scale; of the others none is refused here */
        }
    }
    hdt_kernels_scalar.quant_decode(q->kind, out->emit, params, params + q->head_len, out->n,
                                    q->block, out->dst);
    if (q->rotate) {
        hdt_kernels_scalar.hadamard(out->dst, out->n, q->block, true);
    }
}

static void host_split(struct hdt_stream *s, size_t size, bool rotate, const void *src, size_t n,
                       uint8_t *const planes[])
{
    (void)s;
    hdt_planes_split(&hdt_planes_scalar, size, rotate, src, n, planes);
}

static void host_join(struct hdt_stream *s, size_t size, bool rotate, const uint8_t *const planes[],
                      size_t n, void *dst)
{
    (void)s;
    hdt_planes_join(&hdt_planes_scalar, size, rotate, planes, n, dst);
}

static void host_add(struct hdt_stream *s, const void *src, size_t n, void *dst)
{
    (void)s;
    hdt_kernels_scalar.add(dst, src, n, dst);
}

static void host_copy(struct hdt_stream *s, const void *src, size_t len, void *dst)
{
    (void)s;
    memcpy(dst, src, len);
}

const struct hdt_device_codecs hdt_host_codecs = {
    .scratch_bytes = 64,
    .look = host_look,
    .cast_encode = host_cast_encode,
    .cast_decode = host_cast_decode,
    .quant_encode = host_quant_encode,
    .quant_decode = host_quant_decode,
    .split = host_split,
    .join = host_join,
    .add = host_add,
    .copy = host_copy,
};
