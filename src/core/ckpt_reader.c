/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/ckpt.h"

#include "src/core/ckpt_folder.h"
#include "src/core/ckpt_manifest.h"
#include "src/base/buf.h"
#include "src/core/file_at.h"
#include "src/core/msg.h"
#include "src/core/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct hdt_ckpt_reader {
    char path[HDT_CKPT_PATH_CAP];
    struct hdt_model_config model;
    struct hdt_ckpt_manifest manifest;
    struct hdt_safetensors *files[2]; /* the optimizer's is NULL with weights_only */
    bool weights_only;
};

static const char *const file_names[2] = {HDT_CKPT_MODEL, HDT_CKPT_OPTIMIZER};

/* ---- checks ---- */

static enum hdt_status ckpt_refuse(const struct hdt_ckpt_reader *reader, struct hdt_error *err,
                                   const char *file, const char *why)
{
    return hdt_error_set(err, HDT_EINVAL, "cannot use the checkpoint '%s': %s %s", reader->path,
                         file, why);
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
    char name[128], why[192];

    hdt_ckpt_tensor_name(&reader->model, tensor, part, name, sizeof(name));
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
    const int n_files = reader->weights_only ? 1 : 2;
    const int n_parts = reader->weights_only ? 1 : HDT_CKPT_PART_COUNT;
    int f, part;

    for (f = 0; f < n_files; f++) {
        HDT_TRY(hdt_ckpt_path(reader->path, file_names[f], path, err));
        HDT_TRY(hdt_safetensors_open(path, &reader->files[f], err));
    }
    for (i = 0; i < hdt_ckpt_n_tensors(&reader->model); i++) {
        for (part = 0; part < n_parts; part++) {
            HDT_TRY(reader_find(reader, i, part, &entry, err));
        }
    }
    return HDT_OK;
}

/* `other` says whether another checkpoint would be a remedy. */
static enum hdt_status reader_check(struct hdt_ckpt_reader *reader, const struct hdt_ckpt_open *how,
                                    bool *other, struct hdt_error *err)
{
    const struct hdt_ckpt_verify verify = {
        .weights_only = how->weights_only, .progress = how->progress, .arg = how->arg};
    char path[HDT_CKPT_PATH_CAP];

    *other = true;
    HDT_TRY(hdt_ckpt_manifest_read(reader->path, &reader->manifest, err));
    HDT_TRY(hdt_ckpt_path(reader->path, HDT_CKPT_CONFIG, path, err));
    HDT_TRY(hdt_ckpt_manifest_verify(&reader->manifest, &verify, err));
    HDT_TRY(hdt_model_load(path, &reader->model, err));
    if (how->model) {
        *other = false;
        HDT_TRY(reader_check_model(reader, how->model, err));
    }
    *other = true;
    return reader_open_files(reader, err);
}

enum hdt_status hdt_ckpt_reader_open(const char *path, const struct hdt_ckpt_open *how,
                                     struct hdt_ckpt_reader **out, struct hdt_error *err)
{
    struct hdt_ckpt_reader *reader = hdt_calloc(1, sizeof(*reader));
    enum hdt_status status = hdt_ckpt_resolve(path, reader->path, err);
    bool other = false;

    reader->weights_only = how->weights_only;
    if (status == HDT_OK) {
        status = reader_check(reader, how, &other, err);
    }
    if (status != HDT_OK) {
        if (other) {
            hdt_ckpt_hint_other(reader->path, err);
        }
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
        hdt_ckpt_manifest_release(&reader->manifest);
        free(reader);
    }
}

const struct hdt_ckpt_meta *hdt_ckpt_reader_meta(const struct hdt_ckpt_reader *reader)
{
    return &reader->manifest.meta;
}

const struct hdt_model_config *hdt_ckpt_reader_model(const struct hdt_ckpt_reader *reader)
{
    return &reader->model;
}

const char *hdt_ckpt_reader_path(const struct hdt_ckpt_reader *reader)
{
    return reader->path;
}

uint64_t hdt_ckpt_reader_bytes(const struct hdt_ckpt_reader *reader)
{
    return reader->manifest.bytes;
}

/* A tied head is the embedding. */
static int64_t tensor_in_file(const struct hdt_ckpt_reader *reader, int64_t tensor)
{
    return tensor >= hdt_ckpt_n_tensors(&reader->model) ? 0 : tensor;
}

enum hdt_status hdt_ckpt_reader_read(const struct hdt_ckpt_reader *reader, int64_t tensor,
                                     enum hdt_ckpt_part part, uint64_t pos, size_t len, void *dst,
                                     struct hdt_error *err)
{
    const struct hdt_safetensors_entry *entry;

    HDT_ASSERT(part == HDT_CKPT_WEIGHT || !reader->weights_only);
    HDT_TRY(reader_find(reader, tensor_in_file(reader, tensor), part, &entry, err));
    return hdt_safetensors_read_part(reader->files[part != HDT_CKPT_WEIGHT], entry, pos, len, dst,
                                     err);
}

uint64_t hdt_ckpt_reader_digest(const struct hdt_ckpt_reader *reader, int64_t tensor,
                                enum hdt_ckpt_part part)
{
    const json_t *tensors = json_object_get(json_object_get(reader->manifest.root, "tensors"),
                                            file_names[part != HDT_CKPT_WEIGHT]);
    char name[128];

    hdt_ckpt_tensor_name(&reader->model, tensor_in_file(reader, tensor), part, name, sizeof(name));
    return hdt_msg_hex_u64(json_object_get(json_object_get(tensors, name), "xxh3"));
}

bool hdt_ckpt_reader_find_feedback(const struct hdt_ckpt_reader *reader, const char *name,
                                   uint64_t *bytes, uint64_t *xxh3)
{
    const json_t *root = reader->manifest.root;
    char file[HDT_CKPT_FEEDBACK_CAP];
    const json_t *entry, *tensor;

    hdt_ckpt_feedback_file(name, file);
    entry = json_object_get(json_object_get(root, "files"), file);
    tensor = json_object_get(json_object_get(json_object_get(root, "tensors"), file), "state");
    if (!entry || !tensor) {
        return false;
    }
    *bytes = (uint64_t)json_integer_value(json_object_get(entry, "bytes")); /* as the file has */
    *xxh3 = hdt_msg_hex_u64(json_object_get(tensor, "xxh3"));
    return true;
}

enum hdt_status hdt_ckpt_reader_feedback(const struct hdt_ckpt_reader *reader, const char *name,
                                         uint64_t pos, size_t len, void *dst, struct hdt_error *err)
{
    char file[HDT_CKPT_FEEDBACK_CAP], path[HDT_CKPT_PATH_CAP];
    enum hdt_status status;
    int fd;

    hdt_ckpt_feedback_file(name, file);
    HDT_TRY(hdt_ckpt_path(reader->path, file, path, err));
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot open '%s'", path);
    }
    status = hdt_file_read_at(fd, path, pos, dst, len, err);
    close(fd);
    return status;
}
