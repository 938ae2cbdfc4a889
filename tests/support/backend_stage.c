/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trains a small model on a backend and on the cpu backend, from the same weights on the same
 * tokens, and compares:
 *
 *     backend_stage [--mixed | --fp8] [NAME]       the module's name; default: both, cpu
 *
 * The first step's loss and the gradient of each tensor, then the losses of some steps: for a whole
 * model, with tied matrices, with recompute, and with a backward in two halves. --mixed: products
 * of bf16 on the backend (cpu: by their definition, mixed_ref.h), float32 on the cpu, with wider
 * limits; --fp8: and in the blocks products of FP8. A second run must give the same bits, and so
 * must recompute and a backward in two halves.
 *
 * Exit status: 0 all right, 1 a miss, 2 wrong usage, 77 the backend or its device is not here.
 */
#include "config.h"

#include "runtime/backend_find.h"
#include "runtime/stage.h"
#include "src/base/buf.h"
#include "tests/support/mixed_ref.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEED           20240617u
#define N_STEPS        16
#define N_STEPS_PLAIN8 6 /* of the plain products of FP8, which take their time */
#define N_MICRO        2

struct limits {
    double loss, grad, curve; /* relative */
};

static const struct limits limits32 = {1e-6, 1e-4, 1e-4};
/* bf16 has 8 bits: a rounding is 2e-3, and a gradient goes through some. */
static const struct limits limits16 = {1e-3, 3e-2, 5e-3};
/* E4M3 has 4 bits, E5M2 3: roundings of 3 and 6 %, of many terms, whose errors are independent. */
static const struct limits limits8 = {1e-2, 2e-1, 2e-2};

struct kind {
    const char *name;
    bool tied, recompute, split;
};

static const struct kind kinds[] = {
    {.name = "whole"},
    {.name = "tied", .tied = true},
    {.name = "recompute", .recompute = true},
    {.name = "two halves", .split = true},
};

struct side {
    const struct hdt_backend *backend;
    struct hdt_device *device;
};

/* What a run leaves to compare. */
struct outcome {
    double losses[N_STEPS];
    int n_tensors;
    size_t *lens;
    float **grads; /* of the first step */
};

static int n_misses;
static unsigned n_steps = N_STEPS;
static int ffn = 328; /* FP8 takes multiples of 16 */

static void must(enum hdt_status status, const struct hdt_error *err)
{
    if (status != HDT_OK) {
        hdt_error_print(err, "backend_stage");
        exit(status == HDT_ENOENT || status == HDT_ENOTSUP ? 77 : 1);
    }
}

enum precision { FLOAT32, PRODUCTS16, PRODUCTS8 };

static struct hdt_stage_conf conf_of(const struct kind *kind, enum precision precision)
{
    struct hdt_stage_conf conf = {.model = {.V = 256,
                                            .C = 128,
                                            .F = ffn,
                                            .L = 2,
                                            .NH = 4,
                                            .NKV = 2,
                                            .HS = 32,
                                            .T = 64,
                                            .rms_norm_eps = 1e-5,
                                            .initializer_range = 0.05,
                                            .rope_theta = 10000,
                                            .tie_word_embeddings = kind->tied},
                                  .B = 2,
                                  .T = 64,
                                  .n_slots = N_MICRO,
                                  .recompute = kind->recompute,
                                  .mixed = precision != FLOAT32,
                                  .fp8 = precision == PRODUCTS8,
                                  .halves = kind->split,
                                  .seed = 3};

    conf.n_units = (int)hdt_model_n_units(&conf.model);
    return conf;
}

/* A text with something to learn: each token follows from the one before it, most of the time. */
static void tokens_fill(int32_t *tokens, int32_t *labels, int n, int V, unsigned step)
{
    unsigned state = SEED + step * 7919u;
    int token = (int)(step % (unsigned)V);

    for (int i = 0; i < n; i++) {
        tokens[i] = token;
        state = state * 1664525u + 1013904223u;
        token = state >> 29 == 0 ? (int)(state >> 8) % V : (token * 5 + 17) % V;
        labels[i] = i % 11 == 5 ? -100 : token;
    }
}

