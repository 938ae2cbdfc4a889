/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data plane over a simulated network: a few seeds of each class of faults and of mixtures.
 * tests/support/link_sim_run plays a thousand. A run that fails says its seed; with
 * HDT_TEST_SEED (and HDT_TEST_FAULTS, as it said) link_sim_run plays that one again.
 */
#include "config.h"

#include "tests/support/link_sim_impl.h"

#include <criterion/criterion.h>

/* The sum of what happened with the seeds from `from` on. */
static struct hdt_sim_outcome play(unsigned faults, uint64_t from, unsigned n_seeds)
{
    struct hdt_sim_outcome sum = {0}, one;
    uint64_t seed;

    for (seed = from; seed < from + n_seeds; seed++) {
        hdt_sim_run(seed, faults, &one);
        cr_assert_gt(one.n_frames, 0u);
        sum.n_frames += one.n_frames;
        sum.n_faults += one.n_faults;
        sum.sent_chunks += one.sent_chunks;
        sum.resent_chunks += one.resent_chunks;
        sum.dup_chunks += one.dup_chunks;
        sum.bad_chunks += one.bad_chunks;
        sum.n_sessions += one.n_sessions;
        sum.n_stream_losses += one.n_stream_losses;
    }
    return sum;
}

/* What does not have to happen does not. */
Test(link_sim, a_calm_network_repeats_nothing, .timeout = 60)
{
    const struct hdt_sim_outcome sum = play(0, 1, 4);

    cr_expect_eq(sum.resent_chunks, 0u);
    cr_expect_eq(sum.dup_chunks, 0u);
    cr_expect_eq(sum.bad_chunks, 0u);
}

Test(link_sim, losses_and_unlike_streams, .timeout = 60)
{
    const struct hdt_sim_outcome sum = play(HDT_SIM_LOSS | HDT_SIM_SKEW, 10, 3);

    cr_expect_eq(sum.bad_chunks, 0u);
}

Test(link_sim, resets_within_records, .timeout = 60)
{
    const struct hdt_sim_outcome sum = play(HDT_SIM_RESET, 20, 3);

    cr_expect_gt(sum.n_stream_losses, 0u);
    cr_expect_gt(sum.resent_chunks, 0u);
}

Test(link_sim, cuts_of_both_directions_and_of_one, .timeout = 60)
{
    play(HDT_SIM_CUT, 30, 2);
    play(HDT_SIM_HALF_OPEN, 32, 2);
}

Test(link_sim, connections_that_are_forgotten, .timeout = 60)
{
    const struct hdt_sim_outcome sum = play(HDT_SIM_FORGET, 40, 3);

    cr_expect_gt(sum.n_sessions, 0u);
}

Test(link_sim, gateways_that_die_and_stop, .timeout = 60)
{
    play(HDT_SIM_KILL, 50, 2);
    play(HDT_SIM_POWER, 52, 2);
    play(HDT_SIM_PAUSE, 54, 2);
}

Test(link_sim, workers_that_come_back_and_are_slow, .timeout = 60)
{
    play(HDT_SIM_WORKER, 60, 2);
    play(HDT_SIM_SLOW, 62, 2);
}

Test(link_sim, damage_is_found_and_mended, .timeout = 60)
{
    const struct hdt_sim_outcome sum = play(HDT_SIM_FLIP, 70, 3);

    cr_expect_gt(sum.bad_chunks, 0u);
    cr_expect_gt(sum.resent_chunks, 0u);
}

Test(link_sim, chunks_that_come_twice_count_once, .timeout = 60)
{
    const struct hdt_sim_outcome sum = play(HDT_SIM_TWICE, 80, 3);

    cr_expect_gt(sum.dup_chunks, 0u);
    cr_expect_eq(sum.bad_chunks, 0u);
}

Test(link_sim, epochs_dials_and_crowded_processors, .timeout = 60)
{
    play(HDT_SIM_EPOCH, 90, 2);
    play(HDT_SIM_DIALS, 92, 2);
    play(HDT_SIM_CROWD, 94, 2);
}

