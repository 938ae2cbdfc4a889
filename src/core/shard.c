/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading token shards of three formats.
 *
 * Files are read with pread, not mapped: a mapping would be one copy less, but a shard that is cut
 * while a run reads it (a full disk, a network file system, an rsync over it) would then end the
 * worker with SIGBUS instead of one clear error. At a few KiB a sample the copy costs nothing.
 *
 * A Megatron index says for each sequence where its tokens begin. In every file that Megatron's own
 * builder wrote they follow one another without a gap; that is checked, and then the .bin is one
 * run of tokens like the others. Files with gaps or another order are refused.
 */
#include "config.h"

#include "src/core/shard.h"
#include "src/core/file_at.h"
#include "src/core/shard_format.h"
#include "src/core/shard_sums.h"
#include "src/base/buf.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *const hdt_shard_format_names[] = {"auto", "raw", "llmc", "megatron", NULL};

/* Tokens that are converted at a time. */
#define PIECE 4096

/* Far above any sidecar that we or a user would write. */
#define SIDECAR_MAX 65536

struct hdt_shard {
    char *path; /* of the file with the tokens */
    int fd;
    enum hdt_shard_format format;
    enum hdt_dtype dtype;
    uint32_t n_vocab;
    uint64_t n_tokens;
    uint64_t data_offset; /* of the first token in the file */
    struct hdt_shard_sums sums;
};

/* ---- raw ---- */

/* Take dtype and n_vocab from `PATH.json` where the options leave them open. */
static enum hdt_status sidecar_read(struct hdt_shard *s, struct hdt_error *err)
{
    char *path = hdt_asprintf("%s.json", s->path);
    enum hdt_status status = HDT_OK;
    enum hdt_dtype dtype = HDT_DTYPE_NONE;
    const char *name = NULL;
    json_int_t n_vocab = 0;
    json_error_t json_err;
    struct stat st;
    json_t *root;

    if (stat(path, &st) != 0) {
        free(path);
        return HDT_OK; /* a shard may come without */
    }
    if (st.st_size > SIDECAR_MAX) {
        hdt_error_set(err, HDT_EINVAL, "sidecar '%s' of token shard is larger than %d bytes", path,
                      SIDECAR_MAX);
        free(path);
        return HDT_EINVAL;
    }
    root = json_load_file(path, JSON_REJECT_DUPLICATES, &json_err);
    if (!root) {
        status =
            hdt_error_set(err, HDT_EINVAL, "cannot read sidecar of token shard: %s", json_err.text);
        hdt_error_where(err, "%s:%d", path, json_err.line);
    } else if (json_unpack(root, "{s?s, s?I}", "dtype", &name, "n_vocab", &n_vocab) != 0 ||
               n_vocab < 0 || n_vocab > UINT32_MAX ||
               (name && (hdt_dtype_parse(name, &dtype, NULL) != HDT_OK ||
                         (dtype != HDT_DTYPE_U16 && dtype != HDT_DTYPE_U32)))) {
        status = hdt_error_set(err, HDT_EINVAL,
                               "sidecar '%s' of token shard: dtype must be \"u16\" or \"u32\", "
                               "n_vocab a number",
                               path);
    } else {
        s->dtype = s->dtype == HDT_DTYPE_NONE ? dtype : s->dtype;
        s->n_vocab = s->n_vocab == 0 ? (uint32_t)n_vocab : s->n_vocab;
    }
    json_decref(root);
    free(path);
    return status;
}

static enum hdt_status raw_open(struct hdt_shard *s, uint64_t size, struct hdt_error *err)
{
    HDT_TRY(sidecar_read(s, err));
    s->dtype = s->dtype == HDT_DTYPE_NONE ? HDT_DTYPE_U16 : s->dtype;
    if (size % hdt_dtype_size(s->dtype) != 0) {
        hdt_error_set(err, HDT_EINVAL,
                      "token shard '%s' is cut, or not of %s: its %" PRIu64
                      " bytes are no whole number of tokens",
                      s->path, hdt_dtype_name(s->dtype), size);
        return HDT_EINVAL;
    }
    s->n_tokens = size / hdt_dtype_size(s->dtype);
    return HDT_OK;
}

