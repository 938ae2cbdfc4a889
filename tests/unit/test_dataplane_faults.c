/* SPDX-License-Identifier: Apache-2.0 */
/* Links that stop, and peers that do not keep to the protocol. */
#include "config.h"

#include "compress/codec.h"
#include "src/base/clock.h"
#include "src/core/msg.h"
#include "tests/support/dp_rig.h"
#include "tests/support/dp_stranger.h"

#include <criterion/criterion.h>
#include <string.h>
#include <xxhash.h>

/* Two sites, flows both ways; site-b dials site-a through a proxy. */
static struct rig_proxy *open_behind_proxy(struct rig *rig, uint64_t n_frames, int64_t timeout_ms)
{
    struct rig_proxy *proxy;
    char address[32];
    unsigned i;
    int port;

    hdt_rig_open(rig, 2);
    rig->conf.deadlines.session_dead_us = timeout_ms * HDT_US_PER_MS;
    rig->conf.deadlines.suspect_us = 400 * HDT_US_PER_MS;
    for (i = 0; i < 4; i++) {
        rig->flows[rig->n_flows++] =
            (struct rig_flow){.src_site = i % 2,
                              .dst_site = 1 - i % 2,
                              .depth = 1 + i,
                              .frame_cap = 200000,
                              .n_frames = n_frames,
                              .prio = HDT_PRIO_ACTIVATION,
                              .codec = i < 2 ? HDT_CODEC_NONE : HDT_CODEC_LOSSLESS};
    }
    hdt_rig_start(rig);
    proxy = hdt_rig_proxy_open(rig->sites[0].wan_port, &port);
    snprintf(address, sizeof(address), "127.0.0.1:%d", port);
    hdt_rig_dial(rig, 1, 0, address);
    return proxy;
}

Test(dataplane_faults, link_cut_shorter_than_the_deadline, .timeout = 60)
{
    struct hdt_peer_stats stats = {0};
    struct rig_proxy *proxy;
    struct rig rig;
    int64_t until_us;

    proxy = open_behind_proxy(&rig, 150, 30000);
    hdt_rig_wait_frames(&rig, 100);
    hdt_rig_proxy_hold(proxy, true);
    until_us = hdt_clock_now_us() + 10 * HDT_US_PER_S;
    while (!hdt_rig_peer_stats(&rig, 0, 1, &stats) || !stats.suspect) {
        cr_assert(hdt_clock_now_us() < until_us);
        hdt_rig_sleep_ms(5);
    }
    hdt_rig_proxy_hold(proxy, false);
    hdt_rig_wait_done(&rig, 20);
    cr_expect(hdt_rig_peer_stats(&rig, 0, 1, &stats));
    cr_expect_eq(stats.n_sessions, 1);
    cr_expect_not(stats.suspect);
    cr_expect_eq(stats.bad_chunks, 0);
    hdt_rig_close(&rig);
    hdt_rig_proxy_close(proxy);
}

Test(dataplane_faults, link_cut_beyond_the_deadline, .timeout = 60)
{
    struct hdt_peer_stats stats = {0};
    struct rig_proxy *proxy;
    struct rig rig;

    proxy = open_behind_proxy(&rig, 150, 1000);
    hdt_rig_wait_frames(&rig, 100);
    hdt_rig_proxy_hold(proxy, true);
    hdt_rig_wait_count(&rig.sites[0].n_down, 1);
    hdt_rig_wait_count(&rig.sites[1].n_down, 1);
    hdt_rig_proxy_hold(proxy, false);
    hdt_rig_wait_done(&rig, 20);
    cr_expect(hdt_rig_peer_stats(&rig, 0, 1, &stats));
    cr_expect_geq(stats.n_sessions, 2);
    hdt_rig_close(&rig);
    hdt_rig_proxy_close(proxy);
}

Test(dataplane_faults, connections_that_a_middlebox_forgot, .timeout = 60)
{
    hdt_rig_scenario_forgotten(60);
}

Test(dataplane_faults, all_connections_reset, .timeout = 60)
{
    struct rig_proxy *proxy;
    struct rig rig;
    unsigned i;

    proxy = open_behind_proxy(&rig, 150, 10000);
    for (i = 1; i <= 3; i++) {
        hdt_rig_wait_frames(&rig, 120 * i);
        hdt_rig_proxy_reset(proxy);
    }
    hdt_rig_wait_done(&rig, 20);
    hdt_rig_close(&rig);
    hdt_rig_proxy_close(proxy);
}

