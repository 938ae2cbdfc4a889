/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* Collectives. Those of one group run one after another, as a communicator runs them; a member may
 * come to the next one before the others have. */
#include "src/sim/sim_impl.h"

/* The rank's place among the members; it is one. */
static size_t member_find(const struct sim *sim, const struct sim_group *g, int rank)
{
    size_t low = g->is->first, high = g->is->first + g->is->n;

    while (low + 1 < high) {
        size_t mid = (low + high) / 2;

        if (sim->setup->members[mid] <= rank) {
            low = mid;
        } else {
            high = mid;
        }
    }
    HDT_ASSERT(sim->setup->members[low] == rank);
    return low;
}

static void group_begin(struct sim *sim, int group, int rank, double t)
{
    struct sim_group *g = &sim->groups[group];

    g->runs = true;
    g->begin_s = t;
    g->cause = -1;
    if (rank >= 0 && sim->ranks[rank].span >= 0) {
        g->cause = sim->result->spans[sim->ranks[rank].span].prev;
    }
    if (g->is->flow >= 0) {
        struct sim_frame frame = {.bytes = g->is->bytes,
                                  .arrive_s = g->is->dur_s,
                                  .sent_s = t,
                                  .span = -1,
                                  .counts = true};

        for (size_t i = g->is->first; i < g->is->first + g->is->n; i++) {
            frame.counts =
                frame.counts && sim->ranks[sim->setup->members[i]].step >= sim->setup->first_step;
        }
        hdt_sim_frame_send(sim, g->is->flow, &frame);
    } else {
        hdt_sim_heap_set(&sim->heap, sim->first_group + (size_t)group, t + g->is->dur_s);
    }
}

/* `rank`: -1 when nobody's task brought the member here. */
static void member_come(struct sim *sim, int group, size_t member, int rank, double t)
{
    struct sim_group *g = &sim->groups[group];

    if (++sim->member_came[member] == g->n_done + 1 && ++g->n_there == g->is->n) {
        group_begin(sim, group, rank, t);
    }
}

bool hdt_sim_group_come(struct sim *sim, int rank, double t)
{
    const struct sim_rank *r = &sim->ranks[rank];

    member_come(sim, r->task.peer, member_find(sim, &sim->groups[r->task.peer], rank), rank, t);
    return r->task.flags & HDT_SIM_ASYNC;
}

bool hdt_sim_group_join(struct sim *sim, int rank)
{
    const struct sim_group *g = &sim->groups[sim->ranks[rank].task.peer];

    return sim->member_came[member_find(sim, g, rank)] <= g->n_done;
}

/* A collective of a group has ended: the next link of the chain may begin. */
static void chain_go_on(struct sim *sim, int group, double t)
{
    size_t next = (size_t)group + 1;
    const struct hdt_sim_group *is;

    if (next == sim->setup->n_groups || !sim->setup->groups[next].chained) {
        return;
    }
    is = &sim->setup->groups[next];
    for (size_t i = is->first; i < is->first + is->n; i++) {
        member_come(sim, (int)next, i, -1, t);
    }
}

void hdt_sim_group_end(struct sim *sim, int group, double t)
{
    struct sim_group *g = &sim->groups[group];
    double begin_s = g->begin_s;
    int64_t cause = g->cause;

    g->runs = false;
    g->n_done++;
    g->n_there = 0;
    for (size_t i = g->is->first; i < g->is->first + g->is->n; i++) {
        g->n_there += sim->member_came[i] > g->n_done;
    }
    /* Who goes on now may come to the next one; none of these has waited for that yet. */
    if (g->n_there == g->is->n) {
        group_begin(sim, group, -1, t);
    }
    chain_go_on(sim, group, t);
    for (size_t i = g->is->first; i < g->is->first + g->is->n; i++) {
        int rank = sim->setup->members[i];
        const struct sim_rank *r = &sim->ranks[rank];

        if (r->state == SIM_RANK_WAITS_GROUP && r->task.peer == group &&
            sim->member_came[i] <= g->n_done) {
            hdt_sim_rank_release(sim, rank, begin_s, t, cause);
        }
    }
}
