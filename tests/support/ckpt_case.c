/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/support/ckpt_case.h"

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define VALUES_MAX   256
#define FEEDBACK_LEN 1001

const struct hdt_model_config hdt_ckpt_case_model = {.V = 11,
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

struct hdt_ckpt_meta hdt_ckpt_case_meta(int64_t step)
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

/* Value j of a part of tensor i in the checkpoint of a step: a number that nothing else has. */
static float value(int64_t step, int64_t i, int part, size_t j)
{
    return (float)(step * 100000 + i * 1000 + part * 300) + (float)j * 0.5f;
}

static size_t hdt_values_fill(int64_t step, int64_t i, int part, float values[VALUES_MAX])
{
    size_t n = hdt_ckpt_tensor_bytes(&hdt_ckpt_case_model, i) / sizeof(float);

    for (size_t j = 0; j < n; j++) {
        values[j] = value(step, i, part, j);
    }
    return n;
}

static enum hdt_status part_save(struct hdt_ckpt_writer *writer, int64_t step, int64_t i, int part,
                                 int n_pieces, struct hdt_error *err)
{
    float values[VALUES_MAX];
    size_t n = hdt_values_fill(step, i, part, values), pos = 0, len;

    for (int piece = 0; piece < n_pieces; piece++) {
        len = piece + 1 < n_pieces ? n / (size_t)n_pieces : n - pos;
        HDT_TRY(hdt_ckpt_writer_append(writer, i, part, values + pos, len * sizeof(float), err));
        pos += len;
    }
    return hdt_ckpt_writer_seal(writer, i, part, XXH3_64bits(values, n * sizeof(float)), err);
}

static void feedback_fill(int64_t step, uint8_t bytes[FEEDBACK_LEN])
{
    for (size_t i = 0; i < FEEDBACK_LEN; i++) {
        bytes[i] = (uint8_t)(i * 7 + i / 256 + (size_t)step);
    }
}

static enum hdt_status feedback_save(struct hdt_ckpt_writer *writer, int64_t step, int n_pieces,
                                     struct hdt_error *err)
{
    uint8_t bytes[FEEDBACK_LEN];
    size_t pos = 0, len;

    feedback_fill(step, bytes);
    for (int piece = 0; piece < n_pieces; piece++) {
        len = piece + 1 < n_pieces ? FEEDBACK_LEN / (size_t)n_pieces : FEEDBACK_LEN - pos;
        HDT_TRY(hdt_ckpt_writer_feedback(writer, HDT_CKPT_CASE_EDGE, pos, bytes + pos, len, err));
        pos += len;
    }
    return hdt_ckpt_writer_seal_feedback(writer, HDT_CKPT_CASE_EDGE,
                                         XXH3_64bits(bytes, FEEDBACK_LEN), err);
}

static void feedback_check(const struct hdt_ckpt_reader *reader, int64_t step)
{
    uint8_t want[FEEDBACK_LEN], got[FEEDBACK_LEN];
    uint64_t len = 0, xxh3 = 0;
    bool is_there = hdt_ckpt_reader_find_feedback(reader, HDT_CKPT_CASE_EDGE, &len, &xxh3);
    const size_t half = FEEDBACK_LEN / 2;

    feedback_fill(step, want);
    if (step % 2 == 0
            ? is_there
            : !is_there || len != FEEDBACK_LEN || xxh3 != XXH3_64bits(want, FEEDBACK_LEN) ||
                  hdt_ckpt_reader_feedback(reader, HDT_CKPT_CASE_EDGE, half, FEEDBACK_LEN - half,
                                           got + half, NULL) ||
                  hdt_ckpt_reader_feedback(reader, HDT_CKPT_CASE_EDGE, 0, half, got, NULL) ||
                  memcmp(want, got, FEEDBACK_LEN) != 0) {
        fprintf(stderr, "%s: feedback is not what was saved\n", hdt_ckpt_reader_path(reader));
        abort();
    }
}

enum hdt_status hdt_ckpt_case_save(const char *dir, const struct hdt_ckpt_meta *meta, int64_t keep,
                                   int n_pieces, struct hdt_error *err)
{
    struct hdt_ckpt_writer_conf conf = {
        .dir = dir, .model = &hdt_ckpt_case_model, .meta = *meta, .keep = keep};
    struct hdt_ckpt_result result;
    struct hdt_ckpt_writer *writer;
    enum hdt_status status = hdt_ckpt_writer_open(&conf, &writer, err);

    if (status != HDT_OK) {
        return status;
    }
    for (int64_t i = hdt_ckpt_n_tensors(&hdt_ckpt_case_model) - 1; i >= 0; i--) { /* any order */
        for (int part = 0; part < HDT_CKPT_PART_COUNT && status == HDT_OK; part++) {
            status = part_save(writer, meta->step, i, part, n_pieces, err);
        }
    }
    if (status == HDT_OK && meta->step % 2 == 1) {
        status = feedback_save(writer, meta->step, n_pieces, err);
    }
    if (status != HDT_OK) {
        hdt_ckpt_writer_abort(writer);
        return status;
    }
    return hdt_ckpt_writer_finish(writer, &result, err);
}

static void part_check(const struct hdt_ckpt_reader *reader, int64_t i, int part)
{
    float want[VALUES_MAX], got[VALUES_MAX];
    struct hdt_error err = {0};
    size_t n = hdt_values_fill(hdt_ckpt_reader_meta(reader)->step, i, part, want);

    if (hdt_ckpt_reader_read(reader, i, part, 0, n * sizeof(float), got, &err) != HDT_OK ||
        memcmp(got, want, n * sizeof(float)) != 0) {
        fprintf(stderr, "%s: tensor %d, part %d is not what was saved: %s\n",
                hdt_ckpt_reader_path(reader), (int)i, part, err.msg);
        abort();
    }
}

int64_t hdt_ckpt_case_load(const char *path, struct hdt_error *err)
{
    const struct hdt_ckpt_open how = {.model = &hdt_ckpt_case_model};
    struct hdt_ckpt_reader *reader;
    int64_t step;

    if (hdt_ckpt_reader_open(path, &how, &reader, err) != HDT_OK) {
        return -1;
    }
    step = hdt_ckpt_reader_meta(reader)->step;
    for (int64_t i = 0; i < hdt_ckpt_n_tensors(&hdt_ckpt_case_model); i++) {
        for (int part = 0; part < HDT_CKPT_PART_COUNT; part++) {
            part_check(reader, i, part);
        }
    }
    feedback_check(reader, step);
    hdt_ckpt_reader_close(reader);
    return step;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

void hdt_ckpt_case_remove(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

int hdt_ckpt_case_n_named(const char *dir, const char *part)
{
    DIR *d = opendir(dir);
    struct dirent *entry;
    int n = 0;

    while (d && (entry = readdir(d))) {
        n += strstr(entry->d_name, part) != NULL;
    }
    if (d) {
        closedir(d);
    }
    return n;
}
