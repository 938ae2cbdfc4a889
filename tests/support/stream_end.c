/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/support/stream_end.h"
#include "src/base/buf.h"
#include "src/base/clock.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

uint64_t hdt_rnd_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t hdt_rnd_seed(void)
{
    const char *text = getenv("HDT_SEED");

    return text ? strtoull(text, NULL, 0) : (uint64_t)hdt_clock_wall_us();
}

/* Record number i of the sequence that `seed` begins. */
static void record_make(uint64_t seed, unsigned i, struct hdt_frame *frame, uint8_t *payload)
{
    uint64_t state = seed + i * 0x2545f4914f6cdd1du;
    unsigned kind = (unsigned)(hdt_rnd_next(&state) % 4);
    uint32_t len =
        (uint32_t)(hdt_rnd_next(&state) % (hdt_rnd_next(&state) % 4 ? 3000 : END_PAYLOAD_MAX));

    memset(frame, 0, sizeof(*frame));
    frame->seq = hdt_rnd_next(&state);
    frame->flow = (uint32_t)hdt_rnd_next(&state);
    frame->xxh3 = hdt_rnd_next(&state);
    if (kind == 0) {
        frame->kind = HDT_FRAME_ACK;
        frame->offset = hdt_rnd_next(&state);
        return;
    }
    if (kind == 1) {
        frame->kind = HDT_FRAME_MSG;
        frame->coded_len = len;
    } else {
        frame->kind = HDT_FRAME_CHUNK;
        frame->coded_len = len;
        frame->len = len + 1;
        frame->frame_len = len + 1;
    }
    for (uint32_t at = 0; at < len; at += 8) {
        uint64_t word = hdt_rnd_next(&state);

        memcpy(payload + at, &word, len - at < 8 ? len - at : 8);
    }
    if (frame->kind == HDT_FRAME_MSG) {
        frame->xxh3 = XXH3_64bits(payload, len); /* the stream's own, which it checks */
    }
}

static void end_check_done(struct end *end)
{
    const struct end *other = end->other;

    if (end->stop_when_done && end->sent == end->n_out && end->received == end->n_in &&
        other->sent == other->n_out && other->received == other->n_in) {
        hdt_engine_stop(end->engine);
    }
}

static void end_up(struct hdt_stream *stream, void *user)
{
    struct end *end = user;

    (void)stream;
    end->is_up = true;
}

static void end_want(struct hdt_stream *stream, void *user)
{
    struct end *end = user;

    while (end->begun < end->n_out && end->begun - end->sent < END_IN_FLIGHT) {
        unsigned slot = end->begun % END_IN_FLIGHT;
        struct hdt_record *record = &end->records[slot];

        *record = (struct hdt_record){.payload = end->payloads[slot], .passed_fd = -1};
        record_make(end->out_seed, end->begun, &record->frame, end->payloads[slot]);
        record->payload_len = record->frame.coded_len;
        end->begun++;
        hdt_stream_send(stream, record, false);
    }
    if (hdt_stream_queued_bytes(stream) > end->queued_max) {
        end->queued_max = hdt_stream_queued_bytes(stream);
    }
}

static void end_sent(struct hdt_stream *stream, void *user, struct hdt_record *record, bool ok)
{
    struct end *end = user;

    if (!ok) {
        end->failed++;
        return;
    }
    /* Whatever was sent may be changed at once. */
    if (record->payload_len > 0) {
        memset((void *)(uintptr_t)record->payload, 0xee, record->payload_len);
    }
    end->sent++;
    end_want(stream, user);
    end_check_done(end);
}

static enum hdt_status end_place(struct hdt_stream *stream, void *user,
                                 const struct hdt_frame *frame, size_t payload_len, void **buf,
                                 struct hdt_error *err)
{
    struct end *end = user;

    (void)frame;
    if (payload_len > END_PAYLOAD_MAX) {
        return hdt_error_set(err, HDT_EPROTO, "test: a payload of %zu bytes", payload_len);
    }
    if (end->is_slow) {
        return HDT_AGAIN;
    }
    if (end->again_every && end->received % end->again_every == 0 && !end->said_again) {
        end->said_again = true;
        hdt_stream_resume(stream); /* too early: not blocked yet, must do no harm */
        return HDT_AGAIN;
    }
    end->said_again = false;
    *buf = end->place;
    return HDT_OK;
}

