/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Bytes come and go through one pair of functions that never block: plain sockets or TLS. What is
 * awaited is awaited in poll, against a deadline and a descriptor that the owner can make readable
 * from a signal handler, so that a signal between a check and the wait is not lost. TLS writes
 * through a BIO of our own: OpenSSL's would raise SIGPIPE, and a library must not ask its program
 * to ignore that.
 */
#include "src/net/gwclient.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/core/frame.h"
#include "src/core/msg.h"
#include "src/net/addr.h"
#include "src/net/resolve.h"
#include "src/net/tls.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <xxhash.h>

#define HINT_HANGS                                                                                 \
 "its process may be stopped, or its machine hang: look at it, or restart hdt-gateway (jobs go "   \
 "on); --timeout SECONDS waits longer"

struct hdt_gwclient {
    int fd;
    struct hdt_tls_ctx *ctx;
    SSL *ssl; /* NULL: plain */
    BIO_METHOD *bio_method;
    char address[160];
    char site[64];
    char tls[96];
    struct hdt_buf in;
    json_t *kept; /* messages that came while an answer was awaited */
    json_int_t next_id;
    struct hdt_deadlines deadlines;
    int64_t timeout_us; /* of each wait, as the owner wants it; 0: the deadlines */
    int64_t heard_us;   /* when a byte last came */
    const int *wake_fd; /* NULL: none */
};

/* ---- bytes ---- */

static enum hdt_status client_lost(struct hdt_gwclient *c, const char *why, struct hdt_error *err)
{
    hdt_error_set(err, HDT_EPEER, "connection to gateway %s lost: %s", c->address, why);
    hdt_error_hint(err, "see the gateway's log; jobs go on without this command");
    return HDT_EPEER;
}

/* One byte of the owner's descriptor, when there is one. */
static bool client_is_woken(const struct hdt_gwclient *c)
{
    struct pollfd wake = {.fd = c->wake_fd ? *c->wake_fd : -1, .events = POLLIN};
    char byte;

    return poll(&wake, 1, 0) > 0 && read(wake.fd, &byte, 1) == 1;
}

/* Wait until the socket is ready for `events`. HDT_AGAIN: not before the deadline. */
static enum hdt_status client_wait(struct hdt_gwclient *c, short events, int64_t deadline_us,
                                   bool can_wake)
{
    struct pollfd fds[2] = {{.fd = c->fd, .events = events},
                            {.fd = can_wake && c->wake_fd ? *c->wake_fd : -1, .events = POLLIN}};
    int64_t left_us;

    for (;;) {
        if (can_wake && client_is_woken(c)) {
            return HDT_ECANCELED;
        }
        left_us = deadline_us - hdt_clock_now_us();
        if (left_us <= 0) {
            return HDT_AGAIN;
        }
        if (poll(fds, 2, (int)(left_us / HDT_US_PER_MS) + 1) > 0 && fds[0].revents) {
            return HDT_OK;
        }
    }
}

/* One read or write that does not block: > 0 bytes, or 0 with *wait = the events to wait for, or a
 * status below 0 with *err. */
static int client_io(struct hdt_gwclient *c, void *bytes, int len, bool out, short *wait,
                     struct hdt_error *err)
{
    ssize_t n;
    int ssl_err;

    *wait = out ? POLLOUT : POLLIN;
    if (!c->ssl) {
        n = out ? send(c->fd, bytes, (size_t)len, MSG_NOSIGNAL)
                : recv(c->fd, bytes, (size_t)len, 0);
        if (n > 0) {
            return (int)n;
        }
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            return 0;
        }
        return client_lost(c, n == 0 ? "it closed" : strerror(errno), err);
    }
    n = out ? SSL_write(c->ssl, bytes, len) : SSL_read(c->ssl, bytes, len);
    if (n > 0) {
        return (int)n;
    }
    ssl_err = SSL_get_error(c->ssl, (int)n);
    if (ssl_err == SSL_ERROR_WANT_READ || ssl_err == SSL_ERROR_WANT_WRITE) {
        *wait = ssl_err == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
        return 0;
    }
    if (ssl_err == SSL_ERROR_ZERO_RETURN || ssl_err == SSL_ERROR_SYSCALL) {
        return client_lost(c, "it closed", err);
    }
    return hdt_tls_failure(c->ssl, err);
}

