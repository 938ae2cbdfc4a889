/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/dp.h"
#include "src/base/clock.h"

#include <stdio.h>
#include <string.h>

/* Snapshots of counters for the main thread. */

/* L */
static uint64_t dpstats_queued_bytes(const struct hdt_peer *peer)
{
    uint64_t bytes = 0;
    int prio;

    for (prio = 0; prio < HDT_PRIO_COUNT; prio++) {
        const struct hdt_tx_chunk *chunk;

        bytes += hdt_tx_lanes_bytes(&peer->queue[prio], peer->dp->conf.chunk_bytes);
        LL_FOREACH(peer->ready[prio].head, chunk)
        {
            bytes += chunk->out.rec.frame.len;
        }
    }
    return bytes;
}

/* L: what the kernel knows of a bulk stream. */
static void dpstats_add_tcp(const struct hdt_conn *conn, struct hdt_peer_stats *stats)
{
    const struct hdt_tcp_stats *tcp = &conn->link.tcp;

    if (stats->path_mtu == 0 || tcp->path_mtu < stats->path_mtu) {
        stats->path_mtu = tcp->path_mtu;
    }
    if (stats->mss == 0 || tcp->mss < stats->mss) {
        stats->mss = tcp->mss;
    }
    stats->acked_bytes += tcp->acked_bytes;
}

/* L: one stream or all, for bursts. */
static void dpstats_why_bursts(const struct hdt_peer *peer, struct hdt_peer_stats *stats)
{
    const struct hdt_burst *burst = &peer->burst;

    if (burst->first_bytes_per_s > 0 && hdt_session_may_use_one(peer->session)) {
        snprintf(stats->why_bursts, sizeof(stats->why_bursts),
                 "over %s: the first stream carried %.0f Mbit/s alone, the others %.0f together%s",
                 burst->one_will_do ? "one" : "all", 8e-6 * burst->first_bytes_per_s,
                 8e-6 * burst->others_bytes_per_s,
                 burst->is_bulk ? "; the load lasts now, and uses all" : "");
    }
}

/* L */
static void dpstats_fill_peer(const struct hdt_peer *peer, int64_t now_us,
                              struct hdt_peer_stats *stats)
{
    const struct hdt_session *session = peer->session;
    const struct hdt_conn *conn;

    *stats = peer->total;
    memcpy(stats->site, peer->site, sizeof(stats->site));
    if (peer->address[0] != '\0') {
        memcpy(stats->address, peer->address, sizeof(stats->address));
    } else if (session != NULL && session->conns[0] != NULL) {
        memcpy(stats->address, session->conns[0]->address, sizeof(stats->address));
    }
    stats->up = session != NULL;
    stats->cert_left_s = (peer->cert_end_us - now_us) / HDT_US_PER_S;
    stats->suspect = peer->suspect;
    stats->rtt_us = peer->rtt_us;
    stats->min_rtt_us = peer->min_rtt_us;
    stats->clock_skew_us = peer->clock_skew_us;
    stats->goodput_bytes_per_s = peer->goodput_bytes_per_s;
    stats->loaded_us = peer->loaded_us != 0 ? now_us - peer->loaded_us : -1;
    stats->edge_bytes_per_s = peer->edge_rate.bytes_per_s;
    stats->edge_us = peer->edge_rate.at_us != 0 ? now_us - peer->edge_rate.at_us : -1;
    stats->queued_bytes = dpstats_queued_bytes(peer);
    stats->pace_bytes_per_s = peer->pacer.rate;
    if (session != NULL && peer->has_tuner) {
        stats->n_streams_used = hdt_session_n_used(session);
        hdt_tuner_why_streams(&peer->tuner, stats->why_streams);
        dpstats_why_bursts(peer, stats);
        hdt_tuner_why_congestion(&peer->tuner, stats->why_congestion);
        snprintf(stats->buffers, sizeof(stats->buffers), "%.191s", peer->buffers.msg);
        snprintf(stats->buffers_hint, sizeof(stats->buffers_hint), "%.191s", peer->buffers.hint);
    }
    DL_FOREACH(peer->dp->conns, conn)
    {
        if (conn->kind == HDT_CONN_WAN && conn->peer == peer && !conn->is_gone) {
            stats->sent_bytes += conn->stats.sent_bytes;
            stats->recv_bytes += conn->stats.recv_bytes;
            if (session != NULL && conn->session == session && conn->index > 0 &&
                conn->state == HDT_CONN_UP) {
                stats->n_streams++;
                if (conn->link.taken_us != 0) {
                    dpstats_add_tcp(conn, stats);
                }
            }
        }
    }
    hdt_linkinfo_fill(peer, now_us, &stats->link);
    if (session != NULL) {
        stats->dialled_by_us = session->dialled_by_us;
        stats->silent_us = hdt_session_silent_us(session, now_us);
    }
}

size_t hdt_dataplane_peer_stats(struct hdt_dataplane *dp, struct hdt_peer_stats *stats, size_t cap)
{
    const int64_t now_us = hdt_clock_now_us();
    const struct hdt_peer *peer;
    size_t n = 0;

    hdt_dp_lock(dp);
    for (peer = dp->peers; peer != NULL; peer = peer->hh.next) {
        if (n < cap) {
            dpstats_fill_peer(peer, now_us, &stats[n]);
        }
        n++;
    }
    hdt_dp_unlock(dp);
    return n;
}

