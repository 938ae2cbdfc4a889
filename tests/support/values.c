/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/support/values.h"
#include "src/base/clock.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void hdt_values_rng_init(struct values_rng *rng, const char *test)
{
    const char *seed = getenv("HDT_TEST_SEED");

    rng->state = seed ? strtoull(seed, NULL, 0) : (uint64_t)hdt_clock_now_ns();
    fprintf(stderr, "%s: HDT_TEST_SEED=%" PRIu64 "\n", test, rng->state);
}

uint64_t hdt_values_fixed_seed(void)
{
    const char *seed = getenv("HDT_TEST_SEED");

    return seed ? strtoull(seed, NULL, 0) : 20261128;
}

/* splitmix64: any seed is a good seed */
uint64_t hdt_values_u64(struct values_rng *rng)
{
    uint64_t z = rng->state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint64_t hdt_values_below(struct values_rng *rng, uint64_t limit)
{
    return hdt_values_u64(rng) % limit;
}

double hdt_values_uniform(struct values_rng *rng)
{
    return (double)(hdt_values_u64(rng) >> 11) * 0x1p-53;
}

float hdt_values_normal(struct values_rng *rng)
{
    double u = 1.0 - hdt_values_uniform(rng), v = hdt_values_uniform(rng);

    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}

const char *hdt_values_kind_name(enum values_kind kind)
{
    static const char *const names[VALUES_KIND_COUNT] = {
        [VALUES_NORMAL] = "normal",    [VALUES_HEAVY_TAILED] = "heavy tailed",
        [VALUES_ZEROS] = "zeros",      [VALUES_CONSTANT] = "constant",
        [VALUES_SPARSE] = "sparse",    [VALUES_DENORMAL] = "denormal",
        [VALUES_SPECIAL] = "NaN, Inf", [VALUES_BITS] = "any bits",
    };

    return names[kind];
}

static float from_bits(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, 4);
    return f;
}

static float value(struct values_rng *rng, enum values_kind kind)
{
    static const uint32_t special[] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7f800001u,
                                       0xffffffffu, 0x7fbfffffu, 0x80000000u, 0x7f7fffffu};
    uint32_t bits = (uint32_t)(hdt_values_u64(rng) >> 32);

    switch (kind) {
    case VALUES_NORMAL:
        return hdt_values_normal(rng);
    case VALUES_HEAVY_TAILED:
        return hdt_values_normal(rng) / (float)(hdt_values_uniform(rng) + 1e-6);
    case VALUES_CONSTANT:
        return -1.7f;
    case VALUES_SPARSE:
        return bits % 50 == 0 ? hdt_values_normal(rng) : 0.0f;
    case VALUES_DENORMAL:
        return from_bits(bits & (bits >> 7 & 1 ? 0x80ffffffu : 0x80000000u));
    case VALUES_SPECIAL:
        return bits % 5 == 0 ? from_bits(special[bits / 5 % 8]) : hdt_values_normal(rng);
    case VALUES_BITS:
        return from_bits(bits);
    default:
        return 0.0f;
    }
}

void hdt_values_fill(struct values_rng *rng, enum values_kind kind, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = value(rng, kind);
    }
}
