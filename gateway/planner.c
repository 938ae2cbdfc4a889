/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A queue, a thread that works it off, a list of answers and an eventfd for the main loop. A
 * question is the thread's alone while it is neither in the queue nor among the answers, and the
 * main thread's before and after. A search cannot be interrupted, but it is bounded (eight workers,
 * 514 units): whoever waits for it has a deadline, the gateway at its end waits for it.
 */
#include "config.h"

#include "gateway/planner.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"

#include <event2/event.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utlist.h>

#define MAX_QUESTIONS 16
#define DEADLINE_US   (120 * HDT_US_PER_S)

struct question {
    struct hdt_job conf;
    struct hdt_model_config model;
    struct hdt_cluster cluster;
    bool has_run;
    struct hdt_plan plan; /* with a run */
    struct hdt_planner_run run;
    struct hdt_planner_answer answer;
    /* main thread */
    hdt_planner_done *done; /* NULL: nobody waits any more */
    void *user;
    int64_t asked_us;
    struct question *next;       /* in the queue, or among the answers */
    struct question *next_asked; /* all that are not answered */
};

struct hdt_planner {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;
    bool stopping;             /* lock */
    struct question *queue;    /* lock */
    struct question *answered; /* lock */
    int event_fd;
    struct event *event;    /* main thread, as what follows */
    struct question *asked; /* by next_asked */
};

/* ---- questions ---- */

static void question_free(struct question *q)
{
    hdt_conf_release(&hdt_job_schema, &q->conf);
    hdt_cluster_release(&q->cluster);
    hdt_plan_release(&q->plan);
    free(q->run.ranks);
    free(q->run.links);
    hdt_search_result_release(&q->answer.result);
    hdt_drift_verdict_release(&q->answer.verdict);
    json_decref(q->answer.cluster);
    free(q);
}

/* All that the thread reads: nothing of it is the job's. */
static enum hdt_status question_copy(struct question *q, const struct hdt_gwjob *job,
                                     const char *site, struct hdt_error *err)
{
    HDT_TRY(hdt_conf_from_json(&hdt_job_schema, job->conf_json, "job", &q->conf, err));
    HDT_TRY(hdt_model_from_json(job->model_json, "model", &q->model, err));
    if (!q->conf.data.site[0]) { /* then the files are where the job was submitted */
        free(q->conf.data.site);
        q->conf.data.site = hdt_strdup(site);
    }
    if (!q->has_run) {
        return HDT_OK;
    }
    HDT_TRY(hdt_plan_from_json(job->plan_json, &q->model, &q->plan, err));
    q->plan.step_s = q->run.predicted_s > 0 ? q->run.predicted_s : q->plan.step_s;
    return HDT_OK;
}

static void question_work_out(struct question *q)
{
    const struct hdt_cost_inputs in = {&q->conf, &q->model, &q->cluster};
    const struct hdt_drift_measured measured = {.step_s = q->run.step_s,
                                                .n_steps = q->run.n_steps,
                                                .ranks = q->run.ranks,
                                                .n_ranks = q->plan.n_ranks,
                                                .links = q->run.links,
                                                .n_links = q->run.n_links};
    struct hdt_planner_answer *answer = &q->answer;

    if (!q->has_run) {
        if (hdt_search_plan(&in, &answer->result, &answer->err) == HDT_OK) {
            answer->cluster = hdt_cluster_to_json(&q->cluster);
        }
    } else if (hdt_drift_judge(&in, &q->plan, &measured, &q->run.limits, &answer->verdict,
                               &answer->err) == HDT_OK &&
               answer->verdict.drifted) {
        answer->cluster = hdt_cluster_to_json(&answer->verdict.cluster);
    }
    if (answer->err.status != HDT_OK) { /* then they have nothing to be released */
        memset(&answer->result, 0, sizeof(answer->result));
        memset(&answer->verdict, 0, sizeof(answer->verdict));
    }
}

/* ---- the thread ---- */

static void *planner_main(void *arg)
{
    struct hdt_planner *planner = arg;
    const uint64_t one = 1;

    pthread_mutex_lock(&planner->lock);
    while (!planner->stopping) {
        struct question *q = planner->queue;

        if (!q) {
            pthread_cond_wait(&planner->work, &planner->lock);
            continue;
        }
        LL_DELETE(planner->queue, q);
        pthread_mutex_unlock(&planner->lock);
        question_work_out(q);
        pthread_mutex_lock(&planner->lock);
        LL_APPEND(planner->answered, q);
        if (write(planner->event_fd, &one, sizeof(one)) != sizeof(one)) {
            hdt_log_warn("the planner's answer waits for the next tick");
        }
    }
    pthread_mutex_unlock(&planner->lock);
    return NULL;
}

static void on_answered(evutil_socket_t fd, short what, void *user)
{
    (void)fd;
    (void)what;
    hdt_planner_dispatch(user);
}

static void planner_free(struct hdt_planner *planner)
{
    if (planner->event) {
        event_free(planner->event);
    }
    if (planner->event_fd >= 0) {
        close(planner->event_fd);
    }
    pthread_cond_destroy(&planner->work);
    pthread_mutex_destroy(&planner->lock);
    free(planner);
}

