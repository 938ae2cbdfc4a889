/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AVX2 twins of the scalar kernels, bit for bit (tests/unit/test_codec_simd.c holds them to it):
 * the vector operations; the loops are in kernels_wide.inc and kernels_wide_quant.inc. F16C comes
 * with every processor that has AVX2, and is asked for all the same.
 */
#include "config.h"

#include "compress/kernels_avx2.h"
#include "compress/kernels_quant.h"

#ifdef HDT_KERNELS_AVX2

# include <immintrin.h>
# include <string.h>

# define VW   8
# define WIDE __attribute__((target("avx2,f16c")))
/* Arrays of vectors are registers only in loops that are unrolled, which -O2 would not do. */
# define WIDE_UNROLL _Pragma("GCC unroll 4")
# define OP          WIDE static inline __attribute__((always_inline))

typedef __m256 vf;
typedef __m256i vi;
typedef struct {
    __m256d quarter[4];
} vd16;

OP __m256i load256(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

OP void store256(uint8_t *p, __m256i v)
{
    _mm256_storeu_si256((__m256i *)(void *)p, v);
}

OP vf vf_load(const uint8_t *p)
{
    return _mm256_castsi256_ps(load256(p));
}

OP void vf_store(uint8_t *p, vf v)
{
    store256(p, _mm256_castps_si256(v));
}

# define vf_set(x)     _mm256_set1_ps(x)
# define vf_add(a, b)  _mm256_add_ps(a, b)
# define vf_sub(a, b)  _mm256_sub_ps(a, b)
# define vf_mul(a, b)  _mm256_mul_ps(a, b)
# define vf_div(a, b)  _mm256_div_ps(a, b)
# define vf_min(a, b)  _mm256_min_ps(a, b)
# define vf_max(a, b)  _mm256_max_ps(a, b)
# define vf_of_int(v)  _mm256_cvtepi32_ps(v)
# define vf_bits(v)    _mm256_castps_si256(v)
# define vi_float(v)   _mm256_castsi256_ps(v)
# define vi_set(x)     _mm256_set1_epi32((int)(x))
# define vi_iota()     _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)
# define vi_add(a, b)  _mm256_add_epi32(a, b)
# define vi_sub(a, b)  _mm256_sub_epi32(a, b)
# define vi_mul(a, b)  _mm256_mullo_epi32(a, b)
# define vi_and(a, b)  _mm256_and_si256(a, b)
# define vi_or(a, b)   _mm256_or_si256(a, b)
# define vi_xor(a, b)  _mm256_xor_si256(a, b)
# define vi_max(a, b)  _mm256_max_epi32(a, b)
# define vi_srl(v, n)  _mm256_srli_epi32(v, n)
# define vi_sll(v, n)  _mm256_slli_epi32(v, n)
# define vi_sllv(v, n) _mm256_sllv_epi32(v, n)
# define vf_swap1(v)   _mm256_permute_ps(v, 0xb1)
# define vf_swap2(v)   _mm256_permute_ps(v, 0x4e)
# define vf_swap4(v)   _mm256_permute2f128_ps(v, v, 0x01)

/* a > b ? x : y, signed */
OP vi vi_select_gt(vi a, vi b, vi x, vi y)
{
    return _mm256_blendv_epi8(y, x, _mm256_cmpgt_epi32(a, b));
}

OP uint32_t vi_max_across(vi v)
{
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));

    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

OP float vf_min_across(vf v)
{
    __m128 m = _mm_min_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

    m = _mm_min_ps(m, _mm_permute_ps(m, 0x4e));
    return _mm_cvtss_f32(_mm_min_ps(m, _mm_permute_ps(m, 0xb1)));
}

OP float vf_max_across(vf v)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

    m = _mm_max_ps(m, _mm_permute_ps(m, 0x4e));
    return _mm_cvtss_f32(_mm_max_ps(m, _mm_permute_ps(m, 0xb1)));
}

/* Store as fp16 and give back what was stored. */
OP vf vf_store_f16(uint8_t *dst, vf v)
{
    const __m128i h = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);

    _mm_storeu_si128((__m128i *)(void *)dst, h);
    return _mm256_cvtph_ps(h);
}

/* The low bytes of 32 integers. */
OP __m256i bytes_of(const vi v[4])
{
    const vi low = vi_set(0xff);
    const vi a = _mm256_packus_epi32(vi_and(v[0], low), vi_and(v[1], low));
    const vi b = _mm256_packus_epi32(vi_and(v[2], low), vi_and(v[3], low));

    return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, b),
                                       _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* The low bytes of 32 integers less `excess`, and where a float is negative, 128 more. */
