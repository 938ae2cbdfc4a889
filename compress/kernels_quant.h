/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_COMPRESS_KERNELS_QUANT_H
#define HDT_COMPRESS_KERNELS_QUANT_H

/*
 * What the scalar kernels and their SIMD twins share: the arithmetic of one block's parameters, of
 * the random numbers, and the rare cases that no twin has a fast version of.
 */
#include "compress/kernels.h"

#include <string.h>

/* Values whose guard sums are taken together, and the largest block. A piece of 4 KiB stays in the
 * first cache between the pass for the largest magnitudes and the one that codes. */
#define HDT_KERNEL_PIECE ((size_t)1024)

/* Below this largest magnitude a block is coded as zeros, and a cast's piece is summed in double:
 * no factor is subnormal then, whatever the processor's flush-to-zero mode. */
#define HDT_QUANT_ABS_MIN 0x1p-110f

/* Finite values from here on have no min-max form, as the range of a block could overflow. */
#define HDT_QUANT_MINMAX_LIMIT_BITS 0x7e800000u /* 2^126 */

/* And here no other form: a code times its scale could pass the largest float. */
#define HDT_QUANT_LIMIT_BITS 0x7f000000u /* 2^127 */

/* Adding and taking away 1.5 * 2^23 rounds a small float to the nearest even integer. */
#define HDT_QUANT_MAGIC 12582912.0f

/* Facts about a kind. For the kinds of integers: codes are within lo .. hi and stored with `bias`
 * added. For fp8: `digits` of the mantissa behind the point, the exponent of the smallest normal,
 * the exponent of the largest number, whose mantissa is 1.75 in both formats. */
struct hdt_quant_facts {
    uint8_t params_len; /* bytes of a block's parameters */
    uint8_t code_bits;
    int8_t digits, exp_min, exp_max;
    float lo, hi;
    uint8_t bias;
};

static const struct hdt_quant_facts hdt_quant_facts[HDT_QUANT_COUNT] = {
    [HDT_QUANT_I8] = {.params_len = 4, .code_bits = 8, .lo = -127, .hi = 127},
    [HDT_QUANT_I8_MINMAX] = {.params_len = 8, .code_bits = 8, .lo = 0, .hi = 255},
    [HDT_QUANT_I4] = {.params_len = 2, .code_bits = 4, .lo = -7, .hi = 7, .bias = 8},
    [HDT_QUANT_I4_MINMAX] = {.params_len = 4, .code_bits = 4, .lo = 0, .hi = 15},
    [HDT_QUANT_E4M3] = {.params_len = 1, .code_bits = 8, .digits = 3, .exp_min = -6, .exp_max = 8},
    [HDT_QUANT_E5M2] =
        {.params_len = 1, .code_bits = 8, .digits = 2, .exp_min = -14, .exp_max = 15},
};

/* One block's numbers for its encoder: t = (x - zero) * inv becomes a code. Errors are taken of t,
 * in units of err_unit; magnitudes of t or, for min-max kinds, of x * ref_factor, in units of
 * ref_unit. */
struct hdt_quant_block {
    float inv, zero, ref_factor;
    float err_unit, ref_unit;
};

static inline float hdt_float_of(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, 4);
    return f;
}

static inline uint32_t hdt_bits_of(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, 4);
    return bits;
}

