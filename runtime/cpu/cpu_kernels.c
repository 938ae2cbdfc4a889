/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of the cpu backend, compiled once for each instruction set: HDT_CPU_ISA is the suffix of
 * the exported names (base, v3). Compiled so rather than with target attributes, since those need
 * ifuncs, which not every libc and sanitizer can do.
 */
#include "config.h"

#include "runtime/cpu/cpu_kernels.h"
#include "runtime/cpu/cpu_gemm.h"
#include "runtime/cpu/cpu_vec.h"

#include <math.h>

/* How many of the VEC_LEN values from position i are inside of a row of len values. */
#define PART(i, len) ((len) - (i))

static float row_dot(const float *a, const float *b, int len)
{
    vec_f32 sum0 = {0}, sum1 = {0};
    int i = 0;

    for (; i + 2 * VEC_LEN <= len; i += 2 * VEC_LEN) {
        sum0 += vec_load(a + i) * vec_load(b + i);
        sum1 += vec_load(a + i + VEC_LEN) * vec_load(b + i + VEC_LEN);
    }
    for (; i < len; i += VEC_LEN) {
        sum0 += vec_get(a + i, PART(i, len), 0) * vec_get(b + i, PART(i, len), 0);
    }
    return vec_sum(sum0 + sum1);
}

/* y = a * x + y */
static void row_axpy(float a, const float *x, int len, float *y)
{
    for (int i = 0; i < len; i++) {
        y[i] += a * x[i];
    }
}

static void rmsnorm_fwd(const float *x, const float *w, int n, int c, float eps, float *y,
                        float *rstd)
{
    for (int i = 0; i < n; i++) {
        const float *xi = x + (size_t)i * c;
        float *yi = y + (size_t)i * c;
        float r = 1.0f / sqrtf(row_dot(xi, xi, c) / (float)c + eps);

        for (int j = 0; j < c; j++) {
            yi[j] = xi[j] * r * w[j];
        }
        rstd[i] = r;
    }
}

static void rmsnorm_dx(const float *dy, const float *x, const float *w, const float *rstd, int n,
                       int c, float *dx)
{
    for (int i = 0; i < n; i++) {
        const float *dyi = dy + (size_t)i * c;
        const float *xi = x + (size_t)i * c;
        float *dxi = dx + (size_t)i * c;
        vec_f32 sum = {0};
        float r = rstd[i], back;

        for (int j = 0; j < c; j += VEC_LEN) {
            sum += vec_get(dyi + j, PART(j, c), 0) * vec_get(w + j, PART(j, c), 0) *
                   vec_get(xi + j, PART(j, c), 0);
        }
        back = vec_sum(sum) * r * r / (float)c;
        for (int j = 0; j < c; j++) {
            dxi[j] += r * (dyi[j] * w[j] - xi[j] * back);
        }
    }
}

static void rmsnorm_dw(const float *dy, const float *x, const float *rstd, int n, int c, int n_cols,
                       float *dw)
{
    for (int i = 0; i < n; i++) {
        const float *dyi = dy + (size_t)i * c;
        const float *xi = x + (size_t)i * c;
        float r = rstd[i];

        for (int j = 0; j < n_cols; j++) {
            dw[j] += dyi[j] * xi[j] * r;
        }
    }
}

static void head_rotate(const float *cos, const float *sin, int half, float direction, float *x)
{
    for (int i = 0; i < half; i++) {
        float a = x[i], b = x[i + half], s = direction * sin[i];

        x[i] = a * cos[i] - b * s;
        x[i + half] = b * cos[i] + a * s;
    }
}

static void rope(const float *cos_sin, int row0, int n, int t, int pos, int n_heads, int head_size,
                 int stride, float direction, float *x)
{
    int half = head_size / 2;

    for (int i = 0; i < n; i++) {
        const float *angles = cos_sin + (size_t)(pos + (row0 + i) % t) * head_size;

        for (int h = 0; h < n_heads; h++) {
            head_rotate(angles, angles + half, half, direction,
                        x + (size_t)i * stride + (size_t)h * head_size);
        }
    }
}

static float row_largest(const float *x, int len)
{
    vec_f32 max = vec_set(-INFINITY);

    for (int i = 0; i < len; i += VEC_LEN) {
        max = vec_max(vec_get(x + i, PART(i, len), -INFINITY), max);
    }
    return vec_largest(max);
}

/* x = exp(scale * (x - max)); returns the sum. */
static float row_exp(float *x, int len, float scale, float max)
{
    vec_f32 sum = {0};
    int i = 0;

    for (; i + VEC_LEN <= len; i += VEC_LEN) {
        vec_f32 e = vec_exp((vec_load(x + i) - max) * scale);

        vec_store(x + i, e);
        sum += e;
    }
    if (i < len) {
        vec_f32 e = vec_exp((vec_get(x + i, PART(i, len), 0) - max) * scale);

        vec_put(x + i, PART(i, len), e);
        sum += vec_get(x + i, PART(i, len), 0);
    }
    return vec_sum(sum);
}