static void grads_read(struct hdt_stage *stage, struct outcome *out)
{
    struct hdt_error err = {0};
    struct hdt_stage_tensor view;

    out->n_tensors = hdt_stage_n_tensors(stage);
    out->lens = hdt_calloc((size_t)out->n_tensors, sizeof(*out->lens));
    out->grads = hdt_calloc((size_t)out->n_tensors, sizeof(*out->grads));
    for (int i = 0; i < out->n_tensors; i++) {
        hdt_stage_tensor(stage, i, &view);
        out->lens[i] = view.len;
        out->grads[i] = hdt_calloc(view.len, sizeof(float));
        must(hdt_stage_read(stage, out->grads[i], view.grad, view.len * sizeof(float), &err), &err);
    }
}

static double step_run(struct hdt_stage *stage, const struct kind *kind, unsigned step)
{
    const struct hdt_stage_conf *conf = hdt_stage_conf(stage);
    const int n = conf->B * conf->T;
    int32_t *tokens = hdt_calloc((size_t)n, sizeof(*tokens));
    int32_t *labels = hdt_calloc((size_t)n, sizeof(*labels));
    struct hdt_error err = {0};
    double loss, sum = 0;

    hdt_stage_zero_grads(stage);
    for (int i = 0; i < N_MICRO; i++) {
        tokens_fill(tokens, labels, n, (int)conf->model.V, step * N_MICRO + (unsigned)i);
        must(hdt_stage_set_tokens(stage, i, tokens, &err), &err);
        must(hdt_stage_set_labels(stage, i, labels, &err), &err);
        hdt_stage_forward(stage, i, HDT_STAGE_TRAIN);
        must(hdt_stage_loss(stage, i, &loss, &err), &err);
        sum += loss;
    }
    for (int i = 0; i < N_MICRO; i++) {
        if (kind->split) {
            hdt_stage_backward_input(stage, i);
        } else {
            hdt_stage_backward(stage, i);
        }
    }
    for (int i = 0; i < N_MICRO && kind->split; i++) {
        hdt_stage_backward_weight(stage, i);
    }
    hdt_stage_finish_grads(stage, NULL);
    free(tokens);
    free(labels);
    return sum / (N_MICRO * n);
}

static void steps_run(const struct hdt_backend *backend, struct hdt_device *device,
                      const struct kind *kind, enum precision precision, struct outcome *out)
{
    const struct hdt_stage_conf conf = conf_of(kind, precision);
    struct hdt_adamw adamw = {
        .lr = 3e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f};
    struct hdt_error err = {0};
    struct hdt_stage *stage;
    double *sumsq, norm;

    must(hdt_stage_new(backend, device, &conf, &stage, &err), &err);
    hdt_stage_set_loss_scale(stage, 1.0f / (float)(N_MICRO * conf.B * conf.T));
    sumsq = hdt_calloc((size_t)hdt_stage_n_tensors(stage), sizeof(*sumsq));
    for (unsigned step = 0; step < n_steps; step++) {
        out->losses[step] = step_run(stage, kind, step);
        if (step == 0) {
            grads_read(stage, out);
        }
        must(hdt_stage_grad_sumsq(stage, sumsq, &err), &err);
        norm = 0;
        for (int i = 0; i < hdt_stage_n_tensors(stage); i++) {
            norm += sumsq[i];
        }
        adamw.grad_scale = (float)fmin(1, 1 / sqrt(norm));
        adamw.step = step + 1;
        hdt_stage_step(stage, &adamw);
        must(hdt_stage_wait(stage, &err), &err);
    }
    free(sumsq);
    hdt_stage_free(stage);
}

static void outcome_release(struct outcome *out)
{
    for (int i = 0; i < out->n_tensors; i++) {
        free(out->grads[i]);
    }
    free(out->grads);
    free(out->lens);
}

/* |a - b| / |b| over all values. */
static double distance(const float *a, const float *b, size_t len)
{
    double apart = 0, size = 0;

    for (size_t i = 0; i < len; i++) {
        apart += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)b[i] * (double)b[i];
    }
    return isfinite(apart) ? sqrt(apart / size) : INFINITY;
}

static void limit(const char *kind, const char *what, double value, double most)
{
    if (!(value <= most)) {
        printf("MISS: %s: %s is %.3g, more than %.3g\n", kind, what, value, most);
        n_misses++;
    }
}

