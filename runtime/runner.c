/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "runtime/runner_impl.h"

#include "src/core/ckpt_files.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/recorder.h"
#include "src/core/msg.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Between two tries to write the last checkpoint. */
#define SAVE_RETRY_US (3 * HDT_US_PER_S)

/* ---- steps ---- */

static void meta_now(const struct hdt_runner *r, struct hdt_ckpt_meta *meta)
{
    uint64_t n = (uint64_t)(r->step - r->start_step) * hdt_runner_step_samples(r);

    memset(meta, 0, sizeof(*meta));
    meta->step = r->step;
    meta->samples = r->start_samples + n;
    meta->tokens = r->start_tokens + n * (uint64_t)r->plan.seq_len;
    meta->seed = (uint64_t)r->job.seed;
}

/* A pass over the held-out shard after the step r->step. */
static enum hdt_status run_eval(struct hdt_runner *r, struct hdt_error *err)
{
    HDT_TRY(hdt_runner_run_ops(r, HDT_PHASE_EVAL, err));
    r->val_loss = r->down.loss;
    r->has_val_loss = true;
    if (hdt_runner_is_root(r)) {
        hdt_runner_report_eval(r);
    }
    return HDT_OK;
}

static bool eval_is_due(const struct hdt_runner *r)
{
    int64_t every = r->job.eval.every, done = r->step + 1;

    return r->eval.n_ops > 0 && (done >= r->job.steps || (every > 0 && done % every == 0));
}

/* Half a second, or less when the job is aborted: HDT_ECANCELED. */
static enum hdt_status runner_pause(struct hdt_runner *r, struct hdt_error *err)
{
    struct timespec until;
    bool aborted;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += 500000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&r->lock);
    while (r->stop != HDT_RUNNER_ABORT &&
           pthread_cond_timedwait(&r->changed, &r->lock, &until) != ETIMEDOUT) {
    }
    aborted = r->stop == HDT_RUNNER_ABORT;
    if (aborted && err) {
        *err = r->why;
    }
    pthread_mutex_unlock(&r->lock);
    return aborted ? HDT_ECANCELED : HDT_OK;
}

/* Replicas have the same weights after an outer step. Where memory or a processor has failed since
 * the last comparison, no checkpoint is made of either: older ones are whole. */
static enum hdt_status replicas_compare(struct hdt_runner *r, struct hdt_error *err)
{
    const struct hdt_sync_down decided = r->down;
    const int64_t wait_ns = r->wait_ns;

    if (r->plan.n_replicas < 2) {
        return HDT_OK;
    }
    HDT_TRY(hdt_runner_sync(r, HDT_SYNC_DIGEST, err));
    r->wait_told_ns += r->wait_ns - wait_ns; /* of no step */
    r->down = decided;
    return HDT_OK;
}

/* The checkpoint that was decided, of the steps that are done. */
static enum hdt_status run_checkpoint(struct hdt_runner *r, struct hdt_error *err)
{
    struct hdt_ckpt_meta meta;

    HDT_TRY(replicas_compare(r, err));
    meta_now(r, &meta);
    return hdt_state_save(r->state, &meta, err);
}

/* One step with all that may follow it; *stop when it was the last by decision. */
static enum hdt_status run_step(struct hdt_runner *r, bool *stop, struct hdt_error *err)
{
    int64_t begin = hdt_clock_now_us();
    enum hdt_status status;
    uint8_t flags;

    HDT_RECORD(HDT_REC_STEP_BEGIN, .n = {r->job_id, r->rank, r->step + 1});
    HDT_TRY(hdt_runner_run_ops(r, HDT_PHASE_TRAIN, err));
    HDT_RECORD(HDT_REC_STEP_END,
               .n = {r->job_id, r->rank, r->step + 1, hdt_clock_now_us() - begin});
    hdt_port_job_progress(r->port);
    if (hdt_runner_is_root(r)) {
        hdt_runner_report_step(r, hdt_job_lr(&r->job, r->step),
                               (double)(hdt_clock_now_us() - begin) / 1e6);
    }
    if (r->plan.n_replicas > 1 && hdt_runner_leads(r)) {
        /* The others may wait for this replica at the next outer step. */
        hdt_alive_moved(r->alive, "step", (uint64_t)r->step + 1, (uint64_t)r->job.steps);
    }
    flags = r->down.flags;
    *stop = (flags & HDT_SYNC_STOP) != 0;
    if (flags & HDT_SYNC_CHECKPOINT) {
        r->step++;
        status = run_checkpoint(r, err);
        r->step--;
        HDT_TRY(status);
    }
    if (!*stop && eval_is_due(r)) {
        HDT_TRY(run_eval(r, err));
    }
    return HDT_OK;
}

