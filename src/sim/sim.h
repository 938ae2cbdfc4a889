/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_SIM_SIM_H
#define HDT_SIM_SIM_H

/*
 * A discrete-event simulator of a training step: the op lists of all ranks over links that they
 * share. It knows neither plans nor devices: who calls it says how long each task takes, how many
 * bytes a frame has and which links it crosses.
 *
 *   rank   runs its list in order on one stream of compute; what is `BESIDE` costs it no time
 *   flow   frames from a rank to another, in order; the k-th RECV takes the k-th SEND
 *   link   one direction of a wire, a NIC, a bus: bytes a second (full duplex is two links)
 *   queue  frames that go one after another: each flow has its own, or flows share one
 *   group  ranks that begin something together: a collective
 *
 * Links: a frame takes all links of its flow's route at once. Frames that are under way at one time
 * share each link in max-min fair parts: no frame's part can grow but by taking from one that has
 * no more. That is what streams of TCP, channels of a collective library and fair NICs do, and it
 * keeps every link at its rate while there is work for it. A queue in front of a link (one that its
 * flows share) makes the link serve whole frames, first come, first served, as a gateway's queue
 * does. So both are there, by the flow's choice, and with one clear meaning for a route of both:
 * the queue says who may go, the links how fast.
 *
 * The same setup gives the same bits: no randomness but the seed's, ties go by number, and what is
 * random depends on (seed, rank, task), not on the order of events. One thread; no I/O.
 */
#include "src/base/error.h"
#include "src/core/schedule.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- what is simulated ---- */

enum hdt_sim_kind {
    HDT_SIM_COMPUTE,
    HDT_SIM_SEND,  /* peer: flow. Takes dur_s of the rank (codec, copy), then the frame goes */
    HDT_SIM_RECV,  /* peer: flow. Waits for the flow's next frame, then takes dur_s */
    HDT_SIM_GROUP, /* peer: group. Begins when all its ranks are there, ends for all at once */
    HDT_SIM_JOIN,  /* peer: group. Waits for what this rank began there ASYNC */
};

enum hdt_sim_flag {
    HDT_SIM_BESIDE = 1,   /* SEND, RECV: dur_s is not the rank's (a copy engine): it adds to the
                             frame's way, and a RECV ends so long after the frame has come */
    HDT_SIM_SYNC = 2,     /* SEND: the rank waits until the last byte has left */
    HDT_SIM_ASYNC = 4,    /* GROUP: the rank goes on at once */
    HDT_SIM_STEP_END = 8, /* the rank's step ends with this task */
};

struct hdt_sim_task {
    enum hdt_sim_kind kind;
    unsigned flags; /* of enum hdt_sim_flag */
    int peer;       /* -1: none */
    double dur_s;
    double bytes;      /* SEND: on the wire */
    int64_t mem_begin; /* bytes of the rank's memory that the task takes when it begins, */
    int64_t mem_end;   /* and when it ends; < 0: gives back */
    struct hdt_op op;  /* what it is called in traces and charts */
};

struct hdt_sim_link {
    double rate_bytes_per_s;
};

struct hdt_sim_flow {
    int src, dst;           /* ranks; -1 and -1: a group's */
    size_t route;           /* in setup->routes: n_route links, none twice */
    size_t n_route;         /* 0: takes no link, only time */
    int queue;              /* in 0..setup->n_queues - 1: shared; -1: its own */
    double latency_s;       /* from the last byte's leaving to its being there; also of a credit */
    double extra_s;         /* added to each frame's way, holds nothing: codec of a gateway. < 0: it
                         comes earlier, but not before it has left */
    double weight;          /* of a byte on its links: what they carry for it; 0: 1 */
    double pace_s;          /* a frame holds its queue for at least so long */
    uint32_t depth;         /* frames sent and not taken, then SEND waits for credit; 0: no limit */
    int src_host, dst_host; /* whose ranks are held up when a frame goes and comes; -1: nobody's */
    double src_cpu_s, dst_cpu_s; /* for how long, by a share of 1 */
};

/* Ranks beside a process that computes now and then (a gateway): it goes first, and such a rank's
 * task ends later by the share of that time. */
struct hdt_sim_host {
    size_t first, n; /* in setup->host_ranks and host_shares */
};

struct hdt_sim_group {
    size_t first, n; /* in setup->members, ascending ranks */
    double dur_s;    /* of one collective when all are there; */
    int flow;        /* then a frame of `bytes` crosses this flow; -1: none */
    double bytes;
    bool chained; /* begins by itself when the one before it in the table has ended, whose members
                     it has: they only JOIN it, after they have joined that one */
};

/* A rank or link runs at `speed` of itself in [from_s, to_s): 1 is all of it, 0 an outage. Several
 * at a time multiply. */
struct hdt_sim_slow {
    int idx;
    double from_s, to_s, speed;
};

