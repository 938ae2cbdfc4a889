/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_SIM_SIM_PATH_H
#define HDT_SIM_SIM_PATH_H

/* The critical path of a recorded simulation: the tasks that the last one to end had to wait for,
 * one before the other, back to the start. */
#include "src/sim/sim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the path's time is spent on. */
enum hdt_sim_path_use {
    HDT_SIM_PATH_COMPUTE,
    HDT_SIM_PATH_COMM,   /* ranks' own time for frames; collectives */
    HDT_SIM_PATH_QUEUE,  /* a frame stands in its queue or is being sent */
    HDT_SIM_PATH_FLIGHT, /* it is under way: latency, codecs of gateways */
    HDT_SIM_PATH_WAIT,   /* credit; held up by a host */
    HDT_SIM_PATH_USE_COUNT
};

struct hdt_sim_path {
    int64_t *spans; /* indices into result->spans, in the order of time */
    size_t n_spans;
    double use_s[HDT_SIM_PATH_USE_COUNT]; /* add up to the end of the last task */
};

/* result->spans must be there. */
void hdt_sim_path_find(const struct hdt_sim_result *result, struct hdt_sim_path *path);
void hdt_sim_path_release(struct hdt_sim_path *path);

/* "compute", "transfer", ...: as in what is printed. */
const char *hdt_sim_path_use_name(enum hdt_sim_path_use use);

#ifdef __cplusplus
}
#endif
#endif /* HDT_SIM_SIM_PATH_H */
