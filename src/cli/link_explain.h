/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_LINK_EXPLAIN_H
#define HDT_CLI_LINK_EXPLAIN_H

/* Why a link between two sites is as fast as it is: `hdt link explain`. Pure functions of what the
 * two gateways answered ("link.is"). */
#include <jansson.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Rates of a link below which a codec makes it carry tensors faster. */
struct hdt_break_even {
    double stream_bytes_per_s; /* tensors one after another: coding overlaps sending */
    double alone_bytes_per_s;  /* one that is waited for: encode, send, decode in turn */
};

/* `ratio` is plain / coded; the rates are of the plain side, 0: unknown. A codec that saves
 * nothing, or whose rates are unknown, pays nowhere: both are 0. */
struct hdt_break_even hdt_break_even(double ratio, double encode_bytes_per_s,
                                     double decode_bytes_per_s);

/* One direction, from the site of `facts` to that of `other` (NULL: it was not heard, and what
 * would be known of it is left out): {"from", "to", "limit", "limit_share", "rate_bits_per_s",
 * "bdp_bytes", "lines": [{"what", "text", "remedy"}]}. New reference. */
json_t *hdt_link_explain(const json_t *facts, const json_t *other);

/* The codecs at that rate (0: unknown): an array of {"codec", "dtype", "ratio",
 * "encode_bits_per_s", "decode_bits_per_s", "stream_bits_per_s", "alone_bits_per_s", "pays",
 * "text"}; the slower end counts. New reference. */
json_t *hdt_link_explain_codecs(const json_t *facts, const json_t *other, double bytes_per_s);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CLI_LINK_EXPLAIN_H */
