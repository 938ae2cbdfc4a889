/* SPDX-License-Identifier: Apache-2.0 */
/* Flows of libhdt between two sites with real gateways: tensors of all sizes arrive whole and in
 * order; what is done wrong is said at both ends; programs that are killed, leave, or never come.
 */
#define _GNU_SOURCE

#include "tests/support/chan_rig.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static unsigned seed;

static struct hdt_flow *flow_open(struct hdt_channel *channel, int peer, int direction,
                                  unsigned tag, int type, const char *codec)
{
    struct hdt_flow_conf conf = HDT_FLOW_CONF_INIT;
    struct hdt_error_info error;
    struct hdt_flow *flow;

    conf.peer = peer;
    conf.direction = direction;
    conf.tag = tag;
    conf.type = type;
    conf.codec = codec;
    conf.priority = tag % 2;
    if (hdt_flow_open(channel, &conf, &flow, &error) != HDT_ERR_NONE) {
        printf("%s\n", error.message);
        CHAN_CHECK(!"no flow");
    }
    return flow;
}

static int transfer(struct hdt_flow *flow, int direction, void *data, size_t n, size_t *got)
{
    struct hdt_error_info error;
    struct hdt_request *request;
    enum hdt_err code = direction == HDT_SEND ? hdt_isend(flow, data, n, &request, &error)
                                              : hdt_irecv(flow, data, n, &request, &error);

    if (code == HDT_ERR_NONE) {
        code = hdt_wait(&request, got, &error);
    }
    if (code != HDT_ERR_NONE) {
        printf("transfer: %s\n", error.message);
    }
    return code;
}

/* ---- bytes of every length, in order ---- */

#define N_TENSORS 60

static size_t tensor_len(unsigned k)
{
    unsigned state = seed + k;

    return k % 10 == 3 ? 0 : k % 10 == 7 ? 1500000 + k : hdt_chan_rig_random(&state) % 5000;
}

static void tensor_fill(unsigned char *data, unsigned k)
{
    const size_t n = tensor_len(k);

    for (size_t i = 0; i < n; i++) {
        data[i] = (unsigned char)(i * 31 + i / 251 + k);
    }
}

static void bytes_rank(struct hdt_channel *channel, int rank, int n)
{
    struct hdt_flow *flow =
        flow_open(channel, !rank, rank == 0 ? HDT_SEND : HDT_RECEIVE, 1, HDT_TYPE_BYTES, NULL);
    unsigned char *data[4], *want = malloc(1600000);
    struct hdt_request *requests[4];
    struct hdt_flow_stats stats = {.size = sizeof(stats)};
    size_t got;

    (void)n;
    for (int i = 0; i < 4; i++) {
        if (rank == 0 && i % 2) { /* some without a copy */
            CHAN_CHECK(hdt_alloc(channel, 1600000, (void **)&data[i], NULL) == HDT_ERR_NONE);
        } else {
            data[i] = malloc(1600000);
        }
    }
    for (unsigned k = 0; k < N_TENSORS; k += 4) {
        for (unsigned i = 0; i < 4; i++) {
            if (rank == 0) {
                tensor_fill(data[i], k + i);
                CHAN_CHECK(hdt_isend(flow, data[i], tensor_len(k + i), &requests[i], NULL) ==
                           HDT_ERR_NONE);
            } else {
                memset(data[i], 0xee, 1600000);
                CHAN_CHECK(hdt_irecv(flow, data[i], 1600000, &requests[i], NULL) == HDT_ERR_NONE);
            }
        }
        for (unsigned i = 0; i < 4; i++) {
            CHAN_CHECK(hdt_wait(&requests[i], &got, NULL) == HDT_ERR_NONE);
            CHAN_CHECK(got == tensor_len(k + i));
            tensor_fill(want, k + i);
            CHAN_CHECK(memcmp(data[i], want, got) == 0);
            CHAN_CHECK(rank == 0 || data[i][got] == 0xee);
        }
    }
    CHAN_CHECK(hdt_flow_stats(flow, &stats, NULL) == HDT_ERR_NONE);
    CHAN_CHECK(stats.n_tensors == N_TENSORS && stats.is_open && stats.raw_bytes > 1500000);
    CHAN_CHECK(hdt_flow_close(flow, NULL) == HDT_ERR_NONE);
    for (int i = 0; i < 4; i++) {
        if (!(rank == 0 && i % 2)) {
            free(data[i]);
        }
    }
    free(want);
}

