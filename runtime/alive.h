/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_ALIVE_H
#define HDT_RUNTIME_ALIVE_H

/*
 * A rank that works for long says so: "task.alive" to the coordinator, so that nobody who waits for
 * it gives up. Whoever works calls hdt_alive_moved after each piece; a message leaves once in an
 * interval at most. Who waits does not call it: waiting is no progress.
 */
#include <jansson.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_alive_conf {
    void (*say)(void *user, json_t *msg); /* any thread; takes the message over */
    void *user;
    const char *coordinator; /* outlives the object */
    uint32_t job, epoch;
    int rank;
    int64_t interval_us;
};

struct hdt_alive;

struct hdt_alive *hdt_alive_new(const struct hdt_alive_conf *conf);
void hdt_alive_free(struct hdt_alive *alive); /* NULL is allowed */

/* `done` of `total` pieces of a phase are there: "building", "loading", "saving", "step". Any
 * thread, does not block. NULL: nobody is told. */
void hdt_alive_moved(struct hdt_alive *alive, const char *phase, uint64_t done, uint64_t total);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_ALIVE_H */
