/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_LAYOUT_FLOWS_H
#define HDT_CLI_LAYOUT_FLOWS_H

/* What leaves a site in a step of a layout: every frame and every all-reduce that the simulator
 * plays over a link between sites, added up. What is not in this list stays where it is. */
#include "src/plan/layout_sim.h"

#include <jansson.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum hdt_layout_flow_kind {
    HDT_LAYOUT_FLOW_ACTIVATIONS, /* of a stage, to the next one */
    HDT_LAYOUT_FLOW_GRADIENTS,   /* of those activations, back */
    HDT_LAYOUT_FLOW_SYNC,   /* gradients of weights that replicas add, weights that they gather */
    HDT_LAYOUT_FLOW_TABLE,  /* gradients of a table that first and last stage share */
    HDT_LAYOUT_FLOW_NORM,   /* the gradients' norm */
    HDT_LAYOUT_FLOW_LABELS, /* from where the tokens are to a last stage elsewhere */
    HDT_LAYOUT_FLOW_COUNT
};
extern const char *const hdt_layout_flow_names[];

struct hdt_layout_flow {
    const char *from, *to; /* sites of one leg; belong to the cluster */
    enum hdt_layout_flow_kind kind;
    int src_stage, dst_stage; /* -1: of all */
    double bytes;             /* of a step, on the wire */
    double busy_s;            /* that the link takes for them alone */
};

struct hdt_layout_flows {
    struct hdt_layout_flow *items;
    size_t n, cap;
    bool *has_tokens, *has_labels; /* by site: does it see raw ones? */
    size_t n_sites;
    const struct hdt_layout_files *files;
};

/* To be released; `files` and `sim` stay until then. Raw tokens are read where first stages are;
 * where last stages are elsewhere, labels go there (4 bytes a token). */
void hdt_layout_flows_init(struct hdt_layout_flows *flows, const struct hdt_layout_files *files,
                           const struct hdt_layout_sim *sim);
void hdt_layout_flows_release(struct hdt_layout_flows *flows);

/* The link that is busy longest; NULL: nothing leaves a site. Its busy_s is of all that it
 * carries. */
const struct hdt_layout_flow *hdt_layout_flows_busiest(const struct hdt_layout_flows *flows,
                                                       double *busy_s);

/* A table, and who sees tokens and labels; nothing where the cluster has one site. */
void hdt_layout_flows_print(const struct hdt_layout_flows *flows, double step_s, FILE *out);

/* {"flows": [{"from", "to", "kind", "src_stage", "dst_stage", "bytes", "busy_s"}], "tokens":
 * [site], "labels": [site]}. New reference. */
json_t *hdt_layout_flows_json(const struct hdt_layout_flows *flows);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CLI_LAYOUT_FLOWS_H */
