/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records over a connection: what is the same with and without TLS.
 *
 * All work happens in two places of the engine's loop: when an io has finished, and in the `kick`
 * task that send, resume and close post. So no event of the owner's ever runs inside a call of the
 * owner's, and records queued one by one in one round leave together: headers and small payloads
 * are gathered in a staging buffer of one TLS record, large payloads are read in place.
 *
 * A stream that fails cancels its ios and waits for them; only then come the records back, `closed`
 * is called and the memory goes. A failed send alone does not end the stream while a receive is
 * pending: what the other end said before it closed (a TLS alert) is a better reason than EPIPE.
 */
#include "config.h"

#include "src/net/stream_impl.h"
#include "src/net/engine_impl.h"
#include "src/base/buf.h"
#include "src/base/clock.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define LOW_WATER_DEFAULT    (256u << 10)
#define HANDSHAKE_US_DEFAULT (10 * HDT_US_PER_S)

/* Queues of records. */

static void queue_append(struct hdt_stream_queue *queue, struct hdt_record *record)
{
    record->next_ = NULL;
    if (queue->last) {
        queue->last->next_ = record;
    } else {
        queue->first = record;
    }
    queue->last = record;
}

static struct hdt_record *queue_pop(struct hdt_stream_queue *queue)
{
    struct hdt_record *record = queue->first;

    if (record) {
        queue->first = record->next_;
        queue->last = queue->first ? queue->last : NULL;
    }
    return record;
}

/* How many bytes follow the header of `frame` on this stream. */
static size_t frame_payload_len(const struct hdt_stream *stream, const struct hdt_frame *frame)
{
    switch ((enum hdt_frame_kind)frame->kind) {
    case HDT_FRAME_MSG:
    case HDT_FRAME_CHUNK:
        return frame->coded_len;
    case HDT_FRAME_PROBE:
        return frame->len;
    case HDT_FRAME_DATA:
        return stream->foreign_lengths_are_frames ? frame->frame_len : 0;
    default:
        return 0;
    }
}

static void stream_kick(struct hdt_stream *stream)
{
    if (!stream->is_kicked && !stream->is_pumping) {
        stream->is_kicked = true;
        hdt_engine_post(stream->engine, &stream->kick);
    }
}

/* Begin to close. `why` NULL: nobody's fault. */
static void stream_fail(struct hdt_stream *stream, const struct hdt_error *why)
{
    if (stream->is_closing) {
        return;
    }
    stream->is_closing = true;
    if (why) {
        stream->why = *why;
        if (stream->why.status != HDT_OK && stream->why.where[0] == '\0') {
            hdt_error_where(&stream->why, "%s", stream->name);
        }
    }
    hdt_engine_cancel(stream->engine, &stream->recv_io);
    hdt_engine_cancel(stream->engine, &stream->send_io);
    if (!stream->is_kicked) {
        stream->is_kicked = true;
        hdt_engine_post(stream->engine, &stream->kick);
    }
}

static void stream_fail_errno(struct hdt_stream *stream, int errno_value)
{
    struct hdt_error err = {0};

    hdt_error_set_errno(&err, HDT_ELINK, errno_value, "connection lost");
    stream_fail(stream, &err);
}

enum hdt_status hdt_stream_ended(const struct hdt_stream *stream, struct hdt_error *err)
{
    if (stream->step == HDT_STREAM_PAYLOAD) {
        return hdt_error_set(err, HDT_ELINK,
                             "connection closed by the other end in the middle of a record: %zu of "
                             "%zu bytes of its payload arrived",
                             stream->payload_have, stream->payload_len);
    }
    if (stream->header_len > 0) {
        return hdt_error_set(err, HDT_ELINK,
                             "connection closed by the other end in the middle of a record: %zu of "
                             "%d bytes of its header arrived",
                             stream->header_len, HDT_FRAME_HEADER_LEN);
    }
    return hdt_error_set(err, HDT_ELINK, "connection closed by the other end");
}

/* Receiving. */

/* Bytes that are no record at the very beginning: say what they are, where that can be known. */
static void header_error_hint(const struct hdt_stream *stream, struct hdt_error *err)
{
    if (stream->stats.recv_records > 0 || stream->tls) {
        return;
    }
    if (stream->header[0] == 0x16 && stream->header[1] == 0x03) {
        hdt_error_hint(err, "the other end speaks TLS and this socket does not: check its address");
    } else if (memcmp(stream->header, "GET ", 4) == 0 || memcmp(stream->header, "POST", 4) == 0) {
        hdt_error_hint(err, "the other end speaks HTTP: check its address");
    }
}

