/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stage's arithmetic, as calls of the backend's ops.
 *
 * In the backward pass one buffer per slot carries the gradient down through the blocks: it comes
 * as the gradient of a block's output, each half of the block adds its share to it by the norm's
 * backward (the residual path needs nothing), and it leaves as the gradient of the block's input.
 *
 * In two halves, the first one keeps what the second needs over activations that nobody needs any
 * more, so that it takes no memory: the gradient of a block's output over that output, of gate and
 * up over these, of the attention's output over mid, of q, k and v over these. Norms are done with
 * in the first half: their weights are few, and one op makes both of their gradients.
 *
 * The head runs its backward within forward, on a few rows at a time: logits of a large vocabulary
 * would be the largest thing in memory, and so they never exist as a whole.
 */
#include "config.h"

#include "runtime/stage_impl.h"

#include <string.h>

/* Rows that a forward pass works on: all of the micro-batch, or a few new ones of one sequence. */
struct rows {
    int row0;   /* first row in the buffers */
    int n;      /* rows */
    int n_seqs; /* sequences that they belong to */
    int t;      /* rows of each sequence */
    int pos;    /* position of each sequence's first row */
};

static struct rows rows_all(const struct hdt_stage *s)
{
    return (struct rows){.n = s->n, .n_seqs = s->conf.B, .t = s->T};
}

/* ---- Products with weights ------------------------------------------------------------------- */

/* y (n, out) = x (n, in) W^T, with W (out, in); added to y when beta is 1. */
static void linear_fwd(const struct hdt_stage *s, const float *x, const float *w, int n, int in,
                       int out, float beta, float *y)
{
    struct hdt_gemm g = {.m = n,
                         .n = out,
                         .k = in,
                         .trans_b = true,
                         .alpha = 1,
                         .beta = beta,
                         .a = x,
                         .lda = in,
                         .b = w,
                         .ldb = in,
                         .c = y,
                         .ldc = out};

    s->ops->gemm(s->stream, &g);
}

/* dx (n, in) = dy (n, out) W. Sets. */
static void linear_dx(const struct hdt_stage *s, const float *dy, const float *w, int n, int in,
                      int out, float *dx)
{
    struct hdt_gemm g = {.m = n,
                         .n = in,
                         .k = out,
                         .alpha = 1,
                         .a = dy,
                         .lda = out,
                         .b = w,
                         .ldb = in,
                         .c = dx,
                         .ldc = in};

    s->ops->gemm(s->stream, &g);
}

/* dW (out, in) += dy^T x. */
static void linear_dw(const struct hdt_stage *s, const float *dy, const float *x, int n, int in,
                      int out, float *dw)
{
    struct hdt_gemm g = {.m = out,
                         .n = in,
                         .k = n,
                         .trans_a = true,
                         .alpha = 1,
                         .beta = 1,
                         .a = dy,
                         .lda = out,
                         .b = x,
                         .ldb = in,
                         .c = dw,
                         .ldc = in};

    s->ops->gemm(s->stream, &g);
}

static void buffer_copy(const struct hdt_stage *s, float *dst, const float *src, size_t len)
{
    s->backend->copy(s->stream, dst, src, len * sizeof(float), HDT_COPY_ON_DEVICE);
}

/* ---- Block ----------------------------------------------------------------------------------- */

static struct hdt_attention attention_of(const struct hdt_stage *s, const struct stage_act *act,
                                         const struct rows *r)
{
    const float *qkv = act->qkv, *k = qkv + s->NH * s->HS;

    return (struct hdt_attention){
        .n_seqs = r->n_seqs,
        .q_len = r->t,
        .kv_len = r->pos + r->t,
        .n_heads = s->NH,
        .n_kv_heads = s->NKV,
        .head_size = s->HS,
        .q = qkv + (size_t)r->row0 * s->Q,
        .q_stride = s->Q,
        .k = k,
        .v = k + s->NKV * s->HS,
        .kv_stride = s->Q,
        .out = (float *)act->att + (size_t)r->row0 * s->NH * s->HS,
        .lse = act->lse,
    };
}