static void outcomes_compare(const char *kind, const struct outcome *got,
                             const struct outcome *want, const struct limits *most)
{
    double loss = fabs(got->losses[0] / want->losses[0] - 1), grad = 0, curve = 0;

    for (int i = 0; i < want->n_tensors; i++) {
        grad = fmax(grad, distance(got->grads[i], want->grads[i], want->lens[i]));
    }
    for (int i = 0; i < (int)n_steps; i++) {
        double apart = fabs(got->losses[i] / want->losses[i] - 1);

        curve = isfinite(apart) ? fmax(curve, apart) : INFINITY;
    }
    printf("%-12s %10.4f %10.4f %10.2g %10.2g %10.2g\n", kind, got->losses[0],
           got->losses[n_steps - 1], loss, grad, curve);
    fflush(stdout);
    limit(kind, "the first loss's distance", loss, most->loss);
    limit(kind, "a gradient's distance", grad, most->grad);
    limit(kind, "the losses' distance", curve, most->curve);
    limit(kind, "the last loss", got->losses[n_steps - 1], 0.8 * got->losses[0]);
}

static void outcomes_equal(const char *kind, const char *what, const struct outcome *a,
                           const struct outcome *b)
{
    bool same = memcmp(a->losses, b->losses, sizeof(a->losses)) == 0;

    for (int i = 0; i < a->n_tensors; i++) {
        same = same && memcmp(a->grads[i], b->grads[i], a->lens[i] * sizeof(float)) == 0;
    }
    if (!same) {
        printf("MISS: %s: %s\n", kind, what);
        n_misses++;
    }
}

/* One kind on both sides. `whole`: what the first kind gave, whose bits all give that are not of
 * another model; kept when this is the first. */
static void kind_run(const struct side *got_side, const struct side *want_side,
                     const struct kind *kind, enum precision precision, struct outcome *whole)
{
    static const struct limits *const limits[] = {&limits32, &limits16, &limits8};
    struct outcome got = {0}, again = {0}, want = {0};

    steps_run(want_side->backend, want_side->device, kind, FLOAT32, &want);
    steps_run(got_side->backend, got_side->device, kind, precision, &got);
    steps_run(got_side->backend, got_side->device, kind, precision, &again);
    outcomes_compare(kind->name, &got, &want, limits[precision]);
    outcomes_equal(kind->name, "a second run gave other bits", &got, &again);
    outcome_release(&again);
    outcome_release(&want);
    if (!whole->grads) {
        *whole = got;
        return;
    }
    if (!kind->tied) {
        outcomes_equal(kind->name, "other bits than whole", &got, whole);
    }
    outcome_release(&got);
}

static void kinds_run(const char *name, enum precision precision)
{
    static const char *const names[] = {"float32", "products of bf16", "products of FP8"};
    const struct hdt_device_conf device_conf = {.n_threads = 2};
    struct side side, cpu;
    struct hdt_device_info info;
    struct hdt_error err = {0};
    struct outcome whole = {0};

    ffn = precision == PRODUCTS8 ? 336 : 328;
    must(hdt_backend_open(name, &device_conf, &side.backend, &side.device, &err), &err);
    must(hdt_backend_open("cpu", &device_conf, &cpu.backend, &cpu.device, &err), &err);
    side.backend->device_info(side.device, &info);
    if (precision != FLOAT32 && side.backend->caps & HDT_BACKEND_HOST_MEMORY) {
        side.backend = hdt_mixed_ref(side.backend);
    }
    printf("backend %s: %s; %s; seed %u\n\n%-12s %10s %10s %10s %10s %10s\n", name, info.name,
           names[precision], SEED, "kind", "first loss", "last loss", "loss", "gradient", "losses");
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        kind_run(&side, &cpu, &kinds[i], precision, &whole);
    }
    outcome_release(&whole);
    side.backend->device_close(side.device);
    cpu.backend->device_close(cpu.device);
    printf("\n");
}

int main(int argc, char **argv)
{
    const char *name = "cpu";
    enum precision precision = FLOAT32;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--mixed") == 0) {
            precision = PRODUCTS16;
        } else if (strcmp(argv[i], "--fp8") == 0) {
            precision = PRODUCTS8;
        } else if (argv[i][0] != '-') {
            name = argv[i];
        } else {
            fprintf(stderr, "usage: backend_stage [--mixed | --fp8] [NAME]\n");
            return 2;
        }
    }
    if (argc == 1) {
        kinds_run(name, PRODUCTS16);
        n_steps = N_STEPS_PLAIN8;
        kinds_run(name, PRODUCTS8);
    } else {
        kinds_run(name, precision);
    }
    printf("%d misses\n", n_misses);
    return n_misses > 0;
}
