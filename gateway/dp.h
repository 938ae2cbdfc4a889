/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_GATEWAY_DP_H
#define HDT_GATEWAY_DP_H

/*
 * Inside of the data plane: what its files share. Nobody else includes this.
 *
 * Threads: the main thread (commands, events), I/O threads (each with an engine; a connection lives
 * on one of them for its life), codec threads (checksums, codecs, copies between local ends), one
 * resolver.
 *
 * Locks: `lock` of the data plane guards every field of every struct here, except where a comment
 * names another owner. It is held for list work only, never over TLS, codecs, copies of payload,
 * or a call of a stream. So the functions below are in two groups: those called with the lock held
 * ("L:" in their comment) and those called without it.
 *
 * Bounds: what flows to the other side is state, not a queue: an ACK, a HAVE, a DATA record is
 * made from the flow's fields when the connection has room for it. A slow reader therefore costs
 * nothing but its own lateness. Chunks wait as "frame, next byte"; encoded ones in a fixed number
 * of buffers a peer; received ones in a fixed number of buffers a stream.
 */
#include "gateway/budget_use.h"
#include "gateway/burst.h"
#include "gateway/dataplane.h"
#include "gateway/edge_rate.h"
#include "gateway/linkinfo.h"
#include "gateway/pacer.h"
#include "gateway/probe.h"
#include "gateway/tuner.h"
#include "gateway/txlane.h"
#include "src/base/log.h"
#include "src/core/msg.h"
#include "src/net/addr.h"
#include "src/net/engine.h"
#include "src/net/link.h"
#include "src/net/stream.h"
#include "src/net/tls.h"

#include <pthread.h>
#include <uthash.h>
#include <utlist.h>

#define HDT_DP_CHUNK_MAX      (8u << 20) /* of the setting, and of what a peer may announce */
#define HDT_DP_GRANULES_MAX   (HDT_DP_CHUNK_MAX / HDT_FRAME_GRANULE)
#define HDT_DP_STREAMS_MAX    64
#define HDT_DP_SMALL_RECORDS  64           /* records without memory of their own, a connection */
#define HDT_DP_RX_JOBS        3            /* receiving, waiting, decoding: one each */
#define HDT_DP_MSG_BACKLOG    (32u << 20)  /* control messages that wait on one connection */
#define HDT_DP_EVENT_BACKLOG  (32u << 20)  /* messages that wait for the main thread */
#define HDT_DP_HELLO_MAX      (64u << 10)  /* a message before the hello was accepted */
#define HDT_DP_LOW_WATER      (256u << 10) /* bytes queued in a stream below which it takes more */
#define HDT_DP_NOTSENT_LOWAT  (256 * 1024) /* bytes that a bulk socket takes ahead of its window */
#define HDT_DP_URGENT_US      (10 * HDT_US_PER_S) /* a class counts as in use since its last chunk */
#define HDT_DP_URGENT_BUFS    2                   /* chunks that less urgent classes leave to it */
#define HDT_DP_PACE_MIN       125e3 /* bytes a second: slower than this, bulk is not held back */
#define HDT_DP_TICK_US        (100 * HDT_US_PER_MS)
#define HDT_DP_BACKOFF_MIN_US (100 * HDT_US_PER_MS)
#define HDT_DP_REPORTS_PER_S  16
#define HDT_DP_SESSIONS_BURST 16

/* Feature of a hello: says over how many streams it sends, and hears it. */
#define HDT_DP_FEATURE_STREAMS "streams"

struct hdt_buf;
struct hdt_conn;
struct hdt_peer;
struct hdt_session;
struct hdt_client;
struct hdt_flow_end;

/* ---- memory shared by a client or owned for it; freed with the last reference ---- */

struct hdt_mem {
    int refs;
    struct hdt_pool pool; /* of a shared memory client */
    uint8_t *base;
    size_t len;
    size_t charged; /* counted in memory_used */
};

/* ---- records on their way out ---- */

enum hdt_out_kind { HDT_OUT_SMALL, HDT_OUT_MSG, HDT_OUT_CHUNK };

/* Always the first member, so that a record's `user` leads back to the whole. */
struct hdt_out {
    struct hdt_record rec;
    enum hdt_out_kind kind;
    struct hdt_flow_end *flow; /* referenced; NULL for records of the connection itself */
    void *heap;                /* MSG: the encoded bytes */
    struct hdt_out *next;
};

struct hdt_tx_chunk {
    struct hdt_out out; /* out.flow: the source end */
    struct hdt_peer *peer;
    uint64_t seq;
    uint32_t idx; /* in the frame */
    uint8_t prio;
    uint32_t conn_id; /* the stream it was given to */
    const uint8_t *plain;
    bool use_codec;
    uint8_t *buf; /* tx_buf_cap bytes: room for the encoded form of the longest chunk */
    struct hdt_tx_chunk *next;
};

