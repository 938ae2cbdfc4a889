/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "runtime/agent.h"

#include "runtime/backend_find.h"
#include "runtime/inspect.h"
#include "runtime/port.h"
#include "runtime/profile.h"
#include "runtime/runner.h"
#include "src/base/buf.h"
#include "src/base/log.h"
#include "src/base/recorder.h"
#include "src/core/job.h"
#include "src/core/msg.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define LOG_LINES_MAX 4096

struct inbox_msg {
    json_t *msg;
    struct inbox_msg *next;
};

struct hdt_agent {
    struct hdt_agent_conf conf;
    json_t *hello;
    struct hdt_port *port;
    struct hdt_runner *runner; /* NULL: no job */
    struct hdt_profile_cache profiles;

    pthread_mutex_t lock; /* guards the inbox and stopping */
    pthread_cond_t arrived;
    struct inbox_msg *inbox_head, *inbox_tail;
    bool stopping;
};

/* ---- from the port's thread ---- */

static void on_up(void *user, const json_t *welcome)
{
    const char *site = json_string_value(json_object_get(welcome, "site"));

    (void)user;
    HDT_RECORD(HDT_REC_CONNECTION, .text = {"up", site});
    hdt_log_info("joined the gateway of site %s", site ? site : "?");
}

static void on_down(void *user, const struct hdt_error *why)
{
    (void)user;
    HDT_RECORD(HDT_REC_CONNECTION, .text = {"down", "gateway", why->msg});
    hdt_log_failure(HDT_LOG_WARN, why);
}

static void on_message(void *user, json_t *msg)
{
    struct hdt_agent *agent = user;
    struct inbox_msg *item = hdt_calloc(1, sizeof(*item));

    HDT_RECORD(HDT_REC_MESSAGE, .text = {hdt_msg_type(msg), hdt_msg_from(msg), hdt_msg_to(msg)});
    item->msg = msg; /* from now on this thread's: jansson's counts are no fence */
    pthread_mutex_lock(&agent->lock);
    if (agent->inbox_tail) {
        agent->inbox_tail->next = item;
    } else {
        agent->inbox_head = item;
    }
    agent->inbox_tail = item;
    pthread_cond_signal(&agent->arrived);
    pthread_mutex_unlock(&agent->lock);
}

/* ---- messages ---- */

static void reply_error(struct hdt_agent *agent, const json_t *msg, const struct hdt_error *err)
{
    hdt_log_failure(HDT_LOG_WARN, err);
    hdt_port_send(agent->port, hdt_msg_reply_error(msg, err));
}

/* Forget a job that has nothing more to do. Of a device that does not answer nothing can be freed,
 * nor can the thread that waits for it be ended but with the process; who started that starts it
 * again. */
static void runner_reap(struct hdt_agent *agent)
{
    struct hdt_error err = {0};

    hdt_port_hold(agent->port, 0, 0);
    if (agent->runner && hdt_runner_end(agent->runner, &err) != HDT_OK) {
        hdt_log_failure(HDT_LOG_ERROR, &err);
        hdt_log_error("worker %s ends with it", agent->conf.worker->name);
        hdt_recorder_dump("stall");
        hdt_recorder_close();
        _exit(1);
    }
    hdt_runner_free(agent->runner);
    agent->runner = NULL;
}

/* Is this job here, in that epoch or an older one? */
static bool runner_is_within(const struct hdt_agent *agent, json_int_t job, json_int_t epoch)
{
    return agent->runner && (json_int_t)hdt_runner_job(agent->runner) == job &&
           (json_int_t)hdt_runner_epoch(agent->runner) <= epoch;
}

static enum hdt_status busy_check(struct hdt_agent *agent, const char *what, struct hdt_error *err)
{
    if (!agent->runner || hdt_runner_has_ended(agent->runner)) {
        return HDT_OK;
    }
    hdt_error_set(err, HDT_EEXIST, "cannot %s on worker %s: it runs job %lld", what,
                  agent->conf.worker->name, hdt_runner_number(agent->runner));
    hdt_error_hint(err, "wait for its end ('hdt status'), or stop it ('hdt stop')");
    return HDT_EEXIST;
}

