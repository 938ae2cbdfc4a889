/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_NET_GWCLIENT_H
#define HDT_NET_GWCLIENT_H

/*
 * A blocking connection of an operator (the `hdt` command, libhdt) to a gateway: records of a
 * 64-byte header (kind MSG) and msgpack, over the gateway's Unix socket or over TLS. Every wait has
 * a deadline, and ends at once when its owner wakes it. One thread at a time. No signal handling is
 * changed and none is needed: a gateway that closes raises no SIGPIPE.
 */
#include "src/base/error.h"
#include "src/core/deadlines.h"

#include <jansson.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_GWCLIENT_DEFAULT "unix:/run/hdt/gateway.sock"

/* Where the gateway is and who we are; borrowed for the call of open, but *wake_fd. */
struct hdt_gwclient_conf {
    const char *gateway; /* "unix:PATH" or "tls:HOST:PORT"; NULL: $HDT_GATEWAY, else the default */
    const char *ca, *cert, *key; /* tls: */
    bool is_program; /* of libhdt, not a person: may say less, and do with a worker's certificate */
    const char *name; /* who says hello; NULL: "hdt". Over tls the certificate's name counts */
    int timeout_ms;   /* for each wait, in place of what follows from the gateway's knob; 0: that */
    /* A descriptor, looked at in each wait: when it is readable one byte is taken from it and the
     * wait ends with HDT_ECANCELED. NULL, or -1 in it: none. Outlives the client. */
    const int *wake_fd;
};

struct hdt_gwclient;

/* Connect and say hello. HDT_ENOENT or HDT_EPEER: nobody answers there, with the remedy;
 * HDT_EVERSION; HDT_EACCES: certificate or role refused; HDT_ETIMEDOUT. */
enum hdt_status hdt_gwclient_open(const struct hdt_gwclient_conf *conf,
                                  struct hdt_gwclient **client, struct hdt_error *err);
void hdt_gwclient_close(struct hdt_gwclient *client); /* NULL is allowed */

/* Site of the gateway, and how we are connected: "unix socket" or the TLS version and cipher. */
const char *hdt_gwclient_site(const struct hdt_gwclient *client);
const char *hdt_gwclient_tls(const struct hdt_gwclient *client);

/* Deadlines of its site, once it has said welcome; until then those of the default knob. */
const struct hdt_deadlines *hdt_gwclient_deadlines(const struct hdt_gwclient *client);
const char *hdt_gwclient_address(const struct hdt_gwclient *client);

/* Send a request of `type` (body stolen) and wait for the answer of type `expect`: *body is a new
 * reference. Messages in between that answer nothing are kept for hdt_gwclient_next. `to` may be
 * NULL. An "error" answer becomes *err. HDT_ETIMEDOUT: no answer in time, or a gateway that says
 * nothing at all; HDT_ECANCELED: woken. */
enum hdt_gwclient_patience {
    HDT_GWCLIENT_ANSWER, /* the gateway knows the answer */
    HDT_GWCLIENT_RELAY,  /* it has to ask another site or a worker */
    HDT_GWCLIENT_SURVEY, /* it has to measure; meanwhile it must answer that it lives */
};
struct hdt_gwclient_request {
    const char *type, *to;
    json_t *body; /* stolen; may be NULL */
    const char *expect;
    enum hdt_gwclient_patience patience;
    int timeout_ms; /* 0: as its patience says */
};
enum hdt_status hdt_gwclient_ask(struct hdt_gwclient *client,
                                 const struct hdt_gwclient_request *request, json_t **body,
                                 struct hdt_error *err);

/* Send without waiting for an answer; body is stolen. */
enum hdt_status hdt_gwclient_send(struct hdt_gwclient *client, const char *type, json_t *body,
                                  struct hdt_error *err);

/* The next message, at most timeout_ms from now. HDT_AGAIN: none came. HDT_ECANCELED: woken, the
 * connection is whole. HDT_EPEER: the gateway has gone.
 */
enum hdt_status hdt_gwclient_next(struct hdt_gwclient *client, int timeout_ms, json_t **msg,
                                  struct hdt_error *err);

/* What both ends know of the link to a site: our gateway's answer, and that of the other, which is
 * more than is needed: where it cannot tell, *other is NULL, *why says why, and that is no failure.
 * New references. */
enum hdt_status hdt_gwclient_ask_link(struct hdt_gwclient *client, const char *site, json_t **facts,
                                      json_t **other, struct hdt_error *why, struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_NET_GWCLIENT_H */
