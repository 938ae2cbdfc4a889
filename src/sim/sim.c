/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * The clock. Each flow, queue, group and rank is due at one time at most, so that the heap is as
 * large as the setup, not as the run; what they do is in their files.
 *
 * Refused: a calendar queue (its buckets want times of one scale; here microseconds of a NIC stand
 * beside minutes of an outage), and an event object for each frame.
 */
#include "src/base/buf.h"
#include "src/sim/sim_impl.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

/* ---- set-up ---- */

static void flows_init(struct sim *sim)
{
    const struct hdt_sim_setup *setup = sim->setup;

    sim->flows = hdt_calloc(setup->n_flows + 1, sizeof(sim->flows[0]));
    for (size_t i = 0; i < setup->n_flows; i++) {
        struct sim_flow *f = &sim->flows[i];

        f->is = &setup->flows[i];
        f->queue = f->is->queue >= 0 ? f->is->queue : (int)(setup->n_queues + i);
        f->group = -1;
        if (f->is->depth > 0) {
            f->credits = hdt_calloc(f->is->depth, sizeof(f->credits[0]));
        }
    }
    for (size_t i = 0; i < setup->n_groups; i++) {
        if (setup->groups[i].flow >= 0) {
            sim->flows[setup->groups[i].flow].group = (int)i;
        }
    }
}

static void net_init(struct sim *sim)
{
    const struct hdt_sim_setup *setup = sim->setup;

    sim->n_queues = setup->n_queues + setup->n_flows;
    sim->queues = hdt_calloc(sim->n_queues + 1, sizeof(sim->queues[0]));
    for (size_t i = 0; i < sim->n_queues; i++) {
        sim->queues[i].flow = -1;
    }
    sim->links = hdt_calloc(setup->n_links + 1, sizeof(sim->links[0]));
    for (size_t i = 0; i < setup->n_links; i++) {
        struct sim_link *l = &sim->links[i];

        l->rate = setup->links[i].rate_bytes_per_s;
        l->queues = l->few;
        l->cap = sizeof(l->few) / sizeof(l->few[0]);
    }
    sim->near_queues = hdt_calloc(sim->n_queues + 1, sizeof(int));
    sim->near_links = hdt_calloc(setup->n_links + 1, sizeof(int));
}

static void groups_init(struct sim *sim)
{
    const struct hdt_sim_setup *setup = sim->setup;
    size_t n_members = 0;

    sim->groups = hdt_calloc(setup->n_groups + 1, sizeof(sim->groups[0]));
    for (size_t i = 0; i < setup->n_groups; i++) {
        size_t end = setup->groups[i].first + setup->groups[i].n;

        sim->groups[i].is = &setup->groups[i];
        n_members = end > n_members ? end : n_members;
    }
    sim->member_came = hdt_calloc(n_members + 1, sizeof(int64_t));
}

static void sim_init(struct sim *sim)
{
    const struct hdt_sim_setup *setup = sim->setup;

    flows_init(sim);
    net_init(sim);
    groups_init(sim);
    hdt_sim_slow_init(sim);
    sim->ranks = hdt_calloc(setup->n_ranks, sizeof(sim->ranks[0]));
    for (size_t i = 0; i < setup->n_ranks; i++) {
        struct sim_rank *r = &sim->ranks[i];

        r->span = r->cause = -1;
        r->mem = r->result.mem_peak = setup->mem_base ? setup->mem_base[i] : 0;
    }
    sim->first_flow = 1;
    sim->first_queue = sim->first_flow + setup->n_flows;
    sim->first_group = sim->first_queue + sim->n_queues;
    sim->first_rank = sim->first_group + setup->n_groups;
    hdt_sim_heap_init(&sim->heap, sim->first_rank + setup->n_ranks);
    sim->result->n_ranks = setup->n_ranks;
    sim->result->n_links = setup->n_links;
    sim->result->step_end_s = hdt_calloc((size_t)setup->n_steps * setup->n_ranks, sizeof(double));
}

static void sim_release(struct sim *sim)
{
    for (size_t i = 0; i < sim->setup->n_flows; i++) {
        free(sim->flows[i].frames);
        free(sim->flows[i].credits);
    }
    for (size_t i = 0; i < sim->n_queues; i++) {
        free(sim->queues[i].waiting);
    }
    for (size_t i = 0; i < sim->setup->n_links; i++) {
        if (sim->links[i].queues != sim->links[i].few) {
            free(sim->links[i].queues);
        }
    }
    hdt_sim_slow_release(sim);
    hdt_sim_heap_release(&sim->heap);
    free(sim->ranks);
    free(sim->flows);
    free(sim->queues);
    free(sim->links);
    free(sim->groups);
    free(sim->member_came);
    free(sim->near_queues);
    free(sim->near_links);
}

/* ---- the clock ---- */

static void change_due(struct sim *sim)
{
    if (sim->next_change < sim->n_changes) {
        hdt_sim_heap_set(&sim->heap, 0, sim->changes_s[sim->next_change++]);
    }
}

static void event_play(struct sim *sim, size_t slot, double t)
{
    if (slot >= sim->first_rank) {
        hdt_sim_rank_event(sim, (int)(slot - sim->first_rank), t);
    } else if (slot >= sim->first_group) {
        hdt_sim_group_end(sim, (int)(slot - sim->first_group), t);
    } else if (slot >= sim->first_queue) {
        hdt_sim_queue_event(sim, (int)(slot - sim->first_queue), t);
    } else if (slot >= sim->first_flow) {
        hdt_sim_flow_event(sim, (int)(slot - sim->first_flow), t);
    } else {
        hdt_sim_net_change(sim, t);
        change_due(sim);
    }
}

