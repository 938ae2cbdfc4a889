/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/support/pipeline_run.h"
#include "runtime/cpu/cpu_device.h"
#include "src/base/buf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct pipeline {
    const struct pipeline_conf *conf;
    struct hdt_device *devices[PIPELINE_STAGES_MAX];
    struct hdt_stage *stages[PIPELINE_STAGES_MAX];
    int32_t *tokens, *labels;
    double *sumsq;
};

static void must(enum hdt_status status, const struct hdt_error *err)
{
    if (status != HDT_OK) {
        hdt_error_print(err, "pipeline_run");
        abort();
    }
}

void hdt_pipeline_tokens(const struct pipeline_conf *conf, int step, int mb, int32_t *tokens,
                         int32_t *labels)
{
    uint32_t state = (uint32_t)(step * 1000 + mb) * 2654435761u + 12345u;
    int V = (int)conf->model.V;

    for (int b = 0; b < conf->B; b++) {
        int32_t token = (int32_t)(state >> 8) % V;

        for (int t = 0; t < conf->T; t++) {
            tokens[b * conf->T + t] = token;
            state = state * 1664525u + 1013904223u;
            token = (state >> 24 & 3) ? (token * 5 + 7) % V : (int32_t)(state >> 8) % V;
            labels[b * conf->T + t] = token;
        }
    }
}

static void pipeline_open(struct pipeline *p)
{
    const struct pipeline_conf *conf = p->conf;
    struct hdt_error err = {0};
    int unit = 0;

    for (int i = 0; i < conf->n_stages; i++) {
        struct hdt_device_conf device_conf = {.n_threads = conf->threads[i]};
        struct hdt_stage_conf stage_conf = {.model = conf->model,
                                            .first_unit = unit,
                                            .n_units = conf->units[i],
                                            .B = conf->B,
                                            .T = conf->T,
                                            .n_slots = conf->n_slots,
                                            .recompute = conf->recompute,
                                            .seed = conf->seed};

        must(hdt_backend_cpu.device_open(&device_conf, &p->devices[i], &err), &err);
        must(hdt_stage_new(&hdt_backend_cpu, p->devices[i], &stage_conf, &p->stages[i], &err),
             &err);
        hdt_stage_set_loss_scale(p->stages[i], 1.0f / (float)(conf->n_micro * conf->B * conf->T));
        unit += conf->units[i];
    }
    HDT_ASSERT(unit == hdt_model_n_units(&conf->model));
    p->tokens = hdt_calloc((size_t)(conf->B * conf->T), sizeof(*p->tokens));
    p->labels = hdt_calloc((size_t)(conf->B * conf->T), sizeof(*p->labels));
    p->sumsq = hdt_calloc((size_t)hdt_model_n_tensors(&conf->model), sizeof(*p->sumsq));
}

static void pipeline_close(struct pipeline *p)
{
    for (int i = 0; i < p->conf->n_stages; i++) {
        hdt_stage_free(p->stages[i]);
        hdt_backend_cpu.device_close(p->devices[i]);
    }
    free(p->tokens);
    free(p->labels);
    free(p->sumsq);
}

/* Forward of one micro-batch through all stages; its sum of losses. */
static double forward(struct pipeline *p, int step, int mb)
{
    int slot = mb % p->conf->n_slots, last = p->conf->n_stages - 1;
    struct hdt_error err = {0};
    double loss;

    hdt_pipeline_tokens(p->conf, step, mb, p->tokens, p->labels);
    must(hdt_stage_set_tokens(p->stages[0], slot, p->tokens, &err), &err);
    must(hdt_stage_set_labels(p->stages[last], slot, p->labels, &err), &err);
    for (int i = 0; i <= last; i++) {
        if (i > 0) {
            memcpy(hdt_stage_input(p->stages[i], slot), hdt_stage_output(p->stages[i - 1], slot),
                   hdt_stage_activation_bytes(p->stages[i]));
        }
        hdt_stage_forward(p->stages[i], slot, HDT_STAGE_TRAIN);
    }
    must(hdt_stage_loss(p->stages[last], slot, &loss, &err), &err);
    return loss;
}

static void backward(struct pipeline *p, int mb)
{
    int slot = mb % p->conf->n_slots;

    for (int i = p->conf->n_stages - 1; i >= 0; i--) {
        if (p->conf->halves) {
            hdt_stage_backward_input(p->stages[i], slot);
        } else {
            hdt_stage_backward(p->stages[i], slot);
        }
        if (i > 0) {
            memcpy(hdt_stage_output_grad(p->stages[i - 1], slot),
                   hdt_stage_input_grad(p->stages[i], slot),
                   hdt_stage_activation_bytes(p->stages[i]));
        }
    }
}

