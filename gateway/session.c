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
 * Whether it lives is watched in session_watch.c.
 */
#define SESSION_STEADY_US (10 * HDT_US_PER_S) /* after this, back-off begins anew */

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

/* Bytes that nobody acknowledges for so long end a connection. */
static void socket_user_timeout(int fd, int64_t timeout_us)
{
    const unsigned timeout_ms = (unsigned)(timeout_us / HDT_US_PER_MS);

    if (setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms)) != 0) {
        hdt_log_warn_limited(60, "cannot set TCP_USER_TIMEOUT: %s", strerror(errno));
    }
}

/* "auto" begins with BBR where the kernel lets us: on links that lose packets CUBIC carries a
 * fraction, on others as much. The tuner tries the others. */
static void socket_congestion(const struct hdt_dataplane *dp, int fd)
{
    const bool is_auto = strcmp(dp->conf.congestion, "auto") == 0;
    const char *name = is_auto ? "bbr" : dp->conf.congestion;

    if (name[0] != '\0' &&
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) != 0 &&
        !is_auto) {
        hdt_log_warn_limited(60, "cannot use TCP congestion control '%s': %s", name,
                             strerror(errno));
    }
}

void hdt_session_socket_options(struct hdt_dataplane *dp, int fd, bool is_bulk)
{
    const int lowat = HDT_DP_NOTSENT_LOWAT;

    socket_user_timeout(fd, dp->conf.deadlines.session_dead_us);
    socket_congestion(dp, fd);
    if (is_bulk && setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &lowat, sizeof(lowat)) != 0) {
        hdt_log_warn_limited(60, "cannot set TCP_NOTSENT_LOWAT: %s", strerror(errno));
    }
}

/* ---- open, attach ---- */

/* Of two sites with unlike knobs the larger counts for what is between them: the patient one is not
 * cut off by the other, and both give up at the same time. */
static void session_settle(struct hdt_session *session, const struct hdt_dataplane *dp,
                           const json_t *hello)
{
    const json_int_t theirs_ms = json_integer_value(json_object_get(hello, "progress_timeout_ms"));
    const int64_t ours_ms = dp->conf.deadlines.progress_us / HDT_US_PER_MS;

    session->deadlines = dp->conf.deadlines;
    if (theirs_ms > ours_ms) {
        hdt_deadlines_derive(&session->deadlines, theirs_ms, 0);
    }
    if (theirs_ms != ours_ms) {
        hdt_log_info("site %s has progress_timeout %.3g s, this one %.3g s: the larger counts "
                     "between them",
                     session->peer->site, (double)theirs_ms / 1e3, (double)ours_ms / 1e3);
    }
}

/* As many as are configured; where their number is to be found, as many as the tuner begins with.
 */
static unsigned session_first_streams(const struct hdt_dataplane *dp)
{
    return dp->conf.n_streams != 0 ? (unsigned)dp->conf.n_streams : HDT_TUNER_FIRST_STREAMS;
}

static bool session_has_feature(const json_t *hello, const char *name)
{
    const json_t *item;
    size_t i;

    json_array_foreach(json_object_get(hello, "features"), i, item)
    {
        if (json_is_string(item) && strcmp(json_string_value(item), name) == 0) {
            return true;
        }
    }
    return false;
}

