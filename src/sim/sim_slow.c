/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* Scenarios: ranks and links at a part of their speed for a while, and jitter. */
#include "src/base/buf.h"
#include "src/sim/sim_impl.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#define TWO_PI 6.283185307179586

static bool slow_holds(const struct hdt_sim_slow *slow, double t)
{
    return t >= slow->from_s && t < slow->to_s;
}

/* ---- links ---- */

static int time_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void changes_init(struct sim *sim)
{
    const struct hdt_sim_setup *setup = sim->setup;

    sim->changes_s = hdt_calloc(2 * setup->n_slow_links + 1, sizeof(double));
    for (size_t i = 0; i < setup->n_slow_links; i++) {
        sim->changes_s[sim->n_changes++] = setup->slow_links[i].from_s;
        if (setup->slow_links[i].to_s < DBL_MAX) {
            sim->changes_s[sim->n_changes++] = setup->slow_links[i].to_s;
        }
    }
    qsort(sim->changes_s, sim->n_changes, sizeof(double), time_compare);
}

double hdt_sim_slow_link(const struct sim *sim, int link, double t)
{
    double speed = 1;

    for (size_t i = 0; i < sim->setup->n_slow_links; i++) {
        const struct hdt_sim_slow *slow = &sim->setup->slow_links[i];

        if (slow->idx == link && slow_holds(slow, t)) {
            speed *= slow->speed;
        }
    }
    return speed;
}

/* ---- ranks ---- */

/* slow_ranks by rank. */
static void ranks_init(struct sim *sim)
{
    const struct hdt_sim_setup *setup = sim->setup;
    size_t *next;

    sim->slow_first = hdt_calloc(setup->n_ranks + 1, sizeof(size_t));
    sim->slow_order = hdt_calloc(setup->n_slow_ranks + 1, sizeof(size_t));
    for (size_t i = 0; i < setup->n_slow_ranks; i++) {
        sim->slow_first[setup->slow_ranks[i].idx + 1]++;
    }
    for (size_t r = 0; r < setup->n_ranks; r++) {
        sim->slow_first[r + 1] += sim->slow_first[r];
    }
    next = hdt_calloc(setup->n_ranks + 1, sizeof(size_t));
    for (size_t i = 0; i < setup->n_slow_ranks; i++) {
        int rank = setup->slow_ranks[i].idx;

        sim->slow_order[sim->slow_first[rank] + next[rank]++] = i;
    }
    free(next);
}

/* Speed of a rank at t, and until when it lasts. */
static double rank_speed(const struct sim *sim, int rank, double t, double *until_s)
{
    double speed = 1;

    *until_s = DBL_MAX;
    for (size_t i = sim->slow_first[rank]; i < sim->slow_first[rank + 1]; i++) {
        const struct hdt_sim_slow *slow = &sim->setup->slow_ranks[sim->slow_order[i]];

        if (slow_holds(slow, t)) {
            speed *= slow->speed;
            *until_s = slow->to_s < *until_s ? slow->to_s : *until_s;
        } else if (slow->from_s > t && slow->from_s < *until_s) {
            *until_s = slow->from_s;
        }
    }
    return speed;
}

double hdt_sim_slow_end(const struct sim *sim, int rank, double t, double dur_s)
{
    double left_s = dur_s, until_s, speed;

    if (sim->slow_first[rank] == sim->slow_first[rank + 1]) {
        return t + dur_s;
    }
    for (;;) {
        speed = rank_speed(sim, rank, t, &until_s);
        if (speed > 0 && t + left_s / speed <= until_s) {
            return t + left_s / speed;
        }
        left_s -= (until_s - t) * speed;
        t = until_s;
    }
}

/* ---- jitter ---- */

/* SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): each number by its place, in any order. */
static uint64_t mix(uint64_t z)
{
    z += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* In (0, 1]. */
static double unit(uint64_t bits)
{
    return ((double)(bits >> 11) + 1) * 0x1p-53;
}

double hdt_sim_slow_jitter(const struct sim *sim, int rank, int64_t task)
{
    double sigma = sim->setup->jitter;
    uint64_t bits;
    double normal;

    if (sigma <= 0) {
        return 1;
    }
    bits = mix(mix(mix(sim->setup->seed) ^ (uint64_t)rank) ^ (uint64_t)task);
    normal = sqrt(-2 * log(unit(bits))) * cos(TWO_PI * unit(mix(bits)));
    return exp(sigma * normal - sigma * sigma / 2);
}

void hdt_sim_slow_init(struct sim *sim)
{
    changes_init(sim);
    ranks_init(sim);
}

void hdt_sim_slow_release(struct sim *sim)
{
    free(sim->changes_s);
    free(sim->slow_first);
    free(sim->slow_order);
}
