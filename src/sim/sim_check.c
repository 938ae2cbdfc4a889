/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* Setups that cannot be run, and lists that do not come to their end. */
#include "src/sim/sim_impl.h"

#include <float.h>
#include <math.h>

static bool index_ok(int idx, size_t n)
{
    return idx >= 0 && (size_t)idx < n;
}

static bool seconds_ok(double s)
{
    return s >= 0 && s <= DBL_MAX; /* false for what is no number */
}

static enum hdt_status bad(struct hdt_error *err, const char *what, size_t i, const char *why)
{
    return hdt_error_set(err, HDT_EINVAL, "cannot simulate: %s %zu %s", what, i, why);
}

static enum hdt_status flow_check(const struct hdt_sim_setup *setup, size_t i,
                                  struct hdt_error *err)
{
    const struct hdt_sim_flow *f = &setup->flows[i];

    if (!(f->src == -1 && f->dst == -1) &&
        (!index_ok(f->src, setup->n_ranks) || !index_ok(f->dst, setup->n_ranks))) {
        return bad(err, "flow", i, "has an end at no rank");
    }
    if (f->queue < -1 || f->queue >= (int)setup->n_queues) {
        return bad(err, "flow", i, "stands in no queue");
    }
    if (f->depth > SIM_CREDIT_MAX) {
        return bad(err, "flow", i, "has more than 65536 frames in flight");
    }
    if (!seconds_ok(f->latency_s) || !isfinite(f->extra_s) || !seconds_ok(f->pace_s) ||
        !seconds_ok(f->src_cpu_s) || !seconds_ok(f->dst_cpu_s)) {
        return bad(err, "flow", i, "has a time that is no number of seconds");
    }
    if (!isfinite(f->weight) || f->weight < 0) {
        return bad(err, "flow", i, "has a weight that is no number from 0 on");
    }
    if (f->src_host >= (int)setup->n_hosts || f->dst_host >= (int)setup->n_hosts) {
        return bad(err, "flow", i, "has a host that is none");
    }
    for (size_t k = 0; k < f->n_route; k++) {
        int link = setup->routes[f->route + k];

        if (!index_ok(link, setup->n_links)) {
            return bad(err, "flow", i, "crosses a link that is none");
        }
        for (size_t m = 0; m < k; m++) {
            if (setup->routes[f->route + m] == link) {
                return bad(err, "flow", i, "crosses a link twice");
            }
        }
    }
    return HDT_OK;
}

static bool same_members(const struct hdt_sim_setup *setup, const struct hdt_sim_group *a,
                         const struct hdt_sim_group *b)
{
    bool same = a->n == b->n;

    for (size_t i = 0; same && i < a->n; i++) {
        same = setup->members[a->first + i] == setup->members[b->first + i];
    }
    return same;
}

static enum hdt_status group_check(const struct hdt_sim_setup *setup, size_t i,
                                   struct hdt_error *err)
{
    const struct hdt_sim_group *g = &setup->groups[i];

    if (g->n == 0 || !seconds_ok(g->dur_s) || !seconds_ok(g->bytes)) {
        return bad(err, "group", i, "has no members, or a time or size that is none");
    }
    if (g->flow >= 0 && (!index_ok(g->flow, setup->n_flows) || setup->flows[g->flow].src >= 0)) {
        return bad(err, "group", i, "has a flow that is not a group's");
    }
    for (size_t k = g->first; k < g->first + g->n; k++) {
        if (!index_ok(setup->members[k], setup->n_ranks) ||
            (k > g->first && setup->members[k] <= setup->members[k - 1])) {
            return bad(err, "group", i, "has members that are no ascending ranks");
        }
    }
    if (g->chained && (i == 0 || !same_members(setup, &setup->groups[i - 1], g))) {
        return bad(err, "group", i, "is chained to one with other members");
    }
    return HDT_OK;
}

