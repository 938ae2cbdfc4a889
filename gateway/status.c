/* SPDX-License-Identifier: Apache-2.0 */
/* What a gateway says of itself: /status and `hdt status` (JSON), /metrics (Prometheus text). */
#include "config.h"

#include "gateway/control.h"
#include "gateway/coordinator.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/core/msg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#define MAX_PEERS 256
#define MAX_FLOWS 4096

static double seconds_since(int64_t since_us)
{
    return (double)(hdt_clock_now_us() - since_us) / 1e6;
}

static json_t *peer_json(const struct hdt_peer_stats *peer)
{
    return json_pack(
        "{s:b, s:b, s:s, s:s, s:i, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:I, s:I, s:I, s:I, s:I, s:I, s:f}",
        "suspect", peer->suspect, "dialled_by_us", peer->dialled_by_us, "address", peer->address,
        "tls", peer->tls, "streams", (int)peer->n_streams, "rtt_ms", (double)peer->rtt_us / 1e3,
        "min_rtt_ms", (double)peer->min_rtt_us / 1e3, "clock_skew_ms",
        (double)peer->clock_skew_us / 1e3, "silent_s", (double)peer->silent_us / 1e6, "sent_bytes",
        (json_int_t)peer->sent_bytes, "recv_bytes", (json_int_t)peer->recv_bytes, "sent_chunks",
        (json_int_t)peer->sent_chunks, "resent_chunks", (json_int_t)peer->resent_chunks,
        "recv_chunks", (json_int_t)peer->recv_chunks, "dup_chunks", (json_int_t)peer->dup_chunks,
        "bad_chunks", (json_int_t)peer->bad_chunks, "raw_bytes", (json_int_t)peer->raw_bytes,
        "plain_bytes", (json_int_t)peer->plain_bytes, "coded_bytes", (json_int_t)peer->coded_bytes,
        "sessions", (json_int_t)peer->n_sessions, "stream_losses",
        (json_int_t)peer->n_stream_losses, "goodput_bits_per_s", 8 * peer->goodput_bytes_per_s);
}

static json_t *sites_json(struct hdt_gateway *gw)
{
    struct hdt_peer_stats *peers = hdt_calloc(MAX_PEERS, sizeof(*peers));
    size_t n = hdt_dataplane_peer_stats(gw->dp, peers, MAX_PEERS);
    json_t *sites = json_array();
    struct hdt_gwsite *site;

    LL_FOREACH(gw->sites, site)
    {
        json_t *item = json_pack("{s:s, s:b, s:f, s:s, s:s, s:s, s:b}", "site", site->name, "up",
                                 site->up, "since_s", seconds_since(site->since_us), "why_down",
                                 site->why_down, "version", site->version, "dial", site->address,
                                 "configured", site->configured);

        for (size_t i = 0; i < n && i < MAX_PEERS; i++) {
            if (strcmp(peers[i].site, site->name) == 0) {
                json_object_set_new(item, "link", peer_json(&peers[i]));
            }
        }
        json_array_append_new(sites, item);
    }
    free(peers);
    return sites;
}

static json_t *workers_json(struct hdt_gateway *gw)
{
    json_t *workers = json_array();
    struct hdt_gwworker *worker;

    LL_FOREACH(gw->workers, worker)
    {
        bool busy = hdt_coordinator_worker_is_busy(gw, worker->info.site, worker->info.name);

        json_array_append_new(
            workers,
            json_pack("{s:s, s:s, s:b, s:f, s:s, s:s, s:i, s:I, s:b}", "site", worker->info.site,
                      "worker", worker->info.name, "up", worker->up, "since_s",
                      seconds_since(worker->since_us), "device", worker->info.device, "backend",
                      worker->info.backend, "threads", worker->info.n_threads, "memory_bytes",
                      (json_int_t)worker->info.memory_bytes, "busy", busy));
    }
    return workers;
}

