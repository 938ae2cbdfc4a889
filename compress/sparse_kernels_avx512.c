/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AVX-512 twins of the sparse kernels, bit for bit. The definition adds in eight lanes, so that
 * sixteen values are two turns of the same lanes: sums of squares run in eight doubles, which is a
 * whole register here; the float sum of `dot` gains nothing and stays with AVX2.
 */
#include "config.h"

#include "compress/sparse_kernels.h"

#ifdef HDT_SPARSE_KERNELS_X86

# include <float.h>
# include <immintrin.h>
# include <string.h>

# define AVX512 __attribute__((target("avx512f,avx512dq,popcnt")))
# define LANES  ((size_t)HDT_KERNEL_LANES)

AVX512 static inline __m512i magnitudes16(__m512 x)
{
    return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}

struct absorb_lanes {
    __m512d sq;
    __m512i max; /* lanes 0-7 of even groups of eight, 8-15 of odd ones */
};

AVX512 static inline __m512 absorb16(__m512 r, __m512 x, struct absorb_lanes *l)
{
    const __m512 limit = _mm512_set1_ps(FLT_MAX), low = _mm512_set1_ps(-FLT_MAX);
    const __m512 sum = _mm512_max_ps(_mm512_min_ps(_mm512_add_ps(r, x), limit), low);
    const __m512d a = _mm512_cvtps_pd(_mm512_castps512_ps256(sum));
    const __m512d b = _mm512_cvtps_pd(_mm512_extractf32x8_ps(sum, 1));

    l->sq = _mm512_add_pd(l->sq, _mm512_mul_pd(a, a));
    l->sq = _mm512_add_pd(l->sq, _mm512_mul_pd(b, b));
    l->max = _mm512_max_epi32(l->max, magnitudes16(sum));
    return sum;
}

AVX512 static void avx512_absorb(float *r, const uint8_t *x, size_t n, size_t stride,
                                 uint32_t *maxima, double sq[HDT_KERNEL_LANES])
{
    struct absorb_lanes l = {_mm512_loadu_pd(sq), _mm512_setzero_si512()};
    const size_t span = LANES * stride;
    size_t whole = stride >= 2 ? n / span * span : 0;

    for (size_t i = 0; i < whole; i += 16) {
        const __m512 v = _mm512_loadu_ps(x + 4 * i);

        _mm512_storeu_ps(r + i, absorb16(_mm512_loadu_ps(r + i), v, &l));
        if ((i + 16) % span == 0) {
            __m256i odd = _mm512_extracti32x8_epi32(l.max, 1);
            __m256i max = _mm256_max_epi32(_mm512_castsi512_si256(l.max), odd);

            _mm256_storeu_si256((__m256i *)(void *)(maxima + i / span * LANES), max);
            l.max = _mm512_setzero_si512();
        }
    }
    _mm512_storeu_pd(sq, l.sq);
    if (whole < n) {
        hdt_sparse_kernels_avx2.absorb(r + whole, x + 4 * whole, n - whole, stride,
                                       maxima + whole / span * LANES, sq);
    }
}

AVX512 static size_t avx512_count(const uint32_t *magnitudes, size_t n, uint32_t least)
{
    const __m512i limit = _mm512_set1_epi32((int)least);
    size_t count = 0, i = 0;

    for (; i + 16 <= n; i += 16) {
        __mmask16 mask = _mm512_cmpge_epu32_mask(_mm512_loadu_si512(magnitudes + i), limit);

        count += (size_t)__builtin_popcount(mask);
    }
    return count + hdt_sparse_kernels_scalar.count(magnitudes + i, n - i, least);
}

AVX512 static size_t avx512_collect(const float *r, size_t n, uint32_t least, uint16_t *positions)
{
    const __m512i limit = _mm512_set1_epi32((int)least), step = _mm512_set1_epi32(16);
    __m512i at = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    size_t count = 0, i = 0, rest;

    for (; i + 16 <= n; i += 16) {
        __mmask16 mask = _mm512_cmpge_epu32_mask(magnitudes16(_mm512_loadu_ps(r + i)), limit);
        __m256i chosen = _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(mask, at));

        _mm256_storeu_si256((__m256i *)(void *)(positions + count), chosen);
        count += (size_t)__builtin_popcount(mask);
        at = _mm512_add_epi32(at, step);
    }
    rest = hdt_sparse_kernels_avx2.collect(r + i, n - i, least, positions + count);
    for (size_t k = 0; k < rest; k++) {
        positions[count + k] = (uint16_t)(positions[count + k] + i);
    }
    return count + rest;
}

AVX512 static float avx512_dot(const float *a, const float *b, size_t n)
{
    return hdt_sparse_kernels_avx2.dot(a, b, n);
}

AVX512 static void avx512_axpy(float *y, const float *x, float a, size_t n)
{
    const __m512 a16 = _mm512_set1_ps(a);
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        __m512 product = _mm512_mul_ps(a16, _mm512_loadu_ps(x + i));

        _mm512_storeu_ps(y + i, _mm512_add_ps(_mm512_loadu_ps(y + i), product));
    }
    hdt_sparse_kernels_avx2.axpy(y + i, x + i, a, n - i);
}

const struct hdt_sparse_kernels hdt_sparse_kernels_avx512 = {
    .name = "avx512",
    .absorb = avx512_absorb,
    .count = avx512_count,
    .collect = avx512_collect,
    .dot = avx512_dot,
    .axpy = avx512_axpy,
};

#endif /* HDT_SPARSE_KERNELS_X86 */
