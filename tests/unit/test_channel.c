/* SPDX-License-Identifier: Apache-2.0 */
/* Channels at the gateway of site a: its program is client 5 ("a/+5"), another is 6; sites b and c
 * are played. */
#include "config.h"

#include "gateway/channel.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/core/channel_id.h"
#include "src/core/msg.h"
#include "tests/support/control_rig.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

enum { PROGRAM = 5, OTHER = 6 };

#define A1 "00000000000000a1"
#define A2 "00000000000000a2"
#define B1 "00000000000000b1"
#define B2 "00000000000000b2"

static void program_add(uint64_t id)
{
    struct hdt_gwclient *client = hdt_calloc(1, sizeof(*client));

    client->id = id;
    client->role = HDT_CLIENT_PROGRAM;
    snprintf(client->name, sizeof(client->name), "prog");
    snprintf(client->address, sizeof(client->address), "a/+%llu", (unsigned long long)id);
    LL_PREPEND(hdt_ctl_gw.clients, client);
}

static void program_remove(uint64_t id)
{
    struct hdt_gwclient *client = hdt_federation_client(&hdt_ctl_gw, id);
    const struct hdt_error why = {.status = HDT_EPEER, .msg = "it closed"};

    LL_DELETE(hdt_ctl_gw.clients, client);
    hdt_channel_client_down(&hdt_ctl_gw, client, &why);
    free(client);
}

static void setup(void)
{
    hdt_ctl_setup();
    program_add(PROGRAM);
    program_add(OTHER);
}

TestSuite(channel, .init = setup, .fini = hdt_ctl_teardown);

/* ---- what is said ---- */

static json_t *join_msg(const char *members, int rank, const char *instance)
{
    json_t *msg = hdt_msg_new("channel.join", "",
                              json_pack("{s:s, s:o, s:i, s:s, s:[], s:i}", "channel", "x",
                                        "members", json_loads(members, 0, NULL), "rank", rank,
                                        "instance", instance, "flows", "pid", 17));

    return hdt_ctl_with_id(msg, 3);
}

static void join(uint64_t client, const char *members, int rank, const char *instance)
{
    json_t *reply;
    char to[8];

    hdt_ctl_from_client(client, join_msg(members, rank, instance));
    snprintf(to, sizeof(to), "%d", (int)client);
    reply = hdt_fake_dataplane_take(to, "channel.joined");
    cr_assert_not_null(reply, "not joined: %s", hdt_ctl_error_to(to));
    json_decref(reply);
}

/* What site a said last to another site; the caller's. */
static json_t *last_ends(const char *site)
{
    json_t *msg, *last = NULL;

    while ((msg = hdt_fake_dataplane_take(site, "channel.ends"))) {
        json_decref(last);
        last = msg;
    }
    return last;
}

static json_t *last_state(const char *client)
{
    json_t *msg, *last = NULL;

    while ((msg = hdt_fake_dataplane_take(client, "channel.state"))) {
        json_decref(last);
        last = msg;
    }
    return last;
}

/* "channel.ends" of a site with one end; sees: what it says it sees, NULL: not all. */
static void ends_from(const char *site, const char *members, int rank, const char *instance,
                      const char *sees, const char *flows)
{
    json_t *body =
        json_pack("{s:s, s:o, s:b, s:s, s:[{s:i, s:s, s:b, s:s, s:o}], s:[]}", "channel", "x",
                  "members", json_loads(members, 0, NULL), "ask", 0, "sees",
                  sees ? sees : "0000000000000000", "ends", "rank", rank, "instance", instance,
                  "here", 1, "why", "", "flows", json_loads(flows, 0, NULL), "over");

    hdt_ctl_from_peer(site, site, hdt_msg_new("channel.ends", "a", body));
}

static void over_from(const char *site, int rank, const char *instance, bool closed, json_t *taken)
{
    json_t *item =
        json_pack("{s:i, s:s, s:b}", "rank", rank, "instance", instance, "closed", closed);
    struct hdt_error err = {0};

    if (closed) {
        json_object_set_new(item, "taken", taken);
    } else {
        hdt_error_set(&err, HDT_ERANK, "rank %d (%s) is lost: it was killed", rank, site);
        json_object_set_new(item, "error", hdt_msg_error_body(&err));
    }
    hdt_ctl_from_peer(
        site, site,
        hdt_msg_new("channel.ends", "a",
                    json_pack("{s:s, s:[], s:b, s:s, s:[], s:[o]}", "channel", "x", "members",
                              "ask", 0, "sees", "0000000000000000", "ends", "over", item)));
}

