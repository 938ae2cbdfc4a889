/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is there. A gateway knows some peers from its settings and learns the others: every
 * "site.info" names the sender's workers and the sites it knows with their addresses. Each gateway
 * owns the truth about its own workers and sends it whole after every change: a few hundred bytes,
 * so that nothing has to be merged.
 */
#include "config.h"

#include "gateway/audit.h"
#include "gateway/control.h"
#include "gateway/member.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/core/msg.h"
#include "src/net/addr.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#define MAX_SITES            256
#define MAX_WORKERS_PER_SITE 4096
#define LEARN_AGAIN_US       (10 * HDT_US_PER_S) /* two who contradict each other take turns */

struct hdt_gwsite *hdt_federation_site(struct hdt_gateway *gw, const char *name)
{
    struct hdt_gwsite *site;

    LL_FOREACH(gw->sites, site)
    {
        if (strcmp(site->name, name) == 0) {
            return site;
        }
    }
    return NULL;
}

bool hdt_federation_site_is_up(struct hdt_gateway *gw, const char *name)
{
    const struct hdt_gwsite *site = hdt_federation_site(gw, name);

    return strcmp(name, gw->conf.site) == 0 || (site && site->up);
}

bool hdt_federation_site_may_return(struct hdt_gateway *gw, const char *name)
{
    const struct hdt_gwsite *site = hdt_federation_site(gw, name);

    return site && !site->up && hdt_clock_now_us() - site->since_us < gw->deadlines.reopen_us;
}

bool hdt_federation_is_settled(struct hdt_gateway *gw)
{
    const int64_t now_us = hdt_clock_now_us();
    const struct hdt_gwworker *worker;
    const struct hdt_gwsite *site;

    LL_FOREACH(gw->sites, site)
    {
        if (hdt_federation_site_may_return(gw, site->name)) {
            return false;
        }
    }
    LL_FOREACH(gw->workers, worker)
    {
        if (!worker->up && !worker->has_left &&
            now_us - worker->since_us < gw->deadlines.reopen_us) {
            return false;
        }
    }
    return true;
}

struct hdt_gwworker *hdt_federation_worker(struct hdt_gateway *gw, const char *site,
                                           const char *name)
{
    struct hdt_gwworker *worker;

    LL_FOREACH(gw->workers, worker)
    {
        if (strcmp(worker->info.site, site) == 0 && strcmp(worker->info.name, name) == 0) {
            return worker;
        }
    }
    return NULL;
}

struct hdt_gwclient *hdt_federation_client(struct hdt_gateway *gw, uint64_t id)
{
    struct hdt_gwclient *client;

    LL_SEARCH_SCALAR(gw->clients, client, id, id);
    return client;
}

static struct hdt_gwsite *site_add(struct hdt_gateway *gw, const char *name)
{
    struct hdt_gwsite *site;
    int n_sites;

    LL_COUNT(gw->sites, site, n_sites);
    if (n_sites >= MAX_SITES) {
        hdt_log_warn_limited(60, "site %s left out: more than %d sites", name, MAX_SITES);
        return NULL;
    }
    site = hdt_calloc(1, sizeof(*site));
    snprintf(site->name, sizeof(site->name), "%s", name);
    site->since_us = hdt_clock_now_us();
    snprintf(site->why_down, sizeof(site->why_down), "not connected yet");
    LL_APPEND(gw->sites, site);
    return site;
}

void hdt_federation_start(struct hdt_gateway *gw)
{
    const struct hdt_gateway_peer_conf *peers = gw->conf.peers.items;

    for (size_t i = 0; i < gw->conf.peers.n; i++) {
        struct hdt_gwsite *site = hdt_federation_site(gw, peers[i].site);

        site = site ? site : site_add(gw, peers[i].site);
        if (!site) {
            continue;
        }
        site->configured = true;
        if (peers[i].address[0]) {
            snprintf(site->address, sizeof(site->address), "%s", peers[i].address);
            hdt_dataplane_dial(gw->dp, site->name, site->address);
        }
    }
}

void hdt_federation_free(struct hdt_gateway *gw)
{
    struct hdt_gwsite *site, *next_site;
    struct hdt_gwworker *worker, *next_worker;
    struct hdt_gwclient *client, *next_client;

    LL_FOREACH_SAFE(gw->sites, site, next_site)
    {
        json_decref(site->links);
        free(site);
    }
    LL_FOREACH_SAFE(gw->workers, worker, next_worker)
    {
        free(worker);
    }
    LL_FOREACH_SAFE(gw->clients, client, next_client)
    {
        free(client);
    }
    gw->sites = NULL;
    gw->workers = NULL;
    gw->clients = NULL;
}

