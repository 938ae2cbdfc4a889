/* SPDX-License-Identifier: Apache-2.0 */
/* Writing token shards: raw with a sidecar, or llm.c's format. */
#include "config.h"

#include "src/core/shard.h"
#include "src/core/shard_format.h"
#include "src/core/shard_sums.h"
#include "src/base/buf.h"
#include "src/base/file.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIECE 4096

struct hdt_shard_writer {
    char *path, *temp, *sidecar_path; /* the last one NULL for llm.c */
    char *tokenizer;                  /* may be NULL */
    FILE *file;
    enum hdt_shard_format format;
    enum hdt_dtype dtype;
    uint32_t n_vocab;
    uint64_t n_tokens;
};

static void writer_free(struct hdt_shard_writer *w)
{
    if (w->file) {
        fclose(w->file);
    }
    free(w->path);
    free(w->temp);
    free(w->sidecar_path);
    free(w->tokenizer);
    free(w);
}

static enum hdt_status write_failed(const char *path, struct hdt_error *err)
{
    return hdt_error_set_errno(err, HDT_EIO, errno, "cannot write token shard '%s'", path);
}

static enum hdt_status check_options(const char *path, const struct hdt_shard_options *o,
                                     enum hdt_dtype *dtype, struct hdt_error *err)
{
    bool llmc = o->format == HDT_SHARD_LLMC;

    *dtype = o->dtype != HDT_DTYPE_NONE ? o->dtype
             : o->n_vocab <= 65536      ? HDT_DTYPE_U16
                                        : HDT_DTYPE_U32;
    if (!llmc && o->format != HDT_SHARD_RAW && o->format != HDT_SHARD_AUTO) {
        return hdt_error_set(err, HDT_ENOTSUP,
                             "cannot write token shard '%s': formats that are written are raw and "
                             "llmc",
                             path);
    }
    if (o->n_vocab == 0 || o->n_vocab > INT32_MAX ||
        (*dtype != HDT_DTYPE_U16 && *dtype != HDT_DTYPE_U32) ||
        (*dtype == HDT_DTYPE_U16 && o->n_vocab > 65536) || (llmc && *dtype != HDT_DTYPE_U16)) {
        return hdt_error_set(err, HDT_EINVAL,
                             "cannot write token shard '%s': a vocabulary of %" PRIu32
                             " does not fit %s tokens of format %s",
                             path, o->n_vocab, hdt_dtype_name(*dtype), llmc ? "llmc" : "raw");
    }
    return HDT_OK;
}

enum hdt_status hdt_shard_writer_open(const char *path, const struct hdt_shard_options *options,
                                      const char *tokenizer, struct hdt_shard_writer **writer,
                                      struct hdt_error *err)
{
    uint8_t header[HDT_SHARD_LLMC_HEADER];
    struct hdt_shard_writer *w;
    enum hdt_dtype dtype;

    HDT_TRY(check_options(path, options, &dtype, err));
    w = hdt_calloc(1, sizeof(*w));
    w->path = hdt_strdup(path);
    w->format = options->format == HDT_SHARD_LLMC ? HDT_SHARD_LLMC : HDT_SHARD_RAW;
    w->dtype = dtype;
    w->n_vocab = options->n_vocab;
    w->tokenizer = tokenizer ? hdt_strdup(tokenizer) : NULL;
    w->sidecar_path = w->format == HDT_SHARD_RAW ? hdt_asprintf("%s.json", path) : NULL;
    w->temp = hdt_asprintf("%s.tmp", path);
    w->file = fopen(w->temp, "wbe");
    if (!w->file) {
        write_failed(path, err);
        writer_free(w);
        return HDT_EIO;
    }
    if (w->format == HDT_SHARD_LLMC) {
        hdt_shard_format_llmc(header, 0); /* the count comes at the end */
        if (fwrite(header, sizeof(header), 1, w->file) != 1) {
            write_failed(path, err);
            hdt_shard_writer_abort(w);
            return HDT_EIO;
        }
    }
    *writer = w;
    return HDT_OK;
}

