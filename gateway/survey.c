/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What there is to plan with. For an operator's "cluster" request, and for a job that is to be
 * planned anew, this gateway measures its links,
 * asks every other site to measure its own, asks every free worker to profile its device for the
 * job's shapes, and answers when all have answered or failed. Sites measure one after another,
 * so that probes do not disturb one another, and before the workers, which a gateway on the same
 * processors would disturb; workers profile at the same time, since they compute at the same time
 * in a run too.
 *
 * A session that ends now and then is no reason to plan without its site: who is just being dialled
 * again is waited for, and what was lost with a session is asked for once more.
 */
#include "config.h"

#include "gateway/control.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/core/msg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#define PROBE_BYTES    (4u << 20)
#define LINKS_FRESH_US (300 * HDT_US_PER_S) /* a measurement is used for five minutes */
#define MAX_PEERS      256
#define MAX_TASKS      32

/* One site's links being measured: probes of our peers, one at a time. */
struct links_task {
    json_t *request; /* whom to answer; NULL: our own survey */
    bool fresh_ok;
    hdt_survey_done *done; /* called at the end, in place of an answer; NULL: none */
    void *user;
    char (*sites)[HDT_NAME_CAP]; /* NULL: not begun */
    size_t n_sites, next;
    int64_t begun_us;
    bool lost;  /* a session ended under a probe */
    bool again; /* they are measured for the second time */
    struct links_task *next_task;
};

/* A survey in work: a "cluster" request, or one of the coordinator. */
struct survey {
    json_t *request; /* whom to answer; NULL: `done` is called */
    json_t *body;    /* job, model, remeasure */
    hdt_survey_made *done;
    void *user;
    bool quiet;
    bool lost;                   /* a question or its answer, with a session */
    bool again;                  /* it is asked for the second time */
    const struct hdt_gwjob *but; /* workers that only this job uses are free; NULL: none */
    json_t *profiles;            /* "SITE/WORKER" -> profile */
    json_t *problems;            /* texts: workers and sites that did not answer */
    char (*sites)[HDT_NAME_CAP]; /* NULL: not asked yet */
    size_t n_sites, next_site;
    size_t n_waiting; /* profiles */
    bool links_done;
};

static void survey_next_site(struct hdt_gateway *gw);

/* ---- measuring our own links ---- */

static const struct hdt_peer_stats *peer_stats_find(const struct hdt_peer_stats *stats, size_t n,
                                                    const char *site)
{
    for (size_t i = 0; i < n && i < MAX_PEERS; i++) {
        if (strcmp(stats[i].site, site) == 0) {
            return &stats[i];
        }
    }
    return NULL;
}

/* What a job may count on: a probe is under no budget. Budgets of single jobs are not known here.
 */
static double rate_within_budgets(struct hdt_gateway *gw, const char *site, double bytes_per_s)
{
    const uint64_t cap = hdt_dataplane_budget_cap(gw->dp, site, "", HDT_PRIO_ACTIVATION);

    return cap != 0 && (double)cap / 8 < bytes_per_s ? (double)cap / 8 : bytes_per_s;
}

static json_t *link_json(struct hdt_gateway *gw, const char *site, double bytes_per_s, double rtt_s)
{
    struct hdt_peer_stats *stats = hdt_calloc(MAX_PEERS, sizeof(*stats));
    size_t n = hdt_dataplane_peer_stats(gw->dp, stats, MAX_PEERS);
    const struct hdt_peer_stats *peer = peer_stats_find(stats, n, site);
    struct hdt_dataplane_stats dp_stats;
    double codec_rate = 0, ratio = 0;
    json_t *link;

    hdt_dataplane_stats(gw->dp, &dp_stats);
    if (dp_stats.encode_ns > 0) {
        codec_rate = 1e9 * (double)dp_stats.encode_bytes / (double)dp_stats.encode_ns;
    }
    if (peer && peer->coded_bytes > 0) {
        ratio = (double)peer->plain_bytes / (double)peer->coded_bytes;
    }
    link =
        json_pack("{s:s, s:s, s:b, s:f, s:f, s:f, s:f}", "from", gw->conf.site, "to", site, "up",
                  bytes_per_s > 0, "rate_bytes_per_s", rate_within_budgets(gw, site, bytes_per_s),
                  "rtt_s", rtt_s, "lossless_bytes_per_s", codec_rate, "lossless_ratio", ratio);
    free(stats);
    return link;
}

