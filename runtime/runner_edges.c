/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * The edges of a rank: what its gateway says of the links goes to them, what they decided and saw
 * goes to the gateway. Messages come on the agent's thread; an edge belongs to the runner's, which
 * looks for news before a frame.
 */
#include "runtime/runner_impl.h"

#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/core/msg.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TELL_US HDT_US_PER_S

static bool flow_is_edge(const struct hdt_runner *r, size_t i)
{
    const struct hdt_plan_flow *flow = &r->plan.flows[i];

    return (flow->kind == HDT_FLOW_ACTIVATION || flow->kind == HDT_FLOW_ACTIVATION_GRAD) &&
           flow->src_rank != flow->dst_rank &&
           (flow->src_rank == r->rank || flow->dst_rank == r->rank);
}

/* Arithmetic of a rank beside one micro-batch, as the plan predicts it. */
static double rank_busy_s(const struct hdt_plan *plan, int rank)
{
    double busy_s = 0;

    for (size_t i = 0; i < plan->n_stages; i++) {
        if (plan->stages[i].rank == rank) {
            busy_s += plan->stages[i].fwd_s + plan->stages[i].bwd_s;
        }
    }
    return busy_s;
}

static bool flow_is_live(const struct hdt_runner *r, size_t i)
{
    const struct hdt_plan_flow *flow = &r->plan.flows[i];
    const bool is_grad = flow->kind == HDT_FLOW_ACTIVATION_GRAD;

    return (is_grad || flow->kind == HDT_FLOW_ACTIVATION) &&
           strcmp(r->plan.ranks[flow->src_rank].site, r->plan.ranks[flow->dst_rank].site) != 0 &&
           hdt_job_codec_is_live(&r->job, is_grad);
}

/* What keeps micro-batches from going through an edge at once. Where stages take turns on a rank,
 * a micro-batch comes back to it before it has gone all the way; where backwards are in halves, the
 * second is not part of the way: no limit is known. */
static void edge_turn_fill(const struct hdt_runner *r, const struct hdt_plan_flow *flow,
                           struct hdt_edge_conf *conf)
{
    const int behind = flow->src_stage > flow->dst_stage ? flow->src_stage : flow->dst_stage;
    const struct hdt_plan_stage *stages = r->plan.stages;

    if (r->plan.schedule == HDT_SCHEDULE_INTERLEAVED || hdt_schedule_is_split(r->plan.schedule) ||
        behind < 1) {
        return;
    }
    conf->in_flight = (double)stages[behind - 1].warmup + 1;
    for (size_t k = (size_t)behind + 1; k < r->plan.n_stages; k++) {
        if (stages[k].replica == stages[behind].replica) {
            conf->beyond_s += stages[k].fwd_s + stages[k].bwd_s;
        }
    }
}

static void edge_conf_fill(const struct hdt_runner *r, size_t i, struct hdt_edge_conf *conf)
{
    const struct hdt_plan_flow *flow = &r->plan.flows[i];
    const bool is_grad = flow->kind == HDT_FLOW_ACTIVATION_GRAD;

    *conf = (struct hdt_edge_conf){
        .planned = r->flows[i].spec,
        .is_src = flow->src_rank == r->rank,
        .is_live = flow_is_live(r, i),
        .error_budget = r->job.codec.error_budget,
        .tensor_bytes =
            (size_t)(r->plan.micro_batch * r->plan.seq_len * r->model.C) * sizeof(float),
        .frame_cap = flow->frame_cap,
        .n_frames = (double)r->plan.stages[flow->src_stage].n_micro_batches,
        .dst_busy_s = rank_busy_s(&r->plan, flow->dst_rank),
        .src_share = r->plan.ranks[flow->src_rank].gateway_share,
        .dst_share = r->plan.ranks[flow->dst_rank].gateway_share,
        .coder = r->coder};
    edge_turn_fill(r, flow, conf);
    for (size_t k = 0; k < r->plan.n_flows; k++) {
        conf->n_live += flow_is_live(r, k);
    }
    snprintf(conf->name, sizeof(conf->name), "job %lld, flow %zu (%s, %.48s -> %.48s), rank %d",
             r->number, i, is_grad ? "activation gradients" : "activations",
             r->plan.ranks[flow->src_rank].site, r->plan.ranks[flow->dst_rank].site, r->rank);
}

void hdt_runner_build_edges(struct hdt_runner *r)
{
    struct hdt_edge_conf conf;

    r->edges = hdt_calloc(r->plan.n_flows + 1, sizeof(struct hdt_edge *));
    for (size_t i = 0; i < r->plan.n_flows; i++) {
        if (flow_is_edge(r, i)) {
            edge_conf_fill(r, i, &conf);
            r->flows[i].edge = hdt_calloc(1, sizeof(*r->flows[i].edge));
            hdt_edge_init(r->flows[i].edge, &conf);
            hdt_edge_set_busy(r->flows[i].edge, rank_busy_s(&r->plan, r->rank));
            r->edges[i] = r->flows[i].edge;
        }
    }
}

