/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_SUPPORT_PREDICT_PLAY_H
#define HDT_TESTS_SUPPORT_PREDICT_PLAY_H

/*
 * One pipeline as DeepSpeed's engine runs it: steps in which even and odd stages take turns of
 * forward and backward; a stage first hands on or takes gradients, then activations, then computes.
 */
#include "src/plan/stage_cost.h"

#define PREDICT_STAGES_MAX 16

struct predict_pipeline {
    int n_stages;
    int64_t n_micro_batches;
    double fwd_s[PREDICT_STAGES_MAX], bwd_s[PREDICT_STAGES_MAX];
    struct hdt_stage_cost_message
        message[PREDICT_STAGES_MAX]; /* from a stage to the next one and back */
};

/* When each stage has done its last backward. */
void hdt_predict_play(const struct predict_pipeline *pipeline, double *end_s);

#endif /* HDT_TESTS_SUPPORT_PREDICT_PLAY_H */
