/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Three parts, older to newer: `head` in memory, the file, `tail` in memory. A report goes to the
 * first part behind which nothing waits and in which there is room. The file is read and written
 * straight through and emptied when it was read to its end: no holes to look after, and in an
 * outage it holds each report once.
 *
 * Refused: dropping the oldest. Their lines would be missing in the middle of the metrics, although
 * the coordinator may come back a moment later and ask for just these.
 */
#include "runtime/report_queue.h"

#include "src/base/buf.h"
#include "src/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VITAL_BYTES ((size_t)1 << 20) /* that steps leave to the reports of a job's course */

struct report_list {
    struct hdt_report *head, *tail;
    size_t bytes;
};

/* Before each report in the file. */
struct spool_header {
    uint64_t n, len;
};

struct hdt_report_queue {
    struct hdt_report_queue_conf conf;
    struct report_list head, tail;
    int fd; /* -1: no file yet */
    bool fd_failed;
    uint64_t read_off, write_off;
    uint64_t last_n;
};

/* ---- lists ---- */

static void list_append(struct report_list *list, struct hdt_report *report)
{
    report->next = NULL;
    if (list->tail) {
        list->tail->next = report;
    } else {
        list->head = report;
    }
    list->tail = report;
    list->bytes += report->len;
}

static struct hdt_report *list_take(struct report_list *list)
{
    struct hdt_report *report = list->head;

    if (report) {
        list->head = report->next;
        list->tail = list->head ? list->tail : NULL;
        list->bytes -= report->len;
    }
    return report;
}

static void list_release(struct report_list *list)
{
    struct hdt_report *report;

    while ((report = list_take(list))) {
        free(report);
    }
}

static void list_add(struct report_list *list, uint64_t n, const void *bytes, size_t len)
{
    struct hdt_report *report = hdt_malloc(sizeof(*report) + len);

    report->n = n;
    report->len = len;
    memcpy(report->bytes, bytes, len);
    list_append(list, report);
}

/* ---- the file ---- */

static bool spool_open(struct hdt_report_queue *queue)
{
    char *path;

    if (queue->fd >= 0 || queue->fd_failed || !queue->conf.spool_dir) {
        return queue->fd >= 0;
    }
    path = hdt_asprintf("%s/reports.XXXXXX", queue->conf.spool_dir);
    queue->fd = mkostemp(path, O_CLOEXEC);
    if (queue->fd < 0) {
        queue->fd_failed = true;
        hdt_log_warn("cannot keep reports for the coordinator in '%s': %s", path, strerror(errno));
    } else {
        unlink(path);
        hdt_log_info("the coordinator is away for long: its reports go to a file in %s",
                     queue->conf.spool_dir);
    }
    free(path);
    return queue->fd >= 0;
}

static bool spool_is_empty(const struct hdt_report_queue *queue)
{
    return queue->read_off == queue->write_off;
}

static bool write_all(int fd, const void *bytes, size_t len, uint64_t off)
{
    const uint8_t *at = bytes;
    ssize_t n;

    while (len > 0) {
        n = pwrite(fd, at, len, (off_t)off);
        if (n < 0 && errno != EINTR) {
            return false;
        }
        at += n > 0 ? n : 0;
        off += n > 0 ? (uint64_t)n : 0;
        len -= n > 0 ? (size_t)n : 0;
    }
    return true;
}

static bool read_all(int fd, void *bytes, size_t len, uint64_t off)
{
    uint8_t *at = bytes;
    ssize_t n;

    while (len > 0) {
        n = pread(fd, at, len, (off_t)off);
        if (n == 0 || (n < 0 && errno != EINTR)) {
            return false;
        }
        at += n > 0 ? n : 0;
        off += n > 0 ? (uint64_t)n : 0;
        len -= n > 0 ? (size_t)n : 0;
    }
    return true;
}

static bool spool_add(struct hdt_report_queue *queue, uint64_t n, const void *bytes, size_t len)
{
    const struct spool_header header = {n, len};

    if (queue->write_off + sizeof(header) + len > queue->conf.spool_bytes || !spool_open(queue)) {
        return false;
    }
    if (!write_all(queue->fd, &header, sizeof(header), queue->write_off) ||
        !write_all(queue->fd, bytes, len, queue->write_off + sizeof(header))) {
        hdt_log_warn_limited(60, "cannot keep a report for the coordinator in %s: %s",
                             queue->conf.spool_dir, strerror(errno));
        return false; /* what is behind write_off is written over */
    }
    queue->write_off += sizeof(header) + len;
    return true;
}

