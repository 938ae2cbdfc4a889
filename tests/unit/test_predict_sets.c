/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * The predictor against measured runs of others: errors stay below what doc/predictor.md promises,
 * with one set of constants for all rows. Rows are printed, so that a change can be seen.
 */
#include "tests/support/predict_sets.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

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
    /* What is reached, and a little: doc/predictor.md promises 5, 8 and 5 %. */
    cr_assert_lt(gh, 3);
    cr_assert_lt(rtx, 7);
    cr_assert_lt(memory, 4);
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

/* ---- orders ---- */

struct published {
    const char *file;
    int group;
    double value;
};

/* Seconds that the judge of the planners' table gives their plans. */
static const struct published planners[] = {
    {"1a-uneven", 1, 4.888}, {"1b-sailor", 1, 5.178}, {"1b-metis", 1, 5.24},
    {"1c-amp", 1, 7.356},    {"2a-uneven", 2, 2.383}, {"2b-sailor", 2, 2.763},
    {"2c-amp", 2, 4.731},    {"3a-uneven", 3, 1.788}, {"3b-sailor", 3, 1.905},
    {"3c-amp", 3, 3.182},    {"4a-uneven", 4, 31.33}, {"4b-metis", 4, 34.60},
    {"4c-sailor", 4, 37.45}, {"4d-amp", 4, 62.09},
};

/* Bubbles that AdapHeterPipe publishes. */
static const struct published bubbles[] = {
    {"vh45-760m-a-zb-h1", 1, .343},      {"vh45-760m-b-interleaved", 1, .344},
    {"vh45-760m-c-1f1b", 1, .389},       {"vh45-1b3-a-zb-h1", 2, .294},
    {"vh45-1b3-b-interleaved", 2, .338}, {"vh45-1b3-c-1f1b", 2, .393},
    {"hh55-760m-a-zb-h1", 3, .129},      {"hh55-760m-b-interleaved", 3, .209},
    {"hh55-760m-c-1f1b", 3, .290},       {"hh55-1b3-a-zb-h1", 4, .234},
    {"hh55-1b3-b-interleaved", 4, .261}, {"hh55-1b3-c-1f1b", 4, .329},
    {"hhvv-13b-a-zb-h1", 5, .331},       {"hhvv-13b-b-interleaved", 5, .346},
    {"hhvv-13b-c-1f1b", 5, .388},
};

static const struct predict_row *row_of(const struct predict_row *rows, size_t n, const char *file)
{
    size_t i = 0;

    while (i < n && strcmp(rows[i].file, file) != 0) {
        i++;
    }
    cr_assert_lt(i, n, "there is no %s", file);
    return &rows[i];
}

/* Pairs of a group whose published values are so far apart are predicted in their order, or no
 * further the other way than a tie. */
static void orders_match(const char *folder, const struct published *all, size_t n_all,
                         bool of_bubbles, double apart, double tie)
{
    struct predict_row rows[PREDICT_ROWS_MAX];
    size_t n = hdt_predict_folder(folder, &hdt_stage_cost_fitted, rows);

    for (size_t i = 0; i < n_all; i++) {
        for (size_t k = 0; k < n_all; k++) {
            const struct predict_row *a = row_of(rows, n, all[i].file),
                                     *b = row_of(rows, n, all[k].file);
            double gap = of_bubbles
                             ? b->bubble_share - a->bubble_share
                             : (b->predicted_s / b->samples) / (a->predicted_s / a->samples) - 1;

            if (all[i].group == all[k].group && all[k].value > apart * all[i].value) {
                cr_expect_gt(gap, -tie, "%s before %s: %g", all[i].file, all[k].file, gap);
            }
        }
    }
}

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

Test(predict_sets, planners_in_the_order_of_their_judge)
{
    orders_match(DATA "/planners", planners, N_OF(planners), false, 1.1, 0);
}

Test(predict_sets, bubbles_in_the_order_of_the_paper)
{
    orders_match(DATA "/schedules", bubbles, N_OF(bubbles), true, 1, 0.005);
}
