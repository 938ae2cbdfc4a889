/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "compress/codec.h"
#include "gateway/dp.h"
#include "src/base/buf.h"
#include "src/base/clock.h"
#include "src/base/recorder.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * A session: stream 0 and the bulk streams to one peer, under one number. Stream 0 is the session:
 * when it is lost, all is. A bulk stream that is lost is dialled again by who dialled the session.
 *
 * Signs of life: every byte on any stream counts; PING every half second makes sure that there are
 * some. A cut link loses nothing and says nothing: TCP goes on when it heals, or the progress
 * deadline closes the session and it is dialled again.
 *
 * A single stream may hang while others move (a middlebox that lost its state, a path of a bundle).
 * TCP would take minutes to tell; the PING on it, which has waited far longer than those of the
 * others took to come back, tells in seconds.
 */
#define SESSION_GOODPUT_WINDOW_US (200 * HDT_US_PER_MS)
#define SESSION_NOTSENT_LOWAT     (256 * 1024)
#define SESSION_STEADY_US         (10 * HDT_US_PER_S) /* after this, back-off begins anew */

struct hdt_session *hdt_session_ref(struct hdt_session *session)
{
    session->refs++;
    return session;
}

void hdt_session_unref(struct hdt_session *session)
{
    HDT_ASSERT(session->refs > 0);
    if (--session->refs == 0) {
        free(session);
    }
}

void hdt_session_socket_options(struct hdt_dataplane *dp, int fd, bool is_bulk)
{
    const unsigned timeout_ms = (unsigned)dp->conf.progress_timeout_ms;
    const int lowat = SESSION_NOTSENT_LOWAT;

    if (setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms)) != 0) {
        hdt_log_warn_limited(60, "cannot set TCP_USER_TIMEOUT: %s", strerror(errno));
    }
    if (dp->conf.congestion[0] != '\0' &&
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, dp->conf.congestion,
                   (socklen_t)strlen(dp->conf.congestion)) != 0) {
        hdt_log_warn_limited(60, "cannot use TCP congestion control '%s': %s", dp->conf.congestion,
                             strerror(errno));
    }
    if (is_bulk && setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &lowat, sizeof(lowat)) != 0) {
        hdt_log_warn_limited(60, "cannot set TCP_NOTSENT_LOWAT: %s", strerror(errno));
    }
}

int64_t hdt_session_silent_us(const struct hdt_session *session, int64_t now_us)
{
    int64_t last_us = session->began_us;
    unsigned i;

    for (i = 0; i <= session->n_streams; i++) {
        const struct hdt_conn *conn = session->conns[i];

        if (conn != NULL && conn->stats.last_recv_us > last_us) {
            last_us = conn->stats.last_recv_us;
        }
    }
    return now_us > last_us ? now_us - last_us : 0;
}

/* ---- open, attach ---- */

static struct hdt_session *session_new(struct hdt_conn *conn, uint64_t id, uint64_t peer_instance,
                                       const json_t *hello)
{
    struct hdt_session *session = hdt_calloc(1, sizeof(*session));

    session->refs = 1;
    session->peer = conn->peer;
    session->id = id;
    session->peer_instance = peer_instance;
    session->dialled_by_us = conn->dialled;
    session->n_streams = (unsigned)json_integer_value(json_object_get(hello, "streams"));
    session->peer_chunk_bytes = (uint32_t)json_integer_value(json_object_get(hello, "chunk"));
    session->began_us = hdt_clock_now_us();
    if (conn->dialled) {
        session->addr = conn->addr;
        session->n_streams = (unsigned)conn->dp->conf.n_streams;
    }
    return session;
}

static void session_note_tls(struct hdt_peer *peer, const struct hdt_conn *conn)
{
    SSL *ssl = hdt_stream_ssl(conn->stream);

    X509 *cert = SSL_get1_peer_certificate(ssl);
    struct hdt_identity identity;
    int days = 0, seconds = 0;

    if (cert && hdt_tls_peer_identity(ssl, &identity, NULL) == HDT_OK &&
        ASN1_TIME_diff(&days, &seconds, NULL, X509_get0_notAfter(cert)) == 1) {
        hdt_identity_format(&identity, peer->total.certificate);
        peer->cert_end_us = hdt_clock_now_us() + ((int64_t)days * 86400 + seconds) * HDT_US_PER_S;
    }
    X509_free(cert);
    snprintf(peer->total.tls, sizeof(peer->total.tls), "%s %s", SSL_get_version(ssl),
             SSL_get_cipher_name(ssl));
}

