/* SPDX-License-Identifier: Apache-2.0 */
/* A run beside its prediction: tables for people, JSON for programs, both timelines in one file. */
#include "config.h"

#include "src/cli/validated.h"
#include "src/cli/human.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_TRACE_STEPS 3 /* measured ones that are laid beside the predicted one */

static const struct hdt_plan *plan_of(const struct hdt_validated *v)
{
    return &v->planned.result.plan;
}

static void row_print(const struct hdt_validated_rank *rank, int c, FILE *out)
{
    const struct hdt_validated_row *row = &rank->rows[c];
    char cpu[16] = "-";

    if (row->predicted_s < 5e-6 && row->measured_s < 5e-6) {
        return;
    }
    if (row->cpu_share > 0) {
        snprintf(cpu, sizeof(cpu), "%.0f%%", 100 * row->cpu_share);
    }
    fprintf(out, "      %-18s %12.2f %12.2f %+12.2f %8s\n",
            hdt_validated_class_name((enum hdt_validated_class)c), 1e3 * row->predicted_s,
            1e3 * row->measured_s, 1e3 * (row->measured_s - row->predicted_s), cpu);
}

static void rank_print(const struct hdt_validated *v, size_t i, FILE *out)
{
    const struct hdt_validated_rank *rank = &v->ranks[i];
    const struct hdt_plan_rank *r = &plan_of(v)->ranks[i];
    char name[2 * HDT_NAME_CAP], cut[32];

    snprintf(name, sizeof(name), "%s/%s", r->site, r->worker);
    fprintf(out, "%-4zu  %-18s %12.2f %12.2f %+12.2f\n", i,
            hdt_human_cut(name, 18, cut, sizeof(cut)), 1e3 * rank->predicted_busy_s,
            1e3 * rank->measured_busy_s, 1e3 * (rank->measured_busy_s - rank->predicted_busy_s));
    for (int c = 0; rank->has_trace && c < HDT_VALIDATED_CLASS_COUNT; c++) {
        row_print(rank, c, out);
    }
}

/* Kinds of ops that a stage computes in. */
static const struct {
    enum hdt_op_kind kind;
    const char *name;
} stage_ops[] = {{HDT_OP_FORWARD, "forward"},
                 {HDT_OP_BACKWARD, "backward"},
                 {HDT_OP_BACKWARD_INPUT, "backward, input"},
                 {HDT_OP_BACKWARD_WEIGHT, "backward, weights"}};
#define N_STAGE_OPS (sizeof(stage_ops) / sizeof(stage_ops[0]))

static void stage_print(const struct hdt_validated *v, size_t i, FILE *out)
{
    const struct hdt_validated_stage *stage = &v->stages[i];

    for (size_t j = 0; j < N_STAGE_OPS; j++) {
        double predicted_s = stage->predicted_s[stage_ops[j].kind];
        double measured_s = stage->measured_s[stage_ops[j].kind];

        if (predicted_s >= 0 && measured_s >= 0) {
            fprintf(out, "%-4zu  %-18s %12.2f %12.2f %+12.2f\n", i, stage_ops[j].name,
                    1e3 * predicted_s, 1e3 * measured_s, 1e3 * (measured_s - predicted_s));
        }
    }
}

static void edge_print(const struct hdt_validated *v, const struct hdt_validated_edge *e, FILE *out)
{
    const struct hdt_plan_flow *f = &plan_of(v)->flows[e->flow];
    char route[2 * HDT_NAME_CAP + 8], cut[32];
    char bytes[HDT_HUMAN_CAP], predicted[HDT_HUMAN_CAP], measured[HDT_HUMAN_CAP] = "-";
    char rate[HDT_HUMAN_CAP] = "-", codec[HDT_CODEC_SPEC_TEXT];

    snprintf(route, sizeof(route), "%s -> %s", plan_of(v)->ranks[f->src_rank].site,
             plan_of(v)->ranks[f->dst_rank].site);
    if (e->n_frames > 0) {
        hdt_human_time(e->measured_s, measured);
    }
    if (e->goodput_bytes_per_s > 0) {
        hdt_human_rate(e->goodput_bytes_per_s, rate);
    }
    fprintf(out, "%-24s %-11s %-13s %9s %9s %9s %11s\n", hdt_human_cut(route, 24, cut, sizeof(cut)),
            f->kind == HDT_FLOW_ACTIVATION ? "activations" : "gradients",
            hdt_codec_spec_format(&f->codec, codec), hdt_human_bytes(e->bytes, bytes),
            hdt_human_time(e->predicted_s, predicted), measured, rate);
}

