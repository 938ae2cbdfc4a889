/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_CUDA_CUDA_POOL_H
#define HDT_RUNTIME_CUDA_CUDA_POOL_H

/*
 * Device memory of one device: blocks from cudaMalloc that are kept when they are freed and given
 * out again, since cudaMalloc and cudaFree cost milliseconds and stop the whole device. Blocks are
 * plain cudaMalloc memory, not cudaMallocAsync's, so that a network card can register them.
 */
#include "src/base/error.h"

#include <pthread.h>
#include <stddef.h>

struct hdt_cuda_block;

struct hdt_cuda_pool {
    pthread_mutex_t lock;         /* guards both lists */
    struct hdt_cuda_block *used;  /* given out */
    struct hdt_cuda_block *spare; /* freed, waiting for a request of their size */
};

void hdt_cuda_pool_init(struct hdt_cuda_pool *pool);

/* Give all memory back to the driver; every block must have been freed. The device is current. */
void hdt_cuda_pool_release(struct hdt_cuda_pool *pool);

/* A block of at least `bytes`, aligned to 256. The device is current. Blocks until the device is
 * idle when the block that fits was freed with work queued. Any thread. HDT_ENOMEM, HDT_EIO. */
enum hdt_status hdt_cuda_pool_get(struct hdt_cuda_pool *pool, size_t bytes, void **mem,
                                  struct hdt_error *err);

/* Take a block back; NULL is allowed. Never blocks on the device. Any thread. */
void hdt_cuda_pool_put(struct hdt_cuda_pool *pool, void *mem);

#endif /* HDT_RUNTIME_CUDA_CUDA_POOL_H */
