/* SPDX-License-Identifier: Apache-2.0 */
/* What a gateway says of itself to Prometheus: /metrics, text format version 0.0.4. */
#include "config.h"

#include "gateway/metrics.h"
#include "gateway/channel.h"
#include "gateway/edges.h"

#include "gateway/audit.h"
#include "gateway/store.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/process.h"
#include "src/core/msg.h"
#include "src/net/tls.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <utlist.h>

#define MAX_PEERS      256
#define N_ELEMENTS(xs) (sizeof(xs) / sizeof((xs)[0]))

/* ---- the format ---- */

void hdt_metrics_head(struct hdt_buf *out, const char *name, const char *type, const char *help)
{
    hdt_buf_appendf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

void hdt_metrics_begin(struct hdt_buf *out, const struct hdt_gateway *gw, const char *name)
{
    hdt_buf_appendf(out, "%s{site=\"%s\"", name, gw->conf.site);
}

/* Some values come from other sites: what ends a string or a line is escaped. */
void hdt_metrics_label(struct hdt_buf *out, const char *key, const char *value)
{
    hdt_buf_appendf(out, ",%s=\"", key);
    for (; *value; value++) {
        if (*value == '\n') {
            hdt_buf_append_str(out, "\\n");
            continue;
        }
        if (*value == '"' || *value == '\\') {
            hdt_buf_append_str(out, "\\");
        }
        hdt_buf_append(out, value, 1);
    }
    hdt_buf_append_str(out, "\"");
}

/* printf writes "-nan", of which a scraper would refuse the whole page. */
void hdt_metrics_end(struct hdt_buf *out, double value)
{
    if (isnan(value)) {
        hdt_buf_append_str(out, "} NaN\n");
    } else if (isinf(value)) {
        hdt_buf_appendf(out, "} %cInf\n", value > 0 ? '+' : '-');
    } else {
        hdt_buf_appendf(out, "} %.15g\n", value);
    }
}

void hdt_metrics_singles(struct hdt_buf *out, const struct hdt_gateway *gw,
                         const struct hdt_metric *metrics, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        hdt_metrics_head(out, metrics[i].name, metrics[i].type, metrics[i].help);
        hdt_metrics_begin(out, gw, metrics[i].name);
        hdt_metrics_end(out, metrics[i].value);
    }
}

/* ---- the process: the names that all of Prometheus' client libraries use ---- */

static void metrics_process(struct hdt_buf *out)
{
    struct hdt_process_usage usage;

    hdt_process_usage(&usage);
    const struct hdt_metric metrics[] = {
        {"process_cpu_seconds_total", "counter", "User and system time of all threads.",
         usage.cpu_s},
        {"process_resident_memory_bytes", "gauge", "Resident memory.",
         (double)usage.resident_bytes},
        {"process_virtual_memory_bytes", "gauge", "Virtual memory.", (double)usage.virtual_bytes},
        {"process_open_fds", "gauge", "Open file descriptors.", usage.n_fds},
        {"process_max_fds", "gauge", "Limit on open file descriptors.", (double)usage.max_fds},
        {"process_threads", "gauge", "Threads.", usage.n_threads},
        {"process_start_time_seconds", "gauge", "Start, seconds since 1970.",
         (double)usage.started_s},
    };

    for (size_t i = 0; i < N_ELEMENTS(metrics); i++) {
        hdt_metrics_head(out, metrics[i].name, metrics[i].type, metrics[i].help);
        hdt_buf_appendf(out, "%s %.15g\n", metrics[i].name, metrics[i].value);
    }
}

/* ---- the gateway ---- */

static void metrics_build(struct hdt_gateway *gw, struct hdt_buf *out, const char *engine)
{
    char protocol[16];

    snprintf(protocol, sizeof(protocol), "%d", HDT_PROTOCOL_VERSION);
    hdt_metrics_head(out, "hdt_build_info", "gauge", "Always 1; what runs here, as labels.");
    hdt_metrics_begin(out, gw, "hdt_build_info");
    hdt_metrics_label(out, "federation", gw->conf.federation);
    hdt_metrics_label(out, "version", PACKAGE_VERSION);
    hdt_metrics_label(out, "protocol", protocol);
    hdt_metrics_label(out, "engine", engine);
    hdt_metrics_end(out, 1);
    hdt_metrics_head(out, "hdt_engine_info", "gauge",
                     "Always 1; what moves the bytes of all streams, as label.");
    hdt_metrics_begin(out, gw, "hdt_engine_info");
    hdt_metrics_label(out, "engine", engine);
    hdt_metrics_end(out, 1);
}

