/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_attention [check|bench [brief [SHAPE]]]: holds the attention of the cuda backend to float64,
 * or measures it. It needs a device and the C library, so that it goes to another machine as a
 * file.
 *
 * check: every head size and shape at which the kernels take another way, in bf16 (both ways of
 * computing it) and float32, forward and backward. Results are poisoned first, must be the same
 * bits in a second run, and may differ from float64 by a bound on |got - want| / |want| over the
 * array. bench: time and rate of the shapes that models use, counting the products below the
 * diagonal (4 products of 2 operations forward, 10 backward); bf16 is compared with float32 there.
 */
#include "config.h"

#include "runtime/cuda/cuda_attention.h"
#include "src/base/buf.h"
#include "runtime/selftest/ref_grads.h"
#include "tests/support/values.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* bf16 has 8 bits: inputs are exact, probabilities and results rounded once each (2^-9 at most,
 * half of it on average); float32 has sums of up to some hundred terms. */
#define BOUND_BF16 6e-3
#define BOUND_F32  5e-6
#define N_ARRAYS   5 /* out, lse, dq, dk, dv */

struct shape {
    int n_seqs, q_len, kv_len, n_heads, n_kv_heads, head_size;
};

enum way { WAY_BF16, WAY_BF16_PLAIN, WAY_F32, WAY_COUNT };

static const char *const way_names[WAY_COUNT] = {"bf16", "bf16, plain", "f32"};
static const char *const array_names[N_ARRAYS] = {"out", "lse", "dq", "dk", "dv"};

static void need(cudaError_t code, const char *what)
{
    if (code != cudaSuccess) {
        fprintf(stderr, "cuda_attention: cannot %s: %s\n", what, cudaGetErrorString(code));
        exit(1);
    }
}

static void *device_alloc(size_t bytes)
{
    void *mem = NULL;

    need(cudaMalloc(&mem, bytes), "allocate device memory");
    return mem;
}