/* All is the caller's and stays as it is while the simulation runs. */
struct hdt_sim_setup {
    size_t n_ranks, n_links, n_flows, n_queues, n_groups, n_hosts;
    const struct hdt_sim_link *links;
    const struct hdt_sim_flow *flows;
    const int *routes;
    const double
        *route_shares; /* by routes: of a frame's bytes, those that the link is said to have
                          carried, while it takes as long as if all were there; NULL: all */
    const struct hdt_sim_group *groups;
    const int *members;
    const struct hdt_sim_host *hosts;
    const int *host_ranks;
    const double *host_shares;
    const int64_t *mem_base; /* by rank: bytes that it takes all the time; NULL: none */

    /* The idx-th task of a rank; false: there are no more. Asked once each, in order: lists need
     * not exist. */
    bool (*task)(void *ctx, int rank, int64_t idx, struct hdt_sim_task *task);
    void *ctx;
    int n_steps;    /* STEP_ENDs in each list */
    int first_step; /* shares and link use are of the steps from this one on */

    /* Scenario */
    const struct hdt_sim_slow *slow_ranks; /* compute, and what SEND and RECV take of a rank */
    size_t n_slow_ranks;
    const struct hdt_sim_slow *slow_links;
    size_t n_slow_links;
    double jitter; /* COMPUTE: times a log-normal factor of mean 1 and this sigma; 0: none */
    uint64_t seed;

    bool record; /* keep a span of each task: for traces, charts, the critical path */
};

/* ---- results ---- */

/* What a rank does with its time. They add up to its window. */
enum hdt_sim_use {
    HDT_SIM_BUSY,   /* computes */
    HDT_SIM_COMM,   /* its own time for frames; collectives that run */
    HDT_SIM_HELD,   /* held up by its host */
    HDT_SIM_WAIT,   /* for a frame that is under way, for credit, for a frame to leave */
    HDT_SIM_BUBBLE, /* for others that have not done their part; nothing left to do */
    HDT_SIM_USE_COUNT
};

struct hdt_sim_rank_result {
    double use_s[HDT_SIM_USE_COUNT];
    double window_s; /* from its end of the step before first_step (else 0) to that of the last
                        (first_step 0: to the end of all) */
    double end_s;    /* of its last task */
    int64_t mem_peak, mem_last;
};

struct hdt_sim_link_result {
    double bytes; /* sent in the steps that count, and how long the link takes for them alone */
    double busy_s;
    double peak; /* most of its rate in use at any time; 1 at most */
};

/* A task that ran. */
struct hdt_sim_span {
    int rank;
    enum hdt_sim_kind kind;
    int peer;
    int step;
    struct hdt_op op;
    double start_s, end_s;           /* waiting is not part of it */
    double sent_s, left_s, arrive_s; /* SEND: of its frame. RECV: of the frame that it took */
    int64_t cause; /* span that it waited for last: the rank's one before, or another rank's;
                      -1: none, it is the first */
    int64_t prev;  /* the rank's one before; -1: none */
    int64_t mem_begin, mem_end; /* the rank's memory once it has begun, and ended */
};

struct hdt_sim_result {
    double makespan_s;
    double step_s;      /* mean of the steps from first_step on, by the last rank's ends */
    double *step_end_s; /* [step * n_ranks + rank] */
    struct hdt_sim_rank_result *ranks;
    struct hdt_sim_link_result *links;
    size_t n_ranks, n_links, n_events;
    int64_t n_tasks;
    struct hdt_sim_span *spans; /* in the order in which they begin; NULL unless recorded */
    size_t n_spans;
};

/* Run to the end. HDT_EINVAL: the setup is wrong, or tasks wait for each other or for a link that
 * stays down (which rank, task and flow). *result is to be released on HDT_OK only. */
enum hdt_status hdt_sim_run(const struct hdt_sim_setup *setup, struct hdt_sim_result *result,
                            struct hdt_error *err);

void hdt_sim_result_release(struct hdt_sim_result *result);

/* Lists that exist, each repeated n_steps times: ctx of hdt_sim_list_task. */
struct hdt_sim_list {
    struct hdt_sim_task *tasks;
    size_t n_tasks, cap;
};
struct hdt_sim_lists {
    struct hdt_sim_list *ranks; /* the last task of each is made to end the step */
    int n_steps;
};
bool hdt_sim_list_task(void *lists, int rank, int64_t idx, struct hdt_sim_task *task);
/* Room for so many more at once. */
void hdt_sim_list_reserve(struct hdt_sim_list *list, size_t n);
/* Append; the list grows. */
void hdt_sim_list_push(struct hdt_sim_list *list, const struct hdt_sim_task *task);

#ifdef __cplusplus
}
#endif
#endif /* HDT_SIM_SIM_H */
