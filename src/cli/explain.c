/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/explain.h"
#include "src/base/buf.h"
#include "src/cli/human.h"
#include "src/plan/drift.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* Workers whose speeds differ by less get what they get for other reasons. */
#define SECOND_SHARE 0.01 /* of a step: less makes no difference */
#define SPEED_SHARE  0.05
/* Rates between which a codec's break-even is looked for. */
#define RATE_MIN     1e3
#define RATE_MAX     1e12
#define N_BISECT     60
#define MORE_BATCHES 4

static const struct hdt_plan *plan_of(const struct hdt_planned *p)
{
    return &p->result.plan;
}

static void say(json_t *lines, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(json_t *lines, const char *fmt, ...)
{
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    json_array_append_new(lines, json_string(text));
}

/* ---- ranks ---- */

struct terms {
    double fwd_s, bwd_s, frames_s, step_s, sync_s;
};

static struct terms rank_terms(const struct hdt_planned *p, int rank)
{
    const struct hdt_cost *cost = &p->result.cost;
    struct terms t = {0};

    for (size_t i = 0; i < cost->n_ops; i++) {
        const struct hdt_cost_op *op = &cost->ops[i];
        double busy_s = op->end_s - op->start_s;

        if (op->rank != rank) {
            continue;
        }
        switch (op->op.kind) {
        case HDT_OP_FORWARD:
            t.fwd_s += busy_s;
            break;
        case HDT_OP_BACKWARD:
        case HDT_OP_BACKWARD_INPUT:
        case HDT_OP_BACKWARD_WEIGHT:
            t.bwd_s += busy_s;
            break;
        case HDT_OP_STEP:
            t.step_s += busy_s;
            break;
        case HDT_OP_NORM_SYNC:
        case HDT_OP_TIED_SYNC:
            t.sync_s += busy_s;
            break;
        case HDT_OP_OUTER_SYNC: /* explain_outer */
            break;
        default:
            t.frames_s += busy_s;
        }
    }
    return t;
}

static void explain_rank(const struct hdt_planned *p, int rank, json_t *lines)
{
    const struct hdt_plan_rank *r = &plan_of(p)->ranks[rank];
    const struct hdt_cost *cost = &p->result.cost;
    const struct hdt_cluster_worker *w = hdt_cost_find_worker(&p->cluster, r->site, r->worker);
    struct terms t = rank_terms(p, rank);
    double busy_s = cost->rank_busy_s[rank], held_s = cost->rank_held_s[rank];

    say(lines,
        "%s/%s is busy for %.1f of %.1f ms a step: forward %.1f, backward %.1f, frames in and out "
        "%.1f, optimizer %.1f, sums %.1f ms%s; it waits for %.1f ms",
        r->site, r->worker, 1e3 * busy_s, 1e3 * cost->step_s, 1e3 * t.fwd_s, 1e3 * t.bwd_s,
        1e3 * t.frames_s, 1e3 * t.step_s, 1e3 * t.sync_s,
        held_s > 0 ? " (its gateway's work on the same processors among them)" : "",
        1e3 * fmax(0, cost->step_s - busy_s));
    if (w && fabs(hdt_profile_run_factor(&w->profile) - 1) >= 0.005) {
        say(lines,
            "in jobs %s/%s takes %.2f times as long as when its device is measured alone: the plan "
            "counts with that",
            r->site, r->worker, hdt_profile_run_factor(&w->profile));
    }
    if (held_s > 0) {
        say(lines,
            "the gateway of %s computes on the processors of %s/%s: it holds it up for %.1f ms "
            "a step",
            r->site, r->site, r->worker, 1e3 * held_s);
    }
}

/* ---- why a worker has what it has ---- */

static double block_s(const struct hdt_cluster_worker *w)
{
    return w->profile.block_fwd_s + w->profile.block_bwd_s;
}

static int64_t blocks_of(const struct hdt_planned *p, const struct hdt_cluster_worker *w)
{
    const struct hdt_plan *plan = plan_of(p);
    int64_t n = 0;

    for (size_t i = 0; i < plan->n_stages; i++) {
        const struct hdt_plan_stage *s = &plan->stages[i];
        const struct hdt_plan_rank *r = &plan->ranks[s->rank];

        if (strcmp(r->site, w->site) == 0 && strcmp(r->worker, w->name) == 0) {
            n += s->unit_end - s->unit_begin;
            n -= s->unit_begin == 0;
            n -= s->unit_end == hdt_model_n_units(&p->model);
        }
    }
    return n;
}

static const struct hdt_cluster_worker *worker_fastest(const struct hdt_planned *p)
{
    const struct hdt_cluster_worker *best = NULL;

    for (size_t i = 0; i < p->cluster.n_workers; i++) {
        const struct hdt_cluster_worker *w = &p->cluster.workers[i];

        if (w->profile.valid && !w->busy && (!best || block_s(w) < block_s(best))) {
            best = w;
        }
    }
    return best;
}

static void explain_worker(const struct hdt_planned *p, const struct hdt_cluster_worker *w,
                           const struct hdt_cluster_worker *fastest, json_t *lines)
{
    double ratio = block_s(w) / block_s(fastest);
    const bool is_less = blocks_of(p, w) < blocks_of(p, fastest);
    const char *so = p->job.plan.cut.n > 0 ? "plan.cut gives it"
                     : is_less             ? "so it gets"
                                           : "and has";

    if (!hdt_plan_has_worker(plan_of(p), w->site, w->name)) {
        say(lines, "%s/%s is left out: %s (%.2f ms a block, the fastest has %.2f)", w->site,
            w->name,
            w->busy ? "it runs another job"
                    : "with it a step would take longer, or plan.* forbids it",
            1e3 * block_s(w), 1e3 * block_s(fastest));
        return;
    }
    if (w == fastest || ratio < 1 + SPEED_SHARE) {
        say(lines, "%s/%s takes %.2f ms a block, forward and backward, and has %lld of %lld",
            w->site, w->name, 1e3 * block_s(w), (long long)blocks_of(p, w), (long long)p->model.L);
        return;
    }
    say(lines, "%s/%s is %.1fx slower a block than %s/%s (%.2f against %.2f ms), %s %lld of %lld",
        w->site, w->name, ratio, fastest->site, fastest->name, 1e3 * block_s(w),
        1e3 * block_s(fastest), so, (long long)blocks_of(p, w), (long long)p->model.L);
}

static void explain_workers(const struct hdt_planned *p, json_t *lines)
{
    const struct hdt_cluster_worker *fastest = worker_fastest(p);

    for (size_t i = 0; fastest && i < p->cluster.n_workers; i++) {
        const struct hdt_cluster_worker *w = &p->cluster.workers[i];

        if (w->profile.valid || w->busy) {
            explain_worker(p, w, fastest, lines);
        }
    }
}

/* ---- edges ---- */

static bool transfer_of(const struct hdt_planned *p, const struct hdt_cluster *cluster,
                        const char *from, const char *to, const struct hdt_codec_spec *codec,
                        struct hdt_cost_transfer *t)
{
    struct hdt_cost_inputs in = {&p->job, &p->model, cluster};
    double n = (double)plan_of(p)->micro_batch * (double)plan_of(p)->seq_len * (double)p->model.C;

    return hdt_cost_transfer(&in, from, to, codec, n, t, NULL) == HDT_OK;
}

/* The rate at which two codecs take as long; 0: one is better at all of them. */
static double break_even(const struct hdt_planned *p, const char *from, const char *to,
                         const struct hdt_codec_spec *a, const struct hdt_codec_spec *b)
{
    struct hdt_cluster cluster = p->cluster; /* shares all but the links */
    double low = RATE_MIN, high = RATE_MAX, rate = 0;
    bool a_low = false, a_high = false, a_now;

    cluster.links = hdt_calloc(cluster.n_links, sizeof(*cluster.links));
    memcpy(cluster.links, p->cluster.links, cluster.n_links * sizeof(*cluster.links));
    for (int i = 0; i < N_BISECT + 2; i++) {
        struct hdt_cost_transfer x, y;

        rate = i == 0 ? low : i == 1 ? high : sqrt(low * high);
        for (size_t k = 0; k < cluster.n_links; k++) {
            cluster.links[k].rate_bytes_per_s = rate;
        }
        if (!transfer_of(p, &cluster, from, to, a, &x) ||
            !transfer_of(p, &cluster, from, to, b, &y)) {
            break;
        }
        a_now = x.service_s < y.service_s;
        if (i < 2) {
            *(i == 0 ? &a_low : &a_high) = a_now;
        } else if (a_now == a_low) {
            low = rate;
        } else {
            high = rate;
        }
    }
    free(cluster.links);
    return a_low != a_high ? rate : 0;
}

/* The same worker codec with the gateway's, or without: what the lossless stage is compared with.
 */
static struct hdt_codec_spec codec_other(const struct hdt_codec_spec *codec)
{
    struct hdt_codec_spec other = *codec;

    other.gateway = codec->gateway == HDT_CODEC_NONE ? HDT_CODEC_LOSSLESS : HDT_CODEC_NONE;
    return other;
}

static void explain_codec(const struct hdt_planned *p, const struct hdt_plan_flow *f,
                          const char *from, const char *to, json_t *lines)
{
    const struct hdt_cluster_link *link = hdt_cluster_find_link(&p->cluster, from, to);
    struct hdt_codec_spec named, other = codec_other(&f->codec);
    bool is_named = hdt_job_codec(&p->job, f->kind == HDT_FLOW_ACTIVATION_GRAD, &named);
    double even = break_even(p, from, to, &f->codec, &other);
    char rate[HDT_HUMAN_CAP], at[HDT_HUMAN_CAP], edge[64] = "at no rate";
    char own_text[HDT_CODEC_SPEC_TEXT], other_text[HDT_CODEC_SPEC_TEXT];
    struct hdt_cost_transfer t, o;

    if (!link || !transfer_of(p, &p->cluster, from, to, &f->codec, &t) ||
        !transfer_of(p, &p->cluster, from, to, &other, &o)) {
        return;
    }
    if (even > 0) {
        snprintf(edge, sizeof(edge), "break-even at %s", hdt_human_rate(even, at));
    }
    say(lines, "link %s -> %s carries %s: %s (%.2fx of fp32) takes %.2f ms a frame, %s %.2f; %s%s",
        from, to, hdt_human_rate(link->rate_bytes_per_s, rate),
        hdt_codec_spec_format(&f->codec, own_text),
        t.wire_bytes > 0 ? o.frame_bytes / t.wire_bytes * (t.frame_bytes / o.frame_bytes) : 0,
        1e3 * t.service_s, hdt_codec_spec_format(&other, other_text), 1e3 * o.service_s, edge,
        is_named                    ? "; the job names it"
        : t.service_s > o.service_s ? "; the step is faster for the processor time that it saves"
                                    : "");
}

static void explain_edge(const struct hdt_planned *p, const struct hdt_plan_flow *f, json_t *lines)
{
    const struct hdt_plan *plan = plan_of(p);
    const char *from = plan->ranks[f->src_rank].site, *to = plan->ranks[f->dst_rank].site;
    char frame[HDT_HUMAN_CAP], wire[HDT_HUMAN_CAP];
    struct hdt_cost_transfer t;
    int64_t n;

    if ((f->kind != HDT_FLOW_ACTIVATION && f->kind != HDT_FLOW_ACTIVATION_GRAD) ||
        strcmp(from, to) == 0 || !transfer_of(p, &p->cluster, from, to, &f->codec, &t)) {
        return;
    }
    n = plan->stages[f->src_stage].n_micro_batches;
    say(lines,
        "%s of stage %d to %d: %s a frame, %s on the wire: %.2f ms of the link, %.2f ms with its "
        "codecs, %.1f ms under way; %lld frames take %.0f %% of the link",
        f->kind == HDT_FLOW_ACTIVATION ? "activations" : "gradients", f->src_stage, f->dst_stage,
        hdt_human_bytes(t.frame_bytes, frame), hdt_human_bytes(t.wire_bytes, wire), 1e3 * t.busy_s,
        1e3 * t.service_s, 1e3 * t.latency_s, (long long)n,
        100 * t.busy_s * (double)n / plan->step_s);
    explain_codec(p, f, from, to, lines);
}

/* ---- the runner-up ---- */

static double busy_in(const struct hdt_plan *plan, const struct hdt_cost *cost,
                      const struct hdt_plan_rank *r)
{
    for (size_t i = 0; i < plan->n_ranks; i++) {
        if (strcmp(plan->ranks[i].site, r->site) == 0 &&
            strcmp(plan->ranks[i].worker, r->worker) == 0) {
            return cost->rank_busy_s[i];
        }
    }
    return 0;
}

/* What the runner-up does worse: the rank that it keeps busy longest beyond the plan's busiest, or
 * else waiting. */
static void explain_second(const struct hdt_planned *p, json_t *lines)
{
    const struct hdt_search_result *r = &p->result;
    const struct hdt_plan_rank *worst = NULL;
    double most_s = 0, slower_s = r->second_cost.step_s - r->cost.step_s;
    char moves[200];

    if (r->second_plan.n_stages == 0) {
        say(lines, p->job.plan.cut.n > 0 ? "plan.cut leaves nothing to choose"
                                         : "no other plan is possible");
        return;
    }
    for (size_t i = 0; i < r->second_plan.n_ranks; i++) {
        const struct hdt_plan_rank *rank = &r->second_plan.ranks[i];
        double more_s = r->second_cost.rank_busy_s[i] - busy_in(&r->plan, &r->cost, rank);

        if (more_s > most_s) {
            most_s = more_s;
            worst = rank;
        }
    }
    hdt_drift_moves(&r->plan, &r->second_plan, moves, sizeof(moves));
    if (slower_s < SECOND_SHARE * r->cost.step_s) {
        say(lines, "the runner-up is as fast: %s", moves);
    } else if (worst && most_s > slower_s / 4) {
        say(lines,
            "the runner-up takes %.1f ms more: %s; %s/%s would be busy for %.1f ms, not %.1f",
            1e3 * slower_s, moves, worst->site, worst->worker,
            1e3 * (busy_in(&r->plan, &r->cost, worst) + most_s),
            1e3 * busy_in(&r->plan, &r->cost, worst));
    } else {
        say(lines, "the runner-up takes %.1f ms more: %s; %s", 1e3 * slower_s, moves,
            r->second_plan.limit);
    }
}

static void explain_warmup(const struct hdt_planned *p, json_t *lines)
{
    const struct hdt_plan *plan = plan_of(p);

    for (size_t i = 0; i + 1 < plan->n_stages && plan->schedule == HDT_SCHEDULE_WAN; i++) {
        const struct hdt_plan_stage *s = &plan->stages[i];
        size_t begin, end, behind;

        hdt_plan_replica_stages(plan, s->replica, &begin, &end);
        behind = end - 1 - i;
        if (behind == 0) {
            continue; /* the last of a replica */
        }
        say(lines,
            "stage %zu runs %lld forwards ahead: %zu for the stage%s behind it, %lld for the time "
            "that frames are under way, and for the beginning of a step",
            i, (long long)s->warmup, behind, behind == 1 ? "" : "s",
            (long long)s->warmup - (long long)behind);
    }
    for (size_t i = 0; i < plan->n_stages && plan->schedule != HDT_SCHEDULE_WAN; i++) {
        const struct hdt_plan_stage *s = &plan->stages[i];

        say(lines,
            "under schedule %s stage %zu runs %lld forwards ahead and keeps the activations of %lld "
            "micro-batches",
            hdt_schedule_names[plan->schedule], i, (long long)s->warmup, (long long)s->in_flight);
    }
}

static uint64_t most_memory(const struct hdt_plan *plan)
{
    uint64_t most = 0;

    for (int rank = 0; rank < (int)plan->n_ranks; rank++) {
        uint64_t sum = 0;

        for (size_t i = 0; i < plan->n_stages; i++) {
            sum += plan->stages[i].rank == rank ? plan->stages[i].memory_bytes : 0;
        }
        most = sum > most ? sum : most;
    }
    return most;
}

/* What "auto" came to, by the step that 1f1b would take. */
static void explain_auto(const struct hdt_planned *p, double pairs_s, json_t *lines)
{
    if (plan_of(p)->schedule == HDT_SCHEDULE_1F1B) {
        say(lines, "plan.schedule auto is 1f1b: no other gains %.0f %%",
            100 * HDT_SEARCH_SCHEDULE_GAIN);
    } else {
        say(lines, "plan.schedule auto is %s, which gains %.1f %% over 1f1b",
            hdt_schedule_names[plan_of(p)->schedule], 100 * (1 - p->result.cost.step_s / pairs_s));
    }
}

/* The same job in each other order. One that no plan follows is left out. */
static void explain_schedules(const struct hdt_planned *p, json_t *lines)
{
    double pairs_s = 0;

    for (int kind = HDT_SCHEDULE_GPIPE; kind < HDT_SCHEDULE_KIND_COUNT; kind++) {
        struct hdt_job job = p->job; /* shares its texts */
        struct hdt_cost_inputs in = {&job, &p->model, &p->cluster};
        struct hdt_search_result other;
        char memory[HDT_HUMAN_CAP];

        job.plan.schedule = kind;
        if (plan_of(p)->n_stages < 2 || kind == (int)plan_of(p)->schedule ||
            (job.recompute && hdt_schedule_is_split((enum hdt_schedule_kind)kind)) ||
            hdt_search_plan(&in, &other, NULL) != HDT_OK) {
            continue;
        }
        say(lines, "schedule %s would take %.3f s a step, %+.1f %%, with %s at most on a worker",
            hdt_schedule_names[kind], other.cost.step_s,
            100 * (other.cost.step_s / p->result.cost.step_s - 1),
            hdt_human_memory((double)most_memory(&other.plan), memory));
        pairs_s = kind == HDT_SCHEDULE_1F1B ? other.cost.step_s : pairs_s;
        hdt_search_result_release(&other);
    }
    if (plan_of(p)->n_stages > 1 && p->job.plan.schedule == HDT_SCHEDULE_AUTO) {
        explain_auto(p, pairs_s, lines);
    }
}

/* Filling and draining costs the same, however many micro-batches there are: more of them are worth
 * saying where it is a tenth of the step. The batch is the job's, so that this is left to people.
 */
static void explain_batch(const struct hdt_planned *p, json_t *lines)
{
    struct hdt_job job = p->job; /* shares its texts */
    struct hdt_cost_inputs in = {&job, &p->model, &p->cluster};
    struct hdt_search_result more;
    double gain;

    job.batch.n_micro_batches *= MORE_BATCHES;
    job.plan.schedule = (int)plan_of(p)->schedule;
    if (plan_of(p)->n_stages < 2 || p->result.cost.bubble_share < 0.1 ||
        job.batch.n_micro_batches > 65536 || hdt_search_plan(&in, &more, NULL) != HDT_OK) {
        return;
    }
    gain = more.cost.tokens_per_s / p->result.cost.tokens_per_s - 1;
    if (gain >= 0.05) {
        say(lines,
            "with %lld micro-batches a step, not %lld, the pipeline is filled and drained as often "
            "for %dx as many tokens: %.0f %% more tokens/s (batch.n_micro_batches)",
            (long long)job.batch.n_micro_batches, (long long)p->job.batch.n_micro_batches,
            MORE_BATCHES, 100 * gain);
    }
    hdt_search_result_release(&more);
}

/* Replicas and what joins them. */
static void explain_outer(const struct hdt_planned *p, json_t *lines)
{
    struct hdt_cost_inputs in = {&p->job, &p->model, &p->cluster};
    const struct hdt_plan *plan = plan_of(p);
    struct hdt_cost_outer outer;
    double step_s = p->result.cost.step_s, share_s;
    int64_t first;

    if (plan->n_replicas < 2 || hdt_cost_outer(&in, plan, &outer, NULL) != HDT_OK) {
        return;
    }
    for (int k = 0; k < plan->n_replicas; k++) {
        const struct hdt_plan_rank *r = &plan->ranks[hdt_plan_replica_root(plan, k)];

        say(lines, "replica %d begins on %s/%s and has %lld of %lld micro-batches, %s", k + 1,
            r->site, r->worker, (long long)hdt_plan_replica_micro_batches(plan, k, &first),
            (long long)plan->n_micro_batches,
            p->job.outer.parts.n > 0 ? "as outer.parts says" : "as it is fast");
    }
    share_s = outer.step_s / (double)outer.steps;
    say(lines,
        "an outer step every %lld steps (op OUTER_SYNC) takes %.3f s: %.1f ms of each step, %.1f %%",
        (long long)outer.steps, outer.step_s, 1e3 * share_s, 100 * share_s / step_s);
    say(lines, "with outer.steps: %lld a step would take %.1f %% less",
        (long long)(2 * outer.steps), 50 * share_s / step_s);
    hdt_cost_outer_release(&outer);
}

json_t *hdt_explain(const struct hdt_planned *p)
{
    json_t *lines = json_array();

    explain_workers(p, lines);
    for (int i = 0; i < (int)plan_of(p)->n_ranks; i++) {
        explain_rank(p, i, lines);
    }
    for (size_t i = 0; i < plan_of(p)->n_flows; i++) {
        explain_edge(p, &plan_of(p)->flows[i], lines);
    }
    explain_outer(p, lines);
    explain_warmup(p, lines);
    explain_batch(p, lines);
    explain_schedules(p, lines);
    explain_second(p, lines);
    return lines;
}
