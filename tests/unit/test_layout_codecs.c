/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* The search over codecs of single links between sites, held against the simulator. */
#include "src/base/buf.h"
#include "src/plan/layout_search.h"
#include "tests/support/layout_job.h"
#include "tests/support/scratch.h"
#include "tests/support/values.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEVICES "devices:\n  - {name: X, compute: {bf16: 100}, memory: {gb: 16, gb_per_s: 1000}}\n"
#define LINKS   "links:\n  - {name: in, gb_per_s: 100}\n  - {name: out, gb_per_s: 10}\n"

/* Three sites in a row: 100 Gbit/s between a and b, where a codec of half a gigabyte a second takes
 * longer than the wire, and 400 Mbit/s between b and c. */
#define ROW_SITE(name, count)                                                                      \
 "  - {name: " name ", nodes: [{name: n, count: " count ", device: X, devices: 1, between: out}]}\n"
#define ROW(count)                                                                                 \
 DEVICES LINKS "sites:\n" ROW_SITE("a", count) ROW_SITE("b", count) ROW_SITE(                      \
     "c", count) "wan:\n  - {from: a, to: b, rate: 100gbit, rtt_ms: 2}\n"                          \
                 "  - {from: b, to: c, rate: 400mbit, rtt_ms: 10}\n  - {from: a, to: c, via: b}\n"
#define ROW_MODEL                                                                                  \
 "{\"model_type\":\"llama\",\"vocab_size\":32000,\"hidden_size\":2048,\"intermediate_size\":5632," \
 "\"num_hidden_layers\":6,\"num_attention_heads\":16,\"max_position_embeddings\":65536,"           \
 "\"tie_word_embeddings\":false}"

static const struct hdt_layout_codec half = {"half", 0.5, 0.5, 0.25};

/* From a over b to c: two layers each, at least one of them is pinned. */
static struct hdt_layout_search_options row_options(void)
{
    struct hdt_layout_search_options o = {
        .max_micro_batch = 2,
        .pins =
            {{.parts = HDT_LAYOUT_PIN_LAYERS, .first_layer = 0, .last_layer = 0, .site_idx = 0},
             {.parts = HDT_LAYOUT_PIN_LAYERS, .first_layer = 2, .last_layer = 2, .site_idx = 1},
             {.parts = HDT_LAYOUT_PIN_LAYERS, .first_layer = 5, .last_layer = 5, .site_idx = 2}},
        .n_pins = 3,
        .codecs = {half},
        .n_codecs = 1};

    return o;
}

/* The best plan that has this between all sites. */
static double uniform_best(struct hdt_layout_files *base,
                           const struct hdt_layout_search_options *like,
                           const struct hdt_layout_codec *codec)
{
    struct hdt_layout_search_options options = *like;
    struct hdt_layout_search_result result;
    struct hdt_layout_wan was = base->layout.wan;
    struct hdt_error err = {0};
    double step_s;

    options.keep |= HDT_LAYOUT_KEEP_CODEC;
    base->layout.wan.codec_ratio = codec->ratio;
    base->layout.wan.codec_gb_per_s = codec->gb_per_s;
    base->layout.wan.sync_ratio = codec->sync_ratio;
    cr_assert_eq(hdt_layout_search(base, &options, &result, &err), HDT_OK, "%s", err.msg);
    base->layout.wan = was;
    step_s = result.top[0].prediction.step_s;
    cr_expect_eq(result.top[0].layout.wan.links.n, 0);
    hdt_layout_search_release(&result);
    return step_s;
}

