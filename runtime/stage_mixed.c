/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stage's arithmetic in mixed precision (struct hdt_mixed_ops). The order of things is that of
 * stage_run.c; what differs: products take the weights' copies in bfloat16, a product that ends a
 * half of a block adds the residual itself, of the residual stream's gradient there is a copy in
 * bfloat16 for the products, which the norms' backward makes on its way, and the first product of a
 * step that adds to a matrix's gradient sets it, so that nothing need be cleared and read.
 */
#include "config.h"

#include "runtime/stage_impl.h"

static const uint16_t *w16_of(const struct hdt_stage *s, const struct stage_tensor *t)
{
    return s->params16 + (t->w - s->params);
}

static const uint16_t *block_w16(const struct hdt_stage *s, int block, int which)
{
    return w16_of(s, hdt_stage_block_tensor(s, block, which));
}

void hdt_stage_mixed_refresh(struct hdt_stage *s)
{
    if (s->mixed && s->params16_old) {
        s->ops->cast(s->stream, s->params, HDT_DTYPE_F32, s->params_len, HDT_DTYPE_BF16,
                     s->params16);
        s->params16_old = false;
        s->params8_old = true;
    }
    if (s->fp8) {
        hdt_stage_fp8_refresh(s);
    }
}

/* ---- Products with weights ------------------------------------------------------------------- */

/* y (n, out) = x (n, in) W^T in bfloat16; with a residual (n, out), that + x W^T in float32. */
static void linear_fwd(const struct hdt_stage *s, const void *x, const uint16_t *w, int n, int in,
                       int out, const float *residual, void *y)
{
    struct hdt_mixed_gemm g = {.m = n,
                               .n = out,
                               .k = in,
                               .trans_b = true,
                               .alpha = 1,
                               .beta = residual ? 1 : 0,
                               .a = x,
                               .lda = in,
                               .b = w,
                               .ldb = in,
                               .d_dtype = residual ? HDT_DTYPE_F32 : HDT_DTYPE_BF16,
                               .c = residual,
                               .d = y,
                               .ldd = out};

    s->mixed->gemm(s->stream, &g);
}

/* dx (n, in) = dy (n, out) W. Sets. */
static void linear_dx(const struct hdt_stage *s, const void *dy, const uint16_t *w, int n, int in,
                      int out, void *dx)
{
    struct hdt_mixed_gemm g = {.m = n,
                               .n = in,
                               .k = out,
                               .alpha = 1,
                               .a = dy,
                               .lda = out,
                               .b = w,
                               .ldb = in,
                               .d_dtype = HDT_DTYPE_BF16,
                               .d = dx,
                               .ldd = in};

    s->mixed->gemm(s->stream, &g);
}

/* dW (out, in) += dy^T x, with W the tensor and those that follow it without a gap. */
static void linear_dw(const struct hdt_stage *s, const void *dy, const void *x, int n, int in,
                      int out, struct stage_tensor *t)
{
    struct hdt_mixed_gemm g = {.m = out,
                               .n = in,
                               .k = n,
                               .trans_a = true,
                               .alpha = 1,
                               .beta = t->is_unset ? 0 : 1,
                               .a = dy,
                               .lda = out,
                               .b = x,
                               .ldb = in,
                               .d_dtype = HDT_DTYPE_F32,
                               .c = t->grad,
                               .d = t->grad,
                               .ldd = in};

    t->is_unset = false;
    s->mixed->gemm(s->stream, &g);
}

static void values_copy(const struct hdt_stage *s, void *dst, const void *src, size_t len)
{
    s->backend->copy(s->stream, dst, src, len * sizeof(uint16_t), HDT_COPY_ON_DEVICE);
}

/* ---- The products of a block, of bfloat16 or of FP8 ------------------------------------------ */

/* Where the next op leaves the largest magnitude, for the product after it; NULL: not asked for. */
static float *amax_begin(const struct hdt_stage *s)
{
    if (s->fp8) {
        s->ops->zero(s->stream, s->work.amax8, sizeof(float));
    }
    return s->work.amax8;
}

static void product_fwd(const struct hdt_stage *s, int block, const struct stage_act *act,
                        enum stage_product p, bool keep, const float *amax, const float *residual,
                        void *y)
{
    const struct stage_matrix w = hdt_stage_matrix(s, p);

    if (s->fp8) {
        hdt_stage_fp8_fwd(s, block, act, p, keep, amax, residual, y);
    } else if (y) {
        linear_fwd(s, hdt_stage_product_input(act, p), block_w16(s, block, w.which), s->n, w.in,
                   w.out, residual, y);
    }
}

