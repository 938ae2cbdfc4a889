/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a channel at one gateway: programs join, it comes up, ends go away and come back, it
 * is over. gateway/channel.h says how gateways agree.
 *
 * What is over is kept apart for a while, so that a site that was away then still learns it, and
 * the name is free at once.
 */
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
#include <xxhash.h>

#define ANY_EPOCH    0xffffffffu
#define TICKS_PER_S  4
#define OVER_KEEP_US (60 * HDT_US_PER_S)

/* ---- finding ---- */

struct hdt_gwchannel *hdt_channel_find(struct hdt_gateway *gw, const char *name)
{
    struct hdt_gwchannel *channel;

    LL_FOREACH(gw->channels, channel)
    {
        if (strcmp(channel->name, name) == 0) {
            return channel;
        }
    }
    return NULL;
}

const char *hdt_channel_name_of(const struct hdt_gateway *gw, uint32_t job)
{
    const struct hdt_gwchannel *channel;

    LL_FOREACH(gw->channels, channel)
    {
        if (channel->up && channel->job == job) {
            return channel->name;
        }
    }
    return NULL;
}

bool hdt_channel_end_is_ours(const struct hdt_gateway *gw, const struct channel_end *end)
{
    return strcmp(end->who.site, gw->conf.site) == 0;
}

/* There is one: a channel without is not kept. */
static unsigned first_ours(const struct hdt_gateway *gw, const struct hdt_gwchannel *channel)
{
    unsigned rank = 0;

    while (!hdt_channel_end_is_ours(gw, &channel->ends[rank])) {
        rank++;
    }
    return rank;
}

bool hdt_channel_has_site(const struct hdt_gwchannel *channel, const char *site)
{
    for (unsigned i = 0; i < channel->n; i++) {
        if (strcmp(channel->ends[i].who.site, site) == 0) {
            return true;
        }
    }
    return false;
}

/* ---- states ---- */

void hdt_channel_set_state(struct channel_end *end, enum channel_end_state state, const char *why)
{
    if (end->state != state) {
        end->since_us = hdt_clock_now_us();
    }
    end->state = state;
    snprintf(end->why, sizeof(end->why), "%s", why);
}

void hdt_channel_end_reset(struct channel_end *end)
{
    free(end->flows);
    json_decref(end->taken);
    end->flows = NULL;
    end->n_flows = 0;
    end->taken = NULL;
    end->instance[0] = '\0';
    end->client = 0;
    hdt_channel_set_state(end, END_UNKNOWN, "");
}

static void channel_free(struct hdt_gwchannel *channel)
{
    for (unsigned i = 0; i < channel->n; i++) {
        hdt_channel_end_reset(&channel->ends[i]);
    }
    free(channel);
}

static bool channel_has_ours(const struct hdt_gateway *gw, const struct hdt_gwchannel *channel)
{
    for (unsigned i = 0; i < channel->n; i++) {
        if (hdt_channel_end_is_ours(gw, &channel->ends[i]) &&
            hdt_channel_end_is_there(&channel->ends[i])) {
            return true;
        }
    }
    return false;
}

/* Out of the living: its number is free, its flows are closed. */
static void channel_bury(struct hdt_gateway *gw, struct hdt_gwchannel *channel)
{
    if (channel->up) {
        hdt_dataplane_job_close(gw->dp, channel->job, ANY_EPOCH);
    }
    channel->over = true;
    channel->since_us = hdt_clock_now_us();
    LL_DELETE(gw->channels, channel);
    LL_PREPEND(gw->channels_over, channel);
}

void hdt_channel_end_it(struct hdt_gateway *gw, struct hdt_gwchannel *channel, unsigned rank,
                        const struct hdt_error *why)
{
    channel->over_rank = (int)rank;
    channel->why = *why;
    if (hdt_channel_end_is_there(&channel->ends[rank])) {
        hdt_channel_set_state(&channel->ends[rank], END_LOST, why->msg);
    }
    hdt_log_warn("channel '%s' is over: %s", channel->name, why->msg);
    hdt_audit_self(
        gw, "channel.over",
        json_pack("{s:s, s:i, s:s}", "channel", channel->name, "rank", (int)rank, "why", why->msg));
    channel_bury(gw, channel);
    hdt_channel_tell_sites(gw, channel, false);
    hdt_channel_tell_programs(gw, channel);
}

void hdt_channel_close_if_left(struct hdt_gateway *gw, struct hdt_gwchannel *channel)
{
    if (channel_has_ours(gw, channel)) {
        return;
    }
    if (channel->up) {
        hdt_log_info("channel '%s': all programs of this site have left it", channel->name);
        channel_bury(gw, channel);
    } else {
        LL_DELETE(gw->channels, channel);
        channel_free(channel);
    }
}

