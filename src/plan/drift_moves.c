/* SPDX-License-Identifier: Apache-2.0 */
/* What differs between two plans of one job, in words. */
#include "config.h"

#include "src/plan/drift.h"

#include <stdio.h>
#include <string.h>

static int64_t units_on(const struct hdt_plan *plan, const struct hdt_plan_rank *rank)
{
    int64_t n = 0;

    for (size_t i = 0; i < plan->n_stages; i++) {
        const struct hdt_plan_stage *s = &plan->stages[i];
        const struct hdt_plan_rank *r = &plan->ranks[s->rank];

        if (strcmp(r->site, rank->site) == 0 && strcmp(r->worker, rank->worker) == 0) {
            n += s->unit_end - s->unit_begin;
        }
    }
    return n;
}

/* Ranks of both plans without repeating one: index i counts through `from`, then through `to`. */
static const struct hdt_plan_rank *rank_at(const struct hdt_plan *from, const struct hdt_plan *to,
                                           size_t i)
{
    const struct hdt_plan_rank *r;

    if (i < from->n_ranks) {
        return &from->ranks[i];
    }
    r = &to->ranks[i - from->n_ranks];
    return hdt_plan_has_worker(from, r->site, r->worker) ? NULL : r;
}

struct counts {
    const struct hdt_plan_rank *giver, *taker;
    int n;
};

static struct counts counts_of(const struct hdt_plan *from, const struct hdt_plan *to)
{
    struct counts c = {0};

    for (size_t i = 0; i < from->n_ranks + to->n_ranks; i++) {
        const struct hdt_plan_rank *r = rank_at(from, to, i);
        int64_t delta = r ? units_on(to, r) - units_on(from, r) : 0;

        c.n += delta != 0;
        c.giver = delta < 0 ? r : c.giver;
        c.taker = delta > 0 ? r : c.taker;
    }
    return c;
}

static void counts_list(const struct hdt_plan *from, const struct hdt_plan *to, char *out,
                        size_t cap)
{
    size_t used = 0;

    for (size_t i = 0; i < from->n_ranks + to->n_ranks && used < cap; i++) {
        const struct hdt_plan_rank *r = rank_at(from, to, i);

        if (r && units_on(to, r) != units_on(from, r)) {
            used += (size_t)snprintf(out + used, cap - used, "%s%s/%s %lld -> %lld units",
                                     used ? ", " : "", r->site, r->worker,
                                     (long long)units_on(from, r), (long long)units_on(to, r));
        }
    }
}

static bool stage_same_place(const struct hdt_plan *a, const struct hdt_plan *b, size_t i)
{
    const struct hdt_plan_rank *x = &a->ranks[a->stages[i].rank], *y = &b->ranks[b->stages[i].rank];

    return strcmp(x->site, y->site) == 0 && strcmp(x->worker, y->worker) == 0 &&
           a->stages[i].unit_begin == b->stages[i].unit_begin;
}

bool hdt_plan_same_stages(const struct hdt_plan *a, const struct hdt_plan *b)
{
    bool same = a->n_stages == b->n_stages;

    for (size_t i = 0; same && i < a->n_stages; i++) {
        same = stage_same_place(a, b, i);
    }
    return same;
}

static void order_list(const struct hdt_plan *to, char *out, size_t cap)
{
    size_t used = (size_t)snprintf(out, cap, "stages in another order:");

    for (size_t i = 0; i < to->n_stages && used < cap; i++) {
        const struct hdt_plan_rank *r = &to->ranks[to->stages[i].rank];

        used +=
            (size_t)snprintf(out + used, cap - used, "%s %s/%s", i ? "," : "", r->site, r->worker);
    }
}

/* The stages are the same: schedule, codecs of edges, then warm-ups. */
static void edges_list(const struct hdt_plan *from, const struct hdt_plan *to, char *out,
                       size_t cap)
{
    size_t used = 0;

    if (from->schedule != to->schedule) {
        used = (size_t)snprintf(out, cap, "schedule %s, was %s", hdt_schedule_names[to->schedule],
                                hdt_schedule_names[from->schedule]);
    }
    for (size_t i = 0; i < from->n_flows && used < cap; i++) {
        const struct hdt_plan_flow *f = &from->flows[i];
        int other =
            hdt_plan_find_flow(to, f->kind, f->src_rank, f->dst_rank, f->src_stage, f->dst_stage);

        if (other >= 0 && !hdt_codec_spec_equal(&to->flows[other].codec, &f->codec)) {
            char now[HDT_CODEC_SPEC_TEXT], was[HDT_CODEC_SPEC_TEXT];

            used += (size_t)snprintf(
                out + used, cap - used, "%s%s %d -> %d: %s, was %s", used ? ", " : "",
                f->kind == HDT_FLOW_ACTIVATION ? "activations" : "gradients", f->src_stage,
                f->dst_stage, hdt_codec_spec_format(&to->flows[other].codec, now),
                hdt_codec_spec_format(&f->codec, was));
        }
    }
    for (size_t i = 0; i < from->n_stages && used < cap; i++) {
        long long a = (long long)from->stages[i].warmup, b = (long long)to->stages[i].warmup;

        if (a != b) {
            used += (size_t)snprintf(out + used, cap - used, "%swarm-up of stage %zu %lld -> %lld",
                                     used ? ", " : "", i, a, b);
        }
    }
}

const char *hdt_drift_moves(const struct hdt_plan *from, const struct hdt_plan *to, char *out,
                            size_t cap)
{
    struct counts c = counts_of(from, to);

    out[0] = '\0';
    if (c.n == 2 && c.giver && c.taker) {
        long long n = (long long)(units_on(from, c.giver) - units_on(to, c.giver));

        snprintf(out, cap, "%lld unit%s from %s/%s to %s/%s", n, n == 1 ? " moves" : "s move",
                 c.giver->site, c.giver->worker, c.taker->site, c.taker->worker);
    } else if (c.n > 0) {
        counts_list(from, to, out, cap);
    } else if (!hdt_plan_same_stages(from, to)) {
        order_list(to, out, cap);
    } else {
        edges_list(from, to, out, cap);
    }
    return out;
}
