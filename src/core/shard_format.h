/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_SHARD_FORMAT_H
#define HDT_CORE_SHARD_FORMAT_H

/*
 * The headers of shard formats as bytes in memory: pure functions between the file code and the
 * foreign bytes, so that they can be fuzzed.
 *
 * llm.c: 256 int32: 20240520, version 1, number of tokens, zeros; then uint16 tokens.
 *
 * Megatron index: "MMIDIDX\0\0", u64 version 1, u8 dtype code, u64 sequences, u64 documents (the
 * number of entries of the document index); then int32 length of each sequence, int64 byte offset
 * of each in the .bin, int64 document index.
 */
#include "src/base/error.h"
#include "src/base/tensor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HDT_SHARD_LLMC_MAGIC      20240520
#define HDT_SHARD_LLMC_VERSION    1
#define HDT_SHARD_LLMC_HEADER     ((size_t)1024)
#define HDT_SHARD_MEGATRON_HEADER ((size_t)34)

struct hdt_shard_layout {
    enum hdt_dtype dtype;
    uint64_t n_tokens;
    uint64_t data_offset;
};

/* What a Megatron index says; n_tokens grows with hdt_shard_megatron_add. */
struct hdt_shard_megatron {
    enum hdt_dtype dtype;
    uint64_t n_sequences;
    uint64_t sizes_offset, pointers_offset; /* in the index */
    uint64_t n_tokens;
};

/* Do the first four bytes say llm.c? */
bool hdt_shard_is_llmc(const uint8_t magic[4]);

/* Check a header of HDT_SHARD_LLMC_HEADER bytes against the size of the file. HDT_EINVAL. */
enum hdt_status hdt_shard_parse_llmc(const uint8_t *header, uint64_t file_size,
                                     struct hdt_shard_layout *layout, struct hdt_error *err);

/* Write a header of HDT_SHARD_LLMC_HEADER bytes. */
void hdt_shard_format_llmc(uint8_t *header, uint32_t n_tokens);

/* Check a header of HDT_SHARD_MEGATRON_HEADER bytes against the size of the index. HDT_EINVAL. */
enum hdt_status hdt_shard_parse_megatron(const uint8_t *header, uint64_t index_size,
                                         struct hdt_shard_megatron *m, struct hdt_error *err);

/* Add the next n sequences: each must begin where the last one ended. HDT_EINVAL. */
enum hdt_status hdt_shard_megatron_add(struct hdt_shard_megatron *m, const int32_t *sizes,
                                       const int64_t *pointers, size_t n, struct hdt_error *err);

#endif /* HDT_CORE_SHARD_FORMAT_H */
