/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_COMPRESS_KERNELS_AVX2_H
#define HDT_COMPRESS_KERNELS_AVX2_H

/* Kernels for x86-64 processors with AVX2 and F16C; HDT_KERNELS_AVX2 says whether they were
 * compiled. */
#include "compress/kernels.h"

#if defined(__x86_64__)
# define HDT_KERNELS_AVX2 1
extern const struct hdt_kernels hdt_kernels_avx2;
#endif

#endif /* HDT_COMPRESS_KERNELS_AVX2_H */
