/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/ckpt.h"
#include "src/core/ckpt_files.h"

#include "src/core/ckpt_folder.h"
#include "src/base/buf.h"
#include "src/base/file.h"
#include "src/base/log.h"
#include "tests/support/ckpt_case.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static char dir[64];
static void setup(void)
{
    snprintf(dir, sizeof(dir), "/tmp/hdt-ckpt-XXXXXX");
    cr_assert(mkdtemp(dir));
}

static void teardown(void)
{
    hdt_ckpt_case_remove(dir);
}

TestSuite(ckpt, .init = setup, .fini = teardown);

/* The same step of another job. */
static struct hdt_ckpt_meta meta_of_other(int64_t step)
{
    struct hdt_ckpt_meta meta = hdt_ckpt_case_meta(step);

    meta.owner.job = 78;
    meta.owner.number = 6;
    snprintf(meta.owner.name, sizeof(meta.owner.name), "theirs");
    return meta;
}

static void save(int64_t step, int64_t keep)
{
    struct hdt_ckpt_meta meta = hdt_ckpt_case_meta(step);
    struct hdt_error err = {0};

    cr_assert_eq(hdt_ckpt_case_save(dir, &meta, keep, 2, &err), HDT_OK, "%s", err.msg);
}

/* Path of a file of a step; valid until the next call. */
static const char *file_of(int64_t step, const char *name)
{
    static char path[HDT_CKPT_PATH_CAP];

    snprintf(path, sizeof(path), "%s/step-%08d%s%s", dir, (int)step, name[0] ? "/" : "", name);
    return path;
}

static bool there(const char *name)
{
    char path[HDT_CKPT_PATH_CAP + 64];
    struct stat st;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return stat(path, &st) == 0;
}

static void expect_loads(const char *path, int64_t step)
{
    struct hdt_error err = {0};

    cr_expect_eq(hdt_ckpt_case_load(path, &err), step, "%s", err.msg);
}

Test(ckpt, what_was_saved_loads)
{

    save(7, 2);
    cr_expect(there("step-00000007/model.safetensors"));
    cr_expect(there("step-00000007/optimizer.safetensors"));
    cr_expect(there("step-00000007/config.json"));
    cr_expect(there("step-00000007/hdt.json"));
    cr_expect_eq(hdt_ckpt_case_n_named(dir, "step-"), 1);
    cr_expect(there("latest"));
    expect_loads(dir, 7);
    expect_loads(file_of(7, ""), 7);
}