/* ---- llm.c ---- */

static enum hdt_status llmc_open(struct hdt_shard *s, uint64_t size, struct hdt_error *err)
{
    uint8_t header[HDT_SHARD_LLMC_HEADER];
    struct hdt_shard_layout layout;

    if (size < sizeof(header)) {
        return hdt_error_set(err, HDT_EINVAL,
                             "token shard '%s' is cut: %" PRIu64 " bytes, its header has %zu",
                             s->path, size, sizeof(header));
    }
    HDT_TRY(hdt_file_read_at(s->fd, s->path, 0, header, sizeof(header), err));
    if (hdt_shard_parse_llmc(header, size, &layout, err) != HDT_OK) {
        hdt_error_prefix(err, "token shard '%s'", s->path);
        return HDT_EINVAL;
    }
    s->dtype = layout.dtype;
    s->n_tokens = layout.n_tokens;
    s->data_offset = layout.data_offset;
    return HDT_OK;
}

static bool has_llmc_magic(const struct hdt_shard *s, uint64_t size)
{
    uint8_t magic[4];

    return size >= HDT_SHARD_LLMC_HEADER &&
           hdt_file_read_at(s->fd, s->path, 0, magic, sizeof(magic), NULL) == HDT_OK &&
           hdt_shard_is_llmc(magic);
}

/* ---- Megatron ---- */

/* "X.bin" or "X.idx" -> "X.idx" or "X.bin"; NULL when the path has no such ending. */
static char *path_with_ending(const char *path, const char *ending)
{
    size_t len = strlen(path);

    if (len < 4 || (strcmp(path + len - 4, ".bin") != 0 && strcmp(path + len - 4, ".idx") != 0)) {
        return NULL;
    }
    return hdt_asprintf("%.*s%s", (int)(len - 4), path, ending);
}

/* Walk the sequences of the index in pieces. Sizes are int32 each, pointers int64 each. */
static enum hdt_status megatron_check_sequences(int fd, const char *path,
                                                struct hdt_shard_megatron *m, struct hdt_error *err)
{
    int32_t sizes[PIECE];
    int64_t pointers[PIECE];

    for (uint64_t i = 0; i < m->n_sequences;) {
        size_t n = m->n_sequences - i < PIECE ? (size_t)(m->n_sequences - i) : PIECE;

        HDT_TRY(hdt_file_read_at(fd, path, m->sizes_offset + 4 * i, sizes, 4 * n, err));
        HDT_TRY(hdt_file_read_at(fd, path, m->pointers_offset + 8 * i, pointers, 8 * n, err));
        if (hdt_shard_megatron_add(m, sizes, pointers, n, err) != HDT_OK) {
            hdt_error_prefix(err, "token shard index '%s'", path);
            return HDT_EINVAL;
        }
        i += n;
    }
    return HDT_OK;
}

static enum hdt_status megatron_read_index(const char *path, struct hdt_shard_megatron *m,
                                           struct hdt_error *err)
{
    uint8_t header[HDT_SHARD_MEGATRON_HEADER];
    enum hdt_status status;
    uint64_t size;
    int fd;

    HDT_TRY(hdt_file_open_at(path, &fd, &size, err));
    if (size < sizeof(header)) {
        status = hdt_error_set(
            err, HDT_EINVAL, "token shard index '%s' is cut: %" PRIu64 " bytes, its header has %zu",
            path, size, sizeof(header));
        goto out;
    }
    status = hdt_file_read_at(fd, path, 0, header, sizeof(header), err);
    if (status != HDT_OK) {
        goto out;
    }
    status = hdt_shard_parse_megatron(header, size, m, err);
    if (status != HDT_OK) {
        hdt_error_prefix(err, "token shard index '%s'", path);
        goto out;
    }
    status = megatron_check_sequences(fd, path, m, err);
out:
    close(fd);
    return status;
}

