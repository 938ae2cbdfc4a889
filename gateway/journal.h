/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_JOURNAL_H
#define HDT_GATEWAY_JOURNAL_H

/*
 * A file of JSON lines that survives the process: the metrics.jsonl of a job. Only whole lines are
 * in it: a line that cannot be written whole is taken out again, and one that a killed process left
 * behind is cut off when the file is opened. Main thread.
 */
#include "src/base/error.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct hdt_buf;
struct hdt_journal;

/* Open for appending; made when it is not there. HDT_EIO. */
enum hdt_status hdt_journal_open(const char *path, struct hdt_journal **journal,
                                 struct hdt_error *err);
void hdt_journal_close(struct hdt_journal *journal); /* NULL is allowed */

/* Append one line; it is the kernel's when the call returns. HDT_EIO: nothing was written. */
enum hdt_status hdt_journal_write(struct hdt_journal *journal, const json_t *line,
                                  struct hdt_error *err);

uint64_t hdt_journal_size(const struct hdt_journal *journal);

/* For each line of the last HDT_JOURNAL_RECENT bytes, oldest first; what is no JSON object is left
 * out. */
#define HDT_JOURNAL_RECENT ((size_t)4 << 20)
void hdt_journal_recent(const struct hdt_journal *journal,
                        void (*line)(void *user, const json_t *line), void *user);

/* Whole lines from `off` on, about max bytes (one line at least) replace what is in `out`; empty:
 * none. HDT_EIO. */
enum hdt_status hdt_journal_read(const char *path, uint64_t off, size_t max, struct hdt_buf *out,
                                 struct hdt_error *err);

/* What a line says of where one has read up to. */
enum hdt_journal_place {
    HDT_JOURNAL_BEFORE,   /* it is known, as all lines before it */
    HDT_JOURNAL_AFTER,    /* it is new, as all lines after it */
    HDT_JOURNAL_NO_PLACE, /* it does not tell */
};

typedef enum hdt_journal_place hdt_journal_place_of(const void *user, const json_t *line);

/* A place in a file whose lines are in order (but for those that do not tell), by halving: at the
 * begin of a line, before the first one that is new. Not far from it, unless what does not tell is
 * longer than 1 MiB. A file of any length costs some twenty reads. HDT_EIO. */
enum hdt_status hdt_journal_seek(const char *path, hdt_journal_place_of *place_of, const void *user,
                                 uint64_t *off, struct hdt_error *err);

#endif /* HDT_GATEWAY_JOURNAL_H */
