/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CLI_EXPLAIN_H
#define HDT_CLI_EXPLAIN_H

/* Why a plan is as it is, in words and numbers: `hdt plan --explain`. */
#include "src/cli/planned.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One sentence a line: what each rank's step consists of, how each edge's frames travel, what each
 * codec gains and where it would no longer, why workers got what they got, the runner-up. New
 * reference to an array of strings. */
json_t *hdt_explain(const struct hdt_planned *planned);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CLI_EXPLAIN_H */
