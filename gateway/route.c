/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between gateways, workers and operators.
 *
 * Every message has an address ("SITE", "SITE/WORKER", "SITE/@N", "SITE/+N"). A gateway knows its
 * own clients and has a session with each peer, so a message takes at most one hop between sites.
 * The sender's address is written by the gateway it is connected to, and a peer may only bring
 * messages from its own site, so that "from" can be trusted as far as the sites are.
 */
#include "config.h"

#include "gateway/audit.h"
#include "gateway/channel.h"
#include "gateway/control.h"
#include "gateway/member.h"
#include "gateway/edges.h"
#include "gateway/rank_state.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/recorder.h"
#include "src/core/msg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#define MAX_REQUESTS 4096

struct hdt_request {
    int64_t id, sent_us, timeout_us;
    int64_t alive_us; /* the deadline counts from here */
    char to[HDT_ADDRESS_CAP];
    char type[32];
    hdt_request_done *done;
    void *user;
    struct hdt_request *next;
};

/* Who may send a message type. */
enum { FROM_WORKER = 1, FROM_OPERATOR = 2, FROM_SITE = 4, FROM_PROGRAM = 8 };

static void route_status(struct hdt_gateway *gw, const json_t *msg);
static void route_logs(struct hdt_gateway *gw, const json_t *msg);
static void route_info(struct hdt_gateway *gw, const json_t *msg);
static void route_error(struct hdt_gateway *gw, const json_t *msg);
static void route_unasked(struct hdt_gateway *gw, const json_t *msg);
static void route_flow_open(struct hdt_gateway *gw, const json_t *msg);

static const struct {
    const char *type;
    unsigned from;
    void (*handle)(struct hdt_gateway *gw, const json_t *msg);
} handlers[] = {
    {"error", FROM_WORKER | FROM_OPERATOR | FROM_SITE, route_error},
    {"ready", FROM_WORKER, route_unasked},
    {"started", FROM_WORKER, route_unasked},
    {"released", FROM_WORKER, route_unasked},
    {"flow.open", FROM_WORKER | FROM_PROGRAM, route_flow_open},
    {"channel.join", FROM_PROGRAM, hdt_channel_join},
    {"channel.leave", FROM_PROGRAM, hdt_channel_leave},
    {"channel.ends", FROM_SITE, hdt_channel_ends},
    {"task.alive", FROM_WORKER, hdt_coordinator_report},
    {"step", FROM_WORKER, hdt_coordinator_report},
    {"eval", FROM_WORKER, hdt_coordinator_report},
    {"ckpt", FROM_WORKER, hdt_coordinator_report},
    {"ckpt.failed", FROM_WORKER, hdt_coordinator_report},
    {"saving", FROM_WORKER, hdt_coordinator_report},
    {"done", FROM_WORKER, hdt_coordinator_report},
    {"rank.done", FROM_WORKER, hdt_coordinator_report},
    {"failed", FROM_WORKER | FROM_SITE, hdt_coordinator_report},
    {"job.wan", FROM_SITE, hdt_coordinator_report},
    {"rank.state", FROM_WORKER | FROM_SITE, hdt_rank_state},
    {"flow.codec", FROM_WORKER, hdt_edges_said},
    {"status", FROM_OPERATOR | FROM_PROGRAM, route_status},
    {"logs", FROM_OPERATOR, route_logs},
    {"cluster", FROM_OPERATOR, hdt_survey_cluster},
    {"doctor", FROM_OPERATOR, hdt_doctor_request},
    {"link", FROM_OPERATOR, hdt_link_request},
    {"link.bench", FROM_OPERATOR, hdt_link_bench_request},
    {"bundle.list", FROM_OPERATOR, hdt_evidence_list_answer},
    {"bundle.read", FROM_OPERATOR, hdt_evidence_read_answer},
    {"submit", FROM_OPERATOR, hdt_coordinator_submit},
    {"stop", FROM_OPERATOR, hdt_coordinator_stop},
    {"follow", FROM_OPERATOR, hdt_coordinator_follow},
    {"unfollow", FROM_SITE, hdt_coordinator_unfollow},
    {"site.info", FROM_SITE, route_info},
    {"crl", FROM_SITE, hdt_revocation_msg},
    {"links.measure", FROM_SITE, hdt_survey_links},
    {"dial.back", FROM_SITE, hdt_dial_back},
    {"job.plan", FROM_SITE, hdt_member_job_plan},
    {"job.close", FROM_SITE, hdt_member_job_close},
    {"job.wan.get", FROM_SITE, hdt_member_job_wan},
};

