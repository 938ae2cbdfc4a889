/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* Frames that share links, against sums done by hand. */
#include "tests/support/sim_case.h"

#include <criterion/criterion.h>

#define EPS 1e-9

/* Rank 2 i sends `bytes` at `at_s` to rank 2 i + 1 over these links; a flow a pair. */
static struct hdt_sim_flow *pair(struct sim_case *c, int i, double at_s, double bytes, size_t n,
                                 const int *links)
{
    struct hdt_sim_flow *f = hdt_sim_case_flow(c, 2 * i, 2 * i + 1, 0, n, links);

    hdt_sim_case_compute(c, 2 * i, at_s);
    hdt_sim_case_send(c, 2 * i, i, bytes);
    hdt_sim_case_recv(c, 2 * i + 1, i);
    return f;
}

static void arrives(const struct sim_case *c, int i, double want_s)
{
    cr_expect_float_eq(hdt_sim_case_end(c, 2 * i + 1, 0), want_s, EPS,
                       "frame %d came at %.9g, not %g", i, hdt_sim_case_end(c, 2 * i + 1, 0),
                       want_s);
}

/* 150 bytes at 0 and 100 at 1 over 100 bytes a second: 50 are left at 1, both have 50 a second, the
 * first is over at 2, the other one has 50 left and ends at 2.5. */
Test(sim_net, two_frames_share_a_link)
{
    struct sim_case *c = hdt_sim_case_new(4);
    int link = hdt_sim_case_link(c, 100);

    pair(c, 0, 0, 150, 1, &link);
    pair(c, 1, 1, 100, 1, &link);
    hdt_sim_case_run(c);
    arrives(c, 0, 2);
    arrives(c, 1, 2.5);
    cr_expect_float_eq(c->result.links[0].peak, 1, EPS);
    cr_expect_float_eq(c->result.links[0].busy_s, 2.5, EPS);
    hdt_sim_case_free(c);
}

/* One whose bytes are as two on the link, 75 bytes: the times of above, and the bytes that are. */
Test(sim_net, a_flow_may_weigh_more)
{
    struct sim_case *c = hdt_sim_case_new(4);
    int link = hdt_sim_case_link(c, 100);

    pair(c, 0, 0, 75, 1, &link)->weight = 2;
    pair(c, 1, 1, 100, 1, &link);
    hdt_sim_case_run(c);
    arrives(c, 0, 2);
    arrives(c, 1, 2.5);
    cr_expect_float_eq(c->result.links[0].bytes, 175, EPS);
    cr_expect_float_eq(c->result.links[0].busy_s, 2.5, EPS);
    hdt_sim_case_free(c);
}

/* The same in a queue: one after the other. */
Test(sim_net, a_shared_queue_sends_one_after_the_other)
{
    struct sim_case *c = hdt_sim_case_new(4);
    int link = hdt_sim_case_link(c, 100);

    c->setup.n_queues = 1;
    pair(c, 0, 0, 150, 1, &link)->queue = 0;
    pair(c, 1, 1, 100, 1, &link)->queue = 0;
    hdt_sim_case_run(c);
    arrives(c, 0, 1.5);
    arrives(c, 1, 2.5);
    /* An encoder that makes 50 bytes a second keeps the queue for as long. */
    c->flows[0].pace_s = 3;
    hdt_sim_case_run(c);
    arrives(c, 0, 1.5);
    arrives(c, 1, 4);
    hdt_sim_case_free(c);
}

/* Frames of one flow go one after another in any case. */
Test(sim_net, frames_of_a_flow_keep_their_order)
{
    struct sim_case *c = hdt_sim_case_new(2);
    int link = hdt_sim_case_link(c, 100);

    hdt_sim_case_flow(c, 0, 1, 1, 1, &link);
    hdt_sim_case_send(c, 0, 0, 300);
    hdt_sim_case_send(c, 0, 0, 100);
    hdt_sim_case_recv(c, 1, 0);
    hdt_sim_case_recv(c, 1, 0);
    hdt_sim_case_run(c);
    cr_expect_float_eq(hdt_sim_case_end(c, 1, 0), 4, EPS);
    cr_expect_float_eq(hdt_sim_case_end(c, 1, 1), 5, EPS);
    hdt_sim_case_free(c);
}

/* Links of 10 and 4; one frame on the first, one on both, one on the second: 8, 2 and 2 a second.
 * The frame on both has 2 bytes and is over at 1. */
