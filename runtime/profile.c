/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Times are the median of a few runs after one that is not counted: the mean would believe the
 * moments in which another process had the core, the minimum those in which the clock was boosted.
 */
#include "runtime/profile.h"

#include "compress/codec.h"
#include "compress/rate.h"
#include "runtime/stage.h"
#include "src/base/buf.h"
#include "src/base/clock.h"

#include <stdlib.h>
#include <string.h>

#define RUNS_MAX       7
#define CAST_BUDGET_MS 40
#define BUDGET_NS      400000000ll /* a unit, once three runs are done */

static int time_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *times, int n)
{
    qsort(times, (size_t)n, sizeof(*times), time_compare);
    return times[n / 2];
}

struct probe {
    const struct hdt_backend *backend;
    struct hdt_device *device;
    const struct hdt_profile_shape *shape;
    struct hdt_stage *stage;
    double fwd_s, bwd_s, step_s;
    uint64_t n_params;
};

/* Inputs that look like a model's: token numbers spread over the vocabulary, small activations. */
static enum hdt_status probe_fill(struct probe *p, struct hdt_error *err)
{
    size_t n = (size_t)(p->shape->micro_batch * p->shape->seq_len), i;
    size_t bytes = hdt_stage_activation_bytes(p->stage);
    int32_t *tokens = hdt_malloc(n * sizeof(*tokens));
    float *values = malloc(bytes);
    enum hdt_status status = values ? HDT_OK : hdt_error_set(err, HDT_ENOMEM, "no memory");

    for (i = 0; i < n; i++) {
        tokens[i] = (int32_t)(i * 7919 % (size_t)p->shape->model.V);
    }
    for (i = 0; values && i < bytes / sizeof(float); i++) {
        values[i] = (float)(i * 2654435761u % 1000) / 1000.0f - 0.5f;
    }
    if (status == HDT_OK && hdt_stage_has_embedding(p->stage)) {
        status = hdt_stage_set_tokens(p->stage, 0, tokens, err);
    } else if (status == HDT_OK) {
        status = hdt_stage_write(p->stage, hdt_stage_input(p->stage, 0), values, bytes, err);
    }
    if (status == HDT_OK && hdt_stage_has_head(p->stage)) {
        status = hdt_stage_set_labels(p->stage, 0, tokens, err);
    } else if (status == HDT_OK) {
        status = hdt_stage_write(p->stage, hdt_stage_output_grad(p->stage, 0), values, bytes, err);
    }
    free(tokens);
    free(values);
    return status;
}

static enum hdt_status probe_run(struct probe *p, double *fwd_s, double *bwd_s,
                                 struct hdt_error *err)
{
    int64_t t0 = hdt_clock_now_ns(), t1;

    HDT_TRY(probe_fill(p, err));
    t0 = hdt_clock_now_ns();
    hdt_stage_forward(p->stage, 0, HDT_STAGE_TRAIN);
    HDT_TRY(hdt_stage_wait(p->stage, err));
    t1 = hdt_clock_now_ns();
    hdt_stage_backward(p->stage, 0);
    HDT_TRY(hdt_stage_wait(p->stage, err));
    *fwd_s = (double)(t1 - t0) / 1e9;
    *bwd_s = (double)(hdt_clock_now_ns() - t1) / 1e9;
    return HDT_OK;
}

/* The end of a step: norm and AdamW. */
static enum hdt_status probe_step(struct probe *p, struct hdt_error *err)
{
    struct hdt_adamw adamw = {
        .lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .grad_scale = 1, .step = 1};
    double *sumsq = hdt_calloc((size_t)hdt_stage_n_tensors(p->stage), sizeof(*sumsq));
    enum hdt_status status = hdt_stage_wait(p->stage, err);
    int64_t t0 = hdt_clock_now_ns();

    hdt_stage_finish_grads(p->stage, NULL);
    if (status == HDT_OK) {
        status = hdt_stage_grad_sumsq(p->stage, sumsq, err);
    }
    if (status == HDT_OK) {
        hdt_stage_step(p->stage, &adamw);
        status = hdt_stage_wait(p->stage, err);
    }
    p->step_s = (double)(hdt_clock_now_ns() - t0) / 1e9;
    free(sumsq);
    return status;
}

static enum hdt_status probe_time(struct probe *p, bool with_step, struct hdt_error *err)
{
    double fwd[RUNS_MAX], bwd[RUNS_MAX], ignored;
    int64_t begin;
    int n = 0;

