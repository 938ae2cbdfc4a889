/* SPDX-License-Identifier: Apache-2.0 */
/* The ops of the cuda backend: arguments checked and prepared, then queued. */
#include "config.h"

#include "runtime/adamw.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_attention.h"
#include "runtime/cuda/cuda_gemm.h"
#include "runtime/cuda/cuda_kernels.h"
#include "runtime/cuda/cuda_ops.h"
#include "runtime/cuda/cuda_rows.h"

static void cuda_add(struct hdt_stream *s, const float *x, size_t len, float *y)
{
    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(s, hdt_cuda_add(s->handle, x, len, y), "queue add");
    }
}

static void cuda_scale(struct hdt_stream *s, float factor, size_t len, float *x)
{
    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(s, hdt_cuda_scale(s->handle, factor, len, x), "queue scale");
    }
}

static void cuda_zero(struct hdt_stream *s, void *x, size_t bytes)
{
    if (bytes > 0 && hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(s, cudaMemsetAsync(x, 0, bytes, s->handle), "queue zero");
    }
}

static bool dtype_is_castable(enum hdt_dtype dtype)
{
    return dtype == HDT_DTYPE_F32 || dtype == HDT_DTYPE_BF16 || dtype == HDT_DTYPE_F16;
}

static void cuda_cast(struct hdt_stream *s, const void *src, enum hdt_dtype src_dtype, size_t len,
                      enum hdt_dtype dst_dtype, void *dst)
{
    HDT_ASSERT(dtype_is_castable(src_dtype) && dtype_is_castable(dst_dtype));
    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(s, hdt_cuda_cast(s->handle, src, src_dtype, len, dst_dtype, dst),
                               "queue cast");
    }
}

static void cuda_sumsq(struct hdt_stream *s, const struct hdt_span *spans, int n, double *sums)
{
    for (int i = 0; i < n && hdt_cuda_stream_enter(s); i += HDT_CUDA_SUMS) {
        const int n_now = n - i < HDT_CUDA_SUMS ? n - i : HDT_CUDA_SUMS;

        hdt_cuda_stream_result(
            s, hdt_cuda_sumsq(s->handle, spans + i, n_now, s->reductions, sums + i), "queue sumsq");
    }
}

static void cuda_adamw(struct hdt_stream *s, const struct hdt_adamw *p, const float *g, size_t len,
                       float *w, float *m, float *v)
{
    const struct hdt_adamw_numbers numbers = hdt_adamw_prepare(p);

    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(s, hdt_cuda_adamw(s->handle, &numbers, g, len, w, m, v),
                               "queue adamw");
    }
}

/* ---- products, norms, rotations, SwiGLU ------------------------------------------------------ */

static void cuda_gemm(struct hdt_stream *s, const struct hdt_gemm *g)
{
    const struct hdt_cuda_gemm product = {.m = g->m,
                                          .n = g->n,
                                          .k = g->k,
                                          .trans_a = g->trans_a,
                                          .trans_b = g->trans_b,
                                          .alpha = g->alpha,
                                          .beta = g->beta,
                                          .a_dtype = HDT_DTYPE_F32,
                                          .b_dtype = HDT_DTYPE_F32,
                                          .d_dtype = HDT_DTYPE_F32,
                                          .a = g->a,
                                          .lda = g->lda,
                                          .b = g->b,
                                          .ldb = g->ldb,
                                          .c = g->c,
                                          .d = g->c,
                                          .ldd = g->ldc};

    hdt_cuda_gemm(s, &product);
}

static void cuda_rmsnorm_fwd(struct hdt_stream *s, const float *x, const float *w, int n, int c,
                             float eps, float *y, float *rstd)
{
    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(
            s, hdt_cuda_rmsnorm_fwd(s->handle, x, w, n, c, eps, HDT_DTYPE_F32, y, rstd),
            "queue rmsnorm_fwd");
    }
}

