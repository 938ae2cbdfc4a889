/* SPDX-License-Identifier: Apache-2.0 */
/* How a simulation is shown: tables for people, JSON for programs. */
#include "config.h"

#include "src/base/buf.h"
#include "src/cli/human.h"
#include "src/cli/memory_json.h"
#include "src/cli/simulated.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const use_names[HDT_SIM_USE_COUNT] = {
    [HDT_SIM_BUSY] = "busy", [HDT_SIM_COMM] = "comm",     [HDT_SIM_HELD] = "held",
    [HDT_SIM_WAIT] = "wait", [HDT_SIM_BUBBLE] = "bubble",
};

static double tokens_per_s(const struct hdt_simulated *s)
{
    const struct hdt_plan *plan = &s->planned.result.plan;

    return (double)(plan->micro_batch * plan->n_micro_batches * plan->seq_len) /
           s->played.result.step_s;
}

static double share(double part, double all)
{
    return all > 0 ? part / all : 0;
}

/* ---- text ---- */

static void ranks_print(const struct hdt_simulated *s, FILE *out)
{
    const struct hdt_plan *plan = &s->planned.result.plan;

    fprintf(out, "\n%-5s %-20s %7s %7s %7s %7s %7s %10s\n", "rank", "worker", "busy", "comm",
            "held", "wait", "bubble", "memory");
    for (size_t i = 0; i < plan->n_ranks; i++) {
        const struct hdt_sim_rank_result *r = &s->played.result.ranks[i];
        char name[2 * HDT_NAME_CAP], cut[32], memory[HDT_HUMAN_CAP];

        snprintf(name, sizeof(name), "%s/%s", plan->ranks[i].site, plan->ranks[i].worker);
        fprintf(out, "%-5zu %-20s", i, hdt_human_cut(name, 20, cut, sizeof(cut)));
        for (int u = 0; u < HDT_SIM_USE_COUNT; u++) {
            fprintf(out, " %6.1f%%", 100 * share(r->use_s[u], r->window_s));
        }
        fprintf(out, " %10s\n", hdt_human_memory((double)r->mem_peak, memory));
    }
}

/* Of a link in a step: what was played, and its share of the outer steps. */
struct link_use {
    double bytes, busy_s;
};

static struct link_use link_use_of(const struct hdt_simulated *s,
                                   const struct hdt_cost_outer *outer, size_t i)
{
    const struct hdt_sim_link_result *l = &s->played.result.links[i];
    struct link_use use = {l->bytes / (s->n_steps - 1), l->busy_s / (s->n_steps - 1)};
    size_t n;
    const struct hdt_cost_link *link = &hdt_plan_sim_links(s->sim, &n)[i];

    for (size_t k = 0; k < outer->n_links; k++) {
        const struct hdt_cost_link *o = &outer->links[k];

        if (strcmp(o->from, link->from) == 0 && strcmp(o->to, link->to) == 0) {
            use.bytes += o->bytes / (double)outer->steps;
            use.busy_s += o->busy_s / (double)outer->steps;
        }
    }
    return use;
}

/* Of the outer steps of its replicas; all zero where it has one. Release it. */
static void outer_of(const struct hdt_simulated *s, struct hdt_cost_outer *outer)
{
    memset(outer, 0, sizeof(*outer));
    if (s->planned.result.plan.n_replicas > 1) { /* it was asked for when the plan was taken */
        enum hdt_status status = hdt_cost_outer(&s->in, &s->planned.result.plan, outer, NULL);

        HDT_ASSERT(status == HDT_OK);
    }
}

static void outer_print(const struct hdt_simulated *s, FILE *out)
{
    struct hdt_cost_outer outer;

    outer_of(s, &outer);
    if (outer.steps > 0) {
        fprintf(
            out,
            "outer      step every %lld steps, %.4g s: each step has its share, which scenarios "
            "leave as it is\n",
            (long long)outer.steps, outer.step_s);
    }
    hdt_cost_outer_release(&outer);
}

static void links_print(const struct hdt_simulated *s, FILE *out)
{
    const struct hdt_cost_link *links;
    struct hdt_cost_outer outer;
    size_t n;

    links = hdt_plan_sim_links(s->sim, &n);
    outer_of(s, &outer);
    if (n > 0) {
        fprintf(out, "\n%-26s %12s %7s\n", "link", "a step", "busy");
    }
    for (size_t i = 0; i < n; i++) {
        struct link_use use = link_use_of(s, &outer, i);
        char name[2 * HDT_NAME_CAP + 8], cut[32], bytes[HDT_HUMAN_CAP];

        snprintf(name, sizeof(name), "%s -> %s", links[i].from, links[i].to);
        fprintf(out, "%-26s %12s %6.1f%%\n", hdt_human_cut(name, 26, cut, sizeof(cut)),
                hdt_human_bytes(use.bytes, bytes),
                100 * share(use.busy_s, s->played.result.step_s));
    }
    hdt_cost_outer_release(&outer);
}

