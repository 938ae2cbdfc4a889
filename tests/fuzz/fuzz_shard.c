/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Headers of token shards. Input: kind (0 llm.c, 1 Megatron), size of the file (8 bytes), then the
 * header, filled up with zeros; for Megatron then sequences of 12 bytes (length, offset).
 */
#include "config.h"

#include "src/core/shard_format.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

#define PREFIX 9

static void fuzz_llmc(const uint8_t *data, size_t size, uint64_t file_size)
{
    uint8_t header[HDT_SHARD_LLMC_HEADER] = {0};
    struct hdt_shard_layout layout;

    memcpy(header, data, size < sizeof(header) ? size : sizeof(header));
    if (hdt_shard_parse_llmc(header, file_size, &layout, NULL) == HDT_OK) {
        HDT_ASSERT(layout.data_offset + 2 * layout.n_tokens == file_size);
    }
}

static void fuzz_megatron(const uint8_t *data, size_t size, uint64_t index_size)
{
    uint8_t header[HDT_SHARD_MEGATRON_HEADER] = {0};
    struct hdt_shard_megatron m;
    size_t at = sizeof(header);

    memcpy(header, data, size < sizeof(header) ? size : sizeof(header));
    if (hdt_shard_parse_megatron(header, index_size, &m, NULL) != HDT_OK) {
        return;
    }
    HDT_ASSERT(m.pointers_offset + 8 * m.n_sequences <= index_size);
    for (; at + 12 <= size; at += 12) {
        int32_t len;
        int64_t pointer;

        memcpy(&len, data + at, 4);
        memcpy(&pointer, data + at + 4, 8);
        if (hdt_shard_megatron_add(&m, &len, &pointer, 1, NULL) != HDT_OK) {
            return;
        }
        HDT_ASSERT(m.n_tokens <= ((uint64_t)1 << 49));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t file_size;

    if (size < PREFIX) {
        return 0;
    }
    memcpy(&file_size, data + 1, 8);
    if (data[0] % 2 == 0) {
        fuzz_llmc(data + PREFIX, size - PREFIX, file_size);
    } else {
        fuzz_megatron(data + PREFIX, size - PREFIX, file_size);
    }
    return 0;
}
