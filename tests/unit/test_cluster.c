/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/cluster.h"

#include <criterion/criterion.h>
#include <string.h>

static void cluster_fill(struct hdt_cluster *cluster)
{
    struct hdt_cluster_worker w = {.site = "site-a",
                                   .name = "w0",
                                   .device = "CPU, 2 threads",
                                   .backend = "cpu",
                                   .memory_bytes = UINT64_C(1) << 33,
                                   .n_threads = 2,
                                   .bf16 = true,
                                   .fp8 = true,
                                   .busy = true,
                                   .profile = {.valid = true,
                                               .micro_batch = 8,
                                               .seq_len = 128,
                                               .block_fwd_s = 0.1234567890123456,
                                               .block_bwd_input_s = 0.25,
                                               .block_bwd_weight_s = 0.125,
                                               .step_s_per_param = 1e-9}};
    struct hdt_cluster_link link = {
        .from = "site-a", .to = "site-b", .up = true, .rate_bytes_per_s = 25e6, .rtt_s = 0.04};

    memset(cluster, 0, sizeof(*cluster));
    hdt_cluster_add_site(cluster, "site-a");
    hdt_cluster_add_site(cluster, "site-b");
    hdt_cluster_add_worker(cluster, &w);
    hdt_cluster_add_link(cluster, &link);
}

