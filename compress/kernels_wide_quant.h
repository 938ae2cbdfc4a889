/* SPDX-License-Identifier: Apache-2.0 */
/* Block quantizers at any width; the second half of kernels_wide.h, included after it. */

/* The most blocks in a piece. */
#define WIDE_PIECE_BLOCKS 32

/* A block's numbers in all lanes. */
struct wide_block {
    vf inv, zero, ref_factor, lo, hi;
};

WIDE_INLINE bool wide_is_minmax(enum hdt_quant_kind kind)
{
    return kind == HDT_QUANT_I8_MINMAX || kind == HDT_QUANT_I4_MINMAX;
}

WIDE_INLINE bool wide_is_int4(enum hdt_quant_kind kind)
{
    return kind == HDT_QUANT_I4 || kind == HDT_QUANT_I4_MINMAX;
}

WIDE_INLINE void wide_extent_group(bool minmax, const uint8_t *src, vi *max_bits, vf *min, vf *max)
{
    WIDE_UNROLL
    for (int j = 0; j < VG; j++) {
        const vf x = vf_load(src + (size_t)j * VW * 4);

        *max_bits = vi_max(*max_bits, wide_abs_bits(vf_bits(x)));
        if (minmax) {
            *min = vf_min(*min, x);
            *max = vf_max(*max, x);
        }
    }
}

WIDE_INLINE void wide_extent(enum hdt_quant_kind kind, const uint8_t *src, size_t n,
                             struct hdt_quant_extent *e)
{
    const bool minmax = wide_is_minmax(kind);
    vi max_bits = vi_set(0);
    float first;
    vf min, max;
    size_t i = 0;

    memcpy(&first, src, 4);
    min = max = vf_set(first);
    for (; i + 32 <= n; i += 32) {
        wide_extent_group(minmax, src + 4 * i, &max_bits, &min, &max);
    }
    if (i < n) {
        uint8_t rest[128];

        for (int k = 0; k < 32; k++) {
            memcpy(rest + 4 * k, &first, 4);
        }
        memcpy(rest, src + 4 * i, 4 * (n - i));
        wide_extent_group(minmax, rest, &max_bits, &min, &max);
    }
    e->n_refused = 0;
    e->max_bits = vi_max_across(max_bits);
    e->min = e->max = 0.0f;
    if (minmax) {
        e->min = vf_min_across(min);
        e->max = vf_max_across(max);
    }
    if (e->max_bits >= (minmax ? HDT_QUANT_MINMAX_LIMIT_BITS : 0x7f800000u)) {
        hdt_quant_extent_rare(kind, src, n, e);
    }
}

/* One vector of an integer kind: the code is in the low byte of each lane. */
WIDE_INLINE vi wide_int_code(enum hdt_quant_kind kind, const struct wide_block *b, vf x,
                             const struct hdt_random *random, uint32_t i, vf *e, vf *t)
{
    const vf magic = vf_set(HDT_QUANT_MAGIC);
    vf sum, q;

    *t = vf_mul(wide_is_minmax(kind) ? vf_sub(x, b->zero) : x, b->inv);
    sum = vf_add(random ? vf_add(*t, wide_dither(random, i)) : *t, magic);
    q = vf_sub(sum, magic);
    if (random) {
        q = vf_min(vf_max(q, b->lo), b->hi);
        sum = vf_add(q, magic);
    }
    *e = vf_sub(*t, q);
    return vf_bits(sum);
}

WIDE_INLINE vi wide_f8_code(enum hdt_quant_kind kind, const struct wide_block *b, vf x,
                            const struct hdt_random *random, uint32_t i, vf *e, vf *a)
{
    const vf t = vf_mul(x, b->inv);
    const vi sign = vi_and(vi_srl(vf_bits(t), 24), vi_set(0x80));
    vi code;

    *a = vi_float(wide_abs_bits(vf_bits(t)));
    *e = vf_sub(*a, kind == HDT_QUANT_E4M3 ? wide_small_float(*a, 3, -6, random, i, &code)
                                           : wide_small_float(*a, 2, -14, random, i, &code));
    return vi_or(code, sign);
}

