/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_BASE_CLOCK_H
#define HDT_BASE_CLOCK_H

/* Time. Deadlines and durations use the monotonic clock, only messages to people the wall clock. */
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_US_PER_S  1000000ll
#define HDT_US_PER_MS 1000ll

/* Monotonic time in microseconds; never goes back. Any thread. */
int64_t hdt_clock_now_us(void);

/* Monotonic time in nanoseconds, for traces and profiles. Any thread. */
int64_t hdt_clock_now_ns(void);

/* CPU time of the calling thread, and of the whole process, in nanoseconds. */
int64_t hdt_clock_thread_cpu_ns(void);
int64_t hdt_clock_process_cpu_ns(void);

/* Wall clock, microseconds since 1970-01-01 UTC. Any thread. */
int64_t hdt_clock_wall_us(void);

#ifdef __cplusplus
}
#endif
#endif /* HDT_BASE_CLOCK_H */
