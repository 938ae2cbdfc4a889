/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/layout_flows.h"
#include "src/base/buf.h"
#include "src/cli/human.h"

#include <stdlib.h>
#include <string.h>

const char *const hdt_layout_flow_names[] = {
    [HDT_LAYOUT_FLOW_ACTIVATIONS] = "activations",
    [HDT_LAYOUT_FLOW_GRADIENTS] = "gradients",
    [HDT_LAYOUT_FLOW_SYNC] = "all-reduce",
    [HDT_LAYOUT_FLOW_TABLE] = "tied table",
    [HDT_LAYOUT_FLOW_NORM] = "norm",
    [HDT_LAYOUT_FLOW_LABELS] = "labels",
    [HDT_LAYOUT_FLOW_COUNT] = NULL,
};

#define LABEL_BYTES 4

/* ---- collecting ---- */

/* Site of the cluster by name, as links have it. */
static const char *site_name(const struct hdt_layout_files *files, const char *name)
{
    size_t idx = hdt_cluster_file_find_site(&files->cluster, name);

    return idx < files->cluster.sites.n ? hdt_cluster_file_site(&files->cluster, idx)->name : NULL;
}

static void flow_add(struct hdt_layout_flows *flows, const struct hdt_layout_flow *flow)
{
    for (size_t i = 0; i < flows->n; i++) {
        struct hdt_layout_flow *f = &flows->items[i];

        if (f->from == flow->from && f->to == flow->to && f->kind == flow->kind &&
            f->src_stage == flow->src_stage && f->dst_stage == flow->dst_stage) {
            f->bytes += flow->bytes;
            f->busy_s += flow->busy_s;
            return;
        }
    }
    if (flows->n == flows->cap) {
        flows->cap = flows->cap ? 2 * flows->cap : 16;
        flows->items = hdt_realloc(flows->items, flows->cap * sizeof(flows->items[0]));
    }
    flows->items[flows->n++] = *flow;
}

struct collector {
    struct hdt_layout_flows *flows;
    const struct hdt_layout_files *files;
    const struct hdt_layout_sim *sim;
    const struct hdt_sim_setup *setup;
    int64_t *n_begun;         /* by group: how often it runs */
    enum hdt_op_kind *called; /* by group: as what */
};

/* Bytes of a frame of a flow on each leg that it takes. */
static void frames_add(const struct collector *c, int flow_idx, double bytes,
                       struct hdt_layout_flow *flow)
{
    const struct hdt_sim_flow *f = &c->setup->flows[flow_idx];

    for (size_t i = 0; i < f->n_route; i++) {
        int link = c->setup->routes[f->route + i];
        const struct hdt_layout_link *name = hdt_layout_sim_link(c->sim, (size_t)link);

        if (name->to[0]) {
            flow->from = site_name(c->files, name->from);
            flow->to = site_name(c->files, name->to);
            flow->bytes =
                bytes * c->setup->route_shares[f->route + i] * (f->weight > 0 ? f->weight : 1);
            flow->busy_s = flow->bytes / c->setup->links[link].rate_bytes_per_s;
            flow_add(c->flows, flow);
        }
    }
}

static void task_add(const struct collector *c, int rank, const struct hdt_sim_task *task)
{
    int n_stages = (int)c->files->n_stages;
    struct hdt_layout_flow flow = {.src_stage = rank % n_stages};

    if (task->kind == HDT_SIM_SEND) {
        flow.kind = task->op.kind == HDT_OP_SEND_BACKWARD ? HDT_LAYOUT_FLOW_GRADIENTS
                                                          : HDT_LAYOUT_FLOW_ACTIVATIONS;
        flow.dst_stage = c->setup->flows[task->peer].dst % n_stages;
        frames_add(c, task->peer, task->bytes, &flow);
    } else if ((task->kind == HDT_SIM_GROUP || task->kind == HDT_SIM_JOIN) &&
               c->setup->members[c->setup->groups[task->peer].first] == rank) {
        c->n_begun[task->peer] += task->kind == HDT_SIM_GROUP;
        c->called[task->peer] = task->op.kind;
    }
}

