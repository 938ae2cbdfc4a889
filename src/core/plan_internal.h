/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_PLAN_INTERNAL_H
#define HDT_CORE_PLAN_INTERNAL_H

/* Shared by the files of the plan only. */
#include "src/core/plan.h"

#define HDT_PLAN_MAX_RANKS 4096u
#define HDT_PLAN_MAX_FLOWS (16u * HDT_PLAN_MAX_RANKS)

extern const char *const hdt_flow_kind_names[HDT_FLOW_KIND_COUNT + 1];

/* Ranks, batch and stages: bounds, cover of the model, warm-ups. HDT_EINVAL. */
enum hdt_status hdt_plan_check_stages(const struct hdt_plan *plan,
                                      const struct hdt_model_config *model, struct hdt_error *err);

/* Are warm-ups and micro-batches in flight those of the schedule? HDT_EINVAL. */
enum hdt_status hdt_plan_check_order(const struct hdt_plan *plan, struct hdt_error *err);

/* Replace the flows by those that stages and roles need; codecs of edges are kept where the old
 * flows name them, else taken from the job. */
enum hdt_status hdt_plan_derive_flows(struct hdt_plan *plan, const struct hdt_job *job,
                                      const struct hdt_model_config *model, struct hdt_error *err);

#endif /* HDT_CORE_PLAN_INTERNAL_H */
