/* SPDX-License-Identifier: Apache-2.0 */
/* Which checkpoints a folder has, whose they are, and which one a path means. */
#include "config.h"

#include "src/core/ckpt_folder.h"

#include "src/core/ckpt_manifest.h"
#include "src/base/buf.h"
#include "src/base/log.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- names and owners ---- */

int64_t hdt_ckpt_step_of_name(const char *name)
{
    char again[64];
    char *end;
    long long step;

    if (strncmp(name, "step-", 5) != 0) {
        return -1;
    }
    errno = 0;
    step = strtoll(name + 5, &end, 10);
    if (errno != 0 || *end != '\0' || step < 0) {
        return -1;
    }
    snprintf(again, sizeof(again), "step-%08lld", step);
    return strcmp(again, name) == 0 ? (int64_t)step : -1;
}

enum hdt_status hdt_ckpt_owner_refuse(const char *path, const struct hdt_ckpt_owner *theirs,
                                      const struct hdt_ckpt_owner *ours, struct hdt_error *err)
{
    hdt_error_set(err, HDT_EEXIST,
                  "cannot save to '%s': job %" PRId64 " ('%s', submitted at site %s) wrote it, "
                  "this is job %" PRId64 " ('%s', submitted at site %s)",
                  path, theirs->number, theirs->name, theirs->coordinator, ours->number, ours->name,
                  ours->coordinator);
    hdt_error_hint(err, "set checkpoint.dir to a folder of its own, or move the old checkpoint "
                        "away");
    return HDT_EEXIST;
}

/* ---- one folder ---- */

static void found_fill(struct hdt_ckpt_found *found, const struct hdt_ckpt_manifest *manifest)
{
    const char *saved = json_string_value(json_object_get(manifest->root, "saved"));

    snprintf(found->path, sizeof(found->path), "%s", manifest->path);
    snprintf(found->saved, sizeof(found->saved), "%s", saved ? saved : "");
    found->owner = manifest->meta.owner;
    found->bytes = manifest->bytes;
}

static void found_look(const char *path, int64_t step, struct hdt_ckpt_found *found)
{
    struct hdt_ckpt_manifest manifest;

    memset(found, 0, sizeof(*found));
    snprintf(found->path, sizeof(found->path), "%s", path);
    found->step = step;
    found->complete = hdt_ckpt_manifest_read(path, &manifest, &found->why) == HDT_OK;
    if (manifest.root) {
        found_fill(found, &manifest);
    }
    if (found->complete && manifest.meta.step != step) {
        found->complete = false;
        hdt_error_set(&found->why, HDT_EINVAL,
                      "cannot use the checkpoint '%s': its manifest is of step %" PRId64, path,
                      manifest.meta.step);
    }
    hdt_ckpt_manifest_release(&manifest);
}

static int step_compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x < y) - (x > y);
}

/* Steps by name, highest first; *steps is the caller's. */
static enum hdt_status steps_list(const char *dir, int64_t **steps, size_t *n,
                                  struct hdt_error *err)
{
    DIR *d = opendir(dir);
    struct dirent *entry;
    size_t cap = 0;
    int64_t step;

    *steps = NULL;
    *n = 0;
    if (!d) {
        return hdt_error_set_errno(err, errno == ENOENT ? HDT_ENOENT : HDT_EIO, errno,
                                   "cannot read the folder '%s'", dir);
    }
    while ((entry = readdir(d))) {
        step = hdt_ckpt_step_of_name(entry->d_name);
        if (step < 0) {
            continue;
        }
        if (*n == cap) {
            cap = cap ? 2 * cap : 16;
            *steps = hdt_realloc(*steps, cap * sizeof(**steps));
        }
        (*steps)[(*n)++] = step;
    }
    closedir(d);
    if (*n > 0) {
        qsort(*steps, *n, sizeof(**steps), step_compare);
    }
    return HDT_OK;
}

static enum hdt_status step_look(const char *dir, int64_t step, struct hdt_ckpt_found *found,
                                 struct hdt_error *err)
{
    char name[64], path[HDT_CKPT_PATH_CAP];

    snprintf(name, sizeof(name), "step-%08" PRId64, step);
    HDT_TRY(hdt_ckpt_path(dir, name, path, err));
    found_look(path, step, found);
    return HDT_OK;
}

enum hdt_status hdt_ckpt_list(const char *dir, struct hdt_ckpt_found **found, size_t *n,
                              struct hdt_error *err)
{
    enum hdt_status status;
    int64_t *steps;
    size_t i;

    HDT_TRY(steps_list(dir, &steps, n, err));
    *found = hdt_calloc(*n + 1, sizeof(**found));
    status = HDT_OK;
    for (i = 0; i < *n && status == HDT_OK; i++) {
        status = step_look(dir, steps[i], &(*found)[i], err);
    }
    free(steps);
    if (status != HDT_OK) {
        free(*found);
    }
    return status;
}

bool hdt_ckpt_look(const char *dir, struct hdt_ckpt_found *found)
{
    struct hdt_ckpt_manifest manifest;
    struct hdt_error ignored = {0};
    bool is_one;

    hdt_ckpt_manifest_read(dir, &manifest, &ignored);
    is_one = manifest.root != NULL;
    if (is_one) {
        found_look(dir, manifest.meta.step, found);
    }
    hdt_ckpt_manifest_release(&manifest);
    return is_one;
}

