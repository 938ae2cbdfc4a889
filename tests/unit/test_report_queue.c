/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "runtime/report_queue.h"
#include "src/base/log.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define REPORT_LEN 100

static void init(void)
{
    hdt_log_init("test", HDT_LOG_ERROR);
}

TestSuite(report_queue, .init = init, .timeout = 30);

static bool folder_is_empty(const char *path)
{
    DIR *dir = opendir(path);
    int n = 0;

    while (readdir(dir)) {
        n++;
    }
    closedir(dir);
    return n == 2; /* "." and ".." */
}

/* Report `number`: every byte follows from it. */
static uint64_t add(struct hdt_report_queue *queue, unsigned number, bool vital)
{
    uint8_t bytes[REPORT_LEN];

    memset(bytes, (int)(number % 251), sizeof(bytes));
    memcpy(bytes, &number, sizeof(number));
    return hdt_report_queue_add(queue, bytes, sizeof(bytes), vital);
}

static void expect_oldest(const struct hdt_report_queue *queue, uint64_t n, unsigned number)
{
    const struct hdt_report *report = hdt_report_queue_oldest(queue);

    cr_assert(report, "report %llu is not there", (unsigned long long)n);
    cr_assert_eq(report->n, n);
    cr_assert_eq(report->len, REPORT_LEN);
    cr_assert_eq(memcmp(report->bytes, &number, sizeof(number)), 0, "not report %u", number);
    for (size_t i = sizeof(number); i < REPORT_LEN; i++) {
        cr_assert_eq(report->bytes[i], number % 251);
    }
}

Test(report_queue, reports_beyond_memory_come_back_from_the_file)
{
    char dir[] = "/tmp/hdt-queue-XXXXXX";
    struct hdt_report_queue_conf conf = {
        .spool_dir = dir, .memory_bytes = 10 * REPORT_LEN, .spool_bytes = 1 << 20};
    struct hdt_report_queue *queue;
    unsigned added = 0, seed = (unsigned)time(NULL), dice = seed;
    uint64_t dropped = 0;

    printf("seed %u\n", seed);
    cr_assert(mkdtemp(dir));
    queue = hdt_report_queue_new(&conf);
    while (dropped < 5000) {
        for (int n = rand_r(&dice) % 100; n > 0 && added < 5000; n--) {
            added++;
            cr_assert_eq(add(queue, added, false), added);
        }
        for (int n = rand_r(&dice) % 100; n > 0 && dropped < added; n--) {
            expect_oldest(queue, dropped + 1, (unsigned)dropped + 1);
            dropped += 1 + (uint64_t)rand_r(&dice) % 3;
            dropped = dropped > added ? added : dropped;
            hdt_report_queue_drop(queue, dropped);
        }
        cr_assert_eq(hdt_report_queue_first(queue), dropped + 1);
        cr_assert_eq(hdt_report_queue_last(queue), added);
    }
    cr_expect_null(hdt_report_queue_oldest(queue));
    hdt_report_queue_free(queue);
    cr_expect(folder_is_empty(dir), "the file outlives the queue");
    rmdir(dir);
}

/* Steps are refused when nothing has room; what a job's course needs has room after that. */
Test(report_queue, what_is_kept_is_bounded_and_keeps_its_order)
{
    static const char *const dirs[] = {NULL, "/nonexistent/folder"};

    for (size_t i = 0; i < 2; i++) {
        struct hdt_report_queue_conf conf = {
            .spool_dir = dirs[i], .memory_bytes = 10 * REPORT_LEN, .spool_bytes = 1 << 20};
        struct hdt_report_queue *queue = hdt_report_queue_new(&conf);
        unsigned number = 0, n_kept = 0;

        while (add(queue, ++number, false)) {
            n_kept++;
        }
        cr_expect_eq(n_kept, 20);
        cr_expect_eq(add(queue, 100, false), 0);
        cr_expect_eq(add(queue, 101, true), 21);
        cr_expect_eq(add(queue, 102, true), 22);
        hdt_report_queue_drop(queue, 20);
        expect_oldest(queue, 21, 101);
        hdt_report_queue_drop(queue, 21);
        expect_oldest(queue, 22, 102);
        hdt_report_queue_free(queue);
    }
}

Test(report_queue, a_full_file_keeps_what_it_has)
{
    char dir[] = "/tmp/hdt-queue-XXXXXX";
    struct hdt_report_queue_conf conf = {
        .spool_dir = dir, .memory_bytes = 5 * REPORT_LEN, .spool_bytes = 10 * (REPORT_LEN + 16)};
    struct hdt_report_queue *queue;
    unsigned n_kept = 0;

    cr_assert(mkdtemp(dir));
    queue = hdt_report_queue_new(&conf);
    while (add(queue, n_kept + 1, false)) {
        n_kept++;
    }
    cr_expect_eq(n_kept, 20); /* memory, the file, memory */
    for (unsigned n = 1; n <= n_kept; n++) {
        expect_oldest(queue, n, n);
        hdt_report_queue_drop(queue, n);
    }
    for (unsigned n = 21; n <= 60; n++) { /* all of it is there for the next ones */
        cr_expect_eq(add(queue, n, false), n <= 40 ? n : 0);
    }
    hdt_report_queue_free(queue);
    rmdir(dir);
}
