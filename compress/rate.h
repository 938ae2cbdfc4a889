/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_COMPRESS_RATE_H
#define HDT_COMPRESS_RATE_H

/* How fast a codec is on this machine: what the planner weighs against the link. */
#include "compress/codec.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_codec_rate {
    double encode_bytes_per_s; /* of the plain side, on one core */
    double decode_bytes_per_s;
    double ratio; /* plain / coded, of normally distributed values */
};

/* Measure a codec over 1 MiB pieces of normally distributed values of `dtype` (F32 or BF16; other
 * dtypes: of their bytes), half of budget_ms for each direction; once through at least. Blocks for
 * that long. HDT_EINVAL when the codec does not take the dtype, HDT_ENOMEM. */
enum hdt_status hdt_codec_rate_measure(const struct hdt_codec_ops *codec, enum hdt_dtype dtype,
                                       int budget_ms, struct hdt_codec_rate *rate,
                                       struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_COMPRESS_RATE_H */
