/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_CKPT_FEEDBACK_H
#define HDT_CORE_CKPT_FEEDBACK_H

/* The feedback files of a checkpoint while it is written: one for each end of an edge whose codec
 * keeps something from frame to frame, and of replicas for each unit, "feedback-NAME.bin". One
 * thread. */
#include "src/core/ckpt_files.h"

#include <xxhash.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_ckpt_feedback {
    char file[HDT_CKPT_FEEDBACK_CAP];
    int fd;              /* -1 once it is sealed: there may be thousands */
    uint64_t len;        /* bytes that came */
    XXH3_state_t *state; /* of them; NULL once it is sealed */
    uint64_t xxh3;       /* of them, once it is */
};

struct hdt_ckpt_feedbacks {
    struct hdt_ckpt_feedback *items;
    size_t n;
};

/* Close and forget; the files stay. */
void hdt_ckpt_feedbacks_release(struct hdt_ckpt_feedbacks *all);

/* The next bytes of `name`, in the folder `dir`; the first ones make the file. HDT_EPROTO: they do
 * not follow on those that came; HDT_EIO. */
enum hdt_status hdt_ckpt_feedbacks_append(struct hdt_ckpt_feedbacks *all, const char *dir,
                                          const char *name, uint64_t offset, const void *data,
                                          size_t len, struct hdt_error *err);

/* `name` is complete and this is its owner's XXH3-64. HDT_ECRC, HDT_EPROTO. */
enum hdt_status hdt_ckpt_feedbacks_seal(struct hdt_ckpt_feedbacks *all, const char *name,
                                        uint64_t xxh3, struct hdt_error *err);

/* All came whole: put them on the disk. HDT_EINVAL: one is not sealed; HDT_EIO. */
enum hdt_status hdt_ckpt_feedbacks_sync(const struct hdt_ckpt_feedbacks *all, const char *dir,
                                        struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_CKPT_FEEDBACK_H */