static void metrics_gateway(struct hdt_gateway *gw, struct hdt_buf *out,
                            const struct hdt_dataplane_stats *dp)
{
    const struct hdt_metric metrics[] = {
        {"hdt_uptime_seconds", "gauge", "Since the gateway began.",
         (double)(hdt_clock_now_us() - gw->started_us) / 1e6},
        {"hdt_strangers_total", "counter", "Connections dropped before a valid hello.",
         (double)dp->strangers},
        {"hdt_refused_messages_total", "counter", "Control messages refused.",
         (double)gw->n_refused_messages},
        {"hdt_refused_revocation_lists_total", "counter",
         "Revocation lists of peers refused: older, foreign or broken.",
         (double)gw->n_refused_lists},
        {"hdt_audit_lines_lost_total", "counter", "Lines of audit.jsonl that could not be written.",
         (double)hdt_audit_n_lost(gw->audit)},
        {"hdt_store_records_waiting", "gauge", "Records of jobs that wait for room on the disk.",
         gw->store ? (double)hdt_store_n_waiting(gw->store) : 0},
        {"hdt_messages_total", "counter", "Control messages sent and passed on.",
         (double)gw->n_messages},
        {"hdt_queued_events", "gauge", "Events that wait for the control plane.",
         (double)dp->events_queued},
        {"hdt_codec_encode_seconds_total", "counter", "Codec threads' time, encoding.",
         (double)dp->encode_ns / 1e9},
        {"hdt_codec_encode_bytes_total", "counter", "Bytes given to the encoder.",
         (double)dp->encode_bytes},
        {"hdt_codec_decode_seconds_total", "counter", "Codec threads' time, decoding.",
         (double)dp->decode_ns / 1e9},
        {"hdt_codec_decode_bytes_total", "counter", "Bytes that the decoder made.",
         (double)dp->decode_bytes},
    };

    hdt_metrics_singles(out, gw, metrics, N_ELEMENTS(metrics));
}

static void metrics_state_dir(struct hdt_gateway *gw, struct hdt_buf *out)
{
    struct statvfs fs;

    if (statvfs(gw->conf.state_dir, &fs) != 0) {
        return;
    }
    const struct hdt_metric metrics[] = {
        {"hdt_state_dir_size_bytes", "gauge", "Size of the file system of state_dir.",
         (double)fs.f_blocks * (double)fs.f_frsize},
        {"hdt_state_dir_free_bytes", "gauge",
         "Room for the gateway on the file system of state_dir.",
         (double)fs.f_bavail * (double)fs.f_frsize},
    };
    hdt_metrics_singles(out, gw, metrics, N_ELEMENTS(metrics));
}

static void metrics_certificates(struct hdt_gateway *gw, struct hdt_buf *out)
{
    static const char name[] = "hdt_certificate_expiry_timestamp_seconds";
    struct hdt_tls_expiry expiry;
    const struct hdt_metric crl[] = {
        {"hdt_revocation_list_number", "gauge",
         "Number of the revocation list in force; sites with the same have the same list.",
         (double)hdt_tls_crl_number(gw->tls)},
    };

    hdt_tls_ctx_expiry(gw->tls, &expiry);
    hdt_metrics_head(out, name, "gauge", "When a certificate in use ends, seconds since 1970.");
    hdt_metrics_begin(out, gw, name);
    hdt_metrics_label(out, "certificate", "own");
    hdt_metrics_end(out, (double)expiry.own_s);
    hdt_metrics_begin(out, gw, name);
    hdt_metrics_label(out, "certificate", "authority");
    hdt_metrics_end(out, (double)expiry.authority_s);
    hdt_metrics_singles(out, gw, crl, N_ELEMENTS(crl));
}

/* ---- workers of this site ---- */

static void metrics_workers(struct hdt_gateway *gw, struct hdt_buf *out)
{
    static const struct {
        const char *name, *help;
    } families[] = {
        {"hdt_worker_up", "1 while the worker is connected."},
        {"hdt_worker_busy", "1 while the worker has a part in a job."},
        {"hdt_worker_memory_bytes", "Memory that the worker has for models."},
    };

    for (size_t i = 0; i < N_ELEMENTS(families); i++) {
        const struct hdt_gwworker *worker;

        hdt_metrics_head(out, families[i].name, "gauge", families[i].help);
        LL_FOREACH(gw->workers, worker)
        {
            const char *name = worker->info.name;

            if (strcmp(worker->info.site, gw->conf.site) != 0) {
                continue;
            }
            hdt_metrics_begin(out, gw, families[i].name);
            hdt_metrics_label(out, "worker", name);
            hdt_metrics_end(out, i == 0   ? worker->up
                                 : i == 1 ? hdt_coordinator_worker_is_busy(gw, gw->conf.site, name)
                                          : (double)worker->info.memory_bytes);
        }
    }
}