static const char *text_at(const json_t *msg, const char *key)
{
    static char text[600];
    const char *s = json_string_value(json_object_get(hdt_msg_body(msg), key));

    snprintf(text, sizeof(text), "%s", s ? s : "");
    return text;
}

static bool is_up(const json_t *state)
{
    return state && json_is_true(json_object_get(hdt_msg_body(state), "up"));
}

static const char *member_state(const json_t *state, size_t rank)
{
    const json_t *members = json_object_get(hdt_msg_body(state), "members");

    return json_string_value(json_object_get(json_array_get(members, rank), "state"));
}

/* Both programs are there and agree; the number of the channel. */
static uint32_t channel_up_as(uint64_t client, const char *instance)
{
    char to[8];

    json_t *told, *state;
    uint32_t job;

    snprintf(to, sizeof(to), "%d", (int)client);
    join(client, "[\"a\", \"b\"]", 0, instance);
    ends_from("b", "[\"a\", \"b\"]", 1, B1, NULL, "[]");
    told = last_ends("b");
    cr_assert_not_null(told);
    ends_from("b", "[\"a\", \"b\"]", 1, B1, text_at(told, "sees"), "[]");
    json_decref(told);
    state = last_state(to);
    cr_assert(is_up(state));
    job = (uint32_t)json_integer_value(json_object_get(hdt_msg_body(state), "job"));
    cr_expect(hdt_channel_is_job(job));
    json_decref(state);
    return job;
}

static uint32_t channel_up(void)
{
    return channel_up_as(PROGRAM, A1);
}

static void open_flow_of(uint64_t client, uint32_t job, uint32_t flow, bool is_src, int depth,
                         const char *content)
{
    const json_t *channels = hdt_channels_json(&hdt_ctl_gw);
    json_int_t epoch = json_integer_value(json_object_get(json_array_get(channels, 0), "epoch"));

    hdt_ctl_from_client(
        client,
        hdt_msg_new("flow.open", "",
                    json_pack("{s:I, s:I, s:I, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, "
                              "s:s*}",
                              "job", (json_int_t)job, "epoch", epoch, "flow", (json_int_t)flow,
                              "end", is_src ? "src" : "dst", "peer_site", "b", "prio", 3, "codec",
                              0, "dtype", 1, "depth", depth, "frame_cap", 65536, "pool", 1,
                              "pool_offset", 0, "next_seq", 0, "content", content)));
    json_decref((json_t *)(uintptr_t)channels);
}

static void open_flow(uint64_t client, uint32_t job, uint32_t flow, bool is_src, int depth)
{
    open_flow_of(client, job, flow, is_src, depth, NULL);
}

/* ---- tests ---- */

Test(channel, it_is_up_when_both_sites_see_the_same_programs)
{
    json_t *told, *state;
    char sees[32];

    join(PROGRAM, "[\"a\", \"b\"]", 0, A1);
    told = last_ends("b");
    cr_assert_not_null(told);
    cr_expect(json_is_true(json_object_get(hdt_msg_body(told), "ask")));
    cr_expect_str_eq(text_at(told, "sees"), "0000000000000000", "nobody is known there");
    json_decref(told);
    ends_from("b", "[\"a\", \"b\"]", 1, B1, NULL, "[]");
    told = last_ends("b");
    snprintf(sees, sizeof(sees), "%.16s", text_at(told, "sees"));
    cr_expect_str_neq(sees, "0000000000000000");
    json_decref(told);
    state = last_state("5");
    cr_expect_not(is_up(state), "b has not said that it sees the same");
    json_decref(state);
    ends_from("b", "[\"a\", \"b\"]", 1, B1, "00000000000000ff", "[]");
    state = last_state("5");
    cr_expect_not(is_up(state), "b sees others");
    json_decref(state);
    ends_from("b", "[\"a\", \"b\"]", 1, B1, sees, "[]");
    state = last_state("5");
    cr_expect(is_up(state));
    json_decref(state);
}

Test(channel, two_programs_of_one_site_need_no_other)
{
    json_t *state;

    join(PROGRAM, "[\"a/p\", \"a/q\"]", 0, A1);
    join(OTHER, "[\"a/p\", \"a/q\"]", 1, A2);
    state = last_state("6");
    cr_expect(is_up(state));
    json_decref(state);
}

