/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_SELFTEST_SELFTEST_H
#define HDT_RUNTIME_SELFTEST_SELFTEST_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* No such backend or device here: as automake's tests say "skipped". */
#define HDT_SELFTEST_NOT_HERE 77

/*
 * Holds a backend to the contract of runtime/backend.h on its first device, and prints a table:
 * every op that the module has runs on each shape of cases.c and is compared with float64 and with
 * the cpu module; those of mixed precision, where it has them, with float64. Streams, events,
 * copies and memory are tried as well. `with_large` adds shapes that fill a device, for the rates.
 *
 * For programs: prints to standard output. Returns the exit status, 0 when all was right, 1 after a
 * miss; when the backend cannot be used it ends the program, with 1 or HDT_SELFTEST_NOT_HERE.
 */
int hdt_selftest_run(const char *backend, int n_threads, bool with_large);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_SELFTEST_SELFTEST_H */
