/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_PLAN_PLAY_H
#define HDT_PLAN_PLAY_H

/* A step being played: shared by cost_play.c (from a plan to moves, from times to results), play.c
 * (the simulator's tables, and its run) and plan_sim.c. Belongs to one call. */
#include "src/plan/cost.h"
#include "src/sim/sim.h"

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
    double late_s; /* that a frame comes later than predicted */
    int link;      /* index in cost->links; -1: inside a site */
};

struct play_rank {
    struct play_move *moves; /* of one step */
    size_t n_moves, cap;
    double busy_s, held_s;
    double gateway_share; /* hdt_cost_gateway_share */
    double step_end_s[HDT_PLAY_STEPS];
};

struct play {
    const struct hdt_cost_inputs *in;
    const struct hdt_plan *plan;
    struct hdt_cost *cost;
    struct play_rank *ranks;
    struct play_flow *flows;
    bool timeline;
    const struct hdt_cost_given *given; /* NULL: nothing */
};

/* What the simulator's setup points at. */
struct play_tables {
    struct hdt_sim_link *links;
    struct hdt_sim_flow *flows;
    int *routes;
    struct hdt_sim_host *hosts;
    int *host_ranks;
    double *host_shares;
    int64_t *mem_base;
    struct hdt_sim_lists lists;
    struct hdt_sim_setup setup;
};

/* cost_play.c: moves and flows of the plan; to be closed on HDT_OK. As hdt_cost_play. */
enum hdt_status hdt_play_open(struct play *play, struct hdt_error *err);
void hdt_play_close(struct play *play);

/* play.c: the tables for so many steps, of which all but the first count. */
void hdt_play_tables_init(const struct play *play, int n_steps, struct play_tables *tables);
void hdt_play_tables_release(const struct play *play, struct play_tables *tables);
/* Run all moves of all ranks and fill what the ranks, cost->ops and cost->links say of it.
 * HDT_EINVAL: they wait for each other. */
enum hdt_status hdt_play_run(struct play *play, struct hdt_error *err);

#endif /* HDT_PLAN_PLAY_H */
