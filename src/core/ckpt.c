/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/ckpt.h"

#include "src/core/ckpt_files.h"
#include "src/base/buf.h"
#include "src/base/log.h"
#include "src/core/msg.h"
#include "src/core/safetensors.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define CKPT_FORMAT 1

int64_t hdt_ckpt_n_tensors(const struct hdt_model_config *model)
{
    return hdt_model_n_tensors(model) - (model->tie_word_embeddings ? 1 : 0);
}

uint64_t hdt_ckpt_tensor_bytes(const struct hdt_model_config *model, int64_t tensor)
{
    struct hdt_model_tensor info;

    hdt_model_tensor(model, tensor, &info);
    return (uint64_t)info.rows * (uint64_t)info.cols * sizeof(float);
}

static void part_name(const char *tensor, enum hdt_ckpt_part part, char *name, size_t cap)
{
    static const char *const suffix[] = {"", ".exp_avg", ".exp_avg_sq"};

    snprintf(name, cap, "%s%s", tensor, suffix[part]);
}

/* ---- writing ---- */

struct hdt_ckpt_writer {
    struct hdt_model_config model;
    struct hdt_ckpt_meta meta;
    json_t *job;
    char dir[HDT_CKPT_PATH_CAP], name[64], tmp[HDT_CKPT_PATH_CAP];
    struct hdt_safetensors_writer *files[2]; /* model, optimizer */
    XXH3_state_t **digests;                  /* of the weights, a tensor */
    int64_t n_tensors;
};

static const char *const file_names[2] = {HDT_CKPT_MODEL, HDT_CKPT_OPTIMIZER};

static void writer_free(struct hdt_ckpt_writer *writer)
{
    int64_t i;

    for (i = 0; writer->digests && i < writer->n_tensors; i++) {
        XXH3_freeState(writer->digests[i]);
    }
    hdt_safetensors_writer_abort(writer->files[0]);
    hdt_safetensors_writer_abort(writer->files[1]);
    free(writer->digests);
    json_decref(writer->job);
    free(writer);
}

void hdt_ckpt_writer_abort(struct hdt_ckpt_writer *writer)
{
    if (writer) {
        hdt_ckpt_remove(writer->tmp, NULL);
        writer_free(writer);
    }
}

static enum hdt_status writer_declare(struct hdt_ckpt_writer *writer, enum hdt_ckpt_part part,
                                      struct hdt_error *err)
{
    struct hdt_safetensors_entry entry;
    struct hdt_model_tensor info;
    char name[128];
    int64_t i;

    for (i = 0; i < writer->n_tensors; i++) {
        hdt_model_tensor(&writer->model, i, &info);
        memset(&entry, 0, sizeof(entry));
        part_name(info.name, part, name, sizeof(name));
        entry.name = name;
        entry.dtype = HDT_DTYPE_F32;
        entry.n_dims = (unsigned)info.n_dims;
        entry.shape[0] = (uint64_t)(info.n_dims == 1 ? info.cols : info.rows);
        entry.shape[1] = (uint64_t)info.cols;
        HDT_TRY(
            hdt_safetensors_writer_declare(writer->files[part != HDT_CKPT_WEIGHT], &entry, err));
    }
    return HDT_OK;
}

static enum hdt_status writer_open_files(struct hdt_ckpt_writer *writer, struct hdt_error *err)
{
    char path[HDT_CKPT_PATH_CAP];
    int f, part;

    for (f = 0; f < 2; f++) {
        HDT_TRY(hdt_ckpt_path(writer->tmp, file_names[f], path, err));
        HDT_TRY(hdt_safetensors_writer_open(path, &writer->files[f], err));
        /* transformers refuses files that do not say so. */
        HDT_TRY(hdt_safetensors_writer_metadata(writer->files[f], "format", "pt", err));
    }
    for (part = 0; part < HDT_CKPT_PART_COUNT; part++) {
        HDT_TRY(writer_declare(writer, part, err));
    }
    for (f = 0; f < 2; f++) {
        HDT_TRY(hdt_safetensors_writer_begin(writer->files[f], err));
    }
    return HDT_OK;
}

