/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_SHARD_H
#define HDT_CORE_SHARD_H

/*
 * Token shards: files that hold a text as token numbers.
 *
 *   raw       `X.bin`, nothing but uint16 or uint32 (as nanoGPT writes them). Which of the two says
 *             the option or a sidecar `X.bin.json` ({"dtype": "u16", "n_vocab": 256, ...}, as
 *             written by hdt_shard_writer); otherwise uint16, nanoGPT's own choice.
 *   llmc      header of 256 int32 (20240520, 1, number of tokens, zeros), then uint16.
 *   megatron  `X.bin` beside `X.idx`; the documents in their order, one after the other.
 *
 * All are little-endian. A shard is checked when it is opened, token numbers when they are read;
 * errors name the file and the byte offset. None of these formats has a digest: a token that became
 * another one is found only with `X.bin.sums` beside it (shard_sums.h), which the writer makes, and
 * `hdt tokenize --sums` for files of other programs; it is used wherever it is.
 */
#include "src/base/error.h"
#include "src/base/tensor.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum hdt_shard_format {
    HDT_SHARD_AUTO = 0, /* `.idx` beside it or as its name: megatron; magic: llmc; else raw */
    HDT_SHARD_RAW,
    HDT_SHARD_LLMC,
    HDT_SHARD_MEGATRON,
    HDT_SHARD_FORMAT_COUNT
};

/* "auto", "raw", "llmc", "megatron", NULL: for a table of settings. */
extern const char *const hdt_shard_format_names[];

/* All zeros is the default. */
struct hdt_shard_options {
    enum hdt_shard_format format;
    enum hdt_dtype dtype; /* raw: U16 or U32; NONE: by the sidecar, else U16 */
    uint32_t n_vocab;     /* tokens must be below it; 0: by the sidecar, else not checked */
};

struct hdt_shard; /* opaque; reading is thread-safe */

/* Open and check the file at `path`: HDT_ENOENT, HDT_EIO, HDT_EINVAL (empty, truncated, header
 * that does not fit the file). Close with hdt_shard_close. May block on the disk. */
enum hdt_status hdt_shard_open(const char *path, const struct hdt_shard_options *options,
                               struct hdt_shard **shard, struct hdt_error *err);
void hdt_shard_close(struct hdt_shard *shard); /* NULL is allowed */

uint64_t hdt_shard_n_tokens(const struct hdt_shard *shard);
enum hdt_shard_format hdt_shard_format(const struct hdt_shard *shard);
enum hdt_dtype hdt_shard_dtype(const struct hdt_shard *shard);
uint32_t hdt_shard_n_vocab(const struct hdt_shard *shard); /* 0: not known */
const char *hdt_shard_path(const struct hdt_shard *shard);

/* Copy tokens [pos, pos + n) to out. HDT_EINVAL beyond the end or for a token >= n_vocab, HDT_EIO
 * when the file cannot be read or has become shorter. Any thread; may block on the disk. */
enum hdt_status hdt_shard_read(const struct hdt_shard *shard, uint64_t pos, size_t n, int32_t *out,
                               struct hdt_error *err);

/* Read the whole shard once and check every token against n_vocab. */
enum hdt_status hdt_shard_check(const struct hdt_shard *shard, struct hdt_error *err);

struct hdt_shard_writer; /* opaque; one thread at a time */

/* Make a file for `path` in format RAW (AUTO means RAW) or LLMC, to be filled by append. n_vocab
 * must be set; dtype NONE picks U16 when n_vocab fits. `tokenizer` goes into the sidecar of a raw
 * shard and may be NULL. The file has the name `path`.tmp until finish (header, digests, sidecar,
 * fsync), which gives it its own and replaces what was there; abort removes it. Both free the
 * writer. HDT_EINVAL, HDT_EIO. */
enum hdt_status hdt_shard_writer_open(const char *path, const struct hdt_shard_options *options,
                                      const char *tokenizer, struct hdt_shard_writer **writer,
                                      struct hdt_error *err);
enum hdt_status hdt_shard_writer_append(struct hdt_shard_writer *writer, const int32_t *tokens,
                                        size_t n, struct hdt_error *err);
uint64_t hdt_shard_writer_n_tokens(const struct hdt_shard_writer *writer);
enum hdt_status hdt_shard_writer_finish(struct hdt_shard_writer *writer, struct hdt_error *err);
void hdt_shard_writer_abort(struct hdt_shard_writer *writer);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_SHARD_H */
