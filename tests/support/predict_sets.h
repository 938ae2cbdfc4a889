/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_SUPPORT_PREDICT_SETS_H
#define HDT_TESTS_SUPPORT_PREDICT_SETS_H

/*
 * Two public sets of measured training runs (tests/data/predict), and what stage_cost makes of each
 * of their rows with one set of constants. Machines are clusters of that folder with devices of the
 * catalogue; layers are its profiles.
 */
#include "src/plan/stage_cost.h"

#include <stddef.h>

/* What is known of machines and models. Ends the process when a file cannot be read. */
struct predict_data;
struct predict_data *hdt_predict_data_new(const char *srcdir);
void hdt_predict_data_free(struct predict_data *data);

struct predict_row {
    char name[80];
    char family[16]; /* device of the first stage, as the goals are given by it */
    double real_s, predicted_s;
    double real_gb, predicted_gb; /* largest of all devices; 0: not given */
    double other_s;               /* of the simulator published with the set */
};
#define PREDICT_ROWS_MAX 64

size_t hdt_predict_set_a(const struct predict_data *data,
                         const struct hdt_stage_cost_constants *constants,
                         struct predict_row *rows);
size_t hdt_predict_set_b(const struct predict_data *data,
                         const struct hdt_stage_cost_constants *constants,
                         struct predict_row *rows);

#endif /* HDT_TESTS_SUPPORT_PREDICT_SETS_H */
