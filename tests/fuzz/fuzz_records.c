/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams of records into a real data plane: over a socket pair, without TLS, on its own threads.
 *
 * Input: what the other end is (0 a peer's control stream, 1 a peer's bulk stream, 2 a worker with
 * shared memory), then records: a byte of how (bit 0: the checksum is made right, bit 1: the header
 * goes out as it is, bit 2: job, epoch and flow are made those of a flow that is open, bit 3: its
 * check is left as it is), 59 bytes of header behind magic and version, and as much payload as the
 * header says and the input has.
 *
 * What has to hold: no crash, no memory that stays, and the connection ends when its input does.
 */
#include "config.h"

#include "compress/codec.h"
#include "gateway/dp.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "tests/fuzz/fuzz.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <xxhash.h>

#define HEAD_LEN  59
#define JOB       7
#define EPOCH     1
#define DEPTH     4
#define FRAME_CAP 20000u
#define STRIDE    20480u
#define CHUNK     65536u
#define POOL_LEN  (4 * DEPTH * STRIDE)
#define FLOWS     4 /* 0, 1: to and from the peer; 2, 3: both ends here */

enum end { END_CONTROL, END_BULK, END_WORKER, END_COUNT };

struct bench {
    struct hdt_dataplane *dp;
    struct hdt_pool pool; /* of the worker that is always there */
    uint64_t worker;      /* number of that client */
    int worker_fd;
    unsigned n_clients;
};

static void on_client_up(void *user, const struct hdt_client_info *info, const json_t *hello)
{
    struct bench *bench = user;

    (void)hello;
    bench->n_clients++;
    if (bench->worker == 0) {
        bench->worker = info->client;
    }
}

static void on_any_site(void *user, const char *site, const json_t *hello)
{
    (void)user;
    (void)site;
    (void)hello;
}

static void on_site_down(void *user, const char *site, const struct hdt_error *why)
{
    (void)user;
    (void)site;
    (void)why;
}

static void on_peer_msg(void *user, const char *site, json_t *msg)
{
    (void)user;
    (void)site;
    (void)msg;
}

static void on_refused(void *user, const char *site, const char *address,
                       const struct hdt_error *why, uint64_t n)
{
    (void)user;
    (void)site;
    (void)address;
    (void)why;
    (void)n;
}

static void on_client_msg(void *user, uint64_t client, json_t *msg)
{
    (void)user;
    (void)client;
    (void)msg;
}

static void on_client_down(void *user, uint64_t client, const struct hdt_error *why)
{
    (void)user;
    (void)client;
    (void)why;
}

static void on_probed(void *user, const char *site, double bytes_per_s, double rtt_s)
{
    (void)user;
    (void)site;
    (void)bytes_per_s;
    (void)rtt_s;
}

static void on_flow_failed(void *user, uint32_t job, uint32_t flow, const struct hdt_error *why)
{
    (void)user;
    (void)job;
    (void)flow;
    HDT_ASSERT(why->msg[0] != '\0');
}

static const struct hdt_dataplane_events events = {
    .peer_up = on_any_site,
    .peer_down = on_site_down,
    .peer_msg = on_peer_msg,
    .peer_refused = on_refused,
    .client_up = on_client_up,
    .client_msg = on_client_msg,
    .client_down = on_client_down,
    .probed = on_probed,
    .flow_failed = on_flow_failed,
};

static void dispatch(struct bench *bench)
{
    struct pollfd pfd = {.fd = hdt_dataplane_fd(bench->dp), .events = POLLIN};

    if (poll(&pfd, 1, 1) > 0) {
        hdt_dataplane_dispatch(bench->dp);
    }
}

/* ---- connections by hand ---- */

/* A connection of that kind with its end of a socket pair; the other end in *fd. */
static struct hdt_conn *conn_open(struct bench *bench, enum hdt_conn_kind kind, int *fd)
{
    struct hdt_conn *conn;
    int fds[2];

