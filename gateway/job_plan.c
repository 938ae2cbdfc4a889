/* SPDX-License-Identifier: Apache-2.0 */
/* Another plan for a job: what is kept by rank begins anew, and it is said. */
#include "config.h"

#include "gateway/coordinator.h"
#include "gateway/rank_state.h"
#include "src/base/buf.h"
#include "src/base/log.h"

#include <stdlib.h>
#include <string.h>

static void plan_set(struct hdt_gwjob *job, struct hdt_plan *plan, json_t *cluster)
{
    hdt_gwjob_orders_forget(job);
    hdt_rank_waits_free(job);
    hdt_plan_release(&job->plan);
    job->plan = *plan;
    memset(plan, 0, sizeof(*plan));
    json_decref(job->plan_json);
    job->plan_json = hdt_plan_to_json(&job->plan);
    json_decref(job->cluster_json);
    job->cluster_json = json_incref(cluster);
    free(job->rank_is_done);
    free(job->by_rank);
    free(job->intake.taken);
    job->rank_is_done = hdt_calloc(job->plan.n_ranks, sizeof(*job->rank_is_done));
    job->by_rank = hdt_calloc(job->plan.n_ranks, sizeof(*job->by_rank));
    memset(&job->intake, 0, sizeof(job->intake));
    job->n_ranks_done = 0;
    free(job->alive);
    job->alive = hdt_calloc(job->plan.n_ranks, sizeof(*job->alive));
    json_decref(job->ranks);
    job->ranks = json_array();
}

void hdt_gwjob_take_plan(struct hdt_gateway *gw, struct hdt_gwjob *job, struct hdt_plan *plan,
                         json_t *cluster, const struct hdt_gwreplan *replan)
{
    struct hdt_error err = {0};
    json_t *line = json_pack("{s:s, s:s, s:I, s:s, s:f, s:f, s:f, s:s}", "event", "replan", "cause",
                             replan->cause, "step", (json_int_t)job->step, "reason", replan->reason,
                             "from_step_s", replan->from_step_s, "to_step_s", replan->to_step_s,
                             "gain", replan->gain, "moves", replan->moves);

    plan_set(job, plan, cluster);
    if (hdt_gwjob_settle_deadlines(gw, job, &err) != HDT_OK) { /* it keeps those that it had */
        hdt_log_failure(HDT_LOG_WARN, &err);
    }
    hdt_gwjob_write_plan(job);
    hdt_gwjob_save(gw, job);
    hdt_log_info("job %ld: another plan: %s", (long)job->number, replan->reason);
    hdt_gwjob_metrics_note(job, json_incref(line));
    hdt_gwjob_event(gw, job, "replan", line);
}