/* Feedback that came in part, twice, out of order or damaged makes no checkpoint. */
Test(ckpt, feedback_must_come_whole)
{
    struct hdt_ckpt_writer_conf conf = {
        .dir = dir, .model = &hdt_ckpt_case_model, .meta = hdt_ckpt_case_meta(2)};
    struct hdt_ckpt_writer *writer;
    struct hdt_error err = {0};

    cr_assert_eq(hdt_ckpt_writer_open(&conf, &writer, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(hdt_ckpt_writer_seal_feedback(writer, "activation-1", 0, &err), HDT_EPROTO);
    cr_assert_eq(hdt_ckpt_writer_feedback(writer, "activation-1", 0, "abc", 3, &err), HDT_OK);
    cr_expect_eq(hdt_ckpt_writer_feedback(writer, "activation-1", 4, "e", 1, &err), HDT_EPROTO);
    cr_expect(strstr(err.msg, "at 4 came where 3 were next"), "%s", err.msg);
    cr_expect_eq(hdt_ckpt_writer_seal_feedback(writer, "activation-1", XXH3_64bits("abd", 3), &err),
                 HDT_ECRC);
    cr_expect_eq(hdt_ckpt_writer_feedback(writer, "activation-1", 3, "d", 1, &err), HDT_EPROTO);
    hdt_ckpt_writer_abort(writer);
    cr_expect_eq(hdt_ckpt_case_n_named(dir, "step-"), 0);
}

/* Replicas have a file for each unit of each: many more than a process may have open. */
Test(ckpt, feedback_may_be_in_many_files)
{
    struct hdt_ckpt_writer_conf conf = {
        .dir = dir, .model = &hdt_ckpt_case_model, .meta = hdt_ckpt_case_meta(2)};
    struct hdt_ckpt_writer *writer;
    struct hdt_error err = {0};
    struct rlimit limit;
    char name[32];

    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 64;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    cr_assert_eq(hdt_ckpt_writer_open(&conf, &writer, &err), HDT_OK, "%s", err.msg);
    for (int i = 0; i < 200; i++) {
        snprintf(name, sizeof(name), "replica1-moments-%d", i);
        cr_assert_eq(hdt_ckpt_writer_feedback(writer, name, 0, &i, sizeof(i), &err), HDT_OK, "%s",
                     err.msg);
        cr_assert_eq(hdt_ckpt_writer_seal_feedback(writer, name, XXH3_64bits(&i, sizeof(i)), &err),
                     HDT_OK, "%s", err.msg);
    }
    cr_expect_eq(hdt_ckpt_writer_feedback(writer, "replica1-moments-7", 4, "e", 1, &err),
                 HDT_EPROTO);
    hdt_ckpt_writer_abort(writer);
}

/* What files beside the tensors will take is looked for, too. */
Test(ckpt, room_is_for_all_files)
{
    struct hdt_ckpt_writer_conf conf = {.dir = dir,
                                        .model = &hdt_ckpt_case_model,
                                        .meta = hdt_ckpt_case_meta(2),
                                        .beside_bytes = UINT64_C(1) << 60};
    struct hdt_ckpt_writer *writer;
    struct hdt_error err = {0};

    cr_expect_eq(hdt_ckpt_check_room("/tmp", &hdt_ckpt_case_model, 0, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(hdt_ckpt_writer_open(&conf, &writer, &err), HDT_EIO);
    cr_expect(strstr(err.msg, " 1152921504"), "2^60 bytes in MB: %s", err.msg);
    cr_expect_eq(hdt_ckpt_case_n_named(dir, "step-"), 0);
}

Test(ckpt, names_of_feedback_lead_nowhere_else)
{
    cr_expect(hdt_ckpt_is_feedback("feedback-activation_grad-12-in.bin"));
    cr_expect_not(hdt_ckpt_is_feedback("feedback-.bin"));
    cr_expect_not(hdt_ckpt_is_feedback("feedback-a/../b.bin"));
    cr_expect_not(hdt_ckpt_is_feedback("feedback-A.bin"));
    cr_expect_not(hdt_ckpt_is_feedback("feedback-a.bin.bin"));
    cr_expect_not(hdt_ckpt_is_feedback("model.safetensors"));
    cr_expect_not(hdt_ckpt_is_feedback("feedback-"
                                       "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                                       "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.bin"));
}

/* A limit on file sizes fails writes as a full disk does, with another errno. */
Test(ckpt, a_full_disk_is_told_and_leaves_the_last_one)
{
    struct rlimit limit, low;
    struct hdt_ckpt_writer_conf conf = {
        .dir = dir, .model = &hdt_ckpt_case_model, .meta = hdt_ckpt_case_meta(2)};
    struct hdt_ckpt_writer *writer;
    struct hdt_error err = {0};
    enum hdt_status status;
    float values[256] = {0};

    save(1, 1);
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    low = limit;
    low.rlim_cur = 6000; /* the header fits, all tensors do not */
    cr_assert_eq(hdt_ckpt_writer_open(&conf, &writer, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &low), 0);
    status = HDT_OK;
    for (int64_t i = 0; i < hdt_ckpt_n_tensors(&hdt_ckpt_case_model) && status == HDT_OK; i++) {
        status = hdt_ckpt_writer_append(writer, i, HDT_CKPT_WEIGHT, values,
                                        hdt_ckpt_tensor_bytes(&hdt_ckpt_case_model, i), &err);
    }
    setrlimit(RLIMIT_FSIZE, &limit);
    cr_expect_eq(status, HDT_EIO);
    cr_expect(strstr(err.msg, "model.safetensors") && strstr(err.msg, "too large"), "%s", err.msg);
    hdt_ckpt_writer_abort(writer);
    cr_expect_eq(hdt_ckpt_case_n_named(dir, "step-"), 1);
    expect_loads(dir, 1);
}

Test(ckpt, the_newest_are_kept)
{

    for (int64_t step = 1; step <= 4; step++) {
        save(step, 2);
    }
    cr_expect(!there("step-00000001"));
    cr_expect(!there("step-00000002"));
    cr_expect(there("step-00000003"));
    cr_expect(there("step-00000004"));
    expect_loads(dir, 4);
    save(4, 2); /* again the same step: replaced, none lost */
    expect_loads(dir, 4);
    cr_expect(there("step-00000003"));
}

Test(ckpt, what_another_run_left_is_neither_taken_nor_touched)
{
    struct hdt_ckpt_meta other = meta_of_other(250);
    struct hdt_error err = {0};

    cr_assert_eq(hdt_ckpt_case_save(dir, &other, 2, 2, &err), HDT_OK, "%s", err.msg);
    other.step = 300;
    cr_assert_eq(hdt_ckpt_case_save(dir, &other, 2, 2, &err), HDT_OK, "%s", err.msg);
    for (int64_t step = 50; step <= 150; step += 50) {
        save(step, 2);
        expect_loads(dir, step);
    }
    cr_expect(!there("step-00000050"));
    cr_expect(there("step-00000100"));
    cr_expect(there("step-00000250"));
    save(400, 1);
    cr_expect(there("step-00000250") && there("step-00000300"), "pruned what is another job's");
    cr_expect(!there("step-00000150"));
}

Test(ckpt, a_checkpoint_of_another_job_is_not_overwritten)
{
    struct hdt_ckpt_meta ours = hdt_ckpt_case_meta(7), theirs = meta_of_other(7);
    struct hdt_error err = {0};

    save(7, 2);
    cr_expect_eq(hdt_ckpt_case_save(dir, &theirs, 2, 2, &err), HDT_EEXIST);
    cr_expect(strstr(err.msg, "job 5 ('mine'") && strstr(err.msg, "job 6 ('theirs'"), "%s",
              err.msg);
    cr_expect(strstr(err.hint, "checkpoint.dir"));
    cr_expect_eq(hdt_ckpt_case_n_named(dir, "step-"), 1);
    expect_loads(dir, 7);
    cr_expect_eq(hdt_ckpt_check_owner(dir, &theirs.owner, 6, &err), HDT_EEXIST);
    cr_expect_eq(hdt_ckpt_check_owner(dir, &theirs.owner, 7, &err), HDT_OK);
    cr_expect_eq(hdt_ckpt_check_owner(dir, &ours.owner, 0, &err), HDT_OK);

    ours.owner.epoch = 2; /* the same job, after a restart */
    cr_expect_eq(hdt_ckpt_case_save(dir, &ours, 2, 2, &err), HDT_OK, "%s", err.msg);
    expect_loads(dir, 7);
}

Test(ckpt, what_cannot_be_removed_does_not_fail_the_next_one)
{
    save(1, 1);
    fclose(fopen(file_of(1, "my-notes.txt"), "w"));
    save(2, 1);
    expect_loads(dir, 2);
    cr_expect(there("step-00000001/my-notes.txt"));
}

Test(ckpt, a_folder_with_other_files_is_not_removed)
{
    struct hdt_ckpt_meta meta;
    save(1, 1);
    fclose(fopen(file_of(1, "my-notes.txt"), "w"));
    meta = hdt_ckpt_case_meta(1);
    cr_expect_eq(hdt_ckpt_prune(dir, &meta, 0, NULL), HDT_EEXIST);
    cr_expect(there("step-00000001/my-notes.txt"));
    expect_loads(dir, 1);
}

static void expect_refused(const char *word)
{
    struct hdt_ckpt_reader *reader;
    struct hdt_error err = {0};

    cr_expect_eq(hdt_ckpt_reader_open(dir, &(struct hdt_ckpt_open){.model = &hdt_ckpt_case_model},
                                      &reader, &err),
                 HDT_EINVAL);
    cr_expect(strstr(err.msg, word), "'%s' is not in '%s'", word, err.msg);
    cr_expect(err.hint[0]);
}

Test(ckpt, truncated_and_altered_files_are_refused)
{
    static const char *const names[] = {HDT_CKPT_MODEL, HDT_CKPT_OPTIMIZER, HDT_CKPT_CONFIG,
                                        HDT_CKPT_CASE_FEEDBACK};
    const char *path;
    FILE *file;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        save(3, 1);
        path = file_of(3, names[i]);
        file = fopen(path, "r+");
        fseek(file, -9, SEEK_END);
        fputc(0x7f, file);
        fclose(file);
        expect_refused("altered");
        cr_assert_eq(truncate(path, 40), 0);
        expect_refused("truncated");
        unlink(path);
        expect_refused("missing");
    }
    save(3, 1);
    cr_assert_eq(truncate(file_of(3, "hdt.json"), 20), 0);
    expect_refused("hdt.json");
}

Test(ckpt, another_model_is_refused_by_what_differs)
{
    struct hdt_model_config other = hdt_ckpt_case_model;
    struct hdt_ckpt_reader *reader;
    struct hdt_error err = {0};

    save(3, 1);
    other.NKV = 2;
    cr_expect_eq(hdt_ckpt_reader_open(dir, &(struct hdt_ckpt_open){.model = &other}, &reader, &err),
                 HDT_EINVAL);
    cr_expect(strstr(err.msg, "num_key_value_heads"), "%s", err.msg);
}

Test(ckpt, nothing_is_left_of_an_incomplete_one)
{
    struct hdt_ckpt_writer_conf conf = {
        .dir = dir, .model = &hdt_ckpt_case_model, .meta = hdt_ckpt_case_meta(5)};
    struct hdt_ckpt_writer *writer;
    struct hdt_ckpt_result result;
    struct hdt_error err = {0};
    float x[2] = {1, 2};

    save(4, 2);
    cr_assert_eq(hdt_ckpt_writer_open(&conf, &writer, &err), HDT_OK);
    cr_assert_eq(hdt_ckpt_writer_append(writer, 0, HDT_CKPT_WEIGHT, x, sizeof(x), &err), HDT_OK);
    cr_expect_neq(hdt_ckpt_writer_finish(writer, &result, &err), HDT_OK);
    cr_expect(!there("step-00000005"));
    cr_expect_eq(hdt_ckpt_case_n_named(dir, "step-"), 1);
    expect_loads(dir, 4);
}

Test(ckpt, the_highest_step_serves_without_the_link)
{
    char path[HDT_CKPT_PATH_CAP + 64];

    save(4, 0);
    save(12, 0);
    snprintf(path, sizeof(path), "%s/latest", dir);
    cr_assert_eq(unlink(path), 0);
    expect_loads(dir, 12);
}

Test(ckpt, step_names_have_one_form)
{
    cr_expect_eq(hdt_ckpt_step_of_name("step-00000012"), 12);
    cr_expect_eq(hdt_ckpt_step_of_name("step-123456789"), 123456789);
    cr_expect_eq(hdt_ckpt_step_of_name("step-12"), -1);
    cr_expect_eq(hdt_ckpt_step_of_name("step-00000012.tmp"), -1);
    cr_expect_eq(hdt_ckpt_step_of_name("step--0000001"), -1);
    cr_expect_eq(hdt_ckpt_step_of_name("latest"), -1);
}

/* ---- what is wrong is found, by name ---- */

static void file_read(const char *path, struct hdt_buf *bytes)
{
    struct hdt_error err = {0};

    cr_assert_eq(hdt_file_read(path, 1 << 20, bytes, &err), HDT_OK, "%s", err.msg);
}

static void file_write(const char *path, const char *bytes, size_t len)
{
    FILE *file = fopen(path, "wb");

    cr_assert(file && fwrite(bytes, 1, len, file) == len);
    fclose(file);
}

/* Another byte with the same meaning: hdt.json is read by its values. */
static bool means_the_same(const char *name, const struct hdt_buf *good, const struct hdt_buf *bad)
{
    json_t *a = json_loadb(good->data, good->len, 0, NULL);
    json_t *b = json_loadb(bad->data, bad->len, JSON_REJECT_DUPLICATES, NULL);
    bool same = strcmp(name, HDT_CKPT_MANIFEST) == 0 && b && json_equal(a, b);

    json_decref(a);
    json_decref(b);
    return same;
}

#define FLIPS_MAX 250

/* Flip one bit of a byte, of each in turn when there are few, else of a choice of them; what is
 * read must be refused, or mean the same. */
static void flip_all(const char *name, uint32_t seed)
{
    char path[HDT_CKPT_PATH_CAP];
    struct hdt_buf good = {0}, bad = {0};
    struct hdt_error err;
    int64_t loaded;

    snprintf(path, sizeof(path), "%s", file_of(3, name));
    file_read(path, &good);
    for (size_t n = 0, i; n < good.len && n < FLIPS_MAX; n++) {
        seed = seed * 1664525u + 1013904223u;
        i = good.len <= FLIPS_MAX ? n : (size_t)((uint64_t)seed * good.len >> 32);
        seed = seed * 1664525u + 1013904223u;
        hdt_buf_clear(&bad);
        hdt_buf_append(&bad, good.data, good.len);
        bad.data[i] = (char)(bad.data[i] ^ 1 << (seed >> 29));
        file_write(path, bad.data, bad.len);
        memset(&err, 0, sizeof(err));
        loaded = hdt_ckpt_case_load(dir, &err);
        cr_expect(loaded < 0 || means_the_same(name, &good, &bad), "%s: byte %zu, bit %u", name, i,
                  seed >> 29);
        if (loaded < 0) {
            cr_expect(strstr(err.msg, name), "%s: byte %zu: %s", name, i, err.msg);
            cr_expect(strstr(err.hint, "step-00000002"), "%s", err.hint);
        }
    }
    file_write(path, good.data, good.len);
    hdt_buf_release(&good);
    hdt_buf_release(&bad);
}

Test(ckpt, every_byte_that_changes_is_found, .timeout = 300)
{
    uint32_t seed = (uint32_t)time(NULL);

    cr_log_info("seed %u", seed);
    save(2, 0);
    save(3, 0);
    flip_all(HDT_CKPT_MANIFEST, seed);
    flip_all(HDT_CKPT_CONFIG, seed);
    flip_all(HDT_CKPT_MODEL, seed);
    flip_all(HDT_CKPT_OPTIMIZER, seed);
    expect_loads(dir, 3);
}

Test(ckpt, a_damaged_tensor_is_named_with_its_bytes_and_digests)
{
    struct hdt_ckpt_reader *reader;
    struct hdt_buf bytes = {0};
    struct hdt_error err = {0};
    unsigned long long begin, end, got, want;
    const char *at;

    save(3, 0);
    file_read(file_of(3, HDT_CKPT_MODEL), &bytes);
    bytes.data[bytes.len - 1] ^= 1; /* the last value of the last tensor */
    file_write(file_of(3, HDT_CKPT_MODEL), bytes.data, bytes.len);
    cr_expect_eq(hdt_ckpt_reader_open(dir, &(struct hdt_ckpt_open){0}, &reader, &err), HDT_EINVAL);
    at = strstr(err.msg, "tensor 'lm_head.weight', bytes ");
    cr_assert(at && strstr(err.msg, "step-00000003") && strstr(err.msg, HDT_CKPT_MODEL), "%s",
              err.msg);
    cr_assert_eq(sscanf(at,
                        "tensor 'lm_head.weight', bytes %llu to %llu, has the digest %llx, the "
                        "manifest says %llx",
                        &begin, &end, &got, &want),
                 4, "%s", err.msg);
    cr_expect_eq(end, bytes.len);
    cr_expect_eq(end - begin, 4 * 11 * 8, "11 words of 8 values");
    cr_expect_eq(got, XXH3_64bits(bytes.data + begin, end - begin));
    cr_expect_neq(got, want);
    hdt_buf_release(&bytes);
}

/* ---- which one is taken ---- */

Test(ckpt, a_damaged_latest_is_not_passed_over_in_silence)
{
    struct hdt_error err = {0};

    save(2, 0);
    save(3, 0);
    cr_assert_eq(unlink(file_of(3, HDT_CKPT_OPTIMIZER)), 0);
    cr_expect_eq(hdt_ckpt_case_load(dir, &err), -1);
    cr_expect(strstr(err.msg, "step-00000003") && strstr(err.msg, "is missing"), "%s", err.msg);
    cr_expect(strstr(err.hint, file_of(2, "")), "%s", err.hint);
    hdt_ckpt_case_remove(file_of(3, "")); /* the link names nothing now */
    cr_expect_eq(hdt_ckpt_case_load(dir, &err), -1);
    cr_expect(strstr(err.msg, "step-00000003"), "%s", err.msg);
    cr_expect(strstr(err.hint, file_of(2, "")), "%s", err.hint);
    expect_loads(file_of(2, ""), 2);
}

static int64_t newest(int64_t max_step, const struct hdt_ckpt_owner *owner, bool every_byte)
{
    struct hdt_ckpt_query query = {.max_step = max_step, .owner = owner, .every_byte = every_byte};
    struct hdt_ckpt_found found;
    enum hdt_status status = hdt_ckpt_newest(dir, &query, &found, NULL);

    cr_expect(status == HDT_OK || status == HDT_ENOENT);
    return status == HDT_OK ? found.step : -1;
}

Test(ckpt, the_newest_complete_one_at_or_below_a_step)
{
    const struct hdt_ckpt_owner mine = hdt_ckpt_case_meta(0).owner;
    struct hdt_ckpt_meta other = meta_of_other(40);
    struct hdt_buf bytes = {0};

    hdt_log_set_level(HDT_LOG_ERROR);
    cr_expect_eq(newest(-1, NULL, false), -1);
    save(10, 0);
    save(20, 0);
    save(30, 0);
    cr_assert_eq(hdt_ckpt_case_save(dir, &other, 0, 1, NULL), HDT_OK);
    cr_expect_eq(newest(-1, NULL, false), 40);
    cr_expect_eq(newest(39, NULL, false), 30);
    cr_expect_eq(newest(30, NULL, false), 30);
    cr_expect_eq(newest(9, NULL, false), -1);
    cr_expect_eq(newest(-1, &mine, false), 30);
    cr_expect_eq(newest(-1, &other.owner, false), 40);
    other.owner.job = 99;
    cr_expect_eq(newest(-1, &other.owner, false), -1);

    file_read(file_of(30, HDT_CKPT_OPTIMIZER), &bytes);
    bytes.data[bytes.len / 2] ^= 4;
    file_write(file_of(30, HDT_CKPT_OPTIMIZER), bytes.data, bytes.len);
    cr_expect_eq(newest(39, NULL, false), 30, "sizes say nothing of it");
    cr_expect_eq(newest(39, NULL, true), 20);
    cr_assert_eq(truncate(file_of(20, HDT_CKPT_MODEL), 100), 0);
    cr_expect_eq(newest(29, NULL, false), 10);
    hdt_buf_release(&bytes);
}

/* ---- copies ---- */

Test(ckpt, a_copy_is_whole_or_is_not)
{
    char to[160], backup[200];
    struct hdt_ckpt_found made;
    struct hdt_error err = {0};

    snprintf(to, sizeof(to), "%s/elsewhere", dir);
    snprintf(backup, sizeof(backup), "%s/backup/of-step-3", to);
    save(2, 0);
    save(3, 0);
    cr_expect_eq(hdt_ckpt_copy(dir, backup, &made, &err), HDT_OK, "%s", err.msg);
    cr_expect_str_eq(made.path, backup);
    expect_loads(backup, 3);
    cr_expect_eq(hdt_ckpt_copy(dir, to, &made, &err), HDT_OK, "%s", err.msg);
    cr_expect(strstr(made.path, "elsewhere/step-00000003"), "%s", made.path);
    expect_loads(to, 3);
    cr_expect_eq(hdt_ckpt_copy(dir, to, &made, &err), HDT_EEXIST);
    cr_expect(err.hint[0]);

    cr_assert_eq(truncate(file_of(2, HDT_CKPT_MODEL), 100), 0);
    cr_expect_eq(hdt_ckpt_copy(file_of(2, ""), to, &made, &err), HDT_EINVAL);
    cr_expect_eq(hdt_ckpt_case_n_named(to, "step-"), 1, "nothing is left of it");
}

/* ---- on the way from the owner ---- */

Test(ckpt, what_came_damaged_is_not_saved)
{
    struct hdt_ckpt_writer_conf conf = {
        .dir = dir, .model = &hdt_ckpt_case_model, .meta = hdt_ckpt_case_meta(5)};
    struct hdt_ckpt_writer *writer;
    struct hdt_error err = {0};
    float x[88] = {0};

    cr_assert_eq(hdt_ckpt_writer_open(&conf, &writer, &err), HDT_OK);
    cr_assert_eq(hdt_ckpt_writer_append(writer, 0, HDT_CKPT_WEIGHT, x, sizeof(x), &err), HDT_OK);
    x[87] = 1e-45f; /* one bit */
    cr_expect_eq(hdt_ckpt_writer_seal(writer, 0, HDT_CKPT_WEIGHT, XXH3_64bits(x, sizeof(x)), &err),
                 HDT_ECRC);
    cr_expect(strstr(err.msg, "model.embed_tokens.weight"), "%s", err.msg);
    hdt_ckpt_writer_abort(writer);
    cr_expect_eq(hdt_ckpt_case_n_named(dir, "step-"), 0);
}
