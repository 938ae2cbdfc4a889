/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/support/plan_cluster.h"

#include <stdio.h>
#include <string.h>

const struct hdt_model_config hdt_test_model = {
    .V = 256, .C = 256, .F = 768, .L = 6, .NH = 4, .NKV = 4, .HS = 64, .T = 256};

void hdt_test_cluster_add_worker(struct hdt_cluster *cluster, const char *site, const char *name,
                                 double speed)
{
    struct hdt_cluster_worker w = {
        .device = "test", .backend = "cpu", .memory_bytes = UINT64_C(8) << 30, .n_threads = 1};

    snprintf(w.site, sizeof(w.site), "%s", site);
    snprintf(w.name, sizeof(w.name), "%s", name);
    w.profile = (struct hdt_profile){.valid = true,
                                     .micro_batch = 8,
                                     .seq_len = 128,
                                     .embed_fwd_s = 0.0005 / speed,
                                     .embed_bwd_s = 0.001 / speed,
                                     .block_fwd_s = 0.010 / speed,
                                     .block_bwd_s = 0.020 / speed,
                                     .head_fwd_s = 0.009 / speed,
                                     .head_bwd_s = 0.0,
                                     .step_s_per_param = 2e-9 / speed,
                                     .op_overhead_s = 2e-5,
                                     .cast_bytes_per_s = 2e9};
    hdt_cluster_add_worker(cluster, &w);
}

static void cluster_add_links(struct hdt_cluster *cluster, double rate, double rtt)
{
    for (size_t i = 0; i < cluster->n_sites; i++) {
        for (size_t j = 0; j < cluster->n_sites; j++) {
            struct hdt_cluster_link link = {.up = true, .rate_bytes_per_s = rate, .rtt_s = rtt};

            if (i != j) {
                snprintf(link.from, sizeof(link.from), "%s", cluster->sites[i].name);
                snprintf(link.to, sizeof(link.to), "%s", cluster->sites[j].name);
                hdt_cluster_add_link(cluster, &link);
            }
        }
    }
}

void hdt_test_cluster(struct hdt_cluster *cluster, int n, const double *speeds, double rate,
                      double rtt)
{
    static const char *const names[] = {"a", "b", "c", "d"};

    memset(cluster, 0, sizeof(*cluster));
    for (int i = 0; i < n; i++) {
        hdt_cluster_add_site(cluster, names[i]);
        hdt_test_cluster_add_worker(cluster, names[i], "w0", speeds[i]);
    }
    cluster_add_links(cluster, rate, rtt);
}

void hdt_test_cluster_unlike(struct hdt_cluster *cluster, int n, double rate, double rtt)
{
    static const double speeds[HDT_TEST_UNLIKE_MAX] = {1,   2.9, 4,   1.4, 5.1, 2.2, 0.9, 3.3,
                                                       1.2, 2.5, 3.7, 1.7, 4.4, 2.0, 0.8, 3.0};

    HDT_ASSERT(n >= 3 && n <= HDT_TEST_UNLIKE_MAX);
    hdt_test_cluster(cluster, 3, speeds, rate, rtt);
    for (int i = 3; i < n; i++) {
        char name[8];

        snprintf(name, sizeof(name), "w%d", i / 3);
        hdt_test_cluster_add_worker(cluster, cluster->sites[i % 3].name, name, speeds[i]);
    }
    for (size_t i = 0; i < cluster->n_workers; i++) {
        struct hdt_profile *p = &cluster->workers[i].profile;

        p->block_bwd_input_s = 0.55 * p->block_bwd_s;
        p->block_bwd_weight_s = 0.45 * p->block_bwd_s;
        p->copy_bytes_per_s = 2e9 + 1e8 * (double)i;
    }
}

struct hdt_job hdt_test_job(void)
{
    return (struct hdt_job){.name = "t",
                            .data = {.site = "a"},
                            .batch = {8, 16, 128},
                            .steps = 10,
                            .plan = {.min_stages = 1, .schedule = HDT_SCHEDULE_WAN}};
}
