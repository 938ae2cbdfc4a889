/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_COMPRESS_TRIAL_H
#define HDT_COMPRESS_TRIAL_H

/*
 * What a codec makes of a given tensor: bytes, time, error, and how few bytes its planes could be.
 * It runs the whole way of an edge: worker codec, chunks, gateway codec, and back.
 */
#include "compress/codec.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of a frame that its gateway codec is given at a time. */
#define HDT_CODEC_TRIAL_CHUNK ((size_t)1 << 20)

/* Sums over tensors: zero it, then let every trial add to it. */
struct hdt_codec_trial {
    uint64_t n_tensors;
    uint64_t n_values;
    uint64_t plain_bytes, coded_bytes;
    double floor_bytes; /* of the worker codec's frame: hdt_codec_floor_bytes */
    double encode_s, decode_s;
    double err_sq,
        ref_sq; /* sums of (value - decoded)^2 and of value^2; 0 when every bit returns */
};

/* The entropy floor of a frame, bytes: the frame is cut into the planes that doc/codecs.md defines,
 * and each plane counts n times its order-0 entropy. A code that looks at one byte at a time can go
 * no lower; its tables, which a floor does not count, weigh on tensors of a few thousand values. */
double hdt_codec_floor_bytes(enum hdt_dtype dtype, const void *frame, size_t len);

/* Run a tensor through the codec and back, at least once and until budget_ms are over in each
 * direction, the fastest pass counting, and add the figures to *sums. `ctx` is for chunks of
 * HDT_CODEC_TRIAL_CHUNK. A codec with feedback is told of no tensor before this one.
 * HDT_EINVAL: the codec does not take such values (int8: a NaN among them); HDT_EPROTO: an exact
 * codec gave other bits back; HDT_ENOMEM. Blocks for as long. */
enum hdt_status hdt_codec_trial_run(struct hdt_codec_ctx *ctx, const struct hdt_codec_spec *spec,
                                    enum hdt_dtype dtype, const void *data, size_t len,
                                    int budget_ms, struct hdt_codec_trial *sums,
                                    struct hdt_error *err);

/* Does the spec's worker codec take tensors of this dtype? */
bool hdt_codec_trial_takes(const struct hdt_codec_spec *spec, enum hdt_dtype dtype);

/* The codecs worth a row in a comparison: those that the table of words names, and each of them
 * with `lossless` behind it. Returns their number; fills at most `cap`. */
size_t hdt_codec_trial_specs(struct hdt_codec_spec *specs, size_t cap);

/* Relative error, sqrt(err_sq / ref_sq). */
double hdt_codec_trial_error(const struct hdt_codec_trial *sums);

#ifdef __cplusplus
}
#endif
#endif /* HDT_COMPRESS_TRIAL_H */
