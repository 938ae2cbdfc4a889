/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AVX2 twins of the scalar kernels, bit for bit (tests/unit/test_codec_simd.c holds them to it).
 *
 * Each function does whole groups of its width; what is left over goes to the scalar table, except
 * where lanes of a sum are involved: there the rest is copied into a group filled up with zeros,
 * which add nothing. "fma" is left out of the target on purpose: a fused product would change bits.
 */
#include "config.h"

#include "compress/kernels_avx2.h"

#ifdef HDT_KERNELS_AVX2

# include <immintrin.h>
# include <string.h>

# define AVX2 __attribute__((target("avx2")))
# define F16C                                                                                      \
  __attribute__((target("f16c"))) /* all that have AVX2 have it; asked for all the same */

AVX2 static inline __m256i load(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

AVX2 static inline void store(uint8_t *p, __m256i v)
{
    _mm256_storeu_si256((__m256i *)(void *)p, v);
}

AVX2 static inline __m256 load_f32(const uint8_t *p)
{
    return _mm256_castsi256_ps(load(p));
}

/* Eight floats as bits -> eight bf16, each in the low half of its 32 bits. */
AVX2 static inline __m256i bf16_round(__m256i u)
{
    const __m256i abs = _mm256_and_si256(u, _mm256_set1_epi32(0x7fffffff));
    const __m256i is_nan = _mm256_cmpgt_epi32(abs, _mm256_set1_epi32(0x7f800000));
    const __m256i high = _mm256_srli_epi32(u, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, bias), 16);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));

    return _mm256_blendv_epi8(rounded, quiet, is_nan);
}

AVX2 static void avx2_bf16_encode(const uint8_t *src, size_t n, uint8_t *dst)
{
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        __m256i a = bf16_round(load(src + 4 * i));
        __m256i b = bf16_round(load(src + 4 * i + 32));

        store(dst + 2 * i, _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8));
    }
    hdt_kernels_scalar.bf16_encode(src + 4 * i, n - i, dst + 2 * i);
}

struct guard_lanes {
    __m256d err[2], ref[2]; /* lanes 0-3 and 4-7 */
    __m256i max;
    uint64_t n_nonfinite;
};

/* sum[0], sum[1] += the squares of eight floats, in double */
AVX2 static inline void add_squares(__m256d sum[2], __m256 v)
{
    __m256d lo = _mm256_cvtps_pd(_mm256_castps256_ps128(v));
    __m256d hi = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));

    sum[0] = _mm256_add_pd(sum[0], _mm256_mul_pd(lo, lo));
    sum[1] = _mm256_add_pd(sum[1], _mm256_mul_pd(hi, hi));
}

AVX2 static inline __m256i bf16_guard_group(__m256i u, struct guard_lanes *g)
{
    const __m256i exp_mask = _mm256_set1_epi32(0x7f800000);
    const __m256i abs = _mm256_and_si256(u, _mm256_set1_epi32(0x7fffffff));
    const __m256i finite_in = _mm256_cmpgt_epi32(exp_mask, abs);
    const __m256i h = bf16_round(u);
    const __m256i back = _mm256_slli_epi32(h, 16);
    const __m256i inf_out = _mm256_cmpeq_epi32(_mm256_and_si256(back, exp_mask), exp_mask);
    const __m256 x = _mm256_castsi256_ps(u);
    const __m256 e = _mm256_sub_ps(x, _mm256_castsi256_ps(back));

    g->max = _mm256_max_epi32(g->max, _mm256_and_si256(abs, finite_in));
    g->n_nonfinite +=
        (unsigned)__builtin_popcount((unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(inf_out)));
    add_squares(g->err, _mm256_andnot_ps(_mm256_castsi256_ps(inf_out), e));
    add_squares(g->ref, _mm256_andnot_ps(_mm256_castsi256_ps(inf_out), x));
    return h;
}

AVX2 static uint32_t max_lane(__m256i v)
{
    uint32_t lanes[8], max = 0;

    store((uint8_t *)lanes, v);
    for (int i = 0; i < 8; i++) {
        max = lanes[i] > max ? lanes[i] : max;
    }
    return max;
}

