/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_WANEM_H
#define HDT_WANEM_H

/*
 * hdt-wanem: wide-area links in user space.
 *
 * A *port* is a TUN device in a network namespace. A *link* joins two ports in one direction and
 * has a rate, a delay, jitter, loss and a queue. A packet that a port's kernel sends is looked up
 * by its destination address, given to the link between the two ports, and written to the other
 * port when its time has come. Sockets at both ends are the kernel's own.
 *
 * One thread does everything; none of this is safe to call from several.
 */
#include "src/base/buf.h"
#include "src/base/error.h"

#include <net/if.h>
#include <linux/virtio_net.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HDT_WANEM_PORTS_MAX   16
#define HDT_WANEM_ROUTES_MAX  128
#define HDT_WANEM_SYSCTLS_MAX 32
#define HDT_WANEM_NAME_CAP    32
#define HDT_WANEM_LINE_CAP    1024

/* A packet as the kernel hands it over: up to 64 KiB, to be cut into wire segments later (TSO). */
struct hdt_wanem_packet {
    struct hdt_wanem_packet *next_free;
    size_t cap;                   /* bytes of data[] */
    uint32_t len;                 /* IP packet, without the virtio header */
    uint32_t n_refs;              /* pieces that still point here */
    uint32_t header_len;          /* IP and TCP headers that each segment repeats; 0: one segment */
    uint32_t segment_len;         /* payload bytes of each segment but the last */
    uint32_t n_segments;          /* at least 1 */
    uint32_t transport_at;        /* offset of the TCP header when header_len is not 0 */
    struct virtio_net_hdr virtio; /* directly in front of data[]: both are read in one call */
    uint8_t data[];
};

/* Neighbouring segments of one packet that arrive together. */
struct hdt_wanem_piece {
    struct hdt_wanem_piece *next;
    struct hdt_wanem_packet *packet;
    int64_t due_ns;
    uint32_t first_segment;
    uint32_t n_segments;
};

/* Packets and pieces are recycled; n_bytes_held bounds what all links together keep in flight. */
struct hdt_wanem_pool {
    struct hdt_wanem_packet *free_packets[3];
    struct hdt_wanem_piece *free_pieces;
    size_t n_bytes_held;
};

/* What a user sets. All zero is a perfect link that is down. */
struct hdt_wanem_shape {
    uint64_t rate_bits_per_s; /* 0: no limit */
    int64_t delay_ns;
    int64_t jitter_ns;
    double loss;          /* share of wire segments that are lost */
    double loss_burst;    /* mean number of segments lost in a row, at least 1 */
    int64_t queue_ns;     /* the queue holds so much link time, when queue_bytes is 0 */
    uint64_t queue_bytes; /* or so many bytes */
    uint32_t overhead;    /* bytes that a packet has on the wire besides its IP packet */
    uint32_t mtu;         /* longer IP packets are lost and nobody is told; 0: none are */
    bool up;
};

struct hdt_wanem_counters {
    uint64_t n_segments_in, n_bytes_in;   /* what the sending kernel gave */
    uint64_t n_segments_out, n_bytes_out; /* what arrived */
    uint64_t n_lost, n_overflowed, n_cut; /* segments: random loss, full queue, link down */
    int64_t queue_peak_ns, late_peak_ns;  /* longest wait in the queue; latest delivery */
};

struct hdt_wanem_link {
    struct hdt_wanem_shape shape;
    struct hdt_wanem_counters count;
    int64_t busy_until_ns;  /* when the last accepted segment leaves the queue */
    int64_t last_due_ns;    /* packets never pass each other */
    uint64_t random;        /* state of the generator */
    int64_t loss_countdown; /* segments until the next change between keeping and losing */
    bool losing;
    struct hdt_wanem_piece *head, *tail;
};

struct hdt_wanem_addr {
    uint8_t bytes[16];
    uint8_t family; /* AF_INET or AF_INET6 */
    uint8_t prefix_len;
};

struct hdt_wanem_route {
    struct hdt_wanem_addr dst;
    int port_idx;
    bool is_address; /* set on the device; otherwise a network behind it */
};

struct hdt_wanem_port {
    char name[HDT_WANEM_NAME_CAP];
    char site[HDT_WANEM_NAME_CAP]; /* its namespace is the prefix followed by this */
    char dev[IFNAMSIZ];
    unsigned mtu;
    int fd;
    uint64_t n_stray;        /* packets to nowhere: no route or no link */
    uint64_t n_write_errors; /* packets that the receiving kernel did not take */
};

struct hdt_wanem {
    char netns_prefix[HDT_WANEM_NAME_CAP];
    struct hdt_wanem_port ports[HDT_WANEM_PORTS_MAX];
    int n_ports;
    struct hdt_wanem_route routes[HDT_WANEM_ROUTES_MAX];
    int n_routes;
    char *sysctls[HDT_WANEM_SYSCTLS_MAX]; /* "net/ipv4/tcp_rmem=4096 ..." */
    int n_sysctls;
    struct hdt_wanem_link *links[HDT_WANEM_PORTS_MAX][HDT_WANEM_PORTS_MAX]; /* [from][to] */
    uint64_t seed;
    struct hdt_wanem_pool pool;
    bool is_running; /* ports exist; new ones are refused */
    bool quit;
};

/* ---- wanem_packet.c ---- */