/* `kept`: where to leave dy for product_dw to come later; NULL: it comes soon. `amax`: of dy, NULL:
 * not known. */
static void product_dx(const struct hdt_stage *s, int block, const struct stage_act *act,
                       enum stage_product p, const void *dy, const float *amax, void *kept,
                       void *dx)
{
    const struct stage_matrix w = hdt_stage_matrix(s, p);

    if (s->fp8) {
        hdt_stage_fp8_dx(s, block, act, p, dy, amax, kept, dx); /* and the weights' gradients */
    } else {
        linear_dx(s, dy, block_w16(s, block, w.which), s->n, w.in, w.out, dx);
    }
}

static void product_dw(const struct hdt_stage *s, int block, const struct stage_act *act,
                       enum stage_product p, const void *dy, void *kept)
{
    const struct stage_matrix w = hdt_stage_matrix(s, p);

    if (s->fp8) {
        return;
    }
    if (kept) {
        values_copy(s, kept, dy, (size_t)s->n * w.out);
    } else {
        linear_dw(s, dy, hdt_stage_product_input(act, p), s->n, w.in, w.out,
                  hdt_stage_block_tensor(s, block, w.which));
    }
}

/* ---- Block ----------------------------------------------------------------------------------- */

static struct hdt_mixed_attention attention_of(const struct hdt_stage *s,
                                               const struct stage_act *act)
{
    const uint16_t *q = act->qkv, *k = q + s->NH * s->HS;

    return (struct hdt_mixed_attention){
        .n_seqs = s->conf.B,
        .q_len = s->T,
        .kv_len = s->T,
        .n_heads = s->NH,
        .n_kv_heads = s->NKV,
        .head_size = s->HS,
        .q = q,
        .q_stride = s->Q,
        .k = k,
        .v = k + s->NKV * s->HS,
        .kv_stride = s->Q,
        .out = act->att,
        .lse = act->lse,
    };
}

/* mid = x + attention(norm(x)) Wo^T */
static void attention_half_fwd(const struct hdt_stage *s, int block, const struct stage_act *act,
                               const float *x, bool keep)
{
    struct hdt_mixed_attention a = attention_of(s, act);

    s->mixed->rmsnorm_fwd(s->stream, x, hdt_stage_block_tensor(s, block, NORM1)->w, s->n, s->C,
                          (float)s->conf.model.rms_norm_eps, act->xn1, act->rstd1);
    product_fwd(s, block, act, PRODUCT_QKV, keep, NULL, NULL, act->qkv);
    s->mixed->rope_fwd(s->stream, s->cos_sin, s->n, s->T, 0, s->NH + s->NKV, s->HS, s->Q, act->qkv);
    s->mixed->attention_fwd(s->stream, &a);
    product_fwd(s, block, act, PRODUCT_ATT, keep, NULL, x, act->mid);
}

/* y = mid + swiglu(norm(mid)) Wd^T; without y only what backward needs. */
static void mlp_half_fwd(const struct hdt_stage *s, int block, const struct stage_act *act,
                         bool keep, float *y)
{
    s->mixed->rmsnorm_fwd(s->stream, act->mid, hdt_stage_block_tensor(s, block, NORM2)->w, s->n,
                          s->C, (float)s->conf.model.rms_norm_eps, act->xn2, act->rstd2);
    product_fwd(s, block, act, PRODUCT_GATE_UP, keep, NULL, NULL, act->gu);
    s->mixed->swiglu_fwd(s->stream, act->gu, s->n, s->F, act->h, amax_begin(s));
    product_fwd(s, block, act, PRODUCT_DOWN, keep, s->work.amax8, act->mid, y);
}

void hdt_stage_mixed_fwd(const struct hdt_stage *s, const struct stage_slot *slot, bool keep,
                         bool again)
{
    const float *x = slot->x;

    for (int i = 0; i < s->n_blocks; i++) {
        float *y = hdt_stage_block_output(s, slot, i);

        attention_half_fwd(s, i, &slot->acts[i], x, keep);
        mlp_half_fwd(s, i, &slot->acts[i], keep, again && i == s->n_blocks - 1 ? NULL : y);
        x = y;
    }
}