/* ---- codecs, both ways at once ---- */

static void codecs_rank(struct hdt_channel *channel, int rank, int n)
{
    static const char *const names[] = {"none", "lossless", "bf16", "int8", "int8+lossless"};
    static const double tolerance[] = {0, 0, 0x1p-8, 1.0 / 250, 1.0 / 250};
    const size_t len = 700001;
    float *x = malloc(4 * len), *y = malloc(4 * len);

    (void)n;
    for (unsigned c = 0; c < 5; c++) {
        struct hdt_flow_stats stats = {.size = sizeof(stats)};
        struct hdt_flow *out = flow_open(channel, !rank, HDT_SEND, 10 + c, HDT_TYPE_F32, names[c]);
        struct hdt_flow *in =
            flow_open(channel, !rank, HDT_RECEIVE, 10 + c, HDT_TYPE_F32, names[c]);
        struct hdt_request *sent, *received;
        size_t got = 0, n_wrong = 0;

        for (size_t i = 0; i < len; i++) {
            x[i] = (float)sin((double)i * 0.01 + c) * (float)(rank + 1);
        }
        x[7] = INFINITY;
        CHAN_CHECK(hdt_irecv(in, y, len, &received, NULL) == HDT_ERR_NONE);
        CHAN_CHECK(hdt_isend(out, x, len, &sent, NULL) == HDT_ERR_NONE);
        CHAN_CHECK(hdt_wait(&sent, NULL, NULL) == HDT_ERR_NONE);
        CHAN_CHECK(hdt_wait(&received, &got, NULL) == HDT_ERR_NONE);
        CHAN_CHECK(got == len && isinf(y[7]));
        for (size_t i = 8; i < len; i++) {
            const double scale = !rank + 1, want = (float)sin((double)i * 0.01 + c) * scale;

            n_wrong += !(fabs(y[i] - want) <= tolerance[c] * scale);
        }
        CHAN_CHECK(n_wrong == 0);
        CHAN_CHECK(hdt_flow_stats(out, &stats, NULL) == HDT_ERR_NONE);
        CHAN_CHECK(c < 2 || (stats.n_nonfinite == 1 && stats.frame_bytes < stats.raw_bytes));
        CHAN_CHECK(stats.relative_error >= 0 && stats.relative_error < 0.01);
    }
    free(x);
    free(y);
}

/* ---- what is done wrong ---- */

