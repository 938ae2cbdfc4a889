/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/model.h"
#include "src/core/config_json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- reading config.json ---- */

static enum hdt_status reader_real(const struct hdt_config_json *r, const json_t *json,
                                   const char *key, double def, double *out)
{
    const json_t *value = json_object_get(json, key);
    double v = def;

    if (value && !json_is_null(value)) {
        if (!json_is_number(value)) {
            return hdt_config_json_fail(r, key, "must be a number");
        }
        v = json_number_value(value);
    }
    if (!(v > 0) || !isfinite(v)) {
        return hdt_config_json_fail(r, key, "is missing or not above 0");
    }
    *out = v;
    return HDT_OK;
}

/* Token ids: an integer, a list (its first), or nothing. */
static enum hdt_status reader_token(const struct hdt_config_json *r, const char *key, int64_t V,
                                    int64_t *out)
{
    const json_t *value = json_object_get(r->json, key);

    if (json_is_array(value)) {
        value = json_array_get(value, 0);
    }
    *out = -1;
    if (!value || json_is_null(value)) {
        return HDT_OK;
    }
    if (!json_is_integer(value) || json_integer_value(value) < -1 ||
        json_integer_value(value) >= V) {
        return hdt_config_json_fail(r, key, "is no token of the vocabulary");
    }
    *out = json_integer_value(value);
    return HDT_OK;
}

static enum hdt_status model_check_family(const struct hdt_config_json *r)
{
    bool is_architecture;
    const char *type = hdt_config_json_type(r, &is_architecture);
    char why[128];

    if (type && strcmp(type, is_architecture ? "LlamaForCausalLM" : "llama") == 0) {
        return HDT_OK;
    }
    snprintf(why, sizeof(why), "is '%.64s', supported is 'llama'", type ? type : "missing");
    return hdt_config_json_fail(r, "model_type", why);
}

/* Things that would change the arithmetic and that HDT does not do are refused by name. */
static enum hdt_status model_check_unsupported(const struct hdt_config_json *r)
{
    const json_t *act = json_object_get(r->json, "hidden_act");
    const json_t *dropout = json_object_get(r->json, "attention_dropout");
    bool attention_bias, mlp_bias;
    char why[128];

    if (act && (!json_is_string(act) || strcmp(json_string_value(act), "silu") != 0)) {
        snprintf(why, sizeof(why), "is '%.64s', supported is 'silu'",
                 json_is_string(act) ? json_string_value(act) : "no string");
        return hdt_config_json_fail(r, "hidden_act", why);
    }
    HDT_TRY(hdt_config_json_bool(r, "attention_bias", false, &attention_bias));
    HDT_TRY(hdt_config_json_bool(r, "mlp_bias", false, &mlp_bias));
    if (attention_bias || mlp_bias) {
        return hdt_config_json_fail(r, attention_bias ? "attention_bias" : "mlp_bias",
                                    "is true, biases are not supported");
    }
    if (json_is_number(dropout) && json_number_value(dropout) != 0) {
        return hdt_config_json_fail(r, "attention_dropout", "is not 0, dropout is not supported");
    }
    if (json_object_get(r->json, "quantization_config")) {
        return hdt_config_json_fail(r, "quantization_config",
                                    "is given, quantized weights are not trained");
    }
    return HDT_OK;
}

static enum hdt_status model_read_llama3(const struct hdt_config_json *r, const json_t *rope,
                                         struct hdt_model_config *config)
{
    const json_t *original = json_object_get(rope, "original_max_position_embeddings");

    config->rope_scaling = HDT_ROPE_LLAMA3;
    HDT_TRY(reader_real(r, rope, "low_freq_factor", 0, &config->rope_low_freq_factor));
    HDT_TRY(reader_real(r, rope, "high_freq_factor", 0, &config->rope_high_freq_factor));
    if (config->rope_high_freq_factor <= config->rope_low_freq_factor) {
        return hdt_config_json_fail(r, "rope_scaling.high_freq_factor",
                                    "is not above low_freq_factor");
    }
    if (!json_is_integer(original) || json_integer_value(original) < 1 ||
        json_integer_value(original) > HDT_MODEL_MAX_T) {
        return hdt_config_json_fail(r, "rope_scaling.original_max_position_embeddings",
                                    "is missing or out of bounds");
    }
    config->rope_original_T = json_integer_value(original);
    return HDT_OK;
}