    HDT_ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    hdt_dp_lock(bench->dp);
    conn = hdt_conn_ref(hdt_conn_new(bench->dp, kind, fds[0]));
    hdt_dp_unlock(bench->dp);
    *fd = fds[1];
    return conn;
}

static void peer_up(struct hdt_stream *stream, void *user)
{
    (void)stream;
    (void)user;
}

struct opening {
    struct hdt_task task;
    struct hdt_conn *conn;
    enum end end;
    atomic_bool is_done;
};

/* The peer's session as after its hello: on the I/O thread, instead of a TLS handshake. */
static void opening_run(struct hdt_engine *engine, struct hdt_task *task)
{
    struct opening *opening = (struct opening *)task;
    struct hdt_conn *conn = opening->conn;
    struct hdt_dataplane *dp = conn->dp;
    static struct hdt_stream_events plain;
    const struct hdt_stream_conf conf = {.name = "peer", .low_water = HDT_DP_LOW_WATER};
    struct hdt_session *session = hdt_calloc(1, sizeof(*session));
    struct hdt_error err = {0};

    plain = hdt_wan_events;
    plain.up = peer_up;
    HDT_ASSERT(hdt_stream_open(engine, conn->fd, &conf, &plain, conn, &conn->stream, &err) ==
               HDT_OK);
    conn->fd = -1; /* its events come later, from the loop */
    hdt_dp_lock(dp);
    conn->peer = hdt_peer_get(dp, "site-b");
    session->refs = 1;
    session->peer = conn->peer;
    session->n_streams = 1;
    session->peer_chunk_bytes = CHUNK;
    session->began_us = hdt_clock_now_us();
    HDT_ASSERT(conn->peer->session == NULL && hdt_txq_alloc(conn->peer, 1, &err) == HDT_OK);
    conn->peer->session = session;
    if (opening->end == END_BULK) {
        HDT_ASSERT(hdt_session_attach(session, conn, 1, &err) == HDT_OK);
    } else {
        conn->session = hdt_session_ref(session);
        session->conns[0] = conn;
        conn->state = HDT_CONN_UP;
    }
    hdt_flow_ends_resync(conn->peer);
    hdt_dp_unlock(dp);
    atomic_store(&opening->is_done, true);
}

static void send_all(struct bench *bench, int fd, const void *bytes, size_t len, int passed_fd)
{
    const int64_t until_us = hdt_clock_now_us() + 20 * HDT_US_PER_S;
    char control[CMSG_SPACE(sizeof(int))] = {0};

    while (len > 0) {
        struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = len};
        struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
        ssize_t n;

        if (passed_fd >= 0) {
            struct cmsghdr *c;

            msg.msg_control = control;
            msg.msg_controllen = sizeof(control);
            c = CMSG_FIRSTHDR(&msg);
            c->cmsg_level = SOL_SOCKET;
            c->cmsg_type = SCM_RIGHTS;
            c->cmsg_len = CMSG_LEN(sizeof(int));
            memcpy(CMSG_DATA(c), &passed_fd, sizeof(int));
        }
        n = sendmsg(fd, &msg, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN) {
            return; /* closed: it was a breach */
        }
        if (n > 0) {
            passed_fd = -1;
            bytes = (const uint8_t *)bytes + n;
            len -= (size_t)n;
        } else {
            HDT_ASSERT(hdt_clock_now_us() < until_us); /* somebody reads */
            dispatch(bench);
        }
    }
}

/* Hello and a pool, as the worker of that name. */
static void say_hello(struct bench *bench, int fd, const char *name)
{
    const unsigned n_before = bench->n_clients;
    json_t *msg = hdt_msg_new(
        "hello", NULL,
        json_pack("{s:i,s:s,s:s}", "proto", HDT_PROTOCOL_VERSION, "role", "worker", "name", name));
    struct hdt_frame frame = {.version = HDT_FRAME_VERSION, .kind = HDT_FRAME_MSG};
    uint8_t header[HDT_FRAME_HEADER_LEN];
    struct hdt_buf bytes = {0};

    hdt_msg_encode(msg, &bytes);
    frame.coded_len = (uint32_t)bytes.len;
    hdt_frame_pack(&frame, header);
    send_all(bench, fd, header, sizeof(header), -1);
    send_all(bench, fd, bytes.data, bytes.len, -1);
    while (bench->n_clients == n_before) {
        dispatch(bench);
    }
    frame = (struct hdt_frame){
        .version = HDT_FRAME_VERSION, .kind = HDT_FRAME_POOL, .seq = 5, .offset = bench->pool.len};
    hdt_frame_pack(&frame, header);
    send_all(bench, fd, header, sizeof(header), bench->pool.fd);
    json_decref(msg);
    hdt_buf_release(&bytes);
}

