/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/plan/layout_cost.h"
#include "src/base/buf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GIB (1024.0 * 1024 * 1024)

/* ---- the model ---- */

/* Values that a layer keeps of a sample: 34 T C + 5 NH T^2 bytes where a value has two (Korthikanti
 * et al. 2022, equation 1). A fused attention keeps a sum in fp32 of each row of T x T instead (Dao
 * 2023, arXiv 2307.08691, section 3.1). */
#define KEPT_ROWS   17
#define KEPT_SCORES 2.5

static void kept_fill(const struct hdt_model_shape *s, double measured,
                      struct hdt_stage_cost_model *model)
{
    double T = model->T, rows = KEPT_ROWS * T * (double)s->C;
    double scores = model->is_fused ? 0 : KEPT_SCORES * (double)s->NH * T * T;
    double sums = model->is_fused ? (double)s->NH * T * 4 / model->value_bytes : 0;

    if (measured > 0) {
        model->layer_kept = measured;
        model->scores_kept = fmin(scores, fmax(measured - rows, 0));
    } else {
        model->layer_kept = rows + scores + sums;
        model->scores_kept = scores;
    }
}

/* Of queries and output, of keys and values, of the feed-forward part. */
static double matrices_of(const struct hdt_model_shape *s)
{
    double C = (double)s->C, heads = (double)(s->NH * s->HS), kv = (double)(s->NKV * s->HS);

    return 2 * C * heads + 2 * C * kv + (s->is_gated ? 3 : 2) * C * (double)s->F;
}

static double kept_measured(const struct hdt_layout_files *files, double value_bytes)
{
    for (size_t i = 0; i < files->n_profiles; i++) {
        const struct hdt_layer *block =
            hdt_layer_profile_layer(&files->profiles[i], HDT_LAYER_BLOCK);

        if (block && !isnan(block->stored_bytes)) {
            return block->stored_bytes / value_bytes;
        }
    }
    return 0;
}

void hdt_layout_model(const struct hdt_layout_files *files, struct hdt_stage_cost_model *model)
{
    const struct hdt_layout *l = &files->layout;
    const struct hdt_model_shape *s = &files->model;
    double value_bytes =
        l->precision == HDT_PRECISION_FP32 || l->precision == HDT_PRECISION_TF32 ? 4 : 2;

    *model = (struct hdt_stage_cost_model){
        .C = (double)s->C,
        .NH = (double)s->NH,
        .T = (double)l->seq_len,
        .V = (double)s->V,
        .layer_params = (double)hdt_model_shape_layer_params(s),
        .layer_matrices = matrices_of(s),
        .heads_width = (double)(s->NH * s->HS),
        .is_fused = l->attention == HDT_LAYOUT_FUSED,
        .embed_params = (double)hdt_model_shape_embedding_params(s),
        .head_params = (double)hdt_model_shape_head_params(s),
        .value_bytes = value_bytes,
        .grad_bytes = l->fp32_gradients ? 4 : value_bytes,
        .table_params = (double)(s->V * s->E),
        .head_matrices = (double)(s->V * s->E + (s->E != s->C ? s->E * s->C : 0)),
        .is_tied = s->has_tied_head,
    };
    kept_fill(s, kept_measured(files, value_bytes), model);
}

size_t hdt_layout_n_parts(const struct hdt_layout_files *files)
{
    return files->n_stages * (size_t)files->layout.chunks;
}

/* ---- a device ---- */

/* Products of the layout's precision; devices that know nothing of tf32 take fp32 for it. */
static double tflops_of(const struct hdt_device *device, int precision)
{
    double tflops = device->compute.tflops[precision];

    return isnan(tflops) && precision == HDT_PRECISION_TF32
               ? device->compute.tflops[HDT_PRECISION_FP32]
               : tflops;
}

static enum hdt_status device_fill(const struct hdt_layout_files *files,
                                   const struct hdt_layout_group *group, int64_t micro_batch,
                                   const struct hdt_stage_cost_model *model,
                                   const struct hdt_stage_cost_constants *constants,
                                   struct hdt_stage_cost_device *out, struct hdt_error *err)
{
    const struct hdt_device *d = group->nodes->device;
    const struct hdt_link_curve *inside = group->nodes->inside;
    double tflops = tflops_of(d, files->layout.precision);
    double rows = (double)micro_batch * model->T * model->C * model->value_bytes;

    if (isnan(tflops) || isnan(d->memory.gb_per_s)) {
        hdt_conf_error(files->doc, isnan(tflops) ? "precision" : "cluster", err, HDT_EINVAL,
                       "cannot predict '%.64s': %s is not known", d->name,
                       isnan(tflops) ? hdt_precision_names[files->layout.precision]
                                     : "the rate of its memory");
        hdt_error_hint(err, "describe the device in the cluster file, or choose another precision");
        return HDT_EINVAL;
    }
    *out = (struct hdt_stage_cost_device){.flop_per_s = tflops * 1e12,
                                          .bytes_per_s = d->memory.gb_per_s * 1e9,
                                          .framework_bytes = group->nodes->framework_gb * GIB};
    if (group->tp > 1) {
        out->ring_bytes_per_s =
            hdt_link_curve_bytes_per_s(inside, rows / (double)group->tp, group->tp) *
            (inside->nominal ? constants->ring_share : 1);
    }
    return HDT_OK;
}

