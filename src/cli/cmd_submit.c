/* SPDX-License-Identifier: Apache-2.0 */
/* hdt submit: plan a job, start it, follow it. */
#include "config.h"

#include "src/cli/cmd.h"
#include "src/cli/follow.h"
#include "src/cli/gwoptions.h"
#include "src/cli/human.h"
#include "src/cli/planned.h"
#include "src/cli/speed.h"
#include "src/base/buf.h"
#include "src/core/msg.h"

#include <argp.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum submit_option {
    OPT_RESUME = 256,
    OPT_DETACH,
    OPT_JSON,
    OPT_STEPS,
    OPT_CODEC,
    OPT_SCHEDULE,
    OPT_VERBOSE,
    OPT_CATALOGUE
};

static const struct argp_option options[] = {
    {"resume", OPT_RESUME, "DIR", 0,
     "Go on from this checkpoint, a folder on the machine that writes the job's checkpoints (a "
     "relative one is looked for in its worker's data_dir); any number of stages made it",
     0},
    {"detach", OPT_DETACH, NULL, 0, "Start the job and return; 'hdt status' shows it", 0},
    {"json", OPT_JSON, "FILE", 0, "Write the results of the run to FILE", 0},
    {"steps", OPT_STEPS, "N", 0, "Steps, in place of the job's", 0},
    {"codec", OPT_CODEC, "NAME", 0, "Codec of all edges between sites, in place of the job's", 0},
    {"schedule", OPT_SCHEDULE, "NAME", 0, "Order of the work in a step, in place of the job's", 0},
    {"verbose", OPT_VERBOSE, NULL, 0,
     "A line for each step, also where the output is no terminal (default: of the first 1000, then "
     "one in 10 seconds)",
     0},
    {"catalogue", OPT_CATALOGUE, "FILE", 0,
     "Peaks of devices are of this catalogue, not of the installed one", 0},
    {0},
};

struct submit_args {
    struct hdt_gwclient_conf client;
    struct hdt_planned_overrides overrides;
    const char *job, *resume, *json, *catalogue;
    bool detach, verbose;
    struct hdt_devices devices; /* none, when no catalogue is installed */
};

static error_t option_parse(int key, char *arg, struct argp_state *state)
{
    struct submit_args *args = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &args->client;
        return 0;
    case OPT_RESUME:
        args->resume = arg;
        return 0;
    case OPT_DETACH:
        args->detach = true;
        return 0;
    case OPT_JSON:
        args->json = arg;
        return 0;
    case OPT_STEPS:
        args->overrides.steps = arg;
        return 0;
    case OPT_CODEC:
        args->overrides.codec = arg;
        return 0;
    case OPT_SCHEDULE:
        args->overrides.schedule = arg;
        return 0;
    case OPT_CATALOGUE:
        args->catalogue = arg;
        return 0;
    case OPT_VERBOSE:
        args->verbose = true;
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
    .doc = "Plan a training job, start it and follow it to its end. Ctrl-C stops the job after the "
           "step in work, with a checkpoint; a second Ctrl-C does not wait for that.",
    .children = children,
};

/* ---- results ---- */

/* The slowest of the links that the plan uses between sites, and the longest round trip. */
static json_t *wan_json(const struct hdt_planned *p)
{
    double rate = 0, rtt_s = 0;

    for (size_t i = 0; i < p->result.cost.n_links; i++) {
        const struct hdt_cluster_link *link = hdt_cluster_find_link(
            &p->cluster, p->result.cost.links[i].from, p->result.cost.links[i].to);

        if (link) {
            rate = rate == 0 || link->rate_bytes_per_s < rate ? link->rate_bytes_per_s : rate;
            rtt_s = fmax(rtt_s, link->rtt_s);
        }
    }
    return json_pack("{s:o, s:o, s:n}", "rate_bits_per_s",
                     rate > 0 ? json_real(8 * rate) : json_null(), "rtt_ms",
                     rate > 0 ? json_real(1e3 * rtt_s) : json_null(), "loss");
}

static json_t *codec_json(const struct hdt_planned *p)
{
    const struct hdt_plan *plan = &p->result.plan;
    char codec[HDT_CODEC_SPEC_TEXT];

    for (size_t i = 0; i < plan->n_flows; i++) {
        const struct hdt_plan_flow *f = &plan->flows[i];

        if (f->kind == HDT_FLOW_ACTIVATION &&
            strcmp(plan->ranks[f->src_rank].site, plan->ranks[f->dst_rank].site) != 0) {
            return json_string(hdt_codec_spec_format(&f->codec, codec));
        }
    }
    return json_string("none");
}