static inline uint16_t hdt_bf16_round(uint32_t u)
{
    if ((u & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(u >> 16 | 0x40);
    }
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* 32 random bits of value number i: two rounds of multiply and shift (the constants are those of
 * Wellons' search for mixers of low bias) around the two halves of the seed's mix. */
static inline uint32_t hdt_random_bits(const struct hdt_random *r, uint32_t i)
{
    uint32_t x = i + r->add;

    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x += r->mix;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return x;
}

/* From the upper half of random bits: evenly between -1/2 and 1/2, neither of them. */
static inline float hdt_random_dither(uint32_t bits)
{
    return (float)((int32_t)(bits >> 16) * 2 - 65535) * 0x1p-17f;
}

/* Factor by which the values of a piece with this largest magnitude (finite) are multiplied before
 * they are squared in float, a power of two; *weight takes a sum of squares back. Pieces below
 * 2^-111, which are not summed in float, get a factor that is as good as any. */
static inline float hdt_piece_factor(uint32_t max_bits, double *weight)
{
    const uint32_t exponent = max_bits >> 23 > 16 ? max_bits >> 23 : 16;
    const float factor = hdt_float_of((257 - exponent) << 23), back = 1.0f / factor;

    *weight = (double)back * (double)back;
    return factor;
}

/* Whether a cast's piece with this largest magnitude takes the plain way: no result can become
 * infinite, and sums of scaled squares stay within float. */
static inline bool hdt_cast_is_plain(enum hdt_cast_kind kind, uint32_t max_bits)
{
    return max_bits >= 0x08000000u &&
           max_bits <= (kind == HDT_CAST_BF16 ? 0x7f7f0000u : 0x477fe000u);
}

/* What the first pass over a block finds. */
struct hdt_quant_extent {
    uint64_t n_refused; /* values without a coded form */
    uint32_t max_bits;  /* largest finite magnitude */
    float min, max;     /* of use when none is refused */
};

/* The scalar definition, also taken by twins when there is something to refuse. */
void hdt_quant_extent_rare(enum hdt_quant_kind kind, const uint8_t *src, size_t n,
                           struct hdt_quant_extent *extent);

/* Rotate values begin .. n of a block whose first value is x[0], in pieces as described at the
 * table's member. */
void hdt_scalar_rotate_block(uint8_t *x, size_t begin, size_t n, bool back);

/* fp32 bits <-> fp16 bits, round to nearest even; NaN stays NaN (made quiet). */
uint16_t hdt_f16_round(uint32_t u);
uint32_t hdt_f16_widen(uint16_t h);

/* The scalar table's members. */
void hdt_scalar_cast_encode(enum hdt_cast_kind kind, const struct hdt_cast_in *in, uint8_t *dst,
                            struct hdt_codec_guard *guard);
void hdt_scalar_cast_decode(enum hdt_cast_kind kind, enum hdt_emit emit, const uint8_t *src,
                            size_t n, uint8_t *dst);
void hdt_scalar_quant_encode(enum hdt_quant_kind kind, const struct hdt_quant_in *in,
                             uint8_t *params, uint8_t *codes, struct hdt_codec_guard *guard);
void hdt_scalar_quant_decode(enum hdt_quant_kind kind, enum hdt_emit emit, const uint8_t *params,
                             const uint8_t *codes, size_t n, size_t block, uint8_t *dst);
void hdt_scalar_hadamard(uint8_t *x, size_t n, size_t block, bool back);

/* A block that is coded as zeros: its codes and what they cost. */
void hdt_quant_block_zeros(enum hdt_quant_kind kind, const uint8_t *src, size_t n,
                           uint32_t max_bits, uint8_t *codes, struct hdt_codec_guard *guard);

/* A piece of a cast with values that are not finite or become so, or are all tiny. */
void hdt_cast_piece_rare(enum hdt_cast_kind kind, const struct hdt_cast_in *in, size_t begin,
                         size_t n, uint8_t *dst, struct hdt_codec_guard *guard);

/* What the square of a block's unit counts within its piece. */
static inline float hdt_piece_weight(float unit, float factor)
{
    const float scaled = unit * factor;

    return scaled * scaled;
}

static inline void hdt_guard_max(struct hdt_codec_guard *guard, uint32_t max_bits)
{
    const float max_abs = hdt_float_of(max_bits);

    guard->max_abs = guard->max_abs < max_abs ? max_abs : guard->max_abs;
}

/* Inlined wherever the kind is a constant, and into code for any instruction set. */
#define HDT_QUANT_INLINE static inline __attribute__((always_inline))

/* fp8: the power of two that brings the largest magnitude just within the format. */
HDT_QUANT_INLINE void hdt_quant_make_f8(const struct hdt_quant_facts *f, uint32_t max_bits,
                                        uint8_t *params, struct hdt_quant_block *b)
{
    const bool beyond = (max_bits & 0x7fffffu) > 0x600000u; /* mantissa above 1.75 */
    const uint32_t exponent = (max_bits >> 23) - (uint32_t)f->exp_max + (beyond ? 1u : 0u);

    params[0] = (uint8_t)exponent;
    b->inv = hdt_float_of((254 - exponent) << 23);
    b->err_unit = b->ref_unit = hdt_float_of(exponent << 23);
}

/* A scale of 16 bits is a bf16. */
HDT_QUANT_INLINE float hdt_scale_write(uint8_t *params, float scale, bool half)
{
    uint16_t h = hdt_bf16_round(hdt_bits_of(scale));

    if (!half) {
        memcpy(params, &scale, 4);
        return scale;
    }
    memcpy(params, &h, 2);
    return hdt_float_of((uint32_t)h << 16);
}

/* Zero points of 16 bits are rounded down, so that no value lies below. */
HDT_QUANT_INLINE float hdt_zero_write(uint8_t *params, float zero, bool half)
{
    uint32_t u = hdt_bits_of(zero);
    uint16_t h;

    if (!half) {
        memcpy(params, &zero, 4);
        return zero;
    }
    h = (uint16_t)((u >> 31 ? u + 0xffff : u) >> 16);
    memcpy(params, &h, 2);
    return hdt_float_of((uint32_t)h << 16);
}

HDT_QUANT_INLINE void hdt_quant_make_minmax(enum hdt_quant_kind kind, uint32_t max_bits, float min,
                                            float max, uint8_t *params, struct hdt_quant_block *b)
{
    const struct hdt_quant_facts *f = &hdt_quant_facts[kind];
    const bool half = f->params_len == 4;
    const float max_abs = hdt_float_of(max_bits);
    float range, scale;

    b->zero = hdt_zero_write(params + (half ? 2 : 4), min + 0.0f, half); /* -0 becomes 0 */
    range = max - b->zero;
    range = range < HDT_QUANT_ABS_MIN ? 0.0f : range;
    scale = hdt_scale_write(params, range / f->hi, half);
    b->inv = range > 0.0f ? (half ? 1.0f / scale : f->hi / range) : 0.0f;
    b->ref_factor = 1.0f / max_abs;
    b->err_unit = scale;
    b->ref_unit = max_abs;
}

/* Write the parameters of a block and set *b, from the bits of its largest magnitude (finite) and,
 * for min-max kinds, its smallest and largest value. False: the block is coded as zeros. */
HDT_QUANT_INLINE bool hdt_quant_block_make(enum hdt_quant_kind kind, uint32_t max_bits, float min,
                                           float max, uint8_t *params, struct hdt_quant_block *b)
{
    const struct hdt_quant_facts *f = &hdt_quant_facts[kind];
    const float max_abs = hdt_float_of(max_bits);
    float scale;

    memset(b, 0, sizeof(*b));
    if (max_abs < HDT_QUANT_ABS_MIN) {
        memset(params, 0, f->params_len);
        return false;
    }
    switch (kind) {
    case HDT_QUANT_E4M3:
    case HDT_QUANT_E5M2:
        hdt_quant_make_f8(f, max_bits, params, b);
        return true;
    case HDT_QUANT_I8_MINMAX:
    case HDT_QUANT_I4_MINMAX:
        hdt_quant_make_minmax(kind, max_bits, min, max, params, b);
        return true;
    default:
        scale = hdt_scale_write(params, max_abs / f->hi, kind == HDT_QUANT_I4);
        b->inv = kind == HDT_QUANT_I4 ? 1.0f / scale : f->hi / max_abs;
        b->err_unit = b->ref_unit = scale;
        return true;
    }
}

/* Parameters of a block for its decoder. */
HDT_QUANT_INLINE void hdt_quant_params_read(enum hdt_quant_kind kind, const uint8_t *params,
                                            float *scale, float *zero)
{
    uint16_t half[2];

    *zero = 0.0f;
    switch (kind) {
    case HDT_QUANT_I8_MINMAX:
        memcpy(zero, params + 4, 4);
        memcpy(scale, params, 4);
        break;
    case HDT_QUANT_I8:
        memcpy(scale, params, 4);
        break;
    case HDT_QUANT_I4_MINMAX:
        memcpy(half, params, 4);
        *scale = hdt_float_of((uint32_t)half[0] << 16);
        *zero = hdt_float_of((uint32_t)half[1] << 16);
        break;
    case HDT_QUANT_I4:
        memcpy(half, params, 2);
        *scale = hdt_float_of((uint32_t)half[0] << 16);
        break;
    default:
        *scale = hdt_float_of((uint32_t)params[0] << 23);
        break;
    }
}

/* Bit i mod 32 of word i div 32: whether value i of a block changes its sign before the block is
 * rotated. The lowest random bit of value i for the seed 0. */
extern const uint32_t hdt_hadamard_signs[32];

/* 1 / sqrt(n), rounded, for n = 2^log2_n up to 1024. */
static inline float hdt_hadamard_norm(unsigned log2_n)
{
    const float half = hdt_float_of((127 - log2_n / 2) << 23);

    return log2_n & 1 ? half * 0x1.6a09e6p-1f : half;
}

#endif /* HDT_COMPRESS_KERNELS_QUANT_H */
