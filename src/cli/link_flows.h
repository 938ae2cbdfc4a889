/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_LINK_FLOWS_H
#define HDT_CLI_LINK_FLOWS_H

/*
 * What the two programs of `hdt link bench` share: a channel of two members, the one that measures
 * (rank 0) and its echo at the other site (rank 1), and the flows between them. Rank 0 sends
 * orders, rank 1 answers each when it is done.
 *
 * Over libhdt, and not over the gateways' probes: what is measured is then what a program gets,
 * with the flows, codecs, credits and acknowledgements that a job's tensors have, and the data
 * plane needs no second way for tensors. The price is a program at the other site, which its
 * gateway starts; it opens no port and ends with the channel.
 */
#include "src/base/error.h"
#include "src/hdt.h"

#include <stddef.h>
#include <stdint.h>

enum { HDT_BENCH_NONE, HDT_BENCH_LOSSLESS, HDT_BENCH_INT8, HDT_BENCH_CODECS };
extern const char *const hdt_bench_codec_names[HDT_BENCH_CODECS]; /* as libhdt knows them */

/* An order: take, or give, n tensors of so many bytes over the flow with that codec. */
enum { HDT_BENCH_PING, HDT_BENCH_TAKE, HDT_BENCH_GIVE, HDT_BENCH_END };
struct hdt_bench_order {
    int64_t what, codec, bytes, n; /* n of an answer: as of hdt_bench_span */
    int64_t span_us;               /* of an answer */
};

/* What of a train was measured (src/cli/train.h): so many tensors arrived in so long a time. */
struct hdt_bench_span {
    int64_t n, us;
};

struct hdt_bench_flows {
    struct hdt_channel *channel;
    struct hdt_flow *order, *answer; /* of hdt_bench_order each way */
    struct hdt_flow *out[HDT_BENCH_CODECS], *in[HDT_BENCH_CODECS];
    unsigned char *values; /* to be sent: cap bytes of the type that the last codec takes */
    unsigned char *room;   /* for what comes */
    size_t cap;
    int values_type;   /* -1: nothing yet */
    size_t values_len; /* so many bytes are made */
};

struct hdt_bench_conf {
    struct hdt_ctx *ctx; /* to the gateway of our own site */
    const char *channel, *sites[2];
    int rank;
    size_t window_bytes, cap;
    int open_timeout_ms, timeout_ms;
};

/* Open the channel and all flows; on failure nothing is left. */
enum hdt_err hdt_bench_flows_open(struct hdt_bench_flows *flows, const struct hdt_bench_conf *conf,
                                  struct hdt_error_info *error);
void hdt_bench_flows_close(struct hdt_bench_flows *flows);

/* Send, or take, n tensors of `bytes`: a few at a time are under way. Returns when the last one is
 * there, or handed over. */
enum hdt_err hdt_bench_give(struct hdt_bench_flows *flows, const struct hdt_bench_order *order,
                            struct hdt_error_info *error);
enum hdt_err hdt_bench_take(struct hdt_bench_flows *flows, const struct hdt_bench_order *order,
                            struct hdt_bench_span *span, struct hdt_error_info *error);

/* Make the values that such an order sends, so that the time for it is not measured. */
void hdt_bench_fill(struct hdt_bench_flows *flows, const struct hdt_bench_order *order);

/* One order or answer. */
enum hdt_err hdt_bench_say(struct hdt_flow *flow, const struct hdt_bench_order *order,
                           struct hdt_error_info *error);
enum hdt_err hdt_bench_hear(struct hdt_flow *flow, struct hdt_bench_order *order,
                            struct hdt_error_info *error);

#endif /* HDT_CLI_LINK_FLOWS_H */