static int64_t client_patience_us(const struct hdt_gwclient *c, int64_t deadline_us)
{
    return c->timeout_us > 0 ? c->timeout_us : deadline_us;
}

static enum hdt_status client_write(struct hdt_gwclient *c, const struct hdt_buf *out,
                                    struct hdt_error *err)
{
    const int64_t wait_us = client_patience_us(c, c->deadlines.answer_us);
    int64_t deadline_us = hdt_clock_now_us() + wait_us;
    size_t done = 0;

    while (done < out->len) {
        size_t left = out->len - done;
        short wait;
        int n = client_io(c, out->data + done, left < INT32_MAX ? (int)left : INT32_MAX, true,
                          &wait, err);

        if (n < 0) {
            return (enum hdt_status)n;
        }
        done += (size_t)n;
        /* A record is not left half sent: the connection would be of no use after. */
        if (n == 0 && client_wait(c, wait, deadline_us, false) == HDT_AGAIN) {
            hdt_error_set(err, HDT_ETIMEDOUT,
                          "gateway %s took %zu of %zu bytes of a request, and no more in %.1f s",
                          c->address, done, out->len, (double)wait_us / 1e6);
            hdt_error_hint(err, HINT_HANGS);
            return HDT_ETIMEDOUT;
        }
    }
    return HDT_OK;
}

/* ---- messages ---- */

static enum hdt_status client_send_msg(struct hdt_gwclient *c, const json_t *msg,
                                       struct hdt_error *err)
{
    struct hdt_frame frame = {.version = HDT_FRAME_VERSION, .kind = HDT_FRAME_MSG};
    uint8_t header[HDT_FRAME_HEADER_LEN] = {0};
    struct hdt_buf out = {0};
    enum hdt_status status;

    hdt_buf_append(&out, header, sizeof(header));
    hdt_msg_encode(msg, &out);
    if (out.len - sizeof(header) > HDT_FRAME_MAX_MSG) {
        hdt_buf_release(&out);
        return hdt_error_set(err, HDT_EINVAL, "the request is longer than %u bytes",
                             HDT_FRAME_MAX_MSG);
    }
    frame.coded_len = (uint32_t)(out.len - sizeof(header));
    frame.xxh3 = XXH3_64bits(out.data + sizeof(header), frame.coded_len);
    hdt_frame_pack(&frame, (uint8_t *)out.data);
    status = client_write(c, &out, err);
    hdt_buf_release(&out);
    return status;
}

/* A whole message in the buffer, taken out of it. HDT_AGAIN: not yet. */
static enum hdt_status client_take(struct hdt_gwclient *c, json_t **msg, struct hdt_error *err)
{
    struct hdt_frame frame;
    size_t len;

    if (c->in.len < HDT_FRAME_HEADER_LEN) {
        return HDT_AGAIN;
    }
    HDT_TRY(hdt_frame_unpack((const uint8_t *)c->in.data, &frame, err));
    if (frame.kind != HDT_FRAME_MSG) {
        return hdt_error_set(err, HDT_EPROTO, "gateway %s sent a %s record to an operator",
                             c->address, hdt_frame_kind_name(frame.kind));
    }
    len = HDT_FRAME_HEADER_LEN + (size_t)frame.coded_len;
    if (c->in.len < len) {
        return HDT_AGAIN;
    }
    if (frame.xxh3 != 0 &&
        frame.xxh3 != XXH3_64bits(c->in.data + HDT_FRAME_HEADER_LEN, frame.coded_len)) {
        return hdt_error_set(err, HDT_EPROTO, "a message of gateway %s was damaged on its way",
                             c->address);
    }
    HDT_TRY(hdt_msg_decode(c->in.data + HDT_FRAME_HEADER_LEN, frame.coded_len, msg, err));
    hdt_buf_consume(&c->in, len);
    return HDT_OK;
}