/* 32 values to codes. `ref_src` has the same values, but 0 where a short group was filled up. */
WIDE_INLINE __m256i wide_quant_group(enum hdt_quant_kind kind, const uint8_t *src,
                                     const uint8_t *ref_src, const struct wide_block *b,
                                     const struct hdt_random *random, uint32_t i,
                                     struct wide_sums *sums)
{
    vi code[VG];

    WIDE_UNROLL
    for (int j = 0; j < VG; j++) {
        const vf x = vf_load(src + (size_t)j * VW * 4);
        const uint32_t number = i + (uint32_t)(j * VW);
        vf e, r;

        if (kind == HDT_QUANT_E4M3 || kind == HDT_QUANT_E5M2) {
            code[j] = wide_f8_code(kind, b, x, random, number, &e, &r);
        } else {
            code[j] = wide_int_code(kind, b, x, random, number, &e, &r);
        }
        if (wide_is_minmax(kind)) {
            r = vf_mul(vf_load(ref_src + (size_t)j * VW * 4), b->ref_factor);
        }
        wide_sums_add(sums, j, e, r);
    }
    return kind == HDT_QUANT_I4 ? _mm256_add_epi8(bytes_of(code), _mm256_set1_epi8(8))
                                : bytes_of(code);
}

/* 32 codes to where they go: a byte each, or half a one. */
WIDE_INLINE void wide_codes_store(enum hdt_quant_kind kind, __m256i codes, uint8_t *dst)
{
    __m256i pairs;

    if (!wide_is_int4(kind)) {
        store256(dst, codes);
        return;
    }
    pairs = _mm256_maddubs_epi16(codes, _mm256_set1_epi16(0x1001)); /* even + 16 odd */
    pairs = _mm256_permute4x64_epi64(_mm256_packus_epi16(pairs, pairs), 0xd8);
    _mm_storeu_si128((__m128i *)(void *)dst, _mm256_castsi256_si128(pairs));
}

/* The last n < 32 values of a tensor. They are filled up with zero points, whose code is exact. */
WIDE_INLINE void wide_quant_rest(enum hdt_quant_kind kind, const uint8_t *src, size_t n,
                                 const struct wide_block *b, float zero,
                                 const struct hdt_random *random, uint32_t i,
                                 struct wide_sums *sums, uint8_t *dst)
{
    uint8_t rest[128], ref[128] = {0}, codes[32];

    for (int k = 0; k < 32; k++) {
        memcpy(rest + 4 * k, &zero, 4);
    }
    memcpy(rest, src, 4 * n);
    memcpy(ref, src, 4 * n);
    wide_codes_store(kind, wide_quant_group(kind, rest, ref, b, random, i, sums), codes);
    if (wide_is_int4(kind) && n % 2) {
        codes[n / 2] &= 0x0f;
    }
    memcpy(dst, codes, wide_is_int4(kind) ? (n + 1) / 2 : n);
}

WIDE_INLINE void wide_quant_block(enum hdt_quant_kind kind, const uint8_t *src, size_t n,
                                  const struct hdt_quant_block *block, float factor,
                                  const struct hdt_random *random, uint32_t first,
                                  struct wide_sums *sums, uint8_t *codes)
{
    const struct wide_block b = {
        .inv = vf_set(block->inv),
        .zero = vf_set(block->zero),
        .ref_factor = vf_set(block->ref_factor),
        .lo = vf_set(hdt_quant_facts[kind].lo),
        .hi = vf_set(hdt_quant_facts[kind].hi),
    };
    size_t i = 0;

    for (; i + 32 <= n; i += 32) {
        const __m256i c =
            wide_quant_group(kind, src + 4 * i, src + 4 * i, &b, random, first + (uint32_t)i, sums);

        wide_codes_store(kind, c, codes + (wide_is_int4(kind) ? i / 2 : i));
    }
    if (i < n) {
        wide_quant_rest(kind, src + 4 * i, n - i, &b, block->zero, random, first + (uint32_t)i,
                        sums, codes + (wide_is_int4(kind) ? i / 2 : i));
    }
    wide_sums_close_block(sums, hdt_piece_weight(block->err_unit, factor),
                          hdt_piece_weight(block->ref_unit, factor));
}

