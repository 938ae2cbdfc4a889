/* SPDX-License-Identifier: Apache-2.0 */
/* The thread pool. A program of its own (no Criterion), so that it also runs under the thread
 * sanitizer. */
#include "config.h"

#include "runtime/pool.h"
#include "src/base/buf.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define N_TILES_MAX 257
#define N_RUNS      400
#define N_CALLERS   3

static int failures;

#define EXPECT(cond)                                                                               \
 do {                                                                                              \
  if (!(cond)) {                                                                                   \
   fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #cond);                              \
   failures++;                                                                                     \
  }                                                                                                \
 } while (0)

struct tiles {
    int count[N_TILES_MAX]; /* how often each ran; each element is written by one tile only */
    int n_threads;
    int bad_thread;
};

static void tile_count(void *arg, int tile, int thread)
{
    struct tiles *tiles = arg;

    tiles->count[tile]++;
    if (thread < 0 || thread >= tiles->n_threads) {
        tiles->bad_thread = 1;
    }
}

/* Every tile runs once, in run after run of different sizes, and is seen by the caller after. */
static void each_tile_runs_once(struct hdt_pool *pool)
{
    struct tiles *tiles = hdt_calloc(1, sizeof(*tiles));
    int expected[N_TILES_MAX] = {0};

    tiles->n_threads = hdt_pool_n_threads(pool);
    for (int run = 0; run < N_RUNS; run++) {
        int n = run * 7 % N_TILES_MAX;

        hdt_pool_run(pool, tile_count, tiles, n);
        for (int i = 0; i < n; i++) {
            expected[i]++;
        }
    }
    for (int i = 0; i < N_TILES_MAX; i++) {
        EXPECT(tiles->count[i] == expected[i]);
    }
    EXPECT(!tiles->bad_thread);
    free(tiles);
}

static void *caller_main(void *arg)
{
    each_tile_runs_once(arg);
    return NULL;
}

static void several_callers_share_a_pool(struct hdt_pool *pool)
{
    pthread_t threads[N_CALLERS];

    for (int i = 0; i < N_CALLERS; i++) {
        EXPECT(pthread_create(&threads[i], NULL, caller_main, pool) == 0);
    }
    for (int i = 0; i < N_CALLERS; i++) {
        pthread_join(threads[i], NULL);
    }
}

int main(void)
{
    for (int n = 1; n <= 5; n++) {
        struct hdt_pool *pool = NULL;
        struct hdt_error err = {0};

        EXPECT(hdt_pool_new(n, &pool, &err) == HDT_OK);
        EXPECT(hdt_pool_n_threads(pool) == n);
        each_tile_runs_once(pool);
        several_callers_share_a_pool(pool);
        hdt_pool_free(pool);
    }
    hdt_pool_free(NULL);
    return failures ? 1 : 0;
}
