/* SPDX-License-Identifier: Apache-2.0 */
/* Figures of the streams to a peer, against what the rig knows that it sent. */
#include "config.h"

#include "tests/support/dp_rig.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#define N_STREAMS   3
#define FRAME_BYTES (256u << 10)

/* So many frames one way, each of FRAME_BYTES at most. */
static void rig_one_way(struct rig *rig, uint64_t n_frames)
{
    hdt_rig_open(rig, 2);
    rig->conf.n_streams = N_STREAMS;
    rig->unchecked = true; /* all frames full */
    rig->n_flows = 1;
    rig->flows[0] = (struct rig_flow){
        .src_site = 0, .dst_site = 1, .depth = 8, .frame_cap = FRAME_BYTES, .n_frames = n_frames};
    hdt_rig_start(rig);
    hdt_rig_dial(rig, 0, 1, NULL);
}

/* What site a knows of b, as soon as it is so; false: it is not within half a minute. */
static bool it_comes(struct rig *rig, struct hdt_peer_stats *stats,
                     bool (*is_so)(const struct hdt_peer_stats *stats))
{
    for (int k = 0; k < 600; k++) {
        if (hdt_rig_peer_stats(rig, 0, 1, stats) && is_so(stats)) {
            return true;
        }
        hdt_rig_sleep_ms(50);
    }
    return false;
}

static bool had_load(const struct hdt_peer_stats *stats)
{
    return stats->link.n_tcp == N_STREAMS && stats->link.load.ago_us >= 0;
}

static bool rate_limited(const struct hdt_peer_stats *stats)
{
    return had_load(stats) && stats->link.load.limit_share[HDT_LIMIT_RATE] > 0.5;
}

/* What the system says that new sockets get. */
static void default_congestion(char name[16])
{
    FILE *file = fopen("/proc/sys/net/ipv4/tcp_congestion_control", "r");

    cr_assert_not_null(file);
    cr_assert_eq(fscanf(file, "%15s", name), 1);
    fclose(file);
}

Test(linkinfo, tells_of_a_link_under_load, .timeout = 120)
{
    struct rig *rig = calloc(1, sizeof(*rig));
    struct hdt_tcp_stats streams[N_STREAMS];
    struct hdt_peer_stats stats;
    double shares = 0, limits = 0;
    uint64_t acked = 0, sent_bytes;
    char congestion[16];

    rig_one_way(rig, 1ull << 40);
    cr_assert(it_comes(rig, &stats, had_load), "seed %u", hdt_rig_seed);
    default_congestion(congestion);
    cr_expect_str_eq(stats.link.congestion, congestion);
    cr_expect_gt(stats.link.min_rtt_us, 0);
    cr_expect_geq(stats.link.rtt_us, stats.link.min_rtt_us);
    cr_expect_gt(stats.link.load.rate_bytes_per_s, 0);
    for (int i = 0; i < HDT_LIMIT_COUNT; i++) {
        cr_expect_geq(stats.link.load.limit_share[i], 0);
        limits += stats.link.load.limit_share[i];
    }
    cr_expect(fabs(limits - 1) < 1e-9, "shares of what limits are %.9f together", limits);
    cr_assert_eq(hdt_dataplane_stream_stats(rig->sites[0].dp, "site-b", streams, N_STREAMS),
                 N_STREAMS);
    sent_bytes = hdt_rig_frames_done(rig) * FRAME_BYTES;
    for (int i = 0; i < N_STREAMS; i++) {
        cr_expect_eq(streams[i].stream, (unsigned)i + 1);
        cr_expect_geq(streams[i].cwnd_bytes, streams[i].mss);
        cr_expect_geq(streams[i].sent_bytes, streams[i].acked_bytes);
        shares += streams[i].share;
        acked += streams[i].acked_bytes;
    }
    cr_expect(fabs(shares - 1) < 0.05, "shares of the streams are %.3f together", shares);
    /* Frames that were taken before this look were acknowledged; the streams were looked at up to a
     * tick ago, in which a link of loopback may carry a good deal. */
    cr_expect_gt(acked, 0);
    cr_expect_lt((double)acked, 1.2 * (double)sent_bytes + 64e6);
    hdt_rig_close(rig);
    free(rig);
}

/* A second and a half in which all streams are told of, nothing is sent and nothing limits. The
 * first that is looked at may begin before the last acknowledgement was read. */
static bool idle_time_passes(struct rig *rig)
{
    struct hdt_peer_stats first, second;

    for (int k = 0; k < 20; k++) {
        cr_assert(hdt_rig_peer_stats(rig, 0, 1, &first));
        hdt_rig_sleep_ms(1500); /* longer than a window: time is what is asked */
        cr_assert(hdt_rig_peer_stats(rig, 0, 1, &second));
        if (second.link.n_tcp == N_STREAMS && second.link.rate_bytes_per_s < 1e5 &&
            memcmp(first.link.limit_us, second.link.limit_us, sizeof(first.link.limit_us)) == 0) {
            return true;
        }
    }
    return false;
}

