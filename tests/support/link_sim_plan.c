/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scenario of a seed: sites, links, flows, workers, and what goes wrong when. Drawn as a whole
 * before anything runs, and so small that a run takes a tenth of a second: what breaks a protocol
 * is who comes first, not how much there is.
 */
#include "config.h"

#include "compress/codec.h"
#include "tests/support/link_sim_impl.h"

#include <stdio.h>
#include <string.h>

struct dice {
    uint64_t state;
};

static uint64_t roll(struct dice *dice, uint64_t n)
{
    dice->state += 0x9e3779b97f4a7c15ull;
    return hdt_sim_mix(dice->state) % n;
}

static bool roll_chance(struct dice *dice, unsigned per_mille)
{
    return roll(dice, 1000) < per_mille;
}

/* [from, to] */
static uint64_t roll_between(struct dice *dice, uint64_t from, uint64_t to)
{
    return from + roll(dice, to - from + 1);
}

/* ---- who is there ---- */

static void draw_links(struct sim_plan *plan, struct dice *dice, unsigned faults)
{
    static const int64_t delays_us[] = {100, 1000, 10000, 30000, 100000};
    const int64_t delay_us = delays_us[roll(dice, 5)];
    const double rate = (double)roll_between(dice, 8, 300);
    unsigned i, k;

    for (i = 0; i < plan->n_sites; i++) {
        for (k = 0; k < plan->n_sites; k++) {
            struct sim_link_plan *link = &plan->links[i][k];

            link->delay_us = delay_us + (int64_t)roll(dice, (uint64_t)delay_us);
            link->jitter_us = (int64_t)roll(dice, (uint64_t)delay_us / 4 + 20);
            link->bytes_per_us = rate * (double)roll_between(dice, 5, 20) / 20.0;
            if ((faults & HDT_SIM_LOSS) != 0) {
                link->loss_per_10000 = (unsigned)roll_between(dice, 20, 400);
            }
        }
    }
}

static void draw_dials(struct sim_plan *plan, struct dice *dice, unsigned faults)
{
    const bool at_once = (faults & HDT_SIM_DIALS) != 0;
    unsigned i, k;

    for (i = 0; i < plan->n_sites; i++) {
        for (k = i + 1; k < plan->n_sites; k++) {
            const bool both = at_once || roll_chance(dice, 300);
            const bool first = roll_chance(dice, 500);

            plan->dials[i][k] = both || first;
            plan->dials[k][i] = both || !first;
            plan->dial_us[i][k] = at_once ? 0 : (int64_t)roll(dice, 200 * SIM_MS);
            plan->dial_us[k][i] = at_once ? 0 : (int64_t)roll(dice, 200 * SIM_MS);
        }
    }
}

static void draw_site(struct sim_site_plan *site, struct dice *dice)
{
    static const uint64_t chunks[] = {4096, 8192, 16384, 65536, 65536, 262144, 1 << 20};
    static const unsigned bursts[] = {1, 2, 8, 64};

    site->n_workers = 1 + roll_chance(dice, 400);
    site->n_io = 1 + roll_chance(dice, 500);
    site->n_codecs = 1 + (unsigned)roll(dice, SIM_CODECS_MAX);
    site->n_streams = roll_chance(dice, 150) ? 1 : (unsigned)roll_between(dice, 2, 8);
    site->chunk_bytes[0] = chunks[roll(dice, 7)];
    site->chunk_bytes[1] = chunks[roll(dice, 7)];
    site->rate_bits_per_s = roll_chance(dice, 100) ? roll_between(dice, 40, 400) * 1000000 : 0;
    site->eager_send = roll_chance(dice, 500);
    site->eager_recv = roll_chance(dice, 500);
    site->burst = bursts[roll(dice, 4)];
    site->knob_ms = roll_chance(dice, 150) ? 12000 : HDT_DEADLINES_KNOB_MIN_MS;
    site->one_for_bursts = roll_chance(dice, 500);
    if (site->one_for_bursts && site->n_streams > 4) {
        site->n_streams -= 4;
    }
}