/* A packet with room for `cap` bytes, with no references. Ends the process when memory is out. */
struct hdt_wanem_packet *hdt_wanem_packet_get(struct hdt_wanem_pool *pool, size_t cap);
void hdt_wanem_packet_put(struct hdt_wanem_pool *pool, struct hdt_wanem_packet *packet);

/* Move a short packet out of a big buffer, so that what waits costs what it holds. Gives `packet`
 * back when it was copied; returns the one to use. */
struct hdt_wanem_packet *hdt_wanem_packet_fit(struct hdt_wanem_pool *pool,
                                              struct hdt_wanem_packet *packet);

/* Fill in the segments of a packet whose virtio, data and len were read. False: malformed. */
bool hdt_wanem_packet_inspect(struct hdt_wanem_packet *packet);

/* IP bytes of segment `idx`, headers included. */
uint32_t hdt_wanem_packet_segment_bytes(const struct hdt_wanem_packet *packet, uint32_t idx);

/* Write a piece into `fd`, as the packet that a sender would have cut. False with errno. */
bool hdt_wanem_piece_write(const struct hdt_wanem_piece *piece, int fd);

struct hdt_wanem_piece *hdt_wanem_piece_get(struct hdt_wanem_pool *pool);

/* Give the piece back and drop its reference on the packet. */
void hdt_wanem_piece_put(struct hdt_wanem_pool *pool, struct hdt_wanem_piece *piece);

/* Free all that waits in the free lists. */
void hdt_wanem_pool_release(struct hdt_wanem_pool *pool);

/* ---- wanem_link.c ---- */

/* A link that is up, without limits, whose losses follow from `seed`. Freed by link_free. */
struct hdt_wanem_link *hdt_wanem_link_new(uint64_t seed);
void hdt_wanem_link_free(struct hdt_wanem_link *link, struct hdt_wanem_pool *pool);

/* Restart the random generator: the same packets meet the same losses again. */
void hdt_wanem_link_seed(struct hdt_wanem_link *link, uint64_t seed);

/* Change the settings; a link that goes down loses what is on the wire. */
void hdt_wanem_link_set(struct hdt_wanem_link *link, const struct hdt_wanem_shape *shape,
                        struct hdt_wanem_pool *pool);

/* Send a packet at `now_ns`. Takes the packet, which may be lost in part or whole. */
void hdt_wanem_link_send(struct hdt_wanem_link *link, struct hdt_wanem_packet *packet,
                         int64_t now_ns, struct hdt_wanem_pool *pool);

/* The first piece whose time has come, or NULL; the caller puts it back. */
struct hdt_wanem_piece *hdt_wanem_link_take(struct hdt_wanem_link *link, int64_t now_ns);

/* When the next piece is due; INT64_MAX when the link is empty. */
int64_t hdt_wanem_link_next_ns(const struct hdt_wanem_link *link);

/* ---- wanem_parse.c: the language of topology files and of the control socket ---- */

/* Carry out one line; what it prints goes to `out`. HDT_EINVAL with the allowed form. */
enum hdt_status hdt_wanem_command(struct hdt_wanem *em, const char *line, struct hdt_buf *out,
                                  struct hdt_error *err);

/* Read a topology file; errors say file:line. */
enum hdt_status hdt_wanem_load(struct hdt_wanem *em, const char *path, struct hdt_error *err);

/* Read link settings (argv of words) over `shape`. */
enum hdt_status hdt_wanem_shape_parse(char **words, int n_words, struct hdt_wanem_shape *shape,
                                      struct hdt_error *err);

/* ---- wanem_port.c, wanem_netlink.c ---- */

/* Make the TUN devices of all ports in their namespaces, with addresses, routes and sysctls. The
 * devices vanish when the process ends. */
enum hdt_status hdt_wanem_ports_open(struct hdt_wanem *em, struct hdt_error *err);
void hdt_wanem_ports_close(struct hdt_wanem *em);

/* The port that `packet` goes to, or -1. */
int hdt_wanem_route(const struct hdt_wanem *em, const struct hdt_wanem_packet *packet);

/* Configure device `dev` of the namespace that this thread is in. Statuses HDT_EIO, HDT_EACCES. */
enum hdt_status hdt_wanem_netlink_up(const char *dev, unsigned mtu, struct hdt_error *err);
enum hdt_status hdt_wanem_netlink_addr(const char *dev, const struct hdt_wanem_addr *addr,
                                       struct hdt_error *err);
enum hdt_status hdt_wanem_netlink_route(const char *dev, const struct hdt_wanem_addr *dst,
                                        struct hdt_error *err);

/* ---- wanem_show.c ---- */

/* Settings and counters of every link, for people or as JSON. */
void hdt_wanem_show(const struct hdt_wanem *em, bool as_json, struct hdt_buf *out);

/* ---- wanem_loop.c ---- */

/* Forward packets and serve `listen_fd` (-1: none) until "quit" or SIGTERM, SIGINT. */
enum hdt_status hdt_wanem_loop(struct hdt_wanem *em, int listen_fd, struct hdt_error *err);

/* ---- wanem_ctl.c ---- */

/* Listen on a Unix socket at `path`; a dead one that is left there is replaced. */
enum hdt_status hdt_wanem_ctl_listen(const char *path, int *fd, struct hdt_error *err);

/* Answer the request that waits on `fd`; false when the client is done. */
bool hdt_wanem_ctl_serve(struct hdt_wanem *em, int fd);

/* Send one command and print the answer; exit status for main. */
int hdt_wanem_ctl_call(const char *path, const char *command);

#endif /* HDT_WANEM_H */
