/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/ckpt_manifest.h"

#include "src/base/buf.h"
#include "src/base/file.h"
#include "src/core/msg.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

/* Far above the manifest of any model: 300 bytes a tensor. */
#define MANIFEST_MAX ((size_t)256 << 20)

static const char *const file_names[] = {HDT_CKPT_CONFIG, HDT_CKPT_MODEL, HDT_CKPT_OPTIMIZER};
#define N_FILES (sizeof(file_names) / sizeof(file_names[0]))

/* ---- owners ---- */

bool hdt_ckpt_owner_same(const struct hdt_ckpt_owner *a, const struct hdt_ckpt_owner *b)
{
    return a->job == b->job && strcmp(a->name, b->name) == 0 &&
           strcmp(a->submitted, b->submitted) == 0;
}

json_t *hdt_ckpt_owner_json(const struct hdt_ckpt_owner *owner)
{
    return json_pack("{s:I,s:I,s:I,s:s,s:s,s:s}", "job", (json_int_t)owner->job, "epoch",
                     (json_int_t)owner->epoch, "number", (json_int_t)owner->number, "name",
                     owner->name, "coordinator", owner->coordinator, "submitted", owner->submitted);
}

static void owner_read(const json_t *json, struct hdt_ckpt_owner *owner)
{
    const char *name = json_string_value(json_object_get(json, "name"));
    const char *coordinator = json_string_value(json_object_get(json, "coordinator"));
    const char *submitted = json_string_value(json_object_get(json, "submitted"));

    memset(owner, 0, sizeof(*owner));
    owner->job = (uint32_t)json_integer_value(json_object_get(json, "job"));
    owner->epoch = (uint32_t)json_integer_value(json_object_get(json, "epoch"));
    owner->number = json_integer_value(json_object_get(json, "number"));
    snprintf(owner->name, sizeof(owner->name), "%s", name ? name : "");
    snprintf(owner->coordinator, sizeof(owner->coordinator), "%s", coordinator ? coordinator : "");
    snprintf(owner->submitted, sizeof(owner->submitted), "%s", submitted ? submitted : "");
}

/* ---- the manifest ---- */

static enum hdt_status manifest_refuse(const struct hdt_ckpt_manifest *manifest, const char *file,
                                       const char *why, struct hdt_error *err)
{
    return hdt_error_set(err, HDT_EINVAL, "cannot use the checkpoint '%s': %s %s", manifest->path,
                         file, why);
}

static json_t *manifest_digest(json_t *root)
{
    json_t *own = json_incref(json_object_get(root, "digest")), *digest;
    char *text;

    json_object_del(root, "digest");
    text = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
    HDT_ASSERT(text);
    digest = hdt_msg_u64_hex(XXH3_64bits(text, strlen(text)));
    free(text);
    if (own) {
        json_object_set_new(root, "digest", own);
    }
    return digest;
}

void hdt_ckpt_manifest_seal(json_t *root)
{
    json_object_set_new(root, "digest", manifest_digest(root));
}

enum hdt_status hdt_ckpt_manifest_write(json_t *root, const char *dir, struct hdt_error *err)
{
    char path[HDT_CKPT_PATH_CAP];

    hdt_ckpt_manifest_seal(root);
    HDT_TRY(hdt_ckpt_path(dir, HDT_CKPT_MANIFEST, path, err));
    return hdt_ckpt_write_json(path, root, err);
}

static enum hdt_status manifest_parse(struct hdt_ckpt_manifest *manifest,
                                      const struct hdt_buf *text, struct hdt_error *err)
{
    json_int_t format = 0, step = -1, samples = -1, tokens = -1;
    json_t *seed = NULL, *owner = NULL, *digest;
    bool equal;

    manifest->root = json_loadb(text->data, text->len, JSON_REJECT_DUPLICATES, NULL);
    if (!manifest->root) {
        return manifest_refuse(manifest, HDT_CKPT_MANIFEST, "is cut or damaged", err);
    }
    if (json_unpack(manifest->root, "{s:I,s:I,s:I,s:I,s:o,s:o}", "hdt_checkpoint", &format, "step",
                    &step, "samples", &samples, "tokens", &tokens, "seed", &seed, "owner",
                    &owner) != 0 ||
        step < 0 || samples < 0 || tokens < 0) {
        return manifest_refuse(manifest, HDT_CKPT_MANIFEST, "lacks what a manifest says", err);
    }
    if (format != HDT_CKPT_FORMAT) {
        return manifest_refuse(manifest, HDT_CKPT_MANIFEST, "is of another version of the format",
                               err);
    }
    digest = manifest_digest(manifest->root);
    equal = json_equal(digest, json_object_get(manifest->root, "digest")) == 1;
    json_decref(digest);
    if (!equal) {
        return manifest_refuse(manifest, HDT_CKPT_MANIFEST, "was altered: its digest is another",
                               err);
    }
    manifest->meta.step = step;
    manifest->meta.samples = (uint64_t)samples;
    manifest->meta.tokens = (uint64_t)tokens;
    manifest->meta.seed = hdt_msg_hex_u64(seed);
    manifest->meta.job = json_object_get(manifest->root, "job");
    owner_read(owner, &manifest->meta.owner);
    return HDT_OK;
}

