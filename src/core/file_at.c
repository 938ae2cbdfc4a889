/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/file_at.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

enum hdt_status hdt_file_open_at(const char *path, int *fd, uint64_t *size, struct hdt_error *err)
{
    struct stat st;

    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0) {
        return hdt_error_set_errno(err, errno == ENOENT ? HDT_ENOENT : HDT_EIO, errno,
                                   "cannot open '%s'", path);
    }
    if (fstat(*fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(*fd);
        *fd = -1;
        return hdt_error_set(err, HDT_EINVAL, "cannot open '%s': not a regular file", path);
    }
    *size = (uint64_t)st.st_size;
    return HDT_OK;
}

enum hdt_status hdt_file_read_at(int fd, const char *path, uint64_t offset, void *dst, size_t len,
                                 struct hdt_error *err)
{
    char *at = dst;

    while (len > 0) {
        ssize_t n = pread(fd, at, len, (off_t)offset);

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return hdt_error_set_errno(err, HDT_EIO, errno, "cannot read '%s' at byte %" PRIu64,
                                       path, offset);
        }
        if (n == 0) {
            return hdt_error_set(err, HDT_EIO,
                                 "cannot read '%s': it ends at byte %" PRIu64
                                 ", earlier than when it was opened",
                                 path, offset);
        }
        at += n;
        offset += (uint64_t)n;
        len -= (size_t)n;
    }
    return HDT_OK;
}

enum hdt_status hdt_file_write_at(int fd, const char *path, uint64_t offset, const void *src,
                                  size_t len, struct hdt_error *err)
{
    const char *at = src;

    while (len > 0) {
        ssize_t n = pwrite(fd, at, len, (off_t)offset);

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return hdt_error_set_errno(err, HDT_EIO, errno, "cannot write '%s' at byte %" PRIu64,
                                       path, offset);
        }
        at += n;
        offset += (uint64_t)n;
        len -= (size_t)n;
    }
    return HDT_OK;
}
