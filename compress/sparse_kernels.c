/* SPDX-License-Identifier: Apache-2.0 */
/* Scalar kernels of the codecs with feedback: the definition. */
#include "config.h"

#include "compress/sparse_kernels.h"

#include <float.h>
#include <string.h>

static inline uint32_t magnitude(float x)
{
    uint32_t u;

    memcpy(&u, &x, 4);
    return u & 0x7fffffffu;
}

static void scalar_absorb(float *r, const uint8_t *x, size_t n, size_t stride, uint32_t *maxima,
                          double sq[HDT_KERNEL_LANES])
{
    const size_t span = HDT_KERNEL_LANES * stride;

    for (size_t i = 0; i < n; i++) {
        uint32_t *max = &maxima[i / span * HDT_KERNEL_LANES + i % HDT_KERNEL_LANES];
        uint32_t m;
        float sum;

        if (i % span == 0) {
            memset(max, 0, HDT_KERNEL_LANES * sizeof(*max));
        }
        memcpy(&sum, x + 4 * i, 4);
        sum = r[i] + sum;
        sum = sum > FLT_MAX ? FLT_MAX : sum;
        sum = sum < -FLT_MAX ? -FLT_MAX : sum;
        r[i] = sum;
        sq[i % HDT_KERNEL_LANES] += (double)sum * (double)sum;
        m = magnitude(sum);
        *max = m > *max ? m : *max;
    }
}

static size_t scalar_count(const uint32_t *magnitudes, size_t n, uint32_t least)
{
    size_t count = 0;

    for (size_t i = 0; i < n; i++) {
        count += magnitudes[i] >= least;
    }
    return count;
}

static size_t scalar_collect(const float *r, size_t n, uint32_t least, uint16_t *positions)
{
    size_t count = 0;

    for (size_t i = 0; i < n; i++) {
        positions[count] = (uint16_t)i;
        count += magnitude(r[i]) >= least;
    }
    return count;
}

static float scalar_dot(const float *a, const float *b, size_t n)
{
    float lanes[HDT_KERNEL_LANES] = {0};

    for (size_t i = 0; i < n; i++) {
        lanes[i % HDT_KERNEL_LANES] += a[i] * b[i];
    }
    return hdt_kernels_sum_lanes(lanes);
}

static void scalar_axpy(float *y, const float *x, float a, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y[i] += a * x[i];
    }
}

const struct hdt_sparse_kernels hdt_sparse_kernels_scalar = {
    .name = "scalar",
    .absorb = scalar_absorb,
    .count = scalar_count,
    .collect = scalar_collect,
    .dot = scalar_dot,
    .axpy = scalar_axpy,
};

/* Slowest first; which of them run here is asked of the processor. */
static const struct hdt_sparse_kernels *const tables[] = {
    &hdt_sparse_kernels_scalar,
#ifdef HDT_SPARSE_KERNELS_X86
    &hdt_sparse_kernels_avx2,
    &hdt_sparse_kernels_avx512,
#endif
};

const struct hdt_sparse_kernels *const *hdt_sparse_kernels_all(size_t *n)
{
    *n = 1;
#ifdef HDT_SPARSE_KERNELS_X86
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") &&
        __builtin_cpu_supports("popcnt")) {
        *n = 2;
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) {
            *n = 3;
        }
    }
#endif
    return tables;
}

const struct hdt_sparse_kernels *hdt_sparse_kernels_best(void)
{
    size_t n;
    const struct hdt_sparse_kernels *const *all = hdt_sparse_kernels_all(&n);

    return all[n - 1];
}
