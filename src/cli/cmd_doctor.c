/* SPDX-License-Identifier: Apache-2.0 */
/* hdt doctor: what is wrong here and on the way to the peers, and the remedy. */
#include "config.h"

#include "src/cli/gwoptions.h"
#include "src/cli/cmd.h"
#include "src/cli/doctor_local.h"

#include <argp.h>
#include <stdio.h>
#include <string.h>

enum doctor_option { OPT_JSON = 256, OPT_CONFIG };

static const struct argp_option options[] = {
    {"json", OPT_JSON, NULL, 0, "Print the checks as JSON", 0},
    {"config", OPT_CONFIG, "FILE", 0,
     "A gateway's settings to check, with its certificates (default: the installed ones)", 0},
    {0},
};

struct doctor_args {
    struct hdt_gwclient_conf client;
    const char *config;
    bool json;
};

static error_t option_parse(int key, char *arg, struct argp_state *state)
{
    struct doctor_args *args = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &args->client;
        return 0;
    case OPT_JSON:
        args->json = true;
        return 0;
    case OPT_CONFIG:
        args->config = arg;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected '%s'", arg);
        return EINVAL;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&hdt_gwoptions_argp, 0, NULL, 0}, {0}};
static const struct argp argp = {
    .options = options,
    .parser = option_parse,
    .doc =
        "Check this machine, the gateway, and through it every peer in both directions. One line "
        "and one remedy each; the exit status is 1 when a check fails.",
    .children = children,
};

static void error_add(json_t *checks, const char *name, const struct hdt_error *err)
{
    hdt_doctor_add(checks, name, "fail", err->hint, "%s%s%s", err->where, err->where[0] ? ": " : "",
                   err->msg);
}

/* Checks that only the gateway can make; they are given as they come. */
static enum hdt_status remote_ask(struct hdt_gwclient *client, json_t *checks,
                                  struct hdt_error *err)
{
    struct hdt_gwclient_request status = {.type = "status", .expect = "status.is"};
    struct hdt_gwclient_request doctor = {
        .type = "doctor", .expect = "doctor.is", .patience = HDT_GWCLIENT_RELAY};
    json_t *body;

    HDT_TRY(hdt_gwclient_ask(client, &status, &body, err));
    hdt_doctor_buffers(checks, body);
    json_decref(body);
    HDT_TRY(hdt_gwclient_ask(client, &doctor, &body, err));
    json_array_extend(checks, json_object_get(body, "checks"));
    json_decref(body);
    return HDT_OK;
}

static void check_remote(const struct hdt_gwclient_conf *conf, json_t *checks)
{
    struct hdt_gwclient *client;
    struct hdt_error err = {0};

    if (hdt_gwclient_open(conf, &client, &err) != HDT_OK) {
        error_add(checks, "gateway", &err);
        return;
    }
    hdt_doctor_add(checks, "gateway", "ok", "", "site %s answers (%s)", hdt_gwclient_site(client),
                   hdt_gwclient_tls(client));
    if (remote_ask(client, checks, &err) != HDT_OK) {
        error_add(checks, "gateway", &err);
    }
    hdt_gwclient_close(client);
}

static const char *text_of(const json_t *json, const char *key)
{
    const char *text = json_string_value(json_object_get(json, key));

    return text ? text : "";
}

/* Print; returns the number of failed checks. */
static size_t checks_print(const json_t *checks, bool as_json)
{
    size_t i, n_failed = 0;
    json_t *check;

    json_array_foreach(checks, i, check)
    {
        const char *remedy = text_of(check, "remedy");

        n_failed += strcmp(text_of(check, "state"), "fail") == 0;
        if (!as_json) {
            printf("%-5s %-22s %s\n", text_of(check, "state"), text_of(check, "name"),
                   text_of(check, "detail"));
            if (remedy[0]) {
                printf("      remedy: %s\n", remedy);
            }
        }
    }
    return n_failed;
}

static int doctor_run(int argc, char **argv)
{
    struct doctor_args args = {0};
    struct hdt_doctor_files files;
    json_t *checks = json_array(), *json;
    size_t n_failed;

    hdt_cmd_parse(&argp, argc, argv, &args);
    files =
        (struct hdt_doctor_files){args.client.ca, args.client.cert, args.client.key, args.config};
    hdt_doctor_local(checks, &files);
    check_remote(&args.client, checks);
    n_failed = checks_print(checks, args.json);
    if (args.json) {
        json = json_pack("{s:b, s:O}", "ok", n_failed == 0, "checks", checks);
        json_dumpf(json, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(json);
    }
    json_decref(checks);
    return n_failed > 0 ? HDT_EXIT_FAILED : HDT_EXIT_OK;
}

const struct hdt_cmd hdt_cmd_doctor = {"doctor", "what is wrong, and the remedy", doctor_run, &argp,
                                       NULL};
