/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_PLAN_LAYOUT_COST_H
#define HDT_PLAN_LAYOUT_COST_H

/* What one part of a layout costs: the numbers of its files as those that stage_cost.h asks for. */
#include "src/core/layout.h"
#include "src/plan/stage_cost.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A part of the pipeline on a group: a stage, or one of its chunks. Points into itself and to
 * `model`: it is not to be copied. */
struct hdt_layout_part {
    struct hdt_stage_cost cost;
    struct hdt_stage_cost_device device;
    struct hdt_stage_cost_profile profile;
    struct hdt_stage_cost_point *points;
    double input_share; /* of a backward that is its first half */
};

/* The model as all parts see it. */
void hdt_layout_model(const struct hdt_layout_files *files, struct hdt_stage_cost_model *model);

/* Parts of the pipeline: stages times chunks; part p is on stage p % n_stages. */
size_t hdt_layout_n_parts(const struct hdt_layout_files *files);

/* To be released on success. HDT_EINVAL: a figure of the device is needed and not known. */
enum hdt_status hdt_layout_part_init(const struct hdt_layout_files *files,
                                     const struct hdt_stage_cost_constants *constants,
                                     const struct hdt_stage_cost_model *model, size_t replica,
                                     size_t part_idx, struct hdt_layout_part *part,
                                     struct hdt_error *err);
void hdt_layout_part_release(struct hdt_layout_part *part);

#ifdef __cplusplus
}
#endif
#endif /* HDT_PLAN_LAYOUT_COST_H */
