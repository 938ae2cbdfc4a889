/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/ckpt_files.h"

#include "src/base/buf.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define DIGEST_BUF_LEN  ((size_t)1 << 20)
#define DIGEST_PROGRESS 64 /* buffers */

enum hdt_status hdt_ckpt_path(const char *dir, const char *name, char *path, struct hdt_error *err)
{
    int n = snprintf(path, HDT_CKPT_PATH_CAP, "%s/%s", dir, name);

    if (n < 0 || n >= HDT_CKPT_PATH_CAP) {
        return hdt_error_set(err, HDT_EINVAL,
                             "cannot use the folder '%.80s...': its name is too long", dir);
    }
    return HDT_OK;
}

/* Make one folder, and see that its name is on disk, too: else a power cut could take all that was
 * synced within it. `path` is changed and put right again. */
static enum hdt_status folder_make(char *path, struct hdt_error *err)
{
    char *slash = strrchr(path, '/');
    enum hdt_status status;

    if (mkdir(path, 0777) != 0) {
        return errno == EEXIST
                   ? HDT_OK
                   : hdt_error_set_errno(err, HDT_EIO, errno, "cannot make the folder '%s'", path);
    }
    if (!slash || slash == path) {
        return hdt_ckpt_sync(slash ? "/" : ".", err);
    }
    *slash = '\0';
    status = hdt_ckpt_sync(path, err);
    *slash = '/';
    return status;
}

enum hdt_status hdt_ckpt_mkdir(const char *path, struct hdt_error *err)
{
    char part[HDT_CKPT_PATH_CAP];
    size_t i, len = strlen(path);

    if (len >= sizeof(part)) {
        return hdt_error_set(err, HDT_EINVAL, "cannot make a folder: its name is too long");
    }
    for (i = 1; i <= len; i++) {
        if (path[i] == '/' || path[i] == '\0') {
            memcpy(part, path, i);
            part[i] = '\0';
            HDT_TRY(folder_make(part, err));
        }
    }
    return HDT_OK;
}

enum hdt_status hdt_ckpt_probe(const char *path, struct hdt_error *err)
{
    char file[HDT_CKPT_PATH_CAP];
    int fd;

    HDT_TRY(hdt_ckpt_mkdir(path, err));
    HDT_TRY(hdt_ckpt_path(path, ".probe-XXXXXX", file, err));
    fd = mkostemp(file, O_CLOEXEC);
    if (fd < 0) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot write to the folder '%s'", path);
    }
    close(fd);
    unlink(file);
    return HDT_OK;
}

enum hdt_status hdt_ckpt_sync(const char *path, struct hdt_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int failed;

    if (fd < 0) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot open '%s'", path);
    }
    failed = fsync(fd) != 0 ? errno : 0;
    close(fd);
    if (failed) {
        return hdt_error_set_errno(err, HDT_EIO, failed, "cannot sync '%s'", path);
    }
    return HDT_OK;
}

/* ---- digests ---- */

struct digest {
    XXH3_state_t *xxh3;
    EVP_MD_CTX *sha256;
    uint64_t bytes;
};

static json_t *digest_json(struct digest *d)
{
    unsigned char sha[EVP_MAX_MD_SIZE];
    char hex[2 * EVP_MAX_MD_SIZE + 1] = "", xxh3[17];
    unsigned len = 0, i;

    EVP_DigestFinal_ex(d->sha256, sha, &len);
    for (i = 0; i < len; i++) {
        snprintf(hex + 2 * i, 3, "%02x", sha[i]);
    }
    snprintf(xxh3, sizeof(xxh3), "%016" PRIx64, (uint64_t)XXH3_64bits_digest(d->xxh3));
    return json_pack("{s:I,s:s,s:s}", "bytes", (json_int_t)d->bytes, "xxh3", xxh3, "sha256", hex);
}

static enum hdt_status digest_read(struct digest *d, int fd, const char *path,
                                   void (*progress)(void *arg), void *arg, struct hdt_error *err)
{
    uint8_t *buf = hdt_malloc(DIGEST_BUF_LEN);
    enum hdt_status status = HDT_OK;
    unsigned n_bufs = 0;
    ssize_t n;

    while ((n = read(fd, buf, DIGEST_BUF_LEN)) != 0) {
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            status = hdt_error_set_errno(err, HDT_EIO, errno, "cannot read '%s'", path);
            break;
        }
        XXH3_64bits_update(d->xxh3, buf, (size_t)n);
        EVP_DigestUpdate(d->sha256, buf, (size_t)n);
        d->bytes += (uint64_t)n;
        if (progress && ++n_bufs % DIGEST_PROGRESS == 0) {
            progress(arg);
        }
    }
    free(buf);
    return status;
}

