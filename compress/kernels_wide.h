/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The SIMD twins of the scalar kernels, written once for all widths. kernels_avx2.c and
 * kernels_avx512.c define the vector operations of their instruction set and then include this
 * file, which is why it has no guard. What they define:
 *
 *     WIDE             attributes of a function: the instruction set
 *     WIDE_UNROLL      before a loop over the vectors of a group
 *     VW               floats of a vector, 8 or 16
 *     vf, vi           vectors of float and of 32-bit integers; vd16: 16 doubles
 *     vf_*, vi_*, ...  operations, one instruction or a few
 *
 * All work is done in groups of 32 values, VG vectors; what is left over at the end of a tensor is
 * copied into a group that is filled up with values that add nothing to a sum. Guard sums have 16
 * lanes, LV vectors. "fma" is not used anywhere: a fused product would change bits.
 */
#define VG          (32 / VW)
#define LV          (HDT_GUARD_LANES / VW)
#define WIDE_INLINE WIDE static inline __attribute__((always_inline))

/* Of a block and of a piece in float, of the tensor in double. */
struct wide_sums {
    vf err_block[LV], ref_block[LV], err_piece[LV], ref_piece[LV];
    vd16 err, ref;
};

WIDE_INLINE void wide_sums_init(struct wide_sums *s)
{
    WIDE_UNROLL
    for (int i = 0; i < LV; i++) {
        s->err_block[i] = s->ref_block[i] = s->err_piece[i] = s->ref_piece[i] = vf_set(0.0f);
    }
    s->err = s->ref = vd16_zero();
}

/* The sums of vector j of a group. */
WIDE_INLINE void wide_sums_add(struct wide_sums *s, int j, vf e, vf r)
{
    s->err_block[j % LV] = vf_add(s->err_block[j % LV], vf_mul(e, e));
    s->ref_block[j % LV] = vf_add(s->ref_block[j % LV], vf_mul(r, r));
}

WIDE_INLINE void wide_sums_close_block(struct wide_sums *s, float err_weight, float ref_weight)
{
    WIDE_UNROLL
    for (int i = 0; i < LV; i++) {
        s->err_piece[i] = vf_add(s->err_piece[i], vf_mul(s->err_block[i], vf_set(err_weight)));
        s->ref_piece[i] = vf_add(s->ref_piece[i], vf_mul(s->ref_block[i], vf_set(ref_weight)));
        s->err_block[i] = s->ref_block[i] = vf_set(0.0f);
    }
}

WIDE_INLINE void wide_sums_close_piece(struct wide_sums *s, double weight)
{
    s->err = vd16_add_weighted(s->err, s->err_piece, weight);
    s->ref = vd16_add_weighted(s->ref, s->ref_piece, weight);
    WIDE_UNROLL
    for (int i = 0; i < LV; i++) {
        s->err_piece[i] = s->ref_piece[i] = vf_set(0.0f);
    }
}

WIDE_INLINE void wide_sums_finish(const struct wide_sums *s, struct hdt_codec_guard *guard)
{
    double lanes[HDT_GUARD_LANES];

    vd16_store(lanes, s->err);
    guard->err_sq += hdt_kernels_sum_guard(lanes);
    vd16_store(lanes, s->ref);
    guard->ref_sq += hdt_kernels_sum_guard(lanes);
}

WIDE_INLINE vi wide_abs_bits(vi u)
{
    return vi_and(u, vi_set(0x7fffffff));
}

/* bf16 in the low half of each 32 bits, for values that are no NaN. */
WIDE_INLINE vi wide_bf16_round_number(vi u)
{
    const vi odd = vi_and(vi_srl(u, 16), vi_set(1));

    return vi_srl(vi_add(u, vi_add(odd, vi_set(0x7fff))), 16);
}

WIDE_INLINE vi wide_bf16_round(vi u)
{
    return vi_select_gt(wide_abs_bits(u), vi_set(0x7f800000), vi_or(vi_srl(u, 16), vi_set(0x40)),
                        wide_bf16_round_number(u));
}