/* ---- peers ---- */

/* Also a configured site that never came, which the data plane does not know. */
static void metrics_sites(struct hdt_gateway *gw, struct hdt_buf *out)
{
    const struct hdt_gwsite *site;

    hdt_metrics_head(out, "hdt_peer_up", "gauge", "1 while there is a session with the peer.");
    LL_FOREACH(gw->sites, site)
    {
        hdt_metrics_begin(out, gw, "hdt_peer_up");
        hdt_metrics_label(out, "peer", site->name);
        hdt_metrics_end(out, site->up);
    }
    hdt_metrics_head(out, "hdt_peer_info", "gauge",
                     "Always 1 for a peer that was there; its version as label.");
    LL_FOREACH(gw->sites, site)
    {
        if (site->version[0]) {
            hdt_metrics_begin(out, gw, "hdt_peer_info");
            hdt_metrics_label(out, "peer", site->name);
            hdt_metrics_label(out, "version", site->version);
            hdt_metrics_end(out, 1);
        }
    }
    hdt_metrics_head(out, "hdt_peer_refusals_total", "counter",
                     "Times that a session with the peer was refused, by either end, or failed to "
                     "start; further dials that fail alike are not counted.");
    LL_FOREACH(gw->sites, site)
    {
        hdt_metrics_begin(out, gw, "hdt_peer_refusals_total");
        hdt_metrics_label(out, "peer", site->name);
        hdt_metrics_end(out, (double)site->n_refusals);
    }
}

struct peer_metric {
    const char *name, *type, *help;
    double (*value)(const struct hdt_peer_stats *peer);
};

#define PEER_VALUE(fn, expr)                                                                       \
 static double fn(const struct hdt_peer_stats *peer)                                               \
 {                                                                                                 \
  return (double)(expr);                                                                           \
 }
PEER_VALUE(value_suspect, peer->suspect)
PEER_VALUE(value_rtt, (double)peer->rtt_us / 1e6)
PEER_VALUE(value_min_rtt, (double)peer->min_rtt_us / 1e6)
PEER_VALUE(value_skew, (double)peer->clock_skew_us / 1e6)
PEER_VALUE(value_silent, (double)peer->silent_us / 1e6)
PEER_VALUE(value_sent, peer->sent_bytes)
PEER_VALUE(value_recv, peer->recv_bytes)
PEER_VALUE(value_raw, peer->raw_bytes)
PEER_VALUE(value_plain, peer->plain_bytes)
PEER_VALUE(value_coded, peer->coded_bytes)
PEER_VALUE(value_sent_chunks, peer->sent_chunks)
PEER_VALUE(value_recv_chunks, peer->recv_chunks)
PEER_VALUE(value_resent, peer->resent_chunks)
PEER_VALUE(value_dup, peer->dup_chunks)
PEER_VALUE(value_goodput, peer->goodput_bytes_per_s)
PEER_VALUE(value_edge, peer->edge_bytes_per_s)
PEER_VALUE(value_queued, peer->queued_bytes)
PEER_VALUE(value_sessions, peer->n_sessions)
PEER_VALUE(value_losses, peer->n_stream_losses)
PEER_VALUE(value_streams, peer->n_streams)
PEER_VALUE(value_streams_used, peer->n_streams_used)
PEER_VALUE(value_pace, peer->pace_bytes_per_s)

