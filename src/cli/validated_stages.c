/* SPDX-License-Identifier: Apache-2.0 */
/* A run beside its prediction, stage by stage: what one op takes. */
#include "config.h"

#include "src/base/buf.h"
#include "src/base/median.h"
#include "src/cli/validated_impl.h"

#include <stdlib.h>

/* Each op of the played step counts once. */
static double predicted_of(const struct hdt_validated *v, int stage, int kind)
{
    const struct hdt_cost *cost = &v->planned.result.cost;
    double sum_s = 0;
    size_t n = 0;

    for (size_t i = 0; i < cost->n_ops; i++) {
        const struct hdt_cost_op *op = &cost->ops[i];

        if (op->op.stage == stage && (int)op->op.kind == kind) {
            sum_s += op->end_s - op->start_s;
            n++;
        }
    }
    return n > 0 ? sum_s / (double)n : -1;
}

/* `values` has room for all ops of the rank. */
static double measured_of(const struct hdt_validated *v, int stage, int kind, double *values)
{
    const struct hdt_validated_rank *rank = &v->ranks[v->planned.result.plan.stages[stage].rank];
    int64_t first, last;
    size_t n = 0;

    if (!hdt_validated_steps(v, rank, &first, &last)) {
        return -1;
    }
    for (size_t i = 0; i < rank->n_ops; i++) {
        const struct hdt_timeline_op *op = &rank->ops[i];

        if (op->stage == stage && (int)op->kind == kind && !op->eval && op->step >= first) {
            values[n++] = op->dur_us / 1e6;
        }
    }
    return n > 0 ? hdt_median(values, n) : -1;
}

void hdt_validated_stages(struct hdt_validated *v)
{
    const struct hdt_plan *plan = &v->planned.result.plan;

    v->stages = hdt_calloc(plan->n_stages, sizeof(*v->stages));
    for (size_t i = 0; i < plan->n_stages; i++) {
        const struct hdt_validated_rank *rank = &v->ranks[plan->stages[i].rank];
        double *values = hdt_calloc(rank->n_ops + 1, sizeof(double));

        for (int kind = 0; kind < HDT_OP_KIND_COUNT; kind++) {
            v->stages[i].predicted_s[kind] = predicted_of(v, (int)i, kind);
            v->stages[i].measured_s[kind] = measured_of(v, (int)i, kind, values);
        }
        free(values);
    }
}
