/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/model_shape.h"

#include <criterion/criterion.h>
#include <string.h>

static enum hdt_status parse(const char *text, struct hdt_model_shape *shape, struct hdt_error *err)
{
    json_t *json = json_loads(text, 0, NULL);
    enum hdt_status status;

    cr_assert(json, "%s", text);
    status = hdt_model_shape_from_json(json, "config.json", shape, err);
    json_decref(json);
    return status;
}

/* The keys of published config.json files that bear on the shape. */
#define OPT_350M                                                                                   \
 "{\"model_type\":\"opt\",\"vocab_size\":50272,\"hidden_size\":1024,\"num_hidden_layers\":24,"     \
 "\"num_attention_heads\":16,\"ffn_dim\":4096,\"max_position_embeddings\":2048,"                   \
 "\"word_embed_proj_dim\":512,\"do_layer_norm_before\":false}"
#define OPT_125M                                                                                   \
 "{\"model_type\":\"opt\",\"vocab_size\":50272,\"hidden_size\":768,\"num_hidden_layers\":12,"      \
 "\"num_attention_heads\":12,\"ffn_dim\":3072,\"max_position_embeddings\":2048,"                   \
 "\"word_embed_proj_dim\":768,\"do_layer_norm_before\":true}"
#define GPT2                                                                                       \
 "{\"architectures\":[\"GPT2LMHeadModel\"],\"vocab_size\":50257,\"n_embd\":768,\"n_layer\":12,"    \
 "\"n_head\":12,\"n_positions\":1024,\"n_ctx\":1024}"
#define GPT2_MEDIUM                                                                                \
 "{\"model_type\":\"gpt2\",\"vocab_size\":50257,\"n_embd\":1024,\"n_layer\":24,\"n_head\":16,"     \
 "\"n_positions\":1024,\"n_inner\":null}"
#define NEO_2B7                                                                                    \
 "{\"model_type\":\"gpt_neo\",\"vocab_size\":50257,\"hidden_size\":2560,\"num_layers\":32,"        \
 "\"num_heads\":20,\"intermediate_size\":null,\"max_position_embeddings\":2048"
#define LLAMA3_8B                                                                                  \
 "{\"model_type\":\"llama\",\"vocab_size\":128256,\"hidden_size\":4096,"                           \
 "\"num_hidden_layers\":32,\"num_attention_heads\":32,\"num_key_value_heads\":8,"                  \
 "\"intermediate_size\":14336,\"max_position_embeddings\":8192,"                                   \
 "\"tie_word_embeddings\":false}"

/* Totals as the models' cards and transformers' num_parameters() give them; layers of OPT-350M and
 * of GPT-Neo 2.7B as trained by Megatron's layers (12 C^2 + 13 C: all biases) as in published
 * profiles of both. */
Test(model_shape, counts_the_parameters_of_known_models)
{
    static const struct {
        const char *config;
        int64_t layer, total;
    } known[] = {
        {OPT_350M, 12596224, 331196416},
        {OPT_125M, 7087872, 125239296},
        {GPT2, 7087872, 124439808},
        {GPT2_MEDIUM, 12596224, 354823168},
        {NEO_2B7 "}", 78668800, 2651307520},
        {NEO_2B7 ",\"attention_bias\":true}", 78676480, 2651307520 + 32 * 3 * 2560},
        {LLAMA3_8B, 218112000, 8030261248},
    };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        struct hdt_model_shape shape;
        struct hdt_error err = {0};

        cr_assert_eq(parse(known[i].config, &shape, &err), HDT_OK, "%s", err.msg);
        cr_expect_eq(hdt_model_shape_layer_params(&shape), known[i].layer, "%s: %lld",
                     known[i].config, (long long)hdt_model_shape_layer_params(&shape));
        cr_expect_eq(hdt_model_shape_n_params(&shape), known[i].total, "%s: %lld", known[i].config,
                     (long long)hdt_model_shape_n_params(&shape));
    }
}

Test(model_shape, reads_what_makes_a_shape)
{
    struct hdt_model_shape s;
    struct hdt_error err = {0};

    cr_assert_eq(parse(OPT_350M, &s, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(s.family, HDT_MODEL_OPT);
    cr_expect(s.C == 1024 && s.F == 4096 && s.L == 24 && s.NH == 16 && s.NKV == 16 && s.HS == 64);
    cr_expect(s.E == 512 && s.T == 2048 && s.n_positions == 2050);
    cr_expect(s.has_tied_head && !s.has_final_norm && !s.is_gated && s.norm_bias && s.qkv_bias);
    cr_assert_eq(parse(LLAMA3_8B, &s, &err), HDT_OK, "%s", err.msg);
    cr_expect(s.NKV == 8 && s.HS == 128 && s.is_gated && !s.has_tied_head && s.n_positions == 0);
    cr_expect(!s.qkv_bias && !s.out_bias && !s.mlp_bias && !s.norm_bias);
    cr_assert_eq(parse(NEO_2B7 "}", &s, &err), HDT_OK, "%s", err.msg);
    cr_expect(s.F == 10240 && !s.qkv_bias && s.out_bias && s.mlp_bias);
}

Test(model_shape, refuses_by_name)
{
    static const struct {
        const char *config, *msg;
    } bad[] = {
        {"{\"model_type\":\"bert\"}", "cannot use the model: model_type is 'bert', known "
                                      "are 'llama', 'gpt2', 'opt' and 'gpt_neo'"},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":10}", "cannot use the model: n_embd is missing"},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":99999999}",
         "cannot use the model: vocab_size is 99999999, allowed are 1 to 4194304"},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":\"x\"}",
         "cannot use the model: vocab_size must be an integer"},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":10,\"n_embd\":10,\"n_layer\":1,\"n_head\":3}",
         "cannot use the model: n_head is 3, it must divide n_embd 10"},
        {"[]", "cannot use the model: config.json is no JSON object"},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct hdt_model_shape shape;
        struct hdt_error err = {0};

        cr_expect_eq(parse(bad[i].config, &shape, &err), HDT_EINVAL);
        cr_expect_str_eq(err.msg, bad[i].msg);
        cr_expect_str_eq(err.where, "config.json");
    }
}
