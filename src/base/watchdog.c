/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * A thread of its own, which holds no lock and waits for nothing but the clock: whatever hangs in
 * the process (a driver, a disk on a network, a join), it does not hang with it. alarm() was
 * refused: it says nothing.
 */
#include "src/base/watchdog.h"
#include "src/base/clock.h"
#include "src/base/log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

struct watch {
    int64_t within_us;
    const char *what;
};

static void *watch_main(void *arg)
{
    const struct watch watch = *(const struct watch *)arg;
    struct timespec left = {.tv_sec = watch.within_us / HDT_US_PER_S,
                            .tv_nsec = watch.within_us % HDT_US_PER_S * 1000};

    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) != 0) {
    }
    hdt_log_error("told to end %.0f s ago and still waiting for %s: ending without them",
                  (double)watch.within_us / 1e6, watch.what);
    _exit(1);
}

void hdt_watchdog_arm(int64_t within_us, const char *what)
{
    static atomic_flag armed = ATOMIC_FLAG_INIT;
    static struct watch watch;
    pthread_t thread;

    if (atomic_flag_test_and_set(&armed)) {
        return;
    }
    watch = (struct watch){.within_us = within_us, .what = what};
    if (pthread_create(&thread, NULL, watch_main, &watch) == 0) {
        pthread_detach(thread);
    }
}