static enum hdt_status header_complete(struct hdt_stream *stream, struct hdt_error *err)
{
    enum hdt_status status = hdt_frame_unpack(stream->header, &stream->frame, err);

    if (status != HDT_OK) {
        header_error_hint(stream, err);
        return status;
    }
    stream->payload_len = frame_payload_len(stream, &stream->frame);
    stream->payload_have = 0;
    stream->payload = NULL;
    stream->step = stream->payload_len > 0 ? HDT_STREAM_PLACE : HDT_STREAM_PAYLOAD;
    return HDT_OK;
}

static enum hdt_status payload_place(struct hdt_stream *stream, struct hdt_error *err)
{
    void *buf = NULL;
    enum hdt_status status =
        stream->events.place(stream, stream->user, &stream->frame, stream->payload_len, &buf, err);

    if (status == HDT_OK) {
        stream->payload = buf;
        stream->step = HDT_STREAM_PAYLOAD;
    }
    stream->is_blocked = status == HDT_AGAIN;
    return status;
}

/* More of the payload, to its place; what nobody wants is read all the same. */
static enum hdt_status payload_read(struct hdt_stream *stream, struct hdt_error *err)
{
    uint8_t forgotten[4096];
    size_t left = stream->payload_len - stream->payload_have, n = 0;
    void *to = forgotten;

    if (stream->payload) {
        to = stream->payload + stream->payload_have;
    } else if (left > sizeof(forgotten)) {
        left = sizeof(forgotten);
    }
    HDT_TRY(stream->carrier->read(stream, to, left, &n, err));
    stream->payload_have += n;
    return HDT_OK;
}

static enum hdt_status record_complete(struct hdt_stream *stream, struct hdt_error *err)
{
    struct hdt_frame frame = stream->frame;
    int passed_fd = -1;

    if (frame.kind == HDT_FRAME_MSG && frame.xxh3 != 0 &&
        frame.xxh3 != XXH3_64bits(stream->payload, stream->payload_len)) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot accept a message of %zu bytes: it was damaged on its way",
                             stream->payload_len);
    }

    if (frame.kind == HDT_FRAME_POOL) {
        passed_fd = stream->passed_fd;
        stream->passed_fd = -1;
    }
    stream->step = HDT_STREAM_HEADER;
    stream->header_len = 0;
    stream->stats.recv_records++;
    return stream->events.record(stream, stream->user, &frame, stream->payload, passed_fd, err);
}

/* One step: HDT_OK when something moved. */
static enum hdt_status receive_step(struct hdt_stream *stream, struct hdt_error *err)
{
    size_t n = 0;

    switch (stream->step) {
    case HDT_STREAM_HEADER:
        HDT_TRY(stream->carrier->read(stream, stream->header + stream->header_len,
                                      HDT_FRAME_HEADER_LEN - stream->header_len, &n, err));
        stream->header_len += n;
        return stream->header_len == HDT_FRAME_HEADER_LEN ? header_complete(stream, err) : HDT_OK;
    case HDT_STREAM_PLACE:
        return payload_place(stream, err);
    case HDT_STREAM_PAYLOAD:
        if (stream->payload_have == stream->payload_len) {
            return record_complete(stream, err);
        }
        return payload_read(stream, err);
    }
    return HDT_EPROTO;
}

static void stream_receive(struct hdt_stream *stream)
{
    struct hdt_error err = {0};
    enum hdt_status status = HDT_OK;

    while (status == HDT_OK && !stream->is_blocked && !stream->is_closing) {
        status = receive_step(stream, &err);
    }
    if (status != HDT_OK && status != HDT_AGAIN) {
        err.status = status;
        stream_fail(stream, &err);
    }
}

static void stream_submit_recv(struct hdt_stream *stream)
{
    void *buf = NULL;
    size_t len = 0;

    if (stream->recv_busy || stream->recv_eof || stream->is_blocked || stream->is_closing) {
        return;
    }
    stream->carrier->recv_into(stream, &buf, &len);
    if (len > 0) {
        stream->recv_io.buf = buf;
        stream->recv_io.len = len;
        stream->recv_busy = true;
        hdt_engine_submit(stream->engine, &stream->recv_io);
    }
}

/* Sending. */

