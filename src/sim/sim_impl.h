/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_SIM_SIM_IMPL_H
#define HDT_SIM_SIM_IMPL_H

/*
 * A simulation that runs. sim.c has the clock, sim_rank.c what ranks do, sim_flow.c frames and
 * queues, sim_net.c the rates of frames that share links, sim_group.c collectives, sim_slow.c
 * scenarios. Everything is allocated at the start; rings of frames grow to the most that were under
 * way.
 */
#include "src/sim/sim.h"
#include "src/sim/sim_heap.h"

#define SIM_CREDIT_MAX 65536 /* largest depth of a flow */

enum sim_rank_state {
    SIM_RANK_NEW,
    SIM_RANK_AT_WORK, /* its task ends at end_s */
    SIM_RANK_PAUSED,  /* begins its task at the time of its slot */
    SIM_RANK_WAITS_FRAME,
    SIM_RANK_WAITS_CREDIT,
    SIM_RANK_WAITS_LEFT,
    SIM_RANK_WAITS_GROUP,
    SIM_RANK_DONE,
};

struct sim_rank {
    struct hdt_sim_task task; /* the one that runs or waits, when has_task */
    bool has_task;
    enum sim_rank_state state;
    enum hdt_sim_use pause_use;
    int64_t next; /* task to ask for */
    int step;
    bool at_edge;   /* its last task ended a step */
    double end_s;   /* of the task that runs */
    double free_s;  /* end of its last task, later when held up: begins nothing before */
    double held_s;  /* by the host, not yet accounted for */
    double mark_s;  /* up to here its time is accounted for */
    double begin_s; /* of its window */
    int64_t span;   /* last one; -1: none, or not recorded */
    int64_t cause;  /* of the next one, when it waited; -1: the last one */
    int64_t mem;
    struct hdt_sim_rank_result result;
};

/* Small, since each is touched three times, far apart. */
struct sim_frame {
    double bytes;
    double sent_s;
    double arrive_s; /* until it has left: what was done BESIDE, for as long it comes later */
    int32_t span;    /* of its SEND */
    bool counts;     /* sent in a step that counts */
};

struct sim_credit {
    double at_s; /* when the frame was taken */
    int64_t span;
};

/* Frames are numbered from 0: taken <= arrived <= left <= sent. */
struct sim_flow {
    const struct hdt_sim_flow *is;
    int queue;
    int group; /* that it belongs to; -1: none */
    int64_t n_sent, n_left, n_arrived, n_taken;
    struct sim_frame *frames; /* ring of those not taken, cap a power of two */
    size_t cap;
    struct sim_credit *credits; /* ring of `depth` */
};

/* What stands in a queue and which frame is under way. */
struct sim_queue {
    int flow;       /* whose frame holds it; -1: nobody's */
    bool paces;     /* its frame has left; it is only not free yet */
    double begin_s; /* of its frame */
    double rest;    /* bytes, at rest_s */
    double rest_s;
    double rate;  /* bytes a second from then on */
    int *waiting; /* shared: ring of flows, cap a power of two */
    size_t cap;
    uint64_t first, last;
    uint64_t seen; /* sim_net.c: round in which it was gathered */
    bool fixed;
};

struct sim_link {
    double rate;          /* now */
    double peak;          /* most bytes a second in use at any time */
    double bytes, weight; /* in the steps that count */
    int *queues; /* whose frames use it: `few`, or an array of its own when there are more */
    uint32_t n, cap;
    int few[2];
    uint64_t seen;
    double spare; /* sim_net.c: not given away yet, and to how many */
    size_t n_open;
};

struct sim_group {
    const struct hdt_sim_group *is;
    int64_t n_done; /* collectives */
    size_t n_there; /* members that have come to the next one */
    bool runs;
    double begin_s; /* of the one that runs */
    int64_t cause;  /* last member's span before it; -1: none */
};

/* Slots of the heap: a change of links, then flows (head of those under way has come), queues (the
 * frame has left), groups (it ends), ranks. At one time, what sets free comes first. */
struct sim {
    const struct hdt_sim_setup *setup;
    struct hdt_sim_result *result;
    struct sim_rank *ranks;
    struct sim_flow *flows;
    struct sim_queue *queues;
    struct sim_link *links;
    struct sim_group *groups;
    int64_t *member_came; /* by member: collectives that it has come to */
    size_t n_queues;
    size_t first_flow, first_queue, first_group, first_rank; /* slots */
    struct hdt_sim_heap heap;
    double *changes_s; /* when rates of links change, ascending */
    size_t n_changes, next_change;
    size_t *slow_first; /* by rank: its slow_ranks are slow_order[slow_first[r]..] */
    size_t *slow_order;
    uint64_t round;
    int *near_queues, *near_links; /* gathered in this round */
    size_t n_near_queues, n_near_links;
    size_t spans_cap;
};

/* sim_rank.c. A rank does what it can from `t` on. */
void hdt_sim_rank_go(struct sim *sim, int rank, double t);
void hdt_sim_rank_event(struct sim *sim, int rank, double t);
/* What it waits for is there: its time up to then was `use`. */
void hdt_sim_rank_account(struct sim *sim, int rank, enum hdt_sim_use use, double until_s);
void hdt_sim_rank_hold(struct sim *sim, int rank, double at_s, double held_s);
/* The blocked task ends at t without taking time of its own; `cause`: what it waited for. */
void hdt_sim_rank_release(struct sim *sim, int rank, double begin_s, double t, int64_t cause);

/* sim_flow.c */
void hdt_sim_frame_send(struct sim *sim, int flow, const struct sim_frame *frame);
void hdt_sim_queue_event(struct sim *sim, int queue, double t);
void hdt_sim_flow_event(struct sim *sim, int flow, double t);
struct sim_frame *hdt_sim_flow_frame(const struct sim_flow *flow, int64_t n);

/* sim_net.c. The queue's frame begins, ends; rates of links have changed. */
void hdt_sim_net_begin(struct sim *sim, int queue, double t);
void hdt_sim_net_end(struct sim *sim, int queue, double t);
void hdt_sim_net_change(struct sim *sim, double t);

/* sim_group.c */
bool hdt_sim_group_come(struct sim *sim, int rank, double t); /* true: it need not wait */
bool hdt_sim_group_join(struct sim *sim, int rank);           /* true: all is done */
void hdt_sim_group_end(struct sim *sim, int group, double t);

/* sim_slow.c */
void hdt_sim_slow_init(struct sim *sim);
void hdt_sim_slow_release(struct sim *sim);
double hdt_sim_slow_link(const struct sim *sim, int link, double t); /* its speed from t on */
/* When `dur_s` of work end that begin at t. */
double hdt_sim_slow_end(const struct sim *sim, int rank, double t, double dur_s);
double hdt_sim_slow_jitter(const struct sim *sim, int rank, int64_t task);

/* sim_check.c: is the setup one that can be run? */
enum hdt_status hdt_sim_check(const struct hdt_sim_setup *setup, struct hdt_error *err);
/* Who waits for what, when no event is left and ranks are not done. HDT_EINVAL. */
enum hdt_status hdt_sim_stuck(const struct sim *sim, struct hdt_error *err);

#endif /* HDT_SIM_SIM_IMPL_H */
