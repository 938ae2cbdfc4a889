/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_COMPRESS_CODEC_STATE_H
#define HDT_COMPRESS_CODEC_STATE_H

/*
 * What a codec remembers from one tensor of a flow to the next.
 *
 * | codec                 | at       | memory, bytes                                       |
 * |-----------------------|----------|-----------------------------------------------------|
 * | topk, randk           | sender   | 4 n: the residual, what is still to be sent         |
 * | lowrank               | sender   | 4 n, and 8 rank (rows + columns) for the factors    |
 * | any with "delta:"     | both     | (4 n + 16) keys, and 4 n                            |
 *
 * for tensors of n fp32 values. All of it is allocated when the state is made and never grows; how
 * much is known before, for the plan of a worker's memory. A new state is all zeros: nothing is
 * owed, no sample is known.
 *
 * A state belongs to one flow and one direction, and to one thread at a time. A frame moves it
 * once: a frame that is sent again is the bytes that were kept, not encoded anew. Saved with a
 * checkpoint and loaded again it goes on with the same bits.
 */
#include "compress/spec.h"
#include "src/base/error.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Most samples that a delta codec may keep. */
#define HDT_CODEC_KEYS_MAX ((size_t)1 << 20)

/* For the codecs of this folder; others see it as opaque. */
struct hdt_codec_state {
    struct hdt_codec_spec spec;
    size_t n, keys;

    /* Saved: one run of memory of `saved_len` bytes, of which these are parts. */
    uint8_t *saved;
    size_t saved_len;
    float *residual;  /* (n); NULL: no feedback */
    float *factor;    /* lowrank: (rank, columns), where the next iteration begins */
    uint64_t *key;    /* delta: (keys) the sample of each slot */
    uint64_t *visits; /* delta: (keys) how often it was coded; slots from the first 0 on are free */
    float *sample;    /* delta: (keys, n) what both ends hold of it */

    float *scratch; /* not saved: lowrank (rank, rows + columns), delta (n) */
};

/* Memory that a state takes, bytes; 0 when the codec keeps nothing. `keys` is the number of samples
 * of a delta codec, otherwise ignored. */
size_t hdt_codec_state_mem(const struct hdt_codec_spec *spec, size_t n, size_t keys);

/* Make the state of a flow of tensors of n fp32 values; free with hdt_codec_state_free. HDT_EINVAL:
 * the codec keeps nothing, or n or keys are out of bounds; HDT_ENOMEM. */
enum hdt_status hdt_codec_state_new(const struct hdt_codec_spec *spec, size_t n, size_t keys,
                                    struct hdt_codec_state **state, struct hdt_error *err);
void hdt_codec_state_free(struct hdt_codec_state *state);

/* Is this the state of a flow of tensors of n values in this codec? HDT_EINVAL when it is not. */
enum hdt_status hdt_codec_state_fits(const struct hdt_codec_state *state,
                                     const struct hdt_codec_spec *spec, size_t n,
                                     struct hdt_error *err);

/* Forget everything: as new. */
void hdt_codec_state_reset(struct hdt_codec_state *state);

/* Length of the saved form, bytes; does not change while the state lives. */
size_t hdt_codec_state_bytes(const struct hdt_codec_state *state);

/* Write the saved form into hdt_codec_state_bytes bytes of the caller's. */
void hdt_codec_state_save(const struct hdt_codec_state *state, void *mem);

/* Take over a saved form: foreign bytes. HDT_EPROTO when it is damaged; HDT_EINVAL when it is of
 * another codec, tensor or version. The state is as it was then. */
enum hdt_status hdt_codec_state_load(struct hdt_codec_state *state, const void *mem, size_t len,
                                     struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_COMPRESS_CODEC_STATE_H */