/* ---- the end ---- */

/* Until the save's end, with signs of life to those who wait for this rank as long as it moves. */
static enum hdt_status end_wait(struct hdt_runner *r, struct hdt_error *err)
{
    uint64_t seen = hdt_state_n_moved(r->state), now;

    while (!hdt_state_wait_until(r->state, hdt_clock_now_us() + HDT_US_PER_S)) {
        now = hdt_state_n_moved(r->state);
        if (now != seen) {
            hdt_runner_saving(r);
        }
        seen = now;
    }
    return hdt_state_wait(r->state, err);
}

/* The last checkpoint could not be written for as long as the job bears. */
static enum hdt_status end_give_up(struct hdt_runner *r, const struct hdt_error *why,
                                   struct hdt_error *err)
{
    const struct hdt_ckpt_query query = {.max_step = -1};
    struct hdt_ckpt_found found;

    hdt_error_set(err, HDT_EJOB, "cannot save the last checkpoint, of step %lld, for %.0f s: %s",
                  (long long)r->step, (double)(hdt_clock_now_us() - r->save_failed_us) / 1e6,
                  why->msg);
    if (hdt_ckpt_newest(r->dir, &query, &found, NULL) == HDT_OK) {
        hdt_error_hint(err,
                       "make room, then 'hdt submit --resume %s', the newest complete checkpoint",
                       found.path);
    } else {
        hdt_error_hint(err, "make room, then submit the job again: there is no older checkpoint");
    }
    return HDT_EJOB; /* another epoch would find the same disk */
}

static bool has_room(const struct hdt_runner *r)
{
    return hdt_ckpt_check_room(r->dir, &r->model, hdt_state_units_bytes(&r->plan, &r->model),
                               NULL) == HDT_OK;
}

/* The checkpoint rank, after a save that failed: wait until another try may help, for as long as
 * the job's progress_timeout. */
static enum hdt_status end_wait_room(struct hdt_runner *r, struct hdt_error *err)
{
    int64_t until = hdt_clock_now_us() + SAVE_RETRY_US;
    struct hdt_error why = {0};

    r->save_again = hdt_state_save_error(r->state, &why) != HDT_OK;
    if (!r->save_again) {
        r->save_failed_us = 0;
        return HDT_OK;
    }
    r->save_failed_us = r->save_failed_us ? r->save_failed_us : hdt_clock_now_us();
    while (hdt_clock_now_us() < until || !has_room(r)) {
        if (hdt_clock_now_us() - r->save_failed_us >= r->job.progress_timeout * HDT_US_PER_MS) {
            return end_give_up(r, &why, err);
        }
        HDT_TRY(runner_pause(r, err));
        hdt_port_job_progress(r->port);
        hdt_runner_saving(r);
    }
    return HDT_OK;
}

/* The last checkpoint, and the digest of the weights: again and again, if need be. */
static enum hdt_status run_end(struct hdt_runner *r, bool stopped, struct hdt_error *err)
{
    struct hdt_ckpt_meta meta;

    meta_now(r, &meta);
    HDT_TRY(replicas_compare(r, err));
    do {
        if (r->step > r->start_step) {
            HDT_TRY(hdt_state_save(r->state, &meta, err));
        }
        HDT_TRY(end_wait(r, err));
        HDT_TRY(end_wait_room(r, err));
        HDT_TRY(hdt_runner_sync(r, HDT_SYNC_DIGEST, err));
    } while (r->down.flags & HDT_SYNC_CHECKPOINT);
    if (hdt_runner_is_root(r)) {
        hdt_runner_report_done(r, stopped);
    }
    return HDT_OK;
}

static enum hdt_status run_steps(struct hdt_runner *r, struct hdt_error *err)
{
    bool stop = false;

    for (r->step = r->start_step; r->step < r->job.steps && !stop; r->step++) {
        HDT_TRY(run_step(r, &stop, err));
        if (!hdt_state_is_busy(r->state)) {
            HDT_TRY(hdt_state_wait(r->state, err));
        }
    }
    return run_end(r, stop, err);
}

/* ---- the thread ---- */

static uint64_t rank_params(const struct hdt_runner *r)
{
    uint64_t n = 0;
    int64_t unit;
    size_t i;

    for (i = 0; i < r->plan.n_stages; i++) {
        for (unit = r->plan.stages[i].unit_begin; r->stages[i] && unit < r->plan.stages[i].unit_end;
             unit++) {
            n += (uint64_t)hdt_model_unit_params(&r->model, unit);
        }
    }
    return n;
}

