/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trains a model for a few steps of one micro-batch, for comparison with another implementation:
 *
 *     model_dump CONFIG.json TOKENS B T STEPS OUT [BACKEND [fp32|bf16|fp8 [LR WARMUP]]]
 *
 * on the cpu in fp32, or on the first device of another backend; the learning rate grows to LR
 * [1e-3] over WARMUP [1] steps. TOKENS has B (T + 1) int32 or some
 * times as many, of which each step takes the next ones: each row's tokens and, one to the right,
 * its labels. OUT gets, for each tensor but a tied head, a line "name rows cols" followed by three
 * float32 arrays: first weights, gradient of the first step (before clipping), weights after the
 * last step; and in fp32 a line "logits 1 V" and the first weights' float32 logits behind the first
 * row's tokens. Losses of all steps go to standard output, one a line.
 *
 * Exit status: 2 for wrong usage, 77 when the backend or its device is not here.
 */
#include "config.h"

#include "runtime/backend_find.h"
#include "runtime/stage.h"
#include "src/base/buf.h"
#include "src/core/job.h"
#include "src/core/model.h"
#include "tests/support/args.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct dump {
    struct hdt_device *device;
    struct hdt_stage *stage;
    int32_t *tokens, *labels; /* (n_batches, B T) */
    int n_batches;
    float **first, **grads; /* of each tensor */
    float *logits;          /* (V), or NULL */
    double lr;
    int warmup;
};

static const struct hdt_adamw adamw = {
    .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .grad_scale = 1};

static void must(enum hdt_status status, const struct hdt_error *err)
{
    if (status != HDT_OK) {
        hdt_error_print(err, "model_dump");
        exit(status == HDT_ENOENT || status == HDT_ENOTSUP ? 77 : 2);
    }
}

static void tokens_read(struct dump *d, const char *path, int B, int T)
{
    const size_t n = (size_t)B * (size_t)(T + 1);
    int32_t *rows = hdt_calloc(n, sizeof(*rows));
    FILE *file = fopen(path, "rb");

    while (file && fread(rows, sizeof(*rows), n, file) == n) {
        const size_t at = (size_t)d->n_batches++ * (size_t)B * (size_t)T;
        const size_t len = (at + (size_t)B * (size_t)T) * sizeof(*rows);

        d->tokens = hdt_realloc(d->tokens, len);
        d->labels = hdt_realloc(d->labels, len);
        for (int i = 0; i < B * T; i++) {
            d->tokens[at + (size_t)i] = rows[i / T * (T + 1) + i % T];
            d->labels[at + (size_t)i] = rows[i / T * (T + 1) + i % T + 1];
        }
    }
    if (d->n_batches == 0) {
        fprintf(stderr, "model_dump: cannot read %zu tokens from '%s'\n", n, path);
        exit(2);
    }
    fclose(file);
    free(rows);
}

static float *array_read(struct dump *d, const float *mem, size_t len)
{
    float *host = hdt_malloc(len * sizeof(*host));

    hdt_stage_read(d->stage, host, mem, len * sizeof(*host), NULL);
    return host;
}

/* One step; keeps the gradients of the first. Returns the mean loss of n tokens. */
static double step_run(struct dump *d, int step, int n)
{
    const size_t at = (size_t)((step - 1) % d->n_batches) * (size_t)n;
    int n_tensors = hdt_stage_n_tensors(d->stage);
    double *sumsq = hdt_calloc((size_t)n_tensors, sizeof(*sumsq)), loss, total = 0;
    struct hdt_adamw p = adamw;
    struct hdt_error err = {0};

    must(hdt_stage_set_tokens(d->stage, 0, d->tokens + at, &err), &err);
    must(hdt_stage_set_labels(d->stage, 0, d->labels + at, &err), &err);
    hdt_stage_zero_grads(d->stage);
    hdt_stage_forward(d->stage, 0, HDT_STAGE_TRAIN);
    must(hdt_stage_loss(d->stage, 0, &loss, &err), &err);
    hdt_stage_backward(d->stage, 0);
    hdt_stage_finish_grads(d->stage, NULL);
    hdt_stage_grad_sumsq(d->stage, sumsq, NULL);
    for (int i = 0; i < n_tensors; i++) {
        struct hdt_stage_tensor view;

        hdt_stage_tensor(d->stage, i, &view);
        if (step == 1) {
            d->first[i] = array_read(d, view.w, view.len);
            d->grads[i] = array_read(d, view.grad, view.len);
        }
        total += sumsq[i];
    }
    p.grad_scale = (float)(1.0 / (sqrt(total) + 1e-6));
    p.grad_scale = p.grad_scale < 1 ? p.grad_scale : 1;
    p.step = step;
    p.lr = (float)(d->lr * (step < d->warmup ? (double)step / d->warmup : 1));
    hdt_stage_step(d->stage, &p);
    free(sumsq);
    return loss / n;
}