AVX2 static void guard_finish(const struct guard_lanes *g, struct hdt_codec_guard *guard)
{
    double lanes[HDT_KERNEL_LANES];
    uint32_t max = max_lane(g->max);
    float max_abs;

    _mm256_storeu_pd(lanes, g->err[0]);
    _mm256_storeu_pd(lanes + 4, g->err[1]);
    guard->err_sq += hdt_kernels_sum_lanes_f64(lanes);
    _mm256_storeu_pd(lanes, g->ref[0]);
    _mm256_storeu_pd(lanes + 4, g->ref[1]);
    guard->ref_sq += hdt_kernels_sum_lanes_f64(lanes);
    guard->n_nonfinite += g->n_nonfinite;
    memcpy(&max_abs, &max, 4);
    guard->max_abs = guard->max_abs < max_abs ? max_abs : guard->max_abs;
}

AVX2 static void avx2_bf16_encode_guard(const uint8_t *src, size_t n, uint8_t *dst,
                                        struct hdt_codec_guard *guard)
{
    struct guard_lanes g;
    uint8_t rest_src[64] = {0}, rest_dst[32];
    size_t i = 0;

    memset(&g, 0, sizeof(g));
    for (; i + 16 <= n; i += 16) {
        __m256i a = bf16_guard_group(load(src + 4 * i), &g);
        __m256i b = bf16_guard_group(load(src + 4 * i + 32), &g);

        store(dst + 2 * i, _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8));
    }
    if (i < n) {
        memcpy(rest_src, src + 4 * i, 4 * (n - i));
        __m256i a = bf16_guard_group(load(rest_src), &g);
        __m256i b = bf16_guard_group(load(rest_src + 32), &g);

        store(rest_dst, _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8));
        memcpy(dst + 2 * i, rest_dst, 2 * (n - i));
    }
    guard_finish(&g, guard);
    guard->n += n;
}

AVX2 static void avx2_bf16_decode(const uint8_t *src, size_t n, uint8_t *dst)
{
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        __m256i v = load(src + 2 * i);
        __m256i a = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(v));
        __m256i b = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(v, 1));

        store(dst + 4 * i, _mm256_slli_epi32(a, 16));
        store(dst + 4 * i + 32, _mm256_slli_epi32(b, 16));
    }
    hdt_kernels_scalar.bf16_decode(src + 2 * i, n - i, dst + 4 * i);
}

AVX2 static uint32_t avx2_abs_max(const uint8_t *src, size_t n, uint64_t *n_nonfinite)
{
    const __m256i mask = _mm256_set1_epi32(0x7fffffff), inf = _mm256_set1_epi32(0x7f800000);
    __m256i max = _mm256_setzero_si256();
    uint32_t max_all, max_rest;
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m256i a = _mm256_and_si256(load(src + 4 * i), mask);

        max = _mm256_max_epi32(max, a);
    }
    max_all = max_lane(max);
    if (max_all >= 0x7f800000u) { /* rare: once more, leaving out what is not finite */
        max = _mm256_setzero_si256();
        for (size_t j = 0; j < i; j += 8) {
            __m256i a = _mm256_and_si256(load(src + 4 * j), mask);
            __m256i finite = _mm256_cmpgt_epi32(inf, a);

            max = _mm256_max_epi32(max, _mm256_and_si256(a, finite));
            *n_nonfinite += 8u - (unsigned)__builtin_popcount(
                                     (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(finite)));
        }
        max_all = max_lane(max);
    }
    max_rest = hdt_kernels_scalar.abs_max(src + 4 * i, n - i, n_nonfinite);
    return max_all > max_rest ? max_all : max_rest;
}

struct int8_lanes {
    __m256 err, ref;
};

/* Eight values -> eight codes of 32 bits. */
AVX2 static inline __m256i int8_group(__m256 x, __m256 inv, struct int8_lanes *l)
{
    const __m256 magic = _mm256_set1_ps(12582912.0f);
    const __m256 t = _mm256_mul_ps(x, inv);
    const __m256 q = _mm256_sub_ps(_mm256_add_ps(t, magic), magic);
    const __m256 e = _mm256_sub_ps(t, q);

    l->err = _mm256_add_ps(l->err, _mm256_mul_ps(e, e));
    l->ref = _mm256_add_ps(l->ref, _mm256_mul_ps(t, t));
    return _mm256_cvttps_epi32(q);
}

