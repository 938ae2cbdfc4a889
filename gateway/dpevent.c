/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/dp.h"
#include "src/base/buf.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/*
 * Events on their way to the main thread: a list and an eventfd. They are rare (a session, a
 * client, a control message), so that each has memory of its own. A JSON value belongs to one
 * thread at a time: a message goes over with its event, a hello is copied. When the main thread is
 * slow and many messages wait, connections are not read on until it has caught up.
 */

/* A byte of a message becomes up to sixty in memory, few in those that are honest. */
#define EVENT_BYTES_PER_BYTE 16

enum event_kind {
    EVENT_PEER_UP,
    EVENT_PEER_DOWN,
    EVENT_PEER_MSG,
    EVENT_PEER_REFUSED,
    EVENT_CLIENT_UP,
    EVENT_CLIENT_MSG,
    EVENT_CLIENT_DOWN,
    EVENT_PROBED,
    EVENT_FLOW_FAILED
};

struct hdt_event {
    enum event_kind kind;
    char name[64];
    char address[160];
    json_t *json;
    size_t msg_bytes; /* of a message: itself and this, about */
    struct hdt_error why;
    uint64_t client, n;
    enum hdt_client_role role;
    char identity[HDT_IDENTITY_URI_CAP];
    double bytes_per_s, rtt_s;
    uint32_t job, epoch;
    struct hdt_event *next;
};

enum hdt_status hdt_dpevent_init(struct hdt_dataplane *dp, struct hdt_error *err)
{
    dp->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (dp->event_fd < 0) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot make an eventfd");
    }
    pthread_mutex_init(&dp->event_lock, NULL);
    return HDT_OK;
}

static void event_free(struct hdt_event *event)
{
    json_decref(event->json);
    free(event);
}

void hdt_dpevent_release(struct hdt_dataplane *dp)
{
    struct hdt_event *event, *next;

    for (event = dp->event_head; event != NULL; event = next) {
        next = event->next;
        event_free(event);
    }
    pthread_mutex_destroy(&dp->event_lock);
    close(dp->event_fd);
}

/* `json` is taken over. */
static struct hdt_event *event_new(enum event_kind kind, const char *name, json_t *json,
                                   const struct hdt_error *why)
{
    struct hdt_event *event = hdt_calloc(1, sizeof(*event));

    event->kind = kind;
    if (name != NULL) {
        snprintf(event->name, sizeof(event->name), "%s", name);
    }
    event->json = json;
    if (why != NULL) {
        event->why = *why;
    }
    return event;
}

static void event_push(struct hdt_dataplane *dp, struct hdt_event *event)
{
    const uint64_t one = 1;
    bool was_empty;

    pthread_mutex_lock(&dp->event_lock);
    was_empty = dp->event_head == NULL;
    if (was_empty) {
        dp->event_head = event;
    } else {
        dp->event_tail->next = event;
    }
    dp->event_tail = event;
    dp->n_events++;
    dp->event_bytes += event->msg_bytes;
    pthread_mutex_unlock(&dp->event_lock);
    if (was_empty && write(dp->event_fd, &one, sizeof(one)) < 0) {
        /* EAGAIN only: the counter is full, so the descriptor is readable anyway. */
        return;
    }
}

bool hdt_dpevent_is_full(struct hdt_dataplane *dp)
{
    bool is_full;

    pthread_mutex_lock(&dp->event_lock);
    is_full = dp->event_bytes >= HDT_DP_EVENT_BACKLOG;
    dp->events_awaited = dp->events_awaited || is_full;
    pthread_mutex_unlock(&dp->event_lock);
    return is_full;
}

void hdt_dpevent_peer_up(struct hdt_dataplane *dp, const char *site, const json_t *hello)
{
    event_push(dp, event_new(EVENT_PEER_UP, site, json_deep_copy(hello), NULL));
}

void hdt_dpevent_peer_down(struct hdt_dataplane *dp, const char *site, const struct hdt_error *why)
{
    event_push(dp, event_new(EVENT_PEER_DOWN, site, NULL, why));
}

void hdt_dpevent_peer_msg(struct hdt_dataplane *dp, const char *site, json_t *msg, size_t len)
{
    struct hdt_event *event = event_new(EVENT_PEER_MSG, site, msg, NULL);

    event->msg_bytes = sizeof(*event) + EVENT_BYTES_PER_BYTE * len;
    event_push(dp, event);
}

void hdt_dpevent_peer_refused(struct hdt_dataplane *dp, const char *site, const char *address,
                              const struct hdt_error *why, uint64_t n)
{
    struct hdt_event *event = event_new(EVENT_PEER_REFUSED, site, NULL, why);

    event->n = n;
    snprintf(event->address, sizeof(event->address), "%s", address);
    event_push(dp, event);
}

void hdt_dpevent_client_up(struct hdt_dataplane *dp, const struct hdt_client *client,
                           const json_t *hello)
{
    struct hdt_event *event = event_new(EVENT_CLIENT_UP, client->name, json_deep_copy(hello), NULL);

    event->client = client->number;
    event->role = client->role;
    memcpy(event->identity, client->identity, sizeof(event->identity));
    memcpy(event->address, client->address, sizeof(event->address));
    event_push(dp, event);
}

