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
 *                       feedback-NAME.bin      what a codec with feedback owes, one an edge; if
 *                                              any: such a codec starts with nothing without it
 *                       hdt.json               manifest: step, data cursor, job, digests
 *
 * A checkpoint is independent of the plan: of the number of stages, of vendors, of who wrote it. It
 * is written to "step-N.tmp-XXXXXX", synced, read back, and renamed when it is complete, so that a
 * "step-N" is whole whatever happened; a crash leaves the old one or the new one, never none.
 *
 * Every tensor has a digest (XXH3-64) that its owner took in its own memory; it goes with the bytes
 * into the manifest and comes back out of it to whoever loads them, so that a bit that flips in
 * memory, on a wire or on a disk is found by name. Each file has a SHA-256 as well, and the
 * manifest a digest of itself.
 */
#include "src/core/model.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_CKPT_NAME_CAP 64

/* What is kept of one weight tensor. */
enum hdt_ckpt_part { HDT_CKPT_WEIGHT, HDT_CKPT_EXP_AVG, HDT_CKPT_EXP_AVG_SQ, HDT_CKPT_PART_COUNT };

/* The job that wrote it. A job that goes on after a restart is the same job: its epoch rises. */
struct hdt_ckpt_owner {
    uint32_t job, epoch;                 /* number in the federation, number of the plan */
    int64_t number;                      /* as people know the job */
    char name[HDT_CKPT_NAME_CAP];        /* of the job */
    char coordinator[HDT_CKPT_NAME_CAP]; /* site */
    char submitted[20]; /* instance of the gateway that took it; tells two gateways that both count
                           from 1 apart */
};

bool hdt_ckpt_owner_same(const struct hdt_ckpt_owner *a, const struct hdt_ckpt_owner *b);

/* Where training stood. */
struct hdt_ckpt_meta {
    int64_t step;     /* steps done */
    uint64_t samples; /* data cursor: training samples taken */
    uint64_t tokens;  /* tokens trained on */
    uint64_t seed;
    struct hdt_ckpt_owner owner;
    const json_t *job; /* as submitted; borrowed; may be NULL */
};

struct hdt_ckpt_result {
    char path[4096];
    uint64_t bytes;
    uint64_t digest; /* of the weights, as hdt_sync_total_digest */
};

/* ---- writing ---- */

struct hdt_ckpt_writer;

/* Bytes that a checkpoint of this model takes on disk, a little more rather than less. */
uint64_t hdt_ckpt_bytes(const struct hdt_model_config *model);

/* HDT_EIO: `dir` has no room for a checkpoint of this model and so many bytes in files beside its
 * tensors; the message says how much is needed. */
enum hdt_status hdt_ckpt_check_room(const char *dir, const struct hdt_model_config *model,
                                    uint64_t beside_bytes, struct hdt_error *err);

struct hdt_ckpt_writer_conf {
    const char *dir;
    const struct hdt_model_config *model;
    struct hdt_ckpt_meta meta;
    uint64_t beside_bytes;       /* that files beside the tensors will have */
    int64_t keep;                /* checkpoints of this job that stay; 0: all */
    void (*progress)(void *arg); /* called now and then while it is finished; may be NULL */
    void *arg;
};

/* Room is looked for, then DIR/step-N.tmp-XXXXXX and its files are made. Free with finish or abort.
 * HDT_EIO (a disk that is full, too: how much is needed and free), HDT_EEXIST: a checkpoint of this
 * step that another job wrote is there. */
enum hdt_status hdt_ckpt_writer_open(const struct hdt_ckpt_writer_conf *conf,
                                     struct hdt_ckpt_writer **writer, struct hdt_error *err);

/* Next `len` bytes of one part of a tensor (index in model order; not a tied head). Tensors come in
 * any order, the bytes of one in theirs. HDT_EINVAL: more than there are; HDT_EIO. */
enum hdt_status hdt_ckpt_writer_append(struct hdt_ckpt_writer *writer, int64_t tensor,
                                       enum hdt_ckpt_part part, const void *data, size_t len,
                                       struct hdt_error *err);

/* The part is complete and this is the XXH3-64 that its owner took before it travelled. HDT_ECRC:
 * what came is something else. */
enum hdt_status hdt_ckpt_writer_seal(struct hdt_ckpt_writer *writer, int64_t tensor,
                                     enum hdt_ckpt_part part, uint64_t xxh3, struct hdt_error *err);

/* The next bytes of the feedback that an end of an edge keeps (hdt_plan_edge_name: the file's name
 * is made of it), and its end with the XXH3-64 that its owner took. HDT_EPROTO: they do not follow
 * on what came; HDT_ECRC, HDT_EIO. */
enum hdt_status hdt_ckpt_writer_feedback(struct hdt_ckpt_writer *writer, const char *name,
                                         uint64_t offset, const void *data, size_t len,
                                         struct hdt_error *err);
enum hdt_status hdt_ckpt_writer_seal_feedback(struct hdt_ckpt_writer *writer, const char *name,
                                              uint64_t xxh3, struct hdt_error *err);

/* Check that all is there, sync, read it back from the disk and compare with the owners' digests,
 * write the manifest, rename, move `latest`, remove the oldest of this job beyond `keep`, where a
 * failure is only logged. Frees the writer in any case; after a failure nothing is left of it.
 * HDT_ECRC, HDT_EEXIST, HDT_EIO. */
enum hdt_status hdt_ckpt_writer_finish(struct hdt_ckpt_writer *writer,
                                       struct hdt_ckpt_result *result, struct hdt_error *err);
