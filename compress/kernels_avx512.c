/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AVX-512 twins of the scalar kernels, bit for bit: the vector operations; the loops are in
 * kernels_wide.inc and kernels_wide_quant.inc. They ask for F, BW, VL and DQ, which all server
 * processors with AVX-512 have had since 2017.
 */
#include "config.h"

#include "compress/kernels_avx512.h"
#include "compress/kernels_quant.h"

#ifdef HDT_KERNELS_AVX512

# include <immintrin.h>
# include <string.h>

# define VW   16
# define WIDE __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c")))
/* Arrays of vectors are registers only in loops that are unrolled, which -O2 would not do. */
# define WIDE_UNROLL _Pragma("GCC unroll 4")
# define OP          WIDE static inline __attribute__((always_inline))

typedef __m512 vf;
typedef __m512i vi;
typedef struct {
    __m512d half[2];
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
    return _mm512_loadu_ps((const void *)p);
}

OP void vf_store(uint8_t *p, vf v)
{
    _mm512_storeu_ps((void *)p, v);
}

# define vf_set(x)     _mm512_set1_ps(x)
# define vf_add(a, b)  _mm512_add_ps(a, b)
# define vf_sub(a, b)  _mm512_sub_ps(a, b)
# define vf_mul(a, b)  _mm512_mul_ps(a, b)
# define vf_div(a, b)  _mm512_div_ps(a, b)
# define vf_min(a, b)  _mm512_min_ps(a, b)
# define vf_max(a, b)  _mm512_max_ps(a, b)
# define vf_of_int(v)  _mm512_cvtepi32_ps(v)
# define vf_bits(v)    _mm512_castps_si512(v)
# define vi_float(v)   _mm512_castsi512_ps(v)
# define vi_set(x)     _mm512_set1_epi32((int)(x))
# define vi_iota()     _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
# define vi_add(a, b)  _mm512_add_epi32(a, b)
# define vi_sub(a, b)  _mm512_sub_epi32(a, b)
# define vi_mul(a, b)  _mm512_mullo_epi32(a, b)
# define vi_and(a, b)  _mm512_and_si512(a, b)
# define vi_or(a, b)   _mm512_or_si512(a, b)
# define vi_xor(a, b)  _mm512_xor_si512(a, b)
# define vi_max(a, b)  _mm512_max_epi32(a, b)
# define vi_srl(v, n)  _mm512_srli_epi32(v, (unsigned)(n))
# define vi_sll(v, n)  _mm512_slli_epi32(v, (unsigned)(n))
# define vi_sllv(v, n) _mm512_sllv_epi32(v, n)
# define vf_swap1(v)   _mm512_permute_ps(v, 0xb1)
# define vf_swap2(v)   _mm512_permute_ps(v, 0x4e)
# define vf_swap4(v)   _mm512_shuffle_f32x4(v, v, 0xb1)
# define vf_swap8(v)   _mm512_shuffle_f32x4(v, v, 0x4e)

/* a > b ? x : y, signed */
OP vi vi_select_gt(vi a, vi b, vi x, vi y)
{
    return _mm512_mask_blend_epi32(_mm512_cmpgt_epi32_mask(a, b), y, x);
}

OP uint32_t vi_max_across(vi v)
{
    return (uint32_t)_mm512_reduce_max_epi32(v);
}

OP float vf_min_across(vf v)
{
    return _mm512_reduce_min_ps(v);
}

OP float vf_max_across(vf v)
{
    return _mm512_reduce_max_ps(v);
}

/* Store as fp16 and give back what was stored. */
OP vf vf_store_f16(uint8_t *dst, vf v)
{
    const __m256i h = _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);

    store256(dst, h);
    return _mm512_cvtph_ps(h);
}

/* The low bytes of 32 integers. */
OP __m256i bytes_of(const vi v[2])
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtepi32_epi8(v[0])),
                                   _mm512_cvtepi32_epi8(v[1]), 1);
}

/* The low bytes of 32 integers less `excess`, and where a float is negative, 128 more. */
OP __m256i signed_bytes_of(const vi v[2], __m256i excess, const vf t[2])
{
    const __mmask32 negative =
        _mm512_kunpackw(_mm512_movepi32_mask(vf_bits(t[1])), _mm512_movepi32_mask(vf_bits(t[0])));
    const __m256i code = _mm256_sub_epi8(bytes_of(v), excess);

    return _mm256_mask_add_epi8(code, negative, code, _mm256_set1_epi8(-128));
}

/* 32 integers below 65536 as 16 bits each. */
OP void store_words(uint8_t *dst, const vi v[2])
{
    store256(dst, _mm512_cvtepi32_epi16(v[0]));
    store256(dst + 32, _mm512_cvtepi32_epi16(v[1]));
}

OP void widen_i8(__m256i bytes, vi v[2])
{
    v[0] = _mm512_cvtepi8_epi32(_mm256_castsi256_si128(bytes));
    v[1] = _mm512_cvtepi8_epi32(_mm256_extracti128_si256(bytes, 1));
}

OP void widen_u8(__m256i bytes, vi v[2])
{
    v[0] = _mm512_cvtepu8_epi32(_mm256_castsi256_si128(bytes));
    v[1] = _mm512_cvtepu8_epi32(_mm256_extracti128_si256(bytes, 1));
}

/* 16 words */
OP void widen_u16(__m256i words, vi v[1])
{
    v[0] = _mm512_cvtepu16_epi32(words);
}

OP void widen_f16(__m256i words, vf v[1])
{
    v[0] = _mm512_cvtph_ps(words);
}

OP vd16 vd16_zero(void)
{
    return (vd16){{_mm512_setzero_pd(), _mm512_setzero_pd()}};
}

/* sum + weight * lanes */
OP vd16 vd16_add_weighted(vd16 sum, const vf lanes[1], double weight)
{
    const __m512d w = _mm512_set1_pd(weight);
    const __m512d lo = _mm512_cvtps_pd(_mm512_castps512_ps256(lanes[0]));
    const __m512d hi = _mm512_cvtps_pd(_mm512_extractf32x8_ps(lanes[0], 1));

    sum.half[0] = _mm512_add_pd(sum.half[0], _mm512_mul_pd(lo, w));
    sum.half[1] = _mm512_add_pd(sum.half[1], _mm512_mul_pd(hi, w));
    return sum;
}

OP void vd16_store(double lanes[16], vd16 v)
{
    _mm512_storeu_pd(lanes, v.half[0]);
    _mm512_storeu_pd(lanes + 8, v.half[1]);
}

# include "compress/kernels_wide.inc"
# include "compress/kernels_wide_quant.inc"

const struct hdt_kernels hdt_kernels_avx512 = {
    .name = "avx512",
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

#endif /* HDT_KERNELS_AVX512 */
