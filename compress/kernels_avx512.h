/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_COMPRESS_KERNELS_AVX512_H
#define HDT_COMPRESS_KERNELS_AVX512_H

/* Kernels for x86-64 processors with AVX-512 F, BW, VL and DQ; HDT_KERNELS_AVX512 says whether they
 * were compiled. */
#include "compress/kernels.h"

#if defined(__x86_64__)
# define HDT_KERNELS_AVX512 1
extern const struct hdt_kernels hdt_kernels_avx512;
#endif

#endif /* HDT_COMPRESS_KERNELS_AVX512_H */
