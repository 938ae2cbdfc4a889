/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* Layouts that cannot be: where and why they are refused. */
#include "src/core/layout.h"
#include "src/base/buf.h"
#include "tests/support/scratch.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MODEL                                                                                      \
 "{\"model_type\":\"llama\",\"vocab_size\":1000,\"hidden_size\":500,\"intermediate_size\":1000,"   \
 "\"num_hidden_layers\":2,\"num_attention_heads\":5,\"max_position_embeddings\":1000,"             \
 "\"tie_word_embeddings\":false}"
#define CLUSTER                                                                                    \
 "devices:\n"                                                                                      \
 "  - {name: X, aliases: [ex], compute: {bf16: 10}, memory: {gb: 10, gb_per_s: 1000}}\n"           \
 "links:\n  - {name: fast, gb_per_s: 100}\n"                                                       \
 "sites:\n  - {name: a, nodes: [{name: n, count: 4, device: X, devices: 8, inside: fast, "         \
 "between: fast}]}\n"
#define BLOCK "\"layers\":[{\"kind\":\"block\"%s,\"times\":[]}]}"

static void setup(void)
{
    hdt_scratch_init();
    hdt_scratch_write("model.json", MODEL, strlen(MODEL));
    hdt_scratch_write("cluster.yaml", CLUSTER, strlen(CLUSTER));
}

TestSuite(layout, .init = setup, .fini = hdt_scratch_release);

static enum hdt_status open_text(const char *text, struct hdt_layout_files *files,
                                 struct hdt_error *err)
{
    struct hdt_layout_instead instead = {.catalogue = HDT_TEST_SRCDIR "/etc/devices.yaml"};

    hdt_scratch_write("layout.yaml", text, strlen(text));
    return hdt_layout_open(hdt_scratch_path("layout.yaml"), &instead, files, err);
}

static void refused(const char *text, int line, const char *why)
{
    struct hdt_layout_files files;
    struct hdt_error err = {0};
    char *where = hdt_asprintf("layout.yaml:%d:", line);

    cr_assert_eq(open_text(text, &files, &err), HDT_EINVAL, "not refused: %s", why);
    cr_expect(strstr(err.where, where), "'%s' is not %s", err.where, where);
    cr_expect(strstr(err.msg, why), "'%s' is not '%s'", err.msg, why);
    free(where);
}

#define HEAD   "cluster: cluster.yaml\nmodel: model.json\nseq_len: 1000\nglobal_batch: 4\n"
#define STAGES "stages: [{layers: 2, on: [{nodes: n}]}]\n"

/* A profile with this begin of its text and this of its block. */
static void profile_write(const char *name, const char *head, const char *block)
{
    char *text = hdt_asprintf("{\"model\":\"tiny\",%s," BLOCK, head, block);

    hdt_scratch_write(name, text, strlen(text));
    free(text);
}

