/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/edges.h"
#include "gateway/coordinator.h"
#include "gateway/member.h"
#include "gateway/metrics.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/core/msg.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#define MAX_PEERS   256
#define LONG_AGO_US (3600 * HDT_US_PER_S) /* nobody knows when */

/* Of one flow, as its worker said last. */
struct hdt_edge_said {
    uint32_t job, flow, epoch;
    char worker[HDT_ADDRESS_CAP];
    char peer_site[HDT_NAME_CAP];
    json_t *body;
    struct hdt_edge_said *next;
};

static struct hdt_edge_said *edge_find(const struct hdt_gateway *gw, uint32_t job, uint32_t flow)
{
    struct hdt_edge_said *edge;

    LL_FOREACH(gw->edges, edge)
    {
        if (edge->job == job && edge->flow == flow) {
            return edge;
        }
    }
    return NULL;
}

static void edge_drop(struct hdt_gateway *gw, struct hdt_edge_said *edge)
{
    LL_DELETE(gw->edges, edge);
    json_decref(edge->body);
    free(edge);
}

/* What is of a job that is over goes. */
static void edges_prune(struct hdt_gateway *gw)
{
    struct hdt_edge_said *edge, *next;
    const char *coordinator;

    LL_FOREACH_SAFE(gw->edges, edge, next)
    {
        if (!hdt_member_plan(gw, edge->job, &coordinator)) {
            edge_drop(gw, edge);
        }
    }
}

/* The flow of the plan that a message speaks of, if it begins at the worker who says it. */
static const struct hdt_plan_flow *flow_of(struct hdt_gateway *gw, const json_t *msg,
                                           const struct hdt_plan **plan)
{
    const json_t *body = hdt_msg_body(msg);
    const json_int_t job = json_integer_value(json_object_get(body, "job"));
    const json_int_t flow = json_integer_value(json_object_get(body, "flow"));
    const struct hdt_plan_rank *rank;
    const char *coordinator;
    char address[HDT_ADDRESS_CAP];

    *plan = job > 0 && job <= UINT32_MAX ? hdt_member_plan(gw, (uint32_t)job, &coordinator) : NULL;
    if (!*plan || flow < 0 || (uint64_t)flow >= (*plan)->n_flows) {
        return NULL;
    }
    rank = &(*plan)->ranks[(*plan)->flows[flow].src_rank];
    snprintf(address, sizeof(address), "%s/%s", rank->site, rank->worker);
    return strcmp(address, hdt_msg_from(msg)) == 0 ? &(*plan)->flows[flow] : NULL;
}

void hdt_edges_said(struct hdt_gateway *gw, const json_t *msg)
{
    const struct hdt_plan *plan;
    const struct hdt_plan_flow *flow = flow_of(gw, msg, &plan);
    const json_t *body = hdt_msg_body(msg);
    struct hdt_edge_said *edge;
    uint32_t job, idx, epoch;

    if (!flow) {
        return; /* the job is over, or not this worker's business */
    }
    job = (uint32_t)json_integer_value(json_object_get(body, "job"));
    idx = (uint32_t)json_integer_value(json_object_get(body, "flow"));
    epoch = (uint32_t)json_integer_value(json_object_get(body, "epoch"));
    edges_prune(gw);
    edge = edge_find(gw, job, idx);
    if (!edge) {
        edge = hdt_calloc(1, sizeof(*edge)); /* at most one for each flow of a plan */
        edge->job = job;
        edge->flow = idx;
        LL_PREPEND(gw->edges, edge);
    } else if (epoch < edge->epoch) {
        return;
    }
    edge->epoch = epoch;
    snprintf(edge->worker, sizeof(edge->worker), "%s", hdt_msg_from(msg));
    snprintf(edge->peer_site, sizeof(edge->peer_site), "%s", plan->ranks[flow->dst_rank].site);
    json_decref(edge->body);
    edge->body = json_deep_copy(body);
}

const json_t *hdt_edges_find(const struct hdt_gateway *gw, uint32_t job, uint32_t flow)
{
    const struct hdt_edge_said *edge = edge_find(gw, job, flow);

    return edge ? edge->body : NULL;
}

/* ---- to the workers ---- */

/* What frames have shown, or, before they did, what a probe has. */
static double goodput_of(const struct hdt_peer_stats *peer, double *age_s)
{
    const bool by_frames = peer->edge_us >= 0;

    *age_s = (double)(by_frames              ? peer->edge_us
                      : peer->loaded_us >= 0 ? peer->loaded_us
                                             : LONG_AGO_US) /
             1e6;
    return by_frames ? peer->edge_bytes_per_s : peer->goodput_bytes_per_s;
}