static void path_print(const struct hdt_simulated *s, FILE *out)
{
    fprintf(out, "\ncritical path  ");
    for (int u = 0; u < HDT_SIM_PATH_USE_COUNT; u++) {
        fprintf(out, "%s%s %.1f%%", u > 0 ? ", " : "",
                hdt_sim_path_use_name((enum hdt_sim_path_use)u),
                100 * share(s->played.path.use_s[u], s->played.result.makespan_s));
    }
    fprintf(out, "\n");
}

void hdt_simulated_print(const struct hdt_simulated *s, FILE *out)
{
    const struct hdt_plan *plan = &s->planned.result.plan;
    /* Added to 0, so that it is never "-0.0". */
    double slower_percent =
        0 + round(1000 * (share(s->played.result.step_s, s->played.calm_step_s) - 1)) / 10;
    bool calm = hdt_scenario_is_empty(&s->scenario);

    fprintf(out, "simulated  %d steps of %lld micro-batches on %zu ranks\n", s->n_steps,
            (long long)plan->n_micro_batches, plan->n_ranks);
    fprintf(out, "step       %.4g s, %.0f tokens/s", s->played.result.step_s, tokens_per_s(s));
    if (!calm) {
        fprintf(out, "; %.4g s without the scenario (%+.1f %%)", s->played.calm_step_s,
                slower_percent);
    }
    fprintf(out, "\nall steps  %.4g s", s->played.result.makespan_s);
    if (!calm) {
        fprintf(out, "; %.4g s without the scenario (%+.4g s)", s->played.calm_makespan_s,
                s->played.result.makespan_s - s->played.calm_makespan_s);
    }
    fprintf(out, "\n");
    outer_print(s, out);
    ranks_print(s, out);
    links_print(s, out);
    path_print(s, out);
}

/* ---- JSON ---- */

static json_t *ranks_json(const struct hdt_simulated *s)
{
    const struct hdt_plan *plan = &s->planned.result.plan;
    json_t **memory = hdt_memory_json(&s->played.result), *ranks = json_array();

    for (size_t i = 0; i < plan->n_ranks; i++) {
        const struct hdt_sim_rank_result *r = &s->played.result.ranks[i];
        json_t *rank =
            json_pack("{s:i, s:s, s:s, s:f, s:I, s:o}", "rank", (int)i, "site", plan->ranks[i].site,
                      "worker", plan->ranks[i].worker, "window_s", r->window_s, "memory_bytes",
                      (json_int_t)r->mem_peak, "memory", memory[i]);

        for (int u = 0; u < HDT_SIM_USE_COUNT; u++) {
            char key[16];

            snprintf(key, sizeof(key), "%s_s", use_names[u]);
            json_object_set_new(rank, key, json_real(r->use_s[u]));
        }
        json_array_append_new(ranks, rank);
    }
    free(memory);
    return ranks;
}

static json_t *links_json(const struct hdt_simulated *s)
{
    json_t *all = json_array();
    const struct hdt_cost_link *links;
    struct hdt_cost_outer outer;
    size_t n;

    links = hdt_plan_sim_links(s->sim, &n);
    outer_of(s, &outer);
    for (size_t i = 0; i < n; i++) {
        struct link_use use = link_use_of(s, &outer, i);

        json_array_append_new(all,
                              json_pack("{s:s, s:s, s:f, s:f, s:f}", "from", links[i].from, "to",
                                        links[i].to, "bytes_per_step", use.bytes, "busy_s",
                                        use.busy_s, "peak", s->played.result.links[i].peak));
    }
    hdt_cost_outer_release(&outer);
    return all;
}

/* Shares of the whole, and the ops one after another. */
static json_t *path_json(const struct hdt_simulated *s)
{
    json_t *path = json_object(), *ops = json_array();

    for (int u = 0; u < HDT_SIM_PATH_USE_COUNT; u++) {
        char key[16];

        snprintf(key, sizeof(key), "%s_s", hdt_sim_path_use_name((enum hdt_sim_path_use)u));
        json_object_set_new(path, key, json_real(s->played.path.use_s[u]));
    }
    for (size_t i = 0; i < s->played.path.n_spans; i++) {
        const struct hdt_sim_span *span = &s->played.result.spans[s->played.path.spans[i]];

        json_array_append_new(ops,
                              json_pack("{s:i, s:s, s:i, s:I, s:i, s:f, s:f}", "rank", span->rank,
                                        "op", hdt_op_name(span->op.kind), "stage", span->op.stage,
                                        "mb", (json_int_t)span->op.mb, "step", span->step,
                                        "start_s", span->start_s, "end_s", span->end_s));
    }
    json_object_set_new(path, "ops", ops);
    return path;
}

json_t *hdt_simulated_to_json(const struct hdt_simulated *s)
{
    return json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:o, s:o, s:o}", "steps", s->n_steps, "step_s",
                     s->played.result.step_s, "makespan_s", s->played.result.makespan_s,
                     "calm_step_s", s->played.calm_step_s, "calm_makespan_s",
                     s->played.calm_makespan_s, "tokens_per_s", tokens_per_s(s), "ranks",
                     ranks_json(s), "links", links_json(s), "critical_path", path_json(s));
}
