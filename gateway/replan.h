/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_REPLAN_H
#define HDT_GATEWAY_REPLAN_H

/*
 * A job that runs and could run faster: its steps are compared with what its plan said, another
 * plan is looked for when they differ or when a worker joined, and taken at a checkpoint when it
 * pays (`replan` in the job). Main thread.
 */
#include "gateway/coordinator.h"

/* A step was reported: its time, and {rank, busy_s} of its ranks. */
void hdt_replan_step(struct hdt_gateway *gw, struct hdt_gwjob *job, double step_s,
                     const json_t *ranks);
/* The root has been asked to stop for another plan: the mode of that "stop"; NULL: it was not. */
const char *hdt_replan_stop_mode(const struct hdt_gwjob *job);
/* All ranks have ended before the last step, and nobody asked for it but us: the job goes on, with
 * the plan that was found. false: it ends here. */
bool hdt_replan_goes_on(struct hdt_gateway *gw, struct hdt_gwjob *job);
/* Forget what was measured, and a plan that was not taken yet: the epoch is over. */
void hdt_replan_reset(struct hdt_gwjob *job);
void hdt_replan_free(struct hdt_gwjob *job);

#endif /* HDT_GATEWAY_REPLAN_H */