struct hdt_tx_block {
    struct hdt_tx_block *next;
    uint8_t *bytes;
    struct hdt_tx_chunk chunks[];
};

struct hdt_tx_list {
    struct hdt_tx_chunk *head, *tail;
};

/* ---- received chunks on their way to a slot ---- */

enum hdt_rx_mode {
    HDT_RX_IDLE,
    HDT_RX_DROP,   /* duplicate, foreign or filler: read and forgotten */
    HDT_RX_DIRECT, /* raw chunk, decrypted straight to its place in the slot */
    HDT_RX_BUFFER, /* to `buf` first: coded, or some of its granules are there already */
};

struct hdt_rx_job {
    enum hdt_rx_mode mode;
    struct hdt_conn *conn;     /* referenced while not idle */
    struct hdt_flow_end *flow; /* the destination end, referenced; NULL when dropped */
    struct hdt_frame frame;
    uint8_t *buf;  /* as long as the peer's chunks */
    uint8_t *slot; /* start of the frame in memory */
    bool whole;    /* all granules of the chunk are claimed by this job */
    bool is_bad;   /* dropped, and counted as bad */
    uint64_t claimed[HDT_DP_GRANULES_MAX / 64]; /* which are, from the chunk's first */
    struct hdt_rx_job *next;
};

/* ---- flow ends ---- */

struct hdt_flow_key {
    uint32_t job, flow, is_src;
};

/* What happened to a chunk of a frame that is to be sent. */
enum hdt_tx_state { HDT_TX_WAITING, HDT_TX_TAKEN, HDT_TX_SENT };

struct hdt_tx_mark {
    uint32_t conn_id; /* SENT, or TAKEN and given to this stream; else 0 */
    uint8_t state;
    bool sent_before;
    bool again; /* TAKEN: it was lost at the other end while it left */
};

struct hdt_src_frame {
    struct hdt_flow_end *flow;
    struct hdt_src_frame *next, *prev; /* in a lane of the peer's queue */
    bool held;                         /* handed over by the client and not acknowledged */
    bool queued, have, copying, use_codec;
    struct hdt_frame frame; /* the DATA record */
    const uint8_t *bytes;
    uint32_t n_chunks, n_todo, scan_idx; /* scan_idx: no chunk before it is waiting */
    uint32_t n_again;                    /* times that the other end asked for parts of it again */
    unsigned trial_era;                  /* as use_codec is of */
    int64_t cut_us;      /* when its first chunk was cut; 0: not yet, or it began anew */
    uint64_t wire_bytes; /* that left of it */
    struct hdt_tx_mark *marks;
};

struct hdt_dst_slot {
    bool begun, complete, have_pending;
    uint64_t seq;
    struct hdt_frame frame; /* of the first chunk: lengths, dtype, check of the whole */
    uint32_t done_bytes;
    uint32_t nack_lo, nack_hi; /* bytes to ask for again; lo == hi: none */
    uint64_t *claims;          /* a bit a granule: claimed by a job or done */
};

struct hdt_flow_end {
    UT_hash_handle hh;
    struct hdt_flow_key key;
    struct hdt_dataplane_flow conf;
    struct hdt_dataplane *dp;
    int refs;
    bool listed;               /* in the table, not replaced */
    bool attached;             /* its client is there and its memory may be used */
    struct hdt_client *client; /* NULL when not attached */
    struct hdt_peer *peer;     /* NULL: both ends are local */
    struct hdt_mem *mem;
    uint64_t base_offset; /* of slot 0 in mem */
    uint32_t stride;      /* bytes from slot to slot */

    uint64_t acked, credit; /* src: as the other end says; dst: as the client says */
    uint64_t next_seq;      /* src: after the newest handed over; dst: next to deliver */

    /* source end */
    struct hdt_src_frame *frames; /* depth */
    bool awaiting_state, query_pending;
    uint32_t budgets;         /* that fit it, as hdt_budgets_of says */
    uint32_t dst_incarnation; /* of the state last applied */
    struct hdt_codec_trial trial;
    bool failed; /* told the main thread */

    /* destination end */
    struct hdt_dst_slot *slots; /* depth */
    uint32_t incarnation;
    unsigned n_writers; /* jobs that may write to the slots */
    bool ack_pending, state_pending;
    unsigned n_have_pending, n_nack_pending;
    bool waiting;  /* for the writers of ends of its job that are gone */
    bool draining; /* gone, with writers left */
    struct hdt_flow_end *drain_next, *drain_prev;

    bool client_ack_pending;
    bool on_peer_list, on_client_list, on_local_list;
    struct hdt_flow_end *peer_next, *peer_prev;
    struct hdt_flow_end *client_next, *client_prev;
    struct hdt_flow_end *local_next, *local_prev;

    uint64_t n_frames, plain_bytes, coded_bytes, raw_bytes, sent_bytes;
    int64_t moved_us;
};

/* ---- connections ---- */

