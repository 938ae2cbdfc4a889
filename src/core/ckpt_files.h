/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_CKPT_FILES_H
#define HDT_CORE_CKPT_FILES_H

/* Files of checkpoints: names, digests, removal. Nothing here knows a tensor or a step. */
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

/* "feedback-NAME.bin" */
#define HDT_CKPT_FEEDBACK_CAP 80
void hdt_ckpt_feedback_file(const char *name, char file[HDT_CKPT_FEEDBACK_CAP]);

/* Is it such a name: of small letters, digits, '_' and '-', and of no folder? For names that a
 * manifest or a folder holds. */
bool hdt_ckpt_is_feedback(const char *file);

/* Join into a buffer of HDT_CKPT_PATH_CAP bytes. HDT_EINVAL: too long. */
enum hdt_status hdt_ckpt_path(const char *dir, const char *name, char *path, struct hdt_error *err);

/* Make a folder and its parents. */
enum hdt_status hdt_ckpt_mkdir(const char *path, struct hdt_error *err);

/* Make the folder and see that files can be made in it: said before hours of work, not after. */
enum hdt_status hdt_ckpt_probe(const char *path, struct hdt_error *err);

/* fsync a file or folder. */
enum hdt_status hdt_ckpt_sync(const char *path, struct hdt_error *err);

/* One pass over a file: SHA-256 of all of it, XXH3-64 of pieces of it, and perhaps a copy. */
struct hdt_ckpt_piece {
    uint64_t begin, end; /* bytes of the file */
    uint64_t xxh3;       /* set by the scan */
};
struct hdt_ckpt_scan {
    const char *path;
    struct hdt_ckpt_piece *pieces; /* sorted, apart from each other */
    size_t n_pieces;
    const char *copy_to; /* written (new) and synced; NULL: only read */
    bool from_disk;      /* what was written lately is read from the disk, not from memory */
    void (*progress)(void *arg); /* called once 64 MiB; may be NULL */
    void *arg;

    uint64_t bytes; /* results */
    char sha256[65];
};

/* HDT_ENOENT, HDT_EIO (also when it ends before the last piece does). */
enum hdt_status hdt_ckpt_scan_file(struct hdt_ckpt_scan *scan, struct hdt_error *err);

/* Write JSON to a file and sync it. */
enum hdt_status hdt_ckpt_write_json(const char *path, const json_t *json, struct hdt_error *err);

/* Name of a file in the folder that is none of a checkpoint's: to be kept. false: there is none. */
bool hdt_ckpt_has_other(const char *path, char name[256]);

/* Remove the files of a checkpoint that HDT writes, then the folder; other files make it stay. A
 * missing folder is no error. */
enum hdt_status hdt_ckpt_remove(const char *path, struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_CKPT_FILES_H */
