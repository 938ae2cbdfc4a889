/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/ckpt.h"

#include "src/core/ckpt_feedback.h"
#include "src/core/ckpt_folder.h"
#include "src/core/ckpt_manifest.h"
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
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

/* Headers, config.json and the manifest: so much a tensor file's entry, and so much besides. */
#define ENTRY_BYTES   1024u
#define BESIDES_BYTES 65536u

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

uint64_t hdt_ckpt_bytes(const struct hdt_model_config *model)
{
    uint64_t bytes = BESIDES_BYTES;
    int64_t i;

    for (i = 0; i < hdt_ckpt_n_tensors(model); i++) {
        bytes += HDT_CKPT_PART_COUNT * (hdt_ckpt_tensor_bytes(model, i) + ENTRY_BYTES);
    }
    return bytes;
}

void hdt_ckpt_tensor_name(const struct hdt_model_config *model, int64_t tensor,
                          enum hdt_ckpt_part part, char *name, size_t cap)
{
    static const char *const suffix[] = {"", ".exp_avg", ".exp_avg_sq"};
    struct hdt_model_tensor info;

    hdt_model_tensor(model, tensor, &info);
    snprintf(name, cap, "%s%s", info.name, suffix[part]);
}

/* One part of a tensor on its way to the file. */
struct part {
    XXH3_state_t *state; /* while its bytes come */
    uint64_t got;        /* digest of the bytes that came, once it is sealed */
    bool sealed;
};

struct hdt_ckpt_writer {
    struct hdt_ckpt_writer_conf conf;
    struct hdt_model_config model;
    json_t *job;
    char dir[HDT_CKPT_PATH_CAP], tmp[HDT_CKPT_PATH_CAP];
    int lock;                                /* on tmp, -1: none */
    struct hdt_safetensors_writer *files[2]; /* model, optimizer */
    struct part *parts;                      /* by file and index in it */
    int64_t n_tensors;
    struct hdt_ckpt_feedbacks feedback;
};

static const char *const file_names[2] = {HDT_CKPT_MODEL, HDT_CKPT_OPTIMIZER};

/* Index of a part in its file. */
static size_t part_idx(const struct hdt_ckpt_writer *writer, int64_t tensor,
                       enum hdt_ckpt_part part)
{
    HDT_ASSERT(tensor >= 0 && tensor < writer->n_tensors);
    return (size_t)tensor + (part == HDT_CKPT_EXP_AVG_SQ ? (size_t)writer->n_tensors : 0);
}

static struct part *part_of(const struct hdt_ckpt_writer *writer, int64_t tensor,
                            enum hdt_ckpt_part part)
{
    return &writer->parts[(size_t)part * (size_t)writer->n_tensors + (size_t)tensor];
}

static void writer_free(struct hdt_ckpt_writer *writer)
{
    int64_t i;

    for (i = 0; i < HDT_CKPT_PART_COUNT * writer->n_tensors; i++) {
        XXH3_freeState(writer->parts[i].state);
    }
    hdt_ckpt_feedbacks_release(&writer->feedback);
    hdt_safetensors_writer_abort(writer->files[0]);
    hdt_safetensors_writer_abort(writer->files[1]);
    if (writer->lock >= 0) {
        close(writer->lock);
    }
    free(writer->parts);
    json_decref(writer->job);
    free(writer);
}

void hdt_ckpt_writer_abort(struct hdt_ckpt_writer *writer)
{
    if (writer) {
        if (writer->tmp[0]) {
            hdt_ckpt_remove(writer->tmp, NULL);
        }
        writer_free(writer);
    }
}

/* ---- opening ---- */

