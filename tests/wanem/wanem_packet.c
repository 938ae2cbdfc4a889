/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets on their way.
 *
 * A kernel that may leave segmentation to its device hands over TCP packets of up to 64 KiB, 45
 * wire segments at once. They stay whole here, because each call to the kernel costs more than the
 * copy, and only where the link must treat segments apart (one is lost, or the packet would occupy
 * a slow link for long) a packet leaves in pieces. A piece owns no bytes: it points into the
 * packet, and its headers are made when it is written.
 *
 * Cutting everything to wire size on arrival was refused: simpler, but ten times the system calls.
 */
#include "config.h"

#include "tests/wanem/wanem.h"

#include <arpa/inet.h>
#include <netinet/ip.h>
#include <netinet/ip6.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

HDT_STATIC_ASSERT(offsetof(struct hdt_wanem_packet, virtio) + sizeof(struct virtio_net_hdr) ==
                      offsetof(struct hdt_wanem_packet, data),
                  "a packet is read and written with the virtio header in front");

/* Buffers come in three sizes: acknowledgements, one wire segment and a little more, all else. */
static const size_t class_cap[3] = {256, 4096, 66 * 1024};

/* IP 60 + TCP 60, or IPv6 40 + a few extension headers + TCP 60. */
#define HEADER_CAP 256u

static int packet_class(size_t cap)
{
    int cls = 0;

    while (cls < 2 && class_cap[cls] < cap) {
        cls++;
    }
    HDT_ASSERT(cap <= class_cap[cls]);
    return cls;
}

struct hdt_wanem_packet *hdt_wanem_packet_get(struct hdt_wanem_pool *pool, size_t cap)
{
    int cls = packet_class(cap);
    struct hdt_wanem_packet *packet = pool->free_packets[cls];

    if (packet) {
        pool->free_packets[cls] = packet->next_free;
    } else {
        packet = hdt_malloc(sizeof(*packet) + class_cap[cls]);
        packet->cap = class_cap[cls];
    }
    packet->n_refs = 0;
    packet->len = 0;
    pool->n_bytes_held += packet->cap;
    return packet;
}

void hdt_wanem_packet_put(struct hdt_wanem_pool *pool, struct hdt_wanem_packet *packet)
{
    int cls = packet_class(packet->cap);

    HDT_ASSERT(packet->n_refs == 0);
    pool->n_bytes_held -= packet->cap;
    packet->next_free = pool->free_packets[cls];
    pool->free_packets[cls] = packet;
}

struct hdt_wanem_packet *hdt_wanem_packet_fit(struct hdt_wanem_pool *pool,
                                              struct hdt_wanem_packet *packet)
{
    struct hdt_wanem_packet *small;

    if (packet->len > class_cap[1]) {
        return packet;
    }
    small = hdt_wanem_packet_get(pool, packet->len);
    small->len = packet->len;
    small->header_len = packet->header_len;
    small->segment_len = packet->segment_len;
    small->n_segments = packet->n_segments;
    small->transport_at = packet->transport_at;
    memcpy(&small->virtio, &packet->virtio, sizeof(small->virtio) + packet->len);
    hdt_wanem_packet_put(pool, packet);
    return small;
}

bool hdt_wanem_packet_inspect(struct hdt_wanem_packet *packet)
{
    const struct virtio_net_hdr *virtio = &packet->virtio;
    unsigned gso = virtio->gso_type & ~(unsigned)VIRTIO_NET_HDR_GSO_ECN;
    unsigned version = packet->len > 0 ? packet->data[0] >> 4 : 0;
    uint32_t payload_len;
    struct tcphdr tcp;

    packet->header_len = 0;
    packet->segment_len = packet->len;
    packet->n_segments = 1;
    if (packet->len < sizeof(struct iphdr) || (version != 4 && version != 6) ||
        (version == 6 && packet->len < sizeof(struct ip6_hdr))) {
        return false;
    }
    if (gso == VIRTIO_NET_HDR_GSO_NONE) {
        return true;
    }
    if ((gso != VIRTIO_NET_HDR_GSO_TCPV4 && gso != VIRTIO_NET_HDR_GSO_TCPV6) ||
        virtio->gso_size == 0 || virtio->csum_start < sizeof(struct iphdr) ||
        virtio->csum_start + sizeof(tcp) > packet->len) {
        return false;
    }
    memcpy(&tcp, packet->data + virtio->csum_start, sizeof(tcp));
    packet->transport_at = virtio->csum_start;
    packet->header_len = packet->transport_at + tcp.doff * 4u;
    if (packet->header_len > HEADER_CAP || packet->header_len >= packet->len) {
        return false;
    }
    payload_len = packet->len - packet->header_len;
    packet->segment_len = virtio->gso_size;
    packet->n_segments = (payload_len + packet->segment_len - 1) / packet->segment_len;
    return true;
}

uint32_t hdt_wanem_packet_segment_bytes(const struct hdt_wanem_packet *packet, uint32_t idx)
{
    uint32_t payload_len = packet->len - packet->header_len;
    uint32_t at = idx * packet->segment_len;

    HDT_DASSERT(idx < packet->n_segments);
    if (payload_len - at < packet->segment_len) {
        return packet->header_len + payload_len - at;
    }
    return packet->header_len + packet->segment_len;
}

/* One's complement sum of 16-bit words in network order; `len` is even. */
static uint32_t checksum_add(uint32_t sum, const uint8_t *bytes, size_t len)
{
    for (size_t i = 0; i < len; i += 2) {
        sum += (uint32_t)bytes[i] << 8 | bytes[i + 1];
    }
    return sum;
}

