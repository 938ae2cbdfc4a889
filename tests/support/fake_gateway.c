/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/support/fake_gateway.h"

#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/core/frame.h"
#include "src/core/msg.h"
#include "src/net/addr.h"
#include "src/net/engine.h"
#include "src/net/link.h"
#include "src/net/stream.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_CLIENTS 64
#define MAX_FLOWS   256
#define MAX_DEPTH   64

struct out_record {
    struct hdt_record record;
    struct hdt_buf bytes;
};

struct client {
    struct fake_gateway *gateway;
    struct hdt_stream *stream;
    char name[64];
    struct hdt_pool pool; /* the last one announced */
    struct hdt_buf recv;
    bool joined, closing;
};

struct end {
    struct client *client; /* NULL: not open */
    uint64_t pool_offset, next_seq;
    uint32_t depth, slot_bytes;
};

/* A frame that the sender holds in its slot for us. */
struct held {
    bool valid;
    struct hdt_frame frame;
};

struct flow {
    bool used;
    uint32_t job, epoch, flow;
    struct end src, dst;
    struct held held[MAX_DEPTH];
    uint64_t deliver_seq, acked_seq, credit_seq;
};

struct fake_gateway {
    struct hdt_engine *engine;
    pthread_t thread;
    int listen_fd;
    struct hdt_io accept_io;
    struct hdt_task wake;
    struct client clients[MAX_CLIENTS];
    struct flow flows[MAX_FLOWS];

    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    json_t *inbox;  /* array: from workers */
    json_t *outbox; /* array of [worker, msg] */
    json_t *cuts;   /* array of [worker, forget] */
    bool woken, stopping;
    int n_joined, n_refuse, n_lose, n_flip;
    unsigned lose_one_in, seed;
    json_t *taken; /* "WORKER JOB EPOCH" -> last report taken */
    unsigned long n_frames, n_reports;
};

static void check(bool ok, const char *what, const struct hdt_error *err)
{
    if (!ok) {
        fprintf(stderr, "fake gateway: %s: %s\n", what, err ? err->msg : "");
        abort();
    }
}

/* ---- sending ---- */

static void client_send(struct client *client, const struct hdt_frame *frame, const json_t *msg)
{
    struct out_record *out = hdt_calloc(1, sizeof(*out));

    if (frame) {
        out->record.frame = *frame;
    } else {
        hdt_msg_encode(msg, &out->bytes);
        out->record.frame.kind = HDT_FRAME_MSG;
        out->record.frame.coded_len = (uint32_t)out->bytes.len;
    }
    out->record.frame.version = HDT_FRAME_VERSION;
    out->record.payload = out->bytes.data;
    out->record.payload_len = out->bytes.len;
    out->record.passed_fd = -1;
    out->record.user = out;
    hdt_stream_send(client->stream, &out->record, false);
}

static void client_sent(struct hdt_stream *stream, void *user, struct hdt_record *record, bool ok)
{
    struct out_record *out = record->user;

    (void)stream;
    (void)user;
    (void)ok;
    hdt_buf_release(&out->bytes);
    free(out);
}

/* ---- flows ---- */

static struct flow *flow_find(struct fake_gateway *g, uint32_t job, uint32_t epoch, uint32_t number)
{
    struct flow *flow, *unused = NULL;
    size_t i;

    for (i = 0; i < MAX_FLOWS; i++) {
        flow = &g->flows[i];
        if (flow->used && flow->job == job && flow->epoch == epoch && flow->flow == number) {
            return flow;
        }
        unused = unused || flow->used ? unused : flow;
    }
    check(unused != NULL, "too many flows", NULL);
    memset(unused, 0, sizeof(*unused));
    unused->used = true;
    unused->job = job;
    unused->epoch = epoch;
    unused->flow = number;
    return unused;
}

static void flow_send_ack(struct flow *flow)
{
    struct hdt_frame frame = {.kind = HDT_FRAME_ACK,
                              .job = flow->job,
                              .epoch = flow->epoch,
                              .flow = flow->flow,
                              .seq = flow->acked_seq,
                              .offset = flow->credit_seq};

    if (flow->src.client && flow->dst.client) {
        client_send(flow->src.client, &frame, NULL);
    }
}

