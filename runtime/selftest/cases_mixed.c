/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cases of struct hdt_mixed_ops: those of its namesakes in struct hdt_ops with some arrays in
 * bfloat16. Inputs are whole bfloat16 values, so that a result is off by its own rounding, half of
 * 2^-7 of itself (3.91e-3; bits cut off would be up to 7.8e-3), by float32 sums, and in attention
 * by the rounding of probabilities before the second product; the limits are for the worst of many.
 */
#include "config.h"

#include "src/base/buf.h"
#include "runtime/selftest/cases.h"

#include <math.h>
#include <string.h>

#define ROUNDING16 4e-3 /* 2^-8, and float32's own */
#define SUMS32     2e-4 /* of products that the device's matrix units add up */
#define ATTENTION  3e-2

static const struct backend_case *case_of(const char *op)
{
    size_t i = 0;

    while (strcmp(hdt_backend_cases[i].op, op) != 0) {
        i++;
        HDT_ASSERT(i < hdt_n_backend_cases);
    }
    return &hdt_backend_cases[i];
}

/* What is raised to the largest magnitude of an output; from a number below 1.01 on. */
static void array_amax(struct backend_array *a)
{
    *a = (struct backend_array){.name = "amax",
                                .role = BACKEND_INOUT,
                                .dtype = HDT_DTYPE_F32,
                                .fill = BACKEND_FILL_SQUARE,
                                .len = 1,
                                .tolerance = ROUNDING16};
}

static void amax_raise(const double *x, size_t len, double *amax)
{
    for (size_t i = 0; i < len; i++) {
        *amax = fmax(*amax, fabs(x[i]));
    }
}

static void array16(struct backend_array *a, double tolerance)
{
    a->dtype = HDT_DTYPE_BF16;
    a->tolerance = tolerance;
}

/* ---- gemm: flags as in float32, and 8: C and D are float32 ----------------------------------- */

static void gemm_describe(const struct backend_shape *s, struct backend_array *a)
{
    case_of("gemm")->describe(s, a);
    array16(&a[0], 0);
    array16(&a[1], 0);
    a[2].role = BACKEND_IN;
    a[3] = a[2];
    a[3].name = "d";
    a[3].role = BACKEND_OUT;
    a[3].tolerance = SUMS32;
    if (!(s->flags & 8)) {
        array16(&a[2], 0);
        array16(&a[3], ROUNDING16);
    }
}

static void gemm_launch(const struct hdt_backend *b, struct hdt_stream *st,
                        const struct backend_shape *s, void *const *mem)
{
    const bool trans_a = s->flags & 1, trans_b = s->flags & 2;
    const struct hdt_mixed_gemm g = {.m = s->n,
                                     .n = s->c,
                                     .k = s->k,
                                     .trans_a = trans_a,
                                     .trans_b = trans_b,
                                     .alpha = 0.75f,
                                     .beta = s->flags & 4 ? 0.5f : 0,
                                     .a = mem[0],
                                     .lda = trans_a ? s->n : s->k,
                                     .b = mem[1],
                                     .ldb = trans_b ? s->k : s->c,
                                     .d_dtype = s->flags & 8 ? HDT_DTYPE_F32 : HDT_DTYPE_BF16,
                                     .c = mem[2],
                                     .d = mem[3],
                                     .ldd = s->c};

    b->mixed->gemm(st, &g);
}

static void gemm_reference(const struct backend_shape *s, double *const *x)
{
    double *const arrays[] = {x[0], x[1], x[3]};

    memcpy(x[3], x[2], (size_t)s->n * s->c * sizeof(double));
    case_of("gemm")->reference(s, arrays);
}

/* ---- norms ----------------------------------------------------------------------------------- */

static void rmsnorm_fwd_describe(const struct backend_shape *s, struct backend_array *a)
{
    case_of("rmsnorm_fwd")->describe(s, a);
    array16(&a[2], ROUNDING16);
}

static void rmsnorm_fwd_launch(const struct hdt_backend *b, struct hdt_stream *st,
                               const struct backend_shape *s, void *const *mem)
{
    b->mixed->rmsnorm_fwd(st, mem[0], mem[1], s->n, s->c, 1e-5f, mem[2], mem[3]);
}

static void rmsnorm_fwd_reference(const struct backend_shape *s, double *const *x)
{
    case_of("rmsnorm_fwd")->reference(s, x);
}

