/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HDT_LIB_CHAN_H
#define HDT_LIB_CHAN_H

/*
 * Inside of a channel.
 *
 * Everything but what is marked belongs to the channel's thread, which runs an engine with one
 * connection to the gateway (src/net/gwlink.h). Other threads put requests and flows into lists
 * under the lock and post the thread's task; it does one small piece of work for each flow, looks
 * at its connection, and comes back as long as there is work. So what is copied, coded and added up
 * overlaps with what gateways carry, and no state of a flow needs a lock.
 *
 *   chan_open.c     public calls of the channel itself, the thread, deadlines
 *   chan_conn.c     what is said to the gateway, and by it
 *   chan_flow.c     windows of frames, records
 *   chan_mem.c      the memory that is shared with the gateway
 *   chan_request.c  tensors from one member to another, waiting
 *   chan_coll.c     collectives: shapes and order
 *   chan_exchange.c   their steps
 *   chan_piece.c    what is done to the values
 */
#include "src/lib/lib_impl.h"
#include "compress/codec.h"
#include "src/core/channel_id.h"
#include "src/core/window.h"
#include "src/net/engine.h"
#include "src/net/gwlink.h"

#include <pthread.h>
#include <stdatomic.h>
#include <utlist.h>

/* Bytes of a frame: small beside a window, large beside what a frame costs (a record, an
 * acknowledgement). */
#define CHAN_FRAME_CAP (512u << 10)
#define CHAN_DEPTH_MIN 8u /* a piece that is not coded takes up to four frames */

/* Elements of a piece that is coded, at most. However few bytes a codec makes of it, what is not
 * finite has to go through a window as it is. */
#define CHAN_PIECE_MAX ((size_t)512 << 10)

struct hdt_channel;

/* ---- flows ---- */

struct chan_slot {
    struct hdt_record record; /* source */
    uint8_t *mem;             /* of the flow, frame_cap bytes */
    const uint8_t *bytes;     /* source: what is sent, `mem` or the program's own */
    uint32_t len, raw_len;
    uint8_t dtype, flags;
    bool is_queued;  /* record is on the stream */
    bool is_checked; /* destination: its hash is right */
    uint64_t xxh3;
};

struct hdt_flow {
    struct hdt_channel *channel;
    uint32_t number;
    unsigned peer;
    bool is_collective;
    uint8_t prio, gateway_codec;
    enum hdt_dtype type;         /* of the tensors */
    struct hdt_codec_spec codec; /* its worker part is ours */
    size_t piece;                /* elements of a frame, but of the last one of a tensor */
    uint32_t frame_cap;
    size_t pool_offset;
    struct chan_slot *slots;

    struct hdt_window window;
    bool is_said;   /* "flow.open" on this connection */
    bool is_opened; /* both ends have it */
    bool ack_queued;
    struct hdt_record ack;
    int64_t moved_us;

    struct hdt_request *queue;   /* of the program, oldest first */
    struct hdt_request *unacked; /* sent without a copy, not taken yet */
    struct hdt_flow *next;       /* of the channel */

    /* Guarded by the channel's lock. */
    struct hdt_flow_stats stats;
    int64_t stats_us; /* moved_us, as of the stats */
    struct hdt_codec_guard guard;
    bool is_closed; /* by hdt_flow_close: nothing new is asked of it */
    struct hdt_flow *new_next, *all_next;

    /* Codecs with feedback, source: what is owed of each piece of a tensor. Made under the lock by
     * the first send, of tensors of feedback_n elements; the thread's from then on. */
    size_t feedback_n, n_feedback;
    struct hdt_codec_state **feedback;
};

/* ---- requests ---- */

#define TENSOR_BYTES_MAX ((size_t)1 << 46)

enum chan_request_kind { REQUEST_SEND, REQUEST_RECV, REQUEST_FLUSH, REQUEST_COLLECTIVE };
enum chan_coll_kind { COLL_ALLREDUCE, COLL_BROADCAST, COLL_BARRIER };

