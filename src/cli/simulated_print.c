/* SPDX-License-Identifier: Apache-2.0 */
/* How a simulation is shown: tables for people, JSON for programs. */
#include "config.h"

#include "src/base/buf.h"
#include "src/cli/human.h"
#include "src/cli/memory_json.h"
#include "src/cli/simulated.h"

#include <math.h>
#include <stdlib.h>

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

static void links_print(const struct hdt_simulated *s, FILE *out)
{
    double n_steps = s->n_steps - 1, all_s = n_steps * s->played.result.step_s;
    const struct hdt_cost_link *links;
    size_t n;

    links = hdt_plan_sim_links(s->sim, &n);
    if (n > 0) {
        fprintf(out, "\n%-26s %12s %7s\n", "link", "a step", "busy");
    }
    for (size_t i = 0; i < n; i++) {
        const struct hdt_sim_link_result *l = &s->played.result.links[i];
        char name[2 * HDT_NAME_CAP + 8], cut[32], bytes[HDT_HUMAN_CAP];

        snprintf(name, sizeof(name), "%s -> %s", links[i].from, links[i].to);
        fprintf(out, "%-26s %12s %6.1f%%\n", hdt_human_cut(name, 26, cut, sizeof(cut)),
                hdt_human_bytes(l->bytes / n_steps, bytes), 100 * share(l->busy_s, all_s));
    }
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
    double n_steps = s->n_steps - 1;
    json_t *all = json_array();
    const struct hdt_cost_link *links;
    size_t n;

    links = hdt_plan_sim_links(s->sim, &n);
    for (size_t i = 0; i < n; i++) {
        const struct hdt_sim_link_result *l = &s->played.result.links[i];

        json_array_append_new(all,
                              json_pack("{s:s, s:s, s:f, s:f, s:f}", "from", links[i].from, "to",
                                        links[i].to, "bytes_per_step", l->bytes / n_steps, "busy_s",
                                        l->busy_s / n_steps, "peak", l->peak));
    }
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