/* mid = x + attention(norm(x)) Wo^T */
static void attention_half_fwd(const struct hdt_stage *s, int block, const struct stage_act *act,
                               const float *x, const struct rows *r)
{
    size_t row = (size_t)r->row0;
    float *xn = (float *)act->xn1 + row * s->C, *qkv = (float *)act->qkv + row * s->Q;
    float *mid = act->mid + row * s->C;
    struct hdt_attention a = attention_of(s, act, r);

    x += row * s->C;
    s->ops->rmsnorm_fwd(s->stream, x, hdt_stage_block_tensor(s, block, NORM1)->w, r->n, s->C,
                        (float)s->conf.model.rms_norm_eps, xn, act->rstd1 + row);
    linear_fwd(s, xn, hdt_stage_block_tensor(s, block, WQ)->w, r->n, s->C, s->Q, 0, qkv);
    s->ops->rope_fwd(s->stream, s->cos_sin, r->n, r->t, r->pos, s->NH + s->NKV, s->HS, s->Q, qkv);
    s->ops->attention_fwd(s->stream, &a);
    buffer_copy(s, mid, x, (size_t)r->n * s->C);
    linear_fwd(s, a.out, hdt_stage_block_tensor(s, block, WO)->w, r->n, s->NH * s->HS, s->C, 1,
               mid);
}

/* y = mid + swiglu(norm(mid)) Wd^T; without y only what backward needs. */
static void mlp_half_fwd(const struct hdt_stage *s, int block, const struct stage_act *act,
                         float *y, const struct rows *r)
{
    size_t row = (size_t)r->row0;
    float *mid = act->mid + row * s->C, *xn = (float *)act->xn2 + row * s->C;
    float *gu = (float *)act->gu + row * 2 * s->F, *h = (float *)act->h + row * s->F;

    s->ops->rmsnorm_fwd(s->stream, mid, hdt_stage_block_tensor(s, block, NORM2)->w, r->n, s->C,
                        (float)s->conf.model.rms_norm_eps, xn, act->rstd2 + row);
    linear_fwd(s, xn, hdt_stage_block_tensor(s, block, GATE)->w, r->n, s->C, 2 * s->F, 0, gu);
    s->ops->swiglu_fwd(s->stream, gu, r->n, s->F, h);
    if (y) {
        y += row * s->C;
        buffer_copy(s, y, mid, (size_t)r->n * s->C);
        linear_fwd(s, h, hdt_stage_block_tensor(s, block, DOWN)->w, r->n, s->F, s->C, 1, y);
    }
}

/* `kept`: where to leave the gradient of the block's output, for the weights' half to come; NULL:
 * add to the weights' gradients here. */
static void mlp_half_bwd(const struct hdt_stage *s, int block, const struct stage_act *act,
                         float *grad, float *kept)
{
    const struct stage_tensor *down = hdt_stage_block_tensor(s, block, DOWN);
    const struct stage_tensor *gate = hdt_stage_block_tensor(s, block, GATE);
    const struct stage_tensor *norm = hdt_stage_block_tensor(s, block, NORM2);
    float *dh = s->work.dnarrow, *dgu = s->work.dwide, *dxn = s->work.dxn;

    if (kept) {
        buffer_copy(s, kept, grad, (size_t)s->n * s->C);
    } else {
        linear_dw(s, grad, act->h, s->n, s->F, s->C, down->grad);
    }
    linear_dx(s, grad, down->w, s->n, s->F, s->C, dh);
    s->ops->swiglu_bwd(s->stream, dh, act->gu, s->n, s->F, dgu);
    if (kept) {
        buffer_copy(s, act->gu, dgu, (size_t)s->n * 2 * s->F);
    } else {
        linear_dw(s, dgu, act->xn2, s->n, s->C, 2 * s->F, gate->grad);
    }
    linear_dx(s, dgu, gate->w, s->n, s->C, 2 * s->F, dxn);
    s->ops->rmsnorm_bwd(s->stream, dxn, act->mid, norm->w, act->rstd2, s->n, s->C, grad,
                        norm->grad);
}

static void attention_half_bwd(const struct hdt_stage *s, int block, const struct stage_act *act,
                               const float *x, float *grad, bool keep)
{
    const struct stage_tensor *wo = hdt_stage_block_tensor(s, block, WO);
    const struct stage_tensor *wq = hdt_stage_block_tensor(s, block, WQ);
    const struct stage_tensor *norm = hdt_stage_block_tensor(s, block, NORM1);
    struct rows r = rows_all(s);
    struct hdt_attention a = attention_of(s, act, &r);
    float *datt = s->work.dnarrow, *dqkv = s->work.dwide, *dxn = s->work.dxn;
    float *dk = dqkv + s->NH * s->HS;

    if (keep) {
        buffer_copy(s, act->mid, grad, (size_t)s->n * s->C);
    } else {
        linear_dw(s, grad, act->att, s->n, s->NH * s->HS, s->C, wo->grad);
    }
    linear_dx(s, grad, wo->w, s->n, s->NH * s->HS, s->C, datt);
    s->ops->attention_bwd(s->stream, &a, datt, dqkv, dk, dk + s->NKV * s->HS);
    s->ops->rope_bwd(s->stream, s->cos_sin, s->n, s->T, 0, s->NH + s->NKV, s->HS, s->Q, dqkv);
    if (keep) {
        buffer_copy(s, act->qkv, dqkv, (size_t)s->n * s->Q);
    } else {
        linear_dw(s, dqkv, act->xn1, s->n, s->C, s->Q, wq->grad);
    }
    linear_dx(s, dqkv, wq->w, s->n, s->C, s->Q, dxn);
    s->ops->rmsnorm_bwd(s->stream, dxn, x, norm->w, act->rstd1, s->n, s->C, grad, norm->grad);
}

