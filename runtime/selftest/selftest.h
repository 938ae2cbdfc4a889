/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_SELFTEST_SELFTEST_H
#define HDT_RUNTIME_SELFTEST_SELFTEST_H

#include "runtime/backend.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* No such backend or device here: as automake's tests say "skipped". */
#define HDT_SELFTEST_NOT_HERE 77

struct hdt_selftest_conf {
    struct hdt_device_conf device; /* n_threads: also of the cpu backend that it is compared with */
    bool with_large;               /* also shapes that fill a device, for the rates */
    const char *mixed_op;          /* only this member of struct hdt_mixed_ops; NULL: everything */
};

/*
 * Holds a backend to the contract of runtime/backend.h on a device, and prints a table: every op
 * that the module has runs on each shape of cases.c, where arrays may stand anywhere also one
 * element off, and is compared with float64 and with the cpu module; those of mixed precision,
 * where it has them, with float64. Streams, events, copies and memory are tried as well.
 *
 * For programs of one thread: prints to standard output. hdt_selftest_backend returns the number of
 * misses, hdt_selftest_run the exit status, 0 when all was right, 1 after a miss; when the backend
 * or the device cannot be used they end the program, with 1 or HDT_SELFTEST_NOT_HERE.
 */
int hdt_selftest_backend(const struct hdt_backend *backend, const struct hdt_selftest_conf *conf);
int hdt_selftest_run(const char *backend, const struct hdt_selftest_conf *conf);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_SELFTEST_SELFTEST_H */
