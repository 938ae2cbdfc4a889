/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading safetensors files.
 *
 * The header is foreign JSON. jansson parses it (bounded to 100 MB, names twice refused); then
 * every entry is checked by itself, and sorted by offset the entries must follow one another
 * without overlap or hole up to the end of the file. Only after that does anyone see an offset.
 *
 * Data is read with pread and not mapped: a file that is cut while it is read gives an error, not
 * SIGBUS, and what is read ends up in the caller's memory anyway.
 */
#include "config.h"

#include "src/core/safetensors.h"
#include "src/core/file_at.h"
#include "src/base/buf.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What the header says, checked. */
struct header {
    json_t *root;                      /* owns the names */
    struct hdt_safetensors_entry *all; /* sorted by offset (within the data part) */
    struct hdt_safetensors_entry **by_name;
    size_t n;
};

struct hdt_safetensors {
    char *path;
    int fd;
    struct header header;
};

/* Dtypes that the format has and we cannot name still have a size; they are refused: a tensor that
 * cannot be used must not be passed on as bytes by accident. */
static enum hdt_status entry_dtype(const char *name, const json_t *value,
                                   struct hdt_safetensors_entry *e, struct hdt_error *err)
{
    const char *text = json_string_value(value);

    for (int d = 1; text && d < HDT_DTYPE_COUNT; d++) {
        const char *known = hdt_dtype_safetensors_name((enum hdt_dtype)d);

        if (known && strcmp(known, text) == 0) {
            e->dtype = (enum hdt_dtype)d;
            return HDT_OK;
        }
    }
    return hdt_error_set(err, HDT_EINVAL, "tensor '%.128s': dtype '%.32s' is not known", name,
                         text ? text : "");
}

/* Shape and, from it and the dtype, the number of bytes. */
static enum hdt_status entry_shape(const char *name, const json_t *value,
                                   struct hdt_safetensors_entry *e, struct hdt_error *err)
{
    uint64_t len = hdt_dtype_size(e->dtype);

    if (!json_is_array(value) || json_array_size(value) > HDT_SAFETENSORS_DIMS_MAX) {
        return hdt_error_set(err, HDT_EINVAL, "tensor '%.128s': shape is no list of up to %d sizes",
                             name, HDT_SAFETENSORS_DIMS_MAX);
    }
    e->n_dims = (unsigned)json_array_size(value);
    for (unsigned i = 0; i < e->n_dims; i++) {
        const json_t *size = json_array_get(value, i);

        if (!json_is_integer(size) || json_integer_value(size) < 0) {
            return hdt_error_set(err, HDT_EINVAL,
                                 "tensor '%.128s': a size of its shape is no "
                                 "number from 0 up",
                                 name);
        }
        e->shape[i] = (uint64_t)json_integer_value(size);
        if (__builtin_mul_overflow(len, e->shape[i], &len)) {
            return hdt_error_set(err, HDT_EINVAL, "tensor '%.128s': its shape is beyond 2^64 bytes",
                                 name);
        }
    }
    e->len = len;
    return HDT_OK;
}

static enum hdt_status entry_range(const char *name, const json_t *value, uint64_t data_len,
                                   struct hdt_safetensors_entry *e, struct hdt_error *err)
{
    const json_t *begin = json_array_get(value, 0), *end = json_array_get(value, 1);
    json_int_t b = json_integer_value(begin), t = json_integer_value(end);

    if (json_array_size(value) != 2 || !json_is_integer(begin) || !json_is_integer(end)) {
        return hdt_error_set(err, HDT_EINVAL, "tensor '%.128s': data_offsets is no pair of numbers",
                             name);
    }
    if (b < 0 || t < b || (uint64_t)t > data_len) {
        return hdt_error_set(err, HDT_EINVAL,
                             "tensor '%.128s': bytes %" JSON_INTEGER_FORMAT
                             " to %" JSON_INTEGER_FORMAT " are outside the data part of %" PRIu64
                             ": the file is cut or damaged",
                             name, b, t, data_len);
    }
    if ((uint64_t)(t - b) != e->len) {
        return hdt_error_set(err, HDT_EINVAL,
                             "tensor '%.128s': %" JSON_INTEGER_FORMAT
                             " bytes do not fit its dtype and shape, which need %" PRIu64,
                             name, t - b, e->len);
    }
    e->offset = (uint64_t)b;
    return HDT_OK;
}

