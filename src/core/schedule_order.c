/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * One order for the rows of a rank that has several.
 *
 * Such a rank plays the rows of *all* ranks in a small model of the pipeline, with the flows'
 * depths as limits: the order in which its own items come up there is its list. Every rank plays
 * the same model, so that all lists are parts of one total order in which no SEND or RECV waits: a
 * cycle of waits cannot exist, however the real run is timed (flows are first in, first out, and
 * each list is fixed, so one order that ends means that all do).
 *
 * The model's times are the plan's predicted ones; they are the same bits on every rank.
 */
#include "src/base/buf.h"
#include "src/core/schedule_impl.h"

#include <float.h>
#include <stdlib.h>

/* ---- the model that orders the items of ranks with several stages ---- */

struct order_model {
    struct schedule_builder *b;
    double *rank_free_s;    /* a rank */
    double *fwd_done_s;     /* (stage, mb) */
    double *bwd_done_s;     /* (stage, mb) */
    int64_t *n_fwd, *n_bwd; /* a stage: forwards, backwards (or their first halves) done */
    int64_t n_loads;        /* loads ahead done */
};

/* Frames sent on a flow and not yet taken stay below its depth. */
static bool flow_has_room(const struct hdt_plan *plan, int flow, int64_t n_sent, int64_t n_taken)
{
    return flow < 0 || n_sent - n_taken < (int64_t)plan->flows[flow].depth;
}

/* May the forward run now, and when are its inputs there? */
static bool forward_ready(const struct order_model *m, int stage, int64_t mb, double *ready_s)
{
    const struct schedule_builder *b = m->b;
    const struct hdt_plan *plan = b->plan;
    int last = (int)plan->n_stages - 1;
    bool loads = stage == 0 && plan->stages[0].rank == plan->data_rank;

    *ready_s = 0;
    if (stage > 0) {
        if (m->n_fwd[stage - 1] <= mb) {
            return false;
        }
        *ready_s = m->fwd_done_s[(stage - 1) * b->n_mb + mb];
    } else if (b->tokens_flow >= 0 && m->n_loads <= mb) {
        return false;
    }
    if (loads && !flow_has_room(plan, b->labels_flow, mb, m->n_fwd[last])) {
        return false;
    }
    return stage == last ||
           flow_has_room(plan, hdt_schedule_edge_flow(plan, HDT_FLOW_ACTIVATION, stage, stage + 1),
                         mb, m->n_fwd[stage + 1]);
}

static bool backward_ready(const struct order_model *m, int stage, int64_t mb, double *ready_s)
{
    const struct schedule_builder *b = m->b;
    const struct hdt_plan *plan = b->plan;
    int last = (int)plan->n_stages - 1;

    *ready_s = 0;
    if (stage < last) {
        if (m->n_bwd[stage + 1] <= mb) {
            return false;
        }
        *ready_s = m->bwd_done_s[(stage + 1) * b->n_mb + mb];
    }
    return stage == 0 ||
           flow_has_room(plan,
                         hdt_schedule_edge_flow(plan, HDT_FLOW_ACTIVATION_GRAD, stage, stage - 1),
                         mb, m->n_bwd[stage - 1]);
}

static bool item_ready(const struct order_model *m, const struct schedule_row *row, double *start_s)
{
    const struct schedule_item *item = &row->items[row->next];
    const struct hdt_plan *plan = m->b->plan;
    double ready_s = 0;
    bool ready;

    if (item->kind == ITEM_LOAD) {
        ready = (row->stage != ROW_LOADS || item->mb - m->n_fwd[0] < row->ahead) &&
                flow_has_room(plan, m->b->tokens_flow, item->mb, m->n_fwd[0]) &&
                flow_has_room(plan, m->b->labels_flow, item->mb, m->n_fwd[plan->n_stages - 1]);
    } else if (item->kind == ITEM_FORWARD) {
        ready = forward_ready(m, item->stage, item->mb, &ready_s);
    } else if (item->kind == ITEM_BACKWARD_WEIGHT) {
        ready = true;
    } else {
        ready = backward_ready(m, item->stage, item->mb, &ready_s);
    }
    *start_s = m->rank_free_s[row->rank] > ready_s ? m->rank_free_s[row->rank] : ready_s;
    return ready;
}