/* "rank 1 (b/x)" */
static const char *end_text(const struct hdt_gwchannel *channel, unsigned rank, char *out,
                            size_t cap)
{
    char who[HDT_CHANNEL_MEMBER_CAP];

    snprintf(out, cap, "rank %u (%s)", rank,
             hdt_channel_member_format(&channel->ends[rank].who, who));
    return out;
}

void hdt_channel_lose(struct hdt_gateway *gw, struct hdt_gwchannel *channel, unsigned rank,
                      const char *why)
{
    char text[HDT_CHANNEL_MEMBER_CAP + 24];
    struct hdt_error err;

    hdt_error_set(&err, HDT_ERANK, "%s is lost: %s", end_text(channel, rank, text, sizeof(text)),
                  why);
    hdt_error_where(&err, "%s", channel->ends[rank].who.site);
    hdt_error_hint(&err, "close the channel and open it again when all programs are there");
    hdt_channel_end_it(gw, channel, rank, &err);
}

/* ---- coming up ---- */

/* A function of the name, the members and all their instances; never 0. */
static uint64_t channel_view(const struct hdt_gwchannel *channel)
{
    struct hdt_buf text = {0};
    char who[HDT_CHANNEL_MEMBER_CAP];
    uint64_t view;

    hdt_buf_appendf(&text, "%s\n", channel->name);
    for (unsigned i = 0; i < channel->n; i++) {
        const struct channel_end *end = &channel->ends[i];

        if (end->instance[0] == '\0') {
            hdt_buf_release(&text);
            return 0;
        }
        hdt_buf_appendf(&text, "%s %s\n", hdt_channel_member_format(&end->who, who), end->instance);
    }
    view = XXH3_64bits(text.data, text.len);
    hdt_buf_release(&text);
    return view ? view : 1;
}

static bool channel_is_agreed(const struct hdt_gateway *gw, const struct hdt_gwchannel *channel)
{
    if (channel->view == 0) {
        return false;
    }
    for (unsigned i = 0; i < channel->n; i++) {
        const struct channel_end *end = &channel->ends[i];

        if (!hdt_channel_end_is_ours(gw, end) && end->state != END_CLOSED &&
            end->view != channel->view) {
            return false;
        }
    }
    return true;
}

static void channel_rise(struct hdt_gateway *gw, struct hdt_gwchannel *channel)
{
    const uint32_t job = HDT_CHANNEL_JOB_BIT | (uint32_t)(channel->view & 0x7fffffffu);
    struct hdt_error err;

    if (hdt_channel_name_of(gw, job)) {
        hdt_error_set(&err, HDT_EEXIST, "its number %u is that of channel '%s' at site %s", job,
                      hdt_channel_name_of(gw, job), gw->conf.site);
        hdt_error_hint(&err, "open it again: it gets another number");
        hdt_channel_end_it(gw, channel, first_ours(gw, channel), &err);
        return;
    }
    channel->up = true;
    channel->job = job;
    channel->epoch = (uint32_t)(channel->view >> 32 & 0x7fffffffu);
    channel->since_us = hdt_clock_now_us();
    hdt_log_info("channel '%s' is up: %u members, number %u", channel->name, channel->n, job);
    hdt_channel_tell_programs(gw, channel);
    hdt_channel_flows_open(gw, channel);
}

void hdt_channel_settle(struct hdt_gateway *gw, struct hdt_gwchannel *channel)
{
    const uint64_t view = channel_view(channel);

    if (view != channel->view) {
        channel->view = view;
        hdt_channel_tell_sites(gw, channel, false);
    }
    if (!channel->up && channel_is_agreed(gw, channel)) {
        channel_rise(gw, channel);
    }
}

/* ---- losses ---- */

void hdt_channel_flow_failed(struct hdt_gateway *gw, uint32_t job, const struct hdt_error *why)
{
    char text[HDT_CHANNEL_MEMBER_CAP + 24];
    struct hdt_gwchannel *channel;
    struct hdt_error err = *why;
    unsigned rank;

    LL_FOREACH(gw->channels, channel)
    {
        if (channel->up && channel->job == job) {
            break;
        }
    }
    if (!channel) {
        return;
    }
    rank = first_ours(gw, channel);
    hdt_error_prefix(&err, "%s cannot go on", end_text(channel, rank, text, sizeof(text)));
    hdt_channel_end_it(gw, channel, rank, &err);
}

/* ---- peers and time ---- */

