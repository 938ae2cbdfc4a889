/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_LAID_OUT_H
#define HDT_CLI_LAID_OUT_H

/* A layout from a file, simulated: what `hdt simulate LAYOUT.yaml` shows. */
#include "src/cli/scenario.h"
#include "src/plan/layout_sim.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_laid_out {
    bool is_derived; /* files borrow from those of a job */
    struct hdt_layout_files files;
    struct hdt_layout_sim *sim;
    struct hdt_cost_link *links; /* names, for the scenario */
    struct hdt_scenario scenario;
    struct hdt_played played;
};

/* The struct is zeroed first and to be released on HDT_OK only. As hdt_layout_open. */
enum hdt_status hdt_laid_out_load(struct hdt_laid_out *l, const char *path,
                                  const struct hdt_layout_instead *instead, struct hdt_error *err);
/* The same of a layout on the files of its job; both stay until it is released. */
enum hdt_status hdt_laid_out_derive(struct hdt_laid_out *l, const struct hdt_layout_files *job,
                                    const struct hdt_layout *layout, struct hdt_error *err);
void hdt_laid_out_release(struct hdt_laid_out *l);

/* Play it with l->scenario, once. */
enum hdt_status hdt_laid_out_run(struct hdt_laid_out *l, struct hdt_error *err);

/* The step; stages with the times and shares of the replica that is busy longest, and the memory by
 * class of the one that has the least left; links, the critical path. */
void hdt_laid_out_print(const struct hdt_laid_out *l, FILE *out);

/* New reference: "name", "step_s", "calm_step_s", "tokens_per_s", "memory_bytes", "measured",
 * "ranks", "links", "critical_path". */
json_t *hdt_laid_out_to_json(const struct hdt_laid_out *l);

/* Nodes of a rank, as "gh", after their site where there are several. */
void hdt_laid_out_nodes(const struct hdt_laid_out *l, size_t rank, char *text, size_t cap);

/* For chrome://tracing or ui.perfetto.dev; and as a picture. */
enum hdt_status hdt_laid_out_trace(const struct hdt_laid_out *l, const char *path,
                                   struct hdt_error *err);
enum hdt_status hdt_laid_out_svg(const struct hdt_laid_out *l, const char *path,
                                 struct hdt_error *err);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CLI_LAID_OUT_H */
