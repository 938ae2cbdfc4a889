/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training speed of one process on a device:
 *
 *     bench_device_train BACKEND fp32|bf16|fp8 CONFIG.json B T STEPS [shares | losses TEXT [SEED]]
 *
 * Prints one line of JSON: median tokens per second over STEPS steps after three of warm-up, model
 * FLOPs utilization against 989 TFLOP/s (dense bf16 of an H100 or H200 by its data sheet; null for
 * others and for fp32), device memory that is taken, the last loss. A step is what a worker does
 * with one micro-batch of B sequences of T tokens: zero gradients, forward, backward, norm,
 * clipping, AdamW. FLOPs of a token: 6 for each parameter but the embedding's, and 6 L NH HS T for
 * causal attention.
 *
 * shares: after that, one step in which each op is waited for, and a line for each class of ops
 * with its time; waiting adds some microseconds to each.
 *
 * losses: instead, STEPS steps on other tokens each time, pairs of neighbouring bytes of a text as
 * 16 bits modulo the vocabulary, and a line with the mean loss of each twentieth of the steps.
 */
#include "config.h"

#include "runtime/backend_find.h"
#include "runtime/stage.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/core/job.h"
#include "src/core/model.h"
#include "tests/support/args.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PEAK_FLOPS 989e12

#define TEXT_MAX   ((size_t)1 << 24) /* tokens */
#define LOSS_PARTS 20
#define WARMUP     20 /* steps, of the learning rate */

/* What the floors are measured with: two matrices of RATE_DIM as float32 take RATE_BYTES. */
#define RATE_DIM   8192
#define RATE_BYTES ((size_t)2 * RATE_DIM * RATE_DIM * sizeof(float))
#define RATE_RUNS  10

/* ---- a backend that times its ops ------------------------------------------------------------ */

enum class {
    GEMM,
    GEMM8,
    QUANTIZE,
    ATTENTION,
    NORM,
    ROPE,
    SWIGLU,
    EMBEDDING,
    LOSS,
    ADAMW,
    SUMSQ,
    OTHER,
    N_CLASSES
};

static const char *const class_names[N_CLASSES] = {
    "gemm",   "gemm of FP8", "quantize",      "attention", "norm",  "rope",
    "swiglu", "embedding",   "cross_entropy", "adamw",     "sumsq", "zero, cast, add, copy"};

static const struct hdt_backend *real;
static int64_t class_ns[N_CLASSES], class_start_ns;
static double class_flops[N_CLASSES], class_bytes[N_CLASSES];
static int class_n[N_CLASSES];
static bool is_timing;

static void timed_begin(struct hdt_stream *s)
{
    if (is_timing) {
        real->stream_wait(s, NULL);
        class_start_ns = hdt_clock_now_ns();
    }
}

static void timed_end(struct hdt_stream *s, enum class which, double flops, double bytes)
{
    if (is_timing) {
        real->stream_wait(s, NULL);
        class_ns[which] += hdt_clock_now_ns() - class_start_ns;
        class_flops[which] += flops;
        class_bytes[which] += bytes;
        class_n[which]++;
    }
}

/* A function of the table's type that calls the real one, timed. `flops` are multiplications and
 * additions of matrix units, `bytes` what must at least be read and written. */
#define TIMED(table, op, which, params, args, flops, bytes_least)                                  \
 static void table##_##op params                                                                   \
 {                                                                                                 \
  timed_begin(s);                                                                                  \
  real->table->op args;                                                                            \
  timed_end(s, which, flops, bytes_least);                                                         \
 }

/* Causal: half of the square; the backward pass has five products in place of two. */
static double attention_flops(int n_seqs, int len, int n_heads, int head_size)
{
    return 2.0 * n_seqs * n_heads * (double)len * len * head_size;
}

TIMED(ops, gemm, GEMM, (struct hdt_stream * s, const struct hdt_gemm *g), (s, g),
      2.0 * g->m * g->n * g->k,
      4.0 * ((double)g->m * g->k + (double)g->k * g->n +
             (double)g->m * g->n * (g->beta != 0 ? 2 : 1)))
