/* SPDX-License-Identifier: Apache-2.0 */
/* How a simulated layout is shown: tables for people, JSON for programs. */
#include "config.h"

#include "src/base/buf.h"
#include "src/cli/human.h"
#include "src/cli/laid_out.h"
#include "src/cli/memory_json.h"

#include <math.h>
#include <stdlib.h>

/* Links that are shown: the busiest ones. */
#define LINKS_SHOWN 6

static const char *const use_names[HDT_SIM_USE_COUNT] = {
    [HDT_SIM_BUSY] = "busy", [HDT_SIM_COMM] = "comm",     [HDT_SIM_HELD] = "held",
    [HDT_SIM_WAIT] = "wait", [HDT_SIM_BUBBLE] = "bubble",
};

static double tokens_per_s(const struct hdt_laid_out *l)
{
    return (double)(l->files.layout.global_batch * l->files.layout.seq_len) /
           l->played.result.makespan_s;
}

static double share(double part, double all)
{
    return all > 0 ? part / all : 0;
}

static double percent_off(double predicted, double measured)
{
    return 100 * (predicted / measured - 1);
}

/* ---- text ---- */

/* A stage's replicas have one line: that of the one which is busy longest. */
static size_t slowest_of(const struct hdt_laid_out *l, size_t stage)
{
    size_t slowest = stage;

    for (size_t i = stage; i < l->played.result.n_ranks; i += l->files.n_stages) {
        if (l->played.result.ranks[i].use_s[HDT_SIM_BUSY] >
            l->played.result.ranks[slowest].use_s[HDT_SIM_BUSY]) {
            slowest = i;
        }
    }
    return slowest;
}

static void stages_print(const struct hdt_laid_out *l, FILE *out)
{
    fprintf(out, "\n%-5s %-14s %6s %4s %9s %9s %6s %6s %6s %6s  %s\n", "stage", "nodes", "layers",
            "tp", "forward", "backward", "busy", "comm", "wait", "bubble", "times from");
    for (size_t s = 0; s < l->files.n_stages; s++) {
        size_t rank = slowest_of(l, s);
        const struct hdt_layout_group *group = &l->files.groups[rank];
        const struct hdt_layout_rank *is = hdt_layout_sim_rank(l->sim, rank);
        const struct hdt_sim_rank_result *r = &l->played.result.ranks[rank];
        char name[2 * HDT_NAME_CAP], cut[32], fwd[HDT_HUMAN_CAP], bwd[HDT_HUMAN_CAP];

        hdt_laid_out_nodes(l, rank, name, sizeof(name));
        fprintf(out, "%-5zu %-14s %6lld %4lld %9s %9s", s,
                hdt_human_cut(name, 14, cut, sizeof(cut)),
                (long long)hdt_layout_stage(&l->files.layout, s)->layers, (long long)group->tp,
                hdt_human_time(is->fwd_s, fwd), hdt_human_time(is->bwd_s, bwd));
        for (int u = 0; u < HDT_SIM_USE_COUNT; u++) {
            if (u != HDT_SIM_HELD) {
                fprintf(out, " %5.1f%%", 100 * share(r->use_s[u], r->window_s));
            }
        }
        fprintf(out, "  %s\n", is->is_profiled ? "profile" : "figures");
    }
}

static double room_of(const struct hdt_laid_out *l, size_t rank)
{
    return hdt_cluster_file_memory_bytes(l->files.groups[rank].nodes);
}

static bool fits(const struct hdt_laid_out *l, size_t rank)
{
    /* What is not known is not too little. */
    return !(hdt_layout_sim_rank(l->sim, rank)->memory.total > room_of(l, rank));
}

/* Of memory it is the replica whose devices have the least left, for their size. */
static size_t fullest_of(const struct hdt_laid_out *l, size_t stage)
{
    size_t fullest = stage;
    double most = -1;

    for (size_t i = stage; i < l->played.result.n_ranks; i += l->files.n_stages) {
        double part = hdt_layout_sim_rank(l->sim, i)->memory.total / room_of(l, i);

        if (part > most) {
            most = part;
            fullest = i;
        }
    }
    return fullest;
}