/* A disk that is filled in vain is no help to anyone else on it. */
enum hdt_status hdt_ckpt_check_room(const char *dir, const struct hdt_model_config *model,
                                    uint64_t beside_bytes, struct hdt_error *err)
{
    uint64_t need = hdt_ckpt_bytes(model) + beside_bytes, room;
    struct statvfs fs;

    if (statvfs(dir, &fs) != 0) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot look for room in '%s'", dir);
    }
    room = (uint64_t)(geteuid() == 0 ? fs.f_bfree : fs.f_bavail) * fs.f_frsize;
    if (room < need) {
        hdt_error_set_errno(err, HDT_EIO, ENOSPC,
                            "cannot save to '%s': %.1f MB are needed, %.1f MB are free", dir,
                            (double)need / 1e6, (double)room / 1e6);
        hdt_error_hint(err, "free some space there, or move checkpoint.dir to a larger disk");
        return HDT_EIO;
    }
    return HDT_OK;
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
        hdt_ckpt_tensor_name(&writer->model, i, part, name, sizeof(name));
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

static enum hdt_status writer_prepare(struct hdt_ckpt_writer *writer, struct hdt_error *err)
{
    const char *dir = writer->conf.dir;
    struct hdt_ckpt_owner *owner = &writer->conf.meta.owner;

    if (strlen(dir) >= sizeof(writer->dir)) {
        return hdt_error_set(err, HDT_EINVAL, "cannot use the checkpoint folder: name too long");
    }
    memcpy(writer->dir, dir, strlen(dir) + 1);
    HDT_TRY(hdt_ckpt_mkdir(dir, err));
    HDT_TRY(hdt_ckpt_check_step(dir, owner, writer->conf.meta.step, err));
    HDT_TRY(hdt_ckpt_check_room(dir, &writer->model, writer->conf.beside_bytes, err));
    HDT_TRY(hdt_ckpt_temp_make(dir, writer->conf.meta.step, writer->tmp, &writer->lock, err));
    return writer_open_files(writer, err);
}

enum hdt_status hdt_ckpt_writer_open(const struct hdt_ckpt_writer_conf *conf,
                                     struct hdt_ckpt_writer **out, struct hdt_error *err)
{
    struct hdt_ckpt_writer *writer = hdt_calloc(1, sizeof(*writer));
    enum hdt_status status;

    writer->conf = *conf;
    writer->model = *conf->model;
    writer->lock = -1;
    writer->job = json_deep_copy(conf->meta.job);
    writer->n_tensors = hdt_ckpt_n_tensors(conf->model);
    writer->parts =
        hdt_calloc(HDT_CKPT_PART_COUNT * (size_t)writer->n_tensors, sizeof(*writer->parts));
    status = writer_prepare(writer, err);
    if (status != HDT_OK) {
        hdt_ckpt_writer_abort(writer);
        return status;
    }
    *out = writer;
    return HDT_OK;
}

/* ---- tensors ---- */

enum hdt_status hdt_ckpt_writer_append(struct hdt_ckpt_writer *writer, int64_t tensor,
                                       enum hdt_ckpt_part part, const void *data, size_t len,
                                       struct hdt_error *err)
{
    size_t idx = part_idx(writer, tensor, part);
    struct part *p = part_of(writer, tensor, part);

    HDT_TRY(
        hdt_safetensors_writer_append(writer->files[part != HDT_CKPT_WEIGHT], idx, data, len, err));
    if (!p->state) {
        p->state = XXH3_createState();
        HDT_ASSERT(p->state);
        XXH3_64bits_reset(p->state);
    }
    XXH3_64bits_update(p->state, data, len);
    return HDT_OK;
}

enum hdt_status hdt_ckpt_writer_seal(struct hdt_ckpt_writer *writer, int64_t tensor,
                                     enum hdt_ckpt_part part, uint64_t xxh3, struct hdt_error *err)
{
    struct part *p = part_of(writer, tensor, part);
    char name[128];

