/* SPDX-License-Identifier: Apache-2.0 */
/* The emulator's link model on a clock of the test's own, and the cutting of big packets against
 * packets and checksums that are computed here from the standards. */
#include "config.h"

#include "tests/wanem/wanem.h"

#include <criterion/criterion.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MS 1000000ll

/* TCP over IPv4, 40 bytes of headers, `payload_len` bytes that count up; segments of `mss`. */
static struct hdt_wanem_packet *packet_make(struct hdt_wanem_pool *pool, uint32_t payload_len,
                                            uint16_t mss)
{
    static const uint8_t header[40] = {0x45, 0,    0,    0,  0x12, 0x34, 0x40, 0,    64, 6, 0,
                                       0,    10,   71,   0,  1,    10,   71,   0,    2, /* IPv4 */
                                       0x30, 0x39, 0,    80, 0xff, 0xff, 0xff, 0xf0, 0,  0, 0,
                                       1,    0x50, 0x98, 1,  0,    0,    0,    0,    0};
    struct hdt_wanem_packet *packet = hdt_wanem_packet_get(pool, 65536);

    memcpy(packet->data, header, sizeof(header));
    packet->data[33] = 0x80 | 0x18 | 0x01; /* CWR, PSH, ACK, FIN */
    for (uint32_t i = 0; i < payload_len; i++) {
        packet->data[40 + i] = (uint8_t)(i * 7 + i / 256);
    }
    packet->len = 40 + payload_len;
    packet->data[2] = (uint8_t)(packet->len >> 8);
    packet->data[3] = (uint8_t)packet->len;
    packet->virtio = (struct virtio_net_hdr){
        .flags = VIRTIO_NET_HDR_F_NEEDS_CSUM,
        .csum_start = 20,
        .csum_offset = 16,
        .hdr_len = 40,
        .gso_size = payload_len > mss ? mss : 0,
        .gso_type = payload_len > mss ? VIRTIO_NET_HDR_GSO_TCPV4 : VIRTIO_NET_HDR_GSO_NONE};
    cr_assert(hdt_wanem_packet_inspect(packet));
    return packet;
}

static struct hdt_wanem_shape shape_make(const char *text)
{
    char line[256];
    char *words[32];
    int n = 0;
    struct hdt_wanem_shape shape = {.up = true, .loss_burst = 1, .queue_ns = 100 * MS};

    snprintf(line, sizeof(line), "%s", text);
    for (char *save, *word = strtok_r(line, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        words[n++] = word;
    }
    cr_assert_eq(hdt_wanem_shape_parse(words, n, &shape, NULL), HDT_OK, "%s", text);
    return shape;
}

/* Send one packet; put all pieces back and return when the last one arrives. */
static int64_t send_and_drain(struct hdt_wanem_link *link, struct hdt_wanem_pool *pool,
                              struct hdt_wanem_packet *packet, int64_t now_ns)
{
    struct hdt_wanem_piece *piece;
    int64_t last_ns = -1;

