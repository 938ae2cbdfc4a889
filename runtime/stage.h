/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_STAGE_H
#define HDT_RUNTIME_STAGE_H

/*
 * A stage: the weights, gradients, optimizer state and activations of a range of a model's units on
 * one device, and the arithmetic on them. It knows no socket, file or schedule: the pipeline runner
 * fills a slot's input, calls forward and backward in any order that the schedule gives, and takes
 * the results from the slot.
 *
 * Bits: weights, losses and gradients do not depend on how the model is cut into stages, nor on the
 * number of threads, as long as activations and their gradients travel unchanged and each stage
 * sees the micro-batches of a step in the same order.
 *
 * One step, as the runner of a stage does it:
 *
 *     hdt_stage_zero_grads(s);
 *     for every micro-batch, in the schedule's order, with `slot` any slot that is free:
 *         tokens or activations into the slot:  hdt_stage_set_tokens / write hdt_stage_input()
 *         hdt_stage_forward(s, slot, HDT_STAGE_TRAIN)       -> hdt_stage_output() to the next stage
 *         (head) hdt_stage_set_labels before forward        -> hdt_stage_loss() after it
 *         (not head) gradient from the next stage into hdt_stage_output_grad()
 *         hdt_stage_backward(s, slot)                       -> hdt_stage_input_grad() to the former
 *         or in two halves: hdt_stage_backward_input        -> hdt_stage_input_grad() to the former
 *                           hdt_stage_backward_weight, any time later; then the slot is free
 *     hdt_stage_finish_grads(s, ...);              tied embeddings: see there
 *     hdt_stage_grad_sumsq(s, sums);               -> global norm over all stages, in model order
 *     hdt_stage_step(s, &adamw);                   grad_scale = clipping factor
 *
 * Work is queued on the stage's stream and may not be done when a function returns (on the cpu
 * backend it always is): queue copies on hdt_stage_stream() behind it, or hdt_stage_wait().
 * Only new() allocates. One thread at a time; several stages may share a device and run in
 * different threads.
 */
#include "runtime/backend.h"
#include "src/core/model.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_alive;

struct hdt_stage_conf {
    struct hdt_model_config model;
    int first_unit; /* 0: the embedding */
    int n_units;    /* L + 2 units in all */
    int B;          /* sequences in a micro-batch */
    int T;          /* tokens in a sequence; at most model.T */
    int n_slots;    /* micro-batches in flight: forward done, backward (both halves) not yet */
    bool recompute; /* keep only each slot's input, compute the rest again in backward */
    /* Products of bfloat16 instead of float32 (struct hdt_mixed_ops), for a backend that has them;
     * what travels and what is saved is float32 all the same. Not for inference. */
    bool mixed;
    /* With mixed: products of the blocks' matrices take FP8 (struct hdt_fp8_ops). */
    bool fp8;
    /* Backward passes will come in two halves; with products of bf16 that takes memory. */
    bool halves;
    bool inference; /* no gradients, no optimizer state: forward only, one set of activations */
    uint64_t seed;  /* of the initial weights */
    struct hdt_alive *alive; /* told while weights are made; NULL: nobody */
};

/* Device memory that a stage of this configuration takes, by what it is for. */
struct hdt_stage_bytes {
    uint64_t weights;   /* mixed: and their copies in bfloat16; fp8: and two in FP8 */
    uint64_t grads;     /* a tied model's embedding and head have one accumulator each */
    uint64_t optimizer; /* two moments */
    uint64_t slot;      /* activations of one slot; all slots: n_slots times this */
    uint64_t workspace; /* shared by all slots */
    uint64_t total;
};

enum hdt_stage_mode {
    HDT_STAGE_TRAIN, /* keep what backward needs; the head also makes its gradients at once */
    HDT_STAGE_EVAL,  /* output or loss only; the slot may be used again right after */
};

/* One weight tensor of the stage. Pointers are device memory, of `len` floats each; they stay valid
 * as long as the stage. Gradient and moments are NULL for inference. */
