/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/dp.h"
#include "src/base/buf.h"
#include "src/base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/*
 * Clients: workers and operators of this site, on the Unix socket (their word counts if they run
 * as this user or as root) or over mutual TLS (their certificate counts).
 *
 * A client sends hello, is told welcome, and then: MSG both ways; POOL (Unix socket), DATA and ACK
 * for its flows; it gets DATA and ACK. Records for flows it does not have are not an error: a plan
 * may have ended while they travelled.
 */
#define CLIENT_POOLS_MAX 64
#define CLIENTS_MAX      4096

struct hdt_client *hdt_client_find(struct hdt_dataplane *dp, uint64_t number)
{
    struct hdt_client *client;

    HASH_FIND(hh, dp->clients, &number, sizeof(number), client);
    return client;
}

struct hdt_mem *hdt_client_pool_find(struct hdt_client *client, uint32_t number)
{
    struct hdt_client_pool *pool;

    LL_FOREACH(client->pools, pool)
    {
        if (pool->number == number) {
            return pool->mem;
        }
    }
    return NULL;
}

void hdt_clients_drop_pools(struct hdt_dataplane *dp, uint32_t job, uint32_t epoch)
{
    struct hdt_client *client, *next_client;
    struct hdt_client_pool *pool, *next;

    HASH_ITER(hh, dp->clients, client, next_client)
    {
        LL_FOREACH_SAFE(client->pools, pool, next)
        {
            if (pool->job != 0 && pool->job == job &&
                (epoch == UINT32_MAX || pool->epoch == epoch)) {
                LL_DELETE(client->pools, pool);
                client->n_pools--;
                hdt_mem_unref(dp, pool->mem);
                free(pool);
            }
        }
    }
}

void hdt_client_mark(struct hdt_flow_end *flow)
{
    if (flow->client == NULL || flow->on_client_list) {
        return;
    }
    DL_APPEND2(flow->client->dirty, flow, client_prev, client_next);
    flow->on_client_list = true;
    hdt_conn_kick(flow->client->conn);
}

/* L */
static void client_free(struct hdt_dataplane *dp, struct hdt_client *client)
{
    struct hdt_client_pool *pool, *next;

    LL_FOREACH_SAFE(client->pools, pool, next)
    {
        hdt_mem_unref(dp, pool->mem);
        free(pool);
    }
    HASH_DEL(dp->clients, client);
    client->conn->client = NULL;
    hdt_conn_unref(client->conn);
    free(client);
}

/* L: the payload is there, or will not come. */
static void client_end_payload(struct hdt_conn *conn)
{
    if (conn->rx_mem != NULL) {
        hdt_mem_unref(conn->dp, conn->rx_mem);
        conn->rx_mem = NULL;
    }
}

void hdt_clients_free(struct hdt_dataplane *dp)
{
    struct hdt_client *client, *next;

    HASH_ITER(hh, dp->clients, client, next)
    {
        client_free(dp, client);
    }
}

void hdt_client_on_closed(struct hdt_conn *conn, const struct hdt_error *why)
{
    struct hdt_dataplane *dp = conn->dp;
    struct hdt_client *client = conn->client;
    struct hdt_flow_end *flow, *next;

    client_end_payload(conn);
    if (conn->state != HDT_CONN_UP) {
        hdt_doorman_verdict(conn, conn->close_after != NULL ? &conn->close_why : why);
    }
    if (client == NULL) {
        return;
    }
    HASH_ITER(hh, dp->flows, flow, next)
    {
        if (flow->client == client) {
            hdt_flow_end_detach(flow);
        }
    }
    hdt_dpevent_client_down(dp, client->number, why);
    client_free(dp, client);
}

/* ---- hello ---- */

static enum hdt_status client_check_uid(const struct hdt_conn *conn, struct hdt_error *err)
{
    struct ucred cred = {.uid = (uid_t)-1};
    socklen_t len = sizeof(cred);