Test(dataplane_faults, one_stream_stalls_while_others_move, .timeout = 60)
{
    struct hdt_peer_stats stats = {0};
    struct rig_proxy *proxy;
    struct rig rig;
    int64_t until_us;

    proxy = open_behind_proxy(&rig, 200, 30000);
    hdt_rig_wait_peer(&rig, 0, 1, &stats);
    hdt_rig_wait_frames(&rig, 60);
    hdt_rig_proxy_hold_one(proxy, 2);
    hdt_rig_wait_done(&rig, 15);
    /* All may have gone by the other streams before; the heartbeat tells all the same. */
    until_us = hdt_clock_now_us() + 15 * HDT_US_PER_S;
    while (!hdt_rig_peer_stats(&rig, 0, 1, &stats) || stats.n_stream_losses < 1) {
        cr_assert(hdt_clock_now_us() < until_us);
        hdt_rig_sleep_ms(5);
    }
    cr_expect_eq(stats.n_sessions, 1);
    hdt_rig_close(&rig);
    hdt_rig_proxy_close(proxy);
}

/* All of it would take minutes. */
Test(dataplane_faults, probe_of_a_slow_link_is_answered_with_what_came, .timeout = 60)
{
    struct hdt_peer_stats stats = {0};
    struct rig rig;

    hdt_rig_open(&rig, 2);
    rig.conf.rate_bits_per_s = 8000000;
    hdt_rig_start(&rig);
    hdt_rig_dial(&rig, 0, 1, NULL);
    hdt_rig_wait_peer(&rig, 0, 1, &stats);
    hdt_dataplane_probe(rig.sites[0].dp, "site-b", 256 << 20, 30000);
    hdt_rig_wait_count(&rig.sites[0].n_probed, 1);
    cr_expect(rig.sites[0].probed_bytes_per_s > 0.2e6 && rig.sites[0].probed_bytes_per_s < 5e6,
              "%g", rig.sites[0].probed_bytes_per_s);
    hdt_rig_close(&rig);
}

Test(dataplane_faults, probe_measures_the_link, .timeout = 60)
{
    struct hdt_peer_stats stats = {0};
    struct rig rig;

    hdt_rig_open(&rig, 2);
    rig.conf.rate_bits_per_s = 400000000;
    hdt_rig_start(&rig);
    hdt_dataplane_probe(rig.sites[0].dp, "site-b", 1 << 20, 1000);
    hdt_rig_wait_count(&rig.sites[0].n_probed, 1);
    cr_expect_eq(rig.sites[0].probed_bytes_per_s, 0); /* no session */
    hdt_rig_dial(&rig, 0, 1, NULL);
    hdt_rig_wait_peer(&rig, 0, 1, &stats);
    hdt_dataplane_probe(rig.sites[0].dp, "site-b", 20 << 20, 5000);
    hdt_rig_wait_count(&rig.sites[0].n_probed, 2);
    /* The cap is 50 MB/s. On a busy machine bytes that waited in the kernel come in a burst. */
    cr_expect(rig.sites[0].probed_bytes_per_s > 1e6 && rig.sites[0].probed_bytes_per_s < 150e6,
              "%g", rig.sites[0].probed_bytes_per_s);
    hdt_rig_close(&rig);
}

/* What was on its way is lost: nobody is to wait until the probe's deadline for it. */
Test(dataplane_faults, a_probe_ends_with_its_session, .timeout = 60)
{
    struct hdt_peer_stats stats = {0};
    struct rig_proxy *proxy;
    struct rig rig;

    proxy = open_behind_proxy(&rig, 0, 30000);
    hdt_rig_wait_peer(&rig, 0, 1, &stats);
    hdt_rig_proxy_hold(proxy, true);
    hdt_dataplane_probe(rig.sites[0].dp, "site-b", 8 << 20, 600000);
    hdt_rig_proxy_reset(proxy);
    hdt_rig_wait_count(&rig.sites[0].n_probed, 1);
    cr_expect_eq(rig.sites[0].probed_bytes_per_s, 0);
    hdt_rig_proxy_hold(proxy, false);
    hdt_rig_wait_count(&rig.sites[0].n_up, 2);
    hdt_dataplane_probe(rig.sites[0].dp, "site-b", 8 << 20, 600000);
    hdt_rig_wait_count(&rig.sites[0].n_probed, 2);
    cr_expect_gt(rig.sites[0].probed_bytes_per_s, 0);
    hdt_rig_close(&rig);
    hdt_rig_proxy_close(proxy);
}

