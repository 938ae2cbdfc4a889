/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "gateway/dp.h"
#include "src/base/clock.h"
#include "src/base/median.h"
#include "src/base/recorder.h"

#include <string.h>

/*
 * Signs of life of a session, and what is done without them.
 *
 * Every byte on any stream counts; PING every half second makes sure that there are some. A single
 * stream is a poor witness: on a link of 300 ms that loses packets, TCP backs off for many seconds
 * when it loses a retransmission, and on that stream alone.
 *
 * A cut link loses nothing and says nothing. When it heals, TCP waits for the retransmission timer,
 * which has doubled all the while: as long again as the cut. So when neither a byte nor a segment
 * (TCP_INFO: an acknowledgement will do) has come on any stream, the peer is dialled beside the
 * session that stands, again and again at short intervals, and the first SYN after the healing is
 * the start of a new session, which takes the place of the old one; frames that are not
 * acknowledged go out again. One stream of the old session that speaks first changes nothing: the
 * others still wait for their timers. When all have spoken, the dial is dropped. Who dialled the
 * session dials beside it; the other end would only make a second one. Segments without bytes
 * mean a process that is stopped, or a middlebox that answers for it: to dial that one costs a
 * little and helps seldom, so that it is done late, by either end.
 *
 * Closing the old session first was refused: a link that loses all packets for some seconds would
 * lose what is on its way. So was a cap on TCP's timer, TCP_RTO_MAX_MS: Linux has it since 6.15.
 *
 * A single stream may hang while others move (a middlebox that lost its state, a path of a bundle).
 * TCP would take minutes to tell, or for ever when something acknowledges in between; the PING on
 * it, which has waited far longer than those of the others took to come back, tells in seconds,
 * when no segment came meanwhile: on a slow link it waits behind a chunk. Stream 0 is the session:
 * when it hangs no frame is acknowledged, so that all is dialled again.
 */
#define SESSION_GOODPUT_WINDOW_US (200 * HDT_US_PER_MS)
#define SESSION_STALL_TIMERS      20
#define SESSION_TIMER_MIN_US      (200 * HDT_US_PER_MS) /* Linux's TCP_RTO_MIN */
#define SESSION_PAUSE_US          (10 * HDT_DP_TICK_US) /* between two ticks: we were stopped */
#define SESSION_BESIDE_PART       4 /* of session_dead: a peer whose kernel answers is dialled */

/* ---- silence ---- */

int64_t hdt_session_silent_us(const struct hdt_session *session, int64_t now_us)
{
    int64_t last_us = session->heard_from_us;
    unsigned i;

    for (i = 0; i <= session->n_streams; i++) {
        const struct hdt_conn *conn = session->conns[i];

        if (conn != NULL && conn->stats.last_recv_us > last_us) {
            last_us = conn->stats.last_recv_us;
        }
    }
    return now_us > last_us ? now_us - last_us : 0;
}

/* The same for segments: the peer's kernel and the link are there. */
static int64_t session_segment_silent_us(const struct hdt_session *session, int64_t now_us)
{
    int64_t last_us = session->heard_from_us;
    unsigned i;

    for (i = 0; i <= session->n_streams; i++) {
        const struct hdt_conn *conn = session->conns[i];

        if (conn != NULL && conn->last_segment_us > last_us) {
            last_us = conn->last_segment_us;
        }
    }
    return now_us > last_us ? now_us - last_us : 0;
}

bool hdt_session_wants_another(const struct hdt_session *session, int64_t now_us)
{
    return (session->cut_us != 0 && session->dialled_by_us) ||
           hdt_session_silent_us(session, now_us) >
               session->deadlines.session_dead_us / SESSION_BESIDE_PART;
}

bool hdt_session_is_sound(const struct hdt_session *session, int64_t now_us)
{
    return session->cut_us == 0 &&
           hdt_session_silent_us(session, now_us) < session->deadlines.suspect_us;
}

