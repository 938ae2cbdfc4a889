/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A channel from opening to closing: its thread, what it does in which order, and its deadlines.
 *
 * A request has two: while all members that it waits for are there, the conf's timeout_ms, which is
 * about programs that compute for as long as they like; while one of them, its site or our gateway
 * is away, the site's progress_timeout, counted from when it left. Both end the channel: what is
 * half done cannot be gone on with at all members alike.
 */
#include "config.h"

#include "src/lib/chan.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/core/msg.h"
#include "src/net/gwclient.h"
#include "src/net/tls.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define OPEN_TIMEOUT_MS 60000
#define TIMEOUT_MS      600000
#define WINDOW_BYTES    ((size_t)32 << 20)
#define MEMORY_BYTES    ((size_t)64 << 20)
#define BYTES_MAX       ((size_t)1 << 36)
#define TICK_US         (250 * HDT_US_PER_MS)

/* ---- the end of a channel ---- */

void hdt_chan_post(struct hdt_channel *ch)
{
    if (!ch->is_posted) {
        ch->is_posted = true;
        hdt_engine_post(ch->engine, &ch->task);
    }
}

void hdt_chan_fail(struct hdt_channel *ch, const struct hdt_error *why, bool tell)
{
    struct hdt_request *request;
    struct hdt_flow *flow;

    if (ch->phase == CHAN_OVER) {
        return;
    }
    for (flow = ch->flows; flow; flow = flow->next) {
        flow->queue = NULL;
        flow->unacked = NULL;
    }
    ch->collectives = NULL;
    pthread_mutex_lock(&ch->lock);
    ch->phase = CHAN_OVER;
    ch->why = *why;
    ch->arrived = NULL;
    ch->arrived_last = NULL;
    DL_FOREACH2(ch->all, request, all_next)
    {
        if (!request->is_done) {
            request->is_done = true;
            request->err = *why;
        }
    }
    pthread_cond_broadcast(&ch->changed);
    pthread_mutex_unlock(&ch->lock);
    if (tell) {
        hdt_chan_leave(ch, why);
    }
}

void hdt_chan_member_text(const struct hdt_channel *ch, unsigned rank, char *who, size_t who_cap,
                          char *state, size_t state_cap)
{
    const struct chan_member *member = &ch->members[rank];

    snprintf(who, who_cap, "rank %u (%s)", rank, member->text);
    state[0] = '\0';
    if (!ch->is_up) {
        snprintf(state, state_cap, ", and the gateway of this site is away for %.0f s: %.300s",
                 (double)(hdt_clock_now_us() - ch->down_us) / 1e6, ch->down.msg);
    } else if (member->state == MEMBER_AWAY) {
        snprintf(state, state_cap, ", which is away for %.0f s: %.300s",
                 (double)(hdt_clock_now_us() - member->since_us) / 1e6, member->why);
    } else if (member->state == MEMBER_HERE) {
        snprintf(state, state_cap, ", which is connected");
    }
}

/* ---- deadlines ---- */

struct late {
    int64_t moved_us;
    unsigned peer;
    char what[320];
};

/* Is it too late? The lock is held. */
static bool late_is_over(const struct hdt_channel *ch, const struct late *late, int64_t now_us)
{
    const int64_t away_limit_us = hdt_gwlink_deadlines(ch->link)->progress_us;
    const struct chan_member *peer = &ch->members[late->peer];
    int64_t since_us = late->moved_us;
    bool is_away = false;

    if (!ch->is_up) {
        is_away = true;
        since_us = since_us > ch->down_us ? since_us : ch->down_us;
    } else if (peer->state == MEMBER_AWAY) {
        is_away = true;
        since_us = since_us > peer->since_us ? since_us : peer->since_us;
    }
    return (is_away && now_us - since_us >= away_limit_us) ||
           (ch->timeout_us >= 0 && now_us - late->moved_us >= ch->timeout_us);
}

