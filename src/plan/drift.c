/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/*
 * A factor a rank, from its busy time, and a factor for the links that nobody measured, from what
 * is then still missing in the step's time. Refused: fitting every op of a trace; the coordinator
 * has means a step, and they are what a plan is judged by.
 */
#include "src/base/buf.h"
#include "src/plan/drift.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A rank that is busy for less of a step measures its fixed costs, not its device. */
#define LEAST_SHARE 0.02
/* What is left of the step's time below this is the model's own error and the timers'. */
#define RESIDUAL 0.02
/* A link is at most so much faster or slower than it was measured. */
#define RATE_SCALE_MAX 1024.0
#define N_BISECT       24

/* ---- the corrected cluster ---- */

static bool plan_has(const struct hdt_plan *plan, const struct hdt_cluster_worker *w)
{
    return hdt_plan_has_worker(plan, w->site, w->name);
}

static void cluster_copy(const struct hdt_cost_inputs *in, const struct hdt_plan *plan,
                         struct hdt_cluster *out)
{
    const struct hdt_cluster *cluster = in->cluster;

    memset(out, 0, sizeof(*out));
    for (size_t i = 0; i < cluster->n_sites; i++) {
        hdt_cluster_add_site(out, cluster->sites[i].name);
        hdt_cluster_find_site(out, cluster->sites[i].name)->gateway = cluster->sites[i].gateway;
    }
    for (size_t i = 0; i < cluster->n_workers; i++) {
        struct hdt_cluster_worker w = cluster->workers[i];
        const struct hdt_profile *p = &w.profile;

        w.busy = w.busy && !plan_has(plan, &w);
        if (p->valid && p->micro_batch == in->job->batch.micro_batch &&
            p->seq_len == in->job->batch.seq_len) {
            hdt_cluster_add_worker(out, &w);
        }
    }
    for (size_t i = 0; i < cluster->n_links; i++) {
        hdt_cluster_add_link(out, &cluster->links[i]);
    }
}

static struct hdt_cluster_worker *worker_of(struct hdt_cluster *cluster, const char *site,
                                            const char *name)
{
    for (size_t i = 0; i < cluster->n_workers; i++) {
        struct hdt_cluster_worker *w = &cluster->workers[i];

        if (strcmp(w->site, site) == 0 && strcmp(w->name, name) == 0) {
            return w;
        }
    }
    return NULL;
}

static struct hdt_cluster_link *link_of(struct hdt_cluster *cluster, const char *from,
                                        const char *to)
{
    for (size_t i = 0; i < cluster->n_links; i++) {
        struct hdt_cluster_link *link = &cluster->links[i];

        if (strcmp(link->from, from) == 0 && strcmp(link->to, to) == 0) {
            return link;
        }
    }
    return NULL;
}

/* What all measured ranks share, when there are two of them at least; else 1. */
static double factor_common(const double *factors, size_t n)
{
    double least = DBL_MAX, most = 0;
    int n_measured = 0;

    for (size_t i = 0; i < n; i++) {
        if (factors[i] > 0) {
            least = fmin(least, factors[i]);
            most = fmax(most, factors[i]);
            n_measured++;
        }
    }
    if (n_measured < 2) {
        return 1;
    }
    return least > 1 ? least : most < 1 ? most : 1;
}

double hdt_drift_factor(const struct hdt_profile *profile, double measured_busy_s, double busy_s,
                        double held_s, double step_s)
{
    const double own_s = busy_s - held_s;
    double factor;

    if (!(measured_busy_s > held_s && own_s > 0 && own_s >= LEAST_SHARE * step_s)) {
        return 0;
    }
    factor = (measured_busy_s - held_s) / own_s;
    return profile->quota_cpus > 0 ? fmax(factor, 1) : factor;
}

/* What all measured ones share is an error of profiles, which runs took out of theirs. It is no
 * correction by a run of this worker. */
static void worker_correct_unmeasured(struct hdt_cluster_worker *worker, double common)
{
    if (worker->profile.run_factor == 0) {
        hdt_profile_scale(&worker->profile, common);
        worker->profile.run_factor = 0;
    }
}

