/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_RECOVERY_H
#define HDT_GATEWAY_RECOVERY_H

/*
 * How a job goes on after a loss: its epoch ends at once everywhere, and the next one begins from
 * the last complete checkpoint as soon as its workers are there and free of the old one. What a
 * user may set stands under `recovery` in the job. Main thread.
 */
#include "gateway/coordinator.h"

/* The worker of this rank is lost: its process died, or stayed away for too long. */
void hdt_recovery_rank_lost(struct hdt_gateway *gw, struct hdt_gwjob *job, size_t rank,
                            const struct hdt_error *why);
/* `from` ("SITE/WORKER" or "SITE") reports that the epoch cannot go on; what a repetition cannot
 * change (a model that diverges, a file that is not there) ends the job. */
void hdt_recovery_rank_failed(struct hdt_gateway *gw, struct hdt_gwjob *job, const char *from,
                              const struct hdt_error *why);
/* A worker does not take its part. */
void hdt_recovery_rank_refused(struct hdt_gateway *gw, struct hdt_gwjob *job,
                               const struct hdt_error *why);
/* End the epoch; the job goes on in the next, or ends, as its settings say. */
void hdt_recovery_begin(struct hdt_gateway *gw, struct hdt_gwjob *job, const struct hdt_error *why);

/* All ranks have ended before the last step, with a checkpoint: on to the next epoch, with the plan
 * that replan.c has found, if any. No attempt, no step lost. */
void hdt_recovery_move(struct hdt_gateway *gw, struct hdt_gwjob *job);

/* Is this rank's worker connected, and its site? */
bool hdt_recovery_rank_is_connected(struct hdt_gateway *gw, const struct hdt_gwjob *job,
                                    size_t rank);
/* Recovering: is this rank's worker there, free of the epoch before, and of no other job? */
bool hdt_recovery_rank_is_there(struct hdt_gateway *gw, const struct hdt_gwjob *job, size_t rank);
/* Recovering: begin the next epoch if all that it needs is there. */
void hdt_recovery_go(struct hdt_gateway *gw, struct hdt_gwjob *job);
/* Deadlines of a job that recovers; every tick. */
void hdt_recovery_tick(struct hdt_gateway *gw, struct hdt_gwjob *job);
/* It runs in its new epoch: say so. */
void hdt_recovery_done(struct hdt_gateway *gw, struct hdt_gwjob *job);

/* Add to the body of an event "state" what a follower of a recovering job wants to know. */
void hdt_recovery_describe(struct hdt_gateway *gw, const struct hdt_gwjob *job, json_t *body);

#endif /* HDT_GATEWAY_RECOVERY_H */