/* Where somebody connects from: listening socket, host or network or user. */
struct hdt_source_key {
    uint8_t door;
    uint8_t bytes[8];
};

enum hdt_conn_kind { HDT_CONN_WAN, HDT_CONN_LAN_UNIX, HDT_CONN_LAN_TLS };
enum hdt_conn_state { HDT_CONN_CONNECTING, HDT_CONN_OPENING, HDT_CONN_HELLO, HDT_CONN_UP };

struct hdt_iothread {
    struct hdt_dataplane *dp;
    struct hdt_engine *engine;
    pthread_t thread;
    bool started;
    struct hdt_task wake;
    bool wake_posted;
    struct hdt_timer tick;  /* owned by the thread, as the next */
    struct hdt_timer rate;  /* the rate cap lets bytes pass again */
    struct hdt_conn *dirty; /* connections to serve, by next_dirty */
    unsigned n_open;        /* connections that live here */
};

struct hdt_conn {
    struct hdt_dataplane *dp;
    struct hdt_iothread *io;
    enum hdt_conn_kind kind;
    enum hdt_conn_state state;
    uint32_t id;
    int refs;
    struct hdt_conn *next, *prev; /* all of the data plane */
    struct hdt_conn *next_dirty;
    bool dirty; /* in the list of its thread, or about to be served */

    /* owned by the I/O thread */
    struct hdt_stream *stream;
    int fd; /* before the stream has it */
    struct hdt_io connect_io;
    bool connect_in_flight;
    bool small_starved; /* a record was wanted and none was free */
    bool close_begun;
    bool is_paused;               /* not read: it floods */
    int64_t spent, earned_us;     /* of its account of units, and when it was filled (misdeed.c) */
    void *msg_buf;                /* of a message being received */
    uint32_t uid;                 /* of a Unix client */
    struct hdt_rx_job *rx_now;    /* of the payload being received */
    struct hdt_identity identity; /* of the certificate at the other end */

    bool awaits_verdict; /* the doorman does */
    struct hdt_source_key source;
    int64_t came_us;

    bool is_reported; /* why it was refused: how it then closes is no news */
    bool close_requested, rx_stopped, resume_requested, recheck_requested;
    bool is_gone; /* the stream is closed: only references are left */
    struct hdt_error close_why;
    struct hdt_out *close_after; /* close when this was sent */
    int64_t deadline_us;         /* for connecting, then for the hello, or for last words */
    int64_t state_us;            /* since when it connects, or greets */
    char address[160];

    struct hdt_out small[HDT_DP_SMALL_RECORDS];
    struct hdt_out *small_free;
    struct hdt_out *msg_head, *msg_tail;
    size_t msg_bytes;

    bool pong_pending;
    uint64_t pong_seq, pong_offset;
    bool ping_pending;
    uint64_t ping_seq;
    int64_t ping_sent_us; /* of the oldest without answer; 0: none */
    int64_t ping_next_us;
    int64_t last_pong_us, last_ping_rtt_us;
    struct hdt_stream_stats stats; /* as of the last tick */
    int64_t last_segment_us;       /* WAN: the peer's kernel was heard, be it without a byte */
    struct hdt_stream_link link;

    /* WAN */
    bool dialled, is_needless;           /* the latter: a session stands meanwhile */
    struct hdt_addr addr;                /* dialled: where */
    struct hdt_peer *peer;               /* dialled: whom; accepted: after the hello */
    struct hdt_session *session;         /* referenced */
    uint64_t session_id;                 /* dialled: of the hello */
    unsigned index;                      /* 0: control */
    bool hungry;                         /* took all chunks that were ready */
    bool is_full;                        /* has all that it should hold */
    unsigned congestion, congestion_set; /* as in the tuner's list; the latter as pace_set */
    double pace;                         /* bytes a second that its socket is held to; 0: none */
    double pace_set;      /* owned by the I/O thread: what the kernel was told last */
    enum hdt_hold hold;   /* asked for; its thread then finds what else the socket is held to: */
    double held;          /* owned by the I/O thread: bytes a second; 0: nothing */
    int64_t rate_wait_us; /* the rate cap holds it back for so long */
    struct hdt_rx_job rx[HDT_DP_RX_JOBS];
    uint8_t *rx_memory;

    /* LAN */
    struct hdt_client *client;
    struct hdt_mem *rx_mem; /* referenced: where the payload of a DATA record is going */
};

/* ---- peers and their sessions ---- */