#define ONE_PROFILE HEAD STAGES "profiles:\n  - {file: p.json}\n"
Test(layout, profiles_are_of_this_layout)
{
    static const struct {
        const char *head, *block, *why;
    } cases[] = {
        {"\"device\":\"X\",\"precision\":\"fp32\"", "", "of fp32, the layout of bf16"},
        {"\"device\":\"X\",\"seq_len\":512", "", "512 tokens, not of 1000"},
        {"\"device\":\"X\",\"shape\":{\"hidden_size\":512}", "", "its hidden_size differ"},
        {"\"device\":\"X\",\"shape\":{\"num_key_value_heads\":1}", "",
         "num_key_value_heads differ"},
        /* 2501000 of a layer: 4 x 500 x 500, 3 x 500 x 1000, two norms of 500. */
        {"\"device\":\"X\"", ",\"params\":2600000", "parameters of a layer differ"},
        {"\"device\":\"Y\"", "", "of 'Y', which the cluster does not have"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        profile_write("p.json", cases[i].head, cases[i].block);
        refused(ONE_PROFILE, 7, cases[i].why);
    }
}

Test(layout, a_device_has_one_profile)
{
    profile_write("p.json", "\"device\":\"X\"", "");
    profile_write("q.json", "\"device\":\"x\"", "");
    refused(ONE_PROFILE "  - {file: q.json}\n", 8, "there are two profiles of 'x'");
}

Test(layout, profiles_that_fit)
{
    struct hdt_layout_files files;
    struct hdt_error err = {0};

    profile_write("p.json",
                  "\"device\":\"EX\",\"precision\":\"fp32\",\"seq_len\":1000,"
                  "\"shape\":{\"hidden_size\":500,\"vocab_size\":1000}",
                  ",\"params\":2501000");
    cr_assert_eq(open_text("precision: tf32\n" ONE_PROFILE, &files, &err), HDT_OK, "%s: %s",
                 err.where, err.msg);
    cr_expect_not_null(hdt_layout_profile(&files, &files.groups[0]));
    hdt_layout_release(&files);
}

/* Trees have no halves. */
Test(layout, trees_scatter_nothing)
{
    refused(HEAD STAGES "all_reduce: tree\noptimizer: {sharded: true}\n", 6,
            "which trees do not do");
}

/* 5 heads over 2 devices; a layer for two chunks. */
Test(layout, work_that_cannot_be_shared)
{
    refused(HEAD "stages: [{layers: 2, on: [{nodes: n, tp: 2}]}]\n", 5,
            "5 heads cannot be shared by 2 devices");
    refused(HEAD "schedule: interleaved\nchunks: 2\n"
                 "stages: [{layers: 1, on: [{nodes: n}]}, {layers: 1, on: [{nodes: n}]}]\n",
            7, "stage 0 has 1 layers, fewer than its 2 chunks");
}

Test(layout, shares_are_all_of_the_batch)
{
    refused(HEAD STAGES "replicas: [{count: 2, micro_batches: 1}]\n", 6, "the entries have 2");
    refused(HEAD STAGES "replicas: [{micro_batches: 3}]\n", 6, "with 3 sequences");
}

Test(layout, halves_of_a_backward_recompute_nothing)
{
    refused(HEAD "schedule: zb-h1\nstages: [{layers: 2, recompute: full, on: [{nodes: n}]}]\n", 6,
            "it cannot recompute");
}

Test(layout, nodes_have_a_name_that_can_be_shown)
{
    static const char cluster[] =
        "devices: [{name: X, compute: {bf16: 10}, memory: {gb: 10, gb_per_s: 1000}}]\n"
        "sites:\n  - name: a\n    nodes:\n      - {name: \"n m\", device: X, devices: 1}\n";
    struct hdt_layout_files files;
    struct hdt_error err = {0};

    hdt_scratch_write("cluster.yaml", cluster, strlen(cluster));
    cr_assert_eq(open_text(HEAD STAGES, &files, &err), HDT_EINVAL);
    cr_expect(strstr(err.where, "cluster.yaml:5"), "%s", err.where);
    cr_expect(strstr(err.msg, "'n m' is no name of nodes"), "%s", err.msg);
}

#define THREE_SITES                                                                                \
 "devices: [{name: X, compute: {bf16: 10}, memory: {gb: 10, gb_per_s: 1000}}]\n"                   \
 "sites:\n  - {name: east, nodes: [{name: n, device: X, devices: 1}]}\n"                           \
 "  - {name: west, nodes: [{name: n, device: X, devices: 1}]}\n"                                   \
 "  - {name: far, nodes: [{name: n, device: X, devices: 1}]}\n"                                    \
 "wan:\n  - {from: east, to: west, rate: 1gbit}\n  - {from: west, to: far, rate: 1gbit}\n"         \
 "  - {from: east, to: far, via: west}\n"
#define AT_EAST "stages: [{layers: 2, on: [{site: east, nodes: n}]}]\n"

/* Line 8 is the second entry. */
#define LINKS(second)                                                                              \
 HEAD AT_EAST "wan:\n  links: [{from: east, to: west, sync_ratio: 0.5},\n          {" second "}]\n"
Test(layout, links_are_of_two_sites_and_have_one_entry)
{
    hdt_scratch_write("cluster.yaml", THREE_SITES, strlen(THREE_SITES));
    refused(LINKS("from: eats, to: far"), 8, "no site 'eats'");
    refused(LINKS("from: far, to: wset"), 8, "no site 'wset'");
    refused(LINKS("from: far, to: far"), 8, "from 'far' to itself");
    refused(LINKS("from: east, to: west"), 8, "'east' and 'west' have an entry already");
    refused(LINKS("from: west, to: east"), 8, "'west' and 'east' have an entry already");
    refused(LINKS("from: east, to: far, codec_gb_per_s: 0.0001"), 8, "below 0.001, and not 0");
    refused(LINKS("from: east, to: far, codec_ratio: 0"), 8, "codec_ratio");
    refused(LINKS("from: east, codec_ratio: 0.5"), 8, "to");
}

static void expect_wire(const struct hdt_layout_files *f, size_t a, size_t b, double ratio,
                        double gb_per_s, double sync)
{
    struct hdt_layout_wire w = hdt_layout_wan_between(f, a, b);

    cr_expect_eq(w.codec_ratio, ratio, "%zu %zu: %g", a, b, w.codec_ratio);
    cr_expect_eq(w.sync_ratio, sync, "%zu %zu: %g", a, b, w.sync_ratio);
    cr_expect(w.codec_gb_per_s == gb_per_s || (isnan(w.codec_gb_per_s) && isnan(gb_per_s)),
              "%zu %zu: %g", a, b, w.codec_gb_per_s);
}

/* What an entry does not give is the section's; 0 is a codec that takes no time; both directions;
 * a pair over a relay is one of its own. */
Test(layout, links_have_their_own_or_the_sections)
{
    struct hdt_layout_files files, derived;
    struct hdt_layout copy;
    struct hdt_error err = {0};

    hdt_scratch_write("cluster.yaml", THREE_SITES, strlen(THREE_SITES));
    cr_assert_eq(open_text(HEAD AT_EAST "wan:\n  codec_ratio: 0.5\n  codec_gb_per_s: 5\n"
                                        "  sync_ratio: 0.25\n  links:\n"
                                        "    - {from: far, to: west, codec_ratio: 0.125}\n"
                                        "    - {from: east, to: west, codec_ratio: 1, "
                                        "codec_gb_per_s: 0, sync_ratio: 1}\n",
                           &files, &err),
                 HDT_OK, "%s: %s", err.where, err.msg);
    hdt_layout_copy(&files.layout, &copy);
    cr_assert_eq(hdt_layout_derive(&files, &copy, &derived, &err), HDT_OK, "%s", err.msg);
    for (int i = 0; i < 2; i++) {
        const struct hdt_layout_files *f = i ? &derived : &files;

        for (int back = 0; back < 2; back++) {
            expect_wire(f, back ? 1 : 0, back ? 0 : 1, 1, NAN, 1);
            expect_wire(f, back ? 2 : 1, back ? 1 : 2, 0.125, 5, 0.25);
            expect_wire(f, back ? 2 : 0, back ? 0 : 2, 0.5, 5, 0.25);
        }
    }
    hdt_layout_derived_release(&derived);
    hdt_conf_release(&hdt_layout_schema, &copy);
    hdt_layout_release(&files);
}