static void dump_write(struct dump *d, const char *path, int64_t V)
{
    FILE *file = fopen(path, "wb");

    for (int i = 0; file && i < hdt_stage_n_tensors(d->stage); i++) {
        struct hdt_stage_tensor view;
        float *last;

        hdt_stage_tensor(d->stage, i, &view);
        if (view.shared) {
            continue;
        }
        last = array_read(d, view.w, view.len);
        fprintf(file, "%s %lld %lld\n", view.info.name, (long long)view.info.rows,
                (long long)view.info.cols);
        fwrite(d->first[i], sizeof(float), view.len, file);
        fwrite(d->grads[i], sizeof(float), view.len, file);
        fwrite(last, sizeof(float), view.len, file);
        free(last);
    }
    if (file && d->logits) {
        fprintf(file, "logits 1 %lld\n", (long long)V);
        fwrite(d->logits, sizeof(float), (size_t)V, file);
    }
    if (!file || fclose(file) != 0) {
        fprintf(stderr, "model_dump: cannot write '%s'\n", path);
        exit(2);
    }
}

/* Of the first row, whole. */
static float *logits_run(struct dump *d, const struct hdt_stage_conf *conf)
{
    float *logits = hdt_calloc((size_t)conf->model.V, sizeof(*logits));
    struct hdt_error err = {0};

    must(hdt_stage_decode(d->stage, d->tokens, 0, conf->T, logits, &err), &err);
    return logits;
}

static void dump_free(struct dump *d, const struct hdt_backend *backend)
{
    for (int i = 0; i < hdt_stage_n_tensors(d->stage); i++) {
        free(d->first[i]);
        free(d->grads[i]);
    }
    free(d->first);
    free(d->grads);
    free(d->tokens);
    free(d->labels);
    free(d->logits);
    hdt_stage_free(d->stage);
    backend->device_close(d->device);
}

int main(int argc, char **argv)
{
    const int precision = argc > 8 ? hdt_job_precision_of(argv[8]) : HDT_JOB_FP32;
    struct hdt_stage_conf conf = {.n_slots = 1, .seed = 7};
    struct hdt_device_conf device_conf = {.n_threads = 2};
    const struct hdt_backend *backend;
    struct hdt_error err = {0};
    struct dump d = {0};
    int n_steps;

    if (argc < 7 || argc > 11 || argc == 10 || precision < 0) {
        fprintf(stderr, "usage: model_dump CONFIG.json TOKENS B T STEPS OUT "
                        "[BACKEND [fp32|bf16|fp8 [LR WARMUP]]]\n");
        return 2;
    }
    conf.B = hdt_args_int(argv[3], 1);
    conf.T = hdt_args_int(argv[4], 1);
    n_steps = hdt_args_int(argv[5], 1);
    d.lr = argc > 9 ? strtod(argv[9], NULL) : 1e-3;
    d.warmup = argc > 10 ? hdt_args_int(argv[10], 1) : 1;
    conf.fp8 = precision == HDT_JOB_FP8;
    conf.mixed = precision != HDT_JOB_FP32;
    must(hdt_model_load(argv[1], &conf.model, &err), &err);
    conf.n_units = (int)hdt_model_n_units(&conf.model);
    must(hdt_backend_open(argc > 7 ? argv[7] : "cpu", &device_conf, &backend, &d.device, &err),
         &err);
    must(hdt_stage_new(backend, d.device, &conf, &d.stage, &err), &err);
    tokens_read(&d, argv[2], conf.B, conf.T);
    d.first = hdt_calloc((size_t)hdt_stage_n_tensors(d.stage), sizeof(*d.first));
    d.grads = hdt_calloc((size_t)hdt_stage_n_tensors(d.stage), sizeof(*d.grads));
    hdt_stage_set_loss_scale(d.stage, 1.0f / (float)(conf.B * conf.T));
    if (!conf.mixed) {
        d.logits = logits_run(&d, &conf);
    }
    for (int step = 1; step <= n_steps; step++) {
        printf("%.17g\n", step_run(&d, step, conf.B * conf.T));
    }
    dump_write(&d, argv[6], conf.model.V);
    dump_free(&d, backend);
    return 0;
}
