/* SPDX-License-Identifier: Apache-2.0 */
/* How a plan is shown: tables for people, JSON for programs, a timeline for trace viewers. */
#include "config.h"

#include "src/cli/planned.h"
#include "src/cli/human.h"
#include "src/core/timeline.h"

#include <stdlib.h>
#include <string.h>

static bool flow_is_edge(const struct hdt_plan_flow *f)
{
    return f->kind == HDT_FLOW_ACTIVATION || f->kind == HDT_FLOW_ACTIVATION_GRAD;
}

/* "embed, 1-6, head": the blocks by number, from 1. */
static void units_text(const struct hdt_planned *p, const struct hdt_plan_stage *s, char *out,
                       size_t cap)
{
    int64_t first = s->unit_begin > 1 ? s->unit_begin : 1;
    int64_t last = s->unit_end - 1 < p->model.L ? s->unit_end - 1 : p->model.L;
    bool embed = s->unit_begin == 0, head = s->unit_end == p->model.L + 2;
    char blocks[64] = "";

    if (last == first) {
        snprintf(blocks, sizeof(blocks), "%lld", (long long)first);
    } else if (last > first) {
        snprintf(blocks, sizeof(blocks), "%lld-%lld", (long long)first, (long long)last);
    }
    snprintf(out, cap, "%s%s%s%s%s", embed ? "embed" : "", embed && blocks[0] ? ", " : "", blocks,
             head && (embed || blocks[0]) ? ", " : "", head ? "head" : "");
}

static double stage_params(const struct hdt_planned *p, const struct hdt_plan_stage *s)
{
    double sum = 0;

    for (int64_t u = s->unit_begin; u < s->unit_end; u++) {
        sum += (double)hdt_model_unit_params(&p->model, u);
    }
    return sum;
}

static void stage_print(const struct hdt_planned *p, size_t i, FILE *out)
{
    const struct hdt_plan *plan = &p->result.plan;
    const struct hdt_plan_stage *s = &plan->stages[i];
    const struct hdt_plan_rank *r = &plan->ranks[s->rank];
    const struct hdt_cluster_worker *w = hdt_cost_find_worker(&p->cluster, r->site, r->worker);
    char name[2 * HDT_NAME_CAP], worker[32], device[32], units[64];
    char params[HDT_HUMAN_CAP], memory[HDT_HUMAN_CAP], fwd[HDT_HUMAN_CAP], bwd[HDT_HUMAN_CAP];

    snprintf(name, sizeof(name), "%s/%s", r->site, r->worker);
    units_text(p, s, units, sizeof(units));
    fprintf(out, "%-5zu %-16s %-15s %-18s %6s %8s %7s %7s %4lld %4.0f%%\n", i,
            hdt_human_cut(name, 16, worker, sizeof(worker)),
            hdt_human_device(w ? w->device : "-", 15, device, sizeof(device)), units,
            hdt_human_count(stage_params(p, s), params),
            hdt_human_memory((double)s->memory_bytes, memory), hdt_human_time(s->fwd_s, fwd),
            hdt_human_time(s->bwd_s, bwd), (long long)s->warmup,
            100 * p->result.cost.rank_busy_s[s->rank] / plan->step_s);
}

/* Above the first stage of each of several. */
static void replica_print(const struct hdt_plan *plan, size_t i, FILE *out)
{
    const struct hdt_plan_stage *s = &plan->stages[i];

    if (plan->n_replicas > 1 && s->pos == 0) {
        fprintf(out, "replica %d, %lld of %lld micro-batches of a step\n", s->replica + 1,
                (long long)s->n_micro_batches, (long long)plan->n_micro_batches);
    }
}

/* Both tables fit 100 columns, whatever the names are. */
static void stages_print(const struct hdt_planned *p, FILE *out)
{
    fprintf(out, "%-5s %-16s %-15s %-18s %6s %8s %7s %7s %4s %5s\n", "stage", "worker", "device",
            "blocks", "params", "memory", "forward", "backwd", "warm", "busy");
    for (size_t i = 0; i < p->result.plan.n_stages; i++) {
        replica_print(&p->result.plan, i, out);
        stage_print(p, i, out);
    }
}

/* One direction of an edge: its transfer and its share of a step on the link. */
static bool edge_transfer(const struct hdt_planned *p, const struct hdt_plan_flow *f,
                          struct hdt_cost_transfer *t)
{
    struct hdt_cost_inputs in = {&p->job, &p->model, &p->cluster};
    const struct hdt_plan *plan = &p->result.plan;
    double n = (double)plan->micro_batch * (double)plan->seq_len * (double)p->model.C;

    return hdt_cost_transfer(&in, plan->ranks[f->src_rank].site, plan->ranks[f->dst_rank].site,
                             &f->codec, n, t, NULL) == HDT_OK;
}

static const struct hdt_cluster_link *edge_link(const struct hdt_planned *p,
                                                const struct hdt_plan_flow *f)
{
    const struct hdt_plan *plan = &p->result.plan;

    return hdt_cluster_find_link(&p->cluster, plan->ranks[f->src_rank].site,
                                 plan->ranks[f->dst_rank].site);
}

