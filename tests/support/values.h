/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_SUPPORT_VALUES_H
#define HDT_TESTS_SUPPORT_VALUES_H

/* Random numbers and test contents that can be played again from a printed seed. */
#include <stddef.h>
#include <stdint.h>

struct values_rng {
    uint64_t state;
};

/* Seed from HDT_TEST_SEED or the clock; printed, so that a failure can be played again. */
void hdt_values_rng_init(struct values_rng *rng, const char *test);

/* The same seed each time, unless HDT_TEST_SEED names another: of simulations whose bounds are of
 * what comes in most runs, over several seeds from this one on. They print it where they fail. */
uint64_t hdt_values_fixed_seed(void);

uint64_t hdt_values_u64(struct values_rng *rng);
uint64_t hdt_values_below(struct values_rng *rng, uint64_t limit); /* [0, limit), limit > 0 */
double hdt_values_uniform(struct values_rng *rng);                 /* [0, 1) */
float hdt_values_normal(struct values_rng *rng);

enum values_kind {
    VALUES_NORMAL,
    VALUES_HEAVY_TAILED, /* normal / uniform: a few values are far out */
    VALUES_ZEROS,
    VALUES_CONSTANT,
    VALUES_SPARSE,   /* one in 50 is not zero */
    VALUES_DENORMAL, /* subnormals, both zeros, the smallest normals */
    VALUES_SPECIAL,  /* NaNs of all kinds and infinities among normals */
    VALUES_BITS,     /* every bit pattern */
    VALUES_KIND_COUNT
};

const char *hdt_values_kind_name(enum values_kind kind);

/* Fill n floats. */
void hdt_values_fill(struct values_rng *rng, enum values_kind kind, float *out, size_t n);

#endif /* HDT_TESTS_SUPPORT_VALUES_H */