static void stage_record(struct hdt_stream *stream, struct hdt_record *record)
{
    struct hdt_stream_buf *stage = &stream->stage;

    if (record->frame.kind == HDT_FRAME_MSG) {
        record->frame.xxh3 = XXH3_64bits(record->payload, record->payload_len);
    }
    hdt_frame_pack(&record->frame, stage->data + stage->end);
    stage->end += HDT_FRAME_HEADER_LEN;
    if (record->payload_len > HDT_STREAM_SMALL_MAX) {
        stream->payload_record = record;
        stream->payload_off = 0;
    } else if (record->payload_len > 0) {
        memcpy(stage->data + stage->end, record->payload, record->payload_len);
        stage->end += record->payload_len;
    }
    stream->staged += HDT_FRAME_HEADER_LEN + record->payload_len;
    record->end_ = stream->staged;
    queue_append(&stream->begun, record);
}

/* Gather records until the buffer is full or a large payload has to follow. */
static void stage_fill(struct hdt_stream *stream)
{
    struct hdt_stream_buf *stage = &stream->stage;

    stage->start = 0;
    stage->end = 0;
    while (!stream->payload_record) {
        struct hdt_stream_queue *queue = stream->urgent.first ? &stream->urgent : &stream->normal;
        struct hdt_record *record = queue->first;

        if (!record || stage->end + HDT_FRAME_HEADER_LEN + HDT_STREAM_SMALL_MAX > stage->cap) {
            return;
        }
        if (record->passed_fd >= 0) {
            /* The kernel ties a descriptor to the first byte of a send. */
            if (stage->end > 0) {
                return;
            }
            stream->stage_fd = record->passed_fd;
        }
        stage_record(stream, queue_pop(queue));
    }
}

void hdt_stream_run(struct hdt_stream *stream, const void **bytes, size_t *len, int *passed_fd)
{
    struct hdt_stream_buf *stage = &stream->stage;

    if (stage->start == stage->end && !stream->payload_record) {
        stage_fill(stream);
    }
    *passed_fd = stream->stage_fd;
    if (stage->start < stage->end) {
        *bytes = stage->data + stage->start;
        *len = stage->end - stage->start;
    } else if (stream->payload_record) {
        *bytes = (const uint8_t *)stream->payload_record->payload + stream->payload_off;
        *len = stream->payload_record->payload_len - stream->payload_off;
    } else {
        *bytes = NULL;
        *len = 0;
    }
}

void hdt_stream_taken(struct hdt_stream *stream, size_t n)
{
    struct hdt_stream_buf *stage = &stream->stage;

    stream->taken += n;
    stream->want_due = true;
    stream->stage_fd = -1;
    if (stage->start < stage->end) {
        stage->start += n;
        HDT_ASSERT(stage->start <= stage->end);
        return;
    }
    stream->payload_off += n;
    HDT_ASSERT(stream->payload_off <= stream->payload_record->payload_len);
    if (stream->payload_off == stream->payload_record->payload_len) {
        stream->payload_record = NULL;
    }
}

void hdt_stream_submit_send(struct hdt_stream *stream, const void *bytes, size_t len, int passed_fd)
{
    HDT_ASSERT(!stream->send_busy);
    stream->send_io.buf = (void *)(uintptr_t)bytes;
    stream->send_io.len = len;
    stream->send_io.passed_fd = passed_fd;
    stream->send_busy = true;
    hdt_engine_submit(stream->engine, &stream->send_io);
}

static void report_sent(struct hdt_stream *stream)
{
    while (stream->begun.first && stream->begun.first->end_ <= stream->handed) {
        stream->stats.sent_records++;
        stream->events.sent(stream, stream->user, queue_pop(&stream->begun), true);
    }
}

/* Give the carrier what it can take and ask the owner for more as the queue runs low. */
static void stream_send(struct hdt_stream *stream)
{
    struct hdt_error err = {0};

    while (!stream->is_closing && stream->send_errno == 0) {
        enum hdt_status status = stream->carrier->send(stream, &err);

        if (status != HDT_OK) {
            stream_fail(stream, &err);
            return;
        }
        if (!stream->is_up || !stream->want_due ||
            stream->queued - stream->taken >= stream->low_water) {
            return;
        }
        stream->want_due = false;
        stream->events.want(stream, stream->user);
        if (!stream->urgent.first && !stream->normal.first) {
            return;
        }
    }
}

/* The life of a stream. */

static void stream_handshake(struct hdt_stream *stream)
{
    struct hdt_error err = {0};
    enum hdt_status status = stream->carrier->handshake(stream, &err);

    if (status == HDT_AGAIN) {
        return;
    }
    if (status != HDT_OK) {
        stream_fail(stream, &err);
        return;
    }
    hdt_engine_timer_disarm(stream->engine, &stream->deadline);
    stream->is_up = true;
    stream->want_due = true;
    stream->events.up(stream, stream->user);
}

