/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens to records on a link between sites: bits are flipped, chunks come a second time on
 * another stream, connections end in the middle of a record. TLS would let the first end a stream
 * and nothing else; here it stands for memory that is bad, in a gateway or a network card.
 *
 * A pipe's bytes are read along as its owner writes them, so that it is known where a record
 * begins.
 */
#include "config.h"

#include "src/base/buf.h"
#include "tests/support/link_sim_impl.h"

#include <stdlib.h>
#include <string.h>

#define FLIPS_MAX   24 /* a run: each costs a stream or a chunk, and sessions are rationed */
#define TWICE_MAX   200
#define RESETS_MAX  24
#define TWICE_LATE  (3 * SIM_S)
#define TWICE_TRIES 5

/* A chunk that comes again. */
struct sim_blob {
    struct sim_blob *next;
    unsigned from, to; /* sites */
    uint64_t conn_id;  /* on which it went first */
    size_t len;
    uint8_t bytes[];
};

/* ---- twice ---- */

/* Between two records, on a stream that carries chunks? */
static bool pipe_may_take(const struct sim_pipe *pipe)
{
    const struct sim_conn *conn = pipe->conn;

    return pipe->parser.is_bulk && !pipe->parser.is_lost && pipe->parser.header_len == 0 &&
           pipe->parser.payload_left == 0 && !pipe->fin && !conn->is_forgotten &&
           !conn->socks[0].is_closed && !conn->socks[1].is_closed && conn->socks[0].error == 0 &&
           conn->socks[1].error == 0;
}

static struct sim_pipe *blob_pipe(struct sim *sim, const struct sim_blob *blob)
{
    struct sim_pipe *found = NULL;
    unsigned i, n = 0;

    for (i = 0; i < sim->n_conns; i++) {
        struct sim_conn *conn = sim->conns[i];
        const unsigned dir = conn->site[0] == blob->from ? 0 : 1;

        if (conn->door == HDT_LISTENER_WAN && conn->site[dir] == blob->from &&
            conn->site[1 - dir] == blob->to && pipe_may_take(&conn->pipes[dir]) &&
            (conn->id != blob->conn_id || hdt_sim_chance(sim, 200)) &&
            hdt_sim_below(sim, ++n) == 0) {
            found = &conn->pipes[dir];
        }
    }
    return found;
}

static void blob_again(struct sim *sim, void *arg, uint64_t tries)
{
    const struct sim_blob *blob = arg;
    struct sim_pipe *pipe = blob_pipe(sim, blob);

    if (pipe != NULL) {
        hdt_sim_note(sim, "again", pipe->conn->id, pipe->dir, blob->len, blob->conn_id);
        hdt_sim_inject(pipe, blob->bytes, blob->len);
        sim->n_twice++;
    } else if (tries < TWICE_TRIES) {
        hdt_sim_at(sim, sim->now_us + 1 + (int64_t)hdt_sim_below(sim, 20 * SIM_MS), blob_again, arg,
                   tries + 1);
    }
}

static void blob_keep(struct sim_pipe *pipe)
{
    struct sim *sim = pipe->conn->sim;
    struct sim_blob *blob = hdt_malloc(sizeof(*blob) + pipe->parser.copy_len);
    const uint64_t late_us = hdt_sim_chance(sim, 300)   ? TWICE_LATE
                             : hdt_sim_chance(sim, 500) ? 300 * SIM_MS
                                                        : 5000;

    blob->from = pipe->conn->site[pipe->dir];
    blob->to = pipe->conn->site[1 - pipe->dir];
    blob->conn_id = pipe->conn->id;
    blob->len = pipe->parser.copy_len;
    memcpy(blob->bytes, pipe->parser.copy, blob->len);
    blob->next = sim->blobs;
    sim->blobs = blob;
    hdt_sim_at(sim, sim->now_us + (int64_t)hdt_sim_below(sim, late_us), blob_again, blob, 0);
}

void hdt_sim_meddle_free(struct sim *sim)
{
    struct sim_blob *blob, *next;

    for (blob = sim->blobs; blob != NULL; blob = next) {
        next = blob->next;
        free(blob);
    }
}

/* ---- damage ---- */

/* One to three bits of a byte and the next: what a header's check finds for certain. */
static void flip_bits(struct sim *sim, uint8_t *bytes, size_t len)
{
    const unsigned n_bits = 1 + (unsigned)hdt_sim_below(sim, 3);
    const unsigned first = (unsigned)hdt_sim_below(sim, 8);
    unsigned i;

    for (i = 0; i < n_bits; i++) {
        const unsigned bit = first + i;

        if (bit / 8 < len) {
            bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        }
    }
    sim->n_flips++;
    hdt_sim_disturbed(sim, sim->now_us);
}

static void conn_reset_later(struct sim *sim, void *arg, uint64_t n)
{
    (void)sim;
    (void)n;
    hdt_sim_reset(arg);
}

