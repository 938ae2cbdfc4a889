/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_BASE_FILE_H
#define HDT_BASE_FILE_H

/* Small files, whole: read with a limit, written so that a reader and a crash see the old file or
 * the new one, never a part. All calls block. Any thread. */
#include "src/base/error.h"

#include <stdbool.h>
#include <stddef.h>

struct hdt_buf;

#ifdef __cplusplus
extern "C" {
#endif

/* Append the file's bytes to `buf`; HDT_EINVAL when it has more than `max`. HDT_ENOENT, HDT_EIO. */
enum hdt_status hdt_file_read(const char *path, size_t max, struct hdt_buf *buf,
                              struct hdt_error *err);

/* Write the file by way of a temporary one beside it (flushed, then renamed). `mode`: its
 * permissions, whatever the umask. With HDT_FILE_NEW, HDT_EEXIST when it is there already; two
 * writers cannot both succeed then. HDT_EIO. */
enum hdt_file_flags { HDT_FILE_NEW = 0, HDT_FILE_REPLACE = 1 };
enum hdt_status hdt_file_write(const char *path, const struct hdt_buf *bytes, unsigned mode,
                               enum hdt_file_flags flags, struct hdt_error *err);

/* Make the folder and those above it (these with mode 0755). It may exist. HDT_EIO, HDT_EEXIST when
 * something else has the name. */
enum hdt_status hdt_dir_make(const char *path, unsigned mode, struct hdt_error *err);

bool hdt_file_exists(const char *path);

#ifdef __cplusplus
}
#endif
#endif /* HDT_BASE_FILE_H */
