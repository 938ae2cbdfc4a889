/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/support/dp_stranger.h"
#include "src/base/buf.h"
#include "src/core/deadlines.h"
#include "src/core/msg.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

SSL_CTX *hdt_stranger_ctx(const char *dir)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_method());
    char path[256];

    snprintf(path, sizeof(path), "%s/cert.pem", dir);
    SSL_CTX_use_certificate_chain_file(ctx, path);
    snprintf(path, sizeof(path), "%s/key.pem", dir);
    SSL_CTX_use_PrivateKey_file(ctx, path, SSL_FILETYPE_PEM);
    return ctx;
}

static void be_patient(int fd)
{
    const struct timeval patience = {.tv_sec = 5};

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
}

bool hdt_stranger_connect(struct stranger *stranger, const struct sockaddr_in *sa, SSL_CTX *ctx)
{
    memset(stranger, 0, sizeof(*stranger));
    stranger->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    be_patient(stranger->fd);
    if (connect(stranger->fd, (const struct sockaddr *)sa, sizeof(*sa)) != 0) {
        return false;
    }
    if (ctx == NULL) {
        return true;
    }
    stranger->ssl = SSL_new(ctx);
    SSL_set_fd(stranger->ssl, stranger->fd);
    return SSL_connect(stranger->ssl) == 1;
}

bool hdt_stranger_open(struct stranger *stranger, int port, const char *dir)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    SSL_CTX *ctx = dir != NULL ? hdt_stranger_ctx(dir) : NULL;
    bool ok;

    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ok = hdt_stranger_connect(stranger, &sa, ctx);
    stranger->ctx = ctx;
    return ok;
}

int hdt_stranger_listen(int *port)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in sa = {.sin_family = AF_INET};
    socklen_t len = sizeof(sa);

    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    be_patient(fd);
    if (bind(fd, (const struct sockaddr *)&sa, sizeof(sa)) != 0 || listen(fd, 16) != 0 ||
        getsockname(fd, (struct sockaddr *)&sa, &len) != 0) {
        abort();
    }
    *port = ntohs(sa.sin_port);
    return fd;
}

bool hdt_stranger_accept(struct stranger *stranger, int listen_fd)
{
    memset(stranger, 0, sizeof(*stranger));
    stranger->fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
    be_patient(stranger->fd);
    return stranger->fd >= 0;
}

bool hdt_stranger_greet(struct stranger *stranger, const char *dir)
{
    stranger->ctx = hdt_stranger_ctx(dir);
    stranger->ssl = SSL_new(stranger->ctx);
    SSL_set_fd(stranger->ssl, stranger->fd);
    return SSL_accept(stranger->ssl) == 1;
}

void hdt_stranger_close(struct stranger *stranger)
{
    SSL_free(stranger->ssl);
    SSL_CTX_free(stranger->ctx);
    close(stranger->fd);
}

bool hdt_stranger_write(struct stranger *stranger, const void *bytes, size_t len)
{
    const ssize_t n = stranger->ssl != NULL ? SSL_write(stranger->ssl, bytes, (int)len)
                                            : send(stranger->fd, bytes, len, MSG_NOSIGNAL);

    return n == (ssize_t)len;
}

bool hdt_stranger_read(struct stranger *stranger, void *bytes, size_t len)
{
    uint8_t *at = bytes;

    while (len > 0) {
        const ssize_t n = stranger->ssl != NULL ? SSL_read(stranger->ssl, at, (int)len)
                                                : recv(stranger->fd, at, len, 0);

        if (n <= 0) {
            return false;
        }
        at += n;
        len -= (size_t)n;
    }
    return true;
}

bool hdt_stranger_send(struct stranger *stranger, struct hdt_frame *frame, const void *payload)
{
    uint8_t header[HDT_FRAME_HEADER_LEN];

    frame->version = HDT_FRAME_VERSION;
    hdt_frame_pack(frame, header);
    return hdt_stranger_write(stranger, header, sizeof(header)) &&
           (frame->coded_len == 0 || hdt_stranger_write(stranger, payload, frame->coded_len));
}

bool hdt_stranger_send_msg(struct stranger *stranger, const char *type, json_t *body)
{
    json_t *msg = hdt_msg_new(type, NULL, body);
    struct hdt_frame frame = {.kind = HDT_FRAME_MSG};
    struct hdt_buf bytes = {0};
    bool ok;

    hdt_msg_encode(msg, &bytes);
    frame.coded_len = (uint32_t)bytes.len;
    ok = hdt_stranger_send(stranger, &frame, bytes.data);
    hdt_buf_release(&bytes);
    json_decref(msg);
    return ok;
}

json_t *hdt_stranger_hello(const char *site, int proto, unsigned index)
{
    return json_pack("{s:i,s:s,s:s,s:s,s:s,s:s,s:s,s:i,s:i,s:i,s:i}", "proto", proto, "role",
                     "site", "site", site, "federation", "fed", "instance", "0000000000000abc",
                     "version", "9.9", "session", "0000000000000077", "stream", (int)index,
                     "streams", 1, "chunk", 65536, "progress_timeout_ms",
                     HDT_DEADLINES_KNOB_MIN_MS);
}

const char *hdt_stranger_join(struct stranger *stranger, int port, const char *dir, json_t *hello,
                              json_t **answer)
{
    json_t *msg;
    bool is_welcome;

    if (!hdt_stranger_open(stranger, port, dir) ||
        !hdt_stranger_send_msg(stranger, "hello", hello)) {
        return "";
    }
    msg = hdt_stranger_recv_msg(stranger);
    if (msg == NULL) {
        return "";
    }
    is_welcome = strcmp(hdt_msg_type(msg), "welcome") == 0;
    if (answer != NULL) {
        *answer = json_incref((json_t *)(uintptr_t)hdt_msg_body(msg));
    }
    json_decref(msg);
    return is_welcome ? "welcome" : "refuse";
}

json_t *hdt_stranger_recv_msg(struct stranger *stranger)
{
    uint8_t header[HDT_FRAME_HEADER_LEN];
    uint8_t *payload;
    struct hdt_frame frame;
    json_t *msg = NULL;

    while (hdt_stranger_read(stranger, header, sizeof(header)) &&
           hdt_frame_unpack(header, &frame, NULL) == HDT_OK) {
        payload = hdt_malloc(frame.coded_len + 1);
        if (hdt_stranger_read(stranger, payload, frame.coded_len) && frame.kind == HDT_FRAME_MSG) {
            (void)hdt_msg_decode(payload, frame.coded_len, &msg, NULL);
        }
        free(payload);
        if (msg != NULL) {
            return msg;
        }
    }
    return NULL;
}

bool hdt_stranger_is_dropped(struct stranger *stranger)
{
    json_t *msg;

    while ((msg = hdt_stranger_recv_msg(stranger)) != NULL) {
        json_decref(msg);
    }
    return stranger->ssl == NULL || SSL_get_error(stranger->ssl, 0) != SSL_ERROR_WANT_READ;
}
