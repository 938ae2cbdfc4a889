/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_PROFILE_FILE_H
#define HDT_CORE_PROFILE_FILE_H

/*
 * A worker's profile (struct hdt_profile: one micro-batch) and the file that outlives it (struct
 * hdt_layer_profile: several): `hdt-worker --profile` and `hdt plan --write-profiles` write one, a
 * cluster names it for a worker as "profile_file". Any thread.
 */
#include "src/core/cluster.h"
#include "src/core/job.h"
#include "src/core/layer_profile.h"
#include "src/core/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Begin a file of profiles of a model in one precision, dated today. Strings are copied. To be
 * released by hdt_layer_profile_release. */
struct hdt_profile_file_head {
    const char *model, *device, *source, *note;
    int64_t n_threads, seq_len;
    int precision; /* enum hdt_job_precision */
};
void hdt_profile_file_begin(struct hdt_layer_profile *file,
                            const struct hdt_profile_file_head *head,
                            const struct hdt_model_config *model);

/* Add the times at one more micro-batch; what does not depend on it is taken from the last one
 * added. `recompute_s`: of a block's forward in its backward; NaN: not measured. */
void hdt_profile_file_add(struct hdt_layer_profile *file, const struct hdt_profile *profile,
                          double recompute_s);

/* HDT_EIO. */
enum hdt_status hdt_profile_file_write(const struct hdt_layer_profile *file, const char *path,
                                       struct hdt_error *err);

/* What decides the times of a worker. */
struct hdt_profile_file_want {
    const struct hdt_model_config *model;
    int64_t micro_batch, seq_len;
    int64_t n_threads; /* 0: of a device without */
    int precision;     /* enum hdt_job_precision: what the worker computes the job in */
};

/* The profile that the file says for it, over what *profile holds: the machine and what the file
 * does not say stay. Times are as of hdt_layer_profile_times, without tensor parallelism. On
 * failure *profile is as it was. HDT_ENOENT: no file; HDT_EINVAL with file:line: it is damaged, of
 * another model, length, precision or number of threads, or lacks what a prediction needs. What the
 * file does not say of these is taken to be right. */
enum hdt_status hdt_profile_file_read(const char *path, const struct hdt_profile_file_want *want,
                                      struct hdt_profile *profile, struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_PROFILE_FILE_H */
