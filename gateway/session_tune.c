/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/dp.h"
#include "src/base/clock.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>

/*
 * The streams of a session as the tuner (tuner.h) wants them. Each site chooses for what it sends
 * itself. The congestion control is a matter of the sending socket, so that nobody need be asked. A
 * stream is dialled by one of the two and carries both ways, so each tells the other over how many
 * it sends; the larger of both numbers is open, and who sends over fewer leaves the others to its
 * peer.
 */
#define TUNE_CLOSE_AFTER_US   (2 * HDT_US_PER_S) /* what is on its way arrives first */
#define TUNE_BUFFER_WINDOWS   10
#define TUNE_BUFFER_LEAST     (16u << 20)
#define TUNE_CONGESTION_NEVER "reno" /* CUBIC is never slower */

unsigned hdt_session_n_used(const struct hdt_session *session)
{
    const struct hdt_peer *peer = session->peer;
    unsigned n = HDT_TUNER_FIRST_STREAMS;

    if (peer->dp->conf.n_streams != 0) {
        n = (unsigned)peer->dp->conf.n_streams;
    } else if (!session->peer_tunes && !session->dialled_by_us) {
        n = session->n_streams;
    } else if (session->peer_tunes && peer->has_tuner) {
        n = peer->tuner.n_streams;
    }
    return n < session->n_streams ? n : session->n_streams;
}

struct hdt_conn *hdt_session_first_stream(const struct hdt_session *session)
{
    const unsigned n_used = hdt_session_n_used(session);
    unsigned i;

    for (i = 1; i <= n_used; i++) {
        if (session->conns[i] != NULL && session->conns[i]->state == HDT_CONN_UP) {
            return session->conns[i];
        }
    }
    return NULL;
}

/* Not where more were asked for, or found to pay; nor where a stream is kept for something
 * urgent, which the rest must not wait behind. */
bool hdt_session_may_use_one(const struct hdt_session *session)
{
    const struct hdt_peer *peer = session->peer;
    const struct hdt_dataplane_conf *conf = &peer->dp->conf;

    return !conf->pace && peer->has_tuner && hdt_session_n_used(session) > 1 &&
           peer->tuner.kept_streams <= HDT_TUNER_FIRST_STREAMS &&
           strncmp(hdt_tuner_congestion(&peer->tuner), HDT_BBR, strlen(HDT_BBR)) == 0;
}

struct hdt_conn *hdt_session_burst_stream(const struct hdt_session *session)
{
    return hdt_burst_uses_one(&session->peer->burst) && hdt_session_may_use_one(session)
               ? hdt_session_first_stream(session)
               : NULL;
}

/* ---- their number ---- */

static void tune_tell(struct hdt_session *session, unsigned n_used)
{
    json_t *msg;

    if (!session->peer_tunes || session->n_told == n_used || session->conns[0] == NULL) {
        return;
    }
    msg = hdt_msg_new("streams", NULL, json_pack("{s:i}", "use", (int)n_used));
    if (hdt_conn_send_msg(session->conns[0], msg, NULL) == HDT_OK) {
        session->n_told = n_used;
    }
    json_decref(msg);
}

static void tune_close_unused(struct hdt_session *session)
{
    const struct hdt_error why = {.status = HDT_ECANCELED, .msg = "neither site sends on it"};
    unsigned i;

    for (i = session->n_open + 1; i <= session->n_streams; i++) {
        if (session->conns[i] != NULL) {
            hdt_conn_close(session->conns[i], &why);
        }
    }
}

void hdt_session_want_streams(struct hdt_session *session, int64_t now_us)
{
    const unsigned n_used = hdt_session_n_used(session);
    unsigned n_open = n_used > session->n_peer ? n_used : session->n_peer;
    struct hdt_error err;

    if (!session->peer_tunes && !session->dialled_by_us) {
        n_open = session->n_streams;
    }
    n_open = n_open < session->n_streams ? n_open : session->n_streams;
    if (n_open != session->n_open) {
        session->n_open = n_open;
        session->n_open_us = now_us;
    }
    /* Those that only the peer sends on need none, so that this may change while n_open does not.
     */
    if (hdt_txq_alloc(session->peer, n_used, &err) != HDT_OK) {
        hdt_log_warn_limited(60, "%u streams to site %s share the buffers of fewer: %s", n_used,
                             session->peer->site, err.msg);
    }
    tune_tell(session, n_used);
    hdt_session_dial_streams(session, now_us);
    if (session->dialled_by_us && now_us - session->n_open_us > TUNE_CLOSE_AFTER_US) {
        tune_close_unused(session);
    }
}

