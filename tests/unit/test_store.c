/* SPDX-License-Identifier: Apache-2.0 */
/* Job state and the audit log on disks that are full, or that change bits. */
#include "config.h"

#include "gateway/audit.h"
#include "gateway/store.h"
#include "src/base/buf.h"
#include "src/base/file.h"
#include "src/base/log.h"
#include "tests/support/scratch.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define N_JOBS 3

static char *dir;

static void setup(void)
{
    hdt_log_init("test", HDT_LOG_ERROR);
    hdt_scratch_init();
    dir = hdt_strdup(hdt_scratch_path(""));
    signal(SIGXFSZ, SIG_IGN);
}

static void teardown(void)
{
    free(dir);
    hdt_scratch_release();
}

TestSuite(store, .init = setup, .fini = teardown, .timeout = 300);

/* No file may grow beyond this: a full disk for who writes. */
static void disk_limit(rlim_t bytes)
{
    struct rlimit limit;

    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static json_t *record_of(int job, int step)
{
    char filler[512];

    memset(filler, 'a' + job, sizeof(filler) - 1);
    filler[sizeof(filler) - 1] = '\0';
    return json_pack("{s:i, s:i, s:s}", "job", job, "step", step, "filler", filler);
}

static struct hdt_store *store_open(void)
{
    struct hdt_store *store;
    struct hdt_error err = {0};

    cr_assert_eq(hdt_store_open(dir, &store, &err), HDT_OK, "%s", err.msg);
    return store;
}

static enum hdt_status put(struct hdt_store *store, int job, int step, const char *state)
{
    json_t *record = record_of(job, step);
    enum hdt_status status = hdt_store_put_job(store, (uint32_t)job, state, record, NULL);

    json_decref(record);
    return status;
}

/* What a reader sees: bit j for a right record of job j; anything wrong is counted. */
struct seen {
    int jobs, n_wrong, step;
};

static void each(void *user, uint32_t job, const char *state, const json_t *record)
{
    struct seen *seen = user;
    json_t *want = record_of((int)job, seen->step);

    if (job >= 1 && job <= N_JOBS && strcmp(state, "running") == 0 && json_equal(want, record)) {
        seen->jobs |= 1 << job;
    } else {
        seen->n_wrong++;
    }
    json_decref(want);
}

Test(store, a_full_disk_delays_records_and_loses_none)
{
    struct hdt_store *store = store_open();
    struct seen seen = {.step = 7};
    int64_t number;

    for (int job = 1; job <= N_JOBS; job++) {
        cr_assert_eq(put(store, job, 1, "preparing"), HDT_OK);
    }
    disk_limit(1);
    for (int job = 1; job <= N_JOBS; job++) {
        cr_expect_eq(put(store, job, 6, "running"), HDT_EIO);
        cr_expect_eq(put(store, job, 7, "running"), HDT_EIO);
    }
    cr_expect_eq(hdt_store_next(store, "job", &number, NULL), HDT_EIO);
    cr_expect_eq(hdt_store_n_waiting(store), N_JOBS);
    hdt_store_retry(store);
    cr_expect_eq(hdt_store_n_waiting(store), N_JOBS);
    disk_limit(RLIM_INFINITY);
    hdt_store_retry(store);
    cr_expect_eq(hdt_store_n_waiting(store), 0);
    cr_expect_eq(hdt_store_next(store, "job", &number, NULL), HDT_OK);
    cr_expect_eq(number, 1);
    hdt_store_close(store);

    store = store_open();
    cr_expect_eq(hdt_store_each_job(store, each, &seen, NULL), HDT_OK);
    cr_expect_eq(seen.jobs, 1 << 1 | 1 << 2 | 1 << 3);
    cr_expect_eq(seen.n_wrong, 0);
    hdt_store_close(store);
}

/* A gateway that was killed with the disk full finds the records of before. */
Test(store, what_was_there_before_a_full_disk_is_there_after_it)
{
    struct hdt_store *store = store_open();
    struct seen seen = {.step = 1};

    cr_assert_eq(put(store, 1, 1, "running"), HDT_OK);
    disk_limit(1);
    cr_expect_eq(put(store, 1, 2, "running"), HDT_EIO);
    hdt_store_close(store);
    disk_limit(RLIM_INFINITY);
    store = store_open();
    cr_expect_eq(hdt_store_each_job(store, each, &seen, NULL), HDT_OK);
    cr_expect_eq(seen.jobs, 1 << 1);
    cr_expect_eq(seen.n_wrong, 0);
    hdt_store_close(store);
}

/* One bit of a byte of the file: the store is refused, or says that records are damaged, or reads
 * what was written. */
static void flip_look(size_t i, unsigned bit)
{
    struct seen seen = {.step = 1};
    struct hdt_store *store;
    struct hdt_error err = {0};
    enum hdt_status status;
    int64_t number = 0;

    if (hdt_store_open(dir, &store, &err) != HDT_OK) {
        cr_expect(err.hint[0]);
        return;
    }
    status = hdt_store_each_job(store, each, &seen, &err);
    cr_expect_eq(seen.n_wrong, 0, "byte %zu, bit %u: a wrong record was read", i, bit);
    if (status == HDT_OK) { /* those that are damaged were named in the log, one by one */
        status = hdt_store_next(store, "job", &number, &err);
        cr_expect(status != HDT_OK || number == 3, "byte %zu, bit %u: job number %d comes again", i,
                  bit, (int)number);
    }
    hdt_store_close(store);
}

Test(store, no_bit_that_flips_is_taken_for_a_record)
{
    uint32_t seed = (uint32_t)time(NULL);
    const char *path = hdt_scratch_path("hdt.db");
    struct hdt_store *store = store_open();
    struct hdt_buf bad = {0};
    int64_t number;
    size_t len;
    char *good;

    cr_log_info("seed %u", seed);
    hdt_log_set_level((enum hdt_log_level) - 1);
    for (int job = 1; job <= N_JOBS; job++) {
        cr_assert_eq(put(store, job, 1, "running"), HDT_OK);
    }
    cr_assert_eq(hdt_store_next(store, "job", &number, NULL), HDT_OK);
    cr_assert_eq(hdt_store_next(store, "job", &number, NULL), HDT_OK);
    hdt_store_close(store);
    good = hdt_scratch_read(path, &len);
    cr_assert(good);
    for (int n = 0; n < 600; n++) {
        size_t i = (size_t)((uint64_t)(seed = seed * 1664525u + 1013904223u) * len >> 32);
        unsigned bit = (seed = seed * 1664525u + 1013904223u) >> 29;

        hdt_buf_clear(&bad);
        hdt_buf_append(&bad, good, len);
        bad.data[i] = (char)(bad.data[i] ^ 1 << bit);
        unlink(hdt_scratch_path("hdt.db-wal"));
        hdt_scratch_write("hdt.db", bad.data, bad.len);
        flip_look(i, bit);
    }
    hdt_buf_release(&bad);
    free(good);
}

/* ---- audit.jsonl ---- */

static void event_write(struct hdt_audit *audit, int n)
{
    struct hdt_audit_event event = {
        .what = "test", .who = "uid 1", .from = "", .detail = json_pack("{s:i}", "n", n)};

    hdt_audit_write(audit, &event);
}

/* Every line is JSON; the sum of 10^-n.. a digit for each event that is there. */
static void expect_lines(const char *want)
{
    char got[64] = "", *text, *line, *at = NULL;
    size_t len;

    text = hdt_scratch_read(hdt_scratch_path("audit.jsonl"), &len);
    cr_assert(text);
    for (line = strtok_r(text, "\n", &at); line; line = strtok_r(NULL, "\n", &at)) {
        json_t *json = json_loads(line, 0, NULL);

        cr_expect(json, "not a whole line: '%s'", line);
        snprintf(got + strlen(got), sizeof(got) - strlen(got), "%d",
                 (int)json_integer_value(json_object_get(json_object_get(json, "detail"), "n")));
        json_decref(json);
    }
    cr_expect_str_eq(got, want);
    free(text);
}

Test(store, audit_lines_are_whole_on_a_full_disk_and_after_it)
{
    struct hdt_audit *audit;
    struct hdt_error err = {0};
    size_t len;

    cr_assert_eq(hdt_audit_open(dir, &audit, &err), HDT_OK, "%s", err.msg);
    event_write(audit, 1);
    free(hdt_scratch_read(hdt_scratch_path("audit.jsonl"), &len));
    disk_limit(len + 10); /* the next one fits in part */
    event_write(audit, 2);
    event_write(audit, 3);
    cr_expect_eq(hdt_audit_n_lost(audit), 2);
    expect_lines("1");
    disk_limit(RLIM_INFINITY);
    event_write(audit, 4);
    expect_lines("14");
    hdt_audit_close(audit);
}

Test(store, a_line_that_a_killed_process_left_half_stays_alone)
{
    const char half[] = "{\"when\":\"2026-0";
    struct hdt_audit *audit;
    struct hdt_error err = {0};
    size_t len;
    char *text;

    hdt_scratch_write("audit.jsonl", half, sizeof(half) - 1);
    cr_assert_eq(hdt_audit_open(dir, &audit, &err), HDT_OK, "%s", err.msg);
    event_write(audit, 5);
    hdt_audit_close(audit);
    text = hdt_scratch_read(hdt_scratch_path("audit.jsonl"), &len);
    cr_assert(text && len > sizeof(half));
    cr_expect_eq(text[sizeof(half) - 1], '\n');
    cr_expect_eq(text[sizeof(half)], '{');
    free(text);
}

static void each_number(void *user, uint32_t job, const char *state, const json_t *record)
{
    (void)state;
    (void)record;
    *(unsigned *)user |= 1u << job;
}

Test(store, old_records_go_and_the_others_stay)
{
    struct hdt_store *store = store_open();
    unsigned jobs = 0;

    for (int job = 1; job <= 8; job++) {
        cr_assert_eq(put(store, job, 1,
                         job % 2    ? "done"
                         : job == 2 ? "running"
                                    : "failed"),
                     HDT_OK);
    }
    cr_expect_eq(hdt_store_prune(store, "done failed", 3, NULL), HDT_OK);
    cr_expect_eq(hdt_store_prune(store, "don", 0, NULL), HDT_OK, "no state of that name");
    hdt_store_close(store);
    store = store_open();
    cr_expect_eq(hdt_store_each_job(store, each_number, &jobs, NULL), HDT_OK,
                 "none is taken for missing");
    cr_expect_eq(jobs, 1u << 2 | 1u << 6 | 1u << 7 | 1u << 8);
    hdt_store_close(store);
}
