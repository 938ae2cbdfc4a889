/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What gateways say of their channels, to each other and to their programs.
 *
 * "channel.ends" is the whole truth of one site about its own ends of one name: a message that is
 * lost costs nothing but the time until the next one. A site is asked and answers only those that
 * are members, and speaks for its own members only. Who has no program in a channel keeps nothing
 * of what others say of it.
 */
#include "config.h"

#include "gateway/channel_impl.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/core/msg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

const char *hdt_channel_state_name(enum channel_end_state state)
{
    static const char *const names[] = {"unknown", "here", "away", "closed", "lost"};

    return names[state];
}

json_t *hdt_channel_members_json(const struct hdt_gwchannel *channel)
{
    char who[HDT_CHANNEL_MEMBER_CAP];
    json_t *members = json_array();

    for (unsigned i = 0; i < channel->n; i++) {
        json_array_append_new(members,
                              json_string(hdt_channel_member_format(&channel->ends[i].who, who)));
    }
    return members;
}

void hdt_channel_members_text(const json_t *members, struct hdt_buf *out)
{
    const json_t *item;
    size_t i;

    json_array_foreach(members, i, item)
    {
        const char *text = json_string_value(item);

        hdt_buf_appendf(out, "%s%.130s", i ? ", " : "", text ? text : "?");
    }
}

/* ---- to other sites ---- */

static json_t *end_json(const struct channel_end *end, unsigned rank)
{
    return json_pack("{s:i, s:s, s:b, s:s, s:o}", "rank", (int)rank, "instance", end->instance,
                     "here", end->state == END_HERE, "why", end->why, "flows",
                     hdt_channel_offers_json(end));
}

static json_t *over_json(const struct hdt_gwchannel *channel, unsigned rank)
{
    const struct channel_end *end = &channel->ends[rank];
    json_t *item = json_pack("{s:i, s:s, s:b}", "rank", (int)rank, "instance", end->instance,
                             "closed", end->state == END_CLOSED);

    if (end->state == END_CLOSED && end->taken) {
        json_object_set(item, "taken", end->taken);
    }
    if (end->state != END_CLOSED) {
        json_object_set_new(item, "error", hdt_msg_error_body(&channel->why));
    }
    return item;
}

/* Our ends of this channel: those that live to `ends`, the others to `over`. */
static void ends_collect(const struct hdt_gateway *gw, const struct hdt_gwchannel *channel,
                         json_t *ends, json_t *over)
{
    for (unsigned i = 0; i < channel->n; i++) {
        const struct channel_end *end = &channel->ends[i];

        if (!hdt_channel_end_is_ours(gw, end) || end->instance[0] == '\0') {
            continue;
        }
        if (channel->over || !hdt_channel_end_is_there(end)) {
            json_array_append_new(over, over_json(channel, i));
        } else {
            json_array_append_new(ends, end_json(end, i));
        }
    }
}

void hdt_channel_tell_site(struct hdt_gateway *gw, const char *name, const char *site, bool ask)
{
    struct hdt_gwchannel *channel = hdt_channel_find(gw, name);
    json_t *ends = json_array(), *over = json_array();
    const struct hdt_gwchannel *old;
    json_t *body;

    if (!hdt_federation_site_is_up(gw, site)) {
        json_decref(ends);
        json_decref(over);
        return;
    }
    if (channel) {
        ends_collect(gw, channel, ends, over);
    }
    LL_FOREACH(gw->channels_over, old)
    {
        if (strcmp(old->name, name) == 0) {
            ends_collect(gw, old, ends, over);
        }
    }
    body = json_pack("{s:s, s:o, s:b, s:o, s:o, s:o}", "channel", name, "members",
                     channel ? hdt_channel_members_json(channel) : json_array(), "ask", ask, "sees",
                     hdt_msg_u64_hex(channel ? channel->view : 0), "ends", ends, "over", over);
    hdt_route_post(gw, site, "channel.ends", body);
}

void hdt_channel_tell_sites(struct hdt_gateway *gw, const struct hdt_gwchannel *channel, bool ask)
{
    for (unsigned i = 0; i < channel->n; i++) {
        const char *site = channel->ends[i].who.site;
        bool told = hdt_channel_end_is_ours(gw, &channel->ends[i]);

        for (unsigned j = 0; j < i; j++) {
            told = told || strcmp(channel->ends[j].who.site, site) == 0;
        }
        if (!told) {
            hdt_channel_tell_site(gw, channel->name, site, ask);
        }
    }
}

/* ---- from other sites ---- */

