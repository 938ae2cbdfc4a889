/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_CKPT_MANIFEST_H
#define HDT_CORE_CKPT_MANIFEST_H

/*
 * hdt.json, the manifest of a checkpoint: what binds its files together.
 *
 *     {"hdt_checkpoint": 1, "step": N, "seed": HEX, "samples": N, "tokens": N, "saved": TIME,
 *      "owner": {"job": N, "epoch": N, "number": N, "name": S, "coordinator": S, "submitted": S},
 *      "job": {...}, "weights_digest": HEX,
 *      "files": {"model.safetensors": {"bytes": N, "sha256": HEX}, ...},
 *      "tensors": {"model.safetensors": {NAME: {"dtype": "F32", "shape": [N, N],
 *                                               "range": [BEGIN, END], "xxh3": HEX}, ...}, ...},
 *      "digest": HEX}
 *
 * Files "feedback-NAME.bin" have one tensor, "state", of U8; a checkpoint may have none of them.
 * `range` is of bytes in the file; `digest` is the XXH3-64 of all the rest, sorted and without
 * spaces, so that a bit that flips in it is found as one in the weights is.
 */
#include "src/core/ckpt.h"
#include "src/core/ckpt_files.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_CKPT_FORMAT 1

struct hdt_ckpt_manifest {
    char path[HDT_CKPT_PATH_CAP]; /* the checkpoint's folder */
    json_t *root;
    struct hdt_ckpt_meta meta; /* its job is borrowed from root */
    uint64_t bytes;            /* of the files that it names */
};

/* Add "digest", or set it to what it should be; root is an object. */
void hdt_ckpt_manifest_seal(json_t *root);

/* Seal and write it. */
enum hdt_status hdt_ckpt_manifest_write(json_t *root, const char *dir, struct hdt_error *err);

/* Read and check the manifest of the folder `path`, and that its files are there with the sizes it
 * says: nothing of them is read. HDT_ENOENT, HDT_EINVAL. Release it in any case. */
enum hdt_status hdt_ckpt_manifest_read(const char *path, struct hdt_ckpt_manifest *manifest,
                                       struct hdt_error *err);
void hdt_ckpt_manifest_release(struct hdt_ckpt_manifest *manifest);

/* Read every byte of the files and compare all digests; with copy_to, write them to that folder, as
 * well. HDT_EINVAL names file, tensor, bytes and both digests. */
struct hdt_ckpt_verify {
    const char *copy_to;         /* NULL: only verify */
    bool from_disk;              /* see struct hdt_ckpt_scan */
    bool weights_only;           /* leave the optimizer's file and the feedback out */
    void (*progress)(void *arg); /* may be NULL */
    void *arg;
};
enum hdt_status hdt_ckpt_manifest_verify(const struct hdt_ckpt_manifest *manifest,
                                         const struct hdt_ckpt_verify *how, struct hdt_error *err);

json_t *hdt_ckpt_owner_json(const struct hdt_ckpt_owner *owner); /* new reference */

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_CKPT_MANIFEST_H */
