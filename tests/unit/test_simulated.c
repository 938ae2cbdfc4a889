/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* A plan from a file, simulated: beside the planner's own times, and with what goes wrong. */
#include "src/cli/simulated.h"
#include "src/core/timeline.h"
#include "tests/support/plan_cluster.h"
#include "tests/support/scratch.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define EPS 1e-9

static struct hdt_planned planned;
static const char *plan_path;

/* Two sites a fast link apart, as `hdt plan --json` would write them. */
static void setup(void)
{
    static const double speeds[] = {1, 1};
    static const char job[] = "model: model.json\n"
                              "data: {train: train.bin, site: a}\n"
                              "steps: 10\n"
                              "batch: {micro_batch: 8, n_micro_batches: 16, seq_len: 128}\n"
                              "plan: {min_stages: 2}\n";
    struct hdt_cost_inputs in = {&planned.job, &planned.model, &planned.cluster};
    struct hdt_error err = {0};
    json_t *json;
    char *text;

    hdt_scratch_init();
    cr_assert_eq(
        hdt_conf_parse(&hdt_job_schema, job, strlen(job), "job.yaml", &planned.job, NULL, &err),
        HDT_OK, "%s", err.msg);
    planned.model = hdt_test_model;
    planned.model.rope_theta = 10000;
    planned.model.rms_norm_eps = 1e-5;
    planned.model.initializer_range = 0.02;
    hdt_test_cluster(&planned.cluster, 2, speeds, 1e8, 0.001);
    cr_assert_eq(hdt_search_plan(&in, &planned.result, &err), HDT_OK, "%s", err.msg);
    json = json_pack("{s:o, s:o, s:o, s:o}", "plan", hdt_plan_to_json(&planned.result.plan), "job",
                     hdt_conf_to_json(&hdt_job_schema, &planned.job), "model",
                     hdt_model_to_json(&planned.model), "cluster",
                     hdt_cluster_to_json(&planned.cluster));
    text = json_dumps(json, JSON_REAL_PRECISION(17));
    plan_path = hdt_scratch_write("plan.json", text, strlen(text));
    free(text);
    json_decref(json);
}

static void teardown(void)
{
    hdt_search_result_release(&planned.result);
    hdt_cluster_release(&planned.cluster);
    hdt_conf_release(&hdt_job_schema, &planned.job);
    hdt_scratch_release();
}

TestSuite(simulated, .init = setup, .fini = teardown);

static void run(struct hdt_simulated *s, const char *scenario)
{
    struct hdt_error err = {0};

    cr_assert_eq(hdt_simulated_load(s, plan_path, NULL, 3, &err), HDT_OK, "%s %s", err.msg,
                 err.hint);
    if (scenario) {
        cr_assert_eq(hdt_scenario_add(&s->scenario, scenario, &err), HDT_OK, "%s", err.msg);
    }
    cr_assert_eq(hdt_simulated_run(s, &err), HDT_OK, "%s", err.msg);
}

/* The planner looks at the second of two steps at the root, the simulation at the last ends of all
 * but the first: steps of a steady pipeline are equal. */
Test(simulated, takes_the_planned_time_and_memory)
{
    struct hdt_simulated s;

    run(&s, NULL);
    cr_expect_float_eq(s.played.result.step_s, planned.result.cost.step_s,
                       1e-6 * planned.result.cost.step_s, "%.9g s, planned %.9g s",
                       s.played.result.step_s, planned.result.cost.step_s);
    cr_expect_float_eq(s.played.calm_step_s, s.played.result.step_s, EPS);
    for (size_t i = 0; i < s.played.result.n_ranks; i++) {
        const struct hdt_plan_stage *stage = &planned.result.plan.stages[i];

        /* 1F1B holds a micro-batch more than its warm-up. The plan adds frames to that. */
        int64_t in_flight = stage->warmup + 1 < 16 ? stage->warmup + 1 : 16;
        const struct hdt_cost_memory memory = {
            .begin = stage->unit_begin, .end = stage->unit_end, .n_slots = in_flight};
        double want = (double)hdt_cost_stage_memory(&s.in, &memory);

        cr_expect_float_eq((double)s.played.result.ranks[stage->rank].mem_peak, want, 64);
        cr_expect_leq(want, (double)stage->memory_bytes);
    }
    hdt_simulated_release(&s);
}

/* A rank that takes twice as long for all it does makes a step at most twice as long, and longer by
 * at least what it computes now. */