/* Totals agree with the frames that were taken, to TLS and headers; then nothing limits. */
Test(linkinfo, counts_what_was_sent_and_no_idle_time, .timeout = 120)
{
    const uint64_t n_frames = 400;
    struct rig *rig = calloc(1, sizeof(*rig));
    struct hdt_tcp_stats streams[N_STREAMS];
    const double plain = (double)n_frames * FRAME_BYTES;
    struct hdt_peer_stats stats;
    double acked = 0;

    rig_one_way(rig, n_frames);
    hdt_rig_wait_done(rig, 60);
    cr_expect(idle_time_passes(rig), "time on an idle link is counted as limited by something");
    cr_assert_eq(hdt_dataplane_stream_stats(rig->sites[0].dp, "site-b", streams, N_STREAMS),
                 N_STREAMS);
    for (int i = 0; i < N_STREAMS; i++) {
        acked += (double)streams[i].acked_bytes;
    }
    cr_expect(acked >= plain && acked < 1.02 * plain, "%.0f bytes for %.0f of frames", acked,
              plain);
    cr_assert(hdt_rig_peer_stats(rig, 0, 1, &stats));
    cr_expect_geq((double)stats.link.sent_bytes, acked, "the total misses what left at first");
    hdt_rig_close(rig);
    free(rig);
}

/* A cap in the settings is named as what limits. */
Test(linkinfo, names_a_rate_cap, .timeout = 120)
{
    struct rig *rig = calloc(1, sizeof(*rig));
    struct hdt_peer_stats stats;

    hdt_rig_open(rig, 2);
    rig->conf.n_streams = N_STREAMS;
    rig->conf.rate_bits_per_s = 80 * 1000 * 1000;
    rig->unchecked = true;
    rig->n_flows = 1;
    rig->flows[0] = (struct rig_flow){
        .dst_site = 1, .depth = 64, .frame_cap = FRAME_BYTES, .n_frames = 1ull << 40};
    hdt_rig_start(rig);
    hdt_rig_dial(rig, 0, 1, NULL);
    /* Not in the first second: programs and streams begin in it. */
    cr_expect(it_comes(rig, &stats, rate_limited),
              "rate %.2f application %.2f codec %.2f receiver %.2f buffer %.2f cpu %.2f path %.2f",
              stats.link.load.limit_share[HDT_LIMIT_RATE],
              stats.link.load.limit_share[HDT_LIMIT_APPLICATION],
              stats.link.load.limit_share[HDT_LIMIT_CODEC],
              stats.link.load.limit_share[HDT_LIMIT_RECEIVER],
              stats.link.load.limit_share[HDT_LIMIT_BUFFER],
              stats.link.load.limit_share[HDT_LIMIT_CPU],
              stats.link.load.limit_share[HDT_LIMIT_PATH]);
    hdt_rig_close(rig);
    free(rig);
}

#define N_OF_THE_PEER 12

static bool had_load_on_its_own(const struct hdt_peer_stats *stats)
{
    return stats->n_streams == N_OF_THE_PEER && stats->link.load.ago_us >= 0 &&
           stats->link.n_tcp == stats->n_streams_used;
}

/* Streams that are open because the peer sends over more say nothing of what is sent here. */
Test(linkinfo, leaves_out_streams_of_the_peer, .timeout = 120)
{
    struct rig *rig = calloc(1, sizeof(*rig));
    struct hdt_tcp_stats streams[N_OF_THE_PEER];
    struct hdt_peer_stats stats;

    hdt_rig_open(rig, 2);
    rig->conf.n_streams = 0;
    rig->unchecked = true;
    rig->n_flows = 1;
    rig->flows[0] = (struct rig_flow){
        .src_site = 0, .dst_site = 1, .depth = 8, .frame_cap = FRAME_BYTES, .n_frames = 1ull << 40};
    hdt_rig_start(rig);
    rig->conf.n_streams = N_OF_THE_PEER;
    hdt_rig_restart(rig, 1);
    hdt_rig_dial(rig, 0, 1, NULL);
    cr_assert(it_comes(rig, &stats, had_load_on_its_own), "seed %u", hdt_rig_seed);
    cr_expect_lt(stats.link.n_tcp, N_OF_THE_PEER);
    cr_expect_leq(stats.link.load.loaded_share, 1.05);
    cr_expect_eq(hdt_dataplane_stream_stats(rig->sites[0].dp, "site-b", streams, N_OF_THE_PEER),
                 N_OF_THE_PEER);
    hdt_rig_close(rig);
    free(rig);
}
