/* SPDX-License-Identifier: Apache-2.0 */
/* Ops with weights and attention: values against float64, gradients against central differences. */
#include "config.h"

#include "runtime/cpu/cpu_device.h"
#include "src/base/buf.h"
#include "tests/support/op_check.h"
#include "runtime/selftest/ref_ops.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EPS   1e-5
#define THETA 10000.0

/* ---- gemm ------------------------------------------------------------------------------------ */

struct gemm_args {
    struct hdt_ref_gemm g;
    struct op_array a, b, c;
    bool plain; /* the kernels' own product rather than the op */
};

static void gemm_run(struct hdt_stream *s, void *arg, float *out)
{
    struct gemm_args *x = arg;
    const struct hdt_ref_gemm *g = &x->g;
    struct hdt_gemm op = {.m = g->m,
                          .n = g->n,
                          .k = g->k,
                          .trans_a = g->trans_a,
                          .trans_b = g->trans_b,
                          .alpha = (float)g->alpha,
                          .beta = (float)g->beta,
                          .a = x->a.f,
                          .lda = g->lda,
                          .b = x->b.f,
                          .ldb = g->ldb,
                          .c = out,
                          .ldc = g->ldc};

    memcpy(out, x->c.f, x->c.len * sizeof(*out));
    if (x->plain) {
        float *scratch = aligned_alloc(64, HDT_CPU_GEMM_SCRATCH);

        s->device->kernels->gemm(&op, scratch);
        free(scratch);
    } else {
        hdt_cpu_ops.gemm(s, &op);
    }
}

static void gemm_check(int m, int n, int k, int flags, bool plain)
{
    static const double betas[] = {0, 1, 0.5};
    struct gemm_args x = {.plain = plain};
    struct op_case c = {.name = plain ? "plain gemm" : "gemm", .run = gemm_run, .arg = &x};
    double *want;

    x.g = (struct hdt_ref_gemm){.m = m,
                                .n = n,
                                .k = k,
                                .trans_a = flags & 1,
                                .trans_b = flags & 2,
                                .alpha = flags & 1 ? 1 : 0.75,
                                .beta = betas[flags % 3]};
    x.g.lda = (x.g.trans_a ? m : k) + 3;
    x.g.ldb = (x.g.trans_b ? k : n) + 1;
    x.g.ldc = n + 2;
    x.a = hdt_op_array_new((size_t)(x.g.trans_a ? k : m) * x.g.lda);
    x.b = hdt_op_array_new((size_t)(x.g.trans_b ? n : k) * x.g.ldb);
    x.c = hdt_op_array_new((size_t)m * x.g.ldc);
    want = x.c.d;
    hdt_ref_gemm(&x.g, x.a.d, x.b.d, want);
    c.parts[0] = (struct op_part){"c", want, x.c.len};
    hdt_op_case_check(&c);
    hdt_op_array_free(&x.a);
    hdt_op_array_free(&x.b);
    hdt_op_array_free(&x.c);
}

Test(ops, gemm)
{
    static const int shapes[][3] = {{1, 1, 1},     {1, 70, 33},    {7, 5, 3},       {64, 64, 64},
                                    {65, 129, 31}, {130, 67, 300}, {200, 257, 129}, {600, 40, 17}};

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        for (int flags = 0; flags < 6; flags++) {
            gemm_check(shapes[i][0], shapes[i][1], shapes[i][2], flags, false);
            gemm_check(shapes[i][0], shapes[i][1], shapes[i][2], flags, true);
        }
    }
}

/* The blocks of the plain product are larger than the shapes above. */
Test(ops, gemm_plain_blocks)
{
    gemm_check(100, 1100, 520, 2, true);
}

/* With beta 0, what stood in C has no effect, not even a NaN. */
Test(ops, gemm_sets_over_nan)
{
    struct gemm_args x = {
        .g = {.m = 40, .n = 50, .k = 60, .alpha = 1, .lda = 60, .ldb = 50, .ldc = 50}};
    struct op_case c = {.name = "gemm over NaN", .run = gemm_run, .arg = &x};

    x.a = hdt_op_array_new(40 * 60);
    x.b = hdt_op_array_new(60 * 50);
    x.c = hdt_op_array_new(40 * 50);
    for (size_t i = 0; i < x.c.len; i++) {
        x.c.f[i] = NAN;
    }
    hdt_ref_gemm(&x.g, x.a.d, x.b.d, x.c.d);
    c.parts[0] = (struct op_part){"c", x.c.d, x.c.len};
    hdt_op_case_check(&c);
    x.plain = true;
    hdt_op_case_check(&c);
    hdt_op_array_free(&x.a);
    hdt_op_array_free(&x.b);
    hdt_op_array_free(&x.c);
}