static void weights(struct pipeline *p, int mb)
{
    for (int i = 0; i < p->conf->n_stages; i++) {
        hdt_stage_backward_weight(p->stages[i], mb % p->conf->n_slots);
    }
}

/* First and last stage of a tied model swap their halves of the gradient. */
static void grads_finish(struct pipeline *p)
{
    struct hdt_stage *first = p->stages[0], *last = p->stages[p->conf->n_stages - 1];
    size_t len = 0;
    float *half = hdt_stage_tied_grad(first, &len), *other;

    if (half) {
        other = hdt_stage_tied_grad(last, &len);
        memcpy(hdt_stage_tied_buffer(first), other, len * sizeof(float));
        memcpy(hdt_stage_tied_buffer(last), half, len * sizeof(float));
    }
    for (int i = 0; i < p->conf->n_stages; i++) {
        hdt_stage_finish_grads(p->stages[i], hdt_stage_tied_buffer(p->stages[i]));
    }
}

static double step_run(struct pipeline *p, int step, double *norm)
{
    const struct pipeline_conf *conf = p->conf;
    struct hdt_adamw adamw = {.lr = 3e-3f,
                              .beta1 = 0.9f,
                              .beta2 = 0.95f,
                              .eps = 1e-8f,
                              .weight_decay = 0.1f,
                              .grad_scale = 1,
                              .step = step + 1};
    double loss = 0, sum = 0;
    int ahead = conf->n_slots - 1 - conf->late;

    for (int i = 0; i < conf->n_stages; i++) {
        hdt_stage_zero_grads(p->stages[i]);
    }
    for (int mb = 0; mb < conf->n_micro + conf->n_slots - 1; mb++) {
        if (mb < conf->n_micro) {
            loss += forward(p, step, mb);
        }
        if (mb >= ahead && mb - ahead < conf->n_micro) {
            backward(p, mb - ahead);
        }
        if (conf->halves && mb >= conf->n_slots - 1) {
            weights(p, mb - (conf->n_slots - 1));
        }
    }
    grads_finish(p);
    for (int i = 0; i < conf->n_stages; i++) {
        must(hdt_stage_grad_sumsq(p->stages[i], p->sumsq + hdt_stage_first_tensor(p->stages[i]),
                                  NULL),
             NULL);
    }
    for (int64_t i = 0; i < hdt_model_n_tensors(&conf->model); i++) {
        sum += p->sumsq[i];
    }
    *norm = sqrt(sum);
    if (conf->clip_norm > 0 && *norm > (double)conf->clip_norm) {
        adamw.grad_scale = (float)((double)conf->clip_norm / *norm);
    }
    for (int i = 0; i < conf->n_stages; i++) {
        hdt_stage_step(p->stages[i], &adamw);
    }
    return loss / (conf->n_micro * conf->B * conf->T);
}

static void result_collect(struct pipeline *p, struct pipeline_result *result)
{
    size_t len = (size_t)hdt_model_n_params(&p->conf->model), at = 0;

    result->weights = hdt_calloc(len, sizeof(float));
    result->grads = hdt_calloc(len, sizeof(float));
    result->moments = hdt_calloc(2 * len, sizeof(float));
    result->len = len;
    for (int i = 0; i < p->conf->n_stages; i++) {
        for (int j = 0; j < hdt_stage_n_tensors(p->stages[i]); j++) {
            struct hdt_stage_tensor t;

            hdt_stage_tensor(p->stages[i], j, &t);
            if (t.info.tied) {
                continue;
            }
            HDT_ASSERT(at + t.len <= len);
            memcpy(result->weights + at, t.w, t.len * sizeof(float));
            memcpy(result->grads + at, t.grad, t.len * sizeof(float));
            memcpy(result->moments + 2 * at, t.m, t.len * sizeof(float));
            memcpy(result->moments + 2 * at + t.len, t.v, t.len * sizeof(float));
            at += t.len;
        }
    }
    HDT_ASSERT(at == len);
}

void hdt_pipeline_run(const struct pipeline_conf *conf, struct pipeline_result *result)
{
    struct pipeline p = {.conf = conf};

    *result = (struct pipeline_result){0};
    pipeline_open(&p);
    result->losses = hdt_calloc((size_t)conf->n_steps, sizeof(double));
    for (int step = 0; step < conf->n_steps; step++) {
        result->losses[step] = step_run(&p, step, &result->norm);
    }
    result_collect(&p, result);
    pipeline_close(&p);
}

void hdt_pipeline_result_release(struct pipeline_result *result)
{
    free(result->losses);
    free(result->weights);
    free(result->moments);
    free(result->grads);
}
