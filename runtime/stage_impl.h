/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_STAGE_IMPL_H
#define HDT_RUNTIME_STAGE_IMPL_H

/* Inside of a stage: what its memory (stage.c), first weights (stage_init.c) and arithmetic
 * (stage_run.c) share. Pointers named float are device memory. */
#include "runtime/stage.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One weight tensor. q, k, v of a block stand one behind the other without a gap, and so do gate
 * and up, so that one product makes all three, or both. */
struct stage_tensor {
    struct hdt_model_tensor info;
    size_t len;
    float *w, *grad, *m, *v;
    bool shared;
    /* Mixed precision: the gradient is zero, and its memory does not say so yet. Of q and gate, it
     * counts for those that follow without a gap. */
    bool is_unset;
};

/* The products of a block with its matrices: q, k and v; attention's output; gate and up; down. */
enum stage_product { PRODUCT_QKV, PRODUCT_ATT, PRODUCT_GATE_UP, PRODUCT_DOWN, N_PRODUCTS };

/* Floats from a scale of FP8 to the next: products take them at 16 bytes. */
#define SCALE_STEP 4

/* Activations of one block that backward needs, of one micro-batch. Letters as in backend.h. Those
 * named void are float, or bfloat16 in mixed precision. */
struct stage_act {
    void *xn1;    /* (n, C) */
    float *rstd1; /* (n) */
    void *qkv;    /* (n, Q), rotated */
    void *att;    /* (n, NH HS) */
    float *lse;   /* (B, NH, T) */
    float *mid;   /* (n, C) after attention's residual */
    void *xn2;    /* (n, C) */
    float *rstd2; /* (n) */
    void *gu;     /* (n, 2F) */
    void *h;      /* (n, F); mixed: all blocks' own work.h, unless backwards come in halves */
    float *y;     /* (n, C) output of the block */

    /* FP8: what each product took, transposed, (in, n), for the weights' gradients. xn1, xn2 and h
     * need then not be kept: all blocks have theirs in work.dxn and work.dnarrow. Scales of these,
     * and behind them of the gradients that the first half of a backward leaves. */
    void *in8t[N_PRODUCTS];
    float *scales8; /* (2 N_PRODUCTS SCALE_STEP) */
};

struct stage_slot {
    int32_t *tokens;      /* (n) */
    int32_t *labels;      /* (n) */
    int32_t *tokens_host; /* pinned, on their way */
    int32_t *labels_host;
    float *x;               /* (n, C) input, or the embedding's output */
    float *y;               /* (n, C) output of the last block; x when there is no block */
    float *grad;            /* (n, C) gradient of y, which backward turns into that of x */
    double *loss;           /* (1) */
    struct stage_act *acts; /* of each block */
};

struct stage_work {
    struct stage_act *acts; /* recompute, inference: activations that all slots share */
    void *dwide;            /* (n, max(2F, Q)) */
    void *dnarrow;          /* (n, max(F, NH HS)) */
    void *dxn;              /* (n, C) */
    void *h;                /* (n, F), mixed */
    void *rows8;            /* (n, max(2F, Q, C)), FP8: the first operand of a product */
    void *cols8;            /* its transpose, of gradients */
    float *scale8;          /* (1) of gradients in these */
    float *amax8;           /* (1) of the values that were made last */
    void *grad16;           /* (n, C) of the residual stream's gradient, in mixed precision */
    void *head_xn;          /* (n, C) */
    float *head_rstd;       /* (n) */
    void *logits;           /* (head_rows, V) */
    float *tied;            /* (V, C) the other stage's half of a tied gradient */
    double *sumsq;          /* (tensors) */
};

struct hdt_stage {
    struct hdt_stage_conf conf;
    const struct hdt_backend *backend;
    const struct hdt_ops *ops;
    const struct hdt_mixed_ops *mixed; /* NULL: all in float32 */
    const struct hdt_fp8_ops *fp8;     /* NULL: no products of FP8 */
    struct hdt_device *device;
    struct hdt_stream *stream;

    /* Shapes as the ops take them. */
    int n; /* B T */
    int C, F, V, NH, NKV, HS, Q, T;
    int n_blocks;
    int head_rows; /* rows of logits at a time */
    bool has_embedding, has_head;

    int64_t first_tensor;
    int n_tensors;
    int block0_tensor; /* index of the first block's first tensor */
    struct stage_tensor *tensors;
    struct hdt_span *spans;        /* of their gradients */
    float *params, *grads, *m, *v; /* the allocations that tensors point into */
    size_t params_len, grads_len;  /* floats; grads_len is larger by a shared head */
    uint16_t *params16;            /* mixed: params in bfloat16, at the same offsets */
    bool params16_old;             /* the weights were written since */
    uint8_t *params8;              /* fp8: the blocks' params, and again with matrices transposed */
    size_t params8_len;            /* of either */
    float *params8_scales;         /* of the products of each block; behind them */
    float *params8_amax;           /* largest magnitudes of their matrices, as AdamW leaves them */
    bool params8_old;              /* params16 was written since */
    float *cos_sin;                /* (T, HS) */

    void *act_mem; /* the allocation that slots and work point into */
    struct stage_slot *slots;
    struct stage_act *act_table; /* the structs that slots and work point to */
    struct stage_work work;
    void *host_mem; /* pinned */

    float loss_scale;
};

/* Fill all weights, zero moments and gradients, make the table of rotations. */
enum hdt_status hdt_stage_init_weights(struct hdt_stage *stage, struct hdt_error *err);
enum hdt_status hdt_stage_init_rope(struct hdt_stage *stage, struct hdt_error *err);

