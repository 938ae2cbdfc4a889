/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_CONTROL_H
#define HDT_GATEWAY_CONTROL_H

/*
 * The control plane of a gateway: who is there (sites, workers, operators), messages between them,
 * jobs, state on disk, HTTP. It runs on the main thread, on libevent's loop; nothing here is called
 * from another thread. Bulk data goes through gateway/dataplane.h.
 */
#include "src/base/error.h"
#include "src/base/notify.h"
#include "src/core/cluster.h"
#include "src/core/gateway_conf.h"
#include "gateway/dataplane.h"
#include "gateway/frame_cost.h"
#include "gateway/run_factor.h"

#include <event2/event.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define HDT_ADDRESS_CAP (2 * HDT_NAME_CAP + 2) /* "SITE/WORKER" */

struct hdt_audit;
struct hdt_store;
struct hdt_http;
struct hdt_tls_ctx;
struct hdt_gwjob;
struct hdt_gwmember;
struct hdt_gwchannel;
struct hdt_edge_said;
struct hdt_request;
struct hdt_buf;
struct survey;
struct links_task;
struct dial_back;
struct doctor;

/* A client connection of this gateway. */
struct hdt_gwclient {
    uint64_t id;
    enum hdt_client_role role;
    char name[HDT_NAME_CAP];
    char address[HDT_ADDRESS_CAP]; /* "SITE/WORKER", "SITE/@N" or "SITE/+N" */
    char identity[224];            /* as hdt_client_info has it, like the next */
    char from[160];
    struct hdt_gwclient *next;
};

/* A worker of the federation: ours (client != 0 while connected) or another site's. */
struct hdt_gwworker {
    struct hdt_cluster_worker info;
    uint64_t client;
    bool up;
    bool named;        /* in the "site.info" that is being read */
    bool restarted;    /* came back as a new process: what it ran is gone */
    bool has_left;     /* its gateway saw its connection end; else it has only not seen it yet */
    char instance[20]; /* of its process, 16 hexadecimal digits */
    char busy_by[HDT_NAME_CAP]; /* as its gateway says: coordinator of its job; "": free */
    int64_t since_us;           /* of the last change of `up` */
    char why_down[HDT_ERROR_MSG_CAP];
    struct hdt_run_factor run_factor; /* of the jobs that we coordinate */
    struct hdt_gwworker *next;
};

/* A site of the federation other than ours. */
struct hdt_gwsite {
    char name[HDT_NAME_CAP];
    char address[160]; /* what we dial; "" when it dials us */
    bool configured;   /* from gateway.yaml; else learned */
    bool up;
    int64_t since_us;
    int64_t learned_us; /* address as another site said it */
    char why_down[HDT_ERROR_MSG_CAP];
    char remedy[HDT_ERROR_HINT_CAP]; /* as the cause's own hint; "": none */
    char version[32];
    int64_t progress_timeout_ms;     /* its knob; 0: never heard */
    uint64_t n_refusals;             /* reasons why there was no session, as they came */
    json_t *links;                   /* last "links.are" of that site, or NULL */
    struct hdt_cluster_gateway cost; /* of its gateway, as last said there */
    struct hdt_gwsite *next;
};

/* Whom we did not join lately, and why (refusals.c). */
#define HDT_REFUSALS 16
struct hdt_gwrefusal {
    char who[HDT_ADDRESS_CAP]; /* "site NAME", or a host */
    bool has_site;
    uint64_t n;        /* attempts; 0: the entry is free */
    uint64_t n_unsaid; /* since the last line in the log */
    int64_t first_us, last_us, logged_us;
    struct hdt_error why; /* of the last one */
};

/* State of survey.c. */
struct hdt_survey {
    struct survey *own;       /* the "cluster" request in work: one at a time */
    struct links_task *tasks; /* measurements asked for, in order */
    json_t *links;            /* our own, as last measured; NULL: never */
    int64_t links_us;
    struct dial_back *dials;                       /* under way */
    struct doctor *doctors;                        /* being asked for */
    double encode_bytes_per_s, decode_bytes_per_s; /* own_cost.c; 0: not measured yet */
    struct hdt_frame_cost frame_cost;
    json_t *codecs; /* link_facts.c; NULL: not measured yet */
};

struct hdt_planner;

