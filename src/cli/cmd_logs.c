/* SPDX-License-Identifier: Apache-2.0 */
/* hdt logs: the last lines of a gateway or worker, also of another site. */
#include "config.h"

#include "src/cli/logs_bundle.h"
#include "src/cli/gwoptions.h"
#include "src/cli/logs_merge.h"
#include "src/cli/places.h"
#include "src/cli/cmd.h"
#include "src/base/buf.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FOLLOW_MS 1000
#define LINES_MAX 4096 /* that a program keeps */

enum logs_option {
    OPT_FOLLOW = 'f',
    OPT_LINES = 'n',
    OPT_ALL = 256,
    OPT_BUNDLE,
    OPT_FORCE,
    OPT_JOB,
    OPT_TRACES
};

static const struct argp_option options[] = {
    {"follow", OPT_FOLLOW, NULL, 0, "Go on with new lines until Ctrl-C", 0},
    {"lines", OPT_LINES, "N", 0, "Last N lines, at most 4096 (default 100)", 0},
    {"all", OPT_ALL, NULL, 0, "Of all gateways and workers, by time; what several say is one line",
     0},
    {"bundle", OPT_BUNDLE, "FILE", 0,
     "Write FILE (.tar.gz) for a bug report: logs, flight recorders, status, checks and settings of "
     "all who can be reached; exit status 5 when some cannot",
     0},
    {"force", OPT_FORCE, NULL, 0, "With --bundle: replace FILE when it is there already", 0},
    {"job", OPT_JOB, "N", 0, "With --bundle: also plan and metrics of this job", 0},
    {"traces", OPT_TRACES, NULL, 0, "With --job: also its traces", 0},
    {0},
};

struct logs_args {
    struct hdt_gwclient_conf client;
    const char *to; /* NULL: the gateway itself */
    long n_lines;
    bool follow, all;
    struct hdt_logs_bundle_conf bundle; /* file NULL: none is asked for */
};

static error_t option_parse(int key, char *arg, struct argp_state *state)
{
    struct logs_args *args = state->input;
    char *end;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &args->client;
        return 0;
    case OPT_FOLLOW:
        args->follow = true;
        return 0;
    case OPT_LINES:
        args->n_lines = strtol(arg, &end, 10);
        if (*end != '\0' || args->n_lines < 1 || args->n_lines > LINES_MAX) {
            argp_error(state, "-n '%s' is not 1 to %d", arg, LINES_MAX);
            return EINVAL;
        }
        return 0;
    case OPT_ALL:
        args->all = true;
        return 0;
    case OPT_BUNDLE:
        args->bundle.file = arg;
        return 0;
    case OPT_FORCE:
        args->bundle.force = true;
        return 0;
    case OPT_TRACES:
        args->bundle.traces = true;
        return 0;
    case OPT_JOB:
        args->bundle.job = strtol(arg, &end, 10);
        if (*end != '\0' || args->bundle.job < 1) {
            argp_error(state, "--job '%s' is no number of a job", arg);
        }
        return 0;
    case ARGP_KEY_END:
        if ((args->to != NULL) + args->all + (args->bundle.file != NULL) > 1 ||
            (args->follow && (args->all || args->bundle.file))) {
            argp_error(state, "a name, --all and --bundle exclude each other; -f goes with a name");
        }
        if ((args->bundle.job || args->bundle.traces || args->bundle.force) && !args->bundle.file) {
            argp_error(state, "--job, --traces and --force go with --bundle");
        }
        return 0;
    case ARGP_KEY_ARG:
        if (args->to) {
            argp_error(state, "unexpected '%s'", arg);
            return EINVAL;
        }
        args->to = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&hdt_gwoptions_argp, 0, NULL, 0}, {0}};
static const struct argp argp = {
    .options = options,
    .parser = option_parse,
    .args_doc = "[SITE | SITE/WORKER]",
    .doc =
        "Print the last log lines of a site's gateway or of a worker, as it keeps them in memory. "
        "Without a name: of the gateway that answers. With --bundle: collect what a bug report "
        "needs.",
    .children = children,
};

static enum hdt_status logs_get(struct hdt_gwclient *client, const char *to, long n, char **text,
                                struct hdt_error *err)
{
    struct hdt_gwclient_request request = {.type = "logs",
                                           .to = to,
                                           .body = json_pack("{s:I}", "n", (json_int_t)n),
                                           .expect = "logs.are",
                                           .patience =
                                               to ? HDT_GWCLIENT_RELAY : HDT_GWCLIENT_ANSWER};
    const char *s;
    json_t *body;

    HDT_TRY(hdt_gwclient_ask(client, &request, &body, err));
    s = json_string_value(json_object_get(body, "text"));
    *text = hdt_strdup(s ? s : "");
    json_decref(body);
    return HDT_OK;
}

