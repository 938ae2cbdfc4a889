/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A member of the federation, with a right certificate, that does not keep to the protocol. Two
 * honest sites exchange frames meanwhile, every one of which is checked bit for bit.
 */
#include "config.h"

#include "compress/codec.h"
#include "src/base/clock.h"
#include "src/core/msg.h"
#include "tests/support/dp_rig.h"
#include "tests/support/dp_stranger.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>
#include <xxhash.h>

#define CHUNK (64u << 10) /* as hdt_stranger_hello announces */

struct bad {
    struct rig rig;
    char *dir;
    struct stranger control, bulk;
};

static void bad_join_control(struct bad *bad)
{
    cr_assert_str_eq(hdt_stranger_join(&bad->control, bad->rig.sites[0].wan_port, bad->dir,
                                       hdt_stranger_hello("site-c", HDT_PROTOCOL_VERSION, 0), NULL),
                     "welcome");
}

static void bad_join_bulk(struct bad *bad)
{
    cr_assert_str_eq(hdt_stranger_join(&bad->bulk, bad->rig.sites[0].wan_port, bad->dir,
                                       hdt_stranger_hello("site-c", HDT_PROTOCOL_VERSION, 1), NULL),
                     "welcome");
}

/* site-a and site-b exchange; site-c is joined by hand. Flow 0: a to b, flow 1: b to a, ... */
static void bad_open(struct bad *bad, uint64_t n_frames)
{
    signal(SIGPIPE, SIG_IGN); /* a stream that is closed on us is what most of this is about */
    memset(bad, 0, sizeof(*bad));
    hdt_rig_open(&bad->rig, 2);
    for (unsigned i = 0; i < 4; i++) {
        bad->rig.flows[bad->rig.n_flows++] = (struct rig_flow){
            .src_site = i % 2,
            .dst_site = 1 - i % 2,
            .depth = 2 + i,
            .frame_cap = 50000,
            .n_frames = n_frames,
            .prio = HDT_PRIO_ACTIVATION,
            .codec = i < 2 ? HDT_CODEC_NONE : HDT_CODEC_LOSSLESS,
        };
    }
    hdt_rig_start(&bad->rig);
    hdt_rig_dial(&bad->rig, 1, 0, NULL);
    bad->dir = hdt_rig_issue(&bad->rig, "site", "site-c");
    bad_join_control(bad);
    bad_join_bulk(bad);
}

static void bad_close(struct bad *bad)
{
    free(bad->dir);
    hdt_rig_close(&bad->rig);
}

/* What site-a has counted of site-c: chunks and other records of flows of others, or a misdeed. */
static uint64_t misdeeds(struct bad *bad, enum hdt_misdeed misdeed)
{
    struct hdt_peer_stats all[4];
    const size_t n = hdt_dataplane_peer_stats(bad->rig.sites[0].dp, all, 4);

    for (size_t i = 0; i < n && i < 4; i++) {
        if (strcmp(all[i].site, "site-c") == 0) {
            return all[i].misdeeds[misdeed] +
                   (misdeed == HDT_MISDEED_FOREIGN ? all[i].bad_by_cause[HDT_BAD_FLOW] : 0);
        }
    }
    return 0;
}

static void wait_misdeeds(struct bad *bad, enum hdt_misdeed cause, uint64_t n)
{
    const int64_t until_us = hdt_clock_now_us() + 20 * HDT_US_PER_S;

    while (misdeeds(bad, cause) < n) {
        cr_assert(hdt_clock_now_us() < until_us, "%s: %llu of %llu", hdt_misdeed_name(cause),
                  (unsigned long long)misdeeds(bad, cause), (unsigned long long)n);
        hdt_rig_sleep_ms(2);
    }
}

static struct hdt_frame chunk_of(uint32_t flow)
{
    return (struct hdt_frame){.kind = HDT_FRAME_CHUNK,
                              .job = 7,
                              .epoch = 1,
                              .flow = flow,
                              .dtype = HDT_DTYPE_BF16,
                              .len = 4096,
                              .frame_len = 8192,
                              .coded_len = 4096};
}

