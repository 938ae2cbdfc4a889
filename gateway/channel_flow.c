/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flows of channels: what their two ends offer, and when the data plane gets them.
 *
 * A program says "flow.open" as a worker does. What it may open follows from its rank, and what it
 * opens has to be what the other end offers: a flow whose ends differ in slots, type, codec or
 * class would carry bytes that the other end takes for something else, so the channel ends, with
 * both values.
 */
#include "config.h"

#include "gateway/channel_impl.h"
#include "gateway/member.h"
#include "compress/codec.h"
#include "src/base/buf.h"
#include "src/base/log.h"
#include "src/core/msg.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

/* ---- offers ---- */

static struct channel_flow *flow_find(struct channel_end *end, uint32_t number)
{
    for (size_t i = 0; i < end->n_flows; i++) {
        if (end->flows[i].offer.flow == number) {
            return &end->flows[i];
        }
    }
    return NULL;
}

json_t *hdt_channel_offers_json(const struct channel_end *end)
{
    json_t *flows = json_array();

    for (size_t i = 0; i < end->n_flows; i++) {
        const struct hdt_channel_offer *o = &end->flows[i].offer;
        json_t *flow =
            json_pack("[I, I, I, i, i, i]", (json_int_t)o->flow, (json_int_t)o->depth,
                      (json_int_t)o->frame_cap, (int)o->prio, (int)o->codec, (int)o->dtype);

        if (o->content[0]) {
            json_array_append_new(flow, json_string(o->content));
        }
        json_array_append_new(flows, flow);
    }
    return flows;
}

static enum hdt_status offer_check(const struct hdt_channel_offer *o, unsigned rank,
                                   struct hdt_error *err)
{
    const unsigned src = hdt_channel_flow_src(o->flow), dst = hdt_channel_flow_dst(o->flow);

    if ((src != rank && dst != rank) || src == dst) {
        return hdt_error_set(err, HDT_EACCES, "rank %u offers a flow from rank %u to rank %u", rank,
                             src, dst);
    }
    if (o->depth < 1 || o->depth > 4096 || o->frame_cap < 1 || o->frame_cap > HDT_FRAME_MAX_LEN ||
        o->prio == HDT_PRIO_CONTROL || o->prio >= HDT_PRIO_COUNT || o->dtype >= HDT_DTYPE_COUNT ||
        (o->codec != HDT_CODEC_NONE && o->codec != HDT_CODEC_LOSSLESS)) {
        return hdt_error_set(err, HDT_EPROTO,
                             "rank %u offers a flow with %u slots of %u bytes, class %u, codec %u, "
                             "type %u",
                             rank, o->depth, o->frame_cap, o->prio, o->codec, o->dtype);
    }
    return HDT_OK;
}

/* It goes into messages: printable, and no longer than a codec's text can be. NULL: it is no text.
 */
static enum hdt_status content_read(const char *text, unsigned rank,
                                    char content[HDT_CHANNEL_CONTENT_CAP], struct hdt_error *err)
{
    bool is_fit = text && strlen(text) < HDT_CHANNEL_CONTENT_CAP;

    for (const char *c = text; is_fit && *c; c++) {
        is_fit = *c >= ' ' && *c <= '~';
    }
    if (!is_fit) {
        return hdt_error_set(err, HDT_EPROTO, "rank %u offers a flow of something unreadable",
                             rank);
    }
    snprintf(content, HDT_CHANNEL_CONTENT_CAP, "%s", text);
    return HDT_OK;
}

static enum hdt_status offer_read(const json_t *item, unsigned rank, struct hdt_channel_offer *o,
                                  struct hdt_error *err)
{
    const char *content = "";
    json_int_t flow, depth, cap, prio, codec, dtype;

    if (json_unpack((json_t *)(uintptr_t)item,
                    json_array_size(item) == 7 ? "[I, I, I, I, I, I, s!]" : "[I, I, I, I, I, I!]",
                    &flow, &depth, &cap, &prio, &codec, &dtype, &content) != 0 ||
        flow < 0 || flow > UINT32_MAX || depth < 0 || depth > UINT32_MAX || cap < 0 ||
        cap > UINT32_MAX || prio < 0 || prio > 255 || codec < 0 || codec > 255 || dtype < 0 ||
        dtype > 255) {
        return hdt_error_set(err, HDT_EPROTO, "rank %u offers a flow that is none", rank);
    }
    o->flow = (uint32_t)flow;
    o->depth = (uint32_t)depth;
    o->frame_cap = (uint32_t)cap;
    o->prio = (uint8_t)prio;
    o->codec = (uint8_t)codec;
    o->dtype = (uint8_t)dtype;
    HDT_TRY(content_read(content, rank, o->content, err));
    return offer_check(o, rank, err);
}

