/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/support/predict_sets.h"
#include "src/base/buf.h"

#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CATALOGUE HDT_TEST_SRCDIR "/etc/devices.yaml"

static void row_fill(const char *path, const struct hdt_stage_cost_constants *constants,
                     struct predict_row *row)
{
    struct hdt_layout_instead instead = {.catalogue = CATALOGUE};
    struct hdt_layout_files files;
    struct hdt_error err = {0};
    const char *base = strrchr(path, '/') + 1;
    struct hdt_layout_prediction p = {0};

    memset(row, 0, sizeof(*row));
    if (hdt_layout_open(path, &instead, &files, &err) != HDT_OK ||
        hdt_layout_predict(&files, constants, &p, &err) != HDT_OK) {
        hdt_error_print(&err, path);
        abort();
    }
    snprintf(row->file, sizeof(row->file), "%.*s", (int)strcspn(base, "."), base);
    snprintf(row->name, sizeof(row->name), "%s", files.layout.name);
    snprintf(row->cluster, sizeof(row->cluster), "%s", files.cluster.name);
    row->real_s = files.layout.measured.step_s;
    row->real_gb = files.layout.measured.memory_gb;
    row->predicted_s = p.step_s;
    row->predicted_gb = p.memory_bytes / 1e9;
    row->bubble_share = p.bubble_share;
    row->samples = (double)files.layout.global_batch;
    hdt_layout_release(&files);
}

size_t hdt_predict_folder(const char *folder, const struct hdt_stage_cost_constants *constants,
                          struct predict_row *rows)
{
    char *pattern = hdt_asprintf("%s/*.yaml", folder);
    glob_t found;
    size_t n;

    if (glob(pattern, 0, NULL, &found) != 0 || found.gl_pathc > PREDICT_ROWS_MAX) {
        fprintf(stderr, "predict: no layouts, or too many: %s\n", pattern);
        abort();
    }
    n = found.gl_pathc;
    for (size_t i = 0; i < n; i++) {
        row_fill(found.gl_pathv[i], constants, &rows[i]);
    }
    globfree(&found);
    free(pattern);
    return n;
}

static double mean_error(const struct predict_row *rows, size_t n, const char *cluster, bool memory)
{
    double sum = 0;
    int n_rows = 0;

    for (size_t i = 0; i < n; i++) {
        double real = memory ? rows[i].real_gb : rows[i].real_s;
        double predicted = memory ? rows[i].predicted_gb : rows[i].predicted_s;

        if ((!cluster || strcmp(rows[i].cluster, cluster) == 0) && !isnan(real)) {
            sum += fabs(predicted / real - 1);
            n_rows++;
        }
    }
    return n_rows > 0 ? 100 * sum / n_rows : NAN;
}

double hdt_predict_time_error(const struct predict_row *rows, size_t n, const char *cluster)
{
    return mean_error(rows, n, cluster, false);
}

double hdt_predict_memory_error(const struct predict_row *rows, size_t n, const char *cluster)
{
    return mean_error(rows, n, cluster, true);
}

/* Rank of each value among all; equal ones share. */
static void ranks_of(const struct predict_row *rows, size_t n, bool of_real, double *ranks)
{
    for (size_t i = 0; i < n; i++) {
        double v = of_real ? rows[i].real_s : rows[i].predicted_s;

        ranks[i] = 0.5;
        for (size_t k = 0; k < n; k++) {
            double w = of_real ? rows[k].real_s : rows[k].predicted_s;

            ranks[i] += w < v ? 1 : w == v ? 0.5 : 0;
        }
    }
}

double hdt_predict_rank_correlation(const struct predict_row *rows, size_t n)
{
    double a[PREDICT_ROWS_MAX], b[PREDICT_ROWS_MAX], mean = ((double)n + 1) / 2;
    double ab = 0, aa = 0, bb = 0;

    ranks_of(rows, n, true, a);
    ranks_of(rows, n, false, b);
    for (size_t i = 0; i < n; i++) {
        ab += (a[i] - mean) * (b[i] - mean);
        aa += (a[i] - mean) * (a[i] - mean);
        bb += (b[i] - mean) * (b[i] - mean);
    }
    return ab / sqrt(aa * bb);
}

size_t hdt_predict_first(const struct predict_row *rows, size_t n)
{
    size_t first = 0;

    for (size_t i = 1; i < n; i++) {
        first = rows[i].predicted_s < rows[first].predicted_s ? i : first;
    }
    return first;
}
