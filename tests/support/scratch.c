/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/support/scratch.h"
#include "src/base/buf.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[256];

static void die(const char *what)
{
    perror(what);
    exit(99);
}

void hdt_scratch_init(void)
{
    const char *tmp = getenv("TMPDIR");

    snprintf(folder, sizeof(folder), "%s/hdt-test-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(folder)) {
        die("mkdtemp");
    }
}

void hdt_scratch_release(void)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;

    while (dir && (entry = readdir(dir))) {
        if (entry->d_name[0] != '.') {
            unlink(hdt_scratch_path(entry->d_name));
        }
    }
    if (dir) {
        closedir(dir);
    }
    rmdir(folder);
}

const char *hdt_scratch_path(const char *name)
{
    static char paths[64][600];
    static unsigned next;
    char *path = paths[next++ % 64];

    snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

const char *hdt_scratch_write(const char *name, const void *data, size_t len)
{
    const char *path = hdt_scratch_path(name);
    FILE *file = fopen(path, "wb");

    if (!file || fwrite(data, 1, len, file) != len || fclose(file) != 0) {
        die(path);
    }
    return path;
}

char *hdt_scratch_read(const char *path, size_t *len)
{
    FILE *file = fopen(path, "rb");
    struct hdt_buf buf = {0};
    char piece[4096];
    size_t n;

    if (!file) {
        return NULL;
    }
    while ((n = fread(piece, 1, sizeof(piece), file)) > 0) {
        hdt_buf_append(&buf, piece, n);
    }
    fclose(file);
    *len = buf.len;
    return hdt_buf_detach(&buf);
}
