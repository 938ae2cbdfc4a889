/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "runtime/alive.h"

#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/core/msg.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

struct hdt_alive {
    struct hdt_alive_conf conf;
    pthread_mutex_t lock; /* guards the next: a runner and its saving thread work at one time */
    int64_t said_us;
};

struct hdt_alive *hdt_alive_new(const struct hdt_alive_conf *conf)
{
    struct hdt_alive *alive = hdt_calloc(1, sizeof(*alive));

    alive->conf = *conf;
    alive->said_us = hdt_clock_now_us(); /* "assign" has just come: it need not be answered twice */
    pthread_mutex_init(&alive->lock, NULL);
    return alive;
}

void hdt_alive_free(struct hdt_alive *alive)
{
    if (alive) {
        pthread_mutex_destroy(&alive->lock);
        free(alive);
    }
}

void hdt_alive_moved(struct hdt_alive *alive, const char *phase, uint64_t done, uint64_t total)
{
    const int64_t now_us = hdt_clock_now_us();
    bool is_due;

    if (!alive) {
        return;
    }
    pthread_mutex_lock(&alive->lock);
    is_due = now_us - alive->said_us >= alive->conf.interval_us;
    if (is_due) {
        alive->said_us = now_us;
    }
    pthread_mutex_unlock(&alive->lock);
    if (is_due) {
        alive->conf.say(
            alive->conf.user,
            hdt_msg_new("task.alive", alive->conf.coordinator,
                        json_pack("{s:I, s:I, s:i, s:s, s:I, s:I}", "job",
                                  (json_int_t)alive->conf.job, "epoch",
                                  (json_int_t)alive->conf.epoch, "rank", alive->conf.rank, "phase",
                                  phase, "done", (json_int_t)done, "total", (json_int_t)total)));
    }
}
