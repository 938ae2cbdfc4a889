/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_TASK_H
#define HDT_RUNTIME_TASK_H

/* What a trained model is used for, without a gateway: `hdt-worker --task generate|eval`, which
 * `hdt generate` and `hdt eval` run. */
#include "runtime/backend.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_task_conf {
    const struct hdt_backend *backend;
    struct hdt_device *device;
    const char
        *checkpoint;       /* folder: a checkpoint of HDT, or any config.json + model.safetensors */
    const char *tokenizer; /* NULL: "byte" */
    const char *tokenizer_model;
    int64_t seq_len; /* context; 0: as trained, else the model's, at most 2048 */
    bool json;

    const char *prompt; /* generate */
    int n_tokens;
    double temperature;
    int top_k;
    uint64_t seed;

    const char *data;   /* eval: token shard */
    int64_t max_tokens; /* eval: only so many of its tokens; 0: all */
};

/* Continue the prompt and print it as it comes (JSON: one object at the end). Blocks. */
enum hdt_status hdt_task_generate(const struct hdt_task_conf *conf, struct hdt_error *err);

/* Print the mean loss on a token shard. Blocks. */
enum hdt_status hdt_task_eval(const struct hdt_task_conf *conf, struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_TASK_H */
