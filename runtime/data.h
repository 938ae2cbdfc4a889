/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_DATA_H
#define HDT_RUNTIME_DATA_H

/*
 * The sampler: which tokens a training sample is, as a pure function of (seed, sample number), so
 * that a run can go on from any step on any number of machines with nothing but a number to
 * remember.
 *
 * An epoch cuts the shard into windows of T tokens that follow one another, beginning at an offset
 * below T that differs from epoch to epoch, and takes the windows in a random order; so every token
 * is seen about once an epoch, and never in the same company. Sample g is window g mod n of epoch
 * g / n. Labels are the tokens one further.
 */
#include "src/base/error.h"
#include "src/core/shard.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_sampler {
    const struct hdt_shard *shard;
    uint64_t seed;
    uint64_t n_windows; /* in an epoch */
    uint64_t n_offsets; /* first windows may begin at 0 .. n_offsets - 1 */
    int64_t T;
};

/* `shard` must outlive the sampler. HDT_EINVAL: the shard has fewer than T + 1 tokens. */
enum hdt_status hdt_sampler_init(struct hdt_sampler *sampler, const struct hdt_shard *shard,
                                 uint64_t seed, int64_t T, struct hdt_error *err);

/* First token of sample g. */
uint64_t hdt_sampler_pos(const struct hdt_sampler *sampler, uint64_t g);

/* Read samples g .. g + B - 1: tokens (B, T) and labels (B, T). May block on the disk; statuses of
 * hdt_shard_read. */
enum hdt_status hdt_sampler_read(const struct hdt_sampler *sampler, uint64_t g, int64_t B,
                                 int32_t *tokens, int32_t *labels, struct hdt_error *err);

/* Evaluation reads consecutive windows from the beginning: samples k .. k + B - 1. Labels beyond
 * the end of the shard are -1 (and their tokens 0), which count nothing. */
enum hdt_status hdt_sampler_read_eval(const struct hdt_shard *shard, int64_t T, uint64_t k,
                                      int64_t B, int32_t *tokens, int32_t *labels,
                                      struct hdt_error *err);

/* Labelled tokens of samples 0 .. n - 1 of an evaluation. */
uint64_t hdt_sampler_eval_tokens(const struct hdt_shard *shard, int64_t T, uint64_t n);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_DATA_H */