static void fetch(const void *at, size_t n)
{
    for (size_t i = 0; i < n; i += 64) {
        __builtin_prefetch((const char *)at + i);
    }
}

/* What will be needed when the slot is due: mostly it is not in the cache any more. */
static void slot_fetch(const struct sim *sim, size_t slot)
{
    if (slot >= sim->first_rank) {
        fetch(&sim->ranks[slot - sim->first_rank], sizeof(sim->ranks[0]));
    } else if (slot >= sim->first_queue && slot < sim->first_group) {
        fetch(&sim->queues[slot - sim->first_queue], sizeof(sim->queues[0]));
    } else if (slot >= sim->first_flow && slot < sim->first_queue) {
        fetch(&sim->flows[slot - sim->first_flow], sizeof(sim->flows[0]));
    }
}

static void sim_play(struct sim *sim)
{
    size_t slot;
    double t, before_s = 0;

    change_due(sim);
    for (size_t i = 0; i < sim->setup->n_ranks; i++) {
        hdt_sim_heap_set(&sim->heap, sim->first_rank + i, 0);
    }
    while (hdt_sim_heap_pop(&sim->heap, &slot, &t)) {
        HDT_ASSERT(t >= before_s);
        before_s = t;
        sim->result->n_events++;
        for (size_t i = 1; i < 5 && i < sim->heap.n; i++) { /* one of these is next */
            slot_fetch(sim, sim->heap.entries[i].slot);
        }
        event_play(sim, slot, t);
    }
}

/* ---- results ---- */

static double step_last_end(const struct hdt_sim_result *result, int step)
{
    double last_s = 0;

    for (size_t i = 0; step >= 0 && i < result->n_ranks; i++) {
        double s = result->step_end_s[(size_t)step * result->n_ranks + i];

        last_s = s > last_s ? s : last_s;
    }
    return last_s;
}

static void ranks_fill(struct sim *sim)
{
    const struct hdt_sim_setup *setup = sim->setup;
    struct hdt_sim_result *result = sim->result;

    result->ranks = hdt_calloc(setup->n_ranks, sizeof(result->ranks[0]));
    for (size_t i = 0; i < setup->n_ranks; i++) {
        struct sim_rank *r = &sim->ranks[i];
        double last_s = result->step_end_s[(size_t)(setup->n_steps - 1) * setup->n_ranks + i];

        if (setup->first_step == 0) {
            r->step = setup->n_steps - 1; /* the rest of the time is a part of it */
            hdt_sim_rank_account(sim, (int)i, HDT_SIM_BUBBLE, result->makespan_s);
            last_s = result->makespan_s;
        }
        result->ranks[i] = r->result;
        result->ranks[i].window_s = last_s - r->begin_s;
        result->ranks[i].mem_last = r->mem;
    }
}

static void results_fill(struct sim *sim)
{
    const struct hdt_sim_setup *setup = sim->setup;
    struct hdt_sim_result *result = sim->result;

    for (size_t i = 0; i < setup->n_ranks; i++) {
        double end_s = sim->ranks[i].result.end_s;

        result->makespan_s = end_s > result->makespan_s ? end_s : result->makespan_s;
    }
    result->step_s =
        (step_last_end(result, setup->n_steps - 1) - step_last_end(result, setup->first_step - 1)) /
        (double)(setup->n_steps - setup->first_step);
    ranks_fill(sim);
    result->links = hdt_calloc(setup->n_links + 1, sizeof(result->links[0]));
    for (size_t i = 0; i < setup->n_links; i++) {
        double rate = setup->links[i].rate_bytes_per_s;

        result->links[i] = (struct hdt_sim_link_result){
            sim->links[i].bytes, sim->links[i].weight / rate, sim->links[i].peak / rate};
    }
}

enum hdt_status hdt_sim_run(const struct hdt_sim_setup *setup, struct hdt_sim_result *result,
                            struct hdt_error *err)
{
    struct sim sim = {.setup = setup, .result = result};
    enum hdt_status status;

    HDT_TRY(hdt_sim_check(setup, err));
    memset(result, 0, sizeof(*result));
    sim_init(&sim);
    sim_play(&sim);
    status = hdt_sim_stuck(&sim, err);
    if (status == HDT_OK) {
        results_fill(&sim);
    } else {
        hdt_sim_result_release(result);
    }
    sim_release(&sim);
    return status;
}

void hdt_sim_result_release(struct hdt_sim_result *result)
{
    free(result->step_end_s);
    free(result->ranks);
    free(result->links);
    free(result->spans);
    memset(result, 0, sizeof(*result));
}

/* ---- lists ---- */

void hdt_sim_list_reserve(struct hdt_sim_list *list, size_t n)
{
    if (list->n_tasks + n > list->cap) {
        list->cap = list->n_tasks + n;
        list->tasks = hdt_realloc(list->tasks, list->cap * sizeof(list->tasks[0]));
    }
}

void hdt_sim_list_push(struct hdt_sim_list *list, const struct hdt_sim_task *task)
{
    if (list->n_tasks == list->cap) {
        list->cap = list->cap ? 2 * list->cap : 64;
        list->tasks = hdt_realloc(list->tasks, list->cap * sizeof(list->tasks[0]));
    }
    list->tasks[list->n_tasks++] = *task;
}

bool hdt_sim_list_task(void *ctx, int rank, int64_t idx, struct hdt_sim_task *task)
{
    const struct hdt_sim_lists *lists = ctx;
    const struct hdt_sim_list *list = &lists->ranks[rank];
    int64_t n = (int64_t)list->n_tasks;

    if (n == 0 || idx >= n * lists->n_steps) {
        return false;
    }
    *task = list->tasks[idx % n];
    if (idx % n == n - 1) {
        task->flags |= HDT_SIM_STEP_END;
    }
    return true;
}