struct hdt_gateway {
    struct hdt_gateway_conf conf;
    struct hdt_budget budgets[HDT_BUDGETS_MAX]; /* conf.budgets.n */
    struct hdt_deadlines deadlines;             /* from conf.progress_timeout */
    uint64_t instance;
    int64_t started_us;
    struct event_base *base;
    struct hdt_tls_ctx *tls;
    struct hdt_dataplane *dp;
    uint64_t n_ticks;
    struct hdt_notify notify;
    bool owns_socket;      /* lan.socket is bound: to be removed at the end */
    char wan_address[160]; /* that we listen on, with the port that port 0 became; "": none */
    char http_address[160];
    struct hdt_store *store;
    struct hdt_audit *audit;
    struct hdt_http *http;
    struct hdt_gwclient *clients;
    struct hdt_gwworker *workers;
    struct hdt_gwsite *sites;
    struct hdt_gwrefusal refusals[HDT_REFUSALS];
    struct hdt_gwjob *jobs;                         /* coordinated here */
    struct hdt_gwmember *members;                   /* that this site has a part in */
    struct hdt_gwchannel *channels, *channels_over; /* channel.h */
    struct hdt_edge_said *edges;                    /* edges.h */
    struct hdt_request *requests;
    int64_t next_request;
    struct hdt_survey survey;
    pid_t echo_pid;              /* bench_echo.c: the other end of a measurement; 0: none */
    struct hdt_planner *planner; /* planner.h; NULL: it was not needed yet */
    uint64_t n_messages, n_refused_messages, n_refused_lists;
    uint64_t http_refused[HDT_REFUSED_COUNT];
};

/* ---- federation.c: sites and workers ---- */

/* Dial the configured peers. */
void hdt_federation_start(struct hdt_gateway *gw);
void hdt_federation_free(struct hdt_gateway *gw);

void hdt_federation_peer_up(struct hdt_gateway *gw, const char *site, const json_t *hello);
void hdt_federation_peer_down(struct hdt_gateway *gw, const char *site,
                              const struct hdt_error *why);
void hdt_federation_worker_up(struct hdt_gateway *gw, const struct hdt_gwclient *client,
                              const json_t *hello);
void hdt_federation_worker_down(struct hdt_gateway *gw, const struct hdt_gwclient *client,
                                const struct hdt_error *why);
/* Send "site.info" to all peers: something of ours has changed. */
void hdt_federation_tell(struct hdt_gateway *gw);
/* "site.info" of a peer: its workers and the sites it knows. */
void hdt_federation_site_info(struct hdt_gateway *gw, const char *site, const json_t *msg);

/* Find, or NULL. */
struct hdt_gwsite *hdt_federation_site(struct hdt_gateway *gw, const char *name);
struct hdt_gwworker *hdt_federation_worker(struct hdt_gateway *gw, const char *site,
                                           const char *name);
/* Ours, or one that is connected. */
bool hdt_federation_site_is_up(struct hdt_gateway *gw, const char *name);
/* Not connected, but for no longer than a session takes to be opened anew. */
bool hdt_federation_site_may_return(struct hdt_gateway *gw, const char *name);
/* There is none of those, nor a worker that has yet to find its restarted gateway. */
bool hdt_federation_is_settled(struct hdt_gateway *gw);
struct hdt_gwclient *hdt_federation_client(struct hdt_gateway *gw, uint64_t id);

/* ---- refusals.c ---- */

/* A dial failed or a connection was refused, n times; site may be "". Logs each cause once a
 * minute. */
void hdt_refusals_note(struct hdt_gateway *gw, const char *site, const char *address,
                       const struct hdt_error *why, uint64_t n);
/* The site is connected now. */
void hdt_refusals_forget(struct hdt_gateway *gw, const char *site);
/* Those of the last two minutes: array of {who, is_site, attempts, last_s, why, hint}. */
json_t *hdt_refusals_json(const struct hdt_gateway *gw);

/* ---- route.c: messages ---- */

/* Send to any address of the federation; steals msg. Not delivered: HDT_ENOENT, HDT_EPEER. */
enum hdt_status hdt_route_send(struct hdt_gateway *gw, json_t *msg, struct hdt_error *err);

/* As hdt_route_send, failure logged at debug level: for events nobody waits for. */
void hdt_route_post(struct hdt_gateway *gw, const char *to, const char *type, json_t *body);

/* Called once: with the reply's message, or NULL and why (the other end's error, or
 * HDT_ETIMEDOUT naming whom we waited for). */
typedef void hdt_request_done(struct hdt_gateway *gw, void *user, const json_t *reply,
                              const struct hdt_error *why);

/* Send a request and wait for its answer; body is stolen. `done` may be called before return. */
void hdt_route_request(struct hdt_gateway *gw, const char *to, const char *type, json_t *body,
                       int timeout_ms, hdt_request_done *done, void *user);

/* End the requests to an address that went down (prefix: "SITE" ends those to its workers too);
 * with `type`, those of this type only. */
void hdt_route_lost(struct hdt_gateway *gw, const char *address, const char *type,
                    const struct hdt_error *why);
