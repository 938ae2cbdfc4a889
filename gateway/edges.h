/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_EDGES_H
#define HDT_GATEWAY_EDGES_H

/*
 * Codecs of the flows that begin at workers of this site: what those say of them, for /status and
 * /metrics, and what a worker that may choose needs to know of the way to the other end. Main
 * thread.
 */
#include "gateway/control.h"

/* "flow.codec" of a worker, a second apart: kept until the job is over. */
void hdt_edges_said(struct hdt_gateway *gw, const json_t *msg);

/* "edge.is" to each worker with a flow that may choose: every second. */
void hdt_edges_tick(struct hdt_gateway *gw);

/* What was said of the flow that begins here; NULL: nothing. Borrowed. */
const json_t *hdt_edges_find(const struct hdt_gateway *gw, uint32_t job, uint32_t flow);

void hdt_edges_metrics(struct hdt_gateway *gw, struct hdt_buf *out);
void hdt_edges_free(struct hdt_gateway *gw);

#endif /* HDT_GATEWAY_EDGES_H */