static void draw_worker(struct sim_worker_plan *worker, struct dice *dice, unsigned faults)
{
    worker->over_tls = roll_chance(dice, 350);
    worker->read_max = 1u << 20;
    worker->turn_us = (int64_t)roll_between(dice, 3, 60);
    worker->think_us = (int64_t)roll(dice, 500);
    if ((faults & HDT_SIM_SLOW) != 0 && roll_chance(dice, 700)) {
        worker->read_max = (unsigned)roll_between(dice, 200, 2000);
        worker->turn_us = (int64_t)roll_between(dice, 50, 300);
        worker->think_us = (int64_t)roll(dice, 40 * SIM_MS);
    }
}

/* ---- flows ---- */

static uint32_t draw_frame_cap(struct dice *dice, unsigned *n_large)
{
    switch (roll(dice, 10)) {
    case 0:
        return 1;
    case 1:
        return (uint32_t)roll_between(dice, 2, 100);
    case 2:
        return (uint32_t)roll_between(dice, 4095, 4097);
    case 3:
        return (uint32_t)roll_between(dice, 8191, 8193);
    case 4:
    case 5:
        return (uint32_t)roll_between(dice, 10000, 70000);
    case 6:
    case 7:
        return (uint32_t)roll_between(dice, 70000, 400000);
    default:
        if ((*n_large)++ == 0) {
            return (uint32_t)roll_between(dice, 1000000, 3 << 20);
        }
        return (uint32_t)roll_between(dice, 1000, 50000);
    }
}

static void draw_flow(struct sim_plan *plan, unsigned idx, struct dice *dice, uint64_t bytes,
                      unsigned *n_large)
{
    static const enum hdt_dtype dtypes[] = {HDT_DTYPE_BF16, HDT_DTYPE_BF16, HDT_DTYPE_F32,
                                            HDT_DTYPE_NONE};
    struct sim_flow_plan *flow = &plan->flows[idx];

    flow->src_site = idx < 2 ? idx : (unsigned)roll(dice, plan->n_sites);
    flow->dst_site = idx < 2 ? 1 - idx : (unsigned)roll(dice, plan->n_sites);
    flow->src_worker = (unsigned)roll(dice, plan->sites[flow->src_site].n_workers);
    flow->dst_worker = (unsigned)roll(dice, plan->sites[flow->dst_site].n_workers);
    flow->depth = (uint32_t)roll_between(dice, 1, 8);
    flow->frame_cap = draw_frame_cap(dice, n_large);
    if (flow->frame_cap > bytes) {
        flow->frame_cap = (uint32_t)bytes;
    }
    flow->n_frames = 3 + 2 * bytes / (flow->frame_cap + 1) / plan->n_flows;
    if (flow->n_frames > 100) {
        flow->n_frames = 100 + roll(dice, 20);
    }
    flow->prio = (enum hdt_prio)roll(dice, HDT_PRIO_COUNT);
    flow->dtype = dtypes[roll(dice, 4)];
    flow->codec = roll_chance(dice, 500) ? HDT_CODEC_LOSSLESS : HDT_CODEC_NONE;
}

/* ---- what goes wrong ---- */

/* Short, long, and longer than a session lives without a byte. */
static int64_t draw_outage_us(struct dice *dice)
{
    switch (roll(dice, 4)) {
    case 0:
        return (int64_t)roll_between(dice, 5 * SIM_MS, 300 * SIM_MS);
    case 1:
        return (int64_t)roll_between(dice, 300 * SIM_MS, 1500 * SIM_MS);
    case 2:
        return (int64_t)roll_between(dice, 1500 * SIM_MS, 5 * SIM_S);
    default:
        return (int64_t)roll_between(dice, 5 * SIM_S, 9 * SIM_S);
    }
}

static void draw_fault(struct sim_plan *plan, struct dice *dice, enum hdt_sim_fault kind)
{
    struct sim_fault_plan *fault = &plan->faults[plan->n_faults];

    if (plan->n_faults == SIM_FAULTS_MAX) {
        return;
    }
    plan->n_faults++;
    fault->kind = kind;
    fault->per_mille = (unsigned)roll(dice, 950);
    fault->after_us = (int64_t)roll(dice, roll_chance(dice, 700) ? 5 * SIM_MS : 400 * SIM_MS);
    fault->for_us = draw_outage_us(dice);
    fault->a = (unsigned)roll(dice, plan->n_sites);
    fault->b = (fault->a + 1 + (unsigned)roll(dice, plan->n_sites - 1)) % plan->n_sites;
    fault->how = (unsigned)roll(dice, 1000);
}