static uint16_t checksum_fold(uint32_t sum)
{
    while (sum >> 16) {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    return (uint16_t)sum;
}

/* Set lengths, identification and checksum of the IP header; returns the sum of TCP's pseudo header
 * over `tcp_len` bytes, which is what a packet carries whose checksum the device completes. */
static uint16_t ip_header_cut(uint8_t *header, uint32_t ip_len, uint32_t tcp_len,
                              uint32_t first_segment)
{
    uint32_t sum = IPPROTO_TCP + tcp_len;

    if (header[0] >> 4 == 4) {
        struct iphdr ip;

        memcpy(&ip, header, sizeof(ip));
        ip.tot_len = htons((uint16_t)ip_len);
        ip.id = htons((uint16_t)(ntohs(ip.id) + first_segment));
        ip.check = 0;
        memcpy(header, &ip, sizeof(ip));
        ip.check = htons((uint16_t)~checksum_fold(checksum_add(0, header, ip.ihl * 4u)));
        memcpy(header, &ip, sizeof(ip));
        return checksum_fold(checksum_add(sum, header + offsetof(struct iphdr, saddr), 8));
    }
    uint16_t payload_len = htons((uint16_t)(ip_len - sizeof(struct ip6_hdr)));

    memcpy(header + offsetof(struct ip6_hdr, ip6_plen), &payload_len, sizeof(payload_len));
    return checksum_fold(checksum_add(sum, header + offsetof(struct ip6_hdr, ip6_src), 32));
}

/* Make the headers of segments [first, first + n) with `payload_len` bytes, as the sender's kernel
 * would have made them for a packet of this size. */
static void piece_headers(const struct hdt_wanem_piece *piece, uint32_t payload_len,
                          struct virtio_net_hdr *virtio, uint8_t *header)
{
    const struct hdt_wanem_packet *packet = piece->packet;
    uint32_t at = packet->transport_at;
    struct tcphdr tcp;
    uint16_t pseudo;

    *virtio = packet->virtio;
    memcpy(header, packet->data, packet->header_len);
    pseudo = ip_header_cut(header, packet->header_len + payload_len,
                           packet->header_len - at + payload_len, piece->first_segment);
    memcpy(&tcp, header + at, sizeof(tcp));
    tcp.seq = htonl(ntohl(tcp.seq) + piece->first_segment * packet->segment_len);
    tcp.check = htons(pseudo);
    if (piece->first_segment > 0) {
        tcp.res2 &= 1; /* CWR, the upper of the two bits, belongs to the first segment only */
    }
    if (piece->first_segment + piece->n_segments < packet->n_segments) {
        tcp.fin = 0;
        tcp.psh = 0;
    }
    memcpy(header + at, &tcp, sizeof(tcp));
    virtio->hdr_len = (uint16_t)packet->header_len;
    if (piece->n_segments == 1) {
        virtio->gso_type = VIRTIO_NET_HDR_GSO_NONE;
        virtio->gso_size = 0;
    }
}

bool hdt_wanem_piece_write(const struct hdt_wanem_piece *piece, int fd)
{
    struct hdt_wanem_packet *packet = piece->packet;
    uint32_t payload_at = piece->first_segment * packet->segment_len;
    uint32_t payload_len = packet->len - packet->header_len - payload_at;
    struct virtio_net_hdr virtio;
    uint8_t header[HEADER_CAP];
    struct iovec iov[3];

    if (piece->n_segments == packet->n_segments) {
        iov[0] = (struct iovec){&packet->virtio, sizeof(packet->virtio) + packet->len};
        return writev(fd, iov, 1) >= 0;
    }
    if (payload_len > piece->n_segments * packet->segment_len) {
        payload_len = piece->n_segments * packet->segment_len;
    }
    piece_headers(piece, payload_len, &virtio, header);
    iov[0] = (struct iovec){&virtio, sizeof(virtio)};
    iov[1] = (struct iovec){header, packet->header_len};
    iov[2] = (struct iovec){packet->data + packet->header_len + payload_at, payload_len};
    return writev(fd, iov, 3) >= 0;
}

struct hdt_wanem_piece *hdt_wanem_piece_get(struct hdt_wanem_pool *pool)
{
    struct hdt_wanem_piece *piece = pool->free_pieces;

    if (piece) {
        pool->free_pieces = piece->next;
    } else {
        piece = hdt_malloc(sizeof(*piece));
    }
    piece->next = NULL;
    return piece;
}

void hdt_wanem_piece_put(struct hdt_wanem_pool *pool, struct hdt_wanem_piece *piece)
{
    HDT_ASSERT(piece->packet->n_refs > 0);
    if (--piece->packet->n_refs == 0) {
        hdt_wanem_packet_put(pool, piece->packet);
    }
    piece->next = pool->free_pieces;
    pool->free_pieces = piece;
}

void hdt_wanem_pool_release(struct hdt_wanem_pool *pool)
{
    for (int cls = 0; cls < 3; cls++) {
        while (pool->free_packets[cls]) {
            struct hdt_wanem_packet *packet = pool->free_packets[cls];

            pool->free_packets[cls] = packet->next_free;
            free(packet);
        }
    }
    while (pool->free_pieces) {
        struct hdt_wanem_piece *piece = pool->free_pieces;

        pool->free_pieces = piece->next;
        free(piece);
    }
}
