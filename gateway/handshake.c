/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "compress/codec.h"
#include "gateway/dp.h"
#include "src/base/clock.h"

#include <stdio.h>
#include <string.h>

/*
 * How two gateways greet. The certificate says who the other end is; hello and welcome say what it
 * speaks. Whoever refuses says why in a "refuse" message before it closes, so that the reason
 * stands in the logs of both sites, with both values.
 *
 *   dialler                                   acceptor
 *     hello {stream 0, session S, ...}  ----->  checks; tie-break
 *                                       <-----  welcome {...}     (or refuse)
 *     hello {stream k, session S}       ----->  session S of that site, stream k
 *                                       <-----  welcome {stream k}
 *
 * When both sites dial at the same time, the session dialled by the smaller name stands: the other
 * one is refused with EEXIST, which is no failure, or closed so when both had been accepted
 * already. A dialler that has a session by then says "refuse" with EEXIST itself, in place of
 * hello: by its certificate the acceptor knows whose dial that was.
 */
/* After connecting: a dial of ours is waited for so long. */
#define HANDSHAKE_YIELD_US HDT_US_PER_S

json_t *hdt_handshake_body(struct hdt_dataplane *dp)
{
    json_t *body = json_object();

    json_object_set_new(body, "proto", json_integer(HDT_PROTOCOL_VERSION));
    json_object_set_new(body, "role", json_string("site"));
    json_object_set_new(body, "site", json_string(dp->conf.site));
    json_object_set_new(body, "federation", json_string(dp->conf.federation));
    json_object_set_new(body, "instance", hdt_msg_u64_hex(dp->conf.instance));
    json_object_set_new(body, "version", json_string(dp->conf.version));
    json_object_set_new(body, "clock_us", json_integer(hdt_clock_wall_us()));
    json_object_set_new(body, "progress_timeout_ms",
                        json_integer(dp->conf.deadlines.progress_us / HDT_US_PER_MS));
    return body;
}

static json_t *handshake_names_of_dtypes(void)
{
    json_t *names = json_array();
    int i;

    for (i = HDT_DTYPE_NONE + 1; i < HDT_DTYPE_COUNT; i++) {
        json_array_append_new(names, json_string(hdt_dtype_name((enum hdt_dtype)i)));
    }
    return names;
}

static json_t *handshake_names_of_codecs(void)
{
    json_t *names = json_array();
    unsigned i;

    for (i = 0; i < HDT_CODEC_COUNT; i++) {
        const struct hdt_codec_ops *codec = hdt_codec_by_id(i);

        if (codec != NULL) {
            json_array_append_new(names, json_string(codec->name));
        }
    }
    return names;
}

/* L: hello or welcome of a stream. */
static json_t *handshake_stream_body(const struct hdt_conn *conn, uint64_t session, unsigned index,
                                     unsigned n_streams)
{
    struct hdt_dataplane *dp = conn->dp;
    json_t *body = hdt_handshake_body(dp);

    json_object_set_new(body, "session", hdt_msg_u64_hex(session));
    json_object_set_new(body, "stream", json_integer(index));
    if (index == 0) {
        json_object_set_new(body, "streams",
                            json_integer(n_streams != 0 ? n_streams : HDT_DP_STREAMS_MAX));
        json_object_set_new(body, "chunk", json_integer((json_int_t)dp->conf.chunk_bytes));
        json_object_set_new(body, "sessions",
                            json_integer((json_int_t)conn->peer->total.n_sessions));
        json_object_set_new(body, "advertise", json_string(dp->conf.advertise));
        json_object_set_new(body, "features", json_pack("[s]", HDT_DP_FEATURE_STREAMS));
        json_object_set_new(body, "dtypes", handshake_names_of_dtypes());
        json_object_set_new(body, "codecs", handshake_names_of_codecs());
    }
    return body;
}

/* A dial that gets no answer while a session with that site is heard, one that came up meanwhile:
 * nobody lacks it. */
static bool report_is_needless(const struct hdt_conn *conn, const struct hdt_error *why,
                               int64_t now_us)
{
    return conn->dialled && conn->index == 0 &&
           (why->status == HDT_ETIMEDOUT || why->status == HDT_ELINK) &&
           conn->peer->session != NULL && hdt_session_is_sound(conn->peer->session, now_us);
}

