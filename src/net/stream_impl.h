/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_NET_STREAM_IMPL_H
#define HDT_NET_STREAM_IMPL_H

/*
 * The inside of a stream, private to src/net: records on one side (stream.c), bytes on a socket on
 * the other (a carrier: stream_plain.c, stream_tls.c).
 *
 *   queue -> staging, payload -> run -> carrier -> engine SEND
 *   engine RECV -> carrier -> header, payload -> place(), record()
 *
 * What is to be sent is one sequence of plaintext bytes. `staged` counts the bytes whose order is
 * fixed, `taken` those that the carrier has copied, encrypted or sent, `handed` those that the
 * kernel has. A record is reported sent when `handed` passes its end.
 */
#include "src/net/stream.h"

enum {
    HDT_STREAM_STAGE_CAP = 16384, /* headers and small payloads; one full TLS record */
    HDT_STREAM_SMALL_MAX = 4096   /* payloads up to this are copied to the staging buffer */
};

/* Bytes [start, end) of data are in use. */
struct hdt_stream_buf {
    uint8_t *data;
    size_t cap, start, end;
};

enum hdt_stream_step {
    HDT_STREAM_HEADER,  /* collecting 64 bytes */
    HDT_STREAM_PLACE,   /* place() is to be asked */
    HDT_STREAM_PAYLOAD, /* filling its buffer */
};

struct hdt_stream_queue {
    struct hdt_record *first, *last;
};

/* How bytes travel. Statuses other than HDT_OK and HDT_AGAIN close the stream. */
struct hdt_stream_carrier {
    enum hdt_status (*open)(struct hdt_stream *stream, const struct hdt_stream_conf *conf,
                            struct hdt_error *err);
    void (*release)(struct hdt_stream *stream);
    /* HDT_OK: records may flow; HDT_AGAIN: more bytes have to come and go before. */
    enum hdt_status (*handshake)(struct hdt_stream *stream, struct hdt_error *err);
    /* Next bytes of the record sequence that have arrived (*n > 0), or HDT_AGAIN. */
    enum hdt_status (*read)(struct hdt_stream *stream, void *dst, size_t len, size_t *n,
                            struct hdt_error *err);
    /* Where the engine is to receive; *len 0: nowhere now. */
    void (*recv_into)(struct hdt_stream *stream, void **buf, size_t *len);
    enum hdt_status (*received)(struct hdt_stream *stream, size_t n, struct hdt_error *err);
    /* Take runs as far as there is room and submit a SEND when none is in flight. */
    enum hdt_status (*send)(struct hdt_stream *stream, struct hdt_error *err);
    void (*was_sent)(struct hdt_stream *stream, size_t n);
    /* Last words on a socket with no io in flight; never blocks. */
    void (*goodbye)(struct hdt_stream *stream);
};

extern const struct hdt_stream_carrier hdt_stream_carrier_plain;
extern const struct hdt_stream_carrier hdt_stream_carrier_tls;

struct hdt_stream_tls;

struct hdt_stream {
    struct hdt_engine *engine;
    int fd;
    char *name;
    struct hdt_stream_events events;
    void *user;
    const struct hdt_stream_carrier *carrier;
    struct hdt_stream_tls *tls; /* NULL when plain */
    bool is_client, foreign_lengths_are_frames;
    int64_t handshake_timeout_us;
    struct hdt_stream_stats stats;

    bool is_up, is_closing;
    struct hdt_error why;
    struct hdt_task kick; /* does in the engine's loop what send, resume and close ask for */
    bool is_kicked, is_pumping;
    struct hdt_timer deadline; /* of the handshake */

    /* Receiving. */
    struct hdt_io recv_io;
    bool recv_busy, recv_eof;
    bool is_blocked; /* place said HDT_AGAIN, or the owner paused it */
    struct hdt_stream_buf in;
    enum hdt_stream_step step;
    uint8_t header[HDT_FRAME_HEADER_LEN];
    size_t header_len;
    struct hdt_frame frame;
    uint8_t *payload;
    size_t payload_len, payload_have;
    int passed_fd; /* came along, for the POOL record that it belongs to */

    /* Sending. */
    struct hdt_io send_io;
    bool send_busy, want_due;
    int send_errno; /* the socket takes nothing any more; what it still gives says why */
    size_t low_water;
    struct hdt_stream_queue urgent, normal; /* not begun */
    struct hdt_stream_queue begun;          /* staged or being taken, in order */
    struct hdt_stream_buf stage;
    int stage_fd; /* descriptor to pass with the first staged byte, or -1 */
    const struct hdt_record *payload_record; /* its payload follows the staged bytes, or NULL */
    size_t payload_off;
    uint64_t queued, staged, taken, handed;
};

/* The next bytes to send, in one piece; *len 0: none. *passed_fd rides on the first byte. */
void hdt_stream_run(struct hdt_stream *stream, const void **bytes, size_t *len, int *passed_fd);
/* The carrier is done with the first n bytes of that run. */
void hdt_stream_taken(struct hdt_stream *stream, size_t n);

void hdt_stream_submit_send(struct hdt_stream *stream, const void *bytes, size_t len,
                            int passed_fd);

/* The other end has closed: the error that says whether it did so within a record. */
enum hdt_status hdt_stream_ended(const struct hdt_stream *stream, struct hdt_error *err);

#endif /* HDT_NET_STREAM_IMPL_H */
