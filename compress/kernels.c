/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scalar kernels: the definition.
 *
 * Floats are handled as their bits wherever a rounding mode, flush-to-zero mode or a compiler's
 * contraction of a * b + c could otherwise change a result; this folder is compiled without such
 * contraction.
 */
#include "config.h"

#include "compress/kernels.h"
#include "compress/kernels_avx2.h"

#ifdef HDT_KERNELS_AVX2
# include <cpuid.h>
#endif
#include <math.h>
#include <string.h>

static inline uint32_t load_u32(const uint8_t *src, size_t i)
{
    uint32_t u;

    memcpy(&u, src + 4 * i, 4);
    return u;
}

static inline float load_f32(const uint8_t *src, size_t i)
{
    float f;

    memcpy(&f, src + 4 * i, 4);
    return f;
}

static inline uint16_t bf16_round(uint32_t u)
{
    if ((u & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(u >> 16 | 0x40);
    }
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static void scalar_bf16_encode(const uint8_t *src, size_t n, uint8_t *dst)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h = bf16_round(load_u32(src, i));

        memcpy(dst + 2 * i, &h, 2);
    }
}

static void scalar_bf16_encode_guard(const uint8_t *src, size_t n, uint8_t *dst,
                                     struct hdt_codec_guard *guard)
{
    double err[HDT_KERNEL_LANES] = {0}, ref[HDT_KERNEL_LANES] = {0};
    uint32_t max = 0;

    for (size_t i = 0; i < n; i++) {
        uint32_t u = load_u32(src, i), back;
        uint16_t h = bf16_round(u);
        float x = load_f32(src, i), y;
        double e;

        memcpy(dst + 2 * i, &h, 2);
        if ((u & 0x7fffffffu) < 0x7f800000u && (u & 0x7fffffffu) > max) {
            max = u & 0x7fffffffu;
        }
        if ((h & 0x7f80u) == 0x7f80u) {
            guard->n_nonfinite++;
            continue;
        }
        back = (uint32_t)h << 16;
        memcpy(&y, &back, 4);
        e = (double)(x - y);
        err[i % HDT_KERNEL_LANES] += e * e;
        ref[i % HDT_KERNEL_LANES] += (double)x * (double)x;
    }
    guard->n += n;
    guard->err_sq += hdt_kernels_sum_lanes_f64(err);
    guard->ref_sq += hdt_kernels_sum_lanes_f64(ref);
    float max_abs;
    memcpy(&max_abs, &max, 4);
    guard->max_abs = guard->max_abs < max_abs ? max_abs : guard->max_abs;
}

static void scalar_bf16_decode(const uint8_t *src, size_t n, uint8_t *dst)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        uint32_t u;

        memcpy(&h, src + 2 * i, 2);
        u = (uint32_t)h << 16;
        memcpy(dst + 4 * i, &u, 4);
    }
}

static uint32_t scalar_abs_max(const uint8_t *src, size_t n, uint64_t *n_nonfinite)
{
    uint32_t max = 0;

    for (size_t i = 0; i < n; i++) {
        uint32_t a = load_u32(src, i) & 0x7fffffffu;

        if (a >= 0x7f800000u) {
            ++*n_nonfinite;
        } else if (a > max) {
            max = a;
        }
    }
    return max;
}

static void scalar_int8_encode(const uint8_t *src, size_t n, float inv, uint8_t *dst, float sums[2])
{
    /* Adding and taking away 1.5 * 2^23 rounds a small float to the nearest even integer. */
    const float magic = 12582912.0f;
    float err[HDT_KERNEL_LANES] = {0}, ref[HDT_KERNEL_LANES] = {0};

    for (size_t i = 0; i < n; i++) {
        float t = load_f32(src, i) * inv;
        float q = (t + magic) - magic;
        float e = t - q;

        dst[i] = (uint8_t)(int8_t)q;
        err[i % HDT_KERNEL_LANES] += e * e;
        ref[i % HDT_KERNEL_LANES] += t * t;
    }
    sums[0] = hdt_kernels_sum_lanes(err);
    sums[1] = hdt_kernels_sum_lanes(ref);
}

static void scalar_int8_decode(const uint8_t *src, size_t n, float scale, uint8_t *dst)
{
    for (size_t i = 0; i < n; i++) {
        float x = (float)(int8_t)src[i] * scale;

        memcpy(dst + 4 * i, &x, 4);
    }
}