void hdt_handshake_report(struct hdt_conn *conn, const struct hdt_error *why)
{
    struct hdt_dataplane *dp = conn->dp;
    struct hdt_peer *peer = conn->peer;
    const int64_t now_us = hdt_clock_now_us();

    if (why->status == HDT_EEXIST || why->status == HDT_ECANCELED || why->status == HDT_OK) {
        return;
    }
    if (conn->awaits_verdict && conn->identity.name[0] == '\0') {
        return; /* a stranger: the doorman says it */
    }
    if (report_is_needless(conn, why, now_us)) {
        return; /* hdt_peer_dial_failed writes it to the debug log */
    }
    conn->is_reported = true;
    if (peer == NULL) {
        if (now_us >= dp->report_window_us + HDT_US_PER_S) {
            dp->report_window_us = now_us;
            dp->n_reports = 0;
        }
        if (dp->n_reports++ < HDT_DP_REPORTS_PER_S) {
            hdt_dpevent_peer_refused(dp, conn->identity.name, conn->address, why, 1);
        }
        return;
    }
    if (strcmp(peer->last_refusal, why->msg) != 0) {
        memcpy(peer->last_refusal, why->msg, sizeof(peer->last_refusal));
        hdt_dpevent_peer_refused(dp, peer->site, conn->address, why, 1);
    }
}

enum hdt_status hdt_handshake_identity(struct hdt_conn *conn, struct hdt_error *err)
{
    return hdt_tls_peer_identity(hdt_stream_ssl(conn->stream), &conn->identity, err);
}

/* The certificate: a site, of this federation, not this site, and the one that was dialled. */
static enum hdt_status handshake_check_identity(const struct hdt_conn *conn, struct hdt_error *err)
{
    const struct hdt_identity *id = &conn->identity;
    const struct hdt_dataplane *dp = conn->dp;

    if (id->role != HDT_ROLE_SITE) {
        hdt_error_set(err, HDT_EACCES,
                      "cannot join %s: its certificate is of %s '%s', not of a site", conn->address,
                      hdt_role_name(id->role), id->name);
        hdt_error_hint(err, "workers and operators connect to the LAN address of their gateway");
        return HDT_EACCES;
    }
    if (strcmp(id->federation, dp->conf.federation) != 0) {
        return hdt_error_set(err, HDT_EACCES,
                             "cannot join site '%s': its certificate is of federation '%s', this "
                             "site's (%s) of '%s'",
                             id->name, id->federation, dp->conf.site, dp->conf.federation);
    }
    if (conn->dialled && strcmp(id->name, conn->peer->site) != 0) {
        hdt_error_set(err, HDT_EACCES,
                      "cannot join site '%s' at %s: the gateway there has the certificate of '%s'",
                      conn->peer->site, conn->address, id->name);
        hdt_error_hint(err, "correct the address or the name of this peer in the settings of '%s'",
                       dp->conf.site);
        return HDT_EACCES;
    }
    return HDT_OK;
}

/* L */
static void handshake_say_hello(struct hdt_conn *conn)
{
    struct hdt_dataplane *dp = conn->dp;
    json_t *msg;

    if (conn->index == 0) {
        conn->session_id = hdt_dp_random(dp);
    }
    msg = hdt_msg_new(
        "hello", NULL,
        handshake_stream_body(conn, conn->session_id, conn->index, (unsigned)dp->conf.n_streams));
    (void)hdt_conn_send_msg(conn, msg, NULL); /* nothing waits on a new connection */
    json_decref(msg);
}

/* L: a session came up while this dial was on its way. */
static void handshake_say_needless(struct hdt_conn *conn)
{
    struct hdt_error why;

    hdt_error_set(&why, HDT_EEXIST, "site '%s' dialled, and has a session with '%s' by now",
                  conn->dp->conf.site, conn->peer->site);
    hdt_log_debug("dial of site %s is needless: a session is up", conn->peer->site);
    hdt_conn_refuse(conn, &why);
}

enum hdt_status hdt_handshake_up(struct hdt_conn *conn, struct hdt_error *err)
{
    hdt_dp_lock(conn->dp);
    conn->state = HDT_CONN_HELLO;
    hdt_dp_unlock(conn->dp);
    HDT_TRY(hdt_handshake_identity(conn, err));
    HDT_TRY(handshake_check_identity(conn, err));
    if (!conn->dialled) {
        hdt_session_socket_options(conn->dp, hdt_stream_fd(conn->stream), false);
        return HDT_OK;
    }
    hdt_dp_lock(conn->dp);
    if (conn->is_needless) {
        handshake_say_needless(conn);
    } else {
        handshake_say_hello(conn);
    }
    hdt_dp_unlock(conn->dp);
    return HDT_OK;
}

