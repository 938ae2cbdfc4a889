/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_MEMBER_H
#define HDT_GATEWAY_MEMBER_H

/*
 * A site's part in a job, whoever coordinates it: the plan (which says who may speak for which
 * flow), the flow ends of local workers, the bytes that crossed the WAN. Kept in the store, so that
 * a gateway that restarts can confirm the flows of its workers. Main thread.
 */
#include "gateway/control.h"

struct hdt_plan;

/* "job.plan" {job, epoch, coordinator, name, plan, model}: know the plan, keep it. It takes the
 * place of an older epoch's, whose flows end; the same one again changes nothing, an older one is
 * dropped.
 */
void hdt_member_job_plan(struct hdt_gateway *gw, const json_t *msg);
/* "job.close" {job, epoch}: forget flows and plan, unless they are of a newer epoch. */
void hdt_member_job_close(struct hdt_gateway *gw, const json_t *msg);
/* What a "flow.open" says, within bounds, and which client said it (0: none). HDT_EPROTO. */
enum hdt_status hdt_member_flow_parse(struct hdt_gateway *gw, const json_t *msg,
                                      struct hdt_dataplane_flow *flow, struct hdt_error *err);
/* "flow.open" of a worker: refuse what the plan does not have, else hand it to the data plane. */
void hdt_member_flow_open(struct hdt_gateway *gw, const json_t *msg);
/* The data plane cannot go on with a flow of this job: its coordinator is told. */
void hdt_member_flow_failed(struct hdt_gateway *gw, uint32_t job, uint32_t epoch,
                            const struct hdt_error *why);
/* A worker of this site is back with these jobs ([{job, epoch}]): it drops those that are over, or
 * go on in a newer epoch. */
void hdt_member_worker_up(struct hdt_gateway *gw, const char *worker, const json_t *jobs);
/* "job.wan.get" {job}: answer "job.wan" {job, raw, plain, sent}. */
void hdt_member_job_wan(struct hdt_gateway *gw, const json_t *msg);
/* Has a job that another site coordinates, one that is there, a stage on this worker? */
bool hdt_member_has_worker(struct hdt_gateway *gw, const char *site, const char *name);
/* Coordinator of a job that has a stage on this worker, ours included; NULL: none. */
const char *hdt_member_coordinator_of(struct hdt_gateway *gw, const char *site, const char *name);
/* Jobs that another site coordinates and this one has a part in, for /status: array of {number,
 * epoch, coordinator}. New reference. */
json_t *hdt_member_status(const struct hdt_gateway *gw);
/* Plan and coordinator of a job that this site has a part in; NULL: it has none in it. Borrowed. */
const struct hdt_plan *hdt_member_plan(struct hdt_gateway *gw, uint32_t job,
                                       const char **coordinator);
/* Load plans of running jobs from the store; send "job.wan" of running jobs; free. */
void hdt_member_start(struct hdt_gateway *gw);
void hdt_member_tick(struct hdt_gateway *gw);
void hdt_member_free(struct hdt_gateway *gw);

#endif /* HDT_GATEWAY_MEMBER_H */
