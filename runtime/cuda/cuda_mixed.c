/* SPDX-License-Identifier: Apache-2.0 */
/* The ops in mixed precision of the cuda backend. */
#include "config.h"

#include "runtime/adamw.h"
#include "runtime/cuda/cuda_attention.h"
#include "runtime/cuda/cuda_gemm.h"
#include "runtime/cuda/cuda_ops.h"

static void mixed_gemm(struct hdt_stream *s, const struct hdt_mixed_gemm *g)
{
    const struct hdt_cuda_gemm product = {.m = g->m,
                                          .n = g->n,
                                          .k = g->k,
                                          .trans_a = g->trans_a,
                                          .trans_b = g->trans_b,
                                          .alpha = g->alpha,
                                          .beta = g->beta,
                                          .a_dtype = HDT_DTYPE_BF16,
                                          .b_dtype = HDT_DTYPE_BF16,
                                          .d_dtype = g->d_dtype,
                                          .a = g->a,
                                          .lda = g->lda,
                                          .b = g->b,
                                          .ldb = g->ldb,
                                          .c = g->c,
                                          .d = g->d,
                                          .ldd = g->ldd};

    hdt_cuda_gemm(s, &product);
}

static void mixed_rmsnorm_fwd(struct hdt_stream *s, const float *x, const float *w, int n, int c,
                              float eps, void *y, float *rstd)
{
    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(
            s, hdt_cuda_rmsnorm_fwd(s->handle, x, w, n, c, eps, HDT_DTYPE_BF16, y, rstd),
            "queue rmsnorm_fwd");
    }
}

static void mixed_rmsnorm_bwd(struct hdt_stream *s, const void *dy, const float *x, const float *w,
                              const float *rstd, int n, int c, float *dx, void *dx16, float *dw)
{
    const struct hdt_cuda_norm_bwd p = {.dy = dy,
                                        .dtype = HDT_DTYPE_BF16,
                                        .x = x,
                                        .w = w,
                                        .rstd = rstd,
                                        .n = n,
                                        .c = c,
                                        .dx = dx,
                                        .dx_act = dx16,
                                        .dw = dw};

    hdt_cuda_norm_bwd(s, &p);
}

static void mixed_rope_fwd(struct hdt_stream *s, const float *cos_sin, int n, int t, int pos,
                           int n_heads, int head_size, int stride, void *x)
{
    const struct hdt_cuda_rope_args p = {cos_sin, n, t, pos, n_heads, head_size, stride, 1};

    hdt_cuda_rotate(s, &p, HDT_DTYPE_BF16, x);
}

static void mixed_rope_bwd(struct hdt_stream *s, const float *cos_sin, int n, int t, int pos,
                           int n_heads, int head_size, int stride, void *dx)
{
    const struct hdt_cuda_rope_args p = {cos_sin, n, t, pos, n_heads, head_size, stride, -1};

    hdt_cuda_rotate(s, &p, HDT_DTYPE_BF16, dx);
}

/* ---- attention ------------------------------------------------------------------------------- */

static struct hdt_cuda_attention attention_of(const struct hdt_mixed_attention *a)
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

static void mixed_attention_fwd(struct hdt_stream *s, const struct hdt_mixed_attention *a)
{
    const struct hdt_cuda_attention attention = attention_of(a);

    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(s, hdt_cuda_attention_fwd_bf16(s->handle, &attention),
                               "queue attention_fwd");
    }
}

static void mixed_attention_bwd(struct hdt_stream *s, const struct hdt_mixed_attention *a,
                                const void *dout, void *dq, void *dk, void *dv)
{
    const struct hdt_cuda_attention attention = attention_of(a);
    struct hdt_cuda_attention_grads grads = {.dout = dout, .dq = dq, .dk = dk, .dv = dv};

    if (!hdt_cuda_stream_enter(s)) {
        return;
    }
    grads.scratch =
        hdt_cuda_scratch(s, hdt_cuda_attention_scratch(a->n_seqs, a->q_len, a->n_heads));
    if (grads.scratch) {
        hdt_cuda_stream_result(s, hdt_cuda_attention_bwd_bf16(s->handle, &attention, &grads),
                               "queue attention_bwd");
    }
}

/* ---- the rest -------------------------------------------------------------------------------- */

static void mixed_swiglu_fwd(struct hdt_stream *s, const void *gate_up, int n, int f, void *h,
                             float *amax)
{
    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(
            s, hdt_cuda_swiglu_fwd(s->handle, gate_up, n, f, HDT_DTYPE_BF16, h, amax),
            "queue swiglu_fwd");
    }
}

static void mixed_swiglu_bwd(struct hdt_stream *s, const void *dh, const void *gate_up, int n,
                             int f, void *dgate_up, void *h, float *amax)
{
    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(
            s, hdt_cuda_swiglu_bwd(s->handle, dh, gate_up, n, f, HDT_DTYPE_BF16, dgate_up, h, amax),
            "queue swiglu_bwd");
    }
}

static void mixed_cross_entropy(struct hdt_stream *s, const int32_t *labels, int n, int v,
                                float scale, void *logits, double *loss_sum)
{
    hdt_cuda_losses(s, labels, n, v, scale, HDT_DTYPE_BF16, logits, loss_sum);
}

static void mixed_adamw(struct hdt_stream *s, const struct hdt_adamw *p, const float *g, size_t len,
                        float *w, float *m, float *v, void *w16, float *amax)
{
    const struct hdt_adamw_numbers numbers = hdt_adamw_prepare(p);

    if (hdt_cuda_stream_enter(s)) {
        hdt_cuda_stream_result(s, hdt_cuda_adamw16(s->handle, &numbers, g, len, w, m, v, w16, amax),
                               "queue adamw");
    }
}

const struct hdt_mixed_ops hdt_cuda_mixed_ops = {
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
