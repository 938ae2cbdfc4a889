/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_BASE_WATCHDOG_H
#define HDT_BASE_WATCHDOG_H

/* The end of a daemon has a deadline. */
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* From now on the process has so long to end; then a log line names `what` it may wait for, and it
 * ends with status 1. For the first signal to end; cannot be taken back, calls after the first are
 * ignored. Main thread or a thread that waits for signals, not inside a signal handler. `what`
 * is a literal. */
void hdt_watchdog_arm(int64_t within_us, const char *what);

#ifdef __cplusplus
}
#endif
#endif /* HDT_BASE_WATCHDOG_H */