TIMED(ops, rmsnorm_fwd, NORM,
      (struct hdt_stream * s, const float *x, const float *w, int n, int c, float eps, float *y,
       float *rstd),
      (s, x, w, n, c, eps, y, rstd), 0, 8.0 * n * c)
TIMED(ops, rmsnorm_bwd, NORM,
      (struct hdt_stream * s, const float *dy, const float *x, const float *w, const float *rstd,
       int n, int c, float *dx, float *dw),
      (s, dy, x, w, rstd, n, c, dx, dw), 0, 16.0 * n * c)
TIMED(ops, rope_fwd, ROPE,
      (struct hdt_stream * s, const float *a, int n, int t, int pos, int n_heads, int hs,
       int stride, float *x),
      (s, a, n, t, pos, n_heads, hs, stride, x), 0, 8.0 * n * n_heads * hs)
TIMED(ops, rope_bwd, ROPE,
      (struct hdt_stream * s, const float *a, int n, int t, int pos, int n_heads, int hs,
       int stride, float *x),
      (s, a, n, t, pos, n_heads, hs, stride, x), 0, 8.0 * n * n_heads * hs)
TIMED(ops, attention_fwd, ATTENTION, (struct hdt_stream * s, const struct hdt_attention *a), (s, a),
      attention_flops(a->n_seqs, a->q_len, a->n_heads, a->head_size), 0)
TIMED(ops, attention_bwd, ATTENTION,
      (struct hdt_stream * s, const struct hdt_attention *a, const float *dout, float *dq,
       float *dk, float *dv),
      (s, a, dout, dq, dk, dv),
      2.5 * attention_flops(a->n_seqs, a->q_len, a->n_heads, a->head_size), 0)
TIMED(ops, swiglu_fwd, SWIGLU,
      (struct hdt_stream * s, const float *gate_up, int n, int f, float *h), (s, gate_up, n, f, h),
      0, 12.0 * n * f)
TIMED(ops, swiglu_bwd, SWIGLU,
      (struct hdt_stream * s, const float *dh, const float *gate_up, int n, int f, float *d),
      (s, dh, gate_up, n, f, d), 0, 20.0 * n * f)
TIMED(ops, embedding_fwd, EMBEDDING,
      (struct hdt_stream * s, const int32_t *tokens, const float *w, int n, int c, float *out),
      (s, tokens, w, n, c, out), 0, 8.0 * n * c)
TIMED(ops, embedding_bwd, EMBEDDING,
      (struct hdt_stream * s, const int32_t *tokens, const float *dout, int n, int c, float *dw),
      (s, tokens, dout, n, c, dw), 0, 12.0 * n * c)
TIMED(ops, cross_entropy, LOSS,
      (struct hdt_stream * s, const int32_t *labels, int n, int v, float scale, float *logits,
       double *loss),
      (s, labels, n, v, scale, logits, loss), 0, 8.0 * n * v)
TIMED(ops, add, OTHER, (struct hdt_stream * s, const float *x, size_t len, float *y),
      (s, x, len, y), 0, 12.0 * (double)len)
TIMED(ops, scale, OTHER, (struct hdt_stream * s, float factor, size_t len, float *x),
      (s, factor, len, x), 0, 8.0 * (double)len)
TIMED(ops, zero, OTHER, (struct hdt_stream * s, void *x, size_t bytes), (s, x, bytes), 0,
      (double)bytes)
TIMED(ops, cast, OTHER,
      (struct hdt_stream * s, const void *src, enum hdt_dtype from, size_t len, enum hdt_dtype to,
       void *dst),
      (s, src, from, len, to, dst), 0, (double)(len *(hdt_dtype_size(from) + hdt_dtype_size(to))))
static double spans_len(const struct hdt_span *spans, int n)
{
    double len = 0;

    for (int i = 0; i < n; i++) {
        len += (double)spans[i].len;
    }
    return len;
}

