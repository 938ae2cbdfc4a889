/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * What replicas keep by unit. Checkpoints are made at outer steps, when all replicas have the same
 * weights, which the first one saves with its moments. The others save their moments, which they
 * alone have, and the first one the momentum of outer steps. A replica that a checkpoint knows
 * nothing of begins with the first one's moments.
 */
#include "runtime/state_impl.h"

#include <string.h>

static int64_t n_units(const struct hdt_plan *plan)
{
    return plan->stages[plan->n_stages - 1].unit_end;
}

int hdt_state_n_ends(const struct hdt_plan *plan)
{
    int n = 2 * (int)plan->n_flows;

    return plan->n_replicas > 1 ? n + 2 * plan->n_replicas * (int)n_units(plan) : n;
}

bool hdt_state_unit_of(const struct hdt_plan *plan, int end, struct state_unit *unit)
{
    int at = end - 2 * (int)plan->n_flows;

    if (at < 0 || end >= hdt_state_n_ends(plan)) {
        return false;
    }
    unit->is_outer = at % 2 == 1;
    unit->replica = (int)(at / 2 / n_units(plan));
    unit->unit = at / 2 % n_units(plan);
    return true;
}

/* The stage of its replica that holds a unit. */
static size_t unit_stage(const struct hdt_plan *plan, const struct state_unit *unit)
{
    size_t begin, end;

    hdt_plan_replica_stages(plan, unit->replica, &begin, &end);
    while (begin + 1 < end && plan->stages[begin].unit_end <= unit->unit) {
        begin++;
    }
    return begin;
}

bool hdt_state_unit_is_of(const struct hdt_plan *plan, int rank, const struct state_unit *unit)
{
    return plan->stages[unit_stage(plan, unit)].rank == rank &&
           (unit->is_outer || unit->replica > 0);
}

bool hdt_state_unit_is_saved(const struct state_unit *unit)
{
    return unit->is_outer == (unit->replica == 0);
}

/* Tensors [*first, *end) of a unit, without a tied head: replicas of tied models have one stage. */
static void unit_tensors(const struct hdt_model_config *model, int64_t unit, int64_t *first,
                         int64_t *end)
{
    int64_t n;

    hdt_model_unit_tensors(model, unit, first, &n);
    *end = *first + n;
    if (*end > hdt_ckpt_n_tensors(model)) {
        *end = hdt_ckpt_n_tensors(model);
    }
}

uint64_t hdt_state_unit_end_bytes(const struct hdt_plan *plan, const struct hdt_model_config *model,
                                  int end)
{
    struct state_unit unit;
    uint64_t bytes = 0;
    int64_t first, last;

    if (!hdt_state_unit_of(plan, end, &unit)) {
        return 0;
    }
    unit_tensors(model, unit.unit, &first, &last);
    for (int64_t t = first; t < last; t++) {
        bytes += (unit.is_outer ? 1 : 2) * hdt_ckpt_tensor_bytes(model, t);
    }
    return bytes;
}

uint64_t hdt_state_units_bytes(const struct hdt_plan *plan, const struct hdt_model_config *model)
{
    uint64_t bytes = 0;
    struct state_unit unit;

    for (int end = 2 * (int)plan->n_flows; hdt_state_unit_of(plan, end, &unit); end++) {
        bytes += hdt_state_unit_is_saved(&unit) ? hdt_state_unit_end_bytes(plan, model, end) : 0;
    }
    return bytes;
}

static enum hdt_status moments_copy(struct hdt_stage *stage, float *from, uint8_t **at,
                                    uint64_t bytes, bool to_stage, struct hdt_error *err)
{
    enum hdt_status status = to_stage ? hdt_stage_write(stage, from, *at, bytes, err)
                                      : hdt_stage_read(stage, *at, from, bytes, err);

    *at += bytes;
    return status;
}

enum hdt_status hdt_state_unit_copy(struct hdt_state *state, const struct state_unit *unit,
                                    void *bytes, bool to_stage, struct hdt_error *err)
{
    const struct hdt_model_config *model = state->conf.model;
    struct hdt_stage *stage = state->conf.stages[unit_stage(state->conf.plan, unit)];
    uint8_t *at = bytes;
    struct hdt_stage_tensor view;
    int64_t first, last;

    unit_tensors(model, unit->unit, &first, &last);
    if (unit->is_outer) {
        float *momentum = state->conf.momentum[unit->unit];
        uint64_t len = 0;

        for (int64_t t = first; t < last; t++) {
            len += hdt_ckpt_tensor_bytes(model, t);
        }
        memcpy(to_stage ? (void *)momentum : bytes, to_stage ? bytes : (void *)momentum, len);
        return HDT_OK;
    }
    for (int64_t t = first; t < last; t++) {
        uint64_t len = hdt_ckpt_tensor_bytes(model, t);

        hdt_stage_tensor(stage, (int)(t - hdt_stage_first_tensor(stage)), &view);
        HDT_TRY(moments_copy(stage, view.m, &at, len, to_stage, err));
        HDT_TRY(moments_copy(stage, view.v, &at, len, to_stage, err));
    }
    return HDT_OK;
}