/* Ends of a pipeline add their table, replicas of a stage their gradients. */
static enum hdt_layout_flow_kind kind_of(const struct collector *c, size_t group)
{
    const struct hdt_sim_group *g = &c->setup->groups[group];
    const int *members = &c->setup->members[g->first];
    int n_stages = (int)c->files->n_stages;

    if (c->called[group] == HDT_OP_NORM_SYNC) {
        return HDT_LAYOUT_FLOW_NORM;
    }
    return members[0] % n_stages != members[g->n - 1] % n_stages ? HDT_LAYOUT_FLOW_TABLE
                                                                 : HDT_LAYOUT_FLOW_SYNC;
}

/* A chained group runs as often as the one before it. */
static void groups_add(const struct collector *c)
{
    int64_t n_times = 0;

    for (size_t i = 0; i < c->setup->n_groups; i++) {
        const struct hdt_sim_group *g = &c->setup->groups[i];
        struct hdt_layout_flow flow = {.kind = kind_of(c, i), .dst_stage = -1};

        n_times = g->chained ? n_times : c->n_begun[i];
        flow.src_stage = flow.kind == HDT_LAYOUT_FLOW_SYNC
                             ? c->setup->members[g->first] % (int)c->files->n_stages
                             : -1;
        if (g->flow >= 0 && n_times > 0) {
            frames_add(c, g->flow, g->bytes * (double)n_times, &flow);
        }
    }
}

/* Labels go from the site of a replica's first stage to that of its last. */
static void labels_add(struct hdt_layout_flows *flows, const struct hdt_layout_files *files)
{
    for (size_t r = 0; r < files->n_replicas; r++) {
        size_t src = hdt_layout_group(files, r, 0)->site_idx;
        size_t dst = hdt_layout_group(files, r, files->n_stages - 1)->site_idx;
        double bytes = (double)(hdt_layout_micro_batch(&files->layout, r) *
                                hdt_layout_n_micro_batches(files, r) * files->layout.seq_len) *
                       LABEL_BYTES;
        struct hdt_cluster_file_path path;

        flows->has_tokens[src] = flows->has_labels[dst] = true;
        if (src == dst) {
            continue;
        }
        flows->has_labels[src] = true;
        hdt_cluster_file_path(&files->cluster, src, dst, &path);
        for (size_t i = 0; i < path.n_legs; i++) {
            const struct hdt_cluster_file_wan *leg = path.legs[i];
            struct hdt_layout_flow flow = {
                .from = site_name(files, path.reversed[i] ? leg->to : leg->from),
                .to = site_name(files, path.reversed[i] ? leg->from : leg->to),
                .kind = HDT_LAYOUT_FLOW_LABELS,
                .src_stage = 0,
                .dst_stage = (int)files->n_stages - 1,
                .bytes = bytes,
                .busy_s = bytes / hdt_cluster_file_leg_bytes_per_s(leg, bytes),
            };

            flow_add(flows, &flow);
        }
    }
}

void hdt_layout_flows_init(struct hdt_layout_flows *flows, const struct hdt_layout_files *files,
                           const struct hdt_layout_sim *sim)
{
    const struct hdt_sim_setup *setup = hdt_layout_sim_setup(sim);
    struct collector c = {.flows = flows, .files = files, .sim = sim, .setup = setup};
    struct hdt_sim_task task;

    memset(flows, 0, sizeof(*flows));
    flows->files = files;
    flows->n_sites = files->cluster.sites.n;
    flows->has_tokens = hdt_calloc(flows->n_sites, sizeof(flows->has_tokens[0]));
    flows->has_labels = hdt_calloc(flows->n_sites, sizeof(flows->has_labels[0]));
    labels_add(flows, files);
    if (flows->n_sites < 2) {
        return;
    }
    c.n_begun = hdt_calloc(setup->n_groups + 1, sizeof(c.n_begun[0]));
    c.called = hdt_calloc(setup->n_groups + 1, sizeof(c.called[0]));
    for (size_t r = 0; r < setup->n_ranks; r++) {
        for (int64_t k = 0; setup->task(setup->ctx, (int)r, k, &task); k++) {
            task_add(&c, (int)r, &task);
        }
    }
    groups_add(&c);
    free(c.n_begun);
    free(c.called);
}