TIMED(ops, sumsq, SUMSQ, (struct hdt_stream * s, const struct hdt_span *spans, int n, double *sums),
      (s, spans, n, sums), 0, 4.0 * spans_len(spans, n))
TIMED(ops, adamw, ADAMW,
      (struct hdt_stream * s, const struct hdt_adamw *p, const float *g, size_t len, float *w,
       float *m, float *v),
      (s, p, g, len, w, m, v), 0, 28.0 * (double)len)

TIMED(mixed, gemm, GEMM, (struct hdt_stream * s, const struct hdt_mixed_gemm *g), (s, g),
      2.0 * g->m * g->n * g->k,
      2.0 * ((double)g->m * g->k + (double)g->k * g->n) +
          (double)g->m * g->n * (double)hdt_dtype_size(g->d_dtype) * (g->beta != 0 ? 2 : 1))
TIMED(mixed, rmsnorm_fwd, NORM,
      (struct hdt_stream * s, const float *x, const float *w, int n, int c, float eps, void *y,
       float *rstd),
      (s, x, w, n, c, eps, y, rstd), 0, 6.0 * n * c)
TIMED(mixed, rmsnorm_bwd, NORM,
      (struct hdt_stream * s, const void *dy, const float *x, const float *w, const float *rstd,
       int n, int c, float *dx, void *dx16, float *dw),
      (s, dy, x, w, rstd, n, c, dx, dx16, dw), 0, 16.0 * n * c)
TIMED(mixed, rope_fwd, ROPE,
      (struct hdt_stream * s, const float *a, int n, int t, int pos, int n_heads, int hs,
       int stride, void *x),
      (s, a, n, t, pos, n_heads, hs, stride, x), 0, 4.0 * n * n_heads * hs)
TIMED(mixed, rope_bwd, ROPE,
      (struct hdt_stream * s, const float *a, int n, int t, int pos, int n_heads, int hs,
       int stride, void *x),
      (s, a, n, t, pos, n_heads, hs, stride, x), 0, 4.0 * n * n_heads * hs)
TIMED(mixed, attention_fwd, ATTENTION, (struct hdt_stream * s, const struct hdt_mixed_attention *a),
      (s, a), attention_flops(a->n_seqs, a->q_len, a->n_heads, a->head_size), 0)
TIMED(mixed, attention_bwd, ATTENTION,
      (struct hdt_stream * s, const struct hdt_mixed_attention *a, const void *dout, void *dq,
       void *dk, void *dv),
      (s, a, dout, dq, dk, dv),
      2.5 * attention_flops(a->n_seqs, a->q_len, a->n_heads, a->head_size), 0)
TIMED(mixed, swiglu_fwd, SWIGLU,
      (struct hdt_stream * s, const void *gate_up, int n, int f, void *h, float *amax),
      (s, gate_up, n, f, h, amax), 0, 6.0 * n * f)
TIMED(mixed, swiglu_bwd, SWIGLU,
      (struct hdt_stream * s, const void *dh, const void *gate_up, int n, int f, void *d, void *h,
       float *amax),
      (s, dh, gate_up, n, f, d, h, amax), 0, (h ? 12.0 : 10.0) * n * f)
TIMED(mixed, cross_entropy, LOSS,
      (struct hdt_stream * s, const int32_t *labels, int n, int v, float scale, void *logits,
       double *loss),
      (s, labels, n, v, scale, logits, loss), 0, 4.0 * n * v)
TIMED(mixed, adamw, ADAMW,
      (struct hdt_stream * s, const struct hdt_adamw *p, const float *g, size_t len, float *w,
       float *m, float *v, void *w16, float *amax),
      (s, p, g, len, w, m, v, w16, amax), 0, 30.0 * (double)len)

static void timed_copy(struct hdt_stream *s, void *dst, const void *src, size_t bytes,
                       enum hdt_copy_kind kind)
{
    timed_begin(s);
    real->copy(s, dst, src, bytes, kind);
    timed_end(s, OTHER, 0, kind == HDT_COPY_ON_DEVICE ? 2.0 * (double)bytes : 0);
}

