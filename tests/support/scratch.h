/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_SUPPORT_SCRATCH_H
#define HDT_TESTS_SUPPORT_SCRATCH_H

/* A folder of a test's own, and files in it. */
#include <stddef.h>

/* Make an empty folder under TMPDIR; ends the test program when that fails. */
void hdt_scratch_init(void);

/* Remove the folder and the files in it. */
void hdt_scratch_release(void);

/* Path of a file in the folder; valid until 64 calls later. */
const char *hdt_scratch_path(const char *name);

/* Write a file in the folder; returns its path. */
const char *hdt_scratch_write(const char *name, const void *data, size_t len);

/* Read a file whole; malloc'ed, '\0' behind it; NULL when it cannot be read. */
char *hdt_scratch_read(const char *path, size_t *len);

#endif /* HDT_TESTS_SUPPORT_SCRATCH_H */