static void sort_faults(struct sim_plan *plan)
{
    unsigned i, k;

    for (i = 1; i < plan->n_faults; i++) {
        const struct sim_fault_plan fault = plan->faults[i];

        for (k = i; k > 0 && plan->faults[k - 1].per_mille > fault.per_mille; k--) {
            plan->faults[k] = plan->faults[k - 1];
        }
        plan->faults[k] = fault;
    }
}

static void draw_faults(struct sim_plan *plan, struct dice *dice, unsigned faults)
{
    const unsigned alone = (faults & (faults - 1)) == 0;
    unsigned bit, n;

    for (bit = 0; bit < HDT_SIM_FAULTS; bit++) {
        if ((faults & 1u << bit) == 0) {
            continue;
        }
        n = 1 + (unsigned)roll(dice, alone ? 6 : 3);
        if ((1u << bit & (HDT_SIM_RESET | HDT_SIM_LOSS | HDT_SIM_TUNE)) != 0) {
            n *= 3;
        }
        while (n-- > 0) {
            draw_fault(plan, dice, (enum hdt_sim_fault)(1u << bit));
        }
    }
    sort_faults(plan);
}

static void draw_records(struct sim_plan *plan, struct dice *dice, unsigned faults)
{
    static const unsigned segments[] = {1448, 8192, 32768, 65536};

    plan->segment_max = segments[roll(dice, 4)];
    plan->io_max = roll_chance(dice, 200) ? (unsigned)roll_between(dice, 1000, 65536) : 0;
    if ((faults & HDT_SIM_FLIP) != 0) {
        plan->flip_per_1000 = (unsigned)roll_between(dice, 5, 100);
    }
    if ((faults & HDT_SIM_TWICE) != 0) {
        plan->twice_per_1000 = (unsigned)roll_between(dice, 50, 500);
    }
    if ((faults & HDT_SIM_RESET) != 0) {
        plan->cut_record_per_1000 = (unsigned)roll(dice, 60);
    }
    if ((faults & HDT_SIM_SKEW) != 0) {
        plan->skew = (unsigned)roll_between(dice, 3, 20);
    }
    plan->crowd_per_1000 =
        (faults & HDT_SIM_CROWD) != 0 ? (unsigned)roll_between(dice, 20, 200) : 2;
}

/* Bytes of all flows together. A socket that moves a few bytes at a time gets fewer. */
static uint64_t draw_bytes(struct sim_plan *plan, struct dice *dice, unsigned faults)
{
    if ((faults & HDT_SIM_SLOW) != 0 && roll_chance(dice, 500)) {
        plan->io_max = roll_chance(dice, 300) ? 1 : (unsigned)roll_between(dice, 2, 200);
        if ((faults & HDT_SIM_CROWD) != 0) {
            plan->io_max += 400; /* or a hello alone takes longer than it may */
        }
        return plan->io_max < 20 ? 30000 : 150000;
    }
    return roll_chance(dice, 50) ? 8 << 20 : roll_between(dice, 200000, 2 << 20);
}

/* Up to four of them. */
static unsigned draw_which(struct dice *dice)
{
    unsigned faults = 0, n = (unsigned)roll(dice, 5);

    while (n-- > 0) {
        faults |= 1u << roll(dice, HDT_SIM_FAULTS);
    }
    return faults;
}