static void softmax_causal(float *s, int n, int ld, int len0, int len_max, float scale,
                           float *inv_sum, float *lse)
{
    for (int i = 0; i < n; i++) {
        float *row = s + (size_t)i * ld;
        int len = len0 + i;
        float max = row_largest(row, len);
        float sum = row_exp(row, len, scale, max);

        for (int j = len; j < len_max; j++) {
            row[j] = 0;
        }
        inv_sum[i] = 1.0f / sum;
        lse[i] = max * scale + logf(sum);
    }
}

static void softmax_causal_bwd(float *s, float *dp, int n, int ld, int len0, int len_max,
                               float scale, const float *lse, const float *delta)
{
    for (int i = 0; i < n; i++) {
        float *p = s + (size_t)i * ld;
        float *d = dp + (size_t)i * ld;
        int len = len0 + i, j = 0;

        for (; j < len; j += VEC_LEN) {
            vec_f32 e = vec_exp(vec_get(p + j, PART(j, len), 0) * scale - lse[i]);
            vec_f32 g = (vec_get(d + j, PART(j, len), 0) - delta[i]) * e * scale;

            vec_put(p + j, PART(j, len), e);
            vec_put(d + j, PART(j, len), g);
        }
        for (j = len; j < len_max; j++) {
            p[j] = 0;
            d[j] = 0;
        }
    }
}

static void rows_dot(const float *a, const float *b, int n, int len, int ld, float *dot)
{
    for (int i = 0; i < n; i++) {
        dot[i] = row_dot(a + (size_t)i * ld, b + (size_t)i * ld, len);
    }
}

static void rows_scale(const float *factor, int n, int len, int ld, float *x)
{
    for (int i = 0; i < n; i++) {
        float *row = x + (size_t)i * ld;

        for (int j = 0; j < len; j++) {
            row[j] *= factor[i];
        }
    }
}

static void swiglu_fwd(const float *gate_up, int n, int f, float *h)
{
    for (int i = 0; i < n; i++) {
        const float *gate = gate_up + (size_t)i * 2 * f;
        const float *up = gate + f;
        float *hi = h + (size_t)i * f;

        for (int j = 0; j < f; j += VEC_LEN) {
            vec_f32 g = vec_get(gate + j, PART(j, f), 0);
            vec_f32 sigmoid = 1.0f / (1.0f + vec_exp(-g));

            vec_put(hi + j, PART(j, f), g * sigmoid * vec_get(up + j, PART(j, f), 0));
        }
    }
}

static void swiglu_bwd(const float *dh, const float *gate_up, int n, int f, float *dgate_up)
{
    for (int i = 0; i < n; i++) {
        const float *gate = gate_up + (size_t)i * 2 * f;
        const float *up = gate + f;
        const float *dhi = dh + (size_t)i * f;
        float *dgate = dgate_up + (size_t)i * 2 * f;
        float *dup = dgate + f;

        for (int j = 0; j < f; j += VEC_LEN) {
            vec_f32 g = vec_get(gate + j, PART(j, f), 0);
            vec_f32 d = vec_get(dhi + j, PART(j, f), 0);
            vec_f32 sigmoid = 1.0f / (1.0f + vec_exp(-g));
            vec_f32 silu = g * sigmoid;

            vec_put(dgate + j, PART(j, f),
                    d * vec_get(up + j, PART(j, f), 0) * (sigmoid + silu * (1.0f - sigmoid)));
            vec_put(dup + j, PART(j, f), d * silu);
        }
    }
}

/* logits = exp(logits - max) * factor */
static float row_exp_sum(const float *x, int len, float max)
{
    vec_f32 sum = {0};

    for (int i = 0; i < len; i += VEC_LEN) {
        sum += vec_exp(vec_get(x + i, PART(i, len), -INFINITY) - max);
    }
    return vec_sum(sum);
}

static void row_softmax(float *x, int len, float max, float factor)
{
    for (int i = 0; i < len; i += VEC_LEN) {
        vec_put(x + i, PART(i, len), vec_exp(vec_get(x + i, PART(i, len), 0) - max) * factor);
    }
}

static void cross_entropy(const int32_t *labels, int n, int v, float scale, float *logits,
                          double *row_loss)
{
    for (int i = 0; i < n; i++) {
        float *row = logits + (size_t)i * v;
        float max, sum;

        if (labels[i] < 0) {
            row_loss[i] = 0;
            if (scale != 0.0f) {
                memset(row, 0, (size_t)v * sizeof(*row));
            }
            continue;
        }
        max = row_largest(row, v);
        sum = row_exp_sum(row, v, max);
        row_loss[i] = ((double)max - (double)row[labels[i]]) + (double)logf(sum);
        if (scale != 0.0f) {
            row_softmax(row, v, max, scale / sum);
            row[labels[i]] -= scale;
        }
    }
}

static void embedding_bwd(const int32_t *tokens, const float *dout, int n, int c, int n_cols,
                          float *dw)
{
    for (int i = 0; i < n; i++) {
        row_axpy(1.0f, dout + (size_t)i * c, n_cols, dw + (size_t)tokens[i] * c);
    }
}

