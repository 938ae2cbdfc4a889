/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* The search over layouts is never worse than itself in a smaller space, which it has as well. */
#include "src/base/buf.h"
#include "src/plan/layout_search.h"
#include "tests/support/layout_job.h"
#include "tests/support/scratch.h"
#include "tests/support/values.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* Random clusters where HDT_TEST_CLUSTERS does not say it. */
#if defined(__SANITIZE_ADDRESS__)
# define N_CLUSTERS 2
#else
# define N_CLUSTERS 8
#endif

#define MODEL                                                                                      \
 "{\"model_type\":\"llama\",\"vocab_size\":32000,\"hidden_size\":2048,\"intermediate_size\":5632," \
 "\"num_hidden_layers\":16,\"num_attention_heads\":16,\"max_position_embeddings\":65536,"          \
 "\"tie_word_embeddings\":false}"

static int64_t random_in(struct values_rng *r, int64_t low, int64_t high)
{
    return low + (int64_t)hdt_values_below(r, (uint64_t)(high - low + 1));
}

static const unsigned spaces[] = {
    HDT_LAYOUT_SPACE_EVEN,
    HDT_LAYOUT_SPACE_EVEN | HDT_LAYOUT_SPACE_ALIKE,
    HDT_LAYOUT_SPACE_PURE | HDT_LAYOUT_SPACE_ALIKE | HDT_LAYOUT_SPACE_NO_RELIEF,
    HDT_LAYOUT_SPACE_1F1B | HDT_LAYOUT_SPACE_ONE_RELIEF,
};

static void spaces_try(const struct hdt_layout_files *base, const char *name)
{
    struct hdt_layout_search_options options = {.space = 0};
    struct hdt_layout_search_result whole, part;
    struct hdt_error err = {0};

    cr_assert_eq(hdt_layout_search(base, &options, &whole, &err), HDT_OK, "%s: %s", name, err.msg);
    for (size_t i = 0; i < sizeof(spaces) / sizeof(spaces[0]); i++) {
        double more;

        options.space = spaces[i];
        if (hdt_layout_search(base, &options, &part, &err) != HDT_OK) {
            continue;
        }
        more = whole.top[0].prediction.step_s / part.top[0].prediction.step_s - 1;
        cr_expect_leq(more, 1e-9, "%s: %.6g s, in space %u %.6g s", name,
                      whole.top[0].prediction.step_s, spaces[i], part.top[0].prediction.step_s);
        hdt_layout_search_release(&part);
    }
    hdt_layout_search_release(&whole);
}

/* Clusters of 128 and 512 devices: an even cut with unlike shares of the batch, whose sums go by
 * levels, was quicker than what the whole search found for the first of them. */
Test(layout_spaces, loses_to_no_part_of_its_space, .timeout = 600)
{
    static const char *const jobs[] = {"neo-32-96", "opt-32-96", "opt-80-240", "opt-128-384"};
    struct hdt_layout_instead instead = {.catalogue = HDT_TEST_SRCDIR "/etc/devices.yaml"};

    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        char *path = hdt_asprintf(HDT_TEST_SRCDIR "/tests/data/plan/mixed/%s.yaml", jobs[i]);
        struct hdt_layout_files base;
        struct hdt_error err = {0};

        cr_assert_eq(hdt_layout_open_job(path, &instead, &base, &err), HDT_OK, "%s", err.msg);
        spaces_try(&base, jobs[i]);
        hdt_layout_release(&base);
        free(path);
    }
}

/* Written by hand: two stages of all types, each with degrees of its own. From one degree for all,
 * type by type, the search came to four stages that took 3.6 % longer. */
#define TWO_STAGES                                                                                 \
 "name: by hand\ncluster: " HDT_TEST_SRCDIR "/tests/data/plan/clusters/five-makers.yaml\n"         \
 "model: " HDT_TEST_SRCDIR "/tests/data/plan/models/llama-2-7b.json\n"                             \
 "precision: bf16\nseq_len: 4096\nglobal_batch: 1280\nattention: fused\nmicro_batch: 1\n"          \
 "schedule: zb-h1\nsync: both\nsync_bucket: 1607MiB\noptimizer: {sharded: true}\n"                 \
 "replicas:\n"                                                                                     \
 "  - {count: 32, micro_batch: 1, micro_batches: 7}\n"                                             \
 "  - {count: 32, micro_batch: 1, micro_batches: 8}\n"                                             \
 "  - {count: 32, micro_batch: 1, micro_batches: 20}\n"                                            \
 "  - {count: 16, micro_batch: 1, micro_batches: 6}\n"                                             \
 "  - {count: 4, micro_batch: 1, micro_batches: 16}\n"                                             \
 "stages:\n" A_STAGE A_STAGE