static json_t *flows_json(struct hdt_gateway *gw)
{
    struct hdt_flow_stats *flows = hdt_calloc(MAX_FLOWS, sizeof(*flows));
    size_t n = hdt_dataplane_flow_stats(gw->dp, flows, MAX_FLOWS);
    json_t *array = json_array();

    for (size_t i = 0; i < n && i < MAX_FLOWS; i++) {
        const struct hdt_flow_stats *flow = &flows[i];

        json_array_append_new(
            array, json_pack("{s:I, s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "job",
                             (json_int_t)flow->job, "flow", (json_int_t)flow->flow, "end",
                             flow->is_src ? "src" : "dst", "peer_site", flow->peer_site, "next_seq",
                             (json_int_t)flow->next_seq, "acked_seq", (json_int_t)flow->acked_seq,
                             "credit_seq", (json_int_t)flow->credit_seq, "frames",
                             (json_int_t)flow->n_frames, "raw_bytes", (json_int_t)flow->raw_bytes,
                             "plain_bytes", (json_int_t)flow->plain_bytes, "coded_bytes",
                             (json_int_t)flow->coded_bytes, "idle_s", (double)flow->idle_us / 1e6));
    }
    free(flows);
    return array;
}

static json_t *job_json(const struct hdt_gwjob *job)
{
    json_t *item = json_pack(
        "{s:I, s:I, s:s, s:s, s:f, s:I, s:I, s:f, s:f, s:f, s:f, s:s, s:s, "
        "s:O, s:O}",
        "number", (json_int_t)job->number, "job", (json_int_t)job->job, "name", job->name, "state",
        hdt_gwjob_state_name(job->state), "since_s", seconds_since(job->state_since_us), "step",
        (json_int_t)job->step, "steps", (json_int_t)job->conf.steps, "tokens_per_s",
        job->tokens_per_s, "step_s", job->step_s, "predicted_step_s", job->plan.step_s,
        "wan_bits_per_s", job->wan_bits_per_s, "checkpoint", job->checkpoint ? job->checkpoint : "",
        "run_dir", job->run_dir, "ranks", job->ranks, "plan", job->plan_json);

    json_object_set_new(item, "loss",
                        job->step > job->start_step ? json_real(job->loss) : json_null());
    if (job->state == HDT_GWJOB_FAILED) {
        json_object_set_new(item, "error", hdt_msg_error_body(&job->error));
    }
    return item;
}

json_t *hdt_coordinator_status(struct hdt_gateway *gw)
{
    json_t *jobs = json_array();
    struct hdt_gwjob *job;

    LL_FOREACH(gw->jobs, job)
    {
        json_array_append_new(jobs, job_json(job));
    }
    return jobs;
}

json_t *hdt_status_json(struct hdt_gateway *gw)
{
    struct hdt_dataplane_stats dp;

    hdt_dataplane_stats(gw->dp, &dp);
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:i, s:o, s:f, s:s, s:I, s:o, s:o, s:I, s:o, s:o, s:o, s:o, s:o}",
        "wan_listen", gw->wan_address, "http_listen", gw->http_address, "site", gw->conf.site,
        "federation", gw->conf.federation, "version", PACKAGE_VERSION, "protocol",
        HDT_PROTOCOL_VERSION, "instance", hdt_msg_u64_hex(gw->instance), "up_s",
        seconds_since(gw->started_us), "engine", dp.engine, "strangers", (json_int_t)dp.strangers,
        "refused_connections", hdt_strangers_json(gw), "misdeeds", hdt_misdeeds_json(gw),
        "refused_messages", (json_int_t)gw->n_refused_messages, "sites", sites_json(gw), "refused",
        hdt_refusals_json(gw), "workers", workers_json(gw), "jobs", hdt_coordinator_status(gw),
        "flows", flows_json(gw));
}

/* ---- Prometheus text format, version 0.0.4 ---- */