/* The best of a plan with every codec on every pair of three sites, by simulation. */
static double assigned_best(const struct hdt_layout_files *base, const struct hdt_layout *plan,
                            const struct hdt_layout_codec *codecs, int n_codecs)
{
    static char *const names[3][2] = {{"a", "b"}, {"b", "c"}, {"c", "a"}};
    struct hdt_layout layout = *plan;
    double best_s = INFINITY;

    for (int at = 0; at < n_codecs * n_codecs * n_codecs; at++) {
        const int digits[3] = {at % n_codecs, at / n_codecs % n_codecs, at / n_codecs / n_codecs};
        struct hdt_layout_wan_link links[3];
        struct hdt_layout_prediction p;
        struct hdt_layout_files files;
        struct hdt_error err = {0};

        for (int i = 0; i < 3; i++) {
            const struct hdt_layout_codec *c = &codecs[digits[i]];

            links[i] =
                (struct hdt_layout_wan_link){names[i][0], names[i][1], c->ratio,
                                             isnan(c->gb_per_s) ? 0 : c->gb_per_s, c->sync_ratio};
        }
        layout.wan.links = (struct hdt_conf_list){.items = links, .n = 3};
        cr_assert_eq(hdt_layout_derive(base, &layout, &files, &err), HDT_OK, "%s", err.msg);
        cr_assert_eq(hdt_layout_predict(&files, &hdt_stage_cost_fitted, &p, &err), HDT_OK, "%s",
                     err.msg);
        best_s = fmin(best_s, p.step_s);
        hdt_layout_derived_release(&files);
    }
    return best_s;
}

/* As `hdt simulate` reads what `hdt plan` writes. */
static double written_step_s(const struct hdt_layout *plan, const char *cluster, const char *model)
{
    struct hdt_layout copy = *plan;
    struct hdt_layout_instead instead = {.catalogue = HDT_TEST_SRCDIR "/etc/devices.yaml"};
    struct hdt_layout_prediction p;
    struct hdt_layout_files files;
    struct hdt_error err = {0};
    char *text = NULL;
    size_t len;
    FILE *out = open_memstream(&text, &len);

    copy.cluster = "cluster.yaml";
    copy.model = "model.json";
    hdt_conf_write(&hdt_layout_schema, &copy, out);
    fclose(out);
    hdt_scratch_init();
    hdt_scratch_write("model.json", model, strlen(model));
    hdt_scratch_write("cluster.yaml", cluster, strlen(cluster));
    hdt_scratch_write("layout.yaml", text, len);
    cr_assert_eq(hdt_layout_open(hdt_scratch_path("layout.yaml"), &instead, &files, &err), HDT_OK,
                 "%s: %s\n%s", err.where, err.msg, text);
    cr_assert_eq(hdt_layout_predict(&files, &hdt_stage_cost_fitted, &p, &err), HDT_OK, "%s",
                 err.msg);
    hdt_layout_release(&files);
    hdt_scratch_release();
    free(text);
    return p.step_s;
}

static void row_check(const char *cluster, const char *job)
{
    const struct hdt_layout_codec codecs[2] = {{"none", 1, NAN, 1}, half};
    struct hdt_layout_search_options options = row_options();
    struct hdt_layout_search_result result;
    struct hdt_layout_files base, plan;
    struct hdt_layout_wire ab, bc;
    const struct hdt_layout_found *best = &result.top[0];
    struct hdt_error err = {0};
    double raw_s, half_s, any_s;

    cr_assert_eq(hdt_layout_job_open(cluster, ROW_MODEL, job, &base, &err), HDT_OK, "%s: %s",
                 err.where, err.msg);
    cr_assert_eq(hdt_layout_search(&base, &options, &result, &err), HDT_OK, "%s", err.msg);
    raw_s = uniform_best(&base, &options, &codecs[0]);
    half_s = uniform_best(&base, &options, &half);
    any_s = assigned_best(&base, &best->layout, codecs, 2);
    cr_log_info("of each link %.6g s, none %.6g s, half %.6g s: %.3g %% less than the best of one",
                best->prediction.step_s, raw_s, half_s,
                100 * (1 - best->prediction.step_s / fmin(raw_s, half_s)));
    cr_expect_lt(best->prediction.step_s, 0.99 * fmin(raw_s, half_s));
    cr_expect_leq(best->prediction.step_s, any_s * (1 + 1e-9));
    cr_assert_eq(hdt_layout_derive(&base, &best->layout, &plan, &err), HDT_OK, "%s", err.msg);
    ab = hdt_layout_wan_between(&plan, 0, 1);
    bc = hdt_layout_wan_between(&plan, 1, 2);
    cr_expect_eq(ab.codec_ratio, 1);
    cr_expect(isnan(ab.codec_gb_per_s));
    cr_expect_eq(bc.codec_ratio, half.ratio);
    cr_expect_eq(bc.codec_gb_per_s, half.gb_per_s);
    cr_expect_eq(written_step_s(&best->layout, cluster, ROW_MODEL), best->prediction.step_s);
    for (size_t i = 1; i < result.n_top; i++) {
        cr_log_info("%g: %s", result.top[i].prediction.step_s, result.top[i].differs);
    }
    hdt_layout_derived_release(&plan);
    hdt_layout_search_release(&result);
    hdt_layout_release(&base);
}

