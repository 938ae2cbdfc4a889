/* SPDX-License-Identifier: Apache-2.0 */
/* hdt plan --explain of a layout: each term of what its stages cost. Terms are told apart by
 * leaving one out at a time (recomputation, exchange of tensor parallelism, embedding, head). */
#include "config.h"

#include "src/cli/layout_plan.h"
#include "src/base/buf.h"
#include "src/cli/human.h"
#include "src/plan/layout_cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct term {
    const char *name;
    double fwd_s, bwd_s;
};
enum { TERM_LAYERS, TERM_TP, TERM_RECOMPUTE, TERM_EMBED, TERM_HEAD, TERM_COUNT };

/* The time without one term; what is missing is that term's. */
static void without(const struct hdt_stage_cost *cost, double *fwd_s, double *bwd_s,
                    struct term *term)
{
    double fwd, bwd;

    hdt_stage_cost_time(cost, &fwd, &bwd);
    term->fwd_s = *fwd_s - fwd;
    term->bwd_s = *bwd_s - bwd;
    *fwd_s = fwd;
    *bwd_s = bwd;
}

static void terms_fill(const struct hdt_stage_cost *whole, struct term terms[TERM_COUNT])
{
    struct hdt_stage_cost cost = *whole;
    struct hdt_stage_cost_device device = *whole->device;
    double fwd_s, bwd_s;

    terms[TERM_LAYERS].name = "layers";
    terms[TERM_TP].name = "tensor parallelism";
    terms[TERM_RECOMPUTE].name = "recomputing";
    terms[TERM_EMBED].name = "embedding";
    terms[TERM_HEAD].name = "head";
    hdt_stage_cost_time(&cost, &fwd_s, &bwd_s);
    cost.recompute = HDT_STAGE_COST_KEEP_ALL;
    without(&cost, &fwd_s, &bwd_s, &terms[TERM_RECOMPUTE]);
    device.ring_bytes_per_s = 1e30;
    cost.device = &device;
    without(&cost, &fwd_s, &bwd_s, &terms[TERM_TP]);
    cost.is_first = false;
    without(&cost, &fwd_s, &bwd_s, &terms[TERM_EMBED]);
    cost.is_last = false;
    without(&cost, &fwd_s, &bwd_s, &terms[TERM_HEAD]);
    terms[TERM_LAYERS].fwd_s = fwd_s;
    terms[TERM_LAYERS].bwd_s = bwd_s;
}

static void terms_text(const struct term terms[TERM_COUNT], bool is_backward, struct hdt_buf *out)
{
    bool first = true;

    for (int i = 0; i < TERM_COUNT; i++) {
        double s = is_backward ? terms[i].bwd_s : terms[i].fwd_s;
        char t[HDT_HUMAN_CAP];

        if (s > 1e-9) {
            hdt_buf_appendf(out, "%s%s %s", first ? "" : ", ", terms[i].name, hdt_human_time(s, t));
            first = false;
        }
    }
}

static void memory_text(const struct hdt_stage_cost_memory *m, double room, struct hdt_buf *out)
{
    const struct {
        const char *name;
        double bytes;
    } parts[] = {
        {"weights", m->weights}, {"gradients", m->grads},     {"fp32 weights", m->master},
        {"moments", m->moments}, {"buffers", m->buffers},     {"activations", m->activations},
        {"head", m->head},       {"framework", m->framework},
    };

    hdt_buf_appendf(out, "%.2f of %.2f GB: ", m->total / 1e9, room / 1e9);
    for (size_t i = 0, n = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (parts[i].bytes > 0) {
            hdt_buf_appendf(out, "%s%s %.2f", n++ > 0 ? ", " : "", parts[i].name,
                            parts[i].bytes / 1e9);
        }
    }
    if (m->host_optimizer + m->host_activations > 0) {
        hdt_buf_appendf(out, "; on its host %.2f", (m->host_optimizer + m->host_activations) / 1e9);
    }
}

static void line_add(json_t *lines, struct hdt_buf *line)
{
    json_array_append_new(lines, json_string(hdt_buf_str(line)));
    hdt_buf_clear(line);
}