struct hdt_session {
    int refs;
    struct hdt_peer *peer;
    uint64_t id, peer_instance, peer_count; /* the latter: as the peer counts sessions with us */
    bool dialled_by_us;
    unsigned n_streams;      /* at most */
    unsigned n_peer, n_open; /* that the peer sends on; that are to be there for both */
    unsigned n_told;         /* that we send on, as the peer was told */
    bool peer_tunes;         /* it says so, and understands it */
    int64_t n_open_us;       /* since when n_open is what it is */
    int64_t window_busy_us, window_starved_us, window_here_us; /* sums when the window began */
    uint32_t peer_chunk_bytes;
    struct hdt_addr addr; /* dialled by us: where */
    struct hdt_conn *conns[HDT_DP_STREAMS_MAX + 1];
    int64_t retry_us[HDT_DP_STREAMS_MAX + 1]; /* when to dial this stream (again) */
    int64_t backoff_us[HDT_DP_STREAMS_MAX + 1];
    int64_t began_us;
    int64_t heard_from_us; /* silence counts from here: its begin, or when we ran again */
    int64_t cut_us;  /* until then nothing came, not even a segment; 0: all streams spoke since */
    int64_t tick_us; /* of the last tick */
    struct hdt_deadlines deadlines; /* of the larger of both sites' knobs */
};

/* Sessions that a peer has dialled: how many more it may now, and by which of its processes the
 * last ones were, which tells a link that breaks from a gateway that restarts and from two of one
 * name. */
struct hdt_peer_dials {
    double tokens;
    int64_t at_us;
    uint64_t last, before;          /* instances, the latest two that differ */
    unsigned n_same, n_new, n_back; /* since it last had all tokens: of the last one, of one not
                                       seen before, of the one before */
};

struct hdt_peer {
    UT_hash_handle hh;
    char site[64];
    struct hdt_dataplane *dp;
    struct hdt_session *session;

    bool wanted; /* dial it */
    char address[160];
    struct hdt_addr addr; /* as last resolved; used beside a session, when DNS may be away, too */
    bool has_addr;
    bool resolving;
    struct hdt_conn *dialling; /* stream 0 of a session to be */
    int64_t next_dial_us, backoff_us;
    char last_refusal[HDT_ERROR_MSG_CAP];

    struct hdt_flow_end *dirty; /* flows with something for stream 0 */
    struct hdt_tx_lanes queue[HDT_PRIO_COUNT];
    struct hdt_tx_chunk *tx_free;
    struct hdt_tx_block *tx_blocks; /* their memory, more when there are more streams */
    unsigned n_tx;
    struct hdt_tx_list ready[HDT_PRIO_COUNT];
    unsigned n_ready;

    unsigned n_tx_free;
    int64_t class_us[HDT_PRIO_COUNT]; /* a chunk of this class was cut last; 0: none was */

    struct hdt_pacer pacer;
    int64_t pace_window_us;      /* began; 0: none runs */
    unsigned n_paced;            /* bulk streams then */
    const struct hdt_conn *kept; /* stream that was kept from them then; only compared */

    struct hdt_tuner tuner;
    bool has_tuner; /* since the first bulk stream */
    struct hdt_burst burst;
    unsigned n_buffer_bound;  /* loaded windows in a row in which buffers were the limit */
    struct hdt_error buffers; /* says which, and what to do; msg "": they are not */

    int64_t rtt_us, min_rtt_us, clock_skew_us;
    bool suspect;
    bool starved; /* a stream found nothing ready in this window */
    uint64_t window_bytes;
    int64_t window_us;
    double samples[5];
    unsigned n_samples;
    int64_t loaded_us; /* the last of them was taken; 0: there is none */
    double goodput_bytes_per_s;
    struct hdt_edge_rate edge_rate;
    struct hdt_probe_out probe_out;
    struct hdt_probe_in probe_in;
    struct hdt_peer_stats total; /* counters; bytes of closed streams only */
    struct hdt_peer_link link;
    struct hdt_log_limit bad_log[HDT_BAD_COUNT], misdeed_log[HDT_MISDEED_COUNT];
    size_t rx_bytes; /* receive buffers of its streams */
    struct hdt_peer_dials dials;
    int64_t cert_end_us; /* of the peer's certificate; 0: none seen */
};

/* ---- clients ---- */

struct hdt_client_pool {
    uint32_t number;
    uint32_t job, epoch; /* whose flows lie in it; job 0: not said */
    struct hdt_mem *mem;
    struct hdt_client_pool *next;
};

struct hdt_client {
    UT_hash_handle hh;
    uint64_t number;
    uint64_t instance; /* of its process, as its hello says; 0: it does not */
    enum hdt_client_role role;
    char name[64];
    char identity[HDT_IDENTITY_URI_CAP], address[160]; /* as hdt_client_info has them */
    bool shares_memory;
    struct hdt_conn *conn; /* referenced */
    struct hdt_client_pool *pools;
    unsigned n_pools;
    struct hdt_flow_end *dirty; /* flows with something for it */
};

struct hdt_doorman;
struct hdt_event;
struct hdt_resolver;
struct hdt_codec_worker;

struct hdt_dataplane {
    struct hdt_dataplane_conf conf; /* strings are owned */
    struct hdt_dataplane_events events;
    void *user;

