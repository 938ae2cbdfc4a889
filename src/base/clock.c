/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/clock.h"

#include <time.h>

static int64_t clock_read_ns(clockid_t id)
{
    struct timespec ts;

    clock_gettime(id, &ts);
    return (int64_t)ts.tv_sec * 1000000000ll + ts.tv_nsec;
}

int64_t hdt_clock_now_us(void)
{
    return clock_read_ns(CLOCK_MONOTONIC) / 1000;
}

int64_t hdt_clock_now_ns(void)
{
    return clock_read_ns(CLOCK_MONOTONIC);
}

int64_t hdt_clock_thread_cpu_ns(void)
{
    return clock_read_ns(CLOCK_THREAD_CPUTIME_ID);
}

int64_t hdt_clock_process_cpu_ns(void)
{
    return clock_read_ns(CLOCK_PROCESS_CPUTIME_ID);
}

int64_t hdt_clock_wall_us(void)
{
    return clock_read_ns(CLOCK_REALTIME) / 1000;
}