bool hdt_session_tune_msg(struct hdt_session *session, const json_t *msg)
{
    json_int_t n;

    if (strcmp(hdt_msg_type(msg), "streams") != 0) {
        return false;
    }
    n = json_integer_value(json_object_get(hdt_msg_body(msg), "use"));
    if (n >= 0 && n <= HDT_DP_STREAMS_MAX) {
        session->n_peer = (unsigned)n;
        hdt_session_want_streams(session, hdt_clock_now_us());
    }
    return true;
}

/* ---- congestion control ---- */

static void tune_add_name(struct hdt_tuner_conf *conf, const char *name, size_t len)
{
    unsigned i;

    if (len == 0 || len >= HDT_TUNER_NAME_CAP || conf->n_congestion >= HDT_TUNER_CC_MAX) {
        return;
    }
    for (i = 0; i < conf->n_congestion; i++) {
        if (strncmp(conf->congestion[i], name, len) == 0 && conf->congestion[i][len] == '\0') {
            return;
        }
    }
    memcpy(conf->congestion[conf->n_congestion++], name, len);
}

/* The first is the one that the socket has: from the settings, the route or the kernel's default.
 */
void hdt_session_tune_begin(struct hdt_session *session, const struct hdt_conn *conn)
{
    const struct hdt_dataplane *dp = conn->dp;
    struct hdt_peer *peer = session->peer;
    struct hdt_tuner_conf conf = {.n_streams = (unsigned)dp->conf.n_streams,
                                  .keeps_queue_short = dp->conf.pace};
    char name[HDT_TUNER_NAME_CAP] = "";
    socklen_t len = sizeof(name) - 1;
    const char *at = dp->congestion_offered;

    if (peer->has_tuner) {
        return;
    }
    if (dp->conf.stepped != NULL) {
        tune_add_name(&conf, dp->conf.congestion, strlen(dp->conf.congestion));
    } else if (getsockopt(hdt_stream_fd(conn->stream), IPPROTO_TCP, TCP_CONGESTION, name, &len) ==
               0) {
        tune_add_name(&conf, name, strnlen(name, sizeof(name)));
    }
    conf.is_told = strcmp(dp->conf.congestion, "auto") != 0;
    while (!conf.is_told && *(at += strspn(at, " \n")) != '\0') {
        const size_t n = strcspn(at, " \n");

        if (n != strlen(TUNE_CONGESTION_NEVER) || strncmp(at, TUNE_CONGESTION_NEVER, n) != 0) {
            tune_add_name(&conf, at, n);
        }
        at += n;
    }
    hdt_tuner_init(&peer->tuner, &conf);
    peer->has_tuner = true;
}

void hdt_session_set_congestion(struct hdt_conn *conn, unsigned congestion)
{
    struct hdt_peer *peer = conn->peer;
    const char *name = peer->tuner.conf.congestion[congestion];

    conn->congestion_set = congestion;
    if (conn->dp->conf.stepped != NULL ||
        setsockopt(hdt_stream_fd(conn->stream), IPPROTO_TCP, TCP_CONGESTION, name,
                   (socklen_t)strlen(name)) == 0) {
        return;
    }
    hdt_log_warn_limited(60, "cannot use TCP congestion control '%s' for site %s: %s", name,
                         peer->site, strerror(errno));
    hdt_dp_lock(conn->dp);
    if (congestion == peer->tuner.congestion) {
        hdt_tuner_refused(&peer->tuner);
    }
    hdt_dp_unlock(conn->dp);
}

/* ---- buffers ---- */

static void tune_say_buffers(struct hdt_peer *peer, const struct hdt_pacer_window *window,
                             bool is_here)
{
    const char *name = is_here ? "tcp_wmem" : "tcp_rmem";
    const double need = 4e-6 * window->bytes_per_s * (double)window->rtt_us;
    unsigned long long bytes = TUNE_BUFFER_LEAST;

    while ((double)bytes < need) {
        bytes *= 2;
    }
    hdt_error_set(&peer->buffers, HDT_ENOMEM,
                  "what goes to site %s waits for TCP buffers more than for the link: %s of %s",
                  peer->site, name, is_here ? "this machine" : "its machine");
    hdt_error_hint(&peer->buffers, "%s: sysctl -w net.ipv4.%s='4096 %d %llu'",
                   is_here ? "here" : "there", name, is_here ? 16384 : 131072, bytes);
    hdt_log_warn("%s; hint: %s", peer->buffers.msg, peer->buffers.hint);
}

