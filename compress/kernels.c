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
#include "compress/kernels_avx512.h"
#include "compress/kernels_quant.h"

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

static void scalar_bf16_encode(const uint8_t *src, size_t n, uint8_t *dst)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h = hdt_bf16_round(load_u32(src, i));

        memcpy(dst + 2 * i, &h, 2);
    }
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

static void scalar_f16_encode(const uint8_t *src, size_t n, uint8_t *dst)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h = hdt_f16_round(load_u32(src, i));

        memcpy(dst + 2 * i, &h, 2);
    }
}

static void scalar_f16_decode(const uint8_t *src, size_t n, uint8_t *dst)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        uint32_t u;

        memcpy(&h, src + 2 * i, 2);
        u = hdt_f16_widen(h);
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
    .bf16_decode = scalar_bf16_decode,
    .abs_max = scalar_abs_max,
    .cast_encode = hdt_scalar_cast_encode,
    .cast_decode = hdt_scalar_cast_decode,
    .quant_encode = hdt_scalar_quant_encode,
    .quant_decode = hdt_scalar_quant_decode,
    .hadamard = hdt_scalar_hadamard,
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
    &hdt_kernels_avx512,
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
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
            *n = 3;
        }
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
