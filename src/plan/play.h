/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_PLAN_PLAY_H
#define HDT_PLAN_PLAY_H

/* A step being played: shared by cost_play.c (from a plan to moves, from times to results) and
 * play.c (the clock). Belongs to one call of hdt_cost_play. */
#include "src/plan/cost.h"

#define HDT_PLAY_STEPS 2

enum play_move_kind { PLAY_WORK, PLAY_SEND, PLAY_RECV };

struct play_move {
    enum play_move_kind kind;
    int flow;      /* SEND, RECV */
    double busy_s; /* of the rank: the op itself, the worker's codec, the fixed cost of an op */
    struct hdt_op op;
};

struct play_flow {
    struct hdt_cost_transfer transfer;
    double late_s;    /* that a frame comes later than predicted */
    int link;         /* index in cost->links; -1: inside a site */
    double *arrive_s; /* a frame of all steps */
    double *taken_s;
    int64_t n_sent;    /* by the rank */
    int64_t n_arrived; /* at the other one */
    int64_t n_taken, cap;
};

struct play_rank {
    struct play_move *moves;
    size_t n_moves, cap, next;
    double free_s, busy_s, held_s;
    double gateway_share; /* hdt_cost_gateway_share */
    size_t last_op;       /* in cost->ops, plus one; 0: none yet */
    bool last_counts;
    double step_end_s[HDT_PLAY_STEPS];
    size_t step_end[HDT_PLAY_STEPS]; /* moves before the end of each step */
};

/* Something that happens at a gateway, or on its way: a frame leaves its rank, or is all there. */
struct play_event {
    double at_s;
    int flow;
    bool arrives;
    bool counts;
};

struct play {
    const struct hdt_cost_inputs *in;
    const struct hdt_plan *plan;
    struct hdt_cost *cost;
    struct play_rank *ranks;
    struct play_flow *flows;
    double *link_free_s;
    struct play_event *events; /* that are to come, in no order */
    size_t n_events, events_cap;
    bool timeline;
    const struct hdt_cost_given *given; /* NULL: nothing */
};

/* play.c: run all moves of all ranks. */
void hdt_play_run(struct play *play);

#endif /* HDT_PLAN_PLAY_H */
