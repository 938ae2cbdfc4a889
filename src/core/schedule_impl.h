/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_CORE_SCHEDULE_IMPL_H
#define HDT_CORE_SCHEDULE_IMPL_H

/* What the parts of the schedule share: schedule_rows.c (the items of a stage, or of a rank whose
 * stages take turns), schedule_order.c (the model that merges rows), schedule.c (from items to
 * ops). */
#include "src/core/schedule.h"

#ifdef __cplusplus
extern "C" {
#endif

static inline int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

enum schedule_item_kind {
    ITEM_LOAD,
    ITEM_FORWARD,
    ITEM_BACKWARD,
    ITEM_BACKWARD_INPUT,
    ITEM_BACKWARD_WEIGHT
};

struct schedule_item {
    enum schedule_item_kind kind;
    int stage; /* -1: a load ahead */
    int64_t mb;
};

/* What a row has in place of a stage's number. */
enum { ROW_LOADS = -1, ROW_TURNS = -2 };

/* Items in an order that nothing changes. */
struct schedule_row {
    int rank;
    int stage;     /* whose items these are; ROW_LOADS: loads only, ROW_TURNS: all of the rank */
    int64_t ahead; /* ROW_LOADS: of stage 0 by so many micro-batches at most */
    struct schedule_item *items;
    size_t n_items, next;
};

struct schedule_builder {
    const struct hdt_plan *plan;
    enum hdt_phase phase;
    int64_t n_mb;
    int rank;
    int tokens_flow, labels_flow; /* -1: none */
    struct schedule_row *rows;
    size_t n_rows;
    struct hdt_schedule *out;
    size_t out_cap;
};

/* The rows of all ranks, without their items; and the items of one. */
void hdt_schedule_rows(struct schedule_builder *b);
void hdt_schedule_row_fill(const struct schedule_builder *b, struct schedule_row *row);

/* Play all rows and add the ops of the builder's rank in the order in which its items come up. */
void hdt_schedule_order(struct schedule_builder *b);

/* Add the ops of an item. */
void hdt_schedule_add_item(struct schedule_builder *b, const struct schedule_item *item);

/* How stages take turns: `n_ranks` ranks, each with `n_chunks` stages, stage s on the rank of
 * stage s % n_ranks. HDT_EINVAL: they do not. */
enum hdt_status hdt_schedule_turns(const struct hdt_plan *plan, int *n_ranks, int *n_chunks,
                                   struct hdt_error *err);

/* Most micro-batches between the forward and the backward of each stage where stages take turns. */
void hdt_schedule_turns_in_flight(int n_ranks, int n_chunks, int64_t n_mb, int64_t *in_flight);

/* Flow of an edge. */
int hdt_schedule_edge_flow(const struct hdt_plan *plan, enum hdt_flow_kind kind, int src, int dst);

/* The lowest stage of a rank; -1: none. */
int hdt_schedule_first_stage(const struct hdt_plan *plan, int rank);

#ifdef __cplusplus
}
#endif
#endif /* HDT_CORE_SCHEDULE_IMPL_H */
