/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_PROFILE_TASK_H
#define HDT_RUNTIME_PROFILE_TASK_H

/* `hdt-worker --profile`: what the layers of a model take on a device, measured and written to a
 * file for plans that are made elsewhere. */
#include "runtime/backend.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_PROFILE_TASK_MAX 16 /* micro-batches of a file */

struct hdt_profile_task {
    const char *path;                            /* of the file */
    const char *model;                           /* config.json */
    int64_t micro_batches[HDT_PROFILE_TASK_MAX]; /* ascending, each once */
    int n_micro_batches;
    int64_t seq_len; /* 0: the model's longest, at most 2048 */
    int precision;   /* enum hdt_job_precision, of the jobs to plan */
    int n_threads;
    const char *version; /* of this program */
};

/* Measure and write; a table to standard output, a line as soon as it is measured. Blocks, some
 * seconds for each micro-batch. HDT_ENOENT, HDT_EINVAL: the model; HDT_ENOTSUP: bf16
 * or fp8 on a device without; HDT_ENOMEM: a shape does not fit, those before it are written;
 * HDT_EIO: the file. */
enum hdt_status hdt_profile_task_run(const struct hdt_profile_task *task,
                                     const struct hdt_backend *backend, struct hdt_device *device,
                                     struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_PROFILE_TASK_H */
