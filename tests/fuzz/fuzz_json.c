/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON that comes from other sites and from files. Input: which (0 plan, 1 cluster, 2 profile, 3 a
 * model's config.json), then the text. What is taken is written and taken again, and is the same.
 */
#include "config.h"

#include "src/core/cluster.h"
#include "src/core/model.h"
#include "src/core/plan.h"
#include "tests/fuzz/fuzz.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char model_text[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"vocab_size\":256,"
    "\"hidden_size\":32,\"intermediate_size\":96,\"num_hidden_layers\":4,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,"
    "\"rope_theta\":10000.0,\"hidden_act\":\"silu\",\"tie_word_embeddings\":false}";

static void fuzz_plan(const json_t *json, struct hdt_error *err)
{
    static struct hdt_model_config model;
    struct hdt_plan plan, copy;
    json_t *text, *again;

    if (model.C == 0) {
        json_t *config = json_loads(model_text, 0, NULL);

        HDT_ASSERT(hdt_model_from_json(config, "fuzz", &model, NULL) == HDT_OK);
        json_decref(config);
    }
    if (hdt_plan_from_json(json, &model, &plan, err) != HDT_OK) {
        return;
    }
    text = hdt_plan_to_json(&plan);
    HDT_ASSERT(hdt_plan_from_json(text, &model, &copy, err) == HDT_OK);
    again = hdt_plan_to_json(&copy);
    HDT_ASSERT(json_equal(text, again));
    json_decref(text);
    json_decref(again);
    hdt_plan_release(&plan);
    hdt_plan_release(&copy);
}

static void fuzz_cluster(const json_t *json, struct hdt_error *err)
{
    struct hdt_cluster cluster, copy;
    json_t *text, *again;

    if (hdt_cluster_from_json(json, "fuzz", &cluster, err) != HDT_OK) {
        return;
    }
    text = hdt_cluster_to_json(&cluster);
    HDT_ASSERT(hdt_cluster_from_json(text, "fuzz", &copy, err) == HDT_OK);
    again = hdt_cluster_to_json(&copy);
    HDT_ASSERT(json_equal(text, again));
    json_decref(text);
    json_decref(again);
    hdt_cluster_release(&cluster);
    hdt_cluster_release(&copy);
}

static void fuzz_profile(const json_t *json, struct hdt_error *err)
{
    struct hdt_profile profile, copy;
    json_t *text;

    if (hdt_profile_from_json(json, &profile, err) == HDT_OK) {
        text = hdt_profile_to_json(&profile);
        HDT_ASSERT(hdt_profile_from_json(text, &copy, err) == HDT_OK);
        json_decref(text);
    }
}

static void fuzz_model(const json_t *json, struct hdt_error *err)
{
    struct hdt_model_config config, copy;
    json_t *text;

    if (hdt_model_from_json(json, "fuzz", &config, err) != HDT_OK) {
        return;
    }
    HDT_ASSERT(hdt_model_n_tensors(&config) > 0 && hdt_model_n_params(&config) > 0);
    text = hdt_model_to_json(&config);
    HDT_ASSERT(hdt_model_from_json(text, "fuzz", &copy, err) == HDT_OK);
    HDT_ASSERT(copy.C == config.C && copy.L == config.L);
    json_decref(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const kinds[])(const json_t *, struct hdt_error *) = {fuzz_plan, fuzz_cluster,
                                                                        fuzz_profile, fuzz_model};
    struct hdt_error err = {0};
    json_t *json;

    if (size < 1) {
        return 0;
    }
    json = json_loadb((const char *)data + 1, size - 1, JSON_DECODE_ANY, NULL);
    if (json != NULL) {
        kinds[data[0] % 4](json, &err);
        HDT_ASSERT(err.status == HDT_OK || err.msg[0] != '\0');
        json_decref(json);
    }
    return 0;
}
