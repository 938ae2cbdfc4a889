/* SPDX-License-Identifier: Apache-2.0 */
/* Channels for /status and /metrics. */
#include "config.h"

#include "gateway/channel_impl.h"
#include "gateway/metrics.h"
#include "src/base/buf.h"
#include "src/base/clock.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#define MAX_FLOWS 4096

static double seconds_since(int64_t since_us)
{
    return (double)(hdt_clock_now_us() - since_us) / 1e6;
}

static const char *state_of(const struct hdt_gwchannel *channel)
{
    return channel->over ? "over" : channel->up ? "up" : "joining";
}

static json_t *member_json(struct hdt_gateway *gw, const struct channel_end *end, unsigned rank)
{
    char who[HDT_CHANNEL_MEMBER_CAP], text[HDT_ERROR_MSG_CAP];
    const char *why = end->state == END_UNKNOWN ? hdt_channel_why_unknown(gw, end, text) : end->why;
    json_t *item = json_pack("{s:i, s:s, s:s, s:f, s:s, s:i}", "rank", (int)rank, "member",
                             hdt_channel_member_format(&end->who, who), "state",
                             hdt_channel_state_name(end->state), "since_s",
                             seconds_since(end->since_us), "why", why, "flows", (int)end->n_flows);

    if (hdt_channel_end_is_ours(gw, end) && end->client != 0) {
        json_object_set_new(item, "pid", json_integer(end->pid));
        json_object_set_new(item, "identity", json_string(end->identity));
    }
    return item;
}

/* Bytes that its flows at this gateway have carried. */
struct carried {
    uint64_t sent_raw, sent, received;
};

static struct carried carried_of(const struct hdt_gwchannel *channel,
                                 const struct hdt_flow_stats *flows, size_t n)
{
    struct carried sum = {0, 0, 0};

    for (size_t i = 0; channel->up && !channel->over && i < n; i++) {
        if (flows[i].job != channel->job) {
            continue;
        }
        if (flows[i].is_src) {
            sum.sent_raw += flows[i].raw_bytes;
            sum.sent += flows[i].coded_bytes;
        } else {
            sum.received += flows[i].coded_bytes;
        }
    }
    return sum;
}

static json_t *channel_json(struct hdt_gateway *gw, const struct hdt_gwchannel *channel,
                            const struct hdt_flow_stats *flows, size_t n_flows)
{
    const struct carried carried = carried_of(channel, flows, n_flows);
    json_t *members = json_array();

    for (unsigned i = 0; i < channel->n; i++) {
        json_array_append_new(members, member_json(gw, &channel->ends[i], i));
    }
    return json_pack("{s:s, s:s, s:f, s:I, s:I, s:s, s:I, s:I, s:I, s:o}", "channel", channel->name,
                     "state", state_of(channel), "since_s", seconds_since(channel->since_us), "job",
                     (json_int_t)channel->job, "epoch", (json_int_t)channel->epoch, "why",
                     channel->over         ? channel->why.msg
                     : channel->differs_us ? channel->differ.msg
                                           : "",
                     "raw_bytes", (json_int_t)carried.sent_raw, "sent_bytes",
                     (json_int_t)carried.sent, "received_bytes", (json_int_t)carried.received,
                     "members", members);
}

json_t *hdt_channels_json(struct hdt_gateway *gw)
{
    struct hdt_flow_stats *flows = hdt_calloc(MAX_FLOWS, sizeof(*flows));
    size_t n = hdt_dataplane_flow_stats(gw->dp, flows, MAX_FLOWS);
    const struct hdt_gwchannel *channel;
    json_t *array = json_array();

    n = n < MAX_FLOWS ? n : MAX_FLOWS;
    LL_FOREACH(gw->channels, channel)
    {
        json_array_append_new(array, channel_json(gw, channel, flows, n));
    }
    LL_FOREACH(gw->channels_over, channel)
    {
        json_array_append_new(array, channel_json(gw, channel, flows, n));
    }
    free(flows);
    return array;
}

void hdt_channels_metrics(struct hdt_gateway *gw, struct hdt_buf *out)
{
    static const char name[] = "hdt_channels";
    const struct hdt_gwchannel *channel;
    int n_up = 0, n_joining = 0;

    LL_FOREACH(gw->channels, channel)
    {
        n_up += channel->up;
        n_joining += !channel->up;
    }
    hdt_metrics_head(out, name, "gauge", "Channels of libhdt with a program of this site.");
    hdt_metrics_begin(out, gw, name);
    hdt_metrics_label(out, "state", "up");
    hdt_metrics_end(out, n_up);
    hdt_metrics_begin(out, gw, name);
    hdt_metrics_label(out, "state", "joining");
    hdt_metrics_end(out, n_joining);
}
