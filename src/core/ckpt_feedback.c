/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/core/ckpt_feedback.h"
#include "src/base/buf.h"
#include "src/core/file_at.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void hdt_ckpt_feedbacks_release(struct hdt_ckpt_feedbacks *all)
{
    for (size_t i = 0; i < all->n; i++) {
        XXH3_freeState(all->items[i].state);
        if (all->items[i].fd >= 0) {
            close(all->items[i].fd);
        }
    }
    free(all->items);
    memset(all, 0, sizeof(*all));
}

static struct hdt_ckpt_feedback *feedback_find(const struct hdt_ckpt_feedbacks *all,
                                               const char *file)
{
    for (size_t i = 0; i < all->n; i++) {
        if (strcmp(all->items[i].file, file) == 0) {
            return &all->items[i];
        }
    }
    return NULL;
}

static enum hdt_status feedback_add(struct hdt_ckpt_feedbacks *all, const char *dir,
                                    const char *file, struct hdt_ckpt_feedback **item,
                                    struct hdt_error *err)
{
    char path[HDT_CKPT_PATH_CAP];
    int fd;

    HDT_TRY(hdt_ckpt_path(dir, file, path, err));
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot create '%s'", path);
    }
    all->items = hdt_realloc(all->items, (all->n + 1) * sizeof(*all->items));
    *item = &all->items[all->n++];
    memset(*item, 0, sizeof(**item));
    snprintf((*item)->file, sizeof((*item)->file), "%s", file);
    (*item)->fd = fd;
    (*item)->state = XXH3_createState();
    HDT_ASSERT((*item)->state);
    XXH3_64bits_reset((*item)->state);
    return HDT_OK;
}

enum hdt_status hdt_ckpt_feedbacks_append(struct hdt_ckpt_feedbacks *all, const char *dir,
                                          const char *name, uint64_t offset, const void *data,
                                          size_t len, struct hdt_error *err)
{
    char file[HDT_CKPT_FEEDBACK_CAP];
    struct hdt_ckpt_feedback *item;

    hdt_ckpt_feedback_file(name, file);
    item = feedback_find(all, file);
    if (!item) {
        HDT_TRY(feedback_add(all, dir, file, &item, err));
    }
    if (!item->state || item->len != offset) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot save the feedback of %s: bytes at %" PRIu64
                             " came where %" PRIu64 " %s",
                             name, offset, item->len, item->state ? "were next" : "were all");
    }
    HDT_TRY(hdt_file_write_at(item->fd, file, offset, data, len, err));
    XXH3_64bits_update(item->state, data, len);
    item->len += len;
    return HDT_OK;
}

enum hdt_status hdt_ckpt_feedbacks_seal(struct hdt_ckpt_feedbacks *all, const char *name,
                                        uint64_t xxh3, struct hdt_error *err)
{
    char file[HDT_CKPT_FEEDBACK_CAP];
    struct hdt_ckpt_feedback *item;

    hdt_ckpt_feedback_file(name, file);
    item = feedback_find(all, file);
    if (!item || !item->state) {
        return hdt_error_set(err, HDT_EPROTO, "cannot save the feedback of %s: %s", name,
                             item ? "it came twice" : "nothing of it came");
    }
    item->xxh3 = XXH3_64bits_digest(item->state);
    XXH3_freeState(item->state);
    item->state = NULL;
    if (item->xxh3 != xxh3) {
        return hdt_error_set(err, HDT_ECRC,
                             "cannot save the feedback of %s: it was damaged on its way: its "
                             "owner's digest is %016" PRIx64 ", that of what came %016" PRIx64,
                             name, xxh3, item->xxh3);
    }
    if (close(item->fd) != 0) { /* a network file system may say only now that it is full */
        item->fd = -1;
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot write '%s'", file);
    }
    item->fd = -1;
    return HDT_OK;
}

static enum hdt_status file_sync(const char *dir, const char *file, struct hdt_error *err)
{
    char path[HDT_CKPT_PATH_CAP];
    int fd, failed;

    HDT_TRY(hdt_ckpt_path(dir, file, path, err));
    fd = open(path, O_RDONLY | O_CLOEXEC);
    failed = fd < 0 || fsync(fd) != 0 ? errno : 0;
    if (fd >= 0) {
        close(fd);
    }
    return failed ? hdt_error_set_errno(err, HDT_EIO, failed, "cannot write '%s' to disk", path)
                  : HDT_OK;
}

enum hdt_status hdt_ckpt_feedbacks_sync(const struct hdt_ckpt_feedbacks *all, const char *dir,
                                        struct hdt_error *err)
{
    for (size_t i = 0; i < all->n; i++) {
        if (all->items[i].state) {
            return hdt_error_set(err, HDT_EINVAL, "cannot complete '%s': no digest of it came",
                                 all->items[i].file);
        }
        HDT_TRY(file_sync(dir, all->items[i].file, err));
    }
    return HDT_OK;
}
