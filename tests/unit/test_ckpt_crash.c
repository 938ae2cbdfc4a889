/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A save that is killed, or refused by the disk, at every call that changes the disk. The linker
 * puts the functions below in front of the C library's: call number `stop_at` kills the process (a
 * write after its first half), or fails as on a full disk.
 */
#include "config.h"

#include "src/base/log.h"
#include "tests/support/ckpt_case.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum how { HOW_NOT, HOW_KILL, HOW_FULL };

static enum how how;
static long n_calls, stop_at;

/* ---- calls that change the disk ---- */

/* true: this one is to fail with errno. */
static bool boundary(void)
{
    if (how == HOW_NOT || n_calls++ != stop_at) {
        return false;
    }
    if (how == HOW_KILL) {
        kill(getpid(), SIGKILL);
    }
    errno = ENOSPC;
    return true;
}

#define WRAP(type, name, params, args)                                                             \
 type __real_##name params;                                                                        \
 type __wrap_##name params;                                                                        \
 type __wrap_##name params                                                                         \
 {                                                                                                 \
  return boundary() ? (type)-1 : __real_##name args;                                               \
 }
WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode))
WRAP(int, chmod, (const char *path, mode_t mode), (path, mode))
WRAP(int, fsync, (int fd), (fd))
WRAP(int, fdatasync, (int fd), (fd))
WRAP(int, rename, (const char *from, const char *to), (from, to))
WRAP(int, renameat2, (int a, const char *from, int b, const char *to, unsigned flags),
     (a, from, b, to, flags))
WRAP(int, symlink, (const char *to, const char *path), (to, path))
WRAP(int, unlink, (const char *path), (path))
WRAP(int, rmdir, (const char *path), (path))
WRAP(int, fallocate, (int fd, int mode, off_t pos, off_t len), (fd, mode, pos, len))

char *__real_mkdtemp(char *path);
char *__wrap_mkdtemp(char *path);
char *__wrap_mkdtemp(char *path)
{
    return boundary() ? NULL : __real_mkdtemp(path);
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    mode_t mode;
    va_list ap;

    va_start(ap, flags);
    mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return (flags & O_CREAT) && boundary() ? -1 : __real_open(path, flags, mode);
}

ssize_t __real_pwrite(int fd, const void *data, size_t len, off_t pos);
ssize_t __wrap_pwrite(int fd, const void *data, size_t len, off_t pos);
ssize_t __wrap_pwrite(int fd, const void *data, size_t len, off_t pos)
{
    if (how != HOW_NOT && n_calls == stop_at) {
        (void)!__real_pwrite(fd, data, len / 2, pos);
    }
    return boundary() ? -1 : __real_pwrite(fd, data, len, pos);
}

/* ---- the cases ---- */

static char root[64], dir[80];

/* Nothing half is ever taken: every step-N that is there is whole to the last byte. */
static void expect_all_whole(void)
{
    struct hdt_ckpt_found *found;
    struct hdt_error err = {0};
    size_t n;

    cr_assert_eq(hdt_ckpt_list(dir, &found, &n, &err), HDT_OK, "%s", err.msg);
    for (size_t i = 0; i < n; i++) {
        cr_expect(found[i].complete, "call %ld: %s", stop_at, found[i].why.msg);
        cr_expect_eq(hdt_ckpt_case_load(found[i].path, &err), found[i].step, "call %ld: %s",
                     stop_at, err.msg);
    }
    free(found);
}

static void save_here(int64_t step, int64_t keep)
{
    struct hdt_ckpt_meta meta = hdt_ckpt_case_meta(step);
    struct hdt_error err = {0};

    cr_assert_eq(hdt_ckpt_case_save(dir, &meta, keep, 1, &err), HDT_OK, "call %ld: %s", stop_at,
                 err.msg);
}

/* In a child, stopped at call `at`. 0: it was not stopped and succeeded; 1: it failed; 9: killed.
 */