static enum hdt_status writer_open_folder(struct hdt_ckpt_writer *writer, const char *dir,
                                          struct hdt_error *err)
{
    char tmp_name[80];

    if (strlen(dir) >= sizeof(writer->dir)) {
        return hdt_error_set(err, HDT_EINVAL, "cannot use the checkpoint folder: name too long");
    }
    memcpy(writer->dir, dir, strlen(dir) + 1);
    snprintf(writer->name, sizeof(writer->name), "step-%08" PRId64, writer->meta.step);
    snprintf(tmp_name, sizeof(tmp_name), "%s.tmp", writer->name);
    HDT_TRY(hdt_ckpt_path(dir, tmp_name, writer->tmp, err));
    HDT_TRY(hdt_ckpt_mkdir(dir, err));
    HDT_TRY(hdt_ckpt_remove(writer->tmp, err)); /* left by a crash */
    return hdt_ckpt_mkdir(writer->tmp, err);
}

enum hdt_status hdt_ckpt_writer_open(const char *dir, const struct hdt_model_config *model,
                                     const struct hdt_ckpt_meta *meta, struct hdt_ckpt_writer **out,
                                     struct hdt_error *err)
{
    struct hdt_ckpt_writer *writer = hdt_calloc(1, sizeof(*writer));
    enum hdt_status status;
    int64_t i;

    writer->model = *model;
    writer->meta = *meta;
    writer->job = json_deep_copy(meta->job);
    writer->n_tensors = hdt_ckpt_n_tensors(model);
    writer->digests = hdt_calloc((size_t)writer->n_tensors, sizeof(*writer->digests));
    for (i = 0; i < writer->n_tensors; i++) {
        writer->digests[i] = XXH3_createState();
        HDT_ASSERT(writer->digests[i]);
        XXH3_64bits_reset(writer->digests[i]);
    }
    status = writer_open_folder(writer, dir, err);
    if (status != HDT_OK) {
        writer_free(writer);
        return status;
    }
    status = writer_open_files(writer, err);
    if (status != HDT_OK) {
        hdt_ckpt_writer_abort(writer);
        return status;
    }
    *out = writer;
    return HDT_OK;
}

enum hdt_status hdt_ckpt_writer_append(struct hdt_ckpt_writer *writer, int64_t tensor,
                                       enum hdt_ckpt_part part, const void *data, size_t len,
                                       struct hdt_error *err)
{
    size_t idx = (size_t)tensor;

    HDT_ASSERT(tensor >= 0 && tensor < writer->n_tensors);
    if (part == HDT_CKPT_WEIGHT) {
        XXH3_64bits_update(writer->digests[tensor], data, len);
        return hdt_safetensors_writer_append(writer->files[0], idx, data, len, err);
    }
    idx += part == HDT_CKPT_EXP_AVG_SQ ? (size_t)writer->n_tensors : 0;
    return hdt_safetensors_writer_append(writer->files[1], idx, data, len, err);
}

static uint64_t writer_weights_digest(const struct hdt_ckpt_writer *writer)
{
    XXH3_state_t *all = XXH3_createState();
    uint64_t digest, value;
    int64_t i;

    HDT_ASSERT(all);
    XXH3_64bits_reset(all);
    for (i = 0; i < writer->n_tensors; i++) {
        value = htole64(XXH3_64bits_digest(writer->digests[i]));
        XXH3_64bits_update(all, &value, sizeof(value));
    }
    digest = XXH3_64bits_digest(all);
    XXH3_freeState(all);
    return digest;
}

/* Of all that the manifest says but this: a bit that flips in it is found as one in the weights is.
 */