Test(sim_net, shares_are_max_min_fair)
{
    struct sim_case *c = hdt_sim_case_new(6);
    const int links[] = {hdt_sim_case_link(c, 10), hdt_sim_case_link(c, 4)};

    pair(c, 0, 0, 18, 1, &links[0]); /* 8 by 1, then 10 a second: over at 2 */
    pair(c, 1, 0, 2, 2, links);
    pair(c, 2, 0, 6, 1, &links[1]); /* 2 by 1, then 4 a second: over at 2 */
    hdt_sim_case_run(c);
    arrives(c, 0, 2);
    arrives(c, 1, 1);
    arrives(c, 2, 2);
    hdt_sim_case_free(c);
}

/* The parking lot: one frame over three links of 1 a second, one on each of them. All have a half
 * until the frames on single links (1 byte) end at 2; the long one has 2 of its 3 bytes left then
 * and takes 2 more seconds. */
Test(sim_net, a_long_route_shares_each_link)
{
    struct sim_case *c = hdt_sim_case_new(8);
    const int links[] = {hdt_sim_case_link(c, 1), hdt_sim_case_link(c, 1), hdt_sim_case_link(c, 1)};

    pair(c, 0, 0, 3, 3, links);
    for (int i = 0; i < 3; i++) {
        pair(c, i + 1, 0, 1, 1, &links[i]);
    }
    hdt_sim_case_run(c);
    arrives(c, 0, 4);
    for (int i = 0; i < 3; i++) {
        arrives(c, i + 1, 2);
    }
    hdt_sim_case_free(c);
}

/* Full duplex is two links: both ways at once, each at its rate. */
Test(sim_net, both_ways_at_once)
{
    struct sim_case *c = hdt_sim_case_new(2);
    const int links[] = {hdt_sim_case_link(c, 10), hdt_sim_case_link(c, 20)};

    hdt_sim_case_flow(c, 0, 1, 0, 1, &links[0]);
    hdt_sim_case_flow(c, 1, 0, 0, 1, &links[1]);
    hdt_sim_case_send(c, 0, 0, 40);
    hdt_sim_case_recv(c, 0, 1);
    hdt_sim_case_send(c, 1, 1, 40);
    hdt_sim_case_recv(c, 1, 0);
    hdt_sim_case_run(c);
    cr_expect_float_eq(hdt_sim_case_end(c, 0, 1), 2, EPS);
    cr_expect_float_eq(hdt_sim_case_end(c, 1, 1), 4, EPS);
    hdt_sim_case_free(c);
}

/* 250 bytes at 100 a second: 100 by 1, nothing until 3, the rest by 4.5. Slowed to a half instead:
 * 100 more by 3, the rest by 3.5. A fifth lost all the time: 250 / 80. */
Test(sim_net, outages_and_slow_links)
{
    struct hdt_sim_slow slow[] = {{0, 1, 3, 0}, {0, 0, 100, 0.8}};
    struct sim_case *c = hdt_sim_case_new(2);
    int link = hdt_sim_case_link(c, 100);

    pair(c, 0, 0, 250, 1, &link);
    c->setup.slow_links = slow;
    c->setup.n_slow_links = 1;
    hdt_sim_case_run(c);
    arrives(c, 0, 4.5);
    slow[0].speed = 0.5;
    hdt_sim_case_run(c);
    arrives(c, 0, 3.5);
    c->setup.slow_links = &slow[1];
    hdt_sim_case_run(c);
    arrives(c, 0, 250.0 / 80);
    /* Both: 80 by 1, 80 more by 3 at 40 a second, 90 at 80. */
    c->setup.slow_links = slow;
    c->setup.n_slow_links = 2;
    hdt_sim_case_run(c);
    arrives(c, 0, 3 + 90.0 / 80);
    hdt_sim_case_free(c);
}

/* An outage under two frames that share: each has 50 by 1 of its 100, and the other 50 by 4. */
Test(sim_net, an_outage_holds_all_frames_of_a_link)
{
    struct hdt_sim_slow slow = {0, 1, 3, 0};
    struct sim_case *c = hdt_sim_case_new(6);
    int link = hdt_sim_case_link(c, 100);

    pair(c, 0, 0, 100, 1, &link);
    pair(c, 1, 0, 100, 1, &link);
    pair(c, 2, 2, 10, 1, &link); /* comes during the outage: a third from 3 on, over at 3.3 */
    c->setup.slow_links = &slow;
    c->setup.n_slow_links = 1;
    hdt_sim_case_run(c);
    arrives(c, 2, 3.3);
    arrives(c, 0, 4.1);
    arrives(c, 1, 4.1);
    hdt_sim_case_free(c);
}
