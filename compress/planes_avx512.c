/* SPDX-License-Identifier: Apache-2.0 */
/* AVX-512 twins of the scalar planes: whole groups of 64 elements, the rest by the AVX2 table. */
#include "config.h"

#include "compress/planes.h"

#ifdef HDT_PLANES_X86

# include <immintrin.h>

# define AVX512 __attribute__((target("avx512f,avx512bw")))

AVX512 static inline __m512i load(const uint8_t *p)
{
    return _mm512_loadu_si512((const void *)p);
}

AVX512 static inline void store(uint8_t *p, __m512i v)
{
    _mm512_storeu_si512((void *)p, v);
}

AVX512 static inline __m512i rotl16(__m512i v)
{
    return _mm512_or_si512(_mm512_slli_epi16(v, 1), _mm512_srli_epi16(v, 15));
}

AVX512 static inline __m512i rotr16(__m512i v)
{
    return _mm512_or_si512(_mm512_srli_epi16(v, 1), _mm512_slli_epi16(v, 15));
}

AVX512 static void avx512_split2(const uint8_t *src, size_t n, bool rotate, uint8_t *const planes[])
{
    const __m512i low = _mm512_set1_epi16(0xff);
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    uint8_t *rest[2];
    size_t i = 0;

    for (; i + 64 <= n; i += 64) {
        __m512i a = load(src + 2 * i), b = load(src + 2 * i + 64);
        __m512i lo, hi;

        if (rotate) {
            a = rotl16(a);
            b = rotl16(b);
        }
        lo = _mm512_packus_epi16(_mm512_and_si512(a, low), _mm512_and_si512(b, low));
        hi = _mm512_packus_epi16(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8));
        store(planes[0] + i, _mm512_permutexvar_epi64(order, lo));
        store(planes[1] + i, _mm512_permutexvar_epi64(order, hi));
    }
    rest[0] = planes[0] + i;
    rest[1] = planes[1] + i;
    hdt_planes_avx2.split2(src + 2 * i, n - i, rotate, rest);
}

AVX512 static void avx512_join2(const uint8_t *const planes[], size_t n, bool rotate, uint8_t *dst)
{
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    const uint8_t *rest[2];
    size_t i = 0;

    for (; i + 64 <= n; i += 64) {
        __m512i lo = _mm512_permutexvar_epi64(order, load(planes[0] + i));
        __m512i hi = _mm512_permutexvar_epi64(order, load(planes[1] + i));
        __m512i a = _mm512_unpacklo_epi8(lo, hi), b = _mm512_unpackhi_epi8(lo, hi);

        if (rotate) {
            a = rotr16(a);
            b = rotr16(b);
        }
        store(dst + 2 * i, a);
        store(dst + 2 * i + 64, b);
    }
    rest[0] = planes[0] + i;
    rest[1] = planes[1] + i;
    hdt_planes_avx2.join2(rest, n - i, rotate, dst + 2 * i);
}

/* Within each quarter: 4 x 4 bytes transposed; its own inverse. */
AVX512 static inline __m512i transpose_bytes(__m512i v)
{
    const __m128i idx = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);

    return _mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(idx));
}

/* Within each quarter: v[0..3] as a 4 x 4 matrix of 32-bit words, transposed. */
AVX512 static inline void transpose_words(__m512i v[4])
{
    __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpackhi_epi32(v[0], v[1]);
    __m512i c = _mm512_unpacklo_epi32(v[2], v[3]), d = _mm512_unpackhi_epi32(v[2], v[3]);

    v[0] = _mm512_unpacklo_epi64(a, c);
    v[1] = _mm512_unpackhi_epi64(a, c);
    v[2] = _mm512_unpacklo_epi64(b, d);
    v[3] = _mm512_unpackhi_epi64(b, d);
}

/* Quarter j holds, word k, elements 16 k + 4 j and on: to bring them into order, or out of it, is
 * one more transposition. */
AVX512 static inline __m512i transpose_quarters(__m512i v)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);

    return _mm512_permutexvar_epi32(order, v);
}

AVX512 static void avx512_split4(const uint8_t *src, size_t n, bool rotate, uint8_t *const planes[])
{
    uint8_t *rest[4];
    size_t i = 0;

    for (; i + 64 <= n; i += 64) {
        __m512i v[4];

        for (int k = 0; k < 4; k++) {
            v[k] = load(src + 4 * i + 64 * k);
            v[k] = transpose_bytes(rotate ? _mm512_rol_epi32(v[k], 1) : v[k]);
        }
        transpose_words(v);
        for (int p = 0; p < 4; p++) {
            store(planes[p] + i, transpose_quarters(v[p]));
        }
    }
    for (int p = 0; p < 4; p++) {
        rest[p] = planes[p] + i;
    }
    hdt_planes_avx2.split4(src + 4 * i, n - i, rotate, rest);
}

AVX512 static void avx512_join4(const uint8_t *const planes[], size_t n, bool rotate, uint8_t *dst)
{
    const uint8_t *rest[4];
    size_t i = 0;

    for (; i + 64 <= n; i += 64) {
        __m512i v[4];

        for (int p = 0; p < 4; p++) {
            v[p] = transpose_quarters(load(planes[p] + i));
        }
        transpose_words(v);
        for (int k = 0; k < 4; k++) {
            v[k] = transpose_bytes(v[k]);
            store(dst + 4 * i + 64 * k, rotate ? _mm512_ror_epi32(v[k], 1) : v[k]);
        }
    }
    for (int p = 0; p < 4; p++) {
        rest[p] = planes[p] + i;
    }
    hdt_planes_avx2.join4(rest, n - i, rotate, dst + 4 * i);
}

const struct hdt_planes_kernels hdt_planes_avx512 = {
    .name = "avx512",
    .split2 = avx512_split2,
    .split4 = avx512_split4,
    .join2 = avx512_join2,
    .join4 = avx512_join4,
};

#endif /* HDT_PLANES_X86 */
