/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training speed of one process on the cpu backend:
 *
 *     bench_cpu_train CONFIG.json B T MICRO_BATCHES STEPS THREADS
 *
 * Prints tokens per second of each step after one step of warm-up, one a line. A step is what a
 * worker does: zero gradients, forward and backward of each micro-batch, norm, clipping, AdamW.
 */
#include "config.h"

#include "runtime/cpu/cpu_device.h"
#include "runtime/stage.h"
#include "src/base/buf.h"
#include "src/core/model.h"
#include "tests/support/args.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void slot_fill(struct hdt_stage *stage, int n, int V, unsigned seed)
{
    int32_t *rows = hdt_calloc((size_t)n, sizeof(*rows));

    for (int i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        rows[i] = (int32_t)(seed >> 8) % V;
    }
    hdt_stage_set_tokens(stage, 0, rows, NULL);
    hdt_stage_set_labels(stage, 0, rows, NULL);
    free(rows);
}

static double step_run(struct hdt_stage *stage, int n_micro, int64_t step)
{
    const struct hdt_stage_conf *conf = hdt_stage_conf(stage);
    struct hdt_adamw adamw = {.lr = 1e-3f,
                              .beta1 = 0.9f,
                              .beta2 = 0.95f,
                              .eps = 1e-8f,
                              .weight_decay = 0.1f,
                              .grad_scale = 1,
                              .step = step};
    double *sumsq = hdt_calloc((size_t)hdt_stage_n_tensors(stage), sizeof(*sumsq));
    double loss, sum = 0, start = now_s();

    hdt_stage_zero_grads(stage);
    for (int i = 0; i < n_micro; i++) {
        slot_fill(stage, conf->B * conf->T, (int)conf->model.V, (unsigned)(step * 1000 + i));
        hdt_stage_forward(stage, 0, HDT_STAGE_TRAIN);
        hdt_stage_loss(stage, 0, &loss, NULL);
        hdt_stage_backward(stage, 0);
    }
    hdt_stage_finish_grads(stage, NULL);
    hdt_stage_grad_sumsq(stage, sumsq, NULL);
    for (int i = 0; i < hdt_stage_n_tensors(stage); i++) {
        sum += sumsq[i];
    }
    adamw.grad_scale = (float)fmin(1.0, 1.0 / (sqrt(sum) + 1e-6));
    hdt_stage_step(stage, &adamw);
    hdt_stage_wait(stage, NULL);
    free(sumsq);
    return now_s() - start;
}

int main(int argc, char **argv)
{
    struct hdt_stage_conf conf = {.n_slots = 1, .seed = 1};
    struct hdt_device_conf device_conf = {0};
    struct hdt_device *device;
    struct hdt_stage *stage;
    struct hdt_error err = {0};
    int n_micro, n_steps;

    if (argc != 7) {
        fprintf(stderr, "usage: bench_cpu_train CONFIG.json B T MICRO_BATCHES STEPS THREADS\n");
        return 2;
    }
    conf.B = hdt_args_int(argv[2], 1);
    conf.T = hdt_args_int(argv[3], 1);
    n_micro = hdt_args_int(argv[4], 1);
    n_steps = hdt_args_int(argv[5], 1);
    device_conf.n_threads = hdt_args_int(argv[6], 1);
    if (hdt_model_load(argv[1], &conf.model, &err) != HDT_OK) {
        hdt_error_print(&err, "bench_cpu_train");
        return 2;
    }
    conf.n_units = (int)hdt_model_n_units(&conf.model);
    if (hdt_backend_cpu.device_open(&device_conf, &device, &err) != HDT_OK ||
        hdt_stage_new(&hdt_backend_cpu, device, &conf, &stage, &err) != HDT_OK) {
        hdt_error_print(&err, "bench_cpu_train");
        return 2;
    }
    hdt_stage_set_loss_scale(stage, 1.0f / (float)(n_micro * conf.B * conf.T));
    step_run(stage, n_micro, 1);
    for (int step = 2; step < 2 + n_steps; step++) {
        double s = step_run(stage, n_micro, step);

        printf("%.1f\n", n_micro * conf.B * conf.T / s);
    }
    hdt_stage_free(stage);
    hdt_backend_cpu.device_close(device);
    return 0;
}
