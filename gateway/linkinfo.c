/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/linkinfo.h"
#include "gateway/dp.h"
#include "src/base/clock.h"
#include "src/net/doctor.h"

#include <linux/inet_diag.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

/*
 * Why does a link not carry more? The kernel keeps account of the time in which a connection waited
 * for the peer's window or for room in its own buffer, to the microsecond. Why it had nothing to
 * send it cannot know; the data plane does. So each tick's time of a stream is split: first what
 * the kernel's account says, then the rest by what is seen at the tick, as a profiler samples. Over
 * a second of a few streams that is some 40 samples.
 *
 * Time without traffic counts for nothing: a link that nobody uses is limited by nothing.
 * Heartbeats are no traffic.
 *
 * "Limited by the send buffer" is the kernel's word for a socket that ran dry while its owner was
 * waiting for room. Where the buffer is as large as it may become, or bytes in flight fill it, that
 * is the cause; where not, the owner was told that there is room and did not get the processor in
 * time.
 *
 * Refused: TCP's application-limited flag (gateway/shortage.h says why).
 */
#define LINKINFO_ESTABLISHED 1 /* states of TCP: their names are in a header that clashes */
#define LINKINFO_CLOSE_WAIT  8
#define LINKINFO_WINDOW_US   HDT_US_PER_S
#define LINKINFO_IDLE_BYTES  4096 /* less in a tick is heartbeats */
/* Of the send buffer in flight: it is the limit. The kernel makes room for twice the congestion
 * window as long as it may; its bookkeeping takes up to a half. */
#define LINKINFO_FULL_PART 0.6
#define LINKINFO_MAX_PART  0.9 /* of the largest buffer that the kernel makes */
/* Of the congestion window in flight: below, that is not the limit. */
#define LINKINFO_OPEN_PART 0.75
#define LINKINFO_KEEP_US   (10 * HDT_US_PER_S)
/* BBR's gain in units of 1/256: 2.89 while it searches, 1.25 at most later. */
#define LINKINFO_SEARCH_GAIN 512
/* Of the window in use: its figures say what the link can do. */
#define LINKINFO_LOAD_PART 0.5

/* Fields that the running kernel may not have stay 0. */
static void linkinfo_from_kernel(const struct tcp_info *info, const struct hdt_tcp_stats *before,
                                 struct hdt_tcp_stats *tcp)
{
    tcp->rtt_us = info->tcpi_rtt;
    tcp->min_rtt_us = info->tcpi_min_rtt == UINT32_MAX ? 0 : info->tcpi_min_rtt;
    tcp->delivery_bytes_per_s = (double)info->tcpi_delivery_rate;
    tcp->sent_bytes = info->tcpi_bytes_sent;
    tcp->resent_bytes = info->tcpi_bytes_retrans;
    tcp->acked_bytes = info->tcpi_bytes_acked;
    tcp->delivered_bytes =
        before->delivered_bytes +
        (uint64_t)(info->tcpi_delivered - before->delivered_segments) * info->tcpi_snd_mss;
    tcp->delivered_segments = info->tcpi_delivered;
    tcp->busy_us = (int64_t)info->tcpi_busy_time;
    tcp->rwnd_limited_us = (int64_t)info->tcpi_rwnd_limited;
    tcp->sndbuf_limited_us = (int64_t)info->tcpi_sndbuf_limited;
    if (info->tcpi_bytes_acked > info->tcpi_bytes_sent - info->tcpi_bytes_retrans) {
        tcp->acked_bytes = info->tcpi_bytes_sent - info->tcpi_bytes_retrans; /* less the SYN */
    }
    tcp->in_flight_bytes = tcp->sent_bytes - tcp->resent_bytes - tcp->acked_bytes;
    tcp->cwnd_used = info->tcpi_snd_cwnd > 0 ? (double)info->tcpi_unacked / info->tcpi_snd_cwnd : 0;
    tcp->unsent_bytes = info->tcpi_notsent_bytes;
    tcp->cwnd_bytes = (uint64_t)info->tcpi_snd_cwnd * info->tcpi_snd_mss;
    tcp->peer_window_bytes = info->tcpi_snd_wnd;
    tcp->path_mtu = info->tcpi_pmtu;
    tcp->mss = info->tcpi_snd_mss;
}

