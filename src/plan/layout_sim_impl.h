/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_PLAN_LAYOUT_SIM_IMPL_H
#define HDT_PLAN_LAYOUT_SIM_IMPL_H

/* The tables of a layout's simulation: layout_sim.c fills the ranks' lists, layout_offload.c what
 * goes to hosts and back, layout_sync.c what replicas and ends of the pipeline do together at the
 * end of a step. */
#include "src/plan/layout_cost.h"
#include "src/plan/layout_net.h"
#include "src/plan/layout_sim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Buckets of a part of the pipeline: some million tasks for a thousand ranks with one part each. */
#define LAYOUT_BUCKETS_MAX 4096

/* Groups of the simulation one after another, first..first + n - 1. */
struct layout_chain {
    int first, n;
};

/* Groups that a rank joins, in their order: the tied table, then three levels and the way to the
 * host, or only that table's way there. */
#define LAYOUT_SYNCS_MAX 5
struct layout_syncs {
    int groups[LAYOUT_SYNCS_MAX];
    int n;
};

/* Gradients of a part of the pipeline that go while its last backward does; weights of it that come
 * while its first forward does. */
struct layout_buckets {
    struct layout_chain chain;
    int n; /* buckets, all through the same chain; 0: nothing goes so */
};

struct layout_rank {
    struct hdt_layout_rank is;
    /* Of each device. */
    double grad_bytes, tied_bytes, gather_bytes;
    double down_bytes, tied_down_bytes, up_bytes; /* of an optimizer on the host */
    double host_step_bytes;                       /* the same */
    struct layout_syncs before, after;            /* the optimizer's step */
    int64_t mem_base;
};

struct hdt_layout_sim {
    const struct hdt_layout_files *files;
    struct hdt_stage_cost_model model;
    size_t n_stages, n_replicas, n_parts, n_ranks;
    double ring_share; /* of a nominal rate, that sums of replicas get */
    struct layout_net net;
    struct layout_rank *ranks;
    struct layout_buckets *buckets; /* by part */
    struct layout_buckets *gathers; /* the same of weights, which the first forward waits for */
    int norm;                       /* group of all ranks, when there are several */
    struct hdt_sim_flow *flows;
    size_t n_flows, flows_cap;
    int *routes;
    double *route_shares; /* by routes */
    size_t n_routes, routes_cap;
    struct hdt_sim_group *groups;
    size_t n_groups, groups_cap;
    int *members;
    size_t n_members, members_cap;
    int n_queues; /* shared ones: of transfers to hosts */
    int64_t *mem_base;
    int64_t n_tasks; /* about as many as the lists will have */
    struct hdt_sim_lists lists;
    struct hdt_sim_setup setup;
};

/* Append a flow that takes these links, each with a share of its bytes (NULL: all); its number. */
int hdt_layout_sim_add_flow(struct hdt_layout_sim *sim, const struct hdt_sim_flow *flow,
                            const int *links, const double *shares, size_t n_links);

/* A group of these ranks; its number. */
int hdt_layout_sim_add_group(struct hdt_layout_sim *sim, const size_t *ranks, size_t n,
                             const struct hdt_sim_group *group);

/* A group whose frame takes these links at once, in its turn in a shared queue unless that is -1;
 * its number. */
int hdt_layout_sim_add_transfer(struct hdt_layout_sim *sim, const size_t *ranks, size_t n,
                                const struct layout_ring *way, int queue);

/* Push a task that is none of a micro-batch. */
void hdt_layout_sim_push(struct hdt_layout_sim *sim, size_t rank, enum hdt_op_kind op,
                         const struct hdt_sim_task *task);

/* Fill sim->buckets and gathers of a part, whose first replica costs this. HDT_EINVAL: too many. */
enum hdt_status hdt_layout_sim_add_buckets(struct hdt_layout_sim *sim, size_t part,
                                           const struct hdt_stage_cost *cost,
                                           struct hdt_error *err);

/* Groups and tasks of all ranks for the end of the step. */
void hdt_layout_sim_end_step(struct hdt_layout_sim *sim);

/* ---- layout_offload.c ---- */

/* Computations that activations are asked back before theirs. */
#define LAYOUT_AWAY_AHEAD 2

/* A part's activations on their way to the host and back. */
struct layout_away {
    bool is_on;
    int down[HDT_STAGE_COST_HOST_SLOTS]; /* groups of the rank alone, taken in turn */
    int up[LAYOUT_AWAY_AHEAD];           /* the same */
    int64_t bytes;                       /* of a micro-batch, on each device */
    int n_held;                          /* places taken on the device */
    int64_t n_asked;                     /* that were asked back; */
    int64_t n_come;                      /* those of them whose backwards have begun; */
    int64_t asked_mb[LAYOUT_AWAY_AHEAD]; /* micro-batches of those between, in turn */
    int64_t n_gone;                      /* that were sent down; */
    int64_t n_waited;                    /* those of them whose places are free again */
    const struct hdt_op *gone[HDT_STAGE_COST_HOST_SLOTS]; /* forwards of those between, in turn */
};

/* n_in_flight: micro-batches that the part keeps. */
void hdt_layout_away_init(struct hdt_layout_sim *sim, size_t rank,
                          const struct hdt_stage_cost *cost, int64_t n_in_flight,
                          struct layout_away *away);

/* Tasks before and after an op of the rank's list; `away` is by part. */
void hdt_layout_away_before(struct hdt_layout_sim *sim, size_t rank, struct layout_away *away,
                            const struct hdt_schedule *schedule, size_t op_idx);
void hdt_layout_away_after(struct hdt_layout_sim *sim, size_t rank, struct layout_away *away,
                           const struct hdt_schedule *schedule, size_t op_idx);

/* Times of the steps on hosts, which the devices of a node share. HDT_EINVAL: a host has no room.
 */
enum hdt_status hdt_layout_sim_fill_hosts(struct hdt_layout_sim *sim, struct hdt_error *err);

/* The host's part of the rank's step: new weights come back while it goes on. */
void hdt_layout_sim_push_host_step(struct hdt_layout_sim *sim, size_t rank);

#ifdef __cplusplus
}
#endif
#endif /* HDT_PLAN_LAYOUT_SIM_IMPL_H */