/* What a site says of one of its members; NULL: nothing. */
static const json_t *item_of(const json_t *items, unsigned rank, const char *instance)
{
    const json_t *item;
    size_t i;

    json_array_foreach(items, i, item)
    {
        const char *text = json_string_value(json_object_get(item, "instance"));

        if (json_integer_value(json_object_get(item, "rank")) == (json_int_t)rank && text &&
            strlen(text) < INSTANCE_CAP && (!instance || strcmp(text, instance) == 0)) {
            return item;
        }
    }
    return NULL;
}

static const char *text_of(const json_t *item, const char *key)
{
    const char *text = json_string_value(json_object_get(item, key));

    return text ? text : "";
}

/* A program that is over: true when the channel is, too. */
static bool end_take_over(struct hdt_gateway *gw, struct hdt_gwchannel *channel, unsigned rank,
                          const json_t *item)
{
    struct channel_end *end = &channel->ends[rank];
    json_t *taken = json_object_get(item, "taken");
    struct hdt_error why = {0};

    if (json_is_true(json_object_get(item, "closed"))) {
        if (end->state != END_CLOSED && channel->up) {
            end->taken = hdt_channel_taken_is_right(taken, rank) ? json_incref(taken) : NULL;
            hdt_channel_set_state(end, END_CLOSED, "");
            hdt_channel_tell_programs(gw, channel);
        } else if (!channel->up) {
            hdt_channel_end_reset(end);
        }
        return false;
    }
    hdt_msg_error_from_body(json_object_get(item, "error"), &why);
    if (why.status == HDT_OK) {
        hdt_error_set(&why, HDT_ERANK, "rank %u is over, its site does not say why", rank);
    }
    if (!why.where[0]) {
        hdt_error_where(&why, "%s", end->who.site);
    }
    if (!channel->up) {
        hdt_channel_end_reset(end);
        return false;
    }
    hdt_channel_end_it(gw, channel, rank, &why);
    return true;
}

/* A program that is there. true: the channel is over. */
static bool end_take_there(struct hdt_gateway *gw, struct hdt_gwchannel *channel, unsigned rank,
                           const json_t *item)
{
    struct channel_end *end = &channel->ends[rank];
    const bool here = json_is_true(json_object_get(item, "here"));
    const char *instance = text_of(item, "instance");
    struct hdt_error err = {0};

    if (end->instance[0] && strcmp(end->instance, instance) != 0) {
        if (channel->up) {
            hdt_channel_lose(gw, channel, rank, "its program was started anew");
            return true;
        }
        hdt_channel_end_reset(end);
    }
    if (end->state == END_CLOSED) {
        return false; /* a word from before it left */
    }
    if (hdt_channel_offers_take(end, rank, json_object_get(item, "flows"), &err) != HDT_OK) {
        gw->n_refused_messages++;
        hdt_log_warn_limited(60, "channel '%s': %s", channel->name, err.msg);
        return false;
    }
    snprintf(end->instance, sizeof(end->instance), "%s", instance);
    if (here != (end->state == END_HERE)) {
        hdt_channel_set_state(end, here ? END_HERE : END_AWAY, text_of(item, "why"));
        hdt_channel_tell_programs(gw, channel);
    }
    return false;
}

/* Nothing is said of a member: its gateway does not know its program (any more). */
static void end_take_nothing(struct hdt_gateway *gw, struct hdt_gwchannel *channel, unsigned rank)
{
    struct channel_end *end = &channel->ends[rank];

    if (!channel->up && end->state != END_CLOSED) {
        hdt_channel_end_reset(end);
    } else if (end->state == END_HERE) {
        hdt_channel_set_state(end, END_AWAY,
                              "its gateway was restarted, and the program has not come back to it");
        hdt_channel_tell_programs(gw, channel);
    }
}

/* Do the members that they name differ from ours? */
static bool members_differ(struct hdt_gwchannel *channel, const char *site, const json_t *members)
{
    json_t *ours = hdt_channel_members_json(channel);
    const bool differ = json_array_size(members) > 0 && !json_equal(ours, members);
    struct hdt_buf text = {0}, own = {0};

    if (differ && channel->differs_us == 0) {
        hdt_channel_members_text(members, &text);
        hdt_channel_members_text(ours, &own);
        hdt_error_set(&channel->differ, HDT_EINVAL,
                      "channel '%s' has other members at site %s: %.120s; here: %.120s",
                      channel->name, site, hdt_buf_str(&text), hdt_buf_str(&own));
        hdt_error_where(&channel->differ, "%s", site);
        hdt_error_hint(&channel->differ,
                       "all programs of a channel name the same members in the same order");
        channel->differs_us = hdt_clock_now_us();
        hdt_buf_release(&text);
        hdt_buf_release(&own);
    } else if (!differ && strcmp(channel->differ.where, site) == 0) {
        channel->differs_us = 0;
        channel->differ.where[0] = '\0';
    }
    json_decref(ours);
    return differ;
}

