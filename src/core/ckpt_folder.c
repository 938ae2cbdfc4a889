/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/ckpt_folder.h"

#include "src/core/ckpt_manifest.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LOCK_WAIT_S   30
#define LOCK_RETRY_NS 20000000
#define TEMP_MARK     ".tmp-"

/* ---- names ---- */

/* "step-N.tmp-XXXXXX". */
static bool name_is_temp(const char *name)
{
    const char *mark = strstr(name, TEMP_MARK);
    char step[64];

    if (!mark || (size_t)(mark - name) >= sizeof(step) || strlen(mark) != strlen(TEMP_MARK) + 6) {
        return false;
    }
    snprintf(step, sizeof(step), "%.*s", (int)(mark - name), name);
    return hdt_ckpt_step_of_name(step) >= 0;
}

/* ---- locks ---- */

/* HDT_OK with the lock held, HDT_AGAIN when another process has it, HDT_ENOTSUP when there are no
 * locks here; only with HDT_OK is *fd to be closed. */
static enum hdt_status lock_try(const char *path, int *fd, struct hdt_error *err)
{
    int failed;

    *fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*fd < 0) {
        return hdt_error_set_errno(err, errno == ENOENT ? HDT_ENOENT : HDT_EIO, errno,
                                   "cannot open the folder '%s'", path);
    }
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0) {
        return HDT_OK;
    }
    failed = errno;
    close(*fd);
    *fd = -1;
    return failed == EWOULDBLOCK || failed == EINTR ? HDT_AGAIN : HDT_ENOTSUP;
}

enum hdt_status hdt_ckpt_folder_lock(const char *dir, int *fd, struct hdt_error *err)
{
    const struct timespec pause = {.tv_nsec = LOCK_RETRY_NS};
    int64_t until = hdt_clock_now_us() + LOCK_WAIT_S * HDT_US_PER_S;
    enum hdt_status status;

    while ((status = lock_try(dir, fd, err)) == HDT_AGAIN) {
        if (hdt_clock_now_us() >= until) {
            hdt_error_set(err, HDT_ETIMEDOUT,
                          "cannot change the folder '%s': another process has locked it for %d s",
                          dir, LOCK_WAIT_S);
            hdt_error_hint(err, "'fuser -v %s' shows which", dir);
            return HDT_ETIMEDOUT;
        }
        nanosleep(&pause, NULL);
    }
    return status == HDT_ENOTSUP ? HDT_OK : status;
}

/* ---- temporary folders ---- */

/* Remove a temporary folder whose process has ended. */
static void temp_clean(const char *dir, const char *name)
{
    struct hdt_error err = {0};
    char path[HDT_CKPT_PATH_CAP];
    enum hdt_status status;
    int fd;

    if (hdt_ckpt_path(dir, name, path, NULL) != HDT_OK) {
        return;
    }
    status = lock_try(path, &fd, &err);
    if (status == HDT_ENOTSUP) {
        hdt_log_warn("'%s' may be left over: this file system has no locks that could tell; "
                     "remove it when nothing writes it",
                     path);
    }
    if (status != HDT_OK) {
        return; /* it is being written */
    }
    if (hdt_ckpt_remove(path, &err) == HDT_OK) {
        hdt_log_info("removed '%s', which a save that was interrupted left", path);
    } else {
        hdt_log_failure(HDT_LOG_WARN, &err);
    }
    close(fd);
}

static void temps_clean(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *entry;

    while (d && (entry = readdir(d))) {
        if (name_is_temp(entry->d_name)) {
            temp_clean(dir, entry->d_name);
        }
    }
    if (d) {
        closedir(d);
    }
}

static enum hdt_status temp_new(const char *dir, int64_t step, char path[HDT_CKPT_PATH_CAP],
                                struct hdt_error *err)
{
    char name[80];

    snprintf(name, sizeof(name), "step-%08" PRId64 TEMP_MARK "XXXXXX", step);
    HDT_TRY(hdt_ckpt_path(dir, name, path, err));
    if (!mkdtemp(path)) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot make the folder '%s'", path);
    }
    if (chmod(path, 0755) != 0) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot open up the folder '%s'", path);
    }
    return HDT_OK;
}

enum hdt_status hdt_ckpt_temp_make(const char *dir, int64_t step, char path[HDT_CKPT_PATH_CAP],
                                   int *fd, struct hdt_error *err)
{
    enum hdt_status status;
    int lock;

    HDT_TRY(hdt_ckpt_folder_lock(dir, &lock, err));
    temps_clean(dir);
    status = temp_new(dir, step, path, err);
    if (status == HDT_OK) {
        status = lock_try(path, fd, err);
        status = status == HDT_ENOTSUP ? HDT_OK : status;
        HDT_ASSERT(status != HDT_AGAIN); /* others lock only what they find under the folder's */
    }
    if (lock >= 0) {
        close(lock);
    }
    return status;
}