Test(cluster, survives_json)
{
    struct hdt_cluster cluster, back;
    struct hdt_error err = {0};
    const struct hdt_cluster_link *link;
    json_t *json;

    cluster_fill(&cluster);
    json = hdt_cluster_to_json(&cluster);
    cr_assert_eq(hdt_cluster_from_json(json, "test", &back, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(back.n_sites, 2);
    cr_assert_eq(back.n_workers, 1);
    cr_expect_str_eq(back.workers[0].device, "CPU, 2 threads");
    cr_expect_eq(back.workers[0].memory_bytes, UINT64_C(1) << 33);
    cr_expect(back.workers[0].bf16);
    cr_expect(back.workers[0].fp8);
    cr_expect(back.workers[0].busy);
    cr_expect_eq(back.workers[0].profile.block_fwd_s, 0.1234567890123456);
    cr_expect_eq(back.workers[0].profile.block_bwd_input_s, 0.25);
    cr_expect_eq(back.workers[0].profile.block_bwd_weight_s, 0.125);
    link = hdt_cluster_find_link(&back, "site-a", "site-b");
    cr_assert(link);
    cr_expect_eq(link->rtt_s, 0.04);
    cr_expect_null(hdt_cluster_find_link(&back, "site-b", "site-a"));
    json_decref(json);
    hdt_cluster_release(&cluster);
    hdt_cluster_release(&back);
}

/* A scaled profile is read as one that was measured. */
Test(cluster, a_scaled_profile_survives_json)
{
    struct hdt_profile p = {.valid = true,
                            .block_fwd_s = 0.01,
                            .step_s_per_param = 1e-12,
                            .cast_bytes_per_s = 2e9,
                            .copy_bytes_per_s = 1e15},
                       back;
    struct hdt_error err = {0};
    json_t *json;

    hdt_profile_scale(&p, 0.5);
    cr_expect_float_eq(p.block_fwd_s, 0.005, 1e-12);
    cr_expect_float_eq(p.cast_bytes_per_s, 4e9, 1);
    cr_expect_eq(p.embed_fwd_s, 0, "what is not known stays so");
    json = hdt_profile_to_json(&p);
    cr_assert_eq(hdt_profile_from_json(json, &back, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(hdt_profile_run_factor(&back), 0.5);
    json_decref(json);
}

static void refused(const char *text, const char *word)
{
    struct hdt_cluster cluster;
    struct hdt_error err = {0};
    json_t *json = json_loads(text, JSON_DECODE_ANY, NULL);

    cr_expect_eq(hdt_cluster_from_json(json, "site b", &cluster, &err), HDT_EINVAL, "%s", text);
    cr_expect(strstr(err.msg, word), "%s", err.msg);
    cr_expect_str_eq(err.where, "site b");
    json_decref(json);
}

Test(cluster, foreign_json_is_checked)
{
    refused("[]", "sites");
    refused("{\"sites\":[{\"name\":\"a/b\"}],\"workers\":[],\"links\":[]}", "sites[0]");
    refused("{\"sites\":[{\"name\":\"a\"},{\"name\":\"a\"}],\"workers\":[],\"links\":[]}", "twice");
    refused("{\"sites\":[],\"workers\":[{\"site\":\"x\",\"name\":\"w\",\"device\":\"\","
            "\"backend\":\"\",\"memory_bytes\":1,\"n_threads\":1}],\"links\":[]}",
            "x/w");
    refused("{\"sites\":[{\"name\":\"a\"},{\"name\":\"b\"}],\"workers\":[],\"links\":[{\"from\":"
            "\"a\",\"to\":\"b\",\"up\":true,\"rtt_s\":-1}]}",
            "rtt_s");
    /* With such a rate the planner's sums would be infinite. */
    refused("{\"sites\":[{\"name\":\"a\"},{\"name\":\"b\"}],\"workers\":[],\"links\":[{\"from\":"
            "\"a\",\"to\":\"b\",\"up\":true,\"rate_bytes_per_s\":1e-200}]}",
            "rate_bytes_per_s");
}

Test(cluster, names_have_a_form)
{
    char longest[HDT_NAME_CAP + 1];

    memset(longest, 'a', sizeof(longest));
    longest[HDT_NAME_CAP] = '\0';
    cr_expect(hdt_name_is_valid("site-a.example_1"));
    cr_expect_not(hdt_name_is_valid(""));
    cr_expect_not(hdt_name_is_valid("a b"));
    cr_expect_not(hdt_name_is_valid("a/b"));
    cr_expect_not(hdt_name_is_valid(longest));
    longest[HDT_NAME_CAP - 1] = '\0';
    cr_expect(hdt_name_is_valid(longest));
}

Test(cluster, a_link_of_another_program_is_checked)
{
    static const char *const bad[] = {
        "{\"from\": \"a\", \"to\": \"b\", \"rtt_s\": -1}",
        "{\"from\": \"a\", \"to\": \"b\", \"rate_bytes_per_s\": 1e300}",
        "{\"from\": \"a\", \"to\": \"b c\", \"rtt_s\": 0.1}", "{\"to\": \"b\"}", "[]"};
    struct hdt_cluster_link link;
    struct hdt_error err = {0};
    json_t *json;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        json = json_loads(bad[i], 0, NULL);
        cr_assert_not_null(json);
        cr_expect_eq(hdt_cluster_link_from_json(json, &link, &err), HDT_EINVAL, "%s", bad[i]);
        json_decref(json);
    }
    json = json_loads("{\"from\": \"a\", \"to\": \"b\", \"up\": true, \"rtt_s\": 0.1}", 0, NULL);
    cr_expect_eq(hdt_cluster_link_from_json(json, &link, &err), HDT_OK, "%s", err.msg);
    cr_expect(link.up && link.rtt_s == 0.1);
    json_decref(json);
}

Test(cluster, a_scaled_profile_is_slower_in_all_its_times)
{
    struct hdt_profile p = {.block_bwd_s = 4,
                            .block_bwd_input_s = 2.5,
                            .block_bwd_weight_s = 1.5,
                            .op_overhead_s = 0.5,
                            .copy_bytes_per_s = 8};

    hdt_profile_scale(&p, 2);
    cr_expect_eq(p.block_bwd_s, 8);
    cr_expect_eq(p.block_bwd_input_s, 5);
    cr_expect_eq(p.block_bwd_weight_s, 3);
    cr_expect_eq(p.op_overhead_s, 1);
    cr_expect_eq(p.copy_bytes_per_s, 4);
    cr_expect_eq(hdt_profile_run_factor(&p), 2);
}
