/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream under TLS: OpenSSL pumps bytes between buffers, the engine moves the buffers.
 *
 * The SSL object stands on a BIO of our own whose read side is the buffer that the engine received
 * into and whose write side is one of two output buffers: while the engine sends one, SSL_write
 * fills the other. So a system call carries many TLS records (a socket BIO needs one to send and
 * two to receive each), and the price is one copy of the ciphertext in each direction, in cache.
 * OpenSSL's BIO pair was refused: it costs the same copy, its ring cuts sends where it wraps, and
 * it cannot lend one half to the engine while the other is filled.
 *
 * Payload is encrypted from where it lies and decrypted to where place() said.
 */
#include "config.h"

#include "src/net/stream_impl.h"
#include "src/net/tls.h"
#include "src/base/buf.h"

#include <openssl/err.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    IN_CAP = 128 << 10,
    OUT_CAP = 128 << 10,
    DRAIN_MAX = 1 << 20 /* unread bytes thrown away before a close */
};

/* AES-GCM may protect 2^24.5 full records under one key (RFC 8446 section 5.5). We change it three
 * times earlier; a full record has 2^14 bytes. */
#define KEY_RECORDS_MAX (1ull << 23)

struct hdt_stream_tls {
    SSL *ssl;
    BIO_METHOD *method;
    struct hdt_stream_buf out[2];
    uint64_t plain_end[2]; /* bytes of records taken when this buffer was given to the engine */
    unsigned fill;         /* the one that is filled; the other is in flight or empty */
    bool write_pending;    /* SSL_write must be repeated with the same bytes */
    bool has_failed;       /* fatal: no more calls but SSL_free */
    bool has_sniffed;
    uint64_t key_records, key_records_max;
};

/* Key changes of the other end that are borne: some, and one for each KiB that it sends. Ours come
 * every 2^23 records. A flood of them is work without bytes to show for it. */
#define KEY_UPDATES_FREE      64
#define KEY_UPDATES_BYTES_LOG 10

/* OpenSSL says each message of its own protocol. */
static void note_message(int is_written, int version, int type, const void *bytes, size_t len,
                         SSL *ssl, void *user)
{
    struct hdt_stream *stream = user;

    (void)version;
    (void)ssl;
    if (!is_written && type == SSL3_RT_HANDSHAKE && len > 0 &&
        *(const uint8_t *)bytes == SSL3_MT_KEY_UPDATE) {
        stream->stats.recv_key_updates++;
    }
}

/* The BIO. */

static int bio_read(BIO *bio, char *dst, int len)
{
    struct hdt_stream *stream = BIO_get_data(bio);
    struct hdt_stream_buf *in = &stream->in;
    size_t have = in->end - in->start;
    size_t n = (size_t)len < have ? (size_t)len : have;

    BIO_clear_retry_flags(bio);
    if (n == 0) {
        if (stream->recv_eof) {
            return 0;
        }
        BIO_set_retry_read(bio);
        return -1;
    }
    memcpy(dst, in->data + in->start, n);
    in->start += n;
    return (int)n;
}

static int bio_write(BIO *bio, const char *src, int len)
{
    struct hdt_stream *stream = BIO_get_data(bio);
    struct hdt_stream_buf *out = &stream->tls->out[stream->tls->fill];
    size_t room = out->cap - out->end;
    size_t n = (size_t)len < room ? (size_t)len : room;

    BIO_clear_retry_flags(bio);
    if (n == 0) {
        BIO_set_retry_write(bio);
        return -1;
    }
    memcpy(out->data + out->end, src, n);
    out->end += n;
    return (int)n;
}

static long bio_ctrl(BIO *bio, int cmd, long num, void *ptr)
{
    struct hdt_stream *stream = BIO_get_data(bio);

    (void)num;
    (void)ptr;
    switch (cmd) {
    case BIO_CTRL_FLUSH:
        return 1;
    case BIO_CTRL_EOF:
        return stream->recv_eof && stream->in.start == stream->in.end;
    default:
        return 0;
    }
}

