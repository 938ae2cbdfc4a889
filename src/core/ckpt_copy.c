/* SPDX-License-Identifier: Apache-2.0 */
/* Copying a checkpoint: what is read is verified, what was written is read back from the disk and
 * verified again, and only then has the copy its name. */
#include "config.h"

#include "src/core/ckpt.h"

#include "src/core/ckpt_folder.h"
#include "src/core/ckpt_manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The folder that will hold the copy, and its name there. */
static enum hdt_status copy_place(const char *to, const struct hdt_ckpt_manifest *manifest,
                                  char dir[HDT_CKPT_PATH_CAP], char final[HDT_CKPT_PATH_CAP],
                                  struct hdt_error *err)
{
    char name[64];
    struct stat st;
    size_t len = strlen(to);
    char *slash;

    while (len > 1 && to[len - 1] == '/') {
        len--;
    }
    if (len == 0 || len >= HDT_CKPT_PATH_CAP) {
        return hdt_error_set(err, HDT_EINVAL,
                             "cannot copy: no name of a folder, or too long a one");
    }
    snprintf(dir, HDT_CKPT_PATH_CAP, "%.*s", (int)len, to);
    if (stat(dir, &st) == 0 && S_ISDIR(st.st_mode)) {
        snprintf(name, sizeof(name), "step-%08" PRId64, manifest->meta.step);
        return hdt_ckpt_path(dir, name, final, err);
    }
    memcpy(final, dir, len + 1);
    slash = strrchr(dir, '/');
    if (slash && slash != dir) {
        *slash = '\0';
    } else {
        snprintf(dir, HDT_CKPT_PATH_CAP, "%s", slash ? "/" : ".");
    }
    return hdt_ckpt_mkdir(dir, err);
}

/* The manifest goes last: without it a folder is no checkpoint. */
static enum hdt_status copy_write(const struct hdt_ckpt_manifest *manifest, const char *temp,
                                  struct hdt_error *err)
{
    const struct hdt_ckpt_verify how = {.copy_to = temp};
    char from[HDT_CKPT_PATH_CAP], to[HDT_CKPT_PATH_CAP];
    struct hdt_ckpt_scan scan = {.path = from, .copy_to = to};
    struct hdt_ckpt_manifest made;
    enum hdt_status status;

    HDT_TRY(hdt_ckpt_manifest_verify(manifest, &how, err));
    HDT_TRY(hdt_ckpt_path(manifest->path, HDT_CKPT_MANIFEST, from, err));
    HDT_TRY(hdt_ckpt_path(temp, HDT_CKPT_MANIFEST, to, err));
    HDT_TRY(hdt_ckpt_scan_file(&scan, err));
    status = hdt_ckpt_manifest_read(temp, &made, err); /* what was written, not what was read */
    if (status == HDT_OK) {
        status = hdt_ckpt_manifest_verify(&made, &(struct hdt_ckpt_verify){.from_disk = true}, err);
    }
    hdt_ckpt_manifest_release(&made);
    return status == HDT_OK ? hdt_ckpt_sync(temp, err) : status;
}

static enum hdt_status copy_rename(const char *temp, const char *dir, const char *final,
                                   struct hdt_error *err)
{
    int rc = renameat2(AT_FDCWD, temp, AT_FDCWD, final, RENAME_NOREPLACE);

    if (rc != 0 && (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP)) {
        rc = rename(temp, final); /* refuses a folder that is not empty, too */
    }
    if (rc != 0) {
        return hdt_error_set_errno(err, errno == EEXIST ? HDT_EEXIST : HDT_EIO, errno,
                                   "cannot copy to '%s'", final);
    }
    return hdt_ckpt_sync(dir, err);
}

static enum hdt_status copy_run(const struct hdt_ckpt_manifest *manifest, const char *to,
                                struct hdt_ckpt_found *made, struct hdt_error *err)
{
    char dir[HDT_CKPT_PATH_CAP], temp[HDT_CKPT_PATH_CAP];
    enum hdt_status status;
    struct stat st;
    int lock = -1;

    HDT_TRY(copy_place(to, manifest, dir, made->path, err));
    if (lstat(made->path, &st) == 0) {
        hdt_error_set(err, HDT_EEXIST, "cannot copy to '%s': it exists already", made->path);
        hdt_error_hint(err, "copy to another folder; nothing was changed");
        return HDT_EEXIST;
    }
    HDT_TRY(hdt_ckpt_temp_make(dir, manifest->meta.step, temp, &lock, err));
    status = copy_write(manifest, temp, err);
    if (status == HDT_OK) {
        status = copy_rename(temp, dir, made->path, err);
    }
    if (status != HDT_OK) {
        hdt_ckpt_remove(temp, NULL);
    }
    if (lock >= 0) {
        close(lock);
    }
    made->step = manifest->meta.step;
    made->bytes = manifest->bytes;
    made->owner = manifest->meta.owner;
    made->complete = status == HDT_OK;
    return status;
}

enum hdt_status hdt_ckpt_copy(const char *path, const char *to, struct hdt_ckpt_found *made,
                              struct hdt_error *err)
{
    struct hdt_ckpt_manifest manifest = {0};
    char from[HDT_CKPT_PATH_CAP];
    enum hdt_status status;

    memset(made, 0, sizeof(*made));
    HDT_TRY(hdt_ckpt_resolve(path, from, err));
    status = hdt_ckpt_manifest_read(from, &manifest, err);
    if (status == HDT_OK) {
        status = copy_run(&manifest, to, made, err);
    }
    if (status == HDT_EINVAL) {
        hdt_ckpt_hint_other(from, err);
    }
    hdt_ckpt_manifest_release(&manifest);
    return status;
}
