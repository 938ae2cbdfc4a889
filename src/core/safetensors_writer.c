/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing safetensors files. All tensors are declared first, so that the header has its final
 * length and data can be written where it belongs as it comes: a checkpoint is gathered from many
 * ranks tensor by tensor and never stands in memory as a whole.
 *
 * The header is written by hand, not by jansson, so that names stand in the order of the data, as
 * Hugging Face's writer puts them; the text of each name is checked and escaped by jansson.
 */
#include "config.h"

#include "src/core/safetensors.h"
#include "src/core/file_at.h"
#include "src/base/buf.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What is written goes to the disk in portions: one sync of all at the end would take as long as
 * the disk needs, without a sign of life. */
#define SYNC_BYTES ((uint64_t)256 << 20)

struct slot {
    struct hdt_safetensors_entry entry; /* name is ours */
    uint64_t written;
};

struct hdt_safetensors_writer {
    char *path;
    int fd;
    bool began;
    json_t *metadata; /* object of strings */
    json_t *names;    /* set of names, to find one that comes twice */
    struct slot *slots;
    size_t n, cap;
    uint64_t unsynced; /* bytes since the last sync */
};

enum hdt_status hdt_safetensors_writer_open(const char *path,
                                            struct hdt_safetensors_writer **writer,
                                            struct hdt_error *err)
{
    struct hdt_safetensors_writer *w;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);

    if (fd < 0) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot create '%s'", path);
    }
    w = hdt_calloc(1, sizeof(*w));
    w->path = hdt_strdup(path);
    w->fd = fd;
    w->metadata = json_object();
    w->names = json_object();
    *writer = w;
    return HDT_OK;
}

static enum hdt_status check_entry(const struct hdt_safetensors_writer *w,
                                   const struct hdt_safetensors_entry *e, uint64_t *len,
                                   struct hdt_error *err)
{
    const char *why = NULL;

    *len = hdt_dtype_size(e->dtype);
    if (!hdt_dtype_safetensors_name(e->dtype)) {
        why = "the format has no such dtype";
    } else if (e->n_dims > HDT_SAFETENSORS_DIMS_MAX) {
        why = "too many dimensions";
    } else if (e->name[0] == '\0' || strcmp(e->name, "__metadata__") == 0) {
        why = "not a name that a tensor may have";
    } else if (json_object_get(w->names, e->name)) {
        why = "declared twice";
    } else if (w->n >= HDT_SAFETENSORS_TENSORS_MAX) {
        why = "too many tensors";
    }
    for (unsigned i = 0; !why && i < e->n_dims; i++) {
        if (__builtin_mul_overflow(*len, e->shape[i], len) || *len > INT64_MAX) {
            why = "its shape is beyond 2^63 bytes";
        }
    }
    if (why) {
        return hdt_error_set(err, HDT_EINVAL, "cannot write tensor '%.128s' to '%s': %s", e->name,
                             w->path, why);
    }
    return HDT_OK;
}

enum hdt_status hdt_safetensors_writer_declare(struct hdt_safetensors_writer *writer,
                                               const struct hdt_safetensors_entry *entry,
                                               struct hdt_error *err)
{
    struct slot *slot;
    uint64_t len;

    HDT_ASSERT(!writer->began);
    HDT_TRY(check_entry(writer, entry, &len, err));
    if (json_object_set_new(writer->names, entry->name, json_true()) != 0) {
        return hdt_error_set(err, HDT_EINVAL, "cannot write a tensor to '%s': its name is no UTF-8",
                             writer->path);
    }
    if (writer->n == writer->cap) {
        writer->cap = writer->cap ? 2 * writer->cap : 64;
        writer->slots = hdt_realloc(writer->slots, writer->cap * sizeof(*writer->slots));
    }
    slot = &writer->slots[writer->n++];
    memset(slot, 0, sizeof(*slot));
    slot->entry = *entry;
    slot->entry.name = hdt_strdup(entry->name);
    slot->entry.len = len;
    return HDT_OK;
}

