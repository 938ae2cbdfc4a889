/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A WAN link is cut and heals: how long until frames are acknowledged again? Two data planes in two
 * namespaces of a lab (scripts/wan-lab), whose link the commands CUT and HEAL work on:
 *   bench_cut NETNS-A ADDR-A NETNS-B ADDR-B CUT HEAL SECONDS [ROUNDS [wait]]
 * ADDR is an address of the namespace. "wait": nothing is dialled beside a silent session, which
 * leaves the healing to TCP's own timers. Prints the seconds of each round, one a line.
 */
#include "config.h"

#include "src/base/clock.h"
#include "tests/support/dp_rig.h"

#include <string.h>

#define FRAME_BYTES (16u << 10) /* small: slow start is not what is measured */
#define POLL_MS     2
#define SETTLE_MS   3000 /* before a cut: windows have opened */
#define PATIENCE_US (120 * HDT_US_PER_S)

/* Frames that the other end has taken, of the source flows of one site. */
static uint64_t acked(struct rig *rig, unsigned site)
{
    struct hdt_flow_stats stats[RIG_FLOWS_MAX];
    size_t n = hdt_dataplane_flow_stats(rig->sites[site].dp, stats, RIG_FLOWS_MAX);
    uint64_t sum = 0;

    for (size_t i = 0; i < n; i++) {
        sum += stats[i].is_src ? stats[i].acked_seq : 0;
    }
    return sum;
}

static void command_run(const char *command)
{
    RIG_CHECK(system(command) == 0, "'%s' failed", command);
}

/* Seconds from the healing until both sites have a frame acknowledged. */
static double round_run(struct rig *rig, const char *cut, const char *heal, int cut_ms)
{
    uint64_t before[2];
    int64_t healed_us;

    hdt_rig_sleep_ms(SETTLE_MS);
    command_run(cut);
    hdt_rig_sleep_ms(cut_ms);
    for (unsigned i = 0; i < 2; i++) {
        before[i] = acked(rig, i);
    }
    command_run(heal);
    healed_us = hdt_clock_now_us();
    while (acked(rig, 0) == before[0] || acked(rig, 1) == before[1]) {
        RIG_CHECK(hdt_clock_now_us() - healed_us < PATIENCE_US, "nothing moved after the healing");
        hdt_rig_sleep_ms(POLL_MS);
    }
    return (double)(hdt_clock_now_us() - healed_us) / 1e6;
}

int main(int argc, char **argv)
{
    struct hdt_peer_stats stats = {0};
    struct rig rig;
    int n_rounds;

    if (argc < 8) {
        fprintf(stderr, "usage: bench_cut NETNS-A ADDR-A NETNS-B ADDR-B CUT HEAL SECONDS "
                        "[ROUNDS [wait]]\n");
        return 2;
    }
    n_rounds = argc > 8 ? (int)strtol(argv[8], NULL, 10) : 1;
    hdt_rig_open(&rig, 2);
    rig.unchecked = true;
    rig.conf.n_streams = 4;
    rig.conf.chunk_bytes = 64 << 10;
    hdt_deadlines_derive(&rig.conf.deadlines, HDT_DEADLINES_KNOB_DEFAULT_MS, 0);
    if (argc > 9 && strcmp(argv[9], "wait") == 0) {
        rig.conf.deadlines.session_dead_us = 600 * HDT_US_PER_S;
        rig.conf.deadlines.suspect_us = 600 * HDT_US_PER_S;
    }
    for (unsigned i = 0; i < 2; i++) {
        rig.sites[i].netns = argv[1 + 2 * i];
        snprintf(rig.sites[i].wan, sizeof(rig.sites[i].wan), "%s:0", argv[2 + 2 * i]);
        rig.flows[rig.n_flows++] = (struct rig_flow){.src_site = i,
                                                     .dst_site = 1 - i,
                                                     .depth = 4,
                                                     .frame_cap = FRAME_BYTES,
                                                     .n_frames = UINT32_MAX,
                                                     .prio = HDT_PRIO_ACTIVATION};
    }
    hdt_rig_start(&rig);
    hdt_rig_dial(&rig, 0, 1, NULL);
    hdt_rig_dial(&rig, 1, 0, NULL);
    hdt_rig_wait_frames(&rig, 20);
    for (int i = 0; i < n_rounds; i++) {
        printf("%.3f\n", round_run(&rig, argv[5], argv[6], (int)(1000 * strtod(argv[7], NULL))));
        fflush(stdout);
    }
    hdt_rig_peer_stats(&rig, 0, 1, &stats);
    fprintf(stderr, "sessions %llu, chunks sent again %llu, suspects %llu\n",
            (unsigned long long)stats.n_sessions, (unsigned long long)stats.resent_chunks,
            (unsigned long long)stats.n_suspects);
    _Exit(0); /* flows have no end */
}