static enum hdt_status client_receive(struct hdt_gwclient *c, int64_t deadline_us, json_t **msg,
                                      struct hdt_error *err)
{
    char bytes[16384];
    enum hdt_status status;
    short wait;
    int n;

    while ((status = client_take(c, msg, err)) == HDT_AGAIN) {
        n = client_io(c, bytes, sizeof(bytes), false, &wait, err);
        if (n < 0) {
            return (enum hdt_status)n;
        }
        if (n > 0) {
            c->heard_us = hdt_clock_now_us();
            hdt_buf_append(&c->in, bytes, (size_t)n);
            continue;
        }
        status = client_wait(c, wait, deadline_us, true);
        if (status != HDT_OK) {
            return status;
        }
    }
    return status;
}

enum hdt_status hdt_gwclient_next(struct hdt_gwclient *c, int timeout_ms, json_t **msg,
                                  struct hdt_error *err)
{
    enum hdt_status status;

    if (json_array_size(c->kept) > 0) {
        *msg = json_incref(json_array_get(c->kept, 0));
        json_array_remove(c->kept, 0);
        return HDT_OK;
    }
    status = client_receive(c, hdt_clock_now_us() + timeout_ms * HDT_US_PER_MS, msg, err);
    if (status == HDT_ECANCELED) {
        hdt_error_set(err, HDT_ECANCELED, "interrupted");
    }
    return status;
}

enum hdt_status hdt_gwclient_send(struct hdt_gwclient *c, const char *type, json_t *body,
                                  struct hdt_error *err)
{
    json_t *msg = hdt_msg_new(type, NULL, body);
    enum hdt_status status;

    json_object_set_new(msg, "id", json_integer(++c->next_id));
    status = client_send_msg(c, msg, err);
    json_decref(msg);
    return status;
}

/* "refuse" is what gateways say to each other: this is the port for them. */
static bool client_is_error(const json_t *msg)
{
    return strcmp(hdt_msg_type(msg), "error") == 0 || strcmp(hdt_msg_type(msg), "refuse") == 0;
}

/* An error that answers no request is about the connection as a whole. */
static bool client_is_answer(const json_t *msg, json_int_t id, const char *expect)
{
    const json_t *re = json_object_get(msg, "re");

    if (json_is_integer(re)) {
        return json_integer_value(re) == id;
    }
    return strcmp(hdt_msg_type(msg), expect) == 0 || client_is_error(msg);
}

static int64_t client_answer_us(const struct hdt_gwclient *c, const struct hdt_gwclient_request *r)
{
    if (r->timeout_ms > 0) {
        return r->timeout_ms * HDT_US_PER_MS;
    }
    switch (r->patience) {
    case HDT_GWCLIENT_RELAY:
        return client_patience_us(c, c->deadlines.relay_us);
    case HDT_GWCLIENT_SURVEY:
        return client_patience_us(c, c->deadlines.survey_us);
    case HDT_GWCLIENT_ANSWER:
        break;
    }
    return client_patience_us(c, c->deadlines.answer_us);
}

static enum hdt_status client_late(const struct hdt_gwclient *c,
                                   const struct hdt_gwclient_request *r, int64_t asked_us,
                                   struct hdt_error *err)
{
    const int64_t now_us = hdt_clock_now_us();
    const double asked_s = (double)(now_us - asked_us) / 1e6;