static void late_fail(struct hdt_channel *ch, const struct late *late, int64_t now_us)
{
    char who[HDT_CHANNEL_MEMBER_CAP + 24], state[400];
    struct hdt_error err;

    pthread_mutex_lock(&ch->lock);
    hdt_chan_member_text(ch, late->peer, who, sizeof(who), state, sizeof(state));
    pthread_mutex_unlock(&ch->lock);
    hdt_error_set(&err, HDT_ETIMEDOUT,
                  "rank %u (%s) gives up channel '%s': nothing moved for %.0f s of %s%s", ch->rank,
                  ch->members[ch->rank].text, ch->name, (double)(now_us - late->moved_us) / 1e6,
                  late->what, state);
    hdt_error_hint(&err, "look at that program and the gateways ('hdt status', 'hdt doctor'); one "
                         "that computes for longer needs a larger timeout_ms of the channel");
    hdt_chan_fail(ch, &err, true);
}

/* The oldest request of a flow. */
static bool flow_late(const struct hdt_channel *ch, const struct hdt_flow *flow, struct late *late)
{
    const struct hdt_request *request = flow->unacked ? flow->unacked : flow->queue;
    char text[96];

    if (!request) {
        return false;
    }
    late->peer = flow->peer;
    late->moved_us = flow->moved_us > request->moved_us ? flow->moved_us : request->moved_us;
    hdt_channel_flow_describe(flow->number, ch->rank, text);
    snprintf(late->what, sizeof(late->what), "%s, %s", text,
             !flow->is_opened      ? "which the other end has not opened"
             : flow->window.is_src ? "where the other program takes nothing"
                                   : "where nothing comes");
    return true;
}

static void chan_check_deadlines(struct hdt_channel *ch)
{
    const int64_t now_us = hdt_clock_now_us();
    struct late late;
    struct hdt_flow *flow;
    bool is_over = false;

    pthread_mutex_lock(&ch->lock);
    if (ch->collectives) {
        late.moved_us = ch->collectives->moved_us;
        hdt_chan_coll_describe(ch, late.what, sizeof(late.what), &late.peer);
        is_over = late_is_over(ch, &late, now_us);
    }
    for (flow = ch->flows; flow && !is_over; flow = flow->next) {
        is_over = flow_late(ch, flow, &late) && late_is_over(ch, &late, now_us);
    }
    pthread_mutex_unlock(&ch->lock);
    if (is_over) {
        late_fail(ch, &late, now_us);
    }
}

static void chan_tick(struct hdt_engine *engine, struct hdt_timer *timer)
{
    struct hdt_channel *ch = timer->user;

    chan_check_deadlines(ch);
    pthread_mutex_lock(&ch->lock);
    hdt_chan_post(ch);
    pthread_mutex_unlock(&ch->lock);
    if (!ch->is_done) {
        hdt_engine_timer_arm(engine, timer, hdt_clock_now_us() + TICK_US);
    }
}

/* ---- closing ---- */

static void chan_call_off(struct hdt_channel *ch)
{
    struct hdt_request *request;
    struct hdt_error err;
    struct hdt_flow *flow;

    if (ch->collectives) {
        hdt_error_set(&err, HDT_ECANCELED,
                      "rank %u (%s) closed channel '%s' in the middle of a collective", ch->rank,
                      ch->members[ch->rank].text, ch->name);
        hdt_chan_fail(ch, &err, true);
        return;
    }
    hdt_error_set(&err, HDT_ECANCELED, "channel '%s' was closed", ch->name);
    for (flow = ch->flows; flow; flow = flow->next) {
        while (!flow->window.is_src && (request = flow->queue)) {
            DL_DELETE(flow->queue, request);
            hdt_chan_request_done(request, 0, &err);
        }
    }
}

/* Has everybody taken what we sent? Who has left takes nothing more. */
static bool chan_is_flushed(struct hdt_channel *ch)
{
    const struct hdt_flow *flow;

    for (flow = ch->flows; flow; flow = flow->next) {
        if (flow->window.is_src && !ch->closed[flow->peer] &&
            (flow->queue || flow->unacked || flow->window.acked < flow->window.end)) {
            return false;
        }
    }
    return true;
}

