/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/logs_merge.h"

#include <criterion/criterion.h>
#include <string.h>

static const char *merged(struct hdt_logs_merge *merge)
{
    static struct hdt_buf out;

    hdt_buf_clear(&out);
    hdt_logs_merge_print(merge, &out);
    hdt_logs_merge_release(merge);
    return hdt_buf_str(&out);
}

Test(logs_merge, lines_of_two_programs_stand_by_time)
{
    struct hdt_logs_merge merge = {0};

    hdt_logs_merge_add(&merge, "a",
                       "2026-01-31T23:59:59.100Z hdt-gateway a info: one\n"
                       "2026-02-01T00:00:00.300Z hdt-gateway a info: three\n");
    hdt_logs_merge_add(&merge, "a/w0",
                       "2026-01-31T23:59:59.900Z hdt-worker w0 rank 0 info: two: yes\nno stamp\n");
    cr_expect_str_eq(merged(&merge),
                     "2026-01-31T23:59:59.100Z a              hdt-gateway a info: one\n"
                     "2026-01-31T23:59:59.900Z a/w0           hdt-worker w0 rank 0 info: two: yes\n"
                     "2026-02-01T00:00:00.300Z a              hdt-gateway a info: three\n");
}

Test(logs_merge, what_all_ranks_say_is_one_line)
{
    struct hdt_logs_merge merge = {0};
    const char *text;

    hdt_logs_merge_add(&merge, "a/w0",
                       "2026-01-01T00:00:01.000Z hdt-worker w0 rank 0 warn: rank 0 waits 3 s\n"
                       "2026-01-01T00:00:05.000Z hdt-worker w0 rank 0 warn: rank 0 waits 7 s\n"
                       "2026-01-01T00:02:05.000Z hdt-worker w0 rank 0 warn: rank 0 waits 9 s\n");
    hdt_logs_merge_add(&merge, "b/w0",
                       "2026-01-01T00:00:02.000Z hdt-worker w0 rank 1 warn: rank 1 waits 4 s\n");
    hdt_logs_merge_add(&merge, "b/w1",
                       "2026-01-01T00:00:03.000Z hdt-worker w1 rank 2 warn: rank 2 waits 5 s\n"
                       "2026-01-01T00:00:03.000Z hdt-worker w1 rank 2 warn: job 7 failed\n"
                       "2026-01-01T00:00:04.000Z hdt-worker w1 rank 2 warn: job 8 failed\n");
    text = merged(&merge);
    cr_expect(strstr(text,
                     "00:00:01.000Z a/w0           hdt-worker w0 rank 0 warn: rank 0 waits 3 s "
                     "(also b/w0, b/w1, 3 times within 60 s)\n"),
              "%s", text);
    cr_expect(strstr(text, "00:02:05.000Z"), "two minutes later it is said again");
    cr_expect(strstr(text, "job 7 failed\n") && strstr(text, "job 8 failed\n"), "%s", text);
}