/* Who is asked something is at work: the deadlines of all requests to it begin anew. */
void hdt_route_alive(struct hdt_gateway *gw, const char *address);
/* Deadlines; every tick. */
void hdt_route_tick(struct hdt_gateway *gw);
void hdt_route_free(struct hdt_gateway *gw);

void hdt_route_from_client(struct hdt_gateway *gw, uint64_t client, json_t *msg);
void hdt_route_from_peer(struct hdt_gateway *gw, const char *site, json_t *msg);

/* Split "SITE/REST"; rest is "" for a bare site. false when it is no address. */
bool hdt_address_split(const char *address, char site[HDT_NAME_CAP], char rest[HDT_NAME_CAP]);

/* ---- survey.c: what there is to plan with ---- */

/* Request "cluster" of an operator: measure links, profile workers, answer "cluster.is". */
void hdt_survey_cluster(struct hdt_gateway *gw, const json_t *msg);

/* Called once, unless the gateway ends before; the cluster is to be released by it. Workers that
 * gave no profile are in it without one. */
struct hdt_gwjob;
typedef void hdt_survey_made(struct hdt_gateway *gw, void *user, struct hdt_cluster *cluster);
struct hdt_survey_request {
    json_t *job, *model;         /* as in the job's record */
    const struct hdt_gwjob *but; /* workers that only this job uses count as free */
    bool quiet;                  /* a job runs: links are as they were last measured, not probed */
    hdt_survey_made *done;
    void *user;
};
/* The same for ourselves. HDT_EEXIST: another survey is being made, `done` is not called. */
enum hdt_status hdt_survey_make(struct hdt_gateway *gw, const struct hdt_survey_request *request,
                                struct hdt_error *err);
/* Once a second: what passing frames cost this gateway. */
void hdt_own_cost_tick(struct hdt_gateway *gw);
/* What this gateway costs its machine, as it is known now. Measures the codec the first time: some
 * 60 ms. */
void hdt_survey_own_cost(struct hdt_gateway *gw, struct hdt_cluster_gateway *cost);
/* Request "links.measure" of another gateway: answer "links.are". */
void hdt_survey_links(struct hdt_gateway *gw, const json_t *msg);
void hdt_survey_probed(struct hdt_gateway *gw, const char *site, double bytes_per_s, double rtt_s);
/* The session with a site is lost, and questions and answers that were on their way with it. */
void hdt_survey_site_down(struct hdt_gateway *gw, const char *site, const struct hdt_error *why);
/* Go on, if it was waited for sites and these are there, or will not be: every tick, and when a
 * site is connected. */
void hdt_survey_tick(struct hdt_gateway *gw);
/* Measure all links anew, then call: gw->survey.links has them. Not called when the gateway ends.
 */
typedef void hdt_survey_done(struct hdt_gateway *gw, void *user);
void hdt_survey_measure(struct hdt_gateway *gw, hdt_survey_done *done, void *user);

void hdt_survey_free(struct hdt_gateway *gw);

/* ---- link_doctor.c ---- */

/* Request "doctor" of an operator: this gateway's machine, its peers and the links to them. */
void hdt_doctor_request(struct hdt_gateway *gw, const json_t *msg);
void hdt_doctor_free(struct hdt_gateway *gw);

/* ---- evidence_answer.c ---- */

/* Requests "bundle.list" and "bundle.read" of an operator: see src/core/evidence.h. */
void hdt_evidence_list_answer(struct hdt_gateway *gw, const json_t *msg);
void hdt_evidence_read_answer(struct hdt_gateway *gw, const json_t *msg);

/* ---- dial_back.c ---- */

/* Request "dial.back" of another gateway: answered "dialled.back" when it is known. */
void hdt_dial_back(struct hdt_gateway *gw, const json_t *msg);
void hdt_dial_back_free(struct hdt_gateway *gw);

/* ---- jobs: coordinator.h says which file does what ---- */

void hdt_coordinator_submit(struct hdt_gateway *gw, const json_t *msg);
void hdt_coordinator_stop(struct hdt_gateway *gw, const json_t *msg);
void hdt_coordinator_follow(struct hdt_gateway *gw, const json_t *msg);
void hdt_coordinator_unfollow(struct hdt_gateway *gw, const json_t *msg);
/* "task.alive", "step", "eval", "ckpt", "ckpt.failed", "done", "rank.done", "failed" of workers;
 * "failed" and "job.wan" of gateways. */
