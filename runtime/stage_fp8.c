/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of FP8 in a stage of mixed precision: those of the blocks' matrices. Activations and
 * weights are rounded to E4M3, gradients, whose range is wider, to E5M2, each tensor with the scale
 * that its largest value asks for (Micikevicius et al., "FP8 formats for deep learning", arXiv
 * 2209.05433); it is taken of the tensor itself, not of those before it, so that a step depends on
 * nothing but weights and tokens. Sums within the matrix units are short of float32's bits;
 * backward asks for those of float32, as gradients have less to lose.
 *
 * Matrix units take FP8 with the index that is summed over along the rows of both operands. So
 * weights are rounded once a step, as they stand for y = x W^T, and transposed for dx = dy W; what
 * a product took is kept transposed for dW = dy^T x, in place of the bfloat16, of which nobody else
 * needs but attention's output; and of a gradient both are made at once.
 */
#include "config.h"

#include "runtime/stage_impl.h"

static size_t matrix_offset(const struct hdt_stage *s, int block, int which)
{
    return (size_t)(hdt_stage_block_tensor(s, block, which)->w -
                    hdt_stage_block_tensor(s, 0, 0)->w);
}

static float *matrix_scale(const struct hdt_stage *s, int block, enum stage_product p)
{
    return s->params8_scales + (block * N_PRODUCTS + p) * SCALE_STEP;
}

static void matrices_quantize(struct hdt_stage *s, bool has_amax)
{
    for (int i = 0; i < s->n_blocks; i++) {
        for (int p = 0; p < N_PRODUCTS; p++) {
            const struct stage_matrix w = hdt_stage_matrix(s, p);
            const size_t at = matrix_offset(s, i, w.which);
            const struct hdt_quantize q = {
                .n = w.out,
                .c = w.in,
                .x = s->params16 + (hdt_stage_block_tensor(s, i, w.which)->w - s->params),
                .amax = has_amax ? s->params8_amax + i * N_PRODUCTS + p : NULL,
                .dtype = HDT_DTYPE_F8E4M3,
                .y = s->params8 + at,
                .yt = s->params8 + s->params8_len + at,
                .scale = matrix_scale(s, i, p)};

            s->fp8->quantize(s->stream, &q);
        }
    }
    s->params8_old = false;
}

void hdt_stage_fp8_refresh(struct hdt_stage *s)
{
    if (s->params8_old) {
        matrices_quantize(s, false);
    }
}

void hdt_stage_fp8_step_begin(struct hdt_stage *s)
{
    if (s->n_blocks > 0) {
        s->ops->zero(s->stream, s->params8_amax, (size_t)s->n_blocks * N_PRODUCTS * sizeof(float));
    }
}

float *hdt_stage_fp8_amax(const struct hdt_stage *s, const struct stage_tensor *t)
{
    static const int products[HDT_MODEL_TENSORS_PER_BLOCK] = {
        [NORM1] = -1,         [WQ] = PRODUCT_QKV, [WK] = PRODUCT_QKV,       [WV] = PRODUCT_QKV,
        [WO] = PRODUCT_ATT,   [NORM2] = -1,       [GATE] = PRODUCT_GATE_UP, [UP] = PRODUCT_GATE_UP,
        [DOWN] = PRODUCT_DOWN};
    const int idx = (int)(t - s->tensors) - s->block0_tensor;
    const int block = idx / HDT_MODEL_TENSORS_PER_BLOCK, which = idx % HDT_MODEL_TENSORS_PER_BLOCK;

    return idx < 0 || block >= s->n_blocks || products[which] < 0
               ? NULL
               : s->params8_amax + block * N_PRODUCTS + products[which];
}

/* Here, so that it is of the step, not of a forward. */
void hdt_stage_fp8_step_end(struct hdt_stage *s)
{
    matrices_quantize(s, true);
}