void hdt_cuda_norm_bwd(struct hdt_stream *s, const struct hdt_cuda_norm_bwd *p)
{
    void *scratch;

    if (!hdt_cuda_stream_enter(s)) {
        return;
    }
    scratch = hdt_cuda_scratch(s, hdt_cuda_rmsnorm_bwd_scratch(p->c));
    if (scratch) {
        hdt_cuda_stream_result(s, hdt_cuda_rmsnorm_bwd(s->handle, p, scratch), "queue rmsnorm_bwd");
    }
}

static void cuda_rmsnorm_bwd(struct hdt_stream *s, const float *dy, const float *x, const float *w,
                             const float *rstd, int n, int c, float *dx, float *dw)
{
    const struct hdt_cuda_norm_bwd p = {.dy = dy,
                                        .dtype = HDT_DTYPE_F32,
                                        .x = x,
                                        .w = w,
                                        .rstd = rstd,
                                        .n = n,
                                        .c = c,
                                        .dx = dx,
                                        .dw = dw};

    hdt_cuda_norm_bwd(s, &p);
}

void hdt_cuda_rotate(struct hdt_stream *s, const struct hdt_cuda_rope_args *p, enum hdt_dtype dtype,
                     void *x)
{
    HDT_ASSERT(p->head_size % 2 == 0);
    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(s, hdt_cuda_rope(s->handle, p, dtype, x), "queue rope");
    }
}

static void cuda_rope_fwd(struct hdt_stream *s, const float *cos_sin, int n, int t, int pos,
                          int n_heads, int head_size, int stride, float *x)
{
    const struct hdt_cuda_rope_args p = {cos_sin, n, t, pos, n_heads, head_size, stride, 1};

    hdt_cuda_rotate(s, &p, HDT_DTYPE_F32, x);
}

static void cuda_rope_bwd(struct hdt_stream *s, const float *cos_sin, int n, int t, int pos,
                          int n_heads, int head_size, int stride, float *dx)
{
    const struct hdt_cuda_rope_args p = {cos_sin, n, t, pos, n_heads, head_size, stride, -1};

    hdt_cuda_rotate(s, &p, HDT_DTYPE_F32, dx);
}

static void cuda_swiglu_fwd(struct hdt_stream *s, const float *gate_up, int n, int f, float *h)
{
    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(
            s, hdt_cuda_swiglu_fwd(s->handle, gate_up, n, f, HDT_DTYPE_F32, h, NULL),
            "queue swiglu_fwd");
    }
}

static void cuda_swiglu_bwd(struct hdt_stream *s, const float *dh, const float *gate_up, int n,
                            int f, float *dgate_up)
{
    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(
            s,
            hdt_cuda_swiglu_bwd(s->handle, dh, gate_up, n, f, HDT_DTYPE_F32, dgate_up, NULL, NULL),
            "queue swiglu_bwd");
    }
}

/* ---- attention ------------------------------------------------------------------------------- */

static bool is_word(const void *mem)
{
    return (uintptr_t)mem % 16 == 0;
}

/* Whether the fast kernels of cuda_attention.h take it; those of cuda_plain.cu take the rest. */
static bool attention_is_fast(const struct hdt_attention *a)
{
    return a->head_size % 8 == 0 && a->head_size <= HDT_MIXED_HEAD_MAX && a->q_stride % 4 == 0 &&
           a->kv_stride % 4 == 0 && is_word(a->q) && is_word(a->k) && is_word(a->v) &&
           is_word(a->out);
}

static struct hdt_cuda_attention attention_of(const struct hdt_attention *a)
{
    return (struct hdt_cuda_attention){.n_seqs = a->n_seqs,
                                       .q_len = a->q_len,
                                       .kv_len = a->kv_len,
                                       .n_heads = a->n_heads,
                                       .n_kv_heads = a->n_kv_heads,
                                       .head_size = a->head_size,
                                       .q = a->q,
                                       .q_stride = a->q_stride,
                                       .k = a->k,
                                       .v = a->v,
                                       .kv_stride = a->kv_stride,
                                       .out = a->out,
                                       .lse = a->lse};
}

