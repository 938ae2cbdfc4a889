/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * A measured profile of single layers is the best that is known of a device, and still not what a
 * run does: it says little of the head, nothing of the embedding, and a backward alone pays for a
 * start that a stage pays once. What is missing comes from counting: products, values that pass
 * through memory, bytes in a ring. Counts are exact, so the constants that had to be fitted are few
 * and each is a cost that a profiler can be shown (doc/predictor.md). A regression over runs would
 * fit them closer and would be wrong on the next machine.
 */
#include "src/plan/stage_cost.h"
#include "src/base/error.h"

#include <math.h>

const struct hdt_stage_cost_constants hdt_stage_cost_fitted = {
    .message_s = 0.8e-3,
    .input_s_per_token = 2.25e-6,
    .backward_start_s = 0.7e-3,
    .matrix_share = 0.4,
    .ring_share = 0.6,
    .drift = 0.02,
};

/* How often values pass through memory in the forward of a layer without fused kernels: T x T
 * matrices (product, scale and mask, softmax, dropout, product), and rows of width C (two norms,
 * biases, the four-fold wide middle, dropouts, sums). A backward makes twice of it, as of products.
 */
#define SCORE_PASSES 10
#define ROW_PASSES   40

/* Logits, there and back: product, maximum, difference, exponential, sum, quotient; and again. */
#define LOGIT_FWD_PASSES 9
#define LOGIT_BWD_PASSES 5

/* Copies of the logits that are there at once. */
#define LOGIT_COPIES 4

/* Rows of width C that each rank of a tensor-parallel group keeps whole: inputs and outputs of the
 * two norms, and masks of dropouts. */
#define WHOLE_ROWS 5

/* Until a message is longer than this, its sender need not wait: what NCCL's buffers hold. */
#define EAGER_BYTES (4.0 * 1024 * 1024)

/* The fp32 weight is read and written, and so are the moments. A gradient is cleared, copied,
 * divided, copied back; then, by who steps on it, summed for the norm, clipped and read. */
#define STEP_WEIGHT_BYTES 8
#define STEP_SYNC_PASSES  7
#define STEP_NORM_PASSES  1
#define STEP_CLIP_PASSES  3

static double max2(double a, double b)
{
    return a > b ? a : b;
}

static double min2(double a, double b)
{
    return a < b ? a : b;
}

/* Bytes that a micro-batch hands from layer to layer. */
static double rows_bytes(const struct hdt_stage_cost *s)
{
    return (double)s->micro_batch * s->model->T * s->model->C * s->model->value_bytes;
}

/* Of a ring in the tensor-parallel group: an all-gather takes one round, an all-reduce two. */
static double group_round_s(const struct hdt_stage_cost *s, double bytes)
{
    return s->tp > 1 ? (s->tp - 1) * bytes / s->tp / s->device->ring_bytes_per_s : 0;
}

/* What a layer's T x T matrices take of a sample, undivided. A fused attention leaves out what the
 * causal mask hides, and its backward makes the scores again: five products, not four (Dao 2023,
 * arXiv 2307.08691, section 4.1). */
static double scores_s(const struct hdt_stage_cost *s, bool is_bwd)
{
    const struct hdt_stage_cost_model *m = s->model;
    double flop_per_s = s->device->flop_per_s * s->constants->matrix_share;
    double flop = 4 * m->T * m->T * m->heads_width, values = SCORE_PASSES * m->NH * m->T * m->T;

    return m->is_fused ? (is_bwd ? 2.5 : 1) * flop / 2 / flop_per_s
                       : (is_bwd ? 2 : 1) *
                             (flop / flop_per_s + values * m->value_bytes / s->device->bytes_per_s);
}

/* A layer with one more sample: products at the device's rate and values at its memory's, twice in
 * a backward, then two all-reduces. */
static double sample_s(const struct hdt_stage_cost *s, bool is_bwd)
{
    const struct hdt_stage_cost_model *m = s->model;
    double times = is_bwd ? 2 : 1;
    double flop = times * 2 * m->T * m->layer_matrices, values = times * ROW_PASSES * m->T * m->C;
    double alone_s = flop / (s->device->flop_per_s * s->constants->matrix_share) +
                     values * m->value_bytes / s->device->bytes_per_s + scores_s(s, is_bwd);

    return alone_s / s->tp + 4 * group_round_s(s, m->T * m->C * m->value_bytes);
}

