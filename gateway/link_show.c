/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is shown of the links to peers, for /status and /metrics: TCP's own figures and what the
 * time of the streams goes for (linkinfo.h). Of a peer of whose streams the kernel tells nothing
 * there is no figure, rather than a 0 that looks like one.
 */
#include "config.h"

#include "gateway/control.h"
#include "gateway/metrics.h"
#include "src/base/buf.h"

#include <stdio.h>
#include <stdlib.h>

#define MAX_STREAMS    64
#define N_ELEMENTS(xs) (sizeof(xs) / sizeof((xs)[0]))

static const char *limit_name(int limit)
{
    static const char *const names[HDT_LIMIT_COUNT] = {
        [HDT_LIMIT_APPLICATION] = "application",
        [HDT_LIMIT_CODEC] = "codec",
        [HDT_LIMIT_RATE] = "rate",
        [HDT_LIMIT_RECEIVER] = "receiver",
        [HDT_LIMIT_BUFFER] = "buffer",
        [HDT_LIMIT_CPU] = "cpu",
        [HDT_LIMIT_PATH] = "path",
    };

    return names[limit];
}

/* ---- /status ---- */

static json_t *stream_json(const struct hdt_tcp_stats *tcp)
{
    return json_pack(
        "{s:i, s:s, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:f, s:f, s:f, s:I, s:I, s:I, s:I, "
        "s:I, s:i, s:i}",
        "stream", (int)tcp->stream, "congestion", tcp->congestion, "rtt_ms",
        (double)tcp->rtt_us / 1e3, "min_rtt_ms", (double)tcp->min_rtt_us / 1e3,
        "delivery_bits_per_s", 8 * tcp->delivery_bytes_per_s, "rate_bits_per_s",
        8 * tcp->rate_bytes_per_s, "share", tcp->share, "sent_bytes", (json_int_t)tcp->sent_bytes,
        "resent_bytes", (json_int_t)tcp->resent_bytes, "acked_bytes", (json_int_t)tcp->acked_bytes,
        "busy_s", (double)tcp->busy_us / 1e6, "rwnd_limited_s", (double)tcp->rwnd_limited_us / 1e6,
        "sndbuf_limited_s", (double)tcp->sndbuf_limited_us / 1e6, "in_flight_bytes",
        (json_int_t)tcp->in_flight_bytes, "unsent_bytes", (json_int_t)tcp->unsent_bytes,
        "cwnd_bytes", (json_int_t)tcp->cwnd_bytes, "peer_window_bytes",
        (json_int_t)tcp->peer_window_bytes, "send_buffer_bytes", (json_int_t)tcp->send_buffer_bytes,
        "path_mtu", (int)tcp->path_mtu, "mss", (int)tcp->mss);
}

static json_t *streams_json(struct hdt_gateway *gw, const char *site)
{
    struct hdt_tcp_stats *streams = hdt_calloc(MAX_STREAMS, sizeof(*streams));
    const size_t n = hdt_dataplane_stream_stats(gw->dp, site, streams, MAX_STREAMS);
    json_t *array = json_array();

    for (size_t i = 0; i < n && i < MAX_STREAMS; i++) {
        json_array_append_new(array, stream_json(&streams[i]));
    }
    free(streams);
    return array;
}

static json_t *load_json(const struct hdt_link_load *load)
{
    json_t *shares = json_object();
    int most = 0;

    for (int i = 0; i < HDT_LIMIT_COUNT; i++) {
        json_object_set_new(shares, limit_name(i), json_real(load->limit_share[i]));
        most = load->limit_share[i] > load->limit_share[most] ? i : most;
    }
    return json_pack("{s:f, s:f, s:f, s:f, s:s, s:o}", "ago_s", (double)load->ago_us / 1e6,
                     "rate_bits_per_s", 8 * load->rate_bytes_per_s, "resent_share",
                     load->resent_share, "queue_ms", (double)load->queue_us / 1e3, "limit",
                     limit_name(most), "limit_shares", shares);
}

json_t *hdt_link_json(struct hdt_gateway *gw, const struct hdt_peer_stats *peer)
{
    const struct hdt_link_stats *link = &peer->link;
    json_t *json, *limited;

    if (link->n_tcp == 0) {
        return NULL;
    }
    limited = json_object();
    for (int i = 0; i < HDT_LIMIT_COUNT; i++) {
        json_object_set_new(limited, limit_name(i), json_real((double)link->limit_us[i] / 1e6));
    }
    json = json_pack("{s:s, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:o, s:o}", "congestion",
                     link->congestion, "rtt_ms", (double)link->rtt_us / 1e3, "min_rtt_ms",
                     (double)link->min_rtt_us / 1e3, "queue_ms", (double)link->queue_us / 1e3,
                     "rate_bits_per_s", 8 * link->rate_bytes_per_s, "cwnd_bytes",
                     (json_int_t)link->cwnd_bytes, "in_flight_bytes",
                     (json_int_t)link->in_flight_bytes, "sent_bytes", (json_int_t)link->sent_bytes,
                     "resent_bytes", (json_int_t)link->resent_bytes, "limited_s", limited,
                     "streams", streams_json(gw, peer->site));
    if (link->load.ago_us >= 0) {
        json_object_set_new(json, "load", load_json(&link->load));
    }
    return json;
}

/* ---- /metrics ---- */

struct link_metric {
    const char *name, *type, *help;
    double (*value)(const struct hdt_link_stats *link);
};