static void misuse_rank(struct hdt_channel *channel, int rank, int n)
{
    struct hdt_flow_conf conf = HDT_FLOW_CONF_INIT;
    struct hdt_allreduce_conf reduce = HDT_ALLREDUCE_CONF_INIT;
    struct hdt_request *request;
    struct hdt_error_info error;
    struct hdt_flow *flow, *out;
    char small[4], large[100];
    void *memory;
    size_t got;

    (void)n;
    CHAN_CHECK(hdt_flow_open(channel, &conf, &flow, &error) == HDT_ERR_INVALID && !flow);
    conf.peer = rank;
    CHAN_CHECK(hdt_flow_open(channel, &conf, &flow, NULL) == HDT_ERR_INVALID);
    conf.peer = !rank;
    conf.tag = 65536;
    CHAN_CHECK(hdt_flow_open(channel, &conf, &flow, NULL) == HDT_ERR_INVALID);
    conf.tag = 3;
    conf.codec = "gzip";
    CHAN_CHECK(hdt_flow_open(channel, &conf, &flow, &error) == HDT_ERR_INVALID);
    CHAN_CHECK(strstr(error.message, "gzip") != NULL);
    conf.codec = "delta:int4"; /* nothing says which sample a tensor is of */
    CHAN_CHECK(hdt_flow_open(channel, &conf, &flow, &error) == HDT_ERR_INVALID);
    CHAN_CHECK(strstr(error.message, "for jobs only") != NULL);
    conf.codec = "int8";
    conf.type = HDT_TYPE_I32;
    CHAN_CHECK(hdt_flow_open(channel, &conf, &flow, &error) == HDT_ERR_INVALID);
    conf.codec = NULL;
    conf.window_bytes = (size_t)1 << 29;
    CHAN_CHECK(hdt_flow_open(channel, &conf, &flow, &error) == HDT_ERR_MEMORY);
    CHAN_CHECK(strstr(error.hint, "memory_bytes") != NULL);
    conf.size = 0;
    CHAN_CHECK(hdt_flow_open(channel, &conf, &flow, &error) == HDT_ERR_INVALID);
    CHAN_CHECK(strstr(error.hint, "HDT_FLOW_CONF_INIT") != NULL);
    flow = flow_open(channel, !rank, HDT_RECEIVE, 4, HDT_TYPE_BYTES, NULL);
    out = flow_open(channel, !rank, HDT_SEND, 4, HDT_TYPE_BYTES, NULL);
    conf = (struct hdt_flow_conf)HDT_FLOW_CONF_INIT;
    conf.peer = !rank;
    conf.tag = 4;
    conf.direction = HDT_SEND;
    {
        struct hdt_flow *twice;

        CHAN_CHECK(hdt_flow_open(channel, &conf, &twice, &error) == HDT_ERR_EXISTS && !twice);
    }
    CHAN_CHECK(hdt_isend(flow, small, 1, &request, NULL) == HDT_ERR_INVALID && !request);
    CHAN_CHECK(hdt_irecv(out, small, 1, &request, NULL) == HDT_ERR_INVALID);
    CHAN_CHECK(hdt_isend(out, NULL, 1, &request, NULL) == HDT_ERR_INVALID);
    CHAN_CHECK(hdt_isend(out, small, (size_t)-1, &request, NULL) == HDT_ERR_INVALID);
    CHAN_CHECK(hdt_alloc(channel, (size_t)1 << 40, &memory, &error) == HDT_ERR_MEMORY && !memory);
    hdt_dealloc(channel, NULL);
    reduce.type = HDT_TYPE_I32;
    CHAN_CHECK(hdt_allreduce(channel, small, small, 1, &reduce, NULL) == HDT_ERR_INVALID);
    reduce.type = HDT_TYPE_F32;
    reduce.codec = "lossless";
    CHAN_CHECK(hdt_allreduce(channel, small, small, 1, &reduce, &error) == HDT_ERR_INVALID);
    CHAN_CHECK(hdt_broadcast(channel, small, 1, 7, NULL) == HDT_ERR_INVALID);
    CHAN_CHECK(hdt_broadcast(channel, small, (size_t)-1, 0, NULL) == HDT_ERR_INVALID);
    /* A tensor that is too long is that request's error, and the next one is whole. */
    memset(large, 'x', sizeof(large));
    CHAN_CHECK(transfer(out, HDT_SEND, large, sizeof(large), NULL) == HDT_ERR_NONE);
    CHAN_CHECK(transfer(out, HDT_SEND, large, 3, NULL) == HDT_ERR_NONE);
    CHAN_CHECK(transfer(flow, HDT_RECEIVE, small, sizeof(small), &got) == HDT_ERR_INVALID);
    CHAN_CHECK(got == sizeof(large));
    CHAN_CHECK(transfer(flow, HDT_RECEIVE, small, sizeof(small), &got) == HDT_ERR_NONE);
    CHAN_CHECK(got == 3 && memcmp(small, "xxx", 3) == 0);
    CHAN_CHECK(hdt_barrier(channel, NULL) == HDT_ERR_NONE);
}

