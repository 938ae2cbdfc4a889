/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* What is predicted for layouts that somebody measured. Rows go to standard error; sums to standard
 * output, a name and a number a line.
 *
 *     bench_predict_sets FOLDER [CLUSTER]    CLUSTER: only the rows of one */
#include "tests/support/predict_sets.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static size_t rows_keep(struct predict_row *rows, size_t n, const char *cluster)
{
    size_t n_kept = 0;

    for (size_t i = 0; i < n; i++) {
        if (!cluster || strcmp(rows[i].cluster, cluster) == 0) {
            rows[n_kept++] = rows[i];
        }
    }
    return n_kept;
}

static void row_print(const struct predict_row *r)
{
    fprintf(stderr, "  %-58s predicted %8.3f s, bubbles %.3f", r->name, r->predicted_s,
            r->bubble_share);
    if (!isnan(r->real_s)) {
        fprintf(stderr, "; measured %8.3f s %+6.1f %%", r->real_s,
                100 * (r->predicted_s / r->real_s - 1));
    }
    if (!isnan(r->real_gb)) {
        fprintf(stderr, "; %6.2f of %6.2f GB %+6.1f %%", r->predicted_gb, r->real_gb,
                100 * (r->predicted_gb / r->real_gb - 1));
    }
    fprintf(stderr, "\n");
    printf("sample_s:%s %.6g\nbubble:%s %.4f\n", r->file, r->predicted_s / r->samples, r->file,
           r->bubble_share);
}

int main(int argc, char **argv)
{
    struct predict_row rows[PREDICT_ROWS_MAX];
    size_t n, first;

    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: bench_predict_sets FOLDER [CLUSTER]\n");
        return 2;
    }
    n = rows_keep(rows, hdt_predict_folder(argv[1], &hdt_stage_cost_fitted, rows),
                  argc > 2 ? argv[2] : NULL);
    if (n == 0) {
        fprintf(stderr, "bench_predict_sets: no rows of this cluster\n");
        return 1;
    }
    for (size_t i = 0; i < n; i++) {
        row_print(&rows[i]);
    }
    first = hdt_predict_first(rows, n);
    printf("time_error %.2f\nmemory_error %.2f\nrank_correlation %.3f\nfirst_s %.3f\nrows %zu\n",
           hdt_predict_time_error(rows, n, NULL), hdt_predict_memory_error(rows, n, NULL),
           hdt_predict_rank_correlation(rows, n), rows[first].real_s, n);
    printf("constants %d\n", HDT_STAGE_COST_N_CONSTANTS);
    return 0;
}