/* transformers 5 moved theta and scaling into "rope_parameters"; older files have rope_theta and
 * rope_scaling. "rope_type" was called "type" before. */
static enum hdt_status model_read_rope(const struct hdt_config_json *r,
                                       struct hdt_model_config *config)
{
    const json_t *rope = json_object_get(r->json, "rope_parameters");
    const char *type;
    char why[128];

    HDT_TRY(reader_real(r, json_object_get(rope, "rope_theta") ? rope : r->json, "rope_theta",
                        10000.0, &config->rope_theta));
    if (!json_is_object(rope)) {
        rope = json_object_get(r->json, "rope_scaling");
    }
    if (!rope || json_is_null(rope)) {
        return HDT_OK;
    }
    type = json_string_value(json_object_get(rope, "rope_type"));
    if (!type) {
        type = json_string_value(json_object_get(rope, "type"));
    }
    if (!type || strcmp(type, "default") == 0) {
        return HDT_OK;
    }
    if (strcmp(type, "linear") != 0 && strcmp(type, "llama3") != 0) {
        snprintf(why, sizeof(why), "is '%.64s', supported are 'default', 'linear' and 'llama3'",
                 type);
        return hdt_config_json_fail(r, "rope_scaling.rope_type", why);
    }
    HDT_TRY(reader_real(r, rope, "factor", 0, &config->rope_factor));
    config->rope_scaling = HDT_ROPE_LINEAR;
    return strcmp(type, "llama3") == 0 ? model_read_llama3(r, rope, config) : HDT_OK;
}

static enum hdt_status model_read_sizes(const struct hdt_config_json *r, struct hdt_model_config *c)
{
    char why[96];

    HDT_TRY(hdt_config_json_int(r, "vocab_size", 0, HDT_MODEL_MAX_V, &c->V));
    HDT_TRY(hdt_config_json_int(r, "hidden_size", 0, HDT_MODEL_MAX_C, &c->C));
    HDT_TRY(hdt_config_json_int(r, "intermediate_size", 0, HDT_MODEL_MAX_F, &c->F));
    HDT_TRY(hdt_config_json_int(r, "num_hidden_layers", 0, HDT_MODEL_MAX_L, &c->L));
    HDT_TRY(hdt_config_json_int(r, "num_attention_heads", 0, HDT_MODEL_MAX_C, &c->NH));
    HDT_TRY(hdt_config_json_int(r, "num_key_value_heads", c->NH, HDT_MODEL_MAX_C, &c->NKV));
    HDT_TRY(hdt_config_json_int(r, "max_position_embeddings", 2048, HDT_MODEL_MAX_T, &c->T));
    if (c->NH % c->NKV != 0) {
        snprintf(why, sizeof(why), "is %lld, it must divide num_attention_heads %lld",
                 (long long)c->NKV, (long long)c->NH);
        return hdt_config_json_fail(r, "num_key_value_heads", why);
    }
    if (!json_is_integer(json_object_get(r->json, "head_dim")) && c->C % c->NH != 0) {
        snprintf(why, sizeof(why), "is %lld, it must divide hidden_size %lld (or give head_dim)",
                 (long long)c->NH, (long long)c->C);
        return hdt_config_json_fail(r, "num_attention_heads", why);
    }
    HDT_TRY(hdt_config_json_int(r, "head_dim", c->C >= c->NH ? c->C / c->NH : 1, 8192, &c->HS));
    if (c->HS % 2 != 0) {
        return hdt_config_json_fail(r, "head_dim", "is odd, rotary embeddings need pairs");
    }
    return HDT_OK;
}

enum hdt_status hdt_model_from_json(const json_t *json, const char *where,
                                    struct hdt_model_config *config, struct hdt_error *err)
{
    struct hdt_config_json r = {json, where, err};
    struct hdt_model_config c;