Test(peers, flows_of_others_are_out_of_reach, .timeout = 120)
{
    static uint8_t bytes[4096];
    struct bad bad;

    bad_open(&bad, 400);
    for (uint32_t i = 0; i < 400; i++) {
        struct hdt_frame chunk = chunk_of(i % 5);
        struct hdt_frame state = {.kind = HDT_FRAME_ACK,
                                  .job = 7,
                                  .epoch = 1,
                                  .flow = i % 4,
                                  .flags = i % 2 ? HDT_FRAME_FLAG_STATE : 0,
                                  .seq = 1000,
                                  .offset = 2000,
                                  .raw_len = i,
                                  .xxh3 = UINT64_MAX};
        struct hdt_frame have = {
            .kind = HDT_FRAME_HAVE, .job = 7, .epoch = 1, .flow = i % 4, .seq = i};
        struct hdt_frame again = {.kind = HDT_FRAME_QUERY,
                                  .job = 7,
                                  .epoch = 1,
                                  .flow = i % 4,
                                  .flags = i % 2 ? HDT_FRAME_FLAG_AGAIN : 0,
                                  .seq = i,
                                  .frame_len = 4096};

        chunk.seq = i;
        chunk.epoch = i % 3;
        cr_assert(hdt_stranger_send(&bad.bulk, &chunk, bytes));
        cr_assert(hdt_stranger_send(&bad.control, &state, NULL));
        cr_assert(hdt_stranger_send(&bad.control, &have, NULL));
        cr_assert(hdt_stranger_send(&bad.control, &again, NULL));
    }
    /* Flows 1 and 3 end at site-a, 0 and 2 begin there: each record names one of another peer, but
     * for those of an end that is not there, or of an epoch that is over. */
    wait_misdeeds(&bad, HDT_MISDEED_FOREIGN, 200 + 400);
    hdt_rig_wait_done(&bad.rig, 30);
    cr_expect_eq(bad.rig.sites[0].n_flow_failed, 0);
    cr_expect_eq(bad.rig.sites[1].n_flow_failed, 0);
    hdt_stranger_close(&bad.bulk);
    hdt_stranger_close(&bad.control);
    bad_close(&bad);
}

/* ---- breaches: each closes the stream that it comes on, and nothing else ---- */

static uint8_t payload[(64u << 10) + 4096];

/* Changes of a good chunk's header that no field check may let through. */
static void breach_header(unsigned i, struct hdt_frame *f)
{
    *f = chunk_of(1);
    switch (i) {
    case 0:
        f->kind = 0;
        break;
    case 1:
        f->kind = 99;
        break;
    case 2:
        f->dtype = 99;
        break;
    case 3:
        f->prio = 9;
        break;
    case 4:
        f->len = 0;
        break;
    case 5:
        f->offset = 1; /* not on a granule */
        break;
    case 6:
        f->offset = UINT64_MAX - 4095; /* offset + len overflows */
        break;
    case 7:
        f->offset = 8192; /* behind the end */
        break;
    case 8:
        f->len = 4095; /* ends neither on a granule nor with the frame */
        break;
    case 9:
        f->frame_len = (1u << 30) + 1;
        break;
    case 10:
        f->coded_len = 4096 + 4097; /* longer than any coded form */
        break;
    case 11:
        f->coded_len = 0;
        break;
    case 12:
        f->len = f->frame_len = f->coded_len = CHUNK + 4096; /* longer than announced */
        break;
    default:
        break;
    }
}
#define N_BREACH_HEADERS 13

/* Records that have no place on a bulk stream, and filler longer than it may be. */
static const struct hdt_frame breach_bulk[] = {
    {.kind = HDT_FRAME_ACK, .job = 7},
    {.kind = HDT_FRAME_HAVE, .job = 7},
    {.kind = HDT_FRAME_QUERY, .job = 7},
    {.kind = HDT_FRAME_DATA, .job = 7},
    {.kind = HDT_FRAME_POOL, .offset = 4096},
    {.kind = HDT_FRAME_MSG, .coded_len = 16},
    {.kind = HDT_FRAME_PROBE, .len = CHUNK + 4096, .coded_len = CHUNK + 4096},
    {.kind = HDT_FRAME_PROBE, .len = CHUNK, .coded_len = 0},
    {.kind = HDT_FRAME_PROBE, .len = 16u << 20, .coded_len = 0},
    {.kind = HDT_FRAME_PING, .len = 1},
    {.kind = HDT_FRAME_PONG, .coded_len = 1},
};
#define N_BREACH_BULK (sizeof(breach_bulk) / sizeof(breach_bulk[0]))