static json_int_t n_sites_of(const struct hdt_plan *plan)
{
    json_int_t n = 0;

    for (size_t i = 0; i < plan->n_ranks; i++) {
        bool first = true;

        for (size_t j = 0; j < i; j++) {
            first = first && strcmp(plan->ranks[i].site, plan->ranks[j].site) != 0;
        }
        n += first;
    }
    return n;
}

static json_t *real_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *done_get(const struct hdt_follow *f, const char *key)
{
    json_t *value = json_object_get(f->done, key);

    return value ? json_incref(value) : json_null();
}

static json_int_t n_restarts(const struct hdt_follow *f)
{
    return f->epoch > 1 ? f->epoch - 1 : 0;
}

/* false: no step was trained. */
static bool speed_of(const struct hdt_planned *p, const struct submit_args *args,
                     const struct hdt_follow *f, struct hdt_speed *speed)
{
    const double step_s = hdt_follow_median_step(f, NULL);

    if (step_s > 0) {
        hdt_speed_of(p, json_object_get(f->done, "ranks"),
                     args->devices.items.n > 0 ? &args->devices : NULL, step_s, speed);
    }
    return step_s > 0;
}

static json_t *result_json(const struct hdt_planned *p, const struct submit_args *args,
                           const struct hdt_follow *f)
{
    struct hdt_speed speed;
    const struct hdt_plan *plan = &p->result.plan;
    double tokens =
        (double)plan->micro_batch * (double)plan->n_micro_batches * (double)plan->seq_len;
    double median_s = hdt_follow_median_step(f, NULL);
    json_t *losses = json_array(), *json;

    for (size_t i = 0; i < f->n_trained; i++) {
        json_array_append_new(losses, real_or_null(f->trained[i].loss));
    }
    json = json_pack(
        "{s:I, s:I, s:s, s:o, s:o, s:o, s:o, s:o, s:f, s:o}", "sites", n_sites_of(plan), "steps",
        (json_int_t)f->n_trained, "state", f->state, "wan", wan_json(p), "loss", losses, "val_loss",
        real_or_null(f->val_loss), "weights_digest", done_get(f, "weights_digest"), "tokens_per_s",
        real_or_null(median_s > 0 ? tokens / median_s : NAN), "predicted_step_s",
        f->predicted_step_s, "measured_step_s", real_or_null(median_s > 0 ? median_s : NAN));
    json_object_update_new(json, json_pack("{s:I, s:I, s:f}", "restarts", n_restarts(f),
                                           "steps_again", f->n_again, "seconds_lost", f->lost_s));
    json_object_set_new(json, "speed",
                        speed_of(p, args, f, &speed) ? hdt_speed_to_json(&speed) : json_null());
    json_object_set_new(json, "ranks", done_get(f, "ranks"));
    json_object_set_new(json, "tls", done_get(f, "tls"));
    json_object_set_new(json, "codec", codec_json(p));
    json_object_set_new(json, "wan_bytes_raw", done_get(f, "wan_bytes_raw"));
    json_object_set_new(json, "wan_bytes_sent", done_get(f, "wan_bytes_sent"));
    json_object_set_new(json, "stage_layers", hdt_planned_stage_layers(p));
    json_object_set_new(json, "run_dir", done_get(f, "run_dir"));
    json_object_set_new(json, "checkpoint",
                        f->checkpoint[0] ? json_string(f->checkpoint) : json_null());
    json_object_set_new(json, "error",
                        f->error.msg[0] ? hdt_msg_error_body(&f->error) : json_null());
    return json;
}

/* Can the results be written there? Asked before the run, not after it. */
static enum hdt_status result_check(const char *path, struct hdt_error *err)
{
    const char *slash = strrchr(path, '/');
    char *dir = slash ? hdt_asprintf("%.*s/", (int)(slash - path), path) : hdt_strdup(".");
    enum hdt_status status = HDT_OK;

    if (access(path, W_OK) != 0 && (errno != ENOENT || access(dir, W_OK) != 0)) {
        status = hdt_error_set_errno(err, HDT_EIO, errno, "cannot write the results '%s'", path);
        hdt_error_hint(err, "name a file in a folder that is there and may be written to");
    }
    free(dir);
    return status;
}

