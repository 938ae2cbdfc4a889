/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/net/gwlink.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/core/msg.h"
#include "src/net/addr.h"
#include "src/net/tls.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BACKOFF_MIN_US (100 * HDT_US_PER_MS)

struct link_msg {
    struct hdt_record record;
    struct hdt_buf bytes;
    bool once;
    struct link_msg *next;
};

struct msg_queue {
    struct link_msg *head, *tail;
};

struct hdt_gwlink {
    struct hdt_engine *engine;
    char *address;
    struct hdt_tls_ctx *tls;
    const char *remedy;
    struct hdt_gwlink_events events;
    void *user;
    const struct hdt_link_ops *ops;
    struct hdt_stream *stream;
    struct hdt_io connect_io;
    struct hdt_timer timer; /* next dial, the end of a handshake, or that of the grace on close */
    struct hdt_addr addr;
    int fd; /* while connecting */
    struct hdt_deadlines deadlines;
    int64_t backoff_us, opened_us;
    bool connecting, up, said_down, closing, ending, ended;
    unsigned n_queued;          /* messages on the stream */
    struct msg_queue waiting;   /* no connection has them */
    struct msg_queue came_back; /* from the one that just broke */
    struct hdt_buf recv;
};

static void link_dial(struct hdt_gwlink *link);

/* ---- messages ---- */

static void queue_add(struct msg_queue *queue, struct link_msg *msg)
{
    msg->next = NULL;
    if (queue->tail) {
        queue->tail->next = msg;
    } else {
        queue->head = msg;
    }
    queue->tail = msg;
}

static struct link_msg *queue_take(struct msg_queue *queue)
{
    struct link_msg *msg = queue->head;

    if (msg) {
        queue->head = msg->next;
        queue->tail = queue->head ? queue->tail : NULL;
    }
    return msg;
}

/* `bytes` is taken over and emptied. */
static struct link_msg *link_msg_new(struct hdt_buf *bytes, bool once)
{
    struct link_msg *msg = hdt_calloc(1, sizeof(*msg));
    struct hdt_frame *frame = &msg->record.frame;

    msg->bytes = *bytes;
    hdt_buf_init(bytes);
    frame->version = HDT_FRAME_VERSION;
    frame->kind = HDT_FRAME_MSG;
    frame->prio = HDT_PRIO_CONTROL;
    frame->coded_len = (uint32_t)msg->bytes.len;
    msg->record.payload = msg->bytes.data;
    msg->record.payload_len = msg->bytes.len;
    msg->record.passed_fd = -1;
    msg->record.user = msg;
    msg->once = once;
    return msg;
}

static void link_msg_free(struct link_msg *msg)
{
    hdt_buf_release(&msg->bytes);
    free(msg);
}

static void link_msg_send(struct hdt_gwlink *link, struct link_msg *msg)
{
    link->n_queued++;
    hdt_stream_send(link->stream, &msg->record, false);
}

bool hdt_gwlink_is_up(const struct hdt_gwlink *link)
{
    return link->up && link->stream && !link->closing;
}

void hdt_gwlink_say_encoded(struct hdt_gwlink *link, struct hdt_buf *bytes, bool once)
{
    struct link_msg *msg = link_msg_new(bytes, once);

    if (hdt_gwlink_is_up(link)) {
        link_msg_send(link, msg);
    } else if (once) {
        link_msg_free(msg);
    } else {
        queue_add(&link->waiting, msg);
    }
}

void hdt_gwlink_say(struct hdt_gwlink *link, json_t *msg, bool once)
{
    struct hdt_buf bytes = {0};

    hdt_msg_encode(msg, &bytes);
    json_decref(msg);
    hdt_gwlink_say_encoded(link, &bytes, once);
}

/* What the broken connection gave back goes out before what was queued since. */
static void link_restore(struct hdt_gwlink *link)
{
    if (link->came_back.head) {
        link->came_back.tail->next = link->waiting.head;
        link->waiting.tail = link->waiting.tail ? link->waiting.tail : link->came_back.tail;
        link->waiting.head = link->came_back.head;
        link->came_back = (struct msg_queue){NULL, NULL};
    }
}

static void link_close_stream(struct hdt_gwlink *link, const struct hdt_error *why)
{
    if (link->stream && !link->closing) {
        link->closing = true;
        hdt_stream_close(link->stream, why);
    }
}

