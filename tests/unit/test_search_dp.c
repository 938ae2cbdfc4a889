/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* The search over cuts on numbers alone, against brute force over all orders and all cuts. */
#include "src/plan/search_dp.h"
#include "tests/support/rng.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static double rng_real(double max)
{
    return max * (double)(1 + rng(1000)) / 1000.0;
}

struct numbers {
    double stage_s[5]; /* of any range */
    double unit_s[5][12];
    double memory[5];
};

static double numbers_stage_s(const void *user, int worker, int64_t begin, int64_t end)
{
    const struct numbers *n = user;
    double sum = n->stage_s[worker];

    for (int64_t u = begin; u < end; u++) {
        sum += n->unit_s[worker][u];
    }
    return sum;
}

static bool numbers_fit(const void *user, int worker, int64_t begin, int64_t end, int n_after)
{
    const struct numbers *n = user;

    return (double)(end - begin) * (1 + 0.2 * n_after) <= n->memory[worker];
}

/* Units are alike but the first and the last, as of a model, or not. */
static void worker_random(struct numbers *n, int worker)
{
    const bool alike = rng(2) == 0;
    const double unit_s = rng_real(1 + worker);

    n->stage_s[worker] = rng(2) ? rng_real(0.5) : 0;
    n->memory[worker] = rng(3) ? 100 : rng_real(8);
    for (int u = 0; u < 12; u++) {
        n->unit_s[worker][u] = alike && u > 0 ? unit_s : rng_real(1 + worker);
    }
}

static void problem_random(struct hdt_search_problem *p, struct numbers *n)
{
    memset(p, 0, sizeof(*p));
    p->n_workers = 1 + (int)rng(5);
    p->n_units = 1 + (int64_t)rng(9);
    p->n_mb = 1 + (int64_t)rng(16);
    p->min_stages = 1 + (int64_t)rng(2);
    p->max_stages = p->min_stages + (int64_t)rng(4);
    p->stage_s = numbers_stage_s;
    p->stage_fits = numbers_fit;
    p->user = n;
    for (int i = 0; i < p->n_workers; i++) {
        worker_random(n, i);
        for (int j = 0; j < p->n_workers; j++) {
            bool codec = rng(2);

            p->edges[i][j] = (struct hdt_search_edge){.ok = i != j && rng(8) != 0,
                                                      .service_s = rng_real(2),
                                                      .sum_s = rng_real(4),
                                                      .src_s = codec ? rng_real(0.5) : 0,
                                                      .dst_s = codec ? rng_real(0.5) : 0};
        }
    }
}

/* All cuts of the order given by `cut->worker`: counts through the first units of its stages. */
static double brute_cuts(const struct hdt_search_problem *p, struct hdt_search_cut *cut)
{
    double best = INFINITY;

    for (uint64_t bits = 0; bits < UINT64_C(1) << (p->n_units - 1); bits++) {
        int n = 1;

        if (__builtin_popcountll(bits) != cut->n_stages - 1) {
            continue;
        }
        cut->begin[0] = 0;
        for (int64_t u = 1; u < p->n_units; u++) {
            if (bits & UINT64_C(1) << (u - 1)) {
                cut->begin[n++] = u;
            }
        }
        best = fmin(best, hdt_search_objective(p, cut));
    }
    return best;
}

/* All sequences of distinct workers, as numbers in base n_workers. */
static double brute_force(const struct hdt_search_problem *p)
{
    double best = INFINITY;

    for (int k = (int)p->min_stages; k <= p->max_stages && k <= p->n_workers; k++) {
        for (int code = 0; code < pow(p->n_workers, k); code++) {
            struct hdt_search_cut cut = {.n_stages = k};
            unsigned used = 0;

            for (int i = 0, rest = code; i < k; i++, rest /= p->n_workers) {
                cut.worker[i] = rest % p->n_workers;
                used |= 1u << cut.worker[i];
            }
            if (__builtin_popcount(used) == k && k <= p->n_units) {
                best = fmin(best, brute_cuts(p, &cut));
            }
        }
    }
    return best;
}

Test(search_dp, dynamic_program_finds_what_brute_force_finds)
{
    const unsigned long long seed = 0x5eed5;

    rng_state = seed;
    for (int round = 0; round < 300; round++) {
        struct hdt_search_problem p;
        struct numbers n;
        struct hdt_search_cut cuts[4];
        double expected;
        size_t found;

        problem_random(&p, &n);
        expected = brute_force(&p);
        found = hdt_search_dp(&p, NULL, cuts, 4);
        if (isinf(expected)) {
            cr_expect_eq(found, 0, "seed %llu round %d", seed, round);
            continue;
        }
        cr_assert_gt(found, 0, "seed %llu round %d", seed, round);
        cr_expect_float_eq(cuts[0].objective_s, expected, 1e-9 * expected,
                           "seed %llu round %d: %.9f, brute force %.9f", seed, round,
                           cuts[0].objective_s, expected);
        cr_expect_float_eq(hdt_search_objective(&p, &cuts[0]), cuts[0].objective_s, 1e-9 * expected,
                           "seed %llu round %d", seed, round);
    }
}

