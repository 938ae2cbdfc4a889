/* SPDX-License-Identifier: Apache-2.0 */
/* hdt simulate: plays a plan, also with what may go wrong. Asks nobody and changes nothing. */
#include "config.h"

#include "src/cli/cmd.h"
#include "src/cli/simulated.h"
#include "src/base/buf.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>

#define STEPS_DEFAULT 3
#define STEPS_MAX     1000

enum simulate_option { OPT_JSON = 256, OPT_CLUSTER, OPT_TRACE, OPT_SVG, OPT_SCENARIO, OPT_STEPS };

static const struct argp_option options[] = {
    {"json", OPT_JSON, NULL, 0, "Print the results as JSON", 0},
    {"cluster", OPT_CLUSTER, "FILE", 0,
     "Simulate on the cluster in FILE (the \"cluster\" of 'hdt plan --json'), not the plan's own",
     0},
    {"scenario", OPT_SCENARIO, "SCENARIO", 0,
     "What goes wrong, e.g. straggler:rank=1,factor=2 or outage:link=site-a/site-b,from=1,to=3; "
     "kinds are straggler, outage, slow, loss and jitter; may be given several times",
     0},
    {"steps", OPT_STEPS, "N", 0, "Steps to simulate; the first one does not count [3]", 0},
    {"trace", OPT_TRACE, "FILE", 0,
     "Write the timeline of all steps for chrome://tracing or ui.perfetto.dev", 0},
    {"svg", OPT_SVG, "FILE", 0,
     "Draw the last step, or with a scenario all steps: ranks over time, and the critical path", 0},
    {0},
};

struct simulate_args {
    const char *plan, *cluster, *trace, *svg;
    const char **scenarios;
    size_t n_scenarios;
    int n_steps;
    bool json;
};

static error_t steps_parse(struct simulate_args *args, const char *text, struct argp_state *state)
{
    char *end;
    long n = strtol(text, &end, 10);

    if (*end != '\0' || end == text || n < 2 || n > STEPS_MAX) {
        argp_error(state, "--steps '%s' is not a number from 2 to %d", text, STEPS_MAX);
        return EINVAL;
    }
    args->n_steps = (int)n;
    return 0;
}

static error_t option_parse(int key, char *arg, struct argp_state *state)
{
    struct simulate_args *args = state->input;

    switch (key) {
    case OPT_JSON:
        args->json = true;
        return 0;
    case OPT_CLUSTER:
        args->cluster = arg;
        return 0;
    case OPT_TRACE:
        args->trace = arg;
        return 0;
    case OPT_SVG:
        args->svg = arg;
        return 0;
    case OPT_SCENARIO:
        args->scenarios =
            hdt_realloc(args->scenarios, (args->n_scenarios + 1) * sizeof(args->scenarios[0]));
        args->scenarios[args->n_scenarios++] = arg;
        return 0;
    case OPT_STEPS:
        return steps_parse(args, arg, state);
    case ARGP_KEY_ARG:
        if (args->plan) {
            argp_error(state, "unexpected '%s'", arg);
            return EINVAL;
        }
        args->plan = arg;
        return 0;
    case ARGP_KEY_END:
        if (!args->plan) {
            argp_error(state, "which plan? give its file, as 'hdt plan --json JOB.YAML' prints it");
            return EINVAL;
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = options,
    .parser = option_parse,
    .args_doc = "PLAN.JSON",
    .doc = "Play a plan: how long a step takes, what each rank does with its time, what the links "
           "and the memory are used for, and which ops the step waits for.",
};

static enum hdt_status simulated_show(const struct hdt_simulated *s,
                                      const struct simulate_args *args, struct hdt_error *err)
{
    if (args->json) {
        json_t *json = hdt_simulated_to_json(s);

        json_dumpf(json, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
        putchar('\n');
        json_decref(json);
    } else {
        hdt_simulated_print(s, stdout);
    }
    HDT_TRY(args->trace ? hdt_simulated_trace(s, args->trace, err) : HDT_OK);
    return args->svg ? hdt_simulated_svg(s, args->svg, err) : HDT_OK;
}

static int simulate_run(int argc, char **argv)
{
    struct simulate_args args = {.n_steps = STEPS_DEFAULT};
    struct hdt_simulated s;
    struct hdt_error err = {0};
    enum hdt_status status;
    int rc = HDT_EXIT_OK;

    hdt_cmd_parse(&argp, argc, argv, &args);
    if (hdt_simulated_load(&s, args.plan, args.cluster, args.n_steps, &err) != HDT_OK) {
        free(args.scenarios);
        return hdt_cmd_fail(&err);
    }
    for (size_t i = 0; i < args.n_scenarios && rc == HDT_EXIT_OK; i++) {
        if (hdt_scenario_add(&s.scenario, args.scenarios[i], &err) != HDT_OK) {
            hdt_cmd_fail(&err);
            rc = HDT_EXIT_USAGE;
        }
    }
    if (rc == HDT_EXIT_OK) {
        status = hdt_simulated_run(&s, &err);
        status = status == HDT_OK ? simulated_show(&s, &args, &err) : status;
        rc = status == HDT_OK ? HDT_EXIT_OK : hdt_cmd_fail(&err);
    }
    hdt_simulated_release(&s);
    free(args.scenarios);
    return rc;
}

const struct hdt_cmd hdt_cmd_simulate = {"simulate", "play a plan, also with what may go wrong",
                                         simulate_run, &argp, NULL};