/* Busy times are linear in those of the profile: a rank scaled by f is busy f times as long. */
static void workers_correct(const struct hdt_plan *plan, const struct hdt_cost *cost,
                            const struct hdt_drift_measured *m, struct hdt_cluster *out)
{
    double *factors = hdt_calloc(plan->n_ranks, sizeof(double)), common;

    for (size_t i = 0; i < plan->n_ranks; i++) {
        if (m->ranks[i].n_steps > 0) {
            const struct hdt_plan_rank *r = &plan->ranks[i];

            factors[i] =
                hdt_drift_factor(&worker_of(out, r->site, r->worker)->profile, m->ranks[i].busy_s,
                                 cost->rank_busy_s[i], cost->rank_held_s[i], cost->step_s);
        }
    }
    common = factor_common(factors, plan->n_ranks);
    for (size_t i = 0; i < out->n_workers; i++) {
        if (!plan_has(plan, &out->workers[i])) {
            worker_correct_unmeasured(&out->workers[i], common);
        }
    }
    for (size_t i = 0; i < plan->n_ranks; i++) {
        struct hdt_cluster_worker *w = worker_of(out, plan->ranks[i].site, plan->ranks[i].worker);

        if (factors[i] > 0) {
            hdt_profile_scale(&w->profile, factors[i]);
        } else {
            worker_correct_unmeasured(w, common);
        }
    }
    free(factors);
}

static const struct hdt_drift_link *link_measured(const struct hdt_drift_measured *m,
                                                  const struct hdt_cluster_link *link)
{
    for (size_t i = 0; i < m->n_links; i++) {
        if (strcmp(m->links[i].from, link->from) == 0 && strcmp(m->links[i].to, link->to) == 0) {
            return &m->links[i];
        }
    }
    return NULL;
}

static void links_correct(const struct hdt_drift_measured *m, struct hdt_cluster *out)
{
    for (size_t i = 0; i < out->n_links; i++) {
        struct hdt_cluster_link *link = &out->links[i];
        const struct hdt_drift_link *seen = link_measured(m, link);

        if (seen && seen->rate_bytes_per_s > 0) {
            link->rate_bytes_per_s = seen->rate_bytes_per_s;
        }
        if (seen && seen->rtt_s > 0) {
            link->rtt_s = seen->rtt_s;
        }
    }
}

static enum hdt_status step_played(const struct hdt_cost_inputs *in,
                                   const struct hdt_cluster *cluster, const struct hdt_plan *plan,
                                   double *step_s, struct hdt_error *err)
{
    struct hdt_cost_inputs with = {in->job, in->model, cluster};
    struct hdt_cost cost;

    HDT_TRY(hdt_cost_play(&with, plan, false, &cost, err));
    *step_s = cost.step_s;
    hdt_cost_release(&cost);
    return HDT_OK;
}

/* Scale the links that the plan uses and that nobody measured; false: there are none. */
static bool links_scale(const struct hdt_cost *cost, const struct hdt_drift_measured *m,
                        struct hdt_cluster *out, double scale)
{
    bool any = false;

    for (size_t i = 0; i < cost->n_links; i++) {
        struct hdt_cluster_link *link = link_of(out, cost->links[i].from, cost->links[i].to);
        const struct hdt_drift_link *seen = link ? link_measured(m, link) : NULL;

        if (link && !(seen && seen->rate_bytes_per_s > 0)) {
            link->rate_bytes_per_s *= scale;
            any = true;
        }
    }
    return any;
}

/* The step's time falls as the rate rises: bisect for the rate that explains what is left. */
static enum hdt_status residual_correct(const struct hdt_cost_inputs *in,
                                        const struct hdt_plan *plan, const struct hdt_cost *cost,
                                        const struct hdt_drift_measured *m, struct hdt_cluster *out,
                                        struct hdt_error *err)
{
    double slow = 1, fast = 1, now = 1, step_s;

    HDT_TRY(step_played(in, out, plan, &step_s, err));
    if (fabs(m->step_s / step_s - 1) <= RESIDUAL || !links_scale(cost, m, out, 1)) {
        return HDT_OK;
    }
    if (m->step_s > step_s) {
        slow = 1 / RATE_SCALE_MAX;
    } else {
        fast = RATE_SCALE_MAX;
    }
    links_scale(cost, m, out, m->step_s > step_s ? slow : fast);
    now = m->step_s > step_s ? slow : fast;
    HDT_TRY(step_played(in, out, plan, &step_s, err));
    if (now == slow ? step_s < m->step_s : step_s > m->step_s) {
        links_scale(cost, m, out, 1 / now); /* no rate explains it */
        return HDT_OK;
    }
    for (int i = 0; i < N_BISECT; i++) {
        double next = sqrt(slow * fast);

        links_scale(cost, m, out, next / now);
        now = next;
        HDT_TRY(step_played(in, out, plan, &step_s, err));
        slow = step_s > m->step_s ? now : slow;
        fast = step_s > m->step_s ? fast : now;
    }
    return HDT_OK;
}

