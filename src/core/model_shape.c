/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The families differ in the names of their keys and in what is there (biases, gates, positions):
 * both are a table. Limits are those of src/core/model.h.
 */
#include "config.h"

#include "src/core/model_shape.h"
#include "src/core/config_json.h"
#include "src/core/model.h"

#include <stdio.h>
#include <string.h>

const char *const hdt_model_family_names[] = {[HDT_MODEL_LLAMA] = "llama",
                                              [HDT_MODEL_GPT2] = "gpt2",
                                              [HDT_MODEL_OPT] = "opt",
                                              [HDT_MODEL_GPT_NEO] = "gpt_neo",
                                              [HDT_MODEL_GPT_NEO + 1] = NULL};

struct family {
    const char *architecture;                      /* of the causal model */
    const char *hidden, *layers, *heads, *ffn, *T; /* keys */
    bool is_gated, has_positions, has_bias, norm_bias, is_tied;
};

static const struct family families[] = {
    [HDT_MODEL_LLAMA] = {.architecture = "LlamaForCausalLM",
                         .hidden = "hidden_size",
                         .layers = "num_hidden_layers",
                         .heads = "num_attention_heads",
                         .ffn = "intermediate_size",
                         .T = "max_position_embeddings",
                         .is_gated = true},
    [HDT_MODEL_GPT2] = {.architecture = "GPT2LMHeadModel",
                        .hidden = "n_embd",
                        .layers = "n_layer",
                        .heads = "n_head",
                        .ffn = "n_inner",
                        .T = "n_positions",
                        .has_positions = true,
                        .has_bias = true,
                        .norm_bias = true,
                        .is_tied = true},
    [HDT_MODEL_OPT] = {.architecture = "OPTForCausalLM",
                       .hidden = "hidden_size",
                       .layers = "num_hidden_layers",
                       .heads = "num_attention_heads",
                       .ffn = "ffn_dim",
                       .T = "max_position_embeddings",
                       .has_positions = true,
                       .has_bias = true,
                       .norm_bias = true,
                       .is_tied = true},
    [HDT_MODEL_GPT_NEO] = {.architecture = "GPTNeoForCausalLM",
                           .hidden = "hidden_size",
                           .layers = "num_layers",
                           .heads = "num_heads",
                           .ffn = "intermediate_size",
                           .T = "max_position_embeddings",
                           .has_positions = true,
                           .has_bias = true,
                           .norm_bias = true,
                           .is_tied = true},
};

/* OPT's table of positions has two rows more than positions: it counts from 2. */
#define OPT_POSITION_OFFSET 2

static enum hdt_status family_read(const struct hdt_config_json *r, enum hdt_model_family *family)
{
    bool is_architecture;
    const char *type = hdt_config_json_type(r, &is_architecture);
    char why[160];

    for (int i = 0; hdt_model_family_names[i]; i++) {
        const char *name = is_architecture ? families[i].architecture : hdt_model_family_names[i];

        if (type && strcmp(type, name) == 0) {
            *family = (enum hdt_model_family)i;
            return HDT_OK;
        }
    }
    snprintf(why, sizeof(why), "is '%.64s', known are 'llama', 'gpt2', 'opt' and 'gpt_neo'",
             type ? type : "missing");
    return hdt_config_json_fail(r, "model_type", why);
}

static enum hdt_status sizes_read(const struct hdt_config_json *r, const struct family *f,
                                  struct hdt_model_shape *s)
{
    char why[96];

    HDT_TRY(hdt_config_json_int(r, "vocab_size", 0, HDT_MODEL_MAX_V, &s->V));
    HDT_TRY(hdt_config_json_int(r, f->hidden, 0, HDT_MODEL_MAX_C, &s->C));
    HDT_TRY(hdt_config_json_int(r, f->layers, 0, HDT_MODEL_MAX_L, &s->L));
    HDT_TRY(hdt_config_json_int(r, f->heads, 0, HDT_MODEL_MAX_C, &s->NH));
    /* GPT-2 and GPT-Neo leave the usual width away. */
    HDT_TRY(hdt_config_json_int(r, f->ffn, f->is_gated || s->family == HDT_MODEL_OPT ? 0 : 4 * s->C,
                                HDT_MODEL_MAX_F, &s->F));
    HDT_TRY(hdt_config_json_int(r, f->T, 2048, HDT_MODEL_MAX_T, &s->T));
    s->NKV = s->NH;
    s->E = s->C;
    if (s->family == HDT_MODEL_LLAMA) {
        HDT_TRY(hdt_config_json_int(r, "num_key_value_heads", s->NH, HDT_MODEL_MAX_C, &s->NKV));
    } else if (s->family == HDT_MODEL_OPT) {
        HDT_TRY(hdt_config_json_int(r, "word_embed_proj_dim", s->C, HDT_MODEL_MAX_C, &s->E));
    }
    if (s->NH % s->NKV != 0) {
        snprintf(why, sizeof(why), "is %lld, it must divide %s %lld", (long long)s->NKV, f->heads,
                 (long long)s->NH);
        return hdt_config_json_fail(r, "num_key_value_heads", why);
    }
    if (!json_is_integer(json_object_get(r->json, "head_dim")) && s->C % s->NH != 0) {
        snprintf(why, sizeof(why), "is %lld, it must divide %s %lld", (long long)s->NH, f->hidden,
                 (long long)s->C);
        return hdt_config_json_fail(r, f->heads, why);
    }
    return hdt_config_json_int(r, "head_dim", s->C >= s->NH ? s->C / s->NH : 1, 8192, &s->HS);
}