void hdt_sim_plan_draw(struct sim_plan *plan, uint64_t seed, unsigned *faults)
{
    struct dice dice = {.state = hdt_sim_mix(seed ^ 0x5eed)};
    unsigned i, k, n_large = 0;
    uint64_t bytes;

    memset(plan, 0, sizeof(*plan));
    if ((*faults & HDT_SIM_DRAWN) != 0) {
        *faults = draw_which(&dice);
    }
    plan->n_sites = 2 + roll_chance(&dice, 300);
    draw_links(plan, &dice, *faults);
    draw_dials(plan, &dice, *faults);
    for (i = 0; i < plan->n_sites; i++) {
        draw_site(&plan->sites[i], &dice);
        if ((*faults & HDT_SIM_TUNE) != 0) {
            plan->sites[i].n_streams = 0; /* not configured */
        }
        for (k = 0; k < plan->sites[i].n_workers; k++) {
            draw_worker(&plan->workers[i][k], &dice, *faults);
        }
    }
    draw_records(plan, &dice, *faults);
    bytes = draw_bytes(plan, &dice, *faults);
    plan->n_flows = roll_chance(&dice, 200) ? 1 : (unsigned)roll_between(&dice, 2, SIM_FLOWS_MAX);
    for (i = 0; i < plan->n_flows; i++) {
        draw_flow(plan, i, &dice, bytes, &n_large);
    }
    draw_faults(plan, &dice, *faults);
    plan->messages = roll_chance(&dice, 700);
    plan->probe_us = roll_chance(&dice, 400) ? (int64_t)roll_between(&dice, 1, SIM_S) : 0;
}

/* ---- show ---- */

static void print_sites(const struct sim_plan *plan)
{
    unsigned i, k;

    for (i = 0; i < plan->n_sites; i++) {
        const struct sim_site_plan *site = &plan->sites[i];

        fprintf(stderr,
                "site-%c: %u I/O threads (burst %u%s%s), %u codec threads, %u streams, chunks of "
                "%llu or %llu, cap %llu Mbit/s, knob %lld ms\n",
                (char)('a' + (int)i), site->n_io, site->burst, site->eager_send ? ", sends" : "",
                site->eager_recv ? ", receives at once" : "", site->n_codecs, site->n_streams,
                (unsigned long long)site->chunk_bytes[0], (unsigned long long)site->chunk_bytes[1],
                (unsigned long long)site->rate_bits_per_s / 1000000, (long long)site->knob_ms);
        for (k = 0; k < site->n_workers; k++) {
            const struct sim_worker_plan *worker = &plan->workers[i][k];

            fprintf(stderr, "  w%u: %s, %u bytes each %lld us, thinks for %lld us\n", k,
                    worker->over_tls ? "tls" : "unix", worker->read_max, (long long)worker->turn_us,
                    (long long)worker->think_us);
        }
        for (k = 0; k < plan->n_sites; k++) {
            const struct sim_link_plan *link = &plan->links[i][k];

            if (k != i) {
                fprintf(stderr, "  to site-%c: %.1f MB/s, %lld + %lld us, loss %.2f %%%s\n",
                        (char)('a' + (int)k), link->bytes_per_us, (long long)link->delay_us,
                        (long long)link->jitter_us, (double)link->loss_per_10000 / 100.0,
                        plan->dials[i][k] ? ", dialled" : "");
            }
        }
    }
}

static const char *fault_name(enum hdt_sim_fault kind)
{
    unsigned i = 0;

    while ((unsigned)kind >> i != 1) {
        i++;
    }
    return hdt_sim_fault_name(i);
}

void hdt_sim_plan_print(const struct sim_plan *plan)
{
    unsigned i;

    print_sites(plan);
    for (i = 0; i < plan->n_flows; i++) {
        const struct sim_flow_plan *flow = &plan->flows[i];

        fprintf(
            stderr, "flow %u: site-%c/w%u to site-%c/w%u, %llu frames of up to %u, depth %u%s\n", i,
            (char)('a' + (int)flow->src_site), flow->src_worker, (char)('a' + (int)flow->dst_site),
            flow->dst_worker, (unsigned long long)flow->n_frames, flow->frame_cap, flow->depth,
            flow->codec != 0 ? ", lossless" : "");
    }
    fprintf(stderr,
            "segments of %u, %u bytes at once, skew %u, of 1000 records %u flipped, %u twice, %u "
            "cut\n",
            plan->segment_max, plan->io_max, plan->skew, plan->flip_per_1000, plan->twice_per_1000,
            plan->cut_record_per_1000);
    for (i = 0; i < plan->n_faults; i++) {
        const struct sim_fault_plan *fault = &plan->faults[i];

        fprintf(stderr, "at %u/1000 + %.3f s: %s, %c %c, for %.3f s, %u\n", fault->per_mille,
                (double)fault->after_us / 1e6, fault_name(fault->kind), (char)('a' + (int)fault->a),
                (char)('a' + (int)fault->b), (double)fault->for_us / 1e6, fault->how);
    }
}