void hdt_validated_print(const struct hdt_validated *v, FILE *out)
{
    fprintf(out, "%-24s %12s %12s %12s %8s\n", "rank, ms of a step", "predicted", "measured",
            "difference", "on core");
    for (size_t i = 0; i < plan_of(v)->n_ranks; i++) {
        rank_print(v, i, out);
    }
    fprintf(out, "\n%-24s %12s %12s %12s\n", "stage, ms of an op", "predicted", "measured",
            "difference");
    for (size_t i = 0; i < plan_of(v)->n_stages; i++) {
        stage_print(v, i, out);
    }
    if (v->n_edges > 0) {
        fprintf(out, "\n%-24s %-11s %-13s %9s %9s %9s %11s\n", "link", "carries", "codec", "a step",
                "predicted", "measured", "at rate");
    }
    for (size_t i = 0; i < v->n_edges; i++) {
        edge_print(v, &v->edges[i], out);
    }
    fprintf(out, "\nstep       %.4f s predicted, %.4f s measured (median of %zu): %+.1f %%\n",
            v->predicted_step_s, v->measured_step_s, v->n_steps,
            100 * (v->measured_step_s / v->predicted_step_s - 1));
    fprintf(out, "played     %.4f s with all measured times in place of the predicted ones\n",
            v->given_step_s);
    fprintf(out, "cause      %s\n", v->cause);
    if (v->missing[0]) {
        fprintf(out, "missing    %s: copy from the worker's state_dir to %s\n", v->missing,
                v->run_dir);
    }
}

/* ---- JSON ---- */

static json_t *rank_json(const struct hdt_validated *v, size_t i)
{
    const struct hdt_validated_rank *rank = &v->ranks[i];
    const struct hdt_plan_rank *r = &plan_of(v)->ranks[i];
    json_t *classes = json_object();

    for (int c = 0; rank->has_trace && c < HDT_VALIDATED_CLASS_COUNT; c++) {
        const struct hdt_validated_row *row = &rank->rows[c];

        json_object_set_new(classes, hdt_validated_class_name((enum hdt_validated_class)c),
                            json_pack("{s:f, s:f, s:f}", "predicted_s", row->predicted_s,
                                      "measured_s", row->measured_s, "cpu_share", row->cpu_share));
    }
    return json_pack("{s:i, s:s, s:s, s:f, s:f, s:b, s:o}", "rank", (int)i, "site", r->site,
                     "worker", r->worker, "predicted_busy_s", rank->predicted_busy_s,
                     "measured_busy_s", rank->measured_busy_s, "has_trace", (int)rank->has_trace,
                     "classes", classes);
}

static json_t *number_or_null(double value)
{
    return value > 0 ? json_real(value) : json_null();
}

static json_t *edge_json(const struct hdt_validated *v, const struct hdt_validated_edge *e)
{
    const struct hdt_plan_flow *f = &plan_of(v)->flows[e->flow];
    char codec[HDT_CODEC_SPEC_TEXT];

    return json_pack("{s:i, s:s, s:s, s:s, s:s, s:f, s:I, s:f, s:o, s:o}", "flow", e->flow, "kind",
                     hdt_flow_kind_name(f->kind), "from", plan_of(v)->ranks[f->src_rank].site, "to",
                     plan_of(v)->ranks[f->dst_rank].site, "codec",
                     hdt_codec_spec_format(&f->codec, codec), "bytes_per_step", e->bytes, "frames",
                     (json_int_t)e->n_frames, "predicted_s", e->predicted_s, "measured_s",
                     e->n_frames > 0 ? json_real(e->measured_s) : json_null(),
                     "goodput_bytes_per_s", number_or_null(e->goodput_bytes_per_s));
}

static json_t *stage_json(const struct hdt_validated *v, size_t i)
{
    const struct hdt_validated_stage *stage = &v->stages[i];
    json_t *ops = json_object();

    for (size_t j = 0; j < N_STAGE_OPS; j++) {
        enum hdt_op_kind kind = stage_ops[j].kind;

        if (stage->predicted_s[kind] >= 0 && stage->measured_s[kind] >= 0) {
            json_object_set_new(ops, hdt_op_name(kind),
                                json_pack("{s:f, s:f}", "predicted_s", stage->predicted_s[kind],
                                          "measured_s", stage->measured_s[kind]));
        }
    }
    return json_pack("{s:i, s:i, s:o}", "stage", (int)i, "rank", plan_of(v)->stages[i].rank, "ops",
                     ops);
}

