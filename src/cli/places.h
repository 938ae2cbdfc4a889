/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_PLACES_H
#define HDT_CLI_PLACES_H

/* Who can be asked about a federation: the gateways and workers that a gateway's status names. */
#include "src/net/gwclient.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_place {
    char address[160];         /* "SITE" or "SITE/WORKER" */
    char site[64], worker[64]; /* worker "": the gateway */
    bool up;
    char why_not[256]; /* when it is not up */
};

struct hdt_places {
    struct hdt_place *items; /* a gateway before its workers; the one that answers first */
    size_t n;
};

/* From the body of "status.is". */
void hdt_places_read(const json_t *status, struct hdt_places *places);
void hdt_places_release(struct hdt_places *places);

/* Ask a place (body stolen); what went wrong names it. */
enum hdt_status hdt_place_ask(struct hdt_gwclient *client, const struct hdt_place *place,
                              struct hdt_gwclient_request *request, json_t **body,
                              struct hdt_error *err);

/* The gateway's status: new reference. */
enum hdt_status hdt_places_status(struct hdt_gwclient *client, json_t **status,
                                  struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CLI_PLACES_H */