/* true: the channel is over. */
static bool ends_take(struct hdt_gateway *gw, struct hdt_gwchannel *channel, const char *site,
                      const json_t *body)
{
    const json_t *ends = json_object_get(body, "ends"), *over = json_object_get(body, "over");
    const bool differ = members_differ(channel, site, json_object_get(body, "members"));
    const uint64_t sees = hdt_msg_hex_u64(json_object_get(body, "sees"));

    for (unsigned i = 0; i < channel->n; i++) {
        struct channel_end *end = &channel->ends[i];
        const json_t *there = differ ? NULL : item_of(ends, i, NULL);
        const json_t *gone = end->instance[0] ? item_of(over, i, end->instance) : NULL;

        if (strcmp(end->who.site, site) != 0) {
            continue;
        }
        end->view = differ ? 0 : sees;
        if (gone && end_take_over(gw, channel, i, gone)) {
            return true;
        }
        if (there && end_take_there(gw, channel, i, there)) {
            return true;
        }
        if (!there && !gone) {
            end_take_nothing(gw, channel, i);
        }
    }
    return false;
}

void hdt_channel_ends(struct hdt_gateway *gw, const json_t *msg)
{
    const json_t *body = hdt_msg_body(msg);
    const char *name = json_string_value(json_object_get(body, "channel"));
    const char *site = hdt_msg_from(msg);
    struct hdt_gwchannel *channel;

    if (!name || !hdt_name_is_valid(name) ||
        json_array_size(json_object_get(body, "members")) > HDT_CHANNEL_MEMBERS_MAX) {
        gw->n_refused_messages++;
        hdt_log_warn_limited(60, "channel.ends from %s dropped: no channel, or too many members",
                             site);
        return;
    }
    channel = hdt_channel_find(gw, name);
    if (channel && hdt_channel_has_site(channel, site) && !ends_take(gw, channel, site, body)) {
        hdt_channel_settle(gw, channel);
        if (!channel->over && channel->up) {
            hdt_channel_flows_open(gw, channel);
        }
    }
    if (json_is_true(json_object_get(body, "ask"))) {
        hdt_channel_tell_site(gw, name, site, false);
    }
}

/* ---- to programs ---- */

const char *hdt_channel_why_unknown(struct hdt_gateway *gw, const struct channel_end *end,
                                    char text[HDT_ERROR_MSG_CAP])
{
    const struct hdt_gwsite *site = hdt_federation_site(gw, end->who.site);

    if (hdt_channel_end_is_ours(gw, end) || (site && site->up)) {
        return "no program has joined there";
    }
    if (!site) {
        snprintf(text, HDT_ERROR_MSG_CAP, "site %s knows no site %s", gw->conf.site, end->who.site);
    } else {
        snprintf(text, HDT_ERROR_MSG_CAP, "site %s is not connected: %.400s", site->name,
                 site->why_down);
    }
    return text;
}

static json_t *member_state_json(struct hdt_gateway *gw, const struct channel_end *end,
                                 unsigned rank)
{
    const double since_s = (double)(hdt_clock_now_us() - end->since_us) / 1e6;
    char text[HDT_ERROR_MSG_CAP];
    const char *why = end->state == END_UNKNOWN ? hdt_channel_why_unknown(gw, end, text) : end->why;
    json_t *item =
        json_pack("{s:i, s:s, s:s, s:s, s:f}", "rank", (int)rank, "instance", end->instance,
                  "state", hdt_channel_state_name(end->state), "why", why, "since_s", since_s);

    if (end->taken) {
        json_object_set(item, "taken", end->taken);
    }
    return item;
}

static json_t *state_json(struct hdt_gateway *gw, const struct hdt_gwchannel *channel)
{
    json_t *members = json_array(), *body;

    for (unsigned i = 0; i < channel->n; i++) {
        json_array_append_new(members, member_state_json(gw, &channel->ends[i], i));
    }
    body = json_pack("{s:s, s:b, s:I, s:I, s:o, s:s}", "channel", channel->name, "up", channel->up,
                     "job", (json_int_t)channel->job, "epoch", (json_int_t)channel->epoch,
                     "members", members, "differs", channel->differs_us ? channel->differ.msg : "");
    if (channel->over && channel->why.status != HDT_OK) {
        json_object_set_new(body, "over",
                            json_pack("{s:i, s:o}", "rank", channel->over_rank, "error",
                                      hdt_msg_error_body(&channel->why)));
    }
    return body;
}

void hdt_channel_tell_programs(struct hdt_gateway *gw, const struct hdt_gwchannel *channel)
{
    for (unsigned i = 0; i < channel->n; i++) {
        const struct channel_end *end = &channel->ends[i];

        if (hdt_channel_end_is_ours(gw, end) && end->client != 0) {
            hdt_route_post(gw, end->address, "channel.state", state_json(gw, channel));
        }
    }
}
