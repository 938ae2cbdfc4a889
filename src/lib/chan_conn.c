/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a channel says to its gateway, and what that says: join, how the channel stands, leave.
 *
 * On every connection it joins anew as the same instance; when the gateway says that the channel is
 * up, the pool is handed over and all flows are opened where they stand.
 */
#include "config.h"

#include "src/lib/chan.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/core/msg.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- out ---- */

static json_t *conn_hello(void *user)
{
    struct hdt_channel *ch = user;

    return json_pack("{s:i, s:s, s:s, s:s, s:I}", "proto", HDT_PROTOCOL_VERSION, "role", "program",
                     "name", ch->name, "version", PACKAGE_VERSION, "pid", (json_int_t)getpid());
}

static json_int_t conn_say(struct hdt_channel *ch, const char *type, json_t *body)
{
    json_t *msg = hdt_msg_new(type, NULL, body);

    json_object_set_new(msg, "id", json_integer(++ch->next_id));
    hdt_gwlink_say(ch->link, msg, true);
    return ch->next_id;
}

static void conn_join(struct hdt_channel *ch)
{
    json_t *members = json_array(), *left = json_array();

    pthread_mutex_lock(&ch->lock);
    for (unsigned i = 0; i < ch->n; i++) {
        json_array_append_new(members, json_string(ch->members[i].text));
        if (ch->members[i].state == MEMBER_CLOSED) {
            json_array_append_new(left, json_pack("[i, s]", (int)i, ch->members[i].instance));
        }
    }
    pthread_mutex_unlock(&ch->lock);
    ch->join_id =
        conn_say(ch, "channel.join",
                 json_pack("{s:s, s:o, s:i, s:s, s:o, s:I, s:o}", "channel", ch->name, "members",
                           members, "rank", (int)ch->rank, "instance", ch->instance, "flows",
                           hdt_chan_offers(ch), "pid", (json_int_t)getpid(), "left", left));
}

/* [[flow, frames]]: what was taken of flows that end here, since their acknowledgements may not
 * have come through when this program is gone. */
static json_t *conn_taken(const struct hdt_channel *ch)
{
    const struct hdt_flow *flow;
    json_t *taken = json_array();

    for (flow = ch->flows; flow; flow = flow->next) {
        if (!flow->window.is_src) {
            json_array_append_new(taken, json_pack("[I, I]", (json_int_t)flow->number,
                                                   (json_int_t)flow->window.acked));
        }
    }
    return taken;
}

void hdt_chan_leave(struct hdt_channel *ch, const struct hdt_error *why)
{
    json_t *body;

    if (!hdt_gwlink_is_up(ch->link) || ch->leave_said) {
        return;
    }
    ch->leave_said = true;
    body = json_pack("{s:s, s:i, s:s, s:o}", "channel", ch->name, "rank", (int)ch->rank, "instance",
                     ch->instance, "taken", conn_taken(ch));
    if (why) {
        json_object_set_new(body, "error", hdt_msg_error_body(why));
    }
    ch->leave_id = conn_say(ch, "channel.leave", body);
}

/* ---- events of the connection ---- */

static void conn_up(void *user, const json_t *welcome)
{
    struct hdt_channel *ch = user;

    (void)welcome;
    pthread_mutex_lock(&ch->lock);
    ch->is_up = true;
    ch->down.status = HDT_OK;
    ch->stats.n_connections++;
    pthread_mutex_unlock(&ch->lock);
    if (!ch->leave_due) {
        conn_join(ch);
    }
}

static void conn_down(void *user, const struct hdt_error *why)
{
    struct hdt_channel *ch = user;
    bool joining;

    pthread_mutex_lock(&ch->lock);
    ch->down = *why;
    joining = ch->phase == CHAN_JOINING;
    pthread_mutex_unlock(&ch->lock);
    if (why->status == HDT_EACCES || why->status == HDT_EVERSION ||
        (joining && why->status == HDT_EPROTO)) {
        hdt_chan_fail(ch, why, false); /* a repetition does not help */
    }
}

