/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/base/recorder.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/file.h"
#include "src/base/log.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char dir[64];

static void dir_make(void)
{
    snprintf(dir, sizeof(dir), "/tmp/hdt-recorder-XXXXXX");
    cr_assert(mkdtemp(dir));
}

static void dir_remove(void)
{
    DIR *folder = opendir(dir);
    const struct dirent *entry;
    char path[400];

    while (folder && (entry = readdir(folder))) {
        snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
        unlink(path);
    }
    closedir(folder);
    rmdir(dir);
}

/* Dumps in the folder; the name of the newest in `newest`, and whether anything else is there. */
static int dumps_count(char newest[256], bool *clean)
{
    DIR *folder = opendir(dir);
    const struct dirent *entry;
    int n = 0;

    newest[0] = '\0';
    *clean = true;
    while (folder && (entry = readdir(folder))) {
        const char *end = strrchr(entry->d_name, '.');

        if (entry->d_name[0] == '.') {
            continue;
        }
        if (strncmp(entry->d_name, "flight-", 7) != 0 || !end || strcmp(end, ".jsonl") != 0) {
            *clean = false;
            continue;
        }
        n++;
        if (strcmp(entry->d_name, newest) > 0) {
            snprintf(newest, 256, "%s", entry->d_name);
        }
    }
    closedir(folder);
    return n;
}

