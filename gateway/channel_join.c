/* SPDX-License-Identifier: Apache-2.0 */
/* Programs of this site that join channels and leave them. */
#include "config.h"

#include "gateway/channel_impl.h"
#include "gateway/audit.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/core/msg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

/* ---- finding ---- */

/* The end that a program speaks for; *channel is one that is over, too. */
static struct channel_end *end_find(struct hdt_gateway *gw, const char *name, json_int_t rank,
                                    const char *instance, struct hdt_gwchannel **channel)
{
    struct hdt_gwchannel *lists[] = {gw->channels, gw->channels_over};

    for (int i = 0; i < 2; i++) {
        LL_FOREACH(lists[i], *channel)
        {
            if (strcmp((*channel)->name, name) == 0 && rank >= 0 && rank < (*channel)->n &&
                strcmp((*channel)->ends[rank].instance, instance) == 0) {
                return &(*channel)->ends[rank];
            }
        }
    }
    *channel = NULL;
    return NULL;
}

static struct hdt_gwclient *client_of(struct hdt_gateway *gw, const char *address)
{
    struct hdt_gwclient *client;

    LL_FOREACH(gw->clients, client)
    {
        if (strcmp(client->address, address) == 0) {
            return client;
        }
    }
    return NULL;
}

/* ---- joining ---- */

struct join {
    const char *name, *instance;
    json_int_t rank, pid;
    json_t *members, *flows;
    struct hdt_channel_member who[HDT_CHANNEL_MEMBERS_MAX];
    unsigned n;
};

static enum hdt_status join_read_members(struct join *join, struct hdt_error *err)
{
    join->n = (unsigned)json_array_size(join->members);
    if (join->n < 1 || join->n > HDT_CHANNEL_MEMBERS_MAX || join->rank < 0 ||
        join->rank >= join->n) {
        return hdt_error_set(err, HDT_EINVAL,
                             "cannot join channel '%s': rank %lld of %zu members, of which there "
                             "may be %d",
                             join->name, (long long)join->rank, json_array_size(join->members),
                             HDT_CHANNEL_MEMBERS_MAX);
    }
    for (unsigned i = 0; i < join->n; i++) {
        const char *text = json_string_value(json_array_get(join->members, i));

        HDT_TRY(hdt_channel_member_parse(text ? text : "", &join->who[i], err));
        for (unsigned j = 0; j < i; j++) {
            if (memcmp(&join->who[i], &join->who[j], sizeof(join->who[i])) == 0) {
                return hdt_error_set(err, HDT_EINVAL,
                                     "cannot join channel '%s': '%s' is rank %u and rank %u",
                                     join->name, text, j, i);
            }
        }
    }
    return HDT_OK;
}

static enum hdt_status join_read(const struct hdt_gateway *gw, const json_t *msg, struct join *join,
                                 struct hdt_error *err)
{
    HDT_TRY(hdt_msg_unpack(msg, err, "{s:s, s:o, s:I, s:s, s:o, s:I}", "channel", &join->name,
                           "members", &join->members, "rank", &join->rank, "instance",
                           &join->instance, "flows", &join->flows, "pid", &join->pid));
    if (!hdt_name_is_valid(join->name)) {
        hdt_error_set(err, HDT_EINVAL, "cannot join channel '%.80s': that is no name", join->name);
        hdt_error_hint(err, "1 to 63 letters, digits, '.', '_' and '-'");
        return HDT_EINVAL;
    }
    if (strlen(join->instance) != 16 || strspn(join->instance, "0123456789abcdef") != 16) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot join channel '%s': the instance is no 16 hexadecimal digits",
                             join->name);
    }
    HDT_TRY(join_read_members(join, err));
    if (strcmp(join->who[join->rank].site, gw->conf.site) != 0) {
        hdt_error_set(err, HDT_EACCES,
                      "cannot join channel '%s' as rank %lld: that is a member at site %s, this "
                      "gateway is that of site %s",
                      join->name, (long long)join->rank, join->who[join->rank].site, gw->conf.site);
        hdt_error_hint(err, "each program joins at the gateway of its own site");
        return HDT_EACCES;
    }
    return HDT_OK;
}

static bool members_are(const struct hdt_gwchannel *channel, const struct join *join)
{
    if (channel->n != join->n) {
        return false;
    }
    for (unsigned i = 0; i < join->n; i++) {
        if (memcmp(&channel->ends[i].who, &join->who[i], sizeof(join->who[i])) != 0) {
            return false;
        }
    }
    return true;
}

static enum hdt_status channel_new(struct hdt_gateway *gw, const struct join *join,
                                   struct hdt_gwchannel **out, struct hdt_error *err)
{
    struct hdt_gwchannel *channel;
    int n_channels;