/* The kernel counts how long it had something to send, and how long no buffer for it. */
static void tune_watch_buffers(struct hdt_session *session, const struct hdt_pacer_window *window)
{
    struct hdt_peer *peer = session->peer;
    int64_t busy_us = 0, starved_us = 0, here_us = 0, waited_us;
    bool is_bound;
    unsigned i;

    for (i = 1; i <= hdt_session_n_used(session); i++) {
        const struct hdt_conn *conn = session->conns[i];

        if (conn != NULL && conn->state == HDT_CONN_UP) {
            busy_us += conn->link.tcp.busy_us;
            here_us += conn->link.tcp.sndbuf_limited_us;
            starved_us += conn->link.tcp.sndbuf_limited_us + conn->link.tcp.rwnd_limited_us;
        }
    }
    waited_us = starved_us - session->window_starved_us;
    is_bound =
        window->is_loaded && waited_us > 0 && waited_us > (busy_us - session->window_busy_us) / 2;
    peer->n_buffer_bound = is_bound ? peer->n_buffer_bound + 1 : 0;
    if (peer->n_buffer_bound >= TUNE_BUFFER_WINDOWS && peer->buffers.msg[0] == '\0') {
        tune_say_buffers(peer, window, here_us - session->window_here_us > waited_us / 2);
    }
    session->window_busy_us = busy_us;
    session->window_starved_us = starved_us;
    session->window_here_us = here_us;
}

/* ---- windows ---- */

static unsigned tune_apply(struct hdt_session *session)
{
    const struct hdt_tuner *tuner = &session->peer->tuner;
    unsigned n_up = 0, i;

    for (i = 1; i <= session->n_streams; i++) {
        struct hdt_conn *conn = session->conns[i];

        if (conn == NULL || conn->state != HDT_CONN_UP) {
            continue;
        }
        n_up += i <= tuner->n_streams;
        if (conn->congestion != tuner->congestion) {
            conn->congestion = tuner->congestion;
            hdt_conn_kick(conn);
        }
    }
    return n_up;
}

void hdt_session_tune(struct hdt_session *session, const struct hdt_pacer_window *window,
                      int64_t now_us)
{
    struct hdt_peer *peer = session->peer;
    const struct hdt_conn *one = hdt_session_burst_stream(session);
    const bool was_searching = peer->tuner.phase != HDT_TUNER_REST;
    struct hdt_tuner_window seen = {
        .bytes_per_s = window->bytes_per_s, .rtt_us = window->rtt_us, .us = window->us};
    char streams[HDT_TUNER_REASON_CAP], congestion[HDT_TUNER_REASON_CAP];

    if (!peer->has_tuner) {
        return;
    }
    tune_watch_buffers(session, window);
    seen.n_up = tune_apply(session);
    seen.is_shared = peer->kept != NULL;
    seen.is_mixed = hdt_txq_is_mixed(peer, now_us);
    /* A rate that somebody holds back says nothing of the path, nor one stream of all. */
    seen.is_loaded = window->is_loaded && peer->pacer.rate == 0 &&
                     peer->dp->conf.rate_bits_per_s == 0 && one == NULL;
    if (hdt_burst_window(&peer->burst, window->is_loaded,
                         one != NULL && one->is_full && window->bytes_per_s == 0)) {
        hdt_txq_wake(peer);
    }
    if (hdt_tuner_window(&peer->tuner, &seen)) {
        tune_apply(session);
        hdt_session_want_streams(session, now_us);
        hdt_txq_wake(peer);
    }
    if (was_searching && peer->tuner.phase == HDT_TUNER_REST && peer->tuner.n_tries > 0) {
        hdt_tuner_why_streams(&peer->tuner, streams);
        hdt_tuner_why_congestion(&peer->tuner, congestion);
        hdt_log_info("to site %s %s; %s", peer->site, streams, congestion);
    }
}