/* As a gateway that has checked what it got on the wire, it hands the frame on without a hash. */
static void frame_flip(struct fake_gateway *g, uint8_t *bytes, struct hdt_frame *frame)
{
    const size_t len = frame->frame_len;

    pthread_mutex_lock(&g->lock);
    if (g->n_flip > 0 && len > 64 && memcmp(bytes, "HDST", 4) == 0) {
        bytes[64 + (len - 64) / 2] ^= 0x10;
        frame->xxh3 = 0;
        g->n_flip--;
    }
    pthread_mutex_unlock(&g->lock);
}

/* Hand on what the receiver may get and the sender holds. */
static void flow_deliver(struct flow *flow)
{
    const struct hdt_pool *from, *to;
    struct hdt_frame frame;
    struct held *held;

    while (flow->src.client && flow->dst.client && flow->deliver_seq < flow->credit_seq) {
        held = &flow->held[flow->deliver_seq % flow->dst.depth];
        if (!held->valid || held->frame.seq != flow->deliver_seq) {
            return;
        }
        frame = held->frame;
        from = &flow->src.client->pool;
        to = &flow->dst.client->pool;
        frame.offset =
            flow->dst.pool_offset + flow->deliver_seq % flow->dst.depth * flow->dst.slot_bytes;
        check(hdt_pool_contains(from, held->frame.offset, frame.frame_len) &&
                  hdt_pool_contains(to, frame.offset, frame.frame_len),
              "a frame outside of its pool", NULL);
        memcpy(to->base + frame.offset, from->base + held->frame.offset, frame.frame_len);
        frame_flip(flow->dst.client->gateway, to->base + frame.offset, &frame);
        client_send(flow->dst.client, &frame, NULL);
        flow->deliver_seq++;
    }
}

static void on_flow_open(struct client *client, const json_t *body)
{
    json_int_t job, epoch, number, depth, cap, pool, pool_offset, next_seq;
    const char *end_name;
    struct flow *flow;
    struct end *end;

    check(json_unpack((json_t *)(uintptr_t)body, "{s:I,s:I,s:I,s:s,s:I,s:I,s:I,s:I,s:I}", "job",
                      &job, "epoch", &epoch, "flow", &number, "end", &end_name, "depth", &depth,
                      "frame_cap", &cap, "pool", &pool, "pool_offset", &pool_offset, "next_seq",
                      &next_seq) == 0,
          "flow.open lacks a member", NULL);
    check(pool == (json_int_t)client->pool.number && depth > 0 && depth <= MAX_DEPTH,
          "flow.open names another pool, or too many slots", NULL);
    flow = flow_find(client->gateway, (uint32_t)job, (uint32_t)epoch, (uint32_t)number);
    end = strcmp(end_name, "src") == 0 ? &flow->src : &flow->dst;
    end->client = client;
    end->depth = (uint32_t)depth;
    end->slot_bytes = ((uint32_t)cap + 4095) / 4096 * 4096;
    end->pool_offset = (uint64_t)pool_offset;
    end->next_seq = (uint64_t)next_seq;
    if (end == &flow->dst) {
        flow->deliver_seq = end->next_seq;
        flow->acked_seq = end->next_seq;
        flow->credit_seq = end->next_seq + end->depth;
    }
    flow_send_ack(flow);
    flow_deliver(flow);
}

/* ---- receiving ---- */

enum report_fate { REPORT_ARRIVES, REPORT_REFUSED, REPORT_LOST };

static enum report_fate report_fate(struct fake_gateway *g)
{
    enum report_fate fate = REPORT_ARRIVES;

    pthread_mutex_lock(&g->lock);
    g->n_reports++;
    if (g->n_refuse > 0) {
        g->n_refuse--;
        fate = REPORT_REFUSED;
    } else if (g->n_lose > 0) {
        g->n_lose--;
        fate = REPORT_LOST;
    } else if (g->lose_one_in > 0 && (unsigned)rand_r(&g->seed) % g->lose_one_in == 0) {
        fate = REPORT_LOST;
    }
    pthread_mutex_unlock(&g->lock);
    return fate;
}

