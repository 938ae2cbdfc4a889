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
    bool bf16, halves, recompute, tied;
    int64_t micro_batch;
};

static struct hdt_cost_memory memory_of(const struct kind *kind, int64_t begin, int64_t end)
{
    return (struct hdt_cost_memory){
        .begin = begin, .end = end, .n_slots = N_SLOTS, .bf16 = kind->bf16, .halves = kind->halves};
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
                                        .mixed = kind->bf16};
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

    model.tie_word_embeddings = kind->tied;
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        const struct hdt_cost_memory memory = memory_of(kind, cuts[i][0], cuts[i][1]);
        const double want = taken(&model, kind, memory.begin, memory.end);
        const double got = (double)hdt_cost_stage_memory(&in, &memory);

        cr_expect(fabs(got / want - 1) <= SLACK,
                  "V %lld, units %lld to %lld, %lld sequences%s%s%s%s: planned %.0f, taken %.0f",
                  (long long)model.V, (long long)memory.begin, (long long)memory.end - 1,
                  (long long)kind->micro_batch, kind->bf16 ? ", bf16" : "",
                  kind->halves ? ", halves" : "", kind->recompute ? ", recompute" : "",
                  kind->tied ? ", tied" : "", got, want);
    }
}

/* Large micro-batches have more logits than there is room for at a time. */
Test(stage_memory, the_planner_counts_as_the_worker_does)
{
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        for (unsigned bits = 0; bits < 32; bits++) {
            const struct kind kind = {.bf16 = bits & 1,
                                      .halves = bits & 2,
                                      .recompute = bits & 4,
                                      .tied = bits & 8,
                                      .micro_batch = bits & 16 ? 16 * N_SEQS : N_SEQS};

            kind_compare(&shapes[i], &kind);
        }
    }
}

/* Only a job that asks for it, on a worker that has it. */
Test(stage_memory, bf16_is_by_job_and_worker)
{
    struct hdt_job job = {.precision = HDT_JOB_BF16};
    const struct hdt_cost_inputs in = {.job = &job};
    struct hdt_cluster_worker worker = {.bf16 = true};

    cr_expect(hdt_cost_is_bf16(&in, &worker));
    worker.bf16 = false;
    cr_expect_not(hdt_cost_is_bf16(&in, &worker));
    worker.bf16 = true;
    job.precision = HDT_JOB_FP32;
    cr_expect_not(hdt_cost_is_bf16(&in, &worker));
}