    pthread_mutex_t lock;
    pthread_cond_t work; /* codec threads wait for jobs */
    bool stopping;
    struct hdt_iothread *io;
    unsigned n_io, next_io;
    struct hdt_codec_worker *codecs;
    int n_codecs;
    struct hdt_resolver *resolver;
    struct hdt_doorman *doorman;

    struct hdt_peer *peers;
    struct hdt_client *clients;
    struct hdt_flow_end *flows;
    struct hdt_conn *conns;
    struct hdt_flow_end *draining;
    struct hdt_flow_end *local; /* source ends whose other end is local and that have frames */
    struct hdt_rx_job *rx_head, *rx_tail;
    struct hdt_peer *tx_next; /* where the search for work goes on */
    uint64_t next_client;
    uint32_t next_conn_id, next_incarnation;
    size_t memory_used, tx_buf_cap;
    struct hdt_bucket rate; /* of the cap on all that is sent */
    struct hdt_budgets budgets;
    char congestion_offered[256]; /* by the kernel, as it says */
    uint64_t rng;
    int64_t report_window_us; /* strangers are told of HDT_DP_REPORTS_PER_S times at most */
    unsigned n_reports;       /* in this window */
    uint64_t encode_bytes, encode_ns, decode_bytes, decode_ns;
    double probe_send_s_per_byte, probe_recv_s_per_byte; /* CPU time, of the last probes */

    pthread_mutex_t event_lock; /* guards the fields below */
    struct hdt_event *event_head, *event_tail;
    uint64_t n_events;
    size_t event_bytes;  /* of messages among them, as they came */
    bool events_awaited; /* connections wait for room */
    int event_fd;
};

static inline void hdt_dp_lock(struct hdt_dataplane *dp)
{
    pthread_mutex_lock(&dp->lock);
}

static inline void hdt_dp_unlock(struct hdt_dataplane *dp)
{
    pthread_mutex_unlock(&dp->lock);
}

/* ---- dataplane.c ---- */

/* L: a random number; splitmix64 from a seed of the kernel. Jitter and names, not secrets. */
uint64_t hdt_dp_random(struct hdt_dataplane *dp);
/* L: count bytes against memory_bytes; HDT_ENOMEM when there is no room. */
enum hdt_status hdt_dp_charge(struct hdt_dataplane *dp, size_t len, const char *what,
                              struct hdt_error *err);
/* L */
struct hdt_mem *hdt_mem_ref(struct hdt_mem *mem);
void hdt_mem_unref(struct hdt_dataplane *dp, struct hdt_mem *mem);

/* ---- dpevent.c: events to the main thread; any thread, with or without the lock ---- */

enum hdt_status hdt_dpevent_init(struct hdt_dataplane *dp, struct hdt_error *err);
void hdt_dpevent_release(struct hdt_dataplane *dp);
/* Is there no room for a message? Then connections are resumed when there is. */
bool hdt_dpevent_is_full(struct hdt_dataplane *dp);
/* A hello, strings and errors are copied; a message, which came in so many bytes, is taken over. */
void hdt_dpevent_peer_up(struct hdt_dataplane *dp, const char *site, const json_t *hello);
void hdt_dpevent_peer_down(struct hdt_dataplane *dp, const char *site, const struct hdt_error *why);
void hdt_dpevent_peer_msg(struct hdt_dataplane *dp, const char *site, json_t *msg, size_t len);
void hdt_dpevent_peer_refused(struct hdt_dataplane *dp, const char *site, const char *address,
                              const struct hdt_error *why, uint64_t n);
void hdt_dpevent_client_up(struct hdt_dataplane *dp, const struct hdt_client *client,
                           const json_t *hello);
void hdt_dpevent_client_msg(struct hdt_dataplane *dp, uint64_t client, json_t *msg, size_t len);
void hdt_dpevent_client_down(struct hdt_dataplane *dp, uint64_t client,
                             const struct hdt_error *why);
void hdt_dpevent_probed(struct hdt_dataplane *dp, const char *site, double bytes_per_s,
                        double rtt_s);
void hdt_dpevent_flow_failed(struct hdt_dataplane *dp, const struct hdt_flow_end *flow,
                             const struct hdt_error *why);

/* ---- iothread.c ---- */

enum hdt_status hdt_iothreads_start(struct hdt_dataplane *dp, struct hdt_error *err);
/* Close all connections, end the threads. */
void hdt_iothreads_stop(struct hdt_dataplane *dp);
void hdt_iothreads_free(struct hdt_dataplane *dp);
/* L: the thread for the next connection, in turn. */
struct hdt_iothread *hdt_iothread_next(struct hdt_dataplane *dp);
/* L: have the connection's thread look at it (hdt_conn_serve). */
void hdt_conn_kick(struct hdt_conn *conn);
/* L: a connection of this thread is gone; ends the thread when it was the last. */
void hdt_iothread_leave(struct hdt_iothread *io);

/* ---- doorman.c: who connects, until it may go on ---- */

