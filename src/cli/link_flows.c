/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/link_flows.h"
#include "src/cli/train.h"
#include "src/base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT_ONCE       256  /* tensors handed over and not taken: small ones follow each other */
#define CONTROL_BYTES 4096 /* window of orders and answers */
#define COLLECTIVES   (1u << 20) /* window of what is not used */
#define PATTERN       (1u << 20) /* values are made for so many bytes and repeated */

const char *const hdt_bench_codec_names[HDT_BENCH_CODECS] = {
    [HDT_BENCH_NONE] = "none", [HDT_BENCH_LOSSLESS] = "lossless", [HDT_BENCH_INT8] = "int8"};

/* What models send most: activations in bf16; int8 is for f32. */
static int bench_type(int64_t codec)
{
    return codec == HDT_BENCH_INT8 ? HDT_TYPE_F32 : HDT_TYPE_BF16;
}

/* ---- values ---- */

/* The sum of twelve uniform numbers, less six, is normal enough for a codec. */
static float value_next(uint64_t *state)
{
    double sum = -6;

    for (int i = 0; i < 12; i++) {
        *state = *state * 6364136223846793005ull + 1442695040888963407ull;
        sum += (double)(*state >> 11) / 9007199254740992.0;
    }
    return (float)sum;
}

void hdt_bench_fill(struct hdt_bench_flows *flows, const struct hdt_bench_order *order)
{
    const int type = bench_type(order->codec);
    const size_t size = hdt_type_size(type), wanted = (size_t)order->bytes;
    uint64_t state = 1;
    size_t i = flows->values_len, len;

    if (flows->values_type != type) {
        flows->values_type = type;
        for (i = 0; i + size <= flows->cap && i < PATTERN; i += size) {
            const float value = value_next(&state);
            uint32_t bits;

            memcpy(&bits, &value, sizeof(bits));
            bits = type == HDT_TYPE_BF16 ? bits >> 16 : bits; /* little-endian, as all of HDT */
            memcpy(flows->values + i, &bits, size);
        }
    }
    for (; i < wanted; i += len) {
        len = wanted - i < i ? wanted - i : i;
        memcpy(flows->values + i, flows->values, len);
    }
    flows->values_len = i;
}

/* ---- opening ---- */

static enum hdt_err flow_open(const struct hdt_bench_flows *flows, const struct hdt_flow_conf *flow,
                              struct hdt_flow **opened, struct hdt_error_info *error)
{
    return hdt_flow_open(flows->channel, flow, opened, error);
}

/* Tags: orders 0, answers 1; then two for each codec, by the rank that sends. */
static enum hdt_err flows_open_all(struct hdt_bench_flows *flows, const struct hdt_bench_conf *conf,
                                   struct hdt_error_info *error)
{
    struct hdt_flow_conf flow = HDT_FLOW_CONF_INIT;
    enum hdt_err rc;

    flow.peer = 1 - conf->rank;
    flow.type = HDT_TYPE_I64;
    flow.priority = HDT_PRIORITY_URGENT;
    flow.window_bytes = CONTROL_BYTES;
    flow.direction = conf->rank == 0 ? HDT_SEND : HDT_RECEIVE;
    rc = flow_open(flows, &flow, &flows->order, error);
    if (rc == HDT_ERR_NONE) {
        flow.direction = conf->rank == 0 ? HDT_RECEIVE : HDT_SEND;
        flow.tag = 1;
        rc = flow_open(flows, &flow, &flows->answer, error);
    }
    flow.priority = HDT_PRIORITY_BULK;
    flow.window_bytes = conf->window_bytes;
    for (int i = 0; i < HDT_BENCH_CODECS && rc == HDT_ERR_NONE; i++) {
        flow.type = bench_type(i);
        flow.codec = hdt_bench_codec_names[i];
        flow.direction = HDT_SEND;
        flow.tag = 2 + 2 * (unsigned)i + (unsigned)conf->rank;
        rc = flow_open(flows, &flow, &flows->out[i], error);
        if (rc == HDT_ERR_NONE) {
            flow.direction = HDT_RECEIVE;
            flow.tag = 2 + 2 * (unsigned)i + (unsigned)(1 - conf->rank);
            rc = flow_open(flows, &flow, &flows->in[i], error);
        }
    }
    return rc;
}

enum hdt_err hdt_bench_flows_open(struct hdt_bench_flows *flows, const struct hdt_bench_conf *conf,
                                  struct hdt_error_info *error)
{
    struct hdt_channel_conf channel = HDT_CHANNEL_CONF_INIT;
    enum hdt_err rc;

