/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_POOL_H
#define HDT_RUNTIME_POOL_H

/*
 * Threads for CPU arithmetic whose results do not depend on how many there are.
 *
 * The caller cuts its problem into tiles by the problem's shape alone, each tile writes memory that
 * no other tile writes, and sums over tiles are added by the caller in tile order. Which thread
 * takes which tile is left to the moment (threads of a shared machine are seldom equally fast) and
 * cannot be seen in the result.
 */
#include "src/base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_pool;

/* Runs tile `tile` of 0 .. n_tiles - 1. `thread` is 0 .. n_threads - 1, for scratch memory. */
typedef void hdt_pool_fn(void *arg, int tile, int thread);

/* A pool of n_threads (>= 1), the caller of run included: n_threads - 1 are started. HDT_ENOMEM. */
enum hdt_status hdt_pool_new(int n_threads, struct hdt_pool **pool, struct hdt_error *err);

/* Ends and joins the threads. NULL is allowed. */
void hdt_pool_free(struct hdt_pool *pool);

int hdt_pool_n_threads(const struct hdt_pool *pool);

/* Runs all tiles and returns when they are done. Several threads may call; one set of tiles runs at
 * a time. fn must not call run on the same pool. Denormals are flushed to zero while fn runs. */
void hdt_pool_run(struct hdt_pool *pool, hdt_pool_fn *fn, void *arg, int n_tiles);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_POOL_H */