enum hdt_status hdt_session_open(struct hdt_conn *conn, uint64_t id, uint64_t peer_instance,
                                 const json_t *hello, struct hdt_error *err)
{
    struct hdt_peer *peer = conn->peer;
    struct hdt_session *session;

    HDT_TRY(hdt_txq_alloc(peer, err));
    if (peer->session != NULL) {
        const struct hdt_error why = {.status = HDT_EPEER,
                                      .msg = "a new session takes the place of this one"};

        hdt_session_close(peer->session, &why);
    }
    session = session_new(conn, id, peer_instance, hello);
    session->conns[0] = conn;
    conn->session = hdt_session_ref(session);
    conn->index = 0;
    conn->state = HDT_CONN_UP;
    peer->session = session;
    peer->suspect = false;
    peer->last_refusal[0] = '\0';
    if (peer->dialling == conn) {
        peer->dialling = NULL;
    }
    peer->total.n_sessions++;
    peer->rtt_us = 0;
    peer->min_rtt_us = 0;
    memset(peer->last_rtts_us, 0, sizeof(peer->last_rtts_us));
    session_note_tls(peer, conn);
    memcpy(peer->total.address, conn->address, sizeof(peer->total.address));
    hdt_flow_ends_resync(peer);
    hdt_dpevent_peer_up(conn->dp, peer->site, hello);
    HDT_RECORD(HDT_REC_STREAM, .text = {"session up", peer->site});
    hdt_log_debug("session %016llx with site %s is up", (unsigned long long)id, peer->site);
    return HDT_OK;
}

static enum hdt_status session_alloc_rx(struct hdt_session *session, struct hdt_conn *conn,
                                        struct hdt_error *err)
{
    const size_t len = (size_t)HDT_DP_RX_JOBS * session->peer_chunk_bytes;
    unsigned i;

    HDT_TRY(hdt_dp_charge(conn->dp, len, "receive buffers of a stream", err));
    conn->rx_memory = malloc(len);
    if (conn->rx_memory == NULL) {
        conn->dp->memory_used -= len;
        return hdt_error_set(err, HDT_ENOMEM, "cannot add a stream: no memory");
    }
    for (i = 0; i < HDT_DP_RX_JOBS; i++) {
        conn->rx[i].buf = conn->rx_memory + (size_t)i * session->peer_chunk_bytes;
    }
    return HDT_OK;
}

enum hdt_status hdt_session_attach(struct hdt_session *session, struct hdt_conn *conn,
                                   unsigned index, struct hdt_error *err)
{
    struct hdt_conn *old = session->conns[index];

    if (session->peer->session != session) {
        return hdt_error_set(err, HDT_EEXIST, "cannot add stream %u: its session is over", index);
    }
    if (old != NULL && old != conn) {
        const struct hdt_error why = {.status = HDT_ELINK,
                                      .msg = "the peer opened this stream again"};

        session->conns[index] = NULL;
        hdt_conn_close(old, &why);
    }
    if (conn->session == NULL) {
        conn->session = hdt_session_ref(session);
    }
    HDT_TRY(session_alloc_rx(session, conn, err));
    conn->peer = session->peer;
    conn->index = index;
    conn->state = HDT_CONN_UP;
    conn->hungry = true;
    conn->last_pong_us = hdt_clock_now_us();
    session->conns[index] = conn;
    session->backoff_us[index] = 0;
    HDT_RECORD(HDT_REC_STREAM, .n = {index}, .text = {"up", session->peer->site});
    hdt_txq_wake(session->peer);
    hdt_codecpool_wake(conn->dp);
    return HDT_OK;
}

/* ---- close, detach ---- */