#define LINK_VALUE(fn, expr)                                                                       \
 static double fn(const struct hdt_link_stats *link)                                               \
 {                                                                                                 \
  return (double)(expr);                                                                           \
 }
LINK_VALUE(value_rate, link->rate_bytes_per_s)
LINK_VALUE(value_queue, (double)link->queue_us / 1e6)
LINK_VALUE(value_cwnd, link->cwnd_bytes)
LINK_VALUE(value_sent, link->sent_bytes)
LINK_VALUE(value_resent, link->resent_bytes)

static const struct link_metric link_metrics[] = {
    {"hdt_peer_delivery_bytes_per_second", "gauge",
     "Bytes a second that the peer's kernel acknowledged in the last second.", value_rate},
    {"hdt_peer_queue_delay_seconds", "gauge",
     "Round trip of the bulk streams above their shortest: what queues on the way add.",
     value_queue},
    {"hdt_peer_congestion_window_bytes", "gauge", "Sum of the congestion windows.", value_cwnd},
    {"hdt_peer_tcp_sent_bytes_total", "counter",
     "Bytes that TCP sent on bulk streams, with what it sent again.", value_sent},
    {"hdt_peer_tcp_retransmitted_bytes_total", "counter", "Bytes that TCP sent again.",
     value_resent},
};

static void metrics_labelled(const struct hdt_gateway *gw, struct hdt_buf *out, const char *name,
                             const struct hdt_peer_stats *peer)
{
    hdt_metrics_begin(out, gw, name);
    hdt_metrics_label(out, "peer", peer->site);
}

static void metrics_limits(struct hdt_gateway *gw, struct hdt_buf *out,
                           const struct hdt_peer_stats *peers, size_t n)
{
    static const char name[] = "hdt_peer_limited_seconds_total";
    static const char info[] = "hdt_peer_congestion_info";

    hdt_metrics_head(out, name, "counter",
                     "Time of bulk streams in use, by what kept them from carrying more.");
    for (size_t i = 0; i < n; i++) {
        for (int k = 0; k < HDT_LIMIT_COUNT && peers[i].link.n_tcp > 0; k++) {
            metrics_labelled(gw, out, name, &peers[i]);
            hdt_metrics_label(out, "limit", limit_name(k));
            hdt_metrics_end(out, (double)peers[i].link.limit_us[k] / 1e6);
        }
    }
    hdt_metrics_head(out, info, "gauge",
                     "Always 1; TCP congestion control of the bulk streams as label.");
    for (size_t i = 0; i < n; i++) {
        if (peers[i].link.n_tcp > 0) {
            metrics_labelled(gw, out, info, &peers[i]);
            hdt_metrics_label(out, "algorithm", peers[i].link.congestion);
            hdt_metrics_end(out, 1);
        }
    }
}

static double stream_acked(const struct hdt_tcp_stats *tcp)
{
    return (double)tcp->acked_bytes;
}

static double stream_resent(const struct hdt_tcp_stats *tcp)
{
    return (double)tcp->resent_bytes;
}

static double stream_rtt(const struct hdt_tcp_stats *tcp)
{
    return (double)tcp->rtt_us / 1e6;
}

/* One slow stream among many shows here. */
static void metrics_streams(struct hdt_gateway *gw, struct hdt_buf *out,
                            const struct hdt_peer_stats *peers, size_t n)
{
    static const struct {
        const char *name, *type, *help;
        double (*value)(const struct hdt_tcp_stats *tcp);
    } families[] = {
        {"hdt_stream_acknowledged_bytes_total", "counter",
         "Bytes of a bulk stream that the peer's kernel acknowledged.", stream_acked},
        {"hdt_stream_retransmitted_bytes_total", "counter",
         "Bytes of a bulk stream that TCP sent again.", stream_resent},
        {"hdt_stream_rtt_seconds", "gauge", "Round trip time of a bulk stream, smoothed by TCP.",
         stream_rtt},
    };
    struct hdt_tcp_stats *streams = hdt_calloc(MAX_STREAMS, sizeof(*streams));

    for (size_t m = 0; m < N_ELEMENTS(families); m++) {
        hdt_metrics_head(out, families[m].name, families[m].type, families[m].help);
        for (size_t i = 0; i < n; i++) {
            const size_t found =
                hdt_dataplane_stream_stats(gw->dp, peers[i].site, streams, MAX_STREAMS);

            for (size_t k = 0; k < found && k < MAX_STREAMS; k++) {
                char number[16];

                snprintf(number, sizeof(number), "%u", streams[k].stream);
                metrics_labelled(gw, out, families[m].name, &peers[i]);
                hdt_metrics_label(out, "stream", number);
                hdt_metrics_end(out, families[m].value(&streams[k]));
            }
        }
    }
    free(streams);
}

void hdt_metrics_links(struct hdt_gateway *gw, struct hdt_buf *out,
                       const struct hdt_peer_stats *peers, size_t n)
{
    for (size_t m = 0; m < N_ELEMENTS(link_metrics); m++) {
        const struct link_metric *metric = &link_metrics[m];

        hdt_metrics_head(out, metric->name, metric->type, metric->help);
        for (size_t i = 0; i < n; i++) {
            if (peers[i].link.n_tcp > 0) {
                metrics_labelled(gw, out, metric->name, &peers[i]);
                hdt_metrics_end(out, metric->value(&peers[i].link));
            }
        }
    }
    metrics_limits(gw, out, peers, n);
    metrics_streams(gw, out, peers, n);
}
