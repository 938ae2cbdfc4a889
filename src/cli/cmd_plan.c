/* SPDX-License-Identifier: Apache-2.0 */
/* hdt plan: what would run where, how fast, and what limits it. Changes nothing. */
#include "config.h"

#include "src/cli/cmd.h"
#include "src/cli/explain.h"
#include "src/cli/gwoptions.h"
#include "src/cli/layout_plan.h"
#include "src/cli/planned.h"
#include "src/cli/validated.h"
#include "src/base/buf.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STATUS_TIMEOUT_MS 5000

enum plan_option {
    OPT_JSON = 256,
    OPT_CLUSTER,
    OPT_TRACE,
    OPT_CODEC,
    OPT_SCHEDULE,
    OPT_REMEASURE,
    OPT_VALIDATE,
    OPT_WRITE_PROFILES,
    OPT_EXPLAIN
};

static const struct argp_option options[] = {
    {"json", OPT_JSON, NULL, 0, "Print the plan as JSON", 0},
    {"cluster", OPT_CLUSTER, "FILE", 0,
     "Plan for the cluster in FILE: of a job the \"cluster\" of --json, instead of asking a gateway; "
     "of a layout a cluster file, not its own",
     0},
    {"trace", OPT_TRACE, "FILE", 0,
     "Write the predicted timeline of a step for chrome://tracing or ui.perfetto.dev", 0},
    {"codec", OPT_CODEC, "NAME", 0,
     "Codec of all edges between sites, in place of the job's; of a layout those that it may have, as "
     "none,int8",
     0},
    {"schedule", OPT_SCHEDULE, "NAME", 0, "Order of the work in a step, in place of the job's", 0},
    {"remeasure", OPT_REMEASURE, NULL, 0, "Measure links again, even when that was done just now",
     0},
    {"explain", OPT_EXPLAIN, NULL, 0, "Say why the plan is as it is", 0},
    {"validate", OPT_VALIDATE, "RUN", 0,
     "Compare a run with its plan, op by op: RUN is its folder, or its number at the gateway", 0},
    {"write-profiles", OPT_WRITE_PROFILES, "DIR", 0,
     "With --validate: write the workers' profiles, corrected by what the run measured, and the "
     "cluster with them",
     0},
    {0},
};

struct plan_args {
    struct hdt_layout_plan_args layout;
    struct hdt_gwclient_conf client;
    struct hdt_planned_overrides overrides;
    const char *job, *cluster, *trace, *run, *profiles;
    bool json, explain;
};

static error_t args_check(struct plan_args *args, struct argp_state *state)
{
    bool is_layout = args->job && hdt_layout_plan_is_for(args->job);

    if (!args->job == !args->run) {
        argp_error(state, args->job ? "--validate takes a run, not a job file"
                                    : "which job? give its file, e.g. job.yaml, or a layout");
    } else if (args->profiles && !args->run) {
        argp_error(state, "--write-profiles belongs to --validate: it writes what a run says");
    } else if (args->layout.given && !is_layout && (!args->job || access(args->job, R_OK) == 0)) {
        argp_error(state, "--%s is for layouts (files that name a 'cluster:')", args->layout.given);
    } else if (is_layout && args->overrides.remeasure) {
        argp_error(state, "--remeasure is for jobs: a layout's cluster is not measured");
    } else if (args->layout.output && args->layout.what_if.n > 0) {
        argp_error(state, "--output writes a plan for a cluster that there is: change its file "
                          "instead of --what-if");
    } else if (args->layout.steps_left > 0 && !args->layout.current) {
        argp_error(state, "--steps-left belongs to --current: it is what moving has to pay in");
    }
    if (is_layout) {
        args->layout.layout = args->job;
        args->layout.instead.cluster = args->cluster;
        args->layout.trace = args->trace;
        args->layout.schedule = args->overrides.schedule;
        args->layout.codec = args->overrides.codec;
        args->layout.json = args->json;
        args->layout.explain = args->explain;
    }
    return 0;
}

