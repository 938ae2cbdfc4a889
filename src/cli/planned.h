/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_PLANNED_H
#define HDT_CLI_PLANNED_H

/*
 * A job on its way to a plan: the file, its model, the cluster as the gateway measured it, the
 * plan. Shared by `hdt plan` and `hdt submit`.
 */
#include "src/net/gwclient.h"
#include "src/plan/search.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_planned {
    struct hdt_job job;
    struct hdt_conf_doc *doc; /* of its file, for messages */
    struct hdt_model_config model;
    struct hdt_cluster cluster;
    json_t *cluster_json;
    json_t *away; /* texts: workers that are known and cannot take part; NULL: not asked */
    struct hdt_search_result result;
};

/* Changes to the job from the command line. */
struct hdt_planned_overrides {
    const char *steps; /* NULL: as in the file */
    const char *codec; /* of activations and their gradients */
    const char *schedule;
    bool remeasure; /* links, even when they were measured a short while ago */
};

/* Are these values ones that a job may have? Otherwise the command line is wrong. */
enum hdt_status hdt_planned_overrides_check(const struct hdt_planned_overrides *overrides,
                                            struct hdt_error *err);

/* Read and check job file and model. The struct is zeroed first and to be released only on HDT_OK.
 */
enum hdt_status hdt_planned_load(struct hdt_planned *planned, const char *path,
                                 const struct hdt_planned_overrides *overrides,
                                 struct hdt_error *err);

/* The job's own progress_timeout against the gateway's; HDT_EINVAL with file, line and both. */
enum hdt_status hdt_planned_check_timeout(const struct hdt_planned *planned,
                                          const struct hdt_gwclient *client, struct hdt_error *err);

/* Ask the gateway for the cluster (workers profiled for this job, links measured); warnings go to
 * standard error. Without data.site the job's data are at the gateway's site. Blocks for as long as
 * measuring takes and the gateway lives, at most deadlines.survey_us. */
enum hdt_status hdt_planned_survey(struct hdt_planned *planned, struct hdt_gwclient *client,
                                   const struct hdt_planned_overrides *overrides,
                                   struct hdt_error *err);

/* The cluster from a file, as `hdt plan --json` wrote it ("cluster"), or bare. Profiles that it
 * names by "profile_file" are read for the job's shape. */
enum hdt_status hdt_planned_cluster_file(struct hdt_planned *planned, const char *path,
                                         struct hdt_error *err);

/* What `hdt plan --json` printed, or a run's plan.json: job, model, plan and, where it is said, the
 * cluster. HDT_EINVAL. */
enum hdt_status hdt_planned_from_json(struct hdt_planned *planned, const json_t *json,
                                      struct hdt_error *err);

/* Make the plan. */
enum hdt_status hdt_planned_search(struct hdt_planned *planned, struct hdt_error *err);

void hdt_planned_release(struct hdt_planned *planned);

/* Tables of stages and edges, prediction, limit, runner-up. */
void hdt_planned_print(const struct hdt_planned *planned, FILE *out);

/* New reference: "plan", "job", "model", "cluster", "step_s", "tokens_per_s", "limit", "second",
 * "edges", and, where the plan has several replicas, "outer". */
json_t *hdt_planned_to_json(const struct hdt_planned *planned);

/* The predicted timeline for chrome://tracing or ui.perfetto.dev; ops as the worker names them. */
enum hdt_status hdt_planned_trace(const struct hdt_planned *planned, const char *path,
                                  struct hdt_error *err);

/* Its ops alone, into a file that is open. */
struct hdt_timeline;
void hdt_planned_timeline(const struct hdt_planned *planned, struct hdt_timeline *timeline);

/* Blocks (layers) of each stage, in order. New reference. */
json_t *hdt_planned_stage_layers(const struct hdt_planned *planned);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CLI_PLANNED_H */
