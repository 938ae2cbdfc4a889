/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What connections to the page for monitoring may hold, and for how long.
 *
 * evhttp gives each read and each write its time, so that who sends one byte in nine seconds stays
 * for ever, and it has no limit on connections. So each of them is noted here when it begins. One
 * answer a connection (http.c closes it), so that one deadline covers it. When there are too many
 * the oldest goes. evhttp does not say when it is done with one; but it takes its callbacks off
 * then, which is looked for. And its listener would spin when there are no descriptors left: it is
 * paused.
 */
#include "config.h"

#include "gateway/control.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"

#include <errno.h>
#include <event2/bufferevent.h>
#include <event2/http.h>
#include <event2/listener.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

struct guarded {
    struct bufferevent *socket; /* referenced */
    int64_t came_us;
    bool is_told; /* its end is under way */
    struct guarded *next, *prev;
};

struct hdt_http_guard {
    struct hdt_gateway *gw;
    struct evconnlistener *listener;
    struct event *tick, *resume;
    struct guarded *oldest; /* in order of coming */
    unsigned n;
    bool is_said;
};

static void guard_drop(struct hdt_http_guard *guard, struct guarded *guarded)
{
    DL_DELETE(guard->oldest, guarded);
    guard->n--;
    bufferevent_decref(guarded->socket);
    free(guarded);
}

/* Those that evhttp is done with. */
static void guard_sweep(struct hdt_http_guard *guard)
{
    struct guarded *guarded, *next;

    DL_FOREACH_SAFE(guard->oldest, guarded, next)
    {
        bufferevent_data_cb on_read;
        bufferevent_event_cb on_event;

        bufferevent_getcb(guarded->socket, &on_read, NULL, &on_event, NULL);
        if (!on_read && !on_event) {
            guard_drop(guard, guarded);
        }
    }
}

/* evhttp is told that the other end has left: it frees the connection. */
static void guard_end(struct hdt_http_guard *guard, struct guarded *guarded, enum hdt_refused cause)
{
    if (guarded->is_told) {
        return;
    }
    guarded->is_told = true;
    guard->gw->http_refused[cause]++;
    hdt_log_warn_limited(60, "dropped a connection to http.listen: %s",
                         cause == HDT_REFUSED_SLOW ? "it was not done in time"
                                                   : "too many others are open");
    bufferevent_trigger_event(guarded->socket, BEV_EVENT_READING | BEV_EVENT_EOF,
                              BEV_TRIG_DEFER_CALLBACKS);
}

static struct bufferevent *guard_connection(struct event_base *base, void *user)
{
    struct hdt_http_guard *guard = user;
    struct bufferevent *socket = bufferevent_socket_new(base, -1, 0);
    struct guarded *guarded, *other;

    if (!socket) {
        return NULL; /* evhttp says so */
    }
    guard_sweep(guard);
    if (guard->n >= HDT_ADMIT_HTTP_MAX) {
        DL_SEARCH_SCALAR(guard->oldest, other, is_told, false);
        if (other) {
            guard_end(guard, other, HDT_REFUSED_CROWDED);
        }
    }
    guarded = hdt_calloc(1, sizeof(*guarded));
    guarded->came_us = hdt_clock_now_us();
    guarded->socket = socket;
    bufferevent_incref(socket);
    DL_APPEND(guard->oldest, guarded);
    guard->n++;
    return socket;
}

static void guard_tick(evutil_socket_t fd, short what, void *user)
{
    struct hdt_http_guard *guard = user;
    const int64_t now_us = hdt_clock_now_us();
    struct guarded *guarded;

    (void)fd;
    (void)what;
    guard_sweep(guard);
    DL_FOREACH(guard->oldest, guarded)
    {
        if (now_us < guarded->came_us + HDT_ADMIT_HTTP_US) {
            return; /* younger ones follow */
        }
        guard_end(guard, guarded, HDT_REFUSED_SLOW);
    }
}

static void guard_accept_failed(struct evconnlistener *listener, void *user)
{
    static const struct timeval pause = {.tv_usec = HDT_ADMIT_PAUSE_US};
    struct hdt_http_guard *guard = user;

    evconnlistener_disable(listener);
    evtimer_add(guard->resume, &pause);
    if (!guard->is_said) {
        guard->is_said = true;
        hdt_log_warn("cannot accept connections to http.listen for now: %s",
                     strerror(EVUTIL_SOCKET_ERROR()));
    }
}

static void guard_resume(evutil_socket_t fd, short what, void *user)
{
    struct hdt_http_guard *guard = user;

    (void)fd;
    (void)what;
    evconnlistener_enable(guard->listener);
}

struct hdt_http_guard *hdt_http_guard_new(struct hdt_gateway *gw, struct evhttp *evhttp,
                                          struct evhttp_bound_socket *bound)
{
    static const struct timeval second = {.tv_sec = 1};
    struct hdt_http_guard *guard = hdt_calloc(1, sizeof(*guard));

    guard->gw = gw;
    guard->listener = evhttp_bound_socket_get_listener(bound);
    guard->tick = event_new(gw->base, -1, EV_PERSIST, guard_tick, guard);
    guard->resume = evtimer_new(gw->base, guard_resume, guard);
    HDT_ASSERT(guard->tick && guard->resume);
    event_add(guard->tick, &second);
    evconnlistener_set_error_cb(guard->listener, guard_accept_failed);
    evhttp_set_bevcb(evhttp, guard_connection, guard);
    return guard;
}

void hdt_http_guard_free(struct hdt_http_guard *guard)
{
    if (!guard) {
        return;
    }
    event_free(guard->tick);
    event_free(guard->resume);
    while (guard->oldest) {
        guard_drop(guard, guard->oldest);
    }
    free(guard);
}