void hdt_stage_fp8_fwd(const struct hdt_stage *s, int block, const struct stage_act *act,
                       enum stage_product p, bool keep, const float *amax, const float *residual,
                       void *y)
{
    const struct stage_matrix w = hdt_stage_matrix(s, p);
    const struct hdt_quantize q = {.n = s->n,
                                   .c = w.in,
                                   .x = hdt_stage_product_input(act, p),
                                   .amax = amax,
                                   .dtype = HDT_DTYPE_F8E4M3,
                                   .y = y ? s->work.rows8 : NULL,
                                   .yt = keep ? act->in8t[p] : NULL,
                                   .scale = act->scales8 + p * SCALE_STEP};
    const struct hdt_fp8_gemm g = {.m = s->n,
                                   .n = w.out,
                                   .k = w.in,
                                   .is_fast = true,
                                   .beta = residual ? 1 : 0,
                                   .a_dtype = HDT_DTYPE_F8E4M3,
                                   .b_dtype = HDT_DTYPE_F8E4M3,
                                   .a = s->work.rows8,
                                   .a_scale = act->scales8 + p * SCALE_STEP,
                                   .b = s->params8 + matrix_offset(s, block, w.which),
                                   .b_scale = matrix_scale(s, block, p),
                                   .d_dtype = residual ? HDT_DTYPE_F32 : HDT_DTYPE_BF16,
                                   .c = residual,
                                   .d = y};

    s->fp8->quantize(s->stream, &q);
    if (y) {
        s->fp8->gemm(s->stream, &g);
    }
}

/* dW (out, in) += dy^T x, of both transposed. */
static void weights_grad(const struct hdt_stage *s, int block, const struct stage_act *act,
                         enum stage_product p, const void *dy8t, const float *dy_scale)
{
    const struct stage_matrix w = hdt_stage_matrix(s, p);
    struct stage_tensor *t = hdt_stage_block_tensor(s, block, w.which);
    const struct hdt_fp8_gemm g = {.m = w.out,
                                   .n = w.in,
                                   .k = s->n,
                                   .beta = t->is_unset ? 0 : 1,
                                   .a_dtype = HDT_DTYPE_F8E5M2,
                                   .b_dtype = HDT_DTYPE_F8E4M3,
                                   .a = dy8t,
                                   .a_scale = dy_scale,
                                   .b = act->in8t[p],
                                   .b_scale = act->scales8 + p * SCALE_STEP,
                                   .d_dtype = HDT_DTYPE_F32,
                                   .c = t->grad,
                                   .d = t->grad};

    t->is_unset = false;
    s->fp8->gemm(s->stream, &g);
}

void hdt_stage_fp8_dx(const struct hdt_stage *s, int block, const struct stage_act *act,
                      enum stage_product p, const void *dy, const float *amax, void *kept, void *dx)
{
    const struct stage_matrix w = hdt_stage_matrix(s, p);
    const size_t at = matrix_offset(s, block, w.which);
    float *scale = kept ? act->scales8 + (N_PRODUCTS + p) * SCALE_STEP : s->work.scale8;
    const struct hdt_quantize q = {.n = s->n,
                                   .c = w.out,
                                   .x = dy,
                                   .amax = amax,
                                   .dtype = HDT_DTYPE_F8E5M2,
                                   .y = s->work.rows8,
                                   .yt = kept ? kept : s->work.cols8,
                                   .scale = scale};
    const struct hdt_fp8_gemm g = {.m = s->n,
                                   .n = w.in,
                                   .k = w.out,
                                   .a_dtype = HDT_DTYPE_F8E5M2,
                                   .b_dtype = HDT_DTYPE_F8E4M3,
                                   .a = s->work.rows8,
                                   .a_scale = scale,
                                   .b = s->params8 + s->params8_len + at,
                                   .b_scale = matrix_scale(s, block, p),
                                   .d_dtype = HDT_DTYPE_BF16,
                                   .d = dx};

    s->fp8->quantize(s->stream, &q);
    s->fp8->gemm(s->stream, &g);
    if (!kept) {
        weights_grad(s, block, act, p, s->work.cols8, scale);
    }
}

void hdt_stage_fp8_dw(const struct hdt_stage *s, int block, const struct stage_act *act,
                      enum stage_product p, const void *kept)
{
    weights_grad(s, block, act, p, kept, act->scales8 + (N_PRODUCTS + p) * SCALE_STEP);
}