enum hdt_status hdt_drift_correct(const struct hdt_cost_inputs *in, const struct hdt_plan *plan,
                                  const struct hdt_drift_measured *m, struct hdt_cluster *corrected,
                                  struct hdt_error *err)
{
    struct hdt_cost_inputs with = {in->job, in->model, corrected};
    struct hdt_cost cost;
    enum hdt_status status;

    if (m->n_ranks != plan->n_ranks || m->step_s <= 0) {
        return hdt_error_set(err, HDT_EINVAL, "what was measured is of %zu ranks, the plan has %zu",
                             m->n_ranks, plan->n_ranks);
    }
    cluster_copy(in, plan, corrected);
    status = hdt_cost_play(&with, plan, false, &cost, err);
    if (status == HDT_OK) {
        workers_correct(plan, &cost, m, corrected);
        links_correct(m, corrected);
        status = residual_correct(in, plan, &cost, m, corrected, err);
        hdt_cost_release(&cost);
    }
    if (status != HDT_OK) {
        hdt_cluster_release(corrected);
    }
    return status;
}

/* ---- why ---- */

/* The step's time if one correction had not been made; how much it adds is its weight. */
struct cause {
    double weight_s;
    char text[160];
};

static void cause_offer(struct cause *best, double weight_s, const char *text)
{
    if (fabs(weight_s) > fabs(best->weight_s)) {
        best->weight_s = weight_s;
        snprintf(best->text, sizeof(best->text), "%s", text);
    }
}

static void worker_text(const struct hdt_cluster_worker *w, double factor, char *out, size_t cap)
{
    snprintf(out, cap, "%.50s/%.50s computes %.2fx %s than planned", w->site, w->name,
             factor > 1 ? factor : 1 / factor, factor > 1 ? "slower" : "faster");
}

/* "20 Mbit/s", "1.25 Gbit/s". */
static const char *rate_text(double bytes_per_s, char out[24])
{
    double mbit = 8e-6 * bytes_per_s;

    snprintf(out, 24, mbit < 1000 ? "%.3g Mbit/s" : "%.3g Gbit/s", mbit < 1000 ? mbit : mbit / 1e3);
    return out;
}

/* A rate that nobody measured is what would explain the step's time: said as such. */
static void link_text(const struct hdt_cluster_link *now, const struct hdt_cluster_link *then,
                      const struct hdt_drift_link *seen, char *out, size_t cap)
{
    char is[24], was[24];

    if (now->rate_bytes_per_s != then->rate_bytes_per_s) {
        snprintf(out, cap, "link %.36s -> %.36s %s %s, not %s", now->from, now->to,
                 seen && seen->rate_bytes_per_s > 0 ? "carries" : "behaves like one of",
                 rate_text(now->rate_bytes_per_s, is), rate_text(then->rate_bytes_per_s, was));
    } else {
        snprintf(out, cap, "link %.36s -> %.36s has a round trip of %.3g ms, not %.3g", now->from,
                 now->to, 1e3 * now->rtt_s, 1e3 * then->rtt_s);
    }
}

/* Take back one correction after the other, and see what the step's time becomes. */
static enum hdt_status cause_find(const struct hdt_cost_inputs *in, const struct hdt_plan *plan,
                                  const struct hdt_drift_measured *m, struct hdt_drift_verdict *v,
                                  struct hdt_error *err)
{
    struct cause best = {.text = "the run waits for something that the plan does not know"};
    struct hdt_cluster *now = &v->cluster;
    char text[160];
    double step_s;