/* The oldest report of the file goes to memory; false: it cannot be read. */
static bool spool_take(struct hdt_report_queue *queue)
{
    struct hdt_report *report = NULL;
    struct spool_header header;

    if (!read_all(queue->fd, &header, sizeof(header), queue->read_off)) {
        return false;
    }
    report = hdt_malloc(sizeof(*report) + header.len);
    if (!read_all(queue->fd, report->bytes, header.len, queue->read_off + sizeof(header))) {
        free(report);
        return false;
    }
    report->n = header.n;
    report->len = header.len;
    list_append(&queue->head, report);
    queue->read_off += sizeof(header) + header.len;
    return true;
}

static void spool_clear(struct hdt_report_queue *queue)
{
    queue->read_off = 0;
    queue->write_off = 0;
    if (ftruncate(queue->fd, 0) != 0) {
        hdt_log_debug("cannot shorten the file of reports: %s", strerror(errno));
    }
}

/* Fill memory up again from the newer parts. */
static void queue_refill(struct hdt_report_queue *queue)
{
    while (!spool_is_empty(queue) && queue->head.bytes < queue->conf.memory_bytes) {
        if (!spool_take(queue)) {
            hdt_log_error("reports for the coordinator are lost: the file in %s cannot be read: %s",
                          queue->conf.spool_dir, strerror(errno));
            queue->read_off = queue->write_off;
        }
    }
    if (queue->write_off > 0 && spool_is_empty(queue)) {
        spool_clear(queue);
    }
    while (queue->tail.head && spool_is_empty(queue) &&
           queue->head.bytes < queue->conf.memory_bytes) {
        list_append(&queue->head, list_take(&queue->tail));
    }
}

/* ---- the queue ---- */

struct hdt_report_queue *hdt_report_queue_new(const struct hdt_report_queue_conf *conf)
{
    struct hdt_report_queue *queue = hdt_calloc(1, sizeof(*queue));

    queue->conf = *conf;
    queue->fd = -1;
    return queue;
}

void hdt_report_queue_free(struct hdt_report_queue *queue)
{
    if (!queue) {
        return;
    }
    list_release(&queue->head);
    list_release(&queue->tail);
    if (queue->fd >= 0) {
        close(queue->fd);
    }
    free(queue);
}

uint64_t hdt_report_queue_add(struct hdt_report_queue *queue, const void *bytes, size_t len,
                              bool vital)
{
    const size_t tail_bytes = queue->conf.memory_bytes + (vital ? VITAL_BYTES : 0);
    uint64_t n = queue->last_n + 1;

    if (spool_is_empty(queue) && !queue->tail.head &&
        queue->head.bytes + len <= queue->conf.memory_bytes) {
        list_add(&queue->head, n, bytes, len);
    } else if (!queue->tail.head && spool_add(queue, n, bytes, len)) {
        /* it is in the file */
    } else if (queue->tail.bytes + len <= tail_bytes) {
        list_add(&queue->tail, n, bytes, len);
    } else {
        return 0;
    }
    queue->last_n = n;
    if (!queue->head.head) {
        queue_refill(queue); /* longer than all memory that it may have */
    }
    return n;
}

uint64_t hdt_report_queue_first(const struct hdt_report_queue *queue)
{
    return queue->head.head ? queue->head.head->n : queue->last_n + 1;
}

uint64_t hdt_report_queue_last(const struct hdt_report_queue *queue)
{
    return queue->last_n;
}

const struct hdt_report *hdt_report_queue_oldest(const struct hdt_report_queue *queue)
{
    return queue->head.head;
}

void hdt_report_queue_drop(struct hdt_report_queue *queue, uint64_t n)
{
    while (queue->head.head && queue->head.head->n <= n) {
        free(list_take(&queue->head));
        if (!queue->head.head || queue->head.bytes < queue->conf.memory_bytes / 2) {
            queue_refill(queue);
        }
    }
}