/* Both ends differ in a flow's type: the channel ends at both, with both values. */
static void differ_rank(int rank)
{
    struct hdt_error_info error;
    struct hdt_channel *channel = hdt_chan_rig_channel("differ", 2, rank, &error);
    struct hdt_request *request;
    struct hdt_flow *flow;
    char byte = 0;

    CHAN_CHECK(channel != NULL);
    if (!channel) {
        return;
    }
    flow = flow_open(channel, !rank, rank == 0 ? HDT_SEND : HDT_RECEIVE, 0,
                     rank == 0 ? HDT_TYPE_U8 : HDT_TYPE_I8, NULL);
    if (rank == 0) {
        CHAN_CHECK(hdt_isend(flow, &byte, 1, &request, NULL) == HDT_ERR_NONE);
        hdt_wait(&request, NULL, NULL); /* it may be copied before the other end is known */
        CHAN_CHECK(hdt_flow_close(flow, &error) == HDT_ERR_INVALID);
    } else {
        CHAN_CHECK(hdt_irecv(flow, &byte, 1, &request, NULL) == HDT_ERR_NONE);
        CHAN_CHECK(hdt_wait(&request, NULL, &error) == HDT_ERR_INVALID);
    }
    CHAN_CHECK(strstr(error.message, "u8") && strstr(error.message, "i8"));
    CHAN_CHECK(hdt_channel_close(channel, &error) == HDT_ERR_INVALID);
}

/* Memory is changed for as long as it is under way, so that it is not what its hash says: the
 * channel ends at both, with a reason, instead of sending for ever. A tensor may be hashed and sent
 * while others have this processor, and is whole then: the next one follows. */
#define N_TRIES 1000
static void changes_rank(int rank)
{
    const size_t bytes = (size_t)256 << 10; /* a chunk */
    struct hdt_error_info error;
    struct hdt_channel *channel = hdt_chan_rig_channel("changes", 2, rank, &error);
    struct hdt_request *request;
    struct hdt_flow *flow;
    void *memory = NULL;
    enum hdt_err code = HDT_ERR_NONE;

    CHAN_CHECK(channel && hdt_alloc(channel, bytes, &memory, NULL) == HDT_ERR_NONE);
    if (!memory) {
        return;
    }
    flow = flow_open(channel, !rank, rank == 0 ? HDT_SEND : HDT_RECEIVE, 0, HDT_TYPE_BYTES, NULL);
    for (int n = 0; rank == 0 && code == HDT_ERR_NONE && n < N_TRIES; n++) {
        int done = 0;

        code = hdt_isend(flow, memory, bytes, &request, &error);
        for (uint64_t round = 0; code == HDT_ERR_NONE && !done; round++) {
            for (size_t i = 0; i < bytes; i += 4096) {
                memcpy((char *)memory + i, &round, sizeof(round));
            }
            code = hdt_test(&request, &done, NULL, &error);
        }
    }
    for (int n = 0; rank == 1 && code == HDT_ERR_NONE && n < N_TRIES; n++) {
        code = hdt_irecv(flow, memory, bytes, &request, &error);
        code = code == HDT_ERR_NONE ? hdt_wait(&request, NULL, &error) : code;
    }
    CHAN_CHECK(code != HDT_ERR_NONE);
    CHAN_CHECK(strstr(error.message, "damaged") != NULL);
    CHAN_CHECK(hdt_channel_close(channel, NULL) != HDT_ERR_NONE);
}

static void count_differs_rank(int rank)
{
    struct hdt_error_info error;
    struct hdt_channel *channel = hdt_chan_rig_channel("count", 2, rank, &error);
    float x[8] = {0};

    CHAN_CHECK(channel != NULL);
    if (!channel) {
        return;
    }
    CHAN_CHECK(hdt_allreduce(channel, x, x, rank == 0 ? 7 : 8, NULL, &error) == HDT_ERR_INVALID);
    CHAN_CHECK(strstr(error.message, "of 7 f32") && strstr(error.message, "of 8 f32"));
    CHAN_CHECK(hdt_allreduce(channel, x, x, 8, NULL, &error) == HDT_ERR_INVALID);
    CHAN_CHECK(hdt_channel_close(channel, NULL) == HDT_ERR_INVALID);
}

/* ---- programs that end ---- */

