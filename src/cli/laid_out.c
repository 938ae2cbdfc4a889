/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/laid_out.h"
#include "src/base/buf.h"
#include "src/cli/human.h"
#include "src/core/timeline.h"
#include "src/sim/sim_svg.h"

#include <stdlib.h>
#include <string.h>

/* The simulation of l->files; all is released on failure. */
static enum hdt_status sim_attach(struct hdt_laid_out *l, struct hdt_error *err)
{
    const struct hdt_sim_setup *setup;
    enum hdt_status status;

    status = hdt_layout_sim_open(&l->files, &hdt_stage_cost_fitted, &l->sim, err);
    if (status != HDT_OK) {
        hdt_laid_out_release(l);
        return status;
    }
    setup = hdt_layout_sim_setup(l->sim);
    l->links = hdt_calloc(setup->n_links + 1, sizeof(l->links[0]));
    for (size_t i = 0; i < setup->n_links; i++) {
        const struct hdt_layout_link *link = hdt_layout_sim_link(l->sim, i);

        snprintf(l->links[i].from, sizeof(l->links[i].from), "%s", link->from);
        snprintf(l->links[i].to, sizeof(l->links[i].to), "%s", link->to);
    }
    l->scenario.n_all_ranks = setup->n_ranks;
    l->scenario.all_links = l->links;
    l->scenario.n_all_links = setup->n_links;
    return HDT_OK;
}

enum hdt_status hdt_laid_out_load(struct hdt_laid_out *l, const char *path,
                                  const struct hdt_layout_instead *instead, struct hdt_error *err)
{
    memset(l, 0, sizeof(*l));
    HDT_TRY(hdt_layout_open(path, instead, &l->files, err));
    return sim_attach(l, err);
}

enum hdt_status hdt_laid_out_derive(struct hdt_laid_out *l, const struct hdt_layout_files *job,
                                    const struct hdt_layout *layout, struct hdt_error *err)
{
    memset(l, 0, sizeof(*l));
    l->is_derived = true;
    HDT_TRY(hdt_layout_derive(job, layout, &l->files, err));
    return sim_attach(l, err);
}

void hdt_laid_out_release(struct hdt_laid_out *l)
{
    hdt_played_release(&l->played);
    hdt_scenario_release(&l->scenario);
    free(l->links);
    hdt_layout_sim_close(l->sim);
    if (l->is_derived) {
        hdt_layout_derived_release(&l->files);
    } else {
        hdt_layout_release(&l->files);
    }
    memset(l, 0, sizeof(*l));
}

enum hdt_status hdt_laid_out_run(struct hdt_laid_out *l, struct hdt_error *err)
{
    return hdt_scenario_play(&l->scenario, hdt_layout_sim_setup(l->sim), &l->played, err);
}

void hdt_laid_out_nodes(const struct hdt_laid_out *l, size_t rank, char *text, size_t cap)
{
    const struct hdt_layout_group *group = &l->files.groups[rank];
    const struct hdt_cluster_file *cluster = &l->files.cluster;
    bool several = cluster->sites.n > 1;

    snprintf(text, cap, "%.63s%s%.63s",
             several ? hdt_cluster_file_site(cluster, group->site_idx)->name : "",
             several ? "." : "", group->nodes->name);
}

/* ---- pictures ---- */

/* The rank of the simulation as one of a plan, for names. */
static void rank_as_plan(const struct hdt_laid_out *l, size_t rank, struct hdt_plan_rank *name)
{
    const struct hdt_layout_group *group = &l->files.groups[rank];
    const struct hdt_cluster_file_site *site =
        hdt_cluster_file_site(&l->files.cluster, group->site_idx);

    memset(name, 0, sizeof(*name));
    snprintf(name->site, sizeof(name->site), "%s", site->name);
    snprintf(name->worker, sizeof(name->worker), "%.32s.%lld", group->nodes->name,
             (long long)group->node);
}

static void timeline_names(const struct hdt_laid_out *l, struct hdt_timeline *timeline)
{
    size_t n_stages = l->files.n_stages, n_parts = n_stages * (size_t)l->files.layout.chunks;
    struct hdt_plan plan = {.n_ranks = l->played.result.n_ranks, .n_stages = n_parts};

    plan.ranks = hdt_calloc(plan.n_ranks, sizeof(plan.ranks[0]));
    plan.stages = hdt_calloc(n_parts, sizeof(plan.stages[0]));
    for (size_t i = 0; i < plan.n_ranks; i++) {
        rank_as_plan(l, i, &plan.ranks[i]);
        for (size_t p = 0; p < n_parts; p++) {
            plan.stages[p].rank = p % n_stages == i % n_stages ? (int)i : -1;
        }
        hdt_timeline_add_rank(timeline, &plan, (int)i);
    }
    hdt_plan_release(&plan);
}

enum hdt_status hdt_laid_out_trace(const struct hdt_laid_out *l, const char *path,
                                   struct hdt_error *err)
{
    struct hdt_timeline timeline;

    HDT_TRY(hdt_timeline_open(&timeline, path, err));
    timeline_names(l, &timeline);
    for (size_t i = 0; i < l->played.result.n_spans; i++) {
        const struct hdt_sim_span *span = &l->played.result.spans[i];
        struct hdt_timeline_op op = {.kind = span->op.kind,
                                     .rank = span->rank,
                                     .stage = span->op.stage,
                                     .mb = span->op.mb,
                                     .step = span->step,
                                     .start_us = 1e6 * span->start_s,
                                     .dur_us = 1e6 * (span->end_s - span->start_s)};

        op.arrived_us = span->kind == HDT_SIM_RECV ? 1e6 * span->arrive_s : 0;
        hdt_timeline_add_op(&timeline, &op);
    }
    return hdt_timeline_close(&timeline, err);
}

static void rank_name(void *ctx, int rank, char *text, size_t cap)
{
    const struct hdt_laid_out *l = ctx;
    char nodes[2 * HDT_NAME_CAP], cut[32];

    hdt_laid_out_nodes(l, (size_t)rank, nodes, sizeof(nodes));
    snprintf(text, cap, "%d %s.%lld", rank, hdt_human_cut(nodes, 14, cut, sizeof(cut)),
             (long long)l->files.groups[rank].node);
}

enum hdt_status hdt_laid_out_svg(const struct hdt_laid_out *l, const char *path,
                                 struct hdt_error *err)
{
    char title[200];
    struct hdt_sim_chart chart = {.title = title,
                                  .rank_name = rank_name,
                                  .ctx = (void *)l,
                                  .to_s = l->played.result.makespan_s,
                                  .path = &l->played.path};

    snprintf(title, sizeof(title), "%.90s: %.4g s, %lld micro-batches", l->files.layout.name,
             l->played.result.makespan_s, (long long)l->files.n_micro_batches);
    return hdt_sim_svg_write(&l->played.result, &chart, path, err);
}
