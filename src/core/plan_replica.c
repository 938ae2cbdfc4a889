/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * Replicas of a plan. Each is a pipeline that could be a plan of its own, and is shown as one to
 * what knows pipelines only: the order of micro-batches, warm-ups, op lists.
 */
#include "src/base/buf.h"
#include "src/core/plan.h"

#include <string.h>

/* Slabs overlap coding, wire and arithmetic: large enough for the link, small beside the model. */
#define OUTER_SLAB_VALUES (UINT64_C(1) << 20)

void hdt_plan_replica_stages(const struct hdt_plan *plan, int replica, size_t *begin, size_t *end)
{
    size_t i = 0;

    while (i < plan->n_stages && plan->stages[i].replica < replica) {
        i++;
    }
    *begin = i;
    while (i < plan->n_stages && plan->stages[i].replica == replica) {
        i++;
    }
    *end = i;
}

int64_t hdt_plan_replica_micro_batches(const struct hdt_plan *plan, int replica, int64_t *first)
{
    int64_t n = 0;

    *first = 0;
    if (plan->n_replicas < 2) {
        return plan->n_micro_batches;
    }
    for (size_t i = 0; i < plan->n_stages && plan->stages[i].replica <= replica; i++) {
        if (i == 0 || plan->stages[i].replica != plan->stages[i - 1].replica) {
            *first += n;
            n = plan->stages[i].n_micro_batches;
        }
    }
    return n;
}

int hdt_plan_replica_root(const struct hdt_plan *plan, int replica)
{
    size_t begin, end;

    hdt_plan_replica_stages(plan, replica, &begin, &end);
    HDT_ASSERT(begin < end);
    return plan->stages[begin].rank;
}

int hdt_plan_rank_replica(const struct hdt_plan *plan, int rank)
{
    for (size_t i = 0; i < plan->n_stages; i++) {
        if (plan->stages[i].rank == rank) {
            return plan->stages[i].replica;
        }
    }
    return 0;
}

static int stage_in(int stage, size_t begin, size_t end)
{
    return stage >= (int)begin && stage < (int)end ? stage - (int)begin : -1;
}

void hdt_plan_replica_view(const struct hdt_plan *plan, int replica, struct hdt_plan *view)
{
    size_t begin, end;
    int64_t first;

    hdt_plan_replica_stages(plan, replica, &begin, &end);
    *view = *plan;
    view->stages = plan->stages + begin;
    view->n_stages = end - begin;
    view->n_replicas = 1;
    view->n_micro_batches = hdt_plan_replica_micro_batches(plan, replica, &first);
    view->root_rank = view->n_stages > 0 ? view->stages[0].rank : plan->root_rank;
    view->flows = hdt_calloc(plan->n_flows + 1, sizeof(view->flows[0]));
    for (size_t i = 0; i < plan->n_flows; i++) {
        view->flows[i] = plan->flows[i];
        view->flows[i].src_stage = stage_in(plan->flows[i].src_stage, begin, end);
        view->flows[i].dst_stage = stage_in(plan->flows[i].dst_stage, begin, end);
    }
}

uint64_t hdt_plan_outer_slab(const struct hdt_model_config *model)
{
    uint64_t most = 1;

    for (int i = 0; i < 3; i++) { /* embedding, a block, head: blocks are alike */
        const int64_t unit = i < 2 ? i : hdt_model_n_units(model) - 1;
        uint64_t n = (uint64_t)hdt_model_unit_params(model, unit);

        most = n > most ? n : most;
    }
    return most < OUTER_SLAB_VALUES ? most : OUTER_SLAB_VALUES;
}