static void memory_print(const struct hdt_laid_out *l, FILE *out)
{
    fprintf(out,
            "\nGB of a device (1e9 bytes)\n%-5s %7s %7s %7s %7s %7s %7s %11s %5s %9s %4s %7s\n",
            "stage", "all", "weights", "grads", "master", "moments", "buffers", "activations",
            "head", "framework", "kept", "on host");
    for (size_t s = 0; s < l->files.n_stages; s++) {
        size_t rank = fullest_of(l, s);
        const struct hdt_layout_rank *is = hdt_layout_sim_rank(l->sim, rank);
        const struct hdt_stage_cost_memory *m = &is->memory;
        char name[2 * HDT_NAME_CAP];

        fprintf(out, "%-5zu %7.2f %7.2f %7.2f %7.2f %7.2f %7.2f %11.2f %5.2f %9.2f %4lld %7.2f%s\n",
                s, m->total / 1e9, m->weights / 1e9, m->grads / 1e9, m->master / 1e9,
                m->moments / 1e9, m->buffers / 1e9, m->activations / 1e9, m->head / 1e9,
                m->framework / 1e9, (long long)is->n_in_flight,
                (m->host_optimizer + m->host_activations) / 1e9,
                fits(l, rank) ? "" : "  more than it has");
        if (!fits(l, rank)) {
            hdt_laid_out_nodes(l, rank, name, sizeof(name));
            fprintf(out, "      a device of '%s' has %.2f\n", name, room_of(l, rank) / 1e9);
        }
    }
}

struct busy_link {
    size_t link;
    double busy_s;
};

static int busy_compare(const void *a, const void *b)
{
    const struct busy_link *x = a, *y = b;

    if (x->busy_s != y->busy_s) {
        return x->busy_s > y->busy_s ? -1 : 1;
    }
    return x->link < y->link ? -1 : x->link > y->link;
}

static const char *link_text(const struct hdt_laid_out *l, size_t link, char *text, size_t cap)
{
    const struct hdt_layout_link *name = hdt_layout_sim_link(l->sim, link);

    snprintf(text, cap, "%s%s%s", name->from, name->to[0] ? " -> " : "", name->to);
    return text;
}

static void links_print(const struct hdt_laid_out *l, FILE *out)
{
    size_t n = l->played.result.n_links;
    struct busy_link *busy = hdt_calloc(n + 1, sizeof(busy[0]));

    for (size_t i = 0; i < n; i++) {
        busy[i] = (struct busy_link){i, l->played.result.links[i].busy_s};
    }
    qsort(busy, n, sizeof(busy[0]), busy_compare);
    if (n > 0) {
        fprintf(out, "\n%-28s %12s %7s\n", "busiest links", "a step", "busy");
    }
    for (size_t i = 0; i < n && i < LINKS_SHOWN; i++) {
        char name[2 * HDT_LAYOUT_LINK_CAP + 8], cut[32], bytes[HDT_HUMAN_CAP];

        link_text(l, busy[i].link, name, sizeof(name));
        fprintf(out, "%-28s %12s %6.1f%%\n", hdt_human_cut(name, 28, cut, sizeof(cut)),
                hdt_human_bytes(l->played.result.links[busy[i].link].bytes, bytes),
                100 * share(busy[i].busy_s, l->played.result.makespan_s));
    }
    free(busy);
}

static void path_print(const struct hdt_laid_out *l, FILE *out)
{
    fprintf(out, "\ncritical path  ");
    for (int u = 0; u < HDT_SIM_PATH_USE_COUNT; u++) {
        fprintf(out, "%s%s %.1f%%", u > 0 ? ", " : "",
                hdt_sim_path_use_name((enum hdt_sim_path_use)u),
                100 * share(l->played.path.use_s[u], l->played.result.makespan_s));
    }
    fprintf(out, "\n");
}

void hdt_laid_out_print(const struct hdt_laid_out *l, FILE *out)
{
    const struct hdt_layout *layout = &l->files.layout;
    double step_s = l->played.result.makespan_s, bytes = hdt_layout_sim_memory_bytes(l->sim);

    fprintf(out, "%s\n", layout->name);
    fprintf(out, "simulated  %zu stages, %zu replicas of %s%lld micro-batches, schedule %s\n",
            l->files.n_stages, l->files.n_replicas, layout->replicas.n > 0 ? "at most " : "",
            (long long)l->files.n_micro_batches, hdt_schedule_names[layout->schedule]);
    fprintf(out, "step       %.4g s, %.0f tokens/s", step_s, tokens_per_s(l));
    if (!hdt_scenario_is_empty(&l->scenario)) {
        fprintf(out, "; %.4g s without the scenario (%+.1f %%)", l->played.calm_makespan_s,
                percent_off(step_s, l->played.calm_makespan_s));
    }
    fprintf(out, "\nmemory     %.2f GB of the device that takes most\n", bytes / 1e9);
    if (!isnan(layout->measured.step_s)) {
        fprintf(out, "measured   %.4g s (predicted %+.1f %%)", layout->measured.step_s,
                percent_off(step_s, layout->measured.step_s));
        if (!isnan(layout->measured.memory_gb)) {
            fprintf(out, ", %.2f GB (predicted %+.1f %%)", layout->measured.memory_gb,
                    percent_off(bytes / 1e9, layout->measured.memory_gb));
        }
        fprintf(out, "\n");
    }
    stages_print(l, out);
    memory_print(l, out);
    links_print(l, out);
    path_print(l, out);
}

