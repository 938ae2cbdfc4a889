/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scalar kernels of the casts and the block quantizers: the definition.
 *
 * Every rounding is done by adding a large float and taking it away again, so that it is the same
 * operation at any width: an integer by 1.5 * 2^23, a float of few digits by 1.5 * 2^(e + 23 -
 * digits), whose last place is that float's. Stochastic rounding adds an even random number between
 * -1/2 and 1/2 last place before.
 *
 * The guard is exact, not sampled. Its squares are taken in float, of values that were scaled by
 * their block's largest magnitude, in lanes; the lanes of 1024 values are then weighed and added in
 * double. That costs a third of squares in double and is off by less than 10^-5 of a sum.
 */
#include "config.h"

#include "compress/kernels_quant.h"

const uint32_t hdt_hadamard_signs[32] = {
    0x806b8ff4, 0x481cc4a6, 0x86c72574, 0x30cbd56c, 0x9ab16602, 0x22537059, 0xd2490790, 0x8d5df899,
    0x26b2680a, 0x7a591bed, 0x476706ea, 0xede9e3ac, 0x9256f32b, 0x7a547ce8, 0x02c62051, 0xd7e84f8d,
    0xbc3c8d24, 0x7a9f6826, 0x7874c303, 0x5ef05ffd, 0xd8ce8050, 0x5d304217, 0x556644f8, 0x8b810e25,
    0xa6e4706a, 0x370c3a50, 0xf2753873, 0x3b484e1f, 0x475a24e6, 0x075998d7, 0x9d27c330, 0x062c3eae,
};

static inline uint32_t load_u32(const uint8_t *src, size_t i)
{
    uint32_t u;

    memcpy(&u, src + 4 * i, 4);
    return u;
}

void hdt_random_seed(struct hdt_random *random, uint64_t seed)
{
    uint64_t z = seed + 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    random->add = (uint32_t)z;
    random->mix = (uint32_t)(z >> 32);
}