enum hdt_status hdt_handshake_check(const struct hdt_dataplane *dp, const json_t *body,
                                    const char *who, struct hdt_error *err)
{
    const json_int_t proto = json_integer_value(json_object_get(body, "proto"));
    const char *version = json_string_value(json_object_get(body, "version"));
    const char *federation = json_string_value(json_object_get(body, "federation"));

    if (proto != HDT_PROTOCOL_VERSION) {
        hdt_error_set(err, HDT_EVERSION,
                      "cannot talk to %s: it speaks protocol %lld (hdt %s), the gateway of '%s' "
                      "protocol %d (hdt %s)",
                      who, (long long)proto, version != NULL ? version : "unknown", dp->conf.site,
                      HDT_PROTOCOL_VERSION, dp->conf.version);
        hdt_error_hint(err, "run the same release of HDT at both ends");
        return HDT_EVERSION;
    }
    if (federation != NULL && strcmp(federation, dp->conf.federation) != 0) {
        return hdt_error_set(
            err, HDT_EACCES,
            "cannot join %s: it is of federation '%s', the gateway of '%s' of '%s'", who,
            federation, dp->conf.site, dp->conf.federation);
    }
    return HDT_OK;
}

/* Hello or welcome against the certificate and against ourselves. */
static enum hdt_status handshake_check_site(const struct hdt_conn *conn, const json_t *body,
                                            struct hdt_error *err)
{
    const struct hdt_dataplane *dp = conn->dp;
    const char *site = json_string_value(json_object_get(body, "site"));
    const uint64_t instance = hdt_msg_hex_u64(json_object_get(body, "instance"));
    char who[96];

    snprintf(who, sizeof(who), "site '%s'", conn->identity.name);
    HDT_TRY(hdt_handshake_check(dp, body, who, err));
    if (instance == dp->conf.instance) {
        hdt_error_set(err, HDT_EINVAL, "cannot join %s: that is this gateway itself",
                      conn->address);
        hdt_error_hint(err, "take the own address out of the list of peers");
        return HDT_EINVAL;
    }
    if (strcmp(conn->identity.name, dp->conf.site) == 0) {
        return hdt_error_set(err, HDT_EACCES,
                             "cannot join %s: another gateway runs there as site '%s', too",
                             conn->address, dp->conf.site);
    }
    if (site == NULL || strcmp(site, conn->identity.name) != 0 || instance == 0) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot join site '%s': it calls itself '%s' in its hello",
                             conn->identity.name, site != NULL ? site : "");
    }
    return HDT_OK;
}

static enum hdt_status handshake_check_limits(const json_t *body, struct hdt_error *err)
{
    const json_int_t n_streams = json_integer_value(json_object_get(body, "streams"));
    const json_int_t chunk = json_integer_value(json_object_get(body, "chunk"));
    const json_int_t knob_ms = json_integer_value(json_object_get(body, "progress_timeout_ms"));

    if (n_streams < 1 || n_streams > HDT_DP_STREAMS_MAX) {
        return hdt_error_set(err, HDT_EPROTO,
                             "cannot join: %lld streams announced, 1 to %d allowed",
                             (long long)n_streams, HDT_DP_STREAMS_MAX);
    }
    if (chunk < HDT_FRAME_GRANULE || chunk > (json_int_t)HDT_DP_CHUNK_MAX ||
        chunk % HDT_FRAME_GRANULE != 0) {
        return hdt_error_set(err, HDT_EPROTO, "cannot join: chunks of %lld bytes announced",
                             (long long)chunk);
    }
    if (knob_ms < HDT_DEADLINES_KNOB_MIN_MS || knob_ms > HDT_DEADLINES_KNOB_MAX_MS) {
        return hdt_error_set(
            err, HDT_EPROTO, "cannot join: progress_timeout %lld ms announced, %d to %d allowed",
            (long long)knob_ms, HDT_DEADLINES_KNOB_MIN_MS, HDT_DEADLINES_KNOB_MAX_MS);
    }
    return HDT_OK;
}

/* Does the session that is there stand against a new one that the peer dials? */
static bool handshake_session_stands(const struct hdt_peer *peer, uint64_t instance)
{
    const struct hdt_session *session = peer->session;

    return session != NULL && session->peer_instance == instance && session->dialled_by_us &&
           strcmp(peer->dp->conf.site, peer->site) < 0 &&
           hdt_session_is_sound(session, hdt_clock_now_us());
}

/* Was this hello said before the peer took the session that stands? It has that one then, and its
 * dial only crossed ours. One that was said after that is meant to take its place. */