static void send_ready(const struct hdt_runner *r, const json_t *assign)
{
    json_t *body = json_pack("{s:I,s:I,s:i,s:I,s:I,s:I}", "job", (json_int_t)r->job_id, "epoch",
                             (json_int_t)r->epoch, "rank", r->rank, "params",
                             (json_int_t)rank_params(r), "memory_bytes",
                             (json_int_t)r->memory_bytes, "start_step", (json_int_t)r->start_step);

    if (hdt_state_older(r->state)[0]) {
        json_object_set_new(body, "resume", json_string(hdt_state_older(r->state)));
    }
    hdt_port_send(r->conf.port, hdt_msg_reply(assign, "ready", body));
}

/* The answer to "assign", and to one that came again meanwhile. */
static void answer_ready(struct hdt_runner *r)
{
    HDT_RECORD(HDT_REC_STATE, .n = {r->job_id}, .text = {"ready"});
    hdt_log_info("job %lld epoch %u rank %d: ready", r->number, r->epoch, r->rank);
    pthread_mutex_lock(&r->lock);
    r->ready = true;
    send_ready(r, r->assign);
    if (r->again) {
        send_ready(r, r->again);
    }
    pthread_mutex_unlock(&r->lock);
}

static void answer_error(struct hdt_runner *r, const struct hdt_error *err)
{
    hdt_log_failure(err->status == HDT_ECANCELED ? HDT_LOG_INFO : HDT_LOG_ERROR, err);
    pthread_mutex_lock(&r->lock);
    r->build_err = *err;
    hdt_port_send(r->conf.port, hdt_msg_reply_error(r->assign, err));
    if (r->again) {
        hdt_port_send(r->conf.port, hdt_msg_reply_error(r->again, err));
    }
    r->ended = true;
    pthread_mutex_unlock(&r->lock);
}

void hdt_runner_assigned_again(struct hdt_runner *r, json_t *assign)
{
    pthread_mutex_lock(&r->lock);
    if (r->ready) {
        send_ready(r, assign);
    } else if (r->ended) {
        hdt_port_send(r->conf.port, hdt_msg_reply_error(assign, &r->build_err));
    } else {
        json_decref(r->again);
        r->again = json_incref(assign);
    }
    pthread_mutex_unlock(&r->lock);
}

static void report_failed(struct hdt_runner *r, const struct hdt_error *err)
{
    if (err->status == HDT_ECANCELED) {
        hdt_log_info("job %lld rank %d: ended: %s", r->number, r->rank, err->msg);
    } else {
        hdt_log_failure(HDT_LOG_ERROR, err);
        hdt_recorder_dump(err->status == HDT_ETIMEDOUT ? "stall" : "job-failed");
    }
    if (err->status != HDT_ECANCELED || r->tell_abort) {
        hdt_runner_report(
            r, "failed", json_pack("{s:i,s:o}", "rank", r->rank, "error", hdt_msg_error_body(err)));
    }
}

static void report_late(struct hdt_runner *r, int64_t ready_us, int64_t sign_us)
{
    const int64_t now_us = hdt_clock_now_us();
    struct hdt_error err = {0};

    hdt_error_set(&err, HDT_ETIMEDOUT,
                  "cannot run rank %d of job %lld: it is ready for %.0f s, and for %.0f s site %s, "
                  "which coordinates the job, has neither started it nor passed on that another "
                  "rank still builds",
                  r->rank, r->number, (double)(now_us - ready_us) / 1e6,
                  (double)(now_us - sign_us) / 1e6, r->coordinator);
    hdt_error_hint(&err, "look at the gateway of site %s ('hdt status'), then submit the job again",
                   r->coordinator);
    report_failed(r, &err);
}

/* Wait for "start"; false: the end came first, or no sign of the coordinator for too long. A worker
 * must not be held for ever by one that has forgotten the job. A stop with checkpoint that comes
 * before the start is kept: the root decides it in the first step, for all ranks. */
static bool wait_start(struct hdt_runner *r)
{
    const int64_t ready_us = hdt_clock_now_us();
    int64_t until_us = 0, sign_us;
    struct timespec until;
    bool late, go;

    pthread_mutex_lock(&r->lock);
    for (;;) {
        sign_us = r->sign_us > ready_us ? r->sign_us : ready_us;
        until_us = sign_us + r->deadlines.start_us;
        late = hdt_clock_now_us() >= until_us;
        if (r->started || r->stop == HDT_RUNNER_ABORT || late) {
            break;
        }
        until = (struct timespec){.tv_sec = until_us / HDT_US_PER_S,
                                  .tv_nsec = until_us % HDT_US_PER_S * 1000};
        pthread_cond_timedwait(&r->changed, &r->lock, &until);
    }
    go = r->started && r->stop != HDT_RUNNER_ABORT;
    late = late && !go && r->stop != HDT_RUNNER_ABORT;
    pthread_mutex_unlock(&r->lock);
    if (late) {
        report_late(r, ready_us, sign_us);
    }
    return go;
}