void hdt_ckpt_writer_abort(struct hdt_ckpt_writer *writer); /* NULL is allowed */

/* ---- looking ---- */

/* One of a folder's checkpoints. */
struct hdt_ckpt_found {
    char path[4096];
    int64_t step;
    struct hdt_ckpt_owner owner;
    uint64_t bytes;
    char saved[32];       /* "2026-03-01T12:00:00Z" */
    bool complete;        /* the manifest is whole, all files are there with its sizes */
    struct hdt_error why; /* when it is not */
};

/* All "step-N" of `dir`, highest step first; *found is the caller's (free). Reads manifests and
 * sizes. HDT_ENOENT, HDT_EIO. */
enum hdt_status hdt_ckpt_list(const char *dir, struct hdt_ckpt_found **found, size_t *n,
                              struct hdt_error *err);

/* Is the folder itself a checkpoint, by its manifest? Then *found says what it holds. */
bool hdt_ckpt_look(const char *dir, struct hdt_ckpt_found *found);

/* The newest complete checkpoint of `dir`. HDT_ENOENT: there is none. */
struct hdt_ckpt_query {
    int64_t max_step;                   /* at or below this step; < 0: any */
    const struct hdt_ckpt_owner *owner; /* of this job only; NULL: of any */
    bool every_byte; /* verify digests, too (reads all of it), and take an older one when they are
                        wrong; else manifest and sizes, milliseconds */
    void (*progress)(void *arg); /* called as bytes are read; may be NULL */
    void *arg;
};
enum hdt_status hdt_ckpt_newest(const char *dir, const struct hdt_ckpt_query *query,
                                struct hdt_ckpt_found *found, struct hdt_error *err);

/* HDT_EEXIST when `dir` has a complete checkpoint of another job beyond `step`: going on from there
 * would overwrite it. HDT_OK also when there is no such folder. */
enum hdt_status hdt_ckpt_check_owner(const char *dir, const struct hdt_ckpt_owner *owner,
                                     int64_t step, struct hdt_error *err);

/* ---- reading ---- */

struct hdt_ckpt_reader;

/* Open the checkpoint `path`: a step's folder, or a DIR with `latest` (or, without that link, the
 * highest complete step). Checks the manifest, sizes and digests of every byte. A `latest` that is
 * damaged is an error, which names the newest complete one: nothing else is taken instead.
 * HDT_ENOENT: none there; HDT_EINVAL: truncated, altered (file, tensor, bytes, both digests), or
 * not of this model. */
struct hdt_ckpt_open {
    const struct hdt_model_config *model; /* that it must be of; NULL: any */
    bool weights_only;           /* the optimizer's state is not wanted: its bytes are not read */
    void (*progress)(void *arg); /* called now and then while files are read; may be NULL */
    void *arg;
};
enum hdt_status hdt_ckpt_reader_open(const char *path, const struct hdt_ckpt_open *how,
                                     struct hdt_ckpt_reader **reader, struct hdt_error *err);
void hdt_ckpt_reader_close(struct hdt_ckpt_reader *reader); /* NULL is allowed */

const struct hdt_ckpt_meta *hdt_ckpt_reader_meta(const struct hdt_ckpt_reader *reader);
const struct hdt_model_config *hdt_ckpt_reader_model(const struct hdt_ckpt_reader *reader);
const char *hdt_ckpt_reader_path(const struct hdt_ckpt_reader *reader);
uint64_t hdt_ckpt_reader_bytes(const struct hdt_ckpt_reader *reader); /* of all files */

/* Read bytes [pos, pos + len) of a part; a tied head reads the embedding. HDT_EIO. */
enum hdt_status hdt_ckpt_reader_read(const struct hdt_ckpt_reader *reader, int64_t tensor,
                                     enum hdt_ckpt_part part, uint64_t pos, size_t len, void *dst,
                                     struct hdt_error *err);

/* XXH3-64 of a part as its owner had it: to be compared by who has loaded it. */
uint64_t hdt_ckpt_reader_digest(const struct hdt_ckpt_reader *reader, int64_t tensor,
                                enum hdt_ckpt_part part);

/* Bytes and XXH3-64 of an edge's feedback; false: the checkpoint has none of that name. */
bool hdt_ckpt_reader_find_feedback(const struct hdt_ckpt_reader *reader, const char *name,
                                   uint64_t *bytes, uint64_t *xxh3);

/* Bytes [pos, pos + len) of it. HDT_EIO. */
enum hdt_status hdt_ckpt_reader_feedback(const struct hdt_ckpt_reader *reader, const char *name,
                                         uint64_t pos, size_t len, void *dst,
                                         struct hdt_error *err);

/* Copy the checkpoint `path` (as for reader_open) to `to`: a folder that is not there yet, or is a
 * "step-N" of a folder of checkpoints. It is verified while it is copied and appears when it is
 * whole. HDT_EEXIST, HDT_EINVAL, HDT_EIO. */
enum hdt_status hdt_ckpt_copy(const char *path, const char *to, struct hdt_ckpt_found *made,
                              struct hdt_error *err);

/* ---- the model's tensors ---- */

/* Tensors that stand in files: all in model order, without a tied head. */
int64_t hdt_ckpt_n_tensors(const struct hdt_model_config *model);
uint64_t hdt_ckpt_tensor_bytes(const struct hdt_model_config *model, int64_t tensor);
/* "NAME", "NAME.exp_avg", "NAME.exp_avg_sq". */
void hdt_ckpt_tensor_name(const struct hdt_model_config *model, int64_t tensor,
                          enum hdt_ckpt_part part, char *name, size_t cap);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_CKPT_H */
