/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_VALIDATED_IMPL_H
#define HDT_CLI_VALIDATED_IMPL_H

/* What the parts of a comparison share. */
#include "src/cli/validated.h"

/* Steps at the head of metrics and of traces that are left out: the first ones of a run warm caches
 * and connections, one that a trace begins with may be cut off. */
#define VALIDATED_N_WARM 2

/* Steps [first, last] of a trace that are whole and warm; false: there is none. */
bool hdt_validated_steps(const struct hdt_validated *v, const struct hdt_validated_rank *rank,
                         int64_t *first, int64_t *last);

/* Part of the comparison: v->stages. */
void hdt_validated_stages(struct hdt_validated *v);

#endif /* HDT_CLI_VALIDATED_IMPL_H */