static void killed_rank(int rank)
{
    struct hdt_error_info error;
    struct hdt_channel *channel = hdt_chan_rig_channel("killed", 2, rank, &error);
    float x = 1;
    double begin;

    CHAN_CHECK(channel != NULL);
    if (!channel) {
        return;
    }
    CHAN_CHECK(hdt_allreduce(channel, &x, &x, 1, NULL, NULL) == HDT_ERR_NONE);
    if (rank == 1) { /* not before rank 0 has what it is owed */
        CHAN_CHECK(hdt_chan_rig_wait_file("killed", 30));
        kill(getpid(), SIGKILL);
    }
    hdt_chan_rig_touch("killed");
    begin = hdt_chan_rig_now_s();
    CHAN_CHECK(hdt_allreduce(channel, &x, &x, 1, NULL, &error) == HDT_ERR_WORKER);
    CHAN_CHECK(hdt_chan_rig_now_s() - begin < 20);
    CHAN_CHECK(strstr(error.message, "rank 1 (b) is lost") != NULL);
    CHAN_CHECK(hdt_barrier(channel, &error) == HDT_ERR_WORKER);
    CHAN_CHECK(hdt_channel_close(channel, NULL) == HDT_ERR_WORKER);
}

/* Rank 1 sends and leaves; rank 0 takes its time. */
static void leaves_rank(int rank)
{
    struct hdt_error_info error;
    struct hdt_channel *channel = hdt_chan_rig_channel("leaves", 2, rank, &error);
    struct hdt_flow *flow;
    char text[16] = "last words";
    size_t n;

    CHAN_CHECK(channel != NULL);
    if (!channel) {
        return;
    }
    flow = flow_open(channel, !rank, rank ? HDT_SEND : HDT_RECEIVE, 2, HDT_TYPE_BYTES, NULL);
    if (rank == 1) {
        CHAN_CHECK(transfer(flow, HDT_SEND, text, 10, NULL) == HDT_ERR_NONE);
        hdt_chan_rig_touch("leaving");
    } else {
        CHAN_CHECK(hdt_chan_rig_wait_file("leaving", 30));
        memset(text, 0, sizeof(text));
        CHAN_CHECK(transfer(flow, HDT_RECEIVE, text, sizeof(text), &n) == HDT_ERR_NONE);
        CHAN_CHECK(n == 10 && strcmp(text, "last words") == 0);
        CHAN_CHECK(transfer(flow, HDT_RECEIVE, text, sizeof(text), &n) == HDT_ERR_WORKER);
    }
    CHAN_CHECK(hdt_channel_close(channel, &error) == HDT_ERR_NONE);
}

static void aborts_rank(int rank)
{
    struct hdt_error_info error;
    struct hdt_channel *channel = hdt_chan_rig_channel("aborts", 2, rank, &error);

    CHAN_CHECK(channel != NULL);
    if (!channel) {
        return;
    }
    if (rank == 1) {
        hdt_channel_abort(channel, "the disk is full");
    }
    CHAN_CHECK(hdt_barrier(channel, &error) == HDT_ERR_CANCELED);
    if (!strstr(error.message, "the disk is full")) {
        printf("rank %d: %s\n", rank, error.message);
        CHAN_CHECK(!"the reason is another one");
    }
    CHAN_CHECK(hdt_channel_close(channel, NULL) == HDT_ERR_CANCELED);
}

/* ---- joining ---- */

static enum hdt_err open_with(const struct hdt_channel_conf *conf, struct hdt_error_info *error)
{
    struct hdt_ctx *ctx = hdt_chan_rig_ctx(0);
    struct hdt_channel *channel;
    enum hdt_err code = hdt_channel_open(ctx, conf, &channel, error);

    CHAN_CHECK((channel != NULL) == (code == HDT_ERR_NONE));
    hdt_channel_close(channel, NULL);
    hdt_close(ctx);
    return code;
}

static void joining_rank(int rank)
{
    static const char *const members[] = {"a", "b", "nowhere"}, *const twice[] = {"a", "a"};
    static const char *const alone[] = {"a"};
    struct hdt_channel_conf conf = HDT_CHANNEL_CONF_INIT;
    struct hdt_error_info error;

    (void)rank;
    conf.name = "joining";
    conf.members = members;
    conf.n_members = 3;
    conf.open_timeout_ms = 1500;
    CHAN_CHECK(open_with(&conf, &error) == HDT_ERR_TIMEOUT);
    CHAN_CHECK(strstr(error.message, "rank 1 (b): no program has joined there") != NULL);
    CHAN_CHECK(strstr(error.message, "rank 2 (nowhere): site a knows no site nowhere") != NULL);
    conf.rank = 1;
    CHAN_CHECK(open_with(&conf, &error) == HDT_ERR_ACCESS);
    conf.rank = 3;
    CHAN_CHECK(open_with(&conf, &error) == HDT_ERR_INVALID);
    conf.rank = -1;
    conf.name = "no name";
    CHAN_CHECK(open_with(&conf, &error) == HDT_ERR_INVALID);
    conf.name = "joining";
    conf.members = twice;
    conf.n_members = 2;
    CHAN_CHECK(open_with(&conf, &error) == HDT_ERR_INVALID);
    conf.members = alone;
    conf.n_members = 1;
    CHAN_CHECK(open_with(&conf, &error) == HDT_ERR_NONE);
    conf.size = 1;
    CHAN_CHECK(open_with(&conf, &error) == HDT_ERR_INVALID);
}