/* What goes first of two items that could start at the same time: a backward (another stage waits
 * for it), last a weights' half (nobody does). */
static int item_urgency(const struct schedule_item *item)
{
    switch (item->kind) {
    case ITEM_BACKWARD:
    case ITEM_BACKWARD_INPUT:
        return 2;
    case ITEM_BACKWARD_WEIGHT:
        return 0;
    default:
        return 1;
    }
}

/* Earliest first; at the same time the more urgent one, then the later stage. */
static struct schedule_row *order_pick(struct order_model *m, double *start_s)
{
    struct schedule_builder *b = m->b;
    struct schedule_row *best = NULL;
    double best_s = DBL_MAX;

    for (size_t i = b->n_rows; i-- > 0;) {
        struct schedule_row *row = &b->rows[i];
        double s;

        if (row->next == row->n_items || !item_ready(m, row, &s)) {
            continue;
        }
        if (!best || s < best_s ||
            (s == best_s &&
             item_urgency(&row->items[row->next]) > item_urgency(&best->items[best->next]))) {
            best = row;
            best_s = s;
        }
    }
    *start_s = best_s;
    return best;
}

static double time_or(double time_s, double otherwise)
{
    return time_s > 0 ? time_s : otherwise;
}

static double item_s(const struct hdt_plan_stage *stage, enum schedule_item_kind kind)
{
    switch (kind) {
    case ITEM_FORWARD:
        return time_or(stage->fwd_s, 1.0);
    case ITEM_BACKWARD_INPUT:
        return time_or(stage->bwd_input_s, 1.0);
    case ITEM_BACKWARD_WEIGHT:
        return time_or(stage->bwd_weight_s, 1.0);
    default:
        return time_or(stage->bwd_s, 2.0);
    }
}

static void order_commit(struct order_model *m, struct schedule_row *row, double start_s)
{
    struct schedule_builder *b = m->b;
    const struct schedule_item *item = &row->items[row->next++];

    if (item->kind == ITEM_LOAD) {
        m->n_loads++;
    } else {
        start_s += item_s(&b->plan->stages[item->stage], item->kind);
        m->rank_free_s[row->rank] = start_s;
        if (item->kind == ITEM_FORWARD) {
            m->fwd_done_s[item->stage * b->n_mb + item->mb] = start_s;
            m->n_fwd[item->stage]++;
        } else if (item->kind != ITEM_BACKWARD_WEIGHT) {
            m->bwd_done_s[item->stage * b->n_mb + item->mb] = start_s;
            m->n_bwd[item->stage]++;
        }
    }
    if (row->rank == b->rank) {
        hdt_schedule_add_item(b, item);
    }
}

void hdt_schedule_order(struct schedule_builder *b)
{
    size_t n_stages = b->plan->n_stages, n_cells = n_stages * (size_t)b->n_mb;
    struct order_model m = {
        .b = b,
        .rank_free_s = hdt_calloc(b->plan->n_ranks, sizeof(double)),
        .fwd_done_s = hdt_calloc(n_cells, sizeof(double)),
        .bwd_done_s = hdt_calloc(n_cells, sizeof(double)),
        .n_fwd = hdt_calloc(n_stages, sizeof(int64_t)),
        .n_bwd = hdt_calloc(n_stages, sizeof(int64_t)),
    };
    struct schedule_row *row;
    double start_s;

    while ((row = order_pick(&m, &start_s))) {
        order_commit(&m, row, start_s);
    }
    /* hdt_plan_complete's depths and warm-ups let the model run to its end. */
    for (size_t i = 0; i < b->n_rows; i++) {
        HDT_ASSERT(b->rows[i].next == b->rows[i].n_items);
    }
    free(m.rank_free_s);
    free(m.fwd_done_s);
    free(m.bwd_done_s);
    free(m.n_fwd);
    free(m.n_bwd);
}
