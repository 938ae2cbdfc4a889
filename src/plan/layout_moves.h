/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_PLAN_LAYOUT_MOVES_H
#define HDT_PLAN_LAYOUT_MOVES_H

/*
 * What must move when another plan of the same job takes over: weights, and what the optimizer
 * keeps of them, that a node did not have.
 *
 * What is where: a node has the weights of every layer that one of its groups has. What the
 * optimizer keeps (weights in fp32 where others compute, both moments) is there, too; where it is
 * sharded, replica r of R has of each layer of its stage the part from r/R to (r+1)/R, so that
 * another number of replicas moves parts of layers that stay. Nodes are told by site, name and
 * number.
 *
 * Where it comes from: from a node of the site that has it or has just got it; else over the links
 * between sites from the one from where it is there first, beside what these links already carry.
 * What no node has any more comes from the checkpoint; each node reads it for itself.
 *
 * How long that takes: all moves go at the same time, so that it is as long as the link takes that
 * has most to carry. Links are those of layout_net.h at their rates for large messages: of a node
 * out and in (all its devices send), of a pair of kinds of nodes, legs between sites. From the
 * checkpoint only the node's own way in counts: where it lies, and how fast, nobody says.
 */
#include "src/core/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HDT_LAYOUT_MOVES_LINK_CAP 192

/* Some layers over one route. */
struct hdt_layout_move {
    int64_t first, last; /* 0: the embedding; 1..L: layers; L + 1: the head */
    bool is_stored;      /* from the checkpoint: no node from_... */
    size_t from_site, from_nodes, to_site, to_nodes; /* in the new plan's cluster */
    double bytes;                                    /* to all nodes of that kind */
    double seconds;                                  /* alone on its links */
};

struct hdt_layout_moves {
    int64_t n_layers;    /* layers, embedding and head counted, on nodes that did not have them; */
    int64_t n_all;       /* and of all */
    double site_bytes;   /* that stay inside sites */
    double wan_bytes;    /* between sites, each once */
    double stored_bytes; /* from the checkpoint */
    double price;        /* of what goes between sites */
    double seconds;
    char link[HDT_LAYOUT_MOVES_LINK_CAP]; /* the one that takes so long; "": none does */
    struct hdt_layout_move *items;        /* by layers; NULL: was not asked for */
    size_t n;
};
void hdt_layout_moves_release(struct hdt_layout_moves *moves);

/* A plan that runs, ready to be compared with others. One thread at a time. */
struct hdt_layout_mover;

/* `from`: the plan that runs, on its own cluster. `base`: the job, with the cluster of the plans
 * that are compared; both stay. `gone`: sites of that cluster from which nothing can come. */
struct hdt_layout_mover *hdt_layout_mover_new(const struct hdt_layout_files *from,
                                              const struct hdt_layout_files *base,
                                              const size_t *gone, size_t n_gone);
void hdt_layout_mover_free(struct hdt_layout_mover *mover);

/* The number of a node among all of base's cluster, and their number. */
size_t hdt_layout_mover_node(const struct hdt_layout_mover *mover, size_t site, size_t nodes,
                             int64_t node);
size_t hdt_layout_mover_n_nodes(const struct hdt_layout_mover *mover);

/* A plan, as far as moves depend on it. */
struct hdt_layout_placed {
    size_t n_stages, n_replicas;
    int64_t chunks;
    int64_t *layers; /* by stage */
    size_t *node;    /* (replicas, stages): numbers of nodes */
    bool is_sharded; /* the optimizer */
};

/* All but `items` of `moves`. Time: (parts of both plans) * (replicas of both). */
void hdt_layout_mover_count(struct hdt_layout_mover *mover, const struct hdt_layout_placed *to,
                            struct hdt_layout_moves *moves);

/* All, of a plan that is derived from `base`; hdt_layout_moves_release. */
void hdt_layout_mover_list(struct hdt_layout_mover *mover, const struct hdt_layout_files *to,
                           struct hdt_layout_moves *moves);

#ifdef __cplusplus
}
#endif
#endif /* HDT_PLAN_LAYOUT_MOVES_H */
