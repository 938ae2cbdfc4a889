/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_RANK_STATE_H
#define HDT_GATEWAY_RANK_STATE_H

/*
 * What each rank of a job waits for. A worker says it to its own gateway ("rank.state"), which adds
 * what it knows of the flow and of the link and passes it on to the coordinator, which keeps the
 * last of each rank and flow: for /status, 'hdt status' and those who follow the job. Main thread.
 */
#include "gateway/control.h"

struct hdt_gwjob;

/* "rank.state" of a worker of ours, or of the gateway of a site of the job. */
void hdt_rank_state(struct hdt_gateway *gw, const json_t *msg);

/* The job's waits that are known, longest first: array of {rank, worker, waits_s, text, ...}. New
 * reference. */
json_t *hdt_rank_waits_json(struct hdt_gwjob *job);

void hdt_rank_waits_free(struct hdt_gwjob *job);

#endif /* HDT_GATEWAY_RANK_STATE_H */