static error_t option_parse(int key, char *arg, struct argp_state *state)
{
    struct plan_args *args = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &args->client;
        state->child_inputs[1] = &args->layout;
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
    case OPT_SCHEDULE:
        args->overrides.schedule = arg;
        return 0;
    case OPT_REMEASURE:
        args->overrides.remeasure = true;
        return 0;
    case OPT_EXPLAIN:
        args->explain = true;
        return 0;
    case OPT_VALIDATE:
        args->run = arg;
        return 0;
    case OPT_WRITE_PROFILES:
        args->profiles = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (hdt_layout_plan_args_take(&args->layout, arg)) {
            return 0;
        }
        if (args->job) {
            argp_error(state, "unexpected '%s'", arg);
            return EINVAL;
        }
        args->job = arg;
        return 0;
    case ARGP_KEY_END:
        return args_check(args, state);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {
    {&hdt_gwoptions_argp, 0, NULL, 0}, {&hdt_layout_plan_argp, 0, NULL, 0}, {0}};
static const struct argp argp = {
    .options = options,
    .parser = option_parse,
    .args_doc = "JOB.YAML\nLAYOUT.yaml\n--validate=RUN",
    .doc =
        "Say what would run where, how fast, and what limits it. Of a job: workers measure their "
        "devices and gateways their links for it; nothing is started. Of a layout, which names a "
        "cluster that need not exist: the plan with the most tokens a second that fits.",
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

static void json_show(json_t *json)
{
    json_dumpf(json, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    putchar('\n');
    json_decref(json);
}

static void explanation_print(json_t *lines)
{
    json_t *line;
    size_t i;

    putchar('\n');
    json_array_foreach(lines, i, line)
    {
        printf("- %s\n", json_string_value(line));
    }
    json_decref(lines);
}

static void plan_show(const struct hdt_planned *planned, const struct plan_args *args)
{
    if (args->json) {
        json_t *json = hdt_planned_to_json(planned);

        if (args->explain) {
            json_object_set_new(json, "explain", hdt_explain(planned));
        }
        json_show(json);
        return;
    }
    hdt_planned_print(planned, stdout);
    if (args->explain) {
        explanation_print(hdt_explain(planned));
    }
}

/* ---- --validate ---- */

/* The folder of a job by its number, from the gateway's status. */
static enum hdt_status run_dir_ask(const struct plan_args *args, long long number, char **dir,
                                   struct hdt_error *err)
{
    struct hdt_gwclient_request request = {
        .type = "status", .expect = "status.is", .timeout_ms = STATUS_TIMEOUT_MS};
    struct hdt_gwclient *client;
    enum hdt_status status;
    json_t *body, *job;
    size_t i;

    HDT_TRY(hdt_gwclient_open(&args->client, &client, err));
    status = hdt_gwclient_ask(client, &request, &body, err);
    hdt_gwclient_close(client);
    HDT_TRY(status);
    *dir = NULL;
    json_array_foreach(json_object_get(body, "jobs"), i, job)
    {
        const char *path = json_string_value(json_object_get(job, "run_dir"));

        if (path && json_integer_value(json_object_get(job, "number")) == number) {
            free(*dir);
            *dir = hdt_strdup(path);
        }
    }
    json_decref(body);
    if (!*dir) {
        hdt_error_set(err, HDT_ENOENT, "the gateway knows no job %lld", number);
        hdt_error_hint(err,
                       "'hdt status' lists jobs; of an older one give the run's folder: "
                       "state_dir/jobs/%lld-NAME of the gateway that coordinated it",
                       number);
        return HDT_ENOENT;
    }
    return HDT_OK;
}

static enum hdt_status run_find(const struct plan_args *args, char **dir, struct hdt_error *err)
{
    if (strspn(args->run, "0123456789") != strlen(args->run) || strlen(args->run) > 15) {
        *dir = hdt_strdup(args->run);
        return HDT_OK;
    }
    return run_dir_ask(args, strtoll(args->run, NULL, 10), dir, err);
}

static enum hdt_status profiles_write(const struct hdt_validated *v, const struct plan_args *args,
                                      struct hdt_error *err)
{
    size_t n;

    HDT_TRY(hdt_validated_write_profiles(v, args->profiles, &n, err));
    if (!args->json) {
        printf("profiles   %zu of %zu ranks in %s: hdt plan --cluster %s/cluster.json JOB.yaml\n",
               n, v->planned.result.plan.n_ranks, args->profiles, args->profiles);
    }
    return HDT_OK;
}

static enum hdt_status validate(const struct plan_args *args, struct hdt_error *err)
{
    struct hdt_validated v;
    enum hdt_status status;
    char *dir;

    HDT_TRY(run_find(args, &dir, err));
    status = hdt_validated_load(&v, dir, err);
    free(dir);
    HDT_TRY(status);
    if (args->json) {
        json_show(hdt_validated_to_json(&v));
    } else {
        hdt_validated_print(&v, stdout);
    }
    status = args->trace ? hdt_validated_trace(&v, args->trace, err) : HDT_OK;
    if (status == HDT_OK && args->profiles) {
        status = profiles_write(&v, args, err);
    }
    hdt_validated_release(&v);
    return status;
}

/* ---- of a layout ---- */

static enum hdt_status layout_show(struct hdt_layout_planned *p, struct hdt_error *err)
{
    const struct hdt_layout_plan_args *args = p->args;
    json_t *lines = NULL, *json;

    if (args->explain || args->trace || args->svg) {
        HDT_TRY(hdt_laid_out_run(&p->laid, err));
    }
    HDT_TRY(args->explain ? hdt_layout_explain(p, &lines, err) : HDT_OK);
    if (args->json) {
        json = hdt_layout_planned_json(p);
        if (lines) {
            json_object_set_new(json, "explain", lines);
        }
        json_show(json);
    } else {
        hdt_layout_planned_print(p, stdout);
        if (lines) {
            explanation_print(lines);
        }
    }
    if (fflush(stdout) != 0 || ferror(stdout)) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot write to standard output");
    }
    HDT_TRY(args->output ? hdt_layout_planned_write(p, args->output, err) : HDT_OK);
    HDT_TRY(args->trace ? hdt_laid_out_trace(&p->laid, args->trace, err) : HDT_OK);
    return args->svg ? hdt_laid_out_svg(&p->laid, args->svg, err) : HDT_OK;
}

static enum hdt_status layout_run(const struct hdt_layout_plan_args *args, struct hdt_error *err)
{
    struct hdt_layout_planned planned;
    enum hdt_status status = hdt_layout_plan(&planned, args, err);

    if (status == HDT_OK) {
        status = layout_show(&planned, err);
    }
    hdt_layout_planned_release(&planned);
    return status;
}

/* ---- all ---- */

static enum hdt_status job_run(const struct plan_args *args, struct hdt_error *err)
{
    struct hdt_planned planned;
    enum hdt_status status;

    HDT_TRY(hdt_planned_load(&planned, args->job, &args->overrides, err));
    status = plan_survey(&planned, args, err);
    if (status == HDT_OK) {
        status = hdt_planned_search(&planned, err);
    }
    if (status == HDT_OK) {
        plan_show(&planned, args);
        status = args->trace ? hdt_planned_trace(&planned, args->trace, err) : HDT_OK;
    }
    hdt_planned_release(&planned);
    return status;
}

static int plan_run(int argc, char **argv)
{
    struct plan_args args = {0};
    struct hdt_error err = {0};
    enum hdt_status status;

    hdt_cmd_parse(&argp, argc, argv, &args);
    if (args.layout.layout) {
        status = layout_run(&args.layout, &err);
    } else if (hdt_planned_overrides_check(&args.overrides, &err) != HDT_OK) {
        hdt_cmd_fail(&err);
        return HDT_EXIT_USAGE;
    } else {
        status = args.run ? validate(&args, &err) : job_run(&args, &err);
    }
    hdt_layout_plan_args_release(&args.layout);
    return status == HDT_OK ? HDT_EXIT_OK : hdt_cmd_fail(&err);
}

const struct hdt_cmd hdt_cmd_plan = {"plan", "what would run where, how fast, what limits it",
                                     plan_run, &argp, NULL};
