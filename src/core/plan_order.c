/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* How far each stage runs ahead, and how many micro-batches it keeps, under each schedule. */
#include "src/base/buf.h"
#include "src/core/plan_internal.h"
#include "src/core/schedule_impl.h"

#include <stdlib.h>
#include <string.h>

/* Within 0..n_micro_batches and not growing along the pipeline: raised, never lowered, but for the
 * cap. A stage keeps what is under way at least. */
static void warmups_fit(struct hdt_plan *plan)
{
    bool split = hdt_schedule_is_split(plan->schedule);
    int64_t n = plan->n_micro_batches, least = 0;

    for (size_t i = plan->n_stages; i-- > 0;) {
        struct hdt_plan_stage *s = &plan->stages[i];
        int64_t room;

        s->warmup = min64(max64(s->warmup, least), n);
        least = s->warmup;
        room = min64(s->warmup + 1, n);
        s->in_flight = split ? min64(max64(s->in_flight, room), n) : room;
    }
}

/* The same for all, or one less from stage to stage. */
static void warmups_set(struct hdt_plan *plan, int64_t first, int64_t less, int64_t in_flight)
{
    for (size_t i = 0; i < plan->n_stages; i++) {
        plan->stages[i].warmup = first - less * (int64_t)i;
        plan->stages[i].in_flight = in_flight;
    }
    warmups_fit(plan);
}

static enum hdt_status warmups_turns(struct hdt_plan *plan, struct hdt_error *err)
{
    int n_ranks, n_chunks;
    int64_t *in_flight;

    HDT_TRY(hdt_schedule_turns(plan, &n_ranks, &n_chunks, err));
    if (n_chunks == 1 && n_ranks > 1) {
        hdt_error_set(err, HDT_EINVAL,
                      "schedule interleaved needs ranks with several stages, each of these %d has "
                      "one",
                      n_ranks);
        hdt_error_hint(err, "name each worker of plan.cut several times, in turns, or choose "
                            "another plan.schedule");
        return HDT_EINVAL;
    }
    in_flight = hdt_calloc(plan->n_stages, sizeof(*in_flight));
    hdt_schedule_turns_in_flight(n_ranks, n_chunks, plan->n_micro_batches, in_flight);
    for (size_t i = 0; i < plan->n_stages; i++) {
        plan->stages[i].in_flight = in_flight[i];
        plan->stages[i].warmup = in_flight[i] - 1;
    }
    free(in_flight);
    return HDT_OK;
}

/* Each replica for itself. */
static enum hdt_status replicas_fit(struct hdt_plan *plan, struct hdt_error *err)
{
    enum hdt_status status = HDT_OK;
    struct hdt_plan view, bare = *plan;

    bare.n_flows = 0; /* orders have none */
    for (int k = 0; k < plan->n_replicas && status == HDT_OK; k++) {
        hdt_plan_replica_view(&bare, k, &view); /* its stages are the plan's */
        status = hdt_plan_fit_order(&view, err);
        free(view.flows);
    }
    return status;
}

enum hdt_status hdt_plan_fit_order(struct hdt_plan *plan, struct hdt_error *err)
{
    int64_t n_stages = (int64_t)plan->n_stages;

    if (plan->n_replicas > 1) {
        return replicas_fit(plan, err);
    }
    switch (plan->schedule) {
    case HDT_SCHEDULE_GPIPE:
        warmups_set(plan, plan->n_micro_batches, 0, 0);
        return HDT_OK;
    case HDT_SCHEDULE_1F1B:
        warmups_set(plan, n_stages - 1, 1, 0);
        return HDT_OK;
    case HDT_SCHEDULE_ZB_H1:
        warmups_set(plan, n_stages - 1, 1, n_stages);
        return HDT_OK;
    case HDT_SCHEDULE_INTERLEAVED:
        return warmups_turns(plan, err);
    default:
        warmups_fit(plan);
        return HDT_OK;
    }
}

enum hdt_status hdt_plan_check_order(const struct hdt_plan *plan, struct hdt_error *err)
{
    struct hdt_plan fitted = *plan;
    enum hdt_status status;

    fitted.stages = hdt_malloc(plan->n_stages * sizeof(fitted.stages[0]));
    memcpy(fitted.stages, plan->stages, plan->n_stages * sizeof(fitted.stages[0]));
    status = hdt_plan_fit_order(&fitted, err);
    for (size_t i = 0; status == HDT_OK && i < plan->n_stages; i++) {
        const struct hdt_plan_stage *a = &plan->stages[i], *b = &fitted.stages[i];

        if (hdt_schedule_is_split(plan->schedule) && a->recompute) {
            status =
                hdt_error_set(err, HDT_EINVAL, "stage %zu recomputes, which schedule %s cannot", i,
                              hdt_schedule_names[plan->schedule]);
        } else if (a->warmup != b->warmup || a->in_flight != b->in_flight) {
            status = hdt_error_set(
                err, HDT_EINVAL,
                "stage %zu has a warm-up of %lld and keeps %lld micro-batches; under schedule %s "
                "these are %lld and %lld",
                i, (long long)a->warmup, (long long)a->in_flight,
                hdt_schedule_names[plan->schedule], (long long)b->warmup, (long long)b->in_flight);
        }
    }
    free(fitted.stages);
    return status;
}