/* Folder of the job's run: the same name as the coordinator's, so that on one machine all of a run
 * lies together. */
static void run_dir_path(const struct hdt_runner *r, char *dir, size_t cap)
{
    snprintf(dir, cap, "%s/jobs/%lld-%s", r->conf.state_dir, r->number, r->job.name);
}

/* Write the trace; its path, or "" when it could not be written. */
static void write_trace(struct hdt_runner *r, char path[HDT_CKPT_PATH_CAP])
{
    char dir[HDT_CKPT_PATH_CAP], name[64];
    struct hdt_error err = {0};
    enum hdt_status status;

    run_dir_path(r, dir, sizeof(dir));
    snprintf(name, sizeof(name), "trace-rank%d.json", r->rank);
    status = hdt_ckpt_mkdir(dir, &err);
    if (status == HDT_OK) {
        status = hdt_ckpt_path(dir, name, path, &err);
    }
    if (status == HDT_OK) {
        status = hdt_trace_write(&r->trace, path, &r->plan, r->rank, &err);
    }
    if (status != HDT_OK) {
        hdt_log_failure(HDT_LOG_WARN, &err);
        path[0] = '\0';
    }
}

/* Seconds of each kind of op that training steps had. */
static json_t *ops_json(const struct runner_spent *spent)
{
    json_t *ops = json_object();

    for (int kind = 0; kind < HDT_OP_KIND_COUNT; kind++) {
        if (spent->op_ns[kind] > 0) {
            json_object_set_new(ops, hdt_op_name(kind),
                                json_real((double)spent->op_ns[kind] / 1e9));
        }
    }
    return ops;
}

static void report_rank_done(struct hdt_runner *r)
{
    const struct runner_spent *spent = &r->spent;
    char path[HDT_CKPT_PATH_CAP];

    write_trace(r, path);
    hdt_runner_report(r, "rank.done",
                      json_pack("{s:i, s:s, s:f, s:f, s:I, s:f, s:f, s:o}", "rank", r->rank,
                                "trace", path, "busy_s", (double)r->busy_ns / 1e9, "wait_s",
                                (double)r->wait_ns / 1e9, "memory_bytes",
                                (json_int_t)r->memory_bytes, "train_s",
                                (double)spent->train_ns / 1e9, "train_wait_s",
                                (double)spent->wait_ns / 1e9, "ops", ops_json(spent)));
}

/* Whoever told it to end at once wants nothing more of it. */
static bool was_dropped(struct hdt_runner *r)
{
    bool dropped;

    pthread_mutex_lock(&r->lock);
    dropped = r->stop == HDT_RUNNER_ABORT && !r->tell_abort;
    pthread_mutex_unlock(&r->lock);
    return dropped;
}

static void runner_train(struct hdt_runner *r)
{
    struct hdt_error err = {0}, why;

    if (!wait_start(r)) {
        return;
    }
    HDT_RECORD(HDT_REC_STATE, .n = {r->job_id}, .text = {"started"});
    if (run_steps(r, &err) != HDT_OK) {
        report_failed(r, &err);
        /* Nothing of this rank may go on waiting: the checkpoint's thread ends, too. */
        hdt_error_set(&why, HDT_ECANCELED, "the job has failed");
        hdt_port_job_cancel(r->port, &why);
        hdt_state_wait(r->state, NULL);
    }
    if (!was_dropped(r)) {
        report_rank_done(r);
    }
}

