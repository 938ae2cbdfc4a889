/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_REPORT_QUEUE_H
#define HDT_RUNTIME_REPORT_QUEUE_H

/*
 * Reports that were not acknowledged yet, in order, numbered 1, 2, ... from the queue's beginning.
 *
 * A coordinator may be away for a weekend, and no step of the run may be missing in its metrics
 * then. The oldest reports are in memory; when they are too many, newer ones go to a file without
 * a name (the reports of a process end with the process), and come back as the older ones leave.
 * When the file is full too, or cannot be written, a second list in memory takes a little more; at
 * its end reports are refused: those of steps before those of a job's course ("vital").
 *
 * Not locked. The file is touched by add and drop only.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_report_queue;

struct hdt_report_queue_conf {
    const char *spool_dir; /* folder for the file; NULL: no file. Outlives the queue */
    size_t memory_bytes;   /* of the oldest reports, and as much again of the newest */
    uint64_t spool_bytes;  /* of the file, at most */
};

struct hdt_report {
    uint64_t n;
    size_t len;
    struct hdt_report *next; /* the queue's */
    uint8_t bytes[];
};

struct hdt_report_queue *hdt_report_queue_new(const struct hdt_report_queue_conf *conf);
void hdt_report_queue_free(struct hdt_report_queue *queue); /* NULL is allowed */

/* Append a copy of `len` bytes; its number, or 0: there was no place for it. */
uint64_t hdt_report_queue_add(struct hdt_report_queue *queue, const void *bytes, size_t len,
                              bool vital);

/* Numbers of the oldest report that is kept (that of the next one when none is) and of the last
 * that was added. */
uint64_t hdt_report_queue_first(const struct hdt_report_queue *queue);
uint64_t hdt_report_queue_last(const struct hdt_report_queue *queue);

/* The oldest report that is kept, others behind it by `next`; NULL: none. Those in the file are not
 * among them, but the older half of memory always is. */
const struct hdt_report *hdt_report_queue_oldest(const struct hdt_report_queue *queue);

/* Reports up to number n need no longer be kept. Reports that cannot be read back from the file are
 * lost and logged. */
void hdt_report_queue_drop(struct hdt_report_queue *queue, uint64_t n);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_REPORT_QUEUE_H */