/* Move all that can move. */
static void stream_pump(struct hdt_stream *stream)
{
    stream->is_pumping = true;
    if (!stream->is_up && !stream->is_closing) {
        stream_handshake(stream);
    }
    if (stream->is_up && !stream->recv_busy) {
        stream_receive(stream);
    }
    stream_send(stream);
    stream_submit_recv(stream);
    stream->is_pumping = false;
}

static void stream_free(struct hdt_stream *stream)
{
    stream->carrier->release(stream);
    free(stream->in.data);
    free(stream->stage.data);
    free(stream->name);
    free(stream);
}

static void return_records(struct hdt_stream *stream)
{
    struct hdt_record *record;

    while ((record = queue_pop(&stream->begun)) || (record = queue_pop(&stream->urgent)) ||
           (record = queue_pop(&stream->normal))) {
        stream->events.sent(stream, stream->user, record, false);
    }
}

static void stream_finish(struct hdt_stream *stream)
{
    hdt_engine_timer_disarm(stream->engine, &stream->deadline);
    if (stream->send_errno == 0) {
        stream->carrier->goodbye(stream);
    }
    if (stream->passed_fd >= 0) {
        close(stream->passed_fd);
    }
    hdt_engine_forget(stream->engine, stream->fd);
    close(stream->fd);
    return_records(stream);
    stream->events.closed(stream, stream->user, &stream->why);
    stream_free(stream);
}

static void kick_run(struct hdt_engine *engine, struct hdt_task *task)
{
    struct hdt_stream *stream =
        (struct hdt_stream *)((char *)task - offsetof(struct hdt_stream, kick));

    (void)engine;
    stream->is_kicked = false;
    if (!stream->is_closing) {
        stream_pump(stream);
    }
    /* A pump that failed has kicked again. */
    if (stream->is_closing && !stream->is_kicked && !stream->recv_busy && !stream->send_busy) {
        stream_finish(stream);
    }
}

/* A descriptor that came along: kept for the POOL record it belongs to; one at a time. */
static void keep_passed_fd(struct hdt_stream *stream, int fd)
{
    struct hdt_error err = {0};

    if (fd < 0) {
        return;
    }
    if (stream->passed_fd < 0) {
        stream->passed_fd = fd;
        return;
    }
    close(fd);
    hdt_error_set(&err, HDT_EPROTO, "cannot take a second descriptor before its POOL record");
    stream_fail(stream, &err);
}

static void recv_done(struct hdt_engine *engine, struct hdt_io *io, int64_t result)
{
    struct hdt_stream *stream = io->user;
    struct hdt_error err = {0};

    (void)engine;
    stream->recv_busy = false;
    if (result >= 0) {
        keep_passed_fd(stream, io->passed_fd);
    }
    if (stream->is_closing) {
        stream_kick(stream);
        return;
    }
    if (result < 0) {
        stream_fail_errno(stream, stream->send_errno ? stream->send_errno : (int)-result);
        return;
    }
    if (result > 0) {
        stream->stats.recv_bytes += (uint64_t)result;
        stream->stats.last_recv_us = hdt_clock_now_us();
    }
    stream->recv_eof = result == 0;
    if (stream->carrier->received(stream, (size_t)result, &err) != HDT_OK) {
        stream_fail(stream, &err);
        return;
    }
    stream_pump(stream);
}

static void send_done(struct hdt_engine *engine, struct hdt_io *io, int64_t result)
{
    struct hdt_stream *stream = io->user;

    (void)engine;
    stream->send_busy = false;
    if (result > 0) {
        stream->stats.sent_bytes += (uint64_t)result;
        stream->stats.last_sent_us = hdt_clock_now_us();
        stream->carrier->was_sent(stream, (size_t)result);
    }
    if (stream->is_closing) {
        stream_kick(stream);
        return;
    }
    if (result < 0) {
        stream->send_errno = (int)-result;
        if (!stream->recv_busy) {
            stream_fail_errno(stream, stream->send_errno);
        }
        return;
    }
    stream->is_pumping = true;
    report_sent(stream);
    stream->is_pumping = false;
    stream_pump(stream);
}

static void deadline_fire(struct hdt_engine *engine, struct hdt_timer *timer)
{
    struct hdt_stream *stream = timer->user;
    struct hdt_error err = {0};

    (void)engine;
    hdt_error_set(&err, HDT_ETIMEDOUT, "cannot finish the TLS handshake: no end after %.1f s, %s",
                  (double)stream->handshake_timeout_us / HDT_US_PER_S,
                  stream->stats.recv_bytes > 0 ? "the other end fell silent"
                                               : "the other end said nothing");
    hdt_error_hint(&err, "check that the port is that of an HDT program, and for a firewall that "
                         "swallows large packets");
    stream_fail(stream, &err);
}

