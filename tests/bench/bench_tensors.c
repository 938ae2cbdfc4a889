/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors of a real training run, for benches of codecs: trains a byte-level model on a text as a
 * pipeline of two stages, and writes what the two would hold and exchange.
 *
 *     bench_tensors CONFIG.json TEXT B T MICRO_BATCHES STEPS THREADS DIR
 *
 * Writes weights, moments, grads, activations and activation-grads.safetensors into DIR, all fp32:
 * the activations and their gradients at the cut, of every micro-batch of the last step; gradients
 * summed over that step. Prints the loss of the first and of the last step.
 */
#include "config.h"

#include "runtime/cpu/cpu_device.h"
#include "runtime/stage.h"
#include "src/base/buf.h"
#include "src/core/model.h"
#include "src/core/safetensors.h"
#include "tests/support/args.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_STAGES 2
#define LR       4e-3
#define TEXT_MAX ((size_t)1 << 26)

struct run {
    struct hdt_stage *stages[N_STAGES];
    uint8_t *text;
    size_t text_len;
    int B, T, n_micro, n_steps;
    uint64_t random;
    int32_t *tokens, *labels;
    float *kept[2];  /* (n_micro, B, T, C): activations, their gradients */
    size_t kept_len; /* floats of a micro-batch */
};

static void check(enum hdt_status status, const struct hdt_error *err)
{
    if (status != HDT_OK) {
        hdt_error_print(err, "bench_tensors");
        exit(1);
    }
}

static void text_read(struct run *run, const char *path)
{
    FILE *file = fopen(path, "rb");

    if (!file) {
        fprintf(stderr, "bench_tensors: cannot open '%s'\n", path);
        exit(2);
    }
    run->text = hdt_malloc(TEXT_MAX);
    run->text_len = fread(run->text, 1, TEXT_MAX, file);
    fclose(file);
    if (run->text_len < (size_t)run->T * 16) {
        fprintf(stderr, "bench_tensors: '%s' is too short\n", path);
        exit(2);
    }
}

static void batch_draw(struct run *run)
{
    for (int b = 0; b < run->B; b++) {
        size_t at;

        run->random = run->random * 6364136223846793005u + 1442695040888963407u;
        at = (size_t)(run->random >> 20) % (run->text_len - (size_t)run->T - 1);
        for (int t = 0; t < run->T; t++) {
            run->tokens[b * run->T + t] = run->text[at + (size_t)t];
            run->labels[b * run->T + t] = run->text[at + (size_t)t + 1];
        }
    }
}

/* What the cut carries goes through kept[] from one stage to the other. */
static double micro_batch_run(struct run *run, int i)
{
    struct hdt_stage *first = run->stages[0], *last = run->stages[1];
    const size_t bytes = run->kept_len * sizeof(float);
    float *x = run->kept[0] + (size_t)i * run->kept_len;
    float *dx = run->kept[1] + (size_t)i * run->kept_len;
    struct hdt_error err = {0};
    double loss;

    batch_draw(run);
    check(hdt_stage_set_tokens(first, 0, run->tokens, &err), &err);
    check(hdt_stage_set_labels(last, 0, run->labels, &err), &err);
    hdt_stage_forward(first, 0, HDT_STAGE_TRAIN);
    check(hdt_stage_read(first, x, hdt_stage_output(first, 0), bytes, &err), &err);
    check(hdt_stage_write(last, hdt_stage_input(last, 0), x, bytes, &err), &err);
    hdt_stage_forward(last, 0, HDT_STAGE_TRAIN);
    check(hdt_stage_loss(last, 0, &loss, &err), &err);
    hdt_stage_backward(last, 0);
    check(hdt_stage_read(last, dx, hdt_stage_input_grad(last, 0), bytes, &err), &err);
    check(hdt_stage_write(first, hdt_stage_output_grad(first, 0), dx, bytes, &err), &err);
    hdt_stage_backward(first, 0);
    return loss;
}