    if (getsockopt(hdt_stream_fd(conn->stream), SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0) {
        return hdt_error_set(err, HDT_EACCES, "cannot let a client in: its user is not known");
    }
    if (cred.uid != 0 && cred.uid != geteuid()) {
        hdt_error_set(err, HDT_EACCES,
                      "cannot let a client of user %u in: this gateway runs as user %u",
                      (unsigned)cred.uid, (unsigned)geteuid());
        hdt_error_hint(err, "run it as the gateway's user, or give it a certificate and use "
                            "the gateway's tls: address");
        return HDT_EACCES;
    }
    return HDT_OK;
}

static void lan_up(struct hdt_stream *stream, void *user)
{
    struct hdt_conn *conn = user;
    struct hdt_error err = {0};
    enum hdt_status status;

    (void)stream;
    status = conn->kind == HDT_CONN_LAN_UNIX ? client_check_uid(conn, &err)
                                             : hdt_handshake_identity(conn, &err);
    hdt_dp_lock(conn->dp);
    conn->state = HDT_CONN_HELLO;
    if (status != HDT_OK) {
        hdt_conn_refuse(conn, &err);
    }
    hdt_dp_unlock(conn->dp);
    hdt_conn_pump(conn);
}

/* Role and name: on TLS those of the certificate, which the hello may not contradict. */
static enum hdt_status client_read_hello(const struct hdt_conn *conn, const json_t *body,
                                         enum hdt_client_role *role, const char **name,
                                         struct hdt_error *err)
{
    const char *role_name = json_string_value(json_object_get(body, "role"));

    *name = json_string_value(json_object_get(body, "name"));
    if (conn->kind == HDT_CONN_LAN_TLS) {
        const struct hdt_identity *id = &conn->identity;

        if (strcmp(id->federation, conn->dp->conf.federation) != 0) {
            return hdt_error_set(err, HDT_EACCES,
                                 "cannot let the client in: its certificate is of federation '%s', "
                                 "this gateway of '%s'",
                                 id->federation, conn->dp->conf.federation);
        }
        if (id->role == HDT_ROLE_WORKER && strcmp(id->site, conn->dp->conf.site) != 0) {
            return hdt_error_set(err, HDT_EACCES,
                                 "cannot let worker '%s' in: its certificate is of site '%s', this "
                                 "gateway of '%s'",
                                 id->name, id->site, conn->dp->conf.site);
        }
        role_name =
            role_name && strcmp(role_name, "program") == 0 ? role_name : hdt_role_name(id->role);
        *name = id->name;
    }
    if (role_name == NULL || *name == NULL || !hdt_identity_name_is_valid(*name)) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot let the client in: its hello has no valid role and name");
    }
    if (strcmp(role_name, "worker") == 0) {
        *role = HDT_CLIENT_WORKER;
    } else if (strcmp(role_name, "operator") == 0) {
        *role = HDT_CLIENT_OPERATOR;
    } else if (strcmp(role_name, "program") == 0) {
        *role = HDT_CLIENT_PROGRAM;
    } else {
        return hdt_error_set(err, HDT_EACCES,
                             "cannot let '%s' in: role '%s' is none of worker, operator, program",
                             *name, role_name);
    }
    return HDT_OK;
}

/* L: a second worker of the same name; the same one is let in again, whose first connection is not
 * known to be dead yet. */
static enum hdt_status client_check_name(struct hdt_dataplane *dp, const char *name,
                                         uint64_t instance, struct hdt_error *err)
{
    const struct hdt_error why = {.status = HDT_ELINK, .msg = "the worker has connected again"};
    const struct hdt_client *client;

    for (client = dp->clients; client != NULL; client = client->hh.next) {
        if (client->role != HDT_CLIENT_WORKER || strcmp(client->name, name) != 0 ||
            client->conn->close_requested) {
            continue;
        }
        if (instance != 0 && client->instance == instance) {
            hdt_conn_close(client->conn, &why);
        } else {
            hdt_error_set(err, HDT_EEXIST,
                          "cannot let worker '%s' in: one of that name is connected already", name);
            hdt_error_hint(err, "give each worker of a site a name of its own, or end the other");
            return HDT_EEXIST;
        }
    }
    return HDT_OK;
}

/* Who was let in and from where, for the record. */
static void client_describe(struct hdt_client *client)
{
    const struct hdt_conn *conn = client->conn;
    struct ucred cred = {.uid = (uid_t)-1};
    socklen_t len = sizeof(cred);

    if (conn->kind == HDT_CONN_LAN_TLS) {
        hdt_identity_format(&conn->identity, client->identity);
        snprintf(client->address, sizeof(client->address), "%s", conn->address);
        return;
    }
    getsockopt(hdt_stream_fd(conn->stream), SOL_SOCKET, SO_PEERCRED, &cred, &len);
    snprintf(client->identity, sizeof(client->identity), "uid %u", (unsigned)cred.uid);
    snprintf(client->address, sizeof(client->address), "unix pid %ld", (long)cred.pid);
}

