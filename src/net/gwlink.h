/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_NET_GWLINK_H
#define HDT_NET_GWLINK_H

/*
 * A client's connection to its gateway that is made again: dial, hello, messages, dial again (after
 * 0.1 s, doubling to the deadline `backoff`). A worker and libhdt stand on it; a person's commands,
 * which end when their gateway does, use gwclient.h.
 *
 * It lives on one engine and its thread: all functions and events are called there. What records
 * other than messages mean is the owner's business; they come and go by the events below.
 */
#include "src/core/deadlines.h"
#include "src/net/engine.h"
#include "src/net/link.h"
#include "src/net/stream.h"

#include <jansson.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_buf;
struct hdt_gwlink;
struct hdt_tls_ctx;

struct hdt_gwlink_events {
    /* The first message of a connection: body of hello, new reference. */
    json_t *(*hello)(void *user);
    /* The gateway said welcome; `welcome` is the message's body (borrowed). From here records and
     * messages may go. */
    void (*up)(void *user, const json_t *welcome);
    /* A connection could not be made, was refused or broke. Said once a run of failures. */
    void (*down)(void *user, const struct hdt_error *why);
    /* A control message, after welcome; it is the callee's, who releases it. */
    void (*message)(void *user, json_t *msg);
    /* As of a stream: where the bytes of a DATA record go, and a whole DATA, ACK or QUERY. */
    enum hdt_status (*place)(void *user, const struct hdt_frame *frame, size_t len, void **buf,
                             struct hdt_error *err);
    enum hdt_status (*record)(void *user, const struct hdt_frame *frame, struct hdt_error *err);
    /* Few bytes wait: more records may be sent. */
    void (*want)(void *user);
    /* A record of the owner is sent, or came back with its connection. */
    void (*sent)(void *user, struct hdt_record *record, bool ok);
    /* The connection is gone, after all its records came back; it is made again. */
    void (*lost)(void *user);
    /* After hdt_gwlink_end: the last event. */
    void (*ended)(void *user);
};

struct hdt_gwlink_conf {
    const char *address;     /* "unix:PATH" or "tls:host:port"; copied */
    struct hdt_tls_ctx *tls; /* for "tls:"; outlives the link; a reload counts from the next dial */
    const char *remedy;      /* hint when nobody answers there; outlives the link */
};

/* Nothing is dialled before hdt_gwlink_start. HDT_EINVAL: the address. */
enum hdt_status hdt_gwlink_new(struct hdt_engine *engine, const struct hdt_gwlink_conf *conf,
                               const struct hdt_gwlink_events *events, void *user,
                               struct hdt_gwlink **link, struct hdt_error *err);
/* After `ended`, or when it was never started; the engine is still there. NULL is allowed. */
void hdt_gwlink_free(struct hdt_gwlink *link);

void hdt_gwlink_start(struct hdt_gwlink *link);
/* Close when the messages that were handed over are sent, or after the deadline `stop`. */
void hdt_gwlink_end(struct hdt_gwlink *link);
/* Close the connection; it is made again. why may be NULL. */
void hdt_gwlink_break(struct hdt_gwlink *link, const struct hdt_error *why);

/* Queue a message (stolen; its bytes taken over). `once`: it belongs to this connection and goes
 * with it; else what a connection did not take goes out again on the next one, before what was
 * queued since, and what is queued while there is none waits: who talks much asks
 * hdt_gwlink_is_up before. */
void hdt_gwlink_say(struct hdt_gwlink *link, json_t *msg, bool once);
void hdt_gwlink_say_encoded(struct hdt_gwlink *link, struct hdt_buf *bytes, bool once);

/* Welcome was said, and the connection is not on its way out. */
bool hdt_gwlink_is_up(const struct hdt_gwlink *link);
/* Queue a record that is no message; hdt_gwlink_is_up. It comes back by `sent`. */
void hdt_gwlink_send(struct hdt_gwlink *link, struct hdt_record *record, bool urgent);
size_t hdt_gwlink_queued_bytes(const struct hdt_gwlink *link);

/* How tensor memory is shared over this kind of address. Any thread. */
const struct hdt_link_ops *hdt_gwlink_ops(const struct hdt_gwlink *link);
/* Deadlines of the site, once its gateway has said welcome; before, those of the default knob. */
const struct hdt_deadlines *hdt_gwlink_deadlines(const struct hdt_gwlink *link);

#ifdef __cplusplus
}
#endif
#endif /* HDT_NET_GWLINK_H */