static BIO *bio_new(struct hdt_stream *stream)
{
    BIO_METHOD *method = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "hdt stream");
    BIO *bio = NULL;

    stream->tls->method = method;
    if (method && BIO_meth_set_read(method, bio_read) && BIO_meth_set_write(method, bio_write) &&
        BIO_meth_set_ctrl(method, bio_ctrl)) {
        bio = BIO_new(method);
    }
    if (bio) {
        BIO_set_data(bio, stream);
        BIO_set_init(bio, 1);
    }
    return bio;
}

/* Errors. */

/* SSL_get_error wants an empty queue before each call. It nearly always is, and clearing an empty
 * one writes all of its slots. */
static void errors_clear(void)
{
    if (ERR_peek_error() != 0) {
        ERR_clear_error();
    }
}

/* Words for what broke: OpenSSL's error queue holds it, tls.c knows what it means. */
static enum hdt_status tls_error(struct hdt_stream *stream, struct hdt_error *err)
{
    unsigned long code = ERR_peek_error();

    stream->tls->has_failed = true;
    if (code != 0 && ERR_GET_REASON(code) != SSL_R_UNEXPECTED_EOF_WHILE_READING) {
        return hdt_tls_failure(stream->tls->ssl, err);
    }
    ERR_clear_error();
    if (stream->is_up) {
        return hdt_stream_ended(stream, err);
    }
    hdt_error_set(err, HDT_ELINK, "connection closed by the other end during the TLS handshake");
    hdt_error_hint(err, "check that the port is that of an HDT program; its log says why");
    return HDT_ELINK;
}

/* A server that does not speak TLS. Handshake records begin with 22, alerts with 21. */
static enum hdt_status server_sniff(const uint8_t *bytes, size_t len, struct hdt_error *err)
{
    if (bytes[0] == 22 || bytes[0] == 21) {
        return HDT_OK;
    }
    hdt_error_set(err, HDT_EPROTO, "the other end answers with %s, not with TLS",
                  len >= 5 && memcmp(bytes, "HTTP/", 5) == 0  ? "plain HTTP"
                  : len >= 4 && memcmp(bytes, "SSH-", 4) == 0 ? "SSH"
                                                              : "other bytes");
    hdt_error_hint(err, "check address and port: is a gateway's TLS port meant?");
    return HDT_EPROTO;
}

/* Fewer than six bytes tell only that they may be TLS; the handshake takes them or not. */
static enum hdt_status client_sniff(const uint8_t *bytes, size_t len, struct hdt_error *err)
{
    enum hdt_tls_sniff sniff = hdt_tls_sniff(bytes, len);

    if (sniff == HDT_TLS_SNIFF_TLS || (sniff == HDT_TLS_SNIFF_MORE && bytes[0] == 22)) {
        return HDT_OK;
    }
    return hdt_tls_sniff_error(sniff == HDT_TLS_SNIFF_MORE ? HDT_TLS_SNIFF_OTHER : sniff, err);
}

/* What comes first and is no TLS is named; OpenSSL would only say that its version is wrong. */
static enum hdt_status first_bytes_check(struct hdt_stream *stream, struct hdt_error *err)
{
    const struct hdt_stream_buf *in = &stream->in;
    enum hdt_status status = stream->is_client ? server_sniff(in->data, in->end, err)
                                               : client_sniff(in->data, in->end, err);

    stream->tls->has_sniffed = true;
    stream->tls->has_failed = status != HDT_OK;
    return status;
}

/* The carrier. */

static enum hdt_status tls_open(struct hdt_stream *stream, const struct hdt_stream_conf *conf,
                                struct hdt_error *err)
{
    struct hdt_stream_tls *tls = hdt_calloc(1, sizeof(*tls));
    BIO *bio;