static enum hdt_status planner_open(struct hdt_gateway *gw, struct hdt_error *err)
{
    struct hdt_planner *planner = hdt_calloc(1, sizeof(*planner));
    int rc;

    pthread_mutex_init(&planner->lock, NULL);
    pthread_cond_init(&planner->work, NULL);
    planner->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (gw->base && planner->event_fd >= 0) {
        planner->event =
            event_new(gw->base, planner->event_fd, EV_READ | EV_PERSIST, on_answered, gw);
        event_add(planner->event, NULL);
    }
    rc = planner->event_fd < 0 ? -1 : pthread_create(&planner->thread, NULL, planner_main, planner);
    if (rc != 0) {
        planner_free(planner);
        return hdt_error_set(err, HDT_ENOMEM, "cannot start the planner's thread");
    }
    gw->planner = planner;
    return HDT_OK;
}

/* ---- asking ---- */

static enum hdt_status planner_take(struct hdt_gateway *gw, struct question *q,
                                    struct hdt_error *err)
{
    struct question *other;
    int n_asked;

    if (!gw->planner) {
        HDT_TRY(planner_open(gw, err));
    }
    LL_COUNT2(gw->planner->asked, other, n_asked, next_asked);
    if (n_asked >= MAX_QUESTIONS) {
        return hdt_error_set(err, HDT_ENOMEM, "%d plans are being made already", n_asked);
    }
    LL_APPEND2(gw->planner->asked, q, next_asked);
    pthread_mutex_lock(&gw->planner->lock);
    LL_APPEND(gw->planner->queue, q);
    pthread_cond_signal(&gw->planner->work);
    pthread_mutex_unlock(&gw->planner->lock);
    return HDT_OK;
}

enum hdt_status hdt_planner_ask(struct hdt_gateway *gw, const struct hdt_gwjob *job,
                                struct hdt_cluster *cluster, struct hdt_planner_run *run,
                                hdt_planner_done *done, void *user, struct hdt_error *err)
{
    struct question *q = hdt_calloc(1, sizeof(*q));
    enum hdt_status status;

    q->cluster = *cluster;
    memset(cluster, 0, sizeof(*cluster));
    if (run) {
        q->has_run = true;
        q->run = *run;
        memset(run, 0, sizeof(*run));
    }
    q->done = done;
    q->user = user;
    q->asked_us = hdt_clock_now_us();
    if ((status = question_copy(q, job, gw->conf.site, err)) != HDT_OK ||
        (status = planner_take(gw, q, err)) != HDT_OK) {
        question_free(q);
    }
    return status;
}

/* ---- answers ---- */

static void question_answer(struct hdt_gateway *gw, struct question *q)
{
    LL_DELETE2(gw->planner->asked, q, next_asked);
    if (q->done) {
        q->done(gw, q->user, &q->answer);
    }
    question_free(q);
}

void hdt_planner_dispatch(struct hdt_gateway *gw)
{
    struct question *answered, *q, *next;
    uint64_t n;

    if (!gw->planner) {
        return;
    }
    if (read(gw->planner->event_fd, &n, sizeof(n)) < 0) {
        n = 0; /* nothing new: what is there is taken all the same */
    }
    pthread_mutex_lock(&gw->planner->lock);
    answered = gw->planner->answered;
    gw->planner->answered = NULL;
    pthread_mutex_unlock(&gw->planner->lock);
    LL_FOREACH_SAFE(answered, q, next)
    {
        question_answer(gw, q);
    }
}

int hdt_planner_fd(const struct hdt_gateway *gw)
{
    return gw->planner ? gw->planner->event_fd : -1;
}

void hdt_planner_tick(struct hdt_gateway *gw)
{
    const int64_t now_us = hdt_clock_now_us();
    struct hdt_planner_answer late = {0};
    struct question *q;

    hdt_planner_dispatch(gw);
    LL_FOREACH2(gw->planner ? gw->planner->asked : NULL, q, next_asked)
    {
        hdt_planner_done *done = q->done;

        if (done && now_us - q->asked_us > DEADLINE_US) {
            q->done = NULL; /* the thread may still be at it */
            memset(&late, 0, sizeof(late));
            hdt_error_set(&late.err, HDT_ETIMEDOUT, "no plan was found within %d s",
                          (int)(DEADLINE_US / HDT_US_PER_S));
            done(gw, q->user, &late);
        }
    }
}

void hdt_planner_close(struct hdt_gateway *gw)
{
    struct hdt_planner *planner = gw->planner;
    struct question *q, *next;

    if (!planner) {
        return;
    }
    pthread_mutex_lock(&planner->lock);
    planner->stopping = true;
    pthread_cond_signal(&planner->work);
    pthread_mutex_unlock(&planner->lock);
    pthread_join(planner->thread, NULL);
    for (q = planner->asked; q; q = next) {
        next = q->next_asked;
        question_free(q);
    }
    planner_free(planner);
    gw->planner = NULL;
}
