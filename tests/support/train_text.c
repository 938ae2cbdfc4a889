/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trains a byte-level model on a text in one process, without workers and gateways: to choose
 * sizes and learning rates, and to see what a federated run must reach.
 *
 *     train_text CONFIG.json TEXT B T MICRO_BATCHES STEPS LR WARMUP THREADS
 *
 * The last 5 % of the text are held out. Prints the byte-pair cross-entropy of the held-out part
 * (add-one smoothing over the training part), a loss curve, the held-out loss and a sample.
 */
#include "config.h"

#include "runtime/cpu/cpu_device.h"
#include "runtime/generate.h"
#include "runtime/stage.h"
#include "src/base/buf.h"
#include "src/core/model.h"
#include "tests/support/args.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define V_BYTES 256

struct run {
    struct hdt_stage *stage;
    int32_t *text; /* n_train training tokens, then n_valid held-out ones */
    size_t n_train, n_valid;
    int B, T, n_micro, n_steps, warmup;
    double lr;
    uint64_t random;
    int32_t *tokens, *labels;
    double *sumsq;
};

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void check(enum hdt_status status, const struct hdt_error *err)
{
    if (status != HDT_OK) {
        hdt_error_print(err, "train_text");
        exit(2);
    }
}

static void text_read(struct run *run, const char *path)
{
    FILE *file = fopen(path, "rb");
    size_t cap = (size_t)1 << 26, len = 0;
    int c;

    if (!file) {
        fprintf(stderr, "train_text: cannot open '%s'\n", path);
        exit(2);
    }
    run->text = hdt_malloc(cap * sizeof(*run->text));
    while ((c = fgetc(file)) != EOF && len < cap) {
        run->text[len++] = c;
    }
    fclose(file);
    run->n_valid = len / 20;
    run->n_train = len - run->n_valid;
}

static double byte_pairs_loss(const struct run *run)
{
    double *count = hdt_calloc((size_t)V_BYTES * V_BYTES, sizeof(*count)), loss = 0;
    double *total = hdt_calloc(V_BYTES, sizeof(*total));
    const int32_t *valid = run->text + run->n_train;

    for (size_t i = 0; i + 1 < run->n_train; i++) {
        count[run->text[i] * V_BYTES + run->text[i + 1]]++;
        total[run->text[i]]++;
    }
    for (size_t i = 0; i + 1 < run->n_valid; i++) {
        loss -= log((count[valid[i] * V_BYTES + valid[i + 1]] + 1) / (total[valid[i]] + V_BYTES));
    }
    free(total);
    free(count);
    return loss / (double)(run->n_valid - 1);
}

static uint64_t random_next(struct run *run)
{
    run->random ^= run->random << 13;
    run->random ^= run->random >> 7;
    run->random ^= run->random << 17;
    return run->random;
}

static double micro_batch_run(struct run *run)
{
    struct hdt_error err = {0};
    double loss;

    for (int b = 0; b < run->B; b++) {
        size_t at = random_next(run) % (run->n_train - (size_t)run->T - 1);

        for (int t = 0; t < run->T; t++) {
            run->tokens[b * run->T + t] = run->text[at + (size_t)t];
            run->labels[b * run->T + t] = run->text[at + (size_t)t + 1];
        }
    }
    check(hdt_stage_set_tokens(run->stage, 0, run->tokens, &err), &err);
    check(hdt_stage_set_labels(run->stage, 0, run->labels, &err), &err);
    hdt_stage_forward(run->stage, 0, HDT_STAGE_TRAIN);
    check(hdt_stage_loss(run->stage, 0, &loss, &err), &err);
    hdt_stage_backward(run->stage, 0);
    return loss;
}

static double learning_rate(const struct run *run, int step)
{
    double done = (double)(step - run->warmup) / (double)(run->n_steps - run->warmup);

    if (step < run->warmup) {
        return run->lr * (step + 1) / run->warmup;
    }
    return run->lr * (0.1 + 0.9 * 0.5 * (1 + cos(M_PI * done)));
}