static enum hdt_status entry_parse(const char *name, const json_t *value, uint64_t data_len,
                                   struct hdt_safetensors_entry *e, struct hdt_error *err)
{
    if (!json_is_object(value)) {
        return hdt_error_set(err, HDT_EINVAL, "tensor '%.128s': no JSON object", name);
    }
    e->name = name;
    HDT_TRY(entry_dtype(name, json_object_get(value, "dtype"), e, err));
    HDT_TRY(entry_shape(name, json_object_get(value, "shape"), e, err));
    return entry_range(name, json_object_get(value, "data_offsets"), data_len, e, err);
}

static int compare_offset(const void *a, const void *b)
{
    const struct hdt_safetensors_entry *x = a, *y = b;

    if (x->offset != y->offset) {
        return x->offset < y->offset ? -1 : 1;
    }
    if (x->len != y->len) { /* empty ones before the one that begins there */
        return x->len < y->len ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

static int compare_name(const void *a, const void *b)
{
    const struct hdt_safetensors_entry *const *x = a, *const *y = b;

    return strcmp((*x)->name, (*y)->name);
}

static enum hdt_status metadata_check(const json_t *metadata, struct hdt_error *err)
{
    const char *key;
    json_t *value;

    if (!metadata) {
        return HDT_OK;
    }
    if (!json_is_object(metadata)) {
        return hdt_error_set(err, HDT_EINVAL, "__metadata__ is no JSON object");
    }
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value)
    {
        if (!json_is_string(value)) {
            return hdt_error_set(err, HDT_EINVAL, "__metadata__ '%.64s' is no text", key);
        }
    }
    return HDT_OK;
}

/* Without overlap and hole from the first data byte to the last. */
static enum hdt_status check_ranges(const struct header *h, uint64_t data_len,
                                    struct hdt_error *err)
{
    uint64_t at = 0;

    for (size_t i = 0; i < h->n; i++) {
        const struct hdt_safetensors_entry *e = &h->all[i];

        if (e->offset != at) {
            return hdt_error_set(err, HDT_EINVAL,
                                 "tensor '%.128s' begins at byte %" PRIu64
                                 " of the data and the one before ends at %" PRIu64 ": %s",
                                 e->name, e->offset, at,
                                 e->offset < at ? "they overlap" : "there is a hole");
        }
        at += e->len;
    }
    if (at != data_len) {
        return hdt_error_set(
            err, HDT_EINVAL,
            "the tensors end at byte %" PRIu64 " of the data, the file at %" PRIu64, at, data_len);
    }
    return HDT_OK;
}

static void header_release(struct header *h)
{
    json_decref(h->root);
    free(h->all);
    free(h->by_name);
    memset(h, 0, sizeof(*h));
}

static enum hdt_status header_fill(struct header *h, uint64_t data_len, struct hdt_error *err)
{
    const char *name;
    json_t *value;

    HDT_TRY(metadata_check(json_object_get(h->root, "__metadata__"), err));
    json_object_foreach(h->root, name, value)
    {
        if (strcmp(name, "__metadata__") != 0) {
            HDT_TRY(entry_parse(name, value, data_len, &h->all[h->n], err));
            h->n++;
        }
    }
    if (h->n > 0) {
        qsort(h->all, h->n, sizeof(*h->all), compare_offset);
    }
    for (size_t i = 0; i < h->n; i++) {
        h->by_name[i] = &h->all[i];
    }
    if (h->n > 0) {
        qsort(h->by_name, h->n, sizeof(*h->by_name), compare_name);
    }
    return check_ranges(h, data_len, err);
}

/* Parse and check; on failure *h is empty. The JSON has passed its size limit. */
static enum hdt_status header_parse(struct header *h, const char *json, size_t json_len,
                                    uint64_t data_len, struct hdt_error *err)
{
    json_error_t json_err;
    enum hdt_status status;
    size_t n;

    memset(h, 0, sizeof(*h));
    h->root = json_loadb(json, json_len, JSON_REJECT_DUPLICATES, &json_err);
    if (!h->root || !json_is_object(h->root)) {
        header_release(h);
        return hdt_error_set(err, HDT_EINVAL, "the header is no JSON object: %s",
                             h->root ? "" : json_err.text);
    }
    n = json_object_size(h->root);
    if (n > HDT_SAFETENSORS_TENSORS_MAX) {
        header_release(h);
        return hdt_error_set(err, HDT_EINVAL, "%zu tensors are more than %u", n,
                             HDT_SAFETENSORS_TENSORS_MAX);
    }
    h->all = hdt_calloc(n + 1, sizeof(*h->all));
    h->by_name = hdt_calloc(n + 1, sizeof(*h->by_name));
    status = header_fill(h, data_len, err);
    if (status != HDT_OK) {
        header_release(h);
    }
    return status;
}

enum hdt_status hdt_safetensors_check_header(const char *json, size_t json_len, uint64_t data_len,
                                             struct hdt_error *err)
{
    struct header h;

    if (json_len > HDT_SAFETENSORS_HEADER_MAX) {
        return hdt_error_set(err, HDT_EINVAL,
                             "a header of %zu bytes is above the limit of %" PRIu64, json_len,
                             HDT_SAFETENSORS_HEADER_MAX);
    }
    HDT_TRY(header_parse(&h, json, json_len, data_len, err));
    header_release(&h);
    return HDT_OK;
}

/* ---- files ---- */

/* Read the header of a file of `size` bytes; offsets become those of the file. */
static enum hdt_status file_parse(struct hdt_safetensors *st, uint64_t size, struct hdt_error *err)
{
    enum hdt_status status;
    uint64_t len;
    char *json;

    if (size < 8) {
        return hdt_error_set(err, HDT_EINVAL,
                             "no safetensors file: %" PRIu64 " bytes are too few for a header",
                             size);
    }
    HDT_TRY(hdt_file_read_at(st->fd, st->path, 0, &len, sizeof(len), err));
    if (len > HDT_SAFETENSORS_HEADER_MAX || len > size - 8) {
        return hdt_error_set(err, HDT_EINVAL,
                             "no safetensors file, or cut: a header of %" PRIu64
                             " bytes does not fit a file of %" PRIu64,
                             len, size);
    }
    json = malloc((size_t)len + 1);
    if (!json) {
        return hdt_error_set(err, HDT_ENOMEM, "no memory for a header of %" PRIu64 " bytes", len);
    }
    status = hdt_file_read_at(st->fd, st->path, 8, json, (size_t)len, err);
    if (status == HDT_OK) {
        status = header_parse(&st->header, json, (size_t)len, size - 8 - len, err);
    }
    free(json);
    for (size_t i = 0; i < st->header.n; i++) {
        st->header.all[i].offset += 8 + len;
    }
    return status;
}

static enum hdt_status file_open(struct hdt_safetensors *st, struct hdt_error *err)
{
    uint64_t size;

    HDT_TRY(hdt_file_open_at(st->path, &st->fd, &size, err));
    return file_parse(st, size, err);
}

enum hdt_status hdt_safetensors_open(const char *path, struct hdt_safetensors **st,
                                     struct hdt_error *err)
{
    struct hdt_safetensors *s = hdt_calloc(1, sizeof(*s));
    enum hdt_status status;

    s->path = hdt_strdup(path);
    status = file_open(s, err);
    if (status == HDT_EINVAL) {
        hdt_error_where(err, "%s", path);
    }
    if (status != HDT_OK) {
        hdt_safetensors_close(s);
        return status;
    }
    *st = s;
    return HDT_OK;
}

void hdt_safetensors_close(struct hdt_safetensors *st)
{
    if (!st) {
        return;
    }
    if (st->fd >= 0) {
        close(st->fd);
    }
    header_release(&st->header);
    free(st->path);
    free(st);
}

size_t hdt_safetensors_n(const struct hdt_safetensors *st)
{
    return st->header.n;
}

const struct hdt_safetensors_entry *hdt_safetensors_at(const struct hdt_safetensors *st, size_t idx)
{
    HDT_ASSERT(idx < st->header.n);
    return &st->header.all[idx];
}

const struct hdt_safetensors_entry *hdt_safetensors_find(const struct hdt_safetensors *st,
                                                         const char *name)
{
    const struct hdt_safetensors_entry key = {.name = name}, *key_ptr = &key;
    struct hdt_safetensors_entry *const *found;

    if (st->header.n == 0) {
        return NULL;
    }
    found = bsearch(&key_ptr, st->header.by_name, st->header.n, sizeof(*st->header.by_name),
                    compare_name);
    return found ? *found : NULL;
}

const char *hdt_safetensors_metadata(const struct hdt_safetensors *st, const char *key)
{
    return json_string_value(
        json_object_get(json_object_get(st->header.root, "__metadata__"), key));
}

enum hdt_status hdt_safetensors_read(const struct hdt_safetensors *st,
                                     const struct hdt_safetensors_entry *entry, void *dst,
                                     struct hdt_error *err)
{
    return hdt_safetensors_read_part(st, entry, 0, (size_t)entry->len, dst, err);
}

enum hdt_status hdt_safetensors_read_part(const struct hdt_safetensors *st,
                                          const struct hdt_safetensors_entry *entry, uint64_t pos,
                                          size_t len, void *dst, struct hdt_error *err)
{
    HDT_ASSERT(pos <= entry->len && len <= entry->len - pos);
    return hdt_file_read_at(st->fd, st->path, entry->offset + pos, dst, len, err);
}