    HDT_ASSERT(tensor >= 0 && tensor < writer->n_tensors);
    if (p->sealed || !p->state) {
        return hdt_error_set(err, HDT_EPROTO, "cannot save tensor %" PRId64 ", part %d: %s", tensor,
                             (int)part, p->sealed ? "it came twice" : "nothing of it came");
    }
    p->got = XXH3_64bits_digest(p->state);
    p->sealed = true;
    XXH3_freeState(p->state);
    p->state = NULL;
    if (p->got != xxh3) {
        hdt_ckpt_tensor_name(&writer->model, tensor, part, name, sizeof(name));
        hdt_error_set(err, HDT_ECRC,
                      "cannot save tensor '%s': it was damaged on its way: its owner's digest is "
                      "%016" PRIx64 ", that of what came %016" PRIx64,
                      name, xxh3, p->got);
        hdt_error_hint(err, "memory or a network card is at fault, on its owner's machine or on "
                            "this one");
        return HDT_ECRC;
    }
    return HDT_OK;
}

enum hdt_status hdt_ckpt_writer_feedback(struct hdt_ckpt_writer *writer, const char *name,
                                         uint64_t offset, const void *data, size_t len,
                                         struct hdt_error *err)
{
    return hdt_ckpt_feedbacks_append(&writer->feedback, writer->tmp, name, offset, data, len, err);
}

enum hdt_status hdt_ckpt_writer_seal_feedback(struct hdt_ckpt_writer *writer, const char *name,
                                              uint64_t xxh3, struct hdt_error *err)
{
    return hdt_ckpt_feedbacks_seal(&writer->feedback, name, xxh3, err);
}

static enum hdt_status writer_check_sealed(const struct hdt_ckpt_writer *writer,
                                           struct hdt_error *err)
{
    char name[128];
    int64_t i;
    int part;

    for (i = 0; i < writer->n_tensors; i++) {
        for (part = 0; part < HDT_CKPT_PART_COUNT; part++) {
            if (!part_of(writer, i, part)->sealed) {
                hdt_ckpt_tensor_name(&writer->model, i, part, name, sizeof(name));
                return hdt_error_set(err, HDT_EINVAL,
                                     "cannot complete the checkpoint of step %" PRId64
                                     ": no digest of tensor '%s' came",
                                     writer->conf.meta.step, name);
            }
        }
    }
    return HDT_OK;
}

static uint64_t writer_weights_digest(const struct hdt_ckpt_writer *writer)
{
    XXH3_state_t *all = XXH3_createState();
    uint64_t digest, value;
    int64_t i;

    HDT_ASSERT(all);
    XXH3_64bits_reset(all);
    for (i = 0; i < writer->n_tensors; i++) {
        value = htole64(part_of(writer, i, HDT_CKPT_WEIGHT)->got);
        XXH3_64bits_update(all, &value, sizeof(value));
    }
    digest = XXH3_64bits_digest(all);
    XXH3_freeState(all);
    return digest;
}

/* ---- the manifest ---- */

static json_t *entry_json(const struct hdt_safetensors_entry *entry, uint64_t xxh3)
{
    json_t *shape = json_array();
    unsigned i;

    for (i = 0; i < entry->n_dims; i++) {
        json_array_append_new(shape, json_integer((json_int_t)entry->shape[i]));
    }
    return json_pack("{s:s,s:o,s:[I,I],s:o}", "dtype", hdt_dtype_safetensors_name(entry->dtype),
                     "shape", shape, "range", (json_int_t)entry->offset,
                     (json_int_t)(entry->offset + entry->len), "xxh3", hdt_msg_u64_hex(xxh3));
}

/* What a file holds, by its owners' digests. */
static json_t *tensors_json(const struct hdt_ckpt_writer *writer, int f)
{
    json_t *tensors = json_object();
    char name[128];
    int64_t i;
    int part;

    for (part = f ? HDT_CKPT_EXP_AVG : HDT_CKPT_WEIGHT;
         part < (f ? HDT_CKPT_PART_COUNT : HDT_CKPT_EXP_AVG); part++) {
        for (i = 0; i < writer->n_tensors; i++) {
            hdt_ckpt_tensor_name(&writer->model, i, part, name, sizeof(name));
            json_object_set_new(tensors, name,
                                entry_json(hdt_safetensors_writer_entry(writer->files[f],
                                                                        part_idx(writer, i, part)),
                                           part_of(writer, i, part)->got));
        }
    }
    return tensors;
}

