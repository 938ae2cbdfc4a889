/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_CKPT_FILES_H
#define HDT_CORE_CKPT_FILES_H

/* Files and folders of checkpoints: names, digests, removal. Nothing here knows a tensor. */
#include "src/base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_CKPT_MODEL     "model.safetensors"
#define HDT_CKPT_OPTIMIZER "optimizer.safetensors"
#define HDT_CKPT_CONFIG    "config.json"
#define HDT_CKPT_MANIFEST  "hdt.json"
#define HDT_CKPT_PATH_CAP  4096

/* Join into a buffer of HDT_CKPT_PATH_CAP bytes. HDT_EINVAL: too long. */
enum hdt_status hdt_ckpt_path(const char *dir, const char *name, char *path, struct hdt_error *err);

/* Make a folder and its parents. */
enum hdt_status hdt_ckpt_mkdir(const char *path, struct hdt_error *err);

/* Make the folder and see that files can be made in it: said before hours of work, not after. */
enum hdt_status hdt_ckpt_probe(const char *path, struct hdt_error *err);

/* fsync a file or folder. */
enum hdt_status hdt_ckpt_sync(const char *path, struct hdt_error *err);

/* {"bytes": N, "xxh3": hex, "sha256": hex} of a file. `progress` is called once 64 MiB. */
enum hdt_status hdt_ckpt_digest(const char *path, void (*progress)(void *arg), void *arg,
                                json_t **digest, struct hdt_error *err);

/* Write JSON to a file and sync it. */
enum hdt_status hdt_ckpt_write_json(const char *path, const json_t *json, struct hdt_error *err);

/* Remove the files of a checkpoint that HDT writes, then the folder; other files make it stay. A
 * missing folder is no error. */
enum hdt_status hdt_ckpt_remove(const char *path, struct hdt_error *err);

/* Number of "step-N" in its canonical form; -1 for any other name. */
int64_t hdt_ckpt_step_of_name(const char *name);

/* Highest complete step in `dir`, -1: none. */
int64_t hdt_ckpt_newest(const char *dir);

/* Of the complete checkpoints up to `step`, remove all but the `keep` highest. Higher ones are not
 * touched: they are another run's, which used the same folder and went further. */
enum hdt_status hdt_ckpt_prune(const char *dir, int64_t step, int64_t keep, struct hdt_error *err);

/* Point dir/latest at `name`, atomically. */
enum hdt_status hdt_ckpt_point_latest(const char *dir, const char *name, struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_CKPT_FILES_H */
