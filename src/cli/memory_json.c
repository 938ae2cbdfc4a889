/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/memory_json.h"
#include "src/base/buf.h"

#include <stdlib.h>

json_t **hdt_memory_json(const struct hdt_sim_result *result)
{
    size_t n = result->n_ranks;
    json_t **series = hdt_calloc(n, sizeof(series[0]));
    int64_t *last = hdt_calloc(n, sizeof(last[0]));

    for (size_t i = 0; i < n; i++) {
        series[i] = json_array();
    }
    for (size_t i = 0; i < result->n_spans; i++) {
        const struct hdt_sim_span *span = &result->spans[i];

        if (span->mem_begin != last[span->rank]) {
            json_array_append_new(series[span->rank],
                                  json_pack("[f, I]", span->start_s, (json_int_t)span->mem_begin));
        }
        if (span->mem_end != span->mem_begin) {
            json_array_append_new(series[span->rank],
                                  json_pack("[f, I]", span->end_s, (json_int_t)span->mem_end));
        }
        last[span->rank] = span->mem_end;
    }
    free(last);
    return series;
}
