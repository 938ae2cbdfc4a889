/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/ckpt_files.h"

#include "src/base/buf.h"
#include "src/core/file_at.h"

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

#define SCAN_BUF_LEN  ((size_t)1 << 20)
#define SCAN_PROGRESS 64 /* buffers */

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

struct scanner {
    struct hdt_ckpt_scan *scan;
    EVP_MD_CTX *sha256;
    XXH3_state_t *xxh3;
    size_t piece;      /* the current one */
    int in_fd, out_fd; /* out_fd -1: no copy */
};

/* The bytes [at, at + len) of the file, to the pieces that they belong to. */
static void scan_pieces(struct scanner *s, uint64_t at, const uint8_t *data, size_t len)
{
    struct hdt_ckpt_piece *piece;
    uint64_t begin, end;

    for (; s->piece < s->scan->n_pieces; s->piece++) {
        piece = &s->scan->pieces[s->piece];
        begin = piece->begin > at ? piece->begin : at;
        end = piece->end < at + len ? piece->end : at + len;
        if (begin >= at + len && piece->begin != piece->end) {
            return;
        }
        if (piece->begin >= at) {
            XXH3_64bits_reset(s->xxh3);
        }
        if (begin < end) {
            XXH3_64bits_update(s->xxh3, data + (begin - at), (size_t)(end - begin));
        }
        if (piece->end > at + len) {
            return;
        }
        piece->xxh3 = XXH3_64bits_digest(s->xxh3);
    }
}

static enum hdt_status scan_copy(struct scanner *s, const uint8_t *data, size_t len,
                                 struct hdt_error *err)
{
    ssize_t n;

    while (s->out_fd >= 0 && len > 0) {
        n = write(s->out_fd, data, len);
        if (n < 0 && errno != EINTR) {
            return hdt_error_set_errno(err, HDT_EIO, errno, "cannot write '%s'", s->scan->copy_to);
        }
        data += n > 0 ? n : 0;
        len -= n > 0 ? (size_t)n : 0;
    }
    return HDT_OK;
}

static enum hdt_status scan_read(struct scanner *s, uint8_t *buf, struct hdt_error *err)
{
    unsigned n_bufs = 0;
    ssize_t n;

    while ((n = read(s->in_fd, buf, SCAN_BUF_LEN)) != 0) {
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return hdt_error_set_errno(err, HDT_EIO, errno, "cannot read '%s' at byte %" PRIu64,
                                       s->scan->path, s->scan->bytes);
        }
        EVP_DigestUpdate(s->sha256, buf, (size_t)n);
        scan_pieces(s, s->scan->bytes, buf, (size_t)n);
        HDT_TRY(scan_copy(s, buf, (size_t)n, err));
        s->scan->bytes += (uint64_t)n;
        if (s->scan->progress && ++n_bufs % SCAN_PROGRESS == 0) {
            s->scan->progress(s->scan->arg);
        }
    }
    scan_pieces(s, s->scan->bytes, buf, 0); /* empty ones at the end */
    if (s->piece < s->scan->n_pieces) {
        return hdt_error_set(err, HDT_EIO, "cannot read '%s': it ends at byte %" PRIu64,
                             s->scan->path, s->scan->bytes);
    }
    return HDT_OK;
}

static void scan_sha256(struct scanner *s)
{
    unsigned char sha[EVP_MAX_MD_SIZE];
    unsigned len = 0, i;

    EVP_DigestFinal_ex(s->sha256, sha, &len);
    for (i = 0; i < 32; i++) {
        snprintf(s->scan->sha256 + 2 * i, 3, "%02x", sha[i]);
    }
}

static enum hdt_status scan_open(struct scanner *s, struct hdt_error *err)
{
    s->in_fd = open(s->scan->path, O_RDONLY | O_CLOEXEC);
    if (s->in_fd < 0) {
        return hdt_error_set_errno(err, errno == ENOENT ? HDT_ENOENT : HDT_EIO, errno,
                                   "cannot open '%s'", s->scan->path);
    }
    if (s->scan->from_disk) {
        /* A wish: a file system in memory has no disk to read from. */
        (void)posix_fadvise(s->in_fd, 0, 0, POSIX_FADV_DONTNEED);
    }
    if (s->scan->copy_to) {
        s->out_fd = open(s->scan->copy_to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (s->out_fd < 0) {
            return hdt_error_set_errno(err, HDT_EIO, errno, "cannot create '%s'", s->scan->copy_to);
        }
    }
    if (!s->xxh3 || !s->sha256 || EVP_DigestInit_ex(s->sha256, EVP_sha256(), NULL) != 1) {
        return hdt_error_set(err, HDT_ENOMEM, "cannot digest '%s': no memory", s->scan->path);
    }
    return HDT_OK;
}

enum hdt_status hdt_ckpt_scan_file(struct hdt_ckpt_scan *scan, struct hdt_error *err)
{
    struct scanner s = {scan, EVP_MD_CTX_new(), XXH3_createState(), 0, -1, -1};
    uint8_t *buf = hdt_malloc(SCAN_BUF_LEN);
    enum hdt_status status = scan_open(&s, err);