static json_t *manifest_digest(json_t *manifest)
{
    json_t *own = json_incref(json_object_get(manifest, "digest")), *digest;
    char *text;

    json_object_del(manifest, "digest");
    text = json_dumps(manifest, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
    HDT_ASSERT(text);
    digest = hdt_msg_u64_hex(XXH3_64bits(text, strlen(text)));
    free(text);
    if (own) {
        json_object_set_new(manifest, "digest", own);
    }
    return digest;
}

static enum hdt_status writer_manifest(struct hdt_ckpt_writer *writer,
                                       struct hdt_ckpt_result *result, struct hdt_error *err)
{
    static const char *const names[] = {HDT_CKPT_MODEL, HDT_CKPT_OPTIMIZER, HDT_CKPT_CONFIG};
    json_t *files = json_object(), *manifest, *digest;
    enum hdt_status status = HDT_OK;
    char path[HDT_CKPT_PATH_CAP];
    size_t i;

    result->bytes = 0;
    result->digest = writer_weights_digest(writer);
    for (i = 0; i < sizeof(names) / sizeof(names[0]) && status == HDT_OK; i++) {
        status = hdt_ckpt_path(writer->tmp, names[i], path, err);
        if (status == HDT_OK) {
            status = hdt_ckpt_digest(path, NULL, NULL, &digest, err);
        }
        if (status == HDT_OK) {
            result->bytes += (uint64_t)json_integer_value(json_object_get(digest, "bytes"));
            json_object_set_new(files, names[i], digest);
        }
    }
    manifest = json_pack("{s:i,s:I,s:o,s:I,s:I,s:o,s:o}", "hdt_checkpoint", CKPT_FORMAT, "step",
                         (json_int_t)writer->meta.step, "seed", hdt_msg_u64_hex(writer->meta.seed),
                         "samples", (json_int_t)writer->meta.samples, "tokens",
                         (json_int_t)writer->meta.tokens, "weights_digest",
                         hdt_msg_u64_hex(result->digest), "files", files);
    json_object_set_new(manifest, "job", writer->job ? json_incref(writer->job) : json_null());
    json_object_set_new(manifest, "digest", manifest_digest(manifest));
    if (status == HDT_OK) {
        status = hdt_ckpt_path(writer->tmp, HDT_CKPT_MANIFEST, path, err);
    }
    if (status == HDT_OK) {
        status = hdt_ckpt_write_json(path, manifest, err);
    }
    json_decref(manifest);
    return status;
}

/* Put the complete folder in its place; one of the same step makes room first. */
static enum hdt_status writer_rename(struct hdt_ckpt_writer *writer, const char *path,
                                     struct hdt_error *err)
{
    char old[HDT_CKPT_PATH_CAP], old_name[80];
    struct stat st;
    bool replaces;

    HDT_TRY(hdt_ckpt_sync(writer->tmp, err));
    snprintf(old_name, sizeof(old_name), "%s.old.tmp", writer->name);
    HDT_TRY(hdt_ckpt_path(writer->dir, old_name, old, err));
    HDT_TRY(hdt_ckpt_remove(old, err));
    replaces = stat(path, &st) == 0;
    if (replaces && rename(path, old) != 0) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot replace '%s'", path);
    }
    if (rename(writer->tmp, path) != 0) {
        hdt_error_set_errno(err, HDT_EIO, errno, "cannot rename '%s'", writer->tmp);
        if (replaces) {
            rename(old, path);
        }
        return HDT_EIO;
    }
    hdt_ckpt_remove(old, NULL);
    return hdt_ckpt_sync(writer->dir, err);
}

static enum hdt_status writer_complete(struct hdt_ckpt_writer *writer,
                                       struct hdt_ckpt_result *result, struct hdt_error *err)
{
    struct hdt_safetensors_writer *file;
    char path[HDT_CKPT_PATH_CAP];
    enum hdt_status status;
    json_t *config;
    int f;

