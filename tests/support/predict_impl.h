/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_SUPPORT_PREDICT_IMPL_H
#define HDT_TESTS_SUPPORT_PREDICT_IMPL_H

/* What predict_data.c reads and predict_set_*.c look up. Absent things end the process: the files
 * are ours. */
#include "src/core/cluster_file.h"
#include "src/core/layer_profile.h"
#include "tests/support/predict_play.h"
#include "tests/support/predict_sets.h"

#define CSV_ROWS_MAX    80
#define CSV_COLUMNS_MAX 16

struct csv {
    char *text; /* that the cells point into */
    char *cell[CSV_ROWS_MAX][CSV_COLUMNS_MAX];
    int n_rows;
};

#define PREDICT_PROFILES_MAX 24
#define PREDICT_CLUSTERS     3

struct predict_data {
    struct hdt_devices catalogue;
    struct hdt_cluster_file clusters[PREDICT_CLUSTERS];
    struct hdt_layer_profile profiles[PREDICT_PROFILES_MAX];
    int n_profiles;
    struct csv devices, models, set_a, set_b;
};

double hdt_predict_number(const char *text);
int hdt_predict_int(const char *text);
/* "5-7-7-7"; the number of them. */
int hdt_predict_layers(const char *text, int *layers);

void hdt_predict_model(const struct predict_data *data, const char *name,
                       struct hdt_stage_cost_model *model, int *n_layers);
/* Bytes a second between two nodes, of n devices of one together. */
double hdt_predict_between(const struct predict_data *data, const char *a, const char *b, int n);
/* Bytes a second of each of n devices of a node, through a ring. */
double hdt_predict_inside(const struct predict_data *data, const char *device, int n);

/* A stage's device and profile, in one place that it can point to. */
#define PREDICT_POINTS_MAX 8
struct predict_stage {
    struct hdt_stage_cost stage;
    struct hdt_stage_cost_device device;
    struct hdt_stage_cost_profile profile;
    struct hdt_stage_cost_point points[PREDICT_POINTS_MAX];
};
void hdt_predict_stage_init(struct predict_stage *s, const struct predict_data *data,
                            const char *model_name, const char *device, int tp);

#endif /* HDT_TESTS_SUPPORT_PREDICT_IMPL_H */