    if (c->in.len > 0) {
        hdt_error_set(
            err, HDT_ETIMEDOUT,
            "gateway %s began to answer '%s' and stopped: %zu bytes, then none for %.1f s",
            c->address, r->type, c->in.len, (double)(now_us - c->heard_us) / 1e6);
    } else if (c->heard_us > asked_us) {
        hdt_error_set(err, HDT_ETIMEDOUT,
                      "gateway %s lives, but did not answer '%s' for %.1f s: it waits for %s",
                      c->address, r->type, asked_s, r->to ? r->to : "other sites or workers");
        hdt_error_hint(err, "'hdt status' shows who is silent; --timeout SECONDS waits longer");
        return HDT_ETIMEDOUT;
    } else {
        hdt_error_set(err, HDT_ETIMEDOUT, "gateway %s did not answer '%s' for %.1f s", c->address,
                      r->type, asked_s);
    }
    hdt_error_hint(err, HINT_HANGS);
    return HDT_ETIMEDOUT;
}

/* What takes minutes is waited for only as long as the gateway lives: it is asked for its status
 * now and then, and any byte is an answer. HDT_AGAIN: nothing came by then. */
static enum hdt_status client_receive_alive(struct hdt_gwclient *c, int64_t deadline_us,
                                            json_t **msg, struct hdt_error *err)
{
    int64_t until_us = hdt_clock_now_us() + c->deadlines.answer_us, pinged_us = 0;
    enum hdt_status status;

    for (;;) {
        status = client_receive(c, until_us < deadline_us ? until_us : deadline_us, msg, err);
        if (status != HDT_AGAIN || until_us >= deadline_us ||
            (pinged_us != 0 && c->heard_us < pinged_us)) {
            return status;
        }
        pinged_us = hdt_clock_now_us();
        until_us = pinged_us + c->deadlines.answer_us;
        HDT_TRY(hdt_gwclient_send(c, "status", json_object(), err));
    }
}

/* The answer to request `id`; what answers nothing is kept. */
static enum hdt_status client_answer(struct hdt_gwclient *c, json_int_t id,
                                     const struct hdt_gwclient_request *r, json_t **body,
                                     struct hdt_error *err)
{
    const int64_t asked_us = hdt_clock_now_us();
    const int64_t deadline_us = asked_us + client_answer_us(c, r);
    json_t *msg = NULL;
    enum hdt_status status;

    for (;;) {
        status = r->patience == HDT_GWCLIENT_SURVEY
                     ? client_receive_alive(c, deadline_us, &msg, err)
                     : client_receive(c, deadline_us, &msg, err);
        if (status == HDT_AGAIN) {
            return client_late(c, r, asked_us, err);
        }
        if (status == HDT_ECANCELED) {
            return hdt_error_set(err, HDT_ECANCELED, "interrupted");
        }
        HDT_TRY(status);
        if (client_is_answer(msg, id, r->expect)) {
            break;
        }
        if (json_object_get(msg, "re")) {
            json_decref(msg); /* to a question that nobody waits for any more */
        } else {
            json_array_append_new(c->kept, msg);
        }
    }
    if (client_is_error(msg)) {
        status = hdt_msg_error_from_body(hdt_msg_body(msg), err);
    } else if (strcmp(hdt_msg_type(msg), r->expect) != 0) {
        status = hdt_error_set(err, HDT_EPROTO, "gateway %s answered '%s' by '%s'", c->address,
                               r->type, hdt_msg_type(msg));
    } else {
        *body = json_incref((json_t *)(uintptr_t)hdt_msg_body(msg));
    }
    json_decref(msg);
    return status;
}

enum hdt_status hdt_gwclient_ask(struct hdt_gwclient *c, const struct hdt_gwclient_request *r,
                                 json_t **body, struct hdt_error *err)
{
    json_t *msg = hdt_msg_new(r->type, r->to, r->body);
    json_int_t id = ++c->next_id;
    struct hdt_error said = {0};
    enum hdt_status status;

    json_object_set_new(msg, "id", json_integer(id));
    status = client_send_msg(c, msg, err);
    json_decref(msg);
    if (status == HDT_OK) {
        return client_answer(c, id, r, body, err);
    }
    /* Who refuses a client says why and closes, maybe before we spoke: its words lie there. */
    if (status == HDT_EPEER && client_answer(c, id, r, body, &said) != HDT_EPEER && said.msg[0]) {
        if (err) {
            *err = said;
        }
        return said.status;
    }
    return status;
}

