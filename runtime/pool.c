/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The problem: an op of a small model takes 50 us to 20 ms, on a machine whose cores are shared
 * with other processes, so that threads must start fast and must not wait for one another's turn.
 *
 * The idea: tiles are claimed one by one from a single 64-bit word that holds (run number, next
 * tile). A helper that comes late to a run finds a newer number in it and claims nothing, so the
 * caller waits only for tiles that somebody really took, never for helpers that did not wake up. A
 * helper spins a few microseconds for the next run (ops come in rows) and then sleeps.
 *
 * Refused: giving thread i the i-th part (the slowest core then sets the time), OpenMP (libgomp
 * cannot be followed by the thread sanitizer, and its waiting policy is a global setting).
 */
#include "config.h"

#include "runtime/pool.h"
#include "src/base/buf.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#if defined(__SSE2__)
# include <xmmintrin.h>
#endif

#define SPIN_ROUNDS 2000

struct pool_work {
    hdt_pool_fn *fn;
    void *arg;
    uint32_t n_tiles;
    uint32_t run;
};

struct pool_helper {
    struct hdt_pool *pool;
    pthread_t thread;
    int idx;
};

struct hdt_pool {
    int n_threads;
    int n_started;
    struct pool_helper *helpers;
    pthread_mutex_t run_lock; /* held by the caller of run */
    pthread_mutex_t lock;     /* guards work, stopping and the sleepers' conditions */
    pthread_cond_t wake;      /* a new run, or the end */
    pthread_cond_t finished;  /* the last tile of a run is done */
    struct pool_work work;
    bool stopping;
    _Atomic uint32_t run;    /* work.run, to be watched without the lock */
    _Atomic uint64_t next;   /* run << 32 | next tile */
    _Atomic uint32_t n_done; /* tiles of this run that are done */
};

/* Gradients and moments fade into denormals, which cost hundreds of cycles each. All threads flush
 * them, so that a tile's result does not depend on who ran it. */
static unsigned denormals_flush(void)
{
#if defined(__SSE2__)
    unsigned old = _mm_getcsr();

    _mm_setcsr(old | 0x8040);
    return old;
#elif defined(__aarch64__)
    uint64_t old;

    __asm__ volatile("mrs %0, fpcr" : "=r"(old));
    __asm__ volatile("msr fpcr, %0" : : "r"(old | (1u << 24)));
    return (unsigned)old;
#else
    return 0;
#endif
}

static void denormals_restore(unsigned old)
{
#if defined(__SSE2__)
    _mm_setcsr(old);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)old));
#else
    (void)old;
#endif
}

static inline void spin_pause(void)
{
#if defined(__SSE2__)
    _mm_pause();
#endif
}

/* Claim the next tile of this run; false when there is none left or the run is over. */
static bool tile_claim(struct hdt_pool *pool, const struct pool_work *work, uint32_t *tile)
{
    uint64_t next = atomic_load_explicit(&pool->next, memory_order_acquire);

    for (;;) {
        if ((uint32_t)(next >> 32) != work->run || (uint32_t)next >= work->n_tiles) {
            return false;
        }
        if (atomic_compare_exchange_weak_explicit(&pool->next, &next, next + 1,
                                                  memory_order_acq_rel, memory_order_acquire)) {
            *tile = (uint32_t)next;
            return true;
        }
    }
}

static void work_share(struct hdt_pool *pool, const struct pool_work *work, int thread)
{
    uint32_t tile;

    while (tile_claim(pool, work, &tile)) {
        work->fn(work->arg, (int)tile, thread);
        if (atomic_fetch_add_explicit(&pool->n_done, 1, memory_order_acq_rel) + 1 ==
                work->n_tiles &&
            thread != 0) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->finished);
            pthread_mutex_unlock(&pool->lock);
        }
    }
}

