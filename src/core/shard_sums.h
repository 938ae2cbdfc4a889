/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_SHARD_SUMS_H
#define HDT_CORE_SHARD_SUMS_H

/*
 * Digests of a token shard, in a file beside it ("X.bin.sums"). No format of a shard has any, and a
 * wrong token is as valid as a right one. A digest of the whole would have to be compared before
 * the first token is used; these are of blocks, which are compared when they are read.
 *
 *     0 "HDTSUMS1"   8 u64 block bytes   16 u64 bytes of the shard   24 u64 number of the dtype
 *    32 XXH3-64 of each block (the last one may be shorter), u64 each
 *       XXH3-64 of all of the above
 *
 * Little-endian. Costs 8 bytes on the disk and in memory for 64 KiB of shard.
 */
#include "src/base/error.h"
#include "src/base/tensor.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_SHARD_SUMS_BLOCK  65536u
#define HDT_SHARD_SUMS_ENDING ".sums"

struct hdt_shard_sums {
    uint64_t *sums; /* NULL: there are none, and nothing is compared */
    size_t n;
    uint64_t bytes;
};

/* Read `data_path` once and write the digests for it to `shard_path`.sums. HDT_EIO. */
enum hdt_status hdt_shard_sums_write(const char *data_path, const char *shard_path,
                                     enum hdt_dtype dtype, struct hdt_error *err);

/* Those of the shard, which has `size` bytes and tokens of `dtype`; none: HDT_OK. HDT_EINVAL:
 * damaged, or of another file. */
enum hdt_status hdt_shard_sums_load(const char *shard_path, uint64_t size, enum hdt_dtype dtype,
                                    struct hdt_shard_sums *sums, struct hdt_error *err);
void hdt_shard_sums_release(struct hdt_shard_sums *sums);

/* Read the block with this index, at most HDT_SHARD_SUMS_BLOCK bytes, and compare its digest.
 * HDT_EINVAL: it differs. */
enum hdt_status hdt_shard_sums_read(const struct hdt_shard_sums *sums, int fd, const char *path,
                                    uint64_t idx, uint8_t *block, struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_SHARD_SUMS_H */