/* ---- what we say of ourselves ---- */

static json_t *worker_json(struct hdt_gateway *gw, const struct hdt_gwworker *worker)
{
    const char *busy_by = hdt_member_coordinator_of(gw, worker->info.site, worker->info.name);

    return json_pack("{s:s, s:s, s:s, s:I, s:i, s:b, s:b, s:b, s:s, s:s, s:s}", "name",
                     worker->info.name, "device", worker->info.device, "backend",
                     worker->info.backend, "memory_bytes", (json_int_t)worker->info.memory_bytes,
                     "n_threads", worker->info.n_threads, "bf16", worker->info.bf16, "fp8",
                     worker->info.fp8, "up", worker->up, "instance", worker->instance, "busy_by",
                     busy_by ? busy_by : "", "why", worker->why_down);
}

static json_t *site_info(struct hdt_gateway *gw)
{
    json_t *workers = json_array(), *sites = json_array();
    struct hdt_gwworker *worker;
    struct hdt_gwsite *site;

    LL_FOREACH(gw->workers, worker)
    {
        if (strcmp(worker->info.site, gw->conf.site) == 0) {
            json_array_append_new(workers, worker_json(gw, worker));
        }
    }
    LL_FOREACH(gw->sites, site)
    {
        if (site->address[0]) {
            json_array_append_new(
                sites, json_pack("{s:s, s:s}", "site", site->name, "address", site->address));
        }
    }
    return json_pack("{s:s, s:o, s:o}", "version", PACKAGE_VERSION, "workers", workers, "sites",
                     sites);
}

void hdt_federation_tell(struct hdt_gateway *gw)
{
    struct hdt_gwsite *site;

    LL_FOREACH(gw->sites, site)
    {
        if (site->up) {
            hdt_route_post(gw, site->name, "site.info", site_info(gw));
        }
    }
}

/* ---- peers ---- */

void hdt_federation_peer_up(struct hdt_gateway *gw, const char *name, const json_t *hello)
{
    struct hdt_gwsite *site = hdt_federation_site(gw, name);
    const char *advertised = json_string_value(json_object_get(hello, "advertise"));
    const char *version = json_string_value(json_object_get(hello, "version"));

    site = site ? site : site_add(gw, name);
    if (!site) {
        return;
    }
    site->up = true;
    site->since_us = hdt_clock_now_us();
    site->why_down[0] = '\0';
    hdt_refusals_forget(gw, name);
    site->progress_timeout_ms = json_integer_value(json_object_get(hello, "progress_timeout_ms"));
    snprintf(site->version, sizeof(site->version), "%s", version ? version : "?");
    if (advertised && advertised[0] && !site->address[0]) {
        snprintf(site->address, sizeof(site->address), "%s", advertised);
    }
    hdt_log_info("site %s is connected (hdt %s)", name, site->version);
    hdt_audit_site(gw, "peer.joined", name, json_pack("{s:s}", "version", site->version));
    hdt_revocation_peer_up(gw, name);
    hdt_federation_tell(gw);
    hdt_coordinator_site_up(gw, name);
    hdt_coordinator_reports_again(gw, name);
    hdt_coordinator_followers_again(gw, name);
    hdt_survey_tick(gw);
}

void hdt_federation_peer_down(struct hdt_gateway *gw, const char *name, const struct hdt_error *why)
{
    struct hdt_gwsite *site = hdt_federation_site(gw, name);

    if (!site) {
        return;
    }
    site->up = false;
    site->since_us = hdt_clock_now_us();
    snprintf(site->why_down, sizeof(site->why_down), "%s", why->msg);
    snprintf(site->remedy, sizeof(site->remedy), "%s", why->hint);
    HDT_LOG_AT(why->status == HDT_EEXIST ? HDT_LOG_INFO : HDT_LOG_WARN,
               "site %s is not connected: %s", name, why->msg);
    hdt_audit_site(gw, "peer.left", name, json_pack("{s:s}", "why", why->msg));
    hdt_survey_site_down(gw, name, why);
}

