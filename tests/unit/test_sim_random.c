/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * What holds for any setup, over random ones: no task begins before its inputs are there, a rank
 * does one thing at a time, no link is above its rate, a rank's times add up, all bytes are sent;
 * a run that is repeated has the same bits, and one with other numbers the same times.
 *
 * A random setup is built from one total order of sends and receives, so that it has an end: each
 * receive stands behind its send in that order, and each rank's list is a part of it.
 */
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "tests/support/sim_case.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define N_RANKS 7
#define N_LINKS 5
#define N_FLOWS 12
#define N_MOVES 160

static uint64_t state;

static uint64_t random_bits(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static int random_below(int n)
{
    return (int)(random_bits() % (uint64_t)n);
}

static double random_real(double low, double high)
{
    return low + (high - low) * (double)(random_bits() >> 11) * 0x1p-53;
}

static uint64_t seed_take(void)
{
    const char *text = getenv("HDT_TEST_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 10) : (uint64_t)hdt_clock_wall_us();

    printf("HDT_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

/* `name` gives a rank's number. */
static void flows_make(struct sim_case *c, const int *name)
{
    for (int i = 0; i < N_LINKS; i++) {
        hdt_sim_case_link(c, random_real(5, 20));
    }
    c->setup.n_queues = 1;
    for (int i = 0; i < N_FLOWS; i++) {
        int links[3], n = 0, src = random_below(N_RANKS);
        int dst = (src + 1 + random_below(N_RANKS - 1)) % N_RANKS;
        struct hdt_sim_flow *f;

        for (int l = 0; l < N_LINKS && n < 3; l++) {
            if (random_below(3) == 0) {
                links[n++] = l;
            }
        }
        f = hdt_sim_case_flow(c, name[src], name[dst], random_real(0, 2), (size_t)n, links);
        f->queue = random_below(4) == 0 ? 0 : -1;
        f->extra_s = random_real(0, 1);
        f->pace_s = random_below(3) == 0 ? random_real(0, 3) : 0;
    }
}

/* Sends and their receives at random places behind them, with work between. No two ranks begin at
 * one time: who is first at a queue would hang on their numbers. */
static void lists_make(struct sim_case *c)
{
    int under_way[N_FLOWS] = {0}, n_under_way = 0;

    for (int f = 0; f < N_FLOWS; f++) {
        hdt_sim_case_compute(c, c->flows[f].src, random_real(0, 3));
    }
    for (int i = 0; i < N_MOVES || n_under_way > 0; i++) {
        int flow = random_below(N_FLOWS);
        bool send = i < N_MOVES && (under_way[flow] == 0 || random_below(2) == 0);
        struct hdt_sim_task *task;

        if (!send && under_way[flow] == 0) {
            continue;
        }
        if (random_below(2) == 0) {
            int rank = send ? c->flows[flow].src : c->flows[flow].dst;

            task = hdt_sim_case_compute(c, rank, random_real(0, 3));
            task->mem_begin = random_below(100);
            task->mem_end = -task->mem_begin;
        }
        task = send ? hdt_sim_case_send(c, c->flows[flow].src, flow, random_real(1, 30))
                    : hdt_sim_case_recv(c, c->flows[flow].dst, flow);
        task->dur_s = random_below(2) ? random_real(0, 0.5) : 0;
        task->flags = random_below(4) == 0           ? HDT_SIM_BESIDE
                      : send && random_below(4) == 0 ? HDT_SIM_SYNC
                                                     : 0;
        under_way[flow] += send ? 1 : -1;
        n_under_way += send ? 1 : -1;
    }
}

/* Three ranks beside somebody who works for some frames. */
static void host_make(struct sim_case *c, const int *name)
{
    static const struct hdt_sim_host host = {0, 3};
    static const double shares[3] = {1, 0.5, 0.3};
    static int ranks[3];

    for (int i = 0; i < 3; i++) {
        ranks[i] = name[i];
    }
    c->setup.hosts = &host;
    c->setup.n_hosts = 1;
    c->setup.host_ranks = ranks;
    c->setup.host_shares = shares;
    for (int i = 0; i < N_FLOWS; i++) {
        c->flows[i].src_host = random_below(3) == 0 ? 0 : -1;
        c->flows[i].dst_host = random_below(3) == 0 ? 0 : -1;
        c->flows[i].src_cpu_s = random_real(0, 0.5);
        c->flows[i].dst_cpu_s = random_real(0, 0.5);
    }
}

static struct sim_case *case_make(uint64_t seed, const int *name)
{
    static struct hdt_sim_slow slow_links[2], slow_ranks[2];
    struct sim_case *c = hdt_sim_case_new(N_RANKS);

    state = seed | 1;
    flows_make(c, name);
    lists_make(c);
    host_make(c, name);
    for (int i = 0; i < 2; i++) {
        slow_links[i] = (struct hdt_sim_slow){random_below(N_LINKS), random_real(0, 20),
                                              random_real(21, 60), i == 0 ? 0 : 0.3};
        slow_ranks[i] = (struct hdt_sim_slow){name[random_below(N_RANKS)], random_real(0, 20),
                                              random_real(21, 60), 0.5};
    }
    c->setup.slow_links = slow_links;
    c->setup.slow_ranks = slow_ranks;
    c->setup.n_slow_links = c->setup.n_slow_ranks = 2;
    return c;
}

static const int plain[N_RANKS] = {0, 1, 2, 3, 4, 5, 6};

/* ---- properties ---- */

static void spans_check(const struct sim_case *c)
{
    double free_s[N_RANKS] = {0};

    for (size_t i = 0; i < c->result.n_spans; i++) {
        const struct hdt_sim_span *s = &c->result.spans[i];

        cr_assert_geq(s->start_s, free_s[s->rank], "rank %d does two things at once", s->rank);
        cr_assert_geq(s->end_s, s->start_s);
        free_s[s->rank] = s->end_s;
        cr_assert_lt(s->cause, (int64_t)i, "a span waits for a later one");
        if (s->cause >= 0) {
            cr_assert_leq(c->result.spans[s->cause].start_s, s->start_s);
        }
        if (s->kind == HDT_SIM_RECV) {
            const struct hdt_sim_flow *f = &c->flows[s->peer];

            cr_assert_leq(s->arrive_s, s->start_s + 1e-12, "taken before it came");
            cr_assert_leq(s->sent_s, s->left_s + 1e-12);
            cr_assert_leq(s->left_s + f->latency_s + f->extra_s, s->arrive_s + 1e-9);
        }
    }
    cr_assert_eq((int64_t)c->result.n_spans, c->result.n_tasks);
}

static void sums_check(const struct sim_case *c)
{
    double bytes[N_LINKS] = {0};

    for (int r = 0; r < N_RANKS; r++) {
        const struct hdt_sim_rank_result *rank = &c->result.ranks[r];
        double sum = 0, busy_s = 0;

        for (int u = 0; u < HDT_SIM_USE_COUNT; u++) {
            cr_expect_geq(rank->use_s[u], 0);
            sum += rank->use_s[u];
        }
        cr_expect_float_eq(sum, rank->window_s, 1e-6, "rank %d: %g of %g s", r, sum,
                           rank->window_s);
        cr_expect_eq(rank->mem_last, 0);
        for (size_t i = 0; i < c->lists.ranks[r].n_tasks; i++) {
            const struct hdt_sim_task *t = &c->lists.ranks[r].tasks[i];

            busy_s += t->kind == HDT_SIM_COMPUTE ? t->dur_s : 0;
            for (size_t k = 0; t->kind == HDT_SIM_SEND && k < c->flows[t->peer].n_route; k++) {
                bytes[c->routes[c->flows[t->peer].route + k]] += t->bytes;
            }
        }
        cr_expect_geq(rank->use_s[HDT_SIM_BUSY], busy_s - 1e-9, "only slower");
    }
    for (int l = 0; l < N_LINKS; l++) {
        cr_expect_float_eq(c->result.links[l].bytes, bytes[l], 1e-6);
        cr_expect_leq(c->result.links[l].peak, 1 + 1e-9, "link %d is above its rate", l);
        cr_expect_leq(bytes[l], c->links[l].rate_bytes_per_s * c->result.makespan_s + 1e-6);
    }
}

Test(sim_random, holds_for_any_setup)
{
    uint64_t seed = seed_take();

    for (int round = 0; round < 200; round++) {
        struct sim_case *c = case_make(seed + (uint64_t)round * 7919, plain);

        hdt_sim_case_run(c);
        spans_check(c);
        sums_check(c);
        hdt_sim_case_free(c);
    }
}

/* A send that waits until its bytes have left, and a host that takes from the time before: a setup
 * in which the rank began its next task before this one was shown to end. */
Test(sim_random, a_hold_falls_into_the_wait_that_a_task_ends_with)
{
    struct sim_case *c = case_make(UINT64_C(1795952762050940) + 130 * 7919, plain);

    hdt_sim_case_run(c);
    spans_check(c);
    sums_check(c);
    hdt_sim_case_free(c);
}

Test(sim_random, a_run_repeated_has_the_same_bits)
{
    uint64_t seed = seed_take();

    for (int round = 0; round < 20; round++) {
        struct sim_case *a = case_make(seed + (uint64_t)round * 104729, plain);
        struct hdt_sim_span *spans;

        a->setup.jitter = 0.3;
        a->setup.seed = seed;
        hdt_sim_case_run(a);
        spans = a->result.spans;
        a->result.spans = NULL;
        hdt_sim_case_run(a);
        for (size_t i = 0; i < a->result.n_spans; i++) {
            cr_assert_eq(spans[i].rank, a->result.spans[i].rank);
            cr_assert_eq(spans[i].start_s, a->result.spans[i].start_s);
            cr_assert_eq(spans[i].end_s, a->result.spans[i].end_s);
        }
        free(spans);
        hdt_sim_case_free(a);
    }
}

/* Without a host, or without queues: a host lets go of two ranks at one time, and who of them is
 * first at a queue hangs on their numbers. */
static void case_run_untied(struct sim_case *c, bool has_host)
{
    for (int i = 0; i < N_FLOWS; i++) {
        if (has_host) {
            c->flows[i].queue = -1;
        } else {
            c->flows[i].src_host = c->flows[i].dst_host = -1;
        }
    }
    hdt_sim_case_run(c);
}

/* Other numbers for the same ranks: rates are added up in another order, so that times may differ
 * in the last bits. */
Test(sim_random, other_numbers_give_the_same_times)
{
    uint64_t seed = seed_take();

    for (int round = 0; round < 50; round++) {
        int name[N_RANKS];
        struct sim_case *a, *b;

        state = (seed + (uint64_t)round) | 1;
        for (int i = 0; i < N_RANKS; i++) {
            int k = random_below(i + 1);

            name[i] = name[k];
            name[k] = i;
        }
        a = case_make(seed + (uint64_t)round * 7919, plain);
        case_run_untied(a, round % 2);
        b = case_make(seed + (uint64_t)round * 7919, name);
        case_run_untied(b, round % 2);
        cr_expect_float_eq(a->result.makespan_s, b->result.makespan_s, 1e-9 * a->result.makespan_s,
                           "round %d: %.12g and %.12g s", round, a->result.makespan_s,
                           b->result.makespan_s);
        for (int i = 0; i < N_RANKS; i++) {
            cr_expect_float_eq(a->result.ranks[i].end_s, b->result.ranks[name[i]].end_s, 1e-6);
        }
        hdt_sim_case_free(a);
        hdt_sim_case_free(b);
    }
}
