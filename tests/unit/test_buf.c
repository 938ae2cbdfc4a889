/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/buf.h"

#include <criterion/criterion.h>

Test(buf, grows_and_stays_terminated)
{
    struct hdt_buf buf = {0};

    for (int i = 0; i < 1000; i++) {
        hdt_buf_appendf(&buf, "%d,", i);
    }
    cr_expect_eq(buf.len, 10 * 2 + 90 * 3 + 900 * 4);
    cr_expect_eq(buf.data[buf.len], '\0');
    hdt_buf_consume(&buf, 4);
    cr_expect_eq(strncmp(hdt_buf_str(&buf), "2,3,", 4), 0);
    hdt_buf_release(&buf);
    cr_expect_str_eq(hdt_buf_str(&buf), "");
}

Test(buf, detach_hands_over_and_empties)
{
    struct hdt_buf buf = {0};
    char *text;

    hdt_buf_append_str(&buf, "abc");
    text = hdt_buf_detach(&buf);
    cr_expect_str_eq(text, "abc");
    cr_expect_eq(buf.len, 0);
    free(text);
    text = hdt_buf_detach(&buf);
    cr_expect_str_eq(text, "");
    free(text);
}
