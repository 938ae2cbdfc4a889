/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_TESTS_SIM_CASE_H
#define HDT_TESTS_SIM_CASE_H

/* Small setups of the simulator, written down task by task. */
#include "src/sim/sim.h"

#define SIM_CASE_CAP 4096 /* of each table */

struct sim_case {
    struct hdt_sim_setup setup;
    struct hdt_sim_link links[SIM_CASE_CAP];
    struct hdt_sim_flow flows[SIM_CASE_CAP];
    int routes[SIM_CASE_CAP];
    size_t n_routes;
    struct hdt_sim_group groups[SIM_CASE_CAP];
    int members[SIM_CASE_CAP];
    size_t n_members;
    struct hdt_sim_lists lists;
    struct hdt_sim_result result;
};

/* Ranks with empty lists, one step, recorded. */
struct sim_case *hdt_sim_case_new(size_t n_ranks);
void hdt_sim_case_free(struct sim_case *c);

int hdt_sim_case_link(struct sim_case *c, double rate_bytes_per_s);
/* Crosses n_links links; the caller may change what else it has. */
struct hdt_sim_flow *hdt_sim_case_flow(struct sim_case *c, int src, int dst, double latency_s,
                                       size_t n_links, const int *links);
int hdt_sim_case_group(struct sim_case *c, size_t n, const int *ranks, double dur_s);

/* Append to a rank's list; valid until the next one is. */
struct hdt_sim_task *hdt_sim_case_compute(struct sim_case *c, int rank, double dur_s);
struct hdt_sim_task *hdt_sim_case_send(struct sim_case *c, int rank, int flow, double bytes);
struct hdt_sim_task *hdt_sim_case_recv(struct sim_case *c, int rank, int flow);
struct hdt_sim_task *hdt_sim_case_task(struct sim_case *c, int rank, enum hdt_sim_kind kind,
                                       int peer);

/* Run into c->result; fails the test when it cannot be run. */
void hdt_sim_case_run(struct sim_case *c);

/* End of the n-th task of a rank. */
double hdt_sim_case_end(const struct sim_case *c, int rank, int n);

#endif /* HDT_TESTS_SIM_CASE_H */
