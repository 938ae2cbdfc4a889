/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_MODEL_H
#define HDT_CORE_MODEL_H

/*
 * The model as data: a Llama-family configuration (Hugging Face `config.json`) and the list of its
 * tensors in model order. No arithmetic here.
 *
 * A model is a row of *units*: unit 0 is the token embedding, units 1..L the transformer blocks,
 * unit L + 1 the final norm with the output head. A pipeline stage is a range of units.
 */
#include "src/base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum hdt_rope_scaling { HDT_ROPE_NONE, HDT_ROPE_LINEAR, HDT_ROPE_LLAMA3 };

struct hdt_model_config {
    int64_t V;   /* vocab_size */
    int64_t C;   /* hidden_size */
    int64_t F;   /* intermediate_size */
    int64_t L;   /* num_hidden_layers */
    int64_t NH;  /* num_attention_heads */
    int64_t NKV; /* num_key_value_heads; divides NH */
    int64_t HS;  /* head_dim; C / NH unless given; even */
    int64_t T;   /* max_position_embeddings */
    double rms_norm_eps;
    double initializer_range; /* standard deviation of initial weights */
    double rope_theta;
    enum hdt_rope_scaling rope_scaling;
    double rope_factor;          /* LINEAR, LLAMA3 */
    double rope_low_freq_factor; /* LLAMA3 */
    double rope_high_freq_factor;
    int64_t rope_original_T;            /* LLAMA3: original_max_position_embeddings */
    bool tie_word_embeddings;           /* the head is the embedding's matrix */
    int64_t bos_token_id, eos_token_id; /* -1: none */
};

/* Limits that every configuration is checked against before any arithmetic. */
#define HDT_MODEL_MAX_V (1 << 22)
#define HDT_MODEL_MAX_C (1 << 17)
#define HDT_MODEL_MAX_F (1 << 20)
#define HDT_MODEL_MAX_L 4096
#define HDT_MODEL_MAX_T (1 << 24)

/* Read a config.json: model_type or architectures must be Llama's; what HDT does not support
 * (biases, other activations, other rope types) is refused by name. HDT_ENOENT, HDT_EINVAL with the
 * file. */
enum hdt_status hdt_model_load(const char *path, struct hdt_model_config *config,
                               struct hdt_error *err);
enum hdt_status hdt_model_from_json(const json_t *json, const char *where,
                                    struct hdt_model_config *config, struct hdt_error *err);

/* A config.json that transformers loads (architectures, model_type, torch_dtype "float32", ...).
 * New reference. */
json_t *hdt_model_to_json(const struct hdt_model_config *config);

static inline int64_t hdt_model_n_units(const struct hdt_model_config *config)
{
    return config->L + 2;
}

/* What products of bf16 ask of a model: head size (at most this), width and feed-forward width are
 * multiples of 8, and the vocabulary where it has its head. HDT_ENOTSUP says what is not. */
#define HDT_MODEL_BF16_HEAD_MAX 128
enum hdt_status hdt_model_check_bf16(const struct hdt_model_config *config, bool has_head,
                                     struct hdt_error *err);

/* What products of FP8 ask for beside that: widths of all matrices of the blocks, and tokens of a
 * micro-batch, are multiples of 16. */
#define HDT_MODEL_FP8_DIM 16
enum hdt_status hdt_model_check_fp8(const struct hdt_model_config *config, int64_t micro_batch,
                                    int64_t seq_len, struct hdt_error *err);

#define HDT_MODEL_TENSORS_PER_BLOCK 9

/* One weight tensor, (rows, cols) row-major as in the checkpoint file: y = x W^T with W (out, in).
 * Norms have n_dims 1, rows = 1 and cols = C. */
struct hdt_model_tensor {
    char name[96]; /* Hugging Face name: "model.layers.3.self_attn.q_proj.weight" */
    int64_t unit;
    int64_t rows, cols;
    int n_dims;
    bool decay;    /* weight decay applies (matrices) */
    bool residual; /* writes to the residual stream (o_proj, down_proj): initial deviation is
                      divided by sqrt(2 L) */
    bool tied;     /* the head of a tied model: same values as tensor 0, not in files */
};

/* Tensors in model order: embed; per block input_layernorm, q, k, v, o, post_attention_layernorm,
 * gate, up, down; norm; lm_head (also counted when tied). n = 9 L + 3. */
int64_t hdt_model_n_tensors(const struct hdt_model_config *config);
void hdt_model_tensor(const struct hdt_model_config *config, int64_t idx,
                      struct hdt_model_tensor *tensor);

/* Tensors [first, first + n) of one unit. */
void hdt_model_unit_tensors(const struct hdt_model_config *config, int64_t unit, int64_t *first,
                            int64_t *n);

/* Index of a tensor by name; -1 when the model has none of that name. */
int64_t hdt_model_tensor_find(const struct hdt_model_config *config, const char *name);

/* Parameters of one unit (a tied head counts its copy), and of the model (tied: once). */
int64_t hdt_model_unit_params(const struct hdt_model_config *config, int64_t unit);
int64_t hdt_model_n_params(const struct hdt_model_config *config);

/* Multiply-add operations x 2 of the forward pass of one unit for B sequences of T tokens, causal
 * attention counted as half of the square; backward is twice as many. */
double hdt_model_unit_flops(const struct hdt_model_config *config, int64_t unit, int64_t B,
                            int64_t T);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_MODEL_H */