bool hdt_linkinfo_read(const struct hdt_conn *conn, struct hdt_tcp_stats *tcp)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof(info), name_len = sizeof(tcp->congestion), buffer_len = sizeof(int);
    const bool may_be = conn->kind == HDT_CONN_WAN && conn->index > 0 && conn->stream != NULL &&
                        conn->dp->conf.stepped == NULL;
    const int fd = may_be ? hdt_stream_fd(conn->stream) : -1;
    int buffer = 0;

    memset(tcp, 0, sizeof(*tcp));
    if (fd < 0 || getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0 ||
        (info.tcpi_state != LINKINFO_ESTABLISHED && info.tcpi_state != LINKINFO_CLOSE_WAIT)) {
        return false;
    }
    linkinfo_from_kernel(&info, &conn->link.tcp, tcp);
    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, tcp->congestion, &name_len) != 0) {
        tcp->congestion[0] = '\0';
    }
    tcp->congestion[sizeof(tcp->congestion) - 1] = '\0';
    if (getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, &buffer_len) == 0 && buffer > 0) {
        tcp->send_buffer_bytes = (uint64_t)buffer;
    }
    return true;
}

double hdt_linkinfo_search_rate(const struct hdt_conn *conn)
{
    const int fd = conn->dp->conf.stepped != NULL ? -1 : hdt_stream_fd(conn->stream);
    char congestion[HDT_TUNER_NAME_CAP] = "";
    union tcp_cc_info info = {0};
    socklen_t len = sizeof(info), name_len = sizeof(congestion) - 1;

    /* Others have figures of their own in the same place. */
    if (fd < 0 || getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion, &name_len) != 0 ||
        strncmp(congestion, HDT_BBR, strlen(HDT_BBR)) != 0 ||
        getsockopt(fd, IPPROTO_TCP, TCP_CC_INFO, &info, &len) != 0 || len < sizeof(info.bbr) ||
        info.bbr.bbr_pacing_gain < LINKINFO_SEARCH_GAIN) {
        return 0;
    }
    return (double)((uint64_t)info.bbr.bbr_bw_hi << 32 | info.bbr.bbr_bw_lo);
}

/* ---- where the time of a stream goes ---- */

/* L */
static bool linkinfo_is_full(const struct hdt_peer *peer, const struct hdt_tcp_stats *tcp)
{
    const double buffer = (double)tcp->send_buffer_bytes;

    return (double)tcp->in_flight_bytes >= LINKINFO_FULL_PART * buffer ||
           (peer->link.buffer_max > 0 && buffer >= LINKINFO_MAX_PART * peer->link.buffer_max);
}

/* Why a stream finds nothing ready. */
static enum hdt_link_limit linkinfo_idle(const struct hdt_peer *peer)
{
    int prio;

    for (prio = 0; prio < HDT_PRIO_COUNT; prio++) {
        if (!hdt_tx_lanes_are_empty(&peer->queue[prio])) {
            return peer->dp->budgets.held_until_us != 0 ? HDT_LIMIT_RATE : HDT_LIMIT_CODEC;
        }
    }
    return HDT_LIMIT_APPLICATION;
}

/* L: of the time that the kernel's account leaves. */
static enum hdt_link_limit linkinfo_seen(const struct hdt_conn *conn,
                                         const struct hdt_tcp_stats *tcp, size_t queued_bytes)
{
    const struct hdt_peer *peer = conn->peer;
    const bool probes = peer->probe_out.active && peer->probe_out.left > 0;

    /* A stream that wants a chunk is given one that is ready, unless the cap holds it back. */
    if (conn->hungry && (peer->n_ready > 0 || probes) && peer->dp->conf.rate_bits_per_s != 0) {
        return HDT_LIMIT_RATE;
    }
    if (conn->hungry && !probes && queued_bytes == 0 && tcp->unsent_bytes == 0) {
        return linkinfo_idle(peer);
    }
    if (queued_bytes > 0 && tcp->unsent_bytes == 0 && tcp->cwnd_used < LINKINFO_OPEN_PART) {
        return HDT_LIMIT_CPU;
    }
    return HDT_LIMIT_PATH;
}

static int64_t linkinfo_grown(int64_t now, int64_t before, int64_t at_most)
{
    const int64_t grown = now > before ? now - before : 0;

    return grown < at_most ? grown : at_most;
}

/* L */
static void linkinfo_split(struct hdt_conn *conn, const struct hdt_tcp_stats *tcp,
                           size_t queued_bytes, int64_t tick_us)
{
    int64_t *limit_us = conn->peer->link.stats.limit_us;
    const struct hdt_tcp_stats *old = &conn->link.tcp;
    int64_t waited_us = linkinfo_grown(tcp->rwnd_limited_us, old->rwnd_limited_us, tick_us);

    limit_us[HDT_LIMIT_RECEIVER] += waited_us;
    tick_us -= waited_us;
    waited_us = linkinfo_grown(tcp->sndbuf_limited_us, old->sndbuf_limited_us, tick_us);
    limit_us[linkinfo_is_full(conn->peer, tcp) ? HDT_LIMIT_BUFFER : HDT_LIMIT_CPU] += waited_us;
    tick_us -= waited_us;
    limit_us[linkinfo_seen(conn, tcp, queued_bytes)] += tick_us;
}