static enum hdt_status result_write(const struct hdt_planned *p, const struct submit_args *args,
                                    const struct hdt_follow *f, struct hdt_error *err)
{
    const char *path = args->json;
    json_t *json = result_json(p, args, f);
    int rc;

    errno = 0;
    rc = json_dump_file(json, path, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    json_decref(json);
    if (rc != 0) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot write the results '%s'", path);
    }
    return HDT_OK;
}

/* "site-b/w0: /path": which machine it is on. */
static void file_print(const char *what, const char *from, const char *path)
{
    printf("%-11s %s%s%s\n", what, from ? from : "", from && from[0] ? ": " : "", path);
}

static void traces_print(const json_t *traces, const json_t *from)
{
    size_t i;
    json_t *item;

    json_array_foreach(traces, i, item)
    {
        file_print("trace", json_string_value(json_array_get(from, i)), json_string_value(item));
    }
}

/* Measured and predicted belong together: both of the plan that the run ended with. */
static void step_time_print(const struct hdt_follow *f)
{
    size_t n;
    const double median_s = hdt_follow_median_step(f, &n);

    printf("step time   %.3f s measured (median of %zu%s), %.3f s predicted (%+.0f %%)\n", median_s,
           n, n < f->n_trained ? " since the last restart" : "", f->predicted_step_s,
           100 * (median_s / f->predicted_step_s - 1));
}

static void summary_print(const struct hdt_planned *p, const struct submit_args *args,
                          const struct hdt_follow *f)
{
    const char *run_dir = json_string_value(json_object_get(f->done, "run_dir"));
    double sent = json_number_value(json_object_get(f->done, "wan_bytes_sent"));
    double raw = json_number_value(json_object_get(f->done, "wan_bytes_raw"));
    struct hdt_speed speed;
    char lost[HDT_HUMAN_CAP];

    hdt_speed_print_ranks(json_object_get(f->done, "ranks"));
    if (f->n_trained > 0) {
        step_time_print(f);
        if (speed_of(p, args, f, &speed)) {
            hdt_speed_print(&speed);
        }
        printf("loss        %.4f -> %.4f\n", f->trained[0].loss, f->trained[f->n_trained - 1].loss);
    }
    if (n_restarts(f) > 0) {
        printf("restarts    %lld, %lld steps done again, %s lost\n", (long long)n_restarts(f),
               (long long)f->n_again, hdt_human_duration(f->lost_s, lost));
    }
    if (isfinite(f->val_loss)) {
        printf("held-out    %.4f\n", f->val_loss);
    }
    if (sent > 0) {
        printf("WAN         %.1f MB sent for %.1f MB of tensors (ratio %.2f)\n", 1e-6 * sent,
               1e-6 * raw, raw / sent);
    }
    if (f->checkpoint[0]) {
        file_print("checkpoint", f->checkpoint_from, f->checkpoint);
    }
    if (run_dir) {
        printf("metrics     %s/metrics.jsonl\n", run_dir);
    }
    traces_print(json_object_get(f->done, "traces"), json_object_get(f->done, "traces_from"));
    printf("logs        hdt logs, hdt logs SITE/WORKER\n");
}

/* ---- running ---- */

static enum hdt_status job_submit(const struct hdt_planned *p, const struct submit_args *args,
                                  struct hdt_gwclient *client, struct hdt_follow *f,
                                  struct hdt_error *err)
{
    struct hdt_gwclient_request request = {
        .type = "submit", .expect = "submitted", .patience = HDT_GWCLIENT_RELAY};
    json_t *body, *number;

    request.body =
        json_pack("{s:o, s:o, s:o, s:O, s:s}", "job", hdt_conf_to_json(&hdt_job_schema, &p->job),
                  "model", hdt_model_to_json(&p->model), "plan", hdt_plan_to_json(&p->result.plan),
                  "cluster", p->cluster_json, "resume", args->resume ? args->resume : "");
    HDT_TRY(hdt_gwclient_ask(client, &request, &body, err));
    f->job = json_integer_value(json_object_get(body, "job"));
    number = json_object_get(body, "number");
    f->number = json_is_integer(number) ? json_integer_value(number) : f->job;
    printf("job %lld (%s) submitted to %s\n", (long long)f->number, p->job.name,
           hdt_gwclient_site(client));
    fflush(stdout);
    json_decref(body);
    return HDT_OK;
}

