/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/support/content.h"

#include <string.h>

uint32_t hdt_content_len(uint64_t hash, uint32_t cap)
{
    return hash % 4 == 0   ? cap
           : hash % 4 == 1 ? 1 + (uint32_t)(hash >> 8) % 9000 % cap
                           : 1 + (uint32_t)(hash >> 8) % cap;
}

void hdt_content_fill(uint64_t hash, bool is_noise, uint8_t *bytes, uint32_t len)
{
    uint64_t x = hash | 1;
    uint32_t i;

    for (i = 0; i + 8 <= len; i += 8) {
        uint64_t word;

        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        word = is_noise ? x : (x & 0x03ff03ff03ff03ffull) + 0x3e003e003e003e00ull;
        memcpy(bytes + i, &word, 8);
    }
    for (; i < len; i++) {
        bytes[i] = (uint8_t)(x >> (i % 8));
    }
}
