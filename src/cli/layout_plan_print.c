/* SPDX-License-Identifier: Apache-2.0 */
/* How a plan that was found for a layout is shown: tables for people, JSON for programs. */
#include "config.h"

#include "src/cli/layout_plan.h"
#include "src/base/buf.h"
#include "src/cli/human.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const offload_names[] = {"-", "optimizer", "activations", "both"};
static const char *const recompute_names[] = {"-", "selective", "full"};

static double percent(double is, double was)
{
    return 100 * (is / was - 1);
}

/* ---- stages ---- */

/* Replicas of a stage one after another on alike nodes with one degree: a line. */
struct run {
    size_t stage, first, n; /* replicas */
    size_t fullest;         /* rank of the one with least memory left */
    double busy_s;          /* of the one that computes longest */
};

static const struct hdt_layout_group *group_of(const struct hdt_layout_planned *p, size_t replica,
                                               size_t stage)
{
    return hdt_layout_group(&p->laid.files, replica, stage);
}

static double memory_share(const struct hdt_layout_planned *p, size_t rank)
{
    return hdt_layout_sim_rank(p->laid.sim, rank)->memory.total /
           hdt_cluster_file_memory_bytes(p->laid.files.groups[rank].nodes);
}

static void run_fill(const struct hdt_layout_planned *p, struct run *run)
{
    const struct hdt_layout_files *f = &p->laid.files;
    size_t first = run->first * f->n_stages + run->stage;

    run->fullest = first;
    run->busy_s = 0;
    for (size_t r = run->first; r < run->first + run->n; r++) {
        size_t rank = r * f->n_stages + run->stage;
        const struct hdt_layout_rank *is = hdt_layout_sim_rank(p->laid.sim, rank);
        double busy =
            (is->fwd_s + is->bwd_s) * (double)hdt_layout_n_micro_batches(f, r) + is->step_s;

        run->busy_s = fmax(run->busy_s, busy);
        run->fullest = memory_share(p, rank) > memory_share(p, run->fullest) ? rank : run->fullest;
    }
}

/* Runs of all stages in their order; free(). */
static struct run *runs_of(const struct hdt_layout_planned *p, size_t *n)
{
    const struct hdt_layout_files *f = &p->laid.files;
    struct run *runs = hdt_calloc(f->n_stages * f->n_replicas, sizeof(runs[0]));

    *n = 0;
    for (size_t s = 0; s < f->n_stages; s++) {
        for (size_t r = 0; r < f->n_replicas; r++) {
            const struct hdt_layout_group *g = group_of(p, r, s);
            const struct hdt_layout_group *last = r > 0 ? group_of(p, r - 1, s) : NULL;
            bool same = last && g->nodes == last->nodes && g->tp == last->tp;

            if (!same) {
                runs[(*n)++] = (struct run){.stage = s, .first = r};
            }
            runs[*n - 1].n++;
        }
    }
    for (size_t i = 0; i < *n; i++) {
        run_fill(p, &runs[i]);
    }
    return runs;
}

static void run_print(const struct hdt_layout_planned *p, const struct run *run, FILE *out)
{
    const struct hdt_layout *l = &p->laid.files.layout;
    size_t rank = run->first * p->laid.files.n_stages + run->stage;
    const struct hdt_layout_rank *is = hdt_layout_sim_rank(p->laid.sim, rank);
    const struct hdt_layout_rank *full = hdt_layout_sim_rank(p->laid.sim, run->fullest);
    const struct hdt_layout_group *group = &p->laid.files.groups[rank];
    char name[2 * HDT_NAME_CAP], cut[32], fwd[HDT_HUMAN_CAP], bwd[HDT_HUMAN_CAP];

    hdt_laid_out_nodes(&p->laid, rank, name, sizeof(name));
    fprintf(out, "%-5zu %-17s %4zu x %-3lld %6lld %9s %9s %-9s %-11s %4.0f%% %6.1f of %-5.1f\n",
            run->stage, hdt_human_cut(name, 17, cut, sizeof(cut)), run->n, (long long)group->tp,
            (long long)hdt_layout_stage(l, run->stage)->layers, hdt_human_time(is->fwd_s, fwd),
            hdt_human_time(is->bwd_s, bwd), recompute_names[hdt_layout_recompute(l, run->stage)],
            offload_names[hdt_layout_offload(l, run->stage)],
            100 * run->busy_s / p->best->prediction.step_s, full->memory.total / 1e9,
            hdt_cluster_file_memory_bytes(group->nodes) / 1e9);
}

