/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/worker_run.h"
#include "src/base/buf.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

void hdt_worker_args_add(struct hdt_worker_args *args, const char *option, const char *value)
{
    int n_more = value ? 2 : 1;

    args->items = hdt_realloc(args->items, (size_t)(args->n + n_more + 1) * sizeof(*args->items));
    args->items[args->n++] = hdt_strdup(option);
    if (value) {
        args->items[args->n++] = hdt_strdup(value);
    }
    args->items[args->n] = NULL;
}

void hdt_worker_args_release(struct hdt_worker_args *args)
{
    for (int i = 0; i < args->n; i++) {
        free(args->items[i]);
    }
    free(args->items);
    memset(args, 0, sizeof(*args));
}

/* The program beside this one; else its name alone, to be looked for in PATH. To be freed. */
static char *worker_find(void)
{
    char self[PATH_MAX];
    ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);
    char *slash, *path;

    if (len > 0) {
        self[len] = '\0';
        slash = strrchr(self, '/');
        path = hdt_asprintf("%.*s/hdt-worker", slash ? (int)(slash - self) : 0, self);
        if (slash && access(path, X_OK) == 0) {
            return path;
        }
        free(path);
    }
    return hdt_strdup("hdt-worker");
}

static enum hdt_status pipe_drain(int fd, struct hdt_buf *out, struct hdt_error *err)
{
    char chunk[4096];
    ssize_t n;

    do {
        n = read(fd, chunk, sizeof(chunk));
        if (n < 0 && errno != EINTR) {
            return hdt_error_set_errno(err, HDT_EIO, errno, "cannot read from hdt-worker");
        }
        hdt_buf_append(out, chunk, n > 0 ? (size_t)n : 0);
    } while (n != 0);
    return HDT_OK;
}

static enum hdt_status worker_spawn(struct hdt_worker_args *args, int out_fd, pid_t *pid,
                                    struct hdt_error *err)
{
    char *program = worker_find();
    posix_spawn_file_actions_t actions;
    enum hdt_status status = HDT_OK;
    char **argv = hdt_calloc((size_t)args->n + 2, sizeof(*argv));
    int rc;

    argv[0] = program;
    for (int i = 0; i < args->n; i++) {
        argv[i + 1] = args->items[i];
    }
    posix_spawn_file_actions_init(&actions);
    if (out_fd >= 0) {
        posix_spawn_file_actions_adddup2(&actions, out_fd, STDOUT_FILENO);
    }
    fflush(NULL);
    rc = posix_spawnp(pid, program, &actions, NULL, argv, environ);
    if (rc != 0) {
        status = hdt_error_set_errno(err, rc == ENOENT ? HDT_ENOENT : HDT_EIO, rc,
                                     "cannot run hdt-worker");
        hdt_error_hint(err, "it is looked for beside 'hdt' and in PATH; is it installed?");
    }
    posix_spawn_file_actions_destroy(&actions);
    free(argv);
    free(program);
    return status;
}

enum hdt_status hdt_worker_run(struct hdt_worker_args *args, struct hdt_buf *out, int *exit_code,
                               struct hdt_error *err)
{
    int ends[2] = {-1, -1}, wait_status;
    enum hdt_status status;
    pid_t pid;

    if (out && pipe2(ends, O_CLOEXEC) != 0) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot make a pipe");
    }
    status = worker_spawn(args, ends[1], &pid, err);
    if (out) {
        close(ends[1]);
    }
    if (status == HDT_OK && out) {
        status = pipe_drain(ends[0], out, err);
    }
    if (out) {
        close(ends[0]);
    }
    if (status != HDT_OK) {
        return status;
    }
    while (waitpid(pid, &wait_status, 0) < 0 && errno == EINTR) {
    }
    if (!WIFEXITED(wait_status)) {
        return hdt_error_set(err, HDT_EIO, "hdt-worker was ended by signal %d",
                             WTERMSIG(wait_status));
    }
    *exit_code = WEXITSTATUS(wait_status);
    return HDT_OK;
}