    memset(&c, 0, sizeof(c));
    if (!json_is_object(json)) {
        return hdt_config_json_fail(&r, "config.json", "is no JSON object");
    }
    HDT_TRY(model_check_family(&r));
    HDT_TRY(model_check_unsupported(&r));
    HDT_TRY(model_read_sizes(&r, &c));
    HDT_TRY(model_read_rope(&r, &c));
    HDT_TRY(reader_real(&r, json, "rms_norm_eps", 1e-6, &c.rms_norm_eps));
    HDT_TRY(reader_real(&r, json, "initializer_range", 0.02, &c.initializer_range));
    HDT_TRY(hdt_config_json_bool(&r, "tie_word_embeddings", false, &c.tie_word_embeddings));
    HDT_TRY(reader_token(&r, "bos_token_id", c.V, &c.bos_token_id));
    HDT_TRY(reader_token(&r, "eos_token_id", c.V, &c.eos_token_id));
    *config = c;
    return HDT_OK;
}

enum hdt_status hdt_model_load(const char *path, struct hdt_model_config *config,
                               struct hdt_error *err)
{
    json_t *json;
    enum hdt_status status = hdt_config_json_load(path, &json, err);

    if (status == HDT_ENOENT || status == HDT_EIO) {
        hdt_error_hint(err, "model: names a Hugging Face config.json of the Llama family");
    }
    HDT_TRY(status);
    status = hdt_model_from_json(json, path, config, err);
    json_decref(json);
    return status;
}

/* ---- writing ---- */

static json_t *model_rope_json(const struct hdt_model_config *c)
{
    switch (c->rope_scaling) {
    case HDT_ROPE_NONE:
        return json_null();
    case HDT_ROPE_LINEAR:
        return json_pack("{s:s, s:s, s:f}", "rope_type", "linear", "type", "linear", "factor",
                         c->rope_factor);
    case HDT_ROPE_LLAMA3:
        return json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor",
                         c->rope_factor, "low_freq_factor", c->rope_low_freq_factor,
                         "high_freq_factor", c->rope_high_freq_factor,
                         "original_max_position_embeddings", (json_int_t)c->rope_original_T);
    }
    return json_null();
}

static json_t *token_json(int64_t id)
{
    return id < 0 ? json_null() : json_integer(id);
}

json_t *hdt_model_to_json(const struct hdt_model_config *c)
{
    return json_pack(
        "{s:[s], s:s, s:s, s:s, s:b, s:b, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I,"
        " s:f, s:f, s:f, s:o, s:b, s:o, s:o, s:b}",
        "architectures", "LlamaForCausalLM", "model_type", "llama", "torch_dtype", "float32",
        "hidden_act", "silu", "attention_bias", 0, "mlp_bias", 0, "attention_dropout", 0.0,
        "vocab_size", (json_int_t)c->V, "hidden_size", (json_int_t)c->C, "intermediate_size",
        (json_int_t)c->F, "num_hidden_layers", (json_int_t)c->L, "num_attention_heads",
        (json_int_t)c->NH, "num_key_value_heads", (json_int_t)c->NKV, "head_dim", (json_int_t)c->HS,
        "max_position_embeddings", (json_int_t)c->T, "rms_norm_eps", c->rms_norm_eps,
        "initializer_range", c->initializer_range, "rope_theta", c->rope_theta, "rope_scaling",
        model_rope_json(c), "tie_word_embeddings", (int)c->tie_word_embeddings, "bos_token_id",
        token_json(c->bos_token_id), "eos_token_id", token_json(c->eos_token_id), "use_cache", 1);
}

/* ---- tensors ---- */

/* The nine tensors of a block in model order. */
enum block_tensor { LN1, WQ, WK, WV, WO, LN2, GATE, UP, DOWN };

static const char *const block_names[HDT_MODEL_TENSORS_PER_BLOCK] = {
    [LN1] = "input_layernorm", [WQ] = "self_attn.q_proj", [WK] = "self_attn.k_proj",
    [WV] = "self_attn.v_proj", [WO] = "self_attn.o_proj", [LN2] = "post_attention_layernorm",
    [GATE] = "mlp.gate_proj",  [UP] = "mlp.up_proj",      [DOWN] = "mlp.down_proj",
};