/* A part of the pipeline on a replica, in four lines. */
static void part_explain(const struct hdt_layout_planned *p, const struct hdt_stage_cost *cost,
                         size_t replica, size_t part_idx, json_t *lines)
{
    const struct hdt_layout_files *f = &p->laid.files;
    size_t rank = replica * f->n_stages + part_idx % f->n_stages;
    const struct hdt_layout_rank *is = hdt_layout_sim_rank(p->laid.sim, rank);
    int64_t n = hdt_layout_n_micro_batches(f, replica);
    struct hdt_stage_cost_message message;
    struct term terms[TERM_COUNT];
    struct hdt_buf line = {0};
    char name[2 * HDT_NAME_CAP], t[4][HDT_HUMAN_CAP];
    double fwd_s, bwd_s;

    terms_fill(cost, terms);
    hdt_stage_cost_time(cost, &fwd_s, &bwd_s);
    hdt_stage_cost_message(cost, &message);
    hdt_laid_out_nodes(&p->laid, rank, name, sizeof(name));
    hdt_buf_appendf(&line, "stage %zu on %s, tp %d, %lld layers, micro-batches of %lld: forward %s",
                    part_idx % f->n_stages, name, cost->tp, (long long)cost->n_layers,
                    (long long)cost->micro_batch, hdt_human_time(fwd_s, t[0]));
    hdt_buf_append_str(&line, " (");
    terms_text(terms, false, &line);
    hdt_buf_appendf(&line, "), backward %s (", hdt_human_time(bwd_s, t[0]));
    terms_text(terms, true, &line);
    hdt_buf_append_str(&line, ")");
    line_add(lines, &line);
    hdt_buf_appendf(&line,
                    "stage %zu: %lld micro-batches compute for %s, %.1f %% of the step; a message "
                    "of %s a device to the next stage, %s at either end; optimizer %s",
                    part_idx % f->n_stages, (long long)n,
                    hdt_human_time((double)n * (fwd_s + bwd_s), t[0]),
                    100 * (double)n * (fwd_s + bwd_s) / p->best->prediction.step_s,
                    hdt_human_bytes(message.bytes, t[1]), hdt_human_time(message.end_s, t[2]),
                    hdt_human_time(hdt_stage_cost_step_s(cost), t[3]));
    line_add(lines, &line);
    hdt_buf_appendf(&line, "stage %zu: gradients of %s a device; memory ", part_idx % f->n_stages,
                    hdt_human_bytes(hdt_stage_cost_grad_bytes(cost), t[0]));
    memory_text(&is->memory, hdt_cluster_file_memory_bytes(f->groups[rank].nodes), &line);
    hdt_buf_appendf(&line, "; keeps %lld micro-batches", (long long)is->n_in_flight);
    line_add(lines, &line);
    hdt_buf_release(&line);
}

/* Of unlike replicas of a stage each kind has its lines. */
static bool is_told(const struct hdt_layout_planned *p, size_t replica, size_t stage)
{
    const struct hdt_layout_files *f = &p->laid.files;
    const struct hdt_layout_group *g = hdt_layout_group(f, replica, stage);

    for (size_t r = 0; r < replica; r++) {
        const struct hdt_layout_group *o = hdt_layout_group(f, r, stage);

        if (o->nodes == g->nodes && o->tp == g->tp &&
            hdt_layout_micro_batch(&f->layout, r) == hdt_layout_micro_batch(&f->layout, replica)) {
            return true;
        }
    }
    return false;
}

/* What the step's last op waited for, back to its begin. */
static void path_explain(const struct hdt_layout_planned *p, json_t *lines)
{
    const struct hdt_sim_path *path = &p->laid.played.path;
    double step_s = p->laid.played.result.makespan_s;
    struct hdt_buf line = {0};

    hdt_buf_append_str(&line, "critical path:");
    for (int u = 0; u < HDT_SIM_PATH_USE_COUNT; u++) {
        hdt_buf_appendf(&line, "%s %s %.1f %%", u > 0 ? "," : "",
                        hdt_sim_path_use_name((enum hdt_sim_path_use)u),
                        100 * path->use_s[u] / step_s);
    }
    line_add(lines, &line);
    hdt_buf_release(&line);
}