/* 32 values -> 32 codes */
AVX2 static inline void int8_group4(const uint8_t *src, __m256 inv, uint8_t *dst,
                                    struct int8_lanes *l)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i a = int8_group(load_f32(src), inv, l);
    __m256i b = int8_group(load_f32(src + 32), inv, l);
    __m256i c = int8_group(load_f32(src + 64), inv, l);
    __m256i d = int8_group(load_f32(src + 96), inv, l);
    __m256i v = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));

    store(dst, _mm256_permutevar8x32_epi32(v, order));
}

AVX2 static void avx2_int8_encode(const uint8_t *src, size_t n, float inv, uint8_t *dst,
                                  float sums[2])
{
    struct int8_lanes l = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    const __m256 inv8 = _mm256_set1_ps(inv);
    uint8_t rest_src[128], rest_dst[32];
    float lanes[HDT_KERNEL_LANES];
    size_t i = 0;

    for (; i + 32 <= n; i += 32) {
        int8_group4(src + 4 * i, inv8, dst + i, &l);
    }
    if (i < n) {
        memset(rest_src, 0, sizeof(rest_src));
        memcpy(rest_src, src + 4 * i, 4 * (n - i));
        int8_group4(rest_src, inv8, rest_dst, &l);
        memcpy(dst + i, rest_dst, n - i);
    }
    _mm256_storeu_ps(lanes, l.err);
    sums[0] = hdt_kernels_sum_lanes(lanes);
    _mm256_storeu_ps(lanes, l.ref);
    sums[1] = hdt_kernels_sum_lanes(lanes);
}

AVX2 static void avx2_int8_decode(const uint8_t *src, size_t n, float scale, uint8_t *dst)
{
    const __m256 s = _mm256_set1_ps(scale);
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m128i codes = _mm_loadl_epi64((const __m128i *)(const void *)(src + i));
        __m256 x = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)), s);

        store(dst + 4 * i, _mm256_castps_si256(x));
    }
    hdt_kernels_scalar.int8_decode(src + i, n - i, scale, dst + 4 * i);
}

AVX2 F16C static void avx2_f16_encode(const uint8_t *src, size_t n, uint8_t *dst)
{
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m128i h = _mm256_cvtps_ph(load_f32(src + 4 * i), _MM_FROUND_TO_NEAREST_INT);

        _mm_storeu_si128((__m128i *)(void *)(dst + 2 * i), h);
    }
    hdt_kernels_scalar.f16_encode(src + 4 * i, n - i, dst + 2 * i);
}

AVX2 F16C static void avx2_f16_decode(const uint8_t *src, size_t n, uint8_t *dst)
{
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m128i h = _mm_loadu_si128((const __m128i *)(const void *)(src + 2 * i));

        store(dst + 4 * i, _mm256_castps_si256(_mm256_cvtph_ps(h)));
    }
    hdt_kernels_scalar.f16_decode(src + 2 * i, n - i, dst + 4 * i);
}

AVX2 static void avx2_add(const uint8_t *a, const uint8_t *b, size_t n, uint8_t *dst)
{
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        __m256 lo = _mm256_add_ps(load_f32(a + 4 * i), load_f32(b + 4 * i));
        __m256 hi = _mm256_add_ps(load_f32(a + 4 * i + 32), load_f32(b + 4 * i + 32));

        store(dst + 4 * i, _mm256_castps_si256(lo));
        store(dst + 4 * i + 32, _mm256_castps_si256(hi));
    }
    hdt_kernels_scalar.add(a + 4 * i, b + 4 * i, n - i, dst + 4 * i);
}

AVX2 static void avx2_divide(uint8_t *x, size_t n, float by)
{
    const __m256 divisor = _mm256_set1_ps(by);
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m256 part = _mm256_div_ps(load_f32(x + 4 * i), divisor);

        store(x + 4 * i, _mm256_castps_si256(part));
    }
    hdt_kernels_scalar.divide(x + 4 * i, n - i, by);
}

const struct hdt_kernels hdt_kernels_avx2 = {
    .name = "avx2",
    .bf16_encode = avx2_bf16_encode,
    .bf16_encode_guard = avx2_bf16_encode_guard,
    .bf16_decode = avx2_bf16_decode,
    .abs_max = avx2_abs_max,
    .int8_encode = avx2_int8_encode,
    .int8_decode = avx2_int8_decode,
    .f16_encode = avx2_f16_encode,
    .f16_decode = avx2_f16_decode,
    .add = avx2_add,
    .divide = avx2_divide,
};

#endif /* HDT_KERNELS_AVX2 */