float hdt_kernels_sum_lanes(const float l[HDT_KERNEL_LANES])
{
    return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

double hdt_kernels_sum_lanes_f64(const double l[HDT_KERNEL_LANES])
{
    return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

double hdt_kernels_sum_guard(const double lanes[HDT_GUARD_LANES])
{
    double half[HDT_KERNEL_LANES];

    for (int i = 0; i < HDT_KERNEL_LANES; i++) {
        half[i] = lanes[i] + lanes[i + HDT_KERNEL_LANES];
    }
    return hdt_kernels_sum_lanes_f64(half);
}

/* By bits, as F16C does it: what is too small for fp16's normals is shifted into its subnormals. */
uint16_t hdt_f16_round(uint32_t u)
{
    const uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    const uint32_t abs = u & 0x7fffffffu;
    uint32_t mantissa, shift, half, rest;

    if (abs > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00 | (abs >> 13 & 0x3ff));
    }
    if (abs >= 0x477ff000u) { /* 65520 and above, infinity among it */
        return (uint16_t)(sign | 0x7c00);
    }
    if (abs >= 0x38800000u) { /* 2^-14: a normal number; a carry goes into the exponent */
        const uint32_t rebased = abs - 0x38000000u;

        return (uint16_t)(sign | (rebased + 0xfff + (rebased >> 13 & 1)) >> 13);
    }
    if (abs < 0x33000000u) { /* below 2^-25, half of the smallest one */
        return sign;
    }
    shift = 126 - (abs >> 23);
    mantissa = (abs & 0x7fffffu) | 0x800000u;
    half = mantissa >> shift;
    rest = mantissa & ((1u << shift) - 1);
    half += rest > 1u << (shift - 1) || (rest == 1u << (shift - 1) && (half & 1));
    return (uint16_t)(sign | half);
}

uint32_t hdt_f16_widen(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = h >> 10 & 0x1f, mantissa = h & 0x3ff;

    if (exponent == 0x1f) {
        return sign | 0x7f800000u | mantissa << 13 | (mantissa ? 0x400000u : 0);
    }
    if (exponent == 0) {
        if (mantissa == 0) {
            return sign;
        }
        exponent = 1;
        while (!(mantissa & 0x400)) {
            mantissa <<= 1;
            exponent--;
        }
        mantissa &= 0x3ff;
    }
    return sign | (exponent + 112) << 23 | mantissa << 13;
}

/* Of a block and of a piece in float, of the tensor in double. */
struct sums {
    float err_block[HDT_GUARD_LANES], ref_block[HDT_GUARD_LANES];
    float err_piece[HDT_GUARD_LANES], ref_piece[HDT_GUARD_LANES];
    double err[HDT_GUARD_LANES], ref[HDT_GUARD_LANES];
};

static void sums_add(struct sums *s, size_t i, float e, float r)
{
    s->err_block[i % HDT_GUARD_LANES] += e * e;
    s->ref_block[i % HDT_GUARD_LANES] += r * r;
}

static void sums_close_block(struct sums *s, float err_weight, float ref_weight)
{
    for (int l = 0; l < HDT_GUARD_LANES; l++) {
        s->err_piece[l] += s->err_block[l] * err_weight;
        s->ref_piece[l] += s->ref_block[l] * ref_weight;
        s->err_block[l] = s->ref_block[l] = 0;
    }
}

static void sums_close_piece(struct sums *s, double weight)
{
    for (int l = 0; l < HDT_GUARD_LANES; l++) {
        s->err[l] += (double)s->err_piece[l] * weight;
        s->ref[l] += (double)s->ref_piece[l] * weight;
        s->err_piece[l] = s->ref_piece[l] = 0;
    }
}

static void sums_finish(const struct sums *s, struct hdt_codec_guard *guard)
{
    guard->err_sq += hdt_kernels_sum_guard(s->err);
    guard->ref_sq += hdt_kernels_sum_guard(s->ref);
}

/* A magnitude as a float of `digits` digits, or a whole multiple of the smallest subnormal. */
struct small_float {
    uint32_t code; /* exponent from 0 at exp_min, then the digits */
    float value;
};

static struct small_float small_float_round(float a, int digits, int exp_min, float dither)
{
    const uint32_t smallest = (uint32_t)(exp_min + 127) << 23, field = hdt_bits_of(a) & 0x7f800000u;
    const uint32_t exponent = field > smallest ? field : smallest;
    const uint32_t magic_bits = exponent + ((uint32_t)(23 - digits) << 23) + 0x400000u;
    const float magic = hdt_float_of(magic_bits);
    const float place = hdt_float_of(exponent - ((uint32_t)digits << 23));
    const float sum = (a + dither * place) + magic;

    return (struct small_float){
        .code = hdt_bits_of(sum) - magic_bits + ((exponent - smallest) >> (23 - digits)),
        .value = sum - magic,
    };
}

static uint16_t f16_round_random(uint32_t u, uint32_t bits)
{
    struct small_float f;

    if ((u & 0x7fffffffu) >= 0x47800000u) { /* 65536 and above */
        return hdt_f16_round(u);
    }
    f = small_float_round(hdt_float_of(u & 0x7fffffffu), 10, -14, hdt_random_dither(bits));
    return (uint16_t)((u >> 16 & 0x8000u) | f.code);
}

/* Adding sixteen random bits below the last place carries with the probability that is due. */
static uint16_t bf16_round_random(uint32_t u, uint32_t bits)
{
    return (u & 0x7fffffffu) >= 0x7f800000u ? hdt_bf16_round(u)
                                            : (uint16_t)((u + (bits >> 16)) >> 16);
}

static uint16_t cast_value(enum hdt_cast_kind kind, const struct hdt_cast_in *in, size_t i)
{
    const uint32_t u = load_u32(in->src, i);
    const uint32_t bits = in->random ? hdt_random_bits(in->random, in->first + (uint32_t)i) : 0;

    if (kind == HDT_CAST_BF16) {
        return in->random ? bf16_round_random(u, bits) : hdt_bf16_round(u);
    }
    return in->random ? f16_round_random(u, bits) : hdt_f16_round(u);
}

static float cast_back(enum hdt_cast_kind kind, uint16_t h)
{
    return hdt_float_of(kind == HDT_CAST_BF16 ? (uint32_t)h << 16 : hdt_f16_widen(h));
}

void hdt_cast_piece_rare(enum hdt_cast_kind kind, const struct hdt_cast_in *in, size_t begin,
                         size_t n, uint8_t *dst, struct hdt_codec_guard *guard)
{
    for (size_t i = begin; i < begin + n; i++) {
        const uint16_t h = cast_value(kind, in, i);
        const float y = cast_back(kind, h);
        const double x = (double)hdt_float_of(load_u32(in->src, i)), e = x - (double)y;

        memcpy(dst + 2 * i, &h, 2);
        if ((hdt_bits_of(y) & 0x7f800000u) == 0x7f800000u) {
            guard->n_nonfinite++;
            continue;
        }
        guard->err_sq += e * e;
        guard->ref_sq += x * x;
    }
}

void hdt_scalar_cast_encode(enum hdt_cast_kind kind, const struct hdt_cast_in *in, uint8_t *dst,
                            struct hdt_codec_guard *guard)
{
    struct sums sums = {0};

    for (size_t b = 0; b < in->n; b += HDT_KERNEL_PIECE) {
        const size_t n = in->n - b < HDT_KERNEL_PIECE ? in->n - b : HDT_KERNEL_PIECE;
        uint64_t n_nonfinite = 0;
        const uint32_t max_bits = hdt_kernels_scalar.abs_max(in->src + 4 * b, n, &n_nonfinite);
        double weight;
        float factor;

        hdt_guard_max(guard, max_bits);
        if (n_nonfinite > 0 || !hdt_cast_is_plain(kind, max_bits)) {
            hdt_cast_piece_rare(kind, in, b, n, dst, guard);
            continue;
        }
        factor = hdt_piece_factor(max_bits, &weight);
        for (size_t i = 0; i < n; i++) {
            const uint16_t h = cast_value(kind, in, b + i);
            const float x = hdt_float_of(load_u32(in->src, b + i));

            memcpy(dst + 2 * (b + i), &h, 2);
            sums_add(&sums, i, (x - cast_back(kind, h)) * factor, x * factor);
        }
        sums_close_block(&sums, 1.0f, 1.0f);
        sums_close_piece(&sums, weight);
    }
    guard->n += in->n;
    sums_finish(&sums, guard);
}

static void emit(enum hdt_emit how, float value, size_t i, uint8_t *dst)
{
    float sum;
    uint16_t half;

    switch (how) {
    case HDT_EMIT_F32:
        memcpy(dst + 4 * i, &value, 4);
        break;
    case HDT_EMIT_ADD:
        memcpy(&sum, dst + 4 * i, 4);
        sum += value;
        memcpy(dst + 4 * i, &sum, 4);
        break;
    default:
        half = hdt_bf16_round(hdt_bits_of(value));
        memcpy(dst + 2 * i, &half, 2);
        break;
    }
}

void hdt_scalar_cast_decode(enum hdt_cast_kind kind, enum hdt_emit how, const uint8_t *src,
                            size_t n, uint8_t *dst)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h;

        memcpy(&h, src + 2 * i, 2);
        emit(how, cast_back(kind, h), i, dst);
    }
}

