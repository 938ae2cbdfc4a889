/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_NET_STREAM_H
#define HDT_NET_STREAM_H

/*
 * A stream: one connection that carries records (a 64-byte header of src/core/frame.h, then
 * payload), plain (Unix socket) or under TLS. It lives on one engine and its thread.
 *
 * Sending: the caller owns the records and their payload until `sent` (all bytes handed to the
 * kernel) or until the stream closes (then every record not reported sent comes back through
 * `sent` with ok = false before `closed`). Payload is read in place: no copy but encryption's.
 * Receiving: the payload goes where the owner says (a granted slot, a pool buffer): TLS decrypts
 * straight to it. A stream allocates only when it is opened.
 */
#include "src/base/error.h"
#include "src/core/frame.h"
#include "src/net/engine.h"

#include <openssl/ssl.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_stream;

struct hdt_record {
    struct hdt_frame frame;
    const void *payload; /* payload_len bytes, may be NULL when 0 */
    size_t payload_len;
    int passed_fd; /* POOL records on Unix sockets: descriptor to pass with the header; else -1 */
    void *user;
    struct hdt_record *next_; /* private while queued */
    uint64_t end_;
};

struct hdt_stream_events {
    /* TLS handshake done (or at once when plain): records may flow. */
    void (*up)(struct hdt_stream *stream, void *user);
    /* A header arrived and passed hdt_frame_unpack; `payload_len` bytes follow (> 0). Say where
     * they go in *buf; NULL: they are read and forgotten. HDT_AGAIN: no room now, reading stops
     * until hdt_stream_resume, then asked again. Another status closes the stream with *err. */
    enum hdt_status (*place)(struct hdt_stream *stream, void *user, const struct hdt_frame *frame,
                             size_t payload_len, void **buf, struct hdt_error *err);
    /* A whole record arrived; buf as given by place (NULL without payload or where forgotten);
     * passed_fd is the callee's to close (-1: none). A status other than HDT_OK closes the stream
     * with *err. */
    enum hdt_status (*record)(struct hdt_stream *stream, void *user, const struct hdt_frame *frame,
                              void *buf, int passed_fd, struct hdt_error *err);
    /* The queue fell below the low-water mark: give more records (pull model). Also once after
     * `up`. Not called again before bytes have left: who has nothing to give now sends later. */
    void (*want)(struct hdt_stream *stream, void *user);
    void (*sent)(struct hdt_stream *stream, void *user, struct hdt_record *record, bool ok);
    /* The last call for this stream; err says why (HDT_OK status: closed by hdt_stream_close). A
     * place() buffer whose payload was incomplete may be reused. The stream is freed afterwards. */
    void (*closed)(struct hdt_stream *stream, void *user, const struct hdt_error *err);
};

struct hdt_stream_conf {
    SSL_CTX *ssl_ctx;                /* NULL: plain. Its verify settings decide who may speak */
    bool is_client;                  /* TLS side */
    const char *name;                /* for messages: "peer site-b stream 2"; copied */
    size_t low_water;                /* bytes queued below which `want` is called; 0 = 256 KiB */
    bool foreign_lengths_are_frames; /* DATA records carry frame_len bytes (TCP link to a worker);
                                        else a DATA record has no payload (shared memory) */
    int64_t handshake_timeout_us;    /* 0 = 10 s */
    uint64_t key_update_records;     /* TLS records sent under one key; 0 = 2^23 */
};

/* Take the connected (or connecting: see addr.h) socket `fd`; it is owned by the stream from here,
 * also on failure. *stream is valid until `closed`. The handshake begins in the engine's loop:
 * until then hdt_tls_expect may be called on hdt_stream_ssl. HDT_ENOMEM (also when some two
 * thousand handshakes are under way on this engine). */
enum hdt_status hdt_stream_open(struct hdt_engine *engine, int fd,
                                const struct hdt_stream_conf *conf,
                                const struct hdt_stream_events *events, void *user,
                                struct hdt_stream **stream, struct hdt_error *err);

/* Queue a record; never blocks, never copies, calls no event. `urgent`: before what is queued and
 * not begun. payload_len is what the frame's kind says (coded_len, len or frame_len; asserted). On
 * a stream that is closing the record comes back through `sent` with ok = false. */
void hdt_stream_send(struct hdt_stream *stream, struct hdt_record *record, bool urgent);

/* From inside `record` only: read nothing more until hdt_stream_resume. */
void hdt_stream_pause(struct hdt_stream *stream);

/* Read on after `place` said HDT_AGAIN (it is asked again from the loop) or after
 * hdt_stream_pause. No effect otherwise. */
void hdt_stream_resume(struct hdt_stream *stream);

/* Close; `closed` follows from the engine's loop, never synchronously. why may be NULL. */
void hdt_stream_close(struct hdt_stream *stream, const struct hdt_error *why);

size_t hdt_stream_queued_bytes(const struct hdt_stream *stream);
SSL *hdt_stream_ssl(const struct hdt_stream *stream); /* NULL when plain */
int hdt_stream_fd(const struct hdt_stream *stream);
const char *hdt_stream_name(const struct hdt_stream *stream);

struct hdt_stream_stats {
    uint64_t sent_bytes, recv_bytes; /* on the socket, TLS included */
    uint64_t sent_records, recv_records;
    uint64_t recv_key_updates;          /* of TLS */
    int64_t last_recv_us, last_sent_us; /* monotonic clock; signs of life */
};
void hdt_stream_stats(const struct hdt_stream *stream, struct hdt_stream_stats *stats);

#ifdef __cplusplus
}
#endif
#endif /* HDT_NET_STREAM_H */
