/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * The predictor against measured runs of others: errors stay below what doc/predictor.md promises,
 * with one set of constants for all rows. Rows are printed, so that a change can be seen.
 */
#include "tests/support/predict_sets.h"

#include <criterion/criterion.h>
#include <stdio.h>

#define DATA HDT_TEST_SRCDIR "/tests/data/predict"

static double percent(double predicted, double real)
{
    return 100 * (predicted / real - 1);
}

static void rows_print(const struct predict_row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        printf("%-58s %8.3f s %8.3f s %+6.1f %%  %6.2f GB %6.2f GB %+6.1f %%\n", rows[i].name,
               rows[i].real_s, rows[i].predicted_s, percent(rows[i].predicted_s, rows[i].real_s),
               rows[i].real_gb, rows[i].predicted_gb,
               percent(rows[i].predicted_gb, rows[i].real_gb));
    }
}

Test(predict_sets, set_a_within_promise)
{
    struct predict_row rows[PREDICT_ROWS_MAX];
    size_t n = hdt_predict_folder(DATA "/set-a", &hdt_stage_cost_fitted, rows);
    double gh = hdt_predict_time_error(rows, n, "gh200"), rtx, memory;

    rtx = hdt_predict_time_error(rows, n, "rtx");
    memory = hdt_predict_memory_error(rows, n, "gh200");
    rows_print(rows, n);
    printf("%d constants fitted for times, 1 for memory; mean error GH %.2f %%, RTX %.2f %%; "
           "memory GH %.2f %%\n",
           HDT_STAGE_COST_N_CONSTANTS, gh, rtx, memory);
    cr_assert_eq(n, 23);
    cr_assert_lt(gh, 5);
    cr_assert_lt(rtx, 8);
    cr_assert_lt(memory, 5);
}

Test(predict_sets, set_b_ranked_as_measured)
{
    struct predict_row rows[PREDICT_ROWS_MAX];
    size_t n = hdt_predict_folder(DATA "/set-b", &hdt_stage_cost_fitted, rows), first;

    first = hdt_predict_first(rows, n);
    rows_print(rows, n);
    printf("rank correlation %.3f; mean error %.1f %%; first choice %s measures %.2f s\n",
           hdt_predict_rank_correlation(rows, n), hdt_predict_time_error(rows, n, NULL),
           rows[first].name, rows[first].real_s);
    cr_assert_eq(n, 43);
    cr_assert_gt(hdt_predict_rank_correlation(rows, n), 0.8);
    cr_assert_leq(rows[first].real_s, 1.28);
}