void hdt_quant_block_zeros(enum hdt_quant_kind kind, const uint8_t *src, size_t n,
                           uint32_t max_bits, uint8_t *codes, struct hdt_codec_guard *guard)
{
    double sum = 0;

    if (hdt_quant_facts[kind].code_bits == 8) {
        memset(codes, 0, n);
    } else {
        memset(codes, hdt_quant_facts[kind].bias * 0x11, n / 2);
        if (n % 2) {
            codes[n / 2] = hdt_quant_facts[kind].bias;
        }
    }
    if (max_bits == 0) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const double x = (double)hdt_float_of(load_u32(src, i));

        sum += x * x;
    }
    guard->err_sq += sum;
    guard->ref_sq += sum;
}

/* One value: its code, the error and what it is measured by. */
struct coded {
    uint8_t code;
    float err, ref;
};

static struct coded int_code(const struct hdt_quant_facts *f, const struct hdt_quant_block *b,
                             float x, const float *dither)
{
    const float t = (x - b->zero) * b->inv;
    float q = ((dither ? t + *dither : t) + HDT_QUANT_MAGIC) - HDT_QUANT_MAGIC;

    if (dither) { /* only a random step can lead out of the range */
        q = q < f->lo ? f->lo : q;
        q = q > f->hi ? f->hi : q;
    }
    return (struct coded){
        .code = (uint8_t)((int)q + f->bias),
        .err = t - q,
        .ref = b->ref_factor != 0.0f ? x * b->ref_factor : t,
    };
}

