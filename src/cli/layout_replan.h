/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_LAYOUT_REPLAN_H
#define HDT_CLI_LAYOUT_REPLAN_H

/* What `hdt plan --current` says: what another plan than the one that runs gains, what it costs to
 * move, and whether that pays before the job ends. */
#include "src/plan/layout_search.h"

#include <jansson.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_layout_replan {
    bool is_asked;
    bool goes_on;      /* the plan that runs is kept */
    bool by_time;      /* totals are seconds; else money or joules */
    double was_step_s; /* of the plan that runs, on the cluster as it is now; NAN: it cannot be */
    char was_why[HDT_ERROR_MSG_CAP]; /* why it cannot */
    double steps_left;
    struct hdt_layout_search_other now, repair, fresh; /* now: the plan that is shown */
    double was_total;                                  /* of the plan that runs; NAN */
    struct hdt_layout_moves moves;                     /* to the plan that is shown */
    const struct hdt_cluster_file *cluster;            /* for names in moves */
    int64_t n_units;                                   /* the model's layers and 2 */
};
void hdt_layout_replan_release(struct hdt_layout_replan *replan);

/* Steps after which a plan that moves longer and steps faster is ahead; INFINITY: it never is; 0:
 * from the first one. */
double hdt_layout_replan_pays(const struct hdt_layout_search_other *from,
                              const struct hdt_layout_search_other *to);

/* Nothing where it was not asked for. */
void hdt_layout_replan_print(const struct hdt_layout_replan *replan, FILE *out);
json_t *hdt_layout_replan_json(const struct hdt_layout_replan *replan); /* new reference */

/* The sums that were compared, a line each, to the end of an array of text. */
void hdt_layout_replan_explain(const struct hdt_layout_replan *replan, json_t *lines);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CLI_LAYOUT_REPLAN_H */