/* Last line of a text, without its end. */
static char *line_last(const char *text)
{
    size_t len = strlen(text), begin;

    while (len > 0 && text[len - 1] == '\n') {
        len--;
    }
    for (begin = len; begin > 0 && text[begin - 1] != '\n'; begin--) {
    }
    return hdt_asprintf("%.*s", (int)(len - begin), text + begin);
}

/* What follows the line `last` in `text`; all of it when the line is not there any more. */
static const char *text_after(const char *text, const char *last)
{
    const char *found = NULL, *p = text;

    while (last[0] && (p = strstr(p, last))) {
        found = p + strlen(last);
        p = found;
    }
    if (!found) {
        return text;
    }
    return *found == '\n' ? found + 1 : found;
}

/* Ask again and again, and print what is new behind the last line seen. */
static enum hdt_status logs_follow(struct hdt_gwclient *client, const char *to, char *last,
                                   struct hdt_error *err)
{
    enum hdt_status status = HDT_OK;

    while (hdt_interrupts_count() == 0 && status == HDT_OK) {
        const char *fresh;
        char *text;

        usleep(FOLLOW_MS * 1000);
        status = logs_get(client, to, LINES_MAX, &text, err);
        if (status != HDT_OK) {
            break;
        }
        fresh = text_after(text, last);
        if (*fresh) {
            fputs(fresh, stdout);
            fflush(stdout);
            free(last);
            last = line_last(text);
        }
        free(text);
    }
    free(last);
    return status == HDT_ECANCELED ? HDT_OK : status;
}

/* Of everybody who can be asked; who cannot is named. */
static enum hdt_status logs_all(struct hdt_gwclient *client, long n_lines, struct hdt_error *err)
{
    struct hdt_logs_merge merge = {0};
    struct hdt_places places;
    struct hdt_buf out = {0};
    json_t *status;

    HDT_TRY(hdt_places_status(client, &status, err));
    hdt_places_read(status, &places);
    for (size_t i = 0; i < places.n; i++) {
        const struct hdt_place *place = &places.items[i];
        struct hdt_error why = {0};
        char *text;

        if (!place->up) {
            fprintf(stderr, "hdt: no log of %s: %s\n", place->address, place->why_not);
        } else if (logs_get(client, place->address, n_lines, &text, &why) != HDT_OK) {
            fprintf(stderr, "hdt: no log of %s: %s\n", place->address, why.msg);
        } else {
            hdt_logs_merge_add(&merge, place->address, text);
            free(text);
        }
    }
    hdt_logs_merge_print(&merge, &out);
    fputs(hdt_buf_str(&out), stdout);
    hdt_buf_release(&out);
    hdt_logs_merge_release(&merge);
    hdt_places_release(&places);
    json_decref(status);
    return HDT_OK;
}

static int bundle_run(struct hdt_gwclient *client, const struct hdt_logs_bundle_conf *conf)
{
    struct hdt_error err = {0};
    int n_missing = 0;

    hdt_interrupts_catch();
    if (hdt_logs_bundle_make(client, conf, &n_missing, &err) != HDT_OK) {
        return hdt_cmd_fail(&err);
    }
    if (n_missing == 0) {
        printf("%s is written\n", conf->file);
        return HDT_EXIT_OK;
    }
    printf("%s is written; %d parts are missing, its MANIFEST says which and why\n", conf->file,
           n_missing);
    return HDT_EXIT_PARTIAL;
}

static enum hdt_status logs_one(struct hdt_gwclient *client, const struct logs_args *args,
                                struct hdt_error *err)
{
    char *text;

    HDT_TRY(logs_get(client, args->to, args->n_lines, &text, err));
    fputs(text, stdout);
    fflush(stdout);
    if (args->follow) {
        enum hdt_status status;

        hdt_interrupts_catch();
        status = logs_follow(client, args->to, line_last(text), err);
        free(text);
        return status;
    }
    free(text);
    return HDT_OK;
}

static int logs_run(int argc, char **argv)
{
    struct logs_args args = {.n_lines = 100};
    struct hdt_gwclient *client;
    struct hdt_error err = {0};
    enum hdt_status status;
    int code;

    hdt_cmd_parse(&argp, argc, argv, &args);
    if (args.bundle.file && hdt_logs_bundle_check(&args.bundle, &err) != HDT_OK) {
        return hdt_cmd_fail(&err);
    }
    if (hdt_gwclient_open(&args.client, &client, &err) != HDT_OK) {
        return hdt_cmd_fail(&err);
    }
    if (args.bundle.file) {
        code = bundle_run(client, &args.bundle);
        hdt_gwclient_close(client);
        return code;
    }
    status = args.all ? logs_all(client, args.n_lines, &err) : logs_one(client, &args, &err);
    hdt_gwclient_close(client);
    return status == HDT_OK ? HDT_EXIT_OK : hdt_cmd_fail(&err);
}

const struct hdt_cmd hdt_cmd_logs = {"logs", "last log lines of a gateway or worker", logs_run,
                                     &argp, NULL};
