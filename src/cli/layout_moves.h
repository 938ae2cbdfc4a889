/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_LAYOUT_MOVES_H
#define HDT_CLI_LAYOUT_MOVES_H

/* What must move when another plan of the same job takes over: weights and the optimizer's state of
 * layers that a node did not have. Layers that stay on a node do not count, whatever its devices
 * share them by. */
#include "src/core/layout.h"

#include <jansson.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hdt_layout_moves {
    bool is_asked;
    bool goes_on;      /* the plan that runs is kept */
    double was_step_s; /* of the plan that runs, on the cluster as it is now; NAN: it cannot be */
    char was_why[HDT_ERROR_MSG_CAP]; /* why it cannot */
    double now_step_s;
    int64_t n_layers;    /* layers, embedding and head counted, on nodes that did not have them; */
    int64_t n_all;       /* and of all */
    double site_bytes;   /* that stay inside sites */
    double wan_bytes;    /* between sites */
    double stored_bytes; /* that nobody has any more: from a checkpoint */
    double seconds;      /* by the link that takes longest; checkpoints not counted */
};

/* From a plan that runs to a new one. Both are loaded; nodes are told by site, name and number.
 * `gone`: sites of the new one's cluster that nothing can come from any more. */
void hdt_layout_moves(const struct hdt_layout_files *from, const struct hdt_layout_files *to,
                      const size_t *gone, size_t n_gone, struct hdt_layout_moves *moves);

void hdt_layout_moves_print(const struct hdt_layout_moves *moves, FILE *out);
json_t *hdt_layout_moves_json(const struct hdt_layout_moves *moves); /* new reference */

#ifdef __cplusplus
}
#endif
#endif /* HDT_CLI_LAYOUT_MOVES_H */