static void learn_site(struct hdt_gateway *gw, const char *name, const char *address)
{
    const int64_t now_us = hdt_clock_now_us();
    struct hdt_gwsite *site;

    if (!hdt_name_is_valid(name) || strcmp(name, gw->conf.site) == 0 ||
        strlen(address) >= sizeof(site->address) || hdt_addr_check(address, NULL) != HDT_OK) {
        return;
    }
    site = hdt_federation_site(gw, name);
    if (site && (site->configured || site->up || strcmp(site->address, address) == 0 ||
                 now_us < site->learned_us + LEARN_AGAIN_US)) {
        return;
    }
    site = site ? site : site_add(gw, name);
    if (site) {
        site->learned_us = now_us;
        snprintf(site->address, sizeof(site->address), "%s", address);
        hdt_log_info("site %s learned at %s", name, address);
        hdt_dataplane_dial(gw->dp, name, address);
    }
}

/* The worker of that name, known from now on; NULL: the site has too many. */
static struct hdt_gwworker *worker_add(struct hdt_gateway *gw, const char *site, const char *name)
{
    struct hdt_gwworker *worker = hdt_federation_worker(gw, site, name), *other;
    size_t n_workers = 0;

    if (worker) {
        return worker;
    }
    LL_FOREACH(gw->workers, other)
    {
        n_workers += strcmp(other->info.site, site) == 0;
    }
    if (n_workers >= MAX_WORKERS_PER_SITE) {
        hdt_log_warn_limited(60, "worker %s/%s left out: its site has more than %d", site, name,
                             MAX_WORKERS_PER_SITE);
        return NULL;
    }
    worker = hdt_calloc(1, sizeof(*worker));
    snprintf(worker->info.site, sizeof(worker->info.site), "%s", site);
    snprintf(worker->info.name, sizeof(worker->info.name), "%s", name);
    worker->since_us = hdt_clock_now_us();
    LL_APPEND(gw->workers, worker);
    return worker;
}

static bool same_device(const struct hdt_cluster_worker *a, const struct hdt_cluster_worker *b)
{
    return strcmp(a->device, b->device) == 0 && strcmp(a->backend, b->backend) == 0 &&
           a->n_threads == b->n_threads && a->bf16 == b->bf16 && a->fp8 == b->fp8;
}

/* A worker's description by itself or its gateway: {name, device, backend, memory_bytes, ...}. */
static void worker_fill(struct hdt_gwworker *worker, const json_t *device)
{
    const char *name = json_string_value(json_object_get(device, "device"));
    const char *backend = json_string_value(json_object_get(device, "backend"));
    json_int_t memory = json_integer_value(json_object_get(device, "memory_bytes"));
    json_int_t threads = json_integer_value(json_object_get(device, "n_threads"));
    const char *instance = json_string_value(json_object_get(device, "instance"));
    const char *busy_by = json_string_value(json_object_get(device, "busy_by"));
    const struct hdt_cluster_worker before = worker->info;

    if (instance && strlen(instance) < sizeof(worker->instance) &&
        strcmp(worker->instance, instance) != 0) {
        worker->restarted = worker->instance[0] != '\0';
        snprintf(worker->instance, sizeof(worker->instance), "%s", instance);
    }
    snprintf(worker->info.device, sizeof(worker->info.device), "%s", name ? name : "?");
    snprintf(worker->info.backend, sizeof(worker->info.backend), "%s", backend ? backend : "?");
    worker->info.memory_bytes = memory > 0 ? (uint64_t)memory : 0;
    snprintf(worker->busy_by, sizeof(worker->busy_by), "%s", busy_by ? busy_by : "");
    worker->info.n_threads = threads > 0 && threads < 65536 ? (int)threads : 1;
    worker->info.bf16 = json_is_true(json_object_get(device, "bf16"));
    worker->info.fp8 = json_is_true(json_object_get(device, "fp8"));
    if (!same_device(&worker->info, &before)) {
        memset(&worker->run_factor, 0, sizeof(worker->run_factor));
    }
}

static void worker_set_up(struct hdt_gateway *gw, struct hdt_gwworker *worker, bool up,
                          const struct hdt_error *why)
{
    char address[HDT_ADDRESS_CAP];

    if (up && worker->restarted) {
        hdt_coordinator_worker_restarted(gw, worker->info.site, worker->info.name);
    }
    worker->has_left = !up;
    if (worker->up == up) {
        return;
    }
    worker->up = up;
    worker->since_us = hdt_clock_now_us();
    snprintf(worker->why_down, sizeof(worker->why_down), "%s", up ? "" : why->msg);
    snprintf(address, sizeof(address), "%s/%s", worker->info.site, worker->info.name);
    if (up) {
        hdt_log_info("worker %s joined: %s", address, worker->info.device);
        hdt_coordinator_site_up(gw, worker->info.site);
        return;
    }
    hdt_log_warn("worker %s is gone: %s", address, why->msg);
    hdt_route_lost(gw, address, NULL, why);
}