/* ---- rmsnorm --------------------------------------------------------------------------------- */

struct norm_args {
    int n, c;
    struct op_array x, w, dy, dx0, dw0; /* dx0, dw0: what the gradients are added to */
    float *y, *rstd;
    double *ref_y;
};

static double norm_objective(void *arg)
{
    struct norm_args *a = arg;
    double sum = 0;

    hdt_ref_rmsnorm(a->x.d, a->w.d, a->n, a->c, EPS, a->ref_y);
    for (int i = 0; i < a->n * a->c; i++) {
        sum += a->ref_y[i] * a->dy.d[i];
    }
    return sum;
}

static void norm_run(struct hdt_stream *s, void *arg, float *out)
{
    struct norm_args *a = arg;
    size_t len = a->x.len;
    float *dx = out + len, *dw = dx + len;

    memcpy(dx, a->dx0.f, len * sizeof(*dx));
    memcpy(dw, a->dw0.f, a->dw0.len * sizeof(*dw));
    hdt_cpu_ops.rmsnorm_fwd(s, a->x.f, a->w.f, a->n, a->c, (float)EPS, out, a->rstd);
    hdt_cpu_ops.rmsnorm_bwd(s, a->dy.f, a->x.f, a->w.f, a->rstd, a->n, a->c, dx, dw);
}

static void norm_check(int n, int c)
{
    size_t len = (size_t)n * c;
    struct norm_args a = {.n = n,
                          .c = c,
                          .x = hdt_op_array_new(len),
                          .w = hdt_op_array_new((size_t)c),
                          .dy = hdt_op_array_new(len),
                          .dx0 = hdt_op_array_new(len),
                          .dw0 = hdt_op_array_new((size_t)c),
                          .rstd = hdt_calloc((size_t)n, sizeof(float)),
                          .ref_y = hdt_calloc(len, sizeof(double))};
    double *dx = hdt_calloc(len, sizeof(*dx)), *dw = hdt_calloc((size_t)c, sizeof(*dw));
    struct op_case op = {.name = "rmsnorm", .run = norm_run, .arg = &a};

    hdt_ref_gradient(norm_objective, &a, a.x.d, len, dx);
    hdt_ref_gradient(norm_objective, &a, a.w.d, (size_t)c, dw);
    norm_objective(&a);
    for (size_t i = 0; i < len; i++) {
        dx[i] += a.dx0.d[i];
    }
    for (int i = 0; i < c; i++) {
        dw[i] += a.dw0.d[i];
    }
    op.parts[0] = (struct op_part){"y", a.ref_y, len};
    op.parts[1] = (struct op_part){"dx", dx, len};
    op.parts[2] = (struct op_part){"dw", dw, (size_t)c};
    hdt_op_case_check(&op);
    free(dx);
    free(dw);
    free(a.rstd);
    free(a.ref_y);
    hdt_op_array_free(&a.x);
    hdt_op_array_free(&a.w);
    hdt_op_array_free(&a.dy);
    hdt_op_array_free(&a.dx0);
    hdt_op_array_free(&a.dw0);
}

Test(ops, rmsnorm)
{
    norm_check(1, 1);
    norm_check(3, 7);
    norm_check(9, 64);
    norm_check(5, 131);
}

/* Many rows: several tiles. Values only; the formula was checked above. */
Test(ops, rmsnorm_of_many_rows_has_the_same_bits)
{
    size_t len = (size_t)700 * 96;
    struct norm_args a = {.n = 700,
                          .c = 96,
                          .x = hdt_op_array_new(len),
                          .w = hdt_op_array_new(96),
                          .dy = hdt_op_array_new(len),
                          .dx0 = hdt_op_array_new(len),
                          .dw0 = hdt_op_array_new(96),
                          .rstd = hdt_calloc(700, sizeof(float)),
                          .ref_y = hdt_calloc(len, sizeof(double))};
    struct op_case op = {.name = "rmsnorm", .run = norm_run, .arg = &a};
    float *out = hdt_calloc(2 * len + 96, sizeof(*out));
    double *want = hdt_calloc(len + 96, sizeof(*want));

    hdt_op_case_run_base(&op, out);
    for (size_t i = 0; i < len + 96; i++) {
        want[i] = (double)out[len + i];
    }
    norm_objective(&a);
    op.parts[0] = (struct op_part){"y", a.ref_y, len};
    op.parts[1] = (struct op_part){"dx", want, len};
    op.parts[2] = (struct op_part){"dw", want + len, 96};
    hdt_op_case_check(&op);
    free(want);
    free(out);
    free(a.rstd);
    free(a.ref_y);
    hdt_op_array_free(&a.x);
    hdt_op_array_free(&a.w);
    hdt_op_array_free(&a.dy);
    hdt_op_array_free(&a.dx0);
    hdt_op_array_free(&a.dw0);
}