/* ---- connecting ---- */

static int bio_write(BIO *bio, const char *bytes, int len)
{
    const struct hdt_gwclient *c = BIO_get_data(bio);
    ssize_t n = send(c->fd, bytes, (size_t)len, MSG_NOSIGNAL);

    BIO_clear_retry_flags(bio);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        BIO_set_retry_write(bio);
    }
    return (int)n;
}

static int bio_read(BIO *bio, char *bytes, int cap)
{
    const struct hdt_gwclient *c = BIO_get_data(bio);
    ssize_t n = recv(c->fd, bytes, (size_t)cap, 0);

    BIO_clear_retry_flags(bio);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        BIO_set_retry_read(bio);
    }
    return (int)n;
}

static long bio_ctrl(BIO *bio, int what, long number, void *pointer)
{
    (void)bio;
    (void)number;
    (void)pointer;
    return what == BIO_CTRL_FLUSH; /* nothing is held back */
}

static enum hdt_status client_tls_new(struct hdt_gwclient *c, struct hdt_error *err)
{
    BIO *bio = NULL;

    c->bio_method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "gateway");
    if (c->bio_method && BIO_meth_set_write(c->bio_method, bio_write) == 1 &&
        BIO_meth_set_read(c->bio_method, bio_read) == 1 &&
        BIO_meth_set_ctrl(c->bio_method, bio_ctrl) == 1) {
        bio = BIO_new(c->bio_method);
        c->ssl = SSL_new(hdt_tls_ctx_ssl_ctx(c->ctx));
    }
    if (!bio || !c->ssl) {
        BIO_free(bio);
        return hdt_error_set(err, HDT_ENOMEM, "cannot make a TLS connection: out of memory");
    }
    BIO_set_data(bio, c);
    BIO_set_init(bio, 1);
    SSL_set_bio(c->ssl, bio, bio);
    return HDT_OK;
}

static enum hdt_status client_shake(struct hdt_gwclient *c, struct hdt_error *err)
{
    const int64_t wait_us = client_patience_us(c, c->deadlines.handshake_us);
    int64_t deadline_us = hdt_clock_now_us() + wait_us;
    enum hdt_status status;
    int rc, ssl_err;

    while ((rc = SSL_connect(c->ssl)) != 1) {
        ssl_err = SSL_get_error(c->ssl, rc);
        if (ssl_err == SSL_ERROR_SYSCALL) {
            return client_lost(c, "it closed during the handshake", err);
        }
        if (ssl_err != SSL_ERROR_WANT_READ && ssl_err != SSL_ERROR_WANT_WRITE) {
            return hdt_tls_failure(c->ssl, err);
        }
        status =
            client_wait(c, ssl_err == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, deadline_us, true);
        if (status == HDT_ECANCELED) {
            return hdt_error_set(err, HDT_ECANCELED, "interrupted");
        }
        if (status != HDT_OK) {
            hdt_error_set(err, HDT_ETIMEDOUT,
                          "%s accepts connections, but did not finish the TLS handshake in %.1f s",
                          c->address, (double)wait_us / 1e6);
            hdt_error_hint(err, "is hdt-gateway stopped, or does another program listen there?");
            return HDT_ETIMEDOUT;
        }
    }
    return HDT_OK;
}

static enum hdt_status client_tls(struct hdt_gwclient *c, const struct hdt_gwclient_conf *conf,
                                  struct hdt_error *err)
{
    struct hdt_tls_conf tls = {.ca_path = conf->ca,
                               .cert_path = conf->cert,
                               .key_path = conf->key,
                               .own_roles = conf->is_program ? HDT_ROLE_OPERATOR | HDT_ROLE_WORKER
                                                             : HDT_ROLE_OPERATOR,
                               .peer_roles = HDT_ROLE_SITE};