/* Up to 1024 values in three passes over their blocks: what one pass finds out is used a pass later
 * only, so that neither the search for a largest lane nor a division is waited for. */
WIDE_INLINE void wide_quant_piece(enum hdt_quant_kind kind, const struct hdt_quant_in *in,
                                  size_t begin, const struct hdt_random *random, uint8_t *params,
                                  uint8_t *codes, struct wide_sums *sums,
                                  struct hdt_codec_guard *guard)
{
    const size_t end = in->n - begin < HDT_KERNEL_PIECE ? in->n : begin + HDT_KERNEL_PIECE;
    struct hdt_quant_extent extents[WIDE_PIECE_BLOCKS];
    struct hdt_quant_block blocks[WIDE_PIECE_BLOCKS];
    bool coded[WIDE_PIECE_BLOCKS];
    uint32_t max_bits = 0;
    double weight;
    float factor;
    size_t k = 0;

    for (size_t i = begin; i < end; i += in->block, k++) {
        wide_extent(kind, in->src + 4 * i, end - i < in->block ? end - i : in->block, &extents[k]);
        max_bits = max_bits > extents[k].max_bits ? max_bits : extents[k].max_bits;
    }
    hdt_guard_max(guard, max_bits);
    factor = hdt_piece_factor(max_bits, &weight);
    for (size_t j = 0; j < k; j++, params += hdt_quant_facts[kind].params_len) {
        guard->n_nonfinite += extents[j].n_refused;
        coded[j] = hdt_quant_block_make(kind, extents[j].max_bits, extents[j].min, extents[j].max,
                                        params, &blocks[j]);
    }
    k = 0;
    for (size_t i = begin; i < end; i += in->block, k++) {
        const size_t n = end - i < in->block ? end - i : in->block;
        uint8_t *dst = codes + (wide_is_int4(kind) ? i / 2 : i);

        if (extents[k].n_refused > 0) {
            continue;
        }
        if (coded[k]) {
            wide_quant_block(kind, in->src + 4 * i, n, &blocks[k], factor, random,
                             in->first + (uint32_t)i, sums, dst);
        } else {
            hdt_quant_block_zeros(kind, in->src + 4 * i, n, extents[k].max_bits, dst, guard);
        }
    }
    wide_sums_close_piece(sums, weight);
}

WIDE_INLINE void wide_quant_kind(enum hdt_quant_kind kind, const struct hdt_quant_in *in,
                                 const struct hdt_random *random, uint8_t *params, uint8_t *codes,
                                 struct hdt_codec_guard *guard)
{
    struct wide_sums sums;

    wide_sums_init(&sums);
    for (size_t i = 0; i < in->n; i += HDT_KERNEL_PIECE) {
        wide_quant_piece(kind, in, i, random,
                         params + i / in->block * hdt_quant_facts[kind].params_len, codes, &sums,
                         guard);
    }
    guard->n += in->n;
    wide_sums_finish(&sums, guard);
}

#define WIDE_ENCODER(name, kind)                                                                   \
 WIDE static void wide_encode_##name(const struct hdt_quant_in *in, uint8_t *params,               \
                                     uint8_t *codes, struct hdt_codec_guard *guard)                \
 {                                                                                                 \
  wide_quant_kind(kind, in, NULL, params, codes, guard);                                           \
 }                                                                                                 \
 WIDE static void wide_encode_##name##_random(const struct hdt_quant_in *in, uint8_t *params,      \
                                              uint8_t *codes, struct hdt_codec_guard *guard)       \
 {                                                                                                 \
  wide_quant_kind(kind, in, in->random, params, codes, guard);                                     \
 }