/* ---- rope ------------------------------------------------------------------------------------ */

struct rope_args {
    int n, t, pos, n_heads, head_size, stride;
    bool inverse;
    struct op_array x;
    float *cos_sin;
};

static void rope_run(struct hdt_stream *s, void *arg, float *out)
{
    struct rope_args *a = arg;

    memcpy(out, a->x.f, a->x.len * sizeof(*out));
    hdt_cpu_ops.rope_fwd(s, a->cos_sin, a->n, a->t, a->pos, a->n_heads, a->head_size, a->stride,
                         out);
    if (a->inverse) {
        hdt_cpu_ops.rope_bwd(s, a->cos_sin, a->n, a->t, a->pos, a->n_heads, a->head_size, a->stride,
                             out);
    }
}

static float *rope_table(int n_pos, int head_size)
{
    float *table = hdt_calloc((size_t)n_pos * head_size, sizeof(*table));
    int half = head_size / 2;

    for (int i = 0; i < n_pos * half; i++) {
        double angle = (i / half) * pow(THETA, -2.0 * (i % half) / head_size);

        table[(i / half) * head_size + i % half] = (float)cos(angle);
        table[(i / half) * head_size + half + i % half] = (float)sin(angle);
    }
    return table;
}

static void rope_check(struct rope_args a)
{
    double *want;
    struct op_case op = {.name = "rope", .run = rope_run, .arg = &a};

    a.x = hdt_op_array_new((size_t)a.n * a.stride);
    a.cos_sin = rope_table(a.pos + a.t, a.head_size);
    want = hdt_calloc(a.x.len, sizeof(*want));
    memcpy(want, a.x.d, a.x.len * sizeof(*want));
    hdt_ref_rope(a.n, a.t, a.pos, a.n_heads, a.head_size, a.stride, THETA, want);
    op.parts[0] = (struct op_part){"x", want, a.x.len};
    hdt_op_case_check(&op);
    /* The rotation is orthogonal: its gradient is the inverse rotation. */
    a.inverse = true;
    op.parts[0] = (struct op_part){"x back", a.x.d, a.x.len};
    hdt_op_case_check(&op);
    free(want);
    free(a.cos_sin);
    hdt_op_array_free(&a.x);
}

Test(ops, rope)
{
    rope_check((struct rope_args){.n = 6, .t = 3, .n_heads = 2, .head_size = 8, .stride = 24});
    rope_check(
        (struct rope_args){.n = 5, .t = 5, .pos = 7, .n_heads = 3, .head_size = 2, .stride = 7});
    rope_check(
        (struct rope_args){.n = 300, .t = 100, .n_heads = 5, .head_size = 64, .stride = 400});
}

/* ---- attention ------------------------------------------------------------------------------- */

struct attention_args {
    struct hdt_ref_attention r;
    struct op_array qkv, dout;
    double *ref_out, *ref_lse;
    float *lse;
    bool backward;
};

static double attention_objective(void *arg)
{
    struct attention_args *a = arg;
    double sum = 0;

    hdt_ref_attention(&a->r, a->qkv.d, a->ref_out, a->ref_lse);
    for (size_t i = 0; i < a->dout.len; i++) {
        sum += a->ref_out[i] * a->dout.d[i];
    }
    return sum;
}

static void attention_run(struct hdt_stream *s, void *arg, float *out)
{
    struct attention_args *a = arg;
    const struct hdt_ref_attention *r = &a->r;
    int stride = (r->n_heads + 2 * r->n_kv_heads) * r->head_size;
    const float *k = a->qkv.f + r->n_heads * r->head_size;
    float *lse = out + a->dout.len, *dqkv = lse + (size_t)r->n_seqs * r->n_heads * r->q_len;
    float *dk = dqkv + r->n_heads * r->head_size;
    struct hdt_attention op = {.n_seqs = r->n_seqs,
                               .q_len = r->q_len,
                               .kv_len = r->kv_len,
                               .n_heads = r->n_heads,
                               .n_kv_heads = r->n_kv_heads,
                               .head_size = r->head_size,
                               .q_stride = stride,
                               .k = k,
                               .v = k + r->n_kv_heads * r->head_size,
                               .kv_stride = stride,
                               .out = out,
                               .lse = lse};

    op.q = a->qkv.f + (size_t)(r->kv_len - r->q_len) * stride;
    hdt_cpu_ops.attention_fwd(s, &op);
    if (a->backward) {
        hdt_cpu_ops.attention_bwd(s, &op, a->dout.f, dqkv, dk, dk + r->n_kv_heads * r->head_size);
    }
}

