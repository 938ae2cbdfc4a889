/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_DPSESSION_H
#define HDT_GATEWAY_DPSESSION_H

/*
 * Inside of the data plane, a part of dp.h: peers and the sessions with them. "L:" in a comment:
 * the lock of the data plane is held.
 */
#include "src/base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct hdt_addr;
struct hdt_conn;
struct hdt_dataplane;
struct hdt_flow_end;
struct hdt_frame;
struct hdt_pacer_window;
struct hdt_peer;
struct hdt_session;

/* ---- peer.c, session.c and session_watch.c ---- */

/* L */
struct hdt_peer *hdt_peer_get(struct hdt_dataplane *dp, const char *site);
struct hdt_peer *hdt_peer_find(struct hdt_dataplane *dp, const char *site);
/* L: end all sessions. */
void hdt_peers_close(struct hdt_dataplane *dp);
void hdt_peers_free(struct hdt_dataplane *dp);
/* L: the flow has something for stream 0 of its peer. */
void hdt_peer_mark(struct hdt_flow_end *flow);
/* Dial what is due; on the first I/O thread, without the lock. */
void hdt_peers_tick(struct hdt_dataplane *dp, int64_t now_us);
/* L: the dial of stream 0 failed. */
void hdt_peer_dial_failed(struct hdt_peer *peer, struct hdt_conn *conn,
                          const struct hdt_error *why);
/* From the resolver; addr NULL: *err says why. */
void hdt_peer_resolved(struct hdt_dataplane *dp, const char *site, const char *address,
                       const struct hdt_addr *addr, const struct hdt_error *err);

/* L: stream 0 is accepted by both sides; `hello` is what the peer said. */
enum hdt_status hdt_session_open(struct hdt_conn *conn, uint64_t id, uint64_t peer_instance,
                                 const json_t *hello, struct hdt_error *err);
/* L: bulk stream `index` is accepted by both sides. */
enum hdt_status hdt_session_attach(struct hdt_session *session, struct hdt_conn *conn,
                                   unsigned index, struct hdt_error *err);
/* L: end it; what flows is kept and goes out again on the next one. */
void hdt_session_close(struct hdt_session *session, const struct hdt_error *why);
/* L: a connection of it is gone. */
void hdt_session_detach(struct hdt_session *session, struct hdt_conn *conn,
                        const struct hdt_error *why);
struct hdt_session *hdt_session_ref(struct hdt_session *session);
void hdt_session_unref(struct hdt_session *session);
/* L: microseconds since the last byte from the peer. */
int64_t hdt_session_silent_us(const struct hdt_session *session, int64_t now_us);
/* L: it is heard, and no stream of it waits for the end of a cut. */
bool hdt_session_is_sound(const struct hdt_session *session, int64_t now_us);
/* L: give up a dial of ours that has not come to a hello: the session will do. */
void hdt_session_drop_beside(struct hdt_session *session);
/* L: it is silent, and the peer should be dialled beside it. */
bool hdt_session_wants_another(const struct hdt_session *session, int64_t now_us);
/* L: dial the bulk streams that are not there, when we dialled the session. */
void hdt_session_dial_streams(struct hdt_session *session, int64_t now_us);
/* L: liveness, stalled streams, streams to dial, goodput. */
void hdt_session_tick(struct hdt_session *session, int64_t now_us);
void hdt_session_pong(struct hdt_conn *conn, const struct hdt_frame *frame, int64_t now_us);
/* L: give the socket options of its place (bulk: short unsent queue). */
void hdt_session_socket_options(struct hdt_dataplane *dp, int fd, bool is_bulk);

/* ---- handshake.c, of a session that is up ---- */

/* L: true: the dialler does not want the session that it was welcome to, which is over now. */
bool hdt_handshake_is_taken_back(struct hdt_conn *conn, const json_t *msg);

/* ---- session_pace.c: the rate that bulk streams are held to ---- */

/* On its thread, without the lock: have the kernel hold the socket to `bytes_per_s` (0: to none).
 */
void hdt_session_set_pace(struct hdt_conn *conn, double bytes_per_s);
/* L: the tick of a session. */
void hdt_session_pace(struct hdt_session *session, int64_t now_us);

/* ---- session_tune.c: how many streams, which congestion control ---- */

/* L: a bulk stream is there: what the kernel offers, and gave it. */
void hdt_session_tune_begin(struct hdt_session *session, const struct hdt_conn *conn);
/* L: a window of the pacer is over. */
void hdt_session_tune(struct hdt_session *session, const struct hdt_pacer_window *window,
                      int64_t now_us);
/* L: how many streams there are to be; dials, and lets go of the others. */
void hdt_session_want_streams(struct hdt_session *session, int64_t now_us);
/* L: true: the message was about streams, and is dealt with. */
bool hdt_session_tune_msg(struct hdt_session *session, const json_t *msg);
/* L: streams that what we send goes over. */
unsigned hdt_session_n_used(const struct hdt_session *session);
/* L: the first of them that is up; NULL: none is. */
struct hdt_conn *hdt_session_first_stream(const struct hdt_session *session);
/* L: could bursts use one of them alone, if a probe says so (burst.h)? */
bool hdt_session_may_use_one(const struct hdt_session *session);
/* L: the stream that all goes over for now; NULL: each that has room takes what is next. */
struct hdt_conn *hdt_session_burst_stream(const struct hdt_session *session);
/* On its thread, without the lock: the congestion control of that number in the tuner's list. */
void hdt_session_set_congestion(struct hdt_conn *conn, unsigned congestion);

#endif /* HDT_GATEWAY_DPSESSION_H */
