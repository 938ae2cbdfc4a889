/* SPDX-License-Identifier: Apache-2.0 */
/* A timeline read back, to compare a run with its plan. Foreign bytes: a worker of another machine
 * wrote it, and people edit such files. */
#include "config.h"

#include "src/base/buf.h"
#include "src/base/file.h"
#include "src/core/timeline.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MAX_BYTES ((size_t)256 << 20)

static int op_kind(const char *name)
{
    for (int kind = 0; kind < HDT_OP_KIND_COUNT; kind++) {
        if (name && strcmp(hdt_op_name((enum hdt_op_kind)kind), name) == 0) {
            return kind;
        }
    }
    return -1;
}

static int64_t arg_int(const json_t *args, const char *key)
{
    const json_t *value = json_object_get(args, key);

    return json_is_integer(value) && json_integer_value(value) >= 0 ? json_integer_value(value)
                                                                    : -1;
}

/* false: not an op of this plan. */
static bool op_read(const json_t *event, const struct hdt_plan *plan, struct hdt_timeline_op *op)
{
    const json_t *args = json_object_get(event, "args");
    json_int_t pid = json_integer_value(json_object_get(event, "pid"));
    json_int_t tid = json_integer_value(json_object_get(event, "tid"));
    int kind = op_kind(json_string_value(json_object_get(event, "name")));

    *op = (struct hdt_timeline_op){
        .mb = arg_int(args, "mb"),
        .step = arg_int(args, "step"),
        .eval = json_is_true(json_object_get(args, "eval")),
        .start_us = json_number_value(json_object_get(event, "ts")),
        .dur_us = json_number_value(json_object_get(event, "dur")),
        .arrived_us = json_number_value(json_object_get(args, "arrived")),
        .cpu_us = json_number_value(json_object_get(args, "cpu_us")),
    };
    if (kind < 0 || pid < 0 || pid >= (json_int_t)plan->n_ranks || tid < 0 ||
        tid > (json_int_t)plan->n_stages || (!op->eval && op->mb >= plan->n_micro_batches) ||
        !(op->dur_us >= 0 && op->dur_us < 1e15) || !(fabs(op->start_us) < 1e18)) {
        return false;
    }
    op->kind = (enum hdt_op_kind)kind;
    op->rank = (int)pid;
    op->stage = (int)tid - 1;
    return true;
}

enum hdt_status hdt_timeline_read(const char *path, const struct hdt_plan *plan,
                                  struct hdt_timeline_op **ops, size_t *n_ops,
                                  struct hdt_error *err)
{
    struct hdt_buf text = {0};
    const json_t *event;
    json_error_t json_err;
    json_t *root, *events;
    size_t i, n = 0;

    HDT_TRY(hdt_file_read(path, FILE_MAX_BYTES, &text, err));
    root = json_loads(hdt_buf_str(&text), 0, &json_err);
    hdt_buf_release(&text);
    events = json_object_get(root, "traceEvents");
    if (!json_is_array(events)) {
        hdt_error_set(err, HDT_EINVAL, "cannot read the trace '%s': %s", path,
                      root ? "it has no traceEvents" : json_err.text);
        json_decref(root);
        return HDT_EINVAL;
    }
    *ops = hdt_calloc(json_array_size(events) + 1, sizeof(**ops));
    json_array_foreach(events, i, event)
    {
        const char *ph = json_string_value(json_object_get(event, "ph"));

        n += ph && strcmp(ph, "X") == 0 && op_read(event, plan, &(*ops)[n]);
    }
    json_decref(root);
    if (n == 0) {
        free(*ops);
        return hdt_error_set(err, HDT_EINVAL, "the trace '%s' has no ops of this plan", path);
    }
    *n_ops = n;
    return HDT_OK;
}