/* The cuts are what they say they are, best first, no two of one sequence of workers. */
static void expect_cuts(const struct hdt_search_problem *p, const struct hdt_search_cut *cuts,
                        size_t n, int round)
{
    for (size_t i = 0; i < n; i++) {
        cr_expect_float_eq(hdt_search_objective(p, &cuts[i]), cuts[i].objective_s, 1e-9,
                           "round %d cut %zu", round, i);
        cr_expect(i == 0 || cuts[i - 1].objective_s <= cuts[i].objective_s, "round %d", round);
        for (size_t j = 0; j < i; j++) {
            cr_expect(cuts[i].n_stages != cuts[j].n_stages ||
                          memcmp(cuts[i].worker, cuts[j].worker,
                                 (size_t)cuts[i].n_stages * sizeof(cuts[i].worker[0])) != 0,
                      "round %d cuts %zu and %zu", round, j, i);
        }
    }
}

static bool same_cuts(const struct hdt_search_cut *a, size_t n_a, const struct hdt_search_cut *b,
                      size_t n_b)
{
    bool same = n_a == n_b;

    for (size_t i = 0; i < n_a && same; i++) {
        same = a[i].objective_s == b[i].objective_s && a[i].n_stages == b[i].n_stages;
    }
    return same;
}

/* However few tries it is given: the cuts are those of a search that is not given up, or there is
 * none less and none worse than when it is given up at once. */
Test(search_dp, a_search_that_is_given_up_keeps_what_it_found)
{
    rng_state = 0x5eed7;
    for (int round = 0; round < 400; round++) {
        struct hdt_search_cut least[4], whole[4], cuts[4];
        struct hdt_search_problem p;
        struct numbers n;
        size_t n_least, n_whole, n_cuts;

        problem_random(&p, &n);
        n_whole = hdt_search_dp(&p, NULL, whole, 4);
        p.n_tried_max = 1;
        n_least = hdt_search_dp(&p, NULL, least, 4);
        cr_expect_eq(n_least > 0, n_whole > 0, "round %d", round);
        expect_cuts(&p, least, n_least, round);
        for (p.n_tried_max = 10; p.n_tried_max < 2000; p.n_tried_max *= 2) {
            n_cuts = hdt_search_dp(&p, NULL, cuts, 4);
            expect_cuts(&p, cuts, n_cuts, round);
            if (same_cuts(cuts, n_cuts, whole, n_whole)) {
                continue;
            }
            cr_expect_geq(n_cuts, n_least, "round %d, %ld tries", round, (long)p.n_tried_max);
            for (size_t i = 0; i < n_least && i < n_cuts; i++) {
                cr_expect(cuts[i].objective_s <= least[i].objective_s + 1e-9,
                          "round %d, %ld tries, cut %zu", round, (long)p.n_tried_max, i);
            }
        }
    }
}

/* What was searched is not searched again, however it is asked; something else is. */
Test(search_dp, the_same_problem_is_searched_once)
{
    struct hdt_search_memo *memo = hdt_search_memo_new();
    struct hdt_search_cut cuts[4], again[4];
    struct hdt_search_problem p, copy;
    struct numbers n, same;
    int64_t n_tried;
    size_t found;

    rng_state = 0x5eed6;
    do {
        problem_random(&p, &n);
        found = hdt_search_dp(&p, NULL, cuts, 4);
    } while (p.n_workers < 4 || found < 4);
    cr_assert_eq(hdt_search_dp(&p, memo, cuts, 4), found);
    n_tried = hdt_search_memo_n_tried(memo);
    cr_expect_gt(n_tried, 0);
    same = n;
    copy = p;
    copy.user = &same;
    cr_assert_eq(hdt_search_dp(&copy, memo, again, 4), found);
    cr_expect_eq(hdt_search_memo_n_tried(memo), n_tried);
    for (size_t i = 0; i < found; i++) {
        cr_expect_eq(again[i].objective_s, cuts[i].objective_s);
        cr_expect_eq(again[i].n_stages, cuts[i].n_stages);
    }
    same.unit_s[0][0] *= 2;
    hdt_search_dp(&copy, memo, again, 4);
    cr_expect_gt(hdt_search_memo_n_tried(memo), n_tried);
    hdt_search_memo_free(memo);
}