/* What a site does not name it does not have. Its gateway may have been restarted, so that its
 * workers are about to come back: a job gives them time before it takes them for lost. */
static void workers_unnamed(struct hdt_gateway *gw, const char *site)
{
    struct hdt_gwworker *worker;

    LL_FOREACH(gw->workers, worker)
    {
        if (worker->up && !worker->named && strcmp(worker->info.site, site) == 0) {
            worker->up = false;
            worker->has_left = false;
            worker->since_us = hdt_clock_now_us();
            snprintf(worker->why_down, sizeof(worker->why_down), "it is not connected");
            hdt_log_warn("worker %s/%s is not connected to its gateway", site, worker->info.name);
        }
        worker->named = false;
    }
}

static void site_take_workers(struct hdt_gateway *gw, const char *site, const json_t *workers)
{
    struct hdt_error gone = {0};
    const json_t *item;
    size_t i;

    json_array_foreach(workers, i, item)
    {
        const char *name = json_string_value(json_object_get(item, "name"));
        const char *why = json_string_value(json_object_get(item, "why"));
        struct hdt_gwworker *worker;

        if (!name || !hdt_name_is_valid(name) || i >= MAX_WORKERS_PER_SITE ||
            !(worker = worker_add(gw, site, name))) {
            continue;
        }
        worker->named = true;
        hdt_error_set(&gone, HDT_ERANK, "%s", why && why[0] ? why : "it has left");
        worker_fill(worker, item);
        worker_set_up(gw, worker, json_is_true(json_object_get(item, "up")), &gone);
    }
    workers_unnamed(gw, site);
}

void hdt_federation_site_info(struct hdt_gateway *gw, const char *site, const json_t *msg)
{
    const json_t *workers = json_object_get(hdt_msg_body(msg), "workers");
    const json_t *sites = json_object_get(hdt_msg_body(msg), "sites");
    const json_t *item;
    size_t i;

    if (json_is_array(workers)) {
        site_take_workers(gw, site, workers);
    }
    json_array_foreach(sites, i, item)
    {
        const char *name = json_string_value(json_object_get(item, "site"));
        const char *address = json_string_value(json_object_get(item, "address"));

        if (name && address && address[0]) {
            learn_site(gw, name, address);
        }
    }
}

/* ---- our own workers ---- */

void hdt_federation_worker_up(struct hdt_gateway *gw, const struct hdt_gwclient *client,
                              const json_t *hello)
{
    static const struct hdt_error superseded = {.status = HDT_EPEER,
                                                .msg = "it made a new connection"};
    const json_t *device = json_object_get(hello, "device");
    const char *device_name = json_string_value(json_object_get(device, "name"));
    struct hdt_gwworker *worker = worker_add(gw, gw->conf.site, client->name);
    json_t *described;
    bool again;

    if (!worker) {
        return;
    }
    again = worker->up; /* what went over the connection before may be lost */
    described = json_is_object(device) ? json_copy((json_t *)device) : json_object();
    json_object_set_new(described, "device", json_string(device_name ? device_name : "?"));
    if (!json_object_get(described, "n_threads")) {
        json_object_set(described, "n_threads", json_object_get(device, "threads"));
    }
    json_object_set(described, "instance", json_object_get(hello, "instance"));
    worker_fill(worker, described);
    json_decref(described);
    worker->client = client->id;
    hdt_audit_client(
        gw, "worker.joined", client,
        json_pack("{s:s, s:s}", "worker", client->address, "device", worker->info.device));
    worker_set_up(gw, worker, true, NULL);
    if (again) {
        hdt_route_lost(gw, client->address, NULL, &superseded);
        hdt_coordinator_site_up(gw, gw->conf.site);
    }
    hdt_member_worker_up(gw, client->name, json_object_get(hello, "jobs"));
    hdt_federation_tell(gw);
}

void hdt_federation_worker_down(struct hdt_gateway *gw, const struct hdt_gwclient *client,
                                const struct hdt_error *why)
{
    struct hdt_gwworker *worker = hdt_federation_worker(gw, gw->conf.site, client->name);

    if (!worker || worker->client != client->id) {
        return; /* a newer connection of this worker stands */
    }
    worker->client = 0;
    hdt_audit_client(gw, "worker.left", client,
                     json_pack("{s:s, s:s}", "worker", client->address, "why", why->msg));
    worker_set_up(gw, worker, false, why);
    hdt_federation_tell(gw);
}
