/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* What is shown of a simulated layout. */
#include "src/cli/laid_out.h"
#include "src/base/buf.h"
#include "tests/support/scratch.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A layer of 2,501,000 parameters, embedding and head of 500,000 each: as in test_layout_sim.c. */
#define MODEL                                                                                      \
 "{\"model_type\":\"llama\",\"vocab_size\":1000,\"hidden_size\":500,\"intermediate_size\":1000,"   \
 "\"num_hidden_layers\":2,\"num_attention_heads\":5,\"max_position_embeddings\":1000,"             \
 "\"tie_word_embeddings\":false}"

/* Two replicas; the second one's devices are as fast and have a tenth of 2^30 bytes, framework and
 * all, where 5 million parameters alone take 24 bytes each. */
#define CLUSTER                                                                                    \
 "devices:\n  - {name: X, compute: {bf16: 10}, memory: {gb: 10, gb_per_s: 1000}}\n"                \
 "links:\n  - {name: fast, gb_per_s: 100}\n"                                                       \
 "sites:\n"                                                                                        \
 "  - name: a\n"                                                                                   \
 "    nodes:\n"                                                                                    \
 "      - {name: large, device: X, devices: 1, framework_gb: 0, between: fast}\n"                  \
 "      - {name: small, device: X, devices: 1, memory_gb: 0.1, framework_gb: 0, between: fast}\n"
#define LAYOUT                                                                                     \
 "cluster: cluster.yaml\nmodel: model.json\nseq_len: 1000\nglobal_batch: 4\n"                      \
 "stages: [{layers: 2, on: [{nodes: large}, {nodes: small}]}]\n"

static void run(struct hdt_laid_out *l)
{
    struct hdt_layout_instead instead = {.catalogue = HDT_TEST_SRCDIR "/etc/devices.yaml"};
    struct hdt_error err = {0};

    hdt_scratch_init();
    hdt_scratch_write("model.json", MODEL, strlen(MODEL));
    hdt_scratch_write("cluster.yaml", CLUSTER, strlen(CLUSTER));
    hdt_scratch_write("layout.yaml", LAYOUT, strlen(LAYOUT));
    cr_assert_eq(hdt_laid_out_load(l, hdt_scratch_path("layout.yaml"), &instead, &err), HDT_OK,
                 "%s: %s", err.where, err.msg);
    cr_assert_eq(hdt_laid_out_run(l, &err), HDT_OK, "%s", err.msg);
    hdt_scratch_release();
}

static char *printed(const struct hdt_laid_out *l)
{
    char *text;
    size_t len;
    FILE *out = open_memstream(&text, &len);

    hdt_laid_out_print(l, out);
    fclose(out);
    return text;
}

/* A replica whose devices cannot hold the stage is shown, though it is not busy any longer than the
 * one that can. */
Test(laid_out, too_small_devices_are_shown)
{
    struct hdt_laid_out l;
    json_t *json, *ranks;
    char *text;

    run(&l);
    text = printed(&l);
    cr_expect(strstr(text, "more than it has"), "%s", text);
    cr_expect(strstr(text, "a device of 'small' has 0.11"), "%s", text);
    free(text);
    json = hdt_laid_out_to_json(&l);
    ranks = json_object_get(json, "ranks");
    cr_expect(json_is_true(json_object_get(json_array_get(ranks, 0), "fits")));
    cr_expect(json_is_false(json_object_get(json_array_get(ranks, 1), "fits")));
    cr_expect_float_eq(json_number_value(json_object_get(json_array_get(ranks, 1), "room_bytes")),
                       0.1 * 1024 * 1024 * 1024, 1);
    json_decref(json);
    hdt_laid_out_release(&l);
}