/* All candidates of three devices, and a search among nine. */
Test(layout_codecs, each_link_has_the_codec_that_is_best_for_it)
{
    row_check(ROW("1"), "seq_len: 2048\nglobal_batch: 8\nattention: fused\n");
    row_check(ROW("3"), "seq_len: 2048\nglobal_batch: 24\nattention: fused\n");
}

static double random_in(struct values_rng *r, double low, double high)
{
    return low + (high - low) * hdt_values_uniform(r);
}

#define N_RANDOM 12

/* Three sites with unlike links, at random from 100 Mbit/s to 100 Gbit/s, one and two devices each;
 * two codecs and none. No codec for all has a better plan than what is found, and no assignment to
 * the links of that one is better. */
static void random_check(uint64_t seed)
{
    struct values_rng r = {seed};
    struct hdt_layout_codec codecs[3] = {
        {"none", 1, NAN, 1},
        {"half", 0.5, pow(10, random_in(&r, -1, 1)), 0.25},
        {"quarter", 0.25, pow(10, random_in(&r, -1.5, 0.5)), 0.125},
    };
    struct hdt_layout_search_options options = row_options();
    struct hdt_layout_search_result result;
    struct hdt_layout_files base;
    struct hdt_error err = {0};
    int counts[3];
    double rates[3], rtts[3], found_s, uniform_s = INFINITY, any_s;
    char *cluster;

    for (int i = 0; i < 3; i++) {
        counts[i] = 1 + (random_in(&r, 0, 1) < 0.4);
        rates[i] = pow(10, random_in(&r, 2, 5));
        rtts[i] = random_in(&r, 0, 20);
    }
    cluster = hdt_asprintf(
        DEVICES LINKS "sites:\n"
                      "  - {name: a, nodes: [{name: n, count: %d, device: X, devices: 1, "
                      "between: out}]}\n"
                      "  - {name: b, nodes: [{name: n, count: %d, device: X, devices: 1, "
                      "between: out}]}\n"
                      "  - {name: c, nodes: [{name: n, count: %d, device: X, devices: 1, "
                      "between: out}]}\n"
                      "wan:\n  - {from: a, to: b, rate: %.0fmbit, rtt_ms: %.1f}\n"
                      "  - {from: b, to: c, rate: %.0fmbit, rtt_ms: %.1f}\n"
                      "  - {from: a, to: c, rate: %.0fmbit, rtt_ms: %.1f}\n",
        counts[0], counts[1], counts[2], rates[0], rtts[0], rates[1], rtts[1], rates[2], rtts[2]);
    options.n_pins = (size_t)random_in(&r, 0, 3.99); /* of none all orders are free */
    options.codecs[0] = codecs[1];
    options.codecs[1] = codecs[2];
    options.n_codecs = 2;
    options.keep = seed % 2 ? HDT_LAYOUT_KEEP_SCHEDULE : 0;
    options.max_micro_batch = 1;
    cr_assert_eq(hdt_layout_job_open(cluster, ROW_MODEL,
                                     "seq_len: 2048\nglobal_batch: 6\nattention: fused\n", &base,
                                     &err),
                 HDT_OK, "%s: %s", err.where, err.msg);
    cr_assert_eq(hdt_layout_search(&base, &options, &result, &err), HDT_OK, "%s", err.msg);
    found_s = result.top[0].prediction.step_s;
    for (int i = 0; i < 3; i++) {
        uniform_s = fmin(uniform_s, uniform_best(&base, &options, &codecs[i]));
    }
    any_s = assigned_best(&base, &result.top[0].layout, codecs, 3);
    cr_log_info("seed %llu: %.6g s, one codec %.6g s, any of the plan %.6g s; %zu links",
                (unsigned long long)seed, found_s, uniform_s, any_s,
                result.top[0].layout.wan.links.n);
    cr_expect_leq(found_s, uniform_s * (1 + 1e-9), "seed %llu\n%s", (unsigned long long)seed,
                  cluster);
    cr_expect_leq(found_s, any_s * (1 + 1e-9), "seed %llu\n%s", (unsigned long long)seed, cluster);
    cr_expect_eq(written_step_s(&result.top[0].layout, cluster, ROW_MODEL), found_s);
    hdt_layout_search_release(&result);
    hdt_layout_release(&base);
    free(cluster);
}