static void edge_tell(struct hdt_gateway *gw, const struct hdt_edge_said *edge,
                      const struct hdt_peer_stats *peer)
{
    struct hdt_dataplane_stats dp;
    struct hdt_flow_stats flow;
    double age_s, rate, threads = (double)gw->conf.data.codec_threads;

    if (!hdt_dataplane_flow_find(gw->dp, edge->job, edge->flow, true, &flow)) {
        return;
    }
    hdt_dataplane_stats(gw->dp, &dp);
    rate = goodput_of(peer, &age_s);
    hdt_route_post(
        gw, edge->worker, "edge.is",
        json_pack(
            "{s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:I, s:f, s:f, s:I, s:I}", "job",
            (json_int_t)edge->job, "epoch", (json_int_t)edge->epoch, "flow", (json_int_t)edge->flow,
            "goodput_bytes_per_s", rate, "age_s", age_s, "rtt_s", (double)peer->min_rtt_us / 1e6,
            "encode_bytes_per_s",
            dp.encode_ns > 0 ? threads * 1e9 * (double)dp.encode_bytes / (double)dp.encode_ns : 0,
            "decode_bytes_per_s",
            dp.decode_ns > 0 ? threads * 1e9 * (double)dp.decode_bytes / (double)dp.decode_ns : 0,
            "codec_threads", (json_int_t)gw->conf.data.codec_threads, "send_s_per_byte",
            dp.probe_send_s_per_byte, "recv_s_per_byte", dp.probe_recv_s_per_byte, "plain_bytes",
            (json_int_t)flow.sent_bytes, "coded_bytes", (json_int_t)flow.coded_bytes));
}

void hdt_edges_tick(struct hdt_gateway *gw)
{
    struct hdt_peer_stats *peers = NULL;
    const struct hdt_edge_said *edge, *next;
    size_t n = 0;

    edges_prune(gw);
    LL_FOREACH_SAFE(gw->edges, edge, next)
    {
        if (!json_is_true(json_object_get(edge->body, "live"))) {
            continue;
        }
        if (!peers) {
            peers = hdt_calloc(MAX_PEERS, sizeof(*peers));
            n = hdt_dataplane_peer_stats(gw->dp, peers, MAX_PEERS);
        }
        for (size_t i = 0; i < n && i < MAX_PEERS; i++) {
            if (strcmp(peers[i].site, edge->peer_site) == 0) {
                edge_tell(gw, edge, &peers[i]);
            }
        }
    }
    free(peers);
}

/* ---- metrics ---- */

static const struct {
    const char *name, *type, *key, *help;
} families[] = {
    {"hdt_flow_codec_frames_total", "counter", "codec_frames", "Frames that the worker encoded."},
    {"hdt_flow_codec_values_total", "counter", "values", "Values that went through a lossy codec."},
    {"hdt_flow_codec_nonfinite_total", "counter", "nonfinite",
     "Values that were NaN or infinite, before or after coding."},
    {"hdt_flow_codec_relative_error", "gauge", "error",
     "Root of squared error by squared values, of all frames."},
    {"hdt_flow_codec_worst_error", "gauge", "worst_error",
     "The largest relative error of a frame that was sent."},
    {"hdt_flow_codec_steps_up_total", "counter", "steps_up",
     "Times that the guard went to a more exact codec."},
    {"hdt_flow_codec_steps_down_total", "counter", "steps_down",
     "Times that it allowed a less exact one again."},
    {"hdt_flow_codec_coded_again_total", "counter", "coded_again",
     "Frames that were coded again, more exactly, before they were sent."},
    {"hdt_flow_codec_changes_total", "counter", "changes",
     "Times that another codec was chosen for speed."},
};

static void edge_labels(struct hdt_gateway *gw, struct hdt_buf *out, const char *name,
                        const struct hdt_edge_said *edge)
{
    char text[16];

    hdt_metrics_begin(out, gw, name);
    snprintf(text, sizeof(text), "%u", hdt_gwjob_number_of(edge->job));
    hdt_metrics_label(out, "number", text);
    snprintf(text, sizeof(text), "%u", edge->flow);
    hdt_metrics_label(out, "flow", text);
    hdt_metrics_label(out, "peer", edge->peer_site);
}

void hdt_edges_metrics(struct hdt_gateway *gw, struct hdt_buf *out)
{
    const struct hdt_edge_said *edge;

    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        hdt_metrics_head(out, families[i].name, families[i].type, families[i].help);
        LL_FOREACH(gw->edges, edge)
        {
            edge_labels(gw, out, families[i].name, edge);
            hdt_metrics_end(out, json_number_value(json_object_get(edge->body, families[i].key)));
        }
    }
    hdt_metrics_head(out, "hdt_flow_codec", "gauge", "1, with the codec of the flow's last frame.");
    LL_FOREACH(gw->edges, edge)
    {
        const char *codec = json_string_value(json_object_get(edge->body, "codec"));

        edge_labels(gw, out, "hdt_flow_codec", edge);
        hdt_metrics_label(out, "codec", codec ? codec : "?");
        hdt_metrics_end(out, 1);
    }
}

void hdt_edges_free(struct hdt_gateway *gw)
{
    while (gw->edges) {
        edge_drop(gw, gw->edges);
    }
}
