/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/dp.h"
#include "src/base/buf.h"
#include "src/base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Peers: other sites by name, and dialling them. A peer is made when it is first dialled or when it
 * first shows a valid certificate, and stays: there are as many as sites in the federation.
 */

/* Beside a silent session a dial connects within the round trip of an idle link and so much, or the
 * next begins. */
#define PEER_BESIDE_CONNECT_US (200 * HDT_US_PER_MS)

struct hdt_peer *hdt_peer_find(struct hdt_dataplane *dp, const char *site)
{
    struct hdt_peer *peer;

    HASH_FIND_STR(dp->peers, site, peer);
    return peer;
}

struct hdt_peer *hdt_peer_get(struct hdt_dataplane *dp, const char *site)
{
    struct hdt_peer *peer = hdt_peer_find(dp, site);

    if (peer != NULL) {
        return peer;
    }
    peer = hdt_calloc(1, sizeof(*peer));
    peer->dp = dp;
    snprintf(peer->site, sizeof(peer->site), "%s", site);
    hdt_pacer_init(&peer->pacer, HDT_DP_PACE_MIN);
    peer->backoff_us = HDT_DP_BACKOFF_MIN_US;
    HASH_ADD_STR(dp->peers, site, peer);
    return peer;
}

void hdt_peers_close(struct hdt_dataplane *dp)
{
    struct hdt_peer *peer;

    for (peer = dp->peers; peer != NULL; peer = peer->hh.next) {
        if (peer->session != NULL) {
            hdt_session_close(peer->session, NULL);
        }
    }
}

void hdt_peers_free(struct hdt_dataplane *dp)
{
    struct hdt_peer *peer, *next;

    HASH_ITER(hh, dp->peers, peer, next)
    {
        HASH_DEL(dp->peers, peer);
        hdt_txq_free(peer);
        free(peer);
    }
}

void hdt_peer_mark(struct hdt_flow_end *flow)
{
    struct hdt_peer *peer = flow->peer;

    if (peer == NULL || flow->on_peer_list) {
        return;
    }
    DL_APPEND2(peer->dirty, flow, peer_prev, peer_next);
    flow->on_peer_list = true;
    if (peer->session != NULL && peer->session->conns[0] != NULL) {
        hdt_conn_kick(peer->session->conns[0]);
    }
}

/* Between half and all of the back-off, so that two sites do not dial in step. Beside a session
 * that stands the pause stays short: the next dial is the one that finds the link healed. */
static void peer_back_off(struct hdt_peer *peer)
{
    const int64_t max_us = peer->dp->conf.deadlines.backoff_us;
    const int64_t pause_us = peer->session == NULL ? peer->backoff_us : HDT_DP_TICK_US / 2;
    const int64_t half_us = pause_us / 2;

    peer->next_dial_us =
        hdt_clock_now_us() + half_us + (int64_t)(hdt_dp_random(peer->dp) % (uint64_t)(half_us + 1));
    if (peer->session == NULL) {
        peer->backoff_us = peer->backoff_us * 2 < max_us ? peer->backoff_us * 2 : max_us;
    }
}

/* How long a dial may take to connect. TCP repeats a SYN after 1, 3 and 7 seconds; beside a
 * session, whose round trip is known, a new dial is sooner. */
static int64_t peer_connect_us(const struct hdt_peer *peer)
{
    const int64_t max_us = peer->dp->conf.deadlines.connect_us;
    const int64_t beside_us = peer->min_rtt_us * 5 / 4 + PEER_BESIDE_CONNECT_US;

    return peer->session != NULL && beside_us < max_us ? beside_us : max_us;
}

void hdt_peer_dial_failed(struct hdt_peer *peer, struct hdt_conn *conn, const struct hdt_error *why)
{
    if (conn == NULL || peer->dialling == conn) {
        peer->dialling = NULL;
        peer_back_off(peer);
    }
    hdt_log_debug("dial of site %s failed: %s", peer->site, why->msg);
}

/* L */
static void peer_begin_dial(struct hdt_peer *peer, const struct hdt_addr *addr)
{
    struct hdt_conn *conn = hdt_conn_new(peer->dp, HDT_CONN_WAN, -1);

    conn->dialled = true;
    conn->peer = peer;
    conn->addr = *addr;
    memcpy(conn->address, peer->address, sizeof(conn->address));
    conn->deadline_us = hdt_clock_now_us() + peer_connect_us(peer);
    peer->dialling = conn;
    hdt_conn_kick(conn);
}

