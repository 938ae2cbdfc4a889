/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_PLANNER_H
#define HDT_GATEWAY_PLANNER_H

/*
 * Plans made by the coordinator. A search takes up to seconds, which the main thread has not: it
 * runs on a thread of its own, one at a time, on copies of all that it reads. The answer comes on
 * the main thread. All functions: main thread.
 */
#include "gateway/coordinator.h"
#include "src/plan/drift.h"

/* A run as it was measured; with it a question is "does another plan pay?" (hdt_drift_judge). */
struct hdt_planner_run {
    double step_s;
    int64_t n_steps;
    double predicted_s;           /* it is measured against; 0: what the plan says */
    struct hdt_drift_rank *ranks; /* of the job's plan, allocated; the planner frees it */
    struct hdt_drift_link *links; /* the same */
    size_t n_links;
    struct hdt_drift_limits limits;
};

/* Exactly one of the two is filled in when status is HDT_OK; `done` may take it (and leave it
 * zeroed), the planner releases it otherwise. */
struct hdt_planner_answer {
    struct hdt_error err; /* why there is no plan; status HDT_ETIMEDOUT: it took too long */
    struct hdt_search_result result;
    struct hdt_drift_verdict verdict;
    json_t *cluster; /* that the plan was made with; NULL without a plan */
};

/* Called once, unless the gateway ends before. */
typedef void hdt_planner_done(struct hdt_gateway *gw, void *user,
                              struct hdt_planner_answer *answer);

/* Plan the job over the cluster (stolen, also on failure). With `run`, which may be NULL and is
 * stolen as the cluster is, the cluster is the one that the job's plan was made with. On failure
 * (too many wait, no thread) `done` is not called. */
enum hdt_status hdt_planner_ask(struct hdt_gateway *gw, const struct hdt_gwjob *job,
                                struct hdt_cluster *cluster, struct hdt_planner_run *run,
                                hdt_planner_done *done, void *user, struct hdt_error *err);

/* Answer those that are ready; readable when there are some: hdt_planner_fd, -1 before the first
 * question. The main loop does this by itself. */
void hdt_planner_dispatch(struct hdt_gateway *gw);
int hdt_planner_fd(const struct hdt_gateway *gw);
/* Deadlines; every tick. */
void hdt_planner_tick(struct hdt_gateway *gw);
/* Waits for the search under way; what has not begun is dropped. */
void hdt_planner_close(struct hdt_gateway *gw);

#endif /* HDT_GATEWAY_PLANNER_H */