static void expect_breach(struct bad *bad, struct stranger *stranger, struct hdt_frame *f,
                          uint64_t n_before)
{
    uint8_t header[HDT_FRAME_HEADER_LEN];

    f->version = HDT_FRAME_VERSION;
    hdt_frame_pack(f, header);
    cr_assert(hdt_stranger_write(stranger, header, sizeof(header)));
    /* What would overrun a buffer if the record were taken: more than the kernel holds back. */
    for (int i = 0; i < 64 && hdt_stranger_write(stranger, payload, sizeof(payload)); i++) {
    }
    wait_misdeeds(bad, HDT_MISDEED_BREACH, n_before + 1);
    hdt_stranger_close(stranger);
}

Test(peers, a_breach_on_a_bulk_stream_closes_that_stream, .timeout = 120)
{
    struct hdt_frame f;
    struct bad bad;
    uint64_t n = 0;

    bad_open(&bad, 300);
    for (unsigned i = 0; i < N_BREACH_HEADERS + N_BREACH_BULK; i++) {
        if (i < N_BREACH_HEADERS) {
            breach_header(i, &f);
        } else {
            f = breach_bulk[i - N_BREACH_HEADERS];
        }
        expect_breach(&bad, &bad.bulk, &f, n++);
        bad_join_bulk(&bad);
    }
    cr_expect_eq(misdeeds(&bad, HDT_MISDEED_BREACH), n);
    cr_expect_eq(bad.rig.sites[0].n_down, 0); /* its session stands, as does the other's */
    hdt_rig_wait_done(&bad.rig, 30);
    hdt_stranger_close(&bad.bulk);
    hdt_stranger_close(&bad.control);
    bad_close(&bad);
}

/* Five bytes that announce 2^32 items, and levels without end. */
static void message_bytes(unsigned i, struct hdt_frame *f)
{
    memset(payload, 0x91, sizeof(payload)); /* an array of an array of ... */
    *f = (struct hdt_frame){.kind = HDT_FRAME_MSG, .coded_len = sizeof(payload)};
    switch (i) {
    case 0:
        memcpy(payload, "\xdd\xff\xff\xff\xff", 5);
        break;
    case 1:
        break;
    case 2:
        f->coded_len = (8u << 20) + 1;
        break;
    case 3:
        f->coded_len = 0;
        break;
    case 4:
        payload[0] = 0x01; /* a number, and bytes behind it */
        break;
    case 5:
        f->kind = HDT_FRAME_CHUNK; /* bulk on the control stream */
        f->len = f->frame_len = f->coded_len = 4096;
        break;
    default:
        break;
    }
}

Test(peers, a_breach_on_the_control_stream_closes_the_session, .timeout = 120)
{
    struct hdt_frame f;
    struct bad bad;
    uint64_t n = 0;

    bad_open(&bad, 300);
    hdt_stranger_close(&bad.bulk);
    for (unsigned i = 0; i < 6; i++) {
        message_bytes(i, &f);
        expect_breach(&bad, &bad.control, &f, n++);
        hdt_rig_wait_count(&bad.rig.sites[0].n_down, (int)n);
        bad_join_control(&bad);
    }
    hdt_rig_wait_done(&bad.rig, 30);
    hdt_stranger_close(&bad.control);
    bad_close(&bad);
}

/* A quarter of a million values in as many bytes would be sixteen megabytes of memory. */
Test(peers, a_message_of_too_many_values_is_a_breach, .timeout = 60)
{
    const uint32_t n_values = 1u << 18;
    uint8_t *bytes = malloc(5 + n_values);
    struct hdt_frame f = {.kind = HDT_FRAME_MSG, .coded_len = 5 + n_values};
    struct bad bad;

    memset(bytes, 0, 5 + n_values);
    memcpy(bytes, "\xdd\x00\x04\x00\x00", 5);
    bad_open(&bad, 100);
    cr_assert(hdt_stranger_send(&bad.control, &f, bytes));
    wait_misdeeds(&bad, HDT_MISDEED_BREACH, 1);
    hdt_rig_wait_done(&bad.rig, 30);
    hdt_stranger_close(&bad.bulk);
    hdt_stranger_close(&bad.control);
    free(bytes);
    bad_close(&bad);
}

/* ---- floods ---- */

static void flood(struct bad *bad, struct stranger *stranger, struct hdt_frame f, unsigned n)
{
    uint8_t burst[256][HDT_FRAME_HEADER_LEN];

    f.version = HDT_FRAME_VERSION;
    for (unsigned i = 0; i < 256; i++) {
        hdt_frame_pack(&f, burst[i]);
    }
    for (unsigned i = 0; i < n; i += 256) {
        if (!hdt_stranger_write(stranger, burst, sizeof(burst))) {
            return; /* it is read no more, for now: that is the point */
        }
        if (misdeeds(bad, HDT_MISDEED_FLOOD) > 2) {
            return;
        }
    }
}