Test(layout_codecs, no_assignment_is_better, .timeout = 300)
{
    const char *first = getenv("HDT_TEST_SEED");
    uint64_t seed = first ? strtoull(first, NULL, 10) : 20261129;

    for (uint64_t i = 0; i < N_RANDOM; i++) {
        random_check(seed + i);
    }
}

/* Links that the layout's file gives are kept, and are what a plan that runs must have. */
Test(layout_codecs, links_that_are_given_are_kept)
{
    static const char job[] = "seq_len: 2048\nglobal_batch: 8\nattention: fused\nwan:\n  links:\n"
                              "    - {from: b, to: a, codec_ratio: 0.75, codec_gb_per_s: 3}\n";
    struct hdt_layout_search_options options = row_options();
    struct hdt_layout_search_result result;
    struct hdt_layout_files base, plan;
    struct hdt_layout_wire ab, bc;
    struct hdt_layout other;
    struct hdt_error err = {0};
    char why[200] = "";

    cr_assert_eq(hdt_layout_job_open(ROW("1"), ROW_MODEL, job, &base, &err), HDT_OK, "%s: %s",
                 err.where, err.msg);
    cr_expect_eq(hdt_layout_search_given(&base), HDT_LAYOUT_KEEP_CODEC);
    options.keep = hdt_layout_search_given(&base);
    cr_assert_eq(hdt_layout_search(&base, &options, &result, &err), HDT_OK, "%s", err.msg);
    for (size_t i = 0; i < result.n_top; i++) {
        cr_assert_eq(hdt_layout_derive(&base, &result.top[i].layout, &plan, &err), HDT_OK);
        ab = hdt_layout_wan_between(&plan, 0, 1);
        bc = hdt_layout_wan_between(&plan, 1, 2);
        cr_expect_eq(ab.codec_ratio, 0.75);
        cr_expect_eq(ab.codec_gb_per_s, 3);
        cr_expect_eq(bc.codec_ratio, 1);
        cr_expect(hdt_layout_search_holds(&base, &plan, &options, why, sizeof(why)), "%s", why);
        hdt_layout_derived_release(&plan);
    }
    other = result.top[0].layout;
    other.wan.links = (struct hdt_conf_list){.n = 0};
    cr_assert_eq(hdt_layout_derive(&base, &other, &plan, &err), HDT_OK);
    cr_expect(!hdt_layout_search_holds(&base, &plan, &options, why, sizeof(why)));
    cr_expect(strstr(why, "wan codec"), "%s", why);
    hdt_layout_derived_release(&plan);
    hdt_layout_search_release(&result);
    hdt_layout_release(&base);
}