static double point_s(const struct hdt_stage_cost_point *p, bool is_bwd)
{
    return is_bwd ? p->bwd_s : p->fwd_s;
}

/* Along the line through two points. */
static double line_s(const struct hdt_stage_cost_point *a, const struct hdt_stage_cost_point *b,
                     bool is_bwd, double micro_batch)
{
    double slope =
        (point_s(b, is_bwd) - point_s(a, is_bwd)) / (double)(b->micro_batch - a->micro_batch);

    return point_s(a, is_bwd) + slope * (micro_batch - (double)a->micro_batch);
}

/* The profile's own answer. Below its first point time does not fall faster than the batch, beyond
 * the last one not at all. */
static double profile_s(const struct hdt_stage_cost *s, bool is_bwd)
{
    const struct hdt_stage_cost_profile *p = s->profile;
    double b = (double)s->micro_batch, first, on_line;
    const struct hdt_stage_cost_point *last;
    int i = 0;

    if (p->n_points == 0) {
        return b * sample_s(s, is_bwd);
    }
    first = (double)p->points[0].micro_batch;
    last = &p->points[p->n_points - 1];
    while (i < p->n_points - 2 && p->points[i + 1].micro_batch < s->micro_batch) {
        i++;
    }
    on_line = p->n_points == 1 ? point_s(p->points, is_bwd) + sample_s(s, is_bwd) * (b - first)
                               : line_s(&p->points[i], &p->points[i + 1], is_bwd, b);
    if (b < first) {
        return max2(on_line, point_s(p->points, is_bwd) * b / first);
    }
    return s->micro_batch > last->micro_batch ? max2(on_line, point_s(last, is_bwd)) : on_line;
}

/* What the two next larger micro-batches say about this one: 0 when there are not as many. */
static double grown_s(const struct hdt_stage_cost *s, bool is_bwd)
{
    const struct hdt_stage_cost_profile *p = s->profile;
    int i = 0;

    while (i < p->n_points && p->points[i].micro_batch <= s->micro_batch) {
        i++;
    }
    return i + 1 < p->n_points
               ? line_s(&p->points[i], &p->points[i + 1], is_bwd, (double)s->micro_batch)
               : 0;
}

void hdt_stage_cost_layer_time(const struct hdt_stage_cost *stage, double *fwd_s, double *bwd_s)
{
    double grown = grown_s(stage, true);

    HDT_ASSERT(stage->tp >= 1 && stage->micro_batch >= 1);
    *fwd_s = profile_s(stage, false);
    *bwd_s = profile_s(stage, true);
    /* Small micro-batches are bound by who launches the work, and there the start of a backward
     * shows; from larger ones it can be told how long the work itself is. */
    if (grown > 0) {
        *bwd_s = min2(*bwd_s, max2(*bwd_s - stage->constants->backward_start_s, grown));
    }
}

/* Share of a layer's forward that its T x T matrices are, by the device's figures; a fused
 * attention has made them again in any case. */
static double score_share(const struct hdt_stage_cost *s)
{
    return s->model->is_fused ? 0 : scores_s(s, false) / s->tp / sample_s(s, false);
}

/* The forward of a whole layer again: measured at the micro-batch or next to it, as the profile has
 * both forwards there. */
static double again_s(const struct hdt_stage_cost *s, double fwd_s)
{
    const struct hdt_stage_cost_profile *p = s->profile;
    int i = 0;

    while (i + 1 < p->n_points && p->points[i].micro_batch < s->micro_batch) {
        i++;
    }
    return p->n_points > 0 && p->points[i].recompute_s > 0 && p->points[i].fwd_s > 0
               ? fwd_s * p->points[i].recompute_s / p->points[i].fwd_s
               : fwd_s;
}

static void head_time(const struct hdt_stage_cost *s, double *fwd_s, double *bwd_s)
{
    const struct hdt_stage_cost_model *m = s->model;
    double n = (double)s->micro_batch, product_s, pass_s;

    if (s->profile->head_fwd_s > 0) {
        *fwd_s = s->profile->head_fwd_s;
        *bwd_s = s->profile->head_bwd_s > 0 ? s->profile->head_bwd_s : 2 * *fwd_s;
        return;
    }
    product_s = 2 * n * m->T * m->head_matrices / s->tp /
                (s->device->flop_per_s * s->constants->matrix_share);
    pass_s = n * m->T * m->V / s->tp * m->value_bytes / s->device->bytes_per_s;
    *fwd_s = product_s + LOGIT_FWD_PASSES * pass_s;
    *bwd_s = 2 * product_s + LOGIT_BWD_PASSES * pass_s;
}