static bool handshake_is_late(const struct hdt_peer *peer, uint64_t instance, const json_t *hello)
{
    const struct hdt_session *session = peer->session;
    const json_int_t count = json_integer_value(json_object_get(hello, "sessions"));

    return session != NULL && session->peer_instance == instance && session->dialled_by_us &&
           count >= 0 && (uint64_t)count < session->peer_count &&
           hdt_session_is_sound(session, hdt_clock_now_us());
}

static void dials_note(struct hdt_peer_dials *dials, uint64_t instance)
{
    if (instance == dials->last) {
        dials->n_same++;
        return;
    }
    if (instance == dials->before) {
        dials->n_back++;
    } else {
        dials->n_new++;
    }
    dials->before = dials->last;
    dials->last = instance;
}

/* Who comes back although another came after it runs beside that one. */
static void dials_hint(const struct hdt_peer *peer, struct hdt_error *err)
{
    const struct hdt_peer_dials *dials = &peer->dials;

    if (dials->n_back > 0) {
        hdt_error_hint(err, "two gateways run as site '%s': stop one, or give it another name",
                       peer->site);
    } else if (dials->n_new > dials->n_same) {
        hdt_error_hint(err, "the gateway of site '%s' starts again and again: its log says why",
                       peer->site);
    } else {
        hdt_error_hint(err,
                       "the link to '%s' breaks as soon as it is there: the logs of both "
                       "gateways say by what; 'hdt doctor' checks the path",
                       peer->site);
    }
}

/* Two sites that start at the same moment dial each other at the same moment. The dial of the one
 * with the smaller name will stand, so that one does not take the other's meanwhile, only to drop
 * it: a session is news for everybody. But not for long: its own dial may hang. */
static bool handshake_dial_stands(const struct hdt_peer *peer)
{
    const struct hdt_conn *dial = peer->dialling;

    return peer->session == NULL && dial != NULL && dial->state == HDT_CONN_HELLO &&
           strcmp(peer->dp->conf.site, peer->site) < 0 &&
           hdt_clock_now_us() - dial->state_us < HANDSHAKE_YIELD_US;
}

/* A session is news for the main thread, the audit log and every flow: a peer may have a few at
 * once, then one a second. Who dials as it should backs off longer than that. */
static enum hdt_status handshake_check_rate(struct hdt_peer *peer, uint64_t instance,
                                            struct hdt_error *err)
{
    struct hdt_peer_dials *dials = &peer->dials;
    const int64_t now_us = hdt_clock_now_us();

    dials->tokens += (double)(now_us - dials->at_us) / (double)HDT_US_PER_S;
    dials->at_us = now_us;
    if (dials->tokens > HDT_DP_SESSIONS_BURST) {
        dials->tokens = HDT_DP_SESSIONS_BURST;
        dials->n_same = dials->n_new = dials->n_back = 0;
    }
    dials_note(dials, instance);
    if (dials->tokens < 1) {
        hdt_error_set(err, HDT_EPEER,
                      "cannot join site '%s': '%s' has opened more than %d sessions within seconds",
                      peer->dp->conf.site, peer->site, HDT_DP_SESSIONS_BURST);
        dials_hint(peer, err);
        return HDT_EPEER;
    }
    dials->tokens -= 1;
    return HDT_OK;
}

static enum hdt_status handshake_accept_session(struct hdt_conn *conn, json_t *body,
                                                struct hdt_error *err)
{
    const uint64_t instance = hdt_msg_hex_u64(json_object_get(body, "instance"));

    HDT_TRY(handshake_check_limits(body, err));
    conn->peer = hdt_peer_get(conn->dp, conn->identity.name);
    HDT_TRY(handshake_check_rate(conn->peer, instance, err));
    conn->session_id = hdt_msg_hex_u64(json_object_get(body, "session"));
    if (handshake_session_stands(conn->peer, instance)) {
        return hdt_error_set(err, HDT_EEXIST,
                             "cannot join site '%s': the session that '%s' dialled stands",
                             conn->dp->conf.site, conn->dp->conf.site);
    }
    if (handshake_is_late(conn->peer, instance, body)) {
        return hdt_error_set(err, HDT_EEXIST,
                             "cannot join site '%s': '%s' took the session that '%s' dialled after "
                             "it had said this hello",
                             conn->dp->conf.site, conn->peer->site, conn->dp->conf.site);
    }
    if (handshake_dial_stands(conn->peer)) {
        return hdt_error_set(err, HDT_EEXIST, "cannot join site '%s': it dials '%s' at this moment",
                             conn->dp->conf.site, conn->peer->site);
    }
    return hdt_session_open(conn, conn->session_id, instance, body, err);
}