static void rmsnorm_bwd_describe(const struct backend_shape *s, struct backend_array *a)
{
    case_of("rmsnorm_bwd")->describe(s, a);
    array16(&a[0], 0);
    a[6] = a[4];
    a[6].name = "dx16";
    a[6].role = BACKEND_OUT;
    array16(&a[6], ROUNDING16);
    a[6].rounds = 1 + 4;
}

static void rmsnorm_bwd_prepare(const struct backend_shape *s, double *const *x)
{
    case_of("rmsnorm_bwd")->prepare(s, x);
}

static void rmsnorm_bwd_launch(const struct hdt_backend *b, struct hdt_stream *st,
                               const struct backend_shape *s, void *const *mem)
{
    b->mixed->rmsnorm_bwd(st, mem[0], mem[1], mem[2], mem[3], s->n, s->c, mem[4], mem[6], mem[5]);
}

static void rmsnorm_bwd_reference(const struct backend_shape *s, double *const *x)
{
    case_of("rmsnorm_bwd")->reference(s, x);
    memcpy(x[6], x[4], (size_t)s->n * s->c * sizeof(double));
}

/* ---- rope ------------------------------------------------------------------------------------ */

static void rope_describe(const struct backend_shape *s, struct backend_array *a)
{
    case_of("rope_fwd")->describe(s, a);
    array16(&a[1], ROUNDING16);
}

static void rope_prepare(const struct backend_shape *s, double *const *x)
{
    case_of("rope_fwd")->prepare(s, x);
}

static void rope_fwd_launch(const struct hdt_backend *b, struct hdt_stream *st,
                            const struct backend_shape *s, void *const *mem)
{
    b->mixed->rope_fwd(st, mem[0], s->n, s->t, s->k, s->n_heads, s->head_size,
                       (s->n_heads + 1) * s->head_size, mem[1]);
}

static void rope_bwd_launch(const struct hdt_backend *b, struct hdt_stream *st,
                            const struct backend_shape *s, void *const *mem)
{
    b->mixed->rope_bwd(st, mem[0], s->n, s->t, s->k, s->n_heads, s->head_size,
                       (s->n_heads + 1) * s->head_size, mem[1]);
}

static void rope_fwd_reference(const struct backend_shape *s, double *const *x)
{
    case_of("rope_fwd")->reference(s, x);
}

static void rope_bwd_reference(const struct backend_shape *s, double *const *x)
{
    case_of("rope_bwd")->reference(s, x);
}

/* ---- attention ------------------------------------------------------------------------------- */

static struct hdt_mixed_attention attention_of(const struct backend_shape *s, uint16_t *qkv,
                                               void *out, float *lse)
{
    const int stride = (s->n_heads + 2 * s->n_kv_heads) * s->head_size;

    HDT_ASSERT(s->k == 0 || s->n == 1);
    return (struct hdt_mixed_attention){.n_seqs = s->n,
                                        .q_len = s->t - s->k,
                                        .kv_len = s->t,
                                        .n_heads = s->n_heads,
                                        .n_kv_heads = s->n_kv_heads,
                                        .head_size = s->head_size,
                                        .q = qkv + (size_t)s->k * stride,
                                        .q_stride = stride,
                                        .k = qkv + s->n_heads * s->head_size,
                                        .v = qkv + (s->n_heads + s->n_kv_heads) * s->head_size,
                                        .kv_stride = stride,
                                        .out = out,
                                        .lse = lse};
}

static void attention_fwd_describe(const struct backend_shape *s, struct backend_array *a)
{
    case_of("attention_fwd")->describe(s, a);
    array16(&a[0], 0);
    array16(&a[1], ATTENTION);
    a[2].tolerance = SUMS32;
}

static void attention_fwd_launch(const struct hdt_backend *b, struct hdt_stream *st,
                                 const struct backend_shape *s, void *const *mem)
{
    struct hdt_mixed_attention a = attention_of(s, mem[0], mem[1], mem[2]);

    b->mixed->attention_fwd(st, &a);
}

static void attention_fwd_reference(const struct backend_shape *s, double *const *x)
{
    case_of("attention_fwd")->reference(s, x);
}

