/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_COMPRESS_PLANES_H
#define HDT_COMPRESS_PLANES_H

/*
 * Elements cut into planes, plane p the bytes p of all of them, and joined again: what stands
 * around the entropy coder of the lossless codec. The scalar table is the definition; every other
 * one gives the same bytes.
 */
#include "compress/codec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Byte p of element i goes to planes[p][i], byte 0 being the lowest; each element is first rotated
 * left by one bit when `rotate` is set. Elements of 2 and of 4 bytes; join is the inverse. Any
 * alignment; source and planes do not overlap. */
struct hdt_planes_kernels {
    const char *name;
    void (*split2)(const uint8_t *src, size_t n, bool rotate, uint8_t *const planes[]);
    void (*split4)(const uint8_t *src, size_t n, bool rotate, uint8_t *const planes[]);
    void (*join2)(const uint8_t *const planes[], size_t n, bool rotate, uint8_t *dst);
    void (*join4)(const uint8_t *const planes[], size_t n, bool rotate, uint8_t *dst);
};

extern const struct hdt_planes_kernels hdt_planes_scalar;
#if defined(__x86_64__)
# define HDT_PLANES_X86 1
extern const struct hdt_planes_kernels hdt_planes_avx2;
extern const struct hdt_planes_kernels hdt_planes_avx512;
#endif

/* All tables that this processor can run, scalar first and the fastest last; *n is their number. */
const struct hdt_planes_kernels *const *hdt_planes_all(size_t *n);

/* Are elements of this dtype rotated? Floats of two bytes or more are: it takes the sign out of the
 * way of the exponent. */
bool hdt_planes_rotates(enum hdt_dtype dtype);

/* Split or join elements of `size` bytes, 1, 2, 4 or 8. */
void hdt_planes_split(const struct hdt_planes_kernels *k, size_t size, bool rotate,
                      const uint8_t *src, size_t n, uint8_t *const planes[]);
void hdt_planes_join(const struct hdt_planes_kernels *k, size_t size, bool rotate,
                     const uint8_t *const planes[], size_t n, uint8_t *dst);

#ifdef __cplusplus
}
#endif
#endif /* HDT_COMPRESS_PLANES_H */