static enum hdt_status megatron_open(struct hdt_shard *s, uint64_t size, struct hdt_error *err)
{
    struct hdt_shard_megatron m;
    char *idx_path = path_with_ending(s->path, ".idx");
    enum hdt_status status;

    if (!idx_path) {
        return hdt_error_set(err, HDT_EINVAL,
                             "token shard '%s': a Megatron shard is named X.bin, beside its X.idx",
                             s->path);
    }
    status = megatron_read_index(idx_path, &m, err);
    free(idx_path);
    HDT_TRY(status);
    if (m.n_tokens * hdt_dtype_size(m.dtype) != size) {
        return hdt_error_set(err, HDT_EINVAL,
                             "token shard '%s' does not fit its index: %" PRIu64 " bytes, %" PRIu64
                             " tokens of %s",
                             s->path, size, m.n_tokens, hdt_dtype_name(m.dtype));
    }
    s->dtype = m.dtype;
    s->n_tokens = m.n_tokens;
    return HDT_OK;
}

/* ---- all ---- */

static bool is_megatron(const char *path)
{
    char *idx = path_with_ending(path, ".idx");
    bool there = idx && access(idx, F_OK) == 0;

    free(idx);
    return there;
}

static enum hdt_status shard_init(struct hdt_shard *s, struct hdt_error *err)
{
    uint64_t size;

    HDT_TRY(hdt_file_open_at(s->path, &s->fd, &size, err));
    if (size == 0) {
        return hdt_error_set(err, HDT_EINVAL, "token shard '%s' is empty", s->path);
    }
    if (s->format == HDT_SHARD_AUTO) {
        s->format = is_megatron(s->path)      ? HDT_SHARD_MEGATRON
                    : has_llmc_magic(s, size) ? HDT_SHARD_LLMC
                                              : HDT_SHARD_RAW;
    }
    switch (s->format) {
    case HDT_SHARD_LLMC:
        HDT_TRY(llmc_open(s, size, err));
        break;
    case HDT_SHARD_MEGATRON:
        HDT_TRY(megatron_open(s, size, err));
        break;
    default:
        HDT_TRY(raw_open(s, size, err));
    }
    if (s->n_tokens == 0) {
        return hdt_error_set(err, HDT_EINVAL, "token shard '%s' is empty", s->path);
    }
    return hdt_shard_sums_load(s->path, size, s->dtype, &s->sums, err);
}

enum hdt_status hdt_shard_open(const char *path, const struct hdt_shard_options *options,
                               struct hdt_shard **shard, struct hdt_error *err)
{
    struct hdt_shard *s;
    enum hdt_status status;
    size_t len = strlen(path);

    if (options->dtype != HDT_DTYPE_NONE && options->dtype != HDT_DTYPE_U16 &&
        options->dtype != HDT_DTYPE_U32) {
        return hdt_error_set(err, HDT_EINVAL, "cannot open token shard '%s': tokens are u16 or u32",
                             path);
    }
    s = hdt_calloc(1, sizeof(*s));
    s->fd = -1;
    s->format = options->format;
    s->dtype = options->dtype;
    s->n_vocab = options->n_vocab;
    s->path = len > 4 && strcmp(path + len - 4, ".idx") == 0 ? path_with_ending(path, ".bin")
                                                             : hdt_strdup(path);
    status = shard_init(s, err);
    if (status != HDT_OK) {
        hdt_shard_close(s);
        return status;
    }
    *shard = s;
    return HDT_OK;
}

void hdt_shard_close(struct hdt_shard *shard)
{
    if (!shard) {
        return;
    }
    if (shard->fd >= 0) {
        close(shard->fd);
    }
    hdt_shard_sums_release(&shard->sums);
    free(shard->path);
    free(shard);
}

uint64_t hdt_shard_n_tokens(const struct hdt_shard *shard)
{
    return shard->n_tokens;
}