bool hdt_address_split(const char *address, char site[HDT_NAME_CAP], char rest[HDT_NAME_CAP])
{
    const char *slash = strchr(address, '/');
    size_t site_len = slash ? (size_t)(slash - address) : strlen(address);

    if (site_len == 0 || site_len >= HDT_NAME_CAP) {
        return false;
    }
    if (slash && (slash[1] == '\0' || strlen(slash + 1) >= HDT_NAME_CAP)) {
        return false;
    }
    memcpy(site, address, site_len);
    site[site_len] = '\0';
    snprintf(rest, HDT_NAME_CAP, "%s", slash ? slash + 1 : "");
    return true;
}

static void route_status(struct hdt_gateway *gw, const json_t *msg)
{
    struct hdt_error err = {0};

    hdt_route_send(gw, hdt_msg_reply(msg, "status.is", hdt_status_json(gw)), &err);
}

static void route_logs(struct hdt_gateway *gw, const json_t *msg)
{
    json_int_t n = json_integer_value(json_object_get(hdt_msg_body(msg), "n"));
    struct hdt_error err = {0};
    struct hdt_buf text = {0};

    hdt_log_tail(n > 0 && n < 100000 ? (unsigned)n : 100, &text);
    hdt_route_send(
        gw,
        hdt_msg_reply(msg, "logs.are", json_pack("{s:s%}", "text", hdt_buf_str(&text), text.len)),
        &err);
    hdt_buf_release(&text);
}

static void route_info(struct hdt_gateway *gw, const json_t *msg)
{
    hdt_federation_site_info(gw, hdt_msg_from(msg), msg);
}

/* Of an order that nobody waits for: as "stop" of a job that is over there. */
static void route_error(struct hdt_gateway *gw, const json_t *msg)
{
    struct hdt_error err = {0};

    (void)gw;
    hdt_msg_error_from_body(hdt_msg_body(msg), &err);
    hdt_log_debug("%s says: %s", hdt_msg_from(msg), err.msg);
}

/* An answer to an order that was posted: workers answer every order, and who posts one does not
 * wait. */
static void route_unasked(struct hdt_gateway *gw, const json_t *msg)
{
    (void)gw;
    hdt_log_debug("'%s' from %s: nobody waits for it", hdt_msg_type(msg), hdt_msg_from(msg));
}

static bool is_program(const char *address)
{
    const char *slash = strchr(address, '/');

    return slash && slash[1] == '+';
}

static void route_flow_open(struct hdt_gateway *gw, const json_t *msg)
{
    if (is_program(hdt_msg_from(msg))) {
        hdt_channel_flow_open(gw, msg);
    } else {
        hdt_member_flow_open(gw, msg);
    }
}

/* ---- sending ---- */

static struct hdt_gwclient *route_find_client(struct hdt_gateway *gw, const char *address)
{
    struct hdt_gwclient *client;

    LL_FOREACH(gw->clients, client)
    {
        if (strcmp(client->address, address) == 0) {
            return client;
        }
    }
    return NULL;
}

static void route_local(struct hdt_gateway *gw, json_t *msg);

static enum hdt_status route_deliver(struct hdt_gateway *gw, json_t *msg, struct hdt_error *err)
{
    const char *to = hdt_msg_to(msg);
    char site[HDT_NAME_CAP], rest[HDT_NAME_CAP];
    struct hdt_gwclient *client;

