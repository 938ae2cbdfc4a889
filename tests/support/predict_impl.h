/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_SUPPORT_PREDICT_IMPL_H
#define HDT_TESTS_SUPPORT_PREDICT_IMPL_H

/* What predict_data.c reads and predict_set_*.c look up. Absent things end the process: the files
 * are ours. */
#include "tests/support/predict_play.h"
#include "tests/support/predict_sets.h"

#define CSV_ROWS_MAX    80
#define CSV_COLUMNS_MAX 16

struct csv {
    char *text; /* that the cells point into */
    char *cell[CSV_ROWS_MAX][CSV_COLUMNS_MAX];
    int n_rows;
};

struct predict_data {
    struct csv devices, models, profiles, heads, links, set_a, set_b;
};

double hdt_predict_number(const char *text);
int hdt_predict_int(const char *text);
/* "5-7-7-7"; the number of them. */
int hdt_predict_layers(const char *text, int *layers);

void hdt_predict_model(const struct predict_data *data, const char *name,
                       struct hdt_stage_cost_model *model, int *n_layers);
/* Bytes a second from device to device; of n devices together when their rate is given by number.
 */
double hdt_predict_rate(const struct predict_data *data, const char *set, const char *where,
                        const char *a, const char *b, int n);

/* A stage's device and profile, in one place that it can point to. */
#define PREDICT_POINTS_MAX 8
struct predict_stage {
    struct hdt_stage_cost stage;
    struct hdt_stage_cost_device device;
    struct hdt_stage_cost_profile profile;
    struct hdt_stage_cost_point points[PREDICT_POINTS_MAX];
};
void hdt_predict_stage_init(struct predict_stage *s, const struct predict_data *data,
                            const char *set, const char *model_name, const char *device, int tp);

#endif /* HDT_TESTS_SUPPORT_PREDICT_IMPL_H */