enum hdt_shard_format hdt_shard_format(const struct hdt_shard *shard)
{
    return shard->format;
}

enum hdt_dtype hdt_shard_dtype(const struct hdt_shard *shard)
{
    return shard->dtype;
}

uint32_t hdt_shard_n_vocab(const struct hdt_shard *shard)
{
    return shard->n_vocab;
}

const char *hdt_shard_path(const struct hdt_shard *shard)
{
    return shard->path;
}

/* Widen n <= PIECE tokens and check them against the vocabulary. */
static enum hdt_status widen(const struct hdt_shard *s, const void *raw, uint64_t pos, size_t n,
                             int32_t *out, struct hdt_error *err)
{
    uint32_t limit = s->n_vocab > 0 && s->n_vocab <= INT32_MAX ? s->n_vocab : INT32_MAX;
    const uint16_t *u16 = raw;
    const uint32_t *u32 = raw;

    for (size_t i = 0; i < n; i++) {
        uint32_t token = s->dtype == HDT_DTYPE_U16 ? u16[i] : u32[i];

        if (token >= limit) {
            hdt_error_set(err, HDT_EINVAL,
                          "token shard '%s': token %" PRIu32 " at byte %" PRIu64
                          " is outside the vocabulary of %" PRIu32,
                          s->path, token, s->data_offset + (pos + i) * hdt_dtype_size(s->dtype),
                          limit);
            hdt_error_hint(err,
                           "was it made by another tokenizer, or is it of another dtype than "
                           "%s?",
                           hdt_dtype_name(s->dtype));
            return HDT_EINVAL;
        }
        out[i] = (int32_t)token;
    }
    return HDT_OK;
}

/* Bytes of the file; with digests by whole blocks, which are compared. */
static enum hdt_status bytes_read(const struct hdt_shard *s, uint64_t offset, void *dst, size_t len,
                                  struct hdt_error *err)
{
    uint8_t block[HDT_SHARD_SUMS_BLOCK], *to = dst;
    size_t at, n;

    if (!s->sums.sums) {
        return hdt_file_read_at(s->fd, s->path, offset, dst, len, err);
    }
    for (; len > 0; len -= n, offset += n, to += n) {
        at = (size_t)(offset % HDT_SHARD_SUMS_BLOCK);
        n = HDT_SHARD_SUMS_BLOCK - at < len ? HDT_SHARD_SUMS_BLOCK - at : len;
        HDT_TRY(hdt_shard_sums_read(&s->sums, s->fd, s->path, offset / HDT_SHARD_SUMS_BLOCK, block,
                                    err));
        memcpy(to, block + at, n);
    }
    return HDT_OK;
}

enum hdt_status hdt_shard_read(const struct hdt_shard *shard, uint64_t pos, size_t n, int32_t *out,
                               struct hdt_error *err)
{
    size_t size = hdt_dtype_size(shard->dtype);
    uint32_t raw[PIECE];

    if (pos > shard->n_tokens || n > shard->n_tokens - pos) {
        return hdt_error_set(err, HDT_EINVAL,
                             "cannot read %zu tokens from %" PRIu64
                             " of token shard '%s': it has %" PRIu64,
                             n, pos, shard->path, shard->n_tokens);
    }
    while (n > 0) {
        size_t part = n < PIECE ? n : PIECE;

        HDT_TRY(bytes_read(shard, shard->data_offset + pos * size, raw, part * size, err));
        HDT_TRY(widen(shard, raw, pos, part, out, err));
        pos += part;
        out += part;
        n -= part;
    }
    return HDT_OK;
}

enum hdt_status hdt_shard_check(const struct hdt_shard *shard, struct hdt_error *err)
{
    int32_t tokens[PIECE];

    for (uint64_t pos = 0; pos < shard->n_tokens;) {
        uint64_t left = shard->n_tokens - pos;
        size_t n = left < PIECE ? (size_t)left : PIECE;

        HDT_TRY(hdt_shard_read(shard, pos, n, tokens, err));
        pos += n;
    }
    return HDT_OK;
}