static void edge_print(const struct hdt_planned *p, const struct hdt_plan_flow *f,
                       const struct hdt_cost_transfer *t, FILE *out)
{
    const struct hdt_plan *plan = &p->result.plan;
    const struct hdt_cluster_link *link = edge_link(p, f);
    double n = (double)plan->stages[f->src_stage].n_micro_batches;
    char names[2 * HDT_NAME_CAP + 8], route[32], bytes[HDT_HUMAN_CAP];
    char rate[HDT_HUMAN_CAP] = "LAN", rtt[HDT_HUMAN_CAP] = "-", codec[HDT_CODEC_SPEC_TEXT];

    snprintf(names, sizeof(names), "%s -> %s", plan->ranks[f->src_rank].site,
             plan->ranks[f->dst_rank].site);
    if (link) {
        hdt_human_rate(link->rate_bytes_per_s, rate);
        hdt_human_time(link->rtt_s, rtt);
    }
    fprintf(out, "%2d -> %-3d %-24s %-11s %-13s %9s %11s %8s %4.0f%%\n", f->src_stage, f->dst_stage,
            hdt_human_cut(names, 24, route, sizeof(route)),
            f->kind == HDT_FLOW_ACTIVATION ? "activations" : "gradients",
            hdt_codec_spec_format(&f->codec, codec), hdt_human_bytes(n * t->wire_bytes, bytes),
            rate, rtt, 100 * t->busy_s * n / plan->step_s);
}

static void edges_print(const struct hdt_planned *p, FILE *out)
{
    const struct hdt_plan *plan = &p->result.plan;
    struct hdt_cost_transfer t;
    bool head = false;

    for (size_t i = 0; i < plan->n_flows; i++) {
        if (!flow_is_edge(&plan->flows[i]) || !edge_transfer(p, &plan->flows[i], &t)) {
            continue;
        }
        if (!head) {
            fprintf(out, "\n%-9s %-24s %-11s %-13s %9s %11s %8s %5s\n", "edge", "link", "carries",
                    "codec", "a step", "rate", "RTT", "share");
            head = true;
        }
        edge_print(p, &plan->flows[i], &t, out);
    }
}

/* Everybody who has no part, and why. */
static void left_out_print(const struct hdt_planned *p, FILE *out)
{
    json_t *text;
    size_t i;

    for (i = 0; i < p->cluster.n_workers; i++) {
        const struct hdt_cluster_worker *w = &p->cluster.workers[i];

        if (!hdt_plan_has_worker(&p->result.plan, w->site, w->name)) {
            fprintf(out, "left out   %s/%s: %s\n", w->site, w->name,
                    w->busy            ? "it runs another job"
                    : w->profile.valid ? "no faster with it, or plan.* forbids it"
                                       : "it was not measured");
        }
    }
    json_array_foreach(p->away, i, text)
    {
        fprintf(out, "left out   %s\n", json_string_value(text));
    }
    if (p->result.n_left_out > 0) {
        fprintf(out, "           the search looks at the 8 fastest workers, not at %zu more\n",
                p->result.n_left_out);
    }
}

static int64_t most_in_flight(const struct hdt_plan *plan)
{
    int64_t most = 0;

    for (size_t i = 0; i < plan->n_stages; i++) {
        most = plan->stages[i].in_flight > most ? plan->stages[i].in_flight : most;
    }
    return most;
}

/* What outer steps send and take; or that there are none. */
static void outer_print(const struct hdt_planned *p, FILE *out)
{
    struct hdt_cost_inputs in = {&p->job, &p->model, &p->cluster};
    const struct hdt_plan *plan = &p->result.plan;
    struct hdt_cost_outer outer;

    if (p->job.outer.steps > 0 && plan->n_replicas < 2) {
        fprintf(out, "outer      none: the plan is one pipeline, so that every step is exact and "
                     "outer.steps says nothing\n");
    }
    if (plan->n_replicas < 2 || hdt_cost_outer(&in, plan, &outer, NULL) != HDT_OK) {
        return;
    }
    fprintf(
        out,
        "outer      step every %lld steps: %.2f MB between sites, %.3f s, %.1f %% of the time\n",
        (long long)outer.steps, 1e-6 * outer.bytes, outer.step_s,
        100 * outer.step_s / (double)outer.steps / plan->step_s);
    for (size_t i = 0; i < outer.n_links; i++) {
        fprintf(out, "           %s -> %s: %.2f MB, %.3f s\n", outer.links[i].from,
                outer.links[i].to, 1e-6 * outer.links[i].bytes, outer.links[i].busy_s);
    }
    hdt_cost_outer_release(&outer);
}