void hdt_runner_unbuild_edges(struct hdt_runner *r)
{
    for (size_t i = 0; r->flows && i < r->plan.n_flows; i++) {
        free(r->flows[i].edge);
        r->flows[i].edge = NULL;
    }
}

/* ---- from the gateway ---- */

static double figure_of(const json_t *body, const char *key)
{
    const double x = json_number_value(json_object_get(body, key));

    return isfinite(x) && x > 0 && x < 1e15 ? x : 0;
}

static uint64_t count_of(const json_t *body, const char *key)
{
    const json_int_t n = json_integer_value(json_object_get(body, key));

    return n > 0 ? (uint64_t)n : 0;
}

void hdt_runner_edge_is(struct hdt_runner *r, const json_t *body)
{
    const json_int_t flow = json_integer_value(json_object_get(body, "flow"));
    const struct hdt_edge_figures figures = {
        .goodput_bytes_per_s = figure_of(body, "goodput_bytes_per_s"),
        .rtt_s = figure_of(body, "rtt_s"),
        .gw_encode_bytes_per_s = figure_of(body, "encode_bytes_per_s"),
        .gw_decode_bytes_per_s = figure_of(body, "decode_bytes_per_s"),
        .gw_threads = figure_of(body, "codec_threads"),
        .send_s_per_byte = figure_of(body, "send_s_per_byte"),
        .recv_s_per_byte = figure_of(body, "recv_s_per_byte"),
        .plain_bytes = count_of(body, "plain_bytes"),
        .coded_bytes = count_of(body, "coded_bytes"),
        .measured_us = hdt_clock_now_us() - (int64_t)(1e6 * figure_of(body, "age_s"))};

    pthread_mutex_lock(&r->lock);
    if (r->ready && !r->ended && r->flows && flow >= 0 && (size_t)flow < r->plan.n_flows) {
        r->flows[flow].news = figures;
        r->flows[flow].has_news = true;
    }
    pthread_mutex_unlock(&r->lock);
}

/* ---- before a frame, and after a step ---- */

static void edge_tell(struct hdt_runner *r, size_t i)
{
    json_t *body = hdt_edge_json(r->flows[i].edge);

    json_object_update_new(body,
                           json_pack("{s:I, s:I, s:i, s:I}", "job", (json_int_t)r->job_id, "epoch",
                                     (json_int_t)r->epoch, "rank", r->rank, "flow", (json_int_t)i));
    hdt_port_send(r->conf.port, hdt_msg_new("flow.codec", NULL, body));
}

void hdt_runner_edge_look(struct hdt_runner *r, size_t i)
{
    struct runner_flow *flow = &r->flows[i];
    const int64_t now_us = hdt_clock_now_us();
    struct hdt_edge_figures figures;
    bool has_news;

    pthread_mutex_lock(&r->lock);
    has_news = flow->has_news;
    figures = flow->news;
    flow->has_news = false;
    pthread_mutex_unlock(&r->lock);
    if (has_news) {
        hdt_edge_set_figures(flow->edge, &figures, r->step + 1);
    }
    if (now_us - flow->told_us >= TELL_US && hdt_edge_is_of_note(flow->edge)) {
        flow->told_us = now_us;
        edge_tell(r, i);
    }
}

void hdt_runner_edges_keep(struct hdt_runner *r, enum hdt_phase phase)
{
    for (size_t i = 0; i < r->plan.n_flows && phase == HDT_PHASE_EVAL; i++) {
        if (r->flows[i].edge) {
            r->flows[i].kept_edge = *r->flows[i].edge;
        }
    }
}

void hdt_runner_edges_stepped(struct hdt_runner *r, enum hdt_phase phase, int64_t busy_ns)
{
    /* The first step finds everything cold, and one with an outer step says nothing of frames. */
    const bool is_usual = r->step > r->start_step && !hdt_runner_outer_is_due(r);
    int64_t first;
    const double n_mb = (double)hdt_plan_replica_micro_batches(&r->plan, r->replica, &first);

    for (size_t i = 0; i < r->plan.n_flows; i++) {
        if (r->flows[i].edge && phase == HDT_PHASE_EVAL) {
            hdt_edge_put_back(r->flows[i].edge, &r->flows[i].kept_edge);
        } else if (r->flows[i].edge && r->flows[i].edge->conf.is_src) {
            hdt_edge_set_busy(r->flows[i].edge, is_usual ? (double)busy_ns / 1e9 / n_mb : 0);
        }
    }
}
