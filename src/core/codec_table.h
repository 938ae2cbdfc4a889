/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_CODEC_TABLE_H
#define HDT_CORE_CODEC_TABLE_H

/* The table behind a choice of codecs, as workers report it and `hdt codec explain` prints it. */
#include "compress/adapt.h"

#include <jansson.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An array with an object for each candidate: "codec", "chosen", "encode_bytes_per_s",
 * "decode_bytes_per_s" (of all codings at that end, 0: no time), "ratio", "error",
 * "goodput_bytes_per_s", "pace_s", "alone_s", "step_s", "full_below_bytes_per_s",
 * "none_above_bytes_per_s", "why". New reference. */
json_t *hdt_codec_table_json(const struct hdt_adapt_input *in, const struct hdt_adapt_table *table);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_CODEC_TABLE_H */