/* Batches and the embedding: half in each direction where the embedding was not measured. */
static void input_time(const struct hdt_stage_cost *s, double *fwd_s, double *bwd_s)
{
    double input_s = s->constants->input_s_per_token * (double)s->micro_batch * s->model->T;

    *fwd_s = s->profile->embed_fwd_s > 0 ? s->profile->embed_fwd_s : input_s / 2;
    *bwd_s = s->profile->embed_bwd_s > 0 ? s->profile->embed_bwd_s : input_s / 2;
}

void hdt_stage_cost_time(const struct hdt_stage_cost *stage, double *fwd_s, double *bwd_s)
{
    double n = (double)stage->n_layers, fwd, bwd, whole_s = group_round_s(stage, rows_bytes(stage));

    hdt_stage_cost_layer_time(stage, &fwd, &bwd);
    if (stage->recompute == HDT_STAGE_COST_KEEP_INPUTS) {
        bwd += again_s(stage, fwd);
    } else if (stage->recompute == HDT_STAGE_COST_KEEP_LINEAR) {
        bwd += fwd * score_share(stage);
    }
    *fwd_s = n * fwd;
    *bwd_s = n * bwd;
    if (stage->is_first) {
        input_time(stage, &fwd, &bwd);
        *fwd_s += fwd + 2 * whole_s; /* each rank of the group has a part of the table */
        *bwd_s += bwd;
    } else {
        *fwd_s += whole_s;
    }
    if (stage->is_last) {
        head_time(stage, &fwd, &bwd);
        *fwd_s += fwd;
        *bwd_s += bwd;
    } else {
        *bwd_s += 2 * whole_s; /* what was sent is wanted whole again, and so is its gradient */
    }
}

void hdt_stage_cost_message(const struct hdt_stage_cost *stage,
                            struct hdt_stage_cost_message *message)
{
    message->bytes = rows_bytes(stage) / stage->tp;
    message->end_s = stage->constants->message_s;
    message->eager_share = min2(1, EAGER_BYTES / message->bytes);
}

double hdt_stage_cost_params(const struct hdt_stage_cost *stage)
{
    const struct hdt_stage_cost_model *m = stage->model;
    double n = (double)stage->n_layers * m->layer_params;

    n += stage->is_first ? m->embed_params : 0;
    n += stage->is_last ? m->head_params : 0;
    n += stage->is_last && !stage->is_first && m->is_tied ? m->table_params : 0;
    return n / stage->tp;
}

double hdt_stage_cost_grad_bytes(const struct hdt_stage_cost *stage)
{
    return hdt_stage_cost_params(stage) * stage->model->grad_bytes;
}

double hdt_stage_cost_tied_bytes(const struct hdt_stage_cost *stage)
{
    return stage->model->table_params * stage->model->grad_bytes / stage->tp;
}

/* Parameters that each rank steps on. */
static double own_params(const struct hdt_stage_cost *stage)
{
    return hdt_stage_cost_params(stage) / stage->optimizer.n_shards;
}

double hdt_stage_cost_step_s(const struct hdt_stage_cost *stage)
{
    double g = stage->model->grad_bytes, own = STEP_NORM_PASSES * g;

    if (stage->profile->step_s_per_param > 0 && !stage->optimizer.on_host) {
        return own_params(stage) * stage->profile->step_s_per_param;
    }
    if (!stage->optimizer.on_host) {
        own += STEP_CLIP_PASSES * g + STEP_WEIGHT_BYTES + 2 * stage->optimizer.moments_bytes;
    }
    return (hdt_stage_cost_params(stage) * STEP_SYNC_PASSES * g + own_params(stage) * own) /
           stage->device->bytes_per_s;
}

double hdt_stage_cost_host_step_bytes(const struct hdt_stage_cost *stage)
{
    double bytes = STEP_WEIGHT_BYTES + 2 * stage->optimizer.moments_bytes +
                   stage->model->grad_bytes + stage->model->value_bytes;

    return stage->optimizer.on_host ? own_params(stage) * bytes : 0;
}

