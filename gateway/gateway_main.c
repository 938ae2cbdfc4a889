/* SPDX-License-Identifier: Apache-2.0 */
/* hdt-gateway: a site's edge. Foreground daemon: settings, main loop, signals. */
#include "config.h"

#include "gateway/audit.h"
#include "gateway/channel.h"
#include "gateway/control.h"
#include "gateway/edges.h"
#include "gateway/member.h"
#include "gateway/planner.h"
#include "gateway/store.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/notify.h"
#include "src/base/recorder.h"
#include "src/base/watchdog.h"
#include "src/core/channel_id.h"
#include "src/net/addr.h"
#include "src/net/engine.h"
#include "src/net/tls.h"

#include <argp.h>
#include <errno.h>
#include <event2/thread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utlist.h>

#define TICK_MS          250
#define TICKS_PER_REPORT 4
#define EXIT_USAGE       2 /* a wrong command line, as of hdt */

struct gateway_args {
    const char *config;
    bool check_config;
    int log_level; /* -1: as configured */
};

static const struct argp_option options[] = {
    {"config", 'c', "FILE", 0, "Settings (default " HDT_SYSCONFDIR "/gateway.yaml)", 0},
    {"check-config", 'n', NULL, 0, "Check settings and certificates, then end", 0},
    {"log-level", 'l', "LEVEL", 0, "error, warn, info, debug or trace; over the settings", 0},
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct gateway_args *args = state->input;

    switch (key) {
    case 'c':
        args->config = arg;
        return 0;
    case 'n':
        args->check_config = true;
        return 0;
    case 'l':
        for (int i = 0; hdt_log_level_names[i]; i++) {
            if (strcmp(hdt_log_level_names[i], arg) == 0) {
                args->log_level = i;
                return 0;
            }
        }
        argp_error(state, "'%s' is no log level", arg);
        return EINVAL;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected '%s'", arg);
        return EINVAL;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = options,
    .parser = parse_option,
    .doc = "The edge of one site: carries the tensors of training jobs to the gateways of other "
           "sites over mutually authenticated streams, and coordinates the jobs submitted to it."
           "\vSignals: TERM and INT end it (jobs go on when it comes back); HUP reads "
           "certificates and the revocation list again and opens the audit log anew; USR1 writes "
           "the flight recorder to state_dir.\n"
           "'hdt config example gateway' prints a settings file to start from.",
};

/* ---- events of the data plane ---- */

static void on_peer_up(void *user, const char *site, const json_t *hello)
{
    HDT_RECORD(HDT_REC_CONNECTION, .text = {"up", site});
    hdt_federation_peer_up(user, site, hello);
    hdt_channel_peer_up(user, site);
}

static void on_peer_down(void *user, const char *site, const struct hdt_error *why)
{
    HDT_RECORD(HDT_REC_CONNECTION, .text = {"down", site, why->msg});
    hdt_federation_peer_down(user, site, why);
    hdt_channel_peer_down(user, site, why);
}

static void on_peer_msg(void *user, const char *site, json_t *msg)
{
    hdt_route_from_peer(user, site, msg);
}

static void on_peer_refused(void *user, const char *site, const char *address,
                            const struct hdt_error *why, uint64_t n)
{
    struct hdt_gateway *gw = user;
    struct hdt_gwsite *peer = hdt_federation_site(gw, site);

    HDT_RECORD(HDT_REC_CONNECTION, .text = {"refused", site[0] ? site : address, why->msg});
    if (peer) {
        peer->n_refusals++;
    }
    if (peer && !peer->up) {
        snprintf(peer->why_down, sizeof(peer->why_down), "%s", why->msg);
        snprintf(peer->remedy, sizeof(peer->remedy), "%s", why->hint);
    }
    hdt_refusals_note(gw, site, address, why, n);
}

static void on_client_up(void *user, const struct hdt_client_info *info, const json_t *hello)
{
    struct hdt_gateway *gw = user;
    struct hdt_gwclient *client = hdt_calloc(1, sizeof(*client));

    client->id = info->client;
    client->role = info->role;
    snprintf(client->name, sizeof(client->name), "%s", info->name);
    if (info->role == HDT_CLIENT_WORKER) {
        snprintf(client->address, sizeof(client->address), "%s/%s", gw->conf.site, info->name);
    } else {
        snprintf(client->address, sizeof(client->address), "%s/%c%llu", gw->conf.site,
                 info->role == HDT_CLIENT_PROGRAM ? '+' : '@', (unsigned long long)info->client);
    }
    snprintf(client->identity, sizeof(client->identity), "%s", info->identity);
    snprintf(client->from, sizeof(client->from), "%s", info->address);
    LL_PREPEND(gw->clients, client);
    HDT_RECORD(HDT_REC_CONNECTION, .text = {"up", client->address, client->from});
    hdt_log_debug("client %s connected", client->address);
    if (info->role == HDT_CLIENT_WORKER) {
        hdt_federation_worker_up(gw, client, hello);
    }
}

static void on_client_msg(void *user, uint64_t client, json_t *msg)
{
    hdt_route_from_client(user, client, msg);
}

static void on_client_down(void *user, uint64_t id, const struct hdt_error *why)
{
    struct hdt_gateway *gw = user;
    struct hdt_gwclient *client = hdt_federation_client(gw, id);

    if (!client) {
        return;
    }
    HDT_RECORD(HDT_REC_CONNECTION, .text = {"down", client->address, why->msg});
    LL_DELETE(gw->clients, client);
    if (client->role == HDT_CLIENT_WORKER) {
        hdt_federation_worker_down(gw, client, why);
    } else if (client->role == HDT_CLIENT_PROGRAM) {
        hdt_channel_client_down(gw, client, why);
    }
    free(client);
}

static void on_probed(void *user, const char *site, double bytes_per_s, double rtt_s)
{
    hdt_survey_probed(user, site, bytes_per_s, rtt_s);
}

static void on_flow_failed(void *user, uint32_t job, uint32_t epoch, const struct hdt_error *why)
{
    if (hdt_channel_is_job(job)) {
        hdt_channel_flow_failed(user, job, why);
    } else {
        hdt_member_flow_failed(user, job, epoch, why);
    }
}

static const struct hdt_dataplane_events dataplane_events = {
    .peer_up = on_peer_up,
    .peer_down = on_peer_down,
    .peer_msg = on_peer_msg,
    .peer_refused = on_peer_refused,
    .client_up = on_client_up,
    .client_msg = on_client_msg,
    .client_down = on_client_down,
    .probed = on_probed,
    .flow_failed = on_flow_failed,
};

/* ---- the main loop's own events ---- */

static void on_dataplane(evutil_socket_t fd, short what, void *user)
{
    struct hdt_gateway *gw = user;

    (void)fd;
    (void)what;
    hdt_dataplane_dispatch(gw->dp);
}

/* The line of `systemctl status`. */
static void gateway_notify(struct hdt_gateway *gw)
{
    const struct hdt_gwworker *worker;
    const struct hdt_gwsite *site;
    int n_sites = 0, n_up = 0, n_workers = 0;

    LL_FOREACH(gw->sites, site)
    {
        n_sites++;
        n_up += site->up;
    }
    LL_FOREACH(gw->workers, worker)
    {
        n_workers += worker->up && strcmp(worker->info.site, gw->conf.site) == 0;
    }
    hdt_notify_status(&gw->notify, "site %s: %d of %d peers, %d workers", gw->conf.site, n_up,
                      n_sites, n_workers);
    hdt_notify_alive(&gw->notify);
}

static void on_tick(evutil_socket_t fd, short what, void *user)
{
    struct hdt_gateway *gw = user;

    (void)fd;
    (void)what;
    hdt_route_tick(gw);
    hdt_survey_tick(gw);
    hdt_coordinator_tick(gw);
    hdt_channels_tick(gw);
    hdt_link_bench_tick(gw);
    if (++gw->n_ticks % TICKS_PER_REPORT == 0) {
        hdt_member_tick(gw);
        hdt_edges_tick(gw);
        hdt_own_cost_tick(gw);
        hdt_store_retry(gw->store);
        gateway_notify(gw);
    }
}

static void on_end_signal(evutil_socket_t number, short what, void *user)
{
    struct hdt_gateway *gw = user;

    (void)what;
    hdt_log_info("ending on %s", strsignal((int)number));
    hdt_watchdog_arm(gw->deadlines.end_us, "connections, codec threads or the store");
    hdt_notify_stopping();
    event_base_loopexit(gw->base, NULL);
}

static void certificates_reload(struct hdt_gateway *gw)
{
    struct hdt_error err = {0};

    if (hdt_audit_reopen(gw->audit, &err) != HDT_OK) {
        hdt_log_failure(HDT_LOG_ERROR, &err);
    }
    if (hdt_tls_ctx_reload(gw->tls, &err) != HDT_OK) {
        hdt_error_prefix(&err, "certificates stay as they were");
        hdt_log_failure(HDT_LOG_ERROR, &err);
        hdt_audit_self(gw, "certificates.refused", json_pack("{s:s}", "why", err.msg));
        return;
    }
    hdt_log_info("certificates and revocation list read again");
    hdt_audit_self(gw, "certificates.reloaded", NULL);
    hdt_revocation_spread(gw, "");
    hdt_dataplane_recheck(gw->dp);
}

static void on_reload_signal(evutil_socket_t number, short what, void *user)
{
    (void)number;
    (void)what;
    hdt_notify_reloading();
    certificates_reload(user);
    hdt_notify_ready();
}

/* ---- start ---- */

/* An address in the settings; empty is allowed. */
static enum hdt_status address_check(const struct hdt_conf_doc *doc, const char *key,
                                     const char *text, struct hdt_error *err)
{
    struct hdt_error why = {0};

    if (text[0] == '\0' || hdt_addr_check(text, &why) == HDT_OK) {
        return HDT_OK;
    }
    hdt_conf_error(doc, key, err, HDT_EINVAL, "%s", why.msg);
    hdt_error_hint(err, "%s", why.hint);
    return HDT_EINVAL;
}

static enum hdt_status addresses_check(const struct hdt_gateway *gw, const struct hdt_conf_doc *doc,
                                       struct hdt_error *err)
{
    const struct hdt_gateway_peer_conf *peers = gw->conf.peers.items;
    char *unix_text = hdt_asprintf("unix:%s", gw->conf.lan.socket);
    enum hdt_status status = address_check(doc, "lan.socket", unix_text, err);
    char key[64];

    free(unix_text);
    HDT_TRY(status);
    HDT_TRY(address_check(doc, "lan.listen", gw->conf.lan.listen, err));
    HDT_TRY(address_check(doc, "wan.listen", gw->conf.wan.listen, err));
    HDT_TRY(address_check(doc, "wan.advertise", gw->conf.wan.advertise, err));
    HDT_TRY(address_check(doc, "http.listen", gw->conf.http.listen, err));
    for (size_t i = 0; i < gw->conf.peers.n; i++) {
        snprintf(key, sizeof(key), "peers[%zu].address", i);
        HDT_TRY(address_check(doc, key, peers[i].address, err));
    }
    return HDT_OK;
}

static enum hdt_status gateway_check(const struct hdt_gateway *gw, const struct hdt_conf_doc *doc,
                                     struct hdt_error *err)
{
    const struct hdt_gateway_peer_conf *peers = gw->conf.peers.items;
    char key[64];

    if (!hdt_name_is_valid(gw->conf.site)) {
        return hdt_conf_error(doc, "site", err, HDT_EINVAL,
                              "'%s' is no site name: 1 to 63 of a-z, A-Z, 0-9, '.', '_', '-'",
                              gw->conf.site);
    }
    if (gw->conf.data.memory / 4 < gw->conf.wan.chunk) {
        return hdt_conf_error(doc, "data.memory", err, HDT_EINVAL,
                              "data.memory must hold at least four chunks (wan.chunk)");
    }
    for (size_t i = 0; i < gw->conf.peers.n; i++) {
        snprintf(key, sizeof(key), "peers[%zu].site", i);
        if (!hdt_name_is_valid(peers[i].site)) {
            return hdt_conf_error(doc, key, err, HDT_EINVAL, "'%s' is no site name", peers[i].site);
        }
        if (strcmp(peers[i].site, gw->conf.site) == 0) {
            return hdt_conf_error(doc, key, err, HDT_EINVAL, "site %s cannot be its own peer",
                                  gw->conf.site);
        }
    }
    return addresses_check(gw, doc, err);
}

static enum hdt_status gateway_load(struct hdt_gateway *gw, const char *path, struct hdt_error *err)
{
    struct hdt_conf_doc *doc;
    struct hdt_tls_conf tls;
    enum hdt_status status;
    char *learned_crl;

    HDT_TRY(hdt_conf_load(&hdt_gateway_conf_schema, path, &gw->conf, &doc, err));
    status = gateway_check(gw, doc, err);
    if (status == HDT_OK) {
        status = hdt_budgets_load(gw, doc, err);
    }
    hdt_conf_doc_free(doc);
    hdt_deadlines_derive(&gw->deadlines, gw->conf.progress_timeout, 0);
    if (status != HDT_OK) {
        return status;
    }
    learned_crl = hdt_asprintf("%s/crl.pem", gw->conf.state_dir);
    tls = (struct hdt_tls_conf){
        .ca_path = gw->conf.tls.ca,
        .cert_path = gw->conf.tls.cert,
        .key_path = gw->conf.tls.key,
        .crl_path = gw->conf.tls.crl,
        .learned_crl_path = learned_crl,
        .own_roles = HDT_ROLE_SITE,
        .federation = gw->conf.federation,
        .site = gw->conf.site,
    };
    status = hdt_tls_ctx_new(&tls, &gw->tls, err);
    free(learned_crl);
    return status;
}

static enum hdt_status listen_on(struct hdt_gateway *gw, enum hdt_listener kind, const char *text,
                                 struct hdt_error *err)
{
    struct hdt_addr addr;
    char actual[160];
    int fd;

    if (text[0] == '\0') {
        return HDT_OK;
    }
    HDT_TRY(hdt_addr_parse(text, &addr, err));
    HDT_TRY(hdt_addr_listen(&addr, 0660, &fd, err));
    if (!addr.is_unix) {
        hdt_addr_of_socket(fd, false, actual, sizeof(actual));
        text = actual;
    }
    if (kind == HDT_LISTENER_WAN) {
        snprintf(gw->wan_address, sizeof(gw->wan_address), "%s", text);
    }
    if (kind == HDT_LISTENER_LAN_UNIX) {
        gw->owns_socket = true;
    }
    hdt_dataplane_listen(gw->dp, kind, fd);
    hdt_log_info("listening on %s (%s)", text,
                 kind == HDT_LISTENER_WAN        ? "gateways, mutual TLS"
                 : kind == HDT_LISTENER_LAN_UNIX ? "workers and operators of this host"
                                                 : "workers and operators, mutual TLS");
    return HDT_OK;
}

/* systemd makes it for the service; by hand nobody has. Why it cannot be made, the socket says. */
static void socket_dir_make(const char *socket)
{
    char *dir = hdt_strdup(socket);
    char *slash = strrchr(dir, '/');

    if (slash && slash != dir) {
        *slash = '\0';
        (void)mkdir(dir, 0750);
    }
    free(dir);
}

static enum hdt_status gateway_listen(struct hdt_gateway *gw, struct hdt_error *err)
{
    char *unix_text = hdt_asprintf("unix:%s", gw->conf.lan.socket);
    enum hdt_status status;

    socket_dir_make(gw->conf.lan.socket);
    status = listen_on(gw, HDT_LISTENER_LAN_UNIX, unix_text, err);
    free(unix_text);
    HDT_TRY(status);
    HDT_TRY(listen_on(gw, HDT_LISTENER_LAN_TLS, gw->conf.lan.listen, err));
    HDT_TRY(listen_on(gw, HDT_LISTENER_WAN, gw->conf.wan.listen, err));
    if (gw->conf.http.listen[0]) {
        HDT_TRY(hdt_http_open(gw, &gw->http, err));
    }
    return HDT_OK;
}

/* Which engine moves the bytes; said once, with the reason. */
static const char *gateway_choose_engine(const struct hdt_gateway *gw)
{
    struct hdt_engine_choice choice;

    hdt_engine_choose(hdt_gateway_engine_names[gw->conf.data.engine], &choice);
    if (choice.refused.status != HDT_OK) {
        hdt_log_failure(HDT_LOG_WARN, &choice.refused);
    }
    hdt_log_info("I/O engine %s: %s", choice.name, choice.why);
    return choice.name;
}

static enum hdt_status gateway_open_dataplane(struct hdt_gateway *gw, struct hdt_error *err)
{
    const struct hdt_dataplane_conf conf = {
        .site = gw->conf.site,
        .federation = gw->conf.federation,
        .instance = gw->instance,
        .tls = gw->tls,
        .version = PACKAGE_VERSION,
        .advertise = gw->conf.wan.advertise,
        .n_io_threads = (int)gw->conf.data.io_threads,
        .n_codec_threads = (int)gw->conf.data.codec_threads,
        .n_streams = (int)gw->conf.wan.streams,
        .chunk_bytes = gw->conf.wan.chunk,
        .memory_bytes = gw->conf.data.memory,
        .rate_bits_per_s = gw->conf.wan.rate,
        .budgets = gw->budgets,
        .n_budgets = (unsigned)gw->conf.budgets.n,
        .pace = gw->conf.wan.pace,
        .congestion = gw->conf.wan.congestion,
        .engine = gateway_choose_engine(gw),
        .deadlines = gw->deadlines,
    };

    return hdt_dataplane_open(&conf, &dataplane_events, gw, &gw->dp, err);
}

static enum hdt_status recorder_open(const struct hdt_gateway *gw, struct hdt_error *err)
{
    char *name = hdt_asprintf("gateway-%s", gw->conf.site);
    enum hdt_status status = hdt_recorder_open(gw->conf.state_dir, name, err);

    free(name);
    return status;
}

static enum hdt_status gateway_open(struct hdt_gateway *gw, struct hdt_error *err)
{
    if (getrandom(&gw->instance, sizeof(gw->instance), 0) != sizeof(gw->instance)) {
        return hdt_error_set_errno(err, HDT_EIO, errno, "cannot get random bytes");
    }
    gw->started_us = hdt_clock_now_us();
    if (mkdir(gw->conf.state_dir, 0750) != 0 && errno != EEXIST) {
        hdt_error_set_errno(err, HDT_EIO, errno, "cannot make state_dir '%s'", gw->conf.state_dir);
        hdt_error_hint(err, "make it and give it to the user that runs hdt-gateway");
        return HDT_EIO;
    }
    HDT_TRY(recorder_open(gw, err));
    HDT_TRY(hdt_store_open(gw->conf.state_dir, &gw->store, err));
    HDT_TRY(hdt_audit_open(gw->conf.state_dir, &gw->audit, err));
    gw->base = event_base_new();
    if (!gw->base) {
        return hdt_error_set(err, HDT_ENOMEM, "cannot start the event loop");
    }
    HDT_TRY(gateway_open_dataplane(gw, err));
    HDT_TRY(gateway_listen(gw, err));
    hdt_member_start(gw);
    hdt_coordinator_start(gw);
    hdt_federation_start(gw);
    return HDT_OK;
}

static void gateway_close(struct hdt_gateway *gw)
{
    /* While it is still ours: once it is closed, another gateway may take the path. */
    if (gw->owns_socket) {
        unlink(gw->conf.lan.socket);
    }
    hdt_http_close(gw->http);
    hdt_edges_free(gw);
    hdt_member_free(gw);
    hdt_dataplane_close(gw->dp);
    hdt_link_bench_free(gw);
    hdt_survey_free(gw);
    hdt_planner_close(gw);
    hdt_coordinator_free(gw);
    hdt_route_free(gw);
    hdt_channels_free(gw);
    hdt_federation_free(gw);
    hdt_store_close(gw->store);
    hdt_audit_close(gw->audit);
    hdt_recorder_close();
    hdt_log_flush();
    hdt_tls_ctx_free(gw->tls);
    if (gw->base) {
        event_base_free(gw->base);
    }
    libevent_global_shutdown();
    hdt_conf_release(&hdt_gateway_conf_schema, &gw->conf);
}

static void gateway_run(struct hdt_gateway *gw)
{
    static const struct timeval tick = {.tv_usec = TICK_MS * 1000};
    struct event *events[] = {
        event_new(gw->base, hdt_dataplane_fd(gw->dp), EV_READ | EV_PERSIST, on_dataplane, gw),
        event_new(gw->base, -1, EV_PERSIST, on_tick, gw),
        evsignal_new(gw->base, SIGTERM, on_end_signal, gw),
        evsignal_new(gw->base, SIGINT, on_end_signal, gw),
        evsignal_new(gw->base, SIGHUP, on_reload_signal, gw),
    };
    size_t n = sizeof(events) / sizeof(events[0]);

    for (size_t i = 0; i < n; i++) {
        event_add(events[i], i == 1 ? &tick : NULL);
    }
    hdt_log_info("ready: site %s of federation %s, hdt %s", gw->conf.site, gw->conf.federation,
                 PACKAGE_VERSION);
    hdt_audit_self(gw, "gateway.started", json_pack("{s:s}", "version", PACKAGE_VERSION));
    hdt_notify_ready();
    event_base_dispatch(gw->base);
    hdt_audit_self(gw, "gateway.ended", NULL);
    for (size_t i = 0; i < n; i++) {
        event_free(events[i]);
    }
}

int main(int argc, char **argv)
{
    struct gateway_args args = {.config = HDT_SYSCONFDIR "/gateway.yaml", .log_level = -1};
    struct hdt_gateway gw = {0};
    struct hdt_error err = {0};
    char ident[HDT_NAME_CAP + 16];
    int exit_code = 0;

    argp_err_exit_status = EXIT_USAGE;
    argp_program_version = "hdt-gateway (HDT) " PACKAGE_VERSION;
    argp_parse(&argp, argc, argv, 0, NULL, &args);
    signal(SIGPIPE, SIG_IGN);
    if (gateway_load(&gw, args.config, &err) != HDT_OK) {
        hdt_error_print(&err, "hdt-gateway");
        gateway_close(&gw);
        return 1;
    }
    if (args.check_config) {
        printf("%s: good gateway settings: site %s of federation %s\n", args.config, gw.conf.site,
               gw.conf.federation);
        gateway_close(&gw);
        return 0;
    }
    snprintf(ident, sizeof(ident), "hdt-gateway %s", gw.conf.site);
    hdt_log_init(ident,
                 (enum hdt_log_level)(args.log_level >= 0 ? args.log_level : gw.conf.log_level));
    if (gateway_open(&gw, &err) == HDT_OK) {
        gateway_run(&gw);
    } else {
        hdt_error_print(&err, "hdt-gateway");
        exit_code = 1;
    }
    gateway_close(&gw);
    return exit_code;
}
