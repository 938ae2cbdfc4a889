/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One TLS stream over loopback with records of 1 MiB, against a bare loop of SSL_write and SSL_read
 * over the same kind of socket, in turn. Prints GB/s and CPU-seconds per GB, one JSON line a row.
 * Usage: bench_stream [MIB [ROUNDS]]
 */
#include "config.h"

#include "tests/support/tls_pair.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/net/stream.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { RECORD_LEN = 1 << 20, N_BUFS = 8 };

struct bench {
    struct tls_pair tls;
    unsigned n_records;
    int fds[2]; /* receiver, sender */
    uint8_t *src, *dst;
};

struct figures {
    double gb_per_s, cpu_s_per_gb;
};

static double cpu_seconds(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static void sockets_open(struct bench *bench)
{
    struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sin);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    HDT_ASSERT(bind(listener, (struct sockaddr *)&sin, len) == 0);
    HDT_ASSERT(listen(listener, 1) == 0);
    HDT_ASSERT(getsockname(listener, (struct sockaddr *)&sin, &len) == 0);
    bench->fds[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    HDT_ASSERT(connect(bench->fds[1], (struct sockaddr *)&sin, len) == 0);
    bench->fds[0] = accept(listener, NULL, NULL);
    close(listener);
}

/* The bare loops. */

static SSL *bare_open(SSL_CTX *ctx, int fd, bool is_client)
{
    SSL *ssl = SSL_new(ctx);

    SSL_set_fd(ssl, fd);
    HDT_ASSERT((is_client ? SSL_connect(ssl) : SSL_accept(ssl)) == 1);
    return ssl;
}

static void *bare_sender(void *arg)
{
    struct bench *bench = arg;
    SSL *ssl = bare_open(bench->tls.client, bench->fds[1], true);

    for (unsigned i = 0; i < bench->n_records; i++) {
        HDT_ASSERT(SSL_write(ssl, bench->src, RECORD_LEN) == RECORD_LEN);
    }
    SSL_shutdown(ssl);
    SSL_free(ssl);
    close(bench->fds[1]);
    return NULL;
}

static void *bare_receiver(void *arg)
{
    struct bench *bench = arg;
    SSL *ssl = bare_open(bench->tls.server, bench->fds[0], false);
    size_t left = (size_t)bench->n_records * RECORD_LEN;

    while (left > 0) {
        size_t at = ((size_t)bench->n_records * RECORD_LEN - left) % RECORD_LEN;
        int n = SSL_read(ssl, bench->dst + at, (int)(RECORD_LEN - at));

        HDT_ASSERT(n > 0);
        left -= (size_t)n;
    }
    SSL_free(ssl);
    close(bench->fds[0]);
    return NULL;
}

/* The same through streams, an engine on each thread. */

struct side {
    struct bench *bench;
    struct hdt_engine *engine;
    struct hdt_stream *stream;
    struct hdt_record records[N_BUFS];
    unsigned n_begun, n_sent, n_received;
};

static void side_up(struct hdt_stream *stream, void *user)
{
    (void)stream;
    (void)user;
}

static void side_want(struct hdt_stream *stream, void *user)
{
    struct side *side = user;

    if (stream != side->stream || side->n_received == UINT32_MAX) {
        return;
    }
    while (side->n_begun < side->bench->n_records && side->n_begun - side->n_sent < N_BUFS) {
        struct hdt_record *record = &side->records[side->n_begun % N_BUFS];

        *record = (struct hdt_record){.frame = {.kind = HDT_FRAME_CHUNK,
                                                .len = RECORD_LEN,
                                                .frame_len = RECORD_LEN,
                                                .coded_len = RECORD_LEN},
                                      .payload = side->bench->src,
                                      .payload_len = RECORD_LEN,
                                      .passed_fd = -1};
        side->n_begun++;
        hdt_stream_send(stream, record, false);
    }
}

static void side_sent(struct hdt_stream *stream, void *user, struct hdt_record *record, bool ok)
{
    struct side *side = user;

    (void)record;
    side->n_sent += ok;
    if (side->n_sent == side->bench->n_records) {
        hdt_stream_close(stream, NULL);
    }
}

static enum hdt_status side_place(struct hdt_stream *stream, void *user,
                                  const struct hdt_frame *frame, size_t payload_len, void **buf,
                                  struct hdt_error *err)
{
    struct side *side = user;

    (void)stream;
    (void)frame;
    (void)payload_len;
    (void)err;
    *buf = side->bench->dst;
    return HDT_OK;
}

static enum hdt_status side_record(struct hdt_stream *stream, void *user,
                                   const struct hdt_frame *frame, void *buf, int passed_fd,
                                   struct hdt_error *err)
{
    struct side *side = user;

    (void)stream;
    (void)frame;
    (void)buf;
    (void)passed_fd;
    (void)err;
    side->n_received++;
    return HDT_OK;
}

static void side_closed(struct hdt_stream *stream, void *user, const struct hdt_error *err)
{
    struct side *side = user;

    (void)stream;
    (void)err;
    hdt_engine_stop(side->engine);
}

static void side_main(struct bench *bench, bool is_sender)
{
    static const struct hdt_stream_events events = {.up = side_up,
                                                    .place = side_place,
                                                    .record = side_record,
                                                    .want = side_want,
                                                    .sent = side_sent,
                                                    .closed = side_closed};
    struct hdt_stream_conf conf = {.name = is_sender ? "sender" : "receiver",
                                   .is_client = is_sender,
                                   .ssl_ctx = is_sender ? bench->tls.client : bench->tls.server};
    struct side *side = hdt_calloc(1, sizeof(*side));

    side->bench = bench;
    side->n_begun = is_sender ? 0 : bench->n_records;
    HDT_ASSERT(hdt_engine_open(NULL, &side->engine, NULL) == HDT_OK);
    HDT_ASSERT(hdt_stream_open(side->engine, bench->fds[is_sender], &conf, &events, side,
                               &side->stream, NULL) == HDT_OK);
    hdt_engine_run(side->engine);
    HDT_ASSERT(is_sender || side->n_received == bench->n_records);
    hdt_engine_close(side->engine);
    free(side);
}

static void *stream_sender(void *arg)
{
    side_main(arg, true);
    return NULL;
}

static void *stream_receiver(void *arg)
{
    side_main(arg, false);
    return NULL;
}

static struct figures bench_run(struct bench *bench, void *(*sender)(void *),
                                void *(*receiver)(void *))
{
    double gb = (double)bench->n_records * RECORD_LEN * 1e-9, cpu_s;
    int64_t begin_us;
    pthread_t threads[2];

    sockets_open(bench);
    cpu_s = cpu_seconds();
    begin_us = hdt_clock_now_us();
    pthread_create(&threads[0], NULL, receiver, bench);
    pthread_create(&threads[1], NULL, sender, bench);
    pthread_join(threads[1], NULL);
    pthread_join(threads[0], NULL);
    return (struct figures){
        .gb_per_s = gb * HDT_US_PER_S / (double)(hdt_clock_now_us() - begin_us),
        .cpu_s_per_gb = (cpu_seconds() - cpu_s) / gb,
    };
}

static void row_print(const char *metric, const char *unit, double value, double peer,
                      const char *better)
{
    printf("{\"bench\":\"stream\",\"case\":\"tls-1MiB-loopback\",\"metric\":\"%s\",\"value\":%.4f,"
           "\"unit\":\"%s\",\"better\":\"%s\",\"peer\":%.4f,\"ratio\":%.3f}\n",
           metric, value, unit, better, peer, value / peer);
}

int main(int argc, char **argv)
{
    struct bench bench = {.n_records = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 2048};
    unsigned long n_rounds = argc > 2 ? strtoul(argv[2], NULL, 10) : 3;
    struct figures best = {0}, bare = {0};

    hdt_tls_pair_init(&bench.tls);
    bench.src = hdt_malloc(RECORD_LEN);
    bench.dst = hdt_malloc(RECORD_LEN);
    memset(bench.src, 0x5a, RECORD_LEN);
    memset(bench.dst, 0, RECORD_LEN);
    for (unsigned long i = 0; i < n_rounds; i++) {
        struct figures b = bench_run(&bench, bare_sender, bare_receiver);
        struct figures s = bench_run(&bench, stream_sender, stream_receiver);

        printf("bare %.2f GB/s %.3f CPU-s/GB   stream %.2f GB/s %.3f CPU-s/GB\n", b.gb_per_s,
               b.cpu_s_per_gb, s.gb_per_s, s.cpu_s_per_gb);
        bare = b.gb_per_s > bare.gb_per_s ? b : bare;
        best = s.gb_per_s > best.gb_per_s ? s : best;
    }
    row_print("rate", "GB/s", best.gb_per_s, bare.gb_per_s, "higher");
    row_print("cpu", "CPU-s/GB", best.cpu_s_per_gb, bare.cpu_s_per_gb, "lower");
    free(bench.src);
    free(bench.dst);
    hdt_tls_pair_release(&bench.tls);
    return 0;
}