    if (!conf->ca || !conf->cert || !conf->key) {
        hdt_error_set(err, HDT_EINVAL,
                      "gateway %s needs the authority's certificate, an operator's and its key",
                      c->address);
        hdt_error_hint(err, "'hdt ca issue operator NAME' makes them; the command takes --ca, "
                            "--cert and --key");
        return HDT_EINVAL;
    }
    HDT_TRY(hdt_tls_ctx_new(&tls, &c->ctx, err));
    HDT_TRY(client_tls_new(c, err));
    HDT_TRY(hdt_tls_expect(c->ssl, HDT_ROLE_SITE, NULL, err));
    HDT_TRY(client_shake(c, err));
    snprintf(c->tls, sizeof(c->tls), "%s %s", SSL_get_version(c->ssl), SSL_get_cipher(c->ssl));
    return HDT_OK;
}

/* Look the name up, for as long as a connection may take. */
static enum hdt_status client_resolve(struct hdt_gwclient *c, struct hdt_addr *addr,
                                      struct hdt_error *err)
{
    const int64_t wait_us = client_patience_us(c, c->deadlines.connect_us);
    struct hdt_resolve *resolve;
    enum hdt_status waited, status;

    HDT_TRY(hdt_resolve_begin(c->address, &resolve, err));
    c->fd = hdt_resolve_fd(resolve);
    waited = client_wait(c, POLLIN, hdt_clock_now_us() + wait_us, true);
    c->fd = -1;
    status = hdt_resolve_end(resolve, addr, err);
    if (status != HDT_AGAIN) {
        return status;
    }
    if (waited == HDT_ECANCELED) {
        return hdt_error_set(err, HDT_ECANCELED, "interrupted");
    }
    hdt_error_set(err, HDT_ETIMEDOUT,
                  "cannot look up %s: the name servers did not answer in %.1f s", c->address,
                  (double)wait_us / 1e6);
    hdt_error_hint(err, "see /etc/resolv.conf, or write the IP address");
    return HDT_ETIMEDOUT;
}

static enum hdt_status client_dial(struct hdt_gwclient *c, const struct hdt_addr *addr,
                                   struct hdt_error *err)
{
    const int64_t wait_us = client_patience_us(c, c->deadlines.connect_us);
    enum hdt_status waited;

    HDT_TRY(hdt_addr_connect_begin(addr, &c->fd, err));
    waited = client_wait(c, POLLOUT, hdt_clock_now_us() + wait_us, true);
    if (waited == HDT_ECANCELED) {
        return hdt_error_set(err, HDT_ECANCELED, "interrupted");
    }
    return hdt_addr_connect_end(addr, &c->fd, waited == HDT_AGAIN ? wait_us : 0, err);
}

static enum hdt_status client_connect(struct hdt_gwclient *c, const struct hdt_gwclient_conf *conf,
                                      struct hdt_error *err)
{
    struct hdt_addr addr;
    enum hdt_status status;

    HDT_TRY(client_resolve(c, &addr, err));
    status = client_dial(c, &addr, err);
    if (status == HDT_ECANCELED) {
        return status;
    }
    if (status != HDT_OK) {
        hdt_error_prefix(err, "no gateway at %s", c->address);
        if (err && !err->hint[0]) {
            hdt_error_hint(err, "start hdt-gateway, or name another with --gateway or "
                                "$HDT_GATEWAY");
        }
        return status == HDT_EIO ? HDT_EPEER : status;
    }
    if (!addr.is_unix) {
        return client_tls(c, conf, err);
    }
    snprintf(c->tls, sizeof(c->tls), "unix socket");
    return HDT_OK;
}

static enum hdt_status client_hello(struct hdt_gwclient *c, const struct hdt_gwclient_conf *conf,
                                    struct hdt_error *err)
{
    struct hdt_gwclient_request hello = {
        .type = "hello",
        .body = json_pack("{s:i, s:s, s:s, s:s}", "proto", HDT_PROTOCOL_VERSION, "role",
                          conf->is_program ? "program" : "operator", "name",
                          conf->name ? conf->name : "hdt", "version", PACKAGE_VERSION),
        .expect = "welcome",
        .timeout_ms = (int)(client_patience_us(c, c->deadlines.handshake_us) / HDT_US_PER_MS)};
    enum hdt_status status = HDT_OK;
    const char *site;
    json_int_t proto, knob_ms;
    json_t *body;