enum hdt_status hdt_doorman_start(struct hdt_dataplane *dp, struct hdt_error *err);
void hdt_doorman_listen(struct hdt_doorman *doorman, enum hdt_listener kind, int fd);
/* Before the I/O threads end: closes what it has and ends its thread. NULL is allowed, as below. */
void hdt_doorman_stop(struct hdt_doorman *doorman);
/* After they ended. */
void hdt_doorman_free(struct hdt_doorman *doorman);
/* L: the connection was let in (why NULL) or is closed before that. Told once; of others nothing.
 */
void hdt_doorman_verdict(struct hdt_conn *conn, const struct hdt_error *why);
void hdt_doorman_counts(struct hdt_doorman *doorman,
                        uint64_t refused[HDT_LISTENER_COUNT][HDT_REFUSED_COUNT]);

/* ---- conn.c: one connection of any kind ---- */

/* L: new connection, not begun; hdt_conn_kick begins it on its thread. `fd` is a connected socket
 * (accepted) or -1 (to be dialled to conn->addr). Never NULL. */
struct hdt_conn *hdt_conn_new(struct hdt_dataplane *dp, enum hdt_conn_kind kind, int fd);
/* L */
struct hdt_conn *hdt_conn_ref(struct hdt_conn *conn);
void hdt_conn_unref(struct hdt_conn *conn);
/* L: close it (once); its thread does it. */
void hdt_conn_close(struct hdt_conn *conn, const struct hdt_error *why);
/* L: queue a message (encoded before return). HDT_ENOMEM when too many bytes wait. */
enum hdt_status hdt_conn_send_msg(struct hdt_conn *conn, const json_t *msg, struct hdt_error *err);
/* L: the same for an encoded message; its bytes are taken over on success only. */
enum hdt_status hdt_conn_send_encoded(struct hdt_conn *conn, struct hdt_buf *bytes,
                                      struct hdt_error *err);
/* L: say "refuse" (to a client: "error") with the error and close when that was sent. */
void hdt_conn_refuse(struct hdt_conn *conn, const struct hdt_error *why);
/* L: a free small record with its header zeroed, kind set, flow referenced (may be NULL); NULL when
 * all are on their way. */
struct hdt_out *hdt_conn_small(struct hdt_conn *conn, enum hdt_frame_kind kind,
                               struct hdt_flow_end *flow);
/* On its thread. */
void hdt_conn_serve(struct hdt_conn *conn);
void hdt_conn_pump(struct hdt_conn *conn);
void hdt_conn_tick(struct hdt_conn *conn, int64_t now_us);
/* On its thread: a message of `len` bytes begins; gives its buffer. HDT_AGAIN: the main thread has
 * enough of them; the stream is resumed later. */
enum hdt_status hdt_conn_place_msg(struct hdt_conn *conn, size_t len, void **buf,
                                   struct hdt_error *err);
/* On its thread: the message is there; new reference. */
enum hdt_status hdt_conn_take_msg(struct hdt_conn *conn, size_t len, json_t **msg,
                                  struct hdt_error *err);
/* L: PING and PONG on any connection. */
void hdt_conn_on_ping(struct hdt_conn *conn, const struct hdt_frame *frame);

/* ---- wan.c and lan.c: what the two kinds of connections do; see conn.c for the caller ---- */

extern const struct hdt_stream_events hdt_wan_events, hdt_lan_events;
/* L: the next record for this connection, or NULL. */
struct hdt_out *hdt_wan_next_out(struct hdt_conn *conn, size_t queued_bytes, int64_t now_us);
struct hdt_out *hdt_client_next_out(struct hdt_conn *conn);
/* L: the stream is closed. */
void hdt_wan_on_closed(struct hdt_conn *conn, const struct hdt_error *why);
void hdt_client_on_closed(struct hdt_conn *conn, const struct hdt_error *why);
/* For the tables of both kinds. */
void hdt_conn_on_want(struct hdt_stream *stream, void *user);
void hdt_conn_on_sent(struct hdt_stream *stream, void *user, struct hdt_record *record, bool ok);
void hdt_conn_on_closed(struct hdt_stream *stream, void *user, const struct hdt_error *err);

/* ---- lan.c ---- */

/* L */
struct hdt_client *hdt_client_find(struct hdt_dataplane *dp, uint64_t number);
struct hdt_mem *hdt_client_pool_find(struct hdt_client *client, uint32_t number);
/* L: drop the pools of a job (UINT32_MAX as epoch: of any): no flow is opened in them any more. */
void hdt_clients_drop_pools(struct hdt_dataplane *dp, uint32_t job, uint32_t epoch);
/* L: the flow has something for its client. */
void hdt_client_mark(struct hdt_flow_end *flow);
void hdt_clients_free(struct hdt_dataplane *dp);

/* ---- misdeed.c: wrong records and floods of those who were let in ---- */

/* L: a chunk of the peer is dropped. */
void hdt_peer_bad_chunk(struct hdt_peer *peer, const struct hdt_frame *chunk,
                        enum hdt_bad_chunk cause, const char *what);
