/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_PLAN_PLAN_SIM_H
#define HDT_PLAN_PLAN_SIM_H

/* A plan as a setup of the simulator: the same tasks, times and links that hdt_cost_play plays, for
 * as many steps as asked for. Without a scenario its steps take plan->step_s. */
#include "src/plan/cost.h"
#include "src/sim/sim.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_plan_sim;

/* At least 2 steps: all but the first one count. As hdt_cost_play; inputs and plan stay as they are
 * until it is closed. */
enum hdt_status hdt_plan_sim_open(const struct hdt_cost_inputs *in, const struct hdt_plan *plan,
                                  int n_steps, struct hdt_plan_sim **sim, struct hdt_error *err);
void hdt_plan_sim_close(struct hdt_plan_sim *sim);

/* To be run as it is, or a copy of it with a scenario. Ranks are the plan's, flows too. */
const struct hdt_sim_setup *hdt_plan_sim_setup(const struct hdt_plan_sim *sim);

/* Tasks of all ranks in all steps. */
int64_t hdt_plan_sim_n_tasks(const struct hdt_plan_sim *sim);

/* The sites that the setup's links join, by number. */
const struct hdt_cost_link *hdt_plan_sim_links(const struct hdt_plan_sim *sim, size_t *n);

#ifdef __cplusplus
}
#endif
#endif /* HDT_PLAN_PLAN_SIM_H */