static struct coded f8_code(const struct hdt_quant_facts *f, const struct hdt_quant_block *b,
                            float x, const float *dither)
{
    const float t = x * b->inv;
    const uint32_t u = hdt_bits_of(t);
    const float a = hdt_float_of(u & 0x7fffffffu);
    const struct small_float r =
        small_float_round(a, f->digits, f->exp_min, dither ? *dither : 0.0f);

    return (struct coded){
        .code = (uint8_t)((u >> 24 & 0x80u) | r.code), .err = a - r.value, .ref = a};
}

static void code_store(const struct hdt_quant_facts *f, uint8_t *codes, size_t i, uint8_t code)
{
    if (f->code_bits == 8) {
        codes[i] = code;
    } else if (i % 2 == 0) {
        codes[i / 2] = code;
    } else {
        codes[i / 2] |= (uint8_t)(code << 4);
    }
}

static void block_encode(enum hdt_quant_kind kind, const struct hdt_quant_in *in, size_t begin,
                         size_t n, const struct hdt_quant_block *b, float factor, uint8_t *codes,
                         struct sums *sums)
{
    const struct hdt_quant_facts *f = &hdt_quant_facts[kind];

    for (size_t i = 0; i < n; i++) {
        const float x = hdt_float_of(load_u32(in->src, begin + i));
        float random = 0.0f, *dither = NULL;
        struct coded c;

        if (in->random) {
            random =
                hdt_random_dither(hdt_random_bits(in->random, in->first + (uint32_t)(begin + i)));
            dither = &random;
        }
        c = f->digits ? f8_code(f, b, x, dither) : int_code(f, b, x, dither);
        code_store(f, codes, i, c.code);
        sums_add(sums, i, c.err, c.ref);
    }
    sums_close_block(sums, hdt_piece_weight(b->err_unit, factor),
                     hdt_piece_weight(b->ref_unit, factor));
}

void hdt_quant_extent_rare(enum hdt_quant_kind kind, const uint8_t *src, size_t n,
                           struct hdt_quant_extent *extent)
{
    const bool minmax = kind == HDT_QUANT_I8_MINMAX || kind == HDT_QUANT_I4_MINMAX;
    const uint32_t limit = minmax ? HDT_QUANT_MINMAX_LIMIT_BITS : HDT_QUANT_LIMIT_BITS;

    memset(extent, 0, sizeof(*extent));
    for (size_t i = 0; i < n; i++) {
        const float x = hdt_float_of(load_u32(src, i));
        const uint32_t a = load_u32(src, i) & 0x7fffffffu;

        extent->n_refused += a >= limit;
        extent->max_bits = a < 0x7f800000u && a > extent->max_bits ? a : extent->max_bits;
        extent->min = i == 0 || x < extent->min ? x : extent->min;
        extent->max = i == 0 || x > extent->max ? x : extent->max;
    }
}

/* Values begin .. end, whole blocks but for the last one of the tensor. */
static void piece_encode(enum hdt_quant_kind kind, const struct hdt_quant_in *in, size_t begin,
                         size_t end, uint8_t *params, uint8_t *codes, struct sums *sums,
                         struct hdt_codec_guard *guard)
{
    const struct hdt_quant_facts *f = &hdt_quant_facts[kind];
    uint64_t n_nonfinite = 0;
    const uint32_t piece_max =
        hdt_kernels_scalar.abs_max(in->src + 4 * begin, end - begin, &n_nonfinite);
    double weight;
    const float factor = hdt_piece_factor(piece_max, &weight);

    hdt_guard_max(guard, piece_max);
    for (size_t i = begin; i < end; i += in->block, params += f->params_len) {
        const size_t n = end - i < in->block ? end - i : in->block;
        uint8_t *block_codes = codes + i * f->code_bits / 8;
        struct hdt_quant_extent e;
        struct hdt_quant_block b;

        hdt_quant_extent_rare(kind, in->src + 4 * i, n, &e);
        guard->n_nonfinite += e.n_refused;
        if (e.n_refused > 0) {
            continue;
        }
        if (hdt_quant_block_make(kind, e.max_bits, e.min, e.max, params, &b)) {
            block_encode(kind, in, i, n, &b, factor, block_codes, sums);
        } else {
            hdt_quant_block_zeros(kind, in->src + 4 * i, n, e.max_bits, block_codes, guard);
        }
    }
    sums_close_piece(sums, weight);
}