#define CHAN_HEAD_LEN 64

/* A collective: the request's src, dst and n are the program's. */
struct chan_coll {
    enum chan_coll_kind kind;
    uint64_t seq; /* of the channel's collectives */
    enum hdt_dtype type;
    enum hdt_reduce reduce;
    struct hdt_codec_spec codec;
    unsigned root;
    size_t piece;                              /* elements */
    unsigned n_pending;                        /* cursors that have not passed it */
    bool is_zero_copy;                         /* of what is scattered */
    uint64_t out_end[HDT_CHANNEL_MEMBERS_MAX]; /* by rank: the frame after its last one to there */
    uint8_t head[CHAN_HEAD_LEN];
};

struct hdt_request {
    struct hdt_channel *channel;
    enum chan_request_kind kind;
    struct hdt_flow *flow; /* NULL: collective */
    const uint8_t *src;
    uint8_t *dst;
    size_t n;    /* elements; receive: room for */
    size_t done; /* elements that were handed over, or came */
    bool is_zero_copy;
    uint64_t last_seq; /* the frame that ends it; zero-copy */
    int64_t moved_us;
    struct chan_coll coll;
    struct hdt_request *prev, *next; /* in the queue of its flow or of collectives */

    /* Guarded by the channel's lock. */
    bool is_done;
    size_t result;
    struct hdt_error err; /* HDT_OK: it went well */
    struct hdt_request *all_prev, *all_next;
    struct hdt_request *new_next; /* not seen by the thread yet */
};

/* Where a flow of collectives is: the collective with this number, frame idx of it. */
struct chan_cursor {
    uint64_t seq;
    size_t idx;
    size_t at; /* elements of piece idx that came already */
};

/* What collectives have with one other member. */
struct chan_lane {
    struct hdt_flow *scatter_out, *gather_out, *scatter_in, *gather_in; /* NULL: our own rank */
    struct chan_cursor out, in, gather; /* of scatter_out, scatter_in, gather_in */
};

/* ---- the channel ---- */

enum chan_member_state { MEMBER_UNKNOWN, MEMBER_HERE, MEMBER_AWAY, MEMBER_CLOSED, MEMBER_LOST };

struct chan_member {
    struct hdt_channel_member who;
    char text[HDT_CHANNEL_MEMBER_CAP];
    enum chan_member_state state;
    int64_t since_us;
    char why[HDT_ERROR_MSG_CAP];
    char instance[20];
};

enum chan_phase { CHAN_JOINING, CHAN_UP, CHAN_OVER };

struct chan_block; /* of the allocator */

struct hdt_channel {
    char name[HDT_NAME_CAP], site[HDT_NAME_CAP];
    unsigned n, rank;
    struct chan_member *members; /* state: guarded by the lock */
    char instance[20];
    int64_t timeout_us;          /* below 0: none */
    uint8_t prio;                /* of collectives */
    struct hdt_codec_spec codec; /* of collectives' flows: what gateways do */
    uint32_t depth;

    struct hdt_tls_ctx *tls;
    struct hdt_engine *engine;
    struct hdt_gwlink *link;
    pthread_t thread;
    bool has_thread;
    struct hdt_task task;
    struct hdt_timer tick;
    struct hdt_pool pool;

    pthread_mutex_t lock; /* guards the members up to the next comment, and what is marked above */
    pthread_cond_t changed;
    bool is_posted, closing, abort_due;
    enum chan_phase phase;
    struct hdt_error why; /* CHAN_OVER */
    struct hdt_error abort_why;
    struct hdt_error down; /* why there is no connection; HDT_OK: there is, or none was tried */
    char differs[HDT_ERROR_MSG_CAP];            /* another site has other members */
    struct hdt_request *all;                    /* requests, until they are collected */
    struct hdt_request *arrived, *arrived_last; /* new ones, for the thread */
    struct hdt_flow *all_flows;
    struct hdt_flow *new_flows, *new_flows_last; /* not seen by the thread yet */
    struct chan_block *blocks;
    struct hdt_channel_stats stats;
    struct hdt_codec_guard guard;
    bool is_up; /* connected to the gateway */
    int64_t down_us;
    uint64_t next_coll; /* number of the next collective */

