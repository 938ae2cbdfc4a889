/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_PLAN_LAYOUT_SIM_H
#define HDT_PLAN_LAYOUT_SIM_H

/*
 * A layout as a setup of the simulator: the ops of schedule.h with the durations of stage_cost.h,
 * messages over links that are shared, all-reduces. A rank of the simulation is a group of the
 * layout; rank = replica * n_stages + stage. One step, from the first micro-batch to the last
 * group's optimizer. doc/predictor.md has the formulas.
 */
#include "src/core/layout.h"
#include "src/plan/stage_cost.h"
#include "src/sim/sim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What is known of a rank before anything is played. */
struct hdt_layout_rank {
    double fwd_s, bwd_s, step_s; /* a micro-batch through all of it; the optimizer */
    double host_step_s;          /* what its host does of the optimizer; 0: nothing */
    int64_t n_in_flight;         /* most micro-batches of one chunk that it keeps */
    bool is_profiled;            /* its times are from a profile, not from figures of its device */
    struct hdt_stage_cost_memory memory; /* of each of its devices */
};

struct hdt_layout_sim;

/* Most tasks of a simulation: each is kept in about 100 bytes, and as much again when recorded. */
#define HDT_LAYOUT_MAX_TASKS INT64_C(20000000)

/* To be closed on success; `files` stays as it is until then. HDT_EINVAL: a figure of a device is
 * not known; more than HDT_LAYOUT_MAX_TASKS; more bytes on a device than can be counted; gradients
 * in more buckets than are allowed; a host that has no room for what is offloaded to it. */
enum hdt_status hdt_layout_sim_open(const struct hdt_layout_files *files,
                                    const struct hdt_stage_cost_constants *constants,
                                    struct hdt_layout_sim **sim, struct hdt_error *err);
void hdt_layout_sim_close(struct hdt_layout_sim *sim);

/* To be run as it is, or a copy of it with a scenario. */
const struct hdt_sim_setup *hdt_layout_sim_setup(const struct hdt_layout_sim *sim);

const struct hdt_layout_rank *hdt_layout_sim_rank(const struct hdt_layout_sim *sim, size_t rank);

/* A link of the setup: between sites by their names, of a node as "gh.3 out" with `to` empty, of
 * group 14 on it as "gh.3#14 out"; where there are several sites as "site-a.gh.3 out". */
#define HDT_LAYOUT_LINK_CAP (3 * HDT_NAME_CAP)
struct hdt_layout_link {
    char from[HDT_LAYOUT_LINK_CAP], to[HDT_LAYOUT_LINK_CAP];
};
const struct hdt_layout_link *hdt_layout_sim_link(const struct hdt_layout_sim *sim, size_t link);

/* Of the device that takes most. */
double hdt_layout_sim_memory_bytes(const struct hdt_layout_sim *sim);

/* All at once. */
struct hdt_layout_prediction {
    double step_s;
    double memory_bytes; /* of the device that takes most */
    double bubble_share; /* of the step, mean of all ranks: all but computing */
};
enum hdt_status hdt_layout_predict(const struct hdt_layout_files *files,
                                   const struct hdt_stage_cost_constants *constants,
                                   struct hdt_layout_prediction *prediction, struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_PLAN_LAYOUT_SIM_H */