static void stages_print(const struct hdt_layout_planned *p, FILE *out)
{
    size_t n;
    struct run *runs = runs_of(p, &n);

    fprintf(out, "\n%-5s %-17s %-10s %6s %9s %9s %-9s %-11s %5s %s\n", "stage", "nodes",
            "times x tp", "layers", "forward", "backward", "recompute", "offload", "busy",
            "GB of a device");
    for (size_t i = 0; i < n; i++) {
        run_print(p, &runs[i], out);
    }
    free(runs);
}

/* ---- the reason ---- */

static void shares_print(const struct hdt_layout_planned *p, FILE *out)
{
    const struct hdt_layout_files *f = &p->laid.files;
    const struct hdt_layout_replicas *entry = f->layout.replicas.items;

    if (f->layout.replicas.n == 0) {
        fprintf(out, "batches    %lld micro-batches of %lld in each replica\n",
                (long long)f->n_micro_batches, (long long)f->layout.micro_batch);
        return;
    }
    fprintf(out, "batches    ");
    for (size_t i = 0; i < f->layout.replicas.n; i++) {
        int64_t one = entry[i].micro_batch > 0 ? entry[i].micro_batch : f->layout.micro_batch;

        fprintf(out, "%s%lld micro-batches of %lld in %lld replica%s", i > 0 ? "; " : "",
                (long long)entry[i].micro_batches, (long long)one, (long long)entry[i].count,
                entry[i].count == 1 ? "" : "s");
    }
    fprintf(out, "; gradients weighted by tokens\n");
}

/* Pairs of sites that have a codec of their own. */
static void links_print(const struct hdt_layout_planned *p, FILE *out)
{
    const struct hdt_layout_files *f = &p->laid.files;

    for (size_t i = 0; i < f->n_wan_pairs; i++) {
        const struct hdt_layout_wan_pair *pair = &f->wan_pairs[i];

        fprintf(out, "%-11s%s/%s: ", i == 0 ? "links" : "",
                hdt_cluster_file_site(&f->cluster, pair->low)->name,
                hdt_cluster_file_site(&f->cluster, pair->high)->name);
        if (pair->wire.codec_ratio < 1 || pair->wire.sync_ratio < 1) {
            fprintf(out, "%.3g of activations' bytes, %.3g of gradients'\n", pair->wire.codec_ratio,
                    pair->wire.sync_ratio);
        } else {
            fprintf(out, "all bytes, as they are\n");
        }
    }
}

static void settings_print(const struct hdt_layout_planned *p, FILE *out)
{
    static const char *const all_reduce[] = {"auto", "ring", "hierarchical", "tree"};
    const struct hdt_layout *l = &p->laid.files.layout;

    fprintf(out, "plan       %zu stages x %zu replicas on %lld of %lld devices; schedule %s",
            p->laid.files.n_stages, p->laid.files.n_replicas, (long long)p->best->n_devices,
            (long long)hdt_cluster_file_n_devices(&p->files.cluster),
            hdt_schedule_names[l->schedule]);
    if (l->chunks > 1) {
        fprintf(out, ", %lld chunks a stage", (long long)l->chunks);
    }
    fprintf(out, "\n");
    shares_print(p, out);
    fprintf(out, "gradients  %s%s%s, all-reduce %s",
            l->sync == HDT_LAYOUT_SYNC_AFTER ? "added after the last backward"
                                             : "added while the last backward goes on",
            l->optimizer.sharded ? ", optimizer sharded (ZeRO-1)" : "",
            l->optimizer.sharded && l->sync == HDT_LAYOUT_SYNC_BOTH
                ? ", weights gathered while the first forward goes on"
                : "",
            all_reduce[l->all_reduce]);
    if (l->wan.codec_ratio < 1 || l->wan.sync_ratio < 1) {
        fprintf(out, "; between sites %.3g of activations' bytes, %.3g of gradients'",
                l->wan.codec_ratio, l->wan.sync_ratio);
    }
    fprintf(out, "\n");
    links_print(p, out);
}

static void search_print(const struct hdt_layout_planned *p, FILE *out)
{
    const struct hdt_layout_search_result *r = &p->result;

    fprintf(out, "search     %lld candidates, %lld simulated, %.2f s; %s\n",
            (long long)r->n_candidates, (long long)r->n_simulated, r->elapsed_s,
            r->is_cut        ? "cut short: there may be better ones"
            : r->is_complete ? p->replan.is_asked
                                   ? "no other of those candidates is estimated to be better"
                                   : "no other of those candidates is estimated to be faster"
                             : "the best that was found");
}

