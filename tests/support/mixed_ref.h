/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_SUPPORT_MIXED_REF_H
#define HDT_TESTS_SUPPORT_MIXED_REF_H

/*
 * The cpu backend with struct hdt_mixed_ops by their definition: what is given in bfloat16 is made
 * float32, the namesake in struct hdt_ops computes, what is to be bfloat16 is rounded. Slow, and
 * for every machine: so a stage in mixed precision is tested where no device has it.
 */
#include "runtime/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A copy of the table of `cpu`, which has HDT_BACKEND_HOST_MEMORY, with `mixed` set. One at a time.
 */
const struct hdt_backend *hdt_mixed_ref(const struct hdt_backend *cpu);

/* The same, but wrong: it cuts bits off instead of rounding. */
const struct hdt_backend *hdt_mixed_ref_truncating(const struct hdt_backend *cpu);

#ifdef __cplusplus
}
#endif
#endif /* HDT_TESTS_SUPPORT_MIXED_REF_H */
