/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/evidence.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/file.h"
#include "src/base/log.h"
#include "src/base/recorder.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char dir[] = "/tmp/hdt-evidence-XXXXXX";

static void put(const char *name, const char *bytes, size_t len)
{
    char *path = hdt_asprintf("%s/%s", dir, name), *slash = strrchr(path, '/');
    struct hdt_buf buf = {0};
    struct hdt_error err = {0};

    *slash = '\0';
    cr_assert_eq(hdt_dir_make(path, 0755, &err), HDT_OK);
    *slash = '/';
    hdt_buf_append(&buf, bytes, len);
    cr_assert_eq(hdt_file_write(path, &buf, 0600, HDT_FILE_REPLACE, &err), HDT_OK);
    hdt_buf_release(&buf);
    free(path);
}

static void setup(void)
{
    cr_assert(mkdtemp(dir));
    hdt_log_init("test", HDT_LOG_ERROR);
}

static void teardown(void)
{
    char *command = hdt_asprintf("rm -rf '%s'", dir);

    cr_expect_eq(system(command), 0);
    free(command);
}

TestSuite(evidence, .init = setup, .fini = teardown);

static enum hdt_status piece(const char *name, json_int_t job, json_int_t offset, json_t **body)
{
    json_t *request = json_pack("{s:s, s:I, s:I}", "name", name, "job", job, "offset", offset);
    struct hdt_error err = {0};
    enum hdt_status status = hdt_evidence_read(dir, request, body, &err);

    json_decref(request);
    return status;
}

/* All pieces, put together. */
static void read_all(const char *name, json_int_t from, struct hdt_buf *out)
{
    bool end = false;

    for (json_int_t offset = from; !end;) {
        json_t *body;

        cr_assert_eq(piece(name, 3, offset, &body), HDT_OK);
        hdt_buf_append(out, json_string_value(json_object_get(body, "text")),
                       json_string_length(json_object_get(body, "text")));
        end = json_is_true(json_object_get(body, "end"));
        cr_assert(end || json_integer_value(json_object_get(body, "next")) > offset);
        offset = json_integer_value(json_object_get(body, "next"));
        json_decref(body);
    }
}

Test(evidence, nothing_else_is_given_out)
{
    static const char *const names[] = {"hdt.db",
                                        "../x",
                                        "key.pem",
                                        "jobs/3-a/metrics.jsonl",
                                        "../3-a/metrics.jsonl",
                                        "trace-rank0.json/../../../key.pem",
                                        "trace-rank.json",
                                        "trace-rank-1.json",
                                        "trace-rank0.jsonx",
                                        "flight-other-20260101T000000.000Z-x.jsonl",
                                        "flight-w-20260101T000000.000Z-/../../key.pem.jsonl",
                                        ""};
    struct hdt_error err = {0};
    json_t *body;

    cr_assert_eq(hdt_recorder_open(dir, "w", &err), HDT_OK);
    put("hdt.db", "x", 1);
    put("key.pem", "secret", 6);
    put("jobs/3-a/metrics.jsonl", "{}\n", 3);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        cr_expect_eq(piece(names[i], 3, 0, &body), HDT_ENOENT, "'%s' was given out", names[i]);
    }
    cr_expect_eq(piece("metrics.jsonl", 4, 0, &body), HDT_ENOENT, "of a job that is not there");
    cr_expect_eq(piece("metrics.jsonl", 3, -1, &body), HDT_ENOENT);
    cr_assert_eq(piece("metrics.jsonl", 3, 0, &body), HDT_OK);
    json_decref(body);
    hdt_recorder_close();
}

Test(evidence, a_link_is_not_followed)
{
    char *link = hdt_asprintf("%s/jobs/3-a/metrics.jsonl", dir);
    json_t *body, *files;

    put("jobs/3-a/other", "x", 1);
    cr_assert_eq(symlink("/etc/passwd", link), 0);
    cr_expect_eq(piece("metrics.jsonl", 3, 0, &body), HDT_ENOENT);
    files = hdt_evidence_files(dir, 3, true);
    cr_expect_eq(json_array_size(files), 0);
    json_decref(files);
    free(link);
}

Test(evidence, a_long_file_comes_in_pieces_that_are_lines)
{
    struct hdt_buf all = {0}, got = {0};
    json_t *files, *body;
    const char *text;

    for (int i = 0; i < 150000; i++) {
        hdt_buf_appendf(&all, "{\"step\": %d, \"name\": \"\xc3\xa9t\xc3\xa9\"}\n", i);
    }
    put("jobs/3-a/metrics.jsonl", all.data, all.len);
    cr_assert_eq(piece("metrics.jsonl", 3, 0, &body), HDT_OK);
    text = json_string_value(json_object_get(body, "text"));
    cr_expect_eq(text[strlen(text) - 1], '\n');
    cr_expect_leq(strlen(text), HDT_EVIDENCE_PIECE);
    json_decref(body);
    read_all("metrics.jsonl", 0, &got);
    cr_expect(got.len == all.len && memcmp(got.data, all.data, all.len) == 0);

    files = hdt_evidence_files(dir, 3, false);
    cr_assert_eq(json_array_size(files), 1);
    cr_expect_eq(json_integer_value(json_object_get(json_array_get(files, 0), "from")),
                 (json_int_t)(all.len - HDT_EVIDENCE_TAIL), "only the end of it is wanted");
    json_decref(files);
    hdt_buf_release(&got);
    hdt_buf_release(&all);
}

/* One line longer than a piece, of characters of three bytes, so that a cut falls into one. */
Test(evidence, a_line_longer_than_a_piece_is_cut_between_characters)
{
    struct hdt_buf all = {0}, got = {0};

    for (int i = 0; i < 600000; i++) {
        hdt_buf_append_str(&all, "\xe2\x82\xac");
    }
    put("jobs/3-a/trace-rank0.json", all.data, all.len);
    read_all("trace-rank0.json", 0, &got);
    cr_expect_eq(got.len, all.len);
    cr_expect(got.len == all.len && memcmp(got.data, all.data, all.len) == 0);
    hdt_buf_release(&got);
    hdt_buf_release(&all);
}

Test(evidence, bytes_that_are_no_text_do_not_stop_it)
{
    struct hdt_buf got = {0};

    put("jobs/3-a/trace-rank1.json",
        "a\xff\xfe"
        "b\n",
        5);
    read_all("trace-rank1.json", 0, &got);
    cr_expect_str_eq(hdt_buf_str(&got), "a??b\n");
    hdt_buf_release(&got);
}

Test(evidence, the_flight_recorder_is_among_the_files)
{
    const int64_t until_us = hdt_clock_now_us() + 20 * HDT_US_PER_S;
    struct hdt_error err = {0};
    struct hdt_buf got = {0};
    json_t *files;
    const char *name;

    cr_assert_eq(hdt_recorder_open(dir, "w", &err), HDT_OK);
    HDT_RECORD(HDT_REC_STATE, .n = {3}, .text = {"running"});
    hdt_recorder_dump("bundle");
    while (hdt_recorder_n_dumps() == 0 && hdt_clock_now_us() < until_us) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    files = hdt_evidence_files(dir, 0, false);
    cr_assert_eq(json_array_size(files), 1);
    name = json_string_value(json_object_get(json_array_get(files, 0), "name"));
    read_all(name, 0, &got);
    cr_expect(strstr(hdt_buf_str(&got), "\"state\":\"running\""));
    json_decref(files);
    hdt_buf_release(&got);
    hdt_recorder_close();
}