static double step_run(struct run *run, int step)
{
    struct hdt_adamw adamw = {.lr = (float)(step < 10 ? LR * (step + 1) / 10 : LR),
                              .beta1 = 0.9f,
                              .beta2 = 0.95f,
                              .eps = 1e-8f,
                              .weight_decay = 0.1f,
                              .step = step + 1};
    double loss = 0, sum = 0, sumsq[1024];
    struct hdt_error err = {0};

    for (int s = 0; s < N_STAGES; s++) {
        hdt_stage_zero_grads(run->stages[s]);
    }
    for (int i = 0; i < run->n_micro; i++) {
        loss += micro_batch_run(run, i);
    }
    for (int s = 0; s < N_STAGES; s++) {
        int n = hdt_stage_n_tensors(run->stages[s]);

        HDT_ASSERT(n <= (int)(sizeof(sumsq) / sizeof(sumsq[0])));
        hdt_stage_finish_grads(run->stages[s], NULL);
        check(hdt_stage_grad_sumsq(run->stages[s], sumsq, &err), &err);
        for (int i = 0; i < n; i++) {
            sum += sumsq[i];
        }
    }
    adamw.grad_scale = (float)fmin(1.0, 1.0 / (sqrt(sum) + 1e-6));
    for (int s = 0; s < N_STAGES; s++) {
        hdt_stage_step(run->stages[s], &adamw);
        check(hdt_stage_wait(run->stages[s], &err), &err);
    }
    return loss / (double)(run->n_micro * run->B * run->T);
}

/* ---- files ---- */

static struct hdt_safetensors_writer *file_open(const char *dir, const char *name)
{
    struct hdt_safetensors_writer *writer;
    struct hdt_error err = {0};
    char *path = hdt_asprintf("%s/%s.safetensors", dir, name);

    check(hdt_safetensors_writer_open(path, &writer, &err), &err);
    free(path);
    return writer;
}

static void tensor_declare(struct hdt_safetensors_writer *writer, const char *name, size_t len)
{
    struct hdt_safetensors_entry entry = {
        .name = name, .dtype = HDT_DTYPE_F32, .n_dims = 1, .shape = {len}};
    struct hdt_error err = {0};

    check(hdt_safetensors_writer_declare(writer, &entry, &err), &err);
}

static float *tensor_part(const struct hdt_stage_tensor *tensor, char kind)
{
    return kind == 'w'   ? tensor->w
           : kind == 'g' ? tensor->grad
           : kind == 'm' ? tensor->m
                         : tensor->v;
}

/* One tensor of each kind for each weight; `kinds` of w, g, m, v. */
static void tensors_write(struct run *run, const char *dir, const char *file, const char *kinds)
{
    struct hdt_safetensors_writer *writer = file_open(dir, file);
    struct hdt_error err = {0};
    size_t idx = 0;

    for (int pass = 0; pass < 2; pass++) {
        for (int s = 0; s < N_STAGES; s++) {
            for (int i = 0; i < hdt_stage_n_tensors(run->stages[s]); i++) {
                struct hdt_stage_tensor tensor;

                hdt_stage_tensor(run->stages[s], i, &tensor);
                for (const char *kind = kinds; *kind; kind++) {
                    char *name = hdt_asprintf("%d.%d.%c", s, i, *kind);

                    if (pass == 0) {
                        tensor_declare(writer, name, tensor.len);
                    } else {
                        check(hdt_safetensors_writer_append(writer, idx++,
                                                            tensor_part(&tensor, *kind),
                                                            tensor.len * sizeof(float), &err),
                              &err);
                    }
                    free(name);
                }
            }
        }
        if (pass == 0) {
            check(hdt_safetensors_writer_begin(writer, &err), &err);
        }
    }
    check(hdt_safetensors_writer_close(writer, &err), &err);
}