/* Payload of the record at hand goes by. */
static void payload_pass(struct sim_pipe *pipe, uint8_t *bytes, size_t len)
{
    struct sim_parser *parser = &pipe->parser;
    struct sim *sim = pipe->conn->sim;

    if (parser->copy != NULL) {
        memcpy(parser->copy + parser->copy_len, bytes, len);
        parser->copy_len += len;
    }
    if (parser->flip_at < len) {
        hdt_sim_note(sim, "flips", pipe->conn->id, pipe->dir, parser->payload_left, 0);
        flip_bits(sim, bytes + parser->flip_at, len - parser->flip_at);
        parser->flip_at = SIZE_MAX;
    } else if (parser->flip_at != SIZE_MAX) {
        parser->flip_at -= len;
    }
    if (parser->reset_at < len) {
        sim->n_cut_records++;
        hdt_sim_at(sim, sim->now_us + (int64_t)hdt_sim_below(sim, 60 * SIM_MS), conn_reset_later,
                   pipe->conn, 0);
        parser->reset_at = SIZE_MAX;
    } else if (parser->reset_at != SIZE_MAX) {
        parser->reset_at -= len;
    }
}

static void payload_ends(struct sim_pipe *pipe)
{
    struct sim_parser *parser = &pipe->parser;

    parser->header_len = 0;
    if (parser->copy != NULL) {
        blob_keep(pipe);
        free(parser->copy);
        parser->copy = NULL;
    }
}

static size_t record_payload_len(const struct hdt_frame *frame)
{
    switch (frame->kind) {
    case HDT_FRAME_MSG:
    case HDT_FRAME_CHUNK:
        return frame->coded_len;
    case HDT_FRAME_PROBE:
        return frame->len;
    default:
        return 0;
    }
}

/* A record begins: is anything done to it? `bytes`: the end of its header, in the pipe. */
static void record_begins(struct sim_pipe *pipe, uint8_t *bytes, size_t len)
{
    struct sim_parser *parser = &pipe->parser;
    const struct sim_plan *plan = &pipe->conn->sim->plan;
    struct sim *sim = pipe->conn->sim;
    struct hdt_error err = {0};
    struct hdt_frame frame;

    SIM_CHECK(sim, hdt_frame_unpack(parser->header, &frame, &err) == HDT_OK, "it sends: %s",
              err.msg);
    parser->payload_left = record_payload_len(&frame);
    parser->is_bulk = parser->is_bulk || frame.kind == HDT_FRAME_CHUNK;
    parser->flip_at = SIZE_MAX;
    parser->reset_at = SIZE_MAX;
    /* Other records are few, and most of them end a session when they are damaged. */
    if (sim->n_flips < FLIPS_MAX &&
        hdt_sim_chance(sim, frame.kind == HDT_FRAME_CHUNK ? plan->flip_per_1000
                                                          : plan->flip_per_1000 / 20)) {
        if (parser->payload_left == 0 || hdt_sim_chance(sim, 250)) {
            hdt_sim_note(sim, "flips header", pipe->conn->id, pipe->dir, frame.kind, 0);
            flip_bits(sim, bytes + hdt_sim_below(sim, len), 1);
            parser->is_lost = true;
            return;
        }
        parser->flip_at = (size_t)hdt_sim_below(sim, parser->payload_left);
    }
    if (parser->payload_left > 0 && sim->n_cut_records < RESETS_MAX &&
        hdt_sim_chance(sim, plan->cut_record_per_1000)) {
        parser->reset_at = (size_t)hdt_sim_below(sim, parser->payload_left);
    }
    if (frame.kind == HDT_FRAME_CHUNK && sim->n_twice < TWICE_MAX &&
        hdt_sim_chance(sim, plan->twice_per_1000)) {
        parser->copy = hdt_malloc(HDT_FRAME_HEADER_LEN + parser->payload_left);
        memcpy(parser->copy, parser->header, HDT_FRAME_HEADER_LEN);
        parser->copy_len = HDT_FRAME_HEADER_LEN;
    }
}

void hdt_sim_meddle(struct sim_pipe *pipe, uint8_t *bytes, size_t len)
{
    struct sim_parser *parser = &pipe->parser;

    while (len > 0 && !parser->is_lost) {
        size_t n;

        if (parser->header_len < HDT_FRAME_HEADER_LEN) {
            n = HDT_FRAME_HEADER_LEN - parser->header_len;
            n = n < len ? n : len;
            memcpy(parser->header + parser->header_len, bytes, n);
            parser->header_len += n;
            if (parser->header_len == HDT_FRAME_HEADER_LEN) {
                record_begins(pipe, bytes, n);
                if (parser->payload_left == 0) {
                    payload_ends(pipe);
                }
            }
        } else {
            n = parser->payload_left < len ? parser->payload_left : len;
            payload_pass(pipe, bytes, n);
            parser->payload_left -= n;
            if (parser->payload_left == 0) {
                payload_ends(pipe);
            }
        }
        bytes += n;
        len -= n;
    }
}
