/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What HDT's way to the wire costs, beside a bare loop of SSL_write and SSL_read: the same cipher,
 * kernel and sockets, both ends in this process. Three contenders take turns: the bare loop,
 * streams (src/net/stream.h, an engine on a thread for each end), and two whole data planes with
 * workers. Each has as many connections as the case says, and each of these a thread at either end.
 *
 *     bench_tls [STREAMS [MIB [ROUNDS [NETNS-A NETNS-B ADDRESS-B]]]]
 *
 * STREAMS are numbers with commas. A line for each measurement: contender, streams, GB/s,
 * CPU-seconds per GB of both ends together. Over loopback, or between two network namespaces (ip
 * netns; root).
 */
#include "config.h"

#include "tests/support/dp_rig.h"
#include "tests/support/tls_pair.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/net/stream.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    RECORD_LEN = 1 << 20,
    FRAME_LEN = 16 << 20, /* of the data planes */
    N_WARM_FRAMES = 8,    /* sent before the clock starts: the first touch their memory */
    N_BUFS = 8,
    STREAMS_MAX = 64
};

/* One connection and its ends. */
struct pair {
    struct bench *bench;
    int fds[2]; /* receiver, sender */
    uint8_t *dst;
    pthread_t threads[2];
};

struct bench {
    struct tls_pair tls;
    const char *netns[2];                 /* of the sender and the receiver; NULL: loopback */
    const char *address;                  /* of the receiver */
    unsigned n_streams, n_records, n_mib; /* records: of each stream */
    uint8_t *src;
    struct pair pairs[STREAMS_MAX];
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

static struct figures figures_of(double gb, int64_t begin_us, double begin_cpu_s)
{
    return (struct figures){
        .gb_per_s = gb * HDT_US_PER_S / (double)(hdt_clock_now_us() - begin_us),
        .cpu_s_per_gb = (cpu_seconds() - begin_cpu_s) / gb,
    };
}

static void sockets_open(struct bench *bench, struct pair *pair)
{
    struct sockaddr_in sin = {.sin_family = AF_INET};
    socklen_t len = sizeof(sin);
    int listener, was, one = 1;

    HDT_ASSERT(inet_pton(AF_INET, bench->address, &sin.sin_addr) == 1);
    was = hdt_rig_netns_enter(bench->netns[1]);
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    HDT_ASSERT(bind(listener, (struct sockaddr *)&sin, len) == 0);
    HDT_ASSERT(listen(listener, 1) == 0);
    HDT_ASSERT(getsockname(listener, (struct sockaddr *)&sin, &len) == 0);
    hdt_rig_netns_back(was);
    was = hdt_rig_netns_enter(bench->netns[0]);
    pair->fds[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    hdt_rig_netns_back(was);
    HDT_ASSERT(connect(pair->fds[1], (struct sockaddr *)&sin, len) == 0);
    pair->fds[0] = accept(listener, NULL, NULL);
    for (int i = 0; i < 2; i++) {
        setsockopt(pair->fds[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    }
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
    struct pair *pair = arg;
    SSL *ssl = bare_open(pair->bench->tls.client, pair->fds[1], true);

    for (unsigned i = 0; i < pair->bench->n_records; i++) {
        HDT_ASSERT(SSL_write(ssl, pair->bench->src, RECORD_LEN) == RECORD_LEN);
    }
    SSL_shutdown(ssl);
    SSL_free(ssl);
    close(pair->fds[1]);
    return NULL;
}

static void *bare_receiver(void *arg)
{
    struct pair *pair = arg;
    const size_t total = (size_t)pair->bench->n_records * RECORD_LEN;
    SSL *ssl = bare_open(pair->bench->tls.server, pair->fds[0], false);

    for (size_t have = 0; have < total;) {
        size_t at = have % RECORD_LEN;
        int n = SSL_read(ssl, pair->dst + at, (int)(RECORD_LEN - at));

        HDT_ASSERT(n > 0);
        have += (size_t)n;
    }
    SSL_free(ssl);
    close(pair->fds[0]);
    return NULL;
}

/* The same through streams, an engine on each thread. */

struct side {
    struct pair *pair;
    struct hdt_engine *engine;
    struct hdt_stream *stream;
    struct hdt_record records[N_BUFS];
    bool is_sender;
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
    const struct bench *bench = side->pair->bench;

    while (side->is_sender && side->n_begun < bench->n_records &&
           side->n_begun - side->n_sent < N_BUFS) {
        struct hdt_record *record = &side->records[side->n_begun % N_BUFS];

        *record = (struct hdt_record){.frame = {.kind = HDT_FRAME_CHUNK,
                                                .len = RECORD_LEN,
                                                .frame_len = RECORD_LEN,
                                                .coded_len = RECORD_LEN},
                                      .payload = bench->src,
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
    if (side->n_sent == side->pair->bench->n_records) {
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
    *buf = side->pair->dst;
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

static void side_main(struct pair *pair, bool is_sender)
{
    static const struct hdt_stream_events events = {.up = side_up,
                                                    .place = side_place,
                                                    .record = side_record,
                                                    .want = side_want,
                                                    .sent = side_sent,
                                                    .closed = side_closed};
    const struct tls_pair *tls = &pair->bench->tls;
    struct hdt_stream_conf conf = {.name = is_sender ? "sender" : "receiver",
                                   .is_client = is_sender,
                                   .ssl_ctx = is_sender ? tls->client : tls->server};
    struct side *side = hdt_calloc(1, sizeof(*side));

    side->pair = pair;
    side->is_sender = is_sender;
    HDT_ASSERT(hdt_engine_open(getenv("HDT_TEST_ENGINE"), &side->engine, NULL) == HDT_OK);
    HDT_ASSERT(hdt_stream_open(side->engine, pair->fds[is_sender], &conf, &events, side,
                               &side->stream, NULL) == HDT_OK);
    hdt_engine_run(side->engine);
    HDT_ASSERT(is_sender || side->n_received == pair->bench->n_records);
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

static struct figures pairs_run(struct bench *bench, void *(*sender)(void *),
                                void *(*receiver)(void *))
{
    const double gb = (double)bench->n_streams * bench->n_records * RECORD_LEN * 1e-9;
    double cpu_s;
    int64_t begin_us;

    for (unsigned i = 0; i < bench->n_streams; i++) {
        sockets_open(bench, &bench->pairs[i]);
    }
    cpu_s = cpu_seconds();
    begin_us = hdt_clock_now_us();
    for (unsigned i = 0; i < bench->n_streams; i++) {
        struct pair *pair = &bench->pairs[i];

        pthread_create(&pair->threads[0], NULL, receiver, pair);
        pthread_create(&pair->threads[1], NULL, sender, pair);
    }
    for (unsigned i = 0; i < bench->n_streams; i++) {
        pthread_join(bench->pairs[i].threads[1], NULL);
        pthread_join(bench->pairs[i].threads[0], NULL);
    }
    return figures_of(gb, begin_us, cpu_s);
}

/* Two data planes, a flow from a worker of one to a worker of the other. */
static struct figures planes_run(struct bench *bench)
{
    const char *codecs = getenv("HDT_BENCH_CODEC_THREADS");
    const char *chunk_kib = getenv("HDT_BENCH_CHUNK_KIB");
    const uint64_t n_frames = N_WARM_FRAMES + ((uint64_t)bench->n_mib << 20) / FRAME_LEN;
    struct figures figures;
    struct rig rig;
    double cpu_s;
    int64_t begin_us;

    hdt_rig_open(&rig, 2);
    rig.unchecked = true;
    rig.conf.n_streams = (int)bench->n_streams;
    rig.conf.n_io_threads = (int)bench->n_streams;
    rig.conf.n_codec_threads =
        codecs ? (int)strtol(codecs, NULL, 10) : 1 + (int)bench->n_streams / 4;
    rig.conf.chunk_bytes = (chunk_kib ? strtoull(chunk_kib, NULL, 10) : 256) << 10;
    rig.conf.memory_bytes = 1ull << 30;
    rig.flows[rig.n_flows++] = (struct rig_flow){.src_site = 0,
                                                 .dst_site = 1,
                                                 .depth = 4,
                                                 .frame_cap = FRAME_LEN,
                                                 .n_frames = n_frames,
                                                 .prio = HDT_PRIO_ACTIVATION};
    for (unsigned i = 0; i < 2; i++) {
        rig.sites[i].netns = bench->netns[i];
    }
    snprintf(rig.sites[1].wan, sizeof(rig.sites[1].wan), "%s:0", bench->address);
    hdt_rig_start(&rig);
    hdt_rig_dial(&rig, 0, 1, NULL);
    hdt_rig_wait_frames(&rig, N_WARM_FRAMES);
    cpu_s = cpu_seconds();
    begin_us = hdt_clock_now_us();
    hdt_rig_wait_done(&rig, 60);
    figures = figures_of((double)(n_frames - N_WARM_FRAMES) * FRAME_LEN * 1e-9, begin_us, cpu_s);
    hdt_rig_close(&rig);
    return figures;
}

static void figures_print(const struct bench *bench, const char *who, struct figures figures)
{
    printf("%s %u %.4f %.4f\n", who, bench->n_streams, figures.gb_per_s, figures.cpu_s_per_gb);
    fflush(stdout);
}

/* HDT_BENCH_ONLY names one contender, for a profiler. */
static void round_run(struct bench *bench)
{
    const char *only = getenv("HDT_BENCH_ONLY");

    if (!only || strcmp(only, "bare") == 0) {
        figures_print(bench, "bare", pairs_run(bench, bare_sender, bare_receiver));
    }
    if (!only || strcmp(only, "stream") == 0) {
        figures_print(bench, "stream", pairs_run(bench, stream_sender, stream_receiver));
    }
    if (!only || strcmp(only, "plane") == 0) {
        figures_print(bench, "plane", planes_run(bench));
    }
}

static void bench_init(struct bench *bench)
{
    hdt_tls_pair_init(&bench->tls);
    /* As gateways choose. */
    HDT_ASSERT(SSL_CTX_set_ciphersuites(bench->tls.client, "TLS_AES_128_GCM_SHA256") == 1);
    bench->src = hdt_malloc(RECORD_LEN);
    memset(bench->src, 0x5a, RECORD_LEN);
    for (unsigned i = 0; i < STREAMS_MAX; i++) {
        bench->pairs[i].bench = bench;
        bench->pairs[i].dst = hdt_malloc(RECORD_LEN);
    }
}

static void bench_release(struct bench *bench)
{
    for (unsigned i = 0; i < STREAMS_MAX; i++) {
        free(bench->pairs[i].dst);
    }
    free(bench->src);
    hdt_tls_pair_release(&bench->tls);
}

int main(int argc, char **argv)
{
    static struct bench bench = {.address = "127.0.0.1"};
    char *streams = hdt_strdup(argc > 1 ? argv[1] : "1"), *rest = NULL;
    unsigned long n_mib = argc > 2 ? strtoul(argv[2], NULL, 10) : 2048;
    unsigned long n_rounds = argc > 3 ? strtoul(argv[3], NULL, 10) : 3;

    if (argc > 6) {
        bench.netns[0] = argv[4];
        bench.netns[1] = argv[5];
        bench.address = argv[6];
    }
    bench_init(&bench);
    for (char *word = strtok_r(streams, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        bench.n_streams = (unsigned)strtoul(word, NULL, 10);
        HDT_ASSERT(bench.n_streams > 0 && bench.n_streams <= STREAMS_MAX);
        bench.n_mib = (unsigned)n_mib * bench.n_streams;
        bench.n_records = (unsigned)n_mib;
        for (unsigned long i = 0; i < n_rounds; i++) {
            round_run(&bench);
        }
    }
    bench_release(&bench);
    free(streams);
    return 0;
}
