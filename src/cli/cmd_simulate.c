/* SPDX-License-Identifier: Apache-2.0 */
/* hdt simulate: plays a plan or a layout, also with what may go wrong. Asks nobody and changes
 * nothing. */
#include "config.h"

#include "src/cli/cmd.h"
#include "src/cli/laid_out.h"
#include "src/cli/simulated.h"
#include "src/base/buf.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_DEFAULT 3
#define STEPS_MAX     1000

enum simulate_option {
    OPT_JSON = 256,
    OPT_CLUSTER,
    OPT_MODEL,
    OPT_CATALOGUE,
    OPT_TRACE,
    OPT_SVG,
    OPT_SCENARIO,
    OPT_STEPS
};

static const struct argp_option options[] = {
    {"json", OPT_JSON, NULL, 0, "Print the results as JSON", 0},
    {"cluster", OPT_CLUSTER, "FILE", 0,
     "Simulate on the cluster in FILE, not the plan's or layout's own: of a plan the \"cluster\" of "
     "'hdt plan --json', of a layout a cluster file",
     0},
    {"model", OPT_MODEL, "FILE", 0, "Of a layout: this config.json, not its own", 0},
    {"catalogue", OPT_CATALOGUE, "FILE", 0,
     "Of a layout: another catalogue of devices than the installed one", 0},
    {"scenario", OPT_SCENARIO, "SCENARIO", 0,
     "What goes wrong, e.g. straggler:rank=1,factor=2 or outage:link=site-a/site-b,from=1,to=3; "
     "kinds are straggler, outage, slow, loss and jitter; may be given several times",
     0},
    {"steps", OPT_STEPS, "N", 0, "Of a plan: steps to simulate; the first one does not count [3]",
     0},
    {"trace", OPT_TRACE, "FILE", 0,
     "Write the timeline of all steps for chrome://tracing or ui.perfetto.dev", 0},
    {"svg", OPT_SVG, "FILE", 0,
     "Draw the last step, or with a scenario all steps: ranks over time, and the critical path", 0},
    {0},
};

struct simulate_args {
    const char *plan, *trace, *svg;
    struct hdt_layout_instead instead;
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

/* A layout is YAML, a plan JSON; each has options of its own. */
static bool is_layout(const char *path)
{
    size_t len = strlen(path);

    return (len > 5 && strcmp(path + len - 5, ".yaml") == 0) ||
           (len > 4 && strcmp(path + len - 4, ".yml") == 0);
}

static error_t form_check(const struct simulate_args *args, struct argp_state *state)
{
    if (is_layout(args->plan) && args->n_steps > 0) {
        argp_error(state, "--steps is for plans; a layout is simulated for one step");
        return EINVAL;
    }
    if (!is_layout(args->plan) && (args->instead.model || args->instead.catalogue)) {
        argp_error(state, "--model and --catalogue are for layouts (files named .yaml)");
        return EINVAL;
    }
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
        args->instead.cluster = arg;
        return 0;
    case OPT_MODEL:
        args->instead.model = arg;
        return 0;
    case OPT_CATALOGUE:
        args->instead.catalogue = arg;
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
            argp_error(state, "which plan? give its file, as 'hdt plan --json JOB.YAML' prints it, "
                              "or a layout");
            return EINVAL;
        }
        return form_check(args, state);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = options,
    .parser = option_parse,
    .args_doc = "PLAN.JSON|LAYOUT.yaml",
    .doc =
        "Play a plan, or a layout over a cluster that need not exist: how long a step takes, what each rank does with its time, what the links "
        "and the memory are used for, and which ops the step waits for.",
};

/* A table that nobody got is a failure. */
static enum hdt_status stdout_check(struct hdt_error *err)
{
    if (fflush(stdout) != 0 || ferror(stdout)) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot write to standard output");
    }
    return HDT_OK;
}

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
    HDT_TRY(stdout_check(err));
    HDT_TRY(args->trace ? hdt_simulated_trace(s, args->trace, err) : HDT_OK);
    return args->svg ? hdt_simulated_svg(s, args->svg, err) : HDT_OK;
}

static enum hdt_status laid_out_show(const struct hdt_laid_out *l, const struct simulate_args *args,
                                     struct hdt_error *err)
{
    if (args->json) {
        json_t *json = hdt_laid_out_to_json(l);

        json_dumpf(json, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
        putchar('\n');
        json_decref(json);
    } else {
        hdt_laid_out_print(l, stdout);
    }
    HDT_TRY(stdout_check(err));
    HDT_TRY(args->trace ? hdt_laid_out_trace(l, args->trace, err) : HDT_OK);
    return args->svg ? hdt_laid_out_svg(l, args->svg, err) : HDT_OK;
}

/* HDT_EXIT_OK, or HDT_EXIT_USAGE after a message. */
static int scenarios_add(struct hdt_scenario *scenario, const struct simulate_args *args)
{
    struct hdt_error err = {0};

    for (size_t i = 0; i < args->n_scenarios; i++) {
        if (hdt_scenario_add(scenario, args->scenarios[i], &err) != HDT_OK) {
            hdt_cmd_fail(&err);
            return HDT_EXIT_USAGE;
        }
    }
    return HDT_EXIT_OK;
}

static int layout_run(const struct simulate_args *args)
{
    struct hdt_laid_out l;
    struct hdt_error err = {0};
    enum hdt_status status;
    int rc;

    if (hdt_laid_out_load(&l, args->plan, &args->instead, &err) != HDT_OK) {
        return hdt_cmd_fail(&err);
    }
    rc = scenarios_add(&l.scenario, args);
    if (rc == HDT_EXIT_OK) {
        status = hdt_laid_out_run(&l, &err);
        status = status == HDT_OK ? laid_out_show(&l, args, &err) : status;
        rc = status == HDT_OK ? HDT_EXIT_OK : hdt_cmd_fail(&err);
    }
    hdt_laid_out_release(&l);
    return rc;
}

static int plan_run(const struct simulate_args *args)
{
    struct hdt_simulated s;
    struct hdt_error err = {0};
    enum hdt_status status;
    int rc;

    if (hdt_simulated_load(&s, args->plan, args->instead.cluster,
                           args->n_steps > 0 ? args->n_steps : STEPS_DEFAULT, &err) != HDT_OK) {
        return hdt_cmd_fail(&err);
    }
    rc = scenarios_add(&s.scenario, args);
    if (rc == HDT_EXIT_OK) {
        status = hdt_simulated_run(&s, &err);
        status = status == HDT_OK ? simulated_show(&s, args, &err) : status;
        rc = status == HDT_OK ? HDT_EXIT_OK : hdt_cmd_fail(&err);
    }
    hdt_simulated_release(&s);
    return rc;
}

static int simulate_run(int argc, char **argv)
{
    struct simulate_args args = {0};
    int rc;

    hdt_cmd_parse(&argp, argc, argv, &args);
    rc = is_layout(args.plan) ? layout_run(&args) : plan_run(&args);
    free(args.scenarios);
    return rc;
}

const struct hdt_cmd hdt_cmd_simulate = {
    "simulate", "play a plan or layout, also with what may go wrong", simulate_run, &argp, NULL};