static void link_msg_sent(struct hdt_gwlink *link, struct link_msg *msg, bool ok)
{
    HDT_ASSERT(link->n_queued > 0);
    link->n_queued--;
    if (ok || msg->once) {
        link_msg_free(msg);
    } else {
        queue_add(&link->came_back, msg);
    }
    if (link->ending && link->n_queued == 0) {
        link_close_stream(link, NULL);
    }
}

/* ---- connection ---- */

static void link_say_down(struct hdt_gwlink *link, const struct hdt_error *why)
{
    if (!link->said_down) {
        link->said_down = true;
        link->events.down(link->user, why);
    }
}

static void link_finish(struct hdt_gwlink *link)
{
    link->ended = true;
    link->events.ended(link->user);
}

static void link_dial_later(struct hdt_gwlink *link)
{
    if (link->ending) {
        hdt_engine_timer_disarm(link->engine, &link->timer);
        link_finish(link);
        return;
    }
    hdt_engine_timer_arm(link->engine, &link->timer, hdt_clock_now_us() + link->backoff_us);
    link->backoff_us *= 2;
    if (link->backoff_us > link->deadlines.backoff_us) {
        link->backoff_us = link->deadlines.backoff_us;
    }
}

static void link_hello(struct hdt_stream *stream, void *user)
{
    struct hdt_gwlink *link = user;
    struct hdt_buf bytes = {0};
    json_t *msg = hdt_msg_new("hello", NULL, link->events.hello(link->user));

    (void)stream;
    hdt_msg_encode(msg, &bytes);
    json_decref(msg);
    link_msg_send(link, link_msg_new(&bytes, true));
}

static void link_welcome(struct hdt_gwlink *link, const json_t *msg)
{
    const json_int_t knob_ms =
        json_integer_value(json_object_get(hdt_msg_body(msg), "progress_timeout_ms"));
    struct link_msg *waiting;

    hdt_engine_timer_disarm(link->engine, &link->timer);
    if (knob_ms >= HDT_DEADLINES_KNOB_MIN_MS && knob_ms <= HDT_DEADLINES_KNOB_MAX_MS) {
        hdt_deadlines_derive(&link->deadlines, knob_ms, 0);
    }
    if (link->tls) {
        hdt_addr_keep_alive(hdt_stream_fd(link->stream), link->deadlines.session_dead_us);
    }
    link->up = true;
    link->backoff_us = BACKOFF_MIN_US;
    link->said_down = false;
    while ((waiting = queue_take(&link->waiting))) {
        link_msg_send(link, waiting);
    }
    link->events.up(link->user, hdt_msg_body(msg));
}

/* The first message decides: welcome, or the reason why not. */
static enum hdt_status link_first_msg(struct hdt_gwlink *link, const json_t *msg,
                                      struct hdt_error *err)
{
    const char *type = hdt_msg_type(msg);
    enum hdt_status status;

    if (strcmp(type, "welcome") == 0) {
        link_welcome(link, msg);
        return HDT_OK;
    }
    if (strcmp(type, "error") == 0 || strcmp(type, "refuse") == 0) {
        link->backoff_us = link->deadlines.backoff_us;
        status = hdt_msg_error_from_body(hdt_msg_body(msg), err);
        hdt_error_prefix(err, "cannot join the gateway");
        return status == HDT_OK ? HDT_EPEER : status;
    }
    return hdt_error_set(err, HDT_EPROTO, "cannot join the gateway: it answered hello with '%s'",
                         type);
}

static enum hdt_status link_msg_arrived(struct hdt_gwlink *link, const void *bytes, size_t len,
                                        struct hdt_error *err)
{
    enum hdt_status status;
    json_t *msg;

    HDT_TRY(hdt_msg_decode(bytes, len, &msg, err));
    if (link->up) {
        link->events.message(link->user, msg);
        return HDT_OK;
    }
    status = link_first_msg(link, msg, err);
    json_decref(msg);
    return status;
}

static enum hdt_status link_place(struct hdt_stream *stream, void *user,
                                  const struct hdt_frame *frame, size_t payload_len, void **buf,
                                  struct hdt_error *err)
{
    struct hdt_gwlink *link = user;

    (void)stream;
    switch ((enum hdt_frame_kind)frame->kind) {
    case HDT_FRAME_MSG:
        hdt_buf_clear(&link->recv);
        hdt_buf_reserve(&link->recv, payload_len);
        *buf = link->recv.data;
        return HDT_OK;
    case HDT_FRAME_DATA:
        return link->events.place(link->user, frame, payload_len, buf, err);
    default:
        return hdt_error_set(err, HDT_EPROTO, "cannot take a %s record with %zu bytes behind it",
                             hdt_frame_kind_name(frame->kind), payload_len);
    }
}