static void block_shape(const struct hdt_model_config *c, enum block_tensor which, int64_t *rows,
                        int64_t *cols)
{
    switch (which) {
    case LN1:
    case LN2:
        *rows = 1;
        *cols = c->C;
        break;
    case WQ:
        *rows = c->NH * c->HS;
        *cols = c->C;
        break;
    case WK:
    case WV:
        *rows = c->NKV * c->HS;
        *cols = c->C;
        break;
    case WO:
        *rows = c->C;
        *cols = c->NH * c->HS;
        break;
    case GATE:
    case UP:
        *rows = c->F;
        *cols = c->C;
        break;
    case DOWN:
        *rows = c->C;
        *cols = c->F;
        break;
    }
}

int64_t hdt_model_n_tensors(const struct hdt_model_config *config)
{
    return HDT_MODEL_TENSORS_PER_BLOCK * config->L + 3;
}

static enum block_tensor model_block_which(int64_t idx)
{
    return (enum block_tensor)((idx - 1) % HDT_MODEL_TENSORS_PER_BLOCK);
}

static void tensor_shape(const struct hdt_model_config *c, int64_t idx, int64_t *rows,
                         int64_t *cols)
{
    int64_t n = hdt_model_n_tensors(c);

    HDT_ASSERT(idx >= 0 && idx < n);
    *rows = 1;
    *cols = c->C;
    if (idx == 0 || idx == n - 1) {
        *rows = c->V;
    } else if (idx != n - 2) {
        block_shape(c, model_block_which(idx), rows, cols);
    }
}

/* All but the name, which takes longer than the rest. */
static void model_tensor_fill(const struct hdt_model_config *c, int64_t idx,
                              struct hdt_model_tensor *t)
{
    int64_t n = hdt_model_n_tensors(c);

    memset(t, 0, sizeof(*t));
    tensor_shape(c, idx, &t->rows, &t->cols);
    if (idx == 0 || idx == n - 1) {
        t->n_dims = 2;
        t->unit = idx == 0 ? 0 : c->L + 1;
        t->tied = idx != 0 && c->tie_word_embeddings;
    } else if (idx == n - 2) {
        t->n_dims = 1;
        t->unit = c->L + 1;
    } else {
        enum block_tensor which = model_block_which(idx);

        t->unit = (idx - 1) / HDT_MODEL_TENSORS_PER_BLOCK + 1;
        t->n_dims = which == LN1 || which == LN2 ? 1 : 2;
        t->residual = which == WO || which == DOWN;
    }
    t->decay = t->n_dims == 2;
}

void hdt_model_tensor(const struct hdt_model_config *config, int64_t idx,
                      struct hdt_model_tensor *tensor)
{
    int64_t n = hdt_model_n_tensors(config);

    model_tensor_fill(config, idx, tensor);
    if (idx == 0) {
        snprintf(tensor->name, sizeof(tensor->name), "model.embed_tokens.weight");
    } else if (idx == n - 1) {
        snprintf(tensor->name, sizeof(tensor->name), "lm_head.weight");
    } else if (idx == n - 2) {
        snprintf(tensor->name, sizeof(tensor->name), "model.norm.weight");
    } else {
        snprintf(tensor->name, sizeof(tensor->name), "model.layers.%lld.%s.weight",
                 (long long)(tensor->unit - 1), block_names[model_block_which(idx)]);
    }
}

void hdt_model_unit_tensors(const struct hdt_model_config *config, int64_t unit, int64_t *first,
                            int64_t *n)
{
    HDT_ASSERT(unit >= 0 && unit < hdt_model_n_units(config));
    *first = unit == 0 ? 0 : 1 + (unit - 1) * HDT_MODEL_TENSORS_PER_BLOCK;
    *n = unit == 0 ? 1 : unit == config->L + 1 ? 2 : HDT_MODEL_TENSORS_PER_BLOCK;
}