static enum hdt_status parts_read(const struct hdt_config_json *r, const struct family *f,
                                  struct hdt_model_shape *s)
{
    bool has_bias = f->has_bias, before = true, removed = false;

    if (s->family == HDT_MODEL_OPT) {
        HDT_TRY(hdt_config_json_bool(r, "enable_bias", true, &has_bias));
        HDT_TRY(hdt_config_json_bool(r, "do_layer_norm_before", true, &before));
        HDT_TRY(hdt_config_json_bool(r, "_remove_final_layer_norm", false, &removed));
    }
    HDT_TRY(hdt_config_json_bool(r, "attention_bias", has_bias && s->family != HDT_MODEL_GPT_NEO,
                                 &s->qkv_bias));
    HDT_TRY(hdt_config_json_bool(r, "mlp_bias", has_bias, &s->mlp_bias));
    s->out_bias = has_bias || s->qkv_bias;
    s->is_gated = f->is_gated;
    s->norm_bias = f->norm_bias;
    s->has_final_norm = before && !removed;
    s->n_positions = !f->has_positions            ? 0
                     : s->family == HDT_MODEL_OPT ? s->T + OPT_POSITION_OFFSET
                                                  : s->T;
    return hdt_config_json_bool(r, "tie_word_embeddings", f->is_tied, &s->has_tied_head);
}

enum hdt_status hdt_model_shape_from_json(const json_t *json, const char *where,
                                          struct hdt_model_shape *shape, struct hdt_error *err)
{
    struct hdt_config_json r = {json, where, err};
    struct hdt_model_shape s;

    memset(&s, 0, sizeof(s));
    if (!json_is_object(json)) {
        return hdt_config_json_fail(&r, "config.json", "is no JSON object");
    }
    HDT_TRY(family_read(&r, &s.family));
    HDT_TRY(sizes_read(&r, &families[s.family], &s));
    HDT_TRY(parts_read(&r, &families[s.family], &s));
    *shape = s;
    return HDT_OK;
}

enum hdt_status hdt_model_shape_load(const char *path, struct hdt_model_shape *shape,
                                     struct hdt_error *err)
{
    json_t *json;
    enum hdt_status status = hdt_config_json_load(path, &json, err);

    if (status == HDT_ENOENT || status == HDT_EIO) {
        hdt_error_hint(err, "model: names a Hugging Face config.json of the Llama, GPT-2, OPT or "
                            "GPT-Neo family");
    }
    HDT_TRY(status);
    status = hdt_model_shape_from_json(json, path, shape, err);
    json_decref(json);
    return status;
}

/* ---- counts ---- */

static int64_t norm_params(const struct hdt_model_shape *s)
{
    return s->norm_bias ? 2 * s->C : s->C;
}

int64_t hdt_model_shape_layer_params(const struct hdt_model_shape *s)
{
    int64_t q = s->NH * s->HS, kv = s->NKV * s->HS, n_in = s->is_gated ? 2 : 1;
    int64_t params = s->C * (q + 2 * kv) + q * s->C + (n_in + 1) * s->C * s->F;

    params += s->qkv_bias ? q + 2 * kv : 0;
    params += s->out_bias ? s->C : 0;
    params += s->mlp_bias ? n_in * s->F + s->C : 0;
    return params + 2 * norm_params(s);
}

static int64_t projection_params(const struct hdt_model_shape *s)
{
    return s->E != s->C ? s->E * s->C : 0;
}

int64_t hdt_model_shape_embedding_params(const struct hdt_model_shape *s)
{
    return s->V * s->E + s->n_positions * s->C + projection_params(s);
}

int64_t hdt_model_shape_head_params(const struct hdt_model_shape *s)
{
    return (s->has_final_norm ? norm_params(s) : 0) + projection_params(s) +
           (s->has_tied_head ? 0 : s->V * s->E);
}

int64_t hdt_model_shape_n_params(const struct hdt_model_shape *s)
{
    return hdt_model_shape_embedding_params(s) + s->L * hdt_model_shape_layer_params(s) +
           hdt_model_shape_head_params(s);
}