/* L */
static enum hdt_status client_welcome(struct hdt_conn *conn, json_t *msg, struct hdt_error *err)
{
    struct hdt_dataplane *dp = conn->dp;
    json_t *body = json_object_get(msg, "b");
    const uint64_t instance = hdt_msg_hex_u64(json_object_get(body, "instance"));
    struct hdt_client *client;
    enum hdt_client_role role = HDT_CLIENT_OPERATOR;
    const char *name = NULL;
    json_t *answer;

    if (strcmp(hdt_msg_type(msg), "hello") != 0 || !json_is_object(body)) {
        return hdt_error_set(err, HDT_EPROTO, "cannot let the client in: it did not say hello");
    }
    HDT_TRY(hdt_handshake_check(dp, body, "the client", err));
    HDT_TRY(client_read_hello(conn, body, &role, &name, err));
    if (HASH_CNT(hh, dp->clients) >= CLIENTS_MAX) {
        return hdt_error_set(err, HDT_ENOMEM, "cannot let '%s' in: %d clients are connected", name,
                             CLIENTS_MAX);
    }
    if (role == HDT_CLIENT_WORKER) {
        HDT_TRY(client_check_name(dp, name, instance, err));
    }
    client = hdt_calloc(1, sizeof(*client));
    client->number = ++dp->next_client;
    client->role = role;
    client->instance = instance;
    client->shares_memory = conn->kind == HDT_CONN_LAN_UNIX;
    client->conn = hdt_conn_ref(conn);
    snprintf(client->name, sizeof(client->name), "%s", name);
    client_describe(client);
    HASH_ADD(hh, dp->clients, number, sizeof(client->number), client);
    conn->client = client;
    conn->state = HDT_CONN_UP;
    hdt_doorman_verdict(conn, NULL);
    answer = hdt_handshake_body(dp);
    json_object_set_new(answer, "client", json_integer((json_int_t)client->number));
    json_object_set_new(answer, "name", json_string(client->name));
    answer = hdt_msg_reply(msg, "welcome", answer);
    (void)hdt_conn_send_msg(conn, answer, NULL); /* nothing waits on a new connection */
    json_decref(answer);
    hdt_dpevent_client_up(dp, client, body);
    return HDT_OK;
}

/* ---- records ---- */

/* The flow end of this client that a record names; NULL when it has none. */
static struct hdt_flow_end *client_flow(struct hdt_conn *conn, const struct hdt_frame *frame,
                                        bool is_src)
{
    struct hdt_flow_end *flow = hdt_flow_end_find(conn->dp, frame->job, frame->flow, is_src);

    return flow != NULL && flow->client == conn->client && flow->conf.epoch == frame->epoch ? flow
                                                                                            : NULL;
}

static enum hdt_status lan_place(struct hdt_stream *stream, void *user,
                                 const struct hdt_frame *frame, size_t payload_len, void **buf,
                                 struct hdt_error *err)
{
    struct hdt_conn *conn = user;
    struct hdt_flow_end *flow;
    enum hdt_status status = HDT_OK;

    (void)stream;
    if (frame->kind == HDT_FRAME_MSG) {
        return hdt_conn_place_msg(conn, payload_len, buf, err);
    }
    if (frame->kind != HDT_FRAME_DATA || conn->client == NULL) {
        return hdt_error_set(err, HDT_EPROTO, "cannot accept a %s record with payload of a client",
                             hdt_frame_kind_name((enum hdt_frame_kind)frame->kind));
    }
    hdt_dp_lock(conn->dp);
    flow = client_flow(conn, frame, true);
    if (flow != NULL) {
        status = hdt_src_place(flow, frame, buf, err);
        if (status == HDT_OK) {
            conn->rx_mem = hdt_mem_ref(flow->mem);
        }
    } else {
        *buf = NULL; /* of a flow that is gone */
    }
    hdt_dp_unlock(conn->dp);
    return status;
}

