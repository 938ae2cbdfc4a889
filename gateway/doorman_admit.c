/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/doorman.h"
#include "gateway/dpstep.h"
#include "src/base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

/*
 * From the doorman to the I/O threads and back: who goes on to a handshake, and what came of it.
 */
#define EVICT_AGAIN_US (10 * HDT_US_PER_MS)

/* A descriptor on its way to an I/O thread. */
struct admitted {
    struct hdt_task task;
    struct hdt_dataplane *dp;
    enum hdt_listener kind;
    int fd;
    struct hdt_source_key key;
    int64_t came_us;
};

struct eviction {
    struct hdt_task task;
    struct hdt_dataplane *dp;
    enum hdt_listener kind;
};

static const enum hdt_conn_kind conn_kinds[HDT_LISTENER_COUNT] = {
    [HDT_LISTENER_WAN] = HDT_CONN_WAN,
    [HDT_LISTENER_LAN_UNIX] = HDT_CONN_LAN_UNIX,
    [HDT_LISTENER_LAN_TLS] = HDT_CONN_LAN_TLS,
};

/* ---- admitting ---- */

/* On an I/O thread. */
static void admitted_run(struct hdt_engine *engine, struct hdt_task *task)
{
    struct admitted *admitted = (struct admitted *)task;
    struct hdt_dataplane *dp = admitted->dp;
    struct hdt_conn *conn;

    (void)engine;
    hdt_dp_lock(dp);
    if (dp->stopping) {
        close(admitted->fd);
    } else {
        conn = hdt_conn_new(dp, conn_kinds[admitted->kind], admitted->fd);
        conn->awaits_verdict = true;
        conn->source = admitted->key;
        conn->came_us = admitted->came_us;
        conn->deadline_us = admitted->came_us + HDT_ADMIT_WELCOME_US;
        hdt_conn_kick(conn);
    }
    hdt_dp_unlock(dp);
    free(admitted);
}

static void doorman_post(struct hdt_doorman *doorman, struct hdt_task *task)
{
    struct hdt_dataplane *dp = doorman->dp;

    hdt_engine_post(dp->io[doorman->next_io++ % dp->n_io].engine, task);
}

static void caller_admit(struct hdt_doorman *doorman, struct hdt_caller *caller)
{
    struct admitted *admitted = hdt_calloc(1, sizeof(*admitted));

    epoll_ctl(doorman->epoll_fd, EPOLL_CTL_DEL, caller->fd, NULL);
    admitted->task.run = admitted_run;
    admitted->dp = doorman->dp;
    admitted->kind = caller->door->kind;
    admitted->fd = caller->fd;
    admitted->key = caller->source->key;
    admitted->came_us = caller->came_us;
    caller->door->n_greeting++;
    caller->source->n_greeting++;
    hdt_caller_free(caller);
    doorman_post(doorman, &admitted->task);
}

/* On an I/O thread: the oldest that greets at this door gives way. */
static void eviction_run(struct hdt_engine *engine, struct hdt_task *task)
{
    struct eviction *eviction = (struct eviction *)task;
    struct hdt_dataplane *dp = eviction->dp;
    const int64_t before_us = hdt_clock_now_us() - HDT_ADMIT_EVICT_US;
    struct hdt_conn *conn, *oldest = NULL;
    struct hdt_error why = {0};

    (void)engine;
    hdt_dp_lock(dp);
    DL_FOREACH(dp->conns, conn)
    {
        if (conn->awaits_verdict && conn->kind == conn_kinds[eviction->kind] &&
            !conn->close_requested && conn->came_us < before_us &&
            (oldest == NULL || conn->came_us < oldest->came_us)) {
            oldest = conn;
        }
    }
    if (oldest != NULL) {
        hdt_refused_error(HDT_REFUSED_CROWDED, true, &why);
        hdt_conn_close(oldest, &why);
    }
    hdt_dp_unlock(dp);
    free(eviction);
}

static void door_evict(struct hdt_doorman *doorman, struct hdt_door *door, int64_t now_us)
{
    struct eviction *eviction;

    if (now_us < door->evict_us) {
        return;
    }
    door->evict_us = now_us + EVICT_AGAIN_US;
    eviction = hdt_calloc(1, sizeof(*eviction));
    eviction->task.run = eviction_run;
    eviction->dp = doorman->dp;
    eviction->kind = door->kind;
    doorman_post(doorman, &eviction->task);
}

static unsigned doorman_random(struct hdt_doorman *doorman)
{
    doorman->rng ^= doorman->rng << 13;
    doorman->rng ^= doorman->rng >> 17;
    doorman->rng ^= doorman->rng << 5;
    return doorman->rng;
}

/* The next to admit: of the source that was served longest ago, any. */
static struct hdt_caller *door_pick(struct hdt_doorman *doorman, const struct hdt_door *door)
{
    struct hdt_caller *caller, *picked = NULL;
    unsigned n_same = 0;

    DL_FOREACH(door->callers, caller)
    {
        const struct hdt_source *source = caller->source;

        if (!caller->is_ready || source->n_greeting >= HDT_ADMIT_GREETING_PER_SOURCE ||
            source->is_dry) {
            continue;
        }
        if (picked == NULL || source->served_us < picked->source->served_us) {
            picked = caller;
            n_same = 1;
        } else if (source == picked->source && doorman_random(doorman) % ++n_same == 0) {
            picked = caller;
        }
    }
    return picked;
}