static void *runner_thread(void *arg)
{
    struct hdt_runner *r = arg;
    struct hdt_error err = {0};
    char part[32];

    snprintf(part, sizeof(part), "rank %d", r->rank);
    hdt_log_set_part(part);
    HDT_RECORD(HDT_REC_STATE, .n = {r->job_id}, .text = {"assigned"});
    if (hdt_runner_build(r, &err) == HDT_OK) {
        answer_ready(r);
        runner_train(r);
    } else {
        answer_error(r, &err);
    }
    pthread_mutex_lock(&r->lock);
    r->ended = true;
    r->over = true;
    HDT_RECORD(HDT_REC_STATE, .n = {r->job_id}, .text = {"ended"});
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* ---- life ---- */

static void runner_release(struct hdt_runner *r)
{
    hdt_log_set_part("");
    hdt_runner_unbuild(r);
    json_decref(r->assign);
    json_decref(r->again);
    free(r->coordinator);
    free(r->resume);
    free(r->dir);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

enum hdt_status hdt_runner_new(const struct hdt_runner_conf *conf, json_t *assign,
                               struct hdt_runner **out, struct hdt_error *err)
{
    struct hdt_runner *r = hdt_calloc(1, sizeof(*r));
    pthread_condattr_t attr;
    enum hdt_status status;

    r->conf = *conf;
    r->assign = json_incref(assign);
    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&r->changed, &attr);
    pthread_condattr_destroy(&attr);
    status = hdt_runner_parse(r, err);
    if (status == HDT_OK && pthread_create(&r->thread, NULL, runner_thread, r) != 0) {
        status = hdt_error_set(err, HDT_ENOMEM, "cannot start the runner's thread");
    }
    if (status != HDT_OK) {
        runner_release(r);
        return status;
    }
    *out = r;
    return HDT_OK;
}

enum hdt_status hdt_runner_end(struct hdt_runner *r, struct hdt_error *err)
{
    const int64_t told_us = hdt_clock_now_us();
    struct hdt_port_at at = {0};
    int64_t until_us;
    bool saves = true;

    hdt_runner_stop(r, HDT_RUNNER_ABORT, NULL);
    pthread_mutex_lock(&r->lock);
    while (!r->over && saves) {
        until_us = hdt_clock_now_us() + r->deadlines.rank_us;
        while (!r->over && hdt_clock_now_us() < until_us) {
            const struct timespec until = {.tv_sec = until_us / HDT_US_PER_S,
                                           .tv_nsec = until_us % HDT_US_PER_S * 1000};

            pthread_cond_timedwait(&r->changed, &r->lock, &until);
        }
        /* A disk has a checkpoint when it has it. Once it is ready, a runner's state stays. */
        saves = r->ready && hdt_state_is_busy(r->state);
    }
    if (r->over) {
        pthread_mutex_unlock(&r->lock);
        return HDT_OK;
    }
    if (r->port) {
        hdt_port_job_is_at(r->port, &at);
    }
    pthread_mutex_unlock(&r->lock);
    hdt_error_set(err, HDT_ETIMEDOUT,
                  "cannot end rank %d of job %lld: told to end %.0f s ago, it is still in %s%s%s",
                  r->rank, r->number, (double)(hdt_clock_now_us() - told_us) / 1e6,
                  at.op ? "op " : "", at.op ? at.op : "what it builds", at.op ? "" : " or loads");
    hdt_error_hint(err, "a device or a disk does not answer: look at the kernel's log (dmesg)");
    return HDT_ETIMEDOUT;
}

void hdt_runner_free(struct hdt_runner *r)
{
    if (!r) {
        return;
    }
    hdt_runner_stop(r, HDT_RUNNER_ABORT, NULL);
    pthread_join(r->thread, NULL);
    runner_release(r);
}

uint32_t hdt_runner_job(const struct hdt_runner *r)
{
    return r->job_id;
}

long long hdt_runner_number(const struct hdt_runner *r)
{
    return r->number;
}

uint32_t hdt_runner_epoch(const struct hdt_runner *r)
{
    return r->epoch;
}

const char *hdt_runner_checkpoint_dir(const struct hdt_runner *r)
{
    return r->dir;
}

int hdt_runner_rank(const struct hdt_runner *r)
{
    return r->rank;
}

void hdt_runner_start(struct hdt_runner *r)
{
    pthread_mutex_lock(&r->lock);
    r->started = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

void hdt_runner_alive(struct hdt_runner *r)
{
    pthread_mutex_lock(&r->lock);
    r->sign_us = hdt_clock_now_us();
    if (r->port) {
        hdt_port_job_progress(r->port);
    }
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

void hdt_runner_stop(struct hdt_runner *r, enum hdt_runner_stop mode, const struct hdt_error *why)
{
    pthread_mutex_lock(&r->lock);
    if (mode > r->stop) {
        r->stop = mode;
        hdt_error_set(&r->why, HDT_ECANCELED, "stopped on request");
        if (mode == HDT_RUNNER_ABORT && why) {
            r->why = *why;
            r->why.status = HDT_ECANCELED;
            r->tell_abort = true;
        }
    }
    if (mode == HDT_RUNNER_ABORT && r->port) {
        hdt_port_job_cancel(r->port, &r->why);
    }
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

bool hdt_runner_has_ended(struct hdt_runner *r)
{
    bool ended;

    pthread_mutex_lock(&r->lock);
    ended = r->ended;
    pthread_mutex_unlock(&r->lock);
    return ended;
}
