/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a chunk costs beside its bytes: no allocation of HDT's, and how often a lock is taken. Every
 * malloc and every pthread_mutex_lock of this process is counted, those of OpenSSL apart: it takes
 * and gives back a few small pieces for each TLS record, from the cache of its thread.
 */
#include "config.h"

#include "tests/support/dp_rig.h"
#include "tests/support/stream_end.h"
#include "tests/support/tls_pair.h"
#include "src/base/clock.h"

#include <dlfcn.h>
#include <openssl/crypto.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
int main(void)
{
    printf("SKIP: the sanitizer has malloc\n");
    return 77;
}
#else

enum {
    N_WARM = 200, /* records */
    N_COUNTED = 2000,
    CHUNK = 256 << 10,
    FRAME = 4 << 20,
    N_WARM_FRAMES = 16,
    N_FRAMES = 128
};

static atomic_bool is_counting;
static atomic_ulong n_allocations, n_of_openssl, n_locks, n_contended;

static void count(atomic_ulong *n)
{
    if (atomic_load_explicit(&is_counting, memory_order_relaxed)) {
        atomic_fetch_add_explicit(n, 1, memory_order_relaxed);
    }
}

/* In place of the C library's, which are known by these names as well. */
extern void *__libc_malloc(size_t len);
extern void *__libc_calloc(size_t n, size_t len);
extern void *__libc_realloc(void *p, size_t len);
void *malloc(size_t len) __attribute__((visibility("default")));
void *calloc(size_t n, size_t len) __attribute__((visibility("default")));
void *realloc(void *p, size_t len) __attribute__((visibility("default")));
int pthread_mutex_lock(pthread_mutex_t *mutex) __attribute__((visibility("default")));

void *malloc(size_t len)
{
    count(&n_allocations);
    return __libc_malloc(len);
}

void *calloc(size_t n, size_t len)
{
    count(&n_allocations);
    return __libc_calloc(n, len);
}

void *realloc(void *p, size_t len)
{
    count(&n_allocations);
    return __libc_realloc(p, len);
}

int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    static int (*_Atomic lock)(pthread_mutex_t *);

    if (!lock) {
        void *next = dlsym(RTLD_NEXT, "pthread_mutex_lock");
        int (*found)(pthread_mutex_t *);

        memcpy(&found, &next, sizeof(found)); /* ISO C has no cast from one to the other */
        lock = found;
    }
    count(&n_locks);
    if (pthread_mutex_trylock(mutex) == 0) {
        return 0;
    }
    count(&n_contended);
    return lock(mutex);
}

static void *openssl_malloc(size_t len, const char *file, int line)
{
    (void)file;
    (void)line;
    count(&n_of_openssl);
    return __libc_malloc(len);
}

static void *openssl_realloc(void *p, size_t len, const char *file, int line)
{
    (void)file;
    (void)line;
    count(&n_of_openssl);
    return __libc_realloc(p, len);
}

static void openssl_free(void *p, const char *file, int line)
{
    (void)file;
    (void)line;
    free(p);
}

static void counting_begin(void)
{
    atomic_store(&n_allocations, 0);
    atomic_store(&n_of_openssl, 0);
    atomic_store(&n_locks, 0);
    atomic_store(&n_contended, 0);
    atomic_store(&is_counting, true);
}

static void counting_end(const char *what, double n, const char *of)
{
    atomic_store(&is_counting, false);
    printf("%s: %.0f %s, for each of them %.4f allocations of HDT's and %.1f of OpenSSL's, %.2f "
           "locks, %.2f of them waited for\n",
           what, n, of, (double)n_allocations / n, (double)n_of_openssl / n, (double)n_locks / n,
           (double)n_contended / n);
}

static bool streams_pass(bool is_tls)
{
    struct hdt_stream_conf conf[2] = {{.name = "a"}, {.name = "b", .is_client = true}};
    static struct end a, b;
    struct tls_pair tls;
    struct hdt_engine *engine;
    int fds[2];

    memset(&a, 0, sizeof(a));
    memset(&b, 0, sizeof(b));
    hdt_tls_pair_init(&tls);
    if (is_tls) {
        conf[0].ssl_ctx = tls.server;
        conf[1].ssl_ctx = tls.client;
    }
    HDT_ASSERT(hdt_engine_open(getenv("HDT_TEST_ENGINE"), &engine, NULL) == HDT_OK);
    hdt_tcp_pair(fds);
    a.out_seed = b.in_seed = 1;
    b.out_seed = a.in_seed = 2;
    a.n_out = a.n_in = b.n_out = b.n_in = 2 * N_WARM + N_COUNTED;
    hdt_end_pair_open(engine, &a, &b, fds, conf);
    while (a.received < N_WARM || b.received < N_WARM) {
        hdt_engine_run_once(engine, HDT_US_PER_S);
    }
    counting_begin();
    while (a.received < N_WARM + N_COUNTED) {
        hdt_engine_run_once(engine, HDT_US_PER_S);
    }
    counting_end(is_tls ? "TLS streams" : "plain streams", N_COUNTED, "records each way");
    HDT_ASSERT(a.n_wrong == 0 && b.n_wrong == 0);
    hdt_end_pair_close(engine, &a, &b);
    hdt_end_release(&a);
    hdt_end_release(&b);
    hdt_engine_close(engine);
    hdt_tls_pair_release(&tls);
    return n_allocations == 0 && n_locks == 0;
}

/* Beside the chunks there are signs of life and statistics, which do not grow with them. */
static bool planes_pass(void)
{
    const double n_chunks = (double)(N_FRAMES - N_WARM_FRAMES) * FRAME / CHUNK;
    struct rig rig;

    hdt_rig_open(&rig, 2);
    rig.unchecked = true;
    rig.conf.n_streams = 2;
    rig.conf.n_io_threads = 2;
    rig.conf.chunk_bytes = CHUNK;
    rig.flows[rig.n_flows++] = (struct rig_flow){.src_site = 0,
                                                 .dst_site = 1,
                                                 .depth = 4,
                                                 .frame_cap = FRAME,
                                                 .n_frames = N_FRAMES,
                                                 .prio = HDT_PRIO_ACTIVATION};
    hdt_rig_start(&rig);
    hdt_rig_dial(&rig, 0, 1, NULL);
    hdt_rig_wait_frames(&rig, N_WARM_FRAMES);
    counting_begin();
    hdt_rig_wait_done(&rig, 60);
    counting_end("data planes", n_chunks, "chunks");
    hdt_rig_close(&rig);
    return (double)n_allocations < n_chunks / 10;
}

int main(void)
{
    bool is_ok;

    HDT_ASSERT(CRYPTO_set_mem_functions(openssl_malloc, openssl_realloc, openssl_free) == 1);
    is_ok = streams_pass(false);
    is_ok = streams_pass(true) && is_ok;
    is_ok = planes_pass() && is_ok;
    printf("test_hot_path: %s\n", is_ok ? "ok" : "failed: a chunk allocates, or a stream locks");
    return is_ok ? 0 : 1;
}
#endif