    LL_COUNT(gw->channels, channel, n_channels);
    if (n_channels >= CHANNELS_MAX) {
        return hdt_error_set(err, HDT_ENOMEM, "cannot join channel '%s': site %s has %d already",
                             join->name, gw->conf.site, n_channels);
    }
    channel = hdt_calloc(1, sizeof(*channel));
    snprintf(channel->name, sizeof(channel->name), "%s", join->name);
    channel->n = join->n;
    channel->since_us = hdt_clock_now_us();
    channel->over_rank = -1;
    for (unsigned i = 0; i < join->n; i++) {
        channel->ends[i].who = join->who[i];
        channel->ends[i].since_us = channel->since_us;
    }
    LL_APPEND(gw->channels, channel);
    *out = channel;
    return HDT_OK;
}

static enum hdt_status join_refuse_members(struct hdt_gateway *gw,
                                           const struct hdt_gwchannel *channel,
                                           struct hdt_error *err)
{
    json_t *members = hdt_channel_members_json(channel);
    struct hdt_buf text = {0};

    hdt_channel_members_text(members, &text);
    hdt_error_set(err, HDT_EEXIST,
                  "cannot join channel '%s': a program of site %s is in it, with other members: %s",
                  channel->name, gw->conf.site, hdt_buf_str(&text));
    hdt_error_hint(err, "all programs of a channel name the same members in the same order");
    hdt_buf_release(&text);
    json_decref(members);
    return HDT_EEXIST;
}

/* The channel to join, made when it is not there. One of which this rank was a part before is over:
 * who comes anew begins anew. */
static enum hdt_status join_find(struct hdt_gateway *gw, const struct join *join,
                                 struct hdt_gwchannel **out, struct hdt_error *err)
{
    struct hdt_gwchannel *channel = hdt_channel_find(gw, join->name);
    const struct channel_end *end;

    if (!channel) {
        return channel_new(gw, join, out, err);
    }
    if (!members_are(channel, join)) {
        return join_refuse_members(gw, channel, err);
    }
    end = &channel->ends[join->rank];
    if (end->state != END_UNKNOWN && strcmp(end->instance, join->instance) != 0) {
        if (end->state == END_HERE) {
            hdt_error_set(err, HDT_EEXIST,
                          "cannot join channel '%s' as rank %lld: process %ld of site %s is that "
                          "already",
                          join->name, (long long)join->rank, end->pid, gw->conf.site);
            hdt_error_hint(err, "end it, or give this program another rank or channel");
            return HDT_EEXIST;
        }
        hdt_channel_lose(gw, channel, (unsigned)join->rank, "its program was started anew");
        return channel_new(gw, join, out, err);
    }
    *out = channel;
    return HDT_OK;
}

static void end_bind(struct channel_end *end, const struct hdt_gwclient *client,
                     const struct join *join)
{
    snprintf(end->instance, sizeof(end->instance), "%s", join->instance);
    snprintf(end->address, sizeof(end->address), "%s", client->address);
    snprintf(end->identity, sizeof(end->identity), "%s", client->identity);
    end->client = client->id;
    end->pid = (long)join->pid;
    hdt_channel_set_state(end, END_HERE, "");
}

/* Who has left before this gateway began is known to those who were there. What they say counts
 * only if all others see the same. */
static void join_take_left(struct hdt_gwchannel *channel, const json_t *body)
{
    const json_t *left = json_object_get(body, "left"), *item;
    size_t i;

    json_array_foreach(left, i, item)
    {
        const json_int_t rank = json_integer_value(json_array_get(item, 0));
        const char *instance = json_string_value(json_array_get(item, 1));

        if (rank >= 0 && rank < channel->n && instance && strlen(instance) == 16 &&
            channel->ends[rank].state == END_UNKNOWN) {
            snprintf(channel->ends[rank].instance, INSTANCE_CAP, "%s", instance);
            hdt_channel_set_state(&channel->ends[rank], END_CLOSED, "");
        }
    }
}

static enum hdt_status channel_join(struct hdt_gateway *gw, const json_t *msg,
                                    struct hdt_gwchannel **out, struct hdt_error *err)
{
    const struct hdt_gwclient *client = client_of(gw, hdt_msg_from(msg));
    struct channel_end *end, offers = {0};
    struct join join;
    bool is_new;

    if (!client) {
        return hdt_error_set(err, HDT_ENOENT, "'%s' is no client here", hdt_msg_from(msg));
    }
    HDT_TRY(join_read(gw, msg, &join, err));
    end = end_find(gw, join.name, join.rank, join.instance, out);
    if (end && (*out)->over) {
        snprintf(end->address, sizeof(end->address), "%s", client->address);
        end->client = client->id;
        return HDT_OK; /* it is told so */
    }
    HDT_TRY(hdt_channel_offers_take(&offers, (unsigned)join.rank, join.flows, err));
    if (join_find(gw, &join, out, err) != HDT_OK) {
        free(offers.flows);
        return err->status;
    }
    end = &(*out)->ends[join.rank];
    is_new = end->state == END_UNKNOWN;
    free(end->flows);
    end->flows = offers.flows;
    end->n_flows = offers.n_flows;
    end_bind(end, client, &join);
    join_take_left(*out, hdt_msg_body(msg));
    if (is_new) {
        hdt_audit_client(gw, "channel.joined", client,
                         json_pack("{s:s, s:I, s:O}", "channel", join.name, "rank", join.rank,
                                   "members", join.members));
    }
    return HDT_OK;
}