/* ---- JSON ---- */

static json_t *number(double n)
{
    return isnan(n) ? json_null() : json_real(n);
}

static json_t *memory_json(const struct hdt_stage_cost_memory *m)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:{s:f, s:f}}", "total",
                     m->total, "weights", m->weights, "grads", m->grads, "master", m->master,
                     "moments", m->moments, "buffers", m->buffers, "activations", m->activations,
                     "head", m->head, "framework", m->framework, "host", "optimizer",
                     m->host_optimizer, "activations", m->host_activations);
}

static json_t *ranks_json(const struct hdt_laid_out *l)
{
    json_t **memory = hdt_memory_json(&l->played.result), *ranks = json_array();

    for (size_t i = 0; i < l->played.result.n_ranks; i++) {
        const struct hdt_layout_rank *is = hdt_layout_sim_rank(l->sim, i);
        const struct hdt_layout_group *group = &l->files.groups[i];
        json_t *rank = json_pack(
            "{s:i, s:i, s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:b, s:I, s:o}", "stage",
            (int)(i % l->files.n_stages), "replica", (int)(i / l->files.n_stages), "nodes",
            group->nodes->name, "node", (json_int_t)group->node, "tp", (json_int_t)group->tp,
            "forward_s", is->fwd_s, "backward_s", is->bwd_s, "optimizer_s", is->step_s,
            "host_optimizer_s", is->host_step_s, "profiled", is->is_profiled, "in_flight",
            (json_int_t)is->n_in_flight, "memory_bytes", memory_json(&is->memory));

        json_object_set_new(
            rank, "site",
            json_string(hdt_cluster_file_site(&l->files.cluster, group->site_idx)->name));
        json_object_set_new(rank, "memory", memory[i]);
        json_object_set_new(rank, "room_bytes", number(room_of(l, i)));
        json_object_set_new(rank, "fits", json_boolean(fits(l, i)));
        for (int u = 0; u < HDT_SIM_USE_COUNT; u++) {
            char key[16];

            snprintf(key, sizeof(key), "%s_s", use_names[u]);
            json_object_set_new(rank, key, json_real(l->played.result.ranks[i].use_s[u]));
        }
        json_array_append_new(ranks, rank);
    }
    free(memory);
    return ranks;
}

static json_t *links_json(const struct hdt_laid_out *l)
{
    json_t *all = json_array();

    for (size_t i = 0; i < l->played.result.n_links; i++) {
        char name[2 * HDT_LAYOUT_LINK_CAP + 8];

        json_array_append_new(all, json_pack("{s:s, s:f, s:f, s:f}", "name",
                                             link_text(l, i, name, sizeof(name)), "bytes",
                                             l->played.result.links[i].bytes, "busy_s",
                                             l->played.result.links[i].busy_s, "peak",
                                             l->played.result.links[i].peak));
    }
    return all;
}

static json_t *path_json(const struct hdt_laid_out *l)
{
    json_t *path = json_object(), *ops = json_array();

    for (int u = 0; u < HDT_SIM_PATH_USE_COUNT; u++) {
        char key[16];

        snprintf(key, sizeof(key), "%s_s", hdt_sim_path_use_name((enum hdt_sim_path_use)u));
        json_object_set_new(path, key, json_real(l->played.path.use_s[u]));
    }
    for (size_t i = 0; i < l->played.path.n_spans; i++) {
        const struct hdt_sim_span *span = &l->played.result.spans[l->played.path.spans[i]];

        json_array_append_new(ops, json_pack("{s:i, s:s, s:i, s:I, s:f, s:f}", "rank", span->rank,
                                             "op", hdt_op_name(span->op.kind), "stage",
                                             span->op.stage, "mb", (json_int_t)span->op.mb,
                                             "start_s", span->start_s, "end_s", span->end_s));
    }
    json_object_set_new(path, "ops", ops);
    return path;
}

json_t *hdt_laid_out_to_json(const struct hdt_laid_out *l)
{
    const struct hdt_layout_measured *m = &l->files.layout.measured;

    return json_pack("{s:s, s:f, s:f, s:f, s:f, s:{s:o, s:o}, s:o, s:o, s:o}", "name",
                     l->files.layout.name, "step_s", l->played.result.makespan_s, "calm_step_s",
                     l->played.calm_makespan_s, "tokens_per_s", tokens_per_s(l), "memory_bytes",
                     hdt_layout_sim_memory_bytes(l->sim), "measured", "step_s", number(m->step_s),
                     "memory_gb", number(m->memory_gb), "ranks", ranks_json(l), "links",
                     links_json(l), "critical_path", path_json(l));
}