/* Wait for a run newer than `seen`; false at the end of the pool. */
static bool work_await(struct hdt_pool *pool, uint32_t seen, struct pool_work *work)
{
    bool more;

    for (int i = 0; i < SPIN_ROUNDS; i++) {
        if (atomic_load_explicit(&pool->run, memory_order_acquire) != seen) {
            break;
        }
        spin_pause();
    }
    pthread_mutex_lock(&pool->lock);
    while (!pool->stopping && pool->work.run == seen) {
        pthread_cond_wait(&pool->wake, &pool->lock);
    }
    more = !pool->stopping;
    *work = pool->work;
    pthread_mutex_unlock(&pool->lock);
    return more;
}

static void *helper_main(void *arg)
{
    struct pool_helper *helper = arg;
    struct pool_work work = {0};

    denormals_flush();
    while (work_await(helper->pool, work.run, &work)) {
        work_share(helper->pool, &work, helper->idx);
    }
    return NULL;
}

enum hdt_status hdt_pool_new(int n_threads, struct hdt_pool **pool_out, struct hdt_error *err)
{
    struct hdt_pool *pool = hdt_calloc(1, sizeof(*pool));

    HDT_ASSERT(n_threads >= 1);
    pool->n_threads = n_threads;
    pool->helpers = hdt_calloc((size_t)n_threads, sizeof(*pool->helpers));
    pthread_mutex_init(&pool->run_lock, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->finished, NULL);
    for (int i = 0; i < n_threads - 1; i++) {
        struct pool_helper *helper = &pool->helpers[i];
        int rc;

        *helper = (struct pool_helper){.pool = pool, .idx = i + 1};
        rc = pthread_create(&helper->thread, NULL, helper_main, helper);
        if (rc != 0) {
            hdt_pool_free(pool);
            return hdt_error_set_errno(err, HDT_ENOMEM, rc, "cannot start compute thread %d of %d",
                                       i + 1, n_threads);
        }
        pool->n_started++;
    }
    *pool_out = pool;
    return HDT_OK;
}

void hdt_pool_free(struct hdt_pool *pool)
{
    if (!pool) {
        return;
    }
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->n_started; i++) {
        pthread_join(pool->helpers[i].thread, NULL);
    }
    pthread_cond_destroy(&pool->finished);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->run_lock);
    free(pool->helpers);
    free(pool);
}

int hdt_pool_n_threads(const struct hdt_pool *pool)
{
    return pool->n_threads;
}

static struct pool_work work_publish(struct hdt_pool *pool, hdt_pool_fn *fn, void *arg,
                                     uint32_t n_tiles)
{
    struct pool_work work = {.fn = fn, .arg = arg, .n_tiles = n_tiles};

    pthread_mutex_lock(&pool->lock);
    work.run = pool->work.run + 1;
    pool->work = work;
    atomic_store_explicit(&pool->n_done, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->next, (uint64_t)work.run << 32, memory_order_release);
    atomic_store_explicit(&pool->run, work.run, memory_order_release);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    return work;
}

/* The caller found no more tiles: wait for those that helpers still have in hand. */
static void work_finish(struct hdt_pool *pool, uint32_t n_tiles)
{
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        if (atomic_load_explicit(&pool->n_done, memory_order_acquire) == n_tiles) {
            return;
        }
        spin_pause();
    }
    pthread_mutex_lock(&pool->lock);
    while (atomic_load_explicit(&pool->n_done, memory_order_acquire) != n_tiles) {
        pthread_cond_wait(&pool->finished, &pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
}

void hdt_pool_run(struct hdt_pool *pool, hdt_pool_fn *fn, void *arg, int n_tiles)
{
    unsigned old = denormals_flush();

    pthread_mutex_lock(&pool->run_lock);
    if (pool->n_started == 0 || n_tiles <= 1) {
        for (int i = 0; i < n_tiles; i++) {
            fn(arg, i, 0);
        }
    } else {
        struct pool_work work = work_publish(pool, fn, arg, (uint32_t)n_tiles);

        work_share(pool, &work, 0);
        work_finish(pool, work.n_tiles);
    }
    pthread_mutex_unlock(&pool->run_lock);
    denormals_restore(old);
}
