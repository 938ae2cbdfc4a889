/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/run_factor.h"
#include "src/base/median.h"

#include <math.h>
#include <stdbool.h>

/* So many runs, or profiles, and the median is one. */
#define KNOWN_RUNS 3

/* Of one profile, so many count. */
#define SAME_RUNS 9

#define RATIO_MAX 4.0

/* Two profiles are one when their times are equal but for the rounding of a scale. */
#define SAME 1e-9

/* Ops of another length have other costs: of another model. */
#define ALIKE 2.0

static double block_s(const struct hdt_profile *profile)
{
    return (profile->block_fwd_s + profile->block_bwd_s) / hdt_profile_run_factor(profile);
}

void hdt_run_factor_saw(struct hdt_run_factor *factor, const struct hdt_profile *profile,
                        double ratio)
{
    const double of_alone = ratio * hdt_profile_run_factor(profile);

    if (!(block_s(profile) > 0) || !(of_alone >= 1 / RATIO_MAX && of_alone <= RATIO_MAX)) {
        return;
    }
    factor->runs[factor->n++ % HDT_RUN_FACTOR_RUNS] =
        (struct hdt_run_factor_run){.micro_batch = profile->micro_batch,
                                    .seq_len = profile->seq_len,
                                    .block_s = block_s(profile),
                                    .factor = of_alone};
}

/* 0: too few. Sorts them. */
static double known_median(double *values, unsigned n)
{
    return n >= KNOWN_RUNS ? hdt_median(values, n) : 0;
}

static bool is_same(double block_s, const struct hdt_run_factor_run *run)
{
    return fabs(run->block_s / block_s - 1) <= SAME;
}

static bool is_alike(const struct hdt_run_factor_run *run, const struct hdt_profile *profile)
{
    return run->micro_batch == profile->micro_batch && run->seq_len == profile->seq_len &&
           run->block_s <= ALIKE * block_s(profile) && run->block_s >= block_s(profile) / ALIKE;
}

/* The k-th run from the last one. */
static const struct hdt_run_factor_run *run_at(const struct hdt_run_factor *factor, unsigned k)
{
    return &factor->runs[(factor->n - 1 - k) % HDT_RUN_FACTOR_RUNS];
}

/* Its last runs: a device may grow slower. */
static double of_same(const struct hdt_run_factor *factor, unsigned n, double block_s)
{
    double values[SAME_RUNS];
    unsigned n_values = 0;

    for (unsigned k = 0; k < n && n_values < SAME_RUNS; k++) {
        if (is_same(block_s, run_at(factor, k))) {
            values[n_values++] = run_at(factor, k)->factor;
        }
    }
    return known_median(values, n_values);
}

/* Has the profile of this run a later one? */
static bool is_old(const struct hdt_run_factor *factor, unsigned k)
{
    for (unsigned later = 0; later < k; later++) {
        if (is_same(run_at(factor, k)->block_s, run_at(factor, later))) {
            return true;
        }
    }
    return false;
}

/* Each profile counts once, however many runs it had. */
static double of_alike(const struct hdt_run_factor *factor, unsigned n,
                       const struct hdt_profile *profile)
{
    double values[HDT_RUN_FACTOR_RUNS];
    unsigned n_values = 0;

    for (unsigned k = 0; k < n; k++) {
        const struct hdt_run_factor_run *run = run_at(factor, k);

        if (is_alike(run, profile) && !is_old(factor, k)) {
            const double same = of_same(factor, n, run->block_s);

            values[n_values++] = same > 0 ? same : run->factor;
        }
    }
    return known_median(values, n_values);
}

double hdt_run_factor_of(const struct hdt_run_factor *factor, const struct hdt_profile *profile)
{
    const unsigned n = factor->n < HDT_RUN_FACTOR_RUNS ? factor->n : HDT_RUN_FACTOR_RUNS;
    double known;

    if (!(block_s(profile) > 0)) {
        return 1;
    }
    known = of_same(factor, n, block_s(profile));
    if (known == 0) {
        known = of_alike(factor, n, profile);
    }
    return known > 0 ? known : 1;
}