double hdt_stage_cost_down_bytes(const struct hdt_stage_cost *stage)
{
    return stage->optimizer.on_host ? own_params(stage) * stage->model->grad_bytes : 0;
}

double hdt_stage_cost_tied_down_bytes(const struct hdt_stage_cost *stage)
{
    bool is_end = stage->model->is_tied && stage->is_first != stage->is_last;

    return is_end && stage->optimizer.on_host
               ? hdt_stage_cost_tied_bytes(stage) / stage->optimizer.n_shards
               : 0;
}

double hdt_stage_cost_up_bytes(const struct hdt_stage_cost *stage)
{
    return stage->optimizer.on_host ? own_params(stage) * stage->model->value_bytes : 0;
}

double hdt_stage_cost_gather_bytes(const struct hdt_stage_cost *stage)
{
    return stage->optimizer.n_shards > 1 ? hdt_stage_cost_params(stage) * stage->model->value_bytes
                                         : 0;
}

/* Values of a sample that stay from the forward of the layers to their backward. */
static double kept_values(const struct hdt_stage_cost *s)
{
    const struct hdt_stage_cost_model *m = s->model;
    double row = m->T * m->C, whole = WHOLE_ROWS * row, n = (double)s->n_layers;
    double all = whole + (m->layer_kept - whole) / s->tp;

    switch (s->recompute) {
    case HDT_STAGE_COST_KEEP_LINEAR:
        return n * (all - m->scores_kept / s->tp);
    case HDT_STAGE_COST_KEEP_INPUTS:
        return n * row;
    default:
        return n * all;
    }
}

double hdt_stage_cost_work_bytes(const struct hdt_stage_cost *stage)
{
    const struct hdt_stage_cost_model *m = stage->model;
    double values = m->layer_kept / stage->tp + WHOLE_ROWS * m->T * m->C * (1 - 1.0 / stage->tp);

    return stage->recompute == HDT_STAGE_COST_KEEP_INPUTS && stage->n_layers > 0
               ? (double)stage->micro_batch * values * m->value_bytes
               : 0;
}

/* Values of a sample that came from the stage before, or go to the one behind. */
static double input_values(const struct hdt_stage_cost *s)
{
    return s->is_first && s->is_last ? 0 : s->model->T * s->model->C;
}

static void optimizer_memory(const struct hdt_stage_cost *s, struct hdt_stage_cost_memory *memory)
{
    double own = own_params(s), g = s->model->grad_bytes, moments = s->optimizer.moments_bytes;

    if (s->optimizer.on_host) {
        memory->master = memory->moments = 0;
        memory->host_optimizer = own * (4 + moments + g);
    } else {
        /* Weights that are fp32 already are what the optimizer steps on. */
        memory->master = s->model->value_bytes < 4 ? own * 4 : 0;
        memory->moments = own * moments;
        memory->host_optimizer = 0;
    }
    memory->buffers = hdt_stage_cost_params(s) * g + (s->optimizer.on_host ? 0 : own * g);
}

void hdt_stage_cost_memory(const struct hdt_stage_cost *stage, int64_t n_in_flight,
                           struct hdt_stage_cost_memory *memory)
{
    const struct hdt_stage_cost_model *m = stage->model;
    double params = hdt_stage_cost_params(stage), b = (double)stage->micro_batch;
    double slot = b * (kept_values(stage) + input_values(stage)) * m->value_bytes;
    bool leave = stage->activations_on_host && n_in_flight > HDT_STAGE_COST_HOST_SLOTS;
    int64_t n_here = leave ? HDT_STAGE_COST_HOST_SLOTS : n_in_flight;

    memory->weights = params * m->value_bytes;
    memory->grads = params * m->grad_bytes;
    optimizer_memory(stage, memory);
    memory->activations = (double)n_here * slot;
    memory->host_activations = leave ? (double)n_in_flight * slot : 0;
    memory->activations += hdt_stage_cost_work_bytes(stage);
    memory->head = stage->is_last ? LOGIT_COPIES * b * m->T * m->V / stage->tp * m->value_bytes : 0;
    memory->framework = stage->device->framework_bytes;
    memory->total = memory->weights + memory->grads + memory->master + memory->moments +
                    memory->buffers + memory->activations + memory->head + memory->framework;
}
