/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_CKPT_FOLDER_H
#define HDT_CORE_CKPT_FOLDER_H

/*
 * The folder that holds checkpoints: which are there, whose they are, which one is the newest, and
 * the steps that put a new one in its place or take an old one away.
 *
 * Names: "step-N" is a checkpoint; "step-N.tmp-XXXXXX" is one that is being written or removed. Who
 * writes one holds a lock on it (flock), which the system drops when the process ends however it
 * ends: so a folder without a lock is left over, and no age is ever guessed. Steps that change more
 * than one name are taken under a lock on the folder itself. Where the file system has no locks,
 * nothing is taken for left over.
 */
#include "src/core/ckpt.h"
#include "src/core/ckpt_files.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Number of "step-N" in its canonical form; -1 for any other name. */
int64_t hdt_ckpt_step_of_name(const char *name);

/* HDT_EEXIST with both names and the remedy. */
enum hdt_status hdt_ckpt_owner_refuse(const char *path, const struct hdt_ckpt_owner *theirs,
                                      const struct hdt_ckpt_owner *ours, struct hdt_error *err);

/* The folder of a step that `path` means: itself, or what its `latest` names (there or not), or,
 * without that link, its newest complete one. HDT_ENOENT. */
enum hdt_status hdt_ckpt_resolve(const char *path, char out[HDT_CKPT_PATH_CAP],
                                 struct hdt_error *err);

/* Say what to take instead of the damaged checkpoint `path`: the newest complete one beside it, by
 * name. */
void hdt_ckpt_hint_other(const char *path, struct hdt_error *err);

/* Lock `dir` against other processes that change names in it, for 30 s of waiting at most. *fd is
 * closed by the caller (-1: a file system without locks). HDT_EIO, HDT_ETIMEDOUT. */
enum hdt_status hdt_ckpt_folder_lock(const char *dir, int *fd, struct hdt_error *err);

/* Make a locked "step-N.tmp-XXXXXX" in `dir`, after removing those that ended processes left; the
 * lock is held until *fd is closed. */
enum hdt_status hdt_ckpt_temp_make(const char *dir, int64_t step, char path[HDT_CKPT_PATH_CAP],
                                   int *fd, struct hdt_error *err);

/* Put the complete folder `temp` in the place of dir/step-N, in one step as seen by others and by
 * the disk: there is the old one or the new one. Then point `latest` at it and remove what it
 * replaced. HDT_EEXIST: one of another job is there. The folder lock is held. */
enum hdt_status hdt_ckpt_temp_place(const char *dir, const char *temp,
                                    const struct hdt_ckpt_meta *meta, struct hdt_error *err);

/* HDT_EEXIST when dir/step-N is a complete checkpoint of another job: said before all is written.
 */
enum hdt_status hdt_ckpt_check_step(const char *dir, const struct hdt_ckpt_owner *owner,
                                    int64_t step, struct hdt_error *err);

/* Of the complete checkpoints of this job up to meta's step, remove all but the `keep` highest. The
 * folder lock is held. */
enum hdt_status hdt_ckpt_prune(const char *dir, const struct hdt_ckpt_meta *meta, int64_t keep,
                               struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_CKPT_FOLDER_H */