    hdt_wanem_link_send(link, packet, now_ns, pool);
    while ((piece = hdt_wanem_link_take(link, INT64_MAX)) != NULL) {
        cr_expect_geq(piece->due_ns, last_ns, "pieces keep their order");
        last_ns = piece->due_ns;
        hdt_wanem_piece_put(pool, piece);
    }
    return last_ns;
}

Test(wanem, a_packet_takes_length_over_rate_plus_delay)
{
    struct hdt_wanem_pool pool = {0};
    struct hdt_wanem_link *link = hdt_wanem_link_new(1);
    struct hdt_wanem_shape shape = shape_make("rate 8mbit rtt 40ms");

    hdt_wanem_link_set(link, &shape, &pool);
    /* 1,000 bytes at 1 byte a microsecond, then 20 ms. */
    cr_expect_eq(send_and_drain(link, &pool, packet_make(&pool, 960, 1460), 5 * MS),
                 5 * MS + 1 * MS + 20 * MS);
    /* Three segments of 1,500 and one of 1,040 bytes: the headers travel with each. */
    cr_expect_eq(send_and_drain(link, &pool, packet_make(&pool, 3 * 1460 + 1000, 1460), 100 * MS),
                 100 * MS + 5540000 + 20 * MS);
    hdt_wanem_link_free(link, &pool);
    cr_expect_eq(pool.n_bytes_held, 0);
    hdt_wanem_pool_release(&pool);
}

Test(wanem, the_queue_holds_what_was_set_and_drops_the_rest)
{
    struct hdt_wanem_pool pool = {0};
    struct hdt_wanem_link *link = hdt_wanem_link_new(1);
    struct hdt_wanem_shape shape = shape_make("rate 8mbit delay 1ms queue 10ms");

    hdt_wanem_link_set(link, &shape, &pool);
    for (int i = 0; i < 30; i++) { /* 30 ms of link time at one instant */
        hdt_wanem_link_send(link, packet_make(&pool, 960, 1460), 0, &pool);
    }
    /* One is being sent, ten wait. */
    cr_expect_eq(link->count.n_overflowed, 30 - 11);
    shape = shape_make("rate 8mbit delay 1ms queue 20kb");
    hdt_wanem_link_set(link, &shape, &pool);
    for (int i = 0; i < 30; i++) {
        hdt_wanem_link_send(link, packet_make(&pool, 960, 1460), 0, &pool);
    }
    cr_expect_eq(link->count.n_overflowed, 30 - 11 + 30 - 10);
    hdt_wanem_link_free(link, &pool);
    hdt_wanem_pool_release(&pool);
}

/* Share of lost segments over many, with packets of several segments. */
static double loss_measure(const char *text, uint64_t seed, uint64_t *n_bursts)
{
    struct hdt_wanem_pool pool = {0};
    struct hdt_wanem_link *link = hdt_wanem_link_new(seed);
    struct hdt_wanem_shape shape = shape_make(text);
    uint64_t n_lost_before = 0;
    bool was_lost = false;
    double share;

    hdt_wanem_link_set(link, &shape, &pool);
    *n_bursts = 0;
    for (int i = 0; i < 200000; i++) {
        send_and_drain(link, &pool, packet_make(&pool, 10, 1460), i);
        bool lost = link->count.n_lost != n_lost_before;

        *n_bursts += lost && !was_lost;
        was_lost = lost;
        n_lost_before = link->count.n_lost;
    }
    share = (double)link->count.n_lost / 200000.0;
    hdt_wanem_link_free(link, &pool);
    hdt_wanem_pool_release(&pool);
    return share;
}

Test(wanem, losses_have_the_rate_and_the_burst_length_that_were_set)
{
    uint64_t n_bursts, n_again;
    double share = loss_measure("loss 2%", 42, &n_bursts);

    /* 4,000 expected, standard deviation 63. */
    cr_expect(share > 0.0185 && share < 0.0215, "share %g", share);
    cr_expect_eq(loss_measure("loss 2%", 42, &n_again), share, "the same seed, the same losses");
    cr_expect_eq(n_again, n_bursts);
    share = loss_measure("loss 2% burst 5", 42, &n_bursts);
    /* About 800 bursts of mean length 5. */
    cr_expect(share > 0.017 && share < 0.023, "share %g", share);
    cr_expect(share * 200000.0 / (double)n_bursts > 4.4 &&
                  share * 200000.0 / (double)n_bursts < 5.6,
              "burst length %g", share * 200000.0 / (double)n_bursts);
    cr_expect_eq(loss_measure("loss 100%", 1, &n_bursts), 1.0);
    cr_expect_eq(loss_measure("loss 0", 1, &n_bursts), 0.0);
}

/* Of a packet of three wire segments the long two go, and a short one of its own passes. */
Test(wanem, what_is_longer_than_the_mtu_vanishes)
{
    struct hdt_wanem_pool pool = {0};
    struct hdt_wanem_link *link = hdt_wanem_link_new(1);
    struct hdt_wanem_shape shape = shape_make("mtu 1000");

    hdt_wanem_link_set(link, &shape, &pool);
    hdt_wanem_link_send(link, packet_make(&pool, 3000, 1460), 0, &pool);
    cr_expect_eq(link->count.n_lost, 2);
    hdt_wanem_link_send(link, packet_make(&pool, 100, 1460), 0, &pool);
    cr_expect_eq(link->count.n_lost, 2);
    hdt_wanem_link_free(link, &pool);
    hdt_wanem_pool_release(&pool);
}

Test(wanem, a_cut_loses_what_is_on_the_wire)
{
    struct hdt_wanem_pool pool = {0};
    struct hdt_wanem_link *link = hdt_wanem_link_new(1);
    struct hdt_wanem_shape shape = shape_make("delay 10ms");

    hdt_wanem_link_set(link, &shape, &pool);
    hdt_wanem_link_send(link, packet_make(&pool, 3000, 1460), 0, &pool);
    shape.up = false;
    hdt_wanem_link_set(link, &shape, &pool);
    cr_expect_null(hdt_wanem_link_take(link, INT64_MAX));
    hdt_wanem_link_send(link, packet_make(&pool, 100, 1460), 0, &pool);
    cr_expect_eq(link->count.n_cut, 4);
    shape.up = true;
    hdt_wanem_link_set(link, &shape, &pool);
    cr_expect_eq(send_and_drain(link, &pool, packet_make(&pool, 100, 1460), 50 * MS), 60 * MS);
    hdt_wanem_link_free(link, &pool);
    hdt_wanem_pool_release(&pool);
}

static uint16_t sum16(const uint8_t *bytes, size_t len, uint32_t sum)
{
    for (size_t i = 0; i < len; i++) {
        sum += i % 2 ? bytes[i] : (uint32_t)bytes[i] << 8;
    }
    while (sum > 0xffff) {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    return (uint16_t)sum;
}

static uint32_t be32(const uint8_t *b)
{
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

/* Write segments [first, first + n) of a packet into a pipe and check all that a receiver sees. */
static void piece_check(struct hdt_wanem_packet *packet, uint32_t first, uint32_t n)
{
    static uint8_t got[70000];
    struct hdt_wanem_piece piece = {.packet = packet, .first_segment = first, .n_segments = n};
    const uint8_t *ip = got + sizeof(struct virtio_net_hdr);
    struct virtio_net_hdr virtio;
    uint32_t want_len = packet->len - 40 - first * 1000;
    bool is_last = first + n == packet->n_segments;
    ssize_t len;
    int fds[2];

    want_len = want_len > n * 1000 ? n * 1000 : want_len;
    cr_assert_eq(pipe(fds), 0);
    cr_assert(hdt_wanem_piece_write(&piece, fds[1]));
    len = read(fds[0], got, sizeof(got)) - (ssize_t)sizeof(virtio);
    close(fds[0]);
    close(fds[1]);
    memcpy(&virtio, got, sizeof(virtio));
    cr_expect_eq(len, 40 + want_len);
    cr_expect_eq(ip[2] << 8 | ip[3], 40 + want_len, "IP length");
    cr_expect_eq(ip[4] << 8 | ip[5], 0x1234 + first, "IP identification");
    cr_expect_eq(sum16(ip, 20, 0), 0xffff, "IP header checksum");
    cr_expect_eq(be32(ip + 24), 0xfffffff0u + first * 1000, "TCP sequence");
    cr_expect_eq(ip[33] & 0x80, first == 0 ? 0x80 : 0, "CWR goes with the first segment");
    cr_expect_eq(ip[33] & 0x09, is_last ? 0x09 : 0, "PSH and FIN go with the last");
    cr_expect_eq(ip[33] & 0x10, 0x10, "ACK stays");
    cr_expect_eq(memcmp(ip + 40, packet->data + 40 + first * 1000, want_len), 0, "payload");
    /* RFC 9293: the sum over source, destination, protocol and TCP length. */
    cr_expect_eq(ip[36] << 8 | ip[37], sum16(ip + 12, 8, IPPROTO_TCP + 20 + want_len), "pseudo");
    cr_expect_eq(virtio.gso_type, n == 1 ? VIRTIO_NET_HDR_GSO_NONE : VIRTIO_NET_HDR_GSO_TCPV4);
}

Test(wanem, a_cut_packet_is_what_the_sender_would_have_sent)
{
    struct hdt_wanem_pool pool = {0};
    struct hdt_wanem_packet *packet = packet_make(&pool, 20500, 1000);

    cr_assert_eq(packet->n_segments, 21);
    piece_check(packet, 0, 1);
    piece_check(packet, 0, 20);
    piece_check(packet, 7, 3);
    piece_check(packet, 19, 2);
    piece_check(packet, 20, 1);
    hdt_wanem_packet_put(&pool, packet);
    hdt_wanem_pool_release(&pool);
}

Test(wanem, damaged_packets_and_settings_are_refused)
{
    static const char *const wrong[] = {"rate",      "rate 5",   "rate fast",     "delay 20",
                                        "loss 101%", "loss -1%", "queue 5apples", "speed 3",
                                        "burst 0.5", "rate nan", "delay 1e99s"};
    struct hdt_wanem_pool pool = {0};
    struct hdt_wanem_packet *packet = packet_make(&pool, 5000, 1000);
    struct hdt_wanem_shape shape = {0};
    struct hdt_error error;

    packet->virtio.csum_start = 5030;
    cr_expect_not(hdt_wanem_packet_inspect(packet), "TCP header beyond the end");
    packet->virtio.csum_start = 20;
    packet->virtio.gso_size = 0;
    cr_expect_not(hdt_wanem_packet_inspect(packet), "segments of no length");
    packet->len = 3;
    cr_expect_not(hdt_wanem_packet_inspect(packet), "no IP header");
    hdt_wanem_packet_put(&pool, packet);
    hdt_wanem_pool_release(&pool);

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        char line[64];
        char *words[2] = {line, NULL};
        int n = 1;

        snprintf(line, sizeof(line), "%s", wrong[i]);
        words[1] = strchr(line, ' ');
        if (words[1]) {
            *words[1]++ = '\0';
            n = 2;
        }
        cr_expect_eq(hdt_wanem_shape_parse(words, n, &shape, &error), HDT_EINVAL, "%s", wrong[i]);
        cr_expect_not(shape.up);
    }
}