static void report_refuse(struct client *client, const json_t *msg)
{
    struct hdt_error err = {0};
    json_t *reply;

    hdt_error_set(&err, HDT_EPEER, "no session");
    reply = hdt_msg_reply_error(msg, &err);
    client_send(client, NULL, reply);
    json_decref(reply);
}

/* True: it is the next of its worker. What was taken is acknowledged in any case. */
static bool report_take(struct client *client, const json_t *msg)
{
    const json_t *body = hdt_msg_body(msg);
    json_int_t n = json_integer_value(json_object_get(body, "n"));
    json_int_t first = json_integer_value(json_object_get(body, "first"));
    json_t *taken = client->gateway->taken, *ack;
    json_int_t job = json_integer_value(json_object_get(body, "job"));
    json_int_t epoch = json_integer_value(json_object_get(body, "epoch")), last;
    char key[128];
    bool next;

    snprintf(key, sizeof(key), "%s %lld %lld", client->name, (long long)job, (long long)epoch);
    last = json_integer_value(json_object_get(taken, key));
    next = n == last + 1 || (n > last && n == first);
    if (next) {
        json_object_set_new(taken, key, json_integer(n));
    } else if (n > last) {
        return false;
    }
    ack =
        hdt_msg_new("report.ack", NULL,
                    json_pack("{s:I, s:I, s:I}", "job", job, "epoch", epoch, "n", next ? n : last));
    client_send(client, NULL, ack);
    json_decref(ack);
    return next;
}

/* True: the message is to be kept for the test. */
static bool on_report(struct client *client, const json_t *msg)
{
    switch (report_fate(client->gateway)) {
    case REPORT_REFUSED:
        report_refuse(client, msg);
        return false;
    case REPORT_LOST:
        return false;
    case REPORT_ARRIVES:
        return report_take(client, msg);
    }
    return false;
}

/* The message is stolen. */
static void on_msg(struct client *client, json_t *msg)
{
    struct fake_gateway *g = client->gateway;
    const char *type = hdt_msg_type(msg);

    if (strcmp(type, "hello") == 0) {
        snprintf(client->name, sizeof(client->name), "%s",
                 json_string_value(json_object_get(hdt_msg_body(msg), "name")));
        json_t *welcome = hdt_msg_reply(msg, "welcome", json_pack("{s:s}", "site", "here"));

        client_send(client, NULL, welcome);
        json_decref(welcome);
        client->joined = true;
        pthread_mutex_lock(&g->lock);
        g->n_joined++;
        pthread_cond_broadcast(&g->changed);
        pthread_mutex_unlock(&g->lock);
    } else if (strcmp(type, "flow.open") == 0) {
        on_flow_open(client, hdt_msg_body(msg));
    } else if (json_object_get(hdt_msg_body(msg), "n") && json_object_get(msg, "id") &&
               !on_report(client, msg)) {
        json_decref(msg);
        return;
    } else {
        json_object_set_new(msg, "from", json_string(client->name));
        pthread_mutex_lock(&g->lock);
        json_array_append_new(g->inbox, msg);
        pthread_cond_broadcast(&g->changed);
        pthread_mutex_unlock(&g->lock);
        return;
    }
    json_decref(msg);
}

static void on_data(struct client *client, const struct hdt_frame *frame)
{
    struct flow *flow = flow_find(client->gateway, frame->job, frame->epoch, frame->flow);
    struct held *held;

    check(flow->src.client == client, "DATA from the wrong end", NULL);
    held = &flow->held[frame->seq % flow->src.depth];
    held->valid = true;
    held->frame = *frame;
    pthread_mutex_lock(&client->gateway->lock);
    client->gateway->n_frames++;
    pthread_mutex_unlock(&client->gateway->lock);
    flow_deliver(flow);
}

static void on_ack(struct client *client, const struct hdt_frame *frame)
{
    struct flow *flow = flow_find(client->gateway, frame->job, frame->epoch, frame->flow);

    check(flow->dst.client == client, "ACK from the wrong end", NULL);
    flow->acked_seq = frame->seq;
    flow->credit_seq = frame->offset;
    flow_send_ack(flow);
    flow_deliver(flow);
}

static enum hdt_status client_place(struct hdt_stream *stream, void *user,
                                    const struct hdt_frame *frame, size_t payload_len, void **buf,
                                    struct hdt_error *err)
{
    struct client *client = user;

