/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/support/stream_end.h"
#include "tests/support/tls_pair.h"
#include "src/base/buf.h"
#include "src/base/clock.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { PLAIN, TLS };
enum { UNIX_SOCKET, TCP_SOCKET };

struct rig {
    struct hdt_engine *engine;
    struct tls_pair tls;
    struct hdt_stream_conf conf[2];
    int fds[2];
    struct end a, b; /* server, client */
};

static void rig_init(struct rig *rig, int mode, int socket_kind)
{
    struct hdt_error err = {0};

    memset(rig, 0, sizeof(*rig));
    cr_assert_eq(hdt_engine_open(getenv("HDT_TEST_ENGINE"), &rig->engine, &err), HDT_OK, "%s",
                 err.msg);
    rig->conf[0].name = "server";
    rig->conf[1].name = "client";
    rig->conf[1].is_client = true;
    if (mode == TLS) {
        hdt_tls_pair_init(&rig->tls);
        rig->conf[0].ssl_ctx = rig->tls.server;
        rig->conf[1].ssl_ctx = rig->tls.client;
    }
    if (socket_kind == TCP_SOCKET) {
        hdt_tcp_pair(rig->fds);
    } else {
        cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, rig->fds), 0);
    }
}

static void rig_open(struct rig *rig)
{
    hdt_end_pair_open(rig->engine, &rig->a, &rig->b, rig->fds, rig->conf);
}

static void rig_release(struct rig *rig)
{
    hdt_end_pair_close(rig->engine, &rig->a, &rig->b);
    hdt_end_release(&rig->a);
    hdt_end_release(&rig->b);
    hdt_engine_close(rig->engine);
    hdt_tls_pair_release(&rig->tls);
}

/* Both ends send n records to each other. */
static void rig_exchange(struct rig *rig, unsigned n)
{
    uint64_t seed = hdt_rnd_seed();

    cr_log_info("HDT_SEED=%llu", (unsigned long long)seed);
    rig->a.out_seed = rig->b.in_seed = seed;
    rig->b.out_seed = rig->a.in_seed = seed + 1000003;
    rig->a.n_out = rig->a.n_in = rig->b.n_out = rig->b.n_in = n;
    rig->a.stop_when_done = rig->b.stop_when_done = true;
    rig_open(rig);
    hdt_end_run(rig->engine);
    cr_expect_eq(rig->a.received, n, "%s, seed %llu", rig->a.why.msg, (unsigned long long)seed);
    cr_expect_eq(rig->b.received, n, "%s, seed %llu", rig->b.why.msg, (unsigned long long)seed);
    cr_expect_eq(rig->a.n_wrong, 0, "seed %llu", (unsigned long long)seed);
    cr_expect_eq(rig->b.n_wrong, 0, "seed %llu", (unsigned long long)seed);
    cr_expect(rig->a.is_open && rig->b.is_open);
}

Test(stream, plain_over_unix_carries_random_records_both_ways)
{
    struct rig rig;

    rig_init(&rig, PLAIN, UNIX_SOCKET);
    rig_exchange(&rig, 3000);
    rig_release(&rig);
    cr_expect_eq(rig.a.why.status, HDT_OK);
}

Test(stream, plain_over_tcp_carries_random_records_both_ways)
{
    struct rig rig;

    rig_init(&rig, PLAIN, TCP_SOCKET);
    rig_exchange(&rig, 3000);
    rig_release(&rig);
}

Test(stream, tls_over_tcp_carries_random_records_both_ways)
{
    struct rig rig;

    rig_init(&rig, TLS, TCP_SOCKET);
    rig_exchange(&rig, 3000);
    rig_release(&rig);
}