static enum hdt_status narrow(const struct hdt_shard_writer *w, const int32_t *tokens, size_t n,
                              void *raw, struct hdt_error *err)
{
    uint16_t *u16 = raw;
    uint32_t *u32 = raw;

    for (size_t i = 0; i < n; i++) {
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= w->n_vocab) {
            return hdt_error_set(err, HDT_EINVAL,
                                 "cannot write token %" PRId32 " to '%s': outside the vocabulary "
                                 "of %" PRIu32,
                                 tokens[i], w->path, w->n_vocab);
        }
        if (w->dtype == HDT_DTYPE_U16) {
            u16[i] = (uint16_t)tokens[i];
        } else {
            u32[i] = (uint32_t)tokens[i];
        }
    }
    return HDT_OK;
}

enum hdt_status hdt_shard_writer_append(struct hdt_shard_writer *writer, const int32_t *tokens,
                                        size_t n, struct hdt_error *err)
{
    size_t size = hdt_dtype_size(writer->dtype);
    uint32_t raw[PIECE];

    if (writer->format == HDT_SHARD_LLMC && n > INT32_MAX - writer->n_tokens) {
        return hdt_error_set(err, HDT_EINVAL,
                             "cannot write token shard '%s': its format holds %d tokens at most",
                             writer->path, INT32_MAX);
    }
    while (n > 0) {
        size_t part = n < PIECE ? n : PIECE;

        HDT_TRY(narrow(writer, tokens, part, raw, err));
        if (fwrite(raw, size, part, writer->file) != part) {
            return write_failed(writer->path, err);
        }
        writer->n_tokens += part;
        tokens += part;
        n -= part;
    }
    return HDT_OK;
}

uint64_t hdt_shard_writer_n_tokens(const struct hdt_shard_writer *writer)
{
    return writer->n_tokens;
}

static enum hdt_status sidecar_write(const struct hdt_shard_writer *w, struct hdt_error *err)
{
    json_t *root = json_pack("{s:s, s:I, s:I, s:s*}", "dtype", hdt_dtype_name(w->dtype), "n_vocab",
                             (json_int_t)w->n_vocab, "n_tokens", (json_int_t)w->n_tokens,
                             "tokenizer", w->tokenizer);
    char *json = json_dumps(root, JSON_INDENT(2));
    struct hdt_buf text = {0};
    enum hdt_status status;

    hdt_buf_appendf(&text, "%s\n", json);
    status = hdt_file_write(w->sidecar_path, &text, 0644, HDT_FILE_REPLACE, err);
    hdt_buf_release(&text);
    free(json);
    json_decref(root);
    return status;
}

/* What describes the shard first: a crash in between leaves an old shard that its new digests
 * refuse, never a new one that is taken for an old. */
static enum hdt_status writer_place(const struct hdt_shard_writer *w, struct hdt_error *err)
{
    HDT_TRY(hdt_shard_sums_write(w->temp, w->path, w->dtype, err));
    if (w->sidecar_path) {
        HDT_TRY(sidecar_write(w, err));
    }
    if (rename(w->temp, w->path) != 0) {
        return write_failed(w->path, err);
    }
    return HDT_OK;
}

static enum hdt_status writer_complete(struct hdt_shard_writer *w, struct hdt_error *err)
{
    uint8_t header[HDT_SHARD_LLMC_HEADER];
    int rc;

    if (w->format == HDT_SHARD_LLMC) {
        hdt_shard_format_llmc(header, (uint32_t)w->n_tokens);
        if (fseeko(w->file, 0, SEEK_SET) != 0 || fwrite(header, sizeof(header), 1, w->file) != 1) {
            return write_failed(w->path, err);
        }
    }
    if (fflush(w->file) != 0 || fsync(fileno(w->file)) != 0) {
        return write_failed(w->path, err);
    }
    rc = fclose(w->file);
    w->file = NULL;
    if (rc != 0) {
        return write_failed(w->path, err);
    }
    return writer_place(w, err);
}

enum hdt_status hdt_shard_writer_finish(struct hdt_shard_writer *writer, struct hdt_error *err)
{
    enum hdt_status status = writer_complete(writer, err);

    if (status != HDT_OK) {
        hdt_shard_writer_abort(writer);
        return status;
    }
    writer_free(writer);
    return HDT_OK;
}

void hdt_shard_writer_abort(struct hdt_shard_writer *writer)
{
    unlink(writer->temp);
    writer_free(writer);
}