static void add(const float *x, size_t len, float *y)
{
    for (size_t i = 0; i < len; i++) {
        y[i] += x[i];
    }
}

static void scale_by(float factor, size_t len, float *x)
{
    for (size_t i = 0; i < len; i++) {
        x[i] *= factor;
    }
}

static double sumsq(const float *x, size_t len)
{
    double lane[VEC_LEN] = {0};
    size_t i = 0;

    for (; i + VEC_LEN <= len; i += VEC_LEN) {
        for (int j = 0; j < VEC_LEN; j++) {
            lane[j] += (double)x[i + (size_t)j] * (double)x[i + (size_t)j];
        }
    }
    for (; i < len; i++) {
        lane[i % VEC_LEN] += (double)x[i] * (double)x[i];
    }
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

static float bf16_to_f32(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

static uint16_t f32_to_bf16(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    if ((bits & 0x7fffffff) > 0x7f800000) {
        return (uint16_t)(bits >> 16 | 0x40); /* a NaN stays one, whatever its low bits are */
    }
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float f16_to_f32(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, exponent = x >> 10 & 31, mantissa = x & 1023;
    uint32_t bits;
    float f;

    if (exponent == 0) {
        f = (float)mantissa * 0x1p-24f;
        return sign ? -f : f;
    }
    bits = sign | (exponent == 31 ? 255u : exponent + 112) << 23 | mantissa << 13;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

static uint16_t f32_to_f16(float f)
{
    uint32_t bits, sign, mantissa, half;
    int32_t exponent, shift;

    memcpy(&bits, &f, sizeof(bits));
    sign = bits >> 16 & 0x8000;
    exponent = (int32_t)(bits >> 23 & 255) - 112;
    mantissa = bits & 0x7fffff;
    if (exponent == 143) {
        return (uint16_t)(sign | 0x7c00 | (mantissa ? 0x200 | mantissa >> 13 : 0));
    }
    if (exponent >= 31) {
        return (uint16_t)(sign | 0x7c00);
    }
    if (exponent < -10) {
        return (uint16_t)sign;
    }
    shift = 13;
    if (exponent <= 0) {
        mantissa |= 0x800000;
        shift = 14 - exponent;
        exponent = 0;
    }
    /* Rounding may carry into the exponent, which is then right too. */
    half = (uint32_t)exponent << 10;
    half += (mantissa + (1u << (shift - 1)) - 1 + (mantissa >> shift & 1)) >> shift;
    return (uint16_t)(sign | half);
}

static float value_load(const void *src, enum hdt_dtype dtype, size_t i)
{
    switch (dtype) {
    case HDT_DTYPE_BF16:
        return bf16_to_f32(((const uint16_t *)src)[i]);
    case HDT_DTYPE_F16:
        return f16_to_f32(((const uint16_t *)src)[i]);
    default:
        return ((const float *)src)[i];
    }
}

static void cast(const void *src, enum hdt_dtype src_dtype, size_t len, enum hdt_dtype dst_dtype,
                 void *dst)
{
    if (dst_dtype == HDT_DTYPE_BF16 && src_dtype == HDT_DTYPE_F32) {
        for (size_t i = 0; i < len; i++) {
            ((uint16_t *)dst)[i] = f32_to_bf16(((const float *)src)[i]);
        }
        return;
    }
    for (size_t i = 0; i < len; i++) {
        float x = value_load(src, src_dtype, i);

        if (dst_dtype == HDT_DTYPE_BF16) {
            ((uint16_t *)dst)[i] = f32_to_bf16(x);
        } else if (dst_dtype == HDT_DTYPE_F16) {
            ((uint16_t *)dst)[i] = f32_to_f16(x);
        } else {
            ((float *)dst)[i] = x;
        }
    }
}

static void gemv(const struct hdt_gemm *g)
{
    for (int j = 0; j < g->n; j++) {
        g->c[j] = g->alpha * row_dot(g->a, g->b + (size_t)j * g->ldb, g->k);
    }
}

#define PASTE_(a, b) a##b
#define PASTE(a, b)  PASTE_(a, b)
#define TEXT_(a)     #a
#define TEXT(a)      TEXT_(a)

const struct hdt_cpu_kernels PASTE(hdt_cpu_kernels_, HDT_CPU_ISA) = {
    .isa = TEXT(HDT_CPU_ISA),
    .gemm = hdt_cpu_gemm_plain,
    .gemv = gemv,
    .rmsnorm_fwd = rmsnorm_fwd,
    .rmsnorm_dx = rmsnorm_dx,
    .rmsnorm_dw = rmsnorm_dw,
    .rope = rope,
    .softmax_causal = softmax_causal,
    .softmax_causal_bwd = softmax_causal_bwd,
    .rows_dot = rows_dot,
    .rows_scale = rows_scale,
    .swiglu_fwd = swiglu_fwd,
    .swiglu_bwd = swiglu_bwd,
    .cross_entropy = cross_entropy,
    .embedding_bwd = embedding_bwd,
    .add = add,
    .scale = scale_by,
    .sumsq = sumsq,
    .cast = cast,
};