Test(channel, a_site_speaks_for_its_own_members_only)
{
    json_t *told;
    char sees[32];

    join(PROGRAM, "[\"a\", \"b\", \"c\"]", 0, A1);
    hdt_ctl_peer_up("c");
    ends_from("b", "[\"a\", \"b\", \"c\"]", 2, B1, NULL, "[]"); /* c's */
    ends_from("b", "[\"a\", \"b\", \"c\"]", 0, B1, NULL, "[]"); /* ours */
    ends_from("b", "[\"a\", \"b\", \"c\"]", 1, B1, NULL, "[]");
    told = last_ends("b");
    cr_expect_str_eq(text_at(told, "sees"), "0000000000000000", "rank 2 is not known yet");
    json_decref(told);
    over_from("b", 0, A1, false, NULL);
    ends_from("b", "[\"a\", \"b\", \"c\"]", 1, B1, NULL, "[]");
    hdt_ctl_gw.deadlines.gone_us = 0;
    hdt_ctl_peer_up("d");
    ends_from("d", "[\"d\", \"a\"]", 0, B2, NULL, "[]"); /* no member: it may say what it likes */
    hdt_channels_tick(&hdt_ctl_gw);
    ends_from("c", "[\"a\", \"b\", \"c\"]", 2, B2, NULL, "[]");
    told = last_ends("c");
    cr_assert_not_null(told);
    snprintf(sees, sizeof(sees), "%.16s", text_at(told, "sees"));
    cr_expect_str_neq(sees, "0000000000000000");
    json_decref(told);
}

Test(channel, who_may_not_join_is_told_why)
{
    json_t *msg;

    hdt_ctl_from_client(PROGRAM, join_msg("[\"a\", \"b\"]", 1, A1));
    cr_expect_str_eq(hdt_ctl_error_to("5"), "EACCES", "rank 1 is a member at b");
    hdt_ctl_from_client(PROGRAM, join_msg("[\"a\", \"a\"]", 0, A1));
    cr_expect_str_eq(hdt_ctl_error_to("5"), "EINVAL", "a member twice");
    hdt_ctl_from_client(PROGRAM, join_msg("[\"a\", \"b c\"]", 0, A1));
    cr_expect_str_eq(hdt_ctl_error_to("5"), "EINVAL", "no name");
    hdt_ctl_from_client(PROGRAM, join_msg("[\"a\", \"b\"]", 2, A1));
    cr_expect_str_eq(hdt_ctl_error_to("5"), "EINVAL", "no rank");
    hdt_ctl_from_client(PROGRAM, join_msg("[\"a\", \"b\"]", 0, "abc"));
    cr_expect_str_eq(hdt_ctl_error_to("5"), "EPROTO", "no instance");
    hdt_ctl_from_client(HDT_CTL_OPERATOR, join_msg("[\"a\", \"b\"]", 0, A1));
    cr_expect_str_eq(hdt_ctl_error_to("2"), "EACCES", "an operator is no program");
    hdt_ctl_from_client(HDT_CTL_WORKER, join_msg("[\"a\", \"b\"]", 0, A1));
    cr_expect_str_eq(hdt_ctl_error_to("1"), "EACCES");
    msg = join_msg("[\"a\", \"b\"]", 0, A1);
    hdt_ctl_from_peer("b", "b/+5", msg);
    cr_expect_str_eq(hdt_ctl_error_to("b"), "EACCES", "a program joins at its own gateway");
    hdt_ctl_from_client(PROGRAM, hdt_ctl_submit_msg());
    cr_expect_str_eq(hdt_ctl_error_to("5"), "EACCES", "a program gives no orders");
    hdt_ctl_from_client(PROGRAM, hdt_ctl_with_id(hdt_msg_new("status", "b", NULL), 4));
    cr_expect_str_eq(hdt_ctl_error_to("5"), "EACCES", "and speaks with its own gateway");
    join(PROGRAM, "[\"a\", \"b\"]", 0, A1);
    hdt_ctl_from_client(OTHER, join_msg("[\"a\", \"b\"]", 0, A2));
    cr_expect_str_eq(hdt_ctl_error_to("6"), "EEXIST", "rank 0 is there");
    hdt_ctl_from_client(OTHER, join_msg("[\"b\", \"a\"]", 1, A2));
    cr_expect_str_eq(hdt_ctl_error_to("6"), "EEXIST", "other members");
    cr_expect_null(hdt_fake_dataplane_take("6", "channel.state"));
}

