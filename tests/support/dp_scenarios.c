/* SPDX-License-Identifier: Apache-2.0 */
/* What the unit test and the test under ThreadSanitizer both play. */
#include "config.h"

#include "compress/codec.h"
#include "src/base/clock.h"
#include "tests/support/dp_rig.h"

/* Flows both ways with unlike depths, sizes and priorities. */
static void add_flows(struct rig *rig, unsigned a, unsigned b, uint8_t codec, uint64_t n_frames)
{
    static const uint32_t depths[] = {1, 2, 3, 8};
    static const uint32_t caps[] = {4096, 20000, 300000, 1000001};
    unsigned i;

    for (i = 0; i < 4; i++) {
        rig->flows[rig->n_flows++] = (struct rig_flow){
            .src_site = i % 2 == 0 ? a : b,
            .dst_site = i % 2 == 0 ? b : a,
            .depth = depths[(i + hdt_rig_seed) % 4],
            .frame_cap = caps[(i + hdt_rig_seed / 4) % 4],
            .n_frames = n_frames,
            .prio = (enum hdt_prio)(i % HDT_PRIO_COUNT),
            .codec = codec,
        };
    }
}

static void check_clean(struct rig *rig, unsigned i, unsigned j)
{
    struct hdt_peer_stats stats = {0};

    RIG_CHECK(hdt_rig_peer_stats(rig, i, j, &stats), "no stats");
    RIG_CHECK(stats.bad_chunks == 0, "%llu bad chunks", (unsigned long long)stats.bad_chunks);
    RIG_CHECK(rig->sites[i].n_flow_failed == 0, "a flow failed");
}

void hdt_rig_scenario_exchange(uint8_t codec, bool over_tls, uint64_t n_frames)
{
    struct hdt_peer_stats stats = {0};
    struct rig rig;

    hdt_rig_open(&rig, 2);
    rig.conf.n_io_threads = 2;
    rig.conf.n_codec_threads = 2;
    add_flows(&rig, 0, 1, codec, n_frames);
    add_flows(&rig, 1, 0, codec, n_frames);
    rig.sites[0].worker.over_tls = over_tls;
    hdt_rig_start(&rig);
    hdt_rig_dial(&rig, 0, 1, NULL);
    hdt_rig_dial(&rig, 1, 0, NULL);
    hdt_rig_wait_done(&rig, 20);
    check_clean(&rig, 0, 1);
    check_clean(&rig, 1, 0);
    RIG_CHECK(hdt_rig_peer_stats(&rig, 0, 1, &stats) && stats.raw_bytes > stats.plain_bytes, "raw");
    RIG_CHECK(codec == HDT_CODEC_NONE ? stats.coded_bytes == stats.plain_bytes
                                      : stats.coded_bytes < stats.plain_bytes,
              "%llu bytes of %llu", (unsigned long long)stats.coded_bytes,
              (unsigned long long)stats.plain_bytes);
    hdt_rig_close(&rig);
}

void hdt_rig_scenario_three_sites(uint64_t n_frames)
{
    struct rig rig;
    unsigned i;

    hdt_rig_open(&rig, 3);
    add_flows(&rig, 0, 1, HDT_CODEC_NONE, n_frames);
    add_flows(&rig, 1, 2, HDT_CODEC_LOSSLESS, n_frames);
    rig.flows[rig.n_flows++] = (struct rig_flow){.src_site = 0,
                                                 .dst_site = 0,
                                                 .depth = 3,
                                                 .frame_cap = 100000,
                                                 .n_frames = 2 * n_frames,
                                                 .prio = HDT_PRIO_ACTIVATION};
    rig.flows[rig.n_flows++] = (struct rig_flow){.src_site = 2,
                                                 .dst_site = 0,
                                                 .depth = 2,
                                                 .frame_cap = 200000,
                                                 .n_frames = n_frames,
                                                 .prio = HDT_PRIO_GRADIENT};
    hdt_rig_start(&rig);
    for (i = 0; i < 3; i++) {
        hdt_rig_dial(&rig, i, (i + 1) % 3, NULL);
    }
    hdt_rig_wait_done(&rig, 20);
    hdt_rig_close(&rig);
}

