/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_STATE_H
#define HDT_RUNTIME_STATE_H

/*
 * Weights and moments on their way between ranks and checkpoint files.
 *
 * Saving: every rank copies its tensors (a snapshot), training goes on, and a thread streams the
 * copy in slabs through its STATE_OUT flow to the checkpoint rank, whose own thread writes the
 * files. Loading: the checkpoint rank reads the files, checks them, and serves every other rank
 * through STATE_IN. What a rank gets follows from the plan, so that a checkpoint may be loaded by
 * another number of stages than wrote it.
 *
 * A STATE frame, little-endian, then the slab's bytes:
 *
 *     0 u32 magic "HDST"  4 u16 version  6 u8 part (0 weight, 1 exp_avg, 2 exp_avg_sq)  7 u8 flags
 *     8 u32 tensor       12 u32 zero    16 i64 step  24 u64 samples  32 u64 tokens
 *    40 u64 byte offset in the tensor   48 u64 xxh3  56 u64 zero
 *
 * Flags: 1 = last frame, without data; 2 = keep-alive, without data: the sender is still reading;
 * 8 = feedback of a codec, or the guard of one that has none: `tensor` is twice the number of the
 * flow, plus 1 at its receiver, or of a unit's moments or outer momentum (hdt_state_next_end), and
 * a part of nothing says that there is none (only when loading); 4 = sealed: the last slab of its
 * part, and `xxh3` is the XXH3-64 of the whole part. Saving, its owner took it in its memory;
 * loading, it is the manifest's. Who takes the part compares.
 */
#include "compress/codec_state.h"
#include "runtime/alive.h"
#include "runtime/edge.h"
#include "src/core/ckpt.h"
#include "runtime/port.h"
#include "runtime/stage.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_STATE_VERSION    2
#define HDT_STATE_HEADER_LEN 64

enum hdt_state_flag {
    HDT_STATE_LAST = 1,
    HDT_STATE_KEEPALIVE = 2,
    HDT_STATE_SEALED = 4,
    HDT_STATE_FEEDBACK = 8
};

struct hdt_state_header {
    uint8_t part, flags;
    uint32_t tensor;
    int64_t step;
    uint64_t samples, tokens, offset, xxh3;
};

void hdt_state_header_pack(const struct hdt_state_header *header, void *out);
/* HDT_EPROTO, HDT_EVERSION. */
enum hdt_status hdt_state_header_unpack(const void *in, size_t len, struct hdt_state_header *header,
                                        struct hdt_error *err);

struct hdt_state_conf {
    const struct hdt_plan *plan;
    const struct hdt_model_config *model;
    int rank;
    struct hdt_port_job *port; /* NULL: a job of one rank */
    struct hdt_stage **stages; /* by plan index; NULL where another rank's */
    /* What codecs of this rank's ends keep: at 2 flow the sender's, at 2 flow + 1 the receiver's;
     * NULL where there is nothing. Only touched within hdt_state_save and hdt_state_load. */
    struct hdt_codec_state *const *feedback;
    struct hdt_edge *const *edges; /* of this rank, by flow: the guards of its senders; so, too */
    float *const *momentum; /* of outer steps, by unit of the model: its tensors' values in model
                               order, without a tied head that shares the embedding; NULL where
                               another rank's, or there is none */
    const char *dir;        /* of checkpoints; on the checkpoint rank */
    int64_t keep;
    int64_t newest_step; /* a checkpoint to load that was damaged or removed is replaced by this
                            job's newest sound one in `dir`, at or below this step; -1: by none */
    struct hdt_ckpt_owner owner;
    const json_t *job;
    bool background;         /* make room for a snapshot */
    struct hdt_alive *alive; /* told of every piece of work; NULL: nobody */

    /* A checkpoint is complete, or could not be written: nothing is left of it then, and the last
     * complete one is what it was. On the checkpoint rank; called on the saving thread. */
    void (*saved)(void *user, const struct hdt_ckpt_meta *meta,
                  const struct hdt_ckpt_result *result, double seconds);
    void (*failed)(void *user, const struct hdt_ckpt_meta *meta, const struct hdt_error *why);
    void *user;
};

struct hdt_state;

/* Does this end of a flow keep something from frame to frame? */
bool hdt_state_keeps_feedback(const struct hdt_plan_flow *flow, bool is_src);

/* Or does it have a guard, whose step in precision outlives the run? */
bool hdt_state_keeps_guard(const struct hdt_plan_flow *flow, bool is_src);

/* The next end of the rank that does either, 2 flow or 2 flow + 1 as in hdt_state_conf; *end is -1
 * to begin with. Plans of several replicas have more "ends" after these, 2 (replica units + unit)
 * for the AdamW moments of a unit in a replica but the first, and 1 more for the momentum of outer
 * steps, which all have and the first saves. false: no more. */
bool hdt_state_next_end(const struct hdt_plan *plan, int rank, int *end);

/* Bytes that are kept of one of those for a checkpoint. */
uint64_t hdt_state_unit_end_bytes(const struct hdt_plan *plan, const struct hdt_model_config *model,
                                  int end);

/* Bytes that a checkpoint has of all units together, beside its tensors; 0: of one replica. */
uint64_t hdt_state_units_bytes(const struct hdt_plan *plan, const struct hdt_model_config *model);

/* Bytes of a snapshot of this rank's tensors. */
uint64_t hdt_state_snapshot_bytes(const struct hdt_plan *plan, const struct hdt_model_config *model,
                                  int rank);

/* What conf points to outlives the state. HDT_ENOMEM. */
enum hdt_status hdt_state_new(const struct hdt_state_conf *conf, struct hdt_state **state,
                              struct hdt_error *err);
/* Waits for the thread (cancel the port's job first to be quick). NULL is allowed. */
void hdt_state_free(struct hdt_state *state);

/* True while the last save is not done. One that failed is told by hdt_state_wait. */
bool hdt_state_is_busy(struct hdt_state *state);

/* Begin to save what the stages hold now. With `background` in conf a snapshot is taken and the
 * stages may change on return; else only after hdt_state_wait. Not while busy. Every rank calls it
 * after the same step. */
enum hdt_status hdt_state_save(struct hdt_state *state, const struct hdt_ckpt_meta *meta,
                               struct hdt_error *err);

/* Wait for the end of the last save until this time (hdt_clock_now_us); false: it is still busy. */
bool hdt_state_wait_until(struct hdt_state *state, int64_t until_us);

/* A number that grows as saves move on: slabs sent, taken, written. Any thread. */
uint64_t hdt_state_n_moved(struct hdt_state *state);

/* Wait for the end of the last save and return how it went with the other ranks. */
enum hdt_status hdt_state_wait(struct hdt_state *state, struct hdt_error *err);

/* Why the last save could not be written; HDT_OK: it was, or this is not the checkpoint rank. After
 * hdt_state_wait. */
enum hdt_status hdt_state_save_error(struct hdt_state *state, struct hdt_error *err);

/* Fill the stages from the checkpoint at `path` (used on the checkpoint rank only; see
 * hdt_ckpt_reader_open). Every rank calls it. Sets *meta, whose job is NULL, and whose seed only
 * the checkpoint rank knows. */
enum hdt_status hdt_state_load(struct hdt_state *state, const char *path,
                               struct hdt_ckpt_meta *meta, struct hdt_error *err);
/* The checkpoint that was loaded in place of the one that could not be; "": that one was. */
const char *hdt_state_older(const struct hdt_state *state);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_STATE_H */
