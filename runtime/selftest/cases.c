/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tolerances: an elementwise result of few operations in float32 is off by a few 2^-24 (6e-8) of
 * itself; a sum of k products by about sqrt(k) 2^-24 of the array's size, with a factor of about 5
 * for the worst of many; exponentials add 2 to 3 units in the last place.
 */
#include "config.h"

#include "runtime/selftest/cases.h"
#include "runtime/selftest/ref_grads.h"
#include "src/base/buf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EPS       1e-5
#define CE_SCALE  0.01
#define ROUNDINGS 4e-7
#define SUMS      1e-5
#define FACTOR    0.37

static struct backend_array array_of(const char *name, enum backend_role role, size_t len,
                                     double tolerance)
{
    return (struct backend_array){
        .name = name, .role = role, .dtype = HDT_DTYPE_F32, .len = len, .tolerance = tolerance};
}

static struct backend_array index_array(const char *name, int len, enum backend_fill fill)
{
    return (struct backend_array){
        .name = name, .role = BACKEND_IN, .dtype = HDT_DTYPE_I32, .fill = fill, .len = (size_t)len};
}

static struct backend_array sum_array(const char *name, enum backend_role role, double tolerance)
{
    return (struct backend_array){
        .name = name, .role = role, .dtype = HDT_DTYPE_F64, .len = 1, .tolerance = tolerance};
}

/* ---- gemm: n rows, c columns, k; flags 1 and 2 transpose, 4 adds half of C ------------------- */

static struct hdt_ref_gemm gemm_of(const struct backend_shape *s)
{
    bool trans_a = s->flags & 1, trans_b = s->flags & 2;

    return (struct hdt_ref_gemm){.m = s->n,
                                 .n = s->c,
                                 .k = s->k,
                                 .trans_a = trans_a,
                                 .trans_b = trans_b,
                                 .alpha = 0.75,
                                 .beta = s->flags & 4 ? 0.5 : 0,
                                 .lda = trans_a ? s->n : s->k,
                                 .ldb = trans_b ? s->k : s->c,
                                 .ldc = s->c};
}

static void gemm_describe(const struct backend_shape *s, struct backend_array *a)
{
    a[0] = array_of("a", BACKEND_IN, (size_t)s->n * s->k, 0);
    a[1] = array_of("b", BACKEND_IN, (size_t)s->k * s->c, 0);
    a[2] = array_of("c", s->flags & 4 ? BACKEND_INOUT : BACKEND_OUT, (size_t)s->n * s->c, SUMS);
}

static void gemm_launch(const struct hdt_backend *b, struct hdt_stream *st,
                        const struct backend_shape *s, void *const *mem)
{
    struct hdt_ref_gemm r = gemm_of(s);
    struct hdt_gemm g = {.m = r.m,
                         .n = r.n,
                         .k = r.k,
                         .trans_a = r.trans_a,
                         .trans_b = r.trans_b,
                         .alpha = (float)r.alpha,
                         .beta = (float)r.beta,
                         .a = mem[0],
                         .lda = r.lda,
                         .b = mem[1],
                         .ldb = r.ldb,
                         .c = mem[2],
                         .ldc = r.ldc};

    b->ops->gemm(st, &g);
}

static void gemm_reference(const struct backend_shape *s, double *const *x)
{
    struct hdt_ref_gemm g = gemm_of(s);

    hdt_ref_gemm(&g, x[0], x[1], x[2]);
}

/* ---- rmsnorm: (n, c) ------------------------------------------------------------------------- */

static void rstd_of(const double *x, int n, int c, double *rstd)
{
    for (int i = 0; i < n; i++) {
        double sum = 0;

        for (int j = 0; j < c; j++) {
            sum += x[(size_t)i * c + j] * x[(size_t)i * c + j];
        }
        rstd[i] = 1 / sqrt(sum / c + EPS);
    }
}

static void rmsnorm_fwd_describe(const struct backend_shape *s, struct backend_array *a)
{
    a[0] = array_of("x", BACKEND_IN, (size_t)s->n * s->c, 0);
    a[1] = array_of("w", BACKEND_IN, (size_t)s->c, 0);
    a[2] = array_of("y", BACKEND_OUT, (size_t)s->n * s->c, SUMS);
    a[3] = array_of("rstd", BACKEND_OUT, (size_t)s->n, SUMS);
}

