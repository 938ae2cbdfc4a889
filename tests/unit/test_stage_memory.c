/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* The planner's memory of a stage against what the worker's stage takes, which is laid out for it:
 * of each kind of stage, in both precisions. */
#include "runtime/stage.h"
#include "src/plan/cost.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>

#define N_SEQS  4
#define SEQ_LEN 256
#define N_SLOTS 3
/* Room between the arrays, and sums of squares. */
#define SLACK 0.001

static const struct hdt_model_config shapes[] = {
    {.V = 32000, .C = 1024, .F = 2816, .L = 6, .NH = 16, .NKV = 4, .HS = 64, .T = 2048},
    {.V = 128256, .C = 512, .F = 4096, .L = 3, .NH = 4, .NKV = 4, .HS = 128, .T = 512},
};

struct kind {
    enum hdt_job_precision precision;
    bool halves, recompute, tied;
    int64_t micro_batch;
};

static struct hdt_cost_memory memory_of(const struct kind *kind, int64_t begin, int64_t end)
{
    return (struct hdt_cost_memory){.begin = begin,
                                    .end = end,
                                    .n_slots = N_SLOTS,
                                    .precision = (int)kind->precision,
                                    .halves = kind->halves};
}

static double taken(const struct hdt_model_config *model, const struct kind *kind, int64_t begin,
                    int64_t end)
{
    const struct hdt_stage_conf conf = {.model = *model,
                                        .first_unit = (int)begin,
                                        .n_units = (int)(end - begin),
                                        .B = (int)kind->micro_batch,
                                        .T = SEQ_LEN,
                                        .n_slots = N_SLOTS,
                                        .recompute = kind->recompute,
                                        .halves = kind->halves,
                                        .mixed = kind->precision != HDT_JOB_FP32,
                                        .fp8 = kind->precision == HDT_JOB_FP8};
    struct hdt_stage_bytes bytes;
    struct hdt_error err = {0};

    cr_assert_eq(hdt_stage_measure(&conf, &bytes, &err), HDT_OK, "%s", err.msg);
    return (double)bytes.total;
}

static void kind_compare(const struct hdt_model_config *shape, const struct kind *kind)
{
    const int64_t n_units = shape->L + 2;
    const int64_t cuts[][2] = {{0, n_units}, {0, 1},       {0, 3},
                               {2, 4},       {2, n_units}, {n_units - 1, n_units}};
    struct hdt_model_config model = *shape;
    struct hdt_job job = {.recompute = kind->recompute,
                          .batch = {.micro_batch = kind->micro_batch, .seq_len = SEQ_LEN}};
    const struct hdt_cost_inputs in = {.job = &job, .model = &model};

    static const char *const names[] = {"", ", bf16", ", fp8"};

    model.tie_word_embeddings = kind->tied;
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        const struct hdt_cost_memory memory = memory_of(kind, cuts[i][0], cuts[i][1]);
        const double want = taken(&model, kind, memory.begin, memory.end);
        const double got = (double)hdt_cost_stage_memory(&in, &memory);

        cr_expect(fabs(got / want - 1) <= SLACK,
                  "V %lld, units %lld to %lld, %lld sequences%s%s%s%s: planned %.0f, taken %.0f",
                  (long long)model.V, (long long)memory.begin, (long long)memory.end - 1,
                  (long long)kind->micro_batch, names[kind->precision],
                  kind->halves ? ", halves" : "", kind->recompute ? ", recompute" : "",
                  kind->tied ? ", tied" : "", got, want);
    }
}

/* Large micro-batches have more logits than there is room for at a time. */
Test(stage_memory, the_planner_counts_as_the_worker_does)
{
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        for (unsigned bits = 0; bits < 48; bits++) {
            const struct kind kind = {.precision = bits / 16,
                                      .halves = bits & 1,
                                      .recompute = bits & 2,
                                      .tied = bits & 4,
                                      .micro_batch = bits & 8 ? 16 * N_SEQS : N_SEQS};

            kind_compare(&shapes[i], &kind);
        }
    }
}

/* Only a job that asks for it, on a worker that has it; fp8 is not made up for. */
Test(stage_memory, precision_is_by_job_and_worker)
{
    struct hdt_job job = {.precision = HDT_JOB_BF16};
    const struct hdt_cost_inputs in = {.job = &job};
    struct hdt_cluster_worker worker = {
        .site = "a", .name = "w0", .backend = "mine", .device = "a device", .bf16 = true};
    struct hdt_error err = {0};

    cr_expect_eq(hdt_cost_precision(&in, &worker), HDT_JOB_BF16);
    cr_expect_eq(hdt_cost_check_precision(&in, &worker, &err), HDT_OK);
    worker.bf16 = false;
    cr_expect_eq(hdt_cost_precision(&in, &worker), HDT_JOB_FP32);
    cr_expect_eq(hdt_cost_check_precision(&in, &worker, &err), HDT_OK);
    worker.bf16 = true;
    job.precision = HDT_JOB_FP32;
    cr_expect_eq(hdt_cost_precision(&in, &worker), HDT_JOB_FP32);
    job.precision = HDT_JOB_FP8;
    cr_expect_eq(hdt_cost_check_precision(&in, &worker, &err), HDT_ENOTSUP);
    cr_expect(strstr(err.msg, "a/w0") && strstr(err.msg, "'mine'") && strstr(err.msg, "'a device'"),
              "%s", err.msg);
    worker.fp8 = true;
    cr_expect_eq(hdt_cost_check_precision(&in, &worker, &err), HDT_OK);
    cr_expect_eq(hdt_cost_precision(&in, &worker), HDT_JOB_FP8);
}
