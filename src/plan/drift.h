/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_PLAN_DRIFT_H
#define HDT_PLAN_DRIFT_H

/*
 * A run that is not as fast as its plan said: what is different, and whether another plan would
 * pay. Pure; no I/O. The search inside hdt_drift_judge takes up to seconds for many workers and
 * layers: not on a thread that must answer.
 *
 * What was measured is put into a copy of the cluster: the profile of each worker is scaled so that
 * its rank is predicted to be as busy as it was, a link gets the rate or round trip that was seen,
 * and what is left of the step's time is laid on the links whose rate nobody saw. With this
 * corrected cluster the present plan and the best other one are predicted alike, so that an error
 * of the model that both share makes no gain.
 */
#include "src/plan/search.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One rank under the present plan. */
struct hdt_drift_rank {
    double busy_s;   /* mean of a step, waiting excluded ("ranks" of a step report) */
    int64_t n_steps; /* that the mean is of; 0: not measured */
};

/* One direction between two sites. Give what was seen, 0 for the rest. */
struct hdt_drift_link {
    char from[HDT_NAME_CAP], to[HDT_NAME_CAP];
    double rate_bytes_per_s; /* goodput, only while there was more to send than it took */
    double rtt_s;
};

struct hdt_drift_measured {
    double step_s;   /* median of the steps since the plan began, without checkpoints and evals */
    int64_t n_steps; /* that it is of */
    const struct hdt_drift_rank *ranks; /* as many as the plan has, in its order */
    size_t n_ranks;
    const struct hdt_drift_link *links;
    size_t n_links;
};

/*
 * How many times as long as predicted a rank computed in a step of predicted `step_s`, from the
 * seconds for which it was busy, measured and predicted, and those of both for which gateways held
 * it up: these are theirs, however fast the worker is. At least 1 for one that a quota of
 * processors slows: the quota fills while it waits, so that its ops take less time in a run with
 * waits than in the profile, which has none, and than in the next run. 0: it does so little that
 * its fixed costs were measured, or the figures make no sense.
 */
double hdt_drift_factor(const struct hdt_profile *profile, double measured_busy_s, double busy_s,
                        double held_s, double step_s);

/*
 * Make the cluster under which `plan` is predicted to run as it was measured. Of `in`, the cluster
 * is the one that the plan was made with. Workers of the plan are free in the result (they are
 * busy with this very job), workers without a profile for the job are not in it. A rank that does
 * next to nothing says nothing of its worker; workers that were not measured get what all measured
 * ones share, since that is an error of profiles and not of one machine, unless runs corrected
 * theirs.
 *
 * *corrected is to be released by the caller on HDT_OK. HDT_EINVAL: the plan names a worker that
 * the cluster has not, or n_ranks is not the plan's. HDT_ENOENT: a link is missing.
 */
enum hdt_status hdt_drift_correct(const struct hdt_cost_inputs *in, const struct hdt_plan *plan,
                                  const struct hdt_drift_measured *measured,
                                  struct hdt_cluster *corrected, struct hdt_error *err);

struct hdt_drift_limits {
    double drift;       /* |measured / predicted - 1| from which on another plan is looked for */
    double gain;        /* least 1 - best / present */
    int64_t min_steps;  /* fewer measured steps say nothing */
    int64_t steps_left; /* of the job, after the one at which the plan would change */
    double restart_s;   /* what a change costs: stop, checkpoint, start, warm caches */
};

struct hdt_drift_verdict {
    bool drifted;                  /* the rest is filled in only then, but for `reason` */
    bool pays;                     /* take `best` */
    double drift;                  /* measured / predicted - 1 */
    struct hdt_cluster cluster;    /* corrected */
    struct hdt_search_result best; /* with its own prediction; may be the present plan again */
    double present_step_s;         /* of the present plan, predicted with `cluster` */
    double gain;                   /* 1 - best / present; 0 when the best is the present one */
    double saved_s;                /* in the steps that are left, the restart not subtracted */
    char cause[160];  /* the largest difference: "site-b/w0 computes 1.8x slower than planned" */
    char moves[200];  /* what would change: "2 units move from site-b/w0 to site-a/w0" */
    char reason[512]; /* both, the times and what decided: one line for logs and people */
};

/*
 * Is the run off its plan, and does another plan pay? Arguments as above; the prediction that it is
 * measured against is plan->step_s. After a verdict a caller goes on with verdict->cluster and
 * verdict->present_step_s (or the new plan's) as its prediction: the same drift is then not judged
 * again. Release the verdict on HDT_OK. Failures as hdt_drift_correct and hdt_search_plan.
 */
enum hdt_status hdt_drift_judge(const struct hdt_cost_inputs *in, const struct hdt_plan *plan,
                                const struct hdt_drift_measured *measured,
                                const struct hdt_drift_limits *limits,
                                struct hdt_drift_verdict *verdict, struct hdt_error *err);
void hdt_drift_verdict_release(struct hdt_drift_verdict *verdict);

/* Do both plans put the same units on the same workers in the same order? */
bool hdt_plan_same_stages(const struct hdt_plan *a, const struct hdt_plan *b);

/* "2 units move from a/w0 to b/w0", "a/w0 4 -> 2 units, ...", "activations 0 -> 1: lossless"; ""
 * for plans that differ in nothing that moves. Returns `out`. */
const char *hdt_drift_moves(const struct hdt_plan *from, const struct hdt_plan *to, char *out,
                            size_t cap);

#ifdef __cplusplus
}
#endif
#endif /* HDT_PLAN_DRIFT_H */