static uint16_t bf16_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float bf16_value(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static int row_width(const struct shape *s)
{
    return (s->n_heads + 2 * s->n_kv_heads) * s->head_size;
}

static size_t qkv_len(const struct shape *s)
{
    return (size_t)s->n_seqs * s->kv_len * row_width(s);
}

static size_t lse_len(const struct shape *s)
{
    return (size_t)s->n_seqs * s->n_heads * s->q_len;
}

static size_t out_len(const struct shape *s)
{
    return lse_len(s) * s->head_size;
}

/* Device memory of one call: queries, keys and values side by side in rows. */
struct call {
    struct shape s;
    enum way way;
    size_t unit; /* bytes of an element */
    char *qkv, *out, *dout, *dqkv;
    float *lse;
    void *scratch;
};

static void call_init(struct call *c, const struct shape *s, enum way way)
{
    c->s = *s;
    c->way = way;
    c->unit = way == WAY_F32 ? 4 : 2;
    c->qkv = device_alloc(qkv_len(s) * c->unit);
    c->dqkv = device_alloc(qkv_len(s) * c->unit);
    c->out = device_alloc(out_len(s) * c->unit);
    c->dout = device_alloc(out_len(s) * c->unit);
    c->lse = device_alloc(lse_len(s) * sizeof(float));
    c->scratch = device_alloc(hdt_cuda_attention_scratch(s->n_seqs, s->q_len, s->n_heads));
}

static void call_release(struct call *c)
{
    void *mem[] = {c->qkv, c->dqkv, c->out, c->dout, c->lse, c->scratch};

    for (size_t i = 0; i < sizeof(mem) / sizeof(*mem); i++) {
        need(cudaFree(mem[i]), "free device memory");
    }
}

/* Every byte set: NaN in both dtypes. */
static void call_poison(const struct call *c)
{
    need(cudaMemset(c->dqkv, 0xff, qkv_len(&c->s) * c->unit), "poison");
    need(cudaMemset(c->out, 0xff, out_len(&c->s) * c->unit), "poison");
    need(cudaMemset(c->lse, 0xff, lse_len(&c->s) * sizeof(float)), "poison");
    need(cudaMemset(c->scratch, 0xff,
                    hdt_cuda_attention_scratch(c->s.n_seqs, c->s.q_len, c->s.n_heads)),
         "poison");
}

static struct hdt_cuda_attention call_args(const struct call *c)
{
    const struct shape *s = &c->s;
    int stride = row_width(s);
    const char *k = c->qkv + (size_t)s->n_heads * s->head_size * c->unit;

    return (struct hdt_cuda_attention){
        .n_seqs = s->n_seqs,
        .q_len = s->q_len,
        .kv_len = s->kv_len,
        .n_heads = s->n_heads,
        .n_kv_heads = s->n_kv_heads,
        .head_size = s->head_size,
        .q = c->qkv + (size_t)(s->kv_len - s->q_len) * stride * c->unit,
        .q_stride = stride,
        .k = k,
        .v = k + (size_t)s->n_kv_heads * s->head_size * c->unit,
        .kv_stride = stride,
        .out = c->out,
        .lse = c->lse,
        .plain = c->way == WAY_BF16_PLAIN,
    };
}

static void call_fwd(const struct call *c)
{
    struct hdt_cuda_attention a = call_args(c);

    need(c->way == WAY_F32 ? hdt_cuda_attention_fwd_f32(0, &a) : hdt_cuda_attention_fwd_bf16(0, &a),
         "queue attention");
}

static void call_bwd(const struct call *c)
{
    struct hdt_cuda_attention a = call_args(c);
    size_t k = (size_t)c->s.n_heads * c->s.head_size * c->unit;
    struct hdt_cuda_attention_grads g = {
        .dout = c->dout,
        .dq = c->dqkv,
        .dk = c->dqkv + k,
        .dv = c->dqkv + k + (size_t)c->s.n_kv_heads * c->s.head_size * c->unit,
        .scratch = c->scratch,
    };

    need(c->way == WAY_F32 ? hdt_cuda_attention_bwd_f32(0, &a, &g)
                           : hdt_cuda_attention_bwd_bf16(0, &a, &g),
         "queue attention's backward pass");
}

/* Host values to the device in the dtype of the call; they are rounded in place. */
static void send(const struct call *c, float *values, size_t len, void *dst)
{
    uint16_t *words = c->unit == 2 ? hdt_calloc(len, sizeof(*words)) : NULL;

    for (size_t i = 0; words && i < len; i++) {
        words[i] = bf16_of(values[i]);
        values[i] = bf16_value(words[i]);
    }
    need(cudaMemcpy(dst, words ? (void *)words : values, len * c->unit, cudaMemcpyHostToDevice),
         "copy to the device");
    free(words);
}

static float *fetch(const struct call *c, const void *src, size_t len)
{
    float *values = hdt_calloc(len, sizeof(*values));
    uint16_t *words = c->unit == 2 ? hdt_calloc(len, sizeof(*words)) : NULL;

    need(cudaMemcpy(words ? (void *)words : values, src, len * c->unit, cudaMemcpyDeviceToHost),
         "copy from the device");
    for (size_t i = 0; words && i < len; i++) {
        values[i] = bf16_value(words[i]);
    }
    free(words);
    return values;
}

static float *fetch_lse(const struct call *c)
{
    float *values = hdt_calloc(lse_len(&c->s), sizeof(*values));

    need(cudaMemcpy(values, c->lse, lse_len(&c->s) * sizeof(*values), cudaMemcpyDeviceToHost),
         "copy from the device");
    return values;
}

/* |got - want| / |want| over columns first .. first + n_cols - 1 of rows; NaN counts as infinite.
 */
static double distance(const float *got, const double *want, size_t n_rows, size_t width,
                       size_t first, size_t n_cols)
{
    double diff = 0, norm = 0;

    for (size_t i = 0; i < n_rows; i++) {
        for (size_t j = i * width + first; j < i * width + first + n_cols; j++) {
            diff += (got[j] - want[j]) * (got[j] - want[j]);
            norm += fmax(want[j] * want[j], 1e-2);
        }
    }
    return isfinite(diff) ? sqrt(diff / norm) : INFINITY;
}

/* Errors of the arrays of a finished call; grads: those of the backward pass too. */
static void distances(const struct call *c, const double *out, const double *lse,
                      const double *dqkv, double error[N_ARRAYS])
{
    const struct shape *s = &c->s;
    size_t width = (size_t)row_width(s), hs = (size_t)s->head_size;
    size_t n_rows = (size_t)s->n_seqs * s->kv_len;
    float *got = fetch(c, c->out, out_len(s));

    error[0] = distance(got, out, 1, out_len(s), 0, out_len(s));
    free(got);
    got = fetch_lse(c);
    error[1] = distance(got, lse, 1, lse_len(s), 0, lse_len(s));
    free(got);
    error[2] = error[3] = error[4] = 0;
    if (dqkv) {
        got = fetch(c, c->dqkv, qkv_len(s));
        error[2] = distance(got, dqkv, n_rows, width, 0, s->n_heads * hs);
        error[3] = distance(got, dqkv, n_rows, width, s->n_heads * hs, s->n_kv_heads * hs);
        error[4] = distance(got, dqkv, n_rows, width, (size_t)(s->n_heads + s->n_kv_heads) * hs,
                            s->n_kv_heads * hs);
        free(got);
    }
}

static void call_run(const struct call *c)
{
    call_poison(c);
    call_fwd(c);
    if (c->s.q_len == c->s.kv_len) {
        call_bwd(c);
    }
    need(cudaDeviceSynchronize(), "compute attention");
}

/* Whether a second run gives the same bits. */
static bool repeats(const struct call *c)
{
    float *out = fetch(c, c->out, out_len(&c->s)), *dqkv = fetch(c, c->dqkv, qkv_len(&c->s));
    float *out2, *dqkv2;
    bool same;

    call_run(c);
    out2 = fetch(c, c->out, out_len(&c->s));
    dqkv2 = fetch(c, c->dqkv, qkv_len(&c->s));
    same = memcmp(out, out2, out_len(&c->s) * sizeof(*out)) == 0 &&
           memcmp(dqkv, dqkv2, qkv_len(&c->s) * sizeof(*dqkv)) == 0;
    free(out);
    free(dqkv);
    free(out2);
    free(dqkv2);
    return same;
}

static double *doubles(const float *values, size_t len)
{
    double *wide = hdt_calloc(len, sizeof(*wide));

    for (size_t i = 0; i < len; i++) {
        wide[i] = values[i];
    }
    return wide;
}

/* One shape in one way; false when it is wrong. */
static bool check_case(struct values_rng *rng, const struct shape *s, enum way way)
{
    const struct hdt_ref_attention ref = {s->n_seqs,  s->q_len,      s->kv_len,
                                          s->n_heads, s->n_kv_heads, s->head_size};
    bool backward = s->q_len == s->kv_len, ok = true;
    float *qkv = hdt_calloc(qkv_len(s), sizeof(*qkv)), *dout = hdt_calloc(out_len(s), sizeof(*qkv));
    double *want_out = hdt_calloc(out_len(s), sizeof(*want_out));
    double *want_lse = hdt_calloc(lse_len(s), sizeof(*want_lse));
    double *want_grad = hdt_calloc(qkv_len(s), sizeof(*want_grad)), *wide, *wide_dout;
    double error[N_ARRAYS], bound = way == WAY_F32 ? BOUND_F32 : BOUND_BF16;
    struct call c;

    call_init(&c, s, way);
    hdt_values_fill(rng, VALUES_NORMAL, qkv, qkv_len(s));
    hdt_values_fill(rng, VALUES_NORMAL, dout, out_len(s));
    send(&c, qkv, qkv_len(s), c.qkv);
    send(&c, dout, out_len(s), c.dout);
    wide = doubles(qkv, qkv_len(s));
    wide_dout = doubles(dout, out_len(s));
    hdt_ref_attention(&ref, wide, want_out, want_lse);
    if (backward) {
        hdt_ref_attention_grad(&ref, wide, wide_dout, want_grad);
    }
    call_run(&c);
    distances(&c, want_out, want_lse, backward ? want_grad : NULL, error);
    printf("%2d x %4d of %4d  %2d/%2d heads of %3d  %-11s", s->n_seqs, s->q_len, s->kv_len,
           s->n_heads, s->n_kv_heads, s->head_size, way_names[way]);
    for (int i = 0; i < (backward ? N_ARRAYS : 2); i++) {
        printf("  %s %.1e", array_names[i], error[i]);
        ok = ok && error[i] <= bound;
    }
    if (!repeats(&c)) {
        printf("  not the same bits twice");
        ok = false;
    }
    printf("%s\n", ok ? "" : "  WRONG");
    fflush(stdout);
    call_release(&c);
    free(qkv);
    free(dout);
    free(want_out);
    free(want_lse);
    free(want_grad);
    free(wide);
    free(wide_dout);
    return ok;
}

static int check(void)
{
    static const struct shape shapes[] = {
        {2, 256, 256, 4, 2, 64},  {1, 1, 1, 1, 1, 64},      {3, 130, 130, 2, 1, 64},
        {1, 577, 577, 6, 2, 64},  {2, 64, 64, 3, 3, 64},    {1, 5, 201, 4, 2, 64},
        {1, 1, 333, 8, 2, 128},   {2, 256, 256, 2, 1, 128}, {1, 400, 400, 4, 4, 128},
        {1, 71, 500, 2, 2, 128},  {2, 193, 193, 4, 1, 8},   {2, 190, 190, 4, 2, 80},
        {1, 129, 129, 3, 3, 112}, {2, 65, 65, 2, 1, 32},    {1, 1100, 1100, 2, 1, 64},
    };
    struct values_rng rng;
    int n_wrong = 0;

    hdt_values_rng_init(&rng, "cuda_attention");
    for (int way = 0; way < WAY_COUNT; way++) {
        for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
            n_wrong += !check_case(&rng, &shapes[i], way);
        }
    }
    printf("%d wrong\n", n_wrong);
    return n_wrong > 0;
}