/* ---- a profile ---- */

static double backward_of(const struct hdt_layer_times *t)
{
    double halves = t->backward_input_s + t->backward_weight_s;

    /* Where nobody measured it: twice the products of a forward. */
    return !isnan(t->backward_s) ? t->backward_s : !isnan(halves) ? halves : 2 * t->forward_s;
}

/* Of the work of a backward, by products: those of weights have as many for the gradient of the
 * input as for that of the weight, those of T x T have no weights (Qi et al. 2024, table 1). */
static double input_share_of(const struct hdt_stage_cost_model *m)
{
    double weights = 2 * m->layer_matrices;
    double scores = (m->is_fused ? 5 : 8) * m->T * m->heads_width;

    return (weights + scores) / (2 * weights + scores);
}

/* NaN is 0: not known. */
static double known_s(double s)
{
    return isnan(s) ? 0 : s;
}

/* A layer beside the blocks at this degree and micro-batch: as measured, or by the batch from the
 * one micro-batch that was. Its backward is 0 where nobody measured it. */
static void beside_fill(const struct hdt_layer_profile *profile, enum hdt_layer_kind kind,
                        int64_t tp, int64_t micro_batch, double *fwd_s, double *bwd_s)
{
    const struct hdt_layer *layer = hdt_layer_profile_layer(profile, kind);
    const struct hdt_layer_times *all = layer ? layer->times.items : NULL;
    struct hdt_layer_times t;

    if (hdt_layer_profile_times(profile, kind, tp, micro_batch, &t, NULL) == HDT_OK &&
        !isnan(t.forward_s)) {
        *fwd_s = t.forward_s;
        *bwd_s = known_s(t.backward_s);
        return;
    }
    for (size_t i = 0; layer && i < layer->times.n && *fwd_s <= 0; i++) {
        double times = (double)micro_batch / (double)all[i].micro_batch;

        if (all[i].tp == tp && !isnan(all[i].forward_s)) {
            *fwd_s = all[i].forward_s * times;
            *bwd_s = known_s(isnan(all[i].backward_s)
                                 ? all[i].backward_input_s + all[i].backward_weight_s
                                 : all[i].backward_s) *
                     times;
        }
    }
}

static struct hdt_stage_cost_point point_of(const struct hdt_layer_times *t)
{
    return (struct hdt_stage_cost_point){.micro_batch = t->micro_batch,
                                         .fwd_s = t->forward_s,
                                         .bwd_s = backward_of(t),
                                         .recompute_s = known_s(t->recompute_s)};
}

/* Work is divided by the degree and the rest is not: a + b / tp through two measured degrees. */
static double between_degrees(double one_s, int64_t one, double two_s, int64_t two, int64_t tp)
{
    double b = (one_s - two_s) / (1.0 / (double)one - 1.0 / (double)two);
    double a = one_s - b / (double)one;

    return fmax(a + b / (double)tp, fmin(one_s, two_s) * 0.5);
}

/* The nearest two degrees at which a micro-batch was measured. */
static bool degrees_find(const struct hdt_layer *block, int64_t micro_batch, int64_t tp,
                         const struct hdt_layer_times **one, const struct hdt_layer_times **two)
{
    const struct hdt_layer_times *t = block->times.items;

    *one = *two = NULL;
    for (size_t i = 0; i < block->times.n; i++) {
        if (t[i].micro_batch != micro_batch || isnan(t[i].forward_s)) {
            continue;
        }
        if (!*one || llabs(t[i].tp - tp) < llabs((*one)->tp - tp)) {
            *two = *one;
            *one = &t[i];
        } else if (!*two || llabs(t[i].tp - tp) < llabs((*two)->tp - tp)) {
            *two = &t[i];
        }
    }
    return *two != NULL;
}

/* Points of a degree that was not measured, from those that were. */
static void points_between(const struct hdt_layer *block, int64_t tp, struct hdt_layout_part *part)
{
    const struct hdt_layer_times *t = block->times.items, *one, *two;

    for (size_t i = 0; i < block->times.n; i++) {
        struct hdt_stage_cost_point p, q;
        bool is_new = true;

        for (int k = 0; k < part->profile.n_points; k++) {
            is_new = is_new && part->points[k].micro_batch != t[i].micro_batch;
        }
        if (!is_new || !degrees_find(block, t[i].micro_batch, tp, &one, &two)) {
            continue;
        }
        p = point_of(one);
        q = point_of(two);
        p.fwd_s = between_degrees(p.fwd_s, one->tp, q.fwd_s, two->tp, tp);
        p.bwd_s = between_degrees(p.bwd_s, one->tp, q.bwd_s, two->tp, tp);
        p.recompute_s = p.recompute_s > 0 && q.recompute_s > 0
                            ? between_degrees(p.recompute_s, one->tp, q.recompute_s, two->tp, tp)
                            : 0;
        part->points[part->profile.n_points++] = p;
    }
}

