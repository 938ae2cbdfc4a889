/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_RUN_FACTOR_H
#define HDT_GATEWAY_RUN_FACTOR_H

/*
 * What a worker's arithmetic takes in jobs, beside what it takes when its device is measured alone.
 * A profile lasts some seconds on a machine that does nothing else; in a job gateway, other workers
 * and page cache share caches and memory with it. So each run of a job says how far off the profile
 * was that it was planned with, and the next plan counts with that.
 *
 * Two things are told apart. How wrong one profile is, runs with just this profile say. How wrong
 * profiles of this worker are as a rule, runs with different ones say, of ops about as long: a new
 * profile is corrected by this until it has runs of its own. Both are medians: a neighbour that
 * computed beside one run is not the worker's nature. Arithmetic over what the caller saw; no
 * clock, no lock.
 */
#include "src/core/cluster.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_RUN_FACTOR_RUNS 31

/* Of one worker. All zeros: no run yet. */
struct hdt_run_factor {
    struct hdt_run_factor_run {
        int64_t micro_batch, seq_len;
        double block_s; /* names the profile: forward and backward of a block, as measured alone */
        double factor;
    } runs[HDT_RUN_FACTOR_RUNS]; /* a ring */
    unsigned n;                  /* runs so far */
};

/* A run planned with `profile`, whose times may be scaled (hdt_profile_scale), took `ratio` of the
 * arithmetic that was planned. Nonsense is not taken: less than a quarter, more than four times. */
void hdt_run_factor_saw(struct hdt_run_factor *factor, const struct hdt_profile *profile,
                        double ratio);

/* By how much to scale this profile, as measured alone; 1: too few runs to say. */
double hdt_run_factor_of(const struct hdt_run_factor *factor, const struct hdt_profile *profile);

#ifdef __cplusplus
}
#endif
#endif /* HDT_GATEWAY_RUN_FACTOR_H */
