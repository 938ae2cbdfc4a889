/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_COMPRESS_SPARSE_VALUES_H
#define HDT_COMPRESS_SPARSE_VALUES_H

/*
 * The few values that a sparse codec keeps of a block, at 2, 4, 8 or 16 bits each.
 *
 * Coded form:   | low bf16 | step bf16 |  (not at 16 bits)   | code 0 | code 1 | ... | to a byte
 *
 * A code of 16 bits is the value as bf16. A shorter one of b bits is the sign in its highest bit
 * and a number c below: value = +-(low + c step), b - 1 bits of magnitude between the least and the
 * largest that is kept. Values that were kept for their size have no small magnitudes, on which a
 * quantizer from zero would waste its codes. With 2 bits there are two magnitudes: the means of
 * those up to and above the mean, one step of Lloyd's algorithm. Bits are packed from the lowest.
 */
#include "src/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Values of one block of a sparse codec. */
#define HDT_SPARSE_BLOCK ((size_t)4096)

/* The bits that a code may have. */
bool hdt_sparse_values_bits_fit(unsigned bits);

/* Coded length of k values, bytes. */
size_t hdt_sparse_values_len(size_t k, unsigned bits);

/* Code k <= HDT_SPARSE_BLOCK finite values; `decoded` receives what a decoder will see: always
 * finite, of the value's sign. */
void hdt_sparse_values_encode(const float *values, size_t k, unsigned bits, uint8_t *dst,
                              float *decoded);

/* The inverse, of hdt_sparse_values_len foreign bytes. HDT_EPROTO when a value is not finite. */
enum hdt_status hdt_sparse_values_decode(const uint8_t *src, size_t k, unsigned bits, float *values,
                                         struct hdt_error *err);

/* Bits packed from the lowest of each byte on. `n_bits` of a number are at most 16; `dst` is
 * written up to the last byte by _end. */
struct hdt_bit_writer {
    uint8_t *dst;
    uint64_t bits;
    unsigned n;
};
struct hdt_bit_reader {
    const uint8_t *src;
    uint64_t bits;
    unsigned n;
};

static inline void hdt_bit_put(struct hdt_bit_writer *w, unsigned value, unsigned n_bits)
{
    w->bits |= (uint64_t)value << w->n;
    w->n += n_bits;
    for (; w->n >= 8; w->n -= 8) {
        *w->dst++ = (uint8_t)w->bits;
        w->bits >>= 8;
    }
}

static inline void hdt_bit_end(struct hdt_bit_writer *w)
{
    if (w->n > 0) {
        *w->dst++ = (uint8_t)w->bits;
    }
}

/* Reads no byte beyond the one that holds the last bit asked for. */
static inline unsigned hdt_bit_get(struct hdt_bit_reader *r, unsigned n_bits)
{
    unsigned value;

    for (; r->n < n_bits; r->n += 8) {
        r->bits |= (uint64_t)*r->src++ << r->n;
    }
    value = (unsigned)(r->bits & ((1u << n_bits) - 1));
    r->bits >>= n_bits;
    r->n -= n_bits;
    return value;
}

#endif /* HDT_COMPRESS_SPARSE_VALUES_H */
