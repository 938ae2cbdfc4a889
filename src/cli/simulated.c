/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/simulated.h"
#include "src/core/timeline.h"
#include "src/sim/sim_svg.h"

#include <math.h>
#include <string.h>

/* Each is kept, in 120 bytes. */
#define TASKS_MAX INT64_C(20000000)

static enum hdt_status plan_take(struct hdt_simulated *s, const json_t *json, const char *cluster,
                                 struct hdt_error *err)
{
    struct hdt_planned *p = &s->planned;

    HDT_TRY(hdt_planned_from_json(p, json, err));
    if (cluster) {
        hdt_cluster_release(&p->cluster);
        json_decref(p->cluster_json);
        p->cluster_json = NULL;
        HDT_TRY(hdt_planned_cluster_file(p, cluster, err));
    } else if (p->cluster.n_sites == 0) {
        hdt_error_set(err, HDT_ENOENT, "the plan does not say what cluster it is for");
        hdt_error_hint(err, "give one with --cluster, as 'hdt plan --json' prints it");
        return HDT_ENOENT;
    }
    s->in = (struct hdt_cost_inputs){&p->job, &p->model, &p->cluster};
    return hdt_plan_sim_open(&s->in, &p->result.plan, s->n_steps, &s->sim, err);
}

enum hdt_status hdt_simulated_load(struct hdt_simulated *s, const char *path, const char *cluster,
                                   int n_steps, struct hdt_error *err)
{
    json_error_t json_err;
    json_t *json;
    enum hdt_status status;

    memset(s, 0, sizeof(*s));
    s->n_steps = n_steps;
    json = json_load_file(path, JSON_REJECT_DUPLICATES, &json_err);
    if (!json) {
        status =
            json_error_code(&json_err) == json_error_cannot_open_file ? HDT_ENOENT : HDT_EINVAL;
        hdt_error_set(err, status, "cannot read the plan: %s", json_err.text);
        if (status == HDT_EINVAL) {
            hdt_error_where(err, "%s:%d", path, json_err.line);
        }
        hdt_error_hint(err, "'hdt plan --json JOB.YAML' prints one; a run's plan.json is one, too");
        return status;
    }
    status = plan_take(s, json, cluster, err);
    json_decref(json);
    if (status != HDT_OK) {
        if (err && !err->where[0]) {
            hdt_error_where(err, "%s", path);
        }
        hdt_simulated_release(s);
        return status;
    }
    s->scenario.n_all_ranks = s->planned.result.plan.n_ranks;
    s->scenario.all_links = hdt_plan_sim_links(s->sim, &s->scenario.n_all_links);
    return HDT_OK;
}

void hdt_simulated_release(struct hdt_simulated *s)
{
    hdt_played_release(&s->played);
    hdt_scenario_release(&s->scenario);
    hdt_plan_sim_close(s->sim);
    hdt_planned_release(&s->planned);
    memset(s, 0, sizeof(*s));
}

enum hdt_status hdt_simulated_run(struct hdt_simulated *s, struct hdt_error *err)
{
    int64_t n_tasks = hdt_plan_sim_n_tasks(s->sim);

    if (n_tasks > TASKS_MAX) {
        hdt_error_set(err, HDT_EINVAL, "cannot simulate %d steps: %lld tasks are more than %lld",
                      s->n_steps, (long long)n_tasks, (long long)TASKS_MAX);
        hdt_error_hint(err, "take fewer --steps");
        return HDT_EINVAL;
    }
    return hdt_scenario_play(&s->scenario, hdt_plan_sim_setup(s->sim), &s->played, err);
}

/* ---- pictures ---- */

enum hdt_status hdt_simulated_trace(const struct hdt_simulated *s, const char *path,
                                    struct hdt_error *err)
{
    const struct hdt_plan *plan = &s->planned.result.plan;
    struct hdt_timeline timeline;

    HDT_TRY(hdt_timeline_open(&timeline, path, err));
    for (int i = 0; i < (int)plan->n_ranks; i++) {
        hdt_timeline_add_rank(&timeline, plan, i);
    }
    for (size_t i = 0; i < s->played.result.n_spans; i++) {
        const struct hdt_sim_span *span = &s->played.result.spans[i];
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
    const struct hdt_plan_rank *r = &((const struct hdt_plan *)ctx)->ranks[rank];

    snprintf(text, cap, "%d %.14s/%.14s", rank, r->site, r->worker);
}

/* When the first rank begins the step. */
static double step_begin(const struct hdt_sim_result *result, int step)
{
    double begin_s = INFINITY;

    for (size_t i = 0; i < result->n_spans; i++) {
        if (result->spans[i].step == step) {
            begin_s = fmin(begin_s, result->spans[i].start_s);
        }
    }
    return begin_s;
}

enum hdt_status hdt_simulated_svg(const struct hdt_simulated *s, const char *path,
                                  struct hdt_error *err)
{
    bool calm = hdt_scenario_is_empty(&s->scenario);
    char title[160];
    struct hdt_sim_chart chart = {
        .title = title,
        .rank_name = rank_name,
        .ctx = (void *)&s->planned.result.plan,
        .from_s = calm ? step_begin(&s->played.result, s->n_steps - 1) : 0,
        .to_s = s->played.result.makespan_s,
        .path = &s->played.path,
    };

    if (calm) {
        snprintf(title, sizeof(title), "a step, %.4g s, %lld micro-batches",
                 s->played.result.step_s, (long long)s->planned.result.plan.n_micro_batches);
    } else {
        snprintf(title, sizeof(title), "%d steps, %.4g s each; %.4g s without the scenario",
                 s->n_steps, s->played.result.step_s, s->played.calm_step_s);
    }
    return hdt_sim_svg_write(&s->played.result, &chart, path, err);
}
