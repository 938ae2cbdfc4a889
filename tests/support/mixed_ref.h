/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_SUPPORT_MIXED_REF_H
#define HDT_TESTS_SUPPORT_MIXED_REF_H

/*
 * The cpu backend with struct hdt_mixed_ops by their definition: what is given in bfloat16 is made
 * float32, the namesake in struct hdt_ops computes, what is to be bfloat16 is rounded. Slow, and
 * for every machine: so a stage in mixed precision is tested where no device has it. And with
 * struct hdt_fp8_ops, in float64.
 */
#include "runtime/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A copy of the table of `cpu`, which has HDT_BACKEND_HOST_MEMORY, with `mixed` and `fp8` set. One
 * at a time. */
const struct hdt_backend *hdt_mixed_ref(const struct hdt_backend *cpu);

/* HDT_DTYPE_F8E4M3 or HDT_DTYPE_F8E5M2: x rounded to nearest even, saturating; its code; the value
 * of a code. */
double hdt_fp8_round(enum hdt_dtype dtype, double x);
uint8_t hdt_fp8_code(enum hdt_dtype dtype, double x);
double hdt_fp8_value(enum hdt_dtype dtype, uint8_t code);
/* The same, but wrong: it cuts bits off instead of rounding. */
const struct hdt_backend *hdt_mixed_ref_truncating(const struct hdt_backend *cpu);

#ifdef __cplusplus
}
#endif
#endif /* HDT_TESTS_SUPPORT_MIXED_REF_H */
