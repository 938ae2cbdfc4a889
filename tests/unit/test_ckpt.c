/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/ckpt.h"
#include "src/core/ckpt_files.h"

#include <criterion/criterion.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[64];
static struct hdt_model_config model = {.V = 11,
                                        .C = 8,
                                        .F = 12,
                                        .L = 2,
                                        .NH = 2,
                                        .NKV = 1,
                                        .HS = 4,
                                        .T = 16,
                                        .rms_norm_eps = 1e-5,
                                        .initializer_range = 0.02,
                                        .rope_theta = 10000,
                                        .bos_token_id = -1,
                                        .eos_token_id = -1};

static void setup(void)
{
    snprintf(dir, sizeof(dir), "/tmp/hdt-ckpt-XXXXXX");
    cr_assert(mkdtemp(dir));
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static void teardown(void)
{
    nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

TestSuite(ckpt, .init = setup, .fini = teardown);

/* Value j of a part of tensor i in the checkpoint of a step: a number that nothing else has. */
static float value(int64_t step, int64_t i, int part, size_t j)
{
    return (float)(step * 100000 + i * 1000 + part * 300) + (float)j * 0.5f;
}

static struct hdt_ckpt_meta meta_of(int64_t step)
{
    return (struct hdt_ckpt_meta){
        .step = step, .samples = 40 + (uint64_t)step, .tokens = 1000, .seed = 0xfedcba9876543210u};
}

static void save(const char *to, int64_t step, int64_t keep, struct hdt_ckpt_result *result)
{
    struct hdt_ckpt_meta meta = meta_of(step);
    struct hdt_ckpt_writer *writer;
    struct hdt_error err = {0};
    float part_values[256];

    cr_assert_eq(hdt_ckpt_writer_open(to, &model, &meta, &writer, &err), HDT_OK, "%s", err.msg);
    for (int64_t i = hdt_ckpt_n_tensors(&model) - 1; i >= 0; i--) { /* any order of tensors */
        size_t n = hdt_ckpt_tensor_bytes(&model, i) / sizeof(float);

        for (int part = 0; part < HDT_CKPT_PART_COUNT; part++) {
            for (size_t j = 0; j < n; j++) {
                part_values[j] = value(step, i, part, j);
            }
            cr_assert_eq(hdt_ckpt_writer_append(writer, i, part, part_values, 4, &err), HDT_OK);
            cr_assert_eq(
                hdt_ckpt_writer_append(writer, i, part, part_values + 1, 4 * (n - 1), &err), HDT_OK,
                "%s", err.msg);
        }
    }
    cr_assert_eq(hdt_ckpt_writer_finish(writer, keep, result, &err), HDT_OK, "%s", err.msg);
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
    struct hdt_ckpt_reader *reader;
    struct hdt_error err = {0};
    float got[3];

    cr_assert_eq(hdt_ckpt_reader_open(path, &model, NULL, NULL, &reader, &err), HDT_OK, "%s",
                 err.msg);
    cr_expect_eq(hdt_ckpt_reader_meta(reader)->step, step);
    cr_expect_eq(hdt_ckpt_reader_meta(reader)->samples, 40 + (uint64_t)step);
    cr_expect_eq(hdt_ckpt_reader_meta(reader)->seed, 0xfedcba9876543210u);
    for (int64_t i = 0; i < hdt_ckpt_n_tensors(&model); i++) {
        for (int part = 0; part < HDT_CKPT_PART_COUNT; part++) {
            cr_assert_eq(hdt_ckpt_reader_read(reader, i, part, 8, 12, got, &err), HDT_OK);
            for (int j = 0; j < 3; j++) {
                cr_expect_eq(got[j], value(step, i, part, (size_t)j + 2));
            }
        }
    }
    hdt_ckpt_reader_close(reader);
}

Test(ckpt, what_was_saved_loads)
{
    struct hdt_ckpt_result result;

    save(dir, 7, 2, &result);
    cr_expect(there("step-00000007/model.safetensors"));
    cr_expect(there("step-00000007/optimizer.safetensors"));
    cr_expect(there("step-00000007/config.json"));
    cr_expect(there("step-00000007/hdt.json"));
    cr_expect(!there("step-00000007.tmp"));
    expect_loads(dir, 7);
    expect_loads(result.path, 7);
}

/* A limit on file sizes fails writes as a full disk does, with another errno. */
Test(ckpt, a_full_disk_is_told_and_leaves_the_last_one)
{
    struct rlimit limit, low;
    struct hdt_ckpt_result result;
    struct hdt_ckpt_meta meta = meta_of(2);
    struct hdt_ckpt_writer *writer;
    struct hdt_error err = {0};
    enum hdt_status status;
    float values[256] = {0};

    save(dir, 1, 1, &result);
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    low = limit;
    low.rlim_cur = 6000; /* the header fits, all tensors do not */
    cr_assert_eq(hdt_ckpt_writer_open(dir, &model, &meta, &writer, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &low), 0);
    status = HDT_OK;
    for (int64_t i = 0; i < hdt_ckpt_n_tensors(&model) && status == HDT_OK; i++) {
        status = hdt_ckpt_writer_append(writer, i, HDT_CKPT_WEIGHT, values,
                                        hdt_ckpt_tensor_bytes(&model, i), &err);
    }
    setrlimit(RLIMIT_FSIZE, &limit);
    cr_expect_eq(status, HDT_EIO);
    cr_expect(strstr(err.msg, "model.safetensors") && strstr(err.msg, "too large"), "%s", err.msg);
    hdt_ckpt_writer_abort(writer);
    cr_expect(!there("step-00000002.tmp"));
    expect_loads(dir, 1);
}

Test(ckpt, the_newest_are_kept)
{
    struct hdt_ckpt_result result;

    for (int64_t step = 1; step <= 4; step++) {
        save(dir, step, 2, &result);
    }
    cr_expect(!there("step-00000001"));
    cr_expect(!there("step-00000002"));
    cr_expect(there("step-00000003"));
    cr_expect(there("step-00000004"));
    expect_loads(dir, 4);
    save(dir, 4, 2, &result); /* again the same step: replaced, none lost */
    expect_loads(dir, 4);
    cr_expect(there("step-00000003"));
}

Test(ckpt, what_another_run_left_costs_nothing)
{
    struct hdt_ckpt_result result;

    save(dir, 250, 2, &result);
    save(dir, 300, 2, &result);
    for (int64_t step = 50; step <= 150; step += 50) { /* a new run in the same folder */
        save(dir, step, 2, &result);
        expect_loads(dir, step);
    }
    cr_expect(!there("step-00000050"));
    cr_expect(there("step-00000100"));
    cr_expect(there("step-00000300"));
}

Test(ckpt, what_cannot_be_removed_does_not_fail_the_next_one)
{
    struct hdt_ckpt_result result;
    char path[HDT_CKPT_PATH_CAP + 64];

    save(dir, 1, 1, &result);
    snprintf(path, sizeof(path), "%s/my-notes.txt", result.path);
    fclose(fopen(path, "w"));
    save(dir, 2, 1, &result);
    expect_loads(dir, 2);
    cr_expect(there("step-00000001/my-notes.txt"));
}

Test(ckpt, a_folder_with_other_files_is_not_removed)
{
    struct hdt_ckpt_result result;
    char path[HDT_CKPT_PATH_CAP + 64];

    save(dir, 1, 1, &result);
    snprintf(path, sizeof(path), "%s/my-notes.txt", result.path);
    fclose(fopen(path, "w"));
    cr_expect_eq(hdt_ckpt_prune(dir, 1, 0, NULL), HDT_EIO);
    cr_expect(there("step-00000001/my-notes.txt"));
}

static void expect_refused(const char *word)
{
    struct hdt_ckpt_reader *reader;
    struct hdt_error err = {0};

    cr_expect_eq(hdt_ckpt_reader_open(dir, &model, NULL, NULL, &reader, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, word), "'%s' is not in '%s'", word, err.msg);
    cr_expect(err.hint[0]);
}

Test(ckpt, truncated_and_altered_files_are_refused)
{
    static const char *const names[] = {HDT_CKPT_MODEL, HDT_CKPT_OPTIMIZER, HDT_CKPT_CONFIG};
    struct hdt_ckpt_result result;
    char path[HDT_CKPT_PATH_CAP + 64];
    FILE *file;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        save(dir, 3, 1, &result);
        snprintf(path, sizeof(path), "%s/%s", result.path, names[i]);
        file = fopen(path, "r+");
        fseek(file, -9, SEEK_END);
        fputc(0x7f, file);
        fclose(file);
        expect_refused("altered");
        cr_assert_eq(truncate(path, 100), 0);
        expect_refused("truncated");
        unlink(path);
        expect_refused("missing");
    }
    save(dir, 3, 1, &result);
    snprintf(path, sizeof(path), "%s/hdt.json", result.path);
    cr_assert_eq(truncate(path, 20), 0);
    expect_refused("hdt.json");
}

Test(ckpt, another_model_is_refused_by_what_differs)
{
    struct hdt_model_config other = model;
    struct hdt_ckpt_reader *reader;
    struct hdt_ckpt_result result;
    struct hdt_error err = {0};

    save(dir, 3, 1, &result);
    other.NKV = 2;
    cr_expect_eq(hdt_ckpt_reader_open(dir, &other, NULL, NULL, &reader, &err), HDT_EINVAL);
    cr_expect(strstr(err.msg, "num_key_value_heads"), "%s", err.msg);
}

Test(ckpt, nothing_is_left_of_an_incomplete_one)
{
    struct hdt_ckpt_meta meta = {.step = 5};
    struct hdt_ckpt_writer *writer;
    struct hdt_ckpt_result result;
    struct hdt_error err = {0};
    float x[2] = {1, 2};

    save(dir, 4, 2, &result);
    cr_assert_eq(hdt_ckpt_writer_open(dir, &model, &meta, &writer, &err), HDT_OK);
    cr_assert_eq(hdt_ckpt_writer_append(writer, 0, HDT_CKPT_WEIGHT, x, sizeof(x), &err), HDT_OK);
    cr_expect_neq(hdt_ckpt_writer_finish(writer, 2, &result, &err), HDT_OK);
    cr_expect(!there("step-00000005"));
    cr_expect(!there("step-00000005.tmp"));
    expect_loads(dir, 4);
}

Test(ckpt, the_highest_step_serves_without_the_link)
{
    struct hdt_ckpt_result result;
    char path[HDT_CKPT_PATH_CAP + 64];

    save(dir, 4, 0, &result);
    save(dir, 12, 0, &result);
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