static void dump_wait(uint64_t n)
{
    const int64_t until = hdt_clock_now_us() + 30 * HDT_US_PER_S;

    while (hdt_recorder_n_dumps() < n) {
        cr_assert(hdt_clock_now_us() < until, "no dump");
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}

/* The lines of a dump, as another program reads them. */
static json_t *dump_read(const char *path)
{
    struct hdt_buf bytes = {0};
    struct hdt_error err = {0};
    json_t *lines = json_array();

    cr_assert_eq(hdt_file_read(path, 256 << 20, &bytes, &err), HDT_OK, "%s", err.msg);
    for (char *line = bytes.data; line && *line;) {
        char *end = strchr(line, '\n');
        json_error_t why;
        json_t *item;

        cr_assert(end, "the last line is cut");
        item = json_loadb(line, (size_t)(end - line), 0, &why);
        cr_assert(item, "%s: %.*s", why.text, (int)(end - line), line);
        json_array_append_new(lines, item);
        line = end + 1;
    }
    hdt_buf_release(&bytes);
    return lines;
}

static const char *text_of(const json_t *line, const char *key)
{
    const char *text = json_string_value(json_object_get(line, key));

    return text ? text : "";
}

static size_t lines_of(const json_t *lines, const char *area)
{
    size_t i, n = 0;
    json_t *line;

    json_array_foreach(lines, i, line)
    {
        n += strcmp(text_of(line, "area"), area) == 0;
    }
    return n;
}

static const json_t *line_of(const json_t *lines, const char *area)
{
    size_t i;
    json_t *line;

    json_array_foreach(lines, i, line)
    {
        if (strcmp(text_of(line, "area"), area) == 0) {
            return line;
        }
    }
    return NULL;
}

Test(recorder, what_was_logged_and_recorded_is_in_the_dump_in_order, .init = dir_make,
     .fini = dir_remove)
{
    struct hdt_error err = {0};
    char long_text[400], path[512];
    json_t *lines;
    const json_t *line;
    json_int_t last = 0;
    size_t i;
    json_t *item;

    memset(long_text, 'x', sizeof(long_text) - 1);
    long_text[sizeof(long_text) - 1] = '\0';
    hdt_log_set_level(HDT_LOG_ERROR);
    HDT_RECORD(HDT_REC_STATE, .n = {1}, .text = {"too early"});
    cr_assert_eq(hdt_recorder_open(dir, "gateway-a", &err), HDT_OK, "%s", err.msg);
    hdt_log_debug("not printed, \"quoted\" \xff and %s", "\xc3\xa9t\xc3\xa9");
    hdt_log_trace("of a chunk: not kept");
    HDT_RECORD(HDT_REC_FRAME, .n = {7, 2, 1234567890123, -1});
    HDT_RECORD(HDT_REC_FLOW, .n = {7, 2, 1, 5}, .text = {"open", "src", "site-b"});
    HDT_RECORD(HDT_REC_CONNECTION, .text = {"down", "site-b", long_text});
    hdt_recorder_dump("stall");
    dump_wait(1);
    hdt_recorder_last_dump(path, sizeof(path));
    lines = dump_read(path);
    cr_expect_str_eq(text_of(json_array_get(lines, 0), "reason"), "stall");
    cr_expect_eq(lines_of(lines, "job"), 0);
    cr_expect_eq(lines_of(lines, "log"), 1);
    line = line_of(lines, "log");
    cr_expect_str_eq(text_of(line, "level"), "debug");
    cr_expect_str_eq(text_of(line, "text"), "not printed, \"quoted\" ? and \xc3\xa9t\xc3\xa9");
    line = line_of(lines, "frame");
    cr_expect_eq(json_integer_value(json_object_get(line, "seq")), 1234567890123);
    cr_expect_eq(json_integer_value(json_object_get(line, "bytes")), -1);
    line = line_of(lines, "flow");
    cr_expect_str_eq(text_of(line, "event"), "open");
    cr_expect_str_eq(text_of(line, "peer"), "site-b");
    line = line_of(lines, "connection");
    cr_expect_str_eq(text_of(line, "why"), long_text);
    json_array_foreach(lines, i, item)
    {
        json_int_t at = json_integer_value(json_object_get(item, "mono_us"));

        cr_expect(i < 2 || at >= last, "line %zu is older than the one before", i);
        last = at;
    }
    json_decref(lines);
    hdt_recorder_close();
}

/* The wall clock of a line is the one that the C library prints. */
Test(recorder, time_is_utc, .init = dir_make, .fini = dir_remove)
{
    struct timespec at[2]; /* not time(): it lags behind by a tick */
    struct hdt_error err = {0};
    char path[512], want[2][32];
    json_t *lines;

    cr_assert_eq(hdt_recorder_open(dir, "w", &err), HDT_OK);
    clock_gettime(CLOCK_REALTIME, &at[0]);
    hdt_recorder_dump("stall");
    dump_wait(1);
    clock_gettime(CLOCK_REALTIME, &at[1]);
    for (int i = 0; i < 2; i++) {
        struct tm utc;

        strftime(want[i], sizeof(want[i]), "%Y-%m-%dT%H:%M:%S", gmtime_r(&at[i].tv_sec, &utc));
    }
    hdt_recorder_last_dump(path, sizeof(path));
    lines = dump_read(path);
    cr_expect(strncmp(text_of(json_array_get(lines, 0), "time"), want[0], 19) >= 0);
    cr_expect(strncmp(text_of(json_array_get(lines, 0), "time"), want[1], 19) <= 0);
    json_decref(lines);
    hdt_recorder_close();
}

#define N_THREADS 4
#define N_EVENTS  100000

/* Bytes of this process that are in memory. */
static long resident(void)
{
    long size = 0, pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");

    cr_assert(file && fscanf(file, "%ld %ld", &size, &pages) == 2);
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

/* A process that grows for hours until its rings have been round looks like one that leaks. */
Test(recorder, memory_is_all_there_at_the_start, .init = dir_make, .fini = dir_remove)
{
    struct hdt_error err = {0};
    long before;

    cr_assert_eq(hdt_recorder_open(dir, "w", &err), HDT_OK);
    before = resident();
    for (int64_t i = 0; i < 200000; i++) {
        HDT_RECORD(HDT_REC_FRAME, .n = {0, i, i, i});
        HDT_RECORD(HDT_REC_CONNECTION, .text = {"up", "x", "x"});
    }
    /* A third of the rings: a sanitizer's own memory grows too. */
    cr_expect_leq(resident() - before, 4 << 20, "%ld bytes more", resident() - before);
    hdt_recorder_close();
}

static void *storm(void *user)
{
    const int64_t self = (int64_t)(intptr_t)user;

    for (int64_t i = 0; i < N_EVENTS; i++) {
        HDT_RECORD(HDT_REC_FRAME, .n = {self, i, self * 1000003 + i, self ^ i});
        if (i % 64 == 0) {
            HDT_RECORD(HDT_REC_CONNECTION, .text = {"up",
                                                    "a text of more than one cell's bytes, "
                                                    "so that cells of threads mix",
                                                    "x"});
        }
    }
    return NULL;
}

/* Three times round the ring while it is dumped: every line is one event's, none a mix. */
Test(recorder, threads_that_go_round_the_ring_leave_only_whole_events, .init = dir_make,
     .fini = dir_remove, .timeout = 120)
{
    struct hdt_error err = {0};
    pthread_t threads[N_THREADS];
    char path[512];
    json_t *lines, *line;
    size_t i, n_frames = 0;

    cr_assert_eq(hdt_recorder_open(dir, "w", &err), HDT_OK);
    for (intptr_t t = 0; t < N_THREADS; t++) {
        pthread_create(&threads[t], NULL, storm, (void *)t);
    }
    hdt_recorder_dump("stall");
    dump_wait(1);
    for (int t = 0; t < N_THREADS; t++) {
        pthread_join(threads[t], NULL);
    }
    hdt_recorder_last_dump(path, sizeof(path));
    lines = dump_read(path);
    json_array_foreach(lines, i, line)
    {
        json_int_t self = json_integer_value(json_object_get(line, "job"));
        json_int_t at = json_integer_value(json_object_get(line, "flow"));

        if (strcmp(text_of(line, "area"), "frame") == 0) {
            cr_assert_eq(json_integer_value(json_object_get(line, "seq")), self * 1000003 + at);
            cr_assert_eq(json_integer_value(json_object_get(line, "bytes")), self ^ at);
            n_frames++;
        }
    }
    cr_expect_leq(n_frames, 1u << 17);
    json_decref(lines);
    hdt_recorder_close();
}

Test(recorder, at_most_eight_are_kept_and_foreign_files_stay, .init = dir_make, .fini = dir_remove)
{
    struct hdt_error err = {0};
    char path[400], newest[256];
    bool clean;

    for (int i = 0; i < 12; i++) {
        snprintf(path, sizeof(path), "%s/flight-w-20250101T0000%02d.000Z-stall.jsonl", dir, i);
        fclose(fopen(path, "w"));
    }
    snprintf(path, sizeof(path), "%s/flight-w-2-20240101T000000.000Z-stall.jsonl", dir);
    fclose(fopen(path, "w"));
    snprintf(path, sizeof(path), "%s/flight-w-20250101T000000.000Z-stall.jsonl.part", dir);
    fclose(fopen(path, "w"));
    cr_assert_eq(hdt_recorder_open(dir, "w", &err), HDT_OK);
    hdt_recorder_dump("stall");
    dump_wait(1);
    cr_expect_eq(dumps_count(newest, &clean), 8 + 1); /* w-2 is another worker's */
    cr_expect(clean, "the half-written one of an earlier life is there");
    hdt_recorder_close();
}

Test(recorder, stalls_in_a_row_are_one_dump, .init = dir_make, .fini = dir_remove)
{
    struct hdt_error err = {0};
    char newest[256];
    bool clean;

    cr_assert_eq(hdt_recorder_open(dir, "w", &err), HDT_OK);
    for (int i = 0; i < 50; i++) {
        hdt_recorder_dump("stall");
    }
    hdt_recorder_close(); /* writes what was asked for */
    cr_expect_eq(dumps_count(newest, &clean), 1);
}

Test(recorder, sigusr1_from_outside_writes_one, .init = dir_make, .fini = dir_remove)
{
    struct hdt_error err = {0};
    char newest[256];
    bool clean;

    cr_assert_eq(hdt_recorder_open(dir, "w", &err), HDT_OK);
    kill(getpid(), SIGUSR1);
    dump_wait(1);
    cr_expect_eq(dumps_count(newest, &clean), 1);
    cr_expect(strstr(newest, "-sigusr1.jsonl"), "%s", newest);
    hdt_recorder_close();
}

/* A child that dies so. Returns its wait status. */
static int child_die(void (*death)(void))
{
    struct hdt_error err = {0};
    int status = 0;
    pid_t pid = fork();

    if (pid == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        signal(SIGSEGV, SIG_DFL);
        signal(SIGABRT, SIG_DFL);
        if (hdt_recorder_open(dir, "w", &err) == HDT_OK) {
            HDT_RECORD(HDT_REC_STATE, .n = {3}, .text = {"running"});
            death();
        }
        _exit(0);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return status;
}

static void death_by_assert(void)
{
    volatile int one = 1;

    HDT_ASSERT(one == 2);
}

static void death_by_pointer(void)
{
    volatile int *volatile nowhere = NULL;

    *nowhere = 1;
}

static void *death_thread(void *user)
{
    (void)user;
    death_by_pointer();
    return NULL;
}

static void death_in_a_thread(void)
{
    pthread_t thread;

    pthread_create(&thread, NULL, death_thread, NULL);
    pthread_join(thread, NULL);
}

static void death_check(void (*death)(void), int number, const char *suffix)
{
    int status = child_die(death);
    char newest[256], path[400];
    json_t *lines;
    bool clean;

    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == number, "status %d", status);
    cr_assert_eq(dumps_count(newest, &clean), 1);
    cr_expect(strstr(newest, suffix), "%s", newest);
    snprintf(path, sizeof(path), "%s/%s", dir, newest);
    lines = dump_read(path);
    cr_expect_str_eq(text_of(line_of(lines, "job"), "state"), "running");
    if (number == SIGABRT) {
        cr_expect_str_eq(text_of(line_of(lines, "assert"), "condition"), "one == 2");
    }
    json_decref(lines);
}

Test(recorder, a_failed_assertion_leaves_a_dump_and_the_usual_death, .init = dir_make,
     .fini = dir_remove)
{
    death_check(death_by_assert, SIGABRT, "-sigabrt.jsonl");
}

#if !defined(__SANITIZE_ADDRESS__)
Test(recorder, a_wild_pointer_leaves_a_dump_and_the_usual_death, .init = dir_make,
     .fini = dir_remove)
{
    death_check(death_by_pointer, SIGSEGV, "-sigsegv.jsonl");
}

Test(recorder, also_in_a_thread, .init = dir_make, .fini = dir_remove)
{
    death_check(death_in_a_thread, SIGSEGV, "-sigsegv.jsonl");
}
#endif

/* A disk that is full: no file, nothing half, and the process goes on. */
Test(recorder, a_folder_that_cannot_be_written_is_survived, .init = dir_make, .fini = dir_remove)
{
    struct hdt_error err = {0};
    char newest[256];
    bool clean;

    hdt_log_set_level(HDT_LOG_ERROR);
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(hdt_recorder_open(dir, "w", &err), HDT_OK);
    for (int i = 0; i < 2000; i++) {
        HDT_RECORD(HDT_REC_FRAME, .n = {1, 2, i, 4});
    }
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){20000, RLIM_INFINITY});
    hdt_recorder_dump("stall");
    dump_wait(1);
    cr_expect_eq(dumps_count(newest, &clean), 0);
    cr_expect(clean, "a part of it lies there");
    hdt_recorder_close();
}
