/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Model FLOPs and utilization, against what PyTorch training steps of three shapes on one H200 gave
 * (tokens in a step, milliseconds, share of 989 TFLOP/s; counted by that program from its own
 * parameters).
 */
#include "config.h"

#include "src/cli/speed.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>

#define H200 "NVIDIA H200 (compute 9.0, 132 multiprocessors, driver 13.0, run"

static struct hdt_devices catalogue(void)
{
    struct hdt_devices devices;
    struct hdt_error err = {0};

    cr_assert_eq(hdt_devices_load(CATALOGUE, &devices, &err), HDT_OK, "%s: %s", err.where, err.msg);
    return devices;
}

/* A job whose two workers have these devices. */
static void job_of(struct hdt_planned *p, const char *device_a, const char *device_b)
{
    struct hdt_cluster_worker worker = {.site = "a", .name = "w0"};

    *p = (struct hdt_planned){
        .job.precision = HDT_JOB_BF16,
        .model = {.V = 32000, .C = 2048, .F = 5632, .L = 22, .NH = 32, .NKV = 4, .HS = 64},
        .result.plan = {.micro_batch = 8, .n_micro_batches = 1, .n_replicas = 1, .seq_len = 2048}};
    snprintf(worker.device, sizeof(worker.device), "%s", device_a);
    hdt_cluster_add_worker(&p->cluster, &worker);
    snprintf(worker.site, sizeof(worker.site), "b");
    snprintf(worker.device, sizeof(worker.device), "%s", device_b);
    hdt_cluster_add_worker(&p->cluster, &worker);
}

static json_t *ranks_of(const char *first, const char *second)
{
    return second ? json_pack("[{s:s}, {s:s}]", "worker", first, "worker", second)
                  : json_pack("[{s:s}]", "worker", first);
}

Test(speed, utilization_is_what_others_count)
{
    static const struct {
        struct hdt_model_config model;
        int64_t n_seqs, T;
        double step_s, utilization;
    } theirs[] = {
        {{.V = 32000, .C = 2048, .F = 5632, .L = 22, .NH = 32, .NKV = 4, .HS = 64},
         8,
         2048,
         0.2687,
         0.4169},
        {{.V = 32000, .C = 4096, .F = 11008, .L = 4, .NH = 32, .NKV = 32, .HS = 128},
         1,
         4096,
         0.0553,
         0.4525},
        {{.V = 32000, .C = 768, .F = 2048, .L = 12, .NH = 12, .NKV = 12, .HS = 64},
         32,
         1024,
         0.0675,
         0.3504},
    };
    struct hdt_devices devices = catalogue();
    json_t *ranks = ranks_of("a/w0", NULL);
    struct hdt_planned p;
    struct hdt_speed speed;

    job_of(&p, H200, H200);
    for (size_t i = 0; i < sizeof(theirs) / sizeof(theirs[0]); i++) {
        p.model = theirs[i].model;
        p.result.plan.micro_batch = 1;
        p.result.plan.n_micro_batches = theirs[i].n_seqs;
        p.result.plan.seq_len = theirs[i].T;
        hdt_speed_of(&p, ranks, &devices, theirs[i].step_s, &speed);
        cr_expect(fabs(speed.utilization / theirs[i].utilization - 1) < 0.003, "%zu: %g", i,
                  speed.utilization);
        cr_expect(
            fabs(speed.tokens_per_s * theirs[i].step_s / (double)(theirs[i].n_seqs * theirs[i].T) -
                 1) < 1e-9);
    }
    json_decref(ranks);
    hdt_cluster_release(&p.cluster);
    hdt_devices_release(&devices);
}

/* A step's micro-batches are those of all replicas together. */
Test(speed, replicas_share_the_tokens_of_a_step)
{
    struct hdt_speed one, two;
    struct hdt_planned p;

    job_of(&p, H200, H200);
    hdt_speed_of(&p, NULL, NULL, 0.5, &one);
    cr_expect_float_eq(one.tokens_per_s, 8 * 2048 / 0.5, 1e-6);
    p.result.plan.n_replicas = 2;
    hdt_speed_of(&p, NULL, NULL, 0.5, &two);
    cr_expect_eq(two.tokens_per_s, one.tokens_per_s);
    cr_expect_eq(two.flops_per_s, one.flops_per_s);
    hdt_cluster_release(&p.cluster);
}

/* Of two workers the peaks add up; one that is limited to a part counts by that part. */
Test(speed, peaks_are_of_the_ranks_that_ran)
{
    struct hdt_devices devices = catalogue();
    json_t *both = ranks_of("a/w0", "b/w0"), *one = ranks_of("b/w0", NULL);
    struct hdt_planned p;
    struct hdt_speed speed;

    job_of(&p, H200, "NVIDIA H200 (compute 9.0, 16 of 132 multiprocessors, driver 13");
    hdt_speed_of(&p, both, &devices, 1, &speed);
    cr_expect(fabs(speed.peak_flops_per_s / (989.5e12 * 148 / 132) - 1) < 1e-9, "%g",
              speed.peak_flops_per_s);
    cr_expect_str_empty(speed.unknown);
    hdt_speed_of(&p, one, &devices, 1, &speed);
    cr_expect(fabs(speed.peak_flops_per_s / (989.5e12 * 16 / 132) - 1) < 1e-9, "%g",
              speed.peak_flops_per_s);
    json_decref(both);
    json_decref(one);
    hdt_cluster_release(&p.cluster);
    hdt_devices_release(&devices);
}

Test(speed, what_is_not_in_the_catalogue_has_no_peak)
{
    struct hdt_devices devices = catalogue();
    json_t *ranks = ranks_of("a/w0", "b/w0"), *json;
    struct hdt_planned p;
    struct hdt_speed speed;

    job_of(&p, H200, "Some processor @ 2 GHz (4 cores), 2 threads");
    hdt_speed_of(&p, ranks, &devices, 0.5, &speed);
    cr_expect(isnan(speed.utilization));
    cr_expect_str_eq(speed.unknown, "Some processor @ 2 GHz");
    json = hdt_speed_to_json(&speed);
    cr_expect(json_is_null(json_object_get(json, "utilization")));
    cr_expect(json_is_real(json_object_get(json, "model_flops_per_s")));
    json_decref(json);
    hdt_speed_of(&p, ranks, NULL, 0.5, &speed);
    cr_expect(isnan(speed.utilization));
    cr_expect_str_empty(speed.unknown);
    hdt_speed_of(&p, NULL, &devices, 0.5, &speed);
    cr_expect(isnan(speed.utilization));
    json_decref(ranks);
    hdt_cluster_release(&p.cluster);
    hdt_devices_release(&devices);
}