    for (size_t i = 0; i < now->n_workers; i++) {
        struct hdt_cluster_worker w = now->workers[i];
        const struct hdt_cluster_worker *then = hdt_cost_find_worker(in->cluster, w.site, w.name);

        now->workers[i].profile = then->profile;
        HDT_TRY(step_played(in, now, plan, &step_s, err));
        now->workers[i] = w;
        worker_text(&w, w.profile.block_fwd_s / then->profile.block_fwd_s, text, sizeof(text));
        cause_offer(&best, v->present_step_s - step_s, text);
    }
    for (size_t i = 0; i < now->n_links; i++) {
        struct hdt_cluster_link link = now->links[i];
        const struct hdt_cluster_link *then =
            hdt_cluster_find_link(in->cluster, link.from, link.to);

        now->links[i] = *then;
        HDT_TRY(step_played(in, now, plan, &step_s, err));
        now->links[i] = link;
        link_text(&link, then, link_measured(m, &link), text, sizeof(text));
        cause_offer(&best, v->present_step_s - step_s, text);
    }
    snprintf(v->cause, sizeof(v->cause), "%s", best.text);
    return HDT_OK;
}

/* ---- the verdict ---- */

static void verdict_decide(struct hdt_drift_verdict *v, const struct hdt_drift_limits *limits)
{
    double best_s = v->best.plan.step_s;
    char tail[330];

    v->gain = best_s < v->present_step_s && v->moves[0] ? 1 - best_s / v->present_step_s : 0;
    v->saved_s = v->gain * v->present_step_s * (double)limits->steps_left;
    v->pays = v->gain > 0 && v->gain >= limits->gain && v->saved_s > limits->restart_s;
    if (v->gain <= 0) {
        snprintf(tail, sizeof(tail), "no other plan is faster");
    } else if (v->gain < limits->gain) {
        snprintf(tail, sizeof(tail), "the best other plan gains %.1f %%, less than %.1f %%",
                 100 * v->gain, 100 * limits->gain);
    } else {
        snprintf(tail, sizeof(tail),
                 "%s: %.3f -> %.3f s a step, %s %.0f s in %lld steps, a restart %.0f s", v->moves,
                 v->present_step_s, best_s, v->pays ? "saves" : "would save only", v->saved_s,
                 (long long)limits->steps_left, limits->restart_s);
    }
    snprintf(v->reason, sizeof(v->reason), "%s; %s", v->cause, tail);
}

static enum hdt_status verdict_fill(const struct hdt_cost_inputs *in, const struct hdt_plan *plan,
                                    const struct hdt_drift_measured *measured,
                                    struct hdt_drift_verdict *v, struct hdt_error *err)
{
    struct hdt_cost_inputs with = {in->job, in->model, &v->cluster};

    HDT_TRY(hdt_drift_correct(in, plan, measured, &v->cluster, err));
    HDT_TRY(step_played(in, &v->cluster, plan, &v->present_step_s, err));
    HDT_TRY(cause_find(in, plan, measured, v, err));
    HDT_TRY(hdt_search_plan(&with, &v->best, err));
    hdt_drift_moves(plan, &v->best.plan, v->moves, sizeof(v->moves));
    return HDT_OK;
}

enum hdt_status hdt_drift_judge(const struct hdt_cost_inputs *in, const struct hdt_plan *plan,
                                const struct hdt_drift_measured *measured,
                                const struct hdt_drift_limits *limits, struct hdt_drift_verdict *v,
                                struct hdt_error *err)
{
    enum hdt_status status;

    memset(v, 0, sizeof(*v));
    v->present_step_s = plan->step_s;
    if (measured->n_steps < limits->min_steps || measured->step_s <= 0 || plan->step_s <= 0) {
        snprintf(v->reason, sizeof(v->reason), "%lld steps are too few to judge by",
                 (long long)measured->n_steps);
        return HDT_OK;
    }
    v->drift = measured->step_s / plan->step_s - 1;
    v->drifted = fabs(v->drift) > limits->drift;
    if (!v->drifted) {
        snprintf(v->reason, sizeof(v->reason), "%.3f s a step, %.3f s predicted: as planned",
                 measured->step_s, plan->step_s);
        return HDT_OK;
    }
    status = verdict_fill(in, plan, measured, v, err);
    if (status != HDT_OK) {
        hdt_drift_verdict_release(v);
        return status;
    }
    verdict_decide(v, limits);
    return HDT_OK;
}

void hdt_drift_verdict_release(struct hdt_drift_verdict *v)
{
    hdt_cluster_release(&v->cluster);
    hdt_search_result_release(&v->best);
    memset(v, 0, sizeof(*v));
}