/* Every size of read and write down to a few bytes: tiny socket buffers. */
Test(stream, tls_survives_small_socket_buffers)
{
    struct rig rig;
    int size = 1;

    rig_init(&rig, TLS, UNIX_SOCKET);
    for (int i = 0; i < 2; i++) {
        setsockopt(rig.fds[i], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
        setsockopt(rig.fds[i], SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
    }
    rig_exchange(&rig, 400);
    rig_release(&rig);
}

static void exchange_with_again(int mode)
{
    struct rig rig;
    const unsigned n = 500;

    rig_init(&rig, mode, TCP_SOCKET);
    rig.a.again_every = 1;
    rig.b.again_every = 7;
    rig.a.out_seed = rig.b.in_seed = 5;
    rig.b.out_seed = rig.a.in_seed = 6;
    rig.a.n_out = rig.a.n_in = rig.b.n_out = rig.b.n_in = n;
    rig_open(&rig);
    while (rig.a.received < n || rig.b.received < n) {
        hdt_engine_run_once(rig.engine, 1000);
        hdt_stream_resume(rig.a.stream);
        hdt_stream_resume(rig.b.stream);
    }
    cr_expect_eq(rig.a.n_wrong + rig.b.n_wrong, 0);
    rig_release(&rig);
}

Test(stream, place_again_stops_and_resume_goes_on_plain, .timeout = 60)
{
    exchange_with_again(PLAIN);
}

Test(stream, place_again_stops_and_resume_goes_on_tls, .timeout = 60)
{
    exchange_with_again(TLS);
}

/* A reader that takes nothing: the sender's stream takes no more than its buffers and the kernel's,
 * and the rest stays with the owner. */
static void slow_reader(int mode)
{
    struct rig rig;
    struct hdt_stream_stats stats;

    rig_init(&rig, mode, TCP_SOCKET);
    rig.a.out_seed = rig.b.in_seed = 11;
    rig.a.n_out = rig.b.n_in = 2000;
    rig.b.is_slow = true;
    rig_open(&rig);
    for (unsigned idle = 0, before = 0; idle < 20;) {
        hdt_engine_run_once(rig.engine, 1000);
        idle = rig.a.sent == before ? idle + 1 : 0;
        before = rig.a.sent;
    }
    cr_expect_lt(rig.a.sent, 2000u);
    cr_expect_eq(rig.b.n_wrong, 0);
    hdt_stream_stats(rig.b.stream, &stats);
    cr_expect_lt(stats.recv_bytes, 600u << 10, "%llu", (unsigned long long)stats.recv_bytes);
    cr_expect_leq(rig.a.queued_max, (size_t)END_IN_FLIGHT * (END_PAYLOAD_MAX + 64));
    rig.b.is_slow = false;
    rig.a.stop_when_done = rig.b.stop_when_done = true;
    hdt_stream_resume(rig.b.stream);
    hdt_end_run(rig.engine);
    cr_expect_eq(rig.b.received, 2000u);
    cr_expect_eq(rig.b.n_wrong, 0);
    rig_release(&rig);
}

Test(stream, a_slow_reader_bounds_memory_plain)
{
    slow_reader(PLAIN);
}

Test(stream, a_slow_reader_bounds_memory_tls)
{
    slow_reader(TLS);
}

Test(stream, keys_change_before_their_limit)
{
    struct rig rig;
    struct hdt_stream_stats stats;

    rig_init(&rig, TLS, TCP_SOCKET);
    rig.conf[0].key_update_records = 16;
    rig.conf[1].key_update_records = 10;
    rig_exchange(&rig, 1000);
    /* Each side changes its own key, as often as it was told. A TLS record has 16 KiB of content
     * and 256 bytes around it at most (RFC 8446). */
    hdt_stream_stats(rig.b.stream, &stats);
    cr_expect_gt(stats.recv_bytes, 10u << 20);
    cr_expect_geq(stats.recv_key_updates + 1u, stats.recv_bytes / (16384 + 256) / 16);
    hdt_stream_stats(rig.a.stream, &stats);
    cr_expect_gt(stats.recv_bytes, 10u << 20);
    cr_expect_geq(stats.recv_key_updates + 1u, stats.recv_bytes / (16384 + 256) / 10);
    rig_release(&rig);
}

/* Records that are urgent pass those not begun. */
static struct hdt_record order[64];
static unsigned order_seen[64], n_order;

static void order_up(struct hdt_stream *stream, void *user)
{
    (void)stream;
    (void)user;
}

static void order_want(struct hdt_stream *stream, void *user)
{
    (void)stream;
    (void)user;
}

static void order_sent(struct hdt_stream *stream, void *user, struct hdt_record *record, bool ok)
{
    (void)stream;
    (void)user;
    if (ok) {
        order_seen[n_order++] = (unsigned)(record - order);
    }
}

static enum hdt_status order_record(struct hdt_stream *stream, void *user,
                                    const struct hdt_frame *frame, void *buf, int passed_fd,
                                    struct hdt_error *err)
{
    (void)stream;
    (void)user;
    (void)frame;
    (void)buf;
    (void)passed_fd;
    (void)err;
    return HDT_OK;
}

static void order_closed(struct hdt_stream *stream, void *user, const struct hdt_error *err)
{
    (void)stream;
    (void)err;
    *(bool *)user = true;
}

static const struct hdt_stream_events order_events = {.up = order_up,
                                                      .record = order_record,
                                                      .want = order_want,
                                                      .sent = order_sent,
                                                      .closed = order_closed};

static struct hdt_record ping_record(uint64_t seq)
{
    return (struct hdt_record){.frame = {.kind = HDT_FRAME_PING, .seq = seq}, .passed_fd = -1};
}

Test(stream, urgent_records_pass_those_not_begun)
{
    struct hdt_engine *engine;
    struct hdt_stream *stream;
    struct hdt_stream_conf conf = {.name = "order"};
    int fds[2];
    bool is_closed = false;

    cr_assert_eq(hdt_engine_open(getenv("HDT_TEST_ENGINE"), &engine, NULL), HDT_OK);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    cr_assert_eq(hdt_stream_open(engine, fds[0], &conf, &order_events, &is_closed, &stream, NULL),
                 HDT_OK);
    for (unsigned i = 0; i < 6; i++) {
        order[i] = ping_record(i);
        hdt_stream_send(stream, &order[i], i >= 4);
    }
    while (n_order < 6) {
        hdt_engine_run_once(engine, 1000);
    }
    for (unsigned i = 0; i < 6; i++) {
        cr_expect_eq(order_seen[i], (i + 4) % 6);
    }
    hdt_stream_close(stream, NULL);
    while (!is_closed) {
        hdt_engine_run_once(engine, 1000);
    }
    close(fds[1]);
    hdt_engine_close(engine);
}

/* What a stranger's bytes do to one end of a stream; returns why it closed. */
static struct hdt_error stranger(int mode, const void *bytes, size_t len, bool then_close)
{
    struct rig rig;

    rig_init(&rig, mode, TCP_SOCKET);
    rig.a.engine = rig.engine;
    rig.a.other = &rig.b;
    cr_assert_eq(write(rig.fds[1], bytes, len), (ssize_t)len);
    if (then_close) {
        shutdown(rig.fds[1], SHUT_WR);
    }
    {
        int other[2];
        int fds[2] = {rig.fds[0], 0};

        hdt_tcp_pair(other);
        fds[1] = other[1];
        close(other[0]);
        rig.conf[1].ssl_ctx = NULL;
        hdt_end_pair_open(rig.engine, &rig.a, &rig.b, fds, rig.conf);
    }
    while (rig.a.is_open) {
        hdt_engine_run_once(rig.engine, 100000);
    }
    close(rig.fds[1]);
    rig_release(&rig);
    cr_expect_str_eq(rig.a.why.where, "server");
    return rig.a.why;
}

#define EXPECT_TEXT(err, text)                                                                     \
 cr_expect(strstr((err).msg, text) != NULL, "'%s' is not in '%s'", text, (err).msg)

Test(stream, http_on_the_tls_port_is_named)
{
    struct hdt_error err = stranger(TLS, "GET / HTTP/1.1\r\n\r\n", 18, false);

    cr_expect_eq(err.status, HDT_EPROTO);
    EXPECT_TEXT(err, "plain HTTP on the TLS port");
    cr_expect_neq(err.hint[0], '\0');
}

Test(stream, garbage_on_the_tls_port_is_refused)
{
    struct hdt_error err = stranger(TLS, "\x00\x01\x02\x03\x04\x05\x06\x07", 8, false);

    cr_expect_eq(err.status, HDT_EPROTO);
    err = stranger(TLS, "\x16\x03\x01\xff\xff\x07\x07\x07\x07\x07\x07\x07", 12, false);
    cr_expect_neq(err.status, HDT_OK);
    err = stranger(TLS, "\x16\x03\x01", 3, true);
    EXPECT_TEXT(err, "closed");
}

Test(stream, http_and_tls_on_a_plain_socket_are_named)
{
    char bytes[80] = "GET / HTTP/1.1\r\n";
    struct hdt_error err = stranger(PLAIN, bytes, sizeof(bytes), false);

    cr_expect_eq(err.status, HDT_EPROTO);
    cr_expect(strstr(err.hint, "HTTP") != NULL, "%s", err.hint);
    memcpy(bytes, "\x16\x03\x01\x02\x00", 5);
    err = stranger(PLAIN, bytes, sizeof(bytes), false);
    cr_expect_eq(err.status, HDT_EPROTO);
    cr_expect(strstr(err.hint, "TLS") != NULL, "%s", err.hint);
}

Test(stream, a_peer_that_closes_in_mid_record_is_told_apart)
{
    uint8_t bytes[HDT_FRAME_HEADER_LEN + 10] = {0};
    struct hdt_frame frame = {
        .version = HDT_FRAME_VERSION, .kind = HDT_FRAME_MSG, .coded_len = 100};
    struct hdt_error err;

    hdt_frame_pack(&frame, bytes);
    err = stranger(PLAIN, bytes, sizeof(bytes), true);
    cr_expect_eq(err.status, HDT_ELINK);
    EXPECT_TEXT(err, "10 of 100 bytes of its payload");
    err = stranger(PLAIN, bytes, 20, true);
    EXPECT_TEXT(err, "20 of 64 bytes of its header");
}

Test(stream, a_bit_that_flips_in_a_message_closes_the_stream)
{
    uint8_t bytes[HDT_FRAME_HEADER_LEN + 100] = {0};
    struct hdt_frame frame = {
        .version = HDT_FRAME_VERSION, .kind = HDT_FRAME_MSG, .coded_len = 100};
    struct hdt_error err;

    frame.xxh3 = XXH3_64bits(bytes + HDT_FRAME_HEADER_LEN, 100);
    hdt_frame_pack(&frame, bytes);
    bytes[HDT_FRAME_HEADER_LEN + 57] ^= 0x20;
    err = stranger(PLAIN, bytes, sizeof(bytes), false);
    cr_expect_eq(err.status, HDT_EPROTO);
    EXPECT_TEXT(err, "damaged on its way");
    bytes[24] ^= 1; /* in the header: the sequence number */
    err = stranger(PLAIN, bytes, sizeof(bytes), false);
    cr_expect_eq(err.status, HDT_EPROTO);
    EXPECT_TEXT(err, "its header was damaged");
}

Test(stream, oversized_lengths_close_the_stream)
{
    uint8_t bytes[HDT_FRAME_HEADER_LEN];
    struct hdt_frame frame = {.version = HDT_FRAME_VERSION, .kind = HDT_FRAME_MSG};
    struct hdt_error err;

    frame.coded_len = HDT_FRAME_MAX_MSG + 1;
    hdt_frame_pack(&frame, bytes);
    err = stranger(PLAIN, bytes, sizeof(bytes), false);
    cr_expect_eq(err.status, HDT_EPROTO);
    /* Allowed on the wire, refused by place(). */
    frame.coded_len = END_PAYLOAD_MAX + 1;
    hdt_frame_pack(&frame, bytes);
    err = stranger(PLAIN, bytes, sizeof(bytes), false);
    EXPECT_TEXT(err, "a payload of 300001 bytes");
}

Test(stream, closing_gives_unsent_records_back)
{
    struct rig rig;

    rig_init(&rig, TLS, TCP_SOCKET);
    rig.a.out_seed = rig.b.in_seed = 21;
    rig.a.n_out = rig.b.n_in = 2000;
    rig.b.is_slow = true;
    rig_open(&rig);
    while (rig.a.begun < 100) {
        hdt_engine_run_once(rig.engine, 1000);
    }
    hdt_end_pair_close(rig.engine, &rig.a, &rig.b);
    cr_expect_eq(rig.a.sent + rig.a.failed, rig.a.begun);
    cr_expect_gt(rig.a.failed, 0u);
    cr_expect_eq(rig.a.why.status, HDT_OK);
    rig_release(&rig);
}

/* In TLS 1.3 the client is up before the server has seen its certificate: the reason comes as an
 * alert, and must not be lost behind a broken pipe. */
Test(stream, both_ends_say_why_a_foreign_certificate_was_refused)
{
    struct rig rig;
    SSL_CTX *stranger_ctx = hdt_tls_stranger_new();

    rig_init(&rig, TLS, TCP_SOCKET);
    SSL_CTX_set_verify(stranger_ctx, SSL_VERIFY_NONE, NULL);
    rig.conf[1].ssl_ctx = stranger_ctx;
    rig.b.out_seed = rig.a.in_seed = 31;
    rig.b.n_out = rig.a.n_in = 100;
    rig_open(&rig);
    while (rig.a.is_open || rig.b.is_open) {
        hdt_engine_run_once(rig.engine, 100000);
    }
    cr_expect(!rig.a.is_up);
    EXPECT_TEXT(rig.a.why, "certificate verify failed");
    cr_expect_eq(rig.b.why.status, HDT_EACCES, "%s", rig.b.why.msg);
    EXPECT_TEXT(rig.b.why, "another authority signed it");
    rig_release(&rig);
    SSL_CTX_free(stranger_ctx);
}

Test(stream, a_silent_peer_meets_the_handshake_deadline)
{
    struct rig rig;
    int64_t begin_us = hdt_clock_now_us();

    rig_init(&rig, TLS, TCP_SOCKET);
    rig.conf[1].ssl_ctx = NULL; /* plain: sends nothing */
    rig.conf[0].handshake_timeout_us = 50000;
    rig_open(&rig);
    while (rig.a.is_open) {
        hdt_engine_run_once(rig.engine, 100000);
    }
    cr_expect_eq(rig.a.why.status, HDT_ETIMEDOUT);
    EXPECT_TEXT(rig.a.why, "said nothing");
    cr_expect_geq(hdt_clock_now_us() - begin_us, 50000);
    rig_release(&rig);
}

Test(stream, descriptors_ride_along_with_pool_records)
{
    struct rig rig;
    struct hdt_record records[40];
    int memfd = memfd_create("test", MFD_CLOEXEC);
    struct stat mine, theirs;

    rig_init(&rig, PLAIN, UNIX_SOCKET);
    rig_open(&rig);
    for (int i = 0; i < 40; i++) {
        records[i] = ping_record(1);
        if (i == 20) {
            records[i].frame = (struct hdt_frame){.kind = HDT_FRAME_POOL, .seq = 3, .offset = 4096};
            records[i].passed_fd = memfd;
        }
        hdt_stream_send(rig.a.stream, &records[i], false);
    }
    while (rig.b.received < 39) {
        hdt_engine_run_once(rig.engine, 1000);
    }
    cr_assert_geq(rig.b.passed_fd, 0);
    cr_expect_eq(fcntl(rig.b.passed_fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    fstat(memfd, &mine);
    fstat(rig.b.passed_fd, &theirs);
    cr_expect_eq(mine.st_ino, theirs.st_ino);
    close(rig.b.passed_fd);
    close(memfd);
    rig_release(&rig);
}

/* Counts what comes without looking at it. */
struct counter {
    struct hdt_engine *engine;
    uint8_t buf[8192];
    unsigned n_placed, n_records, n_sent;
    size_t payload_len;
    struct hdt_error why;
    bool is_closed, forgets;
};

static enum hdt_status count_place(struct hdt_stream *stream, void *user,
                                   const struct hdt_frame *frame, size_t payload_len, void **buf,
                                   struct hdt_error *err)
{
    struct counter *counter = user;

    (void)stream;
    (void)frame;
    (void)err;
    counter->n_placed++;
    counter->payload_len = payload_len;
    *buf = counter->forgets ? NULL : counter->buf;
    return HDT_OK;
}

static enum hdt_status count_record(struct hdt_stream *stream, void *user,
                                    const struct hdt_frame *frame, void *buf, int passed_fd,
                                    struct hdt_error *err)
{
    struct counter *counter = user;

    (void)stream;
    (void)frame;
    (void)err;
    cr_expect_eq(passed_fd, -1);
    cr_expect_eq(buf, counter->n_placed && !counter->forgets ? counter->buf : NULL);
    counter->n_records++;
    return HDT_OK;
}

static void count_sent(struct hdt_stream *stream, void *user, struct hdt_record *record, bool ok)
{
    (void)stream;
    (void)record;
    ((struct counter *)user)->n_sent += ok;
}

static void count_closed(struct hdt_stream *stream, void *user, const struct hdt_error *err)
{
    struct counter *counter = user;

    (void)stream;
    counter->is_closed = true;
    counter->why = *err;
}

static const struct hdt_stream_events count_events = {.up = order_up,
                                                      .place = count_place,
                                                      .record = count_record,
                                                      .want = order_want,
                                                      .sent = count_sent,
                                                      .closed = count_closed};

/* A DATA record is followed by its frame on a link that copies, by nothing on one that shares. */
static void data_record(bool is_copied, bool is_forgotten)
{
    static uint8_t payload[100000];
    const uint32_t len = is_forgotten ? sizeof(payload) : 5000; /* more than is read at once */
    struct hdt_engine *engine;
    struct hdt_stream *streams[2];
    struct counter counters[2] = {{.n_placed = 0}, {.forgets = is_forgotten}};
    struct hdt_stream_conf conf = {.name = "data", .foreign_lengths_are_frames = is_copied};
    struct hdt_record record = {.frame = {.kind = HDT_FRAME_DATA, .len = len, .frame_len = len},
                                .payload = is_copied ? payload : NULL,
                                .payload_len = is_copied ? len : 0,
                                .passed_fd = -1};
    int fds[2];

    cr_assert_eq(hdt_engine_open(getenv("HDT_TEST_ENGINE"), &engine, NULL), HDT_OK);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(
            hdt_stream_open(engine, fds[i], &conf, &count_events, &counters[i], &streams[i], NULL),
            HDT_OK);
    }
    hdt_stream_send(streams[0], &record, false);
    while ((counters[1].n_records < 1 || counters[0].n_sent < 1) && !counters[1].is_closed) {
        hdt_engine_run_once(engine, 1000);
    }
    cr_expect_eq(counters[1].n_records, 1u);
    cr_expect_eq(counters[1].n_placed, is_copied ? 1u : 0u);
    cr_expect_eq(counters[1].payload_len, record.payload_len);
    hdt_stream_close(streams[0], NULL);
    while (!counters[0].is_closed || !counters[1].is_closed) {
        hdt_engine_run_once(engine, 1000);
    }
    cr_expect_eq(counters[0].why.status, HDT_OK);
    cr_expect_eq(counters[1].why.status, HDT_ELINK);
    EXPECT_TEXT(counters[1].why, "closed by the other end");
    hdt_engine_close(engine);
}

Test(stream, data_records_carry_bytes_only_where_memory_is_not_shared)
{
    data_record(true, false);
    data_record(false, false);
}

Test(stream, what_place_does_not_want_is_read_and_forgotten)
{
    data_record(true, true);
}

/* A peer that dies with half a record sent, under TLS: no close_notify, the socket just ends. */
Test(stream, a_tls_peer_that_vanishes_in_mid_record_is_told_apart)
{
    struct rig rig;

    rig_init(&rig, TLS, TCP_SOCKET);
    rig.a.out_seed = rig.b.in_seed = 41;
    rig.a.n_out = rig.b.n_in = 400;
    rig_open(&rig);
    while (rig.b.received < 50) {
        hdt_engine_run_once(rig.engine, 1000);
    }
    shutdown(rig.fds[0], SHUT_WR);
    while (rig.b.is_open) {
        hdt_engine_run_once(rig.engine, 1000);
    }
    cr_expect_eq(rig.b.why.status, HDT_ELINK, "%s", rig.b.why.msg);
    cr_expect_eq(rig.b.n_wrong, 0u);
    rig_release(&rig);
}

Test(stream, a_reset_is_told)
{
    struct rig rig;
    struct linger linger = {.l_onoff = 1, .l_linger = 0};

    rig_init(&rig, PLAIN, TCP_SOCKET);
    rig_open(&rig);
    hdt_engine_run_once(rig.engine, 1000);
    setsockopt(rig.fds[1], SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
    hdt_stream_close(rig.b.stream, NULL);
    while (rig.a.is_open || rig.b.is_open) {
        hdt_engine_run_once(rig.engine, 100000);
    }
    cr_expect_eq(rig.a.why.status, HDT_ELINK);
    EXPECT_TEXT(rig.a.why, "reset");
    rig_release(&rig);
}
