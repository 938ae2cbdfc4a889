/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_BASE_PROCESS_H
#define HDT_BASE_PROCESS_H

/* What the kernel says of this process, for monitoring. Reads /proc; any thread. */
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_process_usage {
    double cpu_s;                           /* user and system, all threads */
    uint64_t resident_bytes, virtual_bytes; /* memory */
    unsigned n_threads;
    unsigned n_fds;    /* open now, at most max_fds */
    uint64_t max_fds;  /* soft limit */
    int64_t started_s; /* seconds since 1970 */
};

/* Fields that /proc does not tell are 0. */
void hdt_process_usage(struct hdt_process_usage *usage);

#ifdef __cplusplus
}
#endif
#endif /* HDT_BASE_PROCESS_H */
