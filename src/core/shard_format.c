/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/shard_format.h"

#include <inttypes.h>
#include <string.h>

/* Megatron's numbers of the dtypes that tokens may have. */
enum megatron_dtype { MEGATRON_INT32 = 4, MEGATRON_UINT16 = 8 };

/* More than any index that fits a disk; keeps the products below from wrapping. */
#define SEQUENCES_MAX ((uint64_t)1 << 40)
#define TOKENS_MAX    ((uint64_t)1 << 48)

static uint32_t get_u32(const uint8_t *src)
{
    uint32_t u;

    memcpy(&u, src, 4);
    return u;
}

static uint64_t get_u64(const uint8_t *src)
{
    uint64_t u;

    memcpy(&u, src, 8);
    return u;
}

bool hdt_shard_is_llmc(const uint8_t magic[4])
{
    return get_u32(magic) == HDT_SHARD_LLMC_MAGIC;
}

enum hdt_status hdt_shard_parse_llmc(const uint8_t *header, uint64_t file_size,
                                     struct hdt_shard_layout *layout, struct hdt_error *err)
{
    uint32_t version = get_u32(header + 4), n_tokens = get_u32(header + 8);
    uint64_t data = file_size - HDT_SHARD_LLMC_HEADER;

    if (file_size < HDT_SHARD_LLMC_HEADER) {
        return hdt_error_set(err, HDT_EINVAL, "cut: %" PRIu64 " bytes, its header has %zu",
                             file_size, HDT_SHARD_LLMC_HEADER);
    }
    if (!hdt_shard_is_llmc(header)) {
        return hdt_error_set(err, HDT_EINVAL, "no llm.c header: magic %" PRIu32 " is not %d",
                             get_u32(header), HDT_SHARD_LLMC_MAGIC);
    }
    if (version != HDT_SHARD_LLMC_VERSION) {
        return hdt_error_set(err, HDT_EINVAL, "llm.c header of version %" PRIu32 ", known is %d",
                             version, HDT_SHARD_LLMC_VERSION);
    }
    if (data != 2 * (uint64_t)n_tokens) {
        return hdt_error_set(err, HDT_EINVAL,
                             "the header says %" PRIu32 " tokens of 2 bytes, the file has %" PRIu64
                             " bytes after it: cut, or still being written",
                             n_tokens, data);
    }
    layout->dtype = HDT_DTYPE_U16;
    layout->n_tokens = n_tokens;
    layout->data_offset = HDT_SHARD_LLMC_HEADER;
    return HDT_OK;
}

void hdt_shard_format_llmc(uint8_t *header, uint32_t n_tokens)
{
    const uint32_t words[3] = {HDT_SHARD_LLMC_MAGIC, HDT_SHARD_LLMC_VERSION, n_tokens};

    memset(header, 0, HDT_SHARD_LLMC_HEADER);
    memcpy(header, words, sizeof(words));
}

enum hdt_status hdt_shard_parse_megatron(const uint8_t *header, uint64_t index_size,
                                         struct hdt_shard_megatron *m, struct hdt_error *err)
{
    uint64_t version = get_u64(header + 9), n = get_u64(header + 18), n_docs = get_u64(header + 26);
    unsigned code = header[17];

    if (memcmp(header, "MMIDIDX\0\0", 9) != 0) {
        return hdt_error_set(err, HDT_EINVAL, "no Megatron index: it does not begin with MMIDIDX");
    }
    if (version != 1) {
        return hdt_error_set(err, HDT_EINVAL, "Megatron index of version %" PRIu64 ", known is 1",
                             version);
    }
    if (code != MEGATRON_UINT16 && code != MEGATRON_INT32) {
        return hdt_error_set(err, HDT_EINVAL,
                             "Megatron dtype %u is not that of tokens (8 uint16, 4 int32)", code);
    }
    if (n > SEQUENCES_MAX || n_docs > SEQUENCES_MAX ||
        index_size < HDT_SHARD_MEGATRON_HEADER + 12 * n + 8 * n_docs) {
        return hdt_error_set(err, HDT_EINVAL,
                             "cut: %" PRIu64 " sequences and %" PRIu64
                             " document entries do not fit its %" PRIu64 " bytes",
                             n, n_docs, index_size);
    }
    m->dtype = code == MEGATRON_UINT16 ? HDT_DTYPE_U16 : HDT_DTYPE_U32;
    m->n_sequences = n;
    m->sizes_offset = HDT_SHARD_MEGATRON_HEADER;
    m->pointers_offset = HDT_SHARD_MEGATRON_HEADER + 4 * n;
    m->n_tokens = 0;
    return HDT_OK;
}

enum hdt_status hdt_shard_megatron_add(struct hdt_shard_megatron *m, const int32_t *sizes,
                                       const int64_t *pointers, size_t n, struct hdt_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (sizes[i] < 0 || m->n_tokens > TOKENS_MAX) {
            return hdt_error_set(err, HDT_EINVAL, "a sequence of %" PRId32 " tokens after %" PRIu64,
                                 sizes[i], m->n_tokens);
        }
        if (pointers[i] < 0 || (uint64_t)pointers[i] != m->n_tokens * hdt_dtype_size(m->dtype)) {
            return hdt_error_set(err, HDT_EINVAL,
                                 "a sequence begins at byte %" PRId64
                                 " instead of where the one before ends, %" PRIu64,
                                 pointers[i], m->n_tokens * hdt_dtype_size(m->dtype));
        }
        m->n_tokens += (uint64_t)sizes[i];
    }
    return HDT_OK;
}