    HDT_RECORD(HDT_REC_MESSAGE, .text = {hdt_msg_type(msg), hdt_msg_from(msg), to});
    if (to[0] == '\0' || strcmp(to, gw->conf.site) == 0) {
        route_local(gw, msg);
        return HDT_OK;
    }
    if (!hdt_address_split(to, site, rest)) {
        return hdt_error_set(err, HDT_EINVAL, "'%s' is no address: SITE or SITE/WORKER", to);
    }
    if (strcmp(site, gw->conf.site) != 0) {
        return hdt_dataplane_peer_send(gw->dp, site, msg, err);
    }
    client = route_find_client(gw, to);
    if (!client) {
        hdt_error_set(err, HDT_ENOENT,
                      "no worker or client '%s' is connected to the gateway of site %s", to, site);
        hdt_error_hint(err, "'hdt status' lists who is; a worker that ended left its log on its "
                            "machine (journalctl -u hdt-worker) and flight records in its "
                            "state_dir");
        return HDT_ENOENT;
    }
    return hdt_dataplane_client_send(gw->dp, client->id, msg, err);
}

enum hdt_status hdt_route_send(struct hdt_gateway *gw, json_t *msg, struct hdt_error *err)
{
    enum hdt_status status;

    if (!json_object_get(msg, "from")) {
        json_object_set_new(msg, "from", json_string(gw->conf.site));
    }
    gw->n_messages++;
    status = route_deliver(gw, msg, err);
    json_decref(msg);
    return status;
}

void hdt_route_post(struct hdt_gateway *gw, const char *to, const char *type, json_t *body)
{
    struct hdt_error err = {0};

    if (hdt_route_send(gw, hdt_msg_new(type, to, body), &err) != HDT_OK) {
        hdt_log_debug("message %s to %s not delivered: %s", type, to, err.msg);
    }
}

/* ---- requests ---- */

void hdt_route_request(struct hdt_gateway *gw, const char *to, const char *type, json_t *body,
                       int timeout_ms, hdt_request_done *done, void *user)
{
    struct hdt_request *request = hdt_calloc(1, sizeof(*request));
    json_t *msg = hdt_msg_new(type, to, body);
    struct hdt_request *other;
    struct hdt_error err = {0};
    int n_requests;

    LL_COUNT(gw->requests, other, n_requests);
    request->id = ++gw->next_request;
    request->sent_us = hdt_clock_now_us();
    request->alive_us = request->sent_us;
    request->timeout_us = timeout_ms * HDT_US_PER_MS;
    request->done = done;
    request->user = user;
    snprintf(request->to, sizeof(request->to), "%s", to);
    snprintf(request->type, sizeof(request->type), "%s", type);
    LL_APPEND(gw->requests, request);
    json_object_set_new(msg, "id", json_integer(request->id));
    if (n_requests >= MAX_REQUESTS) {
        json_decref(msg);
        hdt_error_set(&err, HDT_ENOMEM, "%d answers are waited for already", n_requests);
    } else {
        hdt_route_send(gw, msg, &err);
    }
    if (err.status != HDT_OK) {
        LL_DELETE(gw->requests, request);
        hdt_error_prefix(&err, "cannot ask %s for '%s'", to, type);
        done(gw, user, NULL, &err);
        free(request);
    }
}

static void request_fail(struct hdt_gateway *gw, struct hdt_request *request,
                         const struct hdt_error *why)
{
    LL_DELETE(gw->requests, request);
    request->done(gw, request->user, NULL, why);
    free(request);
}

static bool address_covers(const char *address, const char *to)
{
    size_t len = strlen(address);

    return strncmp(to, address, len) == 0 && (to[len] == '\0' || to[len] == '/');
}

void hdt_route_lost(struct hdt_gateway *gw, const char *address, const char *type,
                    const struct hdt_error *why)
{
    struct hdt_request *request = gw->requests;

    /* `done` may add or end other requests: start again after each. */
    while (request) {
        if (address_covers(address, request->to) && (!type || strcmp(type, request->type) == 0)) {
            request_fail(gw, request, why);
            request = gw->requests;
        } else {
            request = request->next;
        }
    }
}

void hdt_route_alive(struct hdt_gateway *gw, const char *address)
{
    struct hdt_request *request;

    LL_FOREACH(gw->requests, request)
    {
        if (strcmp(request->to, address) == 0) {
            request->alive_us = hdt_clock_now_us();
        }
    }
}