static void metric_head(struct hdt_buf *out, const char *name, const char *type, const char *help)
{
    hdt_buf_appendf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
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
PEER_VALUE(value_up, peer->up)
PEER_VALUE(value_suspect, peer->suspect)
PEER_VALUE(value_rtt, (double)peer->rtt_us / 1e6)
PEER_VALUE(value_sent, peer->sent_bytes)
PEER_VALUE(value_recv, peer->recv_bytes)
PEER_VALUE(value_raw, peer->raw_bytes)
PEER_VALUE(value_plain, peer->plain_bytes)
PEER_VALUE(value_coded, peer->coded_bytes)
PEER_VALUE(value_resent, peer->resent_chunks)
PEER_VALUE(value_dup, peer->dup_chunks)
PEER_VALUE(value_bad, peer->bad_chunks)
PEER_VALUE(value_goodput, peer->goodput_bytes_per_s)
PEER_VALUE(value_queued, peer->queued_bytes)
PEER_VALUE(value_sessions, peer->n_sessions)
PEER_VALUE(value_losses, peer->n_stream_losses)
PEER_VALUE(value_streams, peer->n_streams)

static const struct peer_metric peer_metrics[] = {
    {"hdt_peer_up", "gauge", "1 while there is a session with the peer gateway.", value_up},
    {"hdt_peer_suspect", "gauge", "1 while the peer is silent for longer than suspect_after.",
     value_suspect},
    {"hdt_peer_rtt_seconds", "gauge", "Round trip time on the control stream.", value_rtt},
    {"hdt_peer_streams", "gauge", "Bulk streams that are up.", value_streams},
    {"hdt_peer_sent_bytes_total", "counter", "Bytes sent on the sockets, TLS included.",
     value_sent},
    {"hdt_peer_received_bytes_total", "counter", "Bytes received on the sockets.", value_recv},
    {"hdt_peer_raw_bytes_total", "counter", "Tensor bytes sent, before any codec.", value_raw},
    {"hdt_peer_plain_bytes_total", "counter", "Frame bytes sent, after the worker's codec.",
     value_plain},
    {"hdt_peer_coded_bytes_total", "counter", "Chunk bytes sent, after the gateway's codec.",
     value_coded},
    {"hdt_peer_resent_chunks_total", "counter", "Chunks sent again after a lost stream.",
     value_resent},
    {"hdt_peer_duplicate_chunks_total", "counter", "Chunks received twice and dropped.", value_dup},
    {"hdt_peer_bad_chunks_total", "counter", "Chunks refused: checksum, bounds, foreign flow.",
     value_bad},
    {"hdt_peer_goodput_bytes_per_second", "gauge", "Last measured under load; 0: not yet.",
     value_goodput},
    {"hdt_peer_queued_bytes", "gauge", "Bytes that wait for this peer.", value_queued},
    {"hdt_peer_sessions_total", "counter", "Sessions with this peer since start.", value_sessions},
    {"hdt_peer_stream_losses_total", "counter", "Streams lost since start.", value_losses},
};

static void metrics_peers(struct hdt_gateway *gw, struct hdt_buf *out)
{
    struct hdt_peer_stats *peers = hdt_calloc(MAX_PEERS, sizeof(*peers));
    size_t n = hdt_dataplane_peer_stats(gw->dp, peers, MAX_PEERS);

    for (size_t m = 0; m < sizeof(peer_metrics) / sizeof(peer_metrics[0]); m++) {
        metric_head(out, peer_metrics[m].name, peer_metrics[m].type, peer_metrics[m].help);
        for (size_t i = 0; i < n && i < MAX_PEERS; i++) {
            hdt_buf_appendf(out, "%s{site=\"%s\",peer=\"%s\"} %.17g\n", peer_metrics[m].name,
                            gw->conf.site, peers[i].site, peer_metrics[m].value(&peers[i]));
        }
    }
    free(peers);
}

static void metrics_jobs(struct hdt_gateway *gw, struct hdt_buf *out)
{
    struct hdt_gwjob *job;

    metric_head(out, "hdt_job_step", "gauge", "Last step of a job coordinated here.");
    LL_FOREACH(gw->jobs, job)
    {
        hdt_buf_appendf(out, "hdt_job_step{job=\"%ld\",name=\"%s\",state=\"%s\"} %ld\n",
                        (long)job->number, job->name, hdt_gwjob_state_name(job->state),
                        (long)job->step);
    }
    metric_head(out, "hdt_job_loss", "gauge", "Training loss of the last step, nats a token.");
    LL_FOREACH(gw->jobs, job)
    {
        hdt_buf_appendf(out, "hdt_job_loss{job=\"%ld\",name=\"%s\"} %.17g\n", (long)job->number,
                        job->name, job->loss);
    }
    metric_head(out, "hdt_job_tokens_per_second", "gauge", "Tokens trained a second, last step.");
    LL_FOREACH(gw->jobs, job)
    {
        hdt_buf_appendf(out, "hdt_job_tokens_per_second{job=\"%ld\",name=\"%s\"} %.17g\n",
                        (long)job->number, job->name, job->tokens_per_s);
    }
}

static unsigned long resident_bytes(void)
{
    unsigned long pages = 0;
    FILE *statm = fopen("/proc/self/statm", "re");

    if (statm) {
        if (fscanf(statm, "%*u %lu", &pages) != 1) {
            pages = 0;
        }
        fclose(statm);
    }
    return pages * 4096;
}

void hdt_status_metrics(struct hdt_gateway *gw, struct hdt_buf *out)
{
    struct hdt_dataplane_stats dp;
    struct hdt_gwworker *worker;
    int n_up = 0;

    hdt_dataplane_stats(gw->dp, &dp);
    LL_FOREACH(gw->workers, worker)
    {
        n_up += worker->up;
    }
    metric_head(out, "hdt_info", "gauge", "Always 1; version and engine as labels.");
    hdt_buf_appendf(out, "hdt_info{site=\"%s\",version=\"%s\",engine=\"%s\"} 1\n", gw->conf.site,
                    PACKAGE_VERSION, dp.engine);
    metric_head(out, "hdt_workers", "gauge", "Workers connected in the federation.");
    hdt_buf_appendf(out, "hdt_workers %d\n", n_up);
    metric_head(out, "hdt_strangers_total", "counter", "Connections dropped before a valid hello.");
    hdt_buf_appendf(out, "hdt_strangers_total %llu\n", (unsigned long long)dp.strangers);
    metric_head(out, "hdt_refused_revocation_lists_total", "counter",
                "Revocation lists of peers refused: older, foreign or broken.");
    hdt_buf_appendf(out, "hdt_refused_revocation_lists_total %llu\n",
                    (unsigned long long)gw->n_refused_lists);
    metric_head(out, "hdt_refused_messages_total", "counter", "Control messages refused.");
    hdt_buf_appendf(out, "hdt_refused_messages_total %llu\n",
                    (unsigned long long)gw->n_refused_messages);
    metric_head(out, "hdt_codec_encode_seconds_total", "counter", "Codec threads' time, encoding.");
    hdt_buf_appendf(out, "hdt_codec_encode_seconds_total %.9f\n", (double)dp.encode_ns / 1e9);
    metric_head(out, "hdt_codec_decode_seconds_total", "counter", "Codec threads' time, decoding.");
    hdt_buf_appendf(out, "hdt_codec_decode_seconds_total %.9f\n", (double)dp.decode_ns / 1e9);
    metric_head(out, "hdt_resident_bytes", "gauge", "Resident memory of this process.");
    hdt_buf_appendf(out, "hdt_resident_bytes %lu\n", resident_bytes());
    hdt_strangers_metrics(gw, out);
    metrics_peers(gw, out);
    metrics_jobs(gw, out);
}