WIDE_INLINE vi wide_random_bits(const struct hdt_random *r, uint32_t i)
{
    vi x = vi_add(vi_iota(), vi_set(i + r->add));

    x = vi_xor(x, vi_srl(x, 16));
    x = vi_mul(x, vi_set(0x7feb352d));
    x = vi_xor(x, vi_srl(x, 15));
    x = vi_add(x, vi_set(r->mix));
    x = vi_mul(x, vi_set(0x846ca68b));
    return vi_xor(x, vi_srl(x, 16));
}

WIDE_INLINE vf wide_dither(const struct hdt_random *r, uint32_t i)
{
    const vi upper = vi_srl(wide_random_bits(r, i), 16);

    return vf_mul(vf_of_int(vi_sub(vi_add(upper, upper), vi_set(65535))), vf_set(0x1p-17f));
}

WIDE static void wide_bf16_encode(const uint8_t *src, size_t n, uint8_t *dst)
{
    size_t i = 0;

    for (; i + 32 <= n; i += 32) {
        vi h[VG];

        WIDE_UNROLL
        for (int j = 0; j < VG; j++) {
            h[j] = wide_bf16_round(vf_bits(vf_load(src + 4 * (i + (size_t)j * VW))));
        }
        store_words(dst + 2 * i, h);
    }
    hdt_kernels_scalar.bf16_encode(src + 4 * i, n - i, dst + 2 * i);
}

WIDE static void wide_f16_encode(const uint8_t *src, size_t n, uint8_t *dst)
{
    size_t i = 0;

    for (; i + VW <= n; i += VW) {
        vf_store_f16(dst + 2 * i, vf_load(src + 4 * i));
    }
    hdt_kernels_scalar.f16_encode(src + 4 * i, n - i, dst + 2 * i);
}

WIDE static uint32_t wide_abs_max(const uint8_t *src, size_t n, uint64_t *n_nonfinite)
{
    vi max = vi_set(0);
    uint32_t max_bits, rest;
    size_t i = 0;

    for (; i + VW <= n; i += VW) {
        max = vi_max(max, wide_abs_bits(vf_bits(vf_load(src + 4 * i))));
    }
    max_bits = vi_max_across(max);
    if (max_bits >= 0x7f800000u) { /* rare */
        return hdt_kernels_scalar.abs_max(src, n, n_nonfinite);
    }
    rest = hdt_kernels_scalar.abs_max(src + 4 * i, n - i, n_nonfinite);
    return max_bits > rest ? max_bits : rest;
}

WIDE static void wide_add(const uint8_t *a, const uint8_t *b, size_t n, uint8_t *dst)
{
    size_t i = 0;

    for (; i + VW <= n; i += VW) {
        vf_store(dst + 4 * i, vf_add(vf_load(a + 4 * i), vf_load(b + 4 * i)));
    }
    hdt_kernels_scalar.add(a + 4 * i, b + 4 * i, n - i, dst + 4 * i);
}

WIDE static void wide_divide(uint8_t *x, size_t n, float by)
{
    size_t i = 0;

    for (; i + VW <= n; i += VW) {
        vf_store(x + 4 * i, vf_div(vf_load(x + 4 * i), vf_set(by)));
    }
    hdt_kernels_scalar.divide(x + 4 * i, n - i, by);
}

/* Magnitudes rounded to a float of few digits; *code as in the scalar definition, or its low byte
 * where there is no more. */
WIDE_INLINE vf wide_small_float(vf a, int digits, int exp_min, const struct hdt_random *random,
                                uint32_t i, vi *code)
{
    const vi smallest = vi_set((uint32_t)(exp_min + 127) << 23);
    const vi exponent = vi_max(vi_and(vf_bits(a), vi_set(0x7f800000)), smallest);
    const vi magic_bits = vi_add(exponent, vi_set(((uint32_t)(23 - digits) << 23) + 0x400000u));
    const vf magic = vi_float(magic_bits);
    vf sum;

    if (random) {
        const vf place = vi_float(vi_sub(exponent, vi_set((uint32_t)digits << 23)));

        a = vf_add(a, vf_mul(wide_dither(random, i), place));
    }
    sum = vf_add(a, magic);
    if (digits < 8) { /* the low byte of magic_bits is 0 */
        *code = vi_add(vf_bits(sum), vi_srl(vi_sub(exponent, smallest), 23 - digits));
    } else {
        *code = vi_add(vi_sub(vf_bits(sum), magic_bits),
                       vi_srl(vi_sub(exponent, smallest), 23 - digits));
    }
    return vf_sub(sum, magic);
}