void hdt_route_tick(struct hdt_gateway *gw)
{
    int64_t now_us = hdt_clock_now_us();
    struct hdt_request *request = gw->requests;
    struct hdt_error err;

    while (request) {
        if (now_us - request->alive_us < request->timeout_us) {
            request = request->next;
            continue;
        }
        hdt_error_set(&err, HDT_ETIMEDOUT,
                      "%s gave no answer to '%s' in %.1f s, and no sign of life for %.1f s",
                      request->to, request->type, (double)(now_us - request->sent_us) / 1e6,
                      (double)(now_us - request->alive_us) / 1e6);
        hdt_error_hint(&err, "see its log: hdt logs %s", request->to);
        request_fail(gw, request, &err);
        request = gw->requests;
    }
}

void hdt_route_free(struct hdt_gateway *gw)
{
    struct hdt_request *request, *next;

    LL_FOREACH_SAFE(gw->requests, request, next)
    {
        free(request);
    }
    gw->requests = NULL;
}

static bool route_answer(struct hdt_gateway *gw, const json_t *msg)
{
    const json_t *re = json_object_get(msg, "re");
    struct hdt_request *request;
    struct hdt_error err = {0};

    if (!json_is_integer(re)) {
        return false;
    }
    LL_SEARCH_SCALAR(gw->requests, request, id, json_integer_value(re));
    if (!request || strcmp(request->to, hdt_msg_from(msg)) != 0) {
        hdt_log_debug("late or foreign answer '%s' from %s dropped", hdt_msg_type(msg),
                      hdt_msg_from(msg));
        return true;
    }
    LL_DELETE(gw->requests, request);
    if (strcmp(hdt_msg_type(msg), "error") == 0) {
        hdt_msg_error_from_body(hdt_msg_body(msg), &err);
        if (!err.where[0]) {
            hdt_error_where(&err, "%s", request->to);
        }
        request->done(gw, request->user, NULL, &err);
    } else {
        request->done(gw, request->user, msg, NULL);
    }
    free(request);
    return true;
}

/* ---- receiving ---- */

/* What an operator may ask a worker for: nothing that changes anything. */
static bool is_question(const char *type)
{
    static const char *const questions[] = {"logs", "doctor", "bundle.list", "bundle.read"};

    for (size_t i = 0; i < sizeof(questions) / sizeof(questions[0]); i++) {
        if (strcmp(questions[i], type) == 0) {
            return true;
        }
    }
    return false;
}

/* Workers are given orders by gateways only; operators ask. Programs speak with their own gateway.
 */
static bool client_may_get(const struct hdt_gateway *gw, const json_t *msg)
{
    const char *to = strchr(hdt_msg_to(msg), '/');
    char site[HDT_NAME_CAP], rest[HDT_NAME_CAP];

    if (is_program(hdt_msg_from(msg))) {
        return hdt_msg_to(msg)[0] == '\0' || strcmp(hdt_msg_to(msg), gw->conf.site) == 0;
    }
    if (!to || to[1] == '@' || !hdt_address_split(hdt_msg_to(msg), site, rest) ||
        strcmp(site, gw->conf.site) != 0) {
        return true; /* no worker of ours */
    }
    return !strchr(hdt_msg_from(msg), '/') || json_object_get(msg, "re") ||
           is_question(hdt_msg_type(msg));
}

static unsigned route_sender(struct hdt_gateway *gw, const json_t *msg)
{
    const char *slash = strchr(hdt_msg_from(msg), '/');

    if (!slash) {
        return FROM_SITE;
    }
    if (slash[1] == '+') { /* only at the gateway that it is connected to */
        return route_find_client(gw, hdt_msg_from(msg)) ? FROM_PROGRAM : 0;
    }
    return slash[1] == '@' ? FROM_OPERATOR : FROM_WORKER;
}

static void route_refuse(struct hdt_gateway *gw, const json_t *msg, const struct hdt_error *why)
{
    struct hdt_error err = {0};

    gw->n_refused_messages++;
    hdt_log_warn_limited(10, "message '%s' from %s refused: %s", hdt_msg_type(msg),
                         hdt_msg_from(msg), why->msg);
    if (json_object_get(msg, "id")) {
        hdt_route_send(gw, hdt_msg_reply_error(msg, why), &err);
    }
}

