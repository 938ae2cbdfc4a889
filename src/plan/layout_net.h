/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_PLAN_LAYOUT_NET_H
#define HDT_PLAN_LAYOUT_NET_H

/*
 * The links of a layout's cluster as the simulator wants them, and the ways over them. Shared by
 * the files of layout_sim.h.
 *
 *   inside   of a group, out and in: to other groups of its node
 *   port     of a group, out and in: what its devices alone get of their node's link
 *   node     out and in: to other nodes, shared by all groups there
 *   pair     the same to the nodes of one other kind, where the cluster says so
 *   host     of a group, out and in: its devices' own ways to the memory of their node
 *   leg      from site to site, each direction, shared by all that cross it
 *
 * A half-duplex link has one for both directions.
 */
#include "src/plan/layout_sim.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LAYOUT_ROUTE_MAX (HDT_CLUSTER_FILE_MAX_LEGS + 4)

/* Where the rate of a link comes from. */
struct layout_link_rate {
    const struct hdt_link_curve *curve; /* NULL: it does not depend on the size of what is sent */
    int64_t devices;                    /* that use it at once */
    double times;                       /* the curve's rate */
};

struct layout_net {
    const struct hdt_layout_files *files;
    double message_bytes; /* of each device: the size that rates are taken at */
    size_t n_groups;
    size_t *node_of;    /* by group */
    int64_t *n_devices; /* by node: in use */
    size_t n_nodes;
    /* Positions in `links` by [2 * i + is_in]; -1: not made yet. */
    int *inside, *port, *node, *pair, *host, *leg;
    size_t n_pairs; /* of the site that has most: pairs of node n begin at n * n_pairs */
    struct hdt_sim_link *links;
    struct layout_link_rate *rates;
    struct hdt_layout_link *names;
    double *uses; /* by link: how often what is being built crosses it; 0 between the calls */
    size_t n_links, cap;
};

void hdt_layout_net_init(struct layout_net *net, const struct hdt_layout_files *files,
                         double message_bytes);
void hdt_layout_net_release(struct layout_net *net);

struct layout_route {
    int links[LAYOUT_ROUTE_MAX];
    size_t n;
    double latency_s;
    double loss; /* between sites */
    bool is_wan;
};

/* From group to group. */
void hdt_layout_net_route(struct layout_net *net, size_t src, size_t dst,
                          struct layout_route *route);

/* The link of a group to its host's memory, whose rate is known; is_in: back from there. */
int hdt_layout_net_host(struct layout_net *net, size_t group, bool is_in);

/* What groups add up. */
struct layout_sum {
    const size_t *groups; /* in their order */
    size_t n;
    double bytes;         /* in each group, or its node, or its site */
    int64_t devices;      /* that share them there, and send pieces of their shares */
    double nominal_share; /* that it gets of a nominal rate */
    const double *hops;   /* of a ring, by group: of the bytes, what goes to the next one, 1 of the
                             hop that has most; NULL: all */
};

/* All hops of a ring as one way for one frame; where they carry unlike bytes, all take as long as
 * the slowest. */
struct layout_ring {
    int *links;     /* none twice; free() */
    double *shares; /* by link: of `bytes`, what it carries; NULL: all. free() */
    size_t n, cap;
    double latency_s; /* of all rounds */
    double bytes;     /* on the link that carries most: the one that most hops cross */
    double weight;    /* by which links that have the rates of messages carry them as a ring does */
};
enum layout_ring_use { LAYOUT_RING_ALL, LAYOUT_RING_NODES, LAYOUT_RING_SITES };

/* All-reduce through groups, in their order. NODES: for all devices of a node, so that no port is
 * in the way; SITES: only what lies between sites counts. Rates are those of the pieces that a ring
 * sends, one n-th of the bytes of a device; a link that several hops cross at once, as both ways of
 * a half-duplex one are, carries a piece of each. */
void hdt_layout_net_ring(struct layout_net *net, const struct layout_sum *sum,
                         enum layout_ring_use use, struct layout_ring *ring);

/* The same by two binary trees over the nodes, each for half of the bytes, up to its root and down
 * again, in pieces so small that filling it takes latency alone. What is a leaf in one tree is none
 * in the other, so that every node sends and receives twice the bytes at most [Sanders, Speck,
 * Traeff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, Parallel Computing
 * 35, 2009]. Groups of a node are a chain, whose first one is in the trees, and all their devices
 * send for it, through no port [as NCCL has it]: `devices` are those of a node. */
void hdt_layout_net_tree(struct layout_net *net, const struct layout_sum *sum,
                         struct layout_ring *tree);

/* Add a ring that goes at the same time over other links: bytes of the one with more, as slow as
 * the slower. `all` begins zeroed; free() its links. */
void hdt_layout_net_ring_join(const struct layout_net *net, struct layout_ring *all,
                              const struct layout_ring *ring);

#ifdef __cplusplus
}
#endif
#endif /* HDT_PLAN_LAYOUT_NET_H */