/* A flush without a request has a deadline all the same. */
static bool chan_flush_is_late(struct hdt_channel *ch)
{
    const int64_t now_us = hdt_clock_now_us();
    struct hdt_flow *flow;
    struct late late;
    bool is_over = false;

    pthread_mutex_lock(&ch->lock);
    for (flow = ch->flows; flow && !is_over; flow = flow->next) {
        if (flow->window.is_src && flow->window.acked < flow->window.end &&
            !ch->closed[flow->peer]) {
            late.moved_us = flow->moved_us > ch->leave_us ? flow->moved_us : ch->leave_us;
            late.peer = flow->peer;
            snprintf(late.what, sizeof(late.what),
                     "what was sent to rank %u, which it has not taken", flow->peer);
            is_over = late_is_over(ch, &late, now_us);
        }
    }
    pthread_mutex_unlock(&ch->lock);
    if (is_over) {
        late_fail(ch, &late, now_us);
    }
    return is_over;
}

/* Step by step: call off, flush, say goodbye, end the connection. */
static void chan_close_step(struct hdt_channel *ch)
{
    const int64_t stop_us = hdt_gwlink_deadlines(ch->link)->stop_us;

    if (ch->is_ending) {
        return;
    }
    if (ch->leave_us == 0) {
        ch->leave_us = hdt_clock_now_us();
        if (ch->phase == CHAN_UP) {
            chan_call_off(ch);
        }
    }
    if (ch->phase == CHAN_UP && !ch->leave_due && !chan_is_flushed(ch) && !chan_flush_is_late(ch)) {
        return;
    }
    if (!ch->leave_due) {
        ch->leave_due = true;
        ch->leave_us = hdt_clock_now_us();
        ch->is_leaving = ch->phase != CHAN_OVER && hdt_gwlink_is_up(ch->link);
        hdt_chan_leave(ch, NULL);
    }
    if (ch->is_leaving && hdt_gwlink_is_up(ch->link) &&
        hdt_clock_now_us() - ch->leave_us < stop_us) {
        return;
    }
    ch->is_ending = true;
    hdt_gwlink_end(ch->link);
}

/* ---- the thread ---- */

static void request_begin(struct hdt_channel *ch, struct hdt_request *request)
{
    struct hdt_error err;

    if (request->kind == REQUEST_COLLECTIVE) {
        hdt_chan_coll_begin(ch, request);
        return;
    }
    if (request->kind == REQUEST_FLUSH && !request->flow->window.is_src) {
        hdt_error_set(&err, HDT_ECANCELED, "the flow was closed");
        while (request->flow->queue) {
            struct hdt_request *recv = request->flow->queue;

            DL_DELETE(request->flow->queue, recv);
            hdt_chan_request_done(recv, 0, &err);
        }
    }
    DL_APPEND(request->flow->queue, request);
}

static void chan_abort(struct hdt_channel *ch)
{
    struct hdt_error err;

    pthread_mutex_lock(&ch->lock);
    err = ch->abort_why;
    pthread_mutex_unlock(&ch->lock);
    hdt_chan_fail(ch, &err, true);
}

static void chan_run(struct hdt_engine *engine, struct hdt_task *task)
{
    struct hdt_channel *ch =
        (struct hdt_channel *)(void *)((char *)task - offsetof(struct hdt_channel, task));
    struct hdt_request *request;
    bool closing, abort_due, more = false;

    (void)engine;
    pthread_mutex_lock(&ch->lock);
    ch->is_posted = false;
    hdt_chan_flows_collect(ch);
    request = ch->arrived;
    ch->arrived = NULL;
    ch->arrived_last = NULL;
    closing = ch->closing;
    abort_due = ch->abort_due;
    ch->abort_due = false;
    pthread_mutex_unlock(&ch->lock);
    while (request) {
        struct hdt_request *next = request->new_next;

        request_begin(ch, request);
        request = next;
    }
    if (abort_due) {
        chan_abort(ch);
    }
    if (ch->phase != CHAN_OVER) {
        hdt_chan_flows_announce(ch);
        more = hdt_chan_requests_step(ch);
        more = hdt_chan_coll_step(ch) || more;
    }
    hdt_chan_flows_pump(ch);
    if (closing) {
        chan_close_step(ch);
    }
    if (more) {
        pthread_mutex_lock(&ch->lock);
        hdt_chan_post(ch);
        pthread_mutex_unlock(&ch->lock);
    }
}

