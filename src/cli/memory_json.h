/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_MEMORY_JSON_H
#define HDT_CLI_MEMORY_JSON_H

#include "src/sim/sim.h"

#include <jansson.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The memory of each rank of a recorded simulation, [[s, bytes], ...]: from then on, in the order
 * of time. New references, by rank, in an array to be freed. */
json_t **hdt_memory_json(const struct hdt_sim_result *result);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CLI_MEMORY_JSON_H */
