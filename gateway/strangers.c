/* SPDX-License-Identifier: Apache-2.0 */
/* Refusals in numbers, for /status and /metrics: of strangers by listening socket and cause, of
 * peers by site and cause. Every cause is always there, so that an alarm may rest on it. */
#include "config.h"

#include "gateway/metrics.h"
#include "src/base/buf.h"

#include <stdlib.h>
#include <string.h>

#define MAX_PEERS 256

static const char *const door_names[HDT_LISTENER_COUNT] = {
    [HDT_LISTENER_WAN] = "wan",
    [HDT_LISTENER_LAN_UNIX] = "lan_unix",
    [HDT_LISTENER_LAN_TLS] = "lan_tls",
};

static json_t *door_json(const uint64_t refused[HDT_REFUSED_COUNT])
{
    json_t *causes = json_object();

    for (int i = 0; i < HDT_REFUSED_COUNT; i++) {
        json_object_set_new(causes, hdt_refused_name((enum hdt_refused)i),
                            json_integer((json_int_t)refused[i]));
    }
    return causes;
}

json_t *hdt_strangers_json(struct hdt_gateway *gw)
{
    struct hdt_dataplane_stats dp;
    json_t *doors = json_object();

    hdt_dataplane_stats(gw->dp, &dp);
    for (int door = 0; door < HDT_LISTENER_COUNT; door++) {
        json_object_set_new(doors, door_names[door], door_json(dp.refused[door]));
    }
    json_object_set_new(doors, "http", door_json(gw->http_refused));
    return doors;
}

static size_t peers_get(struct hdt_gateway *gw, struct hdt_peer_stats **peers)
{
    size_t n;

    *peers = hdt_calloc(MAX_PEERS, sizeof(**peers));
    n = hdt_dataplane_peer_stats(gw->dp, *peers, MAX_PEERS);
    return n < MAX_PEERS ? n : MAX_PEERS;
}

json_t *hdt_misdeeds_json(struct hdt_gateway *gw)
{
    struct hdt_peer_stats *peers;
    const size_t n = peers_get(gw, &peers);
    json_t *sites = json_object();

    for (size_t i = 0; i < n; i++) {
        json_t *causes = json_object();

        for (int k = 0; k < HDT_MISDEED_COUNT; k++) {
            json_object_set_new(causes, hdt_misdeed_name((enum hdt_misdeed)k),
                                json_integer((json_int_t)peers[i].misdeeds[k]));
        }
        json_object_set_new(sites, peers[i].site, causes);
    }
    free(peers);
    return sites;
}

static void door_metrics(const struct hdt_gateway *gw, struct hdt_buf *out, const char *door,
                         const uint64_t refused[HDT_REFUSED_COUNT])
{
    for (int i = 0; i < HDT_REFUSED_COUNT; i++) {
        hdt_metrics_begin(out, gw, "hdt_refused_connections_total");
        hdt_metrics_label(out, "socket", door);
        hdt_metrics_label(out, "cause", hdt_refused_name((enum hdt_refused)i));
        hdt_metrics_end(out, (double)refused[i]);
    }
}

void hdt_strangers_metrics(struct hdt_gateway *gw, struct hdt_buf *out)
{
    struct hdt_dataplane_stats dp;
    struct hdt_peer_stats *peers;
    const size_t n = peers_get(gw, &peers);

    hdt_dataplane_stats(gw->dp, &dp);
    hdt_metrics_head(out, "hdt_refused_connections_total", "counter",
                     "Connections dropped before they were let in, by socket and cause.");
    for (int door = 0; door < HDT_LISTENER_COUNT; door++) {
        door_metrics(gw, out, door_names[door], dp.refused[door]);
    }
    door_metrics(gw, out, "http", gw->http_refused);
    hdt_metrics_head(out, "hdt_peer_misdeeds_total", "counter",
                     "What a peer did against the protocol other than with chunks, by cause.");
    for (size_t i = 0; i < n; i++) {
        for (int k = 0; k < HDT_MISDEED_COUNT; k++) {
            hdt_metrics_begin(out, gw, "hdt_peer_misdeeds_total");
            hdt_metrics_label(out, "peer", peers[i].site);
            hdt_metrics_label(out, "cause", hdt_misdeed_name((enum hdt_misdeed)k));
            hdt_metrics_end(out, (double)peers[i].misdeeds[k]);
        }
    }
    free(peers);
}