    (void)stream;
    (void)frame;
    (void)err;
    hdt_buf_clear(&client->recv);
    hdt_buf_reserve(&client->recv, payload_len);
    *buf = client->recv.data;
    return HDT_OK;
}

static enum hdt_status client_record(struct hdt_stream *stream, void *user,
                                     const struct hdt_frame *frame, void *buf, int passed_fd,
                                     struct hdt_error *err)
{
    struct client *client = user;
    json_t *msg;

    (void)stream;
    switch ((enum hdt_frame_kind)frame->kind) {
    case HDT_FRAME_MSG:
        HDT_TRY(hdt_msg_decode(buf, frame->coded_len, &msg, err));
        on_msg(client, msg);
        return HDT_OK;
    case HDT_FRAME_POOL:
        hdt_link_shm.pool_free(&client->pool);
        return hdt_link_shm.pool_attach(passed_fd, frame->offset, (uint32_t)frame->seq,
                                        &client->pool, err);
    case HDT_FRAME_DATA:
        on_data(client, frame);
        return HDT_OK;
    case HDT_FRAME_ACK:
        on_ack(client, frame);
        return HDT_OK;
    default:
        return hdt_error_set(err, HDT_EPROTO, "unexpected record");
    }
}

static void client_closed(struct hdt_stream *stream, void *user, const struct hdt_error *err)
{
    struct client *client = user;
    struct fake_gateway *g = client->gateway;
    size_t i;

    (void)stream;
    (void)err;
    for (i = 0; i < MAX_FLOWS; i++) {
        if (g->flows[i].src.client == client) {
            g->flows[i].src.client = NULL;
            memset(g->flows[i].held, 0, sizeof(g->flows[i].held));
        }
        if (g->flows[i].dst.client == client) {
            g->flows[i].dst.client = NULL;
        }
    }
    hdt_link_shm.pool_free(&client->pool);
    hdt_buf_release(&client->recv);
    pthread_mutex_lock(&g->lock);
    g->n_joined -= client->joined ? 1 : 0;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    memset(client, 0, sizeof(*client));
}

static void client_up(struct hdt_stream *stream, void *user)
{
    (void)stream;
    (void)user;
}

static void client_want(struct hdt_stream *stream, void *user)
{
    (void)stream;
    (void)user;
}

static const struct hdt_stream_events client_events = {.up = client_up,
                                                       .place = client_place,
                                                       .record = client_record,
                                                       .want = client_want,
                                                       .sent = client_sent,
                                                       .closed = client_closed};

/* ---- the thread ---- */

static void accepted(struct hdt_engine *engine, struct hdt_io *io, int64_t result)
{
    struct fake_gateway *g = io->user;
    struct hdt_stream_conf conf = {.name = "worker"};
    struct hdt_error err = {0};
    size_t i;

    if (result < 0) {
        return; /* cancelled: the end */
    }
    for (i = 0; i < MAX_CLIENTS && g->clients[i].gateway; i++) {
    }
    check(i < MAX_CLIENTS, "too many workers", NULL);
    g->clients[i].gateway = g;
    g->clients[i].pool.fd = -1;
    check(hdt_stream_open(engine, (int)result, &conf, &client_events, &g->clients[i],
                          &g->clients[i].stream, &err) == HDT_OK,
          "stream", &err);
    hdt_engine_submit(engine, io);
}

static struct client *client_named(struct fake_gateway *g, const char *name)
{
    size_t i;

    for (i = 0; i < MAX_CLIENTS; i++) {
        if (g->clients[i].joined && !g->clients[i].closing &&
            strcmp(g->clients[i].name, name) == 0) {
            return &g->clients[i];
        }
    }
    return NULL;
}

static void client_cut(struct fake_gateway *g, const char *name, bool forget)
{
    struct client *client = client_named(g, name);
    size_t i;

    for (i = 0; client && forget && i < MAX_FLOWS; i++) {
        if (g->flows[i].dst.client == client) {
            /* The sender hands over again when it is asked. */
            struct hdt_frame query = {.kind = HDT_FRAME_QUERY,
                                      .job = g->flows[i].job,
                                      .epoch = g->flows[i].epoch,
                                      .flow = g->flows[i].flow};

            memset(g->flows[i].held, 0, sizeof(g->flows[i].held));
            if (g->flows[i].src.client) {
                client_send(g->flows[i].src.client, &query, NULL);
            }
        }
    }
    if (client) {
        client->closing = true;
        hdt_stream_close(client->stream, NULL);
    }
}