static enum hdt_status handshake_accept_stream(struct hdt_conn *conn, const json_t *body,
                                               unsigned index, struct hdt_error *err)
{
    struct hdt_peer *peer = hdt_peer_find(conn->dp, conn->identity.name);
    struct hdt_session *session = peer != NULL ? peer->session : NULL;

    if (session == NULL || session->dialled_by_us ||
        session->id != hdt_msg_hex_u64(json_object_get(body, "session")) ||
        index > session->n_streams) {
        return hdt_error_set(err, HDT_EEXIST,
                             "cannot add stream %u of site '%s': there is no such session", index,
                             conn->identity.name);
    }
    return hdt_session_attach(session, conn, index, err);
}

static enum hdt_status handshake_on_hello(struct hdt_conn *conn, json_t *body,
                                          struct hdt_error *err)
{
    const json_int_t index = json_integer_value(json_object_get(body, "stream"));
    json_t *msg;

    if (conn->dialled || index < 0 || index > HDT_DP_STREAMS_MAX) {
        return hdt_error_set(err, HDT_EPROTO, "cannot accept a hello for stream %lld",
                             (long long)index);
    }
    HDT_TRY(handshake_check_site(conn, body, err));
    if (index == 0) {
        HDT_TRY(handshake_accept_session(conn, body, err));
    } else {
        HDT_TRY(handshake_accept_stream(conn, body, (unsigned)index, err));
        hdt_session_socket_options(conn->dp, hdt_stream_fd(conn->stream), true);
    }
    msg = hdt_msg_new(
        "welcome", NULL,
        handshake_stream_body(conn, conn->session->id, (unsigned)index, conn->session->n_streams));
    (void)hdt_conn_send_msg(conn, msg, NULL);
    json_decref(msg);
    return HDT_OK;
}

static enum hdt_status handshake_on_welcome(struct hdt_conn *conn, json_t *body,
                                            struct hdt_error *err)
{
    const uint64_t instance = hdt_msg_hex_u64(json_object_get(body, "instance"));
    const struct hdt_session *session = conn->peer->session;

    HDT_TRY(handshake_check_site(conn, body, err));
    if (conn->index > 0) {
        return hdt_session_attach(conn->session, conn, conn->index, err);
    }
    HDT_TRY(handshake_check_limits(body, err));
    if (session != NULL && session->peer_instance == instance && !session->dialled_by_us &&
        strcmp(conn->dp->conf.site, conn->peer->site) > 0 &&
        hdt_session_is_sound(session, hdt_clock_now_us())) {
        return hdt_error_set(err, HDT_EEXIST,
                             "cannot join site '%s': the session it dialled stands",
                             conn->peer->site);
    }
    return hdt_session_open(conn, conn->session_id, instance, body, err);
}

/* The other end refused; its words are ours now. */
static void handshake_refusal(const struct hdt_conn *conn, const json_t *msg, struct hdt_error *why)
{
    memset(why, 0, sizeof(*why));
    if (hdt_msg_error_from_body(hdt_msg_body(msg), why) == HDT_OK) {
        hdt_error_set(why, HDT_EPEER, "cannot join: refused without a reason");
    }
    hdt_error_where(why, "said by %s",
                    conn->identity.name[0] != '\0' ? conn->identity.name : conn->address);
}

bool hdt_handshake_is_taken_back(struct hdt_conn *conn, const json_t *msg)
{
    struct hdt_error why;

    if (conn->dialled || strcmp(hdt_msg_type(msg), "refuse") != 0) {
        return false;
    }
    handshake_refusal(conn, msg, &why);
    hdt_session_close(conn->session, &why);
    return true;
}

void hdt_handshake_msg(struct hdt_conn *conn, json_t *msg)
{
    json_t *body = json_object_get(msg, "b");
    const char *type = hdt_msg_type(msg);
    struct hdt_error why = {0};
    enum hdt_status status;

    if (conn->close_after != NULL || conn->close_requested) {
        return;
    }
    if (strcmp(type, "refuse") == 0) {
        handshake_refusal(conn, msg, &why);
        hdt_handshake_report(conn, &why);
        hdt_conn_close(conn, &why);
        return;
    }
    if (strcmp(type, "hello") == 0 && json_is_object(body)) {
        status = handshake_on_hello(conn, body, &why);
    } else if (strcmp(type, "welcome") == 0 && json_is_object(body) && conn->dialled) {
        status = handshake_on_welcome(conn, body, &why);
    } else {
        status = hdt_error_set(&why, HDT_EPROTO, "cannot join %s: it said '%s' before hello",
                               conn->address, type);
    }
    if (status != HDT_OK) {
        hdt_handshake_report(conn, &why);
        hdt_conn_refuse(conn, &why);
    }
}