    memset(flows, 0, sizeof(*flows));
    flows->values_type = -1;
    flows->cap = conf->cap;
    flows->values = malloc(conf->cap);
    flows->room = malloc(conf->cap);
    if (!flows->values || !flows->room) {
        hdt_bench_flows_close(flows);
        memset(error, 0, sizeof(*error));
        error->code = HDT_ERR_MEMORY;
        snprintf(error->message, sizeof(error->message),
                 "cannot make tensors of %.0f MiB: no memory", (double)conf->cap / 1048576);
        snprintf(error->hint, sizeof(error->hint), "a smaller --max-size takes less");
        return HDT_ERR_MEMORY;
    }
    channel.name = conf->channel;
    channel.members = conf->sites;
    channel.n_members = 2;
    channel.rank = conf->rank;
    channel.open_timeout_ms = conf->open_timeout_ms;
    channel.timeout_ms = conf->timeout_ms;
    channel.window_bytes = COLLECTIVES;
    channel.memory_bytes = (2 * HDT_BENCH_CODECS + 1) * (conf->window_bytes + (1u << 20));
    rc = hdt_channel_open(conf->ctx, &channel, &flows->channel, error);
    if (rc == HDT_ERR_NONE) {
        rc = flows_open_all(flows, conf, error);
    }
    if (rc != HDT_ERR_NONE) {
        hdt_bench_flows_close(flows);
    }
    return rc;
}

void hdt_bench_flows_close(struct hdt_bench_flows *flows)
{
    hdt_channel_close(flows->channel, NULL); /* flows and requests with it */
    free(flows->values);
    free(flows->room);
    memset(flows, 0, sizeof(*flows));
}

/* ---- tensors ---- */

/* Tensor k of a train was taken. */
static void span_note(struct hdt_bench_span *span, const struct hdt_train_marks *marks, int64_t k)
{
    if (k == marks->first) {
        span->us = -hdt_clock_now_us();
    }
    if (k == marks->last) {
        span->us += hdt_clock_now_us();
        span->n = marks->last - marks->first;
    }
}

/* The result of what failed first; the others of the ring are waited for by the channel's end. */
static enum hdt_err ring_move(struct hdt_bench_flows *flows, const struct hdt_bench_order *order,
                              struct hdt_bench_span *span, struct hdt_error_info *error)
{
    const size_t n_values = (size_t)order->bytes / hdt_type_size(bench_type(order->codec));
    const struct hdt_train_marks marks = hdt_train_marks(order->n);
    struct hdt_request *ring[AT_ONCE] = {NULL};
    enum hdt_err rc = HDT_ERR_NONE;
    int64_t i;

    for (i = 0; i < order->n + AT_ONCE && rc == HDT_ERR_NONE; i++) {
        const int64_t done = i - AT_ONCE;

        rc = hdt_wait(&ring[i % AT_ONCE], NULL, error);
        if (span && rc == HDT_ERR_NONE && done >= 0) {
            span_note(span, &marks, done);
        }
        if (rc == HDT_ERR_NONE && i < order->n) {
            rc = !span ? hdt_isend(flows->out[order->codec], flows->values, n_values,
                                   &ring[i % AT_ONCE], error)
                       : hdt_irecv(flows->in[order->codec], flows->room, n_values,
                                   &ring[i % AT_ONCE], error);
        }
    }
    return rc;
}

enum hdt_err hdt_bench_give(struct hdt_bench_flows *flows, const struct hdt_bench_order *order,
                            struct hdt_error_info *error)
{
    hdt_bench_fill(flows, order);
    return ring_move(flows, order, NULL, error);
}

enum hdt_err hdt_bench_take(struct hdt_bench_flows *flows, const struct hdt_bench_order *order,
                            struct hdt_bench_span *span, struct hdt_error_info *error)
{
    *span = (struct hdt_bench_span){0};
    return ring_move(flows, order, span, error);
}

enum hdt_err hdt_bench_say(struct hdt_flow *flow, const struct hdt_bench_order *order,
                           struct hdt_error_info *error)
{
    struct hdt_request *request;
    enum hdt_err rc = hdt_isend(flow, order, sizeof(*order) / sizeof(int64_t), &request, error);

    return rc == HDT_ERR_NONE ? hdt_wait(&request, NULL, error) : rc;
}

enum hdt_err hdt_bench_hear(struct hdt_flow *flow, struct hdt_bench_order *order,
                            struct hdt_error_info *error)
{
    struct hdt_request *request;
    enum hdt_err rc = hdt_irecv(flow, order, sizeof(*order) / sizeof(int64_t), &request, error);

    return rc == HDT_ERR_NONE ? hdt_wait(&request, NULL, error) : rc;
}