static void *chan_thread(void *arg)
{
    struct hdt_channel *ch = arg;

    hdt_engine_timer_arm(ch->engine, &ch->tick, hdt_clock_now_us() + TICK_US);
    hdt_gwlink_start(ch->link);
    while (!ch->is_done) {
        hdt_engine_run(ch->engine);
    }
    hdt_engine_timer_disarm(ch->engine, &ch->tick);
    return NULL;
}

/* A program's signals are for its own threads. */
static enum hdt_status chan_start(struct hdt_channel *ch, struct hdt_error *err)
{
    sigset_t all, old;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = pthread_create(&ch->thread, NULL, chan_thread, ch);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0) {
        return hdt_error_set_errno(err, HDT_ENOMEM, rc, "cannot start the thread of channel '%s'",
                                   ch->name);
    }
    ch->has_thread = true;
    return HDT_OK;
}

/* ---- making ---- */

static void chan_free(struct hdt_channel *ch)
{
    struct hdt_request *request, *next_request;
    struct hdt_flow *flow, *next_flow;

    DL_FOREACH_SAFE2(ch->all, request, next_request, all_next)
    {
        free(request);
    }
    LL_FOREACH_SAFE2(ch->all_flows, flow, next_flow, all_next)
    {
        hdt_chan_flow_free(flow);
    }
    hdt_chan_coll_release(ch);
    hdt_chan_mem_release(ch);
    hdt_gwlink_free(ch->link);
    hdt_engine_close(ch->engine);
    hdt_tls_ctx_free(ch->tls);
    pthread_cond_destroy(&ch->changed);
    pthread_mutex_destroy(&ch->lock);
    free(ch->discard);
    free(ch->closed);
    free(ch->lanes);
    free(ch->members);
    free(ch);
}

static struct hdt_channel *chan_new(void)
{
    struct hdt_channel *ch = hdt_calloc(1, sizeof(*ch));
    pthread_condattr_t attr;
    uint64_t instance;

    if (getrandom(&instance, sizeof(instance), 0) != (ssize_t)sizeof(instance)) {
        instance = (uint64_t)hdt_clock_now_ns() ^ (uintptr_t)ch;
    }
    snprintf(ch->instance, sizeof(ch->instance), "%016llx", (unsigned long long)instance);
    pthread_mutex_init(&ch->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&ch->changed, &attr);
    pthread_condattr_destroy(&attr);
    ch->task.run = chan_run;
    ch->tick.fire = chan_tick;
    ch->tick.user = ch;
    ch->down_us = hdt_clock_now_us();
    return ch;
}

static enum hdt_status members_init(struct hdt_channel *ch, const struct hdt_channel_conf *conf,
                                    struct hdt_error *err)
{
    int own = -1;

