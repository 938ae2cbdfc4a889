/* SPDX-License-Identifier: Apache-2.0 */
/* hdt ca: the federation's certificate authority. */
#include "config.h"

#include "src/cli/ca_folder.h"
#include "src/cli/cmd.h"
#include "src/base/buf.h"
#include "src/net/ca.h"

#include <argp.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum ca_option { OPT_FEDERATION = 256, OPT_OUT, OPT_DAYS, OPT_FORCE, OPT_JSON };

struct ca_args {
    const char *dir, *federation, *out;
    int64_t days; /* 0: not given */
    bool force, json, yes;
    const char *words[2]; /* ROLE NAME, FILE or CERT */
    int n_words, max_words;
};

#define ROW_DIR                                                                                    \
 {                                                                                                 \
  "dir", 'd', "DIR", 0, "Folder of the authority (default $HDT_CA_DIR, else ~/.hdt/ca)", 0         \
 }
#define ROW_FEDERATION                                                                             \
 {                                                                                                 \
  "federation", OPT_FEDERATION, "NAME", 0, "Name of the federation, part of every identity", 0     \
 }
#define ROW_OUT(what)                                                                              \
 {                                                                                                 \
  "out", OPT_OUT, "DIR", 0, what, 0                                                                \
 }
#define ROW_DAYS(what)                                                                             \
 {                                                                                                 \
  "days", OPT_DAYS, "N", 0, what, 0                                                                \
 }
#define ROW_FORCE                                                                                  \
 {                                                                                                 \
  "force", OPT_FORCE, NULL, 0, "Replace files that are there already", 0                           \
 }
#define ROW_JSON                                                                                   \
 {                                                                                                 \
  "json", OPT_JSON, NULL, 0, "Print JSON", 0                                                       \
 }

static error_t days_parse(const char *arg, struct ca_args *args, struct argp_state *state)
{
    args->days = hdt_ca_days_parse(arg);
    if (!args->days) {
        argp_error(state, "--days '%s' is not a number from 1 to %d", arg, HDT_CA_DAYS_MAX);
        return EINVAL;
    }
    return 0;
}