Test(peers, floods_are_read_slowly, .timeout = 120)
{
    const struct hdt_frame ping = {.kind = HDT_FRAME_PING, .seq = 1, .offset = 1};
    const struct hdt_frame query = {.kind = HDT_FRAME_QUERY, .job = 9, .epoch = 1};
    struct bad bad;

    bad_open(&bad, 400);
    flood(&bad, &bad.control, query, 1u << 20);
    wait_misdeeds(&bad, HDT_MISDEED_FLOOD, 1);
    flood(&bad, &bad.bulk, ping, 1u << 20);
    wait_misdeeds(&bad, HDT_MISDEED_FLOOD, 2);
    hdt_rig_wait_done(&bad.rig, 30);
    hdt_stranger_close(&bad.bulk);
    hdt_stranger_close(&bad.control);
    bad_close(&bad);
}

Test(peers, key_changes_without_bytes_are_a_breach, .timeout = 60)
{
    struct bad bad;

    bad_open(&bad, 100);
    for (int i = 0; i < 100000 && misdeeds(&bad, HDT_MISDEED_BREACH) == 0; i++) {
        if (SSL_key_update(bad.bulk.ssl, SSL_KEY_UPDATE_NOT_REQUESTED) != 1 ||
            SSL_do_handshake(bad.bulk.ssl) != 1) {
            break;
        }
    }
    wait_misdeeds(&bad, HDT_MISDEED_BREACH, 1);
    hdt_rig_wait_done(&bad.rig, 30);
    hdt_stranger_close(&bad.bulk);
    hdt_stranger_close(&bad.control);
    bad_close(&bad);
}

/* Dials until it is refused, as process instances[i % n_instances] of its site, one that nobody has
 * seen where that is NULL; the refusal has to say `hint`. */
static void dial_until_refused(const char *const *instances, unsigned n_instances, const char *hint)
{
    struct bad bad;
    unsigned n = 0;
    const char *said;
    json_t *answer = NULL;

    bad_open(&bad, 100);
    hdt_stranger_close(&bad.bulk);
    do {
        json_t *hello = hdt_stranger_hello("site-c", HDT_PROTOCOL_VERSION, 0);
        const char *instance = instances[n % n_instances];
        char fresh[17];

        snprintf(fresh, sizeof(fresh), "%016x", 0xf00 + n);
        json_object_set_new(hello, "instance", json_string(instance ? instance : fresh));
        hdt_stranger_close(&bad.control);
        json_decref(answer);
        answer = NULL;
        said = hdt_stranger_join(&bad.control, bad.rig.sites[0].wan_port, bad.dir, hello, &answer);
        n++;
        cr_assert_lt(n, 200u);
    } while (strcmp(said, "welcome") == 0);
    cr_expect_geq(n, 15u);
    cr_expect(strstr(json_string_value(json_object_get(answer, "msg")), "sessions within seconds"));
    cr_expect(strstr(json_string_value(json_object_get(answer, "hint")), hint), "said: %s",
              json_string_value(json_object_get(answer, "hint")));
    json_decref(answer);
    hdt_stranger_close(&bad.control);
    hdt_rig_wait_done(&bad.rig, 30);
    bad_close(&bad);
}

Test(peers, sessions_again_and_again_are_refused, .timeout = 60)
{
    dial_until_refused((const char *[]){"0000000000000abc"}, 1, "the link to 'site-c' breaks");
}

Test(peers, a_gateway_that_restarts_for_ever_is_called_that, .timeout = 60)
{
    dial_until_refused((const char *[]){NULL}, 1, "starts again and again");
}

Test(peers, two_gateways_of_one_name_are_called_that, .timeout = 60)
{
    dial_until_refused((const char *[]){"0000000000000abc", "0000000000000def"}, 2,
                       "two gateways run as site 'site-c'");
}

/* A stream whose session ended while it was dialled is refused; that the other end, which does not
 * know yet, says PING is no fault of it. */
