/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

/* Scenarios as they are written on the command line. */
#include "src/cli/scenario.h"
#include "tests/support/sim_case.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

static const struct hdt_cost_link links[] = {{.from = "a", .to = "b"}, {.from = "b", .to = "a"}};

static struct hdt_scenario begin(void)
{
    return (struct hdt_scenario){.n_all_ranks = 3, .all_links = links, .n_all_links = 2};
}

Test(scenario, each_kind_is_understood)
{
    struct hdt_scenario s = begin();
    struct hdt_error err = {0};
    struct hdt_sim_setup setup = {0};
    static const char *const texts[] = {
        "straggler:rank=2,factor=4,from=1.5,to=3",
        "outage:link=b/a,to=2",
        "slow:link=a/b,factor=10",
        "loss:link=a/b,share=0.25,from=7",
        "jitter:sigma=0.1,seed=42",
    };

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        cr_assert_eq(hdt_scenario_add(&s, texts[i], &err), HDT_OK, "%s", err.msg);
    }
    hdt_scenario_apply(&s, &setup);
    cr_assert_eq(setup.n_slow_ranks, 1);
    cr_expect_eq(setup.slow_ranks[0].idx, 2);
    cr_expect_float_eq(setup.slow_ranks[0].speed, 0.25, 1e-12);
    cr_expect_float_eq(setup.slow_ranks[0].from_s, 1.5, 1e-12);
    cr_expect_float_eq(setup.slow_ranks[0].to_s, 3, 1e-12);
    cr_assert_eq(setup.n_slow_links, 3);
    cr_expect_eq(setup.slow_links[0].idx, 1);
    cr_expect_eq(setup.slow_links[0].speed, 0);
    cr_expect_eq(setup.slow_links[0].from_s, 0);
    cr_expect_float_eq(setup.slow_links[1].speed, 0.1, 1e-12);
    cr_expect(isinf(setup.slow_links[1].to_s));
    cr_expect_float_eq(setup.slow_links[2].speed, 0.75, 1e-12);
    cr_expect_eq(setup.slow_links[2].from_s, 7);
    cr_expect_float_eq(setup.jitter, 0.1, 1e-12);
    cr_expect_eq(setup.seed, 42);
    hdt_scenario_release(&s);
}

static void refused(const char *text, const char *why, const char *remedy)
{
    struct hdt_scenario s = begin();
    struct hdt_error err = {0};

    cr_expect_eq(hdt_scenario_add(&s, text, &err), HDT_EINVAL, "'%s' is taken", text);
    cr_expect(strstr(err.msg, why), "'%s': '%s' is not in '%s'", text, why, err.msg);
    cr_expect(strstr(err.msg, text) || strlen(text) > 100, "'%s' does not name '%s'", err.msg,
              text);
    cr_expect(strstr(err.hint, remedy), "'%s': '%s' is not in '%s'", text, remedy, err.hint);
    hdt_scenario_release(&s);
}

Test(scenario, others_are_refused_with_a_remedy)
{
    refused("storm:rank=1", "no kind 'storm'", "kinds are straggler, outage");
    refused("", "there is no kind", "kinds are straggler, outage");
    refused("outage", "does not say 'link'", "outage:link=site-a/site-b,from=1,to=3");
    refused("outage:link=a/b", "does not say 'to'", "outage:link=");
    refused("outage:link=a/c,to=3", "uses no link 'a/c'", "it uses a/b, b/a");
    refused("outage:link=a/b,to=3,factor=2", "no setting 'factor'", "outage:link=");
    refused("outage:link=a/b,to=3,to=4", "says twice 'to'", "");
    refused("outage:link=a/b,from=3,to=3", "ends before it begins", "");
    refused("straggler:rank=3,factor=2", "no such rank", "ranks are 0 to 2");
    refused("straggler:rank=1.5,factor=2", "no such rank", "ranks are 0 to 2");
    refused("straggler:rank=1,factor=0", "factor is not above 0", "");
    refused("straggler:rank=1,factor", "no setting 'factor'", "for example 'straggler:");
    refused("slow:link=a/b,factor=-1", "no number from 0 to 1e9: '-1'", "");
    refused("slow:link=a/b,factor=nan", "no number from 0 to 1e9: 'nan'", "");
    refused("slow:link=a/b,factor=1e999", "no number from 0 to 1e9: '1e999'", "");
    refused("slow:link=a/b,factor=2x", "no number from 0 to 1e9: '2x'", "");
    refused("outage:link=a/b,to=1e10", "no number from 0 to 1e9: '1e10'", "");
    refused("loss:link=a/b,share=1", "share is not below 1", "");
    refused("jitter:sigma=3", "sigma is above 2", "");
    refused("jitter:seed=3", "does not say 'sigma'", "jitter:sigma=");
}

/* Tasks that were asked for. */
static int n_asked;

static bool task_count(void *ctx, int rank, int64_t idx, struct hdt_sim_task *task)
{
    bool is_there = hdt_sim_list_task(ctx, rank, idx, task);

    n_asked += is_there;
    return is_there;
}

/* Three computations of a second: in one run without a scenario, and in two with one. */
Test(scenario, is_played_beside_a_run_without_it)
{
    struct sim_case *c = hdt_sim_case_new(3);
    struct hdt_scenario s = begin();
    struct hdt_played played = {0};
    struct hdt_error err = {0};

    for (int i = 0; i < 3; i++) {
        hdt_sim_case_compute(c, i, 1)->flags = HDT_SIM_STEP_END;
    }
    c->setup.task = task_count;
    cr_expect(hdt_scenario_is_empty(&s));
    cr_assert_eq(hdt_scenario_play(&s, &c->setup, &played, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(n_asked, 3, "%d tasks", n_asked);
    cr_expect_eq(played.result.n_spans, 3);
    cr_expect_float_eq(played.calm_makespan_s, 1, 1e-12);
    cr_expect_float_eq(played.calm_step_s, 1, 1e-12);
    hdt_played_release(&played);

    memset(&played, 0, sizeof(played));
    cr_assert_eq(hdt_scenario_add(&s, "straggler:rank=1,factor=3", &err), HDT_OK, "%s", err.msg);
    cr_expect_not(hdt_scenario_is_empty(&s));
    cr_assert_eq(hdt_scenario_play(&s, &c->setup, &played, &err), HDT_OK, "%s", err.msg);
    cr_expect_eq(n_asked, 3 + 2 * 3, "%d tasks", n_asked);
    cr_expect_float_eq(played.result.makespan_s, 3, 1e-12);
    cr_expect_float_eq(played.calm_makespan_s, 1, 1e-12);
    hdt_played_release(&played);
    hdt_scenario_release(&s);
    hdt_sim_case_free(c);
}