static char (*sites_up(struct hdt_gateway *gw, size_t *n))[HDT_NAME_CAP]
{
    char(*sites)[HDT_NAME_CAP] = hdt_calloc(MAX_PEERS, sizeof(*sites));
    struct hdt_gwsite *site;

    *n = 0;
    LL_FOREACH(gw->sites, site)
    {
        if (site->up && *n < MAX_PEERS) {
            snprintf(sites[(*n)++], HDT_NAME_CAP, "%s", site->name);
        }
    }
    return sites;
}

static const json_t *link_to(const json_t *links, const char *site)
{
    const json_t *link;
    size_t i;

    json_array_foreach(links, i, link)
    {
        const char *to = json_string_value(json_object_get(link, "to"));

        if (to && strcmp(to, site) == 0) {
            return link;
        }
    }
    return NULL;
}

/* Is what is known of just these sites? */
static bool links_are_to(const json_t *links, char (*sites)[HDT_NAME_CAP], size_t n_sites)
{
    for (size_t i = 0; i < n_sites; i++) {
        if (!link_to(links, sites[i])) {
            return false;
        }
    }
    return json_array_size(links) == n_sites;
}

static void links_begin(struct hdt_gateway *gw, struct links_task *task)
{
    bool is_fresh = gw->survey.links && gw->survey.links_us &&
                    hdt_clock_now_us() - gw->survey.links_us < LINKS_FRESH_US;

    task->sites = sites_up(gw, &task->n_sites);
    task->begun_us = hdt_clock_now_us();
    if (task->fresh_ok && is_fresh && links_are_to(gw->survey.links, task->sites, task->n_sites)) {
        task->next = task->n_sites;
        return;
    }
    json_decref(gw->survey.links);
    gw->survey.links = json_array();
    gw->survey.links_us = 0;
}

/* One that could not be measured is no figure to plan with for minutes. */
static bool links_are_up(const json_t *links)
{
    const json_t *link;
    size_t i;

    json_array_foreach(links, i, link)
    {
        if (!json_is_true(json_object_get(link, "up"))) {
            return false;
        }
    }
    return true;
}

static void links_end(struct hdt_gateway *gw, struct links_task *task)
{
    json_t *request = task->request;
    hdt_survey_done *done = task->done;
    void *user = task->user;
    struct hdt_cluster_gateway cost;
    struct hdt_error err = {0};

    if (!gw->survey.links_us && links_are_up(gw->survey.links)) {
        gw->survey.links_us = hdt_clock_now_us();
    }
    LL_DELETE2(gw->survey.tasks, task, next_task);
    free(task->sites);
    free(task);
    if (done) {
        done(gw, user);
        return;
    }
    if (!request) {
        survey_next_site(gw);
        return;
    }
    hdt_survey_own_cost(gw, &cost);
    hdt_route_send(gw,
                   hdt_msg_reply(request, "links.are",
                                 json_pack("{s:O, s:o}", "links", gw->survey.links, "gateway",
                                           hdt_cluster_gateway_to_json(&cost))),
                   &err);
    json_decref(request);
}

/* Who asks how the links are now is not to wait for better ones. */
static bool links_may_wait(const struct links_task *task)
{
    return task->done == NULL;
}

static bool links_go_again(struct links_task *task)
{
    if (!task->lost || task->again || !links_may_wait(task)) {
        return false;
    }
    free(task->sites);
    task->sites = NULL;
    task->n_sites = task->next = 0;
    task->lost = false;
    task->again = true;
    return true;
}

/* Go on with the task at the head: its next probe, or its end and the next task. */
static void links_next(struct hdt_gateway *gw)
{
    struct links_task *task;

    while ((task = gw->survey.tasks)) {
        if (!task->sites) {
            if (links_may_wait(task) && !hdt_federation_is_settled(gw)) {
                return; /* until a tick */
            }
            links_begin(gw, task);
        }
        if (task->next < task->n_sites) {
            hdt_dataplane_probe(gw->dp, task->sites[task->next], PROBE_BYTES,
                                (int)(gw->deadlines.probe_us / HDT_US_PER_MS));
            return;
        }
        if (!links_go_again(task)) {
            links_end(gw, task);
        }
    }
}

void hdt_survey_tick(struct hdt_gateway *gw)
{
    if (gw->survey.tasks && !gw->survey.tasks->sites) {
        links_next(gw);
    }
}

/* Did its session end after that time? */
static bool site_was_lost(struct hdt_gateway *gw, const char *name, int64_t since_us)
{
    const struct hdt_gwsite *site = hdt_federation_site(gw, name);

    return !site || !site->up || site->since_us > since_us;
}