/* What two neighbouring sites of the plan have, and a frame between them. */
static void wire_explain(const struct hdt_layout_planned *p, size_t a, size_t b, double bytes,
                         json_t *lines)
{
    const struct hdt_layout_files *f = &p->laid.files;
    struct hdt_layout_wire wire = hdt_layout_wan_between(f, a, b);
    double rate = INFINITY, codec_s = 0, wire_s;
    struct hdt_cluster_file_path path;
    struct hdt_buf line = {0};
    char t[4][HDT_HUMAN_CAP];

    hdt_cluster_file_path(&f->cluster, a, b, &path);
    for (size_t i = 0; i < path.n_legs; i++) {
        rate = fmin(rate, hdt_cluster_file_leg_bytes_per_s(path.legs[i], bytes));
    }
    wire_s = bytes * wire.codec_ratio / (1 - path.loss) / rate;
    codec_s = isnan(wire.codec_gb_per_s) ? 0 : bytes / (wire.codec_gb_per_s * 1e9);
    hdt_buf_appendf(&line,
                    "between %s and %s: %.3g of activations' bytes, %.3g of gradients'; a frame of "
                    "%s takes %s on the wire",
                    hdt_cluster_file_site(&f->cluster, a)->name,
                    hdt_cluster_file_site(&f->cluster, b)->name, wire.codec_ratio, wire.sync_ratio,
                    hdt_human_bytes(bytes, t[0]), hdt_human_time(wire_s, t[1]));
    if (codec_s > 0) {
        hdt_buf_appendf(&line, ", %s at each end", hdt_human_time(codec_s, t[2]));
    }
    hdt_buf_appendf(&line, ", and %s of the round trip", hdt_human_time(path.rtt_s / 2, t[3]));
    line_add(lines, &line);
    hdt_buf_release(&line);
}

/* Each pair of sites that are neighbours in a replica, once. */
static void wires_explain(const struct hdt_layout_planned *p,
                          const struct hdt_stage_cost_model *model, json_t *lines)
{
    const struct hdt_layout_files *f = &p->laid.files;
    double bytes = model->T * model->C * model->value_bytes; /* of a sequence */
    size_t n_sites = f->cluster.sites.n;
    bool *told = hdt_calloc(n_sites * n_sites, sizeof(told[0]));

    for (size_t i = 0; i < f->n_replicas * f->n_stages; i++) {
        size_t a = f->groups[i].site_idx;
        size_t b = (i + 1) % f->n_stages > 0 ? f->groups[i + 1].site_idx : a;

        if (a != b && !told[a * n_sites + b]) {
            told[a * n_sites + b] = told[b * n_sites + a] = true;
            wire_explain(p, a, b,
                         (double)hdt_layout_micro_batch(&f->layout, i / f->n_stages) * bytes,
                         lines);
        }
    }
    free(told);
}

static void found_explain(const struct hdt_layout_planned *p, json_t *lines)
{
    struct hdt_buf line = {0};

    hdt_buf_appendf(&line, "the step takes %.6g s", p->best->prediction.step_s);
    if (p->best->estimate_s > 0) {
        hdt_buf_appendf(&line,
                        "; the search took it for %.6g s before it was played, and bounds plans of "
                        "this shape by %.6g s",
                        p->best->estimate_s, p->best->bound_s);
    }
    hdt_buf_appendf(&line, "; none at all takes less than %.6g s (all devices busy, nothing sent)",
                    p->result.bound_s);
    line_add(lines, &line);
    for (size_t i = 0; i < p->result.n_top; i++) {
        const struct hdt_layout_found *f = &p->result.top[i];

        if (f != p->best && f->differs[0]) {
            hdt_buf_appendf(&line, "not chosen: %.6g s (%+.2f %%): %s", f->prediction.step_s,
                            100 * (f->prediction.step_s / p->best->prediction.step_s - 1),
                            f->differs);
            line_add(lines, &line);
        }
    }
    hdt_buf_release(&line);
}

enum hdt_status hdt_layout_explain(const struct hdt_layout_planned *p, json_t **lines,
                                   struct hdt_error *err)
{
    const struct hdt_layout_files *f = &p->laid.files;
    struct hdt_stage_cost_model model;
    struct hdt_layout_part part;
    enum hdt_status status = HDT_OK;

    *lines = json_array();
    hdt_layout_model(f, &model);
    for (size_t i = 0; i < hdt_layout_n_parts(f); i++) {
        for (size_t r = 0; r < f->n_replicas && status == HDT_OK; r++) {
            if (is_told(p, r, i % f->n_stages)) {
                continue;
            }
            status = hdt_layout_part_init(f, &hdt_stage_cost_fitted, &model, r, i, &part, err);
            if (status == HDT_OK) {
                part_explain(p, &part.cost, r, i, *lines);
                hdt_layout_part_release(&part);
            }
        }
    }
    if (status != HDT_OK) {
        json_decref(*lines);
        return status;
    }
    wires_explain(p, &model, *lines);
    path_explain(p, *lines);
    found_explain(p, *lines);
    hdt_layout_replan_explain(&p->replan, *lines);
    return HDT_OK;
}