void hdt_channel_peer_up(struct hdt_gateway *gw, const char *site)
{
    struct hdt_gwchannel *channel;

    LL_FOREACH(gw->channels, channel)
    {
        if (!hdt_channel_has_site(channel, site)) {
            continue;
        }
        for (unsigned i = 0; i < channel->n; i++) {
            struct channel_end *end = &channel->ends[i];

            if (strcmp(end->who.site, site) == 0 && end->state == END_AWAY) {
                end->since_us = hdt_clock_now_us(); /* it has so long to be named */
            }
        }
        hdt_channel_tell_site(gw, channel->name, site, true);
    }
}

void hdt_channel_peer_down(struct hdt_gateway *gw, const char *site, const struct hdt_error *why)
{
    struct hdt_gwchannel *channel;
    char text[HDT_ERROR_MSG_CAP];
    bool changed;

    snprintf(text, sizeof(text), "site %s is not connected: %.400s", site, why->msg);
    LL_FOREACH(gw->channels, channel)
    {
        changed = false;
        for (unsigned i = 0; i < channel->n; i++) {
            struct channel_end *end = &channel->ends[i];

            if (strcmp(end->who.site, site) == 0) {
                end->view = 0;
                changed = changed || hdt_channel_end_is_there(end);
                if (hdt_channel_end_is_there(end)) {
                    hdt_channel_set_state(end, END_AWAY, text);
                }
            }
        }
        if (changed) {
            hdt_channel_tell_programs(gw, channel);
        }
    }
}

/* Ask the sites of which something is not known. */
static void channel_ask(struct hdt_gateway *gw, const struct hdt_gwchannel *channel)
{
    for (unsigned i = 0; i < channel->n; i++) {
        const struct channel_end *end = &channel->ends[i];
        bool asked = false;

        for (unsigned j = 0; j < i; j++) {
            asked = asked || strcmp(channel->ends[j].who.site, end->who.site) == 0;
        }
        if (!asked && !hdt_channel_end_is_ours(gw, end) && end->state != END_CLOSED &&
            (!channel->up || end->state != END_HERE)) {
            hdt_channel_tell_site(gw, channel->name, end->who.site, true);
        }
    }
}

/* An end that is away for too long. true: the channel is gone. */
static bool channel_expire(struct hdt_gateway *gw, struct hdt_gwchannel *channel, unsigned rank,
                           int64_t now_us)
{
    struct channel_end *end = &channel->ends[rank];
    const bool ours = hdt_channel_end_is_ours(gw, end);
    const int64_t wait_us = ours ? gw->deadlines.gone_us : gw->deadlines.missing_us;
    char why[HDT_ERROR_MSG_CAP];

    /* A site that is not connected may come back: how long that is waited for is the programs'
     * business. */
    if (end->state != END_AWAY || now_us - end->since_us < wait_us ||
        (!ours && !hdt_federation_site_is_up(gw, end->who.site))) {
        return false;
    }
    snprintf(why, sizeof(why), "%s", end->why);
    if (channel->up) {
        hdt_channel_lose(gw, channel, rank, why);
        return true;
    }
    hdt_channel_end_reset(end);
    hdt_channel_settle(gw, channel);
    if (!channel_has_ours(gw, channel)) {
        hdt_channel_close_if_left(gw, channel);
        return true;
    }
    return false;
}

static void channel_tick(struct hdt_gateway *gw, struct hdt_gwchannel *channel, int64_t now_us)
{
    struct hdt_error why;

    for (unsigned i = 0; i < channel->n; i++) {
        if (channel_expire(gw, channel, i, now_us)) {
            return;
        }
    }
    if (!channel->up && channel->differs_us != 0 &&
        now_us - channel->differs_us > gw->deadlines.gone_us) {
        why = channel->differ;
        hdt_channel_end_it(gw, channel, first_ours(gw, channel), &why);
        return;
    }
    if (gw->n_ticks % TICKS_PER_S == 0) {
        channel_ask(gw, channel);
    }
}

void hdt_channels_tick(struct hdt_gateway *gw)
{
    const int64_t now_us = hdt_clock_now_us();
    struct hdt_gwchannel *channel, *next;

    LL_FOREACH_SAFE(gw->channels, channel, next)
    {
        channel_tick(gw, channel, now_us);
    }
    LL_FOREACH_SAFE(gw->channels_over, channel, next)
    {
        if (now_us - channel->since_us > OVER_KEEP_US) {
            LL_DELETE(gw->channels_over, channel);
            channel_free(channel);
        }
    }
}

void hdt_channels_free(struct hdt_gateway *gw)
{
    struct hdt_gwchannel *channel, *next;

    LL_FOREACH_SAFE(gw->channels, channel, next)
    {
        channel_free(channel);
    }
    LL_FOREACH_SAFE(gw->channels_over, channel, next)
    {
        channel_free(channel);
    }
    gw->channels = NULL;
    gw->channels_over = NULL;
}