/* ---- strangers ---- */

static uint64_t strangers(struct rig *rig)
{
    struct hdt_dataplane_stats stats;

    hdt_dataplane_stats(rig->sites[0].dp, &stats);
    return stats.strangers;
}

static void wait_strangers(struct rig *rig, uint64_t n)
{
    const int64_t until_us = hdt_clock_now_us() + 10 * HDT_US_PER_S;

    while (strangers(rig) < n) {
        cr_assert(hdt_clock_now_us() < until_us, "%llu strangers counted",
                  (unsigned long long)strangers(rig));
        hdt_rig_sleep_ms(2);
    }
}

Test(dataplane_faults, strangers_are_dropped_and_counted, .timeout = 60)
{
    static const char garbage[] = "GET / HTTP/1.1\r\nHost: nobody\r\n\r\n0123456789012345678901234";
    struct stranger stranger;
    struct rig rig;
    json_t *msg;
    char *dir;

    hdt_rig_open(&rig, 1);
    hdt_rig_start(&rig);
    cr_assert(hdt_stranger_open(&stranger, rig.sites[0].wan_port, NULL));
    hdt_stranger_write(&stranger, garbage, sizeof(garbage));
    cr_expect(hdt_stranger_is_dropped(&stranger));
    hdt_stranger_close(&stranger);
    wait_strangers(&rig, 1);

    /* A worker's certificate is good for the LAN, not here; it is told so. */
    dir = hdt_rig_issue(&rig, "worker", "site-a/w");
    cr_assert(hdt_stranger_open(&stranger, rig.sites[0].wan_port, dir));
    msg = hdt_stranger_recv_msg(&stranger);
    cr_assert(msg != NULL);
    cr_expect_str_eq(hdt_msg_type(msg), "refuse");
    json_decref(msg);
    cr_expect(hdt_stranger_is_dropped(&stranger));
    hdt_stranger_close(&stranger);
    free(dir);
    wait_strangers(&rig, 2);

    /* Records before hello. */
    dir = hdt_rig_issue(&rig, "site", "site-z");
    cr_assert(hdt_stranger_open(&stranger, rig.sites[0].wan_port, dir));
    hdt_stranger_send(&stranger, &(struct hdt_frame){.kind = HDT_FRAME_PING, .seq = 1}, NULL);
    cr_expect(hdt_stranger_is_dropped(&stranger));
    hdt_stranger_close(&stranger);
    free(dir);
    wait_strangers(&rig, 3);
    hdt_rig_close(&rig);
}

Test(dataplane_faults, another_version_is_refused_with_both_values, .timeout = 60)
{
    struct stranger stranger;
    struct rig rig;
    const char *text;
    json_t *msg;
    char *dir;

    hdt_rig_open(&rig, 1);
    hdt_rig_start(&rig);
    dir = hdt_rig_issue(&rig, "site", "site-z");
    cr_assert(hdt_stranger_open(&stranger, rig.sites[0].wan_port, dir));
    hdt_stranger_send_msg(&stranger, "hello", hdt_stranger_hello("site-z", 99, 0));
    msg = hdt_stranger_recv_msg(&stranger);
    cr_assert(msg != NULL);
    cr_expect_str_eq(hdt_msg_type(msg), "refuse");
    text = json_string_value(json_object_get(hdt_msg_body(msg), "msg"));
    cr_expect(strstr(text, "protocol 99 (hdt 9.9)") && strstr(text, "protocol 2 (hdt test)"), "%s",
              text);
    hdt_rig_wait_count(&rig.sites[0].n_refused, 1);
    cr_expect_str_eq(rig.sites[0].last_refused.msg, text);
    cr_expect_eq(rig.sites[0].last_refused.status, HDT_EVERSION);
    json_decref(msg);
    hdt_stranger_close(&stranger);
    free(dir);
    hdt_rig_close(&rig);
}

