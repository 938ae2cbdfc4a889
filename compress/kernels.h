/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_COMPRESS_KERNELS_H
#define HDT_COMPRESS_KERNELS_H

/*
 * The inner loops of the codecs. The scalar table defines the result; every other table gives the
 * same bits, sums of the guard included, and is taken when the processor has what it needs.
 *
 * Sources and destinations are bytes of any alignment that do not overlap; floats are in the
 * machine's order, which configure requires to be little-endian.
 */
#include "compress/codec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Sums of the guard run in this many lanes, value i of a block in lane i mod 16, so that code of
 * any width adds in the same order: squares in float within a block, blocks in double. */
#define HDT_GUARD_LANES 16

/* Lanes of other sums that code of any width adds in the same order. */
#define HDT_KERNEL_LANES 8

/* Stochastic rounding: the random bits of a value follow from a seed and the value's number alone,
 * so that neither the width of the code nor the order of calls matters. */
struct hdt_random {
    uint32_t add, mix;
};

/* Forms of a block quantizer (doc/codecs.md). MINMAX: with a zero point, else symmetric. */
enum hdt_quant_kind {
    HDT_QUANT_I8,
    HDT_QUANT_I8_MINMAX,
    HDT_QUANT_I4,
    HDT_QUANT_I4_MINMAX,
    HDT_QUANT_E4M3,
    HDT_QUANT_E5M2,
    HDT_QUANT_COUNT
};

enum hdt_cast_kind { HDT_CAST_BF16, HDT_CAST_F16, HDT_CAST_COUNT };

/* What a decoder does with a value. */
enum hdt_emit {
    HDT_EMIT_F32,  /* dst[i] = value, fp32 */
    HDT_EMIT_ADD,  /* dst[i] += value, fp32 */
    HDT_EMIT_BF16, /* dst[i] = value rounded to bf16 */
    HDT_EMIT_COUNT
};

struct hdt_cast_in {
    const uint8_t *src; /* n floats */
    size_t n;
    const struct hdt_random *random; /* NULL: round to nearest even */
    uint32_t first;                  /* number of the first value, for random bits */
};

struct hdt_quant_in {
    const uint8_t *src; /* n floats, a whole number of blocks but for the tensor's last one */
    size_t n;
    size_t block;                    /* values per block: 32 .. 1024, a power of two */
    const struct hdt_random *random; /* NULL: round to nearest even */
    uint32_t first;                  /* number of the first value, for random bits */
};

struct hdt_kernels {
    const char *name;

    /* fp32 -> bf16, round to nearest even; NaN stays NaN (made quiet). */
    void (*bf16_encode)(const uint8_t *src, size_t n, uint8_t *dst);
    void (*bf16_decode)(const uint8_t *src, size_t n, uint8_t *dst);

    /* Largest finite magnitude of n floats, as bits; adds to *n_nonfinite. */
    uint32_t (*abs_max)(const uint8_t *src, size_t n, uint64_t *n_nonfinite);

    /* fp32 -> 2-byte floats; adds the guard's figures of n values to *guard. */
    void (*cast_encode)(enum hdt_cast_kind kind, const struct hdt_cast_in *in, uint8_t *dst,
                        struct hdt_codec_guard *guard);
    void (*cast_decode)(enum hdt_cast_kind kind, enum hdt_emit emit, const uint8_t *src, size_t n,
                        uint8_t *dst);

    /* Blocks of fp32 -> parameters and codes; adds the guard's figures to *guard. A block that
     * holds values without a coded form is counted in n_nonfinite and not written. */
    void (*quant_encode)(enum hdt_quant_kind kind, const struct hdt_quant_in *in, uint8_t *params,
                         uint8_t *codes, struct hdt_codec_guard *guard);

    /* The inverse. Any bytes are fit for it. */
    void (*quant_decode)(enum hdt_quant_kind kind, enum hdt_emit emit, const uint8_t *params,
                         const uint8_t *codes, size_t n, size_t block, uint8_t *dst);

    /* Rotate each block of n floats in place: random signs, then the orthonormal Walsh-Hadamard
     * transform; `back` is the inverse. The last block may be short: it is rotated in pieces, the
     * powers of two that its length is a sum of, largest first. */
    void (*hadamard)(uint8_t *x, size_t n, size_t block, bool back);

    /* fp32 <-> fp16 (IEEE binary16), round to nearest even; NaN stays NaN (made quiet). */
    void (*f16_encode)(const uint8_t *src, size_t n, uint8_t *dst);
    void (*f16_decode)(const uint8_t *src, size_t n, uint8_t *dst);

    /* fp32: dst[i] = a[i] + b[i], and x[i] = x[i] / by. dst may be a or b itself. Which of two NaNs
     * a sum becomes is left open. */
    void (*add)(const uint8_t *a, const uint8_t *b, size_t n, uint8_t *dst);
    void (*divide)(uint8_t *x, size_t n, float by);
};

extern const struct hdt_kernels hdt_kernels_scalar;

/* All tables that this processor can run, scalar first; *n is their number. */
const struct hdt_kernels *const *hdt_kernels_all(size_t *n);

/* The fastest table that this processor can run. */
const struct hdt_kernels *hdt_kernels_best(void);

/* Sum of the lanes in the one order that all tables use. */
double hdt_kernels_sum_guard(const double lanes[HDT_GUARD_LANES]);
float hdt_kernels_sum_lanes(const float lanes[HDT_KERNEL_LANES]);
double hdt_kernels_sum_lanes_f64(const double lanes[HDT_KERNEL_LANES]);

/* The random bits that belong to a seed: the two halves of the first number of splitmix64 (Steele,
 * Lea, Flood 2014). */
void hdt_random_seed(struct hdt_random *random, uint64_t seed);

#endif /* HDT_COMPRESS_KERNELS_H */