static void rmsnorm_fwd_launch(const struct hdt_backend *b, struct hdt_stream *st,
                               const struct backend_shape *s, void *const *mem)
{
    b->ops->rmsnorm_fwd(st, mem[0], mem[1], s->n, s->c, (float)EPS, mem[2], mem[3]);
}

static void rmsnorm_fwd_reference(const struct backend_shape *s, double *const *x)
{
    hdt_ref_rmsnorm(x[0], x[1], s->n, s->c, EPS, x[2]);
    rstd_of(x[0], s->n, s->c, x[3]);
}

static void rmsnorm_bwd_describe(const struct backend_shape *s, struct backend_array *a)
{
    a[0] = array_of("dy", BACKEND_IN, (size_t)s->n * s->c, 0);
    a[1] = array_of("x", BACKEND_IN, (size_t)s->n * s->c, 0);
    a[2] = array_of("w", BACKEND_IN, (size_t)s->c, 0);
    a[3] = array_of("rstd", BACKEND_IN, (size_t)s->n, 0);
    a[4] = array_of("dx", BACKEND_INOUT, (size_t)s->n * s->c, SUMS);
    a[5] = array_of("dw", BACKEND_INOUT, (size_t)s->c, SUMS);
}

static void rmsnorm_bwd_prepare(const struct backend_shape *s, double *const *x)
{
    rstd_of(x[1], s->n, s->c, x[3]);
}

static void rmsnorm_bwd_launch(const struct hdt_backend *b, struct hdt_stream *st,
                               const struct backend_shape *s, void *const *mem)
{
    b->ops->rmsnorm_bwd(st, mem[0], mem[1], mem[2], mem[3], s->n, s->c, mem[4], mem[5]);
}

static void rmsnorm_bwd_reference(const struct backend_shape *s, double *const *x)
{
    hdt_ref_rmsnorm_grad(x[0], x[1], x[2], s->n, s->c, EPS, x[4], x[5]);
}

/* ---- rope: n rows in sequences of t from position k on; rows hold one head more, left alone -- */

static int rope_stride(const struct backend_shape *s)
{
    return (s->n_heads + 1) * s->head_size;
}

static void rope_describe(const struct backend_shape *s, struct backend_array *a)
{
    a[0] = array_of("cos_sin", BACKEND_IN, (size_t)(s->t + s->k) * s->head_size, 0);
    a[1] = array_of("x", BACKEND_INOUT, (size_t)s->n * rope_stride(s), ROUNDINGS);
}

static void rope_prepare(const struct backend_shape *s, double *const *x)
{
    int half = s->head_size / 2;

    for (int i = 0; i < (s->t + s->k) * half; i++) {
        int pos = i / half, pair = i % half;
        double angle = pos * pow(10000, -2.0 * pair / s->head_size);

        x[0][pos * s->head_size + pair] = cos(angle);
        x[0][pos * s->head_size + half + pair] = sin(angle);
    }
}

static void rope_fwd_launch(const struct hdt_backend *b, struct hdt_stream *st,
                            const struct backend_shape *s, void *const *mem)
{
    b->ops->rope_fwd(st, mem[0], s->n, s->t, s->k, s->n_heads, s->head_size, rope_stride(s),
                     mem[1]);
}

static void rope_bwd_launch(const struct hdt_backend *b, struct hdt_stream *st,
                            const struct backend_shape *s, void *const *mem)
{
    b->ops->rope_bwd(st, mem[0], s->n, s->t, s->k, s->n_heads, s->head_size, rope_stride(s),
                     mem[1]);
}

static void rope_turn(const struct backend_shape *s, double *const *x, double direction)
{
    int half = s->head_size / 2;

    for (int i = 0; i < s->n * s->n_heads * half; i++) {
        int pair = i % half, head = i / half % s->n_heads, row = i / half / s->n_heads;
        const double *angles = x[0] + (size_t)(s->k + row % s->t) * s->head_size;
        double *at = x[1] + (size_t)row * rope_stride(s) + (size_t)head * s->head_size + pair;
        double a = at[0], b = at[half], turn = direction * angles[half + pair];

        at[0] = a * angles[pair] - b * turn;
        at[half] = b * angles[pair] + a * turn;
    }
}