enum hdt_status hdt_safetensors_writer_metadata(struct hdt_safetensors_writer *writer,
                                                const char *key, const char *value,
                                                struct hdt_error *err)
{
    HDT_ASSERT(!writer->began);
    if (json_object_set_new(writer->metadata, key, json_string(value)) != 0) {
        return hdt_error_set(err, HDT_EINVAL, "cannot write metadata to '%s': it is no UTF-8",
                             writer->path);
    }
    return HDT_OK;
}

/* ---- header ---- */

static void append_json(struct hdt_buf *out, json_t *value)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);

    HDT_ASSERT(text); /* was checked when it came in */
    hdt_buf_append_str(out, text);
    free(text);
}

static void append_entry(struct hdt_buf *out, const struct hdt_safetensors_entry *e)
{
    json_t *name = json_string(e->name);

    append_json(out, name);
    json_decref(name);
    hdt_buf_appendf(out, ":{\"dtype\":\"%s\",\"shape\":[", hdt_dtype_safetensors_name(e->dtype));
    for (unsigned i = 0; i < e->n_dims; i++) {
        hdt_buf_appendf(out, "%s%" PRIu64, i ? "," : "", e->shape[i]);
    }
    hdt_buf_appendf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", e->offset,
                    e->offset + e->len);
}

/* Give every tensor its offset within the data part, wide elements first, and write the JSON. */
static enum hdt_status header_format(struct hdt_safetensors_writer *w, struct hdt_buf *out,
                                     struct hdt_error *err)
{
    uint64_t at = 0;
    bool comma = false;

    hdt_buf_append_str(out, "{");
    if (json_object_size(w->metadata) > 0) {
        hdt_buf_append_str(out, "\"__metadata__\":");
        append_json(out, w->metadata);
        comma = true;
    }
    for (size_t size = 8; size > 0; size /= 2) {
        for (size_t i = 0; i < w->n; i++) {
            struct hdt_safetensors_entry *e = &w->slots[i].entry;

            if (hdt_dtype_size(e->dtype) != size) {
                continue;
            }
            e->offset = at;
            if (__builtin_add_overflow(at, e->len, &at) || at > INT64_MAX) {
                return hdt_error_set(err, HDT_EINVAL, "cannot write '%s': beyond 2^63 bytes",
                                     w->path);
            }
            hdt_buf_append_str(out, comma ? "," : "");
            append_entry(out, e);
            comma = true;
        }
    }
    hdt_buf_append_str(out, "}");
    while ((8 + out->len) % 8 != 0) {
        hdt_buf_append_str(out, " ");
    }
    return HDT_OK;
}

/* Take the file's room now: a disk that is too full says so before hours of copying. Some file
 * systems cannot; there it shows later. */
static enum hdt_status room_reserve(const struct hdt_safetensors_writer *w, struct hdt_error *err)
{
    uint64_t end = 0;

    for (size_t i = 0; i < w->n; i++) {
        const struct hdt_safetensors_entry *e = &w->slots[i].entry;

        end = e->offset + e->len > end ? e->offset + e->len : end;
    }
    if (end > 0 && fallocate(w->fd, 0, 0, (off_t)end) != 0 &&
        (errno == ENOSPC || errno == EDQUOT || errno == EFBIG || errno == EIO)) {
        return hdt_error_set_errno(err, HDT_EIO, errno,
                                   "cannot make room for '%s', %" PRIu64 " bytes", w->path, end);
    }
    return HDT_OK;
}

enum hdt_status hdt_safetensors_writer_begin(struct hdt_safetensors_writer *writer,
                                             struct hdt_error *err)
{
    struct hdt_buf json = {0};
    enum hdt_status status;
    uint64_t len;

