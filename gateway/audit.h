/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_AUDIT_H
#define HDT_GATEWAY_AUDIT_H

/*
 * Who did what: STATE_DIR/audit.jsonl, one JSON object a line, only ever appended to, on disk when
 * the call returns. What reads (status, logs, plans) is not recorded, nor are strangers who are not
 * let in: they could fill the disk. Main thread; a write takes a disk flush (milliseconds), and
 * events are as rare as people and processes that come and go.
 */
#include "src/base/error.h"

#include <jansson.h>
#include <stdint.h>

struct hdt_audit;
struct hdt_gateway;
struct hdt_gwclient;

/* Open DIR/audit.jsonl for appending, made with mode 0640 when missing. HDT_EIO. */
enum hdt_status hdt_audit_open(const char *dir, struct hdt_audit **audit, struct hdt_error *err);
void hdt_audit_close(struct hdt_audit *audit); /* NULL is allowed */

/* Open the file of that name again: it may have been renamed. On failure the old one is kept. */
enum hdt_status hdt_audit_reopen(struct hdt_audit *audit, struct hdt_error *err);

/* One event. Only whole lines are in the file: one that cannot be written (a full disk) is counted
 * and logged, at most once a minute, and the next one is tried again. audit NULL: nothing is kept.
 */
struct hdt_audit_event {
    const char *what; /* "peer.joined" */
    const char *who;  /* identity of a certificate, "uid 1000", "signal" */
    const char *from; /* address; "" when there is none */
    json_t *detail;   /* stolen; NULL: {} */
};
void hdt_audit_write(struct hdt_audit *audit, const struct hdt_audit_event *event);

/* Events that could not be written. */
uint64_t hdt_audit_n_lost(const struct hdt_audit *audit);

/* The same for what a peer gateway, a client of this gateway, or the gateway itself did; detail is
 * stolen. */
void hdt_audit_site(struct hdt_gateway *gw, const char *what, const char *site, json_t *detail);
void hdt_audit_client(struct hdt_gateway *gw, const char *what, const struct hdt_gwclient *client,
                      json_t *detail);
void hdt_audit_self(struct hdt_gateway *gw, const char *what, json_t *detail);

/* A message that came in: recorded when it is an operator's order that changes something. `client`:
 * who sent it here; NULL: the peer `site` brought it. */
void hdt_audit_order(struct hdt_gateway *gw, const struct hdt_gwclient *client, const char *site,
                     const json_t *msg);

#endif /* HDT_GATEWAY_AUDIT_H */