void hdt_channel_join(struct hdt_gateway *gw, const json_t *msg)
{
    struct hdt_gwchannel *channel;
    struct hdt_error err = {0}, ignored = {0};

    if (channel_join(gw, msg, &channel, &err) != HDT_OK) {
        hdt_error_where(&err, "%s", gw->conf.site);
        hdt_log_info("%s: %s", hdt_msg_from(msg), err.msg);
        hdt_route_send(gw, hdt_msg_reply_error(msg, &err), &ignored);
        return;
    }
    hdt_route_send(gw, hdt_msg_reply(msg, "channel.joined", NULL), &ignored);
    if (!channel->over) {
        hdt_channel_tell_sites(gw, channel, true);
        hdt_channel_settle(gw, channel);
    }
    hdt_channel_tell_programs(gw, channel);
}

/* ---- leaving ---- */

bool hdt_channel_taken_is_right(const json_t *taken, json_int_t rank)
{
    const json_t *item;
    size_t i;

    if (!json_is_array(taken) || json_array_size(taken) > HDT_CHANNEL_FLOWS_MAX) {
        return false;
    }
    json_array_foreach(taken, i, item)
    {
        const json_int_t flow = json_integer_value(json_array_get(item, 0));

        if (flow < 0 || flow > UINT32_MAX || hdt_channel_flow_dst((uint32_t)flow) != rank ||
            json_integer_value(json_array_get(item, 1)) < 0) {
            return false;
        }
    }
    return true;
}

static void end_leave(struct hdt_gateway *gw, struct hdt_gwchannel *channel, unsigned rank,
                      const json_t *body)
{
    struct channel_end *end = &channel->ends[rank];
    json_t *taken = json_object_get(body, "taken");
    struct hdt_error why = {0};

    if (json_is_object(json_object_get(body, "error"))) {
        hdt_msg_error_from_body(json_object_get(body, "error"), &why);
        hdt_channel_end_it(gw, channel, rank, &why);
        return;
    }
    if (!channel->up) {
        hdt_channel_end_reset(end);
        hdt_channel_settle(gw, channel);
        hdt_channel_tell_sites(gw, channel, false);
        hdt_channel_close_if_left(gw, channel);
        return;
    }
    end->taken = hdt_channel_taken_is_right(taken, rank) ? json_incref(taken) : NULL;
    hdt_channel_set_state(end, END_CLOSED, "");
    hdt_channel_tell_sites(gw, channel, false);
    hdt_channel_tell_programs(gw, channel);
    hdt_channel_close_if_left(gw, channel);
}

void hdt_channel_leave(struct hdt_gateway *gw, const json_t *msg)
{
    const struct hdt_gwclient *client = client_of(gw, hdt_msg_from(msg));
    struct hdt_gwchannel *channel;
    struct hdt_error err = {0};
    const char *name, *instance;
    struct channel_end *end;
    json_int_t rank;

    if (hdt_msg_unpack(msg, &err, "{s:s, s:I, s:s}", "channel", &name, "rank", &rank, "instance",
                       &instance) != HDT_OK) {
        hdt_route_send(gw, hdt_msg_reply_error(msg, &err), &err);
        return;
    }
    end = end_find(gw, name, rank, instance, &channel);
    if (end && client && !channel->over && end->client == client->id &&
        hdt_channel_end_is_there(end)) {
        hdt_audit_client(gw, "channel.left", client,
                         json_pack("{s:s, s:I}", "channel", name, "rank", rank));
        end_leave(gw, channel, (unsigned)rank, hdt_msg_body(msg));
    }
    hdt_route_send(gw, hdt_msg_reply(msg, "channel.left", NULL), &err);
}

void hdt_channel_client_down(struct hdt_gateway *gw, const struct hdt_gwclient *client,
                             const struct hdt_error *why)
{
    struct hdt_gwchannel *channel;
    char text[HDT_ERROR_MSG_CAP];

    snprintf(text, sizeof(text), "the connection to its gateway ended: %.400s",
             why->msg[0] ? why->msg : "closed");
    LL_FOREACH(gw->channels, channel)
    {
        for (unsigned i = 0; i < channel->n; i++) {
            struct channel_end *end = &channel->ends[i];

            if (end->client == client->id && end->state == END_HERE) {
                end->client = 0;
                hdt_channel_flows_forget(end);
                hdt_channel_set_state(end, END_AWAY, text);
                hdt_channel_tell_sites(gw, channel, false);
                hdt_channel_tell_programs(gw, channel);
            }
        }
    }
}
