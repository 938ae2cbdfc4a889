/* SPDX-License-Identifier: Apache-2.0 */
/* hdt ca bundle: everything that a machine needs to join, in one file. */
#include "config.h"

#include "src/cli/ca_folder.h"
#include "src/cli/cmd.h"
#include "src/base/file.h"
#include "src/net/addr.h"
#include "src/net/bundle.h"

#include <argp.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define PEERS_MAX 256

enum bundle_option {
    OPT_OUT = 256,
    OPT_PEER,
    OPT_LISTEN,
    OPT_GATEWAY,
    OPT_DAYS,
    OPT_FORCE,
    OPT_JSON
};

struct bundle_args {
    const char *dir, *out, *listen, *gateway;
    const char *peers[PEERS_MAX]; /* SITE or SITE=HOST:PORT */
    int n_peers;
    int64_t days;
    bool force, json;
    const char *words[2];
    int n_words;
};

static const struct argp_option bundle_options[] = {
    {"dir", 'd', "DIR", 0, "Folder of the authority (default $HDT_CA_DIR, else ~/.hdt/ca)", 0},
    {"out", OPT_OUT, "FILE", 0, "The file to write (default ./NAME.bundle)", 0},
    {"peer", OPT_PEER, "SITE=HOST:PORT", 0,
     "site: another site and where it is dialled; without an address that site dials this one. "
     "May be given several times",
     0},
    {"listen", OPT_LISTEN, "HOST:PORT", 0,
     "site: where other sites reach this one (default 0.0.0.0:7420); \"\": behind NAT, it dials",
     0},
    {"gateway", OPT_GATEWAY, "tls:HOST:PORT", 0, "worker: the gateway of its site", 0},
    {"days", OPT_DAYS, "N", 0, "Days that the certificate is valid (default 365)", 0},
    {"force", OPT_FORCE, NULL, 0, "Replace the file when it is there already", 0},
    {"json", OPT_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

static error_t bundle_word(struct bundle_args *args, char *arg, struct argp_state *state)
{
    if (args->n_words == 2) {
        argp_error(state, "unexpected '%s'", arg);
        return EINVAL;
    }
    args->words[args->n_words++] = arg;
    return 0;
}

static error_t bundle_option_parse(int key, char *arg, struct argp_state *state)
{
    struct bundle_args *args = state->input;

    switch (key) {
    case 'd':
        args->dir = arg;
        return 0;
    case OPT_OUT:
        args->out = arg;
        return 0;
    case OPT_PEER:
        if (args->n_peers == PEERS_MAX) {
            argp_error(state, "more than %d peers", PEERS_MAX);
        }
        args->peers[args->n_peers++] = arg;
        return 0;
    case OPT_LISTEN:
        args->listen = arg;
        return 0;
    case OPT_GATEWAY:
        args->gateway = arg;
        return 0;
    case OPT_DAYS:
        args->days = hdt_ca_days_parse(arg);
        if (!args->days) {
            argp_error(state, "--days '%s' is not a number from 1 to %d", arg, HDT_CA_DAYS_MAX);
        }
        return 0;
    case OPT_FORCE:
        args->force = true;
        return 0;
    case OPT_JSON:
        args->json = true;
        return 0;
    case ARGP_KEY_ARG:
        return bundle_word(args, arg, state);
    case ARGP_KEY_END:
        if (args->n_words < 2) {
            argp_error(state, "too few arguments");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp bundle_argp = {
    .options = bundle_options,
    .parser = bundle_option_parse,
    .args_doc = "site NAME\nworker SITE/NAME\noperator NAME",
    .doc = "Make key and certificate for a machine and put them into one file with the authority's "
           "certificate, the revocation list and its settings (gateway.yaml of a site, worker.yaml "
           "of a worker with --gateway). Copy the file there over ssh; 'hdt ca install' does the "
           "rest. Where keys should not travel, use 'hdt ca request' and 'hdt ca sign'.",
};

#define TLS_LINES "tls:\n  ca: tls/ca.pem\n  cert: tls/cert.pem\n  key: tls/key.pem\n"

static enum hdt_status peer_append(struct hdt_buf *out, const char *peer, struct hdt_error *err)
{
    const char *equals = strchr(peer, '=');
    char *site = hdt_strdup(peer);
    enum hdt_status status = HDT_OK;

    if (equals) {
        site[equals - peer] = '\0';
    }
    if (!hdt_identity_name_is_valid(site)) {
        status = hdt_error_set(err, HDT_EINVAL,
                               "--peer '%s' does not begin with the name of a site", peer);
    } else if (equals) {
        status = hdt_addr_check(equals + 1, err);
    }
    if (status == HDT_OK) {
        hdt_buf_appendf(out, "  - site: %s\n    address: \"%s\"\n", site, equals ? equals + 1 : "");
    }
    free(site);
    return status;
}

static enum hdt_status gateway_settings(const struct bundle_args *args,
                                        const struct hdt_identity *identity, struct hdt_buf *out,
                                        struct hdt_error *err)
{
    hdt_buf_appendf(out,
                    "# 'hdt config explain gateway' has all settings.\n"
                    "site: %s\nfederation: %s\n" TLS_LINES "  crl: tls/crl.pem\n",
                    identity->site, identity->federation);
    if (args->listen) {
        HDT_TRY(args->listen[0] ? hdt_addr_check(args->listen, err) : HDT_OK);
        hdt_buf_appendf(out, "wan:\n  listen: \"%s\"\n", args->listen);
    }
    if (args->n_peers > 0) {
        hdt_buf_append_str(out, "peers:\n");
    }
    for (int i = 0; i < args->n_peers; i++) {
        HDT_TRY(peer_append(out, args->peers[i], err));
    }
    return HDT_OK;
}

static enum hdt_status worker_settings(const struct bundle_args *args,
                                       const struct hdt_identity *identity, struct hdt_buf *out,
                                       struct hdt_error *err)
{
    if (!args->gateway) {
        return HDT_OK;
    }
    if (strncmp(args->gateway, "tls:", 4) != 0) {
        hdt_error_set(err, HDT_EINVAL, "--gateway '%s' is not of the form tls:HOST:PORT",
                      args->gateway);
        hdt_error_hint(err, "a worker beside its gateway needs no certificate");
        return HDT_EINVAL;
    }
    HDT_TRY(hdt_addr_check(args->gateway + 4, err));
    hdt_buf_appendf(out,
                    "# 'hdt config explain worker' has all settings.\n"
                    "name: %s\ngateway: \"%s\"\n" TLS_LINES,
                    identity->name, args->gateway);
    return HDT_OK;
}

static enum hdt_status settings_make(const struct bundle_args *args,
                                     const struct hdt_identity *identity, struct hdt_buf *out,
                                     struct hdt_error *err)
{
    if (identity->role == HDT_ROLE_SITE && !args->gateway) {
        return gateway_settings(args, identity, out, err);
    }
    if (identity->role != HDT_ROLE_SITE && !args->listen && args->n_peers == 0) {
        return identity->role == HDT_ROLE_WORKER ? worker_settings(args, identity, out, err)
               : args->gateway
                   ? hdt_error_set(err, HDT_EINVAL, "--gateway is for bundles of workers")
                   : HDT_OK;
    }
    return hdt_error_set(err, HDT_EINVAL, "%s for bundles of %s",
                         args->gateway ? "--gateway is" : "--peer and --listen are",
                         args->gateway ? "workers" : "sites");
}

static void bundle_print(const struct bundle_args *args, const struct hdt_ca_entry *entry,
                         const char *path)
{
    char who[HDT_IDENTITY_URI_CAP], until[16];
    json_t *json;

    if (args->json) {
        json = hdt_ca_entry_to_json(entry);
        json_object_set_new(json, "file", json_string(path));
        json_dumpf(json, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(json);
        return;
    }
    printf("bundle of %s, serial %s, valid until %s: %s\n"
           "next: copy it to that machine over ssh, there: hdt ca install FILE\n"
           "it holds the private key: delete it here and there after that\n",
           hdt_identity_describe(&entry->identity, who), entry->serial,
           hdt_ca_date_format(entry->dates.until_s, until), path);
}

/* Nothing is signed before all that can be wrong was looked at. */
static enum hdt_status bundle_make(const struct bundle_args *args, struct hdt_ca *ca,
                                   struct hdt_error *err)
{
    struct hdt_ca_entry entry = {.dates = hdt_ca_dates_days(args->days ? args->days : HDT_CA_DAYS)};
    char stem[HDT_IDENTITY_URI_CAP];
    struct hdt_bundle bundle = {0};
    struct hdt_buf settings = {0};
    enum hdt_status status;
    char *path;

    HDT_TRY(hdt_identity_make(hdt_ca_federation(ca), args->words[0], args->words[1],
                              &entry.identity, err));
    path = args->out ? hdt_strdup(args->out)
                     : hdt_asprintf("%s.bundle", hdt_ca_stem(&entry.identity, stem));
    status = settings_make(args, &entry.identity, &settings, err);
    if (status == HDT_OK && !args->force && hdt_file_exists(path)) {
        status = hdt_error_set(err, HDT_EEXIST, "'%s' exists already; nothing was changed", path);
        hdt_error_hint(err, "write another file (--out FILE), or replace it with --force");
    }
    status = status == HDT_OK ? hdt_ca_bundle(ca, &entry, &bundle, err) : status;
    if (status == HDT_OK) {
        hdt_buf_append(&bundle.settings, settings.data, settings.len);
        status = hdt_bundle_write(&bundle, path, args->force, err);
    }
    if (status == HDT_OK) {
        bundle_print(args, &entry, path);
    }
    hdt_bundle_release(&bundle);
    hdt_buf_release(&settings);
    free(path);
    return status;
}

static int bundle_run(int argc, char **argv)
{
    struct bundle_args args = {0};
    struct hdt_error err = {0};
    enum hdt_status status;
    struct hdt_ca *ca;

    hdt_cmd_parse(&bundle_argp, argc, argv, &args);
    if (hdt_ca_folder_open(args.dir, &ca, &err) != HDT_OK) {
        return hdt_cmd_fail(&err);
    }
    status = bundle_make(&args, ca, &err);
    hdt_ca_close(ca);
    return status == HDT_OK ? HDT_EXIT_OK : hdt_cmd_fail(&err);
}

const struct hdt_cmd hdt_cmd_ca_bundle = {"bundle", "make one file that lets a machine join",
                                          bundle_run, &bundle_argp, NULL};