    for (f = 0; f < 2; f++) {
        file = writer->files[f];
        writer->files[f] = NULL;
        HDT_TRY(hdt_safetensors_writer_close(file, err));
    }
    HDT_TRY(hdt_ckpt_path(writer->tmp, HDT_CKPT_CONFIG, path, err));
    config = hdt_model_to_json(&writer->model);
    status = hdt_ckpt_write_json(path, config, err);
    json_decref(config);
    HDT_TRY(status);
    HDT_TRY(writer_manifest(writer, result, err));
    HDT_TRY(hdt_ckpt_path(writer->dir, writer->name, result->path, err));
    return writer_rename(writer, result->path, err);
}

enum hdt_status hdt_ckpt_writer_finish(struct hdt_ckpt_writer *writer, int64_t keep,
                                       struct hdt_ckpt_result *result, struct hdt_error *err)
{
    enum hdt_status status = writer_complete(writer, result, err);
    struct hdt_error cause = {0};

    if (status != HDT_OK) {
        hdt_ckpt_writer_abort(writer);
        return status;
    }
    status = hdt_ckpt_point_latest(writer->dir, writer->name, err);
    if (status == HDT_OK && keep > 0 &&
        hdt_ckpt_prune(writer->dir, writer->meta.step, keep, &cause) != HDT_OK) {
        hdt_log_failure(HDT_LOG_WARN, &cause); /* the new one is whole all the same */
    }
    writer_free(writer);
    return status;
}

/* ---- reading ---- */

struct hdt_ckpt_reader {
    char path[HDT_CKPT_PATH_CAP];
    struct hdt_model_config model;
    struct hdt_ckpt_meta meta;
    json_t *manifest;
    struct hdt_safetensors *files[2];
};

static enum hdt_status ckpt_refuse(const struct hdt_ckpt_reader *reader, struct hdt_error *err,
                                   const char *file, const char *why)
{
    hdt_error_set(err, HDT_EINVAL, "cannot use the checkpoint '%s': %s %s", reader->path, file,
                  why);
    hdt_error_hint(err, "resume from an older step-* folder, or copy the checkpoint again");
    return HDT_EINVAL;
}

/* Follow DIR to the step's folder. */
static enum hdt_status reader_resolve(struct hdt_ckpt_reader *reader, const char *path,
                                      struct hdt_error *err)
{
    char file[HDT_CKPT_PATH_CAP], name[64];
    struct stat st;
    int64_t step;

    HDT_TRY(hdt_ckpt_path(path, HDT_CKPT_MANIFEST, file, err));
    if (stat(file, &st) == 0) {
        memcpy(reader->path, path, strlen(path) + 1); /* shorter than `file`, which fits */
        return HDT_OK;
    }
    HDT_TRY(hdt_ckpt_path(path, "latest/" HDT_CKPT_MANIFEST, file, err));
    if (stat(file, &st) == 0) {
        return hdt_ckpt_path(path, "latest", reader->path, err);
    }
    step = hdt_ckpt_newest(path);
    if (step < 0) {
        hdt_error_set(err, HDT_ENOENT, "cannot find a checkpoint in '%s'", path);
        hdt_error_hint(err, "name a folder that holds hdt.json, or 'latest', or step-* folders");
        return HDT_ENOENT;
    }
    snprintf(name, sizeof(name), "step-%08" PRId64, step);
    return hdt_ckpt_path(path, name, reader->path, err);
}

static enum hdt_status reader_check_manifest(struct hdt_ckpt_reader *reader, struct hdt_error *err)
{
    json_t *digest = manifest_digest(reader->manifest);
    bool equal = json_equal(digest, json_object_get(reader->manifest, "digest")) == 1;

    json_decref(digest);
    return equal
               ? HDT_OK
               : ckpt_refuse(reader, err, HDT_CKPT_MANIFEST, "was altered: its digest is another");
}

static enum hdt_status reader_manifest(struct hdt_ckpt_reader *reader, struct hdt_error *err)
{
    char path[HDT_CKPT_PATH_CAP];
    json_error_t json_err;
    json_int_t format = 0, step = -1, samples = -1, tokens = -1;
    json_t *seed = NULL;