enum hdt_status hdt_channel_offers_take(struct channel_end *end, unsigned rank, const json_t *items,
                                        struct hdt_error *err)
{
    const size_t n = json_array_size(items);
    struct channel_flow *flows;
    enum hdt_status status = HDT_OK;

    if (n > HDT_CHANNEL_FLOWS_MAX) {
        return hdt_error_set(err, HDT_EPROTO, "rank %u offers %zu flows, of which there may be %d",
                             rank, n, HDT_CHANNEL_FLOWS_MAX);
    }
    flows = hdt_calloc(n + 1, sizeof(*flows));
    for (size_t i = 0; i < n && status == HDT_OK; i++) {
        status = offer_read(json_array_get(items, i), rank, &flows[i].offer, err);
    }
    if (status != HDT_OK) {
        free(flows);
        return status;
    }
    free(end->flows);
    end->flows = flows;
    end->n_flows = n;
    return HDT_OK;
}

static struct channel_flow *offer_add(struct channel_end *end,
                                      const struct hdt_channel_offer *offer)
{
    struct channel_flow *flows = hdt_calloc(end->n_flows + 1, sizeof(*flows));

    if (end->n_flows > 0) {
        memcpy(flows, end->flows, end->n_flows * sizeof(*flows));
    }
    free(end->flows);
    end->flows = flows;
    flows[end->n_flows].offer = *offer;
    return &flows[end->n_flows++];
}

/* ---- opening ---- */

static bool offers_are_equal(const struct hdt_channel_offer *a, const struct hdt_channel_offer *b)
{
    return a->depth == b->depth && a->frame_cap == b->frame_cap && a->prio == b->prio &&
           a->codec == b->codec && a->dtype == b->dtype && strcmp(a->content, b->content) == 0;
}

static const char *offer_content(const struct hdt_channel_offer *offer)
{
    return offer->content[0] ? offer->content : hdt_dtype_name(offer->dtype);
}

static void flow_differs(struct hdt_gateway *gw, struct hdt_gwchannel *channel, unsigned rank,
                         const struct hdt_channel_offer *ours,
                         const struct hdt_channel_offer *theirs)
{
    struct hdt_error err;
    char text[96];

    hdt_error_set(&err, HDT_EINVAL,
                  "%s of channel '%s' is not the same at both ends: rank %u has %u slots of %u "
                  "bytes, type %s, class %s, gateway codec %s, the other end %u of %u, %s, %s, %s",
                  hdt_channel_flow_describe(ours->flow, rank, text), channel->name, rank,
                  ours->depth, ours->frame_cap, offer_content(ours), hdt_prio_name(ours->prio),
                  hdt_codec_by_id(ours->codec)->name, theirs->depth, theirs->frame_cap,
                  offer_content(theirs), hdt_prio_name(theirs->prio),
                  hdt_codec_by_id(theirs->codec)->name);
    hdt_error_hint(&err, "open it with the same window, type, codec and priority at both ends");
    hdt_channel_end_it(gw, channel, rank, &err);
}

/* false: the channel is over. */
static bool flow_try(struct hdt_gateway *gw, struct hdt_gwchannel *channel, unsigned rank,
                     struct channel_flow *flow)
{
    const uint32_t number = flow->offer.flow;
    const unsigned other = hdt_channel_flow_src(number) == rank ? hdt_channel_flow_dst(number)
                                                                : hdt_channel_flow_src(number);
    const struct channel_flow *theirs =
        other < channel->n ? flow_find(&channel->ends[other], number) : NULL;
    struct hdt_error err = {0};
    enum hdt_status status;

    if (!flow->is_wanted || flow->is_open || !theirs) {
        return true;
    }
    if (!offers_are_equal(&flow->offer, &theirs->offer)) {
        flow_differs(gw, channel, rank, &flow->offer, &theirs->offer);
        return false;
    }
    status = hdt_dataplane_flow_open(gw->dp, &flow->conf, &err);
    if (status == HDT_ENOENT) { /* its program has gone: why, its next message or event says */
        flow->is_wanted = false;
        return true;
    }
    if (status != HDT_OK) {
        hdt_channel_end_it(gw, channel, rank, &err);
        return false;
    }
    flow->is_open = true;
    hdt_route_post(gw, channel->ends[rank].address, "flow.opened",
                   json_pack("{s:I, s:I, s:I}", "job", (json_int_t)channel->job, "epoch",
                             (json_int_t)channel->epoch, "flow", (json_int_t)number));
    return true;
}

void hdt_channel_flows_open(struct hdt_gateway *gw, struct hdt_gwchannel *channel)
{
    for (unsigned i = 0; i < channel->n; i++) {
        struct channel_end *end = &channel->ends[i];

        if (!hdt_channel_end_is_ours(gw, end) || end->state != END_HERE) {
            continue;
        }
        for (size_t k = 0; k < end->n_flows; k++) {
            if (!flow_try(gw, channel, i, &end->flows[k])) {
                return;
            }
        }
    }
}

