/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_LAYOUT_PLAN_H
#define HDT_CLI_LAYOUT_PLAN_H

/* What `hdt plan LAYOUT.yaml` finds and shows. */
#include "src/cli/laid_out.h"
#include "src/cli/layout_flows.h"
#include "src/cli/layout_replan.h"
#include "src/cli/layout_plan_args.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What more of something would bring. */
struct hdt_layout_gain {
    char what[3 * HDT_NAME_CAP]; /* "1 Gbit/s more from site-a to site-b" */
    bool is_searched;            /* a plan of its own was searched; else the same plan with it */
    double step_s;
};
#define HDT_LAYOUT_GAINS_MAX 2

/* A search, and the plan that is shown of it. */
struct hdt_layout_planned {
    const struct hdt_layout_plan_args *args;
    struct hdt_layout_files files; /* the job */
    struct hdt_layout_search_options options;
    struct hdt_layout_search_result result;
    bool has_result;
    const struct hdt_layout_found *best; /* of the result, or `kept` */
    struct hdt_laid_out laid;            /* the best */
    struct hdt_layout_flows flows;       /* of it */
    struct hdt_layout_gain gains[HDT_LAYOUT_GAINS_MAX];
    size_t n_gains;
    double before_step_s;     /* --what-if: of the best plan without; NAN: there is none */
    bool before_is_cut;       /* its search was ended early */
    struct hdt_layout before; /* that plan; without stages where there is none */
    char before_why[HDT_ERROR_MSG_CAP]; /* why there is none; "": not asked */
    struct hdt_layout_found other;      /* --compare */
    char *other_path;                   /* NULL: not asked */
    bool other_fits;
    struct hdt_layout_replan replan; /* --current */
    struct hdt_layout_found kept; /* --current: the same plan goes on; layout.name NULL: not so */
};

/* Read, search, and look closer at the best. To be released in any case; zeroed first. */
enum hdt_status hdt_layout_plan(struct hdt_layout_planned *p,
                                const struct hdt_layout_plan_args *args, struct hdt_error *err);
void hdt_layout_planned_release(struct hdt_layout_planned *p);

/* Is this file a layout (it names its cluster), not a job? */
bool hdt_layout_plan_is_for(const char *path);

/* Tables and the reason. */
void hdt_layout_planned_print(const struct hdt_layout_planned *p, FILE *out);

/* {"plan": the layout, "step_s", "tokens_per_s", ..., "stages", "flows", "runners_up", "gains",
 * "compare", "current", "explain"}. New reference. */
json_t *hdt_layout_planned_json(const struct hdt_layout_planned *p);

/* Each term of the cost of each stage, as lines. New reference: array of text. HDT_EINVAL. */
enum hdt_status hdt_layout_explain(const struct hdt_layout_planned *p, json_t **lines,
                                   struct hdt_error *err);

/* Write the best plan as a layout that names cluster, model and profiles from where it lies. */
enum hdt_status hdt_layout_planned_write(const struct hdt_layout_planned *p, const char *path,
                                         struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CLI_LAYOUT_PLAN_H */