/* The job is here already: the same epoch is answered again, a newer one takes its place, an older
 * one is over. HDT_AGAIN: it was dealt with. */
static enum hdt_status assign_again(struct hdt_agent *agent, json_t *msg, json_int_t epoch,
                                    struct hdt_error *err)
{
    uint32_t own = hdt_runner_epoch(agent->runner);

    if (own == epoch) {
        hdt_runner_assigned_again(agent->runner, msg);
        return HDT_AGAIN;
    }
    if (own > epoch) {
        return hdt_error_set(
            err, HDT_EEXIST, "cannot take epoch %lld of job %lld on worker %s: it runs epoch %u",
            (long long)epoch, hdt_runner_number(agent->runner), agent->conf.worker->name, own);
    }
    hdt_log_info("job %lld: epoch %lld takes the place of %u", hdt_runner_number(agent->runner),
                 (long long)epoch, own);
    runner_reap(agent);
    return HDT_OK;
}

static enum hdt_status on_assign(struct hdt_agent *agent, json_t *msg, struct hdt_error *err)
{
    struct hdt_runner_conf conf = {.backend = agent->conf.backend,
                                   .device = agent->conf.device,
                                   .port = agent->port,
                                   .data_dir = agent->conf.worker->data_dir,
                                   .state_dir = agent->conf.worker->state_dir,
                                   .memory_bytes = agent->conf.memory_bytes};
    enum hdt_status status;
    json_int_t job, epoch;

    HDT_TRY(hdt_msg_unpack(msg, err, "{s:I,s:I}", "job", &job, "epoch", &epoch));
    if (agent->runner && (json_int_t)hdt_runner_job(agent->runner) == job) {
        status = assign_again(agent, msg, epoch, err);
        if (status != HDT_OK) {
            return status == HDT_AGAIN ? HDT_OK : status;
        }
    }
    HDT_TRY(busy_check(agent, "take a job", err));
    runner_reap(agent);
    if (epoch == 1) {
        hdt_port_checkpoint_forget(agent->port);
    }
    HDT_TRY(hdt_runner_new(&conf, msg, &agent->runner, err));
    hdt_port_hold(agent->port, hdt_runner_job(agent->runner), hdt_runner_epoch(agent->runner));
    return HDT_OK;
}

/* The job that a message speaks of, in its epoch; HDT_ENOENT. */
static enum hdt_status runner_named(struct hdt_agent *agent, const json_t *msg,
                                    struct hdt_error *err)
{
    json_int_t job, epoch;

    HDT_TRY(hdt_msg_unpack(msg, err, "{s:I,s:I}", "job", &job, "epoch", &epoch));
    if (!agent->runner || (json_int_t)hdt_runner_job(agent->runner) != job ||
        (json_int_t)hdt_runner_epoch(agent->runner) != epoch) {
        return hdt_error_set(err, HDT_ENOENT, "cannot %s job %lld, epoch %lld: worker %s has none",
                             hdt_msg_type(msg), (long long)job, (long long)epoch,
                             agent->conf.worker->name);
    }
    return HDT_OK;
}

/* The answer to an order that may come twice. */
static void reply_state(struct hdt_agent *agent, const json_t *msg, const char *type, json_t *body)
{
    const json_t *asked = hdt_msg_body(msg);

    json_object_set(body, "job", json_object_get(asked, "job"));
    json_object_set(body, "epoch", json_object_get(asked, "epoch"));
    hdt_port_send(agent->port, hdt_msg_reply(msg, type, body));
}

/* Asks as well whether the job is here: a worker that was restarted has lost it. */
static enum hdt_status on_start(struct hdt_agent *agent, json_t *msg, struct hdt_error *err)
{
    bool held = runner_named(agent, msg, NULL) == HDT_OK;