static bool session_all_spoke(const struct hdt_session *session, int64_t since_us)
{
    unsigned i;

    for (i = 0; i <= session->n_open; i++) {
        const struct hdt_conn *conn = session->conns[i];

        if (conn == NULL || conn->stats.last_recv_us <= since_us) {
            return false;
        }
    }
    return true;
}

/* A dial that has not come to a hello is given up. It goes on until it can say so: cut off in the
 * handshake it would be a stranger to the other end, which cannot know whose it was. After the
 * hello the peer may have taken the new session for its own, and then that one carries on. */
void hdt_session_drop_beside(struct hdt_session *session)
{
    struct hdt_peer *peer = session->peer;
    struct hdt_conn *dial = peer->dialling;

    if (dial != NULL && dial->state < HDT_CONN_HELLO) {
        dial->is_needless = true;
        dial->is_reported = true; /* how it ends is no news */
        peer->dialling = NULL;
    }
}

static void session_note_cut(struct hdt_session *session, int64_t silent_us, int64_t now_us)
{
    const int64_t suspect_us = session->deadlines.suspect_us;

    if (silent_us > suspect_us && session_segment_silent_us(session, now_us) > suspect_us) {
        session->cut_us = now_us;
    } else if (session->cut_us != 0 && session_all_spoke(session, session->cut_us)) {
        session->cut_us = 0;
        hdt_session_drop_beside(session);
    }
}

/* ---- streams ---- */

void hdt_session_dial_streams(struct hdt_session *session, int64_t now_us)
{
    struct hdt_dataplane *dp = session->peer->dp;
    unsigned i;

    if (!session->dialled_by_us || dp->stopping) {
        return;
    }
    for (i = 1; i <= session->n_open; i++) {
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
        conn->deadline_us = now_us + session->deadlines.connect_us;
        session->conns[i] = conn;
        hdt_conn_kick(conn);
    }
}

/* The last sign that a stream is not stuck. A PING waits behind the chunk that is on its way before
 * it, so that a segment will do, as long as some come: what is taken in between and not passed on
 * fills a buffer soon. Stream 0 carries no chunks. */
static int64_t session_moved_us(const struct hdt_conn *conn)
{
    return conn->index > 0 && conn->last_segment_us > conn->ping_sent_us ? conn->last_segment_us
                                                                         : conn->ping_sent_us;
}

/* Did another stream's heartbeat go there and back since? */
static bool session_others_move(const struct hdt_session *session, const struct hdt_conn *conn,
                                int64_t since_us)
{
    unsigned i;

    for (i = 0; i <= session->n_open; i++) {
        const struct hdt_conn *other = session->conns[i];

        if (other != NULL && other != conn && other->last_pong_us > since_us) {
            return true;
        }
    }
    return false;
}

/* A PING that was lost waits for TCP's timer, a round trip and 200 ms or more, which doubles each
 * time that the retransmission is lost, too: 1, 3, 7, 15 times as long. At 1 % of loss two such
 * losses come once a minute on a few streams, five in a row never. */
static int64_t session_stall_us(const struct hdt_session *session, const struct hdt_conn *conn)
{
    const int64_t losses_us = SESSION_STALL_TIMERS * (session->peer->rtt_us + SESSION_TIMER_MIN_US);
    int64_t limit_us = session->deadlines.stall_us;

    limit_us = limit_us > 4 * conn->last_ping_rtt_us ? limit_us : 4 * conn->last_ping_rtt_us;
    limit_us = limit_us > losses_us ? limit_us : losses_us;
    return limit_us < session->deadlines.session_dead_us / 2
               ? limit_us
               : session->deadlines.session_dead_us / 2;
}