static void conn_lost(void *user)
{
    struct hdt_channel *ch = user;

    pthread_mutex_lock(&ch->lock);
    ch->is_up = false;
    ch->down_us = hdt_clock_now_us();
    if (ch->down.status == HDT_OK) {
        hdt_error_set(&ch->down, HDT_EPEER, "the gateway closed the connection");
    }
    hdt_chan_post(ch);
    pthread_mutex_unlock(&ch->lock);
    ch->is_joined = false;
    hdt_chan_flows_lost(ch);
}

static void conn_ended(void *user)
{
    struct hdt_channel *ch = user;

    ch->is_done = true;
    hdt_engine_stop(ch->engine);
}

static enum hdt_status conn_place(void *user, const struct hdt_frame *frame, size_t len, void **buf,
                                  struct hdt_error *err)
{
    return hdt_chan_place(user, frame, len, buf, err);
}

static void conn_work(struct hdt_channel *ch)
{
    pthread_mutex_lock(&ch->lock);
    hdt_chan_post(ch);
    pthread_mutex_unlock(&ch->lock);
}

static enum hdt_status conn_record(void *user, const struct hdt_frame *frame, struct hdt_error *err)
{
    HDT_TRY(hdt_chan_record(user, frame, err));
    conn_work(user);
    return HDT_OK;
}

static void conn_want(void *user)
{
    conn_work(user);
}

static void conn_sent(void *user, struct hdt_record *record, bool ok)
{
    (void)ok; /* a connection that is lost sets the flows back */
    hdt_chan_record_sent(user, record);
    conn_work(user);
}

/* ---- messages ---- */

static const char *text_of(const json_t *body, const char *key)
{
    const char *text = json_string_value(json_object_get(body, key));

    return text ? text : "";
}

static enum chan_member_state state_of(const char *name)
{
    static const char *const names[] = {"unknown", "here", "away", "closed", "lost"};

    for (int i = 0; i < 5; i++) {
        if (strcmp(names[i], name) == 0) {
            return (enum chan_member_state)i;
        }
    }
    return MEMBER_UNKNOWN;
}

/* What a member that has left had taken of what was sent to it. */
static void member_take_closed(struct hdt_channel *ch, unsigned rank, const json_t *taken)
{
    struct hdt_flow *flow;
    const json_t *item;
    size_t i;

    ch->closed[rank] = true;
    json_array_foreach(taken, i, item)
    {
        const json_int_t number = json_integer_value(json_array_get(item, 0));
        const json_int_t seq = json_integer_value(json_array_get(item, 1));

        for (flow = ch->flows; flow; flow = flow->next) {
            if (flow->window.is_src && flow->peer == rank && (json_int_t)flow->number == number &&
                seq > 0) {
                /* More than was sent means nothing: the gateways have looked at it. */
                (void)hdt_chan_flow_acked(flow, (uint64_t)seq, 0);
            }
        }
    }
}

static void members_read(struct hdt_channel *ch, const json_t *items)
{
    const int64_t now_us = hdt_clock_now_us();
    const json_t *item;
    size_t i;

    json_array_foreach(items, i, item)
    {
        struct chan_member *member;
        enum chan_member_state state = state_of(text_of(item, "state"));
        const double since_s = json_number_value(json_object_get(item, "since_s"));

        if (i >= ch->n) {
            break;
        }
        member = &ch->members[i];
        pthread_mutex_lock(&ch->lock);
        member->state = state;
        member->since_us = now_us - (int64_t)(since_s * 1e6);
        snprintf(member->why, sizeof(member->why), "%s", text_of(item, "why"));
        snprintf(member->instance, sizeof(member->instance), "%s", text_of(item, "instance"));
        pthread_mutex_unlock(&ch->lock);
        if (state == MEMBER_CLOSED && i != ch->rank && !ch->closed[i]) {
            member_take_closed(ch, (unsigned)i, json_object_get(item, "taken"));
        }
    }
}

