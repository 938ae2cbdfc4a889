/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_SIMULATED_H
#define HDT_CLI_SIMULATED_H

/* A plan from a file, simulated: what `hdt simulate` shows. */
#include "src/cli/planned.h"
#include "src/cli/scenario.h"
#include "src/plan/plan_sim.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_simulated {
    struct hdt_planned planned;
    struct hdt_cost_inputs in;
    struct hdt_plan_sim *sim;
    struct hdt_scenario scenario;
    int n_steps;
    struct hdt_played played;
};

/* The plan in `path`: what `hdt plan --json` printed, or a run's plan.json. `cluster` (NULL: the
 * plan's own) is a file as of `hdt plan --cluster`. The struct is zeroed first and to be released
 * on HDT_OK only. HDT_ENOENT, HDT_EINVAL. */
enum hdt_status hdt_simulated_load(struct hdt_simulated *s, const char *path, const char *cluster,
                                   int n_steps, struct hdt_error *err);
void hdt_simulated_release(struct hdt_simulated *s);

/* Run it with s->scenario, once. */
enum hdt_status hdt_simulated_run(struct hdt_simulated *s, struct hdt_error *err);

/* Tables of ranks, links and the critical path. */
void hdt_simulated_print(const struct hdt_simulated *s, FILE *out);

/* New reference: "step_s", "makespan_s", "calm_step_s", "calm_makespan_s" (without the scenario),
 * "tokens_per_s", "ranks", "links", "critical_path". */
json_t *hdt_simulated_to_json(const struct hdt_simulated *s);

/* All steps for chrome://tracing or ui.perfetto.dev; ops as the worker names them. */
enum hdt_status hdt_simulated_trace(const struct hdt_simulated *s, const char *path,
                                    struct hdt_error *err);
/* The last step as a picture; with a scenario all steps. */
enum hdt_status hdt_simulated_svg(const struct hdt_simulated *s, const char *path,
                                  struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CLI_SIMULATED_H */