/* A session of "site-b", played by hand; site-a expects its flow 1 from there. */
static void join_by_hand(struct rig *rig, struct stranger streams[2])
{
    char *dir;
    json_t *msg;
    unsigned i;

    hdt_rig_open(rig, 2);
    rig->flows[0] = (struct rig_flow){.src_site = 0, .dst_site = 1, .depth = 2, .frame_cap = 5000};
    rig->flows[1] = (struct rig_flow){.src_site = 1, .dst_site = 0, .depth = 2, .frame_cap = 5000};
    rig->n_flows = 2;
    hdt_rig_start(rig);
    dir = hdt_rig_issue(rig, "site", "site-b");
    for (i = 0; i < 2; i++) {
        cr_assert(hdt_stranger_open(&streams[i], rig->sites[0].wan_port, dir));
        hdt_stranger_send_msg(&streams[i], "hello",
                              hdt_stranger_hello("site-b", HDT_PROTOCOL_VERSION, i));
        msg = hdt_stranger_recv_msg(&streams[i]);
        cr_assert(msg != NULL);
        cr_assert_str_eq(hdt_msg_type(msg), "welcome");
        json_decref(msg);
    }
    free(dir);
}

static void wait_bad(struct rig *rig, uint64_t n_bad, uint64_t n_dup)
{
    const int64_t until_us = hdt_clock_now_us() + 10 * HDT_US_PER_S;
    struct hdt_peer_stats stats = {0};

    while (!hdt_rig_peer_stats(rig, 0, 1, &stats) || stats.bad_chunks < n_bad ||
           stats.dup_chunks < n_dup) {
        cr_assert(hdt_clock_now_us() < until_us, "%llu bad, %llu twice",
                  (unsigned long long)stats.bad_chunks, (unsigned long long)stats.dup_chunks);
        hdt_rig_sleep_ms(2);
    }
    cr_expect_eq(stats.bad_chunks, n_bad);
    cr_expect_eq(stats.dup_chunks, n_dup);
}

/* checksum, flow, credit, frame, codec */
static void expect_causes(struct rig *rig, const uint64_t n[HDT_BAD_COUNT])
{
    struct hdt_peer_stats stats = {0};

    cr_assert(hdt_rig_peer_stats(rig, 0, 1, &stats));
    for (int cause = 0; cause < HDT_BAD_COUNT; cause++) {
        cr_expect_eq(stats.bad_by_cause[cause], n[cause], "cause %d: %llu", cause,
                     (unsigned long long)stats.bad_by_cause[cause]);
    }
}

Test(dataplane_faults, chunks_that_do_not_fit_are_dropped_and_counted, .timeout = 60)
{
    static uint8_t bytes[70000];
    struct hdt_flow_stats flows[4];
    struct stranger streams[2];
    struct hdt_frame good = {.kind = HDT_FRAME_CHUNK,
                             .job = 7,
                             .epoch = 1,
                             .flow = 1,
                             .dtype = HDT_DTYPE_BF16,
                             .len = 4096,
                             .frame_len = 5000,
                             .coded_len = 4096};
    struct hdt_frame bad;
    struct rig rig;

    join_by_hand(&rig, streams);
    while (hdt_dataplane_flow_stats(rig.sites[0].dp, flows, 4) < 2) {
        hdt_rig_sleep_ms(2);
    }
    good.xxh3 = XXH3_64bits(bytes, 4096);
    bad = good;
    bad.flow = 9; /* nobody's flow */
    cr_expect(hdt_stranger_send(&streams[1], &bad, bytes));
    bad = good;
    bad.seq = 2; /* beyond the window */
    cr_expect(hdt_stranger_send(&streams[1], &bad, bytes));
    bad = good;
    bad.frame_len = 5001; /* longer than a slot */
    cr_expect(hdt_stranger_send(&streams[1], &bad, bytes));
    bad = good;
    bad.codec = 77;
    cr_expect(hdt_stranger_send(&streams[1], &bad, bytes));
    bad = good;
    bad.codec = HDT_CODEC_LOSSLESS; /* does not decode */
    memset(bytes, 0x5a, 4096);
    cr_expect(hdt_stranger_send(&streams[1], &bad, bytes));
    wait_bad(&rig, 5, 0);
    memset(bytes, 0, 4096);
    bad = good;
    bad.xxh3++; /* damaged */
    cr_expect(hdt_stranger_send(&streams[1], &bad, bytes));
    wait_bad(&rig, 6, 0);
    cr_expect(hdt_stranger_send(&streams[1], &good, bytes));
    bad = good;
    bad.frame_len = 4999; /* another length than its sister told */
    cr_expect(hdt_stranger_send(&streams[1], &bad, bytes));
    wait_bad(&rig, 7, 0);
    bad = good;
    bad.epoch = 0; /* of an old plan */
    cr_expect(hdt_stranger_send(&streams[1], &bad, bytes));
    cr_expect(hdt_stranger_send(&streams[1], &good, bytes)); /* twice */
    wait_bad(&rig, 7, 2);
    expect_causes(&rig, (const uint64_t[]){2, 1, 1, 2, 1});
    cr_expect_eq(rig.sites[0].n_down, 0);

    /* Bulk on the control stream is a breach: the session ends. */
    cr_expect(hdt_stranger_send(&streams[0], &good, bytes));
    hdt_rig_wait_count(&rig.sites[0].n_down, 1);
    hdt_stranger_close(&streams[0]);
    hdt_stranger_close(&streams[1]);
    hdt_rig_close(&rig);
}

