/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two sites that dial one another at the same moment: one session stays, and neither site takes the
 * other's dial for a stranger's or its own choice for a failure. "site-a" is a real data plane, the
 * other one is played by hand, so that every order of events is there on purpose.
 */
#include "config.h"

#include "src/base/clock.h"
#include "src/core/msg.h"
#include "tests/support/dp_rig.h"
#include "tests/support/dp_stranger.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct pair {
    struct rig rig;
    const char *name; /* of the site by hand */
    char *dir;
    int listen_fd;
    struct stranger theirs; /* dialled by site-a */
    struct stranger ours;   /* dialled by hand */
};

/* site-a dials the other one, and is connected. */
static void pair_open(struct pair *pair, const char *name)
{
    char address[32];
    int port;

    signal(SIGPIPE, SIG_IGN);
    memset(pair, 0, sizeof(*pair));
    hdt_rig_open(&pair->rig, 1);
    hdt_rig_start(&pair->rig);
    pair->name = name;
    pair->dir = hdt_rig_issue(&pair->rig, "site", name);
    pair->listen_fd = hdt_stranger_listen(&port);
    snprintf(address, sizeof(address), "127.0.0.1:%d", port);
    hdt_dataplane_dial(pair->rig.sites[0].dp, name, address);
    cr_assert(hdt_stranger_accept(&pair->theirs, pair->listen_fd));
}

static void pair_close(struct pair *pair)
{
    hdt_stranger_close(&pair->theirs);
    hdt_stranger_close(&pair->ours);
    close(pair->listen_fd);
    free(pair->dir);
    hdt_rig_close(&pair->rig);
}

/* Hello or welcome by a site that has had so many sessions with site-a. */
static json_t *body_of(const struct pair *pair, int n_sessions)
{
    json_t *body = hdt_stranger_hello(pair->name, HDT_PROTOCOL_VERSION, 0);

    json_object_set_new(body, "sessions", json_integer(n_sessions));
    return body;
}

/* The status of a refusal, or "welcome". */
static const char *dial_by_hand(struct pair *pair, int n_sessions)
{
    static char status[32];
    json_t *answer = NULL;
    const char *said = hdt_stranger_join(&pair->ours, pair->rig.sites[0].wan_port, pair->dir,
                                         body_of(pair, n_sessions), &answer);

    snprintf(status, sizeof(status), "%s",
             strcmp(said, "refuse") == 0 ? json_string_value(json_object_get(answer, "status"))
                                         : said);
    json_decref(answer);
    return status;
}

static void expect_msg(struct stranger *stranger, const char *type, const char *status)
{
    json_t *msg = hdt_stranger_recv_msg(stranger);

    cr_assert_not_null(msg);
    cr_expect_str_eq(hdt_msg_type(msg), type);
    if (status != NULL) {
        cr_expect_str_eq(json_string_value(json_object_get(hdt_msg_body(msg), "status")), status);
    }
    json_decref(msg);
}

static json_t *refusal(void)
{
    return json_pack("{s:s,s:s,s:s,s:s}", "status", hdt_status_name(HDT_EEXIST), "msg",
                     "another one stands", "where", "", "hint", "");
}

static uint64_t n_refused(struct pair *pair)
{
    struct hdt_dataplane_stats stats;
    uint64_t n = 0;

    hdt_dataplane_stats(pair->rig.sites[0].dp, &stats);
    for (int i = 0; i < HDT_REFUSED_COUNT; i++) {
        n += stats.refused[HDT_LISTENER_WAN][i];
    }
    return n;
}

/* ---- one dial came first ---- */

/* The hello of the other's dial came while this one is in its handshake. */
static void overtaken(const char *name)
{
    struct pair pair;

    pair_open(&pair, name);
    cr_expect_str_eq(dial_by_hand(&pair, 0), "welcome");
    hdt_rig_wait_count(&pair.rig.sites[0].n_up, 1);
    cr_assert(hdt_stranger_greet(&pair.theirs, pair.dir));
    expect_msg(&pair.theirs, "refuse", hdt_status_name(HDT_EEXIST));
    cr_expect(hdt_stranger_is_dropped(&pair.theirs));
    cr_expect_eq(pair.rig.sites[0].n_down, 0);
    cr_expect_eq(pair.rig.sites[0].n_refused, 0);
    pair_close(&pair);
}

Test(crossing, a_dial_that_a_session_overtook_says_so, .timeout = 60)
{
    overtaken("site-0");
    overtaken("site-z");
}

/* A connection of its own, so that what became of the ones before has been told by then. */
static void meet_a_stranger(struct pair *pair)
{
    const int64_t until_us = hdt_clock_now_us() + 20 * HDT_US_PER_S;
    struct stranger stranger;

    cr_assert(hdt_stranger_open(&stranger, pair->rig.sites[0].wan_port, NULL));
    cr_assert(hdt_stranger_write(&stranger, "SSH-2.0-OpenSSH_9\r\n", 19));
    cr_expect(hdt_stranger_is_dropped(&stranger));
    hdt_stranger_close(&stranger);
    while (n_refused(pair) < 1) {
        cr_assert_lt(hdt_clock_now_us(), until_us);
        hdt_rig_sleep_ms(2);
    }
}

