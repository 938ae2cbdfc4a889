/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Revocation lists between gateways. Each sends the list in force to a peer that comes up, and to
 * all when it has a new one, be it from a reload or from another site; who has that one already
 * says nothing, so a list crosses each session at most once in each direction and the spreading
 * ends. No site is trusted with it: the list is the authority's, and only a newer one counts. A
 * list in the settings alone would not do: whoever forgets to copy it keeps the revoked one in.
 */
#include "config.h"

#include "gateway/audit.h"
#include "gateway/control.h"
#include "src/base/buf.h"
#include "src/base/log.h"
#include "src/core/msg.h"
#include "src/net/tls.h"

#include <string.h>

static json_t *list_body(struct hdt_gateway *gw)
{
    struct hdt_buf pem = {0};
    json_t *body = NULL;

    hdt_tls_crl_pem(gw->tls, &pem);
    if (pem.len > 0) {
        body = json_pack("{s:s%}", "pem", pem.data, pem.len);
    }
    hdt_buf_release(&pem);
    return body;
}

void hdt_revocation_peer_up(struct hdt_gateway *gw, const char *site)
{
    json_t *body = gw->tls ? list_body(gw) : NULL;

    if (body) {
        hdt_route_post(gw, site, "crl", body);
    }
}

void hdt_revocation_spread(struct hdt_gateway *gw, const char *except)
{
    json_t *body = list_body(gw);
    const struct hdt_gwsite *site;

    for (site = gw->sites; body && site; site = site->next) {
        if (site->up && strcmp(site->name, except) != 0) {
            hdt_route_post(gw, site->name, "crl", json_incref(body));
        }
    }
    json_decref(body);
}

static void list_refuse(struct hdt_gateway *gw, const char *site, const struct hdt_error *why)
{
    gw->n_refused_lists++;
    hdt_log_warn_limited(10, "revocation list of site %s refused: %s%s%s%s", site, why->msg,
                         why->hint[0] ? " (hint: " : "", why->hint, why->hint[0] ? ")" : "");
}

void hdt_revocation_msg(struct hdt_gateway *gw, const json_t *msg)
{
    const json_t *pem = json_object_get(hdt_msg_body(msg), "pem");
    const char *site = hdt_msg_from(msg);
    struct hdt_error err = {0};
    enum hdt_status status;

    if (!json_is_string(pem)) {
        hdt_error_set(&err, HDT_EPROTO, "there is no text 'pem' in the message");
        list_refuse(gw, site, &err);
        return;
    }
    status = hdt_tls_crl_adopt(gw->tls, json_string_value(pem), json_string_length(pem), &err);
    if (status == HDT_EEXIST) {
        return;
    }
    if (status != HDT_OK) {
        list_refuse(gw, site, &err);
        return;
    }
    hdt_log_info("a newer revocation list came from site %s", site);
    hdt_audit_site(gw, "revocation.adopted", site, NULL);
    /* First the others: among those that are closed next may be the way to them. */
    hdt_revocation_spread(gw, site);
    hdt_dataplane_recheck(gw->dp);
}