Test(simulated, a_straggler_and_an_outage_cost_their_time)
{
    struct hdt_simulated calm, s;
    double busy_s;

    run(&calm, NULL);
    busy_s = calm.played.result.ranks[1].use_s[HDT_SIM_BUSY] / 2;
    run(&s, "straggler:rank=1,factor=2");
    cr_expect_float_eq(s.played.calm_step_s, calm.played.result.step_s, EPS);
    cr_expect_geq(s.played.result.step_s, 2 * busy_s);
    cr_expect_leq(s.played.result.step_s, 2 * calm.played.result.step_s + EPS);
    hdt_simulated_release(&s);
    /* Nothing can be done for longer than the pipeline has work: a second without the link costs
     * most of that second, and no more than it. */
    run(&s, "outage:link=a/b,from=0.2,to=5.2");
    cr_expect_geq(s.played.result.makespan_s,
                  calm.played.result.makespan_s + 5 - calm.played.result.step_s);
    cr_expect_leq(s.played.result.makespan_s, calm.played.result.makespan_s + 5 + EPS);
    hdt_simulated_release(&s);
    hdt_simulated_release(&calm);
}

Test(simulated, its_trace_is_read_back)
{
    const char *path = hdt_scratch_path("trace.json");
    struct hdt_timeline_op *ops;
    struct hdt_simulated s;
    struct hdt_error err = {0};
    size_t n_ops;

    run(&s, NULL);
    cr_assert_eq(hdt_simulated_trace(&s, path, &err), HDT_OK, "%s", err.msg);
    cr_assert_eq(hdt_timeline_read(path, &planned.result.plan, &ops, &n_ops, &err), HDT_OK, "%s",
                 err.msg);
    cr_expect_eq(n_ops, s.played.result.n_spans);
    for (size_t i = 0; i < n_ops; i++) {
        cr_expect_float_eq(ops[i].start_us, 1e6 * s.played.result.spans[i].start_s, 1e-3);
        cr_expect_eq(ops[i].step, s.played.result.spans[i].step);
    }
    free(ops);
    hdt_simulated_release(&s);
}

static size_t count(const char *text, const char *word)
{
    size_t n = 0;

    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word)) {
        n++;
    }
    return n;
}

/* 16 micro-batches on each of two rows, forward and backward, each with room for its number. */
Test(simulated, its_chart_shows_each_micro_batch)
{
    const char *path = hdt_scratch_path("chart.svg");
    struct hdt_simulated s;
    struct hdt_error err = {0};
    char *text, number[32];
    size_t len;

    run(&s, NULL);
    cr_assert_eq(hdt_simulated_svg(&s, path, &err), HDT_OK, "%s", err.msg);
    text = hdt_scratch_read(path, &len);
    cr_assert_not_null(text);
    cr_expect_eq(count(text, "<svg "), 1);
    cr_expect_eq(count(text, "</svg>"), 1);
    cr_expect_eq(count(text, "<text "), count(text, "</text>"));
    for (int mb = 0; mb < 16; mb++) {
        snprintf(number, sizeof(number), ">%d</text>", mb);
        cr_expect_geq(count(text, number), 4, "micro-batch %d", mb);
    }
    cr_expect_eq(count(text, "time in ms"), 1);
    free(text);
    hdt_simulated_release(&s);
}

static void refused(const char *name, const char *text, enum hdt_status status, const char *why)
{
    struct hdt_simulated s;
    struct hdt_error err = {0};
    const char *path = text ? hdt_scratch_write(name, text, strlen(text)) : hdt_scratch_path(name);

    cr_expect_eq(hdt_simulated_load(&s, path, NULL, 3, &err), status, "%s", name);
    cr_expect(strstr(err.msg, why), "'%s' is not in '%s'", why, err.msg);
    cr_expect(strstr(err.msg, name) || strstr(err.where, name), "'%s' at '%s' names no file",
              err.msg, err.where);
    cr_expect(err.hint[0], "'%s' has no remedy", err.msg);
}

Test(simulated, files_that_are_no_plans)
{
    refused("nowhere.json", NULL, HDT_ENOENT, "cannot read the plan");
    refused("broken.json", "{\"plan\":\n\n{", HDT_EINVAL, "cannot read the plan");
    refused("other.json", "{\"cluster\": {}}", HDT_EINVAL, "it is no plan");
    refused("list.json", "[]", HDT_EINVAL, "it is no plan");
}