static void kept_write(struct run *run, const char *dir, const char *file, const float *kept)
{
    struct hdt_safetensors_writer *writer = file_open(dir, file);
    struct hdt_error err = {0};

    for (int i = 0; i < run->n_micro; i++) {
        char *name = hdt_asprintf("micro-batch-%d", i);

        tensor_declare(writer, name, run->kept_len);
        free(name);
    }
    check(hdt_safetensors_writer_begin(writer, &err), &err);
    for (int i = 0; i < run->n_micro; i++) {
        check(hdt_safetensors_writer_append(writer, (size_t)i, kept + (size_t)i * run->kept_len,
                                            run->kept_len * sizeof(float), &err),
              &err);
    }
    check(hdt_safetensors_writer_close(writer, &err), &err);
}

static void stages_open(struct run *run, const char *config, struct hdt_device *device)
{
    struct hdt_stage_conf conf = {.n_slots = 1, .seed = 1, .B = run->B, .T = run->T};
    struct hdt_error err = {0};
    int n_units;

    check(hdt_model_load(config, &conf.model, &err), &err);
    n_units = (int)hdt_model_n_units(&conf.model);
    for (int s = 0; s < N_STAGES; s++) {
        conf.first_unit = s * n_units / N_STAGES;
        conf.n_units = (s + 1) * n_units / N_STAGES - conf.first_unit;
        check(hdt_stage_new(&hdt_backend_cpu, device, &conf, &run->stages[s], &err), &err);
        hdt_stage_set_loss_scale(run->stages[s], 1.0f / (float)(run->n_micro * run->B * run->T));
    }
    run->kept_len = hdt_stage_activation_bytes(run->stages[0]) / sizeof(float);
    run->kept[0] = hdt_calloc((size_t)run->n_micro * run->kept_len, sizeof(float));
    run->kept[1] = hdt_calloc((size_t)run->n_micro * run->kept_len, sizeof(float));
    run->tokens = hdt_calloc((size_t)(run->B * run->T), sizeof(int32_t));
    run->labels = hdt_calloc((size_t)(run->B * run->T), sizeof(int32_t));
}

static void run_release(struct run *run)
{
    for (int s = 0; s < N_STAGES; s++) {
        hdt_stage_free(run->stages[s]);
        free(run->kept[s]);
    }
    free(run->tokens);
    free(run->labels);
    free(run->text);
}

int main(int argc, char **argv)
{
    struct hdt_device_conf device_conf = {0};
    struct run run = {.random = 1};
    struct hdt_device *device;
    struct hdt_error err = {0};
    double first = 0, last = 0;

    if (argc != 9) {
        fprintf(stderr,
                "usage: bench_tensors CONFIG.json TEXT B T MICRO_BATCHES STEPS THREADS DIR\n");
        return 2;
    }
    run.B = hdt_args_int(argv[3], 1);
    run.T = hdt_args_int(argv[4], 1);
    run.n_micro = hdt_args_int(argv[5], 1);
    run.n_steps = hdt_args_int(argv[6], 1);
    device_conf.n_threads = hdt_args_int(argv[7], 1);
    text_read(&run, argv[2]);
    check(hdt_backend_cpu.device_open(&device_conf, &device, &err), &err);
    stages_open(&run, argv[1], device);
    for (int step = 0; step < run.n_steps; step++) {
        last = step_run(&run, step);
        first = step == 0 ? last : first;
    }
    printf("loss %.3f, after %d steps %.3f\n", first, run.n_steps, last);
    tensors_write(&run, argv[8], "weights", "w");
    tensors_write(&run, argv[8], "moments", "mv");
    tensors_write(&run, argv[8], "grads", "g");
    kept_write(&run, argv[8], "activations", run.kept[0]);
    kept_write(&run, argv[8], "activation-grads", run.kept[1]);
    run_release(&run);
    hdt_backend_cpu.device_close(device);
    return 0;
}