int64_t hdt_model_tensor_find(const struct hdt_model_config *config, const char *name)
{
    struct hdt_model_tensor tensor;
    int64_t n = hdt_model_n_tensors(config);

    for (int64_t i = 0; i < n; i++) {
        hdt_model_tensor(config, i, &tensor);
        if (strcmp(tensor.name, name) == 0) {
            return i;
        }
    }
    return -1;
}

enum hdt_status hdt_model_check_bf16(const struct hdt_model_config *m, bool has_head,
                                     struct hdt_error *err)
{
    const struct {
        const char *name;
        int64_t size;
    } sizes[] = {{"hidden_size", m->C},
                 {"intermediate_size", m->F},
                 {"head_dim", m->HS},
                 {"vocab_size", has_head ? m->V : 0}};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (sizes[i].size % 8 != 0) {
            hdt_error_set(err, HDT_ENOTSUP,
                          "products of bf16 cannot be made of a model with %s %lld: it must be a "
                          "multiple of 8",
                          sizes[i].name, (long long)sizes[i].size);
            goto err_hint;
        }
    }
    if (m->HS <= HDT_MODEL_BF16_HEAD_MAX) {
        return HDT_OK;
    }
    hdt_error_set(err, HDT_ENOTSUP,
                  "products of bf16 cannot be made of a model with head_dim %lld: it may be %d at "
                  "most",
                  (long long)m->HS, HDT_MODEL_BF16_HEAD_MAX);
err_hint:
    hdt_error_hint(err, "set precision: fp32 in the job");
    return HDT_ENOTSUP;
}

enum hdt_status hdt_model_check_fp8(const struct hdt_model_config *m, int64_t micro_batch,
                                    int64_t seq_len, struct hdt_error *err)
{
    const struct {
        const char *name;
        int64_t size;
    } sizes[] = {{"hidden_size", m->C},
                 {"intermediate_size", m->F},
                 {"num_attention_heads * head_dim", m->NH * m->HS},
                 {"(num_attention_heads + 2 * num_key_value_heads) * head_dim",
                  (m->NH + 2 * m->NKV) * m->HS},
                 {"micro_batch * seq_len", micro_batch * seq_len}};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (sizes[i].size % HDT_MODEL_FP8_DIM != 0) {
            hdt_error_set(
                err, HDT_ENOTSUP,
                "products of fp8 cannot be made with %s %lld: it must be a multiple of %d",
                sizes[i].name, (long long)sizes[i].size, HDT_MODEL_FP8_DIM);
            hdt_error_hint(err, "set precision: bf16 in the job");
            return HDT_ENOTSUP;
        }
    }
    return HDT_OK;
}

int64_t hdt_model_unit_params(const struct hdt_model_config *config, int64_t unit)
{
    int64_t first, n, rows, cols, sum = 0;

    hdt_model_unit_tensors(config, unit, &first, &n);
    for (int64_t i = first; i < first + n; i++) {
        tensor_shape(config, i, &rows, &cols); /* the planner asks a million times */
        sum += rows * cols;
    }
    return sum;
}

int64_t hdt_model_n_params(const struct hdt_model_config *config)
{
    int64_t sum = hdt_model_unit_params(config, 0) + hdt_model_unit_params(config, config->L + 1);

    sum += config->L * hdt_model_unit_params(config, 1);
    return config->tie_word_embeddings ? sum - config->V * config->C : sum;
}

double hdt_model_unit_flops(const struct hdt_model_config *config, int64_t unit, int64_t B,
                            int64_t T)
{
    double tokens = (double)B * (double)T;
    double weights, attention;

    if (unit == 0) {
        return 0; /* a look-up */
    }
    if (unit == config->L + 1) {
        return 2.0 * tokens * (double)config->V * (double)config->C;
    }
    weights = (double)hdt_model_unit_params(config, unit) - 2.0 * (double)config->C;
    /* Scores and their product with V: 2 x (2 T^2 HS) a head and sequence, half of it causal. */
    attention = 2.0 * (double)B * (double)T * (double)T * (double)(config->NH * config->HS);
    return 2.0 * tokens * weights + attention;
}
