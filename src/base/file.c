/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/file.h"
#include "src/base/buf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool hdt_file_exists(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0;
}

static enum hdt_status fd_read(int fd, const char *path, size_t max, struct hdt_buf *buf,
                               struct hdt_error *err)
{
    size_t start = buf->len;
    char chunk[16384];
    ssize_t n;

    do {
        n = read(fd, chunk, sizeof(chunk));
        if (n < 0 && errno != EINTR) {
            return hdt_error_set_errno(err, HDT_EIO, errno, "cannot read '%s'", path);
        }
        hdt_buf_append(buf, chunk, n > 0 ? (size_t)n : 0);
        if (buf->len - start > max) {
            return hdt_error_set(err, HDT_EINVAL, "cannot read '%s': it has more than %zu bytes",
                                 path, max);
        }
    } while (n != 0);
    return HDT_OK;
}

enum hdt_status hdt_file_read(const char *path, size_t max, struct hdt_buf *buf,
                              struct hdt_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    enum hdt_status status;

    if (fd < 0) {
        return hdt_error_set_errno(err, errno == ENOENT ? HDT_ENOENT : HDT_EIO, errno,
                                   "cannot open '%s'", path);
    }
    status = fd_read(fd, path, max, buf, err);
    close(fd);
    return status;
}

/* All bytes to the disk; errno tells why not. */
static bool fd_write(int fd, const struct hdt_buf *bytes, unsigned mode)
{
    size_t done = 0;
    ssize_t n;

    if (fchmod(fd, (mode_t)mode) != 0) {
        return false;
    }
    while (done < bytes->len) {
        n = write(fd, bytes->data + done, bytes->len - done);
        if (n < 0 && errno != EINTR) {
            return false;
        }
        done += n > 0 ? (size_t)n : 0;
    }
    return fsync(fd) == 0;
}

/* Make the new name last through a crash: flush its folder. Some file systems cannot; then the
 * file is as safe as they make it. */
static void folder_sync(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? hdt_asprintf("%.*s", (int)(slash - path + 1), path) : hdt_strdup(".");
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(folder);
}

enum hdt_status hdt_file_write(const char *path, const struct hdt_buf *bytes, unsigned mode,
                               enum hdt_file_flags flags, struct hdt_error *err)
{
    char *temp = hdt_asprintf("%s.XXXXXX", path);
    enum hdt_status status = HDT_OK;
    int fd = mkostemp(temp, O_CLOEXEC);
    int rc;

    if (fd < 0) {
        status = hdt_error_set_errno(err, HDT_EIO, errno, "cannot create '%s'", path);
        goto out;
    }
    if (!fd_write(fd, bytes, mode)) {
        status = hdt_error_set_errno(err, HDT_EIO, errno, "cannot write '%s'", path);
        goto out_unlink;
    }
    /* link() refuses an existing name where rename() would replace it. */
    rc = flags & HDT_FILE_REPLACE ? rename(temp, path) : link(temp, path);
    if (rc != 0) {
        status = hdt_error_set_errno(err, errno == EEXIST ? HDT_EEXIST : HDT_EIO, errno,
                                     "cannot write '%s'", path);
    }
    folder_sync(path);

out_unlink:
    if (status != HDT_OK || !(flags & HDT_FILE_REPLACE)) {
        unlink(temp);
    }
    close(fd);
out:
    free(temp);
    return status;
}

enum hdt_status hdt_dir_make(const char *path, unsigned mode, struct hdt_error *err)
{
    char *part = hdt_strdup(path);
    enum hdt_status status = HDT_OK;
    struct stat st;

    for (char *at = part + 1; *part && *at; at++) {
        if (*at == '/') {
            *at = '\0';
            (void)mkdir(part, 0755); /* a failure shows below, with the whole path */
            *at = '/';
        }
    }
    if (mkdir(path, (mode_t)mode) != 0 && errno != EEXIST) {
        status = hdt_error_set_errno(err, HDT_EIO, errno, "cannot make folder '%s'", path);
    } else if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) {
        status =
            hdt_error_set(err, HDT_EEXIST, "cannot make folder '%s': it is not a folder", path);
    }
    free(part);
    return status;
}