    HDT_TRY(hdt_ckpt_path(reader->path, HDT_CKPT_MANIFEST, path, err));
    reader->manifest = json_load_file(path, 0, &json_err);
    if (!reader->manifest) {
        return ckpt_refuse(reader, err, HDT_CKPT_MANIFEST, "is missing or damaged");
    }
    if (json_unpack(reader->manifest, "{s:I,s:I,s:I,s:I,s:o}", "hdt_checkpoint", &format, "step",
                    &step, "samples", &samples, "tokens", &tokens, "seed", &seed) != 0 ||
        step < 0 || samples < 0 || tokens < 0) {
        return ckpt_refuse(reader, err, HDT_CKPT_MANIFEST, "lacks what a manifest says");
    }
    if (format != CKPT_FORMAT) {
        return ckpt_refuse(reader, err, HDT_CKPT_MANIFEST, "is of another version of the format");
    }
    HDT_TRY(reader_check_manifest(reader, err));
    reader->meta.step = step;
    reader->meta.samples = (uint64_t)samples;
    reader->meta.tokens = (uint64_t)tokens;
    reader->meta.seed = hdt_msg_hex_u64(seed);
    reader->meta.job = json_object_get(reader->manifest, "job");
    return HDT_OK;
}

static enum hdt_status reader_check_file(struct hdt_ckpt_reader *reader, const char *name,
                                         void (*progress)(void *arg), void *arg,
                                         struct hdt_error *err)
{
    json_t *want = json_object_get(json_object_get(reader->manifest, "files"), name), *got;
    char path[HDT_CKPT_PATH_CAP];
    struct stat st;
    bool equal;

    HDT_TRY(hdt_ckpt_path(reader->path, name, path, err));
    if (!want) {
        return ckpt_refuse(reader, err, name, "is not in the manifest");
    }
    if (stat(path, &st) != 0) {
        return ckpt_refuse(reader, err, name, "is missing");
    }
    if ((json_int_t)st.st_size != json_integer_value(json_object_get(want, "bytes"))) {
        return ckpt_refuse(reader, err, name, "is truncated: its size is not the manifest's");
    }
    HDT_TRY(hdt_ckpt_digest(path, progress, arg, &got, err));
    equal = json_equal(want, got) == 1;
    json_decref(got);
    return equal ? HDT_OK : ckpt_refuse(reader, err, name, "was altered: its digest is another");
}

/* Same shapes and arithmetic: what must agree for weights to mean the same. */
static enum hdt_status reader_check_model(struct hdt_ckpt_reader *reader,
                                          const struct hdt_model_config *model,
                                          struct hdt_error *err)
{
    json_t *want = hdt_model_to_json(model), *got = hdt_model_to_json(&reader->model), *value;
    enum hdt_status status = HDT_OK;
    const char *key;
    char why[160];

    json_object_foreach(want, key, value)
    {
        if (status == HDT_OK && !json_equal(value, json_object_get(got, key))) {
            snprintf(why, sizeof(why), "is of another model: its '%s' differs from the job's", key);
            status = ckpt_refuse(reader, err, HDT_CKPT_CONFIG, why);
            hdt_error_hint(err, "resume with the model that the checkpoint was trained with");
        }
    }
    json_decref(want);
    json_decref(got);
    return status;
}

static enum hdt_status reader_find(const struct hdt_ckpt_reader *reader, int64_t tensor,
                                   enum hdt_ckpt_part part,
                                   const struct hdt_safetensors_entry **entry,
                                   struct hdt_error *err)
{
    struct hdt_model_tensor info;
    char name[128], why[192];

    hdt_model_tensor(&reader->model, tensor, &info);
    part_name(info.name, part, name, sizeof(name));
    *entry = hdt_safetensors_find(reader->files[part != HDT_CKPT_WEIGHT], name);
    if (!*entry || (*entry)->dtype != HDT_DTYPE_F32 ||
        (*entry)->len != hdt_ckpt_tensor_bytes(&reader->model, tensor)) {
        snprintf(why, sizeof(why), "does not hold '%s' as it should", name);
        return ckpt_refuse(reader, err, file_names[part != HDT_CKPT_WEIGHT], why);
    }
    return HDT_OK;
}