static const json_t *manifest_file(const struct hdt_ckpt_manifest *manifest, const char *name)
{
    return json_object_get(json_object_get(manifest->root, "files"), name);
}

static enum hdt_status manifest_check_size(struct hdt_ckpt_manifest *manifest, const char *name,
                                           struct hdt_error *err)
{
    char path[HDT_CKPT_PATH_CAP], why[160];
    json_int_t want;
    struct stat st;

    HDT_TRY(hdt_ckpt_path(manifest->path, name, path, err));
    want = json_integer_value(json_object_get(manifest_file(manifest, name), "bytes"));
    if (stat(path, &st) != 0) {
        return manifest_refuse(manifest, name, "is missing", err);
    }
    if ((json_int_t)st.st_size != want) {
        snprintf(why, sizeof(why),
                 "is truncated or longer: it has %lld bytes, the manifest "
                 "says %lld",
                 (long long)st.st_size, (long long)want);
        return manifest_refuse(manifest, name, why, err);
    }
    manifest->bytes += (uint64_t)want;
    return HDT_OK;
}

static enum hdt_status manifest_check_sizes(struct hdt_ckpt_manifest *manifest,
                                            struct hdt_error *err)
{
    json_t *files = json_object_get(manifest->root, "files"), *value;
    const char *name;

    for (size_t i = 0; i < N_FILES; i++) {
        if (!manifest_file(manifest, file_names[i])) {
            return manifest_refuse(manifest, file_names[i], "is not in the manifest", err);
        }
        HDT_TRY(manifest_check_size(manifest, file_names[i], err));
    }
    json_object_foreach(files, name, value)
    {
        if (hdt_ckpt_is_feedback(name)) {
            HDT_TRY(manifest_check_size(manifest, name, err));
        }
    }
    return HDT_OK;
}

enum hdt_status hdt_ckpt_manifest_read(const char *path, struct hdt_ckpt_manifest *manifest,
                                       struct hdt_error *err)
{
    char file[HDT_CKPT_PATH_CAP];
    struct hdt_buf text = {0};
    enum hdt_status status;

    memset(manifest, 0, sizeof(*manifest));
    HDT_TRY(hdt_ckpt_path(path, HDT_CKPT_MANIFEST, file, err));
    memcpy(manifest->path, path, strlen(path) + 1); /* shorter than `file`, which fits */
    status = hdt_file_read(file, MANIFEST_MAX, &text, err);
    if (status == HDT_ENOENT) {
        status = manifest_refuse(manifest, HDT_CKPT_MANIFEST, "is missing", err);
    }
    if (status == HDT_OK) {
        status = manifest_parse(manifest, &text, err);
    }
    hdt_buf_release(&text);
    return status == HDT_OK ? manifest_check_sizes(manifest, err) : status;
}

void hdt_ckpt_manifest_release(struct hdt_ckpt_manifest *manifest)
{
    json_decref(manifest->root);
    manifest->root = NULL;
}

/* ---- every byte ---- */

/* What the manifest says of a file's tensors, in the order of their bytes. */
struct tensor_range {
    const char *name;
    uint64_t begin, end, xxh3;
};

static int range_compare(const void *a, const void *b)
{
    const struct tensor_range *x = a, *y = b;

    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return (x->end > y->end) - (x->end < y->end);
}

static size_t ranges_list(const struct hdt_ckpt_manifest *manifest, const char *file,
                          struct tensor_range **ranges)
{
    json_t *tensors = json_object_get(json_object_get(manifest->root, "tensors"), file), *value;
    const char *name;
    size_t n = 0;