WIDE_ENCODER(i8, HDT_QUANT_I8)
WIDE_ENCODER(i8_minmax, HDT_QUANT_I8_MINMAX)
WIDE_ENCODER(i4, HDT_QUANT_I4)
WIDE_ENCODER(i4_minmax, HDT_QUANT_I4_MINMAX)
WIDE_ENCODER(e4m3, HDT_QUANT_E4M3)
WIDE_ENCODER(e5m2, HDT_QUANT_E5M2)

static void wide_quant_encode(enum hdt_quant_kind kind, const struct hdt_quant_in *in,
                              uint8_t *params, uint8_t *codes, struct hdt_codec_guard *guard)
{
    static void (*const encoders[HDT_QUANT_COUNT][2])(const struct hdt_quant_in *, uint8_t *,
                                                      uint8_t *, struct hdt_codec_guard *) = {
        [HDT_QUANT_I8] = {wide_encode_i8, wide_encode_i8_random},
        [HDT_QUANT_I8_MINMAX] = {wide_encode_i8_minmax, wide_encode_i8_minmax_random},
        [HDT_QUANT_I4] = {wide_encode_i4, wide_encode_i4_random},
        [HDT_QUANT_I4_MINMAX] = {wide_encode_i4_minmax, wide_encode_i4_minmax_random},
        [HDT_QUANT_E4M3] = {wide_encode_e4m3, wide_encode_e4m3_random},
        [HDT_QUANT_E5M2] = {wide_encode_e5m2, wide_encode_e5m2_random},
    };

    encoders[kind][in->random != NULL](in, params, codes, guard);
}

/* 16 fp8 as fp16; those of E4M3 are a 256th of their value. */
WIDE_INLINE __m256i wide_f8_to_f16(enum hdt_quant_kind kind, __m128i codes)
{
    const __m256i c = _mm256_cvtepu8_epi16(codes);
    const __m256i magnitude = _mm256_and_si256(c, _mm256_set1_epi16(0x7f));
    const __m256i sign = _mm256_slli_epi16(_mm256_xor_si256(c, magnitude), 8);
    const __m256i is_nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f));

    if (kind == HDT_QUANT_E5M2) {
        return _mm256_slli_epi16(c, 8);
    }
    return _mm256_or_si256(_mm256_or_si256(sign, _mm256_slli_epi16(magnitude, 7)),
                           _mm256_and_si256(is_nan, _mm256_set1_epi16(0x7fff)));
}

/* 32 codes to numbers before the scale. */
WIDE_INLINE void wide_codes_widen(enum hdt_quant_kind kind, const uint8_t *codes, vf v[VG])
{
    const __m256i mask = _mm256_set1_epi8(0x0f);
    __m256i c;
    vi u[VG];

    if (wide_is_int4(kind)) {
        const __m256i pairs =
            _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)codes));

        c = _mm256_and_si256(_mm256_or_si256(pairs, _mm256_slli_epi16(pairs, 4)), mask);
        c = kind == HDT_QUANT_I4 ? _mm256_sub_epi8(c, _mm256_set1_epi8(8)) : c;
    } else {
        c = load256(codes);
    }
    if (kind == HDT_QUANT_E4M3 || kind == HDT_QUANT_E5M2) {
        widen_f16(wide_f8_to_f16(kind, _mm256_castsi256_si128(c)), v);
        widen_f16(wide_f8_to_f16(kind, _mm256_extracti128_si256(c, 1)), v + LV);
        WIDE_UNROLL
        for (int j = 0; j < VG && kind == HDT_QUANT_E4M3; j++) {
            v[j] = vf_mul(v[j], vf_set(256.0f));
        }
        return;
    }
    if (kind == HDT_QUANT_I8_MINMAX) {
        widen_u8(c, u);
    } else {
        widen_i8(c, u);
    }
    WIDE_UNROLL
    for (int j = 0; j < VG; j++) {
        v[j] = vf_of_int(u[j]);
    }
}

WIDE_INLINE void wide_dequantize(enum hdt_quant_kind kind, const uint8_t *codes, vf scale, vf zero,
                                 vf v[VG])
{
    wide_codes_widen(kind, codes, v);
    WIDE_UNROLL
    for (int j = 0; j < VG; j++) {
        v[j] = vf_mul(v[j], scale);
        v[j] = wide_is_minmax(kind) ? vf_add(v[j], zero) : v[j];
    }
}

