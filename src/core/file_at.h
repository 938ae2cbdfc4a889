/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_FILE_AT_H
#define HDT_CORE_FILE_AT_H

/* Whole reads and writes at a place in an open file; `path` is for messages. */
#include "src/base/error.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Open a regular file for reading and tell its size. On failure *fd is -1. HDT_ENOENT, HDT_EIO,
 * HDT_EINVAL (a folder, a device). */
enum hdt_status hdt_file_open_at(const char *path, int *fd, uint64_t *size, struct hdt_error *err);

/* Read exactly len bytes at `offset`. HDT_EIO, also when the file ends before. Any thread. */
enum hdt_status hdt_file_read_at(int fd, const char *path, uint64_t offset, void *dst, size_t len,
                                 struct hdt_error *err);

/* Write exactly len bytes at `offset`. HDT_EIO. Any thread. */
enum hdt_status hdt_file_write_at(int fd, const char *path, uint64_t offset, const void *src,
                                  size_t len, struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_FILE_AT_H */