void hdt_survey_probed(struct hdt_gateway *gw, const char *site, double bytes_per_s, double rtt_s)
{
    struct links_task *task = gw->survey.tasks;

    if (!task || task->next >= task->n_sites || strcmp(task->sites[task->next], site) != 0) {
        return;
    }
    task->lost = task->lost || (bytes_per_s <= 0 && site_was_lost(gw, site, task->begun_us));
    json_array_append_new(gw->survey.links, link_json(gw, site, bytes_per_s, rtt_s));
    hdt_log_info("link to %s: %.1f Mbit/s, rtt %.1f ms", site, bytes_per_s * 8e-6, rtt_s * 1e3);
    task->next++;
    links_next(gw);
}

/* Measure, or answer with what is fresh; after the tasks that are there. */
static void links_measure(struct hdt_gateway *gw, json_t *request, bool fresh_ok)
{
    struct links_task *task = hdt_calloc(1, sizeof(*task));
    bool idle = gw->survey.tasks == NULL;

    task->request = json_incref(request);
    task->fresh_ok = fresh_ok;
    LL_APPEND2(gw->survey.tasks, task, next_task);
    if (idle) {
        links_next(gw);
    }
}

void hdt_survey_measure(struct hdt_gateway *gw, hdt_survey_done *done, void *user)
{
    struct links_task *task = hdt_calloc(1, sizeof(*task));
    bool idle = gw->survey.tasks == NULL;

    task->done = done;
    task->user = user;
    LL_APPEND2(gw->survey.tasks, task, next_task);
    if (idle) {
        links_next(gw);
    }
}

void hdt_survey_links(struct hdt_gateway *gw, const json_t *msg)
{
    struct hdt_error err = {0}, ignored = {0};
    struct links_task *task;
    int n_tasks;

    LL_COUNT2(gw->survey.tasks, task, n_tasks, next_task);
    if (n_tasks >= MAX_TASKS) {
        hdt_error_set(&err, HDT_ENOMEM, "%d others have the links of site %s measured", n_tasks,
                      gw->conf.site);
        hdt_route_send(gw, hdt_msg_reply_error(msg, &err), &ignored);
        return;
    }
    links_measure(gw, (json_t *)msg, json_is_true(json_object_get(hdt_msg_body(msg), "fresh_ok")));
}

/* ---- the cluster ---- */

/* Of a site's links; it speaks for no other site. */
static void cluster_add_links(struct hdt_cluster *cluster, const char *site, const json_t *links)
{
    struct hdt_cluster_link link;
    struct hdt_error err = {0};
    const json_t *item;
    size_t i;

    json_array_foreach(links, i, item)
    {
        if (i == MAX_PEERS) {
            break;
        }
        if (hdt_cluster_link_from_json(item, &link, &err) != HDT_OK) {
            hdt_log_warn_limited(60, "site %s says of a link: %s", site, err.msg);
        } else if (strcmp(link.from, site) == 0 &&
                   !hdt_cluster_find_link(cluster, link.from, link.to)) {
            hdt_cluster_add_link(cluster, &link);
        }
    }
}

/* As it was measured, and as runs of it correct it. */
static void worker_take_profile(const struct hdt_gwworker *worker, const char *address,
                                const json_t *json, struct hdt_cluster_worker *info)
{
    struct hdt_error err = {0};
    double factor;

    if (hdt_profile_from_json(json, &info->profile, &err) != HDT_OK) {
        hdt_log_warn("%s: %s", address, err.msg);
        return;
    }
    info->profile.run_factor = 0; /* that is ours to say */
    factor = hdt_run_factor_of(&worker->run_factor, &info->profile);
    if (factor != 1) {
        hdt_profile_scale(&info->profile, factor);
    }
}

/* Does it compute for a job, but for the one that the survey is made for? */
static bool worker_is_busy(struct hdt_gateway *gw, const struct survey *survey,
                           const struct hdt_gwworker *worker)
{
    return hdt_coordinator_worker_serves(gw, worker->info.site, worker->info.name, survey->but);
}

static void cluster_collect(struct hdt_gateway *gw, const struct survey *survey,
                            struct hdt_cluster *cluster)
{
    const json_t *profiles = survey->profiles;
    struct hdt_gwworker *worker;
    struct hdt_gwsite *site;

