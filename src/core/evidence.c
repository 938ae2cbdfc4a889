/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/evidence.h"
#include "src/base/buf.h"
#include "src/base/recorder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* "trace-rank12.json" */
static bool is_trace(const char *name)
{
    int end = 0;

    return sscanf(name, "trace-rank%*6[0-9].json%n", &end) == 0 && end > 0 && name[end] == '\0';
}

/* Folder of the job's run: "N-NAME" below jobs; NULL: there is none. The caller frees it. */
static char *run_dir(const char *state_dir, json_int_t job)
{
    char *jobs = hdt_asprintf("%s/jobs", state_dir), *found = NULL, prefix[32];
    DIR *folder = opendir(jobs);
    const struct dirent *entry;

    snprintf(prefix, sizeof(prefix), "%lld-", (long long)job);
    while (job > 0 && folder && !found && (entry = readdir(folder))) {
        if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0) {
            found = hdt_asprintf("%s/%s", jobs, entry->d_name);
        }
    }
    if (folder) {
        closedir(folder);
    }
    free(jobs);
    return found;
}

static void file_add(json_t *files, const char *dir, const char *name, size_t tail)
{
    char *path = hdt_asprintf("%s/%s", dir, name);
    struct stat st;

    if (lstat(path, &st) == 0 && S_ISREG(st.st_mode)) {
        const json_int_t bytes = (json_int_t)st.st_size;

        json_array_append_new(
            files, json_pack("{s:s, s:I, s:I}", "name", name, "bytes", bytes, "from",
                             tail > 0 && bytes > (json_int_t)tail ? bytes - (json_int_t)tail : 0));
    }
    free(path);
}

static void folder_add(json_t *files, const char *dir, bool (*wanted)(const char *name))
{
    DIR *folder = opendir(dir);
    const struct dirent *entry;

    while (folder && (entry = readdir(folder))) {
        if (wanted(entry->d_name)) {
            file_add(files, dir, entry->d_name, 0);
        }
    }
    if (folder) {
        closedir(folder);
    }
}

static bool is_dump(const char *name)
{
    return hdt_recorder_is_dump(name) != 0;
}

json_t *hdt_evidence_files(const char *state_dir, json_int_t job, bool traces)
{
    json_t *files = json_array();
    char *run = run_dir(state_dir, job);

    folder_add(files, state_dir, is_dump);
    if (run) {
        file_add(files, run, "metrics.jsonl", HDT_EVIDENCE_TAIL);
        if (traces) {
            folder_add(files, run, is_trace);
        }
    }
    free(run);
    return files;
}

/* Path of what may be given out under this name; NULL. */
static char *path_of(const char *state_dir, const char *name, json_int_t job)
{
    char *run, *path;

    if (is_dump(name)) {
        return hdt_asprintf("%s/%s", state_dir, name);
    }
    if (strcmp(name, "metrics.jsonl") != 0 && !is_trace(name)) {
        return NULL;
    }
    run = run_dir(state_dir, job);
    path = run ? hdt_asprintf("%s/%s", run, name) : NULL;
    free(run);
    return path;
}

/* Where a text of `len` bytes may be cut: behind its last line, else before a character that is not
 * whole. */
static size_t text_cut(const char *text, size_t len)
{
    const char *line = memrchr(text, '\n', len);
    size_t at = len;

    if (line) {
        return (size_t)(line - text) + 1;
    }
    while (at > 1 && len - at < 4 && ((unsigned char)text[at - 1] & 0xc0) == 0x80) {
        at--;
    }
    return at > 1 && (unsigned char)text[at - 1] >= 0xc0 ? at - 1 : len;
}

static json_t *text_json(char *text, size_t len)
{
    json_t *json = json_stringn(text, len);

    for (size_t i = 0; !json && i < len; i++) {
        if ((unsigned char)text[i] >= 0x80) {
            text[i] = '?';
        }
    }
    return json ? json : json_stringn(text, len);
}

static enum hdt_status piece_read(int fd, uint64_t offset, json_t **body, struct hdt_error *err)
{
    char *text = hdt_malloc(HDT_EVIDENCE_PIECE);
    ssize_t n = pread(fd, text, HDT_EVIDENCE_PIECE, (off_t)offset);
    bool end = n < (ssize_t)HDT_EVIDENCE_PIECE;
    size_t len;

    if (n < 0) {
        free(text);
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot read a file for the bundle");
    }
    len = end ? (size_t)n : text_cut(text, (size_t)n);
    *body = json_pack("{s:o, s:I, s:b}", "text", text_json(text, len), "next",
                      (json_int_t)(offset + len), "end", end);
    free(text);
    return HDT_OK;
}

enum hdt_status hdt_evidence_read(const char *state_dir, const json_t *request, json_t **body,
                                  struct hdt_error *err)
{
    const char *name = json_string_value(json_object_get(request, "name"));
    json_int_t job = json_integer_value(json_object_get(request, "job"));
    json_int_t offset = json_integer_value(json_object_get(request, "offset"));
    char *path = name && offset >= 0 ? path_of(state_dir, name, job) : NULL;
    enum hdt_status status;
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;

    free(path);
    if (fd < 0) {
        return hdt_error_set(err, HDT_ENOENT, "no file '%s' is given out here",
                             name && strlen(name) < 128 ? name : "?");
    }
    status = piece_read(fd, (uint64_t)offset, body, err);
    close(fd);
    return status;
}