/* What the end of the job means for whoever called us. */
static int end_report(const struct hdt_planned *p, const struct submit_args *args,
                      const struct hdt_follow *f)
{
    struct hdt_error err = {0};

    if (f->left) {
        return HDT_EXIT_OK; /* the job runs, or stops by itself */
    }
    if (args->json && result_write(p, args, f, &err) != HDT_OK) {
        return hdt_cmd_fail(&err);
    }
    summary_print(p, args, f);
    if (strcmp(f->state, "failed") == 0 ||
        (strcmp(f->state, "stopped") == 0 && f->error.msg[0])) { /* without a last checkpoint */
        fflush(stdout);
        hdt_error_print(&f->error, "hdt");
        return HDT_EXIT_FAILED;
    }
    if (strcmp(f->state, "stopped") == 0 && !f->stop_asked) {
        fprintf(stderr, "hdt: job %lld was stopped by %s before its last step\n",
                (long long)f->number, f->stopped_by[0] ? f->stopped_by : "somebody else");
        return HDT_EXIT_FAILED;
    }
    return HDT_EXIT_OK;
}

static int submit_planned(struct hdt_planned *p, const struct submit_args *args,
                          struct hdt_gwclient **client)
{
    struct hdt_follow f = {.conf = &args->client,
                           .steps = p->job.steps,
                           .job_timeout_ms = p->job.progress_timeout,
                           .last_step = {.epoch = 1},
                           .predicted_step_s = p->result.plan.step_s,
                           .every_step = args->verbose,
                           .stops_on_interrupt = true};
    struct hdt_error err = {0};
    enum hdt_status status;
    int rc;

    hdt_planned_print(p, stdout);
    putchar('\n');
    if (job_submit(p, args, *client, &f, &err) != HDT_OK) {
        return hdt_cmd_fail(&err);
    }
    if (args->detach) {
        printf("to follow: hdt status --watch; to end it: hdt stop %lld\n", (long long)f.number);
        return HDT_EXIT_OK;
    }
    f.client = *client;
    hdt_interrupts_catch();
    status = hdt_follow_run(&f, &err);
    *client = f.client;
    rc = status == HDT_OK ? end_report(p, args, &f) : hdt_cmd_fail(&err);
    hdt_follow_release(&f);
    return rc;
}

/* One that is named must be there; of the installed one only the peaks are missed. */
static enum hdt_status catalogue_load(struct submit_args *args, struct hdt_error *err)
{
    struct hdt_error none = {0};

    if (args->catalogue) {
        return hdt_devices_load(args->catalogue, &args->devices, err);
    }
    switch (hdt_devices_load(NULL, &args->devices, &none)) {
    case HDT_OK:
        return HDT_OK;
    case HDT_ENOENT: /* not installed here */
        args->devices = (struct hdt_devices){0};
        return HDT_OK;
    default:
        *err = none;
        return none.status;
    }
}

static int submit_run(int argc, char **argv)
{
    struct submit_args args = {0};
    struct hdt_gwclient *client = NULL;
    struct hdt_planned planned;
    struct hdt_error err = {0};
    enum hdt_status status;
    int rc;

    hdt_cmd_parse(&argp, argc, argv, &args);
    if (hdt_planned_overrides_check(&args.overrides, &err) != HDT_OK) {
        hdt_cmd_fail(&err);
        return HDT_EXIT_USAGE;
    }
    if (args.json && result_check(args.json, &err) != HDT_OK) {
        return hdt_cmd_fail(&err);
    }
    if (catalogue_load(&args, &err) != HDT_OK) {
        return hdt_cmd_fail(&err);
    }
    if (hdt_planned_load(&planned, args.job, &args.overrides, &err) != HDT_OK) {
        hdt_devices_release(&args.devices);
        return hdt_cmd_fail(&err);
    }
    status = hdt_gwclient_open(&args.client, &client, &err);
    if (status == HDT_OK) {
        status = hdt_planned_check_timeout(&planned, client, &err);
    }
    if (status == HDT_OK) {
        status = hdt_planned_survey(&planned, client, &args.overrides, &err);
    }
    if (status == HDT_OK) {
        status = hdt_planned_search(&planned, &err);
    }
    rc = status == HDT_OK ? submit_planned(&planned, &args, &client) : hdt_cmd_fail(&err);
    hdt_gwclient_close(client);
    hdt_planned_release(&planned);
    hdt_devices_release(&args.devices);
    return rc;
}

const struct hdt_cmd hdt_cmd_submit = {"submit", "plan a job, start it, follow it", submit_run,
                                       &argp, NULL};