/* L: a stream over which only the peer sends has nothing to do with what is ready. */
static bool linkinfo_in_use(const struct hdt_conn *conn, const struct hdt_tcp_stats *tcp,
                            uint64_t acked)
{
    return acked >= LINKINFO_IDLE_BYTES || tcp->in_flight_bytes >= LINKINFO_IDLE_BYTES ||
           (conn->peer->n_ready > 0 && conn->index <= hdt_session_n_used(conn->session));
}

/* L: streams share the link, so that it is in use while any of them is. */
static void linkinfo_use(struct hdt_peer_link *link, int64_t from_us, int64_t to_us)
{
    from_us = from_us > link->used_to_us ? from_us : link->used_to_us;
    if (to_us > from_us) {
        link->used_us += to_us - from_us;
        link->used_to_us = to_us;
    }
}

void hdt_linkinfo_note(struct hdt_conn *conn, const struct hdt_tcp_stats *tcp, size_t queued_bytes,
                       int64_t now_us)
{
    struct hdt_peer_link *link;
    const struct hdt_tcp_stats old = conn->link.tcp;
    uint64_t acked;

    if (conn->state != HDT_CONN_UP || conn->index == 0 || conn->peer->session != conn->session) {
        return;
    }
    link = &conn->peer->link;
    acked = tcp->acked_bytes - old.acked_bytes;
    if (conn->link.taken_us != 0 && linkinfo_in_use(conn, tcp, acked)) {
        linkinfo_split(conn, tcp, queued_bytes, now_us - conn->link.taken_us);
        linkinfo_use(link, conn->link.taken_us, now_us);
        link->arrived_bytes += tcp->delivered_bytes - old.delivered_bytes;
    }
    link->acked_bytes += acked;
    link->stats.sent_bytes += tcp->sent_bytes - old.sent_bytes;
    link->stats.resent_bytes += tcp->resent_bytes - old.resent_bytes;
    conn->link.taken_us = now_us;
    conn->link.tcp = *tcp;
    conn->link.tcp.stream = conn->index;
    conn->link.tcp.rate_bytes_per_s = old.rate_bytes_per_s; /* of the window, until it ends */
    conn->link.tcp.share = old.share;
}

/* ---- windows ---- */

/* L: sums over the streams that this site sends over; all streams' own shares of the window. */
static void linkinfo_sum(struct hdt_peer *peer, double window_s, uint64_t acked)
{
    struct hdt_link_stats *stats = &peer->link.stats;
    const struct hdt_session *session = peer->session;
    int64_t rtt_us = 0, queue_us = 0;
    unsigned i;

    stats->n_tcp = 0;
    stats->cwnd_bytes = stats->in_flight_bytes = 0;
    stats->min_rtt_us = 0;
    for (i = 1; session != NULL && i <= session->n_streams; i++) {
        struct hdt_conn *conn = session->conns[i];
        struct hdt_tcp_stats *tcp = conn != NULL ? &conn->link.tcp : NULL;
        uint64_t own;

        if (conn == NULL || conn->link.taken_us == 0) {
            continue;
        }
        own = tcp->acked_bytes - conn->link.window_acked;
        conn->link.window_acked = tcp->acked_bytes;
        tcp->rate_bytes_per_s = (double)own / window_s;
        if (acked >= LINKINFO_IDLE_BYTES * 10) {
            tcp->share = own < acked ? (double)own / (double)acked : 1;
        }
        if (i > hdt_session_n_used(session)) {
            continue;
        }
        if (stats->n_tcp++ == 0) {
            memcpy(stats->congestion, tcp->congestion, sizeof(stats->congestion));
        } else if (strcmp(stats->congestion, tcp->congestion) != 0) {
            memcpy(stats->congestion, "mixed", sizeof("mixed"));
        }
        rtt_us += tcp->rtt_us;
        queue_us += tcp->rtt_us > tcp->min_rtt_us ? tcp->rtt_us - tcp->min_rtt_us : 0;
        if (stats->min_rtt_us == 0 || tcp->min_rtt_us < stats->min_rtt_us) {
            stats->min_rtt_us = tcp->min_rtt_us;
        }
        stats->cwnd_bytes += tcp->cwnd_bytes;
        stats->in_flight_bytes += tcp->in_flight_bytes;
    }
    stats->rtt_us = stats->n_tcp > 0 ? rtt_us / stats->n_tcp : 0;
    stats->queue_us = stats->n_tcp > 0 ? queue_us / stats->n_tcp : 0;
}