/* Without shared memory: programs on other hosts, one with an operator's certificate, one with a
 * worker's. */
static void tls_rank(int rank)
{
    static const char *const members[] = {"a", "b"};
    const char *role = rank == 0 ? "operator" : "worker", *name = rank == 0 ? "ann" : "b/w7";
    struct hdt_channel_conf conf = HDT_CHANNEL_CONF_INIT;
    struct hdt_options options = HDT_OPTIONS_INIT;
    struct hdt_error_info error;
    struct hdt_channel *channel;
    struct hdt_ctx *ctx;
    char pem[3][256];
    float *x = calloc(300000, sizeof(*x));

    snprintf(pem[0], sizeof(pem[0]), "%s", hdt_chan_rig_pem(role, name, "ca.pem"));
    snprintf(pem[1], sizeof(pem[1]), "%s", hdt_chan_rig_pem(role, name, "cert.pem"));
    snprintf(pem[2], sizeof(pem[2]), "%s", hdt_chan_rig_pem(role, name, "key.pem"));
    options.ca = pem[0];
    options.cert = pem[1];
    options.key = pem[2];
    conf.name = "tls";
    conf.members = members;
    conf.n_members = 2;
    conf.window_bytes = (size_t)4 << 20;
    if (hdt_open(hdt_chan_rig_address(rank, true), &options, &ctx, &error) != HDT_ERR_NONE ||
        hdt_channel_open(ctx, &conf, &channel, &error) != HDT_ERR_NONE) {
        printf("%s\n", error.message);
        CHAN_CHECK(!"not joined");
        return;
    }
    hdt_close(ctx);
    for (size_t i = 0; i < 300000; i++) {
        x[i] = (float)i + (float)rank;
    }
    CHAN_CHECK(hdt_allreduce(channel, x, x, 300000, NULL, &error) == HDT_ERR_NONE);
    CHAN_CHECK(x[0] == 1 && x[299999] == 2 * 299999 + 1);
    CHAN_CHECK(hdt_channel_close(channel, NULL) == HDT_ERR_NONE);
    free(x);
}

static void run_pair(void (*run)(int), int expect_kill)
{
    pid_t pids[2];

    for (int i = 0; i < 2; i++) {
        pids[i] = hdt_chan_rig_fork(run, i);
    }
    for (int i = 0; i < 2; i++) {
        const int ended = hdt_chan_rig_join(pids[i], 90);

        CHAN_CHECK(ended == !(expect_kill && i == 1));
    }
}

int main(void)
{
    seed = hdt_chan_rig_seed();
    hdt_chan_rig_open();
    hdt_chan_rig_start(2, "20s");
    hdt_chan_rig_run("bytes", 2, 60, bytes_rank);
    hdt_chan_rig_run("codecs", 2, 60, codecs_rank);
    hdt_chan_rig_run("misuse", 2, 60, misuse_rank);
    run_pair(differ_rank, 0);
    run_pair(count_differs_rank, 0);
    run_pair(changes_rank, 0);
    run_pair(killed_rank, 1);
    run_pair(leaves_rank, 0);
    run_pair(aborts_rank, 0);
    CHAN_CHECK(hdt_chan_rig_join(hdt_chan_rig_fork(joining_rank, 0), 60));
    run_pair(tls_rank, 0);
    hdt_chan_rig_close();
    return hdt_chan_rig_n_failed > 0;
}