static void attention_bwd_describe(const struct backend_shape *s, struct backend_array *a)
{
    case_of("attention_bwd")->describe(s, a);
    array16(&a[0], 0);
    array16(&a[1], 0);
    array16(&a[3], 0);
    array16(&a[4], 4 * ATTENTION);
}

static void attention_bwd_prepare(const struct backend_shape *s, double *const *x)
{
    case_of("attention_bwd")->prepare(s, x);
}

static void attention_bwd_launch(const struct hdt_backend *b, struct hdt_stream *st,
                                 const struct backend_shape *s, void *const *mem)
{
    struct hdt_mixed_attention a = attention_of(s, mem[0], mem[1], mem[2]);
    uint16_t *dqkv = mem[4];

    b->mixed->attention_bwd(st, &a, mem[3], dqkv, dqkv + s->n_heads * s->head_size,
                            dqkv + (s->n_heads + s->n_kv_heads) * s->head_size);
}

static void attention_bwd_reference(const struct backend_shape *s, double *const *x)
{
    case_of("attention_bwd")->reference(s, x);
}

/* ---- the rest -------------------------------------------------------------------------------- */

static void swiglu_fwd_describe(const struct backend_shape *s, struct backend_array *a)
{
    case_of("swiglu_fwd")->describe(s, a);
    array16(&a[0], 0);
    array16(&a[1], ROUNDING16);
    array_amax(&a[2]);
}

static void swiglu_fwd_launch(const struct hdt_backend *b, struct hdt_stream *st,
                              const struct backend_shape *s, void *const *mem)
{
    b->mixed->swiglu_fwd(st, mem[0], s->n, s->c, mem[1], mem[2]);
}

static void swiglu_fwd_reference(const struct backend_shape *s, double *const *x)
{
    case_of("swiglu_fwd")->reference(s, x);
    amax_raise(x[1], (size_t)s->n * s->c, x[2]);
}

static void swiglu_bwd_describe(const struct backend_shape *s, struct backend_array *a)
{
    case_of("swiglu_bwd")->describe(s, a);
    array16(&a[0], 0);
    array16(&a[1], 0);
    array16(&a[2], ROUNDING16);
    a[3] = a[0];
    a[3].name = "h";
    a[3].role = BACKEND_OUT;
    array16(&a[3], ROUNDING16);
    array_amax(&a[4]);
}

static void swiglu_bwd_launch(const struct hdt_backend *b, struct hdt_stream *st,
                              const struct backend_shape *s, void *const *mem)
{
    b->mixed->swiglu_bwd(st, mem[0], mem[1], s->n, s->c, mem[2], mem[3], mem[4]);
}

static void swiglu_bwd_reference(const struct backend_shape *s, double *const *x)
{
    case_of("swiglu_bwd")->reference(s, x);
    case_of("swiglu_fwd")->reference(s, (double *const[]){x[1], x[3]});
    amax_raise(x[2], 2 * (size_t)s->n * s->c, x[4]);
}

static void cross_entropy_describe(const struct backend_shape *s, struct backend_array *a)
{
    case_of("cross_entropy")->describe(s, a);
    array16(&a[1], ROUNDING16);
}

static void cross_entropy_launch(const struct hdt_backend *b, struct hdt_stream *st,
                                 const struct backend_shape *s, void *const *mem)
{
    b->mixed->cross_entropy(st, mem[0], s->n, s->n_index, s->flags & 1 ? 0 : 0.01f, mem[1], mem[2]);
}

static void cross_entropy_reference(const struct backend_shape *s, double *const *x)
{
    case_of("cross_entropy")->reference(s, x);
}

static void adamw_describe(const struct backend_shape *s, struct backend_array *a)
{
    case_of("adamw")->describe(s, a);
    a[4] = a[1];
    a[4].name = "w16";
    a[4].role = BACKEND_OUT;
    array16(&a[4], ROUNDING16);
    a[4].rounds = 1 + 1;
    array_amax(&a[5]);
}

static void adamw_launch(const struct hdt_backend *b, struct hdt_stream *st,
                         const struct backend_shape *s, void *const *mem)
{
    b->mixed->adamw(st, &hdt_backend_adamw, mem[0], s->len, mem[1], mem[2], mem[3], mem[4], mem[5]);
}

static void adamw_reference(const struct backend_shape *s, double *const *x)
{
    case_of("adamw")->reference(s, x);
    memcpy(x[4], x[1], s->len * sizeof(double));
    amax_raise(x[4], s->len, x[5]);
}