static void rope_fwd_reference(const struct backend_shape *s, double *const *x)
{
    rope_turn(s, x, 1);
}

static void rope_bwd_reference(const struct backend_shape *s, double *const *x)
{
    rope_turn(s, x, -1);
}

/* ---- attention: n sequences of t keys and, forward, the last t - k positions as queries -------
 */

static struct hdt_ref_attention attention_of(const struct backend_shape *s)
{
    return (struct hdt_ref_attention){.n_seqs = s->n,
                                      .q_len = s->t - s->k,
                                      .kv_len = s->t,
                                      .n_heads = s->n_heads,
                                      .n_kv_heads = s->n_kv_heads,
                                      .head_size = s->head_size};
}

static int attention_stride(const struct backend_shape *s)
{
    return (s->n_heads + 2 * s->n_kv_heads) * s->head_size;
}

static void attention_fwd_describe(const struct backend_shape *s, struct backend_array *a)
{
    size_t n_queries = (size_t)s->n * (s->t - s->k) * s->n_heads;

    a[0] = array_of("qkv", BACKEND_IN, (size_t)s->n * s->t * attention_stride(s), 0);
    a[1] = array_of("out", BACKEND_OUT, n_queries * s->head_size, SUMS);
    a[2] = array_of("lse", BACKEND_OUT, n_queries, SUMS);
}

/* Queries stand at the ends of the sequences, so with k > 0 only one sequence has them in rows of
 * even distance. */
