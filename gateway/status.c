/* SPDX-License-Identifier: Apache-2.0 */
/* What a gateway says of itself to people and to `hdt status`: /status (JSON). */
#include "config.h"

#include "gateway/audit.h"
#include "gateway/channel.h"
#include "gateway/control.h"
#include "gateway/coordinator.h"
#include "gateway/edges.h"
#include "gateway/member.h"
#include "gateway/rank_state.h"
#include "gateway/store.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/core/msg.h"

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
        "s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f}",
        "suspect", peer->suspect, "dialled_by_us", peer->dialled_by_us, "address", peer->address,
        "tls", peer->tls, "streams", (int)peer->n_streams, "rtt_ms", (double)peer->rtt_us / 1e3,
        "min_rtt_ms", (double)peer->min_rtt_us / 1e3, "clock_skew_ms",
        (double)peer->clock_skew_us / 1e3, "silent_s", (double)peer->silent_us / 1e6, "sent_bytes",
        (json_int_t)peer->sent_bytes, "recv_bytes", (json_int_t)peer->recv_bytes, "sent_chunks",
        (json_int_t)peer->sent_chunks, "resent_chunks", (json_int_t)peer->resent_chunks,
        "recv_chunks", (json_int_t)peer->recv_chunks, "dup_chunks", (json_int_t)peer->dup_chunks,
        "bad_chunks", (json_int_t)peer->bad_chunks, "raw_bytes", (json_int_t)peer->raw_bytes,
        "plain_bytes", (json_int_t)peer->plain_bytes, "coded_bytes", (json_int_t)peer->coded_bytes,
        "sessions", (json_int_t)peer->n_sessions, "suspects", (json_int_t)peer->n_suspects,
        "stream_losses", (json_int_t)peer->n_stream_losses, "goodput_bits_per_s",
        8 * peer->goodput_bytes_per_s);
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
                json_t *link = peer_json(&peers[i]), *tcp = hdt_link_json(gw, &peers[i]);

                if (tcp) {
                    json_object_set_new(link, "tcp", tcp);
                }
                json_object_set_new(item, "link", link);
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
        const char *channel = hdt_channel_name_of(gw, flow->job);
        const json_t *codec = flow->is_src ? hdt_edges_find(gw, flow->job, flow->flow) : NULL;
        json_t *item = json_pack(
            "{s:I, s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:b, "
            "s:b, s:I, s:I, s:i, s:s}",
            "job", (json_int_t)flow->job, "flow", (json_int_t)flow->flow, "end",
            flow->is_src ? "src" : "dst", "peer_site", flow->peer_site, "next_seq",
            (json_int_t)flow->next_seq, "acked_seq", (json_int_t)flow->acked_seq, "credit_seq",
            (json_int_t)flow->credit_seq, "frames", (json_int_t)flow->n_frames, "raw_bytes",
            (json_int_t)flow->raw_bytes, "plain_bytes", (json_int_t)flow->plain_bytes,
            "coded_bytes", (json_int_t)flow->coded_bytes, "idle_s", (double)flow->idle_us / 1e6,
            "attached", flow->attached, "asks", flow->asks, "partial_bytes",
            (json_int_t)flow->partial_bytes, "partial_len", (json_int_t)flow->partial_len, "number",
            (int)hdt_gwjob_number_of(flow->job), "channel", channel ? channel : "");

        if (codec) {
            json_object_set(item, "codec", (json_t *)(uintptr_t)codec);
        }
        json_array_append_new(array, item);
    }
    free(flows);
    return array;
}

static json_t *job_json(struct hdt_gateway *gw, struct hdt_gwjob *job)
{
    json_t *state = hdt_gwjob_state_body(gw, job); /* epoch; why it recovers or failed, and so on */
    json_t *item = json_pack(
        "{s:I, s:I, s:s, s:s, s:f, s:I, s:I, s:f, s:f, s:f, s:f, s:s, s:I, s:s, "
        "s:O, s:O}",
        "number", (json_int_t)job->number, "job", (json_int_t)job->job, "name", job->name, "state",
        hdt_gwjob_state_name(job->state), "since_s", seconds_since(job->state_since_us), "step",
        (json_int_t)job->step, "steps", (json_int_t)job->conf.steps, "tokens_per_s",
        job->tokens_per_s, "step_s", job->step_s, "predicted_step_s", job->plan.step_s,
        "wan_bits_per_s", job->wan_bits_per_s, "checkpoint", job->checkpoint ? job->checkpoint : "",
        "checkpoint_step", (json_int_t)job->checkpoint_step, "run_dir", job->run_dir, "ranks",
        job->ranks, "plan", job->plan_json);

    json_object_set_new(item, "waits", hdt_rank_waits_json(job));
    json_object_set_new(item, "loss",
                        job->step > job->start_step ? json_real(job->loss) : json_null());
    json_object_set_new(item, "restarts", json_integer(job->epoch > 1 ? job->epoch - 1 : 0));
    json_object_update_missing(item, state);
    json_decref(state);
    return item;
}

json_t *hdt_coordinator_status(struct hdt_gateway *gw)
{
    json_t *jobs = json_array();
    struct hdt_gwjob *job;

    LL_FOREACH(gw->jobs, job)
    {
        json_array_append_new(jobs, job_json(gw, job));
    }
    return jobs;
}

/* What a full disk has cost, or holds up. */
static json_t *disk_json(const struct hdt_gateway *gw)
{
    return json_pack("{s:I, s:I}", "audit_lines_lost", (json_int_t)hdt_audit_n_lost(gw->audit),
                     "records_waiting",
                     (json_int_t)(gw->store ? hdt_store_n_waiting(gw->store) : 0));
}

json_t *hdt_status_json(struct hdt_gateway *gw)
{
    struct hdt_dataplane_stats dp;
    json_t *status;

    hdt_dataplane_stats(gw->dp, &dp);
    status = json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:i, s:o, s:f, s:s, s:I, s:I, s:o, s:o, s:o, s:o, s:o}",
        "wan_listen", gw->wan_address, "http_listen", gw->http_address, "site", gw->conf.site,
        "federation", gw->conf.federation, "version", PACKAGE_VERSION, "protocol",
        HDT_PROTOCOL_VERSION, "instance", hdt_msg_u64_hex(gw->instance), "up_s",
        seconds_since(gw->started_us), "engine", dp.engine, "strangers", (json_int_t)dp.strangers,
        "refused_messages", (json_int_t)gw->n_refused_messages, "sites", sites_json(gw), "refused",
        hdt_refusals_json(gw), "workers", workers_json(gw), "jobs", hdt_coordinator_status(gw),
        "flows", flows_json(gw));
    json_object_set_new(status, "jobs_elsewhere", hdt_member_status(gw));
    json_object_set_new(status, "channels", hdt_channels_json(gw));
    json_object_set_new(status, "budgets", hdt_budgets_json(gw));
    json_object_set_new(status, "disk", disk_json(gw));
    json_object_set_new(status, "refused_connections", hdt_strangers_json(gw));
    json_object_set_new(status, "misdeeds", hdt_misdeeds_json(gw));
    return status;
}