static enum hdt_status end_record(struct hdt_stream *stream, void *user,
                                  const struct hdt_frame *frame, void *buf, int passed_fd,
                                  struct hdt_error *err)
{
    struct end *end = user;
    static _Thread_local uint8_t expected[END_PAYLOAD_MAX + 8];
    struct hdt_frame want;

    (void)stream;
    (void)err;
    if (passed_fd >= 0) {
        end->passed_fd = passed_fd;
        return HDT_OK;
    }
    record_make(end->in_seed, end->received, &want, expected);
    if (want.kind != frame->kind || want.seq != frame->seq || want.flow != frame->flow ||
        want.coded_len != frame->coded_len || want.offset != frame->offset ||
        want.xxh3 != frame->xxh3 || (want.coded_len > 0 && memcmp(buf, expected, want.coded_len))) {
        end->n_wrong++;
    }
    end->received++;
    end_check_done(end);
    return HDT_OK;
}

static void end_closed(struct hdt_stream *stream, void *user, const struct hdt_error *err)
{
    struct end *end = user;

    (void)stream;
    end->is_open = false;
    end->why = *err;
    if (end->stop_when_done || !end->other->is_open) {
        hdt_engine_stop(end->engine);
    }
}

static void end_open(struct end *end, int fd, const struct hdt_stream_conf *conf)
{
    static const struct hdt_stream_events events = {.up = end_up,
                                                    .place = end_place,
                                                    .record = end_record,
                                                    .want = end_want,
                                                    .sent = end_sent,
                                                    .closed = end_closed};
    struct hdt_error err = {0};

    end->place = hdt_malloc(END_PAYLOAD_MAX);
    end->passed_fd = -1;
    for (int i = 0; i < END_IN_FLIGHT; i++) {
        end->payloads[i] = hdt_malloc(END_PAYLOAD_MAX + 8);
    }
    if (hdt_stream_open(end->engine, fd, conf, &events, end, &end->stream, &err) != HDT_OK) {
        hdt_error_print(&err, "test");
        abort();
    }
    end->is_open = true;
}

void hdt_end_pair_open(struct hdt_engine *engine, struct end *a, struct end *b, const int fds[2],
                       const struct hdt_stream_conf conf[2])
{
    a->engine = engine;
    b->engine = engine;
    a->other = b;
    b->other = a;
    end_open(a, fds[0], &conf[0]);
    end_open(b, fds[1], &conf[1]);
}

void hdt_end_release(struct end *end)
{
    for (int i = 0; i < END_IN_FLIGHT; i++) {
        free(end->payloads[i]);
    }
    free(end->place);
}

void hdt_tcp_pair(int fds[2])
{
    struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sin);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    HDT_ASSERT(bind(listener, (struct sockaddr *)&sin, len) == 0);
    HDT_ASSERT(listen(listener, 1) == 0);
    HDT_ASSERT(getsockname(listener, (struct sockaddr *)&sin, &len) == 0);
    fds[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    HDT_ASSERT(connect(fds[1], (struct sockaddr *)&sin, len) == 0);
    fds[0] = accept(listener, NULL, NULL);
    HDT_ASSERT(fds[0] >= 0);
    close(listener);
}

static void give_up(struct hdt_engine *engine, struct hdt_timer *timer)
{
    (void)engine;
    (void)timer;
    fprintf(stderr, "test: no end after 60 s\n");
    abort();
}

void hdt_end_run(struct hdt_engine *engine)
{
    struct hdt_timer timer = {.fire = give_up};

    hdt_engine_timer_arm(engine, &timer, hdt_clock_now_us() + 60 * HDT_US_PER_S);
    hdt_engine_run(engine);
    hdt_engine_timer_disarm(engine, &timer);
}

void hdt_end_pair_close(struct hdt_engine *engine, struct end *a, struct end *b)
{
    a->stop_when_done = false;
    b->stop_when_done = false;
    if (a->is_open) {
        hdt_stream_close(a->stream, NULL);
    }
    if (b->is_open) {
        hdt_stream_close(b->stream, NULL);
    }
    while (a->is_open || b->is_open) {
        hdt_end_run(engine);
    }
}