    /* The thread's. */
    struct hdt_flow *flows, *flows_last; /* in order of opening */
    uint32_t job, epoch;
    bool is_joined;    /* up, on this connection: flows may be opened */
    bool is_announced; /* the pool is, on this connection */
    struct hdt_record pool_record;
    bool pool_queued;
    json_int_t next_id, join_id, leave_id;
    bool leave_said, leave_due, is_leaving, is_ending, is_done;
    int64_t leave_us;
    bool *closed;                    /* by rank: it has left in order */
    struct chan_lane *lanes;         /* n */
    struct chan_cursor gather_out;   /* of all gather_out flows together */
    struct hdt_request *collectives; /* oldest first */
    struct hdt_codec_ctx *codec_ctx;
    float *sum, *scratch; /* CHAN_PIECE_MAX each */
    uint8_t *discard;
};

/* ---- chan_open.c ---- */

/* The thread is to look; the lock is held. */
void hdt_chan_post(struct hdt_channel *ch);
/* The channel is over for this reason: all requests end. `tell`: the others are told so. Thread. */
void hdt_chan_fail(struct hdt_channel *ch, const struct hdt_error *why, bool tell);
/* "rank 1 (b)", and in `state` what is known of it when it is not there: ", which is away for 3 s:
 * WHY" or "". The lock is held. */
void hdt_chan_member_text(const struct hdt_channel *ch, unsigned rank, char *who, size_t who_cap,
                          char *state, size_t state_cap);

/* ---- chan_conn.c; thread ---- */

extern const struct hdt_gwlink_events hdt_chan_link_events;
/* Say that this program leaves; why NULL: in order. */
void hdt_chan_leave(struct hdt_channel *ch, const struct hdt_error *why);

/* ---- chan_flow.c ---- */

/* A flow with its slots in the pool, not in the list yet. The lock is held. HDT_ENOMEM. */
struct chan_flow_spec {
    unsigned peer, tag;
    bool is_src;
    uint8_t prio;
    enum hdt_dtype type;
    struct hdt_codec_spec codec;
    uint32_t depth, frame_cap;
    const size_t *pool_offset; /* slots that it shares with another flow; NULL: its own */
};
enum hdt_status hdt_chan_flow_new(struct hdt_channel *ch, const struct chan_flow_spec *spec,
                                  struct hdt_flow **flow, struct hdt_error *err);
void hdt_chan_flow_free(struct hdt_flow *flow);
/* Hand it to the thread. The lock is held. */
void hdt_chan_flow_add(struct hdt_channel *ch, struct hdt_flow *flow);

/* Thread: */
/* Take over what was added. The lock is held. */
void hdt_chan_flows_collect(struct hdt_channel *ch);
/* [[flow, depth, frame_cap, prio, codec, dtype, content]] of all flows; content may be left out. */
json_t *hdt_chan_offers(const struct hdt_channel *ch);
/* The other end has opened it, too. */
void hdt_chan_flow_opened(struct hdt_channel *ch, uint32_t number, bool is_opened);
void hdt_chan_flows_announce(struct hdt_channel *ch);
void hdt_chan_flows_lost(struct hdt_channel *ch);
void hdt_chan_flows_pump(struct hdt_channel *ch);
void hdt_chan_record_sent(struct hdt_channel *ch, struct hdt_record *record);
enum hdt_status hdt_chan_place(struct hdt_channel *ch, const struct hdt_frame *frame, size_t len,
                               void **buf, struct hdt_error *err);
enum hdt_status hdt_chan_record(struct hdt_channel *ch, const struct hdt_frame *frame,
                                struct hdt_error *err);