    hdt_cluster_add_site(cluster, gw->conf.site);
    hdt_survey_own_cost(gw, &hdt_cluster_find_site(cluster, gw->conf.site)->gateway);
    cluster_add_links(cluster, gw->conf.site, gw->survey.links);
    LL_FOREACH(gw->sites, site)
    {
        if (site->up) {
            hdt_cluster_add_site(cluster, site->name);
            hdt_cluster_find_site(cluster, site->name)->gateway = site->cost;
            cluster_add_links(cluster, site->name, site->links);
        }
    }
    LL_FOREACH(gw->workers, worker)
    {
        struct hdt_cluster_worker info = worker->info;
        char address[HDT_ADDRESS_CAP];

        if (!worker->up || !hdt_federation_site_is_up(gw, info.site)) {
            continue;
        }
        snprintf(address, sizeof(address), "%s/%s", info.site, info.name);
        info.busy = worker_is_busy(gw, survey, worker);
        if (json_object_get(profiles, address)) {
            worker_take_profile(worker, address, json_object_get(profiles, address), &info);
        }
        hdt_cluster_add_worker(cluster, &info);
    }
}

static void survey_free(struct survey *survey)
{
    json_decref(survey->request);
    json_decref(survey->body);
    json_decref(survey->profiles);
    json_decref(survey->problems);
    free(survey->sites);
    free(survey);
}

static void survey_answer(struct hdt_gateway *gw, const struct survey *survey,
                          struct hdt_cluster *cluster)
{
    struct hdt_error err = {0};
    json_t *body;

    body = json_pack("{s:o, s:O, s:s}", "cluster", hdt_cluster_to_json(cluster), "problems",
                     survey->problems, "site", gw->conf.site);
    hdt_route_send(gw, hdt_msg_reply(survey->request, "cluster.is", body), &err);
    hdt_cluster_release(cluster);
}

/* Once more, for what was lost or was not there: what is known is not measured again. */
static void survey_go_again(struct hdt_gateway *gw, struct survey *survey)
{
    survey->again = true;
    survey->lost = false;
    survey->links_done = false;
    free(survey->sites);
    survey->sites = NULL;
    survey->n_sites = survey->next_site = 0;
    json_array_clear(survey->problems);
    links_measure(gw, NULL, true);
}

static void survey_maybe_end(struct hdt_gateway *gw, struct survey *survey)
{
    struct hdt_cluster cluster = {0};

    if (survey->n_waiting > 0 || !survey->links_done) {
        return;
    }
    if (!survey->quiet && !survey->again && (survey->lost || !hdt_federation_is_settled(gw))) {
        survey_go_again(gw, survey);
        return;
    }
    cluster_collect(gw, survey, &cluster);
    gw->survey.own = NULL;
    if (survey->request) {
        survey_answer(gw, survey, &cluster);
    } else {
        survey->done(gw, survey->user, &cluster);
    }
    survey_free(survey);
}

/* A failure of the way there, in which the other end has no word. */
static bool answer_was_lost(struct hdt_gateway *gw, const char *address,
                            const struct hdt_error *why)
{
    char site[HDT_NAME_CAP], rest[HDT_NAME_CAP];

    return !why->where[0] && hdt_address_split(address, site, rest) &&
           (why->status == HDT_EPEER || !hdt_federation_site_is_up(gw, site));
}

void hdt_survey_site_down(struct hdt_gateway *gw, const char *site, const struct hdt_error *why)
{
    hdt_route_lost(gw, site, "links.measure", why);
    hdt_route_lost(gw, site, "profile", why);
}

static void links_answered(struct hdt_gateway *gw, void *user, const json_t *reply,
                           const struct hdt_error *why)
{
    struct survey *survey = user;
    struct hdt_gwsite *site = hdt_federation_site(gw, survey->sites[survey->next_site - 1]);
    struct hdt_error err = {0};

    if (reply && site) {
        json_decref(site->links);
        site->links = json_incref(json_object_get(hdt_msg_body(reply), "links"));
        if (hdt_cluster_gateway_from_json(json_object_get(hdt_msg_body(reply), "gateway"),
                                          &site->cost, &err) != HDT_OK) {
            hdt_log_warn("site %s: %s", site->name, err.msg);
        }
    } else if (!reply) {
        const char *name = survey->sites[survey->next_site - 1];

        survey->lost = survey->lost || answer_was_lost(gw, name, why);
        json_array_append_new(survey->problems, json_sprintf("links of %s: %s", name, why->msg));
    }
    survey_next_site(gw);
}

static void survey_profiles(struct hdt_gateway *gw, struct survey *survey);

/* After our own links: the next site's, then the workers' profiles, then the answer. */
static void survey_next_site(struct hdt_gateway *gw)
{
    struct survey *survey = gw->survey.own;

    if (!survey) {
        return;
    }
    if (!survey->sites && !survey->quiet) {
        survey->sites = sites_up(gw, &survey->n_sites);
    }
    if (survey->next_site < survey->n_sites) {
        bool remeasure = json_is_true(json_object_get(survey->body, "remeasure"));

        hdt_route_request(gw, survey->sites[survey->next_site++], "links.measure",
                          json_pack("{s:b}", "fresh_ok", survey->again || !remeasure),
                          (int)(gw->deadlines.links_us / HDT_US_PER_MS), links_answered, survey);
        return;
    }
    survey->links_done = true;
    survey->n_waiting = 1; /* held until all are asked: answers may come at once */
    survey_profiles(gw, survey);
    survey->n_waiting--;
    survey_maybe_end(gw, survey);
}