    HDT_ASSERT(!writer->began);
    status = header_format(writer, &json, err);
    len = json.len;
    if (status == HDT_OK && len > HDT_SAFETENSORS_HEADER_MAX) {
        status = hdt_error_set(err, HDT_EINVAL,
                               "cannot write '%s': a header of %" PRIu64 " bytes is too long",
                               writer->path, len);
    }
    if (status == HDT_OK) {
        status = hdt_file_write_at(writer->fd, writer->path, 0, &len, sizeof(len), err);
    }
    if (status == HDT_OK) {
        status = hdt_file_write_at(writer->fd, writer->path, sizeof(len), json.data, json.len, err);
    }
    hdt_buf_release(&json);
    if (status != HDT_OK) {
        return status;
    }
    for (size_t i = 0; i < writer->n; i++) {
        writer->slots[i].entry.offset += sizeof(len) + len;
    }
    writer->began = true;
    return room_reserve(writer, err);
}

const struct hdt_safetensors_entry *
hdt_safetensors_writer_entry(const struct hdt_safetensors_writer *writer, size_t idx)
{
    HDT_ASSERT(writer->began && idx < writer->n);
    return &writer->slots[idx].entry;
}

/* ---- data ---- */

enum hdt_status hdt_safetensors_writer_append(struct hdt_safetensors_writer *writer, size_t idx,
                                              const void *data, size_t len, struct hdt_error *err)
{
    struct slot *slot;

    HDT_ASSERT(writer->began && idx < writer->n);
    slot = &writer->slots[idx];
    if (len > slot->entry.len - slot->written) {
        return hdt_error_set(err, HDT_EINVAL,
                             "cannot write tensor '%.128s' to '%s': more than its %" PRIu64
                             " bytes",
                             slot->entry.name, writer->path, slot->entry.len);
    }
    HDT_TRY(hdt_file_write_at(writer->fd, writer->path, slot->entry.offset + slot->written, data,
                              len, err));
    slot->written += len;
    writer->unsynced += len;
    if (writer->unsynced >= SYNC_BYTES) {
        writer->unsynced = 0;
        if (fdatasync(writer->fd) != 0) {
            return hdt_error_set_errno(err, HDT_EIO, errno, "cannot write '%s' to disk",
                                       writer->path);
        }
    }
    return HDT_OK;
}

static enum hdt_status writer_complete(struct hdt_safetensors_writer *w, struct hdt_error *err)
{
    int rc;

    if (!w->began) {
        return hdt_error_set(err, HDT_EINVAL, "cannot complete '%s': nothing was written", w->path);
    }
    for (size_t i = 0; i < w->n; i++) {
        const struct slot *slot = &w->slots[i];

        if (slot->written != slot->entry.len) {
            return hdt_error_set(err, HDT_EINVAL,
                                 "cannot complete '%s': tensor '%.128s' has %" PRIu64 " of %" PRIu64
                                 " bytes",
                                 w->path, slot->entry.name, slot->written, slot->entry.len);
        }
    }
    if (fsync(w->fd) != 0) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot write '%s' to disk", w->path);
    }
    rc = close(w->fd);
    w->fd = -1;
    if (rc != 0) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot write '%s' to disk", w->path);
    }
    return HDT_OK;
}

enum hdt_status hdt_safetensors_writer_close(struct hdt_safetensors_writer *writer,
                                             struct hdt_error *err)
{
    enum hdt_status status = writer_complete(writer, err);

    hdt_safetensors_writer_abort(writer);
    return status;
}

void hdt_safetensors_writer_abort(struct hdt_safetensors_writer *writer)
{
    if (!writer) {
        return;
    }
    if (writer->fd >= 0) {
        close(writer->fd);
    }
    for (size_t i = 0; i < writer->n; i++) {
        free((char *)(uintptr_t)writer->slots[i].entry.name);
    }
    free(writer->slots);
    json_decref(writer->metadata);
    json_decref(writer->names);
    free(writer->path);
    free(writer);
}
