/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_CKPT_H
#define HDT_CORE_CKPT_H

/*
 * Checkpoints on disk. A folder DIR holds one folder a checkpoint, and the newest complete one is
 * named by the symbolic link DIR/latest:
 *
 *     DIR/step-00000300/model.safetensors      fp32 weights by Hugging Face names
 *                       config.json            so that transformers loads the folder
 *                       optimizer.safetensors  "NAME.exp_avg" and "NAME.exp_avg_sq", fp32
 *                       hdt.json               manifest: step, data cursor, job, digests
 *
 * A checkpoint is independent of the plan: of the number of stages, of vendors, of who wrote it. It
 * is written to "step-N.tmp", synced, and renamed when complete, so that a folder without ".tmp" is
 * whole whatever happened. Readers check sizes and SHA-256 of all files before they use one byte.
 */
#include "src/core/model.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What is kept of one weight tensor. */
enum hdt_ckpt_part { HDT_CKPT_WEIGHT, HDT_CKPT_EXP_AVG, HDT_CKPT_EXP_AVG_SQ, HDT_CKPT_PART_COUNT };

/* Where training stood. */
struct hdt_ckpt_meta {
    int64_t step;     /* steps done */
    uint64_t samples; /* data cursor: training samples taken */
    uint64_t tokens;  /* tokens trained on */
    uint64_t seed;
    const json_t *job; /* as submitted; borrowed; may be NULL */
};

struct hdt_ckpt_result {
    char path[4096];
    uint64_t bytes;
    uint64_t digest; /* of the weights, as hdt_sync_total_digest */
};

struct hdt_ckpt_writer;

/* Make DIR/step-N.tmp and its files. Free with finish or abort. HDT_EIO, HDT_EACCES. */
enum hdt_status hdt_ckpt_writer_open(const char *dir, const struct hdt_model_config *model,
                                     const struct hdt_ckpt_meta *meta,
                                     struct hdt_ckpt_writer **writer, struct hdt_error *err);

/* Next `len` bytes of one part of a tensor (index in model order; not a tied head). Tensors come in
 * any order, the bytes of one in theirs. HDT_EINVAL: more than there are; HDT_EIO. */
enum hdt_status hdt_ckpt_writer_append(struct hdt_ckpt_writer *writer, int64_t tensor,
                                       enum hdt_ckpt_part part, const void *data, size_t len,
                                       struct hdt_error *err);

/* Check that all is there, sync, write the manifest, rename, move `latest`, remove the
 * oldest beyond `keep` (0: none; see hdt_ckpt_prune), where a failure is only logged. Frees the
 * writer in any case; after a failure the ".tmp" folder is removed. */
enum hdt_status hdt_ckpt_writer_finish(struct hdt_ckpt_writer *writer, int64_t keep,
                                       struct hdt_ckpt_result *result, struct hdt_error *err);
void hdt_ckpt_writer_abort(struct hdt_ckpt_writer *writer); /* NULL is allowed */

struct hdt_ckpt_reader;

/* Open the checkpoint `path`: a step's folder, or a DIR with `latest` (or, without that link, the
 * highest complete step). Checks the manifest, sizes and digests. `progress` (may be NULL) is
 * called now and then while files are read. HDT_ENOENT: none there; HDT_EINVAL: truncated, altered,
 * or not of this model (`model` NULL: any). */
enum hdt_status hdt_ckpt_reader_open(const char *path, const struct hdt_model_config *model,
                                     void (*progress)(void *arg), void *progress_arg,
                                     struct hdt_ckpt_reader **reader, struct hdt_error *err);
void hdt_ckpt_reader_close(struct hdt_ckpt_reader *reader); /* NULL is allowed */

const struct hdt_ckpt_meta *hdt_ckpt_reader_meta(const struct hdt_ckpt_reader *reader);
const struct hdt_model_config *hdt_ckpt_reader_model(const struct hdt_ckpt_reader *reader);
const char *hdt_ckpt_reader_path(const struct hdt_ckpt_reader *reader);

/* Read bytes [pos, pos + len) of a part; a tied head reads the embedding. HDT_EIO. */
enum hdt_status hdt_ckpt_reader_read(const struct hdt_ckpt_reader *reader, int64_t tensor,
                                     enum hdt_ckpt_part part, uint64_t pos, size_t len, void *dst,
                                     struct hdt_error *err);

/* Tensors that stand in files: all in model order, without a tied head. */
int64_t hdt_ckpt_n_tensors(const struct hdt_model_config *model);
uint64_t hdt_ckpt_tensor_bytes(const struct hdt_model_config *model, int64_t tensor);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_CKPT_H */
