/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/run_factor.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

/* So many runs, or profiles, and the median is one. */
#define KNOWN_RUNS 3

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

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* 0: too few. Sorts them. */
static double median(double *values, unsigned n)
{
    if (n < KNOWN_RUNS) {
        return 0;
    }
    qsort(values, n, sizeof(values[0]), by_value);
    return (values[(n - 1) / 2] + values[n / 2]) / 2;
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

static double of_same(const struct hdt_run_factor *factor, unsigned n, double block_s)
{
    double values[HDT_RUN_FACTOR_RUNS];
    unsigned n_values = 0;

    for (unsigned i = 0; i < n; i++) {
        if (is_same(block_s, &factor->runs[i])) {
            values[n_values++] = factor->runs[i].factor;
        }
    }
    return median(values, n_values);
}

/* Is there one of the same profile further on? */
static bool comes_again(const struct hdt_run_factor *factor, unsigned n, unsigned at)
{
    for (unsigned i = at + 1; i < n; i++) {
        if (is_same(factor->runs[at].block_s, &factor->runs[i])) {
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

    for (unsigned i = 0; i < n; i++) {
        if (is_alike(&factor->runs[i], profile) && !comes_again(factor, n, i)) {
            const double same = of_same(factor, n, factor->runs[i].block_s);

            values[n_values++] = same > 0 ? same : factor->runs[i].factor;
        }
    }
    return median(values, n_values);
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
