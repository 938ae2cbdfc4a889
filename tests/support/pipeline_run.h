/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_SUPPORT_PIPELINE_RUN_H
#define HDT_TESTS_SUPPORT_PIPELINE_RUN_H

/* A pipeline in one thread: stages on devices of their own, activations carried over as bytes, the
 * order of a schedule in which the first stage runs ahead by the slots that it has. */
#include "runtime/stage.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PIPELINE_STAGES_MAX 8

struct pipeline_conf {
    struct hdt_model_config model;
    int B, T, n_slots, n_micro, n_steps;
    bool recompute;
    bool halves; /* backward in two: the second one */
    int late;    /* so many micro-batches after the first */
    uint64_t seed;
    float clip_norm;
    int n_stages;
    int units[PIPELINE_STAGES_MAX];   /* units of each stage */
    int threads[PIPELINE_STAGES_MAX]; /* threads of each stage's device */
};

/* All values in model order; a tied head is left out. */
struct pipeline_result {
    double *losses; /* mean loss of each step */
    float *weights; /* after the last step */
    float *moments; /* m and v of each tensor in turn */
    float *grads;   /* of the last step */
    size_t len;     /* floats in weights and grads */
    double norm;    /* global norm of the last step's gradient */
};

/* Runs; asserts (abort) on any failure. */
void hdt_pipeline_run(const struct pipeline_conf *conf, struct pipeline_result *result);
void hdt_pipeline_result_release(struct pipeline_result *result);

/* Tokens of micro-batch `mb` of a step: a fixed function, learnable (each token follows from the
 * one before it in three cases of four). labels are the tokens one to the left. */
void hdt_pipeline_tokens(const struct pipeline_conf *conf, int step, int mb, int32_t *tokens,
                         int32_t *labels);

#ifdef __cplusplus
}
#endif
#endif /* HDT_TESTS_SUPPORT_PIPELINE_RUN_H */
