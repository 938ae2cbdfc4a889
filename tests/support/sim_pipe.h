/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_SIM_PIPE_H
#define HDT_TESTS_SIM_PIPE_H

/* Equal pipelines beside one another, whose lists are formulas: nothing is stored for a task. Rank
 * replica * n_stages + stage; each rank has a NIC, full duplex; the replicas of a stage form a
 * group that ends the step with a collective. */
#include "src/sim/sim.h"

struct sim_pipe {
    int n_stages, n_replicas;
    int64_t n_mb;
    bool gpipe; /* all forwards first; otherwise 1F1B */
    double fwd_s, bwd_s;
    double frame_bytes, nic_bytes_per_s, latency_s;
    double sync_s;      /* the collective; no groups when 0 */
    int64_t slot_bytes; /* that a forward takes until its backward has ended */
    int n_steps;
};

/* What `setup` points at; released with hdt_sim_pipe_release. */
struct sim_pipe_tables {
    struct hdt_sim_link *links;
    struct hdt_sim_flow *flows;
    int *routes;
    struct hdt_sim_group *groups;
    int *members;
};

void hdt_sim_pipe_setup(struct sim_pipe *pipe, struct sim_pipe_tables *tables,
                        struct hdt_sim_setup *setup);
void hdt_sim_pipe_release(struct sim_pipe_tables *tables);

#endif /* HDT_TESTS_SIM_PIPE_H */
