/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/ckpt.h"
#include "src/core/ckpt_files.h"

#include "src/core/ckpt_folder.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

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
    return (struct hdt_ckpt_meta){.step = step,
                                  .samples = 40 + (uint64_t)step,
                                  .tokens = 1000,
                                  .seed = 0xfedcba9876543210u,
                                  .owner = {.job = 77,
                                            .epoch = 1,
                                            .number = 5,
                                            .name = "mine",
                                            .coordinator = "site-a",
                                            .submitted = "0123456789abcdef"}};
}

static struct hdt_ckpt_meta meta_of_other(int64_t step)
{
    struct hdt_ckpt_meta meta = meta_of(step);

    meta.owner.job = 78;
    meta.owner.number = 6;
    snprintf(meta.owner.name, sizeof(meta.owner.name), "theirs");
    return meta;
}

/* All tensors of a checkpoint, in two pieces each, any order of tensors. */
static enum hdt_status save_try(const char *to, const struct hdt_ckpt_meta *meta, int64_t keep,
                                struct hdt_ckpt_result *result, struct hdt_error *err)
{
    struct hdt_ckpt_writer_conf conf = {.dir = to, .model = &model, .meta = *meta, .keep = keep};
    struct hdt_ckpt_writer *writer;
    enum hdt_status status = hdt_ckpt_writer_open(&conf, &writer, err);
    float part_values[256];

    if (status != HDT_OK) {
        return status;
    }
    for (int64_t i = hdt_ckpt_n_tensors(&model) - 1; i >= 0; i--) {
        size_t n = hdt_ckpt_tensor_bytes(&model, i) / sizeof(float);

        for (int part = 0; part < HDT_CKPT_PART_COUNT && status == HDT_OK; part++) {
            for (size_t j = 0; j < n; j++) {
                part_values[j] = value(meta->step, i, part, j);
            }
            status = hdt_ckpt_writer_append(writer, i, part, part_values, 4, err);
            if (status == HDT_OK) {
                status = hdt_ckpt_writer_append(writer, i, part, part_values + 1, 4 * (n - 1), err);
            }
            if (status == HDT_OK) {
                status =
                    hdt_ckpt_writer_seal(writer, i, part, XXH3_64bits(part_values, 4 * n), err);
            }
        }
    }
    if (status != HDT_OK) {
        hdt_ckpt_writer_abort(writer);
        return status;
    }
    return hdt_ckpt_writer_finish(writer, result, err);
}

static void save(const char *to, int64_t step, int64_t keep, struct hdt_ckpt_result *result)
{
    struct hdt_ckpt_meta meta = meta_of(step);
    struct hdt_error err = {0};

    cr_assert_eq(save_try(to, &meta, keep, result, &err), HDT_OK, "%s", err.msg);
}

/* Names in the folder that begin so. */
static int n_there(const char *beginning)
{
    DIR *d = opendir(dir);
    struct dirent *entry;
    int n = 0;

    while ((entry = readdir(d))) {
        n += strncmp(entry->d_name, beginning, strlen(beginning)) == 0;
    }
    closedir(d);
    return n;
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
    cr_expect_eq(n_there("step-"), 1);
    cr_expect(there("latest"));
    expect_loads(dir, 7);
    expect_loads(result.path, 7);
}

