/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_SUPPORT_CONTENT_H
#define HDT_TESTS_SUPPORT_CONTENT_H

/* Lengths and bytes of the frames that tests send: functions of a hash, so that who receives a
 * frame knows what it should be. */
#include <stdbool.h>
#include <stdint.h>

/* 1 to cap: full, tiny, and anything between. */
uint32_t hdt_content_len(uint64_t hash, uint32_t cap);

/* Like bf16 numbers: random low bytes, high bytes of few values; or noise, which no codec makes
 * smaller. */
void hdt_content_fill(uint64_t hash, bool is_noise, uint8_t *bytes, uint32_t len);

#endif /* HDT_TESTS_SUPPORT_CONTENT_H */
