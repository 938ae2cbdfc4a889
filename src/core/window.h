/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_WINDOW_H
#define HDT_CORE_WINDOW_H

/*
 * The window of a flow at one of its ends, a worker or a program of a channel: which frames are
 * kept, handed over, come and taken. The rules are those of doc/protocol.md: a source keeps a frame
 * until the other end has taken it, a destination takes frames in order and acknowledges the number
 * after the last. A connection to the gateway that breaks sets both back to what is acknowledged,
 * and nothing else.
 *
 *     source        acked <= submit <= end <= acked + depth
 *                   taken | handed over | committed
 *     destination   acked <= end <= acked + depth
 *                   taken | came
 *
 * Frame `seq` has slot `seq % depth`. Numbers only: who owns slots and records is the owner's
 * matter, and so are locks.
 */
#include "src/base/error.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_window {
    bool is_src;
    bool ack_due; /* destination: the source does not know of `acked` */
    uint32_t depth;
    uint64_t acked, end;
    uint64_t submit; /* source: on this connection */
    uint64_t handed; /* source: most that was ever handed over */
    uint64_t credit; /* source: frames below it may be handed over on this connection */
};

void hdt_window_init(struct hdt_window *window, bool is_src, uint32_t depth);

/* As it stands on a fresh connection. What came and was not taken comes again; while a frame of it
 * is read (is_borrowed) it stays, and the flow must not be opened yet. */
void hdt_window_reset(struct hdt_window *window, bool is_borrowed);

/* For "flow.open". */
uint64_t hdt_window_next_seq(const struct hdt_window *window);

/* ---- source ---- */

/* Is frame `end` within depth? */
bool hdt_window_has_room(const struct hdt_window *window);
/* May frame `submit` be handed over? It is there and has credit. */
bool hdt_window_may_submit(const struct hdt_window *window);
void hdt_window_submitted(struct hdt_window *window);

/* An ACK: all before seq are taken, those before credit may be sent. Older ones mean nothing.
 * HDT_EPROTO: of frames that were never handed over; nothing changed. */
enum hdt_status hdt_window_ack(struct hdt_window *window, uint64_t seq, uint64_t credit);

/* ---- destination ---- */

/* May frame seq be taken in? HDT_AGAIN: it came before; HDT_EPROTO: *why says why not. */
enum hdt_status hdt_window_check(const struct hdt_window *window, uint64_t seq, const char **why);
void hdt_window_came_again(struct hdt_window *window, uint64_t seq);
/* Frame `acked` is taken. */
void hdt_window_take(struct hdt_window *window);

/* ---- both ---- */

/* A QUERY: a gateway that came back asks where this end is. */
void hdt_window_query(struct hdt_window *window);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_WINDOW_H */