void hdt_layout_flows_release(struct hdt_layout_flows *flows)
{
    free(flows->items);
    free(flows->has_tokens);
    free(flows->has_labels);
    memset(flows, 0, sizeof(*flows));
}

const struct hdt_layout_flow *hdt_layout_flows_busiest(const struct hdt_layout_flows *flows,
                                                       double *busy_s)
{
    const struct hdt_layout_flow *busiest = NULL;

    *busy_s = 0;
    for (size_t i = 0; i < flows->n; i++) {
        double sum = 0;

        for (size_t k = 0; k < flows->n; k++) {
            bool same = flows->items[k].from == flows->items[i].from &&
                        flows->items[k].to == flows->items[i].to;

            sum += same ? flows->items[k].busy_s : 0;
        }
        if (sum > *busy_s) {
            *busy_s = sum;
            busiest = &flows->items[i];
        }
    }
    return busiest;
}

/* ---- showing ---- */

static void stages_text(const struct hdt_layout_flow *f, char *text, size_t cap)
{
    if (f->src_stage < 0) {
        snprintf(text, cap, "-");
    } else if (f->dst_stage < 0) {
        snprintf(text, cap, "%d", f->src_stage);
    } else {
        snprintf(text, cap, "%d -> %d", f->src_stage, f->dst_stage);
    }
}

static void sites_print(const struct hdt_layout_flows *flows, const bool *has, FILE *out)
{
    bool first = true;

    for (size_t i = 0; i < flows->n_sites; i++) {
        if (has[i]) {
            fprintf(out, "%s%s", first ? "" : ", ",
                    hdt_cluster_file_site(&flows->files->cluster, i)->name);
            first = false;
        }
    }
}

void hdt_layout_flows_print(const struct hdt_layout_flows *flows, double step_s, FILE *out)
{
    if (flows->n_sites < 2) {
        return;
    }
    if (flows->n > 0) {
        fprintf(out, "\n%-33s %-11s %-10s %10s %6s\n", "between sites", "carries", "stages",
                "a step", "busy");
    }
    for (size_t i = 0; i < flows->n; i++) {
        const struct hdt_layout_flow *f = &flows->items[i];
        char name[2 * HDT_NAME_CAP + 8], cut[40], stages[32], bytes[HDT_HUMAN_CAP];

        snprintf(name, sizeof(name), "%s -> %s", f->from, f->to);
        stages_text(f, stages, sizeof(stages));
        fprintf(out, "%-33s %-11s %-10s %10s %5.1f%%\n", hdt_human_cut(name, 33, cut, sizeof(cut)),
                hdt_layout_flow_names[f->kind], stages, hdt_human_bytes(f->bytes, bytes),
                100 * f->busy_s / step_s);
    }
    fprintf(out, "raw tokens are seen at ");
    sites_print(flows, flows->has_tokens, out);
    fprintf(out, " only, labels at ");
    sites_print(flows, flows->has_labels, out);
    fprintf(out, "%s\n",
            flows->n > 0 ? "; what leaves a site is listed above" : "; nothing leaves it");
}

static json_t *sites_json(const struct hdt_layout_flows *flows, const bool *has)
{
    json_t *sites = json_array();

    for (size_t i = 0; i < flows->n_sites; i++) {
        if (has[i]) {
            json_array_append_new(
                sites, json_string(hdt_cluster_file_site(&flows->files->cluster, i)->name));
        }
    }
    return sites;
}

json_t *hdt_layout_flows_json(const struct hdt_layout_flows *flows)
{
    json_t *all = json_array();

    for (size_t i = 0; i < flows->n; i++) {
        const struct hdt_layout_flow *f = &flows->items[i];

        json_array_append_new(all, json_pack("{s:s, s:s, s:s, s:i, s:i, s:f, s:f}", "from", f->from,
                                             "to", f->to, "kind", hdt_layout_flow_names[f->kind],
                                             "src_stage", f->src_stage, "dst_stage", f->dst_stage,
                                             "bytes", f->bytes, "busy_s", f->busy_s));
    }
    return json_pack("{s:o, s:o, s:o}", "flows", all, "tokens",
                     sites_json(flows, flows->has_tokens), "labels",
                     sites_json(flows, flows->has_labels));
}