    if (!conf->name || !hdt_name_is_valid(conf->name)) {
        return hdt_error_set(err, HDT_EINVAL, "'%.80s' is no name of a channel",
                             conf->name ? conf->name : "");
    }
    snprintf(ch->name, sizeof(ch->name), "%s", conf->name);
    if (!conf->members || conf->n_members < 1 || conf->n_members > HDT_CHANNEL_MEMBERS_MAX ||
        conf->rank >= conf->n_members) {
        return hdt_error_set(
            err, HDT_EINVAL,
            "cannot open channel '%s' as rank %d of %d members, of which there may "
            "be %d",
            ch->name, conf->rank, conf->n_members, HDT_CHANNEL_MEMBERS_MAX);
    }
    ch->n = (unsigned)conf->n_members;
    ch->members = hdt_calloc(ch->n, sizeof(*ch->members));
    for (unsigned i = 0; i < ch->n; i++) {
        const char *text = conf->members[i] ? conf->members[i] : "";

        HDT_TRY(hdt_channel_member_parse(text, &ch->members[i].who, err));
        snprintf(ch->members[i].text, sizeof(ch->members[i].text), "%s", text);
        if (strcmp(ch->members[i].who.site, ch->site) == 0) {
            own = own == -1 ? (int)i : -2;
        }
    }
    if (conf->rank < 0 && own < 0) {
        hdt_error_set(err, HDT_EINVAL,
                      "cannot tell which rank of channel '%s' this is: %s member is at site %s",
                      ch->name, own == -1 ? "no" : "more than one", ch->site);
        hdt_error_hint(err, "set rank in the conf of the channel");
        return HDT_EINVAL;
    }
    ch->rank = (unsigned)(conf->rank < 0 ? own : conf->rank);
    return HDT_OK;
}

static enum hdt_status numbers_init(struct hdt_channel *ch, const struct hdt_channel_conf *conf,
                                    struct hdt_error *err)
{
    if (conf->priority < 0 || conf->priority > HDT_PRIORITY_URGENT || conf->open_timeout_ms < 0 ||
        conf->window_bytes > BYTES_MAX || conf->memory_bytes > BYTES_MAX) {
        return hdt_error_set(err, HDT_EINVAL,
                             "cannot open channel '%s' with priority %d, open_timeout_ms %d, "
                             "window_bytes %zu, memory_bytes %zu",
                             ch->name, conf->priority, conf->open_timeout_ms, conf->window_bytes,
                             conf->memory_bytes);
    }
    ch->prio = conf->priority == HDT_PRIORITY_URGENT ? HDT_PRIO_ACTIVATION : HDT_PRIO_OUTER;
    ch->codec.gateway = conf->lossless ? HDT_CODEC_LOSSLESS : HDT_CODEC_NONE;
    ch->timeout_us = conf->timeout_ms < 0
                         ? -1
                         : (conf->timeout_ms ? conf->timeout_ms : TIMEOUT_MS) * HDT_US_PER_MS;
    ch->lanes = hdt_calloc(ch->n, sizeof(*ch->lanes));
    ch->closed = hdt_calloc(ch->n, sizeof(*ch->closed));
    ch->discard = hdt_malloc(CHAN_FRAME_CAP);
    return HDT_OK;
}

static enum hdt_status link_init(struct hdt_channel *ch, const struct hdt_ctx *ctx,
                                 struct hdt_error *err)
{
    const struct hdt_tls_conf tls = {.ca_path = ctx->ca,
                                     .cert_path = ctx->cert,
                                     .key_path = ctx->key,
                                     .own_roles = HDT_ROLE_OPERATOR | HDT_ROLE_WORKER,
                                     .peer_roles = HDT_ROLE_SITE};
    struct hdt_gwlink_conf conf = {.address = hdt_gwclient_address(ctx->client),
                                   .remedy = "start hdt-gateway; the channel goes on when it is "
                                             "there again"};

    if (strncmp(conf.address, "unix:", 5) != 0) {
        HDT_TRY(hdt_tls_ctx_new(&tls, &ch->tls, err));
        conf.tls = ch->tls;
    }
    HDT_TRY(hdt_engine_open(NULL, &ch->engine, err));
    return hdt_gwlink_new(ch->engine, &conf, &hdt_chan_link_events, ch, &ch->link, err);
}

static enum hdt_status memory_init(struct hdt_channel *ch, const struct hdt_channel_conf *conf,
                                   struct hdt_error *err)
{
    const size_t window = conf->window_bytes ? conf->window_bytes : WINDOW_BYTES;
    const size_t memory = conf->memory_bytes ? conf->memory_bytes : MEMORY_BYTES;
    enum hdt_status status;