    stream->tls = tls;
    tls->key_records_max = conf->key_update_records ? conf->key_update_records : KEY_RECORDS_MAX;
    tls->ssl = SSL_new(conf->ssl_ctx);
    bio = tls->ssl ? bio_new(stream) : NULL;
    if (!bio) {
        unsigned long code = ERR_peek_error();

        ERR_clear_error();
        return hdt_error_set(err, HDT_ENOMEM, "cannot open a TLS stream: %s",
                             ERR_reason_error_string(code));
    }
    SSL_set_bio(tls->ssl, bio, bio);
    SSL_set_msg_callback(tls->ssl, note_message);
    SSL_set_msg_callback_arg(tls->ssl, stream);
    SSL_set_mode(tls->ssl, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_clear_mode(tls->ssl, SSL_MODE_RELEASE_BUFFERS);
    if (conf->is_client) {
        SSL_set_connect_state(tls->ssl);
    } else {
        SSL_set_accept_state(tls->ssl);
    }
    stream->in.data = hdt_malloc(IN_CAP);
    stream->in.cap = IN_CAP;
    for (int i = 0; i < 2; i++) {
        tls->out[i].data = hdt_malloc(OUT_CAP);
        tls->out[i].cap = OUT_CAP;
    }
    return HDT_OK;
}

static void tls_release(struct hdt_stream *stream)
{
    struct hdt_stream_tls *tls = stream->tls;

    if (tls) {
        SSL_free(tls->ssl);
        BIO_meth_free(tls->method);
        free(tls->out[0].data);
        free(tls->out[1].data);
        free(tls);
    }
}

/* HDT_AGAIN when bytes have to come or go first, else the error. */
static enum hdt_status tls_result(struct hdt_stream *stream, int ret, struct hdt_error *err)
{
    switch (SSL_get_error(stream->tls->ssl, ret)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        return HDT_AGAIN;
    case SSL_ERROR_ZERO_RETURN:
        return hdt_stream_ended(stream, err);
    default:
        return tls_error(stream, err);
    }
}

static enum hdt_status tls_handshake(struct hdt_stream *stream, struct hdt_error *err)
{
    int ret;

    errors_clear();
    ret = SSL_do_handshake(stream->tls->ssl);
    return ret == 1 ? HDT_OK : tls_result(stream, ret, err);
}

static enum hdt_status tls_read(struct hdt_stream *stream, void *dst, size_t len, size_t *n,
                                struct hdt_error *err)
{
    struct hdt_stream_tls *tls = stream->tls;
    int ret;

    errors_clear();
    ret = SSL_read_ex(tls->ssl, dst, len, n);
    if (stream->stats.recv_key_updates >
        KEY_UPDATES_FREE + (stream->stats.recv_bytes >> KEY_UPDATES_BYTES_LOG)) {
        ERR_clear_error();
        tls->has_failed = true;
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot read on: the other end changes its key over and over");
    }
    return ret == 1 ? HDT_OK : tls_result(stream, ret, err);
}

static void tls_recv_into(struct hdt_stream *stream, void **buf, size_t *len)
{
    struct hdt_stream_buf *in = &stream->in;

    if (in->start < in->end) {
        *len = 0;
        return;
    }
    in->start = 0;
    in->end = 0;
    *buf = in->data;
    *len = in->cap;
}

static enum hdt_status tls_received(struct hdt_stream *stream, size_t n, struct hdt_error *err)
{
    stream->in.end += n;
    return n > 0 && !stream->tls->has_sniffed ? first_bytes_check(stream, err) : HDT_OK;
}

static enum hdt_status key_update_if_due(struct hdt_stream *stream, struct hdt_error *err)
{
    struct hdt_stream_tls *tls = stream->tls;