static void gains_print(const struct hdt_layout_planned *p, FILE *out)
{
    double step_s = p->best->prediction.step_s;

    for (size_t i = 0; i < p->n_gains; i++) {
        const struct hdt_layout_gain *g = &p->gains[i];

        if (g->step_s < 0.9995 * step_s) {
            fprintf(out, "more       %s: %.4g s (%+.1f %%)%s\n", g->what, g->step_s,
                    percent(g->step_s, step_s), g->is_searched ? "" : ", with the same plan");
        } else {
            fprintf(out, "more       %s would bring nothing%s\n", g->what,
                    g->is_searched ? "" : " to this plan");
        }
    }
}

static void others_print(const struct hdt_layout_planned *p, FILE *out)
{
    double step_s = p->best->prediction.step_s;

    if (p->args->what_if.n > 0 && !isnan(p->before_step_s)) {
        fprintf(out, "what if    %.4g s as it is%s, %.4g s so (%+.1f %%)\n", p->before_step_s,
                p->before_is_cut ? " (its search was cut short)" : "", step_s,
                percent(step_s, p->before_step_s));
    } else if (p->args->what_if.n > 0) {
        fprintf(out, "what if    there is no plan as it is: %s\n", p->before_why);
    }
    if (p->other_path && p->other_fits) {
        fprintf(out, "compared   %s takes %.4g s (%+.1f %%): %s\n", p->other_path,
                p->other.prediction.step_s, percent(p->other.prediction.step_s, step_s),
                p->other.limit_text);
    } else if (p->other_path) {
        fprintf(out, "compared   %s does not fit into the memory\n", p->other_path);
    }
    hdt_layout_replan_print(&p->replan, out);
}

static void objective_print(const struct hdt_layout_planned *p, FILE *out)
{
    const struct hdt_layout_found *b = p->best;
    char bytes[HDT_HUMAN_CAP];

    if (b->wan_bytes > 0) {
        fprintf(out, "           %s a step between sites", hdt_human_bytes(b->wan_bytes, bytes));
        if (b->wan_price > 0) {
            fprintf(out, " for %.4g", b->wan_price);
        }
        fprintf(out, "\n");
    }
    if (p->args->objective != HDT_LAYOUT_THROUGHPUT) {
        fprintf(out, "objective  %s: %.4g %s a step\n",
                hdt_layout_objective_names[p->args->objective], b->objective,
                p->args->objective == HDT_LAYOUT_COST ? "of money" : "J");
    }
}

/* The best one that is not shown above. */
static const struct hdt_layout_found *second_of(const struct hdt_layout_planned *p)
{
    for (size_t i = 0; i < p->result.n_top; i++) {
        if (&p->result.top[i] != p->best && p->result.top[i].differs[0]) {
            return &p->result.top[i];
        }
    }
    return NULL;
}

void hdt_layout_planned_print(const struct hdt_layout_planned *p, FILE *out)
{
    const struct hdt_layout_found *b = p->best, *second = second_of(p);

    fprintf(out, "%s\n", p->files.layout.name);
    settings_print(p, out);
    fprintf(out, "predicted  %.4g s a step, %.0f tokens/s; no plan at all is below %.4g s\n",
            b->prediction.step_s, b->tokens_per_s, p->result.bound_s);
    objective_print(p, out);
    stages_print(p, out);
    hdt_layout_flows_print(&p->flows, b->prediction.step_s, out);
    fprintf(out, "\nlimit      %s: %s\n", hdt_layout_limit_names[b->limit], b->limit_text);
    if (second) {
        fprintf(out, "second     %.4g s (%+.1f %%): %s\n", second->prediction.step_s,
                percent(second->prediction.step_s, b->prediction.step_s), second->differs);
    }
    gains_print(p, out);
    others_print(p, out);
    search_print(p, out);
}

/* ---- JSON ---- */

static json_t *number(double n)
{
    return isfinite(n) ? json_real(n) : json_null();
}

