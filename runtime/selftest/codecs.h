/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_RUNTIME_SELFTEST_CODECS_H
#define HDT_RUNTIME_SELFTEST_CODECS_H

/*
 * Holds the codecs of a device to their scalar definition: each codes and decodes tensors of many
 * lengths and contents, and frames of foreign bytes, there; frames, tensors, refusals and what the
 * guard counts must be the scalar kernels' bit for bit, the guard's sums within 1e-5.
 *
 * For programs of one thread: misses are printed, and a device that fails ends the program with 1.
 */
#include "compress/codec_ctx.h"
#include "compress/device.h"
#include "runtime/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_CODEC_TRIAL_N     ((size_t)40000) /* values of a tensor at most */
#define HDT_CODEC_TRIAL_PLAIN (4 * HDT_CODEC_TRIAL_N)
#define HDT_CODEC_TRIAL_CODED (5 * HDT_CODEC_TRIAL_N + 65536)

/* Where tensors come from. */
struct hdt_codec_contents {
    int n_kinds;
    const char *(*fill)(void *arg, int kind, float *x, size_t n); /* returns the kind's name */
    uint64_t (*random)(void *arg);
    void *arg;
};

/* The device, with memory for a call. */
struct hdt_codec_side {
    const struct hdt_backend *backend;
    struct hdt_device *device;
    struct hdt_stream *stream;
    struct hdt_device_call call;
    uint8_t *plain, *coded; /* device */
    struct hdt_codec_ctx *ctx;
};

/* One tensor, as the definition and as the device code it. Large: not for the stack. */
struct hdt_codec_trial {
    struct hdt_codec_side *side;
    const struct hdt_codec_contents *contents;
    struct hdt_codec_spec spec;
    const char *text;     /* of the spec, for messages */
    enum hdt_dtype dtype; /* of the tensor */
    size_t n;
    const char *content; /* for messages */
    uint8_t plain[HDT_CODEC_TRIAL_PLAIN];
    uint8_t want_plain[HDT_CODEC_TRIAL_PLAIN], got_plain[HDT_CODEC_TRIAL_PLAIN];
    uint8_t want_coded[HDT_CODEC_TRIAL_CODED], got_coded[HDT_CODEC_TRIAL_CODED];
    int n_checks, n_misses;
};

/* The backend has codecs; device and stream stay the caller's, and outlive the side. */
void hdt_codec_side_open(struct hdt_codec_side *side, const struct hdt_backend *backend,
                         struct hdt_device *device, struct hdt_stream *stream);
void hdt_codec_side_close(struct hdt_codec_side *side);

/* Count a check, and print it when it is not right. */
void hdt_codec_trial_check(struct hdt_codec_trial *t, bool is_right, const char *what);

/* Both encode t->plain; returns the frame's length, 0 when it is refused. `state`: of top-k. */
size_t hdt_codec_trial_encode(struct hdt_codec_trial *t, struct hdt_codec_state *state);

/* Both decode t->want_coded, or add it to a constant. */
void hdt_codec_trial_decode(struct hdt_codec_trial *t, size_t coded_len, bool add);

/* All codecs on all contents; quick: of four lengths. The trial has side and contents. */
void hdt_codec_trials_run(struct hdt_codec_trial *t, bool is_quick);

/* The quick ones with contents of its own; prints a line, returns the number of misses. */
int hdt_selftest_codecs(const struct hdt_backend *backend, struct hdt_device *device,
                        struct hdt_stream *stream);

#ifdef __cplusplus
}
#endif
#endif /* HDT_RUNTIME_SELFTEST_CODECS_H */