    HDT_TRY(probe_run(p, &ignored, &ignored, err));
    begin = hdt_clock_now_ns();
    while (n < RUNS_MAX && (n < 3 || hdt_clock_now_ns() - begin < BUDGET_NS)) {
        HDT_TRY(probe_run(p, &fwd[n], &bwd[n], err));
        n++;
    }
    p->fwd_s = median(fwd, n);
    p->bwd_s = median(bwd, n);
    return with_step ? probe_step(p, err) : HDT_OK;
}

static enum hdt_status probe_unit(struct probe *p, int64_t unit, bool with_step,
                                  struct hdt_error *err)
{
    struct hdt_stage_conf conf = {.model = p->shape->model,
                                  .first_unit = (int)unit,
                                  .n_units = 1,
                                  .B = (int)p->shape->micro_batch,
                                  .T = (int)p->shape->seq_len,
                                  .n_slots = 1,
                                  .seed = 1};
    enum hdt_status status;

    HDT_TRY(hdt_stage_new(p->backend, p->device, &conf, &p->stage, err));
    hdt_stage_set_loss_scale(p->stage, 1e-3f);
    hdt_stage_zero_grads(p->stage);
    status = probe_time(p, with_step, err);
    p->n_params = (uint64_t)hdt_model_unit_params(&p->shape->model, unit);
    hdt_stage_free(p->stage);
    p->stage = NULL;
    return status;
}

/* What an op of the list costs beside its arithmetic: here, a wait for nothing. */
static enum hdt_status probe_overhead(struct probe *p, double *seconds, struct hdt_error *err)
{
    struct hdt_stream *stream;
    enum hdt_status status;
    int64_t begin;
    int i;

    HDT_TRY(p->backend->stream_new(p->device, &stream, err));
    begin = hdt_clock_now_ns();
    for (i = 0, status = HDT_OK; i < 100 && status == HDT_OK; i++) {
        status = p->backend->stream_wait(stream, err);
    }
    *seconds = (double)(hdt_clock_now_ns() - begin) / 1e9 / 100;
    p->backend->stream_free(stream);
    return status;
}

enum hdt_status hdt_profile_measure(const struct hdt_backend *backend, struct hdt_device *device,
                                    const struct hdt_profile_shape *shape,
                                    struct hdt_profile *profile, struct hdt_error *err)
{
    struct probe p = {.backend = backend, .device = device, .shape = shape};
    struct hdt_profile out = {.micro_batch = shape->micro_batch, .seq_len = shape->seq_len};
    struct hdt_codec_rate rate;

    HDT_TRY(probe_unit(&p, 0, false, err));
    out.embed_fwd_s = p.fwd_s;
    out.embed_bwd_s = p.bwd_s;
    HDT_TRY(probe_unit(&p, 1, true, err));
    out.block_fwd_s = p.fwd_s;
    out.block_bwd_s = p.bwd_s;
    out.step_s_per_param = p.step_s / (double)p.n_params;
    HDT_TRY(probe_unit(&p, shape->model.L + 1, false, err));
    out.head_fwd_s = p.fwd_s;
    out.head_bwd_s = p.bwd_s;
    HDT_TRY(hdt_codec_rate_measure(&hdt_codec_bf16, HDT_DTYPE_F32, CAST_BUDGET_MS, &rate, err));
    out.cast_bytes_per_s = rate.encode_bytes_per_s;
    HDT_TRY(probe_overhead(&p, &out.op_overhead_s, err));
    out.valid = true;
    *profile = out;
    return HDT_OK;
}

/* ---- the cache ---- */

static bool shape_equal(const struct hdt_profile_shape *a, const struct hdt_profile_shape *b)
{
    const struct hdt_model_config *x = &a->model, *y = &b->model;

    return a->micro_batch == b->micro_batch && a->seq_len == b->seq_len && x->V == y->V &&
           x->C == y->C && x->F == y->F && x->NH == y->NH && x->NKV == y->NKV && x->HS == y->HS;
}

const struct hdt_profile *hdt_profile_cache_find(const struct hdt_profile_cache *cache,
                                                 const struct hdt_profile_shape *shape)
{
    unsigned i, n = cache->n < HDT_PROFILE_CACHE_CAP ? cache->n : HDT_PROFILE_CACHE_CAP;

    for (i = 0; i < n; i++) {
        if (shape_equal(&cache->entries[i].shape, shape)) {
            return &cache->entries[i].profile;
        }
    }
    return NULL;
}

void hdt_profile_cache_add(struct hdt_profile_cache *cache, const struct hdt_profile_shape *shape,
                           const struct hdt_profile *profile)
{
    unsigned i = cache->n++ % HDT_PROFILE_CACHE_CAP;

    cache->entries[i].shape = *shape;
    cache->entries[i].profile = *profile;
}