/* The flows of `client`: opened anew for each input, so that one does not depend on another. */
static void flows_open(struct bench *bench, uint64_t client)
{
    const int64_t until_us = hdt_clock_now_us() + 20 * HDT_US_PER_S;
    struct hdt_error err = {0};

    for (uint32_t i = 0; i < FLOWS; i++) {
        for (int is_src = 0; is_src < 2; is_src++) {
            struct hdt_dataplane_flow flow = {.client = client,
                                              .job = JOB,
                                              .epoch = EPOCH,
                                              .flow = i,
                                              .is_src = is_src != 0,
                                              .prio = HDT_PRIO_ACTIVATION,
                                              .codec = HDT_CODEC_LOSSLESS,
                                              .dtype = HDT_DTYPE_BF16,
                                              .depth = DEPTH,
                                              .frame_cap = FRAME_CAP,
                                              .pool = 5,
                                              .pool_offset = (i % 4) * DEPTH * STRIDE};

            if (i < 2 && (i == 0) != (is_src != 0)) {
                continue; /* the peer has the other end */
            }
            snprintf(flow.peer_site, sizeof(flow.peer_site), "%s", i < 2 ? "site-b" : "site-a");
            while (hdt_dataplane_flow_open(bench->dp, &flow, &err) != HDT_OK) {
                /* Its pool is on the way. */
                HDT_ASSERT(err.status == HDT_EINVAL && hdt_clock_now_us() < until_us);
                dispatch(bench);
            }
        }
    }
}

static void bench_open(struct bench *bench)
{
    struct hdt_dataplane_conf conf = {.site = "site-a",
                                      .federation = "fed",
                                      .instance = 1,
                                      .version = "fuzz",
                                      .n_io_threads = 1,
                                      .n_codec_threads = 1,
                                      .n_streams = 1,
                                      .chunk_bytes = CHUNK,
                                      .memory_bytes = 64 << 20};
    struct hdt_error err = {0};
    struct hdt_conn *conn;

    hdt_deadlines_derive(&conf.deadlines, 60000, 0);
    signal(SIGPIPE, SIG_IGN);
    hdt_log_init("fuzz", HDT_LOG_ERROR);
    HDT_ASSERT(hdt_dataplane_open(&conf, &events, bench, &bench->dp, &err) == HDT_OK);
    HDT_ASSERT(hdt_link_shm.pool_alloc(POOL_LEN, 5, &bench->pool, &err) == HDT_OK);
    conn = conn_open(bench, HDT_CONN_LAN_UNIX, &bench->worker_fd);
    hdt_dp_lock(bench->dp);
    hdt_conn_kick(conn);
    hdt_conn_unref(conn);
    hdt_dp_unlock(bench->dp);
    say_hello(bench, bench->worker_fd, "w");
}

/* ---- one input ---- */