/* What mlp_half_bwd and attention_half_bwd left out. */
static void block_weights_bwd(const struct hdt_stage *s, const struct stage_slot *slot, int block)
{
    const struct stage_act *act = &slot->acts[block];

    if (s->mixed) {
        hdt_stage_mixed_weights_bwd(s, slot, block);
        return;
    }
    linear_dw(s, hdt_stage_block_output(s, slot, block), act->h, s->n, s->F, s->C,
              hdt_stage_block_tensor(s, block, DOWN)->grad);
    linear_dw(s, act->gu, act->xn2, s->n, s->C, 2 * s->F,
              hdt_stage_block_tensor(s, block, GATE)->grad);
    linear_dw(s, act->mid, act->att, s->n, s->NH * s->HS, s->C,
              hdt_stage_block_tensor(s, block, WO)->grad);
    linear_dw(s, act->qkv, act->xn1, s->n, s->C, s->Q, hdt_stage_block_tensor(s, block, WQ)->grad);
}

/* All blocks on the given rows. `keep`: for the backward that comes; `again`: to recompute, where
 * the stage's output is known. */
static void blocks_fwd(const struct hdt_stage *s, const struct stage_slot *slot,
                       const struct rows *r, bool keep, bool again)
{
    const float *x = slot->x;

    if (s->mixed) {
        hdt_stage_mixed_fwd(s, slot, keep, again);
        return;
    }
    for (int i = 0; i < s->n_blocks; i++) {
        float *y = hdt_stage_block_output(s, slot, i);

        attention_half_fwd(s, i, &slot->acts[i], x, r);
        mlp_half_fwd(s, i, &slot->acts[i], again && i == s->n_blocks - 1 ? NULL : y, r);
        x = y;
    }
}

/* ---- Head ------------------------------------------------------------------------------------ */

/* Loss of rows [row, row + n), and their gradients when training. */
static void head_rows_run(const struct hdt_stage *s, const struct stage_slot *slot, int row, int n,
                          bool train)
{
    const struct stage_tensor *head = hdt_stage_head_tensor(s);
    const struct stage_work *w = &s->work;
    float *xn = (float *)w->head_xn + (size_t)row * s->C;

    linear_fwd(s, xn, head->w, n, s->C, s->V, 0, w->logits);
    s->ops->cross_entropy(s->stream, slot->labels + row, n, s->V, train ? s->loss_scale : 0,
                          w->logits, slot->loss);
    if (train) {
        linear_dw(s, w->logits, xn, n, s->C, s->V, head->grad);
        linear_dx(s, w->logits, head->w, n, s->C, s->V, (float *)w->dxn + (size_t)row * s->C);
    }
}

static void head_run(const struct hdt_stage *s, const struct stage_slot *slot, bool train)
{
    const struct stage_tensor *norm = hdt_stage_final_norm(s);
    const struct stage_work *w = &s->work;

    s->ops->zero(s->stream, slot->loss, sizeof(*slot->loss));
    if (s->mixed) {
        hdt_stage_mixed_head(s, slot, train);
        return;
    }
    s->ops->rmsnorm_fwd(s->stream, slot->y, norm->w, s->n, s->C, (float)s->conf.model.rms_norm_eps,
                        w->head_xn, w->head_rstd);
    for (int row = 0; row < s->n; row += s->head_rows) {
        head_rows_run(s, slot, row, s->n - row < s->head_rows ? s->n - row : s->head_rows, train);
    }
    if (train) {
        s->ops->zero(s->stream, slot->grad, hdt_stage_activation_bytes(s));
        s->ops->rmsnorm_bwd(s->stream, w->dxn, slot->y, norm->w, w->head_rstd, s->n, s->C,
                            slot->grad, norm->grad);
    }
}

/* ---- The pass of a micro-batch --------------------------------------------------------------- */

