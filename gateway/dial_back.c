/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "dial.back": can this site reach the one that asks? A TCP connection, within the deadline of any.
 *
 * Name look-ups and connecting block, so that each has a thread of its own, and there are few. The
 * thread and the main thread hold one reference each: the gateway may end while a name server is
 * silent, and then the thread frees what it used. libevent's own resolver was refused: it knows
 * nothing of nsswitch.conf, and the answer is about what a dial of this gateway would find.
 */
#include "config.h"

#include "gateway/control.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/core/msg.h"
#include "src/net/addr.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utlist.h>

#define MAX_DIALS 4

struct dial_back {
    atomic_int refs;
    int event_fd; /* readable: the thread is through */
    char address[160];
    int timeout_ms;
    bool ok; /* the thread's until event_fd is readable, as the next */
    struct hdt_error why;
    struct hdt_gateway *gw; /* the main thread's, as all that follows */
    json_t *request;
    struct event *event;
    struct dial_back *next;
};

static void dial_unref(struct dial_back *dial)
{
    if (atomic_fetch_sub(&dial->refs, 1) == 1) {
        close(dial->event_fd);
        free(dial);
    }
}

static void *dial_main(void *user)
{
    struct dial_back *dial = user;
    const uint64_t one = 1;
    struct hdt_addr addr;
    int fd;

    if (hdt_addr_parse(dial->address, &addr, &dial->why) == HDT_OK &&
        hdt_addr_connect(&addr, dial->timeout_ms, &fd, &dial->why) == HDT_OK) {
        close(fd);
        dial->ok = true;
    }
    if (write(dial->event_fd, &one, sizeof(one)) < 0) {
        HDT_ASSERT(errno == EAGAIN); /* its counter is full: it is readable */
    }
    dial_unref(dial);
    return NULL;
}

static void dial_answer(struct hdt_gateway *gw, const json_t *request, const char *address,
                        const struct hdt_error *why)
{
    const char *site = gw->conf.site;
    struct hdt_error ignored = {0};
    json_t *detail = why ? json_sprintf("%s: %s", site, why->msg)
                         : json_sprintf("%s reaches us at %s", site, address);

    hdt_route_send(
        gw,
        hdt_msg_reply(request, "dialled.back",
                      json_pack("{s:b, s:o}", "ok", why == NULL, "detail",
                                detail ? detail : json_string("the address is no UTF-8"))),
        &ignored);
}

/* The main thread's part is over. */
static void dial_drop(struct dial_back *dial)
{
    LL_DELETE(dial->gw->survey.dials, dial);
    event_free(dial->event);
    json_decref(dial->request);
    dial_unref(dial);
}

static void dial_done(evutil_socket_t fd, short what, void *user)
{
    struct dial_back *dial = user;

    (void)fd;
    (void)what;
    dial_answer(dial->gw, dial->request, dial->address, dial->ok ? NULL : &dial->why);
    dial_drop(dial);
}

static enum hdt_status dial_thread(struct dial_back *dial, struct hdt_error *err)
{
    pthread_attr_t attr;
    pthread_t thread;
    int rc;

    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    atomic_fetch_add(&dial->refs, 1);
    rc = pthread_create(&thread, &attr, dial_main, dial);
    pthread_attr_destroy(&attr);
    if (rc != 0) {
        atomic_fetch_sub(&dial->refs, 1);
        return hdt_error_set_errno(err, HDT_ENOMEM, rc, "cannot start a thread to dial back");
    }
    return HDT_OK;
}

static enum hdt_status dial_begin(struct hdt_gateway *gw, const json_t *msg, const char *address,
                                  struct hdt_error *err)
{
    struct dial_back *dial;
    enum hdt_status status;
    int fd, n_dials;

    LL_COUNT(gw->survey.dials, dial, n_dials);
    if (n_dials >= MAX_DIALS) {
        return hdt_error_set(err, HDT_ENOMEM, "cannot dial back: %d others are being dialled",
                             n_dials);
    }
    fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (fd < 0) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot dial back");
    }
    dial = hdt_calloc(1, sizeof(*dial));
    atomic_init(&dial->refs, 1);
    dial->event_fd = fd;
    snprintf(dial->address, sizeof(dial->address), "%s", address);
    dial->gw = gw;
    dial->timeout_ms = (int)(gw->deadlines.connect_us / HDT_US_PER_MS);
    dial->request = json_incref((json_t *)msg);
    dial->event = event_new(gw->base, fd, EV_READ, dial_done, dial);
    HDT_ASSERT(dial->event && event_add(dial->event, NULL) == 0);
    LL_PREPEND(gw->survey.dials, dial);
    status = dial_thread(dial, err);
    if (status != HDT_OK) {
        dial_drop(dial);
    }
    return status;
}

void hdt_dial_back(struct hdt_gateway *gw, const json_t *msg)
{
    const char *address = json_string_value(json_object_get(hdt_msg_body(msg), "address"));
    struct hdt_error err = {0};

    if (!address || strlen(address) >= sizeof(((struct dial_back *)0)->address) ||
        strncmp(address, "unix:", 5) == 0) {
        hdt_error_set(&err, HDT_EINVAL, "cannot dial back: the request has no address of a host");
    } else {
        dial_begin(gw, msg, address, &err);
    }
    if (err.status != HDT_OK) {
        dial_answer(gw, msg, "", &err);
    }
}

void hdt_dial_back_free(struct hdt_gateway *gw)
{
    while (gw->survey.dials) {
        dial_drop(gw->survey.dials);
    }
}