void hdt_rig_scenario_breaks(uint64_t n_frames)
{
    struct hdt_peer_stats stats = {0};
    struct rig rig;
    unsigned rng, n_breaks = 0;

    hdt_rig_open(&rig, 2);
    rng = hdt_rig_seed | 1;
    rig.conf.n_io_threads = 2;
    rig.conf.n_codec_threads = 2;
    add_flows(&rig, 0, 1, HDT_CODEC_NONE, n_frames);
    add_flows(&rig, 1, 0, HDT_CODEC_LOSSLESS, n_frames);
    hdt_rig_start(&rig);
    hdt_rig_dial(&rig, 0, 1, NULL);
    hdt_rig_wait_frames(&rig, 1);
    while (hdt_rig_frames_done(&rig) < hdt_rig_frames_total(&rig) && n_breaks < 400) {
        const unsigned site = hdt_rig_random(&rng) % 2;

        hdt_dataplane_break_stream(rig.sites[site].dp, rig.sites[1 - site].name,
                                   hdt_rig_random(&rng) % 3);
        n_breaks++;
        hdt_rig_sleep_ms((int)(hdt_rig_random(&rng) % 20));
    }
    hdt_rig_wait_done(&rig, 20);
    RIG_CHECK(hdt_rig_peer_stats(&rig, 0, 1, &stats), "no stats");
    RIG_CHECK(stats.n_stream_losses > 0 && stats.n_sessions == 1, "%llu losses, %llu sessions",
              (unsigned long long)stats.n_stream_losses, (unsigned long long)stats.n_sessions);
    hdt_rig_close(&rig);
}

void hdt_rig_scenario_forgotten(uint64_t n_frames)
{
    struct hdt_peer_stats stats = {0};
    struct rig_proxy *proxy;
    char address[32];
    struct rig rig;
    int port;

    hdt_rig_open(&rig, 2);
    rig.conf.deadlines.suspect_us = 400 * HDT_US_PER_MS;
    rig.conf.deadlines.session_dead_us = 12 * HDT_US_PER_S;
    add_flows(&rig, 0, 1, HDT_CODEC_NONE, n_frames);
    add_flows(&rig, 1, 0, HDT_CODEC_LOSSLESS, n_frames);
    hdt_rig_start(&rig);
    proxy = hdt_rig_proxy_open(rig.sites[0].wan_port, &port);
    snprintf(address, sizeof(address), "127.0.0.1:%d", port);
    hdt_rig_dial(&rig, 1, 0, address);
    hdt_rig_wait_frames(&rig, n_frames);
    hdt_rig_proxy_hold_old(proxy);
    hdt_rig_wait_done(&rig, 40);
    /* By one new session and no more, long before the deadline would have closed the old one. */
    for (unsigned i = 0; i < 2; i++) {
        RIG_CHECK(!atomic_load(&rig.sites[i].n_timed_out), "it waited for the deadline");
    }
    RIG_CHECK(hdt_rig_peer_stats(&rig, 1, 0, &stats) && stats.n_sessions == 2, "%llu sessions",
              (unsigned long long)stats.n_sessions);
    check_clean(&rig, 0, 1);
    check_clean(&rig, 1, 0);
    hdt_rig_close(&rig);
    hdt_rig_proxy_close(proxy);
}

void hdt_rig_scenario_restart(uint64_t n_frames)
{
    struct rig rig;
    uint64_t total;
    unsigned i;

    hdt_rig_open(&rig, 2);
    add_flows(&rig, 0, 1, HDT_CODEC_NONE, n_frames);
    add_flows(&rig, 1, 0, HDT_CODEC_LOSSLESS, n_frames);
    total = hdt_rig_frames_total(&rig);
    hdt_rig_start(&rig);
    hdt_rig_dial(&rig, 0, 1, NULL);
    hdt_rig_dial(&rig, 1, 0, NULL);
    for (i = 0; i < 4; i++) {
        hdt_rig_wait_frames(&rig, total * (i + 1) / 6);
        hdt_rig_restart(&rig, i % 2);
        hdt_rig_dial(&rig, i % 2, 1 - i % 2, NULL);
    }
    hdt_rig_wait_done(&rig, 20);
    hdt_rig_close(&rig);
}