void hdt_planned_print(const struct hdt_planned *p, FILE *out)
{
    const struct hdt_search_result *r = &p->result;
    const struct hdt_plan *plan = &r->plan;

    stages_print(p, out);
    edges_print(p, out);
    fprintf(out, "\ndata       %s/%s reads the shards; %s/%s writes checkpoints\n",
            plan->ranks[plan->data_rank].site, plan->ranks[plan->data_rank].worker,
            plan->ranks[plan->checkpoint_rank].site, plan->ranks[plan->checkpoint_rank].worker);
    fprintf(out, "schedule   %s: at most %lld micro-batches of a stage are kept\n",
            hdt_schedule_names[plan->schedule], (long long)most_in_flight(plan));
    fprintf(out, "predicted  %.3f s a step, %.0f tokens/s, %.2f MB a step between sites\n",
            plan->step_s, r->cost.tokens_per_s, 1e-6 * plan->wan_bytes);
    outer_print(p, out);
    fprintf(out, "limit      %s\n", plan->limit);
    if (r->second[0]) {
        fprintf(out, "runner-up  %s\n", r->second);
    }
    left_out_print(p, out);
}

static json_t *edges_json(const struct hdt_planned *p)
{
    const struct hdt_plan *plan = &p->result.plan;
    json_t *edges = json_array();

    for (size_t i = 0; i < plan->n_flows; i++) {
        const struct hdt_plan_flow *f = &plan->flows[i];
        const struct hdt_cluster_link *link = edge_link(p, f);
        struct hdt_cost_transfer t;
        char codec[HDT_CODEC_SPEC_TEXT];

        if (flow_is_edge(f) && edge_transfer(p, f, &t)) {
            double n = (double)plan->stages[f->src_stage].n_micro_batches;

            json_array_append_new(
                edges,
                json_pack("{s:i, s:s, s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:f}", "flow", (int)i,
                          "kind", hdt_flow_kind_name(f->kind), "from",
                          plan->ranks[f->src_rank].site, "to", plan->ranks[f->dst_rank].site,
                          "codec", hdt_codec_spec_format(&f->codec, codec), "bytes_per_step",
                          t.wire_bytes * n, "tensor_bytes",
                          4.0 * (double)(plan->micro_batch * plan->seq_len * p->model.C),
                          "rate_bits_per_s", link ? 8 * link->rate_bytes_per_s : 0.0, "rtt_ms",
                          link ? 1e3 * link->rtt_s : 0.0, "share", t.busy_s * n / plan->step_s));
        }
    }
    return edges;
}

/* NULL: there are none. */
static json_t *outer_json(const struct hdt_planned *p)
{
    struct hdt_cost_inputs in = {&p->job, &p->model, &p->cluster};
    struct hdt_cost_outer outer;
    json_t *json;

    if (p->result.plan.n_replicas < 2 ||
        hdt_cost_outer(&in, &p->result.plan, &outer, NULL) != HDT_OK) {
        return NULL;
    }
    json = json_pack("{s:I, s:f, s:f}", "steps", (json_int_t)outer.steps, "step_s", outer.step_s,
                     "bytes", outer.bytes);
    hdt_cost_outer_release(&outer);
    return json;
}

json_t *hdt_planned_to_json(const struct hdt_planned *p)
{
    const struct hdt_search_result *r = &p->result;

    return json_pack("{s:o, s:o, s:o, s:f, s:f, s:s, s:s, s:o, s:o, s:O, s:o*}", "plan",
                     hdt_plan_to_json(&r->plan), "job", hdt_conf_to_json(&hdt_job_schema, &p->job),
                     "model", hdt_model_to_json(&p->model), "step_s", r->plan.step_s,
                     "tokens_per_s", r->cost.tokens_per_s, "limit", r->plan.limit, "second",
                     r->second, "stage_layers", hdt_planned_stage_layers(p), "edges", edges_json(p),
                     "cluster", p->cluster_json, "outer", outer_json(p));
}

void hdt_planned_timeline(const struct hdt_planned *p, struct hdt_timeline *timeline)
{
    const struct hdt_cost *cost = &p->result.cost;

    for (size_t i = 0; i < cost->n_ops; i++) {
        const struct hdt_cost_op *op = &cost->ops[i];
        struct hdt_timeline_op line = {.kind = op->op.kind,
                                       .rank = op->rank,
                                       .stage = op->op.stage,
                                       .mb = op->op.mb,
                                       .step = -1,
                                       .start_us = 1e6 * op->start_s,
                                       .dur_us = 1e6 * (op->end_s - op->start_s),
                                       .arrived_us = 1e6 * op->arrived_s};

        hdt_timeline_add_op(timeline, &line);
    }
}

enum hdt_status hdt_planned_trace(const struct hdt_planned *p, const char *path,
                                  struct hdt_error *err)
{
    struct hdt_timeline timeline;

    HDT_TRY(hdt_timeline_open(&timeline, path, err));
    for (int i = 0; i < (int)p->result.plan.n_ranks; i++) {
        hdt_timeline_add_rank(&timeline, &p->result.plan, i);
    }
    hdt_planned_timeline(p, &timeline);
    return hdt_timeline_close(&timeline, err);
}
