/* SPDX-License-Identifier: Apache-2.0 */
/* hdt ca install: a bundle on its machine. */
#include "config.h"

#include "src/cli/ca_folder.h"
#include "src/cli/cmd.h"
#include "src/base/conf.h"
#include "src/base/file.h"
#include "src/core/gateway_conf.h"
#include "src/core/worker_conf.h"
#include "src/net/bundle.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum install_option { OPT_TO = 256, OPT_CHECK, OPT_FORCE };

struct install_args {
    const char *to, *file;
    bool check, force;
};

static const struct argp_option install_options[] = {
    {"to", OPT_TO, "DIR", 0, "Folder of the settings (default " HDT_SYSCONFDIR ")", 0},
    {"check", OPT_CHECK, NULL, 0, "Check the file, print what is in it, write nothing", 0},
    {"force", OPT_FORCE, NULL, 0,
     "Replace settings, and certificates of another owner or authority", 0},
    {0},
};

static error_t install_option_parse(int key, char *arg, struct argp_state *state)
{
    struct install_args *args = state->input;

    switch (key) {
    case OPT_TO:
        args->to = arg;
        return 0;
    case OPT_CHECK:
        args->check = true;
        return 0;
    case OPT_FORCE:
        args->force = true;
        return 0;
    case ARGP_KEY_ARG:
        if (args->file) {
            argp_error(state, "unexpected '%s'", arg);
        }
        args->file = arg;
        return 0;
    case ARGP_KEY_END:
        if (!args->file) {
            argp_error(state, "too few arguments");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp install_argp = {
    .options = install_options,
    .parser = install_option_parse,
    .args_doc = "FILE",
    .doc =
        "Install a bundle of 'hdt ca bundle': certificates and key in DIR/tls, settings in "
        "DIR/gateway.yaml or worker.yaml unless you have written that file already. All is checked "
        "before anything is written: key and certificate fit, one authority and federation, "
        "valid now, not revoked, the same owner as before. As root, key and certificates "
        "belong to root and are read by the group hdt of the services. A newer bundle renews "
        "the certificate: reload the service.",
};

/* What a role's program reads; NULL: none. */
static const char *settings_name(enum hdt_role role)
{
    return role == HDT_ROLE_SITE ? "gateway.yaml" : role == HDT_ROLE_WORKER ? "worker.yaml" : NULL;
}

static enum hdt_status gateway_settings_check(const struct hdt_gateway_conf *conf,
                                              const struct hdt_identity *identity, const char *file,
                                              struct hdt_error *err)
{
    if (strcmp(conf->site, identity->site) == 0 &&
        strcmp(conf->federation, identity->federation) == 0) {
        return HDT_OK;
    }
    hdt_error_set(err, HDT_EEXIST,
                  "'%s' is of site %s of federation %s, the certificate of %s of %s", file,
                  conf->site, conf->federation, identity->site, identity->federation);
    hdt_error_hint(err, "install to another folder (--to DIR), or replace it with --force");
    return HDT_EEXIST;
}

static const struct hdt_conf_schema *settings_schema(enum hdt_role role)
{
    return role == HDT_ROLE_SITE ? &hdt_gateway_conf_schema : &hdt_worker_conf_schema;
}

/* Settings from the bundle (text) or of the file that is there already (text NULL). */
static enum hdt_status settings_check(const struct hdt_identity *identity, const char *file,
                                      const struct hdt_buf *text, struct hdt_error *err)
{
    const struct hdt_conf_schema *schema = settings_schema(identity->role);
    union {
        struct hdt_gateway_conf gateway;
        struct hdt_worker_conf worker;
    } conf;
    enum hdt_status status =
        text ? hdt_conf_parse(schema, text->data, text->len, file, &conf, NULL, err)
             : hdt_conf_load(schema, file, &conf, NULL, err);

    HDT_TRY(status);
    if (identity->role == HDT_ROLE_SITE) {
        status = gateway_settings_check(&conf.gateway, identity, file, err);
    }
    hdt_conf_release(schema, &conf);
    return status;
}

struct install_paths {
    char *tls, *settings; /* settings NULL: the role has none */
    bool has_settings;    /* they are there, and somebody has written them */
};

/* Is that file the example of `hdt config example`, as packages install it? */
static bool is_example(const struct hdt_conf_schema *schema, const char *path)
{
    struct hdt_error ignored = {0};
    struct hdt_buf there = {0};
    char *example = NULL;
    size_t len = 0;
    FILE *stream = open_memstream(&example, &len);
    bool is_same;

    HDT_ASSERT(stream);
    hdt_conf_write_example(schema, stream);
    fclose(stream);
    is_same = hdt_file_read(path, len, &there, &ignored) == HDT_OK && there.len == len &&
              memcmp(hdt_buf_str(&there), example, len) == 0;
    hdt_buf_release(&there);
    free(example);
    return is_same;
}

static struct install_paths paths_make(const char *dir, enum hdt_role role)
{
    const char *name = settings_name(role);
    struct install_paths paths = {.tls = hdt_asprintf("%s/tls", dir),
                                  .settings = name ? hdt_asprintf("%s/%s", dir, name) : NULL};

    paths.has_settings = paths.settings && hdt_file_exists(paths.settings) &&
                         !is_example(settings_schema(role), paths.settings);
    return paths;
}

static enum hdt_status install_check(const struct hdt_bundle *bundle,
                                     const struct install_args *args,
                                     const struct install_paths *paths, struct hdt_error *err)
{
    if (bundle->settings.len > 0) {
        if (!paths->settings) {
            return hdt_error_set(err, HDT_EINVAL,
                                 "cannot use bundle '%s': settings for an operator", args->file);
        }
        HDT_TRY(settings_check(&bundle->identity, paths->settings, &bundle->settings, err));
    }
    if (args->force) {
        return HDT_OK;
    }
    HDT_TRY(hdt_bundle_check_folder(bundle, paths->tls, err));
    return paths->has_settings ? settings_check(&bundle->identity, paths->settings, NULL, err)
                               : HDT_OK;
}

static void bundle_describe(const struct hdt_bundle *bundle)
{
    char who[HDT_IDENTITY_URI_CAP], until[16];

    printf("%s of federation %s, valid until %s\n", hdt_identity_describe(&bundle->identity, who),
           bundle->identity.federation, hdt_ca_date_format(bundle->dates.until_s, until));
}

static const char *next_step(enum hdt_role role)
{
    return role == HDT_ROLE_SITE
               ? "next: systemctl enable --now hdt-gateway; after a renewal: systemctl reload "
                 "hdt-gateway\n"
           : role == HDT_ROLE_WORKER
               ? "next: systemctl enable --now hdt-worker; after a renewal: systemctl reload "
                 "hdt-worker\n"
               : "next: hdt status --gateway tls:HOST:7422 with --ca, --cert and --key\n";
}

static enum hdt_status install_write(const struct hdt_bundle *bundle,
                                     const struct install_args *args,
                                     const struct install_paths *paths, struct hdt_error *err)
{
    HDT_TRY(hdt_dir_make(args->to, 0755, err));
    HDT_TRY(hdt_bundle_unpack(bundle, paths->tls, err));
    bundle_describe(bundle);
    printf("key and certificates in %s/\n", paths->tls);
    if (bundle->settings.len > 0 && (!paths->has_settings || args->force)) {
        HDT_TRY(hdt_file_write(paths->settings, &bundle->settings, 0644, HDT_FILE_REPLACE, err));
        printf("settings in %s\n", paths->settings);
    } else if (paths->has_settings) {
        printf("settings kept as they are: %s\n", paths->settings);
    }
    printf("'%s' holds the private key and is not needed any more: delete it\n", args->file);
    if (geteuid() == 0 && !hdt_bundle_has_group()) {
        fflush(stdout);
        fputs("hdt: warning: there is no group '" HDT_SERVICE_GROUP "' yet, so that its services "
              "cannot read the key: run systemd-sysusers, then install again\n",
              stderr);
    }
    fputs(next_step(bundle->identity.role), stdout);
    return HDT_OK;
}

static enum hdt_status install(const struct install_args *args, struct hdt_error *err)
{
    struct install_paths paths;
    struct hdt_bundle bundle;
    enum hdt_status status;

    HDT_TRY(hdt_bundle_read(args->file, &bundle, err));
    paths = paths_make(args->to, bundle.identity.role);
    status = install_check(&bundle, args, &paths, err);
    if (status == HDT_OK && args->check) {
        bundle_describe(&bundle);
        fputs(hdt_buf_str(&bundle.settings), stdout);
    } else if (status == HDT_OK) {
        status = install_write(&bundle, args, &paths, err);
    }
    hdt_bundle_release(&bundle);
    free(paths.tls);
    free(paths.settings);
    return status;
}

static int install_run(int argc, char **argv)
{
    struct install_args args = {.to = HDT_SYSCONFDIR};
    struct hdt_error err = {0};

    hdt_cmd_parse(&install_argp, argc, argv, &args);
    return install(&args, &err) == HDT_OK ? HDT_EXIT_OK : hdt_cmd_fail(&err);
}

const struct hdt_cmd hdt_cmd_ca_install = {"install", "install a bundle on its machine",
                                           install_run, &install_argp, NULL};
