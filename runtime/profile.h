/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_PROFILE_H
#define HDT_RUNTIME_PROFILE_H

/* Measuring a device: seconds for one micro-batch of a job's shape, unit by unit. */
#include "runtime/backend.h"
#include "src/core/cluster.h"
#include "src/core/job.h"
#include "src/core/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What decides the times. */
struct hdt_profile_shape {
    struct hdt_model_config model;
    int64_t micro_batch, seq_len;
    int precision; /* enum hdt_job_precision; bf16: where the backend has it */
};

/* Run the embedding, some blocks and the head a few times each, forward and backward; two or three
 * seconds for a small model. Blocks. HDT_EINVAL, HDT_ENOMEM: the shape; HDT_ENOTSUP: fp8 on a
 * device without. */
enum hdt_status hdt_profile_measure(const struct hdt_backend *backend, struct hdt_device *device,
                                    const struct hdt_profile_shape *shape,
                                    struct hdt_profile *profile, struct hdt_error *err);

/* Seconds that a block's forward takes when it is done again in the backward: what a backward with
 * recompute takes more than the profile's. NaN: less than the machine's noise. Blocks as long. */
enum hdt_status hdt_profile_measure_recompute(const struct hdt_backend *backend,
                                              struct hdt_device *device,
                                              const struct hdt_profile_shape *shape,
                                              const struct hdt_profile *profile,
                                              double *recompute_s, struct hdt_error *err);

/* Last measurements, by shape: all zeros is an empty cache. Belongs to one thread. */
#define HDT_PROFILE_CACHE_CAP 16
struct hdt_profile_cache {
    struct {
        struct hdt_profile_shape shape;
        struct hdt_profile profile;
    } entries[HDT_PROFILE_CACHE_CAP];
    unsigned n; /* ever added */
};

const struct hdt_profile *hdt_profile_cache_find(const struct hdt_profile_cache *cache,
                                                 const struct hdt_profile_shape *shape);
void hdt_profile_cache_add(struct hdt_profile_cache *cache, const struct hdt_profile_shape *shape,
                           const struct hdt_profile *profile);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_PROFILE_H */
