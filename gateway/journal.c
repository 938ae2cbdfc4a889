/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/journal.h"
#include "src/base/buf.h"
#include "src/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TAIL_STEP 4096

/* Looked at in one place for a line that tells where it is; nearer than that nothing is sought. */
#define SEEK_STEP ((size_t)32 << 10)
#define SEEK_MAX  ((size_t)1 << 20)

struct hdt_journal {
    int fd;
    char *path;
    uint64_t len; /* where the next line goes */
};

static enum hdt_status journal_error(const char *what, const char *path, struct hdt_error *err)
{
    hdt_error_set_errno(err, HDT_EIO, errno, "cannot %s '%s'", what, path);
    hdt_error_hint(err, "check free space and the owner of state_dir");
    return HDT_EIO;
}

/* Bytes [off, off + len) as far as they are there; less than zero: errno. */
static ssize_t read_at(int fd, void *bytes, size_t len, uint64_t off)
{
    size_t done = 0;
    ssize_t n;

    while (done < len) {
        n = pread(fd, (char *)bytes + done, len - done, (off_t)(off + done));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return -1;
        }
        if (n == 0) {
            break;
        }
        done += (size_t)n;
    }
    return (ssize_t)done;
}

/* Length up to and with the last line end; the file is `len` long. */
static enum hdt_status whole_len(int fd, uint64_t len, uint64_t *whole)
{
    char bytes[TAIL_STEP];
    size_t n;

    for (; len > 0; len -= n) {
        n = len % TAIL_STEP ? len % TAIL_STEP : TAIL_STEP;
        if (read_at(fd, bytes, n, len - n) != (ssize_t)n) {
            return HDT_EIO;
        }
        for (size_t i = n; i > 0; i--) {
            if (bytes[i - 1] == '\n') {
                *whole = len - n + i;
                return HDT_OK;
            }
        }
    }
    *whole = 0;
    return HDT_OK;
}

/* Begin where the last whole line ends. */
static enum hdt_status journal_repair(struct hdt_journal *journal, struct hdt_error *err)
{
    struct stat st;

    if (fstat(journal->fd, &st) != 0 ||
        whole_len(journal->fd, (uint64_t)st.st_size, &journal->len) != HDT_OK) {
        return journal_error("read", journal->path, err);
    }
    if (journal->len == (uint64_t)st.st_size) {
        return HDT_OK;
    }
    hdt_log_warn("%s: the last line is not whole (%lu bytes); it is cut off and will come again",
                 journal->path, (unsigned long)((uint64_t)st.st_size - journal->len));
    return ftruncate(journal->fd, (off_t)journal->len) == 0
               ? HDT_OK
               : journal_error("repair", journal->path, err);
}

enum hdt_status hdt_journal_open(const char *path, struct hdt_journal **out, struct hdt_error *err)
{
    struct hdt_journal *journal = hdt_calloc(1, sizeof(*journal));
    enum hdt_status status;

    journal->path = hdt_strdup(path);
    journal->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    status = journal->fd < 0 ? journal_error("write", path, err) : journal_repair(journal, err);
    if (status != HDT_OK) {
        hdt_journal_close(journal);
        return status;
    }
    *out = journal;
    return HDT_OK;
}

void hdt_journal_close(struct hdt_journal *journal)
{
    if (!journal) {
        return;
    }
    if (journal->fd >= 0) {
        close(journal->fd);
    }
    free(journal->path);
    free(journal);
}

enum hdt_status hdt_journal_write(struct hdt_journal *journal, const json_t *line,
                                  struct hdt_error *err)
{
    char *json = json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(17));
    char *text = hdt_asprintf("%s\n", json);
    size_t len = strlen(text), done = 0;
    enum hdt_status status = HDT_OK;
    ssize_t n;

    while (done < len) {
        n = pwrite(journal->fd, text + done, len - done, (off_t)(journal->len + done));
        if (n < 0 && errno != EINTR) {
            status = journal_error("write", journal->path, err);
            break;
        }
        done += n > 0 ? (size_t)n : 0;
    }
    if (status == HDT_OK) {
        journal->len += len;
    } else if (ftruncate(journal->fd, (off_t)journal->len) != 0) {
        hdt_log_debug("cannot shorten %s: %s", journal->path, strerror(errno));
    }
    free(text);
    free(json);
    return status;
}

uint64_t hdt_journal_size(const struct hdt_journal *journal)
{
    return journal->len;
}

