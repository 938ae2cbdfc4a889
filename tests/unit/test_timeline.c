/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/timeline.h"
#include "tests/support/scratch.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <string.h>

/* The file as a viewer reads it: an array of events below "traceEvents". */
Test(timeline, names_processes_threads_and_ops)
{
    struct hdt_plan_rank ranks[] = {{.site = "site-a", .worker = "w0"},
                                    {.site = "site-b", .worker = "w1"}};
    struct hdt_plan_stage stages[] = {{.rank = 0}, {.rank = 1}, {.rank = 0}};
    struct hdt_plan plan = {.ranks = ranks, .n_ranks = 2, .stages = stages, .n_stages = 3};
    struct hdt_timeline_op forward = {
        .kind = HDT_OP_FORWARD, .rank = 0, .stage = 2, .mb = 7, .step = -1, .start_us = 1.5e15};
    struct hdt_timeline_op step = {.kind = HDT_OP_STEP, .stage = -1, .mb = -1, .step = 4};
    const char *path;
    struct hdt_timeline t;
    struct hdt_error err;
    json_t *root, *events;

    hdt_scratch_init();
    path = hdt_scratch_path("trace.json");
    cr_assert_eq(hdt_timeline_open(&t, path, &err), HDT_OK);
    hdt_timeline_add_rank(&t, &plan, 0);
    hdt_timeline_add_op(&t, &forward);
    hdt_timeline_add_op(&t, &step);
    cr_assert_eq(hdt_timeline_close(&t, &err), HDT_OK);
    cr_assert(root = json_load_file(path, 0, NULL));
    events = json_object_get(root, "traceEvents");
    /* Process, thread of the rank, threads of stages 0 and 2, two ops. */
    cr_assert_eq(json_array_size(events), 6);
    cr_expect_str_eq(json_string_value(json_object_get(
                         json_object_get(json_array_get(events, 0), "args"), "name")),
                     "rank 0: site-a/w0");
    cr_expect_str_eq(json_string_value(json_object_get(
                         json_object_get(json_array_get(events, 3), "args"), "name")),
                     "stage 2");
    cr_expect_str_eq(json_string_value(json_object_get(json_array_get(events, 4), "name")),
                     "FORWARD");
    cr_expect_eq(json_integer_value(json_object_get(json_array_get(events, 4), "tid")),
                 json_integer_value(json_object_get(json_array_get(events, 3), "tid")));
    cr_expect_eq(json_integer_value(json_object_get(json_array_get(events, 5), "tid")), 0);
    json_decref(root);
    hdt_scratch_release();
}

Test(timeline, refuses_a_folder_that_is_not_there)
{
    struct hdt_timeline t;
    struct hdt_error err = {0};

    cr_expect_eq(hdt_timeline_open(&t, "/nonexistent/trace.json", &err), HDT_EIO);
    cr_expect(strstr(err.msg, "/nonexistent/trace.json"), "%s", err.msg);
}
