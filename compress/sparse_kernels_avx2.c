/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AVX2 twins of the sparse kernels, bit for bit. "fma" is left out of the target on purpose: a
 * fused product would change bits.
 */
#include "config.h"

#include "compress/sparse_kernels.h"

#ifdef HDT_SPARSE_KERNELS_X86

# include <float.h>
# include <immintrin.h>
# include <string.h>

# define AVX2  __attribute__((target("avx2,bmi2,popcnt")))
# define LANES ((size_t)HDT_KERNEL_LANES)

AVX2 static inline __m256i magnitudes8(__m256 x)
{
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

struct absorb_lanes {
    __m256d lo, hi; /* sums of squares: lanes 0-3 and 4-7 */
    __m256i max;
};

/* Eight sums, kept within the finite floats. */
AVX2 static inline __m256 absorb8(__m256 r, __m256 x, struct absorb_lanes *l)
{
    const __m256 limit = _mm256_set1_ps(FLT_MAX), low = _mm256_set1_ps(-FLT_MAX);
    const __m256 sum = _mm256_max_ps(_mm256_min_ps(_mm256_add_ps(r, x), limit), low);
    const __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(sum));
    const __m256d b = _mm256_cvtps_pd(_mm256_extractf128_ps(sum, 1));

    l->lo = _mm256_add_pd(l->lo, _mm256_mul_pd(a, a));
    l->hi = _mm256_add_pd(l->hi, _mm256_mul_pd(b, b));
    l->max = _mm256_max_epi32(l->max, magnitudes8(sum));
    return sum;
}

AVX2 static void avx2_absorb(float *r, const uint8_t *x, size_t n, size_t stride, uint32_t *maxima,
                             double sq[HDT_KERNEL_LANES])
{
    struct absorb_lanes l = {_mm256_loadu_pd(sq), _mm256_loadu_pd(sq + 4), _mm256_setzero_si256()};
    const size_t span = LANES * stride;
    float rest_r[8] = {0}, rest_x[8] = {0};
    size_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        const __m256 v = _mm256_loadu_ps((const float *)(const void *)(x + 4 * i));

        _mm256_storeu_ps(r + i, absorb8(_mm256_loadu_ps(r + i), v, &l));
        if ((i + LANES) % span == 0) {
            _mm256_storeu_si256((__m256i *)(void *)(maxima + i / span * LANES), l.max);
            l.max = _mm256_setzero_si256();
        }
    }
    if (i < n) { /* filled up with zeros, which add nothing */
        memcpy(rest_r, r + i, 4 * (n - i));
        memcpy(rest_x, x + 4 * i, 4 * (n - i));
        _mm256_storeu_ps(rest_r, absorb8(_mm256_loadu_ps(rest_r), _mm256_loadu_ps(rest_x), &l));
        memcpy(r + i, rest_r, 4 * (n - i));
    }
    if (n % span != 0) {
        _mm256_storeu_si256((__m256i *)(void *)(maxima + n / span * LANES), l.max);
    }
    _mm256_storeu_pd(sq, l.lo);
    _mm256_storeu_pd(sq + 4, l.hi);
}

/* Signed comparison is enough: magnitudes have no highest bit. least - 1 is -1 for 0: all. */
AVX2 static size_t avx2_count(const uint32_t *magnitudes, size_t n, uint32_t least)
{
    const __m256i below = _mm256_set1_epi32((int)least - 1);
    __m256i sum = _mm256_setzero_si256();
    uint32_t lanes[8], count = 0;
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)(magnitudes + i));

        sum = _mm256_sub_epi32(sum, _mm256_cmpgt_epi32(v, below));
    }
    _mm256_storeu_si256((__m256i *)(void *)lanes, sum);
    for (int k = 0; k < 8; k++) {
        count += lanes[k];
    }
    return count + hdt_sparse_kernels_scalar.count(magnitudes + i, n - i, least);
}

/* Which of eight values count cannot be foretold: so no branch, but the numbers 0 to 7 of those
 * that do, moved together by pext, are written each time and the next write overlaps what is too
 * much. */
AVX2 static size_t avx2_collect(const float *r, size_t n, uint32_t least, uint16_t *positions)
{
    const __m256i below = _mm256_set1_epi32((int)least - 1);
    size_t count = 0, i = 0, rest;

    for (; i + 8 <= n; i += 8) {
        __m256i above = _mm256_cmpgt_epi32(magnitudes8(_mm256_loadu_ps(r + i)), below);
        unsigned mask = (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(above));
        uint64_t bytes = _pdep_u64(mask, 0x0101010101010101u) * 0xff;
        uint64_t chosen = _pext_u64(0x0706050403020100u, bytes);
        __m128i at = _mm_cvtepu8_epi16(_mm_cvtsi64_si128((long long)chosen));

        at = _mm_add_epi16(at, _mm_set1_epi16((short)i));
        _mm_storeu_si128((__m128i *)(void *)(positions + count), at);
        count += (size_t)__builtin_popcount(mask);
    }
    rest = hdt_sparse_kernels_scalar.collect(r + i, n - i, least, positions + count);
    for (size_t k = 0; k < rest; k++) {
        positions[count + k] = (uint16_t)(positions[count + k] + i);
    }
    return count + rest;
}

AVX2 static float avx2_dot(const float *a, const float *b, size_t n)
{
    __m256 sum = _mm256_setzero_ps();
    float lanes[HDT_KERNEL_LANES];
    size_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        sum = _mm256_add_ps(sum, _mm256_mul_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i)));
    }
    _mm256_storeu_ps(lanes, sum);
    for (; i < n; i++) {
        lanes[i % LANES] += a[i] * b[i];
    }
    return hdt_kernels_sum_lanes(lanes);
}

AVX2 static void avx2_axpy(float *y, const float *x, float a, size_t n)
{
    const __m256 a8 = _mm256_set1_ps(a);
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m256 product = _mm256_mul_ps(a8, _mm256_loadu_ps(x + i));

        _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_loadu_ps(y + i), product));
    }
    hdt_sparse_kernels_scalar.axpy(y + i, x + i, a, n - i);
}

const struct hdt_sparse_kernels hdt_sparse_kernels_avx2 = {
    .name = "avx2",
    .absorb = avx2_absorb,
    .count = avx2_count,
    .collect = avx2_collect,
    .dot = avx2_dot,
    .axpy = avx2_axpy,
};

#endif /* HDT_SPARSE_KERNELS_X86 */
