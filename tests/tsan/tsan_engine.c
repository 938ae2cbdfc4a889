/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that meet at engines: two engines on threads of their own, each with plain and TLS
 * streams in full use, and threads that post to both all the while. To be built with
 * --enable-sanitize=thread; without it it is an ordinary test. HDT_TEST_ENGINE names the engine.
 */
#include "config.h"

#include "tests/support/stream_end.h"
#include "tests/support/tls_pair.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { N_ENGINES = 2, N_POSTERS = 2, N_POSTS = 2000, N_RECORDS = 300 };

struct loop {
    struct hdt_engine *engine;
    struct tls_pair *tls;
    pthread_t thread;
    unsigned n_tasks; /* only this loop's thread touches it */
    bool is_tls, is_ok;
};

struct post {
    struct hdt_task task;
    struct loop *loop;
};

struct poster {
    struct loop *loops;
    pthread_t thread;
    struct post posts[N_POSTS];
};

static void post_run(struct hdt_engine *engine, struct hdt_task *task)
{
    (void)engine;
    ((struct post *)task)->loop->n_tasks++;
}

static void *poster_main(void *arg)
{
    struct poster *poster = arg;

    for (unsigned i = 0; i < N_POSTS; i++) {
        struct loop *loop = &poster->loops[i % N_ENGINES];

        poster->posts[i] = (struct post){.task.run = post_run, .loop = loop};
        hdt_engine_post(loop->engine, &poster->posts[i].task);
    }
    return NULL;
}

static void *loop_main(void *arg)
{
    struct loop *loop = arg;
    struct hdt_stream_conf conf[2] = {{.name = "a"}, {.name = "b", .is_client = true}};
    static _Thread_local struct end a, b;
    int fds[2];

    hdt_tcp_pair(fds);
    if (loop->is_tls) {
        conf[0].ssl_ctx = loop->tls->server;
        conf[1].ssl_ctx = loop->tls->client;
    }
    a.out_seed = b.in_seed = 1;
    b.out_seed = a.in_seed = 2;
    a.n_out = a.n_in = b.n_out = b.n_in = N_RECORDS;
    a.stop_when_done = b.stop_when_done = true;
    hdt_end_pair_open(loop->engine, &a, &b, fds, conf);
    hdt_end_run(loop->engine);
    while (loop->n_tasks < N_POSTERS * N_POSTS / N_ENGINES) {
        hdt_engine_run_once(loop->engine, 1000);
    }
    loop->is_ok =
        a.received == N_RECORDS && b.received == N_RECORDS && a.n_wrong == 0 && b.n_wrong == 0;
    hdt_end_pair_close(loop->engine, &a, &b);
    hdt_end_release(&a);
    hdt_end_release(&b);
    return NULL;
}

static void round_run(struct tls_pair *tls, bool *is_ok)
{
    static struct poster posters[N_POSTERS];
    struct loop loops[N_ENGINES];

    memset(loops, 0, sizeof(loops));
    for (int i = 0; i < N_ENGINES; i++) {
        loops[i].tls = tls;
        loops[i].is_tls = i > 0;
        HDT_ASSERT(hdt_engine_open(getenv("HDT_TEST_ENGINE"), &loops[i].engine, NULL) == HDT_OK);
        pthread_create(&loops[i].thread, NULL, loop_main, &loops[i]);
    }
    for (int i = 0; i < N_POSTERS; i++) {
        posters[i].loops = loops;
        pthread_create(&posters[i].thread, NULL, poster_main, &posters[i]);
    }
    for (int i = 0; i < N_POSTERS; i++) {
        pthread_join(posters[i].thread, NULL);
    }
    for (int i = 0; i < N_ENGINES; i++) {
        pthread_join(loops[i].thread, NULL);
        hdt_engine_close(loops[i].engine);
        *is_ok = *is_ok && loops[i].is_ok;
    }
}

int main(void)
{
    struct hdt_engine *engine = NULL;
    struct hdt_error err = {0};
    struct tls_pair tls;
    bool is_ok = true;

    if (hdt_engine_open(getenv("HDT_TEST_ENGINE"), &engine, &err) != HDT_OK) {
        printf("tsan_engine: %s\n", err.msg);
        return 77;
    }
    hdt_engine_close(engine);
    hdt_tls_pair_init(&tls);
    round_run(&tls, &is_ok);
    hdt_tls_pair_release(&tls);
    printf("tsan_engine: %s\n", is_ok ? "ok" : "failed");
    return is_ok ? 0 : 1;
}