WIDE_INLINE void wide_dequant_block(enum hdt_quant_kind kind, enum hdt_emit emit,
                                    const uint8_t *params, const uint8_t *codes, size_t n,
                                    uint8_t *dst)
{
    const size_t size = emit == HDT_EMIT_BF16 ? 2 : 4;
    float scale, zero;
    size_t i = 0;
    vf v[VG];

    hdt_quant_params_read(kind, params, &scale, &zero);
    for (; i + 32 <= n; i += 32) {
        wide_dequantize(kind, codes + (wide_is_int4(kind) ? i / 2 : i), vf_set(scale), vf_set(zero),
                        v);
        wide_emit(emit, v, dst + size * i);
    }
    if (i < n) {
        uint8_t rest[32] = {0};

        memcpy(rest, codes + (wide_is_int4(kind) ? i / 2 : i),
               wide_is_int4(kind) ? (n - i + 1) / 2 : n - i);
        wide_dequantize(kind, rest, vf_set(scale), vf_set(zero), v);
        wide_emit_rest(emit, v, n - i, dst + size * i);
    }
}

WIDE_INLINE void wide_dequant_kind(enum hdt_quant_kind kind, enum hdt_emit emit,
                                   const uint8_t *params, const uint8_t *codes, size_t n,
                                   size_t block, uint8_t *dst)
{
    const size_t size = emit == HDT_EMIT_BF16 ? 2 : 4;

    for (size_t i = 0; i < n; i += block, params += hdt_quant_facts[kind].params_len) {
        wide_dequant_block(kind, emit, params, codes + (wide_is_int4(kind) ? i / 2 : i),
                           n - i < block ? n - i : block, dst + size * i);
    }
}

#define WIDE_DECODER(name, kind)                                                                   \
 WIDE static void wide_decode_##name(enum hdt_emit emit, const uint8_t *params,                    \
                                     const uint8_t *codes, size_t n, size_t block, uint8_t *dst)   \
 {                                                                                                 \
  if (emit == HDT_EMIT_F32) {                                                                      \
   wide_dequant_kind(kind, HDT_EMIT_F32, params, codes, n, block, dst);                            \
  } else if (emit == HDT_EMIT_ADD) {                                                               \
   wide_dequant_kind(kind, HDT_EMIT_ADD, params, codes, n, block, dst);                            \
  } else {                                                                                         \
   wide_dequant_kind(kind, HDT_EMIT_BF16, params, codes, n, block, dst);                           \
  }                                                                                                \
 }

WIDE_DECODER(i8, HDT_QUANT_I8)
WIDE_DECODER(i8_minmax, HDT_QUANT_I8_MINMAX)
WIDE_DECODER(i4, HDT_QUANT_I4)
WIDE_DECODER(i4_minmax, HDT_QUANT_I4_MINMAX)
WIDE_DECODER(e4m3, HDT_QUANT_E4M3)
WIDE_DECODER(e5m2, HDT_QUANT_E5M2)

static void wide_quant_decode(enum hdt_quant_kind kind, enum hdt_emit emit, const uint8_t *params,
                              const uint8_t *codes, size_t n, size_t block, uint8_t *dst)
{
    static void (*const decoders[HDT_QUANT_COUNT])(enum hdt_emit, const uint8_t *, const uint8_t *,
                                                   size_t, size_t, uint8_t *) = {
        [HDT_QUANT_I8] = wide_decode_i8,     [HDT_QUANT_I8_MINMAX] = wide_decode_i8_minmax,
        [HDT_QUANT_I4] = wide_decode_i4,     [HDT_QUANT_I4_MINMAX] = wide_decode_i4_minmax,
        [HDT_QUANT_E4M3] = wide_decode_e4m3, [HDT_QUANT_E5M2] = wide_decode_e5m2,
    };

    decoders[kind](emit, params, codes, n, block, dst);
}