json_t *hdt_validated_to_json(const struct hdt_validated *v)
{
    json_t *ranks = json_array(), *stages = json_array(), *edges = json_array();

    for (size_t i = 0; i < plan_of(v)->n_ranks; i++) {
        json_array_append_new(ranks, rank_json(v, i));
    }
    for (size_t i = 0; i < plan_of(v)->n_stages; i++) {
        json_array_append_new(stages, stage_json(v, i));
    }
    for (size_t i = 0; i < v->n_edges; i++) {
        json_array_append_new(edges, edge_json(v, &v->edges[i]));
    }
    return json_pack("{s:s, s:f, s:f, s:f, s:I, s:f, s:s, s:s, s:o, s:o, s:o}", "run_dir",
                     v->run_dir, "predicted_step_s", v->predicted_step_s, "measured_step_s",
                     v->measured_step_s, "ratio", v->measured_step_s / v->predicted_step_s, "steps",
                     (json_int_t)v->n_steps, "played_step_s", v->given_step_s, "cause", v->cause,
                     "missing", v->missing, "ranks", ranks, "stages", stages, "edges", edges);
}

/* ---- both timelines ---- */

/* When each step of the root began and how long it took: the one nearest to the median. */
static int64_t step_typical(const struct hdt_validated *v, double *begin_us)
{
    const struct hdt_validated_rank *root = &v->ranks[plan_of(v)->root_rank];
    double end_us = NAN, best = DBL_MAX;
    int64_t typical = -1, step = -1;
    double first_us = 0;

    for (size_t i = 0; i < root->n_ops; i++) {
        const struct hdt_timeline_op *op = &root->ops[i];

        if (op->eval || op->step < 0) {
            continue;
        }
        if (op->step != step) {
            step = op->step;
            first_us = isnan(end_us) ? op->start_us : end_us;
        }
        end_us = op->start_us + op->dur_us;
        if (op->kind == HDT_OP_STEP &&
            fabs((end_us - first_us) / 1e6 - v->measured_step_s) < best) {
            best = fabs((end_us - first_us) / 1e6 - v->measured_step_s);
            typical = step;
            *begin_us = first_us;
        }
    }
    return typical;
}

static void measured_write(const struct hdt_validated *v, struct hdt_timeline *t, int64_t typical,
                           double begin_us)
{
    for (size_t r = 0; r < plan_of(v)->n_ranks; r++) {
        const struct hdt_validated_rank *rank = &v->ranks[r];

        for (size_t i = 0; i < rank->n_ops; i++) {
            struct hdt_timeline_op op = rank->ops[i];

            if (op.step >= typical - N_TRACE_STEPS / 2 && op.step <= typical + N_TRACE_STEPS / 2) {
                op.start_us -= begin_us;
                op.arrived_us -= op.arrived_us != 0 ? begin_us : 0;
                hdt_timeline_add_op(t, &op);
            }
        }
    }
}

static void ranks_name(const struct hdt_validated *v, struct hdt_timeline *t)
{
    for (size_t r = 0; r < plan_of(v)->n_ranks; r++) {
        hdt_timeline_add_rank(t, plan_of(v), (int)r);
    }
}

enum hdt_status hdt_validated_trace(const struct hdt_validated *v, const char *path,
                                    struct hdt_error *err)
{
    double begin_us = 0;
    int64_t typical = step_typical(v, &begin_us);
    struct hdt_timeline t;

    if (typical < 0) {
        hdt_error_set(err, HDT_ENOENT,
                      "cannot lay the run on its plan: no trace of rank %d is here",
                      plan_of(v)->root_rank);
        hdt_error_hint(err, "copy %s to %s", v->missing, v->run_dir);
        return HDT_ENOENT;
    }
    HDT_TRY(hdt_timeline_open(&t, path, err));
    t.group = "predicted ";
    ranks_name(v, &t);
    hdt_planned_timeline(&v->planned, &t);
    t.group = "measured ";
    t.pid_base = (int)plan_of(v)->n_ranks;
    ranks_name(v, &t);
    measured_write(v, &t, typical, begin_us);
    return hdt_timeline_close(&t, err);
}