/* L: another record of it is, or its stream is closed or read slower. */
void hdt_peer_misdeed(struct hdt_peer *peer, enum hdt_misdeed misdeed, const char *what);
/* On its thread, without the lock: a record came. Who sends too many is not read for a while. */
void hdt_conn_charge(struct hdt_conn *conn, int units);
int hdt_record_cost(const struct hdt_frame *frame);
/* On its thread, every tick. */
void hdt_conn_earn(struct hdt_conn *conn, int64_t now_us);
/* Of a record that was of no use: wrong, or late. */
int hdt_dropped_cost(const struct hdt_frame *frame, bool is_bad);

/* ---- handshake.c: hello, welcome, refuse between gateways ---- */

/* On its thread, TLS is up. */
enum hdt_status hdt_handshake_up(struct hdt_conn *conn, struct hdt_error *err);
/* L: a message before the connection was accepted. */
void hdt_handshake_msg(struct hdt_conn *conn, json_t *msg);
/* L: welcome of a client or peer and fields common to hello and welcome. New reference. */
json_t *hdt_handshake_body(struct hdt_dataplane *dp);
/* Identity of the certificate at the other end of a TLS stream, into conn's fields. */
enum hdt_status hdt_handshake_identity(struct hdt_conn *conn, struct hdt_error *err);
/* Check proto and federation of a hello or welcome. HDT_EVERSION, HDT_EACCES. */
enum hdt_status hdt_handshake_check(const struct hdt_dataplane *dp, const json_t *body,
                                    const char *who, struct hdt_error *err);
/* L: a refusal for the main thread, once per cause and peer. */
void hdt_handshake_report(struct hdt_conn *conn, const struct hdt_error *why);

/* ---- resolver.c: DNS may block, so it has a thread; called without the lock ---- */

enum hdt_status hdt_resolver_start(struct hdt_dataplane *dp, struct hdt_resolver **resolver,
                                   struct hdt_error *err);
/* No more answers; what is asked from here is forgotten. NULL is allowed, as below. */
void hdt_resolver_stop(struct hdt_resolver *resolver);
/* After the I/O threads ended. */
void hdt_resolver_free(struct hdt_resolver *resolver);
void hdt_resolver_ask(struct hdt_resolver *resolver, const char *site, const char *address);

/* ---- flow_end.c ---- */

/* L */
struct hdt_flow_end *hdt_flow_end_find(struct hdt_dataplane *dp, uint32_t job, uint32_t flow,
                                       bool is_src);
struct hdt_flow_end *hdt_flow_end_ref(struct hdt_flow_end *flow);
void hdt_flow_end_unref(struct hdt_flow_end *flow);
/* L: its client or its job is gone: no memory is touched any more. */
void hdt_flow_end_detach(struct hdt_flow_end *flow);
void hdt_flow_ends_free(struct hdt_dataplane *dp);
/* L: the last writer of an end that is gone has ended. */
void hdt_flow_end_drained(struct hdt_flow_end *flow);
/* L: a session with the peer is up: ask and answer where the flows are. */
void hdt_flow_ends_resync(struct hdt_peer *peer);
/* L: the next record of the flow for its peer's stream 0; NULL when nothing is left or no record is
 * free (*more tells which). */
struct hdt_out *hdt_flow_end_peer_out(struct hdt_flow_end *flow, struct hdt_conn *conn, bool *more);
/* L: ACK, HAVE or QUERY of the peer. Returns what it costs it beyond the usual. */
int hdt_flow_end_on_record(struct hdt_peer *peer, const struct hdt_frame *frame);

/* ---- flow_src.c; all L ---- */

/* A DATA record of the client begins (TCP): where its bytes go. */
enum hdt_status hdt_src_place(struct hdt_flow_end *flow, const struct hdt_frame *frame, void **buf,
                              struct hdt_error *err);
/* A DATA record is there. HDT_EPROTO: the client broke the protocol. */
enum hdt_status hdt_src_data(struct hdt_flow_end *flow, const struct hdt_frame *frame,
                             struct hdt_error *err);
/* The other end's state: an ACK with flag STATE. */
void hdt_src_state(struct hdt_flow_end *flow, const struct hdt_frame *ack);
void hdt_src_ack(struct hdt_flow_end *flow, uint64_t seq, uint64_t credit);
void hdt_src_have(struct hdt_flow_end *flow, uint64_t seq);
void hdt_src_again(struct hdt_flow_end *flow, const struct hdt_frame *query);
/* A chunk that was taken is to be sent (again). */
void hdt_src_chunk_back(struct hdt_src_frame *frame, uint32_t idx);
/* The stream is lost: its chunks go out again. */
void hdt_src_conn_lost(struct hdt_peer *peer, uint32_t conn_id);
/* Frame of a flow end with that number; NULL when it is not held. */
struct hdt_src_frame *hdt_src_frame_find(struct hdt_flow_end *flow, uint64_t seq);
void hdt_src_detach(struct hdt_flow_end *flow);

