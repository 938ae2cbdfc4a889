/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_COMPRESS_SPARSE_KERNELS_H
#define HDT_COMPRESS_SPARSE_KERNELS_H

/*
 * The inner loops of the codecs that keep a feedback: top-k, random-k and low rank. The scalar
 * table defines the result; every other table gives the same bits.
 *
 * A *magnitude* is the bits of a float without its sign: ordered as numbers are. Foreign tensors
 * are bytes of any alignment; residuals, factors and scratch memory are aligned floats.
 */
#include "compress/kernels.h"

#include <stddef.h>
#include <stdint.h>

/* Positions that `collect` may write beyond those it returns: whole vectors, without branches. */
#define HDT_SPARSE_COLLECT_MORE 16

struct hdt_sparse_kernels {
    const char *name;

    /* r[i] += x[i], both finite; a sum beyond the largest float stays at it. Adds r[i]^2 to
     * sq[i mod 8]. Value i belongs to group (i / (8 stride)) 8 + i mod 8, stride a power of two:
     * sets maxima[group] to the largest magnitude of each of its 8 ceil(n / (8 stride)) groups. */
    void (*absorb)(float *r, const uint8_t *x, size_t n, size_t stride, uint32_t *maxima,
                   double sq[HDT_KERNEL_LANES]);

    /* How many of n magnitudes are at least `least`. */
    size_t (*count)(const uint32_t *magnitudes, size_t n, uint32_t least);

    /* Positions of the n <= 65536 floats whose magnitude is at least `least`, ascending; room for
     * n + HDT_SPARSE_COLLECT_MORE. Returns their number. */
    size_t (*collect)(const float *r, size_t n, uint32_t least, uint16_t *positions);

    /* Sum of a[i] b[i] in float lanes, value i in lane i mod 8, summed by hdt_kernels_sum_lanes. */
    float (*dot)(const float *a, const float *b, size_t n);

    /* y[i] += a x[i] */
    void (*axpy)(float *y, const float *x, float a, size_t n);
};

extern const struct hdt_sparse_kernels hdt_sparse_kernels_scalar;
#if defined(__x86_64__)
# define HDT_SPARSE_KERNELS_X86 1
extern const struct hdt_sparse_kernels hdt_sparse_kernels_avx2;
extern const struct hdt_sparse_kernels hdt_sparse_kernels_avx512;
#endif

/* All tables that this processor can run, scalar first; *n is their number. */
const struct hdt_sparse_kernels *const *hdt_sparse_kernels_all(size_t *n);

/* The fastest of them. */
const struct hdt_sparse_kernels *hdt_sparse_kernels_best(void);

#endif /* HDT_COMPRESS_SPARSE_KERNELS_H */
