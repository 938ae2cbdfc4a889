/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/support/mixed_ref.h"
#include "src/base/buf.h"

#include <stdlib.h>
#include <string.h>

static const struct hdt_ops *ops;
static struct hdt_backend mixed_backend;
static bool truncates;

/* A float32 copy of bfloat16 values, to be freed; without a source of zeros. */
static float *wide(struct hdt_stream *s, const void *src, size_t len)
{
    float *x = hdt_calloc(len, sizeof(*x));

    if (src) {
        ops->cast(s, src, HDT_DTYPE_BF16, len, HDT_DTYPE_F32, x);
    }
    return x;
}

static void rounded(struct hdt_stream *s, const float *x, size_t len, void *dst)
{
    uint16_t *halves = dst;

    if (!truncates) {
        ops->cast(s, x, HDT_DTYPE_F32, len, HDT_DTYPE_BF16, dst);
        return;
    }
    for (size_t i = 0; i < len; i++) { /* little-endian: the upper half */
        memcpy(&halves[i], (const char *)&x[i] + sizeof(*halves), sizeof(*halves));
    }
}

/* Round into dst, and free. */
static void narrow(struct hdt_stream *s, float *x, size_t len, void *dst)
{
    rounded(s, x, len, dst);
    free(x);
}

static void ref_gemm(struct hdt_stream *s, const struct hdt_mixed_gemm *g)
{
    const size_t d_len = (size_t)g->m * g->ldd, d_size = hdt_dtype_size(g->d_dtype);
    float *a = wide(s, g->a, (size_t)(g->trans_a ? g->k : g->m) * g->lda);
    float *b = wide(s, g->b, (size_t)(g->trans_b ? g->n : g->k) * g->ldb);
    float *d = hdt_calloc(d_len, sizeof(*d));
    const struct hdt_gemm plain = {.m = g->m,
                                   .n = g->n,
                                   .k = g->k,
                                   .trans_a = g->trans_a,
                                   .trans_b = g->trans_b,
                                   .alpha = g->alpha,
                                   .beta = g->beta,
                                   .a = a,
                                   .lda = g->lda,
                                   .b = b,
                                   .ldb = g->ldb,
                                   .c = d,
                                   .ldc = g->ldd};

    HDT_ASSERT(g->ldd == g->n && (d_size == 4 || d_size == 2));
    if (g->beta != 0) {
        ops->cast(s, g->c, g->d_dtype, d_len, HDT_DTYPE_F32, d);
    }
    ops->gemm(s, &plain);
    if (g->d_dtype == HDT_DTYPE_BF16) {
        rounded(s, d, d_len, g->d);
    } else {
        memcpy(g->d, d, d_len * sizeof(*d));
    }
    free(a);
    free(b);
    free(d);
}

static void ref_rmsnorm_fwd(struct hdt_stream *s, const float *x, const float *w, int n, int c,
                            float eps, void *y, float *rstd)
{
    float *out = wide(s, NULL, (size_t)n * c);

    ops->rmsnorm_fwd(s, x, w, n, c, eps, out, rstd);
    narrow(s, out, (size_t)n * c, y);
}

static void ref_rmsnorm_bwd(struct hdt_stream *s, const void *dy, const float *x, const float *w,
                            const float *rstd, int n, int c, float *dx, void *dx16, float *dw)
{
    float *in = wide(s, dy, (size_t)n * c);

    ops->rmsnorm_bwd(s, in, x, w, rstd, n, c, dx, dw);
    rounded(s, dx, (size_t)n * c, dx16);
    free(in);
}

static void ref_rope_fwd(struct hdt_stream *s, const float *cos_sin, int n, int t, int pos,
                         int n_heads, int head_size, int stride, void *x)
{
    float *rows = wide(s, x, (size_t)n * stride);

    ops->rope_fwd(s, cos_sin, n, t, pos, n_heads, head_size, stride, rows);
    narrow(s, rows, (size_t)n * stride, x);
}