Test(link_sim, streams_that_come_and_go_as_they_pay, .timeout = 60)
{
    play(HDT_SIM_TUNE, 96, 4);
}

Test(link_sim, mixtures, .timeout = 60)
{
    bool is_given;
    const uint64_t seed = hdt_sim_seed(1000, &is_given);

    play(hdt_sim_faults(HDT_SIM_DRAWN), seed, is_given ? 1 : 6);
}

/* Whatever a seed does, it does again. */
Test(link_sim, a_seed_is_a_run, .timeout = 60)
{
    struct hdt_sim_outcome first, second, other;

    hdt_sim_run(7, HDT_SIM_FAULTS_ALL, &first);
    hdt_sim_run(7, HDT_SIM_FAULTS_ALL, &second);
    hdt_sim_run(8, HDT_SIM_FAULTS_ALL, &other);
    cr_expect_eq(first.digest, second.digest);
    cr_expect_eq(first.n_events, second.n_events);
    cr_expect_neq(first.digest, other.digest);
}

/* ---- what the simulation found, one by one ---- */

static void forget_when_half_is_done(struct sim_plan *plan, unsigned how)
{
    unsigned i;

    for (i = 0; i < plan->n_sites; i++) {
        plan->sites[i].n_streams = 3;
    }
    plan->n_faults = 1;
    plan->faults[0] = (struct sim_fault_plan){
        .kind = HDT_SIM_FORGET, .per_mille = 500, .a = 0, .b = 1, .how = how | 1};
}

static void forget_control(struct sim_plan *plan)
{
    forget_when_half_is_done(plan, 0);
}

static void forget_bulk(struct sim_plan *plan)
{
    forget_when_half_is_done(plan, SIM_FORGET_CONTROL);
}

/* Something in between acknowledges stream 0 and passes nothing on, while chunks pass. */
Test(link_sim, a_control_stream_that_hangs_alone_is_noticed, .timeout = 60)
{
    struct hdt_sim_outcome outcome;

    for (uint64_t seed = 1; seed <= 3; seed++) {
        hdt_sim_run_adapted(seed, 0, forget_control, &outcome);
        cr_expect_gt(outcome.n_sessions, 2u);
    }
}

/* The other way round: heartbeats of stream 0 pass, and no chunk on any other. */
Test(link_sim, bulk_streams_that_all_hang_are_noticed, .timeout = 60)
{
    struct hdt_sim_outcome outcome;

    for (uint64_t seed = 1; seed <= 3; seed++) {
        hdt_sim_run_adapted(seed, 0, forget_bulk, &outcome);
        cr_expect_gt(outcome.n_stream_losses, 0u);
    }
}

/* A long link that a single stream does not fill, and nothing else in the way. */
static void one_long_link(struct sim_plan *plan, unsigned n_streams)
{
    unsigned i;

    plan->n_sites = 2;
    plan->io_max = 0;
    plan->segment_max = 65536;
    plan->messages = false;
    plan->probe_us = 0;
    for (i = 0; i < 2; i++) {
        plan->links[i][1 - i] =
            (struct sim_link_plan){.bytes_per_us = 300, .delay_us = 100 * SIM_MS};
        plan->workers[i][0] = (struct sim_worker_plan){.read_max = 1u << 20, .turn_us = 3};
        plan->sites[i].n_streams = n_streams;
        plan->sites[i].n_codecs = 2;
        plan->sites[i].chunk_bytes[0] = 64u << 10;
        plan->sites[i].rate_bits_per_s = 0;
        plan->sites[i].knob_ms = HDT_DEADLINES_KNOB_MIN_MS;
    }
}

/* Frames both ways, and a cut of a link so long that TCP's timers bring the old session back before
 * a new one stands. */
