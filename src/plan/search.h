/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_PLAN_SEARCH_H
#define HDT_PLAN_SEARCH_H

/*
 * From a job, a model and a cluster to a plan: exact dynamic programming over cuts and orders of
 * workers (search_dp.h), the best few played op by op (cost.h), the fastest of these taken.
 */
#include "src/plan/cost.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A step must be so much shorter for an order that keeps more micro-batches, or sends more frames,
 * where the job leaves the schedule open; and for replicas in place of one pipeline, whose steps
 * are exact. */
#define HDT_SEARCH_SCHEDULE_GAIN 0.02

/* The same for a codec in place of another, where the job leaves it open: of equal ones the one
 * with the shorter transfers. All edges of a plan share it. */
#define HDT_SEARCH_CODEC_GAIN 0.01

struct hdt_search_result {
    struct hdt_plan plan;        /* complete, with predictions */
    struct hdt_cost cost;        /* of it, with its timeline */
    struct hdt_plan second_plan; /* the runner-up; no stages: there is none */
    struct hdt_cost second_cost;
    char second[256];  /* it in words, with its step time; "": there is none */
    size_t n_judged;   /* candidates that were played */
    int64_t n_tried;   /* ends of pipelines that were tried to find their cuts */
    size_t n_left_out; /* usable workers that the search did not look at (more than 8) */
};

/*
 * Make the plan. job->data.site must be set (the caller knows which site it submits to). Only
 * workers that are not busy, on plan.sites, take part; plan.cut fixes the stages. plan.schedule
 * auto is 1f1b unless wan, zb-h1, zb-mem, interleaved or gpipe, in turn, takes less by
 * HDT_SEARCH_SCHEDULE_GAIN than what was taken before it. Under wan the warm-up of a stage is: the
 * stages behind it, and for each link behind it the frames that fill its round trip at the pace of
 * the slowest stage, and as many more as make the step shorter, capped by the
 * micro-batches and by memory.
 *
 * Codecs that the job leaves open (hdt_cost_codecs) are searched: cuts for each of them in all
 * edges between sites (with schedule auto under 1f1b, under others for the best so far), and for
 * the shortest transfers; then each edge of the best by itself, both ways. What a plan takes is the
 * simulator's figure, gateways' CPU time included.
 *
 * With outer.steps a pipeline over all sites is weighed against a replica in each site that can
 * hold the model, each with micro-batches as it is fast; a cut that covers the model several times
 * is of so many replicas.
 *
 * HDT_EINVAL: a worker without profile, a cut or site that does not exist. HDT_ENOMEM: the model
 * does not fit: what is missing where, and what would help. HDT_ENOENT: no link, no worker.
 */
enum hdt_status hdt_search_plan(const struct hdt_cost_inputs *in, struct hdt_search_result *result,
                                struct hdt_error *err);
void hdt_search_result_release(struct hdt_search_result *result);

#ifdef __cplusplus
}
#endif
#endif /* HDT_PLAN_SEARCH_H */