Test(channel, other_members_elsewhere_end_it_with_both_lists)
{
    json_t *state;

    join(PROGRAM, "[\"a\", \"b\"]", 0, A1);
    ends_from("b", "[\"a\", \"b\", \"c\"]", 1, B1, NULL, "[]");
    hdt_channels_tick(&hdt_ctl_gw);
    state = last_state("5");
    cr_expect_null(json_object_get(hdt_msg_body(state), "over"), "it may be a program that ends");
    json_decref(state);
    hdt_ctl_gw.deadlines.gone_us = -1;
    hdt_channels_tick(&hdt_ctl_gw);
    state = last_state("5");
    cr_assert_not_null(state);
    {
        const json_t *error =
            json_object_get(json_object_get(hdt_msg_body(state), "over"), "error");
        const char *text = json_string_value(json_object_get(error, "msg"));

        cr_assert_not_null(text);
        cr_expect(strstr(text, "at site b: a, b, c; here: a, b") != NULL, "%s", text);
    }
    json_decref(state);
}

Test(channel, a_flow_is_opened_when_both_ends_offer_the_same)
{
    const uint32_t job = channel_up();
    const uint32_t out = hdt_channel_flow(0, 1, 7), in = hdt_channel_flow(1, 0, 7);
    json_t *told, *opened, *state;
    char sees[32], offer[96];

    open_flow(PROGRAM, job, out, true, 4);
    cr_expect_eq(hdt_fake_dataplane_n_flows(), 0, "b has not offered it");
    told = last_ends("b");
    snprintf(sees, sizeof(sees), "%.16s", text_at(told, "sees"));
    cr_expect_eq(json_array_size(json_object_get(
                     json_array_get(json_object_get(hdt_msg_body(told), "ends"), 0), "flows")),
                 1);
    json_decref(told);
    snprintf(offer, sizeof(offer), "[[%u, 4, 65536, 3, 0, 1], [%u, 2, 65536, 3, 0, 1]]", out, in);
    ends_from("b", "[\"a\", \"b\"]", 1, B1, sees, offer);
    cr_expect_eq(hdt_fake_dataplane_n_flows(), 1);
    opened = hdt_fake_dataplane_take("5", "flow.opened");
    cr_expect_eq(json_integer_value(json_object_get(hdt_msg_body(opened), "flow")), out);
    json_decref(opened);
    open_flow(OTHER, job, out, true, 4);
    opened = hdt_fake_dataplane_take("6", "flow.refused");
    cr_expect_not_null(opened, "it is another program's");
    json_decref(opened);
    open_flow(PROGRAM, job, out, false, 4);
    opened = hdt_fake_dataplane_take("5", "flow.refused");
    cr_expect_not_null(opened, "it is the sending end");
    json_decref(opened);
    open_flow(PROGRAM, job, in, false, 3);
    state = last_state("5");
    cr_expect_not_null(json_object_get(hdt_msg_body(state), "over"), "3 slots are not 2");
    json_decref(state);
    cr_expect_eq(hdt_fake_dataplane_n_jobs_closed(), 1);
    cr_expect_eq(hdt_fake_dataplane_n_flows(), 1);
}

Test(channel, codecs_that_differ_end_it_with_both)
{
    const uint32_t job = channel_up();
    const uint32_t out = hdt_channel_flow(0, 1, 7), other = hdt_channel_flow(0, 1, 8);
    json_t *told, *refused, *state;
    const char *msg;
    char sees[32], offer[160];

    open_flow_of(PROGRAM, job, other, true, 4, "f32 by\n");
    refused = hdt_fake_dataplane_take("5", "flow.refused");
    cr_expect_not_null(refused, "it would go into messages");
    json_decref(refused);
    open_flow_of(PROGRAM, job, out, true, 4, "f32 by int8:block=64");
    told = last_ends("b");
    snprintf(sees, sizeof(sees), "%.16s", text_at(told, "sees"));
    json_decref(told);
    snprintf(offer, sizeof(offer), "[[%u, 4, 65536, 3, 0, 1, \"f32 by int8\"]]", out);
    ends_from("b", "[\"a\", \"b\"]", 1, B1, sees, offer);
    state = last_state("5");
    msg = json_string_value(json_object_get(
        json_object_get(json_object_get(hdt_msg_body(state), "over"), "error"), "msg"));
    cr_assert_not_null(msg);
    cr_expect(strstr(msg, "type f32 by int8:block=64,") && strstr(msg, "f32 by int8,"), "%s", msg);
    json_decref(state);
    cr_expect_eq(hdt_fake_dataplane_n_flows(), 0);
}