static void state_arrived(struct hdt_channel *ch, const json_t *body)
{
    const json_t *over = json_object_get(body, "over");
    const json_int_t job = json_integer_value(json_object_get(body, "job"));
    const json_int_t epoch = json_integer_value(json_object_get(body, "epoch"));
    struct hdt_error err = {0};

    members_read(ch, json_object_get(body, "members"));
    pthread_mutex_lock(&ch->lock);
    snprintf(ch->differs, sizeof(ch->differs), "%s", text_of(body, "differs"));
    pthread_cond_broadcast(&ch->changed);
    pthread_mutex_unlock(&ch->lock);
    if (over) {
        hdt_msg_error_from_body(json_object_get(over, "error"), &err);
        if (err.status == HDT_OK) {
            hdt_error_set(&err, HDT_ERANK, "the gateway does not say why");
        }
        hdt_error_prefix(&err, "channel '%s' is over", ch->name);
        hdt_chan_fail(ch, &err, false);
        return;
    }
    if (!json_is_true(json_object_get(body, "up")) || ch->is_joined) {
        return;
    }
    if (job <= 0 || job > UINT32_MAX || epoch < 0 || epoch > UINT32_MAX ||
        (ch->job != 0 && (ch->job != (uint32_t)job || ch->epoch != (uint32_t)epoch))) {
        hdt_error_set(&err, HDT_EPROTO, "the gateway says that channel '%s' has another number",
                      ch->name);
        hdt_chan_fail(ch, &err, true);
        return;
    }
    ch->job = (uint32_t)job;
    ch->epoch = (uint32_t)epoch;
    ch->is_joined = true;
    pthread_mutex_lock(&ch->lock);
    ch->phase = ch->phase == CHAN_JOINING ? CHAN_UP : ch->phase;
    pthread_cond_broadcast(&ch->changed);
    pthread_mutex_unlock(&ch->lock);
}

static void refused_arrived(struct hdt_channel *ch, const json_t *body)
{
    struct hdt_error err = {0};

    hdt_msg_error_from_body(json_object_get(body, "error"), &err);
    if (err.status == HDT_ENOENT) {
        return; /* the channel is over there, or not up again: said by itself */
    }
    hdt_error_prefix(&err, "channel '%s' cannot go on", ch->name);
    hdt_chan_fail(ch, &err, true);
}

static void error_arrived(struct hdt_channel *ch, const json_t *msg)
{
    const json_t *re = json_object_get(msg, "re");
    struct hdt_error err = {0};

    hdt_msg_error_from_body(hdt_msg_body(msg), &err);
    if (json_is_integer(re) && json_integer_value(re) == ch->join_id) {
        hdt_chan_fail(ch, &err, false);
    }
}

static void conn_message(void *user, json_t *msg)
{
    struct hdt_channel *ch = user;
    const json_t *body = hdt_msg_body(msg);
    const char *type = hdt_msg_type(msg);

    if (strcmp(type, "channel.state") == 0) {
        state_arrived(ch, body);
    } else if (strcmp(type, "flow.opened") == 0) {
        hdt_chan_flow_opened(ch, (uint32_t)json_integer_value(json_object_get(body, "flow")), true);
    } else if (strcmp(type, "flow.refused") == 0) {
        refused_arrived(ch, body);
    } else if (strcmp(type, "channel.left") == 0) {
        ch->is_leaving = false;
    } else if (strcmp(type, "error") == 0) {
        error_arrived(ch, msg);
    }
    json_decref(msg);
    conn_work(ch);
}

const struct hdt_gwlink_events hdt_chan_link_events = {
    .hello = conn_hello,
    .up = conn_up,
    .down = conn_down,
    .message = conn_message,
    .place = conn_place,
    .record = conn_record,
    .want = conn_want,
    .sent = conn_sent,
    .lost = conn_lost,
    .ended = conn_ended,
};