    (void)err;
    if (held) {
        hdt_runner_start(agent->runner);
    }
    reply_state(agent, msg, "started", json_pack("{s:b}", "held", (int)held));
    return HDT_OK;
}

/* Not more than a message a second; of a job that is not there any more it says nothing. */
static enum hdt_status on_alive(struct hdt_agent *agent, json_t *msg, struct hdt_error *err)
{
    (void)err;
    if (runner_named(agent, msg, NULL) == HDT_OK) {
        hdt_runner_alive(agent->runner);
    }
    return HDT_OK;
}

/* Of a job that is over it says nothing, too. */
static enum hdt_status on_edge(struct hdt_agent *agent, json_t *msg, struct hdt_error *err)
{
    (void)err;
    if (runner_named(agent, msg, NULL) == HDT_OK) {
        hdt_runner_edge_is(agent->runner, hdt_msg_body(msg));
    }
    return HDT_OK;
}

static enum hdt_status on_stop(struct hdt_agent *agent, json_t *msg, struct hdt_error *err)
{
    const char *mode = "";

    HDT_TRY(runner_named(agent, msg, err));
    HDT_TRY(hdt_msg_unpack(msg, err, "{s:s}", "mode", &mode));
    hdt_log_info("job %lld: asked to stop (%s)", hdt_runner_number(agent->runner), mode);
    hdt_runner_stop(agent->runner,
                    strcmp(mode, "checkpoint") == 0 ? HDT_RUNNER_CHECKPOINT
                    : strcmp(mode, "boundary") == 0 ? HDT_RUNNER_BOUNDARY
                                                    : HDT_RUNNER_ABORT,
                    NULL);
    return HDT_OK;
}

/* "release" of what is not there is no error: it may come twice. Once it is answered, the memory of
 * that epoch, and of all before it, is free. The report of its last checkpoint may not have come
 * through; it is where the next epoch would begin. */
static enum hdt_status on_release(struct hdt_agent *agent, json_t *msg, struct hdt_error *err)
{
    json_t *body, *checkpoint;
    json_int_t job, epoch;

    HDT_TRY(hdt_msg_unpack(msg, err, "{s:I,s:I}", "job", &job, "epoch", &epoch));
    if (runner_is_within(agent, job, epoch)) {
        runner_reap(agent);
    }
    hdt_port_reports_end(agent->port, job, epoch); /* those of its end, too */
    body = json_object();
    checkpoint = hdt_port_last_checkpoint(agent->port, job);
    if (checkpoint) {
        json_object_set_new(body, "checkpoint", checkpoint);
    }
    reply_state(agent, msg, "released", body);
    return HDT_OK;
}

static enum hdt_status profile_shape(const json_t *msg, struct hdt_profile_shape *shape,
                                     struct hdt_error *err)
{
    json_t *conf, *model;
    struct hdt_job job;
    enum hdt_status status;

    HDT_TRY(hdt_msg_unpack(msg, err, "{s:o,s:o}", "job", &conf, "model", &model));
    memset(shape, 0, sizeof(*shape));
    HDT_TRY(hdt_model_from_json(model, "message 'profile'", &shape->model, err));
    HDT_TRY(hdt_conf_from_json(&hdt_job_schema, conf, "message 'profile'", &job, err));
    status = hdt_job_check(&job, &shape->model, NULL, err);
    shape->micro_batch = job.batch.micro_batch;
    shape->seq_len = job.batch.seq_len;
    shape->precision = job.precision;
    hdt_conf_release(&hdt_job_schema, &job);
    return status;
}

static enum hdt_status on_profile(struct hdt_agent *agent, json_t *msg, struct hdt_error *err)
{
    const struct hdt_profile *known;
    struct hdt_profile_shape shape;
    struct hdt_profile profile;