static json_t *stages_json(const struct hdt_layout_planned *p)
{
    const struct hdt_layout *l = &p->laid.files.layout;
    json_t *all = json_array();
    size_t n;
    struct run *runs = runs_of(p, &n);

    for (size_t i = 0; i < n; i++) {
        size_t rank = runs[i].first * p->laid.files.n_stages + runs[i].stage;
        const struct hdt_layout_group *g = &p->laid.files.groups[rank];
        const struct hdt_layout_rank *is = hdt_layout_sim_rank(p->laid.sim, rank);

        json_array_append_new(
            all,
            json_pack("{s:i, s:s, s:s, s:i, s:I, s:I, s:s, s:s, s:f, s:f, s:f, s:f, s:o}", "stage",
                      (int)runs[i].stage, "site",
                      hdt_cluster_file_site(&p->files.cluster, g->site_idx)->name, "nodes",
                      g->nodes->name, "replicas", (int)runs[i].n, "tp", (json_int_t)g->tp, "layers",
                      (json_int_t)hdt_layout_stage(l, runs[i].stage)->layers, "recompute",
                      recompute_names[hdt_layout_recompute(l, runs[i].stage)], "offload",
                      offload_names[hdt_layout_offload(l, runs[i].stage)], "forward_s", is->fwd_s,
                      "backward_s", is->bwd_s, "busy_s", runs[i].busy_s, "memory_bytes",
                      hdt_layout_sim_rank(p->laid.sim, runs[i].fullest)->memory.total, "room_bytes",
                      number(hdt_cluster_file_memory_bytes(g->nodes))));
    }
    free(runs);
    return all;
}

static json_t *found_json(const struct hdt_layout_found *f)
{
    return json_pack("{s:f, s:f, s:f, s:o, s:o, s:o, s:f, s:f, s:o, s:I, s:s, s:s, s:s}", "step_s",
                     f->prediction.step_s, "tokens_per_s", f->tokens_per_s, "memory_bytes",
                     f->prediction.memory_bytes, "objective", number(f->objective), "bound_s",
                     number(f->bound_s), "estimate_s", number(f->estimate_s), "wan_bytes",
                     f->wan_bytes, "wan_price", f->wan_price, "joules", number(f->joules),
                     "devices", (json_int_t)f->n_devices, "limit", hdt_layout_limit_names[f->limit],
                     "limit_text", f->limit_text, "differs", f->differs);
}

static json_t *others_json(const struct hdt_layout_planned *p)
{
    json_t *all = json_array();

    for (size_t i = 0; i < p->result.n_top; i++) {
        if (&p->result.top[i] != p->best) {
            json_t *one = found_json(&p->result.top[i]);

            json_object_set_new(one, "plan",
                                hdt_conf_to_json(&hdt_layout_schema, &p->result.top[i].layout));
            json_array_append_new(all, one);
        }
    }
    return all;
}

static json_t *gains_json(const struct hdt_layout_planned *p)
{
    json_t *all = json_array();

    for (size_t i = 0; i < p->n_gains; i++) {
        json_array_append_new(all, json_pack("{s:s, s:o, s:b}", "what", p->gains[i].what, "step_s",
                                             number(p->gains[i].step_s), "searched",
                                             (int)p->gains[i].is_searched));
    }
    return all;
}

static json_t *search_json(const struct hdt_layout_planned *p)
{
    const struct hdt_layout_search_result *r = &p->result;

    return json_pack("{s:I, s:I, s:I, s:I, s:f, s:b, s:b, s:o, s:s}", "candidates",
                     (json_int_t)r->n_candidates, "estimated", (json_int_t)r->n_estimated,
                     "simulated", (json_int_t)r->n_simulated, "misfits", (json_int_t)r->n_misfits,
                     "elapsed_s", r->elapsed_s, "complete", (int)r->is_complete, "cut",
                     (int)r->is_cut, "bound_s", number(r->bound_s), "objective",
                     hdt_layout_objective_names[p->args->objective]);
}

json_t *hdt_layout_planned_json(const struct hdt_layout_planned *p)
{
    json_t *json = found_json(p->best);

    json_object_set_new(json, "name", json_string(p->files.layout.name));
    json_object_set_new(json, "plan", hdt_conf_to_json(&hdt_layout_schema, &p->best->layout));
    json_object_set_new(json, "stages", stages_json(p));
    json_object_set_new(json, "between_sites", hdt_layout_flows_json(&p->flows));
    json_object_set_new(json, "runners_up", others_json(p));
    json_object_set_new(json, "gains", gains_json(p));
    json_object_set_new(json, "search", search_json(p));
    if (p->args->what_if.n > 0) {
        json_object_set_new(json, "without_what_if_step_s", number(p->before_step_s));
    }
    if (p->other_path) {
        json_t *other = p->other_fits ? found_json(&p->other) : json_object();

        json_object_set_new(other, "fits", json_boolean(p->other_fits));
        json_object_set_new(json, "compare", other);
    }
    if (p->replan.is_asked) {
        json_object_set_new(json, "current", hdt_layout_replan_json(&p->replan));
    }
    return json;
}