static double step_run(struct run *run, int step)
{
    struct hdt_adamw adamw = {.lr = (float)learning_rate(run, step),
                              .beta1 = 0.9f,
                              .beta2 = 0.95f,
                              .eps = 1e-8f,
                              .weight_decay = 0.1f,
                              .step = step + 1};
    double loss = 0, sum = 0;
    struct hdt_error err = {0};

    hdt_stage_zero_grads(run->stage);
    for (int i = 0; i < run->n_micro; i++) {
        loss += micro_batch_run(run);
    }
    hdt_stage_finish_grads(run->stage, NULL);
    check(hdt_stage_grad_sumsq(run->stage, run->sumsq, &err), &err);
    for (int i = 0; i < hdt_stage_n_tensors(run->stage); i++) {
        sum += run->sumsq[i];
    }
    adamw.grad_scale = (float)fmin(1.0, 1.0 / (sqrt(sum) + 1e-6));
    hdt_stage_step(run->stage, &adamw);
    return loss / (run->n_micro * run->B * run->T);
}

static bool token_print(void *arg, int32_t token)
{
    (void)arg;
    putchar(token);
    return true;
}

static void train(struct run *run)
{
    double start = now_s(), window = 0;
    int every = run->n_steps > 20 ? run->n_steps / 20 : 1;

    for (int step = 0; step < run->n_steps; step++) {
        window += step_run(run, step);
        if ((step + 1) % every == 0) {
            double s = now_s() - start;

            printf("step %4d  loss %.4f  %.0f tokens/s  %.1f s\n", step + 1, window / every,
                   (step + 1.0) * run->n_micro * run->B * run->T / s, s);
            fflush(stdout);
            window = 0;
        }
    }
}

static void run_report(struct run *run)
{
    static const int32_t prompt[] = {'A', 'n', 'd', ' '};
    struct hdt_sampling sampling = {.temperature = 0.8, .top_k = 40, .seed = 1};
    struct hdt_error err = {0};
    double loss, start = now_s();

    check(hdt_evaluate(run->stage, run->text + run->n_train, run->n_valid, &loss, &err), &err);
    printf("held-out loss %.4f, byte pairs %.4f  (%.1f s)\nAnd ", loss, byte_pairs_loss(run),
           now_s() - start);
    start = now_s();
    check(hdt_generate(run->stage, &sampling, prompt, 4, 300, token_print, NULL, &err), &err);
    printf("\n(%.2f s)\n", now_s() - start);
}

int main(int argc, char **argv)
{
    struct hdt_stage_conf conf = {.n_slots = 1, .seed = 1};
    struct hdt_device_conf device_conf = {0};
    struct run run = {.random = 88172645463325252u};
    struct hdt_device *device;
    struct hdt_error err = {0};

    if (argc != 10) {
        fprintf(stderr, "usage: train_text CONFIG.json TEXT B T MICRO_BATCHES STEPS LR WARMUP "
                        "THREADS\n");
        return 2;
    }
    check(hdt_model_load(argv[1], &conf.model, &err), &err);
    text_read(&run, argv[2]);
    run.B = conf.B = hdt_args_int(argv[3], 1);
    run.T = conf.T = hdt_args_int(argv[4], 1);
    run.n_micro = hdt_args_int(argv[5], 1);
    run.n_steps = hdt_args_int(argv[6], 1);
    run.lr = hdt_args_double(argv[7]);
    run.warmup = hdt_args_int(argv[8], 1);
    device_conf.n_threads = hdt_args_int(argv[9], 1);
    conf.n_units = (int)hdt_model_n_units(&conf.model);
    check(hdt_backend_cpu.device_open(&device_conf, &device, &err), &err);
    check(hdt_stage_new(&hdt_backend_cpu, device, &conf, &run.stage, &err), &err);
    hdt_stage_set_loss_scale(run.stage, 1.0f / (float)(run.n_micro * run.B * run.T));
    run.tokens = hdt_calloc((size_t)(run.B * run.T), sizeof(*run.tokens));
    run.labels = hdt_calloc((size_t)(run.B * run.T), sizeof(*run.labels));
    run.sumsq = hdt_calloc((size_t)hdt_stage_n_tensors(run.stage), sizeof(*run.sumsq));
    printf("%.2f M parameters\n", (double)hdt_model_n_params(&conf.model) / 1e6);
    train(&run);
    run_report(&run);
    free(run.sumsq);
    free(run.labels);
    free(run.tokens);
    free(run.text);
    hdt_stage_free(run.stage);
    hdt_backend_cpu.device_close(device);
    return 0;
}