/* A message for this gateway itself. */
static void route_local(struct hdt_gateway *gw, json_t *msg)
{
    const char *type = hdt_msg_type(msg);
    struct hdt_error err = {0};

    if (route_answer(gw, msg)) {
        return;
    }
    for (size_t i = 0; i < sizeof(handlers) / sizeof(handlers[0]); i++) {
        if (strcmp(handlers[i].type, type) != 0) {
            continue;
        }
        if (!(handlers[i].from & route_sender(gw, msg))) {
            hdt_error_set(&err, HDT_EACCES, "'%s' may not send '%s'", hdt_msg_from(msg), type);
            route_refuse(gw, msg, &err);
            return;
        }
        handlers[i].handle(gw, msg);
        return;
    }
    hdt_error_set(&err, HDT_ENOTSUP, "unknown message type '%s'", type);
    hdt_error_hint(&err, "the sender may be newer than this gateway (%s)", PACKAGE_VERSION);
    route_refuse(gw, msg, &err);
}

/* An answer to an operator's question, who may have left meanwhile: that is no fault of whose
 * answer it is. */
static bool is_answer_to_operator(const json_t *msg)
{
    const char *to = strchr(hdt_msg_to(msg), '/');

    return to && to[1] == '@' && json_is_integer(json_object_get(msg, "re"));
}

static void route_forward(struct hdt_gateway *gw, json_t *msg)
{
    struct hdt_error err = {0};
    enum hdt_status status;

    gw->n_messages++;
    if (!client_may_get(gw, msg)) {
        hdt_error_set(&err, HDT_EACCES, "'%s' may not send '%s' to '%s'", hdt_msg_from(msg),
                      hdt_msg_type(msg), hdt_msg_to(msg));
        route_refuse(gw, msg, &err);
        return;
    }
    status = route_deliver(gw, msg, &err);
    if (status == HDT_ENOENT && strcmp(hdt_msg_type(msg), "job.event") == 0) {
        hdt_route_post(gw, hdt_msg_from(msg), "unfollow",
                       json_pack("{s:O, s:s}", "job", json_object_get(hdt_msg_body(msg), "job"),
                                 "follower", hdt_msg_to(msg)));
    } else if (status == HDT_ENOENT && is_answer_to_operator(msg)) {
        hdt_log_debug("'%s' from %s comes too late: %s", hdt_msg_type(msg), hdt_msg_from(msg),
                      err.msg);
    } else if (status != HDT_OK) {
        route_refuse(gw, msg, &err);
    }
}

void hdt_route_from_client(struct hdt_gateway *gw, uint64_t client_id, json_t *msg)
{
    struct hdt_gwclient *client = hdt_federation_client(gw, client_id);

    if (!client) {
        return; /* it went away while its message was queued */
    }
    json_object_set_new(msg, "from", json_string(client->address));
    hdt_audit_order(gw, client, NULL, msg);
    route_forward(gw, msg);
}

void hdt_route_from_peer(struct hdt_gateway *gw, const char *site, json_t *msg)
{
    char from_site[HDT_NAME_CAP], rest[HDT_NAME_CAP], to_site[HDT_NAME_CAP];
    struct hdt_error err = {0};

    if (!hdt_address_split(hdt_msg_from(msg), from_site, rest) || strcmp(from_site, site) != 0) {
        hdt_error_set(&err, HDT_EACCES, "site %s brought a message from '%s'", site,
                      hdt_msg_from(msg));
        gw->n_refused_messages++;
        hdt_log_warn_limited(10, "%s", err.msg);
        return;
    }
    if (hdt_msg_to(msg)[0] != '\0' && (!hdt_address_split(hdt_msg_to(msg), to_site, rest) ||
                                       strcmp(to_site, gw->conf.site) != 0)) {
        hdt_error_set(&err, HDT_ENOENT, "'%s' is not at site %s", hdt_msg_to(msg), gw->conf.site);
        route_refuse(gw, msg, &err);
        return;
    }
    hdt_audit_order(gw, NULL, site, msg);
    route_forward(gw, msg);
}