static void play(struct bench *bench, int fd, const uint8_t *data, size_t size)
{
    uint8_t sink[4096];

    while (size > HEAD_LEN) {
        uint8_t header[HDT_FRAME_HEADER_LEN] = {'H', 'D', 'T', '1', HDT_FRAME_VERSION};
        struct hdt_frame frame;
        size_t len = 0;
        const uint8_t how = data[0];
        uint16_t crc;

        memcpy(header + 5, data + 1, HEAD_LEN);
        if ((how & 8) == 0) {
            crc = hdt_frame_crc(header);
            header[20] = (uint8_t)crc;
            header[21] = (uint8_t)(crc >> 8);
        }
        data += 1 + HEAD_LEN;
        size -= 1 + HEAD_LEN;
        if ((how & 2) == 0 && hdt_frame_unpack(header, &frame, NULL) == HDT_OK) {
            len = frame.kind == HDT_FRAME_MSG || frame.kind == HDT_FRAME_CHUNK ? frame.coded_len
                  : frame.kind == HDT_FRAME_PROBE                              ? frame.len
                                                                               : 0;
            len = len < size ? len : size;
            if ((how & 4) != 0) {
                frame.job = JOB;
                frame.epoch = EPOCH;
                frame.flow %= FLOWS;
            }
            if ((how & 1) != 0) {
                frame.xxh3 = XXH3_64bits(data, len);
            }
            hdt_frame_pack(&frame, header);
        }
        send_all(bench, fd, header, sizeof(header), -1);
        send_all(bench, fd, data, len, -1);
        data += len;
        size -= len;
        while (recv(fd, sink, sizeof(sink), MSG_DONTWAIT) > 0) {
        }
    }
}

/* As when stream 0 of the session is lost; by then what was sent has been read or was refused. */
static void session_end(struct bench *bench)
{
    struct hdt_peer *peer;

    hdt_dp_lock(bench->dp);
    peer = hdt_peer_find(bench->dp, "site-b");
    if (peer != NULL && peer->session != NULL && peer->session->conns[0] == NULL) {
        peer->session->conns[1] = NULL;
        hdt_session_close(peer->session, NULL);
    }
    hdt_dp_unlock(bench->dp);
}

/* The other end has gone; the connection has to. */
static void wait_gone(struct bench *bench, struct hdt_conn *conn)
{
    const int64_t until_us = hdt_clock_now_us() + 20 * HDT_US_PER_S;
    bool is_gone = false;

    while (!is_gone) {
        dispatch(bench);
        hdt_dp_lock(bench->dp);
        is_gone = conn->is_gone && conn->refs == 1;
        hdt_dp_unlock(bench->dp);
        HDT_ASSERT(hdt_clock_now_us() < until_us);
    }
    hdt_dp_lock(bench->dp);
    hdt_conn_unref(conn);
    HDT_ASSERT(bench->dp->conns == bench->dp->conns->prev); /* the worker's alone is left */
    hdt_dp_unlock(bench->dp);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct bench bench;
    struct opening opening = {.task = {.run = opening_run}};
    struct hdt_conn *conn;
    size_t memory_before;
    int fd;

    if (size < 1) {
        return 0;
    }
    if (bench.dp == NULL) {
        bench_open(&bench);
    }
    opening.end = (enum end)(data[0] % END_COUNT);
    if (opening.end == END_WORKER) {
        conn = conn_open(&bench, HDT_CONN_LAN_UNIX, &fd);
        hdt_dp_lock(bench.dp);
        hdt_conn_kick(conn);
        hdt_dp_unlock(bench.dp);
        say_hello(&bench, fd, "v");
        flows_open(&bench, bench.worker + bench.n_clients - 1);
    } else {
        flows_open(&bench, bench.worker);
        conn = conn_open(&bench, HDT_CONN_WAN, &fd);
        opening.conn = conn;
        hdt_engine_post(conn->io->engine, &opening.task);
        while (!atomic_load(&opening.is_done)) {
            dispatch(&bench);
        }
    }
    hdt_dp_lock(bench.dp);
    memory_before = bench.dp->memory_used;
    hdt_dp_unlock(bench.dp);
    play(&bench, fd, data + 1, size - 1);
    close(fd);
    session_end(&bench);
    wait_gone(&bench, conn);
    hdt_dataplane_job_close(bench.dp, JOB, UINT32_MAX);
    hdt_dp_lock(bench.dp);
    HDT_ASSERT(bench.dp->memory_used <= memory_before);
    hdt_dp_unlock(bench.dp);
    return 0;
}
