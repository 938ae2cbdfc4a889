/* SPDX-License-Identifier: Apache-2.0 */
/* How far off the profiles of a worker are, from runs of which that is known. */
#include "config.h"

#include "gateway/run_factor.h"

#include <criterion/criterion.h>

static struct hdt_profile measured(double block_fwd_s)
{
    return (struct hdt_profile){.valid = true,
                                .micro_batch = 8,
                                .seq_len = 128,
                                .block_fwd_s = block_fwd_s,
                                .block_bwd_s = 2 * block_fwd_s,
                                .cast_bytes_per_s = 1e9};
}

/* A run that is planned with what is known by then, of a device whose blocks truly take so long. */
static void run(struct hdt_run_factor *factor, const struct hdt_profile *alone, double truly_s)
{
    struct hdt_profile used = *alone;

    hdt_profile_scale(&used, hdt_run_factor_of(factor, alone));
    hdt_run_factor_saw(factor, &used, truly_s / used.block_fwd_s);
}

#define EXPECT_FACTOR(factor, profile, expected)                                                   \
 cr_expect_float_eq(hdt_run_factor_of(&(factor), &(profile)), expected, 1e-9, "%.17g",             \
                    hdt_run_factor_of(&(factor), &(profile)))

Test(run_factor, runs_of_a_profile_say_how_wrong_it_is)
{
    struct hdt_run_factor factor = {0};
    const struct hdt_profile p = measured(0.010);

    EXPECT_FACTOR(factor, p, 1.0);
    run(&factor, &p, 0.0104);
    run(&factor, &p, 0.0104);
    EXPECT_FACTOR(factor, p, 1.0);
    run(&factor, &p, 0.0104);
    EXPECT_FACTOR(factor, p, 1.04);
    for (int i = 0; i < 100; i++) { /* what is learned is not learned again on top of it */
        run(&factor, &p, 0.0104);
    }
    EXPECT_FACTOR(factor, p, 1.04);
}

Test(run_factor, one_run_beside_a_neighbour_changes_nothing)
{
    struct hdt_run_factor factor = {0};
    const struct hdt_profile p = measured(0.010);

    for (int i = 0; i < 5; i++) {
        run(&factor, &p, i == 1 ? 0.025 : 0.0104);
    }
    EXPECT_FACTOR(factor, p, 1.04);
}

/* Measured anew before each run, as well as it goes; all are as much too short. */
Test(run_factor, a_new_profile_is_as_wrong_as_others_of_the_worker)
{
    struct hdt_run_factor factor = {0};
    const double took_s[] = {0.0100, 0.0097, 0.0103, 0.0101, 0.0099};
    const struct hdt_profile next = measured(0.0102);

    for (int i = 0; i < 5; i++) {
        const struct hdt_profile p = measured(took_s[i]);

        run(&factor, &p, 1.05 * took_s[i]);
    }
    EXPECT_FACTOR(factor, next, 1.05);
}

/* A worker that was measured once, wrongly, and ran a lot, is measured again. */
Test(run_factor, the_fault_of_one_profile_is_not_that_of_the_next)
{
    struct hdt_run_factor factor = {0};
    const struct hdt_profile wrong = measured(0.013), right = measured(0.010);

    for (int i = 0; i < 10; i++) {
        run(&factor, &wrong, 0.010);
    }
    EXPECT_FACTOR(factor, wrong, 0.010 / 0.013);
    EXPECT_FACTOR(factor, right, 1.0);
}

Test(run_factor, other_ops_are_other_costs)
{
    struct hdt_run_factor factor = {0};
    struct hdt_profile p, other = measured(0.010);

    for (int i = 0; i < 5; i++) {
        p = measured(0.010 + 0.0001 * i);
        run(&factor, &p, 1.05 * p.block_fwd_s);
    }
    EXPECT_FACTOR(factor, other, 1.05);
    other.seq_len = 256;
    EXPECT_FACTOR(factor, other, 1.0);
    other = measured(0.050);
    EXPECT_FACTOR(factor, other, 1.0);
}

Test(run_factor, nonsense_is_not_taken)
{
    struct hdt_run_factor factor = {0};
    const struct hdt_profile p = measured(0.010), empty = {0};
    const double ratios[] = {0.0, -1.0, 1e9, 0.0 / 0.0, 1.0 / 0.0};

    for (size_t i = 0; i < sizeof(ratios) / sizeof(ratios[0]); i++) {
        hdt_run_factor_saw(&factor, &p, ratios[i]);
        hdt_run_factor_saw(&factor, &empty, 1.1);
    }
    cr_expect_eq(factor.n, 0);
    EXPECT_FACTOR(factor, p, 1.0);
    EXPECT_FACTOR(factor, empty, 1.0);
}
