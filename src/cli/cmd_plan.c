/* SPDX-License-Identifier: Apache-2.0 */
/* hdt plan: what would run where, how fast, and what limits it. Changes nothing. */
#include "config.h"

#include "src/cli/cmd.h"
#include "src/cli/gwoptions.h"
#include "src/cli/planned.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>

enum plan_option { OPT_JSON = 256, OPT_CLUSTER, OPT_TRACE, OPT_CODEC, OPT_REMEASURE };

static const struct argp_option options[] = {
    {"json", OPT_JSON, NULL, 0, "Print the plan as JSON", 0},
    {"cluster", OPT_CLUSTER, "FILE", 0,
     "Plan for the cluster in FILE (the \"cluster\" of --json) instead of asking a gateway", 0},
    {"trace", OPT_TRACE, "FILE", 0,
     "Write the predicted timeline of a step for chrome://tracing or ui.perfetto.dev", 0},
    {"codec", OPT_CODEC, "NAME", 0, "Codec of all edges between sites, in place of the job's", 0},
    {"remeasure", OPT_REMEASURE, NULL, 0, "Measure links again, even when that was done just now",
     0},
    {0},
};

struct plan_args {
    struct hdt_gwclient_conf client;
    struct hdt_planned_overrides overrides;
    const char *job, *cluster, *trace;
    bool json;
};

static error_t option_parse(int key, char *arg, struct argp_state *state)
{
    struct plan_args *args = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &args->client;
        return 0;
    case OPT_JSON:
        args->json = true;
        return 0;
    case OPT_CLUSTER:
        args->cluster = arg;
        return 0;
    case OPT_TRACE:
        args->trace = arg;
        return 0;
    case OPT_CODEC:
        args->overrides.codec = arg;
        return 0;
    case OPT_REMEASURE:
        args->overrides.remeasure = true;
        return 0;
    case ARGP_KEY_ARG:
        if (args->job) {
            argp_error(state, "unexpected '%s'", arg);
            return EINVAL;
        }
        args->job = arg;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "which job? give its file, e.g. job.yaml");
        return EINVAL;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&hdt_gwoptions_argp, 0, NULL, 0}, {0}};
static const struct argp argp = {
    .options = options,
    .parser = option_parse,
    .args_doc = "JOB.YAML",
    .doc = "Say what would run where, how fast, and what limits it. Workers measure their devices "
           "and gateways their links for it; nothing is started.",
    .children = children,
};

static enum hdt_status plan_survey(struct hdt_planned *planned, const struct plan_args *args,
                                   struct hdt_error *err)
{
    struct hdt_gwclient *client;
    enum hdt_status status;

    if (args->cluster) {
        return hdt_planned_cluster_file(planned, args->cluster, err);
    }
    HDT_TRY(hdt_gwclient_open(&args->client, &client, err));
    status = hdt_planned_check_timeout(planned, client, err);
    if (status == HDT_OK) {
        status = hdt_planned_survey(planned, client, &args->overrides, err);
    }
    hdt_gwclient_close(client);
    return status;
}

static void plan_show(const struct hdt_planned *planned, bool as_json)
{
    json_t *json;

    if (!as_json) {
        hdt_planned_print(planned, stdout);
        return;
    }
    json = hdt_planned_to_json(planned);
    json_dumpf(json, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    putchar('\n');
    json_decref(json);
}

static int plan_run(int argc, char **argv)
{
    struct plan_args args = {0};
    struct hdt_planned planned;
    struct hdt_error err = {0};
    enum hdt_status status;

    hdt_cmd_parse(&argp, argc, argv, &args);
    if (hdt_planned_overrides_check(&args.overrides, &err) != HDT_OK) {
        hdt_cmd_fail(&err);
        return HDT_EXIT_USAGE;
    }
    if (hdt_planned_load(&planned, args.job, &args.overrides, &err) != HDT_OK) {
        return hdt_cmd_fail(&err);
    }
    status = plan_survey(&planned, &args, &err);
    if (status == HDT_OK) {
        status = hdt_planned_search(&planned, &err);
    }
    if (status == HDT_OK) {
        plan_show(&planned, args.json);
        status = args.trace ? hdt_planned_trace(&planned, args.trace, &err) : HDT_OK;
    }
    hdt_planned_release(&planned);
    return status == HDT_OK ? HDT_EXIT_OK : hdt_cmd_fail(&err);
}

const struct hdt_cmd hdt_cmd_plan = {"plan", "what would run where, how fast, what limits it",
                                     plan_run, &argp, NULL};