static void woken(struct hdt_engine *engine, struct hdt_task *task)
{
    struct fake_gateway *g =
        (struct fake_gateway *)(void *)((char *)task - offsetof(struct fake_gateway, wake));
    json_t *outbox, *cuts, *item;
    struct client *client;
    bool stopping;
    size_t i;

    pthread_mutex_lock(&g->lock);
    g->woken = false;
    stopping = g->stopping;
    outbox = g->outbox;
    cuts = g->cuts;
    g->outbox = json_array();
    g->cuts = json_array();
    pthread_mutex_unlock(&g->lock);
    json_array_foreach(outbox, i, item)
    {
        client = client_named(g, json_string_value(json_array_get(item, 0)));
        if (client) {
            client_send(client, NULL, json_array_get(item, 1));
        }
    }
    json_array_foreach(cuts, i, item)
    {
        client_cut(g, json_string_value(json_array_get(item, 0)),
                   json_is_true(json_array_get(item, 1)));
    }
    json_decref(outbox);
    json_decref(cuts);
    if (stopping) {
        hdt_engine_cancel(engine, &g->accept_io);
        for (i = 0; i < MAX_CLIENTS; i++) {
            if (g->clients[i].stream && !g->clients[i].closing) {
                g->clients[i].closing = true;
                hdt_stream_close(g->clients[i].stream, NULL);
            }
        }
    }
}

static bool is_idle(const struct fake_gateway *g)
{
    size_t i;

    for (i = 0; i < MAX_CLIENTS; i++) {
        if (g->clients[i].gateway) {
            return false;
        }
    }
    return true;
}

static void *gateway_thread(void *arg)
{
    struct fake_gateway *g = arg;
    bool stopping = false;

    while (!stopping || !is_idle(g)) {
        hdt_engine_run_once(g->engine, 50000);
        pthread_mutex_lock(&g->lock);
        stopping = g->stopping && !g->woken;
        pthread_mutex_unlock(&g->lock);
    }
    hdt_engine_run_once(g->engine, 0); /* the cancelled accept */
    return NULL;
}

/* ---- the test's side ---- */

struct fake_gateway *hdt_fake_gateway_new(const char *path)
{
    struct fake_gateway *g = hdt_calloc(1, sizeof(*g));
    struct hdt_error err = {0};
    struct hdt_addr addr;
    char text[160];

    snprintf(text, sizeof(text), "unix:%s", path);
    check(hdt_addr_parse(text, &addr, &err) == HDT_OK, "address", &err);
    check(hdt_addr_listen(&addr, 0600, &g->listen_fd, &err) == HDT_OK, "listen", &err);
    check(hdt_engine_open(NULL, &g->engine, &err) == HDT_OK, "engine", &err);
    pthread_mutex_init(&g->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&g->changed, &attr);
    pthread_condattr_destroy(&attr);
    g->inbox = json_array();
    g->outbox = json_array();
    g->cuts = json_array();
    g->taken = json_object();
    g->wake.run = woken;
    g->accept_io.kind = HDT_IO_ACCEPT;
    g->accept_io.fd = g->listen_fd;
    g->accept_io.passed_fd = -1;
    g->accept_io.done = accepted;
    g->accept_io.user = g;
    hdt_engine_submit(g->engine, &g->accept_io);
    check(pthread_create(&g->thread, NULL, gateway_thread, g) == 0, "thread", NULL);
    return g;
}

/* The lock is held. */
static void wake(struct fake_gateway *g)
{
    if (!g->woken) {
        g->woken = true;
        hdt_engine_post(g->engine, &g->wake);
    }
}