static const struct hdt_ops timed_ops = {
    .gemm = ops_gemm,
    .rmsnorm_fwd = ops_rmsnorm_fwd,
    .rmsnorm_bwd = ops_rmsnorm_bwd,
    .rope_fwd = ops_rope_fwd,
    .rope_bwd = ops_rope_bwd,
    .attention_fwd = ops_attention_fwd,
    .attention_bwd = ops_attention_bwd,
    .swiglu_fwd = ops_swiglu_fwd,
    .swiglu_bwd = ops_swiglu_bwd,
    .embedding_fwd = ops_embedding_fwd,
    .embedding_bwd = ops_embedding_bwd,
    .cross_entropy = ops_cross_entropy,
    .add = ops_add,
    .scale = ops_scale,
    .zero = ops_zero,
    .cast = ops_cast,
    .sumsq = ops_sumsq,
    .adamw = ops_adamw,
};

TIMED(fp8, quantize, QUANTIZE, (struct hdt_stream * s, const struct hdt_quantize *q), (s, q), 0,
      (double)q->n * q->c * (2 + (q->y != NULL) + (q->yt != NULL)))
TIMED(fp8, gemm, GEMM8, (struct hdt_stream * s, const struct hdt_fp8_gemm *g), (s, g),
      2.0 * g->m * g->n * g->k,
      (double)g->m * g->k + (double)g->k * g->n +
          (double)hdt_dtype_size(g->d_dtype) * g->m * g->n * (g->beta != 0 ? 2 : 1))

static const struct hdt_fp8_ops timed_fp8 = {.quantize = fp8_quantize, .gemm = fp8_gemm};

static const struct hdt_mixed_ops timed_mixed = {
    .gemm = mixed_gemm,
    .rmsnorm_fwd = mixed_rmsnorm_fwd,
    .rmsnorm_bwd = mixed_rmsnorm_bwd,
    .rope_fwd = mixed_rope_fwd,
    .rope_bwd = mixed_rope_bwd,
    .attention_fwd = mixed_attention_fwd,
    .attention_bwd = mixed_attention_bwd,
    .swiglu_fwd = mixed_swiglu_fwd,
    .swiglu_bwd = mixed_swiglu_bwd,
    .cross_entropy = mixed_cross_entropy,
    .adamw = mixed_adamw,
};

/* ---- steps ----------------------------------------------------------------------------------- */

static void must(enum hdt_status status, const struct hdt_error *err)
{
    if (status != HDT_OK) {
        hdt_error_print(err, "bench_device_train");
        exit(status == HDT_ENOENT || status == HDT_ENOTSUP ? 77 : 1);
    }
}

/* The tokens of a text, if one was given. */
static int32_t *text_tokens;
static size_t n_text_tokens;

static void text_read(const char *path, int V)
{
    FILE *file = fopen(path, "rb");
    int low, high;

    if (!file) {
        fprintf(stderr, "bench_device_train: cannot open '%s'\n", path);
        exit(2);
    }
    text_tokens = hdt_malloc(TEXT_MAX * sizeof(*text_tokens));
    while (n_text_tokens < TEXT_MAX && (low = fgetc(file)) != EOF && (high = fgetc(file)) != EOF) {
        text_tokens[n_text_tokens++] = (low | high << 8) % V;
    }
    fclose(file);
}