void hdt_journal_recent(const struct hdt_journal *journal,
                        void (*line)(void *user, const json_t *line), void *user)
{
    const size_t len = journal->len < HDT_JOURNAL_RECENT ? journal->len : HDT_JOURNAL_RECENT;
    char *text = hdt_malloc(len + 1), *at = text, *end;
    ssize_t n = read_at(journal->fd, text, len, journal->len - len);

    text[n > 0 ? n : 0] = '\0';
    while ((end = strchr(at, '\n'))) {
        json_t *json = json_loadb(at, (size_t)(end - at), 0, NULL);

        if (json_is_object(json)) {
            line(user, json);
        }
        json_decref(json);
        at = end + 1;
    }
    free(text);
}

enum hdt_status hdt_journal_read(const char *path, uint64_t off, size_t max, struct hdt_buf *out,
                                 struct hdt_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    const char *end = NULL;
    ssize_t n = 0;

    hdt_buf_clear(out);
    if (fd < 0) {
        return journal_error("read", path, err);
    }
    do { /* a line longer than max is read whole */
        hdt_buf_reserve(out, max);
        n = read_at(fd, out->data + out->len, max, off + out->len);
        out->len += n > 0 ? (size_t)n : 0;
        end = out->len ? memrchr(out->data, '\n', out->len) : NULL;
    } while (n == (ssize_t)max && !end);
    close(fd);
    out->len = end ? (size_t)(end + 1 - out->data) : 0;
    return n < 0 ? journal_error("read", path, err) : HDT_OK;
}

/* A search under way. */
struct journal_seek {
    int fd;
    hdt_journal_place_of *place_of;
    const void *user;
    struct hdt_buf text;
};

/* What the lines in `text` say, of which the first is not whole; *end is set behind the line that
 * said it. */
static enum hdt_journal_place text_place(const struct journal_seek *seek, size_t *end)
{
    enum hdt_journal_place place = HDT_JOURNAL_NO_PLACE;
    const char *at = memchr(seek->text.data, '\n', seek->text.len), *eol;
    const char *stop = seek->text.data + seek->text.len;

    while (place == HDT_JOURNAL_NO_PLACE && at &&
           (eol = memchr(at + 1, '\n', (size_t)(stop - at - 1)))) {
        json_t *line = json_loadb(at + 1, (size_t)(eol - at - 1), 0, NULL);

        if (json_is_object(line)) {
            place = seek->place_of(seek->user, line);
        }
        json_decref(line);
        at = eol;
    }
    *end = at ? (size_t)(at + 1 - seek->text.data) : 0;
    return place;
}

/* What the lines from about `off` on say: more of them are read where they are long, or say
 * nothing, up to SEEK_MAX. *end is set behind the line that said it. */
static enum hdt_status place_at(struct journal_seek *seek, uint64_t off,
                                enum hdt_journal_place *place, uint64_t *end)
{
    size_t behind;
    ssize_t n;

    for (size_t len = SEEK_STEP;; len *= 2) {
        hdt_buf_clear(&seek->text);
        hdt_buf_reserve(&seek->text, len);
        n = read_at(seek->fd, seek->text.data, len, off);
        if (n < 0) {
            return HDT_EIO;
        }
        seek->text.len = (size_t)n;
        *place = text_place(seek, &behind);
        *end = off + behind;
        if (*place != HDT_JOURNAL_NO_PLACE || (size_t)n < len || len >= SEEK_MAX) {
            return HDT_OK;
        }
    }
}

enum hdt_status hdt_journal_seek(const char *path, hdt_journal_place_of *place_of, const void *user,
                                 uint64_t *off, struct hdt_error *err)
{
    struct journal_seek seek = {
        .fd = open(path, O_RDONLY | O_CLOEXEC), .place_of = place_of, .user = user};
    enum hdt_journal_place place;
    uint64_t begin = 0, stop, middle, end;
    struct stat st;

    if (seek.fd < 0 || fstat(seek.fd, &st) != 0) {
        goto err_read;
    }
    stop = (uint64_t)st.st_size;
    while (begin + SEEK_STEP < stop) {
        middle = begin + (stop - begin) / 2;
        if (place_at(&seek, middle, &place, &end) != HDT_OK) {
            goto err_read;
        }
        if (place == HDT_JOURNAL_BEFORE) {
            begin = end;
        } else {
            stop = middle; /* where nothing is said, too: to begin early is never wrong */
        }
    }
    *off = begin;
    close(seek.fd);
    hdt_buf_release(&seek.text);
    return HDT_OK;

err_read:
    journal_error("read", path, err);
    if (seek.fd >= 0) {
        close(seek.fd);
    }
    hdt_buf_release(&seek.text);
    return HDT_EIO;
}