Test(channel, a_program_that_is_killed_ends_it_at_the_others)
{
    json_t *told, *state;
    const json_t *over;

    channel_up();
    program_remove(PROGRAM);
    told = last_ends("b");
    cr_expect_eq(json_array_size(json_object_get(hdt_msg_body(told), "over")), 0,
                 "its connection may come back");
    json_decref(told);
    hdt_ctl_gw.deadlines.gone_us = -1;
    hdt_channels_tick(&hdt_ctl_gw);
    told = last_ends("b");
    over = json_array_get(json_object_get(hdt_msg_body(told), "over"), 0);
    cr_expect_str_eq(json_string_value(json_object_get(over, "instance")), A1);
    cr_expect(json_is_false(json_object_get(over, "closed")));
    cr_expect(strstr(json_string_value(json_object_get(json_object_get(over, "error"), "msg")),
                     "rank 0 (a) is lost") != NULL);
    json_decref(told);
    cr_expect_eq(hdt_fake_dataplane_n_jobs_closed(), 1);
    hdt_ctl_gw.deadlines.gone_us = 1000000;
    hdt_fake_dataplane_reset();
    channel_up_as(OTHER, A2); /* the name is free */
    over_from("b", 1, B1, false, NULL);
    state = last_state("6");
    cr_expect_str_eq(
        json_string_value(json_object_get(
            json_object_get(json_object_get(hdt_msg_body(state), "over"), "error"), "msg")),
        "rank 1 (b) is lost: it was killed");
    json_decref(state);
}

Test(channel, a_program_that_was_started_anew_is_another_one)
{
    json_t *state;

    channel_up();
    ends_from("b", "[\"a\", \"b\"]", 1, B2, NULL, "[]");
    state = last_state("5");
    cr_assert_not_null(state);
    cr_expect_not_null(json_object_get(hdt_msg_body(state), "over"));
    json_decref(state);
    cr_expect_eq(hdt_fake_dataplane_n_jobs_closed(), 1);
}

Test(channel, who_leaves_in_order_says_what_it_has_taken)
{
    const uint32_t in = hdt_channel_flow(1, 0, 7);
    json_t *told, *left, *state;
    const json_t *over;

    channel_up();
    over_from("b", 1, B1, true, json_pack("[[i, i]]", (int)hdt_channel_flow(0, 1, 7), 9));
    state = last_state("5");
    cr_expect_str_eq(member_state(state, 1), "closed");
    cr_expect_null(json_object_get(hdt_msg_body(state), "over"), "rank 0 may go on");
    json_decref(state);
    hdt_ctl_from_client(PROGRAM,
                        hdt_msg_new("channel.leave", "",
                                    json_pack("{s:s, s:i, s:s, s:[[I, i]]}", "channel", "x", "rank",
                                              0, "instance", A1, "taken", (json_int_t)in, 12)));
    left = hdt_fake_dataplane_take("5", "channel.left");
    cr_expect_not_null(left);
    json_decref(left);
    told = last_ends("b");
    over = json_array_get(json_object_get(hdt_msg_body(told), "over"), 0);
    cr_expect(json_is_true(json_object_get(over, "closed")));
    cr_expect_eq(
        json_integer_value(json_array_get(json_array_get(json_object_get(over, "taken"), 0), 1)),
        12);
    json_decref(told);
    cr_expect_eq(hdt_fake_dataplane_n_jobs_closed(), 1, "nobody of this site is in it");
    json_decref(last_state("5"));
    hdt_ctl_peer_up("b");
    hdt_channel_peer_up(&hdt_ctl_gw, "b");
    ends_from("b", "[\"a\", \"b\"]", 1, B1, NULL, "[]");
    cr_expect_null(last_state("5"));
}