Test(dataplane_faults, wrong_addresses_are_named, .timeout = 60)
{
    struct rig rig;

    hdt_rig_open(&rig, 2);
    hdt_rig_start(&rig);
    hdt_rig_dial(&rig, 0, 0, NULL); /* itself */
    hdt_rig_wait_count(&rig.sites[0].n_refused, 1);
    cr_expect(strstr(rig.sites[0].last_refused.msg, "this gateway itself"), "%s",
              rig.sites[0].last_refused.msg);
    hdt_dataplane_undial(rig.sites[0].dp, "site-a");

    hdt_dataplane_dial(rig.sites[0].dp, "site-c", rig.sites[1].wan); /* there is site-b */
    hdt_rig_wait_count(&rig.sites[1].n_refused, 1);
    cr_expect(strstr(rig.sites[1].last_refused.msg, "has the certificate of 'site-b'"), "%s",
              rig.sites[1].last_refused.msg);
    hdt_dataplane_undial(rig.sites[0].dp, "site-c");
    hdt_rig_close(&rig);
}

Test(dataplane_faults, second_worker_of_a_name_is_refused, .timeout = 60)
{
    struct stranger stranger;
    struct rig rig;
    json_t *msg;
    char *dir;

    hdt_rig_open(&rig, 1);
    rig.sites[0].worker.over_tls = true;
    hdt_rig_start(&rig);
    hdt_rig_wait_count(&rig.sites[0].n_client_up, 1);
    dir = hdt_rig_issue(&rig, "worker", "site-a/w");
    cr_assert(hdt_stranger_open(&stranger, hdt_rig_port(rig.sites[0].lan), dir));
    hdt_stranger_send_msg(
        &stranger, "hello",
        json_pack("{s:i,s:s,s:s}", "proto", HDT_PROTOCOL_VERSION, "role", "worker", "name", "w"));
    msg = hdt_stranger_recv_msg(&stranger);
    cr_assert(msg != NULL);
    cr_expect_str_eq(hdt_msg_type(msg), "error");
    cr_expect_str_eq(json_string_value(json_object_get(hdt_msg_body(msg), "status")), "EEXIST");
    json_decref(msg);
    cr_expect(hdt_stranger_is_dropped(&stranger));
    hdt_stranger_close(&stranger);
    cr_expect_eq(rig.sites[0].n_client_down, 0);
    free(dir);
    hdt_rig_close(&rig);
}

/* A connection may hang for half a minute before it is known to be dead. */
Test(dataplane_faults, a_worker_that_connects_again_replaces_itself, .timeout = 60)
{
    struct stranger strangers[2];
    struct rig rig;
    char *dir;

    hdt_rig_open(&rig, 1);
    rig.sites[0].worker.over_tls = true;
    hdt_rig_start(&rig);
    hdt_rig_wait_count(&rig.sites[0].n_client_up, 1);
    hdt_rig_worker_stop(&rig.sites[0].worker);
    hdt_rig_wait_count(&rig.sites[0].n_client_down, 1);
    dir = hdt_rig_issue(&rig, "worker", "site-a/w");
    for (int i = 0; i < 2; i++) {
        cr_assert(hdt_stranger_open(&strangers[i], hdt_rig_port(rig.sites[0].lan), dir));
        hdt_stranger_send_msg(&strangers[i], "hello",
                              json_pack("{s:i,s:s,s:s,s:s}", "proto", HDT_PROTOCOL_VERSION, "role",
                                        "worker", "name", "w", "instance", "00000000000000aa"));
        hdt_rig_wait_count(&rig.sites[0].n_client_up, 2 + i);
    }
    hdt_rig_wait_count(&rig.sites[0].n_client_down, 2);
    cr_expect(hdt_stranger_is_dropped(&strangers[0]));
    hdt_stranger_close(&strangers[0]);
    hdt_stranger_close(&strangers[1]);
    hdt_rig_wait_count(&rig.sites[0].n_client_down, 3);
    hdt_rig_worker_start(&rig.sites[0].worker);
    free(dir);
    hdt_rig_close(&rig);
}