/* Sums and differences of lanes that are h apart, h = 1, 2, 4 (8). */
WIDE_INLINE vf wide_butterfly(vf v, vf swapped, uint32_t h, int shift)
{
    const vi sign = vi_sll(vi_and(vi_iota(), vi_set(h)), shift);

    return vf_add(swapped, vi_float(vi_xor(vf_bits(v), sign)));
}

WIDE_INLINE vf wide_flip(vf v, size_t first)
{
    const vi word = vi_set(hdt_hadamard_signs[first / 32] >> (first % 32));

    return vi_float(vi_xor(
        vf_bits(v), vi_and(vi_sllv(word, vi_sub(vi_set(31), vi_iota())), vi_set(0x80000000u))));
}

WIDE_INLINE vf wide_butterflies_within(vf v)
{
    v = wide_butterfly(v, vf_swap1(v), 1, 31);
    v = wide_butterfly(v, vf_swap2(v), 2, 30);
    v = wide_butterfly(v, vf_swap4(v), 4, 29);
#if VW == 16
    v = wide_butterfly(v, vf_swap8(v), 8, 28);
#endif
    return v;
}

/* Stages h and 2 h of n values at once. */
WIDE_INLINE void wide_butterflies_4(uint8_t *x, size_t n, size_t h)
{
    for (size_t i = 0; i < n; i += 4 * h) {
        for (size_t k = i; k < i + h; k += VW) {
            uint8_t *at = x + 4 * k;
            const vf a = vf_load(at), b = vf_load(at + 4 * h), c = vf_load(at + 8 * h),
                     d = vf_load(at + 12 * h);
            const vf ab = vf_add(a, b), a_b = vf_sub(a, b), cd = vf_add(c, d), c_d = vf_sub(c, d);

            vf_store(at, vf_add(ab, cd));
            vf_store(at + 4 * h, vf_add(a_b, c_d));
            vf_store(at + 8 * h, vf_sub(ab, cd));
            vf_store(at + 12 * h, vf_sub(a_b, c_d));
        }
    }
}

/* The last stage. */
WIDE_INLINE void wide_butterflies_2(uint8_t *x, size_t n)
{
    for (size_t k = 0; k < n / 2; k += VW) {
        const vf a = vf_load(x + 4 * k), b = vf_load(x + 4 * (k + n / 2));

        vf_store(x + 4 * k, vf_add(a, b));
        vf_store(x + 4 * (k + n / 2), vf_sub(a, b));
    }
}

WIDE_INLINE void wide_rotate_piece(uint8_t *x, size_t first, unsigned log2_n, bool back)
{
    const vf norm = vf_set(hdt_hadamard_norm(log2_n));
    const size_t n = (size_t)1 << log2_n;
    size_t h = VW;

    for (size_t i = 0; i < n; i += VW) {
        vf v = vf_load(x + 4 * i);

        v = vf_mul(back ? v : wide_flip(v, first + i), norm);
        vf_store(x + 4 * i, wide_butterflies_within(v));
    }
    for (; 2 * h < n; h *= 4) {
        wide_butterflies_4(x, n, h);
    }
    if (h < n) {
        wide_butterflies_2(x, n);
    }
    for (size_t i = 0; back && i < n; i += VW) {
        vf_store(x + 4 * i, wide_flip(vf_load(x + 4 * i), first + i));
    }
}

WIDE static void wide_rotate_block(uint8_t *x, size_t n, bool back)
{
    size_t begin = 0;

    for (unsigned k = 10; k >= 5; k--) {
        if (n - begin >= (size_t)1 << k) {
            wide_rotate_piece(x + 4 * begin, begin, k, back);
            begin += (size_t)1 << k;
        }
    }
    hdt_scalar_rotate_block(x, begin, n, back);
}

WIDE static void wide_hadamard(uint8_t *x, size_t n, size_t block, bool back)
{
    for (size_t i = 0; i < n; i += block) {
        wide_rotate_block(x + 4 * i, n - i < block ? n - i : block, back);
    }
}