/* Is every byte of it right? */
static bool found_is_sound(const struct hdt_ckpt_found *found, const struct hdt_ckpt_query *query)
{
    const struct hdt_ckpt_verify how = {.progress = query->progress, .arg = query->arg};
    struct hdt_ckpt_manifest manifest;
    struct hdt_error why = {0};
    enum hdt_status status = hdt_ckpt_manifest_read(found->path, &manifest, &why);

    if (status == HDT_OK) {
        status = hdt_ckpt_manifest_verify(&manifest, &how, &why);
    }
    hdt_ckpt_manifest_release(&manifest);
    if (status != HDT_OK) {
        hdt_log_failure(HDT_LOG_WARN, &why);
    }
    return status == HDT_OK;
}

enum hdt_status hdt_ckpt_newest(const char *dir, const struct hdt_ckpt_query *query,
                                struct hdt_ckpt_found *found, struct hdt_error *err)
{
    enum hdt_status status;
    bool taken = false;
    int64_t *steps;
    size_t n, i;

    HDT_TRY(steps_list(dir, &steps, &n, err));
    status = HDT_OK;
    for (i = 0; i < n && status == HDT_OK && !taken; i++) {
        if (query->max_step >= 0 && steps[i] > query->max_step) {
            continue;
        }
        status = step_look(dir, steps[i], found, err);
        taken = status == HDT_OK && found->complete &&
                (!query->owner || hdt_ckpt_owner_same(&found->owner, query->owner)) &&
                (!query->every_byte || found_is_sound(found, query));
    }
    free(steps);
    if (status == HDT_OK && !taken) {
        status = hdt_error_set(err, HDT_ENOENT, "cannot find a complete checkpoint in '%s'", dir);
    }
    return status;
}

enum hdt_status hdt_ckpt_check_step(const char *dir, const struct hdt_ckpt_owner *owner,
                                    int64_t step, struct hdt_error *err)
{
    struct hdt_ckpt_found found;

    HDT_TRY(step_look(dir, step, &found, err));
    return found.complete && !hdt_ckpt_owner_same(&found.owner, owner)
               ? hdt_ckpt_owner_refuse(found.path, &found.owner, owner, err)
               : HDT_OK;
}

enum hdt_status hdt_ckpt_check_owner(const char *dir, const struct hdt_ckpt_owner *owner,
                                     int64_t step, struct hdt_error *err)
{
    enum hdt_status status = HDT_OK;
    int64_t *steps;
    size_t n, i;

    if (steps_list(dir, &steps, &n, NULL) != HDT_OK) {
        return HDT_OK;
    }
    for (i = 0; i < n && steps[i] > step && status == HDT_OK; i++) {
        status = hdt_ckpt_check_step(dir, owner, steps[i], err);
    }
    free(steps);
    return status;
}

/* ---- by path ---- */

/* What the link DIR/latest names, whether it is there or not; false: there is no link. */
static bool latest_read(const char *dir, char path[HDT_CKPT_PATH_CAP])
{
    char link[HDT_CKPT_PATH_CAP], name[256];
    ssize_t n;

    if (hdt_ckpt_path(dir, "latest", link, NULL) != HDT_OK ||
        (n = readlink(link, name, sizeof(name) - 1)) < 0) {
        return false;
    }
    name[n] = '\0';
    if (name[0] == '/') {
        memcpy(path, name, (size_t)n + 1);
        return true;
    }
    return hdt_ckpt_path(dir, name, path, NULL) == HDT_OK;
}

enum hdt_status hdt_ckpt_resolve(const char *path, char out[HDT_CKPT_PATH_CAP],
                                 struct hdt_error *err)
{
    const struct hdt_ckpt_query query = {.max_step = -1};
    char file[HDT_CKPT_PATH_CAP];
    struct hdt_ckpt_found found;
    struct stat st;

    HDT_TRY(hdt_ckpt_path(path, HDT_CKPT_MANIFEST, file, err));
    if (stat(file, &st) == 0) {
        memcpy(out, path, strlen(path) + 1); /* shorter than `file`, which fits */
        return HDT_OK;
    }
    if (latest_read(path, out)) {
        return HDT_OK;
    }
    if (hdt_ckpt_newest(path, &query, &found, NULL) != HDT_OK) {
        hdt_error_set(err, HDT_ENOENT, "cannot find a checkpoint in '%s'", path);
        hdt_error_hint(err, "name a folder that holds hdt.json, or 'latest', or complete step-* "
                            "folders ('hdt checkpoint list' shows what is there)");
        return HDT_ENOENT;
    }
    memcpy(out, found.path, sizeof(found.path));
    return HDT_OK;
}

void hdt_ckpt_hint_other(const char *path, struct hdt_error *err)
{
    struct hdt_ckpt_found *found;
    char dir[HDT_CKPT_PATH_CAP];
    char *slash;
    size_t n, i;

    snprintf(dir, sizeof(dir), "%s", path);
    slash = strrchr(dir, '/');
    if (slash) {
        *slash = '\0';
    } else {
        snprintf(dir, sizeof(dir), ".");
    }
    hdt_error_hint(err, "copy it again from where it is whole; no other complete one is beside it");
    if (hdt_ckpt_list(slash == dir ? "/" : dir, &found, &n, NULL) != HDT_OK) {
        return;
    }
    for (i = 0; i < n; i++) {
        if (found[i].complete && strcmp(found[i].path, path) != 0) {
            hdt_error_hint(err, "resume from an older one: '%s' is the newest that is complete",
                           found[i].path);
            break;
        }
    }
    free(found);
}