/* L: how good a witness of what the link can do the window is: the share of it in which there was
 * something to send. */
static double linkinfo_loaded_share(const struct hdt_peer_link *link, int64_t window_us)
{
    static const enum hdt_link_limit own[] = {HDT_LIMIT_APPLICATION, HDT_LIMIT_CODEC};
    int64_t loaded_us = 0;
    size_t i;

    for (i = 0; i < HDT_LIMIT_COUNT; i++) {
        loaded_us += link->stats.limit_us[i] - link->before.limit_us[i];
    }
    for (i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
        loaded_us -= link->stats.limit_us[own[i]] - link->before.limit_us[own[i]];
    }
    return (double)loaded_us / (double)(window_us * link->stats.n_tcp);
}

/* L: the window had traffic: what limited it? A worse witness does not take the place of a better
 * one that is not old. The rate is that at which bytes arrived, as the peer's kernel told: where a
 * lost packet is waited for, what it acknowledges in turn stands still and then jumps. */
static void linkinfo_load(struct hdt_peer_link *link, int64_t streams_us, int64_t now_us)
{
    const uint64_t sent = link->stats.sent_bytes - link->before.sent_bytes;
    const uint64_t resent = link->stats.resent_bytes - link->before.resent_bytes;
    const int64_t window_us = now_us - link->window_us;
    const double loaded_share = linkinfo_loaded_share(link, window_us);
    struct hdt_link_load *load = &link->stats.load;
    int i;

    if (now_us - load->at_us < LINKINFO_KEEP_US && loaded_share < load->loaded_share) {
        return;
    }
    load->at_us = now_us;
    load->loaded_share = loaded_share;
    load->rate_bytes_per_s = (double)(link->arrived_bytes - link->before_arrived_bytes) * 1e6 /
                             (double)(link->used_us - link->before_used_us);
    load->resent_share = sent > 0 ? (double)resent / (double)sent : 0;
    load->queue_us = link->stats.queue_us;
    for (i = 0; i < HDT_LIMIT_COUNT; i++) {
        load->limit_share[i] =
            (double)(link->stats.limit_us[i] - link->before.limit_us[i]) / (double)streams_us;
    }
}

void hdt_linkinfo_tick(struct hdt_peer *peer, int64_t now_us)
{
    struct hdt_peer_link *link = &peer->link;
    const int64_t window_us = now_us - link->window_us;
    const uint64_t acked = link->acked_bytes - link->before_acked_bytes;
    const bool was_idle = link->stats.n_tcp == 0;
    int64_t streams_us = 0;
    double in;
    int i;

    if (window_us < LINKINFO_WINDOW_US) {
        return;
    }
    linkinfo_sum(peer, (double)window_us / 1e6, acked);
    if (was_idle && link->stats.n_tcp > 0) { /* a session begins */
        hdt_doctor_buffers("", &link->buffer_max, &in);
    }
    link->stats.rate_bytes_per_s = (double)acked * 1e6 / (double)window_us;
    for (i = 0; i < HDT_LIMIT_COUNT; i++) {
        streams_us += link->stats.limit_us[i] - link->before.limit_us[i];
    }
    if (link->stats.n_tcp > 0 &&
        (double)streams_us >= LINKINFO_LOAD_PART * (double)window_us * link->stats.n_tcp) {
        linkinfo_load(link, streams_us, now_us);
    }
    link->before = link->stats;
    link->before_acked_bytes = link->acked_bytes;
    link->before_arrived_bytes = link->arrived_bytes;
    link->before_used_us = link->used_us;
    link->window_us = now_us;
}

void hdt_linkinfo_fill(const struct hdt_peer *peer, int64_t now_us, struct hdt_link_stats *stats)
{
    *stats = peer->link.stats;
    stats->load.ago_us = stats->load.at_us != 0 ? now_us - stats->load.at_us : -1;
    if (peer->session == NULL) {
        stats->n_tcp = 0;
    }
}

size_t hdt_dataplane_stream_stats(struct hdt_dataplane *dp, const char *site,
                                  struct hdt_tcp_stats *stats, size_t cap)
{
    const struct hdt_peer *peer;
    size_t n = 0;
    unsigned i;

    hdt_dp_lock(dp);
    peer = hdt_peer_find(dp, site);
    for (i = 1; peer != NULL && peer->session != NULL && i <= peer->session->n_streams; i++) {
        const struct hdt_conn *conn = peer->session->conns[i];

        if (conn != NULL && conn->link.taken_us != 0) {
            if (n < cap) {
                stats[n] = conn->link.tcp;
            }
            n++;
        }
    }
    hdt_dp_unlock(dp);
    return n;
}
