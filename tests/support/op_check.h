/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_SUPPORT_OP_CHECK_H
#define HDT_TESTS_SUPPORT_OP_CHECK_H

/*
 * Runs an op of the cpu backend with each set of kernels that this processor has and with 1 to 4
 * threads: its outputs must be those of the float64 formula, and the same bits for every number of
 * threads.
 *
 * Tolerance: a float32 result of a sum of k products has a relative error of about sqrt(k) 2^-24,
 * that is a normalised squared error of k 4e-15; 1e-11 leaves room for k = 1000 and a few
 * operations on top, and is far below what a wrong formula gives.
 */
#include "runtime/cpu/cpu_device.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OP_TOLERANCE 1e-11
#define OP_SEED      20240601u
#define OP_PARTS_MAX 4

/* Random values around 0 with deviation 1, and the same in float64. */
struct op_array {
    float *f;
    double *d;
    size_t len;
};

struct op_array hdt_op_array_new(size_t len);
void hdt_op_array_free(struct op_array *a);

/* One output of an op: where it stands in the out buffer, and what it must be. */
struct op_part {
    const char *name;
    const double *want;
    size_t len;
};

/* An op with its inputs: run fills `out` with what the op adds to, and calls the op. */
struct op_case {
    const char *name;
    void (*run)(struct hdt_stream *s, void *arg, float *out);
    void *arg;
    struct op_part parts[OP_PARTS_MAX];
};

void hdt_op_case_check(const struct op_case *c);

/* Once, with the plainest kernels, without a check. */
void hdt_op_case_run_base(const struct op_case *c, float *out);

#ifdef __cplusplus
}
#endif
#endif /* HDT_TESTS_SUPPORT_OP_CHECK_H */
