/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_RNG_H
#define HDT_TESTS_RNG_H

/* Random numbers of a test (xorshift64: Marsaglia, "Xorshift RNGs", 2003, triple 13, 7, 17); who
 * includes this has its own, seeds it with anything but 0 and prints the seed. */
#include <stdint.h>

static uint64_t rng_state;

/* [0, n) */
static inline uint64_t rng(uint64_t n)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return rng_state % n;
}

#endif /* HDT_TESTS_RNG_H */
