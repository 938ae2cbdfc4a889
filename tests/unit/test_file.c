/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/file.h"
#include "src/base/buf.h"
#include "src/base/near.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

Test(file, written_whole_with_its_mode_and_never_replaced_by_accident)
{
    char dir[] = "/tmp/hdt-file-XXXXXX";
    struct hdt_buf bytes = {0}, read = {0};
    struct hdt_error err = {0};
    struct stat st;
    char *deep, *path;

    cr_assert(mkdtemp(dir));
    deep = hdt_asprintf("%s/a/b", dir);
    path = hdt_asprintf("%s/x", deep);
    cr_expect_eq(hdt_dir_make(deep, 0700, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(hdt_dir_make(deep, 0700, &err), HDT_OK);
    cr_assert_eq(stat(deep, &st), 0);
    cr_expect_eq(st.st_mode & 0777, 0700);

    umask(0);
    hdt_buf_append(&bytes, "a\0b", 3);
    cr_expect_eq(hdt_file_write(path, &bytes, 0640, HDT_FILE_NEW, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(stat(path, &st), 0);
    cr_expect_eq(st.st_mode & 0777, 0640);
    hdt_buf_append(&bytes, "c", 1);
    cr_expect_eq(hdt_file_write(path, &bytes, 0600, HDT_FILE_NEW, &err), HDT_EEXIST);
    cr_expect_eq(hdt_file_read(path, 3, &read, &err), HDT_OK);
    cr_expect_eq(read.len, 3);
    cr_expect_eq(hdt_file_write(path, &bytes, 0600, HDT_FILE_REPLACE, &err), HDT_OK);
    hdt_buf_clear(&read);
    cr_expect_eq(hdt_file_read(path, 3, &read, &err), HDT_EINVAL);
    hdt_buf_clear(&read);
    cr_expect_eq(hdt_file_read(path, 4, &read, &err), HDT_OK);
    cr_expect_arr_eq(read.data, "a\0bc", 4);

    cr_expect_eq(hdt_file_read(deep, 9, &read, &err), HDT_EIO);
    cr_expect_eq(hdt_dir_make(path, 0700, &err), HDT_EEXIST);
    cr_expect_eq(unlink(path), 0);
    cr_expect_eq(hdt_file_read(path, 9, &read, &err), HDT_ENOENT);
    /* Nothing else was left behind, or these folders could not be removed. */
    cr_expect_eq(rmdir(deep), 0);
    deep[strlen(deep) - 2] = '\0';
    cr_expect_eq(rmdir(deep), 0);
    cr_expect_eq(rmdir(dir), 0);
    hdt_buf_release(&bytes);
    hdt_buf_release(&read);
    free(deep);
    free(path);
}

Test(near, finds_typing_errors_and_nothing_else)
{
    static const char *const names[] = {"listen", "streams", "rate", "chunk"};
    static const struct {
        const char *word, *best;
    } cases[] = {
        {"lisen", "listen"}, {"lsiten", "listen"}, {"stream", "streams"},
        {"chunks", "chunk"}, {"rtae", "rate"},     {"banana", NULL},
        {"", NULL},          {"x", NULL},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hdt_near near;

        hdt_near_init(&near, cases[i].word);
        for (size_t j = 0; j < sizeof(names) / sizeof(names[0]); j++) {
            hdt_near_offer(&near, names[j]);
        }
        cr_expect_eq(!near.best, !cases[i].best, "'%s' gave '%s'", cases[i].word,
                     near.best ? near.best : "nothing");
        if (near.best && cases[i].best) {
            cr_expect_str_eq(near.best, cases[i].best);
        }
    }
}