Test(peers, a_ping_behind_a_hello_that_is_refused_is_no_breach, .timeout = 60)
{
    struct hdt_frame ping;
    struct rig rig;
    char *dir;

    signal(SIGPIPE, SIG_IGN);
    hdt_rig_open(&rig, 1);
    hdt_rig_start(&rig);
    dir = hdt_rig_issue(&rig, "site", "site-c");
    for (int i = 0; i < 20; i++) {
        struct stranger s;
        json_t *msg;

        cr_assert(hdt_stranger_open(&s, rig.sites[0].wan_port, dir));
        cr_assert(hdt_stranger_send_msg(&s, "hello",
                                        hdt_stranger_hello("site-c", HDT_PROTOCOL_VERSION, 1)));
        for (int n = 0; n < 20; n++) {
            ping = (struct hdt_frame){.kind = HDT_FRAME_PING, .seq = (uint64_t)n};
            (void)hdt_stranger_send(&s, &ping, NULL);
        }
        msg = hdt_stranger_recv_msg(&s);
        cr_assert_not_null(msg);
        cr_expect_str_eq(hdt_msg_type(msg), "refuse");
        json_decref(msg);
        hdt_stranger_close(&s);
    }
    cr_expect_eq(rig.sites[0].n_refused, 0u, "%u", rig.sites[0].n_refused);
    free(dir);
    hdt_rig_close(&rig);
}

/* Chunks of 8 MiB on 64 streams would be 1.5 GB: the others need some of the memory, too. */
Test(peers, one_peer_gets_half_of_the_memory_at_most, .timeout = 60)
{
    struct stranger streams[8];
    json_t *hello, *answer = NULL;
    const char *said = "welcome";
    struct bad bad;
    unsigned n = 0;

    bad_open(&bad, 100);
    hdt_stranger_close(&bad.bulk);
    hdt_stranger_close(&bad.control);
    hello = hdt_stranger_hello("site-c", HDT_PROTOCOL_VERSION, 0);
    json_object_set_new(hello, "chunk", json_integer(8 << 20));
    json_object_set_new(hello, "streams", json_integer(64));
    cr_assert_str_eq(
        hdt_stranger_join(&bad.control, bad.rig.sites[0].wan_port, bad.dir, hello, NULL),
        "welcome");
    while (strcmp(said, "welcome") == 0 && n < 8) {
        said =
            hdt_stranger_join(&streams[n], bad.rig.sites[0].wan_port, bad.dir,
                              hdt_stranger_hello("site-c", HDT_PROTOCOL_VERSION, n + 1), &answer);
        n++;
        if (strcmp(said, "welcome") == 0) {
            json_decref(answer);
        }
    }
    cr_expect_eq(n, 1u + (bad.rig.conf.memory_bytes / 2) / (3 * (8u << 20)));
    cr_expect(strstr(json_string_value(json_object_get(answer, "msg")), "half of the setting"));
    json_decref(answer);
    hdt_rig_wait_done(&bad.rig, 30);
    while (n > 0) {
        hdt_stranger_close(&streams[--n]);
    }
    hdt_stranger_close(&bad.control);
    bad_close(&bad);
}

/* ---- lies about flows of its own: the job is told, and no other is touched ---- */

/* site-a alone; its flow 0 goes to "site-b", played by hand. */
static void own_open(struct rig *rig, struct stranger streams[2])
{
    char *dir;

    hdt_rig_open(rig, 2);
    rig->flows[0] = (struct rig_flow){
        .src_site = 0, .dst_site = 1, .depth = 2, .frame_cap = 5000, .n_frames = 10};
    rig->n_flows = 1;
    hdt_rig_start(rig);
    dir = hdt_rig_issue(rig, "site", "site-b");
    for (unsigned i = 0; i < 2; i++) {
        cr_assert_str_eq(hdt_stranger_join(&streams[i], rig->sites[0].wan_port, dir,
                                           hdt_stranger_hello("site-b", HDT_PROTOCOL_VERSION, i),
                                           NULL),
                         "welcome");
    }
    free(dir);
}

static void own_close(struct rig *rig, struct stranger streams[2])
{
    hdt_stranger_close(&streams[0]);
    hdt_stranger_close(&streams[1]);
    hdt_rig_close(rig);
}

/* The next record of that kind on the bulk stream. */
static void recv_chunk(struct stranger *stranger, struct hdt_frame *f)
{
    static uint8_t bytes[CHUNK];
    uint8_t header[HDT_FRAME_HEADER_LEN];

    do {
        cr_assert(hdt_stranger_read(stranger, header, sizeof(header)));
        cr_assert_eq(hdt_frame_unpack(header, f, NULL), HDT_OK);
        cr_assert(hdt_stranger_read(stranger, bytes, f->coded_len));
    } while (f->kind != HDT_FRAME_CHUNK);
}