static int points_compare(const void *a, const void *b)
{
    const struct hdt_stage_cost_point *p = a, *q = b;

    return p->micro_batch < q->micro_batch ? -1 : p->micro_batch > q->micro_batch;
}

static void profile_fill(const struct hdt_layer_profile *profile, int64_t tp, int64_t micro_batch,
                         struct hdt_layout_part *part)
{
    const struct hdt_layer *block = hdt_layer_profile_layer(profile, HDT_LAYER_BLOCK);
    const struct hdt_layer_times *t = block ? block->times.items : NULL;
    bool has_share = false;

    part->points = hdt_calloc(block ? block->times.n + 1 : 1, sizeof(part->points[0]));
    part->profile.points = part->points;
    for (size_t i = 0; block && i < block->times.n; i++) {
        double halves = t[i].backward_input_s + t[i].backward_weight_s;

        if (t[i].tp != tp || isnan(t[i].forward_s)) {
            continue;
        }
        part->points[part->profile.n_points++] = point_of(&t[i]);
        if (!has_share && halves > 0) {
            part->input_share = t[i].backward_input_s / halves;
            has_share = true;
        }
    }
    if (block && part->profile.n_points == 0) {
        points_between(block, tp, part);
        qsort(part->points, (size_t)part->profile.n_points, sizeof(part->points[0]),
              points_compare);
    }
    beside_fill(profile, HDT_LAYER_HEAD, tp, micro_batch, &part->profile.head_fwd_s,
                &part->profile.head_bwd_s);
    beside_fill(profile, HDT_LAYER_EMBEDDING, tp, micro_batch, &part->profile.embed_fwd_s,
                &part->profile.embed_bwd_s);
    part->profile.step_s_per_param = known_s(profile->optimizer_s_per_param);
}

/* ---- a part ---- */

/* Layers of a stage's chunk; what is left over goes to its last ones. */
static int64_t chunk_layers(const struct hdt_layout_files *files, size_t part_idx)
{
    int64_t n = hdt_layout_stage(&files->layout, part_idx % files->n_stages)->layers;
    int64_t n_chunks = files->layout.chunks, chunk = (int64_t)(part_idx / files->n_stages);

    return n / n_chunks + (chunk >= n_chunks - n % n_chunks ? 1 : 0);
}

/* Both moments of a parameter. */
static double moments_bytes_of(const struct hdt_layout *layout)
{
    switch (layout->optimizer.moments) {
    case HDT_LAYOUT_MOMENTS_BF16:
        return 4;
    case HDT_LAYOUT_MOMENTS_INT8:
        return HDT_STAGE_COST_MOMENTS_INT8;
    default:
        return 8;
    }
}

static enum hdt_stage_cost_recompute recompute_of(const struct hdt_layout *layout, size_t stage)
{
    switch (hdt_layout_recompute(layout, stage)) {
    case HDT_LAYOUT_SELECTIVE:
        return HDT_STAGE_COST_KEEP_LINEAR;
    case HDT_LAYOUT_FULL:
        return HDT_STAGE_COST_KEEP_INPUTS;
    default:
        return HDT_STAGE_COST_KEEP_ALL;
    }
}

enum hdt_status hdt_layout_part_init(const struct hdt_layout_files *files,
                                     const struct hdt_stage_cost_constants *constants,
                                     const struct hdt_stage_cost_model *model, size_t replica,
                                     size_t part_idx, struct hdt_layout_part *part,
                                     struct hdt_error *err)
{
    const struct hdt_layout_group *group =
        hdt_layout_group(files, replica, part_idx % files->n_stages);
    const struct hdt_layer_profile *profile = hdt_layout_profile(files, group);
    const struct hdt_layout *layout = &files->layout;
    enum hdt_layout_offload offload = hdt_layout_offload(layout, part_idx % files->n_stages);
    int64_t micro_batch = hdt_layout_micro_batch(layout, replica);

    memset(part, 0, sizeof(*part));
    HDT_TRY(device_fill(files, group, micro_batch, model, constants, &part->device, err));
    part->input_share = input_share_of(model);
    if (profile) {
        profile_fill(profile, group->tp, micro_batch, part);
    }
    part->cost = (struct hdt_stage_cost){
        .constants = constants,
        .model = model,
        .device = &part->device,
        .profile = &part->profile,
        .n_layers = chunk_layers(files, part_idx),
        .micro_batch = micro_batch,
        .tp = (int)group->tp,
        .is_first = part_idx == 0,
        .is_last = part_idx + 1 == hdt_layout_n_parts(files),
        .recompute = recompute_of(layout, part_idx % files->n_stages),
        .optimizer = {.moments_bytes = moments_bytes_of(layout),
                      .n_shards = layout->optimizer.sharded ? (int)files->n_replicas : 1,
                      .on_host = offload & HDT_LAYOUT_OFFLOAD_OPTIMIZER},
        .activations_on_host = offload & HDT_LAYOUT_OFFLOAD_ACTIVATIONS,
    };
    return HDT_OK;
}

void hdt_layout_part_release(struct hdt_layout_part *part)
{
    free(part->points);
}
