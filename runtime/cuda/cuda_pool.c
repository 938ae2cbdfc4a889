/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "runtime/cuda/cuda_pool.h"
#include "runtime/cuda/cuda_device.h"
#include "src/base/buf.h"

#include <stdbool.h>
#include <stdlib.h>

#define SMALL_BYTES ((size_t)1 << 20)
#define SMALL_ALIGN ((size_t)256)
#define LARGE_ALIGN ((size_t)2 << 20) /* the driver's page: what a large block takes anyway */

struct hdt_cuda_block {
    struct hdt_cuda_block *next;
    void *mem;
    size_t bytes;
    bool is_dirty; /* freed since the device was last known idle: queued work may still use it */
};

void hdt_cuda_pool_init(struct hdt_cuda_pool *pool)
{
    *pool = (struct hdt_cuda_pool){.used = NULL};
    pthread_mutex_init(&pool->lock, NULL);
}

/* Give the spare blocks to the driver, which waits for the work that uses them. Locked. */
static bool spare_drop(struct hdt_cuda_pool *pool)
{
    bool had_some = pool->spare != NULL;

    while (pool->spare) {
        struct hdt_cuda_block *block = pool->spare;

        pool->spare = block->next;
        cudaFree(block->mem);
        free(block);
    }
    return had_some;
}

void hdt_cuda_pool_release(struct hdt_cuda_pool *pool)
{
    HDT_ASSERT(!pool->used);
    spare_drop(pool);
    pthread_mutex_destroy(&pool->lock);
}

static size_t bytes_round(size_t bytes)
{
    size_t align = bytes < SMALL_BYTES ? SMALL_ALIGN : LARGE_ALIGN;

    return bytes == 0 ? align : (bytes + align - 1) / align * align;
}

/* The spare block that fits best, at most an eighth larger; taken off its list. Locked. */
static struct hdt_cuda_block *spare_take(struct hdt_cuda_pool *pool, size_t bytes)
{
    struct hdt_cuda_block **best = NULL, *block;

    for (struct hdt_cuda_block **at = &pool->spare; *at; at = &(*at)->next) {
        if ((*at)->bytes >= bytes && (*at)->bytes <= bytes + bytes / 8 &&
            (!best || (*at)->bytes < (*best)->bytes)) {
            best = at;
        }
    }
    if (!best) {
        return NULL;
    }
    block = *best;
    *best = block->next;
    return block;
}

static enum hdt_status memory_refuse(cudaError_t code, size_t bytes, struct hdt_error *err)
{
    size_t free_bytes = 0, all_bytes = 0;

    if (code != cudaErrorMemoryAllocation || cudaMemGetInfo(&free_bytes, &all_bytes) != 0) {
        return hdt_cuda_error(code, "allocate device memory", err);
    }
    cudaGetLastError();
    return hdt_error_set(
        err, HDT_ENOMEM, "cannot allocate %.1f MiB of device memory: %.1f of %.1f MiB are free",
        (double)bytes / 0x1p20, (double)free_bytes / 0x1p20, (double)all_bytes / 0x1p20);
}

static enum hdt_status block_new(struct hdt_cuda_pool *pool, size_t bytes,
                                 struct hdt_cuda_block **block, struct hdt_error *err)
{
    void *mem = NULL;
    cudaError_t code = cudaMalloc(&mem, bytes);

    if (code == cudaErrorMemoryAllocation && spare_drop(pool)) {
        cudaGetLastError();
        code = cudaMalloc(&mem, bytes);
    }
    if (code != cudaSuccess) {
        return memory_refuse(code, bytes, err);
    }
    *block = hdt_calloc(1, sizeof(**block));
    (*block)->mem = mem;
    (*block)->bytes = bytes;
    return HDT_OK;
}

/* Wait until nothing that is queued can touch a spare block. Locked. */
static enum hdt_status spare_clean(struct hdt_cuda_pool *pool, struct hdt_error *err)
{
    cudaError_t code = cudaDeviceSynchronize();

    if (code != cudaSuccess) {
        return hdt_cuda_error(code, "wait for the device", err);
    }
    for (struct hdt_cuda_block *block = pool->spare; block; block = block->next) {
        block->is_dirty = false;
    }
    return HDT_OK;
}

static enum hdt_status block_get(struct hdt_cuda_pool *pool, size_t bytes,
                                 struct hdt_cuda_block **block_out, struct hdt_error *err)
{
    struct hdt_cuda_block *block = spare_take(pool, bytes);

    if (!block) {
        return block_new(pool, bytes, block_out, err);
    }
    if (block->is_dirty) {
        enum hdt_status status = spare_clean(pool, err);

        if (status != HDT_OK) {
            block->next = pool->spare;
            pool->spare = block;
            return status;
        }
    }
    *block_out = block;
    return HDT_OK;
}

enum hdt_status hdt_cuda_pool_get(struct hdt_cuda_pool *pool, size_t bytes, void **mem,
                                  struct hdt_error *err)
{
    struct hdt_cuda_block *block = NULL;
    enum hdt_status status;

    if (bytes > SIZE_MAX - LARGE_ALIGN) {
        return hdt_error_set(err, HDT_ENOMEM, "cannot allocate %zu bytes of device memory", bytes);
    }
    pthread_mutex_lock(&pool->lock);
    status = block_get(pool, bytes_round(bytes), &block, err);
    if (status == HDT_OK) {
        block->next = pool->used;
        pool->used = block;
        *mem = block->mem;
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}

void hdt_cuda_pool_put(struct hdt_cuda_pool *pool, void *mem)
{
    struct hdt_cuda_block **at, *block;

    if (!mem) {
        return;
    }
    pthread_mutex_lock(&pool->lock);
    for (at = &pool->used; *at && (*at)->mem != mem; at = &(*at)->next) {
    }
    block = *at;
    HDT_ASSERT(block);
    *at = block->next;
    block->is_dirty = true;
    block->next = pool->spare;
    pool->spare = block;
    pthread_mutex_unlock(&pool->lock);
}
