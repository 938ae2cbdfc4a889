/* SPDX-License-Identifier: Apache-2.0 */
/* hdt doctor: what is wrong here and on the way to the peers, and the remedy. */
#include "config.h"

#include "src/cli/gwoptions.h"
#include "src/cli/cmd.h"
#include "src/cli/doctor_local.h"
#include "src/cli/places.h"
#include "src/base/clock.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SKEW_WARN_US HDT_US_PER_S
#define SKEW_FAIL_US (30 * HDT_US_PER_S)

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
        "Check this machine, the gateway, and through it every other gateway and worker where they "
        "run, and every link in both directions. One line and one remedy each; the exit status is "
        "1 when a check fails.",
    .children = children,
};

static void error_add(json_t *checks, const char *name, const struct hdt_error *err)
{
    hdt_doctor_add(checks, name, "fail", err->hint, "%s%s%s", err->where, err->where[0] ? ": " : "",
                   err->msg);
}

/* Its clock against ours, at the middle of the question and its answer. */
static void clock_check(json_t *checks, const json_t *body, int64_t asked_us)
{
    const int64_t now_us = hdt_clock_wall_us();
    const json_int_t theirs_us = json_integer_value(json_object_get(body, "clock_us"));
    /* It answers at the end of its checks: only before ours, or after, counts as a difference. */
    const int64_t ahead_us = theirs_us > now_us     ? theirs_us - now_us
                             : theirs_us < asked_us ? theirs_us - asked_us
                                                    : 0;

    if (theirs_us == 0) {
        return;
    }
    hdt_doctor_add(
        checks, "clock to here",
        llabs(ahead_us) > SKEW_FAIL_US   ? "fail"
        : llabs(ahead_us) > SKEW_WARN_US ? "warn"
                                         : "ok",
        llabs(ahead_us) > SKEW_WARN_US ? "run NTP on both: certificates are judged by the clock"
                                       : "",
        "it is %.1f s %s ours", (double)llabs(ahead_us) / 1e6, ahead_us < 0 ? "behind" : "before");
}

static void version_check(json_t *checks, const json_t *body, const char *federation)
{
    const char *version = json_string_value(json_object_get(body, "version"));
    const char *theirs = json_string_value(json_object_get(body, "federation"));
    const bool same = version && strcmp(version, PACKAGE_VERSION) == 0;

    hdt_doctor_add(checks, "version", same ? "ok" : "warn",
                   same ? "" : "install the same on all machines", "hdt %s there, %s here",
                   version ? version : "?", PACKAGE_VERSION);
    if (theirs) {
        hdt_doctor_add(checks, "federation", strcmp(theirs, federation) == 0 ? "ok" : "fail",
                       strcmp(theirs, federation) == 0
                           ? ""
                           : "one federation in all gateway.yaml, as in "
                             "the certificates",
                       "it is of '%s'", theirs);
    }
}

/* Everything that a gateway or worker says of itself. */
static void place_check(struct hdt_gwclient *client, const struct hdt_place *place,
                        const char *federation, json_t *checks)
{
    struct hdt_gwclient_request request = {.type = "doctor",
                                           .expect = "doctor.is",
                                           .patience = place->worker[0] ? HDT_GWCLIENT_RELAY
                                                                        : HDT_GWCLIENT_SURVEY};
    const int64_t asked_us = hdt_clock_wall_us();
    struct hdt_error err = {0};
    json_t *body;

    if (!place->up && place->worker[0]) {
        hdt_doctor_add(checks, "worker", "warn", "start it, if it is to take part", "%s",
                       place->why_not);
        return;
    }
    if (!place->up) {
        return; /* its peers say why */
    }
    if (hdt_place_ask(client, place, &request, &body, &err) != HDT_OK) {
        error_add(checks, place->worker[0] ? "worker" : "gateway", &err);
        return;
    }
    version_check(checks, body, federation);
    clock_check(checks, body, asked_us);
    json_array_extend(checks, json_object_get(body, "checks"));
    json_decref(body);
}

/* The checks of one place join those of all. */
static void where_set(json_t *all, json_t *checks, const char *where)
{
    json_t *check;
    size_t i;

    json_array_foreach(checks, i, check)
    {
        json_object_set_new(check, "where", json_string(where));
    }
    json_array_extend(all, checks);
    json_decref(checks);
}

static void places_check(struct hdt_gwclient *client, json_t *all)
{
    struct hdt_error err = {0};
    struct hdt_places places;
    const char *federation;
    json_t *status;

    if (hdt_places_status(client, &status, &err) != HDT_OK) {
        error_add(all, "gateway", &err);
        return;
    }
    federation = json_string_value(json_object_get(status, "federation"));
    hdt_places_read(status, &places);
    for (size_t i = 0; i < places.n; i++) {
        json_t *checks = json_array();

        place_check(client, &places.items[i], federation ? federation : "", checks);
        where_set(all, checks, places.items[i].address);
    }
    hdt_places_release(&places);
    json_decref(status);
}

static void check_remote(const struct hdt_gwclient_conf *conf, json_t *all)
{
    struct hdt_gwclient *client;
    struct hdt_error err = {0};
    json_t *checks = json_array();

    if (hdt_gwclient_open(conf, &client, &err) != HDT_OK) {
        error_add(checks, "gateway", &err);
        where_set(all, checks, "here");
        return;
    }
    hdt_doctor_add(checks, "gateway", "ok", "", "site %s answers (%s)", hdt_gwclient_site(client),
                   hdt_gwclient_tls(client));
    where_set(all, checks, "here");
    places_check(client, all);
    hdt_gwclient_close(client);
}

static const char *text_of(const json_t *json, const char *key)
{
    const char *text = json_string_value(json_object_get(json, key));

    return text ? text : "";
}

static void checks_print(const json_t *checks)
{
    const char *where = "";
    size_t i;
    json_t *check;

    json_array_foreach(checks, i, check)
    {
        const char *remedy = text_of(check, "remedy");

        if (strcmp(where, text_of(check, "where")) != 0) {
            where = text_of(check, "where");
            printf("%s-- %s\n", i > 0 ? "\n" : "",
                   strcmp(where, "here") == 0 ? "this machine" : where);
        }
        printf("%-5s %-22s %s\n", text_of(check, "state"), text_of(check, "name"),
               text_of(check, "detail"));
        if (remedy[0]) {
            printf("      remedy: %s\n", remedy);
        }
    }
}

static void closing_print(const json_t *checks, int n_failed)
{
    int n_warnings = 0;
    json_t *check;
    size_t i;

    json_array_foreach(checks, i, check)
    {
        n_warnings += strcmp(text_of(check, "state"), "warn") == 0;
    }
    printf("\n%d failed, %d warning%s\n", n_failed, n_warnings, n_warnings == 1 ? "" : "s");
}

static int doctor_run(int argc, char **argv)
{
    struct doctor_args args = {0};
    struct hdt_doctor_files files;
    json_t *checks = json_array(), *local = json_array(), *json;
    int n_failed;

    hdt_cmd_parse(&argp, argc, argv, &args);
    files =
        (struct hdt_doctor_files){args.client.ca, args.client.cert, args.client.key, args.config};
    hdt_doctor_local(local, &files);
    where_set(checks, local, "here");
    check_remote(&args.client, checks);
    n_failed = hdt_doctor_n_failed(checks);
    if (!args.json) {
        checks_print(checks);
        closing_print(checks, n_failed);
    } else {
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
