/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_FUZZ_FUZZ_H
#define HDT_TESTS_FUZZ_FUZZ_H

/* The one function of a fuzz target: libFuzzer's entry point. Always returns 0; ends the program
 * when the code under test breaks its promise. */
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif /* HDT_TESTS_FUZZ_FUZZ_H */
