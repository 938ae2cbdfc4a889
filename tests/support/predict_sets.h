/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_SUPPORT_PREDICT_SETS_H
#define HDT_TESTS_SUPPORT_PREDICT_SETS_H

/*
 * Folders of layouts that somebody measured (tests/data/predict), and what is predicted for each.
 */
#include "src/plan/layout_sim.h"

#include <stddef.h>

struct predict_row {
    char file[64]; /* without folder and ending */
    char name[96];
    char cluster[32];           /* name of its cluster: goals are given by it */
    double real_s, predicted_s; /* NaN: not measured */
    double real_gb, predicted_gb;
    double bubble_share;
    double samples; /* of a step */
};
#define PREDICT_ROWS_MAX 64

/* All of a folder, in the order of their names. A file that cannot be read or played ends the
 * process. */
size_t hdt_predict_folder(const char *folder, const struct hdt_stage_cost_constants *constants,
                          struct predict_row *rows);

/* Mean error in percent of a cluster's rows (NULL: of all), of time or of memory; NaN: none. */
double hdt_predict_time_error(const struct predict_row *rows, size_t n, const char *cluster);
double hdt_predict_memory_error(const struct predict_row *rows, size_t n, const char *cluster);

/* Of measured and predicted times, by Spearman. */
double hdt_predict_rank_correlation(const struct predict_row *rows, size_t n);

/* The row that is predicted to be the fastest. */
size_t hdt_predict_first(const struct predict_row *rows, size_t n);

#endif /* HDT_TESTS_SUPPORT_PREDICT_SETS_H */