/* `kept`: as in stage_run.c, here in bfloat16 or FP8. */
static void mlp_half_bwd(const struct hdt_stage *s, int block, const struct stage_act *act,
                         float *grad, void *kept)
{
    const struct stage_tensor *norm = hdt_stage_block_tensor(s, block, NORM2);
    void *grad16 = s->work.grad16, *dh = s->work.dnarrow, *dgu = s->work.dwide;
    void *kept_gu = kept ? act->gu : NULL;

    product_dx(s, block, act, PRODUCT_DOWN, grad16, NULL, kept, dh);
    s->mixed->swiglu_bwd(s->stream, dh, act->gu, s->n, s->F, dgu,
                         s->fp8 || hdt_stage_keeps_h(s) ? NULL : act->h, amax_begin(s));
    product_dw(s, block, act, PRODUCT_DOWN, grad16, kept);
    product_dw(s, block, act, PRODUCT_GATE_UP, dgu, kept_gu);
    product_dx(s, block, act, PRODUCT_GATE_UP, dgu, s->work.amax8, kept_gu, s->work.dxn);
    s->mixed->rmsnorm_bwd(s->stream, s->work.dxn, act->mid, norm->w, act->rstd2, s->n, s->C, grad,
                          grad16, norm->grad);
}

static void attention_half_bwd(const struct hdt_stage *s, int block, const struct stage_act *act,
                               const float *x, float *grad, bool keep)
{
    const struct stage_tensor *norm = hdt_stage_block_tensor(s, block, NORM1);
    struct hdt_mixed_attention a = attention_of(s, act);
    void *grad16 = s->work.grad16, *datt = s->work.dnarrow;
    void *kept_mid = keep ? act->mid : NULL, *kept_qkv = keep ? act->qkv : NULL;
    uint16_t *dqkv = s->work.dwide, *dk = dqkv + s->NH * s->HS;

    product_dw(s, block, act, PRODUCT_ATT, grad16, kept_mid);
    product_dx(s, block, act, PRODUCT_ATT, grad16, NULL, kept_mid, datt);
    s->mixed->attention_bwd(s->stream, &a, datt, dqkv, dk, dk + s->NKV * s->HS);
    s->mixed->rope_bwd(s->stream, s->cos_sin, s->n, s->T, 0, s->NH + s->NKV, s->HS, s->Q, dqkv);
    product_dw(s, block, act, PRODUCT_QKV, dqkv, kept_qkv);
    product_dx(s, block, act, PRODUCT_QKV, dqkv, NULL, kept_qkv, s->work.dxn);
    s->mixed->rmsnorm_bwd(s->stream, s->work.dxn, x, norm->w, act->rstd1, s->n, s->C, grad, grad16,
                          norm->grad);
}

void hdt_stage_mixed_bwd(const struct hdt_stage *s, const struct stage_slot *slot, bool keep)
{
    s->ops->cast(s->stream, slot->grad, HDT_DTYPE_F32, (size_t)s->n * s->C, HDT_DTYPE_BF16,
                 s->work.grad16);
    for (int i = s->n_blocks - 1; i >= 0; i--) {
        const float *x = i > 0 ? slot->acts[i - 1].y : slot->x;

        mlp_half_bwd(s, i, &slot->acts[i], slot->grad,
                     keep ? hdt_stage_block_output(s, slot, i) : NULL);
        attention_half_bwd(s, i, &slot->acts[i], x, slot->grad, keep);
    }
}

void hdt_stage_mixed_weights_bwd(const struct hdt_stage *s, const struct stage_slot *slot,
                                 int block)
{
    const struct stage_act *act = &slot->acts[block];
    const void *const kept[N_PRODUCTS] = {act->qkv, act->mid, act->gu,
                                          hdt_stage_block_output(s, slot, block)};

    for (int p = N_PRODUCTS - 1; p >= 0; p--) {
        if (s->fp8) {
            hdt_stage_fp8_dw(s, block, act, p, kept[p]);
        } else {
            product_dw(s, block, act, p, kept[p], NULL);
        }
    }
}

/* ---- Head ------------------------------------------------------------------------------------ */