/* L */
static void dpstats_fill_flow(const struct hdt_flow_end *flow, int64_t now_us,
                              struct hdt_flow_stats *to)
{
    memset(to, 0, sizeof(*to));
    to->job = flow->key.job;
    to->epoch = flow->conf.epoch;
    to->flow = flow->key.flow;
    to->is_src = flow->key.is_src != 0;
    memcpy(to->peer_site, flow->conf.peer_site, sizeof(to->peer_site));
    to->next_seq = flow->next_seq;
    to->acked_seq = flow->acked;
    to->credit_seq = flow->credit;
    to->n_frames = flow->n_frames;
    to->plain_bytes = flow->plain_bytes;
    to->coded_bytes = flow->coded_bytes;
    to->sent_bytes = flow->sent_bytes;
    to->raw_bytes = flow->raw_bytes;
    to->idle_us = now_us - flow->moved_us;
    to->attached = flow->attached;
    to->asks = flow->key.is_src && flow->awaiting_state;
    if (!flow->key.is_src && flow->slots != NULL) {
        const struct hdt_dst_slot *slot = &flow->slots[flow->next_seq % flow->conf.depth];

        if (slot->begun && !slot->complete && slot->seq == flow->next_seq) {
            to->partial_bytes = slot->done_bytes;
            to->partial_len = slot->frame.frame_len;
        }
    }
}

size_t hdt_dataplane_flow_stats(struct hdt_dataplane *dp, struct hdt_flow_stats *stats, size_t cap)
{
    const int64_t now_us = hdt_clock_now_us();
    const struct hdt_flow_end *flow;
    size_t n = 0;

    hdt_dp_lock(dp);
    for (flow = dp->flows; flow != NULL; flow = flow->hh.next) {
        if (n < cap) {
            dpstats_fill_flow(flow, now_us, &stats[n]);
        }
        n++;
    }
    hdt_dp_unlock(dp);
    return n;
}

bool hdt_dataplane_flow_find(struct hdt_dataplane *dp, uint32_t job, uint32_t flow, bool is_src,
                             struct hdt_flow_stats *stats)
{
    const struct hdt_flow_end *end;

    hdt_dp_lock(dp);
    end = hdt_flow_end_find(dp, job, flow, is_src);
    if (end != NULL) {
        dpstats_fill_flow(end, hdt_clock_now_us(), stats);
    }
    hdt_dp_unlock(dp);
    return end != NULL;
}

void hdt_dataplane_stats(struct hdt_dataplane *dp, struct hdt_dataplane_stats *stats)
{
    const struct hdt_flow_end *flow;
    const struct hdt_conn *conn;
    int door, cause;

    memset(stats, 0, sizeof(*stats));
    hdt_doorman_counts(dp->doorman, stats->refused);
    for (door = 0; door < HDT_LISTENER_COUNT; door++) {
        for (cause = 0; cause < HDT_REFUSED_COUNT; cause++) {
            stats->strangers += stats->refused[door][cause];
        }
    }
    hdt_dp_lock(dp);
    stats->encode_bytes = dp->encode_bytes;
    stats->encode_ns = dp->encode_ns;
    stats->decode_bytes = dp->decode_bytes;
    stats->decode_ns = dp->decode_ns;
    stats->probe_send_s_per_byte = dp->probe_send_s_per_byte;
    stats->probe_recv_s_per_byte = dp->probe_recv_s_per_byte;
    stats->engine = hdt_engine_name(dp->io[0].engine);
    DL_FOREACH(dp->conns, conn)
    {
        if (conn->kind == HDT_CONN_WAN) {
            stats->sent_bytes += conn->stats.sent_bytes;
            stats->recv_bytes += conn->stats.recv_bytes;
        }
    }
    for (flow = dp->flows; flow != NULL; flow = flow->hh.next) {
        stats->n_frames += flow->n_frames;
    }
    hdt_dp_unlock(dp);
    pthread_mutex_lock(&dp->event_lock);
    stats->events_queued = dp->n_events;
    pthread_mutex_unlock(&dp->event_lock);
}

void hdt_dataplane_budget_uses(struct hdt_dataplane *dp, struct hdt_budget_use *uses)
{
    hdt_dp_lock(dp);
    hdt_budgets_look(&dp->budgets, hdt_clock_now_us(), hdt_clock_wall_us());
    memcpy(uses, dp->budgets.uses, dp->budgets.n * sizeof(*uses));
    hdt_dp_unlock(dp);
}

uint64_t hdt_dataplane_budget_cap(struct hdt_dataplane *dp, const char *site, const char *job,
                                  enum hdt_prio prio)
{
    uint64_t cap;

    hdt_dp_lock(dp);
    hdt_budgets_look(&dp->budgets, hdt_clock_now_us(), hdt_clock_wall_us());
    cap = hdt_budgets_cap(&dp->budgets, hdt_budgets_of(&dp->budgets, site, job, prio));
    hdt_dp_unlock(dp);
    return cap;
}
