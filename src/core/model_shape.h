/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_MODEL_SHAPE_H
#define HDT_CORE_MODEL_SHAPE_H

/*
 * The shape of a model, for predictions: how many layers, how wide, how many parameters. Read from
 * a Hugging Face config.json of the Llama, GPT-2, OPT or GPT-Neo family. What the workers train is
 * struct hdt_model_config (src/core/model.h), which knows more of fewer families.
 */
#include "src/base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum hdt_model_family {
    HDT_MODEL_LLAMA,
    HDT_MODEL_GPT2,
    HDT_MODEL_OPT,
    HDT_MODEL_GPT_NEO,
};
extern const char *const hdt_model_family_names[]; /* as model_type says it; NULL-terminated */

struct hdt_model_shape {
    enum hdt_model_family family;
    int64_t V;   /* vocabulary */
    int64_t C;   /* hidden size */
    int64_t F;   /* width of the feed-forward part */
    int64_t L;   /* layers */
    int64_t NH;  /* attention heads */
    int64_t NKV; /* heads of keys and values; divides NH */
    int64_t HS;  /* size of a head */
    int64_t T;   /* longest sequence */
    int64_t E; /* width of the embedding: C, or less where two matrices C x E join it (OPT-350M) */
    int64_t n_positions; /* rows of the table of learned positions; 0: rotary */
    bool is_gated;       /* feed-forward part with a gate: three matrices, not two */
    bool qkv_bias;       /* of queries, keys and values */
    bool out_bias;       /* of the attention's output */
    bool mlp_bias;
    bool norm_bias; /* LayerNorm: weight and bias; RMSNorm: weight alone */
    bool has_final_norm;
    bool has_tied_head; /* the head is the embedding's matrix */
};

/* Read a config.json. "attention_bias" is taken for every family, since programs that train a
 * family by layers of their own may have biases where Hugging Face's have none (GPT-Neo's queries,
 * keys and values). HDT_ENOENT, HDT_EIO, HDT_EINVAL with the file. */
enum hdt_status hdt_model_shape_load(const char *path, struct hdt_model_shape *shape,
                                     struct hdt_error *err);
/* The same from memory; `where` names the source in messages. */
enum hdt_status hdt_model_shape_from_json(const json_t *json, const char *where,
                                          struct hdt_model_shape *shape, struct hdt_error *err);

/* Parameters of one layer; of the embedding (tokens, positions, projection); of the head (final
 * norm, projection, matrix unless tied); of the model. Checked sizes cannot overflow. */
int64_t hdt_model_shape_layer_params(const struct hdt_model_shape *shape);
int64_t hdt_model_shape_embedding_params(const struct hdt_model_shape *shape);
int64_t hdt_model_shape_head_params(const struct hdt_model_shape *shape);
int64_t hdt_model_shape_n_params(const struct hdt_model_shape *shape);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_MODEL_SHAPE_H */