struct hdt_stage_tensor {
    struct hdt_model_tensor info;
    int64_t model_idx; /* its index in model order */
    size_t len;
    float *w;
    float *grad;
    float *m;
    float *v;
    /* The tied head of a stage that also holds the embedding: w, m and v are the embedding's own.
     */
    bool shared;
};

struct hdt_stage;

/* What a stage will need; checks the configuration as hdt_stage_new does. */
enum hdt_status hdt_stage_measure(const struct hdt_stage_conf *conf, struct hdt_stage_bytes *bytes,
                                  struct hdt_error *err);

/* Make a stage with initial weights (normal, from a counter-based generator over seed, tensor name
 * and element, so that every cut of the model makes the same bits), zero moments and gradients.
 * `backend` and `device` must outlive it. Slow: allocates and fills memory. HDT_EINVAL: units, B or
 * T do not fit the model. HDT_ENOMEM: with the sizes that were wanted. */
enum hdt_status hdt_stage_new(const struct hdt_backend *backend, struct hdt_device *device,
                              const struct hdt_stage_conf *conf, struct hdt_stage **stage,
                              struct hdt_error *err);
void hdt_stage_free(struct hdt_stage *stage);

const struct hdt_stage_conf *hdt_stage_conf(const struct hdt_stage *stage);
bool hdt_stage_has_embedding(const struct hdt_stage *stage);
bool hdt_stage_has_head(const struct hdt_stage *stage);

/* The stage's compute stream: for copies and events behind its work. */
struct hdt_stream *hdt_stage_stream(const struct hdt_stage *stage);

/* Block until all queued work is done; the first error of the device, if any. */
enum hdt_status hdt_stage_wait(struct hdt_stage *stage, struct hdt_error *err);

/* ---- A slot's buffers: device memory, (B, T, C) floats, valid as long as the stage ---------- */

/* Bytes of one activation, B * T * C * 4. */
size_t hdt_stage_activation_bytes(const struct hdt_stage *stage);

/* Filled by the caller before forward; kept until the slot's backward is done. NULL with the
 * embedding (see hdt_stage_set_tokens). */
float *hdt_stage_input(struct hdt_stage *stage, int slot);

/* Set by forward; may be read until the slot's next forward, or the first half of a backward. NULL
 * with the head. */
float *hdt_stage_output(struct hdt_stage *stage, int slot);

/* Filled by the caller before backward, which uses it up. NULL with the head. */
float *hdt_stage_output_grad(struct hdt_stage *stage, int slot);

/* Set by backward (or its first half); may be read until the slot's next backward. NULL with the
 * embedding. */
float *hdt_stage_input_grad(struct hdt_stage *stage, int slot);

/* Tokens (B, T) of the embedding's stage, labels (B, T) of the head's (a negative label counts
 * nothing): host memory, copied before the call returns. HDT_EINVAL: a value outside of 0 .. V - 1
 * (tokens), or above V - 1 (labels). Labels stay until they are set again. */
enum hdt_status hdt_stage_set_tokens(struct hdt_stage *stage, int slot, const int32_t *tokens,
                                     struct hdt_error *err);
enum hdt_status hdt_stage_set_labels(struct hdt_stage *stage, int slot, const int32_t *labels,
                                     struct hdt_error *err);

/* ---- Arithmetic ------------------------------------------------------------------------------ */

/* Factor of each row's loss gradient, 1 / (tokens of the global batch). Set once before training;
 * matters to the head's stage only. */
void hdt_stage_set_loss_scale(struct hdt_stage *stage, float inv_global_tokens);

/* All gradient accumulators to zero: at the start of a step. */
void hdt_stage_zero_grads(struct hdt_stage *stage);

/* Forward pass of one micro-batch: sets the slot's output, or its loss. With the head, TRAIN also
 * runs the head's backward at once (so that logits of a large vocabulary need never be kept); its
 * time counts as forward. */