static int compare_floats(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

/* Median milliseconds of one call. */
static double median_ms(const struct call *c, void (*run)(const struct call *), int n_runs)
{
    cudaEvent_t from, to;
    float ms[64];

    need(cudaEventCreate(&from), "create an event");
    need(cudaEventCreate(&to), "create an event");
    for (int i = 0; i < 3; i++) {
        run(c);
    }
    for (int i = 0; i < n_runs; i++) {
        need(cudaEventRecord(from, 0), "record an event");
        run(c);
        need(cudaEventRecord(to, 0), "record an event");
        need(cudaEventSynchronize(to), "compute attention");
        need(cudaEventElapsedTime(&ms[i], from, to), "read events");
    }
    need(cudaEventDestroy(from), "destroy an event");
    need(cudaEventDestroy(to), "destroy an event");
    qsort(ms, (size_t)n_runs, sizeof(*ms), compare_floats);
    return ms[n_runs / 2];
}

/* Errors of a bf16 call against float32 on the same values. */
static void bench_compare(const struct call *c, const float *qkv, const float *dout)
{
    float *values = hdt_calloc(qkv_len(&c->s), sizeof(*values));
    double error[N_ARRAYS], *out, *lse, *dqkv;
    float *got;
    struct call wide;

    call_init(&wide, &c->s, WAY_F32);
    memcpy(values, qkv, qkv_len(&c->s) * sizeof(*values));
    send(&wide, values, qkv_len(&c->s), wide.qkv);
    memcpy(values, dout, out_len(&c->s) * sizeof(*values));
    send(&wide, values, out_len(&c->s), wide.dout);
    call_run(&wide);
    got = fetch(&wide, wide.out, out_len(&c->s));
    out = doubles(got, out_len(&c->s));
    free(got);
    got = fetch_lse(&wide);
    lse = doubles(got, lse_len(&c->s));
    free(got);
    got = fetch(&wide, wide.dqkv, qkv_len(&c->s));
    dqkv = doubles(got, qkv_len(&c->s));
    free(got);
    call_run(c);
    distances(c, out, lse, dqkv, error);
    for (int i = 0; i < N_ARRAYS; i++) {
        printf("  %s %.1e", array_names[i], error[i]);
    }
    printf("%s\n", repeats(c) ? "" : "  not the same bits twice");
    call_release(&wide);
    free(values);
    free(out);
    free(lse);
    free(dqkv);
}

/* Normal values that repeat after a while: drawing all of them would take longer than the bench. */
static float *bench_values(struct values_rng *rng, size_t len)
{
    enum { PERIOD = 1000003 };
    float *values = hdt_calloc(len, sizeof(*values));

    hdt_values_fill(rng, VALUES_NORMAL, values, len < PERIOD ? len : PERIOD);
    for (size_t i = PERIOD; i < len; i++) {
        values[i] = values[i - PERIOD];
    }
    return values;
}

static void bench_case(const struct shape *s, enum way way)
{
    double product = 2.0 * s->n_seqs * s->n_heads * s->q_len * s->q_len / 2 * s->head_size;
    struct values_rng rng = {.state = 1};
    float *qkv = bench_values(&rng, qkv_len(s)), *dout = bench_values(&rng, out_len(s));
    double fwd, bwd;
    struct call c;

    call_init(&c, s, way);
    send(&c, qkv, qkv_len(s), c.qkv);
    send(&c, dout, out_len(s), c.dout);
    fwd = median_ms(&c, call_fwd, way == WAY_F32 ? 3 : 31);
    bwd = median_ms(&c, call_bwd, way == WAY_F32 ? 3 : 31);
    printf("%2d x %4d  %2d/%2d heads of %3d  %-11s  fwd %7.3f ms %6.1f TFLOP/s  bwd %7.3f ms %6.1f "
           "TFLOP/s",
           s->n_seqs, s->q_len, s->n_heads, s->n_kv_heads, s->head_size, way_names[way], fwd,
           2 * product / fwd * 1e-9, bwd, 5 * product / bwd * 1e-9);
    if (way == WAY_BF16) {
        bench_compare(&c, qkv, dout);
    } else {
        printf("\n");
    }
    fflush(stdout);
    call_release(&c);
    free(qkv);
    free(dout);
}

/* brief: the fast way alone; only: the one shape, or all when negative. */
static int bench(bool brief, int only)
{
    static const struct shape shapes[] = {
        {8, 2048, 2048, 32, 4, 64},
        {1, 4096, 4096, 32, 32, 128},
        {32, 1024, 1024, 12, 12, 64},
    };

    for (int i = 0; i < (int)(sizeof(shapes) / sizeof(*shapes)); i++) {
        for (int way = 0; (only < 0 || only == i) && way < (brief ? 1 : WAY_COUNT); way++) {
            bench_case(&shapes[i], way);
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 1 || (argc == 2 && strcmp(argv[1], "check") == 0)) {
        return check();
    }
    if (argc >= 2 && argc <= 4 && strcmp(argv[1], "bench") == 0) {
        return bench(argc >= 3, argc == 4 ? argv[3][0] - '0' : -1);
    }
    fprintf(stderr, "usage: cuda_attention [check|bench [brief [SHAPE]]]\n");
    return 2;
}
