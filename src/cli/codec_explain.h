/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_CODEC_EXPLAIN_H
#define HDT_CLI_CODEC_EXPLAIN_H

/* Which codec pays on an edge, and why: `hdt codec explain`. */
#include <jansson.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_cmd;
extern const struct hdt_cmd hdt_cmd_codec_explain;

/* An edge to work the table out for; what is 0 is unknown, ratios are then as usual. */
struct hdt_codec_case {
    char name[256];
    double link_bytes_per_s, rtt_s;
    double tensor_bytes, n_frames;
    double error_budget;
    double gw_encode_bytes_per_s, gw_decode_bytes_per_s; /* lossless, of all threads */
    double ratio_f32, ratio_bf16;                        /* lossless */
};

/* {"edge", "link_bytes_per_s", "rtt_s", "tensor_bytes", "frames", "error_budget", "table": as
 * hdt_codec_table_json}. Measures the workers' codecs on this machine, 20 ms each. New reference.
 */
json_t *hdt_codec_case_explain(const struct hdt_codec_case *at);

/* One such object for each edge between sites of what `hdt plan --json` prints; of `base` error
 * budget and lossless rates are taken. New reference. */
json_t *hdt_codec_explain_plan(const json_t *planned, const struct hdt_codec_case *base);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CLI_CODEC_EXPLAIN_H */