/* The other end has taken all before `seq`, and `credit` is as of hdt_window_ack. HDT_EPROTO: so
 * much was never sent. */
enum hdt_status hdt_chan_flow_acked(struct hdt_flow *flow, uint64_t seq, uint64_t credit);

/* Source: slots that may be filled now, in a row from `end` on. */
uint32_t hdt_chan_flow_room(const struct hdt_flow *flow);
struct chan_slot *hdt_chan_flow_slot(struct hdt_flow *flow, uint64_t seq);
/* The slot of `end` is filled: `len` bytes at slot->bytes, made from raw_len of tensor. Takes their
 * hash, unless it is known. */
struct chan_frame {
    size_t len, raw_len;
    enum hdt_dtype dtype;
    uint8_t flags;
    uint64_t xxh3; /* 0: not known */
};
void hdt_chan_flow_commit(struct hdt_flow *flow, const struct chan_frame *frame);
/* Destination: frames that came and were not taken; the i-th of them, checked: NULL when it is
 * damaged, and comes again. */
uint64_t hdt_chan_flow_ready(const struct hdt_flow *flow);
struct chan_slot *hdt_chan_flow_peek(struct hdt_flow *flow, uint64_t i);
void hdt_chan_flow_take(struct hdt_flow *flow);

/* ---- chan_mem.c; the lock is held ---- */

enum hdt_status hdt_chan_mem_init(struct hdt_channel *ch, size_t bytes, struct hdt_error *err);
void hdt_chan_mem_release(struct hdt_channel *ch);
/* Bytes at *offset of the pool, a multiple of 4096. HDT_ENOMEM. */
enum hdt_status hdt_chan_mem_get(struct hdt_channel *ch, size_t bytes, size_t *offset,
                                 struct hdt_error *err);
void hdt_chan_mem_put(struct hdt_channel *ch, size_t offset);
/* Does it lie in one block that hdt_alloc gave? */
bool hdt_chan_mem_has(const struct hdt_channel *ch, const void *mem, size_t bytes);

/* ---- chan_request.c ---- */

struct hdt_request *hdt_chan_request_new(struct hdt_channel *ch, enum chan_request_kind kind);
/* Hand it to the thread. HDT_OK, or why the channel is over (then it is freed). */
enum hdt_status hdt_chan_request_post(struct hdt_request *request, struct hdt_error *err);
/* Thread. err NULL: it went well, `result` elements. */
void hdt_chan_request_done(struct hdt_request *request, size_t result, const struct hdt_error *err);
/* Thread: the next step of each flow; true: there may be more to do. */
bool hdt_chan_requests_step(struct hdt_channel *ch);
/* Thread: the frames before window.acked are taken. */
void hdt_chan_requests_acked(struct hdt_flow *flow);

/* ---- chan_coll.c ---- */

/* Pool bytes that the flows of collectives take; sets ch->depth. */
size_t hdt_chan_coll_bytes(struct hdt_channel *ch, size_t window_bytes);
enum hdt_status hdt_chan_coll_init(struct hdt_channel *ch, struct hdt_error *err);
void hdt_chan_coll_release(struct hdt_channel *ch);
/* Thread. */
void hdt_chan_coll_begin(struct hdt_channel *ch, struct hdt_request *request);
bool hdt_chan_coll_step(struct hdt_channel *ch);
void hdt_chan_coll_acked(struct hdt_channel *ch);
/* "all-reduce 7 of 1024 f32 waits for rank 1 (b)": the oldest one. *peer: whom it waits for. The
 * lock is held. */
void hdt_chan_coll_describe(const struct hdt_channel *ch, char *text, size_t cap, unsigned *peer);

/* For chan_exchange.c. The collective with this number, NULL: it was not called here yet. */
struct hdt_request *hdt_coll_at(const struct hdt_channel *ch, uint64_t seq);
/* Pieces that rank r sends to all, and elements [at, at + n) of the idx-th of them. */
size_t hdt_coll_pieces(const struct hdt_channel *ch, const struct hdt_request *op, unsigned r);
void hdt_coll_piece(const struct hdt_channel *ch, const struct hdt_request *op, unsigned r,
                    size_t idx, size_t *at, size_t *n);