enum hdt_status hdt_ckpt_digest(const char *path, void (*progress)(void *arg), void *arg,
                                json_t **digest, struct hdt_error *err)
{
    struct digest d = {XXH3_createState(), EVP_MD_CTX_new(), 0};
    enum hdt_status status = HDT_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) {
        status = hdt_error_set_errno(err, errno == ENOENT ? HDT_ENOENT : HDT_EIO, errno,
                                     "cannot open '%s'", path);
    } else if (!d.xxh3 || !d.sha256 || EVP_DigestInit_ex(d.sha256, EVP_sha256(), NULL) != 1) {
        status = hdt_error_set(err, HDT_ENOMEM, "cannot digest '%s': no memory", path);
    } else {
        XXH3_64bits_reset(d.xxh3);
        status = digest_read(&d, fd, path, progress, arg, err);
    }
    if (status == HDT_OK) {
        *digest = digest_json(&d);
    }
    if (fd >= 0) {
        close(fd);
    }
    XXH3_freeState(d.xxh3);
    EVP_MD_CTX_free(d.sha256);
    return status;
}

enum hdt_status hdt_ckpt_write_json(const char *path, const json_t *json, struct hdt_error *err)
{
    if (json_dump_file(json, path, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) != 0) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot write '%s'", path);
    }
    return hdt_ckpt_sync(path, err);
}

/* ---- folders ---- */

enum hdt_status hdt_ckpt_remove(const char *path, struct hdt_error *err)
{
    static const char *const names[] = {HDT_CKPT_MANIFEST, HDT_CKPT_MODEL, HDT_CKPT_OPTIMIZER,
                                        HDT_CKPT_CONFIG};
    char file[HDT_CKPT_PATH_CAP];
    size_t i;

    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        HDT_TRY(hdt_ckpt_path(path, names[i], file, err));
        if (unlink(file) != 0 && errno != ENOENT && errno != ENOTDIR) {
            return hdt_error_set_errno(err, HDT_EIO, errno, "cannot remove '%s'", file);
        }
    }
    if (rmdir(path) != 0 && errno != ENOENT) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot remove the folder '%s'", path);
    }
    return HDT_OK;
}

int64_t hdt_ckpt_step_of_name(const char *name)
{
    char again[64];
    char *end;
    long long step;

    if (strncmp(name, "step-", 5) != 0) {
        return -1;
    }
    errno = 0;
    step = strtoll(name + 5, &end, 10);
    if (errno != 0 || *end != '\0' || step < 0) {
        return -1;
    }
    snprintf(again, sizeof(again), "step-%08lld", step);
    return strcmp(again, name) == 0 ? (int64_t)step : -1;
}

static int step_compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x < y) - (x > y);
}

/* Steps of complete checkpoints, highest first; *steps is the caller's. */
static size_t ckpt_list(const char *dir, int64_t **steps)
{
    DIR *d = opendir(dir);
    struct dirent *entry;
    size_t n = 0, cap = 0;
    int64_t step;

    *steps = NULL;
    while (d && (entry = readdir(d))) {
        step = hdt_ckpt_step_of_name(entry->d_name);
        if (step < 0) {
            continue;
        }
        if (n == cap) {
            cap = cap ? 2 * cap : 16;
            *steps = hdt_realloc(*steps, cap * sizeof(**steps));
        }
        (*steps)[n++] = step;
    }
    if (d) {
        closedir(d);
    }
    if (n > 0) {
        qsort(*steps, n, sizeof(**steps), step_compare);
    }
    return n;
}

int64_t hdt_ckpt_newest(const char *dir)
{
    int64_t *steps, newest;
    size_t n = ckpt_list(dir, &steps);

    newest = n > 0 ? steps[0] : -1;
    free(steps);
    return newest;
}

enum hdt_status hdt_ckpt_prune(const char *dir, int64_t step, int64_t keep, struct hdt_error *err)
{
    enum hdt_status status = HDT_OK;
    int64_t *steps, n_seen = 0;
    size_t n = ckpt_list(dir, &steps), i;
    char name[64], path[HDT_CKPT_PATH_CAP];

    for (i = 0; i < n && status == HDT_OK; i++) {
        if (steps[i] > step || n_seen++ < keep) {
            continue;
        }
        snprintf(name, sizeof(name), "step-%08" PRId64, steps[i]);
        status = hdt_ckpt_path(dir, name, path, err);
        if (status == HDT_OK) {
            status = hdt_ckpt_remove(path, err);
        }
    }
    free(steps);
    return status;
}

enum hdt_status hdt_ckpt_point_latest(const char *dir, const char *name, struct hdt_error *err)
{
    char link[HDT_CKPT_PATH_CAP], tmp[HDT_CKPT_PATH_CAP];

    HDT_TRY(hdt_ckpt_path(dir, "latest", link, err));
    HDT_TRY(hdt_ckpt_path(dir, "latest.tmp", tmp, err));
    unlink(tmp);
    if (symlink(name, tmp) != 0 || rename(tmp, link) != 0) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot replace '%s'", link);
    }
    return hdt_ckpt_sync(dir, err);
}