Test(crossing, who_says_so_is_no_stranger, .timeout = 60)
{
    struct pair pair;

    pair_open(&pair, "site-z");
    for (int i = 0; i < 20; i++) {
        struct stranger s;

        cr_assert(hdt_stranger_open(&s, pair.rig.sites[0].wan_port, pair.dir));
        cr_assert(hdt_stranger_send_msg(&s, "refuse", refusal()));
        cr_expect(hdt_stranger_is_dropped(&s));
        hdt_stranger_close(&s);
    }
    meet_a_stranger(&pair);
    cr_expect_eq(n_refused(&pair), 1u, "refused: %llu", (unsigned long long)n_refused(&pair));
    hdt_rig_wait_count(&pair.rig.sites[0].n_refused, 1);
    cr_expect_eq(pair.rig.sites[0].n_refused, 1, "refused: %d", pair.rig.sites[0].n_refused);
    pair_close(&pair);
}

/* ---- both came through ---- */

/* The other one took the session of site-a's dial after it had said hello in a dial of its own, the
 * one of the smaller name; then it dials another because that session does it no good. */
Test(crossing, a_hello_from_before_the_session_does_not_end_it, .timeout = 60)
{
    struct rig_site *site;
    struct pair pair;

    pair_open(&pair, "site-0");
    site = &pair.rig.sites[0];
    cr_assert(hdt_stranger_greet(&pair.theirs, pair.dir));
    expect_msg(&pair.theirs, "hello", NULL);
    cr_assert(hdt_stranger_send_msg(&pair.theirs, "welcome", body_of(&pair, 1)));
    hdt_rig_wait_count(&site->n_up, 1);
    cr_expect_str_eq(dial_by_hand(&pair, 0), hdt_status_name(HDT_EEXIST));
    cr_expect_eq(site->n_down, 0);
    hdt_stranger_close(&pair.ours);
    cr_expect_str_eq(dial_by_hand(&pair, 1), "welcome");
    hdt_rig_wait_count(&site->n_up, 2);
    cr_expect_eq(site->n_down, 1);
    cr_expect_eq(site->n_crossed, 0);
    cr_expect_eq(site->n_refused, 0);
    pair_close(&pair);
}

/* site-a has said hello and has no answer; after a second of that it takes the other's session. */
static void dial_until_taken(struct pair *pair)
{
    const char *said;
    int n = 0;

    cr_assert(hdt_stranger_greet(&pair->theirs, pair->dir));
    expect_msg(&pair->theirs, "hello", NULL);
    while (strcmp(said = dial_by_hand(pair, 0), "welcome") != 0) {
        cr_assert_str_eq(said, hdt_status_name(HDT_EEXIST));
        cr_assert_lt(++n, 50);
        hdt_stranger_close(&pair->ours);
        hdt_rig_sleep_ms(100);
    }
    hdt_rig_wait_count(&pair->rig.sites[0].n_up, 1);
}

/* site-a has said hello, waits no longer for its welcome and takes the other's session; then the
 * welcome comes after all, and counts, as its name is the smaller. */
Test(crossing, a_session_that_gives_way_to_a_crossing_one_did_not_fail, .timeout = 60)
{
    struct rig_site *site;
    struct pair pair;

    pair_open(&pair, "site-z");
    site = &pair.rig.sites[0];
    dial_until_taken(&pair);
    cr_assert(hdt_stranger_send_msg(&pair.theirs, "welcome", body_of(&pair, 1)));
    hdt_rig_wait_count(&site->n_up, 2);
    cr_expect_eq(site->n_down, 1);
    cr_expect_eq(site->n_crossed, 1);
    cr_expect_eq(site->n_refused, 0);
    cr_expect(hdt_stranger_is_dropped(&pair.ours));
    pair_close(&pair);
}

/* The answer never comes, while the session is heard. */
Test(crossing, a_dial_without_answer_is_no_news_beside_a_session, .timeout = 60)
{
    struct rig_site *site;
    struct pollfd end;
    struct pair pair;

    pair_open(&pair, "site-z");
    site = &pair.rig.sites[0];
    dial_until_taken(&pair);
    end = (struct pollfd){.fd = pair.theirs.fd, .events = POLLIN};
    do {
        struct hdt_frame ping = {.kind = HDT_FRAME_PING};

        cr_assert(hdt_stranger_send(&pair.ours, &ping, NULL));
    } while (poll(&end, 1, 100) == 0);
    cr_expect(hdt_stranger_is_dropped(&pair.theirs));
    cr_expect_eq(site->n_down, 0);
    cr_expect_eq(site->n_refused, 0);
    pair_close(&pair);
}

/* The same as the other one may find it: it has the smaller name's session when the welcome to its
 * own comes, and takes its dial back. */
Test(crossing, a_session_that_is_taken_back_did_not_fail, .timeout = 60)
{
    struct rig_site *site;
    struct pair pair;

    pair_open(&pair, "site-z");
    site = &pair.rig.sites[0];
    cr_expect_str_eq(dial_by_hand(&pair, 0), "welcome");
    hdt_rig_wait_count(&site->n_up, 1);
    cr_assert(hdt_stranger_send_msg(&pair.ours, "refuse", refusal()));
    hdt_rig_wait_count(&site->n_down, 1);
    cr_expect_eq(site->n_crossed, 1);
    cr_expect(hdt_stranger_is_dropped(&pair.ours));
    pair_close(&pair);
}