static enum hdt_status slow_check(const struct hdt_sim_slow *slow, size_t n, size_t n_idx,
                                  const char *what, struct hdt_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const struct hdt_sim_slow *s = &slow[i];

        if (!index_ok(s->idx, n_idx) || !seconds_ok(s->from_s) || !(s->to_s > s->from_s)) {
            return bad(err, what, i, "is of nothing, or ends before it begins");
        }
        if (!(s->speed >= 0) || s->speed > 1e6) {
            return bad(err, what, i, "has a speed that is none");
        }
    }
    return HDT_OK;
}

static enum hdt_status tables_check(const struct hdt_sim_setup *setup, struct hdt_error *err)
{
    for (size_t i = 0; i < setup->n_links; i++) {
        if (!(setup->links[i].rate_bytes_per_s > 0) ||
            !seconds_ok(setup->links[i].rate_bytes_per_s)) {
            return bad(err, "link", i, "has no rate");
        }
    }
    for (size_t i = 0; i < setup->n_flows; i++) {
        HDT_TRY(flow_check(setup, i, err));
    }
    for (size_t i = 0; i < setup->n_groups; i++) {
        HDT_TRY(group_check(setup, i, err));
    }
    return HDT_OK;
}

enum hdt_status hdt_sim_check(const struct hdt_sim_setup *setup, struct hdt_error *err)
{
    if (setup->n_ranks == 0 || setup->n_steps < 1 || setup->first_step < 0 ||
        setup->first_step >= setup->n_steps) {
        return hdt_error_set(err, HDT_EINVAL,
                             "cannot simulate: no ranks, or steps %d to %d of %d are asked for",
                             setup->first_step, setup->n_steps - 1, setup->n_steps);
    }
    HDT_TRY(tables_check(setup, err));
    HDT_TRY(slow_check(setup->slow_ranks, setup->n_slow_ranks, setup->n_ranks, "slow rank", err));
    for (size_t i = 0; i < setup->n_slow_ranks; i++) {
        if (setup->slow_ranks[i].speed == 0 && !(setup->slow_ranks[i].to_s < DBL_MAX)) {
            return bad(err, "slow rank", i, "never runs again");
        }
    }
    return slow_check(setup->slow_links, setup->n_slow_links, setup->n_links, "slow link", err);
}

/* ---- stuck ---- */

static const char *rank_waits_for(const struct sim_rank *r)
{
    switch (r->state) {
    case SIM_RANK_WAITS_FRAME:
        return "a frame of flow";
    case SIM_RANK_WAITS_CREDIT:
        return "credit of flow";
    case SIM_RANK_WAITS_LEFT:
        return "the last byte of flow";
    case SIM_RANK_WAITS_GROUP:
        return "the others of group";
    default:
        return "nothing of";
    }
}

/* A link without speed that has frames; -1: none. */
static int link_down(const struct sim *sim)
{
    for (size_t i = 0; i < sim->setup->n_links; i++) {
        if (sim->links[i].n > 0 && sim->links[i].rate <= 0) {
            return (int)i;
        }
    }
    return -1;
}

enum hdt_status hdt_sim_stuck(const struct sim *sim, struct hdt_error *err)
{
    int down = link_down(sim);

    for (size_t i = 0; i < sim->setup->n_ranks; i++) {
        const struct sim_rank *r = &sim->ranks[i];

        if (r->state == SIM_RANK_DONE) {
            continue;
        }
        hdt_error_set(err, HDT_EINVAL,
                      "the simulation cannot end: rank %zu waits in task %lld (%s, micro-batch "
                      "%lld) for %s %d",
                      i, (long long)r->next - 1, hdt_op_name(r->task.op.kind),
                      (long long)r->task.op.mb, rank_waits_for(r), r->task.peer);
        if (down >= 0) {
            hdt_error_hint(err, "link %d is down for good: give its outage an end", down);
        } else {
            hdt_error_hint(err, "the lists of the ranks wait for each other");
        }
        return HDT_EINVAL;
    }
    return HDT_OK;
}