void hdt_session_close(struct hdt_session *session, const struct hdt_error *why)
{
    struct hdt_peer *peer = session->peer;
    unsigned i;

    if (peer->session != session) {
        return;
    }
    peer->session = NULL;
    if (hdt_clock_now_us() - session->began_us > SESSION_STEADY_US) {
        peer->backoff_us = HDT_DP_BACKOFF_MIN_US;
    }
    peer->next_dial_us =
        hdt_clock_now_us() + (int64_t)(hdt_dp_random(peer->dp) % (uint64_t)peer->backoff_us);
    for (i = 0; i <= session->n_streams; i++) {
        if (session->conns[i] != NULL) {
            hdt_conn_close(session->conns[i], why);
        }
    }
    hdt_dpevent_peer_down(peer->dp, peer->site, why);
    hdt_session_unref(session);
}

void hdt_session_detach(struct hdt_session *session, struct hdt_conn *conn,
                        const struct hdt_error *why)
{
    struct hdt_peer *peer = session->peer;
    const bool is_current = session->conns[conn->index] == conn;

    if (is_current) {
        session->conns[conn->index] = NULL;
    }
    if (conn->index == 0) {
        if (is_current) {
            hdt_session_close(session, why);
        }
        return;
    }
    if (conn->state == HDT_CONN_UP && peer->session == session) {
        peer->total.n_stream_losses++;
        HDT_RECORD(HDT_REC_STREAM, .n = {conn->index}, .text = {"lost", peer->site, why->msg});
        hdt_log_debug("stream %u to site %s is lost: %s", conn->index, peer->site, why->msg);
    }
    if (is_current) {
        int64_t *backoff_us = &session->backoff_us[conn->index];

        *backoff_us = *backoff_us == 0 ? HDT_DP_BACKOFF_MIN_US : *backoff_us * 2;
        *backoff_us = *backoff_us < HDT_DP_BACKOFF_MAX_US ? *backoff_us : HDT_DP_BACKOFF_MAX_US;
        session->retry_us[conn->index] =
            hdt_clock_now_us() + *backoff_us / 2 +
            (int64_t)(hdt_dp_random(peer->dp) % (uint64_t)(*backoff_us / 2 + 1));
    }
    hdt_src_conn_lost(peer, conn->id);
}

/* ---- tick ---- */

static void session_dial_streams(struct hdt_session *session, int64_t now_us)
{
    struct hdt_dataplane *dp = session->peer->dp;
    unsigned i;

    if (!session->dialled_by_us || dp->stopping) {
        return;
    }
    for (i = 1; i <= session->n_streams; i++) {
        struct hdt_conn *conn;

        if (session->conns[i] != NULL || now_us < session->retry_us[i]) {
            continue;
        }
        conn = hdt_conn_new(dp, HDT_CONN_WAN, -1);
        conn->dialled = true;
        conn->peer = session->peer;
        conn->addr = session->addr;
        memcpy(conn->address, session->addr.text, sizeof(conn->address));
        conn->index = i;
        conn->session_id = session->id;
        conn->session = hdt_session_ref(session);
        conn->deadline_us = now_us + HDT_DP_CONNECT_TIMEOUT_US;
        session->conns[i] = conn;
        hdt_conn_kick(conn);
    }
}

/* Did another stream's heartbeat go there and back while this one's waited? */
static bool session_others_move(const struct hdt_session *session, const struct hdt_conn *conn)
{
    const int64_t waited_from_us = conn->ping_sent_us + HDT_DP_STALL_US / 2;
    unsigned i;

    for (i = session->n_streams > 1 ? 1 : 0; i <= session->n_streams; i++) {
        const struct hdt_conn *other = session->conns[i];

        if (other != NULL && other != conn && other->last_pong_us > waited_from_us) {
            return true;
        }
    }
    return false;
}