static void wait_flows(struct rig *rig, size_t n)
{
    struct hdt_flow_stats stats[2];

    while (hdt_dataplane_flow_stats(rig->sites[0].dp, stats, 2) != n) {
        hdt_rig_sleep_ms(1);
    }
}

/* Far more than the sockets' buffers hold, so that most of it was read when the write is over. */
static void write_zeros(struct stranger *stranger, size_t len)
{
    static const uint8_t zeros[1 << 20];

    for (; len > 0; len -= sizeof(zeros)) {
        cr_assert(hdt_stranger_write(stranger, zeros, sizeof(zeros)));
    }
}

Test(dataplane_faults, a_job_ends_in_the_middle_of_a_frame_over_tls, .timeout = 60)
{
    struct hdt_frame frame = {.version = HDT_FRAME_VERSION,
                              .kind = HDT_FRAME_DATA,
                              .job = 7,
                              .epoch = 1,
                              .dtype = HDT_DTYPE_BF16,
                              .frame_len = 32 << 20};
    uint8_t header[HDT_FRAME_HEADER_LEN];
    struct stranger stranger;
    struct rig rig;
    char *dir;

    hdt_rig_open(&rig, 1);
    rig.sites[0].worker.over_tls = true;
    rig.flows[0] = (struct rig_flow){.depth = 1, .frame_cap = frame.frame_len};
    hdt_rig_start(&rig);
    hdt_rig_wait_count(&rig.sites[0].n_client_up, 1);
    hdt_rig_worker_stop(&rig.sites[0].worker);
    hdt_rig_wait_count(&rig.sites[0].n_client_down, 1);
    dir = hdt_rig_issue(&rig, "worker", "site-a/w");
    cr_assert(hdt_stranger_open(&stranger, hdt_rig_port(rig.sites[0].lan), dir));
    hdt_stranger_send_msg(
        &stranger, "hello",
        json_pack("{s:i,s:s,s:s}", "proto", HDT_PROTOCOL_VERSION, "role", "worker", "name", "w"));
    hdt_stranger_send_msg(
        &stranger, "open",
        json_pack("{s:i,s:b,s:i,s:i}", "flow", 0, "is_src", 1, "offset", 0, "next", 0));
    wait_flows(&rig, 1);
    hdt_frame_pack(&frame, header);
    cr_assert(hdt_stranger_write(&stranger, header, sizeof(header)));
    write_zeros(&stranger, 24 << 20);
    hdt_dataplane_job_close(rig.sites[0].dp, 7, UINT32_MAX);
    wait_flows(&rig, 0);
    write_zeros(&stranger, 8 << 20);
    hdt_stranger_close(&stranger);
    hdt_rig_wait_count(&rig.sites[0].n_client_down, 2);
    hdt_rig_worker_start(&rig.sites[0].worker);
    free(dir);
    hdt_rig_close(&rig);
}

Test(dataplane_faults, a_revoked_site_is_closed, .timeout = 60)
{
    struct hdt_peer_stats stats = {0};
    struct rig rig;

    hdt_rig_open(&rig, 2);
    hdt_rig_start(&rig);
    hdt_rig_dial(&rig, 1, 0, NULL);
    hdt_rig_wait_peer(&rig, 0, 1, &stats);
    hdt_dataplane_recheck(rig.sites[0].dp);
    hdt_rig_revoke(&rig, 1, 0);
    cr_expect_eq(rig.sites[0].n_down, 0);
    hdt_dataplane_recheck(rig.sites[0].dp);
    hdt_rig_wait_count(&rig.sites[0].n_down, 1);
    hdt_rig_wait_count(&rig.sites[1].n_refused, 1); /* it dials again and is told */
    cr_expect_eq(rig.sites[0].n_up, 1);
    hdt_rig_close(&rig);
}