/* A feedback file is one tensor of bytes. */
static void feedback_json(const struct hdt_ckpt_writer *writer, json_t *tensors)
{
    for (size_t i = 0; i < writer->feedback.n; i++) {
        const struct hdt_ckpt_feedback *item = &writer->feedback.items[i];
        struct hdt_safetensors_entry entry = {.dtype = HDT_DTYPE_U8, .n_dims = 1, .len = item->len};

        entry.shape[0] = item->len;
        json_object_set_new(tensors, item->file,
                            json_pack("{s:o}", "state", entry_json(&entry, item->xxh3)));
    }
}

static json_t *manifest_new(const struct hdt_ckpt_writer *writer)
{
    const struct hdt_ckpt_meta *meta = &writer->conf.meta;
    time_t now = time(NULL);
    json_t *manifest;
    struct tm utc;
    char saved[32];

    gmtime_r(&now, &utc);
    strftime(saved, sizeof(saved), "%Y-%m-%dT%H:%M:%SZ", &utc);
    manifest = json_pack(
        "{s:i,s:I,s:o,s:I,s:I,s:s,s:o,s:o,s:{},s:{s:o,s:o}}", "hdt_checkpoint", HDT_CKPT_FORMAT,
        "step", (json_int_t)meta->step, "seed", hdt_msg_u64_hex(meta->seed), "samples",
        (json_int_t)meta->samples, "tokens", (json_int_t)meta->tokens, "saved", saved, "owner",
        hdt_ckpt_owner_json(&meta->owner), "weights_digest",
        hdt_msg_u64_hex(writer_weights_digest(writer)), "files", "tensors", HDT_CKPT_MODEL,
        tensors_json(writer, 0), HDT_CKPT_OPTIMIZER, tensors_json(writer, 1));
    HDT_ASSERT(manifest);
    feedback_json(writer, json_object_get(manifest, "tensors"));
    json_object_set_new(manifest, "job", writer->job ? json_incref(writer->job) : json_null());
    return manifest;
}

/* ---- the end ---- */

/* Does what lies on the disk have the digests of what came? And its SHA-256, for the manifest. */
static enum hdt_status writer_read_back(const struct hdt_ckpt_writer *writer, const char *name,
                                        json_t *manifest, struct hdt_error *err)
{
    json_t *tensors = json_object_get(json_object_get(manifest, "tensors"), name);
    size_t n = json_object_size(tensors), i = 0;
    struct hdt_ckpt_piece *pieces = hdt_calloc(n + 1, sizeof(*pieces));
    char path[HDT_CKPT_PATH_CAP];
    struct hdt_ckpt_scan scan = {.path = path,
                                 .pieces = pieces,
                                 .n_pieces = n,
                                 .from_disk = true,
                                 .progress = writer->conf.progress,
                                 .arg = writer->conf.arg};
    enum hdt_status status = hdt_ckpt_path(writer->tmp, name, path, err);
    const char *key;
    json_t *tensor;

    json_object_foreach(tensors, key, tensor) /* in the order of their bytes: all are float32 */
    {
        pieces[i].begin =
            (uint64_t)json_integer_value(json_array_get(json_object_get(tensor, "range"), 0));
        pieces[i++].end =
            (uint64_t)json_integer_value(json_array_get(json_object_get(tensor, "range"), 1));
    }
    if (status == HDT_OK) {
        status = hdt_ckpt_scan_file(&scan, err);
    }
    i = 0;
    json_object_foreach(tensors, key, tensor)
    {
        if (status == HDT_OK &&
            pieces[i].xxh3 != hdt_msg_hex_u64(json_object_get(tensor, "xxh3"))) {
            status = hdt_error_set(err, HDT_EIO,
                                   "cannot save tensor '%s': read back from '%s', bytes %" PRIu64
                                   " to %" PRIu64 " are not what was written: the disk damages it",
                                   key, path, pieces[i].begin, pieces[i].end);
        }
        i++;
    }
    free(pieces);
    if (status == HDT_OK) {
        json_object_set_new(
            json_object_get(manifest, "files"), name,
            json_pack("{s:I,s:s}", "bytes", (json_int_t)scan.bytes, "sha256", scan.sha256));
    }
    return status;
}