    if (tls->key_records < tls->key_records_max || tls->write_pending) {
        return HDT_OK;
    }
    if (SSL_key_update(tls->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) != 1) {
        return tls_error(stream, err);
    }
    tls->key_records = 0;
    return HDT_OK;
}

/* Encrypt runs until the buffer is full. One call makes one TLS record. */
static enum hdt_status tls_fill(struct hdt_stream *stream, struct hdt_error *err)
{
    struct hdt_stream_tls *tls = stream->tls;

    while (stream->is_up) {
        const void *bytes;
        size_t len, n = 0;
        int passed_fd, ret;

        hdt_stream_run(stream, &bytes, &len, &passed_fd);
        if (len == 0) {
            return HDT_OK;
        }
        errors_clear();
        HDT_TRY(key_update_if_due(stream, err));
        ret = SSL_write_ex(tls->ssl, bytes, len, &n);
        tls->write_pending = ret != 1;
        if (ret != 1) {
            enum hdt_status status = tls_result(stream, ret, err);

            return status == HDT_AGAIN ? HDT_OK : status;
        }
        tls->key_records++;
        hdt_stream_taken(stream, n);
    }
    return HDT_OK;
}

static enum hdt_status tls_send(struct hdt_stream *stream, struct hdt_error *err)
{
    struct hdt_stream_tls *tls = stream->tls;

    for (;;) {
        struct hdt_stream_buf *out = &tls->out[tls->fill];

        HDT_TRY(tls_fill(stream, err));
        if (stream->send_busy || out->end == 0) {
            return HDT_OK;
        }
        tls->plain_end[tls->fill] = stream->taken;
        tls->fill ^= 1;
        hdt_stream_submit_send(stream, out->data, out->end, -1);
    }
}

static void tls_was_sent(struct hdt_stream *stream, size_t n)
{
    struct hdt_stream_tls *tls = stream->tls;
    unsigned flying = tls->fill ^ 1;
    struct hdt_stream_buf *out = &tls->out[flying];

    out->start += n;
    if (out->start < out->end) {
        if (!stream->is_closing) {
            hdt_stream_submit_send(stream, out->data + out->start, out->end - out->start, -1);
        }
        return;
    }
    out->start = 0;
    out->end = 0;
    stream->handed = tls->plain_end[flying];
}

/* Whether all of the buffer went out. */
static bool send_now(int fd, const struct hdt_stream_buf *out)
{
    size_t len = out->end - out->start;

    return len == 0 ||
           send(fd, out->data + out->start, len, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)len;
}

/* What is encrypted already, an alert or close_notify, as far as the socket takes them. Bytes that
 * came and were not read are taken from the socket first: closing over them resets the connection,
 * and a reset may overtake our last words. */
static void tls_goodbye(struct hdt_stream *stream)
{
    struct hdt_stream_tls *tls = stream->tls;

    if (stream->is_up && !tls->has_failed && !tls->write_pending) {
        SSL_shutdown(tls->ssl);
        ERR_clear_error();
    }
    if (!send_now(stream->fd, &tls->out[tls->fill ^ 1]) ||
        !send_now(stream->fd, &tls->out[tls->fill])) {
        return;
    }
    shutdown(stream->fd, SHUT_WR);
    for (size_t n_drained = 0; n_drained < DRAIN_MAX;) {
        ssize_t n = recv(stream->fd, stream->in.data, stream->in.cap, MSG_DONTWAIT);

        if (n <= 0) {
            return;
        }
        n_drained += (size_t)n;
    }
}

SSL *hdt_stream_ssl(const struct hdt_stream *stream)
{
    return stream->tls ? stream->tls->ssl : NULL;
}

const struct hdt_stream_carrier hdt_stream_carrier_tls = {.open = tls_open,
                                                          .release = tls_release,
                                                          .handshake = tls_handshake,
                                                          .read = tls_read,
                                                          .recv_into = tls_recv_into,
                                                          .received = tls_received,
                                                          .send = tls_send,
                                                          .was_sent = tls_was_sent,
                                                          .goodbye = tls_goodbye};