void hdt_fake_gateway_free(struct fake_gateway *g)
{
    pthread_mutex_lock(&g->lock);
    g->stopping = true;
    wake(g);
    pthread_mutex_unlock(&g->lock);
    pthread_join(g->thread, NULL);
    hdt_engine_close(g->engine);
    close(g->listen_fd);
    json_decref(g->inbox);
    json_decref(g->outbox);
    json_decref(g->cuts);
    json_decref(g->taken);
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

void hdt_fake_gateway_send(struct fake_gateway *g, const char *worker, json_t *msg)
{
    json_t *copy = json_deep_copy(msg); /* shares nothing with this thread */

    json_decref(msg);
    pthread_mutex_lock(&g->lock);
    json_array_append_new(g->outbox, json_pack("[s,o]", worker, copy));
    wake(g);
    pthread_mutex_unlock(&g->lock);
}

void hdt_fake_gateway_cut(struct fake_gateway *g, const char *worker, bool forget)
{
    pthread_mutex_lock(&g->lock);
    json_array_append_new(g->cuts, json_pack("[s,b]", worker, (int)forget));
    wake(g);
    pthread_mutex_unlock(&g->lock);
}

/* Wait for `changed` until the time; the lock is held. False: the time is over. */
static bool wait_changed(struct fake_gateway *g, int64_t until_us)
{
    struct timespec ts = {until_us / HDT_US_PER_S, until_us % HDT_US_PER_S * 1000};

    if (hdt_clock_now_us() >= until_us) {
        return false;
    }
    pthread_cond_timedwait(&g->changed, &g->lock, &ts);
    return true;
}

static bool type_is_among(const char *type, const char *types)
{
    size_t len = strlen(type);
    const char *at = types;

    while ((at = strstr(at, type))) {
        if ((at == types || at[-1] == '|') && (at[len] == '\0' || at[len] == '|')) {
            return true;
        }
        at += len;
    }
    return false;
}

json_t *hdt_fake_gateway_take(struct fake_gateway *g, const char *types, int timeout_ms)
{
    int64_t until = hdt_clock_now_us() + timeout_ms * HDT_US_PER_MS;
    json_t *msg = NULL, *item;
    size_t i;

    pthread_mutex_lock(&g->lock);
    do {
        json_array_foreach(g->inbox, i, item)
        {
            if (type_is_among(hdt_msg_type(item), types)) {
                msg = json_incref(item);
                json_array_remove(g->inbox, i);
                break;
            }
        }
    } while (!msg && wait_changed(g, until));
    pthread_mutex_unlock(&g->lock);
    return msg;
}

bool hdt_fake_gateway_wait_workers(struct fake_gateway *g, int n, int timeout_ms)
{
    int64_t until = hdt_clock_now_us() + timeout_ms * HDT_US_PER_MS;
    bool there;

    pthread_mutex_lock(&g->lock);
    while (!(there = g->n_joined == n) && wait_changed(g, until)) {
    }
    pthread_mutex_unlock(&g->lock);
    return there;
}

unsigned long hdt_fake_gateway_n_frames(struct fake_gateway *g)
{
    unsigned long n;

    pthread_mutex_lock(&g->lock);
    n = g->n_frames;
    pthread_mutex_unlock(&g->lock);
    return n;
}

void hdt_fake_gateway_flip(struct fake_gateway *g, int n)
{
    pthread_mutex_lock(&g->lock);
    g->n_flip = n;
    pthread_mutex_unlock(&g->lock);
}

unsigned long hdt_fake_gateway_n_reports(struct fake_gateway *g)
{
    unsigned long n;

    pthread_mutex_lock(&g->lock);
    n = g->n_reports;
    pthread_mutex_unlock(&g->lock);
    return n;
}

void hdt_fake_gateway_refuse(struct fake_gateway *g, int n)
{
    pthread_mutex_lock(&g->lock);
    g->n_refuse = n;
    pthread_mutex_unlock(&g->lock);
}

void hdt_fake_gateway_lose(struct fake_gateway *g, int n)
{
    pthread_mutex_lock(&g->lock);
    g->n_lose = n;
    pthread_mutex_unlock(&g->lock);
}

void hdt_fake_gateway_lose_some(struct fake_gateway *g, unsigned one_in, unsigned seed)
{
    pthread_mutex_lock(&g->lock);
    g->lose_one_in = one_in;
    g->seed = seed;
    pthread_mutex_unlock(&g->lock);
}