/* By bits, as F16C does it: what is too small for fp16's normals is shifted into its subnormals. */
static inline uint16_t f16_round(uint32_t u)
{
    const uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    const uint32_t abs = u & 0x7fffffffu;
    uint32_t mantissa, shift, half, rest;

    if (abs > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00 | (abs >> 13 & 0x3ff));
    }
    if (abs >= 0x477ff000u) { /* 65520 and above, infinity among it */
        return (uint16_t)(sign | 0x7c00);
    }
    if (abs >= 0x38800000u) { /* 2^-14: a normal number; a carry goes into the exponent */
        const uint32_t rebased = abs - 0x38000000u;

        return (uint16_t)(sign | (rebased + 0xfff + (rebased >> 13 & 1)) >> 13);
    }
    if (abs < 0x33000000u) { /* below 2^-25, half of the smallest one */
        return sign;
    }
    shift = 126 - (abs >> 23);
    mantissa = (abs & 0x7fffffu) | 0x800000u;
    half = mantissa >> shift;
    rest = mantissa & ((1u << shift) - 1);
    half += rest > 1u << (shift - 1) || (rest == 1u << (shift - 1) && (half & 1));
    return (uint16_t)(sign | half);
}

static inline uint32_t f16_widen(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = h >> 10 & 0x1f, mantissa = h & 0x3ff;

    if (exponent == 0x1f) {
        return sign | 0x7f800000u | mantissa << 13 | (mantissa ? 0x400000u : 0);
    }
    if (exponent == 0) {
        if (mantissa == 0) {
            return sign;
        }
        exponent = 1;
        while (!(mantissa & 0x400)) {
            mantissa <<= 1;
            exponent--;
        }
        mantissa &= 0x3ff;
    }
    return sign | (exponent + 112) << 23 | mantissa << 13;
}

static void scalar_f16_encode(const uint8_t *src, size_t n, uint8_t *dst)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h = f16_round(load_u32(src, i));

        memcpy(dst + 2 * i, &h, 2);
    }
}

static void scalar_f16_decode(const uint8_t *src, size_t n, uint8_t *dst)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        uint32_t u;

        memcpy(&h, src + 2 * i, 2);
        u = f16_widen(h);
        memcpy(dst + 4 * i, &u, 4);
    }
}

static void scalar_add(const uint8_t *a, const uint8_t *b, size_t n, uint8_t *dst)
{
    for (size_t i = 0; i < n; i++) {
        float sum = load_f32(a, i) + load_f32(b, i);

        memcpy(dst + 4 * i, &sum, 4);
    }
}

static void scalar_divide(uint8_t *x, size_t n, float by)
{
    for (size_t i = 0; i < n; i++) {
        float part = load_f32(x, i) / by;

        memcpy(x + 4 * i, &part, 4);
    }
}

const struct hdt_kernels hdt_kernels_scalar = {
    .name = "scalar",
    .bf16_encode = scalar_bf16_encode,
    .bf16_encode_guard = scalar_bf16_encode_guard,
    .bf16_decode = scalar_bf16_decode,
    .abs_max = scalar_abs_max,
    .int8_encode = scalar_int8_encode,
    .int8_decode = scalar_int8_decode,
    .f16_encode = scalar_f16_encode,
    .f16_decode = scalar_f16_decode,
    .add = scalar_add,
    .divide = scalar_divide,
};

/* Slowest first; which of them run here is asked of the processor. */
static const struct hdt_kernels *const tables[] = {
    &hdt_kernels_scalar,
#ifdef HDT_KERNELS_AVX2
    &hdt_kernels_avx2,
#endif
};

#ifdef HDT_KERNELS_AVX2
/* Not every compiler that has __builtin_cpu_supports knows F16C by name. */
static bool cpu_has_f16c(void)
{
    unsigned a, b, c = 0, d;

    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}
#endif

const struct hdt_kernels *const *hdt_kernels_all(size_t *n)
{
    *n = 1;
#ifdef HDT_KERNELS_AVX2
    if (__builtin_cpu_supports("avx2") && cpu_has_f16c()) {
        *n = 2;
    }
#endif
    return tables;
}

const struct hdt_kernels *hdt_kernels_best(void)
{
    size_t n;
    const struct hdt_kernels *const *all = hdt_kernels_all(&n);

    return all[n - 1];
}

float hdt_kernels_sum_lanes(const float l[HDT_KERNEL_LANES])
{
    return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

double hdt_kernels_sum_lanes_f64(const double l[HDT_KERNEL_LANES])
{
    return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}