Test(channel, a_gateway_that_was_restarted_comes_to_the_same_number)
{
    const uint32_t job = channel_up();
    json_t *told, *state, *msg;
    char sees[32];

    hdt_ctl_gateway_restart();
    program_add(PROGRAM);
    join(PROGRAM, "[\"a\", \"b\"]", 0, A1);
    ends_from("b", "[\"a\", \"b\"]", 1, B1, NULL, "[]");
    told = last_ends("b");
    snprintf(sees, sizeof(sees), "%.16s", text_at(told, "sees"));
    json_decref(told);
    ends_from("b", "[\"a\", \"b\"]", 1, B1, sees, "[]");
    state = last_state("5");
    cr_expect(is_up(state));
    cr_expect_eq(json_integer_value(json_object_get(hdt_msg_body(state), "job")), job);
    json_decref(state);
    /* Rank 1 has left before: its program, which was there, knows. */
    hdt_ctl_gateway_restart();
    program_add(PROGRAM);
    msg = join_msg("[\"a\", \"b\"]", 0, A1);
    json_object_set_new(json_object_get(msg, "b"), "left", json_pack("[[i, s]]", 1, B1));
    hdt_ctl_from_client(PROGRAM, msg);
    state = last_state("5");
    cr_expect(is_up(state));
    cr_expect_eq(json_integer_value(json_object_get(hdt_msg_body(state), "job")), job);
    json_decref(state);
}

Test(channel, a_program_is_waited_for_when_its_gateway_was_restarted)
{
    json_t *state;

    channel_up();
    hdt_ctl_from_peer(
        "b", "b",
        hdt_msg_new("channel.ends", "a",
                    json_pack("{s:s, s:[], s:b, s:s, s:[], s:[]}", "channel", "x", "members", "ask",
                              0, "sees", "0000000000000000", "ends", "over")));
    state = last_state("5");
    cr_expect_str_eq(member_state(state, 1), "away");
    json_decref(state);
    hdt_channels_tick(&hdt_ctl_gw);
    cr_expect_null(last_state("5"));
    ends_from("b", "[\"a\", \"b\"]", 1, B1, NULL, "[]");
    state = last_state("5");
    cr_expect_str_eq(member_state(state, 1), "here");
    json_decref(state);
    hdt_ctl_from_peer(
        "b", "b",
        hdt_msg_new("channel.ends", "a",
                    json_pack("{s:s, s:[], s:b, s:s, s:[], s:[]}", "channel", "x", "members", "ask",
                              0, "sees", "0000000000000000", "ends", "over")));
    hdt_ctl_gw.deadlines.missing_us = -1;
    hdt_channels_tick(&hdt_ctl_gw);
    state = last_state("5");
    cr_expect_not_null(json_object_get(hdt_msg_body(state), "over"));
    json_decref(state);
}

Test(channel, a_program_comes_back_after_its_connection_broke)
{
    const uint32_t job = channel_up();
    const uint32_t out = hdt_channel_flow(0, 1, 7);
    char offer[64];

    snprintf(offer, sizeof(offer), "[[%u, 4, 65536, 3, 0, 1]]", out);
    ends_from("b", "[\"a\", \"b\"]", 1, B1, NULL, offer);
    open_flow(PROGRAM, job, out, true, 4);
    cr_expect_eq(hdt_fake_dataplane_n_flows(), 1);
    program_remove(PROGRAM);
    hdt_channels_tick(&hdt_ctl_gw);
    program_add(OTHER + 1);
    join(OTHER + 1, "[\"a\", \"b\"]", 0, A1);
    open_flow(PROGRAM, job, out, true, 4); /* its old connection has no say */
    open_flow(OTHER + 1, job, out, true, 4);
    cr_expect_eq(hdt_fake_dataplane_n_flows(), 2);
    cr_expect_eq(hdt_fake_dataplane_n_jobs_closed(), 0);
}

Test(channel, jobs_have_no_numbers_of_channels)
{
    json_t *msg = hdt_msg_new("job.plan", "a",
                              json_pack("{s:I, s:i, s:s, s:{}, s:{}}", "job",
                                        (json_int_t)HDT_CHANNEL_JOB_BIT + 5, "epoch", 1,
                                        "coordinator", "b", "plan", "model"));
    json_t *failed;

    hdt_ctl_from_peer("b", "b", msg);
    failed = hdt_fake_dataplane_take("b", "failed");
    cr_expect_not_null(failed);
    json_decref(failed);
}
