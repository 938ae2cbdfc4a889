/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_SUPPORT_STREAM_END_H
#define HDT_TESTS_SUPPORT_STREAM_END_H

/*
 * One end of a stream that sends records of random kind, size and content by the pull model and
 * checks those that it receives. Both sides derive record number i from the seed alone, so that the
 * check does not depend on the code under test.
 */
#include "src/net/stream.h"

enum { END_PAYLOAD_MAX = 300000, END_IN_FLIGHT = 24 };

struct end {
    struct hdt_engine *engine;
    struct hdt_stream *stream;
    bool is_open, is_up;
    struct hdt_error why; /* of the close */

    uint64_t out_seed, in_seed;
    unsigned n_out, n_in;         /* records to send, to receive */
    unsigned begun, sent, failed; /* records given to the stream, reported sent, given back */
    unsigned received;
    size_t queued_max;
    unsigned again_every; /* place() says HDT_AGAIN before each such record; 0: never */
    bool said_again;
    bool is_slow; /* place() says HDT_AGAIN until this is cleared and the stream resumed */
    unsigned n_wrong;
    bool stop_when_done; /* hdt_engine_stop when all is sent and received, or when closed */
    struct end *other;   /* both ends done: stop */
    int passed_fd;       /* the last that came */

    struct hdt_record records[END_IN_FLIGHT];
    uint8_t *payloads[END_IN_FLIGHT];
    uint8_t *place;
};

/* Open end a on fds[0] and b on fds[1]; b is the TLS client. conf gives the settings that both
 * share; ssl contexts may be NULL (plain). */
void hdt_end_pair_open(struct hdt_engine *engine, struct end *a, struct end *b, const int fds[2],
                       const struct hdt_stream_conf conf[2]);
/* Free what the ends own; the streams must have closed. */
void hdt_end_release(struct end *end);

/* Connected TCP sockets over loopback (a's side was accepted). */
void hdt_tcp_pair(int fds[2]);

/* Run until the engine is stopped; fails the process when that takes longer than 60 s. */
void hdt_end_run(struct hdt_engine *engine);

/* Close what is open and wait for it. */
void hdt_end_pair_close(struct hdt_engine *engine, struct end *a, struct end *b);

/* A reproducible stream of numbers (splitmix64). */
uint64_t hdt_rnd_next(uint64_t *state);
/* HDT_SEED of the environment, or one from the clock; printed by the caller. */
uint64_t hdt_rnd_seed(void);

#endif /* HDT_TESTS_SUPPORT_STREAM_END_H */