/* Loss of rows [row, row + n), and their gradients when training. */
static void head_rows_run(const struct hdt_stage *s, const struct stage_slot *slot, int row, int n,
                          bool train)
{
    const struct stage_tensor *head = hdt_stage_head_tensor(s);
    const struct stage_work *w = &s->work;
    const uint16_t *xn = (uint16_t *)w->head_xn + (size_t)row * s->C;

    linear_fwd(s, xn, w16_of(s, head), n, s->C, s->V, NULL, w->logits);
    s->mixed->cross_entropy(s->stream, slot->labels + row, n, s->V, train ? s->loss_scale : 0,
                            w->logits, slot->loss);
    if (train) {
        linear_dw(s, w->logits, xn, n, s->C, s->V, &s->tensors[s->n_tensors - 1]);
        linear_dx(s, w->logits, w16_of(s, head), n, s->C, s->V,
                  (uint16_t *)w->dxn + (size_t)row * s->C);
    }
}

void hdt_stage_mixed_head(const struct hdt_stage *s, const struct stage_slot *slot, bool train)
{
    const struct stage_tensor *norm = hdt_stage_final_norm(s);
    const struct stage_work *w = &s->work;

    s->mixed->rmsnorm_fwd(s->stream, slot->y, norm->w, s->n, s->C,
                          (float)s->conf.model.rms_norm_eps, w->head_xn, w->head_rstd);
    for (int row = 0; row < s->n; row += s->head_rows) {
        head_rows_run(s, slot, row, s->n - row < s->head_rows ? s->n - row : s->head_rows, train);
    }
    if (train) {
        s->ops->zero(s->stream, slot->grad, hdt_stage_activation_bytes(s));
        s->mixed->rmsnorm_bwd(s->stream, w->dxn, slot->y, norm->w, w->head_rstd, s->n, s->C,
                              slot->grad, w->grad16, norm->grad);
    }
}

/* ---- The gradients of a step ----------------------------------------------------------------- */

/* Is a tensor's gradient made by products alone? `which` in its block. */
static bool is_product(int which)
{
    return which == WQ || which == WO || which == GATE || which == DOWN;
}

/* Floats from a tensor on that the products of its gradient set. */
static size_t product_len(const struct hdt_stage *s, const struct stage_tensor *t, int which)
{
    return which == WQ ? (size_t)s->Q * s->C : which == GATE ? 2 * (size_t)s->F * s->C : t->len;
}

void hdt_stage_mixed_zero_grads(struct hdt_stage *s)
{
    for (int i = 0; i < s->n_blocks; i++) {
        for (int which = 0; which < HDT_MODEL_TENSORS_PER_BLOCK; which++) {
            struct stage_tensor *t = hdt_stage_block_tensor(s, i, which);

            t->is_unset = is_product(which);
            if (which == NORM1 || which == NORM2) {
                s->ops->zero(s->stream, t->grad, t->len * sizeof(float));
            }
        }
    }
    if (s->has_embedding) {
        s->ops->zero(s->stream, s->tensors[0].grad, s->tensors[0].len * sizeof(float));
    }
    if (s->has_head) {
        const struct stage_tensor *norm = hdt_stage_final_norm(s);

        s->ops->zero(s->stream, norm->grad, norm->len * sizeof(float));
        s->tensors[s->n_tensors - 1].is_unset = true;
    }
}

/* Of a step without a micro-batch, say. */
void hdt_stage_mixed_finish_grads(struct hdt_stage *s)
{
    struct stage_tensor *head = &s->tensors[s->n_tensors - 1];

    for (int i = 0; i < s->n_blocks; i++) {
        for (int which = 0; which < HDT_MODEL_TENSORS_PER_BLOCK; which++) {
            struct stage_tensor *t = hdt_stage_block_tensor(s, i, which);

            if (t->is_unset) {
                s->ops->zero(s->stream, t->grad, product_len(s, t, which) * sizeof(float));
                t->is_unset = false;
            }
        }
    }
    if (s->has_head && head->is_unset) {
        s->ops->zero(s->stream, head->grad, head->len * sizeof(float));
        head->is_unset = false;
    }
}

void hdt_stage_mixed_adamw(const struct hdt_stage *s, const struct hdt_adamw *p,
                           const struct stage_tensor *t, size_t len)
{
    s->mixed->adamw(s->stream, p, t->grad, len, t->w, t->m, t->v, s->params16 + (t->w - s->params),
                    s->fp8 ? hdt_stage_fp8_amax(s, t) : NULL);
}