static struct hdt_session *session_new(struct hdt_conn *conn, uint64_t id, uint64_t peer_instance,
                                       const json_t *hello)
{
    struct hdt_session *session = hdt_calloc(1, sizeof(*session));
    const json_int_t peer_count = json_integer_value(json_object_get(hello, "sessions"));

    session->refs = 1;
    session->peer = conn->peer;
    session->id = id;
    session->peer_instance = peer_instance;
    session->dialled_by_us = conn->dialled;
    session->n_streams = (unsigned)json_integer_value(json_object_get(hello, "streams"));
    session->peer_chunk_bytes = (uint32_t)json_integer_value(json_object_get(hello, "chunk"));
    session->peer_count = peer_count > 0 ? (uint64_t)peer_count : 0;
    session->began_us = hdt_clock_now_us();
    session->heard_from_us = session->began_us;
    session_settle(session, conn->dp, hello);
    if (conn->dialled) {
        session->addr = conn->addr;
        session->n_streams =
            conn->dp->conf.n_streams != 0 ? (unsigned)conn->dp->conf.n_streams : HDT_DP_STREAMS_MAX;
    }
    session->peer_tunes = session_has_feature(hello, HDT_DP_FEATURE_STREAMS);
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

/* The session makes room for that of `conn`. Where this is a dial of ours that was on its way
 * before the session came up, two dials of the same two processes crossed, and the peer, which took
 * both, keeps the one of the smaller name: nothing was wrong with the other. */
static void session_replace(struct hdt_session *session, const struct hdt_conn *conn,
                            uint64_t peer_instance)
{
    struct hdt_error why;

    if (conn->dialled && !session->dialled_by_us && session->peer_instance == peer_instance &&
        conn->state_us < session->began_us) {
        hdt_error_set(&why, HDT_EEXIST, "it was dialled at the same time, and that session stands");
    } else {
        hdt_error_set(&why, HDT_EPEER,
                      "a new session takes the place of this one, on which no byte came for %.1f s",
                      (double)hdt_session_silent_us(session, hdt_clock_now_us()) / 1e6);
    }
    hdt_session_close(session, &why);
}

enum hdt_status hdt_session_open(struct hdt_conn *conn, uint64_t id, uint64_t peer_instance,
                                 const json_t *hello, struct hdt_error *err)
{
    struct hdt_peer *peer = conn->peer;
    struct hdt_session *session;

    HDT_TRY(hdt_txq_alloc(peer, session_first_streams(conn->dp), err));
    if (peer->session != NULL) {
        session_replace(peer->session, conn, peer_instance);
    }
    session = session_new(conn, id, peer_instance, hello);
    session->conns[0] = conn;
    conn->session = hdt_session_ref(session);
    conn->index = 0;
    conn->state = HDT_CONN_UP;
    hdt_doorman_verdict(conn, NULL);
    peer->session = session;
    peer->suspect = false;
    peer->last_refusal[0] = '\0';
    if (peer->dialling == conn) {
        peer->dialling = NULL;
    }
    hdt_session_drop_beside(session);
    peer->total.n_sessions++;
    peer->rtt_us = 0;
    peer->min_rtt_us = 0;
    session_note_tls(peer, conn);
    memcpy(peer->total.address, conn->address, sizeof(peer->total.address));
    if (conn->stream != NULL) {
        socket_user_timeout(hdt_stream_fd(conn->stream), session->deadlines.session_dead_us);
    }
    if (peer->has_tuner) {
        hdt_tuner_restart(&peer->tuner);
    }
    session->n_open = hdt_session_n_used(session);
    if (conn->dialled) {
        hdt_session_want_streams(session, session->began_us); /* else after the welcome */
    }
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

    if (session->peer->rx_bytes + len > conn->dp->conf.memory_bytes / 2) {
        return hdt_error_set(err, HDT_ENOMEM,
                             "cannot add a stream of site '%s': its streams and chunks would take "
                             "more than half of the setting data.memory",
                             session->peer->site);
    }
    HDT_TRY(hdt_dp_charge(conn->dp, len, "receive buffers of a stream", err));
    conn->rx_memory = malloc(len);
    if (conn->rx_memory == NULL) {
        conn->dp->memory_used -= len;
        return hdt_error_set(err, HDT_ENOMEM, "cannot add a stream: no memory");
    }
    session->peer->rx_bytes += len;
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
    hdt_doorman_verdict(conn, NULL);
    conn->hungry = true;
    conn->last_pong_us = hdt_clock_now_us();
    hdt_shortage_begin(&conn->link.shortage, conn->last_pong_us);
    if (conn->stream != NULL) {
        socket_user_timeout(hdt_stream_fd(conn->stream), session->deadlines.session_dead_us);
    }
    session->conns[index] = conn;
    session->backoff_us[index] = 0;
    hdt_session_tune_begin(session, conn);
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
            session->conns[i]->is_reported = true; /* streams on their way: the event below tells */
            hdt_conn_close(session->conns[i], why);
        }
    }
    hdt_dpevent_peer_down(peer->dp, peer->site, why);
    hdt_probe_session_lost(peer);
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
    if (conn->state == HDT_CONN_UP && peer->session == session && conn->index <= session->n_open) {
        peer->total.n_stream_losses++;
        HDT_RECORD(HDT_REC_STREAM, .n = {conn->index}, .text = {"lost", peer->site, why->msg});
        hdt_log_debug("stream %u to site %s is lost: %s", conn->index, peer->site, why->msg);
    }
    if (is_current) {
        int64_t *backoff_us = &session->backoff_us[conn->index];

        *backoff_us = *backoff_us == 0 ? HDT_DP_BACKOFF_MIN_US : *backoff_us * 2;
        if (*backoff_us > session->deadlines.backoff_us) {
            *backoff_us = session->deadlines.backoff_us;
        }
        session->retry_us[conn->index] =
            hdt_clock_now_us() + *backoff_us / 2 +
            (int64_t)(hdt_dp_random(peer->dp) % (uint64_t)(*backoff_us / 2 + 1));
    }
    hdt_src_conn_lost(peer, conn->id);
    hdt_txq_wake(peer); /* another one carries what bursts there are */
}