void hdt_coordinator_report(struct hdt_gateway *gw, const json_t *msg);
/* A worker came back as another process: what it ran is gone. */
void hdt_coordinator_worker_restarted(struct hdt_gateway *gw, const char *site, const char *name);
/* A site, or a worker of it, is back: what it may have missed is said again. */
void hdt_coordinator_site_up(struct hdt_gateway *gw, const char *site);
/* ... and what it said and we did not get is asked for: reports of its workers, and by its
 * followers. */
void hdt_coordinator_reports_again(struct hdt_gateway *gw, const char *site);
void hdt_coordinator_followers_again(struct hdt_gateway *gw, const char *site);
/* Take up the jobs of the store that were not over. */
void hdt_coordinator_start(struct hdt_gateway *gw);
void hdt_coordinator_tick(struct hdt_gateway *gw);
void hdt_coordinator_free(struct hdt_gateway *gw);
/* Jobs as JSON for /status: new reference. */
json_t *hdt_coordinator_status(struct hdt_gateway *gw);
/* true while a job that is not over uses this worker; with `but`, a job other than that one. */
bool hdt_coordinator_worker_is_busy(struct hdt_gateway *gw, const char *site, const char *name);
bool hdt_coordinator_worker_serves(struct hdt_gateway *gw, const char *site, const char *name,
                                   const struct hdt_gwjob *but);

/* ---- revocation.c: revocation lists between sites ---- */

/* Send the list in force to a peer that came up. */
void hdt_revocation_peer_up(struct hdt_gateway *gw, const char *site);
/* Send it to all peers that are up, but `except` ("": all). */
void hdt_revocation_spread(struct hdt_gateway *gw, const char *except);
/* "crl" of a peer: adopt it, close whom it names, pass it on; or refuse it. */
void hdt_revocation_msg(struct hdt_gateway *gw, const json_t *msg);

/* ---- status.c ---- */

json_t *hdt_status_json(struct hdt_gateway *gw); /* new reference */

/* ---- link_show.c ---- */

/* What the kernel knows of the streams to a peer; new reference, NULL: nothing. */
json_t *hdt_link_json(struct hdt_gateway *gw, const struct hdt_peer_stats *peer);

/* ---- link_facts.c ---- */

/* Request "link" of an operator: answer "link.is". */
void hdt_link_request(struct hdt_gateway *gw, const json_t *msg);
/* Is there a link to that site? HDT_EINVAL: it is ours; HDT_ENOENT; HDT_EPEER: it is down. */
enum hdt_status hdt_link_find(struct hdt_gateway *gw, const char *name, struct hdt_error *err);

/* ---- bench_echo.c ---- */

/* Request "link.bench" of an operator: answer "link.benched". */
void hdt_link_bench_request(struct hdt_gateway *gw, const json_t *msg);
void hdt_link_bench_tick(struct hdt_gateway *gw);
/* Ends the program that was started. */
void hdt_link_bench_free(struct hdt_gateway *gw);

/* ---- metrics.c ---- */

void hdt_metrics_text(struct hdt_gateway *gw, struct hdt_buf *out); /* for Prometheus */

/* ---- strangers.c: who was refused, and what peers did wrong, by cause ---- */

/* {"wan": {"crowded": N, ...}, "lan_unix": ..., "lan_tls": ..., "http": ...}, and those of peers:
 * {SITE: {"breach": N, ...}}. New references. */
json_t *hdt_strangers_json(struct hdt_gateway *gw);
json_t *hdt_misdeeds_json(struct hdt_gateway *gw);

/* ---- budget_show.c ---- */

/* Fill gw->budgets from the settings. HDT_EINVAL with file:line. */
enum hdt_status hdt_budgets_load(struct hdt_gateway *gw, const struct hdt_conf_doc *doc,
                                 struct hdt_error *err);
/* For /status: array of {peer, class, job, rate_bits_per_s (0: no cap), weight, hours, days, on,
 * sent_bytes, held_s}. New reference. */
json_t *hdt_budgets_json(struct hdt_gateway *gw);
void hdt_strangers_metrics(struct hdt_gateway *gw, struct hdt_buf *out);

/* ---- http.c, http_guard.c ---- */

enum hdt_status hdt_http_open(struct hdt_gateway *gw, struct hdt_http **http,
                              struct hdt_error *err);
void hdt_http_close(struct hdt_http *http);

struct evhttp;
struct evhttp_bound_socket;
struct hdt_http_guard;
/* Bound what connections to the page may hold, and for how long. Before the first one; freed after
 * `evhttp` is. */
struct hdt_http_guard *hdt_http_guard_new(struct hdt_gateway *gw, struct evhttp *evhttp,
                                          struct evhttp_bound_socket *bound);
void hdt_http_guard_free(struct hdt_http_guard *guard);

#endif /* HDT_GATEWAY_CONTROL_H */