static void stream_init(struct hdt_stream *stream, const struct hdt_stream_conf *conf)
{
    stream->name = hdt_strdup(conf->name ? conf->name : "stream");
    stream->carrier = conf->ssl_ctx ? &hdt_stream_carrier_tls : &hdt_stream_carrier_plain;
    stream->is_client = conf->is_client;
    stream->foreign_lengths_are_frames = conf->foreign_lengths_are_frames;
    stream->low_water = conf->low_water ? conf->low_water : LOW_WATER_DEFAULT;
    stream->handshake_timeout_us =
        conf->handshake_timeout_us ? conf->handshake_timeout_us : HANDSHAKE_US_DEFAULT;
    stream->stage.data = hdt_malloc(HDT_STREAM_STAGE_CAP);
    stream->stage.cap = HDT_STREAM_STAGE_CAP;
    stream->stage_fd = -1;
    stream->passed_fd = -1;
    stream->recv_io = (struct hdt_io){
        .kind = HDT_IO_RECV, .fd = stream->fd, .passed_fd = -1, .done = recv_done, .user = stream};
    stream->send_io = (struct hdt_io){
        .kind = HDT_IO_SEND, .fd = stream->fd, .passed_fd = -1, .done = send_done, .user = stream};
    stream->kick.run = kick_run;
    stream->deadline.fire = deadline_fire;
    stream->deadline.user = stream;
    stream->stats.last_recv_us = hdt_clock_now_us();
    stream->stats.last_sent_us = stream->stats.last_recv_us;
}

enum hdt_status hdt_stream_open(struct hdt_engine *engine, int fd,
                                const struct hdt_stream_conf *conf,
                                const struct hdt_stream_events *events, void *user,
                                struct hdt_stream **stream, struct hdt_error *err)
{
    struct hdt_stream *s = hdt_calloc(1, sizeof(*s));
    enum hdt_status status;

    s->engine = engine;
    s->fd = fd;
    s->events = *events;
    s->user = user;
    stream_init(s, conf);
    status = s->carrier->open(s, conf, err);
    /* Strangers may connect as they like: they get half of the timers. */
    if (status == HDT_OK && s->tls && hdt_engine_timers_left(engine) < HDT_ENGINE_TIMERS_MAX / 2) {
        status = hdt_error_set(err, HDT_ENOMEM,
                               "cannot open a TLS stream: too many handshakes are under way");
    }
    if (status != HDT_OK) {
        close(fd);
        stream_free(s);
        return status;
    }
    hdt_engine_forget(engine, fd);
    if (s->tls) {
        hdt_engine_timer_arm(engine, &s->deadline, hdt_clock_now_us() + s->handshake_timeout_us);
    }
    stream_kick(s);
    *stream = s;
    return HDT_OK;
}

void hdt_stream_send(struct hdt_stream *stream, struct hdt_record *record, bool urgent)
{
    HDT_ASSERT(record->payload_len == frame_payload_len(stream, &record->frame));
    HDT_ASSERT(record->passed_fd < 0 || (record->frame.kind == HDT_FRAME_POOL && !stream->tls));
    record->frame.version = HDT_FRAME_VERSION;
    queue_append(urgent ? &stream->urgent : &stream->normal, record);
    stream->queued += HDT_FRAME_HEADER_LEN + record->payload_len;
    if (stream->is_up) {
        stream_kick(stream);
    }
}

void hdt_stream_pause(struct hdt_stream *stream)
{
    stream->is_blocked = true;
}

void hdt_stream_resume(struct hdt_stream *stream)
{
    if (stream->is_blocked) {
        stream->is_blocked = false;
        stream_kick(stream);
    }
}

void hdt_stream_close(struct hdt_stream *stream, const struct hdt_error *why)
{
    stream_fail(stream, why);
}

size_t hdt_stream_queued_bytes(const struct hdt_stream *stream)
{
    return stream->queued - stream->taken;
}

int hdt_stream_fd(const struct hdt_stream *stream)
{
    return stream->fd;
}

const char *hdt_stream_name(const struct hdt_stream *stream)
{
    return stream->name;
}

void hdt_stream_stats(const struct hdt_stream *stream, struct hdt_stream_stats *stats)
{
    *stats = stream->stats;
}