OP __m256i signed_bytes_of(const vi v[4], __m256i excess, const vf t[4])
{
    const vi low = vi_set(0xff);
    const __m256i a = _mm256_packus_epi32(vi_and(v[0], low), vi_and(v[1], low));
    const __m256i b = _mm256_packus_epi32(vi_and(v[2], low), vi_and(v[3], low));
    const __m256i s = _mm256_packs_epi32(vf_bits(t[0]), vf_bits(t[1]));
    const __m256i r = _mm256_packs_epi32(vf_bits(t[2]), vf_bits(t[3]));
    const __m256i sign = _mm256_and_si256(_mm256_packs_epi16(s, r), _mm256_set1_epi8(-128));
    const __m256i code = _mm256_sub_epi8(_mm256_packus_epi16(a, b), excess);

    return _mm256_permutevar8x32_epi32(_mm256_or_si256(code, sign),
                                       _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* 32 integers below 65536 as 16 bits each. */
OP void store_words(uint8_t *dst, const vi v[4])
{
    store256(dst, _mm256_permute4x64_epi64(_mm256_packus_epi32(v[0], v[1]), 0xd8));
    store256(dst + 32, _mm256_permute4x64_epi64(_mm256_packus_epi32(v[2], v[3]), 0xd8));
}

OP void widen_i8(__m256i bytes, vi v[4])
{
    const __m128i lo = _mm256_castsi256_si128(bytes), hi = _mm256_extracti128_si256(bytes, 1);

    v[0] = _mm256_cvtepi8_epi32(lo);
    v[1] = _mm256_cvtepi8_epi32(_mm_srli_si128(lo, 8));
    v[2] = _mm256_cvtepi8_epi32(hi);
    v[3] = _mm256_cvtepi8_epi32(_mm_srli_si128(hi, 8));
}

OP void widen_u8(__m256i bytes, vi v[4])
{
    const __m128i lo = _mm256_castsi256_si128(bytes), hi = _mm256_extracti128_si256(bytes, 1);

    v[0] = _mm256_cvtepu8_epi32(lo);
    v[1] = _mm256_cvtepu8_epi32(_mm_srli_si128(lo, 8));
    v[2] = _mm256_cvtepu8_epi32(hi);
    v[3] = _mm256_cvtepu8_epi32(_mm_srli_si128(hi, 8));
}

/* 16 words */
OP void widen_u16(__m256i words, vi v[2])
{
    v[0] = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(words));
    v[1] = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(words, 1));
}

OP void widen_f16(__m256i words, vf v[2])
{
    v[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(words));
    v[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(words, 1));
}

OP vd16 vd16_zero(void)
{
    const __m256d zero = _mm256_setzero_pd();

    return (vd16){{zero, zero, zero, zero}};
}

/* sum + weight * lanes */
OP vd16 vd16_add_weighted(vd16 sum, const vf lanes[2], double weight)
{
    const __m256d w = _mm256_set1_pd(weight);

    WIDE_UNROLL
    for (int i = 0; i < 4; i++) {
        const __m128 part =
            i % 2 ? _mm256_extractf128_ps(lanes[i / 2], 1) : _mm256_castps256_ps128(lanes[i / 2]);

        sum.quarter[i] = _mm256_add_pd(sum.quarter[i], _mm256_mul_pd(_mm256_cvtps_pd(part), w));
    }
    return sum;
}

OP void vd16_store(double lanes[16], vd16 v)
{
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_pd(lanes + (size_t)4 * i, v.quarter[i]);
    }
}

# include "compress/kernels_wide.inc"
# include "compress/kernels_wide_quant.inc"

const struct hdt_kernels hdt_kernels_avx2 = {
    .name = "avx2",
    .bf16_encode = wide_bf16_encode,
    .bf16_decode = wide_bf16_decode,
    .abs_max = wide_abs_max,
    .cast_encode = wide_cast_encode,
    .cast_decode = wide_cast_decode,
    .quant_encode = wide_quant_encode,
    .quant_decode = wide_quant_decode,
    .hadamard = wide_hadamard,
    .f16_encode = wide_f16_encode,
    .f16_decode = wide_f16_decode,
    .add = wide_add,
    .divide = wide_divide,
};

#endif /* HDT_KERNELS_AVX2 */