static struct hdt_frame own_state(uint64_t seq, uint64_t credit)
{
    return (struct hdt_frame){.kind = HDT_FRAME_ACK,
                              .job = 7,
                              .epoch = 1,
                              .flags = HDT_FRAME_FLAG_STATE,
                              .seq = seq,
                              .offset = credit,
                              .raw_len = 1};
}

static void expect_failed_by(uint64_t seq, uint64_t credit)
{
    struct stranger streams[2];
    struct hdt_frame state = own_state(0, 2), lie = own_state(seq, credit), chunk;
    struct rig rig;

    own_open(&rig, streams);
    cr_assert(hdt_stranger_send(&streams[0], &state, NULL));
    recv_chunk(&streams[1], &chunk);
    cr_expect_eq(rig.sites[0].n_flow_failed, 0);
    lie.flags = 0;
    cr_assert(hdt_stranger_send(&streams[0], &lie, NULL));
    hdt_rig_wait_count(&rig.sites[0].n_flow_failed, 1);
    own_close(&rig, streams);
}

Test(peers, an_ack_beyond_what_was_sent_is_told, .timeout = 60)
{
    expect_failed_by(1000, 1001);
}

Test(peers, credit_beyond_the_slots_is_told, .timeout = 60)
{
    expect_failed_by(0, 3);
}

Test(peers, credit_that_overflows_is_told, .timeout = 60)
{
    expect_failed_by(0, UINT64_MAX);
}

Test(peers, credit_before_the_ack_is_told, .timeout = 60)
{
    expect_failed_by(1, 0);
}

Test(peers, an_end_that_goes_backwards_is_told, .timeout = 60)
{
    struct stranger streams[2];
    struct hdt_frame state = own_state(0, 2), ack = own_state(1, 3), chunk;
    struct rig rig;

    own_open(&rig, streams);
    cr_assert(hdt_stranger_send(&streams[0], &state, NULL));
    recv_chunk(&streams[1], &chunk);
    ack.flags = 0;
    cr_assert(hdt_stranger_send(&streams[0], &ack, NULL));
    cr_assert(hdt_stranger_send(&streams[0], &state, NULL));
    hdt_rig_wait_count(&rig.sites[0].n_flow_failed, 1);
    own_close(&rig, streams);
}

Test(peers, asking_again_for_ever_ends, .timeout = 60)
{
    struct stranger streams[2];
    struct hdt_frame state = own_state(0, 1), chunk;
    struct hdt_frame again = {.kind = HDT_FRAME_QUERY,
                              .job = 7,
                              .epoch = 1,
                              .flags = HDT_FRAME_FLAG_AGAIN,
                              .frame_len = 1};
    struct rig rig;
    int n = 0;

    own_open(&rig, streams);
    cr_assert(hdt_stranger_send(&streams[0], &state, NULL));
    recv_chunk(&streams[1], &chunk);
    while (atomic_load(&rig.sites[0].n_flow_failed) == 0 && n < 100000) {
        cr_assert(hdt_stranger_send(&streams[0], &again, NULL));
        n++;
    }
    cr_expect_gt(n, 1000);
    own_close(&rig, streams);
}

/* Answers to no question, with every clock: a wrong one must not be an overflow. */
Test(peers, pongs_that_nobody_asked_for_mean_nothing, .timeout = 60)
{
    static const uint64_t clocks[] = {0, 1, INT64_MAX, (uint64_t)INT64_MIN, UINT64_MAX};
    struct hdt_peer_stats stats = {0};
    struct bad bad;

    bad_open(&bad, 100);
    for (unsigned i = 0; i < 25; i++) {
        struct hdt_frame pong = {
            .kind = HDT_FRAME_PONG, .seq = i % 2, .offset = clocks[i / 5], .xxh3 = clocks[i % 5]};

        cr_assert(hdt_stranger_send(&bad.control, &pong, NULL));
        pong.offset = (uint64_t)hdt_clock_now_us();
        cr_assert(hdt_stranger_send(&bad.control, &pong, NULL));
    }
    hdt_rig_wait_done(&bad.rig, 30);
    cr_expect(hdt_rig_peer_stats(&bad.rig, 0, 1, &stats));
    cr_expect_lt(stats.rtt_us, 20 * HDT_US_PER_S);
    hdt_stranger_close(&bad.bulk);
    hdt_stranger_close(&bad.control);
    bad_close(&bad);
}