static void cut_long_link(struct sim_plan *plan, unsigned n_streams)
{
    unsigned i;

    one_long_link(plan, n_streams);
    plan->n_flows = 2;
    for (i = 0; i < 2; i++) {
        plan->links[i][1 - i].delay_us = 300 * SIM_MS;
        plan->flows[i] = (struct sim_flow_plan){.src_site = i,
                                                .dst_site = 1 - i,
                                                .depth = 4,
                                                .frame_cap = 200000,
                                                .n_frames = 60,
                                                .prio = HDT_PRIO_ACTIVATION};
    }
    plan->n_faults = 1;
    plan->faults[0] = (struct sim_fault_plan){
        .kind = HDT_SIM_CUT, .per_mille = 500, .a = 0, .b = 1, .for_us = 5 * SIM_S};
}

static void cut_with_a_given_number(struct sim_plan *plan)
{
    cut_long_link(plan, HDT_TUNER_FIRST_STREAMS);
}

static void cut_with_an_open_number(struct sim_plan *plan)
{
    cut_long_link(plan, 0);
}

/* Streams that might be there, and are not, need not speak for a cut to be over. */
Test(link_sim, a_session_outlives_a_cut_however_its_streams_are_counted, .timeout = 60)
{
    struct hdt_sim_outcome given, open;
    unsigned n_kept = 0;

    for (uint64_t seed = 1; seed <= 6; seed++) {
        hdt_sim_run_adapted(seed, 0, cut_with_a_given_number, &given);
        hdt_sim_run_adapted(seed, 0, cut_with_an_open_number, &open);
        cr_expect_eq(open.n_sessions, given.n_sessions, "seed %u: %u sessions, not %u",
                     (unsigned)seed, (unsigned)open.n_sessions, (unsigned)given.n_sessions);
        n_kept += given.n_sessions == 2;
    }
    cr_expect_gt(n_kept, 0u, "no session outlived the cut");
}

/* A chunk that takes ten seconds on its stream, while heartbeats of the others pass. */
static void slow_link(struct sim_plan *plan)
{
    one_long_link(plan, 3);
    plan->segment_max = 1448;
    plan->links[0][1].bytes_per_us = 0.03;
    plan->sites[0].chunk_bytes[0] = 1u << 20;
    plan->n_flows = 1;
    plan->flows[0] = (struct sim_flow_plan){
        .dst_site = 1, .depth = 1, .frame_cap = 300u << 10, .n_frames = 4, .prio = HDT_PRIO_OUTER};
}

Test(link_sim, a_stream_that_moves_is_not_given_up, .timeout = 60)
{
    struct hdt_sim_outcome outcome;

    for (uint64_t seed = 1; seed <= 3; seed++) {
        hdt_sim_run_adapted(seed, 0, slow_link, &outcome);
        cr_expect_eq(outcome.n_stream_losses, 0u);
        cr_expect_eq(outcome.resent_chunks, 0u);
    }
}

/* The narrow link is measured while small frames pass. */
static void measured_narrow_link(struct sim_plan *plan)
{
    one_long_link(plan, 1);
    plan->segment_max = 1448;
    plan->links[0][1] = (struct sim_link_plan){.bytes_per_us = 0.03, .delay_us = 10 * SIM_MS};
    plan->links[1][0].delay_us = 10 * SIM_MS;
    plan->probe_us = SIM_S;
    plan->n_flows = 1;
    plan->flows[0] = (struct sim_flow_plan){
        .dst_site = 1, .depth = 1, .frame_cap = 100, .n_frames = 100, .prio = HDT_PRIO_OUTER};
}

/* A chunk waits for the filler that its stream holds already: less than two records of 64 KiB, and
 * 128 KiB that the kernel has, are 8.8 s of that link; five and these were more than the knob. */
Test(link_sim, a_measurement_does_not_stop_a_job, .timeout = 60)
{
    struct hdt_sim_outcome outcome;

    for (uint64_t seed = 1; seed <= 3; seed++) {
        hdt_sim_run_adapted(seed, 0, measured_narrow_link, &outcome);
        cr_expect_gt(outcome.rest_us, 2 * SIM_S, "seed %u: was there filler?", (unsigned)seed);
        cr_expect_leq(outcome.rest_us, 9 * SIM_S, "seed %u: nothing moved for %.3f s",
                      (unsigned)seed, 1e-6 * (double)outcome.rest_us);
    }
}