static enum hdt_status link_record(struct hdt_stream *stream, void *user,
                                   const struct hdt_frame *frame, void *buf, int passed_fd,
                                   struct hdt_error *err)
{
    struct hdt_gwlink *link = user;

    (void)stream;
    if (passed_fd >= 0) {
        close(passed_fd); /* a gateway has none to pass */
    }
    switch ((enum hdt_frame_kind)frame->kind) {
    case HDT_FRAME_MSG:
        return link_msg_arrived(link, buf, frame->coded_len, err);
    case HDT_FRAME_DATA:
    case HDT_FRAME_ACK:
    case HDT_FRAME_QUERY:
        return link->events.record(link->user, frame, err);
    case HDT_FRAME_PING:
    case HDT_FRAME_PONG:
    case HDT_FRAME_HAVE:
        return HDT_OK;
    default:
        return hdt_error_set(err, HDT_EPROTO, "cannot take a %s record from a gateway",
                             hdt_frame_kind_name(frame->kind));
    }
}

static void link_want(struct hdt_stream *stream, void *user)
{
    struct hdt_gwlink *link = user;

    (void)stream;
    if (link->up) {
        link->events.want(link->user);
    }
}

static void link_sent(struct hdt_stream *stream, void *user, struct hdt_record *record, bool ok)
{
    struct hdt_gwlink *link = user;

    (void)stream;
    if (record->frame.kind == HDT_FRAME_MSG) {
        link_msg_sent(link, record->user, ok);
    } else {
        link->events.sent(link->user, record, ok);
    }
}

static void link_closed(struct hdt_stream *stream, void *user, const struct hdt_error *err)
{
    struct hdt_gwlink *link = user;

    (void)stream;
    link->stream = NULL;
    link->closing = false;
    link->up = false;
    link_restore(link);
    link->events.lost(link->user);
    if (err && err->status != HDT_OK) {
        link_say_down(link, err);
    }
    link_dial_later(link);
}

static const struct hdt_stream_events link_stream_events = {
    .up = link_hello,
    .place = link_place,
    .record = link_record,
    .want = link_want,
    .sent = link_sent,
    .closed = link_closed,
};

static void link_open_stream(struct hdt_gwlink *link)
{
    const struct hdt_stream_conf conf = {
        .ssl_ctx = link->tls ? hdt_tls_ctx_ssl_ctx(link->tls) : NULL,
        .is_client = true,
        .name = "gateway",
        .handshake_timeout_us = link->deadlines.handshake_us,
        .foreign_lengths_are_frames = !(link->ops->caps & HDT_LINK_SHARED)};
    struct hdt_error err = {0};

    if (hdt_stream_open(link->engine, link->fd, &conf, &link_stream_events, link, &link->stream,
                        &err) != HDT_OK) {
        link->stream = NULL;
        link_say_down(link, &err);
        link_dial_later(link);
        return;
    }
    link->opened_us = hdt_clock_now_us();
    hdt_engine_timer_arm(link->engine, &link->timer,
                         link->opened_us + link->deadlines.handshake_us);
}

static void link_connected(struct hdt_engine *engine, struct hdt_io *io, int64_t result)
{
    struct hdt_gwlink *link = io->user;
    struct hdt_error err = {0};

    link->connecting = false;
    hdt_engine_timer_disarm(engine, &link->timer);
    if (result >= 0 && !link->ending) {
        link_open_stream(link);
        return;
    }
    hdt_engine_forget(engine, link->fd);
    close(link->fd);
    hdt_error_set_errno(&err, HDT_EPEER, result == -ECANCELED ? ETIMEDOUT : (int)-result,
                        "cannot reach the gateway at %s", link->address);
    hdt_error_hint(&err, "%s", link->remedy);
    link_say_down(link, &err);
    link_dial_later(link);
}

static void link_dial(struct hdt_gwlink *link)
{
    struct hdt_error err = {0};

    if (hdt_addr_parse(link->address, &link->addr, &err) != HDT_OK ||
        hdt_addr_socket(&link->addr, &link->fd, &err) != HDT_OK) {
        link_say_down(link, &err);
        link_dial_later(link);
        return;
    }
    memset(&link->connect_io, 0, sizeof(link->connect_io));
    link->connect_io.kind = HDT_IO_CONNECT;
    link->connect_io.fd = link->fd;
    link->connect_io.passed_fd = -1;
    link->connect_io.addr = link->addr.sa;
    link->connect_io.addr_len = link->addr.sa_len;
    link->connect_io.done = link_connected;
    link->connect_io.user = link;
    link->connecting = true;
    hdt_engine_timer_arm(link->engine, &link->timer,
                         hdt_clock_now_us() + link->deadlines.connect_us);
    hdt_engine_submit(link->engine, &link->connect_io);
}