/* One vector of a cast's plain group; the code goes to *h unless it was stored. */
WIDE_INLINE vf wide_cast_value(enum hdt_cast_kind kind, vf x, const struct hdt_random *random,
                               uint32_t i, vi *h)
{
    const vi u = vf_bits(x), sign = vi_and(u, vi_set(0x80000000u));
    vi code;
    vf a;

    if (kind == HDT_CAST_BF16) {
        *h = random ? vi_srl(vi_add(u, vi_srl(wide_random_bits(random, i), 16)), 16)
                    : wide_bf16_round_number(u);
        return vi_float(vi_sll(*h, 16));
    }
    a = wide_small_float(vi_float(wide_abs_bits(u)), 10, -14, random, i, &code);
    *h = vi_or(code, vi_srl(sign, 16));
    return vi_float(vi_or(vf_bits(a), sign));
}

WIDE_INLINE void wide_cast_group(enum hdt_cast_kind kind, const uint8_t *src, float factor,
                                 const struct hdt_random *random, uint32_t i, uint8_t *dst,
                                 struct wide_sums *sums)
{
    const vf f = vf_set(factor);
    vi h[VG];

    WIDE_UNROLL
    for (int j = 0; j < VG; j++) {
        const vf x = vf_load(src + (size_t)j * VW * 4);
        vf y;

        if (kind == HDT_CAST_F16 && !random) {
            y = vf_store_f16(dst + (size_t)j * VW * 2, x);
        } else {
            y = wide_cast_value(kind, x, random, i + (uint32_t)(j * VW), &h[j]);
        }
        wide_sums_add(sums, j, vf_mul(vf_sub(x, y), f), vf_mul(x, f));
    }
    if (kind == HDT_CAST_BF16 || random) {
        store_words(dst, h);
    }
}

WIDE_INLINE void wide_cast_kind(enum hdt_cast_kind kind, const struct hdt_cast_in *in,
                                const struct hdt_random *random, uint8_t *dst,
                                struct hdt_codec_guard *guard)
{
    struct wide_sums sums;

    wide_sums_init(&sums);
    for (size_t b = 0; b < in->n; b += HDT_KERNEL_PIECE) {
        const size_t n = in->n - b < HDT_KERNEL_PIECE ? in->n - b : HDT_KERNEL_PIECE;
        const uint8_t *src = in->src + 4 * b;
        uint64_t n_nonfinite = 0;
        const uint32_t max_bits = wide_abs_max(src, n, &n_nonfinite);
        uint32_t number = in->first + (uint32_t)b;
        double weight;
        float factor;
        size_t i = 0;

        hdt_guard_max(guard, max_bits);
        if (n_nonfinite > 0 || !hdt_cast_is_plain(kind, max_bits)) {
            hdt_cast_piece_rare(kind, in, b, n, dst, guard);
            continue;
        }
        factor = hdt_piece_factor(max_bits, &weight);
        for (; i + 32 <= n; i += 32) {
            wide_cast_group(kind, src + 4 * i, factor, random, number + (uint32_t)i,
                            dst + 2 * (b + i), &sums);
        }
        if (i < n) {
            uint8_t rest[128] = {0}, half[64];

            memcpy(rest, src + 4 * i, 4 * (n - i));
            wide_cast_group(kind, rest, factor, random, number + (uint32_t)i, half, &sums);
            memcpy(dst + 2 * (b + i), half, 2 * (n - i));
        }
        wide_sums_close_block(&sums, 1.0f, 1.0f);
        wide_sums_close_piece(&sums, weight);
    }
    guard->n += in->n;
    wide_sums_finish(&sums, guard);
}

WIDE static void wide_cast_encode(enum hdt_cast_kind kind, const struct hdt_cast_in *in,
                                  uint8_t *dst, struct hdt_codec_guard *guard)
{
    if (kind == HDT_CAST_BF16 && in->random) {
        wide_cast_kind(HDT_CAST_BF16, in, in->random, dst, guard);
    } else if (kind == HDT_CAST_BF16) {
        wide_cast_kind(HDT_CAST_BF16, in, NULL, dst, guard);
    } else if (in->random) {
        wide_cast_kind(HDT_CAST_F16, in, in->random, dst, guard);
    } else {
        wide_cast_kind(HDT_CAST_F16, in, NULL, dst, guard);
    }
}