/* Take a folder away: under a temporary name first, so that what an interruption leaves of it is no
 * checkpoint. */
static enum hdt_status folder_remove(const char *dir, const char *path, int64_t step,
                                     struct hdt_error *err)
{
    char temp[HDT_CKPT_PATH_CAP], other[256];

    if (hdt_ckpt_has_other(path, other)) {
        hdt_error_set(err, HDT_EEXIST,
                      "cannot remove '%s': it holds '%s', which is none of a "
                      "checkpoint's files",
                      path, other);
        hdt_error_hint(err, "move it away, or remove the folder by hand");
        return HDT_EEXIST;
    }
    HDT_TRY(temp_new(dir, step, temp, err));
    if (rename(path, temp) != 0) {
        hdt_error_set_errno(err, HDT_EIO, errno, "cannot remove '%s'", path);
        rmdir(temp);
        return HDT_EIO;
    }
    return hdt_ckpt_remove(temp, err);
}

/* ---- putting in place ---- */

/* Is what stands at `path` ours to replace? What is no readable checkpoint is nobody's. */
static enum hdt_status place_check(const char *path, const struct hdt_ckpt_meta *meta,
                                   struct hdt_error *err)
{
    struct hdt_ckpt_manifest manifest;
    enum hdt_status status;

    if (hdt_ckpt_manifest_read(path, &manifest, NULL) == HDT_OK) {
        status = hdt_ckpt_owner_same(&manifest.meta.owner, &meta->owner)
                     ? HDT_OK
                     : hdt_ckpt_owner_refuse(path, &manifest.meta.owner, &meta->owner, err);
    } else {
        hdt_log_warn("'%s' is no complete checkpoint: replaced", path);
        status = HDT_OK;
    }
    hdt_ckpt_manifest_release(&manifest);
    return status;
}

/* Exchange two folders in one step; a file system that cannot takes two, between which a reader
 * finds none, and a crash leaves the old one under a temporary name. */
static enum hdt_status place_exchange(const char *dir, const char *temp, const char *path,
                                      int64_t step, struct hdt_error *err)
{
    if (renameat2(AT_FDCWD, temp, AT_FDCWD, path, RENAME_EXCHANGE) == 0) {
        return HDT_OK;
    }
    if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot replace '%s'", path);
    }
    HDT_TRY(folder_remove(dir, path, step, err));
    if (rename(temp, path) != 0) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot rename '%s'", temp);
    }
    return HDT_OK;
}

static enum hdt_status point_latest(const char *dir, const char *name, struct hdt_error *err)
{
    char link[HDT_CKPT_PATH_CAP], tmp[HDT_CKPT_PATH_CAP];

    HDT_TRY(hdt_ckpt_path(dir, "latest", link, err));
    HDT_TRY(hdt_ckpt_path(dir, "latest.tmp", tmp, err));
    unlink(tmp); /* left by an interruption */
    if (symlink(name, tmp) != 0 || rename(tmp, link) != 0) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot replace '%s'", link);
    }
    return hdt_ckpt_sync(dir, err);
}

enum hdt_status hdt_ckpt_temp_place(const char *dir, const char *temp,
                                    const struct hdt_ckpt_meta *meta, struct hdt_error *err)
{
    char name[64], path[HDT_CKPT_PATH_CAP];
    struct hdt_error cause = {0};
    struct stat st;

    snprintf(name, sizeof(name), "step-%08" PRId64, meta->step);
    HDT_TRY(hdt_ckpt_path(dir, name, path, err));
    HDT_TRY(hdt_ckpt_sync(temp, err));
    if (lstat(path, &st) == 0) {
        HDT_TRY(place_check(path, meta, err));
        HDT_TRY(place_exchange(dir, temp, path, meta->step, err));
    } else if (rename(temp, path) != 0) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot rename '%s'", temp);
    }
    HDT_TRY(hdt_ckpt_sync(dir, err));
    HDT_TRY(point_latest(dir, name, err));
    if (hdt_ckpt_remove(temp, &cause) != HDT_OK) {
        hdt_log_failure(HDT_LOG_WARN, &cause);
    }
    return HDT_OK;
}

enum hdt_status hdt_ckpt_prune(const char *dir, const struct hdt_ckpt_meta *meta, int64_t keep,
                               struct hdt_error *err)
{
    enum hdt_status status = HDT_OK;
    struct hdt_ckpt_found *found;
    int64_t n_seen = 0;
    size_t n, i;

    HDT_TRY(hdt_ckpt_list(dir, &found, &n, err));
    for (i = 0; i < n && status == HDT_OK; i++) {
        if (found[i].complete && found[i].step <= meta->step &&
            hdt_ckpt_owner_same(&found[i].owner, &meta->owner) && n_seen++ >= keep) {
            status = folder_remove(dir, found[i].path, found[i].step, err);
        }
    }
    free(found);
    return status;
}
