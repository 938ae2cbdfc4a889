/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream without TLS: runs go to the kernel as they are; what arrives is received straight to
 * where place() said once the header is known, and through a small buffer before (headers come in
 * bursts: one system call for many).
 */
#include "config.h"

#include "src/net/stream_impl.h"
#include "src/base/buf.h"

#include <string.h>

enum {
    IN_CAP = 32 << 10,
    DIRECT_MIN = 4096 /* less payload than this goes through the buffer, with the next headers */
};

static enum hdt_status plain_open(struct hdt_stream *stream, const struct hdt_stream_conf *conf,
                                  struct hdt_error *err)
{
    (void)conf;
    (void)err;
    stream->in.data = hdt_malloc(IN_CAP);
    stream->in.cap = IN_CAP;
    return HDT_OK;
}

static void plain_release(struct hdt_stream *stream)
{
    (void)stream;
}

static enum hdt_status plain_handshake(struct hdt_stream *stream, struct hdt_error *err)
{
    (void)stream;
    (void)err;
    return HDT_OK;
}

static enum hdt_status plain_read(struct hdt_stream *stream, void *dst, size_t len, size_t *n,
                                  struct hdt_error *err)
{
    struct hdt_stream_buf *in = &stream->in;
    size_t have = in->end - in->start;

    if (have == 0) {
        return stream->recv_eof ? hdt_stream_ended(stream, err) : HDT_AGAIN;
    }
    *n = len < have ? len : have;
    memcpy(dst, in->data + in->start, *n);
    in->start += *n;
    return HDT_OK;
}

static bool payload_is_direct(const struct hdt_stream *stream)
{
    return stream->step == HDT_STREAM_PAYLOAD && stream->payload != NULL &&
           stream->payload_len - stream->payload_have >= DIRECT_MIN;
}

static void plain_recv_into(struct hdt_stream *stream, void **buf, size_t *len)
{
    struct hdt_stream_buf *in = &stream->in;

    if (in->start < in->end) {
        *len = 0;
        return;
    }
    in->start = 0;
    in->end = 0;
    if (payload_is_direct(stream)) {
        *buf = stream->payload + stream->payload_have;
        *len = stream->payload_len - stream->payload_have;
        return;
    }
    *buf = in->data;
    *len = in->cap;
}

static enum hdt_status plain_received(struct hdt_stream *stream, size_t n, struct hdt_error *err)
{
    (void)err;
    if (stream->recv_io.buf == stream->in.data) {
        stream->in.end += n;
    } else {
        stream->payload_have += n;
    }
    return HDT_OK;
}

static enum hdt_status plain_send(struct hdt_stream *stream, struct hdt_error *err)
{
    const void *bytes;
    size_t len;
    int passed_fd;

    (void)err;
    if (stream->send_busy || !stream->is_up) {
        return HDT_OK;
    }
    hdt_stream_run(stream, &bytes, &len, &passed_fd);
    if (len > 0) {
        hdt_stream_submit_send(stream, bytes, len, passed_fd);
    }
    return HDT_OK;
}

static void plain_was_sent(struct hdt_stream *stream, size_t n)
{
    hdt_stream_taken(stream, n);
    stream->handed = stream->taken;
}

static void plain_goodbye(struct hdt_stream *stream)
{
    (void)stream;
}

const struct hdt_stream_carrier hdt_stream_carrier_plain = {.open = plain_open,
                                                            .release = plain_release,
                                                            .handshake = plain_handshake,
                                                            .read = plain_read,
                                                            .recv_into = plain_recv_into,
                                                            .received = plain_received,
                                                            .send = plain_send,
                                                            .was_sent = plain_was_sent,
                                                            .goodbye = plain_goodbye};