    scan->bytes = 0;
    if (status == HDT_OK) {
        status = scan_read(&s, buf, err);
    }
    if (status == HDT_OK) {
        scan_sha256(&s);
    }
    if (status == HDT_OK && s.out_fd >= 0 && fsync(s.out_fd) != 0) {
        status =
            hdt_error_set_errno(err, HDT_EIO, errno, "cannot write '%s' to disk", scan->copy_to);
    }
    if (s.in_fd >= 0) {
        close(s.in_fd);
    }
    if (s.out_fd >= 0) {
        close(s.out_fd);
    }
    XXH3_freeState(s.xxh3);
    EVP_MD_CTX_free(s.sha256);
    free(buf);
    return status;
}

enum hdt_status hdt_ckpt_write_json(const char *path, const json_t *json, struct hdt_error *err)
{
    char *text = json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    enum hdt_status status = HDT_OK;

    HDT_ASSERT(text);
    if (fd < 0) {
        status = hdt_error_set_errno(err, HDT_EIO, errno, "cannot create '%s'", path);
    } else {
        status = hdt_file_write_at(fd, path, 0, text, strlen(text), err);
    }
    if (status == HDT_OK && fsync(fd) != 0) {
        status = hdt_error_set_errno(err, HDT_EIO, errno, "cannot write '%s' to disk", path);
    }
    if (fd >= 0) {
        close(fd);
    }
    free(text);
    return status;
}

/* ---- folders ---- */

static const char *const names[] = {HDT_CKPT_MANIFEST, HDT_CKPT_MODEL, HDT_CKPT_OPTIMIZER,
                                    HDT_CKPT_CONFIG};

#define FEEDBACK_HEAD "feedback-"
#define FEEDBACK_TAIL ".bin"

void hdt_ckpt_feedback_file(const char *name, char file[HDT_CKPT_FEEDBACK_CAP])
{
    snprintf(file, HDT_CKPT_FEEDBACK_CAP, FEEDBACK_HEAD "%s" FEEDBACK_TAIL, name);
    HDT_ASSERT(hdt_ckpt_is_feedback(file));
}

bool hdt_ckpt_is_feedback(const char *file)
{
    const size_t head = sizeof(FEEDBACK_HEAD) - 1, tail = sizeof(FEEDBACK_TAIL) - 1;
    size_t len = strlen(file);

    if (len <= head + tail || len >= HDT_CKPT_FEEDBACK_CAP ||
        memcmp(file, FEEDBACK_HEAD, head) != 0 ||
        memcmp(file + len - tail, FEEDBACK_TAIL, tail) != 0) {
        return false;
    }
    return strspn(file + head, "abcdefghijklmnopqrstuvwxyz0123456789_-") == len - head - tail;
}

static bool name_is_ours(const char *name)
{
    size_t i;

    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    return hdt_ckpt_is_feedback(name) || strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

bool hdt_ckpt_has_other(const char *path, char name[256])
{
    DIR *d = opendir(path);
    struct dirent *entry = NULL;

    name[0] = '\0';
    while (d && !name[0] && (entry = readdir(d))) {
        if (!name_is_ours(entry->d_name)) {
            snprintf(name, 256, "%s", entry->d_name);
        }
    }
    if (d) {
        closedir(d);
    }
    return name[0] != '\0';
}

static enum hdt_status file_remove(const char *path, const char *name, struct hdt_error *err)
{
    char file[HDT_CKPT_PATH_CAP];

    HDT_TRY(hdt_ckpt_path(path, name, file, err));
    if (unlink(file) != 0 && errno != ENOENT && errno != ENOTDIR) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot remove '%s'", file);
    }
    return HDT_OK;
}

static enum hdt_status feedback_remove(const char *path, struct hdt_error *err)
{
    DIR *d = opendir(path);
    enum hdt_status status = HDT_OK;
    struct dirent *entry;

    while (d && status == HDT_OK && (entry = readdir(d))) {
        if (hdt_ckpt_is_feedback(entry->d_name)) {
            status = file_remove(path, entry->d_name, err);
        }
    }
    if (d) {
        closedir(d);
    }
    return status;
}

enum hdt_status hdt_ckpt_remove(const char *path, struct hdt_error *err)
{
    size_t i;

    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        HDT_TRY(file_remove(path, names[i], err));
    }
    HDT_TRY(feedback_remove(path, err));
    if (rmdir(path) != 0 && errno != ENOENT) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot remove the folder '%s'", path);
    }
    return HDT_OK;
}