static const struct peer_metric peer_metrics[] = {
    {"hdt_peer_suspect", "gauge", "1 while no byte has come from the peer for four heartbeats.",
     value_suspect},
    {"hdt_peer_silent_seconds", "gauge", "Since the last byte from the peer.", value_silent},
    {"hdt_peer_rtt_seconds", "gauge", "Round trip time on the control stream.", value_rtt},
    {"hdt_peer_min_rtt_seconds", "gauge", "Shortest round trip time seen.", value_min_rtt},
    {"hdt_peer_clock_skew_seconds", "gauge", "Its clock less ours.", value_skew},
    {"hdt_peer_streams", "gauge", "Bulk streams that are up.", value_streams},
    {"hdt_peer_sent_bytes_total", "counter", "Bytes sent on the sockets, TLS included.",
     value_sent},
    {"hdt_peer_received_bytes_total", "counter", "Bytes received on the sockets.", value_recv},
    {"hdt_peer_raw_bytes_total", "counter", "Tensor bytes sent, before any codec.", value_raw},
    {"hdt_peer_plain_bytes_total", "counter", "Frame bytes sent, after the worker's codec.",
     value_plain},
    {"hdt_peer_coded_bytes_total", "counter", "Chunk bytes sent, after the gateway's codec.",
     value_coded},
    {"hdt_peer_sent_chunks_total", "counter", "Chunks sent.", value_sent_chunks},
    {"hdt_peer_received_chunks_total", "counter", "Chunks received.", value_recv_chunks},
    {"hdt_peer_resent_chunks_total", "counter", "Chunks sent again after a lost stream.",
     value_resent},
    {"hdt_peer_duplicate_chunks_total", "counter", "Chunks received twice and dropped.", value_dup},
    {"hdt_peer_goodput_bytes_per_second", "gauge", "Last measured under load; 0: not yet.",
     value_goodput},
    {"hdt_peer_edge_bytes_per_second", "gauge",
     "At which frames of jobs got there, also where the link is not full; 0: not yet.", value_edge},
    {"hdt_peer_streams_used", "gauge", "Bulk streams that this site sends over.",
     value_streams_used},
    {"hdt_peer_pace_bytes_per_second", "gauge",
     "What bulk is held to beside something urgent; 0: to nothing.", value_pace},
    {"hdt_peer_queued_bytes", "gauge", "Bytes that wait for this peer.", value_queued},
    {"hdt_peer_sessions_total", "counter", "Sessions with this peer.", value_sessions},
    {"hdt_peer_stream_losses_total", "counter", "Streams lost.", value_losses},
};

static void metrics_bad_chunks(struct hdt_gateway *gw, struct hdt_buf *out,
                               const struct hdt_peer_stats *peers, size_t n)
{
    static const char name[] = "hdt_peer_bad_chunks_total";
    static const char *const causes[HDT_BAD_COUNT] = {
        [HDT_BAD_CHECKSUM] = "checksum", [HDT_BAD_FLOW] = "flow",   [HDT_BAD_CREDIT] = "credit",
        [HDT_BAD_FRAME] = "frame",       [HDT_BAD_CODEC] = "codec",
    };

    hdt_metrics_head(out, name, "counter", "Chunks received and refused, by cause.");
    for (size_t i = 0; i < n; i++) {
        for (int cause = 0; cause < HDT_BAD_COUNT; cause++) {
            hdt_metrics_begin(out, gw, name);
            hdt_metrics_label(out, "peer", peers[i].site);
            hdt_metrics_label(out, "cause", causes[cause]);
            hdt_metrics_end(out, (double)peers[i].bad_by_cause[cause]);
        }
    }
}

static void metrics_peers(struct hdt_gateway *gw, struct hdt_buf *out)
{
    struct hdt_peer_stats *peers = hdt_calloc(MAX_PEERS, sizeof(*peers));
    size_t n = hdt_dataplane_peer_stats(gw->dp, peers, MAX_PEERS);

    n = n < MAX_PEERS ? n : MAX_PEERS;
    metrics_bad_chunks(gw, out, peers, n);
    for (size_t m = 0; m < N_ELEMENTS(peer_metrics); m++) {
        hdt_metrics_head(out, peer_metrics[m].name, peer_metrics[m].type, peer_metrics[m].help);
        for (size_t i = 0; i < n; i++) {
            hdt_metrics_begin(out, gw, peer_metrics[m].name);
            hdt_metrics_label(out, "peer", peers[i].site);
            hdt_metrics_end(out, peer_metrics[m].value(&peers[i]));
        }
    }
    hdt_metrics_links(gw, out, peers, n);
    free(peers);
}

void hdt_metrics_text(struct hdt_gateway *gw, struct hdt_buf *out)
{
    struct hdt_dataplane_stats dp;

    hdt_dataplane_stats(gw->dp, &dp);
    metrics_build(gw, out, dp.engine);
    metrics_process(out);
    metrics_gateway(gw, out, &dp);
    metrics_state_dir(gw, out);
    metrics_certificates(gw, out);
    metrics_workers(gw, out);
    metrics_sites(gw, out);
    hdt_strangers_metrics(gw, out);
    metrics_peers(gw, out);
    hdt_metrics_budgets(gw, out);
    hdt_channels_metrics(gw, out);
    hdt_edges_metrics(gw, out);
    hdt_metrics_jobs(gw, out);
}
