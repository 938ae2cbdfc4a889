/* SPDX-License-Identifier: Apache-2.0 */
/* hdt stop: end a job after the step in work, with a checkpoint, and wait for it. */
#include "config.h"

#include "src/cli/cmd.h"
#include "src/cli/gwoptions.h"
#include "src/cli/follow.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct stop_args {
    struct hdt_gwclient_conf client;
    long long job; /* 0: the only one */
};

static error_t option_parse(int key, char *arg, struct argp_state *state)
{
    struct stop_args *args = state->input;
    char *end;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &args->client;
        return 0;
    case ARGP_KEY_ARG:
        args->job = strtoll(arg, &end, 10);
        if (*end != '\0' || args->job < 1) {
            argp_error(state, "'%s' is not the number of a job ('hdt status' lists them)", arg);
            return EINVAL;
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&hdt_gwoptions_argp, 0, NULL, 0}, {0}};
static const struct argp argp = {
    .parser = option_parse,
    .args_doc = "[JOB]",
    .doc = "End a job after the step in work, with a checkpoint, and wait for its end. JOB is its "
           "number; without it, the only job that runs.",
    .children = children,
};

static enum hdt_status stop_ask(struct hdt_gwclient *client, const struct stop_args *args,
                                struct hdt_follow *f, struct hdt_error *err)
{
    struct hdt_gwclient_request request = {.type = "stop",
                                           .body = json_pack("{s:I}", "job", (json_int_t)args->job),
                                           .expect = "stopping",
                                           .patience = HDT_GWCLIENT_RELAY};
    json_t *body, *number;

    HDT_TRY(hdt_gwclient_ask(client, &request, &body, err));
    f->job = json_integer_value(json_object_get(body, "job"));
    number = json_object_get(body, "number");
    f->number = json_is_integer(number) ? json_integer_value(number) : f->job;
    f->last_step.epoch = json_integer_value(json_object_get(body, "epoch"));
    f->last_step.step = json_integer_value(json_object_get(body, "step"));
    json_decref(body);
    return HDT_OK;
}

static int stop_run(int argc, char **argv)
{
    struct stop_args args = {0};
    struct hdt_follow f = {.conf = &args.client, .stop_asked = true};
    struct hdt_gwclient *client;
    struct hdt_error err = {0};
    enum hdt_status status;

    hdt_cmd_parse(&argp, argc, argv, &args);
    if (hdt_gwclient_open(&args.client, &client, &err) != HDT_OK) {
        return hdt_cmd_fail(&err);
    }
    status = stop_ask(client, &args, &f, &err);
    if (status == HDT_OK) {
        hdt_interrupts_catch();
        f.client = client;
        status = hdt_follow_run(&f, &err);
        client = f.client;
    }
    hdt_gwclient_close(client);
    if (status == HDT_OK && strcmp(f.state, "stopped") == 0 && f.error.msg[0]) {
        printf("%s\n", f.error.msg); /* where it could not write a checkpoint */
    }
    if (status == HDT_OK && strcmp(f.state, "failed") == 0) {
        status = HDT_EJOB;
        err = f.error;
        if (!err.msg[0]) {
            hdt_error_set(&err, status, "job %lld had failed before", (long long)f.number);
            hdt_error_hint(&err, "hdt status says why");
        }
    }
    hdt_follow_release(&f);
    return status == HDT_OK ? (f.left ? HDT_EXIT_FAILED : HDT_EXIT_OK) : hdt_cmd_fail(&err);
}

const struct hdt_cmd hdt_cmd_stop = {"stop", "end a job cleanly, with a checkpoint", stop_run,
                                     &argp, NULL};