/* ---- flow_dst.c; all L ---- */

/* A chunk begins. Sets mode, slot and claims of the job and *buf. HDT_EPROTO: a breach. */
enum hdt_status hdt_dst_place(struct hdt_peer *peer, struct hdt_rx_job *job, void **buf,
                              struct hdt_error *err);
/* The job is over; ok: its bytes are in the slot. */
void hdt_dst_done(struct hdt_rx_job *job, bool ok);
/* A frame was copied into the slot as a whole (both ends local). */
void hdt_dst_copied(struct hdt_flow_end *flow, uint64_t seq);
/* The client's ACK. HDT_EPROTO: it takes what it was not given. */
enum hdt_status hdt_dst_ack(struct hdt_flow_end *flow, uint64_t seq, uint64_t credit,
                            struct hdt_error *err);
/* Fill the fields of an ACK record with flag STATE. */
void hdt_dst_state(const struct hdt_flow_end *flow, struct hdt_frame *ack);
struct hdt_dst_slot *hdt_dst_slot_at(struct hdt_flow_end *flow, uint64_t seq);
uint8_t *hdt_dst_slot_bytes(const struct hdt_flow_end *flow, uint64_t seq);
bool hdt_dst_in_window(const struct hdt_flow_end *flow, uint64_t seq);
void hdt_dst_activate(struct hdt_flow_end *flow);

/* ---- txqueue.c; all L ---- */

/* Chunk buffers for so many streams; there may be some. */
enum hdt_status hdt_txq_alloc(struct hdt_peer *peer, unsigned n_streams, struct hdt_error *err);
void hdt_txq_free(struct hdt_peer *peer);
/* Queue a frame that has chunks to send (no effect when it is queued); front: before others. */
void hdt_txq_push(struct hdt_src_frame *frame, bool front);
void hdt_txq_remove(struct hdt_src_frame *frame);
/* Next chunk to encode, or NULL. */
struct hdt_tx_chunk *hdt_txq_take(struct hdt_dataplane *dp);
/* It is encoded. */
void hdt_txq_ready(struct hdt_tx_chunk *chunk);
/* Next chunk for a stream, or NULL (then the stream is hungry). */
struct hdt_tx_chunk *hdt_txq_pull(struct hdt_conn *conn, int64_t now_us);
/* The most urgent class that is in use, when less urgent ones are, too, and the settings let those
 * be held back; else HDT_PRIO_COUNT. */
int hdt_txq_urgent_class(const struct hdt_peer *peer, int64_t now_us);
/* Several classes are in use, whatever the settings. */
bool hdt_txq_is_mixed(const struct hdt_peer *peer, int64_t now_us);
/* The stream that is kept for it, NULL: none is. */
struct hdt_conn *hdt_txq_urgent_conn(const struct hdt_peer *peer, int64_t now_us);
void hdt_txq_sent(struct hdt_tx_chunk *chunk, bool ok);
void hdt_txq_wake(struct hdt_peer *peer);
/* The rate cap: 0 when bytes may leave now, else microseconds to wait. */
int64_t hdt_txq_rate_wait(struct hdt_dataplane *dp, int64_t now_us);
void hdt_txq_rate_take(struct hdt_dataplane *dp, size_t len);

/* ---- codecpool.c ---- */

enum hdt_status hdt_codecpool_start(struct hdt_dataplane *dp, struct hdt_error *err);
void hdt_codecpool_stop(struct hdt_dataplane *dp);
/* L */
void hdt_codecpool_push(struct hdt_rx_job *job);
void hdt_codecpool_wake(struct hdt_dataplane *dp);
/* Not L: compare a chunk that came without codec with its checksum, here and now; hand it on. */
void hdt_rx_job_check(struct hdt_rx_job *job);
/* L: take back an rx job of a connection. */
void hdt_rx_job_release(struct hdt_rx_job *job);
/* Bytes of room that the encoded form of a chunk needs. */
size_t hdt_codecpool_bound(uint64_t chunk_bytes);

/* ---- local.c: both ends at this gateway; L except copy ---- */

/* A source end was opened: it learns the state of its other end, if that is open. */
void hdt_local_ask(struct hdt_flow_end *src);
void hdt_local_mark(struct hdt_flow_end *src);
void hdt_local_unmark(struct hdt_flow_end *src);
struct hdt_local_copy {
    struct hdt_flow_end *src, *dst; /* referenced */
    uint64_t seq;
    const uint8_t *from;
    uint8_t *to;
    size_t len;
};
bool hdt_local_take(struct hdt_dataplane *dp, struct hdt_local_copy *copy);
void hdt_local_done(struct hdt_local_copy *copy);

#include "gateway/dpsession.h" /* peers and their sessions */

#endif /* HDT_GATEWAY_DP_H */
