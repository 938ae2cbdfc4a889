/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_BASE_RECORDER_INTERNAL_H
#define HDT_BASE_RECORDER_INTERNAL_H

/* What recorder.c (rings, threads, signals) and recorder_write.c (the file) share. */
#include "src/base/recorder.h"

#include <stdatomic.h>
#include <stdbool.h>

#define REC_CELL_WORDS 8
#define REC_CELL_BYTES (REC_CELL_WORDS * sizeof(uint64_t))
#define REC_WRITING    UINT64_MAX /* word 0: somebody is */
#define REC_HEAD_TEXT  8          /* bytes of text in an event's first cell */
#define REC_MORE_TEXT  56         /* in each that follows */
#define REC_CELLS_MAX  (1 + (HDT_REC_TEXT_CAP - REC_HEAD_TEXT + REC_MORE_TEXT - 1) / REC_MORE_TEXT)

/*
 * A ring of 64-byte cells. An event takes one cell, and one more for every 56 bytes of text that do
 * not fit:
 *
 *   word 0     1 + the cell's number since start: says that the cell is whole; REC_WRITING
 *   word 1     monotonic time, nanoseconds        }
 *   word 2     kind, cells, text bytes, thread    } first cell; in the others
 *   words 3-6  numbers                            } words 1-7 are text
 *   word 7     text                               }
 */
struct rec_ring {
    _Atomic uint64_t *words;
    uint64_t n_cells; /* a power of two */
    _Atomic uint64_t next;
};

struct rec_event {
    int64_t time_ns;
    enum hdt_rec_kind kind;
    unsigned thread, n_cells;
    int64_t n[HDT_REC_NUMBERS];
    char text[HDT_REC_TEXT_CAP + 1]; /* texts, each with its '\0' */
    size_t text_len;
};

/* Read the event whose first cell has this number; false: it is not whole (any more). */
bool hdt_rec_read(const struct rec_ring *ring, uint64_t cell, struct rec_event *event);

/* What a dump is made of. */
struct rec_dump {
    const struct rec_ring *rings; /* two */
    const char *dir, *name, *reason;
};

/* Room for the path of a dump. */
#define REC_PATH_CAP 512

/* Write the file by way of one with another name. Async-signal-safe: no memory, no locks. Returns 0
 * or an errno; *path as written. */
int hdt_rec_write(const struct rec_dump *dump, char path[REC_PATH_CAP]);

/* Remove the oldest dumps of this name beyond `keep`. */
void hdt_rec_prune(const char *dir, const char *name, unsigned keep);

/* Is `file` "flight-NAME-20260101T000000.000Z-REASON.jsonl"? */
bool hdt_rec_is_dump_of(const char *file, const char *name);

#endif /* HDT_BASE_RECORDER_INTERNAL_H */