    HDT_TRY(hdt_gwclient_ask(c, &hello, &body, err));
    site = json_string_value(json_object_get(body, "site"));
    proto = json_integer_value(json_object_get(body, "proto"));
    knob_ms = json_integer_value(json_object_get(body, "progress_timeout_ms"));
    if (knob_ms >= HDT_DEADLINES_KNOB_MIN_MS && knob_ms <= HDT_DEADLINES_KNOB_MAX_MS) {
        hdt_deadlines_derive(&c->deadlines, knob_ms, 0);
    }
    snprintf(c->site, sizeof(c->site), "%s", site ? site : "");
    if (proto != HDT_PROTOCOL_VERSION) {
        status = hdt_error_set(err, HDT_EVERSION,
                               "gateway %s speaks version %lld of the protocol, this program %d",
                               c->address, (long long)proto, HDT_PROTOCOL_VERSION);
        hdt_error_hint(err, "install the same release of HDT on both");
    }
    json_decref(body);
    return status;
}

enum hdt_status hdt_gwclient_open(const struct hdt_gwclient_conf *conf,
                                  struct hdt_gwclient **client, struct hdt_error *err)
{
    struct hdt_gwclient *c = hdt_calloc(1, sizeof(*c));
    const char *from_env = getenv("HDT_GATEWAY");
    enum hdt_status status;

    c->fd = -1;
    c->kept = json_array();
    c->wake_fd = conf->wake_fd;
    c->timeout_us = conf->timeout_ms * HDT_US_PER_MS;
    hdt_deadlines_derive(&c->deadlines, HDT_DEADLINES_KNOB_DEFAULT_MS, 0);
    snprintf(c->address, sizeof(c->address), "%s",
             conf->gateway                  ? conf->gateway
             : from_env && from_env[0] != 0 ? from_env
                                            : HDT_GWCLIENT_DEFAULT);
    status = client_connect(c, conf, err);
    if (status == HDT_OK) {
        status = client_hello(c, conf, err);
    }
    if (status != HDT_OK) {
        hdt_gwclient_close(c);
        return status;
    }
    *client = c;
    return HDT_OK;
}

void hdt_gwclient_close(struct hdt_gwclient *c)
{
    if (!c) {
        return;
    }
    if (c->ssl) {
        SSL_shutdown(c->ssl); /* one way: we need no answer */
        SSL_free(c->ssl);
    }
    BIO_meth_free(c->bio_method);
    hdt_tls_ctx_free(c->ctx);
    if (c->fd >= 0) {
        close(c->fd);
    }
    hdt_buf_release(&c->in);
    json_decref(c->kept);
    free(c);
}

const char *hdt_gwclient_site(const struct hdt_gwclient *c)
{
    return c->site;
}

const char *hdt_gwclient_tls(const struct hdt_gwclient *c)
{
    return c->tls;
}

const struct hdt_deadlines *hdt_gwclient_deadlines(const struct hdt_gwclient *c)
{
    return &c->deadlines;
}

const char *hdt_gwclient_address(const struct hdt_gwclient *c)
{
    return c->address;
}

enum hdt_status hdt_gwclient_ask_link(struct hdt_gwclient *client, const char *site, json_t **facts,
                                      json_t **other, struct hdt_error *why, struct hdt_error *err)
{
    struct hdt_gwclient_request request = {
        .type = "link", .expect = "link.is", .body = json_pack("{s:s}", "site", site)};

    HDT_TRY(hdt_gwclient_ask(client, &request, facts, err));
    request.to = site;
    request.patience = HDT_GWCLIENT_RELAY;
    request.body = json_pack("{s:s}", "site", hdt_gwclient_site(client));
    if (hdt_gwclient_ask(client, &request, other, why) != HDT_OK) {
        *other = NULL;
    }
    return HDT_OK;
}