struct profile_wait {
    struct survey *survey;
    char address[HDT_ADDRESS_CAP];
};

static void profile_answered(struct hdt_gateway *gw, void *user, const json_t *reply,
                             const struct hdt_error *why)
{
    struct profile_wait *wait = user;
    struct survey *survey = wait->survey;

    if (reply) {
        json_object_set(survey->profiles, wait->address,
                        json_object_get(hdt_msg_body(reply), "profile"));
    } else {
        survey->lost = survey->lost || answer_was_lost(gw, wait->address, why);
        json_array_append_new(survey->problems,
                              json_sprintf("profile of %s: %s", wait->address, why->msg));
    }
    free(wait);
    survey->n_waiting--;
    survey_maybe_end(gw, survey);
}

static void survey_profiles(struct hdt_gateway *gw, struct survey *survey)
{
    json_t *job = json_object_get(survey->body, "job");
    json_t *model = json_object_get(survey->body, "model");
    struct hdt_gwworker *worker;

    if (!job || !model) {
        return;
    }
    LL_FOREACH(gw->workers, worker)
    {
        struct profile_wait *wait;
        char address[HDT_ADDRESS_CAP];

        snprintf(address, sizeof(address), "%s/%s", worker->info.site, worker->info.name);
        if (!worker->up || !hdt_federation_site_is_up(gw, worker->info.site) ||
            worker_is_busy(gw, survey, worker) || json_object_get(survey->profiles, address)) {
            continue;
        }
        wait = hdt_calloc(1, sizeof(*wait));
        wait->survey = survey;
        memcpy(wait->address, address, sizeof(wait->address));
        survey->n_waiting++;
        hdt_route_request(gw, wait->address, "profile",
                          json_pack("{s:O, s:O}", "job", job, "model", model),
                          (int)(gw->deadlines.profile_us / HDT_US_PER_MS), profile_answered, wait);
    }
}

static enum hdt_status survey_begin(struct hdt_gateway *gw, const struct survey *what,
                                    struct hdt_error *err)
{
    struct survey *survey;

    if (gw->survey.own) {
        hdt_error_set(err, HDT_EEXIST, "another plan is being measured at this gateway");
        hdt_error_hint(err, "try again in a few seconds");
        return HDT_EEXIST;
    }
    survey = hdt_calloc(1, sizeof(*survey));
    *survey = *what;
    json_incref(survey->request);
    json_incref(survey->body);
    survey->profiles = json_object();
    survey->problems = json_array();
    gw->survey.own = survey;
    if (survey->quiet) {
        survey_next_site(gw);
        return HDT_OK;
    }
    links_measure(gw, NULL, !json_is_true(json_object_get(survey->body, "remeasure")));
    return HDT_OK;
}

void hdt_survey_cluster(struct hdt_gateway *gw, const json_t *msg)
{
    const struct survey what = {.request = (json_t *)msg, .body = (json_t *)hdt_msg_body(msg)};
    struct hdt_error err = {0}, ignored = {0};

    if (survey_begin(gw, &what, &err) != HDT_OK) {
        hdt_route_send(gw, hdt_msg_reply_error(msg, &err), &ignored);
    }
}

enum hdt_status hdt_survey_make(struct hdt_gateway *gw, const struct hdt_survey_request *request,
                                struct hdt_error *err)
{
    const struct survey what = {
        .body = json_pack("{s:O, s:O}", "job", request->job, "model", request->model),
        .done = request->done,
        .user = request->user,
        .quiet = request->quiet,
        .but = request->but};
    enum hdt_status status = survey_begin(gw, &what, err);

    json_decref(what.body);
    return status;
}

void hdt_survey_free(struct hdt_gateway *gw)
{
    struct links_task *task, *next;

    hdt_dial_back_free(gw);
    hdt_doctor_free(gw);
    LL_FOREACH_SAFE2(gw->survey.tasks, task, next, next_task)
    {
        json_decref(task->request);
        free(task->sites);
        free(task);
    }
    if (gw->survey.own) {
        survey_free(gw->survey.own);
    }
    json_decref(gw->survey.links);
    json_decref(gw->survey.codecs);
    memset(&gw->survey, 0, sizeof(gw->survey));
}
