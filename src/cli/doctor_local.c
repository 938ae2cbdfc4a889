/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "src/cli/doctor_local.h"
#include "src/base/buf.h"
#include "src/core/gateway_conf.h"
#include "src/net/tls.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- certificates ---- */

/* The files together: key fits, signed by the authority, valid now. */
static void check_files(json_t *checks, const struct hdt_tls_conf *conf)
{
    struct hdt_tls_ctx *ctx = NULL;
    struct hdt_error err = {0};

    if (hdt_tls_ctx_new(conf, &ctx, &err) != HDT_OK) {
        hdt_doctor_add(checks, "certificates", "fail", err.hint, "%s%s%s", err.where,
                       err.where[0] ? ": " : "", err.msg);
        return;
    }
    hdt_tls_ctx_free(ctx);
    hdt_doctor_certificate(checks, conf->cert_path);
}

/* Its state_dir, for the caller to free; NULL: it cannot be read. */
static char *check_gateway_conf(json_t *checks, const char *path)
{
    struct hdt_gateway_conf conf;
    struct hdt_error err = {0};
    struct hdt_tls_conf tls;
    char *state_dir;

    if (hdt_conf_load(&hdt_gateway_conf_schema, path, &conf, NULL, &err) != HDT_OK) {
        hdt_doctor_add(checks, "gateway.yaml", "fail", err.hint, "%s%s%s", err.where,
                       err.where[0] ? ": " : "", err.msg);
        return NULL;
    }
    hdt_doctor_add(checks, "gateway.yaml", "ok", "", "'%s' is valid", path);
    tls = (struct hdt_tls_conf){.ca_path = conf.tls.ca,
                                .cert_path = conf.tls.cert,
                                .key_path = conf.tls.key,
                                .crl_path = conf.tls.crl,
                                .own_roles = HDT_ROLE_SITE,
                                .federation = conf.federation,
                                .site = conf.site};
    check_files(checks, &tls);
    state_dir = hdt_strdup(conf.state_dir);
    hdt_conf_release(&hdt_gateway_conf_schema, &conf);
    return state_dir;
}

/* state_dir as the settings have it, for the caller to free; NULL: there are none. */
static char *check_settings(json_t *checks, const struct hdt_doctor_files *files)
{
    static const char installed[] = HDT_SYSCONFDIR "/gateway.yaml";
    struct hdt_tls_conf tls = {
        .ca_path = files->ca, .cert_path = files->cert, .key_path = files->key};

    if (files->ca && files->cert && files->key) {
        check_files(checks, &tls);
    } else if (files->cert) {
        hdt_doctor_certificate(checks, files->cert);
    }
    if (files->config) {
        return check_gateway_conf(checks, files->config);
    }
    return access(installed, R_OK) == 0 ? check_gateway_conf(checks, installed) : NULL;
}

static void check_tun(json_t *checks)
{
    int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);

    if (fd >= 0) {
        close(fd);
        hdt_doctor_add(checks, "tun", "ok", "", "/dev/net/tun can be opened");
        return;
    }
    hdt_doctor_add(checks, "tun", "warn", "run as root, or scripts/quickstart --loopback",
                   "/dev/net/tun: %s; only the quickstart's emulated WAN needs it",
                   strerror(errno));
}

void hdt_doctor_local(json_t *checks, const struct hdt_doctor_files *files)
{
    char *state_dir = check_settings(checks, files);
    const struct hdt_doctor_machine machine = {
        .root = "",
        .dirs = {{"state_dir", state_dir       ? state_dir
                               : files->config ? NULL
                                               : "/var/lib/hdt"}}};

    hdt_doctor_machine(checks, &machine);
    free(state_dir);
    check_tun(checks);
}