static struct hdt_attention attention_args(const struct backend_shape *s, float *qkv, float *out,
                                           float *lse)
{
    int stride = attention_stride(s);

    HDT_ASSERT(s->k == 0 || s->n == 1);
    return (struct hdt_attention){.n_seqs = s->n,
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

static void attention_fwd_launch(const struct hdt_backend *b, struct hdt_stream *st,
                                 const struct backend_shape *s, void *const *mem)
{
    struct hdt_attention a = attention_args(s, mem[0], mem[1], mem[2]);

    b->ops->attention_fwd(st, &a);
}

static void attention_fwd_reference(const struct backend_shape *s, double *const *x)
{
    struct hdt_ref_attention a = attention_of(s);

    hdt_ref_attention(&a, x[0], x[1], x[2]);
}

static void attention_bwd_describe(const struct backend_shape *s, struct backend_array *a)
{
    attention_fwd_describe(s, a);
    a[1].role = BACKEND_IN;
    a[2].role = BACKEND_IN;
    a[3] = array_of("dout", BACKEND_IN, a[1].len, 0);
    a[4] = array_of("dqkv", BACKEND_OUT, a[0].len, 2 * SUMS); /* sums of products of sums */
}

static void attention_bwd_launch(const struct hdt_backend *b, struct hdt_stream *st,
                                 const struct backend_shape *s, void *const *mem)
{
    struct hdt_attention a = attention_args(s, mem[0], mem[1], mem[2]);
    float *dqkv = mem[4];

    b->ops->attention_bwd(st, &a, mem[3], dqkv, dqkv + s->n_heads * s->head_size,
                          dqkv + (s->n_heads + s->n_kv_heads) * s->head_size);
}

static void attention_bwd_reference(const struct backend_shape *s, double *const *x)
{
    struct hdt_ref_attention a = attention_of(s);

    hdt_ref_attention_grad(&a, x[0], x[3], x[4]);
}

/* ---- swiglu: (n, c) -------------------------------------------------------------------------- */

static void swiglu_fwd_describe(const struct backend_shape *s, struct backend_array *a)
{
    a[0] = array_of("gate_up", BACKEND_IN, (size_t)s->n * 2 * s->c, 0);
    a[1] = array_of("h", BACKEND_OUT, (size_t)s->n * s->c, 2 * ROUNDINGS);
}

static void swiglu_fwd_launch(const struct hdt_backend *b, struct hdt_stream *st,
                              const struct backend_shape *s, void *const *mem)
{
    b->ops->swiglu_fwd(st, mem[0], s->n, s->c, mem[1]);
}

static void swiglu_fwd_reference(const struct backend_shape *s, double *const *x)
{
    hdt_ref_swiglu(x[0], s->n, s->c, x[1]);
}

static void swiglu_bwd_describe(const struct backend_shape *s, struct backend_array *a)
{
    a[0] = array_of("dh", BACKEND_IN, (size_t)s->n * s->c, 0);
    a[1] = array_of("gate_up", BACKEND_IN, (size_t)s->n * 2 * s->c, 0);
    a[2] = array_of("dgate_up", BACKEND_OUT, (size_t)s->n * 2 * s->c, 2 * ROUNDINGS);
}

static void swiglu_bwd_launch(const struct hdt_backend *b, struct hdt_stream *st,
                              const struct backend_shape *s, void *const *mem)
{
    b->ops->swiglu_bwd(st, mem[0], mem[1], s->n, s->c, mem[2]);
}

static void swiglu_bwd_reference(const struct backend_shape *s, double *const *x)
{
    hdt_ref_swiglu_grad(x[0], x[1], s->n, s->c, x[2]);
}

/* ---- embedding: n tokens of n_index, rows of c; cross-entropy: n rows of n_index logits ------ */

static void embedding_fwd_describe(const struct backend_shape *s, struct backend_array *a)
{
    a[0] = index_array("tokens", s->n, BACKEND_FILL_INDEX);
    a[1] = array_of("w", BACKEND_IN, (size_t)s->n_index * s->c, 0);
    a[2] = array_of("out", BACKEND_OUT, (size_t)s->n * s->c, 0);
}

static void embedding_fwd_launch(const struct hdt_backend *b, struct hdt_stream *st,
                                 const struct backend_shape *s, void *const *mem)
{
    b->ops->embedding_fwd(st, mem[0], mem[1], s->n, s->c, mem[2]);
}

static void embedding_fwd_reference(const struct backend_shape *s, double *const *x)
{
    for (int i = 0; i < s->n; i++) {
        memcpy(x[2] + (size_t)i * s->c, x[1] + (size_t)x[0][i] * (size_t)s->c,
               (size_t)s->c * sizeof(double));
    }
}

static void embedding_bwd_describe(const struct backend_shape *s, struct backend_array *a)
{
    a[0] = index_array("tokens", s->n, BACKEND_FILL_INDEX);
    a[1] = array_of("dout", BACKEND_IN, (size_t)s->n * s->c, 0);
    a[2] = array_of("dw", BACKEND_INOUT, (size_t)s->n_index * s->c, SUMS);
}

static void embedding_bwd_launch(const struct hdt_backend *b, struct hdt_stream *st,
                                 const struct backend_shape *s, void *const *mem)
{
    b->ops->embedding_bwd(st, mem[0], mem[1], s->n, s->c, mem[2]);
}

static void embedding_bwd_reference(const struct backend_shape *s, double *const *x)
{
    for (int i = 0; i < s->n; i++) {
        for (int j = 0; j < s->c; j++) {
            x[2][(size_t)x[0][i] * (size_t)s->c + (size_t)j] += x[1][(size_t)i * s->c + j];
        }
    }
}

static void cross_entropy_describe(const struct backend_shape *s, struct backend_array *a)
{
    a[0] = index_array("labels", s->n, BACKEND_FILL_LABEL);
    a[1] = array_of("logits", BACKEND_INOUT, (size_t)s->n * s->n_index, SUMS);
    a[2] = sum_array("loss_sum", BACKEND_INOUT, 1e-6);
}

/* flags 1: evaluation, which leaves the logits. */
static void cross_entropy_launch(const struct hdt_backend *b, struct hdt_stream *st,
                                 const struct backend_shape *s, void *const *mem)
{
    b->ops->cross_entropy(st, mem[0], s->n, s->n_index, s->flags & 1 ? 0 : (float)CE_SCALE, mem[1],
                          mem[2]);
}

static void cross_entropy_reference(const struct backend_shape *s, double *const *x)
{
    int32_t *labels = hdt_calloc((size_t)s->n, sizeof(*labels));

    for (int i = 0; i < s->n; i++) {
        labels[i] = (int32_t)x[0][i];
    }
    x[2][0] += hdt_ref_cross_entropy(x[1], labels, s->n, s->n_index);
    if (!(s->flags & 1)) {
        hdt_ref_cross_entropy_grad(labels, s->n, s->n_index, (double)(float)CE_SCALE, x[1]);
    }
    free(labels);
}

/* ---- flat ops -------------------------------------------------------------------------------- */

static void add_describe(const struct backend_shape *s, struct backend_array *a)
{
    a[0] = array_of("x", BACKEND_IN, s->len, 0);
    a[1] = array_of("y", BACKEND_INOUT, s->len, ROUNDINGS);
}

static void add_launch(const struct hdt_backend *b, struct hdt_stream *st,
                       const struct backend_shape *s, void *const *mem)
{
    b->ops->add(st, mem[0], s->len, mem[1]);
}

static void add_reference(const struct backend_shape *s, double *const *x)
{
    for (size_t i = 0; i < s->len; i++) {
        x[1][i] += x[0][i];
    }
}

static void scale_describe(const struct backend_shape *s, struct backend_array *a)
{
    a[0] = array_of("x", BACKEND_INOUT, s->len, ROUNDINGS);
}

static void scale_launch(const struct hdt_backend *b, struct hdt_stream *st,
                         const struct backend_shape *s, void *const *mem)
{
    b->ops->scale(st, (float)FACTOR, s->len, mem[0]);
}

static void scale_reference(const struct backend_shape *s, double *const *x)
{
    for (size_t i = 0; i < s->len; i++) {
        x[0][i] *= (double)(float)FACTOR;
    }
}

static void zero_describe(const struct backend_shape *s, struct backend_array *a)
{
    a[0] = array_of("x", BACKEND_OUT, s->len, 0);
}

static void zero_launch(const struct hdt_backend *b, struct hdt_stream *st,
                        const struct backend_shape *s, void *const *mem)
{
    b->ops->zero(st, mem[0], s->len * sizeof(float));
}

static void zero_reference(const struct backend_shape *s, double *const *x)
{
    memset(x[0], 0, s->len * sizeof(double));
}

static void cast_describe(const struct backend_shape *s, struct backend_array *a)
{
    /* Half a unit in the last place of the target. */
    static const double roundings[] = {
        [HDT_DTYPE_F32] = 0x1p-24, [HDT_DTYPE_BF16] = 0x1p-8, [HDT_DTYPE_F16] = 0x1p-11};

    a[0] = array_of("src", BACKEND_IN, s->len, 0);
    a[0].dtype = s->src;
    a[0].fill = BACKEND_FILL_WIDE;
    a[1] = array_of("dst", BACKEND_OUT, s->len, roundings[s->dst]);
    a[1].dtype = s->dst;
}

static void cast_launch(const struct hdt_backend *b, struct hdt_stream *st,
                        const struct backend_shape *s, void *const *mem)
{
    b->ops->cast(st, mem[0], s->src, s->len, s->dst, mem[1]);
}

static void cast_reference(const struct backend_shape *s, double *const *x)
{
    /* Halfway between the largest number and the next power of two: from there on it is infinity.
     */
    static const double limits[] = {
        [HDT_DTYPE_F32] = 0x1.ffffffp127, [HDT_DTYPE_BF16] = 0x1.ffp127, [HDT_DTYPE_F16] = 65520};

    for (size_t i = 0; i < s->len; i++) {
        x[1][i] = fabs(x[0][i]) >= limits[s->dst] ? copysign(INFINITY, x[0][i]) : x[0][i];
    }
}

#define N_SPANS 20 /* more than any backend takes at once; of a short array some are empty */

/* Part i of x: no two that are not empty are of one length. */
static size_t span_begin(const struct backend_shape *s, size_t i)
{
    return s->len * i * i / (N_SPANS * N_SPANS);
}

static void sumsq_describe(const struct backend_shape *s, struct backend_array *a)
{
    a[0] = array_of("x", BACKEND_IN, s->len, 0);
    a[1] = sum_array("sums", BACKEND_OUT, 1e-12);
    a[1].len = N_SPANS;
}

static void sumsq_launch(const struct hdt_backend *b, struct hdt_stream *st,
                         const struct backend_shape *s, void *const *mem)
{
    struct hdt_span spans[N_SPANS];

    for (size_t i = 0; i < N_SPANS; i++) {
        spans[i].x = (const float *)mem[0] + span_begin(s, i);
        spans[i].len = span_begin(s, i + 1) - span_begin(s, i);
    }
    b->ops->sumsq(st, spans, N_SPANS, mem[1]);
}

/* With compensated sums, so that the reference of a long array is good to the last place. */
static void sumsq_reference(const struct backend_shape *s, double *const *x)
{
    for (size_t i = 0; i < N_SPANS; i++) {
        double sum = 0, low = 0;

        for (size_t j = span_begin(s, i); j < span_begin(s, i + 1); j++) {
            double term = x[0][j] * x[0][j] - low, next = sum + term;

            low = (next - sum) - term;
            sum = next;
        }
        x[1][i] = sum;
    }
}

const struct hdt_adamw hdt_backend_adamw = {.lr = 3e-3f,
                                            .beta1 = 0.9f,
                                            .beta2 = 0.95f,
                                            .eps = 1e-8f,
                                            .weight_decay = 0.1f,
                                            .grad_scale = 0.5f,
                                            .step = 3};

static void adamw_describe(const struct backend_shape *s, struct backend_array *a)
{
    a[0] = array_of("g", BACKEND_IN, s->len, 0);
    a[1] = array_of("w", BACKEND_INOUT, s->len, ROUNDINGS);
    a[2] = array_of("m", BACKEND_INOUT, s->len, ROUNDINGS);
    a[3] = array_of("v", BACKEND_INOUT, s->len, ROUNDINGS);
    a[3].fill = BACKEND_FILL_SQUARE;
}

static void adamw_launch(const struct hdt_backend *b, struct hdt_stream *st,
                         const struct backend_shape *s, void *const *mem)
{
    b->ops->adamw(st, &hdt_backend_adamw, mem[0], s->len, mem[1], mem[2], mem[3]);
}

static void adamw_reference(const struct backend_shape *s, double *const *x)
{
    const struct hdt_adamw *p = &hdt_backend_adamw;
    double b1 = (double)p->beta1, b2 = (double)p->beta2, lr = (double)p->lr;
    double keep = 1 - lr * (double)p->weight_decay;

    for (size_t i = 0; i < s->len; i++) {
        double g = x[0][i] * (double)p->grad_scale;
        double m = b1 * x[2][i] + (1 - b1) * g, v = b2 * x[3][i] + (1 - b2) * g * g;
        double m_hat = m / (1 - pow(b1, (double)p->step));
        double v_hat = v / (1 - pow(b2, (double)p->step));

        x[1][i] = x[1][i] * keep - lr * m_hat / (sqrt(v_hat) + (double)p->eps);
        x[2][i] = m;
        x[3][i] = v;
    }
}

/* ---- The table ------------------------------------------------------------------------------- */

#define FLAT_LARGE ((size_t)1 << 25)
#define FLAT_SHAPES                                                                                \
 .shapes = {{.len = 1}, {.len = 2047}, {.len = 100003}}, .large = {.len = FLAT_LARGE}
/* A single value, odd ones, and rows that fast kernels hold in registers. */
#define NORM_SHAPES                                                                                \
 {.n = 1, .c = 1}, {.n = 7, .c = 129}, {.n = 300, .c = 64}, {.n = 65, .c = 768},                   \
     {.n = 33, .c = 2304},                                                                         \
 {                                                                                                 \
  .n = 17, .c = 5120                                                                               \
 }
#define CALLS(name)                                                                                \
 .op = #name, .describe = name##_describe, .launch = name##_launch, .reference = name##_reference
#define CAST(from, to)                                                                             \
 {                                                                                                 \
  CALLS(cast),                                                                                     \
      .is_exact = true, .is_wide = true,                                                           \
      .shapes = {{.len = 31, .src = from, .dst = to}, {.len = 70001, .src = from, .dst = to}},     \
      .large = {                                                                                   \
          .len = FLAT_LARGE,                                                                       \
          .src = from,                                                                             \
          .dst = to                                                                                \
      }                                                                                            \
 }

/* clang-format off */
const struct backend_case hdt_backend_cases[] = {
    {CALLS(gemm),
     .shapes = {{.n = 1, .c = 70, .k = 33, .flags = 2}, {.n = 65, .c = 129, .k = 31, .flags = 5},
                {.n = 130, .c = 67, .k = 300}, {.n = 31, .c = 40, .k = 517, .flags = 7},
                {.n = 640, .c = 1024, .k = 1024, .flags = 2}},
     .large = {.n = 512, .c = 1024, .k = 512, .flags = 2}},
    {CALLS(rmsnorm_fwd),
     .shapes = {NORM_SHAPES},
     .large = {.n = 4096, .c = 1024}},
    {CALLS(rmsnorm_bwd), .prepare = rmsnorm_bwd_prepare,
     .shapes = {NORM_SHAPES},
     .large = {.n = 4096, .c = 1024}},
    {.op = "rope_fwd", .describe = rope_describe, .prepare = rope_prepare,
     .launch = rope_fwd_launch, .reference = rope_fwd_reference,
     .shapes = {{.n = 14, .t = 7, .n_heads = 3, .head_size = 10},
                {.n = 5, .t = 5, .k = 9, .n_heads = 1, .head_size = 64}},
     .large = {.n = 4096, .t = 1024, .n_heads = 16, .head_size = 64}},
    {.op = "rope_bwd", .describe = rope_describe, .prepare = rope_prepare,
     .launch = rope_bwd_launch, .reference = rope_bwd_reference,
     .shapes = {{.n = 14, .t = 7, .n_heads = 3, .head_size = 10},
                {.n = 5, .t = 5, .k = 9, .n_heads = 1, .head_size = 64}},
     .large = {.n = 4096, .t = 1024, .n_heads = 16, .head_size = 64}},
    {CALLS(attention_fwd),
     .shapes = {{.n = 2, .t = 5, .n_heads = 2, .n_kv_heads = 1, .head_size = 4},
                {.n = 1, .t = 70, .k = 69, .n_heads = 4, .n_kv_heads = 2, .head_size = 32},
                {.n = 2, .t = 67, .n_heads = 6, .n_kv_heads = 3, .head_size = 24},
                BACKEND_HEADS, BACKEND_LATE_HEADS},
     .large = {.n = 2, .t = 512, .n_heads = 8, .n_kv_heads = 4, .head_size = 64}},
    {CALLS(attention_bwd), .prepare = attention_fwd_reference,
     .shapes = {{.n = 2, .t = 5, .n_heads = 2, .n_kv_heads = 1, .head_size = 4},
                {.n = 2, .t = 67, .n_heads = 6, .n_kv_heads = 3, .head_size = 24},
                BACKEND_HEADS},
     .large = {.n = 2, .t = 512, .n_heads = 8, .n_kv_heads = 4, .head_size = 64}},
    {CALLS(swiglu_fwd), .shapes = {{.n = 1, .c = 1}, {.n = 37, .c = 91}},
     .large = {.n = 4096, .c = 2048}},
    {CALLS(swiglu_bwd), .shapes = {{.n = 1, .c = 1}, {.n = 37, .c = 91}},
     .large = {.n = 4096, .c = 2048}},
    {CALLS(embedding_fwd), .is_exact = true,
     .shapes = {{.n = 1, .c = 1, .n_index = 1}, {.n = 200, .c = 75, .n_index = 11}},
     .large = {.n = 8192, .c = 1024, .n_index = 4096}},
    {CALLS(embedding_bwd),
     .shapes = {{.n = 1, .c = 1, .n_index = 1}, {.n = 200, .c = 75, .n_index = 11}},
     .large = {.n = 8192, .c = 1024, .n_index = 4096}},
    {CALLS(cross_entropy),
     .shapes = {{.n = 1, .n_index = 1}, {.n = 40, .n_index = 131},
                {.n = 17, .n_index = 300, .flags = 1}},
     .large = {.n = 512, .n_index = 8192}},
    {CALLS(add), .is_exact = true, FLAT_SHAPES},
    {CALLS(scale), .is_exact = true, FLAT_SHAPES},
    {CALLS(zero), .is_exact = true, FLAT_SHAPES},
    CAST(HDT_DTYPE_F32, HDT_DTYPE_BF16),
    CAST(HDT_DTYPE_BF16, HDT_DTYPE_F32),
    CAST(HDT_DTYPE_F32, HDT_DTYPE_F16),
    CAST(HDT_DTYPE_F16, HDT_DTYPE_F32),
    CAST(HDT_DTYPE_BF16, HDT_DTYPE_F16),
    CAST(HDT_DTYPE_F16, HDT_DTYPE_BF16),
    {CALLS(sumsq), FLAT_SHAPES},
    {CALLS(adamw), .is_exact = true, FLAT_SHAPES},
};
/* clang-format on */
const size_t hdt_n_backend_cases = sizeof(hdt_backend_cases) / sizeof(hdt_backend_cases[0]);