static void cuda_attention_fwd(struct hdt_stream *s, const struct hdt_attention *a)
{
    const struct hdt_cuda_attention attention = attention_of(a);

    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(s,
                               attention_is_fast(a)
                                   ? hdt_cuda_attention_fwd_f32(s->handle, &attention)
                                   : hdt_cuda_plain_fwd(s->handle, a),
                               "queue attention_fwd");
    }
}

static void cuda_attention_bwd(struct hdt_stream *s, const struct hdt_attention *a,
                               const float *dout, float *dq, float *dk, float *dv)
{
    const struct hdt_cuda_attention attention = attention_of(a);
    struct hdt_cuda_attention_grads grads = {.dout = dout, .dq = dq, .dk = dk, .dv = dv};
    const bool is_fast =
        attention_is_fast(a) && is_word(dout) && is_word(dq) && is_word(dk) && is_word(dv);

    if (!hdt_cuda_stream_enter(s)) {
        return;
    }
    grads.scratch =
        hdt_cuda_scratch(s, hdt_cuda_attention_scratch(a->n_seqs, a->q_len, a->n_heads));
    if (grads.scratch) {
        hdt_cuda_stream_result(
            s,
            is_fast ? hdt_cuda_attention_bwd_f32(s->handle, &attention, &grads)
                    : hdt_cuda_plain_bwd(s->handle, a, dout, grads.scratch, dq, dk, dv),
            "queue attention_bwd");
    }
}

/* ---- embedding, cross-entropy ---------------------------------------------------------------- */

static void cuda_embedding_fwd(struct hdt_stream *s, const int32_t *tokens, const float *w, int n,
                               int c, float *out)
{
    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(s, hdt_cuda_embedding_fwd(s->handle, tokens, w, n, c, out),
                               "queue embedding_fwd");
    }
}

static void cuda_embedding_bwd(struct hdt_stream *s, const int32_t *tokens, const float *dout,
                               int n, int c, float *dw)
{
    void *scratch;

    if (!hdt_cuda_stream_enter(s)) {
        return;
    }
    scratch = hdt_cuda_scratch(s, hdt_cuda_embedding_scratch(n));
    if (scratch) {
        hdt_cuda_stream_result(s,
                               hdt_cuda_embedding_bwd(s->handle, tokens, dout, n, c, scratch, dw),
                               "queue embedding_bwd");
    }
}

void hdt_cuda_losses(struct hdt_stream *s, const int32_t *labels, int n, int v, float scale,
                     enum hdt_dtype dtype, void *logits, double *loss_sum)
{
    double *row_loss;

    if (!hdt_cuda_stream_enter(s)) {
        return;
    }
    row_loss = hdt_cuda_scratch(s, (size_t)n * sizeof(*row_loss));
    if (row_loss) {
        hdt_cuda_stream_result(s,
                               hdt_cuda_cross_entropy(s->handle, labels, n, v, scale, dtype, logits,
                                                      row_loss, loss_sum),
                               "queue cross_entropy");
    }
}

static void cuda_cross_entropy(struct hdt_stream *s, const int32_t *labels, int n, int v,
                               float scale, float *logits, double *loss_sum)
{
    hdt_cuda_losses(s, labels, n, v, scale, HDT_DTYPE_F32, logits, loss_sum);
}

const struct hdt_ops hdt_cuda_ops = {
    .gemm = cuda_gemm,
    .rmsnorm_fwd = cuda_rmsnorm_fwd,
    .rmsnorm_bwd = cuda_rmsnorm_bwd,
    .rope_fwd = cuda_rope_fwd,
    .rope_bwd = cuda_rope_bwd,
    .attention_fwd = cuda_attention_fwd,
    .attention_bwd = cuda_attention_bwd,
    .swiglu_fwd = cuda_swiglu_fwd,
    .swiglu_bwd = cuda_swiglu_bwd,
    .embedding_fwd = cuda_embedding_fwd,
    .embedding_bwd = cuda_embedding_bwd,
    .cross_entropy = cuda_cross_entropy,
    .add = cuda_add,
    .scale = cuda_scale,
    .zero = cuda_zero,
    .cast = cuda_cast,
    .sumsq = cuda_sumsq,
    .adamw = cuda_adamw,
};