    HDT_TRY(profile_shape(msg, &shape, err));
    known = hdt_profile_cache_find(&agent->profiles, &shape);
    if (!known) {
        HDT_TRY(busy_check(agent, "measure the device", err));
        HDT_TRY(
            hdt_profile_measure(agent->conf.backend, agent->conf.device, &shape, &profile, err));
        hdt_profile_cache_add(&agent->profiles, &shape, &profile);
        known = &profile;
    }
    hdt_port_send(agent->port,
                  hdt_msg_reply(msg, "profile.is",
                                json_pack("{s:o}", "profile", hdt_profile_to_json(known))));
    return HDT_OK;
}

static enum hdt_status on_logs(struct hdt_agent *agent, json_t *msg, struct hdt_error *err)
{
    struct hdt_buf text = {0}, safe = {0};
    json_int_t n = 100;
    size_t i;

    HDT_TRY(hdt_msg_unpack(msg, err, "{s?:I}", "n", &n));
    hdt_log_tail((unsigned)(n < 1 ? 1 : n > LOG_LINES_MAX ? LOG_LINES_MAX : n), &text);
    /* A line may hold bytes that came from outside; JSON takes UTF-8 only. */
    for (i = 0; i < text.len; i++) {
        if ((unsigned char)text.data[i] >= 0x80) {
            text.data[i] = '?';
        }
    }
    hdt_buf_append(&safe, text.data, text.len);
    hdt_port_send(agent->port,
                  hdt_msg_reply(msg, "logs.are",
                                json_pack("{s:s#}", "text", hdt_buf_str(&safe), (int)safe.len)));
    hdt_buf_release(&safe);
    hdt_buf_release(&text);
    return HDT_OK;
}

/* "doctor", "bundle.list", "bundle.read". */
static enum hdt_status on_question(struct hdt_agent *agent, json_t *msg, struct hdt_error *err)
{
    struct hdt_device_info info;
    struct hdt_inspect_conf conf = {.worker = agent->conf.worker,
                                    .version = agent->conf.version,
                                    .memory_bytes = agent->conf.memory_bytes};
    json_t *body;

    agent->conf.backend->device_info(agent->conf.device, &info);
    conf.threads = info.n_threads;
    conf.checkpoint_dir = agent->runner ? hdt_runner_checkpoint_dir(agent->runner) : NULL;
    HDT_TRY(hdt_inspect_answer(&conf, hdt_msg_type(msg), hdt_msg_body(msg), &body, err));
    hdt_port_send(agent->port,
                  hdt_msg_reply(msg, hdt_inspect_answer_type(hdt_msg_type(msg)), body));
    return HDT_OK;
}

static enum hdt_status on_error(struct hdt_agent *agent, json_t *msg, struct hdt_error *err)
{
    struct hdt_error theirs = {0};

    (void)agent;
    (void)err;
    hdt_msg_error_from_body(hdt_msg_body(msg), &theirs);
    hdt_error_prefix(&theirs, "the gateway answered");
    hdt_log_failure(HDT_LOG_WARN, &theirs);
    return HDT_OK;
}

static const struct {
    const char *type;
    enum hdt_status (*handle)(struct hdt_agent *agent, json_t *msg, struct hdt_error *err);
} handlers[] = {
    {"assign", on_assign},
    {"start", on_start},
    {"task.alive", on_alive},
    {"edge.is", on_edge},
    {"stop", on_stop},
    {"release", on_release},
    {"profile", on_profile},
    {"logs", on_logs},
    {"error", on_error},
    {"doctor", on_question},
    {"bundle.list", on_question},
    {"bundle.read", on_question},
};

static void agent_handle(struct hdt_agent *agent, json_t *msg)
{
    const char *type = hdt_msg_type(msg);
    struct hdt_error err = {0};
    size_t i;

    for (i = 0; i < sizeof(handlers) / sizeof(handlers[0]); i++) {
        if (strcmp(handlers[i].type, type) == 0) {
            if (handlers[i].handle(agent, msg, &err) != HDT_OK) {
                reply_error(agent, msg, &err);
            }
            return;
        }
    }
    hdt_error_set(&err, HDT_ENOTSUP, "cannot act on message '%s': this worker does not know it",
                  type);
    reply_error(agent, msg, &err);
}