void hdt_stage_set_loss_scale(struct hdt_stage *s, float inv_global_tokens)
{
    s->loss_scale = inv_global_tokens;
}

void hdt_stage_zero_grads(struct hdt_stage *s)
{
    if (s->mixed) {
        hdt_stage_mixed_zero_grads(s);
    } else {
        s->ops->zero(s->stream, s->grads, s->grads_len * sizeof(float));
    }
}

static struct stage_slot *slot_at(struct hdt_stage *s, int slot)
{
    HDT_ASSERT(slot >= 0 && slot < s->conf.n_slots);
    return &s->slots[slot];
}

void hdt_stage_forward(struct hdt_stage *s, int slot_idx, enum hdt_stage_mode mode)
{
    struct stage_slot *slot = slot_at(s, slot_idx);
    struct rows r = rows_all(s);

    HDT_ASSERT(mode == HDT_STAGE_EVAL || !s->conf.inference);
    hdt_stage_mixed_refresh(s);
    if (s->has_embedding) {
        s->ops->embedding_fwd(s->stream, slot->tokens, s->tensors[0].w, s->n, s->C, slot->x);
    }
    blocks_fwd(s, slot, &r, mode == HDT_STAGE_TRAIN && !s->conf.recompute, false);
    if (s->has_head) {
        head_run(s, slot, mode == HDT_STAGE_TRAIN);
    }
}

enum hdt_status hdt_stage_loss(struct hdt_stage *s, int slot, double *loss_sum,
                               struct hdt_error *err)
{
    HDT_ASSERT(s->has_head);
    return hdt_stage_read(s, loss_sum, slot_at(s, slot)->loss, sizeof(*loss_sum), err);
}

static void blocks_bwd(const struct hdt_stage *s, const struct stage_slot *slot, bool keep)
{
    if (s->mixed) {
        hdt_stage_mixed_bwd(s, slot, keep);
        return;
    }
    for (int i = s->n_blocks - 1; i >= 0; i--) {
        const float *x = i > 0 ? slot->acts[i - 1].y : slot->x;

        mlp_half_bwd(s, i, &slot->acts[i], slot->grad,
                     keep ? hdt_stage_block_output(s, slot, i) : NULL);
        attention_half_bwd(s, i, &slot->acts[i], x, slot->grad, keep);
    }
}

static void embedding_bwd(const struct hdt_stage *s, const struct stage_slot *slot)
{
    if (s->has_embedding) {
        s->ops->embedding_bwd(s->stream, slot->tokens, slot->grad, s->n, s->C, s->tensors[0].grad);
    }
}

void hdt_stage_backward(struct hdt_stage *s, int slot_idx)
{
    struct stage_slot *slot = slot_at(s, slot_idx);
    struct rows r = rows_all(s);

    HDT_ASSERT(!s->conf.inference);
    if (s->conf.recompute) {
        blocks_fwd(s, slot, &r, true, true);
    }
    blocks_bwd(s, slot, false);
    embedding_bwd(s, slot);
}

void hdt_stage_backward_input(struct hdt_stage *s, int slot_idx)
{
    HDT_ASSERT(!s->conf.inference && !s->conf.recompute && (s->conf.fp8 || hdt_stage_keeps_h(s)));
    blocks_bwd(s, slot_at(s, slot_idx), true);
}

void hdt_stage_backward_weight(struct hdt_stage *s, int slot_idx)
{
    struct stage_slot *slot = slot_at(s, slot_idx);

    for (int i = s->n_blocks - 1; i >= 0; i--) {
        block_weights_bwd(s, slot, i);
    }
    embedding_bwd(s, slot);
}

/* ---- The end of a step ----------------------------------------------------------------------- */

float *hdt_stage_tied_grad(struct hdt_stage *s, size_t *len)
{
    const struct stage_tensor *t = s->has_head ? hdt_stage_head_tensor(s) : &s->tensors[0];

    if (!s->work.tied) {
        *len = 0;
        return NULL;
    }
    *len = t->len;
    return t->grad;
}

float *hdt_stage_tied_buffer(struct hdt_stage *s)
{
    return s->work.tied;
}

void hdt_stage_finish_grads(struct hdt_stage *s, const float *other_tied_grad)
{
    size_t len;
    float *half = hdt_stage_tied_grad(s, &len);

    HDT_ASSERT((half != NULL) == (other_tied_grad != NULL));
    if (s->mixed) {
        hdt_stage_mixed_finish_grads(s);
    }
    if (half) {
        /* a + b and b + a are the same float, so both stages get the same sum. */
        s->ops->add(s->stream, other_tied_grad, len, half);
    } else if (hdt_stage_head_tensor(s)->shared) {
        s->ops->add(s->stream, hdt_stage_head_tensor(s)->grad, hdt_stage_head_tensor(s)->len,
                    s->tensors[0].grad);
    }
}

