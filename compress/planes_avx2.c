/* SPDX-License-Identifier: Apache-2.0 */
/* AVX2 twins of the scalar planes: whole groups of 32 elements, the rest by the scalar table. */
#include "config.h"

#include "compress/planes.h"

#ifdef HDT_PLANES_X86

# include <immintrin.h>

# define AVX2 __attribute__((target("avx2")))

AVX2 static inline __m256i load(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

AVX2 static inline void store(uint8_t *p, __m256i v)
{
    _mm256_storeu_si256((__m256i *)(void *)p, v);
}

AVX2 static inline __m256i rotl16(__m256i v)
{
    return _mm256_or_si256(_mm256_slli_epi16(v, 1), _mm256_srli_epi16(v, 15));
}

AVX2 static inline __m256i rotr16(__m256i v)
{
    return _mm256_or_si256(_mm256_srli_epi16(v, 1), _mm256_slli_epi16(v, 15));
}

AVX2 static void avx2_split2(const uint8_t *src, size_t n, bool rotate, uint8_t *const planes[])
{
    const __m256i low = _mm256_set1_epi16(0xff);
    uint8_t *rest[2];
    size_t i = 0;

    for (; i + 32 <= n; i += 32) {
        __m256i a = load(src + 2 * i), b = load(src + 2 * i + 32);
        __m256i lo, hi;

        if (rotate) {
            a = rotl16(a);
            b = rotl16(b);
        }
        lo = _mm256_packus_epi16(_mm256_and_si256(a, low), _mm256_and_si256(b, low));
        hi = _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
        store(planes[0] + i, _mm256_permute4x64_epi64(lo, 0xd8));
        store(planes[1] + i, _mm256_permute4x64_epi64(hi, 0xd8));
    }
    rest[0] = planes[0] + i;
    rest[1] = planes[1] + i;
    hdt_planes_scalar.split2(src + 2 * i, n - i, rotate, rest);
}

AVX2 static void avx2_join2(const uint8_t *const planes[], size_t n, bool rotate, uint8_t *dst)
{
    const uint8_t *rest[2];
    size_t i = 0;

    for (; i + 32 <= n; i += 32) {
        __m256i lo = _mm256_permute4x64_epi64(load(planes[0] + i), 0xd8);
        __m256i hi = _mm256_permute4x64_epi64(load(planes[1] + i), 0xd8);
        __m256i a = _mm256_unpacklo_epi8(lo, hi), b = _mm256_unpackhi_epi8(lo, hi);

        if (rotate) {
            a = rotr16(a);
            b = rotr16(b);
        }
        store(dst + 2 * i, a);
        store(dst + 2 * i + 32, b);
    }
    rest[0] = planes[0] + i;
    rest[1] = planes[1] + i;
    hdt_planes_scalar.join2(rest, n - i, rotate, dst + 2 * i);
}

/* Within each half: 4 x 4 bytes transposed, so that four elements become four groups of four like
 * bytes; its own inverse. */
AVX2 static inline __m256i transpose_bytes(__m256i v)
{
    const __m256i idx = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0, 4,
                                         8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);

    return _mm256_shuffle_epi8(v, idx);
}

/* Within each half: v[0..3] as a 4 x 4 matrix of 32-bit words, transposed. */
AVX2 static inline void transpose_words(__m256i v[4])
{
    __m256i a = _mm256_unpacklo_epi32(v[0], v[1]), b = _mm256_unpackhi_epi32(v[0], v[1]);
    __m256i c = _mm256_unpacklo_epi32(v[2], v[3]), d = _mm256_unpackhi_epi32(v[2], v[3]);

    v[0] = _mm256_unpacklo_epi64(a, c);
    v[1] = _mm256_unpackhi_epi64(a, c);
    v[2] = _mm256_unpacklo_epi64(b, d);
    v[3] = _mm256_unpackhi_epi64(b, d);
}

AVX2 static void avx2_split4(const uint8_t *src, size_t n, bool rotate, uint8_t *const planes[])
{
    /* The low halves hold elements 0-3 of each group of 8, the high halves 4-7. */
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    uint8_t *rest[4];
    size_t i = 0;

    for (; i + 32 <= n; i += 32) {
        __m256i v[4];

        for (int k = 0; k < 4; k++) {
            v[k] = load(src + 4 * i + 32 * k);
            if (rotate) {
                v[k] = _mm256_or_si256(_mm256_slli_epi32(v[k], 1), _mm256_srli_epi32(v[k], 31));
            }
            v[k] = transpose_bytes(v[k]);
        }
        transpose_words(v);
        for (int p = 0; p < 4; p++) {
            store(planes[p] + i, _mm256_permutevar8x32_epi32(v[p], order));
        }
    }
    for (int p = 0; p < 4; p++) {
        rest[p] = planes[p] + i;
    }
    hdt_planes_scalar.split4(src + 4 * i, n - i, rotate, rest);
}

AVX2 static void avx2_join4(const uint8_t *const planes[], size_t n, bool rotate, uint8_t *dst)
{
    const __m256i order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    const uint8_t *rest[4];
    size_t i = 0;

    for (; i + 32 <= n; i += 32) {
        __m256i v[4];

        for (int p = 0; p < 4; p++) {
            v[p] = _mm256_permutevar8x32_epi32(load(planes[p] + i), order);
        }
        transpose_words(v);
        for (int k = 0; k < 4; k++) {
            v[k] = transpose_bytes(v[k]);
            if (rotate) {
                v[k] = _mm256_or_si256(_mm256_srli_epi32(v[k], 1), _mm256_slli_epi32(v[k], 31));
            }
            store(dst + 4 * i + 32 * k, v[k]);
        }
    }
    for (int p = 0; p < 4; p++) {
        rest[p] = planes[p] + i;
    }
    hdt_planes_scalar.join4(rest, n - i, rotate, dst + 4 * i);
}

const struct hdt_planes_kernels hdt_planes_avx2 = {
    .name = "avx2",
    .split2 = avx2_split2,
    .split4 = avx2_split4,
    .join2 = avx2_join2,
    .join4 = avx2_join4,
};

#endif /* HDT_PLANES_X86 */