    HDT_TRY(hdt_chan_mem_init(ch, hdt_chan_coll_bytes(ch, window) + memory, err));
    pthread_mutex_lock(&ch->lock);
    status = hdt_chan_coll_init(ch, err);
    pthread_mutex_unlock(&ch->lock);
    return status;
}

/* ---- waiting for the others ---- */

/* Who is missing, and why. The lock is held. */
static void open_late(const struct hdt_channel *ch, int timeout_ms, struct hdt_error *err)
{
    struct hdt_buf text = {0};

    for (unsigned i = 0; i < ch->n; i++) {
        const struct chan_member *member = &ch->members[i];

        if (ch->is_up && i != ch->rank && member->state != MEMBER_HERE) {
            hdt_buf_appendf(&text, "%srank %u (%s): %s", text.len ? "; " : "", i, member->text,
                            member->why[0] ? member->why : "nothing is known of it");
        }
    }
    if (!ch->is_up) {
        hdt_buf_appendf(&text, "%s", ch->down.msg);
    } else if (ch->differs[0]) {
        hdt_buf_appendf(&text, "%s%s", text.len ? "; " : "", ch->differs);
    } else if (text.len == 0) {
        hdt_buf_append_str(&text, "all have joined, their gateways have not agreed yet");
    }
    hdt_error_set(err, HDT_ETIMEDOUT, "channel '%s' did not come up in %.1f s: %s", ch->name,
                  (double)timeout_ms / 1e3, hdt_buf_str(&text));
    hdt_error_hint(err,
                   "start the programs that are missing; 'hdt status' and 'hdt doctor' at their "
                   "sites say more; open_timeout_ms waits longer");
    hdt_buf_release(&text);
}

static enum hdt_status open_wait(struct hdt_channel *ch, int timeout_ms, struct hdt_error *err)
{
    const int64_t until_us = hdt_clock_now_us() + timeout_ms * HDT_US_PER_MS;
    const struct timespec until = {.tv_sec = until_us / HDT_US_PER_S,
                                   .tv_nsec = until_us % HDT_US_PER_S * 1000};
    enum hdt_status status = HDT_OK;

    pthread_mutex_lock(&ch->lock);
    while (ch->phase == CHAN_JOINING && status == HDT_OK) {
        if (pthread_cond_timedwait(&ch->changed, &ch->lock, &until) == ETIMEDOUT &&
            ch->phase == CHAN_JOINING) {
            open_late(ch, timeout_ms, err);
            status = HDT_ETIMEDOUT;
        }
    }
    if (ch->phase == CHAN_OVER) {
        *err = ch->why;
        status = err->status;
    }
    pthread_mutex_unlock(&ch->lock);
    return status;
}

static void chan_end(struct hdt_channel *ch)
{
    if (ch->has_thread) {
        pthread_mutex_lock(&ch->lock);
        ch->closing = true;
        hdt_chan_post(ch);
        pthread_mutex_unlock(&ch->lock);
        pthread_join(ch->thread, NULL);
    }
    chan_free(ch);
}

static enum hdt_status chan_open(const struct hdt_ctx *ctx, const struct hdt_channel_conf *conf,
                                 struct hdt_channel *ch, struct hdt_error *err)
{
    snprintf(ch->site, sizeof(ch->site), "%s", hdt_gwclient_site(ctx->client));
    HDT_TRY(members_init(ch, conf, err));
    HDT_TRY(numbers_init(ch, conf, err));
    HDT_TRY(link_init(ch, ctx, err));
    HDT_TRY(memory_init(ch, conf, err));
    HDT_TRY(chan_start(ch, err));
    return open_wait(ch, conf->open_timeout_ms ? conf->open_timeout_ms : OPEN_TIMEOUT_MS, err);
}

/* ---- public ---- */

#pragma GCC visibility push(default)

enum hdt_err hdt_channel_open(struct hdt_ctx *ctx, const struct hdt_channel_conf *given,
                              struct hdt_channel **channel, struct hdt_error_info *error)
{
    struct hdt_channel_conf conf;
    struct hdt_error err = {0};
    struct hdt_channel *ch;
    enum hdt_status status;