enum hdt_status hdt_stage_grad_sumsq(struct hdt_stage *s, double *sumsq, struct hdt_error *err)
{
    for (int i = 0; i < s->n_tensors; i++) {
        const struct stage_tensor *t = &s->tensors[i];

        s->spans[i] = (struct hdt_span){t->grad, t->info.tied ? 0 : t->len};
    }
    s->ops->sumsq(s->stream, s->spans, s->n_tensors, s->work.sumsq);
    return hdt_stage_read(s, sumsq, s->work.sumsq, (size_t)s->n_tensors * sizeof(*sumsq), err);
}

/* The first tensor behind `first` that one update cannot take along with it: it stands elsewhere,
 * its weights decay and the others do not, or FP8 needs each matrix's largest magnitude. */
static int update_end(const struct hdt_stage *s, int first)
{
    int end = first + 1;

    while (!s->fp8 && end < s->n_tensors && !s->tensors[end].shared &&
           s->tensors[end].info.decay == s->tensors[first].info.decay &&
           s->tensors[end].w == s->tensors[end - 1].w + s->tensors[end - 1].len) {
        end++;
    }
    return end;
}

static void update(const struct hdt_stage *s, const struct hdt_adamw *adamw, int first, int end)
{
    const struct stage_tensor *t = &s->tensors[first], *last = &s->tensors[end - 1];
    const size_t len = (size_t)(last->w - t->w) + last->len;
    struct hdt_adamw p = *adamw;

    if (!t->info.decay) {
        p.weight_decay = 0;
    }
    if (s->mixed) {
        hdt_stage_mixed_adamw(s, &p, t, len);
    } else {
        s->ops->adamw(s->stream, &p, t->grad, len, t->w, t->m, t->v);
    }
}

void hdt_stage_step(struct hdt_stage *s, const struct hdt_adamw *adamw)
{
    int end;

    if (s->fp8) {
        hdt_stage_fp8_step_begin(s);
    }
    for (int i = 0; i < s->n_tensors; i = end) {
        end = update_end(s, i);
        if (!s->tensors[i].shared) {
            update(s, adamw, i, end);
        }
    }
    if (s->fp8) {
        hdt_stage_fp8_step_end(s);
    }
}

/* ---- Generation ------------------------------------------------------------------------------ */

/* Logits of one row of the stage's output. */
static void head_row_logits(const struct hdt_stage *s, const struct stage_slot *slot, int row)
{
    const struct stage_work *w = &s->work;

    s->ops->rmsnorm_fwd(s->stream, slot->y + (size_t)row * s->C, hdt_stage_final_norm(s)->w, 1,
                        s->C, (float)s->conf.model.rms_norm_eps, w->head_xn, w->head_rstd);
    linear_fwd(s, w->head_xn, hdt_stage_head_tensor(s)->w, 1, s->C, s->V, 0, w->logits);
}

enum hdt_status hdt_stage_decode(struct hdt_stage *s, const int32_t *tokens, int pos, int n,
                                 float *logits, struct hdt_error *err)
{
    struct stage_slot *slot = &s->slots[0];
    struct rows r = {.row0 = pos, .n = n, .n_seqs = 1, .t = n, .pos = pos};

    HDT_ASSERT(s->has_embedding && s->has_head && !s->mixed && pos >= 0 && n >= 1 &&
               pos + n <= s->T);
    for (int i = 0; i < n; i++) {
        if (tokens[i] < 0 || tokens[i] >= s->V) {
            return hdt_error_set(err, HDT_EINVAL, "cannot use token %d: the vocabulary has 0 to %d",
                                 tokens[i], s->V - 1);
        }
    }
    memcpy(slot->tokens_host + pos, tokens, (size_t)n * sizeof(*tokens));
    s->backend->copy(s->stream, slot->tokens + pos, slot->tokens_host + pos,
                     (size_t)n * sizeof(*tokens), HDT_COPY_TO_DEVICE);
    s->ops->embedding_fwd(s->stream, slot->tokens + pos, s->tensors[0].w, n, s->C,
                          slot->x + (size_t)pos * s->C);
    blocks_fwd(s, slot, &r, false, false);
    head_row_logits(s, slot, pos + n - 1);
    return hdt_stage_read(s, logits, s->work.logits, (size_t)s->V * sizeof(*logits), err);
}