static void link_close_mute(struct hdt_gwlink *link)
{
    struct hdt_error why;

    hdt_error_set(&why, HDT_ETIMEDOUT,
                  "cannot join the gateway at %s: it accepts connections, but has not answered "
                  "hello for %.1f s",
                  link->address, (double)(hdt_clock_now_us() - link->opened_us) / 1e6);
    hdt_error_hint(&why, "is hdt-gateway stopped, or does another program listen there? It is "
                         "dialled again and again");
    link_close_stream(link, &why);
}

/* One timer: what it means follows from where the connection is. */
static void link_timer(struct hdt_engine *engine, struct hdt_timer *timer)
{
    struct hdt_gwlink *link = timer->user;

    if (link->ending) {
        link_close_stream(link, NULL); /* the grace is over */
    } else if (link->connecting) {
        hdt_engine_cancel(engine, &link->connect_io);
    } else if (link->stream) {
        link_close_mute(link);
    } else {
        link_dial(link);
    }
}

/* ---- life ---- */

enum hdt_status hdt_gwlink_new(struct hdt_engine *engine, const struct hdt_gwlink_conf *conf,
                               const struct hdt_gwlink_events *events, void *user,
                               struct hdt_gwlink **out, struct hdt_error *err)
{
    const struct hdt_link_ops *ops = hdt_link_ops_for(conf->address);
    struct hdt_gwlink *link;

    if (!ops) {
        hdt_error_set(err, HDT_EINVAL, "cannot use the gateway address '%s'", conf->address);
        hdt_error_hint(err, "write unix:PATH or tls:host:port");
        return HDT_EINVAL;
    }
    link = hdt_calloc(1, sizeof(*link));
    link->engine = engine;
    link->address = hdt_strdup(conf->address);
    link->tls = conf->tls;
    link->remedy = conf->remedy ? conf->remedy : "";
    link->events = *events;
    link->user = user;
    link->ops = ops;
    link->backoff_us = BACKOFF_MIN_US;
    hdt_deadlines_derive(&link->deadlines, HDT_DEADLINES_KNOB_DEFAULT_MS, 0);
    link->timer.fire = link_timer;
    link->timer.user = link;
    *out = link;
    return HDT_OK;
}

void hdt_gwlink_free(struct hdt_gwlink *link)
{
    struct link_msg *msg;

    if (!link) {
        return;
    }
    HDT_ASSERT(!link->stream && !link->connecting);
    while ((msg = queue_take(&link->waiting))) {
        link_msg_free(msg);
    }
    hdt_buf_release(&link->recv);
    free(link->address);
    free(link);
}

void hdt_gwlink_start(struct hdt_gwlink *link)
{
    link_dial(link);
}

void hdt_gwlink_end(struct hdt_gwlink *link)
{
    HDT_ASSERT(!link->ending);
    link->ending = true;
    hdt_engine_timer_disarm(link->engine, &link->timer);
    if (link->connecting) {
        hdt_engine_cancel(link->engine, &link->connect_io);
    } else if (link->stream) {
        hdt_engine_timer_arm(link->engine, &link->timer,
                             hdt_clock_now_us() + link->deadlines.stop_us);
        if (link->n_queued == 0 || !link->up) {
            link_close_stream(link, NULL);
        }
    } else {
        link_finish(link);
    }
}

void hdt_gwlink_break(struct hdt_gwlink *link, const struct hdt_error *why)
{
    link_close_stream(link, why);
}

void hdt_gwlink_send(struct hdt_gwlink *link, struct hdt_record *record, bool urgent)
{
    hdt_stream_send(link->stream, record, urgent);
}

size_t hdt_gwlink_queued_bytes(const struct hdt_gwlink *link)
{
    return link->stream ? hdt_stream_queued_bytes(link->stream) : 0;
}

const struct hdt_link_ops *hdt_gwlink_ops(const struct hdt_gwlink *link)
{
    return link->ops;
}

const struct hdt_deadlines *hdt_gwlink_deadlines(const struct hdt_gwlink *link)
{
    return &link->deadlines;
}
