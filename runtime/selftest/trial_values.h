/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_SELFTEST_TRIAL_VALUES_H
#define HDT_RUNTIME_SELFTEST_TRIAL_VALUES_H

/* What the arrays of a case hold: numbers, and their bytes in the array's type. For programs of one
 * thread. */
#include "runtime/selftest/cases.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_TRIAL_SEED 20240601u

/* The next random value, for element i of an array; the same ones in every run. */
double hdt_trial_value(const struct backend_array *a, const struct backend_shape *s, size_t i);

/* Bytes of a value of the type; to 8 and 16-bit types by dropping bits, which is good enough to
 * make inputs. */
void hdt_trial_store(enum hdt_dtype dtype, double value, char *at);
double hdt_trial_load(enum hdt_dtype dtype, const char *at);

/* Instead of random values, where the array has room: every pattern of a 16-bit type, or every
 * upper half of a 32-bit one. */
void hdt_trial_patterns(const struct backend_array *a, char *at);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_SELFTEST_TRIAL_VALUES_H */