static enum hdt_status client_add_pool(struct hdt_conn *conn, const struct hdt_frame *frame, int fd,
                                       struct hdt_error *err)
{
    struct hdt_client *client = conn->client;
    struct hdt_client_pool *pool;
    struct hdt_mem *mem;

    if (fd < 0 || conn->kind != HDT_CONN_LAN_UNIX || frame->seq > UINT32_MAX) {
        if (fd >= 0) {
            close(fd);
        }
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot attach a pool: the record carries no descriptor");
    }
    mem = hdt_calloc(1, sizeof(*mem));
    mem->refs = 1;
    if (hdt_link_shm.pool_attach(fd, frame->offset, (uint32_t)frame->seq, &mem->pool, err) !=
        HDT_OK) {
        free(mem);
        return err->status;
    }
    mem->base = mem->pool.base;
    mem->len = mem->pool.len;
    pool = hdt_calloc(1, sizeof(*pool));
    pool->number = (uint32_t)frame->seq;
    pool->job = frame->job;
    pool->epoch = frame->epoch;
    pool->mem = mem;
    hdt_dp_lock(conn->dp);
    if (client->n_pools >= CLIENT_POOLS_MAX || hdt_client_pool_find(client, pool->number) != NULL) {
        hdt_mem_unref(conn->dp, mem);
        hdt_dp_unlock(conn->dp);
        free(pool);
        return hdt_error_set(err, HDT_EPROTO, "cannot attach pool %llu: it is there already",
                             (unsigned long long)frame->seq);
    }
    LL_PREPEND(client->pools, pool);
    client->n_pools++;
    hdt_dp_unlock(conn->dp);
    return HDT_OK;
}

static enum hdt_status client_record_msg(struct hdt_conn *conn, const struct hdt_frame *frame,
                                         struct hdt_error *err)
{
    struct hdt_error why = {0};
    json_t *msg;

    if (frame->coded_len == 0) {
        return hdt_error_set(err, HDT_EPROTO, "cannot accept an empty message");
    }
    HDT_TRY(hdt_conn_take_msg(conn, frame->coded_len, &msg, err));
    hdt_dp_lock(conn->dp);
    if (conn->client != NULL) {
        hdt_dpevent_client_msg(conn->dp, conn->client->number, msg, frame->coded_len);
        msg = NULL;
    } else if (conn->close_after == NULL && client_welcome(conn, msg, &why) != HDT_OK) {
        hdt_conn_refuse(conn, &why);
    }
    hdt_dp_unlock(conn->dp);
    json_decref(msg);
    hdt_conn_pump(conn);
    return HDT_OK;
}

/* L: bytes that went to an end which was closed or opened anew meanwhile are forgotten; the worker
 * is told where to begin. */
static enum hdt_status client_record_data(struct hdt_conn *conn, const struct hdt_frame *frame,
                                          struct hdt_error *err)
{
    struct hdt_flow_end *flow = client_flow(conn, frame, true);
    const bool is_there =
        flow != NULL && (conn->client->shares_memory || conn->rx_mem == flow->mem);

    client_end_payload(conn);
    return is_there ? hdt_src_data(flow, frame, err) : HDT_OK;
}

/* L */
static enum hdt_status client_record_flow(struct hdt_conn *conn, const struct hdt_frame *frame,
                                          struct hdt_error *err)
{
    struct hdt_flow_end *flow;

    switch (frame->kind) {
    case HDT_FRAME_DATA:
        return client_record_data(conn, frame, err);
    case HDT_FRAME_ACK:
        flow = client_flow(conn, frame, false);
        return flow != NULL ? hdt_dst_ack(flow, frame->seq, frame->offset, err) : HDT_OK;
    case HDT_FRAME_QUERY:
        flow = client_flow(conn, frame, true);
        if (flow != NULL && !flow->awaiting_state) {
            flow->client_ack_pending = true;
            hdt_client_mark(flow);
        }
        return HDT_OK;
    case HDT_FRAME_PING:
        hdt_conn_on_ping(conn, frame);
        return HDT_OK;
    default:
        return hdt_error_set(err, HDT_EPROTO, "cannot accept a %s record of a client",
                             hdt_frame_kind_name((enum hdt_frame_kind)frame->kind));
    }
}