static void session_close_stalled(struct hdt_session *session, int64_t now_us)
{
    struct hdt_error why;
    unsigned i;

    for (i = 1; i <= session->n_streams; i++) {
        struct hdt_conn *conn = session->conns[i];
        int64_t limit_us = HDT_DP_STALL_US;

        if (conn == NULL || conn->state != HDT_CONN_UP || conn->ping_sent_us == 0) {
            continue;
        }
        if (limit_us < 4 * conn->last_ping_rtt_us) {
            limit_us = 4 * conn->last_ping_rtt_us;
        }
        if (now_us - conn->ping_sent_us > limit_us && session_others_move(session, conn)) {
            hdt_error_set(&why, HDT_ELINK,
                          "stream %u to site '%s' stalls: no answer in %lld ms while others move",
                          i, session->peer->site,
                          (long long)((now_us - conn->ping_sent_us) / HDT_US_PER_MS));
            hdt_conn_close(conn, &why);
        }
    }
}

static int session_compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Only windows in which the streams always had something to send say what the link can carry; the
 * median of the last five of them does not jump with one that was disturbed. */
static void session_measure_goodput(struct hdt_peer *peer, int64_t now_us)
{
    double sorted[5];
    const unsigned cap = sizeof(peer->samples) / sizeof(peer->samples[0]);
    unsigned n;

    if (now_us - peer->window_us < SESSION_GOODPUT_WINDOW_US) {
        return;
    }
    if (!peer->starved && peer->window_us != 0 && peer->window_bytes > 0) {
        peer->samples[peer->n_samples++ % cap] =
            (double)peer->window_bytes * 1e6 / (double)(now_us - peer->window_us);
        n = peer->n_samples < cap ? peer->n_samples : cap;
        memcpy(sorted, peer->samples, sizeof(sorted));
        qsort(sorted, n, sizeof(sorted[0]), session_compare_doubles);
        peer->goodput_bytes_per_s = sorted[n / 2];
    }
    peer->window_us = now_us;
    peer->window_bytes = 0;
    peer->starved = false;
}

void hdt_session_tick(struct hdt_session *session, int64_t now_us)
{
    struct hdt_peer *peer = session->peer;
    const struct hdt_dataplane_conf *conf = &peer->dp->conf;
    const int64_t silent_us = hdt_session_silent_us(session, now_us);
    struct hdt_error why;
    bool suspect;

    if (silent_us > conf->progress_timeout_ms * HDT_US_PER_MS) {
        hdt_error_set(&why, HDT_ETIMEDOUT, "site '%s' is silent for %lld s", peer->site,
                      (long long)(silent_us / HDT_US_PER_S));
        hdt_session_close(session, &why);
        hdt_recorder_dump("stall");
        return;
    }
    suspect = silent_us > conf->suspect_after_ms * HDT_US_PER_MS;
    if (suspect != peer->suspect) {
        peer->suspect = suspect;
        hdt_log_info(suspect ? "site %s is silent for %lld ms" : "site %s is heard again",
                     peer->site, (long long)(silent_us / HDT_US_PER_MS));
    }
    session_dial_streams(session, now_us);
    session_close_stalled(session, now_us);
    session_measure_goodput(peer, now_us);
}

void hdt_session_pong(struct hdt_conn *conn, const struct hdt_frame *frame, int64_t now_us)
{
    struct hdt_peer *peer = conn->peer;
    const int64_t sent_us = (int64_t)frame->offset;
    int64_t rtt_us;

    if (sent_us <= 0 || sent_us > now_us || frame->seq > conn->ping_seq) {
        return; /* not an answer to ours */
    }
    rtt_us = now_us - sent_us;
    conn->last_pong_us = now_us;
    conn->last_ping_rtt_us = rtt_us;
    conn->ping_sent_us = 0;
    if (conn->index > 0 || peer->session != conn->session) {
        return;
    }
    peer->rtt_us = peer->rtt_us == 0 ? rtt_us : (7 * peer->rtt_us + rtt_us) / 8;
    memmove(peer->last_rtts_us + 1, peer->last_rtts_us,
            sizeof(peer->last_rtts_us) - sizeof(peer->last_rtts_us[0]));
    peer->last_rtts_us[0] = rtt_us;
    if (peer->min_rtt_us == 0 || rtt_us <= peer->min_rtt_us) {
        peer->min_rtt_us = rtt_us;
        peer->clock_skew_us = (int64_t)frame->xxh3 - (hdt_clock_wall_us() - rtt_us / 2);
    }
}