void hdt_dpevent_client_msg(struct hdt_dataplane *dp, uint64_t client, json_t *msg, size_t len)
{
    struct hdt_event *event = event_new(EVENT_CLIENT_MSG, NULL, msg, NULL);

    event->msg_bytes = sizeof(*event) + EVENT_BYTES_PER_BYTE * len;
    event->client = client;
    event_push(dp, event);
}

void hdt_dpevent_client_down(struct hdt_dataplane *dp, uint64_t client, const struct hdt_error *why)
{
    struct hdt_event *event = event_new(EVENT_CLIENT_DOWN, NULL, NULL, why);

    event->client = client;
    event_push(dp, event);
}

void hdt_dpevent_probed(struct hdt_dataplane *dp, const char *site, double bytes_per_s,
                        double rtt_s)
{
    struct hdt_event *event = event_new(EVENT_PROBED, site, NULL, NULL);

    event->bytes_per_s = bytes_per_s;
    event->rtt_s = rtt_s;
    event_push(dp, event);
}

void hdt_dpevent_flow_failed(struct hdt_dataplane *dp, const struct hdt_flow_end *flow,
                             const struct hdt_error *why)
{
    struct hdt_event *event = event_new(EVENT_FLOW_FAILED, NULL, NULL, why);

    event->job = flow->key.job;
    event->epoch = flow->conf.epoch;
    event_push(dp, event);
}

static void event_deliver_client(struct hdt_dataplane *dp, const struct hdt_event *event)
{
    const struct hdt_client_info info = {
        .client = event->client,
        .role = event->role,
        .name = event->name,
        .identity = event->identity,
        .address = event->address,
    };

    dp->events.client_up(dp->user, &info, event->json);
}

static void event_deliver(struct hdt_dataplane *dp, const struct hdt_event *event)
{
    const struct hdt_dataplane_events *to = &dp->events;

    switch (event->kind) {
    case EVENT_PEER_UP:
        to->peer_up(dp->user, event->name, event->json);
        break;
    case EVENT_PEER_DOWN:
        to->peer_down(dp->user, event->name, &event->why);
        break;
    case EVENT_PEER_MSG:
        to->peer_msg(dp->user, event->name, event->json);
        break;
    case EVENT_PEER_REFUSED:
        to->peer_refused(dp->user, event->name, event->address, &event->why, event->n);
        break;
    case EVENT_CLIENT_UP:
        event_deliver_client(dp, event);
        break;
    case EVENT_CLIENT_MSG:
        to->client_msg(dp->user, event->client, event->json);
        break;
    case EVENT_CLIENT_DOWN:
        to->client_down(dp->user, event->client, &event->why);
        break;
    case EVENT_PROBED:
        to->probed(dp->user, event->name, event->bytes_per_s, event->rtt_s);
        break;
    case EVENT_FLOW_FAILED:
        to->flow_failed(dp->user, event->job, event->epoch, &event->why);
        break;
    }
}

int hdt_dataplane_fd(const struct hdt_dataplane *dp)
{
    return dp->event_fd;
}

/* The event is dealt with. true: connections that waited may go on. */
static bool event_settle(struct hdt_dataplane *dp, const struct hdt_event *event)
{
    bool has_room;

    pthread_mutex_lock(&dp->event_lock);
    dp->n_events--;
    dp->event_bytes -= event->msg_bytes;
    has_room = dp->events_awaited && dp->event_bytes < HDT_DP_EVENT_BACKLOG / 2;
    if (has_room) {
        dp->events_awaited = false;
    }
    pthread_mutex_unlock(&dp->event_lock);
    return has_room;
}

/* Who found no room marked its connection under the lock, so none is missed. */
static void events_resume(struct hdt_dataplane *dp)
{
    struct hdt_conn *conn;

    hdt_dp_lock(dp);
    DL_FOREACH(dp->conns, conn)
    {
        if (conn->rx_stopped) {
            conn->rx_stopped = false;
            conn->resume_requested = true;
            hdt_conn_kick(conn);
        }
    }
    hdt_dp_unlock(dp);
}

void hdt_dataplane_dispatch(struct hdt_dataplane *dp)
{
    struct hdt_event *event, *next;
    uint64_t count;

    if (read(dp->event_fd, &count, sizeof(count)) < 0 && errno != EAGAIN) {
        hdt_log_error("cannot read the eventfd of the data plane: %s", strerror(errno));
    }
    pthread_mutex_lock(&dp->event_lock);
    event = dp->event_head;
    dp->event_head = NULL;
    dp->event_tail = NULL;
    pthread_mutex_unlock(&dp->event_lock);
    for (; event != NULL; event = next) {
        next = event->next;
        event_deliver(dp, event);
        if (event_settle(dp, event)) {
            events_resume(dp);
        }
        event_free(event);
    }
}