/* B pieces of the text, at places that follow from the step. */
static void slot_fill_text(struct hdt_stage *stage, const struct hdt_stage_conf *conf,
                           unsigned step)
{
    const size_t T = (size_t)conf->T, n = (size_t)conf->B * T;
    int32_t *tokens = hdt_calloc(2 * n, sizeof(*tokens)), *labels = tokens + n;
    struct hdt_error err = {0};
    uint64_t random = step * UINT64_C(0x9e3779b97f4a7c15) + 1;

    for (size_t b = 0; b < (size_t)conf->B; b++) {
        size_t at;

        random = (random ^ random >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
        at = (size_t)(random >> 20) % (n_text_tokens - T - 1);
        memcpy(tokens + b * T, text_tokens + at, T * sizeof(*tokens));
        memcpy(labels + b * T, text_tokens + at + 1, T * sizeof(*tokens));
    }
    must(hdt_stage_set_tokens(stage, 0, tokens, &err), &err);
    must(hdt_stage_set_labels(stage, 0, labels, &err), &err);
    free(tokens);
}

static void slot_fill(struct hdt_stage *stage, int n, int V, unsigned seed)
{
    int32_t *rows = hdt_calloc((size_t)n + 1, sizeof(*rows));
    struct hdt_error err = {0};

    for (int i = 0; i <= n; i++) {
        seed = seed * 1664525u + 1013904223u;
        rows[i] = (int32_t)((seed >> 8) % (unsigned)V);
    }
    must(hdt_stage_set_tokens(stage, 0, rows, &err), &err);
    must(hdt_stage_set_labels(stage, 0, rows + 1, &err), &err);
    free(rows);
}

static double step_run(struct hdt_stage *stage, double *sumsq, int64_t step, double *loss)
{
    const struct hdt_stage_conf *conf = hdt_stage_conf(stage);
    struct hdt_adamw adamw = {.lr = 1e-4f * fminf(1, (float)step / WARMUP),
                              .beta1 = 0.9f,
                              .beta2 = 0.95f,
                              .eps = 1e-8f,
                              .weight_decay = 0.1f,
                              .step = step};
    const int64_t start = hdt_clock_now_ns();
    struct hdt_error err = {0};
    double sum = 0;

    hdt_stage_zero_grads(stage);
    if (text_tokens) {
        slot_fill_text(stage, conf, (unsigned)step);
    } else {
        slot_fill(stage, conf->B * conf->T, (int)conf->model.V, 7); /* one batch, as its peers do */
    }
    hdt_stage_forward(stage, 0, HDT_STAGE_TRAIN);
    hdt_stage_backward(stage, 0);
    must(hdt_stage_loss(stage, 0, loss, &err), &err);
    hdt_stage_finish_grads(stage, NULL);
    must(hdt_stage_grad_sumsq(stage, sumsq, &err), &err);
    for (int i = 0; i < hdt_stage_n_tensors(stage); i++) {
        sum += sumsq[i];
    }
    adamw.grad_scale = (float)fmin(1, 1 / (sqrt(sum) + 1e-6));
    hdt_stage_step(stage, &adamw);
    must(hdt_stage_wait(stage, &err), &err);
    return (double)(hdt_clock_now_ns() - start) / 1e9;
}

static int double_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Seconds of one of some runs on the stage's stream. */
static double runs_time(struct hdt_stage *stage, void (*run)(struct hdt_stage *, void *), void *arg)
{
    int64_t start = 0;

    for (int i = 0; i < 3 + RATE_RUNS; i++) {
        if (i == 3) {
            hdt_stage_wait(stage, NULL);
            start = hdt_clock_now_ns();
        }
        run(stage, arg);
    }
    hdt_stage_wait(stage, NULL);
    return (double)(hdt_clock_now_ns() - start) / 1e9 / RATE_RUNS;
}

static void copy_run(struct hdt_stage *stage, void *arg)
{
    char *mem = arg;

    real->copy(hdt_stage_stream(stage), mem, mem + RATE_BYTES, RATE_BYTES, HDT_COPY_ON_DEVICE);
}

/* On the stage's own activations and weights, whatever they are: zeros would be faster than
 * anything that is trained. */
static void product_run(struct hdt_stage *stage, void *arg)
{
    const struct hdt_mixed_gemm *g = arg;
    const struct hdt_gemm plain = {.m = g->m,
                                   .n = g->n,
                                   .k = g->k,
                                   .trans_b = true,
                                   .alpha = 1,
                                   .a = g->a,
                                   .lda = g->lda,
                                   .b = g->b,
                                   .ldb = g->ldb,
                                   .c = g->d,
                                   .ldc = g->ldd};

    if (hdt_stage_conf(stage)->mixed) {
        real->mixed->gemm(hdt_stage_stream(stage), g);
    } else {
        real->ops->gemm(hdt_stage_stream(stage), &plain);
    }
}

/* The device's rates in the same run, which the floors are made of. */
struct rates {
    double flop_per_s, flop8_per_s, byte_per_s;
};

static void product8_run(struct hdt_stage *stage, void *arg)
{
    real->fp8->gemm(hdt_stage_stream(stage), arg);
}

/* A square of the matrix of bfloat16 at `mem`, behind which is room. */
static double product8_time(struct hdt_stage *stage, char *mem)
{
    char *y = mem + RATE_BYTES + RATE_BYTES / 2, *scale = y + RATE_BYTES / 4;
    const struct hdt_quantize q = {.n = RATE_DIM,
                                   .c = RATE_DIM,
                                   .x = mem,
                                   .dtype = HDT_DTYPE_F8E4M3,
                                   .y = y,
                                   .scale = (float *)(void *)scale};
    struct hdt_fp8_gemm g = {.m = RATE_DIM,
                             .n = RATE_DIM,
                             .k = RATE_DIM,
                             .is_fast = true,
                             .a_dtype = HDT_DTYPE_F8E4M3,
                             .b_dtype = HDT_DTYPE_F8E4M3,
                             .a = y,
                             .a_scale = q.scale,
                             .b = y,
                             .b_scale = q.scale,
                             .d_dtype = HDT_DTYPE_BF16,
                             .d = mem + RATE_BYTES};

    real->fp8->quantize(hdt_stage_stream(stage), &q);
    return runs_time(stage, product8_run, &g);
}

static struct rates rates_measure(struct hdt_stage *stage, struct hdt_device *device)
{
    struct rates rates = {0};

    struct hdt_mixed_gemm g = {.m = RATE_DIM,
                               .n = RATE_DIM,
                               .k = RATE_DIM,
                               .trans_b = true,
                               .alpha = 1,
                               .lda = RATE_DIM,
                               .ldb = RATE_DIM,
                               .d_dtype = HDT_DTYPE_BF16,
                               .ldd = RATE_DIM};
    const size_t values = (size_t)RATE_DIM * RATE_DIM;
    float *random = hdt_calloc(values, sizeof(*random));
    struct hdt_error err = {0};
    unsigned seed = 1;
    void *mem;

    must(real->alloc(device, 2 * RATE_BYTES, &mem, &err), &err);
    for (size_t i = 0; i < values; i++) {
        seed = seed * 1664525u + 1013904223u;
        random[i] = (float)(seed >> 8) / 0x1p23f - 1;
    }
    g.a = mem;
    g.b = (char *)mem + RATE_BYTES / 2;
    g.d = (char *)mem + RATE_BYTES;
    must(hdt_stage_write(stage, mem, random, values * sizeof(float), &err), &err);
    if (hdt_stage_conf(stage)->mixed) {
        real->ops->cast(hdt_stage_stream(stage), mem, HDT_DTYPE_F32, values, HDT_DTYPE_BF16,
                        (char *)mem + RATE_BYTES);
        real->copy(hdt_stage_stream(stage), mem, (char *)mem + RATE_BYTES, RATE_BYTES / 2,
                   HDT_COPY_ON_DEVICE);
    }
    real->copy(hdt_stage_stream(stage), (char *)mem + RATE_BYTES / 2, mem, RATE_BYTES / 2,
               HDT_COPY_ON_DEVICE);
    rates.flop_per_s = 2.0 * (double)values * RATE_DIM / runs_time(stage, product_run, &g);
    rates.flop8_per_s = rates.flop_per_s;
    if (hdt_stage_conf(stage)->fp8) {
        rates.flop8_per_s = 2.0 * (double)values * RATE_DIM / product8_time(stage, mem);
    }
    rates.byte_per_s = 2.0 * (double)RATE_BYTES / runs_time(stage, copy_run, mem);
    must(hdt_stage_wait(stage, &err), &err);
    real->free(device, mem);
    free(random);
    return rates;
}

static void shares_print(double step_s, const struct rates *rates)
{
    int64_t all_ns = 0;
    double all_floor = 0;

    for (int i = 0; i < N_CLASSES; i++) {
        all_ns += class_ns[i];
    }
    printf(
        "this device: products %.0f TFLOP/s, of FP8 %.0f, copies %.2f TB/s\n%-22s %5s %10s %7s %10s %9s\n",
        rates->flop_per_s / 1e12, rates->flop8_per_s / 1e12, rates->byte_per_s / 1e12, "class",
        "ops", "ms", "share", "floor, ms", "ms/floor");
    for (int i = 0; i < N_CLASSES; i++) {
        const double flop_per_s = i == GEMM8 ? rates->flop8_per_s : rates->flop_per_s;
        const double floor_s =
            fmax(class_flops[i] / flop_per_s, class_bytes[i] / rates->byte_per_s);

        all_floor += floor_s;
        printf("%-22s %5d %10.3f %5.1f %% %10.3f %9.2f\n", class_names[i], class_n[i],
               (double)class_ns[i] / 1e6, 100.0 * (double)class_ns[i] / (double)all_ns,
               1e3 * floor_s, floor_s > 0 ? (double)class_ns[i] / 1e9 / floor_s : 0);
    }
    printf("%-22s       %10.3f         %10.3f; a step without waits: %.3f ms\n", "all",
           (double)all_ns / 1e6, 1e3 * all_floor, 1e3 * step_s);
}

/* What is taken of the device, as it says itself; else what the stage counts. */
static double gib_taken(const struct hdt_stage *stage, const struct hdt_device_info *info)
{
    struct hdt_stage_bytes bytes = {0};

    if (info->memory_free > 0) {
        return (double)(info->memory_bytes - info->memory_free) / 0x1p30;
    }
    hdt_stage_measure(hdt_stage_conf(stage), &bytes, NULL);
    return (double)bytes.total / 0x1p30;
}

static void steps_run(struct hdt_stage *stage, struct hdt_device *device, int n_steps, bool shares)
{
    const struct hdt_stage_conf *conf = hdt_stage_conf(stage);
    const struct hdt_model_config *m = &conf->model;
    const double tokens = (double)conf->B * conf->T;
    const double flops =
        tokens *
        (6.0 * (double)(hdt_model_n_params(m) - (m->tie_word_embeddings ? 0 : m->V * m->C)) +
         6.0 * (double)(m->L * m->NH * m->HS) * conf->T);
    double *sumsq = hdt_calloc((size_t)hdt_stage_n_tensors(stage), sizeof(*sumsq));
    double *times = hdt_calloc((size_t)n_steps, sizeof(*times)), loss = 0, first = 0;
    struct hdt_device_info info;
    struct rates rates;
    char mfu[16] = "null"; /* of other devices and precisions the peak is another */

    for (int step = 0; step < n_steps + 3; step++) {
        double s = step_run(stage, sumsq, step + 1, &loss);

        first = step == 0 ? loss : first;
        if (step >= 3) {
            times[step - 3] = s;
        }
    }
    qsort(times, (size_t)n_steps, sizeof(*times), double_compare);
    real->device_info(device, &info);
    if (conf->mixed && (strstr(info.name, "H100") || strstr(info.name, "H200"))) {
        snprintf(mfu, sizeof(mfu), "%.4f", flops / times[n_steps / 2] / PEAK_FLOPS);
    }
    printf("{\"backend\":\"%s\",\"precision\":\"%s\",\"layers\":%lld,\"mb\":%d,\"seq\":%d,"
           "\"tok_s\":%.0f,\"step_ms\":%.2f,\"mfu\":%s,\"gib\":%.1f,\"first_loss\":%.5f,"
           "\"loss\":%.5f}\n",
           real->name,
           conf->fp8     ? "fp8"
           : conf->mixed ? "bf16"
                         : "fp32",
           (long long)m->L, conf->B, conf->T, tokens / times[n_steps / 2], 1e3 * times[n_steps / 2],
           mfu, gib_taken(stage, &info), first / tokens, loss / tokens);
    if (shares) {
        is_timing = true;
        step_run(stage, sumsq, n_steps + 4, &loss);
        is_timing = false;
        rates = rates_measure(stage, device);
        shares_print(times[n_steps / 2], &rates);
    }
    free(times);
    free(sumsq);
}

static void losses_run(struct hdt_stage *stage, const char *text, int n_steps)
{
    const struct hdt_stage_conf *conf = hdt_stage_conf(stage);
    double *sumsq = hdt_calloc((size_t)hdt_stage_n_tensors(stage), sizeof(*sumsq)), loss, sum = 0;

    text_read(text, (int)conf->model.V);
    if (n_text_tokens < (size_t)conf->T + 2) {
        fprintf(stderr, "bench_device_train: '%s' is too short\n", text);
        exit(2);
    }
    printf("{\"precision\":\"%s\",\"steps\":%d,\"losses\":[",
           conf->fp8     ? "fp8"
           : conf->mixed ? "bf16"
                         : "fp32",
           n_steps);
    for (int step = 0; step < n_steps; step++) {
        const int part = n_steps / LOSS_PARTS;

        step_run(stage, sumsq, step + 1, &loss);
        sum += loss / conf->B / conf->T;
        if (step % part == part - 1) {
            printf("%s%.5f", step < part ? "" : ",", sum / part);
            sum = 0;
        }
    }
    printf("]}\n");
    free(text_tokens);
    free(sumsq);
}

int main(int argc, char **argv)
{
    struct hdt_stage_conf conf = {.n_slots = 1, .seed = 1};
    const struct hdt_device_conf device_conf = {0};
    struct hdt_backend timed;
    struct hdt_device *device;
    struct hdt_stage *stage;
    struct hdt_error err = {0};
    bool shares = argc == 8 && strcmp(argv[7], "shares") == 0;
    const char *text = argc >= 9 && strcmp(argv[7], "losses") == 0 ? argv[8] : NULL;
    const char *seed = text && argc == 10 ? argv[9] : NULL;

    if (argc - shares - (text ? 2 : 0) - (seed ? 1 : 0) != 7 || hdt_job_precision_of(argv[2]) < 0) {
        fprintf(stderr, "usage: bench_device_train BACKEND fp32|bf16|fp8 CONFIG.json B T STEPS "
                        "[shares | losses TEXT [SEED]]\n");
        return 2;
    }
    conf.fp8 = hdt_job_precision_of(argv[2]) == HDT_JOB_FP8;
    conf.mixed = hdt_job_precision_of(argv[2]) != HDT_JOB_FP32;
    conf.seed = seed ? (uint64_t)hdt_args_int(seed, 1) : conf.seed;
    conf.B = hdt_args_int(argv[4], 1);
    conf.T = hdt_args_int(argv[5], 1);
    must(hdt_model_load(argv[3], &conf.model, &err), &err);
    conf.n_units = (int)hdt_model_n_units(&conf.model);
    must(hdt_backend_open(argv[1], &device_conf, &real, &device, &err), &err);
    timed = *real;
    timed.ops = &timed_ops;
    timed.mixed = real->mixed ? &timed_mixed : NULL;
    timed.fp8 = real->fp8 ? &timed_fp8 : NULL;
    timed.copy = timed_copy;
    must(hdt_stage_new(&timed, device, &conf, &stage, &err), &err);
    hdt_stage_set_loss_scale(stage, 1.0f / (float)(conf.B * conf.T));
    if (text) {
        losses_run(stage, text, hdt_args_int(argv[6], LOSS_PARTS));
    } else {
        steps_run(stage, device, hdt_args_int(argv[6], 1), shares);
    }
    hdt_stage_free(stage);
    real->device_close(device);
    return 0;
}