/* ---- life ---- */

static json_t *agent_hello(const struct hdt_agent_conf *conf)
{
    struct hdt_device_info info;
    uint64_t instance = 0;

    if (getrandom(&instance, sizeof(instance), 0) != (ssize_t)sizeof(instance)) {
        instance = (uint64_t)getpid();
    }
    conf->backend->device_info(conf->device, &info);
    return json_pack("{s:i,s:s,s:s,s:s,s:o,s:i,s:{s:s,s:s,s:I,s:i,s:b,s:b},s:[],s:[s,s,s]}",
                     "proto", HDT_PROTOCOL_VERSION, "role", "worker", "name", conf->worker->name,
                     "version", conf->version, "instance", hdt_msg_u64_hex(instance), "pid",
                     (int)getpid(), "device", "name", info.name, "backend", conf->backend->name,
                     "memory_bytes", (json_int_t)conf->memory_bytes, "threads", info.n_threads,
                     "bf16", conf->backend->mixed != NULL, "fp8",
                     hdt_backend_has_fp8(conf->backend, conf->device), "features", "dtypes",
                     hdt_dtype_name(HDT_DTYPE_F32), hdt_dtype_name(HDT_DTYPE_BF16),
                     hdt_dtype_name(HDT_DTYPE_I32));
}

enum hdt_status hdt_agent_new(const struct hdt_agent_conf *conf, struct hdt_agent **out,
                              struct hdt_error *err)
{
    static const struct hdt_port_events events = {on_up, on_down, on_message};
    struct hdt_agent *agent = hdt_calloc(1, sizeof(*agent));
    struct hdt_port_conf port_conf = {
        .address = conf->worker->gateway, .tls = conf->tls, .spool_dir = conf->worker->state_dir};
    enum hdt_status status;

    agent->conf = *conf;
    agent->hello = agent_hello(conf);
    HDT_ASSERT(agent->hello);
    pthread_mutex_init(&agent->lock, NULL);
    pthread_cond_init(&agent->arrived, NULL);
    port_conf.hello = agent->hello;
    status = hdt_port_open(&port_conf, &events, agent, &agent->port, err);
    if (status != HDT_OK) {
        hdt_agent_free(agent);
        return status;
    }
    *out = agent;
    return HDT_OK;
}

void hdt_agent_run(struct hdt_agent *agent)
{
    struct inbox_msg *item;

    for (;;) {
        pthread_mutex_lock(&agent->lock);
        while (!agent->inbox_head && !agent->stopping) {
            pthread_cond_wait(&agent->arrived, &agent->lock);
        }
        if (agent->stopping) {
            pthread_mutex_unlock(&agent->lock);
            return;
        }
        item = agent->inbox_head;
        agent->inbox_head = item->next;
        agent->inbox_tail = item->next ? agent->inbox_tail : NULL;
        pthread_mutex_unlock(&agent->lock);
        agent_handle(agent, item->msg);
        json_decref(item->msg);
        free(item);
    }
}

void hdt_agent_stop(struct hdt_agent *agent)
{
    pthread_mutex_lock(&agent->lock);
    agent->stopping = true;
    pthread_cond_signal(&agent->arrived);
    pthread_mutex_unlock(&agent->lock);
}

void hdt_agent_free(struct hdt_agent *agent)
{
    struct hdt_error why = {0};
    struct inbox_msg *item;

    if (!agent) {
        return;
    }
    if (agent->runner) {
        hdt_error_set(&why, HDT_ECANCELED, "worker %s was stopped", agent->conf.worker->name);
        hdt_runner_stop(agent->runner, HDT_RUNNER_ABORT, &why);
    }
    runner_reap(agent);
    hdt_port_close(agent->port);
    while ((item = agent->inbox_head)) {
        agent->inbox_head = item->next;
        json_decref(item->msg);
        free(item);
    }
    json_decref(agent->hello);
    pthread_cond_destroy(&agent->arrived);
    pthread_mutex_destroy(&agent->lock);
    free(agent);
}
