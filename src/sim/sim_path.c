/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/buf.h"
#include "src/sim/sim_path.h"

#include <stdlib.h>
#include <string.h>

static int64_t last_span(const struct hdt_sim_result *result)
{
    int64_t last = -1;

    for (size_t i = 0; i < result->n_spans; i++) {
        if (last < 0 || result->spans[i].end_s > result->spans[last].end_s) {
            last = (int64_t)i;
        }
    }
    return last;
}

/* The time between the end of what was waited for and the begin of this one. */
static void wait_add(struct hdt_sim_path *path, const struct hdt_sim_span *span,
                     const struct hdt_sim_span *cause)
{
    double gap_s = span->start_s - (cause ? cause->end_s : 0), queue_s = 0;

    if (gap_s <= 0) {
        return;
    }
    if (cause && cause->kind == HDT_SIM_SEND && span->kind == HDT_SIM_RECV &&
        cause->rank != span->rank) {
        queue_s = cause->left_s - cause->end_s;
        queue_s = queue_s < 0 ? 0 : queue_s > gap_s ? gap_s : queue_s;
        path->use_s[HDT_SIM_PATH_QUEUE] += queue_s;
        path->use_s[HDT_SIM_PATH_FLIGHT] += gap_s - queue_s;
        return;
    }
    path->use_s[HDT_SIM_PATH_WAIT] += gap_s;
}

void hdt_sim_path_find(const struct hdt_sim_result *result, struct hdt_sim_path *path)
{
    size_t cap = 0;
    int64_t i = last_span(result);

    memset(path, 0, sizeof(*path));
    while (i >= 0) {
        const struct hdt_sim_span *span = &result->spans[i];
        const struct hdt_sim_span *cause = span->cause >= 0 ? &result->spans[span->cause] : NULL;
        enum hdt_sim_path_use use =
            span->kind == HDT_SIM_COMPUTE ? HDT_SIM_PATH_COMPUTE : HDT_SIM_PATH_COMM;

        if (path->n_spans == cap) {
            cap = cap ? 2 * cap : 256;
            path->spans = hdt_realloc(path->spans, cap * sizeof(path->spans[0]));
        }
        path->spans[path->n_spans++] = i;
        path->use_s[use] += span->end_s - span->start_s;
        wait_add(path, span, cause);
        i = span->cause;
    }
    for (size_t a = 0, b = path->n_spans; a + 1 < b; a++) {
        int64_t swap = path->spans[a];

        path->spans[a] = path->spans[--b];
        path->spans[b] = swap;
    }
}

void hdt_sim_path_release(struct hdt_sim_path *path)
{
    free(path->spans);
    memset(path, 0, sizeof(*path));
}

const char *hdt_sim_path_use_name(enum hdt_sim_path_use use)
{
    static const char *const names[HDT_SIM_PATH_USE_COUNT] = {"compute", "comm", "queue", "flight",
                                                              "wait"};

    return names[use];
}
