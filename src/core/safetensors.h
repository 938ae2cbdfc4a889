/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_SAFETENSORS_H
#define HDT_CORE_SAFETENSORS_H

/*
 * Files of tensors in the safetensors format:
 *
 *     u64 little-endian N | N bytes of JSON, padded with spaces so that 8 + N is a multiple of 8 |
 *     data of the tensors, without holes
 *
 * The JSON maps a name to {"dtype", "shape", "data_offsets": [begin, end]} (offsets within the data
 * part) and "__metadata__" to an object of strings.
 */
#include "src/base/error.h"
#include "src/base/tensor.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_SAFETENSORS_HEADER_MAX  ((uint64_t)100 * 1000 * 1000)
#define HDT_SAFETENSORS_TENSORS_MAX 1000000u
#define HDT_SAFETENSORS_DIMS_MAX    8

/* One tensor of a file. */
struct hdt_safetensors_entry {
    const char *name; /* declare: copied; of a reader: valid until close */
    enum hdt_dtype dtype;
    unsigned n_dims; /* 0: a scalar */
    uint64_t shape[HDT_SAFETENSORS_DIMS_MAX];
    uint64_t offset; /* first byte in the file; set by reader and begin */
    uint64_t len;    /* bytes; set by reader and declare */
};

/* ---- reading; an open file may be read by several threads ---- */

struct hdt_safetensors;

/* Open a file and check its header completely: size limits, known dtypes, shape x dtype = byte
 * range, ranges inside the file, no overlap, no hole, no name twice. HDT_ENOENT, HDT_EIO,
 * HDT_EINVAL. Close with hdt_safetensors_close. */
enum hdt_status hdt_safetensors_open(const char *path, struct hdt_safetensors **st,
                                     struct hdt_error *err);
void hdt_safetensors_close(struct hdt_safetensors *st); /* NULL is allowed */

/* Tensors in the order of their data in the file. */
size_t hdt_safetensors_n(const struct hdt_safetensors *st);
const struct hdt_safetensors_entry *hdt_safetensors_at(const struct hdt_safetensors *st,
                                                       size_t idx);

/* By name; NULL when there is none. */
const struct hdt_safetensors_entry *hdt_safetensors_find(const struct hdt_safetensors *st,
                                                         const char *name);

/* A string of "__metadata__"; NULL when there is none. Valid until close. */
const char *hdt_safetensors_metadata(const struct hdt_safetensors *st, const char *key);

/* Read all of the tensor into dst (entry->len bytes). HDT_EIO also when the file has become
 * shorter since it was opened. May block on the disk. */
enum hdt_status hdt_safetensors_read(const struct hdt_safetensors *st,
                                     const struct hdt_safetensors_entry *entry, void *dst,
                                     struct hdt_error *err);

/* Read `len` bytes from byte `pos` of the tensor; the caller keeps within it (asserted). */
enum hdt_status hdt_safetensors_read_part(const struct hdt_safetensors *st,
                                          const struct hdt_safetensors_entry *entry, uint64_t pos,
                                          size_t len, void *dst, struct hdt_error *err);

/* Check a header that stands in memory against a data part of data_len bytes, as open does. */
enum hdt_status hdt_safetensors_check_header(const char *json, size_t json_len, uint64_t data_len,
                                             struct hdt_error *err);

/* ---- writing; one thread at a time ---- */

struct hdt_safetensors_writer;

/* Make the file (replaced if it exists). Renaming it into place once complete is the caller's.
 * Then declare every tensor, begin, append the data, close. */
enum hdt_status hdt_safetensors_writer_open(const char *path,
                                            struct hdt_safetensors_writer **writer,
                                            struct hdt_error *err);

/* Announce a tensor (name, dtype, shape of `entry`); its index is the number of those before it.
 * HDT_EINVAL: name twice, empty or no UTF-8, dtype that the format lacks, too many dimensions. */
enum hdt_status hdt_safetensors_writer_declare(struct hdt_safetensors_writer *writer,
                                               const struct hdt_safetensors_entry *entry,
                                               struct hdt_error *err);

/* Add a string to "__metadata__". HDT_EINVAL when it is no UTF-8. */
enum hdt_status hdt_safetensors_writer_metadata(struct hdt_safetensors_writer *writer,
                                                const char *key, const char *value,
                                                struct hdt_error *err);

/* Write the header and take the room for all data. Tensors of wider elements come first, so that
 * each is aligned to its element; otherwise they keep their order. No declare or metadata after
 * this. */
enum hdt_status hdt_safetensors_writer_begin(struct hdt_safetensors_writer *writer,
                                             struct hdt_error *err);

/* Where tensor `idx`, by order of declaration, lies in the file; after begin. */
const struct hdt_safetensors_entry *
hdt_safetensors_writer_entry(const struct hdt_safetensors_writer *writer, size_t idx);

/* Write the next `len` bytes of tensor `idx`. Tensors may be filled in any order, or in turn; the
 * bytes of one come in order. HDT_EINVAL when they are more than its shape says. */
enum hdt_status hdt_safetensors_writer_append(struct hdt_safetensors_writer *writer, size_t idx,
                                              const void *data, size_t len, struct hdt_error *err);

/* Check that every tensor is complete, fsync, close, free the writer in any case. On failure the
 * incomplete file is left for the caller to remove. May block on the disk. */
enum hdt_status hdt_safetensors_writer_close(struct hdt_safetensors_writer *writer,
                                             struct hdt_error *err);

/* Close and free without completing; the file is left. NULL is allowed. */
void hdt_safetensors_writer_abort(struct hdt_safetensors_writer *writer);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_SAFETENSORS_H */