static void ref_rope_bwd(struct hdt_stream *s, const float *cos_sin, int n, int t, int pos,
                         int n_heads, int head_size, int stride, void *dx)
{
    float *rows = wide(s, dx, (size_t)n * stride);

    ops->rope_bwd(s, cos_sin, n, t, pos, n_heads, head_size, stride, rows);
    narrow(s, rows, (size_t)n * stride, dx);
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Values from the first head of the first row to the last of the last. */
static size_t heads_len(const struct hdt_mixed_attention *a, int len, int n_heads, int stride)
{
    return ((size_t)a->n_seqs * len - 1) * stride + (size_t)n_heads * a->head_size;
}

static size_t q_len(const struct hdt_mixed_attention *a)
{
    return heads_len(a, a->q_len, a->n_heads, a->q_stride);
}

static size_t kv_len(const struct hdt_mixed_attention *a)
{
    return heads_len(a, a->kv_len, a->n_kv_heads, a->kv_stride);
}

static size_t out_len(const struct hdt_mixed_attention *a)
{
    return (size_t)a->n_seqs * a->q_len * a->n_heads * a->head_size;
}

/* The same in float32; q, k and v are the caller's, who frees them. */
static struct hdt_attention attention_wide(struct hdt_stream *s,
                                           const struct hdt_mixed_attention *a, float *parts[3],
                                           float *out)
{
    parts[0] = wide(s, a->q, q_len(a));
    parts[1] = wide(s, a->k, kv_len(a));
    parts[2] = wide(s, a->v, kv_len(a));
    return (struct hdt_attention){.n_seqs = a->n_seqs,
                                  .q_len = a->q_len,
                                  .kv_len = a->kv_len,
                                  .n_heads = a->n_heads,
                                  .n_kv_heads = a->n_kv_heads,
                                  .head_size = a->head_size,
                                  .q = parts[0],
                                  .q_stride = a->q_stride,
                                  .k = parts[1],
                                  .v = parts[2],
                                  .kv_stride = a->kv_stride,
                                  .out = out,
                                  .lse = a->lse};
}

static void parts_free(float *parts[3])
{
    for (int i = 0; i < 3; i++) {
        free(parts[i]);
    }
}

static void ref_attention_fwd(struct hdt_stream *s, const struct hdt_mixed_attention *a)
{
    float *parts[3], *out = wide(s, NULL, out_len(a));
    const struct hdt_attention plain = attention_wide(s, a, parts, out);

    ops->attention_fwd(s, &plain);
    narrow(s, out, out_len(a), a->out);
    parts_free(parts);
}

/* Round the heads of each row, and leave alone what lies between; frees. */
static void heads_narrow(struct hdt_stream *s, float *x, int n_rows, int width, int stride,
                         void *dst)
{
    for (int i = 0; i < n_rows; i++) {
        ops->cast(s, x + (size_t)i * stride, HDT_DTYPE_F32, (size_t)width, HDT_DTYPE_BF16,
                  (uint16_t *)dst + (size_t)i * stride);
    }
    free(x);
}

static void ref_attention_bwd(struct hdt_stream *s, const struct hdt_mixed_attention *a,
                              const void *dout, void *dq, void *dk, void *dv)
{
    const int n_q = a->n_seqs * a->q_len, n_kv = a->n_seqs * a->kv_len;
    float *parts[3], *out = wide(s, a->out, out_len(a)), *in = wide(s, dout, out_len(a));
    const struct hdt_attention plain = attention_wide(s, a, parts, out);
    float *q = wide(s, NULL, q_len(a)), *k = wide(s, NULL, kv_len(a)),
          *v = wide(s, NULL, kv_len(a));

    ops->attention_bwd(s, &plain, in, q, k, v);
    heads_narrow(s, q, n_q, a->n_heads * a->head_size, a->q_stride, dq);
    heads_narrow(s, k, n_kv, a->n_kv_heads * a->head_size, a->kv_stride, dk);
    heads_narrow(s, v, n_kv, a->n_kv_heads * a->head_size, a->kv_stride, dv);
    parts_free(parts);
    free(out);
    free(in);
}

/* ---- the rest -------------------------------------------------------------------------------- */

static void ref_swiglu_fwd(struct hdt_stream *s, const void *gate_up, int n, int f, void *h)
{
    float *in = wide(s, gate_up, (size_t)n * 2 * f), *out = wide(s, NULL, (size_t)n * f);

    ops->swiglu_fwd(s, in, n, f, out);
    narrow(s, out, (size_t)n * f, h);
    free(in);
}

static void ref_swiglu_bwd(struct hdt_stream *s, const void *dh, const void *gate_up, int n, int f,
                           void *dgate_up, void *h)
{
    float *in = wide(s, gate_up, (size_t)n * 2 * f), *d = wide(s, dh, (size_t)n * f);
    float *out = wide(s, NULL, (size_t)n * 2 * f);

    ops->swiglu_bwd(s, d, in, n, f, out);
    narrow(s, out, (size_t)n * 2 * f, dgate_up);
    if (h) {
        ops->swiglu_fwd(s, in, n, f, d);
        rounded(s, d, (size_t)n * f, h);
    }
    free(in);
    free(d);
}

static void ref_cross_entropy(struct hdt_stream *s, const int32_t *labels, int n, int v,
                              float scale, void *logits, double *loss_sum)
{
    float *rows = wide(s, logits, (size_t)n * v);

    ops->cross_entropy(s, labels, n, v, scale, rows, loss_sum);
    narrow(s, rows, (size_t)n * v, logits);
}

static void ref_adamw(struct hdt_stream *s, const struct hdt_adamw *p, const float *g, size_t len,
                      float *w, float *m, float *v, void *w16)
{
    ops->adamw(s, p, g, len, w, m, v);
    rounded(s, w, len, w16);
}

static const struct hdt_mixed_ops mixed_ops = {
    .gemm = ref_gemm,
    .rmsnorm_fwd = ref_rmsnorm_fwd,
    .rmsnorm_bwd = ref_rmsnorm_bwd,
    .rope_fwd = ref_rope_fwd,
    .rope_bwd = ref_rope_bwd,
    .attention_fwd = ref_attention_fwd,
    .attention_bwd = ref_attention_bwd,
    .swiglu_fwd = ref_swiglu_fwd,
    .swiglu_bwd = ref_swiglu_bwd,
    .cross_entropy = ref_cross_entropy,
    .adamw = ref_adamw,
};

const struct hdt_backend *hdt_mixed_ref(const struct hdt_backend *cpu)
{
    HDT_ASSERT(cpu->caps & HDT_BACKEND_HOST_MEMORY);
    ops = cpu->ops;
    mixed_backend = *cpu;
    mixed_backend.mixed = &mixed_ops;
    truncates = false;
    return &mixed_backend;
}

const struct hdt_backend *hdt_mixed_ref_truncating(const struct hdt_backend *cpu)
{
    hdt_mixed_ref(cpu);
    truncates = true;
    return &mixed_backend;
}