static error_t option_parse(int key, char *arg, struct argp_state *state)
{
    struct ca_args *args = state->input;

    switch (key) {
    case 'd':
        args->dir = arg;
        return 0;
    case 'y':
        args->yes = true;
        return 0;
    case OPT_FEDERATION:
        args->federation = arg;
        return 0;
    case OPT_OUT:
        args->out = arg;
        return 0;
    case OPT_DAYS:
        return days_parse(arg, args, state);
    case OPT_FORCE:
        args->force = true;
        return 0;
    case OPT_JSON:
        args->json = true;
        return 0;
    case ARGP_KEY_ARG:
        if (args->n_words == args->max_words) {
            argp_error(state, "unexpected '%s'", arg);
            return EINVAL;
        }
        args->words[args->n_words++] = arg;
        return 0;
    case ARGP_KEY_END:
        if (args->n_words < args->max_words) {
            argp_error(state, "too few arguments");
            return EINVAL;
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static struct ca_args args_parse(const struct argp *argp, int n_words, int argc, char **argv)
{
    struct ca_args args = {.max_words = n_words};

    hdt_cmd_parse(argp, argc, argv, &args);
    return args;
}

static void json_print(json_t *json)
{
    json_dumpf(json, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(json);
}

/* What was made for its owner. */
static void issued_print(const struct ca_args *args, const struct hdt_ca_entry *entry,
                         const char *dir)
{
    char who[HDT_IDENTITY_URI_CAP], until[16];
    json_t *json;

    if (args->json) {
        json = hdt_ca_entry_to_json(entry);
        json_object_set_new(json, "dir", json_string(dir));
        json_print(json);
        return;
    }
    printf("certificate of %s, serial %s, valid until %s, in %s/\n",
           hdt_identity_describe(&entry->identity, who), entry->serial,
           hdt_ca_date_format(entry->dates.until_s, until), dir);
}

/* ---- init ---- */

static const struct argp_option init_options[] = {
    ROW_DIR,
    ROW_FEDERATION,
    ROW_DAYS("Days that the authority is valid (default 3650)"),
    {"force", OPT_FORCE, NULL, 0, "Replace an authority; its certificates become worthless", 0},
    {0},
};
static const struct argp init_argp = {
    .options = init_options,
    .parser = option_parse,
    .args_doc = "--federation NAME",
    .doc = "Make the certificate authority of a federation: key, certificate and an empty "
           "revocation list in one folder, which only you can read. Keep a copy of the folder: "
           "without it no certificate can be made or revoked.",
};

static int init_run(int argc, char **argv)
{
    struct ca_args args = args_parse(&init_argp, 0, argc, argv);
    char *dir = hdt_ca_folder_find(args.dir);
    struct hdt_ca_output output = {.dir = dir, .force = args.force};
    struct hdt_ca_dates dates = hdt_ca_dates_days(args.days ? args.days : HDT_CA_ROOT_DAYS);
    struct hdt_error err = {0};
    int rc = HDT_EXIT_OK;

    if (!args.federation) {
        fprintf(stderr, "hdt ca init: --federation NAME is missing\nhint: choose a name for the "
                        "sites that train together, as --federation lab\n");
        rc = HDT_EXIT_USAGE;
    } else if (hdt_ca_init(&output, args.federation, &dates, &err) != HDT_OK) {
        rc = hdt_cmd_fail(&err);
    } else {
        printf("authority of federation %s in %s/\n", args.federation, dir);
    }
    free(dir);
    return rc;
}

/* ---- issue ---- */

static const struct argp_option issue_options[] = {
    ROW_DIR,
    ROW_OUT("Where the files go (default ./NAME)"),
    ROW_DAYS("Days that the certificate is valid (default 365)"),
    ROW_FORCE,
    ROW_JSON,
    {0},
};
static const struct argp issue_argp = {
    .options = issue_options,
    .parser = option_parse,
    .args_doc = "site NAME\nworker SITE/NAME\noperator NAME",
    .doc = "Make key and certificate in one go, for trials: key.pem, cert.pem, ca.pem and crl.pem "
           "in one folder, to be copied to its owner. Where keys should not travel, use 'hdt ca "
           "request' and 'hdt ca sign'.",
};

static enum hdt_status issue(const struct ca_args *args, struct hdt_error *err)
{
    struct hdt_ca_entry entry = {.dates = hdt_ca_dates_days(args->days ? args->days : HDT_CA_DAYS)};
    char stem[HDT_IDENTITY_URI_CAP];
    struct hdt_ca_output output = {.force = args->force};
    struct hdt_ca *ca;
    enum hdt_status status;

    HDT_TRY(hdt_ca_folder_open(args->dir, &ca, err));
    status = hdt_identity_make(hdt_ca_federation(ca), args->words[0], args->words[1],
                               &entry.identity, err);
    if (status == HDT_OK) {
        output.dir = args->out ? args->out : hdt_ca_stem(&entry.identity, stem);
        status = hdt_ca_issue(ca, &output, &entry, err);
    }
    if (status == HDT_OK) {
        issued_print(args, &entry, output.dir);
    }
    hdt_ca_close(ca);
    return status;
}

static int issue_run(int argc, char **argv)
{
    struct ca_args args = args_parse(&issue_argp, 2, argc, argv);
    struct hdt_error err = {0};

    return issue(&args, &err) == HDT_OK ? HDT_EXIT_OK : hdt_cmd_fail(&err);
}

/* ---- request ---- */

static const struct argp_option request_options[] = {
    ROW_FEDERATION,
    ROW_OUT("Where the files go (default ./NAME)"),
    ROW_FORCE,
    {0},
};
static const struct argp request_argp = {
    .options = request_options,
    .parser = option_parse,
    .args_doc = "--federation NAME site NAME\n--federation NAME worker SITE/NAME\n"
                "--federation NAME operator NAME",
    .doc = "Make a key (key.pem) and a request (NAME.csr) on the machine that will use them. Send "
           "the request to the authority ('hdt ca sign'); the key stays here. To renew, make both "
           "in a new folder and exchange the files when the certificate has come.",
};

static int request_run(int argc, char **argv)
{
    struct ca_args args = args_parse(&request_argp, 2, argc, argv);
    char stem[HDT_IDENTITY_URI_CAP];
    struct hdt_ca_output output = {.force = args.force};
    struct hdt_identity identity;
    struct hdt_error err = {0};

    if (!args.federation) {
        fprintf(stderr, "hdt ca request: --federation NAME is missing\nhint: it is the name given "
                        "to 'hdt ca init'\n");
        return HDT_EXIT_USAGE;
    }
    if (hdt_identity_make(args.federation, args.words[0], args.words[1], &identity, &err) !=
        HDT_OK) {
        return hdt_cmd_fail(&err);
    }
    output.dir = args.out ? args.out : hdt_ca_stem(&identity, stem);
    if (hdt_ca_request(&identity, &output, &err) != HDT_OK) {
        return hdt_cmd_fail(&err);
    }
    printf("key and request in %s/; next, at the authority: hdt ca sign %s.csr\n", output.dir,
           hdt_ca_stem(&identity, stem));
    return HDT_EXIT_OK;
}

/* ---- sign ---- */

static const struct argp_option sign_options[] = {
    ROW_DIR,
    ROW_OUT("Where the files go (default ./NAME)"),
    ROW_DAYS("Days that the certificate is valid (default 365)"),
    {"yes", 'y', NULL, 0, "Do not ask whether the identity is the right one", 0},
    ROW_FORCE,
    ROW_JSON,
    {0},
};
static const struct argp sign_argp = {
    .options = sign_options,
    .parser = option_parse,
    .args_doc = "FILE.csr",
    .doc = "Answer a request of 'hdt ca request': cert.pem, ca.pem and crl.pem in one folder, to "
           "be sent back. A request says itself who it is from: look at it before you agree.",
};

/* Ask on the terminal; without one only --yes agrees. */
static bool identity_confirm(const struct hdt_identity *identity, struct hdt_error *err)
{
    char who[HDT_IDENTITY_URI_CAP], answer[16] = "";

    hdt_identity_describe(identity, who);
    if (!isatty(STDIN_FILENO)) {
        hdt_error_set(err, HDT_EACCES, "the request is from %s: not signed without a yes", who);
        hdt_error_hint(err, "if that is who it should be, repeat with --yes");
        return false;
    }
    fprintf(stderr, "The request is from %s. Sign it? [y/N] ", who);
    if (!fgets(answer, sizeof(answer), stdin) || (answer[0] != 'y' && answer[0] != 'Y')) {
        hdt_error_set(err, HDT_ECANCELED, "not signed");
        return false;
    }
    return true;
}

static enum hdt_status sign(const struct ca_args *args, struct hdt_error *err)
{
    struct hdt_ca_entry entry = {.dates = hdt_ca_dates_days(args->days ? args->days : HDT_CA_DAYS)};
    char stem[HDT_IDENTITY_URI_CAP];
    struct hdt_ca_output output = {.force = args->force};
    struct hdt_ca *ca;
    enum hdt_status status;

    HDT_TRY(hdt_ca_request_read(args->words[0], &entry.identity, err));
    if (!args->yes && !identity_confirm(&entry.identity, err)) {
        return err->status;
    }
    HDT_TRY(hdt_ca_folder_open(args->dir, &ca, err));
    output.dir = args->out ? args->out : hdt_ca_stem(&entry.identity, stem);
    status = hdt_ca_sign(ca, args->words[0], &output, &entry, err);
    if (status == HDT_OK) {
        issued_print(args, &entry, output.dir);
    }
    hdt_ca_close(ca);
    return status;
}

static int sign_run(int argc, char **argv)
{
    struct ca_args args = args_parse(&sign_argp, 1, argc, argv);
    struct hdt_error err = {0};

    return sign(&args, &err) == HDT_OK ? HDT_EXIT_OK : hdt_cmd_fail(&err);
}

/* ---- revoke ---- */

static const struct argp_option revoke_options[] = {ROW_DIR, ROW_JSON, {0}};
static const struct argp revoke_argp = {
    .options = revoke_options,
    .parser = option_parse,
    .args_doc = "CERT.pem\nSERIAL",
    .doc = "Revoke a certificate and sign a new crl.pem. Copy that file to one site (tls.crl) and "
           "reload its gateway (SIGHUP), which tells the others: from then on the certificate is "
           "refused everywhere, and its live connections are closed.",
};

static int revoke_run(int argc, char **argv)
{
    struct ca_args args = args_parse(&revoke_argp, 1, argc, argv);
    struct hdt_error err = {0};
    struct hdt_ca_entry entry;
    struct hdt_ca *ca;
    char who[HDT_IDENTITY_URI_CAP], *path;
    int rc = HDT_EXIT_OK;

    if (hdt_ca_folder_open(args.dir, &ca, &err) != HDT_OK) {
        return hdt_cmd_fail(&err);
    }
    if (hdt_ca_revoke(ca, args.words[0], &entry, &err) != HDT_OK) {
        rc = hdt_cmd_fail(&err);
    } else if (args.json) {
        json_print(hdt_ca_entry_to_json(&entry));
    } else {
        path = hdt_ca_path(ca, "crl.pem");
        printf("revoked %s, serial %s; copy %s to a site (tls.crl) and reload its gateway\n",
               hdt_identity_describe(&entry.identity, who), entry.serial, path);
        free(path);
    }
    hdt_ca_close(ca);
    return rc;
}

/* ---- list ---- */

static const struct argp_option list_options[] = {ROW_DIR, ROW_JSON, {0}};
static const struct argp list_argp = {
    .options = list_options,
    .parser = option_parse,
    .doc = "List the certificates that the authority has signed, oldest first.",
};

static const char *entry_state(const struct hdt_ca_entry *entry, char buf[32])
{
    char date[16];

    if (entry->revoked_s) {
        snprintf(buf, 32, "revoked %s", hdt_ca_date_format(entry->revoked_s, date));
    } else if (entry->dates.until_s < (int64_t)time(NULL)) {
        snprintf(buf, 32, "expired");
    } else {
        snprintf(buf, 32, "valid");
    }
    return buf;
}

static void list_print(const struct hdt_ca *ca, bool as_json)
{
    char who[HDT_IDENTITY_URI_CAP], until[16], state[32];
    json_t *array = json_array();
    size_t n;
    const struct hdt_ca_entry *entries = hdt_ca_entries(ca, &n);

    if (!as_json) {
        printf("%-18s%-12s%-20s%s\n", "SERIAL", "UNTIL", "STATE", "IDENTITY");
    }
    for (size_t i = 0; i < n; i++) {
        if (as_json) {
            json_array_append_new(array, hdt_ca_entry_to_json(&entries[i]));
        } else {
            printf("%-18s%-12s%-20s%s\n", entries[i].serial,
                   hdt_ca_date_format(entries[i].dates.until_s, until),
                   entry_state(&entries[i], state),
                   hdt_identity_describe(&entries[i].identity, who));
        }
    }
    if (as_json) {
        json_print(array);
    } else {
        json_decref(array);
    }
}

static int list_run(int argc, char **argv)
{
    struct ca_args args = args_parse(&list_argp, 0, argc, argv);
    struct hdt_error err = {0};
    struct hdt_ca *ca;

    if (hdt_ca_folder_open(args.dir, &ca, &err) != HDT_OK) {
        return hdt_cmd_fail(&err);
    }
    list_print(ca, args.json);
    hdt_ca_close(ca);
    return HDT_EXIT_OK;
}

/* ---- the group ---- */

static const struct hdt_cmd init_cmd = {"init", "make the authority of a federation", init_run,
                                        &init_argp, NULL};
static const struct hdt_cmd issue_cmd = {"issue", "make key and certificate, for trials", issue_run,
                                         &issue_argp, NULL};
static const struct hdt_cmd request_cmd = {"request", "make a key and a request, on a site",
                                           request_run, &request_argp, NULL};
static const struct hdt_cmd sign_cmd = {"sign", "answer a request with a certificate", sign_run,
                                        &sign_argp, NULL};
static const struct hdt_cmd revoke_cmd = {"revoke", "revoke a certificate", revoke_run,
                                          &revoke_argp, NULL};
static const struct hdt_cmd list_cmd = {"list", "list the certificates", list_run, &list_argp,
                                        NULL};
static const struct hdt_cmd *const subs[] = {&init_cmd,   &hdt_cmd_ca_bundle, &hdt_cmd_ca_install,
                                             &issue_cmd,  &request_cmd,       &sign_cmd,
                                             &revoke_cmd, &list_cmd,          NULL};

static int ca_run(int argc, char **argv)
{
    return hdt_cmd_dispatch(subs,
                            "The certificate authority of a federation: who may speak, and as "
                            "what.\n\nCommands:\n",
                            argc, argv);
}

const struct hdt_cmd hdt_cmd_ca = {
    "ca", "certificates: init, bundle, install, issue, request, sign, revoke, list", ca_run, NULL,
    subs};