/* ---- The table ------------------------------------------------------------------------------- */

#define CALLS(name)                                                                                \
 .op = #name, .describe = name##_describe, .launch = name##_launch, .reference = name##_reference, \
 .is_mixed = true

/* clang-format off */
const struct backend_case hdt_mixed_cases[] = {
    {CALLS(gemm),
     .shapes = {{.n = 8, .c = 72, .k = 32, .flags = 2}, {.n = 64, .c = 128, .k = 40, .flags = 5},
                {.n = 136, .c = 72, .k = 304, .flags = 8},
                {.n = 32, .c = 40, .k = 512, .flags = 15},
                {.n = 640, .c = 1024, .k = 1024, .flags = 2}},
     .large = {.n = 1024, .c = 1024, .k = 512, .flags = 14}},
    {CALLS(rmsnorm_fwd), .shapes = {{.n = 7, .c = 8}, {.n = 300, .c = 768}, {.n = 33, .c = 2304},
                {.n = 17, .c = 5120}, {.n = 3, .c = 9000}},
     .large = {.n = 4096, .c = 2048}},
    {CALLS(rmsnorm_bwd), .prepare = rmsnorm_bwd_prepare,
     .shapes = {{.n = 7, .c = 8}, {.n = 301, .c = 768}, {.n = 1000, .c = 2304},
                {.n = 17, .c = 5120}, {.n = 3, .c = 9000}},
     .large = {.n = 4096, .c = 2048}},
    {.op = "rope_fwd", .describe = rope_describe, .prepare = rope_prepare,
     .launch = rope_fwd_launch, .reference = rope_fwd_reference, .is_mixed = true,
     .shapes = {{.n = 14, .t = 7, .n_heads = 3, .head_size = 8},
                {.n = 5, .t = 5, .k = 9, .n_heads = 1, .head_size = 64}},
     .large = {.n = 4096, .t = 1024, .n_heads = 36, .head_size = 64}},
    {.op = "rope_bwd", .describe = rope_describe, .prepare = rope_prepare,
     .launch = rope_bwd_launch, .reference = rope_bwd_reference, .is_mixed = true,
     .shapes = {{.n = 14, .t = 7, .n_heads = 3, .head_size = 8},
                {.n = 5, .t = 5, .k = 9, .n_heads = 1, .head_size = 64}},
     .large = {.n = 4096, .t = 1024, .n_heads = 36, .head_size = 64}},
    {CALLS(attention_fwd),
     .shapes = {{.n = 2, .t = 5, .n_heads = 2, .n_kv_heads = 1, .head_size = 8},
                {.n = 2, .t = 67, .n_heads = 6, .n_kv_heads = 3, .head_size = 24},
                BACKEND_HEADS, BACKEND_LATE_HEADS},
     .large = {.n = 2, .t = 512, .n_heads = 8, .n_kv_heads = 4, .head_size = 64}},
    {CALLS(attention_bwd), .prepare = attention_bwd_prepare,
     .shapes = {{.n = 2, .t = 5, .n_heads = 2, .n_kv_heads = 1, .head_size = 8},
                {.n = 2, .t = 67, .n_heads = 6, .n_kv_heads = 3, .head_size = 24},
                BACKEND_HEADS},
     .large = {.n = 2, .t = 512, .n_heads = 8, .n_kv_heads = 4, .head_size = 64}},
    {CALLS(swiglu_fwd), .shapes = {{.n = 1, .c = 8}, {.n = 37, .c = 328}},
     .large = {.n = 4096, .c = 5632}},
    {CALLS(swiglu_bwd), .shapes = {{.n = 1, .c = 8}, {.n = 37, .c = 328}},
     .large = {.n = 4096, .c = 5632}},
    {CALLS(cross_entropy),
     .shapes = {{.n = 1, .n_index = 8}, {.n = 40, .n_index = 136},
                {.n = 17, .n_index = 304, .flags = 1}},
     .large = {.n = 512, .n_index = 32000}},
    {CALLS(adamw), .shapes = {{.len = 8}, {.len = 100008}}, .large = {.len = (size_t)1 << 25}},
};
/* clang-format on */
const size_t hdt_n_mixed_cases = sizeof(hdt_mixed_cases) / sizeof(hdt_mixed_cases[0]);