static int save_stopped(enum how how_now, long at, int64_t step, int64_t keep)
{
    struct hdt_ckpt_meta meta = hdt_ckpt_case_meta(step);
    struct hdt_error err = {0};
    int status;
    pid_t pid = fork();

    cr_assert(pid >= 0);
    if (pid == 0) {
        hdt_log_set_level(HDT_LOG_ERROR);
        how = how_now;
        n_calls = 0;
        stop_at = at;
        status = hdt_ckpt_case_save(dir, &meta, keep, 1, &err) == HDT_OK ? 0 : 1;
        /* Not even reached: all boundaries were passed. */
        _exit(n_calls <= at ? 100 + status : status);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

static void start_anew(int64_t before)
{
    hdt_ckpt_case_remove(root);
    cr_assert_eq(__real_mkdir(root, 0755), 0);
    save_here(before, 1);
}

/* One checkpoint is there; the save of `step`, stopped at each call in turn, leaves it or itself.
 * Returns the number of calls. */
static long stop_everywhere(enum how how_now, int64_t before, int64_t step)
{
    struct hdt_error err = {0};
    int64_t loaded;
    long at;
    int rc;

    for (at = 0;; at++) {
        stop_at = at;
        start_anew(before);
        rc = save_stopped(how_now, at, step, 1);
        loaded = hdt_ckpt_case_load(dir, &err);
        if (rc >= 100) {
            cr_expect_eq(rc, 100);
            cr_expect_eq(loaded, step);
            return at;
        }
        cr_expect(rc == 0 || rc == (how_now == HOW_KILL ? SIGKILL : 1), "call %ld: %d", at, rc);
        cr_expect(loaded == before || loaded == step, "call %ld: %s", at, err.msg);
        if (rc == 0) {
            cr_expect_eq(loaded, step, "call %ld: success was said", at);
        }
        if (how_now == HOW_FULL && rc == 1) {
            cr_expect_leq(hdt_ckpt_case_n_named(dir, ".tmp-"), 1, "call %ld", at);
        }
        expect_all_whole();
        /* The next one cleans up and is as good as any. */
        save_here(step + 1, 1);
        cr_expect_eq(hdt_ckpt_case_load(dir, &err), step + 1, "call %ld: %s", at, err.msg);
        cr_expect_eq(hdt_ckpt_case_n_named(dir, "tmp"), 0, "call %ld: something is left", at);
    }
}

/* In memory where there is a folder for it: it is processes that end here, not the machine, and
 * some hundred saves wait for a disk most of the time. */
static void setup(void)
{
    hdt_log_init("test", HDT_LOG_ERROR);
    snprintf(root, sizeof(root), "%s/hdt-crash-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    cr_assert(__real_mkdtemp(root));
    snprintf(dir, sizeof(dir), "%s/ck", root);
}

static void teardown(void)
{
    hdt_ckpt_case_remove(root);
}

TestSuite(ckpt_crash, .init = setup, .fini = teardown, .timeout = 300);

Test(ckpt_crash, killed_at_any_call_a_save_leaves_the_old_one_or_the_new)
{
    cr_expect_geq(stop_everywhere(HOW_KILL, 1, 2), 60);
}

Test(ckpt_crash, killed_at_any_call_a_save_of_the_same_step_leaves_one_of_the_two)
{
    cr_expect_geq(stop_everywhere(HOW_KILL, 2, 2), 60);
}

Test(ckpt_crash, refused_at_any_call_a_save_leaves_the_old_one_or_the_new)
{
    cr_expect_geq(stop_everywhere(HOW_FULL, 1, 2), 60);
}

Test(ckpt_crash, what_another_process_is_writing_is_not_cleaned)
{
    struct hdt_ckpt_writer_conf conf = {
        .dir = dir, .model = &hdt_ckpt_case_model, .meta = hdt_ckpt_case_meta(9)};
    struct hdt_ckpt_writer *writer;
    struct hdt_error err = {0};

    cr_assert_eq(hdt_ckpt_writer_open(&conf, &writer, &err), HDT_OK, "%s", err.msg);
    save_here(1, 1);
    cr_expect_eq(hdt_ckpt_case_n_named(dir, ".tmp-"), 1);
    hdt_ckpt_writer_abort(writer);
    cr_expect_eq(hdt_ckpt_case_n_named(dir, ".tmp-"), 0);
}