/* L */
static bool peer_is_to_dial(const struct hdt_peer *peer, int64_t now_us)
{
    return peer->wanted &&
           (peer->session == NULL || hdt_session_wants_another(peer->session, now_us));
}

void hdt_peer_resolved(struct hdt_dataplane *dp, const char *site, const char *address,
                       const struct hdt_addr *addr, const struct hdt_error *err)
{
    struct hdt_peer *peer;

    hdt_dp_lock(dp);
    peer = hdt_peer_find(dp, site);
    HDT_ASSERT(peer != NULL && peer->resolving);
    peer->resolving = false;
    if (dp->stopping || !peer_is_to_dial(peer, hdt_clock_now_us()) ||
        strcmp(peer->address, address) != 0) {
        hdt_dp_unlock(dp);
        return;
    }
    if (addr != NULL) {
        peer->addr = *addr;
        peer->has_addr = true;
        peer_begin_dial(peer, addr);
    } else {
        if (strcmp(peer->last_refusal, err->msg) != 0) {
            memcpy(peer->last_refusal, err->msg, sizeof(peer->last_refusal));
            hdt_dpevent_peer_refused(dp, peer->site, peer->address, err, 1);
        }
        hdt_peer_dial_failed(peer, NULL, err);
    }
    hdt_dp_unlock(dp);
}

/* L: one peer whose address is to be resolved now; NULL: none. Beside a session the address that it
 * had will do: it is dialled here. */
static struct hdt_peer *peer_to_dial(struct hdt_dataplane *dp, int64_t now_us)
{
    struct hdt_peer *peer;

    for (peer = dp->peers; peer != NULL; peer = peer->hh.next) {
        if (!peer_is_to_dial(peer, now_us) || peer->dialling != NULL || peer->resolving ||
            now_us < peer->next_dial_us) {
            continue;
        }
        if (peer->session == NULL || !peer->has_addr) {
            return peer;
        }
        peer_begin_dial(peer, &peer->addr);
    }
    return NULL;
}

void hdt_peers_tick(struct hdt_dataplane *dp, int64_t now_us)
{
    struct hdt_peer *peer;
    char site[64], address[160];
    bool is_due;

    hdt_dp_lock(dp);
    for (peer = dp->peers; peer != NULL && !dp->stopping; peer = peer->hh.next) {
        if (peer->session != NULL) {
            hdt_session_tick(peer->session, now_us);
        }
        hdt_probe_tick(peer, now_us);
        hdt_linkinfo_tick(peer, now_us);
    }
    hdt_dp_unlock(dp);
    do {
        hdt_dp_lock(dp);
        peer = dp->stopping ? NULL : peer_to_dial(dp, now_us);
        is_due = peer != NULL;
        if (is_due) {
            peer->resolving = true;
            memcpy(site, peer->site, sizeof(site));
            memcpy(address, peer->address, sizeof(address));
        }
        hdt_dp_unlock(dp);
        if (is_due) {
            hdt_resolver_ask(dp->resolver, site, address);
        }
    } while (is_due);
}

void hdt_dataplane_dial(struct hdt_dataplane *dp, const char *site, const char *address)
{
    struct hdt_peer *peer;

    hdt_dp_lock(dp);
    peer = hdt_peer_get(dp, site);
    if (!peer->wanted || strcmp(peer->address, address) != 0) {
        peer->wanted = true;
        peer->has_addr = false;
        memset(peer->address, 0, sizeof(peer->address));
        snprintf(peer->address, sizeof(peer->address), "%s", address);
        peer->next_dial_us = 0;
        peer->backoff_us = HDT_DP_BACKOFF_MIN_US;
        if (peer->session != NULL && peer->session->dialled_by_us) {
            const struct hdt_error why = {.status = HDT_ECANCELED,
                                          .msg = "the peer is dialled at another address"};

            hdt_session_close(peer->session, &why);
        }
    }
    hdt_dp_unlock(dp);
}

void hdt_dataplane_undial(struct hdt_dataplane *dp, const char *site)
{
    const struct hdt_error why = {.status = HDT_ECANCELED, .msg = "the peer is dialled no more"};
    struct hdt_peer *peer;

    hdt_dp_lock(dp);
    peer = hdt_peer_find(dp, site);
    if (peer != NULL && peer->wanted) {
        peer->wanted = false;
        if (peer->dialling != NULL) {
            hdt_conn_close(peer->dialling, &why);
        }
        if (peer->session != NULL && peer->session->dialled_by_us) {
            hdt_session_close(peer->session, &why);
        }
    }
    hdt_dp_unlock(dp);
}
