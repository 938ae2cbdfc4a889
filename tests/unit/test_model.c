/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/model.h"

#include <criterion/criterion.h>
#include <string.h>

/* TinyLlama-1.1B; its model card and the sum over its checkpoint's shapes give 1,100,048,384. */
static const char tinyllama[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"attention_bias\":false,\"bos_token_id\":1,"
    "\"eos_token_id\":2,\"hidden_act\":\"silu\",\"hidden_size\":2048,\"initializer_range\":0.02,"
    "\"intermediate_size\":5632,\"max_position_embeddings\":2048,\"model_type\":\"llama\","
    "\"num_attention_heads\":32,\"num_hidden_layers\":22,\"num_key_value_heads\":4,"
    "\"pretraining_tp\":1,\"rms_norm_eps\":1e-05,\"rope_scaling\":null,"
    "\"tie_word_embeddings\":false,\"torch_dtype\":\"float32\",\"vocab_size\":32000}";

static enum hdt_status parse(const char *text, struct hdt_model_config *config,
                             struct hdt_error *err)
{
    json_t *json = json_loads(text, 0, NULL);
    enum hdt_status status;

    cr_assert(json, "%s", text);
    status = hdt_model_from_json(json, "config.json", config, err);
    json_decref(json);
    return status;
}

/* The configuration with one key set to another value. */
static enum hdt_status parse_with(const char *key, const char *value, struct hdt_error *err)
{
    json_t *json = json_loads(tinyllama, 0, NULL);
    struct hdt_model_config config;
    enum hdt_status status;

    json_object_set_new(json, key, json_loads(value, JSON_DECODE_ANY, NULL));
    status = hdt_model_from_json(json, "config.json", &config, err);
    json_decref(json);
    return status;
}

Test(model, counts_the_parameters_of_a_known_model)
{
    struct hdt_model_config config;
    struct hdt_error err = {0};

    cr_assert_eq(parse(tinyllama, &config, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(hdt_model_n_params(&config), 1100048384);
    cr_expect_eq(config.HS, 64);
    cr_expect_eq(config.eos_token_id, 2);
    cr_expect_eq(config.rope_theta, 10000.0);
    config.tie_word_embeddings = true;
    cr_expect_eq(hdt_model_n_params(&config), 1100048384 - 32000 * 2048);
}

Test(model, tensors_have_the_names_and_shapes_of_transformers)
{
    static const struct {
        int64_t idx;
        const char *name;
        int64_t rows, cols, unit;
        bool decay, residual;
    } expected[] = {
        {0, "model.embed_tokens.weight", 32000, 2048, 0, true, false},
        {1, "model.layers.0.input_layernorm.weight", 1, 2048, 1, false, false},
        {2, "model.layers.0.self_attn.q_proj.weight", 2048, 2048, 1, true, false},
        {3, "model.layers.0.self_attn.k_proj.weight", 256, 2048, 1, true, false},
        {4, "model.layers.0.self_attn.v_proj.weight", 256, 2048, 1, true, false},
        {5, "model.layers.0.self_attn.o_proj.weight", 2048, 2048, 1, true, true},
        {6, "model.layers.0.post_attention_layernorm.weight", 1, 2048, 1, false, false},
        {7, "model.layers.0.mlp.gate_proj.weight", 5632, 2048, 1, true, false},
        {8, "model.layers.0.mlp.up_proj.weight", 5632, 2048, 1, true, false},
        {9, "model.layers.0.mlp.down_proj.weight", 2048, 5632, 1, true, true},
        {190, "model.layers.21.input_layernorm.weight", 1, 2048, 22, false, false},
        {199, "model.norm.weight", 1, 2048, 23, false, false},
        {200, "lm_head.weight", 32000, 2048, 23, true, false},
    };
    struct hdt_model_config config;
    struct hdt_model_tensor t;

    cr_assert_eq(parse(tinyllama, &config, NULL), HDT_OK);
    cr_assert_eq(hdt_model_n_tensors(&config), 201);
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        hdt_model_tensor(&config, expected[i].idx, &t);
        cr_expect_str_eq(t.name, expected[i].name);
        cr_expect_eq(t.rows, expected[i].rows, "%s", t.name);
        cr_expect_eq(t.cols, expected[i].cols, "%s", t.name);
        cr_expect_eq(t.unit, expected[i].unit, "%s", t.name);
        cr_expect_eq(t.decay, expected[i].decay, "%s", t.name);
        cr_expect_eq(t.residual, expected[i].residual, "%s", t.name);
        cr_expect_eq(t.n_dims, t.rows == 1 ? 1 : 2);
        cr_expect_eq(hdt_model_tensor_find(&config, t.name), expected[i].idx);
    }
    cr_expect_eq(hdt_model_tensor_find(&config, "model.layers.22.mlp.up_proj.weight"), -1);
}

Test(model, units_cover_all_tensors_once)
{
    struct hdt_model_config config;
    struct hdt_model_tensor t;
    int64_t next = 0, first, n, params = 0;

    cr_assert_eq(parse(tinyllama, &config, NULL), HDT_OK);
    for (int64_t unit = 0; unit < hdt_model_n_units(&config); unit++) {
        hdt_model_unit_tensors(&config, unit, &first, &n);
        cr_expect_eq(first, next);
        for (int64_t i = first; i < first + n; i++) {
            hdt_model_tensor(&config, i, &t);
            cr_expect_eq(t.unit, unit);
        }
        next = first + n;
        params += hdt_model_unit_params(&config, unit);
    }
    cr_expect_eq(next, hdt_model_n_tensors(&config));
    cr_expect_eq(params, hdt_model_n_params(&config));
}

Test(model, a_tied_head_is_marked)
{
    struct hdt_model_config config;
    struct hdt_model_tensor t;

    cr_assert_eq(parse(tinyllama, &config, NULL), HDT_OK);
    config.tie_word_embeddings = true;
    hdt_model_tensor(&config, 200, &t);
    cr_expect(t.tied);
    hdt_model_tensor(&config, 0, &t);
    cr_expect_not(t.tied);
}

Test(model, survives_its_own_json)
{
    struct hdt_model_config config, back;
    struct hdt_error err = {0};
    json_t *json;

    memset(&back, 0, sizeof(back));
    cr_assert_eq(parse(tinyllama, &config, NULL), HDT_OK);
    config.rope_scaling = HDT_ROPE_LLAMA3;
    config.rope_factor = 32;
    config.rope_low_freq_factor = 1;
    config.rope_high_freq_factor = 4;
    config.rope_original_T = 8192;
    config.bos_token_id = -1;
    json = hdt_model_to_json(&config);
    cr_assert(json);
    cr_assert_eq(hdt_model_from_json(json, "x", &back, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(memcmp(&config, &back, sizeof(config)), 0);
    json_decref(json);
}

Test(model, reads_the_newer_place_of_rope)
{
    json_t *json = json_loads(tinyllama, 0, NULL);
    struct hdt_model_config config;
    struct hdt_error err = {0};

    json_object_set_new(
        json, "rope_parameters",
        json_pack("{s:s, s:f, s:f}", "rope_type", "linear", "factor", 2.0, "rope_theta", 5e5));
    cr_assert_eq(hdt_model_from_json(json, "x", &config, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(config.rope_theta, 5e5);
    cr_expect_eq(config.rope_scaling, HDT_ROPE_LINEAR);
    cr_expect_eq(config.rope_factor, 2.0);
    json_decref(json);
}

Test(model, what_is_not_supported_is_named)
{
    static const struct {
        const char *key, *value, *word;
    } cases[] = {
        {"model_type", "\"mistral\"", "mistral"},
        {"hidden_act", "\"gelu\"", "gelu"},
        {"attention_bias", "true", "attention_bias"},
        {"mlp_bias", "true", "mlp_bias"},
        {"attention_dropout", "0.1", "attention_dropout"},
        {"rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":2}", "yarn"},
        {"rope_scaling", "{\"rope_type\":\"linear\"}", "factor"},
        {"vocab_size", "0", "vocab_size"},
        {"vocab_size", "4194305", "vocab_size"},
        {"vocab_size", "\"many\"", "vocab_size"},
        {"hidden_size", "null", "hidden_size"},
        {"num_hidden_layers", "99999999999", "num_hidden_layers"},
        {"num_key_value_heads", "5", "num_key_value_heads"},
        {"num_attention_heads", "36", "num_attention_heads"},
        {"head_dim", "63", "head_dim"},
        {"rms_norm_eps", "-1", "rms_norm_eps"},
        {"eos_token_id", "32000", "eos_token_id"},
        {"quantization_config", "{}", "quantization_config"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hdt_error err = {0};

        cr_expect_eq(parse_with(cases[i].key, cases[i].value, &err), HDT_EINVAL, "%s = %s",
                     cases[i].key, cases[i].value);
        cr_expect(strstr(err.msg, cases[i].word), "%s", err.msg);
        cr_expect_str_eq(err.where, "config.json");
    }
}

Test(model, a_missing_file_says_so)
{
    struct hdt_model_config config;
    struct hdt_error err = {0};

    cr_expect_eq(hdt_model_load("/nonexistent/config.json", &config, &err), HDT_ENOENT);
    cr_expect(strstr(err.msg, "/nonexistent/config.json"));
}

Test(model, flops_follow_the_usual_estimate)
{
    struct hdt_model_config config;
    double sum = 0;

    cr_assert_eq(parse(tinyllama, &config, NULL), HDT_OK);
    for (int64_t unit = 0; unit < hdt_model_n_units(&config); unit++) {
        sum += hdt_model_unit_flops(&config, unit, 1, 128);
    }
    /* 2 N a token without the embedding's look-up, attention small at 128 tokens. */
    cr_expect_float_eq(sum / (2.0 * 128 * (1100048384.0 - 32000 * 2048)), 1.0, 0.02);
}