static enum hdt_status reader_open_files(struct hdt_ckpt_reader *reader, struct hdt_error *err)
{
    const struct hdt_safetensors_entry *entry;
    char path[HDT_CKPT_PATH_CAP];
    int64_t i;
    int f, part;

    for (f = 0; f < 2; f++) {
        HDT_TRY(hdt_ckpt_path(reader->path, file_names[f], path, err));
        HDT_TRY(hdt_safetensors_open(path, &reader->files[f], err));
    }
    for (i = 0; i < hdt_ckpt_n_tensors(&reader->model); i++) {
        for (part = 0; part < HDT_CKPT_PART_COUNT; part++) {
            HDT_TRY(reader_find(reader, i, part, &entry, err));
        }
    }
    return HDT_OK;
}

static enum hdt_status reader_check(struct hdt_ckpt_reader *reader,
                                    const struct hdt_model_config *model,
                                    void (*progress)(void *arg), void *arg, struct hdt_error *err)
{
    char path[HDT_CKPT_PATH_CAP];

    HDT_TRY(reader_manifest(reader, err));
    HDT_TRY(reader_check_file(reader, HDT_CKPT_CONFIG, progress, arg, err));
    HDT_TRY(hdt_ckpt_path(reader->path, HDT_CKPT_CONFIG, path, err));
    HDT_TRY(hdt_model_load(path, &reader->model, err));
    if (model) {
        HDT_TRY(reader_check_model(reader, model, err));
    }
    HDT_TRY(reader_check_file(reader, HDT_CKPT_MODEL, progress, arg, err));
    HDT_TRY(reader_check_file(reader, HDT_CKPT_OPTIMIZER, progress, arg, err));
    return reader_open_files(reader, err);
}

enum hdt_status hdt_ckpt_reader_open(const char *path, const struct hdt_model_config *model,
                                     void (*progress)(void *arg), void *progress_arg,
                                     struct hdt_ckpt_reader **out, struct hdt_error *err)
{
    struct hdt_ckpt_reader *reader = hdt_calloc(1, sizeof(*reader));
    enum hdt_status status = reader_resolve(reader, path, err);

    if (status == HDT_OK) {
        status = reader_check(reader, model, progress, progress_arg, err);
    }
    if (status != HDT_OK) {
        hdt_ckpt_reader_close(reader);
        return status;
    }
    *out = reader;
    return HDT_OK;
}

void hdt_ckpt_reader_close(struct hdt_ckpt_reader *reader)
{
    if (reader) {
        hdt_safetensors_close(reader->files[0]);
        hdt_safetensors_close(reader->files[1]);
        json_decref(reader->manifest);
        free(reader);
    }
}

const struct hdt_ckpt_meta *hdt_ckpt_reader_meta(const struct hdt_ckpt_reader *reader)
{
    return &reader->meta;
}

const struct hdt_model_config *hdt_ckpt_reader_model(const struct hdt_ckpt_reader *reader)
{
    return &reader->model;
}

const char *hdt_ckpt_reader_path(const struct hdt_ckpt_reader *reader)
{
    return reader->path;
}

enum hdt_status hdt_ckpt_reader_read(const struct hdt_ckpt_reader *reader, int64_t tensor,
                                     enum hdt_ckpt_part part, uint64_t pos, size_t len, void *dst,
                                     struct hdt_error *err)
{
    const struct hdt_safetensors_entry *entry;

    if (tensor >= hdt_ckpt_n_tensors(&reader->model)) {
        tensor = 0; /* the tied head is the embedding */
    }
    HDT_TRY(reader_find(reader, tensor, part, &entry, err));
    return hdt_safetensors_read_part(reader->files[part != HDT_CKPT_WEIGHT], entry, pos, len, dst,
                                     err);
}