/* A limit on file sizes fails writes as a full disk does, with another errno. */
Test(ckpt, a_full_disk_is_told_and_leaves_the_last_one)
{
    struct rlimit limit, low;
    struct hdt_ckpt_result result;
    struct hdt_ckpt_writer_conf conf = {.dir = dir, .model = &model, .meta = meta_of(2)};
    struct hdt_ckpt_writer *writer;
    struct hdt_error err = {0};
    enum hdt_status status;
    float values[256] = {0};

    save(dir, 1, 1, &result);
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    low = limit;
    low.rlim_cur = 6000; /* the header fits, all tensors do not */
    cr_assert_eq(hdt_ckpt_writer_open(&conf, &writer, &err), HDT_OK, "%s", err.msg);
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
    cr_expect_eq(n_there("step-"), 1);
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

Test(ckpt, what_another_run_left_is_neither_taken_nor_touched)
{
    struct hdt_ckpt_meta other = meta_of_other(250);
    struct hdt_ckpt_result result;
    struct hdt_error err = {0};

    cr_assert_eq(save_try(dir, &other, 2, &result, &err), HDT_OK, "%s", err.msg);
    other.step = 300;
    cr_assert_eq(save_try(dir, &other, 2, &result, &err), HDT_OK, "%s", err.msg);
    for (int64_t step = 50; step <= 150; step += 50) {
        save(dir, step, 2, &result);
        expect_loads(dir, step);
    }
    cr_expect(!there("step-00000050"));
    cr_expect(there("step-00000100"));
    cr_expect(there("step-00000250"));
    save(dir, 400, 1, &result);
    cr_expect(there("step-00000250") && there("step-00000300"), "pruned what is another job's");
    cr_expect(!there("step-00000150"));
}

Test(ckpt, a_checkpoint_of_another_job_is_not_overwritten)
{
    struct hdt_ckpt_meta ours = meta_of(7), theirs = meta_of_other(7);
    struct hdt_ckpt_result result;
    struct hdt_error err = {0};

    save(dir, 7, 2, &result);
    cr_expect_eq(save_try(dir, &theirs, 2, &result, &err), HDT_EEXIST);
    cr_expect(strstr(err.msg, "job 5 ('mine'") && strstr(err.msg, "job 6 ('theirs'"), "%s",
              err.msg);
    cr_expect(strstr(err.hint, "checkpoint.dir"));
    cr_expect_eq(n_there("step-"), 1);
    expect_loads(dir, 7);
    cr_expect_eq(hdt_ckpt_check_owner(dir, &theirs.owner, 6, &err), HDT_EEXIST);
    cr_expect_eq(hdt_ckpt_check_owner(dir, &theirs.owner, 7, &err), HDT_OK);
    cr_expect_eq(hdt_ckpt_check_owner(dir, &ours.owner, 0, &err), HDT_OK);

    ours.owner.epoch = 2; /* the same job, after a restart */
    cr_expect_eq(save_try(dir, &ours, 2, &result, &err), HDT_OK, "%s", err.msg);
    expect_loads(dir, 7);
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
    struct hdt_ckpt_meta meta;
    struct hdt_ckpt_result result;
    char path[HDT_CKPT_PATH_CAP + 64];

    save(dir, 1, 1, &result);
    snprintf(path, sizeof(path), "%s/my-notes.txt", result.path);
    fclose(fopen(path, "w"));
    meta = meta_of(1);
    cr_expect_eq(hdt_ckpt_prune(dir, &meta, 0, NULL), HDT_EEXIST);
    cr_expect(there("step-00000001/my-notes.txt"));
    expect_loads(dir, 1);
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
        cr_assert_eq(truncate(path, 40), 0);
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
    struct hdt_ckpt_writer_conf conf = {.dir = dir, .model = &model, .meta = meta_of(5)};
    struct hdt_ckpt_writer *writer;
    struct hdt_ckpt_result result;
    struct hdt_error err = {0};
    float x[2] = {1, 2};

    save(dir, 4, 2, &result);
    cr_assert_eq(hdt_ckpt_writer_open(&conf, &writer, &err), HDT_OK);
    cr_assert_eq(hdt_ckpt_writer_append(writer, 0, HDT_CKPT_WEIGHT, x, sizeof(x), &err), HDT_OK);
    cr_expect_neq(hdt_ckpt_writer_finish(writer, &result, &err), HDT_OK);
    cr_expect(!there("step-00000005"));
    cr_expect_eq(n_there("step-"), 1);
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