static enum hdt_status writer_close_files(struct hdt_ckpt_writer *writer, struct hdt_error *err)
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
        if (writer->conf.progress) {
            writer->conf.progress(writer->conf.arg);
        }
    }
    HDT_TRY(hdt_ckpt_feedbacks_sync(&writer->feedback, writer->tmp, err));
    HDT_TRY(hdt_ckpt_path(writer->tmp, HDT_CKPT_CONFIG, path, err));
    config = hdt_model_to_json(&writer->model);
    status = hdt_ckpt_write_json(path, config, err);
    json_decref(config);
    return status;
}

static enum hdt_status writer_place(struct hdt_ckpt_writer *writer, struct hdt_error *err)
{
    struct hdt_error cause = {0};
    enum hdt_status status;
    int lock;

    HDT_TRY(hdt_ckpt_folder_lock(writer->dir, &lock, err));
    status = hdt_ckpt_temp_place(writer->dir, writer->tmp, &writer->conf.meta, err);
    if (status == HDT_OK && writer->conf.keep > 0 &&
        hdt_ckpt_prune(writer->dir, &writer->conf.meta, writer->conf.keep, &cause) != HDT_OK) {
        hdt_log_failure(HDT_LOG_WARN, &cause); /* the new one is whole all the same */
    }
    if (lock >= 0) {
        close(lock);
    }
    return status;
}

static enum hdt_status writer_complete(struct hdt_ckpt_writer *writer, json_t *manifest,
                                       struct hdt_ckpt_result *result, struct hdt_error *err)
{
    static const char *const names[] = {HDT_CKPT_CONFIG, HDT_CKPT_MODEL, HDT_CKPT_OPTIMIZER};
    const size_t n_names = sizeof(names) / sizeof(names[0]);
    const json_t *files = json_object_get(manifest, "files");
    char name[64];
    size_t i;

    HDT_TRY(writer_close_files(writer, err));
    result->bytes = 0;
    for (i = 0; i < n_names + writer->feedback.n; i++) {
        const char *file = i < n_names ? names[i] : writer->feedback.items[i - n_names].file;

        HDT_TRY(writer_read_back(writer, file, manifest, err));
        result->bytes +=
            (uint64_t)json_integer_value(json_object_get(json_object_get(files, file), "bytes"));
    }
    HDT_TRY(hdt_ckpt_manifest_write(manifest, writer->tmp, err));
    snprintf(name, sizeof(name), "step-%08" PRId64, writer->conf.meta.step);
    HDT_TRY(hdt_ckpt_path(writer->dir, name, result->path, err));
    return writer_place(writer, err);
}

enum hdt_status hdt_ckpt_writer_finish(struct hdt_ckpt_writer *writer,
                                       struct hdt_ckpt_result *result, struct hdt_error *err)
{
    enum hdt_status status = writer_check_sealed(writer, err);
    json_t *manifest;

    if (status == HDT_OK) {
        result->digest = writer_weights_digest(writer);
        manifest = manifest_new(writer);
        status = writer_complete(writer, manifest, result, err);
        json_decref(manifest);
    }
    if (status != HDT_OK) {
        hdt_ckpt_writer_abort(writer);
        return status;
    }
    writer_free(writer);
    return HDT_OK;
}