    *channel = NULL;
    status = hdt_lib_conf_read(given, &conf, sizeof(conf),
                               "struct hdt_channel_conf conf = HDT_CHANNEL_CONF_INIT;", &err);
    if (status != HDT_OK) {
        return hdt_lib_failure(status, &err, error);
    }
    ch = chan_new();
    status = chan_open(ctx, &conf, ch, &err);
    if (status != HDT_OK) {
        chan_end(ch);
        return hdt_lib_failure(status, &err, error);
    }
    *channel = ch;
    return HDT_ERR_NONE;
}

enum hdt_err hdt_channel_close(struct hdt_channel *ch, struct hdt_error_info *error)
{
    struct hdt_error err = {0};
    const struct hdt_flow *flow;

    if (!ch) {
        return HDT_ERR_NONE;
    }
    pthread_mutex_lock(&ch->lock);
    ch->closing = true;
    hdt_chan_post(ch);
    pthread_mutex_unlock(&ch->lock);
    pthread_join(ch->thread, NULL);
    ch->has_thread = false;
    if (ch->phase == CHAN_OVER) {
        err = ch->why;
    }
    for (flow = ch->flows; flow && err.status == HDT_OK; flow = flow->next) {
        if (flow->window.is_src && flow->window.acked < flow->window.end) {
            hdt_error_set(&err, HDT_ERANK,
                          "rank %u (%s) closed channel '%s' before it took all that was sent",
                          flow->peer, ch->members[flow->peer].text, ch->name);
        }
    }
    chan_end(ch);
    return err.status == HDT_OK ? HDT_ERR_NONE : hdt_lib_failure(err.status, &err, error);
}

void hdt_channel_abort(struct hdt_channel *ch, const char *why)
{
    pthread_mutex_lock(&ch->lock);
    if (!ch->abort_due && ch->phase != CHAN_OVER) {
        hdt_error_set(&ch->abort_why, HDT_ECANCELED, "rank %u (%s) ended channel '%s': %s",
                      ch->rank, ch->members[ch->rank].text, ch->name,
                      why ? why : "it does not say why");
        ch->abort_due = true;
        hdt_chan_post(ch);
    }
    pthread_mutex_unlock(&ch->lock);
}

int hdt_channel_rank(const struct hdt_channel *ch)
{
    return (int)ch->rank;
}

int hdt_channel_n_members(const struct hdt_channel *ch)
{
    return (int)ch->n;
}

const char *hdt_channel_member(const struct hdt_channel *ch, int rank)
{
    return rank >= 0 && rank < (int)ch->n ? ch->members[rank].text : NULL;
}

enum hdt_err hdt_channel_stats(struct hdt_channel *ch, struct hdt_channel_stats *stats,
                               struct hdt_error_info *error)
{
    const size_t size = stats->size;
    struct hdt_channel_stats all;
    struct hdt_error err = {0};
    const struct hdt_flow *flow;

    if (size < sizeof(stats->size)) {
        hdt_error_set(&err, HDT_EINVAL, "cannot fill the statistics: their size is not set");
        return hdt_lib_failure(HDT_EINVAL, &err, error);
    }
    pthread_mutex_lock(&ch->lock);
    all = ch->stats;
    all.n_nonfinite = ch->guard.n_nonfinite;
    all.relative_error = hdt_codec_guard_error(&ch->guard);
    LL_FOREACH2(ch->all_flows, flow, all_next)
    {
        if (flow->window.is_src && flow->is_collective) {
            all.raw_bytes += flow->stats.raw_bytes;
            all.frame_bytes += flow->stats.frame_bytes;
        }
    }
    for (unsigned i = 0; i < ch->n; i++) {
        all.n_here += ch->members[i].state == MEMBER_HERE;
    }
    pthread_mutex_unlock(&ch->lock);
    memcpy(stats, &all, size < sizeof(all) ? size : sizeof(all));
    stats->size = size;
    return HDT_ERR_NONE;
}

#pragma GCC visibility pop