    *ranges = hdt_calloc(json_object_size(tensors) + 1, sizeof(**ranges));
    json_object_foreach(tensors, name, value)
    {
        json_t *range = json_object_get(value, "range");

        (*ranges)[n].name = name;
        (*ranges)[n].begin = (uint64_t)json_integer_value(json_array_get(range, 0));
        (*ranges)[n].end = (uint64_t)json_integer_value(json_array_get(range, 1));
        (*ranges)[n++].xxh3 = hdt_msg_hex_u64(json_object_get(value, "xxh3"));
    }
    if (n > 0) {
        qsort(*ranges, n, sizeof(**ranges), range_compare);
    }
    return n;
}

/* The file is not what it was: say where. */
static enum hdt_status file_refuse(const struct hdt_ckpt_manifest *manifest,
                                   const struct hdt_ckpt_scan *scan, const char *file,
                                   const struct tensor_range *ranges, struct hdt_error *err)
{
    const char *want = json_string_value(json_object_get(manifest_file(manifest, file), "sha256"));
    char why[400];
    size_t i;

    for (i = 0; i < scan->n_pieces; i++) {
        if (scan->pieces[i].xxh3 != ranges[i].xxh3) {
            snprintf(why, sizeof(why),
                     "was altered: tensor '%.120s', bytes %" PRIu64 " to %" PRIu64
                     ", has the digest %016" PRIx64 ", the manifest says %016" PRIx64,
                     ranges[i].name, ranges[i].begin, ranges[i].end, scan->pieces[i].xxh3,
                     ranges[i].xxh3);
            return manifest_refuse(manifest, file, why, err);
        }
    }
    snprintf(why, sizeof(why),
             "was altered%s: bytes 0 to %" PRIu64 " have the SHA-256 %.16s..., the manifest says "
             "%.16s...",
             scan->n_pieces > 0 ? " in its header" : "",
             scan->n_pieces > 0 ? ranges[0].begin : scan->bytes, scan->sha256,
             want ? want : "none");
    return manifest_refuse(manifest, file, why, err);
}

static bool file_is_good(const struct hdt_ckpt_manifest *manifest, const struct hdt_ckpt_scan *scan,
                         const char *file, const struct tensor_range *ranges)
{
    const json_t *want = manifest_file(manifest, file);
    const char *sha256 = json_string_value(json_object_get(want, "sha256"));
    size_t i;

    for (i = 0; i < scan->n_pieces; i++) {
        if (scan->pieces[i].xxh3 != ranges[i].xxh3) {
            return false;
        }
    }
    return sha256 && strcmp(sha256, scan->sha256) == 0 &&
           json_integer_value(json_object_get(want, "bytes")) == (json_int_t)scan->bytes;
}

static enum hdt_status file_verify(const struct hdt_ckpt_manifest *manifest, const char *file,
                                   const struct hdt_ckpt_verify *how, struct hdt_error *err)
{
    char path[HDT_CKPT_PATH_CAP], copy[HDT_CKPT_PATH_CAP];
    struct hdt_ckpt_scan scan = {
        .path = path, .from_disk = how->from_disk, .progress = how->progress, .arg = how->arg};
    struct tensor_range *ranges;
    enum hdt_status status;
    size_t i;

    HDT_TRY(hdt_ckpt_path(manifest->path, file, path, err));
    if (how->copy_to) {
        HDT_TRY(hdt_ckpt_path(how->copy_to, file, copy, err));
        scan.copy_to = copy;
    }
    scan.n_pieces = ranges_list(manifest, file, &ranges);
    scan.pieces = hdt_calloc(scan.n_pieces + 1, sizeof(*scan.pieces));
    for (i = 0; i < scan.n_pieces; i++) {
        scan.pieces[i].begin = ranges[i].begin;
        scan.pieces[i].end = ranges[i].end;
    }
    status = hdt_ckpt_scan_file(&scan, err);
    if (status == HDT_OK && !file_is_good(manifest, &scan, file, ranges)) {
        status = file_refuse(manifest, &scan, file, ranges, err);
    }
    free(scan.pieces);
    free(ranges);
    return status;
}

enum hdt_status hdt_ckpt_manifest_verify(const struct hdt_ckpt_manifest *manifest,
                                         const struct hdt_ckpt_verify *how, struct hdt_error *err)
{
    json_t *files = json_object_get(manifest->root, "files"), *value;
    const char *name;

    for (size_t i = 0; i < N_FILES; i++) {
        if (!how->weights_only || strcmp(file_names[i], HDT_CKPT_OPTIMIZER) != 0) {
            HDT_TRY(file_verify(manifest, file_names[i], how, err));
        }
    }
    json_object_foreach(files, name, value)
    {
        if (!how->weights_only && hdt_ckpt_is_feedback(name)) {
            HDT_TRY(file_verify(manifest, name, how, err));
        }
    }
    return HDT_OK;
}
