/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/shard_sums.h"

#include "src/base/buf.h"
#include "src/base/file.h"
#include "src/core/file_at.h"

#include <endian.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define MAGIC    "HDTSUMS1"
#define HEAD     32u
#define SUMS_MAX ((size_t)1 << 30) /* of a shard of 8 TiB */

static void put_u64(struct hdt_buf *out, uint64_t value)
{
    value = htole64(value);
    hdt_buf_append(out, &value, sizeof(value));
}

static uint64_t get_u64(const char *at)
{
    uint64_t value;

    memcpy(&value, at, sizeof(value));
    return le64toh(value);
}

static uint64_t n_blocks(uint64_t bytes)
{
    return bytes / HDT_SHARD_SUMS_BLOCK + (bytes % HDT_SHARD_SUMS_BLOCK != 0);
}

static size_t block_len(uint64_t bytes, uint64_t idx)
{
    uint64_t left = bytes - idx * HDT_SHARD_SUMS_BLOCK;

    return left < HDT_SHARD_SUMS_BLOCK ? (size_t)left : HDT_SHARD_SUMS_BLOCK;
}

static enum hdt_status blocks_digest(int fd, const char *path, uint64_t bytes, struct hdt_buf *out,
                                     struct hdt_error *err)
{
    uint8_t block[HDT_SHARD_SUMS_BLOCK];

    for (uint64_t i = 0; i < n_blocks(bytes); i++) {
        size_t len = block_len(bytes, i);

        HDT_TRY(hdt_file_read_at(fd, path, i * HDT_SHARD_SUMS_BLOCK, block, len, err));
        put_u64(out, XXH3_64bits(block, len));
    }
    return HDT_OK;
}

enum hdt_status hdt_shard_sums_write(const char *data_path, const char *shard_path,
                                     enum hdt_dtype dtype, struct hdt_error *err)
{
    struct hdt_buf out = {0};
    enum hdt_status status;
    uint64_t bytes;
    char *path;
    int fd;

    HDT_TRY(hdt_file_open_at(data_path, &fd, &bytes, err));
    hdt_buf_append(&out, MAGIC, 8);
    put_u64(&out, HDT_SHARD_SUMS_BLOCK);
    put_u64(&out, bytes);
    put_u64(&out, (uint64_t)dtype);
    status = blocks_digest(fd, data_path, bytes, &out, err);
    close(fd);
    put_u64(&out, XXH3_64bits(out.data, out.len));
    if (status == HDT_OK) {
        path = hdt_asprintf("%s" HDT_SHARD_SUMS_ENDING, shard_path);
        status = hdt_file_write(path, &out, 0644, HDT_FILE_REPLACE, err);
        free(path);
    }
    hdt_buf_release(&out);
    return status;
}

static enum hdt_status sums_parse(const struct hdt_buf *in, const char *shard_path,
                                  enum hdt_dtype dtype, struct hdt_shard_sums *sums,
                                  struct hdt_error *err)
{
    const uint64_t size = sums->bytes;
    const char *why = NULL;

    if (in->len < HEAD + 8 || memcmp(in->data, MAGIC, 8) != 0 ||
        get_u64(in->data + in->len - 8) != XXH3_64bits(in->data, in->len - 8) ||
        get_u64(in->data + 8) != HDT_SHARD_SUMS_BLOCK) {
        why = "they are damaged";
    } else if (get_u64(in->data + 16) != size || in->len != HEAD + 8 * n_blocks(size) + 8) {
        why = "they are of a file of another length";
    } else if (get_u64(in->data + 24) != (uint64_t)dtype) {
        why = "they are of tokens of another dtype than its .json says";
    }
    if (why) {
        hdt_error_set(err, HDT_EINVAL, "cannot use the digests '%s" HDT_SHARD_SUMS_ENDING "': %s",
                      shard_path, why);
        hdt_error_hint(err,
                       "make the shard again, or, if it is right, its digests: 'hdt tokenize "
                       "--sums %s'",
                       shard_path);
        return HDT_EINVAL;
    }
    sums->n = (size_t)n_blocks(size);
    sums->sums = hdt_calloc(sums->n + 1, sizeof(*sums->sums));
    for (size_t i = 0; i < sums->n; i++) {
        sums->sums[i] = get_u64(in->data + HEAD + 8 * i);
    }
    return HDT_OK;
}

enum hdt_status hdt_shard_sums_load(const char *shard_path, uint64_t size, enum hdt_dtype dtype,
                                    struct hdt_shard_sums *sums, struct hdt_error *err)
{
    char *path = hdt_asprintf("%s" HDT_SHARD_SUMS_ENDING, shard_path);
    struct hdt_buf in = {0};
    enum hdt_status status = hdt_file_read(path, SUMS_MAX, &in, err);

    memset(sums, 0, sizeof(*sums));
    sums->bytes = size;
    if (status == HDT_OK) {
        status = sums_parse(&in, shard_path, dtype, sums, err);
    } else if (status == HDT_ENOENT) {
        status = HDT_OK;
    }
    hdt_buf_release(&in);
    free(path);
    return status;
}

void hdt_shard_sums_release(struct hdt_shard_sums *sums)
{
    free(sums->sums);
    sums->sums = NULL;
}

enum hdt_status hdt_shard_sums_read(const struct hdt_shard_sums *sums, int fd, const char *path,
                                    uint64_t idx, uint8_t *block, struct hdt_error *err)
{
    size_t len = block_len(sums->bytes, idx);
    uint64_t got;

    HDT_TRY(hdt_file_read_at(fd, path, idx * HDT_SHARD_SUMS_BLOCK, block, len, err));
    got = XXH3_64bits(block, len);
    if (got == sums->sums[idx]) {
        return HDT_OK;
    }
    hdt_error_set(err, HDT_EINVAL,
                  "token shard '%s' was altered: bytes %" PRIu64 " to %" PRIu64
                  " have the digest %016" PRIx64 ", its .sums say %016" PRIx64,
                  path, idx * HDT_SHARD_SUMS_BLOCK, idx * HDT_SHARD_SUMS_BLOCK + len, got,
                  sums->sums[idx]);
    hdt_error_hint(err,
                   "copy or make it again; if it was changed on purpose: 'hdt tokenize --sums "
                   "%s'",
                   path);
    return HDT_EINVAL;
}