static void attention_check(struct hdt_ref_attention r, bool backward)
{
    size_t stride = (size_t)(r.n_heads + 2 * r.n_kv_heads) * r.head_size;
    size_t n_lse = (size_t)r.n_seqs * r.n_heads * r.q_len;
    struct attention_args a = {.r = r,
                               .qkv = hdt_op_array_new((size_t)r.n_seqs * r.kv_len * stride),
                               .dout = hdt_op_array_new(n_lse * r.head_size),
                               .backward = backward};
    struct op_case op = {.name = "attention", .run = attention_run, .arg = &a};
    double *dqkv = hdt_calloc(a.qkv.len, sizeof(*dqkv));

    a.ref_out = hdt_calloc(a.dout.len, sizeof(double));
    a.ref_lse = hdt_calloc(n_lse, sizeof(double));
    if (backward) {
        hdt_ref_gradient(attention_objective, &a, a.qkv.d, a.qkv.len, dqkv);
    }
    attention_objective(&a);
    op.parts[0] = (struct op_part){"out", a.ref_out, a.dout.len};
    op.parts[1] = (struct op_part){"lse", a.ref_lse, n_lse};
    op.parts[2] = (struct op_part){"dqkv", dqkv, backward ? a.qkv.len : 0};
    hdt_op_case_check(&op);
    free(dqkv);
    free(a.ref_out);
    free(a.ref_lse);
    hdt_op_array_free(&a.qkv);
    hdt_op_array_free(&a.dout);
}

Test(ops, attention)
{
    attention_check((struct hdt_ref_attention){1, 1, 1, 1, 1, 2}, true);
    attention_check((struct hdt_ref_attention){2, 5, 5, 4, 2, 6}, true);
    attention_check((struct hdt_ref_attention){1, 67, 67, 2, 1, 4}, true);
    attention_check((struct hdt_ref_attention){1, 9, 9, 3, 3, 10}, true);
}

/* Several blocks of queries, and queries that continue a cache of keys. */
Test(ops, attention_forward_of_long_sequences)
{
    attention_check((struct hdt_ref_attention){2, 200, 200, 4, 2, 16}, false);
    attention_check((struct hdt_ref_attention){1, 1, 77, 4, 2, 16}, false);
    attention_check((struct hdt_ref_attention){1, 70, 150, 4, 1, 12}, false);
}

/* ---- swiglu ---------------------------------------------------------------------------------- */

struct swiglu_args {
    int n, f;
    struct op_array gate_up, dh;
    double *ref_h;
};

static double swiglu_objective(void *arg)
{
    struct swiglu_args *a = arg;
    double sum = 0;

    hdt_ref_swiglu(a->gate_up.d, a->n, a->f, a->ref_h);
    for (size_t i = 0; i < a->dh.len; i++) {
        sum += a->ref_h[i] * a->dh.d[i];
    }
    return sum;
}

static void swiglu_run(struct hdt_stream *s, void *arg, float *out)
{
    struct swiglu_args *a = arg;

    hdt_cpu_ops.swiglu_fwd(s, a->gate_up.f, a->n, a->f, out);
    hdt_cpu_ops.swiglu_bwd(s, a->dh.f, a->gate_up.f, a->n, a->f, out + a->dh.len);
}

static void swiglu_check(int n, int f)
{
    struct swiglu_args a = {.n = n,
                            .f = f,
                            .gate_up = hdt_op_array_new((size_t)n * 2 * f),
                            .dh = hdt_op_array_new((size_t)n * f)};
    struct op_case op = {.name = "swiglu", .run = swiglu_run, .arg = &a};
    double *dgate_up = hdt_calloc(a.gate_up.len, sizeof(*dgate_up));

    a.ref_h = hdt_calloc(a.dh.len, sizeof(double));
    hdt_ref_gradient(swiglu_objective, &a, a.gate_up.d, a.gate_up.len, dgate_up);
    swiglu_objective(&a);
    op.parts[0] = (struct op_part){"h", a.ref_h, a.dh.len};
    op.parts[1] = (struct op_part){"dgate_up", dgate_up, a.gate_up.len};
    hdt_op_case_check(&op);
    free(dgate_up);
    free(a.ref_h);
    hdt_op_array_free(&a.gate_up);
    hdt_op_array_free(&a.dh);
}

Test(ops, swiglu)
{
    swiglu_check(1, 1);
    swiglu_check(5, 13);
    swiglu_check(3, 96);
}