void hdt_channel_flows_forget(struct channel_end *end)
{
    for (size_t i = 0; i < end->n_flows; i++) {
        end->flows[i].is_wanted = false;
        end->flows[i].is_open = false;
    }
}

static struct hdt_gwchannel *channel_of_job(struct hdt_gateway *gw, uint32_t job)
{
    struct hdt_gwchannel *channel;

    LL_FOREACH(gw->channels, channel)
    {
        if (channel->up && channel->job == job) {
            return channel;
        }
    }
    return NULL;
}

/* The end that this client is, and may open this flow from. */
static enum hdt_status flow_end_of(struct hdt_gateway *gw, struct hdt_gwchannel *channel,
                                   const struct hdt_dataplane_flow *open, unsigned *rank,
                                   struct hdt_error *err)
{
    const unsigned src = hdt_channel_flow_src(open->flow), dst = hdt_channel_flow_dst(open->flow);
    const unsigned mine = open->is_src ? src : dst, other = open->is_src ? dst : src;

    if (open->epoch != channel->epoch) {
        return hdt_error_set(err, HDT_EPROTO, "flow.open of epoch %u, channel '%s' is in epoch %u",
                             open->epoch, channel->name, channel->epoch);
    }
    if (mine >= channel->n || other >= channel->n || open->client == 0 ||
        channel->ends[mine].client != open->client ||
        !hdt_channel_end_is_ours(gw, &channel->ends[mine])) {
        return hdt_error_set(err, HDT_EACCES,
                             "flow %08x of channel '%s' does not end at this program", open->flow,
                             channel->name);
    }
    if (strcmp(channel->ends[other].who.site, open->peer_site) != 0) {
        return hdt_error_set(err, HDT_EPROTO, "rank %u of channel '%s' is at site %s, not '%s'",
                             other, channel->name, channel->ends[other].who.site, open->peer_site);
    }
    *rank = mine;
    return HDT_OK;
}

static enum hdt_status flow_open(struct hdt_gateway *gw, const json_t *msg, struct hdt_error *err)
{
    struct hdt_dataplane_flow open;
    struct hdt_channel_offer offer;
    struct hdt_gwchannel *channel;
    struct channel_flow *flow;
    struct channel_end *end;
    const json_t *content;
    unsigned rank = 0;

    HDT_TRY(hdt_member_flow_parse(gw, msg, &open, err));
    channel = hdt_channel_is_job(open.job) ? channel_of_job(gw, open.job) : NULL;
    if (!channel) {
        return hdt_error_set(err, HDT_ENOENT, "this gateway knows no channel with number %u",
                             open.job);
    }
    HDT_TRY(flow_end_of(gw, channel, &open, &rank, err));
    end = &channel->ends[rank];
    offer = (struct hdt_channel_offer){.flow = open.flow,
                                       .depth = open.depth,
                                       .frame_cap = open.frame_cap,
                                       .prio = (uint8_t)open.prio,
                                       .codec = open.codec,
                                       .dtype = (uint8_t)open.dtype};
    content = json_object_get(hdt_msg_body(msg), "content");
    HDT_TRY(content_read(content ? json_string_value(content) : "", rank, offer.content, err));
    HDT_TRY(offer_check(&offer, rank, err));
    flow = flow_find(end, open.flow);
    if (flow && !offers_are_equal(&flow->offer, &offer)) {
        return hdt_error_set(err, HDT_EPROTO, "flow %08x of channel '%s' was offered otherwise",
                             open.flow, channel->name);
    }
    if (!flow && end->n_flows >= HDT_CHANNEL_FLOWS_MAX) {
        return hdt_error_set(err, HDT_ENOMEM, "rank %u of channel '%s' has %zu flows already", rank,
                             channel->name, end->n_flows);
    }
    if (!flow) {
        flow = offer_add(end, &offer);
        hdt_channel_tell_sites(gw, channel, false);
    }
    flow->conf = open;
    snprintf(flow->conf.job_name, sizeof(flow->conf.job_name), "%s", channel->name);
    flow->is_wanted = true;
    flow->is_open = false;
    hdt_channel_flows_open(gw, channel);
    return HDT_OK;
}

void hdt_channel_flow_open(struct hdt_gateway *gw, const json_t *msg)
{
    struct hdt_error err = {0}, ignored = {0};
    json_t *reply;

    if (flow_open(gw, msg, &err) == HDT_OK) {
        return;
    }
    hdt_error_where(&err, "%s", gw->conf.site);
    hdt_log_debug("flow.open of %s refused: %s", hdt_msg_from(msg), err.msg);
    reply =
        hdt_msg_reply(msg, "flow.refused",
                      json_pack("{s:O*, s:o}", "flow", json_object_get(hdt_msg_body(msg), "flow"),
                                "error", hdt_msg_error_body(&err)));
    hdt_route_send(gw, reply, &ignored);
}