static void session_close_stalled(struct hdt_session *session, int64_t now_us)
{
    struct hdt_error why;
    unsigned i;

    for (i = 0; i <= session->n_streams; i++) {
        struct hdt_conn *conn = session->conns[i];
        int64_t moved_us;

        if (conn == NULL || conn->state != HDT_CONN_UP || conn->ping_sent_us == 0) {
            continue;
        }
        moved_us = session_moved_us(conn);
        if (now_us - moved_us <= session_stall_us(session, conn) ||
            !session_others_move(session, conn, moved_us + session->deadlines.stall_us / 2)) {
            continue;
        }
        hdt_error_set(&why, HDT_ELINK,
                      "stream %u to site '%s' stalls: no answer in %lld ms while others move", i,
                      session->peer->site, (long long)((now_us - moved_us) / HDT_US_PER_MS));
        if (i == 0) {
            hdt_session_close(session, &why);
            return;
        }
        hdt_conn_close(conn, &why);
    }
}

/* ---- goodput, tick ---- */

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
        peer->goodput_bytes_per_s = hdt_median(sorted, n);
        peer->loaded_us = now_us;
    }
    peer->window_us = now_us;
    peer->window_bytes = 0;
    peer->starved = false;
}

/* Who was stopped itself has heard nobody meanwhile: what came waits in the sockets. */
static void session_note_pause(struct hdt_session *session, int64_t now_us)
{
    if (session->tick_us != 0 && now_us - session->tick_us > SESSION_PAUSE_US) {
        hdt_log_warn("this gateway did not run for %.1f s; what site %s sent is read now",
                     (double)(now_us - session->tick_us) / 1e6, session->peer->site);
        session->heard_from_us = now_us;
    }
    session->tick_us = now_us;
}

static void session_note_suspect(struct hdt_session *session, int64_t silent_us)
{
    struct hdt_peer *peer = session->peer;
    const bool suspect = silent_us > session->deadlines.suspect_us;

    if (suspect == peer->suspect) {
        return;
    }
    peer->suspect = suspect;
    if (suspect) {
        peer->total.n_suspects++;
        hdt_log_info("site %s is silent for %.1f s", peer->site, (double)silent_us / 1e6);
    } else {
        hdt_log_info("site %s is heard again", peer->site);
    }
}

void hdt_session_tick(struct hdt_session *session, int64_t now_us)
{
    struct hdt_peer *peer = session->peer;
    struct hdt_error why;
    int64_t silent_us;

    session_note_pause(session, now_us);
    silent_us = hdt_session_silent_us(session, now_us);
    if (silent_us > session->deadlines.session_dead_us) {
        hdt_error_set(&why, HDT_ETIMEDOUT,
                      "no byte came from site '%s' (%s) for %.1f s, on none of %u streams",
                      peer->site, peer->total.address, (double)silent_us / 1e6,
                      session->n_open + 1);
        hdt_error_hint(&why, "look at its gateway and at the link ('hdt doctor'); it is dialled "
                             "again and again");
        hdt_session_close(session, &why);
        hdt_recorder_dump("stall");
        return;
    }
    session_note_suspect(session, silent_us);
    session_note_cut(session, silent_us, now_us);
    hdt_session_want_streams(session, now_us);
    /* After a cut all streams stall, and a new session is about to take their place. */
    if (session->cut_us == 0 || now_us - session->cut_us > session->deadlines.stall_us) {
        session_close_stalled(session, now_us);
    }
    session_measure_goodput(peer, now_us);
    hdt_session_pace(session, now_us);
}

void hdt_session_pong(struct hdt_conn *conn, const struct hdt_frame *frame, int64_t now_us)
{
    struct hdt_peer *peer = conn->peer;
    const int64_t sent_us = (int64_t)frame->offset;
    int64_t rtt_us;

    if (sent_us < conn->session->began_us || sent_us > now_us || frame->seq > conn->ping_seq) {
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
    hdt_probe_pong(peer, rtt_us);
    if (peer->min_rtt_us == 0 || rtt_us <= peer->min_rtt_us) {
        peer->min_rtt_us = rtt_us;
        /* Foreign: any 64 bits, so the difference is taken where it may wrap. */
        peer->clock_skew_us = (int64_t)(frame->xxh3 - (uint64_t)(hdt_clock_wall_us() - rtt_us / 2));
    }
}