/*
 * Mixed precision (stage_mixed.c): the arithmetic that stage_run.c has in float32, with the same
 * buffers.
 *
 *  - refresh: the weights' copies, if they are old; before any other
 *  - fwd: all blocks of a micro-batch; `keep`: a backward comes, and finds what it needs; `again`:
 *    to recompute, where the stage's output is known
 *  - head: loss, and with `train` the head's gradients
 *  - bwd: all blocks; `keep`: as in stage_run.c, only what the first half of a backward does
 *  - weights_bwd: the second half, of one block
 *  - zero_grads, finish_grads: at the begin of a step, and after its last backward
 *  - adamw: of a tensor and those that follow it, len elements in all
 */
void hdt_stage_mixed_refresh(struct hdt_stage *s);
void hdt_stage_mixed_fwd(const struct hdt_stage *s, const struct stage_slot *slot, bool keep,
                         bool again);
void hdt_stage_mixed_head(const struct hdt_stage *s, const struct stage_slot *slot, bool train);
void hdt_stage_mixed_bwd(const struct hdt_stage *s, const struct stage_slot *slot, bool keep);
void hdt_stage_mixed_weights_bwd(const struct hdt_stage *s, const struct stage_slot *slot,
                                 int block);
void hdt_stage_mixed_zero_grads(struct hdt_stage *s);
void hdt_stage_mixed_finish_grads(struct hdt_stage *s);
void hdt_stage_mixed_adamw(const struct hdt_stage *s, const struct hdt_adamw *p,
                           const struct stage_tensor *t, size_t len);

/*
 * Products of FP8 (stage_fp8.c), of those of a block:
 *
 *  - refresh: the weights' copies, if they are old
 *  - step_begin, step_end: about AdamW, which is given amax for each tensor (NULL: of no matrix)
 *  - fwd: y = x W^T, as in stage_mixed.c; amax: of x, NULL when it is not known; `keep`: and what
 * dw needs; y NULL: only that
 *  - dx: dx = dy W; then dw, unless `kept` is where the second half of a backward finds dy
 *  - dw: from what fwd and dx kept
 */
void hdt_stage_fp8_refresh(struct hdt_stage *s);
void hdt_stage_fp8_step_begin(struct hdt_stage *s);
float *hdt_stage_fp8_amax(const struct hdt_stage *s, const struct stage_tensor *t);
void hdt_stage_fp8_step_end(struct hdt_stage *s);
void hdt_stage_fp8_fwd(const struct hdt_stage *s, int block, const struct stage_act *act,
                       enum stage_product p, bool keep, const float *amax, const float *residual,
                       void *y);
void hdt_stage_fp8_dx(const struct hdt_stage *s, int block, const struct stage_act *act,
                      enum stage_product p, const void *dy, const float *amax, void *kept,
                      void *dx);
void hdt_stage_fp8_dw(const struct hdt_stage *s, int block, const struct stage_act *act,
                      enum stage_product p, const void *kept);

/* A block's tensors in model order. */
enum { NORM1, WQ, WK, WV, WO, NORM2, GATE, UP, DOWN };

/* A product's matrix (out, in), and what it takes. */
struct stage_matrix {
    int which; /* tensor of the block, and those that follow it without a gap */
    int in, out;
};

static inline struct stage_matrix hdt_stage_matrix(const struct hdt_stage *s, enum stage_product p)
{
    switch (p) {
    case PRODUCT_QKV:
        return (struct stage_matrix){WQ, s->C, s->Q};
    case PRODUCT_ATT:
        return (struct stage_matrix){WO, s->NH * s->HS, s->C};
    case PRODUCT_GATE_UP:
        return (struct stage_matrix){GATE, s->C, 2 * s->F};
    default:
        return (struct stage_matrix){DOWN, s->F, s->C};
    }
}

static inline const void *hdt_stage_product_input(const struct stage_act *act, enum stage_product p)
{
    const void *const inputs[N_PRODUCTS] = {act->xn1, act->att, act->xn2, act->h};

    return inputs[p];
}

/* Output of block i of a slot: the last block's is the slot's own, whoever owns the rest. */
static inline float *hdt_stage_block_output(const struct hdt_stage *s,
                                            const struct stage_slot *slot, int block)
{
    return block == s->n_blocks - 1 ? slot->y : slot->acts[block].y;
}

static inline const struct stage_tensor *hdt_stage_head_tensor(const struct hdt_stage *s)
{
    return &s->tensors[s->n_tensors - 1];
}

static inline const struct stage_tensor *hdt_stage_final_norm(const struct hdt_stage *s)
{
    return &s->tensors[s->n_tensors - 2];
}

/* Does each block keep h from forward to backward? In mixed precision the backward of gate and up
 * makes it again on its way, which takes no arithmetic and a fifth of a block's memory less; but
 * the second half of a backward that comes in halves is too late for that. With FP8 in8t is kept.
 */
static inline bool hdt_stage_keeps_h(const struct hdt_stage *s)
{
    return !s->conf.mixed || (s->conf.halves && !s->conf.fp8);
}

/* Tensor `which` (0 .. 8 in model order) of a block. */
static inline struct stage_tensor *hdt_stage_block_tensor(const struct hdt_stage *stage, int block,
                                                          int which)
{
    return &stage->tensors[stage->block0_tensor + block * HDT_MODEL_TENSORS_PER_BLOCK + which];
}

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_STAGE_IMPL_H */