/* The cursor is through with a collective, or with a frame of it, which has `end`. Both may
 * complete it, after which it is not there any more. */
void hdt_coll_cursor_pass(struct hdt_channel *ch, struct chan_cursor *cursor,
                          struct hdt_request *op);
void hdt_coll_cursor_next(struct hdt_channel *ch, struct chan_cursor *cursor,
                          struct hdt_request *op, size_t end);
void hdt_coll_moved(struct hdt_request *op);
/* Rank calls something else. */
void hdt_coll_head_refuse(struct hdt_channel *ch, const struct hdt_request *op, unsigned rank,
                          const struct chan_slot *slot);

/* ---- chan_piece.c ---- */

/* Read a codec's text for tensors of a type; NULL: "none". A codec that changes nothing of the type
 * becomes none. HDT_EINVAL: there is no such codec, or it is not for such tensors, or for jobs
 * only. */
enum hdt_status hdt_piece_codec(const char *text, enum hdt_dtype type, struct hdt_codec_spec *codec,
                                struct hdt_error *err);
/* Codec none, with which a frame is read whose values another one did not carry. */
extern const struct hdt_codec_spec hdt_piece_plain;
/* Do elements travel as they are, but for what gateways do? */
bool hdt_piece_is_plain(const struct hdt_codec_spec *codec);
/* What frames hold, as both ends of a flow must say it: "f32 by int8:block=64+lossless"; "" where
 * their dtype and the gateway's codec say all. */
void hdt_piece_content(const struct hdt_codec_spec *codec, enum hdt_dtype type,
                       char text[HDT_CHANNEL_CONTENT_CAP]);
/* Bytes that n elements take on the way. */
size_t hdt_piece_bytes(const struct hdt_codec_spec *codec, enum hdt_dtype type, size_t n);
/* The dtype of a frame. */
enum hdt_dtype hdt_piece_dtype(const struct hdt_codec_spec *codec, enum hdt_dtype type);
/* Encode n elements; `scratch` has room for as many floats. false: they hold values, NaN or
 * infinity, that the codec does not carry. */
struct chan_numeric {
    struct hdt_codec_ctx *ctx;
    float *scratch;
    struct hdt_codec_guard *guard; /* figures are added; may be NULL */
    struct hdt_codec_state *state; /* codecs with feedback: of this piece of the flow's tensors */
    uint64_t seed;                 /* where chance decides */
};
bool hdt_piece_encode(const struct chan_numeric *num, const struct hdt_codec_spec *codec,
                      enum hdt_dtype type, const void *src, size_t n, void *dst, size_t *len);
/* The inverse. HDT_EPROTO: it is not of n elements, or broken. */
enum hdt_status hdt_piece_decode(const struct chan_numeric *num, const struct hdt_codec_spec *codec,
                                 enum hdt_dtype type, const void *src, size_t len, size_t n,
                                 void *dst, struct hdt_error *err);
/* The most elements that take so many bytes; of coded ones a multiple of 4096, which is one of
 * every block. */
size_t hdt_piece_max(const struct hdt_codec_spec *codec, enum hdt_dtype type, size_t bytes);
/* Elements of f32, bf16 or f16 to floats and back, rounded to nearest even. */
void hdt_piece_widen(enum hdt_dtype type, const void *src, size_t n, float *dst);
void hdt_piece_narrow(enum hdt_dtype type, const float *src, size_t n, void *dst);
/* sum[i] += elements; `first`: sum[i] = elements. scratch: 4096 floats. */
void hdt_piece_add(enum hdt_dtype type, const void *src, size_t n, bool first, float *sum,
                   float *scratch);

#endif /* HDT_LIB_CHAN_H */