#define A_STAGE                                                                                    \
 "  - layers: 16\n"                                                                                \
 "    on: [{nodes: a800, count: 32, tp: 1}, {nodes: 910b2, count: 32, tp: 1},\n"                   \
 "         {nodes: br100, count: 32, tp: 1}, {nodes: bi-v100, count: 16, tp: 2},\n"                \
 "         {nodes: s4000, count: 4, tp: 8}]\n"

Test(layout_spaces, gives_each_type_its_degree, .timeout = 600, .init = hdt_scratch_init,
     .fini = hdt_scratch_release)
{
    struct hdt_layout_instead instead = {.catalogue = HDT_TEST_SRCDIR "/etc/devices.yaml"};
    struct hdt_layout_search_options options = {.space = 0};
    struct hdt_layout_search_result result;
    struct hdt_layout_prediction by_hand;
    struct hdt_layout_files files;
    struct hdt_error err = {0};

    hdt_scratch_write("by-hand.yaml", TWO_STAGES, strlen(TWO_STAGES));
    cr_assert_eq(hdt_layout_open(hdt_scratch_path("by-hand.yaml"), &instead, &files, &err), HDT_OK,
                 "%s: %s", err.where, err.msg);
    cr_assert_eq(hdt_layout_predict(&files, &hdt_stage_cost_fitted, &by_hand, &err), HDT_OK, "%s",
                 err.msg);
    hdt_layout_release(&files);
    cr_assert_eq(hdt_layout_open_job(HDT_TEST_SRCDIR "/tests/data/plan/hdt/llama-2-7b.yaml",
                                     &instead, &files, &err),
                 HDT_OK, "%s", err.msg);
    cr_assert_eq(hdt_layout_search(&files, &options, &result, &err), HDT_OK, "%s", err.msg);
    cr_expect_leq(result.top[0].prediction.step_s, 1.015 * by_hand.step_s, "%.6g s, by hand %.6g s",
                  result.top[0].prediction.step_s, by_hand.step_s);
    hdt_layout_search_release(&result);
    hdt_layout_release(&files);
}

static char *medium_cluster(struct values_rng *r)
{
    struct hdt_buf b;
    int n_kinds = (int)random_in(r, 2, 3);

    hdt_buf_init(&b);
    hdt_buf_append_str(&b, "devices:\n");
    for (int i = 0; i < 3; i++) {
        hdt_buf_appendf(
            &b, "  - {name: D%d, compute: {bf16: %lld}, memory: {gb: %lld, gb_per_s: %lld}}\n", i,
            (long long)random_in(r, 50, 400), (long long)(8 * random_in(r, 2, 10)),
            (long long)random_in(r, 500, 3000));
    }
    hdt_buf_appendf(&b, "links:\n  - {name: in, gb_per_s: %lld}\n  - {name: out, gb_per_s: %lld}\n",
                    (long long)random_in(r, 20, 300), (long long)random_in(r, 2, 50));
    hdt_buf_append_str(&b, "sites:\n  - name: s\n    nodes:\n");
    for (int k = 0; k < n_kinds; k++) {
        hdt_buf_appendf(&b,
                        "      - {name: k%d, count: %lld, device: D%d, devices: 4, inside: in, "
                        "between: out}\n",
                        k, (long long)random_in(r, 2, 6), k);
    }
    return hdt_buf_detach(&b);
}

Test(layout_spaces, loses_to_no_part_of_other_spaces, .timeout = 600)
{
    const char *first = getenv("HDT_TEST_SEED"), *count = getenv("HDT_TEST_CLUSTERS");
    uint64_t seed = first ? strtoull(first, NULL, 10) : 20261130;
    int n = count ? (int)strtol(count, NULL, 10) : N_CLUSTERS;

    cr_log_info("seed %llu", (unsigned long long)seed);
    for (int i = 0; i < n; i++) {
        struct values_rng r = {seed + (uint64_t)i};
        char *name = hdt_asprintf("seed %llu", (unsigned long long)r.state);
        char *cluster = medium_cluster(&r);
        char *job = hdt_asprintf("seq_len: 2048\nglobal_batch: %lld\nattention: fused\n",
                                 (long long)(32 * random_in(&r, 2, 8)));
        struct hdt_layout_files base;
        struct hdt_error err = {0};

        cr_assert_eq(hdt_layout_job_open(cluster, MODEL, job, &base, &err), HDT_OK, "%s", err.msg);
        spaces_try(&base, name);
        hdt_layout_release(&base);
        free(cluster);
        free(name);
        free(job);
    }
}
