/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_PLAN_LAYOUT_SIM_IMPL_H
#define HDT_PLAN_LAYOUT_SIM_IMPL_H

/* The tables of a layout's simulation: layout_sim.c fills the ranks' lists, layout_sync.c what
 * replicas and ends of the pipeline do together at the end of a step. */
#include "src/plan/layout_cost.h"
#include "src/plan/layout_net.h"
#include "src/plan/layout_sim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Groups of the simulation that a rank joins before the optimizer, in their order. */
#define LAYOUT_SYNCS_MAX 5

struct layout_rank {
    struct hdt_layout_rank is;
    double grad_bytes, tied_bytes; /* of each device */
    int syncs[LAYOUT_SYNCS_MAX];
    int n_syncs;
    int64_t mem_base;
};

struct hdt_layout_sim {
    const struct hdt_layout_files *files;
    struct hdt_stage_cost_model model;
    size_t n_stages, n_replicas, n_parts, n_ranks;
    struct layout_net net;
    struct layout_rank *ranks;
    struct hdt_sim_flow *flows;
    size_t n_flows, flows_cap;
    int *routes;
    size_t n_routes, routes_cap;
    struct hdt_sim_group *groups;
    size_t n_groups, groups_cap;
    int *members;
    size_t n_members, members_cap;
    int64_t *mem_base;
    struct hdt_sim_lists lists;
    struct hdt_sim_setup setup;
};

/* Append a flow that takes these links; its number. */
int hdt_layout_sim_add_flow(struct hdt_layout_sim *sim, const struct hdt_sim_flow *flow,
                            const int *links, size_t n_links);

/* Groups for the end of the step, into the ranks' `syncs`. */
void hdt_layout_sim_add_syncs(struct hdt_layout_sim *sim);

#ifdef __cplusplus
}
#endif
#endif /* HDT_PLAN_LAYOUT_SIM_IMPL_H */
