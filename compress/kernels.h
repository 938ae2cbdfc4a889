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

/* Float sums over a block run in this many lanes, value i in lane i mod 8, so that eight-wide code
 * adds in the same order as scalar code. */
#define HDT_KERNEL_LANES 8

struct hdt_kernels {
    const char *name;

    /* fp32 -> bf16, round to nearest even; NaN stays NaN (made quiet). */
    void (*bf16_encode)(const uint8_t *src, size_t n, uint8_t *dst);

    /* The same; adds the guard's figures of n values to *guard. */
    void (*bf16_encode_guard)(const uint8_t *src, size_t n, uint8_t *dst,
                              struct hdt_codec_guard *guard);

    void (*bf16_decode)(const uint8_t *src, size_t n, uint8_t *dst);

    /* Largest finite magnitude of n floats, as bits; adds to *n_nonfinite. */
    uint32_t (*abs_max)(const uint8_t *src, size_t n, uint64_t *n_nonfinite);

    /* n <= 256 finite values, |x| inv <= 127 + rounding: dst[i] = round(x inv), nearest even; sets
     * sums[0] to the sum of (x inv - dst)^2, sums[1] to that of (x inv)^2, in float lanes. */
    void (*int8_encode)(const uint8_t *src, size_t n, float inv, uint8_t *dst, float sums[2]);

    /* dst[i] = code[i] * scale */
    void (*int8_decode)(const uint8_t *src, size_t n, float scale, uint8_t *dst);

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
float hdt_kernels_sum_lanes(const float lanes[HDT_KERNEL_LANES]);
double hdt_kernels_sum_lanes_f64(const double lanes[HDT_KERNEL_LANES]);

#endif /* HDT_COMPRESS_KERNELS_H */