static enum hdt_status lan_record(struct hdt_stream *stream, void *user,
                                  const struct hdt_frame *frame, void *buf, int passed_fd,
                                  struct hdt_error *err)
{
    struct hdt_conn *conn = user;
    enum hdt_status status;

    (void)stream;
    (void)buf;
    if (conn->close_begun) {
        if (passed_fd >= 0) {
            close(passed_fd);
        }
        return hdt_error_set(err, HDT_ECANCELED, "cannot read on: the connection is closing");
    }
    hdt_conn_charge(conn, hdt_record_cost(frame));
    if (frame->kind == HDT_FRAME_POOL && conn->client != NULL) {
        return client_add_pool(conn, frame, passed_fd, err);
    }
    if (passed_fd >= 0) {
        close(passed_fd);
    }
    if (frame->kind == HDT_FRAME_MSG) {
        return client_record_msg(conn, frame, err);
    }
    if (conn->client == NULL) {
        return hdt_error_set(err, HDT_EPROTO, "cannot accept a %s record before hello",
                             hdt_frame_kind_name((enum hdt_frame_kind)frame->kind));
    }
    hdt_dp_lock(conn->dp);
    status = client_record_flow(conn, frame, err);
    hdt_dp_unlock(conn->dp);
    return status;
}

const struct hdt_stream_events hdt_lan_events = {
    .up = lan_up,
    .place = lan_place,
    .record = lan_record,
    .want = hdt_conn_on_want,
    .sent = hdt_conn_on_sent,
    .closed = hdt_conn_on_closed,
};

/* ---- out ---- */

/* L: the ACK state of a source end, or the next whole frame of a destination end. */
static struct hdt_out *client_flow_out(struct hdt_flow_end *flow, struct hdt_conn *conn, bool *more)
{
    struct hdt_dst_slot *slot;
    struct hdt_out *out;

    *more = false;
    if (flow->key.is_src) {
        out = flow->client_ack_pending ? hdt_conn_small(conn, HDT_FRAME_ACK, flow) : NULL;
        *more = flow->client_ack_pending && out == NULL;
        if (out != NULL) {
            flow->client_ack_pending = false;
            out->rec.frame.flags = HDT_FRAME_FLAG_STATE;
            out->rec.frame.seq = flow->acked;
            out->rec.frame.offset = flow->credit;
        }
        return out;
    }
    slot = hdt_dst_in_window(flow, flow->next_seq) ? hdt_dst_slot_at(flow, flow->next_seq) : NULL;
    if (flow->waiting || slot == NULL || !slot->complete || slot->seq != flow->next_seq) {
        return NULL;
    }
    *more = true;
    out = hdt_conn_small(conn, HDT_FRAME_DATA, flow);
    if (out == NULL) {
        return NULL;
    }
    out->rec.frame.dtype = slot->frame.dtype;
    out->rec.frame.xxh3 = slot->frame.whole;
    out->rec.frame.prio = slot->frame.prio;
    out->rec.frame.flags = slot->frame.flags;
    out->rec.frame.frame_len = slot->frame.frame_len;
    out->rec.frame.raw_len = slot->frame.raw_len;
    out->rec.frame.seq = flow->next_seq++;
    if (flow->client->shares_memory) {
        out->rec.frame.offset =
            flow->base_offset + (out->rec.frame.seq % flow->conf.depth) * flow->stride;
    } else {
        out->rec.payload = hdt_dst_slot_bytes(flow, out->rec.frame.seq);
        out->rec.payload_len = slot->frame.frame_len;
        out->rec.frame.coded_len = slot->frame.frame_len;
    }
    return out;
}

struct hdt_out *hdt_client_next_out(struct hdt_conn *conn)
{
    struct hdt_client *client = conn->client;
    struct hdt_flow_end *flow;
    struct hdt_out *out;
    bool more;

    while (client != NULL && (flow = client->dirty) != NULL) {
        out = client_flow_out(flow, conn, &more);
        if (out == NULL && more) {
            return NULL; /* no record is free: `sent` comes back here */
        }
        DL_DELETE2(client->dirty, flow, client_prev, client_next);
        flow->on_client_list = false;
        if (more) {
            hdt_client_mark(flow);
        }
        if (out != NULL) {
            return out;
        }
    }
    return NULL;
}