/* Has the source a token, and if it is unknown, the door one for strangers? */
static bool source_may_begin(struct hdt_door *door, struct hdt_source *source, int64_t now_us)
{
    if (door->kind == HDT_LISTENER_LAN_UNIX) {
        return true; /* no handshake to speak of */
    }
    if (!hdt_bucket_take(&source->handshakes, HDT_ADMIT_SOURCE_PER_S, HDT_ADMIT_SOURCE_BURST,
                         now_us)) {
        return false;
    }
    if (source->is_known || hdt_bucket_take(&door->strangers, HDT_ADMIT_STRANGERS_PER_S,
                                            HDT_ADMIT_STRANGERS_BURST, now_us)) {
        return true;
    }
    hdt_bucket_give(&source->handshakes);
    return false;
}

void hdt_door_admit(struct hdt_doorman *doorman, struct hdt_door *door, int64_t now_us)
{
    struct hdt_caller *caller;

    DL_FOREACH(door->callers, caller)
    {
        caller->source->is_dry = false;
    }
    while ((caller = door_pick(doorman, door)) != NULL) {
        if (door->n_greeting >= HDT_ADMIT_GREETING_MAX) {
            door_evict(doorman, door, now_us);
            return;
        }
        if (!source_may_begin(door, caller->source, now_us)) {
            caller->source->is_dry = true;
            continue;
        }
        caller->source->served_us = now_us;
        caller_admit(doorman, caller);
    }
}

/* ---- verdicts ---- */

/* What the end of a connection that was not let in means. */
static enum hdt_refused verdict_cause(const struct hdt_conn *conn, const struct hdt_error *why)
{
    if (conn->state == HDT_CONN_HELLO && why->status != HDT_ELINK && why->status != HDT_ETIMEDOUT) {
        return HDT_REFUSED_HELLO;
    }
    switch (why->status) {
    case HDT_ENOMEM:
        return HDT_REFUSED_CROWDED;
    case HDT_ETIMEDOUT:
        return HDT_REFUSED_SLOW;
    case HDT_ELINK:
        return HDT_REFUSED_GONE;
    case HDT_EACCES:
        return HDT_REFUSED_CERTIFICATE;
    default:
        return HDT_REFUSED_HANDSHAKE;
    }
}

static void verdict_address(const struct hdt_conn *conn, char address[64])
{
    uid_t uid;

    if (conn->kind == HDT_CONN_LAN_UNIX) {
        memcpy(&uid, conn->source.bytes, sizeof(uid));
        snprintf(address, 64, "user %u", (unsigned)uid);
    } else {
        snprintf(address, 64, "%.63s", conn->address);
    }
}

void hdt_doorman_verdict(struct hdt_conn *conn, const struct hdt_error *why)
{
    struct hdt_doorman *doorman = conn->dp->doorman;
    struct hdt_verdict *verdict, *top;

    if (!conn->awaits_verdict) {
        return;
    }
    conn->awaits_verdict = false;
    verdict = hdt_calloc(1, sizeof(*verdict));
    verdict->key = conn->source;
    /* Behind TLS its certificate was good, whatever it said then. */
    verdict->is_known =
        why == NULL || (conn->kind != HDT_CONN_LAN_UNIX && conn->state > HDT_CONN_OPENING);
    verdict->is_refused = why != NULL && why->status != HDT_OK && why->status != HDT_EEXIST &&
                          why->status != HDT_ECANCELED;
    if (verdict->is_refused) {
        verdict->cause = verdict_cause(conn, why);
        verdict->is_said = conn->is_reported;
        verdict->why = *why;
        verdict_address(conn, verdict->address);
    }
    top = atomic_load_explicit(&doorman->verdicts, memory_order_relaxed);
    do {
        verdict->next = top;
    } while (!atomic_compare_exchange_weak_explicit(&doorman->verdicts, &top, verdict,
                                                    memory_order_release, memory_order_relaxed));
    if (top == NULL) {
        hdt_doorman_wake(doorman);
    }
}

static void verdict_take(struct hdt_doorman *doorman, const struct hdt_verdict *verdict)
{
    struct hdt_door *door = &doorman->doors[verdict->key.door];
    struct hdt_source *source =
        hdt_source_get(&doorman->sources, &verdict->key, hdt_clock_now_us());

    HDT_ASSERT(door->n_greeting > 0 && source->n_greeting > 0);
    door->n_greeting--;
    source->n_greeting--;
    if (verdict->is_known) {
        if (!source->is_known) {
            hdt_bucket_give(&door->strangers);
        }
        source->is_known = true;
    }
    if (verdict->is_refused) {
        hdt_doorman_count(doorman, door->kind, verdict->cause);
        if (!verdict->is_said) {
            hdt_source_refused(&doorman->sources, source, verdict->cause, verdict->address,
                               &verdict->why);
        }
    }
}

void hdt_doorman_take_verdicts(struct hdt_doorman *doorman)
{
    struct hdt_verdict *verdict =
        atomic_exchange_explicit(&doorman->verdicts, NULL, memory_order_acquire);
    struct hdt_verdict *next;

    for (; verdict != NULL; verdict = next) {
        next = verdict->next;
        verdict_take(doorman, verdict);
        free(verdict);
    }
}

/* ---- without a thread ---- */

void hdt_dpstep_admit(struct hdt_dataplane *dp, enum hdt_listener door, int fd)
{
    struct hdt_conn *conn;

    hdt_dp_lock(dp);
    conn = hdt_conn_new(dp, conn_kinds[door], fd);
    conn->deadline_us = hdt_clock_now_us() + HDT_ADMIT_WELCOME_US;
    hdt_conn_kick(conn);
    hdt_dp_unlock(dp);
}