void hdt_scalar_quant_encode(enum hdt_quant_kind kind, const struct hdt_quant_in *in,
                             uint8_t *params, uint8_t *codes, struct hdt_codec_guard *guard)
{
    struct sums sums = {0};

    for (size_t i = 0; i < in->n; i += HDT_KERNEL_PIECE) {
        const size_t end = in->n - i < HDT_KERNEL_PIECE ? in->n : i + HDT_KERNEL_PIECE;

        piece_encode(kind, in, i, end, params + i / in->block * hdt_quant_facts[kind].params_len,
                     codes, &sums, guard);
    }
    guard->n += in->n;
    sums_finish(&sums, guard);
}

/* By way of fp16: E5M2 is its upper byte, E4M3 has its subnormals at a 256th of the size. */
static float f8_widen(enum hdt_quant_kind kind, uint8_t code)
{
    const uint16_t sign = (uint16_t)((code & 0x80) << 8);

    if (kind == HDT_QUANT_E5M2) {
        return hdt_float_of(hdt_f16_widen((uint16_t)(code << 8)));
    }
    if ((code & 0x7f) == 0x7f) {
        return hdt_float_of(hdt_f16_widen(sign | 0x7fff));
    }
    return hdt_float_of(hdt_f16_widen((uint16_t)(sign | (code & 0x7f) << 7))) * 256.0f;
}

static float quant_value(enum hdt_quant_kind kind, const uint8_t *codes, size_t i, float scale,
                         float zero)
{
    switch (kind) {
    case HDT_QUANT_I8:
        return (float)(int8_t)codes[i] * scale;
    case HDT_QUANT_I8_MINMAX:
        return (float)codes[i] * scale + zero;
    case HDT_QUANT_I4:
        return (float)((codes[i / 2] >> (i % 2 * 4) & 0xf) - 8) * scale;
    case HDT_QUANT_I4_MINMAX:
        return (float)(codes[i / 2] >> (i % 2 * 4) & 0xf) * scale + zero;
    default:
        return f8_widen(kind, codes[i]) * scale;
    }
}

void hdt_scalar_quant_decode(enum hdt_quant_kind kind, enum hdt_emit how, const uint8_t *params,
                             const uint8_t *codes, size_t n, size_t block, uint8_t *dst)
{
    const struct hdt_quant_facts *f = &hdt_quant_facts[kind];
    float scale = 0, zero = 0;

    for (size_t i = 0; i < n; i++) {
        if (i % block == 0) {
            hdt_quant_params_read(kind, params + i / block * f->params_len, &scale, &zero);
        }
        emit(how, quant_value(kind, codes, i, scale, zero), i, dst);
    }
}

static void flip(uint8_t *x, size_t first, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u = load_u32(x, i), k = (uint32_t)(first + i);

        u ^= (hdt_hadamard_signs[k / 32] >> (k % 32) & 1) << 31;
        memcpy(x + 4 * i, &u, 4);
    }
}

/* n = 2^log2_n values, in place. */
static void rotate_piece(uint8_t *x, size_t first, size_t n, unsigned log2_n, bool back)
{
    const float norm = hdt_hadamard_norm(log2_n);

    if (!back) {
        flip(x, first, n);
    }
    for (size_t i = 0; i < n; i++) {
        const float scaled = hdt_float_of(load_u32(x, i)) * norm;

        memcpy(x + 4 * i, &scaled, 4);
    }
    for (size_t h = 1; h < n; h *= 2) {
        for (size_t i = 0; i < n; i++) {
            if (!(i & h)) {
                const float a = hdt_float_of(load_u32(x, i));
                const float b = hdt_float_of(load_u32(x, i + h)), sum = a + b, difference = a - b;

                memcpy(x + 4 * i, &sum, 4);
                memcpy(x + 4 * (i + h), &difference, 4);
            }
        }
    }
    if (back) {
        flip(x, first, n);
    }
}

void hdt_scalar_rotate_block(uint8_t *x, size_t begin, size_t n, bool back)
{
    for (unsigned k = 10; k <= 10; k--) {
        const size_t len = (size_t)1 << k;

        if (n - begin >= len) {
            rotate_piece(x + 4 * begin, begin, len, k, back);
            begin += len;
        }
    }
}

void hdt_scalar_hadamard(uint8_t *x, size_t n, size_t block, bool back)
{
    for (size_t i = 0; i < n; i += block) {
        hdt_scalar_rotate_block(x + 4 * i, 0, n - i < block ? n - i : block, back);
    }
}