/* 32 values to dst. */
WIDE_INLINE void wide_emit(enum hdt_emit emit, const vf v[VG], uint8_t *dst)
{
    vi h[VG];

    WIDE_UNROLL
    for (int j = 0; j < VG; j++) {
        uint8_t *at = dst + (size_t)j * VW * 4;

        if (emit == HDT_EMIT_F32) {
            vf_store(at, v[j]);
        } else if (emit == HDT_EMIT_ADD) {
            vf_store(at, vf_add(vf_load(at), v[j]));
        } else {
            h[j] = wide_bf16_round(vf_bits(v[j]));
        }
    }
    if (emit == HDT_EMIT_BF16) {
        store_words(dst, h);
    }
}

/* The last n < 32 values. */
WIDE_INLINE void wide_emit_rest(enum hdt_emit emit, const vf v[VG], size_t n, uint8_t *dst)
{
    const size_t len = n * (emit == HDT_EMIT_BF16 ? 2 : 4);
    uint8_t rest[128] = {0};

    memcpy(rest, dst, emit == HDT_EMIT_ADD ? len : 0);
    wide_emit(emit, v, rest);
    memcpy(dst, rest, len);
}

WIDE_INLINE void wide_cast_read(enum hdt_cast_kind kind, const uint8_t *src, vf v[VG])
{
    vi u[VG];

    if (kind == HDT_CAST_F16) {
        widen_f16(load256(src), v);
        widen_f16(load256(src + 32), v + LV);
        return;
    }
    widen_u16(load256(src), u);
    widen_u16(load256(src + 32), u + LV);
    WIDE_UNROLL
    for (int j = 0; j < VG; j++) {
        v[j] = vi_float(vi_sll(u[j], 16));
    }
}

WIDE_INLINE void wide_cast_decode_kind(enum hdt_cast_kind kind, enum hdt_emit emit,
                                       const uint8_t *src, size_t n, uint8_t *dst)
{
    const size_t size = emit == HDT_EMIT_BF16 ? 2 : 4;
    size_t i = 0;
    vf v[VG];

    for (; i + 32 <= n; i += 32) {
        wide_cast_read(kind, src + 2 * i, v);
        wide_emit(emit, v, dst + size * i);
    }
    if (i < n) {
        uint8_t rest[64] = {0};

        memcpy(rest, src + 2 * i, 2 * (n - i));
        wide_cast_read(kind, rest, v);
        wide_emit_rest(emit, v, n - i, dst + size * i);
    }
}

WIDE static void wide_cast_decode(enum hdt_cast_kind kind, enum hdt_emit emit, const uint8_t *src,
                                  size_t n, uint8_t *dst)
{
    const bool bf16 = kind == HDT_CAST_BF16;

    if (emit == HDT_EMIT_F32) {
        bf16 ? wide_cast_decode_kind(HDT_CAST_BF16, HDT_EMIT_F32, src, n, dst)
             : wide_cast_decode_kind(HDT_CAST_F16, HDT_EMIT_F32, src, n, dst);
    } else if (emit == HDT_EMIT_ADD) {
        bf16 ? wide_cast_decode_kind(HDT_CAST_BF16, HDT_EMIT_ADD, src, n, dst)
             : wide_cast_decode_kind(HDT_CAST_F16, HDT_EMIT_ADD, src, n, dst);
    } else {
        bf16 ? wide_cast_decode_kind(HDT_CAST_BF16, HDT_EMIT_BF16, src, n, dst)
             : wide_cast_decode_kind(HDT_CAST_F16, HDT_EMIT_BF16, src, n, dst);
    }
}

WIDE static void wide_bf16_decode(const uint8_t *src, size_t n, uint8_t *dst)
{
    wide_cast_decode_kind(HDT_CAST_BF16, HDT_EMIT_F32, src, n, dst);
}

WIDE static void wide_f16_decode(const uint8_t *src, size_t n, uint8_t *dst)
{
    wide_cast_decode_kind(HDT_CAST_F16, HDT_EMIT_F32, src, n, dst);
}