void hdt_stage_forward(struct hdt_stage *stage, int slot, enum hdt_stage_mode mode);

/* Sum of the losses (nats) of the labelled rows of the slot's last forward, in float64. Waits. */
enum hdt_status hdt_stage_loss(struct hdt_stage *stage, int slot, double *loss_sum,
                               struct hdt_error *err);

/* Backward pass of one micro-batch: adds to the gradients, sets the slot's input gradient. The
 * slot's last forward was TRAIN. Call in the same micro-batch order on every stage. */
void hdt_stage_backward(struct hdt_stage *stage, int slot);

/* The same bits in two halves. The first one sets the slot's input gradient; the second one adds to
 * the gradients of matrices and embedding, from what the first one left in the slot: until then the
 * slot takes no other micro-batch. Each half in the same micro-batch order on every stage. Not with
 * recompute; in mixed precision only with conf.halves. */
void hdt_stage_backward_input(struct hdt_stage *stage, int slot);
void hdt_stage_backward_weight(struct hdt_stage *stage, int slot);

/*
 * After the last backward of a step, before sumsq and step. A tied model has an accumulator for the
 * embedding and one for the head, which are added once: embedding + head.
 *
 *  - Both in this stage, or not tied, or neither here: pass NULL.
 *  - Only one here: hdt_stage_tied_grad() gives this stage's accumulator, to be sent to the other
 *    stage; pass the other's, in device memory. Both then hold the same sum and make the same
 *    update, so that the two copies of the matrix stay equal bit for bit.
 */
void hdt_stage_finish_grads(struct hdt_stage *stage, const float *other_tied_grad);

/* Device memory of this stage's half of a tied gradient, *len floats; NULL when there is nothing to
 * exchange. hdt_stage_tied_buffer: room of the same size for the other's half. */
float *hdt_stage_tied_grad(struct hdt_stage *stage, size_t *len);
float *hdt_stage_tied_buffer(struct hdt_stage *stage);

/* Sum of squares of each tensor's gradient in float64, sumsq[i] for tensor i of the stage; 0 for
 * a tied head, which the embedding's stage counts. The global norm is the root of all tensors'
 * sums added in model order. Waits. */
enum hdt_status hdt_stage_grad_sumsq(struct hdt_stage *stage, double *sumsq, struct hdt_error *err);

/* One AdamW update of all tensors. weight_decay applies where the tensor's info says so. */
void hdt_stage_step(struct hdt_stage *stage, const struct hdt_adamw *adamw);

/* ---- Tensors, for checkpoints ---------------------------------------------------------------- */

/* Tensors of a stage are a range of the model's, in model order, first_tensor + 0 .. n - 1. */
int64_t hdt_stage_first_tensor(const struct hdt_stage *stage);
int hdt_stage_n_tensors(const struct hdt_stage *stage);
void hdt_stage_tensor(const struct hdt_stage *stage, int idx, struct hdt_stage_tensor *view);

/* Copy between host and device memory behind the stage's work, and wait. */
enum hdt_status hdt_stage_read(struct hdt_stage *stage, void *host, const void *device_mem,
                               size_t bytes, struct hdt_error *err);
enum hdt_status hdt_stage_write(struct hdt_stage *stage, void *device_mem, const void *host,
                                size_t bytes, struct hdt_error *err);

/* ---- Generation ------------------------------------------------------------------------------ */

/*
 * Logits after one sequence, position by position, with the keys and values of earlier positions
 * kept: for a stage that holds the whole model. Runs `n` tokens at positions pos .. pos + n - 1
 * (pos + n <= T) and sets logits (V, host memory) of the last one. Positions below pos must have
 * been run before in this way; training or evaluation in between voids them. Waits.
 */
enum hdt_status hdt_stage_decode(struct hdt_stage *stage, const int32_t *tokens, int pos, int n,
                                 float *logits, struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_STAGE_H */
